//! Prompt ids that come in place of messages.

use serde_json::Value;

use super::ask::Ask;
use super::config::{Config, Wire};
use super::prompt::has_media;
use super::validate::{Refusal, check_ids};

const PARAM: &str = "kv_transfer_params.prompt_token_ids";

/// The ids that a chat request brings, where the engine takes them (vLLM 0.32, `renderers/online_renderer.py
/// _reused_prompt_token_ids`): not before 0.28, and not with `echo` or messages that hold more than text. There they are
/// silently ignored.
///
/// # Errors
/// 400 for a list that is none, and for ids outside the vocabulary.
pub(super) fn ids(ask: &Ask, config: &Config) -> Result<Option<Vec<u32>>, Refusal> {
    let Some(ids) = ask.given_ids() else { return Ok(None) };
    let old = config.version() < (0, 28);
    let echo = ask.fields.get("echo").and_then(Value::as_bool) == Some(true);
    if config.wire == Wire::Sglang || old || echo || has_media(&ask.messages) {
        return Ok(None);
    }
    let numbers = ids.as_array().filter(|list| !list.is_empty());
    let numbers = numbers.and_then(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
    let Some(numbers) = numbers else {
        let message = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers.";
        return Err(Refusal::field(PARAM, message));
    };
    check_ids(&numbers, config, Some(PARAM)).map(Some)
}

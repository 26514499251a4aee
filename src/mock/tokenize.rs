//! `/tokenize` and `/detokenize`, as recorded from vLLM 0.32.

use serde_json::{Value, json};

use super::answer::begin;
use super::ask::Ask;
use super::completions::object;
use super::config::Config;
use super::family::Family;
use super::generate::missing;
use super::prompt::conversation;
use super::tokens::{decode, encode, token_string};
use super::validate::{Refusal, check, check_model};

/// The ids of a text, or of messages as the chat template writes them.
///
/// # Errors
/// What the engine refuses.
pub(super) fn tokenize(body: &[u8], config: &Config) -> Result<Value, Refusal> {
    let fields = object(body)?;
    check_model(fields.get("model").and_then(Value::as_str).unwrap_or("mock"), config)?;
    let tokens = match fields.get("prompt") {
        Some(Value::String(text)) => encode(text),
        Some(_) => return Err(Refusal::bad("`prompt` is not a string")),
        None if fields.contains_key("messages") => messages(body, config)?,
        None => return Err(missing(&fields, "prompt", "body.prompt")),
    };
    let with_strings = fields.get("return_token_strs").and_then(Value::as_bool) == Some(true);
    let strings = with_strings.then(|| tokens.iter().map(|id| token_string(*id)).collect::<Vec<_>>());
    Ok(json!({
        "count": tokens.len(), "max_model_len": config.max_model_len, "tokens": tokens, "token_strs": strings,
    }))
}

fn messages(body: &[u8], config: &Config) -> Result<Vec<u32>, Refusal> {
    let ask = Ask::read(&[], body)?;
    let family = Family::named(&config.family);
    check(&ask, config, &family)?;
    if ask.add_generation_prompt() == Some(false) && !ask.continues() {
        return Ok(encode(&conversation(&ask.messages, ask.tools())));
    }
    begin(&ask, config, &family).map(|begun| begun.prompt)
}

/// The text of ids; ids outside the vocabulary have none.
///
/// # Errors
/// What the engine refuses.
pub(super) fn detokenize(body: &[u8]) -> Result<Value, Refusal> {
    let fields = object(body)?;
    let Some(list) = fields.get("tokens") else { return Err(missing(&fields, "tokens", "body.tokens")) };
    let read = |id: &Value| id.as_u64().map(|id| u32::try_from(id).unwrap_or(u32::MAX));
    let ids: Option<Vec<u32>> = list.as_array().and_then(|list| list.iter().map(read).collect());
    let ids = ids.ok_or_else(|| Refusal::bad("`tokens` is not a list of non-negative integers"))?;
    Ok(json!({"prompt": String::from_utf8_lossy(&decode(&ids, false))}))
}

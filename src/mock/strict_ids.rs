//! Strict mode for continuations by ids: they must be exactly the prompt's and the first of the answer's.

use serde_json::{Map, Value};

use super::answer::{Begun, model};
use super::ask::Ask;
use super::config::Config;
use super::family::Family;
use super::prompt::{header, opening};
use super::strict::{OWN_RULES, Original, check_options};
use super::tokens::encode;

/// Checks a continuation by ids. `originals` are the first legs with the same messages.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn check(
    ask: &Ask,
    config: &Config,
    family: &Family,
    begun: &Begun,
    originals: &[impl AsRef<Original>],
) -> Result<(), String> {
    if let Some(wrong) = &begun.wrong {
        return Err(wrong.clone());
    }
    if !ask.return_token_ids() {
        return Err("a continuation by ids must have `return_token_ids: true`".to_owned());
    }
    if !ask.stream() {
        return Err("a continuation must have `stream: true`".to_owned());
    }
    let spent = spent(ask, config, family, &begun.prompt)?;
    if originals.is_empty() {
        return match config.ledger {
            Some(_) => Err("the messages are not those of any request seen".to_owned()),
            None => Ok(()),
        };
    }
    // The same messages may have been sent several times with other fields; the newest that fits is the one.
    let mut first = None;
    for original in originals {
        match check_against(&ask.fields, spent, original.as_ref()) {
            Ok(()) => return Ok(()),
            Err(reason) => first = first.or(Some(reason)),
        }
    }
    first.map_or(Ok(()), Err)
}

/// How many ids of the answer a continuation brings. The prompt must be the messages' own ids and, to the token, a beginning of the answer to them.
fn spent(ask: &Ask, config: &Config, family: &Family, prompt: &[u32]) -> Result<u64, String> {
    let model = model(ask, config, family);
    let header = header(ask.prompt(), ask.tools());
    let opening = encode(&opening(config, family, model.thinks));
    let Some(written) = prompt.strip_prefix(&header[..]).and_then(|rest| rest.strip_prefix(&opening[..])) else {
        return Err("the ids do not begin with the prompt's own".to_owned());
    };
    let line = model.line(&header, model.thinks, 0);
    if !line.ids.starts_with(written) {
        return Err("the ids after the prompt's are not the first of the answer's".to_owned());
    }
    Ok(written.len() as u64)
}

/// Compares all fields with the first request's. `spent`: tokens of the answer in the prompt.
///
/// `thinking_token_budget` stays, as vLLM counts the thinking that it finds in a prompt (0.32, `v1/sample/thinking_budget_state.py`).
///
/// # Errors
/// The first that is not as it should be.
pub(super) fn check_against(fields: &Map<String, Value>, spent: u64, original: &Original) -> Result<(), String> {
    let own = |key: &str| OWN_RULES.contains(&key) || ["return_token_ids", "kv_transfer_params"].contains(&key);
    let own = |key: &str| !["chat_template_kwargs", "thinking_token_budget"].contains(&key) && own(key);
    for (key, value) in original.fields.iter().filter(|(key, _)| !own(key)) {
        match fields.get(key) {
            None => return Err(format!("`{key}` of the first request is lost")),
            Some(other) if other != value => return Err(format!("`{key}` is not what the first request had")),
            Some(_) => {}
        }
    }
    if let Some(key) = fields.keys().find(|key| !own(key) && !original.fields.contains_key(key.as_str())) {
        return Err(format!("`{key}` was not in the first request"));
    }
    for flag in ["continue_final_message", "add_generation_prompt"] {
        if fields.get(flag) != original.fields.get(flag) {
            return Err(format!("`{flag}` is not what the first request had"));
        }
    }
    check_options(fields, original)?;
    check_transfer(fields, original)?;
    for key in ["max_tokens", "max_completion_tokens", "min_tokens"] {
        check_budget(key, fields, original, spent)?;
    }
    Ok(())
}

/// The client's own parameters stay beside the ids.
fn check_transfer(fields: &Map<String, Value>, original: &Original) -> Result<(), String> {
    let without = |fields: &Map<String, Value>| {
        let mut params = fields.get("kv_transfer_params").and_then(Value::as_object).cloned().unwrap_or_default();
        params.shift_remove("prompt_token_ids");
        params
    };
    match without(fields) == without(&original.fields) {
        true => Ok(()),
        false => Err("`kv_transfer_params` must be the first request's and `prompt_token_ids`".to_owned()),
    }
}

/// What counts tokens from a leg's start goes down by exactly what was written, to 0 at the least. A value below 0, which
/// means no limit, stays.
fn check_budget(key: &str, fields: &Map<String, Value>, original: &Original, spent: u64) -> Result<(), String> {
    let (theirs, ours) = (original.fields.get(key), fields.get(key));
    let (Some(theirs), Some(ours)) = (theirs, ours) else {
        return match (theirs, ours) {
            (None, None) => Ok(()),
            (None, _) => Err(format!("`{key}` was not in the first request")),
            _ => Err(format!("`{key}` of the first request is lost")),
        };
    };
    let Some(whole) = theirs.as_u64() else {
        let same = theirs == ours;
        return if same { Ok(()) } else { Err(format!("`{key}` is not what the first request had")) };
    };
    match ours.as_u64() == Some(whole.saturating_sub(spent)) {
        true => Ok(()),
        false => Err(format!("`{key}` must be {whole} minus the {spent} tokens written, and is {ours}")),
    }
}

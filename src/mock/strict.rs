//! Strict mode: what a continuation must look like, told in words when it does not.

use serde_json::{Map, Value};

use super::answer::model;
use super::ask::Ask;
use super::config::{Config, Wire};
use super::continued::{Start, separate_reasoning, text_of};
use super::family::{Family, is_off};
use super::prompt::header;
use super::text::{Kind, Position};

/// A first leg as the engine saw it.
#[derive(Debug, Default)]
pub(super) struct Original {
    /// Its messages, byte for byte; none for a completion.
    pub(super) messages: Vec<String>,
    /// Its prompt's ids.
    pub(super) prompt: Vec<u32>,
    pub(super) fields: Map<String, Value>,
}

impl Original {
    pub(super) fn of(ask: &Ask, prompt: &[u32]) -> Self {
        Self { messages: ask.raw_messages.clone(), prompt: prompt.to_vec(), fields: ask.fields.clone() }
    }
}

/// Fields in which a continuation may differ from the request it continues; each has a rule of its own.
pub(super) const OWN_RULES: &[&str] = &[
    "messages",
    "continue_final_message",
    "add_generation_prompt",
    "stream_options",
    "chat_template_kwargs",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "thinking_token_budget",
    "rid",
];

/// Checks a continuation. `originals` are the first legs with the same earlier messages.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn check(
    ask: &Ask,
    config: &Config,
    family: &Family,
    start: &Start,
    originals: &[impl AsRef<Original>],
) -> Result<(), String> {
    if let Some(wrong) = &start.wrong {
        return Err(wrong.clone());
    }
    check_flags(ask)?;
    check_form(ask, config, family, start)?;
    if originals.is_empty() {
        return match config.ledger {
            Some(_) => Err("the messages before the last are not those of any request seen".to_owned()),
            None => Ok(()),
        };
    }
    // The same messages may have been sent several times with other fields; the newest that fits is the one.
    let mut first = None;
    for original in originals {
        match check_against(ask, config, family, start, original.as_ref()) {
            Ok(()) => return Ok(()),
            Err(reason) => first = first.or(Some(reason)),
        }
    }
    first.map_or(Ok(()), Err)
}

fn check_flags(ask: &Ask) -> Result<(), String> {
    if !ask.stream() {
        return Err("a continuation must have `stream: true`".to_owned());
    }
    if !ask.stream_option("include_usage") {
        return Err("a continuation must have `stream_options.include_usage: true`".to_owned());
    }
    if ask.add_generation_prompt() != Some(false) {
        return Err("a continuation must have `add_generation_prompt: false`".to_owned());
    }
    if ask.choices() > 1 {
        return Err("several choices cannot be continued".to_owned());
    }
    let guided =
        ["response_format", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"];
    let is_text = |value: &Value| value.is_null() || value.get("type").and_then(Value::as_str) == Some("text");
    match guided.iter().find(|key| ask.fields.get(**key).is_some_and(|value| !is_text(value))) {
        Some(key) => Err(format!("guided decoding (`{key}`) cannot be continued")),
        None => Ok(()),
    }
}

fn check_form(ask: &Ask, config: &Config, family: &Family, start: &Start) -> Result<(), String> {
    let Some(message) = ask.last() else { return Err("there is no message".to_owned()) };
    let known = ["role", "content", "reasoning", "reasoning_content"];
    if let Some(key) = message.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(format!("the last message must not have `{key}`"));
    }
    let separate = separate_reasoning(message);
    if config.wire == Wire::Sglang && separate.is_some() {
        return Err(
            "SGLang discards reasoning in a field of its own: it must stand in the content, in think tags".to_owned()
        );
    }
    let tagged = message.get("content").and_then(Value::as_str).is_some_and(|content| content.contains(family.close));
    if config.wire == Wire::Vllm && family.separate && tagged {
        return Err(
            "this family's template re-arranges think tags: reasoning and content must come in separate fields"
                .to_owned(),
        );
    }
    if start.at.kind == Kind::Reasoning && start.thinks && !family.thinks_with(&ask.kwargs()) {
        return Err("thinking is switched off, but the partial is still thinking".to_owned());
    }
    Ok(())
}

fn check_against(
    ask: &Ask,
    config: &Config,
    family: &Family,
    start: &Start,
    original: &Original,
) -> Result<(), String> {
    for (key, value) in original.fields.iter().filter(|(key, _)| !OWN_RULES.contains(&key.as_str())) {
        match ask.fields.get(key) {
            None => return Err(format!("`{key}` of the first request is lost")),
            Some(other) if other != value => return Err(format!("`{key}` is not what the first request had")),
            Some(_) => {}
        }
    }
    let added = |key: &&String| !OWN_RULES.contains(&key.as_str()) && !original.fields.contains_key(key.as_str());
    if let Some(key) = ask.fields.keys().find(added) {
        return Err(format!("`{key}` was not in the first request"));
    }
    check_options(&ask.fields, original)?;
    check_switch(ask, family, start, original)?;
    check_budget(ask, config, start, original)?;
    check_floors(ask, original)?;
    if config.wire == Wire::Sglang
        && ask.rid().is_some()
        && ask.rid() == original.fields.get("rid").and_then(Value::as_str)
    {
        return Err("`rid` is the first request's: SGLang needs a fresh one".to_owned());
    }
    Ok(())
}

/// The client's own options stay; more usage may be asked for.
pub(super) fn check_options(fields: &Map<String, Value>, original: &Original) -> Result<(), String> {
    let Some(options) = original.fields.get("stream_options").and_then(Value::as_object) else { return Ok(()) };
    let ours = fields.get("stream_options").and_then(Value::as_object);
    for (key, value) in options.iter().filter(|(key, _)| *key != "include_usage") {
        if ours.and_then(|ours| ours.get(key)) != Some(value) {
            return Err(format!("`stream_options.{key}` of the first request is lost"));
        }
    }
    Ok(())
}

/// The client's template arguments stay; at most one of the family's own keys is added, and only to switch thinking off.
fn check_switch(ask: &Ask, family: &Family, start: &Start, original: &Original) -> Result<(), String> {
    let (ours, empty) = (ask.kwargs(), Map::new());
    let theirs = original.fields.get("chat_template_kwargs").and_then(Value::as_object).unwrap_or(&empty);
    let is_switch = |key: &str| family.keys.contains(&key);
    if let Some((key, _)) = theirs.iter().find(|(key, value)| !is_switch(key) && ours.get(*key) != Some(value)) {
        return Err(format!("`chat_template_kwargs.{key}` of the first request is lost or changed"));
    }
    let changed: Vec<_> = ours.iter().filter(|(key, value)| theirs.get(*key) != Some(value)).collect();
    match changed[..] {
        [] => Ok(()),
        [(key, _)] if !is_switch(key) => {
            Err(format!("`chat_template_kwargs.{key}` is not this family's switch for thinking"))
        }
        [(key, value)] if is_off(value) != Some(true) => {
            Err(format!("`chat_template_kwargs.{key}` must only be set to off"))
        }
        [_] if start.at.kind == Kind::Reasoning => {
            Err("thinking is switched off, but the partial is still thinking".to_owned())
        }
        [_] => Ok(()),
        _ => Err("thinking must be switched off with exactly one key".to_owned()),
    }
}

/// What counts a leg's own tokens from its start (vLLM 0.33, `sampling_params.py`) goes down with what was written, to 0 at
/// the least: a continuation must not be made to write, or allowed to think, more than the whole answer. A value below 0,
/// which means no limit, stays as it is.
fn check_floors(ask: &Ask, original: &Original) -> Result<(), String> {
    for key in ["min_tokens", "thinking_token_budget"] {
        let (theirs, ours) = (original.fields.get(key), ask.fields.get(key));
        match (theirs.and_then(Value::as_i64), ours.and_then(Value::as_i64)) {
            _ if theirs == ours => {}
            (Some(whole), Some(left)) if (0..=whole).contains(&left) => {}
            (Some(whole), Some(left)) => return Err(format!("`{key}` must be from 0 to {whole}, and is {left}")),
            _ if theirs.is_none() => return Err(format!("`{key}` was not in the first request")),
            _ if ours.is_none() => return Err(format!("`{key}` of the first request is lost")),
            _ => return Err(format!("`{key}` is not what the first request had")),
        }
    }
    Ok(())
}

fn check_budget(ask: &Ask, config: &Config, start: &Start, original: &Original) -> Result<(), String> {
    let written = written(ask, config, start);
    let continuous =
        original.fields.get("stream_options").and_then(|options| options.get("continuous_usage_stats")?.as_bool())
            == Some(true);
    for key in ["max_tokens", "max_completion_tokens"] {
        let read = |fields: &Map<String, Value>| fields.get(key).and_then(Value::as_u64);
        match (read(&original.fields), read(&ask.fields)) {
            (None, None) => {}
            (None, Some(_)) => return Err(format!("`{key}` was not in the first request")),
            (Some(_), None) => return Err(format!("`{key}` of the first request is lost")),
            (Some(all), Some(left)) if continuous && left + written != all => {
                return Err(format!("`{key}` must be {all} minus the {written} tokens written, and is {left}"));
            }
            (Some(all), Some(left)) if written > 0 && left >= all => {
                return Err(format!("`{key}` must be less than the first request's {all}, and is {left}"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Tokens of the answer that the partial holds.
fn written(ask: &Ask, config: &Config, start: &Start) -> u64 {
    let at = Position { offset: start.at.offset + start.lost, ..start.at };
    match config.wire {
        Wire::Vllm => {
            let model = model(ask, config, &Family::named(&config.family));
            let line = model.line(&header(ask.prompt(), ask.tools()), start.thinks, 0);
            line.cut(line.offset(start.thinks, at)).0.len() as u64
        }
        Wire::Sglang => {
            let text = text_of(ask, config, start.thinks, 0);
            let thoughts = if at.kind == Kind::Content { text.tokens(Kind::Reasoning, usize::MAX) } else { 0 };
            thoughts + text.tokens(at.kind, at.offset)
        }
    }
}

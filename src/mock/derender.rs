//! `/v1/chat/completions/derender` in its streaming form, as recorded from vLLM 0.32 and read from `renderers/online_derenderer.py`.
//!
//! A parser's state cannot be carried, so each call replays everything written before through a fresh one, in the groups in
//! which it came, and gives only what the new tokens add. Three things are as they are there: one delta can say several things at
//! once; the end token has a text and comes as content; and after a tool call every finish reason becomes `tool_calls`.

use serde_json::{Value, json};

use super::answer::model;
use super::ask::Ask;
use super::completions::object;
use super::config::Config;
use super::detok::Detok;
use super::family::Family;
use super::parser::{Call, Parser, Said, state_after};
use super::script::now;
use super::text::key;
use super::validate::{Refusal, check_model};

/// What the engine needs of a call.
struct Asked {
    request: Value,
    prompt: Vec<u32>,
    chunk: Value,
    state: Value,
    written: Vec<u32>,
    lengths: Vec<usize>,
    prompt_tokens: Option<u64>,
}

/// Answers one call.
///
/// # Errors
/// What the engine refuses.
pub(super) fn derender(body: &[u8], config: &Config) -> Result<Value, Refusal> {
    let asked = read(body, config)?;
    let ask = Ask::read(&[], asked.request.to_string().as_bytes())?;
    let family = Family::named(&config.family);
    let thinks = model(&ask, config, &family).thinks;
    let mut parser = Parser::new(&family, state_after(&asked.prompt, &family, thinks), ask.tool().is_some());
    let mut detok = Detok::new(&asked.prompt, false);
    let mut from = 0;
    for length in &asked.lengths {
        let group = asked.written.get(from..from + length).ok_or_else(failed)?;
        feed(&mut parser, &mut detok, group, false);
        from += length;
    }
    let choice = asked.chunk["choices"].get(0).cloned().unwrap_or_default();
    let tokens = ids(&choice["token_ids"]).unwrap_or_default();
    let finish = choice["finish_reason"].as_str();
    let mut said = Said::default();
    if !tokens.is_empty() || finish.is_some() {
        said = feed(&mut parser, &mut detok, &tokens, finish.is_some());
    }
    Ok(answer(&asked, &ask, config, &choice, &tokens, &said))
}

fn feed(parser: &mut Parser, detok: &mut Detok, tokens: &[u32], finished: bool) -> Said {
    tokens.iter().for_each(|id| drop(detok.push(*id)));
    match detok.take(finished) {
        (text, true) => parser.verbatim(&text),
        (text, false) => parser.feed(&text, finished),
    }
}

fn answer(asked: &Asked, ask: &Ask, config: &Config, choice: &Value, tokens: &[u32], said: &Said) -> Value {
    let mut state = asked.state.clone();
    let mut choices = Vec::new();
    if choice.is_object() {
        let named = asked.request.pointer("/tool_choice/function").is_some();
        let called = state["tools_streamed"] == true || !said.calls.is_empty();
        state["tools_streamed"] = json!(called);
        let calls = calls(asked, &mut state, said);
        let text = |text: &str| if text.is_empty() { Value::Null } else { json!(text) };
        let role = if state["role_sent"] == true { Value::Null } else { json!("assistant") };
        state["role_sent"] = json!(true);
        let reasoning = if ask.hides_reasoning() { Value::Null } else { text(&said.reasoning) };
        let mut delta = json!({"role": role, "content": text(&said.content), "reasoning": reasoning});
        if !calls.is_empty() {
            delta["tool_calls"] = json!(calls);
        }
        let finish = match &choice["finish_reason"] {
            Value::Null => Value::Null,
            _ if called && !named => json!("tool_calls"),
            reason => reason.clone(),
        };
        let shown = (ask.return_token_ids() && !ask.hides_reasoning()).then_some(tokens);
        choices.push(json!({
            "index": choice["index"], "delta": delta, "logprobs": null, "finish_reason": finish,
            "stop_reason": choice["stop_reason"], "token_ids": shown,
        }));
    }
    if !tokens.is_empty() {
        state["output_token_ids"] = json!([&asked.written[..], tokens].concat());
        state["output_chunk_lens"] = json!([&asked.lengths[..], &[tokens.len()]].concat());
    }
    let chunk = json!({
        "id": asked.chunk["request_id"], "object": "chat.completion.chunk", "created": config.created.unwrap_or_else(now),
        "model": ask.model(), "choices": choices, "usage": usage(asked), "system_fingerprint": null,
        "prompt_token_ids": null, "prompt_text": null, "metrics": null,
    });
    json!({"chunk": chunk, "stream_state": state})
}

/// The pieces of a tool call; its id is made with its name, and kept in the state.
fn calls(asked: &Asked, state: &mut Value, said: &Said) -> Vec<Value> {
    let piece = |call: &Call| match call {
        Call::Name(name) => {
            let own = key([asked.chunk["request_id"].to_string().as_bytes()]);
            let id = state["last_tool_call_ids"].get(0).cloned();
            let id = id.unwrap_or_else(|| json!(format!("chatcmpl-tool-{own:016x}")));
            state["last_tool_call_ids"] = json!([id]);
            json!({"id": id, "type": "function", "index": 0, "function": {"name": name, "arguments": null}})
        }
        Call::Arguments(text) => {
            json!({"id": null, "type": null, "index": 0, "function": {"name": null, "arguments": text}})
        }
    };
    said.calls.iter().map(piece).collect()
}

fn usage(asked: &Asked) -> Value {
    let usage = &asked.chunk["usage"];
    if usage.is_null() {
        return Value::Null;
    }
    let prompt = asked.prompt_tokens.or_else(|| usage["prompt_tokens"].as_u64()).unwrap_or(0);
    let completion = usage["completion_tokens"].as_u64().unwrap_or(0);
    json!({
        "prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
        "prompt_tokens_details": null, "completion_tokens_details": null,
    })
}

fn failed() -> Refusal {
    Refusal::bad("invalid stream_state: derender failed")
}

fn ids(list: &Value) -> Option<Vec<u32>> {
    list.as_array()?.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}

fn read(body: &[u8], config: &Config) -> Result<Asked, Refusal> {
    let fields = object(body)?;
    check_model(fields.get("model").and_then(Value::as_str).unwrap_or("mock"), config)?;
    if fields.get("stream").and_then(Value::as_bool) != Some(true) {
        return Err(Refusal::bad("mock-engine derenders streams only"));
    }
    let field = |key: &str| fields.get(key).filter(|value| !value.is_null()).cloned();
    let chunk = field("generate_chunk").ok_or_else(|| super::generate::missing(&fields, "generate_chunk", "body"))?;
    let request = field("chat_request").ok_or_else(|| {
        Refusal::bad(
            "chat_request is required when a tool or reasoning parser is configured because plain detokenization would leak raw \
             parser markup into content.",
        )
    })?;
    let prompt = field("prompt_token_ids").as_ref().and_then(ids).ok_or_else(|| {
        Refusal::bad(
            "prompt_token_ids is required when a tool or reasoning parser is configured. Without it parse_delta cannot tell whether the \
             prompt left reasoning open (e.g. a chat template that pre-opens <think>) and would misclassify reasoning content as plain \
             content.",
        )
    })?;
    let count = chunk["choices"].as_array().map_or(0, Vec::len);
    if count > 1 {
        let message = format!("derender_chat_stream expects at most one choice per chunk (got {count}).");
        return Err(Refusal::bad(message));
    }
    let mut state = json!({
        "prev_tokens": [], "prefix_offset": 0, "read_offset": 0, "role_sent": false, "logprob_context_token_ids": [],
        "logprob_text_offset": 0, "output_token_ids": [], "output_chunk_lens": [], "tools_streamed": false,
        "last_tool_call_ids": [],
    });
    if let Some(Value::Object(given)) = field("stream_state") {
        given.into_iter().for_each(|(key, value)| state[key] = value);
    }
    let written = ids(&state["output_token_ids"]).ok_or_else(failed)?;
    let lengths = ids(&state["output_chunk_lens"]).ok_or_else(failed)?;
    let lengths: Vec<usize> = lengths.into_iter().map(|length| length as usize).collect();
    let total: usize = lengths.iter().sum();
    if total != written.len() {
        let message = format!(
            "output_chunk_lens must sum to len(output_token_ids) (got sum={total}, len(output_token_ids)={})",
            written.len()
        );
        return Err(Refusal::bad(message));
    }
    let prompt_tokens = fields.get("prompt_tokens").and_then(Value::as_u64);
    Ok(Asked { request, prompt, chunk, state, written, lengths, prompt_tokens })
}

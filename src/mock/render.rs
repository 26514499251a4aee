//! `/v1/chat/completions/render`: a chat request as a request for tokens, as recorded from vLLM 0.32.

use serde_json::{Map, Value, json};

use super::answer::begin;
use super::ask::Ask;
use super::config::Config;
use super::family::Family;
use super::text::Kind;
use super::validate::{Refusal, check};

/// Renders a chat request; `id` is the response's.
///
/// # Errors
/// What the engine refuses.
pub(super) fn render(ask: &Ask, config: &Config, id: &str) -> Result<Value, Refusal> {
    let family = Family::named(&config.family);
    check(ask, config, &family)?;
    let begun = begin(ask, config, &family)?;
    let mut kwargs = json!({"cohere_format": "cmd4", "add_generation_prompt": true, "continue_final_message": false});
    ask.kwargs().into_iter().for_each(|(key, value)| kwargs[key] = value);
    let options = ask.fields.get("stream_options").filter(|options| !options.is_null()).map(|_| {
        json!({
            "include_usage": ask.stream_option("include_usage"),
            "continuous_usage_stats": ask.stream_option("continuous_usage_stats"),
        })
    });
    let params = sampling_params(ask, config.max_model_len.saturating_sub(begun.prompt.len()));
    let mut rendered = json!({
        "request_id": id,
        "token_ids": begun.prompt,
        "token_offsets": null,
        "features": null,
        "content_parts": null,
        "sampling_params": params,
        "model": ask.model(),
        "reasoning_ended": begun.state == Kind::Content,
        "reasoning_parser_kwargs": {"chat_template_kwargs": kwargs},
        "return_token_ids": ask.fields.get("return_token_ids").cloned().unwrap_or_default(),
        "output_mode": "tokens",
        "stream": ask.stream(),
        "stream_options": options,
        "cache_salt": null,
        "priority": 0,
        "kv_transfer_params": null,
        "ec_transfer_params": null,
    });
    // What the request asks of a scripted engine has to reach the one that generates.
    let lengths =
        [("reasoning", ask.lengths.reasoning), ("content", ask.lengths.content), ("tool_call", ask.lengths.tool_call)];
    let asked: Map<String, Value> =
        lengths.into_iter().filter_map(|(key, length)| Some((key.to_owned(), length?.into()))).collect();
    if !asked.is_empty() {
        rendered["mock"] = Value::Object(asked);
    }
    Ok(rendered)
}

fn sampling_params(ask: &Ask, room: usize) -> Value {
    let number = |key: &str, own: f64| ask.fields.get(key).and_then(Value::as_f64).unwrap_or(own);
    let limits = ask.limits();
    let mut params = json!({
        "presence_penalty": number("presence_penalty", 0.0),
        "frequency_penalty": number("frequency_penalty", 0.0),
        "repetition_penalty": number("repetition_penalty", 1.0),
        "temperature": number("temperature", 1.0),
    });
    if let Some(seed) = ask.fields.get("seed").filter(|seed| !seed.is_null()) {
        params["seed"] = seed.clone();
    }
    let hold = limits.stop.iter().map(|stop| stop.chars().count()).max().map(|longest| longest - 1);
    params["stop"] = json!(limits.stop);
    params["stop_token_ids"] = json!([]);
    params["max_tokens"] = json!(limits.tokens.unwrap_or(room as u64));
    if limits.min_tokens > 0 {
        params["min_tokens"] = json!(limits.min_tokens);
    }
    params["skip_special_tokens"] = json!(false);
    params["output_kind"] = json!(if ask.stream() { 1 } else { 2 });
    params["skip_clone"] = json!(true);
    if let Some(hold) = hold {
        params["output_text_buffer_length"] = json!(hold);
    }
    params["bad_words"] = json!([]);
    params["skip_reading_prefix_cache"] = json!(false);
    params
}

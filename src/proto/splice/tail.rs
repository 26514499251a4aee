//! The events that Baton writes itself when an engine breaks off behind the last text.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::proto::chat::json::{self, Object};
use crate::proto::chat::{FinishReason, Head, Shape, Usage};

/// A chunk that ends choice 0, with the fields that the stream's engine has in such a chunk (vLLM 0.32; SGLang 0.5.23,
/// serving_chat.py). The event's data.
pub fn finish_chunk(head: &Head, shape: Shape, reason: &FinishReason) -> Vec<u8> {
    let reason = reason.name();
    let choice = match shape {
        Shape::OpenAi => json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": reason}),
        Shape::Vllm => json!({
            "index": 0, "delta": {}, "logprobs": null, "finish_reason": reason, "stop_reason": null, "token_ids": null
        }),
        Shape::Sglang => json!({
            "index": 0, "delta": {"reasoning_content": null}, "logprobs": null, "finish_reason": reason,
            "matched_stop": null
        }),
    };
    chunk(head, &json!([choice]), None)
}

/// The chunk with the answer's usage and without a choice, which stands between the finish chunk and `[DONE]`. The event's
/// data.
pub fn usage_chunk(head: &Head, usage: &Usage) -> Vec<u8> {
    chunk(head, &json!([]), Some(usage.to_json()))
}

fn chunk(head: &Head, choices: &Value, usage: Option<Box<RawValue>>) -> Vec<u8> {
    let mut event = Object::default();
    event.set("id", json::raw(&head.id));
    event.set("object", json::raw("chat.completion.chunk"));
    if let Some(created) = head.created {
        event.set("created", json::raw(&created));
    }
    event.set("model", json::raw(&head.model));
    event.set("choices", json::raw(choices));
    if let Some(usage) = usage {
        event.set("usage", usage);
    }
    if let Some(fingerprint) = &head.system_fingerprint {
        event.set("system_fingerprint", json::raw(fingerprint));
    }
    event.to_text().into_bytes()
}

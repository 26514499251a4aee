//! The events that Baton writes itself when an engine breaks off behind the last text.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::proto::chat::json::{self, Object};
use crate::proto::chat::{Api, FinishReason, Head, Shape, Usage};

/// A chunk that ends choice 0, with the fields that the stream's engine has in such a chunk (vLLM 0.32, chat_completion/serving.py and
/// completion/serving.py; SGLang 0.5.23, serving_chat.py and serving_completions.py). The event's data.
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
        Shape::Completion => json!({"index": 0, "text": "", "logprobs": null, "finish_reason": reason}),
        Shape::VllmCompletion => json!({
            "index": 0, "text": "", "logprobs": null, "finish_reason": reason, "stop_reason": null,
            "prompt_token_ids": null, "token_ids": null
        }),
        Shape::SglangCompletion => json!({
            "index": 0, "text": "", "logprobs": null, "finish_reason": reason, "matched_stop": null
        }),
    };
    chunk(head, shape.api(), &json!([choice]), None)
}

/// The chunk with the answer's usage and without a choice, which stands between the finish chunk and `[DONE]`, in a stream of chunks
/// of this shape. The event's data.
pub fn usage_chunk(head: &Head, shape: Shape, usage: &Usage) -> Vec<u8> {
    chunk(head, shape.api(), &json!([]), Some(usage.to_json()))
}

fn chunk(head: &Head, api: Api, choices: &Value, usage: Option<Box<RawValue>>) -> Vec<u8> {
    let object = match api {
        Api::Chat => "chat.completion.chunk",
        Api::Completions => "text_completion",
    };
    let mut event = Object::default();
    event.set("id", json::raw(&head.id));
    event.set("object", json::raw(object));
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

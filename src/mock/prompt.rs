//! What the model gets to see: the chat template, as ids.
//!
//! ChatML, as Qwen3's templates write it (recorded from vLLM 0.32): `<|im_start|>ROLE\nTEXT<|im_end|>\n` for each message, then the
//! header `<|im_start|>assistant\n`, then what opens or closes thinking.

use serde_json::{Map, Value};

use super::config::{Config, Template};
use super::family::Family;
use super::tokens::{END, START, encode};

/// Where an answer's header ends in ids: after the last `<|im_start|>assistant\n`. `None`: there is none.
pub(super) fn header_end(ids: &[u32]) -> Option<usize> {
    let header = encode("<|im_start|>assistant\n");
    let at = ids.windows(header.len()).rposition(|window| window == header)?;
    let end = at + header.len();
    // A later message has begun, or this one has ended.
    (!ids[end..].iter().any(|id| [START, END].contains(id))).then_some(end)
}

/// The ids of messages up to the header of the answer, header included.
pub(super) fn header(messages: &[Map<String, Value>], tools: Option<&Value>) -> Vec<u32> {
    let mut text = conversation(messages, tools);
    text.push_str("<|im_start|>assistant\n");
    encode(&text)
}

/// All messages as the template writes them, without a header for an answer.
pub(super) fn conversation(messages: &[Map<String, Value>], tools: Option<&Value>) -> String {
    let mut text = String::new();
    if let Some(tools) = tools {
        text.push_str(&format!("<|im_start|>system\n{TOOLS}{tools}<|im_end|>\n"));
    }
    for message in messages {
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        text.push_str(&format!("<|im_start|>{role}\n{}<|im_end|>\n", content(message)));
    }
    text
}

const TOOLS: &str = "# Tools\n";

/// The name of the first tool that a prompt offers.
pub(super) fn tool_in(header: &[u32]) -> Option<String> {
    let text = String::from_utf8_lossy(&super::tokens::decode(header, false)).into_owned();
    let tools = text.split_once("<|im_start|>system\n# Tools\n")?.1.split_once("<|im_end|>")?.0;
    let tools: Value = serde_json::from_str(tools).ok()?;
    Some(tools.get(0)?.get("function")?.get("name")?.as_str()?.to_owned())
}

fn content(message: &Map<String, Value>) -> String {
    let mut text = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().map(part).collect(),
        _ => String::new(),
    };
    if let Some(calls) = message.get("tool_calls").filter(|calls| !calls.is_null()) {
        text.push_str(&format!("\n<tool_call>\n{calls}\n</tool_call>"));
    }
    text
}

fn part(part: &Value) -> String {
    match part.get("text").and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => "<|vision_start|><|image_pad|><|vision_end|>".to_owned(),
    }
}

/// Whether a message holds anything but text.
pub(super) fn has_media(messages: &[Map<String, Value>]) -> bool {
    let parts = messages.iter().filter_map(|message| message.get("content")?.as_array()).flatten();
    parts.into_iter().any(|part| part.get("text").is_none_or(|text| !text.is_string()))
}

/// What the template writes after the header.
pub(super) fn opening(config: &Config, family: &Family, thinks: bool) -> String {
    let template = config.template.unwrap_or(family.template);
    match (template, thinks) {
        // The model writes its opening tag itself, or the engine takes all for thoughts until a closing one.
        (Template::DeepseekR1 | Template::Mistral, _) => String::new(),
        (_, true) => format!("{}\n", family.open),
        (Template::DeepseekV3, false) => family.close.to_owned(),
        _ if family.keys.is_empty() => String::new(),
        _ => format!("{}\n\n{}\n\n", family.open, family.close),
    }
}

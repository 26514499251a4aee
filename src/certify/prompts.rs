//! What is asked.

use serde_json::{Value, json};

use super::Order;

/// One request to be.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Prompt {
    /// Short, for reports.
    pub(super) name: &'static str,
    /// The one message.
    pub(super) text: String,
    /// Thinking is switched off by this key and this JSON value.
    pub(super) off: Option<(String, String)>,
    /// A tool may be called.
    pub(super) tools: bool,
    /// Token ids in place of the message.
    pub(super) ids: Option<String>,
}

/// Answers with thinking, where the model thinks.
const OWN: [(&str, &str); 2] = [("story", "Tell me a story."), ("plain", "Please count.")];

/// Answers with several bytes to a character, and with code; with thinking off, so that they come to that soon.
const AT_ONCE: [(&str, &str); 2] = [
    ("unicode", "Write three short sentences about the sea, in Chinese, each with an emoji."),
    ("code", "Write a short Python function that says whether a number is prime, with a comment in Chinese."),
];

const TOOL: &str = "What is the weather in Paris?";

/// The prompts of an order; `key`: what switches thinking off, where anything does.
pub(super) fn set(order: &Order, key: Option<&(String, String)>) -> Vec<Prompt> {
    let plain = |name, text: &str| Prompt { name, text: text.to_owned(), off: None, tools: false, ids: None };
    let mut prompts: Vec<Prompt> = match &order.prompts[..] {
        [] => {
            let at_once = AT_ONCE.iter().map(|(name, text)| Prompt { off: key.cloned(), ..plain(name, text) });
            OWN.iter().map(|(name, text)| plain(name, text)).chain(at_once).collect()
        }
        given => given.iter().map(|text| plain("given", text)).collect(),
    };
    if let (Some(key), Some(first)) = (key, prompts.first()) {
        prompts.push(Prompt { name: "thinking off", off: Some(key.clone()), ..first.clone() });
    }
    prompts.push(Prompt { tools: true, ..plain("tool", TOOL) });
    if let Some(ids) = &order.prompt_ids {
        prompts.push(Prompt { tools: true, ids: Some(ids.clone()), ..plain("ids", TOOL) });
    }
    prompts
}

impl Prompt {
    /// The body of its request, as a client would send it.
    pub(super) fn body(&self, model: &str, max_tokens: u64) -> Value {
        let mut body = json!({
            "model": model,
            "messages": [{"role": "user", "content": self.text}],
            "stream": true,
            "stream_options": {"include_usage": true},
            "temperature": 0,
            "max_tokens": max_tokens,
        });
        let read = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
        if let Some((key, off)) = &self.off {
            body["chat_template_kwargs"] = json!({ key.as_str(): read(off) });
        }
        if self.tools {
            body["tools"] = tools();
            body["tool_choice"] = json!("auto");
        }
        if let Some(ids) = &self.ids {
            body["kv_transfer_params"] = json!({"prompt_token_ids": read(ids)});
        }
        body
    }
}

fn tools() -> Value {
    let string = |what: &str| json!({"type": "string", "description": what});
    let properties = json!({"city": string("The city"), "unit": string("celsius or fahrenheit")});
    let parameters = json!({"type": "object", "properties": properties, "required": ["city"]});
    let function = json!({"name": "get_weather", "description": "The weather in a city", "parameters": parameters});
    json!([{"type": "function", "function": function}])
}

/// Whether a text is a JSON list of token ids.
pub(super) fn is_ids(text: &str) -> bool {
    serde_json::from_str::<Vec<u32>>(text).is_ok_and(|ids| !ids.is_empty())
}

//! What the engine reads of a chat request.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::answer::Limits;
use super::fault::Rule;
use super::log::Leg;
use super::validate::Refusal;

/// Messages, choices and lengths beyond these are refused, so that one request cannot take the machine.
const MAX_CHOICES: u64 = 16;
const MAX_TOKENS: usize = 1 << 20;

/// A chat request's body and the `mock-…` headers beside it.
#[derive(Debug)]
pub(super) struct Ask {
    /// All top-level fields.
    pub(super) fields: Map<String, Value>,
    /// The messages, as they were written.
    pub(super) raw_messages: Vec<String>,
    /// The messages, read.
    pub(super) messages: Vec<Map<String, Value>>,
    /// Pieces of reasoning and of content, and after how many of content a tool call comes, if the request says so.
    pub(super) lengths: Lengths,
    /// Faults that the request itself asks for.
    pub(super) faults: Vec<Rule>,
}

/// Lengths that a request asks for.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Lengths {
    pub(super) reasoning: Option<usize>,
    pub(super) content: Option<usize>,
    pub(super) tool_call: Option<usize>,
}

#[derive(Deserialize)]
struct RawMessages<'a> {
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
}

impl Ask {
    /// Reads a body and headers (names in lower case).
    ///
    /// # Errors
    /// 400 and the reason, as an engine's own schema check does.
    pub(super) fn read(headers: &[(String, String)], body: &[u8]) -> Result<Self, Refusal> {
        let value: Value =
            serde_json::from_slice(body).map_err(|error| Refusal::bad(format!("the body is not JSON: {error}")))?;
        let Value::Object(fields) = value else { return Err(Refusal::bad("the body is not a JSON object")) };
        let messages = read_messages(&fields)?;
        let raw: RawMessages<'_> = serde_json::from_slice(body)
            .map_err(|error| Refusal::bad(format!("`messages` cannot be read: {error}")))?;
        let raw_messages = raw.messages.iter().map(|message| message.get().to_owned()).collect();
        let mut ask = Self { fields, raw_messages, messages, lengths: Lengths::default(), faults: Vec::new() };
        ask.read_mock(headers)?;
        ask.check_types()?;
        Ok(ask)
    }

    /// Whether a body is a continuation's, whatever else may be wrong with it.
    pub(super) fn leg(body: &[u8]) -> Leg {
        #[derive(Deserialize)]
        struct Flags {
            #[serde(default)]
            messages: Value,
            #[serde(default)]
            continue_final_message: Option<Value>,
            #[serde(default)]
            kv_transfer_params: Option<Value>,
        }
        let Ok(flags) = serde_json::from_slice::<Flags>(body) else { return Leg::First };
        let ids = flags.kv_transfer_params.as_ref().and_then(|params| params.get("prompt_token_ids"));
        let yes = Some(Value::Bool(true));
        let continues = flags.continue_final_message == yes
            || flags.messages.as_array().and_then(|list| list.last()?.get("prefix").cloned()) == yes
            || ids.is_some_and(|ids| !ids.is_null());
        if continues { Leg::Continuation } else { Leg::First }
    }

    /// The lengths and faults in `mock-…` headers, or else in the body's `mock` object.
    fn read_mock(&mut self, headers: &[(String, String)]) -> Result<(), Refusal> {
        (self.lengths, self.faults) = read_mock(&self.fields, headers)?;
        Ok(())
    }

    fn check_types(&self) -> Result<(), Refusal> {
        for key in
            ["stream", "continue_final_message", "add_generation_prompt", "return_token_ids", "include_reasoning"]
        {
            if self.fields.get(key).is_some_and(|value| !value.is_boolean() && !value.is_null()) {
                return Err(Refusal::bad(format!("`{key}` is not a boolean")));
            }
        }
        for key in ["max_tokens", "max_completion_tokens", "n"] {
            if let Some(value) = self.fields.get(key).filter(|value| !value.is_null()) {
                let number = value.as_u64().ok_or_else(|| Refusal::bad(format!("`{key}` is not a whole number")))?;
                if number == 0 {
                    return Err(Refusal::bad(format!("{key} must be at least 1, got 0.")));
                }
            }
        }
        if self.choices() > MAX_CHOICES {
            return Err(Refusal::bad(format!("n must be at most {MAX_CHOICES}")));
        }
        for key in ["chat_template_kwargs", "stream_options", "kv_transfer_params"] {
            if self.fields.get(key).is_some_and(|value| !value.is_object() && !value.is_null()) {
                return Err(Refusal::bad(format!("`{key}` is not an object")));
            }
        }
        Ok(())
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.fields.get(key).and_then(Value::as_bool)
    }

    pub(super) fn model(&self) -> &str {
        self.fields.get("model").and_then(Value::as_str).unwrap_or("mock")
    }

    pub(super) fn stream(&self) -> bool {
        self.flag("stream").unwrap_or(false)
    }

    /// Whether it goes on inside its last message: by the flag, or as DeepSeek's own API does.
    pub(super) fn continues(&self) -> bool {
        self.is_flagged() || self.last().is_some_and(|last| last.get("prefix") == Some(&Value::Bool(true)))
    }

    /// `continue_final_message`.
    pub(super) fn is_flagged(&self) -> bool {
        self.flag("continue_final_message").unwrap_or(false)
    }

    /// Whether a grammar decides what may be written: output of a prescribed form, or a tool call that has to be made.
    pub(super) fn is_guided(&self) -> bool {
        let form = self.fields.get("response_format").and_then(|format| format.get("type")?.as_str());
        let forced = |choice: &Value| choice.is_object() || choice.as_str() == Some("required");
        matches!(form, Some("json_object" | "json_schema")) || self.fields.get("tool_choice").is_some_and(forced)
    }

    /// Whether it goes on with an answer that another request began, by a message or by ids.
    pub(super) fn is_continuation(&self) -> bool {
        self.continues() || self.given_ids().is_some()
    }

    /// What stands in `kv_transfer_params.prompt_token_ids`.
    pub(super) fn given_ids(&self) -> Option<&Value> {
        self.fields.get("kv_transfer_params")?.get("prompt_token_ids").filter(|ids| !ids.is_null())
    }

    pub(super) fn return_token_ids(&self) -> bool {
        self.flag("return_token_ids").unwrap_or(false)
    }

    /// `include_reasoning: false`: neither the reasoning nor any ids are shown.
    pub(super) fn hides_reasoning(&self) -> bool {
        self.flag("include_reasoning") == Some(false)
    }

    pub(super) fn limits(&self) -> Limits {
        limits(&self.fields, self.limit())
    }

    pub(super) fn add_generation_prompt(&self) -> Option<bool> {
        self.flag("add_generation_prompt")
    }

    pub(super) fn stream_option(&self, key: &str) -> bool {
        self.fields.get("stream_options").and_then(|options| options.get(key)?.as_bool()).unwrap_or(false)
    }

    /// Tokens allowed; vLLM and SGLang both let `max_completion_tokens` win.
    pub(super) fn limit(&self) -> Option<u64> {
        let read = |key| self.fields.get(key).and_then(Value::as_u64);
        read("max_completion_tokens").or_else(|| read("max_tokens"))
    }

    pub(super) fn choices(&self) -> u64 {
        self.fields.get("n").and_then(Value::as_u64).unwrap_or(1)
    }

    pub(super) fn kwargs(&self) -> Map<String, Value> {
        self.fields.get("chat_template_kwargs").and_then(Value::as_object).cloned().unwrap_or_default()
    }

    pub(super) fn rid(&self) -> Option<&str> {
        self.fields.get("rid").and_then(Value::as_str)
    }

    /// The tools, if there are any and they may be called.
    pub(super) fn tools(&self) -> Option<&Value> {
        if self.fields.get("tool_choice").and_then(Value::as_str) == Some("none") {
            return None;
        }
        self.fields.get("tools").filter(|tools| tools.as_array().is_some_and(|list| !list.is_empty()))
    }

    /// The name of the first of them.
    pub(super) fn tool(&self) -> Option<&str> {
        self.tools()?.get(0)?.get("function")?.get("name")?.as_str()
    }

    pub(super) fn last(&self) -> Option<&Map<String, Value>> {
        self.messages.last()
    }

    pub(super) fn last_role(&self) -> &str {
        self.last().and_then(|message| message.get("role")?.as_str()).unwrap_or_default()
    }

    /// The messages that the text depends on: without the partial that is to be continued.
    pub(super) fn prompt(&self) -> &[Map<String, Value>] {
        let partial = usize::from(self.continues() && self.last_role() == "assistant");
        &self.messages[..self.messages.len() - partial]
    }
}

fn read_messages(fields: &Map<String, Value>) -> Result<Vec<Map<String, Value>>, Refusal> {
    let Some(messages) = fields.get("messages") else { return Err(Refusal::bad("`messages` is missing")) };
    let Value::Array(messages) = messages else { return Err(Refusal::bad("`messages` is not an array")) };
    if messages.is_empty() {
        return Err(Refusal::bad("`messages` is empty"));
    }
    let read = |(at, message): (usize, &Value)| match message {
        Value::Object(message) if message.get("role").is_some_and(Value::is_string) => Ok(message.clone()),
        _ => Err(Refusal::bad(format!("messages[{at}] is not an object with a role"))),
    };
    messages.iter().enumerate().map(read).collect()
}

/// What ends an answer, from the fields of a request or of `sampling_params`.
pub(super) fn limits(fields: &Map<String, Value>, tokens: Option<u64>) -> Limits {
    let stop = match fields.get("stop") {
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    let min_tokens = fields.get("min_tokens").and_then(Value::as_u64).unwrap_or(0);
    Limits { tokens, min_tokens: usize::try_from(min_tokens).unwrap_or(usize::MAX), stop }
}

/// The lengths and faults in `mock-…` headers, or else in a body's `mock` object.
///
/// # Errors
/// 400 for what cannot be read.
pub(super) fn read_mock(
    fields: &Map<String, Value>,
    headers: &[(String, String)],
) -> Result<(Lengths, Vec<Rule>), Refusal> {
    let mock = fields.get("mock").cloned().unwrap_or_default();
    let mut faults = Vec::new();
    let length = |name: &str, key: &str| -> Result<Option<usize>, Refusal> {
        let header = headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.trim().to_owned());
        let Some(text) = header.or_else(|| mock.get(key).map(Value::to_string)) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| *number <= MAX_TOKENS);
        number
            .map(Some)
            .ok_or_else(|| Refusal::bad(format!("{name}: `{text}` is not a number of tokens up to {MAX_TOKENS}")))
    };
    let lengths = Lengths {
        reasoning: length("mock-reasoning", "reasoning")?,
        content: length("mock-content", "content")?,
        tool_call: length("mock-tool-call", "tool_call")?,
    };
    let texts = headers.iter().filter(|(field, _)| field == "mock-fault").map(|(_, value)| value.as_str());
    for text in texts.chain(mock.get("fault").and_then(Value::as_str)) {
        faults.extend(Rule::parse_all(text).map_err(|error| Refusal::bad(error.to_string()))?);
    }
    Ok((lengths, faults))
}

//! One event of a streamed chat completion.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, Visitor};
use serde_json::value::RawValue;
use thiserror::Error;

use super::json::{self, BadEscape, Object};
use super::usage::Usage;

/// What the data of one event is.
#[derive(Clone, Debug, PartialEq)]
pub enum Parsed<'a> {
    /// A piece of the answer, or the usage that follows it.
    Chunk(Chunk<'a>),
    /// The engine gave up inside a stream that began with status 200.
    Error(EngineError),
    /// `[DONE]`. It proves nothing: vLLM sends it after errors and aborts too (vLLM 0.33, chat_completion/serving.py).
    Done,
}

/// A `chat.completion.chunk`, as far as Baton reads it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chunk<'a> {
    /// The answer's id as the client sees it; empty when the engine sent none.
    pub id: Cow<'a, str>,
    /// When the answer began, in seconds since 1970.
    pub created: Option<u64>,
    /// The model's public name; empty when the engine sent none.
    pub model: Cow<'a, str>,
    /// Which build of the engine answered. vLLM sends it with its last chunk only.
    pub system_fingerprint: Option<Cow<'a, str>>,
    /// The choices this chunk adds to: usually one, none in a usage chunk.
    pub choices: Vec<ChunkChoice<'a>>,
    /// Token counts so far (continuous usage) or of the whole answer (the usage chunk).
    pub usage: Option<Usage>,
}

impl Chunk<'_> {
    /// Which engine writes chunks with these fields, as far as one choice shows it.
    pub fn shape(&self) -> Shape {
        self.choices.first().map_or(Shape::OpenAi, |choice| choice.shape)
    }
}

/// What a chunk adds to one choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChunkChoice<'a> {
    /// Which choice.
    pub index: u32,
    /// The role, in the first chunk of a choice.
    pub role: Option<Cow<'a, str>>,
    /// Text of the answer. `Some("")` comes with the role.
    pub content: Option<Cow<'a, str>>,
    /// Text of the thinking, under whichever name it came.
    pub reasoning: Option<Cow<'a, str>>,
    /// The name it came under; for a chunk without reasoning the name it stands at with `null`, if any.
    pub reasoning_field: Option<ReasoningField>,
    /// Pieces of tool calls.
    pub tool_calls: Vec<ToolCallDelta<'a>>,
    /// Why this choice ended, in the last chunk of the choice. That chunk may carry text too (vLLM#35705).
    pub finish_reason: Option<FinishReason>,
    /// Whether log probabilities of this piece came along.
    pub has_logprobs: bool,
    /// How many tokens this piece is made of, when the engine lists their ids (`return_token_ids`).
    pub token_ids: Option<u64>,
    /// Output that this view cannot hold: a refusal, audio, content that is not a string.
    pub opaque: bool,
    /// Whose fields the choice has.
    pub shape: Shape,
}

impl ChunkChoice<'_> {
    /// Whether it brings something of the answer: text, thinking or a piece of a tool call.
    pub fn has_output(&self) -> bool {
        let texts = [&self.content, &self.reasoning];
        texts.into_iter().flatten().any(|text| !text.is_empty()) || !self.tool_calls.is_empty()
    }
}

/// A piece of one tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCallDelta<'a> {
    /// Which call of the choice.
    pub index: u32,
    /// The call's id, in its first piece.
    pub id: Option<Cow<'a, str>>,
    /// The function's name, in its first piece.
    pub name: Option<Cow<'a, str>>,
    /// A piece of the arguments' JSON text.
    pub arguments: Option<Cow<'a, str>>,
}

/// Why a choice ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn, or a stop string came.
    Stop,
    /// The token budget is used up.
    Length,
    /// The model wants tools called.
    ToolCalls,
    /// The provider cut the answer for its content.
    ContentFilter,
    /// The older form of `ToolCalls`.
    FunctionCall,
    /// vLLM's repetition detector ended it, on purpose (vLLM 0.19+, v1/engine `FinishReason`).
    Repetition,
    /// The engine was told to stop: it shuts down, pauses, or an operator aborted the request (vLLM 0.33, v1/engine/core.py
    /// `_handle_shutdown`; SGLang `/abort_request`). Nothing is finished.
    Abort,
    /// A reason that is not known here.
    Other(String),
}

impl FinishReason {
    /// The reason called `name` on the wire.
    pub fn from_name(name: &str) -> Self {
        match name {
            "stop" => Self::Stop,
            "length" => Self::Length,
            "tool_calls" => Self::ToolCalls,
            "content_filter" => Self::ContentFilter,
            "function_call" => Self::FunctionCall,
            "repetition" => Self::Repetition,
            "abort" => Self::Abort,
            other => Self::Other(other.to_owned()),
        }
    }

    /// The name on the wire.
    pub fn name(&self) -> &str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
            Self::FunctionCall => "function_call",
            Self::Repetition => "repetition",
            Self::Abort => "abort",
            Self::Other(name) => name,
        }
    }

    /// Whether the choice is complete: not after `abort`, and not after a reason that nobody here knows.
    pub fn is_finished(&self) -> bool {
        !matches!(self, Self::Abort | Self::Other(_))
    }
}

/// The name under which thinking is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningField {
    /// `reasoning`: vLLM 0.16+.
    Reasoning,
    /// `reasoning_content`: SGLang, vLLM up to 0.10.
    ReasoningContent,
    /// The same text under both names: vLLM 0.13.
    Both,
}

/// Whose additional fields a chunk has, so that a chunk written by Baton looks like the ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// No field that gives the engine away.
    #[default]
    OpenAi,
    /// `token_ids` or `stop_reason` in the choice (vLLM 0.32).
    Vllm,
    /// `matched_stop` in the choice (SGLang 0.5.23).
    Sglang,
}

/// An error that the engine reported inside the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Error)]
#[error("the engine reported {}: {message}", kind.as_deref().unwrap_or("an error"))]
pub struct EngineError {
    /// The engine's words; empty when it had none.
    pub message: String,
    /// Its `type`, such as `InternalServerError` (vLLM) or `SERVICE_UNAVAILABLE` (SGLang).
    pub kind: Option<String>,
    /// Its `code`: a number from most engines, a word from vLLM's Rust frontend.
    pub code: Option<String>,
}

/// Data that is neither a chunk, an error nor `[DONE]`: the engine's fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("not a chat completion chunk: {what}")]
pub struct Malformed {
    /// What is wrong, with line and column within the event's data.
    pub what: String,
}

impl Malformed {
    /// For an event in a known frame whose text could not be [pushed](super::Partial::push_text).
    pub fn bad_escape() -> Self {
        Self { what: BadEscape.to_string() }
    }
}

impl From<serde_json::Error> for Malformed {
    fn from(error: serde_json::Error) -> Self {
        Self { what: error.to_string() }
    }
}

/// Reads the data of one event.
///
/// # Errors
/// [`Malformed`] for anything that is not `[DONE]` or a JSON object with the types of a chunk where a chunk has fields.
pub fn parse(data: &[u8]) -> Result<Parsed<'_>, Malformed> {
    if data.trim_ascii() == b"[DONE]" {
        return Ok(Parsed::Done);
    }
    let wire: Wire<'_> = serde_json::from_slice(data)?;
    if let Some(error) = wire.error {
        return Ok(Parsed::Error(EngineError::read(error)));
    }
    if wire.object.as_ref().is_some_and(|object| object.0 == "error") {
        // The flat form, which SGLang uses before a stream (SGLang 0.5.23, serving_base.py) and others inside one.
        let whole: &RawValue = serde_json::from_slice(data)?;
        return Ok(Parsed::Error(EngineError::read(whole)));
    }
    Ok(Parsed::Chunk(wire.into_chunk()))
}

impl EngineError {
    /// From `{"message":…,"type":…,"code":…}`, or from a bare string.
    fn read(raw: &RawValue) -> Self {
        let words = |value: &RawValue| match serde_json::from_str::<String>(value.get()) {
            Ok(text) => text,
            Err(_) => value.get().to_owned(),
        };
        let Ok(object) = Object::parse(raw.get()) else {
            return Self { message: words(raw), ..Self::default() };
        };
        let field = |key| object.get(key).filter(|value| !json::is_null(value)).map(words);
        Self { message: field("message").unwrap_or_default(), kind: field("type"), code: field("code") }
    }
}

/// A string that borrows from the input unless it has escapes (`Option<Cow<str>>` alone would always copy).
#[derive(Clone, Debug)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Str;
        impl<'de> Visitor<'de> for Str {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Str)
    }
}

/// Output text, or output that is not text (a list of parts, say), which is noted and skipped.
#[derive(Clone, Debug)]
enum Output<'a> {
    Text(Cow<'a, str>),
    Opaque,
}

impl<'de: 'a, 'a> Deserialize<'de> for Output<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        let Some(content) = json::string_content(raw) else {
            return Ok(Self::Opaque);
        };
        if !content.contains('\\') {
            return Ok(Self::Text(Cow::Borrowed(content)));
        }
        let mut text = String::with_capacity(content.len());
        json::unescape(content.as_bytes(), &mut text).map_err(serde::de::Error::custom)?;
        Ok(Self::Text(Cow::Owned(text)))
    }
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    id: Option<Text<'a>>,
    object: Option<Text<'a>>,
    created: Option<&'a RawValue>,
    model: Option<Text<'a>>,
    system_fingerprint: Option<Text<'a>>,
    choices: Option<Vec<WireChoice<'a>>>,
    usage: Option<Usage>,
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireChoice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow)]
    delta: Option<WireDelta<'a>>,
    finish_reason: Option<Text<'a>>,
    logprobs: Option<IgnoredAny>,
    /// Present and not null: a list of ids. The outer option says whether the key is there at all.
    #[serde(default, deserialize_with = "present")]
    token_ids: Option<Option<Vec<IgnoredAny>>>,
    #[serde(default, deserialize_with = "present")]
    stop_reason: Option<Option<IgnoredAny>>,
    #[serde(default, deserialize_with = "present")]
    matched_stop: Option<Option<IgnoredAny>>,
}

#[derive(Default, Deserialize)]
struct WireDelta<'a> {
    #[serde(borrow)]
    role: Option<Text<'a>>,
    content: Option<Output<'a>>,
    #[serde(default, deserialize_with = "present")]
    reasoning: Option<Option<Output<'a>>>,
    #[serde(default, deserialize_with = "present")]
    reasoning_content: Option<Option<Output<'a>>>,
    tool_calls: Option<Vec<WireToolCall<'a>>>,
    function_call: Option<WireFunction<'a>>,
    refusal: Option<IgnoredAny>,
    audio: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct WireToolCall<'a> {
    #[serde(default)]
    index: Option<u32>,
    #[serde(borrow)]
    id: Option<Text<'a>>,
    function: Option<WireFunction<'a>>,
}

#[derive(Deserialize)]
struct WireFunction<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
    arguments: Option<Text<'a>>,
}

/// Tells a field that is there with `null` (`Some(None)`) from one that is not there (`None`).
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

impl<'a> Wire<'a> {
    fn into_chunk(self) -> Chunk<'a> {
        let text = |field: Option<Text<'a>>| field.map(|text| text.0);
        Chunk {
            id: text(self.id).unwrap_or_default(),
            created: self.created.and_then(json::whole_number),
            model: text(self.model).unwrap_or_default(),
            system_fingerprint: text(self.system_fingerprint),
            choices: self.choices.unwrap_or_default().into_iter().map(WireChoice::into_choice).collect(),
            usage: self.usage,
        }
    }
}

impl<'a> WireChoice<'a> {
    fn into_choice(self) -> ChunkChoice<'a> {
        let shape = match () {
            () if self.matched_stop.is_some() => Shape::Sglang,
            () if self.token_ids.is_some() || self.stop_reason.is_some() => Shape::Vllm,
            () => Shape::OpenAi,
        };
        let mut choice = self.delta.unwrap_or_default().into_choice();
        choice.index = self.index;
        // Some engines put an empty string where others put null.
        let reason = self.finish_reason.filter(|reason| !reason.0.is_empty());
        choice.finish_reason = reason.map(|reason| FinishReason::from_name(&reason.0));
        choice.has_logprobs = self.logprobs.is_some();
        choice.token_ids = self.token_ids.flatten().map(|ids| ids.len() as u64);
        choice.shape = shape;
        choice
    }
}

impl<'a> WireDelta<'a> {
    fn into_choice(self) -> ChunkChoice<'a> {
        let mut opaque = self.refusal.is_some() || self.audio.is_some();
        let mut text = |output: Option<Output<'a>>| match output {
            Some(Output::Text(text)) => Some(text),
            Some(Output::Opaque) => {
                opaque = true;
                None
            }
            None => None,
        };
        let named = (self.reasoning.is_some(), self.reasoning_content.is_some());
        let content = text(self.content);
        let reasoning = text(self.reasoning.flatten());
        let copy = text(self.reasoning_content.flatten());
        let filled = (reasoning.is_some(), copy.is_some());
        let mut tool_calls: Vec<_> =
            self.tool_calls.unwrap_or_default().into_iter().enumerate().map(|(at, call)| call.into_delta(at)).collect();
        tool_calls.extend(self.function_call.map(|function| function.into_delta(0, None)));
        ChunkChoice {
            role: self.role.map(|role| role.0),
            content,
            // Where both are there they say the same; an empty one says nothing.
            reasoning: match (reasoning, copy) {
                (Some(text), Some(copy)) if text.is_empty() => Some(copy),
                (text, copy) => text.or(copy),
            },
            reasoning_field: field_of(filled).or(field_of(named)),
            tool_calls,
            opaque,
            ..ChunkChoice::default()
        }
    }
}

fn field_of((reasoning, reasoning_content): (bool, bool)) -> Option<ReasoningField> {
    match (reasoning, reasoning_content) {
        (true, true) => Some(ReasoningField::Both),
        (true, false) => Some(ReasoningField::Reasoning),
        (false, true) => Some(ReasoningField::ReasoningContent),
        (false, false) => None,
    }
}

impl<'a> WireToolCall<'a> {
    /// A call without an index is counted by its place in the list.
    fn into_delta(self, at: usize) -> ToolCallDelta<'a> {
        let index = self.index.unwrap_or(u32::try_from(at).unwrap_or(u32::MAX));
        let id = self.id.map(|id| id.0);
        match self.function {
            Some(function) => function.into_delta(index, id),
            None => ToolCallDelta { index, id, ..ToolCallDelta::default() },
        }
    }
}

impl<'a> WireFunction<'a> {
    fn into_delta(self, index: u32, id: Option<Cow<'a, str>>) -> ToolCallDelta<'a> {
        let text = |field: Option<Text<'a>>| field.map(|text| text.0);
        ToolCallDelta { index, id, name: text(self.name), arguments: text(self.arguments) }
    }
}

#[cfg(test)]
mod tests;

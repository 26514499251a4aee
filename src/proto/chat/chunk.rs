//! One event of a streamed chat completion or completion.

mod wire;

use std::borrow::Cow;
use std::fmt;
use std::str::Utf8Error;

use serde_json::error::Category;
use serde_json::value::RawValue;
use thiserror::Error;

use super::ids::IdList;
use super::json::{self, Object};
use super::request::Api;
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

/// A `chat.completion.chunk`, or a `text_completion` of a stream, as far as Baton reads it.
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
    /// The ids of the prompt, in the first chunk, when they were asked for (`return_token_ids`). A completion has them in its choice
    /// (vLLM 0.32): those of the first choice that has any.
    pub prompt_token_ids: Option<IdList<'a>>,
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
    /// Text of the answer. `Some("")` comes with the role. A completion's `text`.
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
    /// The ids of the tokens that this piece is made of, when the engine lists them (`return_token_ids`).
    pub token_ids: Option<IdList<'a>>,
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
    /// Of a completion, and no other field that gives the engine away.
    Completion,
    /// Of a completion, with vLLM's fields.
    VllmCompletion,
    /// Of a completion, with SGLang's field.
    SglangCompletion,
}

impl Shape {
    /// Whose chunks have this shape.
    pub fn api(self) -> Api {
        match self {
            Self::OpenAi | Self::Vllm | Self::Sglang => Api::Chat,
            Self::Completion | Self::VllmCompletion | Self::SglangCompletion => Api::Completions,
        }
    }

    /// The same engine's shape of a completion.
    fn of_completion(self) -> Self {
        match self {
            Self::OpenAi | Self::Completion => Self::Completion,
            Self::Vllm | Self::VllmCompletion => Self::VllmCompletion,
            Self::Sglang | Self::SglangCompletion => Self::SglangCompletion,
        }
    }
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
#[error("not a chunk of a completion: {what}")]
pub struct Malformed {
    /// What is wrong, with line and column within the event's data. It may quote the answer; [`Malformed::place`] does not.
    pub what: String,
    place: Place,
}

/// What kind of thing is wrong in an event's data, and where; nothing of the data itself, so that it may stand in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What is wrong.
    pub fault: Fault,
    /// The line within the data, from 1; 0 where it is not known.
    pub line: usize,
    /// The byte within the line, from 1; 0 where it is not known or before the first.
    pub column: usize,
}

/// Why data could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not text in UTF-8.
    NotUtf8,
    /// Not JSON.
    NotJson,
    /// JSON that breaks off.
    CutOff,
    /// JSON whose values cannot be those of a chunk, or text that is not text: half of a surrogate pair.
    NotAChunk,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.fault {
            Fault::NotUtf8 => "not UTF-8",
            Fault::NotJson => "not JSON",
            Fault::CutOff => "cut off",
            Fault::NotAChunk => "not a chunk",
        })?;
        match self.line {
            0 => Ok(()),
            line => write!(f, " at line {line} column {}", self.column),
        }
    }
}

impl Malformed {
    /// What is wrong and where, without a word of the answer.
    pub fn place(&self) -> Place {
        self.place
    }

    fn not_utf8(data: &[u8], error: Utf8Error) -> Self {
        let good = &data[..error.valid_up_to()];
        let line_start = good.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let place = Place {
            fault: Fault::NotUtf8,
            line: 1 + good.iter().filter(|&&byte| byte == b'\n').count(),
            column: 1 + good.len() - line_start,
        };
        Self { what: place.to_string(), place }
    }
}

impl From<serde_json::Error> for Malformed {
    fn from(error: serde_json::Error) -> Self {
        let fault = match error.classify() {
            Category::Data => Fault::NotAChunk,
            Category::Eof => Fault::CutOff,
            Category::Syntax | Category::Io => Fault::NotJson,
        };
        Self { what: error.to_string(), place: Place { fault, line: error.line(), column: error.column() } }
    }
}

/// Reads the data of one event.
///
/// What is not needed to follow the answer may have any type, and what can be understood is: see the table in the tests.
///
/// # Errors
/// [`Malformed`] for anything but `[DONE]` and a JSON object, for `choices` that are something else than choices, and for output
/// that is not text.
pub fn parse(data: &[u8]) -> Result<Parsed<'_>, Malformed> {
    if data.trim_ascii() == b"[DONE]" {
        return Ok(Parsed::Done);
    }
    let text = std::str::from_utf8(data).map_err(|error| Malformed::not_utf8(data, error))?;
    let error = match wire::read(text) {
        Ok(parsed) => return Ok(parsed),
        Err(error) => error,
    };
    let repaired = json::without_nan(text).and_then(|text| wire::read(&text).ok().map(Parsed::into_owned));
    repaired.ok_or_else(|| error.into())
}

impl EngineError {
    /// From `{"message":…,"type":…,"code":…}`, or from a bare string.
    fn read(raw: &RawValue) -> Self {
        let words = |value: &RawValue| json::text(value).map_or_else(|| value.get().to_owned(), Cow::into_owned);
        let Ok(object) = Object::parse(raw.get()) else {
            return Self { message: words(raw), ..Self::default() };
        };
        let field = |key| object.get(key).filter(|value| !json::is_null(value)).map(words);
        Self { message: field("message").unwrap_or_default(), kind: field("type"), code: field("code") }
    }
}

impl Parsed<'_> {
    fn into_owned(self) -> Parsed<'static> {
        match self {
            Self::Chunk(chunk) => Parsed::Chunk(chunk.into_owned()),
            Self::Error(error) => Parsed::Error(error),
            Self::Done => Parsed::Done,
        }
    }
}

impl Chunk<'_> {
    fn into_owned(self) -> Chunk<'static> {
        let Self { id, created, model, system_fingerprint, choices, usage, prompt_token_ids } = self;
        Chunk {
            id: own(id),
            created,
            model: own(model),
            system_fingerprint: system_fingerprint.map(own),
            choices: choices.into_iter().map(ChunkChoice::into_owned).collect(),
            usage,
            prompt_token_ids: prompt_token_ids.map(IdList::into_owned),
        }
    }
}

impl ChunkChoice<'_> {
    fn into_owned(self) -> ChunkChoice<'static> {
        ChunkChoice {
            index: self.index,
            role: self.role.map(own),
            content: self.content.map(own),
            reasoning: self.reasoning.map(own),
            reasoning_field: self.reasoning_field,
            tool_calls: self.tool_calls.into_iter().map(ToolCallDelta::into_owned).collect(),
            finish_reason: self.finish_reason,
            has_logprobs: self.has_logprobs,
            token_ids: self.token_ids.map(IdList::into_owned),
            opaque: self.opaque,
            shape: self.shape,
        }
    }
}

impl ToolCallDelta<'_> {
    fn into_owned(self) -> ToolCallDelta<'static> {
        let Self { index, id, name, arguments } = self;
        ToolCallDelta { index, id: id.map(own), name: name.map(own), arguments: arguments.map(own) }
    }
}

fn own(text: Cow<'_, str>) -> Cow<'static, str> {
    Cow::Owned(text.into_owned())
}

#[cfg(test)]
mod completions;
#[cfg(test)]
mod quirks;
#[cfg(test)]
mod tests;

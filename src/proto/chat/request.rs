//! A request for a chat completion or a completion: every top-level field as the text the client sent.

mod prompt;

pub use prompt::Prompt;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use thiserror::Error;

use super::json::{self, Object};
use super::tokens::{Ratios, estimate};

/// Which of the two APIs with `choices` a request and its answer belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Api {
    /// `/v1/chat/completions`: messages, and an answer in deltas.
    #[default]
    Chat,
    /// `/v1/completions`: a prompt, and an answer in pieces of text. There are no roles, no thinking and no tool calls: the text is
    /// what the model writes, control tokens aside.
    Completions,
}

impl Api {
    /// Where its requests are sent.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
        }
    }
}

/// The body of `POST /v1/chat/completions`, or of `POST /v1/completions`.
///
/// Top-level values keep their bytes and their order; a key that appears twice is read as its last value.
#[derive(Clone, Debug)]
pub struct ChatRequest {
    api: Api,
    fields: Object<'static>,
    /// Decoded once; follows `fields`.
    model: Option<String>,
}

/// Why a body is no request for a completion, by messages or by a prompt: the client's fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RequestError {
    /// Not JSON text at all.
    #[error("the body is not JSON: {what}")]
    NotJson {
        /// The parser's words, with line and column.
        what: String,
        /// From 1.
        line: usize,
        /// From 1, in bytes.
        column: usize,
    },
    /// JSON, but not an object.
    #[error("the body is not a JSON object")]
    NotAnObject,
    /// `messages` is missing.
    #[error("the body has no `messages`")]
    NoMessages,
    /// `messages` is not an array.
    #[error("`messages` is not an array")]
    MessagesNotAnArray,
    /// There is neither a `prompt` nor `prompt_embeds`.
    #[error("the body has no `prompt`")]
    NoPrompt,
    /// `prompt` is neither a string nor an array.
    #[error("`prompt` is neither a string nor an array")]
    PromptOfNoKind,
}

/// Why a request's answer can never be continued, known before it is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exclusion {
    /// `response_format` or another way to constrain the output: the grammar would start over.
    StructuredOutput,
    /// `tool_choice` other than `auto` and `none`: the same.
    ForcedToolChoice,
    /// `n`, or `best_of`, above 1, or several prompts.
    SeveralChoices,
    /// The client itself asks to continue the last message.
    ContinuesItself,
    /// The answer begins with a copy of the last message.
    Echo,
    /// The answer is chosen at the end.
    BeamSearch,
    /// Log probabilities of the second part would be those of a re-tokenized prompt.
    Logprobs,
    /// The answer is to fit in before a text: the prompt that the model sees is not the one in the request.
    Suffix,
    /// The prompt is neither text nor token ids, so nothing can be added to it.
    PromptEmbeds,
}

impl Exclusion {
    /// Every reason, in the order in which they are looked for.
    pub const ALL: [Self; 9] = [
        Self::StructuredOutput,
        Self::ForcedToolChoice,
        Self::SeveralChoices,
        Self::ContinuesItself,
        Self::Echo,
        Self::BeamSearch,
        Self::Logprobs,
        Self::Suffix,
        Self::PromptEmbeds,
    ];

    /// For logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::StructuredOutput => "structured_output",
            Self::ForcedToolChoice => "forced_tool_choice",
            Self::SeveralChoices => "several_choices",
            Self::ContinuesItself => "continues_itself",
            Self::Echo => "echo",
            Self::BeamSearch => "beam_search",
            Self::Logprobs => "logprobs",
            Self::Suffix => "suffix",
            Self::PromptEmbeds => "prompt_embeds",
        }
    }
}

/// Fields that constrain the output when they are set: vLLM 0.33 (`structured_outputs`, before that `guided_*`) and SGLang
/// 0.5.23 (`regex`, `ebnf`, `json_schema`), chat_completion/protocol.py and protocol.py.
const CONSTRAINTS: [&str; 10] = [
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_whitespace_pattern",
    "structural_tag",
    "regex",
    "ebnf",
    "json_schema",
];

/// Which usage the client gets to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientUsage {
    /// At the end: `stream_options.include_usage`.
    pub at_end: bool,
    /// With every chunk: `stream_options.continuous_usage_stats`.
    pub continuous: bool,
}

impl ClientUsage {
    /// Of a request, and whether leg 1 sent usage before its end. vLLM 0.33 heeds `continuous_usage_stats` only beside
    /// `include_usage`, SGLang 0.5.23 also without (`should_include_usage` in both); leg 1 shows which it was.
    pub fn of(request: &ChatRequest, leg_1_sent_usage: bool) -> Self {
        let at_end = request.include_usage();
        Self { at_end, continuous: request.continuous_usage() && (at_end || leg_1_sent_usage) }
    }
}

impl ChatRequest {
    /// Reads the body of a chat completion.
    ///
    /// # Errors
    /// When it is not a JSON object with an array of messages.
    pub fn parse(body: &[u8]) -> Result<Self, RequestError> {
        let request = Self::read_fields(Api::Chat, body)?;
        match request.get("messages") {
            None => Err(RequestError::NoMessages),
            Some(messages) if !messages.get().starts_with('[') => Err(RequestError::MessagesNotAnArray),
            Some(_) => Ok(request),
        }
    }

    /// Reads the body of a completion. What is in a list of prompts is not looked at.
    ///
    /// # Errors
    /// When it is not a JSON object with a prompt.
    pub fn parse_completion(body: &[u8]) -> Result<Self, RequestError> {
        let request = Self::read_fields(Api::Completions, body)?;
        match request.get("prompt").filter(|prompt| !json::is_null(prompt)) {
            None if request.fields.has("prompt_embeds") => Ok(request),
            None => Err(RequestError::NoPrompt),
            Some(prompt) if !prompt.get().starts_with(['"', '[']) => Err(RequestError::PromptOfNoKind),
            Some(_) => Ok(request),
        }
    }

    fn read_fields(api: Api, body: &[u8]) -> Result<Self, RequestError> {
        let fields: Object<'_> = serde_json::from_slice(body).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => RequestError::NotAnObject,
            _ => RequestError::NotJson { what: error.to_string(), line: error.line(), column: error.column() },
        })?;
        let mut request = Self { api, fields: fields.into_owned(), model: None };
        request.model = request.read("model");
        Ok(request)
    }

    /// Which API it belongs to.
    pub fn api(&self) -> Api {
        self.api
    }

    /// What is to be completed; [`Prompt::Unread`] for a chat.
    pub fn prompt(&self) -> Prompt<'_> {
        self.get("prompt").filter(|_| self.api == Api::Completions).map_or(Prompt::Unread, Prompt::of)
    }

    /// The model asked for.
    pub fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    /// Whether the answer is to be streamed. Only `true` counts, nothing that a lenient engine would take for it.
    pub fn stream(&self) -> bool {
        self.get("stream").is_some_and(|value| value.get() == "true")
    }

    /// `stream_options.include_usage`.
    pub fn include_usage(&self) -> bool {
        self.stream_option("include_usage")
    }

    /// `stream_options.continuous_usage_stats`.
    pub fn continuous_usage(&self) -> bool {
        self.stream_option("continuous_usage_stats")
    }

    /// `max_tokens`.
    pub fn max_tokens(&self) -> Option<u64> {
        self.number("max_tokens")
    }

    /// `max_completion_tokens`.
    pub fn max_completion_tokens(&self) -> Option<u64> {
        self.number("max_completion_tokens")
    }

    /// How many choices were asked for: `n`, or 1, for each prompt.
    pub fn choices(&self) -> usize {
        let each = self.number("n").map_or(1, |n| usize::try_from(n).unwrap_or(usize::MAX)).max(1);
        let prompts = self.get("prompt").filter(|_| self.api == Api::Completions).map_or(1, prompt::count);
        each.saturating_mul(prompts.max(1))
    }

    /// The raw value of a top-level field.
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        self.fields.get(key)
    }

    /// Puts a value where `key` stands, or at the end.
    ///
    /// # Panics
    /// When `value` cannot be JSON, such as a map whose keys are not strings.
    pub fn set(&mut self, key: &str, value: &(impl Serialize + ?Sized)) {
        self.fields.set(key, json::raw(value));
        self.model = self.read("model");
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: &str) {
        self.fields.remove(key);
        self.model = self.read("model");
    }

    /// Appends to the messages. The bytes of the others stay as they are.
    pub fn push_message(&mut self, message: &serde_json::Value) {
        let old = self.get("messages").map_or("[]", RawValue::get);
        let head = old.strip_suffix(']').unwrap_or("[").trim_end();
        let comma = if head.len() > 1 { "," } else { "" };
        self.fields.set("messages", json::raw_text(format!("{head}{comma}{message}]")));
    }

    /// What rules out a continuation of this request's answer, if anything does. The first that applies.
    pub fn exclusion(&self) -> Option<Exclusion> {
        self.exclusions().next()
    }

    /// Whether nothing but the form that its output must have rules out a continuation. Until the output begins, there is nothing of
    /// that form to go on inside of.
    pub fn is_only_structured(&self) -> bool {
        let form = |exclusion| matches!(exclusion, Exclusion::StructuredOutput | Exclusion::ForcedToolChoice);
        self.exclusion().is_some() && self.exclusions().all(form)
    }

    fn exclusions(&self) -> impl Iterator<Item = Exclusion> {
        let rules = [
            (self.is_constrained(), Exclusion::StructuredOutput),
            (self.forces_tools(), Exclusion::ForcedToolChoice),
            (self.choices() > 1 || self.number("best_of") > Some(1), Exclusion::SeveralChoices),
            (self.is_on("continue_final_message"), Exclusion::ContinuesItself),
            (self.is_on("echo"), Exclusion::Echo),
            (self.is_on("use_beam_search"), Exclusion::BeamSearch),
            (self.wants_logprobs(), Exclusion::Logprobs),
            (self.api == Api::Completions && self.fields.has("suffix"), Exclusion::Suffix),
            (self.api == Api::Completions && self.has_embeds(), Exclusion::PromptEmbeds),
        ];
        rules.into_iter().filter_map(|(applies, exclusion)| applies.then_some(exclusion))
    }

    /// The role of the last message.
    pub fn last_role(&self) -> Option<String> {
        self.messages().last()?.text("role")
    }

    /// Whether strings are to end the answer. Engines then withhold text that may turn out to be the beginning of one.
    pub fn has_stop(&self) -> bool {
        let set = |key| self.get(key).is_some_and(|stop| !matches!(stop.get(), "null" | "[]" | r#""""#));
        set("stop") || set("stop_regex")
    }

    /// The strings that end the answer and are shown as its end (`include_stop_str_in_output`). Engines then withhold nothing.
    pub fn shown_stops(&self) -> Vec<String> {
        let Some(stop) = self.get("stop").filter(|_| self.is_on("include_stop_str_in_output")) else {
            return Vec::new();
        };
        let one_or_more = json::elements(stop).unwrap_or_else(|| vec![stop]);
        one_or_more.into_iter().filter_map(json::text).map(Cow::into_owned).collect()
    }

    /// Whether a message may have an image, audio, video or a file: parts whose tokens cannot be estimated here.
    pub fn has_media(&self) -> bool {
        self.messages().iter().any(|message| parts(message).iter().any(is_media))
    }

    /// The prompt's tokens: exactly where it is a list of ids, else about, from the texts of the messages, their tool calls and the
    /// tools, or from the prompt's text.
    pub fn prompt_estimate(&self, ratios: &Ratios) -> u64 {
        match self.prompt() {
            Prompt::Text(text) => return estimate(&text, ratios),
            Prompt::Ids(ids) => return ids.count(),
            Prompt::Several(_) | Prompt::Unread => {}
        }
        let messages: u64 = self.messages().iter().map(|message| estimate_message(message, ratios)).sum();
        let tools = self.get("tools").filter(|tools| !json::is_null(tools)).map_or("", RawValue::get);
        messages + estimate(tools, ratios)
    }

    /// The body, compact between the top-level fields and untouched inside them.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.fields.to_text().into_bytes()
    }

    /// The body's length in bytes, or a few more.
    pub fn size(&self) -> usize {
        self.fields.text_len()
    }

    fn messages(&self) -> Vec<Object<'_>> {
        let messages = self.get("messages").and_then(json::elements).unwrap_or_default();
        messages.into_iter().filter_map(|message| Object::parse(message.get()).ok()).collect()
    }

    fn read<'a, T: Deserialize<'a>>(&'a self, key: &str) -> Option<T> {
        serde_json::from_str(self.get(key)?.get()).ok()
    }

    /// Whether an engine may take the field for `true`: anything that is there and is not one of the ways to say `false`.
    pub fn is_on(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !json::is_null(value) && boolean(value) != Some(false))
    }

    /// A chat has a switch and a number beside it. A completion has a number only, and any number asks for them: 0, which `false` is
    /// read as, for those of the tokens themselves (vLLM 0.32).
    fn wants_logprobs(&self) -> bool {
        let wanted = match self.api {
            Api::Chat => self.is_on("logprobs"),
            Api::Completions => self.fields.has("logprobs"),
        };
        wanted || self.fields.has("prompt_logprobs")
    }

    fn has_embeds(&self) -> bool {
        self.get("prompt_embeds").is_some_and(|embeds| !json::says_nothing(embeds))
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(json::whole_number)
    }

    fn stream_option(&self, key: &str) -> bool {
        let options: Option<Object<'_>> = self.read("stream_options");
        options.is_some_and(|options| options.get(key).and_then(boolean) == Some(true))
    }

    /// Any response format but text, and any field of [`CONSTRAINTS`] that is set.
    fn is_constrained(&self) -> bool {
        let format = self.get("response_format").filter(|format| !json::is_null(format));
        let plain = format.is_none_or(|format| {
            let kind = Object::parse(format.get()).ok();
            kind.and_then(|format| format.text("type")).is_some_and(|kind| kind == "text")
        });
        !plain || CONSTRAINTS.iter().any(|key| self.fields.has(key))
    }

    fn forces_tools(&self) -> bool {
        ["tool_choice", "function_call"]
            .into_iter()
            .any(|key| self.get(key).is_some_and(|choice| !matches!(choice.get(), "null" | r#""auto""# | r#""none""#)))
    }
}

/// A boolean in any of the ways that pydantic takes, and with it both engines (pydantic 2, "Conversion Table", lax mode).
fn boolean(value: &RawValue) -> Option<bool> {
    let text = json::string_content(value).unwrap_or_else(|| value.get()).to_ascii_lowercase();
    match text.as_str() {
        "true" | "t" | "yes" | "y" | "on" | "1" | "1.0" => Some(true),
        "false" | "f" | "no" | "n" | "off" | "0" | "0.0" => Some(false),
        _ => None,
    }
}

/// The parts of a message's content; none when it is one string.
fn parts<'m>(message: &'m Object<'_>) -> Vec<Object<'m>> {
    let parts = message.get("content").and_then(json::elements).unwrap_or_default();
    parts.into_iter().filter_map(|part| Object::parse(part.get()).ok()).collect()
}

/// Types of parts that are text: vLLM 0.32, entrypoints/chat_utils.py `PART_TYPES_TO_SKIP_NONE_CONTENT` and the parts of OpenAI's
/// responses.
const TEXTS: [&str; 6] = ["text", "input_text", "output_text", "refusal", "thinking", "reasoning"];

/// Whether a part may be a medium. Ids stand for text only, so what is not known to be text is taken for one: any other type, and,
/// whatever the type, any key of a medium, be it `null` (vLLM looks at them first).
fn is_media(part: &Object<'_>) -> bool {
    const MEDIA: [&str; 8] = [
        "image_url",
        "image_pil",
        "image_embeds",
        "audio_url",
        "audio_embeds",
        "input_audio",
        "video_url",
        "prompt_embeds",
    ];
    let text = part.text("type").map_or_else(|| part.text("text").is_some(), |kind| TEXTS.contains(&kind.as_str()));
    !text || MEDIA.iter().any(|key| part.get(key).is_some())
}

/// The tokens of one message: its texts, and its tool calls as the JSON they are.
fn estimate_message(message: &Object<'_>, ratios: &Ratios) -> u64 {
    let of = |object: &Object<'_>, key| object.text(key).map_or(0, |text| estimate(&text, ratios));
    let parts: u64 = parts(message).iter().map(|part| of(part, "text")).sum();
    let thinking = ["reasoning", "reasoning_content"].iter().map(|key| of(message, key)).max().unwrap_or(0);
    let calls = message.get("tool_calls").filter(|calls| !json::is_null(calls)).map_or("", RawValue::get);
    of(message, "content") + parts + thinking + estimate(calls, ratios)
}

#[cfg(test)]
mod tests;

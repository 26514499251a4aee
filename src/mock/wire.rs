//! The events of a stream, in the engines' exact shapes.
//!
//! vLLM as measured on 0.32 (field order, explicit nulls, `data: …` with LF only); SGLang 0.5.23,
//! `entrypoints/openai/serving_chat.py` and `protocol.py`.

use std::fmt::Write as _;

use super::answer::{Choice, Finish};
use super::config::{Config, ReasoningField, Wire};
use super::parser::{Call, Said};

/// One event of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The first event of a choice, with the role.
    Role(usize),
    /// A beat of a choice, with the finish reason if it is the last event.
    Tokens { choice: usize, beat: usize, finish: bool },
    /// The finish reason by itself.
    Finish(usize),
    /// The usage chunk.
    Usage,
    /// `[DONE]`.
    Done,
}

impl Step {
    pub(super) fn finishes(self) -> bool {
        matches!(self, Step::Finish(_) | Step::Tokens { finish: true, .. })
    }
}

/// Which API answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
    /// `/inference/v1/generate`.
    Tokens {
        /// `output_mode: "text"`.
        with_text: bool,
    },
}

/// Everything that the events of one answer have in common.
pub(super) struct Stream<'a> {
    pub(super) config: &'a Config,
    pub(super) form: Form,
    /// The response's id; on SGLang, later choices get ids of their own.
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) role: String,
    pub(super) prompt_tokens: u64,
    /// The prompt's ids, if they are to be shown.
    pub(super) prompt_ids: Option<Vec<u32>>,
    /// Whether ids are shown, and events that hold nothing else.
    pub(super) returns_ids: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) choices: Vec<Choice>,
}

impl Stream<'_> {
    pub(super) fn is_vllm(&self) -> bool {
        self.config.wire == Wire::Vllm
    }

    fn nulls(&self) -> bool {
        !self.is_vllm() && self.config.all_nulls
    }

    /// The events in their order.
    pub(super) fn steps(&self) -> Vec<Step> {
        let roles = if self.form == Form::Chat { self.choices.len() } else { 0 };
        let mut steps: Vec<Step> = (0..roles).map(Step::Role).collect();
        let mut groups: Vec<_> = (0..self.choices.len()).map(|choice| self.token_steps(choice).into_iter()).collect();
        loop {
            let round: Vec<Step> = groups.iter_mut().filter_map(Iterator::next).collect();
            if round.is_empty() {
                break;
            }
            steps.extend(round);
        }
        // vLLM ends each choice by itself; SGLang writes all finish chunks at the end. With one choice it is the same.
        let finished = |choice: &usize| {
            steps.iter().any(|step| matches!(step, Step::Tokens { choice: c, finish: true, .. } if c == choice))
        };
        let finishes: Vec<_> = (0..self.choices.len()).filter(|choice| !finished(choice)).map(Step::Finish).collect();
        steps.extend(finishes);
        steps.extend(self.include_usage.then_some(Step::Usage));
        steps.push(Step::Done);
        steps
    }

    /// One choice's beats, of which some are no events.
    fn token_steps(&self, at: usize) -> Vec<Step> {
        let choice = &self.choices[at];
        let last = choice.beats.len();
        let step = |(beat, of): (usize, &super::answer::Beat)| {
            let finish = choice.finishes && beat + 1 == last;
            let shows = finish || self.returns_ids || self.form != Form::Chat || !of.said.is_empty();
            shows.then_some(Step::Tokens { choice: at, beat, finish })
        };
        choice.beats.iter().enumerate().filter_map(step).collect()
    }

    /// Tokens of a choice that are written with a beat, and those of them that are reasoning.
    fn counts(&self, at: usize, beat: Option<usize>) -> (usize, usize) {
        let beat = beat.and_then(|beat| self.choices[at].beats.get(beat));
        beat.map_or((0, 0), |beat| (beat.tokens, beat.thoughts))
    }

    /// Writes an event: `data: …` and a blank line.
    pub(super) fn write(&self, step: Step, out: &mut Vec<u8>) {
        let mut data = String::with_capacity(320);
        match step {
            Step::Done => data.push_str("[DONE]"),
            Step::Tokens { choice, beat, finish } if self.form != Form::Chat => {
                let finish = finish.then(|| self.choices[choice].finish.clone());
                self.form_chunk(&mut data, choice, Some(beat), finish.as_ref().map(Finish::name), finish.as_ref());
            }
            Step::Usage if self.form != Form::Chat => self.form_usage_chunk(&mut data),
            Step::Usage => self.usage_chunk(&mut data),
            Step::Role(choice) => {
                let role = serde_json::to_string(&self.role).unwrap_or_default();
                let delta = match (self.is_vllm(), self.nulls()) {
                    (true, _) => format!("\"role\":{role},\"content\":\"\""),
                    (false, false) => format!("\"reasoning_content\":null,\"role\":{role},\"content\":\"\""),
                    (false, true) => {
                        format!("\"role\":{role},\"content\":\"\",\"reasoning_content\":null,\"tool_calls\":null")
                    }
                };
                self.chunk(&mut data, choice, (0, 0), &delta, Ending::First, &[]);
            }
            Step::Tokens { choice, beat, finish } => {
                let of = &self.choices[choice].beats[beat];
                let delta = self.delta(choice, &of.said);
                let ending = if finish { Ending::Finish(&self.choices[choice].finish) } else { Ending::None };
                self.chunk(&mut data, choice, (of.tokens, of.thoughts), &delta, ending, &of.ids);
            }
            Step::Finish(at) => {
                let choice = &self.choices[at];
                let ending = Ending::Finish(&choice.finish);
                self.chunk(&mut data, at, choice.totals(), self.empty_delta(), ending, &[]);
            }
        }
        write_event(&data, out);
    }

    /// A finish chunk with `abort`, after this beat of the first choice.
    pub(super) fn write_abort(&self, beat: Option<usize>, out: &mut Vec<u8>) {
        let mut data = String::new();
        match self.form {
            Form::Chat => self.chunk(&mut data, 0, self.counts(0, beat), self.empty_delta(), Ending::Abort, &[]),
            Form::Text | Form::Tokens { .. } => self.form_abort_chunk(&mut data, beat),
        }
        write_event(&data, out);
    }

    fn empty_delta(&self) -> &'static str {
        match (self.is_vllm(), self.nulls()) {
            (true, _) => "",
            (false, false) => "\"reasoning_content\":null",
            (false, true) => "\"role\":null,\"content\":null,\"reasoning_content\":null,\"tool_calls\":null",
        }
    }

    /// The members of a delta.
    fn delta(&self, at: usize, said: &Said) -> String {
        if said.is_empty() {
            return self.empty_delta().to_owned();
        }
        if !said.calls.is_empty() {
            return self.call_delta(at, said);
        }
        if self.is_vllm() && !said.reasoning.is_empty() && !said.content.is_empty() {
            return format!("\"content\":{},{}", self.quoted(&said.content), self.reasoning(&said.reasoning));
        }
        let is_reasoning = !said.reasoning.is_empty();
        let text = self.quoted(if is_reasoning { &said.reasoning } else { &said.content });
        match (is_reasoning, self.is_vllm(), self.nulls()) {
            (true, _, false) => self.reasoning(&said.reasoning),
            (true, _, true) => {
                format!("\"role\":null,\"content\":null,\"reasoning_content\":{text},\"tool_calls\":null")
            }
            (false, true, _) => format!("\"content\":{text}"),
            (false, false, false) => format!("\"reasoning_content\":null,\"content\":{text}"),
            (false, false, true) => {
                format!("\"role\":null,\"content\":{text},\"reasoning_content\":null,\"tool_calls\":null")
            }
        }
    }

    pub(super) fn reasoning(&self, text: &str) -> String {
        let text = if text.is_empty() { "null".to_owned() } else { self.quoted(text) };
        match self.reasoning_field() {
            ReasoningField::Reasoning => format!("\"reasoning\":{text}"),
            ReasoningField::ReasoningContent => format!("\"reasoning_content\":{text}"),
            ReasoningField::Both => format!("\"reasoning\":{text},\"reasoning_content\":{text}"),
        }
    }

    fn reasoning_field(&self) -> ReasoningField {
        let own = if self.is_vllm() { ReasoningField::Reasoning } else { ReasoningField::ReasoningContent };
        self.config.reasoning_field.unwrap_or(own)
    }

    /// A delta with pieces of a tool call; on vLLM the pieces of one event come in one list, with what else it says before them.
    fn call_delta(&self, at: usize, said: &Said) -> String {
        if self.is_vllm() {
            let piece = |call: &Call| match call {
                Call::Name(name) => format!(
                    "{{\"id\":\"{}\",\"type\":\"function\",\"index\":0,\"function\":{{\"name\":{}}}}}",
                    self.call_id(at),
                    self.quoted(name)
                ),
                Call::Arguments(text) => {
                    format!("{{\"index\":0,\"function\":{{\"arguments\":{}}}}}", self.quoted(text))
                }
            };
            let pieces: Vec<String> = said.calls.iter().map(piece).collect();
            let content = if said.content.is_empty() { "null".to_owned() } else { self.quoted(&said.content) };
            let reasoning = match said.reasoning.as_str() {
                "" => String::new(),
                text => format!("{},", self.reasoning(text)),
            };
            return format!("\"content\":{content},{reasoning}\"tool_calls\":[{}]", pieces.join(","));
        }
        let piece = |call: &Call| {
            let (id, name, arguments) = match call {
                Call::Name(name) => (format!("\"{}\"", self.call_id(at)), self.quoted(name), self.quoted("")),
                Call::Arguments(text) => ("null".to_owned(), "null".to_owned(), self.quoted(text)),
            };
            format!(
                "{{\"id\":{id},\"index\":0,\"type\":\"function\",\"function\":{{\"name\":{name},\"arguments\":{arguments}}}}}"
            )
        };
        let pieces: Vec<String> = said.calls.iter().map(piece).collect();
        format!("\"reasoning_content\":null,\"tool_calls\":[{}]", pieces.join(","))
    }

    pub(super) fn call_id(&self, at: usize) -> String {
        let own: String = self.id.chars().filter(char::is_ascii_hexdigit).rev().take(12).collect();
        if self.is_vllm() { format!("chatcmpl-tool-{own}{at}") } else { format!("call_{own}{at}") }
    }

    /// A chunk with one choice. `counts` is what the choice has written with this event.
    fn chunk(
        &self,
        data: &mut String,
        at: usize,
        counts: (usize, usize),
        delta: &str,
        ending: Ending<'_>,
        ids: &[u32],
    ) {
        self.head(data, at);
        let reason = ending.reason();
        let reason_json = reason.map_or("null".to_owned(), |reason| format!("\"{reason}\""));
        let _ = write!(
            data,
            ",\"choices\":[{{\"index\":{at},\"delta\":{{{delta}}},\"logprobs\":null,\"finish_reason\":{reason_json}"
        );
        if self.is_vllm() {
            let stop = match ending {
                Ending::Finish(finish) => Some(self.stop_reason_of(finish)),
                Ending::Abort => Some("null".to_owned()),
                Ending::None | Ending::First => None,
            };
            if let Some(stop) = stop {
                let _ = write!(data, ",\"stop_reason\":{stop}");
            }
            if ending != Ending::First {
                let _ = write!(data, ",\"token_ids\":{}", id_list(self.returns_ids.then_some(ids)));
            }
            data.push_str("}]");
        } else {
            // The id of the end token, as Qwen models have it.
            let matched = if reason == Some("stop") { "151645" } else { "null" };
            let _ = write!(data, ",\"matched_stop\":{matched}}}]");
        }
        if self.continuous_usage {
            data.push_str(",\"usage\":");
            self.usage(data, counts.0, counts.1, false);
        } else if self.nulls() {
            data.push_str(",\"usage\":null");
        }
        if self.is_vllm() && ending == Ending::First {
            let ids = id_list(self.prompt_ids.as_deref());
            let _ = write!(data, ",\"prompt_token_ids\":{ids},\"prompt_text\":null");
        }
        if self.is_vllm() && reason.is_some() && !self.include_usage {
            self.fingerprint(data);
        }
        data.push('}');
    }

    /// The stop string that was found, as JSON.
    pub(super) fn stop_reason_of(&self, finish: &Finish) -> String {
        match finish {
            Finish::At(stop) => self.quoted(stop),
            _ => "null".to_owned(),
        }
    }

    fn usage_chunk(&self, data: &mut String) {
        self.head(data, 0);
        data.push_str(",\"choices\":[],\"usage\":");
        let (tokens, reasoning) = self.totals();
        self.usage(data, tokens, reasoning, false);
        if self.is_vllm() {
            self.fingerprint(data);
        }
        data.push('}');
    }

    pub(super) fn totals(&self) -> (usize, usize) {
        self.choices.iter().map(Choice::totals).fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Up to the model, without a closing brace.
    fn head(&self, data: &mut String, at: usize) {
        let (id, created, model) = (self.quoted(&self.id_of(at)), self.created, self.quoted(&self.model));
        let _ =
            write!(data, "{{\"id\":{id},\"object\":\"chat.completion.chunk\",\"created\":{created},\"model\":{model}");
    }

    fn id_of(&self, at: usize) -> String {
        if self.is_vllm() || at == 0 { self.id.clone() } else { format!("{}-{at}", self.id) }
    }

    pub(super) fn fingerprint(&self, data: &mut String) {
        let name = self.quoted(&format!("vllm-0.32.0-{}", self.config.name));
        let _ = write!(data, ",\"system_fingerprint\":{name}");
    }

    /// Usage; `whole`: with a null for what is not known, as an answer at once has it.
    pub(super) fn usage(&self, data: &mut String, completion: usize, reasoning: usize, whole: bool) {
        let prompt = self.prompt_tokens;
        let total = prompt + completion as u64;
        let _ =
            write!(data, "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{completion}");
        let is_vllm = self.is_vllm();
        match self.config.cached_tokens.map(|cached| cached.min(prompt)) {
            Some(cached) => {
                let _ = write!(data, ",\"prompt_tokens_details\":{{\"cached_tokens\":{cached}}}");
            }
            None if whole || !is_vllm => data.push_str(",\"prompt_tokens_details\":null"),
            None => {}
        }
        let _ = match is_vllm {
            true => write!(data, ",\"completion_tokens_details\":{{\"reasoning_tokens\":{reasoning}}}}}"),
            false => write!(data, ",\"reasoning_tokens\":{reasoning}}}"),
        };
    }

    /// A JSON string.
    pub(super) fn quoted(&self, text: &str) -> String {
        let json = serde_json::to_string(text).unwrap_or_default();
        if !self.config.ascii || json.is_ascii() {
            return json;
        }
        let mut ascii = String::with_capacity(json.len() * 2);
        for unit in json.encode_utf16() {
            match u8::try_from(unit).ok().filter(u8::is_ascii) {
                Some(byte) => ascii.push(char::from(byte)),
                None => {
                    let _ = write!(ascii, "\\u{unit:04x}");
                }
            }
        }
        ascii
    }
}

/// What an event is besides its delta.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ending<'a> {
    None,
    /// The first of its choice.
    First,
    /// The last of its choice.
    Finish(&'a Finish),
    /// The last, because the engine was told to stop.
    Abort,
}

impl Ending<'_> {
    fn reason(self) -> Option<&'static str> {
        match self {
            Ending::None | Ending::First => None,
            Ending::Finish(finish) => Some(finish.name()),
            Ending::Abort => Some("abort"),
        }
    }
}

/// A list of ids as JSON, or null.
pub(super) fn id_list(ids: Option<&[u32]>) -> String {
    let Some(ids) = ids else { return "null".to_owned() };
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    format!("[{}]", ids.join(","))
}

/// `data: …` and a blank line.
pub(super) fn write_event(data: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.as_bytes());
    out.extend_from_slice(b"\n\n");
}

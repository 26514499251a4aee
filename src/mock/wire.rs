//! The events of a stream, in the engines' exact shapes.
//!
//! vLLM as measured on 0.32 (field order, explicit nulls, `data: …` with LF only); SGLang 0.5.23,
//! `entrypoints/openai/serving_chat.py` and `protocol.py`.

use std::fmt::Write as _;

use super::answer::{Choice, Finish, Item, call_of};
use super::config::{Config, ReasoningField, Wire};
use super::text::{Kind, Piece};

/// One event of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The first event of a choice, with the role.
    Role(usize),
    /// Tokens `from..to` of a choice, with the finish reason if it is the last event.
    Tokens { choice: usize, from: usize, to: usize, finish: bool },
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

/// Everything that the events of one answer have in common.
pub(super) struct Stream<'a> {
    pub(super) config: &'a Config,
    /// The response's id; on SGLang, later choices get ids of their own.
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) role: String,
    pub(super) prompt_tokens: u64,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) choices: Vec<Choice>,
}

impl Stream<'_> {
    fn is_vllm(&self) -> bool {
        self.config.wire == Wire::Vllm
    }

    fn nulls(&self) -> bool {
        !self.is_vllm() && self.config.all_nulls
    }

    /// The events in their order.
    pub(super) fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..self.choices.len()).map(Step::Role).collect();
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

    /// One choice's tokens, grouped; a group holds tokens of one kind.
    fn token_steps(&self, at: usize) -> Vec<Step> {
        let choice = &self.choices[at];
        let kind = |item: &Item| match item {
            Item::Text(piece) => Some(piece.kind),
            _ => None,
        };
        let mut steps = Vec::new();
        let mut from = 0;
        for to in 1..=choice.items.len() {
            let here = kind(&choice.items[from]);
            let full = to - from >= self.config.tokens_per_event.max(1);
            let ends = here.is_none() || choice.items.get(to).map(kind) != Some(here);
            if full || ends {
                steps.push(Step::Tokens { choice: at, from, to, finish: false });
                from = to;
            }
        }
        // `length` comes with the last token's text (vLLM 0.32, measured); `stop` only when text was held back (vllm#35705).
        let with_text =
            choice.finish == Finish::Length || choice.finish == Finish::Stop && self.config.finish_with_text;
        if let (true, Some(Step::Tokens { finish, .. })) = (self.is_vllm() && with_text, steps.last_mut()) {
            *finish = true;
        }
        steps
    }

    /// Writes an event: `data: …` and a blank line.
    pub(super) fn write(&self, step: Step, out: &mut Vec<u8>) {
        let mut data = String::with_capacity(320);
        match step {
            Step::Done => data.push_str("[DONE]"),
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
                self.chunk(&mut data, choice, 0, &delta, None, true);
            }
            Step::Tokens { choice, from, to, finish } => {
                let delta = self.delta(choice, from, to);
                let reason = finish.then(|| self.choices[choice].finish.name());
                self.chunk(&mut data, choice, to, &delta, reason, false);
            }
            Step::Finish(at) => {
                let choice = &self.choices[at];
                self.chunk(&mut data, at, choice.items.len(), self.empty_delta(), Some(choice.finish.name()), false);
            }
        }
        write_event(&data, out);
    }

    /// A finish chunk with `abort`, after `tokens` tokens of the first choice.
    pub(super) fn write_abort(&self, tokens: usize, out: &mut Vec<u8>) {
        let mut data = String::new();
        self.chunk(&mut data, 0, tokens, self.empty_delta(), Some("abort"), false);
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
    fn delta(&self, at: usize, from: usize, to: usize) -> String {
        let items = &self.choices[at].items[from..to];
        let mut text = String::new();
        let mut kind = Kind::Content;
        for item in items {
            match item {
                Item::Text(Piece { kind: of, text: piece }) => {
                    kind = *of;
                    text.push_str(piece);
                }
                Item::Call(name) => return self.call_delta(at, Some(name), ""),
                Item::Arguments(piece) => return self.call_delta(at, None, piece),
            }
        }
        let text = self.quoted(&text);
        match (kind, self.is_vllm(), self.nulls()) {
            (Kind::Reasoning, _, false) => match self.reasoning_field() {
                ReasoningField::Reasoning => format!("\"reasoning\":{text}"),
                ReasoningField::ReasoningContent => format!("\"reasoning_content\":{text}"),
                ReasoningField::Both => format!("\"reasoning\":{text},\"reasoning_content\":{text}"),
            },
            (Kind::Reasoning, _, true) => {
                format!("\"role\":null,\"content\":null,\"reasoning_content\":{text},\"tool_calls\":null")
            }
            (Kind::Content, true, _) => format!("\"content\":{text}"),
            (Kind::Content, false, false) => format!("\"reasoning_content\":null,\"content\":{text}"),
            (Kind::Content, false, true) => {
                format!("\"role\":null,\"content\":{text},\"reasoning_content\":null,\"tool_calls\":null")
            }
        }
    }

    fn reasoning_field(&self) -> ReasoningField {
        let own = if self.is_vllm() { ReasoningField::Reasoning } else { ReasoningField::ReasoningContent };
        self.config.reasoning_field.unwrap_or(own)
    }

    fn call_delta(&self, at: usize, name: Option<&str>, arguments: &str) -> String {
        let arguments = self.quoted(arguments);
        match (self.is_vllm(), name) {
            (true, Some(name)) => format!(
                "\"content\":null,\"tool_calls\":[{{\"id\":\"{}\",\"type\":\"function\",\"index\":0,\"function\":{{\"name\":{}}}}}]",
                self.call_id(at),
                self.quoted(name)
            ),
            (true, None) => {
                format!("\"content\":null,\"tool_calls\":[{{\"index\":0,\"function\":{{\"arguments\":{arguments}}}}}]")
            }
            (false, name) => {
                let id = name.map_or("null".to_owned(), |_| format!("\"{}\"", self.call_id(at)));
                let name = name.map_or("null".to_owned(), |name| self.quoted(name));
                format!(
                    "\"reasoning_content\":null,\"tool_calls\":[{{\"id\":{id},\"index\":0,\"type\":\"function\",\
                     \"function\":{{\"name\":{name},\"arguments\":{arguments}}}}}]"
                )
            }
        }
    }

    fn call_id(&self, at: usize) -> String {
        let own: String = self.id.chars().filter(char::is_ascii_hexdigit).rev().take(12).collect();
        if self.is_vllm() { format!("chatcmpl-tool-{own}{at}") } else { format!("call_{own}{at}") }
    }

    /// A chunk with one choice. `tokens` is what the choice has written with this event.
    fn chunk(&self, data: &mut String, at: usize, tokens: usize, delta: &str, reason: Option<&str>, first: bool) {
        self.head(data, at);
        let reason_json = reason.map_or("null".to_owned(), |reason| format!("\"{reason}\""));
        let _ = write!(
            data,
            ",\"choices\":[{{\"index\":{at},\"delta\":{{{delta}}},\"logprobs\":null,\"finish_reason\":{reason_json}"
        );
        data.push_str(match (self.is_vllm(), first, reason) {
            (true, true, _) => "}]",
            (true, false, Some(_)) => ",\"stop_reason\":null,\"token_ids\":null}]",
            (true, false, None) => ",\"token_ids\":null}]",
            // The id of the end token, as Qwen models have it.
            (false, _, Some("stop")) => ",\"matched_stop\":151645}]",
            (false, _, _) => ",\"matched_stop\":null}]",
        });
        if self.continuous_usage {
            data.push_str(",\"usage\":");
            let reasoning = self.choices[at].reasoning_tokens(tokens);
            self.usage(data, tokens, reasoning);
        } else if self.nulls() {
            data.push_str(",\"usage\":null");
        }
        if self.is_vllm() && first {
            data.push_str(",\"prompt_token_ids\":null,\"prompt_text\":null");
        }
        if self.is_vllm() && reason.is_some() && !self.include_usage {
            self.fingerprint(data);
        }
        data.push('}');
    }

    fn usage_chunk(&self, data: &mut String) {
        self.head(data, 0);
        data.push_str(",\"choices\":[],\"usage\":");
        let (tokens, reasoning) = self.totals();
        self.usage(data, tokens, reasoning);
        if self.is_vllm() {
            self.fingerprint(data);
        }
        data.push('}');
    }

    fn totals(&self) -> (usize, usize) {
        let tokens = self.choices.iter().map(|choice| choice.items.len()).sum();
        let reasoning = self.choices.iter().map(|choice| choice.reasoning_tokens(usize::MAX)).sum();
        (tokens, reasoning)
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

    fn fingerprint(&self, data: &mut String) {
        let name = self.quoted(&format!("vllm-0.32.0-{}", self.config.name));
        let _ = write!(data, ",\"system_fingerprint\":{name}");
    }

    fn usage(&self, data: &mut String, completion: usize, reasoning: usize) {
        let prompt = self.prompt_tokens;
        let total = prompt + completion as u64;
        let _ =
            write!(data, "{{\"prompt_tokens\":{prompt},\"total_tokens\":{total},\"completion_tokens\":{completion}");
        let cached = self
            .config
            .cached_tokens
            .map(|cached| format!(",\"prompt_tokens_details\":{{\"cached_tokens\":{}}}", cached.min(prompt)));
        if self.is_vllm() {
            let _ = write!(
                data,
                "{},\"completion_tokens_details\":{{\"reasoning_tokens\":{reasoning}}}}}",
                cached.unwrap_or_default()
            );
        } else {
            let cached = cached.unwrap_or_else(|| ",\"prompt_tokens_details\":null".to_owned());
            let _ = write!(data, "{cached},\"reasoning_tokens\":{reasoning}}}");
        }
    }

    /// A JSON string.
    fn quoted(&self, text: &str) -> String {
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

    /// The body of the answer to a request without `stream`.
    pub(super) fn whole(&self) -> String {
        let choices: Vec<String> = (0..self.choices.len()).map(|at| self.whole_choice(at)).collect();
        let mut data = String::new();
        let (id, created, model) = (self.quoted(&self.id), self.created, self.quoted(&self.model));
        let _ = write!(
            data,
            "{{\"id\":{id},\"object\":\"chat.completion\",\"created\":{created},\"model\":{model},\"choices\":[{}]",
            choices.join(",")
        );
        if self.is_vllm() {
            data.push_str(",\"service_tier\":null");
            self.fingerprint(&mut data);
        }
        data.push_str(",\"usage\":");
        let (tokens, reasoning) = self.totals();
        self.usage(&mut data, tokens, reasoning);
        data.push('}');
        data
    }

    fn whole_choice(&self, at: usize) -> String {
        let choice = &self.choices[at];
        let text = |kind: Kind| -> String {
            let of = |item: &Item| match item {
                Item::Text(piece) if piece.kind == kind => Some(piece.text),
                _ => None,
            };
            let text: String = choice.items.iter().filter_map(of).collect();
            if text.is_empty() { "null".to_owned() } else { self.quoted(&text) }
        };
        let (content, reasoning, role) = (text(Kind::Content), text(Kind::Reasoning), self.quoted(&self.role));
        let reasoning = match self.reasoning_field() {
            ReasoningField::Reasoning => format!("\"reasoning\":{reasoning}"),
            ReasoningField::ReasoningContent => format!("\"reasoning_content\":{reasoning}"),
            ReasoningField::Both => format!("\"reasoning\":{reasoning},\"reasoning_content\":{reasoning}"),
        };
        let calls = call_of(choice).map_or("null".to_owned(), |(name, arguments)| {
            format!(
                "[{{\"id\":\"{}\",\"type\":\"function\",\"function\":{{\"name\":{},\"arguments\":{}}}}}]",
                self.call_id(at),
                self.quoted(&name),
                self.quoted(&arguments)
            )
        });
        let end = if self.is_vllm() { "\"stop_reason\":null,\"token_ids\":null" } else { "\"matched_stop\":null" };
        format!(
            "{{\"index\":{at},\"message\":{{\"role\":{role},\"content\":{content},{reasoning},\"tool_calls\":{calls}}},\"logprobs\":null,\
             \"finish_reason\":\"{}\",{end}}}",
            choice.finish.name()
        )
    }
}

/// `data: …` and a blank line.
pub(super) fn write_event(data: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: ");
    out.extend_from_slice(data.as_bytes());
    out.extend_from_slice(b"\n\n");
}

//! A whole answer: what each choice writes event by event, and why it stops.

use serde::Serialize;

use super::ask::Ask;
use super::config::{Config, Continuation, Wire};
use super::continued::{self, Start, text_of};
use super::detok::Detok;
use super::family::Family;
use super::line::{ARGUMENTS, Model, Place, Rest};
use super::parser::{Call, Parser, Said, state_after};
use super::prompt::{header, opening};
use super::reuse;
use super::text::{Kind, Position};
use super::tokens::{END, encode};
use super::validate::{self, Refusal};

/// One step of the engine: an event, unless it says nothing and nobody wants its ids.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Beat {
    /// Its tokens; empty on a wire that never shows them.
    pub(super) ids: Vec<u32>,
    pub(super) said: Said,
    /// Tokens that the choice has written with it, and those of them that are reasoning.
    pub(super) tokens: usize,
    pub(super) thoughts: usize,
}

/// Why a choice stops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Finish {
    Stop,
    /// At a stop string.
    At(String),
    Length,
    ToolCalls,
}

impl Finish {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Finish::Stop | Finish::At(_) => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }
}

/// What one choice writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    pub(super) beats: Vec<Beat>,
    pub(super) finish: Finish,
    /// Whether the last beat brings the finish reason; otherwise an event of its own does.
    pub(super) finishes: bool,
}

impl Choice {
    /// All its tokens, and those of them that are reasoning.
    pub(super) fn totals(&self) -> (usize, usize) {
        self.beats.last().map_or((0, 0), |beat| (beat.tokens, beat.thoughts))
    }

    /// The tool call, as far as it has come.
    pub(super) fn call(&self) -> Option<(String, String)> {
        let calls = || self.beats.iter().flat_map(|beat| &beat.said.calls);
        let name = calls().find_map(|call| match call {
            Call::Name(name) => Some(name.clone()),
            Call::Arguments(_) => None,
        })?;
        let arguments = calls().filter_map(|call| match call {
            Call::Arguments(text) => Some(text.as_str()),
            Call::Name(_) => None,
        });
        Some((name, arguments.collect()))
    }

    /// The text of one kind.
    pub(super) fn text(&self, kind: Kind) -> String {
        self.texts(kind).concat()
    }

    fn texts(&self, kind: Kind) -> Vec<String> {
        let of = |beat: &Beat| match kind {
            Kind::Reasoning => beat.said.reasoning.clone(),
            Kind::Content => beat.said.content.clone(),
        };
        self.beats.iter().map(of).filter(|text| !text.is_empty()).collect()
    }

    /// All ids.
    pub(super) fn ids(&self) -> Vec<u32> {
        self.beats.iter().flat_map(|beat| beat.ids.iter().copied()).collect()
    }
}

/// How an answer begins.
#[derive(Debug)]
pub(super) struct Begun {
    /// What the model gets to see.
    pub(super) prompt: Vec<u32>,
    pub(super) place: Place,
    /// What the parser takes the first token for.
    pub(super) state: Kind,
    /// What is wrong with a continuation.
    pub(super) wrong: Option<String>,
    /// How it was understood, if it came as text.
    pub(super) start: Option<Start>,
    /// Whether ids came in place of messages, and were taken.
    pub(super) reused: bool,
}

/// The model that answers a chat request.
pub(super) fn model<'a>(ask: &Ask, config: &'a Config, family: &Family) -> Model<'a> {
    let seed = ask.fields.get("seed").filter(|seed| !seed.is_null()).map(ToString::to_string).unwrap_or_default();
    let thinks = thinks(ask, config, family);
    Model { config, family: *family, seed, lengths: ask.lengths, thinks }
}

/// Whether an answer begins with thinking.
fn thinks(ask: &Ask, config: &Config, family: &Family) -> bool {
    family.thinks_with(&ask.kwargs()) && ask.lengths.reasoning.unwrap_or(config.reasoning) > 0
}

/// Where an answer begins: after the messages, where a continuation goes on, or after ids.
///
/// # Errors
/// What the engine refuses.
pub(super) fn begin(ask: &Ask, config: &Config, family: &Family) -> Result<Begun, Refusal> {
    let model = model(ask, config, family);
    if let Some(prompt) = reuse::ids(ask, config)? {
        let place = model.after(&prompt);
        let state = state_after(&prompt, family, model.thinks);
        let root = model.root(&prompt, &place).filter(|_| ask.is_guided());
        let wrong = match (place.at, root) {
            (None, _) => Some("the ids are not a prompt and the beginning of this engine's own answer to it"),
            (_, Some(_)) => Some("guided decoding begins the answer anew behind ids that hold some of it"),
            _ => None,
        };
        let place = root.unwrap_or(place);
        return Ok(Begun { place, state, wrong: wrong.map(str::to_owned), start: None, reused: true, prompt });
    }
    let start = start(ask, config, family)?;
    let mut prompt = header(ask.prompt(), ask.tools());
    let line = model.line(&prompt, start.thinks, 0);
    let at = line.offset(start.thinks, start.at);
    let place = Place { header: prompt.len(), thinks: start.thinks, at: Some(at) };
    prompt.extend(encode(&opening(config, family, start.thinks)));
    prompt.extend(line.cut(at).0);
    let state = start.label.unwrap_or(if start.thinks { start.at.kind } else { Kind::Content });
    let wrong = start.wrong.clone();
    Ok(Begun { prompt, place, state, wrong, start: Some(start), reused: false })
}

fn start(ask: &Ask, config: &Config, family: &Family) -> Result<Start, Refusal> {
    let thinks = thinks(ask, config, family);
    let anew = || Start { thinks, at: text_of(ask, config, thinks, 0).start(), label: None, lost: 0, wrong: None };
    match config.continuation {
        _ if !ask.continues() => Ok(anew()),
        Continuation::Honoured => continued::start(ask, config, family),
        Continuation::Empty => Ok(Start { at: Position { kind: Kind::Content, offset: usize::MAX / 2 }, ..anew() }),
        Continuation::Afresh => Ok(anew()),
    }
}

/// What limits an answer, and how it is parted into events.
#[derive(Clone, Debug, Default)]
pub(super) struct Limits {
    pub(super) tokens: Option<u64>,
    pub(super) min_tokens: usize,
    pub(super) stop: Vec<String>,
}

/// One choice's events, within the request's limits.
pub(super) fn choice(ask: &Ask, config: &Config, family: &Family, begun: &Begun, index: u64) -> Choice {
    let model = model(ask, config, family);
    match config.wire {
        Wire::Vllm => {
            let rest = model.rest(&begun.prompt, &begun.place, index);
            let detok = Detok::new(&begun.prompt, false);
            let parser = Parser::new(family, begun.state, ask.tool().is_some());
            let mut choice = parsed(config, rest, &ask.limits(), detok, Some((parser, begun.state)));
            if ask.hides_reasoning() {
                choice.beats.iter_mut().for_each(|beat| beat.said.reasoning.clear());
            }
            choice
        }
        Wire::Sglang => pieces(&model, ask, begun, index),
    }
}

/// vLLM: a token or a few at a time, through the decoder and, for chat, the parser.
pub(super) fn parsed(
    config: &Config,
    rest: Rest,
    limits: &Limits,
    detok: Detok,
    mut parser: Option<(Parser, Kind)>,
) -> Choice {
    let limit = limits.tokens.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let mut finish = if rest.ids.len() > limit { Finish::Length } else { Finish::Stop };
    let in_thinking = parser.as_ref().is_some_and(|(_, state)| *state == Kind::Reasoning);
    let thoughts = if in_thinking && rest.content == 0 { usize::MAX } else { rest.thoughts };
    let mut detok = detok.stopping_at(limits.stop.clone(), limits.min_tokens);
    let (mut beats, mut tokens, mut thought, mut called) = (Vec::new(), 0, 0, false);
    let groups = groups(config, &rest, limit);
    for (at, group) in groups.iter().enumerate() {
        let mut ids = Vec::new();
        let mut stopped = None;
        for id in &rest.ids[group.clone()] {
            ids.push(*id);
            // The end token has no text.
            stopped = (*id != END).then(|| detok.push(*id)).flatten();
            if stopped.is_some() {
                break;
            }
        }
        let last = at + 1 == groups.len() || stopped.is_some();
        let (text, is_prompt) = detok.take(last);
        // vLLM counts the thinking of an event only if it has text: not the first parts of a character (0.32, qwen3 parser).
        if !text.is_empty() {
            thought += ids.iter().filter(|id| **id != END).count().min(thoughts.saturating_sub(tokens));
        }
        tokens += ids.len();
        let said = match &mut parser {
            Some((parser, _)) if is_prompt => parser.verbatim(&text),
            Some((parser, _)) => parser.feed(&text, last),
            None => Said { content: text, ..Said::default() },
        };
        called |= !said.calls.is_empty();
        beats.push(Beat { ids, said, tokens, thoughts: thought });
        if let Some(stop) = stopped {
            finish = Finish::At(stop);
            break;
        }
    }
    if finish != Finish::Length && called {
        finish = Finish::ToolCalls;
    }
    Choice { beats, finish, finishes: true }
}

/// The tokens of each event. Thinking, its closing tag and the answer do not share one unless they are mixed; each token of a tool call has
/// its own, and so has the end token, unless the last text waits for it.
fn groups(config: &Config, rest: &Rest, limit: usize) -> Vec<std::ops::Range<usize>> {
    let count = rest.ids.len().min(limit);
    let kind = |at: usize| match at {
        at if config.mixed_events => usize::from(at + 1 == rest.ids.len()),
        at if at + 1 == rest.ids.len() => usize::MAX,
        at if at < rest.thoughts => 0,
        at if at < rest.content => 1,
        at if at < rest.markup => 2,
        at => at,
    };
    let most = config.tokens_per_event.max(1);
    let mut groups: Vec<std::ops::Range<usize>> = Vec::new();
    for at in 0..count {
        let is_end = at + 1 == rest.ids.len();
        match groups.last_mut() {
            Some(last) if last.len() < most && kind(last.start) == kind(at) => last.end = at + 1,
            Some(last) if is_end && config.finish_with_text => last.end = at + 1,
            _ => groups.push(at..at + 1),
        }
    }
    groups
}

/// SGLang: a piece or a few at a time; a piece is a token.
fn pieces(model: &Model<'_>, ask: &Ask, begun: &Begun, index: u64) -> Choice {
    let header = &begun.prompt[..begun.place.header];
    let (at, label) = match &begun.start {
        Some(start) => (start.at, start.label),
        None => (Position { kind: Kind::Content, offset: 0 }, None),
    };
    let text = model.text(header, begun.place.thinks, index);
    let call = model.call(header).filter(|_| ask.tool().is_some());
    // The call's place is counted from the start of the whole answer.
    let mut content = match at.kind {
        Kind::Content => usize::try_from(text.tokens(Kind::Content, at.offset)).unwrap_or(usize::MAX),
        Kind::Reasoning => 0,
    };
    let (mut items, mut finish): (Vec<(Option<Kind>, Said)>, _) = (Vec::new(), Finish::Stop);
    for piece in text.rest(at) {
        if piece.kind == Kind::Content && call.as_ref().is_some_and(|(after, _)| *after == content) {
            break;
        }
        content += usize::from(piece.kind == Kind::Content);
        let kind = label.unwrap_or(piece.kind);
        let mut said = Said::default();
        match kind {
            Kind::Reasoning => said.reasoning.push_str(piece.text),
            Kind::Content => said.content.push_str(piece.text),
        }
        items.push((Some(kind), said));
    }
    if let Some((_, name)) = call.filter(|(after, _)| *after <= content) {
        let arguments = ARGUMENTS.iter().map(|piece| Call::Arguments((*piece).to_owned()));
        for call in std::iter::once(Call::Name(name)).chain(arguments) {
            items.push((None, Said { calls: vec![call], ..Said::default() }));
        }
        finish = Finish::ToolCalls;
    }
    let limit = ask.limit().and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    // An answer that ends exactly at the limit stops for the limit: the end token would have been one too many.
    if items.len() >= limit {
        items.truncate(limit);
        finish = Finish::Length;
    }
    Choice { beats: joined(items, model.config.tokens_per_event.max(1)), finish, finishes: false }
}

/// Events of up to `most` items of one kind.
fn joined(items: Vec<(Option<Kind>, Said)>, most: usize) -> Vec<Beat> {
    let (mut beats, mut thoughts): (Vec<Beat>, usize) = (Vec::new(), 0);
    let (mut last, mut count) = (None, 0);
    for (at, (kind, said)) in items.into_iter().enumerate() {
        thoughts += usize::from(kind == Some(Kind::Reasoning));
        let tokens = at + 1;
        match beats.last_mut() {
            Some(beat) if kind.is_some() && kind == last && count < most => {
                beat.said.reasoning += &said.reasoning;
                beat.said.content += &said.content;
                (beat.tokens, beat.thoughts) = (tokens, thoughts);
                count += 1;
            }
            _ => {
                beats.push(Beat { ids: Vec::new(), said, tokens, thoughts });
                count = 1;
            }
        }
        last = kind;
    }
    beats
}

/// Prompt tokens: what the model gets to see. SGLang counts what the partial holds in pieces.
pub(super) fn prompt_tokens(ask: &Ask, config: &Config, begun: &Begun) -> u64 {
    match (config.wire, &begun.start) {
        (Wire::Sglang, Some(start)) => {
            let text = text_of(ask, config, start.thinks, 0);
            let thoughts = if start.at.kind == Kind::Content { text.tokens(Kind::Reasoning, usize::MAX) } else { 0 };
            let partial = if ask.continues() { thoughts + text.tokens(start.at.kind, start.at.offset) } else { 0 };
            begun.place.header as u64 + partial
        }
        _ => begun.prompt.len() as u64,
    }
}

/// An answer as it is when nothing breaks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Answer {
    /// The texts of the thinking, as they come in events of one token each.
    pub reasoning: Vec<String>,
    /// The texts of the answer, likewise.
    pub content: Vec<String>,
    /// The name and the arguments of the tool call, if one is made.
    pub tool_call: Option<(String, String)>,
    /// The finish reason.
    pub finish: &'static str,
    /// As in the usage.
    pub prompt_tokens: u64,
    /// As in the usage. On vLLM these are all ids: the tag that ends thinking, the markup of a tool call and the end token too.
    pub completion_tokens: u64,
    /// As in the usage.
    pub reasoning_tokens: u64,
    /// The prompt's ids.
    pub prompt_ids: Vec<u32>,
    /// The answer's ids; empty on SGLang.
    pub ids: Vec<u32>,
}

impl Answer {
    /// The thinking as one string.
    pub fn reasoning_text(&self) -> String {
        self.reasoning.concat()
    }

    /// The answer as one string.
    pub fn content_text(&self) -> String {
        self.content.concat()
    }

    pub(super) fn of(choice: &Choice, prompt_ids: Vec<u32>, prompt_tokens: u64) -> Self {
        let (tokens, thoughts) = choice.totals();
        Self {
            reasoning: choice.texts(Kind::Reasoning),
            content: choice.texts(Kind::Content),
            tool_call: choice.call(),
            finish: choice.finish.name(),
            prompt_tokens,
            completion_tokens: tokens as u64,
            reasoning_tokens: thoughts as u64,
            prompt_ids,
            ids: choice.ids(),
        }
    }
}

/// The answer that an engine with these settings gives to a chat request when nothing breaks: its first choice. Faults,
/// in the settings or the request, are left out. `headers` are the request's, names in any case; only `mock-…` ones count.
///
/// # Errors
/// The words with which the engine would refuse the request.
pub fn uncut(config: &Config, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer, String> {
    let headers: Vec<_> =
        headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), (*value).to_owned())).collect();
    let family = Family::named(&config.family);
    let ask = Ask::read(&headers, body).map_err(|refusal| refusal.message)?;
    validate::check(&ask, config, &family).map_err(|refusal| refusal.message)?;
    let begun = begin(&ask, config, &family).map_err(|refusal| refusal.message)?;
    let config = &Config { tokens_per_event: 1, ..config.clone() };
    let choice = choice(&ask, config, &family, &begun, 0);
    let prompt_tokens = prompt_tokens(&ask, config, &begun);
    Ok(Answer::of(&choice, begun.prompt, prompt_tokens))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scripted_arguments_are_whole_json() {
        let arguments: serde_json::Value = serde_json::from_str(&ARGUMENTS.concat()).expect("whole JSON");
        assert_eq!(arguments, serde_json::json!({"city": "Zürich 北京 🚀", "unit": "celsius"}));
    }
}

//! A whole answer: which tokens each choice writes, and why it stops.

use serde::Serialize;

use super::ask::Ask;
use super::config::{Config, Continuation};
use super::continued::{self, Start, text_of};
use super::family::Family;
use super::text::{Kind, Piece, Position};
use super::validate::{self, Refusal};

/// One token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    Text(Piece),
    /// The beginning of a tool call, with the tool's name.
    Call(String),
    /// A piece of its arguments.
    Arguments(&'static str),
}

/// Why a choice stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Finish {
    Stop,
    Length,
    ToolCalls,
}

impl Finish {
    pub(super) fn name(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }
}

/// What one choice writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    pub(super) items: Vec<Item>,
    pub(super) finish: Finish,
    /// Tokens of reasoning; they come first.
    thoughts: usize,
}

impl Choice {
    /// Tokens of reasoning among the first `count`.
    pub(super) fn reasoning_tokens(&self, count: usize) -> usize {
        self.thoughts.min(count)
    }
}

/// The arguments of every scripted tool call.
const ARGUMENTS: &[&str] =
    &["{", "\"city\"", ": \"", "Zü", "rich", " 北京", " 🚀\"", ", \"unit\"", ": \"celsius", "\"", "}"];

/// One choice's tokens from a position on, within the request's limit.
pub(super) fn choice(ask: &Ask, config: &Config, start: &Start, index: u64) -> Choice {
    let text = text_of(ask, config, start.thinks, index);
    let call_after = ask.lengths.tool_call.or(config.tool_call);
    let mut items: Vec<Item> = Vec::new();
    // The call's place is counted from the start of the whole answer.
    let mut content = match start.at.kind {
        Kind::Content => usize::try_from(text.tokens(Kind::Content, start.at.offset)).unwrap_or(usize::MAX),
        Kind::Reasoning => 0,
    };
    let mut finish = Finish::Stop;
    for piece in text.rest(start.at) {
        if piece.kind == Kind::Content && call_after == Some(content) && ask.tool().is_some() {
            break;
        }
        content += usize::from(piece.kind == Kind::Content);
        items.push(Item::Text(match start.label {
            Some(kind) => Piece { kind, ..piece },
            None => piece,
        }));
    }
    if let (Some(tool), true) = (ask.tool(), call_after.is_some_and(|after| after <= content)) {
        items.push(Item::Call(tool.to_owned()));
        items.extend(ARGUMENTS.iter().copied().map(Item::Arguments));
        finish = Finish::ToolCalls;
    }
    let limit = ask.limit().and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    // An answer that ends exactly at the limit stops for the limit: the end token would have been one too many.
    if items.len() >= limit {
        items.truncate(limit);
        finish = Finish::Length;
    }
    let is_reasoning = |item: &&Item| matches!(item, Item::Text(piece) if piece.kind == Kind::Reasoning);
    let thoughts = items.iter().take_while(is_reasoning).count();
    Choice { items, finish, thoughts }
}

/// Where an answer begins: at the start of its text, or where a continuation goes on.
///
/// # Errors
/// What the engine refuses.
pub(super) fn start(ask: &Ask, config: &Config, family: &Family) -> Result<Start, Refusal> {
    let thinks = family.thinks_with(&ask.kwargs());
    if !ask.continues() {
        let at = text_of(ask, config, thinks, 0).start();
        return Ok(Start { thinks, at, label: None, lost: 0, wrong: None });
    }
    match config.continuation {
        Continuation::Honoured => continued::start(ask, config, family),
        Continuation::Empty => {
            let at = Position { kind: Kind::Content, offset: usize::MAX };
            Ok(Start { thinks, at, label: None, lost: 0, wrong: None })
        }
        Continuation::Afresh => {
            let at = text_of(ask, config, thinks, 0).start();
            Ok(Start { thinks, at, label: None, lost: 0, wrong: None })
        }
    }
}

/// Prompt tokens: about four characters each, plus what the partial holds exactly.
pub(super) fn prompt_tokens(ask: &Ask, config: &Config, start: &Start) -> u64 {
    let length = |value: &serde_json::Value| value.to_string().chars().count().div_ceil(4) as u64;
    let messages: u64 = ask.prompt().iter().map(|message| 3 + message.get("content").map_or(0, length)).sum();
    let tools = ask.fields.get("tools").map_or(0, length);
    let text = text_of(ask, config, start.thinks, 0);
    let thoughts = if start.at.kind == Kind::Content { text.tokens(Kind::Reasoning, usize::MAX) } else { 0 };
    let partial = if ask.continues() { thoughts + text.tokens(start.at.kind, start.at.offset) } else { 0 };
    2 + messages + tools + partial
}

/// An answer as it is when nothing breaks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Answer {
    /// The pieces of the thinking, one a token.
    pub reasoning: Vec<&'static str>,
    /// The pieces of the answer, one a token.
    pub content: Vec<&'static str>,
    /// The name and the arguments of the tool call, if one is made.
    pub tool_call: Option<(String, String)>,
    /// The finish reason.
    pub finish: &'static str,
    /// As in the usage.
    pub prompt_tokens: u64,
    /// As in the usage: all pieces, those of a tool call included.
    pub completion_tokens: u64,
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
    let start = start(&ask, config, &family).map_err(|refusal| refusal.message)?;
    let choice = choice(&ask, config, &start, 0);
    let of = |kind| {
        let text = |item: &Item| match item {
            Item::Text(piece) if piece.kind == kind => Some(piece.text),
            _ => None,
        };
        choice.items.iter().filter_map(text).collect::<Vec<_>>()
    };
    Ok(Answer {
        reasoning: of(Kind::Reasoning),
        content: of(Kind::Content),
        tool_call: call_of(&choice),
        finish: choice.finish.name(),
        prompt_tokens: prompt_tokens(&ask, config, &start),
        completion_tokens: choice.items.len() as u64,
    })
}

/// The tool call of a choice, as far as it has come.
pub(super) fn call_of(choice: &Choice) -> Option<(String, String)> {
    let name = choice.items.iter().find_map(|item| match item {
        Item::Call(name) => Some(name.clone()),
        _ => None,
    })?;
    let pieces = choice.items.iter().filter_map(|item| match item {
        Item::Arguments(piece) => Some(*piece),
        _ => None,
    });
    Some((name, pieces.collect()))
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

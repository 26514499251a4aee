//! Where an answer is cut.

use super::judge::fold;
use crate::proto::certificate::State;
use crate::proto::chat::{self, Parsed, Partial, Phase};

/// A place between two events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// So many events have come.
    pub(super) events: usize,
    /// What the cut is in.
    pub(super) state: State,
}

/// What an event brings.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Brings {
    Reasoning(String),
    Content(String),
    Call,
    /// Tokens, and no text of them yet.
    Silence,
    /// Thinking and answer at once, or nothing at all.
    Other,
}

impl Brings {
    fn of(data: &[u8]) -> Self {
        let Ok(Parsed::Chunk(chunk)) = chat::parse(data) else { return Self::Other };
        let [choice] = &chunk.choices[..] else { return Self::Other };
        let text = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().unwrap_or_default().to_owned();
        let (reasoning, content) = (text(&choice.reasoning), text(&choice.content));
        let listed = choice.token_ids.as_ref().is_some_and(|ids| ids.count() > 0);
        match (reasoning.is_empty(), content.is_empty()) {
            _ if !choice.tool_calls.is_empty() => Self::Call,
            (false, true) => Self::Reasoning(reasoning),
            (true, false) => Self::Content(content),
            (true, true) if listed && choice.finish_reason.is_none() => Self::Silence,
            _ => Self::Other,
        }
    }

    fn says(&self) -> bool {
        !matches!(self, Self::Silence)
    }
}

/// All places of an answer where a cut can be made and something is to be continued, with their states.
pub(super) fn points(events: &[Vec<u8>], thinking_off: bool) -> Vec<Point> {
    let brings: Vec<Brings> = events.iter().map(|data| Brings::of(data)).collect();
    let mut partial = Partial::new(1);
    let mut found = Vec::new();
    for (at, data) in events.iter().enumerate() {
        let began = partial.phase() == Phase::Content;
        fold(&mut partial, data);
        if partial.is_finished() {
            break;
        }
        if partial.only_white_space().is_some() {
            continue; // nothing to go on from: the request is sent again
        }
        let next = brings[at + 1..].iter().find(|next| next.says());
        if let Some(state) = state_of(&partial, &brings[at], next, began) {
            let off = thinking_off && state == State::Content;
            found.push(Point { events: at + 1, state: if off { State::ThinkingOff } else { state } });
        }
    }
    found
}

/// The state behind an event, where it is one of those that are tried; `began`: the answer had begun before the event.
fn state_of(partial: &Partial, event: &Brings, next: Option<&Brings>, began: bool) -> Option<State> {
    if partial.has_tool_call() {
        return Some(State::BehindToolName);
    }
    let thinking = partial.phase() == Phase::Thinking;
    let thought = partial.first().is_some_and(|choice| !choice.reasoning.is_empty());
    match (event, next) {
        (Brings::Silence, Some(Brings::Call)) => Some(State::BeforeToolName),
        (_, Some(Brings::Content(_))) if thinking => Some(State::Step),
        (Brings::Silence, Some(Brings::Reasoning(text) | Brings::Content(text))) => {
            // A blank before it may be part of the same token.
            text.trim_start().starts_with(|first: char| !first.is_ascii()).then_some(State::InsideCharacter)
        }
        (Brings::Content(_), _) if !began && thought => Some(State::Step),
        (Brings::Reasoning(text), Some(Brings::Reasoning(next)))
        | (Brings::Content(text), Some(Brings::Content(next)))
            if splits_word(text, next) =>
        {
            Some(State::InsideWord)
        }
        (Brings::Reasoning(_), _) => Some(State::Thinking),
        (Brings::Content(_), _) => Some(State::Content),
        _ => None,
    }
}

fn splits_word(before: &str, after: &str) -> bool {
    // In scripts without blanks every character is a word.
    let letter = |c: char| c.is_alphanumeric() && c < '\u{2e80}';
    before.ends_with(letter) && after.starts_with(letter)
}

/// `count` of them, evenly spread, the first and the last among them.
pub(super) fn choose<T: Copy>(all: Vec<T>, count: usize) -> Vec<T> {
    match (all.len(), count) {
        (len, count) if len <= count => all,
        (len, 1) => vec![all[len / 2]],
        (len, count) => (0..count).map(|nth| all[nth * (len - 1) / (count - 1)]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(delta: &str, ids: &str) -> Vec<u8> {
        format!(r#"{{"id":"c","model":"m","choices":[{{"index":0,"delta":{delta},"finish_reason":null,"token_ids":{ids}}}]}}"#)
            .into_bytes()
    }

    fn states(events: &[Vec<u8>], off: bool) -> Vec<(usize, State)> {
        points(events, off).into_iter().map(|point| (point.events, point.state)).collect()
    }

    #[test]
    fn every_state_is_found_where_it_is() {
        let text = |kind: &str, text: &str| event(&format!(r#"{{"{kind}":"{text}"}}"#), "[1]");
        let silence = || event("{}", "[2]");
        let events = vec![
            event(r#"{"role":"assistant","content":""}"#, "null"),
            text("reasoning", "So"),
            text("reasoning", " a st"),
            text("reasoning", "ory"),
            silence(),
            text("content", "\\n\\n"),
            text("content", "The"),
            silence(),
            text("content", " 🌊"),
            text("content", " end"),
            silence(),
            event(
                r#"{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}"#,
                "[3]",
            ),
            event(r#"{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}"#, "[4]"),
        ];
        assert_eq!(
            states(&events, false),
            [
                (2, State::Thinking),
                (3, State::InsideWord),
                (4, State::Step),
                (5, State::Step),
                (6, State::Step),
                (7, State::Content),
                (8, State::InsideCharacter),
                (9, State::Content),
                (10, State::Content),
                (11, State::BeforeToolName),
                (12, State::BehindToolName),
                (13, State::BehindToolName),
            ]
        );
    }

    #[test]
    fn with_thinking_off_content_is_a_state_of_its_own_and_blanks_alone_are_none() {
        let events = vec![event(r#"{"content":" "}"#, "null"), event(r#"{"content":"1, "}"#, "null")];
        assert_eq!(states(&events, true), [(2, State::ThinkingOff)]);
    }

    #[test]
    fn an_answer_that_has_its_finish_reason_is_not_cut() {
        let end = r#"{"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop"}]}"#;
        let events = vec![event(r#"{"content":"Yes"}"#, "null"), end.as_bytes().to_vec()];
        assert_eq!(states(&events, false), [(1, State::Content)]);
    }

    #[test]
    fn what_is_chosen_is_spread_over_all() {
        assert_eq!(choose((0..9).collect(), 5), [0, 2, 4, 6, 8]);
        assert_eq!(choose((0..9).collect(), 1), [4]);
        assert_eq!(choose(vec![7, 8], 5), [7, 8]);
    }
}

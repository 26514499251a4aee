//! What the client has, and what of a derendered delta is new to it.

use super::Broken;
use crate::proto::chat::{Choice, ChunkChoice};

/// What one derender call made of its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Delta {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<Call>,
}

/// A piece of a tool call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Call {
    pub(super) index: u32,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) arguments: String,
}

impl Delta {
    pub(super) fn of(choice: &ChunkChoice<'_>) -> Self {
        let text = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().unwrap_or_default().to_owned();
        let own = |text: &Option<std::borrow::Cow<'_, str>>| text.as_deref().map(str::to_owned);
        let calls = choice.tool_calls.iter().map(|call| Call {
            index: call.index,
            id: own(&call.id),
            name: own(&call.name),
            arguments: text(&call.arguments),
        });
        Self { reasoning: text(&choice.reasoning), content: text(&choice.content), calls: calls.collect() }
    }

    /// Whether there is thinking, and whether there is anything else.
    pub(super) fn kinds(&self) -> (bool, bool) {
        (!self.reasoning.is_empty(), !self.content.is_empty() || !self.calls.is_empty())
    }
}

/// Something new, an event of its own.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Reasoning(String),
    Content(String),
    Call(Call),
}

/// What the client has and no derendered token has accounted for yet.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seen {
    reasoning: String,
    content: String,
    calls: Vec<SeenCall>,
    /// The answer has begun for the client: thinking that comes now would come too late.
    answering: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct SeenCall {
    index: u32,
    /// Until a derendered delta has named it.
    name: Option<String>,
    arguments: String,
}

impl Seen {
    pub(super) fn of(choice: &Choice) -> Self {
        let calls = choice.tool_calls.iter().map(|call| SeenCall {
            index: call.index,
            name: call.name.clone(),
            arguments: call.arguments.clone(),
        });
        Self {
            reasoning: choice.reasoning.clone(),
            content: choice.content.clone(),
            calls: calls.collect(),
            answering: !choice.answer().is_empty() || !choice.tool_calls.is_empty(),
        }
    }

    /// Thinking and answer, as long as nothing has been taken.
    pub(super) fn texts(&self) -> (&str, &str) {
        (&self.reasoning, &self.content)
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.texts_are_caught_up() && self.calls.is_empty()
    }

    /// Whether all text that the client has was derendered again. (Arguments may follow: some parsers name a call first and bring
    /// what it has of arguments with the next token.)
    pub(super) fn texts_are_caught_up(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty()
    }

    /// Takes from `delta` what the client has, and returns the rest in the order of an answer.
    ///
    /// # Errors
    /// The delta says something else than what the client has.
    pub(super) fn take(&mut self, delta: &Delta) -> Result<Vec<Piece>, Broken> {
        let mut pieces = Vec::new();
        let reasoning = take(&mut self.reasoning, &delta.reasoning)?;
        if !reasoning.is_empty() {
            if self.answering {
                return Err(Broken::Differs);
            }
            pieces.push(Piece::Reasoning(reasoning.to_owned()));
        }
        let content = take(&mut self.content, &delta.content)?;
        if !content.is_empty() {
            if !self.reasoning.is_empty() {
                return Err(Broken::Differs);
            }
            pieces.push(Piece::Content(content.to_owned()));
        }
        for call in &delta.calls {
            pieces.extend(self.take_call(call)?.map(Piece::Call));
        }
        Ok(pieces)
    }

    /// The part of a tool call's piece that the client has not.
    fn take_call(&mut self, call: &Call) -> Result<Option<Call>, Broken> {
        let Some(seen) = self.calls.iter_mut().find(|seen| seen.index == call.index) else {
            return if self.texts_are_caught_up() { Ok(Some(call.clone())) } else { Err(Broken::Differs) };
        };
        // Named again under its own id: the client has both.
        let name = match (&seen.name, &call.name) {
            (Some(seen), Some(name)) if seen != name => return Err(Broken::Differs),
            (Some(_), _) => None,
            (None, name) => name.clone(),
        };
        let arguments = take(&mut seen.arguments, &call.arguments)?;
        let new = Call { index: call.index, id: None, name, arguments: arguments.to_owned() };
        Ok((new.name.is_some() || !new.arguments.is_empty()).then_some(new))
    }
}

/// The part of `text` that is not in `seen`, which loses the part that is.
fn take<'t>(seen: &mut String, text: &'t str) -> Result<&'t str, Broken> {
    if let Some(new) = text.strip_prefix(seen.as_str()) {
        seen.clear();
        return Ok(new);
    }
    if seen.starts_with(text) {
        seen.drain(..text.len());
        return Ok("");
    }
    Err(Broken::Differs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen(reasoning: &str, content: &str) -> Seen {
        let mut choice = Choice::default();
        choice.reasoning.push_str(reasoning);
        choice.content.push_str(content);
        Seen::of(&choice)
    }

    fn delta(reasoning: &str, content: &str) -> Delta {
        Delta { reasoning: reasoning.to_owned(), content: content.to_owned(), calls: Vec::new() }
    }

    proptest! {
        #[test]
        fn whatever_the_client_has_and_however_it_is_cut_nothing_comes_twice_and_nothing_is_missing(
            reasoning in "[ab\u{e9}]{0,12}", content in "[ab\u{e9}]{0,12}", at in 0usize..24, cuts in proptest::collection::vec(0usize..24, 0..4)
        ) {
            let all: Vec<(bool, char)> = reasoning.chars().map(|c| (true, c)).chain(content.chars().map(|c| (false, c))).collect();
            let text = |part: &[(bool, char)], thought: bool| part.iter().filter(|(kind, _)| *kind == thought).map(|(_, c)| *c).collect::<String>();
            let at = at.min(all.len());
            let mut seen = seen(&text(&all[..at], true), &text(&all[..at], false));
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(all.len())).chain([0, all.len()]).collect();
            cuts.sort_unstable();
            let mut got = delta(&text(&all[..at], true), &text(&all[..at], false));
            for pair in cuts.windows(2) {
                let part = &all[pair[0]..pair[1]];
                for piece in seen.take(&delta(&text(part, true), &text(part, false))).unwrap() {
                    match piece {
                        Piece::Reasoning(text) => got.reasoning.push_str(&text),
                        Piece::Content(text) => got.content.push_str(&text),
                        Piece::Call(call) => panic!("{call:?}"),
                    }
                }
            }
            prop_assert_eq!(got, delta(&reasoning, &content));
            prop_assert!(seen.texts_are_caught_up());
        }
    }

    #[test]
    fn text_that_the_client_does_not_have_is_told() {
        assert_eq!(seen("abc", "").take(&delta("abd", "")), Err(Broken::Differs));
        assert_eq!(seen("abc", "x").take(&delta("abc", "y")), Err(Broken::Differs));
        assert_eq!(
            seen("abc", "x").take(&delta("abcd", "x")),
            Err(Broken::Differs),
            "thinking behind the answer's start"
        );
        assert_eq!(
            seen("abc", "").take(&delta("ab", "y")),
            Err(Broken::Differs),
            "an answer before the end of thinking"
        );
    }

    #[test]
    fn a_tool_call_goes_on_under_its_own_index_and_is_not_named_again() {
        let mut choice = Choice::default();
        choice.tool_calls.push(crate::proto::chat::ToolCall {
            index: 0,
            id: Some("call-1".to_owned()),
            name: Some("look".to_owned()),
            arguments: r#"{"a"#.to_owned(),
        });
        let call = |index, id: Option<&str>, name: Option<&str>, arguments: &str| Call {
            index,
            id: id.map(str::to_owned),
            name: name.map(str::to_owned),
            arguments: arguments.to_owned(),
        };
        let mut seen = Seen::of(&choice);
        let pieces = seen.take(&Delta {
            calls: vec![
                call(0, Some("call-1"), Some("look"), ""),
                call(0, None, None, r#"{"a":1}"#),
                call(1, Some("n"), Some("m"), ""),
            ],
            ..Delta::default()
        });
        let new = vec![Piece::Call(call(0, None, None, r#"":1}"#)), Piece::Call(call(1, Some("n"), Some("m"), ""))];
        assert_eq!(pieces, Ok(new));
        let other = Delta { calls: vec![call(0, None, Some("hear"), "")], ..Delta::default() };
        assert_eq!(Seen::of(&choice).take(&other), Err(Broken::Differs));
    }
}

//! What became of a continuation, compared with the answer that was not cut.

use crate::proto::certificate::Verdict;
use crate::proto::chat::{self, Parsed, Partial, Phase};
use crate::proto::record::Seal;
use crate::proto::relay::{Cause, Note, Refusal};

/// So many characters of thinking, found in the answer, are thinking that was put there.
const TELLING: usize = 16;

/// Characters around a difference that a report shows.
const SHOWN: usize = 24;

/// Characters of an engine's words that a report shows.
const WORDS: usize = 200;

/// An answer as the client has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    reasoning: String,
    content: String,
    /// Name and arguments: ids are drawn anew for each answer.
    calls: Vec<(String, String)>,
    finish: Option<String>,
    /// Prompt, generated and thinking tokens.
    usage: Option<(u64, u64, Option<u64>)>,
}

/// Adds an event's data; what is no chunk adds nothing.
pub(super) fn fold(partial: &mut Partial, data: &[u8]) {
    if let Ok(Parsed::Chunk(chunk)) = chat::parse(data) {
        partial.fold(&chunk);
    }
}

impl Answer {
    /// What these events' data come to.
    pub(super) fn of<'a>(events: impl IntoIterator<Item = &'a Vec<u8>>) -> Self {
        let mut partial = Partial::new(1);
        events.into_iter().for_each(|data| fold(&mut partial, data));
        let usage = partial.usage.as_ref();
        let usage = usage.map(|usage| (usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens));
        let Some(choice) = partial.first() else { return Self { usage, ..Self::default() } };
        let calls = choice.tool_calls.iter();
        Self {
            reasoning: choice.reasoning.clone(),
            content: choice.content.clone(),
            calls: calls.map(|call| (call.name.clone().unwrap_or_default(), call.arguments.clone())).collect(),
            finish: choice.finish.as_ref().map(|finish| finish.name().to_owned()),
            usage,
        }
    }

    pub(super) fn finish(&self) -> Option<&str> {
        self.finish.as_deref()
    }

    pub(super) fn tokens(&self) -> Option<u64> {
        self.usage.map(|(_, generated, _)| generated)
    }

    pub(super) fn has_thinking(&self) -> bool {
        !self.reasoning.is_empty()
    }

    /// Its lengths, for a line of progress.
    pub(super) fn in_short(&self) -> String {
        let (thinking, content) = (self.reasoning.chars().count(), self.content.chars().count());
        let finish = self.finish().unwrap_or("no finish reason");
        let tokens = self.tokens().map_or("tokens not counted".to_owned(), |tokens| format!("{tokens} tokens"));
        let calls = if self.calls.is_empty() { "" } else { ", a tool call" };
        format!("{thinking} characters of thinking, {content} of content{calls}, {tokens}, {finish}")
    }

    fn has_same_texts(&self, other: &Self) -> bool {
        (&self.reasoning, &self.content, &self.calls) == (&other.reasoning, &other.content, &other.calls)
    }
}

/// Judges a whole answer. `cut`: what the client had before; `marks`: those around the family's thinking.
pub(super) fn judge(
    uncut: &Answer,
    cut: &Partial,
    got: &Answer,
    marks: Option<&(String, String)>,
) -> (Verdict, Option<String>) {
    if got == uncut {
        return (Verdict::Exact, None);
    }
    if got.has_same_texts(uncut) {
        let why = match got.finish == uncut.finish {
            true => format!("usage {} instead of {}", counts(got), counts(uncut)),
            false => format!("finish reason {:?} instead of {:?}", got.finish(), uncut.finish()),
        };
        return (Verdict::SameText, Some(why));
    }
    match leak(uncut, cut, got, marks) {
        Some(what) => (Verdict::Leaks, Some(what)),
        None => (Verdict::Different, Some(difference(uncut, got))),
    }
}

fn counts(answer: &Answer) -> String {
    match answer.usage {
        None => "none".to_owned(),
        Some((prompt, generated, None)) => format!("{prompt}+{generated}"),
        Some((prompt, generated, Some(thinking))) => format!("{prompt}+{generated} ({thinking} thinking)"),
    }
}

/// Thinking in the answer, the answer in thinking, or a mark in either.
fn leak(uncut: &Answer, cut: &Partial, got: &Answer, marks: Option<&(String, String)>) -> Option<String> {
    let has_mark =
        |text: &str| marks.is_some_and(|(open, close)| text.contains(open.trim()) || text.contains(close.trim()));
    for (text, own, what) in
        [(&got.content, &uncut.content, "the answer"), (&got.reasoning, &uncut.reasoning, "thinking")]
    {
        if has_mark(text) && !has_mark(own) {
            return Some(format!("a mark of thinking as text in {what}"));
        }
    }
    if cut.phase() == Phase::Content && got.reasoning != uncut.reasoning {
        return Some("the answer goes on as thinking".to_owned());
    }
    let strays = |from: &str, own: &str, into: &str| {
        let piece =
            pieces(from).into_iter().find(|piece| into.contains(piece.as_str()) && !own.contains(piece.as_str()));
        piece.map(|piece| format!("{piece:?}"))
    };
    if let Some(piece) = strays(&uncut.reasoning, &uncut.content, &got.content) {
        return Some(format!("thinking in the answer: {piece}"));
    }
    strays(&uncut.content, &uncut.reasoning, &got.reasoning).map(|piece| format!("the answer in thinking: {piece}"))
}

/// Pieces of a text that are long enough to be known again.
fn pieces(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(TELLING).filter(|piece| piece.len() == TELLING).map(|piece| piece.iter().collect()).collect()
}

/// Where the first text that differs begins to.
fn difference(uncut: &Answer, got: &Answer) -> String {
    let texts = [("thinking", &uncut.reasoning, &got.reasoning), ("content", &uncut.content, &got.content)];
    let Some((name, own, other)) = texts.into_iter().find(|(_, own, other)| own != other) else {
        return format!("tool calls: {:?} instead of {:?}", got.calls, uncut.calls);
    };
    let at = own.chars().zip(other.chars()).take_while(|(own, other)| own == other).count();
    let shown = |text: &str| text.chars().skip(at).take(SHOWN).collect::<String>();
    format!("{name} from character {at} on: {:?} instead of {:?}", shown(other), shown(own))
}

/// Why an answer did not come to its end: a code, and words where there are any.
pub(super) fn refusal(notes: &[Note], seal: Option<&Seal>) -> String {
    let failed = notes.iter().rev().find_map(|note| match note {
        Note::Cut { leg, cause, .. } if *leg > 1 => Some(cause),
        _ => None,
    });
    let refused = notes.iter().rev().find_map(|note| match note {
        Note::NotContinued { why } => Some(*why),
        _ => None,
    });
    match (failed, refused, seal) {
        (Some(Cause::Refused(Refusal::Status { status, body })), ..) => format!("refused: {status} {}", words(body)),
        (Some(Cause::Refused(Refusal::Unreachable(why))), ..) => format!("unreachable: {why}"),
        (Some(cause), ..) => format!("{}: {cause}", cause.code()),
        (None, Some(why), _) => why.to_owned(),
        (None, None, Some(Seal::Incomplete { reason, message })) => format!("{reason}: {message}"),
        (None, None, _) => "no end".to_owned(),
    }
}

/// An engine's words out of the body of a refusal, on one line.
pub(super) fn words(body: &str) -> String {
    let message = serde_json::from_str::<serde_json::Value>(body).ok().and_then(|body| {
        let message = body.pointer("/error/message").or_else(|| body.get("message")).or_else(|| body.get("detail"));
        message.and_then(|message| message.as_str().map(str::to_owned))
    });
    let text = message.unwrap_or_else(|| body.to_owned());
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(WORDS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(reasoning: &str, content: &str) -> Answer {
        Answer {
            reasoning: reasoning.to_owned(),
            content: content.to_owned(),
            finish: Some("stop".to_owned()),
            usage: Some((9, 5, Some(2))),
            ..Answer::default()
        }
    }

    fn partial(delta: &str) -> Partial {
        let mut partial = Partial::new(1);
        let data =
            format!(r#"{{"id":"c","model":"m","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#);
        fold(&mut partial, data.as_bytes());
        partial
    }

    fn verdict(got: &Answer, cut: &str) -> Verdict {
        let uncut = answer("The user wants a story of a lighthouse.", "There was a lighthouse.");
        judge(&uncut, &partial(cut), got, Some(&("<think>\n".to_owned(), "\n</think>".to_owned()))).0
    }

    const THINKING: &str = r#"{"reasoning":"The user"}"#;
    const ANSWERING: &str = r#"{"reasoning":"The user wants a story of a lighthouse.","content":"There"}"#;

    #[test]
    fn an_answer_is_exact_in_text_finish_and_usage_or_less() {
        let whole = answer("The user wants a story of a lighthouse.", "There was a lighthouse.");
        assert_eq!(verdict(&whole, THINKING), Verdict::Exact);
        let counted = Answer { usage: Some((9, 6, Some(2))), ..whole.clone() };
        assert_eq!(verdict(&counted, THINKING), Verdict::SameText);
        let cut = Answer { finish: Some("length".to_owned()), ..whole };
        assert_eq!(verdict(&cut, ANSWERING), Verdict::SameText);
        let other = answer("The user wants a story of a lighthouse.", "There were two.");
        assert_eq!(verdict(&other, ANSWERING), Verdict::Different);
    }

    #[test]
    fn thinking_and_answer_in_each_others_place_are_leaks() {
        for (reasoning, content, cut) in [
            ("The user", "</think>There was a lighthouse.", THINKING),
            ("The user", " wants a story of a lighthouse.", THINKING),
            ("The user wants a story of a lighthouse.There was a lighthouse.", "", THINKING),
            ("The user wants a story of a lighthouse. was", "There", ANSWERING),
        ] {
            assert_eq!(verdict(&answer(reasoning, content), cut), Verdict::Leaks, "{reasoning} | {content}");
        }
        // Thinking that was given up for an answer is another answer.
        assert_eq!(verdict(&answer("The user", "Once there was a fox."), THINKING), Verdict::Different);
    }

    #[test]
    fn a_refusal_is_told_in_the_words_of_who_refused() {
        let cut = |leg, cause| Note::Cut { leg, attempt: 1, plan: "chat-continue", empty: true, cause };
        let body = r#"{"error":{"message":"Cannot set both\nflags.","code":400}}"#.to_owned();
        let notes = [cut(1, Cause::Reset), cut(2, Cause::Refused(Refusal::Status { status: 400, body }))];
        assert_eq!(refusal(&notes, None), "refused: 400 Cannot set both flags.");
        let notes = [cut(1, Cause::Reset), Note::NotContinued { why: "thinking_closes" }];
        assert_eq!(refusal(&notes, None), "thinking_closes");
        let notes = [cut(2, Cause::NoEcho), Note::NotContinued { why: "not_here" }];
        assert_eq!(refusal(&notes, None).split_once(':').map(|(code, _)| code), Some("no_echo"));
    }
}

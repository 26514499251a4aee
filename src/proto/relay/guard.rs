//! Guards around continuing: a fault of our own in it, and an engine that begins the answer anew instead of going on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::proto::chat::{Chunk, Partial, Phase};

/// Characters of the answer's beginning that a continuation may repeat before it is taken for a new beginning.
const REPEATED: usize = 32;

/// A text shorter than this, in characters, has no beginning that could be told from its continuation.
const SHORTEST: usize = 16;

/// Runs code that only continuations need. A panic in it becomes an `Err` with `place`, so that what was delivered stays as it
/// is and the stream ends as it would have without Baton.
pub(super) fn guarded<T>(place: &'static str, work: impl FnOnce() -> T) -> Result<T, &'static str> {
    catch_unwind(AssertUnwindSafe(|| {
        #[cfg(test)]
        tests::fail_if_told(place);
        work()
    }))
    .map_err(|_| place)
}

/// A continuation's first text, held against the beginning of the answer.
///
/// An engine that ignores `continue_final_message` answers the question once more, which no status and no field tells
/// (vllm#46256). Its events are held back for as long as they repeat the answer's beginning; an ordinary continuation differs
/// in its first character and loses no time.
#[derive(Debug)]
pub(super) struct Probation {
    /// How the answer may begin anew: the beginnings of its text and, where the answer has begun, of its thinking, which an engine
    /// may take for content. Without white space at their start; only those that can be told from what follows them.
    beginnings: Vec<String>,
    /// The answer has begun, so that thinking would be thinking anew.
    answering: bool,
    /// What has been repeated so far.
    repeated: String,
    /// The events held back.
    pub(super) held: Vec<(Option<String>, Vec<u8>)>,
}

/// What a piece of a continuation is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The rest of the answer, or nothing that speaks against it.
    GoesOn,
    /// So far the same as the answer's beginning.
    Repeats,
    /// The answer once more.
    Restarted,
}

impl Probation {
    /// For a leg that continues `partial`.
    pub(super) fn new(partial: &Partial) -> Self {
        let answering = partial.phase() == Phase::Content;
        let first = partial.first();
        let reasoning = first.map_or("", |choice| &choice.reasoning);
        let content = first.map_or("", |choice| &choice.content).trim_start();
        let texts = [content, reasoning.trim_start()];
        let beginnings = texts.into_iter().filter_map(beginning).collect();
        Probation { beginnings, answering, repeated: String::new(), held: Vec::new() }
    }

    /// Judges the next chunk, in its final form.
    pub(super) fn judge(&mut self, chunk: &Chunk<'_>) -> Verdict {
        for choice in &chunk.choices {
            let reasoning = choice.reasoning.as_deref().unwrap_or_default();
            if self.answering && !reasoning.is_empty() {
                return Verdict::Restarted;
            }
            let text = if self.answering { choice.content.as_deref().unwrap_or_default() } else { reasoning };
            self.repeated.push_str(if self.repeated.is_empty() { text.trim_start() } else { text });
            if choice.finish_reason.is_some() || !choice.tool_calls.is_empty() {
                return Verdict::GoesOn;
            }
        }
        let repeated = &*self.repeated;
        if self.beginnings.iter().any(|beginning| repeated.starts_with(&**beginning)) {
            Verdict::Restarted
        } else if !repeated.is_empty() && self.beginnings.iter().any(|beginning| beginning.starts_with(repeated)) {
            Verdict::Repeats
        } else {
            Verdict::GoesOn
        }
    }

    /// Nothing of the answer has come yet, so the leg stays on probation.
    pub(super) fn is_silent(&self) -> bool {
        self.repeated.is_empty()
    }
}

/// The first characters of a text, if they are enough and do not come again in it: a text that repeats its own beginning may do
/// so once more.
fn beginning(text: &str) -> Option<String> {
    let beginning: String = text.chars().take(REPEATED).collect();
    let second = text.chars().next().map_or(0, char::len_utf8);
    let tells = beginning.chars().count() >= SHORTEST && !text[second..].contains(&*beginning);
    tells.then_some(beginning)
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::proto::chat::{self, Parsed};

    thread_local! {
        static PLACE: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// From now on, guarded code at this place panics on this thread.
    pub(in crate::proto::relay) fn fail_at(place: Option<&'static str>) {
        PLACE.set(place);
    }

    pub(super) fn fail_if_told(place: &'static str) {
        assert_ne!(PLACE.get(), Some(place), "told to fail");
    }

    fn chunk(delta: &str) -> String {
        format!(r#"{{"id":"c","model":"m","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#)
    }

    fn probation(partial: &str) -> Probation {
        let mut folded = Partial::new(1);
        let data = chunk(partial);
        let Ok(Parsed::Chunk(chunk)) = chat::parse(data.as_bytes()) else { panic!("{data}") };
        folded.fold(&chunk);
        Probation::new(&folded)
    }

    fn judge(probation: &mut Probation, delta: &str) -> Verdict {
        let data = chunk(delta);
        let Ok(Parsed::Chunk(chunk)) = chat::parse(data.as_bytes()) else { panic!("{data}") };
        probation.judge(&chunk)
    }

    const ANSWER: &str = r#"{"content":"\n\n长江发源于青藏高原的唐古拉山脉，流经十一个省市自治区，最后注入东海。"}"#;

    #[test]
    fn a_rest_is_let_through_at_once() {
        assert_eq!(judge(&mut probation(ANSWER), r#"{"content":"全长"}"#), Verdict::GoesOn);
    }

    #[test]
    fn a_beginning_repeated_piece_by_piece_is_a_restart() {
        let mut probation = probation(ANSWER);
        assert_eq!(judge(&mut probation, r#"{"role":"assistant","content":""}"#), Verdict::GoesOn);
        assert!(probation.is_silent());
        assert_eq!(judge(&mut probation, r#"{"content":" 长江发源于青藏高原的"}"#), Verdict::Repeats);
        assert_eq!(judge(&mut probation, r#"{"content":"唐古拉山脉，流经十一个省"}"#), Verdict::Repeats);
        assert_eq!(judge(&mut probation, r#"{"content":"市自治区，最后注入东海。"}"#), Verdict::Restarted);
    }

    #[test]
    fn a_few_words_that_are_those_of_the_beginning_are_none() {
        let mut probation = probation(ANSWER);
        assert_eq!(judge(&mut probation, r#"{"content":"长江发源"}"#), Verdict::Repeats);
        assert_eq!(judge(&mut probation, r#"{"content":"地"}"#), Verdict::GoesOn);
    }

    #[test]
    fn thinking_after_the_answer_has_begun_is_a_restart() {
        assert_eq!(judge(&mut probation(ANSWER), r#"{"reasoning":"Okay"}"#), Verdict::Restarted);
        assert_eq!(judge(&mut probation(r#"{"reasoning":"Okay"}"#), r#"{"reasoning":", so"}"#), Verdict::GoesOn);
    }

    #[test]
    fn thinking_that_comes_as_content_is_known_by_its_beginning() {
        let mut probation =
            probation(r#"{"reasoning":"Okay, the user wants to know about rivers.","content":"The longest"}"#);
        assert_eq!(judge(&mut probation, r#"{"content":"Okay, the user"}"#), Verdict::Repeats);
        assert_eq!(judge(&mut probation, r#"{"content":" wants to know about rivers."}"#), Verdict::Restarted);
    }

    #[test]
    fn a_text_that_repeats_itself_may_do_so_again() {
        let mut zeros = probation(&format!(r#"{{"content":"{}"}}"#, "0, ".repeat(40)));
        assert_eq!(judge(&mut zeros, &format!(r#"{{"content":"{}"}}"#, "0, ".repeat(40))), Verdict::GoesOn);
        let mut chinese = probation(&format!(r#"{{"content":"{}"}}"#, "哈".repeat(40)));
        assert_eq!(judge(&mut chinese, &format!(r#"{{"content":"{}"}}"#, "哈".repeat(40))), Verdict::GoesOn);
    }

    #[test]
    fn a_short_text_has_no_beginning_to_repeat() {
        assert_eq!(judge(&mut probation(r#"{"content":"Yes, "}"#), r#"{"content":"Yes, yes"}"#), Verdict::GoesOn);
    }

    #[test]
    fn a_panic_becomes_the_name_of_its_place() {
        assert_eq!(guarded("plan", || 7), Ok(7));
        fail_at(Some("plan"));
        assert_eq!(guarded("plan", || 7), Err("plan"));
        assert_eq!(guarded("splice", || 7), Ok(7));
        fail_at(None);
    }
}

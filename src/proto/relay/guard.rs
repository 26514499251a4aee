//! Guards around continuing: a fault of our own in it, and an engine that begins the answer anew instead of going on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::proto::chat::{Chunk, Partial, Phase};

/// Characters of the answer's beginning that a continuation may repeat before it is taken for a new beginning.
const REPEATED: usize = 32;

/// The same for later tries: a refrain ends by then, and an answer that is really begun anew goes on.
const REPEATED_AGAIN: usize = 256;

/// A text shorter than this, in characters, has no beginning that could be told from its continuation.
const SHORTEST: usize = 4;

/// So many first characters are looked at for a period.
const PERIOD_WITHIN: usize = 64;

/// Where so many first characters come again in a text, it repeats itself, and may do so once more.
const RECURS: usize = 8;

/// Most bytes of events held back; an engine that sends more without saying anything is let through.
const MOST_HELD: usize = 64 * 1024;

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
/// in its first character and loses no time. An answer begun anew in other words cannot be told.
#[derive(Debug)]
pub(super) struct Probation {
    /// How the answer may begin anew: the beginnings of its text and of its thinking, which an engine may take for content.
    /// Without white space at their start; only those that can be told from what follows them.
    beginnings: Vec<String>,
    /// The answer has begun, so that thinking would be thinking anew.
    answering: bool,
    /// What has been repeated so far, thinking and text alike.
    repeated: String,
    held: Vec<(Option<String>, Vec<u8>)>,
    held_bytes: usize,
}

/// What a piece of a continuation is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing of the answer yet: a role, usage.
    Silent,
    /// The rest of the answer.
    GoesOn,
    /// So far the same as the answer's beginning.
    Repeats,
    /// The answer once more.
    Restarted,
}

impl Probation {
    /// For this try of a leg that continues `partial`.
    pub(super) fn new(partial: &Partial, attempt: u32) -> Self {
        let first = partial.first();
        let reasoning = first.map_or("", |choice| &choice.reasoning);
        let content = first.map_or("", |choice| &choice.content);
        let length = if attempt > 1 { REPEATED_AGAIN } else { REPEATED };
        Probation {
            beginnings: [content, reasoning].into_iter().filter_map(|text| beginning(text, length)).collect(),
            answering: partial.phase() == Phase::Content,
            repeated: String::new(),
            held: Vec::new(),
            held_bytes: 0,
        }
    }

    /// Judges the next chunk, in its final form.
    pub(super) fn judge(&mut self, chunk: &Chunk<'_>) -> Verdict {
        let mut ends = self.held_bytes > MOST_HELD;
        for choice in &chunk.choices {
            let reasoning = choice.reasoning.as_deref().unwrap_or_default();
            if self.answering && !reasoning.is_empty() {
                return Verdict::Restarted;
            }
            for text in [reasoning, choice.content.as_deref().unwrap_or_default()] {
                self.repeated.push_str(if self.repeated.is_empty() { text.trim_start() } else { text });
            }
            ends |= choice.finish_reason.is_some() || !choice.tool_calls.is_empty();
        }
        let repeated = &*self.repeated;
        if self.beginnings.iter().any(|beginning| repeated.starts_with(&**beginning)) {
            Verdict::Restarted
        } else if !ends && repeated.is_empty() {
            Verdict::Silent
        } else if !ends && self.beginnings.iter().any(|beginning| beginning.starts_with(repeated)) {
            Verdict::Repeats
        } else {
            Verdict::GoesOn
        }
    }

    /// Holds an event back, in its final form.
    pub(super) fn hold(&mut self, event: Option<&str>, data: &[u8]) {
        self.held_bytes += data.len();
        self.held.push((event.map(str::to_owned), data.to_vec()));
    }

    /// Something of an answer is held back.
    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// The events held back, in their order.
    pub(super) fn into_held(self) -> Vec<(Option<String>, Vec<u8>)> {
        self.held
    }
}

/// The first `length` characters of a text, if they can be told from what follows them.
fn beginning(text: &str, length: usize) -> Option<String> {
    let text = text.trim_start();
    let first = |count: usize| text.char_indices().nth(count).map_or(text, |(at, _)| &text[..at]);
    let second = text.chars().next().map_or(0, char::len_utf8);
    let tells = text.chars().nth(SHORTEST - 1).is_some()
        && !text[second..].contains(first(RECURS))
        && !is_periodic(first(PERIOD_WITHIN));
    tells.then(|| first(length).to_owned())
}

/// The text is a piece of it over and over, at least twice.
fn is_periodic(text: &str) -> bool {
    let characters: Vec<char> = text.chars().collect();
    let half = characters.len() / 2;
    (1..=half).any(|period| characters.iter().skip(period).eq(characters.iter().take(characters.len() - period)))
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
        Probation::new(&folded, 1)
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
        assert_eq!(judge(&mut probation, r#"{"role":"assistant","content":""}"#), Verdict::Silent);
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
        for (unit, times) in [("0, ", 2), ("0, ", 8), ("ha ", 7), ("哈", 20), ("-", 20), ("| a | b |\\n", 3)] {
            let mut partial = probation(&format!(r#"{{"content":"{}"}}"#, unit.repeat(times)));
            let rest = format!(r#"{{"content":"{}"}}"#, unit.repeat(40));
            assert_eq!(judge(&mut partial, &rest), Verdict::GoesOn, "{unit}");
        }
    }

    #[test]
    fn a_restart_that_comes_with_its_end_is_one_too() {
        let mut probation = probation(r#"{"content":"The longest river of the world is"}"#);
        let whole = r#"{"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"The longest river of the world is the Nile."},"finish_reason":"stop"}]}"#;
        let Ok(Parsed::Chunk(chunk)) = chat::parse(whole.as_bytes()) else { panic!("{whole}") };
        assert_eq!(probation.judge(&chunk), Verdict::Restarted);
    }

    #[test]
    fn thinking_that_is_short_and_then_an_answer_is_no_restart() {
        let mut probation = probation(r#"{"reasoning":"Okay, the user wants to know about rivers."}"#);
        assert_eq!(judge(&mut probation, r#"{"reasoning":"Okay"}"#), Verdict::Repeats);
        assert_eq!(judge(&mut probation, r#"{"content":"The Nile"}"#), Verdict::GoesOn);
    }

    #[test]
    fn thinking_anew_that_comes_as_content_is_a_restart_while_thinking_too() {
        let mut probation = probation(r#"{"reasoning":"Okay, the user wants to know about rivers."}"#);
        let anew = r#"{"content":"Okay, the user wants to know about rivers. So."}"#;
        assert_eq!(judge(&mut probation, anew), Verdict::Restarted);
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut probation = probation(ANSWER);
        assert_eq!(judge(&mut probation, r#"{"content":"长江"}"#), Verdict::Repeats);
        probation.hold(None, &vec![b' '; MOST_HELD + 1]);
        assert_eq!(judge(&mut probation, "{}"), Verdict::GoesOn);
    }

    #[test]
    fn a_refrain_is_let_through_on_the_second_try() {
        let line = "Row, row, row your boat, gently down the stream";
        let mut folded = Partial::new(1);
        let data = chunk(&format!(r#"{{"content":"{line}. Merrily, merrily, life is but a dream.\n"}}"#));
        let Ok(Parsed::Chunk(first)) = chat::parse(data.as_bytes()) else { panic!("{data}") };
        folded.fold(&first);
        let rest = [format!(r#"{{"content":"{line}"}}"#), r#"{"content":", and then ashore"}"#.to_owned()];
        let told = |attempt| {
            let mut probation = Probation::new(&folded, attempt);
            rest.iter().map(|delta| judge(&mut probation, delta)).collect::<Vec<_>>()
        };
        assert_eq!(told(1)[0], Verdict::Restarted);
        assert_eq!(told(2), [Verdict::Repeats, Verdict::GoesOn]);
    }

    #[test]
    fn a_short_text_has_no_beginning_to_repeat() {
        assert_eq!(judge(&mut probation(r#"{"content":"Yes"}"#), r#"{"content":"Yes, yes"}"#), Verdict::GoesOn);
        assert_eq!(judge(&mut probation(r#"{"content":"Yes, "}"#), r#"{"content":"Yes, it is"}"#), Verdict::Restarted);
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

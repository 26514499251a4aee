//! A leg that may repeat the answer's end: the splice takes that out first, and what is left is held against the beginning.

use super::super::guard::{Probation, Verdict};
use crate::proto::chat::{self, ClientUsage, OriginalPrompt, Parsed, Partial, Recovered};
use crate::proto::splice::{LegThinking, Overlap, Seam, Splice};

const ANSWER: &str = "The longest river of the world is the Nile. It is long and wide, and";

fn chunk(name: &str, text: &str) -> String {
    let delta = serde_json::json!({ name: text });
    format!(r#"{{"id":"c","model":"m","choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}"#)
}

/// What a leg's pieces of text are, each after the other, and what of them would be passed on.
fn told(seam: Seam, pieces: &[(&str, &str)]) -> (Vec<Verdict>, String) {
    let mut partial = Partial::new(1);
    let data = chunk("content", ANSWER);
    let Ok(Parsed::Chunk(first)) = chat::parse(data.as_bytes()) else { panic!("{data}") };
    partial.fold(&first);
    let recovered = Recovered { completion_tokens: 1, reasoning_tokens: 0, prompt: OriginalPrompt::Known(1) };
    let head = partial.head.clone().expect("the answer has a head");
    let mut splice = Splice::new(head, None, seam, ClientUsage::default(), recovered);
    let mut probation = Probation::new(&partial, 1);
    let (mut verdicts, mut text) = (Vec::new(), String::new());
    for (name, piece) in pieces {
        let Some(data) = splice.rewrite(chunk(name, piece).as_bytes()).expect("the event is read") else { continue };
        let Ok(Parsed::Chunk(chunk)) = chat::parse(&data) else { panic!("{piece}") };
        verdicts.push(probation.judge(&chunk));
        text.extend(chunk.choices.iter().filter_map(|choice| choice.content.as_deref()));
    }
    (verdicts, text)
}

fn replay() -> Seam {
    Seam { overlap: Some(Overlap::of_end(ANSWER, 16)), thinking: LegThinking::Dropped, ..Seam::default() }
}

#[test]
fn an_end_said_again_is_no_restart() {
    let (verdicts, text) = told(replay(), &[("content", "It is long and"), ("content", " wide, and old.")]);
    assert_eq!((verdicts, &*text), (vec![Verdict::GoesOn], " old."));
}

#[test]
fn a_whole_answer_said_again_and_then_gone_on_with_is_none_either() {
    let whole = format!("{ANSWER} old.");
    let (verdicts, text) = told(replay(), &[("content", &whole)]);
    assert_eq!((verdicts, &*text), (vec![Verdict::GoesOn], " old."));
}

#[test]
fn an_answer_begun_anew_that_ends_otherwise_is_a_restart_before_any_of_it_is_passed_on() {
    let pieces = ["The longest river", " of the world is", " the Amazon."].map(|piece| ("content", piece));
    assert_eq!(told(replay(), &pieces).0, [Verdict::Restarted]);
}

#[test]
fn thinking_anew_is_a_restart_unless_it_is_a_replays() {
    let pieces = [("reasoning", "So, I go on."), ("content", " old.")];
    assert_eq!(told(replay(), &pieces), (vec![Verdict::GoesOn], " old.".to_owned()));
    assert_eq!(told(Seam::default(), &pieces).0[0], Verdict::Restarted);
}

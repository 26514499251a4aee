//! A leg that may repeat the answer's end: the splice takes that out first, and what is left is held against the beginning.

use super::super::guard::{Probation, Verdict};
use super::*;
use crate::proto::chat::{self, ClientUsage, OriginalPrompt, Parsed, Recovered};
use crate::proto::resume::{PlanKind, PlanSet, Settings, Work};
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

/// A bench for an engine and these kinds of plan, with leg 1 cut behind `content`, or while thinking.
fn cut(engine: &str, plans: &[PlanKind], name: &str, piece: &str) -> Bench {
    let plans = plans.iter().copied().collect::<PlanSet>();
    let policy = Policy { resume: Settings { plans, ..Settings::default() }, ..Policy::default() };
    let mut bench = bench_for(REQUEST, policy, "default", engine);
    bench.send(&[&role("one"), &said("one", name, piece)]);
    bench.cut();
    bench
}

fn said(leg: &str, name: &str, text: &str) -> String {
    chunk_of(leg, &serde_json::json!({ name: text }).to_string(), "null")
}

/// What the client sees behind its own leg's two events.
fn behind(bench: &Bench) -> &[String] {
    &bench.log.events[2..]
}

const REPLAY: &[PlanKind] = &[PlanKind::Replay];
const BOTH: &[PlanKind] = &[PlanKind::Prefix, PlanKind::Replay];

#[test]
fn a_replayed_stream_says_once_that_it_is_not_exact_and_repeats_nothing() {
    let mut bench = cut("openai", REPLAY, "content", ANSWER);
    assert_eq!(bench.next_leg().plan, "replay");
    bench.send(&[
        &role("two"),
        &said("two", "reasoning_content", "I go on."),
        &said("two", "content", "It is long and wide,"),
        &said("two", "content", " and very"),
        &said("two", "content", " old"),
        &said("two", "content", "."),
        &finish("two", "stop"),
        "[DONE]",
    ]);
    let mark = r#"],"baton":{"plan":"replay","exact":false}}"#;
    let marked = said("one", "content", " very").strip_suffix("]}").expect("it ends so").to_owned() + mark;
    let rest = [marked, said("one", "content", " old"), said("one", "content", "."), finish("one", "stop")];
    assert_eq!(behind(&bench), rest);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
}

#[test]
fn a_short_rest_that_is_held_back_until_the_end_is_no_empty_answer() {
    let mut bench = cut("openai", REPLAY, "content", ANSWER);
    bench.next_leg();
    bench.send(&[&role("two"), &said("two", "content", " river"), &finish("two", "stop"), "[DONE]"]);
    assert_eq!((bench.content(), &bench.log.seal), (format!("{ANSWER} river"), &Some(Seal::Finished)));
}

#[test]
fn an_answer_begun_anew_fails_its_leg_and_shows_nothing_and_the_next_try_says_it_again() {
    let mut bench = cut("openai", REPLAY, "content", ANSWER);
    bench.next_leg();
    bench.send(&[&role("two"), &said("two", "content", "The longest river of the world is the Amazon.")]);
    assert_eq!(behind(&bench), [] as [&str; 0]);
    assert_eq!(bench.next_leg().attempt, 2);
    bench.send(&[&role("two"), &said("two", "content", " old."), &finish("two", "stop"), "[DONE]"]);
    assert!(behind(&bench)[0].contains(r#""baton":{"plan":"replay","exact":false}"#), "{:?}", behind(&bench));
    assert_eq!(bench.content(), format!("{ANSWER} old."));
}

#[test]
fn thinking_that_comes_again_goes_on_and_other_thinking_makes_way_for_the_answer() {
    for (again, thinking) in [("Weigh it. Then so.", "Weigh it. Then so."), ("Weigh this.", "Weigh it.")] {
        let mut bench = cut("openai", REPLAY, "reasoning_content", "Weigh it.");
        bench.next_leg();
        let events = [said("two", "reasoning_content", again), said("two", "content", "Yes."), finish("two", "stop")];
        bench.send(&[&role("two"), &events[0], &events[1], &events[2], "[DONE]"]);
        let choice = bench.relay.partial().first().expect("there is a choice");
        assert_eq!((&*choice.reasoning, &*choice.content), (thinking, "Yes."), "{again}");
        assert_eq!(bench.log.seal, Some(Seal::Finished));
    }
}

#[test]
fn a_provider_is_asked_in_its_own_way_and_its_refusal_is_no_business_of_the_clients() {
    let mut bench = cut("deepseek", BOTH, "content", ANSWER);
    let start = bench.next_leg_unopened();
    assert_eq!(start.plan, "prefix");
    assert!(matches!(start.work, Work::Request { path: "/beta/chat/completions", .. }));
    bench.refuse(400);
    assert!(bench.notes().contains(&&Note::PlanRefused { kind: PlanKind::Prefix }), "{:?}", bench.notes());
    assert_eq!(bench.next_leg().plan, "replay");
    assert_eq!(behind(&bench), [] as [&str; 0]);
    bench.send(&[&role("two"), &said("two", "content", " old."), &finish("two", "stop"), "[DONE]"]);
    assert_eq!((bench.content(), &bench.log.seal), (format!("{ANSWER} old."), &Some(Seal::Finished)));
}

#[test]
fn a_message_said_again_by_the_provider_is_not_seen_and_the_stream_has_no_mark() {
    for first in [ANSWER, ""] {
        let mut bench = cut("mistral", BOTH, "content", &format!("{ANSWER} "));
        assert_eq!(bench.next_leg().plan, "prefix");
        bench.send(&[&role("two"), &said("two", "content", first), &said("two", "content", " old.")]);
        bench.send(&[&finish("two", "stop"), "[DONE]"]);
        assert_eq!((bench.content(), &bench.log.seal), (format!("{ANSWER} old."), &Some(Seal::Finished)), "{first}");
        assert!(behind(&bench).iter().all(|event| !event.contains("baton")), "{:?}", behind(&bench));
    }
}

#[test]
fn a_replay_is_made_only_where_it_is_named() {
    let mut bench = bench_for(REQUEST, Policy::default(), "default", "openai");
    bench.send(&[&role("one"), &said("one", "content", ANSWER)]);
    bench.cut();
    assert_eq!(bench.starts(), []);
    assert!(matches!(bench.log.seal, Some(Seal::Incomplete { .. })));
}

#[test]
fn a_prefix_that_is_refused_is_remembered_unless_it_was_this_ones_length() {
    let words = r#"{"error":{"message":"maximum context length is 8192 tokens","type":"BadRequestError","code":400}}"#;
    let refused = |body: &str| Refusal::Status { status: 400, body: body.to_owned() };
    for (refusal, event, remembered) in [
        (Some(refused("no such role")), None, true),
        (Some(refused(words)), None, false),
        (None, Some(words), false),
        (None, Some(r#"{"error":{"message":"the last message must be a user's","code":400}}"#), false),
    ] {
        let mut bench = cut("mistral", &[PlanKind::Prefix], "content", ANSWER);
        assert_eq!(bench.next_leg_unopened().plan, "prefix");
        match (refusal, event) {
            (Some(refusal), _) => {
                bench.relay.handle_refused(bench.now, refusal, &mut bench.log);
                bench.act();
            }
            (None, event) => {
                bench.opened();
                bench.send(&[event.unwrap_or_default()]);
            }
        }
        let barred = bench.actions.contains(&Action::Note(Note::PlanRefused { kind: PlanKind::Prefix }));
        assert_eq!(barred, remembered, "{event:?}");
        assert_eq!(bench.reason(), "reset", "what the client hears of is why the answer was cut");
    }
}

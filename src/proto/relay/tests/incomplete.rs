use super::*;
use crate::proto::record::MirroredEnd;

fn off(on_incomplete: OnIncomplete) -> Policy {
    Policy { continuation: Continuation::Off, on_incomplete, max_event: 1_000, ..Policy::default() }
}

#[test]
fn an_incomplete_stream_says_so_in_words_that_help() {
    let mut bench = bench(REQUEST, off(OnIncomplete::Error));
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.cut();
    let Some(Seal::Incomplete { message, .. }) = &bench.log.seal else { panic!("{:?}", bench.log.seal) };
    assert!(message.contains("incomplete") && message.contains("reset") && message.contains("again"), "{message}");
}

#[test]
fn every_kind_of_failure_that_cannot_be_continued_ends_as_incomplete() {
    for (name, fail) in super::failures::ways() {
        if matches!(name, "stall" | "malformed") {
            continue; // without continuation a stall is waited for, and what is malformed goes through
        }
        let mut bench = bench(REQUEST, off(OnIncomplete::Error));
        bench.send(&[&role("1"), &text("1", "a")]);
        fail(&mut bench);
        assert_eq!(bench.log.events, [role("1"), text("1", "a")], "{name}");
        assert_eq!(bench.reason(), name);
    }
}

#[test]
fn without_continuation_malformed_events_go_through() {
    let mut bench = bench(REQUEST, off(OnIncomplete::Error));
    bench.send(&[&role("1"), "not json", "nor this", "nor that", "at all", &finish("1", "stop"), "[DONE]"]);
    assert_eq!(bench.log.events.len(), 6);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
}

#[test]
fn a_request_that_was_not_understood_is_followed_and_not_continued() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.relay =
        Relay::new(None, Policy::default(), Family::named("default").0, Engine::named("vllm").0, String::new());
    bench.opened();
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.cut();
    assert!(bench.starts().is_empty());
    assert_eq!(bench.reason(), "reset");
}

#[test]
fn a_mirror_shows_exactly_what_the_engine_did() {
    let check = |shown: &[&str], end: Option<LegEnd>, seal: MirroredEnd, events: &[&str]| {
        let mut bench = bench(REQUEST, off(OnIncomplete::Mirror));
        bench.send(&[&role("1"), &text("1", "a")]);
        bench.send(shown);
        if let Some(end) = end {
            bench.end(end);
        }
        let seen: Vec<&str> = bench.log.events.iter().skip(2).map(String::as_str).collect();
        assert_eq!(seen, events);
        assert_eq!(bench.log.seal, Some(Seal::Mirrored(seal)));
    };
    let cut = || Some(LegEnd::Reset);
    let clean = || Some(LegEnd::Clean);
    let abort = finish("1", "abort");
    check(&[], cut(), MirroredEnd::Cut, &[]);
    check(&[], clean(), MirroredEnd::Clean, &[]);
    check(&[ERROR], clean(), MirroredEnd::Clean, &[ERROR]);
    check(&[ERROR, "[DONE]"], clean(), MirroredEnd::Done, &[ERROR]);
    check(&[ERROR], cut(), MirroredEnd::Cut, &[ERROR]);
    check(&[&abort, "[DONE]"], clean(), MirroredEnd::Done, &[&abort]);
    check(&["[DONE]"], clean(), MirroredEnd::Done, &[]);
}

#[test]
fn a_mirror_shows_the_first_legs_end_when_continuing_came_to_nothing() {
    let policy = Policy { on_incomplete: OnIncomplete::Mirror, ..Policy::default() };
    let check = |fail: &dyn Fn(&mut Bench), seal: MirroredEnd, last: &str| {
        let mut bench = bench(REQUEST, policy.clone());
        bench.send(&[&role("1"), &text("1", "a")]);
        fail(&mut bench);
        for _ in 0..3 {
            bench.wait(S);
            bench.refuse(503);
        }
        assert_eq!(bench.log.seal, Some(Seal::Mirrored(seal)));
        assert_eq!(bench.log.events.last().map(String::as_str), Some(last));
    };
    let a = text("1", "a");
    check(&Bench::cut, MirroredEnd::Cut, &a);
    check(&|bench| bench.end(LegEnd::Clean), MirroredEnd::Clean, &a);
    check(&|bench| bench.send(&[ERROR]), MirroredEnd::Clean, ERROR);
}

#[test]
fn nothing_that_comes_after_the_end_changes_anything() {
    let mut bench = bench(REQUEST, off(OnIncomplete::Error));
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.cut();
    bench.send(&[&text("1", "b"), &finish("1", "stop"), "[DONE]"]);
    bench.end(LegEnd::Clean);
    bench.refuse(503);
    bench.opened();
    bench.wait(100 * S);
    assert_eq!(bench.log.events.len(), 2);
    assert!(bench.relay.is_sealed());
}

//! Every family on every engine, cut before every event, by every kind of break.

use std::collections::BTreeSet;

use baton::mock::Wire;
use baton::proto::record::Seal;
use baton::proto::relay::LegEnd;

use super::breaks::{BREAKS, Break, GARBAGE};
use super::case::{Answered, Case, Usage};
use super::compare::{assert_tail, assert_whole};
use super::run::Run;
use super::table::{Expect, State, expected, pairs};

/// Checks one break of one case, `sent` being its bytes until then and `cut` the whole events in them. Gives the run, and the
/// state that the table was asked about.
pub fn check(stream: &Answered, sent: &[u8], cut: usize, end: Break) -> (Run, Option<State>) {
    let (family, engine) = (stream.case.family, stream.case.engine);
    let at = format!("{family} on {engine}, {end:?} after {} bytes ({cut} events)", sent.len());
    let said = stream.said(cut);
    let mut run = stream.cut(sent, end);
    if said.is_finished() {
        assert_eq!((&run.log.seal, run.starts.len()), (&Some(Seal::Finished), 0), "{at}");
        assert_tail(stream, &run, cut, end, &at);
        return (run, None);
    }
    if said.is_nothing() {
        if end == Break::Stall {
            // A long prompt may take its time, and there is nothing to go on from.
            assert_waits(stream, &mut run, cut, &at);
        } else {
            assert_eq!((&run.log.seal, run.last_plan()), (&Some(Seal::Finished), Some("again")), "{at}");
            assert_whole(stream, &run, cut, &at);
        }
        return (run, None);
    }
    let state = if said.content.is_empty() { State::Thinking } else { State::Answering };
    match expected(family, engine, state) {
        Expect::Continues(why) => {
            assert_eq!(run.log.seal, Some(Seal::Finished), "{at}: it can go on: {why}");
            assert_eq!((run.last_plan(), run.relay.leg()), (Some("chat-continue"), 2), "{at}");
            assert_whole(stream, &run, cut, &at);
        }
        Expect::Refused(..) if end == Break::Stall => assert_waits(stream, &mut run, cut, &at),
        Expect::Refused(code, why) => {
            assert!(run.is_incomplete(), "{at}: it cannot go on: {why}: {:?}", run.log.seal);
            assert_refused(stream, &run, cut, end, code, &at);
        }
    }
    (run, Some(state))
}

/// The client got what the engine had sent, and no engine was asked for more.
pub fn assert_refused(stream: &Answered, run: &Run, cut: usize, end: Break, code: &str, at: &str) {
    let mut want = stream.whole[..cut].to_vec();
    let mut code = code;
    if end == Break::Garbage {
        // What cannot be continued goes through as it is, and then nobody knows any more what the client has.
        want.push(GARBAGE.to_owned());
        code = "not_understood";
    }
    assert_eq!((run.why, run.starts.len()), (Some(code), 0), "{at}");
    assert_eq!(run.log.events, want, "{at}");
}

/// The engine is silent and nothing can be done about it: Baton waits, and when the engine goes on, so does the answer.
fn assert_waits(stream: &Answered, run: &mut Run, cut: usize, at: &str) {
    assert_eq!((&run.log.seal, run.starts.len(), run.relay.deadline()), (&None, 0, None), "{at}");
    assert_eq!(run.log.events, stream.whole[..cut], "{at}");
    run.feed(&stream.uncut[cut..].concat());
    run.end(LegEnd::Clean);
    assert_eq!(run.log.seal, Some(Seal::Finished), "{at}");
    assert_eq!(run.log.events, stream.whole[..stream.whole.len() - 1], "{at}");
}

/// The cases of an engine. A family that does not think gets a second one, of an engine that thinks nevertheless.
fn cases(engine: &'static str, usage: Usage) -> Vec<Case> {
    let families: Vec<_> = pairs().filter(|pair| pair.1 == engine).map(|pair| pair.0).collect();
    let mut cases: Vec<_> = families.into_iter().map(|family| Case::new(engine, family, usage)).collect();
    let mut surprised = Case::new(engine, "no_thinking", usage);
    surprised.alter(|config| config.family = "default".to_owned());
    cases.push(surprised);
    cases
}

fn check_engine(engine: &'static str, usage: Usage, breaks: &[Break]) {
    let mut seen = BTreeSet::new();
    for case in cases(engine, usage) {
        let stream = case.answered();
        let surprised = stream.case.family == "no_thinking" && stream.case.first.family == "default";
        for cut in 0..stream.uncut.len() {
            if surprised && !stream.said(cut).content.is_empty() {
                break; // with the thinking taken away, its answer is another one
            }
            for end in breaks {
                let (_, state) = check(&stream, &stream.bytes(cut), cut, *end);
                seen.extend(state.map(|state| (stream.case.family, state)));
            }
        }
    }
    let families = pairs().filter(|pair| pair.1 == engine).map(|pair| pair.0);
    let states: BTreeSet<_> =
        families.flat_map(|family| [(family, State::Thinking), (family, State::Answering)]).collect();
    assert_eq!(seen, states, "every entry of the table has been tried");
}

#[test]
fn an_answer_of_vllm_is_whole_wherever_and_however_its_engine_breaks() {
    check_engine("vllm", Usage::None, &BREAKS);
}

#[test]
fn an_answer_of_sglang_is_whole_wherever_and_however_its_engine_breaks() {
    check_engine("sglang", Usage::None, &BREAKS);
}

#[test]
fn an_answer_of_another_engine_is_whole_wherever_and_however_it_breaks() {
    check_engine("generic", Usage::None, &BREAKS);
}

#[test]
fn usage_is_that_of_the_uncut_answer_where_the_engine_counts_along() {
    for engine in ["vllm", "sglang", "generic"] {
        check_engine(engine, Usage::Continuous, &[Break::Abort]);
    }
    check_engine("sglang", Usage::OnlyContinuous, &[Break::Reset]);
}

#[test]
fn usage_at_the_end_counts_the_new_tokens_and_estimates_the_others() {
    for engine in ["vllm", "sglang", "generic"] {
        check_engine(engine, Usage::AtEnd, &[Break::CleanEnd]);
    }
}

#[test]
fn the_two_engines_of_a_case_differ_in_all_that_a_client_could_see() {
    for engine in ["vllm", "sglang"] {
        let case = Case::new(engine, "default", Usage::None);
        let answer = |config| baton::mock::events(config, case.body.to_string().as_bytes(), 0).expect("an answer");
        for (one, other) in answer(&case.first).iter().zip(answer(&case.later)).filter(|(_, event)| event.len() > 20) {
            let read = |event: &[u8]| -> serde_json::Value {
                serde_json::from_slice(event.strip_prefix(b"data: ").expect("an event")).expect("a chunk")
            };
            let (one, other) = (read(one), read(&other));
            assert!(one["id"] != other["id"] && one["created"] != other["created"]);
            let named = case.first.wire == Wire::Sglang || one["system_fingerprint"] != other["system_fingerprint"];
            assert!(named || one["system_fingerprint"].is_null());
        }
    }
}

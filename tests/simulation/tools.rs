//! Tool calls: once one is shown, its answer is never asked for again; held back, it costs nothing when its engine dies.

use baton::proto::record::Seal;

use super::breaks::{BREAKS, Break};
use super::case::{Answered, Case, Usage};
use super::compare::{assert_tail, assert_whole, call_id};
use super::every_event::assert_refused;

/// Bytes that the held calls here stay below.
const BUFFER: usize = 64 << 10;

fn streams(buffer: Option<usize>) -> Vec<Answered> {
    let pairs = [
        ("vllm", "default", Usage::None),
        ("vllm", "default", Usage::AtEnd),
        ("vllm", "qwen3", Usage::Continuous),
        ("vllm", "no_thinking", Usage::None),
        ("sglang", "qwen3_6", Usage::None),
        ("sglang", "qwen3_6", Usage::Continuous),
        ("generic", "minimax", Usage::AtEnd),
    ];
    let stream = |(engine, family, usage)| {
        let mut case = Case::new(engine, family, usage).of_length(3, 6).with_tool(3);
        case.policy.tool_buffer = buffer;
        case.answered()
    };
    pairs.map(stream).into()
}

/// Whether the first `cut` events have begun a tool call.
fn has_called(stream: &Answered, cut: usize) -> bool {
    !stream.said(cut).calls.is_empty()
}

fn at(stream: &Answered, cut: usize, end: Break) -> String {
    let (case, whole) = (&stream.case, stream.whole.len());
    format!("{} on {}, {:?}, {end:?} after {cut} of {whole} events", case.family, case.engine, case.usage)
}

#[test]
fn an_answer_whose_tool_call_was_shown_is_never_asked_for_again() {
    for stream in streams(None) {
        for cut in (0..stream.uncut.len()).filter(|cut| has_called(&stream, *cut) && !stream.said(*cut).is_finished()) {
            for end in BREAKS {
                let at = at(&stream, cut, end);
                let run = stream.cut(&stream.bytes(cut), end);
                if end == Break::Stall {
                    assert_eq!((&run.log.seal, run.relay.deadline()), (&None, None), "{at}");
                    assert_eq!((run.starts.len(), &run.log.events[..]), (0, &stream.whole[..cut]), "{at}");
                } else {
                    assert!(run.is_incomplete(), "{at}: {:?}", run.log.seal);
                    assert_refused(&stream, &run, cut, end, "tool_call_shown", &at);
                }
            }
        }
    }
}

#[test]
fn an_answer_cut_before_its_tool_call_goes_on_to_it() {
    for stream in streams(None) {
        let called = (0..stream.uncut.len()).position(|cut| has_called(&stream, cut)).expect("a call");
        let answering = (0..called).filter(|cut| !stream.said(*cut).content.is_empty());
        for cut in answering {
            for end in BREAKS {
                let at = at(&stream, cut, end);
                let run = stream.cut(&stream.bytes(cut), end);
                assert_eq!((&run.log.seal, run.last_plan()), (&Some(Seal::Finished), Some("chat-continue")), "{at}");
                assert_whole(&stream, &run, cut, &at);
                assert_eq!(
                    run.log.events.iter().filter_map(|data| call_id(data)).count(),
                    expected_ids(&stream),
                    "{at}"
                );
            }
        }
    }
}

/// How often the uncut answer names its call: vLLM once, SGLang once.
fn expected_ids(stream: &Answered) -> usize {
    stream.whole.iter().filter_map(|data| call_id(data)).count()
}

#[test]
fn a_tool_call_that_is_held_back_survives_its_engine() {
    for stream in streams(Some(BUFFER)) {
        let called = (0..stream.uncut.len()).position(|cut| has_called(&stream, cut)).expect("a call");
        for cut in called..stream.uncut.len() {
            for end in BREAKS {
                let at = at(&stream, cut, end);
                let run = stream.cut(&stream.bytes(cut), end);
                assert_eq!(run.log.seal, Some(Seal::Finished), "{at}");
                if stream.said(cut).is_finished() {
                    assert_eq!(run.starts.len(), 0, "{at}");
                    assert_tail(&stream, &run, cut, end, &at);
                } else {
                    // What was held back is dropped: the answer goes on from the text before the call.
                    assert_eq!(run.last_plan(), Some("chat-continue"), "{at}");
                    assert_whole(&stream, &run, called - 1, &at);
                }
            }
        }
    }
}

#[test]
fn what_is_held_back_is_not_seen_before_it_is_whole_and_then_comes_at_once() {
    for stream in streams(Some(BUFFER)) {
        let called = (0..stream.uncut.len()).position(|cut| has_called(&stream, cut)).expect("a call");
        let mut run = stream.open();
        for (at, event) in stream.uncut.iter().enumerate() {
            run.feed(event);
            let seen = at + 1;
            let want = if seen < called || stream.said(seen).is_finished() { seen } else { called - 1 };
            assert_eq!(run.log.events, stream.whole[..want.min(stream.whole.len() - 1)], "{seen} events");
        }
        assert_eq!(run.log.seal, Some(Seal::Finished));
    }
}

#[test]
fn a_held_tool_call_without_anything_before_it_is_released_as_it_is() {
    // The qwen3 template would close the unfinished thinking, and where nothing was said there is nothing to go on from.
    for (family, reasoning, why) in [("qwen3", 3, "thinking_closes"), ("no_thinking", 0, "nothing_to_continue")] {
        let mut case = Case::new("vllm", family, Usage::None).of_length(reasoning, 4).with_tool(0);
        case.policy.tool_buffer = Some(BUFFER);
        let stream = case.answered();
        for cut in (0..stream.uncut.len()).filter(|cut| has_called(&stream, *cut) && !stream.said(*cut).is_finished()) {
            for end in [Break::Reset, Break::CleanEnd, Break::ErrorEvent, Break::Abort, Break::Done, Break::TooLong] {
                let at = at(&stream, cut, end);
                let run = stream.cut(&stream.bytes(cut), end);
                assert!(run.is_incomplete() && run.starts.is_empty(), "{at}: {:?}", run.log.seal);
                assert_eq!((run.why, &run.log.events[..]), (Some(why), &stream.whole[..cut]), "{at}");
            }
        }
    }
}

#[test]
fn a_tool_call_over_the_limit_of_the_buffer_is_shown_and_then_not_asked_for_again() {
    let mut case = Case::new("vllm", "default", Usage::None).of_length(3, 6).with_tool(3);
    case.policy.tool_buffer = Some(500);
    let stream = case.answered();
    let called = (0..stream.uncut.len()).position(|cut| has_called(&stream, cut)).expect("a call");
    let mut held = 0;
    for cut in (called..stream.uncut.len()).filter(|cut| !stream.said(*cut).is_finished()) {
        held += stream.whole[cut - 1].len();
        let run = stream.cut(&stream.bytes(cut), Break::Reset);
        assert_eq!(run.log.seal == Some(Seal::Finished), held <= 500, "after {cut} events, {held} bytes of calls");
        assert_eq!(run.starts.len(), usize::from(held <= 500), "after {cut} events");
        assert!(held <= 500 || run.log.events == stream.whole[..cut], "after {cut} events");
    }
    assert!(held > 500, "the limit is reached in this answer");
}

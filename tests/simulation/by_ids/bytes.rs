//! Cut at every byte.

use baton::proto::relay::LegEnd;
use serde_json::json;

use super::super::breaks::Break;
use super::super::case::{Case, Usage};
use super::super::run::Run;
use super::events::check;
use super::{Listed, stopping};

/// Where an event ends and one byte further, later legs are run to their end; at the other bytes the client has the same and the
/// same is asked of the next engine, so the same would come of it. Of these, every `step`-th is tried: a torn event is told from a
/// whole one in the decoder, which knows nothing of what is in it, and one answer here is tried at all of them.
fn check_bytes(listed: &Listed, step: usize) {
    let bytes = listed.uncut.concat();
    let (mut cut, mut end) = (0, 0);
    let mut checked: Option<Run> = None;
    for at in 0..bytes.len() {
        if at == end + listed.uncut[cut].len() {
            (cut, end) = (cut + 1, at);
        }
        if at - end < 2 {
            checked = Some(check(listed, &bytes[..at], cut, Break::Reset));
        }
        let Some(run) = checked.as_ref().filter(|_| at % step == 0) else { continue };
        let words = format!("after {at} bytes ({cut} events) of {}", listed.case.body);
        let mut other = listed.open();
        other.feed(&bytes[..at]);
        other.end(LegEnd::Clean);
        assert_eq!(other.asked(), run.starts.first(), "{words}");
        assert_eq!((other.why, other.is_incomplete()), (run.why, run.is_incomplete()), "{words}");
        let had = if run.starts.is_empty() { &run.log.events[..] } else { &listed.plain[..listed.shown(cut)] };
        assert_eq!(other.log.events, had, "{words}");
    }
}

fn short(family: &'static str, usage: Usage) -> Case {
    Case::new("vllm", family, usage).of_length(3, 4)
}

#[test]
fn with_thinking_at_every_byte() {
    check_bytes(&Listed::new(short("qwen3", Usage::AtEnd)), 1);
}

#[test]
fn with_usage_in_every_event_in_many_places() {
    check_bytes(&Listed::new(short("default", Usage::Continuous)), 11);
}

#[test]
fn with_several_tokens_in_an_event_in_many_places() {
    let mut case = short("qwen3", Usage::AtEnd);
    case.alter(|config| config.tokens_per_event = 3);
    check_bytes(&Listed::new(case), 11);
}

#[test]
fn with_text_withheld_for_a_stop_string_in_many_places() {
    check_bytes(&Listed::new(stopping(short("qwen3", Usage::AtEnd).of_length(4, 10))), 11);
}

#[test]
fn with_an_unseen_tool_call_in_many_places() {
    check_bytes(&Listed::new(short("qwen3", Usage::None).with_tool(2)), 11);
}

#[test]
fn with_transfer_parameters_of_the_clients_own_in_many_places() {
    let mut case = short("no_thinking", Usage::None);
    case.body["kv_transfer_params"] = json!({"remote": true});
    check_bytes(&Listed::new(case), 11);
}

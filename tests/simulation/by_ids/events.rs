//! Cut before every event, by every kind of break.

use baton::mock::Config;
use baton::proto::record::Seal;
use baton::proto::relay::LegEnd;
use serde_json::json;

use super::super::breaks::{BREAKS, Break, GARBAGE};
use super::super::case::{Case, Usage};
use super::super::legs::assert_reads_as_one;
use super::super::run::{Run, Said};
use super::Listed;

/// Checks one break, `sent` being what came until then and `cut` the whole events in it.
pub fn check(listed: &Listed, sent: &[u8], cut: usize, end: Break) -> Run {
    let at = format!("{:?} after {} bytes ({cut} events): {}", end, sent.len(), listed.at());
    let said = listed.said(cut);
    let mut run = listed.cut(sent, end);
    if said.is_finished() {
        assert_eq!((&run.log.seal, run.starts.len()), (&Some(Seal::Finished), 0), "{at}");
        assert_tail(listed, &run, cut, end, &at);
        return run;
    }
    let blank = said.reasoning.trim_start().is_empty() && said.content.trim_start().is_empty() && said.calls.is_empty();
    let nothing = said.reasoning.is_empty() && said.content.is_empty();
    if !said.calls.is_empty() {
        assert_no_further(listed, &mut run, cut, end, &at);
    } else if nothing && end == Break::Stall {
        assert_waits(listed, &mut run, cut, &at);
    } else {
        let plan = if blank { "again" } else { "token-exact" };
        assert_eq!((&run.log.seal, run.last_plan()), (&Some(Seal::Finished), Some(plan)), "{at}: {:?}", run.causes);
        assert_eq!(run.starts.len(), 1, "{at}");
        listed.assert_whole(&run, cut, &at);
    }
    run
}

/// A tool call is shown, and the engine has no endpoints to go on inside it.
fn assert_no_further(listed: &Listed, run: &mut Run, cut: usize, end: Break, at: &str) {
    if end == Break::Stall {
        return assert_waits(listed, run, cut, at);
    }
    let mut wanted = listed.plain[..listed.shown(cut)].to_vec();
    let mut why = "tool_call_shown";
    if end == Break::Garbage {
        wanted.push(GARBAGE.to_owned());
        why = "not_understood";
    }
    assert!(run.is_incomplete(), "{at}: {:?}", run.log.seal);
    assert_eq!((run.why, run.starts.len(), &run.log.events), (Some(why), 0, &wanted), "{at}");
}

/// The engine is silent and nothing can be done about it: when it goes on, so does the answer.
fn assert_waits(listed: &Listed, run: &mut Run, cut: usize, at: &str) {
    assert_eq!((&run.log.seal, run.starts.len(), run.relay.deadline()), (&None, 0, None), "{at}");
    run.feed(&listed.uncut[cut..].concat());
    run.end(LegEnd::Clean);
    assert_eq!(run.log.seal, Some(Seal::Finished), "{at}");
    assert_eq!(run.log.events, listed.plain[..listed.plain.len() - 1], "{at}");
}

/// The finish reason had come: what is missing is written here, with the count of the ids.
fn assert_tail(listed: &Listed, run: &Run, cut: usize, end: Break, at: &str) {
    let mut wanted = listed.wanted(run, cut);
    let had = listed.shown(cut).min(wanted.len());
    if end == Break::Done {
        wanted.truncate(had); // an engine that comes to its `[DONE]` without usage gives none
    }
    if end == Break::Garbage {
        wanted.insert(had, GARBAGE.to_owned());
    }
    listed.assert_same(&run.log.events, &wanted, at);
}

fn every_event(case: Case, breaks: &[Break]) -> Listed {
    let listed = Listed::new(case);
    for cut in 0..listed.uncut.len() {
        for end in breaks {
            check(&listed, &listed.bytes(cut), cut, *end);
        }
    }
    listed
}

const USAGES: [Usage; 3] = [Usage::None, Usage::AtEnd, Usage::Continuous];
const SEVERAL: [Break; 4] = [Break::Reset, Break::CleanEnd, Break::Abort, Break::Stall];

#[test]
fn an_answer_is_the_uncut_one_wherever_and_however_its_engine_breaks() {
    // Also of families that nothing else continues while they think.
    for family in ["qwen3", "qwen3_6", "deepseek_v3", "kimi_k2"] {
        every_event(Case::new("vllm", family, Usage::AtEnd), &BREAKS);
    }
}

#[test]
fn usage_is_the_uncut_answers_in_every_field_however_it_is_asked_for() {
    for family in ["default", "qwen3", "no_thinking", "minimax", "mistral", "glm"] {
        for usage in USAGES {
            every_event(Case::new("vllm", family, usage), &SEVERAL);
        }
    }
}

#[test]
fn cached_tokens_are_those_of_the_prompt() {
    let mut case = Case::new("vllm", "qwen3", Usage::Continuous);
    case.alter(|config: &mut Config| config.cached_tokens = Some(3));
    every_event(case, &[Break::Reset]);
}

#[test]
fn answers_of_many_words_are_whole_too() {
    // Halves of characters, tokens that end in `<`, and all that JSON must escape: every seed has others.
    for seed in 1..8 {
        let mut case = Case::new("vllm", "qwen3", Usage::AtEnd).of_length(10, 24);
        case.alter(|config: &mut Config| config.seed = seed);
        every_event(case, &[Break::Reset]);
    }
}

#[test]
fn limits_go_down_by_exactly_what_is_kept() {
    // The scripted engine is strict: it checks every limit to the token.
    for limit in [7, 12, 16] {
        let mut case = Case::new("vllm", "qwen3", Usage::AtEnd);
        case.body["max_completion_tokens"] = limit.into();
        case.body["max_tokens"] = (limit + 2).into();
        case.body["min_tokens"] = 6.into();
        case.body["thinking_token_budget"] = 50.into();
        case.body["kv_transfer_params"] = json!({"do_remote_decode": false});
        every_event(case, &[Break::Reset]);
    }
}

/// As [`every_event`], where tokens may come in other company behind the cut than they would have: the same text, the same usage, and
/// what was delivered as it was.
fn every_event_regrouped(case: Case) {
    let listed = Listed::new(case);
    let plain = &listed.plain[..listed.plain.len() - 1];
    for cut in 1..listed.uncut.len() {
        let said = listed.said(cut);
        let nothing = said.reasoning.trim().is_empty() && said.content.trim().is_empty();
        if !said.calls.is_empty() || said.is_finished() || nothing {
            continue;
        }
        let at = format!("after {cut} events: {}", listed.at());
        let run = listed.cut(&listed.bytes(cut), Break::Reset);
        assert_eq!(
            (&run.log.seal, run.last_plan()),
            (&Some(Seal::Finished), Some("token-exact")),
            "{at}: {:?}",
            run.causes
        );
        let had = listed.shown(cut);
        assert_eq!(run.log.events[..had], plain[..had], "{at}");
        assert_eq!(Said::by(&run.log.events), *listed.all(), "{at}");
        assert!(run.log.events.iter().all(|data| !data.contains("ids\":[")), "{at}");
        assert_reads_as_one(&run.log.events, true, &at);
        let wanted = listed.wanted(&run, cut);
        listed.assert_same(&run.log.events[run.log.events.len() - 1..], &wanted[wanted.len() - 1..], &at);
    }
}

#[test]
fn an_event_may_hold_several_tokens_and_the_step_to_the_answer() {
    for seed in 0..4 {
        for (tokens, mixed) in [(2, false), (3, false), (3, true), (5, true)] {
            for tools in [false, true] {
                let mut case = Case::new("vllm", "qwen3", Usage::AtEnd).of_length(9, 16);
                case = if tools { case.with_tool(5) } else { case };
                case.alter(|config: &mut Config| {
                    (config.tokens_per_event, config.mixed_events, config.seed) = (tokens, mixed, seed);
                });
                every_event_regrouped(case);
            }
        }
    }
}

#[test]
fn the_last_text_may_come_with_the_finish_reason() {
    for usage in USAGES {
        let mut case = Case::new("vllm", "qwen3", usage);
        case.alter(|config: &mut Config| config.finish_with_text = true);
        every_event(case, &SEVERAL);
    }
}

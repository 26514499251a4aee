//! Tool calls: one that nobody has seen is generated again; inside one that was shown the scale-out endpoints go on.

use baton::proto::record::Seal;
use serde_json::Value;

use super::super::breaks::{BREAKS, Break};
use super::super::case::{Case, Usage};
use super::super::legs::assert_reads_as_one;
use super::super::run::Said;
use super::Listed;
use super::events::check;

fn streams(change: impl Fn(&mut Case)) -> Vec<Listed> {
    let mut streams = Vec::new();
    for (family, usage) in [("qwen3", Usage::AtEnd), ("default", Usage::Continuous), ("no_thinking", Usage::None)] {
        let mut case = Case::new("vllm", family, usage).of_length(4, 6).with_tool(3);
        change(&mut case);
        streams.push(Listed::new(case));
    }
    streams
}

#[test]
fn a_call_that_nobody_has_seen_is_generated_again_and_one_that_was_shown_never() {
    for listed in streams(|_| {}) {
        let mut unseen = 0;
        for cut in 0..listed.uncut.len() {
            unseen += usize::from(
                listed.told[..cut].iter().any(|data| data.contains("[151657]")) && listed.said(cut).calls.is_empty(),
            );
            for end in BREAKS {
                check(&listed, &listed.bytes(cut), cut, end);
            }
        }
        assert!(unseen > 2, "the markup of a call comes before anything of it is shown");
    }
}

#[test]
fn a_call_that_is_held_back_is_generated_again() {
    for listed in streams(|case| case.policy.tool_buffer = Some(64 << 10)) {
        for cut in (0..listed.uncut.len()).filter(|cut| !listed.said(*cut).calls.is_empty()) {
            let at = format!("after {cut} events: {}", listed.case.body);
            let run = listed.cut(&listed.bytes(cut), Break::Reset);
            assert_eq!(run.log.seal, Some(Seal::Finished), "{at}");
            if listed.said(cut).is_finished() {
                assert_eq!(run.starts.len(), 0, "{at}");
                continue;
            }
            assert_eq!(run.last_plan(), Some("token-exact"), "{at}");
            let before = (0..cut).rfind(|cut| listed.said(*cut).calls.is_empty()).expect("an event without a call");
            listed.assert_whole(&run, before, &at);
        }
    }
}

#[test]
fn inside_a_call_that_was_shown_an_engine_with_the_endpoints_goes_on() {
    let scale_out = |case: &mut Case| {
        case.alter(|config| config.scale_out = true);
        case.policy.resume.abilities.scale_out = true;
    };
    for listed in streams(scale_out) {
        let mut inside = 0;
        for cut in 0..listed.uncut.len() {
            let said = listed.said(cut);
            if said.calls.is_empty() || said.is_finished() {
                continue;
            }
            inside += 1;
            let at = format!("after {cut} events: {}", listed.case.body);
            let run = listed.cut(&listed.bytes(cut), Break::Reset);
            assert_eq!(
                (&run.log.seal, run.last_plan()),
                (&Some(Seal::Finished), Some("render-generate")),
                "{at}: {:?}",
                run.causes
            );
            let had = listed.shown(cut);
            assert_eq!(run.log.events[..had], listed.plain[..had], "{at}");
            assert_eq!(Said::by(&run.log.events), *listed.all(), "{at}");
            assert!(run.log.events.iter().all(|data| !data.contains("ids\":[")), "{at}");
            assert_reads_as_one(&run.log.events, true, &at);
            if listed.case.usage == Usage::AtEnd {
                let usage = |events: &[String]| {
                    let event: Value = serde_json::from_str(events.last().expect("an event")).expect("usage");
                    event["usage"].clone()
                };
                assert_eq!(usage(&run.log.events), usage(&listed.plain[..listed.plain.len() - 1]), "{at}");
            }
        }
        assert!(inside > 5, "{inside} cuts inside the call");
    }
}

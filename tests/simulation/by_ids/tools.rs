//! Tool calls: one that nobody has seen is generated again; inside one that was shown the scale-out endpoints go on.

use baton::proto::record::Seal;
use serde_json::Value;

use super::super::breaks::{BREAKS, Break};
use super::super::case::{Case, FINGERPRINTS, Usage};
use super::super::legs::assert_reads_as_one;
use super::super::run::{Reply, Run, Said};
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
                let last = |events: &[String]| {
                    let data =
                        events.last().expect("an event").replace(FINGERPRINTS[0], "").replace(FINGERPRINTS[1], "");
                    vec![data]
                };
                listed.assert_same(&last(&run.log.events), &last(&listed.plain[..listed.plain.len() - 1]), &at);
            }
        }
        assert!(inside > 5, "{inside} cuts inside the call");
    }
}

/// A call as a client puts it together: the ids that its events name, the names, the places in the list, and the arguments.
#[derive(Debug, Default, PartialEq, Eq)]
struct Called {
    ids: Vec<String>,
    names: Vec<String>,
    index: Vec<u64>,
    arguments: String,
}

impl Called {
    fn by(events: &[String]) -> Self {
        let mut called = Called::default();
        for event in events.iter().filter_map(|data| serde_json::from_str::<Value>(data).ok()) {
            for call in event["choices"][0]["delta"]["tool_calls"].as_array().into_iter().flatten() {
                called.ids.extend(call["id"].as_str().map(str::to_owned));
                called.names.extend(call["function"]["name"].as_str().map(str::to_owned));
                called.index.push(call["index"].as_u64().expect("every piece says to which call it belongs"));
                called.arguments += call["function"]["arguments"].as_str().unwrap_or_default();
            }
        }
        called.index.dedup();
        called
    }
}

/// The last usage that the events tell.
fn usage(events: &[String]) -> Option<Value> {
    let read = |data: &String| serde_json::from_str::<Value>(data).ok().map(|event| event["usage"].clone());
    events.iter().filter_map(read).rfind(|usage| !usage.is_null())
}

/// The answer is the uncut one, whatever the legs; its call is one call, under the id that leg 1 showed if it showed one.
fn assert_one_call(listed: &Listed, run: &Run, cut: usize, at: &str) {
    assert_eq!(run.log.seal, Some(Seal::Finished), "{at}: {:?} {:?}", run.causes, run.why);
    let had = listed.shown(cut);
    assert_eq!(run.log.events[..had], listed.plain[..had], "{at}");
    let (got, wanted) = (Called::by(&run.log.events), Called::by(&listed.plain));
    assert_eq!((got.ids.len(), wanted.ids.len()), (1, 1), "{at}: {:?}", got.ids);
    if !listed.said(cut).calls.is_empty() {
        assert_eq!(got.ids, wanted.ids, "{at}: the client knows the call by this id");
    }
    assert_eq!((got.names, got.index, got.arguments), (wanted.names, wanted.index, wanted.arguments), "{at}");
    assert_eq!(Said::by(&run.log.events), *listed.all(), "{at}");
    assert_eq!(usage(&run.log.events), usage(&listed.plain), "{at}");
    assert!(run.log.events.iter().all(|data| !data.contains("ids\":[")), "{at}");
    assert_reads_as_one(&run.log.events, true, at);
}

#[test]
fn two_engines_may_be_lost_around_a_call() {
    let scale_out = |case: &mut Case| {
        case.alter(|config| config.scale_out = true);
        case.policy.resume.abilities.scale_out = true;
        case.policy.max_legs = 4;
    };
    for listed in streams(scale_out) {
        let (mut plans, wire) = (Vec::new(), listed.case.first.wire);
        let is_call = |cut: &usize| !listed.said(*cut).calls.is_empty() && !listed.said(*cut).is_finished();
        let inside: Vec<usize> = (0..listed.uncut.len()).filter(is_call).collect();
        let named = inside[0];
        // In the answer, at the call's mark, before its name, behind it, and in its arguments.
        let places =
            [named - 6, named - 3, named - 1, named, inside[1], inside[inside.len() / 2], inside[inside.len() - 1]];
        for cut in places {
            for second in [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 15, 19] {
                let at = format!("after {cut} and {second} events: {}", listed.case.body);
                let mut run = listed.open();
                run.feed(&listed.bytes(cut));
                Break::Reset.off(&mut run, wire);
                let mut lost = 1;
                run.serve(|start| {
                    lost += 1;
                    if lost == 2 {
                        Reply::Cut(listed.beginning(start, second), Break::Eof, wire)
                    } else {
                        listed.reply(start)
                    }
                });
                assert_one_call(&listed, &run, cut, &at);
                plans.push(run.starts.iter().map(|start| start.plan).collect::<Vec<_>>());
            }
        }
        for wanted in [["token-exact"; 2], ["token-exact", "render-generate"], ["render-generate"; 2]] {
            assert!(plans.iter().any(|plans| *plans == wanted), "{wanted:?} is seen: {plans:?}");
        }
    }
}

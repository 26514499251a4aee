//! `/v1/completions`: the same, for prompts of text and of ids.

use baton::proto::chat::Api;
use baton::proto::record::Seal;
use serde_json::{Value, json};

use super::super::breaks::{BREAKS, Break};
use super::super::case::{Case, Usage};
use super::super::run::Run;
use super::Listed;

/// A case whose request is one for a completion, with more tokens than it takes.
pub fn case(usage: Usage) -> Case {
    let mut case = Case::new("vllm", "qwen3", usage).of_length(0, 16);
    let options = case.body["stream_options"].take();
    case.body = json!({"model": "mock", "prompt": "说说接力赛 🏃", "stream": true, "max_tokens": 100, "seed": 5});
    if !options.is_null() {
        case.body["stream_options"] = options;
    }
    case
}

fn with(mut case: Case, key: &str, value: Value) -> Case {
    case.body[key] = value;
    case
}

fn text(events: &[String]) -> String {
    let read = |data: &String| serde_json::from_str::<Value>(data).unwrap_or_default();
    events.iter().map(|data| read(data)["choices"][0]["text"].as_str().unwrap_or_default().to_owned()).collect()
}

fn finished(events: &[String]) -> bool {
    events.iter().any(|data| data.contains("\"finish_reason\":\""))
}

fn check(listed: &Listed, cut: usize, end: Break) -> Run {
    let at = format!("{end:?} after {cut} events: {}", listed.case.body);
    let run = listed.cut(&listed.bytes(cut), end);
    let had = &listed.plain[..listed.shown(cut).min(listed.plain.len() - 1)];
    let blank = text(had).trim_start().is_empty();
    if end == Break::Stall && text(had).is_empty() {
        assert_eq!((&run.log.seal, run.starts.len()), (&None, 0), "{at}");
    } else if finished(had) {
        assert_eq!((&run.log.seal, run.starts.len()), (&Some(Seal::Finished), 0), "{at}");
        // Usage is counted from the ids; an engine that comes to its `[DONE]` without any gives none, and words behind the end are shown.
        if !matches!(end, Break::Done | Break::Garbage) {
            listed.assert_whole(&run, cut, &at);
        }
    } else {
        let plan = if blank { "again" } else { "token-exact" };
        assert_eq!((&run.log.seal, run.last_plan()), (&Some(Seal::Finished), Some(plan)), "{at}: {:?}", run.causes);
        listed.assert_whole(&run, cut, &at);
    }
    run
}

fn every_event(case: Case, breaks: &[Break]) {
    let listed = Listed::of(case, Api::Completions);
    for cut in 0..listed.uncut.len() {
        for end in breaks {
            check(&listed, cut, *end);
        }
    }
}

#[test]
fn a_completion_is_the_uncut_one_wherever_and_however_its_engine_breaks() {
    for usage in [Usage::None, Usage::AtEnd, Usage::Continuous] {
        every_event(case(usage), &BREAKS);
    }
}

#[test]
fn a_prompt_of_ids_is_gone_on_from_like_one_of_text() {
    let whole = Listed::of(case(Usage::AtEnd), Api::Completions);
    let event: Value = serde_json::from_str(&whole.told[0]).expect("a chunk");
    let ids = &event["choices"][0]["prompt_token_ids"];
    assert!(ids.as_array().is_some_and(|ids| ids.len() > 3), "{event}");
    for prompt in [ids.clone(), json!([ids]), json!(["说说接力赛 🏃"])] {
        every_event(with(case(Usage::AtEnd), "prompt", prompt), &[Break::Reset, Break::Abort]);
    }
}

#[test]
fn limits_also_the_one_that_nobody_names_go_down_by_what_is_kept() {
    for limit in [Value::Null, json!(5), json!(17)] {
        let mut case = with(case(Usage::AtEnd), "min_tokens", json!(4));
        match limit {
            Value::Null => drop(case.body.as_object_mut().expect("an object").remove("max_tokens")),
            limit => case.body["max_tokens"] = limit,
        }
        every_event(case, &[Break::Reset]);
    }
}

#[test]
fn text_withheld_for_a_stop_string_is_generated_again() {
    let whole = text(&Listed::of(case(Usage::None), Api::Completions).plain);
    let around: Vec<char> = whole.chars().collect();
    let middle = around.len() * 2 / 3;
    let stop: String = around[middle..middle + 7].iter().collect();
    for stop in [json!(stop), json!([stop, "never said by anybody"])] {
        for usage in [Usage::None, Usage::AtEnd, Usage::Continuous] {
            every_event(with(case(usage), "stop", stop.clone()), &[Break::Reset, Break::Eof, Break::ErrorEvent]);
        }
    }
}

#[test]
fn several_tokens_in_an_event() {
    // Behind tokens that were withheld they come in other company, so the events are not the same ones.
    let mut several = case(Usage::AtEnd);
    several.alter(|config| config.tokens_per_event = 3);
    let listed = Listed::of(several, Api::Completions);
    let usage = |events: &[String]| {
        let event: Value = serde_json::from_str(events.last().expect("an event")).expect("usage");
        event["usage"].clone()
    };
    let plain = &listed.plain[..listed.plain.len() - 1];
    for cut in 1..listed.uncut.len() {
        let run = listed.cut(&listed.bytes(cut), Break::Reset);
        assert_eq!(run.log.seal, Some(Seal::Finished), "after {cut} events");
        assert!(run.last_plan().is_none_or(|plan| plan == "token-exact"), "after {cut} events");
        assert_eq!(run.log.events[..cut.min(plain.len())], plain[..cut.min(plain.len())], "after {cut} events");
        assert_eq!(text(&run.log.events), text(plain), "after {cut} events");
        assert_eq!(usage(&run.log.events), usage(plain), "after {cut} events");
    }
}

//! At a temperature above 0 the next engine goes on with other words: what was delivered stays, nothing comes twice, nothing is lost.

use baton::proto::record::Seal;
use serde_json::Value;

use super::super::breaks::Break;
use super::super::case::{Case, Usage};
use super::super::legs::assert_reads_as_one;
use super::super::run::{Said, data_of};
use super::{Listed, spell, stopping};

const CLOSE: &str = "</think>";

/// What the ids that were kept and the leg that followed say together.
fn together(listed: &Listed, body: &[u8], leg: &[u8]) -> Said {
    let body: Value = serde_json::from_slice(body).expect("a request");
    let prompt: Value = serde_json::from_str(&listed.told[0]).expect("a chunk");
    let prompt = prompt["prompt_token_ids"].as_array().map_or(0, Vec::len);
    let kept = &body["kv_transfer_params"]["prompt_token_ids"].as_array().expect("ids")[prompt..];
    let kept: Vec<String> = kept.iter().map(Value::to_string).collect();
    let question = baton::proto::resume::Question {
        path: "/detokenize",
        body: format!(r#"{{"model":"mock","tokens":[{}]}}"#, kept.join(",")).into_bytes(),
    };
    let spelled: Value = serde_json::from_slice(&spell(&listed.case.later, &question).expect("text")).expect("JSON");
    let spelled = spelled["prompt"].as_str().expect("text");
    let rest = Said::by(&data_of(leg));
    match spelled.split_once(CLOSE) {
        Some((reasoning, content)) => {
            assert_eq!(rest.reasoning, "", "thinking is over");
            Said { reasoning: reasoning.to_owned(), content: format!("{content}{}", rest.content), ..rest }
        }
        None => Said { reasoning: format!("{spelled}{}", rest.reasoning), ..rest },
    }
}

fn check(case: Case) -> (usize, usize) {
    let mut case = case;
    case.body["temperature"] = 0.8.into();
    case.later.sampled = true;
    let listed = Listed::new(case);
    let (mut by_ids, mut other_words) = (0, 0);
    for cut in 2..listed.uncut.len() {
        let said = listed.said(cut);
        if said.is_finished() || said.reasoning.trim_start().is_empty() {
            continue;
        }
        let at = format!("after {cut} events: {}", listed.case.body);
        let run = listed.cut(&listed.bytes(cut), Break::Reset);
        let got = Said::by(&run.log.events);
        let had = listed.shown(cut);
        assert_eq!(run.log.events[..had], listed.plain[..had], "{at}");
        assert!(said.is_beginning_of(&got), "{at}");
        assert!(run.log.events.iter().all(|data| !data.contains("ids\":[")), "{at}");
        assert_reads_as_one(&run.log.events, run.log.seal == Some(Seal::Finished), &at);
        let last = run.starts.last().expect("a leg");
        if last.plan == "token-exact" && run.log.seal == Some(Seal::Finished) {
            by_ids += 1;
            other_words += usize::from(got != *listed.all());
            assert_eq!(got, together(&listed, last.work.body(), &listed.answer(last)), "{at}");
            assert_counted(&run.log.events, &listed.answer(last), &at);
        } else {
            // What was withheld came otherwise: then the ids are no use, and another plan says what follows, if there is one.
            assert!(run.causes.contains(&"diverged"), "{at}: {:?} {:?}", run.causes, run.log.seal);
        }
    }
    (by_ids, other_words)
}

/// Prompt and answer together are as many tokens as the last engine says.
fn assert_counted(events: &[String], leg: &[u8], at: &str) {
    let total = |events: &[String]| {
        let event: Value = serde_json::from_str(&events[events.len() - 1]).expect("usage");
        event["usage"]["total_tokens"].as_u64().expect("a count")
    };
    let mut leg = data_of(leg);
    leg.pop();
    assert_eq!(total(events), total(&leg), "{at}");
}

#[test]
fn an_answer_that_goes_on_otherwise_keeps_what_was_delivered() {
    for family in ["qwen3", "default"] {
        let (by_ids, other_words) = check(Case::new("vllm", family, Usage::AtEnd).of_length(10, 20));
        assert!(by_ids > 15 && other_words > 10, "{by_ids} by ids, {other_words} of them in other words");
    }
}

#[test]
fn several_tokens_in_an_event_are_no_other_matter() {
    let mut case = Case::new("vllm", "qwen3", Usage::AtEnd).of_length(12, 24);
    case.alter(|config| config.tokens_per_event = 3);
    let (by_ids, other_words) = check(case);
    assert!(by_ids > 4 && other_words > 3, "{by_ids} by ids, {other_words} of them in other words");
}

#[test]
fn text_withheld_for_a_stop_string_may_come_otherwise() {
    let (by_ids, _) = check(stopping(Case::new("vllm", "default", Usage::AtEnd).of_length(12, 24)));
    assert!(by_ids > 3, "{by_ids} by ids");
}

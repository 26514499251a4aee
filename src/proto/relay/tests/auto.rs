//! `plan: auto` where ids do not do: which of the other plans it takes.

use serde_json::Value;

use super::*;
use crate::proto::resume::{Abilities, PlanKind, PlanSet, Settings, Version, Work};

fn thought(text: &str) -> String {
    chunk_of("1", &format!(r#"{{"reasoning":"{text}"}}"#), "null")
}

/// Qwen3 on vLLM, whose template closes thinking that is handed back, cut after these events. `scale_out`: what is known of the engines.
fn cut_after(events: &[String], barred: PlanSet, abilities: Abilities) -> Bench {
    let resume = Settings { barred, abilities, ..Settings::default() };
    let mut bench = bench_for(REQUEST, Policy { resume, ..Policy::default() }, "qwen3", "vllm");
    bench.send(&[&role("1")]);
    bench.send(&events.iter().map(String::as_str).collect::<Vec<_>>());
    bench.cut();
    bench
}

/// Why ids do not do: none were listed, the engines are too old, several streams were refused them.
fn without_ids(scale_out: bool) -> [(PlanSet, Abilities); 3] {
    let known = Abilities { scale_out, ..Abilities::default() };
    let old = Abilities { version: Some(Version::new(0, 27, 1)), ..known };
    [(PlanSet::default(), known), (PlanSet::default(), old), ([PlanKind::TokenExact].into_iter().collect(), known)]
}

#[test]
fn in_thinking_that_the_template_would_close_it_is_the_scale_out_endpoints() {
    for (barred, abilities) in without_ids(true) {
        let start = cut_after(&[thought("Let"), thought(" me")], barred, abilities).next_leg();
        assert_eq!((start.leg, start.attempt, start.plan), (2, 1, "render-generate"), "{abilities:?}");
        assert!(matches!(start.work, Work::Render(_)), "{:?}", start.work);
    }
}

#[test]
fn in_the_answer_the_last_message_does_and_costs_less() {
    for (barred, abilities) in without_ids(true) {
        let start = cut_after(&[thought("Let"), text("1", "The")], barred, abilities).next_leg();
        assert_eq!((start.leg, start.attempt, start.plan), (2, 1, "chat-continue"), "{abilities:?}");
        let body: Value = serde_json::from_slice(start.work.body()).unwrap();
        assert_eq!(
            (&body["messages"][1]["reasoning"], &body["messages"][1]["content"]),
            (&"Let".into(), &"The".into())
        );
    }
}

#[test]
fn in_the_answer_it_is_the_endpoints_once_the_last_message_is_barred() {
    for (mut barred, abilities) in without_ids(true) {
        barred.insert(PlanKind::ChatContinue);
        let start = cut_after(&[thought("Let"), text("1", "The")], barred, abilities).next_leg();
        assert_eq!(start.plan, "render-generate", "{abilities:?}");
    }
}

#[test]
fn in_the_answer_it_is_the_endpoints_once_an_engine_has_refused_the_last_message() {
    for (barred, abilities) in without_ids(true) {
        let mut bench = cut_after(&[thought("Let"), text("1", "The")], barred, abilities);
        assert_eq!(bench.next_leg_unopened().plan, "chat-continue");
        bench.refuse(400);
        let start = bench.next_leg();
        assert_eq!((start.leg, start.attempt, start.plan), (2, 1, "render-generate"), "{abilities:?}");
    }
}

#[test]
fn in_thinking_there_is_nothing_without_the_endpoints() {
    for (barred, abilities) in without_ids(false) {
        let mut bench = cut_after(&[thought("Let")], barred, abilities);
        assert!(bench.notes().contains(&&Note::NotContinued { why: "thinking_closes" }), "{:?}", bench.notes());
        assert_eq!(bench.reason(), "reset");
        assert!(bench.starts().is_empty());
    }
}

//! The plan for every family, on every engine, in every state: one golden file each under `tests/golden/resume/`.
//!
//! A file says what engine receives, so read it beside docs/CONTINUATION.md. `BLESS=1` writes the files anew; then look at
//! each difference and ask whether a real engine would go on from exactly there.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, fs};

use baton::proto::chat::{ChatRequest, Parsed, Partial, Ratios, parse};
use baton::proto::resume::{Budget, Engine, Family, PlanKind, Settings, plan};
use serde_json::{Value, json};

const STATES: [&str; 2] = ["thinking-partial", "content-done"];

/// A request with a bit of everything that has to survive or to change: another template argument, both limits, options.
const REQUEST: &str = r#"{"model":"m","messages":[{"role":"user","content":"How many ways? \u4e09 🙂"}],"temperature":0.70,
    "max_tokens":100,"max_completion_tokens":90,"stream_options":{"continuous_usage_stats":false},
    "chat_template_kwargs":{"style":"brief"},"unknown":{"kept":[1.0,"as it is"]}}"#;

const REASONING: &str = "Weigh 三 ways 🧮.\n";
const CONTENT: &str = "\n\nThe answer \"is\" ";

fn partial(state: &str) -> Partial {
    let delta = |delta: Value, usage: u64| {
        json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": delta, "logprobs": null, "finish_reason": null}],
            "usage": {"prompt_tokens": 9, "total_tokens": 9 + usage, "completion_tokens": usage}})
        .to_string()
    };
    let mut events =
        vec![delta(json!({"role": "assistant", "content": ""}), 0), delta(json!({"reasoning": REASONING}), 8)];
    if state == "content-done" {
        events.push(delta(json!({"content": CONTENT}), 14));
    }
    let mut partial = Partial::new(1);
    for event in &events {
        match parse(event.as_bytes()).expect("a chunk is read") {
            Parsed::Chunk(chunk) => partial.fold(&chunk),
            other => panic!("not a chunk: {other:?}"),
        }
    }
    partial
}

fn planned(family: &str, engine: &str, state: &str) -> String {
    let request = ChatRequest::parse(REQUEST.as_bytes()).expect("the request is read");
    let budget = Budget {
        ratios: &Ratios::default(),
        rid: "fresh-rid",
        force: false,
        lists_ids: false,
        settings: &Settings::default(),
    };
    let (family, engine) = (Family::named(family).0, Engine::named(engine).0);
    let shown = match plan(&request, &partial(state), &family, &engine, &budget) {
        Ok(plan) => json!({
            "plan": PlanKind::ChatContinue.name(),
            "seam": {"trimmed": plan.seam.trimmed, "reasoning_is_content": plan.seam.reasoning_is_content},
            "body": serde_json::from_slice::<Value>(plan.work.body()).expect("the body is JSON"),
        }),
        Err(refused) => json!({"refused": refused.code(), "words": refused.to_string()}),
    };
    format!("{shown:#}\n")
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/resume")
}

/// Both texts, with `-` before lines that only `want` has and `+` before lines that only `got` has.
fn difference(want: &str, got: &str) -> String {
    let (want, got): (Vec<_>, Vec<_>) = (want.lines().collect(), got.lines().collect());
    let same = want.iter().zip(&got).take_while(|(a, b)| a == b).count();
    let ends = want[same..].iter().rev().zip(got[same..].iter().rev()).take_while(|(a, b)| a == b).count();
    let mark = |sign: &str, lines: &[&str]| lines.iter().map(|line| format!("{sign} {line}\n")).collect::<String>();
    [
        mark(" ", &want[..same]),
        mark("-", &want[same..want.len() - ends]),
        mark("+", &got[same..got.len() - ends]),
        mark(" ", &want[want.len() - ends..]),
    ]
    .concat()
}

#[test]
fn every_family_on_every_engine_in_every_state_gets_the_plan_in_its_golden_file() {
    let bless = env::var_os("BLESS").is_some_and(|value| value == "1");
    let mut expected = BTreeSet::new();
    let mut failures = Vec::new();
    for family in Family::all() {
        for engine in Engine::all() {
            for state in STATES {
                let name = format!("{family}.{engine}.{state}.json");
                let path = folder().join(&name);
                let got = planned(family, engine, state);
                if bless {
                    fs::write(&path, &got).expect("the golden file can be written");
                }
                match fs::read_to_string(&path) {
                    Ok(want) if want == got => {}
                    Ok(want) => failures.push(format!("{name} differs:\n{}", difference(&want, &got))),
                    Err(error) => failures.push(format!("{name}: {error}; it would be:\n{got}")),
                }
                expected.insert(name);
            }
        }
    }
    for entry in fs::read_dir(folder()).expect("the folder can be read") {
        let name = entry.expect("an entry can be read").file_name().to_string_lossy().into_owned();
        if !expected.contains(&name) {
            failures.push(format!("{name} belongs to no family, engine and state: delete it"));
        }
    }
    assert!(failures.is_empty(), "{}\nIf this is right, run with BLESS=1 and review.", failures.join("\n"));
}

#[test]
fn a_difference_shows_both_sides_and_what_is_around_them() {
    assert_eq!(difference("a\nb\nc\n", "a\nx\ny\nc\n"), "  a\n- b\n+ x\n+ y\n  c\n");
}

//! The plans: one golden file each under `tests/golden/resume/`.
//!
//! `chat-continue` for every family, on every engine that has it, in every state. `prefix` and `replay` go by the engine, and only
//! by whether the model thinks at all; so for each engine one family stands for all.
//!
//! A file says what engine receives, so read it beside docs/CONTINUATION.md. `BLESS=1` writes the files anew; then look at
//! each difference and ask whether a real engine would go on from exactly there.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::{env, fs};

use baton::proto::chat::{ChatRequest, Parsed, Partial, Ratios, parse};
use baton::proto::resume::{Budget, Engine, Family, PlanKind, Settings, Way, Work, way_of};
use serde_json::{Value, json};

const STATES: [&str; 2] = ["thinking-partial", "content-done"];

/// Where a plan goes by the engine, an answer without any thinking differs, too.
const ALL_STATES: [&str; 3] = ["thinking-partial", "content-done", "content-only"];

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
    let mut events = vec![delta(json!({"role": "assistant", "content": ""}), 0)];
    if state != "content-only" {
        events.push(delta(json!({"reasoning": REASONING}), 8));
    }
    if state != "thinking-partial" {
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

fn planned(kind: PlanKind, family: &str, engine: &str, state: &str) -> String {
    let request = ChatRequest::parse(REQUEST.as_bytes()).expect("the request is read");
    let budget = Budget {
        ratios: &Ratios::default(),
        rid: "fresh-rid",
        force: false,
        lists_ids: false,
        settings: &Settings::default(),
    };
    let (family, engine) = (Family::named(family).0, Engine::named(engine).0);
    let shown = match way_of(kind, &request, &partial(state), &family, &engine, &budget) {
        Ok(Way::Search(search)) => panic!("a search: {search:?}"),
        Ok(Way::Plan(plan)) => {
            let Work::Request { path, body } = &plan.work else { panic!("one request") };
            let body: Value = serde_json::from_slice(body).expect("the body is JSON");
            let mut seam = json!({
                "trimmed": plan.seam.trimmed,
                "reasoning_is_content": plan.seam.reasoning_is_content,
            });
            if kind == PlanKind::ChatContinue {
                json!({"plan": kind.name(), "seam": seam, "body": body})
            } else {
                seam["may_repeat"] = plan.seam.overlap.is_some().into();
                seam["thinking"] = format!("{:?}", plan.seam.thinking).into();
                seam["inexact"] = plan.seam.inexact.is_some().into();
                json!({"plan": kind.name(), "path": path, "seam": seam, "body": body})
            }
        }
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

/// The family that stands for all on an engine: of the models that it serves.
fn usual_family(engine: &str) -> &'static str {
    match engine {
        "deepseek" => "deepseek_v4",
        "mistral" => "mistral",
        "openai" => "gpt_oss",
        "generic" => "default",
        _ => "qwen3",
    }
}

/// Every golden file's name and what belongs into it.
fn all() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for engine in Engine::all() {
        let plans = Engine::named(engine).0.by_text();
        for family in Family::all().filter(|_| plans.contains(PlanKind::ChatContinue)) {
            for state in STATES {
                let planned = planned(PlanKind::ChatContinue, family, engine, state);
                all.push((format!("{family}.{engine}.{state}.json"), planned));
            }
        }
        for kind in [PlanKind::Prefix, PlanKind::Replay].into_iter().filter(|kind| plans.contains(*kind)) {
            for state in ALL_STATES {
                let planned = planned(kind, usual_family(engine), engine, state);
                all.push((format!("{}.{engine}.{state}.json", kind.name()), planned));
            }
        }
    }
    all
}

#[test]
fn every_plan_on_every_engine_in_every_state_is_the_one_in_its_golden_file() {
    let bless = env::var_os("BLESS").is_some_and(|value| value == "1");
    let mut expected = BTreeSet::new();
    let mut failures = Vec::new();
    for (name, got) in all() {
        let path = folder().join(&name);
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
    for entry in fs::read_dir(folder()).expect("the folder can be read") {
        let name = entry.expect("an entry can be read").file_name().to_string_lossy().into_owned();
        if !expected.contains(&name) {
            failures.push(format!("{name} belongs to no plan: delete it"));
        }
    }
    assert!(failures.is_empty(), "{}\nIf this is right, run with BLESS=1 and review.", failures.join("\n"));
}

#[test]
fn a_difference_shows_both_sides_and_what_is_around_them() {
    assert_eq!(difference("a\nb\nc\n", "a\nx\ny\nc\n"), "  a\n- b\n+ x\n+ y\n  c\n");
}

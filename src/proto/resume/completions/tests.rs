use serde_json::{Value, json};

use super::*;
use crate::proto::chat::Ratios;
use crate::proto::chat::fixtures::{COMPLETION, COMPLETION_IDS, COMPLETION_USAGE, events, folded};
use crate::proto::resume::{
    Abilities, Cut, Engine, Family, PlanKind, PlanSet, Settings, Step, Version, Way, from_ids, plan, way, way_of,
};
use crate::proto::splice::Repeats;

const RATIOS: Ratios = Ratios { cjk: 1.6, other: 4.0 };

/// A completion whose body has these fields.
fn request(fields: &str) -> ChatRequest {
    ChatRequest::parse_completion(format!(r#"{{"model":"m",{fields}}}"#).as_bytes()).expect("the request is read")
}

/// What these texts add up to.
fn written(texts: &[&str]) -> Partial {
    let event = |text: &&str| json!({"id": "cmpl-1", "choices": [{"index": 0, "text": text}]}).to_string();
    folded(texts.iter().map(event).collect::<Vec<_>>().iter().map(String::as_str))
}

fn budget(settings: &Settings) -> Budget<'_> {
    Budget { ratios: &RATIOS, rid: "fresh", force: false, lists_ids: false, settings }
}

/// A plan from text, for a family whose chats could not be continued.
fn ask(request: &ChatRequest, partial: &Partial, engine: &str) -> Result<Plan, Refused> {
    let (family, engine) = (Family::named("gpt_oss").0, Engine::named(engine).0);
    plan(request, partial, &family, &engine, &budget(&Settings::default()))
}

#[track_caller]
fn body(request: &ChatRequest, partial: &Partial, engine: &str) -> String {
    let plan = ask(request, partial, engine).expect("there is a plan");
    assert_eq!((plan.seam, plan.onward, plan.echo), (Seam::default(), Onward::Text, None));
    let Work::Request { path: "/v1/completions", body } = plan.work else { panic!("{:?}", plan.work) };
    String::from_utf8(body).expect("the body is text")
}

#[test]
fn the_text_stands_behind_the_prompt_and_all_else_keeps_its_bytes() {
    let sent =
        request(r#""temperature":0.70,"prompt":"\u4e09 ways\/ ","max_tokens":100,"x" : {"a":[1, 2.50]},"top_p":1E0"#);
    assert_eq!(
        body(&sent, &written(&["\n One", " \"two\" \u{5}", " \n"]), "vllm"),
        concat!(
            r#"{"model":"m","temperature":0.70,"prompt":"三 ways/ \n One \"two\" \u0005 \n","max_tokens":96,"x":{"a":[1, 2.50]},"#,
            r#""top_p":1E0,"stream":true,"stream_options":{"include_usage":true}}"#
        )
    );
    // White space alone is text like any other.
    assert!(body(&request(r#""prompt":["a"]"#), &written(&[" "]), "vllm").contains(r#""prompt":"a ""#));
}

#[test]
fn the_family_does_not_matter() {
    let (sent, partial, settings) = (request(r#""prompt":"a""#), written(&["</think> b"]), Settings::default());
    let engine = Engine::named("vllm").0;
    for family in ["default", "deepseek_v4", "qwen3"] {
        let planned = plan(&sent, &partial, &Family::named(family).0, &engine, &budget(&settings));
        assert_eq!(planned, ask(&sent, &partial, "vllm"));
    }
}

#[test]
fn ids_are_asked_for_where_leg_1_was_asked_for_them() {
    let (sent, partial, settings) = (request(r#""prompt":"a""#), written(&["b"]), Settings::default());
    let budget = Budget { lists_ids: true, ..budget(&settings) };
    for (engine, asked) in [("vllm", true), ("sglang", false)] {
        let planned = plan(&sent, &partial, &Family::named("qwen3").0, &Engine::named(engine).0, &budget).unwrap();
        let body: Value = serde_json::from_slice(planned.work.body()).expect("the body is JSON");
        assert_eq!(body.get("return_token_ids") == Some(&json!(true)), asked, "{engine}");
    }
}

#[test]
fn a_request_id_is_fresh_where_the_engine_wants_one() {
    let (sent, partial) = (request(r#""prompt":"a","rid":"used""#), written(&["b"]));
    assert!(body(&sent, &partial, "sglang").contains(r#""rid":"fresh""#));
    assert!(body(&sent, &partial, "vllm").contains(r#""rid":"used""#));
}

#[test]
fn what_cannot_be_continued_from_text_is_refused() {
    let some = written(&["b"]);
    for (fields, code) in [
        (r#""prompt":[1,2]"#, "prompt_not_text"),
        (r#""prompt":[[1,2]]"#, "prompt_not_text"),
        (r#""prompt":[]"#, "prompt_not_text"),
        (r#""prompt":"a","truncate_prompt_tokens":8"#, "prompt_not_text"),
        (r#""prompt":"a","truncate_prompt_tokens":-1"#, "prompt_not_text"),
        (r#""prompt":"a","suffix":"b""#, "suffix"),
        (r#""prompt":["a","b"]"#, "several_choices"),
        (r#""prompt":"a","logprobs":0"#, "logprobs"),
        (r#""prompt_embeds":"AAAA""#, "prompt_embeds"),
    ] {
        assert_eq!(ask(&request(fields), &some, "vllm").unwrap_err().code(), code, "{fields}");
    }
    assert!(ask(&request(r#""prompt":"a","truncate_prompt_tokens":null"#), &some, "vllm").is_ok());
    let sent = request(r#""prompt":"a""#);
    let chunk = |choice: &str| folded([format!(r#"{{"id":"i","choices":[{choice}]}}"#).as_str()]);
    for (partial, refused) in [
        (Partial::default(), Refused::NothingToContinue),
        (written(&[""]), Refused::NothingToContinue),
        (chunk(r#"{"index":0,"text":["a"]}"#), Refused::NotText),
        (chunk(r#"{"index":0,"delta":{"content":"a","reasoning":"b"}}"#), Refused::NotText),
        (chunk(r#"{"index":0,"delta":{"content":"a","tool_calls":[{"index":0}]}}"#), Refused::NotText),
        (chunk(r#"{"index":0,"text":"a","finish_reason":"stop"}"#), Refused::Finished),
    ] {
        assert_eq!(ask(&sent, &partial, "vllm").unwrap_err(), refused);
    }
    assert!(ask(&sent, &chunk(r#"{"index":0,"text":"a","finish_reason":"abort"}"#), "vllm").is_ok());
}

/// What becomes of the limits after so many tokens.
fn limits(fields: &str, tokens: u64, exact: bool) -> Result<Value, Refused> {
    let request = request(&format!(r#""prompt":"a"{fields}"#));
    let left = left(&request, Counted { tokens, exact })?;
    let body = by_ids(&request, &[1].into_iter().collect(), &left);
    let body: Value = serde_json::from_slice(&body).expect("the body is JSON");
    let keys = ["max_tokens", "max_completion_tokens", "min_tokens", "thinking_token_budget"];
    Ok(keys.into_iter().filter_map(|key| Some((key.to_owned(), body.get(key)?.clone()))).collect())
}

#[test]
fn limits_lose_what_was_generated() {
    for (fields, left) in [
        (r#","max_tokens":20"#, json!({"max_tokens": 15})),
        (r#","max_tokens":6,"min_tokens":9"#, json!({"max_tokens": 1, "min_tokens": 4})),
        (r#","max_tokens":"20","min_tokens":2"#, json!({"max_tokens": 15, "min_tokens": 0})),
        // Only `max_tokens` limits a completion, and thinking is counted from the prompt.
        (
            r#","max_completion_tokens":3,"thinking_token_budget":7"#,
            json!({"max_tokens": 11, "max_completion_tokens": 3, "thinking_token_budget": 7}),
        ),
        (r#","max_tokens":0"#, json!({"max_tokens": 0})),
    ] {
        assert_eq!(limits(fields, 5, true), Ok(left), "{fields}");
    }
    assert_eq!(limits(r#","max_tokens":5"#, 5, true), Err(Refused::BudgetSpent { exact: true }));
    assert_eq!(limits(r#","max_tokens":5"#, 6, false), Err(Refused::BudgetSpent { exact: false }));
    assert_eq!(limits(r#","max_tokens":5,"stop":"x""#, 5, true), Err(Refused::BudgetSpent { exact: false }));
}

#[test]
fn a_limit_that_was_not_sent_is_16_until_an_engine_shows_another() {
    for sent in ["", r#","max_tokens":null"#] {
        let spent = |exact| Err(Refused::BudgetSpent { exact });
        for (tokens, exact, expected) in [
            (0, true, Ok(json!({"max_tokens": 16}))),
            (15, true, Ok(json!({"max_tokens": 1}))),
            (15, false, Ok(json!({"max_tokens": 1}))),
            (16, true, spent(true)),
            (16, false, spent(false)),
            (32, false, spent(false)),
        ] {
            assert_eq!(limits(sent, tokens, exact), expected, "{sent} after {tokens}");
        }
        let untouched = if sent.is_empty() { json!({}) } else { json!({"max_tokens": null}) };
        for (tokens, exact) in [(17, true), (33, false)] {
            assert_eq!(limits(sent, tokens, exact), Ok(untouched.clone()), "{sent} after {tokens}");
        }
    }
}

#[test]
fn ids_are_the_whole_prompt_and_are_not_shortened_again() {
    let sent = request(r#""prompt":"a","truncate_prompt_tokens":4,"max_tokens":9,"return_token_ids":false,"x":[ 1 ]"#);
    let left = left(&sent, Counted { tokens: 2, exact: true }).expect("some is left");
    let body = by_ids(&sent, &[151_644, 872, 198].into_iter().collect(), &left);
    let expected = r#"{"model":"m","prompt":[151644,872,198],"max_tokens":7,"return_token_ids":true,"x":[ 1 ],"stream":true,"stream_options":{"include_usage":true}}"#;
    assert_eq!(String::from_utf8(body).expect("the body is text"), expected);
}

/// The way by ids.
fn exact(request: &ChatRequest, partial: &Partial, version: Option<&str>) -> Result<Way, Refused> {
    let version = version.and_then(Version::parse);
    let settings = Settings { abilities: Abilities { version, scale_out: false }, ..Settings::default() };
    let (family, engine) = (Family::named("qwen3").0, Engine::named("vllm").0);
    way_of(PlanKind::TokenExact, request, partial, &family, &engine, &budget(&settings))
}

#[test]
fn a_prompt_of_either_kind_is_continued_by_ids_on_any_engine_that_lists_them() {
    let partial = folded(events(COMPLETION_IDS).take(3));
    for prompt in [r#""a""#, "[1,2]", r#"["a"]"#] {
        let sent = request(&format!(r#""prompt":{prompt},"truncate_prompt_tokens":4"#));
        for (version, expected) in [(None, Ok(())), (Some("0.10.2"), Ok(())), (Some("0.9.1"), Err(Refused::TooOld))] {
            assert_eq!(exact(&sent, &partial, version).map(drop), expected, "{prompt} on {version:?}");
        }
        let none = folded(events(COMPLETION).take(3));
        assert_eq!(exact(&sent, &none, None).map(drop), Err(Refused::NoIds));
    }
    let (sent, settings) = (request(r#""prompt":[1,2]"#), Settings::default());
    let (family, engine) = (Family::named("qwen3").0, Engine::named("sglang").0);
    let without = way(&sent, &written(&["a"]), &family, &engine, PlanSet::default(), &budget(&settings));
    assert_eq!(without.map(drop), Err(Refused::PromptNotText));
}

#[test]
fn a_recorded_answer_is_continued_by_ids_from_every_event() {
    let sent = request(r#""prompt":"P: ","max_tokens":14"#);
    let whole: Vec<_> = events(COMPLETION_IDS).filter(|data| data.contains(r#""finish_reason":null"#)).collect();
    let ids_in = |data: &str| -> Vec<u32> {
        let event: Value = serde_json::from_str(data).expect("an event is JSON");
        serde_json::from_value(event["choices"][0]["token_ids"].clone()).expect("ids")
    };
    for cut in 1..=whole.len() {
        let partial = folded(whole[..cut].iter().copied());
        let Way::Search(mut search) = exact(&sent, &partial, None).expect("there is a way") else {
            panic!("no search")
        };
        let Step::Ask(question) = search.step() else { panic!("nothing is asked") };
        let asked: Value = serde_json::from_slice(&question.body).expect("the question is JSON");
        let last = whole[..cut].iter().rposition(|data| !text_in(data).is_empty()).expect("there is text");
        let heard: Vec<u32> = whole[..=last].iter().flat_map(|data| ids_in(data)).collect();
        assert_eq!(asked["tokens"], json!(heard));
        // All of them but the last few are more than the text: two characters of it are withheld for the stop string.
        let delivered: String = whole[..cut].iter().map(|data| text_in(data)).collect();
        search.told(json!({"prompt": format!("{delivered}er")}).to_string().as_bytes());
        let kept = heard.len() - 1;
        let begun = &delivered[..delivered.len() - 1];
        let found = loop {
            match search.step() {
                Step::Ask(_) => search.told(json!({"prompt": begun}).to_string().as_bytes()),
                Step::Found(found) => break found,
                Step::Lost(refused) => panic!("{refused}"),
            }
        };
        let repeats = Repeats {
            content: if kept == 0 { delivered.clone() } else { delivered[begun.len()..].to_owned() },
            ..Repeats::default()
        };
        assert_eq!(found, Cut { ids: kept, repeats: repeats.clone(), mark: None }, "cut after {cut} events");
        let planned = from_ids(&sent, &partial, found, &RATIOS).expect("there is a plan");
        assert_eq!((planned.seam.repeats, planned.onward), (repeats, Onward::Ids(kept)));
        let Work::Request { path: "/v1/completions", body } = planned.work else { panic!("{:?}", planned.work) };
        let body: Value = serde_json::from_slice(&body).expect("the body is JSON");
        let prompt = folded([whole[0]]).ids().expect("ids").prompt.clone();
        let expected: Vec<u32> = prompt.iter().chain(heard[..kept].iter().copied()).collect();
        assert_eq!((&body["prompt"], &body["max_tokens"]), (&json!(expected), &json!(14 - kept)));
        assert_eq!(planned.echo.map(|echo| echo.iter().collect()), Some(expected));
    }
}

#[test]
fn a_recorded_answer_is_continued_from_every_event() {
    let sent = request(r#""prompt":"P: ","max_tokens":14,"stream_options":{"continuous_usage_stats":true}"#);
    for sse in [COMPLETION, COMPLETION_IDS, COMPLETION_USAGE] {
        let whole: Vec<_> = events(sse).filter(|data| data.contains(r#""finish_reason":null"#)).collect();
        for cut in 1..=whole.len() {
            let partial = folded(whole[..cut].iter().copied());
            let body: Value = serde_json::from_str(&body(&sent, &partial, "vllm")).expect("the body is JSON");
            let text: String = whole[..cut].iter().map(|data| text_in(data)).collect();
            assert_eq!(body["prompt"], format!("P: {text}"));
            let expected = json!({"continuous_usage_stats": true, "include_usage": true});
            assert_eq!(body["stream_options"], expected);
            if sse != COMPLETION {
                assert_eq!(body["max_tokens"], 14 - cut, "each event is a token");
            }
        }
    }
}

fn text_in(data: &str) -> String {
    let event: Value = serde_json::from_str(data).expect("an event is JSON");
    event["choices"][0]["text"].as_str().expect("a text").to_owned()
}

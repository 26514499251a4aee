//! What goes wrong, and what the leg then says.

use serde_json::{Value, json};

use super::engine::Engine;
use super::*;

/// A leg of the weather answer, cut in the middle of the tool call, and its engine.
fn weather() -> (Engine, Rendering) {
    let engine = Engine::weather();
    let (partial, ids) = first_leg(&engine.uncut[..17]);
    let leg = Rendering::new(&engine.request, &partial, Some(ids), &family(), Settings::default()).unwrap();
    (engine, leg)
}

/// Answers questions until one of this path comes.
fn until(engine: &mut Engine, leg: &mut Rendering, path: &str) {
    loop {
        match leg.poll().unwrap() {
            Need::Ask(question) | Need::Generate(question) if question.path == path => return,
            Need::Ask(question) => leg.answered(200, engine.answer(&question).to_string().as_bytes()),
            other => panic!("{other:?}"),
        }
    }
}

/// A leg whose generating stream is open.
fn open() -> (Engine, Rendering) {
    let (mut engine, mut leg) = weather();
    until(&mut engine, &mut leg, GENERATE);
    leg.opened();
    assert!(matches!(leg.poll(), Ok(Need::Bytes(_))), "the role");
    (engine, leg)
}

fn token(id: u32) -> Vec<u8> {
    let choice = json!({"index": 0, "token_ids": [id], "text": "x", "finish_reason": null});
    format!("data: {}\n\n", json!({"choices": [choice]})).into_bytes()
}

/// What is left of a leg: its events, and how it ends.
fn rest(engine: &mut Engine, leg: &mut Rendering) -> (Vec<String>, Result<(), Broken>) {
    let mut out = Vec::new();
    let end = loop {
        match leg.poll() {
            Ok(Need::Bytes(bytes)) => out.extend(bytes),
            Ok(Need::Ask(question)) => leg.answered(200, engine.answer(&question).to_string().as_bytes()),
            Ok(Need::End) => break Ok(()),
            Ok(other) => panic!("{other:?}"),
            Err(broken) => break Err(broken),
        }
    };
    (events(&out), end)
}

#[test]
fn a_step_that_is_refused_says_which_and_with_what() {
    for path in [RENDER, DERENDER, GENERATE] {
        let (mut engine, mut leg) = weather();
        until(&mut engine, &mut leg, path);
        leg.answered(404, b"{\"detail\":\"Not Found\"}");
        let broken = Broken::Status { path, status: 404, body: r#"{"detail":"Not Found"}"#.to_owned() };
        assert_eq!(leg.poll(), Err(broken.clone()));
        assert_eq!(leg.poll(), Err(broken), "and says it again");
    }
}

#[test]
fn an_answer_of_another_kind_is_the_engines_fault() {
    for (path, answer) in [
        (RENDER, "[]"),
        (RENDER, r#"{"token_ids":[],"sampling_params":{}}"#),
        (RENDER, r#"{"token_ids":[1]}"#),
        (DERENDER, "{}"),
        (DERENDER, r#"{"chunk":{"choices":[]},"stream_state":{"last_tool_call_ids":[]}}"#),
        (DERENDER, r#"{"chunk":{"choices":[{"index":0,"delta":{}}]}}"#),
    ] {
        let (mut engine, mut leg) = weather();
        until(&mut engine, &mut leg, path);
        leg.answered(200, answer.as_bytes());
        assert!(matches!(leg.poll(), Err(Broken::Malformed { path: said, .. }) if said == path), "{answer}");
    }
    // Text whose ids are missing would be missing from the answer.
    for choice in [r#"{"token_ids":[-1]}"#, r#"{"text":"x"}"#, r#"{"text":"x","token_ids":null}"#] {
        let (_, mut leg) = open();
        leg.generated(format!("data: {{\"choices\":[{choice}]}}\n\n").as_bytes());
        assert!(matches!(leg.poll(), Err(Broken::Malformed { path: GENERATE, .. })), "{choice}");
    }
}

#[test]
fn ids_that_are_another_text_are_told_before_anything_is_generated() {
    for delta in [
        json!({"tool_calls": [{"index": 0, "function": {"name": "get_time"}}]}),
        json!({"tool_calls": [{"index": 0, "function": {"name": "get_weather", "arguments": "{\"town"}}]}),
        json!({"reasoning": "Behind the beginning of the answer."}),
    ] {
        let (mut engine, mut leg) = weather();
        until(&mut engine, &mut leg, DERENDER);
        let chunk = json!({"choices": [{"index": 0, "delta": delta}]});
        leg.answered(200, json!({"chunk": chunk, "stream_state": {"last_tool_call_ids": []}}).to_string().as_bytes());
        assert_eq!(leg.poll(), Err(Broken::Differs), "{chunk}");
    }
}

#[test]
fn an_error_event_comes_through_behind_the_text_before_it() {
    let (mut engine, mut leg) = open();
    let next = engine.ids[16];
    leg.generated(&token(next));
    leg.generated(b"data: {\"error\":{\"message\":\"m\",\"code\":500}}\n\ndata: [DONE]\n\n");
    let (events, end) = rest(&mut engine, &mut leg);
    assert_eq!(end, Ok(()));
    assert!(events[0].contains("arguments"), "{events:?}");
    assert_eq!(events[1..], [r#"{"error":{"message":"m","code":500}}"#, "[DONE]"]);
}

#[test]
fn an_abort_stays_one_and_the_parser_is_not_told() {
    let (mut engine, mut leg) = open();
    let next = engine.ids[16];
    leg.generated(&token(next));
    leg.generated(
        b"data: {\"choices\":[{\"index\":0,\"token_ids\":[],\"finish_reason\":\"abort\"}]}\n\ndata: [DONE]\n\n",
    );
    let (events, _) = rest(&mut engine, &mut leg);
    let finishes: Vec<Value> = events
        .iter()
        .filter_map(|event| {
            let event: Value = serde_json::from_str(event).ok()?;
            Some(event["choices"][0]["finish_reason"].clone())
        })
        .collect();
    assert_eq!(finishes, [Value::Null, json!("abort")]);
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
}

#[test]
fn what_came_before_a_cut_is_delivered_and_nothing_says_that_it_is_over() {
    let (mut engine, mut leg) = open();
    let next = engine.ids[16];
    leg.generated(&token(next));
    assert_eq!(leg.poll(), Ok(Need::More), "one token is no batch");
    leg.generate_ended();
    let (events, end) = rest(&mut engine, &mut leg);
    assert_eq!((events.len(), end), (1, Ok(())));
    assert!(!events[0].contains("DONE"));
}

#[test]
fn a_length_is_no_tool_call_although_the_parser_says_so() {
    let (mut engine, mut leg) = open();
    let choice =
        json!({"index": 0, "token_ids": [engine.ids[16]], "text": "x", "finish_reason": "length", "stop_reason": null});
    leg.generated(format!("data: {}\n\ndata: [DONE]\n\n", json!({"choices": [choice]})).as_bytes());
    let (events, _) = rest(&mut engine, &mut leg);
    assert!(events[0].contains(r#""finish_reason":"length""#), "{events:?}");
}

#[test]
fn an_event_over_the_limit_ends_the_leg() {
    let engine = Engine::weather();
    let (partial, ids) = first_leg(&engine.uncut[..17]);
    let settings = Settings { max_event: 50, ..Settings::default() };
    let mut leg = Rendering::new(&engine.request, &partial, Some(ids), &family(), settings).unwrap();
    let mut engine = engine;
    until(&mut engine, &mut leg, GENERATE);
    leg.opened();
    leg.generated(&token(1));
    assert!(matches!(leg.poll(), Ok(Need::Bytes(_))), "what came before is good");
    assert_eq!(leg.poll(), Err(Broken::TooLong(TooLong { limit: 50 })));
}

#[test]
fn an_answer_as_long_as_allowed_is_not_continued() {
    let (mut engine, mut leg) = weather();
    until(&mut engine, &mut leg, RENDER);
    leg.answered(200, br#"{"token_ids":[1],"sampling_params":{"max_tokens":16}}"#);
    let Ok(Need::Ask(question)) = leg.poll() else { panic!("the seam") };
    leg.answered(200, engine.answer(&question).to_string().as_bytes());
    assert_eq!(leg.poll(), Err(Broken::Refused(Refused::BudgetSpent { exact: true })));
}

#[test]
fn an_answer_that_was_not_asked_for_is_a_fault() {
    let (_, mut leg) = weather();
    leg.answered(200, b"{}");
    assert_eq!(leg.poll(), Err(Broken::Unasked));
}

#[test]
fn what_this_plan_is_not_for_is_refused_at_once() {
    let engine = Engine::story();
    let refused = |key: &str, value: Value, cut: usize, known: bool| {
        let mut request = engine.request.clone();
        request.set(key, &value);
        let (partial, ids) = first_leg(&engine.uncut[..cut]);
        Rendering::new(&request, &partial, known.then_some(ids), &family(), Settings::default()).err()
    };
    let half = engine.uncut.len() / 2;
    assert_eq!(refused("stop", json!(["x"]), half, true), Some(Refused::StopStrings));
    assert_eq!(refused("include_reasoning", json!(false), half, false), Some(Refused::ThinkingHidden));
    assert_eq!(refused("include_reasoning", json!(false), half, true), None);
    assert!(matches!(refused("n", json!(2), half, true), Some(Refused::Excluded(_))));
    assert_eq!(refused("user", json!("u"), 1, false), Some(Refused::NothingToContinue));
    assert_eq!(refused("user", json!("u"), 1, true), None);
    assert_eq!(refused("user", json!("u"), engine.uncut.len(), true), Some(Refused::Finished));
    let media = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]);
    assert_eq!(refused("messages", media, half, true), Some(Refused::Media));
    let weather = Engine::weather();
    let (partial, _) = first_leg(&weather.uncut[..17]);
    let without = Rendering::new(&weather.request, &partial, None, &family(), Settings::default());
    assert_eq!(without.err(), Some(Refused::ToolCallShown));
}

#[test]
fn what_was_said_is_not_in_what_is_logged() {
    let (mut engine, mut leg) = weather();
    until(&mut engine, &mut leg, DERENDER);
    let shown = format!("{leg:?}");
    assert!(!shown.contains("Paris") && !shown.contains("weather"), "{shown}");
}

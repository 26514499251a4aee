//! The plans beside token-exact, what a failure has asked of an engine, and answers of a prescribed form: on real sockets.

mod support;

use baton::mock::{Config, Engine, Leg, ReasoningField, Running, Stop};
use serde_json::{Value, json};

use support::{Answer, Rig, Setup, client, request, rig, within};

/// One engine of another kind than vLLM, and Baton before it.
async fn single(engine: &'static str, fault: &str, route: &str, change: impl Fn(&mut Config)) -> Rig {
    let mut setup = Setup { engine, ..Setup::new(fault) }.route(route);
    setup.engines.truncate(1);
    change(&mut setup.engines[0]);
    setup.start().await
}

/// A request that wants usage at the end.
fn counted() -> Value {
    let mut body = request();
    body["stream_options"] = json!({"include_usage": true});
    body
}

/// The texts of the first events of an answer without ids.
fn said_by(wire: &[String], events: usize) -> (String, String) {
    let (mut reasoning, mut content) = (String::new(), String::new());
    for event in wire[..events].iter().filter_map(|data| serde_json::from_str::<Value>(data).ok()) {
        let delta = &event["choices"][0]["delta"];
        for key in ["reasoning", "reasoning_content"] {
            reasoning += delta[key].as_str().unwrap_or_default();
        }
        content += delta["content"].as_str().unwrap_or_default();
    }
    (reasoning, content)
}

fn continued(plan: &str) -> String {
    format!(r#"baton_continuations_total{{outcome="continued",plan="{plan}"}} 1"#)
}

#[tokio::test]
async fn an_engine_that_cannot_go_on_is_asked_for_the_rest_where_the_route_says_so() {
    let thoughtless = |config: &mut Config| config.reasoning = 0;
    let rig = single("openai", "#1 eof@9", "continuation: {plan: replay}", thoughtless).await;
    let body = counted();
    let answer = rig.ask(&body).await;
    let [first, second] = &rig.asked()[..] else { panic!("two requests: {:?}", rig.asked()) };
    assert_eq!((first.body.as_str(), &*second.target), (&*body.to_string(), "/v1/chat/completions"));

    // The client's request, the answer so far, and a user who asks for the rest.
    let (mut asked, (_, had)) = (second.json(), said_by(&rig.wire(&body), 9));
    let rest = rig.uncut(&asked);
    let messages: Vec<Value> = asked["messages"].take().as_array().expect("messages").clone();
    assert_eq!(messages[0], body["messages"][0]);
    assert_eq!(messages[1], json!({"role": "assistant", "content": had}));
    assert_eq!((messages.len(), &messages[2]["role"]), (3, &json!("user")));
    let mut own = body.clone();
    own["messages"].take();
    assert_eq!(asked, own, "all else is as it was");

    assert_eq!(answer.content, format!("{had}{}", rest.content_text()), "the engine's own idea of the rest");
    assert_eq!(
        (answer.finish, answer.done, answer.ids.len(), answer.roles),
        (vec![rest.finish.to_owned()], true, 1, 1)
    );
    let events: Vec<&str> = answer.body.split_terminator("\n\n").collect();
    let marked = |event: &&&str| event.contains(r#""baton":{"plan":"replay","exact":false}"#);
    assert_eq!(events.iter().filter(marked).count(), 1, "{}", answer.body);
    assert!(events[9].contains(r#""baton":"#), "the first event that is not the first engine's: {events:#?}");
    let metrics = rig.metrics().await;
    assert!(metrics.contains(&continued("replay")), "{metrics}");
}

#[tokio::test]
async fn an_engine_that_cannot_go_on_is_asked_for_nothing_unless_the_route_says_so() {
    let rig = single("openai", "#1 eof@12", "", |_| {}).await;
    rig.ask(&counted()).await.assert_incomplete(&rig.uncut(&counted()));
    assert_eq!(rig.asked().len(), 1);
    assert!(!rig.metrics().await.contains(r#"outcome="continued""#));
}

#[tokio::test]
async fn a_prefix_goes_to_the_path_that_takes_it() {
    let plays = |config: &mut Config| {
        config.strict = false; // it knows what vLLM and SGLang want to see
        config.family = "default".to_owned();
        config.reasoning_field = Some(ReasoningField::ReasoningContent);
    };
    let mut setup = Setup { engine: "deepseek", family: "default", ..Setup::new("#1 rst@12") };
    setup.engines.truncate(1);
    plays(&mut setup.engines[0]);
    let rig = setup.start().await;
    let mut body = counted();
    body["max_tokens"] = json!(80);
    let answer = rig.ask(&body).await;
    answer.assert_whole(&rig.uncut(&body));
    let [first, second] = &rig.asked()[..] else { panic!("two requests: {:?}", rig.asked()) };
    assert_eq!((&*first.target, &*second.target), ("/v1/chat/completions", "/beta/chat/completions"));
    assert_eq!((first.leg, second.leg), (Leg::First, Leg::Continuation));
    let asked = second.json();
    let message = asked["messages"].as_array().and_then(|list| list.last()).expect("a message");
    // A reset may take with it what had not been read yet.
    let had = message["content"].as_str().expect("the answer so far");
    let whole = rig.uncut(&body);
    assert!(!had.is_empty() && whole.content_text().starts_with(had), "{had}");
    assert_eq!((&message["role"], &message["prefix"]), (&json!("assistant"), &json!(true)));
    assert_eq!(message["reasoning_content"], whole.reasoning_text());
    assert!(asked.get("continue_final_message").is_none() && asked.get("return_token_ids").is_none());
    assert!(asked["max_tokens"].as_u64().is_some_and(|left| left < 80), "{asked}");
    let metrics = rig.metrics().await;
    assert!(metrics.contains(&continued("prefix")), "{metrics}");
}

/// How often an engine has been asked what it is. Its faults have to name that endpoint, or it does not count these.
fn probes(engine: &Running) -> usize {
    engine.requests().iter().filter(|seen| seen.target == "/version").count()
}

async fn probed(engine: &Running, times: usize) {
    within(async {
        loop {
            let seen = engine.request_count();
            if probes(engine) >= times {
                return;
            }
            engine.wait_requests(seen + 1).await;
        }
    })
    .await;
}

/// A fault that never happens.
const COUNTED: &str = "version#99 status:500";

/// The engine that got the first leg, and the other one.
fn first_and_other(rig: &Rig) -> (&Running, &Running) {
    let [one, other] = &rig.engines[..] else { panic!("two engines") };
    let is_first = one.requests().iter().any(|seen| seen.leg == Leg::First);
    if is_first { (one, other) } else { (other, one) }
}

#[tokio::test]
async fn an_engine_that_broke_off_is_asked_again_what_it_is() {
    let rig = rig(&format!("leg1 eof@12, {COUNTED}"), "", |_| {}).await;
    for engine in &rig.engines {
        probed(engine, 1).await;
    }
    let body = request();
    rig.ask(&body).await.assert_whole(&rig.uncut(&body));
    let (lost, well) = first_and_other(&rig);
    probed(lost, 2).await;
    assert_eq!(probes(well), 1, "the one that went on is believed");
}

/// Both engines are asked again: the one that broke off, and the one that would not go on.
async fn check_refusal(refusal: &str) {
    let rig = rig(&format!("leg1 eof@12, leg2 {refusal}, {COUNTED}"), "", |_| {}).await;
    for engine in &rig.engines {
        probed(engine, 1).await;
    }
    rig.ask(&request()).await.assert_incomplete(&rig.uncut(&request()));
    let (lost, refusing) = first_and_other(&rig);
    assert!(refusing.requests().iter().any(|seen| seen.leg == Leg::Continuation), "{refusal}");
    probed(lost, 2).await;
    probed(refusing, 2).await;
}

#[tokio::test]
async fn an_engine_that_would_not_go_on_is_asked_again_what_it_is() {
    // Side by side: none is asked more often than every three seconds.
    tokio::join!(check_refusal("status:503"), check_refusal("rst@head"), check_refusal("status:400"));
}

#[tokio::test]
async fn an_engine_that_takes_no_connection_is_asked_once_it_is_back() {
    let rig = rig(&format!("leg1 eof@12, {COUNTED}"), "", |_| {}).await;
    for engine in &rig.engines {
        probed(engine, 1).await;
    }
    // One is gone while nobody uses it; the streams meet the other one, or its closed port.
    let [gone, well] = &rig.engines[..] else { panic!("two engines") };
    gone.kill(Stop::Fin).await;
    within(gone.ended()).await;
    let body = request();
    rig.ask(&body).await.assert_whole(&rig.uncut(&body));
    assert!(well.requests().iter().any(|seen| seen.leg == Leg::Continuation));
    let back = Config { listen: gone.addr(), ..gone.config().clone() };
    let back = Engine::start(back).await.expect("its address is free again");
    probed(&back, 1).await;
}

fn forms() -> Vec<Value> {
    let schema = json!({"name": "answer", "schema": {"type": "object"}});
    let tools = json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    vec![
        json!({"response_format": {"type": "json_object"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": schema}}),
        json!({"tools": tools, "tool_choice": "required"}),
    ]
}

fn of_form(form: &Value) -> Value {
    let mut body = counted();
    form.as_object().expect("an object").iter().for_each(|(key, value)| body[key] = value.clone());
    body
}

const BUFFERED: &str = "continuation: {buffer_structured: true}";

/// How often something of the answer stands in a body, thinking apart.
fn answers(body: &str) -> usize {
    let read = |event: &str| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok();
    let says = |event: Value| {
        let delta = &event["choices"][0]["delta"];
        delta["tool_calls"].is_array() || delta["content"].as_str().is_some_and(|text| !text.is_empty())
    };
    body.split_terminator("\n\n").filter_map(read).filter(|event| says(event.clone())).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_a_prescribed_form_comes_whole_and_once_or_not_at_all() {
    for form in forms() {
        let called = |config: &mut Config| config.tool_call = Some(0);
        let body = of_form(&form);
        let wire = rig("", "", called).await.wire(&body);
        let closed = wire.iter().position(|data| data.contains("[151668]")).expect("the end of thinking");
        for place in [closed + 2, (closed + wire.len()) / 2, wire.len() - 3] {
            let at = format!("{form}, cut before event {place} of {}", wire.len());
            let rig = rig(&format!("leg1 stall@{place}"), BUFFERED, called).await;
            let (answer, held) = tokio::join!(rig.ask(&body), async {
                let [one, other] = &rig.engines[..] else { panic!("two engines") };
                let lost = within(async {
                    tokio::select! { () = one.wait_stalled(0) => one, () = other.wait_stalled(0) => other }
                })
                .await;
                lost.kill(Stop::Fin).await;
                lost.request(0).expect("a request").events
            });
            assert!(held >= place as u64, "{at}: the engine had said a part of it");
            let whole = rig.uncut(&body);
            answer.assert_whole(&whole);
            assert_eq!(answer.usage, Some((whole.prompt_tokens, whole.completion_tokens)), "{at}");
            assert_eq!(Some(answer.tool_arguments).filter(|text| !text.is_empty()), whole.tool_call.map(|call| call.1));
            // The engine would begin its document once more behind a part of it, and in strict mode refuses to.
            let [asked] = &rig.continuations()[..] else { panic!("{at}: one continuation") };
            let ids = asked["kv_transfer_params"]["prompt_token_ids"].as_array().expect("by ids").len();
            assert!(ids <= whole.prompt_ids.len() + closed, "{at}: {ids} ids, of the thinking alone");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_prescribed_form_is_shown_before_it_is_whole() {
    for form in forms() {
        let body = of_form(&form);
        let called = |config: &mut Config| config.tool_call = Some(0);
        let wire = rig("", "", called).await.wire(&body);
        let finish = wire.iter().position(|data| data.contains(r#""finish_reason":""#)).expect("an end");
        // Both engines stop short of the last event: the first leg's thinking is all that there is to see.
        let rig = rig(&format!("stall@{}", finish - 1), BUFFERED, called).await;
        let mut response = rig.send(&client(), &body).await;
        let (thoughts, mut seen) = (rig.uncut(&body).reasoning_text(), String::new());
        while !said(&seen).ends_with(&thoughts) {
            let chunk = within(response.chunk()).await.expect("it is open").expect("there is more");
            seen += std::str::from_utf8(&chunk).expect("whole events");
        }
        for engine in &rig.engines {
            let begun = engine.requests().iter().any(|seen| seen.leg != Leg::Other);
            if begun {
                within(engine.wait_stalled(0)).await;
                engine.release(0);
            }
        }
        assert_eq!(answers(&seen), 0, "{form}: {seen}");
        let answer = Answer::read_after(seen.as_bytes(), response).await;
        answer.assert_whole(&rig.uncut(&body));
        assert!(answers(&answer.body) > 3, "{form}: {}", answer.body);
    }
}

fn said(body: &str) -> String {
    let wire: Vec<String> = body.split_terminator("\n\n").map(|event| event.replacen("data: ", "", 1)).collect();
    said_by(&wire, wire.len()).0
}

#[tokio::test]
async fn without_thinking_an_answer_of_a_prescribed_form_is_asked_for_again() {
    for form in forms() {
        let body = of_form(&form);
        let plain = |config: &mut Config| (config.reasoning, config.tool_call) = (0, Some(0));
        let rig = rig("#1 eof@6", BUFFERED, plain).await;
        let answer = rig.ask(&body).await;
        let whole = rig.uncut(&body);
        answer.assert_whole(&whole);
        assert_eq!(answer.usage, Some((whole.prompt_tokens, whole.completion_tokens)), "{form}");
        assert_eq!(Some(answer.tool_arguments).filter(|text| !text.is_empty()), whole.tool_call.map(|call| call.1));
        let asked = rig.asked();
        assert!(asked.iter().all(|seen| seen.leg == Leg::First), "{form}: the client's own request, and no plan");
        assert!(asked.len() > 1, "{form}");
        for seen in asked {
            for key in ["response_format", "tools", "tool_choice"] {
                assert_eq!(seen.json().get(key), body.get(key), "{form}");
            }
        }
    }
}

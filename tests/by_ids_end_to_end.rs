//! Continuing by token ids, on real sockets: what the client gets is, byte for byte, what an engine sends that nothing happens to.

mod support;

use baton::mock::{Config, Echo, Leg, Running, Stop};
use serde_json::{Value, json};

use support::{Answer, Rig, Setup, client, request, rig, within};

/// The answer of an engine of its own, without Baton, under the id that [`through`] asks for.
async fn direct(rig: &Rig, path: &str, body: &Value) -> String {
    let config =
        Config { ledger: None, faults: Vec::new(), name: "direct".to_owned(), ..rig.engines[0].config().clone() };
    let engine = baton::mock::Engine::start(config).await.expect("it starts");
    text(&format!("{}{path}", engine.url()), body).await
}

async fn through(rig: &Rig, path: &str, body: &Value) -> String {
    text(&format!("http://{}{path}", rig.address), body).await
}

async fn text(url: &str, body: &Value) -> String {
    let sent = client().post(url).header("x-request-id", "same").body(body.to_string()).send();
    let response = within(sent).await.expect("somebody answers");
    within(response.text()).await.expect("the body comes to its end")
}

/// A body without what tells one engine from another.
fn anonymous(body: &str) -> String {
    ["a", "b", "direct"]
        .iter()
        .fold(body.to_owned(), |body, name| body.replace(&format!("vllm-0.32.0-{name}\""), "vllm\""))
}

fn is_by_ids(continuation: &Value) -> bool {
    continuation["kv_transfer_params"]["prompt_token_ids"].is_array()
}

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// Where leg 1 is in thinking, where all of it has come, where its end has come, and where the answer has begun.
fn places(wire: &[String]) -> [usize; 4] {
    let closed = wire.iter().position(|data| data.contains("[151668]")).expect("the end of thinking");
    [closed / 2, closed, closed + 1, closed + 5]
}

/// The engine that has this request as its first, once its stream stands.
async fn stalled(rig: &Rig) -> &Running {
    let [one, other] = &rig.engines[..] else { panic!("two engines") };
    within(async {
        tokio::select! {
            () = one.wait_stalled(0) => one,
            () = other.wait_stalled(0) => other,
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_outlives_its_engine_in_thinking_at_the_step_and_in_the_answer() {
    let body = request();
    let wire = rig("", "", |_| {}).await.wire(&body);
    for place in places(&wire) {
        for stop in [Stop::Rst, Stop::Fin, Stop::Abort, Stop::Error] {
            let rig = rig(&format!("leg1 stall@{place}"), "", |_| {}).await;
            let (got, ()) = tokio::join!(through(&rig, CHAT, &body), async {
                stalled(&rig).await.kill(stop).await;
            });
            let at = format!("{stop:?} before event {place}");
            assert_eq!(anonymous(&got), anonymous(&direct(&rig, CHAT, &body).await), "{at}");
            let asked: Vec<Value> = rig.continuations();
            assert!(asked.len() == 1 && is_by_ids(&asked[0]), "{at}: {asked:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_is_the_uncut_answers_however_it_is_asked_for() {
    let mut at_end = request();
    at_end["stream_options"] = json!({"include_usage": true});
    let mut none = request();
    none.as_object_mut().expect("an object").remove("stream_options");
    for body in [request(), at_end, none] {
        let places = places(&rig("", "", |_| {}).await.wire(&body));
        for (place, offset) in places.into_iter().zip(["+half", "", "", "+char"]) {
            let rig = rig(&format!("leg1 eof@{place}{offset}"), "", |_| {}).await;
            let (got, mut wanted) = (through(&rig, CHAT, &body).await, direct(&rig, CHAT, &body).await);
            if body.get("stream_options").is_none() {
                // It comes with the usage, which the client did not ask for.
                wanted = wanted.replace(r#","system_fingerprint":"vllm-0.32.0-direct""#, "");
            }
            assert_eq!(anonymous(&got), anonymous(&wanted), "{body}, cut at {place}{offset}");
        }
    }
}

#[tokio::test]
async fn ids_that_the_client_asks_for_are_shown_once() {
    let mut body = request();
    body["return_token_ids"] = json!(true);
    let wire = rig("", "", |_| {}).await.wire(&body);
    let ids = |body: &str| -> Vec<Value> {
        let data =
            body.split("\n\n").filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok());
        data.flat_map(|event| event["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default()).collect()
    };
    let mut cut = 0;
    // Behind an event with text; behind one without, its ids would be shown twice, and nothing goes on from them.
    for place in (3..wire.len() - 3).filter(|place| !wire[place - 1].contains(r#""delta":{}"#)) {
        let rig = rig(&format!("leg1 rst@{place}"), "", |_| {}).await;
        let (got, wanted) = (through(&rig, CHAT, &body).await, direct(&rig, CHAT, &body).await);
        if !rig.continuations().iter().any(is_by_ids) {
            continue; // a text that ends inside a token
        }
        cut += 1;
        assert_eq!(anonymous(&got), anonymous(&wanted), "before event {place}");
        assert_eq!(ids(&got), ids(&wanted), "before event {place}");
        assert_eq!(got.matches(r#""prompt_token_ids":["#).count(), 1, "before event {place}");
    }
    assert!(cut > 10, "{cut} cuts");
}

#[tokio::test]
async fn leg_1_is_the_clients_request_and_one_field_more_or_not_even_that() {
    let body = request();
    for (route, listing) in [
        ("", true),
        ("continuation: {plan: token-exact}", true),
        ("continuation: {plan: chat-continue}", false),
        ("continuation: {plan: [chat-continue, replay]}", false),
        ("continuation: {enabled: observe}", false),
        ("continuation: {enabled: false}", false),
    ] {
        let rig = rig("", route, |_| {}).await;
        through(&rig, CHAT, &body).await;
        let sent = rig.asked().remove(0).body;
        let own = body.to_string();
        let wanted = if listing { format!(r#"{},"return_token_ids":true}}"#, &own[..own.len() - 1]) } else { own };
        assert_eq!(sent, wanted, "{route}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_streams_lose_their_engine_at_different_places() {
    let rig = rig("", "", |_| {}).await;
    let client = client();
    let streams: Vec<_> = (0..200)
        .map(|number| {
            let mut body = request();
            body["seed"] = json!(number);
            body["stream_options"] = json!({"include_usage": true});
            let fault = format!("leg1 {}@{}", ["rst", "eof", "end", "abort", "error"][number % 5], 2 + number % 17);
            let sent = client.post(rig.url()).header("mock-fault", fault).body(body.to_string()).send();
            tokio::spawn(async move { (body, Answer::read(sent.await.expect("Baton answers")).await) })
        })
        .collect();
    for stream in streams {
        let (body, answer) = within(stream).await.expect("no panic");
        let whole = rig.uncut(&body);
        answer.assert_whole(&whole);
        assert_eq!(answer.usage, Some((whole.prompt_tokens, whole.completion_tokens)));
        assert!(!answer.body.contains("ids\":["), "{}", answer.body);
    }
    let continuations = rig.continuations();
    assert!(continuations.iter().filter(|body| is_by_ids(body)).count() > 150, "{}", continuations.len());
    assert!(rig.metrics().await.contains("baton_streams_in_flight{upstream=\"mock\"} 0"));
}

#[tokio::test]
async fn http_2_clients_get_them_too() {
    let body = request();
    let rig = rig("leg1 rst@5+half", "", |_| {}).await;
    let http2 = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().expect("a client");
    let sent = http2.post(rig.url()).header("x-request-id", "same").body(body.to_string()).send();
    let response = within(sent).await.expect("Baton answers");
    assert_eq!(response.version(), reqwest::Version::HTTP_2);
    let got = within(response.text()).await.expect("the body comes to its end");
    assert_eq!(anonymous(&got), anonymous(&direct(&rig, CHAT, &body).await));
    assert!(rig.continuations().iter().all(is_by_ids));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engine_after_engine_may_die() {
    let body = request();
    for stop in ["rst", "eof", "abort", "error", "end"] {
        let rig = rig(&format!("leg1 {stop}@6, leg2 {stop}@8"), "continuation: {max_legs: 8}", |_| {}).await;
        let (got, wanted) = (through(&rig, CHAT, &body).await, direct(&rig, CHAT, &body).await);
        assert_eq!(anonymous(&got), anonymous(&wanted), "{stop}");
        let continuations = rig.continuations();
        assert!(continuations.len() > 2 && continuations.iter().all(is_by_ids), "{stop}: {continuations:?}");
    }
}

/// A text, without the events that have none: their tokens may have to be generated once more, and then they come once more.
fn spoken(body: &str) -> String {
    let silent = |event: &&str| !event.contains(r#""text":"","logprobs":null,"finish_reason":null"#);
    body.split_inclusive("\n\n").filter(silent).collect()
}

#[tokio::test]
async fn completions_go_on_by_ids() {
    let ids = json!([785, 1196, 6801]);
    for (prompt, faults) in [
        (json!("Tell me about the relay."), ["leg1 rst@4", "leg1 stall@6"]),
        (json!(["Tell me about the relay."]), ["leg1 eof@7+half", "leg1 rst@8"]),
        (ids.clone(), ["leg1 abort@9", "leg1 end@5"]),
        (json!([ids]), ["leg1 rst@4", "leg1 error@7"]),
    ] {
        let body = json!({"model": "mock", "prompt": prompt, "stream": true, "max_tokens": 60, "seed": 3,
            "stream_options": {"include_usage": true}});
        for fault in faults {
            let rig = rig(fault, "timeouts: {idle: 500ms}", |_| {}).await;
            let (got, wanted) = (through(&rig, COMPLETIONS, &body).await, direct(&rig, COMPLETIONS, &body).await);
            assert_eq!(spoken(&anonymous(&got)), spoken(&anonymous(&wanted)), "{fault}");
            let continuations = rig.continuations();
            assert_eq!(continuations.len(), 1, "{fault}");
            assert!(
                continuations[0]["prompt"].as_array().is_some_and(|ids| ids.len() > 3),
                "{fault}: {continuations:?}"
            );
        }
    }
}

fn with_tool() -> Value {
    let mut body = request();
    body["tools"] = json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    body["stream_options"] = json!({"include_usage": true});
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inside_a_tool_call_an_engine_with_the_scale_out_endpoints_goes_on() {
    let body = with_tool();
    let tooled = |config: &mut Config| (config.scale_out, config.tool_call) = (true, Some(4));
    let wire = rig("", "", tooled).await.wire(&body);
    let called = wire.iter().position(|data| data.contains("tool_calls")).expect("a call");
    let plans = "continuation: {plan: [token-exact, render-generate, chat-continue]}";
    for place in [called + 1, called + 3, called + 7] {
        // A reset may take with it what had not been read yet, the call's name, too.
        let rig = rig(&format!("leg1 eof@{place}"), plans, tooled).await;
        let answer = rig.ask(&body).await;
        let whole = rig.uncut(&body);
        answer.assert_whole(&whole);
        assert_eq!(Some(answer.tool_arguments), whole.tool_call.map(|(_, arguments)| arguments), "cut at {place}");
        assert_eq!(answer.usage, Some((whole.prompt_tokens, whole.completion_tokens)), "cut at {place}");
        assert!(!answer.body.contains("ids\":["), "{}", answer.body);
        let paths: Vec<String> = rig.asked().into_iter().map(|seen| seen.target).collect();
        assert!(paths.iter().any(|path| path == "/inference/v1/generate"), "cut at {place}: {paths:?}");
        assert!(rig.metrics().await.contains(r#"continuations_total{outcome="continued",plan="render-generate"} 1"#));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_nobody_has_seen_is_generated_again() {
    let body = with_tool();
    let tooled = |config: &mut Config| config.tool_call = Some(4);
    let wire = rig("", "", tooled).await.wire(&body);
    let markup = wire.iter().position(|data| data.contains("[151657]")).expect("the call's mark");
    let called = wire.iter().position(|data| data.contains("tool_calls")).expect("a call");
    assert!(called > markup + 1);
    for place in [markup + 1, called] {
        let rig = rig(&format!("leg1 rst@{place}"), "", tooled).await;
        let answer = rig.ask(&body).await;
        let whole = rig.uncut(&body);
        answer.assert_whole(&whole);
        assert_eq!(Some(answer.tool_arguments), whole.tool_call.map(|(_, arguments)| arguments), "cut at {place}");
        assert!(rig.continuations().iter().all(is_by_ids), "cut at {place}");
    }
}

#[tokio::test]
async fn ids_that_no_engine_repeats_are_tried_by_three_streams_and_then_by_none() {
    let rig = rig("leg1 rst@12", "", |config| config.echo = Echo::Missing).await;
    let body = request();
    let wanted = rig.uncut(&body);
    let barred = r#"baton_plans_barred_total{plan="token-exact",upstream="mock"} 1"#;
    for stream in 1..=4 {
        let got = rig.ask(&body).await;
        got.assert_whole(&wanted);
        assert!(!got.body.contains("ids\":["), "{}", got.body);
        let continuations = rig.continuations();
        let by_ids = continuations.iter().filter(|body| is_by_ids(body)).count();
        assert_eq!((by_ids, continuations.len() - by_ids), (stream.min(3), stream), "by ids, and then from text");
        assert_eq!(rig.metrics().await.contains(barred), stream >= 3, "stream {stream}");
    }
    let asked = rig.asked();
    let firsts = asked.iter().filter(|seen| seen.leg == Leg::First);
    assert_eq!(
        firsts.filter(|seen| seen.body.contains("return_token_ids")).count(),
        3,
        "the fourth's are not asked for"
    );
}

/// One engine, and Baton before it.
async fn alone(faults: &str) -> Rig {
    let mut setup = Setup::new(faults);
    setup.engines.truncate(1);
    setup.start().await
}

#[tokio::test]
async fn a_server_that_refuses_the_field_for_ids_gets_the_clients_own_request() {
    let rig = alone("#1 status:400").await;
    let body = request();
    rig.ask(&body).await.assert_whole(&rig.uncut(&body));
    let asked: Vec<String> = rig.asked().into_iter().map(|seen| seen.body).collect();
    let own = body.to_string();
    assert_eq!(asked, [format!(r#"{},"return_token_ids":true}}"#, &own[..own.len() - 1]), own]);
}

#[tokio::test]
async fn what_the_client_hears_of_a_bad_request_is_about_its_own() {
    let rig = alone("#1 status:400,#2 status:422,#4 status:400").await;
    let body = request();
    assert_eq!(rig.ask(&body).await.status, 422);
    let asks_for_ids = |rig: &Rig| rig.asked().iter().map(|seen| seen.body.contains("ids")).collect::<Vec<_>>();
    assert_eq!(asks_for_ids(&rig), [true, false]);
    rig.ask(&body).await.assert_whole(&rig.uncut(&body));
    // The engine is known to take the field now: a refusal is of something else.
    assert_eq!(rig.ask(&body).await.status, 400);
    assert_eq!(asks_for_ids(&rig), [true, false, true, true]);
}

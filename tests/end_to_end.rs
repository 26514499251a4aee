//! Each rule once, on real sockets: clients, Baton, engines that break.

mod support;

use baton::mock::{Config, Engine, Stop, Wire};
use serde_json::json;

use support::{Answer, Rig, Setup, client, engines, request, within};

/// Engines that all break in this way on a first leg, whichever of them gets it.
async fn rig(fault: &str, route: &str) -> Rig {
    let mut setup = Setup::new(fault).route(route);
    let faults = setup.engines[0].faults.clone();
    setup.engines.iter_mut().for_each(|engine| engine.faults = faults.clone());
    setup.start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_finished_whatever_its_engine_does() {
    // Event 0 is the role, 1 to 6 are thinking, 7 is its end, which the client does not get; then comes the answer.
    for fault in [
        "leg1 rst@12",
        "leg1 rst@12+9",
        "leg1 eof@12",
        "leg1 eof@12+half",
        "leg1 eof@12+char",
        "leg1 end@12",
        "leg1 end@12+half",
        "leg1 error@12",
        "leg1 error@12:flat",
        "leg1 abort@12",
        "leg1 done@12",
        "leg1 stall@12",
        "leg1 stall@12:comments",
        "leg1 long@12:70000",
        "leg1 endless@12",
    ] {
        let rig = rig(fault, "timeouts: {idle: 500ms}, max_event: 64KiB").await;
        let answer = rig.ask(&request()).await;
        answer.assert_whole(&rig.uncut(&request()));
        assert_eq!(rig.continuations().len(), 1, "{fault}");
        let whole = rig.uncut(&request());
        assert_eq!(answer.usage, Some((whole.prompt_tokens, whole.completion_tokens)), "{fault}");
        assert_eq!(answer.usage_events, 1, "{fault}");
    }
}

#[tokio::test]
async fn an_answer_that_nothing_happens_to_is_the_engines_own_byte_for_byte() {
    let rig = Setup { engines: engines("qwen3", "")[..1].to_vec(), ..Setup::new("") }.start().await;
    let body = request();
    let direct = format!("{}/v1/chat/completions", rig.engines[0].url());
    let direct = client().post(direct).header("x-request-id", "same").body(body.to_string()).send().await.unwrap();
    let direct = Answer::read(direct).await;
    let through = client().post(rig.url()).header("x-request-id", "same").body(body.to_string()).send().await.unwrap();
    let through = Answer::read(through).await;
    assert_eq!(through.body, direct.body);
    assert_eq!(through.header("cache-control"), Some("no-store"));
    assert_eq!(through.header("x-accel-buffering"), Some("no"));
    assert_eq!(through.header("baton-stream").map(str::len), Some(32));
    assert_eq!(through.header("content-type"), direct.header("content-type"));
    assert!(through.header("x-mock-engine").is_some(), "the engine's own headers go through");
}

#[tokio::test]
async fn a_cut_in_the_tail_is_repaired_and_not_continued() {
    for fault in ["eof@usage", "rst@done", "end@usage", "stall@usage", "error@usage", "eof@usage+half"] {
        let rig = rig(fault, "timeouts: {idle: 500ms}").await;
        let answer = rig.ask(&request()).await;
        let whole = rig.uncut(&request());
        answer.assert_whole(&whole);
        assert_eq!(answer.usage, Some((whole.prompt_tokens, whole.completion_tokens)), "{fault}");
        assert_eq!(answer.usage_events, 1, "{fault}");
        assert_eq!(rig.asked().len(), 1, "{fault}");
    }
}

#[tokio::test]
async fn what_cannot_be_continued_ends_as_incomplete() {
    // vLLM's Qwen3 template closes thinking, so nothing continues inside it from text.
    let rig = rig("leg1 rst@4", "continuation: {plan: chat-continue}").await;
    rig.ask(&request()).await.assert_incomplete(&rig.uncut(&request()));
    assert!(rig.continuations().is_empty());
    let mut structured = request();
    structured["response_format"] = json!({"type": "json_object"});
    let rig = self::rig("rst@12", "").await;
    rig.ask(&structured).await.assert_incomplete(&rig.uncut(&structured));
    let rig = self::rig("rst@12", "continuation: {enabled: false}").await;
    rig.ask(&request()).await.assert_incomplete(&rig.uncut(&request()));
    let rig = self::rig("rst@12", "continuation: {enabled: observe}").await;
    rig.ask(&request()).await.assert_incomplete(&rig.uncut(&request()));
    assert!(rig.metrics().await.contains("outcome=\"observed\""));
    assert!(rig.continuations().is_empty());
}

#[tokio::test]
async fn a_mirror_passes_on_what_the_engine_did() {
    let mirror = "on_incomplete: mirror, continuation: {enabled: false}";
    let answer = rig("rst@12", mirror).await.ask(&request()).await;
    assert!(answer.torn && answer.error.is_none() && !answer.done);
    let answer = rig("end@12", mirror).await.ask(&request()).await;
    assert!(!answer.torn && answer.error.is_none() && !answer.done);
    let answer = rig("error@12", mirror).await.ask(&request()).await;
    assert!(answer.error.is_some_and(|error| error.code.as_deref() == Some("500")) && answer.done);
    let answer = rig("abort@12", mirror).await.ask(&request()).await;
    assert_eq!((answer.finish, answer.done), (vec!["abort".to_owned()], true));
}

#[tokio::test]
async fn as_many_legs_write_as_the_route_allows() {
    let rig = rig("leg1 rst@9, leg2 eof@6", "continuation: {max_legs: 8}").await;
    let answer = rig.ask(&request()).await;
    answer.assert_whole(&rig.uncut(&request()));
    assert!(rig.continuations().len() >= 2);
    let rig = self::rig("leg1 rst@9, leg2 eof@6", "").await;
    rig.ask(&request()).await.assert_incomplete(&rig.uncut(&request()));
    assert_eq!(rig.continuations().len(), 1);
}

#[tokio::test]
async fn a_leg_that_brought_nothing_is_asked_again_elsewhere() {
    for fault in ["#1 rst@0", "#1 eof@1", "#1 abort@1", "#1 error@0"] {
        // The first request to either engine fails, so the third try is the first to bring anything.
        let rig = rig(fault, "").await;
        let answer = rig.ask(&request()).await;
        answer.assert_whole(&rig.uncut(&request()));
        assert_eq!(rig.asked().len(), 3, "{fault}");
    }
}

#[tokio::test]
async fn continuing_goes_past_engines_that_refuse_and_engines_that_are_gone() {
    let rig = rig("leg1 rst@12, leg2 status:503", "").await;
    rig.ask(&request()).await.assert_incomplete(&rig.uncut(&request()));
    assert_eq!(rig.continuations().len(), 3, "three tries");

    let mut setup = Setup::new("");
    setup.engines.push(Config { name: "c".to_owned(), ..setup.engines[0].clone() });
    setup.engines.iter_mut().for_each(|engine| {
        engine.faults = baton::mock::fault::Rule::parse_all("leg1 stall@12").unwrap();
    });
    let rig = setup.route("timeouts: {idle: 30s}").start().await;
    let body = request();
    let mut http = client().post(rig.url()).body(body.to_string()).send().await.unwrap();
    let first = http.chunk().await.unwrap().unwrap();
    let busy = rig.engines.iter().position(|engine| engine.request_count() == 1).unwrap();
    within(rig.engines[busy].wait_stalled(0)).await;
    let next = (busy + 1) % 3;
    rig.engines[next].kill(Stop::Rst).await;
    rig.engines[busy].kill(Stop::Rst).await;
    Answer::read_after(&first, http).await.assert_whole(&rig.uncut(&body));
    assert_eq!(rig.continuations().len(), 1);
}

#[tokio::test]
async fn a_refusal_of_the_continuation_never_reaches_the_client() {
    let rig = rig("leg1 rst@12, leg2 status:400", "").await;
    let answer = rig.ask(&request()).await;
    answer.assert_incomplete(&rig.uncut(&request()));
    let ids = |body: &serde_json::Value| body["kv_transfer_params"]["prompt_token_ids"].is_array();
    let by_ids: Vec<bool> = rig.continuations().iter().map(ids).collect();
    assert!(
        by_ids == [true, false] || by_ids == [false, true],
        "a bad request is not sent again, in any of the two ways"
    );
}

#[tokio::test]
async fn tool_calls_that_are_held_back_survive_their_engine() {
    let mut body = request();
    body["tools"] = json!([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]);
    let tooled = async |fault: &str, route: &str| {
        let mut setup = Setup::new(fault).route(route);
        let faults = setup.engines[0].faults.clone();
        for engine in &mut setup.engines {
            engine.tool_call = Some(6);
            engine.faults = faults.clone();
        }
        setup.start().await
    };
    // Three pieces of the call have come by then.
    let wire = tooled("", "").await.wire(&body);
    let called = wire.iter().position(|data| data.contains("tool_calls")).unwrap();
    let cut = format!("leg1 rst@{}", called + 3);
    let rig = tooled(&cut, "continuation: {buffer_tool_calls: true}").await;
    let whole = rig.uncut(&body);
    let answer = rig.ask(&body).await;
    answer.assert_whole(&whole);
    assert_eq!(Some(answer.tool_arguments), whole.tool_call.map(|(_, arguments)| arguments));
    assert_eq!(rig.continuations().len(), 1);

    let rig = tooled(&cut, "").await;
    rig.ask(&body).await.assert_incomplete(&rig.uncut(&body));
    assert!(rig.continuations().is_empty(), "a call that was shown is never asked for again");
}

#[tokio::test]
async fn an_engines_error_before_the_stream_passes_unchanged() {
    for status in [400, 401, 404, 429, 500, 503] {
        let rig = rig(&format!("status:{status}:{{\"busy\":\"真\"}}"), "").await;
        let answer = rig.ask(&request()).await;
        assert_eq!((answer.status, answer.body.as_str()), (status, "{\"busy\":\"真\"}"));
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_engines_work() {
    for fault in ["stall@head", "stall@0", "stall@12"] {
        let rig = Setup { engines: engines("qwen3", fault)[..1].to_vec(), ..Setup::new("") }.start().await;
        let sent = tokio::spawn({
            let (url, body) = (rig.url(), request());
            async move {
                let mut response = client().post(url).body(body.to_string()).send().await.unwrap();
                while let Ok(Some(_)) = response.chunk().await {}
            }
        });
        within(rig.engines[0].wait_stalled(0)).await;
        sent.abort();
        let end = within(rig.engines[0].wait_end(0)).await;
        assert_eq!(format!("{end:?}"), "Left", "{fault}");
    }
}

#[tokio::test]
async fn heartbeats_keep_a_silent_stream_alive() {
    let rig = rig("slow@12:700ms", "heartbeat: 100ms").await;
    let answer = rig.ask(&request()).await;
    answer.assert_whole(&rig.uncut(&request()));
    assert!(answer.body.matches(": ping\n\n").count() >= 3, "{}", answer.body);
    assert!(answer.body.contains("\n\n: ping\n\ndata: "), "never inside an event");
}

#[tokio::test]
async fn everything_else_passes_through() {
    let rig = rig("", "").await;
    let base = format!("http://{}", rig.address);
    let models = client().get(format!("{base}/v1/models")).send().await.unwrap();
    assert!(models.text().await.unwrap().contains("\"mock\""));
    let vector = client().post(format!("{base}/v1/embeddings")).body("{\"input\":\"x\"}").send().await.unwrap();
    assert!(vector.text().await.unwrap().contains("0.25"));
    let mut whole = request();
    whole["stream"] = json!(false);
    whole.as_object_mut().unwrap().remove("stream_options");
    let answer = rig.ask(&whole).await;
    assert_eq!(answer.status, 200);
    let parsed: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(parsed["choices"][0]["message"]["content"], rig.uncut(&whole).content_text());
}

#[tokio::test]
async fn http_2_clients_get_continued_answers_too() {
    let rig = rig("leg1 eof@12+half", "").await;
    let http2 = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    let response = rig.send(&http2, &request()).await;
    assert_eq!(response.version(), reqwest::Version::HTTP_2);
    Answer::read(response).await.assert_whole(&rig.uncut(&request()));
}

#[tokio::test]
async fn sglang_continues_inside_thinking() {
    let setup = Setup { engine: "sglang", family: "qwen3", ..Setup::new("") };
    let mut engines = engines("qwen3", "leg1 rst@4");
    let faults = engines[0].faults.clone();
    for engine in &mut engines {
        engine.wire = Wire::Sglang;
        engine.faults = faults.clone();
    }
    let rig = Setup { engines, ..setup }.start().await;
    let answer = rig.ask(&request()).await;
    answer.assert_whole(&rig.uncut(&request()));
    assert_eq!(rig.continuations().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_streams_lose_an_engine_at_once_and_all_are_whole() {
    let mut setup = Setup::new("");
    let stalled = baton::mock::fault::Rule::parse_all("leg1 stall@12").unwrap();
    setup.engines[0].faults = stalled;
    let rig = setup.start().await;
    let client = client();
    let streams: Vec<_> = (0..200)
        .map(|seed| {
            let mut body = request();
            body["seed"] = json!(seed);
            let (client, url) = (client.clone(), rig.url());
            tokio::spawn(async move {
                let response = client.post(url).body(body.to_string()).send().await.unwrap();
                (body, Answer::read(response).await)
            })
        })
        .collect();
    within(rig.engines[0].wait_requests(100)).await;
    for number in 0..100 {
        within(rig.engines[0].wait_stalled(number)).await;
    }
    rig.engines[0].kill(Stop::Rst).await;
    for stream in streams {
        let (body, answer) = within(stream).await.unwrap();
        answer.assert_whole(&rig.uncut(&body));
    }
    let continuations = rig.continuations();
    assert_eq!(continuations.len(), 100);
    assert!(continuations.iter().all(|body| body["kv_transfer_params"]["prompt_token_ids"].is_array()));
    assert!(rig.metrics().await.contains("baton_streams_in_flight{upstream=\"mock\"} 0"));
}

#[tokio::test]
async fn the_mock_engine_itself_gives_the_answer_it_announces() {
    let engine = Engine::start(engines("qwen3", "").remove(0)).await.unwrap();
    let url = format!("{}/v1/chat/completions", engine.url());
    let response = client().post(url).body(request().to_string()).send().await.unwrap();
    let whole = baton::mock::uncut(engine.config(), &[], request().to_string().as_bytes()).unwrap();
    assert_ne!(whole.reasoning_text(), "");
    Answer::read(response).await.assert_whole(&whole);
}

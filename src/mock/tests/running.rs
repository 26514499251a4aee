use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{BodyEnd, Client};
use super::{config, soon, start};
use crate::mock::{Config, End, Leg, Stop, Wire};

fn body() -> Value {
    json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi"}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_events_and_ends_can_be_awaited() {
    let engine = start(config()).await;
    let mut client = Client::connect(engine.addr());
    client.chat(&[("mock-fault", "stall@4"), ("x-tenant", "Ünï")], &body());
    soon(engine.wait_requests(1)).await;
    soon(engine.wait_event(0, 3)).await;
    assert!(
        tokio::time::timeout(Duration::from_millis(20), engine.wait_event(0, 4)).await.is_err(),
        "event 4 is not written"
    );
    engine.release(0);
    soon(engine.wait_event(0, 4)).await;
    client.reply();
    assert_eq!(soon(engine.wait_end(0)).await, End::Complete);
    let seen = engine.request(0).expect("it is remembered");
    assert_eq!((seen.leg, seen.header("x-tenant"), seen.json()), (Leg::First, Some("Ünï"), body()));
    assert_eq!(seen.events, 12);
    assert_eq!(engine.connection_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_is_noticed_wherever_the_stream_waits() {
    let engine = start(config()).await;
    let paced = start(Config { pace: Duration::from_secs(600), ..config() }).await;
    for (engine, fault) in [
        (&engine, "stall@2"),
        (&engine, "stall@0"),
        (&engine, "slow@1:600s"),
        (&engine, "stall@head"),
        (&engine, "stall@1:comments"),
        (&paced, ""),
    ] {
        let request = engine.request_count();
        let mut client = Client::connect(engine.addr());
        client.chat(&[("mock-fault", fault)], &body());
        soon(engine.wait_requests(request + 1)).await;
        drop(client);
        assert_eq!(soon(engine.wait_end(request)).await, End::Left, "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_ends_every_connection_in_the_way_asked_for() {
    for (how, end) in [(Stop::Rst, BodyEnd::Reset), (Stop::Fin, BodyEnd::Eof)] {
        let engine = start(config()).await;
        let mut idle = Client::connect(engine.addr());
        assert_eq!(idle.get("/health").status, 200);
        let mut busy = Client::connect(engine.addr());
        busy.chat(&[("mock-fault", "stall@3")], &body());
        soon(engine.wait_stalled(0)).await;
        soon(engine.kill(how)).await;
        let reply = busy.reply();
        assert_eq!((reply.events().len(), reply.end), (3, end));
        assert_eq!(idle.end(), end);
        assert_eq!(soon(engine.wait_end(0)).await, End::Killed);
        assert!(TcpStream::connect(engine.addr()).is_err(), "the listener is closed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_told_to_stop_ends_its_streams_as_vllm_does() {
    for (how, mark) in [(Stop::Abort, "\"finish_reason\":\"abort\""), (Stop::Error, "EngineCore encountered an issue")]
    {
        let engine = start(config()).await;
        let mut client = Client::connect(engine.addr());
        client.chat(&[("mock-fault", "stall@3")], &body());
        soon(engine.wait_stalled(0)).await;
        soon(engine.kill(how)).await;
        let reply = client.reply();
        let events = reply.events();
        assert_eq!((events.len(), reply.end), (5, BodyEnd::Whole));
        assert!(events[3].contains(mark) && events[4] == "[DONE]", "{events:?}");
        assert_eq!(soon(engine.wait_end(0)).await, End::Killed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_engine_is_gone() {
    let engine = start(config()).await;
    let mut client = Client::connect(engine.addr());
    assert_eq!(client.get("/health").status, 200);
    drop(engine);
    assert_eq!(client.end(), BodyEnd::Eof);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_can_come_back_on_its_address() {
    let engine = start(config()).await;
    let addr = engine.addr();
    Client::connect(addr).get("/health");
    soon(engine.kill(Stop::Fin)).await;
    let engine = start(Config { listen: addr, ..config() }).await;
    assert_eq!(Client::connect(engine.addr()).get("/health").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_other_endpoints_answer() {
    let engine = start(Config { models: vec!["m".to_owned(), "n".to_owned()], ..config() }).await;
    let mut client = Client::connect(engine.addr());
    assert_eq!(client.get("/v1/models").json()["data"][1]["id"], "n");
    assert!(client.get("/version").json()["version"].is_string());
    client.post("/v1/embeddings", &[], "{\"input\":\"x\"}");
    assert_eq!(client.reply().json()["data"][0]["embedding"], json!([0.25, -0.5, 0.75]));
    assert_eq!(client.get("/nothing").status, 404);
    assert_eq!(client.get("/v1/chat/completions").status, 405);
    client.chat(&[], &json!({"model": "z", "messages": [{"role": "user", "content": "Hi"}]}));
    let reply = client.reply();
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (404, &json!("NotFoundError")));
    soon(engine.wait_end(4)).await;
    let legs: Vec<_> = engine.requests().iter().map(|seen| (seen.leg, seen.end)).collect();
    let (complete, refused) = (Some(End::Complete), Some(End::Refused));
    assert_eq!(
        legs,
        [
            (Leg::Other, complete),
            (Leg::Other, complete),
            (Leg::Other, refused),
            (Leg::Other, refused),
            (Leg::First, refused)
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_can_be_steered_over_http() {
    let engine = start(config()).await;
    let mut control = Client::connect(engine.addr());
    let mut client = Client::connect(engine.addr());
    client.chat(&[("mock-fault", "stall@2")], &body());
    soon(engine.wait_stalled(0)).await;
    let seen = control.get("/mock/requests").json();
    assert_eq!((&seen[0]["events"], &seen[0]["end"], &seen[0]["leg"]), (&json!(2), &Value::Null, &json!("first")));
    assert_eq!(seen[0]["body"], body().to_string());
    control.post("/mock/release?request=0", &[], "");
    assert_eq!(control.reply().status, 200);
    assert_eq!(client.reply().end, BodyEnd::Whole);
    control.post("/mock/health?status=503", &[], "");
    assert_eq!((control.reply().status, control.get("/health").status), (200, 503));
    control.post("/mock/reset", &[], "");
    assert_eq!(control.reply().status, 200);
    assert_eq!((engine.request_count(), control.get("/mock/requests").json()), (0, json!([])));
    for wrong in ["/mock/release?request=x", "/mock/health", "/mock/health?status=7", "/mock/kill?how=softly"] {
        control.post(wrong, &[], "");
        assert_eq!(control.reply().status, 400, "{wrong}");
    }
    assert_eq!(control.get("/mock/kill").status, 404);
    control.post("/mock/kill", &[], "");
    soon(engine.ended()).await;
    assert!(TcpStream::connect(engine.addr()).is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_refuses_a_request_id_that_is_in_flight_and_only_then() {
    let engine = start(Config { wire: Wire::Sglang, ..config() }).await;
    let mut body = body();
    body["rid"] = json!("same");
    let (mut first, mut second) = (Client::connect(engine.addr()), Client::connect(engine.addr()));
    first.chat(&[("mock-fault", "stall@1")], &body);
    soon(engine.wait_stalled(0)).await;
    second.chat(&[], &body);
    let reply = second.reply();
    assert_eq!((reply.status, &reply.json()["object"]), (400, &json!("error")));
    engine.release(0);
    assert_eq!(first.reply().end, BodyEnd::Whole);
    soon(engine.wait_end(0)).await;
    second.chat(&[], &body);
    assert_eq!(second.reply().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_requests_are_forgotten_and_numbers_go_on() {
    let engine = start(Config { keep_requests: 2, ..config() }).await;
    let mut client = Client::connect(engine.addr());
    for _ in 0..4 {
        client.get("/v1/models");
    }
    assert_eq!(engine.request_count(), 4);
    assert_eq!(engine.requests().iter().map(|seen| seen.number).collect::<Vec<_>>(), [2, 3]);
    assert!(engine.request(1).is_none());
}

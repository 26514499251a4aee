//! Streams whose engine takes its time before it says anything.

mod support;

use std::sync::Arc;
use std::time::Duration;

use baton::mock::End;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use support::returning::{Client, Events, data, header, one_engine, post, wire};
use support::{Rig, Setup, client, request, within};

const HEADER: &str = "heartbeat: 100ms, continuation: {plan: chat-continue}";

#[tokio::test]
async fn the_header_goes_out_with_the_first_heartbeat_and_the_answer_follows() {
    let rig = one_engine("leg1 stall@head", HEADER).await;
    let mut events = Events::of(rig.send(&client(), &request()).await);
    within(rig.engines[0].wait_stalled(0)).await;
    let early = within(events.response.chunk()).await.expect("not torn").expect("not over");
    assert!(early.starts_with(b": ping\n\n"), "{early:?}");
    rig.engines[0].release(0);
    let events = events.all().await;
    let body = wire(&events).replace(": ping\n\n", "");
    assert!(body.contains("[DONE]"));
    let first = rig.metrics().await;
    let sum = first.lines().find_map(|line| line.strip_prefix("baton_first_event_seconds_sum{upstream=\"mock\"} "));
    let sum: f64 = sum.expect("it is measured").parse().expect("a number");
    assert!(sum >= 0.1, "a heartbeat is no first event: {sum}");
}

#[tokio::test]
async fn a_client_that_can_come_back_gets_lonely_pings_before_its_first_event() {
    let rig = one_engine("leg1 stall@head", HEADER).await;
    let (begun, mut events) = Client::begin(&rig, &request()).await;
    let early = within(events.response.chunk()).await.expect("not torn").expect("not over");
    assert!(early.starts_with(b": ping\n") && !early.starts_with(b": ping\n\n"), "{early:?}");
    within(rig.engines[0].wait_stalled(0)).await;
    let status = begun.status().await;
    assert_eq!((&status["state"], &status["seq"]), (&"generating".into(), &Value::Null));
    drop(events);
    begun.until("unattended").await;
    let back = Events::of(begun.get("").await);
    rig.engines[0].release(0);
    let events = back.all().await;
    assert_eq!(events.last().map(|event| event.data.as_str()), Some("[DONE]"));
    assert_eq!(events[0].id, Some(format!("{}.0", begun.id)));
    assert_eq!(rig.asked().len(), 1, "the engine was asked once");
}

#[tokio::test]
async fn whoever_leaves_before_the_header_ends_the_request_unless_its_key_leads_back() {
    let rig = one_engine("leg1 stall@head", "heartbeat: 1h").await;
    for headers in [&[][..], &[("Baton-Resume", "on")]] {
        let at = rig.asked().len() as u64;
        let mut sent = client().post(rig.url()).body(request().to_string());
        for (name, value) in headers {
            sent = sent.header(*name, *value);
        }
        let sent = tokio::spawn(sent.send());
        within(rig.engines[0].wait_stalled(at)).await;
        sent.abort();
        assert!(matches!(within(rig.engines[0].wait_end(at)).await, End::Left), "{headers:?}");
    }
    let at = rig.asked().len() as u64;
    let keyed = client().post(rig.url()).header("Baton-Resume", "on").header("Idempotency-Key", "k");
    let sent = tokio::spawn(keyed.body(request().to_string()).send());
    within(rig.engines[0].wait_stalled(at)).await;
    sent.abort();
    within(async { while !rig.metrics().await.contains("baton_clients_left_total 3") {} }).await;
    let again = post(&rig, &request(), &[("Idempotency-Key", "k")]).await;
    rig.engines[0].release(at);
    let events = Events::of(again).all().await;
    assert_eq!(events.last().map(|event| event.data.as_str()), Some("[DONE]"));
    assert_eq!(rig.asked().len() as u64, at + 1, "nothing was asked twice");
}

#[tokio::test]
async fn what_an_engine_says_instead_of_a_stream_is_said_in_an_event_once_the_header_is_out() {
    let refused = r#"{"error": {"message": "too many", "type": "Overloaded", "param": null, "code": 503}}"#;
    for (body, said) in [(refused, "too many"), ("busy", "the engine answered 503")] {
        let rig = one_engine(&format!("slow@head:400ms,status:503:{body}"), HEADER).await;
        let events = Events::of(rig.send(&client(), &request()).await).all().await;
        let events: Vec<_> = data(&events).into_iter().filter(|data| !data.is_empty()).map(str::to_owned).collect();
        assert_eq!(events.len(), 1, "{events:?}");
        let event: Value = serde_json::from_str(&events[0]).expect("JSON");
        assert!(event["error"]["message"].as_str().is_some_and(|words| words.contains(said)), "{event}");
    }
}

#[tokio::test]
async fn an_engine_that_dies_before_its_header_is_followed_by_another_behind_the_client_s_back() {
    let rig = support::rig("#1 stall@head", HEADER, |_| {}).await;
    let (begun, events) = Client::begin(&rig, &request()).await;
    let [one, other] = &rig.engines[..] else { panic!("two engines") };
    let (first, second) = within(async {
        tokio::select! {
            () = one.wait_stalled(0) => (one, other),
            () = other.wait_stalled(0) => (other, one),
        }
    })
    .await;
    first.kill(baton::mock::Stop::Rst).await;
    within(second.wait_stalled(0)).await;
    second.release(0);
    let events = events.all().await;
    assert_eq!(events.last().map(|event| event.data.as_str()), Some("[DONE]"), "{}", wire(&events));
    assert_eq!(begun.status().await["end"], "finished");
}

#[tokio::test]
async fn a_request_that_is_not_streamed_waits_for_its_status() {
    let rig = one_engine("slow@head:400ms,status:503:busy", HEADER).await;
    let mut whole = request();
    whole["stream"] = false.into();
    let response = rig.send(&client(), &whole).await;
    assert_eq!(response.status(), 503);
    let quick = one_engine("", "heartbeat: 1h").await;
    let streamed = quick.send(&client(), &request()).await;
    assert_eq!(header(&streamed, "content-type"), "text/event-stream; charset=utf-8");
    within(tokio::time::timeout(Duration::from_secs(5), Events::of(streamed).all())).await.expect("at once");
}

#[tokio::test]
async fn a_client_that_leaves_between_the_header_and_the_first_event_or_cancels_ends_the_engine_s_work() {
    let rig = one_engine("leg1 stall@head", HEADER).await;
    let mut plain = Events::of(rig.send(&client(), &request()).await);
    within(plain.response.chunk()).await.expect("not torn").expect("a heartbeat");
    within(rig.engines[0].wait_stalled(0)).await;
    drop(plain);
    assert!(matches!(within(rig.engines[0].wait_end(0)).await, End::Left));
    let (begun, events) = Client::begin(&rig, &request()).await;
    within(rig.engines[0].wait_stalled(1)).await;
    assert_eq!(begun.cancel().await, 202);
    assert!(matches!(within(rig.engines[0].wait_end(1)).await, End::Left));
    assert!(wire(&events.all().await).contains("stream_cancelled"));
}

/// A client that resets its connection after so long.
async fn reset_after(rig: &Rig, wait: Duration, number: u64) {
    let body = request().to_string();
    let key = format!("k{number}");
    let mut socket = within(TcpStream::connect(rig.address)).await.expect("Baton listens");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nBaton-Resume: on\r\nIdempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    within(socket.write_all(format!("{head}{body}").as_bytes())).await.expect("it is taken");
    tokio::time::sleep(wait).await;
    socket.set_zero_linger().expect("an open socket");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_leaves_just_as_the_header_comes_leaves_no_stream_behind() {
    let rig = Arc::new(one_engine("slow@head:15ms", "resume: {grace: 200ms, ttl: 0s}").await);
    for round in 0..10 {
        let clients = (0..50).map(|client| {
            let (rig, wait) = (Arc::clone(&rig), Duration::from_micros(10_000 + client * 500));
            tokio::spawn(async move { reset_after(&rig, wait, round * 50 + client).await })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.expect("no panic");
        }
    }
    let none = |told: &str| {
        ["baton_orphans 0", "baton_streams_in_flight{upstream=\"mock\"} 0"].iter().all(|line| told.contains(line))
    };
    within(async {
        while !none(&rig.metrics().await) {
            tokio::task::yield_now().await
        }
    })
    .await;
    // And no key is left that leads nowhere.
    for number in [0, 77, 499] {
        let key = format!("k{number}");
        let events = Events::of(post(&rig, &request(), &[("Idempotency-Key", &key)]).await).all().await;
        assert!(wire(&events).contains("[DONE]"), "{}", wire(&events));
    }
}

#[tokio::test]
async fn an_error_whose_body_does_not_come_is_told_without_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let header = Arc::new(Notify::new());
    let answer = Arc::clone(&header);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let read = socket.read(&mut request).await.unwrap_or_default();
                if request[..read].starts_with(b"POST") {
                    answer.notified().await;
                    let head = b"HTTP/1.1 500 X\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{\"er";
                    let _ = socket.write_all(head).await;
                    let _ = socket.read(&mut request).await;
                }
            });
        }
    });
    let setup = Setup { engines: Vec::new(), ..Setup::new("") }.route("heartbeat: 100ms");
    let rig = setup.start_before(&[url], "").await;
    let events = Events::of(rig.send(&client(), &request()).await);
    header.notify_one();
    let events = events.all().await;
    assert!(wire(&events).contains("the engine answered 500"), "{}", wire(&events));
}

#[tokio::test]
async fn a_request_that_is_too_long_to_be_continued_gets_its_header_and_heartbeats_all_the_same() {
    let rig = one_engine("leg1 stall@head", "heartbeat: 100ms, continuation: {max_body: 1KiB}").await;
    let mut long = request();
    long["messages"][0]["content"] = "Tell me more. ".repeat(200).into();
    let mut events = Events::of(rig.send(&client(), &long).await);
    let early = within(events.response.chunk()).await.expect("not torn").expect("not over");
    assert!(early.starts_with(b": ping\n\n"), "{early:?}");
    within(rig.engines[0].wait_stalled(0)).await;
    rig.engines[0].release(0);
    assert!(wire(&events.all().await).contains("[DONE]"));
}

#[tokio::test]
async fn the_shortest_request_is_answered() {
    let rig = one_engine("", "").await;
    let mut socket = within(TcpStream::connect(rig.address)).await.expect("Baton listens");
    within(socket.write_all(b"GET / HTTP/1.0\r\n\r\n")).await.expect("it is taken");
    let mut answer = Vec::new();
    within(socket.read_to_end(&mut answer)).await.expect("an answer");
    assert!(answer.starts_with(b"HTTP/1."), "{}", String::from_utf8_lossy(&answer));
}

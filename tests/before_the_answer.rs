//! Streams whose engine takes its time before it says anything.

mod support;

use std::time::Duration;

use baton::mock::End;
use serde_json::Value;

use support::returning::{Client, Events, data, header, one_engine, post, wire};
use support::{client, request, within};

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

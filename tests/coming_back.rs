//! What a return means in the cases between: other ends, other keys, other routes.

mod support;

use baton::mock::Leg;
use reqwest::StatusCode;
use serde_json::{Value, json};

use support::returning::{Client, Events, code, header, one_engine, post, wire};
use support::{Rig, Setup, client, request, within};

#[tokio::test]
async fn whoever_has_everything_of_an_answer_that_ended_without_a_last_event_is_told_so() {
    let refused = r#"{"error": {"message": "too many", "type": "Overloaded", "param": null, "code": 503}}"#;
    for (faults, route) in [
        ("leg1 end@7", "continuation: {enabled: false}, on_incomplete: mirror"),
        ("leg1 rst@7", "continuation: {enabled: false}, on_incomplete: mirror"),
        ("leg1 error@1:503:wrapped", "continuation: {enabled: false}"),
        (&format!("slow@head:400ms,status:503:{refused}"), "heartbeat: 100ms"),
    ] {
        let rig = one_engine(faults, route).await;
        let (begun, mut events) = Client::begin(&rig, &request()).await;
        while let Ok(Some(more)) = within(events.response.chunk()).await {
            events.rest.extend_from_slice(&more);
        }
        let status = begun.until("ended").await;
        let got = events.rest.windows(4).filter(|four| *four == b"id: ").count();
        assert!(got > 0, "{faults}");
        assert_eq!(status["seq"], got - 1, "{faults}: {status}");
        assert_eq!(begun.after(got - 1).await.status(), StatusCode::NO_CONTENT, "{faults}");
        assert_eq!(begun.after(usize::MAX).await.status(), StatusCode::NO_CONTENT, "{faults}");
        let again = begun.get("").await;
        assert_eq!(again.status(), StatusCode::OK, "{faults}");
    }
}

#[tokio::test]
async fn a_post_that_goes_on_with_a_stream_never_begins_another_one_whatever_else_it_says() {
    let rig = one_engine("", "resume: {ttl: 0s}").await;
    let first = post(&rig, &request(), &[("Idempotency-Key", "k")]).await;
    let last = format!("{}.3", header(&first, "Baton-Stream"));
    Events::of(first).all().await;
    let expired = (410, "stream_expired".to_owned());
    let both = [("Idempotency-Key", "k"), ("Last-Event-ID", last.as_str())];
    assert_eq!(code(post(&rig, &request(), &both).await).await, expired);
    let unasked = client().post(rig.url()).header("Last-Event-ID", &last).body(request().to_string()).send();
    assert_eq!(code(within(unasked).await.expect("Baton answers")).await, expired, "without Baton-Resume");
    let unknown = (404, "stream_not_found".to_owned());
    for nonsense in ["7", "x.y"] {
        let both = [("Idempotency-Key", "new"), ("Last-Event-ID", nonsense)];
        assert_eq!(code(post(&rig, &request(), &both).await).await, unknown, "{nonsense}");
    }
    assert_eq!(rig.asked().len(), 1);
    // Who has nothing of it gets an answer for a key whose stream is over.
    let fresh = post(&rig, &request(), &[("Idempotency-Key", "k")]).await;
    assert_eq!(fresh.status(), StatusCode::OK);
    assert_eq!(rig.asked().len(), 2);
}

#[tokio::test]
async fn a_route_may_keep_all_streams_or_none() {
    let plain = |rig: &Rig| within(client().post(rig.url()).body(request().to_string()).send());
    let always = one_engine("", "resume: {mode: always}").await;
    let response = plain(&always).await.expect("Baton answers");
    let id = header(&response, "Baton-Stream");
    let live = Events::of(response).all().await;
    assert!(live.iter().all(|event| event.id.is_some()));
    let begun = Client { base: format!("http://{}", always.address), id };
    assert_eq!(wire(&Events::of(begun.get("").await).all().await), wire(&live));
    let off = one_engine("leg1 stall@5", "resume: {mode: off}").await;
    let response = post(&off, &request(), &[("Idempotency-Key", "k")]).await;
    assert!(response.headers().get("location").is_none());
    let id = header(&response, "Baton-Stream");
    let mut events = Events::of(response);
    assert!(events.take(2).await.iter().all(|event| event.id.is_none()));
    let begun = Client { base: format!("http://{}", off.address), id };
    assert_eq!(begun.get("").await.status(), StatusCode::NOT_FOUND);
    drop(events);
    assert!(matches!(within(off.engines[0].wait_end(0)).await, baton::mock::End::Left));
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_is_not_kept_and_a_key_that_brought_an_error_is_free() {
    let faults = "#1 stall@head,#2 slow@head:300ms,#3 slow@head:400ms,#3 status:503:busy";
    let rig = one_engine(faults, "heartbeat: 100ms").await;
    let whole = json!({"model": "mock", "messages": [{"role": "user", "content": "Hello"}], "seed": 3});
    let key = [("Idempotency-Key", "whole")];
    let left = client().post(rig.url()).header("Baton-Resume", "on").header("Idempotency-Key", "whole");
    let left = tokio::spawn(left.body(whole.to_string()).send());
    within(rig.engines[0].wait_stalled(0)).await;
    left.abort();
    assert!(matches!(within(rig.engines[0].wait_end(0)).await, baton::mock::End::Left));
    let answer = within(post(&rig, &whole, &key).await.text()).await.expect("a body");
    let answer: Value = serde_json::from_str(&answer).expect("JSON, and no event stream");
    assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
    let key = [("Idempotency-Key", "k")];
    let refused = Events::of(post(&rig, &request(), &key).await).all().await;
    assert!(wire(&refused).contains("503"), "{}", wire(&refused));
    within(async {
        loop {
            let events = Events::of(post(&rig, &request(), &key).await).all().await;
            if wire(&events).contains("[DONE]") {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn who_comes_while_another_engine_is_looked_for_is_told_so() {
    let rig = support::rig("leg1 rst@8,leg2 stall@head", "", |_| {}).await;
    let (begun, mut events) = Client::begin(&rig, &request()).await;
    let told = within(async {
        while !events.rest.windows(10).any(|words| words == b"recovering") {
            let more = events.response.chunk().await.expect("not torn").expect("not over");
            events.rest.extend_from_slice(&more);
        }
    });
    told.await;
    let mut late = Events::of(begun.after(2).await);
    within(async {
        while !late.rest.windows(18).any(|words| words == b": baton recovering") {
            let more = late.response.chunk().await.expect("not torn").expect("not over");
            late.rest.extend_from_slice(&more);
        }
    })
    .await;
    for engine in &rig.engines {
        let held = engine.requests().iter().position(|seen| seen.leg == Leg::Continuation);
        if let Some(request) = held {
            engine.release(request as u64);
        }
    }
    assert!(wire(&late.all().await).contains(": baton continued\n"));
}

#[tokio::test]
async fn all_that_can_be_asked_of_a_stream_is_for_its_tenant_only_and_over_http_2_too() {
    let rig = one_engine("leg1 stall@5", "").await;
    let http2 = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().expect("a client");
    let asked = http2.post(rig.url()).header("Baton-Resume", "on").bearer_auth("mine").body(request().to_string());
    let response = within(asked.send()).await.expect("Baton answers");
    assert_eq!(response.version(), http::Version::HTTP_2);
    let url = format!("http://{}{}", rig.address, header(&response, "Location"));
    let mut events = Events::of(response);
    let had = events.take(3).await;
    for key in ["yours", ""] {
        let foreign = [
            client().post(format!("{url}/ack")).body(r#"{"seq":1}"#),
            client().post(format!("{url}/cancel")),
            client().get(format!("{url}/status")),
        ];
        for request in foreign {
            let answer = within(request.bearer_auth(key).send()).await.expect("Baton answers");
            assert_eq!(code(answer).await, (404, "stream_not_found".to_owned()));
        }
    }
    let status = within(http2.get(format!("{url}/status")).bearer_auth("mine").send()).await.expect("Baton answers");
    let status: Value = serde_json::from_str(&within(status.text()).await.expect("a body")).expect("JSON");
    assert_eq!((&status["state"], &status["legs"], &status["readers"]), (&json!("generating"), &json!(1), &json!(1)));
    assert!(status["tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{status}");
    assert!(status["age_ms"].is_u64(), "{status}");
    drop(events);
    rig.engines[0].release(0);
    let back = http2.get(&url).header("Last-Event-ID", had[2].id.as_deref().expect("an id")).bearer_auth("mine");
    let rest = Events::of(within(back.send()).await.expect("Baton answers")).all().await;
    let replay = Events::of(within(http2.get(&url).bearer_auth("mine").send()).await.expect("Baton answers"));
    assert_eq!(wire(&[had, rest].concat()), wire(&replay.all().await));
}

#[tokio::test]
async fn what_names_an_event_goes_to_no_engine_and_a_key_to_no_continuation() {
    let mut setup = Setup::new("leg1 rst@8");
    let faults = setup.engines[0].faults.clone();
    setup.engines[1].faults = faults;
    let rig = setup.start().await;
    let headers = [("Idempotency-Key", "k"), ("Baton-Resume", "on, regenerate"), ("Last-Event-ID", "7")];
    let sent = client().post(rig.url()).body(request().to_string());
    let sent = headers.iter().fold(sent, |sent, (name, value)| sent.header(*name, *value));
    let events = Events::of(within(sent.send()).await.expect("Baton answers")).all().await;
    assert!(wire(&events).contains("[DONE]"));
    let seen = rig.asked();
    assert_eq!(seen.len(), 2);
    for seen in seen {
        let has = |name: &str| seen.headers.iter().any(|(header, _)| header.eq_ignore_ascii_case(name));
        assert!(!has("last-event-id") && !has("baton-resume"));
        assert_eq!(has("idempotency-key"), seen.leg == Leg::First);
    }
}

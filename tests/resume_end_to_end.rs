//! Clients that drop, and come back for the rest: on real sockets, against mock engines.

mod support;

use std::time::Duration;

use baton::mock::End;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

use support::returning::{Client, Events, code, data, header, one_engine, post, wire};
use support::{Setup, client, request, rig, within};

#[tokio::test]
async fn every_event_has_an_id_for_who_asks_for_it_and_none_for_others() {
    let rig = one_engine("", "").await;
    let plain = Events::of(rig.send(&client(), &request()).await).all().await;
    assert!(plain.iter().all(|event| event.id.is_none() && !event.wire.contains("retry:")), "{plain:?}");
    let (begun, events) = Client::begin(&rig, &request()).await;
    let events = events.all().await;
    assert_eq!(events.len(), plain.len());
    for (seq, event) in events.iter().enumerate() {
        let retry = if seq == 0 { "retry: 2000\n" } else { "" };
        assert_eq!(event.wire, format!("{retry}id: {}.{seq}\ndata: {}\n\n", begun.id, event.data));
    }
    assert_eq!(events.last().map(|event| event.data.as_str()), Some("[DONE]"));
}

#[tokio::test]
async fn a_return_behind_every_event_gets_the_rest_byte_for_byte() {
    let rig = one_engine("", "").await;
    let (begun, events) = Client::begin(&rig, &request()).await;
    let live = events.all().await;
    let last = live.len() - 1;
    for seq in 0..last {
        let rest = Events::of(begun.after(seq).await).all().await;
        assert_eq!(wire(&rest), wire(&live[seq + 1..]), "behind {seq}");
    }
    assert_eq!(wire(&Events::of(begun.get("").await).all().await), wire(&live), "without a position");
    assert_eq!(wire(&Events::of(begun.get("?after=3").await).all().await), wire(&live[4..]));
    for behind in [last, last + 1, usize::MAX] {
        assert_eq!(begun.after(behind).await.status(), StatusCode::NO_CONTENT, "{behind}");
    }
    let nonsense = client().get(begun.url("")).header("Last-Event-ID", "-1").send().await.expect("Baton answers");
    assert_eq!(wire(&Events::of(nonsense).all().await), wire(&live));
}

#[tokio::test]
async fn a_client_that_drops_anywhere_comes_back_to_the_same_answer() {
    let uncut = data(&Events::of(one_engine("", "").await.send(&client(), &request()).await).all().await)
        .iter()
        .map(|data| (*data).to_owned())
        .collect::<Vec<_>>();
    for place in 0..uncut.len() - 1 {
        let rig = one_engine(&format!("leg1 stall@{}", place + 1), "continuation: {plan: chat-continue}").await;
        let (begun, mut events) = Client::begin(&rig, &request()).await;
        let had = events.take(place).await;
        within(rig.engines[0].wait_stalled(0)).await;
        drop(events);
        begun.until("unattended").await;
        let mut back = Events::of(match place {
            0 => begun.get("").await,
            _ => begun.after(place - 1).await,
        });
        rig.engines[0].release(0);
        let mut all = had;
        while let Some(event) = back.next().await {
            all.push(event);
        }
        let ids: Vec<_> = all.iter().filter_map(|event| event.id.clone()).collect();
        let wanted: Vec<_> = (0..uncut.len()).map(|seq| format!("{}.{seq}", begun.id)).collect();
        assert_eq!(ids, wanted, "dropped behind {place} events");
        assert_eq!(rig.asked().len(), 1, "one request makes one answer");
        let texts = |events: &[String]| -> String {
            let events = events.iter().filter_map(|data| serde_json::from_str::<Value>(data).ok());
            let text = |event: Value| {
                let delta = &event["choices"][0]["delta"];
                [&delta["reasoning"], &delta["content"]].iter().filter_map(|text| text.as_str()).collect::<String>()
            };
            events.map(text).collect()
        };
        let got: Vec<String> = all.iter().map(|event| event.data.clone()).collect();
        assert_eq!(texts(&got), texts(&uncut), "dropped behind {place} events");
    }
}

#[tokio::test]
async fn without_the_header_a_client_that_leaves_ends_the_engines_work_at_once() {
    let rig = one_engine("leg1 stall@5", "").await;
    let mut events = Events::of(rig.send(&client(), &request()).await);
    events.take(2).await;
    drop(events);
    assert!(matches!(within(rig.engines[0].wait_end(0)).await, End::Left));
}

#[tokio::test]
async fn an_orphan_is_stopped_after_its_grace_and_says_so() {
    let rig = one_engine("leg1 stall@5", "resume: {grace: 200ms}").await;
    let (begun, mut events) = Client::begin(&rig, &request()).await;
    let had = events.take(2).await;
    drop(events);
    assert!(matches!(within(rig.engines[0].wait_end(0)).await, End::Left));
    let status = begun.until("ended").await;
    assert_eq!(status["end"], "abandoned");
    let rest = Events::of(begun.after(had.len() - 1).await).all().await;
    assert!(rest.last().is_some_and(|event| event.data.contains("stream_abandoned")), "{rest:?}");
    assert!(!wire(&rest).contains("[DONE]"));
}

#[tokio::test]
async fn an_orphan_may_only_generate_so_much() {
    let rig = one_engine("leg1 stall@9:1500ms,stall@12", "resume: {grace: 1h, unattended: 2}").await;
    let (begun, mut events) = Client::begin(&rig, &request()).await;
    events.take(2).await;
    drop(events);
    assert_eq!(begun.until("ended").await["end"], "abandoned");
}

#[tokio::test]
async fn an_engine_that_dies_while_nobody_reads_is_followed_by_another() {
    let rig = rig("leg1 stall@8", "", |_| {}).await;
    let (begun, mut events) = Client::begin(&rig, &request()).await;
    let had = events.take(3).await;
    drop(events);
    begun.until("unattended").await;
    let [one, other] = &rig.engines[..] else { panic!("two engines") };
    let stalled = within(async {
        tokio::select! {
            () = one.wait_stalled(0) => one,
            () = other.wait_stalled(0) => other,
        }
    });
    stalled.await.kill(baton::mock::Stop::Rst).await;
    let status = begun.until("ended").await;
    assert_eq!((&status["end"], &status["legs"], &status["readers"]), (&json!("finished"), &json!(2), &json!(0)));
    let rest = Events::of(begun.after(2).await).all().await;
    let replay = Events::of(begun.get("").await).all().await;
    assert_eq!(wire(&[had, rest].concat()), wire(&replay));
    let body = replay.iter().map(|event| format!("data: {}\n\n", event.data)).collect::<String>();
    support::Answer::read(rebuilt(body)).await.assert_whole(&rig.uncut(&request()));
}

/// A response with these events.
fn rebuilt(body: String) -> Response {
    let response = http::Response::builder().header("content-type", "text/event-stream");
    response.body(body).expect("a response").into()
}

#[tokio::test]
async fn a_cancel_stops_the_engine_and_may_be_said_twice() {
    let rig = one_engine("leg1 stall@5", "").await;
    let (begun, mut events) = Client::begin(&rig, &request()).await;
    events.take(2).await;
    assert_eq!(begun.status().await["readers"], 1);
    assert_eq!(begun.cancel().await, StatusCode::ACCEPTED);
    let within_a_second = tokio::time::timeout(Duration::from_secs(1), rig.engines[0].wait_end(0)).await;
    assert!(matches!(within_a_second, Ok(End::Left)), "{within_a_second:?}");
    let rest = events.all().await;
    assert!(rest.last().is_some_and(|event| event.data.contains("stream_cancelled")), "{rest:?}");
    assert_eq!(begun.cancel().await, StatusCode::ACCEPTED);
    assert_eq!(begun.until("ended").await["end"], "cancelled");
    assert!(rig.metrics().await.contains(r#"outcome="cancelled""#));
}

#[tokio::test]
async fn a_stream_is_found_by_its_own_tenant_only() {
    let rig = one_engine("", "").await;
    let ask = |key: &'static str| client().post(rig.url()).header("Baton-Resume", "on").bearer_auth(key);
    let response = within(ask("mine").body(request().to_string()).send()).await.expect("Baton answers");
    let url = format!("http://{}{}", rig.address, header(&response, "Location"));
    let live = Events::of(response).all().await;
    let get = |url: String, key: &'static str| async move {
        within(client().get(url).bearer_auth(key).send()).await.expect("Baton answers")
    };
    assert_eq!(wire(&Events::of(get(url.clone(), "mine").await).all().await), wire(&live));
    let mut wrong = url.clone();
    let last = wrong.pop().expect("a character");
    wrong.push(if last == 'A' { 'Q' } else { 'A' });
    for (url, key) in [
        (url.clone(), "yours"),
        (wrong, "mine"),
        (format!("{url}/nothing"), "mine"),
        (format!("http://{}/v1/streams/", rig.address), "mine"),
        (format!("http://{}/v1/streams/x", rig.address), "mine"),
    ] {
        let response = get(url.clone(), key).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{url}");
        assert!(within(response.text()).await.expect("a body").contains("stream_not_found"));
    }
    let nobody = within(client().get(url).send()).await.expect("Baton answers");
    assert_eq!(nobody.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_stream_whose_time_is_over_is_gone() {
    let rig = one_engine("", "resume: {ttl: 0s}").await;
    let (begun, events) = Client::begin(&rig, &request()).await;
    events.all().await;
    let gone = begun.get("").await;
    assert_eq!(gone.status(), StatusCode::GONE);
    assert!(within(gone.text()).await.expect("a body").contains("stream_expired"));
    assert_eq!(begun.get("/status").await.status(), StatusCode::GONE);
}

#[tokio::test]
async fn several_readers_read_the_same() {
    let rig = one_engine("leg1 stall@9", "").await;
    let (begun, mut events) = Client::begin(&rig, &request()).await;
    let mut live = events.take(2).await;
    within(rig.engines[0].wait_stalled(0)).await;
    let mut others = Vec::new();
    for _ in 0..5 {
        others.push(Events::of(begun.get("").await));
    }
    assert_eq!(begun.status().await["readers"], 6);
    rig.engines[0].release(0);
    while let Some(event) = events.next().await {
        live.push(event);
    }
    for other in others {
        assert_eq!(wire(&other.all().await), wire(&live));
    }
    assert!(rig.metrics().await.contains("baton_clients_returned_total 5"));
}

#[tokio::test]
async fn heartbeats_have_no_blank_line_where_events_have_ids() {
    let rig = one_engine("leg1 stall@5", "heartbeat: 100ms").await;
    let (_, mut events) = Client::begin(&rig, &request()).await;
    events.take(2).await;
    within(rig.engines[0].wait_stalled(0)).await;
    let rest = loop {
        let more = within(events.response.chunk()).await.expect("not torn").expect("not over");
        events.rest.extend_from_slice(&more);
        let rest = str::from_utf8(&events.rest).expect("text");
        if rest.contains(": ping\n") {
            break rest.to_owned();
        }
    };
    assert!(!rest.contains(": ping\n\n"), "{rest:?}");
}

#[tokio::test]
async fn the_same_request_with_its_last_event_or_its_key_never_makes_two_answers() {
    let rig = one_engine("", "").await;
    let body = request();
    let first = post(&rig, &body, &[("Idempotency-Key", "k")]).await;
    let id = header(&first, "Baton-Stream");
    let live = Events::of(first).all().await;
    let again = post(&rig, &body, &[("Idempotency-Key", "k")]).await;
    assert_eq!(header(&again, "Baton-Stream"), id);
    assert_eq!(wire(&Events::of(again).all().await), wire(&live));
    let last = format!("{id}.4");
    let behind = post(&rig, &body, &[("Last-Event-ID", &last)]).await;
    assert_eq!(wire(&Events::of(behind).all().await), wire(&live[5..]));
    let both = post(&rig, &body, &[("Last-Event-ID", &last), ("Idempotency-Key", "k")]).await;
    assert_eq!(wire(&Events::of(both).all().await), wire(&live[5..]));
    let done = format!("{id}.{}", live.len() - 1);
    assert_eq!(post(&rig, &body, &[("Last-Event-ID", &done)]).await.status(), StatusCode::NO_CONTENT);

    let mut other = body.clone();
    other["seed"] = json!(7);
    let differs = (422, "idempotency_key_reused".to_owned());
    assert_eq!(code(post(&rig, &other, &[("Idempotency-Key", "k")]).await).await, differs);
    assert_eq!(code(post(&rig, &other, &[("Last-Event-ID", &last)]).await).await, differs);
    let foreign = [("Last-Event-ID", last.as_str()), ("Authorization", "Bearer other")];
    assert_eq!(code(post(&rig, &body, &foreign).await).await, (404, "stream_not_found".to_owned()));
    assert_eq!(code(post(&rig, &body, &[("Last-Event-ID", "7")]).await).await, (404, "stream_not_found".to_owned()));
    assert_eq!(rig.asked().len(), 1, "one answer was generated");
    let fresh = post(&rig, &body, &[("Idempotency-Key", "l")]).await;
    assert_ne!(header(&fresh, "Baton-Stream"), id);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_comes_ten_times_at_once_makes_one_answer() {
    let rig = one_engine("leg1 slow@head:200ms", "").await;
    let posts = (0..10).map(|_| {
        let sent = client().post(rig.url()).header("Baton-Resume", "on").header("Idempotency-Key", "k");
        let sent = sent.body(request().to_string());
        tokio::spawn(async move { Events::of(sent.send().await.expect("Baton answers")).all().await })
    });
    let mut answers = Vec::new();
    for post in posts.collect::<Vec<_>>() {
        answers.push(wire(&within(post).await.expect("no panic")));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0] && answer.contains("[DONE]")));
    assert_eq!(rig.asked().len(), 1);
}

#[tokio::test]
async fn a_key_whose_request_was_refused_may_be_used_again() {
    let rig = one_engine("#1 status:503,#2 status:503,#3 status:503", "retry: {attempts: 1}").await;
    let refused = post(&rig, &request(), &[("Idempotency-Key", "k")]).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    within(async { while post(&rig, &request(), &[("Idempotency-Key", "k")]).await.status() != StatusCode::OK {} })
        .await;
}

#[tokio::test]
async fn what_is_expired_is_generated_again_only_for_who_says_so() {
    let rig = one_engine("", "resume: {ttl: 0s}").await;
    let (begun, events) = Client::begin(&rig, &request()).await;
    events.all().await;
    let last = format!("{}.3", begun.id);
    assert_eq!(
        code(post(&rig, &request(), &[("Last-Event-ID", &last)]).await).await,
        (410, "stream_expired".to_owned())
    );
    let sent = client().post(rig.url()).header("Baton-Resume", "on, regenerate").header("Last-Event-ID", last);
    let fresh = within(sent.body(request().to_string()).send()).await.expect("Baton answers");
    assert_ne!(header(&fresh, "Baton-Stream"), begun.id);
    assert_eq!(rig.asked().len(), 2);
}

#[tokio::test]
async fn what_is_acknowledged_may_go_and_a_return_below_it_says_so() {
    let mut setup = Setup::new("").route("resume: {window: 8KiB}");
    setup.engines.truncate(1);
    setup.engines[0].content = 2_000;
    let rig = setup.start().await;
    let (begun, events) = Client::begin(&rig, &request()).await;
    let live = events.all().await;
    let ack = |body: &'static str| client().post(begun.url("/ack")).body(body).send();
    for wrong in ["", "[]", "{}", r#"{"seq":-1}"#, r#"{"seq":"1"}"#] {
        assert_eq!(code(within(ack(wrong)).await.expect("an answer")).await, (400, "bad_ack".to_owned()), "{wrong}");
    }
    assert_eq!(within(ack(r#"{"seq":1900}"#)).await.expect("an answer").status(), StatusCode::NO_CONTENT);
    let low = begun.status().await["low"].as_u64().expect("a number") as usize;
    assert!((1..=1901).contains(&low), "{low}");
    assert_eq!(code(begun.get("").await).await, (410, "trimmed".to_owned()));
    assert_eq!(code(begun.after(low - 2).await).await, (410, "trimmed".to_owned()));
    assert_eq!(wire(&Events::of(begun.after(low - 1).await).all().await), wire(&live[low..]));
}

#[tokio::test]
async fn a_client_that_may_come_back_is_told_while_another_engine_is_looked_for() {
    let rig = rig("leg1 rst@8,leg2 slow@head:300ms", "", |_| {}).await;
    let (_, events) = Client::begin(&rig, &request()).await;
    let told = wire(&events.all().await);
    let (before, rest) = told.split_once(": baton recovering\n").expect("it is told");
    let (between, after) = rest.split_once(": baton continued\n").expect("and that it is over");
    assert!(before.ends_with("\n\n") && after.contains("data: [DONE]"), "{told}");
    assert!(between.matches("data: ").count() <= 1, "with the first event of the other engine: {told}");
    assert_eq!(told.matches(": baton").count(), 2, "{told}");
    let plain = Events::of(rig.send(&client(), &request()).await).all().await;
    assert!(!wire(&plain).contains(": baton"), "others get the engines' bytes alone");
}

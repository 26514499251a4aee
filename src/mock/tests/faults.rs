use serde_json::{Value, json};

use super::client::{BodyEnd, Client, Reply, events};
use super::{config, soon, start};
use crate::mock::fault::Rule;
use crate::mock::{Config, End, Running, Wire};

fn body() -> Value {
    json!({
        "model": "m", "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "Hi"}],
    })
}

fn ask(engine: &Running, fault: &str) -> Reply {
    let mut client = Client::connect(engine.addr());
    client.chat(&[("mock-fault", fault), ("x-request-id", "r")], &body());
    let mut reply = client.reply();
    // vLLM takes the id from the header; SGLang's is a new one each time, but always as long.
    let first = std::str::from_utf8(&reply.body).ok().and_then(|text| text.strip_prefix("data: {\"id\":\"")?.get(..32));
    if let Some(id) = first.filter(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        reply.body = reply.text().replace(id, &"0".repeat(32)).into_bytes();
    }
    reply
}

/// The whole body of the answer, parted into events.
fn whole(engine: &Running) -> Vec<Vec<u8>> {
    let reply = ask(engine, "");
    assert_eq!((reply.status, reply.end), (200, BodyEnd::Whole));
    reply.text().split_inclusive("\n\n").map(|event| event.as_bytes().to_vec()).collect()
}

fn both() -> [Config; 2] {
    [config(), Config { wire: Wire::Sglang, ..config() }]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_before_any_event_gives_exactly_the_events_before_it() {
    for config in both() {
        let wire = config.wire;
        let engine = start(config).await;
        let events = whole(&engine);
        for at in 0..=events.len() {
            for (kind, end) in [("rst", BodyEnd::Reset), ("eof", BodyEnd::Eof), ("end", BodyEnd::Whole)] {
                let reply = ask(&engine, &format!("{kind}@{at}"));
                assert_eq!(reply.body, events[..at].concat(), "{kind}@{at}");
                assert_eq!(reply.end, end, "{kind}@{at}");
                // SGLang's head waits for the first event.
                let headless = wire == Wire::Sglang && at == 0 && kind != "end";
                assert_eq!(reply.status, if headless { 0 } else { 200 }, "{kind}@{at}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_at_any_byte_of_an_event_gives_exactly_the_bytes_before_it() {
    let engine = start(config()).await;
    let events = whole(&engine);
    let before = events[..4].concat();
    for offset in 1..events[4].len() {
        let reply = ask(&engine, &format!("eof@4+{offset}"));
        assert_eq!(reply.body, [&before[..], &events[4][..offset]].concat());
        assert_eq!(reply.end, BodyEnd::Eof);
    }
    let reply = ask(&engine, "rst@4+9999");
    assert_eq!(reply.body, [&before[..], &events[4][..events[4].len() - 1]].concat(), "at most all but one byte");
    assert_eq!(reply.end, BodyEnd::Reset);
    let reply = ask(&engine, "end@4+half");
    assert_eq!(reply.body, [&before[..], &events[4][..events[4].len() / 2]].concat());
    assert_eq!(reply.end, BodyEnd::Whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_inside_a_character_leaves_its_first_byte() {
    let engine = start(Config { content: 40, ..config() }).await;
    let reply = ask(&engine, "rst@1+char");
    let error = std::str::from_utf8(&reply.body).expect_err("the last character is cut");
    assert_eq!(error.error_len(), None, "it is cut and not wrong");
    assert_eq!(error.valid_up_to(), reply.body.len() - 1);
    assert!(whole(&engine).concat().starts_with(&reply.body));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_places_of_the_tail_are_found_by_name() {
    for config in both() {
        let engine = start(config).await;
        let events = whole(&engine);
        let finish =
            events.iter().position(|event| String::from_utf8_lossy(event).contains("\"finish_reason\":\"stop\""));
        let finish = finish.expect("a finish reason");
        assert_eq!(events.len(), finish + 3, "finish, usage, [DONE]");
        for (place, at) in [("finish", finish), ("usage", finish + 1), ("done", finish + 2)] {
            for (kind, end) in [("rst", BodyEnd::Reset), ("eof", BodyEnd::Eof), ("end", BodyEnd::Whole)] {
                let reply = ask(&engine, &format!("{kind}@{place}"));
                assert_eq!((reply.body, reply.end), (events[..at].concat(), end), "{kind}@{place}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn error_events_have_the_engines_shape_and_are_followed_by_done() {
    let check = |engine: &Running, fault: &str, expected: Value| {
        let before = whole(engine)[..3].concat();
        let reply = ask(engine, fault);
        assert_eq!(reply.end, BodyEnd::Whole);
        let tail = String::from_utf8(reply.body[before.len()..].to_vec()).expect("UTF-8");
        assert!(reply.body.starts_with(&before));
        let events = events(&tail);
        assert_eq!((events.len(), events[1].as_str()), (2, "[DONE]"), "{fault}");
        assert_eq!(serde_json::from_str::<Value>(&events[0]).expect("JSON"), expected, "{fault}");
    };
    let [vllm, sglang] = both();
    let message = "EngineCore encountered an issue. See stack trace (above) for the root cause.";
    let vllm = start(vllm).await;
    let inner = json!({"message": message, "type": "InternalServerError", "param": null, "code": 500});
    check(&vllm, "error@3", json!({"error": inner}));
    let flat =
        json!({"object": "error", "message": message, "type": "InternalServerError", "param": null, "code": 500});
    check(&vllm, "error@3:flat", flat);
    let sglang = start(sglang).await;
    let inner = json!({
        "object": "error", "message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", "param": null, "code": 503,
    });
    check(&sglang, "error@3:503", json!({"error": inner}));
    check(&sglang, "error@3:503:flat", inner);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_is_a_finish_chunk_and_done() {
    for config in both() {
        let engine = start(config).await;
        let events = whole(&engine);
        for at in [1, 4] {
            let reply = ask(&engine, &format!("abort@{at}"));
            let tail = reply.events().split_off(at);
            assert!(reply.body.starts_with(&events[..at].concat()));
            let finish: Value = serde_json::from_str(&tail[0]).expect("JSON");
            assert_eq!(finish["choices"][0]["finish_reason"], "abort");
            assert_eq!((tail.len(), tail[1].as_str(), reply.end), (2, "[DONE]", BodyEnd::Whole));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn done_may_come_without_a_finish_reason() {
    let engine = start(config()).await;
    let events = whole(&engine);
    let reply = ask(&engine, "done@5");
    assert_eq!(reply.body, [&events[..5].concat()[..], b"data: [DONE]\n\n"].concat());
    assert_eq!(reply.end, BodyEnd::Whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn disturbances_come_where_they_should_and_the_stream_goes_on() {
    let engine = start(config()).await;
    let events = whole(&engine);
    let (before, after) = (events[..2].concat(), events[2..].concat());
    let garbage = "data: {\"id\":\"chatcmpl-garbage\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"oo\n\n";
    let long = format!("data: {}\n\n", "a".repeat(200_000));
    for (fault, added) in [
        ("garbage@2", garbage),
        ("comment@2", ": keep-alive\n\n"),
        ("long@2:200000", &long),
        ("slow@2:1ms", ""),
        ("stall@2:1ms", ""),
    ] {
        let reply = ask(&engine, fault);
        assert_eq!(reply.body, [&before[..], added.as_bytes(), &after[..]].concat(), "{fault}");
        assert_eq!(reply.end, BodyEnd::Whole);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_parts_an_event_into_two_chunks() {
    let engine = start(config()).await;
    let events = whole(&engine);
    let reply = ask(&engine, "split@2+7");
    assert_eq!(reply.body, events.concat());
    let mut sizes: Vec<usize> = events.iter().map(Vec::len).collect();
    sizes.splice(2..3, [7, events[2].len() - 7]);
    assert_eq!(reply.chunks, sizes);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_line_ends_with_the_client() {
    let engine = start(config()).await;
    let mut client = Client::connect(engine.addr());
    client.chat(&[("mock-fault", "endless@1")], &body());
    client.read_until(|bytes| bytes.len() > 1 << 20);
    drop(client);
    assert_eq!(soon(engine.wait_end(0)).await, End::Left);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_lasts_until_it_is_released() {
    let engine = start(config()).await;
    let events = whole(&engine);
    for fault in ["stall@3", "stall@3+half"] {
        let request = engine.request_count();
        let mut client = Client::connect(engine.addr());
        client.chat(&[("mock-fault", fault), ("x-request-id", "r")], &body());
        soon(engine.wait_stalled(request)).await;
        assert_eq!(engine.request(request).map(|seen| (seen.events, seen.end)), Some((3, None)));
        engine.release(request);
        assert_eq!(client.reply().body, events.concat());
        assert_eq!(soon(engine.wait_end(request)).await, End::Complete);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stall_can_send_comments_meanwhile() {
    let engine = start(config()).await;
    let mut client = Client::connect(engine.addr());
    client.chat(&[("mock-fault", "stall@2:comments")], &body());
    client.read_until(|bytes| bytes.windows(14).filter(|window| window == b": keep-alive\n\n").count() >= 2);
    engine.release(0);
    let reply = client.reply();
    assert!(reply.text().starts_with("data: {") && reply.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(reply.text().replace(": keep-alive\n\n", "").matches("data: ").count(), whole(&engine).len());
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_head_a_connection_can_break_or_wait() {
    let engine = start(config()).await;
    for (fault, end) in [("rst@head", BodyEnd::Reset), ("eof@head", BodyEnd::Eof)] {
        let reply = ask(&engine, fault);
        assert_eq!((reply.status, reply.end), (0, end));
    }
    let mut client = Client::connect(engine.addr());
    client.chat(&[("mock-fault", "stall@head, rst@2")], &body());
    soon(engine.wait_stalled(2)).await;
    engine.release(2);
    assert_eq!(client.reply().events().len(), 2, "the next fault still comes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_comes_with_the_engines_body_or_with_ones_own() {
    let [vllm, sglang] = both();
    let (vllm, sglang) = (start(vllm).await, start(sglang).await);
    let reply = ask(&vllm, "status:503");
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!(503)));
    let reply = ask(&sglang, "status:429");
    assert_eq!((reply.status, &reply.json()["object"]), (429, &json!("error")));
    let reply = ask(&vllm, "status:400:{\"why\":\"so, there\"}");
    assert_eq!((reply.status, reply.text().as_str()), (400, "{\"why\":\"so, there\"}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_that_cannot_be_read_is_answered_with_what_can() {
    let engine = start(config()).await;
    let reply = ask(&engine, "explode@3");
    assert_eq!(reply.status, 400);
    let message = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
    assert!(message.contains("`explode@3`: unknown kind") && message.contains("rst, eof, end, stall"), "{message}");
    assert_eq!(engine.request(0).and_then(|seen| seen.refused), Some(message));
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_the_settings_follow_their_scope() {
    let faults = Rule::parse_all("#2 eof@1, #3 status:500").expect("reads");
    let engine = start(Config { faults, ..config() }).await;
    assert_eq!(ask(&engine, "").end, BodyEnd::Whole);
    assert_eq!(ask(&engine, "").events().len(), 1);
    assert_eq!(ask(&engine, "").status, 500);
    assert_eq!(ask(&engine, "").end, BodyEnd::Whole);
    let faults: Vec<_> = engine.requests().into_iter().map(|seen| seen.faults).collect();
    assert_eq!(faults, [vec![], vec!["#2 eof@1".to_owned()], vec!["#3 status:500".to_owned()], vec![]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_beyond_the_end_never_happens_and_is_not_noted() {
    let engine = start(config()).await;
    assert_eq!(ask(&engine, "rst@500").end, BodyEnd::Whole);
    assert_eq!(soon(engine.wait_end(0)).await, End::Complete);
    assert_eq!(engine.request(0).map(|seen| seen.faults), Some(vec![]));
}

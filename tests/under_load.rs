//! What happens when there is no more room, and with clients that hang: on real sockets, against mock engines.

mod support;

use baton::mock::{Engine, Running};
use reqwest::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use support::returning::{Client, Events, code, header, one_engine, post, wire};
use support::{Rig, Setup, client, request, rig, within};

/// Baton with these limits, before one engine.
async fn limited(faults: &str, limits: &str) -> Rig {
    let mut setup = Setup::new(faults);
    setup.engines.truncate(1);
    let engine = Engine::start(setup.engines.remove(0)).await.expect("a mock engine starts");
    let urls = [engine.url()];
    let mut rig = setup.start_before(&urls, limits).await;
    rig.engines = vec![engine];
    rig
}

async fn counted(rig: &Rig, line: &str) -> bool {
    rig.metrics().await.lines().any(|told| told == line)
}

#[tokio::test]
async fn orphans_make_room_oldest_first_and_nobody_is_refused_as_long_as_there_are_some() {
    let rig = limited("leg1 stall@5", "journal: {max_streams: 10}\n").await;
    let mut orphans = Vec::new();
    for _ in 0..12 {
        let (begun, mut events) = Client::begin(&rig, &request()).await;
        events.take(2).await;
        drop(events);
        // One that was given up is gone at once.
        within(async {
            while begun.status().await["state"] == "generating" {
                tokio::task::yield_now().await;
            }
        })
        .await;
        orphans.push(begun);
    }
    let mut states = Vec::new();
    for begun in &orphans {
        states.push(begun.get("/status").await.status());
    }
    let given_up = states.iter().take_while(|status| **status == StatusCode::GONE).count();
    assert!(states[given_up..].iter().all(|status| *status == StatusCode::OK), "the oldest went: {states:?}");
    assert_eq!(given_up, 4, "{states:?}");
    assert!(counted(&rig, r#"baton_streams_given_up_total{kind="orphan"} 4"#).await);
    assert!(counted(&rig, "baton_orphans 8").await, "{}", rig.metrics().await);
    assert!(counted(&rig, "baton_requests_turned_away_total 0").await);
}

#[tokio::test]
async fn with_readers_everywhere_new_streams_lose_their_way_back_and_then_requests_are_refused() {
    let rig = limited("leg1 stall@5", "journal: {max_streams: 10}\n").await;
    let mut reading = Vec::new();
    for _ in 0..9 {
        reading.push(Client::begin(&rig, &request()).await);
    }
    let unkept = post(&rig, &request(), &[]).await;
    assert_eq!(unkept.status(), StatusCode::OK);
    assert!(unkept.headers().get("location").is_none());
    let mut unkept = Events::of(unkept);
    assert!(unkept.take(2).await.iter().all(|event| event.id.is_none()));
    assert!(counted(&rig, r#"baton_streams_not_kept_total{reason="load"} 1"#).await);
    let refused = post(&rig, &request(), &[]).await;
    assert_eq!((refused.status(), header(&refused, "retry-after").as_str()), (StatusCode::SERVICE_UNAVAILABLE, "5"));
    assert_eq!(code(refused).await, (503, "overloaded".to_owned()));
    assert!(counted(&rig, "baton_requests_turned_away_total 1").await);
    // Who has a stream is not refused, and who ends one makes room.
    assert_eq!(reading[0].0.status().await["state"], "generating");
    let back = Events::of(reading[0].0.get("").await).take(2).await;
    assert_eq!(back.len(), 2);
    drop(unkept);
    within(async { while post(&rig, &request(), &[]).await.status() != StatusCode::OK {} }).await;
}

#[tokio::test]
async fn one_tenant_s_answers_leave_room_for_others() {
    let rig = limited("", "journal: {max_tenant_streams: 2}\n").await;
    for wanted in [true, true, false] {
        let response = post(&rig, &request(), &[("Authorization", "Bearer greedy")]).await;
        assert_eq!(response.headers().contains_key("location"), wanted);
        assert!(wire(&Events::of(response).all().await).contains("[DONE]"), "it is answered all the same");
    }
    let other = post(&rig, &request(), &[("Authorization", "Bearer modest")]).await;
    assert!(other.headers().contains_key("location"));
    assert!(counted(&rig, r#"baton_streams_not_kept_total{reason="tenant"} 1"#).await);
}

#[tokio::test]
async fn a_client_that_stops_acknowledging_is_let_go_and_can_come_back() {
    let rig = one_engine("leg1 stall@5", "heartbeat: 200ms, resume: {silence: 1s}").await;
    let (begun, mut events) = Client::begin(&rig, &request()).await;
    let had = events.take(2).await;
    let ack = client().post(begun.url("/ack")).body(r#"{"seq":1}"#).send();
    assert_eq!(within(ack).await.expect("Baton answers").status(), StatusCode::NO_CONTENT);
    let torn = within(async { while let Ok(Some(_)) = events.response.chunk().await {} });
    torn.await;
    begun.until("unattended").await;
    let back = Events::of(begun.after(had.len() - 1).await);
    rig.engines[0].release(0);
    let rest = back.all().await;
    let replay = Events::of(begun.get("").await).all().await;
    assert_eq!(wire(&[had, rest].concat()), wire(&replay));
    assert!(wire(&replay).contains("[DONE]"));
}

/// A client that sends this and then reads nothing.
async fn hang(rig: &Rig, request: String) -> tokio::net::TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut stream = within(socket.connect(rig.address)).await.expect("Baton listens");
    within(stream.write_all(request.as_bytes())).await.expect("it is taken");
    stream
}

async fn long_answer() -> (Rig, Running) {
    let mut setup = Setup::new("");
    setup.engines.truncate(1);
    setup.engines[0].content = 40_000;
    let mut rig = setup.start().await;
    let engine = rig.engines.remove(0);
    (rig, engine)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_does_not_read_holds_up_nobody_and_can_come_back() {
    let (rig, engine) = long_answer().await;
    // Without usage in every event, so that the journal holds all of it.
    let mut asked = request();
    asked["stream_options"] = serde_json::json!({"include_usage": true});
    let body = asked.to_string();
    let (begun, mut events) = Client::begin(&rig, &asked).await;
    let first = events.take(1).await;
    let mut hanging = Vec::new();
    for _ in 0..3 {
        let get = format!("GET /v1/streams/{} HTTP/1.1\r\nHost: x\r\n\r\n", begun.id);
        hanging.push(hang(&rig, get).await);
    }
    let post = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nBaton-Resume: on\r\nIdempotency-Key: slow\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let slow = hang(&rig, post).await;
    // The engine comes to its end for both streams, and the reader that reads gets all.
    for request in [0, 1] {
        assert!(matches!(within(engine.wait_end(request)).await, baton::mock::End::Complete), "{request}");
    }
    let live = [first, events.all().await].concat();
    assert!(wire(&live).len() > 8 << 20, "more than the sockets hold: {}", wire(&live).len());
    assert!(wire(&live).ends_with("data: [DONE]\n\n"));
    let mut hung = hanging.pop().expect("a client");
    drop((hanging, slow));
    let back = Events::of(post_again(&rig, &body).await).all().await;
    assert_eq!(back.len(), live.len(), "whoever hung comes back to all of it");
    let mut taken = Vec::new();
    within(async {
        let mut buffer = vec![0; 1 << 16];
        while !taken.ends_with(b"\r\n0\r\n\r\n") {
            let read = hung.read(&mut buffer).await.expect("it is not torn");
            assert!(read > 0);
            taken.extend_from_slice(&buffer[..read]);
        }
    })
    .await;
    assert!(taken.len() > wire(&live).len());
}

async fn post_again(rig: &Rig, body: &str) -> reqwest::Response {
    let again = client().post(rig.url()).header("Baton-Resume", "on").header("Idempotency-Key", "slow");
    within(again.body(body.to_owned()).send()).await.expect("Baton answers")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_does_not_read_is_let_go_after_a_while_and_can_come_back() {
    let mut setup = Setup::new("").route("timeouts: {send: 1s}");
    setup.engines.truncate(1);
    setup.engines[0].content = 40_000;
    let rig = setup.start().await;
    let mut asked = request();
    asked["stream_options"] = serde_json::json!({"include_usage": true});
    let body = asked.to_string();
    let post = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nBaton-Resume: on\r\nIdempotency-Key: slow\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut slow = hang(&rig, post).await;
    let mut head = [0; 1024];
    let read = within(slow.read(&mut head)).await.expect("the head comes");
    let head = String::from_utf8_lossy(&head[..read]).into_owned();
    let id = head.lines().find_map(|line| line.strip_prefix("Baton-Stream: ")).expect("an id").to_owned();
    let begun = Client { base: format!("http://{}", rig.address), id };
    within(async { while begun.status().await["end"] != "finished" {} }).await;
    // The engine is done, and nobody holds the connection but its client.
    within(async { while begun.status().await["readers"] != 0 {} }).await;
    let whole = Events::of(post_again(&rig, &body).await).all().await;
    assert!(wire(&whole).ends_with("data: [DONE]\n\n") && whole.len() > 40_000);
    drop(slow);
}

#[tokio::test]
async fn a_plain_client_that_does_not_read_ends_as_any_other() {
    let rig = rig("", "", |engine| engine.content = 40_000).await;
    let body = request().to_string();
    let post = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let slow = hang(&rig, post).await;
    within(async {
        while rig.asked().is_empty() {
            tokio::task::yield_now().await
        }
    })
    .await;
    drop(slow);
    within(async {
        while !counted(&rig, "baton_journal_streams 0").await {
            tokio::task::yield_now().await
        }
    })
    .await;
}

/// Where Linux tells of TCP connections: <https://docs.kernel.org/networking/proc_net_tcp.html>.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_connection_that_says_nothing_is_asked_by_tcp() {
    let rig = one_engine("leg1 stall@5", "").await;
    let (_begun, mut events) = Client::begin(&rig, &request()).await;
    events.take(2).await;
    let port = format!(":{:04X}", rig.address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the table");
    let established = table.lines().filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        (fields.get(1)?.ends_with(&port) && fields[3] == "01").then(|| fields[5].to_owned())
    });
    let timers: Vec<_> = established.collect();
    assert!(!timers.is_empty());
    // 02: the keep-alive timer; nothing is sent that would have set another.
    for timer in timers {
        let (kind, ticks) = timer.split_once(':').expect("a kind and a time");
        let ticks = u64::from_str_radix(ticks, 16).expect("a number");
        assert!(kind == "02" && ticks <= 60 * 100, "{timer}");
    }
}

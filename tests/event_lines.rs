//! What the log and the metrics say of a stream, on real sockets: which lines, with which fields, and nothing that is private.
//!
//! The log's collector is the process's own, so these tests have a binary to themselves.

mod support;

use std::sync::{Mutex, Once, PoisonError};

use baton::mock::Leg;
use serde_json::Value;
use tokio::sync::Notify;

use support::{Answer, Rig, Setup, client, request, within};

/// Everything that was logged at a level that operators see.
static LOGGED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());
static MORE: Notify = Notify::const_new();

struct Collector;

impl log::Log for Collector {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let entry = (record.target().to_owned(), record.args().to_string());
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        MORE.notify_waiters();
    }

    fn flush(&self) {}
}

fn collect() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Collector).expect("the first logger");
        log::set_max_level(log::LevelFilter::Info);
    });
}

/// Where twelve events of the answer have come to the client: the end of thinking has an event of its own that has only a token id.
const TWELVE: usize = 13;

fn logged() -> Vec<(String, String)> {
    LOGGED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The lines of the stream with this id, once it has its seal. Everything is counted by then.
async fn lines_of(stream: &str) -> Vec<String> {
    let mark = format!(" stream={} ", &stream[..11]);
    within(async {
        loop {
            let more = MORE.notified();
            let all = logged().into_iter().filter(|(target, line)| target == "baton::stream" && line.contains(&mark));
            let lines: Vec<String> = all.map(|(_, line)| line).collect();
            if lines.iter().any(|line| line.starts_with("event=seal ")) {
                return lines;
            }
            more.await;
        }
    })
    .await
}

/// Baton before two engines that all break in this way, whichever of them gets the request.
async fn rig(fault: &str, route: &str) -> Rig {
    collect();
    let mut setup = Setup::new(fault).route(route);
    let faults = setup.engines[0].faults.clone();
    setup.engines.iter_mut().for_each(|engine| engine.faults = faults.clone());
    setup.start().await
}

/// A stream's lines without what is the same in all of them, which is checked here. `ENGINE1` stands for the engine that got the
/// client's own request, `ENGINE2` for the other; `#` for what depends on time.
fn plain(rig: &Rig, lines: &[String], stream: &str, id: &str) -> Vec<String> {
    let mut passed = 0;
    let mut plain = Vec::new();
    for line in lines {
        let mut words = line.split(' ').map(|word| word.split_once('=').expect("key=value"));
        let ("event", event) = words.next().expect("an event") else { panic!("{line}") };
        assert_eq!(words.next(), Some(("stream", &stream[..11])), "{line}");
        let mut out = event.to_owned();
        let mut rest = words.peekable();
        if event != "start" {
            assert_eq!(rest.next(), Some(("id", id)), "{line}");
        }
        assert_eq!(rest.next(), Some(("upstream", "mock")), "{line}");
        for (key, value) in rest {
            let told = match (event, key) {
                (_, "endpoint") => engine(rig, value),
                (_, "after_ms" | "gap_ms" | "took_ms") => number(value).map(|_| "#").expect(line),
                // Events that come together are read together.
                ("first_event" | "continued", "events") => "#",
                _ => value,
            };
            if key == "events" {
                let events = number(value).expect(line);
                assert!(events >= passed, "{line}");
                passed = events;
            }
            out.push_str(&format!(" {key}={told}"));
        }
        plain.push(out);
    }
    plain
}

fn number(value: &str) -> Option<u64> {
    value.parse().ok()
}

fn engine(rig: &Rig, endpoint: &str) -> &'static str {
    let engine = rig.engines.iter().find(|engine| engine.url() == endpoint).expect("an engine's address");
    let first = engine.requests().iter().any(|seen| seen.leg == Leg::First);
    if first { "ENGINE1" } else { "ENGINE2" }
}

async fn assert_lines(rig: &Rig, stream: &str, id: &str, expected: &[&str]) {
    let lines = lines_of(stream).await;
    assert_eq!(plain(rig, &lines, stream, id), expected);
    assert_private(stream, &rig.uncut(&request()));
}

async fn assert_told(rig: &Rig, answer: &Answer, expected: &[&str]) {
    assert_lines(rig, answer.header("baton-stream").expect("a stream's id"), &answer.ids[0], expected).await;
}

/// Nothing that was logged, by whomever, tells the stream's id, the answer or the question.
fn assert_private(stream: &str, uncut: &baton::mock::Answer) {
    let answer: Vec<char> = format!("{} {}", uncut.reasoning_text(), uncut.content_text()).chars().collect();
    let pieces: Vec<String> = answer.windows(8).map(|piece| piece.iter().collect()).collect();
    assert!(pieces.len() > 30);
    for (target, line) in logged() {
        assert!(!line.contains(&stream[11..]), "{target}: {line}");
        assert!(!line.contains("Tell me about"), "{target}: {line}");
        let told = pieces.iter().find(|piece| line.contains(piece.as_str()));
        assert_eq!(told, None, "{target}: {line}");
    }
}

/// These series have these values; those with 0 may be missing.
async fn assert_counted(rig: &Rig, series: &[(&str, u64)]) {
    check_counts(&rig.metrics().await, series);
}

fn check_counts(metrics: &str, series: &[(&str, u64)]) {
    for (name, value) in series {
        let line = metrics.lines().find_map(|line| line.strip_prefix("baton_")?.strip_prefix(name)?.strip_prefix(' '));
        assert_eq!(line.map_or(Some(0), number), Some(*value), "{name} in\n{metrics}");
    }
}

#[tokio::test]
async fn a_whole_stream_is_a_start_a_first_event_and_a_seal() {
    let rig = rig("", "").await;
    let answer = rig.ask(&request()).await;
    let (whole, events, bytes) = (rig.uncut(&request()), answer.events, answer.body.len());
    answer.assert_whole(&whole);
    let tokens = whole.completion_tokens;
    let seal = format!(
        "seal endpoint=ENGINE1 events={events} outcome=finished legs=1 tokens={tokens} bytes={bytes} took_ms=#"
    );
    assert_told(
        &rig,
        &answer,
        &[
            "start endpoint=ENGINE1 events=0 route=* model=mock",
            "first_event endpoint=ENGINE1 events=# after_ms=#",
            &seal,
        ],
    )
    .await;
    assert_counted(
        &rig,
        &[
            ("streams_total{outcome=\"finished\",route=\"*\",upstream=\"mock\"}", 1),
            ("first_event_seconds_count{upstream=\"mock\"}", 1),
            ("recovery_gap_seconds_count", 0),
            ("legs_started_total{upstream=\"mock\"}", 1),
            ("events_sent_total", events as u64),
            ("bytes_sent_total", bytes as u64),
            ("clients_left_total", 0),
            ("heartbeats_total", 0),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_continued_stream_tells_its_cut_its_second_leg_and_its_going_on() {
    let rig = rig(&format!("leg1 rst@{TWELVE}"), "").await;
    let answer = rig.ask(&request()).await;
    let (whole, events, bytes) = (rig.uncut(&request()), answer.events, answer.body.len());
    answer.assert_whole(&whole);
    let tokens = whole.completion_tokens;
    let seal = format!(
        "seal endpoint=ENGINE2 events={events} outcome=finished legs=2 tokens={tokens} bytes={bytes} took_ms=#"
    );
    assert_told(
        &rig,
        &answer,
        &[
            "start endpoint=ENGINE1 events=0 route=* model=mock",
            "first_event endpoint=ENGINE1 events=# after_ms=#",
            "cut endpoint=ENGINE1 events=12 leg=1 attempt=1 reason=reset",
            "leg events=12 leg=2 attempt=1 plan=token-exact",
            "continued endpoint=ENGINE2 events=# leg=2 plan=token-exact gap_ms=#",
            &seal,
        ],
    )
    .await;
    assert_counted(
        &rig,
        &[
            ("streams_total{outcome=\"finished\",route=\"*\",upstream=\"mock\"}", 1),
            ("legs_started_total{upstream=\"mock\"}", 2),
            ("legs_failed_total{reason=\"reset\",upstream=\"mock\"}", 1),
            ("continuations_total{outcome=\"continued\",plan=\"token-exact\"}", 1),
            ("continuations_total{outcome=\"failed\",plan=\"token-exact\"}", 0),
            ("first_event_seconds_count{upstream=\"mock\"}", 1),
            ("recovery_gap_seconds_count", 1),
            ("events_sent_total", events as u64),
            ("bytes_sent_total", bytes as u64),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_incomplete_stream_tells_why_it_ended_there() {
    // In the middle of thinking, which the template of Qwen3 closes.
    let rig = rig("leg1 eof@4", "continuation: {plan: chat-continue}").await;
    let answer = rig.ask(&request()).await;
    answer.assert_incomplete(&rig.uncut(&request()));
    // Four events of the engine, of which one is the role, and the error.
    let seal = format!(
        "seal endpoint=ENGINE1 events=5 outcome=incomplete reason=eof legs=1 tokens=3 bytes={} took_ms=#",
        answer.body.len()
    );
    assert_told(
        &rig,
        &answer,
        &[
            "start endpoint=ENGINE1 events=0 route=* model=mock",
            "first_event endpoint=ENGINE1 events=# after_ms=#",
            "cut endpoint=ENGINE1 events=4 leg=1 attempt=1 reason=eof",
            "refused endpoint=ENGINE1 events=4 reason=thinking_closes",
            &seal,
        ],
    )
    .await;
    assert_counted(
        &rig,
        &[
            ("streams_total{outcome=\"incomplete\",route=\"*\",upstream=\"mock\"}", 1),
            ("streams_incomplete_total{reason=\"eof\",upstream=\"mock\"}", 1),
            ("legs_failed_total{reason=\"eof\",upstream=\"mock\"}", 1),
            ("plans_refused_total{reason=\"thinking_closes\"}", 1),
            ("events_sent_total", 5),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_stream_whose_client_left_tells_how_much_was_generated() {
    let rig = rig(&format!("stall@{TWELVE}"), "").await;
    let mut response = rig.send(&client(), &request()).await;
    let stream = response.headers()["baton-stream"].to_str().expect("text").to_owned();
    let mut body = String::new();
    while body.matches("\n\n").count() < 12 {
        let bytes = within(response.chunk()).await.expect("the stream goes on").expect("it is not over");
        body.push_str(std::str::from_utf8(&bytes).expect("text"));
    }
    let first: Value = serde_json::from_str(&body["data: ".len()..body.find("\n\n").expect("an event")]).expect("JSON");
    drop(response);
    let seal =
        format!("seal endpoint=ENGINE1 events=12 outcome=abandoned legs=1 tokens=12 bytes={} took_ms=#", body.len());
    let id = first["id"].as_str().expect("an id");
    assert_lines(
        &rig,
        &stream,
        id,
        &[
            "start endpoint=ENGINE1 events=0 route=* model=mock",
            "first_event endpoint=ENGINE1 events=# after_ms=#",
            "client_left endpoint=ENGINE1 events=12",
            &seal,
        ],
    )
    .await;
    assert_counted(
        &rig,
        &[
            ("streams_total{outcome=\"abandoned\",route=\"*\",upstream=\"mock\"}", 1),
            ("clients_left_total", 1),
            ("streams_incomplete_total", 0),
            ("legs_failed_total", 0),
            ("events_sent_total", 12),
            ("bytes_sent_total", body.len() as u64),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_observed_stream_tells_what_would_have_been_done() {
    let rig = rig("rst@12", "continuation: {enabled: observe}").await;
    let answer = rig.ask(&request()).await;
    answer.assert_incomplete(&rig.uncut(&request()));
    let seal = format!(
        "seal endpoint=ENGINE1 events=13 outcome=incomplete reason=reset legs=1 tokens=12 bytes={} took_ms=#",
        answer.body.len()
    );
    assert_told(
        &rig,
        &answer,
        &[
            "start endpoint=ENGINE1 events=0 route=* model=mock",
            "first_event endpoint=ENGINE1 events=# after_ms=#",
            "observed endpoint=ENGINE1 events=12 reason=reset plan=chat-continue",
            "cut endpoint=ENGINE1 events=12 leg=1 attempt=1 reason=reset",
            "refused endpoint=ENGINE1 events=12 reason=off",
            &seal,
        ],
    )
    .await;
    assert_counted(
        &rig,
        &[
            ("continuations_total{outcome=\"observed\",plan=\"chat-continue\"}", 1),
            ("streams_incomplete_total{reason=\"reset\",upstream=\"mock\"}", 1),
            ("legs_started_total{upstream=\"mock\"}", 1),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_event_that_is_no_chunk_fails_its_leg_where_the_answer_can_be_continued() {
    let rig = rig(&format!("leg1 garbage@{TWELVE}"), "").await;
    let answer = rig.ask(&request()).await;
    answer.assert_whole(&rig.uncut(&request()));
    let lines = lines_of(answer.header("baton-stream").expect("a stream's id")).await;
    let malformed = lines.iter().position(|line| line.starts_with("event=malformed ")).expect("a line");
    assert!(lines[malformed].contains(" leg=1 why=\"cut off at line 1 column "), "{}", lines[malformed]);
    assert!(lines[malformed + 1].ends_with(" events=12 leg=1 attempt=1 reason=malformed"), "{}", lines[malformed + 1]);
    assert_counted(
        &rig,
        &[("events_malformed_total", 1), ("legs_failed_total{reason=\"malformed\",upstream=\"mock\"}", 1)],
    )
    .await;
}

#[tokio::test]
async fn an_event_that_is_no_chunk_is_told_and_not_quoted() {
    let rig = rig("garbage@12", "continuation: {enabled: false}").await;
    let response = rig.send(&client(), &request()).await;
    let stream = response.headers()["baton-stream"].to_str().expect("text").to_owned();
    let body = within(response.text()).await.expect("the stream ends");
    let garbage = body.split("\n\n").nth(12).and_then(|event| event.strip_prefix("data: ")).expect("the event");
    assert!(serde_json::from_str::<Value>(garbage).is_err(), "{garbage}");
    let lines = lines_of(&stream).await;
    assert_eq!(lines.iter().filter(|line| line.starts_with("event=malformed ")).count(), 1, "{lines:?}");
    assert!(lines.last().is_some_and(|line| line.contains(" outcome=finished ")), "{lines:?}");
    assert!(logged().iter().all(|(_, line)| !line.contains(garbage)), "{garbage}");
    assert_counted(&rig, &[("events_malformed_total", 1), ("legs_failed_total", 0)]).await;
}

#[tokio::test]
async fn heartbeats_are_counted_by_themselves() {
    let rig = rig("stall@12", "heartbeat: 100ms").await;
    let mut response = rig.send(&client(), &request()).await;
    let stream = response.headers()["baton-stream"].to_str().expect("text").to_owned();
    let mut body = Vec::new();
    let pings = |body: &[u8]| String::from_utf8_lossy(body).matches(": ping\n\n").count();
    while pings(&body) < 2 {
        body.extend_from_slice(&within(response.chunk()).await.expect("it goes on").expect("it is not over"));
    }
    rig.engines.iter().filter(|engine| engine.request_count() == 1).for_each(|engine| engine.release(0));
    let answer = Answer::read_after(&body, response).await;
    answer.assert_whole(&rig.uncut(&request()));
    let pings = pings(answer.body.as_bytes());
    let bytes = answer.body.len() - pings * ": ping\n\n".len();
    let lines = lines_of(&stream).await;
    assert!(lines.last().is_some_and(|line| line.contains(&format!(" bytes={bytes} "))), "{lines:?}");
    assert_counted(&rig, &[("heartbeats_total", pings as u64), ("bytes_sent_total", bytes as u64)]).await;
}

#[tokio::test]
async fn what_is_no_stream_is_counted_by_its_status() {
    let rig = rig("status:503", "").await;
    let models = within(client().get(format!("http://{}/v1/models", rig.address)).send()).await.expect("an answer");
    assert_eq!(models.status(), 200);
    drop(within(models.text()).await);
    assert_eq!(rig.ask(&request()).await.status, 503);
    // The count follows the answer.
    within(async {
        while !rig.metrics().await.contains("baton_requests_passed_total{class=\"5xx\"} 1\n") {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_counted(&rig, &[("requests_passed_total{class=\"2xx\"}", 1), ("streams_total", 0)]).await;
}

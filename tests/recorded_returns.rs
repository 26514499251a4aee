//! Answers recorded with vLLM 0.32, read once live and come back to behind every event, on real sockets. What a client is to get follows
//! from the recording alone: its events, each with the line of its number before it.

mod support;

use std::fs;
use std::sync::Arc;

use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use support::{Rig, Setup, client, within};

/// The events of a recording, each with its blank line.
fn recorded(file: &str) -> Vec<String> {
    let path = format!("{}/tests/fixtures/vllm-0.32/{file}.sse", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).expect("a recorded stream");
    let events: Vec<String> = text.split_inclusive("\n\n").map(str::to_owned).collect();
    assert_eq!(events.last().map(String::as_str), Some("data: [DONE]\n\n"), "{file} is a whole answer");
    events
}

/// An engine that answers every chat with one recording, as far as it is let.
struct Engine {
    url: String,
    /// How many events may be out.
    gate: watch::Sender<usize>,
    /// How many chats have come.
    asked: watch::Sender<usize>,
    task: JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Engine {
    async fn start(events: Vec<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let (gate, asked) = (watch::Sender::new(0), watch::Sender::new(0));
        let (opened, counted, events) = (gate.clone(), asked.clone(), Arc::new(events));
        let task = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(answer(connection, Arc::clone(&events), opened.subscribe(), counted.clone()));
            }
        });
        Engine { url, gate, asked, task }
    }

    fn let_out(&self, events: usize) {
        self.gate.send_replace(events);
    }
}

/// Answers one request: a chat with the events as they are let out, in a chunk each as vLLM writes them, anything else with 404.
async fn answer(
    mut connection: TcpStream,
    events: Arc<Vec<String>>,
    mut gate: watch::Receiver<usize>,
    asked: watch::Sender<usize>,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !is_whole(&request) {
        if connection.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    if !request.starts_with(b"POST /v1/chat/completions ") {
        return connection.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
    }
    asked.send_modify(|asked| *asked += 1);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n\
                transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    connection.write_all(head.as_bytes()).await?;
    for (number, event) in events.iter().enumerate() {
        if gate.wait_for(|events| *events > number).await.is_err() {
            return Ok(()); // the test is over
        }
        connection.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
    }
    connection.write_all(b"0\r\n\r\n").await
}

/// Whether these bytes hold a request's head and, by its length, its body.
fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length:"));
    body.len() >= length.map_or(0, |length| length.trim().parse().expect("a length"))
}

/// How a client comes back.
#[derive(Clone, Copy, Debug)]
enum By {
    Header,
    Query,
    Post,
}

const WAYS: [By; 3] = [By::Header, By::Query, By::Post];

/// One answer: the engine, Baton before it, and what a client is to get.
struct Answer {
    engine: Engine,
    rig: Rig,
    body: String,
    /// The events as the engine sends them, but for what Baton takes out.
    wanted: Vec<String>,
    http: reqwest::Client,
}

/// A stream of it.
struct Stream<'a> {
    of: &'a Answer,
    id: String,
    /// The events as they are to be on the wire.
    wire: Vec<String>,
    live: JoinHandle<String>,
    /// How many events the first client has.
    had: watch::Receiver<usize>,
}

impl Answer {
    /// The engine sends the events of `file`; the client, whose request has `extra`, is to get `wanted`.
    async fn new(file: &str, wanted: Vec<String>, extra: &Value) -> Self {
        let engine = Engine::start(recorded(file)).await;
        let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "?"}], "stream": true});
        for (key, value) in extra.as_object().expect("an object") {
            body[key] = value.clone();
        }
        let setup = Setup { engines: Vec::new(), family: "default", ..Setup::new("") };
        let rig = setup.route("heartbeat: off").start_before(std::slice::from_ref(&engine.url), "").await;
        Answer { engine, rig, body: body.to_string(), wanted, http: client() }
    }

    async fn begin(&self) -> Stream<'_> {
        let sent = self.http.post(self.rig.url()).header("Baton-Resume", "on").body(self.body.clone()).send();
        let mut response = within(sent).await.expect("Baton answers");
        assert_eq!(response.status(), StatusCode::OK);
        let id = response.headers()["Baton-Stream"].to_str().expect("text").to_owned();
        let numbered = |(seq, event)| {
            let retry = if seq == 0 { "retry: 2000\n" } else { "" };
            format!("{retry}id: {id}.{seq}\n{event}")
        };
        let wire = self.wanted.iter().enumerate().map(numbered).collect();
        let (count, had) = watch::channel(0);
        let live = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Some(more) = response.chunk().await.expect("the body is not torn") {
                all.extend_from_slice(&more);
                count.send_replace(all.windows(2).filter(|two| two == b"\n\n").count());
            }
            String::from_utf8(all).expect("text")
        });
        Stream { of: self, id, wire, live, had }
    }
}

impl Stream<'_> {
    fn back(&self, behind: usize, by: By) -> RequestBuilder {
        let Answer { rig, http, body, .. } = self.of;
        let url = format!("http://{}/v1/streams/{}", rig.address, self.id);
        let last = format!("{}.{behind}", self.id);
        match by {
            By::Header => http.get(url).header("Last-Event-ID", last),
            By::Query => http.get(format!("{url}?after={behind}")),
            By::Post => {
                let again = http.post(rig.url()).header("Baton-Resume", "on").body(body.clone());
                again.header("Last-Event-ID", last)
            }
        }
    }
}

/// Reads the answer to its end, and then comes back behind every event in every way.
async fn check(file: &str, wanted: Vec<String>, extra: &Value) {
    let answer = Answer::new(file, wanted, extra).await;
    answer.engine.let_out(usize::MAX);
    let mut stream = answer.begin().await;
    let live = within(&mut stream.live).await.expect("no panic");
    assert_eq!(live, stream.wire.concat(), "{file}, live");
    for behind in 0..stream.wire.len() {
        for by in WAYS {
            let back = within(stream.back(behind, by).send()).await.expect("Baton answers");
            let is_last = behind + 1 == stream.wire.len();
            let status = if is_last { StatusCode::NO_CONTENT } else { StatusCode::OK };
            assert_eq!(back.status(), status, "{file}, behind {behind}, {by:?}");
            let rest = within(back.text()).await.expect("a body");
            assert!(rest == stream.wire[behind + 1..].concat(), "{file}, behind {behind}, {by:?}: {rest}");
        }
    }
    assert_eq!(*answer.engine.asked.borrow(), 1, "one request makes one answer");
}

fn ids() -> Value {
    json!({"return_token_ids": true, "stream_options": {"include_usage": true}})
}

#[tokio::test]
async fn a_story_is_come_back_to_behind_every_event() {
    check("story_token_ids", recorded("story_token_ids"), &ids()).await;
}

#[tokio::test]
async fn a_story_from_which_token_ids_were_taken_is_come_back_to_behind_every_event() {
    // The same story, asked for without ids; another exchange, so with another id and another time.
    let id_of = |events: &[String]| events[0].split_once(r#","model""#).expect("a chunk").0.to_owned();
    let (own, listed) = (recorded("story"), recorded("story_token_ids"));
    let (from, to) = (id_of(&own), id_of(&listed));
    assert!(from != to && listed.len() > own.len());
    let wanted = own.iter().map(|event| event.replace(&from, &to)).collect();
    check("story_token_ids", wanted, &json!({"stream_options": {"include_usage": true}})).await;
}

#[tokio::test]
async fn other_recordings_are_come_back_to_behind_every_event() {
    let tool = json!({"return_token_ids": true, "stream_options": {"include_usage": true},
        "tools": [{"type": "function", "function": {"name": "get_weather"}}]});
    let counted = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    for (file, extra) in [
        ("content", json!({})),
        ("continuous_usage", counted),
        ("token_ids_many_scripts", json!({"return_token_ids": true})),
        ("tool_call", tool),
        ("logprobs", json!({"logprobs": true})),
    ] {
        check(file, recorded(file), &extra).await;
    }
}

#[tokio::test]
async fn a_story_is_come_back_to_while_it_is_written() {
    let wanted = recorded("story_token_ids");
    let answer = Answer::new("story_token_ids", wanted, &ids()).await;
    let mut stream = answer.begin().await;
    let mut readers = Vec::new();
    for written in (1..stream.wire.len()).step_by(29) {
        answer.engine.let_out(written);
        within(stream.had.wait_for(|had| *had == written)).await.expect("the first client reads on");
        // Behind the first event, one in the middle, the newest, and one that is not there yet: that counts as the newest.
        for (behind, from) in [(0, 1), (written / 2, written / 2 + 1), (written - 1, written), (written, written)] {
            for by in WAYS {
                let back = within(stream.back(behind, by).send()).await.expect("Baton answers");
                assert_eq!(back.status(), StatusCode::OK, "behind {behind} of {written}, {by:?}");
                let words = format!("behind {behind} of {written}, {by:?}");
                readers.push((words, from, tokio::spawn(async move { back.text().await.expect("a body") })));
            }
        }
    }
    answer.engine.let_out(usize::MAX);
    assert_eq!(within(&mut stream.live).await.expect("no panic"), stream.wire.concat(), "live");
    for (words, from, reader) in readers {
        let rest = within(reader).await.expect("no panic");
        assert!(rest == stream.wire[from..].concat(), "{words}: {rest}");
    }
    assert_eq!(*answer.engine.asked.borrow(), 1, "one request makes one answer");
}

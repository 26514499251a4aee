//! Rendered legs against an engine on a real socket that answers as vLLM 0.32 was recorded to.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;
use crate::config::settings::{Balance, Scheme, Upstream};
use crate::proto::chat::{ChatRequest, Parsed, Partial, TokenIds, parse};
use crate::proto::resume::Family;
use crate::proto::resume::render::{KnownIds, Settings};

const RECORDING: &str = include_str!("../../../tests/fixtures/vllm-0.32/scale-out/tool-arguments-at-once.json");

/// What the engine does instead of the recorded answer.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Answers the question of this number with this status.
    Status(usize, u16),
    /// Closes the generating stream in its middle.
    Cut,
    /// Sends the generating stream's header and no more.
    Silent,
    /// Takes the question of this number and says nothing.
    Mute(usize),
}

/// An engine that plays the recording.
struct Engine {
    address: SocketAddr,
    /// The paths that were asked.
    asked: Arc<Mutex<Vec<String>>>,
    /// A connection was closed by the other side in the middle of its answer.
    closed: Arc<Notify>,
}

impl Engine {
    async fn new(fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let closed = Arc::new(Notify::new());
        let recording: Value = serde_json::from_str(RECORDING).unwrap();
        let exchanges = recording["exchanges"].as_array().unwrap().iter().cloned().collect::<VecDeque<_>>();
        let exchanges = Arc::new(Mutex::new(exchanges));
        let (paths, gone) = (Arc::clone(&asked), Arc::clone(&closed));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (exchanges, paths, gone) = (Arc::clone(&exchanges), Arc::clone(&paths), Arc::clone(&gone));
                tokio::spawn(async move { serve(socket, &exchanges, &paths, &gone, fault).await });
            }
        });
        Self { address, asked, closed }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(
    mut socket: TcpStream,
    exchanges: &Mutex<VecDeque<Value>>,
    paths: &Mutex<Vec<String>>,
    gone: &Notify,
    fault: Fault,
) {
    while let Some((path, ask)) = request(&mut socket).await {
        let number = {
            let mut paths = paths.lock().unwrap();
            paths.push(path.clone());
            paths.len() - 1
        };
        let exchange = exchanges.lock().unwrap().pop_front().expect("as many questions as were recorded");
        // Of a stream that was cut, what is asked is not what was recorded.
        if fault != Fault::Cut {
            assert_eq!((&exchange["path"], &exchange["ask"]), (&Value::from(path), &ask));
        }
        match fault {
            Fault::Status(at, status) if at == number => {
                let head = format!("HTTP/1.1 {status} No\r\nContent-Length: 2\r\n\r\n{{}}");
                socket.write_all(head.as_bytes()).await.unwrap();
                continue;
            }
            Fault::Mute(at) if at == number => return until_closed(&mut socket, gone).await,
            _ => {}
        }
        match &exchange["answer"] {
            Value::String(stream) => {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
                socket.write_all(head.as_bytes()).await.unwrap();
                let events: Vec<&str> = stream.split_inclusive("\n\n").collect();
                let sent = match fault {
                    Fault::Cut => &events[..5],
                    Fault::Silent => &[][..],
                    _ => &events[..],
                };
                for event in sent {
                    socket.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await.unwrap();
                }
                match fault {
                    Fault::Cut => return,
                    Fault::Silent => return until_closed(&mut socket, gone).await,
                    _ => socket.write_all(b"0\r\n\r\n").await.unwrap(),
                }
            }
            answer => {
                let body = answer.to_string();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                socket.write_all(head.as_bytes()).await.unwrap();
                socket.write_all(body.as_bytes()).await.unwrap();
            }
        }
    }
}

async fn until_closed(socket: &mut TcpStream, gone: &Notify) {
    while socket.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
    gone.notify_one();
}

/// One request: its path and its body.
async fn request(socket: &mut TcpStream) -> Option<(String, Value)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..at]).to_ascii_lowercase();
            let length: usize = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())?;
            if bytes.len() >= at + 4 + length {
                assert!(head.contains("authorization: bearer k"), "every step is asked in the client's name");
                let path = head.split(' ').nth(1)?.to_owned();
                return Some((path, serde_json::from_slice(&bytes[at + 4..at + 4 + length]).unwrap()));
            }
        }
        let mut piece = [0; 4096];
        match socket.read(&mut piece).await {
            Ok(read) if read > 0 => bytes.extend_from_slice(&piece[..read]),
            _ => return None,
        }
    }
}

/// The machine of the recording: its client's request, and the partial at the cut.
fn rendering() -> Rendering {
    let recording: Value = serde_json::from_str(RECORDING).unwrap();
    let request = ChatRequest::parse(recording["request"].to_string().as_bytes()).unwrap();
    let mut partial = Partial::default();
    let (mut prompt, mut answer) = (TokenIds::new(), TokenIds::new());
    let uncut = recording["uncut"].as_str().unwrap().lines().filter_map(|line| line.strip_prefix("data: "));
    for data in uncut.take(recording["cut"].as_u64().unwrap() as usize) {
        let Ok(Parsed::Chunk(chunk)) = parse(data.as_bytes()) else { panic!("{data}") };
        for (ids, listed) in [
            (&mut prompt, &chunk.prompt_token_ids),
            (&mut answer, &chunk.choices.first().and_then(|choice| choice.token_ids.clone())),
        ] {
            assert!(listed.as_ref().is_none_or(|listed| ids.push_json(listed.json())));
        }
        partial.fold(&chunk);
    }
    let family = Family::named("qwen3.6").0;
    let every = recording["every"].as_u64().unwrap() as usize;
    let settings = Settings { derender_every: every, ids: true, ..Settings::default() };
    Rendering::new(&request, &partial, Some(KnownIds { prompt, answer }), &family, settings).unwrap()
}

async fn steps(addresses: &[SocketAddr], patience: Duration) -> Steps {
    let endpoint = |address: &SocketAddr| crate::config::settings::Endpoint {
        scheme: Scheme::Http,
        host: address.ip().to_string(),
        port: address.port(),
    };
    let upstream = Upstream {
        name: "test".to_owned(),
        engine: "vllm".to_owned(),
        family: "qwen3.6".to_owned(),
        endpoints: addresses.iter().map(endpoint).collect(),
        balance: Balance::RoundRobin,
        certificate: None,
    };
    let mut head = RequestHeader::build("POST", b"/v1/chat/completions", None).unwrap();
    head.insert_header("Authorization", "Bearer k").unwrap();
    Steps {
        connector: Arc::new(Connector::new(None)),
        cluster: Arc::new(Cluster::new(&upstream).await),
        head: Arc::new(head),
        connect: Duration::from_secs(2),
        patience,
    }
}

const PATIENT: Duration = Duration::from_secs(10);

/// The data of all events, and how the leg ended.
async fn read_all(leg: &mut RenderedLeg) -> (Vec<String>, Result<(), Cut>) {
    let mut all = Vec::new();
    let end = loop {
        match leg.read().await {
            Ok(Some(bytes)) => {
                assert!(!bytes.is_empty());
                all.extend_from_slice(bytes);
            }
            Ok(None) => break Ok(()),
            Err(cut) => break Err(cut),
        }
    };
    let text = String::from_utf8(all).unwrap();
    (text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect(), end)
}

/// The arguments of the tool call in these events.
fn arguments(events: &[String]) -> String {
    let mut partial = Partial::default();
    for data in events {
        if let Ok(Parsed::Chunk(chunk)) = parse(data.as_bytes()) {
            partial.fold(&chunk);
        }
    }
    partial.first().unwrap().tool_calls.first().map(|call| call.arguments.clone()).unwrap_or_default()
}

#[tokio::test]
async fn a_rendered_leg_reads_like_an_event_stream_to_its_end() {
    let engine = Engine::new(Fault::None).await;
    let mut leg = RenderedLeg::open(rendering(), steps(&[engine.address], PATIENT).await, &[]).await.unwrap();
    assert_eq!(leg.endpoint().address(), engine.address);
    let (events, end) = read_all(&mut leg).await;
    assert_eq!(end, Ok(()));
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    assert_eq!(arguments(&events), r#"", "unit": "celsius"}"#);
    assert_eq!(leg.read().await, Ok(None), "the end is the same when it is asked for again");
    assert_eq!(leg.unconnected(), 0);
    leg.finish().await;
}

#[tokio::test]
async fn all_steps_go_to_one_engine() {
    let engine = Engine::new(Fault::None).await;
    let other = Engine::new(Fault::None).await;
    let steps = steps(&[engine.address, other.address], PATIENT).await;
    let mut leg = RenderedLeg::open(rendering(), steps, &[other.address]).await.unwrap();
    assert_eq!(read_all(&mut leg).await.1, Ok(()));
    assert_eq!(engine.asked().len(), 4, "{:?}", engine.asked());
    assert_eq!(other.asked(), [""; 0]);
}

#[tokio::test]
async fn a_read_may_be_dropped_at_any_moment() {
    let engine = Engine::new(Fault::None).await;
    let mut leg = RenderedLeg::open(rendering(), steps(&[engine.address], PATIENT).await, &[]).await.unwrap();
    let mut all = Vec::new();
    loop {
        // Polled once, and dropped if it is not ready.
        match timeout(Duration::ZERO, leg.read()).await {
            Ok(Ok(Some(bytes))) => all.extend_from_slice(bytes),
            Ok(end) => break assert_eq!(end, Ok(None)),
            Err(_) => tokio::task::yield_now().await,
        }
    }
    let text = String::from_utf8(all).unwrap();
    let events: Vec<String> = text.lines().filter_map(|line| line.strip_prefix("data: ")).map(str::to_owned).collect();
    assert_eq!(arguments(&events), r#"", "unit": "celsius"}"#);
    assert_eq!(engine.asked().len(), 4, "no step was asked twice");
}

#[tokio::test]
async fn a_refused_step_says_so_before_there_is_a_leg() {
    for number in [0, 1, 2] {
        let engine = Engine::new(Fault::Status(number, 404)).await;
        let steps = steps(&[engine.address], PATIENT).await;
        let error = RenderedLeg::open(rendering(), steps, &[]).await.unwrap_err();
        assert!(matches!(&error, NotRendered::Broken { why: Broken::Status { status: 404, .. }, .. }), "{error}");
        assert_eq!(error.endpoint().map(|endpoint| endpoint.address()), Some(engine.address));
    }
}

#[tokio::test]
async fn an_engine_that_cannot_be_reached_is_told() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = RenderedLeg::open(rendering(), steps(&[nobody], PATIENT).await, &[]).await.unwrap_err();
    assert_eq!(error.unconnected(), 1, "{error}");
    assert!(error.endpoint().is_none());
}

#[tokio::test]
async fn a_step_is_not_waited_for_for_ever() {
    for number in [0, 1] {
        let engine = Engine::new(Fault::Mute(number)).await;
        let steps = steps(&[engine.address], Duration::from_millis(300)).await;
        let error = RenderedLeg::open(rendering(), steps, &[]).await.unwrap_err();
        assert!(matches!(error, NotRendered::Unanswered(_)), "{error}");
        engine.closed.notified().await;
    }
}

#[tokio::test]
async fn a_failed_step_behind_the_beginning_is_a_cut() {
    let engine = Engine::new(Fault::Status(3, 500)).await;
    let mut leg = RenderedLeg::open(rendering(), steps(&[engine.address], PATIENT).await, &[]).await.unwrap();
    let (events, end) = read_all(&mut leg).await;
    assert_eq!(events.len(), 1, "the role");
    assert!(matches!(end, Err(Cut::Other(_))), "{end:?}");
    assert_eq!(leg.read().await.err(), end.err(), "and stays one");
}

#[tokio::test]
async fn what_came_before_a_cut_is_lent_out_before_the_cut_is_told() {
    let engine = Engine::new(Fault::Cut).await;
    let mut leg = RenderedLeg::open(rendering(), steps(&[engine.address], PATIENT).await, &[]).await.unwrap();
    assert!(leg.read().await.is_ok_and(|bytes| bytes.is_some()), "the role");
    assert!(leg.read().await.is_ok_and(|bytes| bytes.is_some()), "the tokens before the cut");
    assert_eq!(leg.read().await, Err(Cut::Eof));
    assert_eq!(leg.read().await, Err(Cut::Eof), "the end is the same when it is asked for again");
}

#[tokio::test]
async fn dropping_a_leg_closes_the_engines_connection() {
    let engine = Engine::new(Fault::Silent).await;
    let mut leg = RenderedLeg::open(rendering(), steps(&[engine.address], PATIENT).await, &[]).await.unwrap();
    assert!(leg.read().await.is_ok_and(|bytes| bytes.is_some()), "the role");
    assert!(timeout(Duration::ZERO, leg.read()).await.is_err());
    drop(leg);
    engine.closed.notified().await;
}

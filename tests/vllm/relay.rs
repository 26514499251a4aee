//! A TCP relay between Baton and a server, which ends a leg after a number of tokens.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;

/// How a leg ends.
#[derive(Debug, Clone)]
pub enum End {
    /// The connection is reset, as when a host goes down.
    Reset,
    /// The body ends without its last chunk, as when the process is killed.
    Close,
    /// The connection is reset inside the next event.
    Torn,
    /// An error event and `[DONE]`, as when the engine behind the server is gone.
    Error,
    /// The finish reason `abort` and `[DONE]`, as when the server had the engine give up the request.
    Abort,
    /// Nothing comes any more, and the connection stays.
    Stall,
    /// The relay goes on, and tells which server is at work and the id of its answer: the test ends it.
    Tell(UnboundedSender<(usize, String)>),
}

impl End {
    /// The last events, in the words of vLLM 0.32, of an answer whose last event was this one; nothing if it has none.
    fn words(&self, path: &str, last: &str) -> Vec<String> {
        let recorded = match (self, path) {
            (End::Error, _) => include_str!("../fixtures/vllm-0.32/engine_killed.sse"),
            (End::Abort, "/v1/completions") => include_str!("../fixtures/vllm-0.32/completion_abort.sse"),
            (End::Abort, "/v1/chat/completions") => include_str!("../fixtures/vllm-0.32/abort_token_ids.sse"),
            (End::Abort, _) => panic!("no abort of {path} was recorded"),
            _ => return Vec::new(),
        };
        let events: Vec<&str> = recorded.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        let [first, .., words, "[DONE]"] = events[..] else { panic!("not an answer's events: {events:?}") };
        let own = [r#""id":"#, r#""created":"#].map(|key| (field(key, first), field(key, last)));
        let words = own.iter().fold(words.to_owned(), |words, (recorded, own)| words.replace(recorded, own));
        vec![words, "[DONE]".to_owned()]
    }
}

/// An event's member with this key, up to the comma behind it.
fn field<'a>(key: &str, event: &'a str) -> &'a str {
    let at = event.find(key).unwrap_or_else(|| panic!("{key} is in {event}"));
    event[at..].split(',').next().unwrap_or_default()
}

/// The end of one leg: behind the event with this token, counted from 1 in the leg.
#[derive(Debug, Clone)]
pub struct Cut {
    pub after: usize,
    pub end: End,
}

/// What a server sent in one leg.
#[derive(Debug, Clone)]
pub struct Leg {
    /// The endpoint that streamed it.
    pub path: String,
    /// The data of its events.
    pub events: Vec<String>,
    /// Whether the relay ended it.
    pub cut: bool,
}

/// What is to happen to the legs of an answer, in their order, and what happened.
#[derive(Debug, Default)]
pub struct Script {
    cuts: Mutex<VecDeque<Cut>>,
    legs: Mutex<Vec<Leg>>,
}

impl Script {
    pub fn new(cuts: impl IntoIterator<Item = Cut>) -> Arc<Self> {
        Arc::new(Script { cuts: Mutex::new(cuts.into_iter().collect()), legs: Mutex::default() })
    }

    pub fn legs(&self) -> Vec<Leg> {
        self.legs.lock().expect("no panic under the lock").clone()
    }

    fn begin(&self, path: &str) -> Reading {
        let mut legs = self.legs.lock().expect("no panic under the lock");
        legs.push(Leg { path: path.to_owned(), events: Vec::new(), cut: false });
        let cut = self.cuts.lock().expect("no panic under the lock").pop_front();
        Reading { leg: legs.len() - 1, tokens: 0, cut }
    }
}

/// A leg that is being read.
struct Reading {
    leg: usize,
    tokens: usize,
    cut: Option<Cut>,
}

/// A relay to one server, until it is dropped.
pub struct Relay {
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    pub async fn start(server: usize, target: SocketAddr, script: Arc<Script>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                // A server that is gone refuses, and then the relay closes: to Baton both are a leg that brought nothing.
                let Ok(upstream) = TcpStream::connect(target).await else { continue };
                tokio::spawn(
                    Connection { server, script: script.clone(), path: String::new(), tail: Vec::new(), reading: None }
                        .carry(client, upstream),
                );
            }
        });
        Relay { address, task }
    }
}

/// One connection, on which several requests may follow each other.
struct Connection {
    server: usize,
    script: Arc<Script>,
    /// What was asked last.
    path: String,
    /// What came of a head or an event that has not ended.
    tail: Vec<u8>,
    reading: Option<Reading>,
}

impl Connection {
    async fn carry(mut self, mut client: TcpStream, mut upstream: TcpStream) {
        let (mut asked, mut answered) = (vec![0; 64 << 10], vec![0; 64 << 10]);
        loop {
            tokio::select! {
                read = client.read(&mut asked) => {
                    let Ok(len @ 1..) = read else { return };
                    self.asked(&asked[..len]);
                    if upstream.write_all(&asked[..len]).await.is_err() { return }
                }
                read = upstream.read(&mut answered) => {
                    let Ok(len @ 1..) = read else { return };
                    let (pass, end) = self.read(&answered[..len]);
                    if client.write_all(&answered[..pass]).await.is_err() { return }
                    if let Some((end, words)) = end {
                        if !words.is_empty() { return speak(&words, client).await }
                        return finish(end, client, upstream, &answered[pass..len]).await
                    }
                }
            }
        }
    }

    /// Baton sends a request when the answer to the last one is over, so a head is the first that is read of it.
    fn asked(&mut self, bytes: &[u8]) {
        if let Some(line) = bytes.strip_prefix(b"POST ") {
            let path = line.split(|byte| *byte == b' ').next().unwrap_or_default();
            self.path = String::from_utf8_lossy(path).into_owned();
        }
    }

    /// How much of these bytes to pass on, and what to do then.
    fn read(&mut self, bytes: &[u8]) -> (usize, Option<(End, Vec<String>)>) {
        let mut begun = self.tail.len();
        self.tail.extend_from_slice(bytes);
        let mut passed = 0;
        while let Some(len) = unit(&self.tail) {
            let taken: Vec<u8> = self.tail.drain(..len).collect();
            passed += len - begun;
            begun = 0;
            if let Some(end) = self.unit(&String::from_utf8_lossy(&taken)) {
                return (passed, Some(end));
            }
        }
        (bytes.len(), None)
    }

    /// A head, an event or a chunk's frame.
    fn unit(&mut self, text: &str) -> Option<(End, Vec<String>)> {
        if text.contains("HTTP/1.1 ") {
            let streams = text.contains("text/event-stream");
            self.reading = streams.then(|| self.script.begin(&self.path));
            return None;
        }
        let data = text.split_once("data: ")?.1.trim_end();
        let reading = self.reading.as_mut()?;
        let mut legs = self.script.legs.lock().expect("no panic under the lock");
        let leg = &mut legs[reading.leg];
        leg.events.push(data.to_owned());
        reading.tokens += tokens(data);
        // Words of the relay's own are chunks, which cannot stand in the middle of another one.
        let speaks = |end: &End| matches!(end, End::Error | End::Abort);
        let cut =
            reading.cut.take_if(|cut| cut.after <= reading.tokens && (!speaks(&cut.end) || ends_its_chunk(text)))?;
        if let End::Tell(tell) = cut.end {
            let id = serde_json::from_str::<Value>(data).ok()?["id"].as_str()?.to_owned();
            let _ = tell.send((self.server, id));
            return None;
        }
        leg.cut = true;
        let words = cut.end.words(&self.path, data);
        leg.events.extend(words.iter().cloned());
        Some((cut.end, words))
    }
}

/// The length of the first head or event in these bytes, with the blank line behind it.
fn unit(bytes: &[u8]) -> Option<usize> {
    let line = |mark: &[u8]| bytes.windows(mark.len()).position(|window| window == mark).map(|at| at + mark.len());
    [line(b"\n\n"), line(b"\r\n\r\n")].into_iter().flatten().min()
}

/// Whether this event, which has its chunk's size before it, fills the chunk.
fn ends_its_chunk(text: &str) -> bool {
    let Some((frame, _)) = text.split_once("data: ") else { return false };
    let size = frame.trim().rsplit("\r\n").next().and_then(|size| usize::from_str_radix(size, 16).ok());
    size == Some(text.len() - frame.len())
}

/// The tokens of an event: its ids, or one if it has text and no ids.
fn tokens(data: &str) -> usize {
    let Ok(event) = serde_json::from_str::<Value>(data) else { return 0 };
    let choice = &event["choices"][0];
    if let Some(ids) = choice["token_ids"].as_array() {
        return ids.len();
    }
    let has = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
    usize::from(["content", "reasoning"].iter().any(|key| has(&choice["delta"][key])) || has(&choice["text"]))
}

/// Ends a leg. `rest` came with the last event that is passed on.
async fn finish(end: End, mut client: TcpStream, mut upstream: TcpStream, rest: &[u8]) {
    match end {
        End::Reset => reset(client),
        End::Close => drop(client.shutdown().await),
        End::Torn => {
            // The frame of the chunk and the first few bytes of the next event; no event is so short.
            let mut next = rest.to_vec();
            while next.len() < 40 && matches!(upstream.read_buf(&mut next).await, Ok(1..)) {}
            let _ = client.write_all(&next[..next.len().min(40)]).await;
            reset(client);
        }
        End::Stall => {
            drop(upstream);
            while matches!(client.read(&mut [0; 1024]).await, Ok(1..)) {}
        }
        End::Error | End::Abort => unreachable!("it has words"),
        End::Tell(_) => unreachable!("the relay goes on"),
    }
}

/// Ends a leg with these events, behind an event whose chunk lacks only its line end.
async fn speak(words: &[String], mut client: TcpStream) {
    let mut body = "\r\n".to_owned();
    for data in words {
        let event = format!("data: {data}\n\n");
        body.push_str(&format!("{:x}\r\n{event}\r\n", event.len()));
    }
    body.push_str("0\r\n\r\n");
    let _ = client.write_all(body.as_bytes()).await;
    drop(client.shutdown().await);
}

fn reset(client: TcpStream) {
    // Closing a socket that does not linger sends a reset.
    let _ = client.set_zero_linger();
}

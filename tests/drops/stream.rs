//! One client's stream, and all its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use baton::mock::Leg;
use reqwest::Response;
use serde_json::Value;
use tokio::sync::Mutex;

use super::line::Line;
use super::plan::{Back, Much, Plan, Visit};
use super::support::{self, Answer, Rig, within};

/// What all streams count together.
#[derive(Default)]
pub struct Counts {
    /// Returns, whatever came of them.
    pub returns: AtomicUsize,
    /// Those that were answered with an event stream.
    pub attached: AtomicUsize,
    /// Those to a stream whose engine was held in the middle of the answer.
    pub early: AtomicUsize,
}

pub struct Stream {
    rig: Arc<Rig>,
    counts: Arc<Counts>,
    body: Value,
    /// A part of the request that no other one has.
    mark: String,
    id: String,
    /// Where the engine is held: events on its wire, and how many of them the client gets.
    holds: Vec<(usize, usize)>,
    /// How many of these are over.
    released: AtomicUsize,
    /// Every event that any connection has brought, by number.
    known: Mutex<Vec<String>>,
}

const POST: &str = "POST /v1/chat/completions HTTP/1.1\r\nBaton-Resume: on\r\n";

impl Stream {
    /// Begins a stream; gives it and the connection of its first client.
    pub async fn begin(rig: Arc<Rig>, counts: Arc<Counts>, plan: Plan, index: usize) -> (Arc<Self>, Line) {
        let mark = format!("<{index}>");
        let mut body = support::request();
        body["messages"][0]["content"] = format!("Tell me story {mark}.").into();
        let text = body.to_string();
        let faults = plan.faults();
        // An empty field is no fault to the engine.
        let head = format!("{POST}Idempotency-Key: {mark}\r\nmock-fault: {faults}\r\n");
        let line = if plan.twice {
            let open = || within(Line::open(rig.address, &head, &text));
            let (one, other) = tokio::join!(open(), open());
            assert_eq!(one.header("Baton-Stream"), other.header("Baton-Stream"));
            counts.attached.fetch_add(1, Relaxed);
            counts.returns.fetch_add(1, Relaxed);
            one
        } else {
            within(Line::open(rig.address, &head, &text)).await
        };
        assert_eq!(line.status, 200, "{faults}");
        let id = line.header("Baton-Stream").expect("a stream that can be come back to").to_owned();
        // The client does not get the events that list only ids.
        let shown: Vec<bool> = rig.wire(&body).iter().map(|data| !data.contains(r#""delta":{}"#)).collect();
        let count = |place: usize| shown[..place].iter().filter(|shown| **shown).count();
        let holds = plan.holds.iter().map(|place| (*place, count(*place))).collect();
        let (released, known) = (AtomicUsize::new(0), Mutex::default());
        let stream = Stream { rig, counts, body, mark, id, holds, released, known };
        (Arc::new(stream), line)
    }

    fn hold(&self) -> Option<(usize, usize)> {
        self.holds.get(self.released.load(Relaxed)).copied()
    }

    /// Whether the engine stands in the middle of the answer, or soon will.
    pub fn is_held(&self) -> bool {
        self.hold().is_some()
    }

    /// How many events come before the engine is released.
    pub fn limit(&self) -> usize {
        self.hold().map_or(usize::MAX, |(_, events)| events)
    }

    /// Lets the engine go on to where it is held next.
    pub async fn release(&self) {
        let Some((place, _)) = self.hold() else { return };
        let is_its = |leg, body: &str| leg == Leg::First && body.contains(&self.mark);
        for engine in &self.rig.engines {
            for seen in engine.requests().iter().filter(|seen| is_its(seen.leg, &seen.body)) {
                // It is past the place before, then, and takes the word for this one.
                within(engine.wait_event(seen.number, place as u64 - 1)).await;
                engine.release(seen.number);
            }
        }
        self.released.fetch_add(1, Relaxed);
    }

    fn head(&self, back: Back, last: usize) -> String {
        let Stream { id, mark, .. } = self;
        match back {
            Back::Header => format!("GET /v1/streams/{id} HTTP/1.1\r\nLast-Event-ID: {id}.{last}\r\n"),
            Back::Query => format!("GET /v1/streams/{id}?after={last} HTTP/1.1\r\n"),
            Back::Whole => format!("GET /v1/streams/{id} HTTP/1.1\r\n"),
            Back::Post => format!("{POST}Last-Event-ID: {id}.{last}\r\n"),
            Back::Key => format!("{POST}Idempotency-Key: {mark}\r\n"),
            Back::KeyAndPost => format!("{POST}Idempotency-Key: {mark}\r\nLast-Event-ID: {id}.{last}\r\n"),
        }
    }

    /// Comes back as somebody who has the first `had` events; `None`: these were all.
    pub async fn back(&self, back: Back, had: usize) -> Option<Line> {
        // Who has nothing yet names no event.
        let back = if had == 0 { back.without_position() } else { back };
        let body = if back.is_post() { self.body.to_string() } else { String::new() };
        let held = self.is_held();
        let line = within(Line::open(self.rig.address, &self.head(back, had.saturating_sub(1)), &body)).await;
        self.counts.returns.fetch_add(1, Relaxed);
        self.counts.early.fetch_add(usize::from(held), Relaxed);
        if line.status == 204 {
            let known = self.known.lock().await;
            assert!(known.len() == had && known[had - 1].ends_with("\ndata: [DONE]\n\n"), "{back:?}: {known:?}");
            return None;
        }
        self.counts.attached.fetch_add(1, Relaxed);
        assert_eq!(line.status, 200, "{back:?} behind {had} events");
        assert_eq!(line.header("Baton-Stream"), Some(&*self.id), "{back:?}");
        Some(if back.has_position() { line.beginning_at(had) } else { line })
    }

    /// Reads a part and leaves, as somebody who has the first `had` events. Gives how many it has then.
    pub async fn visit(&self, mut line: Line, had: usize, visit: Visit) -> usize {
        match visit.much {
            Much::Events(events) => {
                let until = had.saturating_add(events).min(self.limit());
                while line.number < until && self.take(&mut line).await {}
            }
            Much::Bytes(bytes) => {
                within(line.read_bytes(bytes)).await;
                while let Some(event) = line.event() {
                    self.note(&line, event).await;
                }
            }
        }
        let has = line.number.max(had);
        line.leave(visit.leave);
        has
    }

    pub async fn back_and_visit(&self, back: Back, had: usize, visit: Visit) {
        if let Some(line) = self.back(back, had).await {
            self.visit(line, had, visit).await;
        }
    }

    /// Reads to the end.
    pub async fn read_on(&self, mut line: Line) {
        while self.take(&mut line).await {}
    }

    /// Takes the next event; false at the end of the body.
    async fn take(&self, line: &mut Line) -> bool {
        match within(line.next()).await {
            Some(event) => {
                self.note(line, event).await;
                true
            }
            None => {
                let known = self.known.lock().await;
                assert_eq!(line.number, known.len(), "a body ends behind the last event");
                false
            }
        }
    }

    /// An event has the number that follows on this connection, and is the same as on every other one.
    async fn note(&self, line: &Line, event: String) {
        let number = line.number - 1;
        let retry = if number == 0 { "retry: 2000\n" } else { "" };
        let begins = format!("{retry}id: {}.{number}\ndata: ", self.id);
        assert!(event.starts_with(&begins), "instead of {number}: {event}");
        let mut known = self.known.lock().await;
        match known.get(number) {
            Some(before) => assert_eq!(event, *before),
            None => known.push(event),
        }
        assert!(number < known.len(), "nothing is left out");
    }

    /// All that came is the answer that nothing happened to, and what comes to somebody who reads it once more.
    pub async fn check_whole(&self) {
        let line = self.back(Back::Whole, 0).await.expect("it is kept");
        self.read_on(line).await;
        let known = self.known.lock().await;
        let data = known.iter().map(|event| &event[event.find("data: ").expect("data")..]).collect();
        let answer = Answer::read(response(data)).await;
        let uncut = self.rig.uncut(&self.body);
        answer.assert_whole(&uncut);
        assert_eq!(answer.usage.map(|(_, completion)| completion), Some(uncut.completion_tokens));
        let status = self.unread_status().await;
        assert_eq!((&status["state"], &status["end"]), (&"ended".into(), &"finished".into()), "{status}");
        assert_eq!(status["seq"], known.len() - 1, "{status}");
    }

    /// What is said of it once everybody is known to have left.
    async fn unread_status(&self) -> Value {
        let url = format!("http://{}/v1/streams/{}/status", self.rig.address, self.id);
        let http = support::client();
        within(async {
            loop {
                let text = async { http.get(&url).send().await?.text().await };
                let status: Value = serde_json::from_str(&text.await.expect("a status")).expect("JSON");
                if status["readers"] == 0 {
                    return status;
                }
            }
        })
        .await
    }

    /// Its time is over.
    pub async fn check_gone(&self) {
        let gone = within(Line::open(self.rig.address, &self.head(Back::Whole, 0), "")).await;
        assert_eq!(gone.status, 410);
    }
}

/// A response with these events.
fn response(body: String) -> Response {
    let response = http::Response::builder().header("content-type", "text/event-stream");
    response.body(body).expect("a response").into()
}

//! Clients that come back to their streams, event by event.

use reqwest::{Response, StatusCode};
use serde_json::Value;

use super::{Rig, Setup, client, within};

/// An event as it was on the wire, its blank line included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub wire: String,
    pub id: Option<String>,
    pub data: String,
}

impl Event {
    pub fn read(wire: &str) -> Self {
        let field = |name: &str| wire.lines().filter_map(|line| line.strip_prefix(name)).next_back().map(str::to_owned);
        Event { wire: wire.to_owned(), id: field("id: "), data: field("data: ").unwrap_or_default() }
    }
}

/// A response that is read event by event.
pub struct Events {
    pub response: Response,
    pub rest: Vec<u8>,
}

impl Events {
    pub fn of(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        Events { response, rest: Vec::new() }
    }

    /// The next event; `None` at the end of the body.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            // Of a chunk that ends inside a character the events before it are whole.
            if let Some(at) = self.rest.windows(2).position(|two| two == b"\n\n") {
                let event: Vec<u8> = self.rest.drain(..at + 2).collect();
                return Some(Event::read(str::from_utf8(&event).expect("text")));
            }
            let more = within(self.response.chunk()).await.expect("the body is not torn")?;
            self.rest.extend_from_slice(&more);
        }
    }

    pub async fn take(&mut self, count: usize) -> Vec<Event> {
        let mut events = Vec::new();
        while events.len() < count {
            events.push(self.next().await.expect("an event"));
        }
        events
    }

    pub async fn all(mut self) -> Vec<Event> {
        // Heartbeats come for ever where the events do not.
        within(async {
            let mut events = Vec::new();
            while let Some(event) = self.next().await {
                events.push(event);
            }
            events
        })
        .await
    }
}

pub fn wire(events: &[Event]) -> String {
    events.iter().map(|event| event.wire.as_str()).collect()
}

pub fn data(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.data.as_str()).collect()
}

pub fn header(response: &Response, name: &str) -> String {
    response.headers().get(name).unwrap_or_else(|| panic!("{name}")).to_str().expect("text").to_owned()
}

impl Client {
    /// Begins a stream that can be come back to.
    pub async fn begin(rig: &Rig, body: &Value) -> (Self, Events) {
        let sent = client().post(rig.url()).header("Baton-Resume", "on").body(body.to_string()).send();
        let response = within(sent).await.expect("Baton answers");
        let id = header(&response, "Baton-Stream");
        assert_eq!(header(&response, "Location"), format!("/v1/streams/{id}"));
        (Client { base: format!("http://{}", rig.address), id }, Events::of(response))
    }

    pub fn url(&self, what: &str) -> String {
        format!("{}/v1/streams/{}{what}", self.base, self.id)
    }

    pub async fn get(&self, what: &str) -> Response {
        within(client().get(self.url(what)).send()).await.expect("Baton answers")
    }

    /// Comes back behind the event of this number.
    pub async fn after(&self, seq: usize) -> Response {
        let sent = client().get(self.url("")).header("Last-Event-ID", format!("{}.{seq}", self.id)).send();
        within(sent).await.expect("Baton answers")
    }

    pub async fn cancel(&self) -> StatusCode {
        within(client().post(self.url("/cancel")).send()).await.expect("Baton answers").status()
    }

    pub async fn status(&self) -> Value {
        let text = within(self.get("/status").await.text()).await.expect("a body");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Waits until the stream is in this state.
    pub async fn until(&self, state: &str) -> Value {
        within(async {
            loop {
                let status = self.status().await;
                if status["state"] == state {
                    return status;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }
}

/// One client's stream.
pub struct Client {
    pub base: String,
    pub id: String,
}

pub async fn one_engine(faults: &str, route: &str) -> Rig {
    let mut setup = Setup::new(faults).route(route);
    setup.engines.truncate(1);
    setup.start().await
}

/// The same request once more, with these headers.
pub async fn post(rig: &Rig, body: &Value, headers: &[(&str, &str)]) -> Response {
    let mut sent = client().post(rig.url()).header("Baton-Resume", "on").body(body.to_string());
    for (name, value) in headers {
        sent = sent.header(*name, *value);
    }
    within(sent.send()).await.expect("Baton answers")
}

pub async fn code(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let body: Value = serde_json::from_str(&within(response.text()).await.expect("a body")).expect("JSON");
    (status, body["error"]["code"].as_str().expect("a code").to_owned())
}

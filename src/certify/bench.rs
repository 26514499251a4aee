//! An engine that is to be certified, and what is needed to ask it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, USER_AGENT};
use pingora::http::RequestHeader;
use serde_json::Value;
use tokio::time::timeout;

use super::judge::words;
use super::{NotCertified, Order};
use crate::journal::{Limits, MemoryStore};
use crate::proto::resume::{Abilities, Engine, Question};
use crate::proto::sse::{DEFAULT_MAX_EVENT, Decoder, Item};
use crate::stream::{Onward, Report, StreamIds};
use crate::telemetry::metrics::Metrics;
use crate::upstream::{self, Answer, Ask, Asking, Cluster, Connector, Leg, Unanswered, Whom, is_event_stream};

/// Bounds the opening of one connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Longest answer to a question, in bytes.
const MAX_ANSWER: usize = 16 << 20;

/// An engine that is busy may be late to say what it can do; it is asked so often.
const LOOKS: usize = 3;

/// What everything is asked and continued with.
pub(super) struct Bench {
    connector: Arc<Connector>,
    cluster: Arc<Cluster>,
    head: Arc<RequestHeader>,
    engine: Engine,
    model: String,
    idle: Duration,
    /// Where continued answers are kept.
    pub(super) store: Arc<MemoryStore>,
    metrics: Arc<Metrics>,
    ids: StreamIds,
}

impl Bench {
    /// Finds the engine, what it can do, and its model.
    ///
    /// # Errors
    /// It cannot be reached, or names no model.
    pub(super) async fn open(order: &Order) -> Result<Self, NotCertified> {
        let cluster = Arc::new(Cluster::new(&order.upstream).await);
        let (engine, _) = Engine::named(&order.upstream.engine);
        let mut bench = Self {
            connector: Arc::new(Connector::new(None)),
            cluster,
            head: Arc::new(head(order.authorization.as_deref())?),
            engine,
            model: String::new(),
            idle: order.idle,
            store: MemoryStore::new(Limits { max_stream: 64 << 20, max_total: 1 << 30, max_streams: 16 }),
            metrics: Arc::new(Metrics::new()),
            ids: StreamIds::default(),
        };
        let models = bench.models().await;
        for _ in 0..LOOKS {
            if bench.cluster.is_asked() && bench.abilities().version.is_none() {
                upstream::look(&bench.cluster, &bench.connector).await;
            }
        }
        bench.model = match (&order.model, models) {
            (Some(model), Ok(_)) => model.clone(),
            (None, Ok(answer)) => first_model(&answer.body).ok_or_else(|| no_model(&answer))?,
            (_, Err(why)) => return Err(NotCertified::Unreachable(why.to_string())),
        };
        Ok(bench)
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    pub(super) fn abilities(&self) -> Abilities {
        self.cluster.abilities()
    }

    pub(super) fn version_in_words(&self) -> String {
        self.abilities().version.map_or("(version not known)".to_owned(), |version| version.to_string())
    }

    /// What later legs are opened with.
    pub(super) fn onward(&self) -> Onward {
        let (connector, cluster) = (Arc::clone(&self.connector), Arc::clone(&self.cluster));
        Onward { connector, cluster, head: Arc::clone(&self.head), connect: CONNECT }
    }

    /// The report of one continuation; nobody reads its counts.
    pub(super) fn report(&self) -> Report {
        let name = self.cluster.name();
        Report::new(Arc::clone(&self.metrics), self.ids.mint(), "certify", name, name)
    }

    /// A string for request ids that has not been used before.
    pub(super) fn rid(&self) -> String {
        self.ids.mint().short().to_owned()
    }

    pub(super) fn idle(&self) -> Duration {
        self.idle
    }

    fn asking(&self) -> Asking<'_> {
        Asking {
            connector: &self.connector,
            cluster: &self.cluster,
            head: &self.head,
            whom: Whom::Avoiding(&[]),
            connect: CONNECT,
            patience: self.idle,
            limit: MAX_ANSWER,
        }
    }

    async fn models(&self) -> Result<Answer, Unanswered> {
        upstream::get(self.asking(), "/v1/models").await
    }

    /// The answer to a question, if it is one.
    pub(super) async fn question(&self, path: &'static str, body: &Value) -> Option<Value> {
        let question = Question { path, body: body.to_string().into_bytes() };
        let answer = upstream::ask(self.asking(), question).await.ok()?;
        serde_json::from_slice(&answer.body).ok().filter(|_| answer.status == 200)
    }

    /// Sends a request and reads its event stream to the end: the data of each event.
    ///
    /// # Errors
    /// There is no event stream, or it broke off; in words.
    pub(super) async fn events(&self, body: Vec<u8>) -> Result<Vec<Vec<u8>>, String> {
        let body = Bytes::from(body);
        let ask = Ask { head: &self.head, body: &body, connect: CONNECT, answer: Some(self.idle), avoid: &[] };
        let mut leg = Leg::open(&self.connector, &self.cluster, ask).await.map_err(|error| error.to_string())?;
        let status = leg.response().status.as_u16();
        if !is_event_stream(leg.response()) {
            let mut body = Vec::new();
            while let Ok(Ok(Some(bytes))) = timeout(self.idle, leg.read()).await {
                body.extend_from_slice(bytes);
                body.truncate(MAX_ANSWER);
            }
            return Err(format!("{status} {}", words(&String::from_utf8_lossy(&body))));
        }
        let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
        let mut events = Vec::new();
        loop {
            let read = timeout(self.idle, leg.read()).await.map_err(|_| format!("silent for {:?}", self.idle))?;
            let Some(bytes) = read.map_err(|cut| cut.to_string())? else { break };
            let mut items = decoder.feed(bytes);
            while let Some(item) = items.next() {
                match item {
                    Ok(Item::Event(event)) => events.push(event.data.to_vec()),
                    Ok(Item::Comment(_)) => {}
                    Err(too_long) => return Err(too_long.to_string()),
                }
            }
        }
        leg.finish().await;
        Ok(events)
    }
}

fn head(authorization: Option<&str>) -> Result<RequestHeader, NotCertified> {
    let build = || {
        let mut head = RequestHeader::build("POST", b"/v1/chat/completions", None)?;
        head.insert_header(USER_AGENT, concat!("baton/", env!("CARGO_PKG_VERSION")))?;
        head.insert_header("content-type", "application/json")?;
        if let Some(value) = authorization {
            head.insert_header(AUTHORIZATION, value)?;
        }
        Ok(head)
    };
    let wrong = |error: Box<pingora::Error>| std::io::Error::other(format!("the key cannot be sent: {error}"));
    build().map_err(wrong).map_err(NotCertified::System)
}

/// `{"data":[{"id":"…"}]}`
fn first_model(body: &[u8]) -> Option<String> {
    let models: Value = serde_json::from_slice(body).ok()?;
    models.pointer("/data/0/id")?.as_str().map(str::to_owned)
}

fn no_model(answer: &Answer) -> NotCertified {
    NotCertified::NoModel(format!("{} {}", answer.status, words(&String::from_utf8_lossy(&answer.body))))
}

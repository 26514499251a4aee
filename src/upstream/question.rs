//! One question to an engine, with one answer in JSON: what a plan has to know before a leg, or between two pieces of one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Uri};
use pingora::http::RequestHeader;
use thiserror::Error;
use tokio::time::{Instant, timeout_at};

use super::cluster::{Cluster, Endpoint};
use super::leg::{Ask, Connector, Cut, Leg, OpenError};
use crate::proto::resume::Question;

/// Which engines may be asked.
#[derive(Debug, Clone, Copy)]
pub enum Whom<'a> {
    /// Any, but these only when there is no other.
    Avoiding(&'a [SocketAddr]),
    /// This one and no other: it holds a leg that the answer is for.
    Only(SocketAddr),
}

/// What questions are asked with.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// Pingora's connection pool.
    pub connector: &'a Arc<Connector>,
    /// The upstream to ask.
    pub cluster: &'a Cluster,
    /// The client's headers as its legs have them: who may use the engine may also ask it. Method and target are replaced.
    pub head: &'a RequestHeader,
    /// Whom to ask.
    pub whom: Whom<'a>,
    /// Bounds the opening of one connection, TLS included.
    pub connect: Duration,
    /// Bounds the time from the first connection attempt to the answer's last byte; each endpoint that accepts no connection
    /// may add its `connect`.
    pub patience: Duration,
    /// The longest answer, in bytes.
    pub limit: usize,
}

/// What an engine said.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status. Only 200 is an answer to what was asked.
    pub status: u16,
    /// The whole body.
    pub body: Vec<u8>,
    /// Who said it.
    pub endpoint: Arc<Endpoint>,
    /// How many endpoints accepted no connection before.
    pub unconnected: usize,
}

/// Why a question has no answer: the engine's fault, or the way's.
#[derive(Debug, Error)]
pub enum Unanswered {
    /// There is not even a response's header.
    #[error(transparent)]
    NotOpened(#[from] OpenError),
    /// The response broke off.
    #[error("{endpoint}: {cut}")]
    Cut {
        /// Whose.
        endpoint: Arc<Endpoint>,
        /// How.
        cut: Cut,
    },
    /// The response is longer than [`Asking::limit`].
    #[error("{endpoint}: an answer of more than {limit} bytes")]
    TooLong {
        /// Whose.
        endpoint: Arc<Endpoint>,
        /// The limit.
        limit: usize,
    },
    /// The response was not whole within [`Asking::patience`].
    #[error("{endpoint}: no whole answer within {after:?}")]
    TimedOut {
        /// Whose.
        endpoint: Arc<Endpoint>,
        /// The time waited.
        after: Duration,
    },
}

impl Unanswered {
    /// The endpoint that failed after it had got the question or a part of it; to be avoided by the next try.
    pub fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        match self {
            Self::NotOpened(error) => error.endpoint(),
            Self::Cut { endpoint, .. } | Self::TooLong { endpoint, .. } | Self::TimedOut { endpoint, .. } => {
                Some(endpoint)
            }
        }
    }

    /// How many endpoints accepted no connection.
    pub fn unconnected(&self) -> usize {
        match self {
            Self::NotOpened(OpenError::Unreachable { failures, .. }) => failures.len(),
            _ => 0,
        }
    }
}

/// Asks, and reads the whole answer. Dropping the future closes the connection.
///
/// # Errors
/// There is no response, or not all of it. A status other than 200 is no error here.
pub async fn ask(asking: Asking<'_>, question: Question) -> Result<Answer, Unanswered> {
    let until = Instant::now() + asking.patience;
    answer(open(asking, question).await?, asking, until).await
}

/// Asks for what is at a path of the engine (a GET), and reads it whole.
///
/// # Errors
/// As [`ask`].
pub async fn get(asking: Asking<'_>, path: &'static str) -> Result<Answer, Unanswered> {
    let until = Instant::now() + asking.patience;
    let mut head = head_for(asking.head, path);
    head.set_method(Method::GET);
    answer(send(asking, &head, &Bytes::new()).await?, asking, until).await
}

async fn answer(mut leg: Leg, asking: Asking<'_>, until: Instant) -> Result<Answer, Unanswered> {
    let endpoint = Arc::clone(leg.endpoint());
    let read = timeout_at(until, whole(&mut leg, &endpoint, asking.limit)).await;
    let late = || Unanswered::TimedOut { endpoint: Arc::clone(&endpoint), after: asking.patience };
    let body = read.map_err(|_| late())??;
    let (status, unconnected) = (leg.response().status.as_u16(), leg.failures().len());
    leg.finish().await;
    Ok(Answer { status, body, endpoint, unconnected })
}

/// Asks, and waits for the header of the answer only: one that comes in pieces.
///
/// # Errors
/// See [`Leg::open`].
pub async fn open(asking: Asking<'_>, question: Question) -> Result<Leg, OpenError> {
    send(asking, &head_for(asking.head, question.path), &Bytes::from(question.body)).await
}

async fn send(asking: Asking<'_>, head: &RequestHeader, body: &Bytes) -> Result<Leg, OpenError> {
    let avoid = match asking.whom {
        Whom::Avoiding(avoid) => avoid,
        Whom::Only(_) => &[],
    };
    let ask = Ask { head, body, connect: asking.connect, answer: Some(asking.patience), avoid };
    match asking.whom {
        Whom::Avoiding(_) => Leg::open(asking.connector, asking.cluster, ask).await,
        Whom::Only(address) => Leg::open_at(asking.connector, asking.cluster, address, ask).await,
    }
}

/// The head of a request of Baton's own to `path`, with a JSON body, in the name of the client whose head is given.
///
/// A client whose target is not the API's own path but ends with it (`/tenant/v1/completions`) asks engines that are behind that
/// prefix; so does Baton. The query of the client's own target stays where the path does.
pub fn head_for(client: &RequestHeader, path: &'static str) -> RequestHeader {
    let mut head = client.clone();
    head.set_method(Method::POST);
    if !client.uri.path().ends_with(path) {
        let prefix = ["/v1/chat/completions", "/v1/completions"];
        let prefix = prefix.iter().find_map(|api| client.uri.path().strip_suffix(api)).unwrap_or_default();
        head.set_uri(format!("{prefix}{path}").parse().unwrap_or_else(|_| Uri::from_static(path)));
    }
    head.remove_header(&ACCEPT);
    let inserted = head.insert_header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    debug_assert!(inserted.is_ok(), "a static header is valid");
    head
}

/// The rest of a response's body, up to `limit` bytes.
pub(super) async fn whole(leg: &mut Leg, endpoint: &Arc<Endpoint>, limit: usize) -> Result<Vec<u8>, Unanswered> {
    let mut body = Vec::new();
    loop {
        match leg.read().await {
            Ok(Some(bytes)) if body.len() + bytes.len() > limit => {
                return Err(Unanswered::TooLong { endpoint: Arc::clone(endpoint), limit });
            }
            Ok(Some(bytes)) => body.extend_from_slice(bytes),
            Ok(None) => return Ok(body),
            Err(cut) => return Err(Unanswered::Cut { endpoint: Arc::clone(endpoint), cut }),
        }
    }
}

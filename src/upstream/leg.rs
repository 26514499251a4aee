//! One request to one engine, from the connection to the last byte of the response.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::client::HttpSession;
use pingora::protocols::http::v1::client::HttpSession as H1;
use pingora::upstreams::peer::{HttpPeer, Peer};
use pingora::{ErrorType, RetryType};
use thiserror::Error;

use super::cluster::{Cluster, Endpoint, Picked, StreamGuard};

/// Pingora's pool of connections to engines; one for the whole process.
pub type Connector = pingora::connectors::http::Connector;

/// What to ask, and how long to wait for an answer's header.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Method, path and headers. `Host` and `Content-Length` are written here; hop-by-hop headers have to be gone already.
    pub head: &'a RequestHeader,
    /// The whole body.
    pub body: &'a Bytes,
    /// Bounds the opening of one connection, TLS included.
    pub connect: Duration,
    /// Bounds the time from a connection to the response's header, the sending of the request included. `None`: no bound. A
    /// request that is not streamed is answered when the whole text is there, which may take minutes.
    pub answer: Option<Duration>,
    /// Endpoints to use only when there is no other: those that failed this stream before.
    pub avoid: &'a [SocketAddr],
}

/// An endpoint that could not be connected to. Nothing was sent to it.
#[derive(Debug, Clone)]
pub struct ConnectFailure {
    /// Which.
    pub endpoint: Arc<Endpoint>,
    /// Pingora's words.
    pub why: String,
}

impl fmt::Display for ConnectFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.endpoint, self.why)
    }
}

/// Why a leg did not come to a response.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The upstream has no endpoint at the moment (its names do not resolve).
    #[error("upstream {upstream} has no endpoint")]
    NoEndpoint {
        /// The upstream's name.
        upstream: String,
    },
    /// No endpoint accepted a connection. No engine has seen the request.
    #[error("no endpoint of upstream {upstream} accepts connections ({})", list(.failures))]
    Unreachable {
        /// The upstream's name.
        upstream: String,
        /// All endpoints, in the order in which they were tried.
        failures: Vec<ConnectFailure>,
    },
    /// The connection broke while the request was sent.
    #[error("{endpoint}: the connection broke while the request was sent ({why})")]
    Send {
        /// The endpoint that got a part of the request.
        endpoint: Arc<Endpoint>,
        /// Pingora's words.
        why: String,
    },
    /// The connection broke, or what came was not HTTP, before the response's header was there.
    #[error("{endpoint}: no response ({why})")]
    NoResponse {
        /// The endpoint that got the request.
        endpoint: Arc<Endpoint>,
        /// Pingora's words.
        why: String,
    },
    /// No response header within [`Ask::answer`].
    #[error("{endpoint}: no response within {after:?}")]
    TimedOut {
        /// The endpoint that got the request, or a part of it.
        endpoint: Arc<Endpoint>,
        /// The time waited.
        after: Duration,
    },
}

impl OpenError {
    /// The endpoint that failed after it had got the request or a part of it; to be avoided by the next try.
    pub fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        match self {
            Self::NoEndpoint { .. } | Self::Unreachable { .. } => None,
            Self::Send { endpoint, .. } | Self::NoResponse { endpoint, .. } | Self::TimedOut { endpoint, .. } => {
                Some(endpoint)
            }
        }
    }
}

fn list(failures: &[ConnectFailure]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// How a response's body ended before its end. The bytes that came before it are good.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Cut {
    /// TCP reset.
    #[error("connection reset")]
    Reset,
    /// The connection was closed in an orderly way, but inside the body: before the last chunk, or short of `Content-Length`.
    #[error("connection closed before the end of the body")]
    Eof,
    /// The chunked encoding is broken.
    #[error("broken chunked encoding: {0}")]
    Malformed(String),
    /// Anything else: an HTTP/2 stream or connection error, a dead peer noticed by TCP's keepalive, TLS.
    #[error("{0}")]
    Other(String),
}

impl Cut {
    /// What Pingora says of a body that broke off. Its body reader (pingora-core 0.9.1, protocols/http/v1/body.rs) reports an
    /// orderly close inside a chunked or counted body as `ConnectionClosed`, errors of the socket as `ReadError` with the
    /// `io::Error` as cause, and broken chunks under names of their own.
    pub fn of(error: &pingora::Error) -> Self {
        let io = error.root_cause().downcast_ref::<io::Error>().map(io::Error::kind);
        match (error.etype(), io) {
            (ErrorType::ConnectionClosed, _) | (_, Some(io::ErrorKind::UnexpectedEof)) => Self::Eof,
            (_, Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)) => Self::Reset,
            (ErrorType::Custom("InvalidChunk" | "InvalidTrailerEnd"), _) => Self::Malformed(error.to_string()),
            _ => Self::Other(error.to_string()),
        }
    }
}

/// A request to an engine whose response's header is there. Dropping it closes the connection (HTTP/2: resets the stream),
/// which makes the engine stop generating.
pub struct Leg {
    connector: Arc<Connector>,
    session: HttpSession<()>,
    peer: HttpPeer,
    response: ResponseHeader,
    failures: Vec<ConnectFailure>,
    guard: StreamGuard,
    /// What [`Leg::read`] lends out.
    piece: Vec<u8>,
    state: State,
}

/// Pingora's body reader says "end" when it is read again after an error; this does not forget.
enum State {
    Open,
    Ended,
    Broken(Cut),
}

impl Leg {
    /// Sends a request and waits for the response's header (informational ones are skipped).
    ///
    /// An endpoint that does not accept a connection is followed by the next one, each once; those are told by
    /// [`Leg::failures`] or the error. As soon as a byte of the request may have reached an engine nothing is repeated, with
    /// one exception: the request met a *pooled* connection that turned out to be dead, that is, it ended or broke without an
    /// answer. Then it is sent once more, on a fresh connection to the same endpoint.
    ///
    /// That exception concerns POSTs, which an HTTP proxy must not repeat in general, because it cannot tell an engine that
    /// closed an idle connection from one that took the request and died. Here it is harmless: a generation changes nothing on
    /// an engine, nothing of an answer has been passed on yet, and what an engine has not answered on a connection that is
    /// gone, it will not be able to answer. The worst case is one generation begun in vain, once. HTTP/2's explicit "not
    /// processed" (GOAWAY, REFUSED_STREAM) is repeated by the same rule.
    pub async fn open(connector: &Arc<Connector>, cluster: &Cluster, ask: Ask<'_>) -> Result<Self, OpenError> {
        let mut failures = Vec::new();
        while let Some(picked) = next_endpoint(cluster, ask, &failures) {
            let endpoint = Arc::clone(picked.endpoint());
            match attempt(connector, picked, ask).await {
                Ok(mut leg) => {
                    leg.failures = failures;
                    return Ok(leg);
                }
                Err(Failed::Connect(why)) => {
                    // What listens there when it is back may be another engine.
                    cluster.suspect(endpoint.address());
                    failures.push(ConnectFailure { endpoint, why });
                }
                Err(Failed::Exchange(error)) => return Err(error),
            }
        }
        let upstream = cluster.name().to_owned();
        Err(match failures.is_empty() {
            true => OpenError::NoEndpoint { upstream },
            false => OpenError::Unreachable { upstream, failures },
        })
    }

    /// The same at one endpoint, and nowhere else: where another leg's work has to go on. `Ask::avoid` has no say.
    pub async fn open_at(
        connector: &Arc<Connector>,
        cluster: &Cluster,
        address: SocketAddr,
        ask: Ask<'_>,
    ) -> Result<Self, OpenError> {
        let picked = cluster
            .pick_at(address, ask.connect)
            .ok_or_else(|| OpenError::NoEndpoint { upstream: cluster.name().to_owned() })?;
        let endpoint = Arc::clone(picked.endpoint());
        attempt(connector, picked, ask).await.map_err(|failed| match failed {
            Failed::Connect(why) => OpenError::Unreachable {
                upstream: cluster.name().to_owned(),
                failures: vec![ConnectFailure { endpoint, why }],
            },
            Failed::Exchange(error) => error,
        })
    }

    /// The response's status and headers.
    pub fn response(&self) -> &ResponseHeader {
        &self.response
    }

    /// The engine that answers.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        self.guard.endpoint()
    }

    /// The endpoints that did not accept a connection before this one did.
    pub fn failures(&self) -> &[ConnectFailure] {
        &self.failures
    }

    /// The next bytes of the body, never empty; `None` at its end.
    ///
    /// May be dropped before it is ready, and called again: nothing is lost. After an end or an error it returns the same
    /// again.
    ///
    /// The end of a body without framing (HTTP/1.0 style: neither `Content-Length` nor chunked) cannot be told from a
    /// connection that an engine closed halfway. HTTP takes it for an end, and so does this; whether an answer is whole is
    /// for the relay to say.
    pub async fn read(&mut self) -> Result<Option<&[u8]>, Cut> {
        match &self.state {
            State::Open => {}
            State::Ended => return Ok(None),
            State::Broken(cut) => return Err(cut.clone()),
        }
        let read = match &mut self.session {
            HttpSession::H1(h1) => read_h1(h1, &mut self.piece).await,
            other => read_h2(other, &mut self.piece).await,
        };
        match read {
            Ok(true) => Ok(Some(&self.piece)),
            Ok(false) => {
                self.state = State::Ended;
                Ok(None)
            }
            Err(error) => {
                let cut = Cut::of(&error);
                self.state = State::Broken(cut.clone());
                Err(cut)
            }
        }
    }

    /// Gives the connection back to the pool, if the body was read to its end; closes it otherwise.
    pub async fn finish(self) {
        if matches!(self.state, State::Ended) {
            self.connector.release_http_session(self.session, &self.peer, self.peer.idle_timeout()).await;
        }
    }
}

impl fmt::Debug for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leg").field("endpoint", self.endpoint()).field("status", &self.response.status).finish()
    }
}

/// Copies the next bytes into `piece`; `false` at the end. The copy is what it costs to skip Pingora's empty slices (half a
/// chunk head) while lending the bytes out; `piece` keeps its allocation.
async fn read_h1(h1: &mut H1, piece: &mut Vec<u8>) -> pingora::Result<bool> {
    loop {
        let Some(bytes) = h1.read_body_ref().await? else { return Ok(false) };
        if !bytes.is_empty() {
            piece.clear();
            piece.extend_from_slice(bytes);
            return Ok(true);
        }
    }
}

async fn read_h2(session: &mut HttpSession<()>, piece: &mut Vec<u8>) -> pingora::Result<bool> {
    loop {
        let Some(bytes) = session.read_response_body().await? else { return Ok(false) };
        if !bytes.is_empty() {
            piece.clear();
            piece.extend_from_slice(&bytes);
            return Ok(true);
        }
    }
}

/// An endpoint that has not been tried yet: one that need not be avoided, else any.
fn next_endpoint(cluster: &Cluster, ask: Ask<'_>, failures: &[ConnectFailure]) -> Option<Picked> {
    let tried: Vec<SocketAddr> = failures.iter().map(|failure| failure.endpoint.address()).collect();
    let unwanted: Vec<SocketAddr> = tried.iter().chain(ask.avoid).copied().collect();
    cluster.pick(&unwanted, ask.connect).or_else(|| cluster.pick(&tried, ask.connect))
}

/// Whether a response is one whose events can be read: 200, `text/event-stream`, not compressed.
pub fn is_event_stream(response: &ResponseHeader) -> bool {
    let kind = response.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    response.status == 200
        && kind.eq_ignore_ascii_case("text/event-stream")
        && response.headers.get(CONTENT_ENCODING).is_none_or(|coding| coding == "identity")
}

enum Failed {
    /// Nothing was sent.
    Connect(String),
    Exchange(OpenError),
}

async fn attempt(connector: &Arc<Connector>, picked: Picked, ask: Ask<'_>) -> Result<Leg, Failed> {
    let Picked { guard, peer } = picked;
    let endpoint = guard.endpoint();
    let connect = async |peer: &HttpPeer| {
        connector.get_http_session(peer).await.map_err(|error| Failed::Connect(error.to_string()))
    };
    let (session, pooled) = connect(&peer).await?;
    let exchanged = match exchange(session, endpoint, ask).await {
        Err(broken) if broken.may_repeat(pooled) => {
            // Another group in the pool: none of its connections is idle, so this one is fresh.
            let mut fresh = peer.clone();
            fresh.group_key = 1;
            let (session, _) = connect(&fresh).await?;
            exchange(session, endpoint, ask).await
        }
        first => first,
    };
    let (session, response) = exchanged.map_err(|broken| Failed::Exchange(broken.error))?;
    Ok(Leg {
        connector: Arc::clone(connector),
        session,
        peer,
        response,
        failures: Vec::new(),
        guard,
        piece: Vec::new(),
        state: State::Open,
    })
}

/// An exchange that broke before the response's header was there.
struct Broken {
    error: OpenError,
    retry: RetryType,
}

impl Broken {
    fn may_repeat(&self, pooled: bool) -> bool {
        match self.retry {
            RetryType::Decided(yes) => yes,
            RetryType::ReusedOnly => pooled,
        }
    }
}

async fn exchange(
    mut session: HttpSession<()>,
    endpoint: &Arc<Endpoint>,
    ask: Ask<'_>,
) -> Result<(HttpSession<()>, ResponseHeader), Broken> {
    let response = match ask.answer {
        None => send_and_wait(&mut session, endpoint, ask).await?,
        Some(after) => match tokio::time::timeout(after, send_and_wait(&mut session, endpoint, ask)).await {
            Ok(response) => response?,
            Err(_) => {
                let error = OpenError::TimedOut { endpoint: Arc::clone(endpoint), after };
                return Err(Broken { error, retry: RetryType::Decided(false) });
            }
        },
    };
    Ok((session, response))
}

async fn send_and_wait(
    session: &mut HttpSession<()>,
    endpoint: &Arc<Endpoint>,
    ask: Ask<'_>,
) -> Result<ResponseHeader, Broken> {
    send_head(session, endpoint, ask).await.map_err(|error| unsent(endpoint, &error))?;
    let sent = send_body(session, ask).await;
    // An engine may answer (413, 401) and close without reading all of the request: a failed write can hide an answer.
    match (read_header(session).await, sent) {
        (Ok(response), _) => Ok(response),
        (Err(error), Ok(())) => Err(Broken {
            error: OpenError::NoResponse { endpoint: Arc::clone(endpoint), why: error.to_string() },
            retry: error.retry,
        }),
        (Err(_), Err(error)) => Err(unsent(endpoint, &error)),
    }
}

fn unsent(endpoint: &Arc<Endpoint>, error: &pingora::Error) -> Broken {
    let retry = match error.etype() {
        // How a dead pooled connection shows itself, too, when its reset is already there.
        ErrorType::WriteError => RetryType::ReusedOnly,
        _ => error.retry,
    };
    Broken { error: OpenError::Send { endpoint: Arc::clone(endpoint), why: error.to_string() }, retry }
}

async fn send_head(session: &mut HttpSession<()>, endpoint: &Endpoint, ask: Ask<'_>) -> pingora::Result<()> {
    let mut head = ask.head.clone();
    head.insert_header(HOST, endpoint.authority())?;
    head.insert_header(CONTENT_LENGTH, ask.body.len())?;
    session.write_request_header(Box::new(head)).await
}

async fn send_body(session: &mut HttpSession<()>, ask: Ask<'_>) -> pingora::Result<()> {
    session.write_request_body(ask.body.clone(), true).await?;
    session.finish_request_body().await
}

async fn read_header(session: &mut HttpSession<()>) -> pingora::Result<ResponseHeader> {
    loop {
        session.read_response_header().await?;
        match session.response_header() {
            Some(response) if !response.status.is_informational() => return Ok(response.clone()),
            // Only HTTP/1.1 gets here: h2 keeps informational headers to itself.
            Some(_) => {}
            None => return pingora::Error::e_explain(ErrorType::ReadError, "no response header"),
        }
    }
}

//! What the engines of an upstream can do, found out by asking them: their version, and whether they have the endpoints that
//! render, tokenize, generate and derender.
//!
//! Each endpoint has an [`Inquiry`]:
//!
//! ```text
//!              ┌────────────── answered: in EVERY ─────────────┐
//!              ▼                                               │
//!   start ──► due ── its time has come ──► asking ─────────────┤
//!              ▲                                               │
//!              └── no answer: in 1 s, 2 s, … PAUSE_MAX ────────┘
//! ```
//!
//! A suspicion (a leg on it failed or was not opened) makes it due at once, but not within [`GAP`] of the last time that it was asked.
//!
//! Invariants:
//! - An endpoint is asked by one probe at a time, and a probe is over after five requests of at most [`PATIENCE`] each.
//! - What an endpoint has answered is believed until it answers otherwise, at most for [`MEMORY`] without an answer: an engine
//!   that is busy, or being restarted, shall not cost the streams that begin meanwhile their exactness. That is safe, because an
//!   engine that can do less than was believed refuses the continuation, or fails its check, before anything of it is delivered.
//! - No probe makes an engine generate: what it is sent lacks what it would need, and it says so.
//!
//! Deliberately absent: the clients' headers and keys. A probe carries nothing of a request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, USER_AGENT};
use log::{debug, info, warn};
use pingora::http::RequestHeader;
use serde::Deserialize;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::cluster::{Cluster, Endpoint};
use super::leg::{Ask, Connector, Leg};
use super::question::{Unanswered, whole};
use crate::proto::resume::{Abilities, Version};

/// The engine that has what is asked for here. No other is asked.
pub(super) const ASKED: &str = "vllm";

/// How often an endpoint is asked that answers: often enough to notice an engine that was replaced while nobody used it.
const EVERY: Duration = Duration::from_secs(300);

/// The pause after the first time without an answer; it doubles with each further one.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause after a time without an answer.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Suspicions do not make an endpoint be asked more often than this.
const GAP: Duration = Duration::from_secs(3);

/// How long an answer is believed while none follows.
const MEMORY: Duration = Duration::from_secs(600);

/// One request of a probe takes at most so long, from the connection to the last byte.
const PATIENCE: Duration = Duration::from_secs(2);

/// An answer may have so many bytes. What is read of one has a few hundred.
const MAX_ANSWER: usize = 64 << 10;

/// How often it is looked whether there are other endpoints, by names that resolve anew.
const LOOK: Duration = Duration::from_secs(15);

const VERSION: &str = "/version";

/// Each answers `{}` with 400 (422 where FastAPI's own words are passed on) where it is there: something is missing. Measured
/// on vLLM 0.32, and nothing is generated. Without `--enable-scale-out` all but the last answer 403 before they look at the body
/// (vLLM 0.32, entrypoints/scale_out/factories.py); 401 is an engine that wants a key, which a probe has not.
const SCALE_OUT: [&str; 4] =
    ["/inference/v1/generate", "/v1/chat/completions/render", "/v1/chat/completions/derender", "/tokenize"];

/// What an endpoint has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// `None`: it answers, and not with a version.
    version: Option<Version>,
    scale_out: bool,
}

/// Why there was no answer.
#[derive(Debug, Error)]
enum Silence {
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
    #[error("HTTP status {0}")]
    Status(u16),
    #[error("the request cannot be written: {0}")]
    Request(String),
}

/// When to ask an endpoint, and what it has answered.
#[derive(Debug, Default)]
pub(super) struct Inquiry {
    found: Option<Found>,
    /// When it answered last.
    answered: Option<Instant>,
    /// When it was asked last.
    asked: Option<Instant>,
    /// `None`: at once.
    due: Option<Instant>,
    asking: bool,
    /// A suspicion came while it was being asked: the answer may be from before what is suspected.
    suspected: bool,
    /// The pause after the next time without an answer.
    pause: Option<Duration>,
}

/// What is to be done about an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Ask it now; it counts as being asked from here on.
    Ask,
    /// Look at it again then.
    Wait(Instant),
    /// It is being asked.
    Nothing,
}

impl Inquiry {
    fn turn(&mut self, now: Instant) -> Turn {
        match self.due {
            _ if self.asking => Turn::Nothing,
            Some(due) if due > now => Turn::Wait(due),
            _ => {
                (self.asking, self.asked) = (true, Some(now));
                Turn::Ask
            }
        }
    }

    /// Whether it has been asked to the end.
    fn was_asked(&self) -> bool {
        self.asked.is_some() && !self.asking
    }

    /// What became of asking; whether something else is known now than before.
    fn ended(&mut self, now: Instant, found: Option<Found>) -> bool {
        let before = self.found;
        match found {
            Some(found) => {
                (self.found, self.answered, self.pause) = (Some(found), Some(now), None);
                self.due = Some(now + EVERY);
            }
            None => {
                if self.answered.is_some_and(|answered| now >= answered + MEMORY) {
                    self.found = None;
                }
                let pause = self.pause.unwrap_or(PAUSE);
                self.pause = Some(PAUSE_MAX.min(2 * pause));
                self.due = Some(now + pause);
            }
        }
        self.asking = false;
        if std::mem::take(&mut self.suspected) {
            self.suspect(now);
        }
        self.found != before
    }

    /// Whether it has to be looked at earlier than before.
    fn suspect(&mut self, now: Instant) -> bool {
        if self.asking {
            self.suspected = true;
            return false;
        }
        let at = self.asked.map_or(now, |asked| now.max(asked + GAP));
        match self.due {
            Some(due) if due > at => {
                self.due = Some(at);
                true
            }
            _ => false,
        }
    }
}

/// An inquiry where many look at it.
#[derive(Debug, Default)]
pub(super) struct Inquiries(Mutex<Inquiry>);

impl Inquiries {
    pub(super) fn found(&self) -> Option<Found> {
        self.with(|inquiry| inquiry.found)
    }

    /// See [`Cluster::suspect`]. Whether [`watch`] has to be woken.
    pub(super) fn suspect(&self) -> bool {
        self.with(|inquiry| inquiry.suspect(Instant::now()))
    }

    fn with<T>(&self, what: impl FnOnce(&mut Inquiry) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What engines can do together of which these things are known: as much as the least of them.
pub(super) fn together(found: impl Iterator<Item = Found>) -> Abilities {
    let common = found.fold(None, |all: Option<Found>, one| {
        let all = all.unwrap_or(one);
        let versions = [all.version, one.version].into_iter().flatten();
        Some(Found { version: versions.min(), scale_out: all.scale_out && one.scale_out })
    });
    let Found { version, scale_out } = common.unwrap_or_default();
    Abilities { version, scale_out }
}

/// Asks the endpoints of a cluster, each when it is due, for as long as this is polled. Not to be called twice for one cluster.
pub async fn watch(cluster: Arc<Cluster>, connector: Arc<Connector>) {
    // Dropped with this future, which ends the probes, too.
    let mut probes = JoinSet::new();
    loop {
        let now = Instant::now();
        let mut next = now + LOOK;
        for endpoint in cluster.endpoints() {
            match endpoint.inquiries().with(|inquiry| inquiry.turn(now)) {
                Turn::Ask => {
                    probes.spawn(probe(Arc::clone(&cluster), Arc::clone(&connector), endpoint));
                }
                Turn::Wait(until) => next = next.min(until),
                Turn::Nothing => {}
            }
        }
        tokio::select! {
            () = sleep_until(next) => {}
            () = cluster.suspicion() => {}
            Some(_) = probes.join_next() => {}
        }
    }
}

/// Ready when every endpoint of a cluster has been asked once, whether it has answered or not.
pub async fn asked_once(cluster: &Cluster) {
    loop {
        let mut probed = std::pin::pin!(cluster.probed().notified());
        // From here on no probe's end is missed.
        probed.as_mut().enable();
        if cluster.endpoints().iter().all(|endpoint| endpoint.inquiries().with(|inquiry| inquiry.was_asked())) {
            return;
        }
        probed.await;
    }
}

/// Asks every endpoint of a cluster once. What they say is in [`Cluster::abilities`] then.
pub async fn look(cluster: &Arc<Cluster>, connector: &Arc<Connector>) {
    for endpoint in cluster.endpoints() {
        if endpoint.inquiries().with(|inquiry| inquiry.turn(Instant::now())) == Turn::Ask {
            probe(Arc::clone(cluster), Arc::clone(connector), endpoint).await;
        }
    }
}

async fn probe(cluster: Arc<Cluster>, connector: Arc<Connector>, endpoint: Arc<Endpoint>) {
    let found = ask(&connector, &cluster, &endpoint).await;
    if let Err(silence) = &found {
        debug!("upstream {}: {endpoint} does not say what it can do: {silence}", cluster.name());
    }
    let news = endpoint.inquiries().with(|inquiry| inquiry.ended(Instant::now(), found.ok()).then_some(inquiry.found));
    match news {
        Some(Some(found)) => {
            info!("upstream {}: {endpoint} {found}", cluster.name());
            cluster.forget_refusals();
            if let Some((found, certified)) = found.version.and_then(|version| cluster.is_uncertified(version)) {
                warn!(
                    "upstream {}: {endpoint} is version {found}, and the certificate is of {certified}; \
                     make a new one with `baton certify --upstream {}`",
                    cluster.name(),
                    cluster.name()
                );
            }
        }
        Some(None) => info!("upstream {}: {endpoint} has not said for long what it can do", cluster.name()),
        None => {}
    }
    cluster.probed().notify_waiters();
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scale_out = if self.scale_out { "with" } else { "without" };
        match self.version {
            Some(version) => write!(f, "is version {version}, {scale_out} the scale-out endpoints"),
            None => f.write_str("does not tell its version"),
        }
    }
}

async fn ask(connector: &Arc<Connector>, cluster: &Cluster, endpoint: &Arc<Endpoint>) -> Result<Found, Silence> {
    let (status, body) = exchange(connector, cluster, endpoint, "GET", VERSION, Bytes::new()).await?;
    let version = if status == 200 { version_in(&body) } else { None };
    // Not what it was taken for: whatever else it answers would say nothing.
    let Some(version) = version else { return Ok(Found::default()) };
    for path in SCALE_OUT {
        let (status, _) = exchange(connector, cluster, endpoint, "POST", path, Bytes::from_static(b"{}")).await?;
        if !matches!(status, 400 | 422) {
            return Ok(Found { version: Some(version), scale_out: false });
        }
    }
    Ok(Found { version: Some(version), scale_out: true })
}

/// `{"version":"0.32.0"}`
fn version_in(body: &[u8]) -> Option<Version> {
    #[derive(Deserialize)]
    struct Told {
        version: String,
    }
    serde_json::from_slice::<Told>(body).ok().and_then(|told| Version::parse(&told.version))
}

/// One request and its answer. A server's own failure (a status from 500 on) is none.
async fn exchange(
    connector: &Arc<Connector>,
    cluster: &Cluster,
    endpoint: &Arc<Endpoint>,
    method: &str,
    path: &str,
    body: Bytes,
) -> Result<(u16, Vec<u8>), Silence> {
    let head = head(method, path).map_err(|error| Silence::Request(error.to_string()))?;
    let ask = Ask { head: &head, body: &body, connect: PATIENCE, answer: None, avoid: &[] };
    let answer = async {
        let mut leg = Leg::open_at(connector, cluster, endpoint.address(), ask).await?;
        let status = leg.response().status.as_u16();
        let body = whole(&mut leg, endpoint, MAX_ANSWER).await?;
        leg.finish().await;
        Ok((status, body))
    };
    let late = || Unanswered::TimedOut { endpoint: Arc::clone(endpoint), after: PATIENCE };
    match timeout(PATIENCE, answer).await.unwrap_or_else(|_| Err(late()))? {
        (status, _) if status >= 500 => Err(Silence::Status(status)),
        answer => Ok(answer),
    }
}

fn head(method: &str, path: &str) -> pingora::Result<RequestHeader> {
    let mut head = RequestHeader::build(method, path.as_bytes(), None)?;
    head.insert_header(USER_AGENT, concat!("baton/", env!("CARGO_PKG_VERSION")))?;
    if method == "POST" {
        head.insert_header(CONTENT_TYPE, "application/json")?;
    }
    Ok(head)
}

#[cfg(test)]
mod tests;

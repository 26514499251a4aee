//! Runs a relay over legs: reads what the engine sends, opens and drops legs, keeps the time.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::http::RequestHeader;
use tokio::time::{Instant, sleep_until, timeout};

use super::attach::{Attached, Sent};
use super::kept::{Kept, Phase, Progress};
use super::rendered::{NotRendered, RenderedLeg, Steps};
use super::report::Report;
use super::source::Source;
use super::{First, Opened};
use crate::journal::Writer;
use crate::proto::relay::{Action, LegEnd, LegStart, Note, Refusal, Relay};
use crate::proto::resume::render::Broken;
use crate::proto::resume::{PlanKind, Question, Work};
use crate::upstream::{
    self, Answer, Ask, Asking, Cluster, Connector, Cut, Leg, OpenError, Whom, head_for, is_event_stream,
};

/// How much of an answer that is not an event stream is kept for the log, in bytes.
const EXCERPT: usize = 512;

/// The longest error of an engine that is passed on as an event, in bytes.
const MAX_REFUSAL: usize = 64 * 1024;

/// How long to wait for a leg's orderly end after its last event, so that its connection can be used again.
const LAST_BYTES: Duration = Duration::from_millis(100);

/// Longest wait for the answer to one question; the relay bounds all of them together.
const ANSWER: Duration = Duration::from_secs(2);

/// Longest wait for one step of a rendered leg, in which an engine may go through the whole answer.
const STEP: Duration = Duration::from_secs(10);

/// Longest answer to a question, in bytes: the text of a long answer's ids.
const MAX_ANSWER: usize = 16 << 20;

/// Further away than any stream lives, near enough for a timer.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What later legs are opened with.
pub struct Onward {
    /// Pingora's connection pool.
    pub connector: Arc<Connector>,
    /// The upstream that continues.
    pub cluster: Arc<Cluster>,
    /// Method, path and the client's headers.
    pub head: Arc<RequestHeader>,
    /// Bounds the opening of one connection.
    pub connect: Duration,
}

/// What the driver waits for when no leg is open.
type Pending = Pin<Box<dyn Future<Output = Arrived> + Send>>;

enum Arrived {
    First(Result<Opened, NotOpened>),
    Leg(Result<Source, NotOpened>),
    Answer(Result<Vec<u8>, NotOpened>),
}

/// An attempt that gave no event stream, and the endpoint that is to be avoided from now on.
struct NotOpened {
    refusal: Refusal,
    endpoint: Option<SocketAddr>,
    /// How many endpoints accepted no connection.
    unconnected: usize,
}

/// One stream's relay, its journal's writer, and the leg that is open.
///
/// At most one of `leg` and `pending` is there. Dropping a leg closes its connection, which makes the engine stop.
pub struct Driver {
    relay: Relay,
    writer: Writer,
    onward: Onward,
    report: Report,
    leg: Option<Source>,
    pending: Option<Pending>,
    /// Endpoints that have failed this stream.
    failed: Vec<SocketAddr>,
    began: Instant,
    /// What the relay has told, where somebody wants to know.
    notes: Option<Vec<Note>>,
    /// Who reads the stream wants to know how it goes.
    kept: Option<Arc<Kept>>,
}

/// What woke the loop.
enum Woken {
    Arrived(Arrived),
    /// Bytes were handed to the relay.
    Bytes,
    Ended(LegEnd),
    Clock,
}

impl Driver {
    /// A driver for a stream that begins.
    pub fn new(relay: Relay, writer: Writer, onward: Onward, report: Report, first: First, began: Instant) -> Self {
        let (leg, pending, failed, notes) = (None, None, Vec::new(), None);
        let mut driver = Driver { relay, writer, onward, report, leg, pending, failed, began, notes, kept: None };
        match first {
            First::Open(opened) => driver.begin(began.elapsed(), opened),
            First::Opening(opening) => {
                driver.pending = Some(Box::pin(async {
                    Arrived::First(match opening.await {
                        Ok(opened) if is_event_stream(opened.leg.response()) => Ok(opened),
                        Ok(opened) => Err(refused(*opened.leg, MAX_REFUSAL).await),
                        Err(error) => Err(not_opened(&error)),
                    })
                }));
            }
        }
        driver
    }

    /// A driver for a stream whose first leg is over, and its relay knows it. Keeps what the relay tells.
    pub fn without_leg(relay: Relay, writer: Writer, onward: Onward, report: Report, began: Instant) -> Self {
        let (leg, pending, failed) = (None, None, Vec::new());
        Driver { relay, writer, onward, report, leg, pending, failed, began, notes: Some(Vec::new()), kept: None }
    }

    /// Tells those who read the stream when its engine is lost, and when another one goes on.
    pub fn telling(self, kept: Option<Arc<Kept>>) -> Self {
        Driver { kept, ..self }
    }

    /// The relay, and what it has told.
    pub fn into_told(self) -> (Relay, Vec<Note>) {
        (self.relay, self.notes.unwrap_or_default())
    }

    /// Goes on until the stream has its seal. Safe to drop at any await, and to be called again.
    pub async fn run(&mut self) {
        let mut timer = pin!(sleep_until(self.began + FAR));
        loop {
            self.act();
            if self.relay.is_sealed() {
                break;
            }
            // One timer for the stream's life. It is moved when it rings, and before that only to an earlier time.
            let deadline = self.began + self.relay.deadline().unwrap_or(FAR);
            if deadline < timer.deadline() || timer.is_elapsed() {
                timer.as_mut().reset(deadline);
            }
            let Driver { relay, writer, leg, pending, began, .. } = &mut *self;
            let woken = tokio::select! {
                biased;
                read = read(leg) => match read {
                    Ok(Some(bytes)) => {
                        relay.handle_bytes(began.elapsed(), bytes, writer);
                        Woken::Bytes
                    }
                    Ok(None) => Woken::Ended(LegEnd::Clean),
                    Err(cut) => Woken::Ended(leg_end(cut)),
                },
                arrived = arrive(pending) => Woken::Arrived(arrived),
                () = &mut timer => Woken::Clock,
            };
            let now = self.began.elapsed();
            match woken {
                Woken::Bytes => {}
                Woken::Ended(end) => {
                    self.relay.handle_end(now, end, &mut self.writer);
                    self.act();
                    if !self.relay.is_sealed() {
                        self.leg = None; // it has nothing more to say; a sealed stream's goes back to the pool below
                    }
                }
                Woken::Clock => self.relay.handle_deadline(now, &mut self.writer),
                Woken::Arrived(arrived) => self.arrived(now, arrived),
            }
        }
        self.close().await;
    }

    /// The client has gone for good: stops the engine and seals the stream.
    pub fn abandon(&mut self) {
        self.relay.handle_client_gone(&mut self.writer);
        self.act();
    }

    /// The client does not want the rest: stops the engine and seals the stream.
    pub fn cancel(&mut self) {
        self.relay.handle_cancelled(&mut self.writer);
        self.act();
    }

    /// Whether the stream has its seal.
    pub fn is_sealed(&self) -> bool {
        self.relay.is_sealed()
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        Progress { leg: self.relay.leg(), tokens: self.relay.completion_tokens() }
    }

    /// The client that began the stream has left it to itself.
    pub fn client_left(&mut self) {
        self.report.client_left(&self.relay);
    }

    /// The stream is over: says so, once.
    pub fn conclude(mut self, attached: Attached, sent: Sent) {
        self.report.end(&self.relay, attached, sent, self.began.elapsed());
    }

    fn arrived(&mut self, now: Duration, arrived: Arrived) {
        self.pending = None;
        match arrived {
            Arrived::First(Ok(opened)) => {
                self.report.first_leg(&opened.leg);
                self.begin(now, opened);
            }
            // Whoever opened it has counted what failed on the way, and has tried what there is to try.
            Arrived::First(Err(not)) => self.relay.handle_declined(not.refusal, &mut self.writer),
            Arrived::Leg(Ok(leg)) => {
                self.report.opened(&leg);
                self.leg = Some(leg);
                self.relay.handle_opened(now);
            }
            Arrived::Leg(Err(not)) => {
                let refusal = self.not_opened(not);
                self.relay.handle_refused(now, refusal, &mut self.writer);
            }
            Arrived::Answer(answer) => {
                let answer = answer.map_err(|not| self.not_opened(not));
                self.relay.handle_answer(now, answer, &mut self.writer);
            }
        }
    }

    fn begin(&mut self, now: Duration, first: Opened) {
        if first.lists_ids {
            self.relay.hide_ids();
        }
        self.leg = Some(Source::Request(first.leg));
        self.relay.handle_opened(now);
    }

    fn not_opened(&mut self, not: NotOpened) -> Refusal {
        let NotOpened { refusal, endpoint, unconnected } = not;
        if let Some(address) = endpoint {
            // What it has been able to do so far it may not be able to do any more.
            self.onward.cluster.suspect(address);
            self.failed.push(address);
        }
        self.report.unconnected(unconnected);
        refusal
    }

    /// Does what the relay asks for.
    fn act(&mut self) {
        while let Some(action) = self.relay.poll_action() {
            match action {
                Action::Abort => {
                    self.leg = None;
                    self.pending = None;
                }
                Action::Start(start) => self.start(start),
                Action::Ask(question) => self.ask(question),
                Action::Note(note) => {
                    self.heed(&note);
                    self.report.note(&note, &self.relay, self.writer.next_seq());
                    if let Some(notes) = &mut self.notes {
                        notes.push(note);
                    }
                }
            }
        }
    }

    /// What is to be remembered beyond the stream.
    fn heed(&mut self, note: &Note) {
        let cluster = &self.onward.cluster;
        match note {
            Note::Cut { .. } => {
                let address = self.leg.as_ref().map(|leg| leg.endpoint().address());
                // Leg 1 may have been another upstream's, which then knows no such endpoint.
                address.into_iter().for_each(|address| cluster.suspect(address));
                self.failed.extend(address);
                if !self.relay.is_sealed() {
                    self.tell(Phase::Recovering);
                }
            }
            Note::PlanRefused { kind } if cluster.plan_refused(*kind) => self.report.plan_barred(*kind),
            Note::Continued { plan, .. } => {
                if let Some(kind) = PlanKind::named(plan) {
                    cluster.plan_worked(kind);
                }
                self.tell(Phase::Continued);
            }
            _ => {}
        }
    }

    fn tell(&self, phase: Phase) {
        if let Some(kept) = &self.kept {
            kept.phase().send_replace(phase);
        }
    }

    fn start(&mut self, start: LegStart) {
        self.leg = None;
        self.report.starting(&start, &self.relay);
        let connector = Arc::clone(&self.onward.connector);
        let cluster = Arc::clone(&self.onward.cluster);
        let head = self.onward.head.clone();
        let connect = self.onward.connect;
        let avoid = self.failed.clone();
        self.pending = Some(match start.work {
            Work::Request { path, body } => Box::pin(async move {
                let (head, body) = (head_for(&head, path), Bytes::from(body));
                // The relay's deadline bounds the wait for an answer.
                let ask = Ask { head: &head, body: &body, connect, answer: None, avoid: &avoid };
                Arrived::Leg(match Leg::open(&connector, &cluster, ask).await {
                    Ok(leg) if is_event_stream(leg.response()) => Ok(Source::Request(Box::new(leg))),
                    Ok(leg) => Err(refused(leg, EXCERPT).await),
                    Err(error) => Err(not_opened(&error)),
                })
            }),
            Work::Render(rendering) => Box::pin(async move {
                let steps = Steps { connector, cluster, head, connect, patience: STEP };
                let opened = RenderedLeg::open(*rendering, steps, &avoid).await;
                Arrived::Leg(opened.map(|leg| Source::Rendered(Box::new(leg))).map_err(not_rendered))
            }),
        });
    }

    fn ask(&mut self, question: Question) {
        let connector = Arc::clone(&self.onward.connector);
        let cluster = Arc::clone(&self.onward.cluster);
        let head = self.onward.head.clone();
        let connect = self.onward.connect;
        let avoid = self.failed.clone();
        self.pending = Some(Box::pin(async move {
            let asking = Asking {
                connector: &connector,
                cluster: &cluster,
                head: &head,
                whom: Whom::Avoiding(&avoid),
                connect,
                patience: ANSWER,
                limit: MAX_ANSWER,
            };
            Arrived::Answer(match upstream::ask(asking, question).await {
                Ok(Answer { status: 200, body, .. }) => Ok(body),
                Ok(Answer { status, body, endpoint, unconnected }) => Err(NotOpened {
                    refusal: Refusal::Status { status, body: excerpt(body, EXCERPT) },
                    // It works, and has no answer to this.
                    endpoint: (status >= 500).then(|| endpoint.address()),
                    unconnected,
                }),
                Err(error) => Err(NotOpened {
                    refusal: Refusal::Unreachable(error.to_string()),
                    endpoint: error.endpoint().map(|endpoint| endpoint.address()),
                    unconnected: error.unconnected(),
                }),
            })
        }));
    }

    /// Lets the last leg come to its orderly end, so that its connection goes back to the pool.
    async fn close(&mut self) {
        let Some(mut leg) = self.leg.take() else { return };
        let rest = async { while let Ok(Some(_)) = leg.read().await {} };
        if timeout(LAST_BYTES, rest).await.is_ok() {
            leg.finish().await;
        }
    }
}

async fn read(leg: &mut Option<Source>) -> Result<Option<&[u8]>, Cut> {
    match leg {
        Some(leg) => leg.read().await,
        None => std::future::pending().await,
    }
}

async fn arrive(pending: &mut Option<Pending>) -> Arrived {
    match pending {
        Some(arrival) => arrival.await,
        None => std::future::pending().await,
    }
}

fn leg_end(cut: Cut) -> LegEnd {
    match cut {
        Cut::Reset => LegEnd::Reset,
        Cut::Eof => LegEnd::Eof,
        other => LegEnd::Broken(other.to_string()),
    }
}

fn not_opened(error: &OpenError) -> NotOpened {
    let unconnected = if let OpenError::Unreachable { failures, .. } = error { failures.len() } else { 0 };
    NotOpened {
        refusal: Refusal::Unreachable(error.to_string()),
        endpoint: error.endpoint().map(|endpoint| endpoint.address()),
        unconnected,
    }
}

fn not_rendered(error: NotRendered) -> NotOpened {
    let (endpoint, unconnected) = (error.endpoint().map(|endpoint| endpoint.address()), error.unconnected());
    match error {
        NotRendered::Broken { why: Broken::Status { status, body, .. }, .. } => {
            NotOpened { refusal: Refusal::Status { status, body }, endpoint, unconnected }
        }
        // The engine is as good as any: it is the plan that is not.
        NotRendered::Broken { why, .. } => {
            NotOpened { refusal: Refusal::NotFit(why.to_string()), endpoint: None, unconnected }
        }
        error => NotOpened { refusal: Refusal::Unreachable(error.to_string()), endpoint, unconnected },
    }
}

/// Reads up to `limit` bytes of an answer that is not an event stream, as far as they come soon: its status says enough.
async fn refused(mut leg: Leg, limit: usize) -> NotOpened {
    let status = leg.response().status.as_u16();
    let endpoint = Some(leg.endpoint().address());
    let mut body = Vec::new();
    let read = async {
        while body.len() < limit
            && let Ok(Some(bytes)) = leg.read().await
        {
            body.extend_from_slice(bytes);
        }
    };
    // What is cut off here is no JSON, and not taken for the engine's words.
    let _ = timeout(ANSWER, read).await;
    let refusal = Refusal::Status { status, body: excerpt(body, limit) };
    NotOpened { refusal, endpoint, unconnected: leg.failures().len() }
}

fn excerpt(mut body: Vec<u8>, limit: usize) -> String {
    body.truncate(limit);
    String::from_utf8_lossy(&body).into_owned()
}

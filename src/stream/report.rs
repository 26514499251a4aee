//! What a stream tells the log and the metrics: one line and one count for each thing that happens to it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::attach::{Attached, Sent};
use super::id::StreamId;
use super::source::Source;
use crate::proto::record::Seal;
use crate::proto::relay::{LegStart, Note, Relay};
use crate::proto::resume::PlanKind;
use crate::telemetry::events::{Event, Line};
use crate::telemetry::metrics::{Continuation, InFlight, Metrics, Outcome};
use crate::upstream::{Endpoint, Leg};

/// The plan of the client's own request.
const FIRST: &str = "first";

/// Why a stream is incomplete whose client did not get what was written for it.
const LOST: &str = "lost";

/// A stream's line to the log and the metrics.
#[derive(Debug)]
pub struct Report {
    metrics: Arc<Metrics>,
    id: StreamId,
    /// The route's pattern.
    route: String,
    /// The upstream of leg 1.
    first_upstream: String,
    /// The upstream that continues.
    next_upstream: String,
    /// A leg after the first has been asked for.
    moved: bool,
    /// The engine of the current leg; `None` while it is being looked for.
    endpoint: Option<Arc<Endpoint>>,
    /// Data events passed on, as far as the last thing that happened told.
    events: u64,
    /// Code of the last failure.
    reason: Option<&'static str>,
    _in_flight: InFlight,
}

impl Report {
    /// The report of a stream that begins now. Whoever opened leg 1 has counted it.
    pub fn new(metrics: Arc<Metrics>, id: StreamId, route: &str, first_upstream: &str, next_upstream: &str) -> Self {
        let _in_flight = metrics.stream_started(first_upstream);
        Report {
            metrics,
            id,
            route: route.to_owned(),
            first_upstream: first_upstream.to_owned(),
            next_upstream: next_upstream.to_owned(),
            moved: false,
            endpoint: None,
            events: 0,
            reason: None,
            _in_flight,
        }
    }

    /// The engine of leg 1 is known.
    pub fn first_leg(&mut self, leg: &Leg) {
        self.endpoint = Some(Arc::clone(leg.endpoint()));
    }

    /// The client has the response's header. Where an engine has begun to answer, [`Report::first_leg`] is to be told before.
    pub fn start(&self, model: &str, excluded: Option<&'static str>) {
        self.line(None, Event::Start { route: &self.route, model, excluded });
    }

    /// The upstream of the current leg.
    fn upstream(&self) -> &str {
        if self.moved { &self.next_upstream } else { &self.first_upstream }
    }

    fn line(&self, relay: Option<&Relay>, event: Event<'_>) {
        let id = relay.and_then(|relay| relay.partial().head.as_ref()).map(|head| head.id.as_str());
        let endpoint = self.endpoint.as_deref().map(Endpoint::label);
        Line { stream: self.id.short(), id, upstream: self.upstream(), endpoint, events: self.events, event }.emit();
    }

    /// A further leg has been asked for.
    pub(super) fn starting(&mut self, start: &LegStart, relay: &Relay) {
        self.moved = true;
        self.endpoint = None;
        self.metrics.leg_started(self.upstream());
        self.line(Some(relay), Event::Leg { leg: start.leg, attempt: start.attempt, plan: start.plan });
    }

    /// A further leg has answered.
    pub(super) fn opened(&mut self, leg: &Source) {
        self.endpoint = Some(Arc::clone(leg.endpoint()));
        self.unconnected(leg.unconnected());
    }

    /// So many endpoints accepted no connection for a further leg.
    pub(super) fn unconnected(&self, endpoints: usize) {
        for _ in 0..endpoints {
            self.metrics.connect_failed(self.upstream());
        }
    }

    /// The upstream that continues is not asked by this kind of plan any more, for a while.
    pub(super) fn plan_barred(&self, kind: PlanKind) {
        self.metrics.plan_barred(&self.next_upstream, kind.name());
    }

    /// The relay tells something; `events` is how many data events have been passed on so far.
    pub(super) fn note(&mut self, note: &Note, relay: &Relay, events: u64) {
        self.events = events;
        let event = match note {
            Note::FirstEvent { after } => {
                self.metrics.first_event(self.upstream(), *after);
                Event::FirstEvent { after: *after }
            }
            Note::Cut { leg, attempt, plan, empty, cause } => {
                let reason = cause.code();
                self.reason = Some(reason);
                self.metrics.leg_failed(self.upstream(), reason);
                // One that had brought text has been counted as continued.
                if *empty && *plan != FIRST {
                    self.metrics.continuation(plan, Continuation::Failed);
                }
                // The engine's own words may quote the answer: they are for debugging only.
                log::debug!("stream {}: {cause:?}", self.id.short());
                Event::Cut { leg: *leg, attempt: *attempt, reason }
            }
            Note::Observed { cause, plan } => {
                self.metrics.continuation(plan, Continuation::Observed);
                Event::Observed { reason: cause, plan }
            }
            Note::PlanRefused { kind } => Event::PlanRefused { plan: kind.name() },
            Note::NotContinued { why } => {
                self.metrics.plan_refused(why);
                Event::Refused { reason: why }
            }
            Note::Continued { leg, plan, gap } => {
                self.metrics.continuation(plan, Continuation::Continued);
                self.metrics.recovery_gap(*gap);
                Event::Continued { leg: *leg, plan, gap: *gap }
            }
            Note::Malformed { leg, why } => {
                self.metrics.malformed_event();
                log::debug!("stream {}: {why}", self.id.short());
                Event::Malformed { leg: *leg, place: why.place() }
            }
            Note::Fault { place } => {
                self.metrics.fault(place);
                Event::Fault { place }
            }
            Note::TailRepaired => {
                self.metrics.tail_repaired();
                Event::TailRepaired
            }
            Note::ToolCallsReleased => Event::ToolCallsReleased,
            Note::ToolBufferFull => Event::ToolBufferFull,
        };
        self.line(Some(relay), event);
    }

    /// The client has left. The stream may go on without it.
    pub(super) fn client_left(&self, relay: &Relay) {
        self.metrics.client_left();
        self.line(Some(relay), Event::ClientLeft);
    }

    /// The stream is over.
    pub(super) fn end(&mut self, relay: &Relay, attached: Attached, sent: Sent, took: Duration) {
        let outcome = match relay.seal() {
            // Who ends a stream hangs up, too, and either may be noticed first.
            Some(Seal::Cancelled) => Outcome::Cancelled,
            _ if attached == Attached::Lost => Outcome::Incomplete,
            // Whatever the engine did meanwhile, nobody has got it.
            _ if attached == Attached::ClientGone => Outcome::Abandoned,
            Some(Seal::Finished) => Outcome::Finished,
            Some(Seal::Mirrored(_)) => Outcome::Mirrored,
            Some(Seal::Abandoned) => Outcome::Abandoned,
            Some(Seal::Incomplete { .. }) | None => Outcome::Incomplete,
        };
        let Sent { events, bytes, heartbeats } = sent;
        self.events = events;
        if attached == Attached::ClientGone {
            self.client_left(relay);
        }
        let reason = match outcome {
            Outcome::Incomplete if attached == Attached::Lost => Some(LOST),
            Outcome::Incomplete | Outcome::Mirrored => match relay.seal() {
                Some(Seal::Incomplete { reason: Cow::Borrowed(first), .. }) => Some(*first),
                _ => self.reason,
            },
            Outcome::Finished | Outcome::Abandoned | Outcome::Cancelled => None,
        };
        if let Some(reason) = reason {
            self.metrics.stream_incomplete(&self.first_upstream, reason);
        }
        self.metrics.stream_ended(&self.route, &self.first_upstream, outcome);
        self.metrics.sent(events, bytes);
        self.metrics.heartbeats(heartbeats);
        let tokens = relay.completion_tokens();
        self.line(Some(relay), Event::Seal { outcome, reason, legs: relay.legs_written(), tokens, bytes, took });
    }
}

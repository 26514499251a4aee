//! Failures and ends: what follows when a leg is over.

use std::time::Duration;

use super::Relay;
use super::events::Flow;
use super::guard::{Probation, guarded};
use super::input::{Cause, Continuation, OnIncomplete, Refusal};
use super::next::{AGAIN, Next, Stop};
use super::output::{Action, LegStart, Note};
use super::state::{LegState, Mirror, State};
use crate::proto::chat::json::Object;
use crate::proto::chat::{self, ClientUsage, FinishReason, Onward, OriginalPrompt, Parsed, Partial, Recovered};
use crate::proto::record::{MirroredEnd, Record, Seal, Sink};
use crate::proto::resume::{self, Plan, PlanKind, PlanSet, Refused, Search, Step, Way};
use crate::proto::splice::{self, Seam, Splice};
use crate::proto::sse::Event;

/// A failure, as far as it is known at the place where it shows.
pub(super) struct Failure<'a> {
    pub(super) cause: Cause,
    /// The event that showed it, which only a mirror passes on.
    pub(super) event: Option<(Option<&'a str>, &'a [u8])>,
    /// The leg's connection is still open.
    pub(super) open: bool,
}

impl Relay {
    pub(super) fn failed_at(&mut self, now: Duration, cause: Cause, event: &Event<'_>, sink: &mut dyn Sink) -> Flow {
        let shown = Some((event.event, event.data));
        self.failed(now, Failure { cause, event: shown, open: true }, sink);
        if matches!(self.state, State::Mirroring { .. }) { Flow::Read } else { Flow::Stop }
    }

    pub(super) fn failed(&mut self, now: Duration, failure: Failure<'_>, sink: &mut dyn Sink) {
        let Failure { cause, event, open } = failure;
        if self.partial.is_finished() {
            if open {
                self.actions.push_back(Action::Abort);
            }
            return self.finish(true, sink);
        }
        if !self.leg.wrote
            && let Some(before) = self.leg.before.take()
        {
            self.partial.restore(*before);
        }
        self.strike(&cause);
        let next = match self.next(&cause) {
            Ok(next) if self.policy.continuation == Continuation::Observe => {
                self.note(Note::Observed { cause: cause.code(), plan: next.plan() });
                Err(Stop::Off)
            }
            next => next,
        };
        let LegState { number, attempt, plan, wrote, .. } = self.leg;
        self.note(Note::Cut { leg: number, attempt, plan, empty: !wrote, cause: cause.clone() });
        self.remember_for_mirror(&cause, event);
        match next {
            Ok(next) => {
                self.actions.push_back(Action::Abort);
                self.lost_at.get_or_insert(now);
                self.begin(now, next, cause, sink);
            }
            Err(stop) => self.give_up(Failure { cause, event, open }, stop, sink),
        }
    }

    /// Goes over to the next leg, which follows one that failed of `cause`.
    fn begin(&mut self, now: Duration, next: Next, cause: Cause, sink: &mut dyn Sink) {
        if let Some(held) = self.held.take() {
            self.partial = held.before;
        }
        let Next { number, attempt, kind, way } = next;
        if number > self.leg.number {
            self.spent = PlanSet::default();
        }
        // Of several tries in a row the first failure is the one that matters; the others are its consequences.
        let first = self.leg.because.take().filter(|_| !self.leg.wrote);
        self.leg = LegState::new(number, attempt, kind.map_or(AGAIN, PlanKind::name), now);
        self.leg.kind = kind;
        self.leg.way = Some(way);
        self.leg.because = Some(first.unwrap_or(cause));
        self.usage_sent = false;
        match self.policy.pause_before(attempt) {
            Duration::ZERO => self.start(now, sink),
            pause => self.state = State::Waiting { until: now + pause },
        }
    }

    /// Asks for the leg that is due, or first for the place it goes on from.
    pub(super) fn start(&mut self, now: Duration, sink: &mut dyn Sink) {
        self.leg.started = now;
        match self.leg.way.take() {
            Some(Way::Plan(plan)) => self.open(*plan),
            Some(Way::Search(search)) => self.search(now, search, sink),
            None => {}
        }
    }

    /// The next step of a search.
    pub(super) fn search(&mut self, now: Duration, search: Box<Search>, sink: &mut dyn Sink) {
        let refused = match search.step() {
            Step::Ask(question) => {
                self.state = State::Asking;
                self.leg.way = Some(Way::Search(search));
                self.actions.push_back(Action::Ask(question));
                return;
            }
            Step::Found(cut) => {
                let Some(request) = &self.request else { return };
                if let Some(mark) = cut.mark {
                    self.partial.learn_mark(mark);
                }
                match guarded("plan", || resume::from_ids(request, &self.partial, cut, &self.policy.ratios)) {
                    Ok(Ok(plan)) => return self.open(plan),
                    Ok(Err(refused)) => Stop::NoPlan(refused),
                    Err(place) => Stop::Fault(place),
                }
            }
            Step::Lost(refused) => Stop::NoPlan(refused),
        };
        self.pass_over(now, refused, sink);
    }

    /// The leg's kind of plan has turned out not to do: the next one, in its place.
    pub(super) fn pass_over(&mut self, now: Duration, stop: Stop, sink: &mut dyn Sink) {
        let LegState { number, attempt, kind, .. } = self.leg;
        let cause = self.leg.because.take().unwrap_or(Cause::Fault("plan"));
        self.spent.extend(kind);
        let ends = matches!(stop, Stop::Fault(_) | Stop::NoPlan(Refused::BudgetSpent { .. }));
        let next = match &self.request {
            Some(request) if !ends => self.way_at(request, number, attempt),
            _ => Err(stop),
        };
        match next {
            Ok(Next { kind, way, .. }) => {
                self.leg = LegState::new(number, attempt, kind.map_or(AGAIN, PlanKind::name), now);
                self.leg.kind = kind;
                self.leg.way = Some(way);
                self.leg.because = Some(cause);
                self.start(now, sink);
            }
            Err(stop) => self.give_up(Failure { cause, event: None, open: false }, stop, sink),
        }
    }

    fn open(&mut self, plan: Plan) {
        let Plan { work, seam, onward, echo } = plan;
        let mut kept = self.partial.clone();
        kept.begin_leg(onward);
        self.leg.splice = self.splice(&kept, seam, onward);
        if onward == Onward::Text {
            self.leg.probation = Some(Probation::new(&self.partial, self.leg.attempt));
        }
        self.leg.echo = echo.map(|ids| (ids, onward));
        let before = match self.leg.echo {
            Some(_) => self.partial.clone(),
            None => std::mem::replace(&mut self.partial, kept),
        };
        self.leg.before = Some(Box::new(before));
        self.state = State::Opening;
        let LegState { number: leg, attempt, plan, .. } = self.leg;
        self.actions.push_back(Action::Start(LegStart { leg, attempt, plan, work }));
    }

    /// For a leg that goes on from `kept`; `None` while the client has got nothing that it would have to fit.
    fn splice(&self, kept: &Partial, seam: Seam, onward: Onward) -> Option<Splice> {
        let request = self.request.as_ref().filter(|_| self.first_event_seen)?;
        let recovered = match onward {
            Onward::Again => Recovered::nothing(),
            Onward::Text | Onward::Ids(_) => Recovered::of(kept, request, &self.policy.ratios),
        };
        let client = ClientUsage::of(request, self.partial.usage.is_some());
        let head = self.partial.head.clone().unwrap_or_default();
        let splice =
            Splice::new(head, self.partial.reasoning_field, seam, client, recovered).hiding_ids(self.hides_ids);
        Some(if self.partial.has_role() { splice } else { splice.awaiting_role() })
    }

    /// What an engine answers instead of a stream is said in an event: in its own words, where they are an error as clients know it.
    pub(super) fn decline(&mut self, refusal: Refusal, sink: &mut dyn Sink) {
        let words = match &refusal {
            Refusal::Status { body, .. } if is_wrapped(body.as_bytes()) => on_one_line(body),
            _ => None,
        };
        let cause = Cause::Refused(refusal);
        let message = format!("There is no answer: {cause}. Send the request again.");
        let LegState { number: leg, attempt, plan, .. } = self.leg;
        let code = cause.code();
        self.note(Note::Cut { leg, attempt, plan, empty: true, cause });
        match words {
            Some(data) => {
                sink.append(Record::Whole { event: None, data: data.as_bytes() });
                self.seal_with(Seal::Mirrored(MirroredEnd::Clean), sink);
            }
            None => self.seal_with(Seal::Incomplete { reason: code.into(), message }, sink),
        }
    }

    /// No leg follows: the stream ends here, and says how.
    fn give_up(&mut self, failure: Failure<'_>, stop: Stop, sink: &mut dyn Sink) {
        let Failure { cause, event, open } = failure;
        let cause = self.leg.because.take().filter(|_| !self.leg.wrote).unwrap_or(cause);
        if let Stop::Fault(place) = stop {
            self.note(Note::Fault { place });
        }
        self.note(Note::NotContinued { why: stop.code() });
        if stop == Stop::NoPlan(Refused::BudgetSpent { exact: true })
            && let Some(head) = &self.partial.head
        {
            // Spent to the last token, and only the finish reason was lost.
            let data = splice::finish_chunk(head, self.partial.shape(), &FinishReason::Length);
            if open {
                self.actions.push_back(Action::Abort);
            }
            sink.append(Record::Whole { event: None, data: &data });
            return self.finish(true, sink);
        }
        self.release(Note::ToolCallsReleased, sink);
        // An engine's error before any text, after which nobody else is asked, is the answer to the request. A flat one is not:
        // official clients take it for a chunk and see a stream that succeeds.
        let is_error = matches!(cause, Cause::ErrorEvent { .. }) && event.is_some_and(|(_, data)| is_wrapped(data));
        let is_the_answer = is_error && self.leg.splice.is_none() && self.partial.only_white_space().is_some();
        if is_the_answer || self.policy.on_incomplete == OnIncomplete::Mirror {
            return self.give_up_mirroring(event, open, sink);
        }
        if open {
            self.actions.push_back(Action::Abort);
        }
        let message = format!(
            "The answer is incomplete: {cause}, and it could not be continued: {stop}. What was sent so far is valid; send the request again for a whole answer."
        );
        self.seal_with(Seal::Incomplete { reason: cause.code().into(), message }, sink);
    }

    fn give_up_mirroring(&mut self, event: Option<(Option<&str>, &[u8])>, open: bool, sink: &mut dyn Sink) {
        match event {
            // Only the client's own leg: a later one has another id, and what is wrong with it is not the first engine's doing.
            Some((name, data)) if open && self.leg.splice.is_none() => {
                let done = matches!(chat::parse(data), Ok(Parsed::Done));
                if !done {
                    sink.append(Record::Whole { event: name, data });
                }
                self.state = State::Mirroring { done };
            }
            _ => {
                if open {
                    self.actions.push_back(Action::Abort);
                }
                let Mirror { event, end } = self.mirror.take().unwrap_or(Mirror { event: None, end: MirroredEnd::Cut });
                if let Some((event, data)) = &event {
                    sink.append(Record::Whole { event: event.as_deref(), data });
                }
                self.seal_with(Seal::Mirrored(end), sink);
            }
        }
    }

    fn remember_for_mirror(&mut self, cause: &Cause, event: Option<(Option<&str>, &[u8])>) {
        if self.policy.on_incomplete == OnIncomplete::Mirror && self.leg.splice.is_none() {
            // What an engine would have sent after its error or abort is not known: it was closed. So no `[DONE]` is made up.
            let end = match cause {
                Cause::DoneWithoutFinish => MirroredEnd::Done,
                Cause::TornEvent | Cause::CleanEnd | Cause::ErrorEvent { .. } | Cause::Aborted => MirroredEnd::Clean,
                _ => MirroredEnd::Cut,
            };
            let shown = event.filter(|_| *cause != Cause::DoneWithoutFinish);
            let event = shown.and_then(|(name, data)| Some((name.map(str::to_owned), self.shown(data)?.into_owned())));
            self.mirror = Some(Mirror { event, end });
        }
    }

    /// The answer is whole. `repair`: the engine did not get to say so.
    pub(super) fn finish(&mut self, repair: bool, sink: &mut dyn Sink) {
        self.release(Note::ToolCallsReleased, sink);
        // An engine that came to its `[DONE]` without usage does not give any; Baton's own legs always ask for it.
        if repair || self.leg.splice.is_some() {
            self.write_usage(sink);
        }
        if repair {
            self.note(Note::TailRepaired);
        }
        self.seal_with(Seal::Finished, sink);
    }

    /// Writes the usage chunk that the client asked for and has not got.
    fn write_usage(&self, sink: &mut dyn Sink) {
        let asked = self.request.as_ref().filter(|request| request.include_usage() && !self.usage_sent);
        let (Some(request), Some(head)) = (asked, &self.partial.head) else { return };
        let ratios = &self.policy.ratios;
        let prompt = match Recovered::of(&self.partial, request, ratios).prompt {
            OriginalPrompt::Known(tokens) => tokens,
            OriginalPrompt::LegMinus(_) => request.prompt_estimate(ratios),
        };
        let data = splice::usage_chunk(head, self.partial.shape(), &self.partial.usage_so_far(prompt, ratios));
        sink.append(Record::Whole { event: None, data: &data });
    }

    pub(super) fn release(&mut self, note: Note, sink: &mut dyn Sink) {
        if let Some(held) = self.held.take() {
            self.note(note);
            self.leg.wrote = true;
            held.release(sink);
        }
    }

    pub(super) fn seal_with(&mut self, seal: Seal, sink: &mut dyn Sink) {
        self.state = State::Sealed;
        self.sealed = Some(seal.clone());
        sink.seal(seal);
    }

    pub(super) fn note(&mut self, note: Note) {
        self.actions.push_back(Action::Note(note));
    }
}

/// Whether this is an error as official clients know it, and not one that they take for a chunk.
fn is_wrapped(data: &[u8]) -> bool {
    serde_json::from_slice::<Object<'_>>(data).is_ok_and(|event| event.get("error").is_some())
}

/// The same JSON without line ends, which would make several lines of `data:`.
fn on_one_line(json: &str) -> Option<String> {
    serde_json::from_str::<serde_json::Value>(json).ok().map(|value| value.to_string())
}

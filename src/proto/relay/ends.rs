//! Failures and ends: what follows when a leg is over.

use std::time::Duration;

use super::Relay;
use super::events::Flow;
use super::guard::Probation;
use super::input::{Cause, Continuation, OnIncomplete};
use super::next::{AGAIN, Next, Stop};
use super::output::{Action, LegStart, Note};
use super::state::{LegState, Mirror, State};
use crate::proto::chat::json::Object;
use crate::proto::chat::{self, ClientUsage, FinishReason, OriginalPrompt, Parsed, Recovered};
use crate::proto::record::{MirroredEnd, Record, Seal, Sink};
use crate::proto::resume::Refused;
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
        let next = match self.next(&cause) {
            Ok(next) if self.policy.continuation == Continuation::Observe => {
                self.note(Note::Observed { cause: cause.code(), plan: next.plan });
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
                self.begin(now, next);
            }
            Err(stop) => self.give_up(Failure { cause, event, open }, stop, sink),
        }
    }

    fn begin(&mut self, now: Duration, next: Next) {
        if let Some(held) = self.held.take() {
            self.partial = held.before;
        }
        let Next { number, attempt, plan, body, seam } = next;
        let splice = self.splice(plan, seam);
        self.leg = LegState::new(number, attempt, plan, splice, now);
        self.leg.body = body;
        if plan != AGAIN {
            self.leg.probation = Some(Probation::new(&self.partial, attempt));
        }
        self.partial.begin_leg();
        self.usage_sent = false;
        match self.policy.pause_before(attempt) {
            Duration::ZERO => self.start(now),
            pause => self.state = State::Waiting { until: now + pause },
        }
    }

    /// Asks for the leg that has been prepared.
    pub(super) fn start(&mut self, now: Duration) {
        self.state = State::Opening;
        self.leg.started = now;
        let LegState { number: leg, attempt, plan, .. } = self.leg;
        let body = std::mem::take(&mut self.leg.body);
        self.actions.push_back(Action::Start(LegStart { leg, attempt, plan, body }));
    }

    /// `None` while the client has got nothing that the next leg would have to fit.
    fn splice(&self, plan: &str, seam: Seam) -> Option<Splice> {
        let request = self.request.as_ref().filter(|_| self.first_event_seen)?;
        let recovered = match plan {
            AGAIN => Recovered::nothing(),
            _ => Recovered::of(&self.partial, request, &self.policy.ratios),
        };
        let client = ClientUsage::of(request, self.partial.usage.is_some());
        let head = self.partial.head.clone().unwrap_or_default();
        let splice = Splice::new(head, self.partial.reasoning_field, seam, client, recovered);
        Some(if self.partial.has_role() { splice } else { splice.awaiting_role() })
    }

    /// No leg follows: the stream ends here, and says how.
    fn give_up(&mut self, failure: Failure<'_>, stop: Stop, sink: &mut dyn Sink) {
        let Failure { cause, event, open } = failure;
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
        let wrapped = |data| serde_json::from_slice::<Object<'_>>(data).is_ok_and(|event| event.get("error").is_some());
        let is_error = matches!(cause, Cause::ErrorEvent { .. }) && event.is_some_and(|(_, data)| wrapped(data));
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
            let event = shown.map(|(name, data)| (name.map(str::to_owned), data.to_vec()));
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
        let data = splice::usage_chunk(head, &self.partial.usage_so_far(prompt, ratios));
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

//! Failures and ends: what follows when a leg is over.

use std::time::Duration;

use super::Relay;
use super::events::Flow;
use super::input::{Cause, Continuation, OnIncomplete};
use super::next::{Next, Stop};
use super::output::{Action, LegStart, Note};
use super::state::{LegState, Mirror, State};
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
                if open {
                    self.actions.push_back(Action::Abort);
                }
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
        let splice = self.splice(seam);
        self.partial.begin_leg();
        self.leg = LegState::new(number, attempt, plan, splice, now);
        self.state = State::Opening;
        self.actions.push_back(Action::Start(LegStart { leg: number, attempt, plan, body }));
    }

    /// `None` while the client has got nothing that the next leg would have to fit.
    fn splice(&self, seam: Seam) -> Option<Splice> {
        let (request, head) = (self.request.as_ref()?, self.partial.head.clone()?);
        let recovered = Recovered::of(&self.partial, request, &self.policy.ratios);
        let client = ClientUsage::of(request, self.partial.usage.is_some());
        Some(Splice::new(head, self.partial.reasoning_field, seam, client, recovered))
    }

    /// No leg follows: the stream ends here, and says how.
    fn give_up(&mut self, failure: Failure<'_>, stop: Stop, sink: &mut dyn Sink) {
        let Failure { cause, event, open } = failure;
        self.note(Note::NotContinued { why: stop.code() });
        if stop == Stop::NoPlan(Refused::BudgetSpent { exact: true }) {
            if open {
                self.actions.push_back(Action::Abort);
            }
            return self.finish_as_length(sink);
        }
        self.release(Note::ToolCallsReleased, sink);
        if self.policy.on_incomplete == OnIncomplete::Mirror {
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
            Some((name, data)) if open && self.leg.wrote => {
                self.state = State::Mirroring { done: false };
                let done = matches!(chat::parse(data), Ok(Parsed::Done));
                if done {
                    self.state = State::Mirroring { done };
                } else {
                    sink.append(Record::Whole { event: name, data });
                }
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
        let first = self.mirror.is_none() || self.leg.wrote;
        if self.policy.on_incomplete == OnIncomplete::Mirror && first {
            let end = match cause {
                Cause::Reset | Cause::Eof | Cause::Broken(_) => MirroredEnd::Cut,
                Cause::TooLong(_) | Cause::Stalled | Cause::Refused(_) => MirroredEnd::Cut,
                Cause::TornEvent | Cause::CleanEnd | Cause::Malformed(_) => MirroredEnd::Clean,
                Cause::ErrorEvent { .. } | Cause::Aborted | Cause::DoneWithoutFinish => MirroredEnd::Done,
                Cause::EmptyStop | Cause::Restarted => MirroredEnd::Done,
            };
            let shown = event.filter(|_| *cause != Cause::DoneWithoutFinish);
            let event = shown.map(|(name, data)| (name.map(str::to_owned), data.to_vec()));
            self.mirror = Some(Mirror { event, end });
        }
    }

    /// The token budget is spent to the last token, and only the finish reason was lost.
    fn finish_as_length(&mut self, sink: &mut dyn Sink) {
        if let Some(head) = &self.partial.head {
            let data = splice::finish_chunk(head, self.partial.shape(), &FinishReason::Length);
            sink.append(Record::Whole { event: None, data: &data });
        }
        self.finish(true, sink);
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

//! The relay: decides what a stream does next. Inputs are a leg's bytes, its end, and the time; outputs are records and a seal
//! (written straight into a [`Sink`]) and [`Action`]s. It never waits and never fails: whatever an engine does, the stream ends
//! with a seal that says how.
//!
//! Time is a [`Duration`] since the stream began, given as an argument with every input.

mod ends;
mod events;
mod guard;
mod hold;
mod input;
mod leg;
mod next;
mod output;
mod state;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

pub use input::{Cause, Continuation, LegEnd, OnIncomplete, Policy, Refusal};
pub use leg::{Completeness, KnownFrames, LegTracker, Told};
pub use output::{Action, LegStart, Note};

use self::ends::Failure;
use self::events::Flow;
use self::hold::Held;
use self::next::{Stop, is_about_the_request, lacks_endpoint};
use self::state::{LegState, Mirror, State};
use crate::proto::chat::{ChatRequest, Exclusion, Partial};
use crate::proto::record::{MirroredEnd, Seal, Sink};
use crate::proto::resume::{self, Engine, Family, PlanSet, Way};
use crate::proto::sse::{Decoder, Item, TooLong};

/// Longest wait for usage and `[DONE]` after the last finish reason; the tail is then written here.
const TAIL_WAIT: Duration = Duration::from_secs(5);

/// Longest time for all the questions before one leg.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// One stream's state machine.
///
/// ```text
///              handle_opened                every choice finished
///  Opening ───────────────────► Streaming ───────────────────────► Tail
///    ▲  │                          │  │                              │ [DONE], an end, an error, or time
///    │  │ handle_refused           │  └─────────┐ no way on          │
///    │  ▼                          ▼            ▼                    ▼
///    └─ another leg ◄────────── failed ──► Mirroring ────────────► Sealed
///       (Waiting before the third  │        (on_incomplete: mirror, and errors that are about
///        try and later; Asking,    │         the request itself)
///        where a plan has to know  │
///        where to go on; Start)    │
///                                  └── no way on: incomplete ───────► Sealed
/// ```
///
/// `handle_client_gone` and `handle_cancelled` lead to `Sealed` from everywhere. Inputs that do not fit the state are ignored: they can only come
/// from a leg that has already been given up.
#[derive(Debug)]
pub struct Relay {
    /// The client's request; `None`: not understood or too long to be kept, so that nothing is continued.
    request: Option<ChatRequest>,
    /// Why the request can never be continued, if so; known from the start.
    excluded: Option<Exclusion>,
    policy: Policy,
    /// How the model of the continuing upstream writes, and what serves it.
    family: Family,
    engine: Engine,
    /// What the request ids of continuations begin with.
    rid: String,
    /// The answer so far, as far as it was passed on or is held back.
    partial: Partial,
    /// The leg that writes, or is to write next.
    leg: LegState,
    /// Tool calls held back; set with the first of them, cleared when they are released or dropped.
    held: Option<Held>,
    /// The answer must have a prescribed form, and is continued all the same, since it is held back from its beginning.
    structured: bool,
    /// Tool calls, or the whole of a structured answer, are to be held back; cleared for good when they have outgrown their limit.
    may_hold: bool,
    state: State,
    /// What the shell has not fetched yet.
    actions: VecDeque<Action>,
    /// How the client's own leg ended; set at its failure if the policy is to mirror it.
    mirror: Option<Mirror>,
    /// When the stream lost its engine; cleared when text flows again.
    lost_at: Option<Duration>,
    /// A continuation has said `stop` at once, and another one is asked whether that is true.
    empty_stop: bool,
    /// This leg has sent the usage of the whole answer.
    usage_sent: bool,
    /// The engine lists token ids because Baton asked it, and the client is not to see them.
    hides_ids: bool,
    /// Kinds of plan that have turned out not to do for the leg that is due.
    spent: PlanSet,
    /// A data event has come, of any leg.
    first_event_seen: bool,
    /// Something was passed on that was not understood: the partial is not the answer, and will not be continued.
    blind: bool,
    /// How the stream ended; set with [`State::Sealed`].
    sealed: Option<Seal>,
}

impl Relay {
    /// A relay for a stream whose first leg, the client's own request, is being opened. `request` is `None` when the body could
    /// not be understood: the stream is then followed but never continued. `family` and `engine` are those of the upstream
    /// that continues; `rid` is a random string, from which request ids for continuations are made.
    pub fn new(request: Option<ChatRequest>, policy: Policy, family: Family, engine: Engine, rid: String) -> Self {
        let excluded = request.as_ref().and_then(|request| match policy.continuation {
            Continuation::On => policy.resume.rules_out(request),
            // Nothing is held back where nothing is continued.
            Continuation::Off | Continuation::Observe => request.exclusion(),
        });
        let structured = excluded.is_none() && request.as_ref().is_some_and(|request| request.exclusion().is_some());
        let choices = request.as_ref().map_or(1, ChatRequest::choices);
        let max_ids = policy.resume.max_prompt_tokens;
        let may_hold = (policy.tool_buffer.is_some() || structured)
            && policy.continuation == Continuation::On
            && request.is_some()
            && excluded.is_none();
        Relay {
            request,
            excluded,
            policy,
            family,
            engine,
            rid,
            partial: Partial::new(choices).keeping_ids(max_ids),
            leg: LegState::new(1, 1, "first", Duration::ZERO),
            held: None,
            structured,
            may_hold,
            state: State::Opening,
            actions: VecDeque::new(),
            mirror: None,
            lost_at: None,
            empty_stop: false,
            usage_sent: false,
            hides_ids: false,
            spent: PlanSet::default(),
            first_event_seen: false,
            blind: false,
            sealed: None,
        }
    }

    /// The answer has this many choices, where the relay has no request to know it from.
    pub fn expecting(mut self, choices: usize) -> Self {
        self.partial = Partial::new(choices).keeping_ids(self.policy.resume.max_prompt_tokens);
        self
    }

    /// Leg 1 asks for token ids that the client did not ask for (see [`resume::first`](crate::proto::resume::first)): they are taken
    /// out again. To be said before the leg is opened.
    pub fn hide_ids(&mut self) {
        self.hides_ids = true;
    }

    /// The engine that was asked has answered, with a JSON body or not.
    pub fn handle_answer(&mut self, now: Duration, answer: Result<Vec<u8>, Refusal>, sink: &mut dyn Sink) {
        let (State::Asking, Some(Way::Search(mut search))) = (self.state, self.leg.way.take()) else { return };
        match answer {
            Ok(body) => {
                search.told(&body);
                self.search(now, search, sink);
            }
            Err(Refusal::Status { .. }) if search.untold() => self.search(now, search, sink),
            // It has no such endpoint, or none for us.
            Err(refusal @ Refusal::Status { status, .. }) if is_about_the_request(status) => {
                if let Some(kind) = self.leg.kind.filter(|_| lacks_endpoint(&refusal)) {
                    self.bar(kind);
                }
                self.pass_over(now, Stop::RefusedByEngine(status), sink);
            }
            Err(refusal) => self.unanswered(now, Cause::Refused(refusal), sink),
        }
    }

    /// Nobody answers the question before a leg. That is a failed try like any other, but for the last one: then a plan that need not
    /// ask is better than none.
    fn unanswered(&mut self, now: Duration, cause: Cause, sink: &mut dyn Sink) {
        if self.leg.attempt < self.policy.attempts {
            return self.failed(now, Failure { cause, event: None, open: true }, sink);
        }
        self.actions.push_back(Action::Abort);
        self.pass_over(now, Stop::Attempts(self.leg.attempt), sink);
    }

    /// The leg that was asked for has answered with an event stream.
    pub fn handle_opened(&mut self, _now: Duration) {
        if self.state == State::Opening {
            self.state = State::Streaming;
            self.leg.decoder = Some(Decoder::new(self.policy.max_event + self.room_for_ids()));
        }
    }

    /// What a leg's first event may be longer because it lists the prompt's ids. A token is a byte of the request or of the answer at
    /// least, but for those of a chat template, which may be far longer than both. It takes up to eight bytes in a list.
    fn room_for_ids(&self) -> usize {
        const ID: usize = 8;
        const TEMPLATE: usize = 32 * 1024;
        let lists = self.hides_ids || self.request.as_ref().is_some_and(resume::shows_ids);
        let text: usize = self.known().choices.iter().map(|choice| choice.reasoning.len() + choice.content.len()).sum();
        let request = self.request.as_ref().map_or(0, ChatRequest::size);
        let tokens = (request + text + TEMPLATE).max(self.policy.resume.max_prompt_tokens);
        if lists { tokens * ID } else { 0 }
    }

    /// The leg that was asked for gave no event stream.
    pub fn handle_refused(&mut self, now: Duration, refusal: Refusal, sink: &mut dyn Sink) {
        if self.state == State::Opening {
            self.failed(now, Failure { cause: Cause::Refused(refusal), event: None, open: false }, sink);
        }
    }

    /// Leg 1 gave no event stream, for which the client has a response already.
    pub fn handle_declined(&mut self, refusal: Refusal, sink: &mut dyn Sink) {
        if self.state == State::Opening && self.leg.number == 1 {
            self.decline(refusal, sink);
        }
    }

    /// The next bytes of the leg's response body, split anywhere.
    pub fn handle_bytes(&mut self, now: Duration, bytes: &[u8], sink: &mut dyn Sink) {
        if matches!(self.state, State::Waiting { .. } | State::Asking | State::Opening | State::Sealed) {
            return;
        }
        let Some(mut decoder) = self.leg.decoder.take() else { return };
        let mut events = decoder.feed(bytes);
        while let Some(item) = events.next() {
            let flow = match item {
                Ok(Item::Event(event)) => self.on_event(now, &event, sink),
                Ok(Item::Comment(_)) => Flow::Read,
                Err(TooLong { limit, .. }) => {
                    self.failed(now, Failure { cause: Cause::TooLong(limit), event: None, open: true }, sink);
                    Flow::Stop
                }
            };
            if flow == Flow::Stop {
                return; // the decoder belonged to a leg that is over
            }
        }
        if self.leg.last_data.is_some() {
            // Only a leg's first event lists the prompt's ids.
            decoder.set_max_event(self.policy.max_event);
        }
        self.leg.decoder = Some(decoder);
    }

    /// The leg's response body has ended.
    pub fn handle_end(&mut self, now: Duration, end: LegEnd, sink: &mut dyn Sink) {
        let torn = self.leg.decoder.take().is_some_and(|decoder| decoder.is_mid_event());
        match self.state {
            State::Waiting { .. } | State::Asking | State::Opening | State::Sealed => {}
            State::Tail => self.finish(true, sink),
            State::Mirroring { done } => {
                let end = match end {
                    LegEnd::Reset | LegEnd::Eof | LegEnd::Broken(_) => MirroredEnd::Cut,
                    LegEnd::Clean if done => MirroredEnd::Done,
                    LegEnd::Clean => MirroredEnd::Clean,
                };
                self.seal_with(Seal::Mirrored(end), sink);
            }
            // The engine has ended in order; whether its answer is whole only the client can tell.
            State::Streaming if self.blind && end == LegEnd::Clean && !torn => {
                self.release(Note::ToolCallsReleased, sink);
                self.seal_with(Seal::Mirrored(MirroredEnd::Clean), sink);
            }
            State::Streaming => {
                let cause = match end {
                    LegEnd::Reset => Cause::Reset,
                    LegEnd::Eof => Cause::Eof,
                    LegEnd::Broken(words) => Cause::Broken(words),
                    LegEnd::Clean if torn => Cause::TornEvent,
                    LegEnd::Clean => Cause::CleanEnd,
                };
                self.failed(now, Failure { cause, event: None, open: false }, sink);
            }
        }
    }

    /// When [`handle_deadline`](Self::handle_deadline) is to be called at the latest; `None`: only bytes can change anything.
    pub fn deadline(&self) -> Option<Duration> {
        let leg = &self.leg;
        match self.state {
            State::Sealed | State::Mirroring { .. } => None,
            State::Waiting { until } => Some(until),
            State::Tail => Some(leg.last_data.unwrap_or(leg.started) + self.policy.idle.min(TAIL_WAIT)),
            State::Asking => Some(leg.started + self.policy.idle.min(ANSWER_WAIT)),
            State::Opening | State::Streaming if leg.stall_accepted => None,
            State::Opening | State::Streaming => match leg.last_data {
                Some(last) => Some(last + self.policy.idle),
                // The stall timer runs only after the stream's first data event, which later legs have behind them.
                None if leg.number > 1 => Some(leg.started + self.policy.idle),
                None => None,
            },
        }
    }

    /// The time has come that [`deadline`](Self::deadline) named. Early calls change nothing.
    pub fn handle_deadline(&mut self, now: Duration, sink: &mut dyn Sink) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        let stalled = Failure { cause: Cause::Stalled, event: None, open: true };
        match self.state {
            State::Waiting { .. } => self.start(now, sink),
            State::Asking => self.unanswered(now, Cause::Stalled, sink),
            State::Tail => {
                self.actions.push_back(Action::Abort);
                self.finish(true, sink);
            }
            // An attempt that has brought nothing yet may be given up at any time: nothing is lost with it.
            _ if self.leg.number > 1 && !self.leg.wrote => self.failed(now, stalled, sink),
            // Without an answer a silence may be a long prompt that is still being read, and there is nothing to go on from.
            _ if !self.has_begun() => self.leg.stall_accepted = true,
            _ => match self.next(&Cause::Stalled) {
                Ok(_) if self.policy.continuation == Continuation::On => self.failed(now, stalled, sink),
                // A later leg is Baton's own, and its end is for Baton to say.
                Err(_) if self.leg.number > 1 => self.failed(now, stalled, sink),
                Ok(next) => {
                    self.leg.stall_accepted = true;
                    self.note(Note::Observed { cause: Cause::Stalled.code(), plan: next.plan() });
                }
                Err(_) => self.leg.stall_accepted = true,
            },
        }
    }

    /// Something has been answered, shown or held back: text, or a tool call.
    fn has_begun(&self) -> bool {
        self.known().has_text() || self.partial.has_tool_call() || self.holds_answer()
    }

    /// An answer is held back from its beginning, so that it may as well begin once more.
    fn holds_answer(&self) -> bool {
        self.structured && self.held.is_some()
    }

    /// The client has gone and nobody will come back for the answer: the engine is told to stop.
    pub fn handle_client_gone(&mut self, sink: &mut dyn Sink) {
        self.stop(Seal::Abandoned, sink);
    }

    /// The client does not want the rest: the engine is told to stop.
    pub fn handle_cancelled(&mut self, sink: &mut dyn Sink) {
        self.stop(Seal::Cancelled, sink);
    }

    fn stop(&mut self, seal: Seal, sink: &mut dyn Sink) {
        if self.state != State::Sealed {
            self.actions.push_back(Action::Abort);
            self.seal_with(seal, sink);
        }
    }

    /// The next thing to do; to be asked until `None` after every input.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The stream has its seal.
    pub fn is_sealed(&self) -> bool {
        self.state == State::Sealed
    }

    /// How the stream ended, once it has.
    pub fn seal(&self) -> Option<&Seal> {
        self.sealed.as_ref()
    }

    /// What has been generated and passed on, or is held back, so far.
    pub fn partial(&self) -> &Partial {
        &self.partial
    }

    /// Number of the current leg, from 1.
    pub fn leg(&self) -> u32 {
        self.leg.number
    }

    /// Tokens generated so far, by whatever leg; an estimate where the engines did not count.
    pub fn completion_tokens(&self) -> u64 {
        self.partial.completion_tokens(&self.policy.ratios).tokens
    }

    /// How many legs have brought something of the answer.
    pub fn legs_written(&self) -> u32 {
        self.leg.number - u32::from(!self.leg.wrote)
    }

    /// The plan of the current leg; `"first"` for the client's own request.
    pub fn plan(&self) -> &'static str {
        self.leg.plan
    }
}

//! The relay: decides what a stream does next. Inputs are a leg's bytes, its end, and the time; outputs are records and a seal
//! (written straight into a [`Sink`]) and [`Action`]s. It never waits and never fails: whatever an engine does, the stream ends
//! with a seal that says how.
//!
//! Time is a [`Duration`] since the stream began, given as an argument with every input.

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

use self::hold::Held;
use self::next::{Next, Stop};
use self::state::{LegState, Mirror, OutFrame, State};
use crate::proto::chat::{
    self, ChatRequest, Chunk, ClientUsage, Exclusion, FinishReason, Malformed, OriginalPrompt, Parsed, Partial,
    Recovered,
};
use crate::proto::record::{MirroredEnd, Record, Seal, Sink};
use crate::proto::resume::{Engine, Family, Refused};
use crate::proto::splice::{self, Seam, Splice};
use crate::proto::sse::{Decoder, Event, Item, TooLong};

/// Longest wait for usage and `[DONE]` after the last finish reason; the tail is then written here.
const TAIL_WAIT: Duration = Duration::from_secs(5);

/// Events of one leg that are not chat chunks and are left out; with one more the leg has failed.
const MAX_MALFORMED: u32 = 3;

/// One stream's state machine.
///
/// ```text
///              handle_opened                every choice finished
///  Opening ───────────────────► Streaming ───────────────────────► Tail
///    ▲  │                          │  │                              │ [DONE], an end, an error, or time
///    │  │ handle_refused           │  └─────────┐ no way on          │
///    │  ▼                          ▼            ▼                    ▼
///    └─ another leg ◄────────── failed ──► Mirroring ────────────► Sealed
///         (Start)                  │        (only on_incomplete: mirror)
///                                  └── no way on: incomplete ───────► Sealed
/// ```
///
/// `handle_client_gone` leads to `Sealed` from everywhere. Inputs that do not fit the state are ignored: they can only come
/// from a leg that has already been given up.
#[derive(Debug)]
pub struct Relay {
    request: Option<ChatRequest>,
    excluded: Option<Exclusion>,
    policy: Policy,
    family: Family,
    engine: Engine,
    rid: String,
    partial: Partial,
    leg: LegState,
    held: Option<Held>,
    may_hold: bool,
    state: State,
    actions: VecDeque<Action>,
    mirror: Option<Mirror>,
    /// When the stream lost its engine; cleared when text flows again.
    lost_at: Option<Duration>,
    /// A continuation has said `stop` at once, and another one is asked whether that is true.
    empty_stop: bool,
    usage_sent: bool,
    first_event_seen: bool,
    sealed: Option<Seal>,
}

/// Whether the rest of a leg's bytes is still to be read.
#[derive(PartialEq, Eq)]
enum Flow {
    Read,
    Stop,
}

/// A failure, as far as it is known at the place where it shows.
struct Failure<'a> {
    cause: Cause,
    /// The event that showed it, which only a mirror passes on.
    event: Option<(Option<&'a str>, &'a [u8])>,
    /// The leg's connection is still open.
    open: bool,
}

impl Relay {
    /// A relay for a stream whose first leg, the client's own request, is being opened. `request` is `None` when the body could
    /// not be understood: the stream is then followed but never continued. `family` and `engine` are those of the upstream
    /// that continues; `rid` is a random string, from which request ids for continuations are made.
    pub fn new(request: Option<ChatRequest>, policy: Policy, family: Family, engine: Engine, rid: String) -> Self {
        let excluded = request.as_ref().and_then(ChatRequest::exclusion);
        let choices = request.as_ref().map_or(1, ChatRequest::choices);
        let may_hold = policy.tool_buffer.is_some()
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
            partial: Partial::new(choices),
            leg: LegState::new(1, 1, "first", None, Duration::ZERO),
            held: None,
            may_hold,
            state: State::Opening,
            actions: VecDeque::new(),
            mirror: None,
            lost_at: None,
            empty_stop: false,
            usage_sent: false,
            first_event_seen: false,
            sealed: None,
        }
    }

    /// The leg that was asked for has answered with an event stream.
    pub fn handle_opened(&mut self, _now: Duration) {
        if self.state == State::Opening {
            self.state = State::Streaming;
            self.leg.decoder = Some(Decoder::new(self.policy.max_event));
        }
    }

    /// The leg that was asked for gave no event stream.
    pub fn handle_refused(&mut self, now: Duration, refusal: Refusal, sink: &mut dyn Sink) {
        if self.state == State::Opening {
            self.failed(now, Failure { cause: Cause::Refused(refusal), event: None, open: false }, sink);
        }
    }

    /// The next bytes of the leg's response body, split anywhere.
    pub fn handle_bytes(&mut self, now: Duration, bytes: &[u8], sink: &mut dyn Sink) {
        if matches!(self.state, State::Opening | State::Sealed) {
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
        self.leg.decoder = Some(decoder);
    }

    /// The leg's response body has ended.
    pub fn handle_end(&mut self, now: Duration, end: LegEnd, sink: &mut dyn Sink) {
        let torn = self.leg.decoder.take().is_some_and(|decoder| decoder.is_mid_event());
        match self.state {
            State::Opening | State::Sealed => {}
            State::Tail => self.finish(true, sink),
            State::Mirroring { done } => {
                let end = match end {
                    LegEnd::Cut(_) => MirroredEnd::Cut,
                    LegEnd::Clean if done => MirroredEnd::Done,
                    LegEnd::Clean => MirroredEnd::Clean,
                };
                self.seal_with(Seal::Mirrored(end), sink);
            }
            State::Streaming => {
                let cause = match end {
                    LegEnd::Cut(words) => Cause::Cut(words),
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
            State::Tail => Some(leg.last_data.unwrap_or(leg.started) + self.policy.idle.min(TAIL_WAIT)),
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
            State::Tail => {
                self.actions.push_back(Action::Abort);
                self.finish(true, sink);
            }
            // An attempt that has brought nothing yet may be given up at any time: nothing is lost with it.
            _ if self.leg.number > 1 && !self.leg.wrote => self.failed(now, stalled, sink),
            // Without text a silence may be a long prompt that is still being read, and there is nothing to go on from.
            _ if !self.known().has_text() || self.next(&Cause::Stalled).is_err() => self.leg.stall_accepted = true,
            _ if self.policy.continuation == Continuation::On => self.failed(now, stalled, sink),
            _ => {
                self.leg.stall_accepted = true;
                self.note(Note::Observed { cause: Cause::Stalled.code() });
            }
        }
    }

    /// The client has gone and nobody will come back for the answer: the engine is told to stop.
    pub fn handle_client_gone(&mut self, sink: &mut dyn Sink) {
        if self.state != State::Sealed {
            self.actions.push_back(Action::Abort);
            self.seal_with(Seal::Abandoned, sink);
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

    /// The plan of the current leg; `"first"` for the client's own request.
    pub fn plan(&self) -> &'static str {
        self.leg.plan
    }
}

/// One event of a leg.
impl Relay {
    fn on_event(&mut self, now: Duration, event: &Event<'_>, sink: &mut dyn Sink) -> Flow {
        if let State::Mirroring { .. } = self.state {
            self.mirror_event(event, sink);
            return Flow::Read;
        }
        match Told::read(&mut self.leg.frames, event.data) {
            Told::Text { frame, kind: _, text } => self.on_text(now, frame, text, event, sink),
            Told::Chunk(chunk) => self.on_chunk(now, &chunk, event, sink),
            Told::Done if self.partial.is_finished() => {
                self.finish(false, sink);
                Flow::Stop
            }
            Told::Done => self.failed_at(now, Cause::DoneWithoutFinish, event, sink),
            Told::Error(error) => {
                self.failed_at(now, Cause::ErrorEvent { code: error.code, message: error.message }, event, sink)
            }
            Told::Malformed(why) => self.on_malformed(now, why, event, sink),
        }
    }

    /// The fast path: one string in a frame that is known.
    fn on_text(&mut self, now: Duration, frame: usize, text: &[u8], event: &Event<'_>, sink: &mut dyn Sink) -> Flow {
        let (id, kind) = match self.leg.out.get(frame) {
            Some(out) if self.held.is_none() => (out.id, out.kind),
            _ => return self.on_unframed(now, event, sink),
        };
        if self.partial.push_text(kind, text).is_err() {
            return self.on_unframed(now, event, sink); // a parse says what is wrong with it
        }
        match (id, self.leg.out.get(frame)) {
            (None, Some(out)) => {
                let data = [&*out.frame.prefix, text, &*out.frame.suffix].concat();
                sink.append(Record::Whole { event: event.event, data: &data });
            }
            (None, None) => sink.append(Record::Whole { event: event.event, data: event.data }),
            (Some(frame), _) => sink.append(Record::Framed { frame, text }),
        }
        self.progressed(now, true);
        Flow::Read
    }

    /// An event in a known frame that cannot take the fast path now.
    fn on_unframed(&mut self, now: Duration, event: &Event<'_>, sink: &mut dyn Sink) -> Flow {
        match chat::parse(event.data) {
            Ok(Parsed::Chunk(chunk)) => self.on_chunk(now, &chunk, event, sink),
            Ok(_) => Flow::Read,
            Err(why) => self.on_malformed(now, why, event, sink),
        }
    }

    fn on_chunk(&mut self, now: Duration, chunk: &Chunk<'_>, event: &Event<'_>, sink: &mut dyn Sink) -> Flow {
        if chunk.choices.iter().any(|choice| choice.finish_reason == Some(FinishReason::Abort)) {
            return self.failed_at(now, Cause::Aborted, event, sink);
        }
        if self.is_doubtful_stop(chunk) {
            self.empty_stop = true;
            return self.failed_at(now, Cause::EmptyStop, event, sink);
        }
        let Some(splice) = self.leg.splice.as_mut() else {
            self.deliver(now, chunk, event.event, event.data, sink);
            self.learn(event.data, event.data, sink);
            return Flow::Read;
        };
        let rewritten = match splice.rewrite(event.data) {
            Ok(Some(rewritten)) => rewritten,
            Ok(None) => {
                self.progressed(now, false);
                return Flow::Read;
            }
            Err(why) => return self.on_malformed(now, why, event, sink),
        };
        let settled = splice.is_settled();
        match chat::parse(&rewritten) {
            Ok(Parsed::Chunk(chunk)) => self.deliver(now, &chunk, event.event, &rewritten, sink),
            Ok(_) => {}
            Err(why) => return self.on_malformed(now, why, event, sink),
        }
        if settled {
            self.learn(event.data, &rewritten, sink);
        }
        Flow::Read
    }

    /// A continuation whose first word is `stop`. Right if the cut came between the last text and the finish reason; wrong if
    /// the engine has closed the turn by mistake (vllm#46256, sglang#12140). A second engine's word decides.
    fn is_doubtful_stop(&self, chunk: &Chunk<'_>) -> bool {
        self.leg.number > 1
            && !self.leg.wrote
            && !self.empty_stop
            && self.known().has_text()
            && chunk.choices.iter().any(|choice| choice.finish_reason == Some(FinishReason::Stop))
            && !chunk.choices.iter().any(|choice| choice.has_output())
    }

    /// Passes on one chunk in its final form, or holds it back.
    fn deliver(&mut self, now: Duration, chunk: &Chunk<'_>, event: Option<&str>, data: &[u8], sink: &mut dyn Sink) {
        let calls = chunk.choices.iter().any(|choice| !choice.tool_calls.is_empty());
        if calls && self.may_hold && self.held.is_none() {
            self.held = Some(Held::new(self.partial.clone()));
        }
        self.partial.fold(chunk);
        self.usage_sent |= chunk.choices.is_empty() && chunk.usage.is_some();
        let holding = match (&mut self.held, self.policy.tool_buffer) {
            (Some(held), Some(limit)) => Some(held.push(event, data, limit)),
            _ => None,
        };
        match holding {
            None => sink.append(Record::Whole { event, data }),
            Some(true) => {}
            Some(false) => {
                self.may_hold = false;
                self.release(Note::ToolBufferFull, sink);
            }
        }
        if self.partial.is_finished() {
            self.release(Note::ToolCallsReleased, sink);
            self.state = State::Tail;
        }
        let wrote = chunk.choices.iter().any(|choice| choice.has_output() || choice.finish_reason.is_some());
        self.progressed(now, wrote && self.held.is_none());
    }

    /// A data event has come; `wrote` when it brought something of the answer to the client.
    fn progressed(&mut self, now: Duration, wrote: bool) {
        self.leg.last_data = Some(now);
        self.leg.stall_accepted = false;
        if !self.first_event_seen {
            self.first_event_seen = true;
            self.note(Note::FirstEvent { after: now });
        }
        if wrote {
            self.leg.wrote = true;
            if let Some(lost_at) = self.lost_at.take() {
                let (leg, plan) = (self.leg.number, self.leg.plan);
                self.note(Note::Continued { leg, plan, gap: now.saturating_sub(lost_at) });
            }
        }
    }

    /// Remembers the frame of an event and what it became, so that the next one like it needs no parse.
    fn learn(&mut self, data: &[u8], rewritten: &[u8], sink: &mut dyn Sink) {
        let Some(out) = chat::learn(rewritten) else { return };
        if self.leg.frames.learn(data).is_some() {
            let id = sink.define(out.frame.clone());
            self.leg.out.push(OutFrame { id, kind: out.kind, frame: out.frame });
        }
    }

    /// Not a chat chunk. Without a continuation to protect it goes through as it is; otherwise it is left out and noted, and a
    /// leg that sends several has failed.
    fn on_malformed(&mut self, now: Duration, why: Malformed, event: &Event<'_>, sink: &mut dyn Sink) -> Flow {
        self.note(Note::Malformed(why.to_string()));
        self.leg.malformed += 1;
        if self.request.is_none() || self.excluded.is_some() || self.policy.continuation != Continuation::On {
            sink.append(Record::Whole { event: event.event, data: event.data });
            Flow::Read
        } else if self.leg.malformed > MAX_MALFORMED {
            self.failed_at(now, Cause::Malformed(why), event, sink)
        } else {
            Flow::Read
        }
    }

    fn mirror_event(&mut self, event: &Event<'_>, sink: &mut dyn Sink) {
        if matches!(chat::parse(event.data), Ok(Parsed::Done)) {
            self.state = State::Mirroring { done: true };
        } else {
            sink.append(Record::Whole { event: event.event, data: event.data });
        }
    }
}

/// Failures and ends.
impl Relay {
    fn failed_at(&mut self, now: Duration, cause: Cause, event: &Event<'_>, sink: &mut dyn Sink) -> Flow {
        let shown = Some((event.event, event.data));
        self.failed(now, Failure { cause, event: shown, open: true }, sink);
        if matches!(self.state, State::Mirroring { .. }) { Flow::Read } else { Flow::Stop }
    }

    fn failed(&mut self, now: Duration, failure: Failure<'_>, sink: &mut dyn Sink) {
        let Failure { cause, event, open } = failure;
        if self.partial.is_finished() {
            if open {
                self.actions.push_back(Action::Abort);
            }
            return self.finish(true, sink);
        }
        let next = match self.next(&cause) {
            Ok(_) if self.policy.continuation == Continuation::Observe => {
                self.note(Note::Observed { cause: cause.code() });
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
                Cause::Cut(_) | Cause::TooLong(_) | Cause::Stalled | Cause::Refused(_) => MirroredEnd::Cut,
                Cause::TornEvent | Cause::CleanEnd | Cause::Malformed(_) => MirroredEnd::Clean,
                Cause::ErrorEvent { .. } | Cause::Aborted | Cause::DoneWithoutFinish | Cause::EmptyStop => {
                    MirroredEnd::Done
                }
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
    fn finish(&mut self, repair: bool, sink: &mut dyn Sink) {
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

    fn release(&mut self, note: Note, sink: &mut dyn Sink) {
        if let Some(held) = self.held.take() {
            self.note(note);
            held.release(sink);
        }
    }

    fn seal_with(&mut self, seal: Seal, sink: &mut dyn Sink) {
        self.state = State::Sealed;
        self.sealed = Some(seal.clone());
        sink.seal(seal);
    }

    fn note(&mut self, note: Note) {
        self.actions.push_back(Action::Note(note));
    }
}

//! One event of a leg: what it does to the partial, and in which form it goes on.

use std::borrow::Cow;
use std::time::Duration;

use super::Relay;
use super::guard::{Probation, Verdict, guarded};
use super::hold::Held;
use super::input::{Cause, Continuation};
use super::leg::Told;
use super::output::Note;
use super::state::{OutFrame, State};
use crate::proto::chat::{
    self, ChatRequest, Chunk, ChunkChoice, Filling, FinishReason, Malformed, Parsed, Phase, TokenIds,
};
use crate::proto::record::{MirroredEnd, Record, Seal, Sink};
use crate::proto::resume::PlanKind;
use crate::proto::splice::{NotSpliced, Splice, hide_ids};
use crate::proto::sse::Event;

/// Whether the rest of a leg's bytes is still to be read.
#[derive(PartialEq, Eq)]
pub(super) enum Flow {
    Read,
    Stop,
}

impl Relay {
    pub(super) fn on_event(&mut self, now: Duration, event: &Event<'_>, sink: &mut dyn Sink) -> Flow {
        if let State::Mirroring { .. } = self.state {
            self.mirror_event(event, sink);
            return Flow::Read;
        }
        match Told::read(&mut self.leg.frames, event.data) {
            Told::Text { frame, filling } => self.on_text(now, frame, filling, event, sink),
            Told::Chunk(chunk) => self.on_chunk(now, &chunk, event, sink),
            Told::Done if self.partial.is_finished() => {
                self.finish(false, sink);
                Flow::Stop
            }
            Told::Done if self.blind => {
                // The engine has said all it had to say; whether that was a whole answer only the client can tell.
                self.release(Note::ToolCallsReleased, sink);
                self.seal_with(Seal::Mirrored(MirroredEnd::Done), sink);
                Flow::Stop
            }
            Told::Done => self.failed_at(now, Cause::DoneWithoutFinish, event, sink),
            Told::Error(error) => {
                let chat::EngineError { code, kind, message } = error;
                self.failed_at(now, Cause::ErrorEvent { code, kind, message }, event, sink)
            }
            Told::Malformed(why) => self.on_malformed(now, why, event, sink),
        }
    }

    /// The fast path: one string in a frame that is known.
    fn on_text(
        &mut self,
        now: Duration,
        frame: usize,
        filling: Filling<'_>,
        event: &Event<'_>,
        sink: &mut dyn Sink,
    ) -> Flow {
        let out = match self.leg.out.get(frame) {
            // A frame is of the event's data; an event with a name is kept whole.
            Some(out) if self.held.is_none() && event.event.is_none() => out,
            _ => return self.on_unframed(now, event, sink),
        };
        if self.partial.push_text(out.frame.kind, filling.text, filling.ids).is_err() {
            return self.on_unframed(now, event, sink); // a parse says what is wrong with it
        }
        match out.id {
            Some(frame) => sink.append(Record::Framed { frame, text: filling.text }),
            None if self.leg.splice.is_some() || self.hides_ids => {
                sink.append(Record::Whole { event: event.event, data: &out.frame.fill(filling) });
            }
            None => sink.append(Record::Whole { event: event.event, data: event.data }),
        }
        self.progressed(now, true);
        self.continued(now);
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
        if let Some((ids, onward)) = self.leg.echo.take() {
            let echo = chunk.prompt_token_ids.as_ref().and_then(|list| TokenIds::read(list.json()));
            if echo.is_none_or(|echo| echo != ids) {
                return self.failed_at(now, Cause::NoEcho, event, sink);
            }
            self.partial.begin_leg(onward);
        }
        self.partial.hear(chunk);
        if self.is_doubtful_stop(chunk) {
            self.empty_stop = true;
            return self.failed_at(now, Cause::EmptyStop, event, sink);
        }
        let Some(splice) = self.leg.splice.as_mut() else {
            self.deliver(now, chunk, event.event, event.data, sink);
            // With usage in it, no event is like another.
            if chunk.usage.is_none() {
                self.learn(event, event.data, sink);
            }
            return Flow::Read;
        };
        match guarded("splice", || splice.rewrite(event.data)) {
            Ok(Ok(Some(rewritten))) => self.on_rewritten(now, event, &rewritten, sink),
            Ok(Ok(None)) => {
                self.progressed(now, false);
                Flow::Read
            }
            Ok(Err(NotSpliced::Malformed(why))) => self.on_malformed(now, why, event, sink),
            Ok(Err(NotSpliced::Diverged)) => self.failed_at(now, Cause::Diverged, event, sink),
            Err(place) => self.failed_at(now, Cause::Fault(place), event, sink),
        }
    }

    /// A later leg's event in the form that the client is to see.
    fn on_rewritten(&mut self, now: Duration, event: &Event<'_>, rewritten: &[u8], sink: &mut dyn Sink) -> Flow {
        let chunk = match chat::parse(rewritten) {
            Ok(Parsed::Chunk(chunk)) => chunk,
            Ok(_) => return Flow::Read,
            Err(why) => return self.on_malformed(now, why, event, sink),
        };
        if let Some(probation) = &mut self.leg.probation {
            match probation.judge(&chunk) {
                Verdict::Silent if !probation.holds() => {}
                Verdict::Silent | Verdict::Repeats => {
                    probation.hold(event.event, rewritten);
                    self.progressed(now, false);
                    return Flow::Read;
                }
                Verdict::Restarted => return self.failed_at(now, Cause::Restarted, event, sink),
                Verdict::GoesOn => self.pass_probation(now, sink),
            }
        }
        self.deliver(now, &chunk, event.event, rewritten, sink);
        let settled = self.leg.probation.is_none() && self.leg.splice.as_ref().is_some_and(Splice::is_settled);
        if settled && chunk.usage.is_none() {
            self.learn(event, rewritten, sink);
        }
        Flow::Read
    }

    /// The leg goes on where the answer was cut: what was held back until that was clear is passed on.
    fn pass_probation(&mut self, now: Duration, sink: &mut dyn Sink) {
        let Some(probation) = self.leg.probation.take() else { return };
        for (event, data) in probation.into_held() {
            if let Ok(Parsed::Chunk(chunk)) = chat::parse(&data) {
                self.deliver(now, &chunk, event.as_deref(), &data, sink);
            }
        }
    }

    /// A continuation whose first word is `stop`. Right if the cut came between the last text and the finish reason; wrong if
    /// the engine has closed the turn by mistake (vllm#46256, sglang#12140). A second engine's word decides, but none is
    /// believed where the answer has not begun yet.
    fn is_doubtful_stop(&self, chunk: &Chunk<'_>) -> bool {
        let confirmed = self.empty_stop && self.known().phase() == Phase::Content;
        let holds = self.leg.probation.as_ref().is_some_and(Probation::holds)
            || self.leg.splice.as_ref().is_some_and(Splice::holds);
        // One that goes on from ids knows where it is.
        self.leg.number > 1
            && !matches!(self.leg.kind, Some(PlanKind::TokenExact | PlanKind::RenderGenerate))
            && !self.leg.wrote
            && !holds
            && !confirmed
            && self.known().has_text()
            && chunk.choices.iter().any(|choice| choice.finish_reason == Some(FinishReason::Stop))
            && !chunk.choices.iter().any(|choice| choice.has_output())
    }

    /// Passes on one chunk in its final form, or holds it back.
    pub(super) fn deliver(
        &mut self,
        now: Duration,
        chunk: &Chunk<'_>,
        event: Option<&str>,
        data: &[u8],
        sink: &mut dyn Sink,
    ) {
        let calls = chunk.choices.iter().any(|choice| !choice.tool_calls.is_empty());
        let says = |choice: &ChunkChoice<'_>| choice.content.as_ref().is_some_and(|text| !text.is_empty());
        let holds = calls || self.structured && chunk.choices.iter().any(says);
        if holds && self.may_hold && self.held.is_none() {
            self.held = Some(Held::new(self.partial.clone()));
        }
        self.partial.show(chunk);
        let finishes = |choice: &ChunkChoice<'_>| choice.finish_reason.is_some();
        // Beside the finish reason it is the whole answer's, unless every chunk has some.
        let last = chunk.choices.iter().all(finishes) && (chunk.choices.is_empty() || !self.counts_along());
        self.usage_sent |= chunk.usage.is_some() && last;
        // A reason that is not in the list has been shown now, so there can be no other after it.
        self.blind |= chunk.choices.iter().any(|choice| matches!(choice.finish_reason, Some(FinishReason::Other(_))));
        let Some(data) = shown(self.hides_ids, data) else { return self.progressed(now, false) };
        let data = &*data;
        let limit = self.policy.tool_buffer.or(self.policy.structured_buffer);
        let holding = match (&mut self.held, limit) {
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
        // A choice that nobody asked for may begin after the others have ended.
        self.state = if self.partial.is_finished() { State::Tail } else { State::Streaming };
        if self.state == State::Tail {
            self.release(Note::ToolCallsReleased, sink);
        }
        let shown = self.held.is_none();
        let wrote = chunk.choices.iter().any(|choice| choice.has_output() || finishes(choice));
        self.progressed(now, wrote && shown);
        if shown && chunk.choices.iter().any(ChunkChoice::has_output) {
            self.continued(now);
        }
    }

    fn counts_along(&self) -> bool {
        self.request.as_ref().is_some_and(ChatRequest::continuous_usage)
    }

    /// A data event has come; `wrote` when it brought something of the answer to the client.
    pub(super) fn progressed(&mut self, now: Duration, wrote: bool) {
        self.leg.last_data = Some(now);
        self.leg.stall_accepted = false;
        if !self.first_event_seen {
            self.first_event_seen = true;
            self.note(Note::FirstEvent { after: now });
        }
        self.leg.wrote |= wrote;
        if wrote {
            self.leg.before = None;
        }
    }

    /// An event's data as the client sees it, if it sees it at all.
    pub(super) fn shown<'d>(&self, data: &'d [u8]) -> Option<Cow<'d, [u8]>> {
        shown(self.hides_ids, data)
    }

    /// Text flows again, if it had stopped.
    fn continued(&mut self, now: Duration) {
        if let Some(lost_at) = self.lost_at.take() {
            let (leg, plan) = (self.leg.number, self.leg.plan);
            self.note(Note::Continued { leg, plan, gap: now.saturating_sub(lost_at) });
        }
    }

    /// Remembers the frame of an event and what it became, so that the next one like it needs no parse.
    fn learn(&mut self, event: &Event<'_>, rewritten: &[u8], sink: &mut dyn Sink) {
        if event.event.is_some() || self.leg.frames.find(event.data).is_some() {
            return;
        }
        let Some(data) = self.shown(rewritten) else { return };
        let Some(shown) = chat::learn(&data) else { return };
        let Some(own) = chat::learn(event.data) else { return };
        let number = self.leg.frames.remember(own);
        let out = OutFrame { id: shown.to_record().and_then(|frame| sink.define(frame)), frame: shown };
        match self.leg.out.get_mut(number) {
            Some(old) => *old = out,
            None => self.leg.out.push(out),
        }
    }

    /// Not a chat chunk. It may hold a piece of the answer, so it is never just left out: where the answer can be continued the
    /// leg has failed; where it cannot, the client gets the event as it is, and the partial, which lacks it, is not to be
    /// continued later either. Noted once: an engine may send nothing else.
    fn on_malformed(&mut self, now: Duration, why: Malformed, event: &Event<'_>, sink: &mut dyn Sink) -> Flow {
        let ours = self.leg.splice.is_some();
        // Events without data say nothing, and what follows a finished answer is not of it.
        let says_nothing = event.data.trim_ascii().is_empty() || self.partial.is_finished();
        if says_nothing && (ours || self.held.is_some()) {
            return Flow::Read;
        }
        if !says_nothing {
            if !self.blind {
                self.note(Note::Malformed { leg: self.leg.number, why: why.clone() });
            }
            let cause = Cause::Malformed(why);
            if ours || (self.policy.continuation == Continuation::On && self.next(&cause).is_ok()) {
                return self.failed_at(now, cause, event, sink);
            }
            self.blind = true;
        }
        self.release(Note::ToolCallsReleased, sink);
        sink.append(Record::Whole { event: event.event, data: event.data });
        Flow::Read
    }

    fn mirror_event(&mut self, event: &Event<'_>, sink: &mut dyn Sink) {
        if matches!(chat::parse(event.data), Ok(Parsed::Done)) {
            self.state = State::Mirroring { done: true };
        } else {
            if let Some(data) = self.shown(event.data) {
                sink.append(Record::Whole { event: event.event, data: &data });
            }
        }
    }
}

fn shown(hides_ids: bool, data: &[u8]) -> Option<Cow<'_, [u8]>> {
    if hides_ids { hide_ids(data) } else { Some(Cow::Borrowed(data)) }
}

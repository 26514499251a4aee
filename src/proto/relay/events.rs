//! One event of a leg: what it does to the partial, and in which form it goes on.

use std::time::Duration;

use super::Relay;
use super::hold::Held;
use super::input::{Cause, Continuation};
use super::leg::Told;
use super::output::Note;
use super::state::{OutFrame, State};
use crate::proto::chat::{self, Chunk, FinishReason, Malformed, Parsed};
use crate::proto::record::{Record, Sink};
use crate::proto::sse::Event;

/// Events of one leg that are not chat chunks and are left out; with one more the leg has failed.
const MAX_MALFORMED: u32 = 3;

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
    pub(super) fn deliver(
        &mut self,
        now: Duration,
        chunk: &Chunk<'_>,
        event: Option<&str>,
        data: &[u8],
        sink: &mut dyn Sink,
    ) {
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
    pub(super) fn progressed(&mut self, now: Duration, wrote: bool) {
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
        self.note(Note::Malformed { leg: self.leg.number, why: why.clone() });
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

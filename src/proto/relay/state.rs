//! The states of a relay and of the leg that writes at the moment.

use std::time::Duration;

use super::guard::Probation;
use super::input::Cause;
use super::leg::KnownFrames;
use crate::proto::chat::{LearnedFrame, Onward, Partial, TokenIds};
use crate::proto::record::{FrameId, MirroredEnd};
use crate::proto::resume::{PlanKind, Way};
use crate::proto::splice::Splice;
use crate::proto::sse::Decoder;

/// Where a stream is. The diagram stands above [`Relay`](super::Relay).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// The next try of a leg is due at this time.
    Waiting {
        /// Since the stream's start.
        until: Duration,
    },
    /// An engine has been asked where a leg is to go on from.
    Asking,
    /// A leg has been asked for and has not answered yet.
    Opening,
    /// A leg is open and the answer is not finished.
    Streaming,
    /// Every choice has its finish reason; usage and `[DONE]` may still come.
    Tail,
    /// The answer is lost and the engine's remaining events are passed on as they come.
    Mirroring {
        /// The engine has sent `[DONE]`.
        done: bool,
    },
    /// The seal is written; nothing more happens.
    Sealed,
}

/// The leg that writes, or is to write, into the stream.
#[derive(Debug)]
pub(super) struct LegState {
    /// From 1.
    pub(super) number: u32,
    /// From 1; counts the tries of this leg.
    pub(super) attempt: u32,
    /// How it continues; `"first"` for the client's own request.
    pub(super) plan: &'static str,
    /// How to come by its events; taken when it is begun.
    pub(super) way: Option<Way>,
    /// Which kind of plan it follows; `None` for the client's own request.
    pub(super) kind: Option<PlanKind>,
    /// Why the leg before it failed.
    pub(super) because: Option<Cause>,
    /// The partial before it, until it has brought something of the answer.
    pub(super) before: Option<Box<Partial>>,
    /// The ids that its first event has to repeat. Until then nothing of it is believed, and the partial is as it was.
    pub(super) echo: Option<(TokenIds, Onward)>,
    /// Taken out while bytes are being read.
    pub(super) decoder: Option<Decoder>,
    pub(super) frames: KnownFrames,
    /// For each of `frames`, what the client gets instead.
    pub(super) out: Vec<OutFrame>,
    /// `None` while the leg is the first to write, for then its events go out as they are.
    pub(super) splice: Option<Splice>,
    /// Something of the answer (text, tool call, finish reason) has come of this leg. An opening role event is not of it.
    pub(super) wrote: bool,
    /// Until a continuation has shown that it goes on and does not begin anew; `None` for a leg that need not show it.
    pub(super) probation: Option<Probation>,
    /// When the leg was asked for, since the stream's start.
    pub(super) started: Duration,
    /// When its last data event came; `None` before the first.
    pub(super) last_data: Option<Duration>,
    /// It has stalled and nothing can be done about it; cleared by the next data event.
    pub(super) stall_accepted: bool,
}

/// A frame as the client sees it.
#[derive(Debug)]
pub(super) struct OutFrame {
    /// Its number in the journal; `None` when the journal's table is full, or when events differ in their ids too.
    pub(super) id: Option<FrameId>,
    pub(super) frame: LearnedFrame,
}

impl LegState {
    pub(super) fn new(number: u32, attempt: u32, plan: &'static str, now: Duration) -> Self {
        LegState {
            number,
            attempt,
            plan,
            way: None,
            kind: None,
            because: None,
            before: None,
            echo: None,
            decoder: None,
            frames: KnownFrames::default(),
            out: Vec::new(),
            splice: None,
            wrote: false,
            probation: None,
            started: now,
            last_data: None,
            stall_accepted: false,
        }
    }
}

/// What `on_incomplete: mirror` has to show when later legs come to nothing: how the last leg that wrote ended.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) event: Option<(Option<String>, Vec<u8>)>,
    pub(super) end: MirroredEnd,
}

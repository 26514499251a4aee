//! What a relay asks its shell to do, and what it tells it.
//!
//! Records and the seal do not appear here: the relay writes them straight into the [`Sink`](crate::proto::record::Sink).

use std::time::Duration;

use super::input::Cause;
use crate::proto::chat::Malformed;
use crate::proto::resume::{PlanKind, Question, Work};

/// One thing for the shell to do. Actions are to be carried out in the order in which they come.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Open a leg with this request. Nothing is open when this comes; the shell answers with
    /// [`handle_opened`](super::Relay::handle_opened) or [`handle_refused`](super::Relay::handle_refused).
    Start(LegStart),
    /// Ask an engine of the continuing upstream something on the way to a leg. Nothing is open when this comes; the shell answers with
    /// [`handle_answer`](super::Relay::handle_answer).
    Ask(Question),
    /// Give up the current leg: close its connection, if it is still open, which makes the engine stop. Nothing more of it may be
    /// handed in.
    Abort,
    /// Something happened that is worth a line in the log and a count.
    Note(Note),
}

/// The request of a leg.
#[derive(Debug, Clone, PartialEq)]
pub struct LegStart {
    /// Number of the leg, from 1.
    pub leg: u32,
    /// Number of the try of this leg, from 1.
    pub attempt: u32,
    /// The plan's name, or `"again"` for the client's own request sent once more because nothing had come of it.
    pub plan: &'static str,
    /// What is done to get its events.
    pub work: Work,
}

/// Something that happened to a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Note {
    /// The first data event came, this long after the stream's start.
    FirstEvent {
        /// Time since the stream's start.
        after: Duration,
    },
    /// A leg failed.
    Cut {
        /// Number of the leg.
        leg: u32,
        /// Number of the try of this leg.
        attempt: u32,
        /// The plan by which it continued; `"first"` for the client's own request.
        plan: &'static str,
        /// It had brought nothing of the answer yet.
        empty: bool,
        /// Why.
        cause: Cause,
    },
    /// A leg failed where it would have been continued, had continuation not been in `observe`.
    Observed {
        /// [`Cause::code`] of the failure.
        cause: &'static str,
        /// The plan by which it would have gone on.
        plan: &'static str,
    },
    /// A kind of plan does not work with the upstream that continues, whatever the answer: to be remembered for a while.
    PlanRefused {
        /// Which.
        kind: PlanKind,
    },
    /// No continuation is possible; the reason's code.
    NotContinued {
        /// Code of the reason: a `Refused` code, `max_legs`, `attempts` or `off`.
        why: &'static str,
    },
    /// The first text of a continuation was passed on.
    Continued {
        /// Number of the leg.
        leg: u32,
        /// The plan's name.
        plan: &'static str,
        /// From the cut to this event: what the client saw as a pause.
        gap: Duration,
    },
    /// An engine sent an event that is not a chat chunk.
    Malformed {
        /// Number of the leg.
        leg: u32,
        /// What is wrong with it, and where in it. The words may quote the event.
        why: Malformed,
    },
    /// Baton's own fault: code that only continuations need has panicked. The stream ends as it would have without it.
    Fault {
        /// What the code was to do.
        place: &'static str,
    },
    /// The answer was whole, but its tail (usage, `[DONE]`) was missing and was written here.
    TailRepaired,
    /// Tool calls were held back and are now passed on whole.
    ToolCallsReleased,
    /// Tool calls were held back, but grew over the limit, and are passed on as they come from here on.
    ToolBufferFull,
}

//! What goes into a relay: its policy, and how legs end.

use std::fmt;
use std::time::Duration;

use crate::proto::chat::{Malformed, Ratios};
use crate::proto::resume;

/// Whether a stream that lost its engine is continued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continuation {
    /// Failures are not continued; the stream ends as it would have without Baton, but says so.
    Off,
    /// As [`Continuation::Off`], and every cut and stall that would have been continued is counted.
    Observe,
    /// A failed leg is followed by another one.
    On,
}

/// How a stream that could not be completed ends for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnIncomplete {
    /// An error event with the code `stream_incomplete`, and no `[DONE]`.
    Error,
    /// Exactly what the engine did: its error event, its `abort`, its clean or torn end.
    Mirror,
}

/// The settings a relay keeps, resolved for one stream.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Whether to continue.
    pub continuation: Continuation,
    /// Most legs that may write into the stream, the client's own request included; at least 1.
    pub max_legs: u32,
    /// Most tries of one leg before it has written anything; at least 1.
    pub attempts: u32,
    /// The pause before the third try of a leg; it doubles with each further one. The second try follows at once.
    pub backoff: Duration,
    /// The longest pause between two tries.
    pub backoff_max: Duration,
    /// A leg that has sent a data event and then nothing for this long has stalled.
    pub idle: Duration,
    /// Hold back tool calls until they are whole, up to this many bytes; `None`: pass them on as they come.
    pub tool_buffer: Option<usize>,
    /// Hold back output of a prescribed form until it is whole, up to this many bytes; `None`: such answers are not continued.
    pub structured_buffer: Option<usize>,
    /// How an incomplete stream ends.
    pub on_incomplete: OnIncomplete,
    /// Characters per token, where the engine did not report counts.
    pub ratios: Ratios,
    /// Try also continuations that are known not to work for this family and engine.
    pub force: bool,
    /// Longest event accepted from an engine, in bytes.
    pub max_event: usize,
    /// Which ways to continue may be taken, and what is known of the upstream that continues.
    pub resume: resume::Settings,
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            continuation: Continuation::On,
            max_legs: 2,
            attempts: 3,
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(8),
            idle: Duration::from_secs(20),
            tool_buffer: None,
            structured_buffer: None,
            on_incomplete: OnIncomplete::Error,
            ratios: Ratios::default(),
            force: false,
            max_event: crate::proto::sse::DEFAULT_MAX_EVENT,
            resume: resume::Settings::default(),
        }
    }
}

impl Policy {
    /// The pause before this try of a leg, counted from 1.
    pub fn pause_before(&self, attempt: u32) -> Duration {
        match attempt.checked_sub(3) {
            None => Duration::ZERO,
            Some(doublings) => self.backoff.saturating_mul(1 << doublings.min(16)).min(self.backoff_max),
        }
    }
}

/// How a leg's response body ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LegEnd {
    /// The body ended as HTTP says it should (its last chunk, its content length, an HTTP/2 END_STREAM).
    Clean,
    /// The connection was reset inside the body.
    Reset,
    /// The connection was closed inside the body: before its last chunk, or short of its content length.
    Eof,
    /// The body broke off in another way; in the transport's words, which are for the log.
    Broken(String),
}

/// Why an attempt to open a leg gave no event stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No endpoint could be reached, or the connection broke before the response header; in words for the log.
    Unreachable(String),
    /// What the engines said on the way shows that this kind of plan is not for the answer; in words for the log.
    NotFit(String),
    /// The engine answered with another status, or with something that is not an event stream.
    Status {
        /// The HTTP status.
        status: u16,
        /// The beginning of the body, for the log only: it may quote the answer.
        body: String,
    },
}

/// Why a leg failed. All of these but [`Cause::Fault`] are the engine's fault or the network's between it and Baton.
///
/// `Display` is for the client: it names neither addresses nor anything an engine said but its own error event. `Debug` is for
/// the log.
#[derive(Debug, Clone, PartialEq)]
pub enum Cause {
    /// The connection was reset inside the response body.
    Reset,
    /// The connection was closed inside the response body.
    Eof,
    /// The response body broke off in another way; in the transport's words.
    Broken(String),
    /// The body ended inside an event.
    TornEvent,
    /// The body ended in an orderly way, but no finish reason had come.
    CleanEnd,
    /// The engine sent an error event.
    ErrorEvent {
        /// The engine's code, where it gave one (vLLM and SGLang: an HTTP status; vLLM's Rust frontend: a word).
        code: Option<String>,
        /// Its type, such as `BadRequestError`.
        kind: Option<String>,
        /// The engine's words.
        message: String,
    },
    /// `finish_reason: "abort"`, which an engine sends for a request that it was told to stop.
    Aborted,
    /// `[DONE]` came, but no finish reason had come.
    DoneWithoutFinish,
    /// No data event for the idle time.
    Stalled,
    /// An event longer than the limit, in bytes.
    TooLong(usize),
    /// An event that is not a chat chunk.
    Malformed(Malformed),
    /// A continuation that said `stop` at once, without any text, and nobody else has confirmed it.
    EmptyStop,
    /// A continuation that began the answer anew instead of going on.
    Restarted,
    /// A continuation by token ids that did not repeat them, so that it is another prompt's.
    NoEcho,
    /// A continuation that did not begin with the text that it was to generate once more.
    Diverged,
    /// Baton's own fault: code that only continuations need has panicked; what it was to do.
    Fault(&'static str),
    /// A continuation that did not answer with an event stream.
    Refused(Refusal),
}

impl Cause {
    /// A short fixed name, for metrics and logs.
    pub fn code(&self) -> &'static str {
        match self {
            Cause::Reset => "reset",
            Cause::Eof => "eof",
            Cause::Broken(_) => "broken",
            Cause::TornEvent => "torn_event",
            Cause::CleanEnd => "clean_end",
            Cause::ErrorEvent { .. } => "error_event",
            Cause::Aborted => "abort",
            Cause::DoneWithoutFinish => "done_without_finish",
            Cause::Stalled => "stall",
            Cause::TooLong(_) => "too_long",
            Cause::Malformed(_) => "malformed",
            Cause::EmptyStop => "empty_stop",
            Cause::Restarted => "restarted",
            Cause::NoEcho => "no_echo",
            Cause::Diverged => "diverged",
            Cause::Fault(_) => "fault",
            Cause::Refused(Refusal::Unreachable(_)) => "unreachable",
            Cause::Refused(Refusal::NotFit(_)) => "not_fit",
            Cause::Refused(Refusal::Status { .. }) => "refused",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Reset => f.write_str("the connection to the engine was reset"),
            Cause::Eof => f.write_str("the engine closed the connection in the middle"),
            Cause::Broken(_) => f.write_str("the connection to the engine broke"),
            Cause::TornEvent => f.write_str("the engine's response ended inside an event"),
            Cause::CleanEnd => f.write_str("the engine's response ended without a finish reason"),
            Cause::ErrorEvent { code: Some(code), message, .. } => {
                write!(f, "the engine reported an error ({code}: {message})")
            }
            Cause::ErrorEvent { code: None, message, .. } => write!(f, "the engine reported an error ({message})"),
            Cause::Aborted => f.write_str("the engine aborted the request"),
            Cause::DoneWithoutFinish => f.write_str("the engine ended the stream without a finish reason"),
            Cause::Stalled => f.write_str("the engine stopped sending"),
            Cause::TooLong(limit) => write!(f, "the engine sent an event longer than {limit} bytes"),
            Cause::Malformed(_) => f.write_str("the engine sent something that is not a chat chunk"),
            Cause::EmptyStop => f.write_str("the continuation stopped at once without any text"),
            Cause::Restarted => f.write_str("the continuation began the answer anew"),
            Cause::NoEcho => f.write_str("the engine did not take the token ids that it was to go on from"),
            Cause::Diverged => f.write_str("the continuation began with another text than the answer has there"),
            Cause::Fault(_) => f.write_str("the continuation failed by a fault inside Baton"),
            Cause::Refused(Refusal::Unreachable(_)) => {
                f.write_str("no engine could be reached, or it broke off before it answered")
            }
            Cause::Refused(Refusal::NotFit(_)) => f.write_str("this way to continue turned out not to fit the answer"),
            Cause::Refused(Refusal::Status { status, .. }) => write!(f, "the engine answered {status}"),
        }
    }
}

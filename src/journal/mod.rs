//! The journal: the append-only log of a stream's answer.
//!
//! This is the specification; every store keeps it, and one suite (`suite`) runs against every store.
//!
//! # What it is
//!
//! A **log** belongs to one stream. It holds **records** (one SSE event each, [`Record`]) numbered by **seq** from 0, and ends with one
//! **seal** ([`Seal`]), which has the next number and says how the stream ended. Records that differ in one string only share a
//! [`Frame`], which the log keeps once.
//!
//! ```text
//!            Writer ── define, append, seal ──►┌──────────── log ────────────┐
//!  (one; drives the legs)                      │ frames  f0 f1 …             │
//!            Handle ── reader, take_over ─────►│ segment  segment  segment … │──► Reader ── poll_ready, pull
//!  (finds the log again)                       │ ▲ low                  ▲ next, then the seal
//!                                              └─────────────────────────────┘    (any number, each at its own position)
//! ```
//!
//! # Who may do what
//!
//! - The [`Writer`] appends, seals and trims. There is one per epoch. It never waits: not for readers, not for space.
//! - A [`Reader`] has a position, sleeps until something is there and pulls it. It changes nothing that another reader can see, and dropping
//!   it tells the writer nothing.
//! - A [`Handle`] makes readers, and a new writer in place of a lost or stuck one.
//! - The store ([`MemoryStore`]) makes logs and counts what they hold. It has no clock and no list of streams: a log lives as long as
//!   somebody holds an end of it, so its age is bounded by whoever holds the handle.
//!
//! # Invariants
//!
//! - **J1** Append-only: seqs start at 0, rise by one and are never used again.
//! - **J2** One writer per epoch: what a writer of an earlier epoch appends fails as [`AppendError::Fenced`] and changes nothing.
//! - **J3** Exactly one seal, and it is last.
//! - **J4** A reader ends cleanly on a seal only. A writer that is gone without one is [`ReadError::WriterLost`], after all that it wrote.
//! - **J5** Data is visible before a reader is woken.
//! - **J6** Fan-out is position and pull: nothing is sent to readers, so no reader can miss anything or hold anything up.
//! - **J7** What is held is bounded. A breach costs the oldest records, so it ends resumability and never the stream.
//! - **J8** `[DONE]` is written only after a seal that says finished: a reader is handed the seal itself, as it was written.
//! - **J9** A client that leaves is no cancel: the writer goes on.
//! - **J10** What is read again from any seq equals, byte for byte, what was read live from there.
//! - **J11** Every store passes the same suite.
//!
//! # Limits, and what happens at each
//!
//! | limit | at its breach |
//! |---|---|
//! | [`Limits::max_stream`] | the log's oldest segments go; a reader below gets [`ReadError::Trimmed`] |
//! | [`Limits::max_total`] | a log that grows loses its own oldest segments, down to [`RESERVE`]; where that is not enough, [`Full`] for new logs |
//! | [`Limits::max_streams`] | [`Full`] for new logs |
//! | a [`Share`]'s bytes and streams | the same for the logs of the share |
//! | [`MAX_FRAMES`] frames per log, of [`FRAME_BYTES`] together | no further frame; such events are appended whole |
//! | an event's length | the SSE decoder's limit; the newest segment always stays, so a log may hold `max_stream` and one event |
//!
//! So a store holds at most `max_total`, and for each stream [`RESERVE`] and one segment or event beyond it. The number of records is
//! bounded by the bytes, since none takes less than one. What counts is capacity, with the frames and the tables; only the
//! allocator's rounding is left out.
//!
//! # Format
//!
//! A log is a list of segments of [`SEGMENT`] bytes, each with the seq of its first record; a longer record has a segment of its own. Records
//! lie in them one behind the other, as [`Record::encode`] writes them, and never across two. An append touches the newest segment only.
//! Records go by whole segments, from the oldest: when a limit is reached, when the writer trims, and in a log that keeps only
//! the unread ([`Keep::Unread`]) when every reader has passed. There a reader that keeps up makes the log reuse one segment
//! for ever.

use thiserror::Error;

use crate::proto::record::{Corrupt, Frame, MAX_FRAMES, Record, Seal, Seq};

mod memory;
mod reader;
mod state;
mod writer;

#[cfg(test)]
mod model;
#[cfg(test)]
mod suite;

pub use memory::{Handle, MemoryStore, Share};
pub use reader::Reader;
pub use writer::Writer;

/// The capacity of a segment, in bytes.
pub const SEGMENT: usize = 2048;

/// What a log may hold although the store's total is spent, in bytes: an ordinary answer.
pub const RESERVE: usize = 16 * 1024;

/// What the frames of a log may take together, in bytes: 256 for each of [`MAX_FRAMES`], which is what a frame of a chat stream takes.
pub const FRAME_BYTES: usize = 256 * MAX_FRAMES;

/// What a store may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes per stream.
    pub max_stream: usize,
    /// Bytes of all streams.
    pub max_total: usize,
    /// Logs at a time.
    pub max_streams: usize,
}

/// How long a log keeps its records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// Until every reader at the time has passed them: for a stream that nobody can come back to. Without a reader everything stays.
    Unread,
    /// As long as the log and the limits last.
    All,
}

/// What a log holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first seq that is still there; `next` where none is.
    pub low: Seq,
    /// The seq of the next record, or of the seal.
    pub next: Seq,
    /// The seal is there.
    pub sealed: bool,
}

/// What a reader is handed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    /// One event.
    Record {
        /// The event.
        record: Record<'a>,
        /// The frames of the log, for [`Record::write_data`].
        frames: &'a [Frame],
    },
    /// The end. Its seq is that of a `[DONE]`, where one is written.
    Seal(&'a Seal),
}

/// What is left after a pull.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pulled {
    /// There is more already: pull again.
    More,
    /// The reader has everything so far: wait with `poll_ready`.
    Empty,
    /// The seal was handed out, now or before. Nothing will come.
    Sealed,
}

/// Why a reader cannot go on. It stays so: every later pull gives the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ReadError {
    /// The log does not hold what is at the reader's position any more.
    #[error("the log starts at {low} by now")]
    Trimmed {
        /// The first seq that the log still holds.
        low: Seq,
    },
    /// The position lies behind everything that the log has had so far.
    #[error("the log has not got beyond {next} yet")]
    Ahead {
        /// The seq that will be written next.
        next: Seq,
    },
    /// The writer is gone without a seal, and everything it wrote has been read.
    #[error("the writer is gone without a seal")]
    WriterLost,
    /// The log holds something that is no entry.
    #[error("the log is damaged")]
    Corrupt(#[from] Corrupt),
}

/// Why an append changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum AppendError {
    /// Another writer has taken over.
    #[error("the writer of epoch {epoch} has taken over")]
    Fenced {
        /// Its epoch.
        epoch: u64,
    },
    /// The log has its seal.
    #[error("the log is sealed")]
    Sealed,
    /// The record's frame is not defined in this log.
    #[error("frame {0} is not defined")]
    UnknownFrame(u8),
}

/// Why there is no new log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Full {
    /// As many logs as there may be.
    #[error("the journal holds {limit} streams already")]
    Streams {
        /// [`Limits::max_streams`].
        limit: usize,
    },
    /// As many bytes as there may be.
    #[error("the journal holds {limit} bytes already")]
    Bytes {
        /// [`Limits::max_total`].
        limit: usize,
    },
    /// As many logs as there may be of a [`Share`].
    #[error("the tenant has {limit} streams in the journal already")]
    ShareStreams {
        /// The share's.
        limit: usize,
    },
    /// As many bytes as there may be of a [`Share`].
    #[error("the tenant has {limit} bytes in the journal already")]
    ShareBytes {
        /// The share's.
        limit: usize,
    },
}

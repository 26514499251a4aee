//! The store in memory: logs that live as long as somebody holds an end of them.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::state::State;
use super::{AppendError, Full, Keep, Limits, Reader, Span, Writer};
use crate::proto::record::{Seal, Seq};

/// Makes logs, and counts what they hold.
#[derive(Debug)]
pub struct MemoryStore {
    limits: Limits,
    bytes: AtomicUsize,
    streams: AtomicUsize,
}

impl MemoryStore {
    /// An empty store.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(MemoryStore { limits, bytes: AtomicUsize::new(0), streams: AtomicUsize::new(0) })
    }

    /// A new log for a stream that cannot be resumed: it keeps only what a reader has not passed.
    pub fn create(self: &Arc<Self>) -> Result<Writer, Full> {
        self.create_keeping(Keep::Unread)
    }

    /// A new log, and what it keeps.
    pub fn create_keeping(self: &Arc<Self>, keep: Keep) -> Result<Writer, Full> {
        if self.is_spent() {
            return Err(Full::Bytes { limit: self.limits.max_total });
        }
        let limit = self.limits.max_streams;
        self.streams
            .fetch_update(Relaxed, Relaxed, |streams| (streams < limit).then_some(streams + 1))
            .map_err(|_| Full::Streams { limit })?;
        Ok(Writer::first(Log::new(Arc::clone(self), keep)))
    }

    /// What all logs hold, in bytes of memory.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// How many logs there are.
    pub fn streams(&self) -> usize {
        self.streams.load(Relaxed)
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether the total is used up. Two logs may see "no" at once; each then goes over by one segment at most.
    pub(super) fn is_spent(&self) -> bool {
        self.bytes() >= self.limits.max_total
    }

    /// Notes that a log holds `now` bytes after `before`.
    pub(super) fn account(&self, before: usize, now: usize) {
        if now >= before {
            self.bytes.fetch_add(now - before, Relaxed);
        } else {
            self.bytes.fetch_sub(before - now, Relaxed);
        }
    }

    /// Notes that a log of `held` bytes is gone.
    pub(super) fn forget(&self, held: usize) {
        self.account(held, 0);
        self.streams.fetch_sub(1, Relaxed);
    }
}

/// One log: its state, behind a lock that is held for a few copies at most, and never by more than the two ends of one stream and those
/// that read it again.
#[derive(Debug)]
pub(super) struct Log {
    state: Mutex<State>,
}

impl Log {
    fn new(store: Arc<MemoryStore>, keep: Keep) -> Arc<Self> {
        Arc::new(Log { state: Mutex::new(State::new(store, keep)) })
    }

    /// The state. Every change to it is complete before anything foreign runs (a reader's callback, a waker), so a panic there leaves
    /// nothing half done, and the lock's poison is ignored.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, then wakes the readers that have news by it. They are woken outside the lock, one by one: nothing is allocated
    /// for that, and with one reader nothing is locked twice.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state);
        while let Some(waker) = state.take_waker() {
            let more = state.is_awaited();
            drop(state);
            waker.wake();
            if !more {
                return result;
            }
            state = self.state();
        }
        result
    }
}

/// What finds a log again: for a client that comes back, and for a writer in place of a lost one.
#[derive(Clone, Debug)]
pub struct Handle {
    log: Arc<Log>,
}

impl Handle {
    pub(super) fn new(log: Arc<Log>) -> Self {
        Handle { log }
    }

    /// A reader that starts at `from`. A position that the log does not have is said by its first pull.
    pub fn reader(&self, from: Seq) -> Reader {
        Reader::new(Arc::clone(&self.log), from)
    }

    /// The first seq that the log still holds, and the next one to be written; whether it has its seal, which has that number then.
    pub fn span(&self) -> Span {
        let state = self.log.state();
        Span { low: state.low(), next: state.next_seq(), sealed: state.end().is_some() }
    }

    /// How the log ends; `None`: it has no seal yet.
    pub fn end(&self) -> Option<Seal> {
        self.log.state().end().cloned()
    }

    /// Lets go of records below `seq`, by whole segments, if the log holds more than `window` bytes.
    pub fn release(&self, seq: Seq, window: usize) {
        let mut state = self.log.state();
        if state.bytes_held() > window {
            state.release(seq);
        }
    }

    /// A writer of a new epoch. The one before is fenced from now on, whether it still lives or not.
    pub fn take_over(&self) -> Result<Writer, AppendError> {
        let epoch = self.log.state().take_over()?;
        Ok(Writer::of_epoch(Arc::clone(&self.log), epoch))
    }
}

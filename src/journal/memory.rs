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
    room: Room,
}

/// A part of a store's room that its holder cannot exceed, so that it leaves some for others: a tenant's. It makes logs like the store.
#[derive(Debug)]
pub struct Share {
    store: Arc<MemoryStore>,
    room: Room,
}

/// What is held, against what may be.
#[derive(Debug)]
struct Room {
    max_bytes: usize,
    max_streams: usize,
    bytes: AtomicUsize,
    streams: AtomicUsize,
}

impl Room {
    fn new(max_bytes: usize, max_streams: usize) -> Self {
        Room { max_bytes, max_streams, bytes: AtomicUsize::new(0), streams: AtomicUsize::new(0) }
    }

    /// Whether the bytes are used up. Two logs may see "no" at once; each then goes over by one segment at most.
    fn is_spent(&self) -> bool {
        self.bytes.load(Relaxed) >= self.max_bytes
    }

    /// Takes a place for a log.
    fn enter(&self) -> bool {
        let one_more = |streams| (streams < self.max_streams).then_some(streams + 1);
        self.streams.fetch_update(Relaxed, Relaxed, one_more).is_ok()
    }

    fn leave(&self) {
        self.streams.fetch_sub(1, Relaxed);
    }

    fn account(&self, before: usize, now: usize) {
        if now >= before {
            self.bytes.fetch_add(now - before, Relaxed);
        } else {
            self.bytes.fetch_sub(before - now, Relaxed);
        }
    }
}

impl MemoryStore {
    /// An empty store.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(MemoryStore { limits, room: Room::new(limits.max_total, limits.max_streams) })
    }

    /// A new log for a stream that cannot be resumed: it keeps only what a reader has not passed.
    pub fn create(self: &Arc<Self>) -> Result<Writer, Full> {
        self.create_keeping(Keep::Unread)
    }

    /// A new log, and what it keeps.
    pub fn create_keeping(self: &Arc<Self>, keep: Keep) -> Result<Writer, Full> {
        self.enter()?;
        Ok(Writer::first(Log::new(Lodging { store: Arc::clone(self), share: None }, keep)))
    }

    /// A share of so many bytes and logs at a time, nothing of which is held yet.
    pub fn share(self: &Arc<Self>, max_bytes: usize, max_streams: usize) -> Arc<Share> {
        Arc::new(Share { store: Arc::clone(self), room: Room::new(max_bytes, max_streams) })
    }

    /// What all logs hold, in bytes of memory.
    pub fn bytes(&self) -> usize {
        self.room.bytes.load(Relaxed)
    }

    /// How many logs there are.
    pub fn streams(&self) -> usize {
        self.room.streams.load(Relaxed)
    }

    /// What it may hold.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    fn enter(&self) -> Result<(), Full> {
        let Limits { max_total, max_streams, .. } = self.limits;
        if self.room.is_spent() {
            return Err(Full::Bytes { limit: max_total });
        }
        if self.room.enter() { Ok(()) } else { Err(Full::Streams { limit: max_streams }) }
    }
}

impl Share {
    /// A new log, and what it keeps.
    pub fn create_keeping(self: &Arc<Self>, keep: Keep) -> Result<Writer, Full> {
        let Room { max_bytes, max_streams, .. } = self.room;
        if self.room.is_spent() {
            return Err(Full::ShareBytes { limit: max_bytes });
        }
        if !self.room.enter() {
            return Err(Full::ShareStreams { limit: max_streams });
        }
        if let Err(full) = self.store.enter() {
            self.room.leave();
            return Err(full);
        }
        let lodging = Lodging { store: Arc::clone(&self.store), share: Some(Arc::clone(self)) };
        Ok(Writer::first(Log::new(lodging, keep)))
    }
}

/// Whose room a log takes.
#[derive(Debug)]
pub(super) struct Lodging {
    store: Arc<MemoryStore>,
    share: Option<Arc<Share>>,
}

impl Lodging {
    fn rooms(&self) -> impl Iterator<Item = &Room> {
        std::iter::once(&self.store.room).chain(self.share.as_deref().map(|share| &share.room))
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.store.limits
    }

    /// Whether there is no room left.
    pub(super) fn is_spent(&self) -> bool {
        self.rooms().any(Room::is_spent)
    }

    /// Notes that the log holds `now` bytes after `before`.
    pub(super) fn account(&self, before: usize, now: usize) {
        self.rooms().for_each(|room| room.account(before, now));
    }

    /// Notes that the log, which held so much, is gone.
    pub(super) fn forget(&self, held: usize) {
        self.account(held, 0);
        self.rooms().for_each(Room::leave);
    }
}

/// One log: its state, behind a lock that is held for a few copies at most, and never by more than the two ends of one stream and those
/// that read it again.
#[derive(Debug)]
pub(super) struct Log {
    state: Mutex<State>,
}

impl Log {
    fn new(lodging: Lodging, keep: Keep) -> Arc<Self> {
        Arc::new(Log { state: Mutex::new(State::new(lodging, keep)) })
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

#[cfg(test)]
mod tests {
    use super::super::{RESERVE, SEGMENT};
    use super::*;
    use crate::proto::record::{Record, Sink as _};

    #[test]
    fn a_share_is_full_before_its_store_is_and_what_it_holds_is_its_store_s() {
        let store = MemoryStore::new(Limits { max_stream: 1 << 20, max_total: 1 << 20, max_streams: 3 });
        let share = store.share(24 << 10, 2);
        let mut logs = [(); 2].map(|()| share.create_keeping(Keep::All).expect("there is room"));
        assert_eq!(share.create_keeping(Keep::All).map(drop), Err(Full::ShareStreams { limit: 2 }));
        let other = store.create().expect("the store has room");
        assert_eq!(store.create().map(drop), Err(Full::Streams { limit: 3 }));
        for _ in 0..100 {
            logs.iter_mut().for_each(|log| log.append(Record::Whole { event: None, data: &[b'x'; 1000] }));
        }
        // Each keeps its reserve, which is more than the share together.
        assert_eq!(share.create_keeping(Keep::All).map(drop), Err(Full::ShareBytes { limit: 24 << 10 }));
        assert!(logs.iter().all(|log| log.handle().span().low > 50), "their oldest records make room");
        assert!(store.bytes() < 2 * (RESERVE + 2 * SEGMENT));
        drop((logs, other));
        assert_eq!((store.bytes(), store.streams()), (0, 0));
        assert_eq!((share.room.bytes.load(Relaxed), share.room.streams.load(Relaxed)), (0, 0));
    }
}

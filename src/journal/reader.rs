//! The reading end of a log.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::memory::Log;
use super::state::{Place, ReaderId, State};
use super::{Entry, Pulled, ReadError};
use crate::proto::record::{Record, Seq};

/// A reader at its own position. Any number of them may read one log at once.
#[derive(Debug)]
pub struct Reader {
    log: Arc<Log>,
    id: ReaderId,
    cursor: Cursor,
}

impl Reader {
    pub(super) fn new(log: Arc<Log>, from: Seq) -> Self {
        let id = log.state().add_reader(from);
        Reader { log, id, cursor: Cursor { position: from, place: None } }
    }

    /// The seq of the next entry this reader will get; one behind the seal once that has been handed out.
    pub fn position(&self) -> Seq {
        self.cursor.position
    }

    /// Ready when a pull has something to say: an entry, the end, or an error. Otherwise the task is woken when it has; only the last
    /// waker given is kept.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.log.state();
        if state.has_news(self.cursor.position) {
            return Poll::Ready(());
        }
        let before = state.wait(self.id, cx.waker());
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// Hands out what is there from the reader's position on, until `max_bytes` of event data have been handed out: at least one entry,
    /// if there is one, and the last one may go beyond.
    ///
    /// `on` runs under the log's lock: it should only copy, and must not touch the same log.
    pub fn pull(&mut self, max_bytes: usize, on: &mut dyn FnMut(Seq, Entry<'_>)) -> Result<Pulled, ReadError> {
        let mut state = self.log.state();
        let from = self.cursor.position;
        let pulled = self.cursor.pull(&state, max_bytes, on);
        if self.cursor.position != from {
            state.passed(self.id, self.cursor.position);
        }
        pulled
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let waker = self.log.state().remove_reader(self.id);
        drop(waker);
    }
}

#[derive(Debug)]
struct Cursor {
    position: Seq,
    /// Where `position` lies, as far as it was known after the last pull.
    place: Option<Place>,
}

impl Cursor {
    fn pull(
        &mut self,
        state: &State,
        max_bytes: usize,
        on: &mut dyn FnMut(Seq, Entry<'_>),
    ) -> Result<Pulled, ReadError> {
        let from = self.position;
        if from < state.low() {
            return Err(ReadError::Trimmed { low: state.low() });
        }
        if from < state.next_seq() && !self.pull_records(state, max_bytes, on)? {
            return Ok(Pulled::More);
        }
        self.pull_end(state, self.position > from, on)
    }

    /// Hands out records, and says whether these were all. At least one is there.
    fn pull_records(
        &mut self,
        state: &State,
        max_bytes: usize,
        on: &mut dyn FnMut(Seq, Entry<'_>),
    ) -> Result<bool, ReadError> {
        let mut place = state.place_of(self.position, self.place)?;
        let mut handed = 0;
        loop {
            let (record, len) = Record::decode(state.bytes_at(&mut place))?;
            place.advance(len);
            handed += record.data_len(state.frames());
            let seq = self.position;
            self.position += 1;
            self.place = Some(place);
            on(seq, Entry::Record { record, frames: state.frames() });
            if self.position == state.next_seq() {
                return Ok(true);
            }
            if handed >= max_bytes {
                return Ok(false);
            }
        }
    }

    /// What there is to say behind the last record; `handed`: something was handed out before it in the same pull.
    fn pull_end(
        &mut self,
        state: &State,
        handed: bool,
        on: &mut dyn FnMut(Seq, Entry<'_>),
    ) -> Result<Pulled, ReadError> {
        let next = state.next_seq();
        match state.end() {
            Some(seal) if self.position == next => {
                self.position += 1;
                on(next, Entry::Seal(seal));
                Ok(Pulled::Sealed)
            }
            Some(_) if self.position == next + 1 => Ok(Pulled::Sealed),
            _ if self.position > next => Err(ReadError::Ahead { next }),
            // What was handed out comes first; the next pull says the rest.
            _ if state.is_lost() && handed => Ok(Pulled::More),
            _ if state.is_lost() => Err(ReadError::WriterLost),
            _ => Ok(Pulled::Empty),
        }
    }
}

//! The writing end of a log.

use std::sync::Arc;

use super::memory::{Handle, Log};
use super::{AppendError, Reader};
use crate::proto::record::{Frame, FrameId, Record, Seal, Seq, Sink};

/// The one writer of a log in its epoch.
///
/// Dropped without a seal, it leaves the log without an end: readers get everything that was written, and then
/// [`ReadError::WriterLost`](super::ReadError::WriterLost).
#[derive(Debug)]
pub struct Writer {
    log: Arc<Log>,
    epoch: u64,
    fault: Option<AppendError>,
}

impl Writer {
    pub(super) fn first(log: Arc<Log>) -> Self {
        let epoch = log.state().epoch();
        Self::of_epoch(log, epoch)
    }

    pub(super) fn of_epoch(log: Arc<Log>, epoch: u64) -> Self {
        Writer { log, epoch, fault: None }
    }

    /// The epoch of this writer: 1 for the first one of a log, one more with each take-over.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The seq of the next record, or of the seal.
    pub fn next_seq(&self) -> Seq {
        self.log.state().next_seq()
    }

    /// Whether the log has its end.
    pub fn is_sealed(&self) -> bool {
        self.log.state().end().is_some()
    }

    /// Why something given to this writer as a [`Sink`] was not written: the first such fault.
    pub fn fault(&self) -> Option<AppendError> {
        self.fault
    }

    /// A reader that starts at `from`.
    pub fn reader(&self, from: Seq) -> Reader {
        Reader::new(Arc::clone(&self.log), from)
    }

    /// What finds this log again after the writer is gone.
    pub fn handle(&self) -> Handle {
        Handle::new(Arc::clone(&self.log))
    }

    /// Appends one record and says its seq. On an error nothing has changed.
    pub fn try_append(&mut self, record: Record<'_>) -> Result<Seq, AppendError> {
        self.log.change(|state| {
            state.admit(self.epoch)?;
            state.append(record)
        })
    }

    /// Makes a frame known to the log. `Ok(None)`: the table is full. On an error nothing has changed.
    pub fn try_define(&mut self, frame: Frame) -> Result<Option<FrameId>, AppendError> {
        self.log.change(|state| {
            state.admit(self.epoch)?;
            Ok(state.define(frame))
        })
    }

    /// Ends the log and says the seal's seq. On an error nothing has changed.
    pub fn try_seal(&mut self, seal: Seal) -> Result<Seq, AppendError> {
        self.log.change(|state| {
            state.admit(self.epoch)?;
            Ok(state.seal(seal))
        })
    }

    /// Lets go of records below `seq`, by whole segments: some may stay. Does nothing once another writer has taken over.
    pub fn trim_to(&mut self, seq: Seq) {
        let mut state = self.log.state();
        if state.is_written_by(self.epoch) {
            state.release(seq);
        }
    }

    fn note<T>(&mut self, result: Result<T, AppendError>) -> Option<T> {
        result.map_err(|fault| self.fault.get_or_insert(fault).to_owned()).ok()
    }
}

impl Sink for Writer {
    fn define(&mut self, frame: Frame) -> Option<FrameId> {
        let result = self.try_define(frame);
        self.note(result).flatten()
    }

    fn append(&mut self, record: Record<'_>) {
        let result = self.try_append(record);
        self.note(result);
    }

    fn seal(&mut self, seal: Seal) {
        let result = self.try_seal(seal);
        self.note(result);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.log.change(|state| state.lose(self.epoch));
    }
}

//! What a log in memory consists of. One thread at a time: the lock is around it, and the wakers it gives out are woken elsewhere.

use std::collections::VecDeque;
use std::task::Waker;

use super::memory::Lodging;
use super::{AppendError, FRAME_BYTES, Keep, RESERVE, ReadError, SEGMENT};
use crate::proto::record::{Frame, FrameId, MAX_FRAMES, Record, Seal, Seq};

#[derive(Debug)]
pub(super) struct State {
    lodging: Lodging,
    keep: Keep,
    /// Oldest first; without gaps up to `next`.
    segments: VecDeque<Segment>,
    /// The number of `segments[0]`. Numbers are not used again, so a place in a segment that is gone is known as such.
    first_number: u64,
    frames: Vec<Frame>,
    next: Seq,
    seal: Option<Seal>,
    epoch: u64,
    /// The writer of this epoch is gone without a seal.
    lost: bool,
    readers: Vec<Option<Attached>>,
    /// How many of `readers` have a waker here.
    waiting: usize,
    /// Capacity of all segments.
    segment_bytes: usize,
    frame_bytes: usize,
    /// What was last accounted for this log.
    held: usize,
}

#[derive(Debug)]
struct Segment {
    /// The seq of the first record in it, or the next one if there is none yet.
    first: Seq,
    bytes: Vec<u8>,
}

/// A reader, as the log sees it.
#[derive(Debug)]
struct Attached {
    position: Seq,
    /// Set while the reader waits for news; cleared by whoever is about to wake it.
    waker: Option<Waker>,
}

/// A reader's entry in the table, until it is removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReaderId(usize);

/// Where a record lies. May point to the end of a segment: the record is then the first one of the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    segment: u64,
    offset: usize,
}

impl Place {
    pub(super) fn advance(&mut self, len: usize) {
        self.offset += len;
    }
}

impl State {
    pub(super) fn new(lodging: Lodging, keep: Keep) -> Self {
        let mut state = State {
            lodging,
            keep,
            segments: VecDeque::new(),
            first_number: 0,
            frames: Vec::new(),
            next: 0,
            seal: None,
            epoch: 1,
            lost: false,
            readers: Vec::new(),
            waiting: 0,
            segment_bytes: 0,
            frame_bytes: 0,
            held: 0,
        };
        state.settle();
        state
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn next_seq(&self) -> Seq {
        self.next
    }

    /// The first seq that is still held, or the next one.
    pub(super) fn low(&self) -> Seq {
        self.segments.front().map_or(self.next, |segment| segment.first)
    }

    /// What it holds, in bytes of memory.
    pub(super) fn bytes_held(&self) -> usize {
        self.held
    }

    pub(super) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    pub(super) fn end(&self) -> Option<&Seal> {
        self.seal.as_ref()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Whether a pull from `position` has anything to say.
    pub(super) fn has_news(&self, position: Seq) -> bool {
        position != self.next || self.seal.is_some() || self.lost
    }
}

/// The writer's part.
impl State {
    pub(super) fn is_written_by(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }

    /// Whether the writer of `epoch` may write.
    pub(super) fn admit(&self, epoch: u64) -> Result<(), AppendError> {
        if !self.is_written_by(epoch) {
            return Err(AppendError::Fenced { epoch: self.epoch });
        }
        if self.seal.is_some() { Err(AppendError::Sealed) } else { Ok(()) }
    }

    pub(super) fn define(&mut self, frame: Frame) -> Option<FrameId> {
        let bytes = frame.prefix.len() + frame.suffix.len();
        if self.frames.len() == MAX_FRAMES || self.frame_bytes + bytes > FRAME_BYTES {
            return None;
        }
        let id = u8::try_from(self.frames.len()).ok()?;
        self.frame_bytes += bytes;
        self.frames.push(frame);
        self.settle();
        Some(FrameId(id))
    }

    pub(super) fn append(&mut self, record: Record<'_>) -> Result<Seq, AppendError> {
        if let Record::Framed { frame, .. } = record
            && usize::from(frame.0) >= self.frames.len()
        {
            return Err(AppendError::UnknownFrame(frame.0));
        }
        let len = record.encoded_len();
        if self.segments.back().is_none_or(|segment| segment.bytes.capacity() - segment.bytes.len() < len) {
            self.add_segment(len);
        }
        if let Some(segment) = self.segments.back_mut() {
            record.encode(&mut segment.bytes);
        }
        let seq = self.next;
        self.next += 1;
        Ok(seq)
    }

    pub(super) fn seal(&mut self, seal: Seal) -> Seq {
        self.seal = Some(seal);
        self.settle();
        self.next
    }

    /// The writer of `epoch` is gone.
    pub(super) fn lose(&mut self, epoch: u64) {
        if self.admit(epoch).is_ok() {
            self.lost = true;
        }
    }

    pub(super) fn take_over(&mut self) -> Result<u64, AppendError> {
        self.admit(self.epoch)?;
        self.epoch += 1;
        self.lost = false;
        Ok(self.epoch)
    }
}

/// The readers' part.
impl State {
    pub(super) fn add_reader(&mut self, position: Seq) -> ReaderId {
        let free = self.readers.iter().position(Option::is_none).unwrap_or(self.readers.len());
        if free == self.readers.len() {
            self.readers.push(None);
            self.settle();
        }
        self.readers[free] = Some(Attached { position, waker: None });
        ReaderId(free)
    }

    /// The waker that this gives back, if any, is to be dropped outside the lock: with it a task may go, and all that it holds.
    #[must_use]
    pub(super) fn remove_reader(&mut self, id: ReaderId) -> Option<Waker> {
        let waker = self.readers[id.0].take().and_then(|reader| reader.waker);
        self.waiting -= usize::from(waker.is_some());
        self.release_unwanted();
        waker
    }

    /// Keeps the reader's waker until there is news. Gives back one to be dropped outside the lock, as above.
    #[must_use]
    pub(super) fn wait(&mut self, id: ReaderId, waker: &Waker) -> Option<Waker> {
        let reader = self.readers[id.0].as_mut()?;
        if reader.waker.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            return None;
        }
        let before = reader.waker.replace(waker.clone());
        self.waiting += usize::from(before.is_none());
        before
    }

    /// A reader that waits although it has news; it is up to the caller to wake it, outside the lock.
    pub(super) fn take_waker(&mut self) -> Option<Waker> {
        if !self.is_awaited() {
            return None;
        }
        let (next, ended) = (self.next, self.seal.is_some() || self.lost);
        let reader = self.readers.iter_mut().flatten().find(|reader| {
            // As `has_news`, which cannot be called while the table is borrowed.
            reader.waker.is_some() && (ended || reader.position != next)
        })?;
        self.waiting -= 1;
        reader.waker.take()
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.waiting > 0
    }

    /// A reader has got everything below `position`.
    pub(super) fn passed(&mut self, id: ReaderId, position: Seq) {
        if let Some(reader) = &mut self.readers[id.0] {
            reader.position = position;
        }
        self.release_unwanted();
    }

    /// Where the record of `position` lies, which must be held; `last` is where this reader stopped.
    pub(super) fn place_of(&self, position: Seq, last: Option<Place>) -> Result<Place, ReadError> {
        if let Some(place) = last.filter(|place| place.segment >= self.first_number) {
            return Ok(place);
        }
        let index = self.segments.partition_point(|segment| segment.first <= position).saturating_sub(1);
        let mut place = Place { segment: self.first_number + index as u64, offset: 0 };
        let first = self.segments.get(index).map_or(position, |segment| segment.first);
        for _ in first..position {
            let (_, len) = Record::decode(self.bytes_at(&mut place))?;
            place.advance(len);
        }
        Ok(place)
    }

    /// The bytes from a place to the end of its segment.
    pub(super) fn bytes_at(&self, place: &mut Place) -> &[u8] {
        while let Some(segment) = self.segments.get((place.segment - self.first_number) as usize) {
            if place.offset < segment.bytes.len() {
                return &segment.bytes[place.offset..];
            }
            *place = Place { segment: place.segment + 1, offset: 0 };
        }
        &[]
    }
}

/// What is held, and how it is let go.
impl State {
    fn add_segment(&mut self, len: usize) {
        // An empty one that is too small would stand between what is held and what comes.
        if self.segments.back().is_some_and(|segment| segment.bytes.is_empty()) {
            self.drop_oldest();
        }
        let bytes = Vec::with_capacity(len.max(SEGMENT));
        self.segment_bytes += bytes.capacity();
        self.segments.push_back(Segment { first: self.next, bytes });
        self.settle();
        let limits = *self.lodging.limits();
        while self.segments.len() > 1
            && (self.held > limits.max_stream || (self.held > RESERVE && self.lodging.is_spent()))
        {
            self.drop_oldest();
        }
    }

    /// Drops the segments that hold only records below `seq`.
    pub(super) fn release(&mut self, seq: Seq) {
        while let Some(oldest) = self.segments.front() {
            let end = self.segments.get(1).map_or(self.next, |segment| segment.first);
            if end > seq || oldest.first == end {
                return;
            }
            if self.segments.len() == 1 && self.seal.is_none() && oldest.bytes.capacity() <= SEGMENT {
                return self.reuse();
            }
            self.drop_oldest();
        }
    }

    /// Drops what no reader will ask for again.
    fn release_unwanted(&mut self) {
        if self.keep == Keep::Unread
            && let Some(lowest) = self.readers.iter().flatten().map(|reader| reader.position).min()
        {
            self.release(lowest);
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(segment) = self.segments.pop_front() {
            self.first_number += 1;
            self.segment_bytes -= segment.bytes.capacity();
            self.settle();
        }
    }

    /// Empties the only segment, which takes the next records then.
    fn reuse(&mut self) {
        if let Some(segment) = self.segments.front_mut() {
            self.first_number += 1;
            segment.bytes.clear();
            segment.first = self.next;
        }
    }

    /// Accounts for what this log holds now.
    fn settle(&mut self) {
        let seal = match &self.seal {
            Some(Seal::Incomplete { reason, message }) => reason.len() + message.capacity(),
            _ => 0,
        };
        let now = size_of::<super::memory::Log>()
            + self.segment_bytes
            + self.segments.capacity() * size_of::<Segment>()
            + self.frame_bytes
            + self.frames.capacity() * size_of::<Frame>()
            + self.readers.capacity() * size_of::<Option<Attached>>()
            + seal;
        self.lodging.account(self.held, now);
        self.held = now;
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.lodging.forget(self.held);
    }
}

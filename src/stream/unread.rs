//! The streams that nobody reads, in the order in which they are given up when room gets scarce.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::time::Instant;

use super::kept::Kept;

/// What is lost with a stream that is given up; the least goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Loss {
    /// Nothing: it has ended, and a client has got it to its end.
    Copy,
    /// An engine's work for somebody who may not come back. It is told to stop.
    Orphan,
    /// An answer that is whole, and that nobody has got to its end.
    Answer,
}

impl Loss {
    /// A short fixed name, for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Loss::Copy => "copy",
            Loss::Orphan => "orphan",
            Loss::Answer => "answer",
        }
    }
}

/// The streams that nobody reads. Kept up to date as readers come and go; an event touches nothing here.
#[derive(Debug, Default)]
pub(super) struct Unread(Mutex<Order>);

#[derive(Debug, Default)]
struct Order {
    /// Least loss first, and of the same the one that has been without a reader for longest.
    streams: BTreeMap<Place, Weak<Kept>>,
    places: HashMap<u64, Place>,
    /// The number of the next stream.
    next: u64,
}

/// Kind of loss, the time when the last reader left, and the stream's number.
type Place = (Loss, Instant, u64);

impl Unread {
    /// A number that stands for a stream here.
    pub(super) fn number(&self) -> u64 {
        let mut order = self.order();
        order.next += 1;
        order.next
    }

    /// Puts a stream where it belongs now. To be called after every change of its state: of several at once the last one sees them all.
    pub(super) fn place(&self, number: u64, kept: &Arc<Kept>) {
        let mut order = self.order();
        order.remove(number);
        if let Some((loss, since)) = kept.unread() {
            let place = (loss, since, number);
            order.places.insert(number, place);
            order.streams.insert(place, Arc::downgrade(kept));
        }
    }

    /// It is not kept any more.
    pub(super) fn remove(&self, number: u64) {
        self.order().remove(number);
    }

    /// Takes out the stream that goes first, and what is lost with it: nobody else gets it.
    pub(super) fn take_first(&self) -> Option<(Loss, Arc<Kept>)> {
        let mut order = self.order();
        loop {
            let ((loss, _, number), kept) = order.streams.pop_first()?;
            order.places.remove(&number);
            if let Some(kept) = kept.upgrade() {
                return Some((loss, kept));
            }
        }
    }

    /// How many orphans there are.
    pub(super) fn orphans(&self) -> usize {
        self.order().places.values().filter(|place| place.0 == Loss::Orphan).count()
    }

    fn order(&self) -> MutexGuard<'_, Order> {
        // Every change is complete before anything foreign runs.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Order {
    fn remove(&mut self, number: u64) {
        if let Some(place) = self.places.remove(&number) {
            self.streams.remove(&place);
        }
    }
}

//! Tool calls held back until they are whole, so that a failure inside one costs nothing.

use crate::proto::chat::Partial;
use crate::proto::record::{Record, Sink};

/// The events held back, and what the answer was before the first of them.
#[derive(Debug)]
pub(super) struct Held {
    /// The partial before the first held event: what a continuation starts from.
    pub(super) before: Partial,
    events: Vec<(Option<String>, Vec<u8>)>,
    bytes: usize,
}

impl Held {
    pub(super) fn new(before: Partial) -> Self {
        Held { before, events: Vec::new(), bytes: 0 }
    }

    /// Holds one event; false when that makes more than `limit` bytes.
    pub(super) fn push(&mut self, event: Option<&str>, data: &[u8], limit: usize) -> bool {
        self.bytes += data.len();
        self.events.push((event.map(str::to_owned), data.to_vec()));
        self.bytes <= limit
    }

    /// Passes everything on, in order.
    pub(super) fn release(self, sink: &mut dyn Sink) {
        for (event, data) in &self.events {
            sink.append(Record::Whole { event: event.as_deref(), data });
        }
    }
}

//! What an engine's bytes say: events told apart, and the two or three frames of a leg known by heart.

use crate::proto::chat::{self, Chunk, EngineError, Filling, LearnedFrame, Malformed, Parsed, Partial};
use crate::proto::sse::{Decoder, Item, TooLong};

/// Most frames remembered per leg. A leg has two at a time (reasoning, content), but on SGLang (0.5.23, serving_chat.py) `created`
/// is the time of the event, so that every second brings new ones; the oldest make room.
const MAX_FRAMES: usize = 8;

/// The frames of one leg.
#[derive(Debug, Default)]
pub struct KnownFrames {
    frames: Vec<LearnedFrame>,
    last: usize,
    oldest: usize,
}

impl KnownFrames {
    /// The frame that `data` fits, and what it has in the frame's places.
    pub fn find<'d>(&mut self, data: &'d [u8]) -> Option<(usize, Filling<'d>)> {
        if let Some(filling) = self.frames.get(self.last)?.read(data) {
            return Some((self.last, filling));
        }
        let (at, filling) = self.frames.iter().enumerate().find_map(|(at, known)| Some((at, known.read(data)?)))?;
        self.last = at;
        Some((at, filling))
    }

    /// Remembers a frame, and forgets the oldest if there are too many. Returns its number, which may have been another's.
    pub fn remember(&mut self, frame: LearnedFrame) -> usize {
        if self.frames.len() < MAX_FRAMES {
            self.last = self.frames.len();
            self.frames.push(frame);
        } else {
            self.last = self.oldest;
            self.frames[self.last] = frame;
            self.oldest = (self.oldest + 1) % MAX_FRAMES;
        }
        self.last
    }
}

/// What one event of a leg says.
#[derive(Debug)]
pub enum Told<'a> {
    /// A piece of text in a known frame.
    Text {
        /// Number of the frame within the leg.
        frame: usize,
        /// The text, and the ids of its tokens if the engine lists them.
        filling: Filling<'a>,
    },
    /// Any other chunk.
    Chunk(Chunk<'a>),
    /// An error event.
    Error(EngineError),
    /// `[DONE]`.
    Done,
    /// Not something an engine of this kind may send.
    Malformed(Malformed),
}

impl<'a> Told<'a> {
    /// Reads an event's data. Costs a comparison for a known frame, a parse otherwise.
    pub fn read(frames: &mut KnownFrames, data: &'a [u8]) -> Self {
        if let Some((frame, filling)) = frames.find(data) {
            return Told::Text { frame, filling };
        }
        match chat::parse(data) {
            Ok(Parsed::Chunk(chunk)) => Told::Chunk(chunk),
            Ok(Parsed::Error(error)) => Told::Error(error),
            Ok(Parsed::Done) => Told::Done,
            Err(malformed) => Told::Malformed(malformed),
        }
    }
}

/// Follows an event stream that Baton relays without taking part in it, to know whether its answer came to an end.
#[derive(Debug)]
pub struct LegTracker {
    decoder: Decoder,
    frames: KnownFrames,
    partial: Partial,
    error: bool,
}

/// What is known of an answer at the end of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// Every choice has a finish reason.
    Finished,
    /// A choice has none, or the engine reported an error or an abort.
    Incomplete,
    /// No chat chunk was seen: another API's stream.
    Unknown,
}

impl LegTracker {
    /// A tracker for an answer with `choices` choices (the request's `n`; 1 where it is not known).
    pub fn new(max_event: usize, choices: usize) -> Self {
        LegTracker {
            decoder: Decoder::new(max_event),
            frames: KnownFrames::default(),
            partial: Partial::new(choices),
            error: false,
        }
    }

    /// Takes the next bytes of the response body.
    pub fn feed(&mut self, bytes: &[u8]) {
        let mut events = self.decoder.feed(bytes);
        while let Some(item) = events.next() {
            let event = match item {
                Ok(Item::Event(event)) => event,
                Ok(Item::Comment(_)) => continue,
                Err(TooLong { .. }) => {
                    self.error = true;
                    return;
                }
            };
            match Told::read(&mut self.frames, event.data) {
                Told::Chunk(chunk) => {
                    self.partial.fold(&chunk);
                    if let Some(frame) = chat::learn(event.data) {
                        self.frames.remember(frame);
                    }
                }
                // After the last finish reason it changes nothing.
                Told::Error(_) => self.error |= !self.partial.is_finished(),
                // Text of a known frame can neither begin nor end a choice.
                Told::Text { .. } | Told::Done | Told::Malformed(_) => {}
            }
        }
    }

    /// What is known so far.
    pub fn completeness(&self) -> Completeness {
        if self.error {
            Completeness::Incomplete
        } else if self.partial.is_finished() {
            Completeness::Finished
        } else if self.partial.choices.is_empty() {
            Completeness::Unknown
        } else {
            Completeness::Incomplete
        }
    }
}

//! Server-sent events: bytes to events and back, as WHATWG HTML, section 9.2 "Server-sent events", has it.
//!
//! [`Decoder`] takes the bytes of a response as they come, split anywhere, and lends out what they hold: events and comments. An event that
//! lies whole in the bytes just fed is lent from there, without a copy; what is split is put together in buffers that are kept, so that
//! the steady state allocates nothing. What is held is bounded: an event longer than the limit is an error, after which the decoder
//! yields nothing more.
//!
//! Where this differs from a browser: a comment is an item of its own, as soon as its line ends (it shows that the other side lives); an `id`
//! belongs to the event it came with and is not remembered for later ones; a name or id that is not UTF-8 counts as absent; the
//! data are bytes.

use std::ops::Range;

use memchr::{memchr, memchr2};
use thiserror::Error;

/// The limit for one event where nothing else is said, in bytes.
pub const DEFAULT_MAX_EVENT: usize = 1 << 20;

const BOM: &[u8] = b"\xef\xbb\xbf";

/// One event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event<'a> {
    /// The value of `event:`, the last one if there are several.
    pub event: Option<&'a str>,
    /// The value of `id:`. One with a NUL in it is ignored.
    pub id: Option<&'a str>,
    /// The value of `retry:` in milliseconds. Anything but digits is ignored.
    pub retry: Option<u64>,
    /// The values of the `data:` lines, joined with `\n`. Empty for a single empty `data:` line.
    pub data: &'a [u8],
}

/// What a stream of events is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Item<'a> {
    /// An event with at least one `data:` line; a block without one is no event.
    Event(Event<'a>),
    /// A comment line, without its colon and with everything after it.
    Comment(&'a [u8]),
}

/// An event, or a line, longer than the decoder's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("an event is longer than {limit} bytes")]
pub struct TooLong {
    /// The limit in bytes.
    pub limit: usize,
}

/// The incremental decoder of one response.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoder {
    max_event: usize,
    /// The start of a line whose end has not come yet.
    line: Vec<u8>,
    block: Block,
    /// What the last item was lent from, to be cleared before the next byte is looked at.
    lent: Lent,
    /// The last line ended with CR, and the LF that may belong to it has not come yet.
    after_cr: bool,
    /// No line has ended yet, so the next one may start with a byte order mark.
    at_start: bool,
    /// A feed has not been read to its end. Set by `feed`, cleared when `next` returns `None`.
    unread: bool,
    /// An error was returned, or bytes were lost: nothing comes any more.
    fused: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lent {
    Nothing,
    Line,
    Block,
}

impl Decoder {
    /// A decoder for events of at most `max_event` bytes: the sum of an event's lines, line ends not counted. A comment line, which is
    /// no part of an event, may be as long by itself.
    pub fn new(max_event: usize) -> Self {
        Decoder {
            max_event,
            line: Vec::new(),
            block: Block::default(),
            lent: Lent::Nothing,
            after_cr: false,
            at_start: true,
            unread: false,
            fused: false,
        }
    }

    /// From the next event on, events may be this long.
    pub fn set_max_event(&mut self, max_event: usize) {
        self.max_event = max_event;
    }

    /// Takes the next bytes of the response and lends out the items that they complete. The items must be read to the end: a
    /// decoder that is fed again before that has lost bytes, and yields nothing more.
    pub fn feed<'d>(&'d mut self, bytes: &'d [u8]) -> Events<'d> {
        self.fused |= self.unread;
        self.unread = true;
        Events { decoder: self, bytes, at: 0 }
    }

    /// Whether bytes of an unfinished event, or of an unfinished line, are held: an end of the response is then a cut inside an
    /// event.
    pub fn is_mid_event(&self) -> bool {
        self.block.open || !self.line.is_empty()
    }

    fn clear_lent(&mut self) {
        match std::mem::replace(&mut self.lent, Lent::Nothing) {
            Lent::Nothing => {}
            Lent::Line => self.line.clear(),
            Lent::Block => self.block.clear(),
        }
    }

    /// Checks a line, or what there is of it, against the limit.
    fn check(&self, line: &[u8]) -> Result<(), TooLong> {
        let event = if line.first() == Some(&b':') { 0 } else { self.block.size };
        if line.len() > self.max_event.saturating_sub(event) {
            return Err(TooLong { limit: self.max_event });
        }
        Ok(())
    }

    /// Takes the whole line that lies at `line` in the bytes being fed.
    fn take_fed_line(&mut self, bytes: &[u8], mut line: Range<usize>) -> Result<Option<Found>, TooLong> {
        if std::mem::take(&mut self.at_start) && bytes[line.clone()].starts_with(BOM) {
            line.start += BOM.len();
        }
        self.check(&bytes[line.clone()])?;
        Ok(match self.block.take_line(bytes, &bytes[line.clone()], Some(line.start)) {
            Line::Field => None,
            Line::Comment => Some(Found::Comment(Part::Fed(line.start + 1..line.end))),
            Line::End => self.end_block(),
        })
    }

    /// Takes the whole line that was put together in `self.line`.
    fn take_held_line(&mut self, bytes: &[u8]) -> Option<Found> {
        if std::mem::take(&mut self.at_start) && self.line.starts_with(BOM) {
            self.line.drain(..BOM.len());
        }
        match self.block.take_line(bytes, &self.line, None) {
            Line::Comment => {
                self.lent = Lent::Line;
                Some(Found::Comment(Part::Held))
            }
            Line::Field => {
                self.line.clear();
                None
            }
            // Only a byte order mark leaves an empty line here.
            Line::End => self.end_block(),
        }
    }

    fn end_block(&mut self) -> Option<Found> {
        if self.block.data.part == Part::Absent {
            self.block.clear();
            return None;
        }
        self.lent = Lent::Block;
        Some(Found::Event)
    }

    /// Adds to the line that is put together.
    fn hold_line(&mut self, part: &[u8]) -> Result<(), TooLong> {
        self.line.extend_from_slice(part);
        let bom = if self.at_start && self.line.starts_with(BOM) { BOM.len() } else { 0 };
        self.check(&self.line[bom..])
    }
}

/// The items in the bytes of one feed.
#[derive(Debug)]
pub struct Events<'d> {
    decoder: &'d mut Decoder,
    bytes: &'d [u8],
    /// How far `bytes` have been taken.
    at: usize,
}

enum Found {
    Event,
    Comment(Part),
}

impl Events<'_> {
    /// The next item; `None` when the bytes are used up and more have to be fed. After an error nothing comes any more.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend from its own buffer")]
    pub fn next(&mut self) -> Option<Result<Item<'_>, TooLong>> {
        // The item is looked for first and borrowed afterwards: a borrow that is returned from inside a loop would hold for the whole of it.
        let found = match self.find() {
            Ok(found) => found?,
            Err(error) => {
                self.decoder.fused = true;
                return Some(Err(error));
            }
        };
        let decoder = &*self.decoder;
        Some(Ok(match found {
            Found::Event => Item::Event(decoder.block.event(self.bytes)),
            Found::Comment(Part::Fed(at)) => Item::Comment(&self.bytes[at]),
            Found::Comment(_) => Item::Comment(&decoder.line[1..]),
        }))
    }

    fn find(&mut self) -> Result<Option<Found>, TooLong> {
        let decoder = &mut *self.decoder;
        if decoder.fused {
            return Ok(None);
        }
        decoder.clear_lent();
        loop {
            if decoder.after_cr && self.at < self.bytes.len() {
                decoder.after_cr = false;
                self.at += usize::from(self.bytes[self.at] == b'\n');
            }
            let rest = &self.bytes[self.at..];
            let Some(len) = memchr2(b'\n', b'\r', rest) else {
                self.at = self.bytes.len();
                decoder.hold_line(rest)?;
                decoder.block.hold(self.bytes);
                decoder.unread = false;
                return Ok(None);
            };
            let line = self.at..self.at + len;
            decoder.after_cr = rest[len] == b'\r';
            self.at = line.end + 1;
            let found = if decoder.line.is_empty() {
                decoder.take_fed_line(self.bytes, line)?
            } else {
                decoder.hold_line(&self.bytes[line])?;
                decoder.take_held_line(self.bytes)
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }
}

/// What a line is.
enum Line {
    Field,
    Comment,
    End,
}

/// The fields since the last blank line.
#[derive(Clone, Debug, Default, PartialEq)]
struct Block {
    /// Lengths of the lines so far, comments and line ends not counted.
    size: usize,
    /// There was a field that means something.
    open: bool,
    retry: Option<u64>,
    data: Field,
    event: Field,
    id: Field,
}

impl Block {
    fn clear(&mut self) {
        self.size = 0;
        self.open = false;
        self.retry = None;
        self.data.clear();
        self.event.clear();
        self.id.clear();
    }

    /// Takes a whole line. `bytes` are the bytes being fed, and `start` says where in them the line begins, if it lies there.
    fn take_line(&mut self, bytes: &[u8], line: &[u8], start: Option<usize>) -> Line {
        if line.is_empty() {
            return Line::End;
        }
        let colon = memchr(b':', line).unwrap_or(line.len());
        if colon == 0 {
            return Line::Comment;
        }
        self.size += line.len();
        let mut from = (colon + 1).min(line.len());
        from += usize::from(line.get(from) == Some(&b' '));
        let value = &line[from..];
        let fed = start.map(|start| start + from..start + line.len());
        match &line[..colon] {
            b"data" => self.data.add_line(bytes, value, fed),
            b"event" => self.event.set(value, fed),
            b"id" if memchr(0, value).is_none() => self.id.set(value, fed),
            b"retry" => match digits(value) {
                Some(retry) => self.retry = Some(retry),
                None => return Line::Field,
            },
            _ => return Line::Field,
        }
        self.open = true;
        Line::Field
    }

    /// Copies what lies in `bytes`, because they are about to go.
    fn hold(&mut self, bytes: &[u8]) {
        self.data.hold(bytes);
        self.event.hold(bytes);
        self.id.hold(bytes);
    }

    fn event<'a>(&'a self, bytes: &'a [u8]) -> Event<'a> {
        Event {
            event: self.event.text(bytes),
            id: self.id.text(bytes),
            retry: self.retry,
            data: self.data.value(bytes).unwrap_or_default(),
        }
    }
}

/// The value of one field of the unfinished event.
#[derive(Clone, Debug, Default, PartialEq)]
struct Field {
    part: Part,
    /// Kept from event to event, so that the steady state allocates nothing.
    buffer: Vec<u8>,
}

/// Where a value lies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Part {
    #[default]
    Absent,
    /// In the bytes being fed.
    Fed(Range<usize>),
    /// In a buffer of the decoder's.
    Held,
}

impl Field {
    fn clear(&mut self) {
        self.part = Part::Absent;
        self.buffer.clear();
    }

    /// Replaces the value; `fed` says where it lies in the bytes being fed, if it lies there.
    fn set(&mut self, value: &[u8], fed: Option<Range<usize>>) {
        match fed {
            Some(at) => self.part = Part::Fed(at),
            None => self.copy(value),
        }
    }

    /// Adds a line to a value that may have some already.
    fn add_line(&mut self, bytes: &[u8], line: &[u8], fed: Option<Range<usize>>) {
        if self.part == Part::Absent {
            return self.set(line, fed);
        }
        self.hold(bytes);
        self.buffer.push(b'\n');
        self.buffer.extend_from_slice(line);
    }

    fn hold(&mut self, bytes: &[u8]) {
        if let Part::Fed(at) = self.part.clone() {
            self.copy(&bytes[at]);
        }
    }

    fn copy(&mut self, value: &[u8]) {
        self.buffer.clear();
        self.buffer.extend_from_slice(value);
        self.part = Part::Held;
    }

    fn value<'a>(&'a self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        match &self.part {
            Part::Absent => None,
            Part::Fed(at) => Some(&bytes[at.clone()]),
            Part::Held => Some(&self.buffer),
        }
    }

    fn text<'a>(&'a self, bytes: &'a [u8]) -> Option<&'a str> {
        std::str::from_utf8(self.value(bytes)?).ok()
    }
}

/// A number of digits only; nothing else is a `retry`.
fn digits(value: &[u8]) -> Option<u64> {
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Appends one event: `event:` and `id:` if there are any, then one `data:` line per line of `data`, then a blank line, all with LF. A CR
/// in `data` ends a line too (a client would read it so), and `event` and `id` are cut at their first line end.
pub fn encode(out: &mut Vec<u8>, event: Option<&str>, id: Option<&str>, data: &[u8]) {
    for (name, value) in [("event: ", event), ("id: ", id)] {
        let Some(value) = value else { continue };
        let len = memchr2(b'\n', b'\r', value.as_bytes()).unwrap_or(value.len());
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&value.as_bytes()[..len]);
        out.push(b'\n');
    }
    let mut rest = data;
    loop {
        out.extend_from_slice(b"data: ");
        let Some(len) = memchr2(b'\n', b'\r', rest) else {
            break;
        };
        out.extend_from_slice(&rest[..len]);
        out.push(b'\n');
        rest = &rest[len + if rest[len..].starts_with(b"\r\n") { 2 } else { 1 }..];
    }
    out.extend_from_slice(rest);
    out.extend_from_slice(b"\n\n");
}

#[cfg(test)]
mod tests;

//! Records: what a stream's journal holds, and their compact and lossless form.
//!
//! Most events of a stream differ from each other in one short string. A [`Frame`] is an event's data around that string and is
//! kept once per stream; a [`Record`] is then the string alone. An event that fits no frame is kept whole.
//!
//! ```text
//! 1FFLLLLL text                                framed, short: frame 0–3, text of 0–31 bytes (one byte before the text)
//! 01FFFFFF len text                            framed: frame 0–63
//! 00000000 len data                            whole
//! 00000001 len event len data                  whole, with an event name
//! 00010000                                     seal: finished
//! 00010001 len reason len message              seal: incomplete
//! 00010010 / 00010011 / 00010100               seal: mirrored, cut / clean / done
//! 00010101                                     seal: abandoned
//! ```
//!
//! `len` is a varint: seven bits a byte, lowest first, the top bit set on all but the last. Records and seals share one space of
//! first bytes, so a store can keep them in one log.

use std::borrow::Cow;

use thiserror::Error;

/// A record's number in its stream: from 0, without gaps.
pub type Seq = u64;

/// How many frames a stream may define.
pub const MAX_FRAMES: usize = 64;

const SHORT: u8 = 0b1000_0000;
const SHORT_FRAMES: u8 = 4;
const SHORT_TEXT: usize = 32;
const FRAMED: u8 = 0b0100_0000;
const WHOLE: u8 = 0x00;
const WHOLE_WITH_EVENT: u8 = 0x01;
const FINISHED: u8 = 0x10;
const INCOMPLETE: u8 = 0x11;
const MIRRORED_CUT: u8 = 0x12;
const MIRRORED_CLEAN: u8 = 0x13;
const MIRRORED_DONE: u8 = 0x14;
const ABANDONED: u8 = 0x15;
const CANCELLED: u8 = 0x16;

/// The number of a frame in its stream: the order of definition, below [`MAX_FRAMES`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FrameId(pub u8);

/// An event's data around one JSON string.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// What comes before the string's content; ends with its opening quote.
    pub prefix: Box<[u8]>,
    /// What comes after the string's content; starts with its closing quote.
    pub suffix: Box<[u8]>,
}

/// One entry of a journal: the data of one event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// An event without a name that is a known frame around `text`.
    Framed {
        /// The frame, defined in the same stream before.
        frame: FrameId,
        /// The JSON string's content as it was on the wire: still escaped, without quotes.
        text: &'a [u8],
    },
    /// Any other event.
    Whole {
        /// The event's name, if it had one.
        event: Option<&'a str>,
        /// The event's data; several data lines are joined with `\n`.
        data: &'a [u8],
    },
}

/// How a stream ended. A log's last entry, and the only thing that ends it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seal {
    /// The answer is whole. The only seal after which `[DONE]` may be written.
    Finished,
    /// The answer could not be completed; the reader writes the error event.
    Incomplete {
        /// A short word for machines, such as `stall`.
        reason: Cow<'static, str>,
        /// A sentence for people.
        message: String,
    },
    /// The client gets exactly the end that the engine gave.
    Mirrored(MirroredEnd),
    /// The client went away, and nobody waits for the rest.
    Abandoned,
    /// The client said that it does not want the rest.
    Cancelled,
}

impl Seal {
    /// Whether its number is that of an event: an error, or `[DONE]`.
    pub fn has_event(&self) -> bool {
        !matches!(self, Seal::Mirrored(MirroredEnd::Cut | MirroredEnd::Clean))
    }
}

/// The end of an engine's answer, to be passed on as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MirroredEnd {
    /// The connection broke.
    Cut,
    /// The body ended properly, without `[DONE]`.
    Clean,
    /// `[DONE]`, then a proper end.
    Done,
}

/// What a relay writes to. A journal's writer is one; tests use a plain list.
pub trait Sink {
    /// Makes a frame known to the stream. `None`: the table is full ([`MAX_FRAMES`]), or nothing can be written any more; such an event
    /// is then appended whole.
    fn define(&mut self, frame: Frame) -> Option<FrameId>;
    /// Appends one record. Never waits.
    fn append(&mut self, record: Record<'_>);
    /// Ends the stream. Nothing can follow.
    fn seal(&mut self, seal: Seal);
}

/// Bytes that are not what [`Record::encode`] or [`Seal::encode`] writes, or that do not belong to these frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Corrupt {
    /// The bytes end before the entry does.
    #[error("the entry is cut short")]
    Short,
    /// No entry of the asked sort starts with this byte.
    #[error("no entry starts with the byte {0:#04x}")]
    Kind(u8),
    /// A length does not fit into 64 bits.
    #[error("a length does not fit into 64 bits")]
    Length,
    /// A name, reason or message is not UTF-8.
    #[error("a name, reason or message is not UTF-8")]
    NotUtf8,
    /// The stream has defined no such frame.
    #[error("frame {0} is not defined")]
    UnknownFrame(u8),
}

impl<'a> Record<'a> {
    /// Appends the compact form. The frame's number must be below [`MAX_FRAMES`]; [`Sink::define`] gives out no other.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Record::Framed { frame: FrameId(frame), text } => {
                debug_assert!(usize::from(frame) < MAX_FRAMES);
                if frame < SHORT_FRAMES && text.len() < SHORT_TEXT {
                    out.push(SHORT | frame << 5 | text.len() as u8);
                    out.extend_from_slice(text);
                } else {
                    out.push(FRAMED | frame);
                    put_bytes(out, text);
                }
            }
            Record::Whole { event: None, data } => {
                out.push(WHOLE);
                put_bytes(out, data);
            }
            Record::Whole { event: Some(event), data } => {
                out.push(WHOLE_WITH_EVENT);
                put_bytes(out, event.as_bytes());
                put_bytes(out, data);
            }
        }
    }

    /// How many bytes [`encode`](Self::encode) appends.
    pub fn encoded_len(&self) -> usize {
        match self {
            Record::Framed { frame, text } if frame.0 < SHORT_FRAMES && text.len() < SHORT_TEXT => 1 + text.len(),
            Record::Framed { text, .. } => 1 + len_with_prefix(text.len()),
            Record::Whole { event, data } => {
                1 + event.map_or(0, |event| len_with_prefix(event.len())) + len_with_prefix(data.len())
            }
        }
    }

    /// Reads one record from the start of `bytes`, and says how many bytes it took.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, usize), Corrupt> {
        let mut input = Input { bytes, at: 0 };
        let record = match input.byte()? {
            kind if kind & SHORT != 0 => Record::Framed {
                frame: FrameId(kind >> 5 & (SHORT_FRAMES - 1)),
                text: input.take(usize::from(kind) & (SHORT_TEXT - 1))?,
            },
            kind if kind & FRAMED != 0 => Record::Framed { frame: FrameId(kind & !FRAMED), text: input.bytes()? },
            WHOLE => Record::Whole { event: None, data: input.bytes()? },
            WHOLE_WITH_EVENT => Record::Whole { event: Some(input.text()?), data: input.bytes()? },
            kind => return Err(Corrupt::Kind(kind)),
        };
        Ok((record, input.at))
    }

    /// The length of the event's data, in bytes; 0 where the frame is not known.
    pub fn data_len(&self, frames: &[Frame]) -> usize {
        match self {
            Record::Framed { frame, text } => {
                frames.get(usize::from(frame.0)).map_or(0, |frame| frame.prefix.len() + text.len() + frame.suffix.len())
            }
            Record::Whole { data, .. } => data.len(),
        }
    }

    /// Appends the event's data, byte for byte as it came. On an error `out` is unchanged.
    pub fn write_data(&self, frames: &[Frame], out: &mut Vec<u8>) -> Result<(), Corrupt> {
        match self {
            Record::Framed { frame, text } => {
                let frame = frames.get(usize::from(frame.0)).ok_or(Corrupt::UnknownFrame(frame.0))?;
                out.extend_from_slice(&frame.prefix);
                out.extend_from_slice(text);
                out.extend_from_slice(&frame.suffix);
            }
            Record::Whole { data, .. } => out.extend_from_slice(data),
        }
        Ok(())
    }
}

impl Seal {
    /// What the end is called.
    pub fn name(&self) -> &'static str {
        match self {
            Seal::Finished => "finished",
            Seal::Incomplete { .. } => "incomplete",
            Seal::Mirrored(_) => "mirrored",
            Seal::Abandoned => "abandoned",
            Seal::Cancelled => "cancelled",
        }
    }

    /// Whether the answer is whole: the only case in which `[DONE]` may be written.
    pub fn is_finished(&self) -> bool {
        matches!(self, Seal::Finished)
    }

    /// Appends the compact form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self {
            Seal::Finished => FINISHED,
            Seal::Incomplete { .. } => INCOMPLETE,
            Seal::Mirrored(MirroredEnd::Cut) => MIRRORED_CUT,
            Seal::Mirrored(MirroredEnd::Clean) => MIRRORED_CLEAN,
            Seal::Mirrored(MirroredEnd::Done) => MIRRORED_DONE,
            Seal::Abandoned => ABANDONED,
            Seal::Cancelled => CANCELLED,
        });
        if let Seal::Incomplete { reason, message } = self {
            put_bytes(out, reason.as_bytes());
            put_bytes(out, message.as_bytes());
        }
    }

    /// Reads one seal from the start of `bytes`, and says how many bytes it took.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), Corrupt> {
        let mut input = Input { bytes, at: 0 };
        let seal = match input.byte()? {
            FINISHED => Seal::Finished,
            INCOMPLETE => {
                Seal::Incomplete { reason: Cow::Owned(input.text()?.to_owned()), message: input.text()?.to_owned() }
            }
            MIRRORED_CUT => Seal::Mirrored(MirroredEnd::Cut),
            MIRRORED_CLEAN => Seal::Mirrored(MirroredEnd::Clean),
            MIRRORED_DONE => Seal::Mirrored(MirroredEnd::Done),
            ABANDONED => Seal::Abandoned,
            CANCELLED => Seal::Cancelled,
            kind => return Err(Corrupt::Kind(kind)),
        };
        Ok((seal, input.at))
    }
}

/// A varint of 64 bits takes at most this many bytes.
const MAX_VARINT: usize = 10;

/// The length of bytes with the varint before them.
fn len_with_prefix(len: usize) -> usize {
    let bits = usize::BITS - (len | 1).leading_zeros();
    bits.div_ceil(7) as usize + len
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    let mut rest = bytes.len() as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
    out.extend_from_slice(bytes);
}

/// A cursor over bytes that may be anything.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Input<'a> {
    fn byte(&mut self) -> Result<u8, Corrupt> {
        let byte = *self.bytes.get(self.at).ok_or(Corrupt::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let end = self.at.checked_add(len).ok_or(Corrupt::Short)?;
        let taken = self.bytes.get(self.at..end).ok_or(Corrupt::Short)?;
        self.at = end;
        Ok(taken)
    }

    fn len(&mut self) -> Result<usize, Corrupt> {
        let mut len = 0u64;
        for i in 0..MAX_VARINT {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit only.
            if i == MAX_VARINT - 1 && bits > 1 {
                return Err(Corrupt::Length);
            }
            len |= bits << (7 * i);
            if byte & 0x80 == 0 {
                // A length beyond the address space cannot be there in full either.
                return usize::try_from(len).map_err(|_| Corrupt::Short);
            }
        }
        Err(Corrupt::Length)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Corrupt> {
        let len = self.len()?;
        self.take(len)
    }

    fn text(&mut self) -> Result<&'a str, Corrupt> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Corrupt::NotUtf8)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> Vec<Frame> {
        vec![Frame { prefix: br#"{"delta":{"content":""#.as_slice().into(), suffix: br#""}}"#.as_slice().into() }]
    }

    fn encoded(record: &Record<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode(&mut out);
        out
    }

    fn any_seal() -> impl Strategy<Value = Seal> {
        prop_oneof![
            Just(Seal::Finished),
            Just(Seal::Abandoned),
            Just(Seal::Cancelled),
            Just(Seal::Mirrored(MirroredEnd::Cut)),
            Just(Seal::Mirrored(MirroredEnd::Clean)),
            Just(Seal::Mirrored(MirroredEnd::Done)),
            (any::<String>(), any::<String>())
                .prop_map(|(reason, message)| Seal::Incomplete { reason: reason.into(), message }),
        ]
    }

    #[test]
    fn a_chinese_character_in_a_frame_costs_one_byte_more_than_itself() {
        let record = Record::Framed { frame: FrameId(1), text: "河".as_bytes() };
        assert_eq!(encoded(&record), [0b1010_0011, 0xe6, 0xb2, 0xb3]);
    }

    #[test]
    fn lengths_on_both_sides_of_every_step_of_the_format_come_back() {
        for len in [0, 1, 31, 32, 127, 128, 16_383, 16_384] {
            let text = vec![b'x'; len];
            for frame in [0, 3, 4, 63] {
                let record = Record::Framed { frame: FrameId(frame), text: &text };
                let bytes = encoded(&record);
                assert_eq!(bytes.len(), record.encoded_len(), "frame {frame}, {len} bytes");
                assert_eq!(Record::decode(&bytes), Ok((record, bytes.len())));
            }
        }
    }

    #[test]
    fn the_data_is_rebuilt_byte_for_byte_from_frame_and_text() {
        let mut out = b"data: ".to_vec();
        let record = Record::Framed { frame: FrameId(0), text: r"\u6cb3 河 \n".as_bytes() };
        record.write_data(&frames(), &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), r#"data: {"delta":{"content":"\u6cb3 河 \n"}}"#);
        assert_eq!(record.data_len(&frames()), r#"{"delta":{"content":"\u6cb3 河 \n"}}"#.len());
    }

    #[test]
    fn a_frame_that_is_not_defined_is_an_error_and_writes_nothing() {
        let mut out = Vec::new();
        let record = Record::Framed { frame: FrameId(1), text: b"x" };
        assert_eq!(record.write_data(&frames(), &mut out), Err(Corrupt::UnknownFrame(1)));
        assert!(out.is_empty());
    }

    #[test]
    fn bytes_that_are_no_record_are_named_errors() {
        let check = |bytes: &[u8], error| assert_eq!(Record::decode(bytes), Err(error), "{bytes:x?}");
        check(&[], Corrupt::Short);
        check(&[0b1000_0011, b'a', b'b'], Corrupt::Short);
        check(&[WHOLE], Corrupt::Short);
        check(&[WHOLE, 0x80], Corrupt::Short);
        check(&[WHOLE, 5, b'a'], Corrupt::Short);
        check(&[WHOLE, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0], Corrupt::Short);
        check(&[WHOLE, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02, 0], Corrupt::Length);
        check(&[WHOLE, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0], Corrupt::Length);
        check(&[WHOLE_WITH_EVENT, 1, 0xff, 0], Corrupt::NotUtf8);
        check(&[0x02], Corrupt::Kind(0x02));
        check(&[FINISHED], Corrupt::Kind(FINISHED));
        assert_eq!(Seal::decode(&[WHOLE, 0]), Err(Corrupt::Kind(WHOLE)));
        assert_eq!(Seal::decode(&[INCOMPLETE, 1, b'x', 1, 0xff]), Err(Corrupt::NotUtf8));
    }

    #[test]
    fn only_one_seal_says_finished() {
        assert!(Seal::Finished.is_finished());
        assert!(!Seal::Incomplete { reason: "stall".into(), message: String::new() }.is_finished());
        assert!(!Seal::Mirrored(MirroredEnd::Done).is_finished());
        assert!(!Seal::Abandoned.is_finished() && !Seal::Cancelled.is_finished());
    }

    proptest! {
        #[test]
        fn every_record_comes_back_as_it_was(
            frame in 0u8..MAX_FRAMES as u8,
            whole: bool,
            event in proptest::option::of(any::<String>()),
            data in proptest::collection::vec(any::<u8>(), 0..300),
            after in proptest::collection::vec(any::<u8>(), 0..4),
        ) {
            let record = if whole {
                Record::Whole { event: event.as_deref(), data: &data }
            } else {
                Record::Framed { frame: FrameId(frame), text: &data }
            };
            let mut bytes = encoded(&record);
            let len = bytes.len();
            prop_assert_eq!(len, record.encoded_len());
            bytes.extend_from_slice(&after);
            prop_assert_eq!(Record::decode(&bytes), Ok((record, len)));
            prop_assert_eq!(Record::decode(&bytes[..len - 1]), Err(Corrupt::Short));
        }

        #[test]
        fn every_seal_comes_back_as_it_was(seal in any_seal()) {
            let mut bytes = Vec::new();
            seal.encode(&mut bytes);
            prop_assert_eq!(Seal::decode(&bytes), Ok((seal, bytes.len())));
        }

        #[test]
        fn no_bytes_make_the_decoder_panic_or_read_beyond_them(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok((record, len)) = Record::decode(&bytes) {
                prop_assert!(len <= bytes.len());
                let again = encoded(&record);
                prop_assert_eq!(Record::decode(&again), Ok((record, again.len())));
            }
            if let Ok((_, len)) = Seal::decode(&bytes) {
                prop_assert!(len <= bytes.len());
            }
        }
    }
}

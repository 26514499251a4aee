//! The fast path: most events of a stream differ in one short string, so the bytes around it are learned once and compared
//! from then on. One comparison both reads the event and compresses its record.

mod completion;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::chunk::{Parsed, parse};
use super::json;
use super::partial::TextKind;
use super::request::Api;
use crate::proto::record::Frame;

/// An event's data around the one or two pieces in which it differs from the next one: a text, and the ids of its tokens if the
/// engine lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedFrame {
    /// What comes before the text; ends with the opening quote.
    pub prefix: Box<[u8]>,
    /// What comes between the text and the ids, from the closing quote to the opening bracket; `None`: there are no ids.
    pub between: Option<Box<[u8]>>,
    /// What comes last; starts with the closing quote, or with the closing bracket.
    pub suffix: Box<[u8]>,
    /// Which text it is.
    pub kind: TextKind,
}

/// What an event has in the places where its frame has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filling<'d> {
    /// The text, still escaped.
    pub text: &'d [u8],
    /// The inside of the list of ids: digits and commas.
    pub ids: Option<&'d str>,
}

impl LearnedFrame {
    /// The form in which a journal keeps it, if it has one piece only.
    pub fn to_record(&self) -> Option<Frame> {
        let one_piece = self.between.is_none();
        one_piece.then(|| Frame { prefix: self.prefix.clone(), suffix: self.suffix.clone() })
    }

    /// The event's data with this filling.
    pub fn fill(&self, filling: Filling<'_>) -> Vec<u8> {
        let Filling { text, ids } = filling;
        match &self.between {
            None => [&*self.prefix, text, &*self.suffix].concat(),
            Some(between) => [&*self.prefix, text, between, ids.unwrap_or_default().as_bytes(), &*self.suffix].concat(),
        }
    }

    /// What stands in the frame, if `data` is this frame around one JSON string, and around ids where it has some. Ids without text
    /// do not fit: they are of text that the engine withholds, which makes the event another kind (vLLM's completions have such).
    ///
    /// Whether the string's escapes and its UTF-8 are valid shows when it is [pushed](super::Partial::push_text).
    pub fn read<'d>(&self, data: &'d [u8]) -> Option<Filling<'d>> {
        let rest = data.strip_prefix(&*self.prefix)?.strip_suffix(&*self.suffix)?;
        let Some(between) = &self.between else {
            return (string_end(rest)? == rest.len()).then_some(Filling { text: rest, ids: None });
        };
        let (text, rest) = rest.split_at_checked(string_end(rest)?)?;
        let ids = rest.strip_prefix(&**between)?;
        let plain =
            !text.is_empty() && !ids.is_empty() && ids.iter().all(|byte| byte.is_ascii_digit() || *byte == b',');
        let ids = std::str::from_utf8(ids).ok().filter(|_| plain)?;
        Some(Filling { text, ids: Some(ids) })
    }
}

/// Learns the frame of an event's data, if it adds text to choice 0 and does nothing else: one choice, one string that is not
/// empty, and the ids of its tokens or not; no finish reason, tool call, usage or log probabilities.
///
/// An event that had to be read leniently (a key twice, an index that is not the number 0, an error beside the choice) has no frame:
/// what is odd once is read each time. Nor has one that lists its ids before its text, or the prompt's.
pub fn learn(data: &[u8]) -> Option<LearnedFrame> {
    let Ok(Parsed::Chunk(chunk)) = parse(data) else { return None };
    let [choice] = chunk.choices.as_slice() else { return None };
    let plain = choice.index == 0
        && choice.finish_reason.is_none()
        && choice.tool_calls.is_empty()
        && !choice.has_logprobs
        && !choice.opaque
        && chunk.usage.is_none()
        && chunk.prompt_token_ids.is_none();
    if !plain {
        return None;
    }
    let Pieces { text: value, kind, token_ids } = match choice.shape.api() {
        Api::Chat => pieces(data)?,
        Api::Completions => completion::pieces(data)?,
    };
    let (open, close) = inside(data, value)?;
    let text = data.get(open..close)?;
    let (between, from) = match token_ids.filter(|_| choice.token_ids.is_some()) {
        None => (None, close),
        Some(list) => {
            let (first, last) = inside(data, list)?;
            (Some(data.get(close..first)?.into()), last)
        }
    };
    let frame = LearnedFrame { prefix: data.get(..open)?.into(), between, suffix: data.get(from..)?.into(), kind };
    // What is learned must read its own event.
    frame.read(data).filter(|filling| filling.text == text).is_some().then_some(frame)
}

/// What an event may have beside its frame.
struct Pieces<'d> {
    /// The text, with its quotes.
    text: &'d RawValue,
    kind: TextKind,
    token_ids: Option<&'d RawValue>,
}

/// Of a chat's event.
fn pieces(data: &[u8]) -> Option<Pieces<'_>> {
    let strings: Strings<'_> = serde_json::from_slice(data).ok()?;
    let [StringsOfChoice { index: 0, delta, token_ids }] = strings.choices.as_slice() else { return None };
    if strings.error.is_some() {
        return None;
    }
    let filled =
        |value: Option<&'_ RawValue>| value.and_then(json::string_content).is_some_and(|text| !text.is_empty());
    let (text, kind) = match (filled(delta.content), filled(delta.reasoning), filled(delta.reasoning_content)) {
        (true, false, false) => (delta.content?, TextKind::Content),
        (false, true, false) => (delta.reasoning?, TextKind::Reasoning),
        (false, false, true) => (delta.reasoning_content?, TextKind::Reasoning),
        _ => return None,
    };
    Some(Pieces { text, kind, token_ids: *token_ids })
}

/// Where the inside of a value begins and ends: what stands between its quotes or brackets. The value borrows from `data`, so its
/// address says where it is.
fn inside(data: &[u8], value: &RawValue) -> Option<(usize, usize)> {
    let start = (value.get().as_ptr() as usize).checked_sub(data.as_ptr() as usize)?;
    let end = start.checked_add(value.get().len())?.checked_sub(1)?;
    Some((start + 1, end))
}

/// Where the JSON string ends whose content `text` begins with: at its closing quote, or at the end of `text`. `None` when it
/// cannot be a string's content.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += match byte {
            b'"' => return Some(at),
            0..0x20 => return None,
            b'\\' if at + 1 == text.len() => return None,
            b'\\' => 2,
            _ => 1,
        };
    }
    Some(at)
}

/// What is read for a frame. These are strict: a field of another type, or one that is there twice, is an error.
#[derive(Deserialize)]
struct Strings<'a> {
    #[serde(borrow)]
    choices: Vec<StringsOfChoice<'a>>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct StringsOfChoice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow)]
    delta: StringsOfDelta<'a>,
    token_ids: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct StringsOfDelta<'a> {
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    reasoning: Option<&'a RawValue>,
    reasoning_content: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests;

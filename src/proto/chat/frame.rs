//! The fast path: most events of a stream differ in one short string, so the bytes around it are learned once and compared
//! from then on. One comparison both reads the event and compresses its record.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::chunk::{Parsed, parse};
use super::json;
use super::partial::TextKind;
use crate::proto::record::Frame;

/// A frame, and what the string inside it is.
#[derive(Clone, Debug)]
pub struct LearnedFrame {
    /// The event's data around the string.
    pub frame: Frame,
    /// Which text the string belongs to.
    pub kind: TextKind,
}

/// Learns the frame of an event's data, if it adds text to choice 0 and does nothing else: one choice, one string that is not
/// empty, no finish reason, tool call, usage, log probabilities or token ids.
///
/// Token ids rule a frame out because they differ with every event and are counted. An event that had to be read leniently (a key
/// twice, an index that is not the number 0, an error beside the choice) has no frame either: what is odd once is read each time.
pub fn learn(data: &[u8]) -> Option<LearnedFrame> {
    let Ok(Parsed::Chunk(chunk)) = parse(data) else { return None };
    let [choice] = chunk.choices.as_slice() else { return None };
    let plain = choice.index == 0
        && choice.finish_reason.is_none()
        && choice.tool_calls.is_empty()
        && choice.token_ids.is_none()
        && !choice.has_logprobs
        && !choice.opaque
        && chunk.usage.is_none();
    if !plain {
        return None;
    }
    let strings: Strings<'_> = serde_json::from_slice(data).ok()?;
    let [StringsOfChoice { index: 0, delta }] = strings.choices.as_slice() else { return None };
    if strings.error.is_some() {
        return None;
    }
    let filled =
        |value: Option<&'_ RawValue>| value.and_then(json::string_content).is_some_and(|text| !text.is_empty());
    let (value, kind) = match (filled(delta.content), filled(delta.reasoning), filled(delta.reasoning_content)) {
        (true, false, false) => (delta.content?, TextKind::Content),
        (false, true, false) => (delta.reasoning?, TextKind::Reasoning),
        (false, false, true) => (delta.reasoning_content?, TextKind::Reasoning),
        _ => return None,
    };
    // The value borrows from `data`, so its address says where it stands.
    let open = (value.get().as_ptr() as usize).checked_sub(data.as_ptr() as usize)?;
    let close = (open + value.get().len()).checked_sub(1)?;
    let frame = Frame { prefix: data.get(..=open)?.into(), suffix: data.get(close..)?.into() };
    Some(LearnedFrame { frame, kind })
}

/// The string's content, still escaped, if `data` is this frame around one JSON string.
///
/// Whether its escapes and its UTF-8 are valid shows when it is [pushed](super::Partial::push_text).
pub fn text_in<'d>(frame: &Frame, data: &'d [u8]) -> Option<&'d [u8]> {
    let text = data.strip_prefix(&*frame.prefix)?.strip_suffix(&*frame.suffix)?;
    stays_inside_string(text).then_some(text)
}

/// Whether `text` neither ends the string it stands in nor escapes the quote behind it.
fn stays_inside_string(text: &[u8]) -> bool {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += match byte {
            b'"' | 0..0x20 => return false,
            b'\\' if at + 1 == text.len() => return false,
            b'\\' => 2,
            _ => 1,
        };
    }
    true
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

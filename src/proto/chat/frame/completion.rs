//! The text and the ids of a completion's event.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::Pieces;
use crate::proto::chat::TextKind;
use crate::proto::chat::json;

/// What an event adds to choice 0 of a completion. `None` where that is not all: another choice, an error beside it, no text or an
/// empty one, a field twice.
pub(super) fn pieces(data: &[u8]) -> Option<Pieces<'_>> {
    let event: Event<'_> = serde_json::from_slice(data).ok()?;
    let [Choice { index: 0, text, token_ids, delta: None }] = event.choices.as_slice() else { return None };
    let filled = json::string_content(text).is_some_and(|text| !text.is_empty());
    let pieces = Pieces { text, kind: TextKind::Content, token_ids: *token_ids };
    (filled && event.error.is_none()).then_some(pieces)
}

/// These are strict: a field of another type, or one that is there twice, is an error.
#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow)]
    text: &'a RawValue,
    token_ids: Option<&'a RawValue>,
    delta: Option<IgnoredAny>,
}

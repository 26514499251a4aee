//! What becomes of the thinking in a leg that does not go on in the thinking of the one before.

use super::{CONTENT, reasoning_names};
use crate::proto::chat::json::{self, Object};

/// What becomes of a leg's thinking.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LegThinking {
    /// It is passed on.
    #[default]
    Kept,
    /// It is dropped: the answer has begun, and the leg thinks about how to go on.
    Dropped,
    /// The leg thinks from the beginning. As far as that is what was delivered (the text, or the rest of it) it is dropped; what
    /// follows it is passed on. Once it is something else, all of it is dropped.
    Repeated(String),
}

impl LegThinking {
    /// Takes out of a delta what is not to be passed on, and says whether there was any.
    pub(super) fn take_out(&mut self, delta: &mut Object<'_>) -> bool {
        if *self == Self::Kept {
            return false;
        }
        let text = reasoning_names(delta).first().and_then(|name| delta.text(name)).unwrap_or_default();
        let left = self.left_of(&text);
        if delta.text(CONTENT).is_some_and(|text| !text.is_empty()) {
            // The thinking has ended, before all of what was delivered came again if it was still compared.
            self.end();
        }
        if text.is_empty() || left == text.len() {
            return false;
        }
        for name in reasoning_names(delta) {
            delta.set(name, json::raw(&text[text.len() - left..]));
        }
        true
    }

    /// How many bytes at the end of a piece are passed on.
    fn left_of(&mut self, text: &str) -> usize {
        let Self::Repeated(expected) = self else { return 0 };
        if let Some(rest) = expected.strip_prefix(text) {
            *expected = rest.to_owned();
            return 0;
        }
        let left = text.strip_prefix(&**expected).map(str::len);
        *self = if left.is_some() { Self::Kept } else { Self::Dropped };
        left.unwrap_or(0)
    }

    fn end(&mut self) {
        if matches!(self, Self::Repeated(_)) {
            *self = Self::Dropped;
        }
    }
}

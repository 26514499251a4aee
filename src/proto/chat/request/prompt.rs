//! The prompt of a completion.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::proto::chat::ids::IdList;
use crate::proto::chat::json;

/// What a completion is asked to go on from (vLLM 0.32, entrypoints/openai/completion/protocol.py `CompletionRequest.prompt`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// One text, alone or in a list.
    Text(Cow<'a, str>),
    /// One list of token ids, alone or in a list.
    Ids(IdList<'a>),
    /// As many prompts: each has an answer of its own.
    Several(usize),
    /// Nothing, or nothing that engines take for a prompt.
    Unread,
}

impl<'a> Prompt<'a> {
    /// Of the field's value.
    pub(super) fn of(value: &'a RawValue) -> Self {
        match (first_inside(value), json::elements(value).as_deref()) {
            // A prompt in a list of its own, and no deeper.
            (Some(b'"' | b'['), Some([prompt])) => Self::one(prompt),
            (Some(b'"' | b'['), Some(prompts)) => Self::Several(prompts.len()),
            _ => Self::one(value),
        }
    }

    fn one(value: &'a RawValue) -> Self {
        let ids = || first_inside(value).filter(u8::is_ascii_digit).and_then(|_| IdList::of(value));
        match json::text(value) {
            Some(text) => Self::Text(text),
            None => ids().map_or(Self::Unread, Self::Ids),
        }
    }
}

/// How many prompts the field's value holds: 1 unless it is a list of several texts or lists.
pub(super) fn count(value: &RawValue) -> usize {
    match first_inside(value) {
        Some(b'"' | b'[') => json::elements(value).map_or(1, |prompts| prompts.len()),
        _ => 1,
    }
}

/// The first byte of a list's first element. `]` for an empty list, `None` for what is no list.
fn first_inside(value: &RawValue) -> Option<u8> {
    value.get().strip_prefix('[')?.trim_ascii_start().bytes().next()
}

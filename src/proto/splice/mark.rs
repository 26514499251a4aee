//! The mark on a stream whose rest is not the rest of the same answer.

use serde::Serialize;

use crate::proto::chat::json::{self, Object};

/// The top-level member that carries the mark. Client libraries keep or skip members that they do not know (the `openai` package
/// 3.57.0 has it in `chunk.model_extra`).
const MEMBER: &str = "baton";

/// What the member says.
#[derive(Serialize)]
struct Inexact {
    plan: &'static str,
    exact: bool,
}

/// How far a leg is with its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// The next event that is passed on gets it.
    Due(&'static str),
    /// The last event got it, so it is not like the ones after it.
    Put,
    /// There is none, or it is behind.
    Behind,
}

impl Mark {
    /// For a leg by this plan, if that is to be said.
    pub(super) fn of(inexact: Option<&'static str>) -> Self {
        inexact.map_or(Self::Behind, Self::Due)
    }

    /// Whether the last event was one without a mark, and so will be all further ones.
    pub(super) fn is_behind(self) -> bool {
        self == Self::Behind
    }

    /// Marks an event that is passed on, if it is the one to be marked: `"baton":{"plan":"replay","exact":false}`.
    pub(super) fn put(&mut self, event: &mut Object<'_>) {
        if let Self::Due(plan) = *self {
            event.set(MEMBER, json::raw(&Inexact { plan, exact: false }));
            *self = Self::Put;
        } else {
            *self = Self::Behind;
        }
    }
}

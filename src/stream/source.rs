//! Where a leg's bytes come from: one request, or several that read like one.

use std::sync::Arc;

use super::rendered::RenderedLeg;
use crate::upstream::{Cut, Endpoint, Leg};

/// An open leg.
pub(super) enum Source {
    Request(Box<Leg>),
    Rendered(Box<RenderedLeg>),
}

impl Source {
    /// The next bytes, never empty; `None` at the end. May be dropped before it is ready, and called again.
    pub(super) async fn read(&mut self) -> Result<Option<&[u8]>, Cut> {
        match self {
            Self::Request(leg) => leg.read().await,
            Self::Rendered(leg) => leg.read().await,
        }
    }

    /// The engine that answers.
    pub(super) fn endpoint(&self) -> &Arc<Endpoint> {
        match self {
            Self::Request(leg) => leg.endpoint(),
            Self::Rendered(leg) => leg.endpoint(),
        }
    }

    /// How many endpoints accepted no connection before this one did.
    pub(super) fn unconnected(&self) -> usize {
        match self {
            Self::Request(leg) => leg.failures().len(),
            Self::Rendered(leg) => leg.unconnected(),
        }
    }

    /// Gives its connection back to the pool, if it was read to its end; closes it otherwise.
    pub(super) async fn finish(self) {
        match self {
            Self::Request(leg) => leg.finish().await,
            Self::Rendered(leg) => leg.finish().await,
        }
    }
}

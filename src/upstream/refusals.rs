//! Ways to continue that the engines of an upstream have refused: each is left alone for a while, or until it has worked.
//!
//! Streams look when they begin, and most of them never need to go on. So an old refusal is simply forgotten, for all of them, and
//! not lifted for one to try: that one would hardly ever come to it. What it costs is a refused request for each stream that
//! loses its engine between then and the next refusal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::proto::resume::{PlanKind, PlanSet};

/// How long a refusal is believed. What refuses (an engine's version, its model's template, a provider's rules) seldom changes,
/// and what is tried in vain costs a stream a request.
const MEMORY: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Refusals {
    /// What the times are counted from.
    began: Instant,
    /// Until when each kind is barred, in milliseconds; 0: it is not.
    until: [AtomicU64; PlanKind::ALL.len()],
}

impl Refusals {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), until: Default::default() }
    }

    pub(super) fn refused(&self, kind: PlanKind) {
        self.of(kind).store(self.after(MEMORY), Ordering::Relaxed);
    }

    pub(super) fn worked(&self, kind: PlanKind) {
        self.of(kind).store(0, Ordering::Relaxed);
    }

    pub(super) fn forget(&self) {
        PlanKind::ALL.into_iter().for_each(|kind| self.worked(kind));
    }

    /// The kinds that are barred now.
    pub(super) fn barred(&self) -> PlanSet {
        let now = self.after(Duration::ZERO);
        PlanKind::ALL.into_iter().filter(|kind| now <= self.of(*kind).load(Ordering::Relaxed)).collect()
    }

    fn of(&self, kind: PlanKind) -> &AtomicU64 {
        &self.until[kind as usize]
    }

    /// The time in so long; never 0.
    fn after(&self, time: Duration) -> u64 {
        u64::try_from((self.began.elapsed() + time).as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::proto::resume::PlanKind::{Prefix, TokenExact};

    fn barred(refusals: &Refusals) -> Vec<PlanKind> {
        refusals.barred().iter().collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_kind_is_barred_for_ten_minutes_and_no_other() {
        let refusals = Refusals::new();
        assert_eq!(barred(&refusals), []);
        refusals.refused(Prefix);
        assert_eq!(barred(&refusals), [Prefix]);
        advance(MEMORY).await;
        assert_eq!(barred(&refusals), [Prefix]);
        advance(Duration::from_millis(1)).await;
        assert_eq!(barred(&refusals), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_after_that_bars_it_anew() {
        let refusals = Refusals::new();
        refusals.refused(Prefix);
        advance(MEMORY + Duration::from_millis(1)).await;
        assert_eq!(barred(&refusals), []);
        refusals.refused(Prefix);
        assert_eq!(barred(&refusals), [Prefix]);
        advance(MEMORY / 2).await;
        refusals.refused(Prefix);
        advance(MEMORY).await;
        assert_eq!(barred(&refusals), [Prefix], "the last one counts");
    }

    #[tokio::test(start_paused = true)]
    async fn what_worked_or_is_forgotten_is_free_at_once() {
        let refusals = Refusals::new();
        refusals.refused(Prefix);
        refusals.refused(TokenExact);
        refusals.worked(Prefix);
        assert_eq!(barred(&refusals), [TokenExact]);
        refusals.forget();
        assert_eq!(barred(&refusals), []);
    }
}

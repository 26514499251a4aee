//! Ways to continue that the engines of an upstream have refused: each is left alone for a while, then one stream tries again.
//!
//! For each kind: free ── refused ──► barred for [`MEMORY`] ──► one caller of [`Refusals::barred`] does not find it barred, all
//! others do for another [`TRIAL`] ──► the next one … until it is said to have worked (free) or to have been refused (barred).
//! A try of which nothing is ever said, because the stream did not come to it, so costs nobody more than that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::proto::resume::{PlanKind, PlanSet};

/// How long a refusal is believed. What refuses (an engine's version, its model's template, a provider's rules) seldom changes,
/// and what is tried in vain costs a stream a request.
const MEMORY: Duration = Duration::from_secs(600);

/// How long a try may take until the next one is allowed. Long enough for an engine's answer to a request that it refuses.
const TRIAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Refusals {
    /// What the times are counted from.
    began: Instant,
    /// Until when each kind is barred, in milliseconds, rounded up; 0: it is not.
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

    /// The kinds that are barred for whoever asks now.
    pub(super) fn barred(&self) -> PlanSet {
        let barred = |kind: &PlanKind| {
            let until = self.of(*kind).load(Ordering::Relaxed);
            until != 0 && (self.after(Duration::ZERO) <= until || !self.takes_the_try(*kind, until))
        };
        PlanKind::ALL.into_iter().filter(barred).collect()
    }

    /// Of several that find it expired at once, one gets the try.
    fn takes_the_try(&self, kind: PlanKind, expired: u64) -> bool {
        let next = self.after(TRIAL);
        self.of(kind).compare_exchange(expired, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
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
    async fn after_that_one_may_try_and_the_others_wait_for_what_comes_of_it() {
        for worked in [true, false] {
            let refusals = Refusals::new();
            refusals.refused(Prefix);
            refusals.refused(TokenExact);
            advance(MEMORY + Duration::from_millis(1)).await;
            assert_eq!(barred(&refusals), [], "the first may try both");
            assert_eq!(barred(&refusals), [TokenExact, Prefix]);
            if worked {
                refusals.worked(Prefix);
                assert_eq!(barred(&refusals), [TokenExact]);
            } else {
                refusals.refused(Prefix);
                advance(TRIAL + Duration::from_millis(1)).await;
                assert_eq!(barred(&refusals), [Prefix], "the other kind has had no answer, so the next may try it");
                advance(MEMORY).await;
                assert_eq!(barred(&refusals), []);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_that_ask_at_once_one_may_try() {
        let refusals = Refusals::new();
        refusals.refused(Prefix);
        advance(MEMORY + Duration::from_millis(1)).await;
        let expired = refusals.of(Prefix).load(Ordering::Relaxed);
        let free = (0..8).filter(|_| refusals.takes_the_try(Prefix, expired)).count();
        assert_eq!(free, 1);
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

//! Ways to continue that the engines of an upstream have refused: each is left alone for a while, or until it has worked.
//!
//! One refusal may be about the request that was refused, whatever an engine's words for it. So the upstream is believed to be what
//! refuses once several streams have been refused and none was accepted between them; until then each stream finds out for itself.
//!
//! Streams look when they begin, and most of them never need to go on. So an old refusal is simply forgotten, for all of them, and
//! not lifted for one to try: that one would hardly ever come to it. What it costs is a refused request for each stream that
//! loses its engine before there are enough refusals again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::proto::resume::{PlanKind, PlanSet};

/// How long a refusal is believed. What refuses (an engine's version, its model's template, a provider's rules) seldom changes,
/// and what is tried in vain costs a stream a request.
const MEMORY: Duration = Duration::from_secs(600);

/// Streams that have to be refused, each within [`MEMORY`] of the one before, for a kind to be barred.
pub(super) const ENOUGH: u32 = 3;

#[derive(Debug)]
pub(super) struct Refusals {
    /// What the times are counted from.
    began: Instant,
    kinds: [Refused; PlanKind::ALL.len()],
}

/// What has come of one kind.
#[derive(Debug, Default)]
struct Refused {
    /// Streams refused since it last worked.
    times: AtomicU32,
    /// Until when they are remembered, in milliseconds.
    until: AtomicU64,
}

impl Refusals {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), kinds: Default::default() }
    }

    /// A stream was refused to go on by this kind. Whether that has barred it.
    pub(super) fn refused(&self, kind: PlanKind) -> bool {
        let Refused { times, until } = &self.kinds[kind as usize];
        if until.swap(self.after(MEMORY), Ordering::Relaxed) < self.after(Duration::ZERO) {
            times.store(0, Ordering::Relaxed);
        }
        times.fetch_add(1, Ordering::Relaxed) + 1 == ENOUGH
    }

    pub(super) fn worked(&self, kind: PlanKind) {
        self.kinds[kind as usize].times.store(0, Ordering::Relaxed);
    }

    pub(super) fn forget(&self) {
        PlanKind::ALL.into_iter().for_each(|kind| self.worked(kind));
    }

    /// The kinds that are barred now.
    pub(super) fn barred(&self) -> PlanSet {
        let now = self.after(Duration::ZERO);
        let barred = |kind: &PlanKind| {
            let Refused { times, until } = &self.kinds[*kind as usize];
            times.load(Ordering::Relaxed) >= ENOUGH && now <= until.load(Ordering::Relaxed)
        };
        PlanKind::ALL.into_iter().filter(barred).collect()
    }

    /// The time in so long, in milliseconds.
    fn after(&self, time: Duration) -> u64 {
        u64::try_from((self.began.elapsed() + time).as_millis()).unwrap_or(u64::MAX)
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

    fn bar(refusals: &Refusals, kind: PlanKind) {
        let told: Vec<bool> = (0..ENOUGH).map(|_| refusals.refused(kind)).collect();
        assert_eq!(told, [false, false, true], "it is told once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_several_streams_were_refused_is_barred_for_ten_minutes_and_no_other() {
        let refusals = Refusals::new();
        refusals.refused(Prefix);
        refusals.refused(TokenExact);
        refusals.refused(Prefix);
        assert_eq!(barred(&refusals), []);
        assert!(refusals.refused(Prefix));
        assert_eq!(barred(&refusals), [Prefix]);
        assert!(!refusals.refused(Prefix), "it was barred already");
        advance(MEMORY).await;
        assert_eq!(barred(&refusals), [Prefix]);
        advance(Duration::from_millis(1)).await;
        assert_eq!(barred(&refusals), []);
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_far_apart_bar_nothing() {
        let refusals = Refusals::new();
        for _ in 0..2 * ENOUGH {
            assert!(!refusals.refused(Prefix));
            advance(MEMORY + Duration::from_millis(1)).await;
        }
        assert_eq!(barred(&refusals), []);
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_after_that_bar_it_anew_and_the_last_one_counts() {
        let refusals = Refusals::new();
        bar(&refusals, Prefix);
        advance(MEMORY + Duration::from_millis(1)).await;
        assert_eq!(barred(&refusals), []);
        bar(&refusals, Prefix);
        advance(MEMORY / 2).await;
        refusals.refused(Prefix);
        advance(MEMORY).await;
        assert_eq!(barred(&refusals), [Prefix]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_worked_between_them_or_is_forgotten_is_free_at_once() {
        let refusals = Refusals::new();
        for _ in 0..2 {
            refusals.refused(Prefix);
            refusals.refused(Prefix);
            refusals.worked(Prefix);
        }
        assert_eq!(barred(&refusals), []);
        bar(&refusals, Prefix);
        bar(&refusals, TokenExact);
        refusals.worked(Prefix);
        assert_eq!(barred(&refusals), [TokenExact]);
        refusals.forget();
        assert_eq!(barred(&refusals), []);
    }
}

//! How many requests are under way, for a drain to wait on.

use tokio::sync::watch;

/// Counts requests under way. Clones count together.
#[derive(Debug, Clone)]
pub struct Live(watch::Sender<usize>);

/// One request under way, until it is dropped.
#[derive(Debug)]
pub struct LiveGuard(Live);

impl Live {
    /// A request begins.
    pub fn enter(&self) -> LiveGuard {
        self.0.send_modify(|live| *live += 1);
        LiveGuard(self.clone())
    }

    /// The number of requests under way.
    pub fn count(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until there is none.
    pub async fn idle(&self) {
        // Fails only without a sender, and `self` holds one.
        let _ = self.0.subscribe().wait_for(|live| *live == 0).await;
    }
}

impl Default for Live {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|live| *live -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn idle_waits_for_the_last_request() {
        let live = Live::default();
        let (first, second) = (live.enter(), live.clone().enter());
        let waiter = tokio::spawn({
            let live = live.clone();
            async move { live.idle().await }
        });
        drop(first);
        assert_eq!(live.count(), 1);
        assert!(!waiter.is_finished());
        drop(second);
        waiter.await.unwrap();
    }

    #[tokio::test]
    async fn idle_is_ready_at_once_when_nothing_is_under_way() {
        Live::default().idle().await;
    }
}

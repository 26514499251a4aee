//! What is held for streams, and what is given up when it gets too much.
//!
//! | of a limit | then |
//! |---|---|
//! | [`SCARCE`] | streams that nobody reads are given up, in the order of [`Loss`], before anything else is denied |
//! | [`TIGHT`] and nothing left to give up | new streams are not kept for clients that come back |
//! | [`FULL`] and nothing left to give up | new requests are refused |

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{interval, timeout};

use super::kept::Tenant;
use super::registry::Registry;
use crate::journal::{Full, Keep, MemoryStore, Share, Writer};
use crate::telemetry::metrics::Metrics;

/// Thousandths of a limit from which on streams that nobody reads are given up.
const SCARCE: usize = 800;

/// Thousandths of a limit from which on new streams are not kept.
const TIGHT: usize = 900;

/// Thousandths of a limit from which on there is no room. Not all of it: logs that grow at the limit give up their own oldest records,
/// and hold a segment less than it then.
const FULL: usize = 990;

/// Most streams that are given up for one request.
const FOR_ONE: usize = 8;

/// And in one second, where requests do not see to it.
const A_SECOND: usize = 256;

/// How long a stream that is given up may take to be gone. It is woken, and takes no longer than its task's turn.
const TURN: Duration = Duration::from_millis(200);

/// What one process may hold, besides the limits of its journal.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of memory that the process may have resident; `None`: no bound.
    pub memory: Option<usize>,
    /// Bytes of the journal for one tenant.
    pub tenant_bytes: usize,
    /// Kept streams of one tenant.
    pub tenant_streams: usize,
}

/// Whether there is room for one more stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// There is.
    Ample,
    /// Only for one that is not kept.
    Tight,
    /// No.
    None,
}

/// What is held for streams, against what may be.
#[derive(Debug)]
pub struct Load {
    store: Arc<MemoryStore>,
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
    bounds: Bounds,
    /// Bytes that the process had resident when last asked.
    resident: AtomicUsize,
    tenants: Mutex<HashMap<[u8; 32], Weak<Share>>>,
}

impl Load {
    /// Of this store and its streams.
    pub fn new(store: Arc<MemoryStore>, registry: Arc<Registry>, metrics: Arc<Metrics>, bounds: Bounds) -> Arc<Self> {
        let (resident, tenants) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { store, registry, metrics, bounds, resident, tenants })
    }

    /// Makes room for one more stream, as far as that can be done by giving up streams that nobody reads.
    pub async fn make_room(&self) -> Room {
        // What the process has resident is known once a second only, and does not fall with every stream that goes.
        let most = if self.journal() >= SCARCE { FOR_ONE } else { 1 };
        self.give_up(most).await;
        match self.strain() {
            FULL.. => Room::None,
            TIGHT.. => Room::Tight,
            _ => Room::Ample,
        }
    }

    /// A journal for a stream of `tenant` that is kept.
    pub fn keeping(&self, tenant: &Tenant) -> Result<Writer, Full> {
        self.share(tenant).create_keeping(Keep::All)
    }

    /// Asks once a second what the process has resident, and gives up streams where no request sees to it. Never ends.
    pub async fn watch(&self) {
        let mut every = interval(Duration::from_secs(1));
        loop {
            every.tick().await;
            if self.bounds.memory.is_some() {
                self.resident.store(resident().unwrap_or_default(), Relaxed);
            }
            self.give_up(A_SECOND).await;
            self.tenants().retain(|_, share| share.strong_count() > 0);
        }
    }

    async fn give_up(&self, most: usize) {
        for _ in 0..most {
            if self.strain() < SCARCE {
                return;
            }
            let Some((loss, gone)) = self.registry.give_up_one() else { return };
            self.metrics.given_up(loss.name());
            // Whatever it says: it is gone, or takes its time.
            let _ = timeout(TURN, gone).await;
        }
    }

    /// Thousandths of the limit that is nearest.
    fn strain(&self) -> usize {
        self.journal().max(thousandths(self.resident.load(Relaxed), self.bounds.memory.unwrap_or(usize::MAX)))
    }

    fn journal(&self) -> usize {
        let limits = self.store.limits();
        thousandths(self.store.bytes(), limits.max_total).max(thousandths(self.store.streams(), limits.max_streams))
    }

    fn share(&self, tenant: &Tenant) -> Arc<Share> {
        let mut tenants = self.tenants();
        let known = tenants.get(tenant.digest()).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let share = self.store.share(self.bounds.tenant_bytes, self.bounds.tenant_streams);
            tenants.insert(*tenant.digest(), Arc::downgrade(&share));
            share
        })
    }

    fn tenants(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Weak<Share>>> {
        // Every change is complete before anything foreign runs.
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn thousandths(of: usize, limit: usize) -> usize {
    (of as u128 * 1000 / limit.max(1) as u128) as usize
}

/// Bytes of memory that this process has resident; known on Linux only.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? * 1024)
}

#[cfg(test)]
mod tests;

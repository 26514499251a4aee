//! The streams that clients may come back to.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::id::StreamId;
use super::kept::{Kept, Tenant};

/// Parts of the table, each with a lock of its own; it is held for a look-up, and never by a stream's events.
const SHARDS: usize = 64;

/// How long it is remembered that a stream was there, so that who comes too late is told so.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The most streams of which nothing else is remembered.
const MAX_REMEMBERED: usize = 100_000;

/// How often what is due is looked for.
pub const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// What is found under an id.
#[derive(Debug)]
pub enum Found {
    /// The stream.
    Kept(Arc<Kept>),
    /// It was there, and its time is over.
    Expired,
    /// There is no such stream, or it is somebody else's.
    Unknown,
}

/// The table of streams, by the part of their ids that is not secret.
#[derive(Debug)]
pub struct Registry {
    shards: [Mutex<HashMap<Box<str>, Slot>>; SHARDS],
    /// When to look at which. A stream may be due later than it says here, never earlier.
    due: Mutex<BTreeSet<(Instant, Box<str>)>>,
}

#[derive(Debug)]
enum Slot {
    Kept(Arc<Kept>),
    Over { id: StreamId, tenant: Tenant, until: Instant },
}

impl Default for Registry {
    fn default() -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), due: Mutex::default() }
    }
}

impl Registry {
    /// Keeps a stream until it is due. False: another one has the same time, node and number, and this one cannot be found again.
    pub fn keep(&self, kept: &Arc<Kept>) -> bool {
        let name: Box<str> = kept.id().short().into();
        let mut shard = self.shard(&name);
        if shard.contains_key(&name) {
            return false;
        }
        shard.insert(name.clone(), Slot::Kept(Arc::clone(kept)));
        drop(shard);
        self.look_at(kept.due(), name);
        true
    }

    /// Looks again at a stream that has ended, and is due earlier therefore.
    pub fn ended(&self, kept: &Kept) {
        self.look_at(kept.due(), kept.id().short().into());
    }

    /// The stream of this id, for its tenant only.
    pub fn find(&self, id: &StreamId, tenant: &Tenant) -> Found {
        let mut shard = self.shard(id.short());
        match shard.get(id.short()) {
            Some(Slot::Kept(kept)) if !kept.is(id, tenant) => Found::Unknown,
            Some(Slot::Kept(kept)) if kept.due() > Instant::now() => Found::Kept(Arc::clone(kept)),
            Some(Slot::Kept(_)) => {
                // The sweep has not been here yet.
                let over = expire(&mut shard, id.short());
                drop(shard);
                self.retire(over);
                Found::Expired
            }
            Some(Slot::Over { id: over, tenant: of, until })
                if over.is(id) & of.is(tenant) && *until > Instant::now() =>
            {
                Found::Expired
            }
            _ => Found::Unknown,
        }
    }

    /// Forgets what is due. Costs as much as there is of that, whatever else is kept.
    pub fn sweep(&self) {
        let now = Instant::now();
        while let Some(name) = self.next_due(now) {
            let mut shard = self.shard(&name);
            match shard.get(&name) {
                Some(Slot::Kept(kept)) if kept.due() > now => {
                    let due = kept.due();
                    drop(shard);
                    self.look_at(due, name);
                }
                Some(Slot::Kept(_)) => {
                    let over = expire(&mut shard, &name);
                    drop(shard);
                    self.retire(over);
                }
                Some(Slot::Over { until, .. }) if *until <= now => {
                    shard.remove(&name);
                }
                _ => {}
            }
        }
    }

    /// How many streams are kept, those included of which only the name is remembered.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, name: &str) -> MutexGuard<'_, HashMap<Box<str>, Slot>> {
        // The last characters are the counter's: one stream after the other goes to another shard.
        let at = name.bytes().rev().take(3).fold(0, |hash, byte| hash * 31 + usize::from(byte));
        lock(&self.shards[at % SHARDS])
    }

    fn look_at(&self, due: Instant, name: Box<str>) {
        lock(&self.due).insert((due, name));
    }

    fn next_due(&self, now: Instant) -> Option<Box<str>> {
        let mut due = lock(&self.due);
        let first = due.first().filter(|(at, _)| *at <= now)?.clone();
        due.remove(&first);
        Some(first.1)
    }

    /// Lets a stream go whose time is over, outside of any lock: its journal goes with it.
    fn retire(&self, over: Option<(Arc<Kept>, Instant)>) {
        if let Some((kept, until)) = over {
            kept.forget();
            self.look_at(until, kept.id().short().into());
        }
    }
}

/// Puts a name in the place of a stream.
fn expire(shard: &mut HashMap<Box<str>, Slot>, name: &str) -> Option<(Arc<Kept>, Instant)> {
    let room = shard.len() <= MAX_REMEMBERED / SHARDS;
    let slot = shard.get_mut(name)?;
    let Slot::Kept(kept) = slot else { return None };
    let (kept, until) = (Arc::clone(kept), Instant::now() + REMEMBERED);
    *slot = Slot::Over { id: kept.id().clone(), tenant: *kept.tenant(), until };
    if !room {
        shard.remove(name);
    }
    Some((kept, until))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before anything foreign runs.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

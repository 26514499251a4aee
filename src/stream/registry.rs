//! The streams that clients may come back to.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::id::StreamId;
use super::kept::{Digest, Kept, Never, Tenant};
use super::unread::{Loss, Unread};

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
    /// The streams whose requests have keys, and requests whose streams have not begun yet.
    keys: Mutex<HashMap<Digest, Keyed>>,
    /// When to look at which; one entry for each slot.
    due: Mutex<BTreeSet<(Instant, Box<str>)>>,
    unread: Arc<Unread>,
}

/// What is known under a key. Set once the stream has begun; without a sender it never will.
type Keyed = watch::Receiver<Option<Arc<Kept>>>;

/// What is found under a key.
#[derive(Debug)]
pub enum Claimed {
    /// The stream that the request with this key has begun.
    Kept(Arc<Kept>),
    /// Nothing: the request is the first.
    First(Claim),
}

/// A key whose request is on its way to an engine. Dropped without a stream, it is free again.
#[derive(Debug)]
pub struct Claim {
    registry: Arc<Registry>,
    key: Digest,
    stream: watch::Sender<Option<Arc<Kept>>>,
}

impl Claim {
    /// The key.
    pub fn key(&self) -> Digest {
        self.key
    }

    /// The stream has begun. The key is known for as long as it is kept.
    pub fn fill(self, kept: &Arc<Kept>) {
        self.stream.send_replace(Some(Arc::clone(kept)));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.stream.borrow().is_none() {
            lock(&self.registry.keys).remove(&self.key);
        }
    }
}

/// What is known under a name, and when to look at it.
#[derive(Debug)]
struct Slot {
    what: What,
    due: Instant,
}

#[derive(Debug)]
enum What {
    Kept(Arc<Kept>),
    Over { id: StreamId, tenant: Tenant },
}

impl Default for Registry {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            keys: Mutex::default(),
            due: Mutex::default(),
            unread: Arc::default(),
        }
    }
}

impl Registry {
    /// Keeps a stream until it is due. False: another one has the same time, node and number, and this one cannot be found again.
    pub fn keep(&self, kept: &Arc<Kept>) -> bool {
        let (name, due): (Box<str>, _) = (kept.id().short().into(), kept.due());
        let mut shard = self.shard(&name);
        if shard.contains_key(&name) {
            return false;
        }
        shard.insert(name.clone(), Slot { what: What::Kept(Arc::clone(kept)), due });
        self.due().insert((due, name));
        drop(shard);
        kept.count_in(&self.unread);
        true
    }

    /// Gives up the stream that nobody reads and that is missed least: it is forgotten, and its engine told to stop. What is given back
    /// resolves when nothing of it is there any more. `None`: every stream has a reader.
    pub(super) fn give_up_one(&self) -> Option<(Loss, oneshot::Receiver<Never>)> {
        let (loss, kept) = self.unread.take_first()?;
        let gone = kept.watch_end();
        let over = self.expire(&mut self.shard(kept.id().short()), kept.id().short());
        self.retire(over);
        Some((loss, gone))
    }

    /// How many streams an engine writes and nobody reads.
    pub fn orphans(&self) -> usize {
        self.unread.orphans()
    }

    /// Notes that a stream has ended, and is due earlier therefore. The key of one of which nothing has come is free again.
    pub fn ended(&self, kept: &Arc<Kept>) {
        kept.place();
        if kept.is_empty() {
            self.free_key(kept);
        }
        let (name, due) = (kept.id().short(), kept.due());
        let mut shard = self.shard(name);
        if let Some(slot) =
            shard.get_mut(name).filter(|slot| matches!(&slot.what, What::Kept(is) if Arc::ptr_eq(is, kept)))
        {
            self.move_to(slot, due, name);
        }
    }

    /// The stream of this id, for its tenant only.
    pub fn find(&self, id: &StreamId, tenant: &Tenant) -> Found {
        let now = Instant::now();
        let mut shard = self.shard(id.short());
        let Some(Slot { what, due }) = shard.get(id.short()) else { return Found::Unknown };
        match what {
            What::Kept(kept) if !kept.is(id, tenant) => Found::Unknown,
            What::Kept(kept) if kept.due() > now => Found::Kept(Arc::clone(kept)),
            What::Kept(_) => {
                // The sweep has not been here yet.
                let over = self.expire(&mut shard, id.short());
                drop(shard);
                self.retire(over);
                Found::Expired
            }
            What::Over { id: over, tenant: of } if over.is(id) & of.is(tenant) && *due > now => Found::Expired,
            What::Over { .. } => Found::Unknown,
        }
    }

    /// What a key stands for. Waits while its request is on the way.
    pub async fn claim(self: &Arc<Self>, key: Digest) -> Claimed {
        loop {
            let mut keyed = {
                let mut keys = lock(&self.keys);
                match keys.get(&key) {
                    Some(keyed) => keyed.clone(),
                    None => {
                        let (stream, keyed) = watch::channel(None);
                        keys.insert(key, keyed);
                        return Claimed::First(Claim { registry: Arc::clone(self), key, stream });
                    }
                }
            };
            let known = keyed.wait_for(Option::is_some).await.ok().and_then(|kept| kept.clone());
            match known {
                Some(kept) if kept.due() > Instant::now() => return Claimed::Kept(kept),
                // Its time is over, or nothing came of it.
                _ => {
                    let mut keys = lock(&self.keys);
                    if keys.get(&key).is_some_and(|now| now.same_channel(&keyed)) {
                        keys.remove(&key);
                    }
                }
            }
        }
    }

    /// Forgets what is due. Costs as much as there is of that, whatever else is kept.
    pub fn sweep(&self) {
        let now = Instant::now();
        while let Some(name) = self.next_due(now) {
            let mut shard = self.shard(&name);
            let Some(slot) = shard.get_mut(&name).filter(|slot| slot.due <= now) else { continue };
            match &slot.what {
                What::Kept(kept) if kept.due() > now => {
                    let due = kept.due();
                    self.move_to(slot, due, &name);
                }
                What::Kept(_) => {
                    let over = self.expire(&mut shard, &name);
                    drop(shard);
                    self.retire(over);
                }
                What::Over { .. } => {
                    shard.remove(&name);
                }
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

    fn due(&self) -> MutexGuard<'_, BTreeSet<(Instant, Box<str>)>> {
        lock(&self.due)
    }

    /// Looks at a slot at another time. Its shard is locked: always before the index.
    fn move_to(&self, slot: &mut Slot, due: Instant, name: &str) {
        let mut index = self.due();
        index.remove(&(slot.due, name.into()));
        index.insert((due, name.into()));
        slot.due = due;
    }

    fn next_due(&self, now: Instant) -> Option<Box<str>> {
        let mut due = self.due();
        let first = due.first().filter(|(at, _)| *at <= now)?.clone();
        due.remove(&first);
        Some(first.1)
    }

    /// Puts a name in the place of a stream, if there is room for one.
    fn expire(&self, shard: &mut HashMap<Box<str>, Slot>, name: &str) -> Option<Arc<Kept>> {
        let room = shard.len() <= MAX_REMEMBERED / SHARDS;
        let slot = shard.get_mut(name)?;
        let What::Kept(kept) = &slot.what else { return None };
        let kept = Arc::clone(kept);
        if room {
            slot.what = What::Over { id: kept.id().clone(), tenant: *kept.tenant() };
            self.move_to(slot, Instant::now() + REMEMBERED, name);
        } else {
            self.due().remove(&(slot.due, name.into()));
            shard.remove(name);
        }
        Some(kept)
    }

    /// Lets a stream go whose time is over, outside of any lock: its journal goes with it.
    fn retire(&self, over: Option<Arc<Kept>>) {
        if let Some(kept) = over {
            self.free_key(&kept);
            kept.forget();
            kept.count_out();
        }
    }

    /// Nothing is known any more under the key of a stream's request.
    fn free_key(&self, kept: &Arc<Kept>) {
        let Some(key) = kept.key() else { return };
        let mut keys = lock(&self.keys);
        let is_its = |keyed: &Keyed| keyed.borrow().as_ref().is_some_and(|keyed| Arc::ptr_eq(keyed, kept));
        if keys.get(key).is_some_and(is_its) {
            keys.remove(key);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before anything foreign runs.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::super::kept::tests::kept;
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn state(registry: &Registry, kept: &Kept) -> &'static str {
        match registry.find(kept.id(), kept.tenant()) {
            Found::Kept(_) => "kept",
            Found::Expired => "expired",
            Found::Unknown => "unknown",
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_found_until_it_is_due_then_remembered_and_then_forgotten() {
        for swept in [false, true] {
            let registry = Arc::new(Registry::default());
            let kept = kept();
            assert!(registry.keep(&kept) && !registry.keep(&kept));
            advance(30 * MINUTE - Duration::from_millis(1)).await;
            registry.sweep();
            assert_eq!(state(&registry, &kept), "kept");
            advance(Duration::from_millis(1)).await;
            if swept {
                registry.sweep();
            }
            assert_eq!(state(&registry, &kept), "expired");
            assert!(matches!(registry.find(kept.id(), &Tenant::of(Some(b"other"))), Found::Unknown));
            advance(REMEMBERED).await;
            assert_eq!(state(&registry, &kept), "unknown");
            registry.sweep();
            assert_eq!((registry.len(), registry.due().len()), (0, 0));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_free_again_where_nothing_came_of_it_and_with_its_stream() {
        let registry = Arc::new(Registry::default());
        let key = Digest::of(b"key");
        let Claimed::First(claim) = registry.claim(key).await else { panic!("it is the first") };
        let waiting = tokio::spawn({
            let registry = Arc::clone(&registry);
            async move { registry.claim(key).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(claim);
        let Claimed::First(claim) = waiting.await.expect("no panic") else { panic!("nothing has come of the first") };
        let kept = kept();
        registry.keep(&kept);
        claim.fill(&kept);
        assert!(matches!(registry.claim(key).await, Claimed::Kept(found) if Arc::ptr_eq(&found, &kept)));
        advance(30 * MINUTE).await;
        registry.sweep();
        assert!(lock(&registry.keys).is_empty());
        assert!(matches!(registry.claim(key).await, Claimed::First(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_key_gets_the_stream_once_it_has_begun() {
        let registry = Arc::new(Registry::default());
        let key = Digest::of(b"key");
        let Claimed::First(claim) = registry.claim(key).await else { panic!("it is the first") };
        let kept = kept();
        let (second, ()) = tokio::join!(registry.claim(key), async { claim.fill(&kept) });
        assert!(matches!(second, Claimed::Kept(found) if Arc::ptr_eq(&found, &kept)));
    }
}

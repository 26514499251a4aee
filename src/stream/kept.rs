//! A stream that clients may come back to: who reads it, and how long it goes on without anybody.
//!
//! ```text
//!             attend                    left, grace                     sealed, ttl
//!   (begun) ──────────► read ◄────────────────────► orphan ──► abandoned ─────────► forgotten
//!                        │        attend              │ cancel
//!                        └────────── sealed ──────────┴────────► sealed
//! ```

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::drive::Driver;
use super::id::StreamId;
use super::unread::{Loss, Unread};
use crate::journal::Handle;
use crate::proto::record::{Seal, Seq};

/// How often an orphan's tokens are counted.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// Whose a stream is: nobody else may read it.
#[derive(Clone, Copy, Debug)]
pub struct Tenant([u8; 32]);

impl Tenant {
    /// The tenant of a request, by its `Authorization`. All requests without one are of the same.
    pub fn of(authorization: Option<&[u8]>) -> Self {
        Self(Sha256::digest(authorization.unwrap_or_default()).into())
    }

    /// Stands for it in a table.
    pub(super) fn digest(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether both are the same, in a time that does not tell how much of them is.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// What a request asks for, so that it is known when it comes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Of a key that a tenant has given a request of its own.
    pub fn of_key(tenant: &Tenant, key: &[u8]) -> Self {
        Self(Sha256::new().chain_update(tenant.0).chain_update(key).finalize().into())
    }
}

/// Whose a stream is, and of which request.
#[derive(Clone, Copy, Debug)]
pub struct Whose {
    /// The tenant.
    pub tenant: Tenant,
    /// The request's body.
    pub asked: Digest,
    /// The key that the client gave the request, if it did.
    pub key: Option<Digest>,
}

/// How far a stream is from being lost, for those who read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// An engine writes it.
    Going,
    /// Its engine is lost, and another one is looked for.
    Recovering,
    /// Another engine writes it.
    Continued,
}

/// How long a stream is kept up and kept.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The engine goes on for so long without a reader.
    pub grace: Duration,
    /// And for at most so many tokens.
    pub unattended: u64,
    /// The stream can be read again for so long after its end.
    pub ttl: Duration,
    /// And for at most so long while it has none.
    pub max_age: Duration,
    /// Silence after which a reader gets a comment; `None`: never.
    pub heartbeat: Option<Duration>,
    /// Bytes from which on acknowledged events need not be kept; `None`: they are kept.
    pub window: Option<usize>,
    /// A reader that does not take one write in this time is taken for gone.
    pub send: Duration,
    /// A reader that has acknowledged and then says nothing for so long is taken for gone; `None`: none is.
    pub silence: Option<Duration>,
}

/// How far a stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current leg, from 1.
    pub leg: u32,
    /// Tokens generated so far; an estimate where the engines did not count.
    pub tokens: u64,
}

/// A stream as those find it who did not begin it.
#[derive(Debug)]
pub struct Kept {
    id: StreamId,
    tenant: Tenant,
    /// The request's body.
    asked: Digest,
    /// The key that the client gave the request.
    key: Option<Digest>,
    log: Handle,
    terms: Terms,
    began: Instant,
    phase: watch::Sender<Phase>,
    audience: watch::Sender<Audience>,
    /// Those who want to know how far it has come, while it runs.
    asking: Mutex<Vec<oneshot::Sender<Progress>>>,
    /// How far it had come when it ended, and when that was.
    ended: OnceLock<(Progress, Instant)>,
    /// A reader has got it to its end.
    delivered: AtomicBool,
    /// When its only reader has acknowledged something last.
    acknowledged: watch::Sender<Option<Instant>>,
    /// Where it is counted as long as nobody reads it.
    unread: OnceLock<(Arc<Unread>, u64)>,
    /// Told when this is dropped. Behind the log, so that it is gone by then.
    gone: Mutex<Option<oneshot::Sender<Never>>>,
}

/// Nothing is ever sent.
#[derive(Debug)]
pub(super) enum Never {}

/// Who reads a stream, and what they want of it.
#[derive(Clone, Copy, Debug)]
struct Audience {
    readers: usize,
    /// When the last one left.
    left: Option<Instant>,
    cancelled: bool,
    /// Nobody can come back any more.
    forgotten: bool,
}

/// How long a stream goes on that nobody reads.
#[derive(Clone, Copy, Debug)]
struct Orphan {
    /// Since when.
    left: Instant,
    until: Instant,
    /// Up to so many tokens of the whole answer.
    cap: u64,
    /// When they are counted next.
    count_at: Instant,
}

impl Kept {
    /// A stream that begins now. It has no reader yet, and time for one to come.
    pub fn new(id: StreamId, whose: Whose, log: Handle, terms: Terms) -> Arc<Self> {
        let Whose { tenant, asked, key } = whose;
        let began = Instant::now();
        let audience = Audience { readers: 0, left: Some(began), cancelled: false, forgotten: false };
        Arc::new(Self {
            id,
            tenant,
            asked,
            key,
            log,
            terms,
            began,
            phase: watch::Sender::new(Phase::Going),
            audience: watch::Sender::new(audience),
            asking: Mutex::default(),
            ended: OnceLock::new(),
            delivered: AtomicBool::new(false),
            acknowledged: watch::Sender::new(None),
            unread: OnceLock::new(),
            gone: Mutex::default(),
        })
    }

    /// Its id.
    pub fn id(&self) -> &StreamId {
        &self.id
    }

    /// Whether this is the stream's id, and that its tenant.
    pub fn is(&self, id: &StreamId, tenant: &Tenant) -> bool {
        self.id.is(id) & self.tenant.is(tenant)
    }

    /// Its tenant.
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// The body of the request that began it.
    pub fn asked(&self) -> &Digest {
        &self.asked
    }

    /// The key that the client gave that request.
    pub(super) fn key(&self) -> Option<&Digest> {
        self.key.as_ref()
    }

    /// What its readers are told of its engine.
    pub(super) fn phase(&self) -> &watch::Sender<Phase> {
        &self.phase
    }

    /// A client has everything up to this event: where the log holds more than the window, what is below may go.
    pub fn acknowledge(&self, seq: Seq) {
        self.acknowledged.send_replace(Some(Instant::now()));
        // With several readers it is not known whose word this is, and another may be behind.
        if let Some(window) = self.terms.window.filter(|_| self.readers() <= 1) {
            self.log.release(seq.saturating_add(1), window);
        }
    }

    /// Its journal.
    pub fn log(&self) -> &Handle {
        &self.log
    }

    /// Silence after which a reader gets a comment; `None`: never.
    pub fn heartbeat(&self) -> Option<Duration> {
        self.terms.heartbeat
    }

    /// How long a reader may take for one write.
    pub(super) fn send(&self) -> Duration {
        self.terms.send
    }

    /// Time since it began.
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether it has ended without a token: by an error instead of an answer.
    pub(super) fn is_empty(&self) -> bool {
        let nothing = self.ended.get().is_some_and(|(progress, _)| progress.tokens == 0);
        nothing && !matches!(self.log.end(), Some(Seal::Finished | Seal::Cancelled))
    }

    /// How many read it now.
    pub fn readers(&self) -> usize {
        self.audience.borrow().readers
    }

    /// When it is to be forgotten.
    pub fn due(&self) -> Instant {
        match self.ended.get() {
            Some((_, ended)) => *ended + self.terms.ttl,
            None => self.began + self.terms.max_age,
        }
    }

    /// Reads it from here on, until the attendance is dropped.
    pub fn attend(self: &Arc<Self>) -> Attendance {
        self.audience.send_modify(|audience| {
            audience.readers += 1;
            audience.left = None;
        });
        self.acknowledged.send_replace(None);
        self.place();
        Attendance(Arc::clone(self))
    }

    /// A reader has got it to its end.
    pub(super) fn was_delivered(&self) {
        self.delivered.store(true, Relaxed);
    }

    /// Ready when its only reader has fallen silent: one that acknowledges does so all the time, so when it has stopped it is gone,
    /// whatever its connection says. With several readers it is not known whose the acknowledgements are.
    pub(super) async fn fallen_silent(&self) {
        let Some(silence) = self.terms.silence else { return std::future::pending().await };
        let mut acknowledged = self.acknowledged.subscribe();
        loop {
            let last = *acknowledged.borrow_and_update();
            tokio::select! {
                // Fails only without a sender, and `self` holds one.
                _ = acknowledged.changed() => {}
                () = at(last.map(|last| last + silence)) => match self.readers() {
                    1 => return,
                    _ => drop(acknowledged.changed().await),
                },
            }
        }
    }

    /// From here on it is counted as long as nobody reads it.
    pub(super) fn count_in(self: &Arc<Self>, unread: &Arc<Unread>) {
        if self.unread.set((Arc::clone(unread), unread.number())).is_ok() {
            self.place();
        }
    }

    /// It is not kept any more.
    pub(super) fn count_out(&self) {
        if let Some((unread, number)) = self.unread.get() {
            unread.remove(*number);
        }
    }

    /// Its readers have changed, or it has ended.
    pub(super) fn place(self: &Arc<Self>) {
        if let Some((unread, number)) = self.unread.get() {
            unread.place(*number, self);
        }
    }

    /// What would be lost with it, and since when nobody reads it; `None`: somebody does, or it is not kept any more.
    pub(super) fn unread(&self) -> Option<(Loss, Instant)> {
        let Audience { left, forgotten, .. } = *self.audience.borrow();
        let loss = match (self.ended.get(), self.delivered.load(Relaxed)) {
            (None, _) => Loss::Orphan,
            (Some(_), true) => Loss::Copy,
            (Some(_), false) => Loss::Answer,
        };
        left.filter(|_| !forgotten).map(|left| (loss, left))
    }

    /// Resolves when nothing of the stream is there any more, its journal included.
    pub(super) fn watch_end(&self) -> oneshot::Receiver<Never> {
        let (sender, receiver) = oneshot::channel();
        // One waits at most: whoever gives the stream up, after which nobody finds it.
        *self.gone.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Nobody wants the rest. Does nothing to a stream that has ended.
    pub fn cancel(&self) {
        self.audience.send_modify(|audience| audience.cancelled = true);
    }

    /// Nobody can come back any more: it goes on only for those who read it now.
    pub(super) fn forget(&self) {
        self.audience.send_modify(|audience| audience.forgotten = true);
    }

    /// How far it has come.
    pub async fn progress(&self) -> Option<Progress> {
        let (asking, told) = oneshot::channel();
        self.asking.lock().unwrap_or_else(PoisonError::into_inner).push(asking);
        // Whoever ends it answers all who ask before; behind that nobody answers, but it is known.
        match self.ended.get() {
            Some((progress, _)) => {
                self.answer(*progress);
                Some(*progress)
            }
            None => {
                self.audience.send_modify(|_| {});
                told.await.ok()
            }
        }
    }

    fn answer(&self, progress: Progress) {
        let asking = std::mem::take(&mut *self.asking.lock().unwrap_or_else(PoisonError::into_inner));
        for asked in asking {
            // Whoever asked may be gone.
            let _ = asked.send(progress);
        }
    }

    /// Runs its driver until the seal: as long as somebody reads it, and a while after. Safe to drop at any await, and to be called
    /// again.
    pub(super) async fn run(&self, driver: &mut Driver) {
        let mut audience = self.audience.subscribe();
        let mut orphan: Option<Orphan> = None;
        while !driver.is_sealed() {
            let Audience { readers, left, cancelled, forgotten } = *audience.borrow_and_update();
            self.answer(driver.progress());
            if cancelled {
                driver.cancel();
            }
            orphan = left.filter(|_| readers == 0).map(|left| {
                let until = if forgotten { left } else { left + self.terms.grace };
                let known = orphan.filter(|orphan| orphan.left == left);
                let cap = || driver.progress().tokens.saturating_add(self.terms.unattended);
                let begun = || Orphan { left, cap: cap(), until, count_at: Instant::now() + COUNT_EVERY };
                Orphan { until, ..known.unwrap_or_else(begun) }
            });
            tokio::select! {
                biased;
                () = driver.run() => {}
                // Fails only without a sender, and `self` holds one.
                _ = audience.changed() => {}
                () = at(orphan.map(|orphan| orphan.until.min(orphan.count_at))) => if let Some(orphan) = &mut orphan {
                    let now = Instant::now();
                    if orphan.until <= now || driver.progress().tokens >= orphan.cap {
                        driver.abandon();
                    }
                    orphan.count_at = now + COUNT_EVERY;
                },
            }
        }
        // A sealed stream's leg is given back.
        driver.run().await;
        let _ = self.ended.set((driver.progress(), Instant::now()));
        self.answer(driver.progress());
    }
}

/// Ready at this time; never, if there is none.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// A reader of a stream, until it is dropped.
#[derive(Debug)]
pub struct Attendance(Arc<Kept>);

impl Drop for Attendance {
    fn drop(&mut self) {
        self.0.audience.send_modify(|audience| {
            audience.readers -= 1;
            audience.left = (audience.readers == 0).then(Instant::now);
        });
        // Whose they were is not known: those of who still reads will come.
        self.0.acknowledged.send_replace(None);
        self.0.place();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::journal::{Keep, Limits, MemoryStore};
    use crate::stream::StreamIds;

    /// A stream whose writer is gone.
    pub(in crate::stream) fn kept() -> Arc<Kept> {
        let store = MemoryStore::new(Limits { max_stream: 1 << 20, max_total: 1 << 20, max_streams: 10 });
        let log = store.create_keeping(Keep::All).expect("there is room").handle();
        let minute = Duration::from_secs(60);
        let terms = Terms {
            grace: minute,
            unattended: 10,
            ttl: 5 * minute,
            max_age: 30 * minute,
            heartbeat: None,
            window: None,
            send: minute,
            silence: Some(minute),
        };
        let whose = Whose { tenant: Tenant::of(None), asked: Digest::of(b"{}"), key: Some(Digest::of(b"key")) };
        Kept::new(StreamIds::default().mint(), whose, log, terms)
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_has_a_reader_from_attendance_to_its_drop() {
        let kept = kept();
        let (one, other) = (kept.attend(), kept.attend());
        assert_eq!(kept.readers(), 2);
        drop(one);
        assert_eq!((kept.readers(), kept.audience.borrow().left), (1, None));
        tokio::time::advance(Duration::from_secs(7)).await;
        drop(other);
        assert_eq!((kept.readers(), kept.audience.borrow().left), (0, Some(Instant::now())));
    }

    #[test]
    fn tenants_and_keys_are_told_apart() {
        let (one, other) = (Tenant::of(Some(b"Bearer a")), Tenant::of(Some(b"Bearer b")));
        assert!(one.is(&Tenant::of(Some(b"Bearer a"))) && !one.is(&other) && !one.is(&Tenant::of(None)));
        assert_eq!(Digest::of_key(&one, b"k"), Digest::of_key(&one, b"k"));
        assert_ne!(Digest::of_key(&one, b"k"), Digest::of_key(&other, b"k"));
        assert_ne!(Digest::of_key(&one, b"k"), Digest::of_key(&one, b"l"));
    }
}

//! The requests an engine has seen, how far each has got, and waiting for both.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::Notify;

use super::endpoint::Endpoint;

/// A request as the engine saw it, and what became of it.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// Its number, from 0.
    pub number: u64,
    /// `POST`, …
    pub method: String,
    /// The request target as sent.
    pub target: String,
    /// All header fields in their order; names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body as text (bytes that are not UTF-8 are replaced).
    pub body: String,
    /// What kind of request it is.
    pub leg: Leg,
    /// Data events given to the socket as a whole, `[DONE]` included. Events that a fault puts in are not counted.
    pub events: u64,
    /// How it ended; `None` while it is going on.
    pub end: Option<End>,
    /// Why it was refused, in words.
    pub refused: Option<String>,
    /// The faults that have happened, as written. A fault at a position the stream never reached is not among them.
    pub faults: Vec<String>,
}

impl Seen {
    /// The first field of this name (lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; null when it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_default()
    }
}

/// What kind of request it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Leg {
    /// A request that begins an answer.
    First,
    /// A request that goes on with one: with `continue_final_message`, with the ids of prompt and answer, or with an earlier prompt and more.
    Continuation,
    /// Anything else.
    Other,
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The response was written to its end.
    Complete,
    /// An error status was answered.
    Refused,
    /// A fault ended it.
    Cut,
    /// The client went away.
    Left,
    /// The engine was killed.
    Killed,
}

/// One request's entry.
pub(super) struct Entry {
    number: u64,
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    leg: Leg,
    events: AtomicU64,
    stalled: AtomicBool,
    resume: Notify,
    fate: Mutex<Fate>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Fate {
    end: Option<End>,
    refused: Option<String>,
    faults: Vec<String>,
}

impl Entry {
    pub(super) fn seen(&self) -> Seen {
        let fate = lock(&self.fate);
        Seen {
            number: self.number,
            method: self.method.clone(),
            target: self.target.clone(),
            headers: self.headers.clone(),
            body: String::from_utf8_lossy(&self.body).into_owned(),
            leg: self.leg,
            events: self.events(),
            end: fate.end,
            refused: fate.refused.clone(),
            faults: fate.faults.clone(),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn events(&self) -> u64 {
        self.events.load(Ordering::Acquire)
    }

    /// `count` more events are out.
    pub(super) fn add_events(&self, count: u64) {
        self.events.fetch_add(count, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::Acquire)
    }

    pub(super) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(super) fn release(&self) {
        self.resume.notify_one();
    }

    /// Waits for [`Entry::release`]; one that came before counts.
    pub(super) async fn released(&self) {
        self.resume.notified().await;
    }

    pub(super) fn end(&self) -> Option<End> {
        lock(&self.fate).end
    }

    /// The first end said is the one that counts.
    pub(super) fn set_end(&self, end: End) {
        lock(&self.fate).end.get_or_insert(end);
        self.changed.notify_waiters();
    }

    pub(super) fn set_refused(&self, reason: &str) {
        lock(&self.fate).refused = Some(reason.to_owned());
    }

    pub(super) fn add_fault(&self, fault: String) {
        lock(&self.fate).faults.push(fault);
        self.changed.notify_waiters();
    }
}

/// All entries still remembered.
pub(super) struct Log {
    limit: usize,
    inner: Mutex<Inner>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Inner {
    /// Number of the first entry held.
    first: u64,
    entries: VecDeque<Arc<Entry>>,
    /// Requests for an answer since the last reset, and requests to each endpoint.
    answers: u64,
    endpoints: Vec<(Endpoint, u64)>,
}

impl Inner {
    /// Counts a request to an endpoint.
    fn count(&mut self, endpoint: Endpoint) -> u64 {
        match self.endpoints.iter_mut().find(|(known, _)| *known == endpoint) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                self.endpoints.push((endpoint, 1));
                1
            }
        }
    }
}

/// What is noted of a request.
pub(super) struct Note {
    pub(super) method: String,
    pub(super) target: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    pub(super) leg: Leg,
    pub(super) endpoint: Option<Endpoint>,
}

/// Which request it is, from 1: of those for an answer, and of those to its endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nth {
    pub(super) answer: u64,
    pub(super) own: u64,
}

impl Log {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), inner: Mutex::default(), changed: Arc::default() }
    }

    /// Notes a request. Gives its entry, and which one it is.
    pub(super) fn note(&self, note: Note) -> (Arc<Entry>, Nth) {
        let mut inner = lock(&self.inner);
        if inner.entries.len() >= self.limit {
            inner.entries.pop_front();
            inner.first += 1;
        }
        let Note { method, target, headers, body, leg, endpoint } = note;
        let entry = Arc::new(Entry {
            number: inner.first + inner.entries.len() as u64,
            method,
            target,
            headers,
            body,
            leg,
            events: AtomicU64::new(0),
            stalled: AtomicBool::new(false),
            resume: Notify::new(),
            fate: Mutex::default(),
            changed: Arc::clone(&self.changed),
        });
        inner.entries.push_back(Arc::clone(&entry));
        inner.answers += u64::from(leg != Leg::Other);
        let own = endpoint.map_or(0, |endpoint| inner.count(endpoint));
        let nth = Nth { answer: inner.answers, own };
        drop(inner);
        self.changed.notify_waiters();
        (entry, nth)
    }

    pub(super) fn get(&self, number: u64) -> Option<Arc<Entry>> {
        let inner = lock(&self.inner);
        let at = usize::try_from(number.checked_sub(inner.first)?).ok()?;
        inner.entries.get(at).cloned()
    }

    pub(super) fn count(&self) -> u64 {
        let inner = lock(&self.inner);
        inner.first + inner.entries.len() as u64
    }

    pub(super) fn snapshot(&self) -> Vec<Seen> {
        let entries: Vec<_> = lock(&self.inner).entries.iter().cloned().collect();
        entries.iter().map(|entry| entry.seen()).collect()
    }

    pub(super) fn stalled(&self) -> Vec<Arc<Entry>> {
        lock(&self.inner).entries.iter().filter(|entry| entry.is_stalled()).cloned().collect()
    }

    pub(super) fn reset(&self) {
        *lock(&self.inner) = Inner::default();
        self.changed.notify_waiters();
    }

    /// Waits until `ready` gives something; it is asked again after every change.
    pub(super) async fn wait<T>(&self, mut ready: impl FnMut(&Self) -> Option<T>) -> T {
        loop {
            // Registered before looking, so that a change between the look and the wait is not lost.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(value) = ready(self) {
                return value;
            }
            changed.await;
        }
    }
}

/// A poisoned lock only means that a test panicked elsewhere; what it guards is whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Starting, watching and killing an engine.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use super::config::{Config, Ledger};
use super::http;
use super::log::{End, Log, Seen};

/// The way an engine ends; what the clients of running streams see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Every connection is reset (a machine that went away and came back).
    Rst,
    /// Every connection is closed where it stands, without an HTTP end (SIGKILL of vLLM's API process).
    Fin,
    /// Streams end with `finish_reason: "abort"` and `[DONE]` (SIGTERM of vLLM, one of the two outcomes seen).
    Abort,
    /// Streams end with an error event and `[DONE]` (SIGTERM of vLLM, the other outcome; death of its engine process).
    Error,
}

/// Starts engines.
#[derive(Debug)]
pub struct Engine;

impl Engine {
    /// Listens and serves on the current tokio runtime.
    ///
    /// # Errors
    /// What binding the address gave.
    pub async fn start(config: Config) -> io::Result<Running> {
        let listener = TcpListener::bind(config.listen).await?;
        let addr = listener.local_addr()?;
        let (stop, _) = watch::channel(None);
        let (ending, _) = watch::channel(None);
        let (alive, ended) = mpsc::channel(1);
        let shared = Arc::new(Shared {
            log: Log::new(config.keep_requests),
            ledger: config.ledger.clone().unwrap_or_default(),
            health: AtomicU16::new(config.health),
            connections: AtomicU64::new(0),
            rids: Mutex::default(),
            stop,
            ending,
            config,
        });
        tokio::spawn(http::accept(listener, Arc::clone(&shared), alive));
        Ok(Running { addr, shared, ended: tokio::sync::Mutex::new(ended) })
    }
}

/// What the tasks of one engine share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) log: Log,
    pub(super) ledger: Ledger,
    pub(super) health: AtomicU16,
    pub(super) connections: AtomicU64,
    /// SGLang: the request ids in flight.
    pub(super) rids: Mutex<HashSet<String>>,
    /// The order to end; the listener obeys it first …
    pub(super) stop: watch::Sender<Option<Stop>>,
    /// … and passes it on to the connections here.
    pub(super) ending: watch::Sender<Option<Stop>>,
}

impl Shared {
    /// Gives the order to end. Only the first counts.
    pub(super) fn stop(&self, how: Stop) {
        self.stop.send_if_modified(|stop| {
            let first = stop.is_none();
            stop.get_or_insert(how);
            first
        });
    }
}

/// A running engine. Dropping it closes the listener and all connections as [`Stop::Fin`] does.
///
/// Requests are numbered from 0 as they arrive; `/health` and `/mock/…` are not counted. Waiting for a request that
/// has been forgotten (see [`Config::keep_requests`]) or never comes lasts for ever, so put a timeout around it.
pub struct Running {
    addr: SocketAddr,
    shared: Arc<Shared>,
    ended: tokio::sync::Mutex<mpsc::Receiver<()>>,
}

impl Running {
    /// The address it listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://ADDR`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// All requests still remembered, oldest first.
    pub fn requests(&self) -> Vec<Seen> {
        self.shared.log.snapshot()
    }

    /// Request number `request`, if it has come and is remembered.
    pub fn request(&self, request: u64) -> Option<Seen> {
        self.shared.log.get(request).map(|entry| entry.seen())
    }

    /// Requests that have come since the start or the last reset.
    pub fn request_count(&self) -> u64 {
        self.shared.log.count()
    }

    /// Connections accepted since the start.
    pub fn connection_count(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Returns when `count` requests have come.
    pub async fn wait_requests(&self, count: u64) {
        self.shared.log.wait(|log| (log.count() >= count).then_some(())).await;
    }

    /// Returns when data event `event` (from 0; `[DONE]` counts) of a request has been given to the socket as a whole.
    /// Events that a fault puts in are not counted.
    pub async fn wait_event(&self, request: u64, event: u64) {
        self.shared.log.wait(|log| log.get(request).filter(|entry| entry.events() > event).map(drop)).await;
    }

    /// Returns when a request's stream stands at a `stall`.
    pub async fn wait_stalled(&self, request: u64) {
        self.shared.log.wait(|log| log.get(request).filter(|entry| entry.is_stalled()).map(drop)).await;
    }

    /// Returns when a request is over, and how it ended. [`End::Left`] when its client went away.
    pub async fn wait_end(&self, request: u64) -> End {
        self.shared.log.wait(|log| log.get(request).and_then(|entry| entry.end())).await
    }

    /// Lets a stalled stream go on. Called before the stall is reached, it makes that stall pass at once.
    pub fn release(&self, request: u64) {
        if let Some(entry) = self.shared.log.get(request) {
            entry.release();
        }
    }

    /// Forgets all requests; numbering starts at 0 again. Streams that are running go on, unseen.
    pub fn reset(&self) {
        self.shared.log.reset();
    }

    /// Ends the engine: the listener is closed first, then every connection ends as `how` says. Returns when all are gone.
    pub async fn kill(&self, how: Stop) {
        self.shared.stop(how);
        // Every task of the engine holds a sender; nothing is ever sent.
        let _ = self.ended.lock().await.recv().await;
    }

    /// Returns when the engine has ended, by [`Running::kill`] or by `POST /mock/kill`.
    pub async fn ended(&self) {
        let _ = self.ended.lock().await.recv().await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop(Stop::Fin);
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Running").field("addr", &self.addr).finish_non_exhaustive()
    }
}

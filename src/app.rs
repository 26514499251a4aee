//! Puts Baton together from its configuration, runs it, and drains it.
//!
//! Pingora's listening services run here directly, on this crate's own runtime, and not under `pingora::server::Server`, because
//! that (0.9.1, server/mod.rs and listeners/l4.rs)
//! - sleeps the whole grace period after SIGTERM, even when nothing is under way;
//! - binds inside a task: an address in use is retried for half a minute, and then the task panics while the process lives on
//!   without a listener;
//! - does not tell which port it got, so that port 0 is of no use to tests.
//!
//! What is given up with it, the hand-over of sockets to a new process, is what a load balancer in front and a drain do.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::IntoRawFd;
use std::sync::Arc;
use std::time::Duration;

use log::{info, warn};
use pingora::apps::http_app::HttpServer;
use pingora::connectors::ConnectorOptions;
use pingora::listeners::{L4BufferSettings, ListenerConfig, TcpSocketOptions};
use pingora::protocols::TcpKeepalive;
use pingora::proxy::http_proxy;
use pingora::server::configuration::ServerConf;
use pingora::server::{Fds, ListenFds, ShutdownWatch};
use pingora::services::Service as _;
use pingora::services::listening::Service;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::pinged::Pinged;
use crate::config::Settings;
use crate::edge::gateway::Parts;
use crate::edge::live::Live;
use crate::edge::{Admin, Gateway};
use crate::journal::{Limits, MemoryStore};
use crate::stream::{Bounds, Load, Registry, SWEEP_EVERY};
use crate::telemetry::metrics::Metrics;
use crate::upstream::{self, Cluster, Connector};

mod pinged;

/// For the last bytes: an HTTP/2 connection's task sends them after the request itself is over.
const SETTLE: Duration = Duration::from_millis(100);

/// How often host names are resolved again.
const RESOLVE_EVERY: Duration = Duration::from_secs(15);

/// How long a start waits for the engines to say what they can do, so that the first streams know it. Connections queue meanwhile.
const FIRST_LOOK: Duration = Duration::from_secs(2);

/// Idle connections kept to all engines together.
const POOL_SIZE: usize = 4096;

/// How often HTTP/2 clients are asked whether they are there, and how long they may take to answer.
const PING_EVERY: Duration = Duration::from_secs(20);
const PONG_WITHIN: Duration = Duration::from_secs(20);

/// A client's machine that is gone without a word is noticed after a minute and a half where nothing is sent, and after a
/// minute where something is.
const CLIENT_KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(60),
    interval: Duration::from_secs(10),
    count: 3,
    #[cfg(target_os = "linux")]
    user_timeout: Duration::from_secs(60),
};

/// Why Baton does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {why}; free it, or write another one at server.listen or server.admin")]
    Listen {
        /// The address, from `server.listen` or `server.admin`.
        address: SocketAddr,
        /// The system's reason.
        why: io::Error,
    },
    /// The runtime's threads cannot be started.
    #[error("cannot start worker threads: {0}")]
    Threads(io::Error),
    /// Signals cannot be waited for.
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
}

/// Baton with its sockets bound and nothing running yet.
///
/// In a test: [`App::bind`] with port 0, [`App::addresses`], and then [`App::serve`] as a task of the test's runtime.
pub struct App {
    settings: Arc<Settings>,
    listeners: Vec<Bound>,
    admin: Bound,
}

struct Bound {
    socket: TcpListener,
    address: SocketAddr,
}

impl App {
    /// Binds all addresses. From here on connections queue up; they are accepted by [`App::serve`].
    pub fn bind(settings: Settings) -> Result<Self, StartError> {
        let listeners = settings.server.listen.iter().map(|&address| bind(address)).collect::<Result<_, _>>()?;
        let admin = bind(settings.server.admin)?;
        Ok(Self { settings: Arc::new(settings), listeners, admin })
    }

    /// Where clients connect, with the real ports, in the order of `server.listen`.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().map(|bound| bound.address).collect()
    }

    /// The admin address, with its real port.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin.address
    }

    /// Serves on the current runtime until `drain` is ready, then waits for the requests under way (at most `server.drain`), and
    /// returns. `halt` ends it at once, whatever is under way.
    pub async fn serve(self, drain: impl Future<Output = ()>, halt: impl Future<Output = ()>) {
        let live = Live::default();
        let (shutdown, watch) = watch::channel(false);
        let patience = self.settings.server.drain;
        let mut services = self.start(&live, &watch).await;
        let drained = async {
            drain.await;
            info!("draining: {} requests under way", live.count());
            // Without receivers there is nothing to tell.
            let _ = shutdown.send(true);
            while services.join_next().await.is_some() {}
            match tokio::time::timeout(patience, live.idle()).await {
                Ok(()) => tokio::time::sleep(SETTLE).await,
                Err(_) => warn!("{} requests did not end within {patience:?}", live.count()),
            }
        };
        tokio::select! {
            () = drained => {}
            () = halt => {}
        }
    }

    async fn start(self, live: &Live, watch: &ShutdownWatch) -> JoinSet<()> {
        let Self { settings, listeners, admin } = self;
        for warning in &settings.warnings {
            warn!("{warning}");
        }
        let connector = Arc::new(Connector::new(Some(ConnectorOptions::new(POOL_SIZE))));
        let mut services = JoinSet::new();
        let mut clusters = Vec::new();
        for upstream in &settings.upstreams {
            let cluster = Arc::new(Cluster::new(upstream).await);
            if cluster.is_by_name() {
                services.spawn(until_drain(resolve(Arc::clone(&cluster)), watch.clone()));
            }
            if cluster.is_asked() {
                let asking = upstream::watch(Arc::clone(&cluster), Arc::clone(&connector));
                services.spawn(until_drain(asking, watch.clone()));
            }
            clusters.push(cluster);
        }
        let known = async {
            for cluster in clusters.iter().filter(|cluster| cluster.is_asked()) {
                upstream::asked_once(cluster).await;
            }
        };
        if tokio::time::timeout(FIRST_LOOK, known).await.is_err() {
            info!(
                "not all engines have said what they can do; streams that begin before they have are continued without it"
            );
        }
        let metrics = Arc::new(Metrics::new());
        let journal = &settings.journal;
        let store = MemoryStore::new(Limits {
            max_stream: journal.max_stream,
            max_total: journal.max_total,
            max_streams: journal.max_streams,
        });
        let registry = Arc::new(Registry::default());
        services.spawn(until_drain(sweep(Arc::clone(&registry)), watch.clone()));
        let bounds = Bounds {
            memory: settings.server.max_memory,
            tenant_bytes: journal.max_tenant,
            tenant_streams: journal.max_tenant_streams,
        };
        let load = Load::new(Arc::clone(&store), Arc::clone(&registry), Arc::clone(&metrics), bounds);
        let watching = Arc::clone(&load);
        services.spawn(until_drain(async move { watching.watch().await }, watch.clone()));
        let admin_app =
            HttpServer::new_app(Admin::new(Arc::clone(&metrics), Arc::clone(&store), Arc::clone(&registry)));
        let live = live.clone();
        let gateway = Gateway::new(Parts { settings, clusters, connector, store, registry, load, metrics, live });
        info!("admin on {}", admin.address);
        run(&mut services, Service::new("admin".to_owned(), admin_app), vec![admin], watch);
        for bound in &listeners {
            info!("listening on {}", bound.address);
        }
        run(&mut services, Service::new("edge".to_owned(), proxy(gateway)), listeners, watch);
        services
    }
}

fn bind(address: SocketAddr) -> Result<Bound, StartError> {
    let bind = || {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Bound { socket, address })
    };
    bind().map_err(|why| StartError::Listen { address, why })
}

/// Pingora's proxy around the gateway, for HTTP/1.1 and for HTTP/2 with prior knowledge.
fn proxy(gateway: Gateway) -> Pinged<pingora::proxy::HttpProxy<Gateway>> {
    let conf = ServerConf { upstream_keepalive_pool_size: POOL_SIZE, ..ServerConf::default() };
    Pinged::new(http_proxy(&Arc::new(conf), gateway), PING_EVERY, PONG_WITHIN)
}

/// Starts a service on sockets that are bound already: Pingora takes them for sockets that an older process has handed over.
fn run<A>(services: &mut JoinSet<()>, mut service: Service<A>, sockets: Vec<Bound>, watch: &ShutdownWatch)
where
    A: pingora::apps::ServerApp + Send + Sync + 'static,
{
    let mut fds = Fds::new();
    for Bound { socket, address } in sockets {
        let mut options = TcpSocketOptions::default();
        options.tcp_keepalive = Some(CLIENT_KEEPALIVE);
        // A buffer more would only be a copy more: requests are read, and responses written, in whole pieces.
        let listener = ListenerConfig::tcp(address.to_string()).l4_buffer(L4BufferSettings::unbuffered());
        service.add_listener(listener.tcp_socket_options(options));
        fds.add(address.to_string(), socket.into_raw_fd());
    }
    let fds: ListenFds = Arc::new(fds.into());
    let watch = watch.clone();
    services.spawn(async move { service.start_service(Some(fds), watch, 1).await });
}

/// Forgets the streams whose time is over.
async fn sweep(registry: Arc<Registry>) {
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        registry.sweep();
    }
}

/// Follows the host names of an upstream.
async fn resolve(cluster: Arc<Cluster>) {
    loop {
        tokio::time::sleep(RESOLVE_EVERY).await;
        cluster.refresh().await;
    }
}

/// Runs what goes on beside the requests, until the drain begins.
async fn until_drain(task: impl Future<Output = ()>, mut watch: ShutdownWatch) {
    tokio::select! {
        _ = watch.wait_for(|stop| *stop) => {}
        () = task => {}
    }
}

/// Runs Baton until a signal ends it: SIGTERM drains; SIGINT, or a second SIGTERM, ends it at once.
pub fn run_until_signal(settings: Settings) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.server.threads.count())
        .thread_name("baton")
        .enable_all()
        .build()
        .map_err(StartError::Threads)?;
    let app = App::bind(settings)?;
    let served = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(StartError::Signals)?;
        let mut again = signal(SignalKind::terminate()).map_err(StartError::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(StartError::Signals)?;
        let drain = async { terminate.recv().await.unwrap_or(()) };
        let halt = async {
            let twice = async {
                again.recv().await;
                again.recv().await
            };
            tokio::select! {
                _ = twice => {}
                _ = interrupt.recv() => {}
            }
        };
        app.serve(drain, halt).await;
        Ok(())
    });
    runtime.shutdown_background();
    served
}

#[cfg(test)]
mod tests;

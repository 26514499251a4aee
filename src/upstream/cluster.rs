//! Engines that serve the same model, and the choice of one of them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pingora::lb::selection::RoundRobin;
use pingora::lb::{Backend, Backends, LoadBalancer};
use pingora::protocols::{ALPN, TcpKeepalive};
use pingora::upstreams::peer::HttpPeer;
use tokio::sync::Notify;

use super::abilities::{self, Inquiries};
use super::discovery::Addresses;
use super::refusals::Refusals;
use crate::config::settings::{self, Balance, Scheme};
use crate::proto::certificate::Certificate;
use crate::proto::resume::{Abilities, PlanKind, PlanSet, Version};

/// How long an idle connection to an engine is kept. Below the five seconds after which uvicorn, and with it vLLM and SGLang,
/// closes one (uvicorn's `--timeout-keep-alive`, default 5), so that a request seldom meets a connection that is being closed.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// An engine's machine that is gone without a word is noticed after `idle` + `count` × `interval`: 30 seconds.
const KEEPALIVE: TcpKeepalive = TcpKeepalive {
    idle: Duration::from_secs(15),
    interval: Duration::from_secs(5),
    count: 3,
    #[cfg(target_os = "linux")]
    user_timeout: Duration::ZERO,
};

/// The same for HTTP/2, where TCP's keepalive ends at the first proxy on the way.
const H2_PING: Duration = Duration::from_secs(15);

/// The balancer's search gives up after so many steps. Each step of a round robin that others turn too is as good as random,
/// so this is far more than the number of endpoints.
const SEARCH_STEPS: usize = 256;

/// One engine, at one address.
pub struct Endpoint {
    configured: settings::Endpoint,
    address: SocketAddr,
    label: String,
    authority: String,
    /// Streams under way. Only [`StreamGuard`] changes it.
    streams: AtomicUsize,
    /// What is known of it, and when to ask it.
    inquiries: Inquiries,
}

impl Endpoint {
    pub(super) fn new(configured: settings::Endpoint, address: SocketAddr) -> Self {
        let url = configured.to_string();
        let label = match configured.host.parse::<std::net::IpAddr>() {
            Ok(_) => url.clone(),
            Err(_) => format!("{url} ({})", address.ip()),
        };
        let authority = url.split_once("://").map_or(url.as_str(), |(_, authority)| authority).to_owned();
        Self { configured, address, label, authority, streams: AtomicUsize::new(0), inquiries: Inquiries::default() }
    }

    /// As a person wrote it, with the address where a host name may have several: for logs and metrics.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What to connect to; also the endpoint's identity for [`Cluster::pick`].
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The `Host` (or `:authority`) of requests to it.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Streams under way; a probe counts as one, too.
    pub fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    pub(super) fn inquiries(&self) -> &Inquiries {
        &self.inquiries
    }

    pub(super) fn configured(&self) -> &settings::Endpoint {
        &self.configured
    }

    /// Pingora's description of it. `connect` bounds TCP and TLS together.
    fn peer(&self, connect: Duration) -> HttpPeer {
        let tls = self.configured.scheme == Scheme::Https;
        let sni = if tls { self.configured.host.clone() } else { String::new() };
        let mut peer = HttpPeer::new(self.address, tls, sni);
        peer.options.connection_timeout = Some(connect);
        peer.options.total_connection_timeout = Some(connect);
        peer.options.idle_timeout = Some(POOL_IDLE);
        peer.options.tcp_keepalive = Some(KEEPALIVE);
        if tls {
            // Without TLS there is nothing to negotiate with, and the engines speak HTTP/1.1.
            peer.options.alpn = ALPN::H2H1;
            peer.options.h2_ping_interval = Some(H2_PING);
        }
        peer
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

/// Counts one stream on an endpoint for as long as it lives, so that the count is true on every way out.
#[derive(Debug)]
pub struct StreamGuard(Arc<Endpoint>);

impl StreamGuard {
    fn new(endpoint: Arc<Endpoint>) -> Self {
        endpoint.streams.fetch_add(1, Ordering::Relaxed);
        Self(endpoint)
    }

    /// Where the stream runs.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        &self.0
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An endpoint that was chosen, counted as busy from this moment on.
#[derive(Debug)]
pub struct Picked {
    /// Holds the endpoint's count up; keep it for as long as the stream runs.
    pub guard: StreamGuard,
    /// For Pingora's connector or its proxy loop. Idle connections are kept for less time than the engines keep them; there
    /// are no read or write timeouts.
    pub peer: HttpPeer,
}

impl Picked {
    /// The endpoint.
    pub fn endpoint(&self) -> &Arc<Endpoint> {
        self.guard.endpoint()
    }
}

/// One upstream of the configuration.
pub struct Cluster {
    name: String,
    engine: String,
    family: String,
    balance: Balance,
    balancer: LoadBalancer<RoundRobin>,
    /// Whether names have to be resolved, and resolved again.
    by_name: bool,
    /// Where the search for the least busy endpoint begins, so that equally busy ones take turns.
    turn: AtomicUsize,
    /// The ways to continue that its engines have refused.
    refusals: Refusals,
    /// An engine has answered a request that asked for token ids.
    lists_ids: AtomicBool,
    /// Wakes [`abilities::watch`].
    suspicion: Notify,
    probed: Notify,
    /// The version that a certificate was made for.
    certified: Option<Version>,
    /// Another version than that has been found, and said.
    said_uncertified: AtomicBool,
}

impl Cluster {
    /// Resolves the endpoints and sets up the balancer. Names that do not resolve are logged and tried again by
    /// [`Cluster::refresh`]; meanwhile there are just fewer endpoints, possibly none.
    pub async fn new(upstream: &settings::Upstream) -> Self {
        let by_name = upstream.endpoints.iter().any(|e| e.host.parse::<std::net::IpAddr>().is_err());
        let addresses = Box::new(Addresses::new(upstream.endpoints.clone()));
        let cluster = Self {
            name: upstream.name.clone(),
            engine: upstream.engine.clone(),
            family: upstream.family.clone(),
            balance: upstream.balance,
            balancer: LoadBalancer::from_backends(Backends::new(addresses)),
            by_name,
            turn: AtomicUsize::new(0),
            refusals: Refusals::new(),
            lists_ids: AtomicBool::new(false),
            suspicion: Notify::new(),
            probed: Notify::new(),
            certified: upstream.certificate.as_ref().and_then(Certificate::version),
            said_uncertified: AtomicBool::new(false),
        };
        cluster.refresh().await;
        cluster
    }

    /// Resolves the names again. Not to be called twice at once.
    pub async fn refresh(&self) {
        if let Err(error) = self.balancer.update().await {
            log::warn!("upstream {}: {error}", self.name);
        }
    }

    /// Whether an endpoint is given by a host name, whose addresses may change.
    pub fn is_by_name(&self) -> bool {
        self.by_name
    }

    /// Its name in the configuration; a label in metrics and logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The name of the engine, for the plan of a continuation.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// The name of the model family, for the plan of a continuation.
    pub fn family(&self) -> &str {
        &self.family
    }

    /// Whether its engines are asked what they can do, by [`abilities::watch`].
    pub fn is_asked(&self) -> bool {
        self.engine == abilities::ASKED
    }

    /// What its engines can do, as far as it is known: the oldest known version, and the scale-out endpoints where all engines
    /// of which something is known have them. Cheap enough for every stream.
    pub fn abilities(&self) -> Abilities {
        let backends = self.balancer.backends().get_backend();
        let endpoints = backends.iter().filter_map(endpoint_of);
        abilities::together(endpoints.filter_map(|endpoint| endpoint.inquiries().found()))
    }

    /// A leg on the endpoint of this address failed or could not be opened: the engine may be another one when it comes back, so it is asked again what
    /// it can do, soon, and once for many suspicions.
    pub fn suspect(&self, address: SocketAddr) {
        let backends = self.balancer.backends().get_backend();
        let endpoint = backends.iter().filter_map(endpoint_of).find(|endpoint| endpoint.address() == address);
        if endpoint.is_some_and(|endpoint| endpoint.inquiries().suspect()) {
            self.suspicion.notify_one();
        }
    }

    /// Told whenever an endpoint has been asked.
    pub(super) fn probed(&self) -> &Notify {
        &self.probed
    }

    /// Ready when an endpoint has become due earlier than it was.
    pub(super) async fn suspicion(&self) {
        self.suspicion.notified().await;
    }

    /// Its engines have refused to continue one stream by this kind of plan. Several that were refused bar it for ten minutes, or
    /// until it has worked. Whether this one has barred it.
    pub fn plan_refused(&self, kind: PlanKind) -> bool {
        self.refusals.refused(kind)
    }

    /// A continuation by this kind of plan was accepted.
    pub fn plan_worked(&self, kind: PlanKind) {
        self.refusals.worked(kind);
    }

    /// The kinds that have been refused to several streams, and have neither worked since nor become due to be tried again. Cheap
    /// enough for every stream.
    pub fn barred(&self) -> PlanSet {
        self.refusals.barred()
    }

    /// The version found and the one that was certified, where they differ and that has not been said yet.
    pub(super) fn is_uncertified(&self, found: Version) -> Option<(Version, Version)> {
        let certified = self.certified.filter(|certified| *certified != found)?;
        (!self.said_uncertified.swap(true, Ordering::Relaxed)).then_some((found, certified))
    }

    /// A stream was opened by a request that asked for token ids.
    pub fn ids_taken(&self) {
        self.lists_ids.store(true, Ordering::Relaxed);
    }

    /// Whether a refusal may be of the field that asks for token ids: a server with strict rules may not know it, and none has taken
    /// it yet.
    pub fn may_refuse_ids(&self) -> bool {
        !self.lists_ids.load(Ordering::Relaxed)
    }

    /// An engine was replaced: what another one has refused or taken says nothing of it.
    pub(super) fn forget_refusals(&self) {
        self.refusals.forget();
        self.lists_ids.store(false, Ordering::Relaxed);
    }

    /// Chooses an endpoint that is not in `avoid` and counts a stream on it. `connect` bounds the opening of a connection.
    /// `None`: there is none (left).
    pub fn pick(&self, avoid: &[SocketAddr], connect: Duration) -> Option<Picked> {
        let wanted =
            |backend: &Backend| endpoint_of(backend).is_some_and(|endpoint| !avoid.contains(&endpoint.address()));
        let backend = match self.balance {
            Balance::RoundRobin => {
                self.balancer.select_with(b"", SEARCH_STEPS, |backend, ready| ready && wanted(backend))
            }
            Balance::LeastStreams => self.least_busy(wanted),
        }?;
        let endpoint = Arc::clone(endpoint_of(&backend)?);
        let peer = endpoint.peer(connect);
        Some(Picked { guard: StreamGuard::new(endpoint), peer })
    }

    /// The endpoint at `address`, however busy it is, counted as by [`Cluster::pick`]. `None`: it is not among them any more.
    pub fn pick_at(&self, address: SocketAddr, connect: Duration) -> Option<Picked> {
        let endpoint = self.endpoints().into_iter().find(|endpoint| endpoint.address() == address)?;
        let peer = endpoint.peer(connect);
        Some(Picked { guard: StreamGuard::new(endpoint), peer })
    }

    /// Two choices at the same moment may take the same endpoint: the counts are read one by one and not locked, since being
    /// off by one for a moment is cheaper than a lock on every request.
    fn least_busy(&self, wanted: impl Fn(&Backend) -> bool) -> Option<Backend> {
        let backends = self.balancer.backends();
        let all = backends.get_backend();
        let begin = self.turn.fetch_add(1, Ordering::Relaxed).checked_rem(all.len())?;
        let in_turn = all.iter().skip(begin).chain(all.iter().take(begin));
        in_turn
            .filter(|backend| backends.ready(backend) && wanted(backend))
            .min_by_key(|backend| endpoint_of(backend).map(|endpoint| endpoint.streams()))
            .cloned()
    }

    /// All endpoints there are at the moment, in the order of their addresses.
    pub fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.balancer.backends().get_backend().iter().filter_map(endpoint_of).cloned().collect()
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("name", &self.name).field("endpoints", &self.endpoints()).finish()
    }
}

fn endpoint_of(backend: &Backend) -> Option<&Arc<Endpoint>> {
    backend.ext.get::<Arc<Endpoint>>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONNECT: Duration = Duration::from_secs(1);

    async fn cluster(balance: Balance, ports: &[u16]) -> Cluster {
        let endpoint =
            |port: &u16| settings::Endpoint { scheme: Scheme::Http, host: "127.0.0.1".to_owned(), port: *port };
        Cluster::new(&settings::Upstream {
            name: "test".to_owned(),
            engine: "vllm".to_owned(),
            family: "default".to_owned(),
            endpoints: ports.iter().map(endpoint).collect(),
            balance,
            certificate: None,
        })
        .await
    }

    fn port(picked: &Picked) -> u16 {
        picked.endpoint().address().port()
    }

    #[tokio::test]
    async fn round_robin_takes_turns() {
        let cluster = cluster(Balance::RoundRobin, &[1, 2, 3]).await;
        let ports: Vec<u16> = (0..6).filter_map(|_| cluster.pick(&[], CONNECT)).map(|p| port(&p)).collect();
        assert_eq!(ports, [1, 2, 3, 1, 2, 3]);
    }

    #[tokio::test]
    async fn least_streams_takes_the_endpoint_with_the_fewest_under_way() {
        let cluster = cluster(Balance::LeastStreams, &[1, 2]).await;
        let busy = cluster.pick(&[], CONNECT).unwrap();
        for _ in 0..4 {
            assert_ne!(port(&cluster.pick(&[], CONNECT).unwrap()), port(&busy));
        }
    }

    #[tokio::test]
    async fn least_streams_takes_turns_among_equals() {
        let cluster = cluster(Balance::LeastStreams, &[1, 2]).await;
        let ports: Vec<u16> = (0..4).filter_map(|_| cluster.pick(&[], CONNECT)).map(|p| port(&p)).collect();
        assert_eq!(ports, [1, 2, 1, 2]);
    }

    #[tokio::test]
    async fn a_stream_is_counted_from_the_choice_to_the_drop_of_its_guard() {
        for balance in [Balance::RoundRobin, Balance::LeastStreams] {
            let cluster = cluster(balance, &[1]).await;
            let endpoint = cluster.endpoints().remove(0);
            let two = (cluster.pick(&[], CONNECT), cluster.pick(&[], CONNECT));
            assert_eq!(endpoint.streams(), 2);
            drop(two);
            assert_eq!(endpoint.streams(), 0);
        }
    }

    #[tokio::test]
    async fn an_endpoint_to_avoid_is_never_picked() {
        for balance in [Balance::RoundRobin, Balance::LeastStreams] {
            let cluster = cluster(balance, &[1, 2]).await;
            let first = cluster.pick(&[], CONNECT).unwrap().endpoint().address();
            for _ in 0..5 {
                assert_ne!(cluster.pick(&[first], CONNECT).unwrap().endpoint().address(), first);
            }
            let all: Vec<SocketAddr> = cluster.endpoints().iter().map(|e| e.address()).collect();
            assert!(cluster.pick(&all, CONNECT).is_none());
        }
    }

    #[tokio::test]
    async fn another_version_than_the_certified_one_is_told_once() {
        let cluster = cluster(Balance::RoundRobin, &[1]).await;
        let version = |minor| Version::new(0, minor, 0);
        assert_eq!(cluster.is_uncertified(version(33)), None);
        let cluster = Cluster { certified: Some(version(32)), ..cluster };
        assert_eq!(cluster.is_uncertified(version(32)), None);
        assert_eq!(cluster.is_uncertified(version(33)), Some((version(33), version(32))));
        assert_eq!(cluster.is_uncertified(version(34)), None);
    }

    #[test]
    fn an_endpoint_is_labelled_as_it_was_written() {
        let at = |host: &str, address: &str| {
            let written = settings::Endpoint { scheme: Scheme::Http, host: host.to_owned(), port: 80 };
            Endpoint::new(written, address.parse().unwrap())
        };
        assert_eq!(at("::1", "[::1]:80").label(), "http://[::1]:80");
        assert_eq!(at("::1", "[::1]:80").authority(), "[::1]:80");
        assert_eq!(at("engine", "10.0.0.7:80").label(), "http://engine:80 (10.0.0.7)");
        assert_eq!(at("engine", "10.0.0.7:80").authority(), "engine:80");
    }
}

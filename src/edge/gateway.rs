//! The one implementation of [`ProxyHttp`].

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::HOST;
use log::{debug, warn};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType, Result};

use super::claim::{self, Served};
use super::error::Fault;
use super::live::{Live, LiveGuard};
use super::opaque::{Ended, Follower};
use super::route::{self, Kind};
use super::{cors, headers, reply, resume};
use crate::config::Settings;
use crate::config::settings::{Cors, Route};
use crate::journal::MemoryStore;
use crate::stream::{Load, Registry, StreamIds};
use crate::telemetry::metrics::Metrics;
use crate::upstream::{Cluster, Connector, Cut, Picked};

/// What the gateway works with; put together by [`crate::app`].
pub struct Parts {
    /// The configuration.
    pub settings: Arc<Settings>,
    /// One for each of [`Settings::upstreams`], in the same order.
    pub clusters: Vec<Arc<Cluster>>,
    /// The connections of Baton's own legs. Pingora's loop has a pool of its own.
    pub connector: Arc<Connector>,
    /// Where streams keep their journals.
    pub store: Arc<MemoryStore>,
    /// The streams that clients may come back to.
    pub registry: Arc<Registry>,
    /// What is held for streams, against what may be.
    pub load: Arc<Load>,
    /// Numbers.
    pub metrics: Arc<Metrics>,
    /// Counts the requests under way.
    pub live: Live,
}

/// Baton's side towards clients.
pub struct Gateway {
    parts: Parts,
    ids: StreamIds,
}

/// What is known of one request.
pub struct Context {
    _live: LiveGuard,
    /// Whether the request counts as passed on: not a stream, which reports for itself, and not what is
    /// Baton's own: its health, and preflights.
    passed: bool,
    /// The rest is for requests that go through Pingora's own loop.
    route: Option<usize>,
    picked: Option<Picked>,
    /// Endpoints that refused a connection for this request.
    refused: Vec<SocketAddr>,
    body_seen: usize,
    /// Set when the answer is an event stream that can be read, until its end.
    follower: Option<Follower>,
    /// The cause of an error that was returned to Pingora, which keeps only its own kinds.
    fault: Option<Fault>,
}

impl Gateway {
    /// A gateway for requests that match `parts.settings`.
    pub fn new(parts: Parts) -> Self {
        Self { parts, ids: StreamIds::default() }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.parts.settings
    }

    pub(super) fn cors(&self) -> &Cors {
        &self.parts.settings.server.cors
    }

    pub(super) fn connector(&self) -> &Arc<Connector> {
        &self.parts.connector
    }

    pub(super) fn store(&self) -> &Arc<MemoryStore> {
        &self.parts.store
    }

    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.parts.registry
    }

    pub(super) fn load(&self) -> &Load {
        &self.parts.load
    }

    pub(super) fn live(&self) -> &Live {
        &self.parts.live
    }

    pub(super) fn metrics(&self) -> &Arc<Metrics> {
        &self.parts.metrics
    }

    pub(super) fn ids(&self) -> &StreamIds {
        &self.ids
    }

    /// The upstream with this index in the settings, which have been checked.
    pub(super) fn cluster(&self, upstream: usize) -> &Arc<Cluster> {
        &self.parts.clusters[upstream]
    }

    fn route(&self, context: &Context) -> Option<&Route> {
        self.settings().routes.get(context.route?)
    }

    /// The cluster of a request that goes through Pingora's own loop.
    fn cluster_of(&self, context: &Context) -> Option<&Arc<Cluster>> {
        self.route(context).map(|route| self.cluster(route.upstream))
    }

    /// Chooses the route of a request that Baton does not look into, or answers it.
    async fn pass(&self, session: &mut Session, context: &mut Context) -> Result<bool> {
        context.route = route::for_any(self.settings());
        if context.route.is_some() {
            return Ok(false);
        }
        reply::fault(self.cors(), session.as_downstream_mut(), &Fault::NoRoute { model: None }).await?;
        Ok(true)
    }

    fn too_large(&self) -> Fault {
        Fault::TooLarge { limit: self.settings().server.max_request_body }
    }
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = Context;

    fn new_ctx(&self) -> Context {
        Context {
            _live: self.parts.live.enter(),
            passed: true,
            route: None,
            picked: None,
            refused: Vec::new(),
            body_seen: 0,
            follower: None,
            fault: None,
        }
    }

    /// No modules: Pingora's default adds one that may compress answers.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn request_filter(&self, session: &mut Session, context: &mut Context) -> Result<bool> {
        // A client that sends its next request early is no client that went away: without this, Pingora's watch for a client's
        // end takes any byte for an error.
        session.set_pipelining_enabled(true);
        match route::kind(session.req_header(), self.settings()) {
            Kind::Preflight => {
                context.passed = false;
                cors::preflight(self.cors(), session.as_downstream_mut()).await?;
                Ok(true)
            }
            Kind::Health => {
                context.passed = false;
                reply::health(self.cors(), session.as_downstream_mut()).await?;
                Ok(true)
            }
            Kind::TooLarge => {
                reply::fault(self.cors(), session.as_downstream_mut(), &self.too_large()).await?;
                Ok(true)
            }
            Kind::Claimed(api) => {
                context.passed = claim::serve(self, session.as_downstream_mut(), api).await? == Served::Whole;
                Ok(true)
            }
            Kind::Stream(call) => {
                context.passed = false;
                resume::serve(self, session.as_downstream_mut(), call).await?;
                Ok(true)
            }
            Kind::Other => self.pass(session, context).await,
        }
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        _end_of_stream: bool,
        context: &mut Context,
    ) -> Result<()> {
        context.body_seen += body.as_ref().map_or(0, Bytes::len);
        if context.body_seen <= self.settings().server.max_request_body {
            return Ok(());
        }
        context.fault = Some(self.too_large());
        Err(Error::explain(ErrorType::HTTPStatus(413), "the request's body is over the limit").into_down())
    }

    async fn upstream_peer(&self, _session: &mut Session, context: &mut Context) -> Result<Box<HttpPeer>> {
        let Some(route) = self.route(context) else {
            return Error::e_explain(ErrorType::InternalError, "a request without a route");
        };
        let cluster = self.cluster(route.upstream);
        let Some(picked) = cluster.pick(&context.refused, route.timeouts.connect) else {
            context.fault = Some(Fault::NoEndpoint { upstream: cluster.name().to_owned() });
            return Err(Error::explain(ErrorType::ConnectNoRoute, "the upstream has no endpoint").into_up());
        };
        let peer = Box::new(picked.peer.clone());
        context.picked = Some(picked);
        Ok(peer)
    }

    /// Nothing has been sent yet, so any request may go to the next endpoint; each is tried once.
    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        context: &mut Context,
        mut error: Box<Error>,
    ) -> Box<Error> {
        let Some((cluster, picked)) = self.cluster_of(context).zip(context.picked.take()) else {
            return error;
        };
        debug!("upstream {}: {}: {error}", cluster.name(), picked.endpoint());
        self.metrics().connect_failed(cluster.name());
        let refused = picked.endpoint().address();
        let others_left = cluster
            .endpoints()
            .iter()
            .any(|endpoint| endpoint.address() != refused && !context.refused.contains(&endpoint.address()));
        context.refused.push(refused);
        error.set_retry(others_left);
        error
    }

    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        request: &mut RequestHeader,
        context: &mut Context,
    ) -> Result<()> {
        headers::strip_own(request);
        if let Some(picked) = &context.picked {
            request.insert_header(HOST, picked.endpoint().authority())?;
        }
        Ok(())
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        context: &mut Context,
    ) -> Result<()> {
        if response.status.is_informational() {
            return Ok(());
        }
        headers::strip_response(response);
        cors::dress(self.cors(), session.req_header(), response)?;
        if let Some(route) = self.route(context) {
            let upstream = self.cluster(route.upstream).name();
            context.follower = Follower::of(response, route.max_event, upstream, self.metrics());
        }
        Ok(())
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        _end_of_stream: bool,
        context: &mut Context,
    ) -> Result<Option<std::time::Duration>> {
        if let (Some(follower), Some(bytes)) = (&mut context.follower, body) {
            follower.feed(bytes);
        }
        Ok(None)
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, context: &mut Context) -> FailToProxy {
        let upstream = self.cluster_of(context).map(|cluster| cluster.name());
        let fault = context.fault.take().or_else(|| Fault::of_pingora(error, upstream));
        match (&fault, error.esource()) {
            (None, _) => debug!("the client went away: {error}"),
            (Some(fault), ErrorSource::Downstream) => debug!("{}: {error}", fault.code()),
            (Some(fault), _) => warn!("{}: {error}", fault.code()),
        }
        let answerable = session.response_written().is_none_or(|header| header.status.is_informational());
        if let Some(fault) = fault.as_ref().filter(|_| answerable)
            && let Err(error) = reply::fault(self.cors(), session.as_downstream_mut(), fault).await
        {
            debug!("the client did not take its answer: {error}");
        }
        FailToProxy {
            error_code: fault.map_or(0, |fault| fault.status()),
            // A torn response must not be followed by another one.
            can_reuse_downstream: false,
        }
    }

    /// [`Gateway::fail_to_proxy`] has said it already.
    fn suppress_error_log(&self, _session: &Session, _context: &Context, _error: &Error) -> bool {
        true
    }

    /// [`Gateway::fail_to_connect`] has counted it already.
    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _context: &Context,
        _error: &Error,
        _about: ProxyWarnLogContext,
    ) -> bool {
        true
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, context: &mut Context) {
        if context.passed {
            self.metrics().passed(session.response_written().map_or(0, |header| header.status.as_u16()));
        }
        if let Some(follower) = context.follower.take() {
            follower.end(&match error {
                None => Ended::Orderly,
                Some(error) if *error.esource() == ErrorSource::Downstream => Ended::ClientGone,
                Some(error) => Ended::Broken(Cut::of(error)),
            });
        }
    }
}

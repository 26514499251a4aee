//! Leg 1 on its way: the client's own request, sent until an engine answers it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use log::{debug, warn};
use pingora::http::RequestHeader;

use crate::proto::relay::Policy;
use crate::proto::resume::PlanKind;
use crate::stream::Opened;
use crate::telemetry::metrics::Metrics;
use crate::upstream::{Ask, Cluster, Connector, Leg, OpenError, is_event_stream};

/// What leg 1 is sent with. All of it is its own, so that it may outlast the client's connection.
pub(super) struct First {
    pub(super) connector: Arc<Connector>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) head: Arc<RequestHeader>,
    /// What is sent.
    pub(super) body: Bytes,
    /// The client's own body, where what is sent asks for token ids besides.
    pub(super) own: Option<Bytes>,
    /// Bounds the opening of one connection.
    pub(super) connect: Duration,
    /// How often it may be sent.
    pub(super) tries: usize,
    pub(super) policy: Policy,
}

impl First {
    /// Waits for the header of an answer. Dropped before, it closes its connection.
    pub(super) async fn open(mut self) -> Result<Opened, OpenError> {
        let mut opened = self.send().await;
        let refused = self.cluster.may_refuse_ids() && opened.as_ref().is_ok_and(refuses_request);
        let own = self.own.take();
        let lists_ids = own.is_some() && !refused;
        if let Some(own) = own.filter(|_| refused) {
            // What the client hears of a request that is refused has to be about its own.
            drop(opened);
            self.body = own;
            opened = self.send().await;
            if opened.as_ref().is_ok_and(|leg| is_event_stream(leg.response())) {
                self.cluster.plan_refused(PlanKind::TokenExact);
            }
        }
        let leg = opened?;
        if lists_ids && is_event_stream(leg.response()) {
            self.cluster.ids_taken();
        }
        Ok(Opened { leg: Box::new(leg), lists_ids })
    }

    /// An engine that took the request and died before its first byte is followed by another one, under the same conditions as
    /// one that dies later: nothing has been delivered, so the request is as good as new.
    async fn send(&self) -> Result<Leg, OpenError> {
        let (cluster, metrics) = (&self.cluster, &self.metrics);
        let mut failed: Vec<SocketAddr> = Vec::new();
        loop {
            let pause = self.policy.pause_before(failed.len() as u32 + 1);
            // The wait for the header has no bound here: a long prompt is no failure, and the client decides how long it waits.
            let ask = Ask { head: &self.head, body: &self.body, connect: self.connect, answer: None, avoid: &failed };
            metrics.leg_started(cluster.name());
            tokio::time::sleep(pause).await;
            let opened = Leg::open(&self.connector, cluster, ask).await;
            let unconnected = match &opened {
                Ok(leg) => leg.failures(),
                Err(OpenError::Unreachable { failures, .. }) => failures,
                Err(_) => &[],
            };
            for failure in unconnected {
                debug!("upstream {}: {failure}", cluster.name());
                metrics.connect_failed(cluster.name());
            }
            match opened {
                Err(error) if failed.len() + 1 < self.tries && error.endpoint().is_some() => {
                    warn!("a request got no answer and is sent to another engine: {error}");
                    metrics.leg_failed(cluster.name(), "unreachable");
                    failed.extend(error.endpoint().map(|endpoint| endpoint.address()));
                }
                other => return other,
            }
        }
    }
}

/// Whether an engine has found something wrong with a request itself.
fn refuses_request(leg: &Leg) -> bool {
    matches!(leg.response().status.as_u16(), 400 | 422)
}

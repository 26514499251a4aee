//! The admin address: numbers for Prometheus, and Baton's own health.

use std::sync::Arc;

use async_trait::async_trait;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use http::{Method, Response, StatusCode};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;

use crate::journal::MemoryStore;
use crate::stream::Registry;
use crate::telemetry::metrics::Metrics;

/// Prometheus' text format, as the `prometheus` crate writes it.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// Answers on the admin address.
pub struct Admin {
    metrics: Arc<Metrics>,
    store: Arc<MemoryStore>,
    registry: Arc<Registry>,
}

impl Admin {
    /// Shows `metrics`, what `store` holds, and how many streams of `registry` nobody reads.
    pub fn new(metrics: Arc<Metrics>, store: Arc<MemoryStore>, registry: Arc<Registry>) -> Self {
        Self { metrics, store, registry }
    }

    fn answer(&self, method: &Method, path: &str) -> (StatusCode, &'static str, String) {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return (StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET only\n".to_owned());
        }
        match path {
            "/metrics" => {
                self.metrics.journal(self.store.bytes(), self.store.streams());
                self.metrics.orphans(self.registry.orphans());
                (StatusCode::OK, METRICS_TYPE, self.metrics.gather())
            }
            "/health" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            _ => (StatusCode::NOT_FOUND, TEXT, "/metrics\n/health\n".to_owned()),
        }
    }
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let head = session.req_header();
        let (status, kind, body) = self.answer(&head.method, head.uri.path());
        let mut response = Response::new(body.into_bytes());
        *response.status_mut() = status;
        let length = HeaderValue::from(response.body().len());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(CONTENT_LENGTH, length);
        response
    }
}

//! HTTP/2 connections whose clients are asked whether they are still there.
//!
//! A client behind a proxy may be gone while TCP to that proxy is well; and TCP itself asks late. Pingora's loop for HTTP/2 never sends
//! a PING (0.9.1, protocols/http/v2/server.rs), so this one takes its place. HTTP/1 stays Pingora's.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use h2::{Ping, PingPong};
use log::debug;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{self, H2Accept, HttpSession};
use pingora::protocols::{Digest, Stream};
use pingora::server::ShutdownWatch;
use tokio::time::{sleep, timeout};

/// What a client of HTTP/2 says first (RFC 9113 section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How long a connection may say nothing; as long as an HTTP/1 connection may between two requests.
const FIRST_WORD: Duration = Duration::from_secs(60);

/// Requests of one connection that may be wrong in form; as many as Pingora's own loop puts up with.
const MAX_REJECTED: usize = 32;

/// An app of Pingora's whose HTTP/2 connections are asked.
pub(super) struct Pinged<A> {
    app: Arc<A>,
    /// How often a client is asked.
    every: Duration,
    /// How long it may take to answer.
    patience: Duration,
}

impl<A> Pinged<A> {
    /// `app` must not look for HTTP/2 itself (`h2c`).
    pub(super) fn new(app: A, every: Duration, patience: Duration) -> Self {
        Self { app: Arc::new(app), every, patience }
    }
}

#[async_trait]
impl<A: HttpServerApp + Send + Sync + 'static> ServerApp for Pinged<A> {
    async fn process_new(self: &Arc<Self>, mut stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        match timeout(FIRST_WORD, speaks_http2(&mut stream)).await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => return self.app.process_new(stream, shutdown).await,
            // It has left before it said anything, or says nothing.
            Ok(Err(_)) | Err(_) => return None,
        }
        let digest = Arc::new(Digest {
            ssl_digest: stream.get_ssl_digest(),
            timing_digest: stream.get_timing_digest(),
            proxy_digest: stream.get_proxy_digest(),
            socket_digest: stream.get_socket_digest(),
        });
        match server::handshake(stream, self.app.h2_options()).await {
            Ok(connection) => self.serve(connection, digest, shutdown).await,
            Err(error) => debug!("no HTTP/2 with a client: {error}"),
        }
        None
    }

    async fn cleanup(&self) {
        self.app.http_cleanup().await;
    }
}

/// No method of HTTP/1 that Baton serves begins as the preface does, and no request is as short as its first word.
async fn speaks_http2(stream: &mut Stream) -> std::io::Result<bool> {
    let mut word = [0; 4];
    if !stream.try_peek(&mut word).await? || word != PREFACE[..4] {
        return Ok(false);
    }
    let mut first = [0; PREFACE.len()];
    Ok(stream.try_peek(&mut first).await? && first == *PREFACE)
}

impl<A: HttpServerApp + Send + Sync + 'static> Pinged<A> {
    /// Serves a connection's requests until it ends, or its client does not answer: with the connection its requests lose theirs.
    async fn serve(
        &self,
        mut connection: h2::server::Connection<Stream, bytes::Bytes>,
        digest: Arc<Digest>,
        shutdown: &ShutdownWatch,
    ) {
        // There is one of these for each connection, and nobody has taken it.
        let Some(pings) = connection.ping_pong() else { return };
        tokio::select! {
            () = self.accept(&mut connection, &digest, shutdown) => {}
            () = self.ask(pings) => debug!("an HTTP/2 client did not answer a PING"),
        }
    }

    /// Takes requests until the connection has ended.
    async fn accept(
        &self,
        connection: &mut h2::server::Connection<Stream, bytes::Bytes>,
        digest: &Arc<Digest>,
        shutdown: &ShutdownWatch,
    ) {
        let (mut rejected, mut draining, mut watch) = (0, false, shutdown.clone());
        while rejected < MAX_REJECTED {
            let accepted = tokio::select! {
                biased;
                // Requests under way go on; new ones are not taken.
                _ = watch.wait_for(|stop| *stop), if !draining => {
                    connection.graceful_shutdown();
                    draining = true;
                    continue;
                }
                accepted = HttpSession::from_h2_conn(connection, Arc::clone(digest)) => accepted,
            };
            match accepted {
                Ok(Some(H2Accept::Session(session))) => {
                    let (app, shutdown) = (Arc::clone(&self.app), shutdown.clone());
                    tokio::spawn(async move {
                        app.process_new_http(ServerSession::new_http2(session), &shutdown).await;
                    });
                }
                Ok(Some(H2Accept::Rejected)) => rejected += 1,
                Ok(None) => return,
                Err(error) => return debug!("an HTTP/2 connection ended: {error}"),
            }
        }
    }

    /// Ready when the client has not answered.
    async fn ask(&self, mut pings: PingPong) {
        loop {
            sleep(self.every).await;
            if !matches!(timeout(self.patience, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{Request, Response};
    use pingora::apps::http_app::{HttpServer, ServeHttp};
    use pingora::protocols::l4::stream::Stream as L4Stream;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::{mpsc, watch};

    use super::*;

    /// Tells of a request, and of its client's end.
    struct Told(mpsc::UnboundedSender<&'static str>);

    #[async_trait]
    impl ServeHttp for Told {
        async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
            let _ = self.0.send("begun");
            let _ = session.read_body_or_idle(true).await;
            let _ = self.0.send("left");
            Response::new(Vec::new())
        }
    }

    const EVERY: Duration = Duration::from_millis(100);

    /// A connection to such an app, with a request on it; not driven.
    async fn connect() -> (h2::client::Connection<TcpStream, Bytes>, mpsc::UnboundedReceiver<&'static str>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (tell, told) = mpsc::unbounded_channel();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (socket, _) = listener.accept().await.unwrap();
            let app = Arc::new(Pinged::new(HttpServer::new_app(Told(tell)), EVERY, EVERY));
            let (_run, watch) = watch::channel(false);
            app.process_new(Box::new(L4Stream::from(socket)), &watch).await;
        });
        let socket = TcpStream::connect(address).await.unwrap();
        let (requests, connection) = h2::client::handshake(socket).await.unwrap();
        let mut requests = requests.ready().await.unwrap();
        let request = Request::builder().method("GET").uri("http://a/").body(()).unwrap();
        let (response, _) = requests.send_request(request, true).unwrap();
        // Held for ever, so that nothing but the connection ends.
        std::mem::forget((response, requests));
        (connection, told)
    }

    async fn soon<T>(future: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(10), future).await.expect("it happens soon")
    }

    #[tokio::test]
    async fn a_client_that_answers_keeps_its_request() {
        let (connection, mut told) = connect().await;
        tokio::select! {
            ended = connection => panic!("{ended:?}"),
            () = async {
                assert_eq!(soon(told.recv()).await, Some("begun"));
                assert!(timeout(10 * EVERY, told.recv()).await.is_err(), "after many pings");
            } => {}
        }
    }

    #[tokio::test]
    async fn a_client_that_does_not_answer_loses_its_connection_and_its_requests_end() {
        let (mut connection, mut told) = connect().await;
        tokio::select! {
            ended = &mut connection => panic!("{ended:?}"),
            begun = soon(told.recv()) => assert_eq!(begun, Some("begun")),
        }
        // Its machine still holds the connection; nobody reads from it.
        assert_eq!(soon(told.recv()).await, Some("left"));
        drop(connection);
    }
}

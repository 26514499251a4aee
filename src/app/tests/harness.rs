//! An engine that is scripted byte by byte, Baton, and clients that write bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::app::App;
use crate::config::{self, Settings};

/// Far more than any step takes; a test that meets it has failed.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// What an engine does with a connection after it has read the request.
pub(super) type Behaviour = Arc<dyn Fn(TcpStream, String) -> JoinHandle<()> + Send + Sync>;

/// An engine that reads one request per connection and then behaves.
pub(super) struct Engine {
    pub address: SocketAddr,
    /// The requests, head and body, in the order in which they came.
    pub requests: mpsc::UnboundedReceiver<String>,
    task: JoinHandle<()>,
}

impl Engine {
    pub async fn start(behave: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, requests) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let (tell, behave) = (tell.clone(), Arc::clone(&behave));
                tokio::spawn(async move {
                    let request = read_message(&mut socket).await;
                    if is_probe(&request) {
                        let _ = socket.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await;
                        return;
                    }
                    let _ = tell.send(request.clone());
                    let _ = behave(socket, request).await;
                });
            }
        });
        Self { address, requests, task }
    }

    /// An engine that answers every request with these bytes and closes.
    pub async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let answer: Arc<Vec<u8>> = Arc::new(answer.into());
        Self::start(Arc::new(move |mut socket, _| {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let _ = socket.write_all(&answer).await;
            })
        }))
        .await
    }

    /// An engine that takes requests and says nothing. The receiver gets a message when a connection has been closed.
    pub async fn silent(first: &'static [u8]) -> (Self, mpsc::UnboundedReceiver<()>) {
        let (closed, told) = mpsc::unbounded_channel();
        let engine = Self::start(Arc::new(move |mut socket, _| {
            let closed = closed.clone();
            tokio::spawn(async move {
                let _ = socket.write_all(first).await;
                while socket.read(&mut [0; 64]).await.is_ok_and(|n| n > 0) {}
                let _ = closed.send(());
            })
        }))
        .await;
        (engine, told)
    }

    pub async fn request(&mut self) -> String {
        within(self.requests.recv()).await.unwrap()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether Baton asks what the engine is. No test means that.
fn is_probe(request: &str) -> bool {
    request.starts_with("GET /version ")
}

/// An address where nobody listens.
pub(super) async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Settings with one upstream `qwen` at these addresses, and one route with these further keys.
pub(super) fn settings(engines: &[SocketAddr], model: &str, keys: &str) -> Settings {
    let endpoints: Vec<String> = engines.iter().map(|address| format!("\"http://{address}\"")).collect();
    let text = format!(
        "upstreams: [{{name: qwen, engine: vllm, family: qwen3, endpoints: [{}]}}]\n\
         routes: [{{match: {{model: \"{model}\"}}, upstream: qwen{keys}}}]\n",
        endpoints.join(", ")
    );
    on_free_ports(config::load(&text, &|_| None).unwrap_or_else(|errors| panic!("{errors}")))
}

pub(super) fn on_free_ports(mut settings: Settings) -> Settings {
    settings.server.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
    settings.server.admin = SocketAddr::from(([127, 0, 0, 1], 0));
    settings
}

/// Baton, as a task of the test.
pub(super) struct Baton {
    pub address: SocketAddr,
    pub admin: SocketAddr,
    drain: Option<oneshot::Sender<()>>,
    halt: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Baton {
    pub async fn start(settings: Settings) -> Self {
        let app = App::bind(settings).unwrap();
        let (address, admin) = (app.addresses()[0], app.admin_address());
        let (drain, drained) = oneshot::channel();
        let (halt, halted) = oneshot::channel();
        let task = tokio::spawn(async move {
            let wait = |told: oneshot::Receiver<()>| async move { told.await.unwrap_or(()) };
            app.serve(wait(drained), wait(halted)).await;
        });
        Self { address, admin, drain: Some(drain), halt: Some(halt), task }
    }

    /// Baton with one route for all models to one upstream.
    pub async fn before(engine: &Engine) -> Self {
        Self::start(settings(&[engine.address], "*", "")).await
    }

    pub fn drain(&mut self) {
        let _ = self.drain.take().unwrap().send(());
    }

    pub fn halt(&mut self) {
        let _ = self.halt.take().unwrap().send(());
    }

    pub async fn ended(&mut self) {
        within(&mut self.task).await.unwrap();
    }

    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// Sends `request` on a connection of its own and reads to the end of the connection.
    pub async fn ask(&self, request: &str) -> String {
        ask(self.address, request).await
    }
}

pub(super) async fn ask(address: SocketAddr, request: &str) -> String {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(request.as_bytes()).await.unwrap();
    rest(&mut client).await
}

pub(super) async fn rest(client: &mut TcpStream) -> String {
    let mut all = Vec::new();
    // A torn response may end in a reset.
    let _ = within(client.read_to_end(&mut all)).await;
    String::from_utf8(all).unwrap()
}

/// Reads until `text` has come, and returns everything up to there and a little more.
pub(super) async fn until(client: &mut TcpStream, text: &str) -> String {
    let mut all = Vec::new();
    while !String::from_utf8_lossy(&all).contains(text) {
        let read = within(client.read_buf(&mut all)).await.unwrap();
        assert_ne!(read, 0, "{}", String::from_utf8_lossy(&all));
    }
    String::from_utf8(all).unwrap()
}

/// A request that closes its connection afterwards.
pub(super) fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: baton.example\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub(super) const CHAT: &str = r#"{"model":"qwen3-8b","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;

pub(super) fn chat(body: &str) -> String {
    request("POST", "/v1/chat/completions", body)
}

pub(super) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("too slow")
}

async fn read_message(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let chunked = head.contains("transfer-encoding: chunked");
            if (chunked && body.ends_with("0\r\n\r\n")) || (!chunked && body.len() >= length.unwrap_or(0)) {
                return text;
            }
        }
        match socket.read_buf(&mut bytes).await {
            Ok(n) if n > 0 => {}
            _ => return text,
        }
    }
}

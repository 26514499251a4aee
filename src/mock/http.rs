//! A small HTTP/1.1 server whose every byte is decided here.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::AsyncWrite as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use super::engine::{Shared, Stop};
use super::route;
use super::validate::Refusal;

/// Most bytes of a request line and its header fields.
const MAX_HEAD: usize = 64 << 10;
/// Most header fields.
const MAX_FIELDS: usize = 128;
/// Most bytes taken from a client before its response is written.
const MAX_AHEAD: usize = 256 << 10;
/// How long, and for how many bytes, a client that is being refused may go on sending.
const LINGER: (Duration, usize) = (Duration::from_secs(1), 64 << 20);

/// Accepts connections until the order to end. `_alive` is held by every task, so that the end of all can be awaited.
pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>, alive: mpsc::Sender<()>) {
    let mut stop = shared.stop.subscribe();
    let how = loop {
        tokio::select! {
            biased;
            how = stopped(&mut stop) => break how,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    shared.connections.fetch_add(1, Ordering::Relaxed);
                    tokio::spawn(connection(stream, Arc::clone(&shared), shared.ending.subscribe(), alive.clone()));
                }
                // Out of file descriptors, most likely: others will be closed.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
        }
    };
    drop(listener);
    shared.ending.send_replace(Some(how));
}

/// Waits for an order to end.
async fn stopped(order: &mut watch::Receiver<Option<Stop>>) -> Stop {
    match order.wait_for(Option::is_some).await.map(|how| *how) {
        Ok(Some(how)) => how,
        // The senders live as long as the tasks that wait here.
        _ => std::future::pending().await,
    }
}

async fn connection(
    stream: TcpStream,
    shared: Arc<Shared>,
    ending: watch::Receiver<Option<Stop>>,
    _alive: mpsc::Sender<()>,
) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let mut order = ending.clone();
    let hard = async move {
        match stopped(&mut order).await {
            Stop::Rst => Close::Rst,
            Stop::Fin => Close::Fin,
            // The streams see to it themselves.
            Stop::Abort | Stop::Error => std::future::pending().await,
        }
    };
    let mut conn = Conn { stream, inbox: Vec::new(), ending };
    let close = tokio::select! {
        biased;
        close = hard => close,
        close = serve(&mut conn, &shared) => close,
    };
    conn.close(close).await;
}

/// How a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Close {
    /// With a reset.
    Rst,
    /// With a FIN, at once.
    Fin,
    /// With a FIN, after which what the client still sends is read, so that it can read the response.
    Gently,
}

/// What follows a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Another request may come.
    Request,
    /// Nothing.
    Close(Close),
}

/// The client is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Left;

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) target: String,
    /// Names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// HTTP/1.1, not 1.0: the client knows chunked bodies.
    pub(super) chunked: bool,
    pub(super) keep_alive: bool,
}

impl Request {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

/// Why there is no request.
enum NoRequest {
    /// The client closed, or the connection was idle for too long, or the engine ends.
    Closed,
    /// It cannot be read; the connection cannot go on.
    Bad(Refusal),
}

async fn serve(conn: &mut Conn, shared: &Shared) -> Close {
    loop {
        let request = match conn.request(&shared.config).await {
            Ok(request) => request,
            Err(NoRequest::Closed) => return Close::Fin,
            Err(NoRequest::Bad(refusal)) => {
                let body = refusal.body(shared.config.wire);
                let _ = conn.respond(refusal.status, "application/json", &[], body.as_bytes(), false).await;
                return Close::Gently;
            }
        };
        let keep_alive = request.keep_alive;
        match route::answer(conn, shared, request).await {
            Err(Left) => return Close::Fin,
            Ok(Next::Close(close)) => return close,
            Ok(Next::Request) if keep_alive && conn.ending().is_none() => {}
            Ok(Next::Request) => return Close::Gently,
        }
    }
}

/// A client's connection.
pub(super) struct Conn {
    stream: TcpStream,
    /// Bytes read and not yet used.
    inbox: Vec<u8>,
    ending: watch::Receiver<Option<Stop>>,
}

impl Conn {
    /// The order to end, if it has been given.
    pub(super) fn ending(&self) -> Option<Stop> {
        *self.ending.borrow()
    }

    /// Writes everything, or notices that the client has gone. One that leaves after the last write has had everything.
    pub(super) async fn write(&mut self, mut bytes: &[u8]) -> Result<(), Left> {
        if self.inbox.len() < MAX_AHEAD && take(&self.stream, &mut self.inbox) == Taken::Left {
            return Err(Left);
        }
        while !bytes.is_empty() {
            match self.stream.try_write(bytes) {
                Ok(0) => return Err(Left),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::select! {
                        ready = self.stream.writable() => ready.map_err(|_| Left)?,
                        () = left(&self.stream, &mut self.inbox) => return Err(Left),
                    }
                }
                Err(_) => return Err(Left),
            }
        }
        Ok(())
    }

    /// Waits for `until`, an order to end in good order, or the client's leaving, whichever is first.
    pub(super) async fn wait(&mut self, until: impl Future<Output = ()>) -> Result<(), Left> {
        let ending = &mut self.ending;
        let told = async {
            if matches!(stopped(ending).await, Stop::Rst | Stop::Fin) {
                // The connection is about to be closed; not another byte may go out before.
                std::future::pending().await
            }
        };
        tokio::select! {
            biased;
            () = until => Ok(()),
            () = told => Ok(()),
            () = left(&self.stream, &mut self.inbox) => Err(Left),
        }
    }

    /// A whole response with a body of known length.
    pub(super) async fn respond(
        &mut self,
        status: u16,
        content_type: &str,
        fields: &[(&str, &str)],
        body: &[u8],
        keep_alive: bool,
    ) -> Result<(), Left> {
        let mut out = head(status, content_type, fields);
        out.extend_from_slice(format!("content-length: {}\r\n", body.len()).as_bytes());
        out.extend_from_slice(if keep_alive { b"\r\n" } else { b"connection: close\r\n\r\n" });
        out.extend_from_slice(body);
        self.write(&out).await
    }

    async fn close(mut self, how: Close) {
        match how {
            Close::Rst => {
                // A socket that is dropped with a linger time of zero is reset.
                let _ = self.stream.set_zero_linger();
                return;
            }
            Close::Fin => {}
            Close::Gently => {
                let _ = std::future::poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await;
                let drain = async {
                    let mut drained = 0;
                    while drained < LINGER.1 && self.stream.readable().await.is_ok() {
                        drained += self.inbox.len();
                        self.inbox.clear();
                        if take(&self.stream, &mut self.inbox) == Taken::Left {
                            return;
                        }
                    }
                };
                let _ = tokio::time::timeout(LINGER.0, drain).await;
            }
        }
        // A socket that is dropped with unread bytes is reset, so they are read away.
        while take(&self.stream, &mut self.inbox) == Taken::Some {
            self.inbox.clear();
        }
    }

    /// Reads more into the inbox.
    async fn more(&mut self, idle: Duration) -> Result<(), NoRequest> {
        let read = async {
            loop {
                if self.stream.readable().await.is_err() {
                    return Taken::Left;
                }
                match take(&self.stream, &mut self.inbox) {
                    Taken::Nothing => {}
                    taken => return taken,
                }
            }
        };
        tokio::select! {
            biased;
            taken = tokio::time::timeout(idle, read) => match taken {
                Ok(Taken::Some) => Ok(()),
                _ => Err(NoRequest::Closed),
            },
            _ = stopped(&mut self.ending) => Err(NoRequest::Closed),
        }
    }

    async fn request(&mut self, config: &super::Config) -> Result<Request, NoRequest> {
        let (mut request, length) = loop {
            match parse_head(&self.inbox).map_err(NoRequest::Bad)? {
                Some((request, length, used)) => {
                    self.inbox.drain(..used);
                    break (request, length);
                }
                None => self.more(config.keep_alive).await?,
            }
        };
        if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue"))
            && self.inbox.is_empty()
        {
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n").await.map_err(|Left| NoRequest::Closed)?;
        }
        request.body = match length {
            Length::Bytes(length) => self.sized_body(length, config).await?,
            Length::Chunked => self.chunked_body(config).await?,
        };
        Ok(request)
    }

    async fn sized_body(&mut self, length: usize, config: &super::Config) -> Result<Vec<u8>, NoRequest> {
        check_size(length, config)?;
        while self.inbox.len() < length {
            self.more(config.keep_alive).await?;
        }
        let rest = self.inbox.split_off(length);
        Ok(std::mem::replace(&mut self.inbox, rest))
    }

    async fn chunked_body(&mut self, config: &super::Config) -> Result<Vec<u8>, NoRequest> {
        let bad = || NoRequest::Bad(Refusal::bad("the chunked body cannot be read"));
        let mut body = Vec::new();
        loop {
            let size = match httparse::parse_chunk_size(&self.inbox) {
                Ok(httparse::Status::Complete((used, size))) => {
                    self.inbox.drain(..used);
                    usize::try_from(size).map_err(|_| bad())?
                }
                Ok(httparse::Status::Partial) if self.inbox.len() < MAX_HEAD => {
                    self.more(config.keep_alive).await?;
                    continue;
                }
                _ => return Err(bad()),
            };
            if size == 0 {
                break;
            }
            check_size(size.saturating_add(body.len()), config)?;
            while self.inbox.len() < size + 2 {
                self.more(config.keep_alive).await?;
            }
            if &self.inbox[size..size + 2] != b"\r\n" {
                return Err(bad());
            }
            body.extend_from_slice(&self.inbox[..size]);
            self.inbox.drain(..size + 2);
        }
        self.skip_trailers(config).await?;
        Ok(body)
    }

    /// Trailers are read and forgotten: lines up to an empty one.
    async fn skip_trailers(&mut self, config: &super::Config) -> Result<(), NoRequest> {
        let mut skipped = 0;
        loop {
            while let Some(end) = memchr::memchr(b'\n', &self.inbox) {
                let empty = matches!(&self.inbox[..end], b"" | b"\r");
                self.inbox.drain(..=end);
                if empty {
                    return Ok(());
                }
                skipped += end;
            }
            if skipped + self.inbox.len() > MAX_HEAD {
                return Err(NoRequest::Bad(Refusal::bad("the trailers are too long")));
            }
            self.more(config.keep_alive).await?;
        }
    }
}

fn check_size(length: usize, config: &super::Config) -> Result<(), NoRequest> {
    if length <= config.max_body {
        return Ok(());
    }
    let message = format!("the body is larger than {} bytes", config.max_body);
    Err(NoRequest::Bad(Refusal::with_status(413, "RequestTooLarge", message)))
}

/// How a request's body is delimited.
enum Length {
    Bytes(usize),
    Chunked,
}

/// Reads a request's head; `None`: there is more of it to come. Gives the bytes it took.
fn parse_head(bytes: &[u8]) -> Result<Option<(Request, Length, usize)>, Refusal> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let used = match head.parse(bytes) {
        Ok(httparse::Status::Complete(used)) if used <= MAX_HEAD => used,
        Ok(httparse::Status::Partial) if bytes.len() <= MAX_HEAD => return Ok(None),
        Err(httparse::Error::TooManyHeaders) | Ok(_) => {
            return Err(Refusal::with_status(431, "BadRequestError", "the request's head is too large"));
        }
        Err(error) => return Err(Refusal::bad(format!("the request cannot be read: {error}"))),
    };
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let headers: Vec<_> =
        head.headers.iter().map(|field| (field.name.to_ascii_lowercase(), text(field.value))).collect();
    let is_11 = head.version == Some(1);
    let mut request = Request {
        method: head.method.unwrap_or_default().to_owned(),
        target: head.path.unwrap_or_default().to_owned(),
        headers,
        body: Vec::new(),
        chunked: is_11,
        keep_alive: is_11,
    };
    if request.header("connection").is_some_and(|value| value.to_ascii_lowercase().contains("close")) {
        request.keep_alive = false;
    }
    let length = body_length(&request)?;
    Ok(Some((request, length, used)))
}

fn body_length(request: &Request) -> Result<Length, Refusal> {
    if let Some(coding) = request.header("transfer-encoding") {
        return match coding.eq_ignore_ascii_case("chunked") {
            true if request.header("content-length").is_none() => Ok(Length::Chunked),
            true => Err(Refusal::bad("both a content-length and a transfer-encoding")),
            false => {
                Err(Refusal::with_status(501, "NotImplementedError", "only the chunked transfer-encoding is known"))
            }
        };
    }
    let mut lengths =
        request.headers.iter().filter(|(field, _)| field == "content-length").map(|(_, value)| value.as_str());
    let Some(length) = lengths.next() else { return Ok(Length::Bytes(0)) };
    if lengths.any(|other| other != length) {
        return Err(Refusal::bad("several content-lengths"));
    }
    length.parse().map(Length::Bytes).map_err(|_| Refusal::bad("the content-length is not a number"))
}

/// A status line and fields, without the empty line.
pub(super) fn head(status: u16, content_type: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let reason =
        http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Unknown");
    let mut out =
        format!("HTTP/1.1 {status} {reason}\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\n").into_bytes();
    for (name, value) in fields {
        out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    out
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Taken {
    Some,
    Nothing,
    Left,
}

/// Takes what is there to be read, without waiting.
fn take(stream: &TcpStream, inbox: &mut Vec<u8>) -> Taken {
    let mut bytes = [0; 16 << 10];
    match stream.try_read(&mut bytes) {
        Ok(0) => Taken::Left,
        Ok(count) => {
            inbox.extend_from_slice(&bytes[..count]);
            Taken::Some
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Taken::Nothing,
        Err(_) => Taken::Left,
    }
}

/// Returns when the client has gone: reset, or closed its side. What it sends meanwhile is kept, up to a limit, beyond which its
/// leaving is only noticed by writing.
async fn left(stream: &TcpStream, inbox: &mut Vec<u8>) {
    while inbox.len() < MAX_AHEAD {
        if stream.readable().await.is_err() || take(stream, inbox) == Taken::Left {
            return;
        }
    }
    std::future::pending().await
}

//! A client that keeps every byte.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How a response's body ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BodyEnd {
    /// As HTTP says: with the last chunk, or all of a known length.
    Whole,
    /// The connection was closed before.
    Eof,
    /// The connection was reset before.
    Reset,
}

#[derive(Debug)]
pub(super) struct Reply {
    /// 0: not even a status line came.
    pub(super) status: u16,
    pub(super) head: String,
    /// The body without its chunk framing, as far as it came.
    pub(super) body: Vec<u8>,
    /// The sizes of its chunks.
    pub(super) chunks: Vec<usize>,
    pub(super) end: BodyEnd,
}

impl Reply {
    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("UTF-8")
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// The data of its events.
    pub(super) fn events(&self) -> Vec<String> {
        events(&self.text())
    }
}

/// The data of all whole events.
pub(super) fn events(body: &str) -> Vec<String> {
    let data = |event: &str| event.strip_prefix("data: ").map(str::to_owned);
    body.split_inclusive("\n\n")
        .filter(|event| event.ends_with("\n\n"))
        .filter_map(|event| data(event.trim_end()))
        .collect()
}

pub(super) struct Client {
    stream: TcpStream,
    ahead: Vec<u8>,
}

impl Client {
    pub(super) fn connect(addr: SocketAddr) -> Self {
        let stream = TcpStream::connect(addr).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Self { stream, ahead: Vec::new() }
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("writes");
    }

    pub(super) fn post(&mut self, path: &str, fields: &[(&str, &str)], body: &str) {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        self.send(
            format!("POST {path} HTTP/1.1\r\nhost: x\r\n{fields}content-length: {length}\r\n\r\n{body}").as_bytes(),
        );
    }

    pub(super) fn chat(&mut self, fields: &[(&str, &str)], body: &serde_json::Value) {
        self.post("/v1/chat/completions", fields, &body.to_string());
    }

    pub(super) fn get(&mut self, path: &str) -> Reply {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
        self.reply()
    }

    /// Reads more, or says how the connection ended.
    fn more(&mut self) -> Result<(), BodyEnd> {
        let mut bytes = [0; 65536];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(BodyEnd::Eof),
            Ok(count) => {
                self.ahead.extend_from_slice(&bytes[..count]);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Err(BodyEnd::Reset),
            Err(error) => panic!("reading: {error}"),
        }
    }

    /// Reads up to `count` bytes of the body of a response that is still being written.
    pub(super) fn read_until(&mut self, enough: impl Fn(&[u8]) -> bool) {
        while !enough(&self.ahead) {
            self.more().expect("the response goes on");
        }
    }

    /// How the connection ends once everything is read.
    pub(super) fn end(&mut self) -> BodyEnd {
        loop {
            if let Err(end) = self.more() {
                return end;
            }
        }
    }

    pub(super) fn reply(&mut self) -> Reply {
        let mut reply =
            Reply { status: 0, head: String::new(), body: Vec::new(), chunks: Vec::new(), end: BodyEnd::Whole };
        let end = loop {
            if let Some(end) = self.ahead.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if let Err(end) = self.more() {
                reply.end = end;
                return reply;
            }
        };
        reply.head = String::from_utf8(self.ahead.drain(..end).collect()).expect("a head in ASCII");
        reply.status = reply.head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let field = |name: &str| {
            reply.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned))
        };
        let length = field("content-length").map(|length| length.parse::<usize>().expect("a number"));
        let outcome = match length {
            Some(length) => self.sized(length, &mut reply),
            None if field("transfer-encoding").is_some() => self.chunked(&mut reply),
            None => self.until_close(&mut reply),
        };
        if let Err(end) = outcome {
            reply.end = end;
        }
        reply
    }

    fn sized(&mut self, length: usize, reply: &mut Reply) -> Result<(), BodyEnd> {
        while self.ahead.len() < length {
            self.more()?;
        }
        reply.body = self.ahead.drain(..length).collect();
        Ok(())
    }

    fn until_close(&mut self, reply: &mut Reply) -> Result<(), BodyEnd> {
        let end = self.end();
        reply.body = std::mem::take(&mut self.ahead);
        if end == BodyEnd::Eof { Ok(()) } else { Err(end) }
    }

    fn chunked(&mut self, reply: &mut Reply) -> Result<(), BodyEnd> {
        loop {
            let line = loop {
                match self.ahead.windows(2).position(|window| window == b"\r\n") {
                    Some(end) => break self.ahead.drain(..end + 2).collect::<Vec<_>>(),
                    None => self.more()?,
                }
            };
            let size =
                std::str::from_utf8(&line[..line.len() - 2]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
            let size = size.expect("a chunk's size");
            while self.ahead.len() < size + 2 {
                self.more()?;
            }
            assert_eq!(&self.ahead[size..size + 2], b"\r\n");
            if size == 0 {
                self.ahead.drain(..2);
                return Ok(());
            }
            reply.body.extend(self.ahead.drain(..size));
            self.ahead.drain(..2);
            reply.chunks.push(size);
        }
    }
}

//! A client's connection, read byte by byte as far as its owner wants, and left in the ways in which connections end.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// How a client leaves.
#[derive(Clone, Copy, Debug)]
pub enum Leave {
    /// It closes the connection. What it had not read makes its machine send a reset all the same.
    Close,
    /// It resets the connection.
    Reset,
}

/// A response that is under way.
pub struct Line {
    socket: TcpStream,
    pub status: u16,
    head: String,
    /// What has come and is not taken apart yet: chunks with their frames.
    raw: Vec<u8>,
    /// The body, from the first event on that has not been handed out.
    body: Vec<u8>,
    /// Bytes of the body in all.
    bytes: usize,
    /// The number that the next event is to have.
    pub number: usize,
    /// What is to come of a chunk, its line end included.
    left: usize,
    /// The body's orderly end has come.
    over: bool,
}

impl Line {
    /// Sends a request and reads the head of its answer. `head`: the request line and header lines, each with its line end.
    pub async fn open(address: SocketAddr, head: &str, body: &str) -> Self {
        let mut socket = TcpStream::connect(address).await.expect("Baton listens");
        let request = format!("{head}Host: baton\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        socket.write_all(request.as_bytes()).await.expect("Baton takes a request");
        let mut raw = Vec::new();
        let end = loop {
            if let Some(at) = raw.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            assert_ne!(socket.read_buf(&mut raw).await.expect("Baton answers"), 0, "Baton answers");
        };
        let rest = raw.split_off(end + 4);
        let head = String::from_utf8(raw).expect("a head is text");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Line { socket, status, head, raw: rest, body: Vec::new(), bytes: 0, number: 0, left: 0, over: false }
    }

    /// The same, where the first event is to have this number.
    pub fn beginning_at(self, number: usize) -> Self {
        Line { number, ..self }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.filter(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value).next_back()
    }

    /// The next event with its blank line, without the comments before it; `None` at the end of the body.
    pub async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(event) = self.event() {
                return Some(event);
            }
            if self.over {
                assert!(self.body.is_empty(), "the body ends inside an event: {:?}", self.body);
                return None;
            }
            self.more().await;
        }
    }

    /// An event that is there already.
    pub fn event(&mut self) -> Option<String> {
        let at = self.body.windows(2).position(|two| two == b"\n\n")?;
        self.number += 1;
        let rest = self.body.split_off(at + 2);
        let event = String::from_utf8(std::mem::replace(&mut self.body, rest)).expect("events are text");
        Some(event.split_inclusive('\n').filter(|line| !line.starts_with(':')).collect())
    }

    /// Reads on until so many bytes of the body have come, or it is over.
    pub async fn read_bytes(&mut self, bytes: usize) {
        while self.bytes < bytes && !self.over {
            self.more().await;
        }
    }

    /// A little more of the body.
    async fn more(&mut self) {
        while !self.unframe() {
            // A little at a time, so that a client often leaves in the middle of what was sent.
            let mut some = [0; 700];
            let read = self.socket.read(&mut some).await.expect("the connection is whole");
            assert_ne!(read, 0, "the connection does not end before the body");
            self.raw.extend_from_slice(&some[..read]);
        }
    }

    /// Takes what has come out of its chunks; says whether there was anything, or the end.
    fn unframe(&mut self) -> bool {
        let before = self.bytes;
        while !self.raw.is_empty() && !self.over {
            if self.left == 0 {
                let Some(line) = self.raw.windows(2).position(|two| two == b"\r\n") else { break };
                let size = str::from_utf8(&self.raw[..line]).expect("a chunk's size is text");
                let size = usize::from_str_radix(size, 16).expect("a chunk's size is a number");
                self.over = size == 0;
                self.left = size + 2;
                self.raw.drain(..line + 2);
            }
            let take = self.left.min(self.raw.len());
            let data = take.min(self.left.saturating_sub(2));
            self.body.extend_from_slice(&self.raw[..data]);
            self.raw.drain(..take);
            self.left -= take;
            self.bytes += data;
        }
        self.bytes > before || self.over
    }

    pub fn leave(self, how: Leave) {
        match how {
            Leave::Close => {}
            // Closing a socket that does not linger sends a reset.
            Leave::Reset => self.socket.set_zero_linger().expect("an open socket"),
        }
    }
}

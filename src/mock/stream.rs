//! Writes a stream's events, and does what its faults say where they say it.

use std::time::Duration;

use super::config::Wire;
use super::engine::Stop;
use super::fault::{Act, Fault, LONG_LIMIT, Offset, Place, Rule};
use super::http::{Close, Conn, Left, Next, head};
use super::log::{End, Entry};
use super::route::Exchange;
use super::validate::error_event;
use super::wire::{Step, Stream, write_event};

/// Between two `: keep-alive` comments of a stall.
const COMMENTS: Duration = Duration::from_millis(50);
/// vLLM's and SGLang's comment.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";
const DONE: &[u8] = b"data: [DONE]\n\n";
/// An event cut off in the middle of its JSON.
const GARBAGE: &[u8] = b"data: {\"id\":\"chatcmpl-garbage\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"oo\n\n";

/// A fault with its position worked out.
struct Due<'a> {
    /// Before (or inside) this step; the number of steps: after all of them.
    step: usize,
    /// Bytes of that step's event that come first.
    offset: usize,
    act: &'a Act,
    rule: &'a Rule,
}

/// Works out where the faults happen. A position that the stream does not have is left out: that fault never happens.
fn due<'a>(rules: &[&'a Rule], stream: &Stream<'_>, steps: &[Step]) -> Vec<Due<'a>> {
    let mut due = Vec::new();
    for rule in rules.iter().copied() {
        let Fault::At { place, offset, act } = &rule.fault else { continue };
        let find = |is: &dyn Fn(&Step) -> bool| steps.iter().position(is);
        let step = match place {
            Place::Head => continue,
            Place::Event(at) => Some(*at).filter(|at| *at < steps.len() || *at == steps.len() && offset.is_none()),
            Place::Finish => find(&|step| step.finishes()),
            Place::Usage => find(&|step| matches!(step, Step::Usage | Step::Done)),
            Place::Done => find(&|step| *step == Step::Done),
        };
        let Some(step) = step else { continue };
        let Some((step, offset)) = inside(stream, steps, step, *offset) else { continue };
        due.push(Due { step, offset, act, rule });
    }
    due.sort_by_key(|due| (due.step, due.offset));
    due
}

fn inside(stream: &Stream<'_>, steps: &[Step], step: usize, offset: Option<Offset>) -> Option<(usize, usize)> {
    let event = |step: usize| {
        let mut event = Vec::new();
        stream.write(steps[step], &mut event);
        event
    };
    match offset {
        None => Some((step, 0)),
        Some(Offset::Bytes(bytes)) => Some((step, bytes.min(event(step).len() - 1))),
        Some(Offset::Half) => Some((step, event(step).len() / 2)),
        // The first byte outside ASCII begins a character of several bytes.
        Some(Offset::Char) => (step..steps.len()).find_map(|step| {
            let first = event(step).iter().position(|byte| !byte.is_ascii())?;
            Some((step, first + 1))
        }),
    }
}

/// Waits until released, for a time, for the order to end, or the client's leaving.
pub(super) async fn stall(conn: &mut Conn, entry: &Entry, limit: Option<Duration>) -> Result<(), Left> {
    entry.set_stalled(true);
    let over = async {
        match limit {
            Some(limit) => drop(tokio::time::timeout(limit, entry.released()).await),
            None => entry.released().await,
        }
    };
    let waited = conn.wait(over).await;
    entry.set_stalled(false);
    waited
}

/// How a stream ended.
enum Ended {
    /// The body in good order, by a fault or not.
    Body(End),
    /// The connection, with it.
    Cut(Close),
}

/// Writes the stream; gives what follows on the connection, and how the request ended.
pub(super) async fn run(
    conn: &mut Conn,
    exchange: &Exchange<'_>,
    stream: &Stream<'_>,
    rules: &[&Rule],
) -> Result<(Next, End), Left> {
    let steps = stream.steps();
    let faults = due(rules, stream, &steps);
    let mut out = head(200, "text/event-stream; charset=utf-8", &[("x-mock-engine", &stream.config.name)]);
    out.extend_from_slice(if exchange.chunked {
        b"transfer-encoding: chunked\r\n\r\n"
    } else {
        b"connection: close\r\n\r\n"
    });
    // vLLM answers before the first token is there; SGLang waits for it (0.5.13+).
    let held = stream.config.wire == Wire::Sglang;
    let mut writer =
        Writer { conn, entry: exchange.entry, chunked: exchange.chunked, out, events: 0, held, beat: None };
    match writer.all(stream, &steps, &faults).await? {
        Ended::Body(end) => {
            writer.held = false;
            if writer.chunked {
                writer.out.extend_from_slice(b"0\r\n\r\n");
            }
            writer.flush().await?;
            Ok((if exchange.chunked { Next::Request } else { Next::Close(Close::Gently) }, end))
        }
        Ended::Cut(close) => Ok((Next::Close(close), End::Cut)),
    }
}

struct Writer<'a> {
    conn: &'a mut Conn,
    entry: &'a Entry,
    chunked: bool,
    /// Bytes not yet given to the socket, and how many whole events they hold.
    out: Vec<u8>,
    events: u64,
    /// Only the head is in `out`, and it waits for the first event.
    held: bool,
    /// The last beat of the first choice that was written.
    beat: Option<usize>,
}

impl Writer<'_> {
    /// Adds bytes as one HTTP chunk.
    fn push(&mut self, bytes: &[u8]) {
        self.held = false;
        if !self.chunked {
            return self.out.extend_from_slice(bytes);
        }
        self.out.extend_from_slice(format!("{:x}\r\n", bytes.len()).as_bytes());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    async fn flush(&mut self) -> Result<(), Left> {
        if self.held || self.out.is_empty() {
            return Ok(());
        }
        self.conn.write(&self.out).await?;
        self.out.clear();
        if self.events > 0 {
            self.entry.add_events(std::mem::take(&mut self.events));
        }
        // A writer that never waits would keep others, and the reading side, from their turn.
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn all(&mut self, stream: &Stream<'_>, steps: &[Step], faults: &[Due<'_>]) -> Result<Ended, Left> {
        self.flush().await?;
        let mut faults = faults.iter().peekable();
        let (mut event, mut waiting) = (Vec::new(), Vec::new());
        let mut batch = 0;
        for at in 0..=steps.len() {
            event.clear();
            if let Some(step) = steps.get(at) {
                stream.write(*step, &mut event);
            }
            let mut sent = 0;
            while let Some(fault) = faults.next_if(|fault| fault.step == at) {
                self.push_waiting(&mut waiting);
                if fault.offset > sent {
                    self.push(&event[sent..fault.offset]);
                    sent = fault.offset;
                }
                self.flush().await?;
                self.entry.add_fault(fault.rule.to_string());
                if let Some(ended) = self.act(fault.act, stream).await? {
                    return Ok(ended);
                }
            }
            waiting.extend_from_slice(&event[sent..]);
            let Some(step) = steps.get(at) else { break };
            self.events += 1;
            if let Step::Tokens { choice: 0, beat, .. } = step {
                self.beat = Some(*beat);
            }
            batch += 1;
            let last = at + 1 == steps.len();
            if last || batch >= stream.config.events_per_write || !stream.config.pace.is_zero() {
                batch = 0;
                self.push_waiting(&mut waiting);
            }
            // The last event goes out with the body's end, so that a client that leaves at `[DONE]` has not left early.
            if last || batch > 0 {
                continue;
            }
            self.flush().await?;
            if !stream.config.pace.is_zero() {
                self.conn.wait(tokio::time::sleep(stream.config.pace)).await?;
            }
            if let Some(ended) = self.told_to_stop(stream) {
                return Ok(ended);
            }
        }
        Ok(Ended::Body(End::Complete))
    }

    /// Adds whole events as one HTTP chunk.
    fn push_waiting(&mut self, waiting: &mut Vec<u8>) {
        if !waiting.is_empty() {
            self.push(waiting);
            waiting.clear();
        }
    }

    /// The end that an engine writes itself when it is told to stop.
    fn told_to_stop(&mut self, stream: &Stream<'_>) -> Option<Ended> {
        let mut event = Vec::new();
        match self.conn.ending() {
            Some(Stop::Abort) => stream.write_abort(self.beat, &mut event),
            Some(Stop::Error) => write_event(&error_event(stream.config.wire, None, 500), &mut event),
            Some(Stop::Rst | Stop::Fin) | None => return None,
        }
        self.push(&event);
        self.push(DONE);
        Some(Ended::Body(End::Killed))
    }

    /// Does what a fault says; what came before it has been written.
    async fn act(&mut self, act: &Act, stream: &Stream<'_>) -> Result<Option<Ended>, Left> {
        let mut event = Vec::new();
        match act {
            Act::Rst => return Ok(Some(Ended::Cut(Close::Rst))),
            Act::Eof => return Ok(Some(Ended::Cut(Close::Fin))),
            Act::End => return Ok(Some(Ended::Body(End::Cut))),
            Act::Stall { comments: false, limit } => stall(self.conn, self.entry, *limit).await?,
            Act::Stall { comments: true, limit } => self.stall_with_comments(*limit).await?,
            Act::Slow(time) => self.conn.wait(tokio::time::sleep(*time)).await?,
            Act::Error { code, wrapped } => write_event(&error_event(stream.config.wire, *wrapped, *code), &mut event),
            Act::Abort => stream.write_abort(self.beat, &mut event),
            Act::Done => {}
            Act::Garbage => self.push(GARBAGE),
            Act::Long(bytes) => self.line(*bytes, true).await?,
            Act::Endless => {
                self.line(LONG_LIMIT, false).await?;
                return Ok(Some(Ended::Cut(Close::Fin)));
            }
            Act::Comment => self.push(KEEP_ALIVE),
            // The parting itself has been done by writing up to here.
            Act::Split => {}
        }
        if matches!(act, Act::Error { .. } | Act::Abort | Act::Done) {
            if !event.is_empty() {
                self.push(&event);
            }
            self.push(DONE);
            return Ok(Some(Ended::Body(End::Cut)));
        }
        self.flush().await?;
        Ok(self.told_to_stop(stream))
    }

    async fn stall_with_comments(&mut self, limit: Option<Duration>) -> Result<(), Left> {
        self.entry.set_stalled(true);
        let over = self.comments_until(limit).await;
        self.entry.set_stalled(false);
        over
    }

    async fn comments_until(&mut self, limit: Option<Duration>) -> Result<(), Left> {
        let entry = self.entry;
        let mut released = std::pin::pin!(entry.released());
        let mut over = std::pin::pin!(async {
            match limit {
                Some(limit) => tokio::time::sleep(limit).await,
                None => std::future::pending().await,
            }
        });
        let mut done = false;
        while !done {
            self.push(KEEP_ALIVE);
            self.flush().await?;
            let tick = async {
                done = tokio::select! {
                    () = &mut released => true,
                    () = &mut over => true,
                    () = tokio::time::sleep(COMMENTS) => false,
                };
            };
            self.conn.wait(tick).await?;
            done = done || self.conn.ending().is_some();
        }
        Ok(())
    }

    /// A data line of `bytes` bytes, written piece by piece; with its end, it is an event.
    async fn line(&mut self, bytes: usize, ends: bool) -> Result<(), Left> {
        const PIECE: &[u8] = &[b'a'; 64 << 10];
        self.push(b"data: ");
        let mut left = bytes;
        while left > 0 && self.conn.ending().is_none() {
            let piece = &PIECE[..left.min(PIECE.len())];
            self.push(piece);
            self.flush().await?;
            left -= piece.len();
        }
        if ends {
            self.push(b"\n\n");
        }
        self.flush().await
    }
}

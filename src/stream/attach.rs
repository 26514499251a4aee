//! A client's connection as a reader of a journal.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use pingora::protocols::http::ServerSession;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::kept::Phase;
use super::wire::{self, Dress, End};
use crate::journal::{Pulled, Reader};

/// Most bytes taken out of the journal for one write. What more there is follows in the next one, and a client that takes so
/// little at a time is not stuck.
const WRITE_SIZE: usize = 16 * 1024;

/// Stands for "no heartbeats": longer than any connection lives, short enough for a timer.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// How a client's connection came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// Everything up to the seal was sent, and the response was ended in order.
    Served,
    /// The client was told that it cannot get the rest: it was too slow, or the journal has failed. The response was ended in
    /// order, but not the stream.
    Lost,
    /// As the engine's connection broke, so was the client's: there is no orderly end.
    Torn,
    /// The client went away.
    ClientGone,
}

/// What a client has received.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sent {
    /// Events, `[DONE]` and error events included.
    pub events: u64,
    /// Bytes of the event stream.
    pub bytes: u64,
    /// Heartbeats.
    pub heartbeats: u64,
}

/// How long a client's connection may be silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Silence after which a comment keeps the connection's idle timers quiet; `None`: none does.
    pub(super) heartbeat: Option<Duration>,
    /// The client has got nothing since.
    pub(super) quiet_since: Instant,
    /// A client that does not take one write in this time is gone, whatever its connection says.
    pub(super) send: Duration,
}

/// What woke the loop.
enum Woken {
    Journal,
    Client,
    Phase(Phase),
    Clock,
}

/// Sends everything that `reader` finds to the client, until the seal or the client's end.
///
/// Safe to drop at any await: the journal's position only moves after a write has been handed over whole.
pub(super) async fn attach(
    session: &mut ServerSession,
    reader: &mut Reader,
    dress: Dress<'_>,
    pace: Pace,
    sent: &mut Sent,
) -> Attached {
    let mut phase = dress.phase();
    let heartbeat = pace.heartbeat.unwrap_or(NEVER);
    let mut last_write = pace.quiet_since;
    let mut timer = pin!(sleep_until(last_write + heartbeat));
    let mut silence = pin!(dress.fallen_silent());
    let mut buffer = Vec::new();
    loop {
        let woken = tokio::select! {
            biased;
            () = poll_fn(|cx| reader.poll_ready(cx)) => Woken::Journal,
            phase = changed(&mut phase) => Woken::Phase(phase),
            _ = session.read_body_or_idle(true) => Woken::Client,
            () = &mut silence => Woken::Client,
            () = &mut timer => Woken::Clock,
        };
        match woken {
            Woken::Client => return Attached::ClientGone,
            Woken::Phase(phase) => {
                if write(session, Bytes::from_static(wire::comment(phase)), pace.send).await.is_err() {
                    return Attached::ClientGone;
                }
                last_write = Instant::now();
            }
            // One timer for the connection's life: it is moved when it rings, not with every write.
            Woken::Clock if last_write.elapsed() < heartbeat => timer.as_mut().reset(last_write + heartbeat),
            Woken::Clock => {
                sent.heartbeats += 1;
                if write(session, Bytes::from_static(dress.heartbeat()), pace.send).await.is_err() {
                    return Attached::ClientGone;
                }
                last_write = Instant::now();
                timer.as_mut().reset(last_write + heartbeat);
            }
            Woken::Journal => {
                let end = render(reader, dress, &mut buffer, sent);
                sent.bytes += buffer.len() as u64;
                // An empty write would be taken for the end of the response.
                if !buffer.is_empty() && write(session, Bytes::copy_from_slice(&buffer), pace.send).await.is_err() {
                    return Attached::ClientGone;
                }
                buffer.clear();
                last_write = Instant::now();
                match end {
                    None => {}
                    Some(End::Torn) => {
                        session.shutdown().await;
                        return Attached::Torn;
                    }
                    Some(_) if finish(session, pace.send).await.is_err() => return Attached::ClientGone,
                    Some(End::Lost) => return Attached::Lost,
                    Some(End::Orderly) => return Attached::Served,
                }
            }
        }
    }
}

/// The next phase of a stream whose readers are told; never, for others.
async fn changed(phase: &mut Option<watch::Receiver<Phase>>) -> Phase {
    if let Some(receiver) = phase
        && receiver.changed().await.is_ok()
    {
        return *receiver.borrow_and_update();
    }
    // Its sender lives as long as the stream is kept.
    std::future::pending().await
}

/// Takes what is there out of the journal and writes it as events.
fn render(reader: &mut Reader, dress: Dress<'_>, buffer: &mut Vec<u8>, sent: &mut Sent) -> Option<End> {
    let mut end = None;
    let pulled = reader.pull(WRITE_SIZE, &mut |seq, entry| {
        let before = buffer.len();
        end = wire::write_entry(seq, &entry, dress, buffer);
        sent.events += u64::from(buffer.len() > before);
    });
    match pulled {
        Ok(Pulled::More | Pulled::Empty) => None,
        Ok(Pulled::Sealed) => end.or(Some(End::Orderly)),
        Err(error) => {
            sent.events += 1;
            wire::write_lost(&error, buffer);
            Some(End::Lost)
        }
    }
}

/// Hands bytes to the client's connection, for as long as it takes them.
async fn write(session: &mut ServerSession, bytes: Bytes, patience: Duration) -> Result<(), Gone> {
    patiently(session.write_response_body(bytes, false), patience).await
}

async fn finish(session: &mut ServerSession, patience: Duration) -> Result<(), Gone> {
    patiently(session.finish_body(), patience).await
}

/// The client does not take any more.
struct Gone;

/// Waits for a write at most so long. A timer is made only for one that is not done at once.
async fn patiently(write: impl Future<Output = pingora::Result<()>>, patience: Duration) -> Result<(), Gone> {
    let mut write = pin!(write);
    let written = match poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await {
        Poll::Ready(written) => written,
        Poll::Pending => timeout(patience, write).await.map_err(|_| Gone)?,
    };
    written.map_err(|_| Gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_not_taken_is_given_up_after_its_time() {
        let began = Instant::now();
        assert!(patiently(std::future::pending(), MINUTE).await.is_err());
        assert_eq!(began.elapsed(), MINUTE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_takes_a_while_is_waited_for() {
        let slow = async {
            tokio::time::sleep(MINUTE - Duration::from_secs(1)).await;
            Ok(())
        };
        assert!(patiently(slow, MINUTE).await.is_ok());
    }
}

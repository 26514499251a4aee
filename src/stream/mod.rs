//! Streams at work: a driver runs a relay over legs, an attached client reads the journal, both in one task.
//!
//! The two meet only in the journal. A slow client therefore never holds up the engine, and a silent engine never keeps
//! heartbeats from the client.

mod attach;
mod drive;
mod id;
mod rendered;
mod report;
mod source;
mod wire;

use std::pin::pin;
use std::time::Duration;

use pingora::protocols::http::ServerSession;
use tokio::time::Instant;

pub use self::attach::Attached;
use self::attach::{Sent, attach};
use self::drive::Driver;
pub use self::drive::Onward;
pub use self::id::{StreamId, StreamIds};
pub use self::rendered::{NotRendered, RenderedLeg, Steps};
pub use self::report::Report;
use crate::journal::Writer;
use crate::proto::relay::{Note, Relay};
use crate::upstream::Leg;

/// A stream whose first leg has answered with an event stream, and whose response header the client has got.
pub struct Start {
    /// The stream's state machine, fresh.
    pub relay: Relay,
    /// Its journal.
    pub writer: Writer,
    /// The first leg.
    pub leg: Leg,
    /// What later legs are opened with.
    pub onward: Onward,
    /// Where the stream reports to.
    pub report: Report,
    /// Silence after which the client gets a comment; `None`: never.
    pub heartbeat: Option<Duration>,
    /// When the request came.
    pub began: Instant,
}

/// Serves a stream to its client until its end, or until the client leaves.
pub async fn serve(session: &mut ServerSession, start: Start) -> Attached {
    let Start { relay, writer, leg, onward, report, heartbeat, began } = start;
    let mut reader = writer.reader(0);
    let mut driver = Driver::new(relay, writer, onward, report, leg, began);
    let mut sent = Sent::default();
    let attached = {
        let mut drive = pin!(driver.run());
        let mut attach = pin!(attach(session, &mut reader, heartbeat, &mut sent));
        tokio::select! {
            biased;
            () = &mut drive => attach.await,
            attached = &mut attach => {
                if attached == Attached::Served {
                    drive.await; // the seal is out; what is left is to give the leg's connection back
                }
                attached
            }
        }
    };
    if attached != Attached::Served {
        driver.abandon(); // nobody reads any more
    }
    driver.conclude(attached, sent);
    attached
}

/// Goes on with an answer whose first leg has failed its relay, until the stream has its seal. Nobody reads along: what comes is in
/// the journal. Gives the relay back, and what it told from here on.
pub async fn go_on(relay: Relay, writer: Writer, onward: Onward, report: Report, began: Instant) -> (Relay, Vec<Note>) {
    let mut driver = Driver::without_leg(relay, writer, onward, report, began);
    driver.run().await;
    driver.into_told()
}

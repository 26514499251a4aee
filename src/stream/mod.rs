//! Streams at work: a driver runs a relay over legs, an attached client reads the journal, both in one task.
//!
//! The two meet only in the journal. A slow client therefore never holds up the engine, and a silent engine never keeps
//! heartbeats from the client.

mod attach;
mod drive;
mod id;
mod kept;
mod load;
mod registry;
mod rendered;
mod report;
mod source;
mod unread;
mod wire;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use pingora::protocols::http::ServerSession;
use tokio::time::Instant;

pub use self::attach::{Attached, Sent};
use self::attach::{Pace, attach};
use self::drive::Driver;
pub use self::drive::Onward;
pub use self::id::{StreamId, StreamIds};
pub use self::kept::{Attendance, Digest, Kept, Progress, Tenant, Terms, Whose};
pub use self::load::{Bounds, Load, Room};
pub use self::registry::{Claim, Claimed, Found, Registry, SWEEP_EVERY};
pub use self::rendered::{NotRendered, RenderedLeg, Steps};
pub use self::report::Report;
use self::wire::Dress;
use crate::journal::Writer;
use crate::proto::record::Seq;
use crate::proto::relay::{Note, Relay};
use crate::upstream::{Leg, OpenError};

/// A first leg that an engine has answered.
pub struct Opened {
    /// The leg.
    pub leg: Box<Leg>,
    /// Its events list token ids that the client did not ask for.
    pub lists_ids: bool,
}

/// A first leg on its way to an engine. Dropping it closes its connection.
pub type Opening = Pin<Box<dyn Future<Output = Result<Opened, OpenError>> + Send>>;

/// The leg that a stream begins with.
pub enum First {
    /// It has answered with an event stream.
    Open(Opened),
    /// It has not answered yet. What it comes to that is no event stream ends the stream, in an event.
    Opening(Opening),
}

/// A stream whose response header the client has got.
pub struct Start {
    /// The stream's state machine, fresh.
    pub relay: Relay,
    /// Its journal.
    pub writer: Writer,
    /// The first leg.
    pub first: First,
    /// What later legs are opened with.
    pub onward: Onward,
    /// Where the stream reports to.
    pub report: Report,
    /// Silence after which the client gets a comment; `None`: never.
    pub heartbeat: Option<Duration>,
    /// A client that does not take one write in this time is taken for gone.
    pub send: Duration,
    /// When the request came.
    pub began: Instant,
    /// What outlives the client's connection; `None`: nothing does.
    pub keeping: Option<Keeping>,
}

/// A stream that clients may come back to.
pub struct Keeping {
    /// As they find it.
    pub kept: Arc<Kept>,
    /// Where they find it.
    pub registry: Arc<Registry>,
    /// The client that has begun it.
    pub reader: Attendance,
    /// Held for as long as the stream is under way, with a client or without.
    pub hold: Box<dyn Send>,
}

impl Start {
    fn into_driver(self) -> (Driver, Option<Keeping>) {
        let Start { relay, writer, first, onward, report, began, keeping, .. } = self;
        let told = keeping.as_ref().map(|keeping| Arc::clone(&keeping.kept));
        (Driver::new(relay, writer, onward, report, first, began).telling(told), keeping)
    }
}

/// Serves a stream to its client until its end, or until the client leaves.
pub async fn serve(session: &mut ServerSession, start: Start) -> Attached {
    let mut reader = start.writer.reader(0);
    let mut sent = Sent::default();
    let Start { heartbeat, send, .. } = start;
    // A header that did not wait for the engine went out with the first heartbeat due.
    let quiet_since = if let First::Opening(_) = start.first { start.began } else { Instant::now() };
    let (mut driver, keeping) = start.into_driver();
    let kept = keeping.as_ref().map(|keeping| &*keeping.kept);
    let attached = {
        let dress = kept.map_or(Dress::Plain, Dress::Numbered);
        let mut drive = pin!(run(&mut driver, kept));
        let pace = Pace { heartbeat, quiet_since, send };
        let mut attach = pin!(attach(session, &mut reader, dress, pace, &mut sent));
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
    let Some(keeping) = keeping else {
        if attached != Attached::Served {
            driver.abandon(); // nobody reads any more
        }
        driver.conclude(attached, sent);
        return attached;
    };
    if attached == Attached::Served {
        keeping.kept.was_delivered();
    }
    if matches!(attached, Attached::ClientGone | Attached::Lost) {
        driver.client_left();
    }
    if driver.is_sealed() {
        without_client(driver, keeping, sent).await;
    } else {
        // On its own from here on: the client's connection is given up with this request.
        tokio::spawn(without_client(driver, keeping, sent));
    }
    attached
}

async fn run(driver: &mut Driver, kept: Option<&Kept>) {
    match kept {
        Some(kept) => kept.run(driver).await,
        None => driver.run().await,
    }
}

/// Goes on with a stream whose client has left before it got anything, if it can come back.
pub fn leave(start: Start) {
    let (mut driver, keeping) = start.into_driver();
    match keeping {
        Some(keeping) => {
            driver.client_left();
            tokio::spawn(without_client(driver, keeping, Sent::default()));
        }
        None => {
            driver.abandon();
            driver.conclude(Attached::ClientGone, Sent::default());
        }
    }
}

/// Brings a stream to its end whose first client is gone, or has got it to its end.
async fn without_client(mut driver: Driver, keeping: Keeping, sent: Sent) {
    let Keeping { kept, registry, reader, hold } = keeping;
    drop(reader);
    kept.run(&mut driver).await;
    registry.ended(&kept);
    // What became of it is told by its seal: whether anybody has read it to there is told by those who did.
    driver.conclude(Attached::Served, sent);
    drop(hold);
}

/// Sends a client that has come back the rest of a stream, from `from` on.
pub async fn resume(session: &mut ServerSession, kept: &Arc<Kept>, from: Seq) -> (Attached, Sent) {
    let attendance = kept.attend();
    let mut reader = kept.log().reader(from);
    let mut sent = Sent::default();
    let pace = Pace { heartbeat: kept.heartbeat(), quiet_since: Instant::now(), send: kept.send() };
    let attached = attach(session, &mut reader, Dress::Numbered(kept), pace, &mut sent).await;
    if attached == Attached::Served {
        kept.was_delivered();
    }
    drop(attendance);
    (attached, sent)
}

/// Goes on with an answer whose first leg has failed its relay, until the stream has its seal. Nobody reads along: what comes is in
/// the journal. Gives the relay back, and what it told from here on.
pub async fn go_on(relay: Relay, writer: Writer, onward: Onward, report: Report, began: Instant) -> (Relay, Vec<Note>) {
    let mut driver = Driver::without_leg(relay, writer, onward, report, began);
    driver.run().await;
    driver.into_told()
}

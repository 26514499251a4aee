//! Where the engines are, and how one of them is asked.
//!
//! A [`Cluster`] is one upstream of the configuration: engines that serve the same model. A [`Leg`] is one request to one of
//! them: opened through Pingora's connector (pool, TLS, HTTP/1.1 and HTTP/2), read piece by piece, and closed by dropping it,
//! which is how an engine learns that it can stop generating. [`ask`] puts one question and reads the one answer. What the engines
//! of a cluster can do is found out beside that, by [`watch`].
//!
//! What is deliberately absent: time limits on reads (the relay keeps the time; a timer per read costs more than the read),
//! and repeats of requests (the relay decides what may be asked again). The one exception stands at [`Leg::open`].

mod abilities;
mod cluster;
mod discovery;
mod leg;
mod question;
mod refusals;

#[cfg(test)]
mod tests;

pub use abilities::{asked_once, look, watch};
pub use cluster::{Cluster, Endpoint, Picked, StreamGuard};
pub use leg::{Ask, ConnectFailure, Connector, Cut, Leg, OpenError, is_event_stream};
pub use question::{Answer, Asking, Unanswered, Whom, ask, get, head_for, open};

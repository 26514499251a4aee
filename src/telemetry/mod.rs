//! What Baton says about itself: numbers ([`metrics`]) and one line for each thing that happens to a stream
//! ([`events`]).
//!
//! Neither ever holds text of an answer, a request, a key or a whole stream id.

pub mod events;
pub mod metrics;

//! The pure core: what the bytes mean and what a stream does next.
//!
//! Architecture invariant: nothing in here is async, reads a clock, does IO, takes a lock, holds a global or draws a random
//! number. Time and request ids come in as arguments, decisions go out as values, so that every rule can be tested by a
//! simulation without a socket.

pub mod certificate;
pub mod chat;
pub mod record;
pub mod relay;
pub mod resume;
pub mod splice;
pub mod sse;

//! Baton as a whole, in this process, on real sockets, between raw clients and engines.

mod chat;
mod harness;
mod life;
mod passing;

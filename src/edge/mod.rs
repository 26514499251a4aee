//! The edge: what clients and operators talk to. The only code that knows [`ProxyHttp`](pingora::proxy::ProxyHttp).
//!
//! ```text
//!  request ─► Gateway::request_filter ─┬─ GET /health, preflights ───► answered here
//!                                      ├─ body over the limit ──────► 413
//!                                      ├─ POST …/v1/chat/completions
//!                                      │    └─ claim ─► first ─┬─ 200 text/event-stream, or nothing yet
//!                                      │                       │  when a heartbeat is due ──► stream::serve
//!                                      │                       └─ anything else ────────────► opaque::pass
//!                                      ├─ /v1/streams/… ────────────► resume ─► stream::resume
//!                                      └─ everything else ──────────► Pingora's own loop, watched by a Follower
//! ```
//!
//! Invariants:
//! - In doubt, pass through: a request that Baton does not understand reaches the engine unchanged, and the engine's answer is
//!   the client's.
//! - A response that broke off is never given an orderly end. `Ok(true)` from `request_filter` makes Pingora write one, so a
//!   torn response leaves as an error.
//! - [`error`] is the one place where causes become statuses and words.

pub mod admin;
mod claim;
mod cors;
pub mod error;
mod first;
pub mod gateway;
mod headers;
pub mod live;
mod opaque;
mod reply;
mod resume;
mod route;

pub use admin::Admin;
pub use gateway::Gateway;

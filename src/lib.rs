//! Baton: an edge proxy for LLM token streams that finishes every answer that has begun.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | **stream** | one client request and its one answer; has a stream id |
//! | **leg** | one upstream request that writes into a stream; leg 1 is the client's own, later legs are continuations |
//! | **journal** | the append-only log of a stream's answer |
//! | **record**, **seq** | one entry of a journal (one SSE event) and its number, from 0 |
//! | **seal** | the single last entry, which says how the stream ended |
//! | **writer**, **reader** | the two ends of a journal; a client connection is a reader |
//! | **relay** | the pure state machine that decides what a stream does next |
//! | **partial** | what has been generated so far: reasoning, content, tool calls, finish reasons, usage |
//! | **plan** | how to continue a partial |
//! | **splice** | making leg 2's events read as the rest of leg 1 |
//! | **family**, **engine** | how a model writes; what serves it |
//!
//! # The shape
//!
//! ```text
//!  client ──► edge::Gateway (ProxyHttp)                                         engine A
//!               request_filter ── claims chat requests                             ▲
//!                     │                                                            │ leg 1
//!                     ▼                                                            │
//!               stream::drive ──► Leg ──► Pingora's Connector (pool, TLS, H1/H2) ──┘
//!                     │            └── bytes ► sse ► Relay                         ▲ leg 2, engine B
//!                     ▼                          │                                 │
//!                  Journal ◄── append / seal ────┤──── Start ──────────────────────┘
//!                     │
//!                     └──► Reader ──► stream::attach ──► the client's connection, the same response
//! ```
//!
//! Arrows point down only: `main → {app → edge, certify} → {stream, journal, upstream, config, telemetry} → proto`, and
//! `tests/tidy.rs` holds them. The modules below are listed in reading order.

#![warn(missing_docs)]

pub mod proto;

pub mod journal;
pub mod upstream;

pub mod config;
pub mod telemetry;

pub mod stream;

pub mod edge;

pub mod app;

pub mod certify;

pub mod mock;

//! The scripted engine: a stand-in for vLLM or SGLang whose answers and faults are exact.
//!
//! Tests, benchmarks, the demo and rehearsals talk to it instead of a real engine. Three properties make it useful:
//!
//! - **The text is a function of the request.** Reasoning and content follow from the messages, the seed and the
//!   lengths asked for, so two engines give the same answer, and [`uncut`] says beforehand what it is.
//! - **A continuation is understood, not echoed.** From the last assistant message the engine works out how much of
//!   its own text has been written, in the way the wire and the chat template would show it to a model, and goes on from
//!   exactly there. A continuation that a real engine would get wrong comes out wrong here too, and in strict mode it
//!   is answered with 400 and the reason in words.
//! - **Faults happen at a position.** "Reset before event 12", "close 5 bytes into event 3", "stall before the usage
//!   chunk until released": never by chance and never by a timer unless one is asked for. See [`fault`].
//!
//! It has its own small HTTP/1.1 server because a library's server would decide by itself how a body ends.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use baton::mock::{Config, Engine, Stop};
//! let engine = Engine::start(Config::default()).await?;
//! println!("POST {}/v1/chat/completions", engine.url());
//! engine.wait_event(0, 11).await; // event 11 of the first request is written
//! engine.kill(Stop::Rst).await;
//! # Ok(()) }
//! ```
//!
//! Architecture invariant: nothing here uses the rest of the library. What the proxy believes about the wire and about
//! continuing is written down a second time, independently, so that a mistake in one of the two shows.

mod answer;
mod ask;
mod completions;
mod config;
mod continued;
mod derender;
mod detok;
mod endpoint;
mod engine;
mod family;
pub mod fault;
mod forms;
mod generate;
mod http;
mod line;
mod log;
mod parser;
mod prompt;
mod render;
mod reuse;
mod route;
mod script;
mod stream;
mod strict;
mod strict_ids;
mod text;
mod tokenize;
mod tokens;
mod validate;
mod whole;
mod wire;

#[cfg(test)]
mod tests;

pub use answer::{Answer, uncut};
pub use completions::uncut_completion;
pub use config::{Config, Continuation, Echo, Ledger, ReasoningField, Template, Wire};
pub use endpoint::Endpoint;
pub use engine::{Engine, Running, Stop};
pub use log::{End, Leg, Seen};
pub use script::{completion_events, events, generate_events, reply};
pub use text::{Kind, Piece};

//! Typed views of chat completions and of completions: requests, the chunks of a streamed answer, and what the chunks add up to.
//!
//! A completion is read as a chat whose answer is nothing but content, so that all that follows treats both alike. What differs is in
//! `request` (a prompt instead of messages), in `chunk` (`text` instead of a delta), and in [`Shape`], which says how the chunks are
//! written.
//!
//! A view reads what Baton needs and keeps everything else. Whatever is written again (a request with a longer message
//! list, a chunk with another id) is written from the raw JSON text of its fields, so that an unknown field keeps its bytes
//! and its place.
//!
//! | file | what it holds |
//! |---|---|
//! | `json` | an object as an ordered list of raw fields; unescaping of one JSON string |
//! | `request` | [`ChatRequest`]: what the client asked for, and what rules out a continuation |
//! | `chunk` | [`parse`]: one event's data → a chunk, an engine's error or `[DONE]` |
//! | `partial` | [`Partial`]: the fold of all chunks so far |
//! | `frame` | [`learn`], [`LearnedFrame`]: the fast path for events that differ in one string only |
//! | `ids` | [`TokenIds`]: the token ids of a prompt and an answer, compactly |
//! | `tokens` | [`estimate`]: tokens in a text when nobody counted them |
//! | `usage` | [`Usage`], [`merge`]: token counts, and those of the whole answer |
//!
//! The wire facts come from vLLM 0.32/0.33 (`entrypoints/openai/{chat_completion,completion}/`) and SGLang 0.5.23
//! (`srt/entrypoints/openai/`), and from recorded exchanges with vLLM 0.32 under `tests/fixtures/`.

mod chunk;
mod frame;
mod ids;
pub(crate) mod json;
mod partial;
mod request;
mod tokens;
mod usage;

#[cfg(test)]
pub(crate) mod fixtures;

pub use chunk::{
    Chunk, ChunkChoice, EngineError, Fault, FinishReason, Malformed, Parsed, Place, ReasoningField, Shape,
    ToolCallDelta, parse,
};
pub use frame::{Filling, LearnedFrame, learn};
pub use ids::{IdList, TokenIds};
pub use json::BadEscape;
pub use partial::{Choice, Counted, Head, Ids, Onward, Partial, Phase, TextKind, ToolCall};
pub use request::{Api, ChatRequest, ClientUsage, Exclusion, Prompt, RequestError};
pub use tokens::{Ratios, estimate};
pub use usage::{OriginalPrompt, Recovered, Usage, merge};

//! Any other server that knows `continue_final_message`: taken to work as vLLM does, with one string as content.
//!
//! It has no prefix plan. A server that goes on from a last assistant message does so with the flag beside it, too; one that does
//! not would answer anew, in other words where it samples, and nothing would tell. One that refuses unknown fields, and
//! is known to go on, has a name of its own here (`llama.cpp`).

use super::{Joint, Renderer, Spec};

pub(super) static GENERIC: Spec = Spec {
    name: "generic",
    aliases: &[],
    joint: Some(Joint::ThroughTemplate),
    prefill: None,
    stream_options: true,
    reads_reasoning: false,
    request_id: None,
    flag_ignored_by: &[Renderer::Harmony],
    takes_ids: false,
    assistant_becomes_user: false,
    cautions: &[],
};

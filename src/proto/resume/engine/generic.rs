//! Any other server that knows `continue_final_message`: taken to work as vLLM does, with one string as content.

use super::{Joint, Renderer, Spec};

pub(super) static GENERIC: Spec = Spec {
    name: "generic",
    aliases: &[],
    joint: Joint::ThroughTemplate,
    reads_reasoning: false,
    request_id: None,
    flag_ignored_by: &[Renderer::Harmony],
    takes_ids: false,
    assistant_becomes_user: false,
    cautions: &[],
};

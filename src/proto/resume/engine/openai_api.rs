//! OpenAI's own API: no way to go on with an answer. A last assistant message is history, and a new answer follows it
//! (sglang#3971, pydantic-ai#836). Only a replay is left.

use super::Spec;

pub(super) static OPENAI: Spec = Spec {
    name: "openai",
    aliases: &[],
    joint: None,
    prefill: None,
    stream_options: true,
    reads_reasoning: false,
    request_id: None,
    flag_ignored_by: &[],
    takes_ids: false,
    assistant_becomes_user: false,
    cautions: &[],
};

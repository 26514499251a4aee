//! DeepSeek's own API: `prefix: true` in a last assistant message, on another path.
//!
//! "Chat Prefix Completion (Beta)": the last message's role is assistant, its `prefix` is true, and the base URL is
//! `https://api.deepseek.com/beta`; the answer is the rest alone (api-docs.deepseek.com, guides/chat_prefix_completion). Its
//! `reasoning_content` is taken "as the input for the CoT in the last assistant message" (api/create-chat-completion): thinking
//! that has ended. That unfinished thinking would be gone on with is said nowhere, so it is not tried. Nobody here has seen it
//! work.
//!
//! `continue_final_message` is not a field there.

use super::{Prefill, Spec, Trims};

pub(super) static DEEPSEEK: Spec = Spec {
    name: "deepseek",
    aliases: &[],
    joint: None,
    prefill: Some(Prefill {
        flag: Some("prefix"),
        reasoning: Some("reasoning_content"),
        path: Some("/beta/chat/completions"),
        trims: Trims::Nothing,
        repeats: false,
        switch: None,
    }),
    stream_options: true,
    reads_reasoning: false,
    request_id: None,
    flag_ignored_by: &[],
    takes_ids: false,
    assistant_becomes_user: false,
    cautions: &[],
};

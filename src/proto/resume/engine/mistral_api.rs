//! Mistral's own API: `prefix: true` in a last assistant message.
//!
//! "The role of the prefix message is to force the model to start its answer by the content of the message" (docs.mistral.ai, API,
//! `AssistantMessage.prefix`); without the flag a last assistant message is a 400 (langchain#28846). The answer has begun with
//! the message once more, its blanks at the end moved behind it (vercel/ai#3256, SillyTavern#2557); newer clients no longer take
//! that out, so both are taken. Unknown fields are a 422, `stream_options.include_usage` among them; usage comes with the last
//! chunk (avante.nvim#2347, anon-kode#53, tabby#4082). Thinking comes as parts of the content, which are not continued. Nobody
//! here has seen it work.

use super::{Prefill, Spec, Trims};

pub(super) static MISTRAL: Spec = Spec {
    name: "mistral",
    aliases: &[],
    joint: None,
    prefill: Some(Prefill {
        flag: Some("prefix"),
        reasoning: None,
        path: None,
        trims: Trims::Blanks,
        repeats: true,
        switch: None,
    }),
    stream_options: false,
    reads_reasoning: false,
    request_id: None,
    flag_ignored_by: &[],
    takes_ids: false,
    assistant_becomes_user: false,
    cautions: &[],
};

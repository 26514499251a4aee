//! gpt-oss: known so that it can be refused.
//!
//! vLLM builds its prompt with Harmony and never reads `continue_final_message` (0.33, `renderers/online_renderer.py`): the
//! answer would start anew. Elsewhere no form is known, because a parser of channels cannot start inside one.

use super::{Prompt, Renderer, Spec};

pub(super) static GPT_OSS: Spec = Spec {
    name: "gpt_oss",
    aliases: &["harmony"],
    marks: None,
    renderer: Renderer::Harmony,
    switch: None,
    prompt: Prompt::Plain,
    template: None,
    appended: None,
    repeats_mark: false,
};

//! llama.cpp's server: a last assistant message is what the answer begins with, without a flag.
//!
//! So by default, and not with `--no-prefill-assistant` (llama.cpp#13174, #13608): the message is appended to the generation
//! prompt. A model whose template can think has to have it switched off by `chat_template_kwargs.enable_thinking`, or the
//! request is a 400, "Assistant response prefill is incompatible with enable_thinking." (#15404, #21889). Nobody here has seen it
//! work.

use super::{Prefill, Spec, Switch, Trims};

pub(super) static LLAMA_CPP: Spec = Spec {
    name: "llama.cpp",
    aliases: &["llama_cpp"],
    joint: None,
    prefill: Some(Prefill {
        flag: None,
        reasoning: None,
        path: None,
        trims: Trims::Nothing,
        repeats: false,
        switch: Some(Switch::ENABLE_THINKING),
    }),
    stream_options: true,
    reads_reasoning: false,
    request_id: None,
    flag_ignored_by: &[],
    takes_ids: false,
    assistant_becomes_user: false,
    cautions: &[],
};

//! SGLang: the template writes the generation prompt, and the last message's content is appended to it as it is.
//!
//! Only string content is taken; the message's `reasoning_content` and `tool_calls` are discarded, so thinking has to be in
//! the text, where the reasoning parser looks for its start state too (0.5.9+; 0.5.23,
//! `srt/entrypoints/openai/serving_chat.py`, `srt/parser/reasoning_parser.py`). `rid` must be fresh: one that is still in use
//! is an error. A last assistant message without the flag is made a user message (0.5.9+,
//! `_handle_last_assistant_message`), which it would not be with the partial behind it. `add_generation_prompt` is not a
//! field there and is ignored.

use super::{Joint, Spec};

const GLM45: &str = "SGLang up to 0.5.17 answers every continuation with 500 under the glm45 reasoning parser (sglang#30000); use 0.5.20 \
                     or later";
const DEEPSEEK_V4: &str = "continuing DeepSeek V4 on SGLang 0.5.23 goes through its own prompt adapter and is unverified there (sglang#26176)";
const KIMI_K3: &str =
    "continuing Kimi-K3 on SGLang is unverified: its generation prompt may open the think channel itself";

pub(super) static SGLANG: Spec = Spec {
    name: "sglang",
    aliases: &[],
    joint: Some(Joint::AppendedRaw),
    prefill: None,
    stream_options: true,
    reads_reasoning: false,
    request_id: Some("rid"),
    flag_ignored_by: &[],
    takes_ids: false,
    assistant_becomes_user: true,
    cautions: &[("glm", GLM45), ("glm_4_7", GLM45), ("deepseek_v4", DEEPSEEK_V4), ("kimi_k3", KIMI_K3)],
};

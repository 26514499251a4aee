//! vLLM: the last message goes through the chat template, and the prompt is cut behind its content.
//!
//! `add_generation_prompt: false` is needed beside the flag, or transformers answers 400 (vLLM 0.32, measured). `reasoning`
//! is read from the last message, and templates get it as `reasoning` and as `reasoning_content` (0.16+). A request's id
//! may be used again: vLLM appends a random part to it.

use super::{Joint, Renderer, Spec};

pub(super) static VLLM: Spec = Spec {
    name: "vllm",
    aliases: &[],
    joint: Some(Joint::ThroughTemplate),
    prefill: None,
    stream_options: true,
    reads_reasoning: true,
    request_id: None,
    flag_ignored_by: &[Renderer::DeepseekEncoding, Renderer::Harmony],
    takes_ids: true,
    assistant_becomes_user: false,
    cautions: &[(
        "kimi_k3",
        "continuing Kimi-K3 on vLLM is unverified: the flag is handed to the checkpoint's own encoder, and text marks may be \
         encoded as plain text",
    )],
};

//! DeepSeek-R1 and its distillations: always thinking, no key, `<think>\nR\n</think>\n\nC`.
//!
//! The template drops a message's reasoning and everything up to a `</think>` in its content (and vLLM then answers 400), so
//! through it only the answer is sent. Its prompt holds no think tokens, from which vLLM's `deepseek_r1` parser concludes
//! that thinking has not ended: the rest of the answer arrives as `reasoning` and is relabelled. A partial that is still
//! thinking has no `</think>`, so the template leaves it as it is and thinking goes on.
//!
//! The generation prompt ends in `<think>\n`.

use super::{Form, Forms, Marks, Opening, Prompt, Renderer, Spec, SwitchOff, Thinking, Trims};

pub(super) static DEEPSEEK_R1: Spec = Spec {
    name: "deepseek_r1",
    aliases: &["deepseek_r1_distill"],
    marks: Some(Marks::THINK_LINES),
    renderer: Renderer::ChatTemplate,
    switch: None,
    prompt: Prompt::OpensUnlessOff,
    template: Some(Forms {
        thinking: Thinking::StaysOpen(Opening::Written),
        content: Form::Answer,
        switch_off: SwitchOff::Never,
        trims: Trims::Nothing,
        answer_as_reasoning: true,
    }),
    appended: Some(Forms {
        thinking: Thinking::StaysOpen(Opening::InPrompt),
        content: Form::Text(Opening::InPrompt),
        switch_off: SwitchOff::Never,
        trims: Trims::Nothing,
        answer_as_reasoning: false,
    }),
    repeats_mark: false,
};

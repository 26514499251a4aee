//! DeepSeek V3 and V3.1, and V3.2 and V4: `<think>R</think>C`, key `thinking`.
//!
//! The V3.1 template writes `<｜Assistant｜></think>` before the last assistant message, whatever the switch says, and drops
//! a message's reasoning with everything up to a `</think>` in its content: only the answer goes on through it, and reasoning is
//! sent in its own field for templates that do read it (the branch for open thinking needs a message key that vLLM strips). The generation prompt ends in `<think>` with thinking on and in `</think>` without.
//!
//! V3.2 and V4 have no template. vLLM's encoders for them (tokenizer modes `deepseek_v32`, `deepseek_v4`, `deepseek_v41`)
//! never look at `continue_final_message` (vLLM 0.33, `tokenizers/deepseek_v32.py`, `tokenizers/deepseek_v4.py`; vllm#46256).

use super::{Form, Forms, Marks, OneString, Opening, Prompt, Renderer, Spec, Switch, SwitchOff, Thinking, Trims};

const TEMPLATE: Forms = Forms {
    thinking: Thinking::Closes,
    content: Form::Fields(OneString::Answer),
    switch_off: SwitchOff::OnceAnswering,
    trims: Trims::Nothing,
    answer_as_reasoning: false,
};

const APPENDED: Forms = Forms {
    thinking: Thinking::StaysOpen(Opening::InPrompt),
    content: Form::Text(Opening::InPrompt),
    switch_off: SwitchOff::IfNothingThought,
    trims: Trims::Nothing,
    answer_as_reasoning: false,
};

pub(super) static DEEPSEEK_V3: Spec = Spec {
    name: "deepseek_v3",
    aliases: &["deepseek_v3_1"],
    marks: Some(Marks::THINK),
    renderer: Renderer::ChatTemplate,
    switch: Some(Switch::THINKING),
    prompt: Prompt::OpensIfOn,
    template: Some(TEMPLATE),
    appended: Some(APPENDED),
    repeats_mark: false,
};

pub(super) static DEEPSEEK_V4: Spec = Spec {
    name: "deepseek_v4",
    aliases: &["deepseek_v3_2", "deepseek_v32", "deepseek_v4_1", "deepseek_v41"],
    marks: Some(Marks::THINK),
    renderer: Renderer::DeepseekEncoding,
    switch: Some(Switch::THINKING),
    prompt: Prompt::OpensIfOn,
    template: Some(TEMPLATE),
    appended: Some(APPENDED),
    repeats_mark: false,
};

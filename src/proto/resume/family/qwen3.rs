//! Qwen3 (hybrid): `<think>\nR\n</think>\n\nC`, key `enable_thinking`.
//!
//! The template always writes a think block before the last assistant message, from its `reasoning` field or empty, so
//! through the template only an answer can be continued, and the two fields are sent apart (vLLM 0.32, measured with
//! the `qwen3` template: the prompt is right, white space is kept, and `enable_thinking: false` leaves it as it is).
//!
//! The generation prompt opens no block, so text appended after it begins with the mark. With `enable_thinking: false` it
//! would end in a closed one, hence leg 1's switch is kept while there is reasoning to carry (SGLang 0.5.23,
//! `srt/entrypoints/openai/serving_chat.py`).

use super::{Form, Forms, Marks, OneString, Opening, Prompt, Renderer, Spec, Switch, SwitchOff, Thinking, Trims};

pub(super) static QWEN3: Spec = Spec {
    name: "qwen3",
    aliases: &[],
    marks: Some(Marks::THINK_LINES),
    renderer: Renderer::ChatTemplate,
    switch: Some(Switch::ENABLE_THINKING),
    prompt: Prompt::Plain,
    template: Some(Forms {
        thinking: Thinking::Closes,
        content: Form::Fields(OneString::Text),
        switch_off: SwitchOff::OnceAnswering,
        trims: Trims::Nothing,
        answer_as_reasoning: false,
    }),
    appended: Some(Forms {
        thinking: Thinking::StaysOpen(Opening::Written),
        content: Form::Text(Opening::Written),
        switch_off: SwitchOff::IfNothingThought,
        trims: Trims::Nothing,
        answer_as_reasoning: false,
    }),
    repeats_mark: false,
};

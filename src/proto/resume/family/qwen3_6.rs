//! Qwen3.5, 3.6 and 3.8: as Qwen3, but the generation prompt opens the block and the template trims.
//!
//! vLLM 0.32, measured with the `qwen3_6` and `qwen3_8` templates: `reasoning` and `content` apart give the right prompt;
//! outer white space of the content is lost and the engine writes it again; reasoning alone is answered with 400. The
//! generation prompt ends in `<think>\n`, so appended text goes on behind the mark. (So does that of
//! Qwen3-…-Thinking-2507.)
//!
//! Two things differ in 3.8. Its template does not look for think tags in a string, so that one would get a second block. And
//! with `enable_thinking: false` it leaves out the system text that states the reasoning effort, so the switch stays as leg 1
//! had it while there is reasoning to carry; the closed block in the prompt is enough for the parser.

use super::{Form, Forms, Marks, OneString, Opening, Prompt, Renderer, Spec, Switch, SwitchOff, Thinking, Trims};

const APPENDED: Forms = Forms {
    thinking: Thinking::StaysOpen(Opening::InPrompt),
    content: Form::Text(Opening::InPrompt),
    switch_off: SwitchOff::IfNothingThought,
    trims: Trims::Nothing,
    answer_as_reasoning: false,
};

const fn template(one_string: OneString, switch_off: SwitchOff) -> Forms {
    Forms {
        thinking: Thinking::Closes,
        content: Form::Fields(one_string),
        switch_off,
        trims: Trims::WhiteSpace,
        answer_as_reasoning: false,
    }
}

pub(super) static QWEN3_6: Spec = Spec {
    name: "qwen3_6",
    aliases: &["qwen3_5"],
    marks: Some(Marks::THINK_LINES),
    renderer: Renderer::ChatTemplate,
    switch: Some(Switch::ENABLE_THINKING),
    prompt: Prompt::OpensUnlessOff,
    template: Some(template(OneString::Text, SwitchOff::OnceAnswering)),
    appended: Some(APPENDED),
    repeats_mark: false,
};

pub(super) static QWEN3_8: Spec = Spec {
    name: "qwen3_8",
    aliases: &[],
    marks: Some(Marks::THINK_LINES),
    renderer: Renderer::ChatTemplate,
    switch: Some(Switch::ENABLE_THINKING),
    prompt: Prompt::OpensUnlessOff,
    template: Some(template(OneString::Impossible, SwitchOff::IfNothingThought)),
    appended: Some(APPENDED),
    repeats_mark: false,
};

//! GLM-4.5 and 4.6, and GLM-4.7 and later: `<think>R</think>C`, key `enable_thinking`.
//!
//! The template writes a block before every assistant message, from its reasoning or empty, and strips the content. When
//! `enable_thinking` is false it also writes `/nothink` behind each user message (4.5, 4.6), so switching it off is another
//! prompt: through the template it is never needed, because the block is always closed there.
//!
//! Up to 4.6 the model writes the opening mark; from 4.7 on the generation prompt ends in it. GLM-5.3 ignores the switch.

use super::{Form, Forms, Marks, OneString, Opening, Prompt, Renderer, Spec, Switch, SwitchOff, Thinking, Trims};

const TEMPLATE: Forms = Forms {
    thinking: Thinking::Closes,
    content: Form::Fields(OneString::Text),
    switch_off: SwitchOff::Never,
    trims: Trims::WhiteSpace,
    answer_as_reasoning: false,
};

const fn appended(opening: Opening) -> Forms {
    Forms {
        thinking: Thinking::StaysOpen(opening),
        content: Form::Text(opening),
        switch_off: SwitchOff::IfNothingThought,
        trims: Trims::Nothing,
        answer_as_reasoning: false,
    }
}

pub(super) static GLM: Spec = Spec {
    name: "glm",
    aliases: &["glm_4_5", "glm_4_6", "glm4", "glm4_5", "glm4_6"],
    marks: Some(Marks::THINK),
    renderer: Renderer::ChatTemplate,
    switch: Some(Switch::ENABLE_THINKING),
    prompt: Prompt::Plain,
    template: Some(TEMPLATE),
    appended: Some(appended(Opening::Written)),
    repeats_mark: false,
};

pub(super) static GLM_4_7: Spec = Spec {
    name: "glm_4_7",
    aliases: &["glm4_7", "glm_5", "glm_5_2", "glm_5_3"],
    marks: Some(Marks::THINK),
    renderer: Renderer::ChatTemplate,
    switch: Some(Switch::ENABLE_THINKING),
    prompt: Prompt::OpensUnlessOff,
    template: Some(TEMPLATE),
    appended: Some(appended(Opening::InPrompt)),
    repeats_mark: false,
};

//! Models that do not think: the answer as it is, and no key.

use super::{Form, Forms, Prompt, Renderer, Spec, SwitchOff, Thinking, Trims};

const FORMS: Forms = Forms {
    thinking: Thinking::Closes,
    content: Form::Answer,
    switch_off: SwitchOff::Never,
    trims: Trims::Nothing,
    answer_as_reasoning: false,
};

pub(super) static NO_THINKING: Spec = Spec {
    name: "no_thinking",
    aliases: &["none"],
    marks: None,
    renderer: Renderer::ChatTemplate,
    switch: None,
    prompt: Prompt::Plain,
    template: Some(FORMS),
    appended: Some(FORMS),
    repeats_mark: false,
};

//! The default family: `<think>R</think>C`, and `<think>R` as long as there is no content.
//!
//! Used for every name without a file of its own. Nothing is known of such a model's template, so the text carries
//! exactly what was generated and nothing else, and the more common of the two keys (`thinking`) is sent once the answer
//! has begun; a template that does not know it ignores it.

use super::{Form, Forms, Marks, Opening, Prompt, Renderer, Spec, Switch, SwitchOff, Thinking, Trims};

const FORMS: Forms = Forms {
    thinking: Thinking::StaysOpen(Opening::Written),
    content: Form::Text(Opening::Written),
    switch_off: SwitchOff::OnceAnswering,
    trims: Trims::Nothing,
    answer_as_reasoning: false,
};

pub(super) static DEFAULT: Spec = Spec {
    name: "default",
    aliases: &[],
    marks: Some(Marks::THINK),
    renderer: Renderer::ChatTemplate,
    switch: Some(Switch::THINKING),
    prompt: Prompt::Plain,
    template: Some(FORMS),
    appended: Some(FORMS),
    repeats_mark: false,
};

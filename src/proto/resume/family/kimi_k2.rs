//! Kimi-K2 (Instruct, Thinking) and Kimi-K2.5: `<think>R</think>C`, key `thinking`.
//!
//! The template of K2-Thinking writes an empty block before the last assistant message, so unfinished thinking cannot go
//! through it; an answer is sent with its reasoning in the text, which is the only place where the template keeps it. K2
//! (Instruct) writes content as it is and has no reasoning. Neither reads the switch in its prompt; the parsers do.
//!
//! K2's generation prompt opens no block; K2.5's ends in `<think>` as long as thinking is on.

use super::{Form, Forms, Marks, Opening, Prompt, Renderer, Spec, Switch, SwitchOff, Thinking, Trims};

const TEMPLATE: Forms = Forms {
    thinking: Thinking::Closes,
    content: Form::Text(Opening::Written),
    switch_off: SwitchOff::OnceAnswering,
    trims: Trims::Nothing,
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

pub(super) static KIMI_K2: Spec = Spec {
    name: "kimi_k2",
    aliases: &["kimi_k2_thinking"],
    marks: Some(Marks::THINK),
    renderer: Renderer::ChatTemplate,
    switch: Some(Switch::THINKING),
    prompt: Prompt::Plain,
    template: Some(TEMPLATE),
    appended: Some(appended(Opening::Written)),
    repeats_mark: false,
};

pub(super) static KIMI_K2_5: Spec = Spec {
    name: "kimi_k2_5",
    aliases: &["kimi_k2_6"],
    marks: Some(Marks::THINK),
    renderer: Renderer::ChatTemplate,
    switch: Some(Switch::THINKING),
    prompt: Prompt::OpensUnlessOff,
    template: Some(TEMPLATE),
    appended: Some(appended(Opening::InPrompt)),
    repeats_mark: false,
};

//! MiniMax-M2, always thinking, and MiniMax-M3 with the key `thinking_mode`.
//!
//! M2's template takes a string apart at `</think>` and writes it again as `<think>\nR\n</think>\n\nC`, which is what the text
//! says already; a string without `</think>` stays as it is, so thinking goes on. The generation prompt ends in
//! `<think>\n`. The parsers `minimax_m2_append_think` (vLLM) and `minimax-append-think` (SGLang) write `<think>` before
//! the first text of *every* answer, leg 2's too, so a partial with the mark in its content is not continued.
//!
//! M3 marks thinking with `<mm:think>`; its template was not read.

use super::{Form, Forms, Marks, Opening, Prompt, Renderer, Spec, Switch, SwitchOff, Thinking, Trims};

const fn forms(opening: Opening, switch_off: SwitchOff) -> Forms {
    Forms {
        thinking: Thinking::StaysOpen(opening),
        content: Form::Text(opening),
        switch_off,
        trims: Trims::Nothing,
        answer_as_reasoning: false,
    }
}

pub(super) static MINIMAX: Spec = Spec {
    name: "minimax",
    aliases: &["minimax_m2", "minimax_m2_1", "minimax_m2_5"],
    marks: Some(Marks::THINK_LINES),
    renderer: Renderer::ChatTemplate,
    switch: None,
    prompt: Prompt::OpensUnlessOff,
    template: Some(forms(Opening::Written, SwitchOff::Never)),
    appended: Some(forms(Opening::InPrompt, SwitchOff::Never)),
    repeats_mark: true,
};

pub(super) static MINIMAX_M3: Spec = Spec {
    name: "minimax_m3",
    aliases: &[],
    marks: Some(Marks {
        open: "<mm:think>",
        close: "</mm:think>",
        reserved: &["<mm:think>", "</mm:think>"],
        ..Marks::THINK
    }),
    renderer: Renderer::ChatTemplate,
    switch: Some(Switch { key: "thinking_mode", off: r#""disabled""# }),
    prompt: Prompt::Plain,
    template: Some(forms(Opening::Written, SwitchOff::OnceAnswering)),
    appended: Some(forms(Opening::Written, SwitchOff::IfNothingThought)),
    repeats_mark: false,
};

//! Kimi-K3: XTML channels, `<|open|>think<|sep|>R<|close|>think<|sep|><|open|>response<|sep|>C`, key `thinking`.
//!
//! Each mark is several special tokens. With thinking off the encoder also drops the system message that states the
//! thinking effort, so the switch is left as leg 1 had it while there is reasoning to carry.

use super::{Form, Forms, Marks, Opening, Prompt, Renderer, Spec, Switch, SwitchOff, Thinking, Trims};

const FORMS: Forms = Forms {
    thinking: Thinking::StaysOpen(Opening::Written),
    content: Form::Text(Opening::Written),
    switch_off: SwitchOff::IfNothingThought,
    trims: Trims::Nothing,
    answer_as_reasoning: false,
};

pub(super) static KIMI_K3: Spec = Spec {
    name: "kimi_k3",
    aliases: &[],
    marks: Some(Marks {
        open: "<|open|>think<|sep|>",
        after_open: "",
        before_close: "",
        close: "<|close|>think<|sep|><|open|>response<|sep|>",
        after_close: "",
        // Any of the tokens that the marks are made of.
        reserved: &["<|open|>", "<|close|>", "<|sep|>"],
    }),
    renderer: Renderer::KimiK3Encoding,
    switch: Some(Switch::THINKING),
    prompt: Prompt::Plain,
    template: Some(FORMS),
    appended: Some(FORMS),
    repeats_mark: false,
};

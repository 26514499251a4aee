//! Mistral and Magistral: `[THINK]R[/THINK]C`, and no key at all.
//!
//! On vLLM they run on mistral_common, which refuses `chat_template_kwargs` (400), turns `[THINK]` in a text into plain
//! characters and drops trailing blanks (`tokens/tokenizers/instruct.py`): only the answer can be handed back there. Where
//! text is appended to the prompt, the tokenizer knows the marks.

use super::{Form, Forms, Marks, Opening, Prompt, Renderer, Spec, SwitchOff, Thinking, Trims};

pub(super) static MISTRAL: Spec = Spec {
    name: "mistral",
    aliases: &["magistral"],
    marks: Some(Marks { open: "[THINK]", close: "[/THINK]", reserved: &["[THINK]", "[/THINK]"], ..Marks::THINK }),
    renderer: Renderer::MistralTokenizer,
    switch: None,
    prompt: Prompt::Plain,
    template: Some(Forms {
        thinking: Thinking::Closes,
        content: Form::Answer,
        switch_off: SwitchOff::Never,
        trims: Trims::Blanks,
        answer_as_reasoning: false,
    }),
    appended: Some(Forms {
        thinking: Thinking::StaysOpen(Opening::Written),
        content: Form::Text(Opening::Written),
        switch_off: SwitchOff::Never,
        trims: Trims::Nothing,
        answer_as_reasoning: false,
    }),
    repeats_mark: false,
};

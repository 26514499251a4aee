//! The client's text as the model wrote it, for an answer whose ids are not known.

use crate::proto::resume::Refused;
use crate::proto::resume::family::{Marks, Opening};

/// How a prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// Inside thinking: the model goes on with it and writes no opening mark.
    Open,
    /// Behind thinking that is over.
    Closed,
    /// With neither: whether there is thinking is the model's choice, and so is the mark.
    Plain,
}

impl Prompt {
    /// Of the text of a prompt's end. Only the very end counts: a mark before it may be a user's word.
    pub(super) fn of(text: &str, marks: Option<&Marks>) -> Self {
        let text = text.trim_end();
        match marks {
            Some(marks) if text.ends_with(marks.close) => Self::Closed,
            Some(marks) if text.ends_with(marks.open) => Self::Open,
            _ => Self::Plain,
        }
    }
}

/// The text between the prompt and the place where the answer broke, in as many ways as it may have been written; the likeliest
/// last. `parsed`: the engine's reasoning parser has taken the marks out.
///
/// # Errors
/// When it cannot be told.
pub(super) fn compose(
    prompt: Prompt,
    (reasoning, content): (&str, &str),
    marks: Option<&Marks>,
    parsed: bool,
) -> Result<Vec<String>, Refused> {
    let plain = || Ok(vec![content.to_owned()]);
    let Some(marks) = marks else {
        return if reasoning.is_empty() { plain() } else { Err(Refused::UnexpectedThinking) };
    };
    if !parsed && reasoning.is_empty() {
        // Nobody took anything out: the marks are where they were written.
        return plain();
    }
    if marks.stand_in(reasoning) || marks.stand_in(content) {
        return Err(Refused::MarkInText);
    }
    let opening = match prompt {
        Prompt::Open => Opening::InPrompt,
        Prompt::Plain if !reasoning.is_empty() => Opening::Written,
        Prompt::Closed if !reasoning.is_empty() => return Err(Refused::UnexpectedThinking),
        Prompt::Plain | Prompt::Closed => return plain(),
    };
    let bare = Marks { after_open: "", before_close: "", after_close: "", ..*marks };
    let write = |marks: &Marks| match content {
        "" => marks.unfinished(opening, reasoning),
        _ => marks.finished(opening, reasoning, content),
    };
    // The gaps are white space that a parser may have taken out, or that the model never wrote.
    let mut ways = vec![write(&bare), write(marks)];
    ways.dedup();
    Ok(ways)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: Marks = Marks::THINK_LINES;

    fn check(prompt: Prompt, texts: (&str, &str), parsed: bool, ways: &[&str]) {
        let composed = compose(prompt, texts, Some(&LINES), parsed).unwrap();
        assert_eq!(composed, ways, "{prompt:?} {texts:?}");
    }

    #[test]
    fn whether_thinking_is_open_is_read_from_the_prompts_very_end() {
        for (text, prompt) in [
            ("<|im_start|>assistant\n<think>\n", Prompt::Open),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Prompt::Closed),
            ("what is <think>?<|im_end|>\n<|im_start|>assistant\n", Prompt::Plain),
            ("", Prompt::Plain),
        ] {
            assert_eq!(Prompt::of(text, Some(&LINES)), prompt, "{text:?}");
        }
        assert_eq!(Prompt::of("<think>\n", None), Prompt::Plain);
    }

    #[test]
    fn the_opening_mark_is_written_only_where_the_prompt_has_none() {
        check(Prompt::Open, ("R", ""), true, &["R"]);
        check(Prompt::Plain, ("R", ""), true, &["<think>R", "<think>\nR"]);
        check(Prompt::Plain, ("\nR", ""), true, &["<think>\nR"]);
    }

    #[test]
    fn the_closing_mark_is_written_when_the_answer_has_begun() {
        check(Prompt::Open, ("R\n", "\n\nC"), true, &["R\n</think>\n\nC"]);
        check(Prompt::Open, ("R", "C"), true, &["R</think>C", "R\n</think>\n\nC"]);
        check(Prompt::Plain, ("\nR\n", "\n\nC"), true, &["<think>\nR\n</think>\n\nC"]);
    }

    #[test]
    fn no_thinking_in_an_open_prompt_is_thinking_that_ended_at_once() {
        check(Prompt::Open, ("", "\n\nC"), true, &["</think>\n\nC", "\n</think>\n\nC"]);
        check(Prompt::Closed, ("", "C"), true, &["C"]);
        check(Prompt::Plain, ("", "C"), true, &["C"]);
    }

    #[test]
    fn what_no_parser_has_parted_stays_as_it_is() {
        check(Prompt::Open, ("", "R\n</think>\n\nC"), false, &["R\n</think>\n\nC"]);
        check(Prompt::Open, ("", "R"), false, &["R"]);
    }

    #[test]
    fn what_cannot_be_told_is_refused() {
        let refused = |texts, marks, prompt| compose(prompt, texts, marks, true).unwrap_err();
        let marks = Some(&LINES);
        assert_eq!(refused(("a<think>", ""), marks, Prompt::Open), Refused::MarkInText);
        assert_eq!(refused(("R", "a</think>"), marks, Prompt::Open), Refused::MarkInText);
        assert_eq!(refused(("R", ""), marks, Prompt::Closed), Refused::UnexpectedThinking);
        assert_eq!(refused(("R", ""), None, Prompt::Plain), Refused::UnexpectedThinking);
    }
}

//! A cut at every byte of a stream: of one family for every form that the place where two legs meet can have.

use super::breaks::Break;
use super::case::{Case, Usage};
use super::every_event::check;

/// A short answer: all that matters happens in it, and every byte is tried.
fn check_bytes(engine: &'static str, family: &'static str) {
    let stream = Case::new(engine, family, Usage::None).of_length(2, 3).answered();
    let (bytes, ends) = (stream.uncut.concat(), stream.ends());
    for at in 0..bytes.len() {
        let cut = ends.partition_point(|end| *end <= at);
        for end in [Break::Reset, Break::CleanEnd] {
            check(&stream, &bytes[..at], cut, end);
        }
        // A close is told from a reset in one place only, which knows neither family nor engine.
        if family == "default" {
            check(&stream, &bytes[..at], cut, Break::Eof);
        }
    }
}

macro_rules! at_every_byte {
    ($($name:ident: $engine:literal, $family:literal;)*) => {
        $(#[test]
        fn $name() {
            check_bytes($engine, $family);
        })*
    };
}

at_every_byte! {
    one_string_through_a_template: "vllm", "default";
    two_fields_with_white_space_kept: "vllm", "qwen3";
    two_fields_with_white_space_trimmed: "vllm", "qwen3_6";
    one_string_where_thinking_cannot_go_on: "vllm", "kimi_k2";
    one_string_with_marks_of_several_tokens: "vllm", "kimi_k3";
    one_string_with_newlines_around_the_marks: "vllm", "minimax";
    the_answer_alone_behind_a_closed_block: "vllm", "deepseek_v3";
    the_answer_alone_coming_back_as_thinking: "vllm", "deepseek_r1";
    the_answer_alone_with_blanks_trimmed: "vllm", "mistral";
    the_answer_alone_of_a_model_that_does_not_think: "vllm", "no_thinking";
    nothing_where_the_flag_is_ignored: "vllm", "deepseek_v4";
    a_string_appended_with_its_opening_mark: "sglang", "default";
    a_string_appended_with_marks_on_their_own_lines: "sglang", "qwen3";
    a_string_appended_behind_an_opened_block: "sglang", "deepseek_v3";
    a_string_appended_behind_an_opened_block_with_newlines: "sglang", "qwen3_6";
    a_string_appended_with_square_marks: "sglang", "mistral";
    a_string_appended_of_a_model_that_does_not_think: "sglang", "no_thinking";
    nothing_where_no_form_is_known: "sglang", "gpt_oss";
    one_string_instead_of_two_fields: "generic", "qwen3";
    one_string_instead_of_two_fields_trimmed: "generic", "glm";
    the_answer_alone_instead_of_two_fields: "generic", "deepseek_v3";
    nothing_where_a_string_would_get_a_second_block: "generic", "qwen3_8";
}

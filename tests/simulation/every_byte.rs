//! A cut at every byte of a stream: of one family for every form that the place where two legs meet can have.

use baton::proto::relay::LegEnd;

use super::breaks::Break;
use super::case::{Answered, Case, Usage};
use super::every_event::check;
use super::run::Run;

/// A short answer: all that matters happens in it, and every byte is tried.
fn check_bytes(engine: &'static str, family: &'static str) {
    let stream = Case::new(engine, family, Usage::None).of_length(2, 2).answered();
    let (bytes, ends) = (stream.uncut.concat(), stream.ends());
    for at in 0..bytes.len() {
        let cut = ends.partition_point(|end| *end <= at);
        let (run, _) = check(&stream, &bytes[..at], cut, Break::Reset);
        assert_same_decision(&stream, &run, &bytes[..at], cut, LegEnd::Clean);
        // A close is told from a reset in one place, which knows neither family nor engine.
        if family == "default" {
            assert_same_decision(&stream, &run, &bytes[..at], cut, LegEnd::Eof);
        }
    }
}

/// With another end at the same byte the client has the same, and the same is asked of the next engine: so what comes of it is
/// what came of `run`, which has been checked.
fn assert_same_decision(stream: &Answered, run: &Run, sent: &[u8], cut: usize, end: LegEnd) {
    let at = format!("{} on {}, {end:?} after {} bytes", stream.case.family, stream.case.engine, sent.len());
    let mut other = stream.open();
    other.feed(sent);
    other.end(end);
    match other.asked() {
        Some(start) => {
            assert_eq!(Some(start), run.starts.first(), "{at}");
            assert_eq!(other.log.events, stream.whole[..cut], "{at}");
        }
        None => {
            assert_eq!((other.why, run.starts.len(), other.is_incomplete()), (run.why, 0, run.is_incomplete()), "{at}");
            assert_eq!(other.log.events, run.log.events, "{at}");
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

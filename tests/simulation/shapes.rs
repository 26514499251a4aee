//! The shapes that events have and had: older names of thinking, nulls for what is absent, text beside the finish reason,
//! several tokens in one event, escapes.

use baton::mock::{Config, ReasoningField};
use baton::proto::relay::LegEnd;
use serde_json::Value;

use super::breaks::Break;
use super::case::{Case, Usage};
use super::compare::assert_whole;
use super::every_event::check;
use super::run::{Reply, Said, data_of};

const SEVERAL: [Break; 5] = [Break::Reset, Break::CleanEnd, Break::Abort, Break::Done, Break::Stall];

/// Checks breaks before every event of these pairs with both engines changed so.
fn check_pairs(
    pairs: &[(&'static str, &'static str)],
    usages: &[Usage],
    breaks: &[Break],
    change: impl Fn(&mut Config),
) {
    for (engine, family) in pairs {
        for usage in usages {
            let mut case = Case::new(engine, family, *usage);
            case.alter(&change);
            let stream = case.answered();
            for cut in 0..stream.uncut.len() {
                for end in breaks {
                    check(&stream, &stream.bytes(cut), cut, *end);
                }
            }
        }
    }
}

#[test]
fn the_older_names_of_thinking_are_kept() {
    for field in [ReasoningField::Reasoning, ReasoningField::ReasoningContent, ReasoningField::Both] {
        check_pairs(&[("vllm", "default"), ("vllm", "qwen3")], &[Usage::None, Usage::Continuous], &SEVERAL, |config| {
            config.reasoning_field = Some(field);
        });
    }
}

#[test]
fn thinking_has_one_name_also_when_the_next_engine_calls_it_otherwise() {
    let names = [ReasoningField::Reasoning, ReasoningField::ReasoningContent, ReasoningField::Both];
    for (one, other) in names.iter().flat_map(|one| names.iter().map(move |other| (*one, *other))) {
        let mut case = Case::new("vllm", "default", Usage::None);
        (case.first.reasoning_field, case.later.reasoning_field) = (Some(one), Some(other));
        let stream = case.answered();
        let thinking = (0..stream.uncut.len()).filter(|cut| !stream.said(*cut).reasoning.is_empty());
        for cut in thinking.filter(|cut| !stream.said(*cut).is_finished()) {
            let at = format!("{one:?}, then {other:?}, after {cut} events");
            let mut run = stream.cut(&stream.bytes(cut), Break::Reset);
            if one == ReasoningField::Both {
                // Two fields beside each other may stand in either order.
                let read = |data: &String| serde_json::from_str::<Value>(data).expect("an event's data");
                for (got, want) in run.log.events.iter_mut().zip(&stream.whole) {
                    if read(got) == read(want) {
                        got.clone_from(want);
                    }
                }
            }
            assert_whole(&stream, &run, cut, &at);
        }
    }
}

#[test]
fn old_releases_of_sglang_write_nulls_for_what_is_absent() {
    let pairs = [("sglang", "default"), ("sglang", "qwen3_6"), ("sglang", "no_thinking")];
    let usages = [Usage::None, Usage::AtEnd, Usage::Continuous, Usage::OnlyContinuous];
    check_pairs(&pairs, &usages, &SEVERAL, |config| config.all_nulls = true);
}

#[test]
fn the_last_text_may_come_with_the_finish_reason() {
    let pairs = [("vllm", "default"), ("vllm", "qwen3_6"), ("vllm", "deepseek_r1"), ("generic", "no_thinking")];
    check_pairs(&pairs, &[Usage::None, Usage::Continuous], &SEVERAL, |config| config.finish_with_text = true);
}

#[test]
fn an_event_may_hold_several_tokens() {
    let pairs = [("vllm", "default"), ("vllm", "qwen3"), ("sglang", "qwen3_6"), ("generic", "deepseek_v3")];
    check_pairs(&pairs, &[Usage::None, Usage::Continuous], &SEVERAL, |config| config.tokens_per_event = 3);
}

#[test]
fn several_tokens_in_an_event_may_be_grouped_anew_where_a_template_trims() {
    for family in ["qwen3_6", "glm", "mistral"] {
        let mut case = Case::new("vllm", family, Usage::None).of_length(5, 30);
        case.alter(|config| config.tokens_per_event = 3);
        let stream = case.answered();
        let answering = |cut: &usize| !stream.said(*cut).content.is_empty() && !stream.said(*cut).is_finished();
        for cut in (0..stream.uncut.len()).filter(answering) {
            let run = stream.cut(&stream.bytes(cut), Break::Reset);
            assert_eq!(run.log.events[..cut], stream.whole[..cut]);
            assert_eq!(Said::by(&run.log.events), *stream.said(stream.whole.len()), "{family} after {cut} events");
        }
    }
}

#[test]
fn everything_outside_ascii_may_be_escaped() {
    let pairs = [("vllm", "default"), ("sglang", "qwen3"), ("vllm", "qwen3_6")];
    check_pairs(&pairs, &[Usage::None], &SEVERAL, |config| config.ascii = true);
}

#[test]
fn cached_tokens_are_those_of_the_prompt() {
    let pairs = [("vllm", "qwen3"), ("sglang", "default")];
    check_pairs(&pairs, &[Usage::Continuous], &[Break::Reset], |config| config.cached_tokens = Some(3));
}

#[test]
fn answers_of_other_seeds_have_other_texts_and_are_whole_too() {
    for seed in 1..6 {
        let pairs = [("vllm", "qwen3_6"), ("vllm", "default"), ("sglang", "mistral"), ("generic", "glm")];
        check_pairs(&pairs, &[Usage::None], &[Break::Reset], |config| {
            (config.seed, config.reasoning, config.content) = (seed, 8, 24);
        });
    }
}

#[test]
fn limits_and_floors_go_down_with_what_was_written() {
    for (engine, family) in [("vllm", "default"), ("vllm", "qwen3_6"), ("sglang", "qwen3")] {
        let mut case = Case::new(engine, family, Usage::Continuous);
        for (key, value) in [("max_tokens", 60), ("min_tokens", 6), ("thinking_token_budget", 50)] {
            case.body[key] = value.into();
        }
        let stream = case.answered();
        for cut in 0..stream.uncut.len() {
            let (run, _) = check(&stream, &stream.bytes(cut), cut, Break::Reset);
            // The scripted engine checks the limits to the token, and of the others that they never grow.
            for start in run.starts.iter().filter(|start| start.plan == "chat-continue") {
                let body: Value = serde_json::from_slice(start.work.body()).expect("a request");
                let written = stream.tokens(cut);
                assert_eq!(
                    body["min_tokens"],
                    6_u64.saturating_sub(written),
                    "{family} on {engine} after {cut} events"
                );
                assert_eq!(body["thinking_token_budget"], 50, "{family} on {engine} after {cut} events");
            }
        }
    }
}

#[test]
fn a_fingerprint_in_every_event_is_that_of_the_first_engine() {
    // OpenAI's own servers send it so; the scripted wires do not, hence it is put in here.
    let named = |bytes: &[u8], name: &str| {
        let text = String::from_utf8(bytes.to_vec()).expect("text");
        text.replace("}\n\n", &format!(r#","system_fingerprint":"{name}"}}{}"#, "\n\n")).into_bytes()
    };
    let stream = Case::new("sglang", "default", Usage::None).answered();
    let whole = data_of(&named(&stream.uncut.concat(), "fp-a"));
    for cut in 1..stream.uncut.len() {
        let mut run = stream.open();
        run.feed(&named(&stream.bytes(cut), "fp-a"));
        run.end(LegEnd::Reset);
        run.serve(|start| Reply::Whole(named(&stream.answer(start), "fp-b")));
        assert_eq!(run.log.events, whole[..whole.len() - 1], "after {cut} events");
    }
}

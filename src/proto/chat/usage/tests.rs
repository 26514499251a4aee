use super::super::fixtures::{CONTINUOUS_USAGE, SGLANG, SGLANG_COMPLETION, chunk, events, folded};
use super::*;

fn read(json: &str) -> Option<Usage> {
    Usage::read(serde_json::from_str(json).unwrap())
}

fn usage(json: &str) -> Usage {
    read(json).unwrap()
}

fn recovered(completion_tokens: u64, reasoning_tokens: u64, prompt: OriginalPrompt) -> Recovered {
    Recovered { completion_tokens, reasoning_tokens, prompt }
}

fn request(json: &str) -> ChatRequest {
    ChatRequest::parse(json.as_bytes()).unwrap()
}

const VLLM: &str = r#"{"prompt_tokens":40,"total_tokens":45,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":2,"x":1}}"#;

#[test]
fn usage_is_read_from_both_engines_places_and_written_back_unchanged() {
    for json in [
        VLLM,
        r#"{"prompt_tokens":12,"total_tokens":21,"completion_tokens":9,"prompt_tokens_details":null,"reasoning_tokens":4}"#,
        r#"{"completion_tokens":5,"prompt_tokens":40,"total_tokens":45,"prompt_tokens_details":{"cached_tokens":32,"audio":0},"num":1.50}"#,
        r#"{"prompt_tokens":1,"total_tokens":3,"completion_tokens":2,"reasoning_tokens":1,"completion_tokens_details":{"reasoning_tokens":1}}"#,
    ] {
        assert_eq!(usage(json).to_json().get(), json);
    }
    assert_eq!(usage(VLLM).reasoning_tokens, Some(2));
    assert_eq!(usage(r#"{"completion_tokens":5,"reasoning_tokens":4}"#).reasoning_tokens, Some(4));
    let cached = usage(r#"{"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":32}}"#);
    assert_eq!((cached.cached_tokens, cached.prompt_tokens), (Some(32), 0));
}

#[test]
fn usage_that_counts_nothing_is_none() {
    for json in [
        "3",
        "[]",
        "\"none\"",
        "false",
        "{}",
        r#"{"prompt_tokens":5}"#,
        r#"{"completion_tokens":null}"#,
        r#"{"completion_tokens":-1}"#,
        r#"{"completion_tokens":1e300}"#,
        r#"{"completion_tokens":99999999999999999999}"#,
    ] {
        assert_eq!(read(json), None, "{json}");
    }
}

#[test]
fn odd_counts_are_read_as_far_as_they_are_numbers() {
    let odd = usage(
        r#"{"completion_tokens":3,"prompt_tokens":-7,"total_tokens":null,"completion_tokens":5.0,"reasoning_tokens":"2","completion_tokens_details":[],"prompt_tokens_details":{"cached_tokens":{}}}"#,
    );
    assert_eq!((odd.completion_tokens, odd.prompt_tokens, odd.total_tokens), (5, 0, 0));
    assert_eq!((odd.reasoning_tokens, odd.cached_tokens), (Some(2), None));
    assert_eq!(usage(r#"{"completion_tokens":5.9}"#).completion_tokens, 5);
    assert!(
        merge(&odd, &recovered(1, 0, OriginalPrompt::Known(3)))
            .to_json()
            .get()
            .starts_with(r#"{"prompt_tokens":3,"total_tokens":9,"completion_tokens":6,"reasoning_tokens":2"#)
    );
}

#[test]
fn usage_of_the_whole_is_the_last_legs_plus_what_was_recovered_with_the_original_prompt() {
    let whole = merge(&usage(VLLM), &recovered(10, 4, OriginalPrompt::Known(30)));
    assert_eq!(
        whole.to_json().get(),
        r#"{"prompt_tokens":30,"total_tokens":45,"completion_tokens":15,"completion_tokens_details":{"reasoning_tokens":6,"x":1}}"#
    );
}

#[test]
fn thinking_is_counted_in_both_places_where_both_are() {
    let leg =
        usage(r#"{"completion_tokens":2,"reasoning_tokens":1,"completion_tokens_details":{"reasoning_tokens":1}}"#);
    let whole = merge(&leg, &recovered(10, 4, OriginalPrompt::Known(30)));
    assert_eq!(
        whole.to_json().get(),
        r#"{"completion_tokens":12,"reasoning_tokens":5,"completion_tokens_details":{"reasoning_tokens":5},"prompt_tokens":30,"total_tokens":42}"#
    );
    let plain = merge(&usage(r#"{"completion_tokens":2}"#), &recovered(10, 0, OriginalPrompt::Known(30)));
    assert_eq!(plain.reasoning_tokens, None);
    let late = merge(&usage(r#"{"completion_tokens":2}"#), &recovered(10, 4, OriginalPrompt::Known(30)));
    assert_eq!(late.reasoning_tokens, Some(4));
}

#[test]
fn where_nothing_was_recovered_a_legs_own_usage_is_the_wholes() {
    for json in [
        VLLM,
        r#"{"prompt_tokens":40,"total_tokens":45,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":40}}"#,
    ] {
        assert_eq!(merge(&usage(json), &Recovered::nothing()).to_json().get(), json);
    }
}

#[test]
fn cached_tokens_stay_below_the_prompt() {
    let leg = usage(r#"{"prompt_tokens":40,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":39}}"#);
    assert_eq!(merge(&leg, &recovered(10, 0, OriginalPrompt::Known(30))).cached_tokens, Some(29));
    assert_eq!(merge(&leg, &recovered(10, 0, OriginalPrompt::Known(0))).cached_tokens, Some(0));
    let few = usage(r#"{"prompt_tokens":40,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":16}}"#);
    assert_eq!(merge(&few, &recovered(10, 0, OriginalPrompt::Known(30))).cached_tokens, Some(16));
}

#[test]
fn with_media_the_prompt_is_the_last_legs_minus_the_recovered_text() {
    let whole = merge(&usage(VLLM), &recovered(10, 4, OriginalPrompt::LegMinus(10)));
    assert_eq!((whole.prompt_tokens, whole.total_tokens), (30, 45));
    assert_eq!(merge(&usage(VLLM), &recovered(10, 4, OriginalPrompt::LegMinus(99))).prompt_tokens, 0);
}

#[test]
fn absurd_counts_of_an_engine_do_not_overflow() {
    let leg = usage(r#"{"prompt_tokens":18446744073709551615,"completion_tokens":18446744073709551615}"#);
    let whole = merge(&leg, &recovered(u64::MAX, u64::MAX, OriginalPrompt::LegMinus(0)));
    assert_eq!(whole.total_tokens, u64::MAX);
}

#[test]
fn what_leg_1_reported_wins_over_estimates() {
    let request = request(r#"{"messages":[{"role":"user","content":"a long question that has more tokens"}]}"#);
    let cut = folded(events(CONTINUOUS_USAGE).take(3));
    let of_cut = Recovered::of(&cut, &request, &Ratios::default());
    assert_eq!(of_cut, recovered(2, 2, OriginalPrompt::Known(15)));
}

#[test]
fn without_usage_from_leg_1_everything_is_estimated() {
    let text = r#"{"messages":[{"role":"user","content":"12345678"}]}"#;
    let cut = folded(events(SGLANG).take(4));
    let of_cut = Recovered::of(&cut, &request(text), &Ratios::default());
    assert_eq!(of_cut, recovered(4 + 2, 4, OriginalPrompt::Known(2)));
    let media = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:"}}]}]}"#;
    assert_eq!(Recovered::of(&cut, &request(media), &Ratios::default()).prompt, OriginalPrompt::LegMinus(6));
}

#[test]
fn usage_counted_by_baton_has_the_engines_fields() {
    assert_eq!(
        Usage::counted(3, 2, 1, Shape::Vllm).to_json().get(),
        r#"{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":1}}"#
    );
    let sglang = Usage::counted(3, 2, 1, Shape::Sglang);
    assert_eq!(
        sglang.to_json().get(),
        r#"{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":null,"reasoning_tokens":1}"#
    );
    let seen = chunk(events(SGLANG).nth(6).unwrap()).usage.unwrap();
    assert_eq!(merge(&seen, &recovered(0, 0, OriginalPrompt::Known(12))), seen);
}

#[test]
fn a_completions_usage_counts_no_thinking() {
    let counted = |shape| Usage::counted(3, 2, 0, shape).to_json().get().to_owned();
    let plain = r#"{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}"#;
    assert_eq!([counted(Shape::VllmCompletion), counted(Shape::Completion)], [plain, plain]);
    // As it came from there.
    let sglang = folded(events(SGLANG_COMPLETION)).usage.unwrap().to_json();
    assert_eq!(counted(Shape::SglangCompletion), sglang.get());
    let request = ChatRequest::parse_completion(br#"{"prompt":[1,2,3]}"#).unwrap();
    // What has brought no text yet is no thinking.
    let silent =
        [r#"{"id":"x","choices":[{"text":"","token_ids":[1]}]}"#, r#"{"choices":[{"text":"a","token_ids":[2]}]}"#];
    let partial = folded(silent);
    let expected = recovered(2, 0, OriginalPrompt::Known(3));
    assert_eq!(Recovered::of(&partial, &request, &Ratios::default()), expected);
    let leg = r#"{"prompt_tokens":5,"total_tokens":9,"completion_tokens":4}"#;
    let whole = r#"{"prompt_tokens":3,"total_tokens":9,"completion_tokens":6}"#;
    assert_eq!(merge(&usage(leg), &expected).to_json().get(), whole);
}

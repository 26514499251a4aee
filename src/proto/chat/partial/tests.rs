use proptest::prelude::*;

use super::super::fixtures::{
    ABORT, CONTENT, CONTINUOUS_USAGE, ENGINE_KILLED, HELD_BACK_MARK, INCLUDE_USAGE, LOGPROBS, MANY_SCRIPTS, SGLANG,
    STEP_IN_ONE_EVENT, TOKEN_IDS, TOOL_CALL, chunk, events, folded,
};
use super::super::learn;
use super::*;

const RATIOS: Ratios = Ratios { cjk: 1.6, other: 4.0 };

fn choice_0(partial: &Partial) -> &Choice {
    partial.first().unwrap()
}

/// The fold of chunks with these choices.
fn of_choices(expected: usize, choices: &[&str]) -> Partial {
    let mut partial = Partial::new(expected);
    for choice in choices {
        partial.fold(&chunk(&format!(r#"{{"id":"i","model":"m","choices":[{choice}]}}"#)));
    }
    partial
}

#[test]
fn a_vllm_stream_folds_to_its_text_its_end_and_its_usage() {
    let partial = folded(events(INCLUDE_USAGE));
    let head = partial.head.clone().unwrap();
    assert_eq!((&*head.id, head.created, &*head.model), ("chatcmpl-b4a7b9b1590ebbb7", Some(1_796_053_088), "tiny"));
    assert_eq!(head.system_fingerprint.as_deref(), Some("vllm-0.32.0-d6296bca"));
    let choice = choice_0(&partial);
    // The finish chunk brought the last word.
    assert_eq!((&*choice.reasoning, &*choice.content), (" snag loaf carcin ord", ""));
    assert_eq!(choice.finish, Some(FinishReason::Length));
    assert_eq!((partial.reasoning_field, partial.shape()), (Some(ReasoningField::Reasoning), Shape::Vllm));
    assert!(partial.is_finished() && !partial.is_opaque());
    assert_eq!(partial.completion_tokens(&RATIOS), Counted { tokens: 4, exact: true });
    assert_eq!(partial.reasoning_tokens(&RATIOS), Counted { tokens: 4, exact: true });
}

#[test]
fn an_sglang_stream_folds_to_its_text_its_end_and_its_usage() {
    let partial = folded(events(SGLANG));
    let choice = choice_0(&partial);
    assert_eq!((&*choice.reasoning, &*choice.content), ("Let me\nthink.", "你好 😀, \"friend\""));
    assert_eq!(choice.finish, Some(FinishReason::Stop));
    assert_eq!((partial.reasoning_field, partial.shape()), (Some(ReasoningField::ReasoningContent), Shape::Sglang));
    assert_eq!(partial.usage.as_ref().map(|usage| usage.total_tokens), Some(21));
    assert!(partial.is_finished());
}

#[test]
fn an_escaped_tool_call_in_plain_text_is_text() {
    let partial = folded(events(CONTENT));
    assert_eq!(
        choice_0(&partial).content,
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"unit\": \"celsius\"}}\n</tool_call>"
    );
    assert!(!partial.has_tool_call());
}

#[test]
fn a_tool_call_is_put_together_from_its_pieces() {
    let partial = folded(events(TOOL_CALL));
    let [call] = choice_0(&partial).tool_calls.as_slice() else { panic!("{partial:?}") };
    assert_eq!((call.index, call.name.as_deref()), (0, Some("get_weather")));
    assert_eq!(call.id.as_deref(), Some("chatcmpl-tool-b6f243497f8e7daf"));
    assert_eq!(call.arguments, r#"{"city": "Paris", "unit": "celsius"}"#);
    assert!(partial.has_tool_call() && !partial.has_text() && partial.is_finished());
    assert_eq!(partial.phase(), Phase::Nothing);
    assert_eq!(partial.completion_tokens(&RATIOS), Counted { tokens: 27, exact: true });
}

#[test]
fn an_abort_is_not_an_end_and_a_further_leg_forgets_it() {
    let mut partial = folded(events(ABORT));
    assert_eq!(choice_0(&partial).finish, Some(FinishReason::Abort));
    assert!(!partial.is_finished());
    partial.begin_leg(Onward::Text);
    assert_eq!(choice_0(&partial).finish, None);
    assert_eq!(choice_0(&partial).reasoning, "The user wants a short story about a lighthouse.");
}

#[test]
fn an_error_leaves_the_partial_unfinished() {
    assert!(!folded(events(ENGINE_KILLED)).is_finished());
}

#[test]
fn the_phase_follows_the_text() {
    let after = |count| folded(events(SGLANG).take(count));
    for (count, phase) in [(0, Phase::Nothing), (1, Phase::Nothing), (2, Phase::Thinking), (4, Phase::Content)] {
        assert_eq!(after(count).phase(), phase, "after {count} events");
    }
    // The null beside the role already shows the name.
    assert_eq!(after(1).reasoning_field, Some(ReasoningField::ReasoningContent));
    assert!(!after(1).has_text() && after(2).has_text());
}

/// The fold of texts in this order: `r` before a thought, `c` before content. By whole events, and by framed texts.
fn of_texts(texts: &[&str]) -> Partial {
    let (mut whole, mut framed) = (Partial::new(1), Partial::new(1));
    for text in texts {
        let (name, kind) = match text.starts_with('r') {
            true => ("reasoning", TextKind::Reasoning),
            false => ("content", TextKind::Content),
        };
        let string = serde_json::to_string(&text[1..]).unwrap();
        whole.fold(&chunk(&format!(r#"{{"choices":[{{"index":0,"delta":{{"{name}":{string}}}}}]}}"#)));
        framed.push_text(kind, string.trim_matches('"').as_bytes(), None).unwrap();
    }
    assert_eq!((&whole.choices, whole.phase()), (&framed.choices, framed.phase()), "{texts:?}");
    whole
}

#[test]
fn white_space_before_thinking_is_no_answer_and_behind_it_is() {
    for (texts, phase, answer) in [
        (&["c\n"][..], Phase::Nothing, "\n"),
        (&["c\n", "ra"], Phase::Thinking, ""),
        (&["c\n", "c \u{3000}", "ra", "rb"], Phase::Thinking, ""),
        (&["c\n", "ra", "c\n\n"], Phase::Content, "\n\n"),
        (&["c\n", "ra", "cb"], Phase::Content, "b"),
        (&["ra", "c\n\n"], Phase::Content, "\n\n"),
        (&["ra", "c\n\n", "r"], Phase::Content, "\n\n"),
        (&["c", "ra", "c"], Phase::Thinking, ""),
        (&["c\n", "cb"], Phase::Content, "\nb"),
        (&["r\n"], Phase::Thinking, ""),
    ] {
        let partial = of_texts(texts);
        assert_eq!((partial.phase(), choice_0(&partial).answer()), (phase, answer), "{texts:?}");
        assert!(!partial.is_interleaved(), "{texts:?}");
    }
}

#[test]
fn thinking_that_comes_back_after_the_answer_began_is_noticed() {
    for texts in [&["cb", "ra"][..], &["ra", "cb", "rc"], &["ra", "c\n", "rb"], &["c\n", "ra", "c\n", "r\n", "cd"]] {
        assert!(of_texts(texts).is_interleaved(), "{texts:?}");
    }
    // In one piece, thinking comes before the answer.
    let both = r#"{"index":0,"delta":{"content":"b","reasoning":"a"}}"#;
    assert!(!of_choices(1, &[both]).is_interleaved());
    assert!(of_choices(1, &[both, both]).is_interleaved());
}

#[test]
fn an_answer_of_white_space_alone_can_be_told() {
    for (texts, all) in [
        (&[][..], Some("")),
        (&["c\n", "c "], Some("\n ")),
        (&["r\n"], Some("\n")),
        (&["c\n", "r\n"], None),
        (&["ca"], None),
        (&["r\n", "ra"], None),
    ] {
        assert_eq!(of_texts(texts).only_white_space(), all, "{texts:?}");
    }
    for more in [r#"{"refusal":"no"}"#, r#"{"tool_calls":[{"index":0}]}"#] {
        let partial =
            of_choices(1, &[r#"{"index":0,"delta":{"content":"\n"}}"#, &format!(r#"{{"index":0,"delta":{more}}}"#)]);
        assert_eq!(partial.only_white_space(), None, "{more}");
    }
}

#[test]
fn a_role_is_remembered_from_whichever_chunk_named_it() {
    assert!(!of_choices(1, &[]).has_role());
    assert!(!of_choices(1, &[r#"{"index":0,"delta":{"role":null,"content":"a"}}"#]).has_role());
    assert!(
        of_choices(1, &[r#"{"index":0,"delta":{"content":"a"}}"#, r#"{"index":0,"delta":{"role":"assistant"}}"#])
            .has_role()
    );
}

#[test]
fn the_first_thinking_text_decides_its_name() {
    let null = r#"{"index":0,"delta":{"reasoning_content":null,"content":""}}"#;
    let both = r#"{"index":0,"delta":{"reasoning":"a","reasoning_content":"a"}}"#;
    let one = r#"{"index":0,"delta":{"reasoning":"b"}}"#;
    let partial = of_choices(1, &[null, both, one]);
    assert_eq!(partial.reasoning_field, Some(ReasoningField::Both));
    assert_eq!(choice_0(&partial).reasoning, "ab");
}

#[test]
fn all_choices_that_were_asked_for_must_be_complete() {
    let a = r#"{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}"#;
    let b = r#"{"index":1,"delta":{"content":"b"}}"#;
    let b_ends = r#"{"index":1,"delta":{},"finish_reason":"length"}"#;
    assert!(of_choices(1, &[a]).is_finished());
    assert!(!of_choices(2, &[a]).is_finished());
    assert!(!of_choices(2, &[a, b]).is_finished());
    assert!(of_choices(2, &[b, a, b_ends]).is_finished());
    assert!(!of_choices(1, &[]).is_finished());
    assert!(!of_choices(1, &[r#"{"index":0,"delta":{},"finish_reason":"eaten"}"#]).is_finished());
}

#[test]
fn choices_and_tool_calls_have_a_limit_and_passing_it_shows() {
    let mut partial = Partial::new(1);
    for index in 0..200 {
        let choice = format!(r#"{{"choices":[{{"index":{index},"delta":{{"content":"a"}}}}]}}"#);
        partial.fold(&chunk(&choice));
        assert_eq!(partial.is_opaque(), index >= 128);
    }
    assert_eq!(partial.choices.len(), 128);
    let calls: Vec<_> = (0..1100).map(|index| format!(r#"{{"index":{index}}}"#)).collect();
    let crowded = of_choices(1, &[&format!(r#"{{"index":0,"delta":{{"tool_calls":[{}]}}}}"#, calls.join(","))]);
    assert_eq!(choice_0(&crowded).tool_calls.len(), 1024);
    assert!(crowded.is_opaque());
}

#[test]
fn texts_have_a_limit_and_passing_it_shows() {
    let piece = "x".repeat(1 << 17);
    let mut partial = Partial::new(1);
    for number in 0..9 {
        assert!(!partial.is_opaque(), "{number} times 128 KiB");
        partial.push_text(TextKind::Content, piece.as_bytes(), None).unwrap();
    }
    assert!(partial.is_opaque());
    assert_eq!(choice_0(&partial).content.len(), 1 << 20);
    partial.fold(&chunk(r#"{"choices":[{"index":0,"delta":{"content":"y"},"finish_reason":"stop"}]}"#));
    assert_eq!(choice_0(&partial).content.len(), 1 << 20);
    assert!(partial.is_finished(), "its end is still seen");
}

#[test]
fn log_probabilities_do_not_disturb() {
    assert_eq!(choice_0(&folded(events(LOGPROBS))).content, " xmin childhood");
}

#[test]
fn tokens_are_exact_while_every_piece_is_counted() {
    let counted = |sse, count| folded(events(sse).take(count)).completion_tokens(&RATIOS);
    // By continuous usage, by ids, not at all.
    assert_eq!(counted(CONTINUOUS_USAGE, 3), Counted { tokens: 2, exact: true });
    assert_eq!(counted(TOKEN_IDS, 3), Counted { tokens: 2, exact: true });
    assert_eq!(counted(MANY_SCRIPTS, 26), Counted { tokens: 25, exact: true });
    assert_eq!(counted(INCLUDE_USAGE, 3), Counted { tokens: 3, exact: false });
    assert_eq!(counted(INCLUDE_USAGE, 1), Counted { tokens: 0, exact: true });
    assert_eq!(folded(events(TOKEN_IDS).take(3)).reasoning_tokens(&RATIOS).tokens, 2);
}

/// A chunk with this choice and this continuous usage.
fn counted(partial: &mut Partial, choice: &str, tokens: Option<u64>) -> Counted {
    let usage = tokens.map_or_else(|| "null".to_owned(), |tokens| format!(r#"{{"completion_tokens":{tokens}}}"#));
    partial.fold(&chunk(&format!(r#"{{"choices":[{{"index":0,{choice}}}],"usage":{usage}}}"#)));
    partial.completion_tokens(&RATIOS)
}

#[test]
fn tokens_whose_text_has_not_come_make_the_count_inexact_until_it_does() {
    for ids in [false, true] {
        let mut partial = Partial::new(1);
        let mut add = |delta: &str, tokens: u64, new: &str| match ids {
            true => counted(&mut partial, &format!(r#""delta":{delta},"token_ids":{new}"#), None),
            false => counted(&mut partial, &format!(r#""delta":{delta}"#), Some(tokens)),
        };
        assert_eq!(add(r#"{"role":"assistant","content":""}"#, 0, "null"), Counted { tokens: 0, exact: true });
        assert_eq!(add("{}", 1, "[7]"), Counted { tokens: 1, exact: false });
        assert_eq!(add(r#"{"content":"你"}"#, 2, "[7]"), Counted { tokens: 2, exact: true });
        assert_eq!(add(r#"{"content":""}"#, 3, "[7]"), Counted { tokens: 3, exact: false });
        assert_eq!(add(r#"{"content":"a\ufffd"}"#, 4, "[7]"), Counted { tokens: 4, exact: false });
        assert_eq!(add(r#"{"reasoning":"a"}"#, 5, "[7]"), Counted { tokens: 5, exact: true });
        assert_eq!(add("{}", 5, "[]"), Counted { tokens: 5, exact: true });
        assert_eq!(add("{}", 6, "[7]"), Counted { tokens: 6, exact: false });
    }
}

#[test]
fn the_end_of_a_choice_brings_all_text_that_was_withheld() {
    for end in ["stop", "length", "abort"] {
        let mut partial = Partial::new(1);
        counted(&mut partial, r#""delta":{"content":"a"}"#, Some(1));
        assert!(!counted(&mut partial, r#""delta":{}"#, Some(2)).exact);
        assert_eq!(
            counted(&mut partial, &format!(r#""delta":{{}},"finish_reason":"{end}""#), Some(3)),
            Counted { tokens: 3, exact: true }
        );
    }
}

#[test]
fn a_leg_that_ended_with_text_withheld_leaves_every_later_count_inexact() {
    let mut partial = Partial::new(1);
    counted(&mut partial, r#""delta":{"content":"a"}"#, Some(1));
    counted(&mut partial, r#""delta":{}"#, Some(2));
    partial.begin_leg(Onward::Text);
    assert_eq!(counted(&mut partial, r#""delta":{"content":"b"}"#, Some(3)), Counted { tokens: 3, exact: false });
}

#[test]
fn text_after_the_last_usage_is_estimated_on_top() {
    let mut partial = folded(events(CONTINUOUS_USAGE).take(3));
    partial.push_text(TextKind::Reasoning, b"12345678", None).unwrap();
    assert_eq!(partial.completion_tokens(&RATIOS), Counted { tokens: 4, exact: false });
    assert_eq!(partial.reasoning_tokens(&RATIOS), Counted { tokens: 4, exact: false });
    let usage = partial.usage_so_far(99, &RATIOS);
    assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (15, 4, 19));
    assert_eq!(usage.reasoning_tokens, Some(4));
}

#[test]
fn what_was_once_estimated_never_becomes_exact() {
    let mut partial = folded(events(INCLUDE_USAGE).take(3));
    partial.begin_leg(Onward::Text);
    partial.fold(&chunk(events(CONTINUOUS_USAGE).nth(4).unwrap()));
    assert_eq!(partial.completion_tokens(&RATIOS), Counted { tokens: 4, exact: false });
    let mut known = folded(events(CONTINUOUS_USAGE).take(3));
    known.begin_leg(Onward::Text);
    known.fold(&chunk(events(CONTINUOUS_USAGE).nth(4).unwrap()));
    assert_eq!(known.completion_tokens(&RATIOS), Counted { tokens: 4, exact: true });
}

#[test]
fn usage_of_a_single_choice_among_several_does_not_count_as_the_answers() {
    let mut partial = Partial::new(2);
    partial.fold(&chunk(r#"{"choices":[{"index":1,"delta":{"content":"b"}}],"usage":{"completion_tokens":1}}"#));
    assert_eq!(partial.usage, None);
    partial.fold(&chunk(r#"{"choices":[],"usage":{"completion_tokens":2}}"#));
    assert_eq!(partial.usage.map(|usage| usage.completion_tokens), Some(2));
}

#[test]
fn usage_that_no_engine_gave_is_counted_here() {
    let usage = folded(events(SGLANG).take(5)).usage_so_far(7, &RATIOS);
    assert_eq!(
        usage.to_json().get(),
        r#"{"prompt_tokens":7,"total_tokens":16,"completion_tokens":9,"prompt_tokens_details":null,"reasoning_tokens":4}"#
    );
}

#[test]
fn a_bad_escape_changes_nothing() {
    let mut empty = Partial::default();
    assert_eq!(empty.push_text(TextKind::Content, br"\ud800", None), Err(BadEscape));
    assert_eq!(empty, Partial::default());
    empty.push_text(TextKind::Content, b"a", None).unwrap();
    let before = empty.clone();
    for bad in [&br"ok \x"[..], b"\xff", b"\\", b"\""] {
        assert_eq!(empty.push_text(TextKind::Content, bad, None), Err(BadEscape));
        assert_eq!(empty, before);
    }
}

/// A string of JSON in one of the ways in which engines write it: raw UTF-8, or ASCII with escapes.
fn json_string() -> impl Strategy<Value = String> {
    let character = prop_oneof![any::<char>(), Just('"'), Just('\\'), Just('\n'), Just('你'), Just('😀'), Just('/')];
    (proptest::collection::vec(character, 0..12), any::<bool>()).prop_map(|(text, ascii)| {
        let text: String = text.into_iter().collect();
        match ascii {
            false => serde_json::to_string(&text).unwrap(),
            true => format!("\"{}\"", text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>()),
        }
    })
}

proptest! {
    #[test]
    fn a_framed_text_is_the_same_as_the_whole_event(
        strings in proptest::collection::vec(json_string(), 1..6),
        kind in prop_oneof![Just("content"), Just("reasoning"), Just("reasoning_content")],
    ) {
        let event = |string: &str| format!(
            r#"{{"id":"i","object":"chat.completion.chunk","choices":[{{"index":0,"delta":{{"{kind}":{string}}},"finish_reason":null}}]}}"#
        );
        let (mut whole, mut framed) = (Partial::default(), Partial::default());
        let first = event("\"seed\"");
        whole.fold(&chunk(&first));
        framed.fold(&chunk(&first));
        let known = learn(first.as_bytes()).unwrap();
        for string in &strings {
            let data = event(string);
            whole.fold(&chunk(&data));
            let text = known.read(data.as_bytes()).unwrap().text;
            framed.push_text(known.kind, text, None).unwrap();
        }
        prop_assert_eq!(framed, whole);
    }
}

#[test]
fn thinking_that_ends_in_the_middle_of_an_event_is_counted_as_the_engine_does() {
    // The engine's own count is in the recording's usage.
    let mut partial = folded(events(STEP_IN_ONE_EVENT));
    let engines = partial.usage.take().and_then(|usage| usage.reasoning_tokens);
    assert_eq!(engines, Some(22));
    assert!(partial.wants_mark());
    partial.learn_mark(151_668);
    assert_eq!(partial.reasoning_tokens(&RATIOS).tokens, 22);
}

#[test]
fn text_that_may_begin_a_mark_comes_with_the_ids_of_the_next_token_and_every_id_counts() {
    let partial = folded(events(HELD_BACK_MARK).take(3));
    let reasoning = &choice_0(&partial).reasoning;
    assert_eq!(reasoning, " (< (", "the second < is withheld");
    assert_eq!(partial.ids().unwrap().answer.len(), 2);
    assert_eq!(partial.reasoning_tokens(&RATIOS).tokens, 2);
}

#[test]
fn thinking_is_counted_after_a_leg_from_text_too() {
    let piece = |ids: &str| {
        format!(r#"{{"id":"i","model":"m","choices":[{{"index":0,"delta":{{"reasoning":"a"}},"token_ids":{ids}}}]}}"#)
    };
    let mut partial = Partial::new(1);
    partial.fold(&chunk(&piece("[1,2,3]")));
    partial.begin_leg(Onward::Text);
    partial.fold(&chunk(&piece("[4,5]")));
    partial.push_text(TextKind::Reasoning, b"b", Some("6,7")).unwrap();
    assert_eq!(partial.completion_tokens(&RATIOS).tokens, 7);
    assert_eq!(partial.reasoning_tokens(&RATIOS).tokens, 7);
    assert_eq!(partial.ids(), None);
}

#[test]
fn more_ids_than_are_kept_are_counted() {
    let mut partial = Partial::new(1).keeping_ids(3);
    let first = r#"{"id":"i","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2]}"#;
    partial.fold(&chunk(first));
    let piece = r#"{"id":"i","model":"m","choices":[{"index":0,"delta":{"reasoning":"a"},"token_ids":[1]}]}"#;
    partial.fold(&chunk(piece));
    assert!(partial.ids().is_some() && !partial.has_too_many_ids());
    partial.fold(&chunk(piece));
    assert!(partial.ids().is_none() && partial.has_too_many_ids());
    partial.push_text(TextKind::Reasoning, b"b", Some("6,7")).unwrap();
    assert_eq!((partial.completion_tokens(&RATIOS).tokens, partial.prompt_tokens()), (4, Some(2)));
    assert_eq!(partial.reasoning_tokens(&RATIOS).tokens, 4);
}

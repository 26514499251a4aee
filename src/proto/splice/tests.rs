use serde_json::json;

use super::super::chat::fixtures::{
    COMPLETION, COMPLETION_IDS, COMPLETION_STOP, COMPLETION_USAGE, CONTENT, CONTINUOUS_USAGE, INCLUDE_USAGE,
    MANY_SCRIPTS, SGLANG, SGLANG_COMPLETION, TOKEN_IDS, events, folded,
};
use super::super::chat::{ChatRequest, FinishReason, Onward, OriginalPrompt, Partial, Ratios, Shape, learn};
use super::*;

const NOTHING: Recovered = Recovered { completion_tokens: 0, reasoning_tokens: 0, prompt: OriginalPrompt::Known(0) };
const RECOVERED: Recovered =
    Recovered { completion_tokens: 10, reasoning_tokens: 4, prompt: OriginalPrompt::Known(30) };
const NO_USAGE: ClientUsage = ClientUsage { at_end: false, continuous: false };
const AT_END: ClientUsage = ClientUsage { at_end: true, continuous: false };
const CONTINUOUS: ClientUsage = ClientUsage { at_end: true, continuous: true };

fn head() -> Head {
    Head { id: "one".to_owned(), created: Some(1), model: "m".to_owned(), system_fingerprint: None }
}

fn seam(trimmed: &str) -> Seam {
    Seam { trimmed: trimmed.to_owned(), ..Seam::default() }
}

fn splice(field: Option<ReasoningField>, seam: Seam) -> Splice {
    Splice::new(head(), field, seam, NO_USAGE, NOTHING)
}

fn rewritten(splice: &mut Splice, data: &str) -> Option<String> {
    splice.rewrite(data.as_bytes()).unwrap().map(|data| String::from_utf8(data).unwrap())
}

/// A whole event around a delta, of leg 2 or as the client is to see it.
fn event(id: &str, delta: &str) -> String {
    let created = if id == "one" { 1 } else { 2 };
    format!(
        r#"{{"id":"{id}","object":"chat.completion.chunk","created":{created},"model":"m","choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":null}}]}}"#
    )
}

/// What becomes of deltas one after the other; `None` where the event is dropped.
fn check(mut splice: Splice, deltas: &[(&str, Option<&str>)]) {
    for (before, after) in deltas {
        let expected = after.map(|delta| event("one", delta));
        assert_eq!(rewritten(&mut splice, &event("two", before)), expected, "{before}");
    }
}

/// The events of leg 2 for an answer whose uncut events are `whole` and of which `cut` events were delivered: another head, a
/// role event, then the rest.
fn leg_2(whole: &[&str], cut: usize) -> Vec<String> {
    let head = folded(whole.iter().copied()).head.unwrap();
    let foreign = |data: &str| {
        data.replace(&format!("\"{}\"", head.id), "\"two\"")
            .replace(&format!("\"created\":{}", head.created.unwrap()), "\"created\":2")
    };
    let rest = whole[cut.max(1)..].iter();
    std::iter::once(&whole[0]).chain(rest).map(|data| foreign(data)).collect()
}

#[test]
fn a_continued_stream_is_byte_for_byte_the_uncut_one_at_every_cut() {
    let whole_usage = |partial: &Partial| Recovered {
        completion_tokens: 0,
        reasoning_tokens: 0,
        prompt: OriginalPrompt::Known(partial.usage.as_ref().map_or(0, |usage| usage.prompt_tokens)),
    };
    for (name, sse, client) in [
        ("content", CONTENT, NO_USAGE),
        ("ids", TOKEN_IDS, AT_END),
        ("scripts", MANY_SCRIPTS, NO_USAGE),
        ("include_usage", INCLUDE_USAGE, AT_END),
        ("continuous", CONTINUOUS_USAGE, CONTINUOUS),
        ("sglang", SGLANG, AT_END),
    ] {
        let whole: Vec<_> = events(sse).filter(|data| *data != "[DONE]").collect();
        // Leg 2's usage is left as it was recorded here, so that the bytes can be compared: nothing recovered.
        let recovered = whole_usage(&folded(whole.iter().copied()));
        for cut in 1..whole.len() {
            let before = folded(whole[..cut].iter().copied());
            let mut splice =
                Splice::new(before.head.clone().unwrap(), before.reasoning_field, seam(""), client, recovered);
            let mut joined: Vec<_> = whole[..cut].iter().map(|&data| data.to_owned()).collect();
            joined.extend(leg_2(&whole, cut).iter().filter_map(|data| rewritten(&mut splice, data)));
            assert_eq!(joined, whole, "{name} cut after {cut} events");
        }
    }
}

#[test]
fn a_continued_completion_is_byte_for_byte_the_uncut_one_at_every_cut() {
    for (name, sse, client) in [
        ("plain", COMPLETION, NO_USAGE),
        ("ids", COMPLETION_IDS, AT_END),
        ("stop", COMPLETION_STOP, AT_END),
        ("continuous", COMPLETION_USAGE, CONTINUOUS),
        ("sglang", SGLANG_COMPLETION, AT_END),
    ] {
        let whole: Vec<_> = events(sse).filter(|data| *data != "[DONE]").collect();
        let prompt = folded(whole.iter().copied()).usage.map_or(0, |usage| usage.prompt_tokens);
        for cut in 1..whole.len() {
            let before = folded(whole[..cut].iter().copied());
            let recovered = Recovered { prompt: OriginalPrompt::Known(prompt), ..NOTHING };
            let mut splice =
                Splice::new(before.head.clone().unwrap(), None, seam(""), client, recovered).awaiting_role();
            // There is no event for a role that would come first.
            let rest = leg_2(&whole, cut).split_off(1);
            let seen = rest.iter().filter_map(|data| rewritten(&mut splice, data));
            let joined: Vec<_> = whole[..cut].iter().map(|&data| data.to_owned()).chain(seen).collect();
            assert_eq!(joined, whole, "{name} cut after {cut} events");
        }
    }
}

#[test]
fn a_completions_text_does_not_repeat_white_space_that_was_delivered() {
    let choice = |text: &str, rest: &str| format!(r#"{{"index":0,"text":{text}{rest}}}"#);
    let event = |id: &str, choice: &str| {
        let created = if id == "one" { 1 } else { 2 };
        format!(r#"{{"id":"{id}","object":"text_completion","created":{created},"model":"m","choices":[{choice}]}}"#)
    };
    let end = r#","finish_reason":"stop""#;
    let ids = r#","token_ids":[198]"#;
    for (trimmed, steps) in [
        (" \n", &[(r#"" \n a""#, "", Some(r#"" a""#)), (r#"" \n""#, "", Some(r#"" \n""#))][..]),
        (" \n", &[(r#"" ""#, "", None), (r#""\na""#, "", Some(r#""a""#))]),
        (" ", &[(r#""a ""#, "", Some(r#""a ""#)), (r#"" ""#, "", Some(r#"" ""#))]),
        (" ", &[(r#""""#, "", Some(r#""""#)), (r#"" ""#, ids, Some(r#""""#))]),
        (" ", &[(r#"" ""#, end, Some(r#""""#))]),
        (" ", &[(r#""""#, end, Some(r#""""#)), (r#"" ""#, "", Some(r#"" ""#))]),
        ("", &[(r#"" ""#, "", Some(r#"" ""#)), (r#"["a"]"#, "", Some(r#"["a"]"#)), ("null", "", Some("null"))]),
        ("\u{4f60}", &[(r#""\u4f60好""#, r#","x":[ 1 ]"#, Some(r#""好""#))]),
    ] {
        let mut splice = splice(Some(ReasoningField::Reasoning), seam(trimmed));
        for (before, rest, after) in steps {
            let expected = after.map(|text| event("one", &choice(text, rest)));
            assert_eq!(
                rewritten(&mut splice, &event("two", &choice(before, rest))),
                expected,
                "{trimmed:?}: {before}{rest}"
            );
        }
        assert!(splice.is_settled());
    }
}

#[test]
fn id_created_model_and_fingerprint_become_leg_1s() {
    let leg = r#"{"x":1,"id":"two","created":2,"model":"other","choices":[{"index":0,"delta":{"content":"a"},"y":[1, 2]}],"system_fingerprint":"fp2","z":1.50}"#;
    let keeps = r#"{"x":1,"id":"one","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"y":[1, 2]}],"system_fingerprint":"fp2","z":1.50}"#;
    assert_eq!(rewritten(&mut splice(None, seam("")), leg).as_deref(), Some(keeps));
    let head = Head { system_fingerprint: Some("fp1".to_owned()), ..head() };
    let mut splice = Splice::new(head, None, seam(""), NO_USAGE, NOTHING);
    assert_eq!(rewritten(&mut splice, leg), Some(keeps.replace("fp2", "fp1")));
    // Where the engine has no fingerprint, none is invented; a missing id is.
    assert_eq!(
        rewritten(&mut splice, r#"{"choices":[]}"#).as_deref(),
        Some(r#"{"choices":[],"id":"one","created":1,"model":"m"}"#)
    );
}

#[test]
fn the_role_appears_once() {
    check(
        splice(None, seam("")),
        &[
            (r#"{"role":"assistant","content":""}"#, None),
            (r#"{"role":"assistant"}"#, None),
            (r#"{"role":"assistant","content":"a","x":1}"#, Some(r#"{"content":"a","x":1}"#)),
            (r#"{"role":"assistant","tool_calls":[{"index":0}]}"#, Some(r#"{"tool_calls":[{"index":0}]}"#)),
            (r#"{"role":null,"content":"a"}"#, Some(r#"{"role":null,"content":"a"}"#)),
            (r#"{}"#, Some(r#"{}"#)),
            (r#"{"content":""}"#, Some(r#"{"content":""}"#)),
        ],
    );
    let sglang = events(SGLANG).next().unwrap();
    assert_eq!(rewritten(&mut splice(None, seam("")), sglang), None);
    let role_and_end = r#"{"choices":[{"index":0,"delta":{"role":"assistant"},"finish_reason":"stop"}]}"#;
    assert!(
        rewritten(&mut splice(None, seam("")), role_and_end).unwrap().contains(r#""delta":{},"finish_reason":"stop""#)
    );
}

#[test]
fn the_first_role_of_a_later_leg_is_kept_where_none_has_been_shown() {
    check(
        splice(None, seam("\n")).awaiting_role(),
        &[
            (r#"{"role":"assistant","content":""}"#, Some(r#"{"role":"assistant","content":""}"#)),
            (r#"{"role":"assistant","content":""}"#, None),
            (r#"{"role":"assistant","content":"\na"}"#, Some(r#"{"content":"a"}"#)),
        ],
    );
    check(
        splice(None, seam("\n")).awaiting_role(),
        &[
            (r#"{"role":null,"content":""}"#, Some(r#"{"role":null,"content":""}"#)),
            (r#"{"role":"assistant","content":"\n"}"#, Some(r#"{"role":"assistant","content":""}"#)),
            (r#"{"content":"a"}"#, Some(r#"{"content":"a"}"#)),
        ],
    );
}

#[test]
fn behind_a_leg_without_id_and_model_a_legs_own_stay() {
    let recovered = Recovered::nothing();
    let mut splice = Splice::new(Head::default(), None, seam(""), AT_END, recovered).awaiting_role();
    for data in events(INCLUDE_USAGE) {
        assert_eq!(rewritten(&mut splice, data).as_deref(), Some(data));
    }
}

#[test]
fn thinking_takes_the_name_or_names_of_leg_1() {
    let (one, other, both) =
        (r#"{"reasoning":"a"}"#, r#"{"reasoning_content":"a"}"#, r#"{"reasoning":"a","reasoning_content":"a"}"#);
    let reversed = r#"{"reasoning_content":"a","reasoning":"a"}"#;
    let null = r#"{"reasoning_content":null,"content":"c"}"#;
    for (field, deltas) in [
        (None, [(one, one), (other, other), (both, both), (null, null)]),
        (
            Some(ReasoningField::Reasoning),
            [(one, one), (other, one), (both, one), (null, r#"{"reasoning":null,"content":"c"}"#)],
        ),
        (Some(ReasoningField::ReasoningContent), [(one, other), (other, other), (both, other), (null, null)]),
        (
            Some(ReasoningField::Both),
            [
                (one, both),
                (other, reversed),
                (both, both),
                (null, r#"{"reasoning_content":null,"reasoning":null,"content":"c"}"#),
            ],
        ),
    ] {
        check(splice(field, seam("")), &deltas.map(|(before, after)| (before, Some(after))));
    }
    check(
        splice(Some(ReasoningField::ReasoningContent), seam("")),
        &[(r#"{"reasoning":"a","reasoning_content":null}"#, Some(r#"{"reasoning_content":"a"}"#))],
    );
}

#[test]
fn thinking_that_is_the_answer_becomes_content() {
    let seam = Seam { reasoning_is_content: true, ..Seam::default() };
    check(
        splice(Some(ReasoningField::ReasoningContent), seam),
        &[
            (r#"{"role":"assistant","content":""}"#, None),
            (r#"{"reasoning":"a\u4f60"}"#, Some(r#"{"content":"a\u4f60"}"#)),
            (r#"{"reasoning_content":"a","content":null}"#, Some(r#"{"content":"a"}"#)),
            (r#"{"reasoning":"a","reasoning_content":"a","x":1}"#, Some(r#"{"content":"a","x":1}"#)),
            (r#"{"reasoning":"a","content":"b"}"#, Some(r#"{"content":"ab"}"#)),
            (r#"{"reasoning":null,"content":"b"}"#, Some(r#"{"reasoning_content":null,"content":"b"}"#)),
            (r#"{"content":"b"}"#, Some(r#"{"content":"b"}"#)),
        ],
    );
}

#[test]
fn white_space_that_was_delivered_is_not_repeated() {
    let content = |text: &str| format!(r#"{{"content":{}}}"#, serde_json::to_string(text).unwrap());
    let run = |trimmed: &str, texts: &[&str]| {
        let mut splice = splice(None, seam(trimmed));
        let deltas = texts.iter().filter_map(|text| rewritten(&mut splice, &event("two", &content(text))));
        folded(deltas.collect::<Vec<_>>().iter().map(String::as_str)).first().map(|choice| choice.content.clone())
    };
    for (trimmed, texts, expected) in [
        ("", &["\n\na"][..], Some("\n\na")),
        ("\n\n", &["\n\na"], Some("a")),
        ("\n\n", &["\n", "\n", "a\n\nb"], Some("a\n\nb")),
        ("\n\n", &["\n", "a", "\n"], Some("a\n")),
        ("\n", &["\n\na"], Some("\na")),
        (" ", &["a", " "], Some("a ")),
        ("\n", &[" \na"], Some(" \na")),
        ("\u{3000}", &["\u{3000}你"], Some("你")),
        ("\n", &["", "\na"], Some("a")),
        ("\n", &["\n"], None),
    ] {
        assert_eq!(run(trimmed, texts).as_deref(), expected, "{trimmed:?} before {texts:?}");
    }
}

#[test]
fn the_seam_ends_with_the_first_other_thing() {
    let mut after_text = splice(None, seam("\n\n"));
    assert!(!after_text.is_settled());
    rewritten(&mut after_text, &event("two", r#"{"role":"assistant","content":""}"#));
    assert!(!after_text.is_settled());
    rewritten(&mut after_text, &event("two", r#"{"content":"\na"}"#));
    assert!(after_text.is_settled());
    let mut after_call = splice(None, seam("\n"));
    rewritten(&mut after_call, &event("two", r#"{"tool_calls":[{"index":0}]}"#));
    assert!(after_call.is_settled());
    // Both names of a text lose the same, and thinking comes before the answer.
    check(
        splice(None, seam("\n ")),
        &[(
            r#"{"reasoning":"\n","reasoning_content":"\n","content":" a"}"#,
            Some(r#"{"reasoning":"","reasoning_content":"","content":"a"}"#),
        )],
    );
}

#[test]
fn an_event_that_carries_more_than_repeated_white_space_stays() {
    let ids = r#"{"choices":[{"index":0,"delta":{"content":"\n"},"token_ids":[198]}]}"#;
    let kept = rewritten(&mut splice(None, seam("\n")), ids).unwrap();
    assert!(kept.contains(r#""delta":{"content":""},"token_ids":[198]"#), "{kept}");
    let end = r#"{"choices":[{"index":0,"delta":{"content":"\n"},"finish_reason":"stop"}]}"#;
    assert!(rewritten(&mut splice(None, seam("\n")), end).is_some());
}

/// A usage chunk and a chunk with continuous usage, of leg 2.
const USAGE_CHUNK: &str = r#"{"id":"two","choices":[],"usage":{"prompt_tokens":40,"total_tokens":45,"completion_tokens":5,"completion_tokens_details":{"reasoning_tokens":2}},"system_fingerprint":"fp"}"#;
const TEXT_AND_USAGE: &str = r#"{"id":"two","choices":[{"index":0,"delta":{"content":"a"}}],"usage":{"prompt_tokens":40,"total_tokens":45,"completion_tokens":5,"reasoning_tokens":2},"x":1}"#;

fn with_usage(client: ClientUsage, data: &str) -> Option<String> {
    rewritten(&mut Splice::new(head(), None, seam(""), client, RECOVERED), data)
}

#[test]
fn the_usage_chunk_is_the_whole_answers_and_comes_only_if_it_was_asked_for() {
    let whole = r#""usage":{"prompt_tokens":30,"total_tokens":45,"completion_tokens":15,"completion_tokens_details":{"reasoning_tokens":6}},"system_fingerprint":"fp""#;
    assert!(with_usage(AT_END, USAGE_CHUNK).unwrap().contains(whole));
    assert_eq!(with_usage(NO_USAGE, USAGE_CHUNK), None);
    assert_eq!(with_usage(ClientUsage { at_end: false, continuous: true }, USAGE_CHUNK), None);
    // Chunks without choices that are about something else pass.
    let other = r#"{"id":"one","choices":[],"sglext":{"a":1},"created":1,"model":"m"}"#;
    assert_eq!(with_usage(NO_USAGE, other).as_deref(), Some(other));
}

#[test]
fn continuous_usage_is_raised_or_taken_out() {
    let whole = r#""usage":{"prompt_tokens":30,"total_tokens":45,"completion_tokens":15,"reasoning_tokens":6},"x":1"#;
    assert!(with_usage(CONTINUOUS, TEXT_AND_USAGE).unwrap().contains(whole));
    for client in [AT_END, NO_USAGE] {
        let without = with_usage(client, TEXT_AND_USAGE).unwrap();
        assert!(!without.contains("usage") && without.contains(r#""delta":{"content":"a"}}],"x":1"#), "{without}");
    }
    let null = r#"{"id":"one","choices":[{"index":0,"delta":{"content":"a"}}],"usage":null,"created":1,"model":"m"}"#;
    assert_eq!(with_usage(NO_USAGE, null).as_deref(), Some(null));
    // Usage beside the finish reason is the answer's, for who asked.
    let end = TEXT_AND_USAGE.replace(r#"{"content":"a"}}"#, r#"{},"finish_reason":"stop"}"#);
    assert!(with_usage(AT_END, &end).unwrap().contains(whole));
    assert!(!with_usage(NO_USAGE, &end).unwrap().contains("usage"));
}

#[test]
fn a_leg_without_thinking_has_none_to_count() {
    for (delta, thinking) in [(r#"{"content":"a"}"#, 4), (r#"{"reasoning":"a"}"#, 6), ("{}", 6)] {
        let mut splice = Splice::new(head(), None, seam(""), AT_END, RECOVERED);
        rewritten(&mut splice, &format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#));
        let usage = rewritten(&mut splice, USAGE_CHUNK).unwrap();
        assert!(usage.contains(&format!(r#""reasoning_tokens":{thinking}"#)), "{delta}: {usage}");
    }
}

#[test]
fn what_is_to_be_repeated_is_dropped_and_has_to_come() {
    let repeats = |reasoning: &str, content: &str| Seam {
        repeats: Repeats { reasoning: reasoning.to_owned(), content: content.to_owned() },
        ..Seam::default()
    };
    let told = |seam: &Seam, deltas: &[&str]| {
        let mut splice = Splice::new(head(), Some(ReasoningField::Reasoning), seam.clone(), NO_USAGE, RECOVERED);
        let mut texts = String::new();
        for delta in deltas {
            let ends = if *delta == "{}" { r#","finish_reason":"stop""# } else { "" };
            let data = format!(r#"{{"choices":[{{"index":0,"delta":{delta}{ends}}}]}}"#);
            match splice.rewrite(data.as_bytes()) {
                Ok(Some(shown)) => {
                    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
                    texts.push_str(&shown["choices"][0]["delta"].to_string());
                }
                Ok(None) => texts.push('-'),
                Err(why) => return Err(why),
            }
        }
        Ok(texts)
    };
    let said = |texts: &str| Ok(texts.to_owned());
    let content = repeats("", "ab");
    assert_eq!(told(&content, &[r#"{"content":"abc"}"#]), said(r#"{"content":"c"}"#));
    assert_eq!(
        told(&content, &[r#"{"content":"a"}"#, r#"{"content":"b"}"#, r#"{"content":"a"}"#]),
        said(r#"--{"content":"a"}"#)
    );
    assert_eq!(told(&content, &[r#"{"content":"ab"}"#, "{}"]), said("-{}"));
    let both = repeats("x", "y");
    assert_eq!(told(&both, &[r#"{"reasoning":"x"}"#, r#"{"content":"yz"}"#]), said(r#"-{"content":"z"}"#));
    assert_eq!(told(&both, &[r#"{"reasoning":"x","content":"yz"}"#]), said(r#"{"reasoning":"","content":"z"}"#));
    for (seam, deltas) in [
        (&content, &[r#"{"content":"b"}"#][..]),
        (&content, &[r#"{"content":"a"}"#, r#"{"content":"c"}"#]),
        (&content, &[r#"{"content":"a"}"#, "{}"]),
        (&content, &[r#"{"tool_calls":[{"index":0}]}"#]),
        (&both, &[r#"{"reasoning":"xx"}"#, r#"{"reasoning":"x"}"#, r#"{"content":"z"}"#]),
        (&both, &[r#"{"content":"y"}"#]),
    ] {
        assert_eq!(told(seam, deltas), Err(NotSpliced::Diverged), "{deltas:?}");
    }
}

#[test]
fn an_answer_called_thinking_is_not_counted_as_thinking() {
    let seam = Seam { reasoning_is_content: true, ..Seam::default() };
    let mut splice = Splice::new(head(), None, seam, AT_END, RECOVERED);
    assert!(rewritten(&mut splice, USAGE_CHUNK).unwrap().contains(r#""reasoning_tokens":4"#));
}

#[test]
fn a_third_leg_adds_to_everything_before_it() {
    let request =
        ChatRequest::parse(br#"{"messages":[],"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#)
            .unwrap();
    let leg = |partial: &Partial| {
        let recovered = Recovered::of(partial, &request, &Ratios::default());
        Splice::new(partial.head.clone().unwrap(), None, seam(""), ClientUsage::of(&request, true), recovered)
    };
    let data = |completion: u64| {
        format!(
            r#"{{"id":"x","choices":[{{"index":0,"delta":{{"content":"a"}}}}],"usage":{{"prompt_tokens":20,"completion_tokens":{completion}}}}}"#
        )
    };
    let mut partial = folded([data(7).as_str()]);
    for (completion, whole) in [(5, 12), (2, 14)] {
        let mut splice = leg(&partial);
        partial.begin_leg(Onward::Text);
        let seen = rewritten(&mut splice, &data(completion)).unwrap();
        assert!(seen.contains(&format!(r#""prompt_tokens":20,"completion_tokens":{whole}"#)), "{seen}");
        let Ok(Parsed::Chunk(chunk)) = parse(seen.as_bytes()) else { panic!("{seen}") };
        partial.fold(&chunk);
        assert_eq!(partial.completion_tokens(&Ratios::default()).tokens, whole);
    }
}

#[test]
fn what_is_no_chunk_passes_and_what_is_nothing_is_an_error() {
    let mut splice = splice(None, seam(""));
    for data in ["[DONE]", r#"{"error":{"message":"no","code":500}}"#, r#"{"object":"error","message":"no"}"#] {
        assert_eq!(rewritten(&mut splice, data).as_deref(), Some(data));
    }
    for data in ["", "[]", "{\"choices\":3}"] {
        assert!(splice.rewrite(data.as_bytes()).is_err(), "{data}");
    }
}

#[test]
fn frames_of_a_settled_splice_are_rewritten_to_frames() {
    let mut splice = splice(Some(ReasoningField::ReasoningContent), seam(""));
    let (one, two) = (event("two", r#"{"reasoning":"a\n"}"#), event("two", r#"{"reasoning":"b \u4f60"}"#));
    let (first, second) = (rewritten(&mut splice, &one).unwrap(), rewritten(&mut splice, &two).unwrap());
    let (first, second) = (learn(first.as_bytes()).unwrap(), learn(second.as_bytes()).unwrap());
    assert_eq!(first, second);
    assert_eq!(first.kind, second.kind);
}

#[test]
fn the_tail_is_written_in_the_engines_shape() {
    let head = Head { system_fingerprint: Some("fp".to_owned()), ..head() };
    for (shape, delta, rest) in [
        (Shape::OpenAi, "{}", ""),
        (Shape::Vllm, "{}", r#","stop_reason":null,"token_ids":null"#),
        (Shape::Sglang, r#"{"reasoning_content":null}"#, r#","matched_stop":null"#),
    ] {
        let expected = format!(
            r#"{{"id":"one","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":"length"{rest}}}],"system_fingerprint":"fp"}}"#
        );
        assert_eq!(String::from_utf8(finish_chunk(&head, shape, &FinishReason::Length)).unwrap(), expected);
    }
    let usage = folded(events(CONTINUOUS_USAGE)).usage.unwrap();
    let head = Head { created: None, system_fingerprint: None, ..head };
    assert_eq!(
        String::from_utf8(usage_chunk(&head, Shape::Vllm, &usage)).unwrap(),
        r#"{"id":"one","object":"chat.completion.chunk","model":"m","choices":[],"usage":{"prompt_tokens":15,"total_tokens":19,"completion_tokens":4,"completion_tokens_details":{"reasoning_tokens":4}}}"#
    );
}

#[test]
fn a_completions_tail_is_what_its_engine_would_have_written() {
    for (name, sse) in [("vllm", COMPLETION_USAGE), ("sglang", SGLANG_COMPLETION)] {
        let whole: Vec<_> = events(sse).filter(|data| *data != "[DONE]").collect();
        let partial = folded(whole.iter().copied());
        let read = |data: &str| -> serde_json::Map<_, _> { serde_json::from_str(data).unwrap() };
        let (recorded_end, recorded_usage) = (read(whole[whole.len() - 2]), read(whole[whole.len() - 1]));
        let head = partial.head.clone().unwrap();
        let ours = |data: Vec<u8>| read(std::str::from_utf8(&data).unwrap());
        let nameless = Head { system_fingerprint: None, ..head.clone() };
        let mut end = ours(finish_chunk(&nameless, partial.shape(), &FinishReason::Length));
        // vLLM's end may bring the last text and the usage so far; what Baton writes comes behind both.
        end["choices"][0]["text"] = recorded_end["choices"][0]["text"].clone();
        end.extend(recorded_end.get("usage").map(|usage| ("usage".to_owned(), usage.clone())));
        // As text, so that the order of the fields counts.
        assert_eq!(json!(end).to_string(), json!(recorded_end).to_string(), "{name}");
        let usage = usage_chunk(&head, partial.shape(), partial.usage.as_ref().unwrap());
        assert_eq!(json!(ours(usage)).to_string(), json!(recorded_usage).to_string(), "{name}");
    }
    let openai = r#"{"id":"one","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}]}"#;
    assert_eq!(finish_chunk(&head(), Shape::Completion, &FinishReason::Length), openai.as_bytes());
    let vllm = finish_chunk(&head(), Shape::VllmCompletion, &FinishReason::Length);
    let choice = r#"{"index":0,"text":"","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null}"#;
    assert!(String::from_utf8(vllm).unwrap().contains(choice));
}

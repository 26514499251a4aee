//! Events that are not quite the protocol, each with what the client is to see of it.

use proptest::prelude::*;

use super::super::chat::OriginalPrompt;
use super::*;

fn splice(seam: Seam, client: ClientUsage) -> Splice {
    let head = Head { id: "one".to_owned(), created: Some(1), model: "m".to_owned(), system_fingerprint: None };
    let recovered = Recovered { completion_tokens: 10, reasoning_tokens: 0, prompt: OriginalPrompt::Known(30) };
    Splice::new(head, Some(ReasoningField::ReasoningContent), seam, client, recovered)
}

/// What becomes of events, each as the first of a leg behind `seam`. The head stands at the end where a table leaves it out.
#[track_caller]
fn check_behind(seam: &Seam, client: ClientUsage, table: &[(&str, Option<&str>)]) {
    for (before, after) in table {
        let seen = splice(seam.clone(), client).rewrite(before.as_bytes()).unwrap();
        let seen = seen.map(|data| String::from_utf8(data).unwrap().replace(HEAD, ""));
        assert_eq!(seen.as_deref(), *after, "{before}");
    }
}

const HEAD: &str = r#","id":"one","created":1,"model":"m""#;
const NO_USAGE: ClientUsage = ClientUsage { at_end: false, continuous: false };
const ALL_USAGE: ClientUsage = ClientUsage { at_end: true, continuous: true };

#[track_caller]
fn check(table: &[(&str, Option<&str>)]) {
    check_behind(&Seam::default(), NO_USAGE, table);
}

/// Deltas in a choice.
#[track_caller]
fn check_deltas(seam: &Seam, table: &[(&str, Option<&str>)]) {
    for (before, after) in table {
        let around = |delta: &str| format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#);
        check_behind(seam, NO_USAGE, &[(&around(before), after.map(around).as_deref())]);
    }
}

#[test]
fn of_a_key_that_is_there_twice_the_one_that_counts_is_rewritten_and_left() {
    check(&[
        (
            r#"{"id":"x","id":"two","created":7,"model":"a","created":8,"choices":[],"model":"b"}"#,
            Some(r#"{"id":"one","created":1,"choices":[],"model":"m"}"#),
        ),
        (
            r#"{"choices":[{"delta":{"content":"a"}}],"choices":[{"delta":{"content":"b"},"delta":{"role":"x","content":"c"}}]}"#,
            Some(r#"{"choices":[{"delta":{"content":"c"}}]}"#),
        ),
        (r#"{"choices":[{"delta":{"role":"x","role":"y"}}]}"#, None),
        // What is not rewritten may stay twice: every client reads the last.
        (
            r#"{"choices":[{"index":1,"index":0,"delta":{"content":"a","content":"b"}}]}"#,
            Some(r#"{"choices":[{"index":1,"index":0,"delta":{"content":"a","content":"b"}}]}"#),
        ),
    ]);
    check_deltas(
        &Seam::default(),
        &[
            (r#"{"reasoning":"a","reasoning":"b"}"#, Some(r#"{"reasoning_content":"b"}"#)),
            (r#"{"reasoning":"a","reasoning_content":"b","reasoning":"c"}"#, Some(r#"{"reasoning_content":"c"}"#)),
        ],
    );
    let trimmed = Seam { trimmed: "\n".to_owned(), ..Seam::default() };
    check_deltas(&trimmed, &[(r#"{"content":"\nx","content":"\ny"}"#, Some(r#"{"content":"y"}"#))]);
    let answer = Seam { reasoning_is_content: true, ..Seam::default() };
    check_deltas(
        &answer,
        &[(r#"{"reasoning":"a","content":"x","reasoning":"b","content":"c"}"#, Some(r#"{"content":"bc"}"#))],
    );
}

#[test]
fn odd_values_stay_as_they_came() {
    for data in [
        r#"{"choices":[{"index":"0","delta":{"content":"a"},"finish_reason":false}]}"#,
        r#"{"choices":[{"index":-1.0,"delta":{"content":["a"]},"logprobs":"x"}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":{"id":5,"function":{"arguments":{"a": 1}}}}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"role":5,"content":"a"}}],"error":{},"object":"error"}"#,
        r#"{"choices":[null,{"index":0,"delta":{"content":"a"}},{}]}"#,
        r#"{"choices":[{"index":0,"delta":"text"}]}"#,
        r#"{"choices":[{"index":0,"delta":[]}]}"#,
        r#"{"choices":[{"index":0,"delta":false,"finish_reason":"stop"}]}"#,
        r#"{"choices":{}}"#,
        r#"{"choices":null}"#,
    ] {
        check(&[(data, Some(data))]);
    }
}

#[test]
fn a_single_choice_without_its_list_is_rewritten_too() {
    check(&[
        (
            r#"{"choices":{"delta":{"role":"x","reasoning":"a"}}}"#,
            Some(r#"{"choices":{"delta":{"reasoning_content":"a"}}}"#),
        ),
        (r#"{"choices":{"delta":{"role":"x"}}}"#, None),
        (r#"{"choices":[null,{"delta":{"role":"x"}}]}"#, None),
        (
            r#"{"choices":[null,{"delta":{"role":"x","content":"a"}}]}"#,
            Some(r#"{"choices":[null,{"delta":{"content":"a"}}]}"#),
        ),
    ]);
}

#[test]
fn an_answer_beside_thinking_that_is_no_text_is_not_lost() {
    let seam = Seam { reasoning_is_content: true, ..Seam::default() };
    check_deltas(
        &seam,
        &[
            (r#"{"reasoning":"a","content":["b"]}"#, Some(r#"{"reasoning_content":"a","content":["b"]}"#)),
            (r#"{"reasoning":"a","content":false}"#, Some(r#"{"content":"a"}"#)),
        ],
    );
}

#[test]
fn an_id_that_is_a_number_goes_on_as_a_number() {
    let rewrite = |id: &str, data: &str| {
        let head = Head { id: id.to_owned(), model: "m".to_owned(), ..Head::default() };
        let recovered = Recovered { completion_tokens: 0, reasoning_tokens: 0, prompt: OriginalPrompt::Known(0) };
        let mut splice = Splice::new(head, None, Seam::default(), NO_USAGE, recovered);
        String::from_utf8(splice.rewrite(data.as_bytes()).unwrap().unwrap()).unwrap()
    };
    for (id, own, seen) in [
        ("5", "6", "5"),
        ("5", "\"6\"", "\"5\""),
        ("5", "null", "\"5\""),
        ("one", "6", "\"one\""),
        ("inf", "6", "\"inf\""),
    ] {
        let data = |id: &str| format!(r#"{{"id":{id},"model":"m","choices":[]}}"#);
        assert_eq!(rewrite(id, &data(own)), data(seen));
    }
}

#[test]
fn usage_that_counts_nothing_is_hidden_like_any_other() {
    for usage in ["{}", "[]", "\"none\"", r#"{"completion_tokens":null}"#] {
        let chunk = format!(r#"{{"choices":[],"usage":{usage}}}"#);
        check_behind(&Seam::default(), ALL_USAGE, &[(&chunk, Some(&chunk))]);
        check(&[(&chunk, None)]);
    }
    check(&[(r#"{"choices":[],"usage":null}"#, Some(r#"{"choices":[],"usage":null}"#))]);
    let odd = r#"{"choices":[],"usage":{"prompt_tokens":-1,"completion_tokens":1,"completion_tokens":"2.0"}}"#;
    let whole = r#"{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":12,"total_tokens":42}}"#;
    check_behind(&Seam::default(), ALL_USAGE, &[(odd, Some(whole))]);
}

#[test]
fn numbers_that_are_not_json_become_null() {
    check(&[(
        r#"{"id":NaN,"choices":[{"delta":{"content":"NaN"},"logprobs":{"a":[NaN,-Infinity]}}],"created":1,"model":"x"}"#,
        Some(
            r#"{"id":"one","choices":[{"delta":{"content":"NaN"},"logprobs":{"a":[null,null]}}],"created":1,"model":"m"}"#,
        ),
    )]);
}

const KEYS: [&str; 22] = [
    "choices",
    "choices",
    "choices",
    "delta",
    "delta",
    "delta",
    "content",
    "text",
    "text",
    "reasoning",
    "reasoning_content",
    "role",
    "index",
    "finish_reason",
    "tool_calls",
    "function",
    "arguments",
    "usage",
    "completion_tokens",
    "error",
    "object",
    "x",
];

/// Any JSON, made of what chunks are made of; keys may be there twice.
fn json_text() -> impl Strategy<Value = String> {
    let leaf = proptest::sample::select(&[
        "null",
        "false",
        "true",
        "0",
        "-1",
        "2.0",
        "1e999",
        "\"\"",
        "\"a\"",
        "\"\\n\"",
        "\"stop\"",
        "\"error\"",
        "\"text_completion\"",
        "[]",
        "{}",
    ]);
    leaf.prop_map(str::to_owned).prop_recursive(6, 64, 4, |inner| {
        let list = proptest::collection::vec(inner.clone(), 0..3).prop_map(|items| format!("[{}]", items.join(",")));
        prop_oneof![list, object_of(inner.clone()), object_of(inner)]
    })
}

fn object_of(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let field = (proptest::sample::select(&KEYS), value).prop_map(|(key, value)| format!("\"{key}\":{value}"));
    proptest::collection::vec(field, 0..5).prop_map(|fields| format!("{{{}}}", fields.join(",")))
}

/// What the splice must not change.
fn essence(chunk: &Chunk<'_>) -> impl PartialEq + std::fmt::Debug {
    let piece = |choice: &ChunkChoice<'_>| {
        let texts = [&choice.content, &choice.reasoning].map(|text| text.as_deref().unwrap_or_default().to_owned());
        let calls = format!("{:?}", choice.tool_calls);
        (choice.index, texts, calls, choice.finish_reason.clone())
    };
    chunk.choices.iter().map(piece).collect::<Vec<_>>()
}

proptest! {
    #[test]
    fn whatever_object_is_read_as_a_chunk_is_rewritten_to_one_that_says_the_same(data in object_of(json_text())) {
        let chunk = match parse(data.as_bytes()) {
            Ok(Parsed::Chunk(chunk)) => chunk,
            Ok(_) => return Ok(()),
            Err(malformed) => {
                prop_assert!(malformed.what.starts_with("`choices`") || malformed.what.starts_with("number"), "{malformed}");
                return Ok(());
            }
        };
        if let Some(seen) = splice(Seam::default(), ALL_USAGE).rewrite(data.as_bytes()).unwrap() {
            let Ok(Parsed::Chunk(seen)) = parse(&seen) else { panic!("{seen:?}") };
            prop_assert_eq!(essence(&seen), essence(&chunk));
            prop_assert_eq!(&*seen.id, "one");
        } else {
            prop_assert!(chunk.choices.iter().all(|choice| !choice.has_output() && choice.finish_reason.is_none()));
        }
    }
}

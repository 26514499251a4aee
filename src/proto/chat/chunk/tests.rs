use super::super::fixtures::{CONTENT, ENGINE_KILLED, LOGPROBS, SGLANG, TOKEN_IDS, TOOL_CALL, chunk, events};
use super::*;

fn error(data: &str) -> EngineError {
    match parse(data.as_bytes()) {
        Ok(Parsed::Error(error)) => error,
        other => panic!("{data} is no error but {other:?}"),
    }
}

fn only_choice(data: &str) -> ChunkChoice<'_> {
    let mut chunk = chunk(data);
    assert_eq!(chunk.choices.len(), 1);
    chunk.choices.remove(0)
}

/// A choice with this delta.
fn choice_of(delta: &str) -> ChunkChoice<'static> {
    let data = format!(r#"{{"choices":[{{"index":0,"delta":{delta}}}]}}"#);
    only_choice(Box::leak(data.into_boxed_str()))
}

#[test]
fn a_vllm_role_chunk_has_a_role_and_empty_content() {
    let data = events(CONTENT).next().unwrap();
    let first = chunk(data);
    assert_eq!((&*first.id, first.created, &*first.model), ("chatcmpl-913be00a34b98b58", Some(1_796_054_828), "tiny"));
    let choice = only_choice(data);
    assert_eq!((choice.role.as_deref(), choice.content.as_deref()), (Some("assistant"), Some("")));
    assert_eq!((choice.finish_reason, choice.shape), (None, Shape::OpenAi));
}

#[test]
fn text_without_escapes_borrows_from_the_event() {
    let choice = only_choice(events(CONTENT).nth(1).unwrap());
    assert!(matches!(choice.content, Some(Cow::Borrowed("<tool_call>"))));
    assert!(choice.has_output());
}

#[test]
fn the_engine_shows_in_the_fields_of_a_choice() {
    assert_eq!(chunk(events(CONTENT).nth(1).unwrap()).shape(), Shape::Vllm);
    assert_eq!(chunk(events(SGLANG).next().unwrap()).shape(), Shape::Sglang);
    assert_eq!(chunk(r#"{"choices":[]}"#).shape(), Shape::OpenAi);
}

#[test]
fn thinking_is_read_under_either_name_or_both() {
    for (delta, text, field) in [
        (r#"{"reasoning":"a"}"#, Some("a"), Some(ReasoningField::Reasoning)),
        (r#"{"reasoning_content":"a"}"#, Some("a"), Some(ReasoningField::ReasoningContent)),
        (r#"{"reasoning":"a","reasoning_content":"a"}"#, Some("a"), Some(ReasoningField::Both)),
        (r#"{"reasoning":"","reasoning_content":"a"}"#, Some("a"), Some(ReasoningField::Both)),
        (r#"{"reasoning":null,"reasoning_content":"a"}"#, Some("a"), Some(ReasoningField::ReasoningContent)),
        (r#"{"reasoning_content":null,"content":"c"}"#, None, Some(ReasoningField::ReasoningContent)),
        (r#"{"content":"c"}"#, None, None),
    ] {
        let choice = choice_of(delta);
        assert_eq!((choice.reasoning.as_deref(), choice.reasoning_field), (text, field), "{delta}");
    }
}

#[test]
fn tool_calls_come_in_pieces() {
    let deltas: Vec<_> = events(TOOL_CALL).filter(|data| data.contains("tool_calls\":[")).map(only_choice).collect();
    let first = &deltas[0].tool_calls[0];
    assert_eq!(first.id.as_deref(), Some("chatcmpl-tool-b6f243497f8e7daf"));
    assert_eq!((first.index, first.name.as_deref(), &first.arguments), (0, Some("get_weather"), &None));
    assert_eq!(deltas[1].tool_calls[0].arguments.as_deref(), Some("{\""));
    assert_eq!(choice_of(r#"{"tool_calls":[{"id":"x"},{"id":"y"}]}"#).tool_calls[1].index, 1);
    assert_eq!(choice_of(r#"{"function_call":{"name":"f"}}"#).tool_calls[0].name.as_deref(), Some("f"));
}

#[test]
fn ids_and_log_probabilities_are_noticed() {
    assert_eq!(
        only_choice(events(TOKEN_IDS).nth(1).unwrap()).token_ids.map(|ids| ids.json().to_owned()),
        Some("[71802]".to_owned())
    );
    assert_eq!(only_choice(events(CONTENT).nth(1).unwrap()).token_ids, None);
    assert!(only_choice(events(LOGPROBS).nth(1).unwrap()).has_logprobs);
    assert!(!only_choice(events(LOGPROBS).next().unwrap()).has_logprobs);
}

#[test]
fn only_reasons_that_mean_an_end_are_finished() {
    for (name, finished) in [
        ("stop", true),
        ("length", true),
        ("tool_calls", true),
        ("content_filter", true),
        ("function_call", true),
        ("repetition", true),
        ("abort", false),
        ("error", false),
    ] {
        let reason = FinishReason::from_name(name);
        assert_eq!((reason.name(), reason.is_finished()), (name, finished));
    }
    assert_eq!(only_choice(r#"{"choices":[{"index":0,"delta":{},"finish_reason":""}]}"#).finish_reason, None);
}

#[test]
fn errors_are_read_in_every_shape() {
    let killed = error(events(ENGINE_KILLED).nth(1).unwrap());
    assert!(killed.message.starts_with("EngineCore encountered"));
    assert_eq!((killed.kind.as_deref(), killed.code.as_deref()), (Some("InternalServerError"), Some("500")));
    for (data, kind, code) in [
        (
            r#"{"error":{"object":"error","message":"no","type":"BAD","param":null,"code":503}}"#,
            Some("BAD"),
            Some("503"),
        ),
        (r#"{"object":"error","message":"no","type":"BAD","param":null,"code":400}"#, Some("BAD"), Some("400")),
        (
            r#"{"error":{"message":"no","type":"server_error","code":"server_error"}}"#,
            Some("server_error"),
            Some("server_error"),
        ),
        (r#"{"type":"error","error":{"message":"no"}}"#, None, None),
        (r#"{"choices":[],"error":"no"}"#, None, None),
    ] {
        let error = error(data);
        assert_eq!((&*error.message, error.kind.as_deref(), error.code.as_deref()), ("no", kind, code), "{data}");
    }
    assert_eq!(error(r#"{"error":{"code":1}}"#).to_string(), "the engine reported an error: ");
    chunk(r#"{"error":null,"choices":[]}"#);
}

#[test]
fn done_is_told_apart() {
    for data in ["[DONE]", " [DONE] "] {
        assert_eq!(parse(data.as_bytes()), Ok(Parsed::Done));
    }
}

#[test]
fn nulls_and_missing_fields_are_the_same() {
    let full = r#"{"id":null,"created":null,"model":null,"system_fingerprint":null,"choices":[{"index":0,"delta":{"role":null,"content":null,"reasoning":null,"tool_calls":null,"function_call":null,"refusal":null},"finish_reason":null,"logprobs":null}],"usage":null}"#;
    let mut chunk = chunk(full);
    chunk.choices[0].reasoning_field = None;
    assert_eq!(chunk, super::super::fixtures::chunk(r#"{"choices":[{"index":0}]}"#));
    assert_eq!(super::super::fixtures::chunk("{}").choices, []);
}

#[test]
fn output_that_is_not_text_is_noted_and_not_an_error() {
    for delta in [r#"{"content":[{"type":"thinking"}]}"#, r#"{"refusal":"no"}"#, r#"{"audio":{"data":""}}"#] {
        assert!(choice_of(delta).opaque, "{delta}");
    }
    assert!(!choice_of(r#"{"content":"x","refusal":null}"#).opaque);
}

#[test]
fn deep_nesting_is_no_danger() {
    let deep = format!(r#"{{"x":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(deep.as_bytes()).is_ok());
}

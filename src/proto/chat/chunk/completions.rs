//! Completions, and what must not be taken for one.

use serde_json::Value;

use super::super::fixtures::{
    COMPLETION, COMPLETION_ERROR, COMPLETION_IDS, COMPLETION_STOP, COMPLETION_USAGE, CONTENT, SGLANG_COMPLETION,
    TOKEN_IDS, chunk, events, folded,
};
use super::super::{Counted, Partial, Phase, Ratios};
use super::*;

fn chunks(sse: &str) -> impl Iterator<Item = Chunk<'_>> {
    events(sse).filter(|data| *data != "[DONE]").map(chunk)
}

/// The only choice of an event around these fields.
fn choice(object: &str, fields: &str) -> ChunkChoice<'static> {
    let data = format!(r#"{{{object}"choices":[{{"index":0,{fields}}}]}}"#);
    let Ok(Parsed::Chunk(chunk)) = parse(data.as_bytes()) else { panic!("{data}") };
    chunk.into_owned().choices.remove(0)
}

#[test]
fn text_is_content_and_the_engine_shows() {
    let first = chunks(COMPLETION_IDS).next().unwrap();
    assert_eq!((&*first.id, first.created, &*first.model), ("cmpl-885b90c65b79a625", Some(1_796_074_381), "tiny"));
    let choice = &first.choices[0];
    assert_eq!(
        (choice.content.as_deref(), choice.role.as_deref(), choice.shape),
        (Some(" "), None, Shape::VllmCompletion)
    );
    assert_eq!(choice.token_ids.as_ref().map(IdList::json), Some("[389]"));
    assert!(choice.has_output() && !choice.opaque);
    assert!(matches!(chunks(COMPLETION).nth(1).unwrap().choices[0].content, Some(Cow::Borrowed(_))));
    assert_eq!(chunks(SGLANG_COMPLETION).next().unwrap().shape(), Shape::SglangCompletion);
    let bare = r#""text":"a","logprobs":null,"finish_reason":null"#;
    assert_eq!(self::choice("", bare).shape, Shape::Completion);
}

#[test]
fn the_ids_of_the_prompt_stand_in_the_first_choice_and_nowhere_else() {
    let ids: Vec<_> = chunks(COMPLETION_IDS).map(|chunk| chunk.prompt_token_ids.map(|ids| ids.count())).collect();
    // As counted by the engine's own usage.
    assert_eq!(ids[0], Some(239));
    assert!(ids[1..].iter().all(Option::is_none));
    assert!(chunks(COMPLETION).all(|chunk| chunk.prompt_token_ids.is_none()));
    let above = chunk(r#"{"prompt_token_ids":[1,2],"choices":[{"text":"a","prompt_token_ids":[3]}]}"#);
    assert_eq!(above.prompt_token_ids.unwrap().json(), "[1,2]");
}

#[test]
fn with_ids_asked_for_an_answer_has_the_same_events_and_differs_in_the_lists_only() {
    let strip = |data: &str| {
        let mut event: Value = serde_json::from_str(data).unwrap();
        for key in ["id", "created", "system_fingerprint"] {
            event.as_object_mut().unwrap().shift_remove(key);
        }
        for key in ["prompt_token_ids", "token_ids"] {
            assert!(event["choices"][0].get(key).is_some(), "{key} is there, if only as null: {data}");
            event["choices"][0][key] = Value::Null;
        }
        event.to_string()
    };
    let with = events(COMPLETION_IDS).filter(|data| data.contains("\"text\""));
    let without = events(COMPLETION).filter(|data| data.contains("\"text\""));
    assert!(with.map(strip).eq(without.map(strip)));
}

#[test]
fn an_answer_adds_up_at_every_event() {
    for (sse, text, reason) in [
        (COMPLETION, " on the black water a boy named 小明 heard it, turned", "length"),
        (COMPLETION_STOP, "The user wants a short", "stop"),
        (COMPLETION_USAGE, "The user wants a short", "length"),
        (SGLANG_COMPLETION, " once 你", "length"),
    ] {
        let (mut partial, mut sum) = (Partial::default(), String::new());
        for chunk in chunks(sse) {
            assert!(!partial.is_finished() || chunk.choices.is_empty());
            sum.extend(chunk.choices.iter().filter_map(|choice| choice.content.as_deref()));
            partial.fold(&chunk);
            assert_eq!(partial.first().map_or("", |choice| &choice.content), sum);
            assert_eq!(partial.phase(), if sum.trim().is_empty() { Phase::Nothing } else { Phase::Content });
            assert!(!partial.has_role() && !partial.is_opaque() && !partial.is_interleaved());
        }
        let choice = partial.first().unwrap();
        assert_eq!((&*choice.content, choice.finish.as_ref().map(FinishReason::name)), (text, Some(reason)));
        assert!(partial.is_finished());
        assert_eq!(partial.shape().api(), Api::Completions);
    }
}

#[test]
fn tokens_are_counted_by_ids_and_by_usage() {
    let (mut partial, mut ids) = (Partial::default(), 0);
    for chunk in chunks(COMPLETION_IDS).filter(|chunk| !chunk.choices.is_empty()) {
        ids += chunk.choices[0].token_ids.as_ref().map_or(0, IdList::count);
        let has_text = chunk.choices[0].has_output();
        partial.fold(&chunk);
        // An event without text is of a token whose text is withheld.
        let expected = Counted { tokens: ids, exact: has_text };
        assert_eq!(partial.completion_tokens(&Ratios::default()), expected);
    }
    let whole = folded(events(COMPLETION_IDS)).usage.unwrap();
    assert_eq!((whole.completion_tokens, whole.reasoning_tokens), (ids, None));
    for (at, chunk) in chunks(COMPLETION_USAGE).enumerate().filter(|(_, chunk)| !chunk.choices.is_empty()) {
        assert_eq!(chunk.usage.unwrap().completion_tokens, at as u64 + 1);
    }
}

#[test]
fn an_error_behind_status_200_is_an_error() {
    let data = events(COMPLETION_ERROR).next().unwrap();
    let Ok(Parsed::Error(error)) = parse(data.as_bytes()) else { panic!("{data}") };
    assert_eq!((&*error.message, error.code.as_deref()), ("Token id 9999999 is out of vocabulary", Some("400")));
}

#[test]
fn every_recorded_event_cut_anywhere_is_no_chunk() {
    for data in [COMPLETION, COMPLETION_STOP, COMPLETION_USAGE, COMPLETION_ERROR].into_iter().flat_map(events) {
        for cut in 0..data.len() {
            assert!(parse(&data.as_bytes()[..cut]).is_err(), "{data} cut at {cut}");
        }
    }
}

#[test]
fn a_chats_choice_is_read_without_its_text() {
    // Some servers write the piece a second time.
    let stray = r#""text":"b","prompt_token_ids":[1],"finish_reason":null"#;
    for (object, delta, content) in [
        ("", r#""delta":{"content":"a"},"#, Some("a")),
        (r#""object":"chat.completion.chunk","#, r#""delta":{"content":"a"},"#, Some("a")),
        (r#""object":"text_completion","#, r#""delta":{"content":"a"},"#, Some("a")),
        ("", r#""delta":{},"#, None),
        ("", r#""delta":{"reasoning":"a"},"#, None),
        (r#""object":"chat.completion.chunk","#, "", None),
        (r#""object":"chat.completion.chunk","#, r#""delta":null,"#, None),
    ] {
        let data = format!(r#"{{{object}"choices":[{{"index":0,{delta}{stray}}}]}}"#);
        let chat = chunk(&data);
        assert_eq!((chat.choices[0].content.as_deref(), chat.choices[0].shape), (content, Shape::OpenAi), "{data}");
        assert_eq!(chat.prompt_token_ids, None, "{data}");
        assert_eq!(chat, chunk(&format!(r#"{{{object}"choices":[{{"index":0,{delta}"finish_reason":null}}]}}"#)));
    }
    // Nor does a text that is none do harm.
    assert_eq!(choice("", r#""delta":{"content":"a"},"text":"\ud800""#).content.as_deref(), Some("a"));
    for sse in [CONTENT, TOKEN_IDS] {
        assert!(chunks(sse).all(|chunk| chunk.shape().api() == Api::Chat));
    }
}

#[test]
fn a_completions_choice_is_read_leniently() {
    let object = r#""object":"text_completion","#;
    for (object, fields, content, opaque) in [
        ("", r#""text":"a""#, Some("a"), false),
        ("", r#""text":"a","text":"b""#, Some("b"), false),
        ("", r#""text":"a","delta":null"#, Some("a"), false),
        (r#""object":"text_completion.chunk","#, r#""text":"a""#, Some("a"), false),
        (r#""object":7,"#, r#""text":"a""#, Some("a"), false),
        (object, r#""text":"""#, Some(""), false),
        (object, r#""text":null"#, None, false),
        (object, r#""text":[]"#, None, false),
        (object, r#""text":["a"]"#, None, true),
        (object, r#""text":5"#, None, true),
        (object, r#""finish_reason":"length""#, None, false),
        (object, r#""text":"\u4f60""#, Some("你"), false),
    ] {
        let choice = choice(object, fields);
        assert_eq!((choice.content.as_deref(), choice.opaque), (content, opaque), "{object}{fields}");
        assert_eq!(choice.shape, Shape::Completion, "{object}{fields}");
    }
    let half = parse(br#"{"choices":[{"index":0,"text":"\ud800"}]}"#).unwrap_err();
    assert_eq!(half.place().fault, Fault::NotAChunk);
}

//! Takes out again what an engine sends only because Baton asked it for token ids.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::proto::chat::json::is_null;

/// An event as the client would have got it without `return_token_ids`; `None` when it would have got none.
///
/// vLLM (0.32, chat_completion/serving.py) fills `prompt_token_ids` in the first chunk and `token_ids` in the others, which are
/// `null` without the flag, and sends a chunk with an empty delta for tokens that bring no text, which it leaves out without. Its
/// Rust frontend writes no nulls: there the fields go altogether. Only bytes of these fields change.
pub fn hide_ids(data: &[u8]) -> Option<Cow<'_, [u8]>> {
    // What is not plainly written is not what vLLM writes.
    let Ok(event) = serde_json::from_slice::<Event<'_>>(data) else { return Some(Cow::Borrowed(data)) };
    let silent = |choice: &Choice<'_>| {
        is_list(choice.token_ids)
            && choice.delta.is_some_and(|delta| delta.get() == "{}")
            && choice.finish_reason.is_none_or(is_null)
            && choice.logprobs.is_none_or(is_null)
    };
    if !event.choices.is_empty() && event.choices.iter().all(silent) {
        return None;
    }
    let nulls = event.choices.iter().any(|choice| choice.logprobs.is_some());
    let lists = event.choices.iter().flat_map(|choice| [choice.token_ids, choice.prompt_token_ids]);
    let lists = lists.chain([event.prompt_token_ids]).filter(|list| is_list(*list)).flatten();
    let mut places: Vec<_> = lists.filter_map(|list| place(data, list, nulls)).collect();
    if places.is_empty() {
        return Some(Cow::Borrowed(data));
    }
    places.sort_unstable();
    let mut shown = Vec::with_capacity(data.len());
    let mut at = 0;
    for (start, end) in places {
        shown.extend_from_slice(data.get(at..start).unwrap_or_default());
        if nulls {
            shown.extend_from_slice(b"null");
        }
        at = end;
    }
    shown.extend_from_slice(data.get(at..).unwrap_or_default());
    Some(Cow::Owned(shown))
}

fn is_list(value: Option<&RawValue>) -> bool {
    value.is_some_and(|value| value.get().starts_with('['))
}

/// The bytes that go: the list, or with it its key and the comma before that. The list borrows from `data`, so its address says
/// where it is.
fn place(data: &[u8], list: &RawValue, only_value: bool) -> Option<(usize, usize)> {
    let start = (list.get().as_ptr() as usize).checked_sub(data.as_ptr() as usize)?;
    let end = start + list.get().len();
    if only_value {
        return Some((start, end));
    }
    let key = data.get(..start)?.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end().strip_suffix(b"\"")?;
    let before = key.get(..key.iter().rposition(|byte| *byte == b'"')?)?;
    Some((before.trim_ascii_end().strip_suffix(b",")?.len(), end))
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    prompt_token_ids: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
    /// `null` is a value, too: it tells who writes.
    #[serde(borrow, default, deserialize_with = "given")]
    logprobs: Option<&'a RawValue>,
    finish_reason: Option<&'a RawValue>,
    token_ids: Option<&'a RawValue>,
    prompt_token_ids: Option<&'a RawValue>,
}

fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::super::chat::fixtures::{INCLUDE_USAGE, MANY_SCRIPTS, TOKEN_IDS, TOOL_CALL, events};
    use super::*;

    fn shown(data: &str) -> Option<String> {
        hide_ids(data.as_bytes()).map(|shown| String::from_utf8(shown.into_owned()).unwrap())
    }

    /// An event without what differs from request to request.
    fn anonymous(data: &str) -> String {
        let mut event: serde_json::Value = serde_json::from_str(data).unwrap();
        for key in ["id", "created"] {
            event.as_object_mut().unwrap().remove(key);
        }
        event.to_string()
    }

    #[test]
    fn a_recorded_answer_with_ids_reads_as_the_one_without() {
        let without: Vec<_> = events(INCLUDE_USAGE).filter(|data| *data != "[DONE]").map(anonymous).collect();
        let with: Vec<_> =
            events(TOKEN_IDS).filter(|data| *data != "[DONE]").filter_map(shown).map(|data| anonymous(&data)).collect();
        assert_eq!(with, without);
    }

    #[test]
    fn events_of_tokens_without_text_are_left_out() {
        for fixture in [TOOL_CALL, MANY_SCRIPTS] {
            for data in events(fixture).filter(|data| *data != "[DONE]") {
                let empty = data.contains(r#""delta":{},"#) && data.contains(r#""finish_reason":null"#);
                assert_eq!(shown(data).is_none(), empty, "{data}");
                assert!(!shown(data).unwrap_or_default().contains("ids\":["), "{data}");
            }
        }
    }

    #[test]
    fn an_engine_that_writes_no_nulls_loses_the_fields() {
        for (with, without) in [
            (
                r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant"}}],"prompt_token_ids":[1,2],"x":1}"#,
                r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant"}}],"x":1}"#,
            ),
            (
                r#"{"choices":[{"index":0,"delta":{"content":"a"} , "token_ids" : [1]}]}"#,
                r#"{"choices":[{"index":0,"delta":{"content":"a"} }]}"#,
            ),
            (
                r#"{"choices":[{"delta":{"content":"[1]"},"token_ids":[1],"finish_reason":"stop"}]}"#,
                r#"{"choices":[{"delta":{"content":"[1]"},"finish_reason":"stop"}]}"#,
            ),
        ] {
            assert_eq!(shown(with).as_deref(), Some(without));
        }
    }

    #[test]
    fn what_has_no_ids_keeps_its_bytes() {
        for data in [
            r#"{"choices": [ {"index":0,"delta":{},"token_ids":null} ] }"#,
            r#"{"choices":[],"usage":{"completion_tokens":1}}"#,
            r#"{"choices":[{"delta":{"content":"a"},"delta":{},"token_ids":[1]}]}"#,
            r#"{"error":{"message":"x"}}"#,
            "[DONE]",
            "garbage",
        ] {
            assert_eq!(shown(data).as_deref(), Some(data));
        }
    }

    #[test]
    fn a_finish_and_log_probabilities_are_kept_with_an_empty_delta() {
        let finish = r#"{"choices":[{"delta":{},"logprobs":null,"finish_reason":"stop","token_ids":[151645]}]}"#;
        assert_eq!(shown(finish), Some(finish.replace("[151645]", "null")));
        let logprobs = r#"{"choices":[{"delta":{},"logprobs":{"content":[]},"finish_reason":null,"token_ids":[7]}]}"#;
        assert_eq!(shown(logprobs), Some(logprobs.replace("[7]", "null")));
    }
}

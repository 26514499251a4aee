//! The shapes of chat exchanges recorded from vLLM 0.32, matched member by member.

use serde_json::{Value, json};

use super::config;
use crate::mock::{Config, events, uncut};

/// One event of each kind, from the recorded streams.
const FIRST: &str = r#"{"id":"chatcmpl-bd4e","object":"chat.completion.chunk","created":1796053088,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[151644,872],"prompt_text":null}"#;
const THOUGHT: &str = r#"{"id":"chatcmpl-bd4e","object":"chat.completion.chunk","created":1796053088,"model":"tiny","choices":[{"index":0,"delta":{"reasoning":" snag"},"logprobs":null,"finish_reason":null,"token_ids":[71802]}]}"#;
const LENGTH: &str = r#"{"id":"chatcmpl-bd4e","object":"chat.completion.chunk","created":1796053088,"model":"tiny","choices":[{"index":0,"delta":{"reasoning":" ord"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":[6013]}]}"#;
const NOTHING: &str = r#"{"id":"chatcmpl-b574","object":"chat.completion.chunk","created":1796054829,"model":"tiny","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[151657]}]}"#;
const CALL: &str = r#"{"id":"chatcmpl-b574","object":"chat.completion.chunk","created":1796054829,"model":"tiny","choices":[{"index":0,"delta":{"content":null,"tool_calls":[{"id":"chatcmpl-tool-b6f2","type":"function","index":0,"function":{"name":"get_weather"}}]},"logprobs":null,"finish_reason":null,"token_ids":[497]}]}"#;
const ARGUMENTS: &str = r#"{"id":"chatcmpl-b574","object":"chat.completion.chunk","created":1796054829,"model":"tiny","choices":[{"index":0,"delta":{"content":null,"tool_calls":[{"index":0,"function":{"arguments":"city"}}]},"logprobs":null,"finish_reason":null,"token_ids":[8926]}]}"#;
const CALLED: &str = r#"{"id":"chatcmpl-b574","object":"chat.completion.chunk","created":1796054829,"model":"tiny","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls","stop_reason":null,"token_ids":[151645]}]}"#;
const USAGE: &str = r#"{"id":"chatcmpl-b574","object":"chat.completion.chunk","created":1796054829,"model":"tiny","choices":[],"usage":{"prompt_tokens":19,"total_tokens":46,"completion_tokens":27,"completion_tokens_details":{"reasoning_tokens":0}},"system_fingerprint":"vllm-0.32.0-bfa796f9"}"#;
const EMPTY_WITH_USAGE: &str = r#"{"id":"chatcmpl-b2a4","object":"chat.completion.chunk","created":1796073636,"model":"tiny","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":null,"token_ids":[151668]}],"usage":{"prompt_tokens":15,"total_tokens":104,"completion_tokens":89,"completion_tokens_details":{"reasoning_tokens":88}}}"#;
const WHOLE: &str = r#"{"id":"chatcmpl-a902","object":"chat.completion","created":1796053106,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":null,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":" snag loaf carcin ord"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":[71802,76148,51688,6013],"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-d6296bca","usage":{"prompt_tokens":15,"total_tokens":19,"completion_tokens":4,"prompt_tokens_details":null,"completion_tokens_details":{"reasoning_tokens":4}},"prompt_logprobs":null,"prompt_token_ids":[151644],"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"#;

/// A value with everything that differs from answer to answer made the same.
fn skeleton(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(key, value)| json!([key, skeleton(value)])).collect(),
        Value::Array(list) if list.first().is_some_and(Value::is_number) => json!("ids"),
        Value::Array(list) => list.iter().map(skeleton).collect(),
        Value::String(text)
            if ["stop", "length", "tool_calls", "assistant", "function", ""].contains(&text.as_str()) =>
        {
            json!(text)
        }
        Value::String(_) => json!("text"),
        Value::Number(_) => json!(0),
        other => other.clone(),
    }
}

#[track_caller]
fn assert_shape(got: &[u8], recorded: &str) {
    let got: Value = serde_json::from_slice(&got[6..]).expect("JSON");
    let recorded: Value = serde_json::from_str(recorded).expect("JSON");
    assert_eq!(skeleton(&got), skeleton(&recorded), "{got}");
}

fn request(more: Value) -> Value {
    let mut body = json!({
        "model": "tiny", "messages": [{"role": "user", "content": "Tell me a story."}], "stream": true, "return_token_ids": true,
        "stream_options": {"include_usage": true},
    });
    more.as_object().expect("an object").iter().for_each(|(key, value)| body[key] = value.clone());
    body
}

fn stream(config: &Config, body: &Value) -> Vec<Vec<u8>> {
    events(config, body.to_string().as_bytes(), 0).expect("events")
}

#[test]
fn a_stream_with_ids_is_written_as_recorded() {
    let config = Config { family: "qwen3".to_owned(), reasoning: 9, ..config() };
    let events = stream(&config, &request(json!({"max_tokens": 3, "seed": 2})));
    for (event, recorded) in events.iter().zip([FIRST, THOUGHT, THOUGHT, LENGTH, USAGE]) {
        assert_shape(event, recorded);
    }
    assert_eq!(events.len(), 6);
}

#[test]
fn a_tool_call_with_ids_is_written_as_recorded() {
    let config = Config { family: "qwen3".to_owned(), tool_call: Some(0), ..config() };
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]);
    let body = request(json!({"tools": tools, "chat_template_kwargs": {"enable_thinking": false}}));
    let events = stream(&config, &body);
    let is = |event: &[u8], word: &str| String::from_utf8_lossy(event).contains(word);
    assert_shape(&events[0], FIRST);
    let name = events.iter().position(|event| is(event, "\"name\":\"get_weather\"")).expect("a name");
    events[1..name].iter().for_each(|event| assert_shape(event, NOTHING));
    assert_shape(&events[name], CALL);
    let finish = events.len() - 3;
    for event in &events[name + 1..finish] {
        assert_shape(event, if is(event, "arguments") { ARGUMENTS } else { NOTHING });
    }
    assert_shape(&events[finish - 1], NOTHING);
    assert_shape(&events[finish], CALLED);
    assert_shape(&events[finish + 1], USAGE);
    let ids = uncut(&config, &[], body.to_string().as_bytes()).expect("an answer").ids;
    assert_eq!((ids[0], ids[ids.len() - 2], ids[ids.len() - 1]), (151_657, 151_658, 151_645));
}

#[test]
fn usage_comes_with_events_that_say_nothing_too_and_the_closing_tag_is_no_reasoning() {
    let config = Config { family: "qwen3".to_owned(), ..config() };
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = stream(&config, &request(json!({"stream_options": options})));
    let close = events.iter().find(|event| String::from_utf8_lossy(event).contains("[151668]")).expect("the tag");
    assert_shape(close, EMPTY_WITH_USAGE);
    let usage = serde_json::from_slice::<Value>(&close[6..]).expect("JSON")["usage"].clone();
    let (all, thoughts) = (&usage["completion_tokens"], &usage["completion_tokens_details"]["reasoning_tokens"]);
    assert_eq!(all.as_u64(), thoughts.as_u64().map(|count| count + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_at_once_is_written_as_recorded() {
    let engine = super::start(Config { family: "qwen3".to_owned(), reasoning: 9, ..config() }).await;
    let mut client = super::client::Client::connect(engine.addr());
    let mut body = request(json!({"max_tokens": 4, "stream": false}));
    body.as_object_mut().expect("an object").shift_remove("stream_options");
    client.chat(&[], &body);
    let recorded: Value = serde_json::from_str(WHOLE).expect("JSON");
    assert_eq!(skeleton(&client.reply().json()), skeleton(&recorded));
}

use serde_json::{Value, json};

use super::client::{BodyEnd, Client};
use super::{config, start};
use crate::mock::{Config, ReasoningField, Wire, uncut};

fn body(more: Value) -> Value {
    let mut body =
        json!({"model": "tiny", "stream": true, "messages": [{"role": "user", "content": "Tell me a story."}]});
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

async fn events(config: Config, more: Value) -> Vec<String> {
    let engine = start(config).await;
    let mut client = Client::connect(engine.addr());
    client.chat(&[("x-request-id", "b4a7")], &body(more));
    let reply = client.reply();
    assert_eq!((reply.status, reply.end), (200, BodyEnd::Whole), "{}", String::from_utf8_lossy(&reply.body));
    reply.events()
}

const HEAD: &str =
    "{\"id\":\"chatcmpl-b4a7\",\"object\":\"chat.completion.chunk\",\"created\":1796053088,\"model\":\"tiny\",";

#[tokio::test(flavor = "multi_thread")]
async fn vllm_events_are_written_as_recorded_from_vllm_0_32() {
    let more = json!({"max_tokens": 4, "stream_options": {"include_usage": true}});
    let config = Config { reasoning: 9, ..config() };
    let text = uncut(&config, &[], body(more.clone()).to_string().as_bytes()).expect("an answer").reasoning;
    let prompt = uncut(&config, &[], body(more.clone()).to_string().as_bytes()).expect("an answer").prompt_tokens;
    let events = events(config, more).await;
    let quoted = |at: usize| serde_json::to_string(&text[at]).expect("a string");
    assert_eq!(
        events[0],
        format!(
            "{HEAD}\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\
             \"finish_reason\":null}}],\"prompt_token_ids\":null,\"prompt_text\":null}}"
        )
    );
    assert_eq!(
        events[1],
        format!(
            "{HEAD}\"choices\":[{{\"index\":0,\"delta\":{{\"reasoning\":{}}},\"logprobs\":null,\"finish_reason\":null,\
             \"token_ids\":null}}]}}",
            quoted(0)
        )
    );
    assert_eq!(
        events[4],
        format!(
            "{HEAD}\"choices\":[{{\"index\":0,\"delta\":{{\"reasoning\":{}}},\"logprobs\":null,\"finish_reason\":\"length\",\
             \"stop_reason\":null,\"token_ids\":null}}]}}",
            quoted(3)
        )
    );
    assert_eq!(
        events[5],
        format!(
            "{HEAD}\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":4,\
             \"completion_tokens_details\":{{\"reasoning_tokens\":4}}}},\"system_fingerprint\":\"vllm-0.32.0-mock\"}}",
            prompt + 4
        )
    );
    assert_eq!(events[6..], ["[DONE]"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn vllm_stops_with_an_empty_delta_and_the_fingerprint_comes_last() {
    let events = events(config(), json!({})).await;
    let finish = &events[events.len() - 2];
    assert_eq!(
        *finish,
        format!(
            "{HEAD}\"choices\":[{{\"index\":0,\"delta\":{{}},\"logprobs\":null,\"finish_reason\":\"stop\",\"stop_reason\":null,\
             \"token_ids\":null}}],\"system_fingerprint\":\"vllm-0.32.0-mock\"}}"
        )
    );
    assert_eq!(events.iter().filter(|event| event.contains("system_fingerprint")).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_text_may_come_with_the_finish_reason() {
    let config = Config { finish_with_text: true, ..config() };
    let last = uncut(&config, &[], body(json!({})).to_string().as_bytes()).expect("an answer").content.pop();
    let events = events(config, json!({})).await;
    let finish: Value = serde_json::from_str(&events[events.len() - 2]).expect("JSON");
    assert_eq!(finish["choices"][0]["finish_reason"], "stop");
    assert_eq!(finish["choices"][0]["delta"]["content"].as_str(), last.as_deref());
}

#[tokio::test(flavor = "multi_thread")]
async fn continuous_usage_counts_up_with_every_event() {
    let options = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    for wire in [Wire::Vllm, Wire::Sglang] {
        let events = events(Config { wire, ..config() }, options.clone()).await;
        let usages: Vec<Value> = events[..events.len() - 1]
            .iter()
            .map(|event| serde_json::from_str::<Value>(event).expect("JSON")["usage"].clone())
            .collect();
        let count: Vec<_> = usages.iter().map(|usage| usage["completion_tokens"].as_u64().expect("a number")).collect();
        // On vLLM the tag that ends thinking and the end token count, as recorded.
        let want = match wire {
            Wire::Vllm => [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 11],
            Wire::Sglang => [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9],
        };
        assert_eq!(count, want, "role, nine tokens, finish, usage");
        let reasoning = |usage: &Value| match wire {
            Wire::Vllm => usage["completion_tokens_details"]["reasoning_tokens"].as_u64(),
            Wire::Sglang => usage["reasoning_tokens"].as_u64(),
        };
        let reasoning: Vec<_> = usages.iter().map(|usage| reasoning(usage).expect("a number")).collect();
        assert_eq!(reasoning, [0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        assert!(usages.iter().all(|usage| usage["total_tokens"].as_u64()
            == usage["prompt_tokens"].as_u64().zip(usage["completion_tokens"].as_u64()).map(|(a, b)| a + b)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_include_usage_there_is_no_usage() {
    for wire in [Wire::Vllm, Wire::Sglang] {
        let events = events(Config { wire, ..config() }, json!({})).await;
        assert!(events.iter().all(|event| !event.contains("usage")));
        assert_eq!(events.len(), 1 + 9 + 1 + 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_events_have_a_reasoning_field_always_and_a_finish_of_their_own() {
    let more = json!({"rid": "r-1", "max_tokens": 5, "stream_options": {"include_usage": true}});
    let config = Config { wire: Wire::Sglang, cached_tokens: Some(2), ..config() };
    let answer = uncut(&config, &[], body(more.clone()).to_string().as_bytes()).expect("an answer");
    let events = events(config, more).await;
    let head = "{\"id\":\"r-1\",\"object\":\"chat.completion.chunk\",\"created\":1796053088,\"model\":\"tiny\",";
    let chunk = |delta: &str, finish: &str| {
        format!(
            "{head}\"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\"logprobs\":null,\"finish_reason\":{finish},\
             \"matched_stop\":null}}]}}"
        )
    };
    assert_eq!(events[0], chunk("\"reasoning_content\":null,\"role\":\"assistant\",\"content\":\"\"", "null"));
    let thought = serde_json::to_string(&answer.reasoning[0]).expect("a string");
    assert_eq!(events[1], chunk(&format!("\"reasoning_content\":{thought}"), "null"));
    assert_eq!(events[4], chunk("\"reasoning_content\":null,\"content\":\"\\n\\n\"", "null"));
    assert_eq!(events[6], chunk("\"reasoning_content\":null", "\"length\""));
    let prompt = answer.prompt_tokens;
    let usage = format!(
        "{head}\"choices\":[],\"usage\":{{\"prompt_tokens\":{prompt},\"total_tokens\":{},\"completion_tokens\":5,\
         \"prompt_tokens_details\":{{\"cached_tokens\":2}},\"reasoning_tokens\":3}}}}",
        prompt + 5
    );
    assert_eq!(events[7..], [usage, "[DONE]".to_owned()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_releases_shapes_can_be_had() {
    let both = Config { reasoning_field: Some(ReasoningField::Both), ..config() };
    let event: Value = serde_json::from_str(&events(both, json!({})).await[1]).expect("JSON");
    let delta = &event["choices"][0]["delta"];
    assert!(delta["reasoning"].is_string() && delta["reasoning"] == delta["reasoning_content"]);
    let old = Config { reasoning_field: Some(ReasoningField::ReasoningContent), ..config() };
    let event: Value = serde_json::from_str(&events(old, json!({})).await[1]).expect("JSON");
    assert_eq!(
        event["choices"][0]["delta"].as_object().expect("an object").keys().collect::<Vec<_>>(),
        ["reasoning_content"]
    );
    let nulls = Config { wire: Wire::Sglang, all_nulls: true, ..config() };
    for event in &events(nulls, json!({})).await[..11] {
        let event: Value = serde_json::from_str(event).expect("JSON");
        let delta = event["choices"][0]["delta"].as_object().expect("an object");
        assert!(
            delta.contains_key("tool_calls")
                && delta.contains_key("role")
                && event.get("usage").is_some_and(Value::is_null)
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn escaped_events_say_the_same_in_ascii() {
    let plain = Config { content: 60, reasoning: 30, ..config() };
    let ascii = Config { ascii: true, ..plain.clone() };
    let (plain, ascii) = (events(plain, json!({})).await, events(ascii, json!({})).await);
    assert!(ascii.concat().is_ascii() && !plain.concat().is_ascii());
    let read = |events: &[String]| -> Vec<Value> {
        events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect()
    };
    assert_eq!(read(&plain), read(&ascii));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_tokens_can_share_an_event_but_never_two_kinds() {
    let events = events(Config { tokens_per_event: 4, ..config() }, json!({})).await;
    let kinds: Vec<_> = events[1..events.len() - 2].iter().map(|event| event.contains("\"reasoning\"")).collect();
    assert_eq!(kinds, [true, false, false], "three tokens of reasoning, four and two of content");
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_come_in_pieces_when_there_are_tools() {
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": {}}}]);
    for wire in [Wire::Vllm, Wire::Sglang] {
        let config = Config { wire, tool_call: Some(2), ..config() };
        let answer = uncut(&config, &[], body(json!({"tools": tools})).to_string().as_bytes()).expect("an answer");
        let events = events(config, json!({"tools": tools})).await;
        let chunks: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
        let calls: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
            .filter(|call| call.is_object())
            .collect();
        assert_eq!(calls[0]["function"]["name"], "get_weather");
        assert!(
            calls[0]["id"].is_string() && calls[1..].iter().all(|call| !call["id"].is_string() && call["index"] == 0)
        );
        let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
        assert_eq!(Some(("get_weather".to_owned(), arguments)), answer.tool_call);
        assert_eq!(answer.content.len(), 2);
        assert_eq!(chunks.last().map(|chunk| &chunk["choices"][0]["finish_reason"]), Some(&json!("tool_calls")));
    }
    let answer = uncut(&Config { tool_call: Some(2), ..config() }, &[], body(json!({})).to_string().as_bytes())
        .expect("an answer");
    assert_eq!((answer.tool_call, answer.content.len()), (None, 6), "no tools, no call");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_choices_are_interleaved_and_finish_each() {
    for wire in [Wire::Vllm, Wire::Sglang] {
        let events = events(Config { wire, ..config() }, json!({"n": 2})).await;
        let chunks: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
        let text = |index: u64| -> String {
            let of = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index);
            of.filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect()
        };
        assert_ne!(text(0), text(1));
        assert_eq!(chunks.iter().filter(|chunk| chunk["choices"][0]["finish_reason"] == "stop").count(), 2);
        let ids: std::collections::BTreeSet<_> = chunks.iter().map(|chunk| chunk["id"].to_string()).collect();
        assert_eq!(ids.len(), if wire == Wire::Vllm { 1 } else { 2 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_stream_the_whole_answer_comes_at_once() {
    for wire in [Wire::Vllm, Wire::Sglang] {
        let config = Config { wire, ..config() };
        let mut body = body(json!({}));
        body["stream"] = json!(false);
        let answer = uncut(&config, &[], body.to_string().as_bytes()).expect("an answer");
        let engine = start(config).await;
        let mut client = Client::connect(engine.addr());
        client.chat(&[], &body);
        let whole = client.reply().json();
        let message = &whole["choices"][0]["message"];
        assert_eq!(message["content"], answer.content_text());
        let reasoning = if wire == Wire::Vllm { &message["reasoning"] } else { &message["reasoning_content"] };
        assert_eq!(*reasoning, answer.reasoning_text());
        assert_eq!(whole["usage"]["completion_tokens"], if wire == Wire::Vllm { 11 } else { 9 });
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn lengths_thinking_and_the_limit_are_honoured() {
    let answer = |more: Value, headers: &[(&str, &str)]| {
        let answer = uncut(&config(), headers, body(more).to_string().as_bytes()).expect("an answer");
        (answer.reasoning.len(), answer.content.len(), answer.finish)
    };
    assert_eq!(answer(json!({}), &[]), (3, 6, "stop"));
    assert_eq!(answer(json!({"mock": {"reasoning": 1, "content": 2}}), &[]), (1, 2, "stop"));
    assert_eq!(answer(json!({}), &[("Mock-Content", "11"), ("mock-reasoning", "0")]), (0, 11, "stop"));
    assert_eq!(answer(json!({"chat_template_kwargs": {"enable_thinking": false}}), &[]), (0, 6, "stop"));
    assert_eq!(answer(json!({"chat_template_kwargs": {"thinking": false}}), &[]), (0, 6, "stop"));
    assert_eq!(answer(json!({"max_tokens": 6}), &[]), (3, 2, "length"));
    assert_eq!(answer(json!({"max_tokens": 99, "max_completion_tokens": 2}), &[]), (2, 0, "length"));
    assert_eq!(answer(json!({"max_tokens": 10}), &[]), (3, 6, "length"), "nine and the tag, but no end token");
    assert_eq!(answer(json!({"max_tokens": 11}), &[]), (3, 6, "stop"));
    assert_eq!(answer(json!({"temperature": 1.5}), &[]), (3, 6, "stop"));
}

#[test]
fn the_text_follows_from_messages_and_seed_and_nothing_else() {
    let text = |config: &Config, more: Value| {
        uncut(config, &[], body(more).to_string().as_bytes()).expect("an answer").content_text()
    };
    let base = text(&config(), json!({}));
    assert_eq!(
        base,
        text(&Config { name: "other".to_owned(), ..config() }, json!({"model": "m", "top_p": 0.5, "user": "u"}))
    );
    assert_ne!(base, text(&config(), json!({"seed": 1})));
    assert_ne!(base, text(&Config { seed: 1, ..config() }, json!({})));
    assert_ne!(base, text(&config(), json!({"messages": [{"role": "user", "content": "Another."}]})));
}

use serde_json::{Value, json};

use super::client::{Client, Reply};
use super::{config, start};
use crate::mock::{Config, Ledger, Running, Wire, uncut};

fn first() -> Value {
    json!({
        "model": "m", "seed": 5, "stream": true, "max_tokens": 40, "temperature": 0.5,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        "chat_template_kwargs": {"style": "brief"},
        "messages": [{"role": "user", "content": "Hi"}],
    })
}

fn send(engine: &Running, body: &Value) -> Reply {
    let mut client = Client::connect(engine.addr());
    client.chat(&[], body);
    client.reply()
}

/// The right continuation of `first` after three tokens of reasoning and two of content.
fn right(config: &Config) -> Value {
    let answer = uncut(config, &[], first().to_string().as_bytes()).expect("an answer");
    let text = format!("<think>{}</think>{}", answer.reasoning_text(), answer.content[..2].concat());
    let mut body = first();
    body["messages"].as_array_mut().expect("a list").push(json!({"role": "assistant", "content": text}));
    body["continue_final_message"] = json!(true);
    body["add_generation_prompt"] = json!(false);
    // On vLLM the tag that ends thinking is a token, too.
    body["max_tokens"] = json!(if config.wire == Wire::Vllm { 34 } else { 35 });
    body["chat_template_kwargs"] = json!({"style": "brief", "thinking": false});
    body["rid"] = json!("fresh");
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_continuation_passes_and_every_single_mistake_is_named() {
    let config = Config { strict: true, ..config() };
    let engine = start(config.clone()).await;
    assert_eq!(send(&engine, &first()).status, 200);
    assert_eq!(send(&engine, &right(&config)).status, 200);
    let key = |key: &str, value: Value| {
        let mut body = right(&config);
        if value == json!("gone") {
            body.as_object_mut().expect("an object").shift_remove(key);
        } else {
            body[key] = value;
        }
        body
    };
    let mut call = right(&config);
    call["messages"][1]["tool_calls"] = json!([]);
    for (body, words) in [
        (key("seed", json!("gone")), "not the beginning of this engine's own"),
        (key("model", json!("gone")), "`model` of the first request is lost"),
        (key("temperature", json!(0.7)), "`temperature` is not what the first request had"),
        (key("top_p", json!(1)), "`top_p` was not in the first request"),
        (key("max_tokens", json!(40)), "`max_tokens` must be 40 minus the 6 tokens written, and is 40"),
        (key("max_tokens", json!(35)), "`max_tokens` must be 40 minus the 6 tokens written, and is 35"),
        (key("max_tokens", json!("gone")), "`max_tokens` of the first request is lost"),
        (key("max_completion_tokens", json!(30)), "`max_completion_tokens` was not in the first request"),
        (
            key("stream_options", json!({"include_usage": true})),
            "`stream_options.continuous_usage_stats` of the first request is lost",
        ),
        (key("stream_options", json!({"continuous_usage_stats": true})), "`stream_options.include_usage: true`"),
        (key("stream", json!(false)), "Stream options can only be defined"),
        (
            key("chat_template_kwargs", json!({"thinking": false})),
            "`chat_template_kwargs.style` of the first request is lost",
        ),
        (
            key("chat_template_kwargs", json!({"style": "brief", "thinking": false, "enable_thinking": false})),
            "exactly one key",
        ),
        (key("chat_template_kwargs", json!({"style": "brief", "no_thinking": true})), "is not this family's switch"),
        (key("chat_template_kwargs", json!({"style": "brief", "thinking": true})), "must only be set to off"),
        (key("response_format", json!({"type": "json_object"})), "guided decoding"),
        (key("n", json!(2)), "several choices"),
        (call, "must not have `tool_calls`"),
    ] {
        let reply = send(&engine, &body);
        let message = reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(reply.status == 400 && message.contains(words), "{words}: {} {message}", reply.status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_of_another_answer_is_refused() {
    let config = Config { strict: true, ..config() };
    let engine = start(config.clone()).await;
    let mut body = right(&config);
    body["seed"] = json!(6);
    let reply = send(&engine, &body);
    assert!(reply.status == 400 && reply.text().contains("not the beginning of this engine's own"));
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_must_not_be_switched_off_while_thinking() {
    for wire in [Wire::Vllm, Wire::Sglang] {
        let config = Config { strict: true, wire, ..config() };
        let engine = start(config.clone()).await;
        let thoughts = uncut(&config, &[], first().to_string().as_bytes()).expect("an answer").reasoning[..2].concat();
        let mut body = right(&config);
        body["messages"][1] = json!({"role": "assistant", "content": format!("<think>{thoughts}")});
        body["max_tokens"] = json!(38);
        let reply = send(&engine, &body);
        assert!(reply.status == 400 && reply.text().contains("thinking is switched off"), "{}", reply.text());
        body["chat_template_kwargs"] = json!({"style": "brief"});
        assert_eq!(send(&engine, &body).status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn engines_with_one_ledger_know_each_others_first_legs() {
    let config = Config { strict: true, ledger: Some(Ledger::default()), ..config() };
    let (one, other) = (start(config.clone()).await, start(config.clone()).await);
    let reply = send(&other, &right(&config));
    assert!(reply.status == 400 && reply.text().contains("not those of any request seen"));
    assert_eq!(send(&one, &first()).status, 200);
    assert_eq!(send(&other, &right(&config)).status, 200);
    let mut respaced = right(&config);
    respaced["temperature"] = json!(1);
    assert!(send(&other, &respaced).text().contains("`temperature` is not what the first request had"));
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_messages_must_be_untouched_byte_for_byte() {
    let config = Config { strict: true, ledger: Some(Ledger::default()), ..config() };
    let engine = start(config.clone()).await;
    assert_eq!(send(&engine, &first()).status, 200);
    let body = right(&config).to_string().replace("{\"role\":\"user\"", "{ \"role\":\"user\"");
    let mut client = Client::connect(engine.addr());
    client.post("/v1/chat/completions", &[], &body);
    assert!(client.reply().text().contains("not those of any request seen"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sglang_needs_a_fresh_rid_and_reasoning_in_the_content() {
    let config = Config { strict: true, wire: Wire::Sglang, ..config() };
    let engine = start(config.clone()).await;
    let mut request = first();
    request["rid"] = json!("one");
    assert_eq!(send(&engine, &request).status, 200);
    let mut body = right(&config);
    assert_eq!(send(&engine, &body).status, 200);
    body["rid"] = json!("one");
    assert!(send(&engine, &body).text().contains("needs a fresh one"));
    body["rid"] = json!("two");
    body["messages"][1]["reasoning_content"] = json!("x");
    assert!(send(&engine, &body).text().contains("SGLang discards reasoning"));
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen3_on_vllm_needs_two_fields_and_then_passes() {
    let config = Config { strict: true, family: "qwen3.6".to_owned(), ..config() };
    let engine = start(config.clone()).await;
    assert_eq!(send(&engine, &first()).status, 200);
    let mut body = right(&config);
    body["chat_template_kwargs"] = json!({"style": "brief", "enable_thinking": false});
    assert!(send(&engine, &body).text().contains("separate fields"));
    let answer = uncut(&config, &[], first().to_string().as_bytes()).expect("an answer");
    let content = answer.content[..2].concat();
    body["messages"][1] = json!({"role": "assistant", "reasoning": answer.reasoning_text(), "content": content});
    let reply = send(&engine, &body);
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_continuous_usage_the_limit_must_only_be_less() {
    let config = Config { strict: true, ..config() };
    let engine = start(config.clone()).await;
    let mut request = first();
    request["stream_options"] = json!({"include_usage": true});
    assert_eq!(send(&engine, &request).status, 200);
    let mut body = right(&config);
    body["stream_options"] = json!({"include_usage": true});
    for (limit, status) in [(39, 200), (20, 200), (40, 400), (41, 400)] {
        body["max_tokens"] = json!(limit);
        assert_eq!(send(&engine, &body).status, status, "{limit}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_go_down_to_nothing_and_never_up() {
    let config = Config { strict: true, ..config() };
    let engine = start(config.clone()).await;
    let mut request = first();
    request["min_tokens"] = json!(10);
    request["thinking_token_budget"] = json!(-1);
    request["max_completion_tokens"] = json!(50);
    assert_eq!(send(&engine, &request).status, 200);
    let mut body = right(&config);
    body["min_tokens"] = json!(5);
    body["thinking_token_budget"] = json!(-1);
    body["max_completion_tokens"] = json!(44);
    for (key, value, words) in [
        ("min_tokens", json!(5), ""),
        ("min_tokens", json!(10), ""),
        ("min_tokens", json!(0), ""),
        ("min_tokens", json!(11), "`min_tokens` must be from 0 to 10, and is 11"),
        ("min_tokens", json!(-1), "`min_tokens` must be from 0 to 10, and is -1"),
        ("min_tokens", json!(null), "`min_tokens` is not what the first request had"),
        ("thinking_token_budget", json!(0), "`thinking_token_budget` must be from 0 to -1, and is 0"),
    ] {
        let mut body = body.clone();
        body[key] = value;
        let reply = send(&engine, &body);
        assert_eq!(reply.status, if words.is_empty() { 200 } else { 400 }, "{words}: {}", reply.text());
        assert!(reply.text().contains(words), "{words}: {}", reply.text());
    }
    body.as_object_mut().expect("an object").shift_remove("min_tokens");
    assert!(send(&engine, &body).text().contains("`min_tokens` of the first request is lost"));
    let engine = start(config.clone()).await;
    assert_eq!(send(&engine, &first()).status, 200);
    let mut body = right(&config);
    body["thinking_token_budget"] = json!(0);
    assert!(send(&engine, &body).text().contains("`thinking_token_budget` was not in the first request"));
}

//! Completions, tokens, and the endpoints around them.

use serde_json::{Value, json};

use super::client::Client;
use super::{config, start};
use crate::mock::fault::Rule;
use crate::mock::tokens::{decode, encode, ends_inside_character};
use crate::mock::{
    Answer, Config, End, Ledger, Leg, completion_events, generate_events, reply, uncut, uncut_completion,
};

fn scale_out() -> Config {
    Config { scale_out: true, reasoning: 8, content: 16, family: "qwen3".to_owned(), ..config() }
}

fn chat() -> Value {
    json!({
        "model": "tiny", "messages": [{"role": "user", "content": "Tell me a story."}], "stream": true, "temperature": 0,
        "seed": 4, "stream_options": {"include_usage": true},
    })
}

fn answer(config: &Config, body: &Value) -> Answer {
    uncut(config, &[], body.to_string().as_bytes()).expect("an answer")
}

fn completion(config: &Config, body: &Value) -> Answer {
    uncut_completion(config, &[], body.to_string().as_bytes()).unwrap_or_else(|reason| panic!("{reason}: {body}"))
}

fn ask(config: &Config, path: &str, body: &Value) -> Result<Value, (u16, String)> {
    let reply = reply(config, path, body.to_string().as_bytes())?;
    Ok(serde_json::from_slice(&reply).expect("JSON"))
}

fn chunks(events: &[Vec<u8>]) -> Vec<Value> {
    events.iter().filter_map(|event| serde_json::from_slice(&event[6..]).ok()).collect()
}

fn completion_chunks(config: &Config, body: &Value) -> Vec<Value> {
    chunks(&completion_events(config, body.to_string().as_bytes(), 0).expect("events"))
}

/// The names of all members, nested, in their order.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(key, value)| json!([key, shape(value)])).collect(),
        Value::Array(list) if list.iter().any(Value::is_object) => list.iter().map(shape).collect(),
        Value::Array(_) => json!("list"),
        Value::Null => Value::Null,
        other => json!(if other.is_string() { "text" } else { "number" }),
    }
}

#[test]
fn a_completion_of_a_chats_prompt_is_the_chats_answer_with_its_tags() {
    let config = scale_out();
    let whole = answer(&config, &chat());
    let body = json!({"model": "tiny", "prompt": whole.prompt_ids, "max_tokens": 500, "stream": true, "seed": 4});
    let done = completion(&config, &body);
    assert_eq!(done.ids, whole.ids);
    assert_eq!(done.content_text(), format!("{}</think>{}", whole.reasoning_text(), whole.content_text()));
    assert_eq!((done.prompt_tokens, done.completion_tokens), (whole.prompt_tokens, whole.completion_tokens));
}

#[test]
fn completion_events_are_written_as_recorded_from_vllm_0_32() {
    let body = json!({
        "model": "tiny", "prompt": [151_644, 97, 98], "temperature": 0, "max_tokens": 4, "stream": true, "return_token_ids": true,
        "stream_options": {"include_usage": true},
    });
    let config = Config { created: Some(1_796_053_217), name: "d6296bca".to_owned(), ..scale_out() };
    let events = completion_events(&config, body.to_string().as_bytes(), 0).expect("events");
    let recorded = "data: {\"id\":\"cmpl-99a9a3cffd5e830a\",\"object\":\"text_completion\",\"created\":1796053217,\"model\":\"tiny\",\
                    \"choices\":[{\"index\":0,\"text\":\" loaf\",\"logprobs\":null,\"finish_reason\":null,\"stop_reason\":null,\
                    \"prompt_token_ids\":null,\"token_ids\":[76148]}]}\n\n";
    let done = completion(&config, &body);
    let mut want: Value = serde_json::from_str(&recorded[6..]).expect("JSON");
    let got = chunks(&events);
    want["id"] = got[0]["id"].clone();
    want["choices"][0]["text"] = got[1]["choices"][0]["text"].clone();
    want["choices"][0]["token_ids"] = json!([done.ids[1]]);
    assert_eq!(String::from_utf8(events[1].clone()).expect("text"), format!("data: {want}\n\n"));
    assert_eq!(got[0]["choices"][0]["prompt_token_ids"], json!([151_644, 97, 98]));
    assert_eq!(got[3]["choices"][0]["finish_reason"], "length");
    let usage = json!({"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4});
    assert_eq!((&got[4]["usage"], &got[4]["system_fingerprint"]), (&usage, &json!("vllm-0.32.0-d6296bca")));
    assert_eq!(events.len(), 6, "four tokens, usage, [DONE]");
}

#[test]
fn completions_without_a_limit_have_sixteen_tokens_and_events_for_tokens_without_text() {
    let config = Config { content: 60, ..scale_out() };
    let body = json!({"model": "tiny", "prompt": "Once upon a time", "stream": true});
    let events = completion_chunks(&config, &body);
    assert_eq!(events.len(), 16);
    let long = json!({"model": "tiny", "prompt": "Once upon a time", "stream": true, "max_tokens": 500});
    let events = completion_chunks(&config, &long);
    assert!(
        events.iter().filter(|event| event["choices"][0]["text"] == "").count() > 1,
        "half characters, the end token"
    );
    assert!(events.iter().all(|event| event["choices"][0]["token_ids"].is_null()));
}

#[test]
fn a_completion_goes_on_at_every_cut_outside_a_character_by_ids_and_by_text() {
    let config = Config { content: 40, ..scale_out() };
    for seed in 0..8 {
        let body =
            json!({"model": "tiny", "prompt": "The old lighthouse", "max_tokens": 200, "stream": true, "seed": seed});
        let whole = completion(&config, &body);
        for count in 0..whole.ids.len() {
            let ids = [&whole.prompt_ids[..], &whole.ids[..count]].concat();
            let text = decode(&ids, false);
            if ends_inside_character(&text) {
                let mut next = body.clone();
                next["prompt"] = json!(ids);
                assert!(completion(&config, &next).content_text().starts_with("The old lighthouse"));
                continue;
            }
            let mut by_ids = body.clone();
            by_ids["prompt"] = json!(ids);
            let rest = completion(&config, &by_ids);
            assert_eq!((&rest.ids[..], rest.prompt_tokens), (&whole.ids[count..], ids.len() as u64));
            let mut by_text = body.clone();
            by_text["prompt"] = json!(String::from_utf8(text.clone()).expect("text"));
            let both = String::from_utf8(text).expect("text") + &completion(&config, &by_text).content_text();
            assert_eq!(both, format!("The old lighthouse{}", whole.content_text()));
        }
    }
}

#[test]
fn stop_strings_hold_back_text_of_completions_too() {
    let config = Config { content: 40, ..scale_out() };
    let mut body = json!({"model": "tiny", "prompt": "The sea", "max_tokens": 200, "stream": true});
    let whole = completion(&config, &body);
    body["stop"] = json!(["never so", whole.content[6].trim()]);
    let events = completion_chunks(&config, &body);
    let last = &events[events.len() - 1]["choices"][0];
    assert_eq!((&last["finish_reason"], &last["stop_reason"]), (&json!("stop"), &body["stop"][1]));
    let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().expect("text")).collect();
    let before = whole.content_text();
    assert_eq!(text, before[..before.find(whole.content[6].trim()).expect("it comes")]);
    assert_eq!(events[0]["choices"][0]["text"], "");
}

#[test]
fn what_completions_refuse_is_said_in_the_recorded_words() {
    let refused = |more: Value| {
        let mut body = json!({"model": "tiny"});
        more.as_object().expect("an object").iter().for_each(|(key, value)| body[key] = value.clone());
        completion_events(&scale_out(), body.to_string().as_bytes(), 0).expect_err("a refusal").1
    };
    assert_eq!(refused(json!({"prompt": []})), "You must pass at least one prompt");
    assert_eq!(refused(json!({"prompt": [999_999]})), "Token id 999999 is out of vocabulary");
    let empty = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)";
    assert_eq!((refused(json!({})), refused(json!({"prompt": ""}))), (empty.to_owned(), empty.to_owned()));
    let options = "Stream options can only be defined when `stream=True`. (parameter=stream_options)";
    assert_eq!(refused(json!({"prompt": "x", "stream_options": {"include_usage": true}})), options);
    assert!(
        refused(json!({"prompt": "x", "max_tokens": 200_000})).starts_with("max_tokens=200000 cannot be greater than")
    );
}

#[test]
fn text_and_messages_are_tokenized_as_recorded_and_ids_come_back_as_text() {
    let config = scale_out();
    let text = "<|im_start|>user\nTell me a story.<|im_end|>\n";
    let body = json!({"model": "tiny", "prompt": text, "add_special_tokens": false, "return_token_strs": true});
    let tokens = ask(&config, "/tokenize", &body).expect("tokens");
    assert_eq!(
        tokens.as_object().expect("an object").keys().collect::<Vec<_>>(),
        ["count", "max_model_len", "tokens", "token_strs"]
    );
    assert_eq!((&tokens["token_strs"][0], &tokens["token_strs"][2]), (&json!("<|im_start|>"), &json!("Ċ")));
    assert_eq!(tokens["count"], tokens["tokens"].as_array().expect("a list").len());
    let back = ask(&config, "/detokenize", &json!({"model": "tiny", "tokens": tokens["tokens"]})).expect("text");
    assert_eq!(back, json!({"prompt": text}));
    let chat_tokens =
        ask(&config, "/tokenize", &json!({"model": "tiny", "messages": chat()["messages"]})).expect("tokens");
    assert_eq!(chat_tokens["tokens"], json!(answer(&config, &chat()).prompt_ids));
    assert_eq!(chat_tokens["token_strs"], Value::Null);
    let no_header = json!({"messages": chat()["messages"], "add_generation_prompt": false});
    assert_eq!(ask(&config, "/tokenize", &no_header).expect("tokens")["tokens"], json!(encode(text)));
    assert_eq!(ask(&config, "/detokenize", &json!({"tokens": [999_999]})), Ok(json!({"prompt": ""})));
    assert_eq!(ask(&config, "/detokenize", &json!({"tokens": [0xe7]})), Ok(json!({"prompt": "\u{fffd}"})));
    assert_eq!(ask(&config, "/v1/tokenize", &json!({"prompt": "x"})), Err((404, "Not Found".to_owned())));
}

#[test]
fn a_continued_message_is_tokenized_as_it_is_continued() {
    let config = scale_out();
    let whole = answer(&config, &chat());
    let mut body = chat();
    body["messages"].as_array_mut().expect("a list").push(json!({
        "role": "assistant", "reasoning": whole.reasoning_text(), "content": whole.content[..3].concat(),
    }));
    body["continue_final_message"] = json!(true);
    body["add_generation_prompt"] = json!(false);
    body.as_object_mut().expect("an object").shift_remove("stream_options");
    let tokens = ask(&config, "/tokenize", &body).expect("tokens")["tokens"].clone();
    let all = [&whole.prompt_ids[..], &whole.ids[..]].concat();
    let count = tokens.as_array().expect("a list").len();
    assert_eq!(tokens, json!(all[..count]));
    assert_eq!(answer(&config, &body).ids, all[count..]);
}

#[test]
fn scale_out_endpoints_say_403_until_they_are_enabled() {
    let config = Config { scale_out: false, ..scale_out() };
    for path in ["/v1/chat/completions/render", "/v1/chat/completions/derender", "/inference/v1/generate"] {
        let (status, words) = ask(&config, path, &chat()).expect_err("a refusal");
        assert_eq!(status, 403);
        assert_eq!(
            words,
            "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
        );
    }
}

#[test]
fn a_rendered_request_has_the_recorded_shape_and_brings_the_same_tokens() {
    let config = scale_out();
    let mut body = chat();
    body["max_tokens"] = json!(6);
    body.as_object_mut().expect("an object").shift_remove("seed");
    let rendered = ask(&config, "/v1/chat/completions/render", &body).expect("rendered");
    // Recorded from vLLM 0.32, with shorter ids.
    let recorded: Value = serde_json::from_str(
        r#"{"request_id":"chatcmpl-a7f1dcfd199d256b","token_ids":[151644],"token_offsets":null,"features":null,"content_parts":null,
        "sampling_params":{"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":0.0,"stop":[],
        "stop_token_ids":[],"max_tokens":6,"skip_special_tokens":false,"output_kind":1,"skip_clone":true,"bad_words":[],
        "skip_reading_prefix_cache":false},"model":"tiny","reasoning_ended":false,"reasoning_parser_kwargs":{"chat_template_kwargs":
        {"cohere_format":"cmd4","add_generation_prompt":true,"continue_final_message":false}},"return_token_ids":null,"output_mode":
        "tokens","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":false},"cache_salt":null,"priority":0,
        "kv_transfer_params":null,"ec_transfer_params":null}"#,
    )
    .expect("JSON");
    // A flag is neither a text nor a number; all of them are here.
    assert_eq!(shape(&rendered), shape(&recorded));
    assert_eq!(rendered["token_ids"], json!(answer(&config, &body).prompt_ids));
    let mut closed = body.clone();
    closed["chat_template_kwargs"] = json!({"enable_thinking": false});
    let closed = ask(&config, "/v1/chat/completions/render", &closed).expect("rendered");
    assert_eq!(closed["reasoning_ended"], true);
    let events = generate_events(&config, rendered.to_string().as_bytes(), 0).expect("events");
    let ids: Vec<Value> =
        chunks(&events).iter().filter_map(|event| event["choices"][0]["token_ids"].get(0).cloned()).collect();
    assert_eq!(json!(ids), json!(answer(&config, &body).ids));
}

#[test]
fn token_events_have_the_recorded_shape() {
    let config = scale_out();
    let prompt = answer(&config, &chat()).prompt_ids;
    let body = json!({
        "model": "tiny", "token_ids": prompt, "sampling_params": {"temperature": 0, "max_tokens": 2, "seed": 4}, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let got = chunks(&generate_events(&config, body.to_string().as_bytes(), 0).expect("events"));
    let recorded = [
        r#"{"request_id":"generate-tokens-980d","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":null,
        "stop_reason":null,"token_ids":[71802],"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}]}"#,
        r#"{"request_id":"generate-tokens-980d","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":"length",
        "stop_reason":null,"token_ids":[6013],"routed_experts":null,"sampling_mask":null,"weight_versions":[{"version":"default",
        "start":0,"end":4}],"logprobs":null}]}"#,
        r#"{"request_id":"generate-tokens-980d","usage":{"prompt_tokens":15,"total_tokens":19,"completion_tokens":4},
        "output_mode":"tokens","choices":[]}"#,
    ];
    for (got, recorded) in got.iter().zip(recorded) {
        assert_eq!(shape(got), shape(&serde_json::from_str(recorded).expect("JSON")));
    }
    assert_eq!(got.len(), 3);
    let refused = |body: Value| generate_events(&config, body.to_string().as_bytes(), 0).expect_err("a refusal").1;
    assert!(refused(json!({"token_ids": prompt})).contains("'body.sampling_params'"));
    assert!(refused(json!({"token_ids": [], "sampling_params": {}})).contains("'body.token_ids'"));
    assert_eq!(refused(json!({"token_ids": [999_999], "sampling_params": {}})), "Token id 999999 is out of vocabulary");
}

/// Derenders ids in groups; gives the deltas, the last finish reason and the last state.
fn derendered(config: &Config, body: &Value, prompt: &[u32], groups: &[&[u32]]) -> (Vec<Value>, Value, Value) {
    let (mut state, mut finish, mut deltas) = (Value::Null, Value::Null, Vec::new());
    for (at, group) in groups.iter().enumerate() {
        let reason = if at + 1 == groups.len() { json!("stop") } else { Value::Null };
        let mut call = json!({
            "stream": true, "model": "tiny", "chat_request": body, "prompt_token_ids": prompt, "prompt_tokens": prompt.len(),
            "generate_chunk": {"request_id": "g-1", "usage": null, "output_mode": "tokens", "choices": [
                {"index": 0, "finish_reason": reason, "stop_reason": null, "token_ids": group},
            ]},
        });
        if !state.is_null() {
            call["stream_state"] = state;
        }
        let mut got = ask(config, "/v1/chat/completions/derender", &call).expect("a delta");
        state = got["stream_state"].take();
        finish = got["chunk"]["choices"][0]["finish_reason"].take();
        deltas.push(got["chunk"]["choices"][0]["delta"].take());
    }
    (deltas, finish, state)
}

#[test]
fn derendered_deltas_are_those_of_the_chat_stream_whatever_the_groups() {
    let tools = json!([{"type": "function", "function": {"name": "get_weather"}}]);
    let config = Config { tool_call: Some(5), ..scale_out() };
    for tooled in [false, true] {
        let mut body = chat();
        if tooled {
            body["tools"] = tools.clone();
        }
        let whole = answer(&config, &body);
        // The end token has a text here, as on the real engine; who derenders leaves it out.
        let ids = &whole.ids[..whole.ids.len() - 1];
        for size in [1, 2, 5, ids.len()] {
            let groups: Vec<&[u32]> = ids.chunks(size).collect();
            let (deltas, finish, state) = derendered(&config, &body, &whole.prompt_ids, &groups);
            let text = |key: &str| deltas.iter().filter_map(|delta| delta[key].as_str()).collect::<String>();
            assert_eq!((text("reasoning"), text("content")), (whole.reasoning_text(), whole.content_text()));
            let calls: Vec<Value> =
                deltas.iter().filter_map(|delta| delta["tool_calls"].as_array().cloned()).flatten().collect();
            let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
            assert_eq!(
                whole.tool_call.as_ref().map(|(_, arguments)| arguments.as_str()).unwrap_or_default(),
                arguments
            );
            assert_eq!(finish, if tooled { "tool_calls" } else { "stop" });
            assert_eq!(deltas.iter().filter(|delta| delta["role"] == "assistant").count(), 1);
            assert_eq!((&state["output_token_ids"], &state["tools_streamed"]), (&json!(ids), &json!(tooled)));
            assert_eq!(state["last_tool_call_ids"].as_array().map(Vec::len), Some(usize::from(tooled)));
        }
    }
}

#[test]
fn a_state_built_from_what_another_leg_wrote_carries_the_parser_into_a_tool_call() {
    let config = Config { tool_call: Some(5), ..scale_out() };
    let mut body = chat();
    body["tools"] = json!([{"type": "function", "function": {"name": "get_weather"}}]);
    let whole = answer(&config, &body);
    let ids = &whole.ids[..whole.ids.len() - 1];
    let groups: Vec<&[u32]> = ids.chunks(1).collect();
    let (deltas, ..) = derendered(&config, &body, &whole.prompt_ids, &groups);
    for cut in 1..ids.len() {
        let state = json!({
            "role_sent": true, "output_token_ids": ids[..cut], "output_chunk_lens": vec![1; cut], "tools_streamed": true,
            "last_tool_call_ids": ["call-of-leg-1"],
        });
        let call = json!({
            "stream": true, "chat_request": body, "prompt_token_ids": whole.prompt_ids, "stream_state": state,
            "generate_chunk": {"request_id": "g-2", "usage": null, "choices": [
                {"index": 0, "finish_reason": null, "stop_reason": null, "token_ids": [ids[cut]]},
            ]},
        });
        let mut got = ask(&config, "/v1/chat/completions/derender", &call).expect("a delta");
        let mut delta = got["chunk"]["choices"][0]["delta"].take();
        let mut want = deltas[cut].clone();
        for delta in [&mut delta, &mut want] {
            if let Some(id) = delta.pointer_mut("/tool_calls/0/id").filter(|id| id.is_string()) {
                assert!(*id == "call-of-leg-1" || *id != "");
                *id = json!("an id");
            }
        }
        assert_eq!(delta, want, "cut {cut}");
    }
}

#[test]
fn the_end_token_is_derendered_as_content() {
    let config = scale_out();
    let whole = answer(&config, &chat());
    let (deltas, ..) = derendered(&config, &chat(), &whole.prompt_ids, &[&whole.ids]);
    assert_eq!(deltas[0]["content"], format!("{}<|im_end|>", whole.content_text()));
}

#[test]
fn a_derendered_chunk_has_the_recorded_shape_and_usage_is_passed_on() {
    let config = scale_out();
    let whole = answer(&config, &chat());
    let call = |chunk: Value| {
        json!({
            "stream": true, "model": "tiny", "generate_chunk": chunk, "chat_request": chat(), "prompt_token_ids": whole.prompt_ids,
            "prompt_tokens": 15,
        })
    };
    let recorded: Value = serde_json::from_str(
        r#"{"chunk":{"id":"generate-tokens-1","object":"chat.completion.chunk","created":1796053236,"model":"tiny","choices":[{"index":0,
        "delta":{"role":"assistant","content":null,"reasoning":" snag"},"logprobs":null,"finish_reason":null,"stop_reason":null,
        "token_ids":null}],"usage":null,"system_fingerprint":null,"prompt_token_ids":null,"prompt_text":null,"metrics":null},
        "stream_state":{"prev_tokens":[],"prefix_offset":0,"read_offset":0,"role_sent":true,"logprob_context_token_ids":[],
        "logprob_text_offset":0,"output_token_ids":[71802],"output_chunk_lens":[1],"tools_streamed":false,"last_tool_call_ids":[]}}"#,
    )
    .expect("JSON");
    let chunk = json!({"request_id": "g", "usage": null, "choices": [
        {"index": 0, "finish_reason": null, "stop_reason": null, "token_ids": [whole.ids[0]]},
    ]});
    let got = ask(&config, "/v1/chat/completions/derender", &call(chunk)).expect("a delta");
    assert_eq!(shape(&got), shape(&recorded));
    let usage = json!({"request_id": "g", "usage": {"prompt_tokens": 9, "total_tokens": 11, "completion_tokens": 2}, "choices": []});
    let got = ask(&config, "/v1/chat/completions/derender", &call(usage)).expect("usage");
    assert_eq!((&got["chunk"]["choices"], &got["chunk"]["usage"]["total_tokens"]), (&json!([]), &json!(17)));
    let mut bad = call(json!({"request_id": "g", "usage": null, "choices": []}));
    bad["stream_state"] = json!({"output_token_ids": [1, 2], "output_chunk_lens": [3]});
    assert!(ask(&config, "/v1/chat/completions/derender", &bad).expect_err("a refusal").1.contains("must sum to"));
    for key in ["chat_request", "prompt_token_ids"] {
        let mut bad = call(json!({"request_id": "g", "usage": null, "choices": []}));
        bad.as_object_mut().expect("an object").shift_remove(key);
        let (status, words) = ask(&config, "/v1/chat/completions/derender", &bad).expect_err("a refusal");
        assert!(
            status == 400 && words.starts_with(&format!("{key} is required when a tool or reasoning parser")),
            "{words}"
        );
    }
}

#[test]
fn in_strict_mode_a_completion_must_go_on_with_exactly_the_ids_and_the_limit_that_is_left() {
    let config = Config { strict: true, ledger: Some(Ledger::default()), ..scale_out() };
    let body = json!({
        "model": "tiny", "prompt": "The old lighthouse", "max_tokens": 12, "stream": true, "return_token_ids": true, "seed": 1,
    });
    let whole = completion(&config, &body);
    let refusal =
        |body: &Value| completion_events(&config, body.to_string().as_bytes(), 1).err().map(|(_, words)| words);
    assert_eq!(refusal(&body), None);
    let next = |count: usize, limit: u64| {
        let mut next = body.clone();
        next["prompt"] = json!([&whole.prompt_ids[..], &whole.ids[..count]].concat());
        next["max_tokens"] = json!(limit);
        next
    };
    for count in 1..12 {
        assert_eq!(refusal(&next(count, 12 - count as u64)), None, "cut {count}");
    }
    assert!(refusal(&next(3, 12)).expect("a refusal").contains("`max_tokens` must be 12 minus the 3 tokens"));
    let mut other = next(3, 9);
    other["seed"] = json!(2);
    assert!(refusal(&other).is_some());
    let mut silent = next(3, 9);
    silent["return_token_ids"] = json!(false);
    assert!(refusal(&silent).expect("a refusal").contains("must have `return_token_ids: true`"));
    let mut text = next(3, 9);
    text["prompt"] = json!(format!("The old lighthouse{}", whole.content[..2].concat()));
    assert_eq!(refusal(&text), None);
    text["max_tokens"] = json!(12);
    assert!(refusal(&text).expect("a refusal").contains("must be less than"));
}

#[tokio::test(flavor = "multi_thread")]
async fn all_endpoints_answer_over_http_and_faults_find_their_requests() {
    let faults =
        Rule::parse_all("derender#2 status:503, completions eof@3, leg2 end@1, tokenize rst@head").expect("reads");
    let engine = start(Config { faults, ..scale_out() }).await;
    let post = |path: &str, body: &Value| {
        let mut client = Client::connect(engine.addr());
        client.post(path, &[], &body.to_string());
        client.reply()
    };
    let prompt = answer(engine.config(), &chat()).prompt_ids;
    let completion = json!({"model": "tiny", "prompt": prompt, "stream": true});
    assert_eq!(post("/v1/completions", &completion).events().len(), 3);
    let tokens = json!({"token_ids": prompt, "sampling_params": {}, "stream": true});
    assert_eq!(post("/inference/v1/generate", &tokens).events().len(), 1);
    let chunk = json!({"request_id": "g", "usage": null, "choices": []});
    let call = json!({"stream": true, "generate_chunk": chunk, "chat_request": chat(), "prompt_token_ids": prompt});
    let statuses: Vec<u16> = (0..3).map(|_| post("/v1/chat/completions/derender", &call).status).collect();
    assert_eq!(statuses, [200, 503, 200]);
    assert_eq!(post("/tokenize", &json!({"prompt": "x"})).status, 0);
    assert_eq!(post("/detokenize", &json!({"tokens": [120]})).json(), json!({"prompt": "x"}));
    let mut whole = tokens.clone();
    whole["stream"] = json!(false);
    whole["sampling_params"]["max_tokens"] = json!(2);
    assert_eq!(post("/inference/v1/generate", &whole).json()["choices"][0]["finish_reason"], "length");
    let rendered = post("/v1/chat/completions/render", &chat());
    assert_eq!((rendered.status, &rendered.json()["token_ids"]), (200, &json!(prompt)));
    assert_eq!(Client::connect(engine.addr()).get("/version").json(), json!({"version": "0.32.0"}));
    let seen = engine.requests();
    let legs: Vec<Leg> = seen.iter().map(|seen| seen.leg).collect();
    assert_eq!(legs[..3], [Leg::First, Leg::Continuation, Leg::Other]);
    assert_eq!((seen[0].end, seen[0].events), (Some(End::Cut), 3));
    assert_eq!(seen[3].faults, ["derender#2 status:503"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_wire_has_none_of_these_endpoints() {
    let engine = start(Config { wire: crate::mock::Wire::Sglang, ..scale_out() }).await;
    for path in ["/tokenize", "/v1/completions", "/v1/chat/completions/render"] {
        let mut client = Client::connect(engine.addr());
        client.post(path, &[], "{}");
        assert_eq!(client.reply().status, 404, "{path}");
    }
}

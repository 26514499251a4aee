//! Ids on chat streams, and continuing by them.

use serde_json::{Value, json};

use crate::mock::tokens::{decode, encode, ends_inside_character};
use crate::mock::{Answer, Config, Echo, Ledger, events, uncut};

use super::config;

fn request(more: Value) -> Value {
    let mut body = json!({
        "model": "tiny", "stream": true, "seed": 3, "messages": [{"role": "user", "content": "Tell me a story."}],
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
    });
    more.as_object().expect("an object").iter().for_each(|(key, value)| body[key] = value.clone());
    body
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}])
}

/// The data of the events of a request.
fn data(config: &Config, body: &Value) -> Vec<Value> {
    let events = events(config, body.to_string().as_bytes(), 0).unwrap_or_else(|refusal| panic!("{refusal:?}"));
    let read = |event: &Vec<u8>| serde_json::from_slice(&event[6..]).ok();
    events.iter().filter_map(read).collect()
}

fn answer(config: &Config, body: &Value) -> Answer {
    uncut(config, &[], body.to_string().as_bytes()).unwrap_or_else(|reason| panic!("{reason}: {body}"))
}

fn choice(event: &Value) -> &Value {
    &event["choices"][0]
}

/// All ids of a list's events.
fn ids(events: &[Value]) -> Vec<u32> {
    let list = |event: &Value| choice(event)["token_ids"].as_array().cloned().unwrap_or_default();
    events.iter().flat_map(list).map(|id| u32::try_from(id.as_u64().expect("an id")).expect("an id")).collect()
}

fn with_ids(mut body: Value) -> Value {
    body["return_token_ids"] = json!(true);
    body
}

fn configs() -> Vec<(Config, Value)> {
    let base = Config { reasoning: 12, content: 24, family: "qwen3".to_owned(), ..config() };
    let tooled = Config { tool_call: Some(5), ..base.clone() };
    vec![
        (base.clone(), json!({})),
        (base.clone(), json!({"chat_template_kwargs": {"enable_thinking": false}})),
        (base.clone(), json!({"stop": ["harbour", "never so"]})),
        (Config { tokens_per_event: 3, ..base.clone() }, json!({})),
        (Config { tokens_per_event: 4, mixed_events: true, ..tooled.clone() }, json!({"tools": tools()})),
        (Config { finish_with_text: true, ..base }, json!({})),
        (tooled, json!({"tools": tools()})),
    ]
}

#[test]
fn without_ids_the_stream_is_the_one_with_ids_less_the_lists_and_the_events_that_say_nothing() {
    for seed in 0..15 {
        for (config, more) in configs() {
            let mut body = request(more);
            body["seed"] = json!(seed);
            let plain = events(&config, body.to_string().as_bytes(), 0).expect("events");
            let full = events(&config, with_ids(body.clone()).to_string().as_bytes(), 0).expect("events");
            let mut stripped = Vec::new();
            for event in full {
                let text = String::from_utf8(event).expect("text");
                let Ok(mut chunk) = serde_json::from_str::<Value>(&text[6..]) else {
                    stripped.push(text.into_bytes());
                    continue;
                };
                if let Some(prompt) = chunk.get_mut("prompt_token_ids") {
                    *prompt = Value::Null;
                }
                let finishes = !choice(&chunk)["finish_reason"].is_null();
                if choice(&chunk)["delta"] == json!({}) && !finishes {
                    continue;
                }
                if let Some(ids) = chunk.pointer_mut("/choices/0/token_ids") {
                    *ids = Value::Null;
                }
                stripped.push(format!("data: {chunk}\n\n").into_bytes());
            }
            assert_eq!(stripped, plain, "seed {seed}");
        }
    }
}

#[test]
fn ids_decode_to_the_text_and_are_as_many_as_the_usage_says() {
    for (config, more) in configs() {
        let body = with_ids(request(more));
        let whole = answer(&config, &body);
        let events = data(&config, &body);
        assert_eq!(ids(&events), whole.ids);
        let usage = &events[events.len() - 1]["usage"];
        assert_eq!(usage["completion_tokens"], whole.ids.len());
        assert_eq!(usage["prompt_tokens"], whole.prompt_ids.len());
        let mut count = 0;
        for event in &events[1..events.len() - 1] {
            count += ids(std::slice::from_ref(event)).len();
            assert_eq!(event["usage"]["completion_tokens"], count);
        }
        if body.get("stop").is_none() && whole.tool_call.is_none() {
            let text = String::from_utf8(decode(&whole.ids, true)).expect("text");
            let close = if whole.reasoning.is_empty() { "" } else { "</think>" };
            assert_eq!(text, format!("{}{close}{}", whole.reasoning_text(), whole.content_text()));
        }
    }
}

/// Where a client that has these events may go on, by the rule of the real engine's trap.
fn may_continue(whole: &Answer, count: usize) -> bool {
    let all = [&whole.prompt_ids[..], &whole.ids[..count]].concat();
    !ends_inside_character(&decode(&all, false))
}

fn continued(body: &Value, whole: &Answer, count: usize) -> Value {
    let mut body = with_ids(body.clone());
    let ids = [&whole.prompt_ids[..], &whole.ids[..count]].concat();
    body["kv_transfer_params"] = json!({"prompt_token_ids": ids});
    body
}

#[test]
fn a_continuation_by_ids_gives_exactly_the_rest_at_every_cut_outside_a_character() {
    for seed in 0..6 {
        for (config, more) in configs() {
            let mut body = request(more);
            body["seed"] = json!(seed);
            if body.get("stop").is_some() {
                continue;
            }
            let whole = answer(&config, &body);
            let last = whole.ids.len() - 1;
            for count in (0..=last).filter(|count| may_continue(&whole, *count)) {
                let next = continued(&body, &whole, count);
                let rest = answer(&config, &next);
                let place = format!("seed {seed}, cut {count} of {last}, {body}");
                assert_eq!(rest.ids, whole.ids[count..], "{place}");
                assert_eq!(rest.prompt_tokens, whole.prompt_tokens + count as u64, "{place}");
                // Tokens that leave a character unfinished come without text, and are not counted.
                let counted = (0..count).filter(|at| may_continue(&whole, at + 1)).count() as u64;
                assert_eq!(rest.reasoning_tokens, whole.reasoning_tokens.saturating_sub(counted), "{place}");
                let said = |answer: &Answer| (answer.reasoning_text(), answer.content_text());
                let in_call = whole.tool_call.is_some() && !rest.ids.contains(&encode("<tool_call>")[0]);
                if !in_call {
                    let (reasoning, content) = said(&rest);
                    let (all_reasoning, all_content) = said(&whole);
                    assert!(all_reasoning.ends_with(&reasoning) && all_content.ends_with(&content), "{place}");
                    let decoded = decode(&whole.ids[..count], false).len();
                    let all = decode(&whole.ids, true).len();
                    let markup = all - all_reasoning.len() - all_content.len();
                    if whole.tool_call.is_none() {
                        let thoughts = whole.ids.iter().position(|id| *id == encode("</think>")[0]);
                        let close = if thoughts.is_none_or(|thoughts| count > thoughts) { 0 } else { markup };
                        assert_eq!(reasoning.len() + content.len() + close, all - decoded, "{place}");
                    } else {
                        assert_eq!(rest.tool_call, whole.tool_call, "{place}");
                    }
                }
                let echo = &data(&config, &next)[0]["prompt_token_ids"];
                assert_eq!(*echo, next["kv_transfer_params"]["prompt_token_ids"], "{place}");
            }
        }
    }
}

#[test]
fn inside_a_character_the_whole_prompt_comes_as_the_beginning_of_the_answer() {
    let config = Config { reasoning: 12, content: 40, family: "qwen3".to_owned(), ..config() };
    let mut seen = 0;
    for seed in 0..20 {
        let body = request(json!({"seed": seed}));
        let whole = answer(&config, &body);
        for count in (0..whole.ids.len()).filter(|count| !may_continue(&whole, *count)) {
            let rest = answer(&config, &continued(&body, &whole, count));
            let text = rest.reasoning_text() + &rest.content_text();
            assert!(text.starts_with("<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n<think>\n"));
            assert_eq!(rest.ids, whole.ids[count..]);
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} cuts inside characters");
}

#[test]
fn ids_are_silently_ignored_where_the_engine_does_not_take_them() {
    let config = Config { family: "qwen3".to_owned(), ..config() };
    let body = request(json!({}));
    let whole = answer(&config, &body);
    let ids = continued(&body, &whole, 3);
    let restarted = |config: &Config, body: &Value| {
        let own = &answer(config, &{
            let mut body = body.clone();
            body.as_object_mut().expect("an object").shift_remove("kv_transfer_params");
            body
        });
        let got = answer(config, body);
        assert_eq!((&got.ids, &got.prompt_ids), (&own.ids, &own.prompt_ids));
        assert_eq!(data(config, body)[0]["prompt_token_ids"], json!(own.prompt_ids));
    };
    restarted(&Config { version: "0.25.1".to_owned(), ..config.clone() }, &ids);
    let mut echo = ids.clone();
    echo["echo"] = json!(true);
    restarted(&config, &echo);
    let mut media = ids.clone();
    media["messages"][0]["content"] =
        json!([{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "x"}}]);
    restarted(&config, &media);
    for version in ["0.28.0", "0.33.1rc2.dev5+g123", "1.0"] {
        let config = Config { version: version.to_owned(), ..config.clone() };
        assert_eq!(answer(&config, &ids).ids, whole.ids[3..]);
    }
}

#[test]
fn the_echo_can_be_missing_or_wrong() {
    let config = Config { family: "qwen3".to_owned(), ..config() };
    let body = request(json!({}));
    let next = continued(&body, &answer(&config, &body), 2);
    let first = |echo| data(&Config { echo, ..config.clone() }, &next)[0]["prompt_token_ids"].clone();
    assert_eq!(first(Echo::Right), next["kv_transfer_params"]["prompt_token_ids"]);
    assert_eq!(first(Echo::Missing), Value::Null);
    let wrong = first(Echo::Wrong);
    assert!(wrong.is_array() && wrong != next["kv_transfer_params"]["prompt_token_ids"]);
    let own = data(&Config { echo: Echo::Missing, ..config.clone() }, &with_ids(body))[0]["prompt_token_ids"].clone();
    assert!(own.is_array(), "the engine's own prompt is always shown");
}

#[test]
fn ids_that_are_no_prompt_are_answered_with_another_text_and_bad_ones_refused_as_recorded() {
    let config = Config { family: "qwen3".to_owned(), ..config() };
    let body = |ids: Value| request(json!({"kv_transfer_params": {"prompt_token_ids": ids}}));
    let refused = |ids: Value| events(&config, body(ids).to_string().as_bytes(), 0).expect_err("a refusal");
    let list = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative integers. \
                (parameter=kv_transfer_params.prompt_token_ids)";
    for ids in [json!([]), json!("x"), json!([1.5]), json!([true]), json!([-1])] {
        assert_eq!(refused(ids), (400, list.to_owned()));
    }
    let words = "Token id 999999 is out of vocabulary (parameter=kv_transfer_params.prompt_token_ids)";
    assert_eq!(refused(json!([999_999])), (400, words.to_owned()));
    let (one, other) = (answer(&config, &body(json!([151_644, 97]))), answer(&config, &body(json!([151_644, 98]))));
    assert!(one.content != other.content || one.reasoning != other.reasoning);
    assert_eq!(one.prompt_tokens, 2);
}

#[test]
fn hidden_reasoning_hides_the_ids_and_every_event_that_says_nothing() {
    let config = Config { family: "qwen3".to_owned(), ..config() };
    let events = data(&config, &with_ids(request(json!({"include_reasoning": false, "max_tokens": 3}))));
    assert!(events[0]["prompt_token_ids"].is_array());
    assert_eq!(events.len(), 3, "role, finish, usage");
    assert_eq!((&choice(&events[1])["delta"], &choice(&events[1])["token_ids"]), (&json!({}), &Value::Null));
}

#[test]
fn a_sampled_continuation_is_another_text_after_the_same_beginning() {
    let greedy = Config { reasoning: 12, content: 24, family: "qwen3".to_owned(), ..config() };
    let sampled = Config { sampled: true, ..greedy.clone() };
    let body = request(json!({}));
    let whole = answer(&greedy, &body);
    assert_eq!(answer(&sampled, &body), whole);
    let thoughts = whole.ids.iter().position(|id| *id == encode("</think>")[0]).expect("it thinks");
    for count in (1..whole.ids.len() - 2).filter(|count| may_continue(&whole, *count)) {
        let rest = answer(&sampled, &continued(&body, &whole, count));
        assert_ne!(rest.ids, whole.ids[count..], "cut {count}");
        assert_eq!(rest.finish, "stop");
        assert!(rest.reasoning.is_empty() || thoughts > count, "cut {count}");
    }
}

fn strict(ledger: &Ledger) -> Config {
    Config { strict: true, ledger: Some(ledger.clone()), family: "qwen3".to_owned(), ..config() }
}

#[test]
fn strict_mode_takes_the_right_continuation_by_ids_at_every_cut_and_names_every_mistake() {
    let config = strict(&Ledger::default());
    let body = with_ids(request(json!({
        "max_tokens": 40, "max_completion_tokens": 30, "min_tokens": 2, "thinking_token_budget": 20, "temperature": 0,
        "kv_transfer_params": {"own": 1},
    })));
    let whole = answer(&config, &body);
    assert!(events(&config, body.to_string().as_bytes(), 0).is_ok());
    let right = |count: usize| {
        let mut next = continued(&body, &whole, count);
        next["kv_transfer_params"]["own"] = json!(1);
        let left = |key: &str| body[key].as_u64().expect("a number").saturating_sub(count as u64);
        for key in ["max_tokens", "max_completion_tokens", "min_tokens"] {
            next[key] = json!(left(key));
        }
        next
    };
    let refusal = |body: &Value| events(&config, body.to_string().as_bytes(), 1).err().map(|(_, words)| words);
    for count in 0..whole.ids.len() {
        assert_eq!(refusal(&right(count)), None, "cut {count}");
    }
    let with = |pointer: &str, value: Value| {
        let mut next = right(3);
        *next.pointer_mut(pointer).expect("a field") = value;
        next
    };
    let mut longer = right(3);
    longer["top_p"] = json!(1);
    let mut lost = right(3);
    lost.as_object_mut().expect("an object").shift_remove("temperature");
    let mut swapped = whole.prompt_ids.clone();
    swapped.extend([whole.ids[1], whole.ids[0]]);
    let bytes: Vec<u32> = decode(&whole.ids[..2], false).into_iter().map(u32::from).collect();
    let retokenized = [&whole.prompt_ids[..], &bytes].concat();
    for (body, words) in [
        (with("/max_tokens", json!(40)), "`max_tokens` must be 40 minus the 3 tokens written, and is 40"),
        (with("/max_completion_tokens", json!(28)), "`max_completion_tokens` must be 30 minus the 3 tokens"),
        (with("/min_tokens", json!(2)), "`min_tokens` must be 2 minus the 3"),
        (with("/thinking_token_budget", json!(17)), "`thinking_token_budget` is not what the first request had"),
        (with("/return_token_ids", json!(false)), "must have `return_token_ids: true`"),
        (with("/messages/0/content", json!("Other.")), "the ids do not begin with the prompt's own"),
        (with("/kv_transfer_params/own", json!(2)), "`kv_transfer_params` must be the first request's"),
        (with("/kv_transfer_params/prompt_token_ids", json!(swapped)), "not a prompt and the beginning"),
        (with("/kv_transfer_params/prompt_token_ids", json!(retokenized)), "are not the first of the answer's"),
        (longer, "`top_p` was not in the first request"),
        (lost, "`temperature` of the first request is lost"),
    ] {
        let got = refusal(&body).unwrap_or_default();
        assert!(got.contains(words), "{words}: {got}");
    }
}

#[test]
fn strict_mode_refuses_ids_for_messages_that_no_engine_has_seen() {
    let config = strict(&Ledger::default());
    let body = request(json!({}));
    let next = continued(&body, &answer(&config, &body), 2);
    let (_, words) = events(&config, next.to_string().as_bytes(), 0).expect_err("a refusal");
    assert!(words.contains("not those of any request seen"), "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn places_of_faults_count_the_events_that_hold_only_ids() {
    let config = Config { family: "qwen3".to_owned(), reasoning: 4, content: 12, ..config() };
    let engine = super::start(config.clone()).await;
    let body = with_ids(request(json!({})));
    let whole = events(&config, body.to_string().as_bytes(), 0).expect("events");
    let silent = whole.iter().position(|event| String::from_utf8_lossy(event).contains("\"delta\":{}")).expect("one");
    for at in [silent, silent + 1, whole.len() - 1] {
        let mut client = super::client::Client::connect(engine.addr());
        client.chat(&[("mock-fault", &format!("eof@{at}"))], &body);
        assert_eq!(client.reply().events().len(), at);
    }
    let mut client = super::client::Client::connect(engine.addr());
    client.chat(&[("mock-fault", "leg1 eof@1, leg2 eof@2")], &continued(&body, &answer(&config, &body), 3));
    assert_eq!(client.reply().events().len(), 2, "ids make it a continuation");
}

#[test]
fn an_answer_of_a_prescribed_form_begins_anew_behind_its_thinking() {
    let config = Config { reasoning: 6, content: 12, family: "qwen3".to_owned(), tool_call: Some(0), ..config() };
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for more in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}}),
        json!({"tools": tools(), "tool_choice": "required"}),
        json!({"tools": tools(), "tool_choice": named}),
    ] {
        let body = with_ids(request(more));
        let whole = answer(&config, &body);
        let close = whole.ids.iter().position(|id| *id == 151_668).expect("the end of thinking");
        let rest = |kept: usize, config: &Config| {
            let mut body = body.clone();
            let given = [&whole.prompt_ids[..], &whole.ids[..kept]].concat();
            body["kv_transfer_params"] = json!({"prompt_token_ids": given});
            events(config, body.to_string().as_bytes(), 0).map(|_| ids(&data(config, &body)))
        };
        for kept in [1, close, close + 1] {
            assert_eq!(rest(kept, &config).expect("an answer"), whole.ids[kept..], "{body}: it goes on");
        }
        let strict = Config { strict: true, ..config.clone() };
        for kept in [close + 2, close + 4, whole.ids.len() - 1] {
            assert_eq!(rest(kept, &config).expect("an answer"), whole.ids[close + 1..], "{body}: from the root");
            let (status, words) = rest(kept, &strict).expect_err("that is never what is wanted");
            assert!(status == 400 && words.contains("begins the answer anew"), "{words}");
        }
    }
    let body = with_ids(request(json!({"response_format": {"type": "text"}})));
    let whole = answer(&config, &body);
    let mut rest = body.clone();
    let given = [&whole.prompt_ids[..], &whole.ids[..12]].concat();
    rest["kv_transfer_params"] = json!({"prompt_token_ids": given});
    assert_eq!(ids(&data(&config, &rest)), whole.ids[12..], "no form is prescribed");
}

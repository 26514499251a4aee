use serde_json::{Value, json};

use super::client::Client;
use super::{config, start};
use crate::mock::family::Family;
use crate::mock::tokens::decode;
use crate::mock::{Answer, Config, Continuation, Template, Wire, uncut};

/// How the partial is handed over.
#[derive(Clone, Copy, Debug)]
enum Form {
    /// One string, with these tags around the thinking.
    Tags(&'static str, &'static str),
    /// Two fields.
    Fields,
    /// The content alone.
    Answer,
}

const THINK: Form = Form::Tags("<think>", "</think>");
const LINES: Form = Form::Tags("<think>\n", "</think>");
const OPEN_IN_PROMPT: Form = Form::Tags("", "</think>");
const KIMI_K3: Form = Form::Tags("<|open|>think<|sep|>", "<|close|>think<|sep|><|open|>response<|sep|>");

fn first(seed: u64) -> Value {
    json!({
        "model": "m", "seed": seed, "stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "说说灯塔。"}],
    })
}

fn answer(config: &Config, body: &Value) -> Answer {
    uncut(config, &[], body.to_string().as_bytes()).unwrap_or_else(|reason| panic!("{reason}: {body}"))
}

fn message(form: Form, reasoning: &str, content: &str) -> Value {
    match form {
        Form::Tags(open, _) if content.is_empty() => {
            json!({"role": "assistant", "content": format!("{open}{reasoning}")})
        }
        Form::Tags(open, close) => {
            json!({"role": "assistant", "content": format!("{open}{reasoning}{close}{content}")})
        }
        Form::Fields => json!({"role": "assistant", "reasoning": reasoning, "content": content}),
        Form::Answer => json!({"role": "assistant", "content": content}),
    }
}

fn continued(mut body: Value, message: Value) -> Value {
    body["messages"].as_array_mut().expect("a list").push(message);
    body["continue_final_message"] = json!(true);
    body["add_generation_prompt"] = json!(false);
    body
}

/// White space at the end that a template takes away.
fn lost(template: Template, text: &str) -> &str {
    let kept = match template {
        Template::Trim | Template::Qwen36 | Template::Qwen38 => text.trim_end(),
        Template::Mistral => text.trim_end_matches(' '),
        _ => text,
    };
    &text[kept.len()..]
}

struct Case {
    wire: Wire,
    family: &'static str,
    template: Template,
    form: Form,
    /// Whether thinking can be continued.
    thinking: bool,
}

const fn case(wire: Wire, family: &'static str, template: Template, form: Form, thinking: bool) -> Case {
    Case { wire, family, template, form, thinking }
}

/// How many of an answer's ids write this beginning of it; `None`: it ends inside one.
fn ids_of(whole: &Answer, text: &str) -> Option<u64> {
    let mut length = 0;
    let before = whole.ids.iter().take_while(|id| {
        let begins = length < text.len();
        length += decode(&[**id], false).len();
        begins
    });
    let count = before.count();
    (decode(&whole.ids[..count], false) == text.as_bytes()).then_some(count as u64)
}

/// Continues at every text, and compares what comes with what was left.
fn check(case: &Case, seed: u64) {
    let Case { wire, family, template, form, thinking } = *case;
    let config =
        Config { wire, family: family.to_owned(), template: Some(template), reasoning: 8, content: 30, ..config() };
    let mut request = first(seed);
    if family.starts_with("deepseek-v3") {
        request["chat_template_kwargs"] = json!({"thinking": true});
    }
    let whole = answer(&config, &request);
    let thoughts = whole.reasoning.len();
    for at in 0..thoughts + whole.content.len() {
        let reasoning = whole.reasoning[..at.min(thoughts)].concat();
        let content = whole.content[..at.saturating_sub(thoughts)].concat();
        if content.is_empty() && (!thinking || reasoning.is_empty()) {
            continue;
        }
        let rest = answer(&config, &continued(request.clone(), message(form, &reasoning, &content)));
        let place = format!("{wire:?} {family} {template:?} {form:?} seed {seed}, token {at}");
        let mut expected =
            [whole.reasoning[at.min(thoughts)..].concat(), whole.content[at.saturating_sub(thoughts)..].concat()];
        if content.is_empty() {
            expected[0].insert_str(0, lost(template, &reasoning));
        } else {
            expected[1].insert_str(0, lost(template, &content));
        }
        if template == Template::DeepseekR1 && wire == Wire::Vllm && !content.is_empty() {
            // Labelled as reasoning.
            expected.swap(0, 1);
        }
        assert_eq!([rest.reasoning_text(), rest.content_text()], expected, "{place}");
        let repeated = lost(template, if content.is_empty() { &reasoning } else { &content });
        let written = match (wire, content.is_empty()) {
            (Wire::Sglang, _) => Some(at as u64),
            (Wire::Vllm, true) => ids_of(&whole, &reasoning),
            (Wire::Vllm, false) => ids_of(&whole, &format!("{reasoning}{}{content}", Family::named(family).close)),
        };
        if let (true, Some(written)) = (repeated.is_empty(), written) {
            let left = (whole.completion_tokens - written, whole.prompt_tokens + written);
            assert_eq!((rest.completion_tokens, rest.prompt_tokens), left, "{place}");
        }
        assert_eq!(rest.finish, "stop");
    }
}

#[test]
fn a_continuation_at_every_token_gives_exactly_the_rest_in_every_wire_and_template() {
    for seed in 0..8 {
        for case in [
            case(Wire::Vllm, "default", Template::Raw, THINK, true),
            case(Wire::Vllm, "default", Template::Raw, LINES, true),
            case(Wire::Vllm, "default", Template::Raw, Form::Fields, false),
            case(Wire::Vllm, "default", Template::Trim, THINK, true),
            case(Wire::Vllm, "default", Template::Trim, Form::Fields, false),
            case(Wire::Vllm, "kimi-k3", Template::Raw, KIMI_K3, true),
            case(Wire::Vllm, "qwen3", Template::Qwen3, Form::Fields, false),
            case(Wire::Vllm, "qwen3", Template::Qwen3, LINES, false),
            case(Wire::Vllm, "qwen3.6", Template::Qwen36, Form::Fields, false),
            case(Wire::Vllm, "qwen3.6", Template::Qwen36, LINES, false),
            case(Wire::Vllm, "qwen3.8", Template::Qwen38, Form::Fields, false),
            case(Wire::Vllm, "deepseek-v3", Template::DeepseekV3, Form::Fields, false),
            case(Wire::Vllm, "deepseek-v3", Template::DeepseekV3, THINK, false),
            case(Wire::Vllm, "deepseek-v3", Template::DeepseekV3, Form::Answer, false),
            case(Wire::Vllm, "deepseek-r1", Template::DeepseekR1, Form::Answer, false),
            case(Wire::Vllm, "magistral", Template::Mistral, Form::Answer, false),
            case(Wire::Vllm, "mistral", Template::Mistral, Form::Answer, false),
            case(Wire::Vllm, "no-thinking", Template::Raw, Form::Answer, false),
            case(Wire::Sglang, "default", Template::Raw, THINK, true),
            case(Wire::Sglang, "qwen3", Template::Raw, LINES, true),
            case(Wire::Sglang, "qwen3.6", Template::Raw, OPEN_IN_PROMPT, true),
            case(Wire::Sglang, "deepseek-v3", Template::Raw, OPEN_IN_PROMPT, true),
            case(Wire::Sglang, "kimi-k3", Template::Raw, KIMI_K3, true),
            case(Wire::Sglang, "mistral", Template::Raw, Form::Answer, false),
            case(Wire::Sglang, "no-thinking", Template::Raw, Form::Answer, false),
        ] {
            check(&case, seed);
        }
    }
}

#[test]
fn deepseek_r1_continues_thinking_on_vllm_in_an_open_block() {
    check(&case(Wire::Vllm, "deepseek-r1", Template::Raw, THINK, true), 3);
    let config = Config { family: "deepseek-r1".to_owned(), ..config() };
    let whole = answer(&config, &first(1));
    let thoughts = whole.reasoning[..2].concat();
    let rest =
        answer(&config, &continued(first(1), json!({"role": "assistant", "content": format!("<think>\n{thoughts}")})));
    assert_eq!((rest.reasoning.as_slice(), rest.content), (&whole.reasoning[2..], whole.content));
}

#[test]
fn with_thinking_switched_off_for_the_rest_the_rest_is_the_same() {
    for (wire, family, form, key) in [
        (Wire::Vllm, "qwen3", Form::Fields, "enable_thinking"),
        (Wire::Vllm, "default", THINK, "thinking"),
        (Wire::Sglang, "default", THINK, "thinking"),
        (Wire::Vllm, "deepseek-v3", Form::Fields, "thinking"),
    ] {
        let config = Config { wire, family: family.to_owned(), ..config() };
        let mut request = first(2);
        request["chat_template_kwargs"] = json!({key: true});
        let whole = answer(&config, &request);
        assert_eq!(whole.reasoning.len(), 3);
        let mut body = continued(request, message(form, &whole.reasoning_text(), &whole.content[..3].concat()));
        body["chat_template_kwargs"] = json!({key: false});
        assert_eq!(answer(&config, &body).content, whole.content[3..], "{family}");
    }
}

/// Sends a continuation that is wrong for the engine, and gives what strict mode says, after seeing that without it
/// the engine answers something that does not fit, with 200.
fn wrong(config: &Config, request: &Value, message: Value) -> String {
    let whole = answer(config, request);
    let body = continued(request.clone(), message);
    let rest = answer(config, &body);
    let text = |answer: &Answer| answer.reasoning_text() + &answer.content_text();
    let message = &body["messages"][2];
    let given: String = [&message["reasoning"], &message["content"], &message["content"][0]["text"]]
        .iter()
        .filter_map(|text| text.as_str())
        .collect();
    let given = given.replace("<think>\n", "").replace("<think>", "").replace("</think>", "");
    assert_ne!(given + &text(&rest), text(&whole), "{body}");
    let strict = Config { strict: true, ..config.clone() };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build().expect("a runtime");
    runtime.block_on(async {
        let engine = start(strict).await;
        let mut client = Client::connect(engine.addr());
        client.chat(&[], &body);
        let reply = client.reply();
        assert_eq!(reply.status, 400, "{body}");
        engine.request(0).and_then(|seen| seen.refused).expect("a reason")
    })
}

#[test]
fn what_a_real_engine_gets_wrong_comes_out_wrong_and_strict_mode_says_why() {
    let family = |wire, family: &str| Config { wire, family: family.to_owned(), ..config() };
    let request = first(4);
    let whole = answer(&config(), &request);
    let (part, all) = (whole.reasoning[..1].concat(), whole.reasoning_text());
    let content = whole.content[..3].concat();
    let said = |content: String| json!({"role": "assistant", "content": content});
    let (vllm, sglang) = (Wire::Vllm, Wire::Sglang);
    for (config, message, words) in [
        (family(vllm, "qwen3"), said(format!("<think>\n{part}")), "empty think block"),
        (family(vllm, "qwen3"), json!({"role": "assistant", "reasoning": part, "content": ""}), "thinking is not over"),
        (family(vllm, "qwen3"), json!({"role": "assistant", "reasoning": part}), "thinking is not over"),
        (family(vllm, "qwen3.8"), said(format!("<think>\n{all}</think>{content}")), "second think block"),
        (family(vllm, "qwen3"), said(content.clone()), "the reasoning is not given"),
        (family(vllm, "default"), said("Something else".to_owned()), "not the beginning of this engine's own"),
        (family(vllm, "default"), said(format!("<think>{part}x")), "the reasoning is not the beginning"),
        (
            family(vllm, "default"),
            said(format!("<think>{part}</think>{content}")),
            "the reasoning is not this engine's own",
        ),
        (family(sglang, "default"), said(content.clone()), "the reasoning is not given"),
        (
            family(sglang, "default"),
            json!({"role": "assistant", "content": content, "reasoning_content": all}),
            "is not given",
        ),
        (
            family(sglang, "default"),
            json!({"role": "assistant", "content": [{"type": "text", "text": "x"}]}),
            "string content",
        ),
        (family(sglang, "default"), json!({"role": "user", "content": "Go on."}), "not the assistant's"),
        (family(vllm, "default"), json!({"role": "user", "content": "Go on."}), "not the assistant's"),
    ] {
        let reason = wrong(&config, &request, message.clone());
        assert!(reason.contains(words), "{message}: {reason}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engines_own_refusals_are_given_in_their_words() {
    let family = |wire, family: &str| Config { wire, family: family.to_owned(), ..config() };
    let said = json!({"role": "assistant", "content": "x"});
    let both = |mut body: Value, key: &str, value: Value| {
        body[key] = value;
        body
    };
    let mut without = continued(first(0), said.clone());
    without.as_object_mut().expect("an object").remove("add_generation_prompt");
    let agp = "add_generation_prompt";
    for (config, body, status, words) in [
        (
            family(Wire::Vllm, "qwen3"),
            both(continued(first(0), said.clone()), agp, json!(true)),
            400,
            "Cannot set both",
        ),
        (family(Wire::Vllm, "qwen3"), without, 400, "are not compatible"),
        (
            family(Wire::Vllm, "qwen3.6"),
            continued(first(0), json!({"role": "assistant", "reasoning": "x"})),
            400,
            "could not find any text to continue",
        ),
        (
            family(Wire::Vllm, "default"),
            continued(first(0), json!({"role": "assistant", "content": null})),
            400,
            "could not find any text to continue",
        ),
        (
            family(Wire::Vllm, "deepseek-r1"),
            continued(first(0), json!({"role": "assistant", "content": "<think>a</think>b"})),
            400,
            "does not appear in the chat",
        ),
        (
            family(Wire::Vllm, "mistral"),
            continued(first(0), json!({"role": "user", "content": "x"})),
            400,
            "not from the assistant",
        ),
        (
            family(Wire::Vllm, "mistral"),
            both(first(0), "chat_template_kwargs", json!({"thinking": false})),
            400,
            "Mistral",
        ),
        (
            family(Wire::Sglang, "default"),
            continued(first(0), json!({"role": "assistant", "content": null})),
            500,
            "NoneType",
        ),
        (family(Wire::Sglang, "default"), both(first(0), "return_token_ids", json!(true)), 400, "return_token_ids"),
    ] {
        let wire = config.wire;
        let engine = start(config).await;
        let mut client = Client::connect(engine.addr());
        client.chat(&[], &body);
        let reply = client.reply();
        let error = reply.json();
        let error = if wire == Wire::Vllm { &error["error"] } else { &error };
        assert!(error["message"].as_str().is_some_and(|message| message.contains(words)), "{error}");
        assert_eq!((reply.status, error["code"].as_u64()), (status, Some(u64::from(status))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_vllm_the_answer_takes_the_last_messages_role() {
    let engine = start(config()).await;
    let mut client = Client::connect(engine.addr());
    client.chat(&[], &continued(first(0), json!({"role": "user", "content": "x"})));
    let role: Value = serde_json::from_str(&client.reply().events()[0]).expect("JSON");
    assert_eq!(role["choices"][0]["delta"]["role"], "user");
}

#[test]
fn an_engine_can_ignore_the_flag() {
    let whole = answer(&config(), &first(0));
    let body = continued(first(0), message(THINK, &whole.reasoning_text(), &whole.content[..2].concat()));
    let empty = answer(&Config { continuation: Continuation::Empty, ..config() }, &body);
    assert_eq!((empty.completion_tokens, empty.finish), (1, "stop"), "the end token");
    let afresh = answer(&Config { continuation: Continuation::Afresh, ..config() }, &body);
    assert_eq!((afresh.reasoning, afresh.content), (whole.reasoning, whole.content));
}

#[test]
fn a_continuation_stops_where_the_whole_answer_would_when_its_limit_is_what_was_left() {
    let mut request = first(6);
    let partial = {
        let uncut = answer(&config(), &request);
        format!("{}</think>{}", uncut.reasoning_text(), uncut.content[..2].concat())
    };
    let spent = ids_of(&answer(&config(), &request), &partial).expect("whole tokens");
    request["max_tokens"] = json!(spent + 2);
    let whole = answer(&config(), &request);
    assert_eq!((whole.completion_tokens, whole.finish), (spent + 2, "length"));
    let mut body = continued(request, message(THINK, &whole.reasoning_text(), &whole.content[..2].concat()));
    body["max_tokens"] = json!(2);
    let rest = answer(&config(), &body);
    assert_eq!((rest.content.as_slice(), rest.finish), (&whole.content[2..], "length"));
}

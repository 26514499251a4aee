use serde_json::{Value, json};

use super::*;
use crate::proto::chat::{Parsed, parse};

const RATIOS: Ratios = Ratios { cjk: 1.6, other: 4.0 };

pub(super) fn request(fields: &str) -> ChatRequest {
    let comma = if fields.is_empty() { "" } else { "," };
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"Hi"}}],"stream":true{comma}{fields}}}"#);
    ChatRequest::parse(body.as_bytes()).expect("the request is read")
}

pub(super) fn fold(partial: &mut Partial, choice: Value, used: Option<(u64, u64)>) {
    let usage = used.map(|(tokens, thinking)| {
        json!({"prompt_tokens": 5, "total_tokens": 5 + tokens, "completion_tokens": tokens,
            "completion_tokens_details": {"reasoning_tokens": thinking}})
    });
    let event = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [choice], "usage": usage});
    match parse(event.to_string().as_bytes()).expect("a chunk is read") {
        Parsed::Chunk(chunk) => partial.fold(&chunk),
        other => panic!("not a chunk: {other:?}"),
    }
}

/// A partial with these texts and, if given, counted tokens: (all, of the thinking).
pub(super) fn partial(reasoning: &str, content: &str, used: Option<(u64, u64)>) -> Partial {
    let mut partial = Partial::new(1);
    let delta = json!({"index": 0, "delta": {"reasoning": reasoning, "content": content}, "finish_reason": null});
    fold(&mut partial, delta, used);
    partial
}

fn ask(request: &ChatRequest, partial: &Partial, family: &str, engine: &str, force: bool) -> Result<Plan, Refused> {
    ask_as(PlanKind::ChatContinue, request, partial, (family, engine), force)
}

/// The same by any kind of plan that is made from text. Both names at once: (family, engine).
pub(super) fn ask_as(
    kind: PlanKind,
    request: &ChatRequest,
    partial: &Partial,
    (family, engine): (&str, &str),
    force: bool,
) -> Result<Plan, Refused> {
    let budget = Budget { ratios: &RATIOS, rid: "fresh", force, lists_ids: false, settings: &Settings::default() };
    match way_of(kind, request, partial, &Family::named(family).0, &Engine::named(engine).0, &budget)? {
        Way::Plan(plan) => Ok(*plan),
        Way::Search(search) => panic!("a search: {search:?}"),
    }
}

fn body_of(request: &ChatRequest, partial: &Partial, family: &str, engine: &str) -> Value {
    let plan = ask(request, partial, family, engine, false).expect("there is a plan");
    serde_json::from_slice(plan.work.body()).expect("the body is JSON")
}

fn last(request: &ChatRequest, partial: &Partial, family: &str, engine: &str) -> Value {
    let body = body_of(request, partial, family, engine);
    body["messages"].as_array().and_then(|messages| messages.last()).cloned().expect("there is a message")
}

fn refusal(request: &ChatRequest, partial: &Partial) -> Refused {
    ask(request, partial, "default", "vllm", true).expect_err("it is refused, force or not")
}

mod the_body {
    use super::*;

    #[test]
    fn what_is_not_changed_keeps_its_bytes_and_its_place() {
        let sent = concat!(
            r#"{"model": "m", "temperature": 0.70, "messages": [ {"content": "\u4e09 ways\/",  "role":"user"} ],"#,
            r#" "top_p":1E0, "x-new" : {"a":[1, 2.50]}, "seed": 12345678901234567890123}"#
        );
        let request = ChatRequest::parse(sent.as_bytes()).expect("the request is read");
        let plan = ask(&request, &partial("", "Yes", None), "no_thinking", "vllm", false).expect("there is a plan");
        let expected = concat!(
            r#"{"model":"m","temperature":0.70,"messages":[ {"content": "\u4e09 ways\/",  "role":"user"},"#,
            r#"{"role":"assistant","content":"Yes"}],"top_p":1E0,"x-new":{"a":[1, 2.50]},"seed":12345678901234567890123,"#,
            r#""continue_final_message":true,"add_generation_prompt":false,"stream":true,"#,
            r#""stream_options":{"include_usage":true}}"#
        );
        assert_eq!(String::from_utf8(plan.work.body().to_vec()).expect("the body is text"), expected);
    }

    #[test]
    fn the_flags_replace_what_the_client_sent_for_them() {
        let request = request(r#""continue_final_message":false,"add_generation_prompt":true"#);
        let body = body_of(&request, &partial("", "Yes", None), "default", "vllm");
        assert_eq!((&body["continue_final_message"], &body["add_generation_prompt"]), (&json!(true), &json!(false)));
    }

    #[test]
    fn usage_is_asked_for_beside_the_clients_own_stream_options() {
        for (sent, expected) in [
            ("", r#""stream_options":{"include_usage":true}"#),
            (r#""stream_options":null"#, r#""stream_options":{"include_usage":true}"#),
            (r#""stream_options":{ "a":1.0 }"#, r#""stream_options":{"a":1.0,"include_usage":true}"#),
            (
                r#""stream_options":{"include_usage":false,"b":[ ]}"#,
                r#""stream_options":{"include_usage":true,"b":[ ]}"#,
            ),
            (r#""stream_options":{ "include_usage": true }"#, r#""stream_options":{ "include_usage": true }"#),
        ] {
            let plan =
                ask(&request(sent), &partial("", "Yes", None), "default", "vllm", false).expect("there is a plan");
            let body = String::from_utf8(plan.work.body().to_vec()).expect("the body is text");
            assert!(body.contains(expected), "{body}");
        }
    }

    #[test]
    fn only_sglang_gets_a_request_id_and_always_a_fresh_one() {
        let (request, partial) = (request(r#""rid":"used""#), partial("", "Yes", None));
        assert_eq!(body_of(&request, &partial, "default", "sglang")["rid"], "fresh");
        assert_eq!(body_of(&request, &partial, "default", "vllm")["rid"], "used");
        assert_eq!(body_of(&super::request(""), &partial, "default", "generic").get("rid"), None);
    }
}

mod the_budget {
    use super::*;

    fn limits(sent: &str, used: Option<(u64, u64)>) -> Result<Value, Refused> {
        let plan = ask(&request(sent), &partial("Hmm", "Yes", used), "default", "vllm", false)?;
        let body: Value = serde_json::from_slice(plan.work.body()).expect("the body is JSON");
        let keys = ["max_tokens", "max_completion_tokens", "min_tokens", "thinking_token_budget"];
        Ok(keys.into_iter().filter_map(|key| Some((key.to_owned(), body.get(key)?.clone()))).collect())
    }

    #[test]
    fn each_limit_that_was_sent_is_lessened_and_none_is_added() {
        assert_eq!(limits("", Some((30, 10))), Ok(json!({})));
        assert_eq!(limits(r#""max_tokens":100"#, Some((30, 10))), Ok(json!({"max_tokens": 70})));
        assert_eq!(limits(r#""max_completion_tokens":31"#, Some((30, 10))), Ok(json!({"max_completion_tokens": 1})));
        let both = r#""max_tokens":100,"max_completion_tokens":90"#;
        assert_eq!(limits(both, Some((30, 10))), Ok(json!({"max_tokens": 70, "max_completion_tokens": 60})));
        assert_eq!(limits(r#""max_tokens":null"#, Some((30, 10))), Ok(json!({"max_tokens": null})));
    }

    #[test]
    fn a_spent_limit_refuses_and_says_whether_the_count_is_exact() {
        for sent in [
            r#""max_tokens":30"#,
            r#""max_tokens":7"#,
            r#""max_tokens":99,"max_completion_tokens":30"#,
            r#""max_tokens":7,"max_completion_tokens":30"#,
            r#""max_tokens":30,"max_completion_tokens":0"#,
            r#""max_tokens":30,"max_completion_tokens":null"#,
        ] {
            assert_eq!(limits(sent, Some((30, 10))), Err(Refused::BudgetSpent { exact: true }), "{sent}");
        }
        // "Hmm" and "Yes" are estimated at one token each.
        assert_eq!(limits(r#""max_tokens":2"#, None), Err(Refused::BudgetSpent { exact: false }));
        assert_eq!(limits(r#""max_tokens":3"#, None), Ok(json!({"max_tokens": 1})));
    }

    #[test]
    fn only_the_limit_in_effect_can_be_spent() {
        let (lower, zero) =
            (r#""max_tokens":20,"max_completion_tokens":50"#, r#""max_tokens":50,"max_completion_tokens":0"#);
        assert_eq!(limits(lower, Some((30, 10))), Ok(json!({"max_tokens": 1, "max_completion_tokens": 20})));
        assert_eq!(limits(zero, Some((30, 10))), Ok(json!({"max_tokens": 20, "max_completion_tokens": 0})));
    }

    #[test]
    fn a_spent_limit_is_not_exact_where_text_may_be_withheld() {
        let spent = |fields: &str, partial: &Partial| {
            ask(&request(&format!(r#""max_tokens":30{fields}"#)), partial, "default", "vllm", false)
                .expect_err("nothing is left")
        };
        let whole = partial("Hmm", "Yes", Some((30, 10)));
        assert_eq!(spent("", &whole), Refused::BudgetSpent { exact: true });
        assert_eq!(spent(r#","stop":["\n\n"]"#, &whole), Refused::BudgetSpent { exact: false });
        let mut ahead = partial("Hmm", "Yes", Some((29, 10)));
        fold(&mut ahead, json!({"index": 0, "delta": {}, "finish_reason": null}), Some((30, 10)));
        assert_eq!(spent("", &ahead), Refused::BudgetSpent { exact: false });
    }

    #[test]
    fn floors_are_lessened_down_to_nothing() {
        assert_eq!(limits(r#""min_tokens":50"#, Some((30, 10))), Ok(json!({"min_tokens": 20})));
        assert_eq!(limits(r#""min_tokens":5"#, Some((30, 10))), Ok(json!({"min_tokens": 0})));
        // Thinking in the prompt counts, so what it may be in all stays.
        let thinking = r#""thinking_token_budget":25"#;
        assert_eq!(limits(thinking, Some((30, 10))), Ok(json!({"thinking_token_budget": 25})));
        let unlimited = r#""thinking_token_budget":-1"#;
        assert_eq!(limits(unlimited, Some((30, 10))), Ok(json!({"thinking_token_budget": -1})));
    }
}

mod the_thinking_switch {
    use super::*;

    fn kwargs(sent: &str, partial: &Partial, family: &str, engine: &str) -> String {
        let sent = if sent.is_empty() { String::new() } else { format!(r#""chat_template_kwargs":{sent}"#) };
        let plan = ask(&request(&sent), partial, family, engine, false).expect("there is a plan");
        let request = ChatRequest::parse(plan.work.body()).expect("the body is a request");
        request.get("chat_template_kwargs").map(|kwargs| kwargs.get().to_owned()).unwrap_or_default()
    }

    #[test]
    fn one_key_is_merged_into_what_the_client_sent() {
        let answering = partial("Hmm", "Yes", None);
        for (sent, expected) in [
            ("", r#"{"thinking":false}"#),
            ("null", r#"{"thinking":false}"#),
            (r#"{ "style":"brief", "n":1.50 }"#, r#"{"style":"brief","n":1.50,"thinking":false}"#),
            (r#"{"thinking":true,"enable_thinking":true}"#, r#"{"thinking":false,"enable_thinking":true}"#),
            (r#"{ "thinking": false }"#, r#"{ "thinking": false }"#),
        ] {
            assert_eq!(kwargs(sent, &answering, "default", "vllm"), expected);
        }
    }

    #[test]
    fn it_is_left_alone_while_thinking() {
        let thinking = partial("Hmm", "", None);
        assert_eq!(kwargs("", &thinking, "default", "vllm"), "");
        assert_eq!(kwargs(r#"{ "thinking":true}"#, &thinking, "default", "sglang"), r#"{ "thinking":true}"#);
    }

    #[test]
    fn it_is_left_alone_where_it_would_change_the_prompt_that_the_reasoning_stands_in() {
        let answering = partial("Hmm", "Yes", None);
        for (family, engine) in [("qwen3", "sglang"), ("qwen3.6", "sglang"), ("qwen3.8", "vllm"), ("glm", "vllm")] {
            assert_eq!(kwargs("", &answering, family, engine), "", "{family} {engine}");
        }
    }

    #[test]
    fn an_answer_without_thinking_is_never_put_into_a_block_that_the_prompt_opens() {
        let answering = partial("", "Yes", None);
        for family in ["qwen3.6", "glm-4.7", "kimi-k2.5"] {
            assert_eq!(last(&request(""), &answering, family, "sglang")["content"], "Yes");
            let key = Family::named(family).0.thinking_key().expect("the family has a key");
            assert_eq!(kwargs("", &answering, family, "sglang"), format!(r#"{{"{key}":false}}"#));
        }
    }

    #[test]
    fn families_without_a_switch_add_no_template_arguments() {
        for family in ["deepseek-r1", "minimax", "mistral", "no-thinking"] {
            assert_eq!(kwargs("", &partial("Hmm", "Yes", None), family, "vllm"), "", "{family}");
            assert_eq!(kwargs("", &partial("", "Yes", None), family, "sglang"), "", "{family}");
        }
    }

    #[test]
    fn never_more_than_the_familys_own_key_differs_from_what_the_client_sent() {
        for family in Family::all() {
            for engine in Engine::all() {
                for state in [partial("Hmm", "", None), partial("Hmm", "Yes", None), partial("", "Yes", None)] {
                    let request = request(r#""chat_template_kwargs":{"other":1}"#);
                    let Ok(plan) = ask(&request, &state, family, engine, true) else { continue };
                    let body: Value = serde_json::from_slice(plan.work.body()).expect("the body is JSON");
                    let kwargs = body["chat_template_kwargs"].as_object().expect("an object");
                    assert_eq!(kwargs["other"], 1);
                    let key = Family::named(family).0.thinking_key();
                    assert!(kwargs.keys().all(|name| name == "other" || Some(name.as_str()) == key));
                }
            }
        }
    }
}

mod forms {
    use super::*;

    #[test]
    fn the_default_is_never_closed_while_there_is_no_content() {
        for engine in ["vllm", "sglang", "generic"] {
            assert_eq!(last(&request(""), &partial("R", "", None), "default", engine)["content"], "<think>R");
            assert_eq!(last(&request(""), &partial("R", "C", None), "default", engine)["content"], "<think>R</think>C");
            assert_eq!(last(&request(""), &partial("", "C", None), "default", engine)["content"], "C");
        }
    }

    #[test]
    fn kimi_k3_has_marks_of_its_own() {
        let content = |partial: &Partial| last(&request(""), partial, "Kimi-K3", "sglang")["content"].clone();
        assert_eq!(content(&partial("R", "", None)), "<|open|>think<|sep|>R");
        assert_eq!(
            content(&partial("R", "C", None)),
            "<|open|>think<|sep|>R<|close|>think<|sep|><|open|>response<|sep|>C"
        );
    }

    #[test]
    fn qwen_on_vllm_gets_reasoning_and_content_apart() {
        for family in ["qwen3", "qwen3.6", "qwen3.8"] {
            let message = last(&request(""), &partial("R\n", "\n\nC", None), family, "vllm");
            assert_eq!(message, json!({"role": "assistant", "reasoning": "R\n", "content": "\n\nC"}), "{family}");
            let message = last(&request(""), &partial("", "C", None), family, "vllm");
            assert_eq!(message, json!({"role": "assistant", "content": "C"}), "{family}");
        }
    }

    #[test]
    fn gaps_are_filled_where_a_parser_took_them_and_never_doubled() {
        let content = |reasoning, content| {
            last(&request(""), &partial(reasoning, content, None), "qwen3", "sglang")["content"].clone()
        };
        let whole = "<think>\nR\n</think>\n\nC";
        for (reasoning, answer) in [("R", "C"), ("\nR\n", "\n\nC"), ("R\n", "\nC"), ("\nR", "C")] {
            assert_eq!(content(reasoning, answer), whole);
        }
        assert_eq!(content("\n\nR\n\n", "\n\n\nC"), "<think>\n\nR\n\n</think>\n\n\nC");
        assert_eq!(content("R", "\n"), "<think>\nR\n</think>\n\n");
    }

    #[test]
    fn a_mark_that_the_generation_prompt_has_written_is_not_written_again() {
        for family in ["qwen3.6", "deepseek-r1", "deepseek-v3", "minimax", "glm-4.7", "kimi-k2.5"] {
            let thinking = last(&request(""), &partial("R", "", None), family, "sglang");
            assert_eq!(thinking["content"], "R", "{family}");
            let answering = last(&request(""), &partial("R", "C", None), family, "sglang");
            let text = answering["content"].as_str().expect("a string");
            assert!(text.starts_with("R") && text.contains("</think>") && text.ends_with("C"), "{family}: {text}");
        }
    }

    #[test]
    fn sglang_always_gets_one_string() {
        for family in Family::all() {
            for state in [partial("R", "", None), partial("R", "C", None)] {
                let Ok(plan) = ask(&request(""), &state, family, "sglang", true) else { continue };
                let body: Value = serde_json::from_slice(plan.work.body()).expect("the body is JSON");
                let message = body["messages"][1].as_object().expect("a message");
                assert_eq!(message.keys().collect::<Vec<_>>(), ["role", "content"], "{family}");
                assert!(message["content"].is_string());
            }
        }
    }

    #[test]
    fn thinking_that_the_engine_left_in_the_content_is_still_thinking() {
        let thinking = partial("", "<think>\nR", None);
        assert_eq!(last(&request(""), &thinking, "default", "vllm")["content"], "<think>\nR");
        let answering = partial("", "\n<think>\nR\n</think>\n\nC", None);
        let message = last(&request(""), &answering, "qwen3", "vllm");
        assert_eq!((&message["reasoning"], &message["content"]), (&json!("\nR\n"), &json!("\n\nC")));
        assert_eq!(last(&request(""), &answering, "qwen3", "sglang")["content"], "<think>\nR\n</think>\n\nC");
    }

    #[test]
    fn white_space_before_thinking_is_not_handed_back_as_an_answer() {
        let mut thinking = partial("", "\n", None);
        fold(&mut thinking, json!({"index": 0, "delta": {"reasoning": "R"}, "finish_reason": null}), None);
        assert_eq!(last(&request(""), &thinking, "default", "vllm")["content"], "<think>R");
        assert_eq!(ask(&request(""), &thinking, "qwen3", "vllm", false), Err(Refused::ThinkingCloses));
        fold(&mut thinking, json!({"index": 0, "delta": {"content": "C"}, "finish_reason": null}), None);
        assert_eq!(last(&request(""), &thinking, "default", "vllm")["content"], "<think>R</think>C");
    }

    #[test]
    fn white_space_behind_thinking_is_the_beginning_of_the_answer() {
        let message = last(&request(""), &partial("R", "\n\n", None), "qwen3", "vllm");
        assert_eq!(message, json!({"role": "assistant", "reasoning": "R", "content": "\n\n"}));
        assert_eq!(
            last(&request(""), &partial("R", "\n\n", None), "default", "sglang")["content"],
            "<think>R</think>\n\n"
        );
    }

    #[test]
    fn thinking_whose_opening_mark_the_prompt_wrote_is_known_by_its_end() {
        let answering = partial("", "R\n</think>\n\nC", None);
        for family in ["qwen3.6", "minimax", "deepseek-r1"] {
            let text = last(&request(""), &answering, family, "sglang");
            assert_eq!(text["content"], "R\n</think>\n\nC", "{family}");
            assert_eq!(body_of(&request(""), &answering, family, "sglang").get("chat_template_kwargs"), None);
        }
        let message = last(&request(""), &answering, "qwen3.6", "vllm");
        assert_eq!((&message["reasoning"], &message["content"]), (&json!("R\n"), &json!("\n\nC")));
        // Thinking has just ended: there is an answer, if only an empty one.
        let ended = last(&request(""), &partial("", "R</think>", None), "qwen3.6", "vllm");
        assert_eq!((&ended["reasoning"], &ended["content"]), (&json!("R"), &json!("")));
    }
}

mod the_seam {
    use super::*;

    fn seam(content: &str, family: &str, engine: &str) -> Seam {
        ask(&request(""), &partial("R", content, None), family, engine, false).expect("there is a plan").seam
    }

    #[test]
    fn a_template_that_trims_leaves_the_lost_white_space_to_the_splice() {
        assert_eq!(seam("So: \n\t\u{a0}\u{1f}", "qwen3.6", "vllm").trimmed, " \n\t\u{a0}\u{1f}");
        assert_eq!(seam("So: \n", "glm", "vllm").trimmed, " \n");
        assert_eq!(seam("\n\n", "qwen3.6", "vllm").trimmed, "\n\n");
        assert_eq!(seam("So:\n  ", "mistral", "vllm").trimmed, "  ");
        assert_eq!(seam("So.\u{200b}", "qwen3.6", "vllm").trimmed, "");
    }

    #[test]
    fn nothing_is_lost_where_the_template_keeps_white_space_or_the_text_is_appended_raw() {
        for (family, engine) in [("qwen3", "vllm"), ("default", "vllm"), ("qwen3.6", "sglang"), ("glm", "sglang")] {
            assert_eq!(seam("So: \n", family, engine).trimmed, "", "{family} {engine}");
        }
    }

    #[test]
    fn only_an_answer_of_deepseek_r1_through_the_template_comes_back_as_reasoning() {
        assert!(seam("C", "deepseek-r1", "vllm").reasoning_is_content);
        assert!(!seam("C", "deepseek-r1", "sglang").reasoning_is_content);
        let thinking = ask(&request(""), &partial("R", "", None), "deepseek-r1", "vllm", false);
        assert!(!thinking.expect("there is a plan").seam.reasoning_is_content);
    }
}

mod refusals {
    use super::*;

    #[test]
    fn what_the_request_rules_out_is_refused_by_its_name() {
        let refused = refusal(&request(r#""response_format":{"type":"json_object"}"#), &partial("", "C", None));
        assert_eq!(refused, Refused::Excluded(Exclusion::StructuredOutput));
        assert_eq!(refused.code(), "structured_output");
    }

    #[test]
    fn nothing_is_continued_that_has_no_text_or_more_than_text_or_an_end() {
        let request = request("");
        assert_eq!(refusal(&request, &Partial::new(1)), Refused::NothingToContinue);
        assert_eq!(refusal(&request, &partial("", "", None)), Refused::NothingToContinue);
        let mut calling = partial("R", "C", None);
        let call = json!({"index": 0, "id": "call-1", "type": "function", "function": {"name": "f", "arguments": ""}});
        fold(&mut calling, json!({"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": null}), None);
        assert_eq!(refusal(&request, &calling), Refused::ToolCallShown);
        let mut ended = partial("R", "C", None);
        fold(&mut ended, json!({"index": 0, "delta": {}, "finish_reason": "stop"}), None);
        assert_eq!(refusal(&request, &ended), Refused::Finished);
        let mut opaque = partial("R", "C", None);
        fold(&mut opaque, json!({"index": 0, "delta": {"content": ["parts"]}, "finish_reason": null}), None);
        assert_eq!(refusal(&request, &opaque), Refused::NotText);
    }

    #[test]
    fn a_mark_inside_a_text_is_refused_unless_forced() {
        let reasoning = partial("So </think> it is", "", None);
        let answer = partial("R", "As I said: </think>", None);
        let opened = partial("", "Write <think> first.", None);
        let closed = partial("", "Then </think> last.", None);
        let second = partial("", "<think>R</think>C, and <think> again", None);
        let half = partial("", "\n<thi", None);
        for state in [&reasoning, &answer, &opened, &closed, &second, &half] {
            for engine in ["vllm", "sglang", "generic"] {
                assert_eq!(ask(&request(""), state, "default", engine, false), Err(Refused::MarkInText), "{state:?}");
                assert!(ask(&request(""), state, "default", engine, true).is_ok(), "{state:?}");
            }
        }
        let other = partial("R", "Not <|sep|> but [THINK]", None);
        assert_eq!(ask(&request(""), &other, "kimi-k3", "vllm", false), Err(Refused::MarkInText));
        assert_eq!(ask(&request(""), &other, "mistral", "sglang", false), Err(Refused::MarkInText));
        assert!(ask(&request(""), &other, "no-thinking", "sglang", false).is_ok());
    }

    #[test]
    fn an_end_of_thinking_without_a_beginning_is_refused_where_the_prompt_opened_no_block() {
        let closed = partial("", "R</think>C", None);
        let refused = |family, fields: &str| ask(&request(fields), &closed, family, "sglang", false);
        for family in ["default", "qwen3", "glm", "kimi-k2", "deepseek-v3"] {
            assert_eq!(refused(family, ""), Err(Refused::MarkInText), "{family}");
        }
        let off = r#""chat_template_kwargs":{"enable_thinking":false}"#;
        assert_eq!(refused("qwen3.6", off), Err(Refused::MarkInText));
        assert!(refused("qwen3.6", r#""chat_template_kwargs":{"enable_thinking":true}"#).is_ok());
        assert!(refused("deepseek-v3", r#""chat_template_kwargs":{"thinking":true}"#).is_ok());
    }

    #[test]
    fn an_answer_that_may_begin_with_a_mark_is_not_said_to_be_thinking() {
        let doubtful = partial("", "<think> is a tag.", None);
        for family in ["qwen3", "qwen3.6", "glm", "kimi-k2"] {
            assert_eq!(ask(&request(""), &doubtful, family, "vllm", false), Err(Refused::MarkInText), "{family}");
        }
    }

    #[test]
    fn an_end_of_thinking_that_would_be_lost_is_not_continued() {
        let ended = partial("", "<think>R</think>", None);
        assert_eq!(ask(&request(""), &ended, "deepseek-r1", "vllm", false), Err(Refused::NoForm));
        assert!(ask(&request(""), &ended, "deepseek-r1", "sglang", false).is_ok());
    }

    #[test]
    fn thinking_that_comes_back_after_the_answer_began_is_not_continued() {
        let mut interleaved = partial("R", "C", None);
        fold(&mut interleaved, json!({"index": 0, "delta": {"reasoning": "S"}, "finish_reason": null}), None);
        assert_eq!(refusal(&request(""), &interleaved), Refused::Interleaved);
    }

    #[test]
    fn white_space_alone_is_no_answer_of_a_model_that_may_think() {
        assert_eq!(refusal(&request(""), &partial("", "\n", None)), Refused::NothingToContinue);
        assert_eq!(last(&request(""), &partial("", "\n", None), "no-thinking", "vllm")["content"], "\n");
    }

    #[test]
    fn a_last_message_that_the_engine_took_for_a_users_is_refused_unless_forced() {
        let body = |role: &str| {
            let body = format!(r#"{{"messages":[{{"role":"user","content":"a"}},{{"role":"{role}","content":"b"}}]}}"#);
            ChatRequest::parse(body.as_bytes()).expect("the request is read")
        };
        let answering = partial("R", "C", None);
        let ask = |role, engine, force| ask(&body(role), &answering, "default", engine, force);
        assert_eq!(ask("assistant", "sglang", false), Err(Refused::AssistantLast));
        assert!(ask("assistant", "sglang", true).is_ok());
        assert!(ask("tool", "sglang", false).is_ok() && ask("assistant", "vllm", false).is_ok());
    }

    #[test]
    fn an_aborted_answer_is_continued() {
        let mut aborted = partial("", "C", None);
        fold(&mut aborted, json!({"index": 0, "delta": {}, "finish_reason": "abort"}), None);
        assert_eq!(last(&request(""), &aborted, "default", "vllm")["content"], "C");
    }

    #[test]
    fn thinking_that_a_template_closes_is_tried_only_by_force() {
        let thinking = partial("R", "", None);
        for family in ["qwen3", "qwen3.6", "qwen3.8", "glm", "glm-4.7", "deepseek-v3", "kimi-k2", "mistral"] {
            let refused = ask(&request(""), &thinking, family, "vllm", false);
            assert_eq!(refused, Err(Refused::ThinkingCloses), "{family}");
            let forced = ask(&request(""), &thinking, family, "vllm", true).expect("force makes a plan");
            let body: Value = serde_json::from_slice(forced.work.body()).expect("the body is JSON");
            let text = body["messages"][1]["content"].as_str().expect("a string");
            assert!(text.ends_with('R') && text.to_lowercase().contains("think"), "{family}: {text}");
        }
    }

    #[test]
    fn renderers_that_ignore_the_flag_are_tried_only_by_force_and_only_where_a_form_is_known() {
        for state in [partial("R", "", None), partial("R", "C", None)] {
            for family in ["deepseek-v4", "deepseek-v3.2", "gpt-oss"] {
                assert_eq!(ask(&request(""), &state, family, "vllm", false), Err(Refused::FlagIgnored), "{family}");
            }
            assert!(ask(&request(""), &state, "deepseek-v4", "vllm", true).is_ok());
            assert_eq!(ask(&request(""), &state, "gpt-oss", "vllm", true), Err(Refused::NoForm));
        }
    }

    #[test]
    fn a_parser_that_repeats_the_mark_in_every_leg_is_not_asked_to_go_on() {
        let appended = partial("", "<think>\nR\n</think>\n\nC", None);
        for engine in ["vllm", "sglang"] {
            assert_eq!(ask(&request(""), &appended, "minimax", engine, false), Err(Refused::MarkRepeats));
            assert!(ask(&request(""), &partial("R", "C", None), "minimax", engine, false).is_ok());
        }
    }

    #[test]
    fn a_model_that_should_not_think_and_does_is_not_continued_inside_its_thinking() {
        let refused = ask(&request(""), &partial("R", "", None), "no-thinking", "vllm", true);
        assert_eq!(refused, Err(Refused::UnexpectedThinking));
    }

    #[test]
    fn a_spent_budget_is_told_even_where_the_form_would_be_refused() {
        let request = request(r#""max_tokens":4"#);
        let refused = ask(&request, &partial("R", "", Some((4, 4))), "qwen3", "vllm", false);
        assert_eq!(refused, Err(Refused::BudgetSpent { exact: true }));
    }
}

mod once_more {
    use super::*;

    fn again(sent: &str, engine: &str) -> String {
        let request = ChatRequest::parse(sent.as_bytes()).expect("the request is read");
        let budget =
            Budget { ratios: &RATIOS, rid: "fresh", force: false, lists_ids: false, settings: &Settings::default() };
        let plan = super::again(&request, &Engine::named(engine).0, &budget, "");
        String::from_utf8(plan.work.body().to_vec()).expect("the body is text")
    }

    const SENT: &str =
        r#"{"model":"m","messages":[ {"content": "\u4e09" } ],"rid":"used","temperature":0.70,"max_tokens":5}"#;

    #[test]
    fn the_clients_own_request_id_becomes_a_fresh_one_where_it_must_not_be_used_twice() {
        assert_eq!(again(SENT, "sglang"), SENT.replace("used", "fresh"));
        assert_eq!(again(SENT, "vllm"), SENT);
        assert_eq!(again(SENT, "generic"), SENT);
    }

    #[test]
    fn a_request_without_an_id_keeps_every_byte() {
        for sent in [SENT.replace(r#""rid":"used","#, ""), SENT.replace(r#""used""#, "null")] {
            for engine in Engine::all() {
                assert_eq!(again(&sent, engine), sent);
            }
        }
    }
}

mod the_document {
    use std::collections::BTreeSet;

    use super::*;

    const DOCUMENT: &str = include_str!("../../../docs/CONTINUATION.md");

    /// The refusals, one of each kind. The match keeps the list complete: a new kind does not compile until it is here.
    fn all() -> Vec<Refused> {
        use Refused::*;
        let next = |refused: &Refused| match refused {
            Excluded(_) => Some(Finished),
            Finished => Some(ToolCallShown),
            ToolCallShown => Some(NotText),
            NotText => Some(NothingToContinue),
            NothingToContinue => Some(Interleaved),
            Interleaved => Some(MarkInText),
            MarkInText => Some(AssistantLast),
            AssistantLast => Some(BudgetSpent { exact: true }),
            BudgetSpent { .. } => Some(ThinkingCloses),
            ThinkingCloses => Some(UnexpectedThinking),
            UnexpectedThinking => Some(FlagIgnored),
            FlagIgnored => Some(MarkRepeats),
            MarkRepeats => Some(PromptNotText),
            PromptNotText => Some(NoForm),
            NoForm => Some(TooShort),
            TooShort => Some(NotHere),
            NotHere => Some(TooOld),
            TooOld => Some(NoIds),
            NoIds => Some(Media),
            Media => Some(PromptTooLong),
            PromptTooLong => Some(IdsShown),
            IdsShown => Some(IdsDiffer),
            IdsDiffer => Some(StopStrings),
            StopStrings => Some(ThinkingHidden),
            ThinkingHidden => None,
        };
        let kinds = std::iter::successors(Some(Finished), next);
        kinds.chain(Exclusion::ALL.into_iter().map(Excluded)).collect()
    }

    #[test]
    fn lists_every_code_and_no_other_and_says_which_yield_to_force() {
        let section = DOCUMENT.split("## What is refused, and why").nth(1).and_then(|rest| rest.split("\n## ").next());
        let rows = section.unwrap_or_default().lines().filter(|line| line.starts_with("| `"));
        let mut listed = BTreeSet::new();
        for row in rows {
            let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
            let forced = cells.last() == Some(&"tries it");
            listed.extend(cells[0].split(", ").map(|code| (code.trim_matches('`').to_owned(), forced)));
        }
        let codes = all().iter().map(|refused| (refused.code().to_owned(), refused.yields_to_force())).collect();
        assert_eq!(listed, codes);
    }
}

mod names {
    use super::*;

    #[test]
    fn an_unknown_family_takes_the_default_form_and_says_so() {
        let (family, known) = Family::named("Brand-New 7");
        assert_eq!((family.name(), family.thinking_key(), known), ("Brand-New 7", Some("thinking"), Known::No));
        assert!(!Family::is_known("Brand-New 7") && Family::is_known("default"));
        let unknown = body_of(&request(""), &partial("R", "C", None), "Brand-New 7", "vllm");
        assert_eq!(unknown, body_of(&request(""), &partial("R", "C", None), "default", "vllm"));
    }

    #[test]
    fn case_and_separators_make_no_difference() {
        for (written, name) in [
            ("Qwen3.6", "qwen3_6"),
            ("qwen3-6", "qwen3_6"),
            ("Kimi-K3", "kimi_k3"),
            ("deepseek-v3.1", "deepseek_v3"),
            ("DeepSeek V3.2", "deepseek_v4"),
            ("MiniMax-M2", "minimax"),
            ("no-thinking", "no_thinking"),
        ] {
            assert_eq!(Family::named(written).0.name(), name);
        }
    }

    #[test]
    fn an_unknown_engine_is_generic_and_says_so() {
        let (engine, known) = Engine::named("lmdeploy");
        assert_eq!((engine.name(), known), ("lmdeploy", Known::No));
        assert_eq!(Engine::named("vLLM").1, Known::Yes);
        let state = partial("R", "C", None);
        let generic = body_of(&request(""), &state, "qwen3", "generic");
        assert_eq!(body_of(&request(""), &state, "qwen3", "lmdeploy"), generic);
    }

    #[test]
    fn no_name_means_two_families_and_every_name_is_written_plainly() {
        let mut seen = std::collections::BTreeSet::new();
        for spec in Family::all().map(|name| Family::named(name).0.spec()) {
            for name in spec.aliases.iter().chain([&spec.name]) {
                assert_eq!(*name, family::plain(name));
                assert!(seen.insert(*name), "{name} is there twice");
            }
        }
    }

    #[test]
    fn what_a_familys_prompt_opens_is_not_written_again_and_its_marks_are_reserved() {
        use family::Prompt;
        for spec in Family::all().map(|name| Family::named(name).0.spec()) {
            let Some(forms) = &spec.appended else { continue };
            let in_prompt = forms.thinking == Thinking::StaysOpen(Opening::InPrompt);
            assert_eq!(spec.prompt != Prompt::Plain, in_prompt, "{}", spec.name);
            for mark in spec.marks.iter().flat_map(|marks| [(marks, marks.open), (marks, marks.close)]) {
                assert!(mark.0.stand_in(mark.1), "{}: {}", spec.name, mark.1);
            }
        }
    }

    #[test]
    fn an_operator_hears_of_known_trouble_with_a_pair() {
        let cautions = |family, engine: &str| {
            Engine::named(engine).0.cautions(&Family::named(family).0).collect::<Vec<_>>().join("\n")
        };
        assert!(cautions("glm-4.6", "sglang").contains("0.5.20"));
        assert_eq!(cautions("qwen3", "sglang"), "");
        for spec in Engine::all().map(|name| Engine::named(name).0.spec()) {
            assert!(spec.cautions.iter().all(|(family, _)| Family::all().any(|name| name == *family)));
        }
    }
}

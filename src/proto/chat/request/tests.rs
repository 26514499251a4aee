use serde_json::json;

use super::*;

fn request(json: &str) -> ChatRequest {
    ChatRequest::parse(json.as_bytes()).unwrap()
}

/// A request with these further fields.
fn with(fields: &str) -> ChatRequest {
    request(&format!(r#"{{"messages":[],{fields}}}"#))
}

const ODD: &str = r#"{"model":"m","messages":[ {"role":"user", "content":"\u4f60\/ 1.0"} ],"temperature":1.0e0,"x_vendor":{"b":1,"a":[ ]},"stream":true}"#;

#[test]
fn a_request_is_written_as_it_was_read() {
    assert_eq!(request(ODD).to_bytes(), ODD.as_bytes());
}

#[test]
fn changes_leave_every_other_byte_alone() {
    let mut changed = request(ODD);
    changed.set("stream", &false);
    changed.remove("temperature");
    changed.set("rid", "r-1");
    changed.push_message(&json!({"role": "assistant", "content": "你"}));
    assert_eq!(
        String::from_utf8(changed.to_bytes()).unwrap(),
        r#"{"model":"m","messages":[ {"role":"user", "content":"\u4f60\/ 1.0"},{"role":"assistant","content":"你"}],"x_vendor":{"b":1,"a":[ ]},"stream":false,"rid":"r-1"}"#
    );
}

#[test]
fn a_message_is_pushed_onto_an_empty_list_too() {
    for messages in ["[]", "[ \n ]"] {
        let mut request = request(&format!(r#"{{"messages":{messages}}}"#));
        request.push_message(&json!(1));
        assert_eq!(request.to_bytes(), br#"{"messages":[1]}"#);
    }
}

#[test]
fn what_the_client_asked_for_is_read() {
    let full = with(
        r#""model":"a","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},"max_tokens":7,"max_completion_tokens":8.0,"n":2"#,
    );
    assert_eq!((full.model(), full.stream()), (Some("a"), true));
    assert!(full.include_usage() && full.continuous_usage());
    assert_eq!((full.max_tokens(), full.max_completion_tokens(), full.choices()), (Some(7), Some(8), 2));
    let bare = with(r#""model":null,"stream":"true","stream_options":null,"max_tokens":null,"n":null"#);
    assert_eq!((bare.model(), bare.stream()), (None, false));
    assert!(!bare.include_usage() && !bare.continuous_usage());
    assert_eq!((bare.max_tokens(), bare.max_completion_tokens(), bare.choices()), (None, None, 1));
}

#[test]
fn a_repeated_key_is_read_as_its_last_value_and_the_model_follows_changes() {
    let mut twice = with(r#""model":"a","model":"b\n""#);
    assert_eq!(twice.model(), Some("b\n"));
    twice.set("model", "c");
    assert_eq!(twice.model(), Some("c"));
    assert_eq!(twice.to_bytes(), br#"{"messages":[],"model":"c"}"#);
    twice.remove("model");
    assert_eq!(twice.model(), None);
}

#[test]
fn a_bad_body_is_named_with_its_place() {
    let error = |body: &[u8]| ChatRequest::parse(body).unwrap_err();
    assert!(matches!(error(b"{\"a\":1,\n  oops}"), RequestError::NotJson { line: 2, column: 3, .. }));
    assert_eq!(error(b"{\"a\"").to_string(), "the body is not JSON: EOF while parsing an object at line 1 column 4");
    assert!(matches!(error(b"{\"a\":\"\xff\"}"), RequestError::NotJson { .. }));
    assert!(matches!(error(b"{\"messages\":[]} x"), RequestError::NotJson { .. }));
    assert!(matches!(error(b""), RequestError::NotJson { .. }));
    assert_eq!(error(b"[1]"), RequestError::NotAnObject);
    assert_eq!(error(b"\"x\""), RequestError::NotAnObject);
    assert_eq!(error(b"{}"), RequestError::NoMessages);
    assert_eq!(error(b"{\"messages\":{}}"), RequestError::MessagesNotAnArray);
    assert_eq!(error(b"{\"messages\":null}"), RequestError::MessagesNotAnArray);
}

#[test]
fn what_rules_out_a_continuation_is_named() {
    use Exclusion::*;
    for (fields, expected) in [
        (r#""temperature":0"#, None),
        (r#""response_format":{"type":"text"}"#, None),
        (r#""response_format":null,"tool_choice":null,"n":1,"echo":false,"logprobs":false"#, None),
        (r#""tool_choice":"auto","tools":[{}]"#, None),
        (r#""tool_choice":"none""#, None),
        (r#""add_generation_prompt":true,"continue_final_message":false"#, None),
        (r#""response_format":{"type":"json_object"}"#, Some(StructuredOutput)),
        (r#""response_format":{"type":"json_schema","json_schema":{}}"#, Some(StructuredOutput)),
        (r#""response_format":"odd""#, Some(StructuredOutput)),
        (r#""guided_json":{}"#, Some(StructuredOutput)),
        (r#""structured_outputs":{"regex":"a"}"#, Some(StructuredOutput)),
        (r#""regex":"a+""#, Some(StructuredOutput)),
        (r#""ebnf":null"#, None),
        (r#""tool_choice":"required""#, Some(ForcedToolChoice)),
        (r#""tool_choice":{"type":"function","function":{"name":"f"}}"#, Some(ForcedToolChoice)),
        (r#""function_call":{"name":"f"}"#, Some(ForcedToolChoice)),
        (r#""n":2"#, Some(SeveralChoices)),
        (r#""best_of":3"#, Some(SeveralChoices)),
        (r#""continue_final_message":true"#, Some(ContinuesItself)),
        (r#""continue_final_message":"odd""#, Some(ContinuesItself)),
        (r#""continue_final_message":null,"echo":"No","use_beam_search":0,"logprobs":"off""#, None),
        (r#""echo":true"#, Some(Echo)),
        (r#""use_beam_search":true"#, Some(BeamSearch)),
        (r#""logprobs":true"#, Some(Logprobs)),
        (r#""prompt_logprobs":1"#, Some(Logprobs)),
    ] {
        assert_eq!(with(fields).exclusion(), expected, "{fields}");
    }
    assert_eq!(StructuredOutput.name(), "structured_output");
}

#[test]
fn booleans_count_in_every_way_that_an_engine_takes_them() {
    use Exclusion::*;
    for on in ["true", "1", "1.0", r#""true""#, r#""True""#, r#""yes""#, r#""on""#, r#""1""#, r#""t""#] {
        for (key, expected) in [
            ("continue_final_message", ContinuesItself),
            ("echo", Echo),
            ("use_beam_search", BeamSearch),
            ("logprobs", Logprobs),
        ] {
            assert_eq!(with(&format!(r#""{key}":{on}"#)).exclusion(), Some(expected), "{key}: {on}");
        }
        let options = with(&format!(r#""stream_options":{{"include_usage":{on},"continuous_usage_stats":{on}}}"#));
        assert!(options.include_usage() && options.continuous_usage(), "{on}");
    }
    for off in ["false", "0", "null", r#""off""#, r#""odd""#, "2", "[]"] {
        let options = with(&format!(r#""stream_options":{{"include_usage":{off}}}"#));
        assert!(!options.include_usage(), "{off}");
    }
}

#[test]
fn the_last_role_and_stop_strings_are_read() {
    let role = |messages: &str| request(&format!(r#"{{"messages":{messages}}}"#)).last_role();
    assert_eq!(role(r#"[{"role":"user"},{"role":"assistant"}]"#).as_deref(), Some("assistant"));
    assert_eq!((role("[]"), role(r#"[{"content":"a"}]"#)), (None, None));
    for (fields, expected) in [
        (r#""stop":["a"]"#, true),
        (r#""stop":"a""#, true),
        (r#""stop_regex":"a+""#, true),
        (r#""stop":null"#, false),
        (r#""stop":[]"#, false),
        (r#""stop":"""#, false),
        (r#""temperature":0"#, false),
    ] {
        assert_eq!(with(fields).has_stop(), expected, "{fields}");
    }
}

#[test]
fn stop_strings_are_shown_only_where_the_request_says_so() {
    let shown = |fields: &str| request(&format!(r#"{{"messages":[],{fields}}}"#)).shown_stops();
    assert_eq!(shown(r#""stop":"a\n","include_stop_str_in_output":true"#), ["a\n"]);
    assert_eq!(shown(r#""stop":["a","b",1],"include_stop_str_in_output":1"#), ["a", "b"]);
    assert!(shown(r#""stop":"a""#).is_empty() && shown(r#""include_stop_str_in_output":true"#).is_empty());
    assert!(shown(r#""stop":null,"include_stop_str_in_output":true"#).is_empty());
}

#[test]
fn media_are_found_in_the_parts_of_messages() {
    for (content, expected) in [
        (r#""an image_url in words""#, false),
        (r#"[{"type":"text","text":"image"}]"#, false),
        (r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]"#, true),
        (r#"[{"type":"input_audio","input_audio":{}}]"#, true),
        (r#"[{"type":"video_url","video_url":{}}]"#, true),
        (r#"[{"type":"file","file":{}}]"#, true),
        (r#"[{"image_url":"x"}]"#, true),
        (r#"[{"type":"text","text":"Hi","image_url":null}]"#, true),
        (r#"[{"type":"text","text":"Hi","prompt_embeds":"AA=="}]"#, true),
        (r#"[{"type":"hologram","text":"Hi"}]"#, true),
        (r#"[{"text":"Hi"},{"type":"input_text","text":"Hi"},"Hi"]"#, false),
        ("null", false),
        ("[1,null]", false),
    ] {
        let request = request(&format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#));
        assert_eq!(request.has_media(), expected, "{content}");
    }
    assert!(!request(r#"{"messages":[1,null,"x"]}"#).has_media());
}

#[test]
fn the_prompt_is_estimated_from_messages_tool_calls_and_tools() {
    let ratios = Ratios::default();
    let estimate = |json: &str| request(json).prompt_estimate(&ratios);
    assert_eq!(estimate(r#"{"messages":[]}"#), 0);
    assert_eq!(estimate(r#"{"messages":[{"content":"12345678"},{"content":[{"type":"text","text":"\u4f60好"}]}]}"#), 4);
    assert_eq!(estimate(r#"{"messages":[{"content":"","reasoning":"1234","reasoning_content":"1234"}]}"#), 1);
    assert_eq!(estimate(r#"{"messages":[{"content":null,"tool_calls":[{"a":12}]}]}"#), 3);
    assert_eq!(estimate(r#"{"messages":[],"tools":[{"a":12}]}"#), 3);
    assert_eq!(estimate(r#"{"messages":[],"tools":null}"#), 0);
}

#[test]
fn which_usage_the_client_sees_depends_on_the_request_and_on_leg_1() {
    let of = |options: &str, sent| ClientUsage::of(&with(&format!(r#""stream_options":{options}"#)), sent);
    let usage = |at_end, continuous| ClientUsage { at_end, continuous };
    assert_eq!(of("null", true), usage(false, false));
    assert_eq!(of(r#"{"include_usage":true}"#, true), usage(true, false));
    assert_eq!(of(r#"{"include_usage":true,"continuous_usage_stats":true}"#, false), usage(true, true));
    assert_eq!(of(r#"{"continuous_usage_stats":true}"#, false), usage(false, false));
    assert_eq!(of(r#"{"continuous_usage_stats":true}"#, true), usage(false, true));
}

/// A completion with this prompt.
fn completion(prompt: &str) -> ChatRequest {
    completion_with(prompt, r#""temperature":0"#)
}

fn completion_with(prompt: &str, fields: &str) -> ChatRequest {
    ChatRequest::parse_completion(format!(r#"{{"prompt":{prompt},{fields}}}"#).as_bytes()).unwrap()
}

#[test]
fn a_completion_needs_a_prompt() {
    let error = |body: &str| ChatRequest::parse_completion(body.as_bytes()).unwrap_err();
    assert_eq!(error("{}"), RequestError::NoPrompt);
    assert_eq!(error(r#"{"prompt":null,"prompt_embeds":null}"#), RequestError::NoPrompt);
    assert_eq!(error(r#"{"messages":[]}"#), RequestError::NoPrompt);
    for prompt in ["5", "{}", "true"] {
        assert_eq!(error(&format!(r#"{{"prompt":{prompt}}}"#)), RequestError::PromptOfNoKind);
    }
    assert_eq!(error("[1]"), RequestError::NotAnObject);
    assert!(matches!(error("{"), RequestError::NotJson { .. }));
    assert!(ChatRequest::parse_completion(br#"{"prompt_embeds":"AAAA"}"#).is_ok());
    let sent = r#"{"model":"m","prompt":[ "\u4f60\/" ],"temperature":1.0e0,"stream":true}"#;
    let read = ChatRequest::parse_completion(sent.as_bytes()).unwrap();
    assert_eq!((read.api(), read.model(), read.stream()), (Api::Completions, Some("m"), true));
    assert_eq!(read.to_bytes(), sent.as_bytes());
    assert_eq!((request(ODD).api(), request(ODD).prompt()), (Api::Chat, Prompt::Unread));
    assert_eq!((Api::Chat.path(), Api::Completions.path()), ("/v1/chat/completions", "/v1/completions"));
}

#[test]
fn a_prompt_is_one_text_or_list_of_ids_or_several() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for (prompt, expected, choices) in [
        (r#""a \u4f60""#, "text a 你", 1),
        (r#""""#, "text ", 1),
        (r#"[ "a" ]"#, "text a", 1),
        ("[1, 2,3]", "ids 3", 1),
        ("[ [1,2] ]", "ids 2", 1),
        (r#"["a","b"]"#, "several 2", 2),
        ("[[1],[2],[3]]", "several 3", 3),
        (r#"["a",[1]]"#, "several 2", 2),
        ("[]", "unread", 1),
        ("[[]]", "unread", 1),
        (r#"[["a"]]"#, "unread", 1),
        ("[[[1]]]", "unread", 1),
        ("[null]", "unread", 1),
        ("[-1]", "unread", 1),
        (r#""\ud800""#, "unread", 1),
        (&deep, "unread", 1),
    ] {
        let request = completion(prompt);
        let read = match request.prompt() {
            Prompt::Text(text) => format!("text {text}"),
            Prompt::Ids(ids) => format!("ids {}", ids.count()),
            Prompt::Several(prompts) => format!("several {prompts}"),
            Prompt::Unread => "unread".to_owned(),
        };
        assert_eq!((&*read, request.choices()), (expected, choices), "{}", &prompt[..prompt.len().min(40)]);
    }
    assert_eq!(completion_with(r#"["a","b"]"#, r#""n":3"#).choices(), 6);
    assert_eq!(completion_with(r#"["a","b"]"#, r#""n":1e300"#).choices(), 2);
}

#[test]
fn what_rules_out_continuing_a_completion_is_named() {
    use Exclusion::*;
    for (fields, expected) in [
        (r#""n":1,"best_of":1,"echo":false,"logprobs":null,"suffix":null,"prompt_embeds":null"#, None),
        (r#""response_format":{"type":"text"},"prompt_embeds":[]"#, None),
        (r#""n":2"#, Some(SeveralChoices)),
        (r#""best_of":2"#, Some(SeveralChoices)),
        (r#""echo":true"#, Some(Echo)),
        (r#""use_beam_search":true"#, Some(BeamSearch)),
        (r#""logprobs":0"#, Some(Logprobs)),
        (r#""logprobs":5"#, Some(Logprobs)),
        (r#""logprobs":false"#, Some(Logprobs)),
        (r#""prompt_logprobs":0"#, Some(Logprobs)),
        (r#""suffix":"""#, Some(Suffix)),
        (r#""prompt_embeds":"AAAA""#, Some(PromptEmbeds)),
        (r#""response_format":{"type":"json_object"}"#, Some(StructuredOutput)),
        (r#""structured_outputs":{"choice":["a"]}"#, Some(StructuredOutput)),
    ] {
        assert_eq!(completion_with(r#""a""#, fields).exclusion(), expected, "{fields}");
    }
    assert_eq!(completion(r#"["a","b"]"#).exclusion(), Some(SeveralChoices));
    assert_eq!(completion(r#"["a"]"#).exclusion(), None);
    // A chat has no suffix, and 0 is how it says no.
    assert_eq!(with(r#""suffix":"a","prompt_embeds":"a","logprobs":0"#).exclusion(), None);
}

#[test]
fn a_completions_prompt_is_counted_where_it_is_ids_and_estimated_where_it_is_text() {
    let ratios = Ratios::default();
    for (prompt, expected) in [(r#""12345678""#, 2), (r#"["\u4f60好"]"#, 2), ("[7,8,9]", 3), ("[[7,8]]", 2), ("[]", 0)]
    {
        assert_eq!(completion(prompt).prompt_estimate(&ratios), expected, "{prompt}");
    }
}

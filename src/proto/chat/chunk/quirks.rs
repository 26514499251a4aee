//! What engines write that is not quite the protocol, each with what is read from it.

use super::*;

/// What an event says, in one line: only what is there.
fn said(data: &str) -> String {
    match parse(data.as_bytes()) {
        Ok(Parsed::Chunk(chunk)) => said_by(&chunk),
        Ok(Parsed::Error(error)) => format!("error {:?}", error.message),
        Ok(Parsed::Done) => "done".to_owned(),
        Err(malformed) => malformed.place().to_string(),
    }
}

fn said_by(chunk: &Chunk<'_>) -> String {
    let mut said = Vec::new();
    for (name, text) in [("id", &chunk.id), ("model", &chunk.model)] {
        said.extend((!text.is_empty()).then(|| format!("{name} {text}")));
    }
    said.extend(chunk.created.map(|created| format!("created {created}")));
    said.extend(chunk.system_fingerprint.as_ref().map(|text| format!("fingerprint {text}")));
    for choice in &chunk.choices {
        said.push(format!("#{}", choice.index));
        for (name, text) in [("role", &choice.role), ("content", &choice.content), ("reasoning", &choice.reasoning)] {
            said.extend(text.as_ref().map(|text| format!("{name} {text:?}")));
        }
        for call in &choice.tool_calls {
            let parts = [&call.id, &call.name, &call.arguments].map(|part| part.as_deref().unwrap_or("-"));
            said.push(format!("call {} {}", call.index, parts.join(" ")));
        }
        said.extend(choice.finish_reason.as_ref().map(|reason| format!("finish {}", reason.name())));
        said.extend(choice.token_ids.as_ref().map(|ids| format!("ids {}", ids.count())));
        said.extend(choice.has_logprobs.then(|| "logprobs".to_owned()));
        said.extend(choice.opaque.then(|| "opaque".to_owned()));
    }
    said.extend(chunk.usage.as_ref().map(|usage| format!("usage {}+{}", usage.prompt_tokens, usage.completion_tokens)));
    said.join(", ")
}

#[track_caller]
fn check(table: &[(&str, &str)]) {
    for (data, expected) in table {
        assert_eq!(said(data), *expected, "{data}");
    }
}

/// The table's left side is a part of an event: `around` says where it stands.
#[track_caller]
fn check_in(around: &str, table: &[(&str, &str)]) {
    for (part, expected) in table {
        let data = around.replace('$', part);
        assert_eq!(said(&data), *expected, "{data}");
    }
}

const CHOICE: &str = r#"{"choices":[{"index":0,$}]}"#;
const DELTA: &str = r#"{"choices":[{"index":0,"delta":{$}}]}"#;
const CALL: &str = r#"{"choices":[{"index":0,"delta":{"tool_calls":[{$}]}}]}"#;

#[test]
fn of_a_key_that_is_there_twice_the_last_counts_at_every_level() {
    check(&[
        (r#"{"id":"a","id":"b","created":1,"created":2,"model":"a","model":"b"}"#, "id b, model b, created 2"),
        (r#"{"choices":[{"index":1,"delta":{}}],"choices":[{"index":2,"delta":{}}]}"#, "#2"),
        (r#"{"choices":[{"index":1,"delta":{}}],"choices":null}"#, ""),
        (r#"{"usage":{"completion_tokens":1},"usage":{"completion_tokens":2,"completion_tokens":3}}"#, "usage 0+3"),
        (r#"{"error":{"message":"no"},"error":null,"choices":[]}"#, ""),
        (r#"{"error":null,"error":{"message":"a","message":"b"}}"#, r#"error "b""#),
        (r#"{"object":"error","object":"x"}"#, ""),
    ]);
    check_in(
        CHOICE,
        &[
            (r#""index":3"#, "#3"),
            (r#""delta":{"content":"a"},"delta":{"role":"b"}"#, r#"#0, role "b""#),
            (r#""delta":{"content":"a"},"delta":null"#, "#0"),
            (r#""finish_reason":"stop","finish_reason":null"#, "#0"),
            (r#""finish_reason":null,"finish_reason":"stop""#, "#0, finish stop"),
            (r#""logprobs":{},"logprobs":null,"token_ids":[1,2],"token_ids":[1]"#, "#0, ids 1"),
        ],
    );
    check_in(
        DELTA,
        &[
            (r#""content":"a","content":"b""#, r#"#0, content "b""#),
            (r#""content":"a","cont\u0065nt":"b""#, r#"#0, content "b""#),
            (r#""content":["a"],"content":"b""#, r#"#0, content "b""#),
            (r#""reasoning":"a","reasoning":"b","role":"x","role":"y""#, r#"#0, role "y", reasoning "b""#),
            (r#""tool_calls":[{"id":"a"}],"tool_calls":[{"id":"b","id":"c"}]"#, "#0, call 0 c - -"),
            (r#""tool_calls":"odd","tool_calls":[]"#, "#0"),
        ],
    );
    check_in(
        CALL,
        &[
            (r#""function":{"name":"a"},"function":{"arguments":"{","arguments":"}"}"#, "#0, call 0 - - }"),
            (r#""index":1,"index":2"#, "#0, call 2 - - -"),
        ],
    );
}

#[test]
fn what_names_an_answer_may_have_any_type() {
    check(&[
        (r#"{"id":5,"model":-1.50}"#, "id 5, model -1.50"),
        (r#"{"id":null,"model":null,"system_fingerprint":null,"object":null}"#, ""),
        (r#"{"id":true,"model":[1],"system_fingerprint":5,"object":{"error":1}}"#, ""),
        (r#"{"id":"\ud83d","model":"\ud83d\ude00","system_fingerprint":"fp"}"#, "model 😀, fingerprint fp"),
        (r#"{"id":1e999,"\n":{},"x":1e999}"#, "id 1e999"),
    ]);
    check_in(
        r#"{"created":$}"#,
        &[
            ("7.0", "created 7"),
            ("7.9", "created 7"),
            ("\"7\"", "created 7"),
            ("\"7.5\"", "created 7"),
            ("null", ""),
            ("-7", ""),
            ("1e300", ""),
            ("\"now\"", ""),
            ("{}", ""),
        ],
    );
    check_in(
        DELTA,
        &[(r#""role":5"#, "#0"), (r#""role":false"#, "#0"), (r#""role":["x"],"content":"a""#, r#"#0, content "a""#)],
    );
}

#[test]
fn usage_is_read_where_it_counts_something() {
    check_in(
        r#"{"choices":[],"usage":$}"#,
        &[
            ("[]", ""),
            ("\"none\"", ""),
            ("false", ""),
            ("5", ""),
            ("{}", ""),
            (r#"{"completion_tokens":null}"#, ""),
            (r#"{"completion_tokens":-1}"#, ""),
            (r#"{"completion_tokens":1e999}"#, ""),
            (r#"{"completion_tokens":5.0,"prompt_tokens":-3}"#, "usage 0+5"),
            (r#"{"completion_tokens":"5","prompt_tokens":18446744073709551615}"#, "usage 18446744073709551615+5"),
            (r#"{"completion_tokens":5,"prompt_tokens":1e300,"completion_tokens_details":7}"#, "usage 0+5"),
        ],
    );
}

#[test]
fn a_choice_without_a_readable_index_is_the_one_at_its_place() {
    check_in(
        r#"{"choices":[{$"delta":{}}]}"#,
        &[
            ("", "#0"),
            (r#""index":null,"#, "#0"),
            (r#""index":"0","#, "#0"),
            (r#""index":"2","#, "#2"),
            (r#""index":0.0,"#, "#0"),
            (r#""index":2.0,"#, "#2"),
            (r#""index":0.5,"#, "#0"),
            (r#""index":-1,"#, "#0"),
            (r#""index":4294967296,"#, "#0"),
            (r#""index":[1],"#, "#0"),
        ],
    );
    check(&[
        (
            r#"{"choices":[{"delta":{"content":"a"}},{"index":null,"delta":{"content":"b"}}]}"#,
            r#"#0, content "a", #1, content "b""#,
        ),
        (
            r#"{"choices":[{"index":1,"delta":{"content":"a"}},{"index":"0","finish_reason":"stop"}]}"#,
            r#"#1, content "a", #0, finish stop"#,
        ),
    ]);
}

#[test]
fn choices_may_be_missing_empty_or_a_single_one() {
    for data in [r#"{}"#, r#"{"choices":null}"#, r#"{"choices":[]}"#, r#"{"choices":{}}"#, r#"{"choices":false}"#] {
        check(&[(data, "")]);
    }
    check(&[
        (r#"{"choices":{"delta":{"content":"a"}}}"#, r#"#0, content "a""#),
        (r#"{"choices":[null,{"delta":{"content":"a"}},{}]}"#, r#"#0, content "a""#),
        (r#"{"choices":"a"}"#, "not a chunk at line 1 column 15"),
        (r#"{"choices":5}"#, "not a chunk at line 1 column 13"),
        (r#"{"choices":[{"delta":{}},"a"]}"#, "not a chunk at line 1 column 30"),
    ]);
}

#[test]
fn a_delta_that_is_no_object_is_output_nobody_can_read_if_it_says_something() {
    check_in(
        r#"{"choices":[{"index":0,"delta":$,"finish_reason":"stop"}]}"#,
        &[
            ("null", "#0, finish stop"),
            ("false", "#0, finish stop"),
            ("\"\"", "#0, finish stop"),
            ("[]", "#0, finish stop"),
            ("{}", "#0, finish stop"),
            ("\"text\"", "#0, finish stop, opaque"),
            ("[{}]", "#0, finish stop, opaque"),
            ("7", "#0, finish stop, opaque"),
            ("-7.5", "#0, finish stop, opaque"),
            ("true", "#0, finish stop, opaque"),
        ],
    );
}

#[test]
fn text_that_is_no_string_is_opaque_unless_it_says_nothing() {
    check_in(
        DELTA,
        &[
            (r#""content":[{"type":"text","text":"a"}]"#, "#0, opaque"),
            (r#""content":{"a":1}"#, "#0, opaque"),
            (r#""content":5"#, "#0, opaque"),
            (r#""content":[ ],"reasoning":{ },"reasoning_content":false"#, "#0"),
            (r#""content":null,"reasoning":"a""#, r#"#0, reasoning "a""#),
            (r#""refusal":"","audio":{},"content":"a""#, r#"#0, content "a""#),
            (r#""refusal":"no""#, "#0, opaque"),
        ],
    );
}

#[test]
fn tool_calls_are_read_in_any_form() {
    check_in(
        DELTA,
        &[
            (r#""tool_calls":null"#, "#0"),
            (r#""tool_calls":[]"#, "#0"),
            (r#""tool_calls":{}"#, "#0"),
            (r#""tool_calls":"""#, "#0"),
            (r#""tool_calls":[null]"#, "#0"),
            (r#""tool_calls":{"id":"a","function":{"name":"f"}}"#, "#0, call 0 a f -"),
            (r#""tool_calls":"f()""#, "#0, opaque"),
            (r#""tool_calls":[{"id":"a"},"f()"]"#, "#0, call 0 a - -, opaque"),
            (r#""tool_calls":[{"id":"a"},{"id":"b"}]"#, "#0, call 0 a - -, call 1 b - -"),
            (r#""function_call":{}"#, "#0"),
            (r#""function_call":[]"#, "#0"),
            (r#""function_call":"auto""#, "#0, opaque"),
            (r#""function_call":{"arguments":{}}"#, "#0, call 0 - - {}"),
        ],
    );
    check_in(
        CALL,
        &[
            (r#""index":"1","id":7,"function":null"#, "#0, call 1 7 - -"),
            (r#""index":null,"id":null,"function":"f""#, "#0, call 0 - - -"),
            (r#""index":2.0,"id":true,"function":{"name":5}"#, "#0, call 2 - - -"),
            (r#""index":-1,"id":[],"function":{"arguments":null}"#, "#0, call 0 - - -"),
            (r#""function":{"arguments":"{\"a\":1}"}"#, r#"#0, call 0 - - {"a":1}"#),
            (r#""function":{"arguments":{"a": [1]}}"#, r#"#0, call 0 - - {"a": [1]}"#),
            (r#""function":{"arguments":5}"#, "#0, call 0 - - 5"),
        ],
    );
}

#[test]
fn only_a_string_that_is_not_empty_ends_a_choice() {
    check_in(
        CHOICE,
        &[
            (r#""finish_reason":false"#, "#0"),
            (r#""finish_reason":"""#, "#0"),
            (r#""finish_reason":{}"#, "#0"),
            (r#""finish_reason":{"type":"stop"}"#, "#0"),
            (r#""finish_reason":0"#, "#0"),
            (r#""finish_reason":"eos""#, "#0, finish eos"),
            (r#""finish_reason":"sto\u0070""#, "#0, finish stop"),
        ],
    );
    assert_eq!(FinishReason::from_name("eos"), FinishReason::Other("eos".to_owned()));
}

#[test]
fn what_is_not_read_may_be_anything() {
    check_in(
        CHOICE,
        &[
            (r#""logprobs":"x""#, "#0, logprobs"),
            (r#""logprobs":[1e999,{"token":"\udc00"}]"#, "#0, logprobs"),
            (r#""token_ids":"x","stop_reason":{},"matched_stop":[]"#, "#0"),
            (r#""token_ids":{"a":1}"#, "#0"),
            (r#""x":"\ud83d""#, "#0"),
        ],
    );
}

#[test]
fn an_error_that_says_nothing_beside_choices_is_none() {
    let beside = r#"{"choices":[{"index":0,"delta":{"content":"a"}}],"error":$}"#;
    let chunk = r#"#0, content "a""#;
    check_in(
        beside,
        &[
            ("null", chunk),
            ("false", chunk),
            ("{}", chunk),
            ("[]", chunk),
            ("\"\"", chunk),
            ("0", chunk),
            ("\"no\"", r#"error "no""#),
            (r#"{"message":"no"}"#, r#"error "no""#),
            (r#"{"code":1}"#, r#"error """#),
            ("true", r#"error "true""#),
        ],
    );
    check(&[
        (r#"{"error":false,"choices":[],"usage":{"completion_tokens":1}}"#, "usage 0+1"),
        (r#"{"error":{},"choices":[]}"#, ""),
        (r#"{"error":{}}"#, r#"error """#),
        (r#"{"error":""}"#, r#"error """#),
        (r#"{"error":null}"#, ""),
        (r#"{"error":"\ud83d"}"#, r#"error "\"\\ud83d\"""#),
        (r#"{"object":"error","message":"no","choices":[{"index":0,"delta":{"content":"a"}}]}"#, chunk),
        (r#"{"object":"error","message":"no","choices":[]}"#, r#"error "no""#),
        (r#"{"object":"error","message":"no","choices":null}"#, r#"error "no""#),
    ]);
}

#[test]
fn numbers_that_are_not_json_are_read_as_null() {
    check(&[
        (
            r#"{"id":"NaN","choices":[{"index":NaN,"delta":{"content":"NaN \" -Infinity"},"logprobs":{"content":[{"logprob":-Infinity}]}}],"created":Infinity}"#,
            r#"id NaN, #0, content "NaN \" -Infinity", logprobs"#,
        ),
        (
            r#"{"choices":[{"delta":{"tool_calls":[{"id":"a","function":{"arguments":"{"}}]},"x":NaN}]}"#,
            "#0, call 0 a - {",
        ),
        (r#"{"error":{"message":"no","x":NaN}}"#, r#"error "no""#),
        // Still not JSON: what is wrong is said about what came.
        (r#"{"x":NaN,"y":nan}"#, "not JSON at line 1 column 6"),
        (r#"{"x":1NaN}"#, "not JSON at line 1 column 7"),
    ]);
}

#[test]
fn text_with_half_a_surrogate_pair_is_malformed_where_it_is_output() {
    // Python's json.dumps writes such halves when a character is split between two events. No string can hold one, so neither
    // event can be followed.
    for key in ["content", "reasoning", "reasoning_content"] {
        for half in [r"\ud83d", r"a \ud83d\n", r"\ude00"] {
            let data = format!(r#"{{"choices":[{{"delta":{{"{key}":"{half}"}}}}]}}"#);
            assert!(said(&data).starts_with("not a chunk at line 1 column "), "{data}");
        }
    }
    check_in(CALL, &[(r#""function":{"arguments":"\ud83d"}"#, "not a chunk at line 1 column 80")]);
    // A key with one is taken for broken JSON.
    check(&[(r#"{"\ud83d":1}"#, "not JSON at line 1 column 9")]);
}

#[test]
fn what_cannot_be_read_says_where_and_quotes_nothing() {
    let long = format!("{{\n \"choices\":[{{\"delta\":{{\"content\":\"{}\n\"}}}}]}}", "secret ".repeat(9));
    for (data, place) in [
        ("", "cut off at line 1 column 0"),
        ("[1]", "not a chunk at line 1 column 0"),
        ("\"secret\"", "not a chunk at line 1 column 8"),
        ("null", "not a chunk at line 1 column 4"),
        ("secret", "not JSON at line 1 column 1"),
        ("{} secret", "not JSON at line 1 column 4"),
        ("{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a", "cut off at line 1 column 44"),
        (&long, "not JSON at line 2 column 96"),
        (r#"{"choices":[{"delta":{"content":"\ud83d"}}]}"#, "not a chunk at line 1 column 41"),
    ] {
        let Err(malformed) = parse(data.as_bytes()) else { panic!("{data} was accepted") };
        assert_eq!(malformed.place().to_string(), place, "{data}: {malformed}");
        assert!(!malformed.what.is_empty());
    }
}

#[test]
fn an_event_that_is_not_utf_8_is_malformed_wherever_it_is_not() {
    for (data, line, column) in [
        (&b"{\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}"[..], 1, 34),
        (b"{\n\"x\":\"\xe4\xbd\"}", 2, 6),
        (b"\xff", 1, 1),
    ] {
        let place = parse(data).unwrap_err().place();
        assert_eq!(place, Place { fault: Fault::NotUtf8, line, column });
    }
    assert_eq!(parse(b"\xff").unwrap_err().to_string(), "not a chunk of a completion: not UTF-8 at line 1 column 1");
}

use proptest::prelude::*;

use super::super::fixtures::{
    COMPLETION, COMPLETION_IDS, COMPLETION_USAGE, CONTENT, INCLUDE_USAGE, LOGPROBS, SGLANG, SGLANG_COMPLETION,
    TOKEN_IDS, TOOL_CALL, chunk, events, folded,
};
use super::*;

fn learned(data: &str) -> LearnedFrame {
    learn(data.as_bytes()).unwrap_or_else(|| panic!("no frame in {data}"))
}

fn text_in<'d>(frame: &LearnedFrame, data: &'d [u8]) -> Option<&'d [u8]> {
    frame.read(data).map(|filling| filling.text)
}

fn choice(rest: &str) -> String {
    format!(r#"{{"id":"i","choices":[{{"index":0,{rest}}}]}}"#)
}

#[test]
fn a_frame_is_the_event_without_its_text() {
    let data = events(CONTENT).nth(1).unwrap();
    let frame = learned(data);
    assert_eq!((frame.kind, &frame.between), (TextKind::Content, &None));
    assert!(frame.prefix.ends_with(br#""delta":{"content":""#) && frame.suffix.starts_with(br#""},"logprobs":null"#));
    assert_eq!([&*frame.prefix, b"<tool_call>", &*frame.suffix].concat(), data.as_bytes());
}

#[test]
fn two_frames_are_enough_for_a_stream() {
    let frames: Vec<_> = [1, 3].into_iter().map(|at| learned(events(SGLANG).nth(at).unwrap())).collect();
    let fit = |data: &&str| frames.iter().any(|known| text_in(known, data.as_bytes()).is_some());
    assert_eq!(events(SGLANG).filter(fit).count(), 4);
    let known = learned(events(CONTENT).nth(1).unwrap());
    let texts: Vec<_> = events(CONTENT).filter_map(|data| text_in(&known, data.as_bytes())).collect();
    assert_eq!(texts.len(), 26);
    assert_eq!(texts[2], br#"{\""#);
}

#[test]
fn thinking_is_framed_under_either_name() {
    assert_eq!(learned(events(INCLUDE_USAGE).nth(1).unwrap()).kind, TextKind::Reasoning);
    assert_eq!(learned(events(SGLANG).nth(1).unwrap()).kind, TextKind::Reasoning);
    assert_eq!(learned(events(SGLANG).nth(3).unwrap()).kind, TextKind::Content);
}

#[test]
fn older_engines_nulls_are_part_of_the_frame() {
    let data = choice(
        r#""delta":{"role":null,"content":"x","reasoning_content":null,"tool_calls":null},"logprobs":null,"finish_reason":null"#,
    );
    assert_eq!(learned(&data).kind, TextKind::Content);
}

#[test]
fn an_event_that_says_more_than_a_text_has_no_frame() {
    let content = r#""delta":{"content":"x"}"#;
    for data in [
        events(TOKEN_IDS).next().unwrap().to_owned(),
        events(LOGPROBS).nth(1).unwrap().to_owned(),
        events(TOOL_CALL).nth(9).unwrap().to_owned(),
        events(INCLUDE_USAGE).next().unwrap().to_owned(),
        events(INCLUDE_USAGE).nth(4).unwrap().to_owned(),
        events(INCLUDE_USAGE).nth(5).unwrap().to_owned(),
        choice(r#""delta":{"reasoning":"x","reasoning_content":"x"}"#),
        choice(r#""delta":{"reasoning":"x","content":"y"}"#),
        choice(r#""delta":{"content":"x","refusal":"no"}"#),
        choice(r#""delta":{"content":["x"]}"#),
        choice(r#""delta":{"content":"x"},"delta":{}"#),
        choice(&format!(r#"{content},"finish_reason":"stop""#)),
        choice(content).replace("\"index\":0", "\"index\":1"),
        choice(content).replace("}]}", "},{\"index\":1,\"delta\":{}}]}"),
        choice(content).replace("}]}", "}],\"usage\":{\"completion_tokens\":1}}"),
        "[DONE]".to_owned(),
        "{\"error\":{\"message\":\"x\"}}".to_owned(),
        "garbage".to_owned(),
    ] {
        assert!(learn(data.as_bytes()).is_none(), "{data}");
    }
}

#[test]
fn ids_are_a_second_piece_of_the_frame() {
    let frame = learned(events(TOKEN_IDS).nth(1).unwrap());
    assert!(frame.between.as_ref().is_some_and(|between| between.ends_with(br#""token_ids":["#)));
    assert_eq!(frame.to_record(), None);
    let read: Vec<_> = events(TOKEN_IDS).skip(1).map(|data| frame.read(data.as_bytes())).collect();
    let filling = |text: &'static str, ids| Some(Filling { text: text.as_bytes(), ids: Some(ids) });
    assert_eq!(read[..3], [filling(" snag", "71802"), filling(" loaf", "76148"), filling(" carcin", "51688")]);
    assert_eq!(read[3..], [None, None, None], "the finish, the usage, [DONE]");
    for data in events(TOKEN_IDS).skip(1).take(3) {
        assert_eq!(frame.fill(frame.read(data.as_bytes()).unwrap()), data.as_bytes());
    }
    let several = frame.fill(Filling { text: br#"a\"b"#, ids: Some("1,22") });
    assert_eq!(frame.read(&several), Some(Filling { text: br#"a\"b"#, ids: Some("1,22") }));
    for ids in ["", "1,x", "null", "1],[2", "-1"] {
        assert_eq!(frame.read(&frame.fill(Filling { text: b"a", ids: Some(ids) })), None, "{ids}");
    }
}

#[test]
fn ids_before_the_text_make_no_frame() {
    let after = choice(r#""delta":{"content":"x"},"token_ids":[1]"#);
    assert!(learn(after.as_bytes()).is_some());
    for data in [
        choice(r#""token_ids":[1],"delta":{"content":"x"}"#),
        choice(r#""delta":{"content":"x"},"token_ids":["1"]"#),
        choice(r#""delta":{"content":"x"},"token_ids":[ 1 ]"#),
        choice(r#""delta":{"content":"x"},"token_ids":[]"#),
        choice(r#""delta":{"content":"x"},"token_ids":[1],"token_ids":[2]"#),
        after.replace("\"choices\"", "\"prompt_token_ids\":[1],\"choices\""),
    ] {
        assert!(learn(data.as_bytes()).is_none(), "{data}");
    }
    // What is no list is not there.
    assert_eq!(learned(&choice(r#""delta":{"content":"x"},"token_ids":7"#)).between, None);
}

#[test]
fn an_event_that_had_to_be_read_leniently_has_no_frame() {
    let content = r#""delta":{"content":"x"}"#;
    for data in [
        choice(r#""delta":{"content":"x","content":"y"}"#),
        choice(r#""delta":{"content":"x","cont\u0065nt":"y"}"#),
        choice(r#""delta":{"content":null,"content":"x"}"#),
        choice(r#""delta":{"reasoning":"x","reasoning":"y"}"#),
        choice(&format!(r#""delta":null,{content}"#)),
        choice(&format!(r#""index":0,{content}"#)),
        choice(content).replace("0,", "\"0\","),
        choice(content).replace("0,", "0.0,"),
        choice(content).replace("0,", "null,"),
        choice(content).replace("0,", "-1,"),
        choice(content).replace("[{", "[null,{"),
        choice(content).replace(['[', ']'], ""),
        choice(content).replace("}]}", "}],\"choices\":[]}"),
        choice(content).replace("}]}", "}],\"error\":{}}"),
        choice(content).replace("}]}", "}],\"error\":false}"),
        choice(content).replace("}]}", "}],\"x\":NaN}"),
    ] {
        assert!(matches!(parse(data.as_bytes()), Ok(Parsed::Chunk(_))), "{data}");
        assert!(learn(data.as_bytes()).is_none(), "{data}");
    }
    // What hides nothing does no harm.
    for rest in [r#"}],"error":null}"#, r#"}],"id":7,"created":1.5,"usage":[]}"#] {
        learned(&choice(content).replace("}]}", rest));
    }
}

#[test]
fn a_completions_text_is_framed_and_read_as_if_it_had_been_parsed() {
    // Without ids an event without text fits as well, with ids it does not. The first one with ids lists the prompt's, too.
    for (sse, first, of_the_frame) in [(COMPLETION, 0, 13), (COMPLETION_IDS, 1, 11), (SGLANG_COMPLETION, 0, 2)] {
        let known = learned(events(sse).nth(first).unwrap());
        assert_eq!(known.kind, TextKind::Content);
        let fitting: Vec<_> = events(sse).filter(|data| known.read(data.as_bytes()).is_some()).collect();
        assert_eq!(fitting.len(), of_the_frame);
        let mut pushed = folded(events(sse).take(first + 1));
        for data in events(sse).skip(first + 1) {
            match known.read(data.as_bytes()) {
                Some(filling) => {
                    assert_eq!(known.fill(filling), data.as_bytes());
                    pushed.push_text(known.kind, filling.text, filling.ids).unwrap();
                }
                None if data == "[DONE]" => {}
                None => pushed.fold(&chunk(data)),
            }
        }
        assert_eq!(pushed, folded(events(sse)));
    }
}

#[test]
fn a_completions_event_that_says_more_than_a_text_has_no_frame() {
    let text = r#""text":"x""#;
    for data in [
        events(COMPLETION_IDS).next().unwrap().to_owned(),
        events(COMPLETION_USAGE).next().unwrap().to_owned(),
        events(COMPLETION).last().unwrap().to_owned(),
        choice(r#""text":"""#),
        choice(r#""text":null"#),
        choice(r#""text":["x"]"#),
        choice(r#""text":"x","text":"y""#),
        choice(r#""text":"x","delta":{}"#),
        choice(&format!(r#"{text},"finish_reason":"length""#)),
        choice(&format!(r#"{text},"logprobs":{{"tokens":[]}}"#)),
        choice(text).replace("\"index\":0", "\"index\":1"),
        choice(text).replace("0,", "\"0\","),
        choice(text).replace("}]}", "},{\"index\":1,\"text\":\"y\"}]}"),
        choice(text).replace("}]}", "}],\"usage\":{\"completion_tokens\":1}}"),
        choice(text).replace("}]}", "}],\"error\":{}}"),
        choice(text).replace(['[', ']'], ""),
    ] {
        assert!(learn(data.as_bytes()).is_none(), "{data}");
    }
    assert_eq!(learned(&choice(text)).kind, TextKind::Content);
    assert_eq!(learned(&choice(&format!(r#"{text},"delta":null"#))).kind, TextKind::Content);
}

#[test]
fn text_that_leaves_the_string_does_not_fit() {
    let frame = learned(&choice(r#""delta":{"content":"x"}"#));
    for (text, fits) in [
        (&b""[..], true),
        (b"plain", true),
        (br#"\""#, true),
        (br"\\", true),
        (br"\", false),
        (br"\\\", false),
        (br#"a","reasoning":"b"#, false),
        (b"a\nb", false),
    ] {
        let data = [&*frame.prefix, text, &*frame.suffix].concat();
        assert_eq!(text_in(&frame, &data), fits.then_some(text), "{}", String::from_utf8_lossy(text));
    }
    let short = [&frame.prefix[..], &frame.suffix[1..]].concat();
    assert_eq!(text_in(&frame, &short), None);
}

proptest! {
    #[test]
    fn whatever_fits_a_frame_and_can_be_unescaped_is_one_json_string(text in "(\\\\|\"|u|d83d|n|[a-z]|,|:|\\{|\n){0,8}") {
        let seed = choice(r#""delta":{"content":"x"}"#);
        let frame = learned(&seed);
        let data = [&*frame.prefix, text.as_bytes(), &*frame.suffix].concat();
        let fits = text_in(&frame, &data).is_some_and(|text| json::unescape(text, &mut String::new()).is_ok());
        let parses = serde_json::from_str::<String>(&format!("\"{text}\"")).is_ok();
        prop_assert_eq!(fits, parses);
    }
}

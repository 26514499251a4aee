use proptest::prelude::*;

use super::*;

fn object(json: &str) -> Object<'_> {
    Object::parse(json).unwrap()
}

fn unescaped(content: &str) -> Result<String, BadEscape> {
    let mut out = String::from("before ");
    let result = unescape(content.as_bytes(), &mut out);
    let added = out.strip_prefix("before ").unwrap().to_owned();
    assert!(result.is_ok() || added.is_empty(), "a failure left {added:?} behind");
    result.map(|()| added)
}

#[test]
fn an_object_is_written_as_it_was_read() {
    let json = r#"{"b":1.50,"a":{"z": [1,  2],"y":"\u4f60\/"},"é\n":1e400,"b":null}"#;
    assert_eq!(object(json).to_text(), json);
    assert_eq!(object(json).into_owned().to_text(), json);
    assert_eq!(object(" { } ").to_text(), "{}");
}

#[test]
fn of_a_key_that_appears_twice_the_last_counts_and_setting_it_leaves_one() {
    let mut fields = object(r#"{"a":1,"b":2,"a":3}"#);
    assert_eq!(fields.get("a").unwrap().get(), "3");
    fields.set("a", raw(&4));
    assert_eq!(fields.to_text(), r#"{"b":2,"a":4}"#);
}

#[test]
fn a_key_is_found_however_it_is_escaped() {
    let mut fields = object(r#"{"m\u006fdel":"x"}"#);
    assert_eq!(fields.text("model").as_deref(), Some("x"));
    assert!(fields.remove("model"));
    assert!(!fields.remove("model"));
}

#[test]
fn fields_are_set_renamed_and_inserted_in_place() {
    let mut fields = object(r#"{"a":1,"b":2,"c":3}"#);
    fields.set("b", raw("two"));
    fields.rename("c", "d");
    fields.insert_after("a", "a2", raw(&true));
    fields.set("e", raw(&()));
    assert_eq!(fields.to_text(), r#"{"a":1,"a2":true,"b":"two","d":3,"e":null}"#);
    fields.rename("d", "a");
    assert_eq!(fields.to_text(), r#"{"a2":true,"b":"two","a":3,"e":null}"#);
    let mut twice = object(r#"{"a":1,"a":2,"b":3,"a":4,"b":5}"#);
    twice.rename("a", "b");
    assert_eq!(twice.to_text(), r#"{"b":4}"#);
    twice.rename("b", "b");
    assert_eq!(twice.to_text(), r#"{"b":4}"#);
    fields.rename("missing", "b");
    assert!(fields.has("b") && !fields.has("e") && !fields.has("missing"));
}

#[test]
fn whole_numbers_are_read_as_engines_and_clients_write_them() {
    for (json, expected) in [
        ("5", Some(5)),
        ("5.0", Some(5)),
        ("\"5\"", Some(5)),
        ("18446744073709551615", Some(u64::MAX)),
        ("1.5", None),
        ("-1", None),
        ("1e300", None),
        ("null", None),
        ("\"\"", None),
        ("[5]", None),
    ] {
        assert_eq!(whole_number(&raw_text(json.to_owned())), expected, "{json}");
    }
}

#[test]
fn a_number_with_a_fraction_is_cut_to_its_whole_part_where_that_is_asked_for() {
    for (json, expected) in
        [("5", Some(5)), ("5.9", Some(5)), ("\"5.9\"", Some(5)), ("-0.5", None), ("1e300", None), ("\"inf\"", None)]
    {
        assert_eq!(whole_part(&raw_text(json.to_owned())), expected, "{json}");
    }
}

#[test]
fn empty_values_of_any_kind_say_nothing() {
    for json in ["null", "false", "\"\"", "[]", "{}", "[ \n]", "{ }"] {
        assert!(says_nothing(&raw_text(json.to_owned())), "{json}");
    }
    for json in ["true", "0", "\" \"", "\"[]\"", "[null]", r#"{"a":null}"#] {
        assert!(!says_nothing(&raw_text(json.to_owned())), "{json}");
    }
}

#[test]
fn pythons_numbers_become_null_outside_strings() {
    for (text, expected) in [
        (r#"{"a":NaN,"b":[-Infinity,Infinity]}"#, Some(r#"{"a":null,"b":[null,null]}"#)),
        (r#"{"NaN":"Infinity \" NaN","b":"\\","c":NaN}"#, Some(r#"{"NaN":"Infinity \" NaN","b":"\\","c":null}"#)),
        (r#"{"NaN":"\"NaN","a":-1}"#, None),
        (r#""NaN \"#, None),
        ("你NaN", Some("你null")),
        ("Na", None),
        ("", None),
    ] {
        assert_eq!(without_nan(text).as_deref(), expected, "{text}");
    }
}

#[test]
fn escapes_stand_for_their_characters() {
    for (content, expected) in [
        (r#"plain é 你 😀"#, Ok("plain é 你 😀")),
        (r#"\"\\\/\b\f\n\r\t"#, Ok("\"\\/\u{8}\u{c}\n\r\t")),
        (r"\u4f60\u00e9\u0041", Ok("你éA")),
        (r"\ud83d\uDE00!", Ok("😀!")),
        (r"\ud83d", Err(BadEscape)),
        (r"\ud83d\n", Err(BadEscape)),
        (r"\ud83dx", Err(BadEscape)),
        (r"\ud83d\u0041", Err(BadEscape)),
        (r"\ude00\ud83d", Err(BadEscape)),
        (r"\u12", Err(BadEscape)),
        (r"\u12g4", Err(BadEscape)),
        (r"\u+123", Err(BadEscape)),
        (r"\x41", Err(BadEscape)),
        ("\\", Err(BadEscape)),
        ("a\"b", Err(BadEscape)),
        ("a\nb", Err(BadEscape)),
    ] {
        assert_eq!(unescaped(content).as_deref(), expected.as_ref().copied(), "{content:?}");
    }
    assert_eq!(unescape(b"\xff", &mut String::new()), Err(BadEscape));
}

/// Pieces that make valid and broken escapes alike.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("\\".to_owned()),
        Just("\\u".to_owned()),
        Just("\\ud83d".to_owned()),
        Just("\\ude00".to_owned()),
        Just("\"".to_owned()),
        "[0-9a-fA-Fnrtbfux/]{1,4}",
        any::<char>().prop_map(String::from),
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn unescaping_agrees_with_a_json_parser(content in pieces()) {
        let parsed = serde_json::from_str::<String>(&format!("\"{content}\""));
        prop_assert_eq!(unescaped(&content).ok(), parsed.ok());
    }

    #[test]
    fn json_has_no_number_to_take_out(content in pieces(), number in any::<f64>()) {
        let json = serde_json::json!([content, number, -1, {"NaN": "-Infinity"}]).to_string();
        prop_assert_eq!(without_nan(&json), None);
    }

    #[test]
    fn any_text_survives_escaping_and_unescaping(text in any::<String>()) {
        let json = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(unescaped(&json[1..json.len() - 1]), Ok(text.clone()));
        let ascii: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
        prop_assert_eq!(unescaped(&ascii), Ok(text));
    }
}

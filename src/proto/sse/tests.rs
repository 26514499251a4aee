use proptest::prelude::*;

use super::*;

/// An item that owns what it was lent.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Owned {
    Event { event: Option<String>, id: Option<String>, retry: Option<u64>, data: Vec<u8> },
    Comment(Vec<u8>),
    TooLong,
}

impl From<Result<Item<'_>, TooLong>> for Owned {
    fn from(item: Result<Item<'_>, TooLong>) -> Self {
        match item {
            Ok(Item::Event(event)) => Owned::Event {
                event: event.event.map(str::to_owned),
                id: event.id.map(str::to_owned),
                retry: event.retry,
                data: event.data.to_vec(),
            },
            Ok(Item::Comment(text)) => Owned::Comment(text.to_vec()),
            Err(_) => Owned::TooLong,
        }
    }
}

fn data(data: &str) -> Owned {
    Owned::Event { event: None, id: None, retry: None, data: data.as_bytes().to_vec() }
}

fn comment(text: &str) -> Owned {
    Owned::Comment(text.as_bytes().to_vec())
}

fn read(decoder: &mut Decoder, bytes: &[u8], items: &mut Vec<Owned>) {
    let mut events = decoder.feed(bytes);
    while let Some(item) = events.next() {
        items.push(item.into());
    }
}

fn decode_parts<'a>(max: usize, parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Owned>, bool) {
    let mut decoder = Decoder::new(max);
    let mut items = Vec::new();
    for part in parts {
        read(&mut decoder, part, &mut items);
    }
    (items, decoder.is_mid_event())
}

/// Whole and byte by byte must both give these items, with nothing held at the end.
#[track_caller]
fn check(bytes: &str, expected: &[Owned]) {
    let bytes = bytes.as_bytes();
    assert_eq!(decode_parts(DEFAULT_MAX_EVENT, [bytes]), (expected.to_vec(), false), "whole");
    assert_eq!(decode_parts(DEFAULT_MAX_EVENT, bytes.chunks(1)), (expected.to_vec(), false), "byte by byte");
}

#[test]
fn events_end_with_any_of_the_three_line_ends() {
    check("data: a\n\ndata: b\n\n", &[data("a"), data("b")]);
    check("data: a\r\n\r\ndata: b\r\n\r\n", &[data("a"), data("b")]);
    check("data: a\r\rdata: b\r\r", &[data("a"), data("b")]);
    check("data: a\r\n\rdata: b\n\r\n", &[data("a"), data("b")]);
}

#[test]
fn several_data_lines_are_joined_with_line_feeds() {
    check("data: a\ndata:b\r\ndata\ndata:  c\n\n", &[data("a\nb\n\n c")]);
    check("data:\ndata:\n\n", &[data("\n")]);
}

#[test]
fn only_a_block_with_a_data_line_is_an_event() {
    check("\n\nevent: x\n\nid: 7\nretry: 5\n\nnonsense\n\ndata: a\n\n", &[data("a")]);
    check("data:\n\ndata\n\n", &[data(""), data("")]);
}

#[test]
fn one_space_after_the_colon_is_not_part_of_the_value() {
    check("data:a\n\ndata: a\n\ndata:  a\n\ndata:\ta\n\n", &[data("a"), data("a"), data(" a"), data("\ta")]);
}

#[test]
fn the_other_fields_belong_to_their_event_and_the_last_of_each_counts() {
    let event = |event: Option<&str>, id: Option<&str>, retry| Owned::Event {
        event: event.map(str::to_owned),
        id: id.map(str::to_owned),
        retry,
        data: b"a".to_vec(),
    };
    check(
        "event: x\nid: s.0\nretry: 2000\ndata: a\n\ndata: a\n\n",
        &[event(Some("x"), Some("s.0"), Some(2000)), data("a")],
    );
    check("event: x\nevent: y\ndata: a\nid: 1\nid\n\n", &[event(Some("y"), Some(""), None)]);
    check("id: 1\0\nretry: 1s\nretry: -1\nretry:\ndata: a\n\n", &[event(None, None, None)]);
    check("retry: 5\nretry: 99999999999999999999\ndata: a\n\n", &[event(None, None, Some(5))]);
    check("Data: b\ndata : b\n data: b\ndata: a\n\n", &[data("a")]);
}

#[test]
fn a_name_that_is_not_utf8_counts_as_absent_and_data_may_be_any_bytes() {
    let (items, _) = decode_parts(100, [b"event: \xff\ndata: \xff\xfe\n\n".as_slice()]);
    assert_eq!(items, [Owned::Event { event: None, id: None, retry: None, data: vec![0xff, 0xfe] }]);
}

#[test]
fn a_comment_comes_as_soon_as_its_line_ends() {
    check(": ping\n\n", &[comment(" ping")]);
    check(": ping\ndata: a\n\n", &[comment(" ping"), data("a")]);
    check("data: a\n:\n:x\r\ndata: b\n\n", &[comment(""), comment("x"), data("a\nb")]);
}

#[test]
fn a_byte_order_mark_is_skipped_at_the_very_start_only() {
    check("\u{feff}data: a\n\n", &[data("a")]);
    check("\u{feff}: a\n", &[comment(" a")]);
    check("\u{feff}\ndata: a\n\n", &[data("a")]);
    check("data: a\n\n\u{feff}data: b\n\n\n", &[data("a")]);
}

#[test]
fn an_event_inside_the_fed_bytes_is_lent_from_there() {
    let bytes = ": ping\nevent: x\ndata: 长江\n\n".as_bytes();
    let inside = |part: &[u8]| bytes.as_ptr_range().contains(&part.as_ptr());
    let mut decoder = Decoder::new(100);
    let mut events = decoder.feed(bytes);
    assert!(matches!(events.next(), Some(Ok(Item::Comment(text))) if inside(text)));
    assert!(matches!(
        events.next(),
        Some(Ok(Item::Event(Event { event: Some("x"), data, .. }))) if inside(data) && data == "长江".as_bytes()
    ));
    assert!(events.next().is_none());
}

#[test]
fn an_unfinished_event_or_line_is_known_as_such() {
    let mid = |bytes: &str| {
        let whole = decode_parts(100, [bytes.as_bytes()]).1;
        assert_eq!(decode_parts(100, bytes.as_bytes().chunks(1)).1, whole, "{bytes:?}");
        whole
    };
    for bytes in ["d", "data: a", "data: a\n", "data: a\r", "id: 1\n", "data: a\n: ping\n", ": pi", "\n\ndata: a\n\ne"]
    {
        assert!(mid(bytes), "{bytes:?}");
    }
    for bytes in ["", "\n", "data: a\n\n", "data: a\r\n\r", "data: a\r\r", ": ping\n", "event: x\n\n", "nonsense\n"] {
        assert!(!mid(bytes), "{bytes:?}");
    }
}

#[test]
fn an_event_at_the_limit_passes_and_one_byte_more_does_not() {
    let limited = |bytes: &str| {
        let whole = decode_parts(10, [bytes.as_bytes()]).0;
        assert_eq!(decode_parts(10, bytes.as_bytes().chunks(1)).0, whole, "{bytes:?}");
        whole
    };
    assert_eq!(limited("data: abcd\n\ndata: abcd\n\n"), [data("abcd"), data("abcd")]);
    assert_eq!(limited("data: a\n\ndata: abcde\n\ndata: b\n\n"), [data("a"), Owned::TooLong]);
    assert_eq!(limited("data:\ndata:\n\ndata:\ndata:a\n\n"), [data("\n"), Owned::TooLong]);
    assert_eq!(limited("data:abcde\n:23456789a\n\n"), [comment("23456789a"), data("abcde")]);
    assert_eq!(limited(":23456789ab\n\n"), [Owned::TooLong]);
    assert_eq!(limited("\u{feff}data: abcd\n\n"), [data("abcd")]);
    assert_eq!(limited("\u{feff}:23456789a\n"), [comment("23456789a")]);
    // Unknown fields count: an event that never ends is too long even when nothing of it is kept.
    assert_eq!(limited("x: 1\nx: 2\nx: 3\n\n"), [Owned::TooLong]);
}

#[test]
fn a_line_that_never_ends_is_given_up_at_the_limit() {
    let mut decoder = Decoder::new(1000);
    let mut items = Vec::new();
    for _ in 0..100 {
        read(&mut decoder, &[b'x'; 64], &mut items);
    }
    assert_eq!(items, [Owned::TooLong]);
    assert!(decoder.line.len() < 1000 + 64);
}

#[test]
fn a_decoder_whose_items_were_not_read_yields_nothing_more() {
    let mut decoder = Decoder::new(100);
    let _ = decoder.feed(b"data: a\n\ndata: b\n\n").next();
    assert!(decoder.feed(b"data: c\n\n").next().is_none());
}

#[test]
fn encode_writes_what_clients_expect() {
    let check = |event, id, data: &str, expected: &str| {
        let mut out = Vec::new();
        encode(&mut out, event, id, data.as_bytes());
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    };
    check(None, None, "[DONE]", "data: [DONE]\n\n");
    check(None, None, "", "data: \n\n");
    check(Some("error"), Some("s.3"), "长江", "event: error\nid: s.3\ndata: 长江\n\n");
    check(None, None, "a\n\nb\n", "data: a\ndata: \ndata: b\ndata: \n\n");
    check(None, None, "a\rdata: x\r\n\r\nb", "data: a\ndata: data: x\ndata: \ndata: b\n\n");
    check(Some("x\ndata: y"), Some("1\r2"), "a", "event: x\nid: 1\ndata: a\n\n");
}

/// What the standard's text says, done in the plainest way on the whole stream at once.
fn reference(max: usize, bytes: &[u8]) -> Vec<Owned> {
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    let mut items = Vec::new();
    let mut block: Vec<&[u8]> = Vec::new();
    let mut rest = bytes;
    loop {
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let line = &rest[..end.unwrap_or(rest.len())];
        let before = if line.starts_with(b":") { 0 } else { block.iter().map(|line| line.len()).sum() };
        if line.len() + before > max {
            items.push(Owned::TooLong);
            return items;
        }
        let Some(end) = end else { return items };
        rest = &rest[end + if rest[end..].starts_with(b"\r\n") { 2 } else { 1 }..];
        match line {
            [] => items.extend(reference_event(&std::mem::take(&mut block))),
            [b':', text @ ..] => items.push(Owned::Comment(text.to_vec())),
            _ => block.push(line),
        }
    }
}

fn reference_event(block: &[&[u8]]) -> Option<Owned> {
    let values = |name: &[u8]| -> Vec<Vec<u8>> {
        let split = |line: &&[u8]| match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (line[..colon].to_vec(), line[colon + 1..].to_vec()),
            None => (line.to_vec(), Vec::new()),
        };
        let fields = block.iter().map(split).filter(|(field, _)| field == name);
        fields.map(|(_, value)| value.strip_prefix(b" ").map_or(value.clone(), <[u8]>::to_vec)).collect()
    };
    let last = |values: Vec<Vec<u8>>| values.last().and_then(|value| String::from_utf8(value.clone()).ok());
    let data = values(b"data");
    if data.is_empty() {
        return None;
    }
    let ids = values(b"id").into_iter().filter(|id| !id.contains(&0)).collect();
    let retries = values(b"retry").into_iter().filter(|value| value.iter().all(u8::is_ascii_digit));
    let retry = retries.filter_map(|value| String::from_utf8(value).ok()?.parse().ok()).next_back();
    Some(Owned::Event { event: last(values(b"event")), id: last(ids), retry, data: data.join(&b'\n') })
}

/// Streams made of what can go wrong in them.
fn any_stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => prop::sample::select(vec!["\n", "\r", "\r\n", "\n\n", "data: ", "data:", "event:", "id: ", "retry: 1", ":", " "]),
        3 => prop::sample::select(vec!["长江流域", "🙂", "\u{feff}", "a", "{\"x\":\"y\"}", "data", "\0", "[DONE]"]),
    ]
    .prop_map(|piece| piece.as_bytes().to_vec());
    let noise = prop::collection::vec(any::<u8>(), 0..4);
    prop::collection::vec(prop_oneof![20 => piece, 1 => noise], 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_split_of_any_bytes_gives_the_items_of_the_standard(
        bytes in any_stream(),
        max in prop_oneof![Just(DEFAULT_MAX_EVENT), 3usize..40],
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let expected = reference(max, &bytes);
        let (whole, mid) = decode_parts(max, [&bytes[..]]);
        prop_assert_eq!(&whole, &expected);
        prop_assert_eq!(&decode_parts(max, bytes.chunks(1)).0, &expected);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let parts = decode_parts(max, cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]));
        prop_assert_eq!(&parts.0, &expected);
        if !expected.contains(&Owned::TooLong) {
            prop_assert_eq!(parts.1, mid);
        }
    }

    #[test]
    fn what_encode_writes_comes_back(
        event in prop::option::of("[^\n\r]{0,8}"),
        id in prop::option::of("[^\n\r\0]{0,8}"),
        lines in prop::collection::vec("[^\n\r]{0,8}", 1..4),
    ) {
        let data = lines.join("\n").into_bytes();
        let mut bytes = Vec::new();
        encode(&mut bytes, event.as_deref(), id.as_deref(), &data);
        let expected = vec![Owned::Event { event, id, retry: None, data }];
        prop_assert_eq!(decode_parts(DEFAULT_MAX_EVENT, [&bytes[..]]), (expected, false));
    }
}

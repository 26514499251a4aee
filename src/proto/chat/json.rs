//! JSON without a tree: an object as an ordered list of raw fields, and the content of one string.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::Serialize;
use serde_json::value::RawValue;
use thiserror::Error;

/// A JSON object whose keys and values stay the text they were, in the order they came in.
///
/// White space between tokens is not kept, everything inside a value is. When a key appears twice the last one is read
/// (as the engines' parsers do), and both are written until one of them is [set](Object::set).
#[derive(Clone, Debug, Default)]
pub(crate) struct Object<'a> {
    fields: Vec<(Cow<'a, RawValue>, Cow<'a, RawValue>)>,
}

impl<'a> Object<'a> {
    /// Reads an object whose values borrow from `json`.
    pub(crate) fn parse(json: &'a str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    /// The raw value of `key`, if there is one.
    pub(crate) fn get(&self, key: &str) -> Option<&RawValue> {
        self.position(key).map(|at| &*self.fields[at].1)
    }

    /// The string that stands at `key`, decoded; `None` for any other kind of value.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        self.get(key).and_then(text).map(Cow::into_owned)
    }

    /// Whether `key` is there with a value other than `null`.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| !is_null(value))
    }

    /// Puts `value` where `key` stands, or at the end.
    pub(crate) fn set(&mut self, key: &str, value: Box<RawValue>) {
        match self.position(key) {
            Some(at) => {
                self.fields[at].1 = Cow::Owned(value);
                self.keep_only(at, key);
            }
            None => self.fields.push((Cow::Owned(raw(key)), Cow::Owned(value))),
        }
    }

    /// Puts `value` right behind `neighbour` under a new `key`, or at the end when there is no such neighbour.
    pub(crate) fn insert_after(&mut self, neighbour: &str, key: &str, value: Box<RawValue>) {
        let at = self.position(neighbour).map_or(self.fields.len(), |at| at + 1);
        self.fields.insert(at, (Cow::Owned(raw(key)), Cow::Owned(value)));
    }

    /// Gives the field `from` another name and leaves it where it is. A field that already has that name goes, and so do
    /// earlier ones of the old name, which would show now that the last one is gone.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        let Some(at) = self.position(from) else { return };
        self.keep_only(at, from);
        if from != to {
            self.remove(to);
        }
        if let Some(at) = self.position(from) {
            self.fields[at].0 = Cow::Owned(raw(to));
        }
    }

    /// Takes `key` out and says whether it was there.
    pub(crate) fn remove(&mut self, key: &str) -> bool {
        let before = self.fields.len();
        self.fields.retain(|(name, _)| !is_key(name, key));
        self.fields.len() < before
    }

    /// The same fields without a borrow.
    pub(crate) fn into_owned(self) -> Object<'static> {
        let own = |text: Cow<'a, RawValue>| Cow::Owned(text.into_owned());
        Object { fields: self.fields.into_iter().map(|(key, value)| (own(key), own(value))).collect() }
    }

    /// How long [`to_text`](Self::to_text) is, in bytes, or one more.
    pub(crate) fn text_len(&self) -> usize {
        self.fields.iter().map(|(key, value)| key.get().len() + value.get().len() + 2).sum::<usize>() + 2
    }

    /// The object as compact JSON text.
    pub(crate) fn to_text(&self) -> String {
        let mut out = String::with_capacity(self.text_len());
        out.push('{');
        for (at, (key, value)) in self.fields.iter().enumerate() {
            if at > 0 {
                out.push(',');
            }
            out.push_str(key.get());
            out.push(':');
            out.push_str(value.get());
        }
        out.push('}');
        out
    }

    /// The object as one raw value, for nesting.
    pub(crate) fn to_raw(&self) -> Box<RawValue> {
        raw_text(self.to_text())
    }

    fn position(&self, key: &str) -> Option<usize> {
        self.fields.iter().rposition(|(name, _)| is_key(name, key))
    }

    fn keep_only(&mut self, at: usize, key: &str) {
        let mut index = 0;
        self.fields.retain(|(name, _)| {
            let keep = index == at || !is_key(name, key);
            index += 1;
            keep
        });
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Object<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<'a>(std::marker::PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Fields<'a> {
            type Value = Object<'a>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'a>, A::Error> {
                let mut fields = Vec::new();
                while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    fields.push((Cow::Borrowed(key), Cow::Borrowed(value)));
                }
                Ok(Object { fields })
            }
        }
        deserializer.deserialize_map(Fields(std::marker::PhantomData))
    }
}

/// The raw JSON of a value made in this program.
///
/// # Panics
/// If `value` cannot be JSON at all, such as a map whose keys are not strings. No input from outside can bring that about.
#[expect(clippy::expect_used, reason = "the values are this program's own, and JSON by construction")]
pub(crate) fn raw(value: &(impl Serialize + ?Sized)) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).expect("a value built by Baton is representable as JSON")
}

/// JSON text put together in this program, as a raw value.
///
/// # Panics
/// If `text` is not JSON. It is made from raw values and constants only, so no input from outside can bring that about.
#[expect(clippy::expect_used, reason = "the text is joined from values that were read as JSON")]
pub(crate) fn raw_text(text: String) -> Box<RawValue> {
    RawValue::from_string(text).expect("text joined from raw values is JSON")
}

/// Whether the raw value is `null`.
pub(crate) fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// Whether the value stands for nothing in the mouth of a careless engine: `null`, `false`, `""`, `[]` or `{}`.
pub(crate) fn says_nothing(value: &RawValue) -> bool {
    let json = value.get();
    let inside = |open, close| json.strip_prefix(open).and_then(|rest| rest.strip_suffix(close));
    let empty = |open, close| inside(open, close).is_some_and(|inside: &str| inside.trim_ascii_start().is_empty());
    matches!(json, "null" | "false" | "\"\"") || empty('[', ']') || empty('{', '}')
}

/// The string that `value` is, decoded and borrowed where it has no escapes; `None` for any other kind of value, and for a string
/// that holds half of a surrogate pair.
pub(crate) fn text(value: &RawValue) -> Option<Cow<'_, str>> {
    decode(string_content(value)?).ok()
}

/// The content of a raw JSON string, between its quotes; `None` for any other kind of value.
pub(crate) fn string_content(value: &RawValue) -> Option<&str> {
    value.get().strip_prefix('"')?.strip_suffix('"')
}

/// 2^53. Above it a float no longer says which whole number was meant.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

/// A whole number that is not negative, in any of the ways engines and clients write one: `5`, `5.0`, `"5"`.
pub(crate) fn whole_number(value: &RawValue) -> Option<u64> {
    let text = string_content(value).unwrap_or_else(|| value.get());
    text.parse().ok().or_else(|| {
        let float: f64 = text.parse().ok()?;
        (float.fract() == 0.0 && (0.0..=MAX_WHOLE).contains(&float)).then_some(float as u64)
    })
}

/// Like [`whole_number`], without what stands behind the point.
pub(crate) fn whole_part(value: &RawValue) -> Option<u64> {
    whole_number(value).or_else(|| {
        let float: f64 = string_content(value).unwrap_or_else(|| value.get()).parse().ok()?;
        (0.0..=MAX_WHOLE).contains(&float).then_some(float as u64)
    })
}

/// The elements of a raw JSON array, each as it was; `None` for any other kind of value.
pub(crate) fn elements(value: &RawValue) -> Option<Vec<&RawValue>> {
    struct Elements;
    impl<'de> Visitor<'de> for Elements {
        type Value = Vec<&'de RawValue>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = seq.next_element()? {
                elements.push(element);
            }
            Ok(elements)
        }
    }
    serde_json::Deserializer::from_str(value.get()).deserialize_seq(Elements).ok()
}

/// The text with `null` for every `NaN`, `Infinity` and `-Infinity` that stands where a value may; `None` if there is none.
/// Python's `json.dumps` writes them, and they are not JSON.
pub(crate) fn without_nan(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut copied = 0;
    let mut at = 0;
    let mut inside_string = false;
    while let Some(&byte) = text.as_bytes().get(at) {
        let token = match byte {
            b'"' => {
                inside_string = !inside_string;
                None
            }
            b'\\' if inside_string => {
                at += 1;
                None
            }
            b'N' | b'I' | b'-' if !inside_string => {
                ["NaN", "Infinity", "-Infinity"].into_iter().find(|token| text[at..].starts_with(token))
            }
            _ => None,
        };
        if let Some(token) = token {
            out.push_str(&text[copied..at]);
            out.push_str("null");
            copied = at + token.len();
        }
        at += token.map_or(1, str::len);
    }
    out.push_str(&text[copied..]);
    (copied > 0).then_some(out)
}

fn is_key(name: &RawValue, key: &str) -> bool {
    text(name).is_some_and(|name| name == key)
}

/// Text that is not the content of a JSON string: bad UTF-8, a control character, a quote, an unknown escape or half of a
/// surrogate pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("not the content of a JSON string")]
pub struct BadEscape;

/// What the content of a JSON string (without its quotes) stands for, borrowed where it has no escapes.
pub(crate) fn decode(content: &str) -> Result<Cow<'_, str>, BadEscape> {
    if !content.contains('\\') {
        return Ok(Cow::Borrowed(content));
    }
    let mut text = String::with_capacity(content.len());
    unescape(content.as_bytes(), &mut text)?;
    Ok(Cow::Owned(text))
}

/// Appends what the content of a JSON string (without its quotes) stands for. On an error `out` is as it was.
pub(crate) fn unescape(escaped: &[u8], out: &mut String) -> Result<(), BadEscape> {
    let text = std::str::from_utf8(escaped).map_err(|_| BadEscape)?;
    let before = out.len();
    let appended = append_unescaped(text, out);
    if appended.is_err() {
        out.truncate(before);
    }
    appended
}

fn append_unescaped(text: &str, out: &mut String) -> Result<(), BadEscape> {
    let bytes = text.as_bytes();
    let mut copied = 0;
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => {
                out.push_str(&text[copied..at]);
                at += push_escape(&bytes[at + 1..], out)? + 1;
                copied = at;
            }
            b'"' | 0..0x20 => return Err(BadEscape),
            _ => at += 1,
        }
    }
    out.push_str(&text[copied..]);
    Ok(())
}

/// Reads one escape from behind its backslash, appends its character and returns how many bytes it took.
fn push_escape(rest: &[u8], out: &mut String) -> Result<usize, BadEscape> {
    let simple = match rest.first().ok_or(BadEscape)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return push_unicode(&rest[1..], out).map(|taken| taken + 1),
        _ => return Err(BadEscape),
    };
    out.push(simple);
    Ok(1)
}

/// Reads what follows `\u`: four digits, or a pair of surrogates with another `\u` between them.
fn push_unicode(rest: &[u8], out: &mut String) -> Result<usize, BadEscape> {
    let high = four_digits(rest)?;
    if let Some(character) = char::from_u32(high) {
        out.push(character);
        return Ok(4);
    }
    let low = match rest.get(4..6) {
        Some(br"\u") if high < 0xDC00 => four_digits(&rest[6..])?,
        _ => return Err(BadEscape),
    };
    if !(0xDC00..0xE000).contains(&low) {
        return Err(BadEscape);
    }
    out.push(char::from_u32(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)).ok_or(BadEscape)?);
    Ok(10)
}

fn four_digits(rest: &[u8]) -> Result<u32, BadEscape> {
    let digits = rest.get(..4).ok_or(BadEscape)?;
    digits.iter().try_fold(0, |value, &digit| Ok(value << 4 | char::from(digit).to_digit(16).ok_or(BadEscape)?))
}

//! The file as a tree that remembers its lines.
//!
//! Deserializing straight into structs stops at the first mistake. This tree accepts any YAML, so that
//! [`super::reader`] can walk it and collect them all. `${NAME}` is put in here, after parsing: what stands in the
//! environment can change a value and never the shape of the file.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

use super::reader::{Mistake, Mistakes};

/// A file nests at most so deep; the schema needs 5. Bounds the recursion of everything that walks the tree.
const MAX_DEPTH: usize = 32;

/// A value of the file and the line it begins on.
#[derive(Debug)]
pub(super) struct Node {
    pub line: u64,
    pub value: Value,
}

/// What YAML made of it.
#[derive(Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    /// Text in which `${…}` stood. `shown` is what was written: the value itself is never repeated in a message.
    FromEnv {
        text: String,
        shown: String,
    },
    /// `${…}` could not be put in, which has been reported: no more shall be said about this value.
    Unset,
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub key: String,
    pub line: u64,
    pub node: Node,
}

/// Reads `text` and puts the environment in. `None`: the file is not YAML at all, which has been reported. An empty
/// file is an empty mapping.
pub(super) fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>, mistakes: &mut Mistakes) -> Option<Node> {
    let mut budget = serde_saphyr::Budget::default();
    budget.max_depth = MAX_DEPTH;
    let options = serde_saphyr::options! {
        budget: Some(budget),
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        strict_booleans: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Node>>(text, options) {
        Ok(root) => {
            let mut root = Node::from(root);
            // What is missing at the top is missing from line 1 on, however many comments come first.
            root.line = 1;
            expand(&mut root, "", env, mistakes);
            Some(root)
        }
        Err(serde_saphyr::Error::Eof { .. }) => Some(Node { line: 1, value: Value::Map(Vec::new()) }),
        Err(error) => {
            let line = error.location().map_or(1, |at| at.line());
            mistakes.push(Mistake {
                line,
                path: String::new(),
                text: format!("cannot be read as YAML: {}", plain(&error)),
            });
            None
        }
    }
}

/// What the parser says, without its location, which stands before it already, and without advice for programmers.
fn plain(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::MultipleDocuments { .. } => {
            return "there is more than one document; take out the --- between them".to_owned();
        }
        serde_saphyr::Error::NullIntoString { .. } => return "a key is missing before its colon".to_owned(),
        _ => {}
    }
    let text = error.to_string();
    let text = text.lines().next().unwrap_or_default();
    text.rfind(" at line ").map_or(text, |at| &text[..at]).to_owned()
}

impl From<Spanned<Node>> for Node {
    fn from(spanned: Spanned<Node>) -> Self {
        Node { line: spanned.defined.line(), value: spanned.value.value }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNode).map(|value| Node { line: 0, value })
    }
}

struct AnyNode;

impl<'de> Visitor<'de> for AnyNode {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = access.next_element::<Spanned<Node>>()? {
            nodes.push(node.into());
        }
        Ok(Value::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Spanned<String>>()? {
            let node = access.next_value::<Spanned<Node>>()?.into();
            entries.push(Entry { line: key.defined.line(), key: key.value, node });
        }
        Ok(Value::Map(entries))
    }
}

/// Puts the environment into every text under `node`.
fn expand(node: &mut Node, path: &str, env: &dyn Fn(&str) -> Option<String>, mistakes: &mut Mistakes) {
    match &mut node.value {
        Value::List(nodes) => {
            for (i, node) in nodes.iter_mut().enumerate() {
                expand(node, &format!("{path}[{i}]"), env, mistakes);
            }
        }
        Value::Map(entries) => {
            for entry in entries {
                expand(&mut entry.node, &join(path, &entry.key), env, mistakes);
            }
        }
        Value::Text(text) if text.contains('$') => match substitute(text, env) {
            Ok(Some(value)) => node.value = Value::FromEnv { text: value, shown: std::mem::take(text) },
            Ok(None) => *text = text.replace("$${", "${"),
            Err(why) => {
                mistakes.push(Mistake { line: node.line, path: path.to_owned(), text: why });
                node.value = Value::Unset;
            }
        },
        _ => {}
    }
}

/// `a.b`, and `b` at the top.
pub(super) fn join(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        _ => format!("{path}.{key}"),
    }
}

/// `text` with every `${NAME}` replaced and every `$${` as a plain `${`. `None`: there was nothing to replace.
fn substitute(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>, String> {
    let (mut out, mut rest, mut replaced) = (String::new(), text, false);
    while let Some(at) = rest.find("${") {
        if let Some(before) = rest[..at].strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        out.push_str(&rest[..at]);
        let inner = &rest[at + 2..];
        let name = inner.find('}').map(|end| &inner[..end]).filter(|name| is_variable(name));
        let name = name.ok_or("has a \"${\" that does not begin ${NAME}; write $${ where a plain ${ is meant")?;
        out.push_str(&env(name).ok_or_else(|| format!("${{{name}}} is not set in the environment"))?);
        rest = &inner[name.len() + 1..];
        replaced = true;
    }
    out.push_str(rest);
    Ok(replaced.then_some(out))
}

fn is_variable(name: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    name.bytes().next().is_some_and(letter) && name.bytes().all(|b| letter(b) || b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        match name {
            "A" => Some("one".to_owned()),
            "EMPTY" => Some(String::new()),
            "TRICKY" => Some("${A}: [".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn the_environment_is_put_in_once_and_anywhere_in_a_text() {
        for (text, expected) in [
            ("${A}", "one"),
            ("x${A}y${A}", "xoneyone"),
            ("${EMPTY}", ""),
            ("${TRICKY}", "${A}: ["),
            ("$${A} ${A}", "${A} one"),
            ("$ ${A}", "$ one"),
        ] {
            assert_eq!(substitute(text, &env), Ok(Some(expected.to_owned())), "{text}");
        }
    }

    #[test]
    fn a_text_without_a_variable_stays_as_it_is_but_for_the_escape() {
        for text in ["plain", "$5", "a$", "$${A}"] {
            assert_eq!(substitute(text, &env), Ok(None), "{text}");
        }
        let mut mistakes = Mistakes::default();
        let node = parse("a: $${A}", &env, &mut mistakes).unwrap();
        let Value::Map(entries) = node.value else { panic!("a mapping") };
        assert!(matches!(&entries[0].node.value, Value::Text(text) if text == "${A}"));
    }

    #[test]
    fn a_missing_variable_is_named_and_a_broken_one_explained() {
        assert_eq!(substitute("${NO}", &env), Err("${NO} is not set in the environment".to_owned()));
        for text in ["${", "${A", "${}", "${1}", "${A B}", "${A:-x}"] {
            assert!(substitute(text, &env).unwrap_err().contains("$${"), "{text}");
        }
    }

    #[test]
    fn lines_are_those_of_the_file() {
        let mut mistakes = Mistakes::default();
        let node = parse("# note\na:\n  - 1\n  - b: x\n    c: {d: 2}\n", &env, &mut mistakes).unwrap();
        let Value::Map(root) = node.value else { panic!("a mapping") };
        assert_eq!(root[0].line, 2);
        let Value::List(items) = &root[0].node.value else { panic!("a list") };
        assert_eq!((items[0].line, items[1].line), (3, 4));
        let Value::Map(inner) = &items[1].value else { panic!("a mapping") };
        assert_eq!((inner[1].line, inner[1].node.line), (5, 5));
    }
}

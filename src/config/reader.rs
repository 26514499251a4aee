//! Reads a [`Node`] tree key by key and remembers every mistake on the way instead of stopping at the first.
//!
//! A [`Table`] is asked for the keys it may have; what it was not asked for is an unknown key when it is closed. So the
//! schema is said once, by the code that reads it.

use std::fmt;

use super::node::{Entry, Node, Value, join};
use super::units::{Wrong, list, nearest};

/// One mistake: where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The line in the file, from 1.
    pub line: u64,
    /// The key, as `routes[0].timeouts.idle`; empty for the whole file.
    pub path: String,
    /// What is wrong and what is accepted. Never a value that came from the environment.
    pub text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{}: {}", self.line, self.text),
            path => write!(f, "{}: {path}: {}", self.line, self.text),
        }
    }
}

/// The mistakes found so far.
pub(super) type Mistakes = Vec<Mistake>;

/// A scalar as the parsers of single values see it.
#[derive(Clone, Copy)]
pub(super) enum Scalar<'n> {
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'n str),
    /// From the environment, which knows no types: it may stand for a number or a boolean too.
    Untyped(&'n str),
}

impl<'n> Scalar<'n> {
    /// # Errors
    /// [`Wrong::Text`] for what YAML read as a number or a boolean.
    pub fn text(self) -> Result<&'n str, Wrong> {
        match self {
            Self::Text(text) | Self::Untyped(text) => Ok(text),
            _ => Err(Wrong::Text),
        }
    }

    /// The words of a quantity: a bare number is none, and its parser shall say what is missing.
    pub fn words(self, otherwise: Wrong) -> Result<&'n str, Wrong> {
        self.text().map_err(|_| otherwise)
    }

    /// # Errors
    /// [`Wrong::Whole`].
    pub fn whole(self) -> Result<i128, Wrong> {
        match self {
            Self::Int(value) => Ok(value),
            Self::Untyped(text) => text.parse().map_err(|_| Wrong::Whole),
            _ => Err(Wrong::Whole),
        }
    }

    /// # Errors
    /// [`Wrong::Number`].
    pub fn number(self) -> Result<f64, Wrong> {
        match self {
            Self::Int(value) => Ok(value as f64),
            Self::Float(value) => Ok(value),
            Self::Untyped(text) => text.parse().map_err(|_| Wrong::Number),
            _ => Err(Wrong::Number),
        }
    }

    /// # Errors
    /// [`Wrong::Flag`].
    pub fn flag(self) -> Result<bool, Wrong> {
        match self {
            Self::Bool(value) => Ok(value),
            Self::Untyped("true") => Ok(true),
            Self::Untyped("false") => Ok(false),
            _ => Err(Wrong::Flag),
        }
    }
}

/// A value with the place it stands at.
#[derive(Clone)]
pub(super) struct Item<'n> {
    pub node: &'n Node,
    pub path: String,
}

impl<'n> Item<'n> {
    /// Line and key, as warnings begin with them.
    pub fn place(&self) -> String {
        format!("line {}: {}", self.node.line, self.path)
    }

    /// Notes a mistake here.
    pub fn mistake(&self, text: String, mistakes: &mut Mistakes) {
        mistakes.push(Mistake { line: self.node.line, path: self.path.clone(), text });
    }

    /// Notes that the value here is wrong: the value as it was written, then why.
    pub fn wrong(&self, why: &Wrong, mistakes: &mut Mistakes) {
        let shown = match &self.node.value {
            // An endpoint with a password in it shall not be repeated either.
            Value::Text(text) if matches!(why, Wrong::Endpoint(_)) && text.contains('@') => "this".to_owned(),
            _ => self.shown(),
        };
        self.mistake(format!("{shown} {why}"), mistakes);
    }

    /// The value here as a message may repeat it.
    pub fn shown(&self) -> String {
        match &self.node.value {
            Value::Null | Value::Unset => "nothing".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Int(value) => value.to_string(),
            Value::Float(value) => format!("{value:?}"),
            Value::Text(text) => quote(text),
            Value::FromEnv { shown, .. } => format!("the value of {}", quote(shown)),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a mapping".to_owned(),
        }
    }

    /// Does the value here come from the environment? Then no message may repeat it.
    pub fn is_from_env(&self) -> bool {
        matches!(self.node.value, Value::FromEnv { .. })
    }

    /// Reads a single value. `None`: it is wrong, which has been noted.
    pub fn read<T>(&self, parse: impl FnOnce(Scalar<'n>) -> Result<T, Wrong>, mistakes: &mut Mistakes) -> Option<T> {
        let scalar = match &self.node.value {
            Value::Bool(value) => Scalar::Bool(*value),
            Value::Int(value) => Scalar::Int(*value),
            Value::Float(value) => Scalar::Float(*value),
            Value::Text(text) => Scalar::Text(text),
            Value::FromEnv { text, .. } => Scalar::Untyped(text),
            Value::Unset => return None,
            Value::Null => {
                self.mistake("has no value; write one, or leave the key out".to_owned(), mistakes);
                return None;
            }
            Value::List(_) | Value::Map(_) => {
                let found = if matches!(self.node.value, Value::List(_)) { "a list" } else { "a mapping" };
                self.mistake(format!("is {found} where a single value is expected"), mistakes);
                return None;
            }
        };
        parse(scalar).map_err(|why| self.wrong(&why, mistakes)).ok()
    }

    /// The elements of a list. `None`: it is none, which has been noted.
    pub fn list(&self, mistakes: &mut Mistakes) -> Option<Vec<Item<'n>>> {
        match &self.node.value {
            Value::List(nodes) => Some(
                nodes.iter().enumerate().map(|(i, node)| Item { node, path: format!("{}[{i}]", self.path) }).collect(),
            ),
            Value::Unset => None,
            _ => {
                self.mistake("is not a list; write [ … ] or lines that begin with \"- \"".to_owned(), mistakes);
                None
            }
        }
    }

    /// Does a list stand here?
    pub fn is_list(&self) -> bool {
        matches!(self.node.value, Value::List(_))
    }

    /// The elements of a list; of anything else itself, as the only one.
    pub fn one_or_list(&self, mistakes: &mut Mistakes) -> Vec<Item<'n>> {
        if self.is_list() { self.list(mistakes).unwrap_or_default() } else { vec![self.clone()] }
    }
}

/// At most 60 characters of `text`, quoted and escaped.
pub(super) fn quote(text: &str) -> String {
    match text.char_indices().nth(60) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}…", &text[..end]),
    }
}

/// A mapping that is being read.
pub(super) struct Table<'n> {
    path: String,
    line: u64,
    entries: &'n [Entry],
    asked: Vec<&'static str>,
    /// Something else stood where this mapping was expected: that has been noted, and nothing is missing from it.
    broken: bool,
}

impl<'n> Table<'n> {
    /// Opens the mapping at `item`. What is no mapping is noted and reads as an empty one; so does a key without a
    /// value.
    pub fn open(item: &Item<'n>, mistakes: &mut Mistakes) -> Self {
        let (entries, broken): (&[Entry], bool) = match &item.node.value {
            Value::Map(entries) => (entries, false),
            Value::Null => (&[], false),
            Value::Unset => (&[], true),
            _ => {
                item.mistake(
                    "is not a mapping; write { key: value } or indented lines of key: value".to_owned(),
                    mistakes,
                );
                (&[], true)
            }
        };
        for (i, entry) in entries.iter().enumerate() {
            if let Some(first) = entries[..i].iter().find(|first| first.key == entry.key) {
                let text = format!("is written twice; the first is on line {}", first.line);
                mistakes.push(Mistake { line: entry.line, path: join(&item.path, &entry.key), text });
            }
        }
        Self { path: item.path.clone(), line: item.node.line, entries, asked: Vec::new(), broken }
    }

    /// Line and key, as warnings begin with them.
    pub fn place(&self) -> String {
        format!("line {}: {}", self.line, self.path)
    }

    /// Notes a mistake about the value of `key`, also where that is a default.
    pub fn mistake(&self, key: &str, text: String, mistakes: &mut Mistakes) {
        let line = self.entries.iter().find(|entry| entry.key == key).map_or(self.line, |entry| entry.node.line);
        mistakes.push(Mistake { line, path: join(&self.path, key), text });
    }

    /// The value of `key`, if it is written. Of a key that is written twice, the first.
    pub fn find(&mut self, key: &'static str) -> Option<Item<'n>> {
        self.asked.push(key);
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        Some(Item { node: &entry.node, path: join(&self.path, key) })
    }

    /// The value of `key`, or `default` where it is not written (or wrong, which is noted).
    pub fn or<T>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl FnOnce(Scalar<'n>) -> Result<T, Wrong>,
        mistakes: &mut Mistakes,
    ) -> T {
        self.find(key).and_then(|item| item.read(parse, mistakes)).unwrap_or(default)
    }

    /// The value of a key that must be there; it is noted where it is not. `example` shows how to write it.
    pub fn must(&mut self, key: &'static str, example: &str, mistakes: &mut Mistakes) -> Option<Item<'n>> {
        let found = self.find(key);
        if found.is_none() && !self.broken {
            self.mistake(key, format!("is missing; write {key}: {example}"), mistakes);
        }
        found
    }

    /// The mapping under `key`; an empty one where it is not written.
    pub fn table(&mut self, key: &'static str, mistakes: &mut Mistakes) -> Table<'n> {
        match self.find(key) {
            Some(item) => Table::open(&item, mistakes),
            None => {
                let path = join(&self.path, key);
                Table { path, line: self.line, entries: &[], asked: Vec::new(), broken: self.broken }
            }
        }
    }

    /// Notes every key that was not asked for.
    pub fn close(self, mistakes: &mut Mistakes) {
        for entry in self.entries.iter().filter(|entry| !self.asked.contains(&entry.key.as_str())) {
            let text = match nearest(&entry.key, &self.asked) {
                Some(known) => format!("is not a key here; did you mean {known}?"),
                None => format!("is not a key here; the keys are {}", list(&self.asked)),
            };
            let key = quote(&entry.key);
            let path = join(&self.path, key.trim_matches('"'));
            mistakes.push(Mistake { line: entry.line, path, text });
        }
    }
}

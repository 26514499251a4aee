//! The model: a whole answer as ids, and what follows after some of them.
//!
//! As with a real model at temperature 0, the answer is a function of the ids before it, the seed and nothing else. It does not matter whether
//! they came as messages, as ids in a chat request, or in a request for completions or tokens.

use super::ask::Lengths;
use super::config::Config;
use super::family::Family;
use super::prompt::{header_end, opening, tool_in};
use super::text::{Kind, Position, Text, key};
use super::tokens::{END, decode, encode, encode_bytes};

/// What an answer depends on besides the ids before it.
#[derive(Clone, Debug)]
pub(super) struct Model<'a> {
    pub(super) config: &'a Config,
    pub(super) family: Family,
    /// The request's `seed` as it was written; empty without one.
    pub(super) seed: String,
    pub(super) lengths: Lengths,
    /// Whether thinking is on where the ids do not tell.
    pub(super) thinks: bool,
}

/// Begins every answer to a prompt without a header, such as a text to be completed, so that the answer can be told from it later.
pub(super) const MARK: &str = "⁂";

/// The arguments of every scripted tool call.
pub(super) const ARGUMENTS: &[&str] =
    &["{", "\"city\"", ": \"", "Zü", "rich", " 北京", " 🚀\"", ", \"unit\"", ": \"celsius", "\"", "}"];

impl Model<'_> {
    fn key(&self, header: &[u32], choice: u64) -> u64 {
        let ids: Vec<u8> = header.iter().flat_map(|id| id.to_le_bytes()).collect();
        key([&ids[..], self.seed.as_bytes(), &self.config.seed.to_le_bytes(), &choice.to_le_bytes()])
    }

    fn text_of(&self, key: u64, thinks: bool) -> Text {
        let reasoning = if thinks { self.lengths.reasoning.unwrap_or(self.config.reasoning) } else { 0 };
        Text::new(key, reasoning, self.lengths.content.unwrap_or(self.config.content))
    }

    /// The text of one choice after a header.
    pub(super) fn text(&self, header: &[u32], thinks: bool, choice: u64) -> Text {
        self.text_of(self.key(header, choice), thinks)
    }

    /// After how many pieces of content a tool is called, and its name.
    pub(super) fn call(&self, header: &[u32]) -> Option<(usize, String)> {
        let after = self.lengths.tool_call.or(self.config.tool_call)?;
        Some((after, tool_in(header)?))
    }

    /// One choice's whole answer after a header.
    pub(super) fn line(&self, header: &[u32], thinks: bool, choice: u64) -> Line {
        self.line_of(self.key(header, choice), header, thinks)
    }

    fn line_of(&self, key: u64, header: &[u32], thinks: bool) -> Line {
        let text = self.text_of(key, thinks);
        let mut ids = Vec::new();
        let mut add = |pieces: &[&str]| pieces.iter().for_each(|piece| encode_bytes(piece.as_bytes(), &mut ids));
        add(text.pieces(Kind::Reasoning));
        let thoughts = ids.len();
        let thought = text.whole(Kind::Reasoning);
        let mut before = thought.len();
        if !thought.is_empty() {
            before += self.family.close.len();
            ids.extend(encode(self.family.close));
        }
        let content = ids.len();
        if header_end(header) != Some(header.len()) {
            ids.extend(encode(MARK));
        }
        let mut add = |pieces: &[&str]| pieces.iter().for_each(|piece| encode_bytes(piece.as_bytes(), &mut ids));
        let pieces = text.pieces(Kind::Content);
        let mut markup = None;
        match self.call(header).filter(|(after, _)| *after <= pieces.len()) {
            Some((after, name)) => {
                add(&pieces[..after]);
                markup = Some(ids.len());
                ids.extend(encode(&format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": ")));
                ARGUMENTS.iter().for_each(|piece| encode_bytes(piece.as_bytes(), &mut ids));
                ids.extend(encode("}\n</tool_call>"));
            }
            None => add(pieces),
        }
        ids.push(END);
        let markup = markup.unwrap_or(ids.len() - 1);
        Line { ids, thoughts, content, markup, before }
    }

    /// What follows after ids that need not be this engine's own.
    pub(super) fn after(&self, ids: &[u32]) -> Place {
        let Some(end) = header_end(ids) else { return self.after_text(ids) };
        let (header, written) = ids.split_at(end);
        let written = decode(written, false);
        for thinks in [false, true] {
            let opening = opening(self.config, &self.family, thinks);
            let said = !opening.is_empty() || thinks == self.thinks;
            let Some(rest) = written.strip_prefix(opening.as_bytes()).filter(|_| said) else { continue };
            if self.line(header, thinks, 0).bytes().starts_with(rest) {
                return Place { header: end, thinks, at: Some(rest.len()) };
            }
        }
        Place { header: end, thinks: self.thinks, at: None }
    }

    /// Where an answer goes on whose form is prescribed: a grammar that starts with the request begins at its root behind the
    /// thinking, whatever of the answer the ids hold (vLLM 0.32, measured). `None`: they hold nothing of it.
    pub(super) fn root(&self, ids: &[u32], place: &Place) -> Option<Place> {
        let root = self.line(&ids[..place.header], place.thinks, 0).before;
        place.at.is_some_and(|at| at > root).then_some(Place { at: Some(root), ..*place })
    }

    /// Without a header, an answer begins with its mark.
    fn after_text(&self, ids: &[u32]) -> Place {
        let mark = encode(MARK);
        let end = ids.windows(mark.len()).position(|window| window == mark).unwrap_or(ids.len());
        let (header, written) = ids.split_at(end);
        let written = decode(written, false);
        let own = self.line(header, false, 0).bytes().starts_with(&written);
        Place { header: end, thinks: false, at: own.then_some(written.len()) }
    }

    /// The tokens that one choice writes from a place on.
    pub(super) fn rest(&self, ids: &[u32], place: &Place, choice: u64) -> Rest {
        let header = &ids[..place.header];
        let Some(at) = place.at else {
            // Not this engine's own text: it goes on in some other way, which the ids decide.
            let line = self.line_of(self.key(ids, choice), header, false);
            return line.cut(line.before).1;
        };
        let own = self.line(header, place.thinks, choice);
        let (written, rest) = own.cut(at);
        if !self.config.sampled || at == 0 {
            return rest;
        }
        let other = self.line_of(self.key(header, choice) ^ key([&at.to_le_bytes()[..]]), header, place.thinks);
        let mut from = match (rest.thoughts, rest.content) {
            (0, 0) => other.content + written.len().saturating_sub(own.content),
            (0, _) => other.thoughts + written.len().saturating_sub(own.thoughts),
            _ => written.len(),
        };
        // Another text, but not one that begins with half a character.
        let is_inside = |id: &u32| decode(&[*id], false).first().is_some_and(|byte| (0x80..0xc0).contains(byte));
        while other.ids.get(from).is_some_and(is_inside) {
            from += 1;
        }
        other.beyond(from, rest.thoughts > 0)
    }
}

/// Where ids stand in an answer of this engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    /// Ids of the header and all before it.
    pub(super) header: usize,
    pub(super) thinks: bool,
    /// Bytes of the answer that have been written; `None`: they are not this engine's.
    pub(super) at: Option<usize>,
}

/// A whole answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Line {
    /// Thinking, the tag that ends it, the answer, a tool call, the end token.
    pub(super) ids: Vec<u32>,
    /// Ids of thinking.
    pub(super) thoughts: usize,
    /// Ids before the answer.
    content: usize,
    /// Ids before the tool call, or before the end token.
    markup: usize,
    /// Bytes before the answer.
    before: usize,
}

/// The tokens that are still to be written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Rest {
    pub(super) ids: Vec<u32>,
    /// How many of them are thinking, come before the answer, and before a tool call.
    pub(super) thoughts: usize,
    pub(super) content: usize,
    pub(super) markup: usize,
}

impl Line {
    fn bytes(&self) -> Vec<u8> {
        decode(&self.ids, false)
    }

    /// Bytes of the answer before a position of its text.
    pub(super) fn offset(&self, thinks: bool, at: Position) -> usize {
        match at.kind {
            Kind::Reasoning => at.offset,
            Kind::Content if thinks => self.before.saturating_add(at.offset),
            Kind::Content => at.offset,
        }
    }

    /// What has been written when so many bytes are, and what is left. Inside a token, the two parts of it are written with other
    /// tokens. Beyond the answer, only the end token is left.
    pub(super) fn cut(&self, bytes: usize) -> (Vec<u32>, Rest) {
        let mut end = 0;
        for (at, id) in self.ids.iter().enumerate() {
            let token = decode(&[*id], false);
            if end == bytes || *id == END {
                return (self.ids[..at].to_vec(), self.beyond(at, false));
            }
            if end + token.len() > bytes {
                let (head, tail) = token.split_at(bytes - end);
                let mut written = self.ids[..at].to_vec();
                encode_bytes(head, &mut written);
                let mut rest = Vec::new();
                encode_bytes(tail, &mut rest);
                let more = rest.len();
                let left = self.beyond(at + 1, false);
                let shift = |count: usize, whole: usize| if at < whole { count + more } else { 0 };
                let rest = Rest {
                    thoughts: shift(left.thoughts, self.thoughts),
                    content: shift(left.content, self.content),
                    markup: shift(left.markup, self.markup),
                    ids: [rest, left.ids].concat(),
                };
                return (written, rest);
            }
            end += token.len();
        }
        (self.ids.clone(), Rest::default())
    }

    /// What is left after so many ids; while thinking, at least the tag that ends it.
    fn beyond(&self, at: usize, thinking: bool) -> Rest {
        let at = if thinking { at.min(self.thoughts) } else { at.min(self.ids.len() - 1) };
        Rest {
            ids: self.ids[at..].to_vec(),
            thoughts: self.thoughts.saturating_sub(at),
            content: self.content.saturating_sub(at),
            markup: self.markup.saturating_sub(at),
        }
    }
}

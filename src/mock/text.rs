//! The engine's text: pieces chosen by a seeded generator.
//!
//! The vocabulary is there to break careless code: several scripts, characters of two to four bytes, emoji of several
//! code points, white space at both ends of pieces and as whole pieces, everything that JSON must escape, and words that
//! look like the wire around them, or like the beginning of a tag. No piece holds a whole tag.
//!
//! Most pieces are one token; some fall apart into several (see [`tokens`](super::tokens)). The tokens of a text are those of its
//! pieces one after the other: a piece that would grow together with the one before it is not chosen.

use serde::Serialize;

use super::tokens::encode_bytes;

/// What a piece of text is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Thinking.
    Reasoning,
    /// The answer.
    Content,
}

/// A piece of text; never empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Piece {
    /// Thinking or answer.
    pub kind: Kind,
    /// Its text.
    pub text: &'static str,
}

/// A place in a text: the next byte to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Position {
    pub(super) kind: Kind,
    pub(super) offset: usize,
}

/// A whole answer's text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Text {
    reasoning: Vec<&'static str>,
    content: Vec<&'static str>,
}

impl Text {
    /// The text of a key. With reasoning, its last piece is a newline and the content begins with a blank line, as models
    /// with think tags write (measured on vLLM 0.32 with Qwen3: the content starts with a blank line after `</think>`).
    pub(super) fn new(key: u64, reasoning: usize, content: usize) -> Self {
        let mut choose = Choose(key ^ 0x7265_6173_6f6e);
        let mut thoughts = Vec::with_capacity(reasoning);
        let end = if reasoning > 1 { "\n" } else { "" };
        for at in 0..reasoning - usize::from(reasoning > 1) {
            let next = if at + 2 == reasoning { end } else { "" };
            choose.push(&mut thoughts, at == 0, next);
        }
        thoughts.extend((reasoning > 1).then_some(end));
        let mut choose = Choose(key ^ 0x616e_7377_6572);
        let blank = usize::from(reasoning > 0 && content > 1);
        let mut answer = vec!["\n\n"; blank];
        for at in blank..content {
            choose.push(&mut answer, at == blank, "");
        }
        Self { reasoning: thoughts, content: answer }
    }

    /// All of one kind.
    pub(super) fn whole(&self, kind: Kind) -> String {
        self.pieces(kind).concat()
    }

    pub(super) fn pieces(&self, kind: Kind) -> &[&'static str] {
        match kind {
            Kind::Reasoning => &self.reasoning,
            Kind::Content => &self.content,
        }
    }

    /// Where it begins.
    pub(super) fn start(&self) -> Position {
        let kind = if self.reasoning.is_empty() { Kind::Content } else { Kind::Reasoning };
        Position { kind, offset: 0 }
    }

    /// What is left from a position on. A position inside a piece gives the rest of that piece as one.
    /// The offset must lie on a character's start; what is beyond the end gives nothing.
    pub(super) fn rest(&self, from: Position) -> Vec<Piece> {
        let mut left = Vec::new();
        for kind in [Kind::Reasoning, Kind::Content] {
            let mut skip = match (kind, from.kind) {
                (Kind::Reasoning, Kind::Content) => continue,
                (kind, at) if kind == at => from.offset,
                _ => 0,
            };
            for text in self.pieces(kind) {
                match text.get(skip..) {
                    Some("") | None => {}
                    Some(text) => left.push(Piece { kind, text }),
                }
                skip = skip.saturating_sub(text.len());
            }
        }
        left
    }

    /// Tokens of the first `bytes` bytes of one kind; a piece that is only begun counts.
    pub(super) fn tokens(&self, kind: Kind, bytes: usize) -> u64 {
        let mut end = 0;
        let begun = self.pieces(kind).iter().take_while(|text| {
            let begins = end;
            end += text.len();
            begins < bytes
        });
        begun.count() as u64
    }
}

/// The key of a text: FNV-1a over everything it depends on, so that it is the same in every build.
pub(super) fn key<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

/// Pieces with which a further one is compared: the longest token is no longer than so many pieces and that one.
const NEIGHBOURS: usize = 4;
/// Pieces tried until one fits.
const TRIES: usize = 64;

/// Everything that is one token.
pub(super) fn vocabulary() -> impl Iterator<Item = &'static str> {
    let lists = [OPENINGS, WORDS, CHINESE, MARKS, EMOJI, AWKWARD, MARKUP];
    lists.into_iter().flatten().copied().filter(|piece| !SEVERAL_TOKENS.contains(piece))
}

/// SplitMix64.
struct Choose(u64);

impl Choose {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Adds a piece that keeps its tokens after those before it, and before `next`.
    fn push(&mut self, pieces: &mut Vec<&'static str>, is_first: bool, next: &str) {
        let before = &pieces[pieces.len().saturating_sub(NEIGHBOURS)..];
        let fits = |piece: &&str| {
            let parts = || before.iter().chain([piece]).copied().chain([next]);
            let mut apart = Vec::new();
            parts().for_each(|part| encode_bytes(part.as_bytes(), &mut apart));
            let mut together = Vec::with_capacity(apart.len());
            encode_bytes(parts().collect::<String>().as_bytes(), &mut together);
            together == apart
        };
        // " the" begins with a blank and a letter, and no token but itself does so after other text.
        let piece = (0..TRIES).map(|_| self.piece(is_first)).find(fits).unwrap_or(" the");
        pieces.push(piece);
    }

    fn piece(&mut self, is_first: bool) -> &'static str {
        if is_first {
            return self.one_of(OPENINGS);
        }
        match self.next() % 100 {
            0..60 => self.one_of(WORDS),
            60..78 => self.one_of(CHINESE),
            78..88 => self.one_of(MARKS),
            88..94 => self.one_of(EMOJI),
            _ => self.one_of(AWKWARD),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below a slice's length")]
    fn one_of(&mut self, list: &[&'static str]) -> &'static str {
        list[(self.next() % list.len() as u64) as usize]
    }
}

const OPENINGS: &[&str] = &["Well", "So", "The", "好", "In", "First", "Okay", "“Yes", " To"];

const WORDS: &[&str] = &[
    " the", " a", " river", " light", "house", " keeps", " turning", " while", " ships", " pass", " slowly", " and",
    " no", "body", " asks", " why", " it", " was", " built", " before", " the", " harbour", " itself", " of", " stone",
    " that", " came", " from", " far", " away", " in", " winter", " when", " ice", " carried", " every", "thing",
    " one", " could", " write", " down", " as", " if", " nothing", " had", " ever", " been", " lost", " 42", " 3.14",
    " x", " :=", " map", "ping", " token", "s", " re", "lay", " runs", " on", " naïve", " café", " Straße", " señor",
];

const CHINESE: &[&str] = &[
    "灯塔",
    "在",
    "海边",
    "，",
    "我们",
    "一起",
    "等待",
    "春天",
    "的",
    "消息",
    "。",
    "不",
    "知道",
    "为什么",
    "河流",
    "继续",
    "向前",
    "：",
    "「光」",
    "繁體",
];

const MARKS: &[&str] = &[
    ".", ",", ".\n\n", ":\n\n", "\n", "\n\n", " ", "  ", "!", "?", ";", " –", "\n- ", "\n1. ", "\t", "\n    ", ". ",
    "\u{3000}", "…", "\n\n## ",
];

const EMOJI: &[&str] = &["🚀", " 🙂", "👩‍👩‍👧", "🇩🇪", "❤️", "👍🏽", "🧵", "𝒳"];

const AWKWARD: &[&str] = &[
    " \"quoted\"",
    " 'single'",
    " C:\\temp\\",
    "\\n",
    "\\u0041",
    " <b>",
    "</b>",
    " {\"a\":[1]}",
    "```rust\n",
    "\n```\n",
    " data: ",
    "[DONE]",
    "\r\n",
    "\u{1}",
    "\u{2028}",
    "\u{7f}",
    "e\u{301}",
    " שלום",
    " `{{x}}`",
    "/",
    "\u{0}",
    " null",
    "&amp;",
    " <",
    "(<",
    " </",
    "<",
];

/// Words of prompts and tool calls.
const MARKUP: &[&str] = &[
    "user",
    "assistant",
    "system",
    "tool",
    "think",
    "response",
    "{\"name\": \"",
    "\", \"arguments\": ",
    "}\n",
    "\"city\"",
    ": \"",
    "rich",
    " 北京",
    ", \"unit\"",
    ": \"celsius",
    "get",
    "_weather",
    "weather",
];

/// Pieces that fall apart.
const SEVERAL_TOKENS: &[&str] =
    &["灯塔", "消息", "等待", "「光」", " 🙂", "👩‍👩‍👧", "🇩🇪", "👍🏽", "🧵", "𝒳", "e\u{301}", " שלום"];

#[cfg(test)]
mod tests {
    use super::super::tokens::encode;
    use super::*;

    fn text() -> Text {
        Text::new(key([&b"x"[..]]), 30, 60)
    }

    #[test]
    fn the_same_key_gives_the_same_text_and_another_key_another() {
        assert_eq!(text(), text());
        assert_ne!(text(), Text::new(key([&b"y"[..]]), 30, 60));
    }

    #[test]
    fn lengths_are_exact_and_no_piece_is_empty_or_holds_a_tag() {
        for (reasoning, content) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2), (30, 60)] {
            let text = Text::new(7, reasoning, content);
            let pieces = text.rest(text.start());
            assert_eq!(pieces.len(), reasoning + content);
            assert!(pieces.iter().all(|piece| !piece.text.is_empty()));
        }
        for list in [OPENINGS, WORDS, CHINESE, MARKS, EMOJI, AWKWARD] {
            assert!(list.iter().all(|piece| !piece.is_empty() && !piece.contains("think") && !piece.contains("<|")));
        }
    }

    #[test]
    fn the_tokens_of_a_text_are_those_of_its_pieces() {
        for seed in 0..200 {
            let text = Text::new(seed, 40, 40);
            for kind in [Kind::Reasoning, Kind::Content] {
                let pieces: Vec<u32> = text.pieces(kind).iter().copied().flat_map(encode).collect();
                assert_eq!(encode(&text.whole(kind)), pieces, "seed {seed}");
            }
        }
    }

    #[test]
    fn the_rest_from_every_position_completes_the_text() {
        let text = text();
        let whole: String = text.rest(text.start()).iter().map(|piece| piece.text).collect();
        for kind in [Kind::Reasoning, Kind::Content] {
            let before = if kind == Kind::Content { text.whole(Kind::Reasoning).len() } else { 0 };
            let all = text.whole(kind);
            for offset in (0..=all.len()).filter(|offset| all.is_char_boundary(*offset)) {
                let rest: String = text.rest(Position { kind, offset }).iter().map(|piece| piece.text).collect();
                assert_eq!(rest, whole[before + offset..]);
            }
        }
    }

    #[test]
    fn tokens_of_a_prefix_are_counted_by_pieces() {
        let text = text();
        let mut bytes = 0;
        for (at, piece) in text.pieces(Kind::Content).iter().enumerate() {
            assert_eq!(text.tokens(Kind::Content, bytes), at as u64);
            assert_eq!(text.tokens(Kind::Content, bytes + 1), at as u64 + 1);
            bytes += piece.len();
        }
    }
}

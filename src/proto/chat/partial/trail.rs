//! The token ids of an answer, as far as engines list them.

use std::ops::Range;

use super::ChunkChoice;
use super::piece_ends_in_half;
use crate::proto::chat::ids::{IdList, TokenIds};

/// The ids of a prompt and of the answer to it, both complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids<'p> {
    /// The prompt's, chat template and all.
    pub prompt: &'p TokenIds,
    /// The answer's so far.
    pub answer: &'p TokenIds,
    /// How many of the answer's there were at the end of the last event that brought text, and text that does not end inside a
    /// character. Those behind it have brought none.
    pub at_text: usize,
}

/// What has come of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trail {
    /// Most ids kept, of prompt and answer together; with more of them an answer is not continued by ids.
    most: usize,
    prompt: TokenIds,
    /// How many ids the prompt has, be they kept or not.
    prompt_tokens: Option<u64>,
    answer: TokenIds,
    at_text: usize,
    /// The last ids of choice 0, be they kept or not, have brought no text.
    ahead: bool,
    /// Ids of all choices.
    total: u64,
    thinking: Thinking,
    /// Something came without ids, so they do not cover everything.
    gaps: bool,
    /// There are more of them than are kept.
    over: bool,
    /// They are not all of *this* answer's ids in this prompt any more: a leg went on from text.
    broken: bool,
}

/// The thinking among the ids of choice 0: all of them from the beginning to `end`, but for some.
///
/// vLLM counts the ids of an event whose text is not empty and thinking, up to the mark that ends it (0.32 with the qwen3 parser,
/// measured): not the first parts of a character, which come without text, and not the mark that begins it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Thinking {
    /// How many ids of the answer there were when the last of them came.
    end: usize,
    /// The places of those before `end` that do not count.
    apart: Vec<u32>,
    /// The ids of the last event that brought thinking, if there were several: the mark that ends it may be among them.
    last: Option<Range<usize>>,
    /// Thinking whose ids are not kept.
    more: u64,
}

impl Thinking {
    fn ids(&self) -> u64 {
        self.end.saturating_sub(self.apart.len()) as u64 + self.more
    }

    /// Thinking has come with the ids in `event`. `answering`: with the beginning of the answer in the same event, so that nobody knows
    /// which of the ids were thinking. `first`: the first byte of its text. Where a mark may begin
    /// with it, the ids before it that brought no text were withheld for that, and count, unless they are the mark that begins thinking.
    fn hear(&mut self, event: Range<usize>, answering: bool, first: u8) {
        if !matches!(first, b'<' | b'[') || self.ids() == 0 {
            self.apart.extend((self.end..event.start).filter_map(|place| u32::try_from(place).ok()));
        }
        self.end = if answering { event.start } else { event.end };
        self.last = (event.len() > 1).then_some(event);
    }

    fn cut(&mut self, len: usize) {
        self.end = self.end.min(len);
        self.apart.retain(|place| (*place as usize) < len);
        self.last = self.last.take().filter(|last| last.end <= len);
    }
}

impl Trail {
    /// Keeps at most so many ids.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            prompt: TokenIds::new(),
            prompt_tokens: None,
            answer: TokenIds::new(),
            at_text: 0,
            ahead: false,
            total: 0,
            thinking: Thinking::default(),
            gaps: false,
            over: false,
            broken: false,
        }
    }

    /// Whether so many more ids have room.
    fn fits(&self, more: u64) -> bool {
        (self.prompt.len() + self.answer.len()) as u64 + more <= self.most as u64
    }

    /// The prompt's ids, which an engine lists once, with its first event.
    pub(super) fn hear_prompt(&mut self, list: &IdList<'_>) {
        if self.prompt_tokens.is_some() || !self.answer.is_empty() {
            return;
        }
        self.prompt_tokens = Some(list.count());
        self.over = !self.fits(list.count());
        if !self.over {
            self.prompt.push_json(list.json());
        }
    }

    /// One choice's piece as the engine sent it. `answering`: the choice's answer has begun, with this piece at the latest.
    pub(super) fn hear(&mut self, piece: &ChunkChoice<'_>, answering: bool) {
        let Some(ids) = &piece.token_ids else {
            self.gaps |= piece.has_output();
            return;
        };
        self.total += ids.count();
        if piece.index != 0 {
            return;
        }
        let first = piece.reasoning.as_ref().and_then(|text| text.bytes().next());
        let whole = piece.has_output() && !piece_ends_in_half(piece);
        self.ahead = !whole && (self.ahead || ids.count() > 0);
        self.over |= !self.fits(ids.count());
        if self.broken || self.over || !self.answer.push_json(ids.json()) {
            self.broken = true;
            self.thinking.more += if first.is_some() && !answering { ids.count() } else { 0 };
            return;
        }
        if let Some(first) = first {
            let event = self.answer.len() - ids.count() as usize..self.answer.len();
            self.thinking.hear(event, answering, first);
        }
        if whole {
            self.at_text = self.answer.len();
        }
    }

    /// The same for an event in a frame: text that is not empty, and one list of ids without its brackets.
    /// `first`: the text's first byte.
    pub(super) fn hear_framed(&mut self, ids: &str, thinking: bool, first: u8, half: bool) {
        let count = 1 + ids.bytes().filter(|byte| *byte == b',').count() as u64;
        self.ahead = half;
        self.over |= !self.fits(count);
        let before = self.answer.len();
        if self.broken || self.over || !self.answer.push_inside(ids) {
            self.broken = true;
            self.total += count;
            self.thinking.more += if thinking { count } else { 0 };
            return;
        }
        self.total += count;
        if thinking {
            self.thinking.hear(before..self.answer.len(), false, first);
        }
        if !half {
            self.at_text = self.answer.len();
        }
    }

    /// Text came without ids.
    pub(super) fn hear_text(&mut self) {
        self.gaps = true;
    }

    /// Whether it is not known which ids of an event were thinking.
    pub(super) fn wants_mark(&self) -> bool {
        self.thinking.last.is_some()
    }

    /// The token that ends thinking has this id.
    pub(super) fn learn_mark(&mut self, mark: u32) {
        let Some(Range { start, end }) = self.thinking.last.clone() else { return };
        if let Some(before) = self.answer.iter().take(end).skip(start).position(|id| id == mark) {
            self.thinking.end = start + before;
            self.thinking.last = None;
        }
    }

    /// A leg begins that goes on behind the first `len` of the answer's ids.
    pub(super) fn cut(&mut self, len: usize) {
        let gone = self.answer.len().saturating_sub(len);
        self.answer.truncate(len);
        self.total = self.total.saturating_sub(gone as u64);
        self.at_text = self.at_text.min(len);
        self.thinking.cut(len);
    }

    /// A leg begins that goes on from text: what it lists belongs to another prompt.
    pub(super) fn break_off(&mut self) {
        self.broken = true;
    }

    /// A leg begins that answers from the start.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.most);
    }

    /// How many ids have come, of all choices.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Whether ids have come behind the last that brought text.
    pub(super) fn is_ahead(&self) -> bool {
        self.ahead
    }

    /// How many of them were thinking.
    pub(super) fn thinking(&self) -> u64 {
        self.thinking.ids()
    }

    /// Whether every piece of output came with its ids. There are none where a leg goes on from before the first of them.
    pub(super) fn covers_all(&self) -> bool {
        (self.total > 0 || !self.prompt.is_empty()) && !self.gaps
    }

    /// How many ids the prompt has, where they were listed.
    pub(super) fn prompt_tokens(&self) -> Option<u64> {
        self.prompt_tokens
    }

    /// Whether there are more of them than are kept.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// All ids, if they are all there.
    pub(super) fn ids(&self) -> Option<Ids<'_>> {
        let whole = !self.gaps && !self.broken && !self.prompt.is_empty();
        whole.then_some(Ids { prompt: &self.prompt, answer: &self.answer, at_text: self.at_text })
    }
}

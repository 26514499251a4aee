//! What has been generated so far: the fold of a stream's chunks.

use std::borrow::Cow;

use super::chunk::{Chunk, ChunkChoice, FinishReason, ReasoningField, Shape, ToolCallDelta};
use super::json::{self, BadEscape};
use super::tokens::{Ratios, estimate};
use super::usage::Usage;

mod trail;

pub use self::trail::Ids;
use self::trail::Trail;

/// Choices kept of one answer; OpenAI's own limit for `n`. Pieces of further ones make the partial [opaque](Partial::is_opaque).
const MAX_CHOICES: usize = 128;
/// Bytes kept of one text: the thinking, the answer, or one tool call's arguments. A model's longest answer today is about half
/// of it. What comes after makes the partial [opaque](Partial::is_opaque) and is not kept.
const MAX_TEXT: usize = 1 << 20;
/// Token ids kept of a prompt and its answer, where nobody says otherwise.
const MAX_IDS: usize = 1 << 22;
/// Tool calls kept of one choice. Further ones make the partial [opaque](Partial::is_opaque).
const MAX_TOOL_CALLS: usize = 1024;

/// What every chunk of an answer repeats: the head of leg 1 is the head of the whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The answer's id.
    pub id: String,
    /// When it began, in seconds since 1970.
    pub created: Option<u64>,
    /// The model's public name.
    pub model: String,
    /// The engine's build, from the first chunk that names one.
    pub system_fingerprint: Option<String>,
}

/// The fold of all chunks of a stream so far, whatever leg they came from.
///
/// It is bounded: in choices, in tool calls, and in the length of each text.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// From the first chunk that has an id or a model.
    pub head: Option<Head>,
    /// The name thinking is sent under. Until the first thinking text it is the name that stood there with `null`, if any.
    pub reasoning_field: Option<ReasoningField>,
    /// The choices in the order in which they appeared.
    pub choices: Vec<Choice>,
    /// The last usage seen. With several choices only that of the whole answer counts: vLLM's continuous usage is per choice.
    pub usage: Option<Usage>,
    shape: Shape,
    expected: usize,
    role: bool,
    opaque: bool,
    /// Set when a leg begins after text whose tokens nobody counted: all later counts of the whole contain that estimate.
    estimated: bool,
    /// How much of choice 0 the last usage covers.
    counted: Extent,
    trail: Trail,
    /// The counts, by usage and by ids, when the last chunk was folded.
    seen: (u64, u64),
    /// Tokens have been counted whose text may still be withheld.
    ahead: bool,
}

/// From where a further leg goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// From the start: nothing has been delivered.
    Again,
    /// From the text.
    Text,
    /// Behind so many of the answer's token ids.
    Ids(usize),
}

/// One choice of the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Which choice.
    pub index: u32,
    /// All thinking text.
    pub reasoning: String,
    /// All answer text.
    pub content: String,
    /// All tool calls, complete or not.
    pub tool_calls: Vec<ToolCall>,
    /// The last finish reason seen, also one that says *not finished*.
    pub finish: Option<FinishReason>,
    /// Bytes of content that came before the thinking: white space only.
    lead: usize,
    /// Thinking came after the answer had begun.
    interleaved: bool,
}

/// A tool call, put together from its pieces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolCall {
    /// Which call of the choice.
    pub index: u32,
    /// The call's id.
    pub id: Option<String>,
    /// The function's name.
    pub name: Option<String>,
    /// The arguments' JSON text so far.
    pub arguments: String,
}

/// Which of the two texts of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextKind {
    /// The answer.
    Content,
    /// The thinking.
    Reasoning,
}

/// How far choice 0 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No text yet, or nothing but white space that thinking may still follow.
    Nothing,
    /// Thinking has begun and not ended. White space that some models write before it is not an answer.
    Thinking,
    /// The answer has begun, if only with white space behind the thinking.
    Content,
}

/// A number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// How many.
    pub tokens: u64,
    /// Whether the engines counted them all; otherwise at least a part is an estimate.
    pub exact: bool,
}

/// Lengths in bytes of choice 0's texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    reasoning: usize,
    content: usize,
    tools: usize,
}

impl Default for Partial {
    fn default() -> Self {
        Self::new(1)
    }
}

impl Partial {
    /// Of an answer with `n` choices.
    pub fn new(n: usize) -> Self {
        Self {
            head: None,
            reasoning_field: None,
            choices: Vec::new(),
            usage: None,
            shape: Shape::OpenAi,
            expected: n.max(1),
            role: false,
            opaque: false,
            estimated: false,
            counted: Extent::default(),
            trail: Trail::new(MAX_IDS),
            seen: (0, 0),
            ahead: false,
        }
    }

    /// Keeps at most so many token ids, of prompt and answer together.
    pub fn keeping_ids(mut self, most: usize) -> Self {
        self.trail = Trail::new(most);
        self
    }

    /// Whether prompt and answer have more token ids than are [kept](Self::keeping_ids).
    pub fn has_too_many_ids(&self) -> bool {
        self.trail.is_over()
    }

    /// Adds what a chunk says, its token ids included.
    pub fn fold(&mut self, chunk: &Chunk<'_>) {
        self.hear(chunk);
        self.show(chunk);
    }

    /// Takes note of the token ids that an engine lists with a chunk: the half of [`fold`](Self::fold) that wants the chunk as the
    /// engine sent it, where the client is to see another one. Comes before [`show`](Self::show).
    pub fn hear(&mut self, chunk: &Chunk<'_>) {
        if let Some(prompt) = &chunk.prompt_token_ids {
            self.trail.hear_prompt(prompt);
        }
        for piece in &chunk.choices {
            let begun = self.choices.iter().find(|choice| choice.index == piece.index);
            let has = |text: &Option<Cow<'_, str>>| text.as_ref().is_some_and(|text| !text.is_empty());
            let answering = begun.is_some_and(|choice| !choice.answer().is_empty() || !choice.tool_calls.is_empty())
                || has(&piece.content)
                || !piece.tool_calls.is_empty();
            self.trail.hear(piece, answering);
        }
    }

    /// The ids of the prompt and of the whole answer so far, if every one of them is known.
    pub fn ids(&self) -> Option<Ids<'_>> {
        self.trail.ids()
    }

    /// Whether engines have listed ids, be they kept or not, whose text has not come, or not whole.
    pub fn ids_are_ahead(&self) -> bool {
        self.trail.is_ahead()
    }

    /// Whether the thinking among the ids can be counted only with the [mark](Self::learn_mark) that ends it: the last of it came in
    /// one event with other tokens.
    pub fn wants_mark(&self) -> bool {
        self.trail.wants_mark()
    }

    /// The token that ends thinking has this id.
    pub fn learn_mark(&mut self, id: u32) {
        self.trail.learn_mark(id);
    }

    /// Adds what a chunk says but its token ids: the half of [`fold`](Self::fold) that wants the chunk as the client sees it.
    pub fn show(&mut self, chunk: &Chunk<'_>) {
        self.fold_head(chunk);
        for piece in &chunk.choices {
            self.fold_choice(piece);
        }
        if let Some(usage) = chunk.usage.as_ref().filter(|_| self.expected == 1 || chunk.choices.is_empty()) {
            self.usage = Some(usage.clone());
            self.counted = self.extent();
        }
        self.ahead = self.runs_ahead(chunk);
        self.seen = self.counts();
    }

    /// Adds text from an event that matched a frame: the content of a JSON string, escapes and all, for choice 0.
    ///
    /// The same as folding the whole event, as long as the event the frame was learned from has been folded. `ids` is the inside of
    /// the event's list of token ids, if the frame has one.
    ///
    /// # Errors
    /// When `escaped` is not the content of a JSON string; then nothing has changed.
    pub fn push_text(&mut self, kind: TextKind, escaped: &[u8], ids: Option<&str>) -> Result<(), BadEscape> {
        let at = self.choices.iter().position(|choice| choice.index == 0);
        let mut new = Choice::default();
        let choice = at.and_then(|at| self.choices.get_mut(at)).unwrap_or(&mut new);
        let first = choice.reasoning.is_empty();
        let text = match kind {
            TextKind::Content => &mut choice.content,
            TextKind::Reasoning => &mut choice.reasoning,
        };
        if text.len() + escaped.len() > MAX_TEXT {
            self.opaque = true;
            return Ok(());
        }
        json::unescape(escaped, text)?;
        let half = ends_in_half(text);
        if kind == TextKind::Reasoning && !escaped.is_empty() {
            choice.mark_thinking(first);
        }
        if at.is_none() {
            self.choices.push(new);
        }
        if !escaped.is_empty() {
            match ids {
                Some(ids) => {
                    let first = escaped.first().copied().unwrap_or_default();
                    self.trail.hear_framed(ids, kind == TextKind::Reasoning, first, half);
                }
                None => self.trail.hear_text(),
            }
            self.ahead = half;
            self.seen = self.counts();
        }
        Ok(())
    }

    /// A further leg goes on from here. An `abort` of the leg before no longer counts, and what is an estimate by now makes
    /// every later count of the whole one.
    pub fn begin_leg(&mut self, onward: Onward) {
        match onward {
            Onward::Again => self.trail.clear(),
            Onward::Ids(len) => {
                self.trail.cut(len);
                // What ran ahead has been cut off, and the ids count all that is left.
                self.usage = None;
                self.ahead = false;
            }
            Onward::Text => self.trail.break_off(),
        }
        self.estimated |= !self.covers_all();
        self.seen = self.counts();
        for choice in &mut self.choices {
            choice.finish = None;
        }
    }

    /// Goes back to what there was before a leg that has brought nothing of the answer, but for what the client has seen of it: the
    /// head, the role, and the name of thinking.
    pub fn restore(&mut self, before: Self) {
        let Self { head, reasoning_field, role, .. } = std::mem::replace(self, before);
        self.head = self.head.take().or(head);
        self.reasoning_field = self.reasoning_field.or(reasoning_field);
        self.role |= role;
    }

    /// The prompt's tokens as an engine counted or listed them for the client's own request.
    pub fn prompt_tokens(&self) -> Option<u64> {
        let reported = self.usage.as_ref().map(|usage| usage.prompt_tokens).filter(|tokens| *tokens > 0);
        self.trail.prompt_tokens().or(reported)
    }

    /// How far choice 0 is.
    pub fn phase(&self) -> Phase {
        match self.first() {
            None => Phase::Nothing,
            Some(choice) if choice.reasoning.is_empty() && is_blank(&choice.content) => Phase::Nothing,
            Some(choice) if choice.answer().is_empty() => Phase::Thinking,
            Some(_) => Phase::Content,
        }
    }

    /// Choice 0.
    pub fn first(&self) -> Option<&Choice> {
        self.choices.iter().find(|choice| choice.index == 0)
    }

    /// Whether any choice has a tool call, or a piece of one.
    pub fn has_tool_call(&self) -> bool {
        self.choices.iter().any(|choice| !choice.tool_calls.is_empty())
    }

    /// Whether any choice has text.
    pub fn has_text(&self) -> bool {
        self.choices.iter().any(|choice| !choice.content.is_empty() || !choice.reasoning.is_empty())
    }

    /// Whether a chunk has named the role. Until then a later leg's first role is the answer's.
    pub fn has_role(&self) -> bool {
        self.role
    }

    /// Whether a choice went back to thinking after its answer had begun. Only the two texts are kept and not how they
    /// alternate, so no continuation may be built from them.
    pub fn is_interleaved(&self) -> bool {
        self.choices.iter().any(|choice| choice.interleaved)
    }

    /// All there is, if it is only white space of one kind, or nothing: then the whole answer may be asked for once more, and
    /// its beginning loses what repeats this.
    pub fn only_white_space(&self) -> Option<&str> {
        let text = match self.choices.as_slice() {
            [] => "",
            [choice] if choice.reasoning.is_empty() => &choice.content,
            [choice] if choice.content.is_empty() => &choice.reasoning,
            _ => return None,
        };
        (is_blank(text) && !self.opaque && !self.has_tool_call()).then_some(text)
    }

    /// Whether the stream carried output that this fold does not hold (a refusal, audio, content that is not a string). What
    /// is held is then not what the client has, so no continuation may be built from it.
    pub fn is_opaque(&self) -> bool {
        self.opaque
    }

    /// Whether as many choices as were asked for have appeared and every one of them is complete.
    pub fn is_finished(&self) -> bool {
        self.choices.len() >= self.expected
            && self.choices.iter().all(|choice| choice.finish.as_ref().is_some_and(FinishReason::is_finished))
    }

    /// Whose fields the chunks have.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The tokens generated so far: as counted by the engines, else estimated, or both for what each covers.
    pub fn completion_tokens(&self, ratios: &Ratios) -> Counted {
        let tokens = match &self.usage {
            Some(usage) if self.usage_covers_all() => usage.completion_tokens,
            _ if self.ids_cover_all() => self.trail.total(),
            Some(usage) => usage.completion_tokens.saturating_add(self.uncounted(ratios)),
            None => self.choices.iter().map(|choice| choice.estimate_from(Extent::default(), ratios)).sum(),
        };
        Counted { tokens, exact: self.is_exact() }
    }

    /// The tokens of the thinking so far.
    pub fn reasoning_tokens(&self, ratios: &Ratios) -> Counted {
        if self.ids_cover_all() && !self.usage_covers_all() {
            return Counted { tokens: self.trail.thinking(), exact: self.is_exact() };
        }
        let from = |mark: usize| {
            let text = |choice: &Choice| estimate(choice.reasoning.get(mark..).unwrap_or_default(), ratios);
            self.choices.iter().map(text).sum::<u64>()
        };
        match self.usage.as_ref().and_then(|usage| usage.reasoning_tokens) {
            Some(counted) => {
                Counted { tokens: counted.saturating_add(from(self.counted.reasoning)), exact: self.is_exact() }
            }
            None => Counted { tokens: from(0).min(self.completion_tokens(ratios).tokens), exact: from(0) == 0 },
        }
    }

    /// The usage of what is there, for a tail that Baton writes: what the engine reported, brought up to the last text, or
    /// Baton's own counts with `prompt_tokens` for the prompt.
    pub fn usage_so_far(&self, prompt_tokens: u64, ratios: &Ratios) -> Usage {
        let completion = self.completion_tokens(ratios).tokens;
        let reasoning = self.reasoning_tokens(ratios).tokens;
        let Some(seen) = &self.usage else {
            return Usage::counted(prompt_tokens, completion, reasoning, self.shape);
        };
        let mut usage = seen.clone();
        if usage.prompt_tokens == 0 {
            usage.prompt_tokens = prompt_tokens;
        }
        usage.completion_tokens = completion;
        usage.total_tokens = usage.prompt_tokens.saturating_add(completion);
        usage.reasoning_tokens = usage.reasoning_tokens.map(|_| reasoning);
        usage
    }

    fn fold_head(&mut self, chunk: &Chunk<'_>) {
        let fingerprint = || chunk.system_fingerprint.as_ref().map(|text| text.clone().into_owned());
        match &mut self.head {
            Some(head) => {
                if head.system_fingerprint.is_none() {
                    head.system_fingerprint = fingerprint();
                }
            }
            None if chunk.id.is_empty() && chunk.model.is_empty() => {}
            None => {
                self.head = Some(Head {
                    id: chunk.id.clone().into_owned(),
                    created: chunk.created,
                    model: chunk.model.clone().into_owned(),
                    system_fingerprint: fingerprint(),
                });
            }
        }
        if self.shape == Shape::OpenAi {
            self.shape = chunk.shape();
        }
    }

    fn fold_choice(&mut self, piece: &ChunkChoice<'_>) {
        self.opaque |= piece.opaque;
        self.role |= piece.role.is_some();
        if self.reasoning_field.is_none() || (piece.reasoning.is_some() && !self.has_reasoning()) {
            self.reasoning_field = piece.reasoning_field.or(self.reasoning_field);
        }
        let Some(choice) = self.choice(piece.index) else {
            self.opaque = true;
            return;
        };
        let fits = choice.add(piece);
        self.opaque |= !fits;
    }

    /// The choice with this index, made if there is room for it.
    fn choice(&mut self, index: u32) -> Option<&mut Choice> {
        let at = match self.choices.iter().position(|choice| choice.index == index) {
            Some(at) => at,
            None if self.choices.len() >= MAX_CHOICES => return None,
            None => {
                self.choices.push(Choice { index, ..Choice::default() });
                self.choices.len() - 1
            }
        };
        self.choices.get_mut(at)
    }

    fn has_reasoning(&self) -> bool {
        self.choices.iter().any(|choice| !choice.reasoning.is_empty())
    }

    fn extent(&self) -> Extent {
        self.first().map(Choice::extent).unwrap_or_default()
    }

    fn uncounted(&self, ratios: &Ratios) -> u64 {
        self.first().map_or(0, |choice| choice.estimate_from(self.counted, ratios))
    }

    fn ids_cover_all(&self) -> bool {
        self.trail.covers_all()
    }

    /// Whether engines counted every token that is here, and all text of the tokens counted is here.
    fn covers_all(&self) -> bool {
        let empty = !self.has_text() && !self.has_tool_call() && self.counts() == (0, 0);
        empty || (!self.ahead && (self.usage_covers_all() || self.ids_cover_all()))
    }

    /// Tokens counted so far, by usage and by ids.
    fn counts(&self) -> (u64, u64) {
        (self.usage.as_ref().map_or(0, |usage| usage.completion_tokens), self.trail.total())
    }

    /// Whether tokens are counted whose text has not come, after this chunk.
    ///
    /// vLLM withholds half characters, what may become a stop string and what may become a mark, and sends it when the choice
    /// ends, by `abort` too (0.33, v1/engine/detokenizer.py).
    fn runs_ahead(&self, chunk: &Chunk<'_>) -> bool {
        if !self.choices.is_empty() && self.choices.iter().all(|choice| choice.finish.is_some()) {
            return false;
        }
        match chunk.choices.iter().rfind(|piece| piece.has_output()) {
            Some(piece) => piece_ends_in_half(piece),
            None => self.ahead || self.counts() != self.seen,
        }
    }

    fn usage_covers_all(&self) -> bool {
        self.usage.is_some() && self.counted == self.extent()
    }

    fn is_exact(&self) -> bool {
        !self.estimated && self.covers_all()
    }
}

/// Adds a piece to a text, if there is room.
fn append(text: &mut String, piece: &str) -> bool {
    let fits = text.len() + piece.len() <= MAX_TEXT;
    if fits {
        text.push_str(piece);
    }
    fits
}

/// Whether there is no text, or white space only.
fn is_blank(text: &str) -> bool {
    text.trim_start().is_empty()
}

/// Whether a piece's text, or one of them, ends inside a character.
fn piece_ends_in_half(piece: &ChunkChoice<'_>) -> bool {
    [&piece.content, &piece.reasoning].into_iter().flatten().any(|text| ends_in_half(text))
}

/// Whether a text ends in what stands for a character whose other tokens have not come.
fn ends_in_half(text: &str) -> bool {
    text.ends_with(char::REPLACEMENT_CHARACTER)
}

impl Choice {
    /// The answer: the content without the white space that came before the thinking.
    pub fn answer(&self) -> &str {
        self.content.get(self.lead..).unwrap_or_default()
    }

    /// Thinking text has come, for the `first` time or once more.
    fn mark_thinking(&mut self, first: bool) {
        if first && is_blank(&self.content) {
            self.lead = self.content.len();
        }
        self.interleaved |= self.content.len() > self.lead;
    }

    /// Adds a piece and says whether all of it had room.
    fn add(&mut self, piece: &ChunkChoice<'_>) -> bool {
        let first = self.reasoning.is_empty();
        let thought = piece.reasoning.as_deref().unwrap_or_default();
        let mut fits = append(&mut self.reasoning, thought);
        if !thought.is_empty() {
            self.mark_thinking(first);
        }
        fits &= append(&mut self.content, piece.content.as_deref().unwrap_or_default());
        for delta in &piece.tool_calls {
            fits &= self.add_tool_call(delta);
        }
        if let Some(finish) = &piece.finish_reason {
            self.finish = Some(finish.clone());
        }
        fits
    }

    fn add_tool_call(&mut self, delta: &ToolCallDelta<'_>) -> bool {
        let at = match self.tool_calls.iter().position(|call| call.index == delta.index) {
            Some(at) => at,
            None if self.tool_calls.len() >= MAX_TOOL_CALLS => return false,
            None => {
                self.tool_calls.push(ToolCall { index: delta.index, ..ToolCall::default() });
                self.tool_calls.len() - 1
            }
        };
        let call = &mut self.tool_calls[at];
        if let Some(id) = &delta.id {
            call.id.get_or_insert_with(|| id.clone().into_owned());
        }
        if let Some(name) = &delta.name {
            call.name.get_or_insert_with(|| name.clone().into_owned());
        }
        append(&mut call.arguments, delta.arguments.as_deref().unwrap_or_default())
    }

    fn extent(&self) -> Extent {
        let tool = |call: &ToolCall| call.name.as_ref().map_or(0, String::len) + call.arguments.len();
        Extent {
            reasoning: self.reasoning.len(),
            content: self.content.len(),
            tools: self.tool_calls.iter().map(tool).sum(),
        }
    }

    /// Tokens of the text past `mark`. Tool calls are JSON and go by their bytes.
    fn estimate_from(&self, mark: Extent, ratios: &Ratios) -> u64 {
        let text = |text: &str, from: usize| estimate(text.get(from..).unwrap_or_default(), ratios);
        let tools = self.extent().tools.saturating_sub(mark.tools);
        text(&self.reasoning, mark.reasoning)
            + text(&self.content, mark.content)
            + (tools as f64 / ratios.other).ceil() as u64
    }
}

#[cfg(test)]
mod tests;

//! Splice: making leg n's events read as the rest of leg 1.
//!
//! What differs between two legs and would show:
//!
//! | in leg n's event | becomes |
//! |---|---|
//! | `id`, `created`, `model`, `system_fingerprint` | leg 1's |
//! | the role event | dropped, and a role beside text taken out, unless no leg before has shown one |
//! | `reasoning` or `reasoning_content` | the name, or both names, that leg 1 used |
//! | thinking that is really the answer (the engine's parser did not see the thinking end) | `content` |
//! | text at the start that the client has, where the leg goes on from before its end | dropped; it has to come, exactly |
//! | white space at the start, where the template trimmed it from the partial's end | dropped as far as it repeats |
//! | the end of the partial, or all of it, once more | dropped, where the plan expects that ([`Overlap`]) |
//! | thinking on the way of a replay | dropped ([`LegThinking`]) |
//! | `usage` | that of the whole answer, or gone if the client did not ask for it |
//!
//! A completion's choice has its text where a chat's has a delta; nothing is taken from it but what repeats, and the ids of the prompt.
//!
//! Everything else, unknown fields and their order included, stays as it is. What is odd but can be understood (see
//! [`parse`](super::chat::parse)) is rewritten where it says something and kept as it came where it says nothing; of a key that is
//! there twice and is rewritten only the last is left. A leg that cannot be rewritten is the engine's fault; what was delivered
//! before stays valid.

mod hide;
mod mark;
mod overlap;
mod tail;
mod thinking;

pub use hide::hide_ids;
pub use overlap::Overlap;
pub use tail::{finish_chunk, usage_chunk};
pub use thinking::LegThinking;

use serde_json::value::RawValue;
use thiserror::Error;

use self::mark::Mark;
use super::chat::json::{self, Object};
use super::chat::{
    Api, Chunk, ChunkChoice, ClientUsage, Head, Malformed, Parsed, ReasoningField, Recovered, Usage, merge, parse,
};

/// What a plan knows about the place where two legs meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seam {
    /// White space at the partial's end that the template trims, so that the engine may write it again. The next leg's text
    /// loses as much of its start as equals this.
    pub trimmed: String,
    /// The answer has begun, but the engine's parser starts in the thinking phase and calls all of it reasoning (vLLM's
    /// deepseek_r1 parser, reasoning/abs_reasoning_parsers.py `BaseThinkingReasoningParser`).
    pub reasoning_is_content: bool,
    /// What the engine generates once more, because the tokens it goes on from end before the text that the client has.
    pub repeats: Repeats,
    /// What of the partial the leg may write once more before it goes on. It comes before what was trimmed.
    pub overlap: Option<Overlap>,
    /// What becomes of the leg's thinking.
    pub thinking: LegThinking,
    /// The name of a plan that is not exact: the first event of the leg that is passed on says so.
    pub inexact: Option<&'static str>,
}

/// Text that the client has and that the next leg begins with. Unlike white space it has to come, exactly as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repeats {
    /// Of the thinking; before any of the answer.
    pub reasoning: String,
    /// Of the answer.
    pub content: String,
}

impl Repeats {
    /// Whether nothing is to be repeated, or everything has been.
    pub fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty()
    }
}

/// Why an event cannot be made part of the answer.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum NotSpliced {
    /// It is nothing that an engine may send.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The leg does not begin with the text that it was to repeat: it is another answer.
    #[error("the leg begins with another text than the one it was to repeat")]
    Diverged,
}

/// Rewrites one leg's events. Every continuation has its own.
#[derive(Clone, Debug)]
pub struct Splice {
    head: Head,
    reasoning_field: Option<ReasoningField>,
    reasoning_is_content: bool,
    /// No leg has shown a role yet.
    awaits_role: bool,
    /// What may still be repeated; empty from the first text that differs.
    repeated: String,
    /// What still has to be repeated.
    repeats: Repeats,
    /// What may be repeated of the partial; gone once that is decided.
    overlap: Option<Overlap>,
    thinking: LegThinking,
    mark: Mark,
    /// The client is not to see token ids, so an event has nothing for it that has only these.
    hides_ids: bool,
    /// The leg has brought thinking, and some of the answer.
    thought: bool,
    answered: bool,
    client: ClientUsage,
    recovered: Recovered,
}

const CONTENT: &str = "content";
const TEXT: &str = "text";
const REASONING: &str = "reasoning";
const REASONING_CONTENT: &str = "reasoning_content";
const PROMPT_IDS: &str = "prompt_token_ids";
const USAGE: &str = "usage";
const FINGERPRINT: &str = "system_fingerprint";

/// The names of the texts of a choice: two names for one text stand together.
#[derive(Clone, Copy)]
struct Names {
    thinking: &'static [&'static str],
    answer: &'static [&'static str],
}

const OF_DELTA: Names = Names { thinking: &[REASONING, REASONING_CONTENT], answer: &[CONTENT] };
const OF_COMPLETION: Names = Names { thinking: &[], answer: &[TEXT] };

impl Splice {
    /// For the leg that follows a partial with this head and this name for thinking. `recovered` is everything that was
    /// generated before this leg, by however many legs.
    pub fn new(
        head: Head,
        reasoning_field: Option<ReasoningField>,
        seam: Seam,
        client: ClientUsage,
        recovered: Recovered,
    ) -> Self {
        let Seam { trimmed, reasoning_is_content, repeats, overlap, thinking, inexact } = seam;
        Self {
            head,
            reasoning_field,
            reasoning_is_content,
            awaits_role: false,
            repeated: trimmed,
            repeats,
            overlap,
            thinking,
            mark: Mark::of(inexact),
            hides_ids: false,
            thought: false,
            answered: false,
            client,
            recovered,
        }
    }

    /// For a client that is not to see the leg's token ids. They are not taken out here, see [`hide_ids`].
    pub fn hiding_ids(mut self, hides: bool) -> Self {
        self.hides_ids = hides;
        self
    }

    /// For a leg after which the client still has no role: the first one that the leg names is kept, with its event.
    pub fn awaiting_role(mut self) -> Self {
        self.awaits_role = true;
        self
    }

    /// Whether the seam is behind: from here on, events that differ in one string only are rewritten to events that differ in
    /// that string only, so that their frames may be learned before and after the rewriting.
    pub fn is_settled(&self) -> bool {
        self.repeated.is_empty() && self.repeats.is_empty() && self.overlap.is_none() && self.mark.is_behind()
    }

    /// Whether text of the leg is held back, until it is clear whether it repeats what was delivered. It comes with one of the
    /// next events, at the latest with the finish reason.
    pub fn holds(&self) -> bool {
        self.overlap.as_ref().is_some_and(Overlap::holds)
    }

    /// The event's data as the client is to see it; `None` if it is not to see it at all.
    ///
    /// `[DONE]` and error events come back as they are.
    ///
    /// # Errors
    /// When the data is nothing that an engine may send, or not what this leg has to send.
    pub fn rewrite(&mut self, data: &[u8]) -> Result<Option<Vec<u8>>, NotSpliced> {
        let Parsed::Chunk(chunk) = parse(data)? else {
            return Ok(Some(data.to_vec()));
        };
        let repaired;
        let mut event: Object<'_> = match serde_json::from_slice(data) {
            Ok(event) => event,
            // It was read, so it can be JSON: with `null` where Python wrote `NaN`.
            Err(error) => {
                repaired =
                    std::str::from_utf8(data).ok().and_then(json::without_nan).ok_or_else(|| Malformed::from(error))?;
                Object::parse(&repaired).map_err(Malformed::from)?
            }
        };
        self.rewrite_head(&mut event);
        let emptied = self.rewrite_choices(&chunk, &mut event)?;
        let hidden = self.rewrite_usage(&chunk, &mut event);
        let nothing_left = emptied || (hidden && chunk.choices.is_empty());
        if !nothing_left {
            self.mark.put(&mut event);
        }
        Ok((!nothing_left).then(|| event.to_text().into_bytes()))
    }

    fn rewrite_head(&self, event: &mut Object<'_>) {
        let Head { id, created, model, system_fingerprint } = &self.head;
        if !id.is_empty() {
            event.set("id", like(event.get("id"), id));
        }
        if let Some(created) = created {
            event.set("created", json::raw(created));
        }
        if !model.is_empty() {
            event.set("model", like(event.get("model"), model));
        }
        // Only where the engine has one: vLLM sends it with its last chunk, so leg 1 may never have come to it.
        if let Some(fingerprint) = system_fingerprint.as_ref().filter(|_| event.get(FINGERPRINT).is_some()) {
            event.set(FINGERPRINT, json::raw(fingerprint));
        }
    }

    /// Rewrites every choice and says whether nothing of them is left.
    fn rewrite_choices(&mut self, chunk: &Chunk<'_>, event: &mut Object<'_>) -> Result<bool, NotSpliced> {
        let Some(raw) = event.get("choices") else { return Ok(false) };
        let list = json::elements(raw);
        let listed = list.is_some();
        let mut views = chunk.choices.iter();
        let mut emptied = !chunk.choices.is_empty();
        let mut choices = Vec::with_capacity(chunk.choices.len());
        for raw in list.unwrap_or_else(|| vec![raw]) {
            // What says nothing has no view.
            let view = if json::says_nothing(raw) { None } else { views.next() };
            choices.push(match view {
                Some(view) => {
                    let mut choice = Object::parse(raw.get()).map_err(Malformed::from)?;
                    emptied &= self.rewrite_choice(view, &mut choice)?;
                    choice.to_text()
                }
                None => raw.get().to_owned(),
            });
        }
        if !chunk.choices.is_empty() {
            let choices = choices.join(",");
            event.set("choices", json::raw_text(if listed { format!("[{choices}]") } else { choices }));
        }
        Ok(emptied)
    }

    /// Rewrites a choice's delta or text and says whether that took out the only thing it had.
    fn rewrite_choice(&mut self, view: &ChunkChoice<'_>, choice: &mut Object<'_>) -> Result<bool, NotSpliced> {
        if view.shape.api() == Api::Completions {
            // It is longer than the client's own prompt, which the client has seen if it wanted to.
            if choice.has(PROMPT_IDS) {
                choice.set(PROMPT_IDS, json::raw(&()));
            }
            let taken = self.take_out_repetition(view, OF_COMPLETION, choice)?;
            return Ok(taken && !self.carries(view, OF_COMPLETION, choice));
        }
        // What is no object brings no text.
        let raw = choice.get("delta").map(ToOwned::to_owned);
        let mut delta = match raw.as_ref().and_then(|raw| Object::parse(raw.get()).ok()) {
            Some(delta) => delta,
            // It ends the choice, so what is held back has to go with it.
            None if self.holds() && view.finish_reason.is_some() => Object::default(),
            None => return Ok(false),
        };
        let first_role = self.awaits_role && view.role.is_some();
        self.awaits_role &= !first_role;
        let role = view.role.is_some() && !first_role && delta.remove("role");
        if self.reasoning_is_content && view.reasoning.as_ref().is_some_and(|text| !text.is_empty()) && !view.opaque {
            move_to_content(&mut delta);
        } else if let Some(field) = self.reasoning_field {
            rename_reasoning(&mut delta, field);
        }
        let taken = self.take_out_repetition(view, OF_DELTA, &mut delta)?;
        let carries = first_role || self.carries(view, OF_DELTA, &delta);
        choice.set("delta", delta.to_raw());
        Ok((role || taken) && !carries)
    }

    /// Takes from the texts' start what the client has, and says whether there was anything.
    fn take_out_repetition(
        &mut self,
        view: &ChunkChoice<'_>,
        names: Names,
        texts: &mut Object<'_>,
    ) -> Result<bool, NotSpliced> {
        self.thought |= view.reasoning.as_ref().is_some_and(|text| !text.is_empty());
        self.answered |= view.content.as_ref().is_some_and(|text| !text.is_empty()) || !view.tool_calls.is_empty();
        let ends = ends(view);
        let dropped = self.thinking.take_out(texts)
            | self.drop_repeats(names, texts, ends)?
            | self.drop_overlap(names, texts, ends);
        let trimmed = self.trim_repeated(names, texts);
        if ends {
            self.repeated.clear();
        }
        Ok(dropped || trimmed)
    }

    /// Whether a choice with these texts left has something for the client.
    fn carries(&self, view: &ChunkChoice<'_>, names: Names, texts: &Object<'_>) -> bool {
        let has_ids = view.token_ids.is_some() && !self.hides_ids;
        ends(view) || has_ids || view.has_logprobs || view.opaque || names.any_filled(texts)
    }

    /// Drops from the texts' start what the leg had to repeat, and says whether anything was dropped. `ends`: nothing can follow.
    fn drop_repeats(&mut self, names: Names, texts: &mut Object<'_>, ends: bool) -> Result<bool, NotSpliced> {
        let mut dropped = false;
        for (thinking, names_of_one, left) in
            [(true, names.thinking, &mut self.repeats.reasoning), (false, names.answer, &mut self.repeats.content)]
        {
            let mut after = None;
            for name in names_of_one.iter().filter(|_| !left.is_empty()) {
                let Some(text) = texts.text(name).filter(|text| !text.is_empty()) else { continue };
                let equal = common_start(&text, left);
                if equal < text.len().min(left.len()) {
                    return Err(NotSpliced::Diverged);
                }
                texts.set(name, json::raw(&text[equal..]));
                after = Some(left[equal..].to_owned());
                dropped = true;
            }
            *left = after.unwrap_or_else(|| std::mem::take(left));
            // What comes after this text may not come before all of it has.
            let early = ends || thinking && filled(texts, names.answer);
            if early && !left.is_empty() {
                return Err(NotSpliced::Diverged);
            }
        }
        if filled(texts, names.thinking) && !self.repeats.content.is_empty() {
            return Err(NotSpliced::Diverged);
        }
        Ok(dropped)
    }

    /// Drops from the answer's text what the partial ends with, holds back what may turn out to be that, and says whether the text
    /// has changed.
    fn drop_overlap(&mut self, names: Names, texts: &mut Object<'_>, ends: bool) -> bool {
        let (Some(overlap), [name, ..]) = (&mut self.overlap, names.answer) else { return false };
        let text = texts.text(name).unwrap_or_default();
        if text.is_empty() && !ends {
            return false;
        }
        let decided = overlap.push(&text).or_else(|| ends.then(|| overlap.finish()));
        if decided.is_some() {
            self.overlap = None;
        }
        let left = decided.unwrap_or_default();
        if left == text {
            return false;
        }
        texts.set(name, json::raw(&left));
        true
    }

    /// Drops from the texts' start what repeats the white space before the seam, and says whether anything was dropped.
    fn trim_repeated(&mut self, names: Names, texts: &mut Object<'_>) -> bool {
        let mut trimmed = false;
        // Two names for one text lose the same; thinking comes before the answer.
        for names in [names.thinking, names.answer] {
            if self.repeated.is_empty() {
                break;
            }
            let mut left = None;
            for name in names {
                let Some(text) = texts.text(name).filter(|text| !text.is_empty()) else { continue };
                let equal = common_start(&text, &self.repeated);
                left = Some(if equal == text.len() { self.repeated[equal..].to_owned() } else { String::new() });
                if equal > 0 {
                    texts.set(name, json::raw(&text[equal..]));
                    trimmed = true;
                }
            }
            self.repeated = left.unwrap_or_else(|| std::mem::take(&mut self.repeated));
        }
        trimmed
    }

    /// Makes usage that of the whole answer, or takes it out, and says whether it was taken out.
    fn rewrite_usage(&self, chunk: &Chunk<'_>, event: &mut Object<'_>) -> bool {
        if !event.has(USAGE) {
            return false;
        }
        let last = chunk.choices.iter().any(|choice| choice.finish_reason.is_some());
        let client = self.client;
        let wanted =
            if chunk.choices.is_empty() { client.at_end } else { client.continuous || (client.at_end && last) };
        match &chunk.usage {
            Some(usage) if wanted => event.set(USAGE, self.usage_of_whole(usage).to_json()),
            // It counts nothing that could be added to.
            None if wanted => {}
            _ => drop(event.remove(USAGE)),
        }
        !wanted
    }

    /// The usage of the whole answer from this leg's own.
    fn usage_of_whole(&self, leg: &Usage) -> Usage {
        let mut leg = leg.clone();
        // vLLM counts all tokens of a leg as thinking whose prompt has its thinking behind it, though its parser knows better
        // (measured on 0.32 with the qwen3 parser).
        let goes_on = self.recovered != Recovered::nothing();
        let miscounted = goes_on && self.answered && !self.thought && leg.has_details();
        if self.reasoning_is_content || miscounted {
            leg.reasoning_tokens = leg.reasoning_tokens.map(|_| 0);
        }
        merge(&leg, &self.recovered)
    }
}

/// Leg 1's `text` in the kind of the leg's own value: an engine whose ids are numbers goes on with a number.
fn like(own: Option<&RawValue>, text: &str) -> Box<RawValue> {
    let is_number = |value: &RawValue| value.get().parse::<f64>().is_ok();
    let number = own.filter(|own| is_number(own)).and_then(|_| RawValue::from_string(text.to_owned()).ok());
    number.filter(|number| is_number(number)).unwrap_or_else(|| json::raw(text))
}

/// How many bytes the two texts have in common at their start, in whole characters.
fn common_start(text: &str, other: &str) -> usize {
    let equal = text.chars().zip(other.chars()).take_while(|(a, b)| a == b);
    equal.map(|(character, _)| character.len_utf8()).sum()
}

impl Names {
    fn any_filled(self, texts: &Object<'_>) -> bool {
        filled(texts, self.thinking) || filled(texts, self.answer)
    }
}

/// Whether a text that is not empty stands under one of the names.
fn filled(texts: &Object<'_>, names: &[&str]) -> bool {
    let filled = |name: &&str| texts.get(name).and_then(json::string_content).is_some_and(|text| !text.is_empty());
    names.iter().any(filled)
}

/// Whether nothing can follow in this choice that goes on from where it was.
fn ends(view: &ChunkChoice<'_>) -> bool {
    view.finish_reason.is_some() || !view.tool_calls.is_empty()
}

/// The names under which the delta has thinking, the one with text first.
fn reasoning_names(delta: &Object<'_>) -> Vec<&'static str> {
    let mut names: Vec<_> =
        [REASONING, REASONING_CONTENT].into_iter().filter(|name| delta.get(name).is_some()).collect();
    names.sort_by_key(|name| delta.get(name).and_then(json::string_content).is_none_or(str::is_empty));
    names
}

/// Gives the delta's thinking the name, or the names, that leg 1 used.
fn rename_reasoning(delta: &mut Object<'_>, field: ReasoningField) {
    let names = reasoning_names(delta);
    let Some(&name) = names.first() else { return };
    match field {
        ReasoningField::Reasoning if name != REASONING => delta.rename(name, REASONING),
        ReasoningField::ReasoningContent if name != REASONING_CONTENT => delta.rename(name, REASONING_CONTENT),
        ReasoningField::Reasoning | ReasoningField::ReasoningContent if names.len() > 1 => {
            delta.remove(names[1]);
        }
        ReasoningField::Both if names.len() == 1 => {
            let twin = if name == REASONING { REASONING_CONTENT } else { REASONING };
            if let Some(text) = delta.get(name).map(ToOwned::to_owned) {
                delta.insert_after(name, twin, text);
            }
        }
        _ => {}
    }
}

/// Makes the delta's thinking the beginning of its answer.
fn move_to_content(delta: &mut Object<'_>) {
    let names = reasoning_names(delta);
    let Some(&name) = names.first() else { return };
    let content = |name: &str| delta.get(name).and_then(json::string_content).unwrap_or_default();
    let joined: Box<RawValue> = json::raw_text(format!("\"{}{}\"", content(name), content(CONTENT)));
    if delta.get(CONTENT).is_none() {
        delta.rename(name, CONTENT);
    }
    delta.set(CONTENT, joined);
    for name in names {
        delta.remove(name);
    }
}

#[cfg(test)]
mod quirks;
#[cfg(test)]
mod repeated;
#[cfg(test)]
mod tests;

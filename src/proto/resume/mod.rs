//! How to continue: [`plan`] turns a request and the partial of its answer into the request that asks for the rest.
//!
//! One plan is known so far, `chat-continue`: the partial becomes the last assistant message, and
//! `continue_final_message: true` with `add_generation_prompt: false` lets the engine go on inside it. In which form the
//! partial is written depends on two things that know nothing of each other:
//!
//! | axis | one file each under | says |
//! |---|---|---|
//! | [`Family`] | `family/` | the marks around thinking, its switch, and the form of a partial for each kind of joint |
//! | [`Engine`] | `engine/` | its kind of [`Joint`] and its quirks |
//!
//! `plan` composes them. A quirk is a value in one of these files and never a condition on a name; there is no file for a
//! pair. What was verified, and how, stands in docs/CONTINUATION.md, and the request for every family, engine and state in
//! `tests/golden/resume/`.
//!
//! What is known not to work is refused with a reason ([`Refused`]) instead of being tried: most engines answer a
//! continuation that they get wrong with 200 and a wrong text.

mod body;
mod engine;
mod family;
mod kind;
mod version;

pub use engine::{Engine, Joint};
pub use family::{Family, Known};
pub use kind::{Abilities, PlanKind, PlanSet, Question};
pub use version::Version;

use thiserror::Error;

use self::body::Left;
use self::family::{Form, Forms, Marks, OneString, Opening, Spec, SwitchOff, Thinking};
use super::chat::json::is_null;
use super::chat::{ChatRequest, Exclusion, Partial, Ratios};
use super::splice::Seam;

/// What a plan needs beside the request and the partial.
#[derive(Clone, Copy, Debug)]
pub struct Budget<'a> {
    /// For token counts that no engine gave.
    pub ratios: &'a Ratios,
    /// A request id that has not been used before, for engines that want one.
    pub rid: &'a str,
    /// Try also what is refused because it is known not to work. See [`Refused::yields_to_force`].
    pub force: bool,
}

/// How to continue a partial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which kind of plan this is.
    pub kind: PlanKind,
    /// The body of `POST /v1/chat/completions` that asks for the rest.
    pub body: Vec<u8>,
    /// What the splice has to know of the place where the legs meet.
    pub seam: Seam,
}

/// Why there is no plan. Nobody's fault: the stream then ends as it would have without a continuation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// The request itself rules it out.
    #[error("the request's answer cannot be continued ({})", .0.name())]
    Excluded(Exclusion),
    /// The answer is complete.
    #[error("the answer is complete")]
    Finished,
    /// A tool call has been shown. It must not be generated again, and no engine can go on inside one.
    #[error("a tool call has begun")]
    ToolCallShown,
    /// The answer has output that is neither text nor a tool call.
    #[error("the answer has parts that are not text")]
    NotText,
    /// There is no text yet, or only white space of a model that may be about to think.
    #[error("there is no text to continue from")]
    NothingToContinue,
    /// The answer went back to thinking after it had begun: no form of a last message holds that.
    #[error("thinking and answer alternate")]
    Interleaved,
    /// A text contains one of the family's marks as text, which would become a mark once it is handed back. Or the answer begins
    /// with one, and it cannot be told whether that is thinking which no parser took out.
    #[error("the text contains a mark of the family's thinking")]
    MarkInText,
    /// The client's last message is an assistant's, and the engine turned it into a user's for leg 1: behind another message
    /// it would be an assistant's, so the prompt would not be the one that the answer belongs to.
    #[error("the engine took the client's last message, an assistant's, for a user's")]
    AssistantLast,
    /// As many tokens as the request allows have been generated.
    #[error("the token budget is spent")]
    BudgetSpent {
        /// Whether the engines counted the tokens and all their text is there; otherwise it is an estimate, or text may be missing.
        exact: bool,
    },
    /// Through this engine's prompt the family's unfinished thinking would be closed or lost.
    #[error("the chat template would close the unfinished thinking")]
    ThinkingCloses,
    /// The model thinks, and the configured family does not.
    #[error("there is thinking, and the configured family has no form for it")]
    UnexpectedThinking,
    /// The engine's renderer for this family silently ignores `continue_final_message`.
    #[error("the engine ignores continue_final_message for this family")]
    FlagIgnored,
    /// The engine's parser for this family would write the opening mark a second time, into the answer.
    #[error("the engine's parser would repeat the thinking mark inside the answer")]
    MarkRepeats,
    /// Nobody knows in which form to hand this family's text back to this kind of engine.
    #[error("no form is known for this family on this engine")]
    NoForm,
}

impl Refused {
    /// For logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Excluded(exclusion) => exclusion.name(),
            Self::Finished => "finished",
            Self::ToolCallShown => "tool_call_shown",
            Self::NotText => "not_text",
            Self::NothingToContinue => "nothing_to_continue",
            Self::Interleaved => "interleaved",
            Self::MarkInText => "mark_in_text",
            Self::AssistantLast => "assistant_last",
            Self::BudgetSpent { .. } => "budget_spent",
            Self::ThinkingCloses => "thinking_closes",
            Self::UnexpectedThinking => "unexpected_thinking",
            Self::FlagIgnored => "flag_ignored",
            Self::MarkRepeats => "mark_repeats",
            Self::NoForm => "no_form",
        }
    }

    /// Whether [`Budget::force`] overrides this: a judgement about templates and engines that an operator may know better.
    /// The others say that there is nothing to continue or that continuing would do harm.
    pub fn yields_to_force(&self) -> bool {
        matches!(
            self,
            Self::ThinkingCloses | Self::FlagIgnored | Self::MarkRepeats | Self::MarkInText | Self::AssistantLast
        )
    }
}

/// The request that makes `engine` go on where `partial` stopped.
///
/// The request differs from the client's only in: the last message, the two flags, `stream`,
/// `stream_options.include_usage`, the token limits that the client sent (less what was generated), the thinking switch
/// where the family asks for it, and a fresh request id where the engine wants one. All else keeps its bytes.
///
/// # Errors
/// Why the partial is not to be continued, or not by this engine.
pub fn plan(
    request: &ChatRequest,
    partial: &Partial,
    family: &Family,
    engine: &Engine,
    budget: &Budget<'_>,
) -> Result<Plan, Refused> {
    if let Some(exclusion) = request.exclusion() {
        return Err(Refused::Excluded(exclusion));
    }
    let spec = family.spec();
    let found = Found::of(partial, spec, request)?;
    let left = Left::of(request, partial, budget.ratios)?;
    let turned = engine.spec().assistant_becomes_user && request.last_role().as_deref() == Some("assistant");
    refuse_if(turned, Refused::AssistantLast, budget.force)?;
    let words = compose(&found, spec, engine.spec(), budget.force)?;
    let body = body::write(request, &words, &left, engine.spec(), budget.rid);
    Ok(Plan { kind: PlanKind::ChatContinue, body, seam: words.seam })
}

/// Why no answer of this family is ever continued on this engine, unless it is forced; `None`: it depends on the answer.
pub fn never(family: &Family, engine: &Engine) -> Option<Refused> {
    let (family, engine) = (family.spec(), engine.spec());
    if engine.flag_ignored_by.contains(&family.renderer) {
        return Some(Refused::FlagIgnored);
    }
    family.forms(engine.joint).is_none().then_some(Refused::NoForm)
}

/// The client's own request once more, for an answer of which nothing has been delivered: as the client sent it, except that a
/// request id of the client's own becomes `rid` where the engine wants a fresh one. Leg 1 may still hold the client's, and one
/// that is in use twice is an error (SGLang 0.5.23).
pub fn again(request: &ChatRequest, engine: &Engine, rid: &str) -> Vec<u8> {
    let mut request = request.clone();
    let own = engine.spec().request_id.filter(|key| request.get(key).is_some_and(|id| !is_null(id)));
    if let Some(key) = own {
        request.set(key, rid);
    }
    request.to_bytes()
}

/// Where the stream broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State<'p> {
    /// No answer yet.
    Thinking { reasoning: &'p str },
    /// The answer had begun.
    Answering { reasoning: &'p str, content: &'p str },
}

/// A state, and where its thinking was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found<'p> {
    state: State<'p>,
    /// The thinking stood in the content, behind an opening mark of its own or of the prompt's.
    inline: Option<Opening>,
    /// A mark is where none belongs.
    marked: bool,
}

impl<'p> Found<'p> {
    fn of(partial: &'p Partial, family: &Spec, request: &ChatRequest) -> Result<Self, Refused> {
        if partial.has_tool_call() {
            return Err(Refused::ToolCallShown);
        }
        if partial.is_opaque() {
            return Err(Refused::NotText);
        }
        if partial.is_finished() {
            return Err(Refused::Finished);
        }
        if partial.is_interleaved() {
            return Err(Refused::Interleaved);
        }
        let choice = partial.first().ok_or(Refused::NothingToContinue)?;
        let (reasoning, content) = (choice.reasoning.as_str(), choice.answer());
        let found = match &family.marks {
            Some(marks) if reasoning.is_empty() => Self::in_content(content, marks, family.opens_block(request)),
            marks => Self::apart(reasoning, content, marks.as_ref()),
        };
        found.ok_or(Refused::NothingToContinue)
    }

    /// In the two texts, as a reasoning parser has parted them.
    fn apart(reasoning: &'p str, content: &'p str, marks: Option<&Marks>) -> Option<Self> {
        let state = match (reasoning, content) {
            ("", "") => return None,
            (_, "") => State::Thinking { reasoning },
            _ => State::Answering { reasoning, content },
        };
        let marked = marks.is_some_and(|marks| marks.stand_in(reasoning) || marks.stand_in(content));
        Some(Self { state, inline: None, marked })
    }

    /// In the content alone, of a model that may think: there was no thinking, or no parser took it out.
    fn in_content(content: &'p str, marks: &Marks, opened: bool) -> Option<Self> {
        let start = content.trim_start();
        if start.is_empty() {
            return None;
        }
        let (inline, inside) = match start.strip_prefix(marks.open) {
            Some(inside) => (Opening::Written, inside),
            None if opened && content.contains(marks.close) => (Opening::InPrompt, content),
            None => {
                let found = Self::apart("", content, Some(marks))?;
                return Some(Self { marked: found.marked || marks.open.starts_with(start), ..found });
            }
        };
        let (state, texts) = match inside.split_once(marks.close) {
            // Here the model itself has ended its thinking, so the answer has begun even without a word of it.
            Some((reasoning, content)) => (State::Answering { reasoning, content }, [reasoning, content]),
            None => (State::Thinking { reasoning: inside }, [inside, ""]),
        };
        let marked = texts.into_iter().any(|text| marks.stand_in(text));
        Some(Self { state, inline: Some(inline), marked })
    }
}

/// `why`, if it applies and is not overridden.
fn refuse_if(applies: bool, why: Refused, force: bool) -> Result<(), Refused> {
    if applies && !(force && why.yields_to_force()) { Err(why) } else { Ok(()) }
}

/// What the family and the engine together make of a partial.
#[derive(Debug)]
struct Words {
    /// The last message's `reasoning`, where it is a field of its own.
    reasoning: Option<String>,
    /// The last message's `content`.
    content: String,
    /// The key and the JSON value that switch thinking off, if that is to be done.
    switch: Option<family::Switch>,
    seam: Seam,
}

fn compose(found: &Found<'_>, family: &Spec, engine: &engine::Spec, force: bool) -> Result<Words, Refused> {
    refuse_if(engine.flag_ignored_by.contains(&family.renderer), Refused::FlagIgnored, force)?;
    refuse_if(found.inline == Some(Opening::Written) && family.repeats_mark, Refused::MarkRepeats, force)?;
    refuse_if(found.marked, Refused::MarkInText, force)?;
    let forms = family.forms(engine.joint).ok_or(Refused::NoForm)?;
    match found.state {
        State::Thinking { reasoning } => {
            let marks = family.marks.as_ref().ok_or(Refused::UnexpectedThinking)?;
            // A mark at the content's start may as well be the first word of an answer.
            let why = if found.inline.is_some() { Refused::MarkInText } else { Refused::ThinkingCloses };
            refuse_if(forms.thinking == Thinking::Closes, why, force)?;
            let opening = match forms.thinking {
                Thinking::StaysOpen(opening) => opening,
                Thinking::Closes => Opening::Written,
            };
            let trimmed = forms.trims.lost(reasoning).to_owned();
            Ok(Words {
                reasoning: None,
                content: marks.unfinished(opening, reasoning),
                switch: None,
                seam: Seam { trimmed, reasoning_is_content: false },
            })
        }
        State::Answering { reasoning, content } => answering(reasoning, content, family, forms, engine),
    }
}

fn answering(
    reasoning: &str,
    content: &str,
    family: &Spec,
    forms: &Forms,
    engine: &engine::Spec,
) -> Result<Words, Refused> {
    let text = |opening| match &family.marks {
        Some(marks) if !reasoning.is_empty() => marks.finished(opening, reasoning, content),
        _ => content.to_owned(),
    };
    let (field, text) = match forms.content {
        Form::Text(opening) => (None, text(opening)),
        Form::Fields(_) if reasoning.is_empty() => (None, content.to_owned()),
        Form::Fields(_) if engine.reads_reasoning => (Some(reasoning.to_owned()), content.to_owned()),
        Form::Fields(OneString::Text) => (None, text(Opening::Written)),
        Form::Fields(OneString::Impossible) => return Err(Refused::NoForm),
        // The end of thinking is all there is, and it would be lost.
        Form::Fields(OneString::Answer) | Form::Answer if content.is_empty() => return Err(Refused::NoForm),
        Form::Fields(OneString::Answer) | Form::Answer => (None, content.to_owned()),
    };
    let off = match forms.switch_off {
        SwitchOff::OnceAnswering => true,
        SwitchOff::IfNothingThought => reasoning.is_empty(),
        SwitchOff::Never => false,
    };
    let trimmed = forms.trims.lost(content).to_owned();
    Ok(Words {
        reasoning: field,
        content: text,
        switch: family.switch.filter(|_| off),
        seam: Seam { trimmed, reasoning_is_content: forms.answer_as_reasoning },
    })
}

#[cfg(test)]
mod tests;

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

pub use engine::{Engine, Joint};
pub use family::{Family, Known};

use thiserror::Error;

use self::body::Left;
use self::family::{Form, Forms, Marks, OneString, Opening, Spec, SwitchOff, Thinking};
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

/// The ways to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanKind {
    /// The partial is the last assistant message.
    ChatContinue,
}

impl PlanKind {
    /// For logs, metrics and configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatContinue => "chat-continue",
        }
    }
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
    /// There is no text yet.
    #[error("there is no text to continue from")]
    NothingToContinue,
    /// As many tokens as the request allows have been generated.
    #[error("the token budget is spent")]
    BudgetSpent {
        /// Whether the engines counted the tokens; otherwise it is an estimate.
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
        matches!(self, Self::ThinkingCloses | Self::FlagIgnored | Self::MarkRepeats)
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
    let found = Found::of(partial, spec.marks.as_ref())?;
    let left = Left::of(request, partial, budget.ratios)?;
    let words = compose(&found, spec, engine.spec(), budget.force)?;
    let body = body::write(request, &words, &left, engine.spec(), budget.rid);
    Ok(Plan { kind: PlanKind::ChatContinue, body, seam: words.seam })
}

/// Where the stream broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State<'p> {
    /// No answer yet.
    Thinking { reasoning: &'p str },
    /// The answer had begun.
    Answering { reasoning: &'p str, content: &'p str },
}

/// A state, and whether its thinking was found inside the content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found<'p> {
    state: State<'p>,
    inline: bool,
}

impl<'p> Found<'p> {
    fn of(partial: &'p Partial, marks: Option<&Marks>) -> Result<Self, Refused> {
        if partial.has_tool_call() {
            return Err(Refused::ToolCallShown);
        }
        if partial.is_opaque() {
            return Err(Refused::NotText);
        }
        if partial.is_finished() {
            return Err(Refused::Finished);
        }
        let choice = partial.first().ok_or(Refused::NothingToContinue)?;
        let (reasoning, content) = (choice.reasoning.as_str(), choice.content.as_str());
        let inline = marks.filter(|_| reasoning.is_empty()).and_then(|marks| marks.split(content));
        let state = match inline {
            Some((reasoning, None)) => State::Thinking { reasoning },
            Some((reasoning, Some(content))) => State::Answering { reasoning, content },
            None if !content.is_empty() => State::Answering { reasoning, content },
            None if !reasoning.is_empty() => State::Thinking { reasoning },
            None => return Err(Refused::NothingToContinue),
        };
        Ok(Self { state, inline: inline.is_some() })
    }
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
    let refuse_if = |broken: bool, why: Refused| match broken && !(force && why.yields_to_force()) {
        true => Err(why),
        false => Ok(()),
    };
    refuse_if(engine.flag_ignored_by.contains(&family.renderer), Refused::FlagIgnored)?;
    refuse_if(found.inline && family.repeats_mark, Refused::MarkRepeats)?;
    let forms = family.forms(engine.joint).ok_or(Refused::NoForm)?;
    match found.state {
        State::Thinking { reasoning } => {
            let marks = family.marks.as_ref().ok_or(Refused::UnexpectedThinking)?;
            refuse_if(forms.thinking == Thinking::Closes, Refused::ThinkingCloses)?;
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

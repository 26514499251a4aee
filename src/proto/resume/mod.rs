//! How to continue: [`plan`] turns a request and the partial of its answer into the request that asks for the rest.
//!
//! There are several kinds of plan ([`PlanKind`]), tried best first; [`plan`] makes one of them or says why it does not apply.
//!
//! - **token-exact** (`exact`): the prompt's and the answer's token ids are the next prompt. Where exactly the delivered text ends
//!   among the ids has to be asked of the engine first ([`Search`]).
//! - **render-generate** (`render`): vLLM's scale-out endpoints, with the parser's state carried across the seam.
//! - **chat-continue**: the partial becomes the last assistant message, and `continue_final_message: true` with
//!   `add_generation_prompt: false` lets the engine go on inside it.
//! - **prefix** (`prefix`): a provider goes on from a last assistant message by a way of its own.
//! - **replay** (`replay`): a new request asks for the rest. Not exact, and only where it is named.
//!
//! In which form a partial is written depends on two things that know nothing of each other:
//!
//! | axis | one file each under | says |
//! |---|---|---|
//! | [`Family`] | `family/` | the marks around thinking, its switch, and the form of a partial for each kind of joint |
//! | [`Engine`] | `engine/` | its kind of [`Joint`], which plans it knows, and its quirks |
//!
//! `plan` composes them. A quirk is a value in one of these files and never a condition on a name; there is no file for a
//! pair. What was verified, and how, stands in docs/CONTINUATION.md, and the request for every family, engine and state in
//! `tests/golden/resume/`.
//!
//! What is known not to work is refused with a reason ([`Refused`]) instead of being tried: most engines answer a
//! continuation that they get wrong with 200 and a wrong text.

mod body;
mod completions;
mod engine;
mod exact;
mod family;
mod kind;
mod prefix;
pub mod render;
mod replay;
mod tokenizer;
mod version;

pub use engine::{Engine, Joint};
pub use exact::{Cut, Search, Step};
pub use family::{Family, Known};
pub use kind::{Abilities, PlanKind, PlanSet, Question};
pub use version::Version;

use thiserror::Error;

use self::body::Left;
use self::family::{Form, Forms, Marks, OneString, Opening, Spec, SwitchOff, Thinking};
use self::render::{KnownIds, Rendering};
use super::chat::json::is_null;
use super::chat::{Api, ChatRequest, Exclusion, Onward, Partial, Phase, Ratios, TokenIds};
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
    /// Have the engine list token ids, which the client is not to see: leg 1 did, too.
    pub lists_ids: bool,
    /// What was configured, and what is known of the upstream that continues.
    pub settings: &'a Settings,
}

/// Which plans may be tried, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Those that the configuration allows.
    pub plans: PlanSet,
    /// Those that the upstream has lately refused.
    pub barred: PlanSet,
    /// What the upstream's engines can do.
    pub abilities: Abilities,
    /// Output of a prescribed form is held back until it is whole, so that an engine that begins it anew does no harm.
    pub structured: bool,
    /// Most tokens of a prompt and an answer that are sent back as ids.
    pub max_prompt_tokens: usize,
    /// Render-generate was asked for by name, and is not only for where nothing else will do.
    pub render: bool,
    /// Events of a rendered leg's tokens that are made text in one go; at least 1.
    pub derender_every: usize,
    /// Longest event of a rendered leg's tokens, in bytes.
    pub max_event: usize,
    /// Characters of the partial's end that a replayed answer has to repeat before they are taken out of it; at least 1.
    pub replay_overlap: usize,
}

impl Settings {
    /// Why no answer to this request can be continued, if so.
    pub fn rules_out(&self, request: &ChatRequest) -> Option<Exclusion> {
        request.exclusion().filter(|_| !(self.structured && request.is_only_structured()))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            plans: PlanSet::AUTO,
            barred: PlanSet::default(),
            abilities: Abilities::default(),
            structured: false,
            max_prompt_tokens: 131_072,
            render: false,
            // Every time costs the engine a replay of the whole answer.
            derender_every: 8,
            max_event: super::sse::DEFAULT_MAX_EVENT,
            // Longer than a word or two that an answer may well say again, shorter than a sentence.
            replay_overlap: 16,
        }
    }
}

/// How to continue a partial.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What asks for the rest.
    pub work: Work,
    /// What the splice has to know of the place where the legs meet.
    pub seam: Seam,
    /// From where the engine goes on.
    pub onward: Onward,
    /// The ids that the engine has to repeat as its prompt with its first event, before anything of it may be believed.
    pub echo: Option<TokenIds>,
}

/// What is done to get an answer's rest.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// One request, whose answer is the event stream.
    Request {
        /// Where it is posted.
        path: &'static str,
        /// Its body.
        body: Vec<u8>,
    },
    /// Several, whose answers together read like one event stream.
    Render(Box<Rendering>),
}

impl Work {
    /// The body of its request; empty where there are several, which are not known yet.
    pub fn body(&self) -> &[u8] {
        match self {
            Self::Request { body, .. } => body,
            Self::Render(_) => &[],
        }
    }
}

/// A plan, or what has to be found out for it first.
#[derive(Clone, Debug, PartialEq)]
pub enum Way {
    /// The plan is made.
    Plan(Box<Plan>),
    /// The place to go on from is to be searched, and [`Search::step`] says how.
    Search(Box<Search>),
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
    /// A tool call has been shown. It must not be generated again, and only the parser's state can go on inside one.
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
    /// A completion's prompt is token ids, or text that the engine shortens, so no text can be put behind it.
    #[error("the prompt is no text that could be continued")]
    PromptNotText,
    /// Nobody knows in which form to hand this family's text back to this kind of engine.
    #[error("no form is known for this family on this engine")]
    NoForm,
    /// The engine may say the partial once more, and it is so short that an answer may as well say it twice.
    #[error("the answer is too short to be told from its repetition")]
    TooShort,
    /// The engine does not know this kind of plan.
    #[error("the engine has no such way to continue")]
    NotHere,
    /// The upstream has a version that is too old for it.
    #[error("the engine is too old for it")]
    TooOld,
    /// The token ids are not known, or not all of them.
    #[error("the token ids are not known")]
    NoIds,
    /// The request has pictures or other media, which ids do not stand for.
    #[error("the request has media")]
    Media,
    /// The client sees token ids, and some of those that it has would have to be generated again.
    #[error("the client sees token ids, and would see some of them twice")]
    IdsShown,
    /// Prompt and answer have more tokens than are sent back: `max_prompt_tokens`, or a limit of the plan.
    #[error("prompt and answer have too many tokens for it")]
    PromptTooLong,
    /// The engine spells the ids as another text than the client has.
    #[error("the token ids and the text do not belong together")]
    IdsDiffer,
    /// The request has stop strings, and ids do not say where in a token one begins.
    #[error("the request has stop strings")]
    StopStrings,
    /// The client does not see the thinking, so nobody knows it.
    #[error("the thinking is hidden")]
    ThinkingHidden,
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
            Self::PromptNotText => "prompt_not_text",
            Self::NoForm => "no_form",
            Self::TooShort => "too_short",
            Self::NotHere => "not_here",
            Self::TooOld => "too_old",
            Self::NoIds => "no_ids",
            Self::Media => "media",
            Self::IdsShown => "ids_shown",
            Self::PromptTooLong => "prompt_too_long",
            Self::IdsDiffer => "ids_differ",
            Self::StopStrings => "stop_strings",
            Self::ThinkingHidden => "thinking_hidden",
        }
    }

    /// Whether it is about one kind of plan only, and says nothing about the others.
    fn is_about_the_kind(&self) -> bool {
        matches!(
            self,
            Self::NotHere
                | Self::TooOld
                | Self::NoIds
                | Self::Media
                | Self::IdsShown
                | Self::PromptTooLong
                | Self::IdsDiffer
                | Self::StopStrings
                | Self::ThinkingHidden
        )
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

/// The best way to continue `partial` on `engine`, of the kinds that are allowed and neither barred nor in `spent`.
///
/// # Errors
/// Why the partial is not to be continued: what the last kind said that says more than that it does not apply here.
pub fn way(
    request: &ChatRequest,
    partial: &Partial,
    family: &Family,
    engine: &Engine,
    spent: PlanSet,
    budget: &Budget<'_>,
) -> Result<(PlanKind, Way), Refused> {
    if let Some(exclusion) = budget.settings.rules_out(request) {
        return Err(Refused::Excluded(exclusion));
    }
    // What this stream has had refused is no better than what others had.
    let mut settings = *budget.settings;
    settings.barred.extend(spent.iter());
    let budget = &Budget { settings: &settings, ..*budget };
    let mut kinds = settings.plans.without(settings.barred);
    if let Some(exclusion) = request.exclusion() {
        // A grammar begins at its root behind the thinking. Up to there only ids go on exactly.
        if partial.phase() == Phase::Content || partial.has_tool_call() {
            return Err(Refused::Excluded(exclusion));
        }
        kinds = kinds.iter().filter(|kind| *kind == PlanKind::TokenExact).collect();
    }
    // From text, the tokens whose text has not come are generated again, and the client would see their ids twice.
    let ids_shown = shows_ids(request) && partial.ids_are_ahead();
    let mut why = Refused::NotHere;
    for kind in kinds.iter() {
        let refused = match way_of(kind, request, partial, family, engine, budget) {
            Ok(_) if ids_shown && kind.is_by_text() => Refused::IdsShown,
            Ok(way) => return Ok((kind, way)),
            Err(refused) => refused,
        };
        if why == Refused::NotHere || !refused.is_about_the_kind() {
            why = refused;
        }
    }
    // Without text the client's own request would be sent once more, had no ids been seen.
    Err(if ids_shown && why == Refused::NothingToContinue { Refused::IdsShown } else { why })
}

/// The way of one kind.
///
/// # Errors
/// Why it does not apply.
pub fn way_of(
    kind: PlanKind,
    request: &ChatRequest,
    partial: &Partial,
    family: &Family,
    engine: &Engine,
    budget: &Budget<'_>,
) -> Result<Way, Refused> {
    let made = |plan: Plan| Way::Plan(Box::new(plan));
    match kind {
        PlanKind::TokenExact => exact::search(request, partial, family.spec(), engine.spec(), budget.settings)
            .map(|search| Way::Search(Box::new(search))),
        PlanKind::ChatContinue => plan(request, partial, family, engine, budget).map(made),
        PlanKind::Prefix => prefix::plan(request, partial, family, engine, budget).map(made),
        PlanKind::Replay => replay::plan(request, partial, family, engine, budget).map(made),
        PlanKind::RenderGenerate => render_plan(request, partial, family, engine, budget).map(made),
    }
}

/// The plan over the scale-out endpoints: wherever it was asked for by name, else where the upstream has the endpoints and nothing
/// cheaper can go on: inside a tool call, and where no form of a last message will do or none is taken.
fn render_plan(
    request: &ChatRequest,
    partial: &Partial,
    family: &Family,
    engine: &Engine,
    budget: &Budget<'_>,
) -> Result<Plan, Refused> {
    let Settings { render, abilities, derender_every, max_event, .. } = *budget.settings;
    if !engine.spec().takes_ids || request.api() == Api::Completions {
        return Err(Refused::NotHere);
    }
    let by_message = budget.settings.plans.without(budget.settings.barred).contains(PlanKind::ChatContinue);
    let needed = || partial.has_tool_call() || !by_message || plan(request, partial, family, engine, budget).is_err();
    let wanted = render || (abilities.scale_out && needed());
    if !wanted {
        return Err(Refused::NotHere);
    }
    let ids = partial.ids().map(|ids| KnownIds { prompt: ids.prompt.clone(), answer: ids.answer.clone() });
    let onward = ids.as_ref().map_or(Onward::Text, |ids| Onward::Ids(ids.answer.len()));
    let settings = render::Settings { derender_every, max_event, ids: budget.lists_ids || shows_ids(request) };
    let rendering = Rendering::new(request, partial, ids, family, settings)?;
    Ok(Plan { work: Work::Render(Box::new(rendering)), seam: Seam::default(), onward, echo: None })
}

/// The plan that goes on behind the ids that a [`Search`] has found.
///
/// # Errors
/// No tokens are left.
pub fn from_ids(request: &ChatRequest, partial: &Partial, cut: Cut, ratios: &Ratios) -> Result<Plan, Refused> {
    exact::plan(request, partial, cut, ratios)
}

/// The request that makes `engine` go on where `partial` stopped, by chat-continue.
///
/// The request differs from the client's only in: the last message, the two flags, `stream`,
/// `stream_options.include_usage`, the token limits that the client sent (less what was generated), the thinking switch
/// where the family asks for it, and a fresh request id where the engine wants one. All else keeps its bytes. A completion's has another
/// prompt instead of a message and its flags, whatever the family.
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
    if request.api() == Api::Completions {
        return completions::text_plan(request, partial, engine.spec(), budget);
    }
    let spec = family.spec();
    let found = Found::of(partial, spec, request)?;
    let left = Left::of(request, partial, budget.ratios)?;
    let turned = engine.spec().assistant_becomes_user && request.last_role().as_deref() == Some("assistant");
    refuse_if(turned, Refused::AssistantLast, budget.force)?;
    let words = compose(&found, spec, engine.spec(), budget.force)?;
    let body = body::by_message(request, &words, &left, engine.spec(), budget);
    Ok(Plan {
        work: Work::Request { path: request.api().path(), body },
        seam: words.seam,
        onward: Onward::Text,
        echo: None,
    })
}

/// Why no answer of this family is ever continued on this engine, unless it is forced or replayed; `None`: it depends on the
/// answer.
pub fn never(family: &Family, engine: &Engine) -> Option<Refused> {
    let (family, engine) = (family.spec(), engine.spec());
    if engine.prefill.is_some() {
        return None;
    }
    let Some(joint) = engine.joint else { return Some(Refused::NotHere) };
    if engine.flag_ignored_by.contains(&family.renderer) {
        return Some(Refused::FlagIgnored);
    }
    family.forms(joint).is_none().then_some(Refused::NoForm)
}

/// The client's request as leg 1 sends it, where that differs: it asks a vLLM for token ids. The client must not see them, unless it
/// asked for them itself.
pub fn first(request: &ChatRequest, engine: &Engine, settings: &Settings) -> Option<Vec<u8>> {
    let continued = request.stream() && settings.rules_out(request).is_none();
    let taken = settings.abilities.scale_out || !exact::is_too_old(request.api(), &settings.abilities);
    let useful = engine.spec().takes_ids && continued && taken && !request.has_media();
    (useful && !shows_ids(request)).then(|| {
        let mut request = request.clone();
        request.set(body::RETURN_IDS, &true);
        request.to_bytes()
    })
}

/// Whether the client itself wants to see token ids.
pub fn shows_ids(request: &ChatRequest) -> bool {
    request.is_on(body::RETURN_IDS)
}

/// The client's own request once more, for an answer of which nothing has been delivered but white space: as leg 1 sent it, except
/// that a request id of the client's own becomes a fresh one where the engine wants that. Leg 1 may still hold the client's, and one
/// that is in use twice is an error (SGLang 0.5.23).
pub fn again(request: &ChatRequest, engine: &Engine, budget: &Budget<'_>, blank: &str) -> Plan {
    let mut request = request.clone();
    let own = engine.spec().request_id.filter(|key| request.get(key).is_some_and(|id| !is_null(id)));
    if let Some(key) = own {
        request.set(key, budget.rid);
    }
    if budget.lists_ids && engine.spec().takes_ids {
        request.set(body::RETURN_IDS, &true);
    }
    Plan {
        work: Work::Request { path: request.api().path(), body: request.to_bytes() },
        seam: Seam { trimmed: blank.to_owned(), ..Seam::default() },
        onward: Onward::Again,
        echo: None,
    }
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
    let joint = engine.joint.ok_or(Refused::NotHere)?;
    refuse_if(engine.flag_ignored_by.contains(&family.renderer), Refused::FlagIgnored, force)?;
    refuse_if(found.inline == Some(Opening::Written) && family.repeats_mark, Refused::MarkRepeats, force)?;
    refuse_if(found.marked, Refused::MarkInText, force)?;
    let forms = family.forms(joint).ok_or(Refused::NoForm)?;
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
                seam: Seam { trimmed, ..Seam::default() },
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
        seam: Seam { trimmed, reasoning_is_content: forms.answer_as_reasoning, ..Seam::default() },
    })
}

#[cfg(test)]
mod tests;

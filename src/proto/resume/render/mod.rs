//! The render-generate plan: vLLM's scale-out endpoints, used to go on from token ids and to carry the parser's state across the
//! place where an answer broke.
//!
//! ```text
//!             ids of prompt and answer known ────────────────────────┐
//!  Render ──► Tail ──► Words ──► Seam ──► Generate ──► stream ──► End
//!             (without ids)       │ differs: next words   ▲   │ every so many events, and at the finish
//!                     ▲───────────┘                       │   ▼
//!                                                        Batch
//! ```
//!
//! | question | endpoint (vLLM 0.32, entrypoints/scale_out and entrypoints/serve/tokenize) | why |
//! |---|---|---|
//! | Render | `/v1/chat/completions/render` | the prompt's ids and the sampling parameters of the client's request |
//! | Tail | `/detokenize` | whether the prompt ends inside thinking: it can be read nowhere else |
//! | Words | `/tokenize` | the answer's ids, where leg 1 gave none |
//! | Seam | `/v1/chat/completions/derender` | what those ids are as text; it has to begin with what the client has |
//! | Generate | `/inference/v1/generate` | the rest, as ids |
//! | Batch | `/v1/chat/completions/derender` | the rest as reasoning, content and tool calls |
//!
//! The parser's state is rebuilt by the engine on every derender call, from all ids so far and the pieces in which they were
//! parsed (`DerenderStreamState.output_token_ids` and `output_chunk_lens`). Here the whole answer up to the seam is one piece and
//! every batch another, so that a call costs as many parser steps as there were calls before it and not as many as there are
//! tokens. That the first piece means what leg 1's own pieces meant is not taken for granted: its text is compared with the
//! client's before anything is generated. What the ids have beyond the client's text, because an engine withheld it, is then
//! known and is delivered first: nothing twice, nothing missing.
//!
//! What is deliberately absent: stop strings (ids do not say where in a token one began), media, and log probabilities; such
//! requests are refused, and another plan is tried.

mod batch;
mod events;
mod overlap;
mod wire;
mod words;

#[cfg(test)]
mod tests;

use std::fmt;

use thiserror::Error;

use self::batch::{Batch, Finish, Stream};
use self::events::Writer;
use self::overlap::{Piece, Seen};
use self::wire::{Derendered, Rendered};
use super::family::Marks;
use super::tokenizer::{self, DETOKENIZE, TOKENIZE};
use super::{Family, Question, Refused};
use crate::proto::chat::{Api, ChatRequest, Partial, TokenIds};
use crate::proto::sse::TooLong;

/// Where the client's request becomes a prompt.
const RENDER: &str = "/v1/chat/completions/render";
/// Ids to more ids.
const GENERATE: &str = "/inference/v1/generate";
/// Ids to reasoning, content and tool calls.
const DERENDER: &str = "/v1/chat/completions/derender";

/// Most ids of a prompt: that of the longest context in use, with room.
pub const MAX_PROMPT: usize = 1 << 21;
/// Most ids of an answer.
pub const MAX_ANSWER: usize = 1 << 18;
/// Ids at a prompt's end whose text is looked at for an open mark: a mark may be of several tokens, with white space behind it.
const TAIL: usize = 16;
/// Bytes of a refusing answer that are kept for the log.
const EXCERPT: usize = 512;

/// How a leg is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Events of the generating stream that are made text in one go; at least 1. Every time costs a replay of the whole answer.
    pub derender_every: usize,
    /// Longest event accepted from the engine, in bytes.
    pub max_event: usize,
    /// Write token ids into the events, as a chat leg with `return_token_ids` has them.
    pub ids: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { derender_every: 8, max_event: crate::proto::sse::DEFAULT_MAX_EVENT, ids: false }
    }
}

/// The ids of all that has been generated so far, and of its prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownIds {
    /// The prompt's.
    pub prompt: TokenIds,
    /// The answer's, of all legs. They may be ahead of the text.
    pub answer: TokenIds,
}

/// What ends a leg that is being rendered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Broken {
    /// The engine refused a step.
    #[error("the engine answered {path} with {status}")]
    Status {
        /// Which step.
        path: &'static str,
        /// The HTTP status.
        status: u16,
        /// The beginning of the answer, for the log only: it may quote the request.
        body: String,
    },
    /// The engine's answer is not what the step's answers are.
    #[error("the engine's answer to {path} has no {what}")]
    Malformed {
        /// Which step.
        path: &'static str,
        /// What is missing or of another kind.
        what: &'static str,
    },
    /// An event of the generating stream is too long.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The ids are not the client's text. Before the leg has begun: another plan may know better. Behind it: the engine's parser
    /// went back on what it had said.
    #[error("the text of the tokens is not the text that was delivered")]
    Differs,
    /// What the engine's answers showed rules this plan out.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The shell handed in something that was not asked for: a fault of Baton's own.
    #[error("a step was answered that was not asked")]
    Unasked,
}

/// What the machine needs next.
#[derive(Debug, PartialEq)]
pub enum Need {
    /// A question with one JSON answer, for [`Rendering::answered`].
    Ask(Question),
    /// A question whose answer is an event stream: [`Rendering::opened`] when its header is there, [`Rendering::answered`] when it
    /// is another answer.
    Generate(Question),
    /// Events of a chat completion, for whoever reads this leg. Whole events only.
    Bytes(Vec<u8>),
    /// Bytes of the generating stream, for [`Rendering::generated`], or [`Rendering::generate_ended`].
    More,
    /// The leg is over.
    End,
}

/// A step whose answer is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Render,
    Tail,
    Words,
    Seam,
    Generate,
    Batch,
}

impl Step {
    fn path(self) -> &'static str {
        match self {
            Self::Render => RENDER,
            Self::Tail => DETOKENIZE,
            Self::Words => TOKENIZE,
            Self::Seam | Self::Batch => DERENDER,
            Self::Generate => GENERATE,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// This is to be asked.
    Ask(Step),
    /// This has been asked.
    Asked(Step),
    /// Tokens come.
    Streaming,
    Over,
    Broken(Broken),
}

/// One leg of the render-generate plan. Pure: see [`Need`] for what it asks of its shell.
#[derive(Clone, PartialEq)]
pub struct Rendering {
    state: State,
    settings: Settings,
    /// The client's request, which every derender call repeats.
    chat: String,
    model: Option<String>,
    /// The client wants usage with every event.
    continuous: bool,
    marks: Option<Marks>,
    /// The prompt's and the answer's ids came from leg 1.
    known: bool,
    prompt: TokenIds,
    /// The answer's ids, growing as they are derendered.
    answer: TokenIds,
    /// The pieces in which `answer` was derendered.
    pieces: Vec<usize>,
    /// What the client has.
    seen: Seen,
    /// Ways to write the client's text as the model wrote it; the next one last.
    words: Vec<String>,
    rendered: Option<Rendered>,
    /// The parser has called tools.
    tools_streamed: bool,
    /// The calls' ids, by index.
    call_ids: Vec<String>,
    /// What the client gets before anything new: text of ids that leg 1 withheld.
    withheld: Vec<Piece>,
    batch: Option<Batch>,
    stream: Stream,
    writer: Writer,
    out: Vec<u8>,
}

impl Rendering {
    /// A leg that goes on from `partial`, the answer to `request` so far. `ids`: those of leg 1, when all of them are known.
    ///
    /// # Errors
    /// When this plan is not for the answer, as far as that shows before the engine is asked.
    pub fn new(
        request: &ChatRequest,
        partial: &Partial,
        ids: Option<KnownIds>,
        family: &Family,
        settings: Settings,
    ) -> Result<Self, Refused> {
        rule_out(request, partial, ids.is_some())?;
        let choice = partial.first().cloned().unwrap_or_default();
        let call_ids = choice.tool_calls.iter().map(|call| call.id.clone()).collect::<Option<Vec<_>>>();
        let known = ids.is_some();
        let KnownIds { prompt, answer } = ids.unwrap_or(KnownIds { prompt: TokenIds::new(), answer: TokenIds::new() });
        if prompt.len() > MAX_PROMPT || answer.len() > MAX_ANSWER {
            return Err(Refused::PromptTooLong);
        }
        Ok(Self {
            state: State::Ask(Step::Render),
            settings,
            chat: String::from_utf8_lossy(&request.to_bytes()).into_owned(),
            model: request.model().map(str::to_owned),
            continuous: request.continuous_usage() && request.include_usage(),
            marks: family.spec().marks,
            known,
            prompt,
            answer,
            pieces: Vec::new(),
            seen: Seen::of(&choice),
            words: Vec::new(),
            rendered: None,
            tools_streamed: !choice.tool_calls.is_empty(),
            // A call without an id cannot go on under it.
            call_ids: call_ids.ok_or(Refused::ToolCallShown)?,
            withheld: Vec::new(),
            batch: None,
            stream: Stream::new(settings.max_event),
            writer: Writer::default(),
            out: Vec::new(),
        })
    }

    /// What is needed next. Between a question and its answer nothing is, and asking then is a fault.
    ///
    /// # Errors
    /// The leg has failed. Events that came before it are good.
    pub fn poll(&mut self) -> Result<Need, Broken> {
        if !self.out.is_empty() {
            return Ok(Need::Bytes(std::mem::take(&mut self.out)));
        }
        match self.state.clone() {
            State::Ask(step) => {
                self.state = State::Asked(step);
                let question = Question { path: step.path(), body: self.question(step).into_bytes() };
                Ok(if step == Step::Generate { Need::Generate(question) } else { Need::Ask(question) })
            }
            State::Asked(_) => Err(Broken::Unasked),
            State::Streaming => self.poll_stream(),
            State::Over => Ok(Need::End),
            State::Broken(broken) => Err(broken),
        }
    }

    /// The answer to the question that [`poll`](Self::poll) gave last: its whole body, or the beginning of one that refuses.
    pub fn answered(&mut self, status: u16, body: &[u8]) {
        let State::Asked(step) = self.state else { return self.fail(Broken::Unasked) };
        if status != 200 || step == Step::Generate {
            let body = String::from_utf8_lossy(&body[..body.len().min(EXCERPT)]).into_owned();
            return self.fail(Broken::Status { path: step.path(), status, body });
        }
        let next = match std::str::from_utf8(body) {
            Ok(body) => self.understand(step, body),
            Err(_) => Err(Broken::Malformed { path: step.path(), what: "text" }),
        };
        match next {
            Ok(state) => self.state = state,
            Err(broken) => self.fail(broken),
        }
    }

    /// The generating question is answered by an event stream.
    pub fn opened(&mut self) {
        if self.state != State::Asked(Step::Generate) {
            return self.fail(Broken::Unasked);
        }
        self.state = State::Streaming;
        let mut context = self.prompt.clone();
        context.extend(&self.answer);
        self.writer.open(self.settings.ids.then_some(&context), self.continuous.then_some(context.len()));
        self.writer.role(&mut self.out);
        let withheld = std::mem::take(&mut self.withheld);
        // Its ids were told by the leg that withheld it.
        let none = TokenIds::new();
        self.writer.pieces(&mut self.out, &withheld, None, self.settings.ids.then_some(&none));
    }

    /// Bytes of the generating stream.
    pub fn generated(&mut self, bytes: &[u8]) {
        if self.state != State::Streaming {
            return self.fail(Broken::Unasked);
        }
        if let Err(broken) = self.stream.feed(bytes) {
            self.fail(broken);
        } else if self.answer.len() + self.stream.pending_ids() > MAX_ANSWER {
            self.fail(Broken::Refused(Refused::PromptTooLong));
        }
    }

    /// The generating stream is over, in order or not: what it brought is still made text. Whether the answer is whole is told by
    /// its events.
    pub fn generate_ended(&mut self) {
        self.stream.end();
    }

    fn fail(&mut self, broken: Broken) {
        self.state = State::Broken(broken);
    }

    /// The question of a step.
    fn question(&self, step: Step) -> String {
        let model = self.model.as_deref();
        match (step, &self.rendered) {
            (Step::Tail, _) => tokenizer::detokenize(model, &tail(&self.prompt, TAIL)),
            (Step::Words, _) => tokenizer::tokenize(model, self.words.last().map_or("", String::as_str)),
            (Step::Seam, _) => self.derender(&self.answer, None, &TokenIds::new(), &[]),
            (Step::Generate, Some(rendered)) => rendered.generate(&self.prompt, &self.answer),
            (Step::Batch, _) => {
                let stop_is_text = self.rendered.as_ref().is_some_and(|rendered| rendered.stop_is_text);
                let (ids, finish) = match &self.batch {
                    Some(batch) => (batch.spoken(stop_is_text), batch.finish.as_ref()),
                    None => (TokenIds::new(), None),
                };
                self.derender(&ids, finish, &self.answer, &self.pieces)
            }
            (Step::Render | Step::Generate, _) => self.chat.clone(),
        }
    }

    fn derender(&self, ids: &TokenIds, finish: Option<&Finish>, before: &TokenIds, pieces: &[usize]) -> String {
        wire::Derender {
            model: self.model.as_deref(),
            ids,
            finish,
            before,
            pieces,
            tools_streamed: self.tools_streamed,
            call_ids: &self.call_ids,
            prompt: &self.prompt,
            chat: &self.chat,
        }
        .to_json()
    }

    /// Takes an answer in and says what comes next.
    fn understand(&mut self, step: Step, body: &str) -> Result<State, Broken> {
        match step {
            Step::Render => self.rendered(body),
            Step::Tail => {
                let text =
                    tokenizer::detokenized(body).ok_or(Broken::Malformed { path: DETOKENIZE, what: "prompt" })?;
                self.compose(words::Prompt::of(&text, self.marks.as_ref()))
            }
            Step::Words => {
                let ids = tokenizer::tokenized(body);
                self.answer = ids.ok_or(Broken::Malformed { path: TOKENIZE, what: "tokens" })?;
                if self.answer.len() > MAX_ANSWER {
                    return Err(Refused::PromptTooLong.into());
                }
                Ok(State::Ask(Step::Seam))
            }
            Step::Seam => self.at_seam(&Derendered::read(body)?),
            Step::Batch => self.derendered(&Derendered::read(body)?),
            Step::Generate => Err(Broken::Unasked),
        }
    }

    fn rendered(&mut self, body: &str) -> Result<State, Broken> {
        let (rendered, prompt) = Rendered::read(body)?;
        self.writer.name(&rendered.id, self.model.as_deref(), rendered.parses_reasoning);
        if !self.known {
            self.prompt = prompt;
        }
        if self.prompt.len() > MAX_PROMPT {
            return Err(Refused::PromptTooLong.into());
        }
        self.rendered = Some(rendered);
        match (self.known, self.marks) {
            (true, _) if self.answer.is_empty() => {
                if self.seen.is_nothing() {
                    self.generate_next()
                } else {
                    Err(Broken::Differs)
                }
            }
            (true, _) => Ok(State::Ask(Step::Seam)),
            (false, Some(_)) => Ok(State::Ask(Step::Tail)),
            (false, None) => self.compose(words::Prompt::Plain),
        }
    }

    /// Writes the client's text as the model wrote it.
    fn compose(&mut self, prompt: words::Prompt) -> Result<State, Broken> {
        let parsed = self.rendered.as_ref().is_some_and(|rendered| rendered.parses_reasoning);
        self.words = words::compose(prompt, self.seen.texts(), self.marks.as_ref(), parsed)?;
        Ok(State::Ask(Step::Words))
    }

    /// Compares what the answer's ids say with what the client has.
    fn at_seam(&mut self, derendered: &Derendered) -> Result<State, Broken> {
        self.words.pop();
        let mut seen = self.seen.clone();
        match seen.take(&derendered.delta) {
            Ok(withheld) if seen.texts_are_caught_up() => {
                self.seen = seen;
                self.withheld = withheld;
                self.pieces.push(self.answer.len());
                self.note(derendered);
                self.generate_next()
            }
            _ if !self.words.is_empty() => Ok(State::Ask(Step::Words)),
            _ => Err(Broken::Differs),
        }
    }

    fn generate_next(&self) -> Result<State, Broken> {
        let spent = self.rendered.as_ref().is_some_and(|rendered| rendered.is_spent(self.answer.len()));
        if spent {
            return Err(Refused::BudgetSpent { exact: self.known }.into());
        }
        Ok(State::Ask(Step::Generate))
    }

    /// Keeps what a derender call says of the parser and of the answer's head.
    fn note(&mut self, derendered: &Derendered) {
        self.writer.head(derendered.created, &derendered.model);
        self.tools_streamed |= derendered.tools_streamed;
        // The engine appends an id for each new call and keeps those it was given.
        if derendered.call_ids.len() > self.call_ids.len() {
            self.call_ids.clone_from(&derendered.call_ids);
        }
    }

    fn poll_stream(&mut self) -> Result<Need, Broken> {
        if let Some(batch) = self.stream.batch(self.settings.derender_every.max(1), self.marks.as_ref()) {
            self.batch = Some(batch);
            self.state = State::Ask(Step::Batch);
            return self.poll();
        }
        if !self.stream.is_over() {
            return Ok(Need::More);
        }
        self.stream.tail(&mut self.writer, &mut self.out);
        self.state = State::Over;
        self.poll()
    }

    /// Makes events of a derendered batch.
    fn derendered(&mut self, derendered: &Derendered) -> Result<State, Broken> {
        let batch = self.batch.take().ok_or(Broken::Unasked)?;
        let pieces = self.seen.take(&derendered.delta)?;
        self.note(derendered);
        if !batch.ids.is_empty() {
            self.pieces.push(batch.ids.len());
            self.answer.extend(&batch.ids);
        }
        let (reasoned, answered) = derendered.delta.kinds();
        self.writer.count(&batch, reasoned, answered);
        let finish = batch.finish.as_ref().map(|finish| finish.with(derendered.finish.as_deref()));
        let ids = self.settings.ids.then_some(&batch.ids);
        self.writer.pieces(&mut self.out, &pieces, finish.as_ref(), ids);
        Ok(State::Streaming)
    }
}

/// Without the texts: they belong into no log.
impl fmt::Debug for Rendering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendering")
            .field("state", &self.state)
            .field("known", &self.known)
            .field("prompt", &self.prompt)
            .field("answer", &self.answer)
            .finish_non_exhaustive()
    }
}

fn rule_out(request: &ChatRequest, partial: &Partial, known: bool) -> Result<(), Refused> {
    let hidden = request.get("include_reasoning").is_some_and(|value| value.get() == "false");
    let rules = [
        (request.api() == Api::Completions, Refused::NotHere),
        (partial.is_opaque(), Refused::NotText),
        (partial.is_finished(), Refused::Finished),
        (partial.is_interleaved(), Refused::Interleaved),
        // Ids stand for no pictures.
        (request.has_media(), Refused::Media),
        (request.has_stop(), Refused::StopStrings),
        (!known && partial.has_tool_call(), Refused::ToolCallShown),
        (!known && !partial.has_text(), Refused::NothingToContinue),
        (!known && hidden, Refused::ThinkingHidden),
    ];
    if let Some(exclusion) = request.exclusion() {
        return Err(Refused::Excluded(exclusion));
    }
    rules.into_iter().find_map(|(applies, refused)| applies.then_some(Err(refused))).unwrap_or(Ok(()))
}

/// The last `count` ids.
fn tail(ids: &TokenIds, count: usize) -> TokenIds {
    ids.iter().skip(ids.len().saturating_sub(count)).collect()
}

//! What a scripted engine is told before it starts.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::fault::Rule;
use super::strict::Original;

/// Settings of one engine. The default is a vLLM of the default family on a free local port, without faults.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Shows in `system_fingerprint` and in response ids, so that two engines can be told apart.
    pub name: String,
    /// Models served; others get 404. Empty: every name is served.
    pub models: Vec<String>,
    /// The wire format and the rules of continuing.
    pub wire: Wire,
    /// The model family, by name (see docs/MOCK.md); unknown names behave like `default`.
    pub family: String,
    /// The chat template's behaviour on vLLM; `None`: the family's.
    pub template: Option<Template>,
    /// The name of the reasoning field; `None`: the wire's (`reasoning` on vLLM, `reasoning_content` on SGLang).
    pub reasoning_field: Option<ReasoningField>,
    /// vLLM only: the finish chunk carries the last text even when the reason is `stop` (vllm#35705). With `length` it always does.
    pub finish_with_text: bool,
    /// SGLang only: `role`, `tool_calls` and `usage` are written as nulls in every chunk, as old releases do.
    pub all_nulls: bool,
    /// Everything outside ASCII is escaped as `\uXXXX`.
    pub ascii: bool,
    /// What a request with `continue_final_message` gets.
    pub continuation: Continuation,
    /// Whether a continuation that is not exactly what it should be is refused with 400.
    pub strict: bool,
    /// The first legs seen, for strict comparison. Give several engines clones of one ledger, and a continuation of a
    /// request that none of them has seen is refused too; `None`: the engine's own, and an unknown request is let pass.
    pub ledger: Option<Ledger>,
    /// Pieces of reasoning in an answer (unless the request asks for another number); 0: the model does not think. Most pieces are
    /// one token, some are two or three.
    pub reasoning: usize,
    /// Pieces of content in an answer (unless the request asks for another number).
    pub content: usize,
    /// Mixed into every answer's text; engines that stand in for each other need the same.
    pub seed: u64,
    /// Whether a continued answer goes on with other words than the uncut one has (temperature > 0). vLLM only.
    pub sampled: bool,
    /// What `GET /version` says. Below 0.28, `kv_transfer_params.prompt_token_ids` is silently ignored.
    pub version: String,
    /// Whether the scale-out endpoints answer (`--enable-scale-out`); otherwise they say 403. vLLM only.
    pub scale_out: bool,
    /// Most tokens of a prompt and its answer; a longer prompt or a higher `max_tokens` gets 400.
    pub max_model_len: usize,
    /// What the first event of a chat request with `kv_transfer_params.prompt_token_ids` says of them.
    pub echo: Echo,
    /// After this many pieces of content comes a tool call, if the request has `tools`.
    pub tool_call: Option<usize>,
    /// Tokens in one event, at least 1 (vLLM's `stream_interval`).
    pub tokens_per_event: usize,
    /// vLLM only: an event of several tokens may hold thinking, answer and tool call at once, as a real engine's does when the step
    /// between them falls into it. Otherwise an event ends there.
    pub mixed_events: bool,
    /// Events in one write and one HTTP chunk, at least 1. Real engines write each by itself.
    pub events_per_write: usize,
    /// Wait after each event.
    pub pace: Duration,
    /// Faults of every request they apply to; those in a request's `mock-fault` come on top.
    pub faults: Vec<Rule>,
    /// Shown as `prompt_tokens_details.cached_tokens`.
    pub cached_tokens: Option<u64>,
    /// `created` of every answer, in Unix seconds; `None`: the clock.
    pub created: Option<u64>,
    /// Status of `GET /health` at the start.
    pub health: u16,
    /// Largest request body taken, in bytes; more gets 413.
    pub max_body: usize,
    /// How long an idle connection is kept.
    pub keep_alive: Duration,
    /// Requests remembered for `GET /mock/requests`; the oldest go first.
    pub keep_requests: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            name: "mock".to_owned(),
            models: Vec::new(),
            wire: Wire::Vllm,
            family: "default".to_owned(),
            template: None,
            reasoning_field: None,
            finish_with_text: false,
            all_nulls: false,
            ascii: false,
            continuation: Continuation::Honoured,
            strict: false,
            ledger: None,
            reasoning: 24,
            content: 48,
            seed: 0,
            sampled: false,
            version: "0.32.0".to_owned(),
            scale_out: false,
            max_model_len: 131_072,
            echo: Echo::Right,
            tool_call: None,
            tokens_per_event: 1,
            mixed_events: false,
            events_per_write: 1,
            pace: Duration::ZERO,
            faults: Vec::new(),
            cached_tokens: None,
            created: None,
            health: 200,
            max_body: 32 << 20,
            keep_alive: Duration::from_secs(60),
            keep_requests: 10_000,
        }
    }
}

/// The engine whose wire format and validation are played.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    /// vLLM 0.16+.
    Vllm,
    /// SGLang 0.5.13+.
    Sglang,
}

/// Which field of a delta carries reasoning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReasoningField {
    /// `reasoning`: vLLM 0.16+.
    Reasoning,
    /// `reasoning_content`: SGLang, and vLLM up to 0.12.
    ReasoningContent,
    /// Both with the same text: vLLM 0.13 to 0.15.
    Both,
}

/// How a chat template shows the last assistant message to the model (vLLM; SGLang appends the string as it is).
///
/// Named by the model whose template behaves so; the Qwen3 ones as measured on vLLM 0.32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Template {
    /// The string byte for byte; separate reasoning becomes a closed block before it.
    Raw,
    /// As `Raw`, but outer white space of the content is lost, so that the engine repeats it.
    Trim,
    /// Always a closed think block before the answer: thinking cannot be continued. White space is kept.
    Qwen3,
    /// As `Qwen3`, with outer white space lost; reasoning without content gets 400 (GLM too).
    Qwen36,
    /// As `Qwen36`, and a string with think tags gets a second think block.
    Qwen38,
    /// Only the answer, after a closed block: reasoning is dropped, and so is everything up to a closing tag in the string.
    DeepseekV3,
    /// Only the answer, without any block: reasoning is dropped, and blanks at the end are lost (mistral_common).
    Mistral,
    /// No think tokens in the prompt; a string with the closing one gets 400, separate reasoning is dropped, and because the
    /// parser sees no end of thinking, a continued answer arrives labelled as reasoning.
    DeepseekR1,
}

/// How `continue_final_message` is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Continuation {
    /// As the engine documents it.
    Honoured,
    /// Silently ignored: the partial was closed, so the model stops at once (vllm#46256, sglang#12140).
    Empty,
    /// Silently ignored: the whole answer comes again.
    Afresh,
}

/// What an engine says of the prompt ids that it was given, when it is asked to return ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Echo {
    /// They come back.
    Right,
    /// Null.
    Missing,
    /// Others come back.
    Wrong,
}

/// The first legs that one or more engines have seen, by their messages. Clones share their contents.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<Vec<Arc<Original>>>>);

/// First legs remembered; the oldest go first.
const LEDGER_LIMIT: usize = 4096;

impl Config {
    /// Major and minor number of the version played; 0 where it cannot be read.
    pub(super) fn version(&self) -> (u64, u64) {
        let number = |text: Option<&str>| {
            let text = text.unwrap_or_default();
            text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())].parse().unwrap_or(0)
        };
        let mut parts = self.version.split('.');
        (number(parts.next()), number(parts.next()))
    }
}

impl Ledger {
    pub(super) fn note(&self, original: Original) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() >= LEDGER_LIMIT {
            list.remove(0);
        }
        list.push(Arc::new(original));
    }

    /// First legs with exactly these messages, the newest first.
    pub(super) fn find(&self, messages: &[String]) -> Vec<Arc<Original>> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().rev().filter(|original| original.messages == messages).cloned().collect()
    }

    /// The first leg, for chat or a completion, of whose prompt these ids are more: the one with the longest prompt, and of those the newest.
    pub(super) fn before(&self, ids: &[u32], is_chat: bool) -> Option<Arc<Original>> {
        let list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |original: &&Arc<Original>| {
            let is_more = original.prompt.len() < ids.len() || is_chat;
            original.messages.is_empty() != is_chat && is_more && ids.starts_with(&original.prompt)
        };
        list.iter().filter(fits).max_by_key(|original| original.prompt.len()).cloned()
    }
}

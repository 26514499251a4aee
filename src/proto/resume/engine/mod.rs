//! Engines: how a server puts a partial into the prompt, one file each.
//!
//! An engine says how its joint works and which quirks it has. It knows families by what they declare of themselves
//! ([`Renderer`]), except for start-up cautions, which name the family they concern.

mod deepseek_api;
mod generic;
mod llama_cpp;
mod mistral_api;
mod openai_api;
mod sglang;
mod vllm;

use super::family::{Family, Known, Renderer, Switch, Trims, plain};
use super::kind::{PlanKind, PlanSet};

/// All engines, the one for unknown names first.
static ALL: &[&Spec] = &[
    &generic::GENERIC,
    &deepseek_api::DEEPSEEK,
    &llama_cpp::LLAMA_CPP,
    &mistral_api::MISTRAL,
    &openai_api::OPENAI,
    &sglang::SGLANG,
    &vllm::VLLM,
];

/// A kind of server.
#[derive(Clone, Debug)]
pub struct Engine {
    name: String,
    spec: &'static Spec,
}

impl Engine {
    /// The engine of this name, in any case. An unknown name behaves as `generic`.
    pub fn named(name: &str) -> (Self, Known) {
        let wanted = plain(name);
        match ALL.iter().find(|spec| spec.name == wanted || spec.aliases.contains(&wanted.as_str())) {
            Some(spec) => (Self { name: spec.name.to_owned(), spec }, Known::Yes),
            None => (Self { name: name.to_owned(), spec: &generic::GENERIC }, Known::No),
        }
    }

    /// The engine's own name; for an unknown engine the name it was asked for by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of all known engines.
    pub fn all() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|spec| spec.name)
    }

    /// What an operator should hear at start about continuing this family here, in words; empty for most.
    pub fn cautions(&self, family: &Family) -> impl Iterator<Item = &'static str> {
        let family = family.spec().name;
        self.spec.cautions.iter().filter(move |(concerned, _)| *concerned == family).map(|(_, words)| *words)
    }

    /// The ways to go on from an answer's text that this engine has. What goes by token ids is not in it: there the engine's
    /// version decides.
    pub fn by_text(&self) -> PlanSet {
        let offered = [
            (PlanKind::ChatContinue, self.spec.joint.is_some()),
            (PlanKind::Prefix, self.spec.prefill.is_some()),
            (PlanKind::Replay, true),
        ];
        offered.into_iter().filter_map(|(kind, has)| has.then_some(kind)).collect()
    }

    pub(super) fn spec(&self) -> &'static Spec {
        self.spec
    }
}

/// What an engine's file says.
#[derive(Debug)]
pub(super) struct Spec {
    /// The name in configuration; the golden files are named by it.
    pub(super) name: &'static str,
    pub(super) aliases: &'static [&'static str],
    /// How a partial gets into the prompt behind `continue_final_message`; `None` where that is not known.
    pub(super) joint: Option<Joint>,
    /// How the engine goes on from a last assistant message without that flag; `None` where it would answer it.
    pub(super) prefill: Option<Prefill>,
    /// Whether `stream_options` is a field here. Where it is not, usage comes unasked.
    pub(super) stream_options: bool,
    /// Whether the last message may have its reasoning in a field of its own.
    pub(super) reads_reasoning: bool,
    /// The field that names a request and must not be used twice at a time.
    pub(super) request_id: Option<&'static str>,
    /// Renderers that silently ignore `continue_final_message` here: a quiet 200 with a wrong answer.
    pub(super) flag_ignored_by: &'static [Renderer],
    /// Whether chats list token ids and take them as a prompt.
    pub(super) takes_ids: bool,
    /// Whether a last assistant message without the flag is made a user's.
    pub(super) assistant_becomes_user: bool,
    /// (family, words): what goes wrong on some versions.
    pub(super) cautions: &'static [(&'static str, &'static str)],
}

/// How the partial gets into the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joint {
    /// The last message goes through the chat template like any other, and the prompt is cut behind its content.
    ThroughTemplate,
    /// The template writes the generation prompt, and the last message's content is appended to it as it is.
    AppendedRaw,
}

/// How a provider goes on from a last assistant message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefill {
    /// The field of the message that has to be `true`; `None` where its place alone says it.
    pub(super) flag: Option<&'static str>,
    /// The field of the message for thinking that has ended; `None` where there is none, and the answer is sent alone.
    pub(super) reasoning: Option<&'static str>,
    /// Where the request is sent, if it is another place than the client's.
    pub(super) path: Option<&'static str>,
    /// What of the message's end is lost, so that the engine writes it again.
    pub(super) trims: Trims,
    /// Whether the answer may begin with the message once more.
    pub(super) repeats: bool,
    /// The switch that has to be off for a model that may think, or the request is refused.
    pub(super) switch: Option<Switch>,
}

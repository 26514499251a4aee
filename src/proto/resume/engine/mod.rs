//! Engines: how a server puts a partial into the prompt, one file each.
//!
//! An engine says how its joint works and which quirks it has. It knows families by what they declare of themselves
//! ([`Renderer`]), except for start-up cautions, which name the family they concern.

mod generic;
mod sglang;
mod vllm;

use super::family::{Family, Known, Renderer, plain};

/// All engines, the one for unknown names first.
static ALL: &[&Spec] = &[&generic::GENERIC, &sglang::SGLANG, &vllm::VLLM];

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
    pub(super) joint: Joint,
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

//! A certificate: what `baton certify` found out about an engine, and what may be concluded from it.
//!
//! For each [kind of plan](PlanKind) and each [`State`] in which an answer can be cut it counts how continuations came out
//! ([`Verdict`]), compared with the same answer uncut. It is written as JSON for Baton, which reads it at start and says what it does not
//! cover ([`Certificate::doubts`]), and as Markdown for people.
//!
//! Limits: a certificate speaks of one model on one version of an engine, and of the prompts that were tried. One point of the same state
//! where it came out otherwise is not ruled out.

mod doubts;
mod table;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::doubts::Used;
use super::resume::{PlanKind, Version};

/// The schema that is written, and the only one that is read.
pub const SCHEMA: u32 = 1;

/// Where an answer was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Inside thinking, between two words.
    Thinking,
    /// At the end of thinking: behind its last text, at the closing mark, or behind the first text of the answer.
    Step,
    /// Inside the answer, between two words.
    Content,
    /// Inside the answer, with thinking switched off.
    ThinkingOff,
    /// Between two letters or digits, of the thinking or of the answer.
    InsideWord,
    /// Behind a token that is a part of a character.
    InsideCharacter,
    /// Behind the beginning of a tool call of which nothing has been shown.
    BeforeToolName,
    /// Behind the name of a tool call.
    BehindToolName,
}

impl State {
    /// All, in the order of a report.
    pub const ALL: [Self; 8] = [
        Self::Thinking,
        Self::Step,
        Self::Content,
        Self::ThinkingOff,
        Self::InsideWord,
        Self::InsideCharacter,
        Self::BeforeToolName,
        Self::BehindToolName,
    ];

    /// In words for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Thinking => "in thinking",
            Self::Step => "at the end of thinking",
            Self::Content => "in content",
            Self::ThinkingOff => "in content, thinking switched off",
            Self::InsideWord => "inside a word",
            Self::InsideCharacter => "inside a character",
            Self::BeforeToolName => "in a tool call, before its name",
            Self::BehindToolName => "in a tool call, behind its name",
        }
    }
}

/// How a continuation came out. Ordered by the harm that it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Thinking, answer, tool calls, finish reason and usage are those of the uncut answer.
    Exact,
    /// The texts are; the finish reason or the usage differs.
    SameText,
    /// There is none: the engine refused, or Baton did. Another plan may follow, or the client is told that its answer is incomplete.
    Refused,
    /// No error, and another text.
    Different,
    /// Thinking in the answer, the answer in thinking, or a mark of thinking as text.
    Leaks,
}

impl Verdict {
    /// In words for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::SameText => "same text",
            Self::Refused => "refused",
            Self::Different => "coherent but different",
            Self::Leaks => "leaks reasoning",
        }
    }
}

/// One kind of plan in one state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The kind.
    #[serde(with = "by_name")]
    pub plan: PlanKind,
    /// The state.
    pub state: State,
    /// How many cuts came out how; never empty.
    pub verdicts: BTreeMap<Verdict, u32>,
    /// Why, where it was not exact: each reason once, the first few.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
}

/// Reasons kept for one row.
const MAX_WHY: usize = 3;

impl Row {
    /// A row without a cut.
    pub fn new(plan: PlanKind, state: State) -> Self {
        Self { plan, state, verdicts: BTreeMap::new(), why: Vec::new() }
    }

    /// Counts one cut.
    pub fn add(&mut self, verdict: Verdict, why: Option<String>) {
        *self.verdicts.entry(verdict).or_default() += 1;
        if let Some(why) = why.filter(|why| self.why.len() < MAX_WHY && !self.why.contains(why)) {
            self.why.push(why);
        }
    }

    /// The verdict that does most harm; [`Verdict::Exact`] of a row without a cut.
    pub fn worst(&self) -> Verdict {
        self.verdicts.keys().next_back().copied().unwrap_or(Verdict::Exact)
    }

    /// How many cuts there were.
    pub fn cuts(&self) -> u32 {
        self.verdicts.values().sum()
    }
}

/// A prompt that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    /// Its name among the prompts.
    pub name: String,
    /// What was asked.
    pub text: String,
    /// Tokens of the uncut answer, as the engine counted them.
    pub tokens: Option<u64>,
    /// The finish reason of the uncut answer.
    pub finish: Option<String>,
    /// Asked twice, the engine gave the same answer: otherwise nothing after a cut can be exact.
    pub repeats: bool,
}

/// How one family's form of chat-continue came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fit {
    /// Families whose requests were the same.
    pub families: Vec<String>,
    /// How many cuts in thinking came out how.
    pub thinking: BTreeMap<Verdict, u32>,
    /// How many cuts in the answer came out how.
    pub content: BTreeMap<Verdict, u32>,
}

/// What was found out about an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When, in UTC: `2026-01-31T12:00:00Z`.
    pub date: String,
    /// The engine, by its name in the configuration.
    pub engine: String,
    /// What the engine said its version was.
    pub version: Option<String>,
    /// Whether it had the endpoints that render, tokenize, generate and derender.
    pub scale_out: bool,
    /// The model, by its public name.
    pub model: String,
    /// What the generation prompt ends in, behind the client's text: tells chat templates apart.
    pub template: Option<String>,
    /// The family that the rows are for.
    pub family: String,
    /// The `chat_template_kwargs` key that switches thinking; `None`: none that is known does, or that could not be found out.
    pub thinking_key: Option<String>,
    /// Whether what is known not to work was tried, too.
    pub forced: bool,
    /// What was asked.
    pub prompts: Vec<Tried>,
    /// How families fit, the best first; empty where the family was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub families: Vec<Fit>,
    /// The matrix.
    pub rows: Vec<Row>,
    /// States that no answer came to, so that nothing is known of them.
    #[serde(default)]
    pub not_reached: Vec<State>,
}

/// Why a text is no certificate.
#[derive(Debug, Error)]
pub enum NoCertificate {
    /// It is not JSON, or lacks something.
    #[error("it is no certificate of `baton certify`: {0}")]
    Unread(#[from] serde_json::Error),
    /// It was written by another version of Baton.
    #[error("its schema is {0}, and this version of Baton reads {SCHEMA}; write it anew with `baton certify`")]
    Schema(u32),
}

impl Certificate {
    /// Reads one.
    ///
    /// # Errors
    /// Why the text is none.
    pub fn read(json: &str) -> Result<Self, NoCertificate> {
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        match serde_json::from_str::<Head>(json)?.schema {
            SCHEMA => Ok(serde_json::from_str(json)?),
            other => Err(NoCertificate::Schema(other)),
        }
    }

    /// The JSON text, for files.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The version, where it could be read as one.
    pub fn version(&self) -> Option<Version> {
        self.version.as_deref().and_then(Version::parse)
    }

    /// The row of a kind of plan in a state.
    pub fn row(&self, plan: PlanKind, state: State) -> Option<&Row> {
        self.rows.iter().find(|row| row.plan == plan && row.state == state)
    }
}

/// A kind of plan by its name.
mod by_name {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::PlanKind;

    pub(super) fn serialize<S: Serializer>(plan: &PlanKind, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(plan.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PlanKind, D::Error> {
        let name = String::deserialize(deserializer)?;
        PlanKind::named(&name).ok_or_else(|| D::Error::custom(format!("{name} is no kind of plan")))
    }
}

#[cfg(test)]
mod tests;

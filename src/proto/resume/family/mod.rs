//! Families: how a model writes its thinking, one file each.
//!
//! A family says three things: the marks around its thinking, the key that switches thinking off, and, for each of the
//! two kinds of [`Joint`] an engine can have, in which [`Form`] a partial is handed back. It knows no engine: what an
//! engine cannot do stands in the engine's file, and [`plan`](super::plan) puts the two together.

mod deepseek_r1;
mod deepseek_v3;
mod default;
mod glm;
mod gpt_oss;
mod kimi_k2;
mod kimi_k3;
mod minimax;
mod mistral;
mod no_thinking;
mod qwen3;
mod qwen3_6;

use super::engine::Joint;
use crate::proto::chat::ChatRequest;
use crate::proto::chat::json::Object;

/// All families, the one for unknown names first.
static ALL: &[&Spec] = &[
    &default::DEFAULT,
    &deepseek_r1::DEEPSEEK_R1,
    &deepseek_v3::DEEPSEEK_V3,
    &deepseek_v3::DEEPSEEK_V4,
    &glm::GLM,
    &glm::GLM_4_7,
    &gpt_oss::GPT_OSS,
    &kimi_k2::KIMI_K2,
    &kimi_k2::KIMI_K2_5,
    &kimi_k3::KIMI_K3,
    &minimax::MINIMAX,
    &minimax::MINIMAX_M3,
    &mistral::MISTRAL,
    &no_thinking::NO_THINKING,
    &qwen3::QWEN3,
    &qwen3_6::QWEN3_6,
    &qwen3_6::QWEN3_8,
];

/// A model family: how its models write, whatever the model is called.
#[derive(Clone, Debug)]
pub struct Family {
    name: String,
    spec: &'static Spec,
}

/// Whether a configured name is one that Baton knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It has its own file.
    Yes,
    /// It has not: the general form is used, and whoever configured the name should be warned at start.
    No,
}

impl Family {
    /// The family of this name. Case, and which of `-`, `_`, `.` and blank stands between the parts, make no difference.
    /// An unknown name gets the default form and the key `thinking`.
    pub fn named(name: &str) -> (Self, Known) {
        let wanted = plain(name);
        let found = ALL.iter().find(|spec| spec.name == wanted || spec.aliases.contains(&wanted.as_str()));
        match found {
            Some(spec) => (Self { name: spec.name.to_owned(), spec }, Known::Yes),
            None => (Self { name: name.to_owned(), spec: &default::DEFAULT }, Known::No),
        }
    }

    /// The family's own name; for an unknown family the name it was asked for by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The `chat_template_kwargs` key that switches thinking off, if the family has one.
    pub fn thinking_key(&self) -> Option<&'static str> {
        self.spec.switch.map(|switch| switch.key)
    }

    /// The `chat_template_kwargs` key that switches thinking off and the JSON value for that, if the family has one.
    pub fn thinking_switch(&self) -> Option<(&'static str, &'static str)> {
        self.spec.switch.map(|switch| (switch.key, switch.off))
    }

    /// The marks around thinking, each with the white space that the model writes inside it: `<think>\n` and `\n</think>`.
    pub fn marks(&self) -> Option<(String, String)> {
        let marks = self.spec.marks.as_ref()?;
        Some((format!("{}{}", marks.open, marks.after_open), format!("{}{}", marks.before_close, marks.close)))
    }

    /// Whether the generation prompt ends in the opening mark, with thinking switched on or off, or as it is by itself.
    pub fn prompt_opens(&self, thinking: Option<bool>) -> bool {
        match self.spec.prompt {
            Prompt::Plain => false,
            Prompt::OpensUnlessOff => thinking != Some(false),
            Prompt::OpensIfOn => thinking == Some(true),
        }
    }

    /// Whether thinking is switched off for the rest of an answer although there was some, through a chat template: right only where
    /// that changes nothing of the prompt but its end.
    pub fn is_switched_off_later(&self) -> bool {
        self.spec.template.is_some_and(|forms| forms.switch_off == SwitchOff::OnceAnswering)
    }

    /// Whether a name belongs to a known family.
    pub fn is_known(name: &str) -> bool {
        Self::named(name).1 == Known::Yes
    }

    /// The names of all known families.
    pub fn all() -> impl Iterator<Item = &'static str> {
        ALL.iter().map(|spec| spec.name)
    }

    pub(super) fn spec(&self) -> &'static Spec {
        self.spec
    }
}

/// A name in lower case with `_` between its parts.
pub(super) fn plain(name: &str) -> String {
    name.trim().to_lowercase().replace(['-', '.', ' '], "_")
}

/// What a family's file says.
#[derive(Debug)]
pub(super) struct Spec {
    /// The name as [`plain`] writes it; the golden files are named by it.
    pub(super) name: &'static str,
    /// Other names of the same behaviour, as [`plain`] writes them.
    pub(super) aliases: &'static [&'static str],
    /// How thinking is marked; `None` when the family does not think.
    pub(super) marks: Option<Marks>,
    /// What turns messages into a prompt when the engine does not use a Jinja template.
    pub(super) renderer: Renderer,
    /// The key that switches thinking off; `None` when there is none, or when the engine refuses any.
    pub(super) switch: Option<Switch>,
    /// Whether the generation prompt ends in the opening mark.
    pub(super) prompt: Prompt,
    /// The forms for an engine that sends the partial through the chat template; `None` when no form is known.
    pub(super) template: Option<Forms>,
    /// The forms for an engine that appends the partial raw; `None` when no form is known.
    pub(super) appended: Option<Forms>,
    /// Whether a parser in use for this family writes the opening mark again before each leg's first text.
    pub(super) repeats_mark: bool,
}

impl Spec {
    pub(super) fn forms(&self, joint: Joint) -> Option<&Forms> {
        match joint {
            Joint::ThroughTemplate => self.template.as_ref(),
            Joint::AppendedRaw => self.appended.as_ref(),
        }
    }

    /// Whether the generation prompt of this request ends in an open block, as far as the request says: an answer that no
    /// parser has parted then begins with thinking and without a mark.
    pub(super) fn opens_block(&self, request: &ChatRequest) -> bool {
        let kwargs = request.get("chat_template_kwargs").and_then(|kwargs| Object::parse(kwargs.get()).ok());
        let says = |value: &str| {
            let sent = self.switch.zip(kwargs.as_ref()).and_then(|(switch, kwargs)| kwargs.get(switch.key));
            sent.is_some_and(|sent| sent.get() == value)
        };
        match self.prompt {
            Prompt::Plain => false,
            Prompt::OpensUnlessOff => !self.switch.is_some_and(|switch| says(switch.off)),
            Prompt::OpensIfOn => says("true"),
        }
    }
}

/// The text around thinking. The gaps are white space that the model writes there and that some parsers take away: what
/// of a gap is already part of the partial is not written twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) open: &'static str,
    pub(super) after_open: &'static str,
    pub(super) before_close: &'static str,
    pub(super) close: &'static str,
    pub(super) after_close: &'static str,
    /// What a text handed back must not contain, because the tokenizer or the template would take it for a mark.
    pub(super) reserved: &'static [&'static str],
}

impl Marks {
    /// `<think>…</think>` with nothing between the marks and the text.
    pub(super) const THINK: Self = Self {
        open: "<think>",
        after_open: "",
        before_close: "",
        close: "</think>",
        after_close: "",
        reserved: &["<think>", "</think>"],
    };
    /// `<think>\n…\n</think>\n\n`, as the Qwen3 and MiniMax-M2 templates write it.
    pub(super) const THINK_LINES: Self =
        Self { after_open: "\n", before_close: "\n", after_close: "\n\n", ..Self::THINK };

    /// Thinking that goes on: never closed.
    pub(super) fn unfinished(&self, opening: Opening, reasoning: &str) -> String {
        let mut text = String::with_capacity(self.open.len() + self.after_open.len() + reasoning.len());
        if opening == Opening::Written {
            text.push_str(self.open);
            text.push_str(missing_before(self.after_open, reasoning));
        }
        text.push_str(reasoning);
        text
    }

    /// Thinking that is over, and the answer so far.
    pub(super) fn finished(&self, opening: Opening, reasoning: &str, content: &str) -> String {
        let mut text = self.unfinished(opening, reasoning);
        text.push_str(missing_after(&text, self.before_close));
        text.push_str(self.close);
        text.push_str(missing_before(self.after_close, content));
        text.push_str(content);
        text
    }

    /// Whether one of the marks is in `text`.
    pub(super) fn stand_in(&self, text: &str) -> bool {
        self.reserved.iter().any(|mark| text.contains(mark))
    }
}

/// Whether the generation prompt, with which the model's turn begins, ends in the opening mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// Never.
    Plain,
    /// Unless thinking is switched off.
    OpensUnlessOff,
    /// Only when thinking is switched on.
    OpensIfOn,
}

/// The part of `gap` that has to be written before `text`, which may begin with some of it already.
fn missing_before<'g>(gap: &'g str, text: &str) -> &'g str {
    // Gaps are newlines only, so any byte is a boundary.
    let there = (0..=gap.len()).rev().find(|&length| text.starts_with(&gap[gap.len() - length..])).unwrap_or(0);
    &gap[..gap.len() - there]
}

/// The part of `gap` that has to be written after `text`, which may end with some of it already.
fn missing_after<'g>(text: &str, gap: &'g str) -> &'g str {
    let there = (0..=gap.len()).rev().find(|&length| text.ends_with(&gap[..length])).unwrap_or(0);
    &gap[there..]
}

/// The forms of one family for one kind of joint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forms {
    /// When the stream broke while thinking.
    pub(super) thinking: Thinking,
    /// When the answer had begun.
    pub(super) content: Form,
    /// What happens to the thinking switch then.
    pub(super) switch_off: SwitchOff,
    /// What of the partial's end does not survive.
    pub(super) trims: Trims,
    /// Whether the engine's parser finds no end of thinking in the prompt and labels the rest of the answer as reasoning.
    pub(super) answer_as_reasoning: bool,
}

/// Whether unfinished thinking can be handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    /// Yes, as text that stays open.
    StaysOpen(Opening),
    /// No: the prompt gets an ended or an empty block, so the model would answer or think anew.
    Closes,
}

/// How an answer that had begun is handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One string: the thinking block if there was thinking, then the answer.
    Text(Opening),
    /// `reasoning` and `content` as two fields; an engine that reads one string gets what the value says.
    Fields(OneString),
    /// The answer alone: the template drops reasoning, or breaks on marks in the text.
    Answer,
}

/// What stands in for two fields where the engine reads one string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OneString {
    /// Block and answer: the template takes them apart and writes the same again.
    Text,
    /// The answer: the template drops the reasoning either way.
    Answer,
    /// Nothing: the template would write a second block.
    Impossible,
}

/// Who writes the opening mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// The model does, so it belongs to the partial.
    Written,
    /// The generation prompt has it already; a second one would be wrong.
    InPrompt,
}

/// When thinking is switched off for leg 2. Never before the answer has begun.
///
/// Off is the safe choice where it leaves the prompt as it was: the parser then cannot take the answer for thinking.
/// But some templates write another prompt when it is off (a `/nothink` after each user message, a closed block at the
/// end, a system message that goes), and there leg 2 must carry leg 1's own switch as long as there is reasoning to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SwitchOff {
    /// Whenever the answer has begun. The family's key then wins over the client's value for that one key.
    OnceAnswering,
    /// Only when there was no reasoning: a prompt that opens a block would put the answer into it.
    IfNothingThought,
    /// Never: there is no key, or the prompt is right either way.
    Never,
}

/// The switch: one key and what turns thinking off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Switch {
    pub(super) key: &'static str,
    /// The value as JSON text.
    pub(super) off: &'static str,
}

impl Switch {
    pub(super) const THINKING: Self = Self { key: "thinking", off: "false" };
    pub(super) const ENABLE_THINKING: Self = Self { key: "enable_thinking", off: "false" };
}

/// What of the partial's end the prompt loses, so that the engine writes it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trims {
    Nothing,
    /// All white space, as Python's `strip()` sees it.
    WhiteSpace,
    /// Blanks only.
    Blanks,
}

impl Trims {
    /// The lost end of `text`.
    pub(super) fn lost(self, text: &str) -> &str {
        let kept = match self {
            Self::Nothing => text,
            Self::WhiteSpace => text.trim_end_matches(is_python_space),
            Self::Blanks => text.trim_end_matches(' '),
        };
        &text[kept.len()..]
    }
}

/// `str.isspace()`: Unicode white space and the four separators U+001C to U+001F.
fn is_python_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// What writes a family's prompt. An engine lists those that do not honour `continue_final_message`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renderer {
    /// The checkpoint's Jinja chat template.
    ChatTemplate,
    /// mistral_common.
    MistralTokenizer,
    /// The Python encoders of DeepSeek V3.2 and V4.
    DeepseekEncoding,
    /// The Python encoder of Kimi-K3.
    KimiK3Encoding,
    /// The channel format of gpt-oss.
    Harmony,
}

//! Which family can be continued on which engine, in which state: written by hand from how the engines and the chat templates
//! work (docs/CONTINUATION.md has the sources), on purpose not from what `plan` says.

use std::collections::BTreeSet;

use baton::proto::resume::{Engine, Family, PlanKind};

/// The two states in which an answer can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Thinking,
    Answering,
}

/// What is to happen, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Another engine goes on.
    Continues(&'static str),
    /// The code of the refusal.
    Refused(&'static str, &'static str),
}

use Expect::{Continues as Yes, Refused as No};

/// Family, engine, while thinking, once answering.
type Row = (&'static str, &'static str, Expect, Expect);

const CLOSES: &str = "thinking_closes";
const RAW: &str = "the string is appended to the prompt as it is";
const AS_TEXT: &str = "the template leaves a string as it is";
const BEHIND: &str = "the generation prompt has opened the block already";

const ROWS: &[Row] = &[
    ("default", "vllm", Yes(AS_TEXT), Yes(AS_TEXT)),
    ("default", "sglang", Yes(RAW), Yes(RAW)),
    ("default", "generic", Yes(AS_TEXT), Yes(AS_TEXT)),
    (
        "deepseek_r1",
        "vllm",
        Yes("without a closing mark the string stays"),
        Yes("the answer alone; it comes as reasoning"),
    ),
    ("deepseek_r1", "sglang", Yes(BEHIND), Yes(BEHIND)),
    ("deepseek_r1", "generic", Yes("without a closing mark the string stays"), Yes("the answer alone, as on vLLM")),
    (
        "deepseek_v3",
        "vllm",
        No(CLOSES, "`</think>` stands before the message"),
        Yes("the answer alone follows `</think>`"),
    ),
    ("deepseek_v3", "sglang", Yes(BEHIND), Yes(BEHIND)),
    ("deepseek_v3", "generic", No(CLOSES, "as on vLLM"), Yes("the answer alone follows `</think>`")),
    ("deepseek_v4", "vllm", No("flag_ignored", "vllm#46256"), No("flag_ignored", "vllm#46256")),
    ("deepseek_v4", "sglang", Yes(BEHIND), Yes(BEHIND)),
    ("deepseek_v4", "generic", No(CLOSES, "a template as that of V3.1"), Yes("only vLLM's encoders ignore the flag")),
    ("glm", "vllm", No(CLOSES, "a closed block is always written"), Yes("two fields")),
    ("glm", "sglang", Yes(RAW), Yes(RAW)),
    ("glm", "generic", No(CLOSES, "a closed block is always written"), Yes("the template takes the string apart")),
    ("glm_4_7", "vllm", No(CLOSES, "a closed block is always written"), Yes("two fields")),
    ("glm_4_7", "sglang", Yes(BEHIND), Yes(BEHIND)),
    ("glm_4_7", "generic", No(CLOSES, "a closed block is always written"), Yes("the template takes the string apart")),
    ("gpt_oss", "vllm", No("flag_ignored", "Harmony never reads it"), No("flag_ignored", "Harmony never reads it")),
    ("gpt_oss", "sglang", No("no_form", "channels, not marks"), No("no_form", "channels, not marks")),
    ("gpt_oss", "generic", No("flag_ignored", "Harmony never reads it"), No("flag_ignored", "Harmony never reads it")),
    ("kimi_k2", "vllm", No(CLOSES, "an empty block is written first"), Yes("the text holds the reasoning")),
    ("kimi_k2", "sglang", Yes(RAW), Yes(RAW)),
    ("kimi_k2", "generic", No(CLOSES, "an empty block is written first"), Yes("the text holds the reasoning")),
    ("kimi_k2_5", "vllm", No(CLOSES, "an empty block is written first"), Yes("the text holds the reasoning")),
    ("kimi_k2_5", "sglang", Yes(BEHIND), Yes(BEHIND)),
    ("kimi_k2_5", "generic", No(CLOSES, "an empty block is written first"), Yes("the text holds the reasoning")),
    ("kimi_k3", "vllm", Yes("the flag reaches its encoder"), Yes("the flag reaches its encoder")),
    ("kimi_k3", "sglang", Yes(RAW), Yes(RAW)),
    ("kimi_k3", "generic", Yes("the flag reaches its encoder"), Yes("the flag reaches its encoder")),
    ("minimax", "vllm", Yes("without a closing mark the string stays"), Yes("the string is written again as it was")),
    ("minimax", "sglang", Yes(BEHIND), Yes(BEHIND)),
    (
        "minimax",
        "generic",
        Yes("without a closing mark the string stays"),
        Yes("the string is written again as it was"),
    ),
    ("minimax_m3", "vllm", Yes(AS_TEXT), Yes(AS_TEXT)),
    ("minimax_m3", "sglang", Yes(RAW), Yes(RAW)),
    ("minimax_m3", "generic", Yes(AS_TEXT), Yes(AS_TEXT)),
    ("mistral", "vllm", No(CLOSES, "mistral_common writes the mark as text"), Yes("the answer alone")),
    ("mistral", "sglang", Yes(RAW), Yes(RAW)),
    ("mistral", "generic", No(CLOSES, "mistral_common writes the mark as text"), Yes("the answer alone")),
    ("no_thinking", "vllm", No("unexpected_thinking", "it has no marks"), Yes("the answer alone")),
    ("no_thinking", "sglang", No("unexpected_thinking", "it has no marks"), Yes("the answer alone")),
    ("no_thinking", "generic", No("unexpected_thinking", "it has no marks"), Yes("the answer alone")),
    ("qwen3", "vllm", No(CLOSES, "measured: the block is closed"), Yes("measured: two fields, right prompt")),
    ("qwen3", "sglang", Yes(RAW), Yes(RAW)),
    ("qwen3", "generic", No(CLOSES, "measured: the block is closed"), Yes("measured: the string is taken apart")),
    ("qwen3_6", "vllm", No(CLOSES, "measured: 400, or the block doubled"), Yes("measured: two fields, right prompt")),
    ("qwen3_6", "sglang", Yes(BEHIND), Yes(BEHIND)),
    (
        "qwen3_6",
        "generic",
        No(CLOSES, "measured: 400, or the block doubled"),
        Yes("measured: the string is taken apart"),
    ),
    ("qwen3_8", "vllm", No(CLOSES, "measured: 400, or the block doubled"), Yes("measured: two fields, right prompt")),
    ("qwen3_8", "sglang", Yes(BEHIND), Yes(BEHIND)),
    (
        "qwen3_8",
        "generic",
        No(CLOSES, "measured: 400, or the block doubled"),
        No("no_form", "measured: a string's block is doubled"),
    ),
];

/// What is to happen to an answer cut in this state.
pub fn expected(family: &str, engine: &str, state: State) -> Expect {
    let row = ROWS.iter().find(|row| (row.0, row.1) == (family, engine));
    let (.., thinking, answering) = row.unwrap_or_else(|| panic!("{family} on {engine} is not in the table"));
    if state == State::Thinking { *thinking } else { *answering }
}

/// Every pair of the table.
pub fn pairs() -> impl Iterator<Item = (&'static str, &'static str)> {
    ROWS.iter().map(|row| (row.0, row.1))
}

#[test]
fn the_table_has_every_family_once_on_every_engine_that_takes_the_flag() {
    // The others' ways do not go by the family.
    let by_family = |engine: &&str| Engine::named(engine).0.by_text().contains(PlanKind::ChatContinue);
    let all = Family::all().flat_map(|family| Engine::all().filter(by_family).map(move |engine| (family, engine)));
    assert_eq!(pairs().collect::<BTreeSet<_>>(), all.collect::<BTreeSet<_>>());
    assert_eq!(pairs().count(), pairs().collect::<BTreeSet<_>>().len());
}

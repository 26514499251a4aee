//! What a model family writes around its thinking, and which switch turns thinking off.
//!
//! Written from the models' chat templates and the engines' reasoning parsers (vLLM 0.33 `reasoning/`,
//! `docs/features/reasoning_outputs.md`), on purpose not shared with the proxy's own table.

use serde_json::{Map, Value};

use super::config::Template;

/// One family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Family {
    /// Opens thinking.
    pub(super) open: &'static str,
    /// Closes thinking and opens the answer.
    pub(super) close: &'static str,
    /// Keys in `chat_template_kwargs` that switch thinking. Empty: there is no switch.
    pub(super) keys: &'static [&'static str],
    /// Whether it thinks when nothing is said.
    pub(super) thinks: bool,
    /// Its chat template on vLLM.
    pub(super) template: Template,
    /// On vLLM, reasoning and content have to come in separate fields.
    pub(super) separate: bool,
    /// On vLLM, the last message must be the assistant's, and template arguments are refused (mistral_common).
    pub(super) mistral: bool,
}

const DEFAULT: Family = Family {
    open: "<think>",
    close: "</think>",
    keys: &["thinking", "enable_thinking"],
    thinks: true,
    template: Template::Raw,
    separate: false,
    mistral: false,
};

const QWEN3: Family = Family { keys: &["enable_thinking"], template: Template::Qwen3, separate: true, ..DEFAULT };

const MAGISTRAL: Family =
    Family { open: "[THINK]", close: "[/THINK]", keys: &[], template: Template::Mistral, mistral: true, ..DEFAULT };

const KIMI_K3: Family = Family {
    open: "<|open|>think<|sep|>",
    close: "<|close|>think<|sep|><|open|>response<|sep|>",
    keys: &["thinking"],
    ..DEFAULT
};

const MINIMAX_M3: Family = Family { open: "<mm:think>", close: "</mm:think>", keys: &["thinking_mode"], ..DEFAULT };

const DEEPSEEK: Family = Family { keys: &["thinking"], thinks: false, template: Template::DeepseekV3, ..DEFAULT };

/// By the beginning of the name, longer ones first.
const FAMILIES: &[(&str, Family)] = &[
    ("kimi_k3", KIMI_K3),
    ("kimi", Family { keys: &["thinking"], ..DEFAULT }),
    ("qwen3_8", Family { template: Template::Qwen38, ..QWEN3 }),
    ("qwen3_6", Family { template: Template::Qwen36, ..QWEN3 }),
    ("qwen3_5", Family { template: Template::Qwen36, ..QWEN3 }),
    ("qwen3", QWEN3),
    ("glm", Family { keys: &["enable_thinking"], template: Template::Qwen36, ..DEFAULT }),
    ("deepseek_r1", Family { keys: &[], template: Template::DeepseekR1, ..DEFAULT }),
    ("deepseek", DEEPSEEK),
    ("minimax_m3", MINIMAX_M3),
    ("minimax", Family { keys: &[], ..DEFAULT }),
    ("magistral", MAGISTRAL),
    ("mistral", Family { thinks: false, ..MAGISTRAL }),
    ("no_thinking", Family { keys: &[], thinks: false, ..DEFAULT }),
    ("none", Family { keys: &[], thinks: false, ..DEFAULT }),
];

/// Whether a switch's value means off; `None`: it says nothing.
pub(super) fn is_off(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(on) => Some(!on),
        // MiniMax-M3's `thinking_mode`.
        Value::String(mode) => Some(mode == "disabled"),
        _ => None,
    }
}

impl Family {
    /// The family of a name; an unknown one is the default. Case, and which of `-`, `_`, `.` parts it, make no difference.
    pub(super) fn named(name: &str) -> Family {
        let name = name.to_ascii_lowercase().replace(['-', '.', ' '], "_");
        FAMILIES.iter().find(|(prefix, _)| name.starts_with(prefix)).map_or(DEFAULT, |(_, family)| *family)
    }

    /// Whether a request with these template arguments is answered with thinking.
    pub(super) fn thinks_with(&self, kwargs: &Map<String, Value>) -> bool {
        let mut said = self.keys.iter().filter_map(|key| is_off(kwargs.get(*key)?)).peekable();
        if said.peek().is_none() { self.thinks } else { !said.any(|off| off) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_family_is_found_by_the_beginning_of_its_name() {
        assert_eq!(Family::named("Qwen3.6-35B").template, Template::Qwen36);
        assert_eq!(Family::named("qwen3").template, Template::Qwen3);
        assert_eq!(Family::named("GLM-4.7"), Family::named("glm_4_7"));
        assert_eq!(Family::named("deepseek-r1").keys, &[] as &[&str]);
        assert_eq!(Family::named("something new"), DEFAULT);
    }

    #[test]
    fn only_a_familys_own_key_switches_its_thinking() {
        let thinks = |family, kwargs: Value| Family::named(family).thinks_with(kwargs.as_object().expect("an object"));
        assert!(thinks("qwen3", json!({})) && !thinks("qwen3", json!({"enable_thinking": false})));
        assert!(thinks("qwen3", json!({"thinking": false})));
        assert!(!thinks("deepseek-v3", json!({})) && thinks("deepseek-v3", json!({"thinking": true})));
        assert!(
            !thinks("default", json!({"thinking": false})) && !thinks("default", json!({"enable_thinking": false}))
        );
        assert!(thinks("deepseek-r1", json!({"thinking": false})));
        assert!(
            !thinks("minimax-m3", json!({"thinking_mode": "disabled"}))
                && thinks("minimax-m3", json!({"thinking_mode": "adaptive"}))
        );
    }
}

//! Token counts as engines report them, and those of an answer that several legs wrote.

use serde_json::value::RawValue;

use super::chunk::Shape;
use super::json::{self, Object};
use super::partial::Partial;
use super::request::ChatRequest;
use super::tokens::Ratios;

/// The `usage` object of a chunk.
///
/// Fields that are not read here are kept, and written again by [`Usage::to_json`].
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens generated, thinking included.
    pub completion_tokens: u64,
    /// The sum of both.
    pub total_tokens: u64,
    /// Tokens of the thinking, from either place: `completion_tokens_details.reasoning_tokens` (OpenAI, vLLM) or
    /// `reasoning_tokens` beside the others (SGLang 0.5.23, usage_processor.py).
    pub reasoning_tokens: Option<u64>,
    /// Tokens of the prompt that came from a cache: `prompt_tokens_details.cached_tokens`.
    pub cached_tokens: Option<u64>,
    /// The object as it came, for all that is not read.
    fields: Object<'static>,
}

impl PartialEq for Usage {
    fn eq(&self, other: &Self) -> bool {
        self.counts() == other.counts() && self.fields.to_text() == other.fields.to_text()
    }
}

const COMPLETION_DETAILS: &str = "completion_tokens_details";
const PROMPT_DETAILS: &str = "prompt_tokens_details";
const REASONING: &str = "reasoning_tokens";
const CACHED: &str = "cached_tokens";

impl Usage {
    /// Reads a raw `usage` object. What is not an object, or does not say how many tokens were generated, counts nothing and is
    /// no usage: what has to be known would pass for 0 otherwise. Of the other counts, one that is not a number is not there.
    pub(super) fn read(raw: &RawValue) -> Option<Self> {
        let fields = Object::parse(raw.get()).ok()?;
        let count = |key| fields.get(key).and_then(json::whole_part);
        let detail = |details, key| {
            let object = Object::parse(fields.get(details)?.get()).ok()?;
            object.get(key).and_then(json::whole_part)
        };
        Some(Self {
            prompt_tokens: count("prompt_tokens").unwrap_or(0),
            completion_tokens: count("completion_tokens")?,
            total_tokens: count("total_tokens").unwrap_or(0),
            reasoning_tokens: detail(COMPLETION_DETAILS, REASONING).or_else(|| count(REASONING)),
            cached_tokens: detail(PROMPT_DETAILS, CACHED),
            fields: fields.into_owned(),
        })
    }

    /// Usage that Baton counted itself, with the fields an engine of this shape has.
    pub fn counted(prompt_tokens: u64, completion_tokens: u64, reasoning_tokens: u64, shape: Shape) -> Self {
        let fields = match shape {
            Shape::OpenAi | Shape::Vllm => {
                r#"{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0,"completion_tokens_details":{"reasoning_tokens":0}}"#
            }
            Shape::Sglang | Shape::SglangCompletion => {
                r#"{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0,"prompt_tokens_details":null,"reasoning_tokens":0}"#
            }
            Shape::Completion | Shape::VllmCompletion => {
                r#"{"prompt_tokens":0,"total_tokens":0,"completion_tokens":0}"#
            }
        };
        let counts_thinking = !matches!(shape, Shape::Completion | Shape::VllmCompletion);
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            reasoning_tokens: counts_thinking.then_some(reasoning_tokens),
            cached_tokens: None,
            fields: Object::parse(fields).map(Object::into_owned).unwrap_or_default(),
        }
    }

    /// Whether thinking is counted among the details, as OpenAI and vLLM do.
    pub fn has_details(&self) -> bool {
        self.fields.has(COMPLETION_DETAILS)
    }

    /// The object with these counts: every field that came is there, in its order, and the counts stand where the engine put
    /// them. Thinking is counted in both places if both were there, and in the details if neither was.
    pub fn to_json(&self) -> Box<RawValue> {
        let mut fields = self.fields.clone();
        for (key, count) in [
            ("prompt_tokens", self.prompt_tokens),
            ("completion_tokens", self.completion_tokens),
            ("total_tokens", self.total_tokens),
        ] {
            fields.set(key, json::raw(&count));
        }
        if let Some(reasoning) = self.reasoning_tokens {
            let beside = fields.has(REASONING);
            if beside {
                fields.set(REASONING, json::raw(&reasoning));
            }
            if fields.has(COMPLETION_DETAILS) || !beside {
                set_detail(&mut fields, COMPLETION_DETAILS, REASONING, reasoning);
            }
        }
        if let Some(cached) = self.cached_tokens {
            set_detail(&mut fields, PROMPT_DETAILS, CACHED, cached);
        }
        fields.to_raw()
    }

    fn counts(&self) -> (u64, u64, u64, Option<u64>, Option<u64>) {
        (self.prompt_tokens, self.completion_tokens, self.total_tokens, self.reasoning_tokens, self.cached_tokens)
    }
}

fn set_detail(fields: &mut Object<'static>, details: &str, key: &str, count: u64) {
    let mut object = fields.get(details).and_then(|raw| Object::parse(raw.get()).ok()).unwrap_or_default().into_owned();
    object.set(key, json::raw(&count));
    fields.set(details, object.to_raw());
}

/// What was generated before a leg, and what the whole answer's prompt counts: all that a leg's own usage lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// Tokens generated by all earlier legs, thinking and content together.
    pub completion_tokens: u64,
    /// Those of them that were thinking.
    pub reasoning_tokens: u64,
    /// Where the prompt's count comes from.
    pub prompt: OriginalPrompt,
}

impl Recovered {
    /// Nothing: the leg answers the client's own request from the start, so its own usage is the whole answer's.
    pub fn nothing() -> Self {
        Self { completion_tokens: 0, reasoning_tokens: 0, prompt: OriginalPrompt::LegMinus(0) }
    }

    /// What `partial` holds, before a leg that continues it.
    ///
    /// The prompt's count is the one leg 1 reported or the number of ids it listed; else it is estimated.
    pub fn of(partial: &Partial, request: &ChatRequest, ratios: &Ratios) -> Self {
        let completion_tokens = partial.completion_tokens(ratios).tokens;
        let prompt = match partial.prompt_tokens() {
            Some(counted) => OriginalPrompt::Known(counted),
            None if request.has_media() => OriginalPrompt::LegMinus(completion_tokens),
            None => OriginalPrompt::Known(request.prompt_estimate(ratios)),
        };
        Self { completion_tokens, reasoning_tokens: partial.reasoning_tokens(ratios).tokens, prompt }
    }
}

/// How many tokens the client's own prompt has. A later leg's prompt is longer: it ends with what was recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginalPrompt {
    /// As leg 1 reported it, or estimated from the request.
    Known(u64),
    /// The leg's own count minus this estimate of the recovered text: for requests with images, audio or video, whose tokens
    /// cannot be estimated from the request.
    LegMinus(u64),
}

/// The usage of the whole answer, from the usage of its last leg and what was recovered before it.
///
/// `total` is the sum. `cached_tokens` stays below the prompt's count: a later leg finds the recovered text in the cache too.
pub fn merge(leg: &Usage, recovered: &Recovered) -> Usage {
    if *recovered == Recovered::nothing() {
        return leg.clone();
    }
    let prompt_tokens = match recovered.prompt {
        OriginalPrompt::Known(tokens) => tokens,
        OriginalPrompt::LegMinus(text) => leg.prompt_tokens.saturating_sub(text),
    };
    let completion_tokens = leg.completion_tokens.saturating_add(recovered.completion_tokens);
    let reasoning = leg.reasoning_tokens.unwrap_or(0).saturating_add(recovered.reasoning_tokens);
    Usage {
        prompt_tokens,
        completion_tokens,
        total_tokens: prompt_tokens.saturating_add(completion_tokens),
        // An engine that does not count thinking still does not, unless some was recovered.
        reasoning_tokens: (leg.reasoning_tokens.is_some() || reasoning > 0).then_some(reasoning),
        cached_tokens: leg.cached_tokens.map(|cached| cached.min(prompt_tokens.saturating_sub(1))),
        fields: leg.fields.clone(),
    }
}

#[cfg(test)]
mod tests;

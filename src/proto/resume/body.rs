//! Leg 2's request body: the client's own, changed where it has to be.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::family::Switch;
use super::{Budget, Refused, Words, completions, engine};
use crate::proto::chat::json::{Object, is_null, raw_text, whole_number};
use crate::proto::chat::{Api, ChatRequest, Partial, Ratios, TokenIds};

/// Limits of the whole answer; each is lessened by all tokens generated, and none is added. Of two that are sent the first one is
/// in effect (vLLM 0.33, chat_completion/protocol.py; SGLang 0.5.23, `max_completion_tokens or max_tokens`).
const LIMITS: [&str; 2] = ["max_completion_tokens", "max_tokens"];

/// Asks vLLM (0.10.2+) to list the prompt's ids with the first chunk and the tokens' with the others.
pub(super) const RETURN_IDS: &str = "return_token_ids";

/// Has the engine cut a prompt down to so many tokens, ids too.
pub(super) const TRUNCATE: &str = "truncate_prompt_tokens";

/// What is left of the request's token limits. Fields that the client did not send are not in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left(pub(super) Vec<(&'static str, u64)>);

impl Left {
    /// Both limits, if both were sent: the one in effect says whether anything is left, the other one stays at least 1. Also
    /// `min_tokens`, which counts a leg's own tokens (vLLM 0.33, `sampling_params.py`), down to 0. vLLM's `thinking_token_budget` stays: it
    /// counts the thinking that it finds in the prompt (0.32, v1/sample/thinking_budget_state.py `_init_state_entry`; measured).
    pub(super) fn of(request: &ChatRequest, partial: &Partial, ratios: &Ratios) -> Result<Self, Refused> {
        let generated = partial.completion_tokens(ratios);
        if request.api() == Api::Completions {
            return completions::left(request, generated);
        }
        let sent = |key: &'static str| Some((key, request.get(key).and_then(whole_number)?));
        let mut left = Vec::new();
        // SGLang takes 0 for no limit.
        for (key, limit) in LIMITS.into_iter().filter_map(sent).filter(|(_, limit)| *limit > 0) {
            let rest = limit.saturating_sub(generated.tokens);
            if rest == 0 && left.is_empty() {
                // What may be the beginning of a stop string is withheld, so the text may be shorter than the tokens.
                return Err(Refused::BudgetSpent { exact: generated.exact && !request.has_stop() });
            }
            left.push((key, rest.max(1)));
        }
        left.extend(sent("min_tokens").map(|(key, floor)| (key, floor.saturating_sub(generated.tokens))));
        Ok(Self(left))
    }
}

/// The body that has the partial as its last message.
pub(super) fn by_message(
    request: &ChatRequest,
    words: &Words,
    left: &Left,
    engine: &engine::Spec,
    budget: &Budget<'_>,
) -> Vec<u8> {
    let mut request = request.clone();
    request.push_message(&message(words));
    request.set("continue_final_message", &true);
    // Left out, vLLM's default `true` makes transformers answer 400.
    request.set("add_generation_prompt", &false);
    finish(request, words.switch, left, engine, budget)
}

/// A body with what every leg by text needs, whatever its messages.
pub(super) fn finish(
    mut request: ChatRequest,
    switch: Option<Switch>,
    left: &Left,
    engine: &engine::Spec,
    budget: &Budget<'_>,
) -> Vec<u8> {
    ask_for_rest(&mut request, left, engine.stream_options);
    if let Some(switch) = switch
        && let Some(kwargs) = merged(request.get("chat_template_kwargs"), switch.key, switch.off)
    {
        request.set("chat_template_kwargs", &kwargs);
    }
    if let Some(key) = engine.request_id {
        request.set(key, &budget.rid);
    }
    if budget.lists_ids && engine.takes_ids {
        // Their number is exact where a text's is an estimate.
        request.set(RETURN_IDS, &true);
    }
    request.to_bytes()
}

/// The body that has these ids as its prompt. `messages` has to be there, and is not read.
pub(super) fn by_ids(request: &ChatRequest, prompt: &TokenIds, left: &Left) -> Vec<u8> {
    let mut request = request.clone();
    ask_for_rest(&mut request, left, true);
    request.set(RETURN_IDS, &true);
    // The ids are what the engine made of the client's prompt, shortened already.
    request.remove(TRUNCATE);
    if let Some(params) = merged(request.get("kv_transfer_params"), "prompt_token_ids", &prompt.to_json()) {
        request.set("kv_transfer_params", &params);
    }
    request.to_bytes()
}

/// What every continuation sends; usage is asked for where there is a field for it.
pub(super) fn ask_for_rest(request: &mut ChatRequest, left: &Left, stream_options: bool) {
    request.set("stream", &true);
    if stream_options && let Some(options) = merged(request.get("stream_options"), "include_usage", "true") {
        request.set("stream_options", &options);
    }
    for (key, rest) in &left.0 {
        request.set(key, rest);
    }
}

fn message(words: &Words) -> Value {
    match &words.reasoning {
        Some(reasoning) => json!({"role": "assistant", "reasoning": reasoning, "content": words.content}),
        None => json!({"role": "assistant", "content": words.content}),
    }
}

/// `object` with one key set and all others as they are; `None` when it is right already, and its bytes are to stay, or when
/// it is no object, which leg 1's engine let pass for whatever reason it had.
fn merged(object: Option<&RawValue>, key: &str, value: &str) -> Option<Box<RawValue>> {
    let mut fields = match object.filter(|object| !is_null(object)) {
        Some(object) => Object::parse(object.get()).ok()?,
        None => Object::default(),
    };
    if fields.get(key).is_some_and(|there| there.get() == value) {
        return None;
    }
    fields.set(key, raw_text(value.to_owned()));
    Some(fields.to_raw())
}

//! Completions (`/v1/completions`): what has been written is put behind the prompt.
//!
//! The engine takes a prompt as it is: there is no template that could trim, close or re-arrange it, and no parser that could read the
//! rest in another way. So a model's family does not matter here, white space is safe, and the two ways differ in one thing only:
//! token ids are the ones that were generated, and text is made tokens anew, so that a word that was cut may be made of others.
//! vLLM 0.32, entrypoints/openai/completion/protocol.py and serving.py; what was measured stands in docs/CONTINUATION.md.

use serde_json::value::RawValue;

use super::body::{Left, RETURN_IDS, TRUNCATE, ask_for_rest};
use super::{Budget, Plan, Refused, Work, engine};
use crate::proto::chat::json::{is_null, raw, raw_text, whole_number};
use crate::proto::chat::{ChatRequest, Counted, Onward, Partial, Prompt, TokenIds};
use crate::proto::splice::Seam;

/// `max_tokens` of a request that does not say, or says `null` (vLLM 0.32 `normalize_null_max_tokens`, SGLang 0.5.23, OpenAI).
const DEFAULT_LIMIT: u64 = 16;

/// The request whose prompt is the client's and the text written so far: what chat-continue is to a completion. It works from text and
/// needs nothing of the engine.
///
/// It differs from the client's only in: the prompt, `stream`, `stream_options.include_usage`, `max_tokens` and `min_tokens` (less what
/// was generated), the wish for token ids, and a fresh request id where the engine wants one.
///
/// # Errors
/// Why the partial is not to be continued, or not from text.
pub(super) fn text_plan(
    request: &ChatRequest,
    partial: &Partial,
    engine: &engine::Spec,
    budget: &Budget<'_>,
) -> Result<Plan, Refused> {
    let written = text_of(partial)?;
    let prompt = match request.prompt() {
        Prompt::Text(prompt) if request.get(TRUNCATE).is_none_or(is_null) => prompt,
        _ => return Err(Refused::PromptNotText),
    };
    let left = left(request, partial.completion_tokens(budget.ratios))?;
    let mut next = continued(request, &raw(&format!("{prompt}{written}")), &left, engine.stream_options);
    if let Some(key) = engine.request_id {
        next.set(key, budget.rid);
    }
    if budget.lists_ids && engine.takes_ids {
        // Their number is exact where a text's is an estimate.
        next.set(RETURN_IDS, &true);
    }
    Ok(Plan {
        work: Work::Request { path: request.api().path(), body: next.to_bytes() },
        seam: Seam::default(),
        onward: Onward::Text,
        echo: None,
    })
}

/// The body whose prompt is these ids: those of the prompt as leg 1 named them, and those of the answer up to where the next leg is to
/// go on.
///
/// The engine must not shorten them: they are what it made of the client's prompt, shortened already.
pub(super) fn by_ids(request: &ChatRequest, ids: &TokenIds, left: &Left) -> Vec<u8> {
    let mut next = continued(request, &raw_text(ids.to_json()), left, true);
    next.remove(TRUNCATE);
    next.set(RETURN_IDS, &true);
    next.to_bytes()
}

fn continued(request: &ChatRequest, prompt: &RawValue, left: &Left, stream_options: bool) -> ChatRequest {
    let mut next = request.clone();
    next.set("prompt", prompt);
    ask_for_rest(&mut next, left, stream_options);
    next
}

/// What is left of `max_tokens` and `min_tokens` after `generated` tokens.
///
/// A limit that the client did not send is there all the same and has to be written: the next leg would have the default once more.
/// An engine that wrote more than the default without being asked has another one, or none, which then stays its own affair.
///
/// `thinking_token_budget` is left alone: vLLM counts thinking that stands in the prompt (0.32, v1/sample/thinking_budget_state.py
/// `_init_state_entry`), and in a completion all of it does.
pub(super) fn left(request: &ChatRequest, generated: Counted) -> Result<Left, Refused> {
    let sent = |key| request.get(key).and_then(whole_number);
    // An estimate may be twice what it should be.
    let most = if generated.exact { DEFAULT_LIMIT } else { 2 * DEFAULT_LIMIT };
    let limit = match sent("max_tokens") {
        // SGLang takes 0 for no limit.
        Some(limit) => Some(limit).filter(|limit| *limit > 0),
        None => (generated.tokens <= most).then_some(DEFAULT_LIMIT),
    };
    let mut left = Vec::new();
    if let Some(limit) = limit {
        let rest = limit.saturating_sub(generated.tokens);
        if rest == 0 {
            // What may be the beginning of a stop string is withheld, so the text may be shorter than the tokens.
            return Err(Refused::BudgetSpent { exact: generated.exact && !request.has_stop() });
        }
        left.push(("max_tokens", rest));
    }
    left.extend(sent("min_tokens").map(|floor| ("min_tokens", floor.saturating_sub(generated.tokens))));
    Ok(Left(left))
}

/// The text written so far.
fn text_of(partial: &Partial) -> Result<&str, Refused> {
    // None of this has a place in a completion, so it cannot be put behind a prompt.
    let has_more = partial.choices.iter().any(|choice| !choice.reasoning.is_empty() || !choice.tool_calls.is_empty());
    if partial.is_opaque() || has_more {
        return Err(Refused::NotText);
    }
    if partial.is_finished() {
        return Err(Refused::Finished);
    }
    let text = partial.first().map(|choice| choice.content.as_str());
    text.filter(|text| !text.is_empty()).ok_or(Refused::NothingToContinue)
}

#[cfg(test)]
mod tests;

//! The token-exact plan: the ids of the prompt and of the answer are the next leg's prompt, so that the engine goes on exactly
//! where it was, in thinking too.
//!
//! vLLM takes them as `kv_transfer_params.prompt_token_ids` on a chat (0.28+, renderers/online_renderer.py
//! `_reused_prompt_token_ids`): the template and the tokenizer are skipped, the parsers read their first state from the ids. An
//! engine that does not know the field ignores it and answers the question once more, hence the check of the echo of the ids on
//! its first chunk. A completion has them as its `prompt`.
//!
//! Which ids? Those up to where the text ends that the client has. Engines list ids ahead of text: what may become a stop
//! string, a control mark or the rest of a character is withheld. How much text some ids are is known to nobody but the engine's
//! tokenizer, so it is [asked](Search). A prompt that ends inside a character must never be sent: vLLM then puts the whole prompt's
//! text before the answer (vllm#48853; measured on 0.32).

mod search;

pub use self::search::{Cut, Search, Step};
use super::body::{self, Left};
use super::family::Spec;
use super::version::Version;
use super::{Abilities, Plan, Refused, Settings, Work, completions, engine, shows_ids};
use crate::proto::chat::{Api, ChatRequest, Onward, Partial, Ratios};
use crate::proto::splice::Seam;

/// The first release whose chats take a prompt's ids (vllm#48145).
const FIRST: Version = Version::new(0, 28, 0);
/// The first release whose completions list ids. They take them as their prompt since long before.
const FIRST_OF_COMPLETIONS: Version = Version::new(0, 10, 2);

/// Whether the engines are known to be too old to go on from ids.
pub(super) fn is_too_old(api: Api, abilities: &Abilities) -> bool {
    let first = match api {
        Api::Chat => FIRST,
        Api::Completions => FIRST_OF_COMPLETIONS,
    };
    abilities.version.is_some_and(|version| version < first)
}

/// Begins the search for the place to go on from.
///
/// # Errors
/// Why this answer cannot be continued by ids, or not here.
pub(super) fn search(
    request: &ChatRequest,
    partial: &Partial,
    family: &Spec,
    engine: &engine::Spec,
    settings: &Settings,
) -> Result<Search, Refused> {
    if !engine.takes_ids {
        return Err(Refused::NotHere);
    }
    if is_too_old(request.api(), &settings.abilities) {
        return Err(Refused::TooOld);
    }
    if partial.has_tool_call() {
        return Err(Refused::ToolCallShown);
    }
    if partial.is_opaque() {
        return Err(Refused::NotText);
    }
    if partial.is_finished() {
        return Err(Refused::Finished);
    }
    if partial.is_interleaved() {
        return Err(Refused::Interleaved);
    }
    // The ids of a prompt with media stand for no pictures, and vLLM ignores them then.
    if request.has_media() {
        return Err(Refused::Media);
    }
    if partial.has_too_many_ids() {
        return Err(Refused::PromptTooLong);
    }
    let ids = partial.ids().ok_or(Refused::NoIds)?;
    let choice = partial.first().ok_or(Refused::NothingToContinue)?;
    // A completion's text has everything that its tokens are: no parser has taken marks out of it.
    let marks = family.marks.filter(|_| request.api() == Api::Chat);
    let (reasoning, content) = (choice.reasoning.as_str(), choice.answer());
    let search = Search::new(request.model(), ids, reasoning, content, marks);
    let search =
        search.leaving_out(begun(&request.shown_stops(), if content.is_empty() { reasoning } else { content }));
    let counted = request.include_usage() && partial.wants_mark();
    Ok(if counted { search.asking_for_mark() } else { search })
}

/// How many bytes at the text's end may be the beginning of a string that ends the answer. Each leg looks for these strings in its own
/// text only (vLLM 0.32, v1/engine/detokenizer.py), so one that was begun has to be generated again.
fn begun(stops: &[String], text: &str) -> usize {
    let longest = |stop: &String| {
        let beginnings = stop.char_indices().map(|(at, _)| at).rev();
        beginnings.into_iter().find(|at| text.ends_with(&stop[..*at])).unwrap_or_default()
    };
    stops.iter().map(longest).max().unwrap_or_default()
}

/// The request that goes on behind `cut`, and what its answer has to be.
///
/// # Errors
/// No tokens are left, or the client would see ids twice.
pub(super) fn plan(request: &ChatRequest, partial: &Partial, cut: Cut, ratios: &Ratios) -> Result<Plan, Refused> {
    let heard = partial.ids().ok_or(Refused::NoIds)?.answer.len();
    if heard != cut.ids && shows_ids(request) {
        return Err(Refused::IdsShown);
    }
    let mut kept = partial.clone();
    if let Some(mark) = cut.mark {
        kept.learn_mark(mark);
    }
    kept.begin_leg(Onward::Ids(cut.ids));
    let left = Left::of(request, &kept, ratios)?;
    let ids = kept.ids().ok_or(Refused::NoIds)?;
    let mut prompt = ids.prompt.clone();
    prompt.extend(ids.answer);
    let body = match request.api() {
        Api::Chat => body::by_ids(request, &prompt, &left),
        Api::Completions => completions::by_ids(request, &prompt, &left),
    };
    let Cut { ids, repeats, mark: _ } = cut;
    Ok(Plan {
        work: Work::Request { path: request.api().path(), body },
        seam: Seam { repeats, ..Seam::default() },
        onward: Onward::Ids(ids),
        echo: Some(prompt),
    })
}

#[cfg(test)]
mod tests;

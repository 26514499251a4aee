//! Rendered legs against exchanges recorded with vLLM 0.32, and against a model of it at every cut.

mod engine;
mod failures;
mod recorded;

use super::*;
use crate::proto::chat::{FinishReason, Parsed, ToolCall, Usage, parse};
use crate::proto::sse::{Decoder, Item};

/// An answer, as a client puts it together.
#[derive(Debug, PartialEq)]
struct Whole {
    reasoning: String,
    content: String,
    calls: Vec<ToolCall>,
    finish: Option<FinishReason>,
}

impl Whole {
    fn of(partial: &Partial) -> Self {
        let choice = partial.first().cloned().unwrap_or_default();
        let (reasoning, content) = (choice.reasoning, choice.content);
        Self { reasoning, content, calls: choice.tool_calls, finish: choice.finish }
    }
}

/// The data of a stream's events.
fn events(bytes: &[u8]) -> Vec<String> {
    let mut decoder = Decoder::new(1 << 20);
    let mut events = decoder.feed(bytes);
    let mut all = Vec::new();
    while let Some(item) = events.next() {
        if let Ok(Item::Event(event)) = item {
            all.push(String::from_utf8(event.data.to_vec()).unwrap());
        }
    }
    assert!(!decoder.is_mid_event(), "whole events only");
    all
}

/// What some events of an uncut answer give: the partial, and all ids in them.
fn first_leg(events: &[String]) -> (Partial, KnownIds) {
    let mut partial = Partial::default();
    let mut ids = KnownIds { prompt: TokenIds::new(), answer: TokenIds::new() };
    for event in events {
        let Ok(Parsed::Chunk(chunk)) = parse(event.as_bytes()) else { continue };
        if let Some(prompt) = &chunk.prompt_token_ids {
            assert!(ids.prompt.push_json(prompt.json()));
        }
        for list in chunk.choices.iter().filter_map(|choice| choice.token_ids.as_ref()) {
            assert!(ids.answer.push_json(list.json()));
        }
        partial.fold(&chunk);
    }
    (partial, ids)
}

/// Checks the shape of a leg's events and adds them to what the client had.
fn second_leg(mut partial: Partial, events: &[String]) -> (Whole, Usage) {
    let (last, chunks) = events.split_last().unwrap();
    assert_eq!(last, "[DONE]");
    let mut finished = false;
    for (at, event) in chunks.iter().enumerate() {
        let Ok(Parsed::Chunk(chunk)) = parse(event.as_bytes()) else { panic!("{event}") };
        match chunk.choices.as_slice() {
            [] => assert!(finished && at + 1 == chunks.len(), "the usage is the last chunk"),
            [choice] => {
                assert!(!finished, "nothing follows the finish reason: {event}");
                finished = choice.finish_reason.is_some();
                assert_eq!(choice.role.is_some(), at == 0, "the role comes first, and once: {event}");
                let kinds = [&choice.reasoning, &choice.content].into_iter().flatten().filter(|text| !text.is_empty());
                assert!(kinds.count() + choice.tool_calls.len() <= 1, "one kind of piece for each event: {event}");
            }
            more => panic!("{} choices", more.len()),
        }
        partial.fold(&chunk);
    }
    assert!(finished);
    let usage = partial.usage.clone().unwrap();
    (Whole::of(&partial), usage)
}

fn family() -> Family {
    Family::named("qwen3.6").0
}

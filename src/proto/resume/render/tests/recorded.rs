//! Against exchanges recorded with vLLM 0.32: model memo, template qwen3_6, `--reasoning-parser qwen3 --tool-call-parser hermes`.

use serde::Deserialize;
use serde_json::Value;

use super::*;

#[derive(Deserialize)]
struct Recording {
    /// The client's request.
    request: Value,
    /// Whether the plan knew leg 1's ids.
    ids: bool,
    /// How many events of the uncut answer the client had got.
    cut: usize,
    /// Events that were derendered at a time.
    every: usize,
    /// The same request, not cut, with `return_token_ids`.
    uncut: String,
    exchanges: Vec<Exchange>,
}

#[derive(Deserialize)]
struct Exchange {
    path: String,
    ask: Value,
    status: u16,
    answer: Value,
}

/// Plays a recording; the generating stream comes in pieces of `size` bytes.
fn play(recording: &Recording, size: usize) -> (Partial, Vec<String>) {
    let uncut = events(recording.uncut.as_bytes());
    let (partial, ids) = first_leg(&uncut[..recording.cut]);
    let request = ChatRequest::parse(recording.request.to_string().as_bytes()).unwrap();
    let settings = Settings { derender_every: recording.every, ids: true, ..Settings::default() };
    let ids = recording.ids.then_some(ids);
    let mut leg = Rendering::new(&request, &partial, ids, &family(), settings).unwrap();
    let mut exchanges = recording.exchanges.iter();
    let mut asked = |question: &Question| {
        let exchange = exchanges.next().expect("as many questions as were recorded");
        assert_eq!(question.path, exchange.path);
        let ask: Value = serde_json::from_slice(&question.body).unwrap();
        assert_eq!(ask, exchange.ask, "the recorded answer is to this question");
        exchange
    };
    let (mut out, mut stream) = (Vec::new(), Vec::new().into_iter());
    loop {
        match leg.poll().unwrap() {
            Need::Ask(question) => {
                let exchange = asked(&question);
                leg.answered(exchange.status, exchange.answer.to_string().as_bytes());
            }
            Need::Generate(question) => {
                let bytes = asked(&question).answer.as_str().unwrap().as_bytes();
                stream = bytes.chunks(size).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter();
                leg.opened();
            }
            Need::Bytes(bytes) => out.extend(bytes),
            Need::More => match stream.next() {
                Some(piece) => leg.generated(&piece),
                None => leg.generate_ended(),
            },
            Need::End => break,
        }
    }
    assert!(exchanges.next().is_none(), "no fewer questions than were recorded");
    (partial, events(&out))
}

fn check(recording: &str) {
    let recording: Recording = serde_json::from_str(recording).unwrap();
    let uncut = events(recording.uncut.as_bytes());
    let (whole, all) = first_leg(&uncut);
    let (_, before) = first_leg(&uncut[..recording.cut]);
    for size in [1, 100] {
        let (partial, events) = play(&recording, size);
        let had = partial.clone();
        let (mut got, usage) = second_leg(partial, &events);
        let mut wanted = Whole::of(&whole);
        // Each run of an engine invents the ids of the calls that it begins.
        for at in had.first().map_or(0, |choice| choice.tool_calls.len())..wanted.calls.len() {
            assert!(got.calls[at].id.is_some());
            (got.calls[at].id, wanted.calls[at].id) = (None, None);
        }
        assert_eq!(got, wanted);
        let uncut = whole.usage.clone().unwrap();
        assert_eq!(usage.completion_tokens + before.answer.len() as u64, uncut.completion_tokens);
        assert_eq!(usage.prompt_tokens, uncut.prompt_tokens + before.answer.len() as u64);
        let close = 151_668; // </think>
        let thought = before.answer.iter().take_while(|id| *id != close).count() as u64;
        let had_thought = if whole.first().unwrap().reasoning.is_empty() { 0 } else { thought };
        assert_eq!(usage.reasoning_tokens.unwrap() + had_thought, uncut.reasoning_tokens.unwrap());
        // The ids that the leg tells are the uncut answer's, and together they are all of them.
        let (_, told) = first_leg(&events);
        let mut told_all = before.answer.clone();
        told_all.extend(&told.answer);
        assert_eq!(told_all, all.answer);
    }
}

#[test]
fn a_cut_in_thinking() {
    check(include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/thinking.json"));
}

#[test]
fn a_cut_right_behind_the_end_of_thinking() {
    check(include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/step.json"));
}

#[test]
fn a_cut_in_the_answer() {
    check(include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/content.json"));
}

#[test]
fn a_cut_in_a_tool_call_that_the_client_has_seen_nothing_of() {
    check(include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/tool-unnamed.json"));
}

#[test]
fn a_cut_behind_a_tool_calls_name() {
    check(include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/tool-named.json"));
}

#[test]
fn a_cut_in_a_tool_calls_arguments() {
    check(include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/tool-arguments.json"));
}

#[test]
fn a_rest_that_is_derendered_at_once() {
    check(include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/tool-arguments-at-once.json"));
}

#[test]
fn a_cut_in_thinking_of_which_only_the_text_is_known() {
    check(include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/thinking-text.json"));
}

#[test]
fn a_cut_in_an_answer_of_which_only_the_text_is_known() {
    check(include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/content-text.json"));
}

//! Answers of a prescribed form, which are held back until they are whole so that they can be begun again.

use serde_json::{Value, json};

use crate::answer::Usage;
use crate::relay::Leg;
use crate::rig::Question;
use crate::server::{Model, pair};
use crate::sweep::{SAID, Sweep, by_ids};
use crate::sweeps::no_thinking;

const BUFFERED: &str = ", buffer_structured: true";

/// The id of the mark that ends thinking: the grammar begins behind it.
const THOUGHT: u64 = 151_668;

/// The words are prescribed, so that the model, which has learned no JSON but a tool call, cannot ramble on inside a string.
fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Kestrel Point", "Xiaoming's harbour"]},
            "lamps": {"type": "array", "items": {"enum": ["great", "spare"]}, "minItems": 3, "maxItems": 3},
            "day": {"type": "object", "properties": {"month": {"enum": ["October", "November"]}}, "required": ["month"]},
        },
        "required": ["city", "lamps", "day"],
        "additionalProperties": false,
    })
}

fn by_a_schema() -> Value {
    json!({"response_format": {"type": "json_schema", "json_schema": {"name": "report", "schema": parameters()}}})
}

fn by_a_required_tool() -> Value {
    let tool = json!({"type": "function", "function": {"name": "report", "parameters": parameters()}});
    json!({"tools": [tool], "tool_choice": "required"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_writes_json_once_wherever_it_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let thought = Question::chat("Tell me a story.", by_a_schema());
    let uncut = Sweep::of("JSON behind thinking", &thought).route(BUFFERED, anew).run(pair).await;
    let report: Value = serde_json::from_str(&uncut.content).expect("the whole of it is JSON");
    assert_eq!((report["lamps"].as_array().map(Vec::len), uncut.finish.join(" ").as_str()), (Some(3), "stop"));
    let tokens = uncut.tokens();
    let json = Sweep::of("JSON behind thinking, its own tokens", &thought).every_token(uncut.thought()..tokens);
    json.route(BUFFERED, anew).run(pair).await;
    // Nothing is shown before all of it is, and a silence then is waited out.
    let at_once = thought.with(no_thinking());
    let sweep = Sweep::of("JSON without thinking", &at_once).every_token(1..usize::MAX).ends(SAID);
    sweep.route(BUFFERED, anew).run(pair).await;
    let free = json!({"response_format": {"type": "json_object"}, "max_tokens": 200});
    let free = Question::chat("What is the weather in Paris?", free);
    Sweep::of("JSON of any form behind thinking", &free).route(BUFFERED, anew).run(pair).await;
    let free = free.with(no_thinking());
    Sweep::of("JSON of any form without thinking", &free).ends(SAID).route(BUFFERED, anew).run(pair).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_makes_a_required_call_once_wherever_it_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let thought = Question::chat("Tell me a story.", by_a_required_tool());
    // vLLM counts a thought by its events, and a busy server puts two tokens into one.
    let counted = Usage::WithoutReasoning;
    let sweep = Sweep::of("a required call behind thinking", &thought).usage(counted);
    let uncut = sweep.route(BUFFERED, anew).run(pair).await;
    let called = uncut.calls.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>();
    assert_eq!((called, uncut.content.as_str()), (vec!["report"], ""), "{uncut:?}");
    let tokens = uncut.tokens();
    let call =
        Sweep::of("a required call behind thinking, its own tokens", &thought).every_token(uncut.thought()..tokens);
    call.usage(counted).route(BUFFERED, anew).run(pair).await;
    let at_once = thought.with(no_thinking());
    let sweep = Sweep::of("a required call without thinking", &at_once).every_token(1..usize::MAX).ends(SAID);
    sweep.route(BUFFERED, anew).run(pair).await;
}

/// What is wrong with the legs of a prescribed form. A later one begins it anew: behind the thinking that was shown, by ids, and by
/// the client's own request where none was.
fn anew(legs: &[Leg]) -> Option<String> {
    let fault = by_ids(legs);
    let [first, later @ ..] = legs else { return fault };
    let thought = first.events.iter().any(|event| event.contains(r#""reasoning":""#));
    let asked = prompt_of(first).len();
    let wrong = |leg: &&Leg| {
        let kept: Vec<Value> = prompt_of(leg).into_iter().skip(asked).collect();
        let formed = kept.iter().rev().skip(1).any(|id| id.as_u64() == Some(THOUGHT));
        (thought && kept.is_empty()) || (!thought && !kept.is_empty()) || formed
    };
    fault.or_else(|| later.iter().find(wrong).map(|leg| format!("a later leg begins at {:?}", prompt_of(leg))))
}

/// The ids that a leg was asked to go on from.
fn prompt_of(leg: &Leg) -> Vec<Value> {
    let event = leg.events.first().and_then(|event| serde_json::from_str::<Value>(event).ok()).unwrap_or_default();
    event["prompt_token_ids"].as_array().cloned().unwrap_or_default()
}

//! A cut at every tenth token of an answer, by the relay, in the ways that a connection ends.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::answer::{Answer, Usage};
use crate::relay::{Cut, End, Leg};
use crate::rig::{Question, Rig};
use crate::server::{Model, Pair, pair};

/// Answers at a time. The servers take eight each, and the machine has two cores.
const AT_ONCE: usize = 4;

/// Differing answers that are printed of a sweep.
const SHOWN: usize = 12;

/// Tokens between two cuts.
pub fn step() -> usize {
    let given = std::env::var("BATON_VLLM_STEP").ok();
    given.map_or(10, |step| step.parse().expect("BATON_VLLM_STEP is a number"))
}

const ENDS: [End; 4] = [End::Reset, End::Close, End::Torn, End::Stall];

/// Cuts the answer to `question` at every tenth token, in these ways in turn, and compares.
async fn sweep(name: &str, pair: &Pair, question: Question, usage: Usage) -> Answer {
    sweep_by(name, pair, question, usage, |number| vec![ENDS[number % ENDS.len()].clone()]).await
}

/// The same with these ways at each place, which are numbered from 0.
async fn sweep_by(
    name: &str,
    pair: &Pair,
    question: Question,
    usage: Usage,
    ends: impl Fn(usize) -> Vec<End>,
) -> Answer {
    let uncut = Arc::new(question.uncut(pair).await);
    let question = Arc::new(question);
    let (permits, mut cases) = (Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
    for (number, after) in (step()..uncut.tokens()).step_by(step()).enumerate() {
        for end in ends(number) {
            let (uncut, question, permits, servers) =
                (uncut.clone(), question.clone(), permits.clone(), pair.addresses);
            cases.spawn(async move {
                let _permit = permits.acquire_owned().await.expect("it is never closed");
                let name = format!("behind token {after}, {end:?}");
                let rig = Rig::start(servers, [Cut { after, end }]).await;
                let answer = rig.ask(&question).await;
                let mut differences = answer.differences(&uncut, usage);
                differences.extend(by_ids(&rig.script.legs()));
                (after, name, differences)
            });
        }
    }
    let mut cases = cases.join_all().await;
    cases.sort();
    let count = cases.len();
    let bad: Vec<_> = cases.into_iter().filter(|(.., differences)| !differences.is_empty()).collect();
    println!("{name}: {count} cuts of {} tokens, {} answers differ", uncut.tokens(), bad.len());
    let lines: Vec<String> =
        bad.iter().take(SHOWN).map(|(_, name, differences)| format!("{name}: {}", differences.join("; "))).collect();
    assert!(bad.is_empty(), "{} of {count} answers to {name} differ, first:\n{}", bad.len(), lines.join("\n"));
    Arc::unwrap_or_clone(uncut)
}

/// What is wrong with the legs: there is no later one though the first had not finished, or one did not go on from token ids.
pub fn by_ids(legs: &[Leg]) -> Option<String> {
    // The event with that token may have been the one with the finish reason; what is missing then Baton writes itself.
    let finished = |leg: &Leg| {
        leg.events.iter().any(|event| event.contains("\"finish_reason\":\"") && !event.contains("\"abort\""))
    };
    let ids = |leg: &Leg| {
        let first: Value = serde_json::from_str(leg.events.first()?).ok()?;
        let ids = &first["prompt_token_ids"];
        (ids.is_array() || first["choices"][0]["prompt_token_ids"].is_array()).then_some(())
    };
    match legs {
        [leg] if finished(leg) => None,
        [] | [_] => Some(format!("{} leg(s)", legs.len())),
        [_, later @ ..] if later.iter().all(|leg| ids(leg).is_some()) => None,
        _ => Some("a later leg did not go on from token ids".to_owned()),
    }
}

fn no_thinking() -> Value {
    json!({"chat_template_kwargs": {"enable_thinking": false}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_tells_its_story_whole_wherever_it_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let story = Question::chat("Tell me a story.", json!({}));
    let uncut = sweep_by("the story", pair, story.clone(), Usage::Whole, |_| ENDS.to_vec()).await;
    assert!(uncut.reasoning.starts_with("The user wants") && uncut.content.ends_with("The end."), "{uncut:?}");
    sweep("the story without thinking", pair, story.clone().with(no_thinking()), Usage::Whole).await;
    let continuous = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    sweep("the story with usage in every event", pair, story.clone().with(continuous), Usage::Whole).await;
    sweep("the story, four tokens an event", pair, story.with(json!({"stream_interval": 4})), Usage::Whole).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_counts_to_the_end_wherever_it_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let uncut = sweep("the count", pair, Question::chat("Please count to 150.", json!({})), Usage::Whole).await;
    assert!(uncut.content.ends_with("149, 150."), "{uncut:?}");
}

/// Text that the engine holds back: for a stop string, for a control mark that a `<` may begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_loses_nothing_that_was_held_back() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let story = Question::chat("Tell me a story.", json!({}));
    let stop = json!({"stop": ["a stop that never comes", "The end!"]});
    sweep("the story with stop strings", pair, story.clone().with(stop), Usage::WithoutReasoning).await;
    let stopped =
        sweep("the stopped story", pair, story.clone().with(json!({"stop": ["broken"]})), Usage::WithoutReasoning)
            .await;
    assert!(stopped.content.ends_with("spare lamp: "), "{stopped:?}");
    // 22438 is the token ` (<`, whose last character waits for the next token.
    let marks = json!({"logit_bias": {"22438": LIKING}, "max_tokens": 120, "ignore_eos": true});
    let marks = sweep("text full of <", pair, story.with(marks), Usage::WithoutReasoning).await;
    assert!(marks.reasoning.matches(" (<").count() > 5, "{marks:?}");
}

/// So much that the model says the token now and then.
const LIKING: f64 = 14.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_tells_its_story_in_five_legs() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let story = Question::chat("Tell me a story.", json!({}));
    let uncut = story.uncut(pair).await;
    // In thinking, over the step, and three times in the answer; each server dies more than once.
    let cuts = [(40, End::Reset), (52, End::Close), (30, End::Stall), (60, End::Torn), (50, End::Reset)];
    let rig = Rig::start(pair.addresses, cuts.map(|(after, end)| Cut { after, end })).await;
    let answer = rig.ask(&story).await;
    let legs = rig.script.legs();
    assert_eq!(answer.differences(&uncut, Usage::Whole), [""; 0]);
    assert_eq!((legs.iter().filter(|leg| leg.cut).count(), legs.len(), by_ids(&legs)), (5, 6, None));
}

/// What Baton asks for on its own account does not reach the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_passes_as_if_baton_were_not_there() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let more = [
        json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}}),
        json!({"stream_options": {}}),
        json!({"logprobs": true, "top_logprobs": 2}),
        json!({"stop": ["broken"]}),
        json!({"stream_interval": 4}),
        json!({"return_token_ids": true}),
        json!({"include_reasoning": false}),
        json!({"return_prompt_text": true}),
        no_thinking(),
    ];
    for more in more {
        let question = Question::chat("Tell me a story.", more.clone());
        // How many tokens an event holds depends on how busy the server is, so two streams may differ in that.
        for tries in 1.. {
            let (direct, through) =
                (question.uncut(pair).await, Rig::start(pair.addresses, []).await.ask(&question).await);
            let (direct, through) = (named(&direct), named(&through));
            if direct == through {
                break;
            }
            let at = direct.iter().zip(&through).position(|(a, b)| a != b).unwrap_or(direct.len().min(through.len()));
            assert!(tries < 6, "{more}, event {at}:\n{:?}\n{:?}", direct.get(at), through.get(at));
        }
    }
}

/// The events of an answer without its id and its time.
fn named(answer: &Answer) -> Vec<String> {
    let ids = answer.ids.iter().map(|id| format!("\"id\":\"{id}\""));
    let times = answer.created.iter().map(|time| format!("\"created\":{time}"));
    let taken: Vec<String> = ids.chain(times).collect();
    answer.events.iter().map(|event| taken.iter().fold(event.clone(), |event, own| event.replace(own, ""))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn rand_goes_on_wherever_it_is_cut() {
    let pair = pair(Model::Rand).await;
    let pair = pair.as_ref().expect("a pair");
    let words = Question::chat("Tell me a story.", json!({"max_tokens": 200}));
    let uncut = sweep("random words", pair, words.clone(), Usage::Whole).await;
    assert_eq!((uncut.tokens(), uncut.finish.as_slice()), (200, ["length".to_owned()].as_slice()));
    sweep("random words without thinking", pair, words.with(no_thinking()), Usage::Whole).await;
}

/// Many scripts and parts of characters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn any_goes_on_wherever_it_is_cut() {
    let pair = pair(Model::Any).await;
    let pair = pair.as_ref().expect("a pair");
    let tokens = Question::chat("Tell me a story.", json!({"max_tokens": 200}));
    sweep("random tokens", pair, tokens.clone(), Usage::WithoutReasoning).await;
    sweep("random tokens without thinking", pair, tokens.with(no_thinking()), Usage::Whole).await;
}

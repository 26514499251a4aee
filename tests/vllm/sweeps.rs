//! A cut at every tenth token of an answer, by the relay, in the ways that a connection ends.

use serde_json::{Value, json};

use crate::answer::{Answer, Usage};
use crate::plans::PROMPT;
use crate::relay::{Cut, End};
use crate::rig::{Question, Rig};
use crate::server::{Model, pair};
use crate::sweep::{Sweep, by_ids};

pub fn no_thinking() -> Value {
    json!({"chat_template_kwargs": {"enable_thinking": false}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_tells_its_story_whole_wherever_it_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let story = Question::chat("Tell me a story.", json!({}));
    let uncut = Sweep::of("the story", &story).every_end().run(pair).await;
    assert!(uncut.reasoning.starts_with("The user wants") && uncut.content.ends_with("The end."), "{uncut:?}");
    Sweep::of("the story without thinking", &story.clone().with(no_thinking())).run(pair).await;
    let continuous = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    Sweep::of("the story with usage in every event", &story.clone().with(continuous)).run(pair).await;
    Sweep::of("the story, four tokens an event", &story.with(json!({"stream_interval": 4}))).run(pair).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_counts_to_the_end_wherever_it_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let uncut = Sweep::of("the count", &Question::chat("Please count to 150.", json!({}))).run(pair).await;
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
    Sweep::of("the story with stop strings", &story.clone().with(stop)).usage(Usage::WithoutReasoning).run(pair).await;
    let stop = story.clone().with(json!({"stop": ["broken"]}));
    let stopped = Sweep::of("the stopped story", &stop).usage(Usage::WithoutReasoning).run(pair).await;
    assert!(stopped.content.ends_with("spare lamp: "), "{stopped:?}");
    // 22438 is the token ` (<`, whose last character waits for the next token.
    let marks = json!({"logit_bias": {"22438": LIKING}, "max_tokens": 120, "ignore_eos": true});
    let marks = Sweep::of("text full of <", &story.with(marks)).usage(Usage::WithoutReasoning).run(pair).await;
    assert!(marks.reasoning.matches(" (<").count() > 5, "{marks:?}");
}

/// A stop string of many tokens that is to be in the answer is passed on as it is written, so a cut can fall inside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_stops_behind_a_stop_string_that_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let stop = "tried the old stove; the wood was wet";
    let more = json!({"stop": [stop], "include_stop_str_in_output": true});
    let chat = Question::chat("Tell me a story.", more.clone());
    let completion = Question::completion(PROMPT, more);
    let questions = [
        ("a stop string in the story", chat.clone()),
        ("a stop string in the story without thinking", chat.with(no_thinking())),
        ("a stop string in a completion", completion),
    ];
    for (name, question) in questions {
        let tokens = question.uncut(pair).await.tokens();
        let uncut = Sweep::of(name, &question).every_token(tokens - 14..tokens).run(pair).await;
        assert!(uncut.content.ends_with(stop), "{name}: {uncut:?}");
    }
}

/// Limits that count what was generated before the cut, and one that does not: the engine finds that in the prompt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_keeps_its_limits_wherever_it_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let story = Question::chat("Tell me a story.", json!({}));
    let whole = story.uncut(pair).await;
    let budget = story.clone().with(json!({"thinking_token_budget": 45}));
    let uncut = Sweep::of("the story after a budget of thinking", &budget).run(pair).await;
    assert!(uncut.thought() < 50 && whole.thought() > 60, "{} of {}", uncut.thought(), whole.thought());
    let most = story.clone().with(json!({"max_tokens": 130}));
    let uncut = Sweep::of("the story up to a limit", &most).run(pair).await;
    assert_eq!((uncut.tokens(), uncut.finish), (130, vec!["length".to_owned()]));
    // Without the limit the story would stop at the first of these.
    let least = story.with(json!({"min_tokens": 150, "max_tokens": 290, "stop": [" the"]}));
    let uncut = Sweep::of("the story from a limit on", &least).usage(Usage::WithoutReasoning).run(pair).await;
    assert!((151..290).contains(&uncut.tokens()) && uncut.finish == ["stop"], "{} {uncut:?}", uncut.tokens());
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
    let uncut = Sweep::of("random words", &words).run(pair).await;
    assert_eq!((uncut.tokens(), uncut.finish.as_slice()), (200, ["length".to_owned()].as_slice()));
    Sweep::of("random words without thinking", &words.with(no_thinking())).run(pair).await;
}

/// Many scripts and parts of characters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn any_goes_on_wherever_it_is_cut() {
    let pair = pair(Model::Any).await;
    let pair = pair.as_ref().expect("a pair");
    let tokens = Question::chat("Tell me a story.", json!({"max_tokens": 200}));
    Sweep::of("random tokens", &tokens).usage(Usage::WithoutReasoning).run(pair).await;
    Sweep::of("random tokens without thinking", &tokens.with(no_thinking())).run(pair).await;
}

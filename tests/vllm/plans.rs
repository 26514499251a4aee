//! What goes on by other ways than a chat's own endpoint, or from something else than a chat's text.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::answer::{Answer, Usage, post};
use crate::relay::{Cut, Leg};
use crate::rig::{Question, Rig};
use crate::server::{Model, Pair, pair};
use crate::sweep::{ENDS, SAID, Sweep, Way, by, by_ids};
use crate::sweeps::no_thinking;

/// What the chat template makes of the question for a story, which the model knows by heart as ids.
pub const PROMPT: &str = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n<think>\n";

/// The ids of the question for the weather, without the tools that the template would add: the model does not know them with those.
const WEATHER: [u32; 16] =
    [151_644, 872, 198, 3838, 374, 279, 9104, 304, 12095, 30, 151_645, 198, 151_644, 77091, 198, 151_667];

const RENDER: &str = ", plan: render-generate";

/// What `/v1/completions` streams, by ids and, where a route wants that, by text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_completes_a_prompt_wherever_it_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let story = Question::completion(PROMPT, json!({}));
    let uncut = Sweep::of("a completion", &story).every_end().run(pair).await;
    assert!(uncut.content.starts_with("The user wants") && uncut.content.ends_with("The end."), "{uncut:?}");
    let stop = story.clone().with(json!({"stop": ["a stop that never comes", "broken"]}));
    let stopped = Sweep::of("a stopped completion", &stop).run(pair).await;
    assert!(stopped.content.ends_with("spare lamp: "), "{stopped:?}");
    let by_text = Sweep::of("a completion from text", &story).route(", plan: chat-continue", from_text);
    by_text.usage(Usage::Without).run(pair).await;
}

/// A tool call, cut behind each of its tokens: before its name it is generated again, behind it the scale-out endpoints go on inside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_calls_its_tool_once_wherever_it_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let call = weather(&[271, 151_668, 271]).with(no_thinking());
    // Before the call has a name nothing is shown, and a silence then is waited out.
    let sweep = Sweep::of("a tool call before its name", &call).every_token(1..9).ends(SAID);
    sweep.every_end().route("", by_name).run(pair).await;
    let sweep = Sweep::of("a tool call from its name on", &call).every_token(9..usize::MAX);
    let uncut = sweep.every_end().route("", by_name).run(pair).await;
    let called = ("get_weather".to_owned(), r#"{"city": "Paris", "unit": "celsius"}"#.to_owned());
    assert_eq!((&uncut.calls, &uncut.finish), (&vec![called], &vec!["tool_calls".to_owned()]));
    let thought = weather(&[198]);
    let sweep = Sweep::of("a tool call behind thinking", &thought).every_token(1..usize::MAX);
    sweep.route("", by_name).run(pair).await;
    let sweep = Sweep::of("a tool call behind thinking, at once", &thought).every_token(1..usize::MAX);
    sweep.route(", buffer_tool_calls: true", by_ids).run(pair).await;
    let sweep = Sweep::of("a tool call, at once", &call).every_token(1..usize::MAX).ends(SAID);
    sweep.route(", buffer_tool_calls: true", by_ids).run(pair).await;
}

/// The call is begun again by the second engine, and gone on with inside its arguments by the third.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_calls_its_tool_once_though_two_engines_are_lost() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let mut faults = Vec::new();
    for call in [weather(&[271, 151_668, 271]).with(no_thinking()), weather(&[198])] {
        let uncut = call.uncut(pair).await;
        let (tokens, thought) = (uncut.tokens(), uncut.thought());
        // The last tokens are those of the call, which has its name at the 19th from the end and its arguments from the 15th to the 3rd.
        let before_name = (1..tokens - 18).step_by(if thought > 0 { 6 } else { 1 });
        for (number, first) in before_name.enumerate() {
            // Only thinking is kept of what the first leg brought.
            let second = tokens - first.min(thought) - [12, 9, 6][number % 3];
            let cuts = [(first, &SAID[number % SAID.len()]), (second, &ENDS[[0, 1, 2, 5][number % 4]])];
            let rig = Rig::continuing(
                pair.addresses,
                cuts.map(|(after, end)| Cut { after, end: end.clone() }),
                "max_legs: 3",
            );
            let rig = rig.await;
            let mut differences = rig.ask(&call).await.differences(&uncut, Usage::Whole);
            differences.extend(twice_lost(&rig.script.legs()));
            faults.extend(differences.iter().map(|fault| format!("behind tokens {first} and {second}: {fault}")));
        }
        println!(
            "a call of {tokens} tokens, {thought} of them thinking, over two lost engines: {} faults",
            faults.len()
        );
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What is wrong with the legs of a call that was lost before its name and again inside its arguments.
fn twice_lost(legs: &[Leg]) -> Option<String> {
    let [first, second, third] = legs else { return Some(format!("{} legs", legs.len())) };
    let shown = [first, second].map(|leg| leg.events.iter().filter(|event| event.contains("\"tool_calls\":[")).count());
    let ways = [Way::of(second), Way::of(third)];
    let right = shown[0] == 0 && (2..14).contains(&shown[1]) && ways == [Way::TokenExact, Way::RenderGenerate];
    (!right).then(|| format!("{shown:?} events with a call, then {ways:?}"))
}

/// The story and tokens of all scripts by way of the scale-out endpoints, parts of characters among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_tells_its_story_by_render_generate_wherever_it_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let story = Question::chat("Tell me a story.", json!({}));
    // Where one event holds the end of thinking and more, as a busy server's do, nobody tells how much of it was thought.
    let by =
        |name, question: &Question| Sweep::of(name, question).usage(Usage::WithoutReasoning).route(RENDER, by_render);
    by("the story by render-generate", &story).run(pair).await;
    let short = story.clone().with(json!({"max_tokens": 120}));
    by("the story by render-generate, up to a limit", &short).run(pair).await;
    by("the story without thinking by render-generate", &story.with(no_thinking())).run(pair).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn any_goes_on_by_render_generate_wherever_it_is_cut() {
    let pair = pair(Model::Any).await;
    let pair = pair.as_ref().expect("a pair");
    let tokens = Question::chat("Tell me a story.", json!({"max_tokens": 200}));
    let sweep = Sweep::of("random tokens by render-generate", &tokens).route(RENDER, by_render);
    sweep.usage(Usage::WithoutReasoning).run(pair).await;
    let tokens = tokens.with(no_thinking());
    let sweep = Sweep::of("random tokens without thinking by render-generate", &tokens).route(RENDER, by_render);
    sweep.usage(Usage::WithoutReasoning).run(pair).await;
}

/// From text, where a route wants it so: the answer. Thinking cannot be gone on with by this family's template.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_tells_its_story_from_text_wherever_its_answer_is_cut() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let story = Question::chat("Tell me a story.", json!({}));
    let thought = story.uncut(pair).await.thought();
    let by_text = |name, story: &Question| {
        let sweep = Sweep::of(name, story).route(", plan: chat-continue", from_text).usage(Usage::Without);
        sweep.same_where(is_read_as_written)
    };
    by_text("the answer to the story, from text", &story).from(thought + 10).run(pair).await;
    by_text("the story without thinking, from text", &story.with(no_thinking())).from(10).run(pair).await;
}

/// Sampled answers go on otherwise than they would have, so each is compared with the ids that were generated for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn memo_samples_an_answer_whole_wherever_it_is_cut() {
    sampled(Model::Memo, json!({})).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn rand_samples_an_answer_whole_wherever_it_is_cut() {
    sampled(Model::Rand, json!({"max_tokens": 120})).await;
}

async fn sampled(model: Model, more: Value) {
    let pair = pair(model).await;
    let pair = pair.as_ref().expect("a pair");
    let question = Question::chat("Tell me a story.", json!({"temperature": 0.8, "seed": 11})).with(more);
    let mut faults = Vec::new();
    for (number, after) in (5..110).step_by(15).enumerate() {
        let cut = Cut { after, end: ENDS[number % ENDS.len()].clone() };
        let rig = Rig::start(pair.addresses, [cut]).await;
        let answer = rig.ask(&question).await;
        let legs = rig.script.legs();
        faults.extend(by_ids(&legs).map(|fault| format!("behind token {after}: {fault}")));
        let (ids, text) = generated(pair, &legs).await;
        let whole = (answer.error.clone(), answer.done, answer.finish.len(), answer.ids.len(), answer.tokens());
        if whole != (None, true, 1, 1, ids) || !as_text(&answer).contains(&text) {
            faults.push(format!("behind token {after}: {whole:?}, {ids} tokens\n{answer:?}\n{text}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// How many tokens the answer has that these legs make up, and what they are as text.
async fn generated(pair: &Pair, legs: &[Leg]) -> (usize, String) {
    let events = |leg: &Leg| leg.events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    let (first, last): (Vec<Value>, Vec<Value>) = (events(&legs[0]), events(legs.last().expect("a leg")));
    let list = |ids: &Value| ids.as_array().cloned().unwrap_or_default();
    let mut ids = list(&last[0]["prompt_token_ids"]);
    ids.drain(..list(&first[0]["prompt_token_ids"]).len());
    ids.extend(last.iter().flat_map(|event| list(&event["choices"][0]["token_ids"])));
    let text = detokenize(pair.addresses[1], &ids).await;
    (ids.len(), text)
}

async fn detokenize(address: SocketAddr, ids: &[Value]) -> String {
    let body = json!({"model": "tiny", "tokens": ids});
    let answer: Value =
        serde_json::from_str(&post(&format!("http://{address}/detokenize"), &body).await).expect("JSON");
    answer["prompt"].as_str().expect("a text").to_owned()
}

/// The text as the model wrote it, with thinking ended or not, and with an end of its turn or not.
fn as_text(answer: &Answer) -> [String; 2] {
    let mark = if answer.content.is_empty() { "" } else { "</think>" };
    let text = format!("{}{mark}{}", answer.reasoning, answer.content);
    [format!("{text}<|im_end|>"), text]
}

fn weather(rest: &[u32]) -> Question {
    let ids: Vec<u32> = WEATHER.iter().chain(rest).copied().collect();
    let text = json!({"type": "string"});
    let parameters = json!({"type": "object", "properties": {"city": text, "unit": text}});
    let tools = json!([{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]);
    let more = json!({"tools": tools, "kv_transfer_params": {"prompt_token_ids": ids}, "max_tokens": 200});
    Question::chat("What is the weather in Paris?", more)
}

/// What is wrong with the legs of a tool call: a call that has been named is gone on with, another one begun again.
fn by_name(legs: &[Leg]) -> Option<String> {
    let named = |event: &String| event.contains(r#""function":{"name""#);
    let shown = legs.first().is_some_and(|leg| leg.events.iter().any(named));
    by(if shown { Way::RenderGenerate } else { Way::TokenExact }, legs)
}

fn by_render(legs: &[Leg]) -> Option<String> {
    by(Way::RenderGenerate, legs)
}

fn from_text(legs: &[Leg]) -> Option<String> {
    by(Way::Text, legs)
}

/// The template takes white space off the end, and `.\n` is one token: the model goes on from another one then.
fn is_read_as_written(legs: &[Leg]) -> bool {
    let said = legs.first().map(|leg| leg.events.join("\n")).unwrap_or_default();
    let texts = said.lines().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let last =
        texts.filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).next_back();
    last.is_none_or(|text| !text.ends_with(char::is_whitespace))
}

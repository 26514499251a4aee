//! Streams recorded with a vLLM 0.32 that listed ids, cut and continued by them: whole answers under `tests/fixtures/vllm-0.32/`. Leg 2 is
//! the rest of the recording as another server would send it: under another id, at another time, with the ids that it was given and the
//! count of its own tokens. What the ids spell was recorded as well (`vocabulary.json`: text, or the bytes of a part of a character);
//! every beginning of every answer was held against the server's own `/detokenize` when it was made.

use std::collections::HashMap;
use std::fs;

use baton::proto::chat::{Api, ChatRequest};
use baton::proto::record::Seal;
use baton::proto::relay::{LegEnd, LegStart, Policy, Refusal};
use baton::proto::resume::Question;
use serde_json::{Value, json};

use super::super::run::{Reply, Run, Said, data_of};

fn fixture(name: &str) -> Vec<u8> {
    fs::read(format!("{}/tests/fixtures/vllm-0.32/{name}", env!("CARGO_MANIFEST_DIR"))).expect("a fixture")
}

fn read(data: &str) -> Value {
    serde_json::from_str(data).expect("a chunk")
}

/// What a list of ids spells, as `/detokenize` says it.
fn spell(vocabulary: &HashMap<u64, Vec<u8>>, question: &Question) -> Result<Vec<u8>, Refusal> {
    assert_eq!(question.path, "/detokenize");
    let asked: Value = serde_json::from_slice(&question.body).expect("JSON");
    assert_eq!(asked["model"], "tiny");
    let bytes: Vec<u8> = numbers(&asked["tokens"]).iter().flat_map(|id| vocabulary[id].clone()).collect();
    Ok(json!({"prompt": String::from_utf8_lossy(&bytes)}).to_string().into_bytes())
}

fn vocabulary() -> HashMap<u64, Vec<u8>> {
    let spellings: HashMap<String, Value> = serde_json::from_slice(&fixture("vocabulary.json")).expect("JSON");
    let bytes = |spelling: Value| match spelling {
        Value::String(text) => text.into_bytes(),
        parts => numbers(&parts).into_iter().map(|byte| u8::try_from(byte).expect("a byte")).collect(),
    };
    spellings.into_iter().map(|(id, spelling)| (id.parse().expect("an id"), bytes(spelling))).collect()
}

fn numbers(list: &Value) -> Vec<u64> {
    list.as_array().map(|list| list.iter().filter_map(Value::as_u64).collect()).unwrap_or_default()
}

/// An event's own ids.
fn ids_of(event: &Value) -> Vec<u64> {
    numbers(&event["choices"][0]["token_ids"])
}

/// The ids of the prompt, where an event has them.
fn prompt_of(event: &Value) -> Vec<u64> {
    let own = numbers(&event["prompt_token_ids"]);
    if own.is_empty() { numbers(&event["choices"][0]["prompt_token_ids"]) } else { own }
}

/// The event as the client gets it; `None` if it is there for its ids alone.
fn shown(data: &str) -> Option<String> {
    let mut event = read(data);
    let choice = &event["choices"][0];
    if choice["delta"] == json!({}) && choice["finish_reason"].is_null() {
        return None;
    }
    for pointer in ["/prompt_token_ids", "/choices/0/prompt_token_ids", "/choices/0/token_ids"] {
        if let Some(list) = event.pointer_mut(pointer) {
            list.take();
        }
    }
    Some(event.to_string())
}

struct Recorded {
    api: Api,
    family: &'static str,
    request: Value,
    bytes: Vec<u8>,
    /// The data of its events, without `[DONE]`, and where each ends in bytes.
    told: Vec<String>,
    ends: Vec<usize>,
    /// The same as another server sends them.
    elsewhere: Vec<Value>,
    vocabulary: HashMap<u64, Vec<u8>>,
    prompt: Vec<u64>,
    /// The answer's ids before each event, and after the last.
    before: Vec<usize>,
    /// How many of them are thinking.
    thoughts: u64,
}

impl Recorded {
    fn new(file: &str, family: &'static str, api: Api, more: &Value) -> Self {
        let bytes = fixture(&format!("{file}.sse"));
        let mut request = match api {
            Api::Chat => json!({"model": "tiny", "messages": [{"role": "user", "content": "?"}], "stream": true}),
            Api::Completions => json!({"model": "tiny", "prompt": "?", "stream": true, "max_tokens": 14}),
        };
        for (key, value) in more.as_object().expect("an object") {
            request[key] = value.clone();
        }
        let mut told = data_of(&bytes);
        assert_eq!(told.pop().as_deref(), Some("[DONE]"), "{file} is a whole answer");
        let text = String::from_utf8(bytes.clone()).expect("text");
        let ends = text.match_indices("\n\n").map(|(at, end)| at + end.len()).collect();
        let mut before = vec![0];
        let mut thoughts = 0;
        for event in told.iter().map(|data| read(data)) {
            before.push(before[before.len() - 1] + ids_of(&event).len());
            thoughts +=
                if event["choices"][0]["delta"]["reasoning"].is_string() { ids_of(&event).len() as u64 } else { 0 };
        }
        let elsewhere = told.iter().map(|data| another_server(data)).collect();
        let prompt = prompt_of(&read(&told[0]));
        assert!(!prompt.is_empty(), "{file} has the prompt's ids");
        let vocabulary = vocabulary();
        Recorded { api, family, request, bytes, told, ends, elsewhere, vocabulary, prompt, before, thoughts }
    }

    fn open(&self) -> Run {
        let body = self.request.to_string();
        let request = match self.api {
            Api::Chat => ChatRequest::parse(body.as_bytes()),
            Api::Completions => ChatRequest::parse_completion(body.as_bytes()),
        };
        let vocabulary = self.vocabulary.clone();
        let speller = Box::new(move |question: &Question| spell(&vocabulary, question));
        Run::listing(request.expect("a request"), Policy::default(), self.family, "vllm", speller)
    }

    /// What another server answers to a leg's request.
    fn answer(&self, start: &LegStart) -> Vec<u8> {
        let body: Value = serde_json::from_slice(start.work.body()).expect("a request");
        assert_eq!(body["return_token_ids"], true);
        let given = match self.api {
            Api::Chat => numbers(&body["kv_transfer_params"]["prompt_token_ids"]),
            Api::Completions => numbers(&body["prompt"]),
        };
        let given = if given.is_empty() { self.prompt.clone() } else { given };
        let kept = given.strip_prefix(&self.prompt[..]).expect("the prompt's ids come first");
        let all: Vec<u64> = self.elsewhere.iter().flat_map(ids_of).collect();
        assert_eq!(kept, &all[..kept.len()], "and then the first of the answer's");
        let spelled: Vec<u8> = kept.iter().flat_map(|id| self.vocabulary[id].clone()).collect();
        assert!(std::str::from_utf8(&spelled).is_ok(), "a prompt never ends inside a character");
        let from = self.before.iter().rposition(|before| *before == kept.len()).expect("between two events");
        // The events behind the last id have none: the usage.
        let from = from.min(self.before.iter().position(|before| *before == all.len()).expect("the end"));
        let mut leg = String::new();
        let opening = if self.api == Api::Chat { 1 } else { 0 };
        for (at, event) in self.elsewhere[..opening].iter().chain(&self.elsewhere[from.max(opening)..]).enumerate() {
            let mut event = event.clone();
            if at == 0 {
                let place = if self.api == Api::Chat { &mut event } else { &mut event["choices"][0] };
                place["prompt_token_ids"] = json!(given);
            }
            if event["usage"].is_object() {
                self.count(&mut event["usage"], given.len(), kept.len());
            }
            leg.push_str(&format!("data: {event}\n\n"));
        }
        leg.push_str("data: [DONE]\n\n");
        leg.into_bytes()
    }

    /// Usage as the leg's server counts it.
    fn count(&self, usage: &mut Value, prompt: usize, kept: usize) {
        let completion = usage["completion_tokens"].as_u64().expect("a count") - kept as u64;
        usage["prompt_tokens"] = json!(prompt);
        usage["completion_tokens"] = json!(completion);
        usage["total_tokens"] = json!(prompt as u64 + completion);
        // Behind its thinking, vLLM counts all of a leg as thinking (0.32, measured).
        let over = self.thoughts > 0 && kept as u64 >= self.thoughts;
        let thoughts = if over { completion } else { self.thoughts.saturating_sub(kept as u64) };
        if usage["completion_tokens_details"].is_object() {
            usage["completion_tokens_details"]["reasoning_tokens"] = json!(thoughts);
        }
    }

    /// What the client is to get: the recording without its ids, but for the fingerprint, which leg 1 had not sent yet.
    fn wanted(&self, run: &Run, cut: usize) -> Vec<String> {
        let asks = self.request["stream_options"]["include_usage"] == true;
        let print = |data: String| {
            let event = read(&data);
            let Some(own) = event["system_fingerprint"].as_str() else { return data };
            match run.last_plan() {
                Some(plan) if asks || plan == "again" => data.replace(own, ELSEWHERE),
                _ => data.replace(&format!(r#","system_fingerprint":"{own}""#), ""),
            }
        };
        if cut == 0 {
            return self.elsewhere.iter().filter_map(|event| shown(&event.to_string())).collect();
        }
        let (had, rest) = self.told.split_at(cut);
        had.iter().filter_map(|data| shown(data)).chain(rest.iter().filter_map(|data| shown(data)).map(print)).collect()
    }

    /// Cuts after so many bytes, and checks what the client got.
    fn check(&self, at: usize) -> Run {
        let cut = self.ends.partition_point(|end| *end <= at).min(self.told.len());
        let words = format!("{} after {at} bytes ({cut} events)", self.family);
        let mut run = self.open();
        run.feed(&self.bytes[..at]);
        run.end(LegEnd::Reset);
        run.serve(|start| Reply::Whole(self.answer(start)));
        let had: Vec<String> = self.told[..cut].iter().filter_map(|data| shown(data)).collect();
        let said = Said::by(&had);
        let text = |data: &String| read(data)["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
        let texts: String = had.iter().map(text).collect();
        let blank =
            [&said.reasoning, &said.content, &said.calls, &texts].iter().all(|text| text.trim_start().is_empty());
        let finished = had.iter().any(|data| !read(data)["choices"][0]["finish_reason"].is_null());
        if !said.calls.is_empty() && !finished {
            assert!(run.is_incomplete() && run.why == Some("tool_call_shown"), "{words}: {:?}", run.why);
            assert_eq!((run.starts.len(), &run.log.events), (0, &had), "{words}");
            return run;
        }
        assert_eq!(run.log.seal, Some(Seal::Finished), "{words}: {:?}", run.causes);
        let plans: Vec<_> = run.starts.iter().map(|start| start.plan).collect();
        let plan = match (finished, blank) {
            (true, _) => vec![],
            (_, true) => vec!["again"],
            _ => vec!["token-exact"],
        };
        assert_eq!(plans, plan, "{words}");
        assert_eq!(without_repeats(run.log.events.clone()), without_repeats(self.wanted(&run, cut)), "{words}");
        run
    }

    fn at_every_event(&self, step: usize) {
        for at in self.ends.iter().step_by(step) {
            self.check(*at);
        }
    }

    /// At the bytes between two ends of events the client has the same, and the same is asked of the next engine.
    fn at_every_byte(&self) {
        let mut checked: Option<Run> = None;
        for at in 0..self.bytes.len() {
            let cut = self.ends.partition_point(|end| *end <= at).min(self.told.len());
            if at - self.ends.get(cut.wrapping_sub(1)).copied().unwrap_or_default() < 2 {
                checked = Some(self.check(at));
            }
            let Some(run) = &checked else { continue };
            let mut other = self.open();
            other.feed(&self.bytes[..at]);
            other.end(LegEnd::Clean);
            let words = format!("{} after {at} bytes ({cut} events)", self.family);
            assert_eq!(other.asked(), run.starts.first(), "{words}");
            assert_eq!((other.why, other.is_incomplete()), (run.why, run.is_incomplete()), "{words}");
        }
    }
}

/// Events of a completion have no text where a token has none, and come once more with the token.
fn without_repeats(events: Vec<String>) -> Vec<String> {
    let silent = |data: &String| data.contains(r#""text":"","logprobs":null,"finish_reason":null"#);
    events.into_iter().filter(|data| !silent(data)).collect()
}

const ELSEWHERE: &str = "vllm-elsewhere";

fn another_server(data: &str) -> Value {
    let mut event = read(data);
    event["id"] = json!("chatcmpl-elsewhere");
    event["created"] = json!(1_900_000_000);
    if event["system_fingerprint"].is_string() {
        event["system_fingerprint"] = json!(ELSEWHERE);
    }
    event
}

fn usage() -> Value {
    json!({"stream_options": {"include_usage": true}})
}

fn tools() -> Value {
    json!({"tools": [{"type": "function", "function": {"name": "get_weather"}}], "stream_options": {"include_usage": true}})
}

#[test]
fn a_story_with_its_thinking_at_every_event() {
    Recorded::new("story_token_ids", "qwen3_6", Api::Chat, &usage()).at_every_event(1);
}

#[test]
fn the_story_with_ids_taken_out_is_the_story_without() {
    let anonymous = |data: &String| {
        let mut event = read(data);
        for key in ["id", "created"] {
            event.as_object_mut().expect("an object").remove(key);
        }
        event.to_string()
    };
    let (listed, mut twin) =
        (Recorded::new("story_token_ids", "qwen3_6", Api::Chat, &usage()), data_of(&fixture("story.sse")));
    twin.pop();
    let mut run = listed.open();
    run.feed(&listed.bytes);
    assert_eq!(run.log.seal, Some(Seal::Finished));
    assert_eq!(
        run.log.events.iter().map(anonymous).collect::<Vec<_>>(),
        twin.iter().map(anonymous).collect::<Vec<_>>()
    );
    assert!(twin.len() > 300 && listed.told.len() > twin.len());
}

#[test]
fn thinking_at_every_byte() {
    Recorded::new("token_ids", "qwen3", Api::Chat, &usage()).at_every_byte();
}

#[test]
fn many_scripts_at_every_byte() {
    Recorded::new("token_ids_many_scripts", "no_thinking", Api::Chat, &json!({})).at_every_byte();
}

#[test]
fn a_tool_call_at_every_byte() {
    Recorded::new("tool_call", "qwen3", Api::Chat, &tools()).at_every_byte();
}

#[test]
fn an_answer_that_is_itself_the_rest_of_one_at_every_byte() {
    Recorded::new("continued", "qwen3", Api::Chat, &json!({})).at_every_byte();
}

#[test]
fn a_completion_at_every_byte() {
    Recorded::new("completion_token_ids", "qwen3", Api::Completions, &usage()).at_every_byte();
}

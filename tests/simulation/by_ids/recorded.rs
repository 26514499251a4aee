//! Streams recorded with a vLLM 0.32 that listed ids, cut and continued by them: whole answers under `tests/fixtures/vllm-0.32/`. Leg 2 is
//! the rest of the recording as another server would send it: under another id, at another time, with the ids that it was given and the
//! count of its own tokens. What the ids spell was recorded as well (`vocabulary.json`: text, or the bytes of a part of a character);
//! every beginning of every answer was held against the server's own `/detokenize` when it was made. The ids of two more recordings that it
//! lacks are in [`FURTHER`].

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

/// What a list of ids spells, as `/detokenize` says it, and which id is the mark that ends thinking, as `/tokenize` says it.
fn spell(vocabulary: &HashMap<u64, Vec<u8>>, question: &Question) -> Result<Vec<u8>, Refusal> {
    let asked: Value = serde_json::from_slice(&question.body).expect("JSON");
    if question.path == "/tokenize" {
        assert_eq!(asked["prompt"], "</think>");
        return Ok(json!({"count": 1, "max_model_len": 4096, "tokens": [CLOSE]}).to_string().into_bytes());
    }
    assert_eq!((question.path, &asked["model"]), ("/detokenize", &json!("tiny")));
    let bytes: Vec<u8> = numbers(&asked["tokens"]).iter().flat_map(|id| vocabulary[id].clone()).collect();
    Ok(json!({"prompt": String::from_utf8_lossy(&bytes)}).to_string().into_bytes())
}

/// Spellings that follow from the texts of `step_in_one_event` and `held_back_mark`, in which every other id is known.
const FURTHER: [(u64, &str); 8] = [
    (614, " have"),
    (633, " get"),
    (1618, " call"),
    (5392, " tool"),
    (9104, " weather"),
    (12095, " Paris"),
    (17064, " asks"),
    (22438, " (<"),
];

/// The id of the mark that ends thinking.
const CLOSE: u64 = 151_668;

fn vocabulary() -> HashMap<u64, Vec<u8>> {
    let spellings: HashMap<String, Value> = serde_json::from_slice(&fixture("vocabulary.json")).expect("JSON");
    let bytes = |spelling: Value| match spelling {
        Value::String(text) => text.into_bytes(),
        parts => numbers(&parts).into_iter().map(|byte| u8::try_from(byte).expect("a byte")).collect(),
    };
    let recorded = spellings.into_iter().map(|(id, spelling)| (id.parse().expect("an id"), bytes(spelling)));
    recorded.chain(FURTHER.map(|(id, spelling)| (id, spelling.as_bytes().to_vec()))).collect()
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
    /// The events as the client gets them.
    plain: Vec<Option<String>>,
    /// The same as another server sends them, read and written.
    elsewhere: Vec<Value>,
    written: Vec<String>,
    vocabulary: HashMap<u64, Vec<u8>>,
    prompt: Vec<u64>,
    /// The answer's ids before each event, and after the last.
    before: Vec<usize>,
    /// How many of them are thinking, and how many of those share an event with the answer.
    thoughts: u64,
    shared: u64,
    /// Characters withheld because they may become a stop string.
    withheld: usize,
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
        let (mut thoughts, mut shared) = (0, 0);
        for event in told.iter().map(|data| read(data)) {
            let ids = ids_of(&event);
            before.push(before[before.len() - 1] + ids.len());
            if event["choices"][0]["delta"]["reasoning"].is_string() {
                // In an event with the end of the thinking, too, only what precedes its mark is of it.
                let count = ids.iter().take_while(|id| **id != CLOSE).count() as u64;
                thoughts += count;
                shared += if event["choices"][0]["delta"]["content"].is_string() { count } else { 0 };
            }
        }
        let plain = told.iter().map(|data| shown(data)).collect();
        let elsewhere: Vec<Value> = told.iter().map(|data| another_server(data)).collect();
        let written = elsewhere.iter().map(Value::to_string).collect();
        let prompt = prompt_of(&read(&told[0]));
        assert!(!prompt.is_empty(), "{file} has the prompt's ids");
        let vocabulary = vocabulary();
        Recorded {
            api,
            family,
            request,
            bytes,
            told,
            ends,
            plain,
            elsewhere,
            written,
            vocabulary,
            prompt,
            before,
            thoughts,
            shared,
            withheld: 0,
        }
    }

    /// The recorded request had a stop string of so many characters and one more.
    fn withholding(mut self, characters: usize) -> Self {
        self.withheld = characters;
        self
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
        let (mut leg, mut unspoken) = (String::new(), Vec::new());
        let mut given_already = self.ahead(&spelled, from);
        let opening = if self.api == Api::Chat { 1 } else { 0 };
        for (at, number) in (0..opening).chain(from.max(opening)..self.elsewhere.len()).enumerate() {
            if at > 0 && self.withheld == 0 && given_already == 0 && !self.elsewhere[number]["usage"].is_object() {
                leg.push_str(&format!("data: {}\n\n", self.written[number]));
                continue;
            }
            let mut event = self.elsewhere[number].clone();
            if at == 0 {
                let place = if self.api == Api::Chat { &mut event } else { &mut event["choices"][0] };
                place["prompt_token_ids"] = json!(given);
            }
            if self.withheld > 0 && event["choices"][0].is_object() {
                let last = event["choices"][0]["finish_reason"].is_string();
                unspoken.extend(ids_of(&event).iter().flat_map(|id| self.vocabulary[id].clone()));
                event["choices"][0]["text"] = json!(self.speak(&mut unspoken, last));
            }
            if let (1.., Some(Value::String(text))) = (at, event.pointer_mut("/choices/0/delta/reasoning")) {
                text.drain(..std::mem::take(&mut given_already));
            }
            if event["usage"].is_object() {
                self.count(&mut event["usage"], given.len(), kept.len());
            }
            leg.push_str(&format!("data: {event}\n\n"));
        }
        leg.push_str("data: [DONE]\n\n");
        leg.into_bytes()
    }

    /// Bytes of thinking that the kept ids spell and the recording's server withheld until the event `from`, as it may have become a mark.
    /// A server that finds them in its prompt does not say them.
    fn ahead(&self, spelled: &[u8], from: usize) -> usize {
        let said = Said::by(&self.told[..from]).reasoning;
        spelled.strip_prefix(said.as_bytes()).filter(|ahead| *ahead == b"<").map_or(0, <[u8]>::len)
    }

    /// What a server with the recording's stop string gives out of these bytes.
    fn speak(&self, unspoken: &mut Vec<u8>, last: bool) -> String {
        let whole = std::str::from_utf8(unspoken).map_or_else(|error| error.valid_up_to(), str::len);
        let text = std::str::from_utf8(&unspoken[..whole]).expect("text");
        let length = text.char_indices().rev().nth(self.withheld - 1).map_or(0, |(at, _)| at);
        let spoken: Vec<u8> = unspoken.drain(..if last { whole } else { length }).collect();
        String::from_utf8(spoken).expect("text")
    }

    /// Usage as the leg's server counts it.
    fn count(&self, usage: &mut Value, prompt: usize, kept: usize) {
        let completion = usage["completion_tokens"].as_u64().expect("a count") - kept as u64;
        usage["prompt_tokens"] = json!(prompt);
        usage["completion_tokens"] = json!(completion);
        usage["total_tokens"] = json!(prompt as u64 + completion);
        // Behind the mark that ends thinking, vLLM counts all of a leg as thinking, the end token excepted (0.32, measured).
        let over = self.thoughts > 0 && kept as u64 > self.thoughts;
        let thoughts = if over { completion - 1 } else { self.thoughts.saturating_sub(kept as u64) };
        if usage["completion_tokens_details"].is_object() {
            usage["completion_tokens_details"]["reasoning_tokens"] = json!(thoughts);
        }
    }

    /// What the client is to get: the recording without its ids, but for the fingerprint, which leg 1 had not sent yet.
    fn wanted(&self, run: &Run, cut: usize) -> Vec<String> {
        let print = |data: String| {
            if !data.contains(r#""system_fingerprint":""#) {
                return data;
            }
            let event = read(&data);
            let own = event["system_fingerprint"].as_str().expect("a fingerprint");
            match run.last_plan() {
                Some(_) => data.replace(own, ELSEWHERE),
                // Of thinking that shares an event with the answer nobody knows how many ids it is, unless an engine is asked for the mark.
                None => data.replace(&format!(r#","system_fingerprint":"{own}""#), "").replace(
                    &format!(r#""reasoning_tokens":{}}}"#, self.thoughts),
                    &format!(r#""reasoning_tokens":{}}}"#, self.thoughts - self.shared),
                ),
            }
        };
        if cut == 0 {
            return self.written.iter().filter_map(|event| shown(event)).collect();
        }
        let (had, rest) = self.plain.split_at(cut);
        had.iter().flatten().cloned().chain(rest.iter().flatten().cloned().map(print)).collect()
    }

    /// Events of a completion whose text is withheld by characters: their texts as one, which the server of the recording parts otherwise
    /// than this one (it shows a half character's blank), and those that say more.
    fn comparable(&self, events: &[String]) -> Vec<String> {
        if self.withheld == 0 {
            return events.to_vec();
        }
        let (mut whole, mut others) = (String::new(), Vec::new());
        for mut event in events.iter().map(|data| read(data)) {
            if let Some(Value::String(text)) = event.pointer_mut("/choices/0/text").map(Value::take) {
                whole.push_str(&text);
            }
            let choice = &event["choices"][0];
            if choice.is_null() || choice["finish_reason"].is_string() {
                others.push(event.to_string());
            }
        }
        others.push(whole);
        others
    }

    /// Cuts after so many bytes, and checks what the client got.
    fn check(&self, at: usize) -> Run {
        let cut = self.ends.partition_point(|end| *end <= at).min(self.told.len());
        let words = format!("{} after {at} bytes ({cut} events)", self.family);
        let mut run = self.open();
        run.feed(&self.bytes[..at]);
        run.end(LegEnd::Reset);
        run.serve(|start| Reply::Whole(self.answer(start)));
        let had: Vec<String> = self.plain[..cut].iter().flatten().cloned().collect();
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
        let (got, wanted) = (self.comparable(&run.log.events), self.comparable(&self.wanted(&run, cut)));
        let same = got.iter().zip(&wanted).take_while(|(got, wanted)| got == wanted).count();
        let apart = || format!("{words}: event {same} is {:#?} instead of {:#?}", got.get(same), wanted.get(same));
        assert!(same == got.len().max(wanted.len()), "{}", apart());
        run
    }

    /// At the bytes between two ends of events the client has the same, and the same is asked of the next engine. Every `step`-th of
    /// them is tried.
    fn at_every_byte(&self, step: usize) {
        let mut checked: Option<Run> = None;
        for at in 0..self.bytes.len() {
            let cut = self.ends.partition_point(|end| *end <= at).min(self.told.len());
            if at - self.ends.get(cut.wrapping_sub(1)).copied().unwrap_or_default() < 2 {
                checked = Some(self.check(at));
            }
            let Some(run) = checked.as_ref().filter(|_| at % step == 0) else { continue };
            let mut other = self.open();
            other.feed(&self.bytes[..at]);
            other.end(LegEnd::Clean);
            let words = format!("{} after {at} bytes ({cut} events)", self.family);
            assert_eq!(other.asked(), run.starts.first(), "{words}");
            assert_eq!((other.why, other.is_incomplete()), (run.why, run.is_incomplete()), "{words}");
        }
    }
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
fn a_story_with_its_thinking() {
    let story = Recorded::new("story_token_ids", "qwen3_6", Api::Chat, &usage());
    for (number, at) in story.ends.iter().enumerate() {
        let torn = if number % 3 == 0 { *at + 40 } else { *at };
        story.check(torn.min(story.bytes.len() - 1));
    }
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
    Recorded::new("token_ids", "qwen3", Api::Chat, &usage()).at_every_byte(1);
}

#[test]
fn the_end_of_thinking_in_an_event_with_the_answer_at_every_byte() {
    let step = Recorded::new("step_in_one_event", "qwen3", Api::Chat, &usage());
    assert!(
        step.told
            .iter()
            .any(|data| data.contains("\"content\":\"\\n\\n<tool_call>") && data.contains("\"reasoning\":"))
    );
    step.at_every_byte(1);
}

#[test]
fn thinking_of_which_a_part_was_withheld_as_it_may_become_a_mark_at_every_byte() {
    Recorded::new("held_back_mark", "qwen3", Api::Chat, &usage()).at_every_byte(1);
}

#[test]
fn many_scripts_in_many_places() {
    Recorded::new("token_ids_many_scripts", "no_thinking", Api::Chat, &json!({})).at_every_byte(13);
}

#[test]
fn a_tool_call_in_many_places() {
    Recorded::new("tool_call", "qwen3", Api::Chat, &tools()).at_every_byte(13);
}

#[test]
fn an_answer_that_is_itself_the_rest_of_one_at_every_byte() {
    Recorded::new("continued", "qwen3", Api::Chat, &json!({})).at_every_byte(1);
}

#[test]
fn a_completion_in_many_places() {
    let request = json!({"stop": ["zzz"], "stream_options": {"include_usage": true}});
    Recorded::new("completion_token_ids", "qwen3", Api::Completions, &request).withholding(2).at_every_byte(13);
}

//! Streams recorded with vLLM 0.32, cut at every byte: whole answers under `tests/fixtures/vllm-0.32/`, with thinking and
//! without, with usage at the end and with every event, with token ids, with a tool call. Leg 2 is the rest of the recording as
//! another server would send it: under another id, at another time, counting its own tokens only.

use std::fs;

use baton::proto::chat::{Ratios, estimate};
use baton::proto::record::Seal;
use baton::proto::relay::{LegEnd, Policy};
use baton::proto::resume::{PlanKind, Settings};
use serde_json::{Value, json};

use super::run::{Reply, Run, Said, data_of};

fn recording(file: &str) -> Vec<u8> {
    let path = format!("{}/tests/fixtures/vllm-0.32/{file}.sse", env!("CARGO_MANIFEST_DIR"));
    fs::read(path).expect("a recorded stream")
}

/// Who counted what came before a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counted {
    /// Nobody, and the client wants no usage.
    NotAsked,
    /// Nobody: what is recovered is estimated.
    Estimated,
    /// Baton, from the token ids; the prompt is estimated.
    ById,
    /// The engine, with every event.
    Along,
}

/// An event as another server sends it.
fn elsewhere(data: &str) -> Value {
    let mut event: Value = serde_json::from_str(data).expect("a chunk");
    event["id"] = json!("chatcmpl-elsewhere");
    event["created"] = json!(1_900_000_000);
    if event.get("system_fingerprint").is_some() {
        event["system_fingerprint"] = json!("vllm-elsewhere");
    }
    event
}

/// Tokens in the first events, for every number of them: as many as the ids that they list; where none are listed, each event after the
/// first is one, up to the finish reason.
fn tokens(events: &[String]) -> Vec<u64> {
    let mut tokens = vec![0, 0];
    for data in &events[1..] {
        let event: Value = serde_json::from_str(data).expect("a chunk");
        let choice = &event["choices"][0];
        let more = if choice.is_null() { 0 } else { choice["token_ids"].as_array().map_or(1, Vec::len) };
        tokens.push(tokens[tokens.len() - 1] + more as u64);
    }
    tokens
}

struct Recorded {
    file: &'static str,
    family: &'static str,
    counted: Counted,
    request: Value,
    bytes: Vec<u8>,
    whole: Vec<String>,
    ends: Vec<usize>,
    /// The events as another server sends them.
    elsewhere: Vec<String>,
    /// For every number of events: the tokens in them.
    tokens: Vec<u64>,
    /// For every number of events: what they say, the leg that follows them, and what the client is to get in the end.
    cuts: Vec<(Said, Vec<u8>, Vec<String>)>,
}

impl Recorded {
    fn new(file: &'static str, family: &'static str, counted: Counted, extra: &Value) -> Self {
        let bytes = recording(file);
        let mut request = json!({"model": "tiny", "messages": [{"role": "user", "content": "?"}], "stream": true});
        for (key, value) in extra.as_object().expect("an object") {
            request[key] = value.clone();
        }
        let mut whole = data_of(&bytes);
        assert_eq!(whole.pop().as_deref(), Some("[DONE]"), "{file} is a whole answer");
        let text = String::from_utf8(bytes.clone()).expect("text");
        let ends = text.match_indices("\n\n").map(|(at, end)| at + end.len()).collect();
        let elsewhere = whole.iter().map(|data| elsewhere(data).to_string()).collect();
        let tokens = tokens(&whole);
        let cuts = Vec::new();
        let mut recorded = Recorded { file, family, counted, request, bytes, whole, ends, elsewhere, tokens, cuts };
        for cut in 0..=recorded.whole.len() {
            let said = Said::by(&recorded.whole[..cut]);
            let rest = recorded.rest(cut, said.is_nothing());
            let want = recorded.wanted(cut, said.is_finished(), &rest);
            recorded.cuts.push((said, rest, want));
        }
        recorded
    }

    /// The rest after `cut` events, in a leg of its own that counts its own tokens; all of it if nothing of the answer had come.
    fn rest(&self, cut: usize, again: bool) -> Vec<u8> {
        let (from, before) = if again { (1, 0) } else { (cut, self.tokens[cut]) };
        let mut rest = String::new();
        for data in self.elsewhere[..1].iter().chain(&self.elsewhere[from..]) {
            if !data.contains(r#""usage":{"#) {
                rest.push_str(&format!("data: {data}\n\n"));
                continue;
            }
            let mut event: Value = serde_json::from_str(data).expect("a chunk");
            if let Some(usage) = event.get_mut("usage") {
                let count = |usage: &Value, key: &str| usage[key].as_u64().expect("a count");
                let completion = count(usage, "completion_tokens").saturating_sub(before);
                let reasoning = count(&usage["completion_tokens_details"], "reasoning_tokens").saturating_sub(before);
                let prompt = count(usage, "prompt_tokens") + before;
                usage["prompt_tokens"] = prompt.into();
                usage["completion_tokens"] = completion.into();
                usage["total_tokens"] = (prompt + completion).into();
                usage["completion_tokens_details"]["reasoning_tokens"] = reasoning.into();
            }
            rest.push_str(&format!("data: {event}\n\n"));
        }
        rest.push_str("data: [DONE]\n\n");
        rest.into_bytes()
    }

    /// What the client is to get: the recording, but for the fingerprint, which leg 1 had not sent yet, and which nobody sends
    /// where Baton writes the end. Where nothing had been delivered, all is the other server's.
    fn wanted(&self, cut: usize, finished: bool, rest: &[u8]) -> Vec<String> {
        if cut == 0 {
            let mut other = data_of(rest);
            other.pop();
            return other;
        }
        let elsewhere = |data: &String| {
            if !data.contains(r#""system_fingerprint":"#) {
                return data.clone();
            }
            let event: Value = serde_json::from_str(data).expect("a chunk");
            match event["system_fingerprint"].as_str() {
                Some(_) if finished => {
                    data.replace(&format!(r#","system_fingerprint":{}"#, event["system_fingerprint"]), "")
                }
                Some(own) => data.replace(own, "vllm-elsewhere"),
                None => data.clone(),
            }
        };
        self.whole[..cut].iter().cloned().chain(self.whole[cut..].iter().map(elsewhere)).collect()
    }

    fn said(&self, cut: usize) -> &Said {
        &self.cuts[cut].0
    }

    /// Bytes of text in all.
    fn length(&self) -> usize {
        let said = self.said(self.whole.len());
        said.reasoning.len() + said.content.len()
    }

    fn open(&self, sent: &[u8]) -> Run {
        // From text, whether ids are listed or not; `by_ids` goes on from them.
        let resume = Settings { plans: [PlanKind::ChatContinue].into_iter().collect(), ..Settings::default() };
        let policy = Policy { resume, ..Policy::default() };
        let mut run = Run::open(&self.request.to_string(), policy, self.family, "vllm");
        run.feed(sent);
        run
    }

    /// Tries every byte; `check` says whether what the client got is right.
    ///
    /// Of a long recording, a leg 2 is run to its end only where an event ends, and one byte further. At the other bytes the
    /// client has the same and the same is asked of the next engine, so the same would come of it.
    fn at_every_byte(&self, check: impl Fn(&Run, usize, &str)) {
        let mut checked: Option<Run> = None;
        for at in 0..self.bytes.len() {
            let cut = self.ends.partition_point(|end| *end <= at).min(self.whole.len());
            let begun = at - self.ends.get(cut.wrapping_sub(1)).copied().unwrap_or_default();
            let short = self.bytes.len() < SHORT;
            if begun < 2 || short {
                let mut run = self.open(&self.bytes[..at]);
                run.end(LegEnd::Reset);
                run.serve(|_| Reply::Whole(self.cuts[cut].1.clone()));
                check(&run, cut, &format!("{} reset after {at} bytes ({cut} events)", self.file));
                checked = Some(run);
            }
            let Some(run) = checked.as_ref().filter(|_| begun >= 2 || short) else { continue };
            let words = format!("{}, a clean end after {at} bytes ({cut} events)", self.file);
            let mut other = self.open(&self.bytes[..at]);
            other.end(LegEnd::Clean);
            assert_eq!(other.asked(), run.starts.first(), "{words}");
            assert_eq!((other.why, other.is_incomplete()), (run.why, run.is_incomplete()), "{words}");
            let had = if run.starts.is_empty() { &run.log.events[..] } else { &self.whole[..cut] };
            assert_eq!(other.log.events, had, "{words}");
        }
    }

    /// Tries every end of an event; `check` says whether what the client got is right.
    fn at_every_event(&self, check: impl Fn(&Run, usize, &str)) {
        for (number, end) in self.ends.iter().enumerate() {
            let cut = (number + 1).min(self.whole.len());
            let mut run = self.open(&self.bytes[..*end]);
            if number < self.whole.len() {
                run.end(LegEnd::Reset);
            }
            run.serve(|_| Reply::Whole(self.cuts[cut].1.clone()));
            check(&run, cut, &format!("{} after {cut} events", self.file));
        }
    }

    /// Whether the client has ids whose text it has not, or not whole.
    fn is_ahead(&self, cut: usize) -> bool {
        let mut ahead = false;
        for event in self.whole[..cut].iter().filter_map(|data| serde_json::from_str::<Value>(data).ok()) {
            let choice = &event["choices"][0];
            let text = ["content", "reasoning"].iter().filter_map(|key| choice["delta"][key].as_str()).next_back();
            let whole = text.is_some_and(|text| !text.is_empty() && !text.ends_with('\u{fffd}'));
            ahead = !whole && (ahead || choice["token_ids"].as_array().is_some_and(|ids| !ids.is_empty()));
        }
        ahead
    }

    fn assert_whole(&self, run: &Run, cut: usize, at: &str) {
        if self.is_ahead(cut) && !self.said(cut).is_finished() {
            assert!(run.is_incomplete() && run.why == Some("ids_shown"), "{at}: {:?}", run.why);
            assert_eq!((run.starts.len(), &run.log.events[..]), (0, &self.whole[..cut]), "{at}");
            return;
        }
        assert_eq!(run.log.seal, Some(Seal::Finished), "{at}");
        assert_eq!(run.log.events.len(), self.whole.len(), "{at}: {:#?}", run.log.events);
        let said = self.said(cut);
        // Where all the text had come, the next engine says `stop` at once, and one more is asked whether that is true.
        let all_said = said.reasoning.len() + said.content.len() == self.length() && !said.is_nothing();
        let legs = if said.is_finished() { 0 } else { 1 + usize::from(all_said) };
        assert_eq!(run.starts.len(), legs, "{at}");
        let counted = self.counted == Counted::Along || cut == 0;
        for (got, want) in run.log.events.iter().zip(&self.cuts[cut].2).filter(|(got, want)| got != want) {
            let read = |data: &str| -> Value { serde_json::from_str(data).expect("a chunk") };
            let (mut got, mut want) = (read(got), read(want));
            if !counted && want.get("usage").is_some() {
                self.check_usage(&got["usage"].take(), &want["usage"].take(), cut, at);
            }
            // `to_string` keeps the order of the fields: equal byte for byte.
            assert_eq!(got.to_string(), want.to_string(), "{at}");
        }
    }

    fn check_usage(&self, got: &Value, want: &Value, cut: usize, at: &str) {
        let count = |usage: &Value, key: &str| usage[key].as_u64().expect("a count");
        let (said, all) = (self.said(cut), count(want, "completion_tokens"));
        let recovered = |text: &str| estimate(text, &Ratios::default());
        let completion = match self.counted {
            Counted::ById => all,
            _ if said.is_nothing() => all,
            _ => recovered(&said.reasoning) + recovered(&said.content) + all - self.tokens[cut],
        };
        assert_eq!(count(got, "completion_tokens"), completion, "{at}");
        assert_eq!(count(got, "total_tokens"), count(got, "prompt_tokens") + completion, "{at}");
    }
}

/// Recordings of fewer bytes are run to their end at every byte.
const SHORT: usize = 2_000;

fn check(file: &'static str, family: &'static str, counted: Counted, extra: &Value) {
    let recorded = Recorded::new(file, family, counted, extra);
    recorded.at_every_byte(|run, cut, at| recorded.assert_whole(run, cut, at));
}

#[test]
fn an_answer_that_stops() {
    check("content", "no_thinking", Counted::NotAsked, &json!({}));
}

#[test]
fn an_answer_that_is_itself_the_rest_of_one() {
    check("continued", "no_thinking", Counted::NotAsked, &json!({"return_token_ids": true}));
}

#[test]
fn thinking_with_usage_at_the_end() {
    let extra = json!({"stream_options": {"include_usage": true}});
    check("include_usage", "default", Counted::Estimated, &extra);
}

#[test]
fn thinking_with_usage_in_every_event() {
    let extra = json!({"stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    check("continuous_usage", "default", Counted::Along, &extra);
}

#[test]
fn thinking_with_token_ids() {
    let extra = json!({"stream_options": {"include_usage": true}, "return_token_ids": true});
    check("token_ids", "default", Counted::ById, &extra);
}

#[test]
fn a_story_with_its_thinking_at_every_event() {
    let extra = json!({"stream_options": {"include_usage": true}, "return_token_ids": true});
    let recorded = Recorded::new("story_token_ids", "default", Counted::ById, &extra);
    recorded.at_every_event(|run, cut, at| recorded.assert_whole(run, cut, at));
}

#[test]
fn the_end_of_thinking_in_an_event_with_the_answer() {
    let extra = json!({"stream_options": {"include_usage": true}, "return_token_ids": true});
    check("step_in_one_event", "default", Counted::ById, &extra);
}

#[test]
fn thinking_of_which_a_part_was_withheld() {
    let extra = json!({"stream_options": {"include_usage": true}, "return_token_ids": true});
    check("held_back_mark", "default", Counted::ById, &extra);
}

#[test]
fn many_scripts_with_token_ids() {
    check("token_ids_many_scripts", "no_thinking", Counted::NotAsked, &json!({"return_token_ids": true}));
}

#[test]
fn an_answer_with_log_probabilities_is_passed_on_and_never_continued() {
    let recorded = Recorded::new("logprobs", "no_thinking", Counted::NotAsked, &json!({"logprobs": true}));
    recorded.at_every_byte(|run, cut, at| {
        assert_eq!((run.starts.len(), &run.log.events[..]), (0, &recorded.whole[..cut]), "{at}");
        assert_eq!(run.log.seal == Some(Seal::Finished), recorded.said(cut).is_finished(), "{at}");
    });
}

#[test]
fn a_tool_call_is_asked_for_again_only_until_it_is_shown() {
    let extra = json!({"tools": [{"type": "function", "function": {"name": "get_weather"}}], "return_token_ids": true,
        "stream_options": {"include_usage": true}});
    let recorded = Recorded::new("tool_call", "no_thinking", Counted::ById, &extra);
    recorded.at_every_byte(|run, cut, at| {
        let said = recorded.said(cut);
        if said.is_nothing() && recorded.is_ahead(cut) {
            assert!(run.is_incomplete() && run.why == Some("ids_shown"), "{at}: {:?}", run.why);
        } else if said.is_nothing() {
            assert_eq!((&run.log.seal, run.last_plan()), (&Some(Seal::Finished), Some("again")), "{at}");
            assert_eq!(Said::by(&run.log.events), *recorded.said(recorded.whole.len()), "{at}");
        } else if said.is_finished() {
            recorded.assert_whole(run, cut, at);
        } else {
            assert!(run.is_incomplete() && run.why == Some("tool_call_shown"), "{at}: {:?}", run.why);
            assert_eq!((run.starts.len(), &run.log.events[..]), (0, &recorded.whole[..cut]), "{at}");
        }
    });
}

#[test]
fn an_abort_and_an_error_event_as_recorded_are_followed_by_another_engine() {
    let rest = Recorded::new("include_usage", "default", Counted::NotAsked, &json!({}));
    for (file, plan) in [("abort", "chat-continue"), ("engine_killed", "again")] {
        let broken = data_of(&recording(file));
        let mut run = Run::open(&rest.request.to_string(), Policy::default(), "default", "vllm");
        run.feed(&recording(file));
        run.serve(|_| Reply::Whole(rest.rest(0, true)));
        assert_eq!((&run.log.seal, run.last_plan()), (&Some(Seal::Finished), Some(plan)), "{file}");
        let (before, after) = (Said::by(&broken), rest.said(rest.whole.len()));
        let got = Said::by(&run.log.events);
        assert_eq!(got.reasoning, before.reasoning + &after.reasoning, "{file}");
        assert_eq!(got.finish, after.finish, "{file}");
    }
}

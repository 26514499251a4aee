//! Completions recorded with vLLM 0.32, cut behind and inside every event and continued: by ids, from text, and from nothing.

use serde_json::{Value, json};

use super::*;
use crate::proto::chat::fixtures::{COMPLETION, COMPLETION_IDS, COMPLETION_STOP, COMPLETION_USAGE, events};
use crate::proto::resume::Question;

fn completion_bench(fields: &str) -> Bench {
    let request = format!(r#"{{"model":"tiny","prompt":"P","stream":true,"stop":["zzz"]{fields}}}"#);
    let request = ChatRequest::parse_completion(request.as_bytes()).unwrap();
    let (family, engine) = (Family::named("gpt_oss").0, Engine::named("vllm").0);
    let relay = Relay::new(Some(request), Policy::default(), family, engine, "rid".to_owned());
    let mut bench = Bench { relay, log: Log::default(), now: Duration::ZERO, actions: Vec::new() };
    bench.opened();
    bench
}

fn body(start: &LegStart) -> Value {
    serde_json::from_slice(start.work.body()).unwrap()
}

fn read(data: &str) -> Value {
    serde_json::from_str(data).unwrap()
}

/// All text of these events.
fn text_of(events: &[String]) -> String {
    let text = |data: &String| read(data)["choices"][0]["text"].as_str().unwrap_or_default().to_owned();
    events.iter().map(text).collect()
}

/// How many whole events there are in the first bytes of a recording.
fn whole_events(sse: &str, bytes: usize) -> usize {
    sse[..bytes].matches("\n\n").count()
}

/// Cuts behind every event: at its end, just before and just behind that, and in the middle of the next one. Those in between come
/// to the same, which the simulation shows for chats.
fn cuts(sse: &str) -> Vec<usize> {
    let mut cuts = Vec::new();
    let (mut from, tail) = (0, sse.find("data: [DONE]").unwrap());
    while from < tail {
        let next = from + sse[from..].find("\n\n").unwrap() + 2;
        cuts.extend([from, from + 1, from.midpoint(next), next - 1]);
        from = next;
    }
    assert!(cuts.iter().all(|at| sse.is_char_boundary(*at)), "what is fed here is text");
    cuts
}

/// The tokens of the recording with ids, as the model's tokenizer has them.
const VOCABULARY: [(u32, &[u8]); 14] = [
    (389, b" on"),
    (279, b" the"),
    (3691, b" black"),
    (3015, b" water"),
    (264, b" a"),
    (8171, b" boy"),
    (6941, b" named"),
    (58230, b" \xE5\xB0"),
    (237, b"\x8F"),
    (30858, "明".as_bytes()),
    (6617, b" heard"),
    (432, b" it"),
    (11, b","),
    (6519, b" turned"),
];

fn spelled(ids: &[Value]) -> Vec<u8> {
    let spelling = |id: &Value| VOCABULARY.iter().find(|(known, _)| json!(known) == *id).unwrap().1;
    ids.iter().flat_map(|id| spelling(id).to_vec()).collect()
}

/// What the engine's `/detokenize` says.
fn spell(question: &Question) -> Vec<u8> {
    let body: Value = serde_json::from_slice(&question.body).unwrap();
    let bytes = spelled(body["tokens"].as_array().unwrap());
    json!({"prompt": String::from_utf8_lossy(&bytes)}).to_string().into_bytes()
}

/// Another server's answer to a prompt of ids: the tokens that are left, two characters withheld for the stop string, and halves of
/// characters too.
fn leg_by_ids(prompt: &[Value], kept: usize) -> Vec<String> {
    let left: Vec<Value> = VOCABULARY[kept..].iter().map(|(id, _)| json!(id)).collect();
    let mut sent = 0;
    let mut sse = Vec::new();
    for at in 1..=left.len() {
        let last = at == left.len();
        let bytes = spelled(&left[..at]);
        let whole = std::str::from_utf8(&bytes).map_or_else(|error| error.valid_up_to(), str::len);
        let text = std::str::from_utf8(&bytes[..whole]).unwrap();
        let held = if last { text.len() } else { text.char_indices().rev().nth(1).map_or(0, |(at, _)| at) };
        let shown = held.max(sent);
        let (finish, first) = (if last { json!("length") } else { Value::Null }, at == 1);
        let choice = json!({"index": 0, "text": &text[sent..shown], "logprobs": null, "finish_reason": finish, "stop_reason": null,
            "prompt_token_ids": if first { json!(prompt) } else { Value::Null }, "token_ids": [left[at - 1]]});
        sent = shown;
        sse.push(
            json!({"id": "cmpl-two", "object": "text_completion", "created": 2, "model": "tiny", "choices": [choice]}),
        );
    }
    let (prompt, completion) = (prompt.len(), left.len());
    let usage = json!({"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion});
    sse.push(json!({"id": "cmpl-two", "object": "text_completion", "created": 2, "model": "tiny", "choices": [], "usage": usage,
        "system_fingerprint": "other"}));
    sse.iter().map(Value::to_string).collect()
}

/// Lets the relay ask and open legs until the stream has ended, and says by which plans.
fn serve_by_ids(bench: &mut Bench, prompt: &Value) -> Vec<&'static str> {
    let mut plans = Vec::new();
    while bench.log.seal.is_none() {
        let actions = std::mem::take(&mut bench.actions);
        for action in actions {
            match action {
                Action::Ask(question) => bench.relay.handle_answer(bench.now, Ok(spell(&question)), &mut bench.log),
                Action::Start(start) => {
                    plans.push(start.plan);
                    let body = body(&start);
                    let own = body["prompt"].as_array().map_or(prompt, |_| &body["prompt"]).as_array().unwrap();
                    let kept = own.len() - prompt.as_array().unwrap().len();
                    assert_eq!(body["max_tokens"], 14 - kept);
                    bench.opened();
                    leg_by_ids(own, kept).iter().for_each(|data| bench.send(&[data]));
                    bench.send(&["[DONE]"]);
                }
                Action::Abort | Action::Note(_) => {}
            }
        }
        bench.act();
    }
    plans
}

#[test]
fn an_answer_with_ids_is_whole_to_the_token_from_every_event() {
    let whole: Vec<String> = events(COMPLETION_IDS).filter(|data| *data != "[DONE]").map(str::to_owned).collect();
    let prompt = read(&whole[0])["choices"][0]["prompt_token_ids"].clone();
    let (id, created) = (read(&whole[0])["id"].clone(), read(&whole[0])["created"].clone());
    for at in cuts(COMPLETION_IDS) {
        let mut bench = completion_bench(r#","max_tokens":14,"stream_options":{"include_usage":true}"#);
        bench.relay.hides_ids = true;
        bench.raw(&COMPLETION_IDS[..at]);
        bench.cut();
        let had = whole_events(COMPLETION_IDS, at);
        let plans = serve_by_ids(&mut bench, &prompt);
        let expected = match had {
            // White space alone is asked for once more.
            0 | 1 => vec!["again"],
            // The finish reason has come.
            14.. => vec![],
            _ => vec!["token-exact"],
        };
        assert_eq!(plans, expected, "cut at {at}, after {had} events");
        assert_eq!(bench.log.seal, Some(Seal::Finished), "cut at {at}");
        assert_eq!(text_of(&bench.log.events), text_of(&whole), "cut at {at}");
        let seen: Vec<_> = bench.log.events.iter().map(|data| read(data)).collect();
        for (number, event) in seen.iter().enumerate().filter(|_| had > 0) {
            assert_eq!((&event["id"], &event["created"]), (&id, &created), "cut at {at}: event {number}");
            let choice = &event["choices"][0];
            assert!(choice["prompt_token_ids"].is_null() && choice["token_ids"].is_null(), "cut at {at}: {event}");
        }
        let ends: Vec<_> = seen.iter().filter_map(|event| event["choices"][0]["finish_reason"].as_str()).collect();
        assert_eq!(ends, ["length"], "cut at {at}");
        let usage = &read(&whole[whole.len() - 1])["usage"];
        assert_eq!(seen[seen.len() - 1]["usage"].to_string(), usage.to_string(), "cut at {at}");
    }
}

#[test]
fn an_answer_is_continued_from_text_at_every_event() {
    for (sse, fields) in [
        (COMPLETION, r#","max_tokens":14"#),
        (COMPLETION_STOP, r#","max_tokens":40"#),
        (COMPLETION_USAGE, r#","max_tokens":5,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#),
    ] {
        // This client has not asked for usage where it was not counted along.
        let counted = sse == COMPLETION_USAGE;
        let shown = |data: &&str| *data != "[DONE]" && (counted || !data.contains(r#""choices":[]"#));
        let whole: Vec<&str> = events(sse).filter(shown).collect();
        for at in cuts(sse) {
            let mut bench = completion_bench(fields);
            bench.raw(&sse[..at]);
            bench.cut();
            let had = whole_events(sse, at);
            let before =
                text_of(&whole[..had.min(whole.len())].iter().map(|&data| data.to_owned()).collect::<Vec<_>>());
            if bench.log.seal.is_none() {
                let start = bench.next_leg();
                let (from, prompt) = match before.trim() {
                    "" => (0, "P".to_owned()),
                    _ => (had, format!("P{before}")),
                };
                assert_eq!(start.plan, if from == 0 { "again" } else { "chat-continue" }, "cut at {at}");
                assert_eq!(body(&start)["prompt"], prompt, "cut at {at}");
                for data in &whole[from..] {
                    bench.send(&[&elsewhere(data, from as u64)]);
                }
                bench.send(&["[DONE]"]);
            }
            assert_eq!(bench.log.seal, Some(Seal::Finished), "cut at {at}");
            if had == 0 {
                assert_eq!(
                    text_of(&bench.log.events),
                    text_of(&whole.iter().map(|&data| data.to_owned()).collect::<Vec<_>>())
                );
                continue;
            }
            // What is asked for again may begin with another event without text.
            let says = |data: &&str| !data.contains(r#""text":"","logprobs":null,"finish_reason":null"#);
            // The build of the engine comes with the last event, which Baton wrote where leg 1 had not come to it.
            let nameless = |data: &str| {
                let mut event = read(data);
                event.as_object_mut().unwrap().shift_remove("system_fingerprint");
                event.to_string()
            };
            let seen: Vec<_> = bench.log.events.iter().map(|data| &**data).filter(says).map(nameless).collect();
            let expected: Vec<_> = whole.iter().copied().filter(says).map(nameless).collect();
            assert_eq!(seen, expected, "cut at {at}");
        }
    }
}

/// An event as another server sends it, whose prompt has `before` more tokens.
fn elsewhere(data: &str, before: u64) -> String {
    let mut event = read(data);
    event["id"] = json!("cmpl-two");
    event["created"] = json!(2);
    if let Some(usage) = event.get_mut("usage") {
        usage["prompt_tokens"] = json!(usage["prompt_tokens"].as_u64().unwrap() + before);
        usage["completion_tokens"] = json!(usage["completion_tokens"].as_u64().unwrap() - before);
    }
    event.to_string()
}

#[test]
fn an_abort_is_continued_and_an_error_at_the_start_is_the_answer() {
    let mut bench = completion_bench("");
    let first = events(COMPLETION_STOP).nth(2).unwrap();
    let abort = first.replace(r#""finish_reason":null"#, r#""finish_reason":"abort""#);
    bench.send(&[first, &abort.replace("\"text\":\"The u", "\"text\":\""), "[DONE]"]);
    assert_eq!(bench.next_leg().plan, "chat-continue");

    let error = r#"{"error": {"message": "Token id 9999999 is out of vocabulary", "type": "BadRequestError", "param": null, "code": 400}}"#;
    let mut bench = completion_bench("");
    bench.send(&[error]);
    assert_eq!((bench.starts().len(), &bench.log.events[..]), (0, &[error.to_owned()][..]));
}

#[test]
fn a_budget_that_was_not_sent_and_is_spent_ends_the_answer_in_the_completions_form() {
    let usage = r#","stream_options":{"include_usage":true}"#;
    let mut bench = completion_bench(usage);
    bench.relay.hides_ids = true;
    bench.relay.request.as_mut().unwrap().remove("stop");
    let event = |at: u32| {
        let prompt = if at == 0 { "[7,8]" } else { "null" };
        format!(
            r#"{{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[{{"index":0,"text":" on","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":{prompt},"token_ids":[389]}}]}}"#
        )
    };
    (0..16).for_each(|at| bench.send(&[&event(at)]));
    bench.cut();
    while let Some(question) = bench.actions.iter().find_map(|action| match action {
        Action::Ask(question) => Some(question.clone()),
        _ => None,
    }) {
        bench.actions.clear();
        bench.relay.handle_answer(bench.now, Ok(spell(&question)), &mut bench.log);
        bench.act();
    }
    assert_eq!(bench.log.seal, Some(Seal::Finished));
    let head = r#"{"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":["#;
    let end = r#"{"index":0,"text":"","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":null,"token_ids":null}"#;
    let counts = r#""usage":{"prompt_tokens":2,"total_tokens":18,"completion_tokens":16}"#;
    assert_eq!(bench.log.events[16..], [format!("{head}{end}]}}"), format!("{head}],{counts}}}")]);
}

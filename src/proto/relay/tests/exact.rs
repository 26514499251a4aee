//! Continuing by token ids: where the delivered text ends, the echo, and what is dropped.

use serde_json::{Value, json};

use super::*;
use crate::proto::resume::{Abilities, PlanKind, PlanSet, Question, Settings, Version};

/// The tokens of the tests, by id. Real tokenizers have such: a blank and the first character of a mark, halves of characters.
const VOCABULARY: &[(u32, &[u8])] = &[
    (10, b"Let"),
    (11, b" me"),
    (12, b" think"),
    (13, b" <"),
    (14, b"b>"),
    (20, b"</think>"),
    (21, b"\n\n"),
    (30, b"The"),
    (31, b" answer"),
    (32, b" is"),
    (33, b" 42"),
    (34, b"\xF0\x9F"),
    (35, b"\x8C\x8A"),
    (40, b"<tool_call>"),
    (41, b"\n{\"name\""),
];

/// What the engine's `/detokenize` says, and its `/tokenize` of a mark.
fn spell(question: &Question) -> Vec<u8> {
    let body: Value = serde_json::from_slice(&question.body).unwrap();
    if question.path == "/tokenize" {
        let mark = body["prompt"].as_str().unwrap().as_bytes();
        let id = VOCABULARY.iter().find(|(_, spelling)| *spelling == mark).unwrap().0;
        return json!({"count": 1, "tokens": [id]}).to_string().into_bytes();
    }
    assert_eq!(question.path, "/detokenize");
    let spelling = |id: &Value| VOCABULARY.iter().find(|(known, _)| Some(u64::from(*known)) == id.as_u64()).unwrap().1;
    let bytes: Vec<u8> = body["tokens"].as_array().unwrap().iter().flat_map(|id| spelling(id).to_vec()).collect();
    json!({"prompt": String::from_utf8_lossy(&bytes)}).to_string().into_bytes()
}

fn event(id: &str, delta: &str, ids: &str) -> String {
    format!(
        r#"{{"id":"{id}","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":null,"token_ids":{ids}}}]}}"#
    )
}

fn opening(id: &str, prompt: &str) -> String {
    format!(
        r#"{{"id":"{id}","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":{prompt},"prompt_text":null}}"#
    )
}

fn thought(id: &str, text: &str, ids: &str) -> String {
    event(id, &format!(r#"{{"reasoning":"{text}"}}"#), ids)
}

fn said(id: &str, text: &str, ids: &str) -> String {
    event(id, &format!(r#"{{"content":"{text}"}}"#), ids)
}

fn ended(id: &str, reason: &str, ids: &str) -> String {
    event(id, "{}", ids).replace(r#""finish_reason":null"#, &format!(r#""finish_reason":"{reason}""#))
}

/// The event as the client is to see it.
fn plain(event: &str) -> String {
    let ids = |text: &str, key: &str| match text.split_once(key) {
        Some((before, list)) => format!("{before}{key}null{}", list.split_once(']').unwrap().1),
        None => text.to_owned(),
    };
    let event = if event.contains("\"token_ids\":[") { ids(event, "\"token_ids\":") } else { event.to_owned() };
    if event.contains("\"prompt_token_ids\":[") { ids(&event, "\"prompt_token_ids\":") } else { event }
}

fn exact_bench(request: &str) -> Bench {
    let mut bench = bench_for(request, Policy::default(), "qwen3", "vllm");
    bench.relay.hides_ids = true;
    bench
}

impl Bench {
    fn questions(&mut self) -> Vec<Question> {
        let actions = std::mem::take(&mut self.actions);
        let (asked, rest): (Vec<_>, Vec<_>) = actions.into_iter().partition(|action| matches!(action, Action::Ask(_)));
        self.actions = rest;
        asked
            .into_iter()
            .filter_map(|action| if let Action::Ask(question) = action { Some(question) } else { None })
            .collect()
    }

    /// Answers all questions by the vocabulary, and gives how many there were.
    fn answer_all(&mut self) -> usize {
        let mut count = 0;
        loop {
            let asked = self.questions();
            if asked.is_empty() {
                return count;
            }
            for question in asked {
                count += 1;
                self.answer(Ok(spell(&question)));
            }
        }
    }

    fn answer(&mut self, answer: Result<Vec<u8>, Refusal>) {
        self.relay.handle_answer(self.now, answer, &mut self.log);
        self.act();
    }
}

fn body(start: &LegStart) -> Value {
    serde_json::from_slice(start.work.body()).unwrap()
}

fn ids_of(start: &LegStart) -> Value {
    body(start)["kv_transfer_params"]["prompt_token_ids"].clone()
}

const PROMPT: &str = "[1,2,3]";

#[test]
fn ids_and_the_events_that_have_nothing_else_are_taken_out() {
    let mut bench = exact_bench(REQUEST);
    let events = [
        opening("1", PROMPT),
        thought("1", "Let", "[10]"),
        thought("1", " me", "[11]"),
        event("1", "{}", "[20]"),
        said("1", "\\n\\n", "[21]"),
        said("1", "The", "[30]"),
        said("1", " answer", "[31]"),
        ended("1", "stop", "[99]"),
    ];
    bench.send(&events.iter().map(String::as_str).collect::<Vec<_>>());
    bench.send(&["[DONE]"]);
    let shown: Vec<_> = events.iter().enumerate().filter(|(at, _)| *at != 3).map(|(_, event)| plain(event)).collect();
    assert_eq!(bench.log.events, shown);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
    let ids = bench.relay.partial().ids().unwrap();
    assert_eq!((ids.prompt.to_json(), ids.answer.to_json()), (PROMPT.to_owned(), "[10,11,20,21,30,31,99]".to_owned()));
}

#[test]
fn a_cut_is_continued_from_the_last_token_in_thinking_too() {
    for (events, ids) in [
        (vec![thought("1", "Let", "[10]")], "[1,2,3,10]"),
        (vec![thought("1", "Let", "[10]"), thought("1", " me", "[11]")], "[1,2,3,10,11]"),
        (vec![thought("1", "Let", "[10]"), thought("1", " me think", "[11,12]")], "[1,2,3,10,11,12]"),
        (
            vec![
                thought("1", "Let", "[10]"),
                event("1", "{}", "[20]"),
                said("1", "\\n\\n", "[21]"),
                said("1", "The", "[30]"),
            ],
            "[1,2,3,10,20,21,30]",
        ),
        (vec![said("1", "The", "[30]"), said("1", " answer", "[31]")], "[1,2,3,30,31]"),
    ] {
        let mut bench = exact_bench(REQUEST);
        bench.send(&[&opening("1", PROMPT)]);
        bench.send(&events.iter().map(String::as_str).collect::<Vec<_>>());
        bench.cut();
        assert_eq!(bench.answer_all(), 1, "{ids}");
        let start = bench.next_leg();
        assert_eq!((start.leg, start.plan), (2, "token-exact"), "{ids}");
        assert_eq!(ids_of(&start).to_string(), ids);
        assert_eq!(body(&start)["return_token_ids"], true);
        assert_eq!(body(&start)["messages"], json!([{"role": "user", "content": "Hi"}]));
        let before = bench.log.events.len();
        let rest = [said("2", " is", "[32]"), said("2", " 42", "[33]"), ended("2", "stop", "[99]")];
        bench.send(&[&opening("2", ids)]);
        bench.send(&rest.iter().map(String::as_str).collect::<Vec<_>>());
        bench.send(&["[DONE]"]);
        let shown: Vec<_> = rest.iter().map(|event| plain(event).replace(r#""id":"2""#, r#""id":"1""#)).collect();
        assert_eq!(bench.log.events[before..], shown);
        assert_eq!(bench.log.seal, Some(Seal::Finished));
    }
}

#[test]
fn ids_ahead_of_the_text_are_generated_again() {
    for (events, ids, questions) in [
        // The end of thinking: nothing of the answer has been shown.
        (vec![thought("1", "Let", "[10]"), event("1", "{}", "[20]")], "[1,2,3,10]", 1),
        // Half a character.
        (vec![said("1", "The", "[30]"), event("1", "{}", "[34]")], "[1,2,3,30]", 1),
        // A tool call that nobody has seen.
        (vec![said("1", "The", "[30]"), event("1", "{}", "[40]"), event("1", "{}", "[41]")], "[1,2,3,30]", 1),
    ] {
        let mut bench = exact_bench(REQUEST);
        bench.send(&[&opening("1", PROMPT)]);
        bench.send(&events.iter().map(String::as_str).collect::<Vec<_>>());
        bench.cut();
        assert_eq!(bench.answer_all(), questions, "{ids}");
        assert_eq!(ids_of(&bench.next_leg()).to_string(), ids);
    }
}

#[test]
fn text_of_a_token_that_came_in_part_is_dropped_when_it_comes_whole() {
    let mut bench = exact_bench(REQUEST);
    // ` <` may be the beginning of a mark, so only its blank was sent.
    bench.send(&[&opening("1", PROMPT), &thought("1", "Let", "[10]"), &thought("1", " ", "[13]")]);
    bench.cut();
    assert_eq!(bench.answer_all(), 2);
    let start = bench.next_leg();
    assert_eq!(ids_of(&start).to_string(), "[1,2,3,10]");
    bench.send(&[&opening("2", "[1,2,3,10]"), &thought("2", " ", "[13]"), &thought("2", "<b>", "[14]")]);
    assert_eq!(bench.log.events.last().unwrap(), &plain(&thought("1", "<b>", "[14]")));
    let texts = &bench.relay.partial().first().unwrap().reasoning;
    assert_eq!(texts, "Let <b>");
    let ids = bench.relay.partial().ids().unwrap();
    assert_eq!(ids.answer.to_json(), "[10,13,14]");
}

#[test]
fn another_text_than_the_one_to_be_repeated_falls_to_the_next_plan() {
    let mut bench = exact_bench(REQUEST);
    bench.send(&[&opening("1", PROMPT), &said("1", "The", "[30]"), &said("1", " ", "[13]")]);
    bench.cut();
    bench.answer_all();
    bench.next_leg();
    bench.send(&[&opening("2", "[1,2,3,30]"), &said("2", "b>", "[14]")]);
    let start = bench.next_leg();
    assert_eq!((start.leg, start.attempt, start.plan), (2, 1, "chat-continue"));
    assert_eq!(body(&start)["messages"][1]["content"], "The ");
    let refused: Vec<_> = bench.notes().into_iter().filter(|note| matches!(note, Note::PlanRefused { .. })).collect();
    assert!(refused.is_empty(), "it was the text, not the plan");
}

#[test]
fn a_leg_that_does_not_repeat_the_ids_is_not_believed() {
    for echo in ["null", "[1,2,3]", "[1,2,3,30,31]", "[9]"] {
        let mut bench = exact_bench(REQUEST);
        bench.send(&[&opening("1", PROMPT), &said("1", "The", "[30]")]);
        bench.cut();
        bench.answer_all();
        bench.next_leg();
        let before = bench.log.events.len();
        bench.send(&[&opening("2", echo)]);
        assert!(bench.actions.contains(&Action::Note(Note::PlanRefused { kind: PlanKind::TokenExact })), "{echo}");
        let start = bench.next_leg();
        assert_eq!((start.leg, start.attempt, start.plan), (2, 1, "chat-continue"), "{echo}");
        assert_eq!(bench.log.events.len(), before, "nothing of it was passed on");
    }
}

#[test]
fn budgets_lose_exactly_the_tokens_that_are_kept() {
    let request = REQUEST.replace(
        r#""stream":true"#,
        r#""stream":true,"max_tokens":10,"min_tokens":6,"thinking_token_budget":5,"kv_transfer_params":{"own":1}"#,
    );
    let mut bench = exact_bench(&request);
    bench.send(&[&opening("1", PROMPT), &thought("1", "Let", "[10]"), &thought("1", " me", "[11]")]);
    bench.send(&[&event("1", "{}", "[20]"), &said("1", "The", "[30]"), &event("1", "{}", "[34]")]);
    bench.cut();
    bench.answer_all();
    let body = body(&bench.next_leg());
    assert_eq!(body["max_tokens"], 6);
    assert_eq!(body["min_tokens"], 2);
    assert_eq!(body["thinking_token_budget"], 5, "the engine counts the thinking in the prompt");
    assert_eq!(body["kv_transfer_params"], json!({"own": 1, "prompt_token_ids": [1, 2, 3, 10, 11, 20, 30]}));
}

#[test]
fn a_budget_spent_to_the_last_token_is_finished_here() {
    let request = REQUEST.replace(r#""stream":true"#, r#""stream":true,"max_tokens":2"#);
    let mut bench = exact_bench(&request);
    bench.send(&[&opening("1", PROMPT), &said("1", "The", "[30]"), &said("1", " answer", "[31]")]);
    bench.cut();
    bench.answer_all();
    assert_eq!(bench.log.seal, Some(Seal::Finished));
    assert!(bench.log.events.last().unwrap().contains(r#""finish_reason":"length""#));
}

#[test]
fn usage_is_that_of_an_answer_without_a_cut() {
    let request = REQUEST.replace(r#""stream":true"#, r#""stream":true,"stream_options":{"include_usage":true}"#);
    let usage = |id: &str, prompt: u64, completion: u64, reasoning: u64| {
        format!(
            r#"{{"id":"{id}","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{{"prompt_tokens":{prompt},"total_tokens":{},"completion_tokens":{completion},"completion_tokens_details":{{"reasoning_tokens":{reasoning}}}}}}}"#,
            prompt + completion
        )
    };
    for (events, kept, counted, whole) in [
        // Cut in thinking: the engine counts the rest of the thinking.
        (vec![thought("1", "Let", "[10]"), thought("1", " me", "[11]")], 2, (4, 1), (6, 3)),
        // Behind it the engine counts all of leg 2 as thinking (vLLM 0.32), which had none.
        (vec![thought("1", "Let", "[10]"), event("1", "{}", "[20]"), said("1", "The", "[30]")], 3, (4, 4), (7, 1)),
    ] {
        let mut bench = exact_bench(&request);
        bench.send(&[&opening("1", PROMPT)]);
        bench.send(&events.iter().map(String::as_str).collect::<Vec<_>>());
        bench.cut();
        bench.answer_all();
        let ids = ids_of(&bench.next_leg());
        bench.send(&[&opening("2", &ids.to_string())]);
        if counted.1 == 1 {
            bench.send(&[&thought("2", " think", "[12]"), &event("2", "{}", "[20]")]);
        }
        bench.send(&[&said("2", " is", "[32]"), &ended("2", "stop", "[99]")]);
        bench.send(&[&usage("2", 3 + kept, counted.0, counted.1), "[DONE]"]);
        assert_eq!(bench.log.events.last().unwrap(), &usage("1", 3, whole.0, whole.1));
    }
}

#[test]
fn thinking_that_ends_inside_an_event_is_counted_up_to_its_mark() {
    let request = REQUEST.replace(r#""stream":true"#, r#""stream":true,"stream_options":{"include_usage":true}"#);
    let mixed = event("1", r#"{"content":"\n\nThe","reasoning":" think"}"#, "[12,20,21,30]");
    for (events, thinking) in [
        (vec![thought("1", "Let me", "[10,11]"), mixed.clone()], 3),
        (vec![thought("1", "Let", "[10]"), mixed], 2),
        (vec![thought("1", "Let me", "[10,11,20]"), said("1", "\\n\\n", "[21]"), said("1", "The", "[30]")], 2),
        (vec![thought("1", "Let me", "[10,11]"), event("1", "{}", "[20]"), said("1", "\\n\\nThe", "[21,30]")], 2),
    ] {
        let mut bench = exact_bench(&request);
        bench.send(&[&opening("1", PROMPT)]);
        bench.send(&events.iter().map(String::as_str).collect::<Vec<_>>());
        bench.cut();
        assert_eq!(bench.answer_all(), 2, "which token ends thinking, and what the ids are: {events:?}");
        let ids = ids_of(&bench.next_leg());
        let usage = r#"{"id":"2","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":9,"total_tokens":11,"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":2}}}"#;
        bench.send(&[&opening("2", &ids.to_string()), &said("2", " is", "[32]"), &ended("2", "stop", "[99]"), usage]);
        let last = bench.log.events.last().unwrap();
        assert!(last.contains(&format!(r#""reasoning_tokens":{thinking}"#)), "{last}");
    }
    // Who cannot say, need not.
    let mut bench = exact_bench(&request);
    bench.send(&[&opening("1", PROMPT), &thought("1", "Let me", "[10,11]")]);
    bench.cut();
    bench.questions();
    bench.answer(Err(Refusal::Status { status: 404, body: String::new() }));
    assert_eq!(bench.answer_all(), 1);
    assert_eq!(bench.next_leg().plan, "token-exact");
}

#[test]
fn legs_follow_each_other_by_ids_for_as_long_as_allowed() {
    let mut bench = bench_for(REQUEST, Policy { max_legs: 8, ..Policy::default() }, "qwen3", "vllm");
    bench.relay.hides_ids = true;
    bench.send(&[&opening("1", PROMPT), &said("1", "The", "[30]")]);
    let mut ids = vec![1, 2, 3, 30];
    for leg in 2..=8 {
        bench.cut();
        bench.answer_all();
        let start = bench.next_leg();
        assert_eq!((start.leg, start.plan), (leg, "token-exact"));
        assert_eq!(ids_of(&start), json!(ids));
        bench.send(&[&opening("x", &json!(ids).to_string()), &said("x", " is", "[32]")]);
        ids.push(32);
    }
    bench.cut();
    assert_eq!(bench.reason(), "reset");
    assert_eq!(bench.relay.partial().first().unwrap().content, format!("The{}", " is".repeat(7)));
}

#[test]
fn an_engine_that_cannot_spell_the_ids_gets_the_next_plan() {
    let status = |status| Err(Refusal::Status { status, body: String::new() });
    let of_model = r#"{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","code":404}}"#;
    for (answer, kept) in [
        (status(404), true),
        (status(405), true),
        (status(403), false),
        (Err(Refusal::Status { status: 404, body: of_model.to_owned() }), false),
        (status(400), false),
        (Ok(b"garbage".to_vec()), false),
        (Ok(br#"{"prompt":"something else"}"#.to_vec()), false),
    ] {
        let mut bench = exact_bench(REQUEST);
        bench.send(&[&opening("1", PROMPT), &said("1", "The", "[30]")]);
        bench.cut();
        assert_eq!(bench.questions().len(), 1);
        bench.answer(answer);
        let remembered = bench.actions.contains(&Action::Note(Note::PlanRefused { kind: PlanKind::TokenExact }));
        assert_eq!(remembered, kept);
        let start = bench.next_leg();
        assert_eq!((start.leg, start.attempt, start.plan), (2, 1, "chat-continue"));
    }
}

#[test]
fn an_engine_that_does_not_answer_is_a_failed_try() {
    let mut bench = exact_bench(REQUEST);
    bench.send(&[&opening("1", PROMPT), &said("1", "The", "[30]")]);
    bench.cut();
    bench.questions();
    bench.answer(Err(Refusal::Unreachable("down".to_owned())));
    assert_eq!(bench.answer_all(), 1, "asked again, at once");
    assert_eq!(bench.next_leg().attempt, 2);
    let mut silent = exact_bench(REQUEST);
    silent.send(&[&opening("1", PROMPT), &said("1", "The", "[30]")]);
    silent.cut();
    silent.questions();
    silent.wait(5 * S);
    assert_eq!(silent.answer_all(), 1);
    assert_eq!(silent.next_leg().attempt, 2);
}

#[test]
fn where_nobody_answers_at_all_a_plan_that_need_not_ask_is_the_last_try() {
    for hangs in [false, true] {
        let mut bench = exact_bench(REQUEST);
        bench.send(&[&opening("1", PROMPT), &said("1", "The", "[30]")]);
        bench.cut();
        for _ in 0..3 {
            assert_eq!(bench.questions().len(), 1);
            match hangs {
                true => bench.wait(5 * S),
                false => bench.answer(Err(Refusal::Status { status: 503, body: String::new() })),
            }
            bench.wait(S); // the pause before the third try
        }
        let start = bench.next_leg();
        assert_eq!((start.attempt, start.plan), (3, "chat-continue"));
        assert!(!bench.notes().iter().any(|note| matches!(note, Note::PlanRefused { .. })));
    }
}

#[test]
fn several_requests_that_fail_make_way_for_one_with_their_last_try() {
    for status in [500, 503] {
        let plans = [PlanKind::RenderGenerate, PlanKind::ChatContinue].into_iter().collect();
        let resume = Settings { plans, render: true, ..Settings::default() };
        let mut bench = bench_for(REQUEST, Policy { resume, ..Policy::default() }, "qwen3", "vllm");
        bench.send(&[&opening("1", PROMPT), &said("1", "The", "[30]")]);
        bench.cut();
        for attempt in 1..=3 {
            let start = bench.next_leg_unopened();
            assert_eq!((start.attempt, start.plan), (attempt, "render-generate"));
            bench.refuse(status);
            bench.wait(S); // the pause before a third try
        }
        let start = bench.next_leg_unopened();
        assert_eq!((start.attempt, start.plan), (3, "chat-continue"));
        bench.refuse(status);
        assert_eq!((bench.starts(), bench.reason()), (Vec::new(), "reset"), "that was the last one");
    }
}

#[test]
fn a_template_may_be_far_longer_than_the_request() {
    let mut bench = exact_bench(REQUEST);
    bench.relay.policy.max_event = 4_000;
    bench.relay.state = super::super::state::State::Opening;
    bench.opened();
    let ids: Vec<String> = (100_000..200_000).map(|id: u32| id.to_string()).collect();
    bench.send(&[&opening("1", &format!("[{}]", ids.join(","))), &said("1", "The", "[30]")]);
    assert_eq!((bench.log.events.len(), &bench.log.seal), (2, &None));
    bench.send(&[&said("1", &"x".repeat(5_000), "[31]")]);
    assert_eq!(bench.log.events.len(), 2, "only the first event lists them");
}

#[test]
fn where_it_does_not_apply_the_next_plan_is_taken() {
    let settings = Settings::default();
    let old = Abilities { version: Some(Version::new(0, 27, 1)), ..Abilities::default() };
    let only: PlanSet = [PlanKind::ChatContinue].into_iter().collect();
    let barred: PlanSet = [PlanKind::TokenExact].into_iter().collect();
    let image = r#"[{"type":"image_url","image_url":{"url":"x"}}]"#;
    for (resume, request, prompt) in [
        (Settings { abilities: old, ..settings }, REQUEST.to_owned(), PROMPT),
        (Settings { plans: only, ..settings }, REQUEST.to_owned(), PROMPT),
        (Settings { barred, ..settings }, REQUEST.to_owned(), PROMPT),
        (Settings { max_prompt_tokens: 3, ..settings }, REQUEST.to_owned(), PROMPT),
        (settings, REQUEST.replace(r#""Hi""#, image), PROMPT),
        (settings, REQUEST.to_owned(), "null"),
    ] {
        let mut bench = bench_for(&request, Policy { resume, ..Policy::default() }, "qwen3", "vllm");
        bench.send(&[&opening("1", prompt), &said("1", "The", "[30]")]);
        bench.cut();
        assert_eq!(bench.next_leg().plan, "chat-continue");
    }
}

#[test]
fn a_long_prompts_ids_do_not_make_the_first_event_too_long() {
    let words = "word ".repeat(200_000);
    let request = REQUEST.replace("Hi", &words);
    let prompt = format!("[{}]", vec!["151645"; 200_000].join(","));
    assert!(prompt.len() > crate::proto::sse::DEFAULT_MAX_EVENT);
    let mut bench = bench_for(&request, Policy::default(), "qwen3", "vllm");
    bench.relay.hides_ids = true;
    // Opened anew, as a relay is that was told so before.
    bench.relay.state = State::Opening;
    bench.opened();
    bench.send(&[&opening("1", &prompt), &said("1", "The", "[30]")]);
    assert_eq!(bench.log.events.len(), 2);
    bench.cut();
    assert_eq!(bench.next_leg().plan, "chat-continue", "more ids than are kept");
}

#[test]
fn a_leg_that_fails_before_its_text_leaves_the_ids_as_they_were() {
    let mut bench = exact_bench(REQUEST);
    bench.send(&[&opening("1", PROMPT), &said("1", "The", "[30]"), &event("1", "{}", "[34]")]);
    bench.cut();
    bench.answer_all();
    bench.next_leg();
    bench.send(&[&opening("2", "[1,2,3,30]"), &event("2", "{}", "[34]")]);
    bench.cut();
    bench.answer_all();
    let start = bench.next_leg();
    assert_eq!((start.leg, start.attempt), (2, 2));
    assert_eq!(ids_of(&start).to_string(), "[1,2,3,30]");
}

#[test]
fn a_client_that_asked_for_ids_sees_them_and_none_twice() {
    let request = REQUEST.replace(r#""stream":true"#, r#""stream":true,"return_token_ids":true"#);
    let mut bench = bench_for(&request, Policy::default(), "qwen3", "vllm");
    let first = [opening("1", PROMPT), said("1", "The", "[30]"), said("1", " answer", "[31]")];
    bench.send(&first.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(bench.log.events, first);
    bench.cut();
    bench.answer_all();
    assert_eq!(bench.next_leg().plan, "token-exact");
    bench.send(&[&opening("2", "[1,2,3,30,31]"), &said("2", " is", "[32]"), &said("2", " 42", "[33]")]);
    let rest = [said("1", " is", "[32]"), said("1", " 42", "[33]")];
    assert_eq!(bench.log.events[3..], rest);

    let mut ahead = bench_for(&request, Policy::default(), "qwen3", "vllm");
    ahead.send(&[&opening("1", PROMPT), &said("1", "The", "[30]"), &event("1", "{}", "[34]")]);
    ahead.cut();
    ahead.answer_all();
    let stopped = Note::NotContinued { why: "ids_shown" };
    assert!(ahead.notes().contains(&&stopped), "the client has the id of half a character: {:?}", ahead.notes());

    let mut unspelled = bench_for(&request, Policy::default(), "qwen3", "vllm");
    unspelled.send(&first.iter().map(String::as_str).collect::<Vec<_>>());
    unspelled.cut();
    unspelled.answer(Err(Refusal::Status { status: 400, body: String::new() }));
    assert_eq!(unspelled.next_leg().plan, "chat-continue", "all ids that the client has have their text");

    let mut unseen = bench_for(&request, Policy::default(), "qwen3", "vllm");
    unseen.send(&[&opening("1", PROMPT), &event("1", "{}", "[151667]")]);
    unseen.cut();
    unseen.answer_all();
    assert!(unseen.notes().contains(&&stopped), "the mark's id would come twice: {:?}", unseen.notes());
}

fn structured(limit: usize) -> Policy {
    let resume = Settings { structured: true, ..Settings::default() };
    Policy { structured_buffer: Some(limit), resume, ..Policy::default() }
}

const FORMS: [&str; 3] = [
    r#""response_format":{"type":"json_object"}"#,
    r#""response_format":{"type":"json_schema","json_schema":{"schema":{}}}"#,
    r#""tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required""#,
];

#[test]
fn an_answer_of_a_prescribed_form_is_held_back_and_goes_on_from_before_it() {
    for form in FORMS {
        let request = REQUEST.replace(r#""stream":true"#, &format!(r#""stream":true,{form}"#));
        let mut bench = bench_for(&request, structured(10_000), "qwen3", "vllm");
        bench.relay.hides_ids = true;
        bench.send(&[&opening("1", PROMPT), &thought("1", "Let", "[10]"), &event("1", "{}", "[20]")]);
        bench.send(&[&said("1", "\\n\\n", "[21]"), &said("1", "The", "[30]")]);
        assert_eq!(bench.log.events.len(), 2, "nothing of the answer is shown");
        bench.cut();
        bench.answer_all();
        let start = bench.next_leg();
        assert_eq!((start.plan, ids_of(&start).to_string()), ("token-exact", "[1,2,3,10]".to_owned()));
        let rest = [said("2", " is", "[32]"), said("2", " 42", "[33]"), ended("2", "stop", "[99]")];
        bench.send(&[&opening("2", "[1,2,3,10]"), &rest[0], &rest[1]]);
        assert_eq!(bench.log.events.len(), 2);
        bench.send(&[&rest[2], "[DONE]"]);
        let shown: Vec<_> = rest.iter().map(|event| plain(event).replace(r#""id":"2""#, r#""id":"1""#)).collect();
        assert_eq!(bench.log.events[2..], shown);
        assert_eq!(bench.log.seal, Some(Seal::Finished));
    }
}

/// The events of a call that had to be made, as vLLM sends them: the name under an id, the arguments in pieces, the finish reason.
fn forced_call(leg: &str, pieces: &[(&str, &str)]) -> Vec<String> {
    let begun = format!(
        r#"{{"tool_calls":[{{"id":"call-{leg}","type":"function","index":0,"function":{{"name":"f","arguments":""}}}}]}}"#
    );
    let piece = |(arguments, ids): &(&str, &str)| {
        let delta = json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
        event(leg, &delta.to_string(), ids)
    };
    std::iter::once(event(leg, &begun, "[40]")).chain(pieces.iter().map(piece)).collect()
}

const FORCED: [&str; 2] = [
    FORMS[2],
    r#""tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}}"#,
];

#[test]
fn a_call_that_had_to_be_made_is_made_once_though_two_engines_begin_it() {
    for (form, reason) in FORCED.iter().zip(["tool_calls", "stop"]) {
        let request = REQUEST.replace(r#""stream":true"#, &format!(r#""stream":true,{form}"#));
        let mut bench = bench_for(&request, structured(10_000), "qwen3", "vllm");
        bench.relay.hides_ids = true;
        bench.send(&[&opening("1", PROMPT), &thought("1", "Let", "[10]"), &event("1", "{}", "[20]")]);
        let shown = bench.log.events.clone();
        let lost = forced_call("1", &[("{\"a", "[41]"), ("\": 1", "[33]")]);
        bench.send(&lost.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((shown.len(), &bench.log.events), (2, &shown), "{form}: nothing of the call is shown");
        bench.cut();
        bench.answer_all();
        let start = bench.next_leg();
        assert_eq!((start.plan, ids_of(&start).to_string()), ("token-exact", "[1,2,3,10]".to_owned()), "{form}");
        // The grammar begins at its root: another call, under an id of its own.
        let mut rest = vec![event("2", "{}", "[20]")];
        rest.extend(forced_call("2", &[("{\"b\": 2", "[41]"), ("}", "[33]")]));
        rest.push(ended("2", reason, "[99]"));
        bench.send(&[&opening("2", "[1,2,3,10]")]);
        bench.send(&rest[..rest.len() - 1].iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(bench.log.events, shown, "{form}");
        bench.send(&[&rest[rest.len() - 1], "[DONE]"]);
        let wanted: Vec<_> = rest[1..].iter().map(|event| plain(event).replace(r#""id":"2""#, r#""id":"1""#)).collect();
        assert_eq!(bench.log.events[2..], wanted, "{form}");
        assert_eq!(bench.log.seal, Some(Seal::Finished), "{form}");
    }
}

#[test]
fn a_call_that_had_to_be_made_without_thinking_is_asked_for_again() {
    for form in FORCED {
        let request = REQUEST.replace(r#""stream":true"#, &format!(r#""stream":true,{form}"#));
        let mut bench = bench_for(&request, structured(10_000), "qwen3", "vllm");
        bench.relay.hides_ids = true;
        bench.send(&[&opening("1", PROMPT)]);
        bench.send(&forced_call("1", &[("{\"a", "[41]")]).iter().map(String::as_str).collect::<Vec<_>>());
        bench.cut();
        let start = bench.next_leg();
        assert_eq!((start.plan, bench.log.events.len()), ("again", 1), "{form}");
        assert_eq!(body(&start)["tool_choice"], serde_json::from_str::<Value>(&request).unwrap()["tool_choice"]);
        let whole = forced_call("2", &[("{}", "[41]")]);
        bench.send(&[&opening("2", PROMPT)]);
        bench.send(&whole.iter().map(String::as_str).collect::<Vec<_>>());
        bench.send(&[&ended("2", "tool_calls", "[99]"), "[DONE]"]);
        let called: Vec<_> = bench.log.events.iter().filter(|event| event.contains("tool_calls\":[")).collect();
        assert_eq!(called.len(), 2, "{form}: {called:?}");
        assert!(bench.log.events.iter().all(|event| !event.contains("call-1")), "{form}");
        assert_eq!(bench.log.seal, Some(Seal::Finished), "{form}");
    }
}

#[test]
fn an_answer_of_a_prescribed_form_without_thinking_is_asked_for_again() {
    for engine in ["vllm", "sglang"] {
        let request = REQUEST.replace(r#""stream":true"#, &format!(r#""stream":true,{}"#, FORMS[0]));
        let mut bench = bench_for(&request, structured(10_000), "qwen3", engine);
        bench.send(&[&opening("1", "null"), &said("1", "The", "null")]);
        bench.wait(20 * S);
        assert_eq!(bench.next_leg().plan, "again", "a stall, too");
        bench.send(&[&opening("2", "null"), &said("2", "Answer", "null"), &ended("2", "stop", "null"), "[DONE]"]);
        assert_eq!(bench.relay.partial().first().unwrap().content, "Answer");
        assert_eq!(bench.log.seal, Some(Seal::Finished));
    }
}

#[test]
fn an_answer_of_a_prescribed_form_is_not_continued_once_it_is_shown_or_where_that_is_off() {
    let request = REQUEST.replace(r#""stream":true"#, &format!(r#""stream":true,{}"#, FORMS[0]));
    for policy in [structured(10), Policy::default()] {
        let mut bench = bench_for(&request, policy, "qwen3", "vllm");
        bench.relay.hides_ids = true;
        bench.send(&[&opening("1", PROMPT), &said("1", "The", "[30]"), &said("1", " answer", "[31]")]);
        assert_eq!(bench.log.events.len(), 3, "over the limit it is passed on");
        bench.cut();
        assert!(bench.starts().is_empty() && bench.questions().is_empty());
        assert_eq!(bench.reason(), "reset");
    }
    // Several choices are several still.
    let several = request.replace(r#""stream":true"#, r#""stream":true,"n":2"#);
    let mut bench = bench_for(&several, structured(10_000), "qwen3", "vllm");
    bench.send(&[&opening("1", PROMPT), &thought("1", "Let", "[10]")]);
    bench.cut();
    assert!(bench.questions().is_empty());
}

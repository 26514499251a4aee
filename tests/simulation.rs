//! The answer through Baton equals the uncut answer, wherever and however the first engine breaks. Pure: the relay and the scripted
//! engine's events, without a socket or a clock, so that every position can be tried.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use baton::mock::{self, Config, Ledger, ReasoningField, Wire};
use baton::proto::chat::{self, ChatRequest, Parsed};
use baton::proto::record::{Frame, FrameId, Record, Seal, Sink};
use baton::proto::relay::{Action, LegEnd, Policy, Refusal, Relay};
use baton::proto::resume::{Engine, Family};
use baton::proto::sse::{DEFAULT_MAX_EVENT, Decoder, Item};
use serde_json::{Value, json};

/// What the client gets: the events' data, and the seal.
#[derive(Default)]
struct Log {
    frames: Vec<Frame>,
    events: Vec<String>,
    seal: Option<Seal>,
}

impl Sink for Log {
    fn define(&mut self, frame: Frame) -> Option<FrameId> {
        self.frames.push(frame);
        Some(FrameId(self.frames.len() as u8 - 1))
    }

    fn append(&mut self, record: Record<'_>) {
        assert!(self.seal.is_none(), "a record after the seal");
        let mut data = Vec::new();
        record.write_data(&self.frames, &mut data).expect("a record that was just made");
        self.events.push(String::from_utf8(data).expect("events are text"));
    }

    fn seal(&mut self, seal: Seal) {
        assert!(self.seal.replace(seal).is_none(), "a second seal");
    }
}

/// How the first leg breaks where it breaks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Break {
    Cut,
    CleanEnd,
    ErrorEvent,
    FlatErrorEvent,
    Abort,
    Done,
    Stall,
    TooLong,
    Garbage,
}

const BREAKS: [Break; 9] = [
    Break::Cut,
    Break::CleanEnd,
    Break::ErrorEvent,
    Break::FlatErrorEvent,
    Break::Abort,
    Break::Done,
    Break::Stall,
    Break::TooLong,
    Break::Garbage,
];

/// One family on one engine, and the request.
struct Case {
    engine: &'static str,
    family: &'static str,
    config: Config,
    body: String,
}

/// What a stream came to.
struct Outcome {
    log: Log,
    legs: u32,
}

impl Case {
    fn new(engine: &'static str, family: &'static str, usage: bool) -> Self {
        let wire = if engine == "sglang" { Wire::Sglang } else { Wire::Vllm };
        let config = Config {
            wire,
            family: family.to_owned(),
            // Strict mode knows what vLLM and SGLang want to see; what others read is one string, which its template takes too.
            strict: engine != "generic",
            ledger: Some(Ledger::default()),
            created: Some(1_700_000_000),
            reasoning: 5,
            content: 9,
            ..Config::default()
        };
        let mut body = json!({
            "model": "mock",
            "messages": [{"role": "user", "content": "说说接力赛 🏃"}],
            "stream": true,
            "max_completion_tokens": 100,
            "temperature": 0.0,
            "seed": 5,
        });
        if usage {
            body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
        }
        if family.starts_with("deepseek_v") {
            body["chat_template_kwargs"] = json!({"thinking": true}); // these do not think unasked
        }
        Case { engine, family, config, body: body.to_string() }
    }

    /// The first leg's events, each with its blank line.
    fn uncut(&self) -> Vec<Vec<u8>> {
        mock::events(&self.config, self.body.as_bytes(), 0).expect("the first leg is a good request")
    }

    /// Runs the stream: leg 1 sends `bytes` and breaks, later legs are whole.
    fn run(&self, bytes: &[u8], end: Break) -> Outcome {
        let request = ChatRequest::parse(self.body.as_bytes()).expect("a chat request");
        let policy = Policy { max_event: 4_000, ..Policy::default() };
        let (family, engine) = (Family::named(self.family).0, Engine::named(self.engine).0);
        let mut relay = Relay::new(Some(request), policy, family, engine, "rid".to_owned());
        let (mut log, mut now) = (Log::default(), Duration::ZERO);
        relay.handle_opened(now);
        relay.handle_bytes(now, bytes, &mut log);
        break_off(&mut relay, &mut now, end, self.config.wire, &mut log);
        let mut legs = 1;
        while let Some(action) = relay.poll_action() {
            let Action::Start(start) = action else { continue };
            legs = legs.max(start.leg);
            match mock::events(&self.config, &start.body, u64::from(start.leg * 10 + start.attempt)) {
                Ok(events) => {
                    relay.handle_opened(now);
                    for event in events {
                        relay.handle_bytes(now, &event, &mut log);
                    }
                    relay.handle_end(now, LegEnd::Clean, &mut log);
                }
                Err((status, body)) => {
                    assert_eq!(status, 0, "the engine refuses the continuation: {body}");
                    relay.handle_refused(now, Refusal::Status { status, body }, &mut log);
                }
            }
        }
        Outcome { log, legs }
    }
}

/// Ends a leg that is open. One that has come to its own end needs no breaking.
fn break_off(relay: &mut Relay, now: &mut Duration, end: Break, wire: Wire, log: &mut Log) {
    let event = |relay: &mut Relay, log: &mut Log, data: &str| {
        // A break at a byte offset leaves half an event; the engine's next words then follow on a new connection only.
        relay.handle_bytes(Duration::ZERO, format!("data: {data}\n\n").as_bytes(), log);
    };
    match end {
        Break::Cut => relay.handle_end(*now, LegEnd::Reset, log),
        Break::CleanEnd => relay.handle_end(*now, LegEnd::Clean, log),
        Break::ErrorEvent => {
            event(relay, log, r#"{"error":{"message":"dead","type":"InternalServerError","param":null,"code":500}}"#)
        }
        Break::FlatErrorEvent => event(
            relay,
            log,
            r#"{"object":"error","message":"full","type":"SERVICE_UNAVAILABLE","param":null,"code":503}"#,
        ),
        Break::Abort => {
            let delta = if wire == Wire::Sglang { r#"{"reasoning_content":null}"# } else { "{}" };
            event(
                relay,
                log,
                &format!(
                    r#"{{"id":"x","object":"chat.completion.chunk","created":1,"model":"mock","choices":[{{"index":0,"delta":{delta},"finish_reason":"abort"}}]}}"#
                ),
            );
        }
        Break::Done => event(relay, log, "[DONE]"),
        Break::Stall => {
            while let Some(deadline) = relay.deadline() {
                *now = deadline;
                relay.handle_deadline(*now, log);
                if relay.is_sealed() || relay.leg() > 1 {
                    break;
                }
            }
        }
        Break::TooLong => relay.handle_bytes(*now, &vec![b'x'; 5_000], log),
        Break::Garbage => (0..4).for_each(|_| event(relay, log, "\u{fffd}{not json")),
    }
}

/// The data of each event.
fn data_of(events: &[Vec<u8>]) -> Vec<String> {
    let bytes = events.concat();
    let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
    let mut items = decoder.feed(&bytes);
    let mut data = Vec::new();
    while let Some(item) = items.next() {
        if let Ok(Item::Event(event)) = item {
            data.push(String::from_utf8(event.data.to_vec()).expect("events are text"));
        }
    }
    data
}

/// The text, thinking and answer, that some events bring; and whether the answer has begun.
fn texts(events: &[String]) -> (String, String) {
    let (mut reasoning, mut content) = (String::new(), String::new());
    for data in events {
        let Ok(Parsed::Chunk(chunk)) = chat::parse(data.as_bytes()) else { continue };
        for choice in &chunk.choices {
            reasoning.push_str(choice.reasoning.as_deref().unwrap_or_default());
            content.push_str(choice.content.as_deref().unwrap_or_default());
        }
    }
    (reasoning, content)
}

/// Whether the golden files say that this family is continued on this engine in this state. They are the review of `plan`;
/// here they say what to expect of a whole stream.
fn continues(engine: &str, family: &str, state: &str) -> bool {
    let file = format!("{}/tests/golden/resume/{family}.{engine}.{state}.json", env!("CARGO_MANIFEST_DIR"));
    let golden: Value = serde_json::from_str(&fs::read_to_string(file).expect("a golden file")).expect("JSON");
    golden.get("plan").is_some()
}

/// Checks one break of one case, after `events` whole events (and a part of the next one).
fn check(case: &Case, whole: &[String], sent: &[u8], events: usize, end: Break) {
    let outcome = case.run(sent, end);
    let at = format!("{} on {}, {end:?} after {} bytes ({events} events)", case.family, case.engine, sent.len());
    let (reasoning, content) = texts(&whole[..events]);
    let state = if content.is_empty() { "thinking-partial" } else { "content-done" };
    let nothing = reasoning.is_empty() && content.is_empty();
    let finished = whole[..events].iter().any(|data| data.contains(r#""finish_reason":"stop""#));
    let (all_reasoning, all_content) = texts(whole);
    let got = texts(&outcome.log.events);
    if nothing && end == Break::Stall {
        // Nothing to continue from: a long prompt may take its time.
        assert_eq!((outcome.log.seal, outcome.legs), (None, 1), "{at}");
    } else if finished || nothing || continues(case.engine, case.family, state) {
        assert_eq!(outcome.log.seal, Some(Seal::Finished), "{at}");
        assert_eq!(got, (all_reasoning, all_content), "{at}");
        assert_eq!(outcome.legs, if finished || nothing { 1 } else { 2 }, "{at}");
        assert_reads_as_one(&outcome.log.events, &at);
    } else {
        assert!(matches!(outcome.log.seal, Some(Seal::Incomplete { .. })) || end == Break::Stall, "{at}");
        assert_eq!(got, (reasoning, content), "{at}");
    }
}

/// One id, one role, one finish.
fn assert_reads_as_one(events: &[String], at: &str) {
    let (mut ids, mut roles, mut finishes) = (BTreeMap::new(), 0, 0);
    for data in events {
        let Ok(Parsed::Chunk(chunk)) = chat::parse(data.as_bytes()) else { panic!("{at}: {data}") };
        *ids.entry(chunk.id.to_string()).or_insert(0) += 1;
        assert_eq!(chunk.created, Some(1_700_000_000), "{at}");
        for choice in &chunk.choices {
            roles += usize::from(choice.role.is_some());
            finishes += usize::from(choice.finish_reason.is_some());
        }
    }
    assert_eq!((ids.len(), roles, finishes), (1, 1, 1), "{at}: {events:#?}");
}

fn cases(usage: bool) -> Vec<Case> {
    let families = Family::all();
    let pairs = families.into_iter().flat_map(|family| [("vllm", family), ("sglang", family), ("generic", family)]);
    pairs.map(|(engine, family)| Case::new(engine, family, usage)).collect()
}

#[test]
fn an_answer_is_whole_for_every_family_and_engine_wherever_and_however_its_engine_breaks() {
    for case in cases(false) {
        let uncut = case.uncut();
        let whole = data_of(&uncut);
        for events in 0..uncut.len() {
            for end in BREAKS {
                check(&case, &whole, &uncut[..events].concat(), events, end);
            }
        }
    }
}

#[test]
fn an_answer_is_whole_wherever_in_its_bytes_the_connection_breaks() {
    for (engine, family) in [("vllm", "qwen3"), ("sglang", "default")] {
        let mut case = Case::new(engine, family, false);
        (case.config.reasoning, case.config.content) = (4, 7);
        let uncut = case.uncut();
        let whole = data_of(&uncut);
        let bytes = uncut.concat();
        let ends: Vec<usize> = uncut
            .iter()
            .scan(0, |at, event| {
                *at += event.len();
                Some(*at)
            })
            .collect();
        for cut in 0..bytes.len() {
            let events = ends.iter().take_while(|end| **end <= cut).count();
            let end = if cut % 2 == 0 { Break::Cut } else { Break::CleanEnd };
            check(&case, &whole, &bytes[..cut], events, end);
        }
    }
}

#[test]
fn usage_is_that_of_an_uncut_answer_where_the_engine_counts_along() {
    for (engine, family) in [("vllm", "qwen3"), ("vllm", "no_thinking"), ("sglang", "qwen3"), ("sglang", "glm")] {
        let case = Case::new(engine, family, true);
        let uncut = case.uncut();
        let whole = data_of(&uncut);
        let usage = |events: &[String]| {
            let last = events.iter().rfind(|data| data.contains(r#""choices":[]"#)).expect("a usage chunk");
            let Ok(Parsed::Chunk(chunk)) = chat::parse(last.as_bytes()) else { panic!("{last}") };
            let usage = chunk.usage.expect("usage");
            (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, usage.reasoning_tokens)
        };
        for events in 1..uncut.len() {
            let outcome = case.run(&uncut[..events].concat(), Break::Cut);
            if outcome.log.seal == Some(Seal::Finished) {
                assert_eq!(usage(&outcome.log.events), usage(&whole), "{family} on {engine} after {events} events");
            }
        }
    }
}

#[test]
fn the_old_names_of_thinking_are_kept_across_legs() {
    for field in [ReasoningField::ReasoningContent, ReasoningField::Both] {
        let mut case = Case::new("vllm", "default", false);
        case.config.reasoning_field = Some(field);
        let uncut = case.uncut();
        for events in 0..uncut.len() {
            let outcome = case.run(&uncut[..events].concat(), Break::Cut);
            let both = |data: &&String| data.contains("\"reasoning\":") && data.contains("\"reasoning_content\":");
            let count = |events: &[String]| events.iter().filter(both).count();
            assert_eq!(count(&outcome.log.events), count(&data_of(&uncut)), "{field:?} after {events} events");
            assert_eq!(texts(&outcome.log.events), texts(&data_of(&uncut)), "{field:?} after {events} events");
        }
    }
}

#[test]
fn a_recorded_stream_of_a_real_engine_is_whole_wherever_in_its_bytes_it_breaks() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/vllm-0.32/content.sse");
    let recorded = fs::read(file).expect("a recorded stream");
    let whole = data_of(std::slice::from_ref(&recorded));
    let request = br#"{"model":"tiny","messages":[{"role":"user","content":"?"}],"stream":true}"#;
    let continuing: Vec<String> = whole.iter().map(|data| data.replace("chatcmpl-", "chatcmpl-other-")).collect();
    for cut in 0..recorded.len() {
        let request = ChatRequest::parse(request).expect("a chat request");
        let (family, engine) = (Family::named("no_thinking").0, Engine::named("vllm").0);
        let mut relay = Relay::new(Some(request), Policy::default(), family, engine, "rid".to_owned());
        let (mut log, now) = (Log::default(), Duration::ZERO);
        relay.handle_opened(now);
        relay.handle_bytes(now, &recorded[..cut], &mut log);
        let delivered = log.events.len();
        relay.handle_end(now, LegEnd::Reset, &mut log);
        while let Some(action) = relay.poll_action() {
            let Action::Start(_) = action else { continue };
            relay.handle_opened(now);
            // Leg 2 opens with its role, then sends what has not been delivered, under its own id.
            let rest = continuing.iter().take(1).chain(continuing.iter().skip(delivered.max(1)));
            for data in rest {
                relay.handle_bytes(now, format!("data: {data}\n\n").as_bytes(), &mut log);
            }
            relay.handle_end(now, LegEnd::Clean, &mut log);
        }
        assert_eq!(log.seal, Some(Seal::Finished), "cut after {cut} bytes");
        let id = |data: &String| data.replace("chatcmpl-other-", "chatcmpl-");
        let got: Vec<String> = log.events.iter().map(id).collect();
        assert_eq!(got, whole[..whole.len() - 1], "cut after {cut} bytes");
    }
}

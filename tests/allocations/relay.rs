//! The whole path of an event through the relay: decoder, frame, partial, record.

use std::time::Duration;

use baton::proto::chat::ChatRequest;
use baton::proto::record::{Frame, FrameId, Record, Seal, Sink};
use baton::proto::relay::{Action, LegEnd, Policy, Relay};
use baton::proto::resume::{Engine, Family};

use super::counting::allocations;

#[derive(Default)]
struct Log {
    frames: u8,
    records: usize,
    last: Vec<u8>,
}

impl Sink for Log {
    fn define(&mut self, _frame: Frame) -> Option<FrameId> {
        self.frames += 1;
        Some(FrameId(self.frames - 1))
    }

    fn append(&mut self, record: Record<'_>) {
        self.records += 1;
        self.last.clear();
        record.encode(&mut self.last);
    }

    fn seal(&mut self, _seal: Seal) {}
}

fn event(id: &str, delta: &str) -> String {
    event_of(id, delta, "null")
}

fn event_of(id: &str, delta: &str, ids: &str) -> String {
    format!(
        "data: {{\"id\":\"{id}\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":{ids}}}]}}\n\n"
    )
}

/// The first event of a leg whose prompt has these ids.
fn opening(id: &str, prompt: &str) -> String {
    format!(
        "data: {{\"id\":\"{id}\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},\"logprobs\":null,\"finish_reason\":null}}],\"prompt_token_ids\":{prompt},\"prompt_text\":null}}\n\n"
    )
}

fn feed(relay: &mut Relay, log: &mut Log, wire: &[u8], size: usize) {
    for piece in wire.chunks(size) {
        relay.handle_bytes(Duration::ZERO, piece, log);
    }
}

/// Feeds events that list the ids of their tokens; ids and text differ from event to event. Returns all ids.
fn check_listing(relay: &mut Relay, log: &mut Log, id: &str, prompt: &str, size: usize) -> String {
    const EVENTS: u32 = 4_000;
    relay.handle_opened(Duration::ZERO);
    let list = |number: u32| match number % 3 {
        0 => format!("{}", number * 31 % 151_000),
        1 => format!("{number},{}", 151_000 - number),
        _ => format!("{}", number % 256),
    };
    let events = |numbers: std::ops::Range<u32>| -> String {
        numbers
            .map(|number| event_of(id, r#"{"content":"答案\n\ud83d\ude00"}"#, &format!("[{}]", list(number))))
            .collect()
    };
    let (first, rest) = (opening(id, prompt) + &events(0..100), events(100..EVENTS));
    feed(relay, log, first.as_bytes(), size);
    let before = log.records;
    let counted = allocations(|| feed(relay, log, rest.as_bytes(), size));
    assert_eq!(log.records - before, (EVENTS - 100) as usize);
    assert!(!log.last.windows(4).any(|bytes| bytes == b"ids\""), "the client's frame has no ids");
    // The partial's text doubles its room seven times on the way, and so does the list of ids.
    assert!(counted <= 16, "{counted} allocations for {EVENTS} events with ids in pieces of {size} bytes");
    (0..EVENTS).map(list).collect::<Vec<_>>().join(",")
}

/// Feeds `events` events of a leg, of which the first hundred warm up, and counts the allocations of the rest.
fn check(relay: &mut Relay, log: &mut Log, id: &str, size: usize) {
    const EVENTS: usize = 4_000;
    relay.handle_opened(Duration::ZERO);
    let before = log.records;
    let first: String = (0..100).map(|_| event(id, r#"{"content":"答案 and more"}"#)).collect();
    let rest: String = (100..EVENTS).map(|_| event(id, r#"{"content":"答案\n\ud83d\ude00"}"#)).collect();
    feed(relay, log, first.as_bytes(), size);
    let counted = allocations(|| feed(relay, log, rest.as_bytes(), size));
    assert_eq!(log.records - before, EVENTS);
    // The partial's text doubles its room seven times on the way.
    assert!(counted <= 8, "{counted} allocations for {EVENTS} events in pieces of {size} bytes");
}

#[test]
fn an_event_that_fits_its_frame_allocates_nothing_on_any_leg() {
    for size in [16_384, 333, 7] {
        let request = ChatRequest::parse(br#"{"model":"m","messages":[],"stream":true}"#).unwrap();
        let (family, engine) = (Family::named("no_thinking").0, Engine::named("vllm").0);
        let mut relay = Relay::new(Some(request), Policy::default(), family, engine, "rid".to_owned());
        let mut log = Log::default();
        check(&mut relay, &mut log, "leg-1", size);
        relay.handle_end(Duration::ZERO, LegEnd::Clean, &mut log);
        assert!(std::iter::from_fn(|| relay.poll_action()).any(|action| matches!(action, Action::Start(_))));
        check(&mut relay, &mut log, "leg-2", size);
    }
}

#[test]
fn an_event_with_its_tokens_ids_allocates_nothing_either_on_any_leg() {
    for size in [16_384, 333, 7] {
        let request = ChatRequest::parse(br#"{"model":"m","messages":[],"stream":true}"#).unwrap();
        let (family, engine) = (Family::named("no_thinking").0, Engine::named("vllm").0);
        let mut relay = Relay::new(Some(request), Policy::default(), family, engine, "rid".to_owned());
        relay.hide_ids();
        let mut log = Log::default();
        let answer = check_listing(&mut relay, &mut log, "leg-1", "[1,2,3]", size);
        relay.handle_end(Duration::ZERO, LegEnd::Clean, &mut log);
        let text = relay.partial().first().unwrap().content.clone();
        let mut started = false;
        while let Some(action) = relay.poll_action() {
            match action {
                Action::Ask(_) => {
                    let spelled = serde_json::json!({"prompt": text}).to_string();
                    relay.handle_answer(Duration::ZERO, Ok(spelled.into_bytes()), &mut log);
                }
                Action::Start(start) => started = start.plan == "token-exact",
                _ => {}
            }
        }
        assert!(started, "the next leg goes on from the ids");
        check_listing(&mut relay, &mut log, "leg-2", &format!("[1,2,3,{answer}]"), size);
    }
}

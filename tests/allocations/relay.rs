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
    format!(
        "data: {{\"id\":\"{id}\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":null,\"token_ids\":null}}]}}\n\n"
    )
}

fn feed(relay: &mut Relay, log: &mut Log, wire: &[u8], size: usize) {
    for piece in wire.chunks(size) {
        relay.handle_bytes(Duration::ZERO, piece, log);
    }
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

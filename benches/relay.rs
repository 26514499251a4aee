//! A whole stream through the relay, as the driver feeds it: bytes in, records out. 2,000 events of a Chinese answer in vLLM's
//! shape, one event a read and 16 KiB a read, and the same with an engine that dies in the middle.

use std::hint::black_box;
use std::time::Duration;

use baton::proto::chat::ChatRequest;
use baton::proto::record::{Frame, FrameId, Record, Seal, Sink};
use baton::proto::relay::{Action, LegEnd, Policy, Relay};
use baton::proto::resume::{Engine, Family};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const EVENTS: usize = 2_000;
const TEXT: &str = "长江发源于青藏高原的唐古拉山脉，流经十一个省市自治区，最后注入东海。";
const REQUEST: &[u8] =
    r#"{"model":"qwen","stream":true,"messages":[{"role":"user","content":"长江有多长？"}]}"#.as_bytes();

/// Keeps the records in their compact form, as a journal does.
#[derive(Default)]
struct Log {
    frames: usize,
    bytes: Vec<u8>,
    records: usize,
    seal: Option<Seal>,
}

impl Sink for Log {
    fn define(&mut self, _frame: Frame) -> Option<FrameId> {
        self.frames += 1;
        Some(FrameId(self.frames as u8 - 1))
    }

    fn append(&mut self, record: Record<'_>) {
        self.records += 1;
        record.encode(&mut self.bytes);
    }

    fn seal(&mut self, seal: Seal) {
        self.seal = Some(seal);
    }
}

fn event(id: &str, delta: &str, finish: &str) -> Vec<u8> {
    format!(
        "data: {{\"id\":\"chatcmpl-{id}\",\"object\":\"chat.completion.chunk\",\"created\":1796053190,\"model\":\"qwen\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish},\"token_ids\":null}}]}}\n\n"
    )
    .into_bytes()
}

/// The events `from..EVENTS` of the answer as a leg sends them: role, text, finish, `[DONE]`.
fn leg(id: &str, from: usize) -> Vec<Vec<u8>> {
    let characters: Vec<char> = TEXT.chars().collect();
    let mut events = vec![event(id, r#"{"role":"assistant","content":""}"#, "null")];
    events.extend(
        (from..EVENTS)
            .map(|at| event(id, &format!(r#"{{"content":"{}"}}"#, characters[at % characters.len()]), "null")),
    );
    events.push(event(id, "{}", "\"stop\""));
    events.push(b"data: [DONE]\n\n".to_vec());
    events
}

/// Runs a stream whose first leg sends `first` and, if that does not finish it, whose second sends `second`.
fn run(first: &[Vec<u8>], second: &[Vec<u8>]) -> (Log, usize) {
    let request = ChatRequest::parse(REQUEST).unwrap();
    let (family, engine) = (Family::named("no_thinking").0, Engine::named("vllm").0);
    let mut relay = Relay::new(Some(request), Policy::default(), family, engine, "rid".to_owned());
    let (mut log, now) = (Log::default(), Duration::ZERO);
    for bytes in [first, second] {
        if relay.is_sealed() {
            break;
        }
        relay.handle_opened(now);
        for bytes in bytes {
            relay.handle_bytes(now, bytes, &mut log);
        }
        relay.handle_end(now, LegEnd::Reset, &mut log);
    }
    let mut starts = 0;
    while let Some(action) = relay.poll_action() {
        starts += usize::from(matches!(action, Action::Start(_)));
    }
    (log, starts)
}

fn relay(c: &mut Criterion) {
    let one_by_one = leg("1", 0);
    let in_blocks: Vec<Vec<u8>> = one_by_one.concat().chunks(16 * 1024).map(<[u8]>::to_vec).collect();
    let cut = one_by_one[..=EVENTS / 2].to_vec();
    let rest = leg("2", EVENTS / 2);
    let mut group = c.benchmark_group("relay");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, first, second, legs) in [
        ("one_event_a_read", &one_by_one, &rest, 0),
        ("16_KiB_a_read", &in_blocks, &rest, 0),
        ("continued_in_the_middle", &cut, &rest, 1),
    ] {
        let (log, starts) = run(first, second);
        assert_eq!(log.seal, Some(Seal::Finished), "{name}");
        assert_eq!((log.records, starts), (EVENTS + 2, legs), "{name}");
        group.bench_function(name, |b| b.iter(|| run(black_box(first), black_box(second))));
    }
    group.finish();
}

criterion_group!(benches, relay);
criterion_main!(benches);

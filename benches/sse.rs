//! The SSE decoder and encoder on the stream of a Chinese answer as vLLM sends it: 2,000 events of one or two characters.

use std::hint::black_box;

use baton::proto::sse::{DEFAULT_MAX_EVENT, Decoder, Item, encode};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const EVENTS: usize = 2000;
const TEXT: &str = "长江发源于青藏高原的唐古拉山脉，流经十一个省、市、自治区，最后注入东海。全长六千三百余公里🌊。";

fn data() -> Vec<Vec<u8>> {
    let chars: Vec<char> = TEXT.chars().collect();
    (0..EVENTS)
        .map(|i| {
            let text: String = (0..1 + i % 2).map(|j| chars[(i + j) % chars.len()]).collect();
            format!(
                r#"{{"id":"chatcmpl-b781a7c8ed7e296d","object":"chat.completion.chunk","created":1796053190,"model":"qwen3.6-35b-a3b","choices":[{{"index":0,"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":null}}]}}"#
            )
            .into_bytes()
        })
        .collect()
}

/// The number of events and the sum of their lengths, which is all that the timed code has to find.
fn count<'a>(decoder: &mut Decoder, parts: impl Iterator<Item = &'a [u8]>) -> (usize, usize) {
    let (mut events, mut bytes) = (0, 0);
    for part in parts {
        let mut items = decoder.feed(part);
        while let Some(item) = items.next() {
            if let Ok(Item::Event(event)) = item {
                events += 1;
                bytes += black_box(event.data).len();
            }
        }
    }
    (events, bytes)
}

fn decode_all(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
    let mut all = Vec::new();
    for part in parts {
        let mut items = decoder.feed(part);
        while let Some(item) = items.next() {
            if let Ok(Item::Event(event)) = item {
                all.push(event.data.to_vec());
            }
        }
    }
    assert!(!decoder.is_mid_event());
    all
}

fn sse(c: &mut Criterion) {
    let data = data();
    let mut wire = Vec::new();
    let mut ends = vec![0];
    for data in &data {
        encode(&mut wire, None, None, data);
        ends.push(wire.len());
    }
    let splits: [(&str, Vec<&[u8]>); 4] = [
        ("one event a read", ends.windows(2).map(|end| &wire[end[0]..end[1]]).collect()),
        ("16 KiB a read", wire.chunks(16 << 10).collect()),
        ("100 bytes a read", wire.chunks(100).collect()),
        ("one byte a read", wire.chunks(1).collect()),
    ];
    let total = data.iter().map(Vec::len).sum();

    let mut group = c.benchmark_group("sse");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, parts) in &splits {
        assert_eq!(decode_all(parts), data, "{name}");
        let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
        group.bench_with_input(BenchmarkId::new("decode", name), parts, |b, parts| {
            b.iter(|| assert_eq!(count(&mut decoder, parts.iter().copied()), (EVENTS, total)));
        });
    }
    let mut out = Vec::with_capacity(wire.len());
    let run = |out: &mut Vec<u8>| {
        out.clear();
        for data in &data {
            encode(out, None, None, black_box(data));
        }
    };
    run(&mut out);
    assert_eq!(out, wire);
    group.bench_function("encode", |b| b.iter(|| run(&mut out)));
    group.finish();
}

criterion_group!(benches, sse);
criterion_main!(benches);

//! Records and the journal on a Chinese answer of 2,000 events: the codec alone, a live reader behind its writer, and a replay.

use std::hint::black_box;

use baton::journal::{Entry, Keep, Limits, MemoryStore, Pulled, Reader};
use baton::proto::record::{Frame, FrameId, Record, Seal, Sink};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const EVENTS: usize = 2000;
const TEXT: &str = "长江发源于青藏高原的唐古拉山脉，流经十一个省、市、自治区，最后注入东海。全长六千三百余公里🌊。";
const LIMITS: Limits = Limits { max_stream: 4 << 20, max_total: 64 << 20, max_streams: 100 };

fn frame() -> Frame {
    Frame {
        prefix: br#"{"id":"chatcmpl-b781a7c8ed7e296d","object":"chat.completion.chunk","created":1796053190,"model":"qwen3.6-35b-a3b","choices":[{"index":0,"delta":{"content":""#.as_slice().into(),
        suffix: br#""},"logprobs":null,"finish_reason":null}]}"#.as_slice().into(),
    }
}

/// The strings of the answer: one or two characters each, and a short sentence now and then.
fn texts() -> Vec<String> {
    let chars: Vec<char> = TEXT.chars().collect();
    let text = |i: usize, len: usize| (0..len).map(|j| chars[(i + j) % chars.len()]).collect();
    (0..EVENTS).map(|i| text(i, if i % 100 == 99 { 20 } else { 1 + i % 2 })).collect()
}

fn whole_data(texts: &[String]) -> Vec<u8> {
    let frame = frame();
    texts.iter().flat_map(|text| [&frame.prefix, text.as_bytes(), &frame.suffix].concat()).collect()
}

/// Everything that is there, as event data one behind the other.
fn pull(reader: &mut Reader, out: &mut Vec<u8>) -> Pulled {
    let pulled = reader.pull(usize::MAX, &mut |_, entry| {
        if let Entry::Record { record, frames } = entry {
            record.write_data(frames, out).expect("the frame is defined");
        }
    });
    pulled.expect("nothing was trimmed")
}

fn codec(c: &mut Criterion) {
    let texts = texts();
    let records: Vec<_> =
        texts.iter().map(|text| Record::Framed { frame: FrameId(0), text: text.as_bytes() }).collect();
    let mut encoded = Vec::new();
    let encode = |out: &mut Vec<u8>| {
        out.clear();
        records.iter().for_each(|record| black_box(record).encode(out));
    };
    encode(&mut encoded);
    let decode = |mut rest: &[u8], on: &mut dyn FnMut(Record<'_>)| {
        while !rest.is_empty() {
            let (record, len) = Record::decode(rest).expect("it was just encoded");
            on(record);
            rest = &rest[len..];
        }
    };
    let mut back = Vec::new();
    decode(&encoded, &mut |record| record.write_data(&[frame()], &mut back).expect("the frame is defined"));
    assert_eq!(back, whole_data(&texts));

    let mut group = c.benchmark_group("record");
    group.throughput(Throughput::Elements(EVENTS as u64));
    let mut out = Vec::with_capacity(encoded.len());
    group.bench_function("encode", |b| b.iter(|| encode(&mut out)));
    group.bench_function("decode", |b| {
        b.iter(|| {
            let mut count = 0;
            decode(black_box(&encoded), &mut |record| count += usize::from(black_box(record) != records[0]));
            count
        });
    });
    group.finish();
}

fn journal(c: &mut Criterion) {
    let texts = texts();
    let expected = whole_data(&texts);
    let store = MemoryStore::new(LIMITS);
    let write = |keep, live: bool, out: &mut Vec<u8>| {
        out.clear();
        let mut writer = store.create_keeping(keep).expect("the store is empty");
        let frame = writer.define(frame()).expect("the table is empty");
        let mut reader = live.then(|| writer.reader(0));
        for text in &texts {
            writer.append(Record::Framed { frame, text: text.as_bytes() });
            if let Some(reader) = &mut reader {
                assert_eq!(pull(reader, out), Pulled::Empty);
            }
        }
        writer.seal(Seal::Finished);
        writer
    };
    let mut out = Vec::with_capacity(expected.len());
    for keep in [Keep::Unread, Keep::All] {
        write(keep, true, &mut out);
        assert_eq!(out, expected);
    }
    let kept = write(Keep::All, false, &mut out);
    let replay = |out: &mut Vec<u8>| {
        out.clear();
        assert_eq!(pull(&mut kept.reader(0), out), Pulled::Sealed);
    };
    replay(&mut out);
    assert_eq!(out, expected);

    let mut group = c.benchmark_group("journal");
    group.throughput(Throughput::Elements(EVENTS as u64));
    group.bench_function("append and pull, event by event", |b| b.iter(|| write(Keep::Unread, true, &mut out)));
    group.bench_function("the same, everything kept", |b| b.iter(|| write(Keep::All, true, &mut out)));
    group.bench_function("append", |b| b.iter(|| write(Keep::All, false, &mut out)));
    group.bench_function("replay", |b| b.iter(|| replay(&mut out)));
    group.finish();
}

criterion_group!(benches, codec, journal);
criterion_main!(benches);

//! Rewriting a second leg of 2,000 events in SGLang's shape as the rest of a first leg by vLLM, with continuous usage or without.

use std::hint::black_box;

use baton::proto::chat::{ClientUsage, Head, OriginalPrompt, Parsed, Partial, Phase, ReasoningField, Recovered, parse};
use baton::proto::splice::{Seam, Splice};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const EVENTS: usize = 2000;
const TEXT: &str =
    "长江发源于青藏高原的唐古拉山脉，流经十一个省、市、自治区，最后注入东海。\n全长“6300”余公里🌊 and \"more\".";

/// The events' data, and the text they hold.
fn leg(usage: bool) -> (Vec<Vec<u8>>, String) {
    let chars: Vec<char> = TEXT.chars().collect();
    let mut content = String::new();
    let data = (0..EVENTS).map(|i| {
        let text: String = (0..1 + i % 3).map(|j| chars[(i * 3 + j) % chars.len()]).collect();
        content.push_str(&text);
        let text = serde_json::to_string(&text).unwrap();
        let usage = match usage {
            true => format!(
                r#","usage":{{"prompt_tokens":900,"total_tokens":{},"completion_tokens":{},"prompt_tokens_details":null,"reasoning_tokens":0}}"#,
                901 + i,
                1 + i
            ),
            false => String::new(),
        };
        format!(
            r#"{{"id":"4f1c9d2b7a","object":"chat.completion.chunk","created":1796053190,"model":"/models/qwen","choices":[{{"index":0,"delta":{{"reasoning_content":null,"content":{text}}},"logprobs":null,"finish_reason":null,"matched_stop":null}}]{usage}}}"#
        )
        .into_bytes()
    });
    (data.collect(), content)
}

fn new_splice() -> Splice {
    let head = Head {
        id: "chatcmpl-b781a7c8ed7e296d".to_owned(),
        created: Some(1_796_053_100),
        model: "qwen3.6-35b-a3b".to_owned(),
        system_fingerprint: None,
    };
    let recovered = Recovered { completion_tokens: 500, reasoning_tokens: 100, prompt: OriginalPrompt::Known(400) };
    let client = ClientUsage { at_end: true, continuous: true };
    Splice::new(head, Some(ReasoningField::Reasoning), Seam::default(), client, recovered)
}

fn rewrite(data: &[Vec<u8>], mut each: impl FnMut(Vec<u8>)) {
    let mut splice = new_splice();
    for data in data {
        each(splice.rewrite(data).unwrap().unwrap());
    }
}

/// The rewritten leg reads as leg 1's and says what the leg said.
fn check(data: &[Vec<u8>], content: &str, tokens: Option<u64>) {
    let mut partial = Partial::default();
    rewrite(data, |data| {
        let Ok(Parsed::Chunk(chunk)) = parse(&data) else { panic!("{data:?}") };
        assert_eq!((&*chunk.id, chunk.created), ("chatcmpl-b781a7c8ed7e296d", Some(1_796_053_100)));
        partial.fold(&chunk);
    });
    assert_eq!((partial.phase(), &*partial.choices[0].content), (Phase::Content, content));
    assert_eq!(partial.usage.map(|usage| usage.completion_tokens), tokens);
}

fn splice(c: &mut Criterion) {
    let mut group = c.benchmark_group("splice");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, usage) in [("text", false), ("text_with_continuous_usage", true)] {
        let (data, content) = leg(usage);
        check(&data, &content, usage.then_some(500 + EVENTS as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                let mut bytes = 0;
                rewrite(black_box(&data), |data| bytes += data.len());
                bytes
            });
        });
    }
    group.finish();
}

criterion_group!(benches, splice);
criterion_main!(benches);

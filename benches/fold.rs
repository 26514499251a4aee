//! Folding a Chinese answer with some thinking before it, 2,000 events in vLLM's shape: in known frames, by parsing every event,
//! and with token ids, which rule frames out.

use std::hint::black_box;

use baton::proto::chat::{LearnedFrame, Parsed, Partial, learn, parse};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const EVENTS: usize = 2000;
const TEXT: &str =
    "长江发源于青藏高原的唐古拉山脉，流经十一个省、市、自治区，最后注入东海。\n全长“6300”余公里🌊 and \"more\".";

/// The events' data, and the thinking and the answer they hold.
fn stream(ids: bool) -> (Vec<Vec<u8>>, String, String) {
    let chars: Vec<char> = TEXT.chars().collect();
    let (mut reasoning, mut content) = (String::new(), String::new());
    let data = (0..EVENTS).map(|i| {
        let text: String = (0..1 + i % 3).map(|j| chars[(i * 3 + j) % chars.len()]).collect();
        let name = if i < EVENTS / 4 { "reasoning" } else { "content" };
        if i < EVENTS / 4 { &mut reasoning } else { &mut content }.push_str(&text);
        let text = serde_json::to_string(&text).unwrap();
        let ids = if ids { format!("[{i}]") } else { "null".to_owned() };
        format!(
            r#"{{"id":"chatcmpl-b781a7c8ed7e296d","object":"chat.completion.chunk","created":1796053190,"model":"qwen3.6-35b-a3b","choices":[{{"index":0,"delta":{{"{name}":{text}}},"logprobs":null,"finish_reason":null,"token_ids":{ids}}}]}}"#
        )
        .into_bytes()
    });
    let data = data.collect();
    (data, reasoning, content)
}

fn fold_parsed(partial: &mut Partial, data: &[u8]) {
    if let Ok(Parsed::Chunk(chunk)) = parse(data) {
        partial.fold(&chunk);
    }
}

fn fold_framed(data: &[Vec<u8>]) -> Partial {
    let mut partial = Partial::default();
    let mut known: Option<LearnedFrame> = None;
    for data in data {
        let framed = known.as_ref().and_then(|known| Some((known.kind, known.read(data)?.text)));
        match framed {
            Some((kind, text)) => partial.push_text(kind, text, None).unwrap(),
            None => {
                fold_parsed(&mut partial, data);
                known = learn(data);
            }
        }
    }
    partial
}

fn fold_whole(data: &[Vec<u8>]) -> Partial {
    let mut partial = Partial::default();
    for data in data {
        fold_parsed(&mut partial, data);
    }
    partial
}

fn fold(c: &mut Criterion) {
    let mut group = c.benchmark_group("fold");
    group.throughput(Throughput::Elements(EVENTS as u64));
    for (name, ids, fold) in [
        ("framed", false, fold_framed as fn(&[Vec<u8>]) -> Partial),
        ("parsed", false, fold_whole),
        ("parsed_with_token_ids", true, fold_whole),
    ] {
        let (data, reasoning, content) = stream(ids);
        let partial = fold(&data);
        assert_eq!((&partial.choices[0].reasoning, &partial.choices[0].content), (&reasoning, &content));
        group.bench_function(name, |b| b.iter(|| fold(black_box(&data))));
    }
    group.finish();
}

criterion_group!(benches, fold);
criterion_main!(benches);

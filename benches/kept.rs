//! What kept answers cost in memory: 8,000 streams of 2,000 tokens of Chinese, in vLLM's shape with the ids that Baton asks for, through
//! decoder and relay into the store, as the product does it; beside them the same events kept as they are on the wire. And that an
//! append costs the same at a stream's beginning and end, and in an empty store and a full one.
//!
//! `cargo bench --bench kept`. It asserts what docs/JOURNAL.md says.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton::journal::{Entry, Handle, Keep, Limits, MemoryStore, Pulled};
use baton::proto::chat::ChatRequest;
use baton::proto::record::{Frame, Record, Seal, Sink};
use baton::proto::relay::{Policy, Relay};
use baton::proto::resume::{Engine, Family};

const STREAMS: usize = 8_000;
/// Kept on the wire's form they would take 4 GB; so many are kept, and what one of them takes is said.
const RAW_STREAMS: usize = 200;
const TOKENS: usize = 2_000;
/// Role, tokens, finish, usage; `[DONE]` is the seal.
const EVENTS: usize = TOKENS + 3;
/// Answers that differ from each other.
const ANSWERS: usize = 16;
const TEXT: &str = "长江发源于青藏高原的唐古拉山脉流经十一个省市自治区最后注入东海全长六千三百余公里";
const LIMITS: Limits = Limits { max_stream: 4 << 20, max_total: 1 << 30, max_streams: 100_000 };
/// As docs/JOURNAL.md has it.
const MOST_PER_STREAM: usize = 12_000;
/// Far more than noise, far less than what any copy of what is there would make.
const EVEN: f64 = 1.5;

/// The product's allocator, and what it has given out to this thread.
struct Counting(mimalloc::MiMalloc);

thread_local! {
    static GIVEN: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is left to mimalloc; only a number of this thread is kept beside it. A `realloc` is the trait's own: it allocates
// anew and copies, and so is counted whole.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        GIVEN.set(GIVEN.get() + layout.size());
        // SAFETY: the caller keeps the contract, which is mimalloc's own.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { self.0.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(mimalloc::MiMalloc);

/// An answer: its events as the engine sends them, and as the client gets them.
struct Answer {
    wire: Vec<Vec<u8>>,
    shown: Vec<String>,
    text_bytes: usize,
}

impl Answer {
    fn new(number: usize) -> Self {
        let chars: Vec<char> = TEXT.chars().collect();
        let id = format!("chatcmpl-{:016x}", 0xb781_a7c8_ed7e_296d_u64 + number as u64);
        let head = format!(
            r#"{{"id":"{id}","object":"chat.completion.chunk","created":1796053190,"model":"qwen3.6-35b-a3b","#
        );
        let mut events = vec![[true, false].map(|listed| {
            let prompt = if listed { "[151644,872,198,40451,151645]" } else { "null" };
            format!(r#"{head}"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}],"prompt_token_ids":{prompt},"prompt_text":null}}"#)
        })];
        let mut text_bytes = 0;
        for at in 0..TOKENS {
            let char = chars[(at * (number + 1)) % chars.len()];
            text_bytes += char.len_utf8();
            let field = if at < TOKENS / 2 { "reasoning" } else { "content" };
            events.push([true, false].map(|listed| {
                let ids = if listed { format!("[{}]", 100_000 + at) } else { "null".to_owned() };
                format!(r#"{head}"choices":[{{"index":0,"delta":{{"{field}":"{char}"}},"logprobs":null,"finish_reason":null,"token_ids":{ids}}}]}}"#)
            }));
        }
        events.push([true, false].map(|listed| {
            let ids = if listed { "[151645]" } else { "null" };
            format!(r#"{head}"choices":[{{"index":0,"delta":{{"content":""}},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":{ids}}}]}}"#)
        }));
        let total = 5 + TOKENS + 1;
        let usage = format!(
            r#"{head}"choices":[],"usage":{{"prompt_tokens":5,"total_tokens":{total},"completion_tokens":{}}}}}"#,
            TOKENS + 1
        );
        events.push([usage.clone(), usage]);
        let shown = events.iter().map(|[_, shown]| shown.clone()).collect();
        let mut wire: Vec<Vec<u8>> =
            events.iter().map(|[listed, _]| format!("data: {listed}\n\n").into_bytes()).collect();
        wire.push(b"data: [DONE]\n\n".to_vec());
        Answer { wire, shown, text_bytes }
    }

    /// Carries the answer from the wire into a new log. Says how long the first and the last quarter of its tokens took.
    fn keep(&self, store: &Arc<MemoryStore>) -> (Handle, [Duration; 2]) {
        let request = ChatRequest::parse(
            br#"{"model":"qwen","messages":[],"stream":true,"stream_options":{"include_usage":true}}"#,
        );
        let (family, engine) = (Family::named("qwen3").0, Engine::named("vllm").0);
        let request = request.expect("a request");
        let mut relay = Relay::new(Some(request), Policy::default(), family, engine, "rid".to_owned());
        relay.hide_ids();
        let mut writer = store.create_keeping(Keep::All).expect("there is room");
        relay.handle_opened(Duration::ZERO);
        let quarter = TOKENS / 4;
        let mut feed = |events: &[Vec<u8>]| {
            let began = Instant::now();
            for event in events {
                relay.handle_bytes(Duration::ZERO, event, &mut writer);
            }
            began.elapsed()
        };
        // Behind the role, and behind the second quarter, in which the answer follows the thinking.
        feed(&self.wire[..1]);
        let first = feed(&self.wire[1..=quarter]);
        feed(&self.wire[1 + quarter..=3 * quarter]);
        let last = feed(&self.wire[1 + 3 * quarter..=TOKENS]);
        feed(&self.wire[1 + TOKENS..]);
        assert!(writer.is_sealed() && writer.fault().is_none());
        (writer.handle(), [first, last])
    }

    /// The log gives back the events that the client was to get, byte for byte, and the end.
    fn check(&self, log: &Handle) {
        assert_eq!(log.end(), Some(Seal::Finished));
        let (mut data, mut wanted) = (Vec::new(), self.shown.iter());
        let pulled = log.reader(0).pull(usize::MAX, &mut |_, entry| {
            if let Entry::Record { record, frames } = entry {
                data.clear();
                record.write_data(frames, &mut data).expect("the frame is known");
                assert_eq!(Some(str::from_utf8(&data).expect("text")), wanted.next().map(String::as_str));
            }
        });
        assert_eq!((pulled, wanted.next()), (Ok(Pulled::Sealed), None));
    }

    /// The same events, each kept as it is.
    fn keep_raw(&self, store: &Arc<MemoryStore>) -> Handle {
        let mut writer = store.create_keeping(Keep::All).expect("there is room");
        for data in &self.shown {
            writer.append(Record::Whole { event: None, data: data.as_bytes() });
        }
        writer.seal(Seal::Finished);
        writer.handle()
    }
}

/// The process's memory, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

/// What is kept, what of that is a stream's by the store's account and by the process's, and how long each took.
struct Kept {
    logs: Vec<Handle>,
    by_store: usize,
    by_process: usize,
    took: Vec<Duration>,
}

fn fill(streams: usize, mut keep: impl FnMut(usize, &Arc<MemoryStore>) -> Handle) -> Kept {
    let store = MemoryStore::new(LIMITS);
    let (mut logs, mut took) = (Vec::with_capacity(streams), Vec::with_capacity(streams));
    let before = resident();
    for stream in 0..streams {
        let began = Instant::now();
        logs.push(keep(stream, &store));
        took.push(began.elapsed());
    }
    let by_process = (resident() - before) / streams;
    assert_eq!(store.streams(), streams);
    Kept { logs, by_store: store.bytes() / streams, by_process, took }
}

/// How much longer the second takes than the first: the quickest of each, since what else the machine does only adds.
fn ratio(first: impl Iterator<Item = Duration>, second: impl Iterator<Item = Duration>) -> f64 {
    let quickest = |times: &mut dyn Iterator<Item = Duration>| times.min().expect("some").as_secs_f64();
    quickest(&mut { second }) / quickest(&mut { first })
}

/// What the allocator gives out in all while one log is written, for each byte that the log holds in the end. To copy what is there, room
/// has to be got for it once more.
fn given_for_held() -> f64 {
    let store = MemoryStore::new(LIMITS);
    let mut writer = store.create_keeping(Keep::All).expect("there is room");
    let [prefix, suffix] =
        [r#"{"choices":[{"index":0,"delta":{"content":""#, r#""}}]}"#].map(|part| part.as_bytes().into());
    let frame = writer.define(Frame { prefix, suffix }).expect("there is room");
    let before = GIVEN.get();
    for _ in 0..TOKENS * 100 {
        writer.append(Record::Framed { frame, text: "江".as_bytes() });
    }
    (GIVEN.get() - before) as f64 / store.bytes() as f64
}

fn main() {
    let answers: Vec<Answer> = (0..ANSWERS).map(Answer::new).collect();
    let answer = |stream: usize| &answers[stream % ANSWERS];
    let wire: usize = answer(0).shown.iter().map(|data| data.len() + "data: \n\n".len()).sum();
    // The allocator and the code are warm before anything is measured.
    drop(fill(100, |stream, store| answer(stream).keep(store).0));
    let mut parts = Vec::with_capacity(STREAMS);
    let kept = fill(STREAMS, |stream, store| {
        let (log, quarters) = answer(stream).keep(store);
        parts.push(quarters);
        log
    });
    for stream in [0, 1, STREAMS / 2, STREAMS - 1] {
        answer(stream).check(&kept.logs[stream]);
    }
    let raw = fill(RAW_STREAMS, |stream, store| answer(stream).keep_raw(store));
    answer(7).check(&raw.logs[7]);

    let part = |part: usize| parts.iter().map(move |parts| parts[part]);
    let quarter = |quarter: usize| kept.took[quarter * STREAMS / 4..][..STREAMS / 4].iter().copied();
    let (along, full, given) = (ratio(part(0), part(1)), ratio(quarter(0), quarter(3)), given_for_held());
    let took: Duration = kept.took.iter().sum();
    println!("{STREAMS} streams of {EVENTS} events, {} bytes of text each", answer(0).text_bytes);
    println!("an answer on the wire                {wire:>9} bytes");
    println!("kept as it is, by the store          {:>9} bytes a stream ({RAW_STREAMS} streams)", raw.by_store);
    println!("kept as it is, by the process        {:>9} bytes a stream ({RAW_STREAMS} streams)", raw.by_process);
    println!("kept as records, by the store        {:>9} bytes a stream", kept.by_store);
    println!("kept as records, by the process      {:>9} bytes a stream", kept.by_process);
    println!("all of it                            {:>9} MB resident", kept.by_process * STREAMS / 1_000_000);
    println!("as it is, for one as records         {:>9.1}", raw.by_store as f64 / kept.by_store as f64);
    println!("time for an event, wire to record    {:>9} ns", took.as_nanos() / (STREAMS * EVENTS) as u128);
    println!("last quarter of a stream to first    {along:>9.2}");
    println!("last quarter of the streams to first {full:>9.2}");
    println!("allocated for a byte held            {given:>9.3}");
    assert!(kept.by_store <= MOST_PER_STREAM, "a stream takes at most {MOST_PER_STREAM} bytes");
    assert!(along < EVEN && full < EVEN, "an append costs the same wherever it is");
    assert!(given < 1.1, "no append copies what is there");
}

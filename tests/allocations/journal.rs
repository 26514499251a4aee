//! Decoder, journal and encoder; and the memory that an answer takes.

use std::task::{Context, Poll, Waker};

use baton::journal::{Entry, Keep, Limits, MemoryStore, Pulled, Reader, Writer};
use baton::proto::record::{Frame, FrameId, Record, Seal, Sink};
use baton::proto::sse;

use super::counting::{allocations, live_bytes};

const LIMITS: Limits = Limits { max_stream: 4 << 20, max_total: 64 << 20, max_streams: 100 };
const TEXT: &str = "长江发源于青藏高原的唐古拉山脉流经十一个省市自治区最后注入东海全长六千三百余公里";
const HEAD: &str = r#"{"id":"chatcmpl-b781a7c8ed7e296d","object":"chat.completion.chunk","created":1796053190,"model":"qwen3.6-35b-a3b","choices":[{"index":0,"delta":"#;
const TAIL: &str = r#"},"logprobs":null,"finish_reason":null}]}"#;

fn frame(field: &str) -> Frame {
    Frame {
        prefix: format!(r#"{HEAD}{{"{field}":""#).into_bytes().into(),
        suffix: format!(r#""{TAIL}"#).into_bytes().into(),
    }
}

fn token(i: usize) -> &'static str {
    let (start, char) = TEXT.char_indices().nth(i % TEXT.chars().count()).unwrap_or((0, '长'));
    &TEXT[start..start + char.len_utf8()]
}

/// One event on its whole way: off the wire, into the log, out of it, and onto the wire again.
struct Path {
    decoder: sse::Decoder,
    frame: Frame,
    id: FrameId,
    writer: Writer,
    reader: Reader,
    data: Vec<u8>,
    wire: Vec<u8>,
}

impl Path {
    fn new(keep: Keep) -> Self {
        let mut writer = MemoryStore::new(LIMITS).create_keeping(keep).unwrap();
        let frame = frame("content");
        let id = writer.define(frame.clone()).unwrap();
        let reader = writer.reader(0);
        let decoder = sse::Decoder::new(sse::DEFAULT_MAX_EVENT);
        Path { decoder, frame, id, writer, reader, data: Vec::new(), wire: Vec::new() }
    }

    /// Sends `bytes` through, in two parts; says whether they came out as they went in.
    fn carry(&mut self, bytes: &[u8], cut: usize) -> bool {
        let mut waiting = Context::from_waker(Waker::noop());
        assert_eq!(self.reader.poll_ready(&mut waiting), Poll::Pending);
        for part in [&bytes[..cut], &bytes[cut..]] {
            let mut events = self.decoder.feed(part);
            while let Some(item) = events.next() {
                let Ok(sse::Item::Event(event)) = item else { continue };
                let inner = event.data.strip_prefix(&*self.frame.prefix);
                let record = match inner.and_then(|inner| inner.strip_suffix(&*self.frame.suffix)) {
                    Some(text) => Record::Framed { frame: self.id, text },
                    None => Record::Whole { event: event.event, data: event.data },
                };
                self.writer.append(record);
            }
        }
        assert_eq!(self.reader.poll_ready(&mut waiting), Poll::Ready(()));
        self.wire.clear();
        let (data, wire) = (&mut self.data, &mut self.wire);
        let pulled = self.reader.pull(usize::MAX, &mut |_, entry| {
            let Entry::Record { record, frames } = entry else { return };
            data.clear();
            if record.write_data(frames, data).is_ok() {
                sse::encode(wire, None, None, data);
            }
        });
        pulled == Ok(Pulled::Empty) && self.wire == bytes
    }
}

fn wire_events(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| format!("data: {HEAD}{{\"content\":\"{}\"{TAIL}\n\n", token(i)).into_bytes()).collect()
}

fn allocations_of_2000_events(keep: Keep) -> usize {
    let events = wire_events(2100);
    let mut path = Path::new(keep);
    // The buffers grow to their size first: events in one part, and cut in every sort of place.
    for (i, event) in events[..100].iter().enumerate() {
        assert!(path.carry(event, i * event.len() / 100));
    }
    allocations(|| {
        for (i, event) in events[100..].iter().enumerate() {
            assert!(path.carry(event, i % event.len()));
        }
    })
}

#[test]
fn an_event_on_its_way_to_a_client_that_keeps_up_allocates_nothing() {
    assert_eq!(allocations_of_2000_events(Keep::Unread), 0);
}

#[test]
fn a_log_that_keeps_everything_allocates_one_segment_in_500_events() {
    // 2,000 records of 4 bytes are 8,000 bytes: four segments of 2 KiB, and the list of segments grows once.
    assert_eq!(allocations_of_2000_events(Keep::All), 5);
}

#[test]
fn an_answer_of_2000_events_and_6000_bytes_of_chinese_costs_at_most_12_kilobytes() {
    let store = MemoryStore::new(LIMITS);
    let live_before = live_bytes();
    let mut writer = store.create_keeping(Keep::All).unwrap();
    let whole = |data: &'static str| Record::Whole { event: None, data: data.as_bytes() };
    writer.append(whole(concat!(
        r#"{"id":"chatcmpl-b781a7c8ed7e296d","object":"chat.completion.chunk","created":1796053190,"model":"qwen3.6-35b-a3b","#,
        r#""choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#,
    )));
    let mut text_bytes = 0;
    for field in ["reasoning", "content"] {
        let frame = writer.define(frame(field)).unwrap();
        for i in 0..1000 {
            text_bytes += token(i).len();
            writer.append(Record::Framed { frame, text: token(i).as_bytes() });
        }
    }
    writer.append(whole(concat!(
        r#"{"id":"chatcmpl-b781a7c8ed7e296d","object":"chat.completion.chunk","created":1796053190,"model":"qwen3.6-35b-a3b","#,
        r#""choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":null}]}"#,
    )));
    writer.append(whole(concat!(
        r#"{"id":"chatcmpl-b781a7c8ed7e296d","object":"chat.completion.chunk","created":1796053190,"model":"qwen3.6-35b-a3b","#,
        r#""choices":[],"usage":{"prompt_tokens":19,"total_tokens":2019,"completion_tokens":2000}}"#,
    )));
    writer.seal(Seal::Finished);
    assert_eq!((text_bytes, writer.next_seq()), (6000, 2003));

    let live = usize::try_from(live_bytes() - live_before).unwrap();
    // What the store says it holds is what the allocator gave out, to the two counters of the log's `Arc`.
    assert_eq!(store.bytes() + 2 * size_of::<usize>(), live);
    assert!(live <= 12_000, "{live}");
}

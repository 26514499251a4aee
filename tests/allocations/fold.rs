//! Decoder, frame and fold.

use baton::proto::chat::{LearnedFrame, Parsed, Partial, learn, parse};
use baton::proto::record::{FrameId, Record};
use baton::proto::sse::{DEFAULT_MAX_EVENT, Decoder, Item, encode};

use super::counting::allocations;

/// Words as a model streams them: plain, multi-byte, escaped, and as surrogate pairs.
const WORDS: [&str; 8] = [" the", "答案", "\\n\\n", "🚀", " \\\"quoted\\\"", "\\ud83d\\ude00", "é", " \\u4f60"];

fn event(number: usize) -> Vec<u8> {
    let word = WORDS[number % WORDS.len()];
    let data = format!(
        r#"{{"id":"chatcmpl-b4a7b9b1590ebbb7","object":"chat.completion.chunk","created":1796053088,"model":"m","choices":[{{"index":0,"delta":{{"content":"{word}"}},"logprobs":null,"finish_reason":null,"token_ids":null}}]}}"#
    );
    let mut wire = Vec::new();
    encode(&mut wire, None, None, data.as_bytes());
    wire
}

/// Reads each piece of the wire on the fast path and returns how many events there were.
fn read(
    decoder: &mut Decoder,
    known: &LearnedFrame,
    partial: &mut Partial,
    log: &mut Vec<u8>,
    pieces: &[&[u8]],
) -> usize {
    let mut events = 0;
    for piece in pieces {
        let mut items = decoder.feed(piece);
        while let Some(item) = items.next() {
            let Ok(Item::Event(event)) = item else { continue };
            let text = known.read(event.data).expect("every event of this stream fits its frame").text;
            partial.push_text(known.kind, text, None).expect("every text of this stream is valid");
            log.clear();
            Record::Framed { frame: FrameId(0), text }.encode(log);
            events += 1;
        }
    }
    events
}

/// Splits the wire after every `size` bytes.
fn check(size: usize, limit: usize) {
    const EVENTS: usize = 4000;
    let wire: Vec<u8> = (0..EVENTS).flat_map(event).collect();
    let pieces: Vec<&[u8]> = wire.chunks(size).collect();
    let first = event(0);
    let data = first.strip_prefix(b"data: ").unwrap().trim_ascii_end();
    let known = learn(data).unwrap();
    let Ok(Parsed::Chunk(chunk)) = parse(data) else { panic!() };
    let mut partial = Partial::default();
    partial.fold(&chunk);
    let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
    let mut log = Vec::with_capacity(1024);
    // The decoder's own buffer reaches its size with the first events.
    let (warm_up, rest) = pieces.split_at(pieces.len() / 10);
    let mut events = read(&mut decoder, &known, &mut partial, &mut log, warm_up);
    let counted = allocations(|| events += read(&mut decoder, &known, &mut partial, &mut log, rest));
    assert_eq!(events, EVENTS);
    assert_eq!(partial.choices[0].content.matches("答案").count(), EVENTS / WORDS.len());
    assert!(counted <= limit, "{counted} allocations for {EVENTS} events in pieces of {size} bytes");
}

#[test]
fn an_event_in_a_known_frame_allocates_only_when_the_text_outgrows_its_string() {
    // From a tenth of the text to all of it a string doubles at most four times; the decoder's buffer may still grow to the
    // length of an event.
    for size in [16_384, 1_000, 100, 7] {
        check(size, 8);
    }
}

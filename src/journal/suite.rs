//! The conformance suite: one test per invariant of the specification, for any store.
//!
//! A store is run through it by implementing [`Store`], [`WriteEnd`] and [`ReadEnd`] for it and naming a way to open one in
//! [`every_store_keeps`], whose list of tests is the same for all.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::{AppendError, Entry, Full, Handle, Keep, Limits, MemoryStore, Pulled, ReadError, Reader, Writer};
use crate::proto::record::{Frame, FrameId, MAX_FRAMES, MirroredEnd, Record, Seal, Seq};

/// A store under test.
pub(super) trait Store {
    fn create(&self, keep: Keep) -> Result<Box<dyn WriteEnd>, Full>;
    fn bytes(&self) -> usize;
    fn streams(&self) -> usize;
}

/// Its writers.
pub(super) trait WriteEnd {
    fn epoch(&self) -> u64;
    fn define(&mut self, frame: Frame) -> Result<Option<FrameId>, AppendError>;
    fn append(&mut self, record: Record<'_>) -> Result<Seq, AppendError>;
    fn seal(&mut self, seal: Seal) -> Result<Seq, AppendError>;
    fn trim_to(&mut self, seq: Seq);
    fn release(&self, seq: Seq, window: usize);
    fn reader(&self, from: Seq) -> Box<dyn ReadEnd>;
    fn take_over(&self) -> Result<Box<dyn WriteEnd>, AppendError>;
    /// A way to new readers that outlives the writer.
    fn readers(&self) -> Box<dyn Fn(Seq) -> Box<dyn ReadEnd>>;
}

/// Its readers.
pub(super) trait ReadEnd: Send {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()>;
    fn pull(&mut self, max_bytes: usize, on: &mut dyn FnMut(Seq, Entry<'_>)) -> Result<Pulled, ReadError>;
    fn position(&self) -> Seq;
}

impl Store for Arc<MemoryStore> {
    fn create(&self, keep: Keep) -> Result<Box<dyn WriteEnd>, Full> {
        Ok(Box::new(self.create_keeping(keep)?))
    }
    fn bytes(&self) -> usize {
        MemoryStore::bytes(self)
    }
    fn streams(&self) -> usize {
        MemoryStore::streams(self)
    }
}

impl WriteEnd for Writer {
    fn epoch(&self) -> u64 {
        Writer::epoch(self)
    }
    fn define(&mut self, frame: Frame) -> Result<Option<FrameId>, AppendError> {
        self.try_define(frame)
    }
    fn append(&mut self, record: Record<'_>) -> Result<Seq, AppendError> {
        self.try_append(record)
    }
    fn seal(&mut self, seal: Seal) -> Result<Seq, AppendError> {
        self.try_seal(seal)
    }
    fn trim_to(&mut self, seq: Seq) {
        Writer::trim_to(self, seq);
    }
    fn release(&self, seq: Seq, window: usize) {
        self.handle().release(seq, window);
    }
    fn reader(&self, from: Seq) -> Box<dyn ReadEnd> {
        Box::new(Writer::reader(self, from))
    }
    fn take_over(&self) -> Result<Box<dyn WriteEnd>, AppendError> {
        Ok(Box::new(self.handle().take_over()?))
    }
    fn readers(&self) -> Box<dyn Fn(Seq) -> Box<dyn ReadEnd>> {
        let handle: Handle = self.handle();
        Box::new(move |from| Box::new(handle.reader(from)))
    }
}

impl ReadEnd for Reader {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Reader::poll_ready(self, cx)
    }
    fn pull(&mut self, max_bytes: usize, on: &mut dyn FnMut(Seq, Entry<'_>)) -> Result<Pulled, ReadError> {
        Reader::pull(self, max_bytes, on)
    }
    fn position(&self) -> Seq {
        Reader::position(self)
    }
}

type Open = fn(Limits) -> Box<dyn Store>;

/// Runs the suite against each store.
macro_rules! every_store_keeps {
    ([$($store:ident: $open:expr;)*] $tests:tt) => { $(
        mod $store {
            every_store_keeps!(@tests $open, $tests);
        }
    )* };
    (@tests $open:expr, [$($test:ident)*]) => { $(
        #[test]
        fn $test() {
            super::$test($open);
        }
    )* };
}

every_store_keeps! {
    [
        memory: |limits| Box::new(crate::journal::MemoryStore::new(limits));
    ]
    [
        j1_seqs_start_at_0_rise_by_one_and_are_never_used_again
        j2_a_writer_of_an_earlier_epoch_is_fenced_and_changes_nothing
        j3_there_is_exactly_one_seal_and_it_is_last
        j4_a_reader_ends_on_a_seal_only_and_a_lost_writer_is_an_error
        j5_data_is_visible_before_a_reader_is_woken
        j6_every_reader_pulls_everything_at_its_own_pace_and_holds_up_nobody
        j7_a_stream_over_its_limit_loses_its_oldest_records_and_goes_on
        j7_a_store_over_its_total_takes_from_large_streams_and_then_takes_no_new_ones
        j7_streams_are_bounded_and_what_is_let_go_is_given_back
        j7_frames_are_bounded
        j8_the_seal_is_read_as_it_was_written
        j9_a_reader_that_leaves_changes_nothing_for_the_writer
        j10_what_is_read_again_from_any_seq_is_what_was_read_live
        a_log_for_one_reader_keeps_only_what_it_has_not_passed
        a_trim_lets_go_of_nothing_above_its_seq
        a_pull_hands_out_about_as_much_as_it_was_asked_for
        a_position_that_the_log_never_had_is_an_error_and_no_wait
        a_record_of_an_unknown_frame_changes_nothing
        a_release_keeps_the_window_and_touches_no_reader_above_it
    ]
}

#[test]
fn j11_every_store_passes_the_same_suite() {
    let words = |text: &'static str| text.split(|c: char| !c.is_alphanumeric()).collect::<Vec<_>>();
    let public = include_str!("mod.rs").lines().filter(|line| line.starts_with("pub use "));
    let stores: Vec<_> = public.flat_map(words).filter(|word| word.ends_with("Store")).collect();
    assert!(stores.contains(&"MemoryStore"), "{stores:?}");
    for store in stores {
        let opened = format!("Box::new(crate::journal::{store}::");
        assert!(include_str!("suite.rs").contains(&opened), "{store} is not in `every_store_keeps`");
    }
}

pub(super) const ROOMY: Limits = Limits { max_stream: 1 << 24, max_total: 1 << 26, max_streams: 100 };

/// What a reader got: the seq, and the event's name and data or the seal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Got {
    Event(Seq, Option<String>, String),
    Seal(Seq, Seal),
}

impl Got {
    pub(super) fn new(seq: Seq, entry: Entry<'_>) -> Self {
        match entry {
            Entry::Seal(seal) => Got::Seal(seq, seal.clone()),
            Entry::Record { record, frames } => {
                let mut data = Vec::new();
                record.write_data(frames, &mut data).expect("the frame is known");
                let event = match record {
                    Record::Whole { event, .. } => event.map(str::to_owned),
                    Record::Framed { .. } => None,
                };
                Got::Event(seq, event, String::from_utf8(data).expect("written as text"))
            }
        }
    }
}

/// What was handed out, and how the last pull ended.
type PulledAll = (Vec<Got>, Result<Pulled, ReadError>);

/// Pulls until there is nothing more to pull.
fn pull_all(reader: &mut dyn ReadEnd) -> PulledAll {
    let mut got = Vec::new();
    loop {
        let pulled = reader.pull(64, &mut |seq, entry| got.push(Got::new(seq, entry)));
        if pulled != Ok(Pulled::More) {
            return (got, pulled);
        }
    }
}

fn seqs(got: &[Got]) -> Vec<Seq> {
    got.iter()
        .map(|got| match got {
            Got::Event(seq, ..) | Got::Seal(seq, _) => *seq,
        })
        .collect()
}

fn is_ready(reader: &mut dyn ReadEnd) -> bool {
    reader.poll_ready(&mut Context::from_waker(Waker::noop())).is_ready()
}

fn whole(data: &str) -> Record<'_> {
    Record::Whole { event: None, data: data.as_bytes() }
}

pub(super) fn frame(name: &str) -> Frame {
    let prefix = format!(r#"{{"choices":[{{"index":0,"delta":{{"{name}":""#);
    Frame { prefix: prefix.into_bytes().into(), suffix: br#""}}]}"#.as_slice().into() }
}

fn incomplete() -> Seal {
    Seal::Incomplete { reason: "stall".into(), message: "the engine stopped".to_owned() }
}

/// Adds records of all kinds. The frame is defined anew each time, until there is no more room for it.
fn fill(writer: &mut dyn WriteEnd, records: usize) {
    let content = writer.define(frame("content")).unwrap().unwrap_or(FrameId(0));
    for i in 0..records {
        let text = ["河", "水🙂", r"\n", "", "一段比较长的文字，长到不能用短的形式写下来。"][i % 5];
        let record = match i % 7 {
            6 => Record::Whole { event: Some("error"), data: text.as_bytes() },
            5 => whole(text),
            _ => Record::Framed { frame: content, text: text.as_bytes() },
        };
        writer.append(record).unwrap();
    }
}

fn j1_seqs_start_at_0_rise_by_one_and_are_never_used_again(open: Open) {
    for keep in [Keep::All, Keep::Unread] {
        let store = open(Limits { max_stream: 8 << 10, ..ROOMY });
        let mut writer = store.create(keep).unwrap();
        let mut reader = writer.reader(0);
        for seq in 0..3000 {
            assert_eq!(writer.append(whole("some text that fills segments")), Ok(seq));
            if seq % 7 == 0 {
                let (got, _) = pull_all(&mut *reader);
                assert_eq!(seqs(&got), (seq.saturating_sub(6)..=seq).collect::<Vec<_>>());
            }
            if seq % 500 == 0 {
                writer = writer.take_over().unwrap();
                writer.trim_to(seq / 2);
            }
        }
        assert_eq!(writer.seal(Seal::Finished), Ok(3000));
    }
}

fn j2_a_writer_of_an_earlier_epoch_is_fenced_and_changes_nothing(open: Open) {
    let store = open(ROOMY);
    let mut stale = store.create(Keep::All).unwrap();
    stale.append(whole("a")).unwrap();
    let mut writer = stale.take_over().unwrap();
    assert_eq!((stale.epoch(), writer.epoch()), (1, 2));
    let fenced = AppendError::Fenced { epoch: 2 };
    assert_eq!(stale.append(whole("stale")), Err(fenced));
    assert_eq!(stale.define(frame("stale")), Err(fenced));
    assert_eq!(stale.seal(Seal::Finished), Err(fenced));
    stale.trim_to(1);
    let mut reader = writer.reader(0);
    drop(stale);
    assert_eq!(pull_all(&mut *reader), (vec![Got::Event(0, None, "a".into())], Ok(Pulled::Empty)));
    assert_eq!(writer.define(frame("content")), Ok(Some(FrameId(0))));
    assert_eq!(writer.append(whole("b")), Ok(1));
    assert_eq!(pull_all(&mut *reader), (vec![Got::Event(1, None, "b".into())], Ok(Pulled::Empty)));
}

fn j3_there_is_exactly_one_seal_and_it_is_last(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    writer.append(whole("a")).unwrap();
    assert_eq!(writer.seal(incomplete()), Ok(1));
    assert_eq!(writer.seal(Seal::Finished), Err(AppendError::Sealed));
    assert_eq!(writer.append(whole("b")), Err(AppendError::Sealed));
    assert_eq!(writer.define(frame("content")), Err(AppendError::Sealed));
    assert_eq!(writer.take_over().err(), Some(AppendError::Sealed));
    let expected = vec![Got::Event(0, None, "a".into()), Got::Seal(1, incomplete())];
    assert_eq!(pull_all(&mut *writer.reader(0)), (expected, Ok(Pulled::Sealed)));
}

fn j4_a_reader_ends_on_a_seal_only_and_a_lost_writer_is_an_error(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    writer.append(whole("a")).unwrap();
    let readers = writer.readers();
    let (mut reader, mut waiting) = (readers(0), readers(1));
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    assert!(waiting.poll_ready(&mut Context::from_waker(&waker)).is_pending());
    let handle = writer.take_over().unwrap();
    drop(writer);
    assert_eq!(count.woken(), 0, "the log has a writer");
    drop(handle);
    assert_eq!(count.woken(), 1);
    let lost = Err(ReadError::WriterLost);
    assert_eq!(pull_all(&mut *reader), (vec![Got::Event(0, None, "a".into())], lost));
    assert_eq!(pull_all(&mut *reader), (vec![], lost), "it stays so");
    assert!(is_ready(&mut *reader));
    assert_eq!(pull_all(&mut *waiting), (vec![], lost));

    let mut writer = store.create(Keep::All).unwrap();
    let mut reader = writer.reader(0);
    writer.seal(Seal::Abandoned).unwrap();
    drop(writer);
    assert_eq!(pull_all(&mut *reader), (vec![Got::Seal(0, Seal::Abandoned)], Ok(Pulled::Sealed)));
    assert_eq!(pull_all(&mut *reader), (vec![], Ok(Pulled::Sealed)));
    assert!(is_ready(&mut *reader));
}

/// Counts how often it was woken.
#[derive(Default)]
pub(super) struct Count(AtomicUsize);

impl Count {
    pub(super) fn woken(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Pulls in the moment in which it is woken, which would miss what is not yet visible and hang where a lock is still held.
struct PullWhenWoken {
    reader: Mutex<Box<dyn ReadEnd>>,
    seen: Mutex<Vec<PulledAll>>,
}

impl Wake for PullWhenWoken {
    fn wake(self: Arc<Self>) {
        let pulled = pull_all(&mut **self.reader.lock().unwrap());
        self.seen.lock().unwrap().push(pulled);
    }
}

fn j5_data_is_visible_before_a_reader_is_woken(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::Unread).unwrap();
    let waiting: Vec<_> = (0..3)
        .map(|_| Arc::new(PullWhenWoken { reader: Mutex::new(writer.reader(0)), seen: Mutex::default() }))
        .collect();
    let mut expect_seen = |act: &mut dyn FnMut(&mut dyn WriteEnd), expected: PulledAll| {
        for reader in &waiting {
            let waker = Waker::from(Arc::clone(reader));
            let polled = reader.reader.lock().unwrap().poll_ready(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
        }
        act(&mut *writer);
        for reader in &waiting {
            assert_eq!(std::mem::take(&mut *reader.seen.lock().unwrap()), std::slice::from_ref(&expected));
        }
    };
    let append = |writer: &mut dyn WriteEnd| assert!(writer.append(whole("a")).is_ok());
    expect_seen(&mut { append }, (vec![Got::Event(0, None, "a".into())], Ok(Pulled::Empty)));
    expect_seen(&mut { append }, (vec![Got::Event(1, None, "a".into())], Ok(Pulled::Empty)));
    let seal = |writer: &mut dyn WriteEnd| assert!(writer.seal(Seal::Finished).is_ok());
    expect_seen(&mut { seal }, (vec![Got::Seal(2, Seal::Finished)], Ok(Pulled::Sealed)));
}

fn j6_every_reader_pulls_everything_at_its_own_pace_and_holds_up_nobody(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    let mut readers: Vec<_> = (0..4).map(|_| (writer.reader(0), Vec::new())).collect();
    for seq in 0..2000u64 {
        writer.append(whole("some text that fills segments")).unwrap();
        // Reader 0 keeps up, the others pull now and then, the last one never until the end.
        for (i, (reader, got)) in readers.iter_mut().enumerate().take(3) {
            if seq % (1 + 50 * i as u64) == 0 {
                reader.pull(100, &mut |seq, _| got.push(seq)).unwrap();
            }
        }
    }
    writer.seal(Seal::Finished).unwrap();
    for (mut reader, mut got) in readers {
        got.extend(seqs(&pull_all(&mut *reader).0));
        assert_eq!(got, (0..=2000).collect::<Vec<_>>());
    }
}

fn j7_a_stream_over_its_limit_loses_its_oldest_records_and_goes_on(open: Open) {
    let limits = Limits { max_stream: 16 << 10, ..ROOMY };
    let store = open(limits);
    let mut writer = store.create(Keep::All).unwrap();
    let (mut live, mut slow) = (writer.reader(0), writer.reader(0));
    for seq in 0..5000 {
        assert_eq!(writer.append(whole("some text that fills segments")), Ok(seq));
        assert_eq!(seqs(&pull_all(&mut *live).0), [seq]);
        assert!(store.bytes() <= limits.max_stream, "{}", store.bytes());
    }
    let (got, Err(ReadError::Trimmed { low })) = pull_all(&mut *slow) else { panic!("the slow reader was not told") };
    assert!(got.is_empty() && is_ready(&mut *slow));
    assert_eq!(pull_all(&mut *slow), (vec![], Err(ReadError::Trimmed { low })), "it stays so");
    let (got, pulled) = pull_all(&mut *writer.reader(low));
    assert_eq!((seqs(&got), pulled), ((low..5000).collect(), Ok(Pulled::Empty)));
    assert!(got.len() > 300, "no more is lost than has to be");
    // One event larger than everything costs all the others, and is there.
    let huge = "x".repeat(100 << 10);
    writer.append(whole(&huge)).unwrap();
    assert_eq!(pull_all(&mut *live).0, [Got::Event(5000, None, huge)]);
    writer.append(whole("small again")).unwrap();
    assert_eq!(seqs(&pull_all(&mut *live).0), [5001]);
    assert!(store.bytes() <= limits.max_stream);
}

fn j7_a_store_over_its_total_takes_from_large_streams_and_then_takes_no_new_ones(open: Open) {
    let limits = Limits { max_stream: 1 << 20, max_total: 128 << 10, max_streams: 100 };
    let store = open(limits);
    let mut large = store.create(Keep::All).unwrap();
    let mut live = large.reader(0);
    let mut grow = |large: &mut dyn WriteEnd| {
        for _ in 0..10_000 {
            large.append(whole("some text that fills segments")).unwrap();
            assert_eq!(pull_all(&mut *live).0.len(), 1, "the stream goes on");
        }
    };
    grow(&mut *large);
    assert!(store.bytes() <= limits.max_total + super::SEGMENT, "{}", store.bytes());

    let mut small = Vec::new();
    while let Ok(mut writer) = store.create(Keep::All) {
        fill(&mut *writer, 500);
        grow(&mut *large);
        small.push(writer);
    }
    assert!(matches!(store.create(Keep::All), Err(Full::Bytes { limit }) if limit == limits.max_total));
    assert!(small.len() >= 10, "{}", small.len());
    assert!(store.bytes() <= limits.max_total + 2 * super::RESERVE, "{}", store.bytes());
    for writer in &small {
        assert_eq!(pull_all(&mut *writer.reader(0)).0.len(), 500, "an ordinary answer is not touched");
    }
    small.pop();
    assert!(store.create(Keep::All).is_ok());
}

fn j7_streams_are_bounded_and_what_is_let_go_is_given_back(open: Open) {
    let store = open(Limits { max_streams: 2, ..ROOMY });
    let mut first = store.create(Keep::All).unwrap();
    let second = store.create(Keep::All).unwrap();
    assert!(matches!(store.create(Keep::All), Err(Full::Streams { limit: 2 })));
    fill(&mut *first, 100);
    let reader = first.reader(0);
    drop(first);
    assert_eq!(store.streams(), 2, "a reader holds its log");
    drop(reader);
    assert_eq!(store.streams(), 1);
    drop(second);
    assert_eq!((store.streams(), store.bytes()), (0, 0));
}

fn j7_frames_are_bounded(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    for id in 0..MAX_FRAMES {
        assert_eq!(writer.define(frame("content")), Ok(Some(FrameId(id as u8))));
    }
    assert_eq!(writer.define(frame("content")), Ok(None));
    let mut writer = store.create(Keep::All).unwrap();
    let large = Frame { prefix: vec![b'x'; super::FRAME_BYTES].into(), suffix: [b'"'].into() };
    assert_eq!(writer.define(large), Ok(None));
    assert_eq!(writer.define(frame("content")), Ok(Some(FrameId(0))));
}

fn j8_the_seal_is_read_as_it_was_written(open: Open) {
    let mirrored = [MirroredEnd::Cut, MirroredEnd::Clean, MirroredEnd::Done].map(Seal::Mirrored);
    for seal in [Seal::Finished, incomplete(), Seal::Abandoned, Seal::Cancelled].into_iter().chain(mirrored) {
        let store = open(ROOMY);
        let mut writer = store.create(Keep::Unread).unwrap();
        let mut reader = writer.reader(0);
        writer.seal(seal.clone()).unwrap();
        assert_eq!(pull_all(&mut *reader).0, [Got::Seal(0, seal.clone())]);
        assert_eq!(seal.is_finished(), seal == Seal::Finished);
    }
}

fn j9_a_reader_that_leaves_changes_nothing_for_the_writer(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut leaving = writer.reader(0);
    assert!(leaving.poll_ready(&mut Context::from_waker(&waker)).is_pending());
    drop(leaving);
    fill(&mut *writer, 100);
    assert_eq!(count.woken(), 0);
    let mut other = writer.reader(0);
    let (got, pulled) = pull_all(&mut *other);
    assert_eq!((seqs(&got), pulled), ((0..100).collect(), Ok(Pulled::Empty)), "it goes on, and is not over for others");
    writer.seal(Seal::Finished).unwrap();
    assert_eq!(pull_all(&mut *other), (vec![Got::Seal(100, Seal::Finished)], Ok(Pulled::Sealed)));
}

fn j10_what_is_read_again_from_any_seq_is_what_was_read_live(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    let mut live = writer.reader(0);
    fill(&mut *writer, 1);
    let mut sent = pull_all(&mut *live).0;
    for _ in 0..100 {
        fill(&mut *writer, 7);
        sent.extend(pull_all(&mut *live).0);
    }
    writer.seal(Seal::Finished).unwrap();
    sent.extend(pull_all(&mut *live).0);
    let readers = writer.readers();
    drop(writer);
    for from in 0..=sent.len() {
        assert_eq!(pull_all(&mut *readers(from as Seq)), (sent[from..].to_vec(), Ok(Pulled::Sealed)), "from {from}");
    }
}

fn a_log_for_one_reader_keeps_only_what_it_has_not_passed(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::Unread).unwrap();
    fill(&mut *writer, 1000);
    let all = store.bytes();
    let mut reader = writer.reader(0);
    assert_eq!(pull_all(&mut *reader).0.len(), 1000, "without a reader everything stays");
    let little = store.bytes();
    assert!(little < all / 4, "{little} of {all}");
    for _ in 0..1000 {
        writer.append(whole("some text that fills segments")).unwrap();
        assert_eq!(pull_all(&mut *reader).0.len(), 1);
    }
    assert_eq!(store.bytes(), little);
    for text in ["x".repeat(100 << 10).as_str(), "small again"] {
        writer.append(whole(text)).unwrap();
        assert_eq!(pull_all(&mut *reader).0.len(), 1);
    }
    assert_eq!(store.bytes(), little, "a huge event leaves nothing behind");
    assert_eq!(pull_all(&mut *writer.reader(0)).1, Err(ReadError::Trimmed { low: 2002 }));
    let (mut second, before) = (writer.reader(2002), writer.reader(2002));
    fill(&mut *writer, 1000);
    assert_eq!(pull_all(&mut *reader).0.len(), 1000);
    drop(before);
    assert_eq!(pull_all(&mut *second).0.len(), 1000, "the slowest reader counts");
}

fn a_trim_lets_go_of_nothing_above_its_seq(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    fill(&mut *writer, 1000);
    let all = store.bytes();
    let behind = writer.reader(499);
    writer.trim_to(500);
    assert_eq!(seqs(&pull_all(&mut *writer.reader(500)).0), (500..1000).collect::<Vec<_>>());
    assert!(store.bytes() < all * 3 / 4);
    drop(behind);
    assert!(matches!(pull_all(&mut *writer.reader(0)).1, Err(ReadError::Trimmed { low }) if low <= 500));
    writer.trim_to(Seq::MAX);
    writer.append(whole("next")).unwrap();
    assert_eq!(seqs(&pull_all(&mut *writer.reader(1000)).0), [1000]);
}

fn a_pull_hands_out_about_as_much_as_it_was_asked_for(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    for _ in 0..10 {
        writer.append(whole("0123456789")).unwrap();
    }
    let mut reader = writer.reader(0);
    let mut pull = |max| {
        let mut count = 0;
        let pulled = reader.pull(max, &mut |_, _| count += 1).unwrap();
        (count, pulled, reader.position())
    };
    assert_eq!(pull(0), (1, Pulled::More, 1), "never nothing while there is something");
    assert_eq!(pull(10), (1, Pulled::More, 2));
    assert_eq!(pull(11), (2, Pulled::More, 4));
    assert_eq!(pull(60), (6, Pulled::Empty, 10));
    assert_eq!(pull(60), (0, Pulled::Empty, 10));
}

fn a_position_that_the_log_never_had_is_an_error_and_no_wait(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    fill(&mut *writer, 3);
    for from in [4, Seq::MAX] {
        let mut reader = writer.reader(from);
        assert!(is_ready(&mut *reader));
        assert_eq!(pull_all(&mut *reader), (vec![], Err(ReadError::Ahead { next: 3 })));
    }
    let mut next = writer.reader(3);
    assert!(!is_ready(&mut *next));
    writer.seal(Seal::Finished).unwrap();
    assert_eq!(pull_all(&mut *next).0, [Got::Seal(3, Seal::Finished)]);
    assert_eq!(pull_all(&mut *writer.reader(4)), (vec![], Ok(Pulled::Sealed)), "behind the seal there is nothing left");
    assert_eq!(pull_all(&mut *writer.reader(5)).1, Err(ReadError::Ahead { next: 3 }));
}

fn a_record_of_an_unknown_frame_changes_nothing(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    let record = Record::Framed { frame: FrameId(0), text: b"a" };
    assert_eq!(writer.append(record), Err(AppendError::UnknownFrame(0)));
    writer.define(frame("content")).unwrap();
    assert_eq!(writer.append(record), Ok(0));
}

fn a_release_keeps_the_window_and_touches_no_reader_above_it(open: Open) {
    let store = open(ROOMY);
    let mut writer = store.create(Keep::All).unwrap();
    let [mut fast, mut slow, mut first] = [(); 3].map(|()| writer.reader(0));
    fill(&mut *writer, 1000);
    assert_eq!(pull_all(&mut *fast).0.len(), 1000);
    assert_eq!(slow.pull(0, &mut |_, _| ()), Ok(Pulled::More));
    let all = store.bytes();
    writer.release(900, all);
    assert_eq!(seqs(&pull_all(&mut *first).0), (0..1000).collect::<Vec<_>>(), "the window holds it all");
    writer.release(900, all - 1);
    assert!(store.bytes() < all / 3, "{} of {all}", store.bytes());
    let (got, Err(ReadError::Trimmed { low })) = pull_all(&mut *slow) else { panic!("the slow reader was not told") };
    assert!(got.is_empty() && (1..=900).contains(&low), "{low}");
    assert_eq!(pull_all(&mut *writer.reader(low - 1)).1, Err(ReadError::Trimmed { low }));
    writer.release(low, 0);
    writer.append(whole("next")).unwrap();
    assert_eq!(seqs(&pull_all(&mut *writer.reader(low)).0), (low..=1000).collect::<Vec<_>>(), "nothing else is gone");
    for reader in [&mut fast, &mut first] {
        assert_eq!(seqs(&pull_all(&mut **reader).0), [1000]);
    }
    writer.seal(Seal::Finished).unwrap();
    writer.release(Seq::MAX, 0);
    assert_eq!(pull_all(&mut *writer.reader(1000)).1, Err(ReadError::Trimmed { low: 1001 }));
    for reader in [&mut fast, &mut writer.reader(1001)] {
        assert_eq!(
            pull_all(&mut **reader),
            (vec![Got::Seal(1001, Seal::Finished)], Ok(Pulled::Sealed)),
            "the end stays"
        );
    }
}

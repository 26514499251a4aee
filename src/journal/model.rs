//! A model of a log, and random histories run against it and the store side by side. Readers are polled by hand, so that a wake-up that
//! is missing is seen, and one that is not needed too.

use std::sync::Arc;
use std::task::{Context, Waker};

use proptest::prelude::*;

use super::suite::{Count, Got, ROOMY, frame};
use super::{AppendError, Keep, Limits, MemoryStore, Pulled, RESERVE, ReadError, Reader, Span, Writer};
use crate::proto::record::{FrameId, MirroredEnd, Record, Seal, Seq};

#[derive(Clone, Debug)]
enum Step {
    Define,
    Append { framed: bool, named: bool, len: usize },
    AppendStale,
    Seal(Seal),
    TakeOver,
    LoseWriter,
    TrimTo(prop::sample::Index),
    Release(prop::sample::Index, usize),
    Attach(prop::sample::Index),
    Leave(prop::sample::Index),
    Poll(prop::sample::Index),
    Pull(prop::sample::Index, usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    let seal = prop::sample::select(vec![Seal::Finished, Seal::Abandoned, Seal::Mirrored(MirroredEnd::Cut)]);
    let len = prop_oneof![10 => 0usize..40, 2 => 0usize..600, 1 => 1500usize..5000];
    prop_oneof![
        3 => Just(Step::Define),
        100 => (any::<bool>(), any::<bool>(), len).prop_map(|(framed, named, len)| Step::Append { framed, named, len }),
        1 => Just(Step::AppendStale),
        1 => seal.prop_map(Step::Seal),
        2 => Just(Step::TakeOver),
        1 => Just(Step::LoseWriter),
        2 => any::<prop::sample::Index>().prop_map(Step::TrimTo),
        2 => (any::<prop::sample::Index>(), 0usize..20_000).prop_map(|(seq, window)| Step::Release(seq, window)),
        4 => any::<prop::sample::Index>().prop_map(Step::Attach),
        2 => any::<prop::sample::Index>().prop_map(Step::Leave),
        40 => any::<prop::sample::Index>().prop_map(Step::Poll),
        40 => (any::<prop::sample::Index>(), 0usize..3000).prop_map(|(who, max)| Step::Pull(who, max)),
    ]
}

/// A reader of the store, and what the model knows of it.
struct Watched {
    reader: Reader,
    position: Seq,
    count: Arc<Count>,
    /// Polled pending and not woken since; with how often it had been woken before.
    waits: Option<usize>,
}

struct Model {
    store: Arc<MemoryStore>,
    limits: Limits,
    keep: Keep,
    writer: Option<Writer>,
    stale: Option<Writer>,
    handle: super::Handle,
    frames: usize,
    /// Everything that was ever written.
    entries: Vec<Got>,
    /// The highest seq that was trimmed to or released.
    trimmed: Seq,
    sealed: bool,
    epoch: u64,
    readers: Vec<Watched>,
}

impl Model {
    fn new(limits: Limits, keep: Keep) -> Self {
        let store = MemoryStore::new(limits);
        let writer = store.create_keeping(keep).unwrap();
        let handle = writer.handle();
        Model {
            store,
            limits,
            keep,
            writer: Some(writer),
            stale: None,
            handle,
            frames: 0,
            entries: Vec::new(),
            trimmed: 0,
            sealed: false,
            epoch: 1,
            readers: Vec::new(),
        }
    }

    fn next(&self) -> Seq {
        self.entries.len() as Seq - Seq::from(self.sealed)
    }

    fn has_news(&self, position: Seq) -> bool {
        position != self.next() || self.sealed || self.writer.is_none()
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Define => self.define(),
            Step::Append { framed, named, len } => self.append(framed, named, len),
            Step::AppendStale => self.append_stale(),
            Step::Seal(seal) => self.seal(seal),
            Step::TakeOver => self.take_over(),
            Step::LoseWriter => self.writer = None,
            Step::TrimTo(seq) => self.trim(seq.index(self.entries.len() + 1) as Seq),
            Step::Release(seq, window) => self.release(seq.index(self.entries.len() + 1) as Seq, window),
            Step::Attach(from) => self.attach(from.index(self.entries.len() + 3) as Seq),
            Step::Leave(who) if !self.readers.is_empty() => {
                self.readers.swap_remove(who.index(self.readers.len()));
            }
            Step::Poll(who) if !self.readers.is_empty() => self.poll(who.index(self.readers.len())),
            Step::Pull(who, max) if !self.readers.is_empty() => self.pull(who.index(self.readers.len()), max),
            Step::Leave(_) | Step::Poll(_) | Step::Pull(..) => {}
        }
        self.check_wakes();
        self.check_span();
        // One log only: its own limit or what the total leaves it, and the one segment or event that is always left. Frames and tables,
        // which stay whatever the limits are, take less than 20 KiB.
        let limit = self.limits.max_stream.min(self.limits.max_total.max(RESERVE));
        assert!(self.store.bytes() <= limit.max(20 << 10) + 6000, "{} of {limit}", self.store.bytes());
    }

    fn define(&mut self) {
        let Some(writer) = &mut self.writer else { return };
        match writer.try_define(frame(&format!("content{}", self.frames))) {
            Ok(Some(FrameId(id))) => {
                assert_eq!(usize::from(id), self.frames);
                self.frames += 1;
            }
            Ok(None) => assert_eq!(self.frames, 64),
            Err(error) => assert!(error == AppendError::Sealed && self.sealed),
        }
    }

    fn append(&mut self, framed: bool, named: bool, len: usize) {
        let seq = self.entries.len();
        let text = format!("{seq}長").repeat(len / 4);
        let (record, got) = if framed && self.frames > 0 {
            let id = seq % self.frames;
            let around = frame(&format!("content{id}"));
            let data = [&around.prefix, text.as_bytes(), &around.suffix].concat();
            let record = Record::Framed { frame: FrameId(id as u8), text: text.as_bytes() };
            (record, Got::Event(seq as Seq, None, String::from_utf8(data).unwrap()))
        } else {
            let event = named.then_some("error");
            let got = Got::Event(seq as Seq, event.map(str::to_owned), text.clone());
            (Record::Whole { event, data: text.as_bytes() }, got)
        };
        let Some(writer) = &mut self.writer else { return };
        if self.sealed {
            assert_eq!(writer.try_append(record), Err(AppendError::Sealed));
        } else {
            assert_eq!(writer.try_append(record), Ok(seq as Seq));
            self.entries.push(got);
        }
    }

    fn append_stale(&mut self) {
        if let Some(stale) = &mut self.stale {
            let record = Record::Whole { event: None, data: b"stale" };
            assert_eq!(stale.try_append(record), Err(AppendError::Fenced { epoch: self.epoch }));
            stale.trim_to(Seq::MAX); // `check_span` finds nothing gone
        }
    }

    fn seal(&mut self, seal: Seal) {
        let Some(writer) = &mut self.writer else { return };
        let next = self.entries.len() as Seq;
        if self.sealed {
            assert_eq!(writer.try_seal(seal), Err(AppendError::Sealed));
        } else {
            assert_eq!(writer.try_seal(seal.clone()), Ok(next));
            self.entries.push(Got::Seal(next, seal));
            self.sealed = true;
        }
    }

    fn take_over(&mut self) {
        match self.handle.take_over() {
            Ok(writer) => {
                self.epoch += 1;
                assert_eq!((writer.epoch(), writer.next_seq()), (self.epoch, self.next()));
                self.stale = self.writer.replace(writer);
            }
            Err(error) => assert!(error == AppendError::Sealed && self.sealed),
        }
    }

    fn trim(&mut self, seq: Seq) {
        if let Some(writer) = &mut self.writer {
            writer.trim_to(seq);
            self.trimmed = self.trimmed.max(seq);
        }
    }

    fn release(&mut self, seq: Seq, window: usize) {
        let (before, is_over) = (self.handle.span(), self.store.bytes() > window);
        self.handle.release(seq, window);
        if is_over {
            self.trimmed = self.trimmed.max(seq);
        } else {
            assert_eq!(self.handle.span(), before);
        }
    }

    /// What is said of the log to who asks, and that records go by a limit or a word only.
    fn check_span(&self) {
        let Span { low, next, sealed } = self.handle.span();
        assert_eq!((next, sealed), (self.next(), self.sealed));
        let limited = self.limits != ROOMY || self.keep == Keep::Unread;
        assert!(low <= next && (limited || low <= self.trimmed), "{low} {next}");
    }

    fn attach(&mut self, from: Seq) {
        let reader = self.handle.reader(from);
        self.readers.push(Watched { reader, position: from, count: Arc::default(), waits: None });
    }

    fn poll(&mut self, who: usize) {
        let news = self.has_news(self.readers[who].position);
        let watched = &mut self.readers[who];
        let waker = Waker::from(Arc::clone(&watched.count));
        let ready = watched.reader.poll_ready(&mut Context::from_waker(&waker)).is_ready();
        assert_eq!(ready, news);
        watched.waits = (!ready).then(|| watched.count.woken());
    }

    /// Whoever waited and has news was woken, once; whoever has none was not.
    fn check_wakes(&mut self) {
        for who in 0..self.readers.len() {
            let news = self.has_news(self.readers[who].position);
            let watched = &mut self.readers[who];
            let Some(before) = watched.waits else { continue };
            assert_eq!(watched.count.woken() - before, usize::from(news));
            if news {
                watched.waits = None;
            }
        }
    }

    fn pull(&mut self, who: usize, max: usize) {
        let (next, lost) = (self.next(), self.writer.is_none() && !self.sealed);
        let held_from = self.handle.span().low;
        let watched = &mut self.readers[who];
        let from = watched.position;
        let mut got = Vec::new();
        let pulled = watched.reader.pull(max, &mut |seq, entry| got.push(Got::new(seq, entry)));
        let upto = from + got.len() as Seq;
        assert_eq!(watched.reader.position(), upto);
        watched.position = upto;
        if !got.is_empty() {
            assert_eq!(got, self.entries[from as usize..upto as usize]);
        }
        assert_eq!(matches!(pulled, Err(ReadError::Trimmed { .. })), from < held_from);
        match pulled {
            Ok(Pulled::More) => assert!(!got.is_empty() && (upto < next || (lost && upto == next))),
            Ok(Pulled::Empty) => assert!(upto == next && !self.sealed && !lost),
            Ok(Pulled::Sealed) => assert!(self.sealed && upto == next + 1),
            Err(ReadError::WriterLost) => assert!(lost && got.is_empty() && upto == next),
            Err(ReadError::Ahead { next: said }) => {
                assert!(got.is_empty() && said == next && from > next + Seq::from(self.sealed));
            }
            Err(ReadError::Trimmed { low }) => assert!(got.is_empty() && from < low && low == held_from),
            Err(ReadError::Corrupt(error)) => panic!("{error}"),
        }
    }
}

fn check(limits: Limits, keep: Keep, steps: Vec<Step>) {
    let mut model = Model::new(limits, keep);
    for step in steps {
        model.run(step);
    }
    let store = Arc::clone(&model.store);
    // Everybody who is still there reads to the end.
    for who in 0..model.readers.len() {
        let mut before = None;
        while before != Some(model.readers[who].position) {
            before = Some(model.readers[who].position);
            model.pull(who, 500);
        }
    }
    drop(model);
    assert_eq!((store.streams(), store.bytes()), (0, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn every_history_of_a_kept_log_is_as_the_model_says(steps in prop::collection::vec(any_step(), 0..400)) {
        check(ROOMY, Keep::All, steps);
    }

    #[test]
    fn every_history_of_an_unkept_log_is_as_the_model_says(steps in prop::collection::vec(any_step(), 0..400)) {
        check(ROOMY, Keep::Unread, steps);
    }

    #[test]
    fn every_history_of_a_log_at_its_limits_is_as_the_model_says(
        max_stream in 0usize..60_000,
        max_total in 1usize..40_000,
        unread: bool,
        steps in prop::collection::vec(any_step(), 0..400),
    ) {
        // A log starts before the total is spent.
        let limits = Limits { max_stream, max_total, max_streams: 1 };
        check(limits, if unread { Keep::Unread } else { Keep::All }, steps);
    }
}

//! Streams whose engine says nothing, on a clock that is moved by hand.

use std::future::pending;
use std::net::Ipv4Addr;

use pingora::http::RequestHeader;
use tokio::time::{Instant, advance};

use super::*;
use crate::config::settings::{Balance, Endpoint, Scheme, Upstream};
use crate::journal::Limits;
use crate::proto::record::Seal;
use crate::proto::relay::{Policy, Relay};
use crate::proto::resume::{Engine, Family};
use crate::stream::{self, Digest, First, Found, Keeping, Kept, Onward, Report, Start, StreamIds, Terms, Whose};
use crate::upstream::{Cluster, Connector};

const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(30);

struct Rig {
    load: Arc<Load>,
    onward: Box<dyn Fn() -> Onward>,
    ids: StreamIds,
    metrics: Arc<Metrics>,
}

impl Rig {
    /// At most `streams` at a time, and `of_a_tenant` of one tenant.
    async fn new(streams: usize, of_a_tenant: usize) -> Self {
        let store = MemoryStore::new(Limits { max_stream: 1 << 20, max_total: 1 << 30, max_streams: streams });
        let metrics = Arc::new(Metrics::new());
        let bounds = Bounds { memory: Some(1 << 40), tenant_bytes: 1 << 20, tenant_streams: of_a_tenant };
        let load = Load::new(store, Arc::default(), Arc::clone(&metrics), bounds);
        let upstream = Upstream {
            name: "a".to_owned(),
            engine: "vllm".to_owned(),
            family: "qwen3".to_owned(),
            endpoints: vec![Endpoint { scheme: Scheme::Http, host: Ipv4Addr::LOCALHOST.to_string(), port: 1 }],
            balance: Balance::RoundRobin,
            certificate: None,
        };
        let (connector, cluster) = (Arc::new(Connector::new(None)), Arc::new(Cluster::new(&upstream).await));
        let head = Arc::new(RequestHeader::build("POST", b"/v1/chat/completions", None).expect("a header"));
        let onward = move || Onward {
            connector: Arc::clone(&connector),
            cluster: Arc::clone(&cluster),
            head: Arc::clone(&head),
            connect: SECOND,
        };
        Rig { load, onward: Box::new(onward), ids: StreamIds::default(), metrics }
    }

    /// A stream that nobody reads yet.
    async fn begin(&self) -> Arc<Kept> {
        let tenant = Tenant::of(None);
        let writer = self.load.keeping(&tenant).expect("there is room");
        let terms = Terms {
            grace: GRACE,
            unattended: 10,
            ttl: 300 * SECOND,
            max_age: 1800 * SECOND,
            heartbeat: None,
            window: None,
            send: 60 * SECOND,
            silence: Some(60 * SECOND),
        };
        let whose = Whose { tenant, asked: Digest::of(b"{}"), key: None };
        let id = self.ids.mint();
        let kept = Kept::new(id.clone(), whose, writer.handle(), terms);
        let reader = kept.attend();
        assert!(self.load.registry.keep(&kept));
        let (family, engine) = (Family::named("qwen3").0, Engine::named("vllm").0);
        let registry = Arc::clone(&self.load.registry);
        stream::leave(Start {
            relay: Relay::new(None, Policy::default(), family, engine, "r".to_owned()),
            writer,
            first: First::Opening(Box::pin(pending())),
            onward: (self.onward)(),
            report: Report::new(Arc::clone(&self.metrics), id, "*", "a", "a"),
            heartbeat: None,
            send: 60 * SECOND,
            began: Instant::now(),
            keeping: Some(Keeping { kept: Arc::clone(&kept), registry, reader, hold: Box::new(()) }),
        });
        settle().await;
        kept
    }

    fn finds(&self, kept: &Kept) -> bool {
        matches!(self.load.registry.find(kept.id(), kept.tenant()), Found::Kept(_))
    }
}

/// Lets all tasks come to their next wait.
async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

async fn pass(time: Duration) {
    advance(time).await;
    settle().await;
}

#[tokio::test(start_paused = true)]
async fn an_orphan_goes_on_for_its_grace_which_begins_anew_with_every_reader() {
    let rig = Rig::new(100, 100).await;
    let kept = rig.begin().await;
    for _ in 0..3 {
        pass(GRACE - Duration::from_millis(1)).await;
        assert_eq!(kept.log().end(), None);
        let reader = kept.attend();
        pass(10 * GRACE).await;
        assert_eq!(kept.log().end(), None, "somebody reads");
        drop(reader);
        settle().await;
    }
    pass(GRACE).await;
    assert_eq!(kept.log().end(), Some(Seal::Abandoned));
    assert!(rig.finds(&kept), "what there was can be read");
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_kept_for_its_time_after_its_end_and_no_longer_than_its_age() {
    let rig = Rig::new(100, 100).await;
    let (ended, endless) = (rig.begin().await, rig.begin().await);
    let _reader = endless.attend();
    ended.cancel();
    settle().await;
    assert_eq!(ended.log().end(), Some(Seal::Cancelled));
    pass(300 * SECOND - Duration::from_millis(1)).await;
    assert!(rig.finds(&ended) && rig.finds(&endless));
    pass(Duration::from_millis(1)).await;
    assert!(!rig.finds(&ended) && rig.finds(&endless));
    pass(1500 * SECOND).await;
    assert!(!rig.finds(&endless));
    assert_eq!(endless.log().end(), None, "who reads it reads on");
}

#[tokio::test(start_paused = true)]
async fn room_is_made_by_giving_up_what_is_missed_least_and_the_oldest_of_that_first() {
    let rig = Rig::new(10, 100).await;
    let read = rig.begin().await;
    let reader = read.attend();
    let mut streams = Vec::new();
    for _ in 0..5 {
        streams.push(rig.begin().await);
        pass(SECOND).await;
    }
    // Younger than the orphans before it, by its last reader.
    drop(streams[0].attend());
    let [copy, answer] = [rig.begin().await, rig.begin().await];
    copy.was_delivered();
    for ended in [&copy, &answer] {
        ended.cancel();
    }
    settle().await;
    let order: Vec<_> =
        [&copy, &streams[1], &streams[2], &streams[3], &streams[4], &streams[0], &answer].map(Arc::downgrade).into();
    let ids: Vec<_> = order.iter().map(|kept| kept.upgrade().expect("kept").id().clone()).collect();
    let tenant = Tenant::of(None);
    drop((copy, answer, streams));
    assert_eq!(rig.load.registry.orphans(), 5);
    for gone in 0..order.len() {
        // Enough that are read to need the room, until only they are left.
        let _busy = busy(&rig, 8 - rig.load.store.streams()).await;
        assert_ne!(rig.load.make_room().await, Room::None);
        let left = ids.iter().filter(|id| matches!(rig.load.registry.find(id, &tenant), Found::Kept(_))).count();
        assert_eq!(left, order.len() - gone - 1);
        assert!(order[gone].upgrade().is_none(), "{gone}: in this order");
    }
    assert_eq!(read.log().end(), None, "what is read is never given up");
    drop(reader);
    let told = rig.metrics.gather();
    for (kind, count) in [("copy", 1), ("orphan", 5), ("answer", 1)] {
        assert!(told.contains(&format!("baton_streams_given_up_total{{kind=\"{kind}\"}} {count}")), "{told}");
    }
}

/// So many logs that somebody reads.
async fn busy(rig: &Rig, count: usize) -> Vec<Writer> {
    (0..count).map(|_| rig.load.store.create().expect("there is room")).collect()
}

#[tokio::test(start_paused = true)]
async fn with_nothing_to_give_up_new_streams_are_first_not_kept_and_then_refused() {
    let rig = Rig::new(100, 100).await;
    let mut busy_streams = busy(&rig, 89).await;
    assert_eq!(rig.load.make_room().await, Room::Ample);
    busy_streams.extend(busy(&rig, 1).await);
    assert_eq!(rig.load.make_room().await, Room::Tight);
    busy_streams.extend(busy(&rig, 9).await);
    assert_eq!(rig.load.make_room().await, Room::None);
    // One orphan in the place of a stream that is read: nobody is refused as long as there are such.
    busy_streams.truncate(98);
    let orphan = Arc::downgrade(&rig.begin().await);
    assert_eq!(rig.load.make_room().await, Room::Tight);
    assert!(orphan.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn the_journal_s_bytes_count_as_its_streams_do() {
    use crate::proto::record::{Record, Sink as _};
    let mut rig = Rig::new(100, 100).await;
    let limits = Limits { max_stream: 1 << 20, max_total: 100 << 10, max_streams: 100 };
    let bounds = Bounds { memory: None, tenant_bytes: 1 << 20, tenant_streams: 100 };
    rig.load = Load::new(MemoryStore::new(limits), Arc::default(), Arc::clone(&rig.metrics), bounds);
    let orphans = [Arc::downgrade(&rig.begin().await), Arc::downgrade(&rig.begin().await)];
    let mut read = Vec::new();
    let mut fill = |to: usize| {
        while rig.load.store.bytes() < to << 10 {
            let mut log = rig.load.store.create().expect("there is room");
            for _ in 0..8 {
                log.append(Record::Whole { event: None, data: &[b'x'; 100] });
            }
            read.push(log);
        }
    };
    fill(78);
    assert_eq!(rig.load.make_room().await, Room::Ample);
    assert!(orphans.iter().all(|kept| kept.upgrade().is_some()));
    fill(81);
    assert_eq!(rig.load.make_room().await, Room::Ample);
    assert!(orphans[0].upgrade().is_none(), "the older one");
    fill(94);
    assert_eq!(rig.load.make_room().await, Room::Tight);
    assert!(orphans[1].upgrade().is_none());
    fill(99);
    assert_eq!(rig.load.make_room().await, Room::None);
}

#[tokio::test(start_paused = true)]
async fn the_process_s_memory_counts_as_the_journal_does() {
    let rig = Rig::new(100, 100).await;
    assert_eq!(rig.load.make_room().await, Room::Ample);
    for (resident, room) in [(0, Room::Ample), (9 << 36, Room::Ample), (61 << 34, Room::Tight), (1 << 40, Room::None)] {
        rig.load.resident.store(resident, Relaxed);
        assert_eq!(rig.load.make_room().await, room, "{resident}");
    }
    assert!(resident().is_some_and(|bytes| bytes > 1 << 20), "this process has some");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_has_no_more_than_its_share() {
    let rig = Rig::new(100, 2).await;
    let streams = [rig.begin().await, rig.begin().await];
    let full = rig.load.keeping(&Tenant::of(None)).map(drop);
    assert_eq!(full, Err(Full::ShareStreams { limit: 2 }));
    assert!(rig.load.keeping(&Tenant::of(Some(b"other"))).is_ok());
    streams[0].cancel();
    settle().await;
    pass(300 * SECOND).await;
    rig.load.registry.sweep();
    drop(streams);
    assert!(rig.load.keeping(&Tenant::of(None)).is_ok(), "its place is free again");
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_acknowledging_is_taken_for_gone_and_one_that_never_did_is_not() {
    let rig = Rig::new(100, 100).await;
    let kept = rig.begin().await;
    let silent = |kept: &Arc<Kept>, within: Duration| {
        let kept = Arc::clone(kept);
        async move { timeout(within, kept.fallen_silent()).await.is_ok() }
    };
    let only = kept.attend();
    assert!(!silent(&kept, 1000 * SECOND).await, "it never acknowledged");
    kept.acknowledge(0);
    assert!(!silent(&kept, 59 * SECOND).await);
    kept.acknowledge(1);
    let began = Instant::now();
    assert!(silent(&kept, 100 * SECOND).await);
    assert_eq!(began.elapsed(), 60 * SECOND);
    let other = kept.attend();
    kept.acknowledge(2);
    assert!(!silent(&kept, 1000 * SECOND).await, "whose acknowledgement that was is not known");
    drop(other);
    assert!(!silent(&kept, 1000 * SECOND).await, "it may have been the other's");
    kept.acknowledge(3);
    assert!(silent(&kept, 61 * SECOND).await);
    drop(only);
}

//! Ten thousand drops and returns, by seed: many streams at once, on real sockets, with engines that break. Each client reads a random
//! part, leaves in a random way, and comes back in a random way, sometimes on several connections at once.
//!
//! `BATON_SEED` repeats a run as far as it can be: what each client and engine does follows from the seed, when it does it does not.

mod line;
mod plan;
mod stream;
#[path = "../support/mod.rs"]
mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use baton::mock::Leg;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::JoinSet;

use plan::{Back, Plan, Visit};
use stream::{Counts, Stream};
use support::{Rig, Setup, within};

/// How many returns there are at least.
const RETURNS: usize = 10_000;

/// Streams at a time.
const AT_ONCE: usize = 40;

/// Pieces of reasoning and of content in an answer; each is an event at least.
const PIECES: (usize, usize) = (10, 40);

fn seed() -> u64 {
    let given = std::env::var("BATON_SEED").ok().map(|seed| seed.parse().expect("BATON_SEED is a number"));
    let seed = given.unwrap_or_else(rand::random);
    eprintln!("BATON_SEED={seed}");
    seed
}

async fn rig(route: &str) -> Arc<Rig> {
    let mut setup = Setup::new("").route(route);
    for engine in &mut setup.engines {
        (engine.reasoning, engine.content) = PIECES;
    }
    Arc::new(setup.start().await)
}

/// Lets one client drop and come back until it has everything. Whether its engine broke in the middle.
async fn drop_and_return(rig: Arc<Rig>, counts: Arc<Counts>, mut rng: StdRng, index: usize) -> bool {
    let plan = Plan::random(&mut rng, PIECES.0 + PIECES.1);
    let cut = plan.cut;
    let (stream, mut line) = Stream::begin(rig, counts, plan, index).await;
    let mut had = 0;
    loop {
        if stream.is_held() && (had >= stream.limit() || rng.random_bool(0.2)) {
            stream.release().await;
        }
        let mut others = JoinSet::new();
        if rng.random_bool(0.2) {
            for _ in 0..rng.random_range(1..4) {
                let (back, visit) = (Back::random(&mut rng), Visit::random(&mut rng, stream.is_held()));
                let (stream, from) = (Arc::clone(&stream), rng.random_range(0..=had));
                others.spawn(async move { stream.back_and_visit(back, from, visit).await });
            }
        }
        let visit = Visit::random(&mut rng, stream.is_held());
        had = stream.visit(line, had, visit).await;
        while let Some(other) = others.join_next().await {
            other.expect("another connection of the same client");
        }
        match stream.back(Back::random(&mut rng), had).await {
            Some(next) => line = next,
            None => break,
        }
    }
    stream.check_whole().await;
    cut
}

/// Waits until the metrics say so.
async fn until(rig: &Rig, line: &str) {
    within(async { while !rig.metrics().await.lines().any(|said| said == line) {} }).await;
}

/// Every request has made one answer, whoever came back to it, and only what broke was continued.
fn check_engines(rig: &Rig, streams: usize, cuts: usize) {
    let asked = rig.asked();
    let firsts = || asked.iter().filter(|seen| seen.leg == Leg::First);
    let told: HashSet<_> = firsts().map(|seen| seen.json()["messages"].to_string()).collect();
    assert_eq!((firsts().count(), told.len()), (streams, streams), "each is asked for once");
    let refused: Vec<_> = asked.iter().filter_map(|seen| seen.refused.as_ref()).collect();
    assert!(refused.is_empty(), "{refused:?}");
    assert_eq!(asked.len() - streams, cuts, "what broke is continued once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_returns_bring_every_event_once_and_generate_nothing_twice() {
    let (seed, counts) = (seed(), Arc::new(Counts::default()));
    let rig = rig("heartbeat: off").await;
    let (mut streams, mut cuts, mut running) = (0, 0, JoinSet::new());
    loop {
        while running.len() < AT_ONCE && counts.returns.load(Relaxed) < RETURNS {
            let rng = StdRng::seed_from_u64(seed.wrapping_add(streams as u64));
            running.spawn(drop_and_return(Arc::clone(&rig), Arc::clone(&counts), rng, streams));
            streams += 1;
        }
        match running.join_next().await {
            Some(cut) => cuts += usize::from(cut.unwrap_or_else(|error| panic!("BATON_SEED={seed}: {error}"))),
            None => break,
        }
    }
    let [returns, attached, early] =
        [&counts.returns, &counts.attached, &counts.early].map(|count| count.load(Relaxed));
    eprintln!("{streams} streams, {cuts} of them cut; {returns} returns, {early} of them while the engine was held");
    assert!(returns >= RETURNS && early >= RETURNS / 10 && cuts >= streams / 5, "what is to be tried was tried");
    check_engines(&rig, streams, cuts);
    until(&rig, r#"baton_streams_in_flight{upstream="mock"} 0"#).await;
    until(&rig, &format!("baton_clients_returned_total {attached}")).await;
    until(&rig, &format!(r#"baton_streams_total{{outcome="finished",route="*",upstream="mock"}} {streams}"#)).await;
    until(&rig, &format!("baton_journal_streams {streams}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_over_is_given_back_whoever_came_back_to_it() {
    let (seed, counts) = (seed(), Arc::new(Counts::default()));
    let rig = rig("heartbeat: off, resume: {ttl: 0s}").await;
    for index in 0..50 {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_add(index as u64));
        let plan = Plan::held(&mut rng);
        let (stream, line) = Stream::begin(Arc::clone(&rig), Arc::clone(&counts), plan, index).await;
        for _ in 0..4 {
            let visit = Visit::random(&mut rng, true);
            stream.back_and_visit(Back::random(&mut rng), 0, visit).await;
        }
        stream.release().await;
        stream.read_on(line).await;
        stream.check_gone().await;
    }
    for gauge in [r#"baton_streams_in_flight{upstream="mock"}"#, "baton_journal_streams", "baton_journal_bytes"] {
        until(&rig, &format!("{gauge} 0")).await;
    }
}

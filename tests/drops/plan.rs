//! What a client does, and what happens to its engine, drawn from a seed.

use rand::Rng as _;
use rand::rngs::StdRng;

use super::line::Leave;

/// How a client comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Back {
    /// `GET` with `Last-Event-ID`.
    Header,
    /// `GET` with `?after=`.
    Query,
    /// `GET` without a position: from the first event.
    Whole,
    /// The same `POST` with `Last-Event-ID`.
    Post,
    /// The same `POST` with its `Idempotency-Key`: from the first event.
    Key,
    /// With both.
    KeyAndPost,
}

impl Back {
    pub fn random(rng: &mut StdRng) -> Self {
        use Back::{Header, Key, KeyAndPost, Post, Query, Whole};
        [Header, Header, Query, Query, Post, Post, KeyAndPost, Key, Whole][rng.random_range(0..9)]
    }

    pub fn has_position(self) -> bool {
        !matches!(self, Back::Whole | Back::Key)
    }

    pub fn is_post(self) -> bool {
        matches!(self, Back::Post | Back::Key | Back::KeyAndPost)
    }

    /// The nearest way that names no event.
    pub fn without_position(self) -> Self {
        if self.is_post() { Back::Key } else { Back::Whole }
    }
}

/// How much a connection reads, and how it is left.
#[derive(Clone, Copy, Debug)]
pub struct Visit {
    pub much: Much,
    pub leave: Leave,
}

#[derive(Clone, Copy, Debug)]
pub enum Much {
    /// So many events more than the client has.
    Events(usize),
    /// So many bytes of the body, which may end inside an event.
    Bytes(usize),
}

impl Visit {
    /// A short visit. `held`: only so many events are certain to come, and nobody may wait for bytes.
    pub fn random(rng: &mut StdRng, held: bool) -> Self {
        let much = match rng.random_range(0..3) {
            0 if !held => Much::Bytes(rng.random_range(0..1_500)),
            _ => Much::Events(rng.random_range(0..8)),
        };
        Visit { much, leave: if rng.random() { Leave::Reset } else { Leave::Close } }
    }
}

/// What happens to the engine of a stream.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Before these events on its wire the engine waits to be released.
    pub holds: Vec<usize>,
    /// Whether it breaks in the middle of the answer, so that another one has to go on.
    pub cut: bool,
    /// What else happens, as the mock engine reads it.
    faults: Vec<String>,
    /// The first request comes twice at once.
    pub twice: bool,
}

impl Plan {
    /// An engine that is held in the middle of the answer, and does not break.
    pub fn held(rng: &mut StdRng) -> Self {
        Plan { holds: vec![rng.random_range(8..24)], cut: false, faults: Vec::new(), twice: false }
    }

    /// For an answer of at least `events` events.
    pub fn random(rng: &mut StdRng, events: usize) -> Self {
        let mut plan =
            Plan { holds: Vec::new(), cut: rng.random_bool(0.4), faults: Vec::new(), twice: rng.random_bool(0.1) };
        let mut end = events;
        if plan.cut {
            let kind = ["rst", "eof", "end", "error", "abort", "done", "garbage"][rng.random_range(0..7)];
            let half = if matches!(kind, "rst" | "eof" | "end") && rng.random() { "+half" } else { "" };
            // Behind some of the text: an answer of which nothing has come is asked for again, by the same request.
            end = rng.random_range(6..events);
            plan.faults.push(format!("leg1 {kind}@{end}{half}"));
        } else if rng.random_bool(0.3) {
            // The answer is whole, its tail is not.
            plan.faults.push(["leg1 eof@usage", "leg1 end@done", "leg1 rst@done"][rng.random_range(0..3)].to_owned());
        }
        if rng.random_bool(0.7) {
            let first = rng.random_range(2..12);
            plan.holds = (first..end).step_by(10).collect();
        }
        plan
    }

    /// All of it as the mock engine reads it.
    pub fn faults(&self) -> String {
        let holds = self.holds.iter().map(|place| format!("leg1 stall@{place}"));
        holds.chain(self.faults.iter().cloned()).collect::<Vec<_>>().join(",")
    }
}

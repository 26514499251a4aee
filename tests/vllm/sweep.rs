//! One answer, cut again and again, each time elsewhere.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::answer::{Answer, Usage};
use crate::relay::{Cut, End, Leg};
use crate::rig::{Question, Rig};
use crate::server::Pair;

/// Answers at a time. The servers take eight each, and the machine has two cores.
const AT_ONCE: usize = 4;

/// Differing answers that are printed of a sweep.
const SHOWN: usize = 12;

/// The ways a leg ends.
pub const ENDS: [End; 6] = [End::Reset, End::Close, End::Torn, End::Error, End::Abort, End::Stall];

/// All of them but the silence.
pub const SAID: &[End] = ENDS.split_at(5).0;

/// Tokens between two cuts.
pub fn step() -> usize {
    let given = std::env::var("BATON_VLLM_STEP").ok();
    given.map_or(10, |step| step.parse().expect("BATON_VLLM_STEP is a number"))
}

/// Cuts an answer at many places and compares each time.
pub struct Sweep {
    name: &'static str,
    question: Question,
    usage: Usage,
    /// The distance between two places, in tokens.
    step: usize,
    /// The first place, and the first that is none.
    places: Range<usize>,
    ends: &'static [End],
    every_end: bool,
    /// More of the route's `continuation`.
    settings: &'static str,
    /// What is wrong with the legs.
    legs: fn(&[Leg]) -> Option<String>,
    /// Whether the answer is to be the uncut one after these legs; otherwise it is to be whole.
    same: fn(&[Leg]) -> bool,
}

impl Sweep {
    /// A cut at every tenth token, in one way after the other; later legs go on from token ids.
    pub fn of(name: &'static str, question: &Question) -> Self {
        let (question, usage, step) = (question.clone(), Usage::Whole, step());
        Sweep {
            name,
            question,
            usage,
            step,
            places: step..usize::MAX,
            ends: &ENDS,
            every_end: false,
            settings: "",
            legs: by_ids,
            same: |_| true,
        }
    }

    pub fn usage(self, usage: Usage) -> Self {
        Sweep { usage, ..self }
    }

    /// Every way at each place.
    pub fn every_end(self) -> Self {
        Sweep { every_end: true, ..self }
    }

    /// No other ways than these.
    pub fn ends(self, ends: &'static [End]) -> Self {
        Sweep { ends, ..self }
    }

    /// A cut behind every one of these tokens.
    pub fn every_token(self, places: Range<usize>) -> Self {
        Sweep { step: 1, places, ..self }
    }

    /// No cut before this token.
    pub fn from(self, from: usize) -> Self {
        Sweep { places: from..usize::MAX, ..self }
    }

    /// Where this does not hold, the answer may go on otherwise.
    pub fn same_where(self, same: fn(&[Leg]) -> bool) -> Self {
        Sweep { same, ..self }
    }

    /// Keys of the route's `continuation`, and what is to be wrong with the legs then.
    pub fn route(self, settings: &'static str, legs: fn(&[Leg]) -> Option<String>) -> Self {
        Sweep { settings, legs, ..self }
    }

    /// The uncut answer, once all others are as it is.
    pub async fn run(self, pair: &Pair) -> Answer {
        let uncut = Arc::new(self.question.uncut(pair).await);
        let (name, tokens) = (self.name, uncut.tokens());
        let (sweep, permits, mut cases) = (Arc::new(self), Arc::new(Semaphore::new(AT_ONCE)), JoinSet::new());
        let places = sweep.places.start..sweep.places.end.min(tokens);
        for (number, after) in places.step_by(sweep.step).enumerate() {
            let (first, count) = if sweep.every_end { (0, sweep.ends.len()) } else { (number, 1) };
            for end in sweep.ends.iter().cycle().skip(first).take(count) {
                let (uncut, sweep, permits, servers) = (uncut.clone(), sweep.clone(), permits.clone(), pair.addresses);
                cases.spawn(async move {
                    let _permit = permits.acquire_owned().await.expect("it is never closed");
                    let differences = sweep.case(servers, Cut { after, end: end.clone() }, &uncut).await;
                    (after, format!("behind token {after}, {end:?}"), differences)
                });
            }
        }
        let mut cases = cases.join_all().await;
        cases.sort();
        let count = cases.len();
        let bad: Vec<_> = cases.into_iter().filter(|(.., differences)| !differences.is_empty()).collect();
        println!("{name}: {count} cuts of {tokens} tokens, {} answers differ", bad.len());
        let lines: Vec<String> = bad
            .iter()
            .take(SHOWN)
            .map(|(_, name, differences)| format!("{name}: {}", differences.join("; ")))
            .collect();
        assert!(bad.is_empty(), "{} of {count} answers to {name} differ, first:\n{}", bad.len(), lines.join("\n"));
        Arc::unwrap_or_clone(uncut)
    }

    async fn case(&self, servers: [SocketAddr; 2], cut: Cut, uncut: &Answer) -> Vec<String> {
        let rig = Rig::with(servers, [cut], self.settings).await;
        let answer = rig.ask(&self.question).await;
        let legs = rig.script.legs();
        let uncut = if (self.same)(&legs) { uncut } else { &answer.clone() };
        let mut differences = answer.differences(uncut, self.usage);
        differences.extend((self.legs)(&legs));
        differences
    }
}

/// How a later leg went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From token ids, by the endpoint that the client asked.
    TokenExact,
    /// From token ids, by the scale-out endpoints.
    RenderGenerate,
    /// From text, or from the start.
    Text,
}

impl Way {
    pub fn of(leg: &Leg) -> Self {
        let first = leg.events.first().and_then(|event| serde_json::from_str::<Value>(event).ok()).unwrap_or_default();
        let echoes = |part: &Value| part["prompt_token_ids"].is_array();
        match leg.path.as_str() {
            "/inference/v1/generate" => Way::RenderGenerate,
            _ if echoes(&first) || echoes(&first["choices"][0]) => Way::TokenExact,
            _ => Way::Text,
        }
    }
}

/// What is wrong with the legs: there is no later one though the first had not finished, or one did not go on from token ids.
pub fn by_ids(legs: &[Leg]) -> Option<String> {
    by(Way::TokenExact, legs)
}

/// The same for another way.
pub fn by(way: Way, legs: &[Leg]) -> Option<String> {
    // The event with that token may have been the one with the finish reason; what is missing then Baton writes itself.
    let finished = |leg: &Leg| {
        leg.events.iter().any(|event| event.contains("\"finish_reason\":\"") && !event.contains("\"abort\""))
    };
    match legs {
        [leg] if finished(leg) => None,
        [] | [_] => Some(format!("{} leg(s)", legs.len())),
        [_, later @ ..] => {
            let other = later.iter().map(Way::of).find(|other| *other != way)?;
            Some(format!("a later leg went on by {other:?} and not by {way:?}"))
        }
    }
}

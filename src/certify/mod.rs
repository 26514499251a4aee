//! `baton certify`: the compatibility matrix of an engine, by machine.
//!
//! ```text
//!  prompts ──► uncut answers, event by event ──► points of each state ──► for each plan and point:
//!                                                                         Relay gets the events up to it and loses its leg,
//!                                                                         stream::go_on does what the relay then asks for
//!                                                                         └──► judged against the uncut answer ──► Certificate
//! ```
//!
//! Continuing is not written a second time here: a cut is a real [`Relay`](crate::proto::relay::Relay) whose leg fails, allowed one kind
//! of plan only, and driven by the code that drives streams. So what is certified is what Baton does.
//!
//! Requests go one after the other: at temperature 0 many engines answer otherwise in a batch than alone.
//!
//! Deliberately absent: a judgement of the engine's answers. A text that differs is called different, however good it is.

mod arguments;
mod bench;
mod fit;
mod judge;
mod points;
mod prompts;
mod rest;
mod signs;
#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime};

use thiserror::Error;

pub use self::arguments::Arguments;
use self::bench::Bench;
use self::points::{Point, choose, points};
use self::prompts::Prompt;
use self::rest::Uncut;
use crate::config::settings::Upstream;
use crate::proto::certificate::{Certificate, Row, SCHEMA, State, Tried};
use crate::proto::resume::{Family, PlanKind, PlanSet};

/// What is to be certified, and how.
#[derive(Clone, Debug)]
pub struct Order {
    /// The engines. Its family counts unless `find_family`.
    pub upstream: Upstream,
    /// Finds the family out by trying.
    pub find_family: bool,
    /// The model; `None`: the first that the engine names.
    pub model: Option<String>,
    /// The value of `Authorization`.
    pub authorization: Option<String>,
    /// What to ask instead of Baton's own prompts.
    pub prompts: Vec<String>,
    /// A prompt as token ids (a JSON list), asked with tools.
    pub prompt_ids: Option<String>,
    /// The kinds of plan to try.
    pub plans: PlanSet,
    /// Cuts for each state, at least 1.
    pub cuts: usize,
    /// The length of an answer.
    pub max_tokens: u64,
    /// Tries also what is known not to work.
    pub force: bool,
    /// Longest silence of an engine.
    pub idle: Duration,
}

/// Why there is no certificate.
#[derive(Debug, Error)]
pub enum NotCertified {
    /// No engine answered at all.
    #[error("the engine cannot be reached: {0}; start it, or correct its address")]
    Unreachable(String),
    /// It answered, and names no model.
    #[error("the engine names no model ({0}); say which with --model")]
    NoModel(String),
    /// It gave no whole answer to any prompt.
    #[error("the engine gave no whole answer to any prompt: {0}")]
    NoAnswer(String),
    /// The answers cannot be cut: each said too little.
    #[error("no answer is long enough to be cut; ask for more with --prompt or --max-tokens")]
    NothingToCut,
    /// The operating system gives no threads or sockets to work with.
    #[error("cannot begin: {0}")]
    System(#[from] std::io::Error),
}

/// Certifies on a runtime of its own. `tell` gets a line for each thing done.
///
/// # Errors
/// Why there is no certificate.
pub fn run(order: &Order, tell: &mut dyn FnMut(&str)) -> Result<Certificate, NotCertified> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(certify(order, tell))
}

/// Certifies.
///
/// # Errors
/// Why there is no certificate.
pub async fn certify(order: &Order, tell: &mut dyn FnMut(&str)) -> Result<Certificate, NotCertified> {
    let bench = Bench::open(order).await?;
    tell(&format!("{} {}, model {}", bench.engine().name(), bench.version_in_words(), bench.model()));
    let (key, mut signs) = signs::look(&bench, order).await;
    let (uncut, prompts) = ask_all(&bench, order, &key, tell).await?;
    let chosen = chosen(&uncut, order.cuts);
    if chosen.is_empty() {
        return Err(NotCertified::NothingToCut);
    }
    signs.raw = signs::raw_answers(&bench, &uncut).await;
    signs.thinks = uncut.iter().any(|uncut| uncut.answer().has_thinking());
    let (family, families) = match order.find_family {
        true => fit::find(&bench, &signs, &uncut, &chosen, tell).await,
        false => (Family::named(&order.upstream.family).0, Vec::new()),
    };
    let rows = matrix(&bench, order, &family, &uncut, &chosen, tell).await;
    let reached = |state: &State| chosen.iter().any(|(_, point)| point.state == *state);
    Ok(Certificate {
        schema: SCHEMA,
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        engine: bench.engine().name().to_owned(),
        version: bench.abilities().version.map(|version| version.to_string()),
        scale_out: bench.abilities().scale_out,
        model: bench.model().to_owned(),
        template: signs.tail.clone(),
        thinking_key: signs.key_of(&family).or(key.map(|(key, _)| key)),
        family: family.name().to_owned(),
        forced: order.force,
        prompts,
        families,
        rows,
        not_reached: State::ALL.into_iter().filter(|state| !reached(state)).collect(),
    })
}

/// Asks every prompt, twice.
async fn ask_all(
    bench: &Bench,
    order: &Order,
    key: &Option<(String, String)>,
    tell: &mut dyn FnMut(&str),
) -> Result<(Vec<Uncut>, Vec<Tried>), NotCertified> {
    let (mut answers, mut tried, mut failed) = (Vec::new(), Vec::new(), String::new());
    for prompt in prompts::set(order, key.as_ref()) {
        match ask(bench, order, &prompt).await {
            Ok((uncut, repeats)) => {
                let (name, text) = (prompt.name.to_owned(), prompt.text.clone());
                let answer = uncut.answer();
                let (tokens, finish) = (answer.tokens(), answer.finish().map(str::to_owned));
                tell(&format!("{name}: {}", answer.in_short()));
                tried.push(Tried { name, text, tokens, finish, repeats });
                answers.push(uncut);
            }
            Err(why) => {
                tell(&format!("{}: no whole answer: {why}", prompt.name));
                failed = why;
            }
        }
    }
    if answers.is_empty() { Err(NotCertified::NoAnswer(failed)) } else { Ok((answers, tried)) }
}

async fn ask(bench: &Bench, order: &Order, prompt: &Prompt) -> Result<(Uncut, bool), String> {
    let uncut = Uncut::ask(bench, order, prompt).await?;
    let again = Uncut::ask(bench, order, prompt).await?;
    let repeats = uncut.answer() == again.answer();
    Ok((uncut, repeats))
}

/// The points to cut at, of all answers: the index of the answer, and the point in it.
fn chosen(uncut: &[Uncut], cuts: usize) -> Vec<(usize, Point)> {
    let all: Vec<(usize, Point)> = uncut
        .iter()
        .enumerate()
        .flat_map(|(index, uncut)| {
            points(&uncut.events, uncut.thinking_off).into_iter().map(move |point| (index, point))
        })
        .collect();
    State::ALL
        .into_iter()
        .flat_map(|state| choose(all.iter().filter(|(_, point)| point.state == state).copied().collect(), cuts))
        .collect()
}

async fn matrix(
    bench: &Bench,
    order: &Order,
    family: &Family,
    uncut: &[Uncut],
    chosen: &[(usize, Point)],
    tell: &mut dyn FnMut(&str),
) -> Vec<Row> {
    let mut rows = Vec::new();
    for plan in order.plans.iter() {
        for state in State::ALL {
            let mut row = Row::new(plan, state);
            for (index, point) in chosen.iter().filter(|(_, point)| point.state == state) {
                let Some(uncut) = uncut.get(*index).filter(|uncut| !uncut.by_ids || goes_by_ids(plan)) else {
                    continue;
                };
                let (verdict, why) = uncut.cut(bench, plan, family, order.force, point.events).await;
                row.add(verdict, why);
            }
            if row.cuts() > 0 {
                tell(&format!("{}, {}: {}", plan.name(), state.words(), row.in_short()));
                rows.push(row);
            }
        }
    }
    rows
}

/// A prompt that was given as ids can only be gone on with as ids: the messages beside it are not what was asked.
fn goes_by_ids(plan: PlanKind) -> bool {
    matches!(plan, PlanKind::TokenExact | PlanKind::RenderGenerate)
}

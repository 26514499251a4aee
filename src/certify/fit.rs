//! Which family a model is of: those that nothing speaks against go on by chat-continue, and the best is taken.

use std::collections::BTreeMap;

use super::bench::Bench;
use super::points::{Point, choose};
use super::rest::Uncut;
use super::signs::Signs;
use crate::proto::certificate::{Fit, State, Verdict};
use crate::proto::chat::Ratios;
use crate::proto::resume::{self, Budget, Family, Plan, PlanKind, Refused};

/// Cuts in thinking, and as many in the answer.
const CUTS: usize = 3;

/// Families that would send the same requests, at every cut.
struct Group {
    families: Vec<(Family, usize)>,
    plans: Vec<Result<Plan, Refused>>,
}

/// The family that fits best, and how each did.
pub(super) async fn find(
    bench: &Bench,
    signs: &Signs,
    uncut: &[Uncut],
    chosen: &[(usize, Point)],
    tell: &mut dyn FnMut(&str),
) -> (Family, Vec<Fit>) {
    let of = |states: &[State]| {
        choose(chosen.iter().filter(|(_, point)| states.contains(&point.state)).copied().collect(), CUTS)
    };
    let cuts: Vec<(usize, Point)> =
        of(&[State::Thinking]).into_iter().chain(of(&[State::Content, State::ThinkingOff])).collect();
    let mut tried: Vec<(u32, usize, Fit)> = Vec::new();
    for group in groups(bench, signs, uncut, &cuts) {
        let (mut thinking, mut content) = (BTreeMap::new(), BTreeMap::new());
        let Some((family, _)) = group.families.first() else { continue };
        for (index, point) in &cuts {
            let (verdict, _) = uncut[*index].cut(bench, PlanKind::ChatContinue, family, false, point.events).await;
            let counts = if point.state == State::Thinking { &mut thinking } else { &mut content };
            *counts.entry(verdict).or_default() += 1;
        }
        let harm = harm(&thinking, State::Thinking) + harm(&content, State::Content);
        let signs = group.families.iter().map(|(_, signs)| *signs).max().unwrap_or(0);
        let families: Vec<String> = group.families.iter().map(|(family, _)| family.name().to_owned()).collect();
        tell(&format!("family {}: {harm} points against it", families.join(", ")));
        tried.push((harm, signs, Fit { families, thinking, content }));
    }
    // Stable: of equals the first of the list of families.
    tried.sort_by_key(|(harm, signs, _)| (*harm, std::cmp::Reverse(*signs)));
    let best = tried.first().and_then(|(_, _, fit)| fit.families.first());
    let family = Family::named(best.map_or("default", String::as_str)).0;
    (family, tried.into_iter().map(|(_, _, fit)| fit).collect())
}

/// What speaks against a family: in thinking a refusal is the next best thing to going on, in an answer it is a loss.
fn harm(verdicts: &BTreeMap<Verdict, u32>, state: State) -> u32 {
    let of = |verdict: &Verdict| match (verdict, state) {
        (Verdict::Exact, _) => 0,
        (Verdict::SameText, _) => 1,
        (Verdict::Refused, State::Thinking) => 3,
        (Verdict::Refused, _) => 5,
        (Verdict::Different, _) => 6,
        (Verdict::Leaks, _) => 10,
    };
    verdicts.iter().map(|(verdict, count)| of(verdict) * count).sum()
}

fn groups(bench: &Bench, signs: &Signs, uncut: &[Uncut], cuts: &[(usize, Point)]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let (ratios, settings) = (Ratios::default(), resume::Settings::default());
    for family in Family::all().map(|name| Family::named(name).0) {
        let Some(weight) = signs.speak_for(&family) else { continue };
        let budget = Budget { ratios: &ratios, rid: "", force: false, lists_ids: false, settings: &settings };
        let plan = |(index, point): &(usize, Point)| {
            let uncut = &uncut[*index];
            resume::plan(&uncut.request, &uncut.partial(point.events), &family, bench.engine(), &budget)
        };
        let plans: Vec<_> = cuts.iter().map(plan).collect();
        match groups.iter_mut().find(|group| group.plans == plans) {
            Some(group) => group.families.push((family, weight)),
            None => groups.push(Group { families: vec![(family, weight)], plans }),
        }
    }
    for group in &mut groups {
        group.families.sort_by_key(|(_, weight)| std::cmp::Reverse(*weight));
    }
    groups
}

//! What a certificate does not say, or says against what is configured.

use super::{Certificate, Fit, State, Verdict};
use crate::proto::resume::{Engine, Family, PlanKind, PlanSet};

/// How an upstream is used.
#[derive(Clone, Copy, Debug)]
pub struct Used<'a> {
    /// Its engine, by its name in the configuration.
    pub engine: &'a str,
    /// Its family, likewise.
    pub family: &'a str,
    /// The kinds of plan by which answers are continued on it, whatever the route; empty: none.
    pub plans: PlanSet,
    /// Whether what is known not to work is tried.
    pub force: bool,
}

impl Certificate {
    /// What should be said at start of an upstream that is used so, one sentence each; the version is not known then. Nothing of `used`
    /// is repeated.
    pub fn doubts(&self, used: &Used<'_>) -> Vec<String> {
        let mut doubts = Vec::new();
        let (engine, family) = (Engine::named(used.engine).0, Family::named(used.family).0);
        if Engine::named(&self.engine).0.name() != engine.name() {
            doubts.push(format!("the certificate is of the engine {}, and the upstream's is another", self.engine));
        }
        if Family::named(&self.family).0.name() != family.name() && !self.is_one_with(family.name()) {
            doubts.push(format!(
                "the certificate is of the family {}, and the upstream's is another, which may continue in another form",
                self.family
            ));
        }
        if used.plans.iter().next().is_none() {
            return doubts;
        }
        if used.force && !self.forced {
            doubts.push("the certificate was made without `force`, which is on here".to_owned());
        }
        let uncovered = used.plans.iter().filter(|plan| !self.rows.iter().any(|row| row.plan == *plan));
        doubts.extend(uncovered.map(|plan| format!("the certificate does not cover the plan {}", plan.name())));
        doubts.extend(self.harm(used.plans));
        doubts.extend(self.gaps(used.plans));
        if !self.not_reached.is_empty() {
            let states = words(self.not_reached.iter().copied());
            doubts.push(format!("the certificate says nothing of answers cut {states}: no prompt came to that"));
        }
        doubts
    }

    /// Whether a family's requests were the same as those of the certified one.
    fn is_one_with(&self, family: &str) -> bool {
        let has = |fit: &Fit, name: &str| fit.families.iter().any(|one| one == name);
        self.families.iter().any(|fit| has(fit, family) && has(fit, &self.family))
    }

    /// Plans that leak.
    fn harm(&self, plans: PlanSet) -> impl Iterator<Item = String> {
        plans.iter().filter_map(|plan| {
            let leaks = self.rows.iter().filter(|row| row.plan == plan && row.worst() == Verdict::Leaks);
            let states: Vec<State> = leaks.map(|row| row.state).collect();
            (!states.is_empty()).then(|| {
                let (plan, states) = (plan.name(), words(states.into_iter()));
                format!("by the certificate {plan} mixes thinking and answer {states}; leave it out of `plan`")
            })
        })
    }

    /// What no plan continues: a plan that is refused is passed over, so that one which works is enough.
    fn gaps(&self, plans: PlanSet) -> Option<String> {
        let refused = |plan: PlanKind, state: State| {
            self.row(plan, state).is_none_or(|row| row.verdicts.keys().all(|verdict| *verdict == Verdict::Refused))
        };
        let covered = |state: &State| self.rows.iter().any(|row| row.state == *state && plans.contains(row.plan));
        let lost = State::ALL.into_iter().filter(covered);
        let lost: Vec<State> = lost.filter(|state| plans.iter().all(|plan| refused(plan, *state))).collect();
        (!lost.is_empty())
            .then(|| format!("by the certificate answers cut {} are continued by no plan", words(lost.into_iter())))
    }
}

/// `a, b and c`.
fn words(states: impl Iterator<Item = State>) -> String {
    let words: Vec<&str> = states.map(State::words).collect();
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

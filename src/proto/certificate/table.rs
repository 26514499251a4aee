//! A certificate as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{Certificate, Row, State, Verdict};
use crate::proto::resume::{PlanKind, Refused};

impl Certificate {
    /// The whole report: what was tried, the matrix, and why what was not exact was not.
    pub fn to_markdown(&self) -> String {
        let mut out = format!("# {}\n\n", self.title());
        let key = self.thinking_key.as_deref().map_or("none found".to_owned(), |key| format!("`{key}`"));
        let template = self.template.as_deref().map_or("not known".to_owned(), |end| format!("`{}`", escaped(end)));
        let scale_out = if self.scale_out { "there" } else { "not there" };
        let _ = write!(
            out,
            "| what | |\n|---|---|\n| date | {} |\n| family | `{}` |\n| thinking key | {key} |\n| generation prompt ends in | {template} |\n| scale-out endpoints | {scale_out} |\n",
            self.date, self.family
        );
        if self.forced {
            out.push_str("| `force` | on: what is known not to work was tried, too |\n");
        }
        out.push('\n');
        out.push_str(&self.matrix());
        out.push_str(&self.reasons());
        out.push_str(&self.fits());
        out.push_str(&self.tried());
        out
    }

    fn title(&self) -> String {
        let version = self.version.as_deref().unwrap_or("(version not known)");
        format!("{} {version}, model {}", self.engine, self.model)
    }

    /// Plan × state.
    pub fn matrix(&self) -> String {
        let tried = PlanKind::ALL.into_iter().filter(|plan| self.rows.iter().any(|row| row.plan == *plan));
        let (plans, missing): (Vec<PlanKind>, Vec<PlanKind>) = tried.partition(|plan| self.is_offered(*plan));
        let mut out = String::from("| cut |");
        plans.iter().for_each(|plan| out.extend([" ", plan.name(), " |"]));
        out.push_str("\n|---|");
        plans.iter().for_each(|_| out.push_str("---|"));
        out.push('\n');
        for state in State::ALL {
            let _ = write!(out, "| {} |", state.words());
            for plan in &plans {
                let _ = match self.row(*plan, state) {
                    Some(row) => write!(out, " {} |", row.in_short()),
                    None => write!(out, " not reached |"),
                };
            }
            out.push('\n');
        }
        if !missing.is_empty() {
            let names: Vec<&str> = missing.into_iter().map(PlanKind::name).collect();
            let _ = write!(out, "\nNot offered for this engine: {}.\n", names.join(", "));
        }
        out.push('\n');
        out
    }

    /// Whether the engine has such a plan at all.
    fn is_offered(&self, plan: PlanKind) -> bool {
        let rows = || self.rows.iter().filter(|row| row.plan == plan);
        rows().any(|row| row.worst() != Verdict::Refused)
            || !rows().any(|row| row.code() == Some(Refused::NotHere.code()))
    }

    fn reasons(&self) -> String {
        let mut out = String::new();
        // A code alone stands in the matrix already.
        let told = |row: &&Row| row.why.iter().any(|why| row.code() != Some(why));
        for row in self.rows.iter().filter(told) {
            let (plan, state) = (row.plan.name(), row.state.words());
            let _ = writeln!(out, "- {plan}, {state}: {}", row.why.join("; "));
        }
        if out.is_empty() { out } else { format!("Why not exact:\n\n{out}\n") }
    }

    fn fits(&self) -> String {
        if self.families.is_empty() {
            return String::new();
        }
        let mut out =
            String::from("Families, by chat-continue:\n\n| family | in thinking | in content |\n|---|---|---|\n");
        for fit in &self.families {
            let (families, thinking) = (fit.families.join(", "), counts(&fit.thinking));
            let _ = writeln!(out, "| {families} | {thinking} | {} |", counts(&fit.content));
        }
        out.push('\n');
        out
    }

    fn tried(&self) -> String {
        let mut out = String::from(
            "Prompts:\n\n| name | asked | tokens | finish | same when asked again |\n|---|---|---|---|---|\n",
        );
        for tried in &self.prompts {
            let tokens = tried.tokens.map_or("not counted".to_owned(), |tokens| tokens.to_string());
            let (finish, repeats) =
                (tried.finish.as_deref().unwrap_or("none"), if tried.repeats { "yes" } else { "no" });
            let _ = writeln!(out, "| {} | {} | {tokens} | {finish} | {repeats} |", tried.name, escaped(&tried.text));
        }
        out
    }
}

impl Row {
    /// `exact (5)`, or where they differ `coherent but different (1 of 5; exact 4)`: the worst, and the counts.
    pub fn in_short(&self) -> String {
        let worst = self.worst();
        let mut out = worst.words().to_owned();
        if let Some(code) = self.code() {
            let _ = write!(out, ": `{code}`");
        }
        if self.verdicts.len() < 2 {
            let _ = write!(out, " ({})", self.cuts());
            return out;
        }
        let others = self.verdicts.iter().filter(|(verdict, _)| **verdict != worst);
        let others: Vec<String> = others.map(|(verdict, count)| format!("{} {count}", verdict.words())).collect();
        let count = self.verdicts.get(&worst).copied().unwrap_or(0);
        let _ = write!(out, " ({count} of {}; {})", self.cuts(), others.join(", "));
        out
    }

    /// The code of the refusal, where all was refused for one reason.
    fn code(&self) -> Option<&str> {
        match &self.why[..] {
            [why] if self.verdicts.len() == 1 && self.worst() == Verdict::Refused => {
                Some(why.split_once([':', ' ']).map_or(why, |(code, _)| code))
            }
            _ => None,
        }
    }
}

fn counts(verdicts: &BTreeMap<Verdict, u32>) -> String {
    let counted: Vec<String> = verdicts.iter().map(|(verdict, count)| format!("{} {count}", verdict.words())).collect();
    if counted.is_empty() { "not tried".to_owned() } else { counted.join(", ") }
}

/// In one cell of a table.
fn escaped(text: &str) -> String {
    text.replace('\n', "\\n").replace('|', "\\|")
}

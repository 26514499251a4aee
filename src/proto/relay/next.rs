//! What follows a failed leg: another one, or the reason why there is none.

use std::fmt;

use super::Relay;
use super::guard::guarded;
use super::input::{Cause, Continuation, Policy, Refusal};
use super::output::Note;
use crate::proto::chat::{ChatRequest, Partial};
use crate::proto::resume::{self, Budget, PlanKind, Refused, Way};

/// The plan of a leg that is the client's own request once more.
pub(super) const AGAIN: &str = "again";

/// The leg to come.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) number: u32,
    pub(super) attempt: u32,
    /// `None`: the client's own request once more.
    pub(super) kind: Option<PlanKind>,
    pub(super) way: Way,
}

impl Next {
    pub(super) fn plan(&self) -> &'static str {
        self.kind.map_or(AGAIN, PlanKind::name)
    }
}

/// Why no leg follows. Comparable, and in words for the client.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stop {
    /// Continuation is off or only observing, or the request was not understood.
    Off,
    /// As many legs as allowed have written.
    MaxLegs(u32),
    /// As many tries as allowed have come to nothing.
    Attempts(u32),
    /// An engine answered a continuation with a status that another try would only repeat.
    RefusedByEngine(u16),
    /// The stream holds something that was not understood.
    NotUnderstood,
    /// Planning, or what came of it, failed by our own fault; where.
    Fault(&'static str),
    /// No plan fits.
    NoPlan(Refused),
}

impl Stop {
    pub(super) fn code(&self) -> &'static str {
        match self {
            Stop::Off => "off",
            Stop::MaxLegs(_) => "max_legs",
            Stop::Attempts(_) => "attempts",
            Stop::RefusedByEngine(_) => "refused_by_engine",
            Stop::NotUnderstood => "not_understood",
            Stop::Fault(_) => "fault",
            Stop::NoPlan(refused) => refused.code(),
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Off => f.write_str("continuation is off for this request"),
            Stop::MaxLegs(legs) => write!(f, "{legs} engines in a row have failed, which is as many as may be tried"),
            Stop::Attempts(tries) => write!(f, "no engine took it over in {tries} tries"),
            Stop::RefusedByEngine(status) => write!(f, "the engine that was asked to go on answered {status}"),
            Stop::NotUnderstood => f.write_str("the engine sent something that Baton does not understand"),
            Stop::Fault(_) => f.write_str("a fault inside Baton stood in the way"),
            Stop::NoPlan(refused) => refused.fmt(f),
        }
    }
}

impl Relay {
    /// The leg that would follow if the current one failed now of `cause`. Changes nothing.
    pub(super) fn next(&self, cause: &Cause) -> Result<Next, Stop> {
        let Some(request) = self.request.as_ref().filter(|_| self.policy.continuation != Continuation::Off) else {
            return Err(Stop::Off);
        };
        if let Some(excluded) = &self.excluded {
            return Err(Stop::NoPlan(Refused::Excluded(*excluded)));
        }
        if self.blind {
            return Err(Stop::NotUnderstood);
        }
        // After a finish reason nothing may follow, whatever other choices there are.
        if self.known().choices.iter().any(|choice| choice.finish.is_some()) {
            return Err(Stop::NoPlan(Refused::Finished));
        }
        let (number, attempt) = self.number_of_next(cause)?;
        match self.way_at(request, number, attempt) {
            // The last kind of plan was refused, or has had all its tries, and there is no other.
            Err(Stop::NoPlan(_)) if status_of(cause).is_some_and(is_about_the_request) => {
                Err(Stop::RefusedByEngine(status_of(cause).unwrap_or_default()))
            }
            Err(Stop::NoPlan(_)) if self.is_struck() && attempt >= self.policy.attempts => Err(Stop::Attempts(attempt)),
            next => next,
        }
    }

    /// The same for a leg whose number is known, of the kinds of plan that are not spent.
    pub(super) fn way_at(&self, request: &ChatRequest, number: u32, attempt: u32) -> Result<Next, Stop> {
        let partial = self.known();
        let rid = format!("{}-{number}-{attempt}", self.rid);
        let Policy { ratios, force, resume: settings, .. } = &self.policy;
        let budget = Budget { ratios, rid: &rid, force: *force, lists_ids: self.hides_ids, settings };
        let ids_shown = resume::shows_ids(request) && partial.ids_are_ahead();
        let unseen = !ids_shown && (self.held.is_none() || self.holds_answer());
        if let Some(blank) = partial.only_white_space().filter(|_| unseen) {
            // Nothing of the answer has been delivered: the client's own request, once more, is as exact as the first time.
            let plan = resume::again(request, &self.engine, &budget, blank);
            return Ok(Next { number, attempt, kind: None, way: Way::Plan(Box::new(plan)) });
        }
        let way = || resume::way(request, partial, &self.family, &self.engine, self.spent, &budget);
        let (kind, way) = guarded("plan", way).map_err(Stop::Fault)?.map_err(Stop::NoPlan)?;
        Ok(Next { number, attempt, kind: Some(kind), way })
    }

    /// Strikes the kind of plan of a leg that has failed because of it, so that the next one is tried. The upstream is only
    /// remembered for what it may do with any answer.
    pub(super) fn strike(&mut self, cause: &Cause) {
        let Some(kind) = self.leg.kind.filter(|_| !self.leg.wrote) else { return };
        let refused = status_of(cause).is_some_and(is_about_the_request);
        match cause {
            Cause::NoEcho => self.bar(kind),
            Cause::Refused(refusal) if refused && refuses_kind(kind, refusal) => self.bar(kind),
            Cause::Diverged | Cause::Refused(Refusal::NotFit(_)) => {}
            // It needs more of an engine than the others do, which may still be well.
            _ if kind == PlanKind::RenderGenerate && self.leg.attempt >= self.policy.attempts => {}
            _ if !refused => return,
            _ => {}
        }
        self.spent.insert(kind);
    }

    /// The leg has come to nothing, and so has its kind of plan.
    fn is_struck(&self) -> bool {
        !self.leg.wrote && self.leg.kind.is_some_and(|kind| self.spent.contains(kind))
    }

    /// Tries a kind of plan no more in this stream, and has the refusal remembered for the upstream.
    pub(super) fn bar(&mut self, kind: PlanKind) {
        self.policy.resume.barred.insert(kind);
        self.note(Note::PlanRefused { kind });
    }

    /// What the client has, or would have had a tool call not been held back: what a continuation starts from.
    pub(super) fn known(&self) -> &Partial {
        self.held.as_ref().map_or(&self.partial, |held| &held.before)
    }

    fn number_of_next(&self, cause: &Cause) -> Result<(u32, u32), Stop> {
        if let Cause::Fault(place) = cause {
            return Err(Stop::Fault(place));
        }
        if self.leg.wrote {
            if self.leg.number >= self.policy.max_legs {
                return Err(Stop::MaxLegs(self.leg.number));
            }
            return Ok((self.leg.number + 1, 1));
        }
        // A try that failed because of its kind of plan is none: another kind takes its place.
        if self.is_struck() {
            return Ok((self.leg.number, self.leg.attempt));
        }
        if let Some(status) = status_of(cause).filter(|status| is_about_the_request(*status)) {
            return Err(Stop::RefusedByEngine(status));
        }
        if self.leg.attempt >= self.policy.attempts {
            return Err(Stop::Attempts(self.leg.attempt));
        }
        Ok((self.leg.number, self.leg.attempt + 1))
    }
}

/// The HTTP status with which an engine has refused a request, before its stream or in it.
fn status_of(cause: &Cause) -> Option<u16> {
    match cause {
        Cause::Refused(Refusal::Status { status, .. }) => Some(*status),
        Cause::ErrorEvent { code, kind, .. } => status_of_event(code.as_deref(), kind.as_deref()),
        _ => None,
    }
}

/// Whether an engine that has refused a continuation so may refuse any of this kind. A prefix that is not taken is answered 400
/// by all who have none; otherwise 400 mostly is about the length of this one.
fn refuses_kind(kind: PlanKind, refusal: &Refusal) -> bool {
    let Refusal::Status { status, body } = refusal else { return false };
    let about_length = ["context", "length", "too long", "max_tokens", "maximum"];
    lacks_endpoint(refusal) || (kind == PlanKind::Prefix && matches!(status, 400 | 422) && !says(body, &about_length))
}

/// Whether an engine has no such endpoint. A 404 may as well be about the model, and a 403 is about who asks.
pub(super) fn lacks_endpoint(refusal: &Refusal) -> bool {
    let Refusal::Status { status, body } = refusal else { return false };
    *status == 405 || (*status == 404 && !says(body, &["model"]))
}

fn says(body: &str, words: &[&str]) -> bool {
    let body = body.to_ascii_lowercase();
    words.iter().any(|word| body.contains(word))
}

/// The HTTP status that an error event stands for, where it says one: as a number (vLLM, SGLang), or in the words that OpenAI
/// and vLLM's Rust frontend have for a request that is wrong.
fn status_of_event(code: Option<&str>, kind: Option<&str>) -> Option<u16> {
    let number = code.and_then(|code| code.parse::<f64>().ok()).map(|number| number as u16);
    let says = |word: &str| {
        let word = word.to_ascii_lowercase().replace('_', "");
        ["badrequest", "invalidrequest", "contextlength"].iter().any(|wrong| word.contains(wrong))
    };
    number.or_else(|| [code, kind].into_iter().flatten().any(says).then_some(400))
}

/// A status that speaks of the request itself and not of the engine's state, so that another engine would say the same.
pub(super) fn is_about_the_request(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 408 | 425 | 429)
}

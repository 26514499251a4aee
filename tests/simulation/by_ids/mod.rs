//! Continued by token ids, without a socket: Baton has leg 1 list the ids and hides them, the later legs go on from them, and what the
//! client gets is, byte for byte, what it gets of an engine that nothing happens to and that nobody asked for ids: usage too, in every
//! field.
//!
//! Exceptions, and no others:
//!
//! | where | what may differ |
//! |---|---|
//! | nothing had been delivered | all of it is engine B's answer, which is then compared as strictly |
//! | `system_fingerprint`, which vLLM sends with its last chunk | as in [`compare`](super::compare) |
//! | a tool call of a later leg | its `id` |
//! | `reasoning_tokens`, where text is withheld for stop strings or events hold several tokens | an engine counts a token of the thinking only if its event has text (vLLM 0.32, measured), so the number depends on which tokens share an event, and behind the cut they are others |
//! | events without text, which only completions have | those whose tokens are generated once more come once more |

mod bytes;
mod completions;
mod events;
mod legs;
mod next;
mod recorded;
mod sampled;
mod tools;

use std::cell::RefCell;
use std::collections::HashMap;

use baton::mock::{self, Config};
use baton::proto::chat::{Api, ChatRequest};
use baton::proto::relay::{LegStart, Refusal};
use baton::proto::resume::render::{Need, Rendering};
use baton::proto::resume::{self, Engine, Question, Work};
use serde_json::{Value, json};

use super::breaks::Break;
use super::case::{Case, FINGERPRINTS, Usage};
use super::compare::call_id;
use super::run::{Reply, Run, Said, Speller, data_of};

/// A case whose leg 1 lists token ids, and what there is to know of its uncut answer.
pub struct Listed {
    pub case: Case,
    pub api: Api,
    /// The client's request.
    pub request: ChatRequest,
    /// Engine A's events as they are on the wire.
    pub uncut: Vec<Vec<u8>>,
    /// Their data.
    pub told: Vec<String>,
    /// The data of the events that the client gets when nothing breaks, `[DONE]` included.
    pub plain: Vec<String>,
    /// How many of these the first events are: none of them, one, and so on to all.
    shown: Vec<usize>,
    /// What so many events say.
    saids: Vec<Said>,
    /// Behind a cut, other tokens may share an event.
    regroups: bool,
    answers: RefCell<HashMap<(u32, u32, String), Vec<u8>>>,
}

impl Listed {
    pub fn new(case: Case) -> Self {
        Self::of(case, Api::Chat)
    }

    pub fn of(case: Case, api: Api) -> Self {
        let client = case.body.to_string();
        let request = match api {
            Api::Chat => ChatRequest::parse(client.as_bytes()),
            Api::Completions => ChatRequest::parse_completion(client.as_bytes()),
        };
        let request = request.expect("a request");
        let listing = resume::first(&request, &Engine::named(case.engine).0, &case.policy.resume);
        let hides = listing.is_some();
        let first = listing.unwrap_or_else(|| client.clone().into_bytes());
        let uncut = ask(api, &case.first, &first, 0).expect("the first leg is a good request");
        let told = data_of(&uncut.concat());
        let unseen = Config { ledger: None, ..case.first.clone() };
        let plain = data_of(&ask(api, &unseen, client.as_bytes(), 0).expect("a good request").concat());
        let mut shown = vec![0];
        for data in &told {
            shown.push(shown[shown.len() - 1] + usize::from(!hides || !is_hidden(data)));
        }
        assert_eq!(shown[told.len()], plain.len(), "without ids there are no events for them alone");
        let regroups = case.first.tokens_per_event > 1 || case.body.get("stop").is_some();
        let saids = shown.iter().map(|shown| Said::by(&plain[..*shown])).collect();
        Listed { case, api, request, uncut, told, plain, shown, saids, regroups, answers: RefCell::default() }
    }

    pub fn open(&self) -> Run {
        let config = self.case.later.clone();
        self.open_spelled_by(Box::new(move |question| spell(&config, question)))
    }

    pub fn open_spelled_by(&self, speller: Speller) -> Run {
        let Case { family, engine, policy, .. } = &self.case;
        Run::listing(self.request.clone(), policy.clone(), family, engine, speller)
    }

    /// The first `events` events as bytes.
    pub fn bytes(&self, events: usize) -> Vec<u8> {
        self.uncut[..events].concat()
    }

    /// How many events of the first `events` the client gets.
    pub fn shown(&self, events: usize) -> usize {
        self.shown[events]
    }

    /// What the client has of the first `events` events.
    pub fn said(&self, events: usize) -> &Said {
        &self.saids[events]
    }

    /// All that is said.
    pub fn all(&self) -> &Said {
        &self.saids[self.told.len()]
    }

    /// Engine B's whole answer to a leg.
    pub fn answer(&self, start: &LegStart) -> Vec<u8> {
        let mut answers = self.answers.borrow_mut();
        let key = (start.leg, start.attempt, format!("{:?}", start.work));
        let answer = answers.entry(key).or_insert_with(|| {
            let number = u64::from(start.leg * 10 + start.attempt);
            match &start.work {
                Work::Request { path, body } => {
                    assert_eq!(*path, self.api.path());
                    let events = ask(self.api, &self.case.later, body, number);
                    events.unwrap_or_else(|refusal| panic!("{}: {refusal:?}", self.at())).concat()
                }
                Work::Render(rendering) => render(&self.case.later, (**rendering).clone(), number, usize::MAX),
            }
        });
        answer.clone()
    }

    /// What comes of a leg whose engine is lost after so many events of its own: for a rendered one, of those that list the tokens.
    pub fn beginning(&self, start: &LegStart, events: usize) -> Vec<u8> {
        let number = u64::from(start.leg * 10 + start.attempt);
        match &start.work {
            Work::Render(rendering) => render(&self.case.later, (**rendering).clone(), number, events),
            Work::Request { .. } => {
                let answer = self.answer(start);
                let ends = answer.windows(2).enumerate().filter(|(_, two)| *two == b"\n\n").map(|(at, _)| at + 2);
                let end = if events == 0 { Some(0) } else { ends.take(events).last() };
                answer[..end.expect("an answer has events")].to_vec()
            }
        }
    }

    pub fn reply(&self, start: &LegStart) -> Reply {
        Reply::Whole(self.answer(start))
    }

    /// Leg 1 sends `sent` and breaks; later legs are whole.
    pub fn cut(&self, sent: &[u8], end: Break) -> Run {
        let mut run = self.open();
        run.feed(sent);
        end.off(&mut run, self.case.first.wire);
        run.serve(|start| self.reply(start));
        run
    }

    fn at(&self) -> String {
        let Case { family, engine, usage, first, .. } = &self.case;
        format!("{family} on {engine}, {usage:?}, {} tokens an event, {}", first.tokens_per_event, self.case.body)
    }

    /// What the client is to get, leg 1 having been cut after `cut` events.
    pub fn wanted(&self, run: &Run, cut: usize) -> Vec<String> {
        let had = self.shown(cut).min(self.plain.len() - 1);
        if had == 0
            && let Some(last) = run.starts.last()
        {
            // All of it comes of another engine.
            let config = Config { ledger: None, ..self.case.later.clone() };
            let number = u64::from(last.leg * 10 + last.attempt);
            let mut other = data_of(
                &ask(self.api, &config, self.case.body.to_string().as_bytes(), number)
                    .expect("a good request")
                    .concat(),
            );
            other.pop();
            return other;
        }
        let own_call = self.plain.iter().find_map(|data| call_id(data));
        let other_call = run.log.events.iter().skip(had).find_map(|data| call_id(data));
        let print = match run.last_plan() {
            None => "", // a tail written here
            Some("again") => FINGERPRINTS[1],
            Some(_) if self.case.usage == Usage::None => "", // it came with the usage, which is hidden
            Some(_) => FINGERPRINTS[1],
        };
        let mut wanted = self.plain[..self.plain.len() - 1].to_vec();
        for data in &mut wanted[had..] {
            *data = data.replace(FINGERPRINTS[0], print);
            if let (Some(own), Some(other)) = (&own_call, &other_call) {
                *data = data.replace(own, other);
            }
        }
        wanted
    }

    /// Checks that the client got the whole answer, event by event.
    pub fn assert_whole(&self, run: &Run, cut: usize, at: &str) {
        self.assert_same(&run.log.events, &self.wanted(run, cut), at);
    }

    /// Checks that the client got a true beginning.
    pub fn assert_beginning(&self, got: &[String], at: &str) {
        let comparable = |events: &[String]| events.iter().filter_map(|data| self.comparable(data)).collect::<Vec<_>>();
        let (got, plain) = (comparable(got), comparable(&self.plain));
        assert_eq!(got, plain[..got.len()], "{at}");
    }

    pub fn assert_same(&self, got: &[String], wanted: &[String], at: &str) {
        let comparable = |events: &[String]| events.iter().filter_map(|data| self.comparable(data)).collect::<Vec<_>>();
        let (got, wanted) = (comparable(got), comparable(wanted));
        let same = got.iter().zip(&wanted).take_while(|(got, wanted)| got == wanted).count();
        let apart = || format!("{at}: event {same} is {:#?} instead of {:#?}", got.get(same), wanted.get(same));
        assert!(same == got.len().max(wanted.len()), "{}", apart());
    }

    /// An event without what may differ.
    fn comparable(&self, data: &str) -> Option<String> {
        let mut event: Value = serde_json::from_str(data).ok()?;
        let choice = &event["choices"][0];
        if choice["text"] == "" && choice["finish_reason"].is_null() {
            return None;
        }
        if !self.regroups {
            return Some(data.to_owned());
        }
        if let Some(details) = event.pointer_mut("/usage/completion_tokens_details") {
            details.take();
        }
        Some(event.to_string())
    }
}

/// Whether an event is there only because ids were asked for.
fn is_hidden(data: &str) -> bool {
    let event: Value = serde_json::from_str(data).unwrap_or_default();
    let choice = &event["choices"][0];
    choice["delta"] == json!({}) && choice["finish_reason"].is_null()
}

/// A streamed request to the scripted engine.
fn ask(api: Api, config: &Config, body: &[u8], number: u64) -> Result<Vec<Vec<u8>>, (u16, String)> {
    match api {
        Api::Chat => mock::events(config, body, number),
        Api::Completions => mock::completion_events(config, body, number),
    }
}

/// The scripted engine's answer to a question.
fn spell(config: &Config, question: &Question) -> Result<Vec<u8>, Refusal> {
    mock::reply(config, question.path, &question.body).map_err(|(status, body)| Refusal::Status { status, body })
}

/// What the scale-out endpoints of the scripted engine make of a leg whose generating stream is cut after `most` events.
fn render(config: &Config, mut rendering: Rendering, number: u64, most: usize) -> Vec<u8> {
    let mut leg = Vec::new();
    let mut generated: Option<std::iter::Take<std::vec::IntoIter<Vec<u8>>>> = None;
    loop {
        match rendering.poll().unwrap_or_else(|broken| panic!("{broken}")) {
            Need::Ask(question) => match mock::reply(config, question.path, &question.body) {
                Ok(answer) => rendering.answered(200, &answer),
                Err((status, words)) => panic!("{}: {status} {words}", question.path),
            },
            Need::Generate(question) => {
                let events = mock::generate_events(config, &question.body, number);
                generated = Some(events.unwrap_or_else(|refusal| panic!("{refusal:?}")).into_iter().take(most));
                rendering.opened();
            }
            Need::Bytes(bytes) => leg.extend(bytes),
            Need::More => match generated.as_mut().and_then(Iterator::next) {
                Some(event) => rendering.generated(&event),
                None => rendering.generate_ended(),
            },
            Need::End => return leg,
        }
    }
}

/// The case with stop strings: one that nobody says, which withholds text all the same, and one that ends the answer inside a word.
fn stopping(mut case: Case) -> Case {
    let unseen = Config { ledger: None, ..case.first.clone() };
    let events = ask(Api::Chat, &unseen, case.body.to_string().as_bytes(), 0).expect("a good request");
    let content: Vec<char> = Said::by(&data_of(&events.concat())).content.chars().collect();
    let middle = content.len() * 2 / 3;
    let stop: String = content[middle..].iter().take(6).collect();
    case.body["stop"] = json!([stop, "nobody"]);
    case
}

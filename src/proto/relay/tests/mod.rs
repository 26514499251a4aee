//! The relay's rules, one by one. The simulation over whole recorded streams is `tests/simulation`.

mod auto;
mod completions;
mod exact;
mod failures;
mod holding;
mod incomplete;
mod replayed;
mod rules;

use std::time::Duration;

use super::*;
use crate::proto::record::{Frame, FrameId, Record};
use crate::proto::resume::{Engine, Family};

const S: Duration = Duration::from_secs(1);

/// A sink that keeps what the client would see.
#[derive(Default)]
pub(super) struct Log {
    frames: Vec<Frame>,
    pub(super) events: Vec<String>,
    pub(super) names: Vec<Option<String>>,
    pub(super) seal: Option<Seal>,
}

impl Sink for Log {
    fn define(&mut self, frame: Frame) -> Option<FrameId> {
        self.frames.push(frame);
        Some(FrameId(self.frames.len() as u8 - 1))
    }

    fn append(&mut self, record: Record<'_>) {
        assert!(self.seal.is_none(), "a record after the seal");
        self.names.push(match record {
            Record::Whole { event, .. } => event.map(str::to_owned),
            Record::Framed { .. } => None,
        });
        let mut data = Vec::new();
        record.write_data(&self.frames, &mut data).unwrap();
        self.events.push(String::from_utf8(data).unwrap());
    }

    fn seal(&mut self, seal: Seal) {
        assert!(self.seal.replace(seal).is_none(), "a second seal");
    }
}

/// A relay under test, its log, and what it asked for.
pub(super) struct Bench {
    pub(super) relay: Relay,
    pub(super) log: Log,
    pub(super) now: Duration,
    pub(super) actions: Vec<Action>,
}

pub(super) const REQUEST: &str = r#"{"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true}"#;

pub(super) fn bench(request: &str, policy: Policy) -> Bench {
    bench_for(request, policy, "default", "vllm")
}

pub(super) fn bench_for(request: &str, policy: Policy, family: &str, engine: &str) -> Bench {
    let request = ChatRequest::parse(request.as_bytes()).unwrap();
    let relay = Relay::new(Some(request), policy, Family::named(family).0, Engine::named(engine).0, "rid".to_owned());
    let mut bench = Bench { relay, log: Log::default(), now: Duration::ZERO, actions: Vec::new() };
    bench.opened();
    bench
}

impl Bench {
    fn act(&mut self) {
        while let Some(action) = self.relay.poll_action() {
            self.actions.push(action);
        }
    }

    pub(super) fn opened(&mut self) {
        self.relay.handle_opened(self.now);
        self.act();
    }

    /// Events of the current leg, each given as its data.
    pub(super) fn send(&mut self, events: &[&str]) {
        for data in events {
            self.raw(&format!("data: {data}\n\n"));
        }
    }

    pub(super) fn raw(&mut self, bytes: &str) {
        self.relay.handle_bytes(self.now, bytes.as_bytes(), &mut self.log);
        self.act();
    }

    pub(super) fn end(&mut self, end: LegEnd) {
        self.relay.handle_end(self.now, end, &mut self.log);
        self.act();
    }

    pub(super) fn cut(&mut self) {
        self.end(LegEnd::Reset);
    }

    pub(super) fn refuse(&mut self, status: u16) {
        self.relay.handle_refused(self.now, Refusal::Status { status, body: "no".to_owned() }, &mut self.log);
        self.act();
    }

    /// Lets time pass, ringing whenever the relay's deadline has come.
    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
        while self.relay.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.relay.handle_deadline(self.now, &mut self.log);
            self.act();
        }
    }

    /// The legs that were asked for, and forgets everything asked for so far.
    pub(super) fn starts(&mut self) -> Vec<LegStart> {
        let actions = std::mem::take(&mut self.actions);
        actions
            .into_iter()
            .filter_map(|action| if let Action::Start(start) = action { Some(start) } else { None })
            .collect()
    }

    /// The one leg that was asked for, which now opens.
    pub(super) fn next_leg(&mut self) -> LegStart {
        let start = self.next_leg_unopened();
        self.opened();
        start
    }

    /// The one leg that was asked for, which has not been answered yet.
    pub(super) fn next_leg_unopened(&mut self) -> LegStart {
        let mut starts = self.starts();
        assert_eq!(starts.len(), 1, "one leg is asked for, the stream has {:?}", self.log.seal);
        starts.remove(0)
    }

    pub(super) fn notes(&self) -> Vec<&Note> {
        self.actions
            .iter()
            .filter_map(|action| if let Action::Note(note) = action { Some(note) } else { None })
            .collect()
    }

    pub(super) fn aborts(&self) -> usize {
        self.actions.iter().filter(|action| **action == Action::Abort).count()
    }

    pub(super) fn content(&self) -> String {
        self.relay.partial().first().map(|choice| choice.content.clone()).unwrap_or_default()
    }

    pub(super) fn reason(&self) -> &str {
        match &self.log.seal {
            Some(Seal::Incomplete { reason, .. }) => reason,
            other => panic!("not incomplete: {other:?}"),
        }
    }
}

fn chunk_of(leg: &str, delta: &str, finish: &str) -> String {
    format!(
        r#"{{"id":"chatcmpl-{leg}","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{finish}}}]}}"#
    )
}

pub(super) fn role(leg: &str) -> String {
    chunk_of(leg, r#"{"role":"assistant","content":""}"#, "null")
}

pub(super) fn text(leg: &str, text: &str) -> String {
    chunk_of(leg, &format!(r#"{{"content":"{text}"}}"#), "null")
}

pub(super) fn tool(leg: &str, arguments: &str) -> String {
    let call = format!(r#"{{"tool_calls":[{{"index":0,"function":{{"arguments":"{arguments}"}}}}]}}"#);
    chunk_of(leg, &call, "null")
}

pub(super) fn finish(leg: &str, reason: &str) -> String {
    chunk_of(leg, "{}", &format!("\"{reason}\""))
}

pub(super) const ERROR: &str =
    r#"{"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","param":null,"code":500}}"#;

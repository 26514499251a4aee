//! A stream without sockets: a relay, what the client gets of it, and engines that answer when it asks.

use std::time::Duration;

use baton::mock::Wire;
use baton::proto::chat::{self, ChatRequest, Parsed};
use baton::proto::record::{Frame, FrameId, Record, Seal, Sink};
use baton::proto::relay::{Action, LegEnd, LegStart, Note, Policy, Refusal, Relay};
use baton::proto::resume::{self, Engine, Family, PlanKind, Question};
use baton::proto::sse::{DEFAULT_MAX_EVENT, Decoder, Item};

use super::breaks::Break;

/// What the client gets: the events' data, and the seal.
#[derive(Default)]
pub struct Log {
    frames: Vec<Frame>,
    pub events: Vec<String>,
    pub seal: Option<Seal>,
}

impl Sink for Log {
    fn define(&mut self, frame: Frame) -> Option<FrameId> {
        self.frames.push(frame);
        Some(FrameId(self.frames.len() as u8 - 1))
    }

    fn append(&mut self, record: Record<'_>) {
        assert!(self.seal.is_none(), "a record after the seal");
        let mut data = Vec::new();
        record.write_data(&self.frames, &mut data).expect("a record that was just made");
        self.events.push(String::from_utf8(data).expect("events are text"));
    }

    fn seal(&mut self, seal: Seal) {
        assert!(self.seal.replace(seal).is_none(), "a second seal");
    }
}

/// What an engine does with a request.
pub enum Reply {
    /// These bytes, and a good end.
    Whole(Vec<u8>),
    /// These bytes, and then a break.
    Cut(Vec<u8>, Break, Wire),
    /// A status instead of a stream.
    Status(u16),
}

/// What an engine says when it is asked something.
pub type Speller = Box<dyn Fn(&Question) -> Result<Vec<u8>, Refusal>>;

/// One stream.
pub struct Run {
    pub relay: Relay,
    pub log: Log,
    pub now: Duration,
    /// The legs asked for after the first, in order.
    pub starts: Vec<LegStart>,
    /// Why no leg followed.
    pub why: Option<&'static str>,
    /// Why legs failed.
    pub causes: Vec<&'static str>,
    /// Kinds of plan that the upstream is remembered to have refused.
    pub barred: Vec<PlanKind>,
    /// How often an engine was asked where the delivered text ends.
    pub questions: usize,
    /// Who answers that; `None`: nobody is to be asked.
    speller: Option<Speller>,
    /// What the relay has asked for and has not got yet.
    asked: Option<LegStart>,
    /// A leg's response is open.
    open: bool,
}

impl Run {
    /// A stream whose first leg has answered with an event stream.
    pub fn open(body: &str, policy: Policy, family: &str, engine: &str) -> Self {
        let request = ChatRequest::parse(body.as_bytes()).expect("a chat request");
        let (family, engine) = (Family::named(family).0, Engine::named(engine).0);
        Run::of(Relay::new(Some(request), policy, family, engine, "rid".to_owned()), None)
    }

    /// The same where Baton has leg 1 list token ids if it can, as the edge does, and hides them. `speller` spells them.
    pub fn listing(request: ChatRequest, policy: Policy, family: &str, engine: &str, speller: Speller) -> Self {
        let (family, engine) = (Family::named(family).0, Engine::named(engine).0);
        let hides = resume::first(&request, &engine, &policy.resume).is_some();
        let mut relay = Relay::new(Some(request), policy, family, engine, "rid".to_owned());
        if hides {
            relay.hide_ids();
        }
        Run::of(relay, Some(speller))
    }

    fn of(mut relay: Relay, speller: Option<Speller>) -> Self {
        relay.handle_opened(Duration::ZERO);
        let (starts, causes, barred) = (Vec::new(), Vec::new(), Vec::new());
        let (log, now) = (Log::default(), Duration::ZERO);
        Run { relay, log, now, starts, why: None, causes, barred, questions: 0, speller, asked: None, open: true }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.relay.handle_bytes(self.now, bytes, &mut self.log);
    }

    pub fn feed_data(&mut self, data: &str) {
        self.feed(format!("data: {data}\n\n").as_bytes());
    }

    pub fn end(&mut self, end: LegEnd) {
        self.open = false;
        self.relay.handle_end(self.now, end, &mut self.log);
    }

    /// Lets time pass until the relay gives up the open leg, or does not wait for anything any more.
    pub fn stall(&mut self) {
        while let Some(deadline) = self.relay.deadline().filter(|_| self.open) {
            self.now = deadline;
            self.relay.handle_deadline(deadline, &mut self.log);
            self.collect();
        }
    }

    /// The leg that the relay asks for now.
    pub fn asked(&mut self) -> Option<&LegStart> {
        self.collect();
        self.asked.as_ref()
    }

    /// Takes in what the relay wants and tells.
    fn collect(&mut self) {
        while let Some(action) = self.relay.poll_action() {
            match action {
                Action::Start(start) => self.asked = Some(start),
                Action::Abort => self.open = false,
                Action::Ask(question) => self.spell(&question),
                Action::Note(Note::PlanRefused { kind }) => self.barred.push(kind),
                Action::Note(Note::NotContinued { why }) => self.why = Some(why),
                Action::Note(Note::Cut { cause, .. }) => self.causes.push(cause.code()),
                Action::Note(_) => {}
            }
        }
    }

    fn spell(&mut self, question: &Question) {
        let Some(speller) = &self.speller else { panic!("nobody lists ids here, but {} is asked", question.path) };
        self.questions += 1;
        let answer = speller(question);
        self.relay.handle_answer(self.now, answer, &mut self.log);
    }

    /// Lets `engine` answer whatever the relay asks for, until it asks for nothing more.
    pub fn serve(&mut self, mut engine: impl FnMut(&LegStart) -> Reply) {
        loop {
            self.collect();
            if let Some(start) = self.asked.take() {
                let reply = engine(&start);
                self.starts.push(start);
                self.answer(reply);
            } else if let (false, Some(deadline)) = (self.open, self.relay.deadline()) {
                // A pause before the next try.
                self.now = deadline;
                self.relay.handle_deadline(deadline, &mut self.log);
            } else {
                return;
            }
        }
    }

    fn answer(&mut self, reply: Reply) {
        if let Reply::Status(status) = reply {
            let refusal = Refusal::Status { status, body: "no".to_owned() };
            return self.relay.handle_refused(self.now, refusal, &mut self.log);
        }
        self.open = true;
        self.relay.handle_opened(self.now);
        match reply {
            Reply::Status(_) => {}
            Reply::Whole(bytes) => {
                self.feed(&bytes);
                self.end(LegEnd::Clean);
            }
            Reply::Cut(bytes, end, wire) => {
                self.feed(&bytes);
                end.off(self, wire);
            }
        }
    }

    /// The plan by which the last leg goes on.
    pub fn last_plan(&self) -> Option<&'static str> {
        self.starts.last().map(|start| start.plan)
    }

    pub fn is_incomplete(&self) -> bool {
        matches!(self.log.seal, Some(Seal::Incomplete { .. }))
    }
}

/// The data of each event.
pub fn data_of(bytes: &[u8]) -> Vec<String> {
    let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
    let mut items = decoder.feed(bytes);
    let mut data = Vec::new();
    while let Some(item) = items.next() {
        if let Ok(Item::Event(event)) = item {
            data.push(String::from_utf8(event.data.to_vec()).expect("events are text"));
        }
    }
    data
}

/// All that some events say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub reasoning: String,
    pub content: String,
    /// Names and arguments of tool calls, one after the other.
    pub calls: String,
    pub finish: Vec<String>,
}

impl Said {
    pub fn by(events: &[String]) -> Self {
        let mut said = Said::default();
        for data in events {
            let Ok(Parsed::Chunk(chunk)) = chat::parse(data.as_bytes()) else { continue };
            for choice in &chunk.choices {
                said.reasoning.push_str(choice.reasoning.as_deref().unwrap_or_default());
                said.content.push_str(choice.content.as_deref().unwrap_or_default());
                for call in &choice.tool_calls {
                    said.calls.push_str(call.name.as_deref().unwrap_or_default());
                    said.calls.push_str(call.arguments.as_deref().unwrap_or_default());
                }
                said.finish.extend(choice.finish_reason.iter().map(|reason| reason.name().to_owned()));
            }
        }
        said
    }

    pub fn is_finished(&self) -> bool {
        !self.finish.is_empty()
    }

    /// Nothing of the answer.
    pub fn is_nothing(&self) -> bool {
        *self == Said::default()
    }

    /// Each text is a beginning of the other's.
    pub fn is_beginning_of(&self, whole: &Said) -> bool {
        let all = |said: &Said| [said.reasoning.clone(), said.content.clone(), said.calls.clone()];
        all(whole).iter().zip(all(self)).all(|(whole, part)| whole.starts_with(&part))
    }
}

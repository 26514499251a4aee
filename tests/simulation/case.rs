//! One family on one engine: what is asked, what engine A answers when nothing breaks, and engine B, which goes on.

use std::cell::RefCell;
use std::collections::HashMap;

use baton::mock::{self, Config, Ledger, Wire};
use baton::proto::relay::{LegStart, Policy};
use serde_json::{Value, json};

use super::breaks::{Break, MAX_EVENT};
use super::run::{Reply, Run, Said, data_of};

/// What the client asks for in usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    None,
    /// At the end.
    AtEnd,
    /// With every event, and at the end.
    Continuous,
    /// With every event and not at the end, which SGLang has.
    OnlyContinuous,
}

pub struct Case {
    pub engine: &'static str,
    pub family: &'static str,
    /// Engine A, which gives the first leg.
    pub first: Config,
    /// Engine B, which gives the later ones.
    pub later: Config,
    pub usage: Usage,
    pub body: Value,
    pub policy: Policy,
}

/// The fingerprints of the two engines, on the wires that have one.
pub const FINGERPRINTS: [&str; 2] =
    [r#","system_fingerprint":"vllm-0.32.0-a""#, r#","system_fingerprint":"vllm-0.32.0-b""#];

impl Case {
    pub fn new(engine: &'static str, family: &'static str, usage: Usage) -> Self {
        let scripted = match family {
            "mistral" => "magistral", // a Mistral that thinks
            family => family,
        };
        let first = Config {
            name: "a".to_owned(),
            wire: if engine == "sglang" { Wire::Sglang } else { Wire::Vllm },
            family: scripted.to_owned(),
            // Strict mode knows what vLLM and SGLang want to see; what others read is one string, which its template takes too.
            strict: engine != "generic",
            ledger: Some(Ledger::default()),
            created: Some(1_700_000_000),
            reasoning: 5,
            content: 9,
            ..Config::default()
        };
        let later = Config { name: "b".to_owned(), created: Some(1_800_000_777), ..first.clone() };
        let mut body = json!({
            "model": "mock",
            "messages": [{"role": "user", "content": "说说接力赛 🏃"}],
            "stream": true,
            "max_completion_tokens": 100,
            "temperature": 0.0,
            "seed": 5,
        });
        match usage {
            Usage::None => {}
            Usage::AtEnd => body["stream_options"] = json!({"include_usage": true}),
            Usage::Continuous => {
                body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
            }
            Usage::OnlyContinuous => body["stream_options"] = json!({"continuous_usage_stats": true}),
        }
        if family.starts_with("deepseek_v") {
            body["chat_template_kwargs"] = json!({"thinking": true}); // these do not think unasked
        }
        let policy = Policy { max_event: MAX_EVENT, ..Policy::default() };
        Case { engine, family, first, later, usage, body, policy }
    }

    /// A request with a tool that is called after this many tokens of content.
    pub fn with_tool(mut self, after: usize) -> Self {
        self.body["tools"] = json!([{"type": "function", "function": {"name": "weather", "parameters": {}}}]);
        self.alter(|config| config.tool_call = Some(after));
        self
    }

    pub fn of_length(mut self, reasoning: usize, content: usize) -> Self {
        self.alter(|config| (config.reasoning, config.content) = (reasoning, content));
        self
    }

    /// Changes both engines.
    pub fn alter(&mut self, change: impl Fn(&mut Config)) {
        change(&mut self.first);
        change(&mut self.later);
    }

    pub fn answered(self) -> Answered {
        Answered::new(self)
    }
}

/// A leg's request: its number, the try, and the body.
type Request = (u32, u32, Vec<u8>);

/// A case, and what there is to know of its uncut answer.
pub struct Answered {
    pub case: Case,
    pub body: String,
    /// Engine A's events as they are on the wire.
    pub uncut: Vec<Vec<u8>>,
    /// Their data.
    pub whole: Vec<String>,
    /// What the first events say: none of them, one, and so on to all.
    saids: Vec<Said>,
    /// Tokens that engine A has counted with each event.
    counts: Vec<u64>,
    /// What engine B has answered to each request, for many cuts lead to the same one.
    answers: RefCell<HashMap<Request, Vec<u8>>>,
}

impl Answered {
    fn new(case: Case) -> Self {
        let body = case.body.to_string();
        let uncut = mock::events(&case.first, body.as_bytes(), 0).expect("the first leg is a good request");
        let whole = data_of(&uncut.concat());
        let saids = (0..=whole.len()).map(|events| Said::by(&whole[..events])).collect();
        let counts = counts(&case);
        Answered { case, body, uncut, whole, saids, counts, answers: RefCell::default() }
    }

    /// Tokens that the engine has written with the first `events` events. Some have no event: the tag that ends thinking, for one.
    pub fn tokens(&self, events: usize) -> u64 {
        let last = events.min(self.counts.len()).checked_sub(1);
        last.map_or(0, |last| self.counts[last])
    }

    /// A stream whose first leg is open.
    pub fn open(&self) -> Run {
        Run::open(&self.body, self.case.policy.clone(), self.case.family, self.case.engine)
    }

    /// The first `events` events as bytes.
    pub fn bytes(&self, events: usize) -> Vec<u8> {
        self.uncut[..events].concat()
    }

    /// What the first `events` events say.
    pub fn said(&self, events: usize) -> &Said {
        &self.saids[events]
    }

    /// Engine B's whole answer to a leg.
    pub fn answer(&self, start: &LegStart) -> Vec<u8> {
        let mut answers = self.answers.borrow_mut();
        let key = (start.leg, start.attempt, start.work.body().to_vec());
        let answer = answers.entry(key).or_insert_with(|| {
            let number = u64::from(start.leg * 10 + start.attempt);
            let events = mock::events(&self.case.later, start.work.body(), number);
            events
                .unwrap_or_else(|(status, words)| {
                    let (family, engine) = (self.case.family, self.case.engine);
                    panic!("{family} on {engine}: the engine refuses the continuation: {status} {words}")
                })
                .concat()
        });
        answer.clone()
    }

    /// As [`answer`](Self::answer), to its end.
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

    /// Where each event ends, in bytes.
    pub fn ends(&self) -> Vec<usize> {
        let ends = self.uncut.iter().scan(0, |at, event| {
            *at += event.len();
            Some(*at)
        });
        ends.collect()
    }
}

/// What engine A counts with each event, were it asked to count along.
fn counts(case: &Case) -> Vec<u64> {
    let config = Config { ledger: None, ..case.first.clone() };
    let mut body = case.body.clone();
    body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = mock::events(&config, body.to_string().as_bytes(), 0).expect("a good request");
    let count = |data: &String| {
        let event: Option<Value> = serde_json::from_str(data).ok();
        event.and_then(|event| event["usage"]["completion_tokens"].as_u64())
    };
    data_of(&events.concat()).iter().filter_map(count).collect()
}

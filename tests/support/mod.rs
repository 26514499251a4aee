//! Baton in front of scripted engines, on real sockets, all in the test's own process.

#![allow(dead_code, reason = "every test file uses its own part")]

pub mod returning;

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use baton::app::App;
use baton::config;
use baton::mock::{self, Config, Engine, Ledger, Leg, Running, Seen};
use baton::proto::chat::{self, ChatRequest, Parsed};
use baton::proto::resume;
use baton::proto::sse::{DEFAULT_MAX_EVENT, Decoder, Item};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Far more than any step takes; a test that meets it has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits for something that must happen soon.
pub async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it happens within 20 seconds")
}

/// Engines and Baton before them.
pub struct Rig {
    pub engines: Vec<Running>,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    engine: &'static str,
    baton: JoinHandle<()>,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.baton.abort();
    }
}

/// How a rig is set up. Engines assert what a continuation must look like, against the requests that any of them has seen.
#[derive(Clone)]
pub struct Setup {
    pub engine: &'static str,
    pub family: &'static str,
    /// Further keys of the route, as YAML flow.
    pub route: String,
    pub engines: Vec<Config>,
}

impl Setup {
    /// Two vLLM engines with Qwen3, the first of which has these faults.
    pub fn new(faults: &str) -> Self {
        Setup { engine: "vllm", family: "qwen3", route: String::new(), engines: engines("qwen3", faults) }
    }

    pub fn route(mut self, keys: &str) -> Self {
        self.route = format!(", {keys}");
        self
    }

    pub async fn start(self) -> Rig {
        let mut engines = Vec::new();
        for config in self.engines {
            engines.push(Engine::start(config).await.expect("a mock engine starts"));
        }
        let urls: Vec<String> = engines.iter().map(Running::url).collect();
        let setup = Setup { engines: Vec::new(), ..self };
        let mut rig = setup.start_before(&urls, "").await;
        rig.engines = engines;
        rig
    }

    /// Baton before engines that the test has started itself. `keys`: further lines of the configuration.
    pub async fn start_before(self, urls: &[String], keys: &str) -> Rig {
        let text = format!(
            "upstreams: [{{name: mock, engine: {}, family: {}, endpoints: {}}}]\n\
             routes: [{{match: {{model: \"*\"}}, upstream: mock{}}}]\n{keys}",
            self.engine,
            self.family,
            json!(urls),
            self.route
        );
        let mut settings = config::load(&text, &|_| None).unwrap_or_else(|errors| panic!("{errors}"));
        settings.server.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        settings.server.admin = SocketAddr::from(([127, 0, 0, 1], 0));
        let app = App::bind(settings).expect("the ports are free");
        let (address, admin) = (app.addresses()[0], app.admin_address());
        let baton = tokio::spawn(app.serve(pending(), pending()));
        Rig { engines: Vec::new(), address, admin, engine: self.engine, baton }
    }
}

/// Engines that all have these faults, whichever of them gets a request, and Baton before them.
pub async fn rig(fault: &str, route: &str, change: impl Fn(&mut Config)) -> Rig {
    let mut setup = Setup::new(fault).route(route);
    let faults = setup.engines[0].faults.clone();
    for engine in &mut setup.engines {
        engine.faults = faults.clone();
        change(engine);
    }
    setup.start().await
}

/// Two engines of this family that share what they know of first legs; the first has these faults.
pub fn engines(family: &str, faults: &str) -> Vec<Config> {
    let ledger = Ledger::default();
    let config = |name: &str, faults: &str| Config {
        name: name.to_owned(),
        family: family.to_owned(),
        strict: true,
        ledger: Some(ledger.clone()),
        created: Some(1_700_000_000),
        reasoning: 6,
        content: 12,
        faults: baton::mock::fault::Rule::parse_all(faults).expect("the faults are well written"),
        ..Config::default()
    };
    vec![config("a", faults), config("b", "")]
}

impl Rig {
    pub fn url(&self) -> String {
        format!("http://{}/v1/chat/completions", self.address)
    }

    pub async fn ask(&self, body: &Value) -> Answer {
        Answer::read(self.send(&client(), body).await).await
    }

    pub async fn send(&self, client: &reqwest::Client, body: &Value) -> reqwest::Response {
        within(client.post(self.url()).body(body.to_string()).send()).await.expect("Baton answers")
    }

    pub async fn metrics(&self) -> String {
        let url = format!("http://{}/metrics", self.admin);
        within(async { client().get(url).send().await?.text().await }).await.expect("the admin address answers")
    }

    /// What an engine answers when nothing breaks.
    pub fn uncut(&self, body: &Value) -> baton::mock::Answer {
        baton::mock::uncut(self.engines[0].config(), &[], body.to_string().as_bytes()).expect("the request is good")
    }

    /// The requests for an answer that an engine has had. What else it was asked on the way to a leg is not among them.
    pub fn asked_of(&self, engine: usize) -> Vec<Seen> {
        self.engines[engine].requests().into_iter().filter(|seen| seen.leg != Leg::Other).collect()
    }

    /// Those that any engine has had.
    pub fn asked(&self) -> Vec<Seen> {
        (0..self.engines.len()).flat_map(|engine| self.asked_of(engine)).collect()
    }

    /// Every continuation that any engine has been asked for.
    pub fn continuations(&self) -> Vec<Value> {
        self.asked().iter().filter(|seen| seen.leg == Leg::Continuation).map(Seen::json).collect()
    }

    /// The data of leg 1's events as they are on the wire: faults count these. Baton has vLLM list token ids, for which there are
    /// events that the client does not get.
    pub fn wire(&self, body: &Value) -> Vec<String> {
        let request = ChatRequest::parse(body.to_string().as_bytes()).expect("a request");
        // As where structured answers are buffered; elsewhere nothing of them is continued, and their events are not counted.
        let settings = resume::Settings { structured: true, ..resume::Settings::default() };
        let listing = resume::first(&request, &resume::Engine::named(self.engine).0, &settings);
        let config = Config { ledger: None, ..self.engines[0].config().clone() };
        let events = mock::events(&config, &listing.unwrap_or_else(|| body.to_string().into_bytes()), 0);
        let data = |event: Vec<u8>| String::from_utf8(event).expect("text").replace("data: ", "").trim_end().to_owned();
        events.expect("the request is good").into_iter().map(data).collect()
    }
}

pub fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().expect("a client")
}

/// A streaming chat request that wants all usage.
pub fn request() -> Value {
    json!({
        "model": "mock",
        "messages": [{"role": "user", "content": "Tell me about the relay."}],
        "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        "seed": 3,
    })
}

/// What a client got.
#[derive(Debug, Default)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// The body, as far as it came.
    pub body: String,
    pub reasoning: String,
    pub content: String,
    pub roles: usize,
    pub finish: Vec<String>,
    pub ids: Vec<String>,
    pub usage: Option<(u64, u64)>,
    pub usage_events: usize,
    pub tool_arguments: String,
    pub error: Option<chat::EngineError>,
    pub done: bool,
    pub events: usize,
    /// The connection broke inside the body.
    pub torn: bool,
}

impl Answer {
    pub async fn read(response: reqwest::Response) -> Self {
        Self::read_after(&[], response).await
    }

    /// The whole answer, of which `first` has been read already.
    pub async fn read_after(first: &[u8], mut response: reqwest::Response) -> Self {
        let headers = response.headers().iter();
        let mut answer = Answer {
            status: response.status().as_u16(),
            headers: headers
                .map(|(k, v)| (k.to_string(), String::from_utf8_lossy(v.as_bytes()).into_owned()))
                .collect(),
            ..Answer::default()
        };
        let mut body = first.to_vec();
        loop {
            match within(response.chunk()).await {
                Ok(Some(bytes)) => body.extend_from_slice(&bytes),
                Ok(None) => break,
                Err(_) => {
                    answer.torn = true;
                    break;
                }
            }
        }
        if answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            answer.decode(&body);
        }
        answer.body = String::from_utf8(body).expect("text");
        answer
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn decode(&mut self, body: &[u8]) {
        let mut decoder = Decoder::new(DEFAULT_MAX_EVENT);
        let mut events = decoder.feed(body);
        while let Some(item) = events.next() {
            let Item::Event(event) = item.expect("events are short") else { continue };
            assert!(!self.done, "nothing comes after [DONE]");
            self.events += 1;
            match chat::parse(event.data).expect("every event is a chunk, an error or [DONE]") {
                Parsed::Done => self.done = true,
                Parsed::Error(error) => self.error = Some(error),
                Parsed::Chunk(chunk) => self.add(&chunk),
            }
        }
    }

    fn add(&mut self, chunk: &chat::Chunk<'_>) {
        if !self.ids.iter().any(|id| *id == chunk.id) {
            self.ids.push(chunk.id.to_string());
        }
        if let Some(usage) = &chunk.usage {
            self.usage = Some((usage.prompt_tokens, usage.completion_tokens));
            self.usage_events += usize::from(chunk.choices.is_empty());
        }
        for choice in &chunk.choices {
            self.roles += usize::from(choice.role.is_some());
            self.reasoning.push_str(choice.reasoning.as_deref().unwrap_or_default());
            self.content.push_str(choice.content.as_deref().unwrap_or_default());
            for call in &choice.tool_calls {
                self.tool_arguments.push_str(call.arguments.as_deref().unwrap_or_default());
            }
            self.finish.extend(choice.finish_reason.as_ref().map(|reason| reason.name().to_owned()));
        }
    }

    /// Whole, and the same as an answer of an engine that nothing happened to.
    pub fn assert_whole(&self, uncut: &baton::mock::Answer) {
        assert_eq!(self.status, 200, "{}", self.body);
        assert_eq!(self.error, None);
        assert!(!self.torn && self.done, "{}", self.body);
        assert_eq!(self.reasoning, uncut.reasoning_text());
        assert_eq!(self.content, uncut.content_text());
        assert_eq!(self.finish, [uncut.finish]);
        assert_eq!(self.ids.len(), 1);
        assert_eq!(self.roles, 1);
    }

    /// Not whole, and saying so: a beginning of the answer, the error event, no `[DONE]`.
    pub fn assert_incomplete(&self, uncut: &baton::mock::Answer) {
        let error = self.error.as_ref().expect("an error event");
        assert_eq!(error.code.as_deref(), Some("stream_incomplete"));
        assert!(!self.done && !self.torn, "{}", self.body);
        assert!(uncut.content_text().starts_with(&self.content));
        assert!(uncut.reasoning_text().starts_with(&self.reasoning));
        assert!(self.finish.is_empty());
    }
}

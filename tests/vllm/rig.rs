//! Baton, and the relays between it and two servers.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;

use baton::app::App;
use baton::config;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::answer::{Answer, ask};
use crate::relay::{Cut, Relay, Script};
use crate::server::Pair;

/// A stall is something longer. vLLM on a busy machine pauses for a second.
pub const IDLE: &str = "6s";

/// One Baton before two servers, for one answer.
pub struct Rig {
    pub address: SocketAddr,
    pub script: Arc<Script>,
    baton: JoinHandle<()>,
    _relays: [Relay; 2],
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.baton.abort();
    }
}

impl Rig {
    /// Legs end by these cuts, in their order; later ones are left alone.
    pub async fn start(servers: [SocketAddr; 2], cuts: impl IntoIterator<Item = Cut>) -> Self {
        Self::with(servers, cuts, "").await
    }

    /// The same with more of the route's `continuation`, each key with a comma before it.
    pub async fn with(servers: [SocketAddr; 2], cuts: impl IntoIterator<Item = Cut>, more: &str) -> Self {
        Self::continuing(servers, cuts, &format!("max_legs: 8{more}")).await
    }

    /// The same with all of it.
    pub async fn continuing(servers: [SocketAddr; 2], cuts: impl IntoIterator<Item = Cut>, continuation: &str) -> Self {
        let script = Script::new(cuts);
        let relays =
            [Relay::start(0, servers[0], script.clone()).await, Relay::start(1, servers[1], script.clone()).await];
        let endpoints = relays.each_ref().map(|relay| format!("http://{}", relay.address));
        let text = format!(
            "upstreams: [{{name: real, engine: vllm, family: qwen3.6, endpoints: {}}}]\n\
             routes: [{{match: {{model: \"*\"}}, upstream: real, continuation: {{{continuation}}}, timeouts: {{idle: {IDLE}}}}}]\n",
            json!(endpoints),
        );
        let mut settings = config::load(&text, &|_| None).unwrap_or_else(|errors| panic!("{errors}"));
        settings.server.listen = vec![SocketAddr::from(([127, 0, 0, 1], 0))];
        settings.server.admin = SocketAddr::from(([127, 0, 0, 1], 0));
        let app = App::bind(settings).expect("the ports are free");
        let address = app.addresses()[0];
        let baton = tokio::spawn(app.serve(pending(), pending()));
        Rig { address, script, baton, _relays: relays }
    }

    pub async fn ask(&self, question: &Question) -> Answer {
        ask(&format!("http://{}{}", self.address, question.path), &question.body).await
    }
}

/// A streaming request.
#[derive(Debug, Clone)]
pub struct Question {
    pub path: &'static str,
    pub body: Value,
}

impl Question {
    /// A chat at temperature 0 that wants its usage.
    pub fn chat(message: &str, more: Value) -> Self {
        let body = json!({
            "model": "tiny",
            "messages": [{"role": "user", "content": message}],
            "stream": true,
            "stream_options": {"include_usage": true},
            "temperature": 0,
            "max_tokens": 900,
        });
        Question { path: "/v1/chat/completions", body }.with(more)
    }

    /// A text that is to go on, in the same way.
    pub fn completion(prompt: &str, more: Value) -> Self {
        let Question { mut body, .. } = Self::chat("", json!({"prompt": prompt}));
        body.as_object_mut().expect("an object").remove("messages");
        Question { path: "/v1/completions", body }.with(more)
    }

    pub fn with(mut self, more: Value) -> Self {
        let (Value::Object(body), Value::Object(more)) = (&mut self.body, more) else { panic!("objects") };
        body.extend(more);
        self
    }

    /// The answer of a server to which nothing happens, without Baton.
    pub async fn uncut(&self, pair: &Pair) -> Answer {
        let answer = ask(&format!("http://{}{}", pair.addresses[0], self.path), &self.body).await;
        assert!(answer.done && answer.error.is_none() && answer.finish.len() == 1, "{:?}", answer.events.last());
        answer
    }
}

//! What a client gets, and what is to be the same about it.

use std::time::Duration;

use serde_json::{Value, json};

/// Longer than any answer takes, with its stalls.
const PATIENCE: Duration = Duration::from_secs(60);

/// A streamed answer of a chat or a completion.
#[derive(Debug, Default, Clone)]
pub struct Answer {
    pub reasoning: String,
    pub content: String,
    /// Name and arguments of each call.
    pub calls: Vec<(String, String)>,
    /// How often each call was given an id, which is to be once.
    pub call_ids: Vec<usize>,
    pub finish: Vec<String>,
    pub usage: Vec<Value>,
    pub ids: Vec<String>,
    pub created: Vec<u64>,
    pub roles: usize,
    pub error: Option<Value>,
    pub done: bool,
    /// The data of its events.
    pub events: Vec<String>,
}

/// Asks and reads to the end.
pub async fn ask(url: &str, body: &Value) -> Answer {
    Answer::read(&post(url, body).await)
}

/// The body of an answer, whole or as much of it as comes in time.
pub async fn post(url: &str, body: &Value) -> String {
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().expect("a client");
    let answer = client.post(url).header("content-type", "application/json").body(body.to_string()).send().await;
    let mut answer = answer.expect("somebody answers");
    let (status, mut body) = (answer.status(), Vec::new());
    while let Ok(Some(bytes)) = answer.chunk().await {
        body.extend_from_slice(&bytes);
    }
    let text = String::from_utf8(body).expect("the body is text");
    assert!(status.is_success(), "{status}: {text}");
    text
}

impl Answer {
    fn read(body: &str) -> Self {
        let mut answer = Answer::default();
        for data in body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")) {
            answer.events.push(data.to_owned());
            if data == "[DONE]" {
                answer.done = true;
            } else {
                answer.add(&serde_json::from_str(data).expect("an event is JSON"));
            }
        }
        answer
    }

    fn add(&mut self, event: &Value) {
        if !event["error"].is_null() {
            self.error = Some(event["error"].clone());
            return;
        }
        once(&mut self.ids, event["id"].as_str().unwrap_or_default().to_owned());
        once(&mut self.created, event["created"].as_u64().unwrap_or_default());
        let choice = &event["choices"][0];
        if !event["usage"].is_null() && choice.is_null() {
            self.usage.push(event["usage"].clone());
        }
        let delta = &choice["delta"];
        self.roles += usize::from(!delta["role"].is_null());
        self.reasoning.push_str(delta["reasoning"].as_str().unwrap_or_default());
        self.content.push_str(delta["content"].as_str().unwrap_or_default());
        self.content.push_str(choice["text"].as_str().unwrap_or_default());
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let at = usize::try_from(part["index"].as_u64().unwrap_or_default()).expect("a small number");
            self.calls.resize(self.calls.len().max(at + 1), Default::default());
            self.call_ids.resize(self.calls.len(), 0);
            self.call_ids[at] += usize::from(part["id"].is_string());
            self.calls[at].0.push_str(part["function"]["name"].as_str().unwrap_or_default());
            self.calls[at].1.push_str(part["function"]["arguments"].as_str().unwrap_or_default());
        }
        self.finish.extend(choice["finish_reason"].as_str().map(str::to_owned));
    }

    /// How many tokens were generated.
    pub fn tokens(&self) -> usize {
        let tokens =
            self.usage.last().and_then(|usage| usage["completion_tokens"].as_u64()).expect("the answer has usage");
        usize::try_from(tokens).expect("a small number")
    }

    /// How many of them were thinking, by the server's count.
    pub fn thought(&self) -> usize {
        let tokens =
            self.usage.last().and_then(|usage| usage["completion_tokens_details"]["reasoning_tokens"].as_u64());
        usize::try_from(tokens.expect("the answer has thinking")).expect("a small number")
    }

    /// What is not as in an answer that nothing happened to; nothing if all is well.
    pub fn differences(&self, uncut: &Answer, usage: Usage) -> Vec<String> {
        let mut found = Vec::new();
        let mut same = |what: &str, got: Value, wanted: Value| {
            if got != wanted {
                found.push(format!("{what}: {got} instead of {wanted}"));
            }
        };
        same("error", json!(self.error), Value::Null);
        same("reasoning", json!(apart(&self.reasoning, &uncut.reasoning)), Value::Null);
        same("content", json!(apart(&self.content, &uncut.content)), Value::Null);
        same("calls", json!(self.calls), json!(uncut.calls));
        same("ids of calls", json!(self.call_ids), json!(uncut.call_ids));
        same("finish", json!(self.finish), json!(uncut.finish));
        same("usage", usage.of(self), usage.of(uncut));
        same("ids", json!(self.ids.len()), json!(1));
        same("created", json!(self.created.len()), json!(1));
        same("roles", json!(self.roles), json!(uncut.roles));
        same("done", json!(self.done), json!(true));
        found
    }
}

/// What of the usage is to be the same.
#[derive(Debug, Clone, Copy)]
pub enum Usage {
    /// Every field.
    Whole,
    /// All but the count of reasoning tokens. vLLM counts a token as reasoning if its event has text, so with withheld text
    /// (stop strings, parts of characters) the number depends on how tokens were put into events (measured, 0.32).
    WithoutReasoning,
    /// Nothing but that it comes once. A word that was cut inside is other tokens when it is read again.
    Without,
}

impl Usage {
    fn of(self, answer: &Answer) -> Value {
        let mut usage = json!(answer.usage);
        if let Usage::Without = self {
            return json!(answer.usage.len());
        }
        if let Usage::WithoutReasoning = self {
            for usage in usage.as_array_mut().into_iter().flatten() {
                usage.as_object_mut().expect("usage is an object").remove("completion_tokens_details");
            }
        }
        usage
    }
}

fn once<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// Where two texts part, with a little of both.
fn apart(got: &str, wanted: &str) -> Option<String> {
    if got == wanted {
        return None;
    }
    let same = got.chars().zip(wanted.chars()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| text.chars().skip(same.saturating_sub(10)).take(40).collect::<String>();
    Some(format!("from character {same}: …{:?} for …{:?}", around(got), around(wanted)))
}

//! The servers themselves are killed, stopped and told to abort: in thinking, at the step to the answer, in the answer.

use serde_json::{Value, json};
use tokio::sync::mpsc::unbounded_channel;

use crate::answer::{Answer, Usage};
use crate::relay::{Cut, End, Leg};
use crate::rig::{Question, Rig};
use crate::server::{Model, Pair, Process, own_pair};
use crate::sweep::by_ids;

/// Tells the story and, when the server that tells it has come to a token, does something to it. Says which server that was.
async fn tell(
    pair: &Pair,
    story: &Question,
    after: usize,
    act: impl AsyncFnOnce(usize, &str),
) -> (usize, Answer, Vec<Leg>) {
    let (said, mut heard) = unbounded_channel();
    let rig = Rig::start(pair.addresses, [Cut { after, end: End::Tell(said) }]).await;
    let (answer, server) = tokio::join!(rig.ask(story), async {
        let (server, id) = heard.recv().await.expect("the leg comes to that token");
        act(server, &id).await;
        server
    });
    (server, answer, rig.script.legs())
}

/// An engine that is gone, in the words of the server.
const ENGINE_GONE: &str = "EngineCore encountered an issue. See stack trace (above) for the root cause.";

/// How the first leg ended, in the words of the server.
fn last_words(legs: &[Leg]) -> String {
    let events = legs.first().map_or(&[][..], |leg| &leg.events);
    let said = |event: &&String| event.contains("\"error\"") || event.contains("\"abort\"");
    match events.iter().rev().take(3).find(said) {
        Some(event) if event.contains("\"abort\"") => "abort".to_owned(),
        Some(event) => serde_json::from_str(event).map_or_else(
            |_| event.clone(),
            |event: Value| event["error"]["message"].as_str().unwrap_or("?").to_owned(),
        ),
        None => "nothing".to_owned(),
    }
}

/// What is done to a server.
#[derive(Debug, Clone, Copy)]
pub enum Deed {
    /// Sends a signal that ends it; it is started again afterwards.
    End(Process, &'static str),
    /// Stops a process, and lets it go on afterwards.
    Stop(Process),
    /// Has it abort the request, by its own endpoint.
    Abort,
}

impl Deed {
    pub async fn act(self, pair: &Pair, server: usize, id: &str) {
        match self {
            Deed::End(process, signal) => pair.server(server).signal(process, signal),
            Deed::Stop(process) => pair.server(server).signal(process, "STOP"),
            Deed::Abort => {
                let url = format!("http://{}/inference/v1/abort_requests", pair.addresses[server]);
                let client = reqwest::Client::builder().no_proxy().build().expect("a client");
                let body = json!({"request_ids": [id]}).to_string();
                let answer = client.post(url).header("content-type", "application/json").body(body).send().await;
                let answer = answer.expect("the server answers");
                assert!(answer.status().is_success(), "{}", answer.status());
            }
        }
    }

    /// What the server may say at the end of a stream that was under way.
    fn words(self) -> &'static [&'static str] {
        match self {
            // A race of three.
            Deed::End(Process::Api, "TERM") => &[ENGINE_GONE, "abort", "nothing"],
            Deed::End(Process::Engine, _) => &[ENGINE_GONE],
            Deed::End(Process::Api, _) | Deed::Stop(_) => &["nothing"],
            Deed::Abort => &["abort"],
        }
    }

    pub async fn undo(self, pair: &mut Pair, server: usize) {
        match self {
            Deed::End(..) => pair.restart(server).await,
            Deed::Stop(process) => pair.server(server).signal(process, "CONT"),
            Deed::Abort => {}
        }
    }
}

/// The story, with this done in thinking, at the step and in the answer.
async fn survives(deed: Deed) {
    let mut pair = own_pair(Model::Memo).await;
    let pair = pair.as_mut().expect("a pair");
    let story = Question::chat("Tell me a story.", json!({}));
    let uncut = story.uncut(pair).await;
    let thought = uncut.thought();
    let mut faults = Vec::new();
    for (place, after) in [("in thinking", thought / 2), ("at the step", thought), ("in the answer", thought + 60)] {
        let (server, answer, legs) =
            tell(pair, &story, after, async |server, id| deed.act(pair, server, id).await).await;
        let mut differences = answer.differences(&uncut, Usage::Whole);
        differences.extend(by_ids(&legs));
        let words = last_words(&legs);
        println!("{deed:?} {place}: {} legs, the first ended with {words}", legs.len());
        if !deed.words().contains(&&*words) {
            differences.push(format!("the server's last words were {words}"));
        }
        faults.extend(differences.into_iter().map(|difference| format!("{deed:?} {place}: {difference}")));
        deed.undo(pair, server).await;
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn an_answer_outlives_a_server_that_is_killed() {
    survives(Deed::End(Process::Api, "KILL")).await;
}

/// vLLM ends its streams then with an error event, with `abort`, or leaves them open and silent: a race.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn an_answer_outlives_a_server_that_is_terminated() {
    survives(Deed::End(Process::Api, "TERM")).await;
}

/// The one ending of a terminated server, for certain: an error event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn an_answer_outlives_an_engine_that_is_killed() {
    survives(Deed::End(Process::Engine, "KILL")).await;
}

/// The other ending of a terminated server, for certain: `abort`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn an_answer_outlives_an_abort() {
    survives(Deed::Abort).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn an_answer_outlives_a_server_that_is_stopped() {
    survives(Deed::Stop(Process::Api)).await;
}

/// A server that takes requests and says it is healthy, and generates nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn an_answer_outlives_an_engine_that_is_stopped() {
    survives(Deed::Stop(Process::Engine)).await;
}

//! The official Python client before Baton, before a real vLLM.

use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;

use crate::ends::Deed;
use crate::relay::{Cut, End, Leg};
use crate::rig::{Question, Rig};
use crate::server::{Model, Pair, Process, own_pair, pair};
use crate::sweep::{ENDS, by_ids, step};

/// Answers at a time, each read by a process of its own.
const READERS: usize = 4;

/// A process that reads one answer after the other with the client's package.
struct Reader {
    _process: Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Reader {
    fn start() -> Self {
        let python =
            std::env::var("BATON_TEST_PYTHON").expect("BATON_TEST_PYTHON is set; run the tests by `make test-vllm`");
        let mut process = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vllm/read_answer.py"))
            .env("NO_PROXY", "127.0.0.1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the interpreter runs");
        let asks = process.stdin.take().expect("it is piped");
        let answers = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        Reader { _process: process, asks, answers }
    }

    /// What the client's package reads from a server or from Baton.
    async fn read(&mut self, address: SocketAddr, question: &Question) -> Value {
        let ask = format!("http://{address}/v1\t{}\n", question.body);
        self.asks.write_all(ask.as_bytes()).await.expect("the script reads");
        let answer = self.answers.next_line().await.expect("the script prints text").expect("the script goes on");
        serde_json::from_str(&answer).expect("the script prints JSON")
    }

    /// What it reads where nothing happens, and how many tokens that is.
    async fn uncut(&mut self, pair: &Pair, question: &Question) -> (Value, usize) {
        let uncut = self.read(pair.addresses[0], question).await;
        let ends = (uncut["ids"].as_array().map(Vec::len), uncut["finish"].as_array().map(Vec::len), &uncut["error"]);
        assert_eq!(ends, (Some(1), Some(1), &Value::Null));
        let tokens = uncut["usage"][0]["completion_tokens"].as_u64().expect("the answer has usage");
        (uncut, usize::try_from(tokens).expect("a small number"))
    }
}

/// What is not as in the uncut answer; its id is to be that of the first leg.
fn differences(got: &Value, uncut: &Value, legs: &[Leg]) -> Vec<String> {
    let first = legs.first().and_then(|leg| leg.events.first()).and_then(|event| serde_json::from_str(event).ok());
    let id = first.unwrap_or(Value::Null)["id"].clone();
    let wanted = uncut.as_object().into_iter().flatten();
    let wanted = wanted.map(|(key, value)| (key, if key == "ids" { json!([id]) } else { value.clone() }));
    let differing = wanted.filter(|(key, value)| got[*key] != *value);
    differing.map(|(key, value)| format!("{key} {} instead of {value}", got[key])).chain(by_ids(legs)).collect()
}

/// Cuts an answer at every tenth token, in one way after the other.
async fn reads_every_cut(pair: &Pair, name: &str, question: &Question) {
    let (uncut, tokens) = Reader::start().uncut(pair, question).await;
    let mut readers = JoinSet::new();
    for first in 0..READERS {
        let (question, uncut, servers) = (question.clone(), uncut.clone(), pair.addresses);
        readers.spawn(async move {
            let (mut reader, mut cases) = (Reader::start(), Vec::new());
            for (number, after) in (step()..tokens).step_by(step()).enumerate().skip(first).step_by(READERS) {
                // Each reader meets every way, and the sweep every way at once.
                let end = ENDS[(number + number / READERS) % ENDS.len()].clone();
                let case = format!("behind token {after}, {end:?}");
                let rig = Rig::start(servers, [Cut { after, end }]).await;
                let answer = reader.read(rig.address, &question).await;
                cases.push((after, case, differences(&answer, &uncut, &rig.script.legs())));
            }
            cases
        });
    }
    let mut cases = readers.join_all().await.concat();
    cases.sort();
    let count = cases.len();
    let bad = cases.iter().filter(|(.., differences)| !differences.is_empty());
    let bad: Vec<String> = bad.map(|(_, case, differences)| format!("{case}: {}", differences.join("; "))).collect();
    println!("{name}, read by the openai package: {count} cuts of {tokens} tokens, {} answers differ", bad.len());
    assert!(
        count >= tokens / step() - 1 && bad.is_empty(),
        "{} of {count} answers differ:\n{}",
        bad.len(),
        bad.join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn the_openai_package_reads_every_cut_answer_as_one_that_was_not() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    reads_every_cut(pair, "the story", &Question::chat("Tell me a story.", json!({}))).await;
    reads_every_cut(pair, "the count", &Question::chat("Please count to 150.", json!({}))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn the_openai_package_reads_random_words_as_if_they_were_not_cut() {
    let pair = pair(Model::Rand).await;
    let pair = pair.as_ref().expect("a pair");
    reads_every_cut(pair, "random words", &Question::chat("Tell me a story.", json!({"max_tokens": 200}))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn the_openai_package_does_not_see_what_was_done_to_a_server() {
    let mut pair = own_pair(Model::Memo).await;
    let pair = pair.as_mut().expect("a pair");
    let question = Question::chat("Tell me a story.", json!({}));
    let mut reader = Reader::start();
    let (uncut, tokens) = reader.uncut(pair, &question).await;
    let mut faults = Vec::new();
    let deeds = [
        (50, Deed::End(Process::Api, "KILL")),
        (tokens / 2, Deed::End(Process::Api, "TERM")),
        (tokens - 60, Deed::Stop(Process::Api)),
    ];
    for (after, deed) in deeds {
        let (said, mut heard) = unbounded_channel();
        let rig = Rig::start(pair.addresses, [Cut { after, end: End::Tell(said) }]).await;
        let (answer, server) = tokio::join!(reader.read(rig.address, &question), async {
            let (server, id) = heard.recv().await.expect("the leg comes to that token");
            deed.act(pair, server, &id).await;
            server
        });
        let legs = rig.script.legs();
        println!("{deed:?} behind token {after}, read by the openai package: {} legs", legs.len());
        let differences = differences(&answer, &uncut, &legs);
        faults.extend(differences.into_iter().map(|difference| format!("{deed:?}: {difference}")));
        if legs.len() != 2 {
            faults.push(format!("{deed:?}: {} legs", legs.len()));
        }
        deed.undo(pair, server).await;
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

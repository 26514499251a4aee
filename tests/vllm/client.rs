//! The official Python client before Baton, before a real vLLM.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;

use crate::relay::{Cut, End};
use crate::rig::{Question, Rig};
use crate::server::{Model, Process, own_pair, pair};
use crate::sweep::{by_ids, step};

/// What the client's package reads from a server or from Baton.
async fn read(address: SocketAddr, question: &Question) -> Value {
    let python =
        std::env::var("BATON_TEST_PYTHON").expect("BATON_TEST_PYTHON is set; run the tests by `make test-vllm`");
    let output = Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vllm/read_answer.py"))
        .args([format!("http://{address}/v1"), question.body.to_string()])
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the interpreter runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the script prints JSON")
}

/// All but the ids themselves, which are an answer's own.
fn without_ids(mut read: Value) -> Value {
    let ids = read["ids"].as_array().map_or(0, Vec::len);
    read["ids"] = json!(ids);
    read
}

fn differing(got: &Value, wanted: &Value) -> String {
    let keys = wanted.as_object().into_iter().flatten();
    let differing = keys.filter(|(key, value)| got[*key] != **value);
    differing.map(|(key, value)| format!("{key} {} instead of {value}", got[key])).collect::<Vec<_>>().join(", ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn the_openai_package_reads_every_cut_answer_as_one_that_was_not() {
    let pair = pair(Model::Memo).await;
    let pair = pair.as_ref().expect("a pair");
    let question = Arc::new(Question::chat("Tell me a story.", json!({})));
    let tokens = question.uncut(pair).await.tokens();
    let uncut = without_ids(read(pair.addresses[0], &question).await);
    assert_eq!((&uncut["ids"], &uncut["finish"], &uncut["error"]), (&json!(1), &json!(["stop"]), &Value::Null));
    let (permits, mut cases) = (Arc::new(Semaphore::new(2)), JoinSet::new());
    for (number, after) in (step()..tokens).step_by(step()).enumerate() {
        let (question, permits, servers) = (question.clone(), permits.clone(), pair.addresses);
        let end = [End::Reset, End::Close, End::Torn, End::Stall][number % 4].clone();
        cases.spawn(async move {
            let _permit = permits.acquire_owned().await.expect("it is never closed");
            let name = format!("behind token {after}, {end:?}");
            let rig = Rig::start(servers, [Cut { after, end }]).await;
            let answer = read(rig.address, &question).await;
            (name, without_ids(answer), by_ids(&rig.script.legs()))
        });
    }
    let cases = cases.join_all().await;
    println!("the story, read by the openai package: {} cuts", cases.len());
    let bad: Vec<String> = cases
        .into_iter()
        .filter(|(_, answer, legs)| *answer != uncut || legs.is_some())
        .map(|(name, answer, legs)| format!("{name}: {} {legs:?}", differing(&answer, &uncut)))
        .collect();
    assert!(bad.is_empty(), "{} answers differ:\n{}", bad.len(), bad.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a real vLLM: make test-vllm"]
async fn the_openai_package_does_not_see_that_a_server_was_killed() {
    let mut pair = own_pair(Model::Memo).await;
    let pair = pair.as_mut().expect("a pair");
    let question = Question::chat("Tell me a story.", json!({}));
    let uncut = without_ids(read(pair.addresses[0], &question).await);
    let (said, mut heard) = unbounded_channel();
    let rig = Rig::start(pair.addresses, [Cut { after: 50, end: End::Tell(said) }]).await;
    let (answer, server) = tokio::join!(read(rig.address, &question), async {
        let (server, _) = heard.recv().await.expect("the leg comes to that token");
        pair.server(server).signal(Process::Api, "KILL");
        server
    });
    pair.restart(server).await;
    assert_eq!((without_ids(answer), by_ids(&rig.script.legs()), rig.script.legs().len()), (uncut, None, 2));
}

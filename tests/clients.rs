//! An official client reads a continued stream and does not notice.

mod support;

use std::process::Stdio;

use serde_json::{Value, json};
use support::{Rig, Setup, within};
use tokio::process::Command;

/// The interpreter with the packages of `tests/python/requirements.txt`; `make test` makes it and names it.
const PYTHON: &str = "BATON_TEST_PYTHON";

const MESSAGE: &str = "Who carries the baton?";

async fn read_with_openai(rig: &Rig) -> Value {
    read_from(&format!("http://{}/v1", rig.address)).await
}

async fn read_from(base: &str) -> Value {
    let python = std::env::var(PYTHON).unwrap_or_else(|_| panic!("{PYTHON} is not set; run the tests by `make test`"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/read_stream.py");
    let output = Command::new(python)
        .args([script, base, MESSAGE])
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = within(output).await.expect("the interpreter runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the script prints JSON")
}

/// The request that the script sends, as far as the engines' text depends on it.
fn request() -> Value {
    json!({
        "model": "mock",
        "messages": [{"role": "user", "content": MESSAGE}],
        "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        "seed": 11,
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_package_reads_a_continued_stream_without_noticing() {
    let mut setup = Setup::new("leg1 rst@12+half").route("heartbeat: 100ms, timeouts: {idle: 2s}");
    let faults = setup.engines[0].faults.clone();
    setup.engines[1].faults = faults;
    let rig = setup.start().await;
    let seen = read_with_openai(&rig).await;
    let whole = rig.uncut(&request());
    assert_eq!(seen["error"], Value::Null);
    assert_eq!(seen["content"], whole.content_text());
    assert_eq!(seen["reasoning"], whole.reasoning_text());
    assert_eq!(seen["finish"], whole.finish);
    assert_eq!(seen["ids"].as_array().map(Vec::len), Some(1));
    assert_eq!(seen["roles"], 1);
    assert_eq!(seen["usage"]["completion_tokens"], whole.completion_tokens);
    assert_eq!(rig.continuations().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_package_reads_every_cut_answer_as_the_one_that_was_not() {
    let uncut = Setup::new("").start().await;
    let wire = uncut.wire(&request());
    let closed = wire.iter().position(|data| data.contains("[151668]")).expect("the end of thinking");
    // All that the package tells, but for the id itself.
    let plain = |mut seen: Value| {
        seen["ids"] = seen["ids"].as_array().map_or(0, Vec::len).into();
        seen
    };
    let wanted = plain(read_from(&format!("{}/v1", uncut.engines[0].url())).await);
    assert_eq!((&wanted["ids"], &wanted["error"]), (&json!(1), &Value::Null));
    assert!(wanted["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64() > Some(3), "{wanted}");
    for place in [closed / 2, closed, closed + 1, closed + 6] {
        let mut setup = Setup::new(&format!("leg1 eof@{place}+half"));
        let faults = setup.engines[0].faults.clone();
        setup.engines[1].faults = faults;
        let rig = setup.start().await;
        assert_eq!(plain(read_with_openai(&rig).await), wanted, "cut in event {place}");
        let continuations = rig.continuations();
        assert_eq!(continuations.len(), 1, "cut in event {place}");
        assert!(continuations[0]["kv_transfer_params"].is_object(), "cut in event {place}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_package_is_told_of_an_incomplete_answer() {
    let rig = Setup { engines: support::engines("qwen3", "rst@12")[..1].to_vec(), ..Setup::new("") };
    let rig = rig.route("continuation: {enabled: false}").start().await;
    let seen = read_with_openai(&rig).await;
    assert_eq!(seen["error"]["code"], "stream_incomplete");
    assert_eq!(seen["finish"], Value::Null);
}

//! `baton certify` as it is called: its exit status, its files, and what Baton says of them at start.

#[path = "support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::Output;

use baton::mock::{Config, Engine};
use serde_json::{Value, json};
use support::within;
use tokio::process::Command;

async fn baton(arguments: &[&str]) -> Output {
    let command = Command::new(env!("CARGO_BIN_EXE_baton")).args(arguments).output();
    within(command).await.expect("baton runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

#[tokio::test]
async fn a_certificate_is_written_and_read_again_at_start() {
    let config = Config { family: "qwen3".to_owned(), reasoning: 8, content: 16, ..Config::default() };
    let engine = Engine::start(config).await.expect("a mock engine starts");
    let folder = folder("certificate");
    let out = folder.join("out");
    let arguments = ["certify", "--url", &engine.url(), "--family", "qwen3", "--cuts", "1", "--plan", "token-exact"];
    let output = baton(&[&arguments[..], &["--out", &out.display().to_string()]].concat()).await;
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("| in content | exact (1) |"), "{}", said(&output));
    let markdown = std::fs::read_to_string(out.join("certificate.md")).expect("the Markdown is there");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with(&markdown));

    let file = folder.join("baton.yaml");
    let check = async |family: &str, plan: &str| {
        let text = format!(
            "upstreams: [{{name: a, engine: vllm, family: {family}, endpoints: [\"{}\"], certificate: out/certificate.json}}]\n\
             routes: [{{match: {{model: \"*\"}}, upstream: a, continuation: {{plan: {plan}}}}}]\n",
            engine.url()
        );
        std::fs::write(&file, text).expect("the file can be written");
        let output = baton(&["check", "-c", &file.display().to_string()]).await;
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    };
    let fine = check("qwen3", "token-exact").await;
    assert_eq!(fine.matches("warning").count(), 1, "no tool was called, and nothing else is missing: {fine}");
    assert!(fine.contains("says nothing of answers cut"), "{fine}");
    assert!(check("glm", "token-exact").await.contains("the certificate is of the family qwen3"));
    assert!(check("qwen3", "chat-continue").await.contains("does not cover the plan chat-continue"));

    std::fs::write(out.join("certificate.json"), "{}").expect("the file can be written");
    let output = baton(&["check", "-c", &file.display().to_string()]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains(":1: upstreams[0].certificate: \"out/certificate.json\": it is no certificate"));
}

/// What a certificate says of a plan in a state: how often each verdict, and why.
fn row(certificate: &Value, plan: &str, state: &str) -> (Value, Value) {
    let rows = certificate["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["plan"] == plan && row["state"] == state);
    let row = row.unwrap_or_else(|| panic!("no row for {plan}, {state}: {certificate:#}"));
    (row["verdicts"].clone(), row["why"].clone())
}

/// What a replay of an answer that has begun is: other words, or none where they begin as the answer began.
fn assert_another_answer(verdicts: &Value) {
    let verdicts = verdicts.as_object().expect("verdicts");
    assert!(verdicts.keys().all(|verdict| verdict == "different" || verdict == "refused"), "{verdicts:?}");
    assert!(verdicts.contains_key("different"), "{verdicts:?}");
}

/// A certificate of an engine, made with every plan.
async fn certificate(name: &str, config: Config, engine: &str, family: &str) -> Value {
    let running = Engine::start(config).await.expect("a mock engine starts");
    let file = folder(name).join("certificate.json");
    let (url, path) = (running.url(), file.display().to_string());
    let arguments = ["certify", "--url", &url, "--engine", engine, "--family", family, "--cuts", "2", "--json", &path];
    let output = baton(&arguments).await;
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&std::fs::read(&file).expect("the JSON is there")).expect("it is JSON")
}

#[tokio::test]
async fn every_plan_of_an_engine_with_the_scale_out_endpoints_has_its_rows() {
    let (family, tool_call) = ("qwen3".to_owned(), Some(4));
    let config = Config { family, tool_call, reasoning: 10, content: 20, scale_out: true, ..Config::default() };
    let certificate = certificate("every-plan", config, "vllm", "qwen3").await;
    assert_eq!((&certificate["scale_out"], &certificate["not_reached"]), (&json!(true), &json!([])));
    let exact = || (json!({"exact": 2}), json!(null));
    let refused = |why: &str| (json!({"refused": 2}), json!([why]));
    let states = ["thinking", "step", "content", "thinking-off", "inside-word", "inside-character", "before-tool-name"];
    for state in states {
        assert_eq!(row(&certificate, "token-exact", state), exact(), "{state}");
        let (rendered, _) = row(&certificate, "render-generate", state);
        let counted = |verdict: &String| verdict == "exact" || state == "inside-character" && verdict == "same-text";
        // A token of thinking that is half a character is counted with the event that has its text, and that is another one behind a cut.
        assert!(rendered.as_object().expect("verdicts").keys().all(counted), "{state}: {rendered}");
        assert_eq!(row(&certificate, "prefix", state), refused("not_here"), "{state}");
    }
    // Only the parser's state goes on inside a call.
    assert_eq!(row(&certificate, "render-generate", "behind-tool-name"), exact());
    for plan in ["token-exact", "chat-continue", "replay"] {
        assert_eq!(row(&certificate, plan, "behind-tool-name"), refused("tool_call_shown"), "{plan}");
    }
    assert_eq!(row(&certificate, "chat-continue", "thinking"), refused("thinking_closes"));
    assert_eq!(row(&certificate, "chat-continue", "content"), exact());
    // In thinking the request is sent once more, and what it thinks again is dropped; behind the answer's beginning comes another answer.
    assert_eq!(row(&certificate, "replay", "thinking").0, json!({"same-text": 2}));
    assert_another_answer(&row(&certificate, "replay", "content").0);
}

#[tokio::test]
async fn an_engine_that_goes_on_from_a_prefix_has_that_in_its_rows() {
    let config = Config { reasoning: 10, content: 20, ..Config::default() };
    let certificate = certificate("prefix", config, "deepseek", "default").await;
    // Its tokens are not counted along, so the usage of what was recovered is an estimate.
    let (content, why) = row(&certificate, "prefix", "content");
    assert_eq!(content, json!({"same-text": 2}));
    assert!(
        why.as_array().is_some_and(|why| why.iter().all(|why| why.as_str().unwrap_or_default().starts_with("usage ")))
    );
    let refused = |why: &str| (json!({"refused": 2}), json!([why]));
    assert_eq!(row(&certificate, "prefix", "thinking"), refused("thinking_closes"));
    for plan in ["token-exact", "render-generate", "chat-continue"] {
        assert_eq!(row(&certificate, plan, "content"), refused("not_here"), "{plan}");
    }
    assert_another_answer(&row(&certificate, "replay", "content").0);
}

#[tokio::test]
async fn an_upstream_of_the_configuration_can_be_certified() {
    let config = Config { family: "qwen3".to_owned(), reasoning: 4, content: 12, ..Config::default() };
    let engine = Engine::start(config).await.expect("a mock engine starts");
    let file = folder("upstream").join("baton.yaml");
    let text = format!(
        "upstreams: [{{name: a, engine: vllm, family: qwen3, endpoints: [\"{}\"]}}]\n\
         routes: [{{match: {{model: \"*\"}}, upstream: a}}]\n",
        engine.url()
    );
    std::fs::write(&file, text).expect("the file can be written");
    let file = file.display().to_string();
    let arguments = ["certify", "-c", &file, "--cuts", "1", "--plan", "token-exact", "--upstream"];
    let output = baton(&[&arguments[..], &["a"]].concat()).await;
    assert!(output.status.success() && said(&output).contains("| family | `qwen3` |"), "{}", said(&output));
    let output = baton(&[&arguments[..], &["b"]].concat()).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("--upstream: \"b\" is none of the upstreams (a)"), "{}", said(&output));
}

#[tokio::test]
async fn an_engine_that_cannot_be_reached_is_status_1_and_a_sentence() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it has an address"));
    drop(listener);
    let output = baton(&["certify", "--url", &url]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(
        said.starts_with("baton: the engine cannot be reached: ") && said.contains("correct its address"),
        "{said}"
    );
}

//! `baton certify` as it is called: its exit status, its files, and what Baton says of them at start.

#[path = "support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::Output;

use baton::mock::{Config, Engine};
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

//! Requests that Baton does not claim.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::harness::{Baton, Engine, ask, nobody, request, rest, settings};

const JSON: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nX-Engine: 7\r\n\
                    Keep-Alive: timeout=5\r\n\r\n{}";

#[tokio::test]
async fn embeddings_pass_with_their_body_to_the_engine_s_own_host() {
    let mut engine = Engine::answering(JSON).await;
    let baton = Baton::before(&engine).await;
    let sent = request("POST", "/v1/embeddings?x=1", "{\"input\":\"a\"}").replace("Host", "Baton-Resume: on\r\nHost");
    let response = baton.ask(&sent).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("\r\n\r\n{}"), "{response}");
    assert!(response.contains("X-Engine: 7") && !response.contains("timeout=5"), "{response}");
    let got = engine.request().await.to_ascii_lowercase();
    assert!(got.starts_with("post /v1/embeddings?x=1 http/1.1\r\n") && got.ends_with("{\"input\":\"a\"}"), "{got}");
    assert!(got.contains(&format!("host: {}\r\n", engine.address)) && !got.contains("baton-resume"), "{got}");
}

#[tokio::test]
async fn health_is_baton_s_own() {
    let baton = Baton::start(settings(&[nobody().await], "*", "")).await;
    let response = baton.ask(&request("GET", "/health", "")).await;
    assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("{\"status\":\"ok\"}"), "{response}");
    let head = baton.ask(&request("HEAD", "/health", "")).await;
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
}

#[tokio::test]
async fn health_answers_an_http_2_client_too() {
    let baton = Baton::start(settings(&[nobody().await], "*", "")).await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let response = client.get(format!("http://{}/health", baton.address)).send().await.unwrap();
    assert_eq!(response.version(), http::Version::HTTP_2);
    assert_eq!(response.text().await.unwrap(), "{\"status\":\"ok\"}");
}

#[tokio::test]
async fn a_body_that_says_it_is_too_large_is_refused_before_it_is_sent() {
    let mut settings = settings(&[nobody().await], "*", "");
    settings.server.max_request_body = 1_000;
    let baton = Baton::start(settings).await;
    let mut client = TcpStream::connect(baton.address).await.unwrap();
    client.write_all(b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n").await.unwrap();
    // The rest of the body is never sent, and the answer comes all the same.
    let response = super::harness::until(&mut client, "request_too_large").await;
    assert!(response.starts_with("HTTP/1.1 413") && response.contains("1000 bytes"), "{response}");
}

#[tokio::test]
async fn the_answer_to_a_large_body_survives_the_bytes_that_are_still_coming() {
    let mut settings = settings(&[nobody().await], "*", "");
    settings.server.max_request_body = 1_000;
    let baton = Baton::start(settings).await;
    let response = baton.ask(&request("POST", "/v1/embeddings", &"x".repeat(1_000_000))).await;
    assert!(response.starts_with("HTTP/1.1 413"), "{response}");
}

#[tokio::test]
async fn a_chunked_body_is_refused_when_it_grows_over_the_limit() {
    let (engine, _closed) = Engine::silent(b"").await;
    let mut settings = settings(&[engine.address], "*", "");
    settings.server.max_request_body = 1_000;
    let baton = Baton::start(settings).await;
    let mut client = TcpStream::connect(baton.address).await.unwrap();
    let head = b"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.write_all(head).await.unwrap();
    client.write_all(format!("{:x}\r\n{}\r\n", 2_000, "x".repeat(2_000)).as_bytes()).await.unwrap();
    let response = super::harness::until(&mut client, "request_too_large").await;
    assert!(response.starts_with("HTTP/1.1 413"), "{response}");
}

#[tokio::test]
async fn engines_that_cannot_be_reached_are_a_502_here_too() {
    let baton = Baton::start(settings(&[nobody().await, nobody().await], "*", "")).await;
    let response = baton.ask(&request("POST", "/v1/embeddings", "{}")).await;
    assert!(response.starts_with("HTTP/1.1 502"), "{response}");
    assert!(response.contains("upstream_unreachable") && response.contains("`qwen`"), "{response}");
    let metrics = ask(baton.admin, &request("GET", "/metrics", "")).await;
    assert!(metrics.contains("connect_failures_total{upstream=\"qwen\"} 2"), "{metrics}");
}

#[tokio::test]
async fn a_refused_connection_is_followed_by_the_next_endpoint_even_for_a_post() {
    let mut engine = Engine::answering(JSON).await;
    let baton = Baton::start(settings(&[nobody().await, engine.address], "*", "")).await;
    for _ in 0..2 {
        assert!(baton.ask(&request("POST", "/v1/embeddings", "{}")).await.starts_with("HTTP/1.1 200"));
        assert!(engine.request().await.ends_with("{}"));
    }
}

#[tokio::test]
async fn a_post_that_an_engine_swallowed_is_not_repeated() {
    let mut engine = Engine::answering("").await;
    let baton = Baton::before(&engine).await;
    let response = baton.ask(&request("POST", "/v1/embeddings", "{}")).await;
    assert!(response.starts_with("HTTP/1.1 502") && response.contains("upstream_no_answer"), "{response}");
    engine.request().await;
    assert!(engine.requests.try_recv().is_err());
}

#[tokio::test]
async fn without_a_route_for_any_model_they_are_a_404() {
    let baton = Baton::start(settings(&[nobody().await], "qwen*", "")).await;
    let response = baton.ask(&request("GET", "/v1/models", "")).await;
    assert!(response.starts_with("HTTP/1.1 404") && response.contains("No route"), "{response}");
}

#[tokio::test]
async fn an_event_stream_that_is_cut_gets_no_orderly_end_and_is_counted() {
    let event =
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
    let cut = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{event}\r\n",
        event.len()
    );
    let engine = Engine::answering(cut).await;
    let baton = Baton::before(&engine).await;
    let mut client = TcpStream::connect(baton.address).await.unwrap();
    client.write_all(request("POST", "/v1/other", "{}").as_bytes()).await.unwrap();
    let response = rest(&mut client).await;
    assert!(response.contains("\"a\"") && !response.ends_with("0\r\n\r\n"), "{response}");
    let metrics = ask(baton.admin, &request("GET", "/metrics", "")).await;
    assert!(metrics.contains("streams_incomplete_total{reason=\"eof\",upstream=\"qwen\"} 1"), "{metrics}");
}

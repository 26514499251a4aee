//! Chat completions.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::harness::{Baton, CHAT, Engine, ask, chat, nobody, on_free_ports, request, rest, settings, until, within};
use crate::config;

const EVENTS: &[&str] = &[
    r#"{"id":"c1","object":"chat.completion.chunk","created":1,"model":"q","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
    r#"{"id":"c1","object":"chat.completion.chunk","created":1,"model":"q","choices":[{"index":0,"delta":{"content":"Hallo"},"finish_reason":null}]}"#,
    r#"{"id":"c1","object":"chat.completion.chunk","created":1,"model":"q","choices":[{"index":0,"delta":{"content":" Welt"},"finish_reason":null}]}"#,
    r#"{"id":"c1","object":"chat.completion.chunk","created":1,"model":"q","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    "[DONE]",
];

const SSE: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\nx-engine: 7\r\n\
                   keep-alive: timeout=5\r\nserver: uvicorn\r\ntransfer-encoding: chunked\r\n\r\n";

fn events(events: &[&str]) -> String {
    events.iter().map(|data| format!("data: {data}\n\n")).collect()
}

fn chunk(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n", body.len())
}

/// What an engine sends for an uncut answer.
fn whole() -> String {
    format!("{SSE}{}0\r\n\r\n", chunk(&events(EVENTS)))
}

/// Head (in lower case) and body of a response, the body out of its chunks.
fn split(response: &str) -> (String, String) {
    let (head, mut rest) = response.split_once("\r\n\r\n").unwrap();
    let head = head.to_ascii_lowercase();
    if !head.contains("transfer-encoding: chunked") {
        return (head, rest.to_owned());
    }
    let mut body = String::new();
    loop {
        let Some((size, after)) = rest.split_once("\r\n") else { return (head, body + "<torn>") };
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (head, body);
        }
        body.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
}

#[tokio::test]
async fn an_event_stream_arrives_as_the_engine_sent_it() {
    let mut engine = Engine::answering(whole()).await;
    let baton = Baton::before(&engine).await;
    let (head, body) = split(&baton.ask(&chat(CHAT)).await);
    assert!(head.starts_with("http/1.1 200 ok\r\n"), "{head}");
    assert_eq!(body, events(EVENTS));
    for header in
        ["baton-stream: ", "cache-control: no-store", "x-accel-buffering: no", "x-engine: 7", "server: uvicorn"]
    {
        assert!(head.contains(header), "{header}: {head}");
    }
    assert!(!head.contains("keep-alive: timeout=5"), "{head}");
    let listing = format!(r#"{},"return_token_ids":true}}"#, CHAT.strip_suffix('}').unwrap());
    assert!(engine.request().await.ends_with(&listing), "the body asks for token ids, and is unchanged otherwise");
}

#[tokio::test]
async fn a_client_s_headers_reach_the_engine_less_those_between_it_and_baton() {
    let mut engine = Engine::answering(whole()).await;
    let baton = Baton::before(&engine).await;
    let mut sent = chat(CHAT);
    sent.insert_str(
        sent.find("Host").unwrap(),
        "Authorization: Bearer k\r\nAccept-Encoding: gzip\r\nBaton-Resume: on\r\nX-Tenant: t\r\n",
    );
    baton.ask(&sent).await;
    let got = engine.request().await.to_ascii_lowercase();
    assert!(got.contains("authorization: bearer k\r\n") && got.contains("x-tenant: t\r\n"), "{got}");
    assert!(got.contains(&format!("host: {}\r\n", engine.address)), "{got}");
    for gone in ["accept-encoding", "baton-resume", "connection:", "baton.example"] {
        assert!(!got.contains(gone), "{gone}: {got}");
    }
}

#[tokio::test]
async fn an_answer_that_is_no_event_stream_passes_unchanged() {
    let json =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\nX-Engine: 7\r\n\r\n{\"id\":\"c1\"}";
    let engine = Engine::answering(json).await;
    let (head, body) = split(&Baton::before(&engine).await.ask(&chat(&CHAT.replace("true", "false"))).await);
    assert_eq!(body, "{\"id\":\"c1\"}");
    assert!(head.contains("content-length: 11") && head.contains("x-engine: 7"), "{head}");
    assert!(!head.contains("baton-stream"), "{head}");
}

#[tokio::test]
async fn an_engine_s_error_passes_with_status_and_body() {
    let error = "HTTP/1.1 422 Unprocessable\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let engine = Engine::answering(error).await;
    let (head, body) = split(&Baton::before(&engine).await.ask(&chat(CHAT)).await);
    assert!(head.starts_with("http/1.1 422"), "{head}");
    assert_eq!(body, "{}");
}

#[tokio::test]
async fn a_body_that_is_no_chat_request_reaches_the_engine_unchanged() {
    for body in ["{\"model\":", "[]", "{\"model\":\"qwen\"}", ""] {
        let mut engine = Engine::answering("HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n").await;
        let baton = Baton::before(&engine).await;
        assert!(baton.ask(&chat(body)).await.starts_with("HTTP/1.1 400"));
        assert_eq!(engine.request().await.split_once("\r\n\r\n").unwrap().1, body);
    }
}

#[tokio::test]
async fn a_model_without_a_route_is_a_404_that_names_it() {
    let baton = Baton::start(settings(&[nobody().await], "llama*", "")).await;
    let response = baton.ask(&chat(CHAT)).await;
    assert!(response.starts_with("HTTP/1.1 404"), "{response}");
    assert!(response.contains("model_not_found") && response.contains("`qwen3-8b`"), "{response}");
}

#[tokio::test]
async fn engines_that_cannot_be_reached_are_a_502_that_names_the_upstream_and_no_address() {
    let dead = nobody().await;
    let baton = Baton::start(settings(&[dead], "*", "")).await;
    let response = baton.ask(&chat(CHAT)).await;
    assert!(response.starts_with("HTTP/1.1 502"), "{response}");
    assert!(response.contains("upstream_unreachable") && response.contains("`qwen`"), "{response}");
    assert!(!response.contains(&dead.port().to_string()), "{response}");
    let metrics = ask(baton.admin, "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
    assert!(metrics.contains("connect_failures_total{upstream=\"qwen\"} 1"), "{metrics}");
}

#[tokio::test]
async fn a_stream_whose_engine_dies_before_its_answer_is_asked_for_elsewhere() {
    let (dying, engine) = (Engine::answering("").await, Engine::answering(whole()).await);
    let baton = Baton::start(settings(&[dying.address, engine.address], "*", "")).await;
    for _ in 0..4 {
        assert_eq!(split(&baton.ask(&chat(CHAT)).await).1, events(EVENTS));
    }
}

/// How often an engine that dies before its answer is asked, before the client gets a 502.
async fn tries(keys: &str, body: &str) -> usize {
    let mut engine = Engine::answering("").await;
    let baton = Baton::start(settings(&[engine.address], "*", keys)).await;
    let response = baton.ask(&chat(body)).await;
    assert!(response.starts_with("HTTP/1.1 502") && response.contains("upstream_no_answer"), "{response}");
    std::iter::from_fn(|| engine.requests.try_recv().ok()).count()
}

#[tokio::test]
async fn a_request_is_repeated_only_where_its_answer_would_be_continued() {
    assert_eq!(tries("", CHAT).await, 3);
    assert_eq!(tries(", continuation: {enabled: false}", CHAT).await, 1);
    assert_eq!(tries("", &CHAT.replace("true", "false")).await, 1);
    assert_eq!(tries("", &CHAT.replace("\"stream\"", "\"n\":2,\"stream\"")).await, 1);
    assert_eq!(tries("", "{}").await, 1);
}

#[tokio::test]
async fn a_refused_connection_is_followed_by_the_next_endpoint() {
    let engine = Engine::answering(whole()).await;
    let baton = Baton::start(settings(&[nobody().await, engine.address], "*", "")).await;
    for _ in 0..2 {
        assert_eq!(split(&baton.ask(&chat(CHAT)).await).1, events(EVENTS));
    }
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_ends_the_engine_s_work() {
    let (mut engine, mut closed) = Engine::silent(b"").await;
    let baton = Baton::before(&engine).await;
    let mut client = TcpStream::connect(baton.address).await.unwrap();
    client.write_all(chat(CHAT).as_bytes()).await.unwrap();
    engine.request().await;
    drop(client);
    within(closed.recv()).await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_during_a_whole_answer_ends_the_engine_s_work() {
    let begun = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    let (engine, mut closed) = Engine::silent(begun).await;
    let baton = Baton::before(&engine).await;
    let mut client = TcpStream::connect(baton.address).await.unwrap();
    client.write_all(chat(CHAT).as_bytes()).await.unwrap();
    until(&mut client, "abc").await;
    drop(client);
    within(closed.recv()).await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_during_a_stream_ends_the_engine_s_work() {
    let head: &'static [u8] =
        Box::leak(format!("{SSE}{}", chunk(&events(&EVENTS[..2]))).into_bytes().into_boxed_slice());
    let (engine, mut closed) = Engine::silent(head).await;
    let baton = Baton::before(&engine).await;
    let mut client = TcpStream::connect(baton.address).await.unwrap();
    client.write_all(chat(CHAT).as_bytes()).await.unwrap();
    until(&mut client, "Hallo").await;
    drop(client);
    within(closed.recv()).await.unwrap();
}

#[tokio::test]
async fn a_whole_answer_that_is_torn_gets_no_orderly_end() {
    let torn = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    let engine = Engine::answering(torn).await;
    let (_, body) = split(&Baton::before(&engine).await.ask(&chat(CHAT)).await);
    assert_eq!(body, "abc<torn>");
}

#[tokio::test]
async fn a_client_that_waits_for_100_continue_gets_it() {
    let engine = Engine::answering(whole()).await;
    let baton = Baton::before(&engine).await;
    let mut client = TcpStream::connect(baton.address).await.unwrap();
    let sent = chat(CHAT).replace("Host", "Expect: 100-continue\r\nHost");
    let (head, body) = sent.split_once("\r\n\r\n").unwrap();
    client.write_all(format!("{head}\r\n\r\n").as_bytes()).await.unwrap();
    until(&mut client, "100 Continue\r\n\r\n").await;
    client.write_all(body.as_bytes()).await.unwrap();
    assert_eq!(split(&rest(&mut client).await).1, events(EVENTS));
}

#[tokio::test]
async fn a_client_that_sends_its_next_request_early_loses_neither_answer() {
    let engine = Engine::answering(whole()).await;
    let baton = Baton::before(&engine).await;
    let first = chat(CHAT).replace("Connection: close\r\n", "");
    let both = baton.ask(&format!("{first}{}", request("GET", "/health", ""))).await;
    assert!(both.contains("[DONE]") && both.ends_with("{\"status\":\"ok\"}"), "{both}");
}

#[tokio::test]
async fn an_http_2_client_gets_the_same_events() {
    let engine = Engine::answering(whole()).await;
    let baton = Baton::before(&engine).await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let url = format!("http://{}/v1/chat/completions", baton.address);
    let response = within(client.post(url).body(CHAT).send()).await.unwrap();
    assert_eq!(response.version(), http::Version::HTTP_2);
    assert!(response.headers().contains_key("baton-stream"));
    assert_eq!(within(response.text()).await.unwrap(), events(EVENTS));
}

#[tokio::test]
async fn an_http_2_client_that_leaves_before_the_answer_ends_the_engine_s_work() {
    let (mut engine, mut closed) = Engine::silent(b"").await;
    let baton = Baton::before(&engine).await;
    let client = reqwest::Client::builder().http2_prior_knowledge().build().unwrap();
    let url = format!("http://{}/v1/chat/completions", baton.address);
    let call = tokio::spawn(client.post(url).body(CHAT).send());
    engine.request().await;
    call.abort();
    within(closed.recv()).await.unwrap();
}

#[tokio::test]
async fn a_chat_body_over_the_continuation_s_limit_goes_where_its_model_says_and_is_not_continued() {
    let torn = format!("{SSE}{}", chunk(&events(&EVENTS[..2])));
    let (wrong, mut right) = (Engine::answering(torn.clone()).await, Engine::answering(torn).await);
    let text = format!(
        "upstreams: [{{name: a, engine: vllm, family: no_thinking, endpoints: [\"http://{}\"]}}, \
                     {{name: b, engine: vllm, family: no_thinking, endpoints: [\"http://{}\"]}}]\n\
         routes: [{{match: {{model: \"qwen3*\"}}, upstream: b, continuation: {{max_body: 1KiB}}}}, \
                  {{match: {{model: \"*\"}}, upstream: a}}]\n",
        wrong.address, right.address
    );
    let baton = Baton::start(on_free_ports(config::load(&text, &|_| None).unwrap())).await;
    let body = CHAT.replace("hi", &"h".repeat(2_000));
    let (_, answer) = split(&baton.ask(&chat(&body)).await);
    assert!(right.request().await.ends_with(&body));
    assert!(answer.contains("stream_incomplete"), "{answer}");
    assert!(right.requests.try_recv().is_err(), "sent once");
}

#[tokio::test]
async fn a_chunked_chat_body_over_the_limit_is_a_413() {
    let mut settings = settings(&[nobody().await], "*", "");
    settings.server.max_request_body = 1_000;
    let baton = Baton::start(settings).await;
    let body = chunk(&"x".repeat(2_000));
    let sent =
        format!("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}0\r\n\r\n");
    let response = baton.ask(&sent).await;
    assert!(response.starts_with("HTTP/1.1 413") && response.contains("request_too_large"), "{response}");
}

use serde_json::json;

use super::client::{BodyEnd, Client};
use super::{config, soon, start};
use crate::mock::Config;

const CHAT: &str = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_refused_and_harms_nobody() {
    let engine = start(Config { max_body: 1000, ..config() }).await;
    let mut other = Client::connect(engine.addr());
    other.chat(&[("mock-fault", "stall@1")], &json!({"stream": true, "messages": [{"role": "user", "content": "Hi"}]}));
    soon(engine.wait_stalled(0)).await;
    let many: String = (0..200).map(|at| format!("x-{at}: y\r\n")).collect();
    let large = format!("x: {}\r\n", "y".repeat(70_000));
    for (bytes, status) in [
        ("hello\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nno colon\r\n\r\n".to_owned(), 400),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), 431),
        (format!("GET / HTTP/1.1\r\n{large}\r\n"), 431),
        ("POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n".to_owned(), 400),
        ("POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n".to_owned(), 400),
        ("POST / HTTP/1.1\r\ncontent-length: 1001\r\n\r\n".to_owned(), 413),
        ("POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n".to_owned(), 501),
        ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n".to_owned(), 400),
        ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_owned(), 400),
        ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabcd".to_owned(), 400),
        ("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffff\r\n".to_owned(), 413),
    ] {
        let mut client = Client::connect(engine.addr());
        client.send(bytes.as_bytes());
        let reply = client.reply();
        assert_eq!((reply.status, reply.end), (status, BodyEnd::Whole), "{}", &bytes[..bytes.len().min(80)]);
        assert_eq!(client.end(), BodyEnd::Eof, "the connection ends in good order");
    }
    engine.release(0);
    assert_eq!(other.reply().end, BodyEnd::Whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_body_gets_400_in_words_and_the_connection_goes_on() {
    let engine = start(config()).await;
    let mut client = Client::connect(engine.addr());
    for (body, words) in [
        ("", "not JSON"),
        ("{\"messages\":", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "`messages` is missing"),
        ("{\"messages\":{}}", "`messages` is not an array"),
        ("{\"messages\":[]}", "`messages` is empty"),
        ("{\"messages\":[1]}", "messages[0]"),
        ("{\"messages\":[{\"role\":\"user\"}],\"stream\":\"yes\"}", "`stream` is not a boolean"),
        ("{\"messages\":[{\"role\":\"user\"}],\"max_tokens\":-1}", "`max_tokens` is not a whole number"),
        ("{\"messages\":[{\"role\":\"user\"}],\"max_tokens\":0}", "max_tokens must be at least 1, got 0."),
        ("{\"messages\":[{\"role\":\"user\"}],\"n\":1000}", "n must be at most"),
        ("{\"messages\":[{\"role\":\"user\"}],\"stream_options\":[]}", "`stream_options` is not an object"),
        (
            "{\"messages\":[{\"role\":\"user\"}],\"stream_options\":{}}",
            "Stream options can only be defined when `stream=True`.",
        ),
        ("{\"messages\":[{\"role\":\"user\"}],\"mock\":{\"content\":99999999999}}", "not a number of tokens"),
    ] {
        client.post("/v1/chat/completions", &[], body);
        let reply = client.reply();
        let message = reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(reply.status == 400 && message.contains(words), "{body}: {message}");
    }
    client.post("/v1/chat/completions", &[], CHAT);
    assert_eq!(client.reply().status, 200);
    assert_eq!(engine.connection_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_may_be_chunked_pipelined_and_come_in_pieces() {
    let engine = start(config()).await;
    let mut client = Client::connect(engine.addr());
    let (a, b) = CHAT.split_at(11);
    let chunks = format!("{:x};ext=1\r\n{a}\r\n{:X}\r\n{b}\r\n0\r\ntrailer: x\r\n\r\n", a.len(), b.len());
    let request = format!("POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    for piece in request.as_bytes().chunks(7) {
        client.send(piece);
    }
    assert_eq!(client.reply().status, 200);
    assert_eq!(engine.request(0).map(|seen| seen.body), Some(CHAT.to_owned()));
    client.send([request.as_bytes(), b"GET /version HTTP/1.1\r\n\r\n", request.as_bytes()].concat().as_slice());
    let (first, second, third) = (client.reply(), client.reply(), client.reply());
    assert!(
        first.json()["choices"].is_array()
            && second.json()["version"].is_string()
            && third.json()["choices"].is_array()
    );
    assert_eq!(engine.connection_count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_for_100_continue_gets_it() {
    let engine = start(config()).await;
    let mut client = Client::connect(engine.addr());
    let length = CHAT.len();
    client.send(
        format!("POST /v1/chat/completions HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n")
            .as_bytes(),
    );
    client.read_until(|bytes| bytes == b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send(CHAT.as_bytes());
    client.read_until(|bytes| bytes.windows(15).any(|window| window == b"HTTP/1.1 200 OK"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_keep_alive_is_closed_after_its_answer() {
    let engine = start(config()).await;
    let body = "{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}";
    for (version, chunked) in [("HTTP/1.1\r\nconnection: close", true), ("HTTP/1.0", false)] {
        let mut client = Client::connect(engine.addr());
        let length = body.len();
        client
            .send(format!("POST /v1/chat/completions {version}\r\ncontent-length: {length}\r\n\r\n{body}").as_bytes());
        let reply = client.reply();
        assert_eq!((reply.end, reply.events().last().map(String::as_str)), (BodyEnd::Whole, Some("[DONE]")));
        assert_eq!(!reply.chunks.is_empty(), chunked);
        assert_eq!(client.end(), BodyEnd::Eof);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_event_is_a_chunk_of_its_own_unless_told_otherwise() {
    let body = json!({"stream": true, "messages": [{"role": "user", "content": "Hi"}]});
    for (events_per_write, chunks) in [(1, 12), (5, 3), (100, 1)] {
        let engine = start(Config { events_per_write, ..config() }).await;
        let mut client = Client::connect(engine.addr());
        client.chat(&[], &body);
        let reply = client.reply();
        assert_eq!((reply.events().len(), reply.chunks.len()), (12, chunks));
    }
}

//! Start, drain and end.

use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use super::harness::{Baton, Engine, ask, chat, nobody, request, rest, settings, until, within};
use crate::app::{App, StartError};

#[tokio::test]
async fn an_address_in_use_is_said_at_once() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut settings = settings(&[nobody().await], "*", "");
    settings.server.listen = vec![taken.local_addr().unwrap()];
    let Err(StartError::Listen { address, .. }) = App::bind(settings) else { panic!("it was bound twice") };
    assert_eq!(address, taken.local_addr().unwrap());
}

#[tokio::test]
async fn the_admin_address_has_metrics_health_and_nothing_else() {
    let baton = Baton::start(settings(&[nobody().await], "*", "")).await;
    let metrics = ask(baton.admin, &request("GET", "/metrics", "")).await;
    assert!(metrics.contains("text/plain; version=0.0.4") && metrics.contains("# TYPE"), "{metrics}");
    assert!(ask(baton.admin, &request("GET", "/health", "")).await.starts_with("HTTP/1.1 200"));
    assert!(ask(baton.admin, &request("GET", "/", "")).await.starts_with("HTTP/1.1 404"));
    assert!(ask(baton.admin, &request("POST", "/metrics", "")).await.starts_with("HTTP/1.1 405"));
}

#[tokio::test]
async fn without_requests_a_drain_ends_at_once() {
    let mut baton = Baton::start(settings(&[nobody().await], "*", "")).await;
    baton.ask(&request("GET", "/health", "")).await;
    baton.drain();
    baton.ended().await;
}

#[tokio::test]
async fn a_start_and_a_drain_do_not_wait_for_an_engine_to_say_what_it_can_do() {
    let engine = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut baton = Baton::start(settings(&[engine.local_addr().unwrap()], "*", "")).await;
    assert!(baton.ask(&request("GET", "/health", "")).await.starts_with("HTTP/1.1 200"));
    let (mut asked, _) = within(engine.accept()).await.unwrap();
    until(&mut asked, "GET /version HTTP/1.1\r\n").await;
    baton.drain();
    baton.ended().await;
    // The probe has ended, too.
    rest(&mut asked).await;
}

/// An answer of which the client has the first half, and the word on which the engine sends the second.
struct Half {
    baton: Baton,
    client: TcpStream,
    go: Arc<Notify>,
    /// Keeps the engine.
    _engine: Engine,
}

async fn half_an_answer() -> Half {
    let go = Arc::new(Notify::new());
    let wait = Arc::clone(&go);
    let engine = Engine::start(Arc::new(move |mut socket, _| {
        let wait = Arc::clone(&wait);
        tokio::spawn(async move {
            socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n").await.unwrap();
            wait.notified().await;
            socket.write_all(b"4\r\nhalf\r\n0\r\n\r\n").await.unwrap();
        })
    }))
    .await;
    let baton = Baton::before(&engine).await;
    let mut client = TcpStream::connect(baton.address).await.unwrap();
    client.write_all(chat("{}").as_bytes()).await.unwrap();
    until(&mut client, "half").await;
    Half { baton, client, go, _engine: engine }
}

#[tokio::test]
async fn a_drain_waits_for_what_is_under_way_and_accepts_nothing_new() {
    let Half { mut baton, mut client, go, _engine } = half_an_answer().await;
    baton.drain();
    while TcpStream::connect(baton.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(baton.is_running());
    go.notify_one();
    assert!(rest(&mut client).await.ends_with("4\r\nhalf\r\n0\r\n\r\n"));
    baton.ended().await;
}

#[tokio::test]
async fn a_halt_waits_for_nothing() {
    let mut half = half_an_answer().await;
    half.baton.drain();
    half.baton.halt();
    half.baton.ended().await;
}

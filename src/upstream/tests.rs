//! Legs against engines that are scripted byte by byte on real sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora::http::RequestHeader;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::{Answer, Ask, Asking, Cluster, Connector, Cut, Leg, OpenError, Unanswered, Whom, ask, get};
use crate::config::settings::{Balance, Endpoint, Scheme, Upstream};
use crate::proto::resume::Question;

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

enum Step {
    /// Reads one request, head and body, and keeps it.
    Request,
    /// Reads one byte of a request.
    Byte,
    Send(&'static [u8]),
    /// Sends the bytes one by one, each in a segment of its own.
    Trickle(&'static [u8]),
    Reset,
    /// Waits for the test.
    Until(Arc<Notify>),
    /// Waits until the other side has closed.
    Closed,
}
use Step::{Byte, Closed, Request, Reset, Send, Trickle, Until};

/// An engine that accepts one connection for each script. Returns the requests that it got.
async fn engine(scripts: Vec<Vec<Step>>) -> (SocketAddr, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handle = tokio::spawn(async move {
        let mut requests = Vec::new();
        for script in scripts {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.set_nodelay(true).unwrap();
            for step in script {
                play(&mut socket, step, &mut requests).await;
            }
        }
        requests
    });
    (address, handle)
}

async fn play(socket: &mut TcpStream, step: Step, requests: &mut Vec<String>) {
    match step {
        Request => requests.push(read_request(socket).await),
        Byte => {
            socket.read_u8().await.unwrap();
        }
        Send(bytes) => socket.write_all(bytes).await.unwrap(),
        Trickle(bytes) => {
            for byte in bytes {
                socket.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
        }
        // From here on a close is a reset.
        Reset => socket.set_zero_linger().unwrap(),
        Until(test) => test.notified().await,
        Closed => while socket.read(&mut [0; 1024]).await.is_ok_and(|n| n > 0) {},
    }
}

async fn read_request(socket: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|l| l.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        let mut piece = [0; 1024];
        match socket.read(&mut piece).await {
            Ok(n) if n > 0 => bytes.extend_from_slice(&piece[..n]),
            _ => return text,
        }
    }
}

async fn cluster(addresses: &[SocketAddr]) -> Cluster {
    let endpoint = |a: &SocketAddr| Endpoint { scheme: Scheme::Http, host: a.ip().to_string(), port: a.port() };
    Cluster::new(&Upstream {
        name: "test".to_owned(),
        engine: "vllm".to_owned(),
        family: "default".to_owned(),
        endpoints: addresses.iter().map(endpoint).collect(),
        balance: Balance::RoundRobin,
        certificate: None,
    })
    .await
}

fn connector() -> Arc<Connector> {
    Arc::new(Connector::new(None))
}

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

async fn open_with(
    connector: &Arc<Connector>,
    cluster: &Cluster,
    body: &Bytes,
    answer: Option<Duration>,
    avoid: &[SocketAddr],
) -> Result<Leg, OpenError> {
    let head = RequestHeader::build("POST", b"/v1/chat/completions", None).unwrap();
    let ask = Ask { head: &head, body, connect: Duration::from_secs(2), answer, avoid };
    Leg::open(connector, cluster, ask).await
}

async fn open(connector: &Arc<Connector>, cluster: &Cluster) -> Result<Leg, OpenError> {
    open_with(connector, cluster, &Bytes::from_static(b"{}"), None, &[]).await
}

async fn read_all(leg: &mut Leg) -> (Vec<u8>, Result<(), Cut>) {
    let mut all = Vec::new();
    loop {
        match leg.read().await {
            Ok(Some(bytes)) => {
                assert!(!bytes.is_empty());
                all.extend_from_slice(bytes);
            }
            Ok(None) => return (all, Ok(())),
            Err(cut) => return (all, Err(cut)),
        }
    }
}

/// The body and the end that a leg reports for one response.
async fn check(script: Vec<Step>, body: &[u8], end: Result<(), Cut>) {
    let (address, _engine) = engine(vec![script]).await;
    let mut leg = open(&connector(), &cluster(&[address]).await).await.unwrap();
    assert_eq!(read_all(&mut leg).await, (body.to_vec(), end.clone()));
    assert_eq!(read_all(&mut leg).await, (Vec::new(), end), "the end is the same when it is asked for again");
}

#[tokio::test]
async fn a_chunked_body_ends_with_its_last_chunk() {
    check(vec![Request, Send(HEAD), Send(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), Closed], b"abcde", Ok(())).await;
}

#[tokio::test]
async fn a_close_before_the_last_chunk_is_a_cut() {
    check(vec![Request, Send(HEAD), Send(b"3\r\nabc\r\n")], b"abc", Err(Cut::Eof)).await;
}

#[tokio::test]
async fn a_close_inside_a_chunk_is_a_cut_after_the_bytes_that_came() {
    check(vec![Request, Send(HEAD), Send(b"9\r\nabc")], b"abc", Err(Cut::Eof)).await;
}

#[tokio::test]
async fn a_close_inside_a_chunk_s_head_is_a_cut() {
    check(vec![Request, Send(HEAD), Send(b"3\r\nabc\r\n1")], b"abc", Err(Cut::Eof)).await;
}

#[tokio::test]
async fn a_close_inside_the_last_chunk_is_a_cut() {
    check(vec![Request, Send(HEAD), Send(b"3\r\nabc\r\n0\r\n")], b"abc", Err(Cut::Eof)).await;
}

#[tokio::test]
async fn a_reset_is_a_cut() {
    let read = Arc::new(Notify::new());
    let script = vec![Request, Send(HEAD), Send(b"3\r\nabc\r\n"), Until(Arc::clone(&read)), Reset];
    let (address, _engine) = engine(vec![script]).await;
    let mut leg = open(&connector(), &cluster(&[address]).await).await.unwrap();
    // A reset throws away what has not been read yet, so it comes after that.
    assert_eq!(leg.read().await, Ok(Some(b"abc".as_slice())));
    read.notify_one();
    assert_eq!(leg.read().await, Err(Cut::Reset));
    assert_eq!(leg.read().await, Err(Cut::Reset), "the end is the same when it is asked for again");
}

#[tokio::test]
async fn a_body_short_of_its_content_length_is_a_cut() {
    check(vec![Request, Send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")], b"abc", Err(Cut::Eof)).await;
}

#[tokio::test]
async fn a_body_without_framing_ends_with_the_connection() {
    check(vec![Request, Send(b"HTTP/1.1 200 OK\r\n\r\nabc")], b"abc", Ok(())).await;
}

#[tokio::test]
async fn broken_chunks_are_a_cut_of_their_own_kind() {
    let (address, _engine) = engine(vec![vec![Request, Send(HEAD), Send(b"3\r\nabc\r\nzz\r\n"), Closed]]).await;
    let mut leg = open(&connector(), &cluster(&[address]).await).await.unwrap();
    let (body, end) = read_all(&mut leg).await;
    assert_eq!(body, b"abc");
    assert!(matches!(end, Err(Cut::Malformed(_))), "{end:?}");
}

#[tokio::test]
async fn a_read_may_be_dropped_at_any_byte_and_is_never_empty() {
    let script = vec![Request, Send(HEAD), Trickle(b"3\r\nabc\r\n0010;x=y\r\n0123456789abcdef\r\n0\r\nA: b\r\n\r\n")];
    let (address, _engine) = engine(vec![script]).await;
    let mut leg = open(&connector(), &cluster(&[address]).await).await.unwrap();
    let mut all = Vec::new();
    loop {
        tokio::select! {
            biased;
            read = leg.read() => match read.unwrap() {
                Some(bytes) => {
                    assert!(!bytes.is_empty());
                    all.extend_from_slice(bytes);
                }
                None => break,
            },
            () = tokio::task::yield_now() => {}
        }
    }
    assert_eq!(all, b"abc0123456789abcdef");
}

#[tokio::test]
async fn a_request_carries_the_endpoint_s_host_and_its_own_length() {
    let (address, engine) = engine(vec![vec![Request, Send(HEAD)]]).await;
    let leg = open(&connector(), &cluster(&[address]).await).await.unwrap();
    drop(leg);
    let request = engine.await.unwrap().remove(0).to_ascii_lowercase();
    assert!(request.contains(&format!("host: {address}\r\n")), "{request}");
    assert!(request.contains("content-length: 2\r\n"), "{request}");
}

#[tokio::test]
async fn informational_headers_are_skipped() {
    let (address, _engine) =
        engine(vec![vec![Request, Send(b"HTTP/1.1 100 Continue\r\n\r\n"), Send(HEAD), Closed]]).await;
    let leg = open(&connector(), &cluster(&[address]).await).await.unwrap();
    assert_eq!(leg.response().status, 200);
}

#[tokio::test]
async fn an_endpoint_that_refuses_is_followed_by_the_next() {
    let (address, _engine) = engine(vec![vec![Request, Send(HEAD), Closed]]).await;
    let dead = [nobody().await, nobody().await];
    let leg = open(&connector(), &cluster(&[dead[0], dead[1], address]).await).await.unwrap();
    assert_eq!(leg.endpoint().address(), address);
    assert!(leg.failures().len() <= 2);
    assert!(leg.failures().iter().all(|failure| dead.contains(&failure.endpoint.address())));
}

#[tokio::test]
async fn every_endpoint_is_tried_once_before_the_upstream_counts_as_unreachable() {
    let dead = [nobody().await, nobody().await];
    let cluster = cluster(&dead).await;
    let error = open_with(&connector(), &cluster, &Bytes::new(), None, &dead[..1]).await.unwrap_err();
    assert!(error.endpoint().is_none());
    let OpenError::Unreachable { failures, .. } = error else { panic!("{error}") };
    let tried: Vec<SocketAddr> = failures.iter().map(|failure| failure.endpoint.address()).collect();
    assert_eq!(tried, [dead[1], dead[0]], "the one to avoid comes last");
    assert!(cluster.endpoints().iter().all(|endpoint| endpoint.streams() == 0));
}

#[tokio::test]
async fn an_endpoint_to_avoid_is_used_when_it_is_the_only_one() {
    let (address, _engine) = engine(vec![vec![Request, Send(HEAD), Closed]]).await;
    let cluster = cluster(&[address]).await;
    let leg = open_with(&connector(), &cluster, &Bytes::new(), None, &[address]).await.unwrap();
    assert_eq!(leg.endpoint().address(), address);
}

#[tokio::test]
async fn dropping_a_leg_closes_the_engine_s_connection() {
    let (address, engine) = engine(vec![vec![Request, Send(HEAD), Send(b"1\r\na\r\n"), Closed]]).await;
    let cluster = cluster(&[address]).await;
    let mut leg = open(&connector(), &cluster).await.unwrap();
    assert_eq!(leg.read().await, Ok(Some(b"a".as_slice())));
    let endpoint = Arc::clone(leg.endpoint());
    assert_eq!(endpoint.streams(), 1);
    drop(leg);
    assert_eq!(endpoint.streams(), 0);
    engine.await.unwrap();
}

#[tokio::test]
async fn dropping_an_opening_leg_closes_the_engine_s_connection() {
    let (address, engine) = engine(vec![vec![Request, Closed]]).await;
    let (connector, cluster) = (connector(), cluster(&[address]).await);
    let opening = open_with(&connector, &cluster, &Bytes::new(), Some(Duration::from_millis(50)), &[]).await;
    assert!(matches!(opening, Err(OpenError::TimedOut { .. })));
    engine.await.unwrap();
}

#[tokio::test]
async fn a_leg_read_to_its_end_leaves_its_connection_to_the_next() {
    let whole: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na";
    let (address, engine) = engine(vec![vec![Request, Send(whole), Request, Send(whole)]]).await;
    let (connector, cluster) = (connector(), cluster(&[address]).await);
    for _ in 0..2 {
        let mut leg = open(&connector, &cluster).await.unwrap();
        assert_eq!(read_all(&mut leg).await, (b"a".to_vec(), Ok(())));
        leg.finish().await;
    }
    assert_eq!(engine.await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_leg_not_read_to_its_end_does_not_leave_its_connection() {
    let (address, engine) = engine(vec![vec![Request, Send(HEAD), Send(b"1\r\na\r\n"), Closed]]).await;
    let mut leg = open(&connector(), &cluster(&[address]).await).await.unwrap();
    leg.read().await.unwrap();
    leg.finish().await;
    engine.await.unwrap();
}

#[tokio::test]
async fn a_request_that_met_a_dead_pooled_connection_is_sent_once_more() {
    let whole: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na";
    // The first connection takes the second request and dies.
    let scripts = vec![vec![Request, Send(whole), Request, Reset], vec![Request, Send(whole)]];
    let (address, engine) = engine(scripts).await;
    let (connector, cluster) = (connector(), cluster(&[address]).await);
    for _ in 0..2 {
        let mut leg = open(&connector, &cluster).await.unwrap();
        assert_eq!(read_all(&mut leg).await, (b"a".to_vec(), Ok(())));
        leg.finish().await;
    }
    assert_eq!(engine.await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_request_that_met_two_dead_connections_is_not_sent_a_third_time() {
    let whole: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na";
    let (address, engine) = engine(vec![vec![Request, Send(whole), Request, Reset], vec![Request, Reset]]).await;
    let (connector, cluster) = (connector(), cluster(&[address]).await);
    let mut leg = open(&connector, &cluster).await.unwrap();
    read_all(&mut leg).await.1.unwrap();
    leg.finish().await;
    let error = open(&connector, &cluster).await.unwrap_err();
    assert!(matches!(error, OpenError::NoResponse { .. }), "{error}");
    assert_eq!(error.endpoint().map(|endpoint| endpoint.address()), Some(address));
    assert_eq!(engine.await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_request_that_a_fresh_connection_swallowed_is_not_repeated() {
    for end in [vec![Request], vec![Request, Reset], vec![Request, Send(b"HTTP/1.1 20")]] {
        let (address, engine) = engine(vec![end]).await;
        let error = open(&connector(), &cluster(&[address]).await).await.unwrap_err();
        assert!(matches!(error, OpenError::NoResponse { .. }), "{error}");
        assert!(error.endpoint().is_some());
        assert_eq!(engine.await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn an_answer_that_came_before_the_whole_request_was_read_is_not_lost() {
    let refusal: &[u8] = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno";
    let (address, _engine) = engine(vec![vec![Byte, Send(refusal), Closed]]).await;
    let body = Bytes::from(vec![b'x'; 8 << 20]);
    let mut leg = open_with(&connector(), &cluster(&[address]).await, &body, None, &[]).await.unwrap();
    assert_eq!(leg.response().status, 413);
    assert_eq!(read_all(&mut leg).await, (b"no".to_vec(), Ok(())));
}

#[tokio::test]
async fn what_is_not_http_is_no_response() {
    let (address, _engine) = engine(vec![vec![Request, Send(b"SSH-2.0-OpenSSH\r\n\r\n")]]).await;
    let error = open(&connector(), &cluster(&[address]).await).await.unwrap_err();
    assert!(matches!(error, OpenError::NoResponse { .. }), "{error}");
}

const COUNTED: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}";

/// Asks a question with at most ten bytes of answer.
async fn question(cluster: &Cluster, whom: Whom<'_>, patience: Duration) -> Result<Answer, Unanswered> {
    asked(cluster, whom, patience, Some("{}")).await
}

/// Asks a question with this body, or for what is there.
async fn asked(
    cluster: &Cluster,
    whom: Whom<'_>,
    patience: Duration,
    body: Option<&str>,
) -> Result<Answer, Unanswered> {
    let mut head = RequestHeader::build("POST", b"/v1/chat/completions?x", None).unwrap();
    head.insert_header("Authorization", "Bearer k").unwrap();
    head.insert_header("Content-Type", "application/json; charset=utf-8").unwrap();
    let connector = connector();
    let asking = Asking {
        connector: &connector,
        cluster,
        head: &head,
        whom,
        connect: Duration::from_secs(2),
        patience,
        limit: 10,
    };
    match body {
        Some(body) => ask(asking, Question { path: "/tokenize", body: body.as_bytes().to_vec() }).await,
        None => get(asking, "/v1/models").await,
    }
}

const PATIENT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_question_goes_out_in_the_client_s_name_and_brings_the_whole_answer() {
    let (address, engine) = engine(vec![vec![Request, Send(COUNTED)]]).await;
    let answer = question(&cluster(&[address]).await, Whom::Avoiding(&[]), PATIENT).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (200, br#"{"a":1}"#.as_slice()));
    assert_eq!(answer.endpoint.address(), address);
    let request = engine.await.unwrap().remove(0);
    assert!(request.starts_with("POST /tokenize HTTP/1.1\r\n"), "{request}");
    for line in ["authorization: bearer k", "content-type: application/json\r\n", "content-length: 2"] {
        assert!(request.to_ascii_lowercase().contains(line), "{line} is in {request}");
    }
}

#[tokio::test]
async fn what_is_at_a_path_is_got_in_the_client_s_name_too() {
    let (address, engine) = engine(vec![vec![Request, Send(COUNTED)]]).await;
    let answer = asked(&cluster(&[address]).await, Whom::Avoiding(&[]), PATIENT, None).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (200, br#"{"a":1}"#.as_slice()));
    let request = engine.await.unwrap().remove(0).to_ascii_lowercase();
    assert!(request.starts_with("get /v1/models http/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: bearer k") && request.ends_with("\r\n\r\n"), "{request}");
}

#[tokio::test]
async fn another_status_is_an_answer_too() {
    let (address, _engine) =
        engine(vec![vec![Request, Send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")]]).await;
    let answer = question(&cluster(&[address]).await, Whom::Avoiding(&[]), PATIENT).await.unwrap();
    assert_eq!((answer.status, answer.body.as_slice()), (404, b"{}".as_slice()));
}

#[tokio::test]
async fn an_answer_over_the_limit_is_not_read_on() {
    let (address, _engine) =
        engine(vec![vec![Request, Send(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n12345678901"), Closed]]).await;
    let error = question(&cluster(&[address]).await, Whom::Avoiding(&[]), PATIENT).await.unwrap_err();
    assert!(matches!(&error, Unanswered::TooLong { limit: 10, .. }), "{error}");
    assert_eq!(error.endpoint().map(|endpoint| endpoint.address()), Some(address));
}

#[tokio::test]
async fn half_an_answer_is_none() {
    let (address, _engine) =
        engine(vec![vec![Request, Send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")]]).await;
    let error = question(&cluster(&[address]).await, Whom::Avoiding(&[]), PATIENT).await.unwrap_err();
    assert!(matches!(&error, Unanswered::Cut { cut: Cut::Eof, .. }), "{error}");
}

#[tokio::test]
async fn a_question_is_given_up_after_its_patience_also_in_the_middle_of_the_answer() {
    let short = Duration::from_millis(50);
    for script in
        [vec![Request, Closed], vec![Request, Send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"), Closed]]
    {
        let (address, _engine) = engine(vec![script]).await;
        let error = question(&cluster(&[address]).await, Whom::Avoiding(&[]), short).await.unwrap_err();
        let late = matches!(&error, Unanswered::TimedOut { .. } | Unanswered::NotOpened(OpenError::TimedOut { .. }));
        assert!(late, "{error}");
        assert_eq!(error.endpoint().map(|endpoint| endpoint.address()), Some(address));
    }
}

#[tokio::test]
async fn a_question_for_one_endpoint_goes_to_no_other() {
    let (first, _first) = engine(vec![vec![Request, Send(COUNTED)]]).await;
    let (second, _second) = engine(vec![vec![Request, Send(COUNTED)], vec![Request, Send(COUNTED)]]).await;
    let gone = nobody().await;
    let cluster = cluster(&[first, second, gone]).await;
    for _ in 0..2 {
        let answer = question(&cluster, Whom::Only(second), PATIENT).await.unwrap();
        assert_eq!(answer.endpoint.address(), second);
    }
    let error = question(&cluster, Whom::Only(gone), PATIENT).await.unwrap_err();
    assert_eq!(error.unconnected(), 1, "{error}");
    let unknown = "127.0.0.1:1".parse().unwrap();
    let error = question(&cluster, Whom::Only(unknown), PATIENT).await.unwrap_err();
    assert!(matches!(error, Unanswered::NotOpened(OpenError::NoEndpoint { .. })), "{error}");
}

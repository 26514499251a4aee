//! The inquiry on a clock of its own, and probes against small servers on real sockets.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{advance, pause, resume};

use super::*;
use crate::config::settings::{self, Balance, Scheme};
use crate::mock;
use crate::proto::resume::PlanKind;

const V32: Version = Version::new(0, 32, 0);

fn found(minor: u32, scale_out: bool) -> Found {
    Found { version: Some(Version::new(0, minor, 0)), scale_out }
}

#[test]
fn several_engines_can_do_together_what_the_least_of_them_can() {
    let of = |found: &[Found]| {
        let Abilities { version, scale_out } = together(found.iter().copied());
        (version.map(|version| version.minor), scale_out)
    };
    assert_eq!(of(&[]), (None, false));
    assert_eq!(of(&[found(32, true)]), (Some(32), true));
    assert_eq!(of(&[found(32, true), found(28, true), found(33, true)]), (Some(28), true));
    assert_eq!(of(&[found(32, true), found(33, false)]), (Some(32), false));
    assert_eq!(of(&[Found::default(), found(33, true)]), (Some(33), false));
    assert_eq!(of(&[Found::default()]), (None, false));
}

#[test]
fn an_endpoint_is_due_at_once_and_after_an_answer_in_a_while() {
    let (mut inquiry, start) = (Inquiry::default(), Instant::now());
    assert_eq!(inquiry.turn(start), Turn::Ask);
    assert_eq!(inquiry.turn(start + EVERY), Turn::Nothing, "one probe at a time");
    assert!(inquiry.ended(start, Some(found(32, true))), "that is news");
    assert_eq!(inquiry.turn(start), Turn::Wait(start + EVERY));
    assert_eq!(inquiry.turn(start + EVERY), Turn::Ask);
    assert!(!inquiry.ended(start + EVERY, Some(found(32, true))), "that is not");
}

#[test]
fn the_pauses_without_an_answer_grow_up_to_a_limit_and_begin_anew_after_one() {
    let (mut inquiry, mut now) = (Inquiry::default(), Instant::now());
    let mut pauses = |answers: &[Option<Found>]| -> Vec<u64> {
        let pause = |answer: &Option<Found>| {
            assert_eq!(inquiry.turn(now), Turn::Ask);
            inquiry.ended(now, *answer);
            let Turn::Wait(until) = inquiry.turn(now) else { panic!("it has to wait") };
            let pause = until - now;
            now = until;
            pause.as_secs()
        };
        answers.iter().map(pause).collect()
    };
    assert_eq!(pauses(&[None; 7]), [1, 2, 4, 8, 10, 10, 10]);
    assert_eq!(pauses(&[Some(found(32, true)), None, None]), [300, 1, 2]);
}

#[test]
fn what_was_answered_is_believed_for_ten_minutes_of_silence() {
    let (mut inquiry, start) = (Inquiry::default(), Instant::now());
    inquiry.turn(start);
    inquiry.ended(start, Some(found(32, true)));
    let mut now = start + EVERY;
    while inquiry.found.is_some() {
        assert_eq!(inquiry.turn(now), Turn::Ask);
        let forgotten = inquiry.ended(now, None);
        assert_eq!(forgotten, now >= start + MEMORY, "after {:?}", now - start);
        let Turn::Wait(until) = inquiry.turn(now) else { panic!("it has to wait") };
        now = until;
    }
    assert!(now < start + MEMORY + 2 * PAUSE_MAX);
}

#[test]
fn a_suspicion_makes_an_endpoint_due_but_not_more_often_than_every_few_seconds() {
    let (mut inquiry, start) = (Inquiry::default(), Instant::now());
    assert!(!inquiry.suspect(start), "it is due already");
    inquiry.turn(start);
    inquiry.ended(start, Some(found(32, true)));
    let second = Duration::from_secs(1);
    assert!(inquiry.suspect(start + second));
    assert!(!inquiry.suspect(start + second), "it is due earlier than before once");
    assert_eq!(inquiry.turn(start + second), Turn::Wait(start + GAP));
    assert_eq!(inquiry.found, Some(found(32, true)), "it is believed until it answers otherwise");
    assert_eq!(inquiry.turn(start + GAP), Turn::Ask);
    inquiry.ended(start + GAP, Some(found(32, true)));
    let late = start + GAP + 100 * second;
    assert!(inquiry.suspect(late));
    assert_eq!(inquiry.turn(late), Turn::Ask, "at once");
}

#[test]
fn a_suspicion_does_not_put_off_an_endpoint_that_is_due_earlier() {
    let (mut inquiry, start) = (Inquiry::default(), Instant::now());
    inquiry.turn(start);
    inquiry.ended(start, None);
    assert!(!inquiry.suspect(start));
    assert_eq!(inquiry.turn(start), Turn::Wait(start + PAUSE));
}

#[test]
fn a_suspicion_during_a_probe_makes_it_due_after_the_probe() {
    let (mut inquiry, start) = (Inquiry::default(), Instant::now());
    inquiry.turn(start);
    assert!(!inquiry.suspect(start));
    assert_eq!(inquiry.turn(start), Turn::Nothing);
    inquiry.ended(start, Some(found(32, true)));
    assert_eq!(inquiry.turn(start), Turn::Wait(start + GAP));
    inquiry.turn(start + GAP);
    inquiry.ended(start + GAP, Some(found(32, true)));
    assert_eq!(inquiry.turn(start + GAP), Turn::Wait(start + GAP + EVERY), "once");
}

/// What a server answers to `GET /version` and so on; `None`: nothing, and the connection stays open.
type Answers = fn(&str) -> Option<(u16, String)>;

fn version(version: &str) -> Option<(u16, String)> {
    Some((200, format!("{{\"version\":\"{version}\"}}")))
}

/// vLLM with `--enable-scale-out`.
fn whole(asked: &str) -> Option<(u16, String)> {
    match asked {
        "GET /version" => version("0.32.0"),
        "POST /tokenize" => Some((422, String::new())),
        _ => Some((400, "{\"error\":{\"code\":400}}".to_owned())),
    }
}

/// vLLM without it, and older.
fn plain(asked: &str) -> Option<(u16, String)> {
    match asked {
        "GET /version" => version("0.31.1rc2.dev5+g1234"),
        _ => Some((403, "{\"error\":{\"code\":403}}".to_owned())),
    }
}

fn silent(_: &str) -> Option<(u16, String)> {
    None
}

/// A server that keeps its connections.
struct Server {
    address: SocketAddr,
    answers: Arc<Mutex<Answers>>,
    /// The requests, head and body.
    requests: mpsc::Receiver<String>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(answers: Answers) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), answers)
    }

    fn on(listener: TcpListener, answers: Answers) -> Self {
        let address = listener.local_addr().unwrap();
        let answers = Arc::new(Mutex::new(answers));
        let (tell, requests) = mpsc::channel(100);
        let now = Arc::clone(&answers);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                connections.spawn(converse(socket, Arc::clone(&now), tell.clone()));
            }
        });
        Self { address, answers, requests, task }
    }

    fn answer_with(&self, answers: Answers) {
        *self.answers.lock().unwrap() = answers;
    }

    /// The next request's first line without its version.
    async fn asked(&mut self) -> String {
        let request = within(self.requests.recv()).await.unwrap();
        line(&request)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn line(request: &str) -> String {
    request.split(" HTTP/").next().unwrap().to_owned()
}

async fn converse(mut socket: TcpStream, answers: Arc<Mutex<Answers>>, tell: mpsc::Sender<String>) {
    let mut bytes = Vec::new();
    while socket.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        let text = String::from_utf8(bytes.clone()).unwrap();
        let end = if text.starts_with("GET") { "\r\n\r\n" } else { "\r\n\r\n{}" };
        if !text.ends_with(end) {
            continue;
        }
        bytes.clear();
        let answer = answers.lock().unwrap()(&line(&text));
        tell.send(text).await.unwrap();
        let Some((status, body)) = answer else { continue };
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
        let _ = socket.write_all((head + &body).as_bytes()).await;
    }
}

async fn cluster(addresses: &[SocketAddr]) -> Arc<Cluster> {
    let endpoint =
        |a: &SocketAddr| settings::Endpoint { scheme: Scheme::Http, host: a.ip().to_string(), port: a.port() };
    let upstream = settings::Upstream {
        name: "test".to_owned(),
        engine: "vllm".to_owned(),
        family: "qwen3".to_owned(),
        endpoints: addresses.iter().map(endpoint).collect(),
        balance: Balance::RoundRobin,
        certificate: None,
    };
    Arc::new(Cluster::new(&upstream).await)
}

/// Asks for as long as it lives.
struct Watch(JoinHandle<()>);

impl Watch {
    fn start(cluster: &Arc<Cluster>) -> Self {
        Self(tokio::spawn(watch(Arc::clone(cluster), Arc::new(Connector::new(None)))))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn within<F: Future>(future: F) -> F::Output {
    timeout(Duration::from_secs(10), future).await.expect("too slow")
}

async fn until(cluster: &Cluster, version: Option<Version>, scale_out: bool) {
    within(async {
        while cluster.abilities() != (Abilities { version, scale_out }) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Nothing may be under way whose time is limited.
async fn later(by: Duration) {
    pause();
    advance(by).await;
    resume();
}

#[tokio::test]
async fn an_engine_is_asked_for_its_version_and_each_of_the_four_endpoints() {
    let mut server = Server::start(whole).await;
    let cluster = cluster(&[server.address]).await;
    assert_eq!(cluster.abilities(), Abilities::default());
    let _watch = Watch::start(&cluster);
    until(&cluster, Some(V32), true).await;
    let mut requests = Vec::new();
    while let Ok(request) = server.requests.try_recv() {
        requests.push(request);
    }
    let own = format!("user-agent: baton/{}", env!("CARGO_PKG_VERSION"));
    for request in &requests {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let mut fields: Vec<String> = head.lines().skip(1).map(str::to_lowercase).collect();
        fields.sort();
        let (length, kind) = (format!("content-length: {}", body.len()), "content-type: application/json".to_owned());
        let host = format!("host: {}", server.address);
        let expected = match body {
            "" => vec![length, host, own.clone()],
            _ => vec![length, kind, host, own.clone()],
        };
        assert_eq!(fields, expected, "{request}");
    }
    let mut asked: Vec<String> = requests.iter().map(|request| line(request)).collect();
    assert_eq!(asked.remove(0), "GET /version");
    asked.sort();
    assert_eq!(
        asked,
        [
            "POST /inference/v1/generate",
            "POST /tokenize",
            "POST /v1/chat/completions/derender",
            "POST /v1/chat/completions/render",
        ]
    );
}

#[tokio::test]
async fn the_endpoints_are_there_only_if_all_four_are() {
    let mut server = Server::start(plain).await;
    let cluster = cluster(&[server.address]).await;
    let _watch = Watch::start(&cluster);
    until(&cluster, Some(Version::new(0, 31, 1)), false).await;
    assert_eq!(server.asked().await, "GET /version");
    assert!(server.asked().await.starts_with("POST "));
    assert!(server.requests.try_recv().is_err(), "the first that is missing is enough");

    let partly = Server::start(|asked| match asked {
        "POST /v1/chat/completions/derender" => Some((404, String::new())),
        _ => whole(asked),
    });
    let partly = partly.await;
    let cluster = self::cluster(&[partly.address]).await;
    let _watch = Watch::start(&cluster);
    until(&cluster, Some(V32), false).await;
}

#[tokio::test]
async fn a_server_that_does_not_tell_its_version_is_asked_nothing_more() {
    let mut server = Server::start(|_| Some((404, "{\"detail\":\"Not Found\"}".to_owned()))).await;
    let cluster = cluster(&[server.address]).await;
    let endpoint = cluster.endpoints().remove(0);
    let connector = Arc::new(Connector::new(None));
    assert_eq!(ask(&connector, &cluster, &endpoint).await.unwrap(), Found::default());
    assert_eq!(server.asked().await, "GET /version");
    assert!(server.requests.try_recv().is_err());
}

#[tokio::test]
async fn what_is_no_answer_says_nothing() {
    let silences: [(Answers, &str); 3] = [
        (|_| Some((503, String::new())), "HTTP status 503"),
        (|_| Some((200, " ".repeat(MAX_ANSWER + 1))), ": an answer of more than 65536 bytes"),
        (
            |asked| if asked == "GET /version" { version("0.32.0") } else { Some((500, String::new())) },
            "HTTP status 500",
        ),
    ];
    for (answers, why) in silences {
        let server = Server::start(answers).await;
        let cluster = cluster(&[server.address]).await;
        let endpoint = cluster.endpoints().remove(0);
        let silence = ask(&Arc::new(Connector::new(None)), &cluster, &endpoint).await.unwrap_err();
        assert!(silence.to_string().ends_with(why), "{silence}");
        assert_eq!(endpoint.streams(), 0);
    }
}

#[tokio::test]
async fn an_engine_that_takes_requests_and_says_nothing_holds_nobody_up() {
    let mut hung = Server::start(silent).await;
    let sound = Server::start(whole).await;
    let cluster = cluster(&[hung.address, sound.address]).await;
    let _watch = Watch::start(&cluster);
    assert_eq!(hung.asked().await, "GET /version");
    until(&cluster, Some(V32), true).await;
    // Asked once more after the time for an answer and the pause.
    later(PATIENCE + Duration::from_millis(1)).await;
    let hung_endpoint = cluster.endpoints().into_iter().find(|e| e.address() == hung.address).unwrap();
    within(async {
        while hung_endpoint.streams() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    later(PAUSE).await;
    assert_eq!(hung.asked().await, "GET /version");
}

#[tokio::test]
async fn an_engine_that_is_away_is_asked_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let cluster = cluster(&[address]).await;
    let _watch = Watch::start(&cluster);
    let endpoint = cluster.endpoints().remove(0);
    within(async {
        while endpoint.inquiries().with(|inquiry| inquiry.pause.is_none()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let _server = Server::on(TcpListener::bind(address).await.unwrap(), whole);
    later(PAUSE).await;
    until(&cluster, Some(V32), true).await;
}

#[tokio::test]
async fn a_suspicion_finds_a_replaced_engine_and_forgets_what_the_old_one_refused() {
    let server = Server::start(plain).await;
    let cluster = cluster(&[server.address]).await;
    let _watch = Watch::start(&cluster);
    until(&cluster, Some(Version::new(0, 31, 1)), false).await;
    while !cluster.plan_refused(PlanKind::TokenExact) {}
    server.answer_with(whole);
    later(GAP).await;
    for _ in 0..100 {
        cluster.suspect(server.address);
    }
    until(&cluster, Some(V32), true).await;
    assert_eq!(cluster.barred().iter().next(), None);
    while !cluster.plan_refused(PlanKind::TokenExact) {}
    later(GAP).await;
    cluster.suspect(server.address);
    let endpoint = cluster.endpoints().remove(0);
    let before = endpoint.inquiries().with(|inquiry| inquiry.asked);
    within(async {
        while endpoint.inquiries().with(|inquiry| inquiry.asking || inquiry.asked == before) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(cluster.barred().iter().collect::<Vec<_>>(), [PlanKind::TokenExact], "the same engine refuses the same");
}

#[tokio::test]
async fn a_probe_ends_with_the_watch() {
    let mut hung = Server::start(silent).await;
    let cluster = cluster(&[hung.address]).await;
    let watch = Watch::start(&cluster);
    hung.asked().await;
    let endpoint = cluster.endpoints().remove(0);
    assert_eq!(endpoint.streams(), 1);
    drop(watch);
    within(async {
        while endpoint.streams() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_mock_engine_tells_what_it_imitates() {
    for scale_out in [false, true] {
        let config = mock::Config { listen: "127.0.0.1:0".parse().unwrap(), scale_out, ..mock::Config::default() };
        let engine = mock::Engine::start(config).await.unwrap();
        let cluster = cluster(&[engine.addr()]).await;
        let endpoint = cluster.endpoints().remove(0);
        let found = ask(&Arc::new(Connector::new(None)), &cluster, &endpoint).await.unwrap();
        assert_eq!(found, Found { version: Some(V32), scale_out });
        assert_eq!(engine.requests().len(), 0, "a probe is not part of the engine's log");
    }
}

#[tokio::test]
async fn a_start_may_wait_until_every_endpoint_was_asked_whatever_it_answers() {
    let server = Server::start(whole).await;
    let silent = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let closed = silent.local_addr().unwrap();
    drop(silent);
    let cluster = cluster(&[server.address, closed]).await;
    let waiting = tokio::spawn({
        let cluster = Arc::clone(&cluster);
        async move { asked_once(&cluster).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "nobody has been asked");
    let _watch = Watch::start(&cluster);
    within(waiting).await.unwrap();
    assert_eq!(cluster.abilities().version, Some(V32));
    within(asked_once(&cluster)).await;
}

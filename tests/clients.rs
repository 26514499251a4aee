//! Official clients read continued streams, and streams with heartbeats, and do not notice.

mod support;

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Rig, Setup, within};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::timeout;

/// The interpreter with the packages of `tests/python/requirements.txt`; `make test` makes it and names it.
const PYTHON: &str = "BATON_TEST_PYTHON";

/// The same for `requirements-old.txt`.
const PYTHON_OLD: &str = "BATON_TEST_PYTHON_OLD";

/// Far more than an interpreter takes to start and read an answer, on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(60);

const MESSAGE: &str = "Who carries the baton?";

async fn read_with_openai(rig: &Rig) -> Value {
    read_from(&format!("http://{}/v1", rig.address)).await
}

async fn read_from(base: &str) -> Value {
    read(PYTHON, "read_stream.py", &[base, MESSAGE]).await
}

/// What a script says that it has read.
async fn read(python: &str, script: &str, args: &[&str]) -> Value {
    let python = std::env::var(python).unwrap_or_else(|_| panic!("{python} is not set; run the tests by `make test`"));
    let script = format!("{}/tests/python/{script}", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(python)
        .arg(script)
        .args(args)
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output =
        timeout(PATIENCE, output).await.expect("the client is done in a minute").expect("the interpreter runs");
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

/// A way to Baton on which heartbeats are counted; it serves one connection.
struct Tap {
    base: String,
    heartbeats: watch::Receiver<usize>,
}

impl Tap {
    async fn before(baton: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let base = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
        let (count, heartbeats) = watch::channel(0);
        tokio::spawn(async move {
            let (client, _) = listener.accept().await.expect("a client comes");
            carry(client, TcpStream::connect(baton).await.expect("Baton listens"), count).await;
        });
        Tap { base, heartbeats }
    }

    /// Whether so many heartbeats have come; false if the client is gone before.
    async fn has(&mut self, heartbeats: usize) -> bool {
        let counted = self.heartbeats.wait_for(|count| *count >= heartbeats);
        timeout(PATIENCE, counted).await.expect("heartbeats come").is_ok()
    }
}

/// Carries bytes both ways until either side ends. Each heartbeat is a write, and so a chunk, of its own.
async fn carry(mut client: TcpStream, mut baton: TcpStream, count: watch::Sender<usize>) {
    let (mut up, mut down, mut all) = (vec![0; 16 << 10], vec![0; 16 << 10], Vec::new());
    loop {
        tokio::select! {
            read = client.read(&mut up) => match read {
                Ok(len @ 1..) if baton.write_all(&up[..len]).await.is_ok() => {}
                _ => return,
            },
            read = baton.read(&mut down) => match read {
                Ok(len @ 1..) if client.write_all(&down[..len]).await.is_ok() => {
                    all.extend_from_slice(&down[..len]);
                    count.send_replace(all.windows(8).filter(|bytes| bytes.starts_with(b": ping\n")).count());
                }
                _ => return,
            },
        }
    }
}

/// Events before which the engine is silent until some heartbeats have come: before any event, in the thinking, in the answer.
const SILENT_AT: [u64; 3] = [0, 3, 12];

/// Heartbeats in each of these silences.
const HEARTBEATS: usize = 3;

/// A client reads an answer with heartbeats in it as the same answer without; its events with ids and without.
async fn check_heartbeats(python: &str, script: &str) {
    let uncut = Setup::new("").start().await;
    let engine = format!("{}/v1", uncut.engines[0].url());
    for numbered in [None, Some("numbered")] {
        let read = async |base: &str| {
            let args: Vec<&str> = [base, MESSAGE].into_iter().chain(numbered).collect();
            read(python, script, &args).await
        };
        // All that the package tells, but for the id itself.
        let plain = |mut seen: Value| {
            if let Some(ids) = seen.get_mut("ids") {
                *ids = ids.as_array().map_or(0, Vec::len).into();
            }
            seen
        };
        let wanted = plain(read(&engine).await);
        let text = uncut.uncut(&request());
        assert_eq!((&wanted["content"], &wanted["finish"]), (&text.content_text().into(), &text.finish.into()));
        assert!(wanted["usage"].is_object(), "{wanted}");

        let mut setup = Setup::new(&SILENT_AT.map(|place| format!("leg1 stall@{place}")).join(","));
        setup.engines.truncate(1);
        let rig = setup.route("heartbeat: 100ms").start().await;
        let mut tap = Tap::before(rig.address).await;
        let base = tap.base.clone();
        let (seen, ()) = tokio::join!(read(&base), async {
            for (number, place) in SILENT_AT.into_iter().enumerate() {
                // Past the silence before, the engine takes the word for this one.
                if let Some(event) = place.checked_sub(1) {
                    within(rig.engines[0].wait_event(0, event)).await;
                }
                if !tap.has((number + 1) * HEARTBEATS).await {
                    return; // the client says why
                }
                rig.engines[0].release(0);
            }
        });
        assert_eq!(plain(seen), wanted, "{script} of {python}, {numbered:?}");
        assert!(*tap.heartbeats.borrow() >= SILENT_AT.len() * HEARTBEATS);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_package_does_not_notice_heartbeats() {
    check_heartbeats(PYTHON, "read_stream.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_openai_package_does_not_notice_heartbeats() {
    check_heartbeats(PYTHON_OLD, "read_stream.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn langchain_does_not_notice_heartbeats() {
    check_heartbeats(PYTHON, "read_with_langchain.py").await;
}

//! What opens a stream stands in no line of Baton's own log, at any level.
//!
//! The log's collector is the process's own, so this test has a binary to itself.

mod support;

use std::sync::{Mutex, PoisonError};

use support::returning::{Events, header};
use support::{Setup, client, request, within};

static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collector;

impl log::Log for Collector {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target().starts_with("baton") || record.level() <= log::Level::Info {
            let line = format!("{} {}", record.target(), record.args());
            LOGGED.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }

    fn flush(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_line_has_a_stream_s_id_in_full_or_what_a_client_is_authorized_by() {
    log::set_logger(&Collector).expect("the first logger");
    log::set_max_level(log::LevelFilter::Trace);
    let mut setup = Setup::new("leg1 rst@8");
    setup.engines[1].faults = setup.engines[0].faults.clone();
    let rig = setup.start().await;
    let post =
        || client().post(rig.url()).header("Baton-Resume", "on").bearer_auth("s3cret").body(request().to_string());
    let first = within(post().header("Idempotency-Key", "k3y").send()).await.expect("Baton answers");
    let id = header(&first, "Baton-Stream");
    Events::of(first).all().await;
    let url = format!("http://{}/v1/streams/{id}", rig.address);
    let requests = [
        client().get(&url).header("Last-Event-ID", format!("{id}.2")),
        client().get(format!("{url}?after=x")),
        client().get(format!("{url}/status")),
        client().post(format!("{url}/ack")).body(r#"{"seq":1}"#),
        client().post(format!("{url}/ack")).body("nonsense"),
        client().post(format!("{url}/cancel")),
        client().get(format!("{url}/nothing")),
        client().put(&url),
        post().header("Last-Event-ID", format!("{id}.3")),
        post().header("Last-Event-ID", format!("{id}.x")),
    ];
    for request in requests {
        for key in ["s3cret", "0ther"] {
            let sent = request.try_clone().expect("no stream for a body").bearer_auth(key).send();
            within(async { sent.await.expect("Baton answers").bytes().await.expect("a body") }).await;
        }
    }
    // One that leaves in the middle, too.
    drop(within(client().get(&url).bearer_auth("s3cret").send()).await);
    drop(rig);
    let logged = LOGGED.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(logged.iter().any(|line| line.contains(&id[..11])), "something was logged of it");
    for secret in [id.as_str(), "s3cret", "0ther", "k3y"] {
        let told: Vec<_> = logged.iter().filter(|line| line.contains(secret)).collect();
        assert!(told.is_empty(), "{secret}: {told:#?}");
    }
}

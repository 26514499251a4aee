//! The endpoints.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use serde_json::json;

use super::ask::Ask;
use super::config::{Config, Wire};
use super::engine::{Shared, Stop};
use super::fault::{Act, Fault, Place, Rule};
use super::http::{Close, Conn, Left, Next, Request};
use super::log::{End, Entry, Leg};
use super::script::{response_id, script, stream_of};
use super::stream;
use super::validate::Refusal;

const JSON: &str = "application/json";

/// Answers a request.
pub(super) async fn answer(conn: &mut Conn, shared: &Shared, request: Request) -> Result<Next, Left> {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    if path == "/health" {
        let status = shared.health.load(Ordering::Relaxed);
        conn.respond(status, JSON, &[], b"", request.keep_alive).await?;
        return Ok(Next::Request);
    }
    if let Some(command) = path.strip_prefix("/mock/") {
        let (status, body) = control(shared, &request.method, command, query);
        conn.respond(status, JSON, &[], body.as_bytes(), request.keep_alive).await?;
        return Ok(Next::Request);
    }
    if is_probe(&request, path) {
        let (status, body) = fixed(&request.method, path, &shared.config);
        conn.respond(status, JSON, &[], body.as_bytes(), request.keep_alive).await?;
        return Ok(Next::Request);
    }
    let is_chat = path == "/v1/chat/completions" && request.method == "POST";
    let leg = if is_chat { Ask::leg(&request.body) } else { Leg::Other };
    let Request { method, target, headers, body, chunked, keep_alive } = request;
    let answer = (!is_chat).then(|| fixed(&method, target.split('?').next().unwrap_or_default(), &shared.config));
    let read = is_chat.then(|| Ask::read(&headers, &body));
    let request_id = headers.iter().find(|(name, _)| name == "x-request-id").map(|(_, value)| value.clone());
    let (entry, nth) = shared.log.note(method, target, headers, body, leg);
    let _unless_said = EndGuard(&entry);
    if let Some((status, body)) = answer {
        conn.respond(status, JSON, &[("x-mock-engine", &shared.config.name)], body.as_bytes(), keep_alive).await?;
        entry.set_end(if status < 400 { End::Complete } else { End::Refused });
        return Ok(Next::Request);
    }
    let exchange = Exchange { shared, entry: &entry, nth, chunked, keep_alive, request_id };
    let outcome = match read {
        Some(Ok(ask)) => chat(conn, &exchange, &ask).await,
        Some(Err(refusal)) => exchange.refuse(conn, &refusal).await,
        None => return Ok(Next::Request),
    };
    entry.set_end(outcome.map_or(End::Left, |(_, end)| end));
    outcome.map(|(next, _)| next)
}

/// Whether a request only asks what the engine is: its version, or whether an endpoint is there. Like a health check it comes at
/// any time, so it has no number in the log that a test could mean.
fn is_probe(request: &Request, path: &str) -> bool {
    match request.method.as_str() {
        "GET" => path == "/version",
        "POST" => path != "/v1/chat/completions" && request.body == b"{}",
        _ => false,
    }
}

/// Says [`End::Killed`] for a request whose task is dropped before anything else was said.
struct EndGuard<'a>(&'a Entry);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.set_end(End::Killed);
    }
}

/// The commands under `/mock/`.
fn control(shared: &Shared, method: &str, command: &str, query: &str) -> (u16, String) {
    let parameter = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let done = || (200, json!({"ok": true}).to_string());
    let bad = |message: &str| (400, Refusal::bad(message).body(Wire::Vllm));
    match (method, command) {
        ("GET", "requests") => (200, serde_json::to_string(&shared.log.snapshot()).unwrap_or_default()),
        ("POST", "reset") => {
            shared.log.reset();
            done()
        }
        ("POST", "release") => match parameter("request").map(str::parse) {
            None => {
                shared.log.stalled().iter().for_each(|entry| entry.release());
                done()
            }
            Some(Ok(number)) => {
                shared.log.get(number).iter().for_each(|entry| entry.release());
                done()
            }
            Some(Err(_)) => bad("request: not a number"),
        },
        ("POST", "health") => match parameter("status").map(str::parse) {
            Some(Ok(status @ 200..600)) => {
                shared.health.store(status, Ordering::Relaxed);
                done()
            }
            _ => bad("status: a number from 200 to 599 is needed"),
        },
        ("POST", "kill") => {
            let how = match parameter("how") {
                None | Some("rst") => Stop::Rst,
                Some("fin") => Stop::Fin,
                Some("abort") => Stop::Abort,
                Some("error") => Stop::Error,
                Some(_) => return bad("how: one of rst, fin, abort, error"),
            };
            shared.stop(how);
            done()
        }
        _ => (
            404,
            json!({"detail": "Not Found; there are GET requests and POST reset, release, health, kill"}).to_string(),
        ),
    }
}

/// The endpoints whose answers do not depend on much.
fn fixed(method: &str, path: &str, config: &Config) -> (u16, String) {
    let served: Vec<&str> = config.models.iter().map(String::as_str).collect();
    let served = if served.is_empty() { vec!["mock"] } else { served };
    let owner = if config.wire == Wire::Vllm { "vllm" } else { "sglang" };
    match (method, path) {
        ("GET", "/v1/models") => {
            let model = |id: &&str| json!({"id": id, "object": "model", "created": 1_700_000_000, "owned_by": owner, "max_model_len": 131_072});
            (200, json!({"object": "list", "data": served.iter().map(model).collect::<Vec<_>>()}).to_string())
        }
        ("GET", "/version") => (200, json!({"version": "0.32.0"}).to_string()),
        ("POST", "/v1/embeddings") => {
            let data = json!([{"object": "embedding", "index": 0, "embedding": [0.25, -0.5, 0.75]}]);
            let usage = json!({"prompt_tokens": 3, "total_tokens": 3});
            (200, json!({"object": "list", "data": data, "model": served[0], "usage": usage}).to_string())
        }
        (_, "/v1/models" | "/version" | "/v1/embeddings" | "/v1/chat/completions") => {
            (405, json!({"detail": "Method Not Allowed"}).to_string())
        }
        _ => (404, json!({"detail": "Not Found"}).to_string()),
    }
}

/// A chat request and what belongs to it.
pub(super) struct Exchange<'a> {
    pub(super) shared: &'a Shared,
    pub(super) entry: &'a Entry,
    /// Which chat request it is, from 1.
    nth: u64,
    pub(super) chunked: bool,
    keep_alive: bool,
    request_id: Option<String>,
}

impl Exchange<'_> {
    async fn refuse(&self, conn: &mut Conn, refusal: &Refusal) -> Result<(Next, End), Left> {
        self.entry.set_refused(&refusal.message);
        let body = refusal.body(self.shared.config.wire);
        self.respond(conn, refusal.status, &body).await
    }

    async fn respond(&self, conn: &mut Conn, status: u16, body: &str) -> Result<(Next, End), Left> {
        let fields = [("x-mock-engine", self.shared.config.name.as_str())];
        conn.respond(status, JSON, &fields, body.as_bytes(), self.keep_alive).await?;
        Ok((Next::Request, if status < 400 { End::Complete } else { End::Refused }))
    }

    fn id(&self, ask: &Ask) -> String {
        response_id(&self.shared.config, self.request_id.as_deref(), self.entry.number(), ask)
    }
}

/// A request id in flight (SGLang); forgotten when the exchange is over, however it ends.
struct Rid<'a>(&'a Shared, String);

impl<'a> Rid<'a> {
    fn take(shared: &'a Shared, rid: &str) -> Option<Self> {
        let fresh = shared.rids.lock().unwrap_or_else(PoisonError::into_inner).insert(rid.to_owned());
        fresh.then(|| Self(shared, rid.to_owned()))
    }
}

impl Drop for Rid<'_> {
    fn drop(&mut self) {
        self.0.rids.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

/// Answers a chat request; gives what follows on the connection, and how the request ended.
async fn chat(conn: &mut Conn, exchange: &Exchange<'_>, ask: &Ask) -> Result<(Next, End), Left> {
    let Exchange { shared, entry, nth, .. } = *exchange;
    let rules: Vec<&Rule> = ask
        .faults
        .iter()
        .chain(&shared.config.faults)
        .filter(|rule| rule.applies(ask.is_continuation(), nth))
        .collect();
    for rule in &rules {
        match &rule.fault {
            Fault::Status { code, body } => {
                entry.add_fault(rule.to_string());
                let refusal = Refusal::with_status(*code, "InternalServerError", "a scripted fault");
                entry.set_refused(&refusal.message);
                let body = body.clone().unwrap_or_else(|| refusal.body(shared.config.wire));
                return exchange.respond(conn, *code, &body).await;
            }
            Fault::At { place: Place::Head, act, .. } => {
                entry.add_fault(rule.to_string());
                match act {
                    Act::Rst => return Ok((Next::Close(Close::Rst), End::Cut)),
                    Act::Eof => return Ok((Next::Close(Close::Fin), End::Cut)),
                    Act::Slow(time) => conn.wait(tokio::time::sleep(*time)).await?,
                    Act::Stall { limit, .. } => stream::stall(conn, entry, *limit).await?,
                    // Nothing else is read at this place.
                    _ => {}
                }
            }
            Fault::At { .. } => {}
        }
    }
    let (begun, choices) = match script(&shared.config, &shared.ledger, ask) {
        Ok(script) => script,
        Err(refusal) => return exchange.refuse(conn, &refusal).await,
    };
    let rid = ask.rid().filter(|_| shared.config.wire == Wire::Sglang);
    let _in_flight = match rid.map(|rid| Rid::take(shared, rid).ok_or(rid)) {
        Some(Err(rid)) => {
            let refusal = Refusal::bad(format!("Duplicate request ID detected: {rid}"));
            return exchange.refuse(conn, &refusal).await;
        }
        taken => taken,
    };
    let script = stream_of(&shared.config, exchange.id(ask), ask, &begun, choices);
    if !ask.stream() {
        return exchange.respond(conn, 200, &script.whole()).await;
    }
    stream::run(conn, exchange, &script, &rules).await
}

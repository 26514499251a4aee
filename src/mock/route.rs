//! The endpoints.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::ask::Ask;
use super::completions::Direct;
use super::config::{Config, Wire};
use super::endpoint::Endpoint;
use super::engine::{Shared, Stop};
use super::fault::{Act, Fault, Place, Rule};
use super::http::{Close, Conn, Left, Next, Request};
use super::log::{End, Entry, Leg, Note};
use super::script::{direct_id, response_id, script, small, stream_of};
use super::stream;
use super::text::key;
use super::validate::Refusal;
use super::wire::Form;

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
    let endpoint = Endpoint::of(&request.method, path).filter(|endpoint| serves(*endpoint, &shared.config));
    let fixed = fixed(&request.method, path, &shared.config);
    let path = path.to_owned();
    let Request { method, target, headers, body, chunked, keep_alive } = request;
    let asked = endpoint.map(|endpoint| Asked::read(endpoint, &headers, &body, shared));
    let scripted = |endpoint| shared.config.faults.iter().any(|rule: &Rule| rule.is_to(endpoint));
    if is_probe(&method, &path, &body) && !endpoint.is_some_and(scripted) {
        let (status, body) = match asked {
            Some(Asked::Small(body)) => (200, body),
            Some(Asked::Bad(refusal)) => (refusal.status, refusal.body(shared.config.wire)),
            _ => fixed,
        };
        conn.respond(status, JSON, &[], body.as_bytes(), keep_alive).await?;
        return Ok(Next::Request);
    }
    let leg = asked.as_ref().map_or(Leg::Other, |asked| asked.leg(&body, shared));
    let request_id = headers.iter().find(|(name, _)| name == "x-request-id").map(|(_, value)| value.clone());
    let (entry, nth) = shared.log.note(Note { method, target, headers, body, leg, endpoint });
    let _unless_said = EndGuard(&entry);
    let exchange = Exchange { shared, entry: &entry, chunked, keep_alive, request_id };
    let outcome = match (endpoint, asked) {
        (Some(endpoint), Some(asked)) => {
            let is_rule = |rule: &&Rule| rule.applies(endpoint, leg == Leg::Continuation, nth.answer, nth.own);
            let rules: Vec<&Rule> = asked.faults().iter().chain(&shared.config.faults).filter(is_rule).collect();
            answered(conn, &exchange, &asked, &rules).await
        }
        _ => exchange.respond(conn, fixed.0, &fixed.1).await,
    };
    entry.set_end(outcome.map_or(End::Left, |(_, end)| end));
    outcome.map(|(next, _)| next)
}

/// Whether a request only asks what the engine is: its version, or whether an endpoint is there. Like a health check it comes at
/// any time, so it has no number in the log that a test could mean.
fn is_probe(method: &str, path: &str, body: &[u8]) -> bool {
    match method {
        "GET" => path == "/version",
        "POST" => path != "/v1/chat/completions" && body == b"{}",
        _ => false,
    }
}

/// Whether the engine played has this endpoint.
fn serves(endpoint: Endpoint, config: &Config) -> bool {
    config.wire == Wire::Vllm || matches!(endpoint, Endpoint::Chat | Endpoint::Version)
}

/// A request to an endpoint, read.
enum Asked {
    Chat(Box<Ask>),
    Direct(Box<Direct>),
    /// The answer to anything else.
    Small(String),
    Bad(Refusal),
}

impl Asked {
    fn read(endpoint: Endpoint, headers: &[(String, String)], body: &[u8], shared: &Shared) -> Self {
        let config = &shared.config;
        let read = match endpoint {
            Endpoint::Chat => Ask::read(headers, body).map(|ask| Asked::Chat(Box::new(ask))),
            Endpoint::Completions => Direct::completion(headers, body, config).map(|ask| Asked::Direct(Box::new(ask))),
            Endpoint::Generate if config.scale_out => {
                Direct::generate(headers, body, config).map(|ask| Asked::Direct(Box::new(ask)))
            }
            _ => {
                let fresh = format!("chatcmpl-{:016x}", key([&shared.log.count().to_le_bytes()[..], body]));
                small(endpoint, config, headers, body, &fresh).map(Asked::Small)
            }
        };
        read.unwrap_or_else(Asked::Bad)
    }

    fn leg(&self, body: &[u8], shared: &Shared) -> Leg {
        match self {
            Asked::Chat(_) | Asked::Bad(_) => Ask::leg(body),
            Asked::Direct(ask) => match ask.form {
                Form::Text if shared.ledger.before(&ask.prompt, false).is_none() => Leg::First,
                _ => Leg::Continuation,
            },
            Asked::Small(_) => Leg::Other,
        }
    }

    fn faults(&self) -> &[Rule] {
        match self {
            Asked::Chat(ask) => &ask.faults,
            Asked::Direct(ask) => &ask.faults,
            Asked::Small(_) | Asked::Bad(_) => &[],
        }
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
        ("POST", "/v1/embeddings") => {
            let data = json!([{"object": "embedding", "index": 0, "embedding": [0.25, -0.5, 0.75]}]);
            let usage = json!({"prompt_tokens": 3, "total_tokens": 3});
            (200, json!({"object": "list", "data": data, "model": served[0], "usage": usage}).to_string())
        }
        (_, "/v1/models" | "/v1/embeddings") => (405, json!({"detail": "Method Not Allowed"}).to_string()),
        (_, path) if Endpoint::ALL.iter().any(|(endpoint, _, at, _)| *at == path && serves(*endpoint, config)) => {
            (405, json!({"detail": "Method Not Allowed"}).to_string())
        }
        _ => (404, json!({"detail": "Not Found"}).to_string()),
    }
}

/// A request and what belongs to it.
pub(super) struct Exchange<'a> {
    pub(super) shared: &'a Shared,
    pub(super) entry: &'a Entry,
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

/// Answers a request; gives what follows on the connection, and how the request ended.
async fn answered(
    conn: &mut Conn,
    exchange: &Exchange<'_>,
    asked: &Asked,
    rules: &[&Rule],
) -> Result<(Next, End), Left> {
    if let Some(outcome) = before_the_head(conn, exchange, rules).await? {
        return Ok(outcome);
    }
    match asked {
        Asked::Chat(ask) => chat(conn, exchange, ask, rules).await,
        Asked::Direct(ask) => direct(conn, exchange, ask, rules).await,
        Asked::Small(body) => exchange.respond(conn, 200, body).await,
        Asked::Bad(refusal) => exchange.refuse(conn, refusal).await,
    }
}

/// Does what the faults say that come instead of an answer or before it.
async fn before_the_head(
    conn: &mut Conn,
    exchange: &Exchange<'_>,
    rules: &[&Rule],
) -> Result<Option<(Next, End)>, Left> {
    let Exchange { shared, entry, .. } = *exchange;
    for rule in rules {
        match &rule.fault {
            Fault::Status { code, body } => {
                entry.add_fault(rule.to_string());
                let refusal = Refusal::with_status(*code, "InternalServerError", "a scripted fault");
                entry.set_refused(&refusal.message);
                let body = body.clone().unwrap_or_else(|| refusal.body(shared.config.wire));
                return exchange.respond(conn, *code, &body).await.map(Some);
            }
            Fault::At { place: Place::Head, act, .. } => {
                entry.add_fault(rule.to_string());
                match act {
                    Act::Rst => return Ok(Some((Next::Close(Close::Rst), End::Cut))),
                    Act::Eof => return Ok(Some((Next::Close(Close::Fin), End::Cut))),
                    Act::Slow(time) => conn.wait(tokio::time::sleep(*time)).await?,
                    Act::Stall { limit, .. } => stream::stall(conn, entry, *limit).await?,
                    // Nothing else is read at this place.
                    _ => {}
                }
            }
            Fault::At { .. } => {}
        }
    }
    Ok(None)
}

async fn chat(conn: &mut Conn, exchange: &Exchange<'_>, ask: &Ask, rules: &[&Rule]) -> Result<(Next, End), Left> {
    let shared = exchange.shared;
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
    stream::run(conn, exchange, &script, rules).await
}

/// A completion, or tokens.
async fn direct(conn: &mut Conn, exchange: &Exchange<'_>, ask: &Direct, rules: &[&Rule]) -> Result<(Next, End), Left> {
    let config = &exchange.shared.config;
    let choices = match ask.script(config, &exchange.shared.ledger) {
        Ok(choices) => choices,
        Err(refusal) => return exchange.refuse(conn, &refusal).await,
    };
    let own = ask.fields.get("request_id").and_then(Value::as_str);
    let given = exchange.request_id.as_deref().or(own);
    let script = ask.stream_of(config, direct_id(config, given, exchange.entry.number(), ask.form), choices);
    if !ask.stream() {
        return exchange.respond(conn, 200, &script.form_whole()).await;
    }
    stream::run(conn, exchange, &script, rules).await
}

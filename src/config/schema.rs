//! What a person writes: every key, its type and its limits, read into [`Settings`].
//!
//! One function for each mapping of the file, in the order of `conf/baton.yaml`. References between sections (a route's
//! upstream) are resolved while reading, because upstreams are read first wherever they stand in the file.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use super::certificate;
use super::node::Node;
use super::reader::{Item, Mistakes, Scalar, Table, quote};
use super::settings::{
    Balance, Continuation, Cors, Journal, MIN_STREAM, Mode, OnIncomplete, Resume, ResumeMode, Retry, Route, Server,
    Settings, Store, Threads, Timeouts, Tokens, Upstream,
};
use super::units::{
    GIB, Glob, KIB, MIB, Wrong, address, duration, endpoint, list, name, nearest, origin, show_duration, show_size,
    size,
};
use crate::proto::certificate::Certificate;
use crate::proto::resume::{self, Engine, Family, PlanKind, PlanSet};

/// The names `engine` may have. Those without quirks that Baton knows of behave as `generic`.
pub const ENGINES: &[&str] =
    &["vllm", "sglang", "generic", "openai", "deepseek", "mistral", "lmdeploy", "llama.cpp", "ollama", "tgi", "trtllm"];

/// What `plan` may be: every kind by its name, or what is tried without one.
const PLANS: &[&str] = &["auto", "token-exact", "render-generate", "chat-continue", "prefix", "replay"];

/// What the file holds whose path was written like this.
pub(super) type File<'f> = &'f dyn Fn(&str) -> io::Result<String>;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Reads the whole file. `None` only where a mistake has been noted.
pub(super) fn read(root: &Node, file: File<'_>, mistakes: &mut Mistakes) -> Option<Settings> {
    let item = Item { node: root, path: String::new() };
    let mut table = Table::open(&item, mistakes);
    let mut warnings = Vec::new();
    let server = server(table.table("server", mistakes), mistakes);
    let upstreams = table
        .must(
            "upstreams",
            "[{name: engines, engine: vllm, family: qwen3, endpoints: [\"http://10.0.0.1:8000\"]}]",
            mistakes,
        )
        .and_then(|item| some(&item, mistakes))
        .map(|items| upstreams(&items, file, &mut warnings, mistakes))
        .unwrap_or_default();
    let routes = table
        .must("routes", "[{match: {model: \"*\"}, upstream: engines}]", mistakes)
        .and_then(|item| some(&item, mistakes))
        .map(|items| routes(&items, &upstreams, &mut warnings, mistakes))
        .unwrap_or_default();
    let journal = journal(table.table("journal", mistakes), mistakes);
    table.close(mistakes);
    let places: Vec<String> = upstreams.iter().map(|slot| slot.certificate_at.clone()).collect();
    let upstreams = upstreams.into_iter().map(|slot| slot.upstream).collect::<Option<Vec<_>>>()?;
    warnings.extend(certificate::doubts(&upstreams, &places, &routes));
    Some(Settings { server, upstreams, routes, journal, warnings })
}

/// The elements of a list that must have some.
fn some<'n>(item: &Item<'n>, mistakes: &mut Mistakes) -> Option<Vec<Item<'n>>> {
    let items = item.list(mistakes)?;
    if items.is_empty() {
        item.mistake("is an empty list; write at least one".to_owned(), mistakes);
    }
    Some(items)
}

fn server(mut table: Table<'_>, mistakes: &mut Mistakes) -> Server {
    let default = Server::default();
    let listen = match table.find("listen").map(|item| some(&item, mistakes)) {
        None => default.listen,
        Some(items) => listeners(&items.unwrap_or_default(), mistakes),
    };
    let server = Server {
        admin: table.or("admin", default.admin, |v| address(v.text()?), mistakes),
        threads: table.or("threads", default.threads, threads, mistakes),
        max_request_body: table.or("max_request_body", default.max_request_body, sized(KIB, GIB), mistakes),
        drain: table.or("drain", default.drain, lasting(Duration::from_millis(100), HOUR), mistakes),
        max_memory: table.or("max_memory", default.max_memory, or_off(sized(32 * MIB, 1024 * GIB)), mistakes),
        cors: cors(table.table("cors", mistakes), mistakes),
        listen,
    };
    if server.listen.contains(&server.admin) {
        table.mistake("admin", "is the address of a listener too; write another port".to_owned(), mistakes);
    }
    table.close(mistakes);
    server
}

fn listeners(items: &[Item<'_>], mistakes: &mut Mistakes) -> Vec<SocketAddr> {
    let mut listen = Vec::with_capacity(items.len());
    for item in items {
        let mut table = Table::open(item, mistakes);
        let at = table.must("addr", "\"127.0.0.1:8080\"", mistakes);
        table.close(mistakes);
        let Some(at) = at else { continue };
        match at.read(|v| address(v.text()?), mistakes) {
            Some(addr) if listen.contains(&addr) => at.mistake("is listed twice".to_owned(), mistakes),
            Some(addr) => listen.push(addr),
            None => {}
        }
    }
    listen
}

fn cors(mut table: Table<'_>, mistakes: &mut Mistakes) -> Cors {
    let items = table.find("origins").map(|item| item.one_or_list(mistakes)).unwrap_or_default();
    table.close(mistakes);
    let mut origins = Vec::with_capacity(items.len());
    for item in &items {
        match item.read(|v| origin(v.text()?), mistakes) {
            Some(found) if origins.contains(&found) => item.mistake("is listed twice".to_owned(), mistakes),
            Some(found) if found == "*" && items.len() > 1 => {
                item.mistake("is every origin; write it alone, or leave it out".to_owned(), mistakes);
            }
            Some(found) => origins.push(found),
            None => {}
        }
    }
    match origins.first() {
        None => Cors::Off,
        Some(first) if first == "*" => Cors::Any,
        Some(_) => Cors::Only(origins),
    }
}

fn threads(value: Scalar<'_>) -> Result<Threads, Wrong> {
    if let Ok("auto") = value.text() {
        return Ok(Threads::Auto);
    }
    let number = value.whole().map_err(|_| Wrong::OneOf(&["auto", "a number of threads"]))?;
    let count = usize::try_from(number).ok().filter(|n| *n <= 1024).and_then(NonZeroUsize::new);
    count.map(Threads::Count).ok_or_else(|| range(1, 1024))
}

/// An upstream of the file. One that could not be read keeps its place and its name, so that what refers to it is not a
/// second mistake.
struct Slot {
    name: Option<String>,
    /// The name comes from the environment: no message may suggest it.
    hidden: bool,
    /// Line and key of its certificate; empty where it has none.
    certificate_at: String,
    upstream: Option<Upstream>,
}

fn upstreams(items: &[Item<'_>], file: File<'_>, warnings: &mut Vec<String>, mistakes: &mut Mistakes) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::with_capacity(items.len());
    for item in items {
        let mut table = Table::open(item, mistakes);
        let at = table.must("name", "any-name", mistakes);
        let called = at.as_ref().and_then(|at| at.read(|v| name(v.text()?), mistakes));
        if let (Some(at), Some(called)) = (&at, &called)
            && slots.iter().any(|slot| slot.name.as_ref() == Some(called))
        {
            at.mistake("is the name of an earlier upstream too; names must differ".to_owned(), mistakes);
        }
        let certificate = table.find("certificate");
        let certificate_at = certificate.as_ref().map(Item::place).unwrap_or_default();
        let certificate =
            certificate.and_then(|item| certificate::read(&item, item.read(path, mistakes)?, file, mistakes));
        let upstream = upstream(&mut table, called.clone(), certificate, warnings, mistakes);
        table.close(mistakes);
        let hidden = at.is_some_and(|at| at.is_from_env());
        slots.push(Slot { name: called, hidden, certificate_at, upstream });
    }
    slots
}

fn upstream(
    table: &mut Table<'_>,
    name: Option<String>,
    certificate: Option<Certificate>,
    warnings: &mut Vec<String>,
    mistakes: &mut Mistakes,
) -> Option<Upstream> {
    let engine = table
        .must("engine", "vllm", mistakes)
        .and_then(|item| item.read(|v| one_of(v, ENGINES).map(|i| ENGINES[i].to_owned()), mistakes));
    let family = table.must("family", "qwen3", mistakes).and_then(|item| family(&item, warnings, mistakes));
    let endpoints =
        table.must("endpoints", "[\"http://10.0.0.1:8000\"]", mistakes).and_then(|item| some(&item, mistakes));
    let endpoints = endpoints.map(|items| {
        let mut endpoints = Vec::with_capacity(items.len());
        for item in items {
            match item.read(|v| endpoint(v.text()?), mistakes) {
                Some(found) if endpoints.contains(&found) => item.mistake("is listed twice".to_owned(), mistakes),
                Some(found) => endpoints.push(found),
                None => {}
            }
        }
        endpoints
    });
    let balance = table.or("balance", Balance::default(), balance, mistakes);
    let upstream =
        Upstream { name: name?, engine: engine?, family: family?, endpoints: endpoints?, balance, certificate };
    let (engine, family) = (Engine::named(&upstream.engine).0, Family::named(&upstream.family).0);
    if let Some(why) = resume::never(&family, &engine) {
        warnings.push(format!("{}: answers of this upstream are never continued by their text: {why}", table.place()));
    }
    warnings.extend(engine.cautions(&family).map(|words| format!("{}: {words}", table.place())));
    Some(upstream)
}

fn path(value: Scalar<'_>) -> Result<&str, Wrong> {
    value.text().and_then(|text| if text.is_empty() { Err(Wrong::Empty) } else { Ok(text) })
}

/// Any name is a family; one that Baton does not know gets its default form and a warning.
fn family(item: &Item<'_>, warnings: &mut Vec<String>, mistakes: &mut Mistakes) -> Option<String> {
    let family = item.read(|v| name(v.text()?), mistakes)?;
    if !Family::is_known(&family) {
        warnings.push(format!(
            "{}: {} is not a family that Baton knows ({}); it gets the default form (<think>…</think>) and the thinking \
             key `thinking`, which nobody has verified for it",
            item.place(),
            item.shown(),
            Family::all().collect::<Vec<_>>().join(", ")
        ));
    }
    Some(family)
}

fn balance(value: Scalar<'_>) -> Result<Balance, Wrong> {
    let words = &["round_robin", "least_streams"];
    Ok([Balance::RoundRobin, Balance::LeastStreams][one_of(value, words)?])
}

fn routes(items: &[Item<'_>], upstreams: &[Slot], warnings: &mut Vec<String>, mistakes: &mut Mistakes) -> Vec<Route> {
    let mut routes: Vec<Route> = Vec::with_capacity(items.len());
    for item in items {
        let mut table = Table::open(item, mistakes);
        let route = route(&mut table, upstreams, mistakes);
        table.close(mistakes);
        let Some(route) = route else { continue };
        if routes.iter().any(|earlier| earlier.model.is_any() || earlier.model == route.model) {
            warnings.push(format!("{}: is never used, an earlier route matches all that it matches", item.place()));
        }
        routes.push(route);
    }
    routes
}

fn route(table: &mut Table<'_>, upstreams: &[Slot], mistakes: &mut Mistakes) -> Option<Route> {
    let mut matches = table.table("match", mistakes);
    let model =
        matches.must("model", "\"*\"", mistakes).and_then(|item| item.read(|v| Glob::parse(v.text()?), mistakes));
    matches.close(mistakes);
    let upstream = table.must("upstream", "the name of an upstream", mistakes);
    let upstream = upstream.and_then(|item| reference(&item, upstreams, mistakes));
    let continuation = continuation(table.table("continuation", mistakes), upstream, upstreams, mistakes);
    let timeouts = timeouts(table.table("timeouts", mistakes), mistakes);
    let retry = retry(table.table("retry", mistakes), mistakes);
    let heartbeat =
        table.or("heartbeat", Some(Route::HEARTBEAT), or_off(lasting(Duration::from_millis(100), HOUR)), mistakes);
    let resume = resume(table.table("resume", mistakes), mistakes);
    let on_incomplete = table.or("on_incomplete", OnIncomplete::default(), on_incomplete, mistakes);
    let max_event = table.or("max_event", Route::MAX_EVENT, sized(KIB, 64 * MIB), mistakes);
    Some(Route {
        model: model?,
        upstream: upstream?,
        continuation,
        timeouts,
        retry,
        heartbeat,
        resume,
        on_incomplete,
        max_event,
    })
}

/// The index of the upstream that is named at `item`.
fn reference(item: &Item<'_>, upstreams: &[Slot], mistakes: &mut Mistakes) -> Option<usize> {
    let wanted = item.read(Scalar::text, mistakes)?;
    let found = upstreams.iter().position(|slot| slot.name.as_deref() == Some(wanted));
    // Of an upstream whose name could not be read nobody knows whether it was meant here.
    if found.is_none() && upstreams.iter().all(|slot| slot.name.is_some()) {
        let shown = upstreams.iter().filter(|slot| !slot.hidden);
        let names: Vec<&str> = shown.filter_map(|slot| slot.name.as_deref()).collect();
        let why = match (nearest(wanted, &names), names.as_slice()) {
            (Some(near), _) => format!("names no upstream; did you mean {}?", quote(near)),
            (None, []) => "names no upstream".to_owned(),
            (None, names) => format!("names no upstream; the upstreams are {}", list(names)),
        };
        item.mistake(why, mistakes);
    }
    found
}

fn continuation(
    mut table: Table<'_>,
    upstream: Option<usize>,
    upstreams: &[Slot],
    mistakes: &mut Mistakes,
) -> Continuation {
    let default = Continuation::on(upstream.unwrap_or_default());
    let named = table.find("plan").and_then(|item| plans(&item, mistakes));
    let continuation = Continuation {
        mode: table.or("enabled", default.mode, mode, mistakes),
        upstream: table
            .find("upstream")
            .and_then(|item| reference(&item, upstreams, mistakes))
            .unwrap_or(default.upstream),
        plans: named.unwrap_or(default.plans),
        render: named.is_some_and(|plans| plans.contains(PlanKind::RenderGenerate)),
        max_legs: table.or("max_legs", default.max_legs, counted(1, 8), mistakes),
        max_prompt_tokens: table.or("max_prompt_tokens", default.max_prompt_tokens, counted(1, 16_777_216), mistakes),
        derender_every: table.or("derender_every", default.derender_every, counted(1, 1024), mistakes),
        replay_overlap: table.or("replay_overlap", default.replay_overlap, counted(1, 4096), mistakes),
        max_body: table.or("max_body", default.max_body, sized(KIB, GIB), mistakes),
        buffer_tool_calls: table.or("buffer_tool_calls", default.buffer_tool_calls, Scalar::flag, mistakes),
        buffer_structured: table.or("buffer_structured", default.buffer_structured, Scalar::flag, mistakes),
        buffer_limit: table.or("buffer_limit", default.buffer_limit, sized(KIB, 64 * MIB), mistakes),
        force: table.or("force", default.force, Scalar::flag, mistakes),
        tokens: tokens(table.table("tokens", mistakes), mistakes),
    };
    table.close(mistakes);
    continuation
}

/// The kinds that are named at `item`, one or a list of them; `None` for `auto`, and for what is wrong.
fn plans(item: &Item<'_>, mistakes: &mut Mistakes) -> Option<PlanSet> {
    let items = item.one_or_list(mistakes);
    if items.is_empty() {
        item.mistake(format!("is an empty list; write at least one of {}", list(&PLANS[1..])), mistakes);
    }
    // `auto` stands alone: what it would mean beside others nobody can tell.
    let words = if item.is_list() { &PLANS[1..] } else { PLANS };
    let mut set = PlanSet::default();
    for item in &items {
        let Some(kind) = item.read(|v| one_of(v, words), mistakes).and_then(|i| PlanKind::named(words[i])) else {
            continue;
        };
        if set.contains(kind) {
            item.mistake("is listed twice".to_owned(), mistakes);
        }
        set.insert(kind);
    }
    (set != PlanSet::default()).then_some(set)
}

fn mode(value: Scalar<'_>) -> Result<Mode, Wrong> {
    match (value.flag(), value.text()) {
        (Ok(true), _) => Ok(Mode::On),
        (Ok(false), _) => Ok(Mode::Off),
        (_, Ok("observe")) => Ok(Mode::Observe),
        _ => Err(Wrong::OneOf(&["true", "false", "observe"])),
    }
}

fn tokens(mut table: Table<'_>, mistakes: &mut Mistakes) -> Tokens {
    let default = Tokens::default();
    let tokens = Tokens {
        cjk: table.or("cjk", default.cjk, ratio, mistakes),
        other: table.or("other", default.other, ratio, mistakes),
    };
    table.close(mistakes);
    tokens
}

/// Characters per token.
fn ratio(value: Scalar<'_>) -> Result<f64, Wrong> {
    let ratio = value.number()?;
    if (0.1..=100.0).contains(&ratio) { Ok(ratio) } else { Err(range("0.1", "100")) }
}

fn retry(mut table: Table<'_>, mistakes: &mut Mistakes) -> Retry {
    let default = Retry::default();
    let pause = || lasting(Duration::from_millis(1), HOUR);
    let retry = Retry {
        attempts: table.or("attempts", default.attempts, counted(1, 16), mistakes),
        backoff: table.or("backoff", default.backoff, pause(), mistakes),
        backoff_max: table.or("backoff_max", default.backoff_max, pause(), mistakes),
    };
    if retry.backoff > retry.backoff_max {
        table.mistake("backoff", "is longer than backoff_max; write a shorter one".to_owned(), mistakes);
    }
    table.close(mistakes);
    retry
}

fn timeouts(mut table: Table<'_>, mistakes: &mut Mistakes) -> Timeouts {
    let default = Timeouts::default();
    let timeouts = Timeouts {
        connect: table.or("connect", default.connect, lasting(Duration::from_millis(10), 300 * SECOND), mistakes),
        idle: table.or("idle", default.idle, lasting(Duration::from_millis(100), HOUR), mistakes),
        // The connection's own limit (TCP's user timeout) is a minute.
        send: table.or("send", default.send, lasting(Duration::from_millis(100), 60 * SECOND), mistakes),
    };
    table.close(mistakes);
    timeouts
}

fn resume(mut table: Table<'_>, mistakes: &mut Mistakes) -> Resume {
    let default = Resume::default();
    let resume = Resume {
        mode: table.or("mode", default.mode, resume_mode, mistakes),
        grace: table.or("grace", default.grace, lasting(Duration::ZERO, HOUR), mistakes),
        unattended: table.or("unattended", default.unattended, counted(1, u64::from(u32::MAX)), mistakes),
        ttl: table.or("ttl", default.ttl, lasting(Duration::ZERO, 24 * HOUR), mistakes),
        max_age: table.or("max_age", default.max_age, lasting(SECOND, 24 * HOUR), mistakes),
        window: table.or("window", default.window, or_off(sized(KIB, GIB)), mistakes),
        silence: table.or("silence", default.silence, or_off(lasting(SECOND, 24 * HOUR)), mistakes),
    };
    table.close(mistakes);
    resume
}

fn resume_mode(value: Scalar<'_>) -> Result<ResumeMode, Wrong> {
    const MODES: &[&str] = &["off", "on_request", "always"];
    one_of(value, MODES).map(|at| [ResumeMode::Off, ResumeMode::OnRequest, ResumeMode::Always][at])
}

fn on_incomplete(value: Scalar<'_>) -> Result<OnIncomplete, Wrong> {
    Ok([OnIncomplete::Error, OnIncomplete::Mirror][one_of(value, &["error", "mirror"])?])
}

fn journal(mut table: Table<'_>, mistakes: &mut Mistakes) -> Journal {
    let default = Journal::default();
    let store = table.or("store", default.store, |v| one_of(v, &["memory"]).map(|_| Store::Memory), mistakes);
    let journal = Journal {
        store,
        max_stream: table.or("max_stream", default.max_stream, sized(MIN_STREAM, GIB), mistakes),
        max_total: table.or("max_total", default.max_total, sized(MIB, 1024 * GIB), mistakes),
        max_streams: table.or("max_streams", default.max_streams, counted(1, 10_000_000), mistakes),
        max_tenant: table.or("max_tenant", default.max_tenant, sized(MIN_STREAM, 1024 * GIB), mistakes),
        max_tenant_streams: table.or(
            "max_tenant_streams",
            default.max_tenant_streams,
            counted(1, 10_000_000),
            mistakes,
        ),
    };
    if journal.max_stream > journal.max_total {
        let (stream, total) = (show_size(journal.max_stream), show_size(journal.max_total));
        let text = format!("does not fit: one stream may hold {stream}, all together only {total}");
        table.mistake("max_total", text, mistakes);
    }
    table.close(mistakes);
    journal
}

/// The index of the word in `words`.
fn one_of(value: Scalar<'_>, words: &'static [&'static str]) -> Result<usize, Wrong> {
    let text = value.words(Wrong::OneOf(words))?;
    words.iter().position(|word| *word == text).ok_or_else(|| match nearest(text, words) {
        Some(near) => Wrong::Near(near.to_owned()),
        None => Wrong::OneOf(words),
    })
}

fn range(low: impl ToString, high: impl ToString) -> Wrong {
    Wrong::Range { low: low.to_string(), high: high.to_string() }
}

/// A parser for durations from `low` to `high`.
fn lasting(low: Duration, high: Duration) -> impl Fn(Scalar<'_>) -> Result<Duration, Wrong> {
    move |value| {
        let duration = duration(value.words(Wrong::Duration)?)?;
        if (low..=high).contains(&duration) {
            Ok(duration)
        } else {
            Err(range(show_duration(low), show_duration(high)))
        }
    }
}

/// A parser for sizes from `low` to `high` bytes.
fn sized(low: usize, high: usize) -> impl Fn(Scalar<'_>) -> Result<usize, Wrong> {
    move |value| {
        let size = size(value.words(Wrong::Size)?)?;
        if (low..=high).contains(&size) { Ok(size) } else { Err(range(show_size(low), show_size(high))) }
    }
}

/// A parser for what `parse` takes, or `off`.
fn or_off<T>(parse: impl Fn(Scalar<'_>) -> Result<T, Wrong>) -> impl Fn(Scalar<'_>) -> Result<Option<T>, Wrong> {
    move |value| match value.text() {
        Ok("off") => Ok(None),
        _ => parse(value).map(Some),
    }
}

/// A parser for whole numbers from `low` to `high`.
fn counted<T: TryFrom<i128> + PartialOrd + Copy + ToString>(
    low: T,
    high: T,
) -> impl Fn(Scalar<'_>) -> Result<T, Wrong> {
    move |value| {
        let number = T::try_from(value.whole()?).ok().filter(|n| (low..=high).contains(n));
        number.ok_or_else(|| range(low, high))
    }
}

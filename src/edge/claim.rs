//! Chats and completions: read whole, sent by a leg of Baton's own, and, when the answer is an event stream, carried to its end.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Version;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, LOCATION};
use log::{debug, warn};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorType, Result};
use tokio::time::Instant;

use super::error::Fault;
use super::gateway::Gateway;
use super::resume::Posted;
use super::{first, headers, opaque, reply, resume, route};
use crate::config::settings::{self, ResumeMode, Route};
use crate::journal::{Full, Writer};
use crate::proto::chat::{Api, ChatRequest, Ratios};
use crate::proto::relay::{Continuation, OnIncomplete, Policy, Relay};
use crate::proto::resume::{self as plans, Engine, Family, PlanKind};
use crate::stream::{
    self, Attached, Claim, Digest, First, Keeping, Kept, Onward, Opened, Opening, Report, Room, Start, StreamId,
    Tenant, Terms, Whose,
};
use crate::upstream::{Cluster, OpenError, is_event_stream};

/// Names the stream in a response.
const BATON_STREAM: &str = "Baton-Stream";
/// Says how a client wants to come back, in one or several words.
const BATON_RESUME: &str = "Baton-Resume";
/// It may want to.
const ON: &str = "on";
/// Where the stream is over it takes another answer.
const REGENERATE: &str = "regenerate";
/// Asks nginx not to collect the response before it passes it on.
const ACCEL_BUFFERING: &str = "X-Accel-Buffering";

/// A room for a body whose length is not known.
const BODY_ROOM: usize = 16 * 1024;

/// How a claimed request was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Served {
    /// As a stream, which reports for itself.
    Stream,
    /// By an answer that is not an event stream, or by a fault.
    Whole,
}

/// A chat or a completion whose body has been read.
struct Chat<'a> {
    began: Instant,
    client: Version,
    head: Arc<RequestHeader>,
    /// `None`: not to be continued, because it was not understood or is over the route's limit.
    request: Option<ChatRequest>,
    policy: Policy,
    /// How many choices the answer is to have.
    choices: usize,
    /// It is to be an event stream.
    streams: bool,
    /// The client may come back to the answer, which is that to this request.
    resumable: Option<Resumable>,
    route: &'a Route,
}

/// What a stream that can be come back to is known by.
struct Resumable {
    tenant: Tenant,
    /// The client's own body.
    asked: Digest,
    claim: Option<Claim>,
}

impl Chat<'_> {
    /// How often leg 1 may be sent: once, unless its answer would be continued, too.
    fn tries(&self) -> usize {
        let continuation = &self.route.continuation;
        let request = self.request.as_ref().filter(|_| continuation.mode == settings::Mode::On);
        let continued = |request: &ChatRequest| request.stream() && self.policy.resume.rules_out(request).is_none();
        if request.is_some_and(continued) { self.route.retry.attempts as usize } else { 1 }
    }

    /// Sends leg 1, with the client's own `body`, or where a continuation would use token ids with one that asks for them besides.
    fn first_leg(&self, gateway: &Gateway, body: Bytes) -> Opening {
        let cluster = gateway.cluster(self.route.upstream);
        let (engine, _) = Engine::named(cluster.engine());
        let continued = self.request.as_ref().filter(|_| asks_for_ids(self.route, cluster));
        let listing = continued.and_then(|request| plans::first(request, &engine, &self.policy.resume));
        let (body, own) = match listing {
            Some(listing) => (Bytes::from(listing), Some(body)),
            None => (body, None),
        };
        let first = first::First {
            connector: Arc::clone(gateway.connector()),
            cluster: Arc::clone(cluster),
            metrics: Arc::clone(gateway.metrics()),
            head: Arc::clone(&self.head),
            body,
            own,
            connect: self.route.timeouts.connect,
            tries: self.tries(),
            policy: self.policy.clone(),
        };
        Box::pin(first.open())
    }
}

/// Serves a chat or a completion from its first body byte to the end of its answer.
///
/// # Errors
/// The response is not whole and must not be given an orderly end; or the client is gone.
pub(super) async fn serve(gateway: &Gateway, session: &mut ServerSession, api: Api) -> Result<Served> {
    let began = Instant::now();
    let client = session.req_header().version;
    let head = headers::for_legs(session.req_header());
    let body = match read_body(session, gateway.settings().server.max_request_body).await? {
        Ok(body) => body,
        Err(fault) => return refuse(gateway, session, &fault).await,
    };
    let parsed = match api {
        Api::Chat => ChatRequest::parse(&body),
        Api::Completions => ChatRequest::parse_completion(&body),
    };
    let model = match &parsed {
        Ok(request) => request.model().map(str::to_owned),
        Err(why) => {
            debug!("a request is passed on unchanged: {why}");
            route::model_of(&body)
        }
    };
    let Some(route) = gateway.settings().route(model.as_deref().unwrap_or_default()) else {
        return refuse(gateway, session, &Fault::NoRoute { model }).await;
    };
    let streams = parsed.as_ref().is_ok_and(ChatRequest::stream);
    let mut resumable = match resumable(gateway, session, route, &body, streams).await? {
        Ok(resumable) => resumable,
        Err(served) => return Ok(served),
    };
    match gateway.load().make_room().await {
        Room::Ample => {}
        Room::Tight => {
            if resumable.take().is_some() {
                gateway.metrics().not_kept("load");
            }
        }
        Room::None => {
            gateway.metrics().turned_away();
            return refuse(gateway, session, &Fault::Overloaded).await;
        }
    }
    let Ok(writer) = journal(gateway, &mut resumable) else {
        gateway.metrics().turned_away();
        return refuse(gateway, session, &Fault::Overloaded).await;
    };
    let choices = parsed.as_ref().map_or(1, ChatRequest::choices);
    let request = parsed.ok().filter(|_| body.len() <= route.continuation.max_body);
    let policy = policy(route, gateway.cluster(route.continuation.upstream));
    let chat = Chat { began, client, head: Arc::new(head), request, policy, choices, streams, resumable, route };
    answer(gateway, session, chat, body, writer).await
}

/// Sends leg 1 and answers with what comes.
async fn answer(
    gateway: &Gateway,
    session: &mut ServerSession,
    chat: Chat<'_>,
    body: Bytes,
    writer: Writer,
) -> Result<Served> {
    let mut opening = chat.first_leg(gateway, body);
    // Only a stream has a header that can be told before an engine has answered, and heartbeats.
    let opened = match wait(session, &mut opening, chat.route.heartbeat.filter(|_| chat.streams)).await {
        Waited::Opened(Ok(opened)) => opened,
        Waited::Opened(Err(error)) => {
            warn!("a request got no answer: {error}");
            let upstream = gateway.cluster(chat.route.upstream).name();
            return refuse(gateway, session, &Fault::of_leg(&error, upstream)).await;
        }
        Waited::Late => return carry(gateway, session, chat, First::Opening(opening), writer).await,
        Waited::Left => {
            match chat.resumable {
                Some(Resumable { claim: Some(_), .. }) => leave(gateway, chat, opening, writer),
                // Nobody can come back to it. With the leg's future its connection goes, so that the engine stops at once.
                _ => gateway.metrics().client_left(),
            }
            return Err(opaque::client_gone());
        }
    };
    if is_event_stream(opened.leg.response()) {
        return carry(gateway, session, chat, First::Open(opened), writer).await;
    }
    drop(writer);
    opaque::pass(gateway.cors(), session, *opened.leg, chat.client).await.map(|()| Served::Whole)
}

/// A journal for the answer. One whose client's tenant has no room left for another that is kept is not kept.
fn journal(gateway: &Gateway, resumable: &mut Option<Resumable>) -> std::result::Result<Writer, Full> {
    if let Some(Resumable { tenant, .. }) = resumable {
        match gateway.load().keeping(tenant) {
            Err(full @ (Full::ShareBytes { .. } | Full::ShareStreams { .. })) => {
                debug!("an answer is not kept: {full}");
                gateway.metrics().not_kept("tenant");
                *resumable = None;
            }
            made => return made,
        }
    }
    gateway.store().create()
}

/// What the wait for leg 1 came to.
enum Waited {
    /// It has answered, or nobody will.
    Opened(Result<Opened, OpenError>),
    /// There is nothing yet, and it is time for a heartbeat.
    Late,
    /// The client has left.
    Left,
}

/// Waits for leg 1 with one eye on the client: one that leaves while the engine is still thinking must not leave it working.
async fn wait(session: &mut ServerSession, opening: &mut Opening, patience: Option<Duration>) -> Waited {
    let late = async {
        match patience {
            Some(patience) => tokio::time::sleep(patience).await,
            None => pending().await,
        }
    };
    tokio::select! {
        biased;
        opened = opening => Waited::Opened(opened),
        _ = session.read_body_or_idle(true) => Waited::Left,
        () = late => Waited::Late,
    }
}

/// Whether the client may come back to the answer. `Err`: this is such a return, and has been served.
async fn resumable(
    gateway: &Gateway,
    session: &mut ServerSession,
    route: &Route,
    body: &Bytes,
    streams: bool,
) -> Result<std::result::Result<Option<Resumable>, Served>> {
    let head = session.req_header();
    // Only a stream has events to come back to.
    let wanted = streams
        && match route.resume.mode {
            ResumeMode::Off => false,
            ResumeMode::OnRequest => headers::says(head, BATON_RESUME, ON),
            ResumeMode::Always => true,
        };
    // Who names an event of a stream means to go on with it, whatever else the request says.
    if !wanted && resume::named_stream(head).is_none() {
        return Ok(Ok(None));
    }
    let tenant = resume::tenant_of(head);
    let asked = Digest::of(body);
    Ok(match resume::posted(gateway, session, asked).await? {
        Posted::New(claim) => Ok(wanted.then_some(Resumable { tenant, asked, claim })),
        Posted::Again => Err(Served::Stream),
        Posted::Refused => Err(Served::Whole),
    })
}

/// Whether a client whose stream is over takes another answer for it.
pub(super) fn may_regenerate(head: &RequestHeader) -> bool {
    headers::says(head, BATON_RESUME, REGENERATE)
}

async fn refuse(gateway: &Gateway, session: &mut ServerSession, fault: &Fault) -> Result<Served> {
    reply::fault(gateway.cors(), session, fault).await.map(|()| Served::Whole)
}

/// Reads the body whole, up to `limit` bytes.
pub(super) async fn read_body(session: &mut ServerSession, limit: usize) -> Result<Result<Bytes, Fault>> {
    let head = session.req_header();
    let expects = head.headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let declared = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if expects {
        session.write_continue_response().await.map_err(|error| error.into_down())?;
    }
    let mut body = BytesMut::with_capacity(declared.unwrap_or(BODY_ROOM).min(limit));
    loop {
        match session.read_request_body().await {
            Ok(Some(piece)) if body.len() + piece.len() > limit => return Ok(Err(Fault::TooLarge { limit })),
            Ok(Some(piece)) => body.extend_from_slice(&piece),
            Ok(None) => return Ok(Ok(body.freeze())),
            Err(error) if *error.etype() == ErrorType::ReadTimedout => return Ok(Err(Fault::SlowBody)),
            Err(error) => return Err(error.into_down()),
        }
    }
}

/// Hands an event stream over to [`stream::serve`].
async fn carry(
    gateway: &Gateway,
    session: &mut ServerSession,
    mut chat: Chat<'_>,
    first: First,
    writer: Writer,
) -> Result<Served> {
    let (client, id) = (chat.client, gateway.ids().mint());
    let keeping = keeping(gateway, &mut chat, &id, &writer);
    let kept = keeping.is_some();
    let header = match &first {
        First::Open(opened) => stream_header(opened.leg.response(), client, &id, kept),
        First::Opening(_) => event_stream().and_then(|engine| stream_header(&engine, client, &id, kept)),
    };
    let told = match header {
        Ok(header) => reply::header(gateway.cors(), session, header).await.map_err(|error| error.into_down()),
        Err(error) => Err(error),
    };
    let start = start(gateway, chat, id, first, writer, keeping);
    if let Err(error) = told {
        // It can be found already, and must come to its end.
        stream::leave(start);
        return Err(error);
    }
    match stream::serve(session, start).await {
        Attached::Served | Attached::Lost => Ok(Served::Stream),
        Attached::Torn => Err(Error::explain(ErrorType::ReadError, "the engine broke off").into_up()),
        Attached::ClientGone => Err(opaque::client_gone()),
    }
}

/// Goes on with a request whose client has left it before its header, and can come back to it by its key.
fn leave(gateway: &Gateway, mut chat: Chat<'_>, opening: Opening, writer: Writer) {
    let id = gateway.ids().mint();
    let keeping = keeping(gateway, &mut chat, &id, &writer);
    stream::leave(start(gateway, chat, id, First::Opening(opening), writer, keeping));
}

fn start(
    gateway: &Gateway,
    chat: Chat<'_>,
    id: StreamId,
    first: First,
    writer: Writer,
    keeping: Option<Keeping>,
) -> Start {
    let Chat { began, head, request, policy, choices, route, .. } = chat;
    let from = gateway.cluster(route.upstream);
    let next = gateway.cluster(route.continuation.upstream);
    let mut report = Report::new(gateway.metrics().clone(), id, route.model.as_str(), from.name(), next.name());
    let model = request.as_ref().and_then(ChatRequest::model).unwrap_or_default();
    let excluded = request.as_ref().and_then(ChatRequest::exclusion).map(|exclusion| exclusion.name());
    if let First::Open(opened) = &first {
        report.first_leg(&opened.leg);
    }
    report.start(model, excluded);
    let (family, _) = Family::named(next.family());
    let (engine, _) = Engine::named(next.engine());
    let rid = format!("{:016x}", rand::random::<u64>());
    let (connector, connect) = (gateway.connector().clone(), route.timeouts.connect);
    let head = headers::for_later_legs(&head);
    Start {
        relay: Relay::new(request, policy, family, engine, rid).expecting(choices),
        writer,
        first,
        onward: Onward { connector, cluster: next.clone(), head, connect },
        report,
        heartbeat: route.heartbeat,
        send: route.timeouts.send,
        began,
        keeping,
    }
}

/// Puts a stream where a client that comes back finds it, if it is one that clients may come back to.
fn keeping(gateway: &Gateway, chat: &mut Chat<'_>, id: &StreamId, writer: &Writer) -> Option<Keeping> {
    let Resumable { tenant, asked, claim } = chat.resumable.take()?;
    let settings::Resume { grace, unattended, ttl, max_age, window, silence, .. } = chat.route.resume;
    let (heartbeat, send) = (chat.route.heartbeat, chat.route.timeouts.send);
    let terms = Terms { grace, unattended, ttl, max_age, heartbeat, window, send, silence };
    let whose = Whose { tenant, asked, key: claim.as_ref().map(Claim::key) };
    let kept = Kept::new(id.clone(), whose, writer.handle(), terms);
    let registry = Arc::clone(gateway.registry());
    // Before it can be found: what nobody reads may be given up.
    let reader = kept.attend();
    if !registry.keep(&kept) {
        return None;
    }
    if let Some(claim) = claim {
        claim.fill(&kept);
    }
    Some(Keeping { kept, registry, reader, hold: Box::new(gateway.live().enter()) })
}

/// The header of an event stream before an engine has said anything of it.
pub(super) fn event_stream() -> Result<ResponseHeader> {
    let mut header = ResponseHeader::build(200, Some(8))?;
    header.insert_header(CONTENT_TYPE, "text/event-stream; charset=utf-8")?;
    Ok(header)
}

/// The header of a stream's response. `kept`: a client may come back to it.
pub(super) fn stream_header(
    engine: &ResponseHeader,
    client: Version,
    id: &StreamId,
    kept: bool,
) -> Result<ResponseHeader> {
    let mut engine = engine.clone();
    // Continued, the answer has another length.
    engine.remove_header(&CONTENT_LENGTH);
    // Clients that reconnect to it by themselves would reach the engine's idea of this stream.
    engine.remove_header(&LOCATION);
    let mut header = headers::for_client(&engine, client);
    header.insert_header(BATON_STREAM, id.as_str())?;
    if kept {
        // Some clients reconnect to it by themselves (LangGraph's SDK).
        header.insert_header(LOCATION, format!("{}{id}", route::STREAMS))?;
    }
    header.insert_header(CACHE_CONTROL, "no-store")?;
    header.insert_header(ACCEL_BUFFERING, "no")?;
    Ok(header)
}

/// Whether leg 1, on `first`, is changed to ask for token ids: only where a continuation would use them, and not of a server that
/// was found to refuse that.
fn asks_for_ids(route: &Route, first: &Cluster) -> bool {
    if first.barred().contains(PlanKind::TokenExact) {
        return false;
    }
    let plans = route.continuation.plans;
    let by_ids = plans.contains(PlanKind::TokenExact) || plans.contains(PlanKind::RenderGenerate);
    route.continuation.mode == settings::Mode::On && by_ids
}

/// The settings of a stream; `next` is the upstream that continues.
fn policy(route: &Route, next: &Cluster) -> Policy {
    let settings::Continuation {
        mode,
        max_legs,
        buffer_tool_calls,
        buffer_structured,
        buffer_limit,
        force,
        tokens,
        ..
    } = route.continuation;
    let settings::Retry { attempts, backoff, backoff_max } = route.retry;
    Policy {
        continuation: match mode {
            settings::Mode::On => Continuation::On,
            settings::Mode::Off => Continuation::Off,
            settings::Mode::Observe => Continuation::Observe,
        },
        max_legs,
        attempts,
        backoff,
        backoff_max,
        idle: route.timeouts.idle,
        tool_buffer: buffer_tool_calls.then_some(buffer_limit),
        structured_buffer: buffer_structured.then_some(buffer_limit),
        on_incomplete: match route.on_incomplete {
            settings::OnIncomplete::Error => OnIncomplete::Error,
            settings::OnIncomplete::Mirror => OnIncomplete::Mirror,
        },
        ratios: Ratios { cjk: tokens.cjk, other: tokens.other },
        force,
        max_event: route.max_event,
        resume: plans::Settings {
            plans: route.continuation.plans,
            barred: next.barred(),
            abilities: next.abilities(),
            structured: buffer_structured,
            max_prompt_tokens: route.continuation.max_prompt_tokens,
            render: route.continuation.render,
            derender_every: route.continuation.derender_every as usize,
            max_event: route.max_event,
            replay_overlap: route.continuation.replay_overlap,
        },
    }
}

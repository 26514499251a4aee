//! Requests about streams that Baton keeps: a client that has come back for the rest, one that wants no more, one that asks.

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, HeaderValue};
use pingora::http::RequestHeader;
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorType, Result};
use serde::Deserialize;
use serde_json::json;

use super::error::Fault;
use super::gateway::Gateway;
use super::headers::{IDEMPOTENCY_KEY, LAST_EVENT_ID};
use super::route::{self, Call};
use super::{claim, opaque, reply};
use crate::journal::Span;
use crate::proto::record::Seq;
use crate::stream::{self, Attached, Claim, Claimed, Digest, Found, Kept, StreamId, Tenant};

/// The longest body of an acknowledgement or a cancel, in bytes.
const MAX_ACK: usize = 1024;

/// Longest wait for a stream to say how far it has come. It does so between two events.
const ANSWER: Duration = Duration::from_secs(1);

/// Whose a request is.
pub(super) fn tenant_of(head: &RequestHeader) -> Tenant {
    Tenant::of(head.headers.get(AUTHORIZATION).map(|value| value.as_bytes()))
}

/// Answers a request about a stream.
///
/// # Errors
/// The client is gone, or the stream's end was torn.
pub(super) async fn serve(gateway: &Gateway, session: &mut ServerSession, call: Call) -> Result<()> {
    let head = session.req_header();
    let id = route::call(head).and_then(|(id, _)| StreamId::parse(id));
    let found = match id.filter(|_| call != Call::Unknown) {
        Some(id) => gateway.registry().find(&id, &tenant_of(head)),
        None => Found::Unknown,
    };
    let kept = match found {
        Found::Kept(kept) => kept,
        Found::Expired => return reply::fault(gateway.cors(), session, &Fault::StreamExpired).await,
        Found::Unknown => return reply::fault(gateway.cors(), session, &Fault::NoStream).await,
    };
    match call {
        Call::Read => read(gateway, session, &kept).await,
        Call::Status => reply::json(gateway.cors(), session, 200, status(&kept).await).await,
        Call::Ack => acknowledge(gateway, session, &kept).await,
        Call::Cancel | Call::Unknown => {
            // What it says does not matter; it has to be out of the next request's way.
            if let Err(fault) = claim::read_body(session, MAX_ACK).await? {
                return reply::fault(gateway.cors(), session, &fault).await;
            }
            kept.cancel();
            let body = json!({"id": kept.id().as_str(), "state": "cancelled"}).to_string();
            reply::json(gateway.cors(), session, 202, body).await
        }
    }
}

/// What a request for an answer turns out to be.
pub(super) enum Posted {
    /// One that has come before: its stream was read.
    Again,
    /// One that was refused for what it says of a stream.
    Refused,
    /// A new one. The claim is on its key, if it has one.
    New(Option<Claim>),
}

/// Whether a request for an answer belongs to a stream that there is already: by the last event that it names, or by its key.
///
/// # Errors
/// As [`serve`].
pub(super) async fn posted(gateway: &Gateway, session: &mut ServerSession, asked: Digest) -> Result<Posted> {
    let head = session.req_header();
    let tenant = tenant_of(head);
    let (goes_on, regenerates) = (last_event(head).is_some(), claim::may_regenerate(head));
    if let Some(id) = named_stream(head) {
        // A client that wants to go on must not get another answer for it, unless it says so.
        match gateway.registry().find(&id, &tenant) {
            Found::Kept(kept) => return again(gateway, session, &kept, asked).await,
            Found::Expired if regenerates => {}
            Found::Expired => return refuse(gateway, session, &Fault::StreamExpired).await,
            Found::Unknown => return refuse(gateway, session, &Fault::NoStream).await,
        }
    }
    let Some(key) = head.headers.get(IDEMPOTENCY_KEY) else {
        return if goes_on && !regenerates {
            refuse(gateway, session, &Fault::NoStream).await
        } else {
            Ok(Posted::New(None))
        };
    };
    let key = Digest::of_key(&tenant, key.as_bytes());
    let claimed = tokio::select! {
        claimed = gateway.registry().claim(key) => claimed,
        _ = session.read_body_or_idle(true) => return Err(opaque::client_gone()),
    };
    match claimed {
        Claimed::Kept(kept) => again(gateway, session, &kept, asked).await,
        Claimed::First(_) if goes_on && !regenerates => refuse(gateway, session, &Fault::NoStream).await,
        Claimed::First(claim) => Ok(Posted::New(Some(claim))),
    }
}

/// What the client names as the last event that it has. An empty header names none.
fn last_event(head: &RequestHeader) -> Option<&HeaderValue> {
    head.headers.get(LAST_EVENT_ID).filter(|last| !last.is_empty())
}

/// The stream whose event a request names as the last one that its client has.
pub(super) fn named_stream(head: &RequestHeader) -> Option<StreamId> {
    StreamId::parse(last_event(head)?.to_str().ok()?.trim().rsplit_once('.')?.0)
}

async fn again(gateway: &Gateway, session: &mut ServerSession, kept: &Arc<Kept>, asked: Digest) -> Result<Posted> {
    if *kept.asked() != asked {
        return refuse(gateway, session, &Fault::OtherRequest).await;
    }
    read(gateway, session, kept).await.map(|()| Posted::Again)
}

async fn refuse(gateway: &Gateway, session: &mut ServerSession, fault: &Fault) -> Result<Posted> {
    reply::fault(gateway.cors(), session, fault).await.map(|()| Posted::Refused)
}

async fn acknowledge(gateway: &Gateway, session: &mut ServerSession, kept: &Kept) -> Result<()> {
    #[derive(Deserialize)]
    struct Ack {
        seq: Seq,
    }
    let body = claim::read_body(session, MAX_ACK).await?;
    match body.map(|body| serde_json::from_slice::<Ack>(&body)) {
        Ok(Ok(Ack { seq })) => {
            kept.acknowledge(seq);
            reply::nothing(gateway.cors(), session).await
        }
        Ok(Err(_)) => reply::fault(gateway.cors(), session, &Fault::BadAck).await,
        Err(fault) => reply::fault(gateway.cors(), session, &fault).await,
    }
}

/// Sends the events behind the client's position, and then what comes.
async fn read(gateway: &Gateway, session: &mut ServerSession, kept: &Arc<Kept>) -> Result<()> {
    let Span { low, sealed, .. } = kept.log().span();
    let told = told(kept);
    // What it cannot have had is not waited for.
    let from = position(session.req_header(), kept.id()).map_or(0, |last| last.saturating_add(1).min(told));
    if from < low {
        return reply::fault(gateway.cors(), session, &Fault::Trimmed { low }).await;
    }
    if sealed && from == told {
        return reply::nothing(gateway.cors(), session).await;
    }
    let client = session.req_header().version;
    let header = claim::stream_header(&claim::event_stream()?, client, kept.id(), true)?;
    reply::header(gateway.cors(), session, header).await.map_err(|error| error.into_down())?;
    gateway.metrics().client_returned();
    let (attached, sent) = stream::resume(session, kept, from).await;
    gateway.metrics().sent(sent.events, sent.bytes);
    gateway.metrics().heartbeats(sent.heartbeats);
    match attached {
        Attached::Served | Attached::Lost => Ok(()),
        Attached::Torn => Err(Error::explain(ErrorType::ReadError, "the engine broke off").into_up()),
        Attached::ClientGone => Err(opaque::client_gone()),
    }
}

/// How many events the stream has so far, that of its seal included where there is one.
fn told(kept: &Kept) -> Seq {
    let end = kept.log().end();
    // Asked for second: a seal that comes in between adds an event at most, which is one that is still to come.
    kept.log().span().next + Seq::from(end.is_some_and(|seal| seal.has_event()))
}

/// The number of the last event that the client has: `Last-Event-ID`, or `after` in the query. `None`: it has none, or says nothing that
/// makes sense, and gets everything.
fn position(head: &RequestHeader, id: &StreamId) -> Option<Seq> {
    let named = last_event(head).and_then(|value| value.to_str().ok());
    let asked = || {
        let pairs = head.uri.query().into_iter().flat_map(|query| query.split('&'));
        pairs.filter_map(|pair| pair.strip_prefix("after=")).next_back()
    };
    let text = named.or_else(asked)?.trim();
    let number = match text.rsplit_once('.') {
        // The number of another stream's event says nothing of this one.
        Some((stream, number)) if stream == id.as_str() => number,
        Some(_) => return None,
        None => text,
    };
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    // A number that is too large for any seq is one that is too large.
    digits.then(|| number.parse().unwrap_or(Seq::MAX))
}

async fn status(kept: &Kept) -> String {
    let Span { low, sealed, .. } = kept.log().span();
    let progress = tokio::time::timeout(ANSWER, kept.progress()).await.ok().flatten();
    let readers = kept.readers();
    let state = match (sealed, readers) {
        (true, _) => "ended",
        (false, 0) => "unattended",
        (false, _) => "generating",
    };
    json!({
        "id": kept.id().as_str(),
        "state": state,
        "end": kept.log().end().map(|seal| seal.name()),
        // The last event that there is; `null` before the first.
        "seq": told(kept).checked_sub(1),
        "low": low,
        "legs": progress.map(|progress| progress.leg),
        "tokens": progress.map(|progress| progress.tokens),
        "age_ms": u64::try_from(kept.age().as_millis()).unwrap_or(u64::MAX),
        "readers": readers,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::StreamIds;

    #[test]
    fn a_position_is_read_from_the_header_or_the_query_and_nonsense_is_none() {
        let ids = StreamIds::default();
        let (id, other) = (ids.mint(), ids.mint());
        let of = |header: Option<&str>, query: &str| {
            let mut head = RequestHeader::build("GET", format!("/v1/streams/{id}{query}").as_bytes(), None).unwrap();
            if let Some(header) = header {
                head.insert_header(LAST_EVENT_ID, header).unwrap();
            }
            position(&head, &id)
        };
        assert_eq!(of(Some(&format!("{id}.0")), ""), Some(0));
        assert_eq!(of(Some("7"), ""), Some(7));
        assert_eq!(of(Some("7"), "?after=9"), Some(7), "the header is the later word");
        assert_eq!(of(None, "?after=9"), Some(9));
        assert_eq!(of(None, &format!("?x=1&after={id}.3&after=4")), Some(4));
        assert_eq!(of(Some("18446744073709551616"), ""), Some(Seq::MAX), "2^64");
        for wrong in ["", "-1", "x", "1.5", "+1", "0x1", "1e3", "∞"] {
            assert_eq!(of(Some(wrong), ""), None, "{wrong}");
        }
        assert_eq!(of(Some(&format!("{other}.5")), ""), None, "another stream's");
        assert_eq!(of(None, ""), None);
    }
}

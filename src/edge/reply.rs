//! Answers that Baton gives itself.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use log::debug;
use pingora::Result;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;

use super::cors;
use super::error::Fault;
use crate::config::settings::Cors;

/// How long a client that is still sending its body is listened to after its answer. Closing a socket with unread bytes makes
/// the kernel send a reset, and a reset throws away the answer that the client has not read yet.
const LINGER: Duration = Duration::from_secs(2);

/// Begins a response. Every one that is not Pingora's own begins here, so that none is without what [`cors`] says of it.
pub(super) async fn header(cors: &Cors, session: &mut ServerSession, mut header: ResponseHeader) -> Result<()> {
    cors::dress(cors, session.req_header(), &mut header)?;
    session.write_response_header(Box::new(header)).await
}

/// Says that Baton runs.
pub(super) async fn health(cors: &Cors, session: &mut ServerSession) -> Result<()> {
    json(cors, session, 200, Bytes::from_static(b"{\"status\":\"ok\"}")).await
}

/// Says what is wrong.
pub(super) async fn fault(cors: &Cors, session: &mut ServerSession, fault: &Fault) -> Result<()> {
    let body = Bytes::from(fault.body());
    let mut header = json_header(fault.status(), &body)?;
    if let Some(seconds) = fault.retry_after() {
        header.insert_header(RETRY_AFTER, seconds)?;
    }
    send(cors, session, header, body).await
}

/// Says that there is nothing to send.
pub(super) async fn nothing(cors: &Cors, session: &mut ServerSession) -> Result<()> {
    let mut header = ResponseHeader::build(204, Some(1))?;
    header.insert_header(CACHE_CONTROL, "no-store")?;
    self::header(cors, session, header).await
}

/// A JSON body.
pub(super) async fn json(cors: &Cors, session: &mut ServerSession, status: u16, body: impl Into<Bytes>) -> Result<()> {
    let body = body.into();
    send(cors, session, json_header(status, &body)?, body).await
}

fn json_header(status: u16, body: &Bytes) -> Result<ResponseHeader> {
    let mut header = ResponseHeader::build(status, Some(4))?;
    header.insert_header(CONTENT_TYPE, "application/json")?;
    header.insert_header(CACHE_CONTROL, "no-store")?;
    header.set_content_length(body.len())?;
    Ok(header)
}

/// Sends it. The connection is used again only if the request's body has been read.
async fn send(cors: &Cors, session: &mut ServerSession, header: ResponseHeader, body: Bytes) -> Result<()> {
    self::header(cors, session, header).await?;
    session.write_response_body(body, true).await?;
    if !session.is_http2() && !session.is_body_done() {
        session.set_keepalive(None);
        let drained = async { while let Ok(Some(_)) = session.read_request_body().await {} };
        if tokio::time::timeout(LINGER, drained).await.is_err() {
            debug!("a client went on sending after its answer");
        }
    }
    Ok(())
}

//! An engine's answer that Baton takes no part in: passed on as it comes.

use bytes::Bytes;
use http::Version;
use log::debug;
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorType, Result};

use super::headers;
use crate::upstream::{Cut, Leg};

enum Woken {
    Piece(Bytes),
    End,
    Cut(Cut),
    ClientGone,
}

/// Passes status, headers (less hop-by-hop ones) and body on, unchanged.
///
/// # Errors
/// The client went away, which closes the leg; or the engine broke off, and then the client's connection is to be broken
/// off, too: its response has had no orderly end.
pub(super) async fn relay(session: &mut ServerSession, mut leg: Leg, client: Version) -> Result<()> {
    let header = headers::for_client(leg.response(), client);
    session.write_response_header(Box::new(header)).await.map_err(|error| error.into_down())?;
    loop {
        let woken = tokio::select! {
            biased;
            read = leg.read() => match read {
                Ok(Some(bytes)) => Woken::Piece(Bytes::copy_from_slice(bytes)),
                Ok(None) => Woken::End,
                Err(cut) => Woken::Cut(cut),
            },
            _ = session.read_body_or_idle(true) => Woken::ClientGone,
        };
        match woken {
            Woken::Piece(bytes) => {
                session.write_response_body(bytes, false).await.map_err(|error| error.into_down())?;
            }
            Woken::End => {
                session.write_response_body(Bytes::new(), true).await.map_err(|error| error.into_down())?;
                leg.finish().await;
                return Ok(());
            }
            Woken::Cut(cut) => {
                debug!("{} broke off an answer: {cut}", leg.endpoint());
                session.shutdown().await;
                return Err(Error::explain(ErrorType::ReadError, cut.to_string()).into_up());
            }
            Woken::ClientGone => return Err(client_gone()),
        }
    }
}

/// The error with which a request ends whose client is not there any more.
pub(super) fn client_gone() -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "the client went away").into_down()
}

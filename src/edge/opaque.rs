//! An engine's answer that Baton takes no part in: passed on as it comes. If it is an event stream, it is followed all the same,
//! so that it is known whether the answer was whole.

use std::sync::Arc;

use bytes::Bytes;
use http::Version;
use log::debug;
use pingora::http::ResponseHeader;
use pingora::protocols::http::ServerSession;
use pingora::{Error, ErrorType, Result};

use super::{headers, reply};
use crate::config::settings::Cors;
use crate::proto::relay::{Cause, Completeness, LegTracker};
use crate::telemetry::metrics::Metrics;
use crate::upstream::{Cut, Leg, is_event_stream};

/// How the passing on of an answer came to its end.
#[derive(Debug)]
pub(super) enum Ended {
    /// The body ended as HTTP says.
    Orderly,
    /// The engine, or the network before it, broke off inside the body.
    Broken(Cut),
    /// The client went away.
    ClientGone,
}

/// Follows an event stream that is passed on, and counts it if its answer does not come to an end.
#[derive(Debug)]
pub(super) struct Follower {
    tracker: LegTracker,
    metrics: Arc<Metrics>,
    upstream: String,
}

impl Follower {
    /// A follower, if the response is an event stream whose events can be read. `max_event` is in bytes. The request was not read, so one
    /// choice is expected.
    pub(super) fn of(
        response: &ResponseHeader,
        max_event: usize,
        upstream: &str,
        metrics: &Arc<Metrics>,
    ) -> Option<Self> {
        is_event_stream(response).then(|| Follower {
            tracker: LegTracker::new(max_event, 1),
            metrics: Arc::clone(metrics),
            upstream: upstream.to_owned(),
        })
    }

    /// Takes the next bytes of the body.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.tracker.feed(bytes);
    }

    /// The answer has ended. One without any chat chunk may be another API's stream: it is incomplete only if it broke off.
    pub(super) fn end(self, ended: &Ended) {
        let cause = match (ended, self.tracker.completeness()) {
            (_, Completeness::Finished) | (Ended::Orderly, Completeness::Unknown) => return,
            (Ended::ClientGone, _) => return self.metrics.client_left(),
            (Ended::Orderly, Completeness::Incomplete) => Cause::CleanEnd,
            (Ended::Broken(Cut::Reset), _) => Cause::Reset,
            (Ended::Broken(Cut::Eof), _) => Cause::Eof,
            (Ended::Broken(cut), _) => Cause::Broken(cut.to_string()),
        };
        self.metrics.stream_incomplete(&self.upstream, cause.code());
    }
}

enum Woken {
    Piece(Bytes),
    End(Ended),
}

/// Passes status, headers (less hop-by-hop ones) and body on, unchanged.
///
/// # Errors
/// The client went away, which closes the leg; or the engine broke off, and then the client's connection is to be broken
/// off, too: its response has had no orderly end.
pub(super) async fn pass(cors: &Cors, session: &mut ServerSession, mut leg: Leg, client: Version) -> Result<()> {
    let ended = match body(cors, session, &mut leg, client).await {
        Ok(ended) => ended,
        Err(error) => {
            debug!("the client did not take its answer: {error}");
            Ended::ClientGone
        }
    };
    match ended {
        Ended::Orderly => {
            leg.finish().await;
            Ok(())
        }
        Ended::Broken(cut) => {
            debug!("{} broke off an answer: {cut}", leg.endpoint());
            session.shutdown().await;
            Err(Error::explain(ErrorType::ReadError, cut.to_string()).into_up())
        }
        Ended::ClientGone => Err(client_gone()),
    }
}

/// # Errors
/// The client does not take what it is sent.
async fn body(cors: &Cors, session: &mut ServerSession, leg: &mut Leg, client: Version) -> Result<Ended> {
    let header = headers::for_client(leg.response(), client);
    reply::header(cors, session, header).await?;
    loop {
        let woken = tokio::select! {
            biased;
            read = leg.read() => match read {
                Ok(Some(bytes)) => Woken::Piece(Bytes::copy_from_slice(bytes)),
                Ok(None) => Woken::End(Ended::Orderly),
                Err(cut) => Woken::End(Ended::Broken(cut)),
            },
            _ = session.read_body_or_idle(true) => Woken::End(Ended::ClientGone),
        };
        match woken {
            Woken::Piece(bytes) => session.write_response_body(bytes, false).await?,
            Woken::End(ended) => {
                if let Ended::Orderly = ended {
                    session.write_response_body(Bytes::new(), true).await?;
                }
                return Ok(ended);
            }
        }
    }
}

/// The error with which a request ends whose client is not there any more.
pub(super) fn client_gone() -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "the client went away").into_down()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: &[u8] =
        b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n";
    const FINISH: &[u8] =
        b"data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";

    fn response(kind: &str) -> ResponseHeader {
        let mut response = ResponseHeader::build(200, None).unwrap();
        response.insert_header("Content-Type", kind).unwrap();
        response
    }

    /// What was counted of an answer of `pieces` that ended so.
    fn counted(pieces: &[&[u8]], ended: Ended) -> Vec<String> {
        let metrics = Arc::new(Metrics::new());
        let follower = Follower::of(&response("text/event-stream"), 1 << 20, "qwen", &metrics);
        let mut follower = follower.expect("an event stream is followed");
        pieces.iter().for_each(|piece| follower.feed(piece));
        follower.end(&ended);
        let text = metrics.gather();
        let counts = text.lines().filter(|line| line.contains("streams_incomplete") || line.contains("clients_left"));
        let counts = counts.filter(|line| !line.starts_with('#') && !line.ends_with(" 0"));
        counts.map(|line| line.trim_start_matches("baton_").to_owned()).collect()
    }

    #[test]
    fn a_whole_answer_is_counted_nowhere_however_its_connection_ends() {
        for ended in [Ended::Orderly, Ended::Broken(Cut::Reset), Ended::ClientGone] {
            assert!(counted(&[OPEN, FINISH], ended).is_empty());
        }
    }

    #[test]
    fn an_answer_without_its_end_is_incomplete_by_how_its_body_ended() {
        let other = || Ended::Broken(Cut::Other("GOAWAY".to_owned()));
        for (ended, reason) in [
            (Ended::Orderly, "clean_end"),
            (Ended::Broken(Cut::Reset), "reset"),
            (Ended::Broken(Cut::Eof), "eof"),
            (other(), "broken"),
        ] {
            let expected = format!("streams_incomplete_total{{reason=\"{reason}\",upstream=\"qwen\"}} 1");
            assert_eq!(counted(&[OPEN], ended), [expected]);
        }
    }

    #[test]
    fn a_client_that_leaves_before_the_end_is_no_engine_s_failure() {
        assert_eq!(counted(&[OPEN], Ended::ClientGone), ["clients_left_total 1"]);
        assert_eq!(counted(&[], Ended::ClientGone), ["clients_left_total 1"]);
    }

    #[test]
    fn another_api_s_stream_is_incomplete_only_if_it_broke_off() {
        let other: &[u8] = b"data: hello\n\n";
        assert!(counted(&[other], Ended::Orderly).is_empty());
        assert_eq!(
            counted(&[other], Ended::Broken(Cut::Eof)),
            ["streams_incomplete_total{reason=\"eof\",upstream=\"qwen\"} 1"]
        );
    }

    #[test]
    fn what_is_no_event_stream_is_not_followed() {
        let metrics = Arc::new(Metrics::new());
        assert!(Follower::of(&response("application/json"), 1 << 20, "qwen", &metrics).is_none());
    }
}

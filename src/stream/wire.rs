//! Journal entries as a client sees them: events of `text/event-stream`.

use std::io::Write as _;

use serde_json::json;
use tokio::sync::watch;

use super::kept::{Kept, Phase};
use crate::journal::{Entry, ReadError};
use crate::proto::record::{MirroredEnd, Record, Seal, Seq};
use crate::proto::sse;

/// What a client that can come back is told of how long to wait first, in milliseconds. It stands before the first event's id: on a
/// line of its own, with a blank line behind it, official clients take it for an event and fail (openai-python 1.40 to 3.57).
const RETRY: &[u8] = b"retry: 2000\n";

/// How events are written for a client.
#[derive(Debug, Clone, Copy)]
pub(super) enum Dress<'a> {
    /// As the engine wrote them.
    Plain,
    /// With an id each, for a client that may come back to this stream.
    Numbered(&'a Kept),
}

impl Dress<'_> {
    /// A comment that keeps a connection's idle timers quiet. With its blank line it is harmless to every client library as long as no event
    /// carries an id; once one has, several take the blank line for the end of an event without data (openai-python and what is
    /// built on it, httpx-sse), so the line stands alone then.
    pub(super) fn heartbeat(self) -> &'static [u8] {
        match self {
            Dress::Plain => b": ping\n\n",
            Dress::Numbered(_) => b": ping\n",
        }
    }

    /// What the client is told of the stream's engine, in comments.
    pub(super) fn phase(self) -> Option<watch::Receiver<Phase>> {
        match self {
            Dress::Plain => None,
            Dress::Numbered(kept) => {
                let mut phase = kept.phase().subscribe();
                // Who comes in the middle of it is told, too.
                if *phase.borrow() == Phase::Recovering {
                    phase.mark_changed();
                }
                Some(phase)
            }
        }
    }

    /// Ready when the client is taken for gone because it does not acknowledge any more.
    pub(super) async fn fallen_silent(self) {
        match self {
            Dress::Plain => std::future::pending().await,
            Dress::Numbered(kept) => kept.fallen_silent().await,
        }
    }

    /// The lines before an event's data.
    fn number(self, seq: Seq, out: &mut Vec<u8>) {
        if let Dress::Numbered(kept) = self {
            if seq == 0 {
                out.extend_from_slice(RETRY);
            }
            // Writing to memory does not fail.
            let _ = writeln!(out, "id: {}.{seq}", kept.id());
        }
    }
}

/// Tells of an engine that was lost. As lonely a line as a numbered stream's heartbeat, for the same reason.
pub(super) fn comment(phase: Phase) -> &'static [u8] {
    match phase {
        Phase::Recovering => b": baton recovering\n",
        // No stream comes to be merely going again.
        Phase::Going | Phase::Continued => b": baton continued\n",
    }
}

/// How the response ends after the entry that ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// As HTTP says a body ends.
    Orderly,
    /// As [`End::Orderly`], but this reader did not get the rest of the stream.
    Lost,
    /// The connection breaks inside the body.
    Torn,
}

/// Appends the entry with this number as the client sees it. A seal says how the response ends.
pub(super) fn write_entry(seq: Seq, entry: &Entry<'_>, dress: Dress<'_>, out: &mut Vec<u8>) -> Option<End> {
    let start = out.len();
    match entry {
        Entry::Record { record: Record::Whole { event, data }, .. } => {
            dress.number(seq, out);
            sse::encode(out, *event, None, data);
            None
        }
        Entry::Record { record, frames } => {
            dress.number(seq, out);
            out.extend_from_slice(b"data: ");
            match record.write_data(frames, out) {
                Ok(()) => out.extend_from_slice(b"\n\n"),
                // The journal checks frames when it takes a record; an event that cannot be rebuilt must not go out in half.
                Err(error) => {
                    log::error!("a record could not be read back: {error}");
                    out.truncate(start);
                }
            }
            None
        }
        Entry::Seal(seal) => Some(write_seal(seq, seal, dress, out)),
    }
}

fn write_seal(seq: Seq, seal: &Seal, dress: Dress<'_>, out: &mut Vec<u8>) -> End {
    match seal {
        Seal::Mirrored(MirroredEnd::Cut) => return End::Torn,
        Seal::Mirrored(MirroredEnd::Clean) => return End::Orderly,
        _ => dress.number(seq, out),
    }
    match seal {
        Seal::Incomplete { message, .. } => error("stream_incomplete", message, out),
        Seal::Abandoned => error("stream_abandoned", ABANDONED, out),
        Seal::Cancelled => error("stream_cancelled", CANCELLED, out),
        Seal::Finished | Seal::Mirrored(_) => sse::encode(out, None, None, b"[DONE]"),
    }
    End::Orderly
}

const ABANDONED: &str = "The answer is incomplete: nobody read it for longer, or for more tokens, than it is kept up, so the engine was told to stop. Send the request again for a whole answer.";
const CANCELLED: &str = "The answer is incomplete: it was cancelled. What was sent so far is valid.";

/// Appends the error event for a reader that cannot get the rest of its stream.
pub(super) fn write_lost(error: &ReadError, out: &mut Vec<u8>) {
    let message = match error {
        ReadError::Trimmed { .. } => {
            "The answer is incomplete: what was not read in time is no longer there. Send the request again for a whole answer.".to_owned()
        }
        other => format!("The answer is incomplete by a fault inside Baton ({other}). Send the request again for a whole answer."),
    };
    self::error("stream_incomplete", &message, out);
}

/// An error in the shape that clients of this API raise: `data:` with an `error` object and no event name.
fn error(code: &str, message: &str, out: &mut Vec<u8>) {
    let error = json!({"error": {"message": message, "type": "server_error", "param": null, "code": code}});
    sse::encode(out, None, None, error.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::record::{Frame, FrameId};

    fn written(entry: &Entry<'_>) -> (String, Option<End>) {
        let mut out = Vec::new();
        let end = write_entry(7, entry, Dress::Plain, &mut out);
        (String::from_utf8(out).unwrap(), end)
    }

    #[test]
    fn a_framed_record_is_written_as_the_event_it_came_from() {
        let frames = [Frame { prefix: b"{\"t\":\"".as_slice().into(), suffix: b"\"}".as_slice().into() }];
        let record = Record::Framed { frame: FrameId(0), text: "河".as_bytes() };
        let (wire, end) = written(&Entry::Record { record, frames: &frames });
        assert_eq!((wire.as_str(), end), ("data: {\"t\":\"河\"}\n\n", None));
    }

    #[test]
    fn only_a_finished_or_mirrored_end_says_done() {
        let check = |seal: Seal, has_done: bool, end: End| {
            let (wire, told) = written(&Entry::Seal(&seal));
            assert_eq!(wire.contains("data: [DONE]\n\n"), has_done, "{seal:?}");
            assert_eq!(told, Some(end), "{seal:?}");
        };
        check(Seal::Finished, true, End::Orderly);
        check(Seal::Mirrored(MirroredEnd::Done), true, End::Orderly);
        check(Seal::Mirrored(MirroredEnd::Clean), false, End::Orderly);
        check(Seal::Mirrored(MirroredEnd::Cut), false, End::Torn);
        check(Seal::Abandoned, false, End::Orderly);
        check(Seal::Cancelled, false, End::Orderly);
        check(Seal::Incomplete { reason: "cut".into(), message: "…".to_owned() }, false, End::Orderly);
    }

    #[test]
    fn an_incomplete_answer_ends_with_an_error_event_that_has_no_name() {
        let seal = Seal::Incomplete { reason: "cut".into(), message: "The \"answer\" is incomplete.".to_owned() };
        let (wire, _) = written(&Entry::Seal(&seal));
        let data = wire.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
        let parsed: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(parsed["error"]["code"], "stream_incomplete");
        assert_eq!(parsed["error"]["message"], "The \"answer\" is incomplete.");
    }

    #[test]
    fn what_was_stopped_does_not_end_as_if_it_were_whole() {
        for (seal, code) in [(Seal::Abandoned, "stream_abandoned"), (Seal::Cancelled, "stream_cancelled")] {
            let (wire, _) = written(&Entry::Seal(&seal));
            let data = wire.strip_prefix("data: ").unwrap();
            let parsed: serde_json::Value = serde_json::from_str(data).unwrap();
            assert_eq!(parsed["error"]["code"], code);
        }
    }

    #[test]
    fn a_client_that_may_come_back_gets_an_id_with_every_event() {
        let kept = crate::stream::kept::tests::kept();
        let stream = kept.id().clone();
        let numbered = |seq, entry: &Entry<'_>| {
            let mut out = Vec::new();
            write_entry(seq, entry, Dress::Numbered(&kept), &mut out);
            String::from_utf8(out).unwrap()
        };
        let whole = Record::Whole { event: None, data: b"{}" };
        let named = Record::Whole { event: Some("x"), data: b"{}" };
        let of = |record| Entry::Record { record, frames: &[] };
        assert_eq!(numbered(0, &of(whole)), format!("retry: 2000\nid: {stream}.0\ndata: {{}}\n\n"));
        assert_eq!(numbered(1, &of(whole)), format!("id: {stream}.1\ndata: {{}}\n\n"));
        assert_eq!(numbered(2, &of(named)), format!("id: {stream}.2\nevent: x\ndata: {{}}\n\n"));
        assert_eq!(numbered(3, &Entry::Seal(&Seal::Finished)), format!("id: {stream}.3\ndata: [DONE]\n\n"));
        assert_eq!(numbered(3, &Entry::Seal(&Seal::Mirrored(MirroredEnd::Clean))), "");
        assert_eq!(
            (Dress::Plain.heartbeat(), Dress::Numbered(&kept).heartbeat()),
            (&b": ping\n\n"[..], &b": ping\n"[..])
        );
    }
}

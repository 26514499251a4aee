//! Journal entries as a client sees them: events of `text/event-stream`.

use serde_json::json;

use crate::journal::{Entry, ReadError};
use crate::proto::record::{MirroredEnd, Record, Seal};
use crate::proto::sse;

/// A comment with its blank line. Harmless to every client library as long as no event of the stream carries an `id:`.
pub(super) const HEARTBEAT: &[u8] = b": ping\n\n";

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

/// Appends an entry as the client sees it. A seal says how the response ends.
pub(super) fn write_entry(entry: &Entry<'_>, out: &mut Vec<u8>) -> Option<End> {
    match entry {
        Entry::Record { record: Record::Whole { event, data }, .. } => {
            sse::encode(out, *event, None, data);
            None
        }
        Entry::Record { record, frames } => {
            let start = out.len();
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
        Entry::Seal(seal) => Some(write_seal(seal, out)),
    }
}

fn write_seal(seal: &Seal, out: &mut Vec<u8>) -> End {
    match seal {
        Seal::Finished | Seal::Mirrored(MirroredEnd::Done) => sse::encode(out, None, None, b"[DONE]"),
        Seal::Incomplete { message, .. } => incomplete(message, out),
        Seal::Mirrored(MirroredEnd::Cut) => return End::Torn,
        Seal::Mirrored(MirroredEnd::Clean) | Seal::Abandoned => {}
    }
    End::Orderly
}

/// Appends the error event for a reader that cannot get the rest of its stream.
pub(super) fn write_lost(error: &ReadError, out: &mut Vec<u8>) {
    let message = match error {
        ReadError::Trimmed { .. } => {
            "The answer is incomplete: it was read too slowly, and what was not read in time is no longer there. Send the request again for a whole answer.".to_owned()
        }
        other => format!("The answer is incomplete by a fault inside Baton ({other}). Send the request again for a whole answer."),
    };
    incomplete(&message, out);
}

/// An error in the shape that clients of this API raise: `data:` with an `error` object and no event name.
fn incomplete(message: &str, out: &mut Vec<u8>) {
    let error =
        json!({"error": {"message": message, "type": "server_error", "param": null, "code": "stream_incomplete"}});
    sse::encode(out, None, None, error.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::record::{Frame, FrameId};

    fn written(entry: &Entry<'_>) -> (String, Option<End>) {
        let mut out = Vec::new();
        let end = write_entry(entry, &mut out);
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
}

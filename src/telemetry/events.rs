//! One line for each thing that happens to a stream, in logfmt, through [`log`] with the target [`TARGET`].
//!
//! ```text
//! event=cut stream=AZx3k9Qe0Bw id=chatcmpl-8f2 upstream=qwen endpoint=http://10.0.0.7:8000 events=412 leg=1 attempt=1 reason=reset
//! ```
//!
//! Invariants: a line holds no text of an answer or a request, no words of an engine (they may quote the answer), and
//! of the stream id only the part that is not secret. Whatever comes from outside is quoted, escaped and cut to
//! [`MAX_VALUE`].

use std::fmt::{self, Write};
use std::time::Duration;

use log::Level;

use super::metrics::Outcome;
use crate::proto::chat::Place;

/// The log target of all stream events.
pub const TARGET: &str = "baton::stream";

/// A value from outside is cut after so many characters.
pub const MAX_VALUE: usize = 64;

/// An endpoint is told in full: it is the configuration's, and its address stands at its end. So long it may be: a scheme, a
/// host name of 253 characters, a port, and an IPv6 address.
const MAX_ENDPOINT: usize = 320;

/// A short stream id has at most so many characters; what is longer might be a whole one, and is cut.
const MAX_SHORT_ID: usize = 12;

/// Something that happened to a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Event<'a> {
    /// An engine has begun to answer its request, and the client has the response's header.
    Start {
        /// The route's pattern.
        route: &'a str,
        /// The model that the request names.
        model: &'a str,
        /// Why it will not be continued whatever happens, if so.
        excluded: Option<&'static str>,
    },
    /// The first data event came.
    FirstEvent {
        /// Since the request.
        after: Duration,
    },
    /// A leg failed.
    Cut {
        /// The leg's number, from 1.
        leg: u32,
        /// The number of its try, from 1.
        attempt: u32,
        /// The cause's code.
        reason: &'static str,
    },
    /// A further leg was started.
    Leg {
        /// The number of the leg that it is to be: from 2, or 1 while nothing of the answer has come.
        leg: u32,
        /// The number of its try, from 1.
        attempt: u32,
        /// The plan's name.
        plan: &'static str,
    },
    /// The first piece of the answer from a further leg was passed on.
    Continued {
        /// The leg's number.
        leg: u32,
        /// The plan's name.
        plan: &'static str,
        /// The pause that the client saw.
        gap: Duration,
    },
    /// The upstream that continues does not take this kind of plan.
    PlanRefused {
        /// The plan.
        plan: &'static str,
    },
    /// The stream was cut and no leg follows.
    Refused {
        /// The code of why.
        reason: &'static str,
    },
    /// The stream was cut or stalled, and only `observe` kept it from being continued.
    Observed {
        /// The cause's code.
        reason: &'static str,
        /// The plan by which it would have gone on.
        plan: &'static str,
    },
    /// An engine sent an event that is not a chat chunk. What it held is not said.
    Malformed {
        /// The leg's number.
        leg: u32,
        /// What is wrong with it, and where in its data.
        place: Place,
    },
    /// The answer was whole and its tail was written by Baton.
    TailRepaired,
    /// Tool calls that had been held back were released whole.
    ToolCallsReleased,
    /// Tool calls that had been held back grew over the limit and are passed on as they come.
    ToolBufferFull,
    /// Baton's own fault, in code that only continuations need. The stream ends as it would have without it.
    Fault {
        /// What the code was to do.
        place: &'static str,
    },
    /// The client left.
    ClientLeft,
    /// The stream ended.
    Seal {
        /// How.
        outcome: Outcome,
        /// The code of the last failure, unless the stream is finished.
        reason: Option<&'static str>,
        /// Legs that wrote into it.
        legs: u32,
        /// Tokens generated, as the engines counted them, or estimated from the text where they did not.
        tokens: u64,
        /// Bytes of the event stream passed on, heartbeats not counted.
        bytes: u64,
        /// Since the request.
        took: Duration,
    },
}

impl Event<'_> {
    /// Warnings are what a person may want to look into: failed engines and answers that were not completed. An error is a
    /// mistake in Baton.
    fn level(&self) -> Level {
        match self {
            Self::Fault { .. } => Level::Error,
            Self::Cut { .. } | Self::Refused { .. } | Self::PlanRefused { .. } => Level::Warn,
            Self::Malformed { .. } | Self::ToolBufferFull => Level::Warn,
            Self::Seal { outcome: Outcome::Incomplete | Outcome::Mirrored, .. } => Level::Warn,
            _ => Level::Info,
        }
    }
}

/// An event with the stream that it happened to. `Display` is the line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line<'a> {
    /// The part of the stream's id that is not secret.
    pub stream: &'a str,
    /// The id that the client sees in the chunks, as soon as it is known.
    pub id: Option<&'a str>,
    /// The upstream of the current leg.
    pub upstream: &'a str,
    /// The endpoint of the current leg, once one has answered.
    pub endpoint: Option<&'a str>,
    /// Data events passed on so far.
    pub events: u64,
    /// What happened.
    pub event: Event<'a>,
}

impl Line<'_> {
    /// Writes the line to the log.
    pub fn emit(&self) {
        log::log!(target: TARGET, self.event.level(), "{self}");
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.event {
            Event::Start { .. } => "start",
            Event::FirstEvent { .. } => "first_event",
            Event::Cut { .. } => "cut",
            Event::Leg { .. } => "leg",
            Event::Continued { .. } => "continued",
            Event::PlanRefused { .. } => "plan_refused",
            Event::Refused { .. } => "refused",
            Event::Observed { .. } => "observed",
            Event::Malformed { .. } => "malformed",
            Event::TailRepaired => "tail_repaired",
            Event::ToolCallsReleased => "tool_calls_released",
            Event::ToolBufferFull => "tool_buffer_full",
            Event::Fault { .. } => "fault",
            Event::ClientLeft => "client_left",
            Event::Seal { .. } => "seal",
        };
        write!(f, "event={word} stream={}", Text(self.stream, MAX_SHORT_ID))?;
        if let Some(id) = self.id {
            write!(f, " id={}", Text(id, MAX_VALUE))?;
        }
        write!(f, " upstream={}", Text(self.upstream, MAX_VALUE))?;
        if let Some(endpoint) = self.endpoint {
            write!(f, " endpoint={}", Text(endpoint, MAX_ENDPOINT))?;
        }
        write!(f, " events={}", self.events)?;
        self.event.fields(f)
    }
}

impl Event<'_> {
    fn fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { route, model, excluded } => {
                write!(f, " route={} model={}", Text(route, MAX_VALUE), Text(model, MAX_VALUE))?;
                excluded.map_or(Ok(()), |reason| write!(f, " excluded={reason}"))
            }
            Self::FirstEvent { after } => write!(f, " after_ms={}", after.as_millis()),
            Self::Cut { leg, attempt, reason } => write!(f, " leg={leg} attempt={attempt} reason={reason}"),
            Self::Leg { leg, attempt, plan } => write!(f, " leg={leg} attempt={attempt} plan={plan}"),
            Self::Continued { leg, plan, gap } => {
                write!(f, " leg={leg} plan={plan} gap_ms={}", gap.as_millis())
            }
            Self::PlanRefused { plan } => write!(f, " plan={plan}"),
            Self::Refused { reason } => write!(f, " reason={reason}"),
            Self::Observed { reason, plan } => write!(f, " reason={reason} plan={plan}"),
            Self::Malformed { leg, place } => write!(f, " leg={leg} why={}", Text(&place.to_string(), MAX_VALUE)),
            Self::TailRepaired | Self::ToolCallsReleased | Self::ToolBufferFull | Self::ClientLeft => Ok(()),
            Self::Fault { place } => write!(f, " place={place}"),
            Self::Seal { outcome, reason, legs, tokens, bytes, took } => {
                write!(f, " outcome={}", outcome.label())?;
                if let Some(reason) = reason {
                    write!(f, " reason={reason}")?;
                }
                write!(f, " legs={legs} tokens={tokens} bytes={bytes} took_ms={}", took.as_millis())
            }
        }
    }
}

/// A logfmt value: at most so many characters, in quotes where it would not be one word.
struct Text<'a>(&'a str, usize);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, cut) = match self.0.char_indices().nth(self.1) {
            Some((end, _)) => (&self.0[..end], true),
            None => (self.0, false),
        };
        let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '=' | '\\');
        if !cut && !value.is_empty() && value.chars().all(plain) {
            return f.write_str(value);
        }
        f.write_char('"')?;
        for c in value.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() || (c.is_whitespace() && c != ' ') => write!(f, "{}", c.escape_unicode())?,
                c => f.write_char(c)?,
            }
        }
        f.write_str(if cut { "…\"" } else { "\"" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<'a>(event: Event<'a>) -> Line<'a> {
        let (stream, id, upstream) = ("AZx3k9Qe0Bw", Some("chatcmpl-8f2"), "qwen");
        Line { stream, id, upstream, endpoint: Some("http://10.0.0.7:8000"), events: 412, event }
    }

    fn not_json() -> Place {
        crate::proto::chat::parse(b"no").map(|_| ()).expect_err("it is not JSON").place()
    }

    #[test]
    fn each_event_is_one_line_of_keys_and_values() {
        let ms = Duration::from_millis;
        let (leg, attempt, plan, reason) = (2, 1, "chat-continue", "stall");
        for (event, fields) in [
            (Event::Start { route: "*", model: "Qwen/Qwen3", excluded: None }, "route=* model=Qwen/Qwen3"),
            (Event::Start { route: "*", model: "", excluded: Some("echo") }, "route=* model=\"\" excluded=echo"),
            (Event::FirstEvent { after: ms(31) }, "after_ms=31"),
            (Event::Cut { leg: 1, attempt, reason }, "leg=1 attempt=1 reason=stall"),
            (Event::Leg { leg, attempt, plan }, "leg=2 attempt=1 plan=chat-continue"),
            (Event::Continued { leg, plan, gap: ms(180) }, "leg=2 plan=chat-continue gap_ms=180"),
            (Event::PlanRefused { plan }, "plan=chat-continue"),
            (Event::Refused { reason: "max_legs" }, "reason=max_legs"),
            (Event::Observed { reason, plan }, "reason=stall plan=chat-continue"),
            (Event::Malformed { leg, place: not_json() }, "leg=2 why=\"not JSON at line 1 column 2\""),
            (Event::Fault { place: "splice" }, "place=splice"),
        ] {
            let text = line(event).to_string();
            let (head, rest) = text.split_once(" upstream=qwen endpoint=http://10.0.0.7:8000 events=412 ").unwrap();
            assert!(head.ends_with(" stream=AZx3k9Qe0Bw id=chatcmpl-8f2"), "{text}");
            assert_eq!(rest, fields);
        }
    }

    #[test]
    fn a_seal_says_how_the_stream_ended_and_what_it_was() {
        let seal = |outcome, reason| Event::Seal {
            outcome,
            reason,
            legs: 2,
            tokens: 790,
            bytes: 120_000,
            took: Duration::from_secs(12),
        };
        assert_eq!(
            line(seal(Outcome::Finished, None)).to_string(),
            "event=seal stream=AZx3k9Qe0Bw id=chatcmpl-8f2 upstream=qwen endpoint=http://10.0.0.7:8000 events=412 \
             outcome=finished legs=2 tokens=790 bytes=120000 took_ms=12000"
        );
        assert!(
            line(seal(Outcome::Incomplete, Some("stall")))
                .to_string()
                .contains("outcome=incomplete reason=stall legs=2")
        );
    }

    #[test]
    fn a_failed_engine_and_an_incomplete_answer_are_warnings() {
        let seal = |outcome| Event::Seal { outcome, reason: None, legs: 1, tokens: 0, bytes: 0, took: Duration::ZERO };
        assert_eq!(Event::Cut { leg: 1, attempt: 1, reason: "reset" }.level(), Level::Warn);
        assert_eq!(seal(Outcome::Incomplete).level(), Level::Warn);
        assert_eq!(seal(Outcome::Finished).level(), Level::Info);
        assert_eq!(Event::ClientLeft.level(), Level::Info);
        assert_eq!(Event::Fault { place: "plan" }.level(), Level::Error, "a mistake of Baton's own is an error");
    }

    #[test]
    fn what_is_not_known_yet_is_left_out() {
        let text = Line { id: None, endpoint: None, events: 0, ..line(Event::ClientLeft) }.to_string();
        assert_eq!(text, "event=client_left stream=AZx3k9Qe0Bw upstream=qwen events=0");
    }

    #[test]
    fn an_id_from_an_engine_cannot_forge_fields_or_lines() {
        let id = "x\" event=seal\noutcome=finished\u{2028}\\";
        let text = Line { id: Some(id), ..line(Event::TailRepaired) }.to_string();
        assert_eq!(
            text,
            "event=tail_repaired stream=AZx3k9Qe0Bw id=\"x\\\" event=seal\\u{a}outcome=finished\\u{2028}\\\\\" upstream=qwen \
             endpoint=http://10.0.0.7:8000 events=412"
        );
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let id = "模".repeat(10_000);
        let text = Line { id: Some(&id), ..line(Event::TailRepaired) }.to_string();
        assert!(text.contains(&format!("id=\"{}…\" ", "模".repeat(MAX_VALUE))), "{text}");
    }

    #[test]
    fn a_whole_stream_id_is_never_written() {
        let whole = "AZx3k9Qe0BwSecretSecretSecretSec";
        let text = Line { stream: whole, ..line(Event::TailRepaired) }.to_string();
        assert!(text.contains("stream=\"AZx3k9Qe0BwS…\""), "{text}");
    }
}

//! The ways in which a leg breaks.

use baton::mock::Wire;
use baton::proto::relay::LegEnd;

use super::run::Run;

/// How a leg breaks where it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    Reset,
    Eof,
    Broken,
    CleanEnd,
    ErrorEvent,
    FlatErrorEvent,
    Abort,
    Done,
    Stall,
    TooLong,
    /// An event that is no chunk; then the connection is reset.
    Garbage,
}

pub const BREAKS: [Break; 11] = [
    Break::Reset,
    Break::Eof,
    Break::Broken,
    Break::CleanEnd,
    Break::ErrorEvent,
    Break::FlatErrorEvent,
    Break::Abort,
    Break::Done,
    Break::Stall,
    Break::TooLong,
    Break::Garbage,
];

/// The longest event that streams here take.
pub const MAX_EVENT: usize = 4_000;

/// Longer than that, also where an event may be longer because it lists a prompt's ids.
const TOO_LONG: usize = 2_000_000;

pub const GARBAGE: &str = "\u{fffd}{not json";

impl Break {
    /// The data of the event that the engine breaks with, if it breaks with one.
    pub fn event(self, wire: Wire) -> Option<String> {
        let delta = if wire == Wire::Sglang { r#"{"reasoning_content":null}"# } else { "{}" };
        match self {
            Break::ErrorEvent if wire == Wire::Sglang => Some(
                r#"{"error":{"object":"error","message":"dead","type":"INTERNAL_SERVER_ERROR","param":null,"code":500}}"#
                    .to_owned(),
            ),
            Break::ErrorEvent => Some(
                r#"{"error":{"message":"dead","type":"InternalServerError","param":null,"code":500}}"#.to_owned(),
            ),
            Break::FlatErrorEvent => Some(
                r#"{"object":"error","message":"full","type":"SERVICE_UNAVAILABLE","param":null,"code":503}"#.to_owned(),
            ),
            Break::Abort => Some(format!(
                r#"{{"id":"x","object":"chat.completion.chunk","created":1,"model":"mock","choices":[{{"index":0,"delta":{delta},"finish_reason":"abort"}}]}}"#
            )),
            Break::Done => Some("[DONE]".to_owned()),
            Break::Garbage => Some(GARBAGE.to_owned()),
            _ => None,
        }
    }

    /// Breaks the open leg, and goes on as that engine would until the relay has turned to another leg or has sealed.
    pub fn off(self, run: &mut Run, wire: Wire) {
        if let Some(event) = self.event(wire) {
            run.feed_data(&event);
        }
        match self {
            Break::Reset | Break::Garbage => run.end(LegEnd::Reset),
            Break::Eof => run.end(LegEnd::Eof),
            Break::Broken => run.end(LegEnd::Broken("words".to_owned())),
            Break::CleanEnd => run.end(LegEnd::Clean),
            // Engines end their body in good order after these, with `[DONE]` (vLLM 0.32, SGLang 0.5.23).
            Break::ErrorEvent | Break::FlatErrorEvent | Break::Abort => {
                run.feed_data("[DONE]");
                run.end(LegEnd::Clean);
            }
            Break::Done => run.end(LegEnd::Clean),
            Break::TooLong => run.feed(&vec![b'x'; TOO_LONG]),
            Break::Stall => run.stall(),
        }
    }
}

//! Whether what the client got is the uncut answer: event by event, byte for byte, with these exceptions and no others.
//!
//! | where | what may differ |
//! |---|---|
//! | nothing had been delivered | all of it is engine B's answer, which is then compared as strictly |
//! | `system_fingerprint`, which vLLM sends with its last chunk | it is that of the engine that came to it; where the client asked for no usage, a continuation has it in the usage chunk, which is hidden, and the client gets none; so in a usage chunk written here |
//! | usage that no engine counted | the estimate of what was recovered takes the place of the count, in `completion_tokens`, `reasoning_tokens` and `total_tokens`; and `prompt_tokens` is an estimate |
//! | white space that the template trimmed | it was generated twice, so that many tokens are counted once more |
//! | a tool call of a later leg | its `id` |

use baton::mock::Wire;
use baton::proto::chat::{Ratios, estimate};
use serde_json::Value;

use super::breaks::{Break, GARBAGE};
use super::case::{Answered, FINGERPRINTS, Usage};
use super::run::{Run, Said, data_of};

/// Families whose template trims the content's end when it goes through it: all white space, or blanks only.
const TRIMS: [&str; 4] = ["glm", "glm_4_7", "qwen3_6", "qwen3_8"];
const TRIMS_BLANKS: &str = "mistral";

/// Checks that the client got the whole answer although leg 1 was cut after `cut` events.
pub fn assert_whole(stream: &Answered, run: &Run, cut: usize, at: &str) {
    let got = &run.log.events;
    let whole = &stream.whole[..stream.whole.len() - 1]; // `[DONE]` is written from the seal
    if cut == 0 && !run.starts.is_empty() {
        let other = data_of(&run.starts.last().map(|start| stream.answer(start)).unwrap_or_default());
        return assert_eq!(got[..], other[..other.len() - 1], "{at}");
    }
    assert_eq!(got.len(), whole.len(), "{at}: {got:#?}");
    assert_eq!(got[..cut.min(whole.len())], whole[..cut.min(whole.len())], "{at}");
    for (got, want) in got.iter().zip(whole).skip(cut).filter(|(got, want)| got != want) {
        assert_event(stream, run, cut, got, want, at);
    }
}

/// Checks one event that a later leg has brought, or Baton has written.
fn assert_event(stream: &Answered, run: &Run, cut: usize, got: &str, want: &str, at: &str) {
    let usage = stream.case.usage;
    let extra = generated_twice(stream, run, cut);
    let want = if fingerprint_shows(stream, run) {
        want.replace(FINGERPRINTS[0], FINGERPRINTS[1])
    } else {
        want.replace(FINGERPRINTS[0], "")
    };
    let (got_call, want_call) = (call_id(got), call_id(&want));
    let want = match (&got_call, &want_call) {
        (Some(got), Some(want_id)) => want.replace(want_id.as_str(), got),
        _ => want,
    };
    if usage == Usage::AtEnd && want.contains(r#""choices":[]"#) {
        assert_estimate(stream, cut, extra, got, &want, at);
    } else if extra > 0 && want.contains(r#""usage":{"#) {
        assert_eq!(counted_more(&want, extra), read(got), "{at}");
    } else {
        assert_eq!(got, want, "{at}");
    }
}

/// Whether the engine that came to the end could show its fingerprint.
fn fingerprint_shows(stream: &Answered, run: &Run) -> bool {
    match run.last_plan() {
        None => false, // a tail written here
        Some("again") => true,
        Some(_) => stream.case.usage != Usage::None,
    }
}

/// The id of the tool call that begins in this event.
pub fn call_id(data: &str) -> Option<String> {
    let event: Value = serde_json::from_str(data).ok()?;
    let id = event["choices"][0]["delta"]["tool_calls"][0]["id"].as_str()?;
    Some(id.to_owned())
}

fn read(data: &str) -> Value {
    serde_json::from_str(data).expect("an event's data")
}

fn count(usage: &Value, key: &str) -> u64 {
    usage[key].as_u64().unwrap_or_else(|| panic!("no {key} in {usage}"))
}

fn counted_more(data: &str, extra: u64) -> Value {
    let mut event = read(data);
    for key in ["completion_tokens", "total_tokens"] {
        event["usage"][key] = (count(&event["usage"], key) + extra).into();
    }
    event
}

/// Tokens that engine B writes again because its template had trimmed them off the partial. One event is one token.
fn generated_twice(stream: &Answered, run: &Run, cut: usize) -> u64 {
    let said = stream.said(cut);
    if run.last_plan() != Some("chat-continue") || stream.case.first.wire == Wire::Sglang || said.content.is_empty() {
        return 0;
    }
    let kept = match stream.case.family {
        family if TRIMS.contains(&family) => said.content.trim_end(),
        TRIMS_BLANKS => said.content.trim_end_matches(' '),
        _ => &said.content,
    };
    let mut lost = said.content.len() - kept.len();
    let mut tokens = 0;
    for data in stream.whole[..cut].iter().rev() {
        if lost == 0 {
            break;
        }
        let text = Said::by(std::slice::from_ref(data)).content;
        lost = lost.saturating_sub(text.len());
        tokens += u64::from(!text.is_empty());
    }
    tokens
}

/// A usage chunk in which what was recovered is an estimate: the rest of it as the uncut answer's, and the sums right.
fn assert_estimate(stream: &Answered, cut: usize, extra: u64, got: &str, want: &str, at: &str) {
    let (mut got, mut want) = (read(got), read(want));
    let (usage, uncut) = (got["usage"].take(), want["usage"].take());
    assert_eq!(got, want, "{at}");
    let keys = |usage: &Value| usage.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&usage), keys(&uncut), "{at}");
    let said = stream.said(cut);
    let recovered = |text: &str| estimate(text, &Ratios::default());
    let calls = said.calls.len().div_ceil(4) as u64; // JSON, four bytes a token
    let rest = stream.tokens(stream.whole.len()) - stream.tokens(cut);
    let completion = count(&usage, "completion_tokens");
    let all = recovered(&said.reasoning) + recovered(&said.content) + calls + rest + extra;
    assert_eq!(completion, all, "{at}");
    assert_eq!(count(&usage, "total_tokens"), count(&usage, "prompt_tokens") + completion, "{at}");
}

/// Checks a stream whose first leg had come to the finish reason when it broke: what is missing is written here.
pub fn assert_tail(stream: &Answered, run: &Run, cut: usize, end: Break, at: &str) {
    let got = &run.log.events;
    let whole = &stream.whole[..stream.whole.len() - 1];
    let mut want = whole[..cut.min(whole.len())].to_vec();
    if end == Break::Garbage {
        want.push(GARBAGE.to_owned()); // it belongs to nothing, and nothing is lost if the client sees it
    }
    // An engine that comes to its `[DONE]` without usage gives none.
    if cut < whole.len() && end != Break::Done {
        let (usage, before) = got.split_last().expect("usage");
        assert_eq!(before, want, "{at}");
        return assert_event(stream, run, cut, usage, &whole[cut], at);
    }
    assert_eq!(*got, want, "{at}");
}

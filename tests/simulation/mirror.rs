//! `on_incomplete: mirror`: where an answer cannot be continued, the client gets exactly what the engine sent.

use baton::proto::record::{MirroredEnd, Seal};
use baton::proto::relay::{Continuation, OnIncomplete};

use super::breaks::{BREAKS, Break};
use super::case::{Answered, Case, Usage};

/// How the engine's response ends for the client after this break. What is too long to read ends the response.
fn end_of(end: Break) -> MirroredEnd {
    match end {
        Break::Reset | Break::Eof | Break::Broken | Break::TooLong | Break::Garbage | Break::Stall => MirroredEnd::Cut,
        Break::CleanEnd => MirroredEnd::Clean,
        Break::ErrorEvent | Break::FlatErrorEvent | Break::Abort | Break::Done => MirroredEnd::Done,
    }
}

fn check(stream: &Answered, cut: usize, end: Break) {
    let (family, engine) = (stream.case.family, stream.case.engine);
    let at = format!("{family} on {engine}, {end:?} after {cut} events");
    let run = stream.cut(&stream.bytes(cut), end);
    let shown = end.event(stream.case.first.wire).filter(|data| data != "[DONE]");
    let want: Vec<_> = stream.whole[..cut].iter().cloned().chain(shown).collect();
    assert_eq!(run.log.events, want, "{at}");
    assert_eq!(run.starts.len(), 0, "{at}");
    let seal = Some(Seal::Mirrored(end_of(end))).filter(|_| end != Break::Stall);
    assert_eq!(run.log.seal, seal, "{at}");
}

#[test]
fn with_continuation_off_the_client_gets_what_the_engine_sent() {
    for (engine, family) in [("vllm", "qwen3"), ("sglang", "default"), ("generic", "no_thinking")] {
        for continuation in [Continuation::Off, Continuation::Observe] {
            let mut case = Case::new(engine, family, Usage::None).of_length(3, 4);
            (case.policy.continuation, case.policy.on_incomplete) = (continuation, OnIncomplete::Mirror);
            let stream = case.answered();
            for cut in (0..stream.uncut.len()).filter(|cut| !stream.said(*cut).is_finished()) {
                BREAKS.into_iter().for_each(|end| check(&stream, cut, end));
            }
        }
    }
}

#[test]
fn where_nothing_can_go_on_the_client_gets_what_the_engine_sent() {
    // Thinking that the template would close, an engine that ignores the flag, channels: see the table.
    for (engine, family) in [("vllm", "qwen3"), ("vllm", "deepseek_v4"), ("sglang", "gpt_oss"), ("generic", "qwen3_8")]
    {
        let mut case = Case::new(engine, family, Usage::None).of_length(3, 4);
        case.policy.on_incomplete = OnIncomplete::Mirror;
        let stream = case.answered();
        let whole = (0..stream.uncut.len()).filter(|cut| !stream.said(*cut).is_finished());
        let refused = whole.filter(|cut| {
            let said = stream.said(*cut);
            !said.is_nothing() && (family != "qwen3" || said.content.is_empty())
        });
        for cut in refused {
            BREAKS.into_iter().for_each(|end| check(&stream, cut, end));
        }
    }
}

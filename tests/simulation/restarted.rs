//! Engines that ignore `continue_final_message`: one begins the answer anew, another stops at once. Neither says so.

use baton::mock::{Config, Continuation, events};
use baton::proto::record::Seal;
use baton::proto::relay::LegStart;

use super::breaks::Break;
use super::case::{Answered, Case, Usage};
use super::compare::assert_whole;
use super::run::{Reply, Run, Said};
use super::table::{Expect, State, expected};

/// From as many characters on, a beginning can be told from a continuation.
const ENOUGH: usize = 16;

/// Its template shows the model no marks, so that the parser takes all of the rest for thinking (see the table).
const RELABELLED: (&str, &str) = ("vllm", "deepseek_r1");

fn streams() -> Vec<Answered> {
    streams_of(&[
        ("vllm", "default"),
        ("vllm", "qwen3_6"),
        ("vllm", "no_thinking"),
        ("sglang", "qwen3"),
        ("sglang", "qwen3_6"),
        ("sglang", "no_thinking"),
        ("generic", "kimi_k3"),
    ])
}

fn streams_of(pairs: &[(&'static str, &'static str)]) -> Vec<Answered> {
    let mut streams = Vec::new();
    for (engine, family) in pairs.iter().copied() {
        for tokens in [1, 3] {
            let mut case = Case::new(engine, family, Usage::None).of_length(14, 22);
            case.alter(|config| config.tokens_per_event = tokens);
            streams.push(case.answered());
        }
    }
    streams
}

/// The cuts after which the answer is to be continued and has a beginning long enough.
fn cuts(stream: &Answered) -> Vec<usize> {
    let (family, engine) = (stream.case.family, stream.case.engine);
    let continues = |cut: &usize| {
        let said = stream.said(*cut);
        let (state, text) = match said.content.is_empty() {
            true => (State::Thinking, said.reasoning.trim_start()),
            false => (State::Answering, said.content.trim_start()),
        };
        let goes_on = matches!(expected(family, engine, state), Expect::Continues(_));
        goes_on && !said.is_finished() && text.chars().count() >= ENOUGH
    };
    let cuts: Vec<_> = (0..stream.uncut.len()).filter(continues).collect();
    assert!(cuts.len() > 2, "{family} on {engine} has cuts to try");
    cuts
}

/// An answer of an engine that treats the flag so.
fn answer(stream: &Answered, start: &LegStart, continuation: Continuation) -> Reply {
    let config = Config { continuation, ..stream.case.later.clone() };
    let answer = events(&config, start.work.body(), u64::from(start.leg * 10 + start.attempt));
    Reply::Whole(answer.expect("the engine sees nothing wrong").concat())
}

fn cut(stream: &Answered, cut: usize, flags: &[Continuation]) -> (Run, String) {
    let mut run = stream.open();
    run.feed(&stream.bytes(cut));
    Break::Reset.off(&mut run, stream.case.first.wire);
    let mut attempt = 0;
    run.serve(|start| {
        let flag = flags[attempt.min(flags.len() - 1)];
        attempt += 1;
        match flag {
            Continuation::Honoured => stream.reply(start),
            flag => answer(stream, start, flag),
        }
    });
    let (family, engine) = (stream.case.family, stream.case.engine);
    let at =
        format!("{family} on {engine}, {} tokens an event, {flags:?} after {cut}", stream.case.first.tokens_per_event);
    (run, at)
}

/// What the client got is the whole answer; where a template trims, tokens may be grouped otherwise.
fn assert_same(stream: &Answered, run: &Run, after: usize, at: &str) {
    assert_eq!(run.log.seal, Some(Seal::Finished), "{at}");
    if stream.case.first.tokens_per_event == 1 {
        return assert_whole(stream, run, after, at);
    }
    assert_eq!(Said::by(&run.log.events), *stream.said(stream.whole.len()), "{at}");
}

#[test]
fn an_answer_begun_anew_never_reaches_the_client_and_another_engine_goes_on() {
    for stream in streams() {
        for after in cuts(&stream) {
            let (run, at) = cut(&stream, after, &[Continuation::Afresh, Continuation::Honoured]);
            assert!(run.causes.contains(&"restarted"), "{at}: {:?}, {:#?}", run.causes, &run.log.events[after..]);
            assert_same(&stream, &run, after, &at);
        }
    }
}

#[test]
fn thinking_anew_is_no_answer_also_where_the_answer_comes_as_thinking() {
    for stream in streams_of(&[RELABELLED]) {
        for after in cuts(&stream) {
            let (run, at) = cut(&stream, after, &[Continuation::Afresh, Continuation::Honoured]);
            assert!(run.causes.contains(&"restarted"), "{at}: {:?}, {:#?}", run.causes, &run.log.events[after..]);
            assert_same(&stream, &run, after, &at);
            let (run, at) = cut(&stream, after, &[Continuation::Empty, Continuation::Honoured]);
            assert_same(&stream, &run, after, &at);
        }
    }
}

#[test]
fn an_answer_that_every_engine_begins_anew_ends_where_it_was_cut() {
    for stream in streams() {
        for after in cuts(&stream) {
            let (run, at) = cut(&stream, after, &[Continuation::Afresh]);
            assert!(run.is_incomplete(), "{at}: {:?}", run.log.seal);
            assert_eq!((run.why, &run.log.events[..]), (Some("attempts"), &stream.whole[..after]), "{at}");
        }
    }
}

#[test]
fn an_engine_that_stops_at_once_is_not_believed_alone() {
    for stream in streams() {
        for after in cuts(&stream) {
            let (run, at) = cut(&stream, after, &[Continuation::Empty, Continuation::Honoured]);
            assert!(run.causes.contains(&"empty_stop"), "{at}: {:?}", run.causes);
            assert_same(&stream, &run, after, &at);
        }
    }
}

#[test]
fn an_engine_that_stops_at_once_and_one_that_begins_anew_do_no_harm_together() {
    for stream in streams() {
        for after in cuts(&stream) {
            for flags in [[Continuation::Empty, Continuation::Afresh], [Continuation::Afresh, Continuation::Empty]] {
                let (run, at) = cut(&stream, after, &[flags[0], flags[1], Continuation::Honoured]);
                assert_same(&stream, &run, after, &at);
            }
        }
    }
}

//! Engines that die one after the other.

use baton::proto::chat::{self, Parsed};
use baton::proto::record::Seal;

use super::breaks::{BREAKS, Break};
use super::case::{Answered, Case, Usage};
use super::run::{Reply, Run, Said};

/// SplitMix64: the same positions in every run.
struct Choose(u64);

impl Choose {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % limit as u64).expect("less than the limit")
    }
}

/// One id, one `created`, one role, and one finish if it is whole.
pub fn assert_reads_as_one(events: &[String], whole: bool, at: &str) {
    let (mut ids, mut roles, mut finishes) = (Vec::new(), 0, 0);
    for data in events {
        let Ok(Parsed::Chunk(chunk)) = chat::parse(data.as_bytes()) else { continue };
        ids.push((chunk.id.to_string(), chunk.created));
        roles += chunk.choices.iter().filter(|choice| choice.role.is_some()).count();
        finishes += chunk.choices.iter().filter(|choice| choice.finish_reason.is_some()).count();
    }
    ids.dedup();
    assert!(ids.len() <= 1 && roles <= 1 && finishes == usize::from(whole), "{at}: {events:#?}");
}

/// Where events end, the beginning being one of these places.
fn ends_of(bytes: &[u8]) -> Vec<usize> {
    let ends = bytes.windows(2).enumerate().filter(|(_, window)| *window == b"\n\n").map(|(at, _)| at + 2);
    std::iter::once(0).chain(ends).collect()
}

/// Leg 1 is cut before event `cut`; each later one by chance, at a place by chance. Says whether it came to an end, and by
/// how many legs.
fn relay_race(stream: &Answered, cut: usize, seed: u64) -> (Option<Seal>, u32) {
    let mut choose = Choose(seed);
    let wire = stream.case.first.wire;
    let mut last = BREAKS[choose.below(BREAKS.len())];
    let mut run = stream.open();
    run.feed(&stream.bytes(cut));
    last.off(&mut run, wire);
    run.serve(|start| {
        let answer = stream.answer(start);
        match choose.below(8) {
            0 => Reply::Status(503),
            1..=5 => {
                last = BREAKS[choose.below(BREAKS.len())];
                // An engine that still speaks has finished its sentence; a connection breaks anywhere.
                let length = match last.event(wire) {
                    Some(_) => ends_of(&answer)[choose.below(ends_of(&answer).len())],
                    None => choose.below(answer.len()),
                };
                Reply::Cut(answer[..length].to_vec(), last, wire)
            }
            _ => Reply::Whole(answer),
        }
    });
    let (family, engine) = (stream.case.family, stream.case.engine);
    let max = stream.case.policy.max_legs;
    let at = format!("{family} on {engine}, at most {max} legs, cut after {cut}, seed {seed}");
    check_end(stream, &run, last, &at);
    (run.log.seal.clone(), run.relay.legs_written())
}

fn check_end(stream: &Answered, run: &Run, last: Break, at: &str) {
    let (got, whole) = (Said::by(&run.log.events), stream.said(stream.whole.len()));
    assert!(run.relay.legs_written() <= stream.case.policy.max_legs, "{at}: {} legs", run.relay.legs_written());
    match &run.log.seal {
        Some(Seal::Finished) => assert_eq!(got, *whole, "{at}"),
        Some(Seal::Incomplete { .. }) => {
            assert!(got.is_beginning_of(whole) && !got.is_finished(), "{at}: {got:?} of {whole:?}");
            match run.why {
                Some("max_legs") => assert_eq!(run.relay.legs_written(), stream.case.policy.max_legs, "{at}"),
                Some("not_understood") => assert_eq!(last, Break::Garbage, "{at}"),
                why => assert_eq!(why, Some("attempts"), "{at}"),
            }
        }
        seal => {
            assert!(seal.is_none() && last == Break::Stall, "{at}: {seal:?}");
            assert!(got.is_beginning_of(whole), "{at}");
        }
    }
    assert_reads_as_one(&run.log.events, run.log.seal == Some(Seal::Finished), at);
}

#[test]
fn engines_may_die_one_after_the_other_and_the_answer_is_whole_or_a_true_beginning() {
    for (engine, family) in [("vllm", "default"), ("sglang", "qwen3_6"), ("generic", "kimi_k3"), ("vllm", "minimax")] {
        for max_legs in 1..=4 {
            let mut case = Case::new(engine, family, Usage::None);
            case.policy.max_legs = max_legs;
            let stream = case.answered();
            let (mut by_all, mut incomplete) = (0, 0);
            for cut in 0..stream.uncut.len() {
                for seed in 0..8 {
                    let (seal, legs) = relay_race(&stream, cut, seed * 1_000 + cut as u64);
                    by_all += u32::from(seal == Some(Seal::Finished) && legs == max_legs);
                    incomplete += u32::from(matches!(seal, Some(Seal::Incomplete { .. })));
                }
            }
            assert!(by_all > 0 && incomplete > 0, "{family} on {engine}: both ends are seen with {max_legs} legs");
        }
    }
}

#[test]
fn as_many_legs_are_run_as_are_allowed_and_needed() {
    for max_legs in 1..=4 {
        for each in 1..16 {
            let mut case = Case::new("vllm", "default", Usage::None);
            case.policy.max_legs = max_legs;
            let stream = case.answered();
            // Every leg brings its role and `each` events of the answer, then its connection is reset.
            let events = |bytes: &[u8]| -> Vec<u8> {
                bytes.split_inclusive(|byte| *byte == b'\n').take(2 * (1 + each)).flatten().copied().collect()
            };
            let mut run = stream.open();
            run.feed(&events(&stream.uncut.concat()));
            Break::Reset.off(&mut run, stream.case.first.wire);
            run.serve(|start| Reply::Cut(events(&stream.answer(start)), Break::Reset, stream.case.first.wire));

            let tokens = stream.case.first.reasoning + stream.case.first.content;
            let (mut left, mut whole) = (tokens, false);
            for _ in 0..max_legs {
                whole |= left < each;
                left = left.saturating_sub(each);
            }
            let at = format!("{each} events a leg, at most {max_legs} legs");
            assert_eq!(run.log.seal == Some(Seal::Finished), whole, "{at}: {:?}", run.log.seal);
            let brought = stream.whole[1..].iter().take(tokens - left);
            let want = Said::by(&brought.cloned().collect::<Vec<_>>());
            let got = Said::by(&run.log.events);
            assert_eq!((got.reasoning, got.content), (want.reasoning, want.content), "{at}");
        }
    }
}

//! Engine after engine is killed.

use baton::proto::chat::Api;
use baton::proto::record::Seal;

use super::super::breaks::{BREAKS, Break};
use super::super::case::{Case, Usage};
use super::super::legs::assert_reads_as_one;
use super::super::run::{Reply, Said};
use super::{Listed, completions, stopping};

/// The bytes of a leg up to where so many events have shown the client something.
fn first_events(leg: &[u8], count: usize) -> Vec<u8> {
    let text = std::str::from_utf8(leg).expect("text");
    let (mut shown, mut length) = (0, 0);
    for event in text.split_inclusive("\n\n") {
        let said = Said::by(&[event.trim_start_matches("data: ").trim_end().to_owned()]);
        shown += usize::from(!said.is_nothing());
        if shown > count {
            break;
        }
        length += event.len();
    }
    leg[..length].to_vec()
}

/// Every leg is killed after `each` events with text: the answer is the uncut one if eight legs come to its end, else a true beginning.
fn killed_after(listed: &Listed, each: usize, how: Break) -> bool {
    let wire = listed.case.first.wire;
    let mut run = listed.open();
    let first = first_events(&listed.uncut.concat(), each);
    let cut = listed
        .uncut
        .iter()
        .scan(0, |end, event| {
            *end += event.len();
            Some(*end)
        })
        .take_while(|end| *end <= first.len())
        .count();
    run.feed(&first);
    how.off(&mut run, wire);
    run.serve(|start| Reply::Cut(first_events(&listed.answer(start), each), how, wire));
    let at = format!("{how:?} after every {each} events: {}", listed.at());
    let legs = run.relay.legs_written();
    assert!(run.starts.iter().all(|start| start.plan == "token-exact"), "{at}");
    if run.log.seal == Some(Seal::Finished) {
        listed.assert_whole(&run, cut, &at);
        return legs > 2;
    }
    assert!(run.is_incomplete(), "{at}: {:?}", run.log.seal);
    match run.why {
        Some("max_legs") => assert_eq!(legs, listed.case.policy.max_legs, "{at}"),
        // So few events bring no more than what was withheld before and comes once more.
        why => assert_eq!((why, each < 6), (Some("attempts"), true), "{at}"),
    }
    assert_eq!(run.log.events, listed.plain[..run.log.events.len()], "{at}");
    assert_reads_as_one(&run.log.events, false, &at);
    false
}

fn eight(mut case: Case) -> Case {
    case.policy.max_legs = 8;
    case
}

#[test]
fn eight_engines_may_die_one_after_the_other() {
    for usage in [Usage::None, Usage::AtEnd, Usage::Continuous] {
        let case = eight(Case::new("vllm", "qwen3", usage).of_length(12, 26));
        for (case, api) in [
            (case, Api::Chat),
            (eight(stopping(Case::new("vllm", "qwen3", usage).of_length(12, 26))), Api::Chat),
            (eight(completions::case(usage)), Api::Completions),
        ] {
            let listed = Listed::of(case, api);
            let mut by_many = 0;
            for (each, how) in (1..20).zip(BREAKS.into_iter().cycle()) {
                // What breaks in words is known to be over only from the words.
                by_many += u32::from(killed_after(&listed, each, how));
            }
            assert!(by_many > 3, "answers of many legs are seen: {}", listed.at());
        }
    }
}

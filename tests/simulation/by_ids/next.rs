//! Where ids do not do, the next kind of plan takes their place, without a try lost, and with its own guarantees. The client sees no
//! ids there either.

use baton::mock::{Config, Echo};
use baton::proto::chat::{Api, Ratios, estimate};
use baton::proto::record::Seal;
use baton::proto::relay::Refusal;
use baton::proto::resume::{PlanKind, Version};
use serde_json::{Value, json};

use super::super::breaks::Break;
use super::super::case::{Case, Usage};
use super::super::legs::assert_reads_as_one;
use super::super::run::{Run, Said};
use super::{Listed, completions};

/// A family that goes on from text in thinking too.
fn case(usage: Usage) -> Case {
    Case::new("vllm", "default", usage)
}

/// Checks every cut that is to be continued: the plans tried one after the other, and the answer. `barred`: whether it is remembered
/// that ids do not do here.
fn check(listed: &Listed, open: impl Fn() -> Run, plans: &[&str], barred: bool) {
    for cut in 0..listed.uncut.len() {
        let said = listed.said(cut);
        let blank = said.reasoning.trim_start().is_empty() && said.content.trim_start().is_empty();
        // Where all is said, an engine that only stops is doubted, and a second one asked.
        let over = (&said.reasoning, &said.content) == (&listed.all().reasoning, &listed.all().content);
        if over || blank {
            continue;
        }
        let at = format!("after {cut} events: {}", listed.case.body);
        let mut run = open();
        run.feed(&listed.bytes(cut));
        Break::Reset.off(&mut run, listed.case.first.wire);
        run.serve(|start| listed.reply(start));
        let tried: Vec<_> = run.starts.iter().map(|start| (start.leg, start.attempt, start.plan)).collect();
        let wanted: Vec<_> = plans.iter().map(|plan| (2, 1, *plan)).collect();
        assert_eq!(tried, wanted, "{at}: no try is lost by it");
        let kinds = if barred { vec![PlanKind::TokenExact] } else { Vec::new() };
        assert_eq!(run.barred, kinds, "{at}");
        assert_same_text(listed, &run, cut, &at);
    }
}

/// What a continuation from text guarantees: the text, what was delivered byte for byte, one answer, and no ids.
fn assert_same_text(listed: &Listed, run: &Run, cut: usize, at: &str) {
    assert_eq!(run.log.seal, Some(Seal::Finished), "{at}");
    let had = listed.shown(cut);
    assert_eq!(run.log.events[..had], listed.plain[..had], "{at}");
    assert_eq!(Said::by(&run.log.events), *listed.all(), "{at}");
    assert!(run.log.events.iter().all(|data| !data.contains("ids\":[")), "{at}: {:#?}", run.log.events);
    assert_reads_as_one(&run.log.events, true, at);
    let usage: Vec<Value> = run
        .log
        .events
        .iter()
        .filter_map(|data| {
            let event: Value = serde_json::from_str(data).ok()?;
            Some(event["usage"].clone()).filter(|usage| !usage.is_null())
        })
        .collect();
    assert_eq!(usage.len(), usize::from(listed.case.usage == Usage::AtEnd), "{at}");
    for usage in usage {
        let count = |key: &str| usage[key].as_u64().expect("a count");
        assert_eq!(count("total_tokens"), count("prompt_tokens") + count("completion_tokens"), "{at}");
    }
}

#[test]
fn ids_that_an_engine_does_not_repeat_are_not_believed() {
    for echo in [Echo::Missing, Echo::Wrong] {
        for usage in [Usage::None, Usage::AtEnd] {
            let mut case = case(usage);
            case.later.echo = echo;
            let listed = Listed::new(case);
            check(&listed, || listed.open(), &["token-exact", "chat-continue"], true);
        }
    }
}

#[test]
fn an_engine_that_ignores_the_ids_and_answers_anew_is_not_believed() {
    // Its version is not known to Baton.
    let mut case = case(Usage::AtEnd);
    case.later.version = "0.27.1".to_owned();
    // In strict mode it would not take a second first leg's `return_token_ids` for what it is.
    case.later.strict = false;
    let listed = Listed::new(case);
    check(&listed, || listed.open(), &["token-exact", "chat-continue"], true);
}

#[test]
fn an_engine_that_cannot_spell_ids_is_not_asked_to_go_on_from_them() {
    let listed = Listed::new(case(Usage::AtEnd));
    for (status, barred) in [(400, false), (403, false), (404, true), (405, true), (422, false)] {
        let refuse = move || Refusal::Status { status, body: "no".to_owned() };
        let open = || listed.open_spelled_by(Box::new(move |_| Err(refuse())));
        check(&listed, open, &["chat-continue"], barred);
    }
    // An answer that is none, and one of another tokenizer: about this answer only.
    for answer in [&b"no"[..], br#"{"prompt":"something else"}"#, br#"{"tokens":[]}"#] {
        let open = || listed.open_spelled_by(Box::new(move |_| Ok(answer.to_vec())));
        check(&listed, open, &["chat-continue"], false);
    }
}

#[test]
fn an_upstream_that_is_known_to_be_too_old_is_not_asked() {
    let mut case = case(Usage::AtEnd);
    case.policy.resume.abilities.version = Some(Version::parse("0.27.1").expect("a version"));
    let listed = Listed::new(case);
    check(&listed, || listed.open_spelled_by(Box::new(|_| panic!("nothing is asked"))), &["chat-continue"], false);
}

#[test]
fn a_route_that_does_not_allow_it_or_an_upstream_that_has_refused_it() {
    let mut forbidden = case(Usage::None);
    forbidden.policy.resume.plans = [PlanKind::ChatContinue].into_iter().collect();
    let mut barred = case(Usage::None);
    barred.policy.resume.barred.insert(PlanKind::TokenExact);
    for case in [forbidden, barred] {
        let listed = Listed::new(case);
        check(&listed, || listed.open_spelled_by(Box::new(|_| panic!("nothing is asked"))), &["chat-continue"], false);
    }
}

#[test]
fn a_request_with_pictures_has_no_ids_listed_and_goes_on_from_text() {
    let mut case = case(Usage::None);
    case.body["messages"][0]["content"] = json!([
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]);
    let listed = Listed::new(case);
    assert_eq!(listed.told, listed.plain, "leg 1 is the client's own request");
    check(&listed, || listed.open(), &["chat-continue"], false);
}

#[test]
fn a_prompt_with_its_answer_that_is_too_long_goes_on_from_text() {
    let whole = Listed::new(case(Usage::AtEnd));
    let event: Value = serde_json::from_str(&whole.told[0]).expect("a chunk");
    let prompt = event["prompt_token_ids"].as_array().map(Vec::len).expect("ids");
    let mut case = case(Usage::AtEnd);
    case.policy.resume.max_prompt_tokens = prompt + 8;
    let listed = Listed::new(case);
    let mut plans = Vec::new();
    for cut in 2..listed.uncut.len() {
        if listed.said(cut).is_finished() {
            break;
        }
        let at = format!("after {cut} events");
        let run = listed.cut(&listed.bytes(cut), Break::Reset);
        plans.extend(run.last_plan());
        assert_same_text(&listed, &run, cut, &at);
    }
    // One event is one token here.
    let (short, long) = plans.split_at(8);
    assert!(short.iter().all(|plan| *plan == "token-exact" || *plan == "again"), "{plans:?}");
    assert!(long.len() > 3 && long.iter().all(|plan| *plan == "chat-continue"), "{plans:?}");
}

#[test]
fn a_leg_that_fails_after_its_echo_is_tried_once_more_by_ids() {
    let listed = Listed::new(Case::new("vllm", "qwen3", Usage::AtEnd));
    for cut in 2..listed.uncut.len() {
        if listed.said(cut).is_finished() {
            break;
        }
        let at = format!("after {cut} events");
        let mut run = listed.open();
        run.feed(&listed.bytes(cut));
        run.end(baton::proto::relay::LegEnd::Reset);
        let mut tries = 0;
        run.serve(|start| {
            tries += 1;
            let answer = listed.answer(start);
            let role = answer.windows(2).position(|window| window == b"\n\n").expect("an event") + 2;
            match tries {
                1 => super::super::run::Reply::Cut(answer[..role].to_vec(), Break::Reset, listed.case.first.wire),
                2 => super::super::run::Reply::Status(503),
                _ => super::super::run::Reply::Whole(answer),
            }
        });
        let attempts: Vec<_> = run.starts.iter().map(|start| (start.leg, start.attempt)).collect();
        assert_eq!(attempts, [(2, 1), (2, 2), (2, 3)], "{at}");
        listed.assert_whole(&run, cut, &at);
    }
}

#[test]
fn a_completion_goes_on_from_its_text() {
    for usage in [Usage::None, Usage::AtEnd] {
        let mut case = completions::case(usage);
        case.policy.resume.plans = [PlanKind::ChatContinue].into_iter().collect();
        let listed = Listed::of(case, Api::Completions);
        check(&listed, || listed.open(), &["chat-continue"], false);
    }
}

#[test]
fn a_client_that_sees_ids_itself_gets_every_one_once() {
    let mut case = Case::new("vllm", "qwen3", Usage::AtEnd);
    case.body["return_token_ids"] = json!(true);
    let listed = Listed::new(case);
    assert!(listed.plain.iter().any(|data| data.contains("\"token_ids\":[")));
    let ids = |events: &[String]| -> Vec<u64> {
        let read = |data: &String| serde_json::from_str::<Value>(data).unwrap_or_default();
        let list = |event: Value| event["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default();
        events.iter().map(read).flat_map(list).filter_map(|id| id.as_u64()).collect()
    };
    let prompts = |events: &[String]| events.iter().filter(|data| data.contains("\"prompt_token_ids\":[")).count();
    let (mut exact, mut other) = (0, 0);
    for cut in 2..listed.uncut.len() {
        let said = Said::by(&listed.told[..cut]);
        if said.is_finished() || said.is_nothing() {
            continue;
        }
        let at = format!("after {cut} events");
        let run = listed.cut(&listed.bytes(cut), Break::Reset);
        // From ids whose text has not come nothing goes on by ids: the client would get them twice.
        match run.last_plan() {
            Some("token-exact") => {
                exact += 1;
                assert_eq!(run.log.seal, Some(Seal::Finished), "{at}");
                assert_eq!(ids(&run.log.events), ids(&listed.told), "{at}");
                assert_eq!(Said::by(&run.log.events), Said::by(&listed.told), "{at}");
            }
            plan => {
                other += 1;
                assert_eq!((plan, run.is_incomplete()), (None, true), "{at}: qwen3 closes its thinking");
            }
        }
        assert_eq!(prompts(&run.log.events), 1, "{at}");
    }
    assert!(exact > 8 && other > 0, "{exact} by ids, {other} not");
}

#[test]
fn the_estimate_is_not_what_the_ids_say() {
    // What is compared above as equal is not equal by chance.
    let listed = Listed::new(Case::new("vllm", "qwen3", Usage::AtEnd).of_length(10, 24));
    let all = listed.all();
    let estimated = estimate(&all.reasoning, &Ratios::default()) + estimate(&all.content, &Ratios::default());
    let usage: Value = serde_json::from_str(&listed.plain[listed.plain.len() - 2]).expect("usage");
    assert_ne!(usage["usage"]["completion_tokens"], estimated);
    assert_ne!(Config::default().name, listed.case.later.name);
}

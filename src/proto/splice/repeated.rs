//! Legs that say something of the partial once more, as whole events.

use proptest::prelude::*;

use super::super::chat::{OriginalPrompt, Partial};
use super::*;

const NO_USAGE: ClientUsage = ClientUsage { at_end: false, continuous: false };

fn splice(seam: Seam) -> Splice {
    let head = Head { id: "one".to_owned(), created: Some(1), model: "m".to_owned(), system_fingerprint: None };
    let recovered = Recovered { completion_tokens: 10, reasoning_tokens: 0, prompt: OriginalPrompt::Known(30) };
    Splice::new(head, Some(ReasoningField::Reasoning), seam, NO_USAGE, recovered)
}

fn event(delta: &str, finish: &str) -> String {
    format!(
        r#"{{"id":"one","created":1,"model":"m","choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}"#
    )
}

fn text(name: &str, text: &str) -> String {
    event(&serde_json::json!({ name: text }).to_string(), "null")
}

fn rewritten(splice: &mut Splice, data: &str) -> Option<String> {
    splice.rewrite(data.as_bytes()).expect("the event is read").map(|data| String::from_utf8(data).expect("text"))
}

/// The thinking and the answer of these events.
fn folded(events: &[String]) -> (String, String) {
    let mut partial = Partial::new(1);
    for event in events {
        let Ok(Parsed::Chunk(chunk)) = parse(event.as_bytes()) else { panic!("{event}") };
        partial.fold(&chunk);
    }
    partial.first().map(|choice| (choice.reasoning.clone(), choice.content.clone())).unwrap_or_default()
}

fn after(text: &str) -> Seam {
    Seam { overlap: Some(Overlap::of_end(text, 8)), ..Seam::default() }
}

#[test]
fn what_is_repeated_is_dropped_whatever_events_it_comes_in() {
    let mut splice = splice(after("The Nile is long and wide"));
    assert_eq!(rewritten(&mut splice, &event(r#"{"role":"assistant","content":""}"#, "null")), None);
    assert_eq!(rewritten(&mut splice, &text("content", "long and")), None);
    assert!(splice.holds() && !splice.is_settled());
    assert_eq!(rewritten(&mut splice, &text("content", " wide, and")), Some(text("content", ", and")));
    assert!(!splice.holds() && splice.is_settled());
    assert_eq!(rewritten(&mut splice, &text("content", " wide")), Some(text("content", " wide")));
}

#[test]
fn what_was_held_back_and_is_no_repetition_comes_with_what_shows_it() {
    let mut splice = splice(after("The Nile is long and wide"));
    assert_eq!(rewritten(&mut splice, &text("content", "long and")), None);
    assert_eq!(rewritten(&mut splice, &text("content", " deep")), Some(text("content", "long and deep")));
}

#[test]
fn what_was_held_back_comes_with_the_end_or_a_tool_call_at_the_latest() {
    let before = "The Nile is long and wide";
    let call = r#"{"tool_calls":[{"index":0,"id":"c"}]}"#;
    for (delta, finish, shown) in [
        ("{}", r#""stop""#, r#"{"content":"long"}"#),
        (r#"{"content":""}"#, r#""stop""#, r#"{"content":"long"}"#),
        (r#"{"content":" and"}"#, r#""stop""#, r#"{"content":"long and"}"#),
        (r#"{"content":" and wide"}"#, r#""stop""#, r#"{"content":""}"#),
        ("null", r#""stop""#, r#"{"content":"long"}"#),
        (call, "null", r#"{"tool_calls":[{"index":0,"id":"c"}],"content":"long"}"#),
    ] {
        let mut splice = splice(after(before));
        assert_eq!(rewritten(&mut splice, &text("content", "long")), None);
        assert_eq!(rewritten(&mut splice, &event(delta, finish)), Some(event(shown, finish)));
        assert!(!splice.holds());
    }
    // Nothing was held back, and the end stays as it is.
    for delta in ["{}", "null", r#"{"content":""}"#] {
        let end = event(delta, r#""stop""#);
        assert_eq!(rewritten(&mut splice(after(before)), &end).as_deref(), Some(&*end));
    }
}

#[test]
fn a_provider_that_says_the_message_again_and_one_that_does_not_read_the_same() {
    for texts in [&["The Nile", " is", " long"][..], &["The Nile is", " long"], &[" long"], &[" ", "long"]] {
        let overlap = Some(Overlap::of_all("The Nile is"));
        let mut splice = splice(Seam { trimmed: " ".to_owned(), overlap, ..Seam::default() });
        let shown: Vec<_> = texts.iter().filter_map(|piece| rewritten(&mut splice, &text("content", piece))).collect();
        assert_eq!(folded(&shown).1, "long", "{texts:?}");
    }
}

#[test]
fn thinking_on_the_way_of_a_replay_is_dropped() {
    let mut splice = splice(Seam { thinking: LegThinking::Dropped, ..Seam::default() });
    assert_eq!(rewritten(&mut splice, &text("reasoning_content", "Go on, then.")), None);
    let both = r#"{"reasoning":"So.","reasoning_content":"So.","content":"and old"}"#;
    assert_eq!(
        rewritten(&mut splice, &event(both, "null")),
        Some(event(r#"{"reasoning":"","content":"and old"}"#, "null"))
    );
    assert_eq!(rewritten(&mut splice, &text("content", ".")), Some(text("content", ".")));
    let end = event(r#"{"reasoning":"x"}"#, r#""stop""#);
    assert_eq!(rewritten(&mut splice, &end), Some(event(r#"{"reasoning":""}"#, r#""stop""#)));
}

#[test]
fn the_same_thinking_goes_on_where_it_was_cut_and_another_is_dropped() {
    let run = |deltas: &[(&str, &str)]| {
        let mut splice = splice(Seam { thinking: LegThinking::Repeated("Weigh it.".to_owned()), ..Seam::default() });
        let shown: Vec<_> =
            deltas.iter().filter_map(|(name, piece)| rewritten(&mut splice, &text(name, piece))).collect();
        folded(&shown)
    };
    let pair = |thinking: &str, answer: &str| (thinking.to_owned(), answer.to_owned());
    let (r, c) = ("reasoning", "content");
    assert_eq!(run(&[(r, "Weigh"), (r, " it."), (r, " Then"), (r, " so."), (c, "Yes")]), pair(" Then so.", "Yes"));
    assert_eq!(run(&[(r, "Weigh it. Then"), (c, "Yes")]), pair(" Then", "Yes"));
    assert_eq!(run(&[(r, "Weigh this."), (r, " Then"), (c, "Yes")]), pair("", "Yes"));
    assert_eq!(run(&[(r, "Weigh"), (c, "Yes"), (r, " it."), (r, " Then")]), pair("", "Yes"));
    assert_eq!(run(&[(c, "Yes"), (c, ", it is.")]), pair("", "Yes, it is."));
}

#[test]
fn the_first_event_that_is_passed_on_says_that_the_rest_is_not_exact() {
    let seam = Seam { inexact: Some("replay"), thinking: LegThinking::Dropped, ..after("The Nile is long and wide") };
    let mut splice = splice(seam);
    assert_eq!(rewritten(&mut splice, &event(r#"{"role":"assistant","content":""}"#, "null")), None);
    assert_eq!(rewritten(&mut splice, &text("reasoning", "Hm")), None);
    let shown = rewritten(&mut splice, &text("content", ", and")).expect("it is passed on");
    let marked = text("content", ", and").replace(r#"null}]}"#, r#"null}],"baton":{"plan":"replay","exact":false}}"#);
    assert_eq!(shown, marked);
    // It is not like the ones after it.
    assert!(!splice.is_settled());
    assert_eq!(rewritten(&mut splice, &text("content", " old")), Some(text("content", " old")));
    assert!(splice.is_settled());
}

#[test]
fn no_other_leg_says_so() {
    let mut splice = splice(after("The Nile is long and wide"));
    assert!(!rewritten(&mut splice, &text("content", "x")).expect("it is passed on").contains("baton"));
}

proptest! {
    /// Whatever a leg repeats, the text that the client gets is the one that the whole of it would have given.
    #[test]
    fn no_event_loses_or_doubles_a_character(
        before in "[ab \\n]{0,20}",
        from in 0..20_usize,
        rest in "[abc \\n]{0,12}",
        lengths in prop::collection::vec(1..4_usize, 1..5),
    ) {
        let leg = format!("{}{rest}", before.get(from..).unwrap_or_default());
        let mut whole = Overlap::of_end(&before, 4);
        let want = whole.push(&leg).unwrap_or_else(|| whole.finish());
        let seam = Seam { overlap: Some(Overlap::of_end(&before, 4)), ..Seam::default() };
        let mut splice = splice(seam);
        let (mut shown, mut at, mut lengths) = (Vec::new(), 0, lengths.iter().cycle());
        while at < leg.len() {
            let end = (at + lengths.next().copied().unwrap_or(1)).min(leg.len());
            shown.extend(rewritten(&mut splice, &text("content", &leg[at..end])));
            at = end;
        }
        shown.extend(rewritten(&mut splice, &event("{}", r#""stop""#)));
        prop_assert_eq!(folded(&shown).1, want);
    }
}

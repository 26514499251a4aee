//! Where ids end in the delivered text, and how the place is searched.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::search::{Covered, Fit, fit};
use super::*;
use crate::proto::chat::{Ids, TokenIds};
use crate::proto::resume::family::Marks;
use crate::proto::splice::Repeats;

const MARKS: Marks = Marks::THINK_LINES;

fn covers(reasoning: usize, content: usize) -> Fit {
    Fit::Covers(Covered { reasoning, content })
}

#[test]
fn spelled_ids_are_a_beginning_of_the_text_or_more_or_something_else() {
    for (text, reasoning, content, expected) in [
        // In thinking, with the opening mark in the prompt or of the model's own.
        ("Let me", "Let me", "", covers(6, 0)),
        ("<think>\nLet me", "Let me", "", covers(6, 0)),
        ("Let", "Let me", "", covers(3, 0)),
        ("", "Let me", "", covers(0, 0)),
        ("Let me <", "Let me ", "", Fit::Exceeds),
        ("Let me</think>", "Let me", "", Fit::Exceeds),
        ("Let us", "Let me", "", Fit::Differs),
        // Behind it. Parsers may take white space away on either side of the mark.
        ("Let me</think>\n\nThe", "Let me", "\n\nThe", covers(6, 5)),
        ("Let me\n</think>\n\nThe", "Let me", "The", covers(6, 3)),
        ("Let me</think>\n\nThe", "Let me", "\n\nThe answer", covers(6, 5)),
        ("Let me</think>", "Let me", "\n\nThe", covers(6, 0)),
        ("Let me\n", "Let me", "The", covers(6, 0)),
        ("Let me</thi", "Let me", "The", Fit::Differs),
        ("Let me</think>\n\nThe answer", "Let me", "\n\nThe", Fit::Exceeds),
        ("Let me</think>\n\nAn", "Let me", "\n\nThe", Fit::Differs),
        // Without thinking, or with an empty block.
        ("The", "", "The answer", covers(0, 3)),
        ("The<tool_call>\n", "", "The", Fit::Exceeds),
        ("<think>\n\n</think>\n\nThe", "", "\n\nThe", covers(0, 5)),
        ("", "", "", covers(0, 0)),
        // Never inside a character.
        ("The \u{fffd}", "", "The ", Fit::Exceeds),
        ("The \u{fffd}", "", "The \u{fffd}", Fit::Exceeds),
    ] {
        assert_eq!(fit(text, reasoning, content, Some(&MARKS)), expected, "{text:?} of {reasoning:?}, {content:?}");
    }
    assert_eq!(fit("Let me</think>The", "Let me", "The", None), Fit::Differs, "no mark is known");
    assert_eq!(fit("a </think> b", "", "a </think> b", None), covers(0, 12), "a completion's text has its marks");
}

/// Runs a search over tokens whose spellings are given, and says what was found and how many questions it took.
fn searched(tokens: &[&str], at_text: usize, content: &str) -> (Step, usize) {
    let prompt: TokenIds = [7].into_iter().collect();
    let answer: TokenIds = (0..tokens.len() as u32).collect();
    let ids = Ids { prompt: &prompt, answer: &answer, at_text };
    run(Search::new(Some("m"), ids, "", content, None), tokens)
}

fn run(mut search: Search, tokens: &[&str]) -> (Step, usize) {
    for questions in 0.. {
        let Step::Ask(question) = search.step() else { return (search.step(), questions) };
        let body: Value = serde_json::from_slice(&question.body).unwrap();
        let text: String =
            body["tokens"].as_array().unwrap().iter().map(|id| tokens[id.as_u64().unwrap() as usize]).collect();
        search.told(json!({"prompt": text}).to_string().as_bytes());
    }
    unreachable!()
}

fn found(ids: usize, repeats: &str) -> Step {
    let repeats = Repeats { reasoning: String::new(), content: repeats.to_owned() };
    Step::Found(Cut { ids, repeats, mark: None })
}

#[test]
fn one_question_is_enough_where_nothing_was_withheld() {
    assert_eq!(searched(&["a", "b", "c"], 3, "abc"), (found(3, ""), 1));
    assert_eq!(searched(&["a", "b", "c"], 2, "ab"), (found(2, ""), 1), "ids behind the text are not asked about");
    assert_eq!(searched(&["a"], 0, ""), (found(0, ""), 0));
}

#[test]
fn what_may_become_a_stop_string_is_left_out() {
    let stops = |stops: &[&str]| stops.iter().map(|stop| (*stop).to_owned()).collect::<Vec<_>>();
    for (list, text, bytes) in [
        (&["END"][..], "The E", 1),
        (&["END"], "The EN", 2),
        (&["END"], "The end", 0),
        (&["END", "he ENDING"], "The EN", 5),
        (&["ééa"], "é", 2),
        (&["aab"], "aaa", 2),
        (&[""], "a", 0),
        (&[], "a", 0),
    ] {
        assert_eq!(begun(&stops(list), text), bytes, "{list:?} in {text:?}");
    }
    let (tokens, model) = (["The", " E", "N"], Some("m"));
    let prompt: TokenIds = [7].into_iter().collect();
    let answer: TokenIds = (0..3).collect();
    let ids = Ids { prompt: &prompt, answer: &answer, at_text: 3 };
    assert_eq!(run(Search::new(model, ids, "", "The EN", None).leaving_out(2), &tokens).0, found(1, " EN"));
    assert_eq!(run(Search::new(model, ids, "", "The EN", None).leaving_out(1), &tokens).0, found(2, "N"));
    let thought = Repeats { reasoning: " EN".to_owned(), content: String::new() };
    let in_thinking = run(Search::new(model, ids, "The EN", "", None).leaving_out(2), &tokens).0;
    assert_eq!(in_thinking, Step::Found(Cut { ids: 1, repeats: thought, mark: None }));
}

#[test]
fn an_engine_that_spells_another_text_is_not_asked_for_ever() {
    assert_eq!(searched(&["a", "b"], 2, "xy"), (Step::Lost(Refused::IdsDiffer), 1));
    let long = vec!["\u{fffd}"; 1 << 20];
    let (step, questions) = searched(&long, 1 << 20, "x");
    assert!(matches!(step, Step::Found(_) | Step::Lost(_)) && questions <= 24, "{questions} questions");
}

proptest! {
    #[test]
    fn the_longest_beginning_that_is_delivered_is_found_wherever_the_text_ends(
        tokens in proptest::collection::vec("[a-c]{1,4}|é|<tool>", 1..60),
        delivered in 0usize..300,
    ) {
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let whole = tokens.concat();
        let delivered = (0..=delivered.min(whole.len())).rev().find(|at| whole.is_char_boundary(*at)).unwrap();
        let content = &whole[..delivered];
        let (mut kept, mut length) = (0, 0);
        for token in &tokens {
            if length + token.len() > delivered { break; }
            length += token.len();
            kept += 1;
        }
        let (step, questions) = searched(&tokens, tokens.len(), content);
        prop_assert_eq!(step, found(kept, &content[length..]));
        prop_assert!(questions <= 16, "{} questions", questions);
    }
}

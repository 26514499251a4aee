use super::*;

fn row(plan: PlanKind, state: State, verdicts: &[(Verdict, Option<&str>)]) -> Row {
    let mut row = Row::new(plan, state);
    verdicts.iter().for_each(|(verdict, why)| row.add(*verdict, why.map(str::to_owned)));
    row
}

fn certificate() -> Certificate {
    use PlanKind::{ChatContinue, Prefix, TokenExact};
    use Verdict::{Different, Exact, Refused};
    Certificate {
        schema: SCHEMA,
        date: "2026-01-31T12:00:00Z".to_owned(),
        engine: "vllm".to_owned(),
        version: Some("0.32.0".to_owned()),
        scale_out: true,
        model: "tiny".to_owned(),
        template: Some("<|im_start|>assistant\n".to_owned()),
        family: "qwen3".to_owned(),
        thinking_key: Some("enable_thinking".to_owned()),
        forced: false,
        prompts: vec![Tried {
            name: "story".to_owned(),
            text: "Tell me a story.".to_owned(),
            tokens: Some(160),
            finish: Some("length".to_owned()),
            repeats: true,
        }],
        families: vec![Fit {
            families: vec!["qwen3".to_owned(), "glm".to_owned()],
            thinking: BTreeMap::from([(Refused, 3)]),
            content: BTreeMap::from([(Exact, 3)]),
        }],
        rows: vec![
            row(TokenExact, State::Thinking, &[(Exact, None), (Exact, None)]),
            row(
                ChatContinue,
                State::Thinking,
                &[(Refused, Some("thinking_closes")), (Refused, Some("thinking_closes"))],
            ),
            row(ChatContinue, State::Content, &[(Exact, None), (Different, Some("content from character 9 on"))]),
            row(Prefix, State::Content, &[(Refused, Some("not_here"))]),
        ],
        not_reached: vec![State::InsideCharacter],
    }
}

#[test]
fn what_is_written_is_read_again() {
    let certificate = certificate();
    let json = certificate.to_json();
    assert_eq!(Certificate::read(&json).unwrap(), certificate);
    for word in ["\"token-exact\"", "\"inside-character\"", "\"schema\": 1", "\"exact\": 2"] {
        assert!(json.contains(word), "{word} in {json}");
    }
    assert_eq!(certificate.version(), Some(Version::new(0, 32, 0)));
}

#[test]
fn another_schema_is_not_guessed_at() {
    let json = certificate().to_json().replace("\"schema\": 1", "\"schema\": 7");
    assert!(matches!(Certificate::read(&json), Err(NoCertificate::Schema(7))));
    assert!(matches!(Certificate::read("{\"schema\":1}"), Err(NoCertificate::Unread(_))));
    let json = certificate().to_json().replace("chat-continue", "chat-continued");
    assert!(Certificate::read(&json).unwrap_err().to_string().contains("chat-continued is no kind of plan"));
}

#[test]
fn the_worst_of_a_row_is_what_does_most_harm() {
    let rows = certificate().rows;
    let short: Vec<String> = rows.iter().map(Row::in_short).collect();
    assert_eq!(
        short,
        [
            "exact (2)",
            "refused: `thinking_closes` (2)",
            "coherent but different (1 of 2; exact 1)",
            "refused: `not_here` (1)"
        ]
    );
    let mixed =
        row(PlanKind::Replay, State::Content, &[(Verdict::Leaks, None), (Verdict::Refused, Some("refused: 400 no"))]);
    assert_eq!(mixed.in_short(), "leaks reasoning (1 of 2; refused 1)");
}

#[test]
fn a_row_keeps_each_reason_once_and_the_first_few() {
    let reasons = ["a", "b", "a", "c", "d"].map(|why| (Verdict::Refused, Some(why)));
    assert_eq!(row(PlanKind::Replay, State::Content, &reasons).why, ["a", "b", "c"]);
}

#[test]
fn the_markdown_has_the_matrix_and_what_stands_behind_it() {
    let text = certificate().to_markdown();
    for line in [
        "# vllm 0.32.0, model tiny",
        "| generation prompt ends in | `<\\|im_start\\|>assistant\\n` |",
        "| cut | token-exact | chat-continue |",
        "| in thinking | exact (2) | refused: `thinking_closes` (2) |",
        "| in content | not reached | coherent but different (1 of 2; exact 1) |",
        "Not offered for this engine: prefix.",
        "- chat-continue, in content: content from character 9 on",
        "| qwen3, glm | refused 3 | exact 3 |",
        "| story | Tell me a story. | 160 | length | yes |",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    assert!(!text.contains("- chat-continue, in thinking"), "a code alone stands in the matrix: {text}");
}

#[test]
fn families_whose_requests_were_the_same_are_certified_together() {
    let used =
        |family| Used { engine: "vllm", family, plans: [PlanKind::TokenExact].into_iter().collect(), force: false };
    let about_family = |family| certificate().doubts(&used(family)).iter().any(|doubt| doubt.contains("of the family"));
    assert!(!about_family("qwen3") && !about_family("GLM-4.5") && about_family("minimax"));
}

//! Certifying scripted engines, good ones and bad ones.

use std::time::Duration;

use super::*;
use crate::config::settings::Balance;
use crate::config::units;
use crate::mock::{Config, Continuation, Echo, Engine, Running};
use crate::proto::certificate::Verdict;

fn vllm() -> Config {
    Config {
        family: "qwen3".to_owned(),
        models: vec!["tiny".to_owned()],
        reasoning: 12,
        content: 30,
        tool_call: Some(4),
        ..Config::default()
    }
}

fn order(url: &str) -> Order {
    Order {
        upstream: Upstream {
            name: "mock".to_owned(),
            engine: "vllm".to_owned(),
            family: "qwen3".to_owned(),
            endpoints: vec![units::endpoint(url).unwrap()],
            balance: Balance::default(),
            certificate: None,
        },
        find_family: false,
        model: None,
        authorization: None,
        prompts: Vec::new(),
        prompt_ids: None,
        plans: [PlanKind::TokenExact, PlanKind::ChatContinue].into_iter().collect(),
        cuts: 3,
        max_tokens: 160,
        force: false,
        idle: Duration::from_secs(10),
    }
}

async fn certified(config: Config, change: impl FnOnce(&mut Order)) -> (Certificate, Running) {
    let engine = Engine::start(config).await.unwrap();
    let mut order = order(&engine.url());
    change(&mut order);
    let certificate = certify(&order, &mut |_| {}).await.unwrap_or_else(|why| panic!("{why}"));
    (certificate, engine)
}

fn row(certificate: &Certificate, plan: PlanKind, state: State) -> &Row {
    certificate.row(plan, state).unwrap_or_else(|| panic!("{plan:?}, {state:?} in {}", certificate.to_markdown()))
}

#[tokio::test]
async fn a_vllm_that_does_as_it_should_is_exact_by_ids_in_every_state() {
    let (certificate, _engine) = certified(vllm(), |_| {}).await;
    assert_eq!((certificate.version.as_deref(), &*certificate.model), (Some("0.32.0"), "tiny"));
    assert_eq!(certificate.thinking_key.as_deref(), Some("enable_thinking"));
    assert_eq!(certificate.not_reached, []);
    for state in State::ALL.into_iter().filter(|state| *state != State::BehindToolName) {
        let row = row(&certificate, PlanKind::TokenExact, state);
        assert_eq!((row.worst(), row.cuts()), (Verdict::Exact, 3), "{}", certificate.to_markdown());
    }
    let shown = row(&certificate, PlanKind::TokenExact, State::BehindToolName);
    assert_eq!((shown.worst(), &shown.why[..]), (Verdict::Refused, &["tool_call_shown".to_owned()][..]));
    let closed = row(&certificate, PlanKind::ChatContinue, State::Thinking);
    assert_eq!((closed.worst(), &closed.why[..]), (Verdict::Refused, &["thinking_closes".to_owned()][..]));
    let content = row(&certificate, PlanKind::ChatContinue, State::Content);
    assert!(content.worst() <= Verdict::SameText, "{}", certificate.to_markdown());
    assert!(certificate.prompts.iter().all(|tried| tried.repeats && tried.finish.is_some()));
}

#[tokio::test]
async fn an_engine_that_ignores_the_ids_is_refused_by_its_echo() {
    for echo in [Echo::Missing, Echo::Wrong] {
        let (certificate, _engine) = certified(Config { echo, ..vllm() }, |_| {}).await;
        let row = row(&certificate, PlanKind::TokenExact, State::Content);
        assert_eq!((row.worst(), row.verdicts.len()), (Verdict::Refused, 1), "{}", certificate.to_markdown());
        assert!(row.why[0].starts_with("no_echo: "), "{:?}", row.why);
    }
}

#[tokio::test]
async fn an_engine_that_answers_anew_is_found_out() {
    let config = Config { continuation: Continuation::Afresh, ..vllm() };
    let (certificate, _engine) = certified(config, |_| {}).await;
    for state in [State::Content, State::ThinkingOff] {
        let row = row(&certificate, PlanKind::ChatContinue, state);
        assert!(row.worst() >= Verdict::Refused, "{}", certificate.to_markdown());
        assert!(!row.verdicts.contains_key(&Verdict::Exact), "{}", certificate.to_markdown());
        assert!(row.why.iter().any(|why| why.starts_with("restarted: ")), "{:?}", row.why);
    }
    assert_eq!(row(&certificate, PlanKind::TokenExact, State::Content).worst(), Verdict::Exact);
}

#[tokio::test]
async fn an_engine_that_is_too_old_is_refused_before_it_is_asked() {
    let (certificate, _engine) = certified(Config { version: "0.25.1".to_owned(), ..vllm() }, |_| {}).await;
    let row = row(&certificate, PlanKind::TokenExact, State::Content);
    assert_eq!((row.worst(), &row.why[..]), (Verdict::Refused, &["too_old".to_owned()][..]));
    assert_eq!(certificate.version.as_deref(), Some("0.25.1"));
}

#[tokio::test]
async fn what_an_engine_says_when_it_refuses_is_told() {
    let faults = crate::mock::fault::Rule::parse_all("leg2 status:400").unwrap();
    let (certificate, _engine) = certified(Config { faults, ..vllm() }, |_| {}).await;
    let row = row(&certificate, PlanKind::ChatContinue, State::Content);
    assert_eq!((row.worst(), &row.why[..]), (Verdict::Refused, &["refused: 400 a scripted fault".to_owned()][..]));
}

#[tokio::test]
async fn the_family_is_found_by_how_prompts_are_rendered_and_answers_go_on() {
    for (family, found, key) in [("qwen3.6", "qwen3_6", Some("enable_thinking")), ("no-thinking", "no_thinking", None)]
    {
        let reasoning = if key.is_some() { 12 } else { 0 };
        let config = Config { family: family.to_owned(), reasoning, ..vllm() };
        let (certificate, _engine) = certified(config, |order| order.find_family = true).await;
        assert_eq!((&*certificate.family, certificate.thinking_key.as_deref()), (found, key));
        assert!(certificate.families[0].families.iter().any(|name| name == found), "{}", certificate.to_markdown());
    }
}

#[tokio::test]
async fn prompts_and_plans_may_be_given() {
    let (certificate, engine) = certified(vllm(), |order| {
        order.prompts = vec!["Say it.".to_owned()];
        order.plans = [PlanKind::TokenExact].into_iter().collect();
        order.cuts = 1;
    })
    .await;
    let names: Vec<&str> = certificate.prompts.iter().map(|tried| &*tried.name).collect();
    assert_eq!(names, ["given", "thinking off", "tool"]);
    assert!(certificate.rows.iter().all(|row| row.plan == PlanKind::TokenExact && row.cuts() == 1));
    assert!(engine.requests().iter().all(|seen| !seen.body.to_string().contains("Please count")));
}

#[tokio::test]
async fn where_nobody_listens_it_is_said_what_to_do() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let why = certify(&order(&url), &mut |_| {}).await.unwrap_err();
    assert!(matches!(why, NotCertified::Unreachable(_)), "{why}");
    assert!(why.to_string().ends_with("; start it, or correct its address"), "{why}");
}

#[tokio::test]
async fn an_engine_that_has_no_answers_is_quoted() {
    let faults = crate::mock::fault::Rule::parse_all("status:401").unwrap();
    let engine = Engine::start(Config { faults, ..vllm() }).await.unwrap();
    let why = certify(&order(&engine.url()), &mut |_| {}).await.unwrap_err();
    assert!(matches!(&why, NotCertified::NoAnswer(words) if words.starts_with("401 ")), "{why}");
}

//! The plan `prefix`: a provider goes on from a last assistant message, by a way of its own.
//!
//! Which way that is stands in the engine's file ([`Prefill`]). The provider writes the prompt, so a family has no form to
//! give; of it only the marks of its thinking matter. Unfinished thinking cannot be handed back anywhere, as far as the
//! providers say.

use serde_json::{Map, Value};

use super::body::{Left, finish};
use super::engine::Prefill;
use super::{Budget, Engine, Family, Found, Plan, Refused, State, Work, refuse_if};
use crate::proto::chat::{Api, ChatRequest, Exclusion, Onward, Partial};
use crate::proto::splice::{Overlap, Seam};

/// A shorter text, in characters, may be said twice by an answer that goes on. As long as the relay's guard takes a beginning to
/// have to be.
pub(super) const SHORTEST: usize = 4;

/// The request that makes `engine` go on behind its last message.
///
/// The request differs from the client's only in that message, `stream`, `stream_options.include_usage` where the engine has it,
/// the token limits, and the thinking switch where the engine wants it off.
///
/// # Errors
/// Why the partial is not to be continued, or not by this engine in this way.
pub(super) fn plan(
    request: &ChatRequest,
    partial: &Partial,
    family: &Family,
    engine: &Engine,
    budget: &Budget<'_>,
) -> Result<Plan, Refused> {
    refuse_request(request)?;
    let family = family.spec();
    let found = Found::of(partial, family, request)?;
    let left = Left::of(request, partial, budget.ratios)?;
    let prefill = engine.spec().prefill.as_ref().ok_or(Refused::NotHere)?;
    refuse_if(found.inline.is_some() || found.marked, Refused::MarkInText, budget.force)?;
    let (reasoning, content) = match found.state {
        State::Thinking { reasoning } => {
            refuse_if(true, Refused::ThinkingCloses, budget.force)?;
            // Forced, where there is at least a field for it.
            prefill.reasoning.ok_or(Refused::NoForm)?;
            (reasoning, "")
        }
        State::Answering { reasoning, content } => (reasoning, content),
    };
    let seam = seam(prefill, content)?;
    let path = prefill.path.unwrap_or(request.api().path());
    let mut request = request.clone();
    request.push_message(&message(prefill, reasoning, content));
    let switch = prefill.switch.filter(|_| family.marks.is_some());
    let body = finish(request, switch, &left, engine.spec(), budget);
    Ok(Plan { work: Work::Request { path, body }, seam, onward: Onward::Text, echo: None })
}

/// What rules out a further message behind the client's: there are none, in a completion; the request itself; or its last
/// message, if that is an assistant's. A provider that goes on from such messages has done so for leg 1, and there is no telling
/// whether the answer has its text.
pub(super) fn refuse_request(request: &ChatRequest) -> Result<(), Refused> {
    if request.api() == Api::Completions {
        return Err(Refused::NotHere);
    }
    let own = || (request.last_role().as_deref() == Some("assistant")).then_some(Exclusion::ContinuesItself);
    match request.exclusion().or_else(own) {
        Some(exclusion) => Err(Refused::Excluded(exclusion)),
        None => Ok(()),
    }
}

fn seam(prefill: &Prefill, content: &str) -> Result<Seam, Refused> {
    let trimmed = prefill.trims.lost(content);
    let said = &content[..content.len() - trimmed.len()];
    let overlap = prefill.repeats.then(|| Overlap::of_all(said));
    if overlap.is_some() && said.trim().chars().count() < SHORTEST {
        return Err(Refused::TooShort);
    }
    Ok(Seam { trimmed: trimmed.to_owned(), overlap, ..Seam::default() })
}

fn message(prefill: &Prefill, reasoning: &str, content: &str) -> Value {
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    if let Some(field) = prefill.reasoning.filter(|_| !reasoning.is_empty()) {
        message.insert(field.to_owned(), reasoning.into());
    }
    message.insert("content".to_owned(), content.into());
    if let Some(flag) = prefill.flag {
        message.insert(flag.to_owned(), true.into());
    }
    Value::Object(message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::PlanKind;
    use super::super::tests::{ask_as, fold, partial, request};
    use super::*;

    fn ask(request: &ChatRequest, partial: &Partial, names: (&str, &str), force: bool) -> Result<Plan, Refused> {
        ask_as(PlanKind::Prefix, request, partial, names, force)
    }

    const DEEPSEEK: (&str, &str) = ("deepseek-v4", "deepseek");
    const MISTRAL: (&str, &str) = ("mistral", "mistral");
    const LLAMA: (&str, &str) = ("qwen3", "llama.cpp");

    fn text(plan: &Plan) -> &str {
        std::str::from_utf8(plan.work.body()).expect("the body is text")
    }

    fn path(plan: &Plan) -> &str {
        let Work::Request { path, .. } = &plan.work else { panic!("one request") };
        path
    }

    #[test]
    fn deepseek_gets_its_flag_and_the_thinking_on_its_own_path() {
        let sent = r#"{"model":"m","messages":[{"role":"user","content":"\u4e09"}],"max_tokens":50,"thinking":{"type":"enabled"}}"#;
        let request = ChatRequest::parse(sent.as_bytes()).expect("the request is read");
        let plan = ask(&request, &partial("Hm", "Yes", Some((20, 9))), DEEPSEEK, false).expect("there is a plan");
        assert_eq!(path(&plan), "/beta/chat/completions");
        assert_eq!(plan.seam, Seam::default());
        assert_eq!(
            text(&plan),
            concat!(
                r#"{"model":"m","messages":[{"role":"user","content":"\u4e09"},"#,
                r#"{"role":"assistant","reasoning_content":"Hm","content":"Yes","prefix":true}],"max_tokens":30,"#,
                r#""thinking":{"type":"enabled"},"stream":true,"stream_options":{"include_usage":true}}"#
            )
        );
        let plan = ask(&request, &partial("", "Yes", None), DEEPSEEK, false).expect("there is a plan");
        assert!(text(&plan).contains(r#"{"role":"assistant","content":"Yes","prefix":true}"#), "{}", text(&plan));
    }

    #[test]
    fn mistral_gets_its_flag_and_no_field_that_it_does_not_know() {
        let sent = r#"{"messages":[{"role":"user","content":"a"}],"random_seed":7}"#;
        let request = ChatRequest::parse(sent.as_bytes()).expect("the request is read");
        let plan = ask(&request, &partial("Hm", "The answer is  ", None), MISTRAL, false).expect("there is a plan");
        assert_eq!(
            text(&plan),
            concat!(
                r#"{"messages":[{"role":"user","content":"a"},"#,
                r#"{"role":"assistant","content":"The answer is  ","prefix":true}],"random_seed":7,"stream":true}"#
            )
        );
        let overlap = Some(Overlap::of_all("The answer is"));
        assert_eq!(plan.seam, Seam { trimmed: "  ".to_owned(), overlap, ..Seam::default() });
        // What the client sent for it, leg 1 has taken.
        let sent = super::super::tests::request(r#""stream_options":{"a":1}"#);
        let plan = ask(&sent, &partial("", "The answer", None), MISTRAL, false).expect("there is a plan");
        assert!(text(&plan).contains(r#""stream_options":{"a":1}"#));
    }

    #[test]
    fn llama_cpp_gets_the_message_alone_and_no_thinking_from_a_model_that_could() {
        let ask = |family| ask(&request(""), &partial("", "Yes", None), (family, LLAMA.1), false).expect("a plan");
        let body: Value = serde_json::from_slice(ask("qwen3").work.body()).expect("the body is JSON");
        assert_eq!(body["messages"][1], json!({"role": "assistant", "content": "Yes"}));
        assert_eq!(body["chat_template_kwargs"], json!({"enable_thinking": false}));
        assert!(body.get("continue_final_message").is_none() && body.get("add_generation_prompt").is_none());
        assert!(!text(&ask("no-thinking")).contains("chat_template_kwargs"));
    }

    #[test]
    fn unfinished_thinking_is_refused_and_forced_only_where_there_is_a_field_for_it() {
        let thinking = partial("Hmm", "", None);
        for names in [DEEPSEEK, MISTRAL, LLAMA] {
            assert_eq!(ask(&request(""), &thinking, names, false), Err(Refused::ThinkingCloses), "{names:?}");
        }
        for names in [MISTRAL, LLAMA] {
            assert_eq!(ask(&request(""), &thinking, names, true), Err(Refused::NoForm), "{names:?}");
        }
        let forced = ask(&request(""), &thinking, DEEPSEEK, true).expect("force makes a plan");
        assert!(text(&forced).contains(r#"{"role":"assistant","reasoning_content":"Hmm","content":"","prefix":true}"#));
    }

    #[test]
    fn thinking_that_stands_in_the_answer_is_refused_unless_forced() {
        for content in ["<think>R", "<think>R</think>C", "As I said: </think>"] {
            let inline = partial("", content, None);
            let names = ("qwen3", "deepseek");
            assert_eq!(ask(&request(""), &inline, names, false), Err(Refused::MarkInText), "{content}");
        }
        let closed = partial("", "<think>R</think>C", None);
        assert!(ask(&request(""), &closed, ("qwen3", "deepseek"), true).is_ok());
    }

    #[test]
    fn only_engines_that_go_on_from_a_last_message_have_the_plan() {
        let answering = partial("", "The answer", None);
        for engine in Engine::all() {
            let planned = ask(&request(""), &answering, ("default", engine), true);
            let has = ["deepseek", "llama.cpp", "mistral"].contains(&engine);
            assert_eq!(planned.is_ok(), has, "{engine}");
            assert!(has || planned == Err(Refused::NotHere), "{engine}");
            assert_eq!(Engine::named(engine).0.by_text().contains(PlanKind::Prefix), has, "{engine}");
        }
    }

    #[test]
    fn a_completion_has_no_messages_to_add_to() {
        let request = ChatRequest::parse_completion(br#"{"prompt":"a"}"#).expect("the request is read");
        for kind in [PlanKind::Prefix, PlanKind::Replay] {
            let refused = ask_as(kind, &request, &partial("", "The answer", None), DEEPSEEK, true);
            assert_eq!(refused, Err(Refused::NotHere));
        }
    }

    #[test]
    fn a_client_that_gives_a_beginning_of_its_own_is_not_gone_on_for() {
        let sent = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"{","prefix":true}]}"#;
        let request = ChatRequest::parse(sent.as_bytes()).expect("the request is read");
        let refused = Err(Refused::Excluded(Exclusion::ContinuesItself));
        assert_eq!(ask(&request, &partial("", "The answer", None), DEEPSEEK, true), refused);
    }

    #[test]
    fn where_the_beginning_comes_again_it_has_to_be_long_enough_to_be_known() {
        for content in ["Yes", "  a\n ", "三四五"] {
            let short = partial("", content, None);
            assert_eq!(ask(&request(""), &short, MISTRAL, true), Err(Refused::TooShort), "{content}");
            assert!(ask(&request(""), &short, DEEPSEEK, false).is_ok(), "{content}");
        }
        assert!(ask(&request(""), &partial("", "Yes,", None), MISTRAL, false).is_ok());
    }

    #[test]
    fn a_spent_budget_and_a_tool_call_are_refused_as_ever() {
        let spent = ask(&request(r#""max_tokens":20"#), &partial("", "Yes", Some((20, 0))), DEEPSEEK, true);
        assert_eq!(spent, Err(Refused::BudgetSpent { exact: true }));
        let mut calling = partial("", "Yes", None);
        let call = json!({"index": 0, "id": "call-1", "type": "function", "function": {"name": "f", "arguments": ""}});
        fold(&mut calling, json!({"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": null}), None);
        assert_eq!(ask(&request(""), &calling, DEEPSEEK, true), Err(Refused::ToolCallShown));
    }
}

//! The plan `replay`: a new request that has the partial as the assistant's turn and asks for the rest of it.
//!
//! For engines that have nothing better. What comes is the model's idea of a rest and not the rest, so it is asked for only where
//! a route names it, and its first event says that it is not exact.
//!
//! Where the answer had begun, its thinking is not sent, and whatever the model thinks on the way is dropped: thinking behind
//! an answer would be none of it. Where it had not, there is nothing to go on from but the request itself, which is sent again.
//! A model that thinks the same again, as with temperature 0, goes on where its thinking was cut; one that thinks something else
//! has its new thinking dropped, and the answer that follows is whole.

use serde_json::json;

use super::body::{Left, finish};
use super::prefix::{SHORTEST, refuse_request};
use super::{Budget, Engine, Family, Found, Plan, PlanKind, Refused, State, Work, refuse_if};
use crate::proto::chat::{ChatRequest, Onward, Partial};
use crate::proto::splice::{LegThinking, Overlap, Seam};

/// What the model is asked for.
const GO_ON: &str = "Your last message was cut off on its way to me. Write the rest of it, from the very character where it stops. \
                     Repeat nothing of it, do not start it again, and write nothing before or around the rest.";

/// The request that asks any engine for the rest.
///
/// The request differs from the client's only in two more messages, or none while thinking, in `stream`,
/// `stream_options.include_usage` where the engine has it, the token limits, and a fresh request id where the engine wants one.
///
/// # Errors
/// Why the partial is not to be replayed.
pub(super) fn plan(
    request: &ChatRequest,
    partial: &Partial,
    family: &Family,
    engine: &Engine,
    budget: &Budget<'_>,
) -> Result<Plan, Refused> {
    refuse_request(request)?;
    let found = Found::of(partial, family.spec(), request)?;
    let left = Left::of(request, partial, budget.ratios)?;
    // Thinking that no parser takes out cannot be dropped either.
    refuse_if(found.inline.is_some() || found.marked, Refused::MarkInText, budget.force)?;
    let path = request.api().path();
    let mut request = request.clone();
    let mut seam = Seam { inexact: Some(PlanKind::Replay.name()), ..Seam::default() };
    match found.state {
        State::Thinking { reasoning } => seam.thinking = LegThinking::Repeated(reasoning.to_owned()),
        State::Answering { content, .. } => {
            if content.trim().chars().count() < SHORTEST {
                return Err(Refused::TooShort);
            }
            request.push_message(&json!({"role": "assistant", "content": content}));
            request.push_message(&json!({"role": "user", "content": GO_ON}));
            seam.thinking = LegThinking::Dropped;
            seam.overlap = Some(Overlap::of_end(content, budget.settings.replay_overlap));
        }
    }
    let body = finish(request, None, &left, engine.spec(), budget);
    Ok(Plan { work: Work::Request { path, body }, seam, onward: Onward::Text, echo: None })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::tests::{ask_as, partial, request};
    use super::*;
    use crate::proto::chat::Exclusion;

    fn ask(request: &ChatRequest, partial: &Partial, names: (&str, &str), force: bool) -> Result<Plan, Refused> {
        ask_as(PlanKind::Replay, request, partial, names, force)
    }

    fn text(plan: &Plan) -> &str {
        std::str::from_utf8(plan.work.body()).expect("the body is text")
    }

    const OPENAI: (&str, &str) = ("gpt-oss", "openai");

    #[test]
    fn the_partial_and_a_request_to_go_on_follow_the_clients_messages_and_all_else_stays() {
        let sent = r#"{"model":"m","messages":[{"role":"user","content":"\u4e09"}],"seed":7,"temperature":0.70,"max_tokens":50}"#;
        let request = ChatRequest::parse(sent.as_bytes()).expect("the request is read");
        let plan = ask(&request, &partial("Hmm", "It is ", Some((20, 9))), OPENAI, false).expect("there is a plan");
        let expected = format!(
            r#"{{"model":"m","messages":[{{"role":"user","content":"\u4e09"}},{{"role":"assistant","content":"It is "}},{{"role":"user","content":"{GO_ON}"}}],"seed":7,"temperature":0.70,"max_tokens":30,"stream":true,"stream_options":{{"include_usage":true}}}}"#
        );
        assert_eq!(text(&plan), expected);
        assert!(matches!(plan.work, Work::Request { path: "/v1/chat/completions", .. }));
        let seam = Seam {
            overlap: Some(Overlap::of_end("It is ", 16)),
            thinking: LegThinking::Dropped,
            inexact: Some("replay"),
            ..Seam::default()
        };
        assert_eq!(plan.seam, seam);
    }

    #[test]
    fn while_thinking_the_request_is_sent_again_and_only_what_follows_the_thinking_is_new() {
        let sent = r#"{"messages":[{"role":"user","content":"a"}],"max_completion_tokens":50,"stream":true}"#;
        let request = ChatRequest::parse(sent.as_bytes()).expect("the request is read");
        let plan = ask(&request, &partial("Hmm", "", Some((20, 20))), OPENAI, false).expect("there is a plan");
        let expected = r#"{"messages":[{"role":"user","content":"a"}],"max_completion_tokens":30,"stream":true,"stream_options":{"include_usage":true}}"#;
        assert_eq!(text(&plan), expected);
        let thinking = LegThinking::Repeated("Hmm".to_owned());
        assert_eq!(plan.seam, Seam { thinking, inexact: Some("replay"), ..Seam::default() });
    }

    #[test]
    fn every_engine_can_be_asked_in_its_own_way() {
        for engine in Engine::all() {
            let plan = ask(&request(""), &partial("Hmm", "The answer", None), ("default", engine), false);
            let body: Value =
                serde_json::from_slice(plan.expect("there is a plan").work.body()).expect("the body is JSON");
            assert_eq!(body.get("rid").is_some(), engine == "sglang");
            assert_eq!(body.get("stream_options").is_none(), engine == "mistral");
            assert!(body.get("continue_final_message").is_none() && body.get("chat_template_kwargs").is_none());
            assert!(Engine::named(engine).0.by_text().contains(PlanKind::Replay));
        }
    }

    #[test]
    fn what_cannot_be_told_from_a_repetition_or_from_thinking_is_refused() {
        let refused = |partial: &Partial, force| ask(&request(""), partial, ("qwen3", "openai"), force);
        assert_eq!(refused(&partial("", "No!", None), true), Err(Refused::TooShort));
        assert!(
            refused(&partial("", "No, ", None), false).is_err() && refused(&partial("", "No, n", None), false).is_ok()
        );
        for content in ["<think>R", "<think>R</think>C"] {
            assert_eq!(refused(&partial("", content, None), false), Err(Refused::MarkInText));
        }
    }

    #[test]
    fn a_request_that_ends_in_an_assistants_message_or_is_excluded_is_not_replayed() {
        let sent = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        let own = ChatRequest::parse(sent.as_bytes()).expect("the request is read");
        let answering = partial("", "The answer", None);
        let refused = ask(&own, &answering, OPENAI, true);
        assert_eq!(refused, Err(Refused::Excluded(Exclusion::ContinuesItself)));
        let json = request(r#""response_format":{"type":"json_object"}"#);
        assert_eq!(ask(&json, &answering, OPENAI, true), Err(Refused::Excluded(Exclusion::StructuredOutput)));
    }
}

//! What the engines refuse before they start an answer, in their own words.

use serde_json::{Value, json};

use super::ask::Ask;
use super::config::{Config, Wire};
use super::family::Family;
use super::tokens::VOCABULARY;

/// An error answered instead of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) message: String,
    /// The field that is wrong, where the engine names it.
    pub(super) param: Option<&'static str>,
}

impl Refusal {
    /// 400.
    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::with_status(400, "BadRequestError", message)
    }

    /// 400 for a field, which vLLM names in the message too.
    pub(super) fn field(param: &'static str, message: &str) -> Self {
        Self { param: Some(param), ..Self::bad(format!("{message} (parameter={param})")) }
    }

    pub(super) fn with_status(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None }
    }

    /// The response body in the engine's own form.
    pub(super) fn body(&self, wire: Wire) -> String {
        error_body(wire == Wire::Vllm, &self.message, self.kind, self.param, self.status).to_string()
    }
}

/// `{"error":{…}}` as vLLM writes it everywhere, or flat as SGLang writes it before a stream (0.5.23, `protocol.py ErrorResponse`).
fn error_body(wrapped: bool, message: &str, kind: &str, param: Option<&str>, code: u16) -> Value {
    if wrapped {
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    } else {
        json!({"object": "error", "message": message, "type": kind, "param": param, "code": code})
    }
}

/// The data of an error event inside a stream. SGLang wraps its flat form there (0.5.13+).
pub(super) fn error_event(wire: Wire, wrapped: Option<bool>, code: u16) -> String {
    let (message, kind) = match (wire, code) {
        (Wire::Vllm, 503) => ("Generation is paused. Please retry after it resumes.", "ServiceUnavailableError"),
        (Wire::Vllm, _) => {
            ("EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError")
        }
        (Wire::Sglang, 503) => ("The request queue is full.", "SERVICE_UNAVAILABLE"),
        (Wire::Sglang, 400) => ("The request is invalid.", "BAD_REQUEST"),
        (Wire::Sglang, _) => ("The scheduler encountered an issue.", "INTERNAL_SERVER_ERROR"),
    };
    let wrapped_sglang = wire == Wire::Sglang && wrapped != Some(false);
    if wrapped_sglang {
        return json!({"error": error_body(false, message, kind, None, code)}).to_string();
    }
    error_body(wrapped.unwrap_or(true), message, kind, None, code).to_string()
}

/// The engine's checks of a chat request that need no look at the partial.
///
/// # Errors
/// The status and words that the engine answers with.
pub(super) fn check(ask: &Ask, config: &Config, family: &Family) -> Result<(), Refusal> {
    check_model(ask.model(), config)?;
    match config.wire {
        Wire::Vllm => check_limit(ask.limit(), config).and_then(|()| check_vllm(ask, family)),
        Wire::Sglang => check_sglang(ask),
    }
}

/// Whether this model is served.
pub(super) fn check_model(model: &str, config: &Config) -> Result<(), Refusal> {
    if config.models.is_empty() || config.models.iter().any(|served| served == model) {
        return Ok(());
    }
    Err(Refusal::with_status(404, "NotFoundError", format!("The model `{model}` does not exist.")))
}

/// Whether a token limit is one that the model can have.
pub(super) fn check_limit(limit: Option<u64>, config: &Config) -> Result<(), Refusal> {
    let (Some(limit), longest) = (limit, config.max_model_len) else { return Ok(()) };
    if limit <= longest as u64 {
        return Ok(());
    }
    let message = format!(
        "max_tokens={limit} cannot be greater than max_model_len={longest}. Please request fewer output tokens. \
         (parameter=max_tokens, value={limit})"
    );
    Err(Refusal { param: Some("max_tokens"), ..Refusal::bad(message) })
}

/// Whether ids are in the vocabulary and not too many; in vLLM's words. `param` is the field that held them, if vLLM names it.
pub(super) fn check_ids(ids: &[u64], config: &Config, param: Option<&'static str>) -> Result<Vec<u32>, Refusal> {
    if ids.len() >= config.max_model_len {
        let message =
            format!("Input length ({}) exceeds model's maximum context length ({}).", ids.len(), config.max_model_len);
        return Err(Refusal::bad(message));
    }
    let read = |id: &u64| match u32::try_from(*id) {
        Ok(small) if *id < VOCABULARY => Ok(small),
        _ => {
            let message = format!("Token id {id} is out of vocabulary");
            Err(param.map_or_else(|| Refusal::bad(&message), |param| Refusal::field(param, &message)))
        }
    };
    ids.iter().map(read).collect()
}

/// vLLM 0.32/0.33, `entrypoints/openai/chat_completion/protocol.py` and transformers 5 `chat_template_utils.py`; messages as measured.
fn check_vllm(ask: &Ask, family: &Family) -> Result<(), Refusal> {
    if ask.fields.get("stream_options").is_some_and(|options| !options.is_null()) && !ask.stream() {
        return Err(Refusal::bad("Stream options can only be defined when `stream=True`."));
    }
    if family.mistral && !ask.kwargs().is_empty() {
        return Err(Refusal::bad("chat_template is not supported for Mistral tokenizers."));
    }
    if family.mistral && ask.last_role() == "assistant" && ask.add_generation_prompt() == Some(true) {
        return Err(Refusal::bad(
            "Cannot set `add_generation_prompt` to True when the last message is from the assistant.",
        ));
    }
    if !ask.is_flagged() {
        return Ok(());
    }
    match ask.add_generation_prompt() {
        Some(true) => {
            return Err(Refusal::bad("Cannot set both `continue_final_message` and `add_generation_prompt` to True."));
        }
        None => {
            return Err(Refusal::bad(
                "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you want the \
                 model to continue the final message, and add_generation_prompt when you want to add a header that will prompt it to \
                 start a new assistant message instead.",
            ));
        }
        Some(false) => {}
    }
    if family.mistral && ask.last_role() != "assistant" {
        return Err(Refusal::bad("Cannot continue the final message: it is not from the assistant."));
    }
    Ok(())
}

/// SGLang 0.5.23, `entrypoints/openai/serving_chat.py`. `add_generation_prompt` is no field of its chat request and is not looked at.
fn check_sglang(ask: &Ask) -> Result<(), Refusal> {
    for key in ["return_token_ids", "return_prompt_token_ids", "return_meta_info"] {
        if ask.stream() && ask.fields.get(key) == Some(&Value::Bool(true)) {
            return Err(Refusal::bad(format!("{key} is not supported with stream=true")));
        }
    }
    Ok(())
}

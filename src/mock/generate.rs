//! `/inference/v1/generate`: tokens in, tokens out.

use serde_json::{Map, Value};

use super::ask::read_mock;
use super::completions::{Direct, object};
use super::config::Config;
use super::validate::{Refusal, check_ids, check_limit, check_model};
use super::wire::Form;

impl Direct {
    /// Reads a request for tokens.
    ///
    /// # Errors
    /// What vLLM 0.32 refuses, in its words (recorded).
    pub(super) fn generate(headers: &[(String, String)], body: &[u8], config: &Config) -> Result<Self, Refusal> {
        let fields = object(body)?;
        // What a rendered request asks of this engine travels along in it.
        let (lengths, faults) = read_mock(&fields, headers)?;
        check_model(fields.get("model").and_then(Value::as_str).unwrap_or("mock"), config)?;
        let Some(params) = fields.get("sampling_params").and_then(Value::as_object) else {
            return Err(missing(&fields, "sampling_params", "body.sampling_params"));
        };
        let ids = fields.get("token_ids").and_then(Value::as_array);
        let ids = ids.and_then(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
        let Some(ids) = ids.filter(|ids| !ids.is_empty()) else {
            return Err(missing(&fields, "token_ids", "body.token_ids"));
        };
        let limit = params.get("max_tokens").and_then(Value::as_u64);
        if limit == Some(0) {
            let message = "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)";
            return Err(Refusal { param: Some("max_tokens"), ..Refusal::bad(message) });
        }
        check_limit(limit, config)?;
        let prompt = check_ids(&ids, config, None)?;
        let with_text = fields.get("output_mode").and_then(Value::as_str) == Some("text");
        let params = params.clone();
        Ok(Self { form: Form::Tokens { with_text }, params, fields, prompt, lengths, faults })
    }
}

/// The words of vLLM's schema check.
pub(super) fn missing(fields: &Map<String, Value>, key: &str, param: &'static str) -> Refusal {
    let message = format!(
        "1 validation error:\n  {{'type': 'missing', 'loc': 'body.{key}', 'msg': 'Field required', 'input': '<dict of {} items>'}}",
        fields.len()
    );
    Refusal { kind: "Bad Request", param: Some(param), ..Refusal::bad(message) }
}

//! From a request to the events of its answer, without a socket.

use std::time::{SystemTime, UNIX_EPOCH};

use super::answer::{self, Begun, Choice};
use super::ask::Ask;
use super::completions::Direct;
use super::config::{Config, Echo, Ledger, Wire};
use super::derender::derender;
use super::endpoint::Endpoint;
use super::family::Family;
use super::render::render;
use super::strict::{self, Original};
use super::strict_ids;
use super::text::key;
use super::tokenize::{detokenize, tokenize};
use super::validate::{self, Refusal};
use super::wire::{Form, Stream};

/// The events of the answer to a streamed chat request, each with its blank line, as an engine with these settings sends them
/// when nothing breaks. `number` tells requests apart as the number of a request to a running engine does. In strict mode
/// continuations are checked against the first legs in the settings' ledger.
///
/// # Errors
/// The status and the words with which the engine would refuse the request.
pub fn events(config: &Config, body: &[u8], number: u64) -> Result<Vec<Vec<u8>>, (u16, String)> {
    let told = |refusal: Refusal| (refusal.status, refusal.message);
    let ask = Ask::read(&[], body).map_err(told)?;
    let ledger = config.ledger.clone().unwrap_or_default();
    let (begun, choices) = script(config, &ledger, &ask).map_err(told)?;
    let stream = stream_of(config, response_id(config, None, number, &ask), &ask, &begun, choices);
    Ok(written(&stream))
}

/// As [`events`], of the answer to a streamed request for a completion.
///
/// # Errors
/// The status and the words with which the engine would refuse the request.
pub fn completion_events(config: &Config, body: &[u8], number: u64) -> Result<Vec<Vec<u8>>, (u16, String)> {
    let told = |refusal: Refusal| (refusal.status, refusal.message);
    let direct = Direct::completion(&[], body, config).map_err(told)?;
    let choices = direct.script(config, &config.ledger.clone().unwrap_or_default()).map_err(told)?;
    Ok(written(&direct.stream_of(config, direct_id(config, None, number, direct.form), choices)))
}

/// As [`events`], of the answer to a streamed request to `/inference/v1/generate`.
///
/// # Errors
/// The status and the words with which the engine would refuse the request.
pub fn generate_events(config: &Config, body: &[u8], number: u64) -> Result<Vec<Vec<u8>>, (u16, String)> {
    let told = |refusal: Refusal| (refusal.status, refusal.message);
    let direct = Direct::generate(&[], body, config).map_err(told)?;
    let choices = direct.script(config, &config.ledger.clone().unwrap_or_default()).map_err(told)?;
    let id = direct.fields.get("request_id").and_then(serde_json::Value::as_str);
    Ok(written(&direct.stream_of(config, direct_id(config, id, number, direct.form), choices)))
}

/// The answer of an endpoint that does not stream: `/tokenize`, `/detokenize`, `…/render` or `…/derender`.
///
/// # Errors
/// The status and the words with which the engine would refuse the request; 404 for other paths.
pub fn reply(config: &Config, path: &str, body: &[u8]) -> Result<Vec<u8>, (u16, String)> {
    let told = |refusal: Refusal| (refusal.status, refusal.message);
    let endpoint = Endpoint::of("POST", path).ok_or((404, "Not Found".to_owned()))?;
    small(endpoint, config, &[], body, "chatcmpl-rendered").map(String::into_bytes).map_err(told)
}

/// The answers of the endpoints that do not stream. `id` is that of a rendered request.
pub(super) fn small(
    endpoint: Endpoint,
    config: &Config,
    headers: &[(String, String)],
    body: &[u8],
    id: &str,
) -> Result<String, Refusal> {
    if endpoint.is_scale_out() && !config.scale_out {
        let message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.";
        return Err(Refusal::with_status(403, "PermissionDeniedError", message));
    }
    let value = match endpoint {
        Endpoint::Version => serde_json::json!({"version": config.version}),
        Endpoint::Tokenize => tokenize(body, config)?,
        Endpoint::Detokenize => detokenize(body)?,
        Endpoint::Render => render(&Ask::read(headers, body)?, config, id)?,
        Endpoint::Derender => derender(body, config)?,
        Endpoint::Chat | Endpoint::Completions | Endpoint::Generate => {
            return Err(Refusal::with_status(404, "NotFoundError", "it streams"));
        }
    };
    Ok(value.to_string())
}

/// The id of a completion or of tokens; `given` is `X-Request-Id` or the request's own.
pub(super) fn direct_id(config: &Config, given: Option<&str>, number: u64, form: Form) -> String {
    let fresh = key([config.name.as_bytes(), &config.seed.to_le_bytes(), &number.to_le_bytes()]);
    let prefix = if form == Form::Text { "cmpl" } else { "generate-tokens" };
    given.map_or_else(|| format!("{prefix}-{fresh:016x}"), |id| format!("{prefix}-{id}"))
}

/// All events of a stream.
fn written(stream: &Stream<'_>) -> Vec<Vec<u8>> {
    let write = |step| {
        let mut event = Vec::new();
        stream.write(step, &mut event);
        event
    };
    stream.steps().into_iter().map(write).collect()
}

/// A response's id, as the engine makes it: vLLM takes `X-Request-Id`, SGLang the body's `rid`.
pub(super) fn response_id(config: &Config, request_id: Option<&str>, number: u64, ask: &Ask) -> String {
    let fresh = key([config.name.as_bytes(), &config.seed.to_le_bytes(), &number.to_le_bytes()]);
    match config.wire {
        Wire::Vllm => match request_id {
            Some(id) => format!("chatcmpl-{id}"),
            None => format!("chatcmpl-{fresh:016x}"),
        },
        Wire::Sglang => ask.rid().map_or_else(|| format!("{fresh:016x}{:016x}", fresh.rotate_left(29)), str::to_owned),
    }
}

/// Validates a request and decides what its choices write.
pub(super) fn script(config: &Config, ledger: &Ledger, ask: &Ask) -> Result<(Begun, Vec<Choice>), Refusal> {
    let family = Family::named(&config.family);
    validate::check(ask, config, &family)?;
    let begun = answer::begin(ask, config, &family)?;
    if config.strict {
        let originals = ledger.find(&ask.raw_messages[..ask.prompt().len()]);
        let checked = match &begun.start {
            _ if begun.reused => strict_ids::check(ask, config, &family, &begun, &originals),
            Some(start) if ask.continues() => strict::check(ask, config, &family, start, &originals),
            _ => Ok(()),
        };
        checked.map_err(|reason| Refusal::bad(format!("mock-engine (strict): {reason}")))?;
    }
    if !ask.is_continuation() {
        ledger.note(Original::of(ask, &begun.prompt));
    }
    let choices = (0..ask.choices()).map(|index| answer::choice(ask, config, &family, &begun, index)).collect();
    Ok((begun, choices))
}

/// The stream in which they are written.
pub(super) fn stream_of<'a>(
    config: &'a Config,
    id: String,
    ask: &Ask,
    begun: &Begun,
    choices: Vec<Choice>,
) -> Stream<'a> {
    // vLLM takes the last message's role when no new message is begun.
    let role = match config.wire {
        Wire::Vllm if ask.add_generation_prompt() == Some(false) => ask.last_role(),
        _ => "assistant",
    };
    let include_usage = ask.stream_option("include_usage");
    // On SGLang continuous usage does not need `include_usage` (0.5.6+, `utils.py should_include_usage`).
    let continuous_usage =
        ask.stream_option("continuous_usage_stats") && (include_usage || config.wire == Wire::Sglang);
    let returns_ids = config.wire == Wire::Vllm && ask.return_token_ids();
    let mut prompt_ids = begun.prompt.clone();
    match config.echo {
        Echo::Wrong if begun.reused => drop(prompt_ids.pop()),
        Echo::Missing if begun.reused => prompt_ids.clear(),
        _ => {}
    }
    Stream {
        config,
        form: Form::Chat,
        id,
        created: config.created.unwrap_or_else(now),
        model: ask.model().to_owned(),
        role: role.to_owned(),
        prompt_tokens: answer::prompt_tokens(ask, config, begun),
        prompt_ids: (returns_ids && !prompt_ids.is_empty()).then_some(prompt_ids),
        returns_ids: returns_ids && !ask.hides_reasoning(),
        include_usage,
        continuous_usage,
        choices,
    }
}

/// Unix seconds.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

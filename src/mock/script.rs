//! From a request to the events of its answer, without a socket.

use std::time::{SystemTime, UNIX_EPOCH};

use super::answer::{self, Begun, Choice};
use super::ask::Ask;
use super::config::{Config, Echo, Ledger, Wire};
use super::family::Family;
use super::strict::{self, Original};
use super::strict_ids;
use super::text::key;
use super::validate::{self, Refusal};
use super::wire::Stream;

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
    let write = |step| {
        let mut event = Vec::new();
        stream.write(step, &mut event);
        event
    };
    Ok(stream.steps().into_iter().map(write).collect())
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
        ledger.note(Original::of(ask));
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
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
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

//! Requests that bring a prompt as it is: `/v1/completions` and, for tokens, `/inference/v1/generate`.

use serde_json::{Map, Value};

use super::answer::{Answer, Choice, Limits, parsed};
use super::ask::{Lengths, limits, read_mock};
use super::config::{Config, Ledger};
use super::detok::Detok;
use super::family::Family;
use super::fault::Rule;
use super::line::{Model, Place};
use super::script::now;
use super::strict::Original;
use super::strict_ids::check_against;
use super::tokens::encode;
use super::validate::{Refusal, check_ids, check_limit, check_model};
use super::wire::{Form, Stream};

/// vLLM's own limit for completions that name none.
const DEFAULT_TOKENS: u64 = 16;

/// A request with a prompt.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) form: Form,
    pub(super) fields: Map<String, Value>,
    /// Where limits, stop strings and the seed stand: the fields themselves, or `sampling_params`.
    pub(super) params: Map<String, Value>,
    pub(super) prompt: Vec<u32>,
    pub(super) lengths: Lengths,
    pub(super) faults: Vec<Rule>,
}

impl Direct {
    /// Reads a request for a completion.
    ///
    /// # Errors
    /// What vLLM 0.32 refuses, in its words.
    pub(super) fn completion(headers: &[(String, String)], body: &[u8], config: &Config) -> Result<Self, Refusal> {
        let fields = object(body)?;
        let (lengths, faults) = read_mock(&fields, headers)?;
        check_model(fields.get("model").and_then(Value::as_str).unwrap_or("mock"), config)?;
        let streams = fields.get("stream").and_then(Value::as_bool).unwrap_or(false);
        if !streams && fields.get("stream_options").is_some_and(|options| !options.is_null()) {
            return Err(Refusal::field("stream_options", "Stream options can only be defined when `stream=True`."));
        }
        check_limit(fields.get("max_tokens").and_then(Value::as_u64), config)?;
        let prompt = prompt(fields.get("prompt"), config)?;
        Ok(Self { form: Form::Text, params: fields.clone(), fields, prompt, lengths, faults })
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.fields.get(key).and_then(Value::as_bool)
    }

    pub(super) fn stream(&self) -> bool {
        self.flag("stream").unwrap_or(false)
    }

    fn option(&self, key: &str) -> bool {
        self.fields.get("stream_options").and_then(|options| options.get(key)?.as_bool()).unwrap_or(false)
    }

    fn limits(&self, config: &Config) -> Limits {
        let room = config.max_model_len.saturating_sub(self.prompt.len()) as u64;
        let own = if self.form == Form::Text { DEFAULT_TOKENS } else { room };
        let tokens = self.params.get("max_tokens").and_then(Value::as_u64).unwrap_or(own);
        limits(&self.params, Some(tokens))
    }

    pub(super) fn model<'a>(&self, config: &'a Config) -> Model<'a> {
        let family = Family::named(&config.family);
        let seed = self.params.get("seed").filter(|seed| !seed.is_null()).map(ToString::to_string).unwrap_or_default();
        let thinks = family.thinks && self.lengths.reasoning.unwrap_or(config.reasoning) > 0;
        Model { config, family, seed, lengths: self.lengths, thinks }
    }

    /// Checks it, in strict mode, against the first legs that have been seen, and decides what it is answered with. A request that continues
    /// none is noted as one itself.
    ///
    /// # Errors
    /// In strict mode, what is wrong with a continuation.
    pub(super) fn script(&self, config: &Config, ledger: &Ledger) -> Result<Vec<Choice>, Refusal> {
        let model = self.model(config);
        let place = model.after(&self.prompt);
        let original = ledger.before(&self.prompt, self.form != Form::Text);
        if config.strict {
            let checked = self.check(&model, &place, original.as_deref());
            checked.map_err(|reason| Refusal::bad(format!("mock-engine (strict): {reason}")))?;
        }
        if original.is_none() && self.form == Form::Text {
            ledger.note(Original { messages: Vec::new(), prompt: self.prompt.clone(), fields: self.fields.clone() });
        }
        let count = self.params.get("n").and_then(Value::as_u64).unwrap_or(1).clamp(1, 16);
        Ok((0..count).map(|index| self.choice(&model, &place, index)).collect())
    }

    fn choice(&self, model: &Model<'_>, place: &Place, index: u64) -> Choice {
        let skip = self.params.get("skip_special_tokens").and_then(Value::as_bool).unwrap_or(true);
        let rest = model.rest(&self.prompt, place, index);
        parsed(model.config, rest, &self.limits(model.config), Detok::new(&self.prompt, skip), None)
    }

    /// What a continuation must be: the first leg's prompt and the first tokens of its answer, and everything else as it was.
    fn check(&self, model: &Model<'_>, place: &Place, original: Option<&Original>) -> Result<(), String> {
        if place.at.is_none() {
            return Err("the prompt is not another one and the beginning of this engine's own answer to it".to_owned());
        }
        let Some(original) = original else { return Ok(()) };
        let written = &self.prompt[original.prompt.len()..];
        let line = model.line(&self.prompt[..place.header], place.thinks, 0);
        let is_text = self.fields.get("prompt").is_some_and(Value::is_string);
        if !is_text && !line.ids.starts_with(written) {
            return Err("the ids after the prompt's are not the first of the answer's".to_owned());
        }
        let tokens = written.len() as u64;
        if self.form != Form::Text {
            let theirs =
                ["max_completion_tokens", "max_tokens"].iter().find_map(|key| original.fields.get(*key)?.as_u64());
            let ours = self.params.get("max_tokens").and_then(Value::as_u64);
            let right = theirs.map(|all| all.saturating_sub(tokens));
            return match right.is_none() || right == ours {
                true => Ok(()),
                false => Err(format!("`max_tokens` must be {theirs:?} minus the {tokens} tokens written")),
            };
        }
        let (mut ours, mut theirs) = (self.fields.clone(), original.fields.clone());
        theirs.entry("max_tokens").or_insert(DEFAULT_TOKENS.into());
        for fields in [&mut ours, &mut theirs] {
            fields.shift_remove("prompt");
        }
        if is_text {
            return check_text_limits(&mut ours, &mut theirs)
                .and_then(|()| check_against(&ours, tokens, &Original { fields: theirs, ..Original::default() }));
        }
        if self.flag("return_token_ids") != Some(true) {
            return Err("a continuation by ids must have `return_token_ids: true`".to_owned());
        }
        check_against(&ours, tokens, &Original { fields: theirs, ..Original::default() })
    }

    /// The stream in which its choices are written.
    pub(super) fn stream_of<'a>(&self, config: &'a Config, id: String, choices: Vec<Choice>) -> Stream<'a> {
        let returns_ids = self.flag("return_token_ids").unwrap_or(false);
        let include_usage = self.option("include_usage");
        Stream {
            config,
            form: self.form,
            id,
            created: config.created.unwrap_or_else(now),
            model: self.fields.get("model").and_then(Value::as_str).unwrap_or("mock").to_owned(),
            role: String::new(),
            prompt_tokens: self.prompt.len() as u64,
            prompt_ids: returns_ids.then(|| self.prompt.clone()),
            returns_ids,
            include_usage,
            continuous_usage: include_usage && self.option("continuous_usage_stats"),
            choices,
        }
    }
}

/// Of a text it is not known how many tokens it was: the limit must only go down.
fn check_text_limits(ours: &mut Map<String, Value>, theirs: &mut Map<String, Value>) -> Result<(), String> {
    let (left, all) =
        (ours.get("max_tokens").and_then(Value::as_u64), theirs.get("max_tokens").and_then(Value::as_u64));
    for key in ["max_tokens", "min_tokens"] {
        ours.shift_remove(key);
        theirs.shift_remove(key);
    }
    match (left, all) {
        (Some(left), Some(all)) if left < all => Ok(()),
        _ => Err(format!("`max_tokens` must be less than {all:?}, and is {left:?}")),
    }
}

/// A body's fields.
///
/// # Errors
/// 400 when it is no JSON object.
pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, Refusal> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Refusal::bad("the body is not a JSON object")),
        Err(error) => Err(Refusal::bad(format!("the body is not JSON: {error}"))),
    }
}

/// One prompt: a string, a list of ids, or a list of one of these.
fn prompt(prompt: Option<&Value>, config: &Config) -> Result<Vec<u32>, Refusal> {
    match prompt {
        None | Some(Value::Null) => {
            Err(Refusal::field("prompt", "Either prompt or prompt_embeds must be provided and non-empty."))
        }
        Some(Value::String(text)) if text.is_empty() => {
            Err(Refusal::field("prompt", "Either prompt or prompt_embeds must be provided and non-empty."))
        }
        Some(Value::String(text)) => Ok(encode(text)),
        Some(Value::Array(list)) if list.is_empty() => Err(Refusal::bad("You must pass at least one prompt")),
        Some(Value::Array(list)) => match list.iter().map(Value::as_u64).collect::<Option<Vec<_>>>() {
            Some(ids) => check_ids(&ids, config, None),
            None if list.len() == 1 && !list[0].is_null() => self::prompt(Some(&list[0]), config),
            None => Err(Refusal::bad("mock-engine answers one prompt at a time, a string or a list of ids")),
        },
        Some(_) => Err(Refusal::bad("`prompt` is neither a string nor a list")),
    }
}

/// The answer that an engine with these settings gives to a request for a completion when nothing breaks: its first choice.
///
/// # Errors
/// The words with which the engine would refuse the request.
pub fn uncut_completion(config: &Config, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer, String> {
    let headers: Vec<_> =
        headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), (*value).to_owned())).collect();
    let config = &Config { tokens_per_event: 1, ..config.clone() };
    let direct = Direct::completion(&headers, body, config).map_err(|refusal| refusal.message)?;
    let model = direct.model(config);
    let choice = direct.choice(&model, &model.after(&direct.prompt), 0);
    let tokens = direct.prompt.len() as u64;
    Ok(Answer::of(&choice, direct.prompt, tokens))
}

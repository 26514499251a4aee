//! From the last assistant message to the place in the engine's own text where it goes on.
//!
//! This is the part of a real engine that a continuation stands or falls with: what the model gets to see of the
//! partial. On vLLM the message goes through the chat template (vLLM 0.33, `renderers/hf.py`; measured on 0.32 with
//! three Qwen3 templates); on SGLang the string is appended raw to the prompt, and everything else in the message is
//! discarded (0.5.23, `entrypoints/openai/serving_chat.py`).

use serde_json::{Map, Value};

use super::answer::model;
use super::ask::Ask;
use super::config::{Config, Template, Wire};
use super::family::Family;
use super::prompt::header;
use super::text::{Kind, Position, Text};
use super::validate::Refusal;

/// Where a continuation goes on.
#[derive(Clone, Debug)]
pub(super) struct Start {
    /// The text it belongs to: with or without thinking.
    pub(super) thinks: bool,
    /// The next byte.
    pub(super) at: Position,
    /// What the engine's parser takes the continued content for, when that is not content.
    pub(super) label: Option<Kind>,
    /// Bytes of white space at the partial's end that the model does not get to see, and will write again.
    pub(super) lost: usize,
    /// What is wrong with the partial; the engine answers nevertheless, with text that does not fit.
    pub(super) wrong: Option<String>,
}

/// What the model sees of the last message.
#[derive(Default, Debug)]
struct Shown {
    reasoning: Option<String>,
    /// Thinking is closed.
    closed: bool,
    content: String,
    /// White space cut off the end.
    lost: usize,
    /// A blank line stands before empty content.
    blank: bool,
    label: Option<Kind>,
    /// The template drops reasoning, so that it need not be given.
    drops: bool,
    wrong: Option<&'static str>,
}

/// The text of one choice of an answer.
pub(super) fn text_of(ask: &Ask, config: &Config, thinks: bool, choice: u64) -> Text {
    let model = model(ask, config, &Family::named(&config.family));
    model.text(&header(ask.prompt(), ask.tools()), thinks, choice)
}

/// Finds where the answer goes on.
///
/// # Errors
/// What the engine refuses before it starts.
pub(super) fn start(ask: &Ask, config: &Config, family: &Family) -> Result<Start, Refusal> {
    let thinks = family.thinks_with(&ask.kwargs());
    let message = match ask.last() {
        Some(message) if ask.last_role() == "assistant" => message,
        _ => return Ok(anew(ask, config, thinks, "the last message is not the assistant's")),
    };
    let shown = match config.wire {
        Wire::Vllm => through_template(message, config.template.unwrap_or(family.template), family)?,
        Wire::Sglang => match message.get("content") {
            Some(Value::String(content)) => appended_raw(content, family, thinks),
            Some(Value::Array(_)) => return Ok(anew(ask, config, thinks, "SGLang continues only string content")),
            _ => {
                let message = "can only concatenate str (not \"NoneType\") to str";
                return Err(Refusal::with_status(500, "InternalServerError", message));
            }
        },
    };
    Ok(place(ask, config, thinks, &shown))
}

fn anew(ask: &Ask, config: &Config, thinks: bool, wrong: &str) -> Start {
    let at = text_of(ask, config, thinks, 0).start();
    Start { thinks, at, label: None, lost: 0, wrong: Some(wrong.to_owned()) }
}

/// The text of a `content`: a string, or the text parts of a list.
fn content_text(content: Option<&Value>) -> Option<String> {
    match content? {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => Some(parts.iter().filter_map(|part| part.get("text")?.as_str()).collect()),
        _ => None,
    }
}

/// The reasoning in its own field; vLLM takes both names.
pub(super) fn separate_reasoning(message: &Map<String, Value>) -> Option<&str> {
    let field = |name| message.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    field("reasoning").or_else(|| field("reasoning_content"))
}

fn through_template(message: &Map<String, Value>, template: Template, family: &Family) -> Result<Shown, Refusal> {
    let reasoning = separate_reasoning(message);
    let Some(content) = content_text(message.get("content")) else {
        if let (Template::Qwen3, Some(reasoning)) = (template, reasoning) {
            return Ok(closed(reasoning, "", true));
        }
        return Err(Refusal::bad(
            "continue_final_message is set but we could not find any text to continue in the final message!",
        ));
    };
    let kept = match template {
        Template::Trim | Template::Qwen36 | Template::Qwen38 => content.trim(),
        Template::Mistral => content.trim_end_matches(' '),
        Template::Raw | Template::Qwen3 | Template::DeepseekV3 | Template::DeepseekR1 => &content,
    };
    let lost = match template {
        Template::Trim | Template::Qwen36 | Template::Qwen38 => content.len() - content.trim_end().len(),
        _ => content.len() - kept.len(),
    };
    let answer = |content: &str| Shown { closed: true, content: content.to_owned(), drops: true, ..Shown::default() };
    let shown = match template {
        Template::Raw | Template::Trim => match reasoning {
            Some(reasoning) => closed(reasoning, kept, false),
            None => split(kept, family),
        },
        Template::Qwen3 | Template::Qwen36 | Template::Qwen38 => qwen(template, reasoning, kept, family),
        Template::DeepseekV3 => {
            let content = kept.split_once(family.close).map_or(kept, |(_, content)| content);
            let open = content.starts_with(family.open);
            let wrong =
                open.then_some("the template closes thinking before the message, so thinking cannot be continued");
            Shown { wrong, ..answer(content) }
        }
        Template::Mistral => answer(kept),
        Template::DeepseekR1 if content.contains(family.close) => {
            return Err(Refusal::bad(
                "continue_final_message is set but the final message does not appear in the chat after applying the chat \
                 template! This can happen if the chat template deletes portions of the final message.",
            ));
        }
        Template::DeepseekR1 if content.starts_with(family.open) => split(kept, family),
        // No think token stands in the prompt, so the parser waits for the end of thinking (`BaseThinkingReasoningParser`).
        Template::DeepseekR1 => Shown { label: Some(Kind::Reasoning), ..answer(kept) },
    };
    Ok(Shown { lost, ..shown })
}

/// Thinking in its own field: rendered as a closed block.
fn closed(reasoning: &str, content: &str, blank: bool) -> Shown {
    Shown {
        reasoning: Some(reasoning.to_owned()),
        closed: true,
        content: content.to_owned(),
        blank,
        ..Shown::default()
    }
}

fn qwen(template: Template, reasoning: Option<&str>, content: &str, family: &Family) -> Shown {
    let keeps = template == Template::Qwen3;
    if let Some(reasoning) = reasoning {
        return closed(reasoning, content, keeps);
    }
    let string = split(content, family);
    let wrong = match (&string.reasoning, string.closed) {
        (Some(_), false) => {
            "the template puts an empty think block before an open one, so thinking cannot be continued"
        }
        (Some(_), true) if template == Template::Qwen38 => {
            "the template puts a second think block before the one in the string"
        }
        (Some(_), true) => {
            let trimmed = if keeps { &string.content } else { string.content.trim() };
            return closed(string.reasoning.as_deref().unwrap_or_default(), trimmed, keeps);
        }
        (None, _) => return Shown { closed: true, blank: keeps, ..string },
    };
    Shown { wrong: Some(wrong), ..string }
}

fn appended_raw(content: &str, family: &Family, thinks: bool) -> Shown {
    let shown = split(content, family);
    match (&shown.reasoning, shown.closed) {
        (Some(_), false) if !thinks => {
            Shown { wrong: Some("thinking is switched off, but the partial is still thinking"), ..shown }
        }
        // The parser is told to expect thinking and finds no tag that ends it (`parser/reasoning_parser.py`).
        (None, _) if thinks => Shown { label: Some(Kind::Reasoning), ..shown },
        _ => shown,
    }
}

/// Reads think tags in a string. The opening one may be missing where the template has written it already.
fn split(text: &str, family: &Family) -> Shown {
    let opened = text.strip_prefix(family.open);
    let (reasoning, content) = match opened.unwrap_or(text).split_once(family.close) {
        Some((reasoning, content)) => (Some(reasoning), content),
        None if opened.is_some() => (opened, ""),
        None => (None, text),
    };
    Shown {
        closed: text.contains(family.close) || reasoning.is_none(),
        reasoning: reasoning.map(str::to_owned),
        content: content.to_owned(),
        ..Shown::default()
    }
}

/// Compares what the model sees with the engine's own text.
fn place(ask: &Ask, config: &Config, thinks: bool, shown: &Shown) -> Start {
    let with = text_of(ask, config, true, 0);
    let start = |thinks, kind, offset| Start {
        thinks,
        at: Position { kind, offset },
        label: None,
        lost: shown.lost,
        wrong: None,
    };
    let wrong = |start: Start, why: &str| Start { label: None, lost: 0, wrong: Some(why.to_owned()), ..start };
    if let Some(why) = shown.wrong {
        return wrong(anew(ask, config, thinks, ""), why);
    }
    let Some(reasoning) = &shown.reasoning else { return place_content(ask, config, thinks, shown) };
    let thoughts = with.whole(Kind::Reasoning);
    if !shown.closed {
        return match prefix(&thoughts, reasoning) {
            Some(offset) => start(true, Kind::Reasoning, offset),
            None => wrong(anew(ask, config, true, ""), "the reasoning is not the beginning of this engine's own"),
        };
    }
    let answer = with.whole(Kind::Content);
    let Some(offset) = content_offset(&answer, shown) else {
        return wrong(anew(ask, config, true, ""), "the content is not the beginning of this engine's own");
    };
    let start = start(true, Kind::Content, offset);
    if reasoning.trim() == thoughts.trim() {
        start
    } else if shown.content.is_empty() && prefix(&thoughts, reasoning).is_some() {
        wrong(start, "the template closes the think block, but thinking is not over")
    } else {
        wrong(start, "the reasoning is not this engine's own")
    }
}

/// Content without any reasoning beside it: of a model that did not think, or whose thoughts are not shown to it again.
fn place_content(ask: &Ask, config: &Config, thinks: bool, shown: &Shown) -> Start {
    // Exactly first: leading white space tells an answer after thinking from one without.
    for (exact, candidate) in [(true, thinks), (true, !thinks), (false, thinks), (false, !thinks)] {
        let text = text_of(ask, config, candidate, 0);
        // Where the template has opened the think block, a string without tags can be the thoughts themselves.
        if shown.label.is_some() && config.wire == Wire::Sglang && candidate {
            let thoughts = text.whole(Kind::Reasoning);
            if let Some(offset) = prefix(&thoughts, &shown.content).filter(|offset| *offset > 0) {
                let at = Position { kind: Kind::Reasoning, offset };
                return Start { thinks: true, at, label: None, lost: shown.lost, wrong: None };
            }
        }
        let own = text.whole(Kind::Content);
        let offset = content_offset(&own, shown).filter(|_| !exact || own.starts_with(&shown.content));
        if let Some(offset) = offset {
            let at = Position { kind: Kind::Content, offset };
            let has_thoughts = !text.whole(Kind::Reasoning).is_empty();
            let label = shown.label.filter(|_| has_thoughts);
            let missing = has_thoughts && !shown.drops;
            let wrong = missing.then(|| "the content follows thinking, but the reasoning is not given".to_owned());
            return Start { thinks: candidate, at, label, lost: shown.lost, wrong };
        }
    }
    let start = anew(ask, config, thinks, "the content is not the beginning of this engine's own");
    Start { label: shown.label.filter(|_| thinks), ..start }
}

/// Bytes of `own` that `given` covers, if it is a beginning of it. A newline after the opening tag may be the template's.
fn prefix(own: &str, given: &str) -> Option<usize> {
    let rest = given.strip_prefix('\n').unwrap_or(given);
    [given, rest].into_iter().find(|text| own.starts_with(text)).map(str::len)
}

/// As [`prefix`], for content: white space at the start may have been lost or may be the template's.
fn content_offset(own: &str, shown: &Shown) -> Option<usize> {
    let given = &shown.content;
    let lead = own.len() - own.trim_start().len();
    if shown.blank && given.trim_start_matches('\n').is_empty() {
        return Some(if own.starts_with("\n\n") { 2 } else { 0 });
    }
    if own.starts_with(given.as_str()) {
        return Some(given.len());
    }
    let given = given.trim_start();
    (!given.is_empty() && own.trim_start().starts_with(given)).then_some(lead + given.len())
}

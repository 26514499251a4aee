//! Events as a chat leg sends them: vLLM's shape (0.32, entrypoints/openai/chat_completion/serving.py).

use serde_json::{Map, Value, json};

use super::batch::{Batch, Finish};
use super::overlap::{Call, Piece};
use crate::proto::chat::TokenIds;
use crate::proto::chat::json::{self, Object};
use crate::proto::sse;

/// Writes one leg's events.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Writer {
    id: String,
    model: String,
    created: Option<u64>,
    /// The engine's chat completions count the tokens of thinking.
    counts_reasoning: bool,
    /// The ids before this leg, for its first event.
    context: Option<TokenIds>,
    /// The client wants usage with every event: how many tokens this leg's prompt has.
    continuous: Option<usize>,
    /// Tokens of this leg whose text is out.
    completion: u64,
    /// Those of them that were thinking.
    reasoning: u64,
    /// The last derendered text was thinking.
    thinking: bool,
}

impl Writer {
    /// What every event repeats, as far as the render step tells.
    pub(super) fn name(&mut self, id: &str, model: Option<&str>, counts_reasoning: bool) {
        id.clone_into(&mut self.id);
        model.unwrap_or_default().clone_into(&mut self.model);
        self.counts_reasoning = counts_reasoning;
    }

    /// What the derender step adds. The first answer counts.
    pub(super) fn head(&mut self, created: Option<u64>, model: &str) {
        if self.created.is_none() {
            self.created = created;
            model.clone_into(&mut self.model);
        }
    }

    /// The leg begins. `context`: the ids before it, if they are to be told; `continuous`: their number, if usage comes with every
    /// event.
    pub(super) fn open(&mut self, context: Option<&TokenIds>, continuous: Option<usize>) {
        self.context = context.cloned();
        self.continuous = continuous;
    }

    /// The event that names the role.
    pub(super) fn role(&mut self, out: &mut Vec<u8>) {
        let choice =
            json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null});
        let mut event = self.event(&json!([choice]));
        if let Some(context) = self.context.take() {
            event.set("prompt_token_ids", json::raw_text(context.to_json()));
        }
        self.write(out, event);
    }

    /// Counts a batch's tokens. A batch that ends thinking has nothing of the answer in it; where the engine does not say what text
    /// its tokens are, one that has both may have a token of either too many.
    pub(super) fn count(&mut self, batch: &Batch, reasoned: bool, answered: bool) {
        let ids = batch.ids.len() as u64;
        self.completion += ids;
        let thought = reasoned || (self.thinking && !answered);
        if thought {
            let marks = if !batch.told && answered { 1 } else { batch.marks as u64 };
            self.reasoning += ids.saturating_sub(marks + batch.stops() as u64);
        }
        self.thinking = thought && !answered && !batch.closes;
    }

    /// One event for each piece; the finish reason and the tokens' ids on the last. Without a piece there is one only for these.
    pub(super) fn pieces(&self, out: &mut Vec<u8>, pieces: &[Piece], finish: Option<&Finish>, ids: Option<&TokenIds>) {
        let mut deltas: Vec<Value> = pieces.iter().map(delta).collect();
        if deltas.is_empty() && (finish.is_some() || ids.is_some_and(|ids| !ids.is_empty())) {
            deltas.push(json!({}));
        }
        let last = deltas.len().saturating_sub(1);
        for (at, delta) in deltas.into_iter().enumerate() {
            let mut choice = Object::default();
            choice.set("index", json::raw(&0));
            choice.set("delta", json::raw(&delta));
            choice.set("logprobs", json::raw(&()));
            let finish = finish.filter(|_| at == last);
            choice.set("finish_reason", json::raw(&finish.map(|finish| &finish.reason)));
            if let Some(finish) = finish {
                choice.set("stop_reason", json::raw_text(finish.stop.clone()));
            }
            // None are missing from the others: they are all told, at the end.
            let ids = match ids {
                None => "null".to_owned(),
                Some(ids) if at == last => ids.to_json(),
                Some(_) => "[]".to_owned(),
            };
            choice.set("token_ids", json::raw_text(ids));
            let event = self.event(&json!([choice.to_raw()]));
            self.write(out, event);
        }
    }

    /// The event behind the finish reason: the generating stream's own count, and the thinking in it.
    pub(super) fn usage(&self, out: &mut Vec<u8>, usage: &str) {
        let Ok(mut usage) = Object::parse(usage).map(Object::into_owned) else { return };
        if self.counts_reasoning && !usage.has("completion_tokens_details") {
            usage.set("completion_tokens_details", json::raw(&json!({"reasoning_tokens": self.reasoning})));
        }
        let mut event = self.event(&json!([]));
        event.set("usage", usage.to_raw());
        sse::encode(out, None, None, event.to_text().as_bytes());
    }

    fn event(&self, choices: &Value) -> Object<'static> {
        let mut event = Object::default();
        event.set("id", json::raw(&self.id));
        event.set("object", json::raw("chat.completion.chunk"));
        if let Some(created) = self.created {
            event.set("created", json::raw(&created));
        }
        event.set("model", json::raw(&self.model));
        event.set("choices", json::raw(choices));
        event
    }

    fn write(&self, out: &mut Vec<u8>, mut event: Object<'static>) {
        if let Some(prompt) = self.continuous {
            let prompt = prompt as u64;
            let mut usage = json!({
                "prompt_tokens": prompt, "total_tokens": prompt + self.completion, "completion_tokens": self.completion
            });
            if self.counts_reasoning {
                usage["completion_tokens_details"] = json!({"reasoning_tokens": self.reasoning});
            }
            event.set("usage", json::raw(&usage));
        }
        sse::encode(out, None, None, event.to_text().as_bytes());
    }
}

fn delta(piece: &Piece) -> Value {
    match piece {
        Piece::Reasoning(text) => json!({"reasoning": text}),
        Piece::Content(text) => json!({"content": text}),
        Piece::Call(call) => json!({"tool_calls": [tool_call(call)]}),
    }
}

fn tool_call(call: &Call) -> Value {
    let mut function = Map::new();
    if let Some(name) = &call.name {
        function.insert("name".to_owned(), json!(name));
    }
    if !call.arguments.is_empty() {
        function.insert("arguments".to_owned(), json!(call.arguments));
    }
    let mut piece = Map::new();
    if let Some(id) = &call.id {
        piece.insert("id".to_owned(), json!(id));
        piece.insert("type".to_owned(), json!("function"));
    }
    piece.insert("index".to_owned(), json!(call.index));
    piece.insert("function".to_owned(), Value::Object(function));
    Value::Object(piece)
}

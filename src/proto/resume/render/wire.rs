//! The bodies of the five endpoints, as vLLM 0.32 has them (entrypoints/scale_out/token_in_token_out/protocol.py,
//! entrypoints/serve/tokenize/protocol.py).

use std::fmt::Write as _;

use super::batch::Finish;
use super::overlap::Delta;
use super::{Broken, DERENDER, RENDER, Refused};
use crate::proto::chat::json::{self, Object};
use crate::proto::chat::{Parsed, TokenIds, parse};

/// Most tool calls whose ids are carried from call to call.
const MAX_CALLS: usize = 1024;

/// What `/v1/chat/completions/render` says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rendered {
    /// The whole answer: nearly a generate request.
    text: String,
    /// What the answer calls itself.
    pub(super) id: String,
    /// The engine has a reasoning parser: its chat completions count the tokens of thinking, and nobody else has to look for marks.
    pub(super) parses_reasoning: bool,
    /// The client wants to see what ended the answer.
    pub(super) stop_is_text: bool,
    max_tokens: Option<u64>,
}

impl Rendered {
    /// The answer, and the prompt's ids.
    pub(super) fn read(body: &str) -> Result<(Self, TokenIds), Broken> {
        let malformed = |what| Broken::Malformed { path: RENDER, what };
        let fields = Object::parse(body).map_err(|_| malformed("object"))?;
        let ids = fields.get("token_ids").and_then(|ids| TokenIds::read(ids.get()));
        let ids = ids.filter(|ids| !ids.is_empty()).ok_or_else(|| malformed("token_ids"))?;
        let sampling = fields.get("sampling_params").and_then(|params| Object::parse(params.get()).ok());
        let sampling = sampling.ok_or_else(|| malformed("sampling_params"))?;
        if fields.has("features") {
            return Err(Refused::Media.into());
        }
        let rendered = Self {
            text: body.to_owned(),
            id: fields.text("request_id").unwrap_or_default(),
            parses_reasoning: fields.has("reasoning_parser_kwargs"),
            stop_is_text: sampling.get("include_stop_str_in_output").is_some_and(|value| value.get() == "true"),
            max_tokens: sampling.get("max_tokens").and_then(json::whole_number),
        };
        Ok((rendered, ids))
    }

    /// Whether an answer of so many tokens is as long as it may be. The engine has put the request's own limit, its default or
    /// the rest of the context into `max_tokens` (vLLM 0.32, entrypoints/serve/utils/api_utils.py `get_max_tokens`).
    pub(super) fn is_spent(&self, answer: usize) -> bool {
        self.max_tokens.is_some_and(|limit| limit <= answer as u64)
    }

    /// The body of `/inference/v1/generate` for what follows `answer`: as rendered, less the tokens that are there. The
    /// budget of thinking stays: vLLM counts the thinking that it finds in the prompt (0.32, v1/sample/thinking_budget_state.py).
    pub(super) fn generate(&self, prompt: &TokenIds, answer: &TokenIds) -> String {
        let mut body = Object::parse(&self.text).unwrap_or_default().into_owned();
        let mut sampling = body.get("sampling_params").and_then(|params| Object::parse(params.get()).ok());
        if let Some(sampling) = &mut sampling {
            for key in ["max_tokens", "min_tokens"] {
                if let Some(limit) = sampling.get(key).and_then(json::whole_number) {
                    sampling.set(key, json::raw(&limit.saturating_sub(answer.len() as u64)));
                }
            }
        }
        if let Some(sampling) = sampling.map(|sampling| sampling.to_raw()) {
            body.set("sampling_params", sampling);
        }
        let mut ids = String::from("[");
        prompt.write_json(&mut ids);
        if !prompt.is_empty() && !answer.is_empty() {
            ids.push(',');
        }
        answer.write_json(&mut ids);
        ids.push(']');
        body.set("token_ids", json::raw_text(ids));
        body.set("stream", json::raw(&true));
        body.set("stream_options", json::raw(&serde_json::json!({"include_usage": true})));
        // The text shows where a token ends half a character or half a mark; what is delivered comes from derender.
        body.set("output_mode", json::raw("text"));
        // Of the client's prompt alone, and of no use for a longer one.
        for key in ["token_offsets", "reasoning_ended"] {
            body.set(key, json::raw(&()));
        }
        body.to_text()
    }
}

/// A request of `/v1/chat/completions/derender`.
#[derive(Debug)]
pub(super) struct Derender<'a> {
    pub(super) model: Option<&'a str>,
    /// What is to be made text.
    pub(super) ids: &'a TokenIds,
    pub(super) finish: Option<&'a Finish>,
    /// What has been.
    pub(super) before: &'a TokenIds,
    /// In these pieces.
    pub(super) pieces: &'a [usize],
    pub(super) tools_streamed: bool,
    pub(super) call_ids: &'a [String],
    pub(super) prompt: &'a TokenIds,
    /// The client's request.
    pub(super) chat: &'a str,
}

impl Derender<'_> {
    pub(super) fn to_json(&self) -> String {
        let ids = self.ids.len() + self.before.len() + self.prompt.len();
        let mut body = String::with_capacity(self.chat.len() + ids * 7 + 512);
        body.push_str(r#"{"stream":true"#);
        if let Some(model) = self.model {
            let _ = write!(body, r#","model":{}"#, json::raw(model));
        }
        body.push_str(r#","generate_chunk":{"request_id":"-","choices":[{"index":0,"token_ids":["#);
        self.ids.write_json(&mut body);
        body.push(']');
        if let Some(finish) = self.finish {
            let _ = write!(body, r#","finish_reason":{},"stop_reason":{}"#, json::raw(&finish.reason), finish.stop);
        }
        body.push_str(r#"}]},"stream_state":{"role_sent":true,"output_token_ids":["#);
        self.before.write_json(&mut body);
        body.push_str(r#"],"output_chunk_lens":"#);
        // Writing to a string cannot fail.
        let _ = write!(body, "{}", json::raw(self.pieces));
        let _ = write!(body, r#","tools_streamed":{},"last_tool_call_ids":"#, self.tools_streamed);
        let _ = write!(body, r#"{}}},"prompt_token_ids":["#, json::raw(self.call_ids));
        self.prompt.write_json(&mut body);
        let _ = write!(body, r#"],"chat_request":{}}}"#, self.chat);
        body
    }
}

/// What `/v1/chat/completions/derender` says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Derendered {
    pub(super) delta: Delta,
    /// The finish reason in the parser's eyes: `tool_calls` if it has seen any.
    pub(super) finish: Option<String>,
    pub(super) created: Option<u64>,
    pub(super) model: String,
    pub(super) tools_streamed: bool,
    pub(super) call_ids: Vec<String>,
}

impl Derendered {
    pub(super) fn read(body: &str) -> Result<Self, Broken> {
        let malformed = |what| Broken::Malformed { path: DERENDER, what };
        let fields = Object::parse(body).map_err(|_| malformed("object"))?;
        let chunk = fields.get("chunk").map(|chunk| parse(chunk.get().as_bytes()));
        let Some(Ok(Parsed::Chunk(chunk))) = chunk else { return Err(malformed("chunk")) };
        let state = fields.get("stream_state").and_then(|state| Object::parse(state.get()).ok());
        let state = state.ok_or_else(|| malformed("stream_state"))?;
        let call_ids =
            state.get("last_tool_call_ids").and_then(|ids| serde_json::from_str::<Vec<String>>(ids.get()).ok());
        let call_ids = call_ids.filter(|ids| ids.len() <= MAX_CALLS).ok_or_else(|| malformed("last_tool_call_ids"))?;
        let choice = match chunk.choices.as_slice() {
            [choice] if !choice.opaque => choice,
            _ => return Err(malformed("choice")),
        };
        Ok(Self {
            delta: Delta::of(choice),
            finish: choice.finish_reason.as_ref().map(|reason| reason.name().to_owned()),
            created: chunk.created,
            model: chunk.model.clone().into_owned(),
            tools_streamed: state.get("tools_streamed").is_some_and(|streamed| streamed.get() == "true"),
            call_ids,
        })
    }
}

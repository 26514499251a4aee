//! At every cut, against a model of the engine: it derenders as the recorded chat completion did (measured on vLLM 0.32: one parser
//! step over all tokens says the same as a step for each), and generates the recorded ids.

use serde_json::{Value, json};

use super::*;

const STORY: &str = include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/step.json");
const WEATHER: &str = include_str!("../../../../../tests/fixtures/vllm-0.32/scale-out/tool-named.json");

/// An engine that knows one answer.
pub(super) struct Engine {
    pub(super) request: ChatRequest,
    /// The request as derender calls have to repeat it.
    chat: Value,
    pub(super) uncut: Vec<String>,
    pub(super) prompt: Vec<u32>,
    pub(super) ids: Vec<u32>,
    /// The answer after each number of tokens.
    after: Vec<Whole>,
    finish: String,
    /// The longest derendered piece, and the number of calls.
    pub(super) derendered: Vec<usize>,
}

impl Engine {
    pub(super) fn story() -> Self {
        Self::of(STORY)
    }

    pub(super) fn weather() -> Self {
        Self::of(WEATHER)
    }

    fn of(recording: &str) -> Self {
        let recording: Value = serde_json::from_str(recording).unwrap();
        let uncut = events(recording["uncut"].as_str().unwrap().as_bytes());
        let (whole, ids) = first_leg(&uncut);
        let mut after = vec![Whole::of(&Partial::default())];
        for event in 0..uncut.len() {
            let (partial, ids) = first_leg(&uncut[..=event]);
            if ids.answer.len() == after.len() {
                after.push(Whole::of(&partial));
            }
        }
        assert_eq!(after.len(), ids.answer.len() + 1, "one token for each event");
        let finish = match whole.first().unwrap().finish.as_ref().unwrap() {
            FinishReason::ToolCalls => "stop",
            other => other.name(),
        };
        Self {
            request: ChatRequest::parse(recording["request"].to_string().as_bytes()).unwrap(),
            chat: recording["request"].clone(),
            uncut,
            prompt: ids.prompt.iter().collect(),
            ids: ids.answer.iter().collect(),
            after,
            finish: finish.to_owned(),
            derendered: Vec::new(),
        }
    }

    /// The text of the first `count` tokens, marks and all.
    fn raw(&self, count: usize) -> String {
        (0..count).map(|at| self.text(at)).collect()
    }

    /// The text of one token.
    fn text(&self, at: usize) -> String {
        let new = |texts: fn(&Whole) -> &str| texts(&self.after[at + 1])[texts(&self.after[at]).len()..].to_owned();
        match self.ids[at] {
            151_668 => "</think>".to_owned(),
            _ => new(|whole| &whole.reasoning) + &new(|whole| &whole.content),
        }
    }

    pub(super) fn answer(&mut self, question: &Question) -> Value {
        let ask: Value = serde_json::from_slice(&question.body).unwrap();
        let list = |value: &Value| {
            value.as_array().map(|ids| ids.iter().map(|id| id.as_u64().unwrap() as u32).collect::<Vec<_>>())
        };
        match question.path {
            RENDER => json!({
                "request_id": "chatcmpl-1", "token_ids": self.prompt, "features": null, "reasoning_parser_kwargs": {},
                "sampling_params": {"max_tokens": 1000, "min_tokens": 5, "thinking_token_budget": 500, "seed": 7}
            }),
            DETOKENIZE => {
                assert!(self.prompt.ends_with(&list(&ask["tokens"]).unwrap()));
                json!({"prompt": "assistant\n<think>\n"})
            }
            TOKENIZE => {
                let text = ask["prompt"].as_str().unwrap();
                let count = (0..self.after.len()).rev().find(|count| self.raw(*count) == text);
                json!({"tokens": self.ids[..count.expect("a text that was generated")]})
            }
            DERENDER => {
                let state = &ask["stream_state"];
                let before = list(&state["output_token_ids"]).unwrap();
                let lengths = list(&state["output_chunk_lens"]).unwrap();
                assert_eq!(lengths.iter().sum::<u32>() as usize, before.len());
                let choice = &ask["generate_chunk"]["choices"][0];
                let new = list(&choice["token_ids"]).unwrap();
                assert_eq!([before.clone(), new.clone()].concat(), self.ids[..before.len() + new.len()]);
                assert_eq!(list(&ask["prompt_token_ids"]).unwrap(), self.prompt);
                assert_eq!(ask["chat_request"], self.chat);
                self.derendered.push(new.len());
                self.derender(before.len(), before.len() + new.len(), choice, state)
            }
            other => panic!("{other}"),
        }
    }

    fn derender(&self, from: usize, to: usize, choice: &Value, state: &Value) -> Value {
        let (old, new) = (&self.after[from], &self.after[to]);
        let mut delta = json!({"role": null, "content": new.content[old.content.len()..], "reasoning": new.reasoning[old.reasoning.len()..]});
        let mut calls = Vec::new();
        let mut pinned: Vec<Value> = state["last_tool_call_ids"].as_array().unwrap().clone();
        for (at, call) in new.calls.iter().enumerate() {
            let had = old.calls.get(at);
            if had.is_none() {
                if pinned.len() <= at {
                    pinned.push(json!("call-new"));
                }
                calls.push(json!({"id": pinned[at], "type": "function", "index": at, "function": {"name": call.name}}));
            }
            let arguments = &call.arguments[had.map_or(0, |had| had.arguments.len())..];
            if !arguments.is_empty() {
                calls.push(json!({"index": at, "function": {"arguments": arguments}}));
            }
        }
        let streamed = state["tools_streamed"] == true || !calls.is_empty();
        if !calls.is_empty() {
            delta["tool_calls"] = json!(calls);
        }
        let finish = match &choice["finish_reason"] {
            Value::String(_) if streamed => json!("tool_calls"),
            other => other.clone(),
        };
        json!({
            "chunk": {"id": "x", "object": "chat.completion.chunk", "created": 7, "model": "tiny",
                      "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]},
            "stream_state": {"tools_streamed": streamed, "last_tool_call_ids": pinned}
        })
    }

    /// The generating stream behind what the question has, one event for each token.
    pub(super) fn generate(&self, question: &Question) -> Vec<Vec<u8>> {
        assert_eq!(question.path, GENERATE);
        let ask: Value = serde_json::from_slice(&question.body).unwrap();
        let given: Vec<u32> =
            ask["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let all = [self.prompt.clone(), self.ids.clone()].concat();
        assert!(all.starts_with(&given));
        let from = given.len() - self.prompt.len();
        assert_eq!(ask["sampling_params"]["max_tokens"], 1000 - from);
        assert_eq!(ask["sampling_params"]["min_tokens"], 5_usize.saturating_sub(from));
        assert_eq!(ask["sampling_params"]["seed"], 7, "what is no budget stays as it is");
        let mut stream = Vec::new();
        for at in from..self.ids.len() {
            let finish = if at + 1 == self.ids.len() { json!(self.finish) } else { Value::Null };
            let choice = json!({"index": 0, "token_ids": [self.ids[at]], "text": self.text(at), "finish_reason": finish, "stop_reason": null});
            stream.push(
                format!("data: {}\n\n", json!({"request_id": "g", "choices": [choice], "usage": null})).into_bytes(),
            );
        }
        let count = self.ids.len() - from;
        let usage =
            json!({"prompt_tokens": given.len(), "total_tokens": given.len() + count, "completion_tokens": count});
        stream.push(format!("data: {}\n\n", json!({"choices": [], "usage": usage})).into_bytes());
        stream.push(b"data: [DONE]\n\n".to_vec());
        stream
    }

    /// Runs a leg to its end.
    pub(super) fn run(&mut self, mut leg: Rendering) -> Result<Vec<String>, Broken> {
        let (mut out, mut stream) = (Vec::new(), Vec::new().into_iter());
        loop {
            match leg.poll()? {
                Need::Ask(question) => {
                    let answer = self.answer(&question);
                    leg.answered(200, answer.to_string().as_bytes());
                }
                Need::Generate(question) => {
                    stream = self.generate(&question).into_iter();
                    leg.opened();
                }
                Need::Bytes(bytes) => out.extend(bytes),
                Need::More => match stream.next() {
                    Some(bytes) => leg.generated(&bytes),
                    None => leg.generate_ended(),
                },
                Need::End => return Ok(events(&out)),
            }
        }
    }

    fn leg(&self, partial: &Partial, ids: Option<KnownIds>, derender_every: usize) -> Rendering {
        let settings = Settings { derender_every, ..Settings::default() };
        Rendering::new(&self.request, partial, ids, &family(), settings).unwrap()
    }

    /// The whole answer, for a client that has seen `had` of its calls: those it has not seen get another id.
    fn whole(&self, had: usize) -> Whole {
        let mut whole = Whole::of(&first_leg(&self.uncut).0);
        for call in whole.calls.iter_mut().skip(had) {
            call.id = Some("call-new".to_owned());
        }
        whole
    }

    /// Where the uncut stream may be cut: before anything but the finish reason is missing.
    fn cuts(&self) -> std::ops::Range<usize> {
        1..self.uncut.len() - 3
    }
}

#[test]
fn the_rest_is_the_same_at_every_cut_and_with_batches_of_any_size() {
    for engine in [Engine::story, Engine::weather] {
        for (every, step) in [(8, 1), (1, 30), (3, 11), (1000, 17)] {
            let mut engine = engine();
            for cut in engine.cuts().step_by(step) {
                let (partial, ids) = first_leg(&engine.uncut[..cut]);
                let had = partial.first().map_or(0, |choice| choice.tool_calls.len());
                let left = engine.ids.len() - ids.answer.len();
                let leg = engine.leg(&partial, Some(ids), every);
                let (whole, usage) = second_leg(partial, &engine.run(leg).unwrap());
                assert_eq!(whole, engine.whole(had), "cut {cut}, {every} at a time");
                assert_eq!(usage.completion_tokens as usize, left);
            }
        }
    }
}

#[test]
fn text_that_leg_1_withheld_comes_first_and_once() {
    for engine in [Engine::story, Engine::weather] {
        let mut engine = engine();
        for cut in engine.cuts().filter(|cut| *cut > 6 && (*cut < 28 || *cut > 84)) {
            for withheld in 1..6 {
                // The client has the text of fewer tokens than there are ids.
                let (_, ids) = first_leg(&engine.uncut[..cut]);
                let (partial, _) = first_leg(&engine.uncut[..cut - withheld]);
                let had = partial.first().map_or(0, |choice| choice.tool_calls.len());
                let leg = engine.leg(&partial, Some(ids), 8);
                let (whole, _) = second_leg(partial, &engine.run(leg).unwrap());
                assert_eq!(whole, engine.whole(had), "cut {cut}, {withheld} tokens withheld");
            }
        }
    }
}

#[test]
fn without_ids_the_text_is_tokenized_as_the_model_wrote_it() {
    let mut engine = Engine::story();
    for cut in engine.cuts().filter(|cut| *cut > 1) {
        let (partial, _) = first_leg(&engine.uncut[..cut]);
        let leg = engine.leg(&partial, None, 8);
        let (whole, _) = second_leg(partial, &engine.run(leg).unwrap());
        assert_eq!(whole, engine.whole(0), "cut {cut}");
    }
}

#[test]
fn thinking_is_counted_to_the_token() {
    let mut engine = Engine::story();
    let thinking = engine.ids.iter().position(|id| *id == 151_668).unwrap();
    for cut in engine.cuts() {
        let (partial, ids) = first_leg(&engine.uncut[..cut]);
        let left = thinking.saturating_sub(ids.answer.len());
        let leg = engine.leg(&partial, Some(ids), 8);
        let (_, usage) = second_leg(partial, &engine.run(leg).unwrap());
        assert_eq!(usage.reasoning_tokens, Some(left as u64), "cut {cut}");
    }
}

#[test]
fn as_many_tokens_are_derendered_at_a_time_as_was_configured() {
    let mut engine = Engine::story();
    let (seen, known) = first_leg(&engine.uncut[..92]);
    assert_eq!((known.answer.len(), engine.ids.len()), (91, 104));
    let leg = engine.leg(&seen, Some(known), 5);
    engine.run(leg).unwrap();
    assert_eq!(engine.derendered, [91, 5, 5, 3], "the seam, full batches, the rest with the finish reason");
}

#[test]
fn continuous_usage_counts_the_tokens_whose_text_is_out() {
    let mut engine = Engine::story();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    engine.request.set("stream_options", &options);
    engine.chat["stream_options"] = options;
    let (partial, ids) = first_leg(&engine.uncut[..81]);
    let leg = engine.leg(&partial, Some(ids), 8);
    let counts: Vec<_> = engine
        .run(leg)
        .unwrap()
        .iter()
        .filter_map(|event| {
            let event: Value = serde_json::from_str(event).ok()?;
            Some((
                event["usage"]["completion_tokens"].as_u64()?,
                event["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64()?,
            ))
        })
        .collect();
    // Eight tokens of thinking are left, and the mark behind them, which is a batch of its own, without an event.
    assert_eq!(counts, [(0, 0), (8, 8), (17, 8), (24, 8), (24, 8)]);
}

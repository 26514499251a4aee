//! Streams for tests: exchanges recorded with vLLM 0.32, and SGLang's shapes written after its source (0.5.23,
//! entrypoints/openai/serving_chat.py and protocol.py).

use super::{Chunk, Parsed, Partial, parse};

macro_rules! recorded {
    ($($name:ident = $file:literal),* $(,)?) => {
        $(pub(crate) const $name: &str = include_str!(concat!("../../../tests/fixtures/vllm-0.32/", $file));)*
    };
}

recorded! {
    INCLUDE_USAGE = "include_usage.sse",
    CONTINUOUS_USAGE = "continuous_usage.sse",
    TOKEN_IDS = "token_ids.sse",
    LOGPROBS = "logprobs.sse",
    CONTENT = "content.sse",
    TOOL_CALL = "tool_call.sse",
    STEP_IN_ONE_EVENT = "step_in_one_event.sse",
    HELD_BACK_MARK = "held_back_mark.sse",
    MANY_SCRIPTS = "token_ids_many_scripts.sse",
    ABORT = "abort.sse",
    ENGINE_KILLED = "engine_killed.sse",
    COMPLETION = "completion.sse",
    COMPLETION_IDS = "completion_token_ids.sse",
    COMPLETION_USAGE = "completion_continuous_usage.sse",
    COMPLETION_STOP = "completion_stop.sse",
    COMPLETION_ERROR = "completion_error.sse",
}

pub(crate) const SGLANG: &str = r#"
data: {"id":"a1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":null,"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"matched_stop":null}]}
data: {"id":"a1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":"Let me\n"},"logprobs":null,"finish_reason":null,"matched_stop":null}]}
data: {"id":"a1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":"think."},"logprobs":null,"finish_reason":null,"matched_stop":null}]}
data: {"id":"a1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":null,"content":"你好 \ud83d\ude00"},"logprobs":null,"finish_reason":null,"matched_stop":null}]}
data: {"id":"a1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":null,"content":", \"friend\""},"logprobs":null,"finish_reason":null,"matched_stop":null}]}
data: {"id":"a1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"reasoning_content":null},"logprobs":null,"finish_reason":"stop","matched_stop":151645}]}
data: {"id":"a1","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":12,"total_tokens":21,"completion_tokens":9,"prompt_tokens_details":null,"reasoning_tokens":4}}
data: [DONE]
"#;

/// SGLang's completions have no recording either (0.5.23, entrypoints/openai/serving_completions.py).
pub(crate) const SGLANG_COMPLETION: &str = r#"
data: {"id":"a1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":" once","logprobs":null,"finish_reason":null,"matched_stop":null}]}
data: {"id":"a1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":" 你","logprobs":null,"finish_reason":null,"matched_stop":null}]}
data: {"id":"a1","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length","matched_stop":null}]}
data: {"id":"a1","object":"text_completion","created":7,"model":"m","choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":null,"reasoning_tokens":0}}
data: [DONE]
"#;

/// The data of each event.
pub(crate) fn events(sse: &str) -> impl Iterator<Item = &str> {
    sse.lines().filter_map(|line| line.strip_prefix("data: "))
}

/// The data of an event that is a chunk.
pub(crate) fn chunk(data: &str) -> Chunk<'_> {
    match parse(data.as_bytes()) {
        Ok(Parsed::Chunk(chunk)) => chunk,
        other => panic!("{data} is no chunk but {other:?}"),
    }
}

/// Everything a stream's chunks add up to.
pub(crate) fn folded<'a>(events: impl IntoIterator<Item = &'a str>) -> Partial {
    let mut partial = Partial::default();
    for data in events {
        if let Ok(Parsed::Chunk(chunk)) = parse(data.as_bytes()) {
            partial.fold(&chunk);
        }
    }
    partial
}

//! `mock-engine`: a scripted LLM engine for tests, benchmarks, the demo and rehearsals. See docs/MOCK.md.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use baton::mock::fault::Rule;
use baton::mock::{Config, Continuation, Echo, Engine, ReasoningField, Stop, Template, Wire};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// Plays an LLM engine with deterministic answers and scripted faults.
#[derive(Parser, Debug)]
#[command(version, name = "mock-engine")]
struct Arguments {
    /// Where to listen; port 0 takes a free one, which is printed
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Shown in the header x-mock-engine, in ids and in system_fingerprint
    #[arg(long, default_value = "mock")]
    name: String,
    /// A model served (repeatable); without any, every model is
    #[arg(long = "model")]
    models: Vec<String>,
    /// The wire format and its rules: vllm or sglang
    #[arg(long, default_value = "vllm", value_parser = wire)]
    wire: Wire,
    /// The model family, which gives the think tags, the thinking switch and the chat template
    #[arg(long, default_value = "default")]
    family: String,
    /// Another chat template: raw, trim, qwen3, qwen3.6, qwen3.8, deepseek-v3, mistral, deepseek-r1
    #[arg(long, value_parser = template)]
    template: Option<Template>,
    /// The reasoning field: reasoning, reasoning_content or both
    #[arg(long, value_parser = reasoning_field)]
    reasoning_field: Option<ReasoningField>,
    /// What continue_final_message does: honoured, empty (ignored, stops at once) or afresh (ignored, starts again)
    #[arg(long, default_value = "honoured", value_parser = continuation)]
    continuation: Continuation,
    /// Refuse a continuation that is not exactly what it should be
    #[arg(long)]
    strict: bool,
    /// The last text comes in the finish chunk (vLLM)
    #[arg(long)]
    finish_with_text: bool,
    /// Nulls for absent fields in every chunk (old SGLang)
    #[arg(long)]
    all_nulls: bool,
    /// Escape everything outside ASCII
    #[arg(long)]
    ascii: bool,
    /// Pieces of reasoning, most of which are one token
    #[arg(long, default_value_t = 24)]
    reasoning: usize,
    /// Pieces of content
    #[arg(long, default_value_t = 48)]
    content: usize,
    /// Changes all texts; engines that stand in for each other need the same
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// After this many pieces of content, call a tool if the request has tools
    #[arg(long)]
    tool_call: Option<usize>,
    /// Tokens in one event
    #[arg(long, default_value_t = 1)]
    tokens_per_event: usize,
    /// An event of several tokens may hold thinking, answer and tool call at once (vLLM)
    #[arg(long)]
    mixed_events: bool,
    /// A continued answer goes on with other words than the uncut one (temperature > 0; vLLM)
    #[arg(long)]
    sampled: bool,
    /// What GET /version says; below 0.28, kv_transfer_params.prompt_token_ids is ignored
    #[arg(long, default_value = "0.32.0")]
    engine_version: String,
    /// Answer render, derender and /inference/v1/generate instead of 403 (vLLM)
    #[arg(long)]
    scale_out: bool,
    /// Most tokens of a prompt and its answer
    #[arg(long, default_value_t = 131_072)]
    max_model_len: usize,
    /// How a first event shows the prompt ids it was given: right, missing or wrong (vLLM)
    #[arg(long, default_value = "right", value_parser = echo)]
    echo: Echo,
    /// Events in one write
    #[arg(long, default_value_t = 1)]
    events_per_write: usize,
    /// Wait after each event, such as 25ms
    #[arg(long, default_value = "0ms", value_parser = humantime::parse_duration)]
    pace: Duration,
    /// A fault, such as "leg1 rst@12" (repeatable); a wrong one shows what is accepted
    #[arg(long = "fault", value_parser = fault)]
    faults: Vec<Rule>,
    /// cached_tokens in the usage
    #[arg(long)]
    cached_tokens: Option<u64>,
    /// Status of GET /health
    #[arg(long, default_value_t = 200)]
    health: u16,
    /// How SIGTERM ends running streams: abort or error (as vLLM does), fin or rst
    #[arg(long, default_value = "abort", value_parser = stop)]
    on_term: Stop,
}

fn wire(text: &str) -> Result<Wire, String> {
    pick(text, &[("vllm", Wire::Vllm), ("sglang", Wire::Sglang)])
}

fn template(text: &str) -> Result<Template, String> {
    pick(
        text,
        &[
            ("raw", Template::Raw),
            ("trim", Template::Trim),
            ("qwen3", Template::Qwen3),
            ("qwen3.6", Template::Qwen36),
            ("qwen3.8", Template::Qwen38),
            ("deepseek-v3", Template::DeepseekV3),
            ("mistral", Template::Mistral),
            ("deepseek-r1", Template::DeepseekR1),
        ],
    )
}

fn reasoning_field(text: &str) -> Result<ReasoningField, String> {
    pick(
        text,
        &[
            ("reasoning", ReasoningField::Reasoning),
            ("reasoning_content", ReasoningField::ReasoningContent),
            ("both", ReasoningField::Both),
        ],
    )
}

fn continuation(text: &str) -> Result<Continuation, String> {
    pick(
        text,
        &[("honoured", Continuation::Honoured), ("empty", Continuation::Empty), ("afresh", Continuation::Afresh)],
    )
}

fn echo(text: &str) -> Result<Echo, String> {
    pick(text, &[("right", Echo::Right), ("missing", Echo::Missing), ("wrong", Echo::Wrong)])
}

fn stop(text: &str) -> Result<Stop, String> {
    pick(text, &[("abort", Stop::Abort), ("error", Stop::Error), ("fin", Stop::Fin), ("rst", Stop::Rst)])
}

fn fault(text: &str) -> Result<Rule, String> {
    Rule::parse(text).map_err(|error| error.to_string())
}

fn pick<T: Copy>(text: &str, known: &[(&str, T)]) -> Result<T, String> {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let found = known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| format!("one of {}", names.join(", ")))
}

impl Arguments {
    fn config(self) -> Config {
        Config {
            listen: self.listen,
            name: self.name,
            models: self.models,
            wire: self.wire,
            family: self.family,
            template: self.template,
            reasoning_field: self.reasoning_field,
            finish_with_text: self.finish_with_text,
            all_nulls: self.all_nulls,
            ascii: self.ascii,
            continuation: self.continuation,
            strict: self.strict,
            reasoning: self.reasoning,
            content: self.content,
            seed: self.seed,
            tool_call: self.tool_call,
            tokens_per_event: self.tokens_per_event,
            mixed_events: self.mixed_events,
            sampled: self.sampled,
            version: self.engine_version,
            scale_out: self.scale_out,
            max_model_len: self.max_model_len,
            echo: self.echo,
            events_per_write: self.events_per_write,
            pace: self.pace,
            faults: self.faults,
            cached_tokens: self.cached_tokens,
            health: self.health,
            ..Config::default()
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let on_term = arguments.on_term;
    match serve(arguments.config(), on_term).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mock-engine: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(config: Config, on_term: Stop) -> std::io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let listen = config.listen;
    let engine = Engine::start(config)
        .await
        .map_err(|error| std::io::Error::new(error.kind(), format!("cannot listen on {listen}: {error}")))?;
    println!("listening on {}", engine.addr());
    tokio::select! {
        () = engine.ended() => {}
        _ = term.recv() => engine.kill(on_term).await,
        _ = tokio::signal::ctrl_c() => engine.kill(Stop::Rst).await,
    }
    Ok(())
}

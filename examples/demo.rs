//! `make demo`: two engines, Baton in front of them, a chat whose engine is killed in the middle of its answer.
//!
//! Everything is real but the model: three processes, sockets, SIGKILL. The answer as it came through Baton is compared with
//! the answer of an engine that nobody killed; the exit status is 0 only if the two are equal and the stream was whole.

use std::error::Error;
use std::io::{BufRead, BufReader, IsTerminal, Write, stdout};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use baton::proto::chat::{self, Parsed};
use baton::proto::sse::{DEFAULT_MAX_EVENT, Decoder, Item};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Nothing in here may take longer.
const LIMIT: Duration = Duration::from_secs(60);
/// Far more than Baton needs to say that it listens.
const STARTS_WITHIN: Duration = Duration::from_secs(10);
/// Content events after which the engine is killed.
const KILL_AFTER: u64 = 24;

/// How a text is shown on a terminal.
#[derive(Clone, Copy)]
enum Ink {
    Dim = 2,
    Bold = 1,
    Red = 31,
    Green = 32,
}

/// The text in this ink, where there is a terminal to show it.
fn ink(ink: Ink, text: &str) -> String {
    if stdout().is_terminal() { format!("\x1b[{}m{text}\x1b[0m", ink as u8) } else { text.to_owned() }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match tokio::time::timeout(LIMIT, demo()).await {
        Ok(Ok(true)) => ExitCode::SUCCESS,
        Ok(Ok(false)) => ExitCode::FAILURE,
        Ok(Err(error)) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
        Err(_) => {
            eprintln!("demo: not done within {LIMIT:?}");
            ExitCode::FAILURE
        }
    }
}

/// A process that does not outlive the demo.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process is gone already, which is what they are for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct MockEngine {
    name: &'static str,
    url: String,
    process: Process,
}

/// What arrived at the client.
#[derive(Default)]
struct Answer {
    reasoning: String,
    content: String,
    finish: Option<String>,
    usage: Option<Value>,
    ids: Vec<String>,
    events: u64,
    content_events: u64,
    done: bool,
    error: Option<String>,
}

async fn demo() -> Result<bool> {
    let mut engines = vec![start_engine("A")?, start_engine("B")?];
    let (baton_url, log, _baton) = start_baton(&engines)?;
    let client = reqwest::Client::builder().no_proxy().build()?;
    wait_until_ready(&log)?;

    println!("{}    {baton_url}", ink(Ink::Bold, "Baton"));
    for engine in &engines {
        println!("{} {}", ink(Ink::Bold, &format!("engine {}", engine.name)), engine.url);
    }
    let plot = "The engines are scripted: their text is words of many languages at random, so that every byte can be compared.\n\
                The question is put to engine B directly first, for comparison, and then to Baton. Thinking comes first, dimmed:";
    println!("\n{}\n", ink(Ink::Dim, plot));

    let uncut = ask(&client, &engines[1].url).await?;
    let mut stream = send(&client, &baton_url).await?;
    let mut answer = Answer::default();
    let mut reader = Reader::new();
    let mut killed: Option<usize> = None;
    let (mut last_event, mut gap) = (Instant::now(), None);
    while let Some(bytes) = stream.chunk().await? {
        show_log(&log);
        let before = answer.events;
        reader.read(&bytes, &mut answer, true)?;
        if answer.events > before {
            // The longest silence since the kill: the first events after it may have been on their way already.
            gap = killed.map(|_| last_event.elapsed()).max(gap);
            last_event = Instant::now();
        }
        if killed.is_none() && answer.content_events >= KILL_AFTER {
            let busy = busy_engine(&client, &engines).await?;
            engines[busy].process.0.kill()?;
            killed = Some(busy);
            say(
                Ink::Red,
                &format!("✂ engine {} is killed (SIGKILL) after {} events", engines[busy].name, answer.events),
            );
        }
    }
    show_log(&log);
    Ok(summary(&answer, &uncut, killed.map(|at| engines[at].name), gap))
}

fn summary(answer: &Answer, uncut: &Answer, killed: Option<&str>, gap: Option<Duration>) -> bool {
    let same_end = answer.finish == uncut.finish && answer.usage == uncut.usage;
    let equal = answer.reasoning == uncut.reasoning && answer.content == uncut.content && same_end;
    let whole = answer.done && answer.error.is_none() && answer.ids.len() == 1 && answer.finish.is_some();
    let engines = match killed {
        Some("A") => "A, then B",
        Some(_) => "B, then A",
        None => "one only: nothing was killed",
    };
    println!("\n\n{}", ink(Ink::Bold, "Summary"));
    println!("  events        {} ({} of them content)", answer.events, answer.content_events);
    println!("  engines used  {engines}");
    match gap {
        Some(gap) => println!("  gap           {} ms was the longest silence from the kill on", gap.as_millis()),
        None => println!("  gap           none seen"),
    }
    println!("  response ids  {}", answer.ids.join(", "));
    println!("  finish reason {}", answer.finish.as_deref().unwrap_or("none"));
    if let Some(usage) = &answer.usage {
        println!("  usage         {usage}");
    }
    if let Some(error) = &answer.error {
        println!("  error         {error}");
    }
    let verdict = match (whole, equal) {
        (true, true) => ink(Ink::Green, "yes: whole, and equal to the uncut answer"),
        (true, false) => ink(Ink::Red, "no: whole, but different from the uncut answer"),
        (false, _) => ink(Ink::Red, "no: the answer is not whole"),
    };
    println!("  equal         {verdict}");
    whole && equal && killed.is_some()
}

fn say(colour: Ink, what: &str) {
    println!("\n{}", ink(colour, &format!("  {what}")));
}

/// The directory with the binaries: two up from this example's own.
fn binary(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.parent().and_then(|dir| dir.parent()).map(|dir| dir.join(name));
    path.filter(|path| path.exists()).ok_or_else(|| format!("{name} is not built; use `make demo`").into())
}

fn start_engine(name: &'static str) -> Result<MockEngine> {
    let mut child = Command::new(binary("mock-engine")?)
        .args(["--listen", "127.0.0.1:0", "--name", name, "--family", "qwen3", "--strict", "--pace", "25ms"])
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take().ok_or("mock-engine has no output")?;
    let process = Process(child);
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let address = line.trim().strip_prefix("listening on ").ok_or_else(|| format!("mock-engine said {line:?}"))?;
    Ok(MockEngine { name, url: format!("http://{address}"), process })
}

/// Starts Baton; its event lines arrive in the channel.
fn start_baton(engines: &[MockEngine]) -> Result<(String, Receiver<String>, Process)> {
    let (port, admin) = (free_port()?, free_port()?);
    let config = json!({
        "server": {"listen": [{"addr": format!("127.0.0.1:{port}")}], "admin": format!("127.0.0.1:{admin}")},
        "upstreams": [{
            "name": "demo",
            "engine": "vllm",
            "family": "qwen3",
            "endpoints": engines.iter().map(|engine| engine.url.as_str()).collect::<Vec<_>>(),
        }],
        "routes": [{"match": {"model": "*"}, "upstream": "demo"}],
    });
    // JSON is YAML.
    let path = std::env::temp_dir().join(format!("baton-demo-{}.yaml", std::process::id()));
    std::fs::write(&path, config.to_string())?;
    let mut child = Command::new(binary("baton")?)
        .args(["run".as_ref(), "-c".as_ref(), path.as_os_str()])
        .env("RUST_LOG", "baton=info")
        .stderr(Stdio::piped())
        .spawn()?;
    let stderr = child.stderr.take().ok_or("baton has no log")?;
    let (lines, log) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(std::result::Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
        let _ = std::fs::remove_file(path);
    });
    Ok((format!("http://127.0.0.1:{port}"), log, Process(child)))
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Waits for the line with which Baton says that it listens.
fn wait_until_ready(log: &Receiver<String>) -> Result<()> {
    let said = |line: String| line.contains("listening on");
    while !said(log.recv_timeout(STARTS_WITHIN).map_err(|_| "Baton did not come up")?) {}
    Ok(())
}

async fn send(client: &reqwest::Client, url: &str) -> Result<reqwest::Response> {
    let body = json!({
        "model": "mock",
        "stream": true,
        "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        "seed": 7,
        "messages": [{"role": "user", "content": "Tell me about relay races."}],
    });
    let request = client.post(format!("{url}/v1/chat/completions")).header("content-type", "application/json");
    Ok(request.body(body.to_string()).send().await?.error_for_status()?)
}

/// The whole answer of one engine, without Baton.
async fn ask(client: &reqwest::Client, url: &str) -> Result<Answer> {
    let mut stream = send(client, url).await?;
    let (mut answer, mut reader) = (Answer::default(), Reader::new());
    while let Some(bytes) = stream.chunk().await? {
        reader.read(&bytes, &mut answer, false)?;
    }
    Ok(answer)
}

/// Which engine is at work on a request.
async fn busy_engine(client: &reqwest::Client, engines: &[MockEngine]) -> Result<usize> {
    for (at, engine) in engines.iter().enumerate() {
        let body = client.get(format!("{}/mock/requests", engine.url)).send().await?.text().await?;
        let seen: Value = serde_json::from_str(&body)?;
        let requests = seen.as_array().or_else(|| seen["requests"].as_array()).ok_or("no list of requests")?;
        let at_work = |request: &Value| request["end"].is_null() && request["events"].as_u64().unwrap_or(0) > 0;
        if requests.iter().any(at_work) {
            return Ok(at);
        }
    }
    Err("no engine is at work".into())
}

/// Reads events into an answer, and shows the text.
struct Reader(Decoder);

impl Reader {
    fn new() -> Self {
        Reader(Decoder::new(DEFAULT_MAX_EVENT))
    }

    fn read(&mut self, bytes: &[u8], answer: &mut Answer, show: bool) -> Result<()> {
        let mut events = self.0.feed(bytes);
        while let Some(item) = events.next() {
            let Item::Event(event) = item? else { continue };
            answer.events += 1;
            match chat::parse(event.data)? {
                Parsed::Done => answer.done = true,
                Parsed::Error(error) => answer.error = Some(error.message),
                Parsed::Chunk(chunk) => answer.add(&chunk, show),
            }
        }
        stdout().flush()?;
        Ok(())
    }
}

impl Answer {
    fn add(&mut self, chunk: &chat::Chunk<'_>, show: bool) {
        if !self.ids.iter().any(|id| *id == chunk.id) {
            self.ids.push(chunk.id.to_string());
        }
        if let Some(usage) = &chunk.usage {
            self.usage = Some(json!({
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
            }));
        }
        for choice in &chunk.choices {
            let reasoning = choice.reasoning.as_deref().unwrap_or_default();
            let content = choice.content.as_deref().unwrap_or_default();
            if show {
                print!("{}", if reasoning.is_empty() { String::new() } else { ink(Ink::Dim, reasoning) });
                print!("{}{content}", if self.content.is_empty() && !content.is_empty() { "\n" } else { "" });
            }
            self.reasoning.push_str(reasoning);
            self.content.push_str(content);
            self.content_events += u64::from(!content.is_empty());
            if let Some(finish) = &choice.finish_reason {
                self.finish = Some(format!("{finish:?}").to_lowercase());
            }
        }
    }
}

/// Tells what Baton did, from its own event lines.
fn show_log(log: &Receiver<String>) {
    while let Ok(line) = log.try_recv() {
        let field = |name: &str| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
                .unwrap_or("?")
                .to_owned()
        };
        match field("event").as_str() {
            "cut" => say(
                Ink::Red,
                &format!("Baton: leg {} is cut ({}) after {} events", field("leg"), field("reason"), field("events")),
            ),
            "leg" => {
                say(Ink::Green, &format!("Baton: asks for the rest (leg {}, plan {})", field("leg"), field("plan")))
            }
            "continued" => {
                say(Ink::Green, &format!("Baton: leg {} goes on, {} ms after the cut\n", field("leg"), field("gap_ms")))
            }
            "refused" => say(Ink::Red, &format!("Baton: cannot continue ({})", field("reason"))),
            _ => {}
        }
    }
}

//! vLLM servers, started and killed by the tests.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, MutexGuard};

/// A first start reads several hundred megabytes of Python.
const START: Duration = Duration::from_secs(300);

/// What a server serves; see scripts/vllm/models.py.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// A few answers known by heart.
    Memo,
    /// Plain English words without end.
    Rand,
    /// All ordinary tokens, parts of characters among them, without end.
    Any,
}

impl Model {
    fn name(self) -> &'static str {
        match self {
            Model::Memo => "memo",
            Model::Rand => "rand",
            Model::Any => "any",
        }
    }
}

/// A process of a server.
#[derive(Debug, Clone, Copy)]
pub enum Process {
    /// Reads requests and writes streams.
    Api,
    /// Generates; a child of the other.
    Engine,
}

/// A server that is the test's own child, with all of its processes in a group of its own.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    log: PathBuf,
}

impl Server {
    fn start(slot: usize, model: Model) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let work = std::env::var("VLLM_WORK").map_or_else(|_| root.join("target/vllm"), PathBuf::from);
        let port = free_port();
        let log = work.join(format!("logs/test-{slot}.log"));
        let out =
            File::create(&log).unwrap_or_else(|e| panic!("{}: {e}; `make test-vllm` sets vLLM up", log.display()));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let child = Command::new("sh")
            .arg(root.join("scripts/vllm/leash.sh"))
            .arg("sh")
            .arg(root.join("scripts/vllm/serve.sh"))
            .args([port.to_string(), model.name().to_owned()])
            .env("VLLM_WORK", &work)
            .env("VLLM_CORE", (slot % cores).to_string())
            .process_group(0)
            // The leash: when the test's process ends, in whatever way, this pipe closes, and the group is killed.
            .stdin(Stdio::piped())
            .stdout(out.try_clone().expect("a second handle of the log"))
            .stderr(out)
            .spawn()
            .expect("sh starts");
        Server { child, address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)), log }
    }

    async fn ready(&mut self) {
        let deadline = Instant::now() + START;
        while !healthy(self.address).await {
            let gone = self.child.try_wait().expect("the child can be asked");
            if gone.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let from = log.char_indices().rev().nth(3000).map_or(0, |(at, _)| at);
                panic!("vLLM did not start ({gone:?}):\n{}", &log[from..]);
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// Sends a signal to one process of the server.
    pub fn signal(&self, process: Process, signal: &str) {
        let pid = match process {
            Process::Api => self.child.id(),
            Process::Engine => self.engine(),
        };
        send(signal, &pid.to_string());
    }

    /// The child of the API process that calls itself the engine's core.
    fn engine(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let children = std::fs::read_to_string(children).expect("the server runs");
        let core = |pid: &&str| {
            std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.starts_with("VLLM::EngineCore"))
        };
        let pid = children.split_whitespace().find(core).expect("the server has an engine");
        pid.parse().expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The child has not been waited for, so that its number, and the group's, is still its own.
        if matches!(self.child.try_wait(), Ok(None)) {
            send("KILL", &format!("-{}", self.child.id()));
        }
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn send(signal: &str, target: &str) {
    let sent = Command::new("kill").args([&format!("-{signal}"), "--", target]).status().expect("kill runs");
    assert!(sent.success(), "kill -{signal} {target}");
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}

async fn healthy(address: SocketAddr) -> bool {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build().expect("a client");
    let answer = client.get(format!("http://{address}/health")).send().await;
    answer.is_ok_and(|answer| answer.status().is_success())
}

/// Two servers with the same model. One test has them at a time.
pub struct Pair {
    model: Model,
    pub addresses: [SocketAddr; 2],
    servers: Vec<Server>,
}

static PAIR: Mutex<Option<Pair>> = Mutex::const_new(None);

/// Two servers with this model, which may have been up before: the test's own or, for sweeps, others.
pub async fn pair(model: Model) -> MutexGuard<'static, Option<Pair>> {
    let mut pair = PAIR.lock().await;
    if let Some(addresses) = others(model) {
        *pair = Some(Pair { model, addresses, servers: Vec::new() });
    } else {
        own(&mut pair, model).await;
    }
    pair
}

/// Two servers with this model that may be killed.
pub async fn own_pair(model: Model) -> MutexGuard<'static, Option<Pair>> {
    let mut pair = PAIR.lock().await;
    own(&mut pair, model).await;
    pair
}

async fn own(pair: &mut Option<Pair>, model: Model) {
    if !pair.as_ref().is_some_and(|pair| pair.model == model && !pair.servers.is_empty()) {
        // The memory is enough for one pair.
        *pair = None;
        let mut servers = vec![Server::start(0, model), Server::start(1, model)];
        for server in &mut servers {
            server.ready().await;
        }
        let addresses = [servers[0].address, servers[1].address];
        *pair = Some(Pair { model, addresses, servers });
    }
    let pair = pair.as_mut().expect("it was made just now");
    for slot in 0..2 {
        if !healthy(pair.addresses[slot]).await {
            pair.restart(slot).await;
        }
    }
}

fn others(model: Model) -> Option<[SocketAddr; 2]> {
    let given = std::env::var(format!("BATON_VLLM_{}", model.name().to_uppercase())).ok()?;
    let mut addresses = given.split(',').map(|address| address.trim().parse().expect("an address"));
    let first = addresses.next().expect("at least one address");
    Some([first, addresses.next().unwrap_or(first)])
}

impl Pair {
    pub fn server(&self, slot: usize) -> &Server {
        &self.servers[slot]
    }

    /// A new server in the place of this one, on a port of its own.
    pub async fn restart(&mut self, slot: usize) {
        let model = self.model;
        self.servers.remove(slot);
        self.servers.insert(slot, Server::start(slot, model));
        self.servers[slot].ready().await;
        self.addresses[slot] = self.servers[slot].address;
    }
}

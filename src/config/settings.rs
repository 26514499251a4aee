//! What a configuration *means*: resolved, typed, checked. The rest of Baton sees these types and never the file.
//!
//! Every number here has passed its limits and every reference its lookup, so nobody downstream validates again. The
//! built-in defaults stand in the `Default` impls, once; `conf/baton.yaml` repeats them with a reason each and a test
//! compares the two.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::time::Duration;

use super::units::{GIB, Glob, KIB, MIB};
use crate::proto::certificate::Certificate;
use crate::proto::resume::PlanSet;

/// The whole configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where Baton itself listens and what it accepts.
    pub server: Server,
    /// The clusters of engines, in the order of the file; names are unique.
    pub upstreams: Vec<Upstream>,
    /// The routes, in the order of the file: the first that matches wins.
    pub routes: Vec<Route>,
    /// Where answers are kept while they are under way.
    pub journal: Journal,
    /// What is allowed and probably not meant, one sentence each, with its line. To be logged at start.
    pub warnings: Vec<String>,
}

impl Settings {
    /// The route for a request that names `model` (`""` where it names none): the first whose glob matches.
    pub fn route(&self, model: &str) -> Option<&Route> {
        self.routes.iter().find(|route| route.model.matches(model))
    }
}

/// Baton's own sockets and limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// The addresses for clients; never empty.
    pub listen: Vec<SocketAddr>,
    /// The address of the admin page and the metrics.
    pub admin: SocketAddr,
    /// Worker threads.
    pub threads: Threads,
    /// Request bodies over this many bytes are answered 413.
    pub max_request_body: usize,
    /// How long requests under way may go on after SIGTERM.
    pub drain: Duration,
    /// Bytes of memory that the process may take; `None`: there is no bound.
    pub max_memory: Option<usize>,
    /// Whose pages may read answers.
    pub cors: Cors,
}

impl Default for Server {
    fn default() -> Self {
        Self {
            // Loopback: nothing is reachable from outside until a person writes that it shall be.
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))],
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)),
            threads: Threads::Auto,
            max_request_body: 32 * MIB,
            drain: Duration::from_secs(300),
            max_memory: None,
            cors: Cors::default(),
        }
    }
}

/// The origins whose pages may send requests from a browser and read the answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    /// Nothing is said of origins: browsers keep the pages of all others out.
    #[default]
    Off,
    /// Every origin.
    Any,
    /// These, as a browser writes them; never empty.
    Only(Vec<String>),
}

/// How many worker threads to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One for every CPU this process may use.
    Auto,
    /// Exactly so many.
    Count(NonZeroUsize),
}

impl Threads {
    /// The number to start; at least 1.
    pub fn count(self) -> usize {
        match self {
            Self::Count(n) => n.get(),
            Self::Auto => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        }
    }
}

/// One cluster of engines that serve the same model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Unique among the upstreams; a label in metrics and events.
    pub name: String,
    /// The server software, one of the names in [`super::ENGINES`]. Names without quirks of their own behave as
    /// `generic`.
    pub engine: String,
    /// The model family that is really served; any name.
    pub family: String,
    /// Where the engines listen; never empty, no duplicates.
    pub endpoints: Vec<Endpoint>,
    /// How a leg picks its endpoint.
    pub balance: Balance,
    /// What was found out about it (`baton certify`), where the file names a certificate.
    pub certificate: Option<Certificate>,
}

/// One engine's address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Plain or TLS.
    pub scheme: Scheme,
    /// A host name, an IPv4 address, or an IPv6 address without its brackets.
    pub host: String,
    /// The TCP port; never 0.
    pub port: u16,
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// How an engine is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// HTTP over TCP.
    Http,
    /// HTTP over TLS.
    Https,
}

/// How a leg picks its endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The endpoint with the fewest streams under way.
    LeastStreams,
}

/// What happens to the requests for some models.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Which models; also the route's label in metrics.
    pub model: Glob,
    /// Index into [`Settings::upstreams`]: where leg 1 goes.
    pub upstream: usize,
    /// Whether and how a cut stream goes on.
    pub continuation: Continuation,
    /// How long a leg may be silent.
    pub timeouts: Timeouts,
    /// How often and when a leg is tried again that has brought nothing yet.
    pub retry: Retry,
    /// Silence towards the client after which a comment is sent; `None`: never.
    pub heartbeat: Option<Duration>,
    /// Whether a client may come back to an answer.
    pub resume: Resume,
    /// How a stream ends that could not be completed.
    pub on_incomplete: OnIncomplete,
    /// One event of an engine may have so many bytes; over it the leg has failed.
    pub max_event: usize,
}

/// Whether and how a cut stream goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Continuation {
    /// On, off, or only observed.
    pub mode: Mode,
    /// Index into [`Settings::upstreams`]: where later legs go. The route's own upstream unless the file names another.
    pub upstream: usize,
    /// The kinds of plan that may be tried; never empty.
    pub plans: PlanSet,
    /// Whether render-generate was asked for by name: then it is used wherever it can be, and not only where nothing else can.
    pub render: bool,
    /// At most so many legs write into a stream, leg 1 included; 1 to 8.
    pub max_legs: u32,
    /// A prompt of more tokens than this is not continued by its ids.
    pub max_prompt_tokens: usize,
    /// After so many chunks of ids their text is asked for; at least 1. Of render-generate.
    pub derender_every: u32,
    /// What repeats the end of the answer is taken out if it has at least so many characters; at least 1. Of replay.
    pub replay_overlap: usize,
    /// Requests over this many bytes are passed through and never continued.
    pub max_body: usize,
    /// Hold tool calls back until they are whole.
    pub buffer_tool_calls: bool,
    /// Answers of a prescribed form are held back until they are whole, so that a failure inside one is continued.
    pub buffer_structured: bool,
    /// At most so many bytes are held back; over it they are released.
    pub buffer_limit: usize,
    /// Try also what is known not to work with this engine and family.
    pub force: bool,
    /// Characters per token, where an engine does not count.
    pub tokens: Tokens,
}

impl Continuation {
    /// The defaults, on the upstream with index `upstream`.
    pub fn on(upstream: usize) -> Self {
        Self {
            mode: Mode::On,
            upstream,
            plans: PlanSet::AUTO,
            render: false,
            max_legs: 2,
            max_prompt_tokens: 131_072,
            derender_every: 8,
            replay_overlap: 16,
            max_body: 10 * MIB,
            buffer_tool_calls: false,
            buffer_structured: false,
            buffer_limit: MIB,
            force: false,
            tokens: Tokens::default(),
        }
    }
}

/// `continuation.enabled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Continue.
    #[default]
    On,
    /// As if Baton were a plain proxy.
    Off,
    /// Detect and count what would be continued, and never start leg 2.
    Observe,
}

/// Characters per token, for estimates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tokens {
    /// Chinese, Japanese and Korean characters per token.
    pub cjk: f64,
    /// Other characters per token.
    pub other: f64,
}

impl Default for Tokens {
    fn default() -> Self {
        Self { cjk: 1.6, other: 4.0 }
    }
}

/// How long a leg may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To open a connection to one endpoint (TCP, and TLS where it is used).
    pub connect: Duration,
    /// Between two data events of a leg, once the first has come: a stall. For a continuation also up to its first.
    pub idle: Duration,
    /// For a client to take one write of a stream, 16 KiB at most; over it is let go.
    pub send: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), idle: Duration::from_secs(20), send: Duration::from_secs(60) }
    }
}

/// How often and when a leg is tried again that has brought nothing yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// At most so many tries of one leg; 1 means no repeat.
    pub attempts: u32,
    /// The pause before the third try; it doubles with each further one. The second follows at once.
    pub backoff: Duration,
    /// The longest pause; not below `backoff`.
    pub backoff_max: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { attempts: 3, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(8) }
    }
}

/// How a stream ends that could not be completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnIncomplete {
    /// With an error event and without `[DONE]`.
    #[default]
    Error,
    /// As the engine ended it.
    Mirror,
}

impl Route {
    /// The default of `heartbeat`.
    pub const HEARTBEAT: Duration = Duration::from_secs(5);
    /// The default of `max_event`, in bytes.
    pub const MAX_EVENT: usize = MIB;

    /// A route with every default, from `model` to the upstream with index `upstream`.
    pub fn new(model: Glob, upstream: usize) -> Self {
        Self {
            model,
            upstream,
            continuation: Continuation::on(upstream),
            timeouts: Timeouts::default(),
            retry: Retry::default(),
            heartbeat: Some(Self::HEARTBEAT),
            resume: Resume::default(),
            on_incomplete: OnIncomplete::default(),
            max_event: Self::MAX_EVENT,
        }
    }
}

/// Whether clients may come back to an answer, and how long it is kept for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// To which answers.
    pub mode: ResumeMode,
    /// The engine goes on for so long when nobody reads.
    pub grace: Duration,
    /// And for at most so many tokens.
    pub unattended: u64,
    /// An answer can be read again for so long after its end.
    pub ttl: Duration,
    /// And for at most so long while it has none.
    pub max_age: Duration,
    /// Where an answer takes more bytes than this, what the client has acknowledged is let go; `None`: it is kept.
    pub window: Option<usize>,
    /// A client that has acknowledged and then says nothing for so long is taken for gone; `None`: none is.
    pub silence: Option<Duration>,
}

impl Default for Resume {
    fn default() -> Self {
        Self {
            mode: ResumeMode::OnRequest,
            grace: Duration::from_secs(30),
            unattended: 100_000,
            ttl: Duration::from_secs(300),
            max_age: Duration::from_secs(1800),
            window: None,
            silence: Some(Duration::from_secs(60)),
        }
    }
}

/// To which answers clients may come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResumeMode {
    /// To none.
    Off,
    /// To those of requests that ask for it.
    #[default]
    OnRequest,
    /// To all.
    Always,
}

/// Where answers are kept while they are under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Journal {
    /// Which store.
    pub store: Store,
    /// Bytes held for one stream; over it the oldest records go.
    pub max_stream: usize,
    /// Bytes held for all streams together.
    pub max_total: usize,
    /// Streams at once.
    pub max_streams: usize,
    /// Bytes held for the kept streams of one tenant.
    pub max_tenant: usize,
    /// Kept streams of one tenant at once.
    pub max_tenant_streams: usize,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            store: Store::Memory,
            max_stream: 4 * MIB,
            max_total: GIB,
            max_streams: 100_000,
            max_tenant: 512 * MIB,
            max_tenant_streams: 50_000,
        }
    }
}

/// Which journal store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// This process's own memory.
    #[default]
    Memory,
}

/// The least a journal segment needs: `max_stream` below it could not hold one ordinary event.
pub(super) const MIN_STREAM: usize = 16 * KIB;

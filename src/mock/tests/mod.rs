//! The engine over real sockets, read byte by byte.

mod client;
mod continuation;
mod direct;
mod faults;
mod http;
mod ids;
mod recorded;
mod running;
mod strict;
mod wire;

use std::time::Duration;

use super::{Config, Engine, Running};

/// Small answers, everything in the response determined.
fn config() -> Config {
    Config { created: Some(1_796_053_088), reasoning: 3, content: 6, ..Config::default() }
}

async fn start(config: Config) -> Running {
    Engine::start(config).await.expect("a free port")
}

/// What is awaited comes, or the test fails after a time that only a fault can take.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), what).await.expect("it comes within ten seconds")
}

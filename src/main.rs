//! `baton run -c FILE` and `baton check -c FILE`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use baton::config::{self, Settings};
use clap::{Parser, Subcommand};

/// Measured about a tenth less CPU on the path of an event than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An edge proxy for LLM token streams that finishes every answer that has begun.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the proxy.
    Run {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Read a configuration file and say what is wrong with it.
    Check {
        /// The configuration file.
        #[arg(short, long, value_name = "FILE")]
        config: PathBuf,
    },
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run { config } => run(&config),
        Command::Check { config } => check(&config),
    }
}

fn run(path: &Path) -> ExitCode {
    // Pingora's own lines about each connection are for debugging it.
    let filter = env_logger::Env::default().default_filter_or("info,pingora=warn,pingora_core=warn,pingora_proxy=warn");
    env_logger::Builder::from_env(filter).init();
    let Some(settings) = load(path) else { return ExitCode::FAILURE };
    match baton::app::run_until_signal(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("baton: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(path: &Path) -> ExitCode {
    let Some(settings) = load(path) else { return ExitCode::FAILURE };
    for warning in &settings.warnings {
        println!("{}: warning: {warning}", path.display());
    }
    println!("{}: ok", path.display());
    ExitCode::SUCCESS
}

fn load(path: &Path) -> Option<Settings> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("baton: cannot read {}: {error}", path.display());
            return None;
        }
    };
    let file = |written: &str| std::fs::read_to_string(path.parent().unwrap_or(Path::new("")).join(written));
    let outside = config::Outside { env: &|name| std::env::var(name).ok(), file: &file };
    match config::load_from(&text, outside) {
        Ok(settings) => Some(settings),
        Err(errors) => {
            eprintln!("{}", errors.in_file(&path.display().to_string()));
            None
        }
    }
}

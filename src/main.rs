//! `baton run -c FILE`, `baton check -c FILE` and `baton certify`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use baton::certify;
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
    Certify(Box<certify::Arguments>),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Run { config } => run(&config),
        Command::Check { config } => check(&config),
        Command::Certify(arguments) => run_certify(&arguments),
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

fn run_certify(arguments: &certify::Arguments) -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("error")).init();
    let settings = match &arguments.config {
        None => None,
        Some(path) => match load(path) {
            None => return ExitCode::FAILURE,
            settings => settings,
        },
    };
    let order = match arguments.order(settings.as_ref(), &|name| std::env::var(name).ok()) {
        Ok(order) => order,
        Err(why) => return failed(&why),
    };
    let certificate = match certify::run(&order, &mut |line| eprintln!("{line}")) {
        Ok(certificate) => certificate,
        Err(why) => return failed(&why.to_string()),
    };
    let report = certificate.to_markdown();
    println!("{report}");
    let (markdown, json) = arguments.files();
    let text = certificate.to_json();
    let files = markdown.iter().map(|path| (path, &report)).chain(json.iter().map(|path| (path, &text)));
    for (path, text) in files {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let written = folder.map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(path, text));
        if let Err(why) = written {
            return failed(&format!("cannot write {}: {why}", path.display()));
        }
    }
    ExitCode::SUCCESS
}

fn failed(why: &str) -> ExitCode {
    eprintln!("baton: {why}");
    ExitCode::FAILURE
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

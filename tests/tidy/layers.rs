//! Who may use whom: the architecture, as rules.

use super::source::{Fault, Source, find_word, line_at, lines};

/// Each layer under `src/` and what it may use besides itself. `main → {app → edge, certify} → {stream, journal, upstream, config,
/// telemetry} → proto`; the mock engine is for binaries, tests and benchmarks.
const LAYERS: &[(&str, &[&str])] = &[
    ("main", &["app", "certify", "edge", "stream", "journal", "upstream", "config", "telemetry", "proto"]),
    ("bin", &["mock"]),
    ("app", &["edge", "stream", "journal", "upstream", "config", "telemetry", "proto"]),
    ("certify", &["stream", "journal", "upstream", "config", "telemetry", "proto"]),
    ("edge", &["stream", "journal", "upstream", "config", "telemetry", "proto"]),
    ("stream", &["journal", "upstream", "config", "telemetry", "proto"]),
    ("upstream", &["config", "telemetry", "proto"]),
    ("journal", &["proto"]),
    ("config", &["proto"]),
    ("telemetry", &["proto"]),
    ("mock", &["proto"]),
    ("proto", &[]),
];

/// What has no place in the pure core, and what to do instead.
const IMPURE: &[(&str, &str)] = &[
    ("pingora", "take what is needed as an argument; Pingora belongs in edge and upstream"),
    ("tokio", "take what is needed as an argument; the runtime belongs in stream"),
    ("redis", "take what is needed as an argument; stores belong in journal"),
    ("async", "return what shall be done as a value; stream does it"),
    ("await", "return what shall be done as a value; stream does it"),
    ("Instant::now", "take the time as an argument"),
    ("SystemTime::now", "take the time as an argument"),
    ("elapsed", "take the time as an argument"),
    ("std::net", "do IO in edge, stream or upstream"),
    ("std::fs", "do IO in edge, stream or upstream"),
    ("std::process", "do IO in edge, stream or upstream"),
    ("std::env", "take it as an argument; config reads the environment"),
    ("std::thread", "threads belong in app"),
    ("Mutex", "state belongs to its caller, who may lock it"),
    ("RwLock", "state belongs to its caller, who may lock it"),
    ("OnceLock", "no globals; build the value once and hand it in"),
    ("LazyLock", "no globals; build the value once and hand it in"),
    ("once_cell", "no globals; build the value once and hand it in"),
    ("thread_local", "no globals; hand the value in"),
    ("static mut", "no globals; hand the value in"),
    ("rand", "take random values as arguments"),
    ("log", "return a note; stream logs it"),
    ("println", "return a note; stream logs it"),
    ("eprintln", "return a note; stream logs it"),
];

/// Words that may stand under one folder only, and why.
const HOMES: &[(&str, &str, &str)] = &[
    ("ProxyHttp", "src/edge/", "the only code that knows Pingora's proxy loop is edge"),
    ("redis", "src/journal/redis", "the only code that knows Redis is its journal store"),
    ("unbounded_channel", "nowhere", "every queue has a limit; use a bounded channel, or the journal"),
];

/// The layer a file under `src/` belongs to.
fn layer(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("src/")?;
    match rest.split_once('/') {
        Some((folder, _)) => Some(folder),
        None => rest.strip_suffix(".rs").filter(|name| *name != "lib"),
    }
}

pub fn arrows(files: &[Source]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let Some(from) = layer(&file.path) else { continue };
        let Some((_, allowed)) = LAYERS.iter().find(|(layer, _)| *layer == from) else {
            let text =
                format!("{from} is no layer; put the file into one, or add it to LAYERS in tests/tidy/layers.rs");
            faults.push(Fault::new(file, 1, text));
            continue;
        };
        let root = if from == "main" || from == "bin" { "baton::" } else { "crate::" };
        for (at, used) in uses(&file.code, root) {
            let known = LAYERS.iter().any(|(layer, _)| *layer == used);
            let in_tests = used == "mock" && file.production[at..].starts_with(' ');
            if known && used != from && !in_tests && !allowed.contains(&used) {
                let text = format!("{from} must not use {used}; it may use {}", allowed.join(", "));
                faults.push(Fault::new(file, line_at(&file.code, at), text));
            }
        }
    }
    faults
}

/// The modules that stand behind `root` (`crate::`) in masked code, each with its place: also those in `crate::{a::b,
/// c}`.
fn uses<'c>(code: &'c str, root: &str) -> Vec<(usize, &'c str)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices(root) {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let start = at + root.len();
        if !code[start..].starts_with('{') {
            found.push((at, word(&code[start..])));
            continue;
        }
        let mut depth = 0;
        for (i, c) in code[start..].char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if depth == 1 && matches!(c, '{' | ',') {
                let next = code[start + i + 1..].trim_start();
                found.push((code.len() - next.len(), word(next)));
            }
        }
    }
    found
}

fn word(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len())]
}

pub fn purity(files: &[Source]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("src/proto/")) {
        for (line, code) in lines(&file.production) {
            for (impure, instead) in IMPURE {
                if find_word(code, impure).is_some() {
                    faults.push(Fault::new(file, line, format!("proto is pure, and {impure} is not; {instead}")));
                }
            }
        }
    }
    faults
}

pub fn homes(files: &[Source]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("src/") && file.is_rust()) {
        for (line, code) in lines(&file.production) {
            for (word, home, why) in HOMES {
                if !file.path.starts_with(home) && find_word(code, word).is_some() {
                    let place = if *home == "nowhere" { "does not belong here" } else { "belongs elsewhere" };
                    faults.push(Fault::new(file, line, format!("{word} {place} ({home}): {why}")));
                }
            }
        }
    }
    faults
}

const FAMILIES: &str = "src/proto/resume/family/";
const ENGINES: &str = "src/proto/resume/engine/";

/// Whether it is the engine's own file.
fn own_name(file: &Source, engine: &str) -> bool {
    file.path.starts_with(ENGINES) && file.stem() == engine
}

pub fn no_pairs(files: &[Source]) -> Vec<Fault> {
    let stems = |folder: &str| -> Vec<&str> {
        let own = files.iter().filter(|file| file.path.starts_with(folder)).map(Source::stem);
        own.filter(|stem| *stem != "mod" && *stem != "tests").collect()
    };
    let (families, engines) = (stems(FAMILIES), stems(ENGINES));
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with("src/proto/resume/")) {
        if let (Some(family), Some(engine)) = (
            families.iter().find(|name| file.stem().contains(**name)),
            // A maker's API has the maker's name, and so have its models: that is one name and no pair.
            engines.iter().find(|name| file.stem().contains(**name) && !own_name(file, name)),
        ) {
            let text = format!(
                "a file for the pair {family} and {engine}; say what each needs in its own file, plan() composes them"
            );
            faults.push(Fault::new(file, 1, text));
        }
        if !file.path.starts_with(FAMILIES) || file.stem() == "tests" {
            continue;
        }
        let named = |text: &str| engines.iter().copied().find(|engine| text == *engine);
        let words = lines(&file.production).flat_map(|(line, code)| {
            code.split(|c: char| !c.is_alphanumeric() && c != '_').map(move |word| (line, word))
        });
        let strings = file.strings.iter().map(|(line, text)| (*line, text.as_str()));
        for (line, engine) in words.chain(strings).filter_map(|(line, word)| Some((line, named(word)?))) {
            let text = format!(
                "a family that knows the engine {engine}; declare a property, and let the engine's file answer to it"
            );
            faults.push(Fault::new(file, line, text));
        }
    }
    faults
}

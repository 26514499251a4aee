//! Limits, names and leftovers.

use super::source::{Fault, Source, find_word, item, line_at, lines};

/// Lines of a source file.
pub const MAX_FILE: usize = 800;
/// Lines of a function, from its `fn` to its closing brace.
pub const MAX_FUNCTION: usize = 80;

pub fn file_length(files: &[Source]) -> Vec<Fault> {
    let long = files.iter().filter(|file| file.is_rust() && file.text.lines().count() > MAX_FILE);
    long.map(|file| {
        let count = file.text.lines().count();
        Fault::new(
            file,
            MAX_FILE + 1,
            format!("the file has {count} lines, over {MAX_FILE}; split it by responsibility"),
        )
    })
    .collect()
}

pub fn function_length(files: &[Source]) -> Vec<Fault> {
    let mut faults = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for (at, _) in file.code.match_indices("fn ") {
            let alone = !file.code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let Some(length) = item(&file.code[at..]).filter(|_| alone) else { continue };
            let count = file.code[at..at + length].lines().count();
            if count > MAX_FUNCTION {
                let name: String =
                    file.code[at + 3..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let text = format!(
                    "fn {name} has {count} lines, over {MAX_FUNCTION}; move a step of it into a function of its own"
                );
                faults.push(Fault::new(file, line_at(&file.code, at), text));
            }
        }
    }
    faults
}

pub fn unfinished(files: &[Source]) -> Vec<Fault> {
    let marks = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")];
    let macros = [concat!("to", "do!"), concat!("unimpl", "emented!")];
    let mut faults = Vec::new();
    let recorded = |path: &str| path.starts_with("tests/fixtures/") || path.starts_with("tests/golden/");
    for file in files.iter().filter(|file| !recorded(&file.path)) {
        let in_text = lines(&file.text).flat_map(|(line, text)| marks.map(|mark| (line, text, mark)));
        let in_code = lines(&file.code).flat_map(|(line, code)| macros.map(|mark| (line, code, mark)));
        for (line, text, mark) in in_text.chain(in_code) {
            if find_word(text, mark).is_some() {
                faults.push(Fault::new(
                    file,
                    line,
                    format!("{mark}: finish it, or take it out and file it where work is planned"),
                ));
            }
        }
    }
    faults
}

pub fn machine_paths(files: &[Source]) -> Vec<Fault> {
    let roots = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let mut faults = Vec::new();
    for file in files {
        for (line, text) in lines(&file.text) {
            let found = roots.iter().find(|root| {
                text.match_indices(**root)
                    .any(|(at, _)| !text[..at].ends_with(|c: char| c.is_alphanumeric() || "._-".contains(c)))
            });
            if let Some(root) = found {
                let text = format!("a path of some machine ({root}…); use a path from the repository's root");
                faults.push(Fault::new(file, line, text));
            }
        }
    }
    faults
}

const METRICS: &str = "src/telemetry/metrics.rs";
const METRIC_DOCS: &str = "docs/METRICS.md";

/// The words of `line` that look like a metric's name.
fn metric_names(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("baton_") && word.len() > 6)
}

pub fn metrics(files: &[Source]) -> Vec<Fault> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let (Some(code), Some(docs)) = (find(METRICS), find(METRIC_DOCS)) else {
        let missing = if find(METRICS).is_none() { METRICS } else { METRIC_DOCS };
        return vec![Fault { file: missing.to_owned(), line: 1, text: "is missing; write it".to_owned() }];
    };
    let mut faults = Vec::new();
    let is_name = |text: &str| metric_names(text).next() == Some(text);
    let mut names: Vec<&str> = Vec::new();
    for (line, text) in code.strings.iter().filter(|(_, text)| is_name(text)) {
        if names.contains(&text.as_str()) {
            faults.push(Fault::new(code, *line, format!("{text} is written twice; every metric has one place")));
        }
        names.push(text);
    }
    let rows = lines(&docs.text).filter_map(|(line, text)| Some((line, text.strip_prefix("| `")?.split('`').next()?)));
    let rows: Vec<(usize, &str)> = rows.filter(|(_, name)| is_name(name)).collect();
    for (line, text) in code.strings.iter().filter(|(_, text)| is_name(text)) {
        if !rows.iter().any(|(_, row)| row == text) {
            faults.push(Fault::new(code, *line, format!("{text} has no row in {METRIC_DOCS}; add one")));
        }
    }
    // Every other mention too, of a histogram's series as well: what a person is told to watch must exist.
    let told = |path: &str| path == "README.md" || path.starts_with("docs/") || path.starts_with("conf/");
    for file in files.iter().filter(|file| told(&file.path)) {
        for (line, name) in lines(&file.text).flat_map(|(line, text)| metric_names(text).map(move |name| (line, name)))
        {
            let family =
                ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            if !names.contains(&name) && !names.contains(&family) {
                faults.push(Fault::new(
                    file,
                    line,
                    format!("{name} is no metric of {METRICS}; correct it or take it out"),
                ));
            }
        }
    }
    faults
}

const CAUSES: &str = "src/proto/relay/input.rs";
const REASONS: &str = "## Why a leg failed";

/// The codes of causes, and the table that explains them to operators.
pub fn reasons(files: &[Source]) -> Vec<Fault> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let (Some(code), Some(docs)) = (find(CAUSES), find(METRIC_DOCS)) else {
        let missing = if find(CAUSES).is_none() { CAUSES } else { METRIC_DOCS };
        return vec![Fault { file: missing.to_owned(), line: 1, text: "is missing; write it".to_owned() }];
    };
    let start = code.code.find("fn code(");
    let Some((start, length)) = start.and_then(|start| Some((start, item(&code.code[start..])?))) else {
        return vec![Fault::new(code, 1, "fn code is gone; correct the rules of tidy".to_owned())];
    };
    let body = line_at(&code.code, start)..=line_at(&code.code, start + length);
    let codes: Vec<_> = code.strings.iter().filter(|(line, _)| body.contains(line)).collect();
    let table = lines(&docs.text).skip_while(|(_, text)| *text != REASONS).skip(1);
    let table = table.take_while(|(_, text)| !text.starts_with("## "));
    let rows: Vec<(usize, &str)> =
        table.filter_map(|(line, text)| Some((line, text.strip_prefix("| `")?.split('`').next()?))).collect();
    let rows: Vec<(usize, &str)> = rows.into_iter().filter(|(_, row)| *row != "reason").collect();
    let undocumented = codes.iter().filter(|(_, code)| !rows.iter().any(|(_, row)| row == code));
    let undocumented = undocumented
        .map(|(line, reason)| Fault::new(code, *line, format!("{reason} has no row in {METRIC_DOCS}; add one")));
    let unknown = rows.iter().filter(|(_, row)| !codes.iter().any(|(_, code)| row == code));
    let unknown = unknown.map(|(line, row)| {
        Fault::new(docs, *line, format!("{row} is no cause of {CAUSES}; correct it or take it out"))
    });
    undocumented.chain(unknown).collect()
}

/// The targets of the links `[…](target)` in a line, without their anchors.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next()?.split('#').next())
}

pub fn links(files: &[Source]) -> Vec<Fault> {
    let document = |path: &str| path == "README.md" || (path.starts_with("docs/") && path.ends_with(".md"));
    let mut faults = Vec::new();
    let mut linked = Vec::new();
    for file in files.iter().filter(|file| document(&file.path)) {
        for (line, target) in lines(&file.text).flat_map(|(line, text)| targets(text).map(move |target| (line, target)))
        {
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
            let path = resolve(folder, target);
            let inside = |other: &Source| other.path == path || other.path.starts_with(&format!("{path}/"));
            if !files.iter().any(inside) && path != "LICENSE" {
                faults.push(Fault::new(file, line, format!("the link to {target} leads nowhere; correct it")));
            }
            if path != file.path {
                linked.push(path);
            }
        }
    }
    if files.iter().any(|file| file.path == "README.md") {
        for file in files.iter().filter(|file| file.path.starts_with("docs/") && !linked.contains(&file.path)) {
            faults.push(Fault::new(file, 1, "no document links here; link it from README.md or from another document"));
        }
    }
    faults
}

/// `target` as seen from `folder`.
fn resolve(folder: &str, target: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

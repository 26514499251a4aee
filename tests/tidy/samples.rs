//! A bad sample for every rule, and a good one beside it where the rule could find too much.

use super::source::{Fault, Source, find_word};
use super::{layers, rules};

fn file(path: &str, text: &str) -> Source {
    Source::new(path, text)
}

/// The rule finds a fault at exactly these places, and says what to do (after a semicolon).
#[track_caller]
fn finds(rule: fn(&[Source]) -> Vec<Fault>, files: &[Source], places: &[&str]) {
    let faults = rule(files);
    let found: Vec<String> = faults.iter().map(|fault| format!("{}:{}", fault.file, fault.line)).collect();
    assert_eq!(found, places, "{faults:#?}");
    assert!(faults.iter().all(|fault| fault.text.contains([';', ':'])), "a fault says what to do: {faults:#?}");
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = r###"
let a = "fn \" x"; // fn b
/* fn /* nested */ c */ let d = 'f'; let e = '\''; let f: &'static str = r#"fn "raw""#;
let g = b"fn"; let h = '"'; let i = "two
lines"; let caf = "x";
let j = b'"'; let k = b'\''; let l = "fn";
"###;
    let source = file("src/x.rs", text);
    assert!(find_word(&source.code, "fn").is_none(), "{}", source.code);
    assert_eq!(source.code.lines().count(), text.lines().count());
    for kept in
        ["let a", "let d", "let e", "let f: &'static str", "let g", "let h", "let i", "let caf", "let k", "let l"]
    {
        assert!(source.code.contains(kept), "{kept} in {}", source.code);
    }
    let strings: Vec<(usize, &str)> = source.strings.iter().map(|(line, text)| (*line, text.as_str())).collect();
    assert_eq!(strings, [(2, "fn \\\" x"), (3, "fn \"raw\""), (4, "fn"), (4, "two\nlines"), (5, "x"), (6, "fn")]);
}

#[test]
fn what_is_compiled_for_tests_only_is_no_production_code() {
    let source =
        file("src/x.rs", "use a;\n#[cfg(test)]\nmod tests {\n  use b;\n  fn c() {}\n}\n#[cfg(test)]\nmod d;\nuse e;\n");
    let left: Vec<&str> = source.production.split_whitespace().collect();
    assert_eq!(left, ["use", "a;", "use", "e;"]);
}

#[test]
fn an_arrow_that_points_up_is_found() {
    let text = "use crate::proto::sse;\nuse crate::edge::Gateway;\nuse crate::{config, stream::{Drive, app}};\nlet a = crate::app::run;\n";
    finds(
        layers::arrows,
        &[file("src/upstream/leg.rs", text)],
        &["src/upstream/leg.rs:2", "src/upstream/leg.rs:3", "src/upstream/leg.rs:4"],
    );
    finds(layers::arrows, &[file("src/main.rs", "use baton::app;\nuse baton::{config, mock};\n")], &["src/main.rs:2"]);
    finds(layers::arrows, &[file("src/misc/x.rs", "")], &["src/misc/x.rs:1"]);
    finds(layers::arrows, &[file("src/misc.rs", "")], &["src/misc.rs:1"]);
}

#[test]
fn an_arrow_that_points_down_is_none() {
    let text =
        "use crate::{proto::{app, sse}, upstream};\n// use crate::edge\nlet a = \"crate::edge\";\nuse mycrate::edge;\n";
    finds(layers::arrows, &[file("src/stream/drive.rs", text), file("src/lib.rs", "pub mod app;")], &[]);
}

#[test]
fn the_mock_engine_is_for_tests_and_binaries_only() {
    let text = "use crate::mock::Engine;\n#[cfg(test)]\nmod tests {\n  use crate::mock::Engine;\n}\n";
    finds(layers::arrows, &[file("src/stream/drive.rs", text)], &["src/stream/drive.rs:1"]);
    finds(
        layers::arrows,
        &[file("src/bin/mock-engine.rs", "use baton::mock;\nuse baton::edge;\n")],
        &["src/bin/mock-engine.rs:2"],
    );
}

#[test]
fn impurity_is_found_in_proto_and_nowhere_else() {
    let text = "use std::time::Instant;\nlet now = Instant::now();\nasync fn a() {}\nuse tokio::io;\nuse std::fs;\n\
                static M: Mutex<u8>;\nlet x = rand::random();\nlog::info!(\"\");\nlet operand = catalog;\nlet now = now.elapsed();\n";
    let found: Vec<String> =
        [2, 3, 4, 5, 6, 7, 8, 10].iter().map(|line| format!("src/proto/relay/mod.rs:{line}")).collect();
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    finds(layers::purity, &[file("src/proto/relay/mod.rs", text)], &found);
    finds(layers::purity, &[file("src/stream/drive.rs", text), file("src/proto/relay/tests.rs", text)], &[]);
    finds(layers::purity, &[file("src/proto/x.rs", "// tokio\n#[cfg(test)]\nmod tests {\n  use std::fs;\n}\n")], &[]);
}

#[test]
fn every_impure_word_is_found() {
    for word in
        ["pingora", "redis", "await", "SystemTime::now", "std::net", "RwLock", "OnceLock", "LazyLock", "once_cell"]
    {
        finds(layers::purity, &[file("src/proto/x.rs", &format!("use {word};"))], &["src/proto/x.rs:1"]);
    }
}

#[test]
fn a_word_away_from_its_home_is_found() {
    let text = "impl ProxyHttp for X {}\nuse redis::Client;\nlet (a, b) = unbounded_channel();\n";
    let app = file("src/app.rs", text);
    finds(layers::homes, &[app], &["src/app.rs:1", "src/app.rs:2", "src/app.rs:3"]);
    finds(
        layers::homes,
        &[file("src/edge/gateway.rs", "impl ProxyHttp for X {}"), file("src/journal/redis.rs", "use redis;")],
        &[],
    );
}

#[test]
fn a_file_for_a_pair_and_a_family_that_knows_an_engine_are_found() {
    let family = |name: &str, text: &str| file(&format!("src/proto/resume/family/{name}.rs"), text);
    let vllm = || file("src/proto/resume/engine/vllm.rs", "");
    finds(
        layers::no_pairs,
        &[family("glm", ""), vllm(), file("src/proto/resume/glm_vllm.rs", "")],
        &["src/proto/resume/glm_vllm.rs:1"],
    );
    finds(
        layers::no_pairs,
        &[family("glm", "// on vllm\nif engine == \"vllm\" {}\nuse super::vllm;\n"), vllm()],
        &["src/proto/resume/family/glm.rs:3", "src/proto/resume/family/glm.rs:2"],
    );
    finds(layers::no_pairs, &[family("glm", "// vllm\nlet a = \"as vllm does\";"), vllm()], &[]);
    let api = file("src/proto/resume/engine/glm_api.rs", "");
    finds(layers::no_pairs, &[family("glm", ""), api], &[]);
}

#[test]
fn metrics_and_documentation_that_differ_are_found() {
    let code = |text: &str| file("src/telemetry/metrics.rs", text);
    let docs = |text: &str| file("docs/METRICS.md", text);
    let good = "counter(\"baton_a_total\", \"Help with baton_a_total.\")";
    let row = "| `baton_a_total` | counter |\n";
    finds(rules::metrics, &[code(good), docs(row)], &[]);
    finds(rules::metrics, &[code(good), docs("none\n")], &["src/telemetry/metrics.rs:1"]);
    finds(rules::metrics, &[code(&format!("{good};\n{good}")), docs(row)], &["src/telemetry/metrics.rs:2"]);
    finds(
        rules::metrics,
        &[code(good), docs(&format!("{row}| `baton_b_total` | counter |\n"))],
        &["docs/METRICS.md:2"],
    );
    let told = file("docs/OPERATIONS.md", "Watch baton_a_total, baton_a_total_bucket\nand baton_c_total.\n");
    finds(rules::metrics, &[code(good), docs(row), told], &["docs/OPERATIONS.md:2"]);
    finds(rules::metrics, &[code(good)], &["docs/METRICS.md:1"]);
}

#[test]
fn a_cause_without_a_row_and_a_row_without_a_cause_are_found() {
    let code = || {
        let text = "const OTHER: &str = \"other\";\nfn code(&self) -> &str {\n  \"reset\"\n}\nlet x = \"words\";\n";
        file("src/proto/relay/input.rs", text)
    };
    let docs = |rows: &str| {
        let text = format!("| `other` |\n## Why a leg failed\n| `reason` | what |\n{rows}## More\n| `more` |\n");
        file("docs/METRICS.md", &text)
    };
    finds(rules::reasons, &[code(), docs("| `reset` | it broke |\n")], &[]);
    finds(rules::reasons, &[code(), docs("| `reset` |\n| `cut` |\n")], &["docs/METRICS.md:5"]);
    finds(rules::reasons, &[code(), docs("")], &["src/proto/relay/input.rs:3"]);
    finds(rules::reasons, &[code()], &["docs/METRICS.md:1"]);
    finds(rules::reasons, &[file("src/proto/relay/input.rs", ""), docs("")], &["src/proto/relay/input.rs:1"]);
}

#[test]
fn a_file_over_the_limit_is_found() {
    let lines = |count| "//\n".repeat(count);
    finds(rules::file_length, &[file("src/a.rs", &lines(rules::MAX_FILE))], &[]);
    finds(rules::file_length, &[file("src/a.rs", &lines(rules::MAX_FILE + 1))], &["src/a.rs:801"]);
    finds(rules::file_length, &[file("docs/a.md", &lines(rules::MAX_FILE + 1))], &[]);
}

#[test]
fn a_function_over_the_limit_is_found_wherever_it_is() {
    let function = |lines: usize| format!("fn long(a: [u8; 3]) -> u8\nwhere\n{}{{ \"}}\" }}\n", "\n".repeat(lines - 3));
    finds(rules::function_length, &[file("src/a.rs", &function(rules::MAX_FUNCTION))], &[]);
    let long = function(rules::MAX_FUNCTION + 1);
    finds(rules::function_length, &[file("src/a.rs", &long)], &["src/a.rs:1"]);
    let nested = format!("#[cfg(test)]\nmod tests {{\n    {long}}}\n");
    finds(rules::function_length, &[file("tests/a.rs", &nested)], &["tests/a.rs:3"]);
    let declared = format!("trait A {{ fn a(&self); }}\n{}fn b() {{}}\n", "\n".repeat(200));
    finds(rules::function_length, &[file("src/a.rs", &declared)], &[]);
}

#[test]
fn what_is_unfinished_is_found() {
    let (mark, call) = (concat!("TO", "DO"), concat!("to", "do!"));
    finds(
        rules::unfinished,
        &[file("src/a.rs", &format!("// {mark}: later\n{call}()\n\"{call}\";\n"))],
        &["src/a.rs:1", "src/a.rs:2"],
    );
    finds(rules::unfinished, &[file("docs/A.md", &format!("{mark}\nmas{mark}n\n"))], &["docs/A.md:1"]);
}

#[test]
fn a_path_of_a_machine_is_found() {
    let (home, work) = (concat!("/ho", "me/"), concat!("/wo", "rk/"));
    finds(rules::machine_paths, &[file("a.yaml", &format!("x\ncp {home}me/x .\n"))], &["a.yaml:2"]);
    finds(rules::machine_paths, &[file("a.md", &format!("see net{work}x and \"{work}x\"\n"))], &["a.md:1"]);
    finds(rules::machine_paths, &[file("a.md", &format!("see net{work}x\n"))], &[]);
}

#[test]
fn a_lost_document_and_a_broken_link_are_found() {
    let readme = || file("README.md", "[a](docs/A.md#part) [web](https://example.org/x) [here](#here) [conf](conf/)\n");
    let conf = || file("conf/baton.yaml", "");
    finds(
        rules::links,
        &[readme(), file("docs/A.md", "[b](B.md)\n"), file("docs/B.md", "[up](../README.md)"), conf()],
        &[],
    );
    finds(rules::links, &[readme(), file("docs/A.md", "\n[b](C.md)"), conf()], &["docs/A.md:2"]);
    finds(
        rules::links,
        &[readme(), file("docs/A.md", ""), file("docs/B.md", "[self](B.md)"), conf()],
        &["docs/B.md:1"],
    );
    finds(rules::links, &[file("docs/B.md", "")], &[]);
}

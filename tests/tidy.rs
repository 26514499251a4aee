//! Holds the rules of the house: the arrows between layers, the purity of `proto`, limits on files and functions, names
//! in docs.
//!
//! Each rule is a function from files to faults in `tidy/rules.rs` or `tidy/layers.rs`. Here every rule meets the
//! repository, and in `tidy/samples.rs` a bad sample that it must find: a rule that cannot fail does not count.

#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/samples.rs"]
mod samples;
#[path = "tidy/source.rs"]
mod source;

use std::path::Path;

use source::{Fault, Source};

/// Folders of files that nobody here writes: built, fetched, generated.
const FOREIGN: [&str; 4] = ["target", "node_modules", "dist", "build"];

/// Reads every text file of the repository that a person writes.
fn repository() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    collect(root, root, &mut files);
    // A rule about a folder that has moved would hold for ever.
    for home in
        ["src/proto/", "src/proto/resume/family/", "src/proto/resume/engine/", "src/edge/", "docs/", "tests/tidy.rs"]
    {
        assert!(files.iter().any(|file| file.path.starts_with(home)), "there is no {home}; correct the rules of tidy");
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<Source>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry of the repository").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            // Of the hidden folders only the one that holds what CI runs is ours.
            let ours =
                !FOREIGN.contains(&&*name) && !name.starts_with("__") && (!name.starts_with('.') || name == ".ci");
            if ours {
                collect(root, &path, files);
            }
        } else if !["Cargo.lock", "LICENSE", ".git"].contains(&&*name) // the last is a file in a second working tree
            && let Ok(text) = std::fs::read_to_string(&path)
        {
            let path = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().replace('\\', "/");
            files.push(Source::new(&path, &text));
        }
    }
}

#[track_caller]
fn hold(rule: fn(&[Source]) -> Vec<Fault>) {
    let faults = rule(&repository());
    let lines: Vec<String> = faults.iter().map(Fault::to_string).collect();
    assert!(faults.is_empty(), "{} fault(s):\n{}", faults.len(), lines.join("\n"));
}

#[test]
fn arrows_between_layers_point_down() {
    hold(layers::arrows);
}

#[test]
fn proto_is_pure() {
    hold(layers::purity);
}

#[test]
fn some_words_have_one_home() {
    hold(layers::homes);
}

#[test]
fn a_family_or_an_engine_has_a_file_and_a_pair_has_none() {
    hold(layers::no_pairs);
}

#[test]
fn metrics_and_their_documentation_name_the_same() {
    hold(rules::metrics);
}

#[test]
fn every_cause_of_a_failure_is_explained() {
    hold(rules::reasons);
}

#[test]
fn no_file_is_too_long_to_read() {
    hold(rules::file_length);
}

#[test]
fn no_function_is_too_long_to_hold_in_the_head() {
    hold(rules::function_length);
}

#[test]
fn nothing_is_left_unfinished() {
    hold(rules::unfinished);
}

#[test]
fn no_path_of_a_machine_is_in_the_repository() {
    hold(rules::machine_paths);
}

#[test]
fn every_document_can_be_found_and_every_link_leads_somewhere() {
    hold(rules::links);
}

//! Certificates that upstreams name: wrong ones, and what is warned of.

use std::io;

use super::{LEAST, Outside, Settings, load, load_from};

/// Of qwen3 on vLLM 0.32: exact by ids, text in content only, nothing known inside characters.
const CERTIFICATE: &str = r#"{
  "schema": 1, "date": "2026-01-31T12:00:00Z", "engine": "vllm", "version": "0.32.0", "scale_out": false, "model": "tiny",
  "template": null, "family": "qwen3", "thinking_key": "enable_thinking", "forced": false, "prompts": [],
  "rows": [
    {"plan": "token-exact", "state": "thinking", "verdicts": {"exact": 5}},
    {"plan": "token-exact", "state": "content", "verdicts": {"exact": 5}},
    {"plan": "render-generate", "state": "thinking", "verdicts": {"refused": 5}, "why": ["not_here"]},
    {"plan": "chat-continue", "state": "thinking", "verdicts": {"refused": 5}, "why": ["thinking_closes"]},
    {"plan": "chat-continue", "state": "content", "verdicts": {"exact": 4, "different": 1}},
    {"plan": "prefix", "state": "content", "verdicts": {"refused": 5}, "why": ["not_here"]}
  ],
  "not_reached": []
}"#;

/// The configuration with a certificate whose file holds this, and one replacement in it.
fn with(certificate: &str, from: &str, to: &str) -> Result<Settings, String> {
    let text = LEAST.replace("name: a,", "name: a, certificate: there.json,").replace(from, to);
    let file = |path: &str| match path {
        "there.json" => Ok(certificate.to_owned()),
        _ => Err(io::Error::other("no such thing")),
    };
    load_from(&text, Outside { env: &|_| None, file: &file }).map_err(|errors| errors.in_file("conf.yaml").to_string())
}

fn warnings(certificate: &str, from: &str, to: &str) -> Vec<String> {
    with(certificate, from, to).unwrap_or_else(|errors| panic!("{errors}")).warnings
}

#[test]
fn a_certificate_is_read_when_it_is_named() {
    let settings = with(CERTIFICATE, "", "").unwrap();
    let certificate = settings.upstreams[0].certificate.as_ref().unwrap();
    assert_eq!((&*certificate.model, certificate.rows.len()), ("tiny", 6));
    assert_eq!(settings.warnings, [] as [&str; 0]);
}

#[test]
fn a_file_that_is_no_certificate_is_a_mistake() {
    let place = "conf.yaml:1: upstreams[0].certificate: ";
    for (certificate, from, to, said) in [
        (
            CERTIFICATE,
            "there.json",
            "gone.json",
            "\"gone.json\" cannot be read (no such thing); write the path of a file, from this one's folder",
        ),
        (CERTIFICATE, "there.json", "\"\"", "\"\" is empty"),
        (CERTIFICATE, "there.json", "1", "1 is not text; put it in quotes if it is meant as text"),
        (
            "# a report",
            "",
            "",
            "\"there.json\": it is no certificate of `baton certify`: expected value at line 1 column 1",
        ),
        (
            "{\"schema\": 2}",
            "",
            "",
            "\"there.json\": its schema is 2, and this version of Baton reads 1; write it anew with `baton certify`",
        ),
    ] {
        assert_eq!(with(certificate, from, to).unwrap_err(), format!("{place}{said}"));
    }
    let unread = load(&LEAST.replace("name: a,", "name: a, certificate: x,"), &|_| None).unwrap_err().to_string();
    assert!(unread.contains("\"x\" cannot be read"), "{unread}");
}

#[test]
fn what_a_certificate_does_not_cover_or_says_against_it_is_warned_of() {
    let place = "line 1: upstreams[0].certificate: ";
    let route = "upstream: a";
    for (certificate, from, to, said) in [
        (CERTIFICATE.to_owned(), "family: qwen3", "family: glm", "the certificate is of the family qwen3, and"),
        (CERTIFICATE.to_owned(), "engine: vllm", "engine: sglang", "the certificate is of the engine vllm, and"),
        (
            CERTIFICATE.to_owned(),
            "model: \"*\"",
            "model: other",
            "the certificate is of the model tiny, which no route",
        ),
        (
            CERTIFICATE.to_owned(),
            route,
            "upstream: a, continuation: {plan: replay}",
            "the certificate does not cover the plan replay",
        ),
        (
            CERTIFICATE.to_owned(),
            route,
            "upstream: a, continuation: {plan: chat-continue}",
            "by the certificate answers cut in thinking are continued by no plan",
        ),
        (
            CERTIFICATE.to_owned(),
            route,
            "upstream: a, continuation: {force: true}",
            "the certificate was made without `force`, which is on here",
        ),
        (
            CERTIFICATE.replace("\"different\": 1", "\"leaks\": 1"),
            "",
            "",
            "by the certificate chat-continue mixes thinking and answer in content; leave it out of `plan`",
        ),
        (
            CERTIFICATE.replace("\"not_reached\": []", "\"not_reached\": [\"inside-word\", \"inside-character\"]"),
            "",
            "",
            "the certificate says nothing of answers cut inside a word and inside a character",
        ),
    ] {
        let warned = warnings(&certificate, from, to);
        let expected = format!("{place}{said}");
        assert!(warned.len() == 1 && warned[0].starts_with(&expected), "{warned:?}, not {expected}");
    }
}

#[test]
fn an_upstream_on_which_nothing_is_continued_needs_no_plan_certified() {
    let to = "upstream: a, continuation: {enabled: false, plan: replay}";
    assert_eq!(warnings(CERTIFICATE, "upstream: a", to), [] as [&str; 0]);
}

//! Whole files: what is read from them, and what is said about wrong ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::settings::{
    Balance, Continuation, Cors, Endpoint, Journal, Mode, OnIncomplete, Resume, ResumeMode, Route, Scheme, Server,
    Threads,
};
use super::units::{Glob, MIB};
use super::{Outside, Settings, load, load_from};
use crate::proto::resume::{PlanKind, PlanSet};

/// What a file cannot leave out.
const LEAST: &str = "\
upstreams: [{name: a, engine: vllm, family: qwen3, endpoints: [\"http://h:1\"]}]
routes: [{match: {model: \"*\"}, upstream: a}]
";

fn nothing(_: &str) -> Option<String> {
    None
}

fn read(text: &str) -> Settings {
    load(text, &nothing).unwrap_or_else(|errors| panic!("{}", errors.in_file("conf.yaml")))
}

fn mistakes(text: &str) -> String {
    match load(text, &nothing) {
        Ok(settings) => panic!("was accepted: {settings:?}"),
        Err(errors) => errors.in_file("conf.yaml").to_string(),
    }
}

/// A file of the repository.
fn shipped(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn what_is_left_out_has_its_default() {
    let settings = read(LEAST);
    assert_eq!(settings.server, Server::default());
    assert_eq!(settings.journal, Journal::default());
    assert_eq!(settings.routes, [Route::new(Glob::parse("*").unwrap(), 0)]);
    assert_eq!(settings.upstreams[0].balance, Balance::RoundRobin);
    assert_eq!(settings.warnings, [] as [String; 0]);
}

#[test]
fn nothing_listens_beyond_loopback_by_default() {
    let server = Server::default();
    assert_eq!(server.listen, ["127.0.0.1:8080".parse::<SocketAddr>().unwrap()]);
    assert_eq!(server.admin, "127.0.0.1:9090".parse().unwrap());
}

#[test]
fn the_reference_file_states_the_built_in_defaults() {
    let text = shipped("conf/baton.yaml");
    let settings = read(&text);
    assert_eq!(settings.warnings, [] as [String; 0]);
    assert_eq!(settings.server, Server::default());
    assert_eq!(settings.journal, Journal::default());
    assert_eq!(settings.routes, [Route::new(Glob::parse("*").unwrap(), 0)]);
    assert_eq!(settings.upstreams[0].balance, Balance::default());
}

/// Asks for every key by writing one that does not exist into each mapping, and looks for them all in the reference
/// file.
#[test]
fn the_reference_file_has_every_key() {
    let text = "\
server: {listen: [{zzzzzzzz: 1}], cors: {zzzzzzzz: 1}, zzzzzzzz: 1}
upstreams: [{zzzzzzzz: 1}]
routes: [{match: {zzzzzzzz: 1}, continuation: {tokens: {zzzzzzzz: 1}, zzzzzzzz: 1}, timeouts: {zzzzzzzz: 1}, zzzzzzzz: 1}]
journal: {zzzzzzzz: 1}
zzzzzzzz: 1
";
    let reference = shipped("conf/baton.yaml");
    let said = mistakes(text);
    let keys: Vec<&str> = said
        .lines()
        .filter_map(|line| line.split_once("the keys are "))
        .flat_map(|(_, keys)| keys.split(", ").flat_map(|keys| keys.split(" or ")))
        .collect();
    assert!(keys.len() > 30, "the mistakes list the keys: {said}");
    for key in keys {
        let written = |line: &str| line.trim_start_matches([' ', '-', '#']).starts_with(&format!("{key}:"));
        assert!(reference.lines().any(written), "conf/baton.yaml has no line for the key {key}");
    }
}

#[test]
fn every_example_is_accepted_without_a_warning() {
    let env = |name: &str| {
        let value = match name {
            "BATON_LISTEN" => "0.0.0.0:8080",
            "MODEL_FAMILY" => "qwen3",
            "ENGINE_A" => "http://10.0.0.1:8000",
            "ENGINE_B" => "http://10.0.0.2:8000",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let mut seen = 0;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/examples");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        match load(&text, &env) {
            Ok(settings) => assert_eq!(settings.warnings, [] as [String; 0], "{}", path.display()),
            Err(errors) => panic!("{}", errors.in_file(&path.display().to_string())),
        }
        seen += 1;
    }
    assert!(seen >= 4, "conf/examples has its files");
}

const FULL: &str = "\
server:
  listen: [{addr: \"0.0.0.0:80\"}, {addr: \"[::]:80\"}]
  admin: \"127.0.0.1:1\"
  threads: 3
  max_request_body: 1MiB
  max_memory: 64MiB
  drain: 7s
routes:
  - match: {model: \"q*\"}
    upstream: b
    continuation:
      enabled: observe
      upstream: a
      plan: [replay, token-exact]
      max_legs: 8
      max_prompt_tokens: 9
      derender_every: 7
      replay_overlap: 6
      max_body: 2MiB
      buffer_tool_calls: true
      buffer_structured: true
      buffer_limit: 3MiB
      force: true
      tokens: {cjk: 2, other: 3.5}
    timeouts: {connect: 100ms, idle: 1m, send: 2s}
    retry: {attempts: 1, backoff: 2s, backoff_max: 3s}
    heartbeat: off
    resume: {mode: always, grace: 1s, unattended: 2, ttl: 3s, max_age: 4s, window: 5MiB, silence: 6s}
    on_incomplete: mirror
    max_event: 2MiB
  - {match: {model: exact}, upstream: a, continuation: {enabled: false}}
upstreams:
  - {name: a, engine: sglang, family: glm, endpoints: [\"http://x:1\", \"https://[::1]\"], balance: least_streams}
  - {name: b, engine: openai, family: qwen3, endpoints: [\"http://y:2\"]}
journal: {store: memory, max_stream: 1MiB, max_total: 2GiB, max_streams: 7, max_tenant: 3MiB, max_tenant_streams: 5}
";

#[test]
fn every_key_reaches_its_setting() {
    let settings = read(FULL);
    assert_eq!(settings.server.listen.len(), 2);
    assert_eq!(settings.server.admin.port(), 1);
    assert_eq!(settings.server.threads, Threads::Count(3.try_into().unwrap()));
    assert_eq!(settings.server.threads.count(), 3);
    assert_eq!(settings.server.max_request_body, MIB);
    assert_eq!(settings.server.drain, Duration::from_secs(7));
    let route = &settings.routes[0];
    assert_eq!(route.upstream, 1);
    let Continuation { mode, upstream, max_legs, max_body, .. } = route.continuation;
    assert_eq!((mode, upstream, max_legs, max_body), (Mode::Observe, 0, 8, 2 * MIB));
    let Continuation { plans, render, max_prompt_tokens, derender_every, replay_overlap, .. } = route.continuation;
    assert_eq!(plans.iter().collect::<Vec<_>>(), [PlanKind::TokenExact, PlanKind::Replay]);
    assert_eq!((render, max_prompt_tokens, derender_every, replay_overlap), (false, 9, 7, 6));
    let (backoff, backoff_max) = (Duration::from_secs(2), Duration::from_secs(3));
    assert_eq!(route.retry, super::settings::Retry { attempts: 1, backoff, backoff_max });
    let Continuation { buffer_tool_calls, buffer_structured, buffer_limit, force, tokens, .. } = route.continuation;
    assert_eq!((buffer_tool_calls, buffer_structured, buffer_limit, force), (true, true, 3 * MIB, true));
    assert_eq!((tokens.cjk, tokens.other), (2.0, 3.5));
    assert_eq!(route.timeouts.connect, Duration::from_millis(100));
    assert_eq!(route.timeouts.idle, Duration::from_secs(60));
    assert_eq!(route.timeouts.send, Duration::from_secs(2));
    assert_eq!((route.heartbeat, route.max_event), (None, 2 * MIB));
    assert_eq!(route.on_incomplete, OnIncomplete::Mirror);
    let [grace, ttl, max_age, silence] = [1, 3, 4, 6].map(Duration::from_secs);
    let (mode, window, silence) = (ResumeMode::Always, Some(5 * MIB), Some(silence));
    assert_eq!(route.resume, Resume { mode, grace, unattended: 2, ttl, max_age, window, silence });
    let second = &settings.routes[1].continuation;
    assert_eq!((second.mode, second.upstream), (Mode::Off, 0));
    let a = &settings.upstreams[0];
    assert_eq!((a.engine.as_str(), a.family.as_str(), a.balance), ("sglang", "glm", Balance::LeastStreams));
    assert_eq!(a.certificate, None);
    assert_eq!(a.endpoints[1], Endpoint { scheme: Scheme::Https, host: "::1".to_owned(), port: 443 });
    let Journal { max_stream, max_total, max_streams, max_tenant, max_tenant_streams, .. } = settings.journal;
    assert_eq!((max_stream, max_total, max_streams), (MIB, 2048 * MIB, 7));
    assert_eq!((max_tenant, max_tenant_streams), (3 * MIB, 5));
    assert_eq!(settings.server.max_memory, Some(64 * MIB));
}

#[test]
fn the_origins_of_pages_are_none_some_or_all() {
    let of = |origins: &str| read(&format!("server: {{cors: {{origins: {origins}}}}}\n{LEAST}")).server.cors;
    assert_eq!(of("[]"), Cors::Off);
    assert_eq!((of("\"*\""), of("[\"*\"]")), (Cors::Any, Cors::Any));
    let one = "https://app.example".to_owned();
    assert_eq!(of("https://app.example"), Cors::Only(vec![one.clone()]));
    assert_eq!(of("[https://app.example, \"http://[::1]:1\"]"), Cors::Only(vec![one, "http://[::1]:1".to_owned()]));
}

#[test]
fn a_plan_is_one_kind_or_a_set_of_kinds_and_auto_is_what_is_tried_without_one() {
    let of = |plan: &str| {
        let continuation = format!("upstream: a, continuation: {{plan: {plan}}}");
        let settings = read(&LEAST.replace("upstream: a", &continuation));
        let Continuation { plans, render, .. } = settings.routes[0].continuation;
        (plans.iter().map(PlanKind::name).collect::<Vec<_>>().join(" "), render)
    };
    let all = PlanKind::ALL.map(PlanKind::name);
    for kind in all {
        assert_eq!(of(kind), (kind.to_owned(), kind == "render-generate"));
    }
    assert_eq!(of("auto"), ("token-exact render-generate chat-continue prefix".to_owned(), false));
    assert_eq!(of("[prefix, token-exact]"), ("token-exact prefix".to_owned(), false));
    assert_eq!(of(&format!("[{}]", all.join(", "))), (all.join(" "), true));
    assert_eq!(Continuation::on(0).plans, PlanSet::AUTO);
}

#[test]
fn every_engine_with_quirks_can_be_configured() {
    for engine in crate::proto::resume::Engine::all() {
        assert!(super::ENGINES.contains(&engine), "{engine}");
    }
}

#[test]
fn the_first_route_that_matches_serves_a_model() {
    let settings = read(FULL);
    let upstream = |model| settings.route(model).map(|route| route.upstream);
    assert_eq!((upstream("qwen"), upstream("exact"), upstream("other"), upstream("")), (Some(1), Some(0), None, None));
}

#[test]
fn the_environment_may_stand_for_any_single_value() {
    let env: BTreeMap<&str, &str> =
        [("N", "4"), ("S", "1MiB"), ("B", "true"), ("R", "2.5"), ("E", "http://h:1"), ("H", "h")].into();
    let text = "\
server: {threads: \"${N}\", max_request_body: \"${S}\"}
upstreams: [{name: \"${H}\", engine: vllm, family: qwen3, endpoints: [\"http://${H}:1\"]}]
routes:
  - {match: {model: \"${H}*\"}, upstream: \"${H}\", continuation: {force: \"${B}\", tokens: {cjk: \"${R}\"}}}
";
    let settings = load(text, &|name| env.get(name).map(|v| (*v).to_owned())).unwrap();
    assert_eq!(settings.server.threads.count(), 4);
    assert_eq!(settings.server.max_request_body, MIB);
    assert_eq!(settings.upstreams[0].endpoints[0].host, "h");
    assert!(settings.routes[0].continuation.force);
    assert_eq!(settings.routes[0].continuation.tokens.cjk, 2.5);
}

#[test]
fn a_value_from_the_environment_is_never_repeated() {
    let text = "\
server: {listen: [{addr: \"${X}\"}], admin: \"${X}\", threads: \"${X}\", max_request_body: \"${X}\"}
upstreams: [{name: \"${X}\", engine: \"${X}\", family: \"${X}\", endpoints: [\"${X}\"], balance: \"${X}\", certificate: \"${X}\"}]
routes:
  - match: {model: \"${LONG}\"}
    upstream: \"${X}\"
    continuation: {enabled: \"${X}\", upstream: \"${X}\", plan: [\"${X}\"], max_legs: \"${X}\", force: \"${X}\", tokens: {cjk: \"${X}\"}}
    timeouts: {idle: \"${X}\"}
    heartbeat: \"${X}\"
    on_incomplete: \"${X}\"
journal: {store: \"${X}\", max_stream: \"${X}\", max_streams: \"${X}\"}
";
    let env = |name: &str| Some(if name == "LONG" { "s3cret".repeat(99) } else { "s3cret me@x".to_owned() });
    let file = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let errors = load_from(text, Outside { env: &env, file: &file }).unwrap_err();
    assert_eq!(errors.mistakes().len(), 22, "{errors}");
    assert!(!errors.to_string().contains("s3cret"), "{errors}");
    assert!(errors.to_string().contains("the value of \"${X}\" is not a duration"), "{errors}");
}

#[test]
fn a_name_from_the_environment_is_not_suggested_either() {
    let text = "\
upstreams: [{name: \"${X}\", engine: vllm, family: \"${X}\", endpoints: [\"http://h:1\"]}]
routes: [{match: {model: \"*\"}, upstream: s3cre}]
";
    let env = |_: &str| Some("s3cret".to_owned());
    let errors = load(text, &env).unwrap_err().to_string();
    assert_eq!(errors, "config:2: routes[0].upstream: names no upstream");
    let warnings = load(&text.replace("s3cre}", "\"${X}\"}"), &env).unwrap().warnings;
    assert!(warnings[0].contains("the value of \"${X}\" is not a family"), "{warnings:?}");
}

#[test]
fn what_is_allowed_but_hardly_meant_is_a_warning() {
    let text = "\
upstreams:
  - {name: a, engine: vllm, family: somebodys-own, endpoints: [\"http://h:1\"]}
  - {name: b, engine: vllm, family: kimi-k3, endpoints: [\"http://h:1\"]}
routes:
  - {match: {model: \"*\"}, upstream: a}
  - {match: {model: qwen}, upstream: a}
";
    let warnings = read(text).warnings;
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    assert!(warnings[0].starts_with("line 2: upstreams[0].family: \"somebodys-own\" is not a family"), "{warnings:?}");
    assert!(warnings[1].starts_with("line 3: upstreams[1]: continuing Kimi-K3 on vLLM is unverified"), "{warnings:?}");
    assert!(warnings[2].starts_with("line 6: routes[1]: is never used"), "{warnings:?}");
}

#[test]
fn a_family_that_an_engine_never_continues_is_warned_of() {
    for (engine, family) in [("vllm", "gpt-oss"), ("vllm", "deepseek-v3.2"), ("sglang", "gpt-oss")] {
        let text = format!(
            "upstreams: [{{name: a, engine: {engine}, family: {family}, endpoints: [\"http://x:1\"]}}]\n\
             routes: [{{match: {{model: \"*\"}}, upstream: a}}]\n"
        );
        let warnings = read(&text).warnings;
        assert!(
            warnings[0].contains("upstreams[0]: answers of this upstream are never continued by their text"),
            "{warnings:?}"
        );
    }
}

mod certificates;
mod wrong_files;

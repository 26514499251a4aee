//! Wrong files and exactly what is said about them.

use super::{LEAST, mistakes};

/// `head` before what a file cannot leave out: two more lines.
fn with(head: &str) -> String {
    mistakes(&format!("{head}{LEAST}"))
}

/// A route's own lines, from line 4 on.
fn route(lines: &str) -> String {
    let head = "upstreams: [{name: a, engine: vllm, family: qwen3, endpoints: [\"http://h:1\"]}]\n\
                routes:\n- {match: {model: \"*\"}, upstream: a,\n";
    mistakes(&format!("{head}{lines}\n }}\n"))
}

/// An upstream's own line 2.
fn upstream(line: &str) -> String {
    mistakes(&format!("upstreams:\n- {{{line}}}\nroutes: [{{match: {{model: \"*\"}}, upstream: a}}]\n"))
}

#[track_caller]
fn check(cases: &[(String, &str)]) {
    for (said, expected) in cases {
        assert_eq!(said, expected);
    }
}

#[test]
fn a_quantity_needs_its_unit_and_its_limits() {
    check(&[
        (
            route("timeouts: {idle: \"20\"}"),
            "conf.yaml:4: routes[0].timeouts.idle: \"20\" is not a duration; write 500ms, 8s or 5m",
        ),
        (
            route("timeouts: {idle: 20}"),
            "conf.yaml:4: routes[0].timeouts.idle: 20 is not a duration; write 500ms, 8s or 5m",
        ),
        (
            route("timeouts:\n  {connect: 1ms}"),
            "conf.yaml:5: routes[0].timeouts.connect: \"1ms\" is out of range; write a value from 10ms to 5m",
        ),
        (
            route("heartbeat: never"),
            "conf.yaml:4: routes[0].heartbeat: \"never\" is not a duration; write 500ms, 8s or 5m",
        ),
        (
            route("max_event: 1MB"),
            "conf.yaml:4: routes[0].max_event: \"1MB\" is not a size; write 64KiB, 10MiB or 1GiB",
        ),
        (
            with("server: {max_request_body: 2GiB}\n"),
            "conf.yaml:1: server.max_request_body: \"2GiB\" is out of range; write a value from 1KiB to 1GiB",
        ),
        (
            with("journal: {max_stream: 8MiB, max_total: 4MiB}\n"),
            "conf.yaml:1: journal.max_total: does not fit: one stream may hold 8MiB, all together only 4MiB",
        ),
        (
            with("journal: {max_total: 1MiB}\n"),
            "conf.yaml:1: journal.max_total: does not fit: one stream may hold 4MiB, all together only 1MiB",
        ),
    ]);
}

#[test]
fn a_number_must_be_one_and_lie_within_its_limits() {
    check(&[
        (
            route("continuation: {max_legs: 9}"),
            "conf.yaml:4: routes[0].continuation.max_legs: 9 is out of range; write a value from 1 to 8",
        ),
        (
            route("continuation: {max_legs: 0}"),
            "conf.yaml:4: routes[0].continuation.max_legs: 0 is out of range; write a value from 1 to 8",
        ),
        (
            route("continuation: {max_prompt_tokens: 0}"),
            "conf.yaml:4: routes[0].continuation.max_prompt_tokens: 0 is out of range; write a value from 1 to 16777216",
        ),
        (
            route("continuation: {max_prompt_tokens: 128KiB}"),
            "conf.yaml:4: routes[0].continuation.max_prompt_tokens: \"128KiB\" is not a whole number",
        ),
        (
            route("continuation: {derender_every: 1025}"),
            "conf.yaml:4: routes[0].continuation.derender_every: 1025 is out of range; write a value from 1 to 1024",
        ),
        (
            route("continuation: {replay_overlap: 4097}"),
            "conf.yaml:4: routes[0].continuation.replay_overlap: 4097 is out of range; write a value from 1 to 4096",
        ),
        (
            route("retry: {attempts: -1}"),
            "conf.yaml:4: routes[0].retry.attempts: -1 is out of range; write a value from 1 to 16",
        ),
        (
            route("retry: {backoff: 9s}"),
            "conf.yaml:4: routes[0].retry.backoff: is longer than backoff_max; write a shorter one",
        ),
        (route("retry: {attempts: 2.5}"), "conf.yaml:4: routes[0].retry.attempts: 2.5 is not a whole number"),
        (route("retry: {attempts: \"3\"}"), "conf.yaml:4: routes[0].retry.attempts: \"3\" is not a whole number"),
        (
            route("continuation: {tokens: {cjk: many}}"),
            "conf.yaml:4: routes[0].continuation.tokens.cjk: \"many\" is not a number; write 4 or 1.6",
        ),
        (
            route("continuation: {tokens: {cjk: 0}}"),
            "conf.yaml:4: routes[0].continuation.tokens.cjk: 0 is out of range; write a value from 0.1 to 100",
        ),
        (
            with("server: {threads: 0}\n"),
            "conf.yaml:1: server.threads: 0 is out of range; write a value from 1 to 1024",
        ),
        (
            with("server: {threads: all}\n"),
            "conf.yaml:1: server.threads: \"all\" is not known here; write auto or a number of threads",
        ),
    ]);
}

#[test]
fn a_word_must_be_one_of_the_known_ones() {
    check(&[
        (
            route("continuation: {enabled: yes}"),
            "conf.yaml:4: routes[0].continuation.enabled: \"yes\" is not known here; write true, false or observe",
        ),
        (
            route("continuation: {buffer_tool_calls: 1}"),
            "conf.yaml:4: routes[0].continuation.buffer_tool_calls: 1 is neither true nor false",
        ),
        (
            route("on_incomplete: erorr"),
            "conf.yaml:4: routes[0].on_incomplete: \"erorr\" is not known here; did you mean \"error\"?",
        ),
        (
            route("on_incomplete: pretend"),
            "conf.yaml:4: routes[0].on_incomplete: \"pretend\" is not known here; write error or mirror",
        ),
        (
            upstream("name: a, engine: vlm, family: qwen3, endpoints: [\"http://h:1\"]"),
            "conf.yaml:2: upstreams[0].engine: \"vlm\" is not known here; did you mean \"vllm\"?",
        ),
        (with("journal: {store: redis}\n"), "conf.yaml:1: journal.store: \"redis\" is not known here; write memory"),
    ]);
}

#[test]
fn a_plan_must_be_a_known_one_or_several_of_them() {
    let kinds = "token-exact, render-generate, chat-continue, prefix or replay";
    check(&[
        (
            route("continuation: {plan: best}"),
            &format!("conf.yaml:4: routes[0].continuation.plan: \"best\" is not known here; write auto, {kinds}"),
        ),
        (
            route("continuation: {plan: token_exact}"),
            "conf.yaml:4: routes[0].continuation.plan: \"token_exact\" is not known here; did you mean \"token-exact\"?",
        ),
        (
            route("continuation: {\n  plan: []}"),
            &format!("conf.yaml:5: routes[0].continuation.plan: is an empty list; write at least one of {kinds}"),
        ),
        (
            route("continuation: {plan: [auto,\n replay, 7, replay]}"),
            &format!(
                "conf.yaml:4: routes[0].continuation.plan[0]: \"auto\" is not known here; write {kinds}\n\
                 conf.yaml:5: routes[0].continuation.plan[2]: 7 is not known here; write {kinds}\n\
                 conf.yaml:5: routes[0].continuation.plan[3]: is listed twice"
            ),
        ),
        (
            route("continuation: {plan: {a: 1}}"),
            "conf.yaml:4: routes[0].continuation.plan: is a mapping where a single value is expected",
        ),
        (
            route("continuation: {plan: }"),
            "conf.yaml:4: routes[0].continuation.plan: has no value; write one, or leave the key out",
        ),
    ]);
}

#[test]
fn an_unknown_key_is_a_mistake_and_a_near_one_is_suggested() {
    check(&[
        (route("timeout: {idle: 20s}"), "conf.yaml:4: routes[0].timeout: is not a key here; did you mean timeouts?"),
        (
            with("server: {certificate: x}\n"),
            "conf.yaml:1: server.certificate: is not a key here; the keys are listen, admin, threads, max_request_body, drain, max_memory or cors",
        ),
        (
            with("server: {listen: [{addr: \"127.0.0.1:1\", tls: 1}]}\n"),
            "conf.yaml:1: server.listen[0].tls: is not a key here; the keys are addr",
        ),
        (
            with("certificates: {}\n"),
            "conf.yaml:1: certificates: is not a key here; the keys are server, upstreams, routes or journal",
        ),
        (
            with("\"a\\nb\": {}\n"),
            "conf.yaml:1: a\\nb: is not a key here; the keys are server, upstreams, routes or journal",
        ),
    ]);
}

#[test]
fn a_key_that_is_written_twice_is_a_mistake() {
    check(&[
        (
            with("server: {threads: 1}\njournal: {}\nserver: {threads: 2}\n"),
            "conf.yaml:3: server: is written twice; the first is on line 1",
        ),
        (
            route("heartbeat: 5s,\n heartbeat: 6s"),
            "conf.yaml:5: routes[0].heartbeat: is written twice; the first is on line 4",
        ),
    ]);
}

#[test]
fn a_value_of_another_shape_is_a_mistake() {
    check(&[
        (
            with("server: 5\n"),
            "conf.yaml:1: server: is not a mapping; write { key: value } or indented lines of key: value",
        ),
        (
            with("server: {listen: \"127.0.0.1:1\"}\n"),
            "conf.yaml:1: server.listen: is not a list; write [ … ] or lines that begin with \"- \"",
        ),
        (with("server: {listen: []}\n"), "conf.yaml:1: server.listen: is an empty list; write at least one"),
        (with("server: {threads: [1]}\n"), "conf.yaml:1: server.threads: is a list where a single value is expected"),
        (
            with("server: {threads: {a: 1}}\n"),
            "conf.yaml:1: server.threads: is a mapping where a single value is expected",
        ),
        (with("server: {threads: }\n"), "conf.yaml:1: server.threads: has no value; write one, or leave the key out"),
        (
            upstream("name: 7, engine: vllm, family: qwen3, endpoints: [\"http://h:1\"]"),
            "conf.yaml:2: upstreams[0].name: 7 is not text; put it in quotes if it is meant as text",
        ),
        (mistakes("just words"), "conf.yaml:1: is not a mapping; write { key: value } or indented lines of key: value"),
    ]);
}

#[test]
fn a_reference_must_name_an_upstream() {
    let ends = |name: &str, to: &str| {
        mistakes(&format!(
            "upstreams: [{{name: {name}, engine: vllm, family: qwen3, endpoints: [\"http://h:1\"]}}]\nroutes:\n\
             - {{match: {{model: \"*\"}}, upstream: {to}}}\n"
        ))
    };
    check(&[
        (ends("qwen", "qwne"), "conf.yaml:3: routes[0].upstream: names no upstream; did you mean \"qwen\"?"),
        (ends("qwen", "llama"), "conf.yaml:3: routes[0].upstream: names no upstream; the upstreams are qwen"),
        (
            route("continuation: {upstream: spare}"),
            "conf.yaml:4: routes[0].continuation.upstream: names no upstream; the upstreams are a",
        ),
    ]);
}

#[test]
fn an_upstream_must_be_whole_and_its_name_its_own() {
    let one = "name: a, engine: vllm, family: qwen3, endpoints: [\"http://h:1\"]";
    check(&[
        (
            upstream(&format!("{one}}}\n- {{{one}")),
            "conf.yaml:3: upstreams[1].name: is the name of an earlier upstream too; names must differ",
        ),
        (
            upstream("name: a, engine: vllm, family: qwen3, endpoints: [\"http://h:1\", \"http://h:1/\"]"),
            "conf.yaml:2: upstreams[0].endpoints[1]: is listed twice",
        ),
        (
            upstream("name: a, engine: vllm, family: qwen3, endpoints: [\"h:1\"]"),
            "conf.yaml:2: upstreams[0].endpoints[0]: \"h:1\" is not an endpoint: it begins with neither http:// nor https://; \
             write http://host:port",
        ),
        (
            upstream("name: a, engine: vllm, family: qwen3, endpoints: [\"http://me:pass@h:1\"]"),
            "conf.yaml:2: upstreams[0].endpoints[0]: this is not an endpoint: a user name or password does not belong in it; \
             write http://host:port",
        ),
        (
            upstream("name: a, family: \"a b\", endpoints: []"),
            "conf.yaml:2: upstreams[0].engine: is missing; write engine: vllm\n\
             conf.yaml:2: upstreams[0].family: \"a b\" is not a name; use letters, digits, and any of - _ . / : up to 128 \
             characters\n\
             conf.yaml:2: upstreams[0].endpoints: is an empty list; write at least one",
        ),
    ]);
}

#[test]
fn addresses_must_be_addresses_and_differ() {
    check(&[
        (
            with("server: {listen: [{addr: \"localhost:80\"}]}\n"),
            "conf.yaml:1: server.listen[0].addr: \"localhost:80\" is not an address to listen on; write an IP address and a \
             port: 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080",
        ),
        (
            with("server: {cors: {origins: [\"https://a\", \"https://a\", \"*\"]}}\n"),
            "conf.yaml:1: server.cors.origins[1]: is listed twice\n\
             conf.yaml:1: server.cors.origins[2]: is every origin; write it alone, or leave it out",
        ),
        (
            with("server: {cors: {origins: https://a/}}\n"),
            "conf.yaml:1: server.cors.origins: \"https://a/\" is not an origin; write it as browsers do, \
             https://app.example or http://localhost:3000: lower case, no path, no port that is the scheme's own",
        ),
        (
            with("server:\n  listen: [{addr: \"127.0.0.1:1\"}, {addr: \"127.0.0.1:1\"}]\n"),
            "conf.yaml:2: server.listen[1].addr: is listed twice",
        ),
        (
            with("server:\n  listen: [{addr: \"127.0.0.1:9090\"}]\n"),
            "conf.yaml:2: server.admin: is the address of a listener too; write another port",
        ),
        (
            with("server: {admin: \"127.0.0.1:8080\"}\n"),
            "conf.yaml:1: server.admin: is the address of a listener too; write another port",
        ),
        (
            with("server: {listen: [{}]}\n"),
            "conf.yaml:1: server.listen[0].addr: is missing; write addr: \"127.0.0.1:8080\"",
        ),
    ]);
}

#[test]
fn a_variable_must_be_set() {
    check(&[
        (route("heartbeat: \"${BEAT}\""), "conf.yaml:4: routes[0].heartbeat: ${BEAT} is not set in the environment"),
        (
            route("heartbeat: \"${BEAT\""),
            "conf.yaml:4: routes[0].heartbeat: has a \"${\" that does not begin ${NAME}; write $${ where a plain ${ is meant",
        ),
        (with("server: ${SERVER}\n"), "conf.yaml:1: server: ${SERVER} is not set in the environment"),
    ]);
}

#[test]
fn an_empty_file_says_what_is_missing() {
    let expected = "conf.yaml:1: upstreams: is missing; write upstreams: [{name: engines, engine: vllm, family: qwen3, \
                    endpoints: [\"http://10.0.0.1:8000\"]}]\n\
                    conf.yaml:1: routes: is missing; write routes: [{match: {model: \"*\"}, upstream: engines}]";
    for text in ["", "# nothing\n", "---\n", "null", "{}"] {
        assert_eq!(mistakes(text), expected, "{text:?}");
    }
}

#[test]
fn what_is_not_yaml_says_where_and_nothing_of_the_file() {
    for (text, line, why) in [
        ("server: {secret: [\n", 1, "unclosed bracket '['"),
        ("server:\n\tsecret: 1\n", 2, "tabs disallowed within this context (block indentation)"),
        ("\na: \"secret\n", 2, "unclosed quote"),
        ("a: *secret\n", 1, "alias references unknown anchor"),
        ("a: 1\n---\nsecret: 2\n", 3, "there is more than one document; take out the --- between them"),
        ("~: secret\n", 1, "a key is missing before its colon"),
        ("secret: 1\n  b: 2\n", 2, "mapping values are not allowed in this context"),
        ("a: !!int secret\n", 1, "invalid u64"),
    ] {
        assert_eq!(mistakes(text), format!("conf.yaml:{line}: cannot be read as YAML: {why}"));
    }
}

#[test]
fn a_file_built_to_hurt_is_a_mistake_like_any_other() {
    let bomb: String = (1..30).fold("a0: &a0 [x, x]\n".to_owned(), |text, i| {
        format!("{text}a{i}: &a{i} [{0}, {0}, {0}, {0}]\n", format_args!("*a{}", i - 1))
    });
    for text in ["[".repeat(10_000), "{a: ".repeat(10_000), "- ".repeat(10_000), bomb, "a: \u{0}".to_owned()] {
        assert!(mistakes(&text).contains("cannot be read as YAML"));
    }
}

#[test]
fn all_mistakes_are_reported_at_once_in_the_order_of_the_file() {
    let said = mistakes(
        "server: {listen: [{addr: nowhere}], thread: 2}\n\
         routes:\n\
         - match: {modle: \"*\"}\n  \
           upstream: b\n  \
           timeouts: {idle: 20}\n\
         upstreams:\n\
         - {name: a, engine: vllm, family: qwen3, endpoints: [\"ftp://h\"]}\n\
         journal: {max_streams: none}\n",
    );
    let places: Vec<&str> = said.lines().filter_map(|line| line.split(": ").nth(1)).collect();
    assert_eq!(
        places,
        [
            "server.listen[0].addr",
            "server.thread",
            "routes[0].match.model",
            "routes[0].match.modle",
            "routes[0].upstream",
            "routes[0].timeouts.idle",
            "upstreams[0].endpoints[0]",
            "journal.max_streams",
        ],
        "{said}"
    );
}

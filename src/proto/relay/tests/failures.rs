use super::*;

/// A failure's code, and how to bring it about.
type Way = (&'static str, Box<dyn Fn(&mut Bench)>);

/// Every way in which a leg can fail after its first text.
pub(super) fn ways() -> Vec<Way> {
    vec![
        ("reset", Box::new(Bench::cut)),
        ("clean_end", Box::new(|bench| bench.end(LegEnd::Clean))),
        (
            "torn_event",
            Box::new(|bench| {
                bench.raw("data: {\"id\":\"chatcmpl-1\",\"cho");
                bench.end(LegEnd::Clean);
            }),
        ),
        ("error_event", Box::new(|bench| bench.send(&[ERROR]))),
        (
            "error_event",
            Box::new(|bench| {
                bench.send(&[r#"{"object":"error","message":"The request queue is full.","type":"SERVICE_UNAVAILABLE","code":503}"#]);
            }),
        ),
        ("abort", Box::new(|bench| bench.send(&[&finish("1", "abort")]))),
        ("done_without_finish", Box::new(|bench| bench.send(&["[DONE]"]))),
        ("stall", Box::new(|bench| bench.wait(20 * S))),
        ("too_long", Box::new(|bench| bench.raw(&format!("data: {}", "x".repeat(2_000))))),
        ("malformed", Box::new(|bench| bench.send(&["{", "]", "nonsense", "NaN"]))),
    ]
}

#[test]
fn every_kind_of_failure_is_hidden_and_continued_from_what_was_delivered() {
    for (name, fail) in ways() {
        let policy = Policy { max_event: 1_000, ..Policy::default() };
        let mut bench = bench(REQUEST, policy);
        bench.send(&[&role("1"), &text("1", "one "), &text("1", "two")]);
        fail(&mut bench);
        let causes: Vec<_> = bench
            .notes()
            .iter()
            .filter_map(|note| if let Note::Cut { cause, .. } = note { Some(cause.code()) } else { None })
            .collect();
        assert_eq!(causes, [name]);
        let start = bench.next_leg();
        assert_eq!((start.leg, start.attempt, start.plan), (2, 1, "chat-continue"), "{name}");
        let body: serde_json::Value = serde_json::from_slice(&start.body).unwrap();
        assert_eq!(body["messages"][1]["content"], "one two", "{name}");
        bench.send(&[&role("2"), &text("2", " three"), &finish("2", "stop"), "[DONE]"]);
        let uncut = [role("1"), text("1", "one "), text("1", "two"), text("1", " three"), finish("1", "stop")];
        assert_eq!(bench.log.events, uncut, "{name}");
        assert_eq!(bench.log.seal, Some(Seal::Finished), "{name}");
    }
}

#[test]
fn a_leg_that_brought_nothing_is_asked_again_with_the_clients_own_request() {
    for opening in [vec![], vec![role("1")]] {
        let mut bench = bench(REQUEST, Policy::default());
        for event in &opening {
            bench.send(&[event]);
        }
        bench.cut();
        let start = bench.next_leg();
        assert_eq!((start.leg, start.attempt, start.plan), (1, 2, "again"));
        assert_eq!(String::from_utf8(start.body).unwrap(), REQUEST);
        bench.send(&[&role("2"), &text("2", "a"), &finish("2", "stop"), "[DONE]"]);
        let id = if opening.is_empty() { "2" } else { "1" };
        assert_eq!(bench.log.events, [role(id), text(id, "a"), finish(id, "stop")]);
        assert_eq!(bench.log.seal, Some(Seal::Finished));
    }
}

#[test]
fn an_attempt_that_fails_is_repeated_within_its_own_limit() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.cut();
    for attempt in 1..=3 {
        let starts = bench.starts();
        assert_eq!(starts.len(), 1);
        assert_eq!((starts[0].leg, starts[0].attempt), (2, attempt));
        bench.refuse(503);
    }
    assert!(bench.starts().is_empty());
    assert_eq!(bench.reason(), "refused");
}

#[test]
fn an_attempt_that_opens_and_brings_nothing_is_given_up_after_the_idle_time() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.cut();
    bench.next_leg();
    bench.wait(20 * S);
    assert_eq!(bench.aborts(), 1);
    let start = bench.next_leg();
    assert_eq!((start.leg, start.attempt), (2, 2));
}

#[test]
fn a_leg_that_brought_only_its_role_is_waited_for() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1")]);
    bench.wait(1_000 * S);
    assert!(bench.starts().is_empty());
    bench.cut();
    assert_eq!(bench.next_leg().plan, "again");
    bench.wait(1_000 * S);
    assert!(bench.starts().is_empty(), "the same prompt may take its time again");
}

#[test]
fn an_attempt_that_never_opens_is_given_up_after_the_idle_time() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.cut();
    assert_eq!(bench.starts().len(), 1);
    bench.wait(20 * S);
    assert_eq!(bench.aborts(), 1);
    assert_eq!(bench.next_leg().attempt, 2);
}

#[test]
fn a_continuation_that_is_refused_as_a_bad_request_is_not_sent_again() {
    for (status, again) in [(400, 0), (404, 0), (413, 0), (422, 0), (408, 1), (429, 1), (500, 1), (503, 1)] {
        let mut bench = bench(REQUEST, Policy::default());
        bench.send(&[&role("1"), &text("1", "a")]);
        bench.cut();
        assert_eq!(bench.starts().len(), 1);
        bench.refuse(status);
        assert_eq!(bench.starts().len(), again, "{status}");
    }
}

#[test]
fn as_many_legs_write_as_the_policy_allows() {
    for max_legs in 1..=4 {
        let mut bench = bench(REQUEST, Policy { max_legs, ..Policy::default() });
        bench.send(&[&role("1"), &text("1", "a")]);
        bench.cut();
        for leg in 2..=max_legs {
            assert_eq!(bench.next_leg().leg, leg);
            bench.send(&[&text("2", "b")]);
            bench.cut();
        }
        assert!(bench.starts().is_empty());
        assert_eq!(bench.content(), format!("a{}", "b".repeat(max_legs as usize - 1)));
        assert_eq!(bench.reason(), "reset");
    }
}

#[test]
fn a_continuation_that_stops_at_once_is_believed_when_a_second_one_says_the_same() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "all there is")]);
    bench.cut();
    bench.next_leg();
    bench.send(&[&role("2"), &finish("2", "stop")]);
    assert_eq!(bench.next_leg().attempt, 2);
    bench.send(&[&role("3"), &finish("3", "stop"), "[DONE]"]);
    assert_eq!(bench.log.events, [role("1"), text("1", "all there is"), finish("1", "stop")]);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
}

#[test]
fn a_continuation_that_stops_at_once_by_mistake_is_replaced() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "half")]);
    bench.cut();
    bench.next_leg();
    bench.send(&[&finish("2", "stop")]);
    bench.next_leg();
    bench.send(&[&text("3", " and half"), &finish("3", "stop"), "[DONE]"]);
    assert_eq!(bench.content(), "half and half");
    assert_eq!(bench.log.seal, Some(Seal::Finished));
}

#[test]
fn a_few_malformed_events_are_left_out() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), "not json", &text("1", "a"), "{\"choices\":7}", &finish("1", "stop"), "[DONE]"]);
    assert_eq!(bench.log.events, [role("1"), text("1", "a"), finish("1", "stop")]);
    assert_eq!(bench.notes().iter().filter(|note| matches!(note, Note::Malformed { .. })).count(), 2);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
}

#[test]
fn a_bad_escape_in_a_known_frame_is_a_malformed_event() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a"), &text("1", "\\ud800"), &text("1", "\\q"), &text("1", "b")]);
    assert_eq!(bench.content(), "ab");
    assert_eq!(bench.log.events, [role("1"), text("1", "a"), text("1", "b")]);
}

#[test]
fn a_budget_that_is_spent_to_the_token_finishes_as_length() {
    let request = r#"{"model":"m","messages":[],"stream":true,"max_tokens":2,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}"#;
    let counted = |text: &str, tokens: u32| {
        format!(
            r#"{{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":null}}],"usage":{{"prompt_tokens":5,"completion_tokens":{tokens},"total_tokens":{}}}}}"#,
            5 + tokens
        )
    };
    let mut bench = bench(request, Policy::default());
    bench.send(&[&counted("a", 1), &counted("b", 2)]);
    bench.cut();
    assert!(bench.starts().is_empty());
    assert_eq!(bench.log.seal, Some(Seal::Finished));
    assert!(bench.log.events[2].contains("\"finish_reason\":\"length\""));
    assert!(bench.log.events[3].contains("\"completion_tokens\":2"));
}

#[test]
fn a_budget_that_is_spent_by_estimate_ends_as_incomplete() {
    let request = r#"{"model":"m","messages":[],"stream":true,"max_tokens":2}"#;
    let mut bench = bench(request, Policy::default());
    bench.send(&[&role("1"), &text("1", "twelve chars")]);
    bench.cut();
    assert!(bench.starts().is_empty());
    assert_eq!(bench.reason(), "reset");
}

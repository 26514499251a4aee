use super::*;

#[test]
fn a_whole_answer_goes_through_byte_for_byte_and_is_sealed_as_finished() {
    let mut bench = bench(REQUEST, Policy::default());
    let events = [role("1"), text("1", "a"), text("1", "b\\n河"), text("1", "\\\"c"), finish("1", "stop")];
    for event in &events {
        bench.send(&[event]);
    }
    bench.send(&["[DONE]"]);
    assert_eq!(bench.log.events, events);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
    assert_eq!(bench.content(), "ab\n河\"c");
    assert!(bench.starts().is_empty());
}

#[test]
fn an_events_name_stays_with_every_event() {
    let mut bench = bench(REQUEST, Policy::default());
    for word in ["a", "b", "c"] {
        bench.raw(&format!("event: message\ndata: {}\n\n", text("1", word)));
    }
    bench.send(&[&text("1", "d"), &text("1", "e")]);
    let names: Vec<_> = bench.log.names.iter().map(Option::as_deref).collect();
    assert_eq!(names, [Some("message"), Some("message"), Some("message"), None, None]);
}

#[test]
fn every_final_finish_reason_finishes_and_no_other_does() {
    let check = |reason: &str, finished: bool| {
        let mut bench = bench(REQUEST, Policy::default());
        bench.send(&[&role("1"), &text("1", "a"), &finish("1", reason), "[DONE]"]);
        assert_eq!(bench.log.seal == Some(Seal::Finished), finished, "{reason}");
        assert_eq!(bench.starts().is_empty(), finished, "{reason}");
    };
    for reason in ["stop", "length", "tool_calls", "content_filter", "function_call", "repetition"] {
        check(reason, true);
    }
    check("abort", false);
}

#[test]
fn a_stream_of_several_choices_is_finished_when_all_of_them_are() {
    let request = r#"{"model":"m","messages":[],"stream":true,"n":2}"#;
    let mut bench = bench(request, Policy::default());
    let of = |index: u32, finish: &str| {
        format!(r#"{{"id":"c","model":"m","choices":[{{"index":{index},"delta":{{}},"finish_reason":{finish}}}]}}"#)
    };
    bench.send(&[&of(0, "null"), &of(1, "null"), &of(0, "\"stop\""), "[DONE]"]);
    assert_eq!(bench.reason(), "done_without_finish");
    let mut bench = self::bench(request, Policy::default());
    bench.send(&[&of(0, "\"stop\""), &of(1, "\"length\""), "[DONE]"]);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
}

#[test]
fn a_tail_that_is_cut_is_written_here_and_never_continued() {
    let usage = r#"{"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true,"stream_options":{"include_usage":true}}"#;
    let check = |request: &str, last: &dyn Fn(&mut Bench), usages: usize| {
        let mut bench = bench(request, Policy::default());
        bench.send(&[&role("1"), &text("1", "four"), &finish("1", "stop")]);
        last(&mut bench);
        assert_eq!(bench.log.seal, Some(Seal::Finished));
        assert!(bench.starts().is_empty());
        let written = bench.log.events.iter().filter(|event| event.contains("\"completion_tokens\":1")).count();
        assert_eq!(written, usages);
    };
    for request in [REQUEST, usage] {
        let asked = usize::from(request == usage);
        check(request, &|bench| bench.cut(), asked);
        check(request, &|bench| bench.end(LegEnd::Clean), asked);
        check(request, &|bench| bench.send(&[ERROR]), asked);
    }
}

#[test]
fn a_tail_that_does_not_come_is_written_after_a_while() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a"), &finish("1", "stop")]);
    bench.wait(4 * S);
    assert_eq!(bench.log.seal, None);
    bench.wait(S);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
    assert_eq!(bench.aborts(), 1, "the engine's connection is closed");
}

#[test]
fn comments_are_not_progress() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a")]);
    for _ in 0..19 {
        bench.wait(S);
        bench.raw(": keep-alive\n\n");
    }
    assert!(bench.starts().is_empty());
    bench.wait(S);
    assert_eq!(bench.next_leg().plan, "chat-continue");
}

#[test]
fn the_stall_timer_runs_only_after_the_first_data_event_and_restarts_with_each() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.wait(1_000 * S);
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.wait(19 * S);
    bench.send(&[&text("1", "b")]);
    bench.wait(19 * S);
    assert!(bench.starts().is_empty());
    bench.wait(S);
    assert_eq!(bench.aborts(), 1);
    assert_eq!(bench.next_leg().leg, 2);
}

#[test]
fn a_stall_ends_no_leg_that_could_not_be_continued() {
    let check = |policy: Policy, request: &str, events: &[&str]| {
        let mut bench = bench(request, policy);
        bench.send(events);
        bench.wait(1_000 * S);
        assert_eq!(bench.log.seal, None);
        assert_eq!(bench.aborts(), 0);
        assert!(bench.starts().is_empty());
        bench.send(&[&text("1", "late"), &finish("1", "stop"), "[DONE]"]);
        assert_eq!(bench.log.seal, Some(Seal::Finished), "as if Baton were not there");
    };
    let (role, word, call) = (role("1"), text("1", "a"), tool("1", "{"));
    check(Policy::default(), REQUEST, &[&role, &word, &call]);
    check(Policy { continuation: Continuation::Off, ..Policy::default() }, REQUEST, &[&role, &word]);
    check(Policy { continuation: Continuation::Observe, ..Policy::default() }, REQUEST, &[&role, &word]);
    check(Policy { max_legs: 1, ..Policy::default() }, REQUEST, &[&role, &word]);
    let excluded = r#"{"model":"m","messages":[],"stream":true,"response_format":{"type":"json_object"}}"#;
    check(Policy::default(), excluded, &[&role, &word]);
}

#[test]
fn observing_counts_a_stall_once_and_a_cut() {
    let policy = Policy { continuation: Continuation::Observe, ..Policy::default() };
    let mut bench = bench(REQUEST, policy);
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.wait(100 * S);
    let observed = |bench: &Bench, cause| {
        bench
            .notes()
            .iter()
            .filter(|n| matches!(n, Note::Observed { cause: seen, plan: "chat-continue" } if *seen == cause))
            .count()
    };
    assert_eq!(observed(&bench, "stall"), 1);
    bench.cut();
    assert_eq!(observed(&bench, "reset"), 1);
    assert!(bench.starts().is_empty());
    assert_eq!(bench.reason(), "reset");
}

#[test]
fn the_client_cannot_tell_where_two_legs_meet() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a"), &text("1", "b")]);
    bench.cut();
    bench.next_leg();
    bench.send(&[&role("2"), &text("2", "c"), &text("2", "d"), &finish("2", "stop")]);
    bench.send(&[r#"{"id":"chatcmpl-2","created":2,"model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}"#]);
    bench.send(&["[DONE]"]);
    let uncut = [role("1"), text("1", "a"), text("1", "b"), text("1", "c"), text("1", "d"), finish("1", "stop")];
    assert_eq!(bench.log.events, uncut);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
    let gaps = bench.notes().iter().filter(|note| matches!(note, Note::Continued { leg: 2, .. })).count();
    assert_eq!(gaps, 1);
}

#[test]
fn the_client_leaving_stops_the_engine_and_seals_the_stream() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.relay.handle_client_gone(&mut bench.log);
    bench.act();
    assert_eq!(bench.aborts(), 1);
    assert_eq!(bench.log.seal, Some(Seal::Abandoned));
    bench.send(&[&text("1", "b")]);
    bench.cut();
    bench.wait(100 * S);
    assert_eq!(bench.log.events.len(), 2, "nothing happens after the seal");
}

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
        ("malformed", Box::new(|bench| bench.send(&["nonsense"]))),
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
        let body: serde_json::Value = serde_json::from_slice(start.work.body()).unwrap();
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
        assert_eq!(String::from_utf8(start.work.body().to_vec()).unwrap(), REQUEST);
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
        if attempt == 3 {
            assert!(bench.starts().is_empty(), "the third try waits");
            bench.wait(S);
        }
        let starts = bench.starts();
        assert_eq!(starts.len(), 1);
        assert_eq!((starts[0].leg, starts[0].attempt), (2, attempt));
        bench.refuse(503);
    }
    assert!(bench.starts().is_empty());
    assert_eq!(bench.reason(), "reset", "the first failure, whose consequences the others are");
}

#[test]
fn pauses_between_tries_double_up_to_their_limit() {
    let mut bench = bench(REQUEST, Policy { attempts: 8, ..Policy::default() });
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.cut();
    let mut pauses = Vec::new();
    for _ in 1..8 {
        let before = bench.now;
        assert_eq!(bench.starts().len(), 1);
        bench.refuse(503);
        while let Some(deadline) =
            bench.relay.deadline().filter(|_| bench.actions.iter().all(|a| !matches!(a, Action::Start(_))))
        {
            bench.wait(deadline - bench.now);
        }
        pauses.push((bench.now - before).as_secs());
    }
    assert_eq!(pauses, [0, 1, 2, 4, 8, 8, 8]);
}

#[test]
fn a_client_that_leaves_while_the_next_try_is_awaited_ends_the_stream() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.cut();
    bench.refuse(503);
    bench.refuse(503);
    bench.relay.handle_client_gone(&mut bench.log);
    bench.starts();
    bench.wait(100 * S);
    assert!(bench.starts().is_empty());
    assert_eq!(bench.log.seal, Some(Seal::Abandoned));
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
fn a_bad_escape_in_a_known_frame_fails_the_leg_as_any_malformed_event_does() {
    for escape in ["\\ud800", "\\q"] {
        let mut bench = bench(REQUEST, Policy::default());
        bench.send(&[&role("1"), &text("1", "a"), &text("1", "b"), &text("1", escape)]);
        assert_eq!(bench.log.events, [role("1"), text("1", "a"), text("1", "b")]);
        assert_eq!(bench.next_leg().leg, 2);
    }
}

#[test]
fn what_is_malformed_and_cannot_be_continued_goes_through_and_nothing_is_continued_after_it() {
    let mut bench = bench_for(REQUEST, Policy::default(), "qwen3", "vllm");
    let thinking = chunk_of("1", r#"{"reasoning":"hm"}"#, "null");
    bench.send(&[&role("1"), &thinking, "not json", &text("1", "a")]);
    assert_eq!(bench.log.events, [role("1"), thinking, "not json".to_owned(), text("1", "a")]);
    bench.cut();
    assert!(bench.starts().is_empty(), "a piece of the answer may have been in what was not understood");
    assert_eq!(bench.reason(), "reset");
}

#[test]
fn an_engine_that_is_never_understood_is_let_through_in_the_end() {
    let mut bench = bench(REQUEST, Policy::default());
    for attempt in 1..=3 {
        bench.send(&["one strange event", "another"]);
        bench.wait(S);
        if attempt < 3 {
            assert_eq!(bench.next_leg().plan, "again");
        }
    }
    bench.send(&["[DONE]"]);
    assert_eq!(bench.log.events, ["one strange event", "another"]);
    assert_eq!(bench.log.seal, Some(Seal::Mirrored(crate::proto::record::MirroredEnd::Done)));
}

#[test]
fn an_unknown_finish_reason_goes_through_and_nothing_is_continued_after_it() {
    let strange = finish("1", "eos_token");
    let mut done = bench(REQUEST, Policy::default());
    done.send(&[&role("1"), &text("1", "a"), &strange, "[DONE]"]);
    assert_eq!(done.log.events, [role("1"), text("1", "a"), strange.clone()]);
    assert_eq!(done.log.seal, Some(Seal::Mirrored(crate::proto::record::MirroredEnd::Done)));
    let mut cut = bench(REQUEST, Policy::default());
    cut.send(&[&role("1"), &text("1", "a"), &strange]);
    cut.cut();
    assert!(cut.starts().is_empty());
    assert_eq!(cut.reason(), "reset");
}

#[test]
fn an_engines_error_about_the_request_itself_is_the_answer() {
    let bad = r#"{"error":{"message":"context length","type":"BadRequestError","param":null,"code":400}}"#;
    for opening in [vec![], vec![role("1")]] {
        let mut bench = bench(REQUEST, Policy::default());
        opening.iter().for_each(|event| bench.send(&[event]));
        bench.send(&[bad, "[DONE]"]);
        bench.end(LegEnd::Clean);
        assert_eq!(bench.log.events.last().map(String::as_str), Some(bad));
        assert_eq!(bench.log.seal, Some(Seal::Mirrored(crate::proto::record::MirroredEnd::Done)));
        assert!(bench.starts().is_empty());
    }
}

#[test]
fn white_space_alone_is_nothing_delivered_and_does_not_come_twice() {
    let mut bench = bench_for(REQUEST, Policy::default(), "qwen3", "vllm");
    bench.send(&[&role("1"), &text("1", "\\n\\n")]);
    bench.cut();
    assert_eq!(bench.next_leg().plan, "again");
    bench.send(&[&role("2"), &text("2", "\\n\\nYes"), &finish("2", "stop"), "[DONE]"]);
    assert_eq!(bench.log.events, [role("1"), text("1", "\\n\\n"), text("1", "Yes"), finish("1", "stop")]);
}

#[test]
fn a_flat_error_event_is_never_passed_on_for_clients_would_take_it_for_success() {
    let flat = r#"{"object":"error","message":"context length","type":"BadRequestError","param":null,"code":400}"#;
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), flat]);
    assert_eq!(bench.log.events, [role("1")]);
    assert_eq!(bench.reason(), "error_event");
    let Some(Seal::Incomplete { message, .. }) = &bench.log.seal else { panic!("{:?}", bench.log.seal) };
    assert!(message.contains("context length"), "{message}");
}

#[test]
fn what_the_partial_cannot_hold_is_something_delivered() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &chunk_of("1", r#"{"content":[{"type":"text","text":"parts"}]}"#, "null")]);
    bench.cut();
    assert!(bench.starts().is_empty(), "the answer is not begun again on the same response");
    assert_eq!(bench.reason(), "reset");
}

#[test]
fn a_choice_that_begins_after_the_others_have_ended_keeps_the_answer_open() {
    let of = |index: u32, finish: &str| {
        format!(
            r#"{{"id":"c","model":"m","choices":[{{"index":{index},"delta":{{"content":"x"}},"finish_reason":{finish}}}]}}"#
        )
    };
    let mut bench = bench(REQUEST, Policy { continuation: Continuation::Off, ..Policy::default() });
    bench.send(&[&of(0, "\"stop\""), &of(1, "null")]);
    bench.cut();
    assert_eq!(bench.reason(), "reset");
}

#[test]
fn a_role_that_has_not_been_shown_comes_with_the_next_leg_and_once() {
    let nothing = r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[]}"#;
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[nothing]);
    bench.cut();
    bench.next_leg();
    bench.send(&[&role("2"), &text("2", "a"), &finish("2", "stop"), "[DONE]"]);
    assert_eq!(bench.log.events, [nothing.to_owned(), role("1"), text("1", "a"), finish("1", "stop")]);
}

#[test]
fn a_later_leg_that_stalls_for_good_ends_the_stream() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a")]);
    bench.cut();
    bench.next_leg();
    bench.send(&[&text("2", "b")]);
    bench.wait(20 * S);
    assert_eq!(bench.reason(), "stall");
}

#[test]
fn a_stop_at_once_is_never_believed_where_the_answer_has_not_begun() {
    let thinking = chunk_of("1", r#"{"reasoning":"hm"}"#, "null");
    let mut early = bench_for(REQUEST, Policy::default(), "qwen3", "sglang");
    early.send(&[&role("1"), &thinking]);
    early.cut();
    for _ in 0..3 {
        early.wait(S);
        early.next_leg();
        early.send(&[&finish("2", "stop")]);
    }
    assert_eq!(early.reason(), "reset", "the first failure, whose consequences the others are");
}

#[test]
fn a_rest_of_one_word_that_is_the_beginnings_too_is_delivered() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", LONG)]);
    bench.cut();
    bench.next_leg();
    bench.send(&[&role("2"), &text("2", "It"), &finish("2", "stop"), "[DONE]"]);
    assert_eq!(bench.log.events[2..], [text("1", "It"), finish("1", "stop")]);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
}

#[test]
fn nothing_is_written_behind_a_finish_reason_for_the_sake_of_another_choice() {
    let stray = r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":1,"delta":{"content":"Z"},"finish_reason":null}]}"#;
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a"), &finish("1", "stop"), stray]);
    bench.cut();
    assert!(bench.starts().is_empty());
    assert_eq!(bench.reason(), "reset");
}

#[test]
fn an_engines_error_before_any_text_passes_where_nobody_else_is_asked() {
    let excluded = r#"{"model":"m","messages":[],"stream":true,"response_format":{"type":"json_object"}}"#;
    let off = Policy { continuation: Continuation::Off, ..Policy::default() };
    for (request, policy) in [(excluded, Policy::default()), (REQUEST, off)] {
        let mut bench = bench(request, policy);
        bench.send(&[&role("1"), ERROR, "[DONE]"]);
        bench.end(LegEnd::Clean);
        assert_eq!(bench.log.events, [role("1"), ERROR.to_owned()]);
    }
    for error in [
        r#"{"error":{"message":"too long","type":"invalid_request_error","param":null,"code":"context_length_exceeded"}}"#,
        r#"{"error":{"message":"bad","type":"BadRequestError","code":"400.0"}}"#,
    ] {
        let mut bench = bench(REQUEST, Policy::default());
        bench.send(&[error]);
        assert!(bench.starts().is_empty(), "{error}");
        assert_eq!(bench.log.events, [error]);
    }
}

#[test]
fn events_without_data_and_events_after_the_end_do_no_harm() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), "", &text("1", "a"), "", &finish("1", "stop"), "not json", "[DONE]"]);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
    assert_eq!(bench.content(), "a");
    assert!(bench.starts().is_empty());
}

const LONG: &str = "It was the best of times, it was the worst of times, it was the age of wisdom";

#[test]
fn a_continuation_that_begins_the_answer_anew_is_never_shown_and_another_one_is_asked() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", LONG)]);
    bench.cut();
    bench.next_leg();
    bench.send(&[&role("2"), &text("2", "It was the best"), &text("2", " of times, it was the worst of")]);
    assert_eq!(bench.log.events, [role("1"), text("1", LONG)]);
    assert_eq!(bench.next_leg().attempt, 2);
    // Words of the beginning that then go another way are held for a moment and lose nothing.
    bench.send(&[&role("3"), &text("3", "It was"), &text("3", " the"), &text("3", " age of foolishness")]);
    bench.send(&[&text("3", "."), &finish("3", "stop"), "[DONE]"]);
    let rest = [text("1", "It was"), text("1", " the"), text("1", " age of foolishness"), text("1", ".")];
    assert_eq!(bench.log.events[2..6], rest);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
}

#[test]
fn a_continuation_that_only_begins_anew_ends_as_incomplete() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", LONG)]);
    bench.cut();
    for _ in 0..3 {
        bench.wait(S);
        bench.next_leg();
        bench.send(&[&role("2"), &text("2", LONG)]);
    }
    assert_eq!(bench.log.events, [role("1"), text("1", LONG)]);
    assert_eq!(bench.reason(), "reset", "the first failure, whose consequences the others are");
}

#[test]
fn a_continuation_that_thinks_anew_is_never_shown() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "Yes")]);
    bench.cut();
    bench.next_leg();
    bench.send(&[&role("2"), &chunk_of("2", r#"{"reasoning":"The user"}"#, "null")]);
    assert_eq!(bench.log.events, [role("1"), text("1", "Yes")]);
    assert_eq!(bench.next_leg().attempt, 2);
}

#[test]
fn a_fault_of_our_own_while_continuing_ends_the_stream_as_without_baton_and_is_told() {
    use crate::proto::relay::guard::tests::fail_at;
    for place in ["plan", "splice"] {
        let mut bench = bench(REQUEST, Policy::default());
        bench.send(&[&role("1"), &text("1", "a")]);
        fail_at(Some(place));
        bench.cut();
        if place == "splice" {
            bench.opened();
            bench.send(&[&role("2")]);
        }
        fail_at(None);
        assert_eq!(bench.log.events, [role("1"), text("1", "a")], "what was delivered stays");
        assert!(bench.notes().contains(&&Note::Fault { place }), "{place}");
        assert!(matches!(bench.log.seal, Some(Seal::Incomplete { .. })));
    }
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

use super::*;

fn holding(limit: usize) -> Policy {
    Policy { tool_buffer: Some(limit), ..Policy::default() }
}

#[test]
fn a_tool_call_shown_to_the_client_ends_continuation() {
    let mut bench = bench(REQUEST, Policy::default());
    bench.send(&[&role("1"), &text("1", "a"), &tool("1", "{")]);
    bench.cut();
    assert!(bench.starts().is_empty());
    assert_eq!(bench.reason(), "reset");
}

#[test]
fn held_tool_calls_come_whole_with_the_finish_reason() {
    let mut bench = bench(REQUEST, holding(10_000));
    bench.send(&[&role("1"), &text("1", "a"), &tool("1", "{"), &text("1", "b"), &tool("1", "}")]);
    assert_eq!(bench.log.events, [role("1"), text("1", "a")], "from the first tool call on everything is held");
    bench.send(&[&finish("1", "tool_calls")]);
    let whole = [role("1"), text("1", "a"), tool("1", "{"), text("1", "b"), tool("1", "}"), finish("1", "tool_calls")];
    assert_eq!(bench.log.events, whole);
    bench.send(&["[DONE]"]);
    assert_eq!(bench.log.seal, Some(Seal::Finished));
}

#[test]
fn events_that_say_nothing_release_nothing() {
    let mut bench = bench(REQUEST, holding(10_000));
    bench.send(&[&role("1"), &text("1", "a"), &tool("1", "{"), ""]);
    assert_eq!(bench.log.events, [role("1"), text("1", "a")]);
    bench.cut();
    assert_eq!(bench.next_leg().plan, "chat-continue");
}

#[test]
fn a_failure_while_holding_drops_what_is_held_and_continues_from_before_it() {
    for (name, fail) in super::failures::ways() {
        let mut bench = bench(REQUEST, Policy { max_event: 1_000, ..holding(10_000) });
        bench.send(&[&role("1"), &text("1", "a"), &tool("1", "{\\\"half"), &text("1", "x")]);
        fail(&mut bench);
        let start = bench.next_leg();
        let body: serde_json::Value = serde_json::from_slice(start.work.body()).unwrap();
        assert_eq!(body["messages"][1]["content"], "a", "{name}");
        bench.send(&[&tool("2", "{\\\"whole\\\":1}"), &finish("2", "tool_calls"), "[DONE]"]);
        let whole = [role("1"), text("1", "a"), tool("1", "{\\\"whole\\\":1}"), finish("1", "tool_calls")];
        assert_eq!(bench.log.events, whole, "{name}");
        assert_eq!(bench.log.seal, Some(Seal::Finished), "{name}");
    }
}

#[test]
fn held_tool_calls_with_nothing_before_them_are_released_unchanged() {
    let mut bench = bench(REQUEST, holding(10_000));
    bench.send(&[&role("1"), &tool("1", "{"), &tool("1", "half")]);
    bench.cut();
    assert!(bench.starts().is_empty());
    assert_eq!(bench.log.events, [role("1"), tool("1", "{"), tool("1", "half")]);
    assert_eq!(bench.reason(), "reset");
}

#[test]
fn nothing_is_held_when_continuation_is_off_or_excluded() {
    let off = Policy { continuation: Continuation::Off, ..holding(10_000) };
    let mut bench = bench(REQUEST, off);
    bench.send(&[&role("1"), &tool("1", "{")]);
    assert_eq!(bench.log.events, [role("1"), tool("1", "{")]);
    let excluded = r#"{"model":"m","messages":[],"stream":true,"tool_choice":"required"}"#;
    let mut bench = self::bench(excluded, holding(10_000));
    bench.send(&[&role("1"), &tool("1", "{")]);
    assert_eq!(bench.log.events, [role("1"), tool("1", "{")]);
}

#[test]
fn over_the_limit_what_is_held_is_released_and_nothing_is_held_again() {
    let mut bench = bench(REQUEST, holding(300));
    bench.send(&[&role("1"), &text("1", "a"), &tool("1", "one")]);
    assert_eq!(bench.log.events.len(), 2);
    bench.send(&[&tool("1", "two")]);
    assert_eq!(bench.log.events.len(), 4);
    assert!(bench.notes().contains(&&Note::ToolBufferFull));
    bench.send(&[&tool("1", "three")]);
    assert_eq!(bench.log.events.len(), 5);
    bench.cut();
    assert_eq!(bench.reason(), "reset", "a tool call has been shown");
}

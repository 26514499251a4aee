//! Every metric of Baton, each name written once, here. docs/METRICS.md lists the same names and `tests/tidy.rs`
//! compares them.
//!
//! Limits: labels are route patterns and upstream names (as many as the configuration has) and fixed words of the code.
//! Nothing that a client or an engine chose is ever a label, so the number of series is bounded by the configuration.
//!
//! Counting is atomic and takes no lock once a series exists. On the path of every event count nothing: add up in the
//! stream and call [`Metrics::sent`] once per wake-up.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

/// Seconds. From a token's time to the longest prefill anybody waits for.
const FIRST_EVENT_BUCKETS: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Seconds. A pause under a quarter of a second is not noticed; over the idle timeout it was a stall.
const GAP_BUCKETS: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0];

/// How a stream ended; the label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every choice has its finish reason, by one leg or several.
    Finished,
    /// It could not be completed, and its end said so.
    Incomplete,
    /// It could not be completed, and the engine's own end was passed on (`on_incomplete: mirror`).
    Mirrored,
    /// The client left before the end, and nobody came back in time.
    Abandoned,
    /// The client did not want the rest.
    Cancelled,
}

impl Outcome {
    /// The label's value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Incomplete => "incomplete",
            Self::Mirrored => "mirrored",
            Self::Abandoned => "abandoned",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What became of a continuation; the label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuation {
    /// Its first piece of the answer was passed on.
    Continued,
    /// It failed before that.
    Failed,
    /// It would have been started, had the route not been in `observe`.
    Observed,
}

impl Continuation {
    /// The label's value.
    pub fn label(self) -> &'static str {
        match self {
            Self::Continued => "continued",
            Self::Failed => "failed",
            Self::Observed => "observed",
        }
    }
}

/// All of Baton's metrics, with a registry of their own: several may live in one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    streams: Streams,
    legs: Legs,
    traffic: Traffic,
}

#[derive(Debug)]
struct Streams {
    ended: IntCounterVec,
    in_flight: IntGaugeVec,
    incomplete: IntCounterVec,
    first_event: HistogramVec,
    gap: Histogram,
    tails: IntCounter,
    left: IntCounter,
    returned: IntCounter,
    orphans: IntGauge,
    given_up: IntCounterVec,
    not_kept: IntCounterVec,
    turned_away: IntCounter,
}

#[derive(Debug)]
struct Legs {
    started: IntCounterVec,
    failed: IntCounterVec,
    continuations: IntCounterVec,
    refused: IntCounterVec,
    barred: IntCounterVec,
    connect_failures: IntCounterVec,
    faults: IntCounterVec,
}

#[derive(Debug)]
struct Traffic {
    events: IntCounter,
    bytes: IntCounter,
    malformed: IntCounter,
    heartbeats: IntCounter,
    passed: IntCounterVec,
    journal_bytes: IntGauge,
    journal_streams: IntGauge,
}

impl Metrics {
    /// Fresh metrics, all at zero.
    pub fn new() -> Self {
        let registry = Registry::new();
        let make = Maker(&registry);
        let (streams, legs, traffic) = (Streams::new(&make), Legs::new(&make), Traffic::new(&make));
        Self { registry, streams, legs, traffic }
    }

    /// Everything in Prometheus' text format 0.0.4.
    pub fn gather(&self) -> String {
        // The encoder fails only on families without metrics or with mixed types, which a registry never gathers.
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }

    /// A stream to `upstream` began; it is in flight as long as the guard lives.
    pub fn stream_started(&self, upstream: &str) -> InFlight {
        let gauge = self.streams.in_flight.with_label_values(&[upstream]);
        gauge.inc();
        InFlight(gauge)
    }

    /// A stream ended. `route` is the route's pattern.
    pub fn stream_ended(&self, route: &str, upstream: &str, outcome: Outcome) {
        self.streams.ended.with_label_values(&[route, upstream, outcome.label()]).inc();
    }

    /// A stream could not be completed; `reason` is the code of the last failure. Counted for streams that are passed
    /// through, too.
    pub fn stream_incomplete(&self, upstream: &str, reason: &'static str) {
        self.streams.incomplete.with_label_values(&[upstream, reason]).inc();
    }

    /// The first data event of a stream came, so long after its request.
    pub fn first_event(&self, upstream: &str, after: Duration) {
        self.streams.first_event.with_label_values(&[upstream]).observe(after.as_secs_f64());
    }

    /// The client saw a pause of this length between the last event before a cut and the first after it.
    pub fn recovery_gap(&self, gap: Duration) {
        self.streams.gap.observe(gap.as_secs_f64());
    }

    /// The tail of a whole answer (usage, `[DONE]`) was missing and was written by Baton.
    pub fn tail_repaired(&self) {
        self.streams.tails.inc();
    }

    /// A client left before its stream ended.
    pub fn client_left(&self) {
        self.streams.left.inc();
    }

    /// A client came back to a stream.
    pub fn client_returned(&self) {
        self.streams.returned.inc();
    }

    /// A stream that nobody read was given up to make room; `kind` says what was lost with it.
    pub fn given_up(&self, kind: &'static str) {
        self.streams.given_up.with_label_values(&[kind]).inc();
    }

    /// There was no room to keep a stream for a client that wanted to be able to come back.
    pub fn not_kept(&self, reason: &'static str) {
        self.streams.not_kept.with_label_values(&[reason]).inc();
    }

    /// A request was refused because there is no room for one more stream.
    pub fn turned_away(&self) {
        self.streams.turned_away.inc();
    }

    /// So many streams are written and not read now. To be called before [`Metrics::gather`].
    pub fn orphans(&self, count: usize) {
        self.streams.orphans.set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    /// A leg was started on `upstream`.
    pub fn leg_started(&self, upstream: &str) {
        self.legs.started.with_label_values(&[upstream]).inc();
    }

    /// A leg on `upstream` failed; `reason` is the cause's code.
    pub fn leg_failed(&self, upstream: &str, reason: &'static str) {
        self.legs.failed.with_label_values(&[upstream, reason]).inc();
    }

    /// Something became of a continuation by `plan`.
    pub fn continuation(&self, plan: &'static str, outcome: Continuation) {
        self.legs.continuations.with_label_values(&[plan, outcome.label()]).inc();
    }

    /// A cut stream was not continued; `reason` is the code of why.
    pub fn plan_refused(&self, reason: &'static str) {
        self.legs.refused.with_label_values(&[reason]).inc();
    }

    /// The engines of `upstream` have refused to continue by `plan`, which is remembered.
    pub fn plan_barred(&self, upstream: &str, plan: &'static str) {
        self.legs.barred.with_label_values(&[upstream, plan]).inc();
    }

    /// Code that only continuations need failed by Baton's own fault; `place` says what it was to do.
    pub fn fault(&self, place: &'static str) {
        self.legs.faults.with_label_values(&[place]).inc();
    }

    /// An endpoint of `upstream` could not be connected to.
    pub fn connect_failed(&self, upstream: &str) {
        self.legs.connect_failures.with_label_values(&[upstream]).inc();
    }

    /// So many events with so many bytes were passed on to clients.
    pub fn sent(&self, events: u64, bytes: u64) {
        self.traffic.events.inc_by(events);
        self.traffic.bytes.inc_by(bytes);
    }

    /// An engine sent an event that is not a chat chunk.
    pub fn malformed_event(&self) {
        self.traffic.malformed.inc();
    }

    /// So many heartbeats were sent to a client.
    pub fn heartbeats(&self, count: u64) {
        self.traffic.heartbeats.inc_by(count);
    }

    /// A request that Baton does not claim was answered with this HTTP status; 0: it got no answer.
    pub fn passed(&self, status: u16) {
        let class = match status {
            100..=199 => "1xx",
            200..=299 => "2xx",
            300..=399 => "3xx",
            400..=499 => "4xx",
            500..=599 => "5xx",
            _ => "none",
        };
        self.traffic.passed.with_label_values(&[class]).inc();
    }

    /// What the journal holds now. To be called before [`Metrics::gather`].
    pub fn journal(&self, bytes: usize, streams: usize) {
        self.traffic.journal_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.traffic.journal_streams.set(i64::try_from(streams).unwrap_or(i64::MAX));
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// A stream in flight; it is over when this is dropped.
#[derive(Debug)]
#[must_use = "the stream counts as over as soon as this is dropped"]
pub struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Streams {
    fn new(make: &Maker<'_>) -> Self {
        Self {
            ended: make.counters(
                "baton_streams_total",
                "Streams that ended, by how.",
                &["route", "upstream", "outcome"],
            ),
            in_flight: make.register(IntGaugeVec::new(
                Opts::new("baton_streams_in_flight", "Streams under way, by the upstream of leg 1."),
                &["upstream"],
            )),
            incomplete: make.counters(
                "baton_streams_incomplete_total",
                "Streams that could not be completed, by the last failure; passed-through ones included.",
                &["upstream", "reason"],
            ),
            first_event: make.register(HistogramVec::new(
                HistogramOpts::new("baton_first_event_seconds", "From a stream's request to its first data event.")
                    .buckets(FIRST_EVENT_BUCKETS.to_vec()),
                &["upstream"],
            )),
            gap: make.register(Histogram::with_opts(
                HistogramOpts::new(
                    "baton_recovery_gap_seconds",
                    "The pause a client saw where its stream was cut and continued.",
                )
                .buckets(GAP_BUCKETS.to_vec()),
            )),
            tails: make.counter(
                "baton_tails_repaired_total",
                "Whole answers whose usage chunk or [DONE] was missing and written by Baton.",
            ),
            left: make.counter("baton_clients_left_total", "Clients that left before their stream ended."),
            returned: make.counter("baton_clients_returned_total", "Clients that came back to a stream."),
            orphans: make.register(IntGauge::new("baton_orphans", "Streams under way that nobody reads.")),
            given_up: make.counters(
                "baton_streams_given_up_total",
                "Streams that nobody read and that were given up to make room, by what was lost.",
                &["kind"],
            ),
            not_kept: make.counters(
                "baton_streams_not_kept_total",
                "Streams without room to be kept for a client that wanted to be able to come back, by why.",
                &["reason"],
            ),
            turned_away: make.counter(
                "baton_requests_turned_away_total",
                "Requests refused because there was no room for one more stream.",
            ),
        }
    }
}

impl Legs {
    fn new(make: &Maker<'_>) -> Self {
        Self {
            started: make.counters("baton_legs_started_total", "Legs started.", &["upstream"]),
            failed: make.counters("baton_legs_failed_total", "Legs that failed, by why.", &["upstream", "reason"]),
            continuations: make.counters(
                "baton_continuations_total",
                "Continuations, by plan and what became of them.",
                &["plan", "outcome"],
            ),
            refused: make.counters(
                "baton_plans_refused_total",
                "Cut streams that were not continued, by why.",
                &["reason"],
            ),
            barred: make.counters(
                "baton_plans_barred_total",
                "Ways to continue barred for a while, after engines had refused them to several streams.",
                &["upstream", "plan"],
            ),
            connect_failures: make.counters(
                "baton_connect_failures_total",
                "Connections to endpoints that could not be opened.",
                &["upstream"],
            ),
            faults: make.counters(
                "baton_faults_total",
                "Baton's own faults in continuing a stream, by what was to be done.",
                &["place"],
            ),
        }
    }
}

impl Traffic {
    fn new(make: &Maker<'_>) -> Self {
        Self {
            events: make.counter("baton_events_sent_total", "Data events passed on to clients."),
            bytes: make.counter("baton_bytes_sent_total", "Bytes of event streams passed on to clients."),
            malformed: make.counter("baton_events_malformed_total", "Events of engines that are not chat chunks."),
            heartbeats: make.counter("baton_heartbeats_total", "Heartbeats sent to clients."),
            passed: make.counters(
                "baton_requests_passed_total",
                "Requests that Baton does not claim, by the class of the answer's status.",
                &["class"],
            ),
            journal_bytes: make.register(IntGauge::new("baton_journal_bytes", "Bytes held by the journal.")),
            journal_streams: make.register(IntGauge::new("baton_journal_streams", "Streams held by the journal.")),
        }
    }
}

/// Makes metrics and puts them into a registry.
struct Maker<'r>(&'r Registry);

impl Maker<'_> {
    fn register<M: Collector + Clone + 'static>(&self, metric: prometheus::Result<M>) -> M {
        // Fails only on a bad or doubled name, which stand above and which the tests of this module would find.
        let metric = metric.expect("a valid metric");
        self.0.register(Box::new(metric.clone())).expect("a new name");
        metric
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.register(IntCounterVec::new(Opts::new(name, help), labels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_appears_under_its_name_once_it_was_counted() {
        let metrics = Metrics::new();
        let in_flight = metrics.stream_started("qwen");
        metrics.stream_ended("*", "qwen", Outcome::Finished);
        metrics.stream_incomplete("qwen", "reset");
        metrics.first_event("qwen", Duration::from_millis(30));
        metrics.recovery_gap(Duration::from_millis(200));
        metrics.tail_repaired();
        metrics.client_left();
        metrics.client_returned();
        metrics.leg_started("qwen");
        metrics.leg_failed("qwen", "stall");
        metrics.continuation("chat-continue", Continuation::Continued);
        metrics.plan_refused("tool_call_shown");
        metrics.plan_barred("qwen", "prefix");
        metrics.connect_failed("qwen");
        metrics.sent(7, 512);
        metrics.fault("splice");
        metrics.malformed_event();
        metrics.heartbeats(1);
        metrics.passed(204);
        metrics.journal(4096, 2);
        let text = metrics.gather();
        for line in [
            "baton_streams_in_flight{upstream=\"qwen\"} 1",
            "baton_streams_total{outcome=\"finished\",route=\"*\",upstream=\"qwen\"} 1",
            "baton_streams_incomplete_total{reason=\"reset\",upstream=\"qwen\"} 1",
            "baton_first_event_seconds_bucket{upstream=\"qwen\",le=\"0.05\"} 1",
            "baton_recovery_gap_seconds_bucket{le=\"0.1\"} 0",
            "baton_recovery_gap_seconds_bucket{le=\"0.25\"} 1",
            "baton_tails_repaired_total 1",
            "baton_clients_left_total 1",
            "baton_legs_started_total{upstream=\"qwen\"} 1",
            "baton_legs_failed_total{reason=\"stall\",upstream=\"qwen\"} 1",
            "baton_continuations_total{outcome=\"continued\",plan=\"chat-continue\"} 1",
            "baton_plans_refused_total{reason=\"tool_call_shown\"} 1",
            "baton_plans_barred_total{plan=\"prefix\",upstream=\"qwen\"} 1",
            "baton_connect_failures_total{upstream=\"qwen\"} 1",
            "baton_faults_total{place=\"splice\"} 1",
            "baton_events_sent_total 7",
            "baton_bytes_sent_total 512",
            "baton_events_malformed_total 1",
            "baton_heartbeats_total 1",
            "baton_requests_passed_total{class=\"2xx\"} 1",
            "baton_journal_bytes 4096",
            "baton_journal_streams 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        drop(in_flight);
    }

    #[test]
    fn a_stream_is_in_flight_as_long_as_its_guard_lives() {
        let metrics = Metrics::new();
        let (first, second) = (metrics.stream_started("a"), metrics.stream_started("a"));
        drop(first);
        assert!(metrics.gather().contains("baton_streams_in_flight{upstream=\"a\"} 1\n"));
        drop(second);
        assert!(metrics.gather().contains("baton_streams_in_flight{upstream=\"a\"} 0\n"));
    }

    #[test]
    fn two_sets_of_metrics_do_not_share_anything() {
        let (one, other) = (Metrics::new(), Metrics::new());
        one.heartbeats(1);
        assert!(one.gather().contains("baton_heartbeats_total 1\n"));
        assert!(other.gather().contains("baton_heartbeats_total 0\n"));
    }

    #[test]
    fn a_status_counts_in_its_class_and_a_strange_one_in_none() {
        let metrics = Metrics::new();
        for status in [101, 200, 302, 404, 503, 0, 99, 999] {
            metrics.passed(status);
        }
        let text = metrics.gather();
        for class in ["1xx", "2xx", "3xx", "4xx", "5xx"] {
            assert!(text.contains(&format!("baton_requests_passed_total{{class=\"{class}\"}} 1\n")), "{class}");
        }
        assert!(text.contains("baton_requests_passed_total{class=\"none\"} 3\n"));
    }
}

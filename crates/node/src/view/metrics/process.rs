// SPDX-License-Identifier: Apache-2.0
//! Metrics of the process: its resources, its version, its log and its API.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{EmitSample, MetricFacts, MetricFamily, MetricValue, emit_one};
use crate::state::Counters;
use crate::view::version;

pub(super) const FAMILIES: &[MetricFamily] = families! { Node:
    Info "vipwatch_build_info", "Version of the program" => |facts, emit| {
        let version = version(&facts.context);
        let commit = version.commit.as_deref().unwrap_or_default();
        let labels = [
            ("version", version.version.as_str()),
            ("commit", commit),
            ("service", version.service.as_str()),
        ];
        emit(&labels, MetricValue::Count(1));
    };
    Counter "process_cpu_seconds_total", "User and system CPU time of all threads" =>
        |facts, emit| number(facts.usage.map(|usage| usage.cpu.as_secs_f64()), emit);
    Gauge "process_resident_memory_bytes", "Resident memory" =>
        |facts, emit| count(facts.usage.map(|usage| usage.resident_bytes), emit);
    Gauge "process_virtual_memory_bytes", "Virtual memory" =>
        |facts, emit| count(facts.usage.map(|usage| usage.virtual_bytes), emit);
    Gauge "process_open_fds", "Open file descriptors, without those of the threads that capture adverts" =>
        |facts, emit| count(facts.usage.map(|usage| usage.open_files), emit);
    Gauge "process_max_fds", "Maximum number of open file descriptors" =>
        |facts, emit| count(facts.usage.and_then(|usage| usage.max_files), emit);
    Gauge "process_threads", "Threads" => |facts, emit| count(facts.usage.map(|usage| usage.threads), emit);
    Gauge "process_start_time_seconds", "When the process started, as Unix time" =>
        |facts, emit| number(facts.usage.map(|usage| unix_seconds(usage.started)), emit);
    Gauge "vipwatch_config_last_reload_success",
        "1 if the last reload of the configuration succeeded, or if there was none" =>
        |facts, emit| {
            let reload = facts.context.service.reload_state().last_reload;
            emit_one(emit, u64::from(reload.is_none_or(|reload| reload.error.is_none())));
        };
    Gauge "vipwatch_config_loaded_timestamp_seconds", "When the configuration in force was read, as Unix time" =>
        |facts, emit| {
            let loaded_at = facts.context.service.reload_state().loaded_at;
            number(Some(unix_seconds(loaded_at)), emit);
        };
    Gauge "vipwatch_log_queue_bytes", "Log lines that wait to be written" =>
        |facts, emit| emit_one(emit, facts.log.bytes);
    Counter "vipwatch_log_lost_lines_total", "Log lines that were dropped or could not be written" =>
        |facts, emit| emit_one(emit, facts.log.lost);
    Gauge "vipwatch_api_connections", "Open connections on the unix socket, without event streams" =>
        |facts, emit| counter(facts, emit, |counters| &counters.api_connections);
    Gauge "vipwatch_api_streams", "Open event streams on the unix socket" =>
        |facts, emit| counter(facts, emit, |counters| &counters.api_streams);
    Counter "vipwatch_api_refused_total", "Connections that the unix socket has refused" =>
        |facts, emit| counter(facts, emit, |counters| &counters.api_refused);
    Counter "vipwatch_api_panics_total", "Handlers of the API that panicked" =>
        |facts, emit| counter(facts, emit, |counters| &counters.api_panics);
    Gauge "vipwatch_web_connections", "Open connections on TCP, without event streams" =>
        |facts, emit| counter(facts, emit, |counters| &counters.web_connections);
    Gauge "vipwatch_web_streams", "Open event streams on TCP" =>
        |facts, emit| counter(facts, emit, |counters| &counters.web_streams);
    Counter "vipwatch_web_refused_total", "Connections that were refused on TCP" =>
        |facts, emit| counter(facts, emit, |counters| &counters.web_refused);
    Counter "vipwatch_web_unauthorized_total", "Requests over TCP without a valid token" =>
        |facts, emit| counter(facts, emit, |counters| &counters.web_unauthorized);
    Counter "vipwatch_web_handshakes_failed_total", "TLS handshakes that failed or took too long" =>
        |facts, emit| counter(facts, emit, |counters| &counters.web_handshakes_failed);
    Counter "vipwatch_feed_missed_total", "Events that slow clients of the event stream have missed" =>
        |facts, emit| counter(facts, emit, |counters| &counters.feed_missed);
};

/// The current value of one of the node's counters.
pub(super) fn counter(
    facts: &MetricFacts,
    emit: &mut EmitSample<'_>,
    of: fn(&Counters) -> &AtomicU64,
) {
    emit_one(emit, of(&facts.context.store.counters).load(Ordering::Relaxed));
}

fn count(value: Option<u64>, emit: &mut EmitSample<'_>) {
    if let Some(value) = value {
        emit_one(emit, value);
    }
}

fn number(value: Option<f64>, emit: &mut EmitSample<'_>) {
    if let Some(value) = value {
        emit(&[], MetricValue::Number(value));
    }
}

/// Seconds since the Unix epoch.
pub(super) fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

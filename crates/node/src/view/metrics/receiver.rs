// SPDX-License-Identifier: Apache-2.0
//! Metrics of the receiver, with the same names as `vipwatch receiver status --metrics`.

use std::time::SystemTime;

use vipwatch_api::{ReportItem, ReportList, TargetItem};

use super::process::unix_seconds;
use super::{EmitSample, MetricFacts, MetricFamily, MetricValue, emit_one};

/// The values of the label `state`.
const STATES: [&str; 3] = ["active", "standby", "unknown"];

pub(super) const FAMILIES: &[MetricFamily] = families! { Node:
    Gauge "vipwatch_receiver_routers", "Routers with this settled state" => |facts, emit| {
        for state in STATES {
            let is_in = |item: &&ReportItem| item.state.as_deref() == Some(state);
            let count = items(facts).iter().filter(is_in).count() as u64;
            emit(&[("state", state)], MetricValue::Count(count));
        }
    };
    Gauge "vipwatch_receiver_held", "Routers with a held primary" =>
        |facts, emit| emit_one(emit, items(facts).iter().filter(|item| item.held).count() as u64);
    Gauge "vipwatch_receiver_report_age_seconds", "Time since the last report of a router" => |facts, emit| {
        let now = unix_seconds(SystemTime::now());
        let is_wanted = facts.context.service.metrics.is_per_instance;
        for item in items(facts).iter().filter(|_| is_wanted) {
            let age = (now - item.at.as_duration().as_secs_f64()).max(0.0);
            emit(&[("id", &item.id)], MetricValue::Number(age));
        }
    };
    Counter "vipwatch_receiver_reports_total", "Stored reports, answered with 200" =>
        |facts, emit| one(facts, emit, |reports| reports.accepted);
    Counter "vipwatch_receiver_coalesced_total",
        "Stored reports that were not delivered at once: unchanged, held or cancelled" =>
        |facts, emit| one(facts, emit, |reports| reports.coalesced);
    Counter "vipwatch_receiver_unavailable_total", "Reports that could not be stored, answered with 503" =>
        |facts, emit| one(facts, emit, |reports| reports.unavailable);
    Counter "vipwatch_receiver_rejected_total", "Connections and requests that were rejected" => |facts, emit| {
        for (reason, count) in facts.reports.iter().flat_map(|reports| &reports.rejected) {
            emit(&[("reason", reason)], MetricValue::Count(*count));
        }
    };
    Gauge "vipwatch_receiver_pending", "Reports that wait for the disk" =>
        |facts, emit| one(facts, emit, |reports| reports.pending);
    Gauge "vipwatch_receiver_connections", "Open connections of monitors" =>
        |facts, emit| one(facts, emit, |reports| reports.connections);
    Gauge "vipwatch_receiver_problem", "1 for each current problem of the receiver" => |facts, emit| {
        for problem in facts.reports.iter().flat_map(|reports| &reports.problems) {
            emit(&[("name", &problem.name)], MetricValue::Count(1));
        }
    };
    Gauge "vipwatch_receiver_target_pending", "Routers with a state that the target has not received" =>
        |facts, emit| of_targets(facts, emit, |target| target.pending);
    Counter "vipwatch_receiver_deliveries_total", "Settled states that the target has received" =>
        |facts, emit| of_targets(facts, emit, |target| target.delivered);
    Counter "vipwatch_receiver_delivery_failures_total", "Failed attempts to deliver a settled state" =>
        |facts, emit| of_targets(facts, emit, |target| target.failures);
};

fn items(facts: &MetricFacts) -> &[ReportItem] {
    facts.reports.as_ref().map(|reports| reports.items.as_slice()).unwrap_or_default()
}

fn one(facts: &MetricFacts, emit: &mut EmitSample<'_>, value: fn(&ReportList) -> u64) {
    if let Some(reports) = &facts.reports {
        emit_one(emit, value(reports));
    }
}

fn of_targets(facts: &MetricFacts, emit: &mut EmitSample<'_>, value: fn(&TargetItem) -> u64) {
    for target in facts.reports.iter().flat_map(|reports| &reports.targets) {
        emit(&[("target", &target.name)], MetricValue::Count(value(target)));
    }
}

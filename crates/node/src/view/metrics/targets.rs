// SPDX-License-Identifier: Apache-2.0
//! Metrics of the targets: hooks, webhooks, state files, announcements, agents, and those of the receiver.

use vipwatch_api::TargetItem;

use super::{EmitSample, MetricFacts, MetricFamily, MetricValue};

pub(super) const FAMILIES: &[MetricFamily] = families! { Node:
    Gauge "vipwatch_outlet_pending", "Notifications that wait or are being delivered" =>
        |facts, emit| of_targets(facts, emit, |target| target.pending);
    Gauge "vipwatch_outlet_oldest_pending_timestamp_seconds",
        "The time of the oldest pending notification, as Unix time; absent if none is pending" =>
        |facts, emit| {
            for target in &facts.targets {
                if let Some(at) = target.oldest_pending {
                    let seconds = at.as_duration().as_secs_f64();
                    emit(&labels(target), MetricValue::Number(seconds));
                }
            }
        };
    Gauge "vipwatch_outlet_failing", "Instances whose last delivery to the target failed" =>
        |facts, emit| of_targets(facts, emit, |target| target.failing.len() as u64);
    Counter "vipwatch_outlet_delivered_total", "Notifications that the target has received" =>
        |facts, emit| of_targets(facts, emit, |target| target.delivered);
    Counter "vipwatch_outlet_failures_total", "Failed attempts to deliver a notification" =>
        |facts, emit| of_targets(facts, emit, |target| target.failures);
    Counter "vipwatch_outlet_given_up_total", "Notifications that were given up after failed attempts" =>
        |facts, emit| of_targets(facts, emit, |target| target.given_up);
    Counter "vipwatch_outlet_superseded_total", "Notifications that a newer one replaced before they were delivered" =>
        |facts, emit| of_targets(facts, emit, |target| target.superseded);
    Counter "vipwatch_outlet_filtered_total",
        "Notifications that were not sent because of the settings of the target or a silence" =>
        |facts, emit| of_targets(facts, emit, |target| target.filtered);
    Counter "vipwatch_outlet_dropped_total",
        "Notifications that were dropped because a queue was full or retention deleted them" =>
        |facts, emit| of_targets(facts, emit, |target| target.dropped);
};

fn of_targets(facts: &MetricFacts, emit: &mut EmitSample<'_>, value: fn(&TargetItem) -> u64) {
    for target in &facts.targets {
        emit(&labels(target), MetricValue::Count(value(target)));
    }
}

fn labels(target: &TargetItem) -> [(&'static str, &str); 3] {
    [("target", &target.name), ("kind", target.kind.word()), ("source", &target.source)]
}

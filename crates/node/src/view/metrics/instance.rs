// SPDX-License-Identifier: Apache-2.0
//! Metrics of each instance, and the same as sums.

use std::sync::atomic::Ordering;

use vipwatch_core::RoleKind;

use super::process::{counter, unix_seconds};
use super::{EmitSample, InstanceFacts, MetricFamily, MetricValue};
use crate::state::InstanceEntry;

/// Every instance has transition counters of these roles. A counter of another role appears with the first transition to
/// it: most instances never have that role, and there may be thousands of them.
const USUAL_ROLES: [RoleKind; 3] = [RoleKind::Primary, RoleKind::Backup, RoleKind::Fault];

pub(super) const FAMILIES: &[MetricFamily] = families! { Instance:
    Gauge "vipwatch_role_primary",
        "1 if the instance is primary on this node, else 0; the sum over a group should be 1" =>
        |facts, emit| {
            let is_primary = facts.entry.role.kind() == RoleKind::Primary;
            emit_with(facts.entry, None, MetricValue::Count(is_primary.into()), emit);
        };
    Gauge "vipwatch_role", "1 for the role that the instance has, 0 for the other roles" => |facts, emit| {
        let current = facts.entry.role.kind();
        for role in RoleKind::ALL {
            let value = MetricValue::Count(u64::from(role == current));
            emit_with(facts.entry, Some(("role", role.word())), value, emit);
        }
    };
    Gauge "vipwatch_role_since_timestamp_seconds",
        "When the instance took its role, as Unix time; absent if that is not known" =>
        |facts, emit| {
            let since = unix_seconds(facts.entry.since);
            if since > 0.0 {
                emit_with(facts.entry, None, MetricValue::Number(since), emit);
            }
        };
    Counter "vipwatch_transitions_total", TRANSITIONS_HELP => transitions;
    Counter "vipwatch_flaps_total", FLAPS_HELP => |facts, emit| {
        let flaps = facts.entry.counts.flaps;
        emit_with(facts.entry, None, MetricValue::Count(flaps.into()), emit);
    };
};

/// The families that replace [`FAMILIES`] if instances have no metrics of their own.
pub(super) const AGGREGATES: &[MetricFamily] = families! { Node:
    Counter "vipwatch_transitions_total", TRANSITIONS_HELP => |facts, emit| {
        let counters = &facts.context.store.counters;
        for (role, count) in RoleKind::ALL.into_iter().zip(&counters.transitions_to) {
            let count = MetricValue::Count(count.load(Ordering::Relaxed));
            emit(&[("to", role.word())], count);
        }
    };
    Counter "vipwatch_flaps_total", FLAPS_HELP => |facts, emit| counter(facts, emit, |counters| &counters.flaps);
};

const TRANSITIONS_HELP: &str = "Role changes by their new role, including those at the start";
const FLAPS_HELP: &str = "How often an instance began to change its role again and again";

fn transitions(facts: &InstanceFacts<'_>, emit: &mut EmitSample<'_>) {
    for role in RoleKind::ALL {
        let count = facts.entry.counts.to(role);
        if count > 0 || USUAL_ROLES.contains(&role) {
            let label = Some(("to", role.word()));
            emit_with(facts.entry, label, MetricValue::Count(count.into()), emit);
        }
    }
}

/// A sample with the labels of an instance, and one more. No label has the name `instance` or `job`: Prometheus uses these
/// for the scraped address.
pub(super) fn emit_with(
    entry: &InstanceEntry,
    extra: Option<(&'static str, &str)>,
    value: MetricValue<'_>,
    emit: &mut EmitSample<'_>,
) {
    let config = &entry.instance;
    let netns = config.netns.as_ref().map_or("", |netns| netns.as_str());
    let labels = [
        ("vrrp_group", &*entry.group),
        ("vrrp_instance", config.id.as_str()),
        ("netns", netns),
        extra.unwrap_or_default(),
    ];
    let count = if extra.is_some() { 4 } else { 3 };
    emit(&labels[..count], value);
}

// SPDX-License-Identifier: Apache-2.0
//! Metrics of connection tracking: the result of the last synchronisation of each router, which its drop-in has written.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use vipwatch_core::InstanceId;
use vipwatch_core::conntrack_sync::{
    CONNTRACK_STATUS_FILE, ConntrackSync, MAX_CONNTRACK_STATUS_BYTES,
};
use vipwatch_linux::file::read_head;

use super::instance::emit_with;
use super::{InstanceFacts, MetricFamily, MetricValue};
use crate::discovery::Origin;
use crate::state::InstanceEntry;

pub(super) const FAMILIES: &[MetricFamily] = families! { Instance:
    Gauge "vipwatch_conntrack_sync_success",
        "1 if all commands of the last synchronisation with conntrackd succeeded, else 0" =>
        |facts, emit| {
            if let Some(sync) = last_sync(facts) {
                let is_success = MetricValue::Count(u64::from(sync.failed == 0));
                emit_with(facts.entry, Some(("state", sync.state.as_str())), is_success, emit);
            }
        };
    Gauge "vipwatch_conntrack_sync_duration_seconds", "Duration of the last synchronisation with conntrackd" =>
        |facts, emit| {
            if let Some(sync) = last_sync(facts) {
                let seconds = MetricValue::Number(sync.duration.as_secs_f64());
                emit_with(facts.entry, Some(("state", sync.state.as_str())), seconds, emit);
            }
        };
    Gauge "vipwatch_conntrack_sync_timestamp_seconds",
        "When the last synchronisation with conntrackd ended, as Unix time" =>
        |facts, emit| {
            if let Some(sync) = last_sync(facts) {
                let seconds = std::time::Duration::from_millis(sync.ended_at).as_secs_f64();
                emit_with(facts.entry, None, MetricValue::Number(seconds), emit);
            }
        };
};

/// The number of routers by the result. It also exists if instances have no metrics of their own.
pub(super) const SUMS: &[MetricFamily] = families! { Node:
    Gauge "vipwatch_conntrack_routers", "Routers by the result of their last synchronisation with conntrackd" =>
        |facts, emit| {
            let succeeded = facts.conntrack.values().filter(|sync| sync.failed == 0).count() as u64;
            let failed = facts.conntrack.len() as u64 - succeeded;
            emit(&[("result", "success")], MetricValue::Count(succeeded));
            emit(&[("result", "failure")], MetricValue::Count(failed));
        };
};

fn last_sync<'f>(facts: &InstanceFacts<'f>) -> Option<&'f ConntrackSync> {
    facts.node.conntrack.get(&facts.entry.instance.id)
}

/// Reads the results of all routers. A router without conntrackd has no file, and a file that is not valid counts as none.
pub(super) fn read_all(entries: &[Arc<InstanceEntry>]) -> HashMap<InstanceId, ConntrackSync> {
    let instances = entries.iter().map(|entry| &entry.instance);
    let routers = instances.filter(|instance| instance.origin == Origin::Neutron);
    let results = routers.filter_map(|instance| {
        let directory = instance.file.parent()?;
        Some((instance.id.clone(), read(directory)?))
    });
    results.collect()
}

fn read(directory: &Path) -> Option<ConntrackSync> {
    // One byte more than is valid, so that a longer file is not valid.
    let limit = MAX_CONNTRACK_STATUS_BYTES as u64 + 1;
    ConntrackSync::parse(&read_head(&directory.join(CONNTRACK_STATUS_FILE), limit).ok()?)
}

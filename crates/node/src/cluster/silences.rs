// SPDX-License-Identifier: Apache-2.0
//! The silences of this node as records for etcd, and those of others that are about this node.

use std::time::{Duration, SystemTime};

use vipwatch_api::{Timestamp, timestamp_from_millis};
use vipwatch_cluster::key::{ClusterName, SilenceId};
use vipwatch_cluster::record::{FORMAT, SilenceRecord};
use vipwatch_cluster::session::WantedSilence;
use vipwatch_cluster::view::ClusterView;
use vipwatch_history::SilenceRow;
use vipwatch_linux::clock::unix_millis;

use crate::state::StateStore;

/// The silence as a record; `None` if it has ended, or if its instance no longer exists.
pub(super) fn wanted(
    row: SilenceRow,
    node: &ClusterName,
    store: &StateStore,
) -> Option<WantedSilence> {
    let group = match &row.instance {
        Some(instance) => Some(store.entry(&instance.parse().ok()?)?.group.to_string()),
        None => None,
    };
    let left = u64::try_from(row.until - unix_millis(SystemTime::now())).ok()?;
    let id = SilenceId::of_node(node, row.number);
    let record = SilenceRecord {
        schema: FORMAT,
        id: id.to_string(),
        node: Some(node.to_string()),
        group,
        reason: row.reason,
        created_by: row.created_by,
        at: timestamp_from_millis(row.created_at),
        until: timestamp_from_millis(row.until),
    };
    Some(WantedSilence { id, left: Duration::from_millis(left), record })
}

/// The silences that others have added for this node, or for groups of its instances. Their number is 0: they are removed in
/// the cluster.
pub(super) fn foreign(
    view: &ClusterView,
    node: &ClusterName,
    store: &StateStore,
) -> Vec<SilenceRow> {
    let prefix = format!("{node}.");
    let is_own = |id: &SilenceId| {
        let number = id.as_str().strip_prefix(&prefix);
        number.is_some_and(|number| number.parse::<i64>().is_ok())
    };
    let in_force = view.silences().filter(|(_, stored)| stored.lease != 0);
    let mut rows = Vec::new();
    for (_, stored) in in_force.filter(|(id, _)| !is_own(id)) {
        let record = &stored.record;
        if record.node.as_ref().is_some_and(|silenced| silenced != node.as_str()) {
            continue;
        }
        let row = |instance: Option<String>| SilenceRow {
            number: 0,
            instance,
            created_at: millis(record.at),
            until: millis(record.until),
            reason: record.reason.clone(),
            created_by: record.created_by.clone(),
            ended_by: None,
        };
        match &record.group {
            None => rows.push(row(None)),
            Some(group) => {
                let published = store.view();
                let members = published.entries.iter().filter(|(_, entry)| &*entry.group == group);
                rows.extend(members.map(|(id, _)| row(Some(id.to_string()))));
            }
        }
    }
    rows
}

fn millis(at: Timestamp) -> i64 {
    at.as_millisecond()
}

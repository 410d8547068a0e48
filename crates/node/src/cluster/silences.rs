// SPDX-License-Identifier: Apache-2.0
//! The silences of this node as records for etcd, and those of others that are about this node.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use vipwatch_api::timestamp_from_millis;
use vipwatch_cluster::key::{ClusterName, SilenceId};
use vipwatch_cluster::record::{FORMAT, SilenceRecord};
use vipwatch_cluster::session::WantedSilence;
use vipwatch_cluster::view::{ClusterView, ViewSerial};
use vipwatch_history::SilenceRow;
use vipwatch_linux::clock::unix_millis;

use crate::state::StateStore;

/// The maximum number of rows.
// BOUND: further silences of groups have no effect on the hooks and webhooks of this node.
const MAX_ROWS: usize = 10_000;

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

/// The silences that others have added for this node, or for groups of its instances.
#[derive(Debug, Default)]
pub(crate) struct ForeignSilences {
    /// The state of the view and of the instances that they were read from.
    read: Option<(ViewSerial, usize)>,
    /// When this node saw each of them first, by its own clock.
    seen: BTreeMap<SilenceId, i64>,
}

impl ForeignSilences {
    /// Those in the view, if they may have changed. Each lasts as long as its key exists; without etcd, for the time that its
    /// creator gave it, from when this node saw it first. The clocks of others decide nothing. Their number is 0: they are removed
    /// in the cluster.
    pub(super) fn changed(
        &mut self,
        view: &ClusterView,
        node: &ClusterName,
        store: &StateStore,
    ) -> Option<Vec<SilenceRow>> {
        let published = store.view();
        let read = Some((view.silence_serial(), published.entries.len()));
        if self.read == read {
            return None;
        }
        self.read = read;
        let is_about = |record: &SilenceRecord| {
            record.node.as_ref().is_none_or(|silenced| silenced == node.as_str())
        };
        let now = unix_millis(SystemTime::now());
        let (mut rows, mut seen) = (Vec::new(), BTreeMap::new());
        for (id, stored) in view.silences().filter(|(id, _)| !id.is_of_node(node)) {
            let record = &stored.record;
            if !is_about(record) {
                continue;
            }
            let created_at = self.seen.get(id).copied().unwrap_or(now);
            seen.insert(id.clone(), created_at);
            let length = record.until.as_millisecond() - record.at.as_millisecond();
            let row = |instance: Option<String>| SilenceRow {
                number: 0,
                instance,
                created_at,
                until: created_at.saturating_add(length),
                reason: String::new(),
                created_by: String::new(),
                ended_by: None,
            };
            match &record.group {
                None => rows.push(row(None)),
                Some(group) => {
                    let members =
                        published.entries.iter().filter(|(_, entry)| &*entry.group == group);
                    rows.extend(members.map(|(id, _)| row(Some(id.to_string()))));
                }
            }
            if rows.len() >= MAX_ROWS {
                break;
            }
        }
        self.seen = seen;
        Some(rows)
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The silences of this node as records for etcd, and those of others that are about this node.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use vipwatch_api::timestamp_from_millis;
use vipwatch_cluster::key::{Bucket, ClusterName, SilenceId};
use vipwatch_cluster::record::{FORMAT, SilenceRecord};
use vipwatch_cluster::session::WantedSilence;
use vipwatch_cluster::view::{ClusterView, MAX_SILENCES_OF_NODE, ViewSerial};
use vipwatch_history::SilenceRow;
use vipwatch_linux::clock::unix_millis;

use super::own_part::OwnParts;
use crate::silence::ClusterSilences;
use crate::state::StateStore;

/// The maximum number of rows.
// BOUND: further silences of groups have no effect on the hooks and webhooks of this node.
const MAX_ROWS: usize = 1_000;

/// The silences as records: those of the whole node first, and then those with the latest end.
pub(super) fn wanted(
    mut rows: Vec<SilenceRow>,
    node: &ClusterName,
    store: &StateStore,
) -> Vec<WantedSilence> {
    rows.sort_by_key(|row| (row.instance.is_some(), Reverse(row.until)));
    let silences = rows.into_iter().filter_map(|row| record(row, node, store));
    silences.take(MAX_SILENCES_OF_NODE).collect()
}

/// The silence as a record; `None` if it has ended, or if its instance no longer exists.
fn record(row: SilenceRow, node: &ClusterName, store: &StateStore) -> Option<WantedSilence> {
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
    /// The last change of the view that they were read after.
    read: Option<ViewSerial>,
    /// The buckets of the silenced groups.
    buckets: BTreeSet<Bucket>,
    /// When this node saw each of them first, by its own clock.
    seen: BTreeMap<SilenceId, i64>,
}

impl ForeignSilences {
    /// Those in the view, if it has changed. Each lasts as long as its key exists, and at most for the time that its creator gave
    /// it, from when this node saw it first. The clocks of others decide nothing.
    pub(super) fn changed(
        &mut self,
        view: &ClusterView,
        node: &ClusterName,
    ) -> Option<ClusterSilences> {
        let is_known = |read: ViewSerial| {
            let mut buckets = self.buckets.iter();
            view.silence_serial() <= read && !buckets.any(|it| view.has_changed_after(it, read))
        };
        if self.read.is_some_and(is_known) {
            return None;
        }
        self.read = Some(view.serial());
        self.buckets.clear();
        let now = unix_millis(SystemTime::now());
        let mut parts = OwnParts::new(node, view);
        let (mut silences, mut seen) = (ClusterSilences::new(), BTreeMap::new());
        for (id, stored) in view.silences().filter(|(id, _)| !id.is_of_node(node)) {
            let record = &stored.record;
            if record.node.as_ref().is_some_and(|silenced| silenced != node.as_str()) {
                continue;
            }
            let created_at = self.seen.get(id).copied().unwrap_or(now);
            seen.insert(id.clone(), created_at);
            let length = record.until.as_millisecond() - record.at.as_millisecond();
            let instances = match &record.group {
                None => vec![None],
                Some(group) => {
                    self.buckets.extend(Bucket::of_group(group));
                    let instances = parts.instances(group).into_iter();
                    instances.map(|instance| Some(instance.to_string())).collect()
                }
            };
            for instance in instances {
                let row = SilenceRow {
                    number: 0,
                    instance: instance.clone(),
                    created_at,
                    until: created_at.saturating_add(length),
                    reason: record.reason.clone(),
                    created_by: record.created_by.clone(),
                    ended_by: None,
                };
                silences.insert((id.to_string(), instance), row);
            }
            if silences.len() >= MAX_ROWS {
                break;
            }
        }
        self.seen = seen;
        Some(silences)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use vipwatch_cluster::key::KeySpace;
    use vipwatch_cluster::view::{StoredValue, ViewChange};
    use vipwatch_core::Role;

    use super::*;
    use crate::discovery::example;
    use crate::state::InstanceEntry;

    fn put(view: &mut ClusterView, revision: i64, key: &str, value: &Value) {
        let value = StoredValue {
            key: format!("/vipwatch/v1/default/{key}"),
            value: value.to_string().into_bytes(),
            mod_revision: revision,
            create_revision: revision,
            lease: 7,
        };
        assert!(view.apply(ViewChange::Put(value)));
    }

    fn put_role(view: &mut ClusterView, revision: i64, node: &str, addresses: [&str; 2]) {
        let record = json!({
            "schema": 1, "node": node, "instance": "VI_1", "name": "VI_1", "epoch": "x", "seq": 1, "role": "backup",
            "origin": "keepalived", "interface": "eth0", "addresses": addresses,
        });
        put(view, revision, &format!("role/vrrp:ipv4:51/{node}/VI_1"), &record);
    }

    #[test]
    fn a_silence_of_a_group_covers_the_instance_of_this_node_in_it() {
        let mut view = ClusterView::new(KeySpace::new(&"default".parse().unwrap()));
        let node = "net-1".parse().unwrap();
        // Most members have another first address.
        put_role(&mut view, 1, "net-1", ["192.0.2.90/24", "192.0.2.80/24"]);
        put_role(&mut view, 2, "net-2", ["192.0.2.80/24", "192.0.2.90/24"]);
        put_role(&mut view, 3, "net-3", ["192.0.2.80/24", "192.0.2.90/24"]);
        let silence = json!({
            "schema": 1, "id": "cli.x", "group": "vrrp:ipv4:51:192.0.2.80", "reason": "new switch", "created_by": "root",
            "at": "2026-01-01T00:00:00Z", "until": "2026-01-01T01:00:00Z",
        });
        put(&mut view, 4, "silence/cli.x", &silence);
        let mut known = ForeignSilences::default();
        let silences = known.changed(&view, &node).unwrap();
        let key = ("cli.x".to_owned(), Some("VI_1".to_owned()));
        let row = &silences[&key];
        assert_eq!((silences.len(), row.until - row.created_at), (1, 3_600_000));
        assert_eq!((row.reason.as_str(), row.created_by.as_str()), ("new switch", "root"));
        assert_eq!(known.changed(&view, &node), None);
        put_role(&mut view, 5, "net-1", ["192.0.2.70/24", "192.0.2.71/24"]);
        assert_eq!(known.changed(&view, &node), Some(ClusterSilences::new()), "another group");
    }

    #[test]
    fn of_many_silences_that_of_the_node_and_those_that_last_longest_are_published() {
        let store = StateStore::default();
        store.insert(InstanceEntry::new(Arc::new(example()), Role::Backup, Arc::from([])));
        let now = unix_millis(SystemTime::now());
        let row = |number: i64, instance: Option<&str>| SilenceRow {
            number,
            instance: instance.map(str::to_owned),
            created_at: now,
            until: now + 1_000_000 * number,
            reason: "reboot".to_owned(),
            created_by: "root".to_owned(),
            ended_by: None,
        };
        let rows = (2..=150).map(|number| row(number, Some("A"))).chain([row(1, None)]).collect();
        let node = "net-1".parse().unwrap();
        let wanted = wanted(rows, &node, &store);
        let ids: Vec<&str> = wanted.iter().map(|silence| silence.id.as_str()).collect();
        assert_eq!((ids.len(), ids[0], ids[1], ids[99]), (100, "net-1.1", "net-1.150", "net-1.52"));
    }
}

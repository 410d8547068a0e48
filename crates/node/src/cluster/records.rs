// SPDX-License-Identifier: Apache-2.0
//! The records of this node for etcd, made from the published state.
//!
//! The thread of the session calls this module. It waits neither for the main loop nor for the kernel.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use vipwatch_cluster::key::{Bucket, ClusterName};
use vipwatch_cluster::record::{FORMAT, MAX_ADDRESSES, ReceivedAdverts, RoleRecord};
use vipwatch_cluster::session::{HeartbeatFacts, RecordSource, WantedRole, WantedSilence};
use vipwatch_core::Severity;
use vipwatch_core::{InstanceId, Role};

use super::received_adverts::received_adverts;
use super::recent::RecentTransitions;
use super::silences;
use crate::cluster::MarkInstance;
use crate::discovery::InstanceConfig;
use crate::processes::keepalived_facts;
use crate::silence::Silences;
use crate::state::{InstanceEntry, StateStore};
use crate::view::timestamp;

/// The records of this node.
pub(super) struct PublishedRecords {
    store: Arc<StateStore>,
    node: ClusterName,
    silences: Arc<Silences>,
    pub(super) recent: RecentTransitions,
    /// The adverts of instances that can change without another change of the instance, as last published.
    unsettled: Mutex<BTreeMap<InstanceId, ReceivedAdverts>>,
    /// Whether the node has a target for findings.
    notifies: AtomicBool,
    /// Marks an instance: its record has changed.
    mark: OnceLock<MarkInstance>,
}

impl fmt::Debug for PublishedRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishedRecords").field("node", &self.node).finish_non_exhaustive()
    }
}

impl PublishedRecords {
    pub(super) fn new(
        store: Arc<StateStore>,
        node: ClusterName,
        state_dir: PathBuf,
        silences: Arc<Silences>,
    ) -> Self {
        Self {
            store,
            node,
            silences,
            recent: RecentTransitions::new(state_dir),
            unsettled: Mutex::default(),
            notifies: AtomicBool::new(false),
            mark: OnceLock::new(),
        }
    }

    /// Sets the function that marks an instance. Only the first call has an effect.
    pub(super) fn set_mark(&self, mark: MarkInstance) {
        let _ = self.mark.set(mark);
    }

    pub(super) fn set_notifies(&self, notifies: bool) {
        self.notifies.store(notifies, Ordering::Relaxed);
    }

    fn record(&self, entry: &InstanceEntry) -> RoleRecord {
        let config = &*entry.instance;
        let vrrp = &*config.vrrp;
        let reason = entry.role.reason();
        let adverts = self.adverts(entry);
        let mut addresses = config.deciding_addresses();
        addresses.truncate(MAX_ADDRESSES);
        RoleRecord {
            schema: FORMAT,
            node: self.node.to_string(),
            instance: config.id.to_string(),
            name: vrrp.name.clone(),
            epoch: self.store.epoch().to_string(),
            seq: entry.seq,
            role: entry.role.kind(),
            reason: (!reason.is_empty()).then_some(reason),
            since: (entry.since > SystemTime::UNIX_EPOCH).then(|| timestamp(entry.since)),
            cause: entry.cause.as_deref().map(|cause| cause.kind.as_str().to_owned()),
            origin: config.origin.word().to_owned(),
            netns: config.netns.as_ref().map(ToString::to_string),
            interface: vrrp.interface_name(),
            vrid: vrrp.vrid,
            priority: vrrp.priority,
            advert_ms: vrrp.advert_interval.map(millis),
            vrrp_version: vrrp.protocol.map(|protocol| protocol.version.number()),
            addresses,
            adverts,
            keepalived: self.has_keepalived(config),
            source: vrrp.source,
            sync_group: vrrp.sync_group.as_deref().map(str::to_owned),
            findings: finding_names(entry),
            recent: self.recent.of(&config.id),
        }
    }

    /// Whether the keepalived of an instance runs and works; `None` if that is not known.
    fn has_keepalived(&self, instance: &InstanceConfig) -> Option<bool> {
        let processes = self.store.processes()?;
        keepalived_facts(&processes, instance, None)?.facts.works()
    }

    /// The adverts of an instance. Those of an instance that is not primary are judged again at each heartbeat, until
    /// another node advertises.
    fn adverts(&self, entry: &InstanceEntry) -> ReceivedAdverts {
        let id = &entry.instance.id;
        let found = received_adverts(&self.store, &entry.instance);
        let is_holding = matches!(entry.role, Role::Primary | Role::Partial { .. });
        match found {
            Some(adverts @ (ReceivedAdverts::None | ReceivedAdverts::Unknown)) if !is_holding => {
                self.unsettled().insert(id.clone(), adverts);
            }
            _ => {
                self.unsettled().remove(id);
            }
        }
        found.unwrap_or(ReceivedAdverts::Unknown)
    }

    /// Marks each instance with adverts that have changed since its record was made.
    fn judge_adverts(&self) {
        let published = self.unsettled().clone();
        for (id, published) in published {
            let now =
                self.store.entry(&id).map(|entry| received_adverts(&self.store, &entry.instance));
            match (now, self.mark.get()) {
                (Some(now), Some(mark)) if now != Some(published) => mark(&id),
                (None, _) => {
                    self.unsettled().remove(&id);
                }
                _ => {}
            }
        }
    }

    fn unsettled(&self) -> MutexGuard<'_, BTreeMap<InstanceId, ReceivedAdverts>> {
        self.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecordSource for PublishedRecords {
    fn instances(&self) -> Vec<InstanceId> {
        self.store.view().entries.keys().cloned().collect()
    }

    fn role(&self, instance: &InstanceId) -> Option<WantedRole> {
        let Some(entry) = self.store.entry(instance) else {
            self.recent.forget(instance);
            self.unsettled().remove(instance);
            return None;
        };
        let bucket = bucket(&self.node, &entry);
        Some(WantedRole { bucket, record: self.record(&entry) })
    }

    fn facts(&self) -> HeartbeatFacts {
        self.recent.close_history();
        self.judge_adverts();
        let instances = self.store.view().entries.len() as u64;
        HeartbeatFacts { seq: self.store.events.last_seq(), instances }
    }

    fn notifies(&self) -> bool {
        self.notifies.load(Ordering::Relaxed)
    }

    fn silences(&self) -> Vec<WantedSilence> {
        silences::wanted(self.silences.in_force(SystemTime::now()), &self.node, &self.store)
    }
}

/// The instances of all nodes that can belong to one group with this one.
pub(super) fn bucket(node: &ClusterName, entry: &InstanceEntry) -> Bucket {
    let bucket = Bucket::of_group(&entry.group);
    bucket.unwrap_or_else(|| Bucket::Alone {
        node: node.clone(),
        instance: entry.instance.id.clone(),
    })
}

/// The names of the findings of the last audit that are not merely `info`, in order.
fn finding_names(entry: &InstanceEntry) -> Vec<String> {
    let audited = entry.current_audit().map(|audit| &*audit.findings).unwrap_or_default();
    let serious = audited.iter().filter(|dated| dated.finding.severity != Severity::Info);
    let mut names: Vec<String> =
        serious.map(|dated| dated.finding.kind.name().to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

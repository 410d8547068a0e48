// SPDX-License-Identifier: Apache-2.0
//! The sync groups of the published instances: which instances are members of one `vrrp_sync_group`.
//!
//! The first member stands for its group: a finding about the group is a finding about that member.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use vipwatch_core::audit::{SyncGroupFacts, SyncMember};
use vipwatch_core::role::AddressState;
use vipwatch_core::{InstanceId, NetnsName};
use vipwatch_linux::clock;

use crate::discovery::InstanceConfig;
use crate::state::{InstanceEntry, StateStore};
use crate::witness::advert_interval;

/// A group of one keepalived: two processes may use the same file in different namespaces.
#[derive(Debug, PartialEq, Eq, Hash)]
struct GroupKey {
    file: Arc<Path>,
    netns: Option<NetnsName>,
    name: Arc<str>,
}

impl GroupKey {
    fn of(instance: &InstanceConfig) -> Option<Self> {
        let name = Arc::clone(instance.vrrp.sync_group.as_ref()?);
        Some(Self { file: Arc::clone(&instance.file), netns: instance.netns.clone(), name })
    }
}

/// The members of each group, in the order of their ids.
#[derive(Debug, Default)]
pub(super) struct SyncGroupIndex {
    members: HashMap<GroupKey, Vec<InstanceId>>,
}

/// The facts about a group, and since when its members have their roles.
#[derive(Debug)]
pub(super) struct DatedSyncGroup {
    pub(super) facts: SyncGroupFacts,
    /// The time of the last change of a role; `None` if it is not known.
    pub(super) since: Option<SystemTime>,
}

impl SyncGroupIndex {
    /// The groups of these instances; empty if none of them is in a group.
    pub(super) fn of(store: &StateStore, ids: &BTreeSet<InstanceId>) -> Self {
        let mut index = Self::default();
        let is_member = |entry: &InstanceEntry| entry.instance.vrrp.sync_group.is_some();
        if !ids.iter().filter_map(|id| store.entry(id)).any(|entry| is_member(&entry)) {
            return index;
        }
        for (id, entry) in &store.view().entries {
            if let Some(key) = GroupKey::of(&entry.instance) {
                index.members.entry(key).or_default().push(id.clone());
            }
        }
        index
    }

    fn members(&self, instance: &InstanceConfig) -> &[InstanceId] {
        let members = GroupKey::of(instance).and_then(|key| self.members.get(&key));
        members.map(Vec::as_slice).unwrap_or_default()
    }

    /// Adds, for each of `ids`, the instance that stands for its group.
    pub(super) fn add_representatives(&self, store: &StateStore, ids: &mut BTreeSet<InstanceId>) {
        let entries = ids.iter().filter_map(|id| store.entry(id));
        let first = |entry: Arc<InstanceEntry>| self.members(&entry.instance).first().cloned();
        let added: Vec<InstanceId> = entries.filter_map(first).collect();
        ids.extend(added);
    }

    /// The facts about the group for which this instance stands; `None` if it stands for none.
    pub(super) fn facts(
        &self,
        store: &StateStore,
        instance: &InstanceConfig,
    ) -> Option<DatedSyncGroup> {
        let ids = self.members(instance);
        if ids.first() != Some(&instance.id) {
            return None;
        }
        let entries: Vec<Arc<InstanceEntry>> =
            ids.iter().filter_map(|id| store.entry(id)).collect();
        let interval = entries.iter().map(|entry| advert_interval(&entry.instance)).max();
        let since = entries.iter().map(|entry| entry.since).max();
        let facts = SyncGroupFacts {
            group: instance.vrrp.sync_group.as_deref()?.to_owned(),
            members: entries.iter().map(|entry| member(entry)).collect(),
            interval: interval.unwrap_or(Duration::ZERO),
        };
        Some(DatedSyncGroup { facts, since: since.filter(|since| *since > UNIX_EPOCH) })
    }
}

fn member(entry: &InstanceEntry) -> SyncMember {
    SyncMember {
        id: entry.instance.id.to_string(),
        role: entry.role.clone(),
        holds_address: entry.addresses.contains(&AddressState::Held),
        age: clock::now().since(entry.role_since),
    }
}

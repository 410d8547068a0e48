// SPDX-License-Identifier: Apache-2.0
//! Replaces the followed instances, and looks up their namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use vipwatch_core::{InstanceId, NetnsName, Trigger};
use vipwatch_linux::clock;
use vipwatch_linux::inotify::ChangedNames;
use vipwatch_linux::netns::{self, NetnsId};

use super::netns_entry::{FollowedInstance, NetnsEntry, locate};
use super::pending_read::PendingRead;
use super::{ADVERTS_INTERVAL, InstanceTable, Name, RoleChange};
use crate::discovery::InstanceConfig;
use crate::packed::pack;

impl InstanceTable {
    /// Follows `instances` from now on, and no others. An instance that was followed before with the same
    /// configuration keeps its role, and its namespace is not read again.
    pub fn follow(
        &mut self,
        instances: Vec<Arc<InstanceConfig>>,
        search: &ChangedNames,
    ) -> Vec<RoleChange> {
        let mut unread = self.replace_instances(instances);
        let entries = &self.entries;
        self.pending.retain(|name, _| entries.contains_key(name));
        for name in self.locate_namespaces(search) {
            unread.entry(name).or_insert(Trigger::Namespace);
        }
        let mut changes = Vec::new();
        for (name, trigger) in unread {
            self.read_namespace(&name, &PendingRead::new(trigger), &mut changes);
        }
        self.fault_missing_namespaces(&mut changes);
        changes
    }

    /// Replaces the instances; returns the namespaces with new or differently configured ones.
    fn replace_instances(
        &mut self,
        instances: Vec<Arc<InstanceConfig>>,
    ) -> BTreeMap<Name, Trigger> {
        let mut old_entries = std::mem::take(&mut self.entries);
        let mut known: BTreeMap<InstanceId, FollowedInstance> = BTreeMap::new();
        for entry in old_entries.values_mut() {
            let members = std::mem::take(&mut entry.members).into_iter();
            known.extend(members.map(|member| (member.instance.id.clone(), member)));
        }
        let mut changed: BTreeMap<Name, Trigger> = BTreeMap::new();
        for instance in instances {
            let name = instance.netns.clone();
            let known = known.remove(&instance.id);
            let (member, is_same) = FollowedInstance::replacing(known, instance);
            if !is_same {
                changed.insert(name.clone(), Trigger::Config);
            }
            let old = || old_entries.remove(&name).unwrap_or_else(NetnsEntry::new);
            self.entries.entry(name.clone()).or_insert_with(old).members.push(member);
        }
        pack(&mut self.entries);
        for entry in self.entries.values_mut() {
            entry.interest.set_watched(entry.members.iter());
        }
        let needs_adverts =
            self.adverts.is_some() && self.entries.values().any(NetnsEntry::needs_adverts);
        self.next_adverts =
            needs_adverts.then(|| self.next_adverts.unwrap_or(clock::now() + ADVERTS_INTERVAL));
        changed
    }

    /// Looks up which namespaces exist, of those that did not exist and of `search`, each of which may stand for another
    /// namespace than before; returns the names of the new ones.
    ///
    /// Neither the name nor the inode proves that a namespace is the same as before, because both are reused.
    /// That the kernel refers to it by the same id does.
    pub(super) fn locate_namespaces(&mut self, search: &ChangedNames) -> Vec<Name> {
        let mut new = Vec::new();
        for (name, entry) in &mut self.entries {
            let is_changed = name.as_ref().is_some_and(|name| search.contains(name.as_str()));
            if !is_changed && entry.location.is_ok() && !is_ended(name) {
                continue;
            }
            let known = entry.location.as_ref().ok().copied();
            entry.location = locate(&mut self.watcher, name.as_ref(), known);
            if entry.location.as_ref().is_ok_and(|location| known != Some(*location)) {
                new.push(name.clone());
            }
        }
        self.names.clear();
        for (name, entry) in &self.entries {
            if let Ok(netns) = entry.location {
                let names = self.names.entry(netns).or_insert_with(|| Vec::with_capacity(1));
                names.push(name.clone());
            }
        }
        pack(&mut self.names);
        let names = &self.names;
        self.watcher.keep_only(|netns| names.contains_key(&netns));
        new
    }

    /// The same for these names only: a namespace was deleted, and there may be thousands of others.
    pub(super) fn locate_names(&mut self, names: &[Name]) -> Vec<Name> {
        let mut new = Vec::new();
        let mut is_any_gone = false;
        for name in names {
            let Some(entry) = self.entries.get_mut(name) else { continue };
            let known = entry.location.as_ref().ok().copied();
            entry.location = locate(&mut self.watcher, name.as_ref(), known);
            let found = entry.location.as_ref().ok().copied();
            if found == known {
                continue;
            }
            if let Some(known) = known
                && let Some(others) = self.names.get_mut(&known)
            {
                others.retain(|other| other != name);
                if others.is_empty() {
                    self.names.remove(&known);
                    is_any_gone = true;
                }
            }
            if let Some(found) = found {
                self.names.entry(found).or_default().push(name.clone());
                new.push(name.clone());
            }
        }
        if is_any_gone {
            let names = &self.names;
            self.watcher.keep_only(|netns| names.contains_key(&netns));
        }
        new
    }

    /// Whether a process that leads to a followed namespace has ended. Sockets in the namespace would keep it alive.
    pub(crate) fn has_ended_namespace(&self) -> bool {
        self.entries.iter().any(|(name, entry)| entry.location.is_ok() && is_ended(name))
    }

    /// Whether a namespace has a name and cannot be opened yet. `ip netns add` creates the file first and
    /// mounts the namespace on it afterwards, so another search is worthwhile soon.
    pub fn has_unready_namespace(&self) -> bool {
        let has_name = |name: &NetnsName| NetnsId::of_name(name).is_ok_and(|id| id.is_some());
        let mut missing = self.entries.iter().filter(|(_, entry)| entry.location.is_err());
        missing.any(|(name, _)| name.as_ref().is_some_and(has_name))
    }
}

fn is_ended(name: &Name) -> bool {
    name.as_ref().is_some_and(netns::has_ended)
}

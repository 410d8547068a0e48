// SPDX-License-Identifier: Apache-2.0
//! The nodes of a view, and whether each is alive.

use std::collections::BTreeMap;

use vipwatch_api::ClusterNodeState;

use super::{Revised, ViewSerial};
use crate::key::{ClusterKey, ClusterName};
use crate::record::{MemberRecord, MemberState, NodeRecord};

/// A node of a view.
#[derive(Debug, Clone, Copy)]
pub struct NodeView<'a> {
    /// The name.
    pub name: &'a ClusterName,
    /// Whether it is alive.
    pub state: ClusterNodeState,
    /// The record of the running process; `None` if there is none.
    pub process: Option<&'a Revised<NodeRecord>>,
    /// The record of the membership; `None` if there is none yet.
    pub member: Option<&'a Revised<MemberRecord>>,
}

impl NodeView<'_> {
    /// The epoch of the node's history, that of the running process first.
    pub fn epoch(&self) -> &str {
        let process = self.process.map(|process| process.record.epoch.as_str());
        process.or(self.member.map(|member| member.record.epoch.as_str())).unwrap_or_default()
    }

    /// The revision of etcd that the node had seen when it confirmed its roles; `None` if it is not live.
    pub fn seen(&self) -> Option<i64> {
        let is_live = self.state == ClusterNodeState::Live;
        self.process.filter(|_| is_live).map(|process| process.record.seen)
    }

    /// Whether a role of this epoch is a present role of the node, and not one of a process before.
    pub fn has_present_roles(&self, epoch: &str) -> bool {
        self.state == ClusterNodeState::Live && self.epoch() == epoch
    }
}

#[derive(Debug, Clone)]
struct NodeEntry {
    process: Option<Revised<NodeRecord>>,
    member: Option<Revised<MemberRecord>>,
    /// The change of the view that changed the state or the epoch last.
    state_serial: ViewSerial,
}

impl NodeEntry {
    /// A node without a record of its membership has just registered.
    fn state(&self) -> ClusterNodeState {
        let member = self.member.as_ref().map(|member| &member.record);
        if let Some(process) = &self.process
            && member.is_none_or(|member| member.epoch == process.record.epoch)
        {
            return ClusterNodeState::Live;
        }
        match member.map(|member| member.state) {
            Some(MemberState::Stopped) => ClusterNodeState::Stopped,
            Some(MemberState::Running) | None => ClusterNodeState::Lost,
        }
    }

    fn view<'a>(&'a self, name: &'a ClusterName) -> NodeView<'a> {
        let (process, member) = (self.process.as_ref(), self.member.as_ref());
        NodeView { name, state: self.state(), process, member }
    }

    fn identity(&self) -> (ClusterNodeState, &str) {
        let process = self.process.as_ref().map(|process| process.record.epoch.as_str());
        (self.state(), process.unwrap_or_default())
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct NodeTable {
    nodes: BTreeMap<ClusterName, NodeEntry>,
    /// The nodes without any key, and when they lost the last one: their roles may still be there.
    // BOUND: the oldest of more than [`MAX_REMOVED`] are dropped.
    removed: BTreeMap<ClusterName, ViewSerial>,
}

/// The maximum number of removed nodes.
const MAX_REMOVED: usize = 1024;

impl NodeTable {
    pub(super) fn iter(&self) -> impl Iterator<Item = NodeView<'_>> {
        self.nodes.iter().map(|(name, entry)| entry.view(name))
    }

    pub(super) fn node(&self, name: &ClusterName) -> Option<NodeView<'_>> {
        self.nodes.get_key_value(name).map(|(name, entry)| entry.view(name))
    }

    /// Whether a record of this node can be added.
    pub(super) fn has_room(&self, name: &ClusterName, limit: usize) -> bool {
        self.nodes.len() < limit || self.nodes.contains_key(name)
    }

    pub(super) fn changed_after(&self, serial: ViewSerial) -> impl Iterator<Item = &ClusterName> {
        let changed = self.nodes.iter().filter(move |(_, entry)| entry.state_serial > serial);
        let removed = self.removed.iter().filter(move |(_, at)| **at > serial);
        changed.map(|(name, _)| name).chain(removed.map(|(name, _)| name))
    }

    pub(super) fn put_node(
        &mut self,
        name: &ClusterName,
        record: Revised<NodeRecord>,
        at: ViewSerial,
    ) {
        self.change(name, at, |entry| entry.process = Some(record));
    }

    pub(super) fn put_member(
        &mut self,
        name: &ClusterName,
        record: Revised<MemberRecord>,
        at: ViewSerial,
    ) {
        self.change(name, at, |entry| entry.member = Some(record));
    }

    pub(super) fn remove_node(&mut self, name: &ClusterName, at: ViewSerial) -> bool {
        let has = self.node_revision(name).is_some();
        if has {
            self.change(name, at, |entry| entry.process = None);
        }
        has
    }

    pub(super) fn remove_member(&mut self, name: &ClusterName, at: ViewSerial) -> bool {
        let has = self.member_revision(name).is_some();
        if has {
            self.change(name, at, |entry| entry.member = None);
        }
        has
    }

    pub(super) fn node_revision(&self, name: &ClusterName) -> Option<i64> {
        self.nodes.get(name)?.process.as_ref().map(|stored| stored.mod_revision)
    }

    pub(super) fn member_revision(&self, name: &ClusterName) -> Option<i64> {
        self.nodes.get(name)?.member.as_ref().map(|stored| stored.mod_revision)
    }

    pub(super) fn node_keys(&self) -> impl Iterator<Item = (ClusterKey, i64)> {
        let nodes =
            self.nodes.iter().filter_map(|(name, entry)| Some((name, entry.process.as_ref()?)));
        nodes.map(|(name, stored)| (ClusterKey::Node(name.clone()), stored.mod_revision))
    }

    pub(super) fn member_keys(&self) -> impl Iterator<Item = (ClusterKey, i64)> {
        let nodes =
            self.nodes.iter().filter_map(|(name, entry)| Some((name, entry.member.as_ref()?)));
        nodes.map(|(name, stored)| (ClusterKey::Member(name.clone()), stored.mod_revision))
    }

    fn change(&mut self, name: &ClusterName, at: ViewSerial, change: impl FnOnce(&mut NodeEntry)) {
        let new = || NodeEntry { process: None, member: None, state_serial: at };
        let entry = self.nodes.entry(name.clone()).or_insert_with(new);
        let before = entry.identity().0;
        let epoch_before = entry.identity().1.to_owned();
        change(entry);
        if entry.identity() != (before, epoch_before.as_str()) {
            entry.state_serial = at;
        }
        if entry.process.is_none() && entry.member.is_none() {
            self.nodes.remove(name);
            self.removed.insert(name.clone(), at);
            if self.removed.len() > MAX_REMOVED {
                let oldest = self.removed.iter().min_by_key(|(_, at)| **at);
                let oldest = oldest.map(|(name, _)| name.clone());
                oldest.and_then(|name| self.removed.remove(&name));
            }
        } else {
            self.removed.remove(name);
        }
    }
}

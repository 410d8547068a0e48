// SPDX-License-Identifier: Apache-2.0
//! The silences of a view.

use std::collections::BTreeMap;

use super::Revised;
use crate::key::SilenceId;
use crate::record::{FindingSilence, SilenceRecord};

#[derive(Debug, Clone, Default)]
pub(super) struct SilenceTable {
    silences: BTreeMap<SilenceId, Revised<SilenceRecord>>,
}

impl SilenceTable {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&SilenceId, &Revised<SilenceRecord>)> {
        self.silences.iter()
    }

    pub(super) fn has_room(&self, id: &SilenceId, limit: usize) -> bool {
        self.silences.len() < limit || self.silences.contains_key(id)
    }

    pub(super) fn revision(&self, id: &SilenceId) -> Option<i64> {
        self.silences.get(id).map(|stored| stored.mod_revision)
    }

    pub(super) fn insert(&mut self, id: SilenceId, stored: Revised<SilenceRecord>) {
        self.silences.insert(id, stored);
    }

    pub(super) fn remove(&mut self, id: &SilenceId) -> bool {
        self.silences.remove(id).is_some()
    }

    /// The silences in force by what they are about. One without a lease would never end, and is not used.
    pub(super) fn index(&self) -> SilenceIndex {
        let mut index = SilenceIndex::default();
        for (id, stored) in self.silences.iter().filter(|(_, stored)| stored.lease != 0) {
            let record = &stored.record;
            let silence = FindingSilence {
                id: id.to_string(),
                until: record.until,
                created_by: record.created_by.clone(),
                reason: record.reason.clone(),
            };
            match (&record.node, &record.group) {
                (Some(node), None) => index.nodes.insert(node.clone(), silence),
                (Some(node), Some(group)) => {
                    index.members.insert((node.clone(), group.clone()), silence)
                }
                (None, Some(group)) => index.groups.insert(group.clone(), silence),
                (None, None) => None,
            };
        }
        index
    }
}

/// The silences in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SilenceIndex {
    nodes: BTreeMap<String, FindingSilence>,
    groups: BTreeMap<String, FindingSilence>,
    /// Silences of an instance: a node and a group.
    members: BTreeMap<(String, String), FindingSilence>,
}

impl SilenceIndex {
    /// The silence of a finding about these nodes, and of a group if it has one: a silence of the group, or one of each of
    /// the nodes. A finding that is also about another node is not silenced.
    pub fn covering(&self, group: Option<&str>, nodes: &[String]) -> Option<&FindingSilence> {
        if let Some(silence) = group.and_then(|group| self.groups.get(group)) {
            return Some(silence);
        }
        let of_node = |node: &String| {
            let member =
                group.and_then(|group| self.members.get(&(node.clone(), group.to_owned())));
            self.nodes.get(node).or(member)
        };
        let silences: Option<Vec<&FindingSilence>> = nodes.iter().map(of_node).collect();
        // The first of them that ends uncovers the finding.
        silences?.into_iter().min_by_key(|silence| silence.until)
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The silences of a view.

use std::collections::BTreeMap;
use std::time::Duration;

use vipwatch_core::{Moment, escape_untrusted_within};

use super::gone::GoneReason;
use super::{ClusterView, Revised};
use crate::key::{ClusterKey, SilenceId};
use crate::record::{FindingSilence, SilenceRecord};

/// The maximum number of silences that a node adds. A view keeps no more of one node.
pub const MAX_SILENCES_OF_NODE: usize = 100;

/// The maximum length of a word of a silence in a finding, in bytes: the record of the finding is limited too.
const MAX_WORD_BYTES: usize = 200;

#[derive(Debug, Clone, Default)]
pub(super) struct SilenceTable {
    silences: BTreeMap<SilenceId, SeenSilence>,
}

#[derive(Debug, Clone)]
struct SeenSilence {
    stored: Revised<SilenceRecord>,
    /// The time of the first check with this value; `None` before.
    seen: Option<Moment>,
}

impl SilenceTable {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&SilenceId, &Revised<SilenceRecord>)> {
        self.silences.iter().map(|(id, it)| (id, &it.stored))
    }

    pub(super) fn has_room(&self, id: &SilenceId, limit: usize) -> bool {
        let node = id.node();
        let of_node = || self.silences.keys().filter(|other| other.node() == node).count();
        let has_room =
            self.silences.len() < limit && (node.is_none() || of_node() < MAX_SILENCES_OF_NODE);
        has_room || self.silences.contains_key(id)
    }

    pub(super) fn revision(&self, id: &SilenceId) -> Option<i64> {
        self.silences.get(id).map(|it| it.stored.mod_revision)
    }

    pub(super) fn insert(&mut self, id: SilenceId, stored: Revised<SilenceRecord>) {
        self.silences.insert(id, SeenSilence { stored, seen: None });
    }

    pub(super) fn remove(&mut self, id: &SilenceId) -> bool {
        self.silences.remove(id).is_some()
    }

    /// The silences that have been here for as long as their creators wanted.
    fn overdue(&mut self, now: Moment) -> Vec<SilenceId> {
        let overdue = self.silences.iter_mut().filter_map(|(id, it)| {
            let SilenceRecord { at, until, .. } = &it.stored.record;
            let millis = until.as_millisecond().saturating_sub(at.as_millisecond());
            let length = Duration::from_millis(u64::try_from(millis).unwrap_or(0));
            let is_over = now.since(*it.seen.get_or_insert(now)) >= length;
            is_over.then(|| id.clone())
        });
        overdue.collect()
    }

    /// The silences in force by what they are about. One without a lease would never end, and is not used.
    pub(super) fn index(&self) -> SilenceIndex {
        let mut index = SilenceIndex::default();
        for (id, stored) in self.iter().filter(|(_, stored)| stored.lease != 0) {
            let record = &stored.record;
            let silence = FindingSilence {
                id: id.to_string(),
                until: record.until,
                created_by: escape_untrusted_within(&record.created_by, MAX_WORD_BYTES),
                reason: escape_untrusted_within(&record.reason, MAX_WORD_BYTES),
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

impl ClusterView {
    /// Ends the silences that this view has had for as long as their creators wanted, until their keys have other values. Returns
    /// whether there are any. etcd may still have them: it begins every lease again when it elects a leader, and a forged lease can
    /// last for years.
    pub(crate) fn end_overdue_silences(&mut self, now: Moment) -> bool {
        let overdue = self.silences.overdue(now);
        for id in &overdue {
            let key = ClusterKey::Silence(id.clone());
            let revision = self.silences.revision(id).unwrap_or_default();
            self.remove(&key);
            self.gone.insert(&self.keys.text(&key), revision, GoneReason::Invalid);
        }
        !overdue.is_empty()
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

// SPDX-License-Identifier: Apache-2.0
//! The findings of a view, and the memory that they need.

use std::collections::BTreeMap;

use super::Revised;
use crate::key::FindingId;
use crate::record::FindingRecord;

#[derive(Debug, Clone, Default)]
pub(super) struct FindingTable {
    findings: BTreeMap<FindingId, Revised<FindingRecord>>,
    /// The sum of [`bytes_of`].
    bytes: usize,
}

impl FindingTable {
    pub(super) fn len(&self) -> usize {
        self.findings.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&FindingId, &Revised<FindingRecord>)> {
        self.findings.iter()
    }

    pub(super) fn get(&self, id: &FindingId) -> Option<&Revised<FindingRecord>> {
        self.findings.get(id)
    }

    pub(super) fn revision(&self, id: &FindingId) -> Option<i64> {
        self.get(id).map(|stored| stored.mod_revision)
    }

    /// Whether a record can be added, or replace that of the same id.
    pub(super) fn has_room(
        &self,
        id: &FindingId,
        record: &FindingRecord,
        count: usize,
        bytes: usize,
    ) -> bool {
        let replaced = self.get(id).map(|stored| bytes_of(&stored.record));
        let others = self.len() - usize::from(replaced.is_some());
        others < count && self.bytes - replaced.unwrap_or(0) + bytes_of(record) <= bytes
    }

    pub(super) fn insert(&mut self, id: FindingId, stored: Revised<FindingRecord>) {
        self.remove(&id);
        self.bytes += bytes_of(&stored.record);
        self.findings.insert(id, stored);
    }

    pub(super) fn remove(&mut self, id: &FindingId) -> bool {
        let Some(removed) = self.findings.remove(id) else { return false };
        self.bytes -= bytes_of(&removed.record);
        true
    }
}

/// The memory of a finding: its texts, and a place in a table and in an allocation for each of them. A control character counts
/// as much as in a document of the API, which escapes it.
fn bytes_of(record: &FindingRecord) -> usize {
    let FindingRecord { id, name, group, nodes, text, hint, evidence, reporter, .. } = record;
    let silence = record.silenced.iter();
    let silence = silence.flat_map(|it| [&it.id, &it.created_by, &it.reason]);
    let lists = [nodes, evidence, &record.notified_open, &record.notified_closed, &record.about];
    let texts = [id, name, text, hint, reporter].into_iter().chain(group).chain(&record.part_of);
    let texts = texts.chain(silence);
    let texts = texts.chain(lists.into_iter().flatten());
    let escaped =
        |text: &String| text.bytes().map(|it| if it < b' ' { 6 } else { 1 }).sum::<usize>();
    let texts = texts.map(|text| escaped(text) + size_of::<String>() + 16);
    size_of::<FindingRecord>() + texts.sum::<usize>()
}

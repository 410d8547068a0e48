// SPDX-License-Identifier: Apache-2.0
//! The open findings, those of an earlier reporter included.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::condition::{BasisMember, FindingCondition};
use super::node_condition::NodeCondition;
use super::{ClusterFindingChange, EvaluationTime};
use crate::group::Group;
use crate::key::{ClusterName, RoleKey};
use crate::record::{FORMAT, FindingRecord, FindingSilence};
use crate::view::{ClusterView, SilenceIndex};
use vipwatch_core::FindingKind;
use vipwatch_core::finding::FindingSubject;

/// What a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClusterFindingSubject {
    Group { id: String, kind: FindingKind },
    Node { name: String, kind: FindingKind },
}

impl ClusterFindingSubject {
    pub(super) fn group(kind: FindingKind, id: &str) -> Self {
        Self::Group { id: id.to_owned(), kind }
    }

    pub(super) fn node(kind: FindingKind, name: &str) -> Self {
        Self::Node { name: name.to_owned(), kind }
    }

    /// `None` for a finding of a later release.
    fn of_record(record: &FindingRecord) -> Option<Self> {
        let kind = FindingKind::from_name(&record.name)?;
        match &record.group {
            Some(group) => Some(Self::group(kind, group)),
            None => Some(Self::node(kind, record.nodes.first()?)),
        }
    }

    fn group_id(&self) -> Option<&str> {
        match self {
            Self::Group { id, .. } => Some(id),
            Self::Node { .. } => None,
        }
    }
}

#[derive(Debug)]
struct OpenFinding {
    record: FindingRecord,
    /// Whether an earlier reporter opened it.
    is_continued: bool,
    /// Whether this evaluator has found it itself. Every client of etcd can write the record of an open finding.
    is_evaluated: bool,
    /// What its opening rests on.
    basis: Vec<FindingBasis>,
    /// The nodes that it is about; `None` for all that it names.
    about: Option<Vec<String>>,
    /// The nodes whose absence causes it.
    absent: Vec<String>,
}

impl OpenFinding {
    /// The node that it is a part of: each node whose absence causes it has a finding of its own. A node that has just come
    /// back may end it at once.
    fn part_of(&self, away: &AwayNodes) -> Option<String> {
        let is_away = self.absent.iter().all(|node| away.nodes.contains(node));
        let returned = self.record.part_of.as_ref().filter(|node| away.returned.contains(*node));
        self.absent.first().filter(|_| is_away).or(returned).cloned()
    }

    /// The silence that covers it.
    fn silence(&self, silences: &SilenceIndex) -> Option<FindingSilence> {
        // It stands for groups of other nodes, which are without a primary.
        if self.record.name == FindingKind::ClusterGroupsWithoutPrimary.name() {
            return None;
        }
        let about = self.about.as_ref().unwrap_or(&self.record.nodes);
        silences.covering(self.record.group.as_deref(), about).cloned()
    }
}

/// A key of etcd that the opening of a finding rests on, as it was evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FindingBasis {
    /// The role was changed last at this revision.
    Role { key: RoleKey, mod_revision: i64 },
    /// The node has been alive since this revision; 0 if it is not.
    Node { name: ClusterName, create_revision: i64 },
    /// The membership was changed last at this revision.
    Member { name: ClusterName, mod_revision: i64 },
}

/// The keys that a condition rests on.
fn basis(condition: &FindingCondition, view: &ClusterView) -> Vec<FindingBasis> {
    match condition.kind {
        FindingKind::ClusterNodeLost => lost_nodes(&condition.nodes, view),
        _ => members(&condition.basis, view),
    }
}

/// The keys of the members of a condition.
fn members(members: &[BasisMember], view: &ClusterView) -> Vec<FindingBasis> {
    let roles = members.iter().map(|member| FindingBasis::Role {
        key: member.role.clone(),
        mod_revision: member.mod_revision,
    });
    let names: BTreeSet<&ClusterName> = members.iter().map(|member| &member.role.node).collect();
    let nodes = names.into_iter().filter_map(|name| {
        let create_revision = view.node(name)?.process?.create_revision;
        Some(FindingBasis::Node { name: name.clone(), create_revision })
    });
    roles.chain(nodes).collect()
}

/// The keys of lost nodes: none of them has been written since, as a node that stops or comes back does.
fn lost_nodes(names: &[String], view: &ClusterView) -> Vec<FindingBasis> {
    let names = names.iter().filter_map(|name| name.parse().ok());
    let keys = names.flat_map(|name: ClusterName| {
        let node = view.node(&name);
        let create_revision = node.and_then(|it| it.process).map_or(0, |it| it.create_revision);
        let mod_revision = node.and_then(|it| it.member).map_or(0, |it| it.mod_revision);
        let member = FindingBasis::Member { name: name.clone(), mod_revision };
        [FindingBasis::Node { name, create_revision }, member]
    });
    keys.collect()
}

/// A condition with an open finding, or that is to have one.
#[derive(Debug)]
pub(super) struct SettledCondition {
    pub(super) condition: FindingCondition,
    /// Whether it has held long enough for this evaluator. Else there is the finding of an earlier reporter.
    pub(super) is_evaluated: bool,
}

/// The nodes that stand for the findings of their groups.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AwayNodes {
    /// Those that are away, and have a finding of their own or are silenced.
    pub(super) nodes: BTreeSet<String>,
    /// Those that came back a moment ago.
    pub(super) returned: BTreeSet<String>,
}

/// The groups whose findings are a part of that of a node.
#[derive(Debug, Default)]
pub(super) struct FindingParts {
    pub(super) groups: Vec<String>,
    /// Whether this evaluator has found one of them itself.
    pub(super) is_evaluated: bool,
}

#[derive(Debug)]
pub(super) struct OpenClusterFindings {
    reporter: String,
    findings: BTreeMap<ClusterFindingSubject, OpenFinding>,
    /// Further records about the subject of another one.
    duplicates: Vec<FindingRecord>,
    /// The silences in force.
    silences: SilenceIndex,
    away: AwayNodes,
    /// The maximum number of findings.
    limit: usize,
    /// The number of findings that this evaluator has opened, so that each has an id of its own.
    opened: u64,
}

impl OpenClusterFindings {
    pub(super) fn new(
        reporter: &ClusterName,
        limit: usize,
        open: impl IntoIterator<Item = FindingRecord>,
    ) -> Self {
        let mut findings = BTreeMap::new();
        let mut duplicates = Vec::new();
        for record in open {
            let Some(subject) = ClusterFindingSubject::of_record(&record) else { continue };
            match findings.entry(subject) {
                Entry::Vacant(entry) => {
                    let (is_continued, is_evaluated) = (true, false);
                    let (basis, about, absent) = (Vec::new(), None, Vec::new());
                    entry.insert(OpenFinding {
                        record,
                        is_continued,
                        is_evaluated,
                        basis,
                        about,
                        absent,
                    });
                }
                Entry::Occupied(_) => duplicates.push(record),
            }
        }
        let (reporter, silences) = (reporter.to_string(), SilenceIndex::default());
        let away = AwayNodes::default();
        Self { reporter, findings, duplicates, silences, away, limit, opened: 0 }
    }

    /// Closes all but one of the records about each subject.
    pub(super) fn close_duplicates(
        &mut self,
        time: EvaluationTime,
    ) -> impl Iterator<Item = ClusterFindingChange> {
        let (reporter, closed) = (self.reporter.clone(), Some(time.at));
        std::mem::take(&mut self.duplicates).into_iter().map(move |record| {
            ClusterFindingChange::Closed(FindingRecord { closed, ..record.restated(&reporter) })
        })
    }

    /// Silences were added or have ended, or nodes went or came back.
    pub(super) fn set_causes(
        &mut self,
        silences: Option<SilenceIndex>,
        away: AwayNodes,
        view: &ClusterView,
        changes: &mut Vec<ClusterFindingChange>,
    ) {
        if silences.is_none() && away == self.away {
            return;
        }
        self.away = away;
        self.silences = silences.unwrap_or_else(|| std::mem::take(&mut self.silences));
        for finding in self.findings.values_mut().filter(|finding| finding.is_evaluated) {
            let (silence, part_of) = (finding.silence(&self.silences), finding.part_of(&self.away));
            if finding.record.silenced != silence || finding.record.part_of != part_of {
                finding.record = with_notified(&finding.record, view);
                finding.record.silenced = silence;
                finding.record.part_of = part_of;
                changes.push(ClusterFindingChange::Changed(finding.record.clone()));
            }
        }
    }

    /// The silences in force at the last evaluation.
    pub(super) fn silences(&self) -> &SilenceIndex {
        &self.silences
    }

    /// The groups with a finding of this kind, by the node that the finding is a part of.
    pub(super) fn parts(&self, wanted: FindingKind) -> BTreeMap<ClusterName, FindingParts> {
        let mut nodes: BTreeMap<ClusterName, FindingParts> = BTreeMap::new();
        for (subject, finding) in &self.findings {
            let ClusterFindingSubject::Group { id, kind } = subject else { continue };
            let node = finding.record.part_of.as_ref().and_then(|node| node.parse().ok());
            if let Some(node) = node.filter(|_| *kind == wanted) {
                let parts = nodes.entry(node).or_default();
                parts.groups.push(id.clone());
                parts.is_evaluated |= finding.is_evaluated;
            }
        }
        nodes
    }

    /// Whether no more findings are opened.
    pub(super) fn is_full(&self) -> bool {
        self.findings.len() >= self.limit
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &FindingRecord> {
        self.findings.values().map(|finding| &finding.record)
    }

    pub(super) fn contains(&self, subject: &ClusterFindingSubject) -> bool {
        self.findings.contains_key(subject)
    }

    /// The content of an open finding; `None` if it is not open.
    pub(super) fn condition(&self, subject: &ClusterFindingSubject) -> Option<FindingCondition> {
        let OpenFinding { record, about, absent, .. } = self.findings.get(subject)?;
        Some(FindingCondition {
            kind: FindingKind::from_name(&record.name)?,
            confidence: record.confidence,
            nodes: record.nodes.clone(),
            text: record.text.clone(),
            evidence: record.evidence.clone(),
            basis: Vec::new(),
            about: about.clone(),
            absent: absent.clone(),
        })
    }

    /// The nodes that an open finding about missing backups is about, and that are no members of the group any more.
    pub(super) fn nodes_that_left(&self, group: &Group) -> Vec<ClusterName> {
        let subject = ClusterFindingSubject::group(FindingKind::ClusterTooFewBackups, &group.id);
        let about =
            self.findings.get(&subject).into_iter().flat_map(|finding| &finding.record.about);
        let names = about.filter_map(|name| name.parse::<ClusterName>().ok());
        names.filter(|name| !group.members.iter().any(|it| it.node == *name)).collect()
    }

    /// Whether this evaluator has found an open finding itself.
    pub(super) fn is_evaluated(&self, subject: &ClusterFindingSubject) -> bool {
        self.findings.get(subject).is_some_and(|finding| finding.is_evaluated)
    }

    /// What the opening of a finding rests on.
    pub(super) fn basis(&self, record: &FindingRecord) -> &[FindingBasis] {
        let subject = ClusterFindingSubject::of_record(record);
        let finding = subject.and_then(|subject| self.findings.get(&subject));
        let finding = finding.filter(|finding| finding.record.id == record.id);
        finding.map_or(&[], |finding| finding.basis.as_slice())
    }

    pub(super) fn is_continued(&self, subject: &ClusterFindingSubject) -> bool {
        self.findings.get(subject).is_some_and(|finding| finding.is_continued)
    }

    /// The groups with an open finding.
    pub(super) fn groups(&self) -> impl Iterator<Item = &str> {
        let groups: BTreeSet<&str> =
            self.findings.keys().filter_map(ClusterFindingSubject::group_id).collect();
        groups.into_iter()
    }

    /// Opens the settled conditions of a group, and closes its other findings.
    pub(super) fn update_group(
        &mut self,
        group: &str,
        settled: Vec<SettledCondition>,
        view: &ClusterView,
        time: EvaluationTime,
        changes: &mut Vec<ClusterFindingChange>,
    ) {
        let subjects =
            settled.iter().map(|it| ClusterFindingSubject::group(it.condition.kind, group));
        let wanted: BTreeSet<ClusterFindingSubject> = subjects.collect();
        let kinds = FindingKind::ALL.iter().filter(|kind| kind.subject() == FindingSubject::Group);
        let all = kinds.map(|kind| ClusterFindingSubject::group(*kind, group));
        for subject in all.filter(|subject| !wanted.contains(subject)) {
            changes.extend(self.close(&subject, view, time));
        }
        for condition in settled {
            let subject = ClusterFindingSubject::group(condition.condition.kind, group);
            changes.extend(self.set(subject, condition, view, time));
        }
    }

    /// Opens the settled conditions of nodes, and closes the other findings of this kind.
    pub(super) fn update_nodes(
        &mut self,
        kind: FindingKind,
        conditions: Vec<NodeCondition>,
        view: &ClusterView,
        time: EvaluationTime,
        changes: &mut Vec<ClusterFindingChange>,
    ) {
        let subject = |condition: &NodeCondition| {
            ClusterFindingSubject::node(condition.condition.kind, condition.node.as_str())
        };
        let wanted: BTreeSet<ClusterFindingSubject> = conditions.iter().map(subject).collect();
        let is_over = |subject: &ClusterFindingSubject| {
            let is_of_kind = matches!(subject, ClusterFindingSubject::Node { kind: known, .. } if *known == kind);
            is_of_kind && !wanted.contains(subject)
        };
        let over: Vec<ClusterFindingSubject> =
            self.findings.keys().filter(|subject| is_over(subject)).cloned().collect();
        for subject in over {
            changes.extend(self.close(&subject, view, time));
        }
        for condition in conditions {
            let subject = subject(&condition);
            let NodeCondition { is_settled, condition, .. } = condition;
            if is_settled || self.contains(&subject) {
                let condition = SettledCondition { condition, is_evaluated: is_settled };
                changes.extend(self.set(subject, condition, view, time));
            }
        }
    }

    /// Opens a finding, or changes it if it is open with another content. The record of an earlier reporter stays as it is
    /// until this evaluator has found the condition itself.
    fn set(
        &mut self,
        subject: ClusterFindingSubject,
        condition: SettledCondition,
        view: &ClusterView,
        time: EvaluationTime,
    ) -> Option<ClusterFindingChange> {
        let SettledCondition { condition, is_evaluated } = condition;
        let condition = condition.shortened();
        let is_full = self.is_full();
        let Some(finding) = self.findings.get_mut(&subject) else {
            if is_full {
                return None;
            }
            let (about, absent) = (condition.about.clone(), condition.absent.clone());
            let basis = basis(&condition, view);
            let record = self.new_record(&subject, condition, view, time);
            let (is_continued, is_evaluated) = (false, true);
            let mut finding =
                OpenFinding { record, is_continued, is_evaluated, basis, about, absent };
            finding.record.about = finding.about.clone().unwrap_or_default();
            finding.record.silenced = finding.silence(&self.silences);
            finding.record.part_of = finding.part_of(&self.away);
            let record = finding.record.clone();
            self.findings.insert(subject, finding);
            return Some(ClusterFindingChange::Opened(record));
        };
        if !is_evaluated && condition.is_of(&finding.record) {
            // It continues as it is.
            return None;
        }
        let was_evaluated = finding.is_evaluated;
        finding.is_evaluated |= is_evaluated;
        if !finding.is_evaluated {
            return None;
        }
        finding.basis = basis(&condition, view);
        finding.about.clone_from(&condition.about);
        finding.absent.clone_from(&condition.absent);
        let (silence, part_of) = (finding.silence(&self.silences), finding.part_of(&self.away));
        let record = &mut finding.record;
        let new_about = condition.about.clone().unwrap_or_default();
        let is_same = condition.is_of(record)
            && record.silenced == silence
            && record.part_of == part_of
            && record.about == new_about;
        if is_same && was_evaluated {
            return None;
        }
        *record = with_notified(record, view);
        record.confidence = condition.confidence;
        record.nodes = condition.nodes;
        record.text = condition.text;
        record.evidence = condition.evidence;
        record.silenced = silence;
        record.part_of = part_of;
        record.about = new_about;
        record.reporter.clone_from(&self.reporter);
        if !is_same {
            record.changed = time.at;
        }
        let record = record.clone();
        Some(if was_evaluated {
            ClusterFindingChange::Changed(record)
        } else {
            ClusterFindingChange::Found { record, is_changed: !is_same }
        })
    }

    fn close(
        &mut self,
        subject: &ClusterFindingSubject,
        view: &ClusterView,
        time: EvaluationTime,
    ) -> Option<ClusterFindingChange> {
        let finding = self.findings.remove(subject)?;
        let reporter = self.reporter.clone();
        let mut record = with_notified(&finding.record, view);
        if !finding.is_evaluated {
            record = record.restated(&reporter);
        }
        Some(ClusterFindingChange::Closed(FindingRecord {
            closed: Some(time.at),
            reporter,
            ..record
        }))
    }

    fn new_record(
        &mut self,
        subject: &ClusterFindingSubject,
        condition: FindingCondition,
        view: &ClusterView,
        time: EvaluationTime,
    ) -> FindingRecord {
        self.opened += 1;
        let FindingCondition { kind, confidence, nodes, text, evidence, .. } = condition;
        FindingRecord {
            schema: FORMAT,
            id: format!("{}-{}-{}", view.revision(), self.opened, short_name(kind)),
            name: kind.name().to_owned(),
            severity: kind.severity(),
            confidence,
            group: subject.group_id().map(str::to_owned),
            nodes,
            text,
            hint: kind.hint().to_owned(),
            evidence,
            opened: time.at,
            changed: time.at,
            closed: None,
            reporter: self.reporter.clone(),
            notified_open: Vec::new(),
            notified_closed: Vec::new(),
            silenced: None,
            part_of: None,
            about: Vec::new(),
        }
    }
}

/// The name in an id: without the part that all names have.
pub(super) fn short_name(kind: FindingKind) -> &'static str {
    kind.name().trim_start_matches("cluster-")
}

/// The record with the targets that the view knows.
fn with_notified(record: &FindingRecord, view: &ClusterView) -> FindingRecord {
    let mut record = record.clone();
    let stored = record.id.parse().ok().and_then(|id| view.finding(&id));
    if let Some(stored) = stored {
        record.notified_open.clone_from(&stored.record.notified_open);
        record.notified_closed.clone_from(&stored.record.notified_closed);
    }
    record
}

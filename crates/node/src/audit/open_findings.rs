// SPDX-License-Identifier: Apache-2.0
//! The findings that clients know as open, and their changes: each finding is one event when it appears, one for
//! each change of its severity or its fault, and one when it has gone.
//!
//! ```text
//!   events of the last run ──▶ open findings ◀── compared with the current ones ──▶ changes ──▶ main loop
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Instant, UNIX_EPOCH};

use vipwatch_api::{FindingItem, FindingState, Severity, Timestamp};
use vipwatch_core::finding::FindingEvidence;
use vipwatch_core::{FindingKind, InstanceId};
use vipwatch_linux::clock;
use vipwatch_linux::process::release_spare_heap;

use super::finding_log::FindingLog;
use super::undecided::{RESTORED_HOLD, is_undecided};
use super::{DatedFinding, FindingChange, FindingChanges, GRACE, RememberedTimes};
use crate::event::audit_finding;
use crate::packed::pack;
use crate::state::{InstanceEntry, PublishedState};
use crate::view::{CurrentFindings, FindingSources};

/// With more findings than this, they are packed and spare heap is released after a comparison.
const MANY_FINDINGS: usize = 500;

/// What tells one finding from another: several problems of one kind with one instance are one finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct FindingKey {
    /// The instance; `None` for a finding about the node.
    id: Option<InstanceId>,
    kind: FindingKind,
}

impl FindingKey {
    /// `None` if the id is not one of an instance, and for a finding of a later release.
    fn of(finding: &FindingItem) -> Option<Self> {
        let id = finding.id.as_ref().map(|id| id.parse()).transpose().ok()?;
        Some(Self { id, kind: finding.kind()? })
    }
}

/// A finding that clients know as open. There may be thousands, so it is smaller than the document.
#[derive(Debug)]
struct OpenFinding {
    severity: Severity,
    text: Box<str>,
    hint: Cow<'static, str>,
    since: Option<Timestamp>,
    /// The last run has left it open, and this run has not found it yet.
    is_restored: bool,
}

impl OpenFinding {
    fn of(finding: FindingItem) -> Self {
        let FindingItem { severity, text, hint, since, .. } = finding;
        Self { severity, text: text.into(), hint: Cow::Owned(hint), since, is_restored: false }
    }

    fn restored(finding: FindingItem) -> Self {
        Self { is_restored: true, ..Self::of(finding) }
    }

    fn of_audit(dated: &DatedFinding) -> Self {
        let finding = &dated.finding;
        Self {
            severity: finding.severity,
            text: finding.text.as_str().into(),
            hint: Cow::Borrowed(finding.hint),
            since: (dated.since > UNIX_EPOCH).then(|| crate::event::time(dated.since)),
            is_restored: false,
        }
    }

    /// Whether the severity or the text is another one, and that is another fault.
    fn is_changed(&self, kind: FindingKind, severity: Severity, text: &str) -> bool {
        self.severity != severity || (kind.is_text_material() && *self.text != *text)
    }

    /// The document of this finding.
    fn item(self, key: FindingKey) -> FindingItem {
        FindingItem {
            cluster_id: None,
            id: key.id.map(|id| id.to_string()),
            name: key.kind.name().to_owned(),
            severity: self.severity,
            text: self.text.into(),
            hint: self.hint.into_owned(),
            since: self.since,
            silenced_until: None,
            harmless: false,
        }
    }
}

/// The findings that clients know as open.
#[derive(Debug)]
pub(super) struct OpenFindings {
    open: BTreeMap<FindingKey, OpenFinding>,
    current: CurrentFindings,
    sources: FindingSources,
    changes: FindingChanges,
    /// When the findings of the last run were read; `None` before that.
    restored_at: Option<Instant>,
    /// The version of the published findings at the last comparison; `None` before the first one.
    compared: Option<u64>,
    /// The last comparison has left out a finding that was too young, or kept one that may be over.
    has_young: bool,
    log: FindingLog,
}

impl OpenFindings {
    pub(super) fn new(sources: FindingSources, changes: FindingChanges) -> Self {
        Self {
            open: BTreeMap::new(),
            current: CurrentFindings::default(),
            sources,
            changes,
            restored_at: None,
            compared: None,
            has_young: false,
            log: FindingLog::default(),
        }
    }

    /// Opens the findings that are new, and closes those that are over. The first call continues with the findings that
    /// the last run has left open; it reads the history.
    pub(super) fn update(&mut self, now: Instant) {
        // Before the first turn of the main loop, not all instances are published.
        if self.sources.store.time_since_turn().is_none() {
            return;
        }
        let version = Some(self.sources.store.findings_version());
        // The findings about a receiver and about flapping instances change without a new version.
        let is_unchanged = self.compared == version
            && !self.has_young
            && self.current.has_read_flapping(&self.sources)
            && !self.sources.has_receiver();
        if is_unchanged {
            return;
        }
        self.compared = version;
        let restored_at = self.restore(now);
        // ORDER: the history is read before the view is taken; the main loop must copy a view that is held.
        self.current.update_flapping(&self.sources);
        let view = self.sources.store.view();
        self.compare(&view, now.saturating_duration_since(restored_at) < RESTORED_HOLD);
        drop(view);
        let open = self.open.len() as u64;
        self.sources.store.counters.open_findings.store(open, Ordering::Relaxed);
        if self.open.len() > MANY_FINDINGS {
            pack(&mut self.open);
            release_spare_heap();
        }
    }

    /// Reads the findings that the last run has left open, if this has not happened yet; returns when it happened.
    pub(super) fn restore(&mut self, now: Instant) -> Instant {
        *self.restored_at.get_or_insert_with(|| {
            let open = self.sources.open_in_history().into_iter();
            self.open.extend(open.filter_map(|finding| {
                Some((FindingKey::of(&finding)?, OpenFinding::restored(finding)))
            }));
            now
        })
    }

    /// When the open findings about instances began, as far as that is known.
    pub(super) fn times(&self) -> RememberedTimes {
        let time = |(key, open): (&FindingKey, &OpenFinding)| {
            Some(((key.id.clone()?, key.kind), open.since?.into()))
        };
        self.open.iter().filter_map(time).collect()
    }

    /// Whether the findings must be compared again soon: a finding was too young, or may be over.
    pub(super) fn has_young(&self) -> bool {
        self.has_young
    }

    /// `is_starting`: this run may not have made its first attempts yet.
    fn compare(&mut self, view: &PublishedState, is_starting: bool) {
        let mut before = std::mem::take(&mut self.open);
        self.has_young = false;
        for finding in self.current.without_audit(&self.sources, view) {
            let Some(key) = FindingKey::of(&finding) else { continue };
            match before.remove(&key) {
                Some(known) => self.keep(key, known, finding),
                None if self.open.contains_key(&key) => {}
                None => self.open(key, OpenFinding::of(finding.clone()), finding),
            }
        }
        for (id, entry) in &view.entries {
            let audit = entry.current_audit();
            for dated in audit.map(|audit| &*audit.findings).unwrap_or_default() {
                self.compare_dated(id, entry, dated, &mut before);
            }
        }
        for (key, known) in before {
            if self.may_be_open(&key, &known, view, is_starting) {
                self.open.insert(key, known);
            } else {
                self.publish(known.item(key), FindingState::Closed);
            }
        }
        self.log.finish();
    }

    /// Compares one finding of the audit. During a failover, kernel, agent and monitor change at different moments: a
    /// finding that is too young is not opened yet, and none changes.
    fn compare_dated(
        &mut self,
        id: &InstanceId,
        entry: &InstanceEntry,
        dated: &DatedFinding,
        before: &mut BTreeMap<FindingKey, OpenFinding>,
    ) {
        let key = FindingKey { id: Some(id.clone()), kind: dated.finding.kind };
        if let Some(mut known) = before.remove(&key) {
            if !known.is_changed(key.kind, dated.finding.severity, &dated.finding.text) {
                known.is_restored = false;
                self.open.insert(key, known);
            } else if clock::now().since(entry.role_since) < GRACE {
                self.has_young = true;
                self.open.insert(key, known);
            } else {
                self.keep(key, known, audit_finding(id.as_str(), dated));
            }
        } else if self.open.contains_key(&key) {
            // A second problem of the same kind.
        } else if dated.is_young(entry) {
            self.has_young = true;
        } else {
            self.open(key, OpenFinding::of_audit(dated), audit_finding(id.as_str(), dated));
        }
    }

    fn open(&mut self, key: FindingKey, open: OpenFinding, finding: FindingItem) {
        self.open.insert(key, open);
        self.publish(finding, FindingState::Open);
    }

    /// Keeps an open finding, with its new state if that is another fault.
    fn keep(&mut self, key: FindingKey, mut known: OpenFinding, finding: FindingItem) {
        known.is_restored = false;
        if known.is_changed(key.kind, finding.severity, &finding.text) {
            known.severity = finding.severity;
            known.text = finding.text.as_str().into();
            self.publish(finding, FindingState::Changed);
        }
        self.open.insert(key, known);
    }

    /// Whether it is not known that this finding, which was not found, is over.
    fn may_be_open(
        &mut self,
        key: &FindingKey,
        known: &OpenFinding,
        view: &PublishedState,
        is_starting: bool,
    ) -> bool {
        if known.is_restored && is_starting && key.kind.evidence() == FindingEvidence::Attempt {
            self.has_young = true;
            return true;
        }
        let Some(entry) = key.id.as_ref().and_then(|id| view.entries.get(id)) else { return false };
        let is_undecided = is_undecided(&self.sources.store, entry, key.kind);
        // An audit that is due compares the findings itself.
        self.has_young |= is_undecided && entry.current_audit().is_some();
        is_undecided
    }

    fn publish(&mut self, finding: FindingItem, state: FindingState) {
        let id = finding.id.as_ref().and_then(|id| id.parse().ok());
        let entry = id.and_then(|id| self.sources.store.entry(&id));
        self.log.write(&finding, state, entry.as_ref().map(|entry| &*entry.instance));
        self.changes.push(FindingChange { finding, state });
    }
}

#[cfg(test)]
mod tests;

//! The findings that clients know as open, and what has changed since: each finding is one event when it appears, and one
//! when it has gone.
//!
//! ```text
//!   events of the last run ──▶ open findings ◀── compared with the current ones ──▶ changes ──▶ main loop
//! ```

use std::collections::BTreeMap;

use vipwatch_api::{FindingItem, FindingState};

use super::{FindingChange, FindingChanges};
use crate::event::audit_finding;
use crate::state::PublishedState;
use crate::view::{CurrentFindings, FindingSources};

/// What tells one finding from another: several problems of one kind with one instance are one finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct FindingKey {
    /// The id of the instance; `None` for a finding about the node.
    id: Option<String>,
    name: String,
}

impl FindingKey {
    fn of(finding: &FindingItem) -> Self {
        Self { id: finding.id.clone(), name: finding.name.clone() }
    }
}

/// A finding of this moment.
#[derive(Debug)]
struct CurrentFinding {
    finding: FindingItem,
    /// Whether the audit has found it, so that no other part of the node has logged it.
    is_of_audit: bool,
    /// During a failover, kernel, agent and monitor change at different moments: a finding that is too young is not
    /// opened yet.
    is_young: bool,
}

/// The findings that clients know as open.
#[derive(Debug)]
pub(super) struct OpenFindings {
    open: BTreeMap<FindingKey, FindingItem>,
    current: CurrentFindings,
    sources: FindingSources,
    changes: FindingChanges,
    has_restored: bool,
}

impl OpenFindings {
    pub(super) fn new(sources: FindingSources, changes: FindingChanges) -> Self {
        let (open, current) = (BTreeMap::new(), CurrentFindings::default());
        Self { open, current, sources, changes, has_restored: false }
    }

    /// Opens the findings that are new, and closes those that are over. The first call continues with the findings that
    /// the last run has left open; it reads the history.
    pub(super) fn update(&mut self) {
        // Before the first turn of the main loop, not all instances are published.
        if self.sources.store.time_since_turn().is_none() {
            return;
        }
        if !std::mem::replace(&mut self.has_restored, true) {
            let open = self.sources.open_in_history();
            self.open.extend(open.into_iter().map(|finding| (FindingKey::of(&finding), finding)));
        }
        // ORDER: the history is read before the view is taken; the main loop must copy a view that is held.
        self.current.update_flapping(&self.sources);
        let view = self.sources.store.view();
        let mut current = Vec::new();
        for finding in self.current.without_audit(&self.sources, &view) {
            current.push(CurrentFinding { finding, is_of_audit: false, is_young: false });
        }
        for (id, entry) in &view.entries {
            let audit = entry.current_audit();
            for dated in audit.map(|audit| &*audit.findings).unwrap_or_default() {
                let finding = audit_finding(id.as_str(), dated);
                let is_young = dated.is_young(entry);
                current.push(CurrentFinding { finding, is_of_audit: true, is_young });
            }
        }
        self.compare(current, &view);
    }

    fn compare(&mut self, current: Vec<CurrentFinding>, view: &PublishedState) {
        let mut before = std::mem::take(&mut self.open);
        for CurrentFinding { finding, is_of_audit, is_young } in current {
            let key = FindingKey::of(&finding);
            if let Some(known) = before.remove(&key) {
                self.open.insert(key, known);
            } else if !is_young && !self.open.contains_key(&key) {
                if is_of_audit {
                    log_open(&finding);
                }
                self.open.insert(key, finding.clone());
                self.changes.push(FindingChange { finding, state: FindingState::Open });
            }
        }
        for (key, finding) in before {
            // An instance that has changed has no current result, and is audited again soon.
            if is_audit_due(&key, view) {
                self.open.insert(key, finding);
                continue;
            }
            let id = finding.id.as_deref().unwrap_or("node");
            tracing::info!(instance = id, finding = finding.name, "finding is over");
            self.changes.push(FindingChange { finding, state: FindingState::Closed });
        }
    }
}

fn log_open(finding: &FindingItem) {
    let FindingItem { name, severity, text, .. } = finding;
    let id = finding.id.as_deref().unwrap_or("node");
    let severity = severity.word();
    tracing::warn!(instance = id, finding = name, severity, detail = text, "audit finding");
}

/// Whether the instance of a finding is followed, and has no current result of the audit.
fn is_audit_due(key: &FindingKey, view: &PublishedState) -> bool {
    let id = key.id.as_ref().and_then(|id| id.parse().ok());
    let entry = id.and_then(|id| view.entries.get(&id));
    entry.is_some_and(|entry| entry.current_audit().is_none())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use vipwatch_api::FindingSeverity;
    use vipwatch_core::Role;
    use vipwatch_history::{EventRecord, Retention, Writer};

    use super::*;
    use crate::discovery::ConfigProblem;
    use crate::event::NodeIdentity;
    use crate::receiver::ReceiverHandle;
    use crate::state::{HealthTopic, InstanceEntry, StateStore};

    fn finding(id: Option<&str>, name: &str) -> FindingItem {
        FindingItem {
            id: id.map(str::to_owned),
            name: name.to_owned(),
            severity: FindingSeverity::Wrong,
            text: String::new(),
            hint: String::new(),
            since: None,
            silenced_until: None,
        }
    }

    /// A history: its last run has left these findings open.
    fn record_open(directory: &Path, findings: &[FindingItem]) {
        let (writer, _) = Writer::open(directory, Retention::default()).unwrap();
        let identity = NodeIdentity { node: "n".into(), epoch: "0".into() };
        for (seq, finding) in (1..).zip(findings) {
            let event = identity.finding(seq, FindingState::Open, finding.clone());
            writer.record_event(EventRecord {
                seq,
                at: vipwatch_linux::clock::unix_millis_now(),
                name: "finding".to_owned(),
                instance: finding.id.clone(),
                body: serde_json::to_string(&event).unwrap(),
            });
        }
    }

    /// The open findings of a node that has begun to run.
    fn open_findings(directory: &Path) -> OpenFindings {
        let store = Arc::new(StateStore::default());
        store.record_turn();
        let (receiver_handle, state_dir) = (ReceiverHandle::default(), directory.to_owned());
        let sources = FindingSources { store, receiver_handle, state_dir };
        OpenFindings::new(sources, FindingChanges::new().unwrap())
    }

    /// The changes since the last call, for example `open node-history`.
    fn changes(open: &mut OpenFindings) -> Vec<String> {
        open.update();
        let changes = open.changes.take_all().into_iter();
        let text = |change: FindingChange| {
            let state = match change.state {
                FindingState::Open => "open",
                FindingState::Closed => "closed",
            };
            format!("{state} {}", change.finding.name)
        };
        changes.map(text).collect()
    }

    #[test]
    fn each_kind_of_finding_is_an_event_when_it_appears_and_when_it_has_gone() {
        let directory = tempfile::tempdir().unwrap();
        let mut open = open_findings(directory.path());
        assert_eq!(changes(&mut open), [""; 0]);
        let store = Arc::clone(&open.sources.store);
        store.set_health(HealthTopic::History, Some("disk full".to_owned()));
        let file = "/etc/keepalived/keepalived.conf".into();
        let problem = ConfigProblem { file, line: None, text: "unknown block".to_owned() };
        store.update(|view| view.problems = Arc::new(vec![problem.clone(), problem]));
        let expected = ["open node-history", "open configuration-problem"];
        assert_eq!(changes(&mut open), expected, "one event for problems of the same name");
        assert_eq!(changes(&mut open), [""; 0]);
        store.set_health(HealthTopic::History, None);
        store.update(|view| view.problems = Arc::default());
        assert_eq!(changes(&mut open), ["closed configuration-problem", "closed node-history"]);
    }

    #[test]
    fn two_instances_with_the_same_vrid_are_an_event() {
        let directory = tempfile::tempdir().unwrap();
        let mut open = open_findings(directory.path());
        let store = Arc::clone(&open.sources.store);
        let first = crate::discovery::example();
        let mut second = first.clone();
        second.id = "other".parse().unwrap();
        for instance in [first, second] {
            store.insert(InstanceEntry::new(Arc::new(instance), Role::Backup, [].into()));
        }
        let opened = changes(&mut open);
        assert!(opened.contains(&"open vrid-clash".to_owned()), "{opened:?}");
        assert!(opened.contains(&"open address-configured-twice".to_owned()), "{opened:?}");
    }

    #[test]
    fn a_finding_that_ended_while_the_node_was_down_is_closed_after_the_restart() {
        let directory = tempfile::tempdir().unwrap();
        let history = finding(None, "node-history");
        record_open(directory.path(), &[history, finding(Some("gone"), "agent-behind")]);
        let mut open = open_findings(directory.path());
        let store = Arc::clone(&open.sources.store);
        store.set_health(HealthTopic::History, Some("disk full".to_owned()));
        assert_eq!(changes(&mut open), ["closed agent-behind"], "the other one is still open");
        store.set_health(HealthTopic::History, None);
        assert_eq!(changes(&mut open), ["closed node-history"]);
    }

    #[test]
    fn a_finding_of_the_last_run_stays_open_until_its_instance_is_audited() {
        let directory = tempfile::tempdir().unwrap();
        let instance = Arc::new(crate::discovery::example());
        record_open(directory.path(), &[finding(Some(instance.id.as_str()), "agent-behind")]);
        let mut open = open_findings(directory.path());
        let store = Arc::clone(&open.sources.store);
        store.insert(InstanceEntry::new(instance, Role::Backup, [].into()));
        assert_eq!(changes(&mut open), [""; 0]);
        store.update(|view| view.entries.clear());
        assert_eq!(changes(&mut open), ["closed agent-behind"]);
    }
}

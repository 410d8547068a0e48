//! The findings that clients know as open, and what has changed since: each finding is one event when it appears, and one
//! when it has gone.
//!
//! ```text
//!   events of the last run ──▶ open findings ◀── compared with the current ones ──▶ changes ──▶ main loop
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use vipwatch_api::{FindingItem, FindingSeverity, FindingState, Timestamp};
use vipwatch_core::InstanceId;
use vipwatch_linux::process::release_spare_heap;

use super::{DatedFinding, FindingChange, FindingChanges};
use crate::discovery::InstanceConfig;
use crate::event::audit_finding;
use crate::log::{addresses, netns_name};
use crate::packed::pack;
use crate::state::{InstanceEntry, PublishedState};
use crate::view::{CurrentFindings, FindingSources};

/// With more findings than this, they are packed and spare heap is released after a comparison.
const MANY_FINDINGS: usize = 500;

/// Maximum number of log lines for the findings of one name that open, and for those that close, in one comparison. The
/// others are counted in one line: after a start, thousands of instances may have the same finding.
const MAX_LINES: usize = 10;

/// What tells one finding from another: several problems of one kind with one instance are one finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct FindingKey {
    /// The instance; `None` for a finding about the node.
    id: Option<InstanceId>,
    name: Cow<'static, str>,
}

impl FindingKey {
    /// `None` if the id is not one of an instance.
    fn of(finding: &FindingItem) -> Option<Self> {
        let id = finding.id.as_ref().map(|id| id.parse()).transpose().ok()?;
        Some(Self { id, name: Cow::Owned(finding.name.clone()) })
    }
}

/// A finding that clients know as open. There may be thousands, so it is smaller than the document.
#[derive(Debug)]
struct OpenFinding {
    severity: FindingSeverity,
    text: Box<str>,
    hint: Cow<'static, str>,
    since: Option<Timestamp>,
}

impl OpenFinding {
    fn of(finding: FindingItem) -> Self {
        let FindingItem { severity, text, hint, since, .. } = finding;
        Self { severity, text: text.into(), hint: Cow::Owned(hint), since }
    }

    fn of_audit(dated: &DatedFinding) -> Self {
        let finding = &dated.finding;
        Self {
            severity: crate::event::severity(finding.severity),
            text: finding.text.as_str().into(),
            hint: Cow::Borrowed(finding.hint),
            since: (dated.since > UNIX_EPOCH).then(|| crate::event::time(dated.since)),
        }
    }

    /// The document of this finding.
    fn item(self, key: FindingKey) -> FindingItem {
        FindingItem {
            id: key.id.map(|id| id.to_string()),
            name: key.name.into_owned(),
            severity: self.severity,
            text: self.text.into(),
            hint: self.hint.into_owned(),
            since: self.since,
            silenced_until: None,
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
    has_restored: bool,
    /// The version of the published findings at the last comparison; `None` before the first one.
    compared: Option<u64>,
    /// The last comparison has left out a finding that was too young.
    has_young: bool,
    /// The log lines of this comparison.
    lines: LineCounts,
}

/// The number of findings of each name that have opened or closed in one comparison.
#[derive(Debug, Default)]
struct LineCounts {
    opened: CountByName,
    closed: CountByName,
}

#[derive(Debug, Default)]
struct CountByName(BTreeMap<String, usize>);

impl CountByName {
    /// Counts one; whether it gets a log line of its own.
    fn allows(&mut self, name: &str) -> bool {
        let count = self.0.entry(name.to_owned()).or_default();
        *count += 1;
        *count <= MAX_LINES
    }

    /// The names with findings without a line of their own, and the number of these.
    fn left_out(&self) -> impl Iterator<Item = (&str, usize)> {
        let left = self.0.iter().filter(|(_, count)| **count > MAX_LINES);
        left.map(|(name, count)| (name.as_str(), count - MAX_LINES))
    }
}

impl OpenFindings {
    pub(super) fn new(sources: FindingSources, changes: FindingChanges) -> Self {
        Self {
            open: BTreeMap::new(),
            current: CurrentFindings::default(),
            sources,
            changes,
            has_restored: false,
            compared: None,
            has_young: false,
            lines: LineCounts::default(),
        }
    }

    /// Opens the findings that are new, and closes those that are over. The first call continues with the findings that
    /// the last run has left open; it reads the history.
    pub(super) fn update(&mut self) {
        // Before the first turn of the main loop, not all instances are published.
        if self.sources.store.time_since_turn().is_none() {
            return;
        }
        let version = Some(self.sources.store.findings_version());
        // The findings about a receiver and about flapping instances change without a new version.
        let is_unchanged = self.compared == version
            && !self.has_young
            && !self.current.is_flapping()
            && !self.sources.has_receiver();
        if is_unchanged {
            return;
        }
        self.compared = version;
        if !std::mem::replace(&mut self.has_restored, true) {
            let open = self.sources.open_in_history().into_iter();
            let open = open
                .filter_map(|finding| Some((FindingKey::of(&finding)?, OpenFinding::of(finding))));
            self.open.extend(open);
        }
        // ORDER: the history is read before the view is taken; the main loop must copy a view that is held.
        self.current.update_flapping(&self.sources);
        let view = self.sources.store.view();
        self.compare(&view);
        drop(view);
        if self.open.len() > MANY_FINDINGS {
            pack(&mut self.open);
            release_spare_heap();
        }
    }

    /// Whether the last comparison has left out a finding that was too young.
    pub(super) fn has_young(&self) -> bool {
        self.has_young
    }

    fn compare(&mut self, view: &PublishedState) {
        self.lines = LineCounts::default();
        let mut before = std::mem::take(&mut self.open);
        self.has_young = false;
        for finding in self.current.without_audit(&self.sources, view) {
            let Some(key) = FindingKey::of(&finding) else { continue };
            match before.remove(&key) {
                Some(known) => drop(self.open.insert(key, known)),
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
            // An instance that has changed has no current result, and is audited again soon.
            if is_audit_due(&key, view) {
                self.open.insert(key, known);
                continue;
            }
            if self.lines.closed.allows(&key.name) {
                log_closed(&key, view);
            }
            let finding = known.item(key);
            self.changes.push(FindingChange { finding, state: FindingState::Closed });
        }
        for (finding, more) in self.lines.opened.left_out() {
            tracing::warn!(finding, more, "audit findings of further instances");
        }
        for (finding, more) in self.lines.closed.left_out() {
            tracing::info!(finding, more, "findings of further instances are over");
        }
    }

    /// Compares one finding of the audit. During a failover, kernel, agent and monitor change at different moments: a
    /// finding that is too young is not opened yet.
    fn compare_dated(
        &mut self,
        id: &InstanceId,
        entry: &InstanceEntry,
        dated: &DatedFinding,
        before: &mut BTreeMap<FindingKey, OpenFinding>,
    ) {
        let name = Cow::Borrowed(dated.finding.name);
        let key = FindingKey { id: Some(id.clone()), name };
        if let Some(known) = before.remove(&key) {
            self.open.insert(key, known);
        } else if dated.is_young(entry) {
            self.has_young = true;
        } else if !self.open.contains_key(&key) {
            let finding = audit_finding(id.as_str(), dated);
            if self.lines.opened.allows(dated.finding.name) {
                log_open(&finding, &entry.instance);
            }
            self.open(key, OpenFinding::of_audit(dated), finding);
        }
    }

    fn open(&mut self, key: FindingKey, open: OpenFinding, finding: FindingItem) {
        self.open.insert(key, open);
        self.changes.push(FindingChange { finding, state: FindingState::Open });
    }
}

fn log_open(finding: &FindingItem, instance: &InstanceConfig) {
    let FindingItem { name, severity, text, .. } = finding;
    let id = finding.id.as_deref().unwrap_or("node");
    let (severity, netns, address) = (severity.word(), netns_name(instance), addresses(instance));
    tracing::warn!(
        instance = id,
        netns,
        address,
        finding = name,
        severity,
        detail = text,
        "audit finding"
    );
}

fn log_closed(key: &FindingKey, view: &PublishedState) {
    let entry = key.id.as_ref().and_then(|id| view.entries.get(id));
    let instance = entry.map(|entry| &*entry.instance);
    let (netns, address) = (instance.map(netns_name), instance.map(addresses));
    let id = key.id.as_ref().map_or("node", InstanceId::as_str);
    tracing::info!(instance = id, netns, address, finding = %key.name, "finding is over");
}

/// Whether the instance of a finding is followed, and has no current result of the audit.
fn is_audit_due(key: &FindingKey, view: &PublishedState) -> bool {
    let entry = key.id.as_ref().and_then(|id| view.entries.get(id));
    entry.is_some_and(|entry| entry.current_audit().is_none())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use vipwatch_core::Role;
    use vipwatch_history::{EventRecord, Retention, Writer};

    use super::*;
    use crate::discovery::ConfigProblem;
    use crate::event::NodeIdentity;
    use crate::receiver::ReceiverHandle;
    use crate::state::{HealthTopic, StateStore};

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
        assert_eq!(open.compared, Some(store.findings_version()), "nothing is compared twice");
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

// SPDX-License-Identifier: Apache-2.0
//! Tests of the findings that clients know as open.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_core::{Role, RoleKind};
use vipwatch_history::{EventRecord, Retention, Writer};

use super::*;
use crate::audit::AuditResult;
use crate::discovery::{ConfigProblem, ContentInUse};
use crate::event::NodeIdentity;
use crate::receiver::ReceiverHandle;
use crate::state::{FailedDelivery, StateStore};

fn finding(id: Option<&str>, name: &str) -> FindingItem {
    FindingItem {
        cluster_id: None,
        id: id.map(str::to_owned),
        name: name.to_owned(),
        severity: Severity::Warning,
        text: String::new(),
        hint: String::new(),
        since: None,
        silenced_until: None,
        harmless: false,
    }
}

/// A history: its last run has left these findings open.
fn record_open(directory: &Path, findings: &[FindingItem]) {
    record(directory, FindingState::Open, findings);
}

/// A history: the last event of these findings has this state.
fn record(directory: &Path, state: FindingState, findings: &[FindingItem]) {
    let (writer, _) = Writer::open(directory, Retention::default()).unwrap();
    let identity = NodeIdentity { node: "n".into(), epoch: "0".into() };
    for (seq, finding) in (1..).zip(findings) {
        let event = identity.finding(seq, state, finding.clone());
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
    open.update(Instant::now());
    let changes = open.changes.take_all().into_iter();
    let text = |change: FindingChange| {
        let state = match change.state {
            FindingState::Open => "open",
            FindingState::Changed => "changed",
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
    store.set_health(FindingKind::NodeHistory, Some("disk full".to_owned()));
    let file = "/etc/keepalived/keepalived.conf".into();
    let text = "unknown block".to_owned();
    let problem = ConfigProblem {
        file,
        line: None,
        text,
        content: ContentInUse::LastValid,
        loses_addresses: false,
        is_harmless: false,
    };
    store.update(|view| view.problems = Arc::new(vec![problem.clone(), problem]));
    let expected = ["open node-history", "open configuration-problem"];
    assert_eq!(changes(&mut open), expected, "one event for problems of the same name");
    assert_eq!(changes(&mut open), [""; 0]);
    assert_eq!(open.compared, Some(store.findings_version()), "nothing is compared twice");
    store.set_health(FindingKind::NodeHistory, None);
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
    store.set_health(FindingKind::NodeHistory, Some("disk full".to_owned()));
    assert_eq!(changes(&mut open), ["closed agent-behind"], "the other one is still open");
    store.set_health(FindingKind::NodeHistory, None);
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

#[test]
fn another_fault_of_the_same_kind_is_a_change_and_another_error_text_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut open = open_findings(directory.path());
    let store = Arc::clone(&open.sources.store);
    let set = |topic, text: &str| store.set_health(topic, Some(text.to_owned()));
    set(FindingKind::NodeHistory, "disk full");
    set(FindingKind::NodeConfiguration, "line 2: unknown key");
    assert_eq!(changes(&mut open), ["open node-configuration", "open node-history"]);
    set(FindingKind::NodeHistory, "read-only file system");
    assert_eq!(changes(&mut open), [""; 0], "the history still cannot be written");
    set(FindingKind::NodeConfiguration, "line 7: unknown key");
    assert_eq!(changes(&mut open), ["changed node-configuration"]);
    assert_eq!(changes(&mut open), [""; 0]);
    store.set_health(FindingKind::NodeConfiguration, None);
    open.update(Instant::now());
    let closed = open.changes.take_all().remove(0);
    assert_eq!(closed.finding.text, "line 7: unknown key", "the newest text is known");
}

#[test]
fn a_changed_finding_of_the_last_run_is_still_open_and_does_not_change_again() {
    let directory = tempfile::tempdir().unwrap();
    let text = "line 7: unknown key".to_owned();
    record(
        directory.path(),
        FindingState::Changed,
        &[FindingItem { text: text.clone(), ..finding(None, "node-configuration") }],
    );
    let mut open = open_findings(directory.path());
    open.sources.store.set_health(FindingKind::NodeConfiguration, Some(text));
    assert_eq!(changes(&mut open), [""; 0]);
}

#[test]
fn a_failed_delivery_of_the_last_run_stays_open_until_this_run_has_tried() {
    let directory = tempfile::tempdir().unwrap();
    let instance = Arc::new(crate::discovery::example());
    let id = instance.id.clone();
    record_open(directory.path(), &[finding(Some(id.as_str()), "webhook-failed")]);
    let mut open = open_findings(directory.path());
    let store = Arc::clone(&open.sources.store);
    store.insert(InstanceEntry::new(instance, Role::Backup, [].into()));
    assert_eq!(changes(&mut open), [""; 0]);
    assert!(open.has_young(), "the finding is compared again");
    let failed = FailedDelivery { error: "refused".to_owned(), since: SystemTime::now() };
    let failure = ((vipwatch_history::Stage::Webhook, "chat".to_owned()), failed);
    store.update(|view| {
        let entry = Arc::make_mut(view.entries.get_mut(&id).unwrap());
        entry.failures.extend([failure]);
    });
    assert_eq!(changes(&mut open), [""; 0], "the same finding");
    store.update(|view| view.entries.clear());
    assert_eq!(changes(&mut open), ["closed webhook-failed"]);
}

#[test]
fn a_failed_delivery_of_the_last_run_that_does_not_fail_again_is_closed_later() {
    let directory = tempfile::tempdir().unwrap();
    record_open(directory.path(), &[finding(None, "node-socket")]);
    let mut open = open_findings(directory.path());
    let start = Instant::now();
    open.update(start);
    assert!(open.changes.take_all().is_empty());
    open.update(start + RESTORED_HOLD);
    assert_eq!(open.changes.take_all().len(), 1);
}

fn audit_of(entry: &InstanceEntry, findings: &[&DatedFinding]) -> AuditResult {
    AuditResult {
        at: SystemTime::now(),
        taken: Instant::now(),
        seq: entry.seq,
        instance: Arc::clone(&entry.instance),
        addresses: Box::default(),
        findings: findings.iter().map(|dated| (*dated).clone()).collect(),
        is_unsettled: false,
    }
}

#[test]
fn a_finding_that_was_first_found_just_before_a_role_change_opens_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut open = open_findings(directory.path());
    let store = Arc::clone(&open.sources.store);
    let mut entry =
        InstanceEntry::new(Arc::new(crate::discovery::example()), Role::Backup, [].into());
    (entry.seq, entry.since) = (1, UNIX_EPOCH);
    let id = entry.instance.id.clone();
    let finding = vipwatch_core::audit::Finding::new(FindingKind::VridClashOnLink, String::new());
    let dated = DatedFinding { finding, since: UNIX_EPOCH };
    store.insert(entry.clone());
    store.set_audit(&id, audit_of(&entry, &[&dated]), |_, _| true);
    // The role changes before the findings are compared.
    entry.audit = store.entry(&id).and_then(|entry| entry.audit.clone());
    entry.seq = 2;
    store.insert(entry.clone());
    assert_eq!(changes(&mut open), [""; 0], "no audit has examined the new role");
    store.set_audit(&id, audit_of(&entry, &[&dated]), |_, _| true);
    assert_eq!(changes(&mut open), ["open vrid-clash-on-link"]);
}

#[test]
fn flapping_opens_although_the_history_had_no_row_of_the_last_transition_at_first() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(directory.path(), Retention::default()).unwrap();
    let mut open = open_findings(directory.path());
    let store = Arc::clone(&open.sources.store);
    let mut entry =
        InstanceEntry::new(Arc::new(crate::discovery::example()), Role::Backup, [].into());
    (entry.seq, entry.since) = (6, SystemTime::now());
    let instance = entry.instance.id.to_string();
    store.insert(entry);
    store.counters.transitions.fetch_add(6, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(changes(&mut open), [""; 0], "no row is written");
    for seq in 1..=6 {
        let (one, other) = (RoleKind::Primary, RoleKind::Backup);
        let (from, to) = if seq % 2 == 0 { (one, other) } else { (other, one) };
        let record = vipwatch_history::Record {
            seq,
            at: vipwatch_linux::clock::unix_millis_now(),
            instance: instance.clone(),
            netns: None,
            from: Some(from),
            to: Some(to),
            trigger: "address".to_owned(),
            reason: None,
            cause: None,
        };
        writer.record(record, vipwatch_history::Latencies::default());
    }
    drop(writer);
    assert_eq!(changes(&mut open), ["open flapping"], "the published state is unchanged");
}

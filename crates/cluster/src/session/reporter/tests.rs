// SPDX-License-Identifier: Apache-2.0
//! The transactions of the reporter.

use std::time::Duration;

use vipwatch_api::RoleKind::{Backup, Primary};

use super::*;
use crate::record::Confidence;
use crate::sample::{TestCluster, time};

/// A cluster with two primaries in the groups of VRID 51 for longer than the settle time, and the reporter's work.
struct Lab {
    cluster: TestCluster,
    work: ReporterWork,
    now: Duration,
}

impl Lab {
    fn new(cluster: TestCluster) -> Self {
        let now = Duration::from_secs(1000);
        let settings = EvaluatorSettings::default();
        let node = "a".parse().unwrap();
        let work = ReporterWork::new(&cluster.view, &settings, &node, 7, Moment::new(now));
        Self { cluster, work, now }
    }

    fn two_primaries() -> Self {
        let mut cluster = TestCluster::new();
        for node in ["a", "b"] {
            cluster.start(node);
            cluster.role(node, Primary);
        }
        cluster.confirm(&["a", "b"]);
        let mut lab = Self::new(cluster);
        lab.pass(0);
        lab.pass(5);
        lab
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        let time = EvaluationTime { now: Moment::new(self.now), at: time(0) };
        self.work.evaluate(&self.cluster.view, time);
    }

    /// The next transaction, carried out.
    fn commit(&mut self, retention: Option<LeaseId>) -> Vec<ClusterEvent> {
        let Some(batch) = self.work.next_batch(retention) else { return Vec::new() };
        self.cluster.revision += 1;
        for change in batch.changes(self.cluster.revision) {
            self.cluster.view.apply_own(change);
        }
        self.work.committed(batch, self.cluster.revision)
    }
}

/// The keys of a batch, each as often as it is written or deleted.
fn keys(batch: &FindingBatch) -> Vec<&str> {
    batch.writes.iter().map(|write| write.key.as_str()).collect()
}

fn ended(number: usize) -> FindingRecord {
    FindingRecord {
        schema: crate::record::FORMAT,
        id: format!("{number:05}-two-primaries"),
        name: "cluster-two-primaries".to_owned(),
        severity: vipwatch_api::Severity::Critical,
        confidence: Confidence::Certain,
        group: Some("vrrp:ipv4:51:192.0.2.80".to_owned()),
        nodes: vec!["a".to_owned()],
        text: String::new(),
        hint: String::new(),
        evidence: Vec::new(),
        opened: time(0),
        changed: time(0),
        closed: Some(time(1)),
        reporter: "a".to_owned(),
        notified_open: vec!["chat".to_owned()],
        notified_closed: Vec::new(),
        silenced: None,
        part_of: None,
        about: Vec::new(),
    }
}

#[test]
fn a_finding_that_is_deleted_because_there_are_too_many_is_not_written_before() {
    let mut cluster = TestCluster::new();
    for number in 0..MAX_CLOSED_FINDINGS + 30 {
        let record = ended(number);
        cluster.put(&ClusterKey::Closed(record.id.parse().unwrap()), encode(&record));
    }
    let mut lab = Lab::new(cluster);
    // A slow target receives the ends, the oldest first, while the oldest are deleted.
    for number in 0..40 {
        let id = ended(number).id.parse().unwrap();
        let delivered = DeliveredFinding { id, target: "chat".to_owned(), is_closed: true };
        lab.work.delivered(&lab.cluster.view, delivered);
    }
    lab.pass(0);
    let mut written = 0;
    while let Some(batch) = lab.work.next_batch(Some(LeaseId(5))) {
        let all = keys(&batch);
        // The deletion of an open finding belongs to the write of its end.
        let closed: Vec<&str> = all.into_iter().filter(|key| key.contains("/closed/")).collect();
        let distinct: BTreeSet<&str> = closed.iter().copied().collect();
        assert_eq!(distinct.len(), closed.len(), "etcd refuses a duplicate key: {closed:?}");
        written += batch.written.len();
        lab.commit(Some(LeaseId(5)));
    }
    assert_eq!(written, 10, "the other thirty are gone");
    assert_eq!(lab.cluster.view.closed_findings().count(), MAX_CLOSED_FINDINGS);
}

#[test]
fn an_opening_compares_the_roles_and_the_processes_that_it_rests_on() {
    let lab = Lab::two_primaries();
    let batch = lab.work.next_batch(None).unwrap();
    let compared: Vec<String> = batch
        .compares
        .iter()
        .map(|compare| {
            String::from_utf8_lossy(&compare.key).rsplit("/prod/").next().unwrap().to_owned()
        })
        .collect();
    let expected =
        ["reporter", "role/vrrp:ipv4:51/a/VI_1", "role/vrrp:ipv4:51/b/VI_1", "node/a", "node/b"];
    assert_eq!(compared, expected);
}

#[test]
fn an_opening_that_a_change_on_its_way_prevents_is_no_event() {
    let mut lab = Lab::two_primaries();
    let batch = lab.work.next_batch(None).unwrap();
    assert!(lab.work.refused(&batch).is_some());
    assert!(lab.work.next_batch(None).is_none(), "it waits for the next evaluation");
    // The change arrives.
    lab.cluster.role("b", Backup);
    lab.pass(0);
    assert!(lab.work.next_batch(None).is_none());
    assert!(lab.work.take_events().is_empty() && lab.work.findings.is_empty());
}

#[test]
fn an_opening_that_was_refused_is_written_when_the_condition_still_holds() {
    let mut lab = Lab::two_primaries();
    let batch = lab.work.next_batch(None).unwrap();
    lab.work.refused(&batch);
    // Another local finding has changed the record of the role.
    lab.cluster.role("b", Primary);
    lab.cluster.confirm(&["a", "b"]);
    lab.pass(0);
    assert!(matches!(lab.commit(None).as_slice(), [ClusterEvent::FindingOpen(_)]));
    let batch = lab.work.next_batch(None);
    assert!(batch.is_none(), "{batch:?}");
}

#[test]
fn a_refused_finding_does_not_keep_the_others_from_etcd() {
    let mut cluster = TestCluster::new();
    for number in 0..20 {
        let record = ended(number);
        cluster.put(&ClusterKey::Closed(record.id.parse().unwrap()), encode(&record));
    }
    let mut lab = Lab::new(cluster);
    for number in 0..20 {
        let id = ended(number).id.parse().unwrap();
        let delivered = DeliveredFinding { id, target: "chat".to_owned(), is_closed: true };
        lab.work.delivered(&lab.cluster.view, delivered);
    }
    let bad: FindingId = ended(13).id.parse().unwrap();
    let (mut refused, mut written) = (Vec::new(), 0);
    while let Some(batch) = lab.work.next_batch(Some(LeaseId(5))) {
        if batch.written.contains(&bad) {
            refused.extend(lab.work.refused(&batch));
        } else {
            written += batch.written.len();
            lab.commit(Some(LeaseId(5)));
        }
    }
    assert_eq!((refused, written), (vec![bad], 19));
}

#[test]
fn a_finding_that_has_ended_keeps_its_lease_when_a_target_receives_its_end() {
    let mut lab = Lab::two_primaries();
    lab.commit(None);
    let id = lab.work.findings.keys().next().unwrap().clone();
    let delivered =
        |is_closed| DeliveredFinding { id: id.clone(), target: "chat".to_owned(), is_closed };
    lab.work.delivered(&lab.cluster.view, delivered(false));
    lab.cluster.role("b", Backup);
    lab.pass(0);
    assert!(lab.work.needs_retention_lease());
    lab.commit(Some(LeaseId(5)));
    lab.work.delivered(&lab.cluster.view, delivered(true));
    assert!(!lab.work.needs_retention_lease(), "a mark needs no lease of its own");
    let batch = lab.work.next_batch(Some(LeaseId(6))).unwrap();
    assert_eq!(batch.leases().get(&id), Some(&LeaseId(5)));
}

#[test]
fn a_silenced_opening_is_written_and_is_an_event_when_the_silence_ends() {
    let mut cluster = TestCluster::new();
    for node in ["a", "b"] {
        cluster.start(node);
        cluster.role(node, Primary);
        cluster.silence(&format!("{node}.1"), Some(node), None);
    }
    cluster.confirm(&["a", "b"]);
    let mut lab = Lab::new(cluster);
    lab.pass(0);
    lab.pass(5);
    assert_eq!(lab.commit(None), [], "nobody is notified");
    assert_eq!(lab.cluster.view.findings().count(), 1, "everybody sees it");
    assert!(lab.work.openings().is_empty());
    lab.cluster.end_silence("a.1");
    lab.pass(0);
    let events = lab.commit(None);
    let [ClusterEvent::FindingOpen(record)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(record.silenced, None);
    // A silence after the delivery changes nothing, and the end is delivered.
    lab.cluster.silence("a.2", Some("a"), None);
    lab.pass(0);
    assert_eq!(lab.commit(None), []);
    lab.cluster.role("b", Backup);
    lab.pass(0);
    assert!(matches!(lab.commit(Some(LeaseId(5))).as_slice(), [ClusterEvent::FindingClosed(_)]));
}

#[test]
fn a_lost_node_with_many_groups_is_one_event() {
    let mut cluster = TestCluster::new();
    for node in ["a", "b"] {
        cluster.start(node);
    }
    for number in 1..=50 {
        for (node, role) in [("a", Primary), ("b", Backup)] {
            let id = format!("r{number}");
            cluster
                .publish(&crate::sample::router(&id), &crate::sample::role_record(node, &id, role));
        }
    }
    cluster.confirm(&["a", "b"]);
    let mut lab = Lab::new(cluster);
    lab.pass(0);
    lab.cluster.lose("b");
    let mut events = Vec::new();
    for seconds in [0, 20, 61] {
        lab.pass(seconds);
        while lab.work.next_batch(None).is_some() {
            events.extend(lab.commit(None));
        }
    }
    let [ClusterEvent::FindingOpen(record)] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(record.name, "cluster-node-lost");
    assert_eq!(lab.cluster.view.findings().count(), 51);
    // The node is back, and its keepalived is not: each group has a message later.
    lab.cluster.start("b");
    for number in 1..=50 {
        let id = format!("r{number}");
        let findings = vec!["keepalived-gone".to_owned()];
        let record =
            crate::record::RoleRecord { findings, ..crate::sample::role_record("b", &id, Backup) };
        lab.cluster.publish(&crate::sample::router(&id), &record);
    }
    let mut opened = Vec::new();
    for seconds in [1, 301] {
        lab.pass(seconds);
        let mut count = 0;
        while lab.work.next_batch(Some(LeaseId(5))).is_some() {
            let events = lab.commit(Some(LeaseId(5)));
            let is_open = |event: &&ClusterEvent| matches!(event, ClusterEvent::FindingOpen(_));
            count += events.iter().filter(is_open).count();
        }
        opened.push(count);
    }
    assert_eq!(opened, [0, 50], "keepalived may need a moment");
}

#[test]
fn an_opening_of_which_it_is_not_known_whether_it_was_written_is_still_compared() {
    let mut lab = Lab::two_primaries();
    let batch = lab.work.next_batch(None).unwrap();
    let compares = batch.compares.len();
    lab.work.uncertain(&batch);
    assert_eq!(lab.work.next_batch(None).unwrap().compares.len(), compares);
}

#[test]
fn the_opening_of_a_lost_node_compares_its_keys() {
    let mut cluster = TestCluster::new();
    for node in ["a", "b"] {
        cluster.start(node);
    }
    let mut lab = Lab::new(cluster);
    lab.pass(0);
    lab.cluster.lose("b");
    lab.pass(0);
    lab.pass(20);
    let batch = lab.work.next_batch(None).unwrap();
    // The reporter, the process and the membership.
    assert_eq!(batch.compares.len(), 3, "{:?}", batch.compares);
}

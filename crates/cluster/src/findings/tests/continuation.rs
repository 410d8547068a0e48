// SPDX-License-Identifier: Apache-2.0
//! A view that is stale, and findings that an earlier reporter has opened.

use super::*;
use crate::key::{ClusterKey, FindingId};
use crate::record::encode;

/// The records that are open, as a new reporter reads them.
fn stored(lab: &Evaluation) -> Vec<FindingRecord> {
    lab.evaluator.open_findings().cloned().collect()
}

#[test]
fn while_the_view_is_stale_nothing_is_due_and_pending_times_begin_again() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.role("b", Primary);
    lab.cluster.lose("c");
    assert_eq!(lab.pass(2.0), [""; 0]);
    lab.evaluator.interrupt();
    assert_eq!(lab.evaluator.next_check(), None);
    lab.now += Duration::from_secs(100);
    assert_eq!(lab.pass(3.9), [""; 0]);
    assert_eq!(lab.pass(0.2), ["+two-primaries"]);
    assert_eq!(lab.pass(10.8), [""; 0], "after a connection, a node has one lease to come back");
    assert_eq!(lab.pass(0.2), ["+node-lost"]);
}

#[test]
fn an_open_finding_stays_open_while_the_view_is_stale() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Primary);
    assert_eq!(lab.pass(5.0), ["+two-primaries"]);
    lab.evaluator.interrupt();
    lab.now += Duration::from_secs(100);
    assert_eq!(lab.pass(600.0), [""; 0]);
    lab.evaluator.interrupt();
    lab.role("b", Backup);
    assert_eq!(lab.evaluate(), ["-two-primaries"]);
}

#[test]
fn after_a_connection_a_missing_node_has_one_lease_to_come_back() {
    let mut cluster = TestCluster::new();
    cluster.start("a");
    cluster.start("b");
    cluster.lose("b");
    let now = Duration::from_secs(1000);
    let mut lab = Evaluation { cluster, evaluator: new_evaluator([]), now };
    assert_eq!(lab.pass(14.9), [""; 0]);
    assert_eq!(lab.pass(0.2), ["+node-lost"]);
}

#[test]
fn a_new_reporter_continues_open_findings_and_does_not_open_them_again() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.role("b", Primary);
    lab.cluster.lose("c");
    assert_eq!(lab.pass(5.0), ["+node-lost", "+two-primaries"]);
    let open = stored(&lab);
    lab.evaluator = new_evaluator(open.clone());
    // It has found them itself after their times, not because of the records.
    assert_eq!(lab.pass(3.9), [""; 0]);
    assert_eq!(lab.pass(600.0), ["=two-primaries", "=node-lost"]);
    assert_eq!(stored(&lab), open);
    lab.evaluator = new_evaluator(open.clone());
    lab.role("b", Backup);
    lab.cluster.heartbeat("c", 0);
    let changes = lab.pass_changes(0.0);
    let ids: Vec<&str> = changes
        .iter()
        .map(|change| match change {
            ClusterFindingChange::Closed(record) => record.id.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    let mut expected: Vec<&str> = open.iter().map(|record| record.id.as_str()).collect();
    expected.reverse();
    assert_eq!(ids, expected);
}

#[test]
fn a_new_reporter_closes_the_findings_of_groups_and_nodes_that_are_gone() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.role("b", Primary);
    lab.cluster.lose("c");
    assert_eq!(lab.pass(5.0).len(), 2);
    let mut cluster = TestCluster::new();
    cluster.start("a");
    let evaluator = new_evaluator(stored(&lab));
    let mut lab = Evaluation { cluster, evaluator, now: lab.now };
    assert_eq!(lab.evaluate(), ["-node-lost", "-two-primaries"]);
}

#[test]
fn a_new_reporter_closes_flapping_after_it_has_seen_ten_quiet_minutes() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    for _ in 0..3 {
        lab.role("a", Backup);
        lab.pass(1.0);
        lab.role("a", Primary);
        lab.pass(1.0);
    }
    let open = stored(&lab);
    assert_eq!(open.iter().map(short).collect::<Vec<_>>(), ["flapping"]);
    lab.evaluator = new_evaluator(open);
    assert_eq!(lab.pass(599.0), [""; 0]);
    assert_eq!(lab.pass(2.0), ["-flapping"]);
}

#[test]
fn the_end_of_a_finding_that_this_reporter_has_not_found_has_no_words_of_its_record() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Primary);
    lab.pass(5.0);
    let mut forged = stored(&lab).remove(0);
    forged.text = "a secret".to_owned();
    forged.evidence = vec!["a secret".to_owned()];
    forged.reporter = "a secret".to_owned();
    forged.notified_open = vec!["pager".to_owned()];
    // Two records about one subject: both end.
    let second = FindingRecord { id: "second".to_owned(), ..forged.clone() };
    lab.evaluator = new_evaluator([forged, second]);
    lab.role("b", Backup);
    let changes = lab.pass_changes(600.0);
    assert_eq!(changes.len(), 2, "{changes:?}");
    for change in changes {
        let ClusterFindingChange::Closed(record) = change else { panic!("{change:?}") };
        assert!(!format!("{record:?}").contains("secret"), "{record:?}");
        assert!(record.text.contains("vrrp:ipv4:51:192.0.2.80"), "{}", record.text);
        assert_eq!(record.notified_open, ["pager"]);
    }
}

#[test]
fn a_forged_finding_does_not_shorten_the_time_of_a_condition() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Primary);
    lab.pass(5.0);
    let mut forged = stored(&lab).remove(0);
    forged.text = "a secret".to_owned();
    lab.role("b", Backup);
    lab.pass(5.0);
    lab.evaluator = new_evaluator([forged]);
    // A failover, during which both nodes are primaries for a moment.
    lab.role("b", Primary);
    assert_eq!(lab.pass(1.0), [""; 0]);
    lab.role("a", Backup);
    assert_eq!(lab.pass(0.0), ["-two-primaries"]);
}

#[test]
fn a_finding_of_a_later_release_is_left_alone() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Primary);
    lab.pass(5.0);
    let mut record = stored(&lab).remove(0);
    record.name = "cluster-of-a-later-release".to_owned();
    lab.evaluator = new_evaluator([record]);
    lab.role("b", Backup);
    assert_eq!(lab.pass(600.0), [""; 0]);
}

#[test]
fn a_change_and_the_end_keep_the_targets_that_were_notified() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.role("b", Primary);
    assert_eq!(lab.pass(5.0), ["+two-primaries"]);
    let mut record = stored(&lab).remove(0);
    record.notified_open = vec!["pager".to_owned()];
    let id: FindingId = record.id.parse().unwrap();
    lab.cluster.put(&ClusterKey::Finding(id), encode(&record));
    lab.role("c", Primary);
    let changes = lab.changes();
    let [ClusterFindingChange::Changed(newer)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!((newer.nodes.len(), newer.notified_open.as_slice()), (3, &["pager".to_owned()][..]));
    assert_eq!(newer.opened, record.opened);
    lab.role("b", Backup);
    lab.role("c", Backup);
    let changes = lab.changes();
    let [ClusterFindingChange::Closed(closed)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(
        (closed.id.as_str(), closed.notified_open.as_slice()),
        (record.id.as_str(), &["pager".to_owned()][..])
    );
    assert!(closed.closed.is_some());
}

#[test]
fn each_opened_finding_has_an_id_that_is_a_valid_key() {
    let mut lab = Evaluation::new(&["a", "b"]);
    for number in 0..3 {
        let bucket = crate::sample::router(&format!("r{number}"));
        for node in ["a", "b"] {
            let record = role_record(node, &format!("r{number}"), Primary);
            lab.cluster.publish(&bucket, &record);
        }
    }
    lab.confirm();
    assert_eq!(lab.pass(5.0), ["+two-primaries"; 3]);
    let ids: BTreeSet<FindingId> =
        stored(&lab).iter().map(|record| record.id.parse().unwrap()).collect();
    assert_eq!(ids.len(), 3);
}

#[test]
fn the_words_of_a_finding_that_this_reporter_has_not_found_are_never_used() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.role("a", Backup);
    assert_eq!(lab.pass(20.0), ["+no-primary"]);
    let mut forged = stored(&lab).remove(0);
    forged.text = "call this number".to_owned();
    forged.part_of = Some("c".to_owned());
    // No condition holds: it is not known whether another node has the addresses.
    for node in ["b", "c"] {
        lab.cluster.lose(node);
    }
    let connected = Some(Moment::new(lab.now));
    lab.evaluator =
        Evaluator::new(EvaluatorSettings::default(), &"a".parse().unwrap(), connected, [forged]);
    let changes = lab.pass_changes(600.0);
    let is_forged = |change: &ClusterFindingChange| match change {
        ClusterFindingChange::Opened(record) | ClusterFindingChange::Changed(record) => {
            record.name.ends_with("primary")
        }
        ClusterFindingChange::Found { record, .. } => record.name.ends_with("primary"),
        ClusterFindingChange::Closed(_) => false,
    };
    assert!(!changes.iter().any(is_forged), "{changes:#?}");
}

// SPDX-License-Identifier: Apache-2.0
//! Neutron's `ha_state` against the view of the cluster.

use super::*;
use crate::neutron::{HaState, NeutronAnswer, NeutronHost};
use crate::sample::router;

/// The settle time in seconds.
const SETTLE: u32 = 60;

/// A router on the nodes a, b and c, with a reporter that compares it with Neutron.
struct RouterLab(Evaluation);

impl RouterLab {
    /// Node a has the primary.
    fn new() -> Self {
        let mut cluster = TestCluster::new();
        for node in ["a", "b", "c"] {
            cluster.start(node);
        }
        let now = Duration::from_secs(1000);
        let mut lab = Self(Evaluation { cluster, evaluator: comparing_evaluator([]), now });
        lab.primary("a");
        assert_eq!(lab.0.pass(20.0), [""; 0]);
        lab
    }

    /// The primary moves to a node.
    fn primary(&mut self, primary: &str) {
        for node in ["a", "b", "c"] {
            self.role(node, if node == primary { Primary } else { Backup });
        }
    }

    fn role(&mut self, node: &str, role: RoleKind) {
        self.0.cluster.publish(&router("r1"), &role_record(node, "r1", role));
        self.0.confirm();
    }

    /// Neutron answers now with these active hosts, and the reporter evaluates.
    fn neutron(&mut self, active: &[&str]) -> Vec<String> {
        words(self.neutron_changes(&["a", "b", "c"], active))
    }

    fn neutron_changes(&mut self, hosts: &[&str], active: &[&str]) -> Vec<ClusterFindingChange> {
        let host = |host: &&str| {
            let is_active = active.contains(host);
            let state = if is_active { HaState::Active } else { HaState::Standby };
            NeutronHost { host: (*host).to_owned(), state }
        };
        let answer = NeutronAnswer::new(hosts.iter().map(host).collect());
        let requested = Moment::new(self.0.now);
        self.0.evaluator.neutron_answered("r1".parse().unwrap(), answer, requested);
        self.0.changes()
    }

    fn pass(&mut self, seconds: u32) {
        assert_eq!(self.0.pass(f64::from(seconds)), [""; 0]);
    }
}

fn comparing_evaluator(open: impl IntoIterator<Item = FindingRecord>) -> Evaluator {
    let neutron_settle = Some(Duration::from_secs(SETTLE.into()));
    let settings = EvaluatorSettings { neutron_settle, ..EvaluatorSettings::default() };
    Evaluator::new(settings, &"a".parse().unwrap(), None, open)
}

#[test]
fn another_active_host_is_a_finding_after_a_second_answer_and_ends_with_the_next_equal_one() {
    let mut lab = RouterLab::new();
    assert_eq!(lab.neutron(&["b"]), [""; 0]);
    lab.pass(SETTLE - 1);
    assert_eq!(lab.neutron(&["b"]), [""; 0], "the settle time is not over");
    lab.pass(1);
    let changes = lab.neutron_changes(&["a", "b", "c"], &["b"]);
    let [ClusterFindingChange::Opened(record)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(record.name, "cluster-neutron-differs");
    assert_eq!(record.group.as_deref(), Some("router:r1"));
    assert_eq!(record.nodes, ["a", "b"]);
    assert_eq!(
        record.text,
        "node a holds the addresses of the group router:r1, and Neutron's active host is b"
    );
    assert_eq!(record.evidence[0], "Neutron has b as active");
    assert!(record.evidence.iter().any(|fact| fact.starts_with("node a is live and published")));
    assert_eq!(lab.neutron(&["b"]), [""; 0], "it is reported once");
    assert_eq!(lab.neutron(&["a"]), ["-neutron-differs"]);
}

#[test]
fn two_active_hosts_or_none_are_a_finding_that_changes_its_text() {
    let mut lab = RouterLab::new();
    assert_eq!(lab.neutron(&["a", "b"]), [""; 0]);
    lab.pass(SETTLE);
    let changes = lab.neutron_changes(&["a", "b", "c"], &["a", "b"]);
    let [ClusterFindingChange::Opened(record)] = changes.as_slice() else { panic!("{changes:?}") };
    assert!(record.text.ends_with("Neutron has the active hosts a and b"), "{}", record.text);
    let changes = lab.neutron_changes(&["a", "b", "c"], &[]);
    let [ClusterFindingChange::Changed(record)] = changes.as_slice() else { panic!("{changes:?}") };
    assert!(record.text.ends_with("Neutron has no active host"), "{}", record.text);
    assert_eq!(record.nodes, ["a"]);
}

#[test]
fn a_failover_that_neutron_learns_late_is_no_finding() {
    let mut lab = RouterLab::new();
    assert_eq!(lab.neutron(&["a"]), [""; 0]);
    lab.pass(3600);
    lab.primary("b");
    // The last answer is older than the failover, and proves nothing.
    lab.pass(SETTLE * 10);
    lab.primary("c");
    lab.pass(SETTLE - 1);
    assert_eq!(lab.neutron(&["a"]), [""; 0], "Neutron may not know it yet");
    lab.pass(1);
    assert_eq!(lab.neutron(&["c"]), [""; 0]);
}

#[test]
fn a_failover_that_neutron_never_learns_is_a_finding_with_the_first_answer_after_the_settle_time() {
    let mut lab = RouterLab::new();
    assert_eq!(lab.neutron(&["a"]), [""; 0]);
    lab.pass(3600);
    lab.primary("b");
    lab.pass(SETTLE);
    assert_eq!(lab.neutron(&["a"]), ["+neutron-differs"]);
    // The view returns to Neutron's host.
    lab.primary("a");
    assert_eq!(lab.0.evaluate(), ["-neutron-differs"]);
}

#[test]
fn each_change_of_a_side_begins_the_settle_time_again() {
    let mut lab = RouterLab::new();
    for active in ["b", "c", "b", "c"] {
        assert_eq!(lab.neutron(&[active]), [""; 0]);
        lab.pass(SETTLE - 1);
    }
    lab.0.evaluator.interrupt();
    assert_eq!(lab.neutron(&["c"]), [""; 0], "the view was stale meanwhile");
    lab.pass(SETTLE);
    assert_eq!(lab.neutron(&["c"]), ["+neutron-differs"]);
}

#[test]
fn the_finding_ends_when_neutron_no_longer_has_the_router_or_the_group_has_two_primaries() {
    for is_split in [false, true] {
        let mut lab = RouterLab::new();
        assert_eq!(lab.neutron(&["b"]), [""; 0]);
        lab.pass(SETTLE);
        assert_eq!(lab.neutron(&["b"]), ["+neutron-differs"]);
        if is_split {
            lab.role("b", Primary);
            assert_eq!(lab.0.evaluate(), ["-neutron-differs"]);
        } else {
            assert_eq!(words(lab.neutron_changes(&[], &[])), ["-neutron-differs"]);
        }
    }
}

#[test]
fn a_new_reporter_keeps_the_finding_until_neutron_has_answered() {
    let mut lab = RouterLab::new();
    assert_eq!(lab.neutron(&["b"]), [""; 0]);
    lab.pass(SETTLE);
    assert_eq!(lab.neutron(&["b"]), ["+neutron-differs"]);
    let open: Vec<FindingRecord> = lab.0.evaluator.open_findings().cloned().collect();
    lab.0.evaluator = comparing_evaluator(open.clone());
    lab.pass(3600);
    assert_eq!(lab.neutron(&["b"]), [""; 0]);
    assert_eq!(lab.neutron(&["a"]), ["-neutron-differs"]);
    // A reporter that does not ask Neutron cannot know whether it still holds.
    lab.0.evaluator = new_evaluator(open);
    assert_eq!(lab.0.evaluate(), ["-neutron-differs"]);
}

#[test]
fn routers_of_which_neutron_has_a_lost_host_as_active_are_a_part_of_that_node() {
    let mut lab = RouterLab::new();
    lab.0.cluster.lose("a");
    lab.role("b", Primary);
    lab.0.pass(f64::from(SETTLE));
    lab.neutron(&["a"]);
    lab.0.pass(f64::from(SETTLE));
    lab.neutron(&["a"]);
    let found = lab.0.evaluator.open_findings().find(|it| it.name == "cluster-neutron-differs");
    assert_eq!(found.unwrap().part_of.as_deref(), Some("a"));
}

// SPDX-License-Identifier: Apache-2.0
//! A silence covers the findings about what it names, and no others.

use super::*;

/// The names of the open findings, with `(silenced)` behind those that are.
fn open_findings(lab: &Evaluation) -> Vec<String> {
    let name = |record: &FindingRecord| {
        let mark = if record.silenced.is_some() { " (silenced)" } else { "" };
        format!("{}{mark}", short(record))
    };
    lab.evaluator.open_findings().map(name).collect()
}

const GROUP: &str = "vrrp:ipv4:51:192.0.2.80";

#[test]
fn a_silence_of_a_node_covers_its_loss_and_the_backup_that_it_was() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.cluster.silence("b.1", Some("b"), None);
    lab.cluster.lose("b");
    assert_eq!(lab.pass(61.0), ["+node-lost", "+too-few-backups"]);
    assert_eq!(open_findings(&lab), ["too-few-backups (silenced)", "node-lost (silenced)"]);
    // What is still open when the silence ends is no longer silenced.
    lab.cluster.end_silence("b.1");
    assert_eq!(lab.evaluate(), ["~too-few-backups", "~node-lost"]);
    assert_eq!(open_findings(&lab), ["too-few-backups", "node-lost"]);
}

#[test]
fn a_backup_that_is_missing_on_another_node_too_is_not_covered() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.cluster.silence("b.1", Some("b"), None);
    for node in ["b", "c"] {
        let findings = vec!["keepalived-gone".to_owned()];
        lab.publish(&RoleRecord { findings, ..role_record(node, "VI_1", Backup) });
    }
    lab.pass(61.0);
    assert_eq!(open_findings(&lab), ["too-few-backups"]);
}

#[test]
fn a_silence_of_one_node_hides_no_split_with_another() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.cluster.silence("a.1", Some("a"), None);
    lab.role("b", Primary);
    lab.pass(5.0);
    assert_eq!(open_findings(&lab), ["two-primaries"]);
    lab.cluster.silence("b.1", Some("b"), None);
    assert_eq!(lab.evaluate(), ["~two-primaries"]);
    assert_eq!(open_findings(&lab), ["two-primaries (silenced)"]);
}

#[test]
fn a_group_and_its_instances_on_all_nodes_can_be_silenced() {
    for silences in [
        &[("x", None, Some(GROUP))][..],
        &[("a.1", Some("a"), Some(GROUP)), ("b.1", Some("b"), Some(GROUP))],
    ] {
        let mut lab = Evaluation::new(&["a", "b"]);
        for (id, node, group) in silences {
            lab.cluster.silence(id, *node, *group);
        }
        lab.role("a", Backup);
        lab.pass(20.0);
        assert_eq!(open_findings(&lab), ["no-primary (silenced)"]);
    }
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.cluster.silence("x", None, Some("vrrp:ipv4:51:192.0.2.81"));
    lab.cluster.silence("a.1", Some("a"), Some(GROUP));
    lab.role("a", Backup);
    lab.pass(20.0);
    assert_eq!(open_findings(&lab), ["no-primary"], "another group, and one of two nodes");
}

// SPDX-License-Identifier: Apache-2.0
//! A silence covers the findings about what it names, and no others; and the finding of a node that is away stands for those of
//! its groups.

use super::*;

/// The names of the open findings, with `(silenced)` behind those that are.
fn open_findings(lab: &Evaluation) -> Vec<String> {
    let name = |record: &FindingRecord| {
        let mark = if record.silenced.is_some() { " (silenced)" } else { "" };
        let part = record.part_of.as_ref().map(|node| format!(" (of {node})")).unwrap_or_default();
        format!("{}{mark}{part}", short(record))
    };
    lab.evaluator.open_findings().map(name).collect()
}

const GROUP: &str = "vrrp:ipv4:51:192.0.2.80";

#[test]
fn a_silence_of_a_node_covers_its_loss_and_the_backup_that_it_was() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.cluster.silence("b.1", Some("b"), None);
    lab.cluster.lose("b");
    lab.pass(61.0);
    assert_eq!(open_findings(&lab), ["too-few-backups (silenced) (of b)", "node-lost (silenced)"]);
    // What is still open when the silence ends is no longer silenced.
    lab.cluster.end_silence("b.1");
    lab.evaluate();
    assert_eq!(open_findings(&lab), ["too-few-backups (of b)", "node-lost"]);
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

/// A second group of VRID 51 on these nodes, with the roles.
fn second_group(lab: &mut Evaluation, roles: &[(&str, RoleKind)]) {
    for (node, role) in roles {
        let addresses = vec!["192.0.2.90/24".parse().unwrap()];
        lab.publish(&RoleRecord { addresses, ..role_record(node, "VI_2", *role) });
    }
    lab.confirm();
}

#[test]
fn a_lost_node_is_one_message_with_the_groups_that_miss_it() {
    let mut lab = Evaluation::new(&["a", "b"]);
    second_group(&mut lab, &[("a", Primary), ("b", Backup)]);
    lab.cluster.lose("b");
    let opened = lab.pass_changes(4.0);
    let [ClusterFindingChange::Opened(lost)] = opened.as_slice() else { panic!("{opened:?}") };
    let end = "without it: 2: vrrp:ipv4:51:192.0.2.80, vrrp:ipv4:51:192.0.2.90";
    assert!(lost.text.ends_with(end), "{}", lost.text);
    lab.pass(57.0);
    let parts = ["too-few-backups (of b)", "too-few-backups (of b)", "node-lost"];
    assert_eq!(open_findings(&lab), parts);
    // The node is back without its keepalived: now the groups have findings of their own.
    lab.cluster.start("b");
    let findings = vec!["keepalived-gone".to_owned()];
    lab.publish(&RoleRecord { findings, ..role_record("b", "VI_1", Backup) });
    lab.pass(1.0);
    assert_eq!(open_findings(&lab), ["too-few-backups (of b)"], "its keepalived may start later");
    lab.pass(300.0);
    assert_eq!(open_findings(&lab), ["too-few-backups"]);
}

#[test]
fn groups_that_lose_their_primary_with_a_node_are_one_finding() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    second_group(&mut lab, &[("a", Primary), ("b", Backup), ("c", Backup)]);
    lab.cluster.lose("a");
    // The adverts have ended, and nobody takes over.
    for (instance, address) in [("VI_1", "192.0.2.80/24"), ("VI_2", "192.0.2.90/24")] {
        let addresses = vec![address.parse().unwrap()];
        let adverts = crate::record::ReceivedAdverts::None;
        lab.publish(&RoleRecord { addresses, adverts, ..role_record("b", instance, Backup) });
    }
    lab.pass(20.0);
    let expected =
        ["no-primary (of a)", "no-primary (of a)", "groups-without-primary", "node-lost"];
    assert_eq!(open_findings(&lab), expected);
    let grouped = lab.evaluator.open_findings().find(|one| one.name.ends_with("without-primary"));
    let text = "2 groups are without a primary since node a is away: vrrp:ipv4:51:192.0.2.80, vrrp:ipv4:51:192.0.2.90";
    assert_eq!(grouped.unwrap().text, text);
    lab.role("b", Primary);
    lab.pass(1.0);
    assert!(!open_findings(&lab).is_empty());
    second_group(&mut lab, &[("b", Primary)]);
    let closed = lab.pass(1.0);
    assert!(closed.contains(&"-groups-without-primary".to_owned()), "{closed:?}");
    assert_eq!(open_findings(&lab), ["node-lost"]);
}

#[test]
fn a_silenced_node_that_is_stopped_hides_no_group_without_a_primary() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.cluster.silence("a.1", Some("a"), None);
    lab.cluster.stop("a");
    let adverts = crate::record::ReceivedAdverts::None;
    lab.publish(&RoleRecord { adverts, ..role_record("b", "VI_1", Backup) });
    lab.pass(20.0);
    assert_eq!(open_findings(&lab), ["no-primary (of a)", "groups-without-primary"]);
}

/// Node a was the primary, and is lost. No other node receives an advert.
fn without_primary(nodes: &[&str]) -> Evaluation {
    let mut lab = Evaluation::new(nodes);
    lab.cluster.lose("a");
    for node in &nodes[1..] {
        silent_backup(&mut lab, node);
    }
    lab
}

fn silent_backup(lab: &mut Evaluation, node: &str) {
    let adverts = crate::record::ReceivedAdverts::None;
    lab.publish(&RoleRecord { adverts, ..role_record(node, "VI_1", Backup) });
    lab.confirm();
}

#[test]
fn an_outage_after_a_takeover_is_no_part_of_the_node_that_was_lost_before() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.cluster.lose("a");
    lab.role("b", Primary);
    lab.pass(20.0);
    assert_eq!(open_findings(&lab), ["node-lost"]);
    for node in ["b", "c"] {
        silent_backup(&mut lab, node);
    }
    lab.pass(20.0);
    assert_eq!(open_findings(&lab), ["no-primary", "node-lost"]);
}

#[test]
fn a_group_without_a_primary_is_a_part_of_a_lost_node_until_some_time_after_its_return() {
    let mut lab = without_primary(&["a", "b", "c"]);
    lab.pass(20.0);
    let grouped = ["no-primary (of a)", "groups-without-primary", "node-lost"];
    assert_eq!(open_findings(&lab), grouped);
    // The adverts are not known any more: no evidence of another reason.
    for node in ["b", "c"] {
        lab.role(node, Backup);
    }
    lab.pass(1.0);
    assert_eq!(open_findings(&lab), grouped);
    lab.cluster.start("a");
    lab.role("a", Backup);
    lab.pass(299.0);
    assert_eq!(open_findings(&lab), ["no-primary (of a)", "groups-without-primary"]);
    lab.pass(2.0);
    assert_eq!(open_findings(&lab), ["no-primary"]);
}

#[test]
fn after_a_connection_the_groups_of_a_lost_node_are_one_finding_at_once() {
    let mut lab = without_primary(&["a", "b", "c"]);
    lab.evaluator.interrupt();
    lab.pass(14.0);
    assert_eq!(open_findings(&lab), ["no-primary (of a)", "groups-without-primary"]);
    lab.pass(1.5);
    let all = ["no-primary (of a)", "groups-without-primary", "node-lost"];
    assert_eq!(open_findings(&lab), all);
}

#[test]
fn a_group_that_the_agent_of_a_silenced_node_leaves_is_silenced() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.cluster.silence("b.1", Some("b"), None);
    lab.cluster.delete(&crate::sample::role_key(&vrid_51(), "b", "VI_1"));
    lab.confirm();
    lab.pass(61.0);
    assert_eq!(open_findings(&lab), ["too-few-backups (silenced)"]);
    // The next reporter has not seen the node leave.
    let open: Vec<FindingRecord> = lab.evaluator.open_findings().cloned().collect();
    lab.evaluator = new_evaluator(open);
    lab.pass(90.0);
    assert_eq!(open_findings(&lab), ["too-few-backups (silenced)"]);
    lab.cluster.end_silence("b.1");
    lab.cluster.silence("a.1", Some("a"), None);
    lab.evaluate();
    assert_eq!(open_findings(&lab), ["too-few-backups"], "the primary is not what is missing");
}

#[test]
fn a_node_that_left_while_there_were_enough_backups_is_not_missed_later() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.cluster.delete(&crate::sample::role_key(&vrid_51(), "c", "VI_1"));
    lab.confirm();
    lab.pass(61.0);
    lab.cluster.silence("b.1", Some("b"), None);
    let findings = vec!["keepalived-gone".to_owned()];
    lab.publish(&RoleRecord { findings, ..role_record("b", "VI_1", Backup) });
    lab.pass(61.0);
    assert_eq!(open_findings(&lab), ["too-few-backups (silenced)"]);
}

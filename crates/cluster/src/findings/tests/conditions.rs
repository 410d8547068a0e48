// SPDX-License-Identifier: Apache-2.0
//! The condition and the times of each finding.

use vipwatch_api::Severity;
use vipwatch_core::audit::{AgentKnowledge, AuditFacts, MonitorReport, StateFileContent};
use vipwatch_core::finding::FindingEvidence;
use vipwatch_core::{NeutronState, ReportedState, Role};

use super::*;
use crate::key::Bucket;
use crate::record::{Confidence, ReceivedAdverts};
use crate::sample::role_key;

#[test]
fn two_primaries_are_found_after_an_advert_and_the_settle_time_and_close_at_once() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Partial);
    assert_eq!(lab.pass(3.9), [""; 0]);
    let changes = lab.pass_changes(0.2);
    let [ClusterFindingChange::Opened(record)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(record.name, "cluster-two-primaries");
    assert_eq!((record.severity, record.confidence), (Severity::Critical, Confidence::Certain));
    assert_eq!(record.group.as_deref(), Some("vrrp:ipv4:51:192.0.2.80"));
    assert_eq!(record.nodes, ["a", "b"]);
    assert!(record.text.starts_with("nodes a and b hold addresses"), "{}", record.text);
    assert!(record.evidence.iter().any(|fact| fact.contains("confirmed its roles after revision")));
    assert_eq!(lab.pass(600.0), [""; 0], "it is reported once");
    lab.role("b", Backup);
    assert_eq!(lab.evaluate(), ["-two-primaries"]);
}

#[test]
fn a_restart_of_a_node_does_not_end_two_primaries() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Primary);
    assert_eq!(lab.pass(5.0), ["+two-primaries"]);
    lab.cluster.stop("b");
    let changes = lab.pass_changes(1.0);
    let [ClusterFindingChange::Changed(record)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(record.confidence, Confidence::Probable);
    assert!(record.text.ends_with("and b may hold them still"), "{}", record.text);
    // The new process publishes the same role, and is not confirmed at once.
    lab.cluster.start("b");
    assert_eq!(lab.pass(2.0), ["~two-primaries"]);
    lab.role("b", Primary);
    assert_eq!(lab.pass(600.0), [""; 0]);
    lab.role("b", Backup);
    assert_eq!(lab.evaluate(), ["-two-primaries"]);
}

#[test]
fn two_primaries_end_a_lease_after_a_node_of_them_was_stopped_or_lost() {
    for is_stopped in [true, false] {
        let mut lab = Evaluation::new(&["a", "b", "c"]);
        lab.role("b", Primary);
        assert_eq!(lab.pass(5.0), ["+two-primaries"]);
        if is_stopped {
            lab.cluster.stop("b");
        } else {
            lab.cluster.lose("b");
        }
        let early = lab.pass(14.9);
        assert!(!early.iter().any(|change| change == "-two-primaries"), "{early:?}");
        assert_eq!(lab.pass(0.2), ["-two-primaries"]);
    }
}

#[test]
fn the_addresses_that_a_node_has_given_up_before_it_stopped_are_no_second_primary() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.role("b", Primary);
    assert_eq!(lab.pass(5.0), ["+two-primaries"]);
    lab.role("b", Backup);
    lab.cluster.stop("b");
    assert_eq!(lab.evaluate(), ["-two-primaries"]);
}

#[test]
fn a_backup_whose_keepalived_is_dead_is_no_backup() {
    for name in ["keepalived-gone", "keepalived-frozen", "keepalived-crash-loop"] {
        let mut lab = Evaluation::new(&["a", "b"]);
        let findings = vec![name.to_owned()];
        lab.publish(&RoleRecord { findings, ..role_record("b", "VI_1", Backup) });
        let changes = lab.pass_changes(61.0);
        let [ClusterFindingChange::Opened(record)] = changes.as_slice() else {
            panic!("{changes:?}")
        };
        assert_eq!(record.name, "cluster-too-few-backups");
        assert!(record.text.ends_with(&format!("; b has {name}")), "{}", record.text);
        lab.role("b", Backup);
        assert_eq!(lab.evaluate(), ["-too-few-backups"]);
    }
}

#[test]
fn a_primary_on_a_node_without_vipwatch_is_no_missing_primary() {
    let mut lab = Evaluation::new(&["a", "b"]);
    let hearing = |node: &str| RoleRecord {
        adverts: ReceivedAdverts::Other,
        ..role_record(node, "VI_1", Backup)
    };
    lab.publish(&hearing("a"));
    lab.publish(&hearing("b"));
    lab.confirm();
    let group = lab.cluster.view.groups().next().unwrap();
    assert_eq!(group.state(), vipwatch_api::GroupState::Unknown);
    assert_eq!(lab.pass(600.0), [""; 0]);
    // The adverts end.
    lab.role("a", Backup);
    lab.role("b", Backup);
    assert_eq!(lab.pass(12.0), ["+no-primary"]);
}

#[test]
fn a_missing_backup_of_a_group_that_only_one_node_knows_is_probable() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.cluster.delete(&role_key(&vrid_51(), "b", "VI_1"));
    let changes = lab.pass_changes(61.0);
    let [ClusterFindingChange::Opened(record)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(record.name, "cluster-too-few-backups");
    assert_eq!(record.confidence, Confidence::Probable, "the others may run without vipwatch");
}

#[test]
fn a_stopped_backup_does_not_hide_that_two_live_nodes_have_no_primary() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.cluster.stop("c");
    assert_eq!(lab.pass(600.0), [""; 0]);
    lab.role("a", Backup);
    let changes = lab.pass_changes(12.0);
    let [ClusterFindingChange::Opened(record)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(
        (record.name.as_str(), record.confidence),
        ("cluster-no-primary", Confidence::Probable)
    );
    lab.role("b", Primary);
    assert_eq!(lab.evaluate(), ["-no-primary"]);
    // The primary may be a keepalived that runs on while vipwatch is stopped.
    lab.role("b", Backup);
    lab.cluster.start("c");
    lab.role("c", Primary);
    lab.cluster.stop("c");
    assert_eq!(lab.pass(600.0), [""; 0]);
}

#[test]
fn a_successor_that_was_connected_reports_a_lost_node_after_the_settle_time() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.cluster.lose("b");
    let connected = Some(Moment::new(Duration::from_secs(100)));
    let name = "a".parse().unwrap();
    lab.evaluator = Evaluator::new(EvaluatorSettings::default(), &name, connected, []);
    assert_eq!(lab.pass(2.9), [""; 0]);
    assert_eq!(lab.pass(0.2), ["+node-lost"]);
    // After an interruption, nodes have a lease to come back.
    lab.cluster.start("b");
    assert_eq!(lab.pass(1.0), ["-node-lost"]);
    lab.evaluator.interrupt();
    lab.cluster.lose("b");
    assert_eq!(lab.pass(14.9), [""; 0]);
    assert_eq!(lab.pass(0.2), ["+node-lost"]);
}

#[test]
fn a_longer_advert_interval_gives_the_election_more_time() {
    let mut lab = Evaluation::new(&["a", "b"]);
    for (node, role) in [("a", Primary), ("b", Primary)] {
        let record = RoleRecord { advert_ms: Some(10_000), ..role_record(node, "VI_1", role) };
        lab.publish(&record);
    }
    lab.confirm();
    assert_eq!(lab.pass(12.9), [""; 0]);
    assert_eq!(lab.pass(0.2), ["+two-primaries"]);
}

#[test]
fn the_overlap_of_a_normal_election_is_not_two_primaries() {
    let mut lab = Evaluation::new(&["a", "b"]);
    for _ in 0..2 {
        lab.role("b", Primary);
        assert_eq!(lab.pass(3.0), [""; 0]);
        lab.role("a", Backup);
        assert_eq!(lab.pass(400.0), [""; 0]);
        lab.role("a", Primary);
        lab.role("b", Backup);
        assert_eq!(lab.pass(400.0), [""; 0]);
    }
}

#[test]
fn a_crashed_node_does_not_confirm_so_its_claim_is_not_a_second_primary() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    // Node a crashes; its lease lasts 15 seconds more.
    lab.cluster.role("b", Primary);
    for _ in 0..3 {
        lab.cluster.confirm(&["b", "c"]);
        assert_eq!(lab.pass(5.0), [""; 0]);
    }
    lab.cluster.lose("a");
    assert_eq!(lab.pass(2.9), [""; 0]);
    assert_eq!(lab.pass(0.2), ["+node-lost"]);
    assert_eq!(lab.pass(600.0), [""; 0], "c is still a backup");
}

#[test]
fn a_crashed_node_with_an_old_claim_does_not_hide_two_others() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    // Node a crashes, and both others take over.
    lab.cluster.role("b", Primary);
    lab.cluster.role("c", Primary);
    lab.cluster.confirm(&["b", "c"]);
    let changes = lab.pass_changes(5.0);
    let [ClusterFindingChange::Opened(record)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(
        (short(record), record.nodes.join(" ")),
        ("two-primaries".to_owned(), "b c".to_owned())
    );
}

#[test]
fn the_time_of_two_primaries_begins_with_the_confirmation() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.cluster.role("b", Primary);
    lab.cluster.confirm(&["b"]);
    assert_eq!(lab.pass(100.0), [""; 0]);
    lab.cluster.confirm(&["a"]);
    assert_eq!(lab.pass(3.9), [""; 0]);
    assert_eq!(lab.pass(0.2), ["+two-primaries"]);
}

#[test]
fn a_changed_record_of_a_claim_neither_ends_two_primaries_nor_begins_their_time_again() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Primary);
    assert_eq!(lab.pass(3.0), [""; 0]);
    let mut record = role_record("b", "VI_1", Primary);
    record.findings = vec!["two-primaries".to_owned()];
    lab.publish(&record);
    assert_eq!(lab.pass(0.5), [""; 0]);
    lab.confirm();
    assert_eq!(lab.pass(1.0), ["+two-primaries"]);
    record.findings.clear();
    lab.publish(&record);
    assert_eq!(lab.pass(10.0), [""; 0]);
    lab.confirm();
    lab.role("b", Backup);
    assert_eq!(lab.pass(0.0), ["-two-primaries"]);
}

#[test]
fn two_primaries_wait_for_the_confirmation_of_a_changed_record() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Primary);
    assert_eq!(lab.pass(3.0), [""; 0]);
    let mut record = role_record("b", "VI_1", Primary);
    record.findings = vec!["two-primaries".to_owned()];
    lab.publish(&record);
    assert_eq!(lab.pass(30.0), [""; 0]);
    lab.confirm();
    assert_eq!(lab.pass(0.0), ["+two-primaries"]);
}

#[test]
fn a_group_without_a_primary_is_found_after_four_adverts_and_the_settle_time() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("a", Fault);
    assert_eq!(lab.pass(6.9), [""; 0]);
    assert_eq!(lab.pass(0.2), ["+no-primary"]);
    lab.role("b", Primary);
    assert_eq!(lab.evaluate(), ["-no-primary"]);
}

#[test]
fn without_one_of_its_nodes_a_group_has_no_primary_only_if_a_backup_receives_no_adverts() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.cluster.stop("a");
    assert_eq!(lab.pass(600.0), [""; 0], "keepalived on node a may run");
    lab.publish(&RoleRecord {
        adverts: ReceivedAdverts::Other,
        ..role_record("b", "VI_1", Backup)
    });
    assert_eq!(lab.pass(600.0), [""; 0]);
    lab.publish(&RoleRecord { adverts: ReceivedAdverts::None, ..role_record("b", "VI_1", Backup) });
    assert_eq!(lab.pass(6.9), [""; 0]);
    let changes = lab.pass_changes(0.2);
    let [ClusterFindingChange::Opened(record)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!((short(record), record.confidence), ("no-primary".to_owned(), Confidence::Probable));
    lab.publish(&RoleRecord {
        adverts: ReceivedAdverts::Other,
        ..role_record("b", "VI_1", Backup)
    });
    assert_eq!(lab.evaluate(), ["-no-primary"]);
}

#[test]
fn a_backup_that_receives_adverts_shows_that_a_stopped_node_is_primary() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.publish(&RoleRecord {
        adverts: ReceivedAdverts::Other,
        ..role_record("b", "VI_1", Backup)
    });
    lab.publish(&RoleRecord { adverts: ReceivedAdverts::None, ..role_record("c", "VI_1", Backup) });
    lab.cluster.stop("a");
    assert_eq!(lab.pass(600.0), [""; 0], "b receives the adverts of keepalived on node a");
    lab.publish(&RoleRecord {
        adverts: ReceivedAdverts::Unknown,
        ..role_record("b", "VI_1", Backup)
    });
    assert_eq!(lab.pass(600.0), ["+no-primary"]);
    lab.publish(&RoleRecord {
        adverts: ReceivedAdverts::Other,
        ..role_record("b", "VI_1", Backup)
    });
    assert_eq!(lab.evaluate(), ["-no-primary"]);
    // A node that is not live receives nothing.
    lab.cluster.lose("b");
    assert_eq!(lab.pass(7.1), ["+node-lost", "+no-primary"]);
}

#[test]
fn a_group_on_one_node_has_no_primary_only_if_that_node_receives_no_adverts() {
    let mut lab = Evaluation::new(&["a"]);
    lab.cluster.start("b");
    lab.role("a", Backup);
    assert_eq!(lab.pass(600.0), [""; 0], "the primary may be on a node without vipwatch");
    lab.publish(&RoleRecord { adverts: ReceivedAdverts::None, ..role_record("a", "VI_1", Backup) });
    assert_eq!(lab.pass(600.0), ["+no-primary"]);
}

#[test]
fn a_primary_without_a_live_backup_is_found_after_the_slow_settle_time() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Fault);
    assert_eq!(lab.pass(59.9), [""; 0]);
    let changes = lab.pass_changes(0.2);
    let [ClusterFindingChange::Opened(record)] = changes.as_slice() else { panic!("{changes:?}") };
    let expected = ("too-few-backups".to_owned(), Confidence::Certain);
    assert_eq!((short(record), record.confidence), expected);
    lab.cluster.stop("b");
    assert_eq!(lab.evaluate(), ["~too-few-backups"], "now it is only probable");
    lab.cluster.start("b");
    lab.role("b", Backup);
    assert_eq!(lab.evaluate(), ["-too-few-backups"]);
}

#[test]
fn backups_are_not_missed_in_a_domain_of_one_node_nor_if_none_is_wanted() {
    let mut lab = Evaluation::new(&["a"]);
    assert_eq!(lab.pass(600.0), [""; 0]);
    lab.cluster.start("b");
    assert_eq!(lab.pass(60.0), ["+too-few-backups"], "a node without the instance joined");
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.evaluator.settings.min_backups = 0;
    lab.role("b", Fault);
    assert_eq!(lab.pass(600.0), [""; 0]);
}

#[test]
fn an_instance_that_is_alone_needs_no_backup() {
    let mut lab = Evaluation::new(&["a", "b"]);
    let bucket = Bucket::Alone { node: "a".parse().unwrap(), instance: "x".parse().unwrap() };
    lab.cluster.publish(&bucket, &role_record("a", "x", Primary));
    assert_eq!(lab.pass(600.0), [""; 0]);
}

#[test]
fn a_lost_node_is_found_and_a_stopped_one_is_not() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.cluster.stop("c");
    assert_eq!(lab.pass(600.0), [""; 0]);
    lab.cluster.start("c");
    lab.cluster.lose("c");
    assert_eq!(lab.pass(2.9), [""; 0]);
    let changes = lab.pass_changes(0.2);
    let [ClusterFindingChange::Opened(record)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!((record.name.as_str(), record.group.as_deref()), ("cluster-node-lost", None));
    assert_eq!(record.nodes, ["c"]);
    lab.cluster.heartbeat("c", 0);
    assert_eq!(lab.evaluate(), ["-node-lost"]);
    // A restart within the settle time is not found.
    lab.cluster.lose("c");
    assert_eq!(lab.pass(2.0), [""; 0]);
    lab.cluster.start("c");
    assert_eq!(lab.pass(600.0), [""; 0]);
}

#[test]
fn a_claim_of_a_lost_node_is_not_a_second_primary() {
    let mut lab = Evaluation::new(&["a", "b", "c"]);
    lab.cluster.lose("a");
    lab.role("b", Primary);
    assert_eq!(lab.pass(600.0), ["+node-lost"]);
}

/// The names that the audit gives to differences between the kernel and other sources.
fn audited(change: impl FnOnce(&mut AuditFacts)) -> Vec<String> {
    let mut facts = AuditFacts::new(Role::Primary);
    change(&mut facts);
    facts.findings().iter().map(|finding| finding.kind.name().to_owned()).collect()
}

#[test]
fn each_difference_between_the_kernel_and_another_source_is_a_disagreement() {
    let report =
        |is_current| Some(MonitorReport::State { state: ReportedState::Backup, is_current });
    let differences = [
        audited(|facts| facts.published = Some(Role::Backup)),
        audited(|facts| facts.file = Some(StateFileContent::NeutronState(NeutronState::Backup))),
        audited(|facts| facts.file = Some(StateFileContent::Invalid("boss".to_owned()))),
        audited(|facts| facts.file = Some(StateFileContent::Missing)),
        audited(|facts| facts.agent = Some(AgentKnowledge::default())),
        audited(|facts| facts.reported = report(true)),
        audited(|facts| facts.reported = report(false)),
    ];
    let mut names: Vec<String> = differences.into_iter().flatten().collect();
    names.sort();
    let is_disagreement = |kind: &&FindingKind| kind.evidence() == FindingEvidence::OtherSource;
    let kinds = FindingKind::ALL.iter().filter(is_disagreement);
    assert_eq!(names, kinds.map(|kind| kind.name()).collect::<Vec<_>>());
    for name in names {
        let mut lab = Evaluation::new(&["a", "b"]);
        let findings = vec![name.clone()];
        lab.publish(&RoleRecord { findings, ..role_record("b", "VI_1", Backup) });
        assert_eq!(lab.pass(59.9), [""; 0], "{name}");
        let changes = lab.pass_changes(0.2);
        let [ClusterFindingChange::Opened(record)] = changes.as_slice() else {
            panic!("{changes:?}")
        };
        assert_eq!(
            (short(record), record.nodes.as_slice()),
            ("disagreement".to_owned(), &["b".to_owned()][..])
        );
        assert!(record.text.contains(&name), "{}", record.text);
        lab.role("b", Backup);
        assert_eq!(lab.evaluate(), ["-disagreement"]);
    }
}

#[test]
fn other_local_findings_are_evidence_and_not_a_disagreement() {
    let mut lab = Evaluation::new(&["a", "b"]);
    let findings = vec!["two-primaries".to_owned()];
    lab.publish(&RoleRecord { findings, ..role_record("b", "VI_1", Backup) });
    assert_eq!(lab.pass(600.0), [""; 0]);
    let findings = vec!["two-primaries".to_owned()];
    let adverts = ReceivedAdverts::Other;
    lab.publish(&RoleRecord { adverts, findings, ..role_record("b", "VI_1", Primary) });
    lab.confirm();
    let changes = lab.pass_changes(5.0);
    let [ClusterFindingChange::Opened(record)] = changes.as_slice() else { panic!("{changes:?}") };
    let has = |text: &str| record.evidence.iter().any(|fact| fact == text);
    assert!(has("node b itself has found: two-primaries"), "{:?}", record.evidence);
    assert!(has("node b receives adverts of another node"), "{:?}", record.evidence);
}

#[test]
fn live_members_with_different_settings_are_found() {
    let base = || role_record("b", "VI_1", Backup);
    let two = vec!["192.0.2.80/24".parse().unwrap(), "192.0.2.81/24".parse().unwrap()];
    let cases = [
        (RoleRecord { addresses: two, ..base() }, "192.0.2.81/24 on b"),
        (RoleRecord { advert_ms: Some(2000), ..base() }, "1000 ms on a, 2000 ms on b"),
        (RoleRecord { vrrp_version: Some(3), ..base() }, "VRRP version 2 on a, 3 on b"),
        (RoleRecord { vrid: Some(52), ..base() }, "VRID 51 on a, 52 on b"),
    ];
    for (record, text) in cases {
        let mut lab = Evaluation::new(&["a", "b"]);
        lab.publish(&record);
        assert_eq!(lab.pass(59.9), [""; 0], "{text}");
        let changes = lab.pass_changes(0.2);
        let [ClusterFindingChange::Opened(found)] = changes.as_slice() else {
            panic!("{changes:?}")
        };
        assert_eq!(short(found), "different-configuration");
        assert!(found.text.contains(text), "{}", found.text);
        lab.cluster.stop("b");
        assert_eq!(lab.evaluate(), ["-different-configuration"]);
    }
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.publish(&RoleRecord { vrrp_version: None, advert_ms: None, vrid: None, ..base() });
    assert_eq!(lab.pass(600.0), [""; 0], "values that are not known do not differ");
}

#[test]
fn an_ambiguous_group_has_that_finding_only() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Primary);
    assert_eq!(lab.pass(5.0), ["+two-primaries"]);
    lab.publish(&role_record("b", "VI_2", Primary));
    assert_eq!(lab.pass(2.9), ["-two-primaries"]);
    assert_eq!(lab.pass(0.2), ["+ambiguous-group"]);
    assert_eq!(lab.pass(600.0), [""; 0]);
    lab.cluster.delete(&role_key(&vrid_51(), "b", "VI_2"));
    assert_eq!(lab.pass(5.0), ["-ambiguous-group", "+two-primaries"]);
}

#[test]
fn two_groups_that_share_an_address_are_both_ambiguous_until_they_do_not() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.cluster.start("c");
    let bucket = Bucket::Configured("web".parse().unwrap());
    lab.cluster.publish(&bucket, &role_record("c", "VI_1", Primary));
    assert_eq!(lab.pass(5.0), ["+ambiguous-group", "+ambiguous-group"]);
    lab.cluster.delete(&role_key(&bucket, "c", "VI_1"));
    assert_eq!(lab.pass(600.0), ["-ambiguous-group", "-ambiguous-group"]);
}

#[test]
fn the_findings_of_a_group_that_is_gone_are_closed() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Primary);
    assert_eq!(lab.pass(5.0), ["+two-primaries"]);
    lab.cluster.delete(&role_key(&vrid_51(), "a", "VI_1"));
    lab.cluster.delete(&role_key(&vrid_51(), "b", "VI_1"));
    assert_eq!(lab.pass(600.0), ["-two-primaries"]);
}

#[test]
fn a_restart_of_the_primarys_node_does_not_end_that_backups_are_missing() {
    let mut lab = Evaluation::new(&["a", "b"]);
    lab.role("b", Fault);
    assert_eq!(lab.pass(61.0), ["+too-few-backups"]);
    for _ in 0..2 {
        lab.cluster.stop("a");
        assert_eq!(lab.pass(5.0), [""; 0]);
        lab.cluster.start("a");
        lab.role("a", Primary);
        assert_eq!(lab.pass(20.0), [""; 0]);
    }
    lab.cluster.stop("a");
    assert_eq!(lab.pass(16.0), ["-too-few-backups"], "nobody knows whether it is the primary");
}

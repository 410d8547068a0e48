// SPDX-License-Identifier: Apache-2.0
//! One node reports the findings of the cluster.

use std::sync::atomic::Ordering;
use std::time::Duration;

use vipwatch_api::{ClusterScope, RoleKind};
use vipwatch_cluster::etcd::messages::RequestOp;
use vipwatch_cluster::record::FindingRecord;
use vipwatch_cluster::session::{ClusterEvent, DeliveredFinding};
use vipwatch_cluster::view::MAX_SILENCES_OF_NODE;
use vipwatch_testkit::{Etcd, Lab, wait_for, wait_showing};

use crate::node::{TestNode, lasting_session, role_of, session, silence};
use crate::support::{block_on, connect, settings};

use RoleKind::{Backup, Primary};

const TWO: &str = "cluster-two-primaries";

const REPORTER: &str = "/vipwatch/v1/test/reporter";

/// The record of another process.
const OTHER: &str = r#"{"schema":1,"node":"x","process":"x","at":"2026-01-01T00:00:00Z"}"#;

/// The findings with this name in the events of the node, open and closed.
fn notified(node: &TestNode, name: &str) -> (Vec<FindingRecord>, Vec<FindingRecord>) {
    let (mut open, mut closed) = (Vec::new(), Vec::new());
    for event in node.side.events() {
        match event {
            ClusterEvent::FindingOpen(record) if record.name == name => open.push(*record),
            ClusterEvent::FindingClosed(record) if record.name == name => closed.push(*record),
            _ => {}
        }
    }
    (open, closed)
}

fn show(nodes: &[&TestNode]) -> String {
    let texts = nodes.iter().map(|node| format!("{}: {:#?}", node.name, node.side.events()));
    texts.collect::<Vec<_>>().join("\n")
}

/// The position of the only reporter.
fn reporter(nodes: &[&TestNode]) -> usize {
    wait_for("one reporter", || {
        let reporters: Vec<usize> =
            (0..nodes.len()).filter(|number| nodes[*number].handle.is_reporter()).collect();
        (reporters.len() == 1).then(|| reporters[0])
    })
}

fn three(etcd: &Etcd) -> [TestNode; 3] {
    ["a", "b", "c"].map(|name| {
        let role = if name == "a" { Primary } else { Backup };
        TestNode::start(session(&settings(etcd), name), &[("r1", role), (name, Primary)])
    })
}

#[test]
fn a_node_without_a_target_reports_only_while_no_other_has_one() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    wait_for("a reports", || a.handle.is_reporter().then_some(()));
    a.side.has_no_target.store(true, Ordering::SeqCst);
    a.set("r1", Backup);
    assert!(a.handle.is_reporter(), "nobody else is there");
    let b = TestNode::start(session(&settings(&etcd), "b"), &[("r1", Backup)]);
    wait_for("b reports", || (b.handle.is_reporter() && !a.handle.is_reporter()).then_some(()));
    b.stop();
    wait_for("a reports again", || a.handle.is_reporter().then_some(()));
}

#[test]
fn a_silence_of_another_node_is_evaluated_by_the_reporter_and_ends_with_its_lease() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let [a, b, c] = three(&etcd);
    let nodes = [&a, &b, &c];
    let elected = nodes[reporter(&nodes)];
    for node in nodes {
        node.wait_role("r1", "c", Backup);
        node.side
            .silences
            .lock()
            .unwrap()
            .push(silence(node.name.as_str(), Duration::from_secs(4)));
        node.handle.mark_silences();
    }
    elected.wait("the silences", |view| view.silences().count() == 3);
    b.set("r1", Primary);
    elected.wait("a silenced finding", |view| {
        view.findings().any(|it| it.name == TWO && it.silenced.is_some())
    });
    assert!(notified(elected, TWO).0.is_empty(), "nobody is notified");
    let opened = wait_showing("the finding", || show(&nodes), || notified(elected, TWO).0.pop());
    assert_eq!(opened.silenced, None);
    assert_eq!(etcd.entries("/vipwatch/v1/test/silence/").len(), 0, "etcd has ended them");
}

#[test]
fn a_silence_that_is_removed_on_its_node_is_removed_from_etcd() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let silences = || etcd.entries("/vipwatch/v1/test/silence/").len();
    a.side.silences.lock().unwrap().push(silence("a", Duration::from_hours(1)));
    a.handle.mark_silences();
    wait_for("the silence", || (silences() == 1).then_some(()));
    let leases = etcd.lease_count();
    // The same silence needs no other lease.
    a.handle.mark_silences();
    a.set("r1", Backup);
    a.wait_role("r1", "a", Backup);
    assert_eq!(etcd.lease_count(), leases);
    a.side.silences.lock().unwrap().clear();
    a.handle.mark_silences();
    wait_for("its end", || (silences() == 0).then_some(()));
    assert_eq!(etcd.lease_count(), leases - 1);
}

#[test]
fn a_silence_that_is_written_again_keeps_its_lease() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let reasons = || format!("{:?}", etcd.entries("/vipwatch/v1/test/silence/"));
    a.silence("a");
    wait_for("the silence", || reasons().contains("reboot").then_some(()));
    let leases = etcd.lease_count();
    "new switch".clone_into(&mut a.side.silences.lock().unwrap()[0].record.reason);
    a.handle.mark_silences();
    wait_for("its new value", || reasons().contains("new switch").then_some(()));
    assert_eq!(etcd.lease_count(), leases);
}

#[test]
fn many_silences_are_published_and_removed() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    a.wait_registered();
    let silences = || etcd.entries("/vipwatch/v1/test/silence/").len();
    let leases = etcd.lease_count();
    for number in 1..=MAX_SILENCES_OF_NODE {
        let mut silence = silence("a", Duration::from_hours(1));
        silence.id = format!("a.{number}").parse().unwrap();
        silence.record.id = silence.id.to_string();
        a.side.silences.lock().unwrap().push(silence);
    }
    a.handle.mark_silences();
    wait_for("the silences", || (silences() == MAX_SILENCES_OF_NODE).then_some(()));
    a.side.silences.lock().unwrap().clear();
    a.handle.mark_silences();
    wait_for("their end", || (silences() == 0).then_some(()));
    wait_for("the end of their leases", || (etcd.lease_count() == leases).then_some(()));
}

#[test]
fn one_node_reports_a_finding_and_its_end() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let [a, b, c] = three(&etcd);
    let nodes = [&a, &b, &c];
    for node in nodes {
        node.wait_role("r1", "c", Backup);
    }
    let number = reporter(&nodes);
    let elected = nodes[number];
    // The view of the reporter has all groups, also those without an instance on this node.
    for name in ["a", "b", "c"] {
        elected.wait_role(name, name, Primary);
    }
    assert_eq!(elected.handle.basis().scope, ClusterScope::Full);
    b.set("r1", Primary);
    wait_showing("the finding", || show(&nodes), || notified(elected, TWO).0.pop());
    for node in nodes {
        node.wait("the finding in the view", |view| view.findings().any(|it| it.name == TWO));
    }
    b.set("r1", Backup);
    let closed = wait_showing("its end", || show(&nodes), || notified(elected, TWO).1.pop());
    assert!(closed.closed.is_some());
    for node in nodes {
        node.wait("the end in the view", |view| {
            view.findings().all(|it| it.name != TWO)
                && view.closed_findings().any(|it| it.name == TWO)
        });
        let is_elected = node.name == elected.name;
        assert_eq!(notified(node, TWO).0.len(), usize::from(is_elected), "{}", node.name);
    }
    // A finding that has ended has a lease, so that it goes away by itself.
    let entry = etcd.ctl(&["get", "--prefix", "/vipwatch/v1/test/closed/", "--write-out", "json"]);
    assert!(entry.contains("\"lease\":"), "{entry}");
}

#[test]
fn a_new_reporter_continues_the_open_findings_and_knows_their_deliveries() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let [a, b, c] = three(&etcd);
    let nodes = [&a, &b, &c];
    let number = reporter(&nodes);
    for node in nodes {
        node.wait_role("r1", "c", Backup);
    }
    // The two nodes that are not the reporter claim one router.
    let others: Vec<&TestNode> =
        nodes.into_iter().filter(|node| node.name != nodes[number].name).collect();
    for other in &others {
        other.set("r9", Primary);
    }
    let open =
        wait_showing("the finding", || show(&nodes), || notified(nodes[number], TWO).0.pop());
    assert_eq!(open.group.as_deref(), Some("router:r9"));
    let id = open.id.parse().unwrap();
    nodes[number].handle.notified(DeliveredFinding {
        id,
        target: "pager".to_owned(),
        is_closed: false,
    });
    for other in &others {
        other.wait("the delivery in etcd", |view| {
            view.findings().any(|finding| finding.notified_open == ["pager"])
        });
    }
    let mut nodes: Vec<TestNode> = vec![a, b, c];
    nodes.remove(number).crash();
    let nodes: Vec<&TestNode> = nodes.iter().collect();
    let elected = nodes[reporter(&nodes)];
    let again =
        wait_showing("the finding again", || show(&nodes), || notified(elected, TWO).0.pop());
    assert_eq!((again.id, again.notified_open), (open.id.clone(), vec!["pager".to_owned()]));
    nodes[0].set("r9", Backup);
    let closed = wait_showing("its end", || show(&nodes), || notified(elected, TWO).1.pop());
    assert_eq!(closed.id, open.id);
    let lost = wait_showing(
        "the lost node",
        || show(&nodes),
        || notified(elected, "cluster-node-lost").0.pop(),
    );
    assert_eq!(lost.nodes.len(), 1);
}

/// etcd delivers the changes of one transaction to two watches in any order, so the end of the last reporter can arrive before
/// its last finding. Each round has another order.
#[test]
fn a_new_reporter_knows_the_findings_that_arrive_after_the_end_of_the_last_reporter() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &[("r1", Primary)]);
    for round in 0..8 {
        reporter(&[&a]);
        let granted = etcd.ctl(&["lease", "grant", "600"]);
        let lease = granted.split_whitespace().nth(1).unwrap();
        etcd.ctl(&["put", REPORTER, OTHER, "--lease", lease]);
        wait_for("another reporter", || (!a.handle.is_reporter()).then_some(()));
        let id = format!("{round}-lost");
        let key = format!("/vipwatch/v1/test/finding/{id}");
        let untrue = format!(
            r#"{{"schema":1,"id":"{id}","name":"cluster-node-lost","severity":"critical","confidence":"certain",
            "nodes":["a"],"text":"","hint":"","opened":"2026-01-01T00:00:00Z","changed":"2026-01-01T00:00:00Z",
            "reporter":"x"}}"#
        );
        block_on(async {
            let end = vec![RequestOp::put(&key, untrue, None), RequestOp::delete(REPORTER)];
            let connection = connect(&etcd).await;
            assert!(connection.commit(Vec::new(), end, &key).await.unwrap().is_done);
        });
        let what = format!("the end of the untrue finding in round {round}");
        wait_showing(&what, || show(&[&a]), || etcd.entries(&key).is_empty().then_some(()));
    }
}

#[test]
fn a_node_that_is_no_longer_the_reporter_has_its_own_groups_again() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let [a, b, c] = three(&etcd);
    let nodes = [&a, &b, &c];
    let number = reporter(&nodes);
    let first = nodes[number];
    for name in ["a", "b", "c"] {
        first.wait_role(name, name, Primary);
    }
    // Another process takes the key of the reporter, as after a lost lease.
    let granted = etcd.ctl(&["lease", "grant", "600"]);
    let lease = granted.split_whitespace().nth(1).unwrap();
    etcd.ctl(&["put", REPORTER, OTHER, "--lease", lease]);
    wait_for("the loss", || (!first.handle.is_reporter()).then_some(()));
    let own = first.name.as_str();
    first.wait("its own groups", |view| {
        ["a", "b", "c"].iter().all(|name| role_of(view, name, name).is_some() == (*name == own))
            && role_of(view, "r1", own).is_some()
    });
    assert_eq!(first.handle.basis().scope, ClusterScope::Own);
    etcd.ctl(&["lease", "revoke", lease]);
    reporter(&nodes);
}

#[test]
fn a_reporter_key_that_no_process_has_written_does_not_prevent_the_election() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    etcd.ctl(&["put", REPORTER, "garbage"]);
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    reporter(&[&a]);
    // As after a copy of the keys to another etcd, which has no leases.
    etcd.ctl(&["put", REPORTER, OTHER]);
    wait_for("the second election", || (a.handle.counters().elections == 2).then_some(()));
    reporter(&[&a]);
}

#[test]
fn the_oldest_of_too_many_findings_that_have_ended_are_deleted() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let prefix = "/vipwatch/v1/test/closed/";
    let value = |id: &str| {
        format!(
            r#"{{"schema":1,"id":"{id}","name":"cluster-node-lost","severity":"critical","confidence":"certain",
            "nodes":["x"],"text":"","hint":"","opened":"2026-01-01T00:00:00Z","changed":"2026-01-01T00:00:00Z",
            "closed":"2026-01-01T00:00:00Z","reporter":"x"}}"#
        )
    };
    block_on(async {
        let connection = connect(&etcd).await;
        for batch in 0..21 {
            let put = |number: i32| {
                let id = format!("{:04}-x", batch * 100 + number);
                RequestOp::put(&format!("{prefix}{id}"), value(&id), None)
            };
            let puts = (0..100).map(put).collect();
            assert!(connection.commit(Vec::new(), puts, prefix).await.unwrap().is_done);
        }
    });
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    a.wait("the newest findings", |view| view.closed_findings().count() == 2000);
    let oldest = a.handle.view().closed_findings().next().map(|finding| finding.id.clone());
    assert_eq!(oldest.as_deref(), Some("0100-x"));
}

#[test]
fn a_reporter_key_of_a_later_release_is_respected() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let granted = etcd.ctl(&["lease", "grant", "600"]);
    let lease = granted.split_whitespace().nth(1).unwrap();
    etcd.ctl(&["put", REPORTER, r#"{"schema":99}"#, "--lease", lease]);
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let beats = || a.handle.counters().heartbeats;
    wait_for("three heartbeats", || (beats() > 2).then_some(()));
    assert!(!a.handle.is_reporter());
    etcd.ctl(&["lease", "revoke", lease]);
    reporter(&[&a]);
}

#[test]
fn an_open_finding_that_another_client_deletes_or_overwrites_is_written_again() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(session(&settings(&etcd), "a"), &[("r1", Primary)]);
    let b = TestNode::start(session(&settings(&etcd), "b"), &[("r1", Primary)]);
    let nodes = [&a, &b];
    let elected = nodes[reporter(&nodes)];
    let open = wait_showing("the finding", || show(&nodes), || notified(elected, TWO).0.pop());
    let told_by = |target: &str| {
        let (id, target) = (open.id.parse().unwrap(), target.to_owned());
        elected.handle.notified(DeliveredFinding { id, target, is_closed: false });
    };
    told_by("pager");
    let key = format!("/vipwatch/v1/test/finding/{}", open.id);
    let is_written = || {
        let entries = etcd.entries(&key);
        entries.first().is_some_and(|(_, value)| value.contains("pager")).then_some(())
    };
    wait_for("the delivery in etcd", is_written);
    etcd.ctl(&["del", &key]);
    wait_for("the finding after its deletion", is_written);
    etcd.ctl(&["put", &key, "garbage"]);
    wait_for("the finding after it was overwritten", is_written);
    assert_eq!(notified(elected, TWO).0.len(), 1, "it is not delivered again");
}

/// Makes a node elect the reporter again: the lease of another process has the key meanwhile.
fn with_another_reporter(etcd: &Etcd, nodes: &[&TestNode], act: impl FnOnce()) {
    let granted = etcd.ctl(&["lease", "grant", "600"]);
    let lease = granted.split_whitespace().nth(1).unwrap();
    etcd.ctl(&["put", REPORTER, OTHER, "--lease", lease]);
    for node in nodes {
        wait_for("another reporter", || (!node.handle.is_reporter()).then_some(()));
    }
    act();
    etcd.ctl(&["lease", "revoke", lease]);
}

#[test]
fn a_finding_that_ends_while_the_reporter_changes_has_its_end_delivered() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let [a, b] = ["a", "b"]
        .map(|name| TestNode::start(lasting_session(&settings(&etcd), name), &[("r1", Primary)]));
    let nodes = [&a, &b];
    let elected = nodes[reporter(&nodes)];
    let open = wait_showing("the finding", || show(&nodes), || notified(elected, TWO).0.pop());
    let (id, target) = (open.id.parse().unwrap(), "pager".to_owned());
    elected.handle.notified(DeliveredFinding { id, target, is_closed: false });
    for node in nodes {
        node.wait("the delivery", |view| view.findings().any(|it| it.notified_open == ["pager"]));
    }
    // The next reporter continues it, and no target is notified again.
    with_another_reporter(&etcd, &nodes, || ());
    let openings =
        || -> Vec<FindingRecord> { nodes.iter().flat_map(|node| notified(node, TWO).0).collect() };
    let again = || openings().into_iter().find(|finding| !finding.notified_open.is_empty());
    let again = wait_showing("the finding again", || show(&nodes), again);
    assert_eq!((again.id, again.notified_open), (open.id.clone(), vec!["pager".to_owned()]));
    assert_eq!(openings().len(), 2, "{}", show(&nodes));
    // This reporter never sees the condition.
    with_another_reporter(&etcd, &nodes, || {
        b.set("r1", Backup);
        for node in nodes {
            node.wait_role("r1", "b", Backup);
        }
    });
    let end = || nodes.iter().find_map(|node| notified(node, TWO).1.pop());
    let end = wait_showing("the end", || show(&nodes), end);
    assert_eq!((end.id, end.notified_open), (open.id, vec!["pager".to_owned()]));
}

#[test]
fn a_forged_finding_is_no_opening_and_its_end_has_none_of_its_words() {
    let lab = Lab::new();
    let etcd = Etcd::single(lab.path());
    let a = TestNode::start(lasting_session(&settings(&etcd), "a"), &[("r1", Primary)]);
    reporter(&[&a]);
    let forge = |id: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let mut record = serde_json::json!({
            "schema": 1, "id": id, "name": TWO, "severity": "info", "confidence": "certain", "group": "router:r1",
            "nodes": ["a", "b"], "text": "SECRET \u{1b}[2J", "hint": "SECRET", "evidence": ["SECRET"],
            "opened": "2026-01-01T00:00:00Z", "changed": "2026-01-01T00:00:00Z", "reporter": "SECRET",
        });
        change(&mut record);
        let kind = if record["closed"].is_null() { "finding" } else { "closed" };
        etcd.ctl(&["put", &format!("/vipwatch/v1/test/{kind}/{id}"), &record.to_string()]);
    };
    forge("forged", &|_| ());
    forge("told", &|record| record["notified_open"] = serde_json::json!(["pager"]));
    forge("ended", &|record| {
        record["closed"] = "2026-01-02T00:00:00Z".into();
        record["notified_open"] = serde_json::json!(["pager"]);
    });
    forge("flapping", &|record| record["name"] = "cluster-flapping".into());
    forge("local", &|record| record["name"] = "two-primaries".into());
    forge("no-group", &|record| record["group"] = "SECRET\nSECRET".into());
    forge("no-node", &|record| record["nodes"] = serde_json::json!(["SECRET SECRET"]));
    a.wait("the unknown kind and the invalid subjects", |view| {
        let ignored = view.ignored();
        (ignored.newer_values, ignored.invalid_values) == (1, 2)
    });
    etcd.ctl(&["del", REPORTER]);
    wait_for("the second election", || (a.handle.counters().elections >= 2).then_some(()));
    let closed = || notified(&a, TWO).1.len() == 3;
    wait_showing("the ends", || show(&[&a]), || closed().then_some(()));
    let words = format!("{:?}", notified(&a, TWO).1);
    assert!(!words.contains("SECRET") && !words.contains("Info"), "{words}");
    assert!(words.contains("router:r1"), "{words}");
    // A finding that is true is opened after all of it.
    let b = TestNode::start(lasting_session(&settings(&etcd), "b"), &[("r1", Primary)]);
    let open = wait_showing("the finding", || show(&[&a, &b]), || notified(&a, TWO).0.pop());
    assert_eq!(notified(&a, TWO).0.len(), 1, "{open:?}");
    for name in ["cluster-flapping", "two-primaries"] {
        assert_eq!(notified(&a, name).0, [], "{name}");
    }
}

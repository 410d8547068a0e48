// SPDX-License-Identifier: Apache-2.0
//! The table of deliveries: what targets receive after kills, restarts, reloads and retention, and in which form.

use std::time::Duration;

use serde_json::Value;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, run, stays, wait_for};

use crate::http_server::HttpServer;
use crate::support::{
    ADD_VIP, REMOVE_VIP, fixture_with, instance_conf, query_json, read, vi_1_conf,
    wait_for_content, wait_for_role, write, write_hook,
};

/// The first value that a query of the history file returns.
pub(crate) fn stored(fixture: &NodeFixture, query: &str) -> String {
    let mut sqlite = std::process::Command::new("sqlite3");
    run(sqlite.arg(fixture.state_dir().join("history.sqlite")).arg(query)).trim().to_owned()
}

/// Waits until the history has stored this outcome for the last transition of `VI_1` and the target `name`.
fn wait_for_outcome(fixture: &NodeFixture, name: &str, outcome: &str) {
    let query = format!(
        "SELECT delivery.outcome FROM delivery JOIN role USING (instance) \
         WHERE target = '{name}' AND instance = 'VI_1' AND delivery.seq >= role.seq"
    );
    wait_for(outcome, || (stored(fixture, &query) == outcome).then_some(()));
}

fn seq(fixture: &NodeFixture) -> i64 {
    query_json(fixture, &["status", "VI_1"])["instances"][0]["seq"].as_i64().unwrap()
}

/// Changes the role of `VI_1` `count` times, beginning with primary.
fn flip(netns: &TestNetns, fixture: &NodeFixture, count: usize) {
    for (args, role) in [(ADD_VIP, "primary"), (REMOVE_VIP, "backup")].iter().cycle().take(count) {
        netns.ip(args);
        wait_for_role(fixture, "VI_1", role);
    }
}

pub(crate) fn webhook(url: &str, options: &str) -> String {
    format!("[[notify]]\n[[notify.webhook]]\nname = \"ops\"\nurl = \"{url}\"\n{options}\n")
}

/// The sequence numbers of all transitions that the history has.
fn recorded_seqs(fixture: &NodeFixture) -> Vec<i64> {
    let seqs =
        stored(fixture, "SELECT group_concat(seq) FROM (SELECT seq FROM transition ORDER BY seq)");
    seqs.split(',').map(|seq| seq.parse().unwrap()).collect()
}

fn accepted_seqs(server: &HttpServer) -> Vec<i64> {
    server.accepted_bodies().iter().map(|body| body["seq"].as_i64().unwrap()).collect()
}

#[test]
fn a_webhook_that_was_down_is_notified_once_after_a_kill() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[503; 1000]);
    fixture.configure(&webhook(&server.url, ""));
    let node = fixture.start();
    flip(&netns, &fixture, 1);
    let expected = seq(&fixture);
    wait_for("the attempt", || (server.last_seq() == Some(expected)).then_some(()));
    wait_for("the record", || (recorded_seqs(&fixture).last() == Some(&expected)).then_some(()));
    node.kill();
    server.accept_all();
    let node = fixture.start();
    wait_for("the notification", || (accepted_seqs(&server) == [expected]).then_some(()));
    assert_eq!(server.accepted_bodies()[0]["from"], "backup", "as it was before the kill");
    wait_for_outcome(&fixture, "ops", "delivered");
    node.kill();
    let _node = fixture.start();
    netns.ip(REMOVE_VIP);
    wait_for("the next one", || (server.accepted() == ["primary", "backup"]).then_some(()));
}

#[test]
fn a_notification_that_was_given_up_is_not_repeated_after_a_restart() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[404]);
    let hook_output = lab.path().join("hook-output");
    let hook = write_hook(
        &lab.path().join("hook"),
        &format!("echo $VIPWATCH_TO >> {}; exit 1", hook_output.display()),
    );
    let hook = format!(
        "[[notify.hook]]\nname = \"script\"\nprogram = \"{}\"\nretries = 2\n",
        hook.display()
    );
    fixture.configure(&format!("{}{hook}", webhook(&server.url, "")));
    let node = fixture.start();
    wait_for_outcome(&fixture, "ops", "given-up");
    wait_for_outcome(&fixture, "script", "given-up");
    assert_eq!(read(&hook_output), "backup\nbackup\nbackup\n", "one attempt and two retries");
    node.kill();
    let _node = fixture.start();
    netns.ip(ADD_VIP);
    wait_for("the next change", || (server.accepted() == ["primary"]).then_some(()));
    wait_for("the hook", || read(&hook_output).ends_with("primary\n").then_some(()));
    assert!(
        !read(&hook_output).contains("backup\nbackup\nbackup\nbackup"),
        "{}",
        read(&hook_output)
    );
}

#[test]
fn a_webhook_with_a_name_keeps_its_pending_notifications_when_its_url_changes() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (old, new) = (HttpServer::new(&[503; 1000]), HttpServer::new(&[]));
    fixture.configure(&webhook(&old.url, "deliver = \"every\""));
    let node = fixture.start();
    flip(&netns, &fixture, 3);
    fixture.configure(&webhook(&new.url, "deliver = \"every\"\nheaders = { X-New = \"1\" }"));
    node.reload();
    let all = ["backup", "primary", "backup", "primary"];
    wait_for("every change", || (new.accepted() == all).then_some(()));
    assert!(old.accepted().is_empty());
}

#[test]
fn every_transition_is_delivered_in_order_after_a_kill() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[]);
    fixture.configure(&webhook(&server.url, "deliver = \"every\""));
    let node = fixture.start();
    wait_for_outcome(&fixture, "ops", "delivered");
    server.answer_next(&vec![503; 10_000]);
    // More than the notifier keeps in memory for one instance.
    flip(&netns, &fixture, 80);
    let last = seq(&fixture);
    wait_for("the record", || (recorded_seqs(&fixture).last() == Some(&last)).then_some(()));
    node.kill();
    server.accept_all();
    let node = fixture.start();
    wait_for("the last one", || (accepted_seqs(&server).last() == Some(&last)).then_some(()));
    assert_eq!(accepted_seqs(&server), recorded_seqs(&fixture));
    wait_for_outcome(&fixture, "ops", "delivered");
    assert!(node.stop().success());
    // And within one run, when the server is back.
    server.answer_next(&vec![503; 10_000]);
    let _node = fixture.start();
    flip(&netns, &fixture, 80);
    server.accept_all();
    let last = seq(&fixture);
    wait_for("the last one", || (accepted_seqs(&server).last() == Some(&last)).then_some(()));
    assert_eq!(accepted_seqs(&server), recorded_seqs(&fixture));
    assert!(server.accepted_bodies().iter().all(|body| body.get("missed").is_none()));
}

#[test]
fn transitions_that_retention_deleted_undelivered_are_counted_for_the_target() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[]);
    let history = "[history]\nkeep_transitions = 1\nkeep_undelivered = 3\n";
    let config = format!("{history}{}", webhook(&server.url, "deliver = \"every\""));
    fixture.configure(&config);
    let node = fixture.start();
    wait_for_outcome(&fixture, "ops", "delivered");
    server.answer_next(&vec![503; 10_000]);
    flip(&netns, &fixture, 10);
    let last = seq(&fixture);
    // The node applies the limits of the history when it stops.
    assert!(node.stop().success());
    let left = recorded_seqs(&fixture).len();
    assert_eq!(left, 4, "one that is kept anyway, and three that are undelivered");
    server.accept_all();
    let _node = fixture.start();
    wait_for("the last one", || (accepted_seqs(&server).last() == Some(&last)).then_some(()));
    let bodies = server.accepted_bodies().split_off(1);
    assert_eq!(bodies.len(), left);
    assert_eq!(bodies[0]["missed"], 6, "{bodies:?}");
    assert!(bodies[1..].iter().all(|body| body.get("missed").is_none()));
    wait_for("the count to be cleared", || {
        (stored(&fixture, "SELECT missed FROM delivery WHERE target = 'ops'") == "0").then_some(())
    });
}

#[test]
fn a_role_that_does_not_last_is_not_sent_and_other_targets_are_not_delayed() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[]);
    let states = lab.path().join("states");
    let state_file = format!("state_file = \"{}/{{id}}\"\n", states.display());
    let rule = webhook(&server.url, "settle = \"3s\"");
    fixture.configure(&rule.replacen("[[notify]]\n", &format!("[[notify]]\n{state_file}"), 1));
    let _node = fixture.start();
    wait_for("the first role", || (server.accepted() == ["backup"]).then_some(()));
    flip(&netns, &fixture, 4);
    wait_for_content(&states.join("VI_1/state"), "backup");
    wait_for_outcome(&fixture, "ops", "filtered");
    flip(&netns, &fixture, 1);
    wait_for_content(&states.join("VI_1/state"), "primary");
    assert_eq!(server.accepted(), ["backup"], "the role has not lasted yet");
    wait_for("the role", || (server.accepted() == ["backup", "primary"]).then_some(()));
}

/// Thirty instances, `I_10` to `I_39`, with one address each.
fn thirty_instances() -> Vec<String> {
    let instance = |n: u32| instance_conf(&format!("I_{n}"), "eth0", &[&format!("192.0.2.{n}/24")]);
    (10..40).map(instance).collect()
}

fn count(bodies: &[Value], role: &str) -> u64 {
    bodies.iter().filter_map(|body| body["summary"][role].as_u64()).sum()
}

#[test]
fn a_mass_failover_is_posted_in_few_requests_with_a_summary() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &thirty_instances());
    let server = HttpServer::new(&[]);
    fixture.configure(&webhook(&server.url, "batch = { max = 100, wait = \"1s\" }"));
    let _node = fixture.start();
    wait_for("all roles", || (count(&server.accepted_bodies(), "backup") == 30).then_some(()));
    let before = server.accepted_bodies().len();
    for n in 10..40 {
        netns.ip(&format!("address add 192.0.2.{n}/24 dev eth0"));
    }
    wait_for("the failover", || (count(&server.accepted_bodies(), "primary") == 30).then_some(()));
    let bodies = server.accepted_bodies().split_off(before);
    assert!(bodies.len() <= 10, "{} requests for 30 instances", bodies.len());
    let first = &bodies[0];
    assert_eq!(first["schema"], "vipwatch.batch/1");
    let notifications = first["notifications"].as_array().unwrap();
    assert_eq!(first["count"], notifications.len());
    assert_eq!(notifications[0]["schema"], "vipwatch.transition/2");
}

#[test]
fn a_webhook_that_rejects_one_notification_of_a_batch_gets_all_others() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &thirty_instances());
    let server = HttpServer::new(&[503; 1000]);
    fixture.configure(&webhook(&server.url, "batch = { max = 100, wait = \"1s\" }"));
    let _node = fixture.start();
    fixture.wait_for_log("status 503");
    server.reject_bodies_with("I_17");
    server.accept_all();
    wait_for("all others", || (count(&server.accepted_bodies(), "backup") == 29).then_some(()));
    wait_for("the finding", || {
        let findings = fixture.run_text(&["doctor"]);
        (findings.contains("I_17") && findings.contains("webhook-failed")).then_some(())
    });
    wait_for("the outcome", || {
        let query = "SELECT outcome FROM delivery WHERE instance = 'I_17'";
        (stored(&fixture, query) == "given-up").then_some(())
    });
}

#[test]
fn a_removed_instance_is_notified_also_after_a_kill_and_after_a_removal_while_the_node_was_down() {
    let lab = Lab::new();
    let other = instance_conf("DB", "eth0", &["192.0.2.3/24"]);
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf(), other.clone()]);
    let server = HttpServer::new(&[]);
    fixture.configure(&webhook(&server.url, ""));
    let node = fixture.start();
    wait_for("both roles", || (server.accepted().len() == 2).then_some(()));
    wait_for_outcome(&fixture, "ops", "delivered");
    server.answer_next(&[503; 1000]);
    let conf = |instances: &str| format!("net_namespace {}\n{instances}", netns.name());
    write(&fixture.keepalived_conf(), &conf(&other));
    wait_for("the attempt", || {
        (fixture.log().contains("instance removed") && fixture.log().contains("status 503"))
            .then_some(())
    });
    wait_for("the record", || {
        (stored(&fixture, "SELECT count(*) FROM transition WHERE to_role = 'removed'") == "1")
            .then_some(())
    });
    node.kill();
    server.accept_all();
    write(&fixture.keepalived_conf(), &conf(""));
    let _node = fixture.start();
    let removed = wait_for("both removals", || {
        let bodies = server.accepted_bodies().split_off(2);
        let mut ids: Vec<String> = bodies.iter().map(|body| body["id"].to_string()).collect();
        ids.sort();
        (ids == ["\"DB\"", "\"VI_1\""]).then_some(bodies)
    });
    assert!(removed.iter().all(|body| body["schema"] == "vipwatch.removed/1"), "{removed:?}");
    wait_for("no row", || {
        let query = "SELECT (SELECT count(*) FROM delivery) || (SELECT count(*) FROM role)";
        (stored(&fixture, query) == "00").then_some(())
    });
    // An instance that appears again is a new one.
    write(&fixture.keepalived_conf(), &conf(&other));
    wait_for("the new instance", || (server.accepted().last()? == "backup").then_some(()));
}

#[test]
fn a_target_that_a_reload_adds_gets_the_current_role_or_only_later_transitions() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let (latest, every) = (HttpServer::new(&[]), HttpServer::new(&[]));
    let node = fixture.start();
    flip(&netns, &fixture, 1);
    let target = |name: &str, url: &str, deliver: &str| {
        format!("[[notify.webhook]]\nname = \"{name}\"\nurl = \"{url}\"\ndeliver = \"{deliver}\"\n")
    };
    let both = [target("latest", &latest.url, "latest"), target("every", &every.url, "every")];
    fixture.configure(&format!("[[notify]]\n{}", both.concat()));
    node.reload();
    wait_for("the current role", || (latest.accepted() == ["primary"]).then_some(()));
    wait_for_outcome(&fixture, "every", "filtered");
    netns.ip(REMOVE_VIP);
    wait_for("the transition", || (every.accepted() == ["backup"]).then_some(()));
    // A reload that changes nothing sends nothing.
    node.reload();
    netns.ip(ADD_VIP);
    wait_for("the next one", || (every.accepted() == ["backup", "primary"]).then_some(()));
    wait_for("the next one", || {
        (latest.accepted() == ["primary", "backup", "primary"]).then_some(())
    });
}

#[test]
fn a_webhook_for_findings_gets_a_finding_when_it_appears() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[]);
    fixture.configure(&webhook(&server.url, "on = \"finding\""));
    let node = fixture.start();
    fixture.configure("[nodes]\n");
    node.reload();
    let body = wait_for("the finding", || server.accepted_bodies().pop());
    assert_eq!(body["schema"], "vipwatch.finding/1");
    assert_eq!(
        (&body["finding"]["name"], &body["state"]),
        (&"node-configuration".into(), &"open".into())
    );
}

#[test]
fn a_silenced_webhook_gets_the_current_role_when_the_silence_ends() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[]);
    fixture.configure(&webhook(&server.url, ""));
    let node = fixture.start();
    wait_for("the first role", || (server.accepted() == ["backup"]).then_some(()));
    let silence = ["silence", "VI_1", "--for", "1h", "--reason", "upgrade"];
    assert!(fixture.run(&silence).status.success(), "{}", fixture.run_text(&silence));
    flip(&netns, &fixture, 3);
    // The silence is stored, and so is the last delivered role.
    assert!(node.stop().success());
    let _node = fixture.start();
    wait_for_role(&fixture, "VI_1", "primary");
    stays(Duration::from_secs(1), "silence", || server.accepted() == ["backup"]);
    let end = ["silence", "remove", "1"];
    assert!(fixture.run(&end).status.success(), "{}", fixture.run_text(&end));
    wait_for("the current role", || (server.accepted() == ["backup", "primary"]).then_some(()));
}

#[test]
fn every_transition_from_before_and_after_a_silence_is_delivered_in_order_after_it() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[]);
    fixture.configure(&webhook(&server.url, "deliver = \"every\""));
    let node = fixture.start();
    wait_for_outcome(&fixture, "ops", "delivered");
    server.answer_next(&vec![503; 10_000]);
    flip(&netns, &fixture, 1);
    let silence = ["silence", "VI_1", "--for", "1h", "--reason", "upgrade"];
    assert!(fixture.run(&silence).status.success(), "{}", fixture.run_text(&silence));
    netns.ip(REMOVE_VIP);
    wait_for_role(&fixture, "VI_1", "backup");
    flip(&netns, &fixture, 1);
    wait_for("the records", || (recorded_seqs(&fixture).len() == 4).then_some(()));
    let silenced = recorded_seqs(&fixture).split_off(2);
    // The silence is stored, also after its end: the next run reads the transitions from the history.
    let end = ["silence", "remove", "1"];
    assert!(fixture.run(&end).status.success(), "{}", fixture.run_text(&end));
    netns.ip(REMOVE_VIP);
    wait_for_role(&fixture, "VI_1", "backup");
    assert!(node.stop().success());
    server.accept_all();
    let _node = fixture.start();
    let last = seq(&fixture);
    wait_for("the last one", || (accepted_seqs(&server).last() == Some(&last)).then_some(()));
    let mut expected = recorded_seqs(&fixture);
    expected.retain(|seq| !silenced.contains(seq));
    assert_eq!(accepted_seqs(&server), expected);
    assert_eq!(server.accepted(), ["backup", "primary", "backup"]);
}

#[test]
fn the_first_notification_of_an_instance_to_an_every_target_is_delivered_after_a_kill() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    let server = HttpServer::new(&[503; 1000]);
    fixture.configure(&webhook(&server.url, "deliver = \"every\""));
    let node = fixture.start();
    let first = seq(&fixture);
    wait_for("the attempt", || (server.last_seq() == Some(first)).then_some(()));
    wait_for("the record", || {
        (stored(&fixture, "SELECT max(seq) FROM transition") == first.to_string()).then_some(())
    });
    node.kill();
    server.accept_all();
    let _node = fixture.start();
    wait_for("the notification", || (accepted_seqs(&server) == [first]).then_some(()));
}

#[test]
fn a_finding_about_an_instance_goes_only_to_the_targets_of_its_rules() {
    let lab = Lab::new();
    let db = instance_conf("DB", "eth0", &["192.0.2.3/24"]);
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf(), db]);
    let (of_vi_1, of_db) = (HttpServer::new(&[]), HttpServer::new(&[]));
    let states = lab.path().join("states");
    let rule = |instance: &str, server: &HttpServer| {
        let rule = webhook(&server.url, "on = \"finding\"").replace("ops", instance);
        let rest = format!(
            "[[notify]]\ninstances = [\"{instance}\"]\nstate_file = \"{}/{{id}}\"\n",
            states.display()
        );
        rule.replace("[[notify]]\n", &rest)
    };
    fixture.configure(&format!("{}{}", rule("VI_1", &of_vi_1), rule("DB", &of_db)));
    // A file blocks the path of the directory of the state file.
    write(&states.join("VI_1"), "not a directory");
    let _node = fixture.start();
    let is_about = |body: &Value, id: &str| {
        body["finding"]["name"] == "file-failed" && body["finding"]["id"] == id
    };
    let wait_for_finding = |server: &HttpServer, id: &str| {
        wait_for(&format!("the finding about {id}"), || {
            server.accepted_bodies().iter().any(|body| is_about(body, id)).then_some(())
        });
    };
    wait_for_finding(&of_vi_1, "VI_1");
    wait_for_content(&states.join("DB/state"), "backup");
    std::fs::remove_dir_all(states.join("DB")).unwrap();
    write(&states.join("DB"), "not a directory");
    netns.ip("address add 192.0.2.3/24 dev eth0");
    wait_for_finding(&of_db, "DB");
    for (server, id) in [(&of_vi_1, "VI_1"), (&of_db, "DB")] {
        let bodies = server.accepted_bodies();
        assert!(bodies.iter().all(|body| body["finding"]["id"] == id), "{id}: {bodies:?}");
    }
}

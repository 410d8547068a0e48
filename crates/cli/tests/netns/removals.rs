// SPDX-License-Identifier: Apache-2.0
//! Instances of the last run that the node does not find when it starts.

use vipwatch_testkit::{Lab, NodeFixture, run, wait_for};

use crate::http_server::HttpServer;
use crate::support::{
    ADD_VIP, fixture_with, instance_conf, vi_1_conf, wait_for_content, wait_for_role, write,
    write_hook,
};

fn sql(fixture: &NodeFixture, statements: &str) -> String {
    let mut sqlite = std::process::Command::new("sqlite3");
    run(sqlite.arg(fixture.state_dir().join("history.sqlite")).arg(statements)).trim().to_owned()
}

fn db_conf() -> String {
    instance_conf("DB", "eth0", &["192.0.2.2/24"])
}

#[test]
fn the_backlog_of_an_instance_is_delivered_before_its_removal_with_an_event_of_each() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf(), db_conf()]);
    let (output, open) = (lab.path().join("output"), lab.path().join("open"));
    let text = format!(
        "test -e {} && test $VIPWATCH_ID = VI_1 && echo ${{VIPWATCH_TO:-removed}} >> {}",
        open.display(),
        output.display()
    );
    let hook = write_hook(&lab.path().join("hook"), &text);
    fixture.configure(&format!(
        "[[notify]]\ninstances = [\"VI_1\"]\nhook = {{ program = \"{}\", retries = 1000 }}\n",
        hook.display()
    ));
    let node = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    netns.ip(ADD_VIP);
    wait_for_role(&fixture, "VI_1", "primary");
    assert!(node.stop().success());
    write(&fixture.keepalived_conf(), &format!("net_namespace {}\n{}", netns.name(), db_conf()));
    write(&open, "");
    let _node = fixture.start();
    wait_for_content(&output, "backup\nprimary\nremoved");
    let events = "SELECT count(*) FROM event WHERE name = 'delivery' AND instance = 'VI_1' \
                  AND body LIKE '%\"error\":null%'";
    wait_for("an event of each delivery", || (sql(&fixture, events) == "3").then_some(()));
}

#[test]
fn a_target_whose_rule_has_changed_while_the_node_was_down_forgets_the_other_instances() {
    let lab = Lab::new();
    let (_netns, fixture) = fixture_with(&lab, &[vi_1_conf(), db_conf()]);
    let hook = write_hook(&lab.path().join("hook"), "true");
    let rule = |instances: &str| {
        let program = hook.display();
        format!("[[notify]]\n{instances}hook = {{ name = \"ops\", program = \"{program}\" }}\n")
    };
    fixture.configure(&rule(""));
    let node = fixture.start();
    let rows = "SELECT group_concat(instance) FROM \
                (SELECT instance FROM delivery WHERE target = 'ops' ORDER BY instance)";
    wait_for("both rows", || (sql(&fixture, rows) == "DB,VI_1").then_some(()));
    assert!(node.stop().success());
    fixture.configure(&rule("instances = [\"VI_1\"]\n"));
    let _node = fixture.start();
    wait_for("one row", || (sql(&fixture, rows) == "VI_1").then_some(()));
}

#[test]
fn a_file_that_is_missing_when_the_node_starts_removes_no_instance() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf(), db_conf()]);
    let node = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    wait_for_role(&fixture, "DB", "backup");
    assert!(node.stop().success());
    let conf = fixture.keepalived_conf();
    std::fs::remove_file(&conf).unwrap();
    let _node = fixture.start();
    write(&conf, &format!("net_namespace {}\n{}", netns.name(), vi_1_conf()));
    let removed = "SELECT group_concat(instance) FROM transition WHERE to_role = 'removed'";
    wait_for("the removal of DB", || (!sql(&fixture, removed).is_empty()).then_some(()));
    assert_eq!(sql(&fixture, removed), "DB");
    let trigger = "SELECT trigger FROM transition WHERE to_role = 'removed'";
    assert_eq!(sql(&fixture, trigger), "start", "the drain check misses it");
    let count = "SELECT count(*) FROM transition WHERE instance = 'VI_1'";
    assert_eq!(sql(&fixture, count), "1", "the role of VI_1 has not changed");
    wait_for_role(&fixture, "VI_1", "backup");
}

#[test]
fn a_problem_that_hides_no_instance_does_not_suppress_a_removal() {
    let lab = Lab::new();
    let faulty = instance_conf("VI_1", "eth0", &["192.0.2.9/24"])
        .replace("192.0.2.9/24", "192.0.2.9/24\n  2001:db8::9/64")
        .replace("priority 100", "priority 300");
    let (netns, fixture) = fixture_with(&lab, &[faulty.clone(), db_conf()]);
    let server = HttpServer::new(&[]);
    fixture.configure(&format!("[[notify]]\n[[notify.webhook]]\nurl = \"{}\"\n", server.url));
    let node = fixture.start();
    wait_for("both roles", || (server.accepted() == ["backup", "backup"]).then_some(()));
    assert!(fixture.run_text(&["doctor"]).contains("configuration-problem"));
    assert!(node.stop().success());
    write(&fixture.keepalived_conf(), &format!("net_namespace {}\n{faulty}", netns.name()));
    let _node = fixture.start();
    // Only a removal has no new role.
    let is_removal = |body: &serde_json::Value| body["id"] == "DB" && body["to"].is_null();
    wait_for("the removal", || {
        server.accepted_bodies().last().is_some_and(is_removal).then_some(())
    });
}

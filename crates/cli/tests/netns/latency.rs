// SPDX-License-Identifier: Apache-2.0
//! Latencies in the history: they belong to the first delivery of a transition, soon after the kernel's event.

use std::process::Command;

use vipwatch_testkit::{Lab, NodeFixture, run, wait_for};

use crate::support::{
    ADD_VIP, REMOVE_VIP, fixture_with, read, vi_1_conf, wait_for_role, write_hook,
};

/// `hook_us` of the transitions to `role`, oldest first; `-` for NULL.
fn hook_latencies(fixture: &NodeFixture, role: &str) -> Vec<String> {
    let query = format!("SELECT ifnull(hook_us, '-') FROM transition WHERE to_role = '{role}'");
    let file = fixture.state_dir().join("history.sqlite");
    let text = run(Command::new("sqlite3").arg("-readonly").arg(file).arg(query));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_delivery_to_a_target_that_a_reload_or_a_restart_adds_has_no_latency() {
    for is_restart in [false, true] {
        let lab = Lab::new();
        let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
        let hook_output = lab.path().join("hook-output");
        let text = format!("echo $VIPWATCH_TO >> {}", hook_output.display());
        let hook = write_hook(&lab.path().join("hook"), &text);
        fixture.configure("");
        let node = fixture.start();
        netns.ip(ADD_VIP);
        wait_for_role(&fixture, "VI_1", "primary");
        let rule = format!(
            "[[notify]]\nhook = {{ program = \"{}\", deliver = \"latest\" }}\n",
            hook.display()
        );
        fixture.configure(&rule);
        let node = if is_restart {
            assert!(node.stop().success());
            fixture.start()
        } else {
            node.reload();
            node
        };
        wait_for("the current role", || (read(&hook_output) == "primary\n").then_some(()));
        netns.ip(REMOVE_VIP);
        wait_for("the transition", || (read(&hook_output) == "primary\nbackup\n").then_some(()));
        // The node writes its history when it stops.
        assert!(node.stop().success());
        assert_eq!(hook_latencies(&fixture, "primary"), ["-"], "restart: {is_restart}");
        let of_backup = hook_latencies(&fixture, "backup");
        let measured: Option<i64> = of_backup.last().and_then(|text| text.parse().ok());
        assert!(measured.is_some(), "the transition of this run is measured: {of_backup:?}");
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Upgrades and downgrades.

use vipwatch_packages::{PREVIOUS, RoleChanges, Root, suite};

const MAIN_PROCESS: &str = "systemctl show --property MainPID --value vipwatch-node.service";

#[test]
fn an_upgrade_under_load_loses_no_transition_and_records_none_twice() {
    let machine = Root::debian(&suite()).boot();
    machine.install_from(PREVIOUS, &["vipwatch"]);
    let first = machine.succeed(MAIN_PROCESS);
    let mut load = RoleChanges::start(&machine);
    load.continue_for(40);
    machine.install(&["vipwatch"]);
    load.continue_for(40);
    let total = load.finish();
    assert_ne!(machine.succeed(MAIN_PROCESS), first, "the new version runs");
    println!("{total} transitions");
}

#[test]
fn an_upgrade_restarts_the_node_and_does_not_wait_as_for_a_shutdown() {
    let machine = Root::debian(&suite()).boot();
    machine.install_from(PREVIOUS, &["vipwatch"]);
    machine.succeed("systemctl start vipwatch-drain.service");
    let started =
        "systemctl show --property ActiveEnterTimestampMonotonic --value vipwatch-drain.service";
    let (node, drain) = (machine.succeed(MAIN_PROCESS), machine.succeed(started));
    machine.install(&["vipwatch"]);
    assert_ne!(machine.succeed(MAIN_PROCESS), node, "the new version runs");
    assert_eq!(machine.succeed(started), drain, "the drain did not stop");
}

#[test]
fn a_downgrade_over_a_newer_history_keeps_the_file_under_another_name() {
    let machine = Root::debian(&suite()).boot();
    machine.install(&["vipwatch"]);
    machine.wait_until("a history", "test -e /var/lib/vipwatch/history.sqlite");
    machine.succeed(
        "systemctl stop vipwatch-node.service
         python3 -c 'import sqlite3
file = sqlite3.connect(\"/var/lib/vipwatch/history.sqlite\")
file.execute(\"PRAGMA user_version = 99\")
file.close()'",
    );
    let before = machine.succeed("sha256sum < /var/lib/vipwatch/history.sqlite");
    let output = machine.install_from(PREVIOUS, &["vipwatch"]);
    assert!(output.contains("downgrading vipwatch"), "{output}");
    machine.succeed("systemctl start vipwatch-node.service");
    machine.wait_until("the finding", "vipwatch findings | grep node-history-format");
    let kept = machine.succeed("cat /var/lib/vipwatch/history.format-99-* | sha256sum");
    assert_eq!(kept, before);
    assert_eq!(
        machine.succeed("dpkg-query --show --showformat '${db:Status-Status}' vipwatch"),
        "installed"
    );
}

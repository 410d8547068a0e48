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

/// The first format of the history, with one transition.
const FIRST_FORMAT: &str = "import sqlite3, time
file = sqlite3.connect('/var/lib/vipwatch/history.sqlite')
for statement in [
    'CREATE TABLE change (seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, instance TEXT NOT NULL, netns TEXT, '
    'from_role TEXT, to_role TEXT NOT NULL, cause TEXT NOT NULL, reason TEXT)',
    'CREATE INDEX change_by_instance ON change (instance, seq)',
    'CREATE INDEX change_by_time ON change (at)',
    'CREATE TABLE run (id INTEGER PRIMARY KEY AUTOINCREMENT, began INTEGER NOT NULL, seen INTEGER NOT NULL, ended INTEGER, '
    'dropped INTEGER NOT NULL DEFAULT 0)',
    'PRAGMA user_version = 1',
]:
    file.execute(statement)
now = int(time.time() * 1000)
row = (now - 60000, 'VI_OLD', 'backup', 'primary', 'address')
file.execute('INSERT INTO change VALUES (7, ?, ?, NULL, ?, ?, ?, NULL)', row)
file.execute('INSERT INTO run VALUES (1, ?, ?, ?, 0)', (now - 90000, now - 30000, now - 30000))
file.commit()
";

#[test]
fn the_node_of_the_package_converts_the_history_of_the_first_version() {
    let machine = Root::debian(&suite()).boot();
    machine.write("/srv/first.py", FIRST_FORMAT);
    machine.succeed("mkdir --parents /var/lib/vipwatch && python3 /srv/first.py");
    machine.install(&["vipwatch"]);
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
    let history = machine.succeed("vipwatch history VI_OLD");
    assert!(history.contains("primary"), "{history}");
}

#[test]
fn a_downgrade_over_a_newer_history_says_so_and_changes_nothing_in_it() {
    let machine = Root::debian(&suite()).boot();
    machine.install(&["vipwatch"]);
    machine.wait_until("a history", "test -e /var/lib/vipwatch/history.sqlite");
    machine.succeed(
        "systemctl stop vipwatch-node.service
         python3 -c 'import sqlite3
file = sqlite3.connect(\"/var/lib/vipwatch/history.sqlite\")
file.execute(\"PRAGMA user_version = 99\")
file.close()'
         systemctl start --no-block vipwatch-node.service",
    );
    let sum = "sha256sum /var/lib/vipwatch/history.sqlite";
    let before = machine.succeed(sum);
    let output = machine.install_from(PREVIOUS, &["vipwatch"]);
    assert!(output.contains("downgrading vipwatch"), "{output}");
    machine.wait_until(
        "the message of the node",
        "journalctl --unit vipwatch-node.service | grep 'has format 99'
         journalctl --unit vipwatch-node.service | grep 'hint:'",
    );
    assert_eq!(machine.succeed(sum), before);
    assert_eq!(
        machine.succeed("dpkg-query --show --showformat '${db:Status-Status}' vipwatch"),
        "installed"
    );
}

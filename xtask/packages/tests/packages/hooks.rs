// SPDX-License-Identifier: Apache-2.0
//! Hooks under systemd: the node has no right to change its user, and the hook runner is a unit of its own.

use vipwatch_packages::{Machine, Root, suite};

/// One address, and a hook for it.
const CONFIGURATION: &str = "
[[instance]]
id = \"database\"
link = \"lo\"
addresses = [\"192.0.2.10/32\"]

[[notify]]
[[notify.hook]]
name = \"changed\"
program = \"/etc/vipwatch/hooks/changed\"
user = \"deploy\"
timeout = \"5s\"
";

/// Leaves a process behind that has left its session, and records its own identity.
const HOOK: &str = "#!/bin/sh
cd /var/tmp
setsid sh -c 'trap \"\" TERM HUP; echo $$ > survivor.new; mv survivor.new survivor; sleep 1000; sleep 1000' &
while [ ! -e survivor ]; do sleep 0.1; done
grep -E '^(NoNewPrivs|CapEff):' /proc/self/status > status.new; mv status.new status
cat /proc/self/cgroup > cgroup.new; mv cgroup.new cgroup
echo $(id -un) $(id -Gn) $VIPWATCH_ID $VIPWATCH_TO > ran.new; mv ran.new ran
";

/// A machine with a node that has a hook.
fn with_hook() -> Machine {
    let machine = Root::debian(&suite()).boot();
    machine.install(&["vipwatch"]);
    machine.succeed("useradd --system --groups audio deploy");
    machine.write("/etc/vipwatch/hooks/changed", HOOK);
    machine.write("/etc/vipwatch/vipwatch.toml", CONFIGURATION);
    machine.succeed(
        "chmod 755 /etc/vipwatch/hooks/changed
         chown root:vipwatch /etc/vipwatch/vipwatch.toml && chmod 640 /etc/vipwatch/vipwatch.toml
         systemctl restart vipwatch-node.service",
    );
    machine
}

#[test]
fn the_hook_runner_runs_a_hook_as_its_user_and_ends_everything_at_its_timeout() {
    let machine = with_hook();
    let pid = "systemctl show --property MainPID --value vipwatch-node.service";
    assert_eq!(machine.succeed(&format!("stat -c %U /proc/$({pid})")), "vipwatch");
    let ran = machine.wait_until("the hook", "cat /var/tmp/ran");
    assert_eq!(ran, "deploy deploy audio database backup");
    let cgroup = machine.succeed("cat /var/tmp/cgroup");
    assert!(cgroup.contains("vipwatch-hook-runner.service"), "{cgroup}");
    let status = machine.succeed("cat /var/tmp/status");
    assert!(status.contains("NoNewPrivs:\t0"), "a hook may use sudo: {status}");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    let filter = "systemctl show --property SystemCallFilter --value vipwatch-hook-runner.service";
    assert_eq!(
        machine.succeed(filter),
        "~",
        "systemd shows the absence of a filter as an empty list of exceptions"
    );
    // A process of the node's user that another service has started, as cron does for a hook.
    let connect = "IO::Socket::UNIX->new(q(/run/vipwatch-hook-runner/socket)) ? q(connected) : $!";
    let other = format!(
        "systemd-run --quiet --wait --pipe --uid vipwatch perl -MIO::Socket::UNIX -e 'print {connect}'"
    );
    assert_eq!(machine.succeed(&other), "Permission denied");
    machine.wait_until("the end of the survivor", "! kill -0 $(cat /var/tmp/survivor)");
    assert!(!machine.succeed("vipwatch doctor || true").contains("hook"), "no finding");
}

#[test]
fn a_hook_waits_while_its_runner_is_stopped_and_runs_after_a_reload_with_new_settings() {
    let machine = with_hook();
    machine.wait_until("the first run", "cat /var/tmp/ran");
    machine.succeed(
        "rm /var/tmp/ran
         systemctl stop vipwatch-hook-runner.socket vipwatch-hook-runner.service
         ip address add 192.0.2.10/32 dev lo",
    );
    machine.wait_until("the finding", "vipwatch doctor 2>&1 | grep node-hook-runner");
    machine.succeed("systemctl start vipwatch-hook-runner.socket");
    // The stop may have ended the first run, which is repeated then.
    machine.wait_until(
        "the second run",
        "grep -x 'deploy deploy audio database primary' /var/tmp/ran",
    );
    machine.succeed(
        "rm /var/tmp/ran /var/tmp/survivor /var/tmp/status /var/tmp/cgroup
         sed -i 's/user = \"deploy\"/user = \"root\"/' /etc/vipwatch/vipwatch.toml
         systemctl reload vipwatch-node.service
         ip address del 192.0.2.10/32 dev lo",
    );
    machine.wait_until("the third run", "grep -x 'root root database backup' /var/tmp/ran");
    let log = machine.succeed("journalctl --unit vipwatch-hook-runner.service --no-pager");
    assert!(log.contains("configuration reloaded"), "{log}");
}

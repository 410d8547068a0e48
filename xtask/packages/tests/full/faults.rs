// SPDX-License-Identifier: Apache-2.0
//! Faults during an installation, and a node that hangs.

use vipwatch_packages::{Machine, PACKAGES, PREVIOUS, Root, suite};

const MAIN_PROCESS: &str = "systemctl show --property MainPID --value vipwatch-node.service";

/// A machine with the previous version.
fn previous() -> Machine {
    let machine = Root::debian(&suite()).boot();
    machine.install_from(PREVIOUS, &["vipwatch", "vipwatch-neutron"]);
    machine
}

/// The version and the state of the package `vipwatch`.
fn installed(machine: &Machine) -> String {
    machine.succeed("dpkg-query --show --showformat '${Version} ${db:Status-Status}' vipwatch")
}

#[test]
fn a_full_disk_stops_an_upgrade_and_the_previous_version_still_runs() {
    let machine = previous();
    let before = (installed(&machine), machine.succeed(MAIN_PROCESS));
    // `cat` ends when the disk is full.
    machine.run("cat /dev/zero > /filler");
    let outcome = machine.run(&format!("dpkg --install {PACKAGES}/vipwatch_*.deb 2>&1"));
    assert!(!outcome.is_ok());
    assert!(outcome.stdout.contains("No space left on device"), "{}", outcome.stdout);
    assert_eq!(machine.succeed(MAIN_PROCESS), before.1);
    machine.succeed("vipwatch version");
    machine.succeed("rm /filler");
    machine.install(&["vipwatch"]);
    assert_ne!(installed(&machine), before.0);
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
}

#[test]
fn a_read_only_disk_stops_an_installation_and_leaves_no_file() {
    let machine = Root::debian(&suite()).boot();
    machine.succeed("mount --bind /usr /usr && mount -o remount,bind,ro /usr");
    let outcome = machine.run(&format!("dpkg --install {PACKAGES}/vipwatch_*.deb 2>&1"));
    assert!(!outcome.is_ok());
    assert!(outcome.stdout.contains("Read-only file system"), "{}", outcome.stdout);
    machine.succeed(
        "test ! -e /usr/bin/vipwatch && test ! -e /lib/systemd/system/vipwatch-node.service",
    );
    machine.succeed("umount --lazy /usr");
    machine.install(&["vipwatch"]);
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
}

/// Kills dpkg and its children while it runs `program`, which stands for the moment of the kill.
fn kill_upgrade_at(machine: &Machine, program: &str, condition: &str) {
    machine.write(
        &format!("/moment/{program}"),
        &format!(
            "#!/bin/sh\nif {condition}; then\n  echo $$ > /moment/reached\n  exec sleep infinity\nfi\n\
             PATH=/usr/sbin:/usr/bin:/sbin:/bin\nexec {program} \"$@\"\n"
        ),
    );
    machine.succeed(&format!("chmod 755 /moment/{program}"));
    let mut upgrade = machine.spawn(&format!(
        "exec setsid env PATH=/moment:$PATH dpkg --install {PACKAGES}/vipwatch_*.deb >/moment/output 2>&1"
    ));
    machine.wait_until("the moment of the kill", "test -s /moment/reached");
    machine.succeed(
        "python3 -c 'import os
os.killpg(os.getpgid(int(open(\"/moment/reached\").read())), 9)'",
    );
    assert!(!upgrade.wait().success());
    assert_ne!(installed(machine).split(' ').nth(1), Some("installed"));
}

#[test]
fn a_kill_while_the_new_version_is_configured_is_repaired_by_dpkg_configure() {
    let machine = previous();
    kill_upgrade_at(&machine, "systemd-sysusers", "true");
    machine.succeed("dpkg --configure -a");
    assert!(installed(&machine).ends_with(" installed"));
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
    machine.succeed("vipwatch status");
}

#[test]
fn a_kill_while_files_are_unpacked_is_repaired_by_the_next_installation() {
    let machine = previous();
    let first = machine.succeed(MAIN_PROCESS);
    kill_upgrade_at(&machine, "dpkg-deb", "[ \"$1\" = --fsys-tarfile ]");
    assert_eq!(machine.succeed(MAIN_PROCESS), first, "the previous version still runs");
    machine.succeed("vipwatch status");
    machine.install(&["vipwatch"]);
    assert!(installed(&machine).ends_with(" installed"));
    assert_ne!(machine.succeed(MAIN_PROCESS), first);
}

/// Stops one thread with ptrace, as a defect that blocks it would, until the process ends.
const STOP_THREAD: &str = "import ctypes, os, sys
libc, thread = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT
    if libc.ptrace(request, thread, 0, 0) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
open('/run/stopped', 'w').close()
os.waitpid(thread, 0x40000000)  # __WALL: the stop
os.waitpid(thread, 0x40000000)
";

#[test]
fn systemd_ends_and_starts_a_node_with_a_stuck_thread() {
    let machine = Root::debian(&suite()).boot();
    machine.write(
        "/etc/systemd/system/vipwatch-node.service.d/watchdog.conf",
        "[Service]\nWatchdogSec=3\nTimeoutAbortSec=3\n",
    );
    machine.install(&["vipwatch"]);
    let first = machine.succeed(MAIN_PROCESS);
    machine.write("/run/stop.py", STOP_THREAD);
    let mut tracer = machine.spawn(&format!("exec python3 /run/stop.py {first}"));
    machine.wait_until("the stop of the thread", "test -e /run/stopped");
    machine.wait_until(
        "the next run",
        &format!("systemctl is-active vipwatch-node.service && test $({MAIN_PROCESS}) -ne {first}"),
    );
    let log = machine.succeed("journalctl --unit vipwatch-node.service");
    assert!(log.contains("Watchdog timeout"), "{log}");
    tracer.kill();
    machine.succeed("vipwatch status");
}

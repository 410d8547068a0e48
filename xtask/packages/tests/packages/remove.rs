// SPDX-License-Identifier: Apache-2.0
//! Removal, purge, and the choices of the administrator during an upgrade.

use std::collections::BTreeSet;

use vipwatch_packages::{Machine, Root, suite};

/// Directories that other programs of the system change all the time.
const OTHERS: [&str; 5] = ["/proc", "/sys", "/dev", "/packages", "/tmp"];

/// The paths of all files, and the names of all users and groups.
fn traces(machine: &Machine) -> BTreeSet<String> {
    let leave_out: Vec<String> =
        OTHERS.iter().map(|path| format!("-path {path} -prune -o")).collect();
    let find = format!(
        "find / {} -print | grep -v -e ^/run/systemd/ -e ^/var/log/journal/ -e ^/run/log/",
        leave_out.join(" ")
    );
    let users = "getent passwd | cut -d: -f1,3; getent group | cut -d: -f1,3";
    let text = machine.succeed(&format!("{find}; {users}"));
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_purge_leaves_nothing_behind() {
    let machine = Root::debian(&suite()).boot();
    // dpkg creates files at its first use, for example a backup of its own state.
    machine.succeed("dpkg --configure -a; userdel --version >/dev/null 2>&1 || true");
    let before = traces(&machine);
    machine.install(&["vipwatch", "vipwatch-neutron"]);
    machine.wait_until("a history", "test -e /var/lib/vipwatch/history.sqlite");
    machine.succeed("dpkg --purge vipwatch-neutron vipwatch");
    let after = traces(&machine);
    let is_ours = |path: &&String| !before.contains(*path) && !path.starts_with("/var/lib/dpkg/");
    let left: Vec<&String> = after.iter().filter(is_ours).collect();
    assert!(left.is_empty(), "left behind: {left:#?}");
    let gone: Vec<&String> = before.difference(&after).collect();
    assert!(gone.is_empty(), "removed, but not from these packages: {gone:#?}");
    let units = machine.run("systemctl list-units --all --no-legend 'vipwatch*'").stdout;
    assert_eq!(units, "");
}

#[test]
fn a_purge_keeps_the_files_of_the_operator_and_removes_a_group_with_members() {
    let machine = Root::debian(&suite()).boot();
    machine.install(&["vipwatch"]);
    machine.succeed(
        "install -D --mode 755 /bin/true /etc/vipwatch/hooks/changed && mkdir /etc/vipwatch/empty
         echo '# changed' >>/etc/vipwatch/vipwatch.toml
         useradd deploy && usermod --append --groups vipwatch deploy",
    );
    let output = machine.succeed("dpkg --purge vipwatch 2>&1");
    assert!(output.contains("/etc/vipwatch has files that are not from the package"), "{output}");
    assert!(!output.contains("not removed because it has other members"), "{output}");
    let left = machine.succeed("find /etc/vipwatch -mindepth 1 | sort");
    assert_eq!(left, "/etc/vipwatch/hooks\n/etc/vipwatch/hooks/changed");
    assert!(!machine.run("getent passwd vipwatch").is_ok());
    assert!(!machine.run("getent group vipwatch").is_ok());
}

/// The commands for RPM and tarball, which have no purge.
#[test]
fn the_commands_of_the_guide_remove_everything_and_keep_the_files_of_the_operator() {
    let guide = include_str!("../../../../docs/guides/install.md");
    let (_, section) = guide.split_once("### Remove everything\n").unwrap();
    let (_, block) = section.split_once("```console\n").unwrap();
    let (block, _) = block.split_once("```\n").unwrap();
    let commands: Vec<&str> = block.lines().filter_map(|line| line.strip_prefix("# ")).collect();
    assert_eq!(commands.len(), block.lines().count(), "a command for each line: {block}");

    let root = Root::debian(&suite());
    let prepare = "dpkg-deb --fsys-tarfile /packages/vipwatch_*.deb | tar --extract --keep-directory-symlink --directory /
        systemd-sysusers vipwatch.conf
        install -D --mode 755 /bin/true /etc/vipwatch/hooks/changed && mkdir /etc/vipwatch/empty
        touch /etc/vipwatch/web.key /etc/vipwatch/vipwatch.toml.rpmsave
        mkdir --parents /var/lib/vipwatch /run/vipwatch && touch /var/lib/vipwatch/history.sqlite";
    root.run(prepare).expect();
    root.run(&commands.join("\n")).expect();
    let left = root.run("find /etc/vipwatch -mindepth 1 | sort").expect();
    assert_eq!(left, "/etc/vipwatch/hooks\n/etc/vipwatch/hooks/changed\n/etc/vipwatch/web.key");
    assert!(!root.run("ls -d /var/lib/vipwatch* /run/vipwatch* | grep .").is_ok());
    assert!(!root.run("getent passwd vipwatch || getent group vipwatch").is_ok());
}

#[test]
fn a_removal_stops_the_node_and_keeps_its_history_and_configuration() {
    let machine = Root::debian(&suite()).boot();
    machine.install(&["vipwatch"]);
    machine.wait_until("a history", "test -e /var/lib/vipwatch/history.sqlite");
    machine.succeed("dpkg --remove vipwatch");
    assert_eq!(machine.run("systemctl is-active vipwatch-node.service").stdout.trim(), "inactive");
    machine.succeed("test -e /var/lib/vipwatch/history.sqlite");
    machine.install(&["vipwatch"]);
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
}

#[test]
fn an_upgrade_keeps_a_disabled_stopped_or_masked_node_as_it_is() {
    let machine = Root::debian(&suite()).boot();
    machine.install(&["vipwatch"]);
    machine.succeed("systemctl disable --now vipwatch-node.service");
    machine.install(&["vipwatch"]);
    let state = |verb: &str| {
        machine.run(&format!("systemctl {verb} vipwatch-node.service")).stdout.trim().to_owned()
    };
    assert_eq!((state("is-enabled"), state("is-active")), ("disabled".into(), "inactive".into()));
    machine.succeed("systemctl mask vipwatch-node.service");
    machine.install(&["vipwatch"]);
    assert_eq!((state("is-enabled"), state("is-active")), ("masked".into(), "inactive".into()));
    machine.succeed(
        "systemctl unmask vipwatch-node.service && systemctl enable --now vipwatch-node.service",
    );
    let id = "systemctl show --property MainPID --value vipwatch-node.service";
    let first = machine.succeed(id);
    machine.install(&["vipwatch"]);
    assert_ne!(machine.succeed(id), first, "the upgrade restarts a running node");
}

/// Runs a maintainer script as dpkg does after an act that it gives up.
fn run_script(machine: &Machine, script: &str) {
    machine.succeed(&format!(
        "export DPKG_MAINTSCRIPT_PACKAGE=vipwatch; /var/lib/dpkg/info/vipwatch.{script}"
    ));
}

#[test]
fn an_act_that_dpkg_gives_up_starts_only_what_it_has_stopped() {
    let machine = Root::debian(&suite()).boot();
    machine.install(&["vipwatch"]);
    let state = || machine.run("systemctl is-active vipwatch-node.service").stdout;
    run_script(&machine, "prerm remove");
    assert_eq!(state().trim(), "inactive");
    run_script(&machine, "postinst abort-remove");
    assert_eq!(state().trim(), "active");
    machine.succeed("systemctl stop vipwatch-node.service");
    for act in ["prerm remove", "postinst abort-remove", "postinst abort-upgrade 1.0"] {
        run_script(&machine, act);
        assert_eq!(state().trim(), "inactive", "{act}");
    }
    let socket = machine.succeed("systemctl is-active vipwatch-hook-runner.socket");
    assert_eq!(socket, "active");
    machine.succeed("touch /run/vipwatch.install");
    run_script(&machine, "postrm abort-install");
    machine.succeed("test ! -e /run/vipwatch.install && test ! -e /run/vipwatch.stopped");
}

#[test]
fn a_purge_empties_a_state_directory_that_is_a_mount_point() {
    let machine = Root::debian(&suite()).boot();
    machine.succeed("mkdir /var/lib/vipwatch && mount -t tmpfs tmpfs /var/lib/vipwatch");
    machine.install(&["vipwatch"]);
    machine.wait_until("a history", "test -e /var/lib/vipwatch/history.sqlite");
    let output = machine.succeed("dpkg --purge vipwatch 2>&1");
    assert!(output.contains("vipwatch: /var/lib/vipwatch is not removed"), "{output}");
    assert_eq!(machine.succeed("find /var/lib/vipwatch -mindepth 1"), "");
    assert!(!machine.run("dpkg-query --show vipwatch").is_ok(), "dpkg has no record of it");
    machine.succeed("test ! -e /etc/vipwatch");
}

// SPDX-License-Identifier: Apache-2.0
//! The package vipwatch-neutron beside a package with Neutron's own script: in, out, upgrades, and everything that can go
//! wrong in between.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use vipwatch_packages::{CommandOutcome, Root, directory, neutron, suite};

/// The name that the agent executes.
pub(crate) const PROGRAM: &str = "/usr/bin/neutron-keepalived-state-change";
/// The drop-in of the package.
pub(crate) const OURS: &str = "/usr/lib/vipwatch/neutron-keepalived-state-change";
/// The configuration of the drop-in.
pub(crate) const CONF: &str = "/etc/neutron/neutron-keepalived-state-change.conf";

/// A root without running services.
pub(crate) struct NeutronRoot {
    root: Root,
}

impl NeutronRoot {
    pub(crate) fn new() -> Self {
        Self { root: Root::debian(&suite()) }
    }

    /// Runs a command that must succeed; returns its output, standard error too.
    #[track_caller]
    pub(crate) fn succeed(&self, script: &str) -> String {
        let outcome = self.run(script);
        assert!(outcome.is_ok(), "`{script}` ended with {:?}\n{}", outcome.code, outcome.text());
        outcome.text().trim().to_owned()
    }

    pub(crate) fn run(&self, script: &str) -> CommandOutcome {
        self.root.run(script)
    }

    /// Installs a package like Neutron's, with the real script of release 29 and this version; returns what dpkg has
    /// printed.
    pub(crate) fn install_neutron(&self, version: &str) -> String {
        let script = directory("VIPWATCH_NEUTRON_29").join("bin/neutron-keepalived-state-change");
        neutron::install(&self.root, "neutron-common", version, &script)
    }

    pub(crate) fn install(&self) -> CommandOutcome {
        self.run("dpkg -i /packages/vipwatch-neutron_*.deb 2>&1")
    }

    /// Checks that the agent finds vipwatch's program, and that Neutron's is unchanged under its second name.
    #[track_caller]
    pub(crate) fn expect_in_place(&self) {
        assert_eq!(self.succeed(&format!("readlink {PROGRAM}")), OURS);
        self.succeed(&format!("{PROGRAM} --version"));
        assert_eq!(self.succeed("dpkg -V neutron-common"), "", "Neutron's files are unchanged");
    }

    /// Checks that Neutron's program is back and that nothing else is left.
    #[track_caller]
    pub(crate) fn expect_back(&self) {
        self.succeed(&format!("test -f {PROGRAM} && ! test -L {PROGRAM}"));
        assert_eq!(self.succeed("dpkg -V neutron-common"), "", "byte for byte");
        assert_eq!(self.succeed(&format!("ls -d {PROGRAM}*")), PROGRAM);
        assert_eq!(self.succeed("dpkg-divert --list '*keepalived*'"), "");
    }

    pub(crate) fn conf(&self) -> String {
        self.run(&format!("cat {CONF}")).stdout
    }
}

#[test]
fn neutrons_program_comes_back_byte_for_byte() {
    let root = NeutronRoot::new();
    root.install_neutron("2:21.0.0-7");
    assert!(root.install().is_ok());
    root.expect_in_place();
    assert!(root.conf().contains("primary_word = primary"), "{}", root.conf());
    root.succeed("dpkg -r vipwatch-neutron 2>&1");
    root.expect_back();
    assert_eq!(root.conf(), "");
    assert!(root.install().is_ok());
    root.expect_in_place();
    root.succeed("dpkg -P vipwatch-neutron 2>&1");
    root.expect_back();
}

#[test]
fn an_upgrade_of_neutron_keeps_vipwatchs_program_in_place_and_the_word_right() {
    let root = NeutronRoot::new();
    // Without Neutron the package waits for it.
    assert!(root.install().is_ok());
    root.install_neutron("2:16.4.2-1ubuntu1");
    root.expect_in_place();
    assert!(root.conf().contains("primary_word = master"), "{}", root.conf());
    root.succeed(
        "cmp /etc/neutron/rootwrap.d/vipwatch.filters /usr/share/vipwatch-neutron/vipwatch.filters",
    );
    root.succeed("test -x /etc/neutron/kill_scripts/neutron-keepalived-state-change-monitor-kill");
    root.install_neutron("2:18.1.1-2");
    root.expect_in_place();

    assert!(root.conf().contains("primary_word = primary"), "{}", root.conf());
    root.succeed(
        "! test -e /etc/neutron/rootwrap.d/vipwatch.filters && ! test -e /etc/neutron/kill_scripts",
    );
    root.succeed("dpkg -i /packages/vipwatch-neutron_*.deb 2>&1");
    root.expect_in_place();
    root.succeed("dpkg -r vipwatch-neutron 2>&1");
    root.expect_back();
}

#[test]
fn the_kill_script_ends_a_monitor_on_a_system_without_the_program_kill() {
    let root = NeutronRoot::new();
    root.install_neutron("2:16.4.2-1");
    assert!(root.install().is_ok());
    root.succeed("rm -f /bin/kill /usr/bin/kill");
    // The script ends monitors only.
    root.succeed("cp /bin/sleep /tmp/neutron-keepalived-state-change");
    let mut monitor = Command::new("chroot")
        .arg(root.root.path())
        .args(["/tmp/neutron-keepalived-state-change", "infinity"])
        .spawn()
        .unwrap();
    let script = "/etc/neutron/kill_scripts/neutron-keepalived-state-change-monitor-kill";
    let outcome = root.run(&format!("{script} 15 {} 2>&1", monitor.id()));
    if !outcome.is_ok() {
        let _ = monitor.kill();
    }
    let status = vipwatch_testkit::monitor::end_of(&mut monitor).unwrap();
    assert!(outcome.is_ok(), "{}", outcome.text());
    assert_eq!(status.signal(), Some(15));
    let refused = root.run(&format!("{script} 15 {} 2>&1", monitor.id()));
    assert!(!refused.is_ok(), "the process does not exist any more: {}", refused.text());
}

#[test]
fn the_administrators_word_and_files_stay() {
    let root = NeutronRoot::new();
    root.install_neutron("2:16.4.2-1");
    let own = "[vipwatch]\nprimary_word = primary\n";
    root.succeed(&format!("printf '{}' > {CONF}", own.replace('\n', "\\n")));
    root.succeed(
        "echo mine > /etc/neutron/rootwrap.d/vipwatch.filters; mkdir /etc/neutron/kill_scripts",
    );
    assert!(root.install().is_ok());
    assert_eq!(root.conf(), own);
    root.succeed("dpkg -P vipwatch-neutron 2>&1");
    assert_eq!(root.conf(), own);
    assert_eq!(root.succeed("cat /etc/neutron/rootwrap.d/vipwatch.filters"), "mine");
    assert_eq!(
        root.succeed("test -d /etc/neutron/kill_scripts && ls -A /etc/neutron/kill_scripts"),
        ""
    );
}

#[test]
fn a_configuration_file_without_a_final_newline_keeps_its_last_line() {
    let root = NeutronRoot::new();
    root.install_neutron("2:16.4.2-1");
    root.succeed(&format!("printf '[DEFAULT]\\nlog_level = INFO' > {CONF}"));
    assert!(root.install().is_ok());
    let lines = "[DEFAULT]\nlog_level = INFO\n";
    let block = |conf: &str| conf.strip_prefix(lines).map(str::to_owned);
    let first = block(&root.conf()).unwrap_or_else(|| panic!("{}", root.conf()));
    assert!(first.starts_with("# BEGIN vipwatch-neutron\n"), "{first}");
    root.install_neutron("2:18.1.1-2");
    let second = block(&root.conf()).unwrap_or_else(|| panic!("{}", root.conf()));
    assert_eq!(second, first.replace("16", "18").replace("master", "primary"), "one block");
    root.succeed("dpkg -r vipwatch-neutron 2>&1");
    assert_eq!(root.conf(), lines);
}

#[test]
fn a_block_without_its_last_line_is_refused_and_no_line_is_deleted() {
    let root = NeutronRoot::new();
    root.install_neutron("2:16.4.2-1");
    let damaged = "# BEGIN vipwatch-neutron\n[vipwatch]\nprimary_word = primary\n[DEFAULT]\nlog_level = INFO\n";
    root.succeed(&format!("printf '{}' > {CONF}", damaged.replace('\n', "\\n")));
    let outcome = root.install();
    assert!(!outcome.is_ok() && outcome.text().contains("do not alternate"), "{}", outcome.text());
    assert!(outcome.text().contains("hint: delete these lines"), "{}", outcome.text());
    assert_eq!(root.conf(), damaged);
    root.succeed(&format!("test -f {PROGRAM} && ! test -L {PROGRAM}"));

    // The administrator repairs the file, and the installation continues.
    root.succeed(&format!("sed -i 1,3d {CONF} && dpkg --configure vipwatch-neutron 2>&1"));
    root.expect_in_place();
    root.succeed(&format!("sed -i '/^# END/d' {CONF} && echo verbose = true >> {CONF}"));
    let damaged = root.conf();
    let outcome = root.succeed("dpkg -P vipwatch-neutron 2>&1");
    assert!(outcome.contains("our lines in"), "{outcome}");
    root.expect_back();
    assert_eq!(root.conf(), damaged);
}

#[test]
fn a_foreign_diversion_is_refused_and_nothing_changes() {
    let root = NeutronRoot::new();
    root.install_neutron("2:21.0.0-7");
    root.succeed(&format!(
        "dpkg-divert --local --no-rename --divert {PROGRAM}.mine --add {PROGRAM}"
    ));
    let outcome = root.install();
    assert!(!outcome.is_ok() && outcome.text().contains("already diverted"), "{}", outcome.text());
    assert!(outcome.text().contains("hint: "), "{}", outcome.text());
    root.succeed(&format!(
        "test -f {PROGRAM} && ! test -L {PROGRAM} && ! test -e {PROGRAM}.neutron"
    ));
    assert_eq!(
        root.run("dpkg-query -W -f '${db:Status-Status}' vipwatch-neutron").stdout,
        "not-installed"
    );
    root.succeed("dpkg --audit");
    root.succeed(&format!("dpkg-divert --local --no-rename --remove {PROGRAM}"));
    assert!(root.install().is_ok());
    root.expect_in_place();
}

#[test]
fn a_foreign_file_with_the_second_name_is_refused_and_both_files_stay() {
    let root = NeutronRoot::new();
    root.install_neutron("2:21.0.0-7");
    let mine = format!("{PROGRAM}.neutron");
    let expect_unchanged = || {
        assert_eq!(root.succeed(&format!("cat {mine}")), "mine");
        root.succeed(&format!("test -f {PROGRAM} && ! test -L {PROGRAM}"));
        assert_eq!(root.succeed("dpkg -V neutron-common"), "");
    };
    let expect_refusal = |outcome: &CommandOutcome| {
        let text = outcome.text();
        assert!(!outcome.is_ok() && text.contains("is not from this package"), "{text}");
        assert!(text.contains("hint: move the file to another name"), "{text}");
        expect_unchanged();
    };
    root.succeed(&format!("echo mine > {mine}"));
    expect_refusal(&root.install());

    // The file appears after the unpacking; a removal does not take it for Neutron's.
    root.succeed(&format!("rm {mine} && dpkg --unpack /packages/vipwatch-neutron_*.deb 2>&1"));
    root.succeed(&format!("echo mine > {mine}"));
    expect_refusal(&root.run("dpkg --configure vipwatch-neutron 2>&1"));
    root.succeed("dpkg -r vipwatch-neutron 2>&1");
    expect_unchanged();

    root.succeed(&format!("rm {mine}"));
    assert!(root.install().is_ok());
    root.expect_in_place();
}

#[test]
fn a_removal_without_neutrons_file_names_the_package_to_reinstall() {
    let root = NeutronRoot::new();
    root.install_neutron("2:21.0.0-7");
    assert!(root.install().is_ok());
    root.succeed(&format!("rm {PROGRAM}.neutron"));
    let text = root.succeed("dpkg -r vipwatch-neutron 2>&1");
    assert!(text.contains("hint: apt-get install --reinstall neutron-common"), "{text}");
    root.succeed("dpkg -i /neutron.deb 2>&1");
    root.expect_back();
}

#[test]
fn an_unknown_release_is_named_and_the_program_works() {
    let root = NeutronRoot::new();
    let script = directory("VIPWATCH_NEUTRON_29").join("bin/neutron-keepalived-state-change");
    neutron::install(&root.root, "private-cloud", "1", &script);
    let outcome = root.install();
    assert!(
        outcome.is_ok() && outcome.text().contains("release of Neutron is not known"),
        "{}",
        outcome.text()
    );
    assert_eq!(root.succeed(&format!("readlink {PROGRAM}")), OURS);
    assert_eq!(root.conf(), "");
}

/// A shell reads its script while it runs. If the file were rewritten, the shell would continue in the middle of other text.
#[test]
fn a_running_script_continues_through_installation_and_removal() {
    let root = NeutronRoot::new();
    let program = root.root.path().join("waiting-script");
    let text = "#!/bin/sh\necho running > /log\nwhile ! test -e /go; do sleep 0.05; done\necho finished >> /log\nexit 0\n";
    vipwatch_testkit::run(
        Command::new("sh").args(["-c", "printf %s \"$1\" > \"$2\"", "sh", text]).arg(&program),
    );
    neutron::install(&root.root, "neutron-common", "2:29.0.0-1", &program);
    let mut script = Command::new("chroot").arg(root.root.path()).arg(PROGRAM).spawn().unwrap();
    vipwatch_testkit::wait_for("the script", || {
        std::fs::read_to_string(root.root.path().join("log")).ok().filter(|log| !log.is_empty())
    });
    assert!(root.install().is_ok());
    root.succeed("dpkg -r vipwatch-neutron 2>&1");
    assert!(script.try_wait().unwrap().is_none(), "it runs");
    root.succeed("touch /go");
    assert!(vipwatch_testkit::monitor::end_of(&mut script).unwrap().success());
    assert_eq!(root.succeed("cat /log"), "running\nfinished");
}

/// Programs that kill the script that calls them, at call number `$KILL_AT` of all of them.
const KILLERS: &str = r#"
mkdir -p /killers
for name in mv ln rm cp cmp install dpkg-divert; do
    real=$(PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v $name)
    cat > /killers/$name <<END
#!/bin/sh
count=\$(( \$(/bin/cat /killers/count) + 1 ))
echo \$count > /killers/count
if [ "\$count" = "\$KILL_AT" ]; then
    [ "\$KILL_WHEN" = before ] || $real "\$@"
    kill -KILL \$PPID
    exit 1
fi
exec $real "\$@"
END
    chmod 755 /killers/$name
done
"#;

/// Runs `command` again and again, killed at another step each time, until it comes through.
fn kill_at_each_step(root: &NeutronRoot, command: &str, mut check: impl FnMut(&str)) {
    for when in ["before", "after"] {
        let mut number = 1;
        loop {
            root.succeed("echo 0 > /killers/count");
            let line = format!(
                "KILL_AT={number} KILL_WHEN={when} PATH=/killers:/usr/sbin:/usr/bin:/sbin:/bin {command} 2>&1"
            );
            root.run(&line);
            let count: u32 = root.succeed("cat /killers/count").parse().unwrap();
            // The agent finds a program at every moment.
            root.succeed(&format!("test -x {PROGRAM}"));
            check(&format!("killed {when} call {number}"));
            if count < number {
                break;
            }
            number += 1;
        }
        assert!(number > 3, "the programs were not called");
    }
}

#[test]
fn a_kill_at_any_step_of_the_installation_leaves_a_program_and_can_be_repeated() {
    let root = NeutronRoot::new();
    root.install_neutron("2:16.4.2-1");
    root.succeed("useradd --system neutron");
    root.succeed(KILLERS);
    kill_at_each_step(&root, "dpkg -i /packages/vipwatch-neutron_*.deb", |step| {
        let outcome = root.run("dpkg --configure -a 2>&1");
        assert!(outcome.is_ok(), "{step}: {}", outcome.text());
        // A kill before the files are unpacked leaves nothing to configure.
        let status = root.run("dpkg-query -W -f '${db:Status-Status}' vipwatch-neutron").stdout;
        assert!(status == "installed" || root.install().is_ok(), "{step}");
        root.expect_in_place();
        root.succeed("dpkg -P vipwatch-neutron 2>&1");
        root.expect_back();
        root.succeed(
            "! test -e /etc/neutron/rootwrap.d/vipwatch.filters && ! test -e /var/lib/vipwatch-neutron
             ! ls /etc/logrotate.d | grep keepalived",
        );
        assert_eq!(root.succeed("ls -A /etc/neutron"), "rootwrap.conf\nrootwrap.d", "{step}");
    });
}

#[test]
fn a_kill_at_any_step_of_the_removal_leaves_a_program_and_can_be_repeated() {
    let root = NeutronRoot::new();
    root.install_neutron("2:16.4.2-1");
    root.succeed("useradd --system neutron");
    root.succeed(KILLERS);
    assert!(root.install().is_ok());
    kill_at_each_step(&root, "dpkg -P vipwatch-neutron", |step| {
        let outcome = root.run("dpkg -P vipwatch-neutron 2>&1");
        assert!(outcome.is_ok(), "{step}: {}", outcome.text());
        root.expect_back();
        assert_eq!(root.succeed("ls -A /etc/neutron"), "rootwrap.conf\nrootwrap.d", "{step}");
        assert!(root.install().is_ok(), "{step}");
        root.expect_in_place();
    });
}

#[test]
fn a_kill_at_any_step_of_an_upgrade_leaves_files_that_the_next_call_replaces() {
    let root = NeutronRoot::new();
    root.install_neutron("2:16.4.2-1");
    root.succeed("useradd --system neutron");
    root.succeed(KILLERS);
    assert!(root.install().is_ok());
    let setup = "/usr/lib/vipwatch/neutron-setup configure dpkg";
    let newer = "for file in /usr/share/vipwatch-neutron/*; do echo '# newer' >> $file; done";
    root.succeed(newer);
    kill_at_each_step(&root, setup, |step| {
        let text = root.succeed(&format!("{setup} 2>&1"));
        assert!(!text.contains("it stays"), "{step}: {text}");
        root.succeed(
            "cd /usr/share/vipwatch-neutron && cmp vipwatch.filters /etc/neutron/rootwrap.d/vipwatch.filters && \
             cmp neutron-keepalived-state-change-monitor-kill \
             /etc/neutron/kill_scripts/neutron-keepalived-state-change-monitor-kill",
        );
        root.succeed(newer);
    });
    // The last kill leaves the old file beside the copy of the new one: a purge removes it too.
    root.succeed(
        "cd /var/lib/vipwatch-neutron && cp vipwatch.filters vipwatch.filters.before && echo >> vipwatch.filters",
    );
    root.succeed("dpkg -P vipwatch-neutron 2>&1");
    root.expect_back();
    root.succeed("! test -e /var/lib/vipwatch-neutron");
    assert_eq!(
        root.succeed("ls -A /etc/neutron /etc/neutron/rootwrap.d"),
        "/etc/neutron:\nrootwrap.conf\nrootwrap.d\n\n/etc/neutron/rootwrap.d:"
    );
}

/// The directory of Neutron's program is on a file system of its own, which becomes read-only or has no room.
#[test]
fn a_read_only_or_full_disk_is_named_and_nothing_is_lost() {
    let root = NeutronRoot::new();
    root.install_neutron("2:16.4.2-1");
    let etc = root.root.path().join("etc/neutron");
    let mount = |options: &str| {
        vipwatch_testkit::run(
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&etc),
        );
    };
    mount("ro");
    let outcome = root.install();
    assert!(!outcome.is_ok() && outcome.text().contains("hint: "), "{}", outcome.text());
    root.succeed(&format!("test -f {PROGRAM} && ! test -L {PROGRAM}"));
    vipwatch_testkit::run(Command::new("umount").arg(&etc));
    mount("size=4k");
    vipwatch_testkit::run(
        Command::new("sh")
            .args(["-c", "mkdir $0/rootwrap.d && head -c 4096 /dev/zero > $0/full"])
            .arg(&etc),
    );
    let outcome = root.run("dpkg --configure -a 2>&1");
    let hint = "make room on the disk, then run: dpkg --configure vipwatch-neutron";
    assert!(!outcome.is_ok() && outcome.text().contains(hint), "{}", outcome.text());
    root.succeed(&format!("test -f {PROGRAM} && ! test -L {PROGRAM}"));
    vipwatch_testkit::run(Command::new("umount").arg(&etc));
    root.succeed("dpkg --configure -a 2>&1");
    root.expect_in_place();
    root.succeed("dpkg -P vipwatch-neutron 2>&1");
    root.expect_back();
}

#[test]
fn a_monitor_lives_through_installation_and_removal_and_is_replaced_in_the_cgroup_of_its_service() {
    let root = NeutronRoot::new();
    neutron::install_waiting_monitor(&root.root, "2:29.0.0-1");
    let machine = root.root.boot();
    machine.install(&["vipwatch"]);
    machine.succeed(neutron::ROUTER);
    let pid =
        || machine.wait_until("a monitor", "cat /var/lib/neutron/external/pids/*.monitor.pid");
    machine.wait_until("the agent", "test -S /var/lib/neutron/keepalived-state-change");
    let script = pid();
    machine.install(&["vipwatch-neutron"]);
    assert_eq!(pid(), script);
    machine.succeed(&format!("test -d /proc/{script}"));

    // From a service of its own, as from a login session.
    let switch = |command: &str| {
        machine.succeed(&format!(
            "systemd-run --quiet --wait --pipe --collect vipwatch-neutron-switch {command} 2>&1"
        ))
    };
    switch("to-vipwatch");
    let native = pid();
    assert_ne!(native, script);
    assert_eq!(machine.succeed(&format!("readlink /proc/{native}/exe")), OURS);
    let cgroup = machine.succeed(&format!("cat /proc/{native}/cgroup"));
    assert!(cgroup.contains("neutron-l3-agent.service"), "{cgroup}");
    let status = switch("status");
    assert!(status.contains("vipwatch") && !status.contains("problem"), "{status}");

    // Back, there again, and out: the monitor lives on without the package.
    switch("to-neutron");
    assert_ne!(machine.succeed(&format!("readlink /proc/{}/exe", pid())), OURS);
    switch("to-vipwatch");
    let native = pid();
    machine.succeed("dpkg --remove vipwatch-neutron");
    assert_eq!(pid(), native);
    let executable = machine.succeed(&format!("readlink /proc/{native}/exe"));
    assert!(executable.starts_with(OURS), "{executable}");
    machine.succeed(&format!("test -f {PROGRAM} && ! test -L {PROGRAM} && dpkg -V neutron-common"));
}

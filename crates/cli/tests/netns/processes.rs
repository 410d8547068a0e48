// SPDX-License-Identifier: Apache-2.0
//! The processes of keepalived: discovery from them, and the findings about them. Each test runs real keepalived.
//!
//! A node with processes sees the keepaliveds of other tests, too: each test looks at its own instances only, which
//! have names of their own.

mod loaded;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use vipwatch_testkit::keepalived::Keepalived;
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, wait_for, wait_showing, wait_within_showing};

use crate::support::{PROGRAM, query_json, role, wait_for_role, write};

/// Longest time until a finding opens that a periodic check must see first: 10 s, and 5 s of settle time.
const CHECK_LIMIT: std::time::Duration = std::time::Duration::from_mins(1);

/// A keepalived in a namespace, and a node that has nothing but its processes to find it.
struct ProcessLab {
    lab: Lab,
    netns: TestNetns,
    fixture: NodeFixture,
    /// The name of the instance, which no other test uses.
    name: String,
}

impl ProcessLab {
    fn new(name: &str) -> Self {
        let lab = Lab::new();
        let netns = lab.netns("k");
        netns.add_link("eth0");
        netns.ip("address add 192.0.2.1/24 dev eth0");
        let fixture = NodeFixture::new(Path::new(PROGRAM), lab.path()).with_processes();
        let name = format!("{name}_{}", lab.number());
        Self { lab, netns, fixture, name }
    }

    fn directory(&self, name: &str) -> PathBuf {
        let directory = self.lab.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        directory
    }

    fn conf(&self) -> String {
        conf(&self.name, 51, "192.0.2.9/24")
    }

    /// Starts keepalived with a file of its own, and waits until it holds the address.
    fn start_keepalived(&self) -> Keepalived {
        let keepalived =
            Keepalived::start_with(&self.netns, &self.directory("keepalived"), &self.conf());
        self.wait_for_address();
        keepalived
    }

    fn wait_for_address(&self) {
        wait_for("keepalived to hold the address", || {
            self.netns.addresses("eth0").contains("192.0.2.9/24").then_some(())
        });
    }

    fn pid(&self, file: &str) -> u32 {
        let file = self.lab.path().join("keepalived").join(file);
        wait_for("the pid file", || std::fs::read_to_string(&file).ok()?.trim().parse().ok())
    }

    /// The findings about the instance, sorted.
    fn findings(&self) -> Vec<Value> {
        findings(&self.fixture, &self.name)
    }

    fn finding_names(&self) -> Vec<String> {
        let names = self.findings().into_iter();
        names.map(|finding| finding["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    #[track_caller]
    fn wait_for_findings(&self, expected: &[&str]) {
        let names = || self.finding_names();
        let details = || format!("{:?}\n{}", self.findings(), self.fixture.log());
        wait_within_showing(CHECK_LIMIT, &format!("{expected:?}"), details, || {
            (names() == expected).then_some(())
        });
    }

    /// The text of the only finding.
    fn text(&self) -> String {
        self.findings()[0]["text"].as_str().unwrap_or_default().to_owned()
    }

    /// Checks that the log has no finding about this instance; it may have some about those of other tests.
    #[track_caller]
    fn assert_no_finding_was_opened(&self) {
        let log = self.fixture.log();
        let is_own = |line: &&str| line.contains("audit finding") && line.contains(&self.name);
        assert_eq!(log.lines().find(is_own), None);
    }

    fn doctor_exit_code(&self) -> Option<i32> {
        self.fixture.run(&["doctor"]).status.code()
    }
}

fn conf(name: &str, vrid: u8, vip: &str) -> String {
    format!(
        "vrrp_instance {name} {{\n interface eth0\n virtual_router_id {vrid}\n priority 100\n advert_int 1\n \
         virtual_ipaddress {{\n  {vip} dev eth0\n }}\n}}\n"
    )
}

fn findings(fixture: &NodeFixture, id: &str) -> Vec<Value> {
    let answer = query_json(fixture, &["doctor"]);
    let mut items: Vec<Value> = answer["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["id"].as_str() == Some(id))
        .cloned()
        .collect();
    items.sort_by_key(|item| item["name"].to_string());
    items
}

/// The ids that begin with `start`.
fn ids(fixture: &NodeFixture, start: &str) -> Vec<String> {
    let answer = query_json(fixture, &["status"]);
    let instances = answer["instances"].as_array().unwrap().iter();
    let ids = instances.map(|one| one["id"].as_str().unwrap().to_owned());
    ids.filter(|id| id.starts_with(start)).collect()
}

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -{name} {pid}");
}

/// A process that a test ends.
struct OtherProcess(Child);

impl Drop for OtherProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(command: &mut Command) -> OtherProcess {
    OtherProcess(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap())
}

#[test]
fn status_shows_the_instances_of_two_keepaliveds_with_files_elsewhere() {
    let lab = ProcessLab::new("EARLY");
    let _first = lab.start_keepalived();
    let node = lab.fixture.start();
    assert_eq!(role(&lab.fixture, &lab.name), "primary");
    let other = lab.lab.netns("other");
    other.add_link("eth0");
    other.ip("address add 192.0.2.2/24 dev eth0");
    let late = format!("LATE_{}", lab.lab.number());
    let directory = lab.directory("late");
    let second = Keepalived::start_with(&other, &directory, &conf(&late, 52, "192.0.2.8/24"));
    wait_for("the late instance", || ids(&lab.fixture, &late).pop());
    wait_for_role(&lab.fixture, &late, "primary");
    let shown = query_json(&lab.fixture, &["show", &late]);
    assert_eq!(shown["instance"]["netns"], other.name(), "{shown}");
    drop(node);
    let printed = lab.fixture.run_text(&["status", "--direct"]);
    assert!(printed.contains(&lab.name) && printed.contains(&late), "{printed}");
    drop(second);
}

#[test]
fn two_keepaliveds_with_the_same_instance_name_are_both_followed() {
    let lab = ProcessLab::new("SAME");
    let _first = lab.start_keepalived();
    let other = lab.lab.netns("o");
    other.add_link("eth0");
    other.ip("address add 192.0.2.2/24 dev eth0");
    let directory = lab.directory("other");
    let _second = Keepalived::start_with(&other, &directory, &conf(&lab.name, 52, "192.0.2.8/24"));
    let _node = lab.fixture.start();
    let ids = || ids(&lab.fixture, &lab.name);
    let netns = [&lab.netns, &other].map(|netns| format!("{}.{}", lab.name, netns.name()));
    wait_showing(
        "both instances",
        || format!("{:?}", ids()),
        || {
            let ids = ids();
            let is_other = |id: &String| netns.contains(id);
            (ids.len() == 2 && ids.contains(&lab.name) && ids.iter().any(is_other)).then_some(())
        },
    );
}

#[test]
fn a_killed_keepalived_that_leaves_its_address_is_found_until_it_starts_again() {
    let lab = ProcessLab::new("KILLED");
    let keepalived = lab.start_keepalived();
    let node = lab.fixture.start();
    lab.wait_for_findings(&[]);
    let parent = lab.pid("keepalived.pid");
    keepalived.kill();
    lab.wait_for_findings(&["keepalived-gone-address-left"]);
    assert_eq!(lab.doctor_exit_code(), Some(1));
    let text = lab.text();
    let file = lab.lab.path().join("keepalived/keepalived.conf");
    assert!(text.contains(file.to_str().unwrap()) && text.contains("pid"), "{text} {parent}");
    lab.fixture.wait_for_log("keepalived-gone-address-left");
    assert!(node.stop().success());
    let _node = lab.fixture.start();
    lab.wait_for_findings(&["keepalived-gone-address-left"]);
    lab.netns.ip("address del 192.0.2.9/24 dev eth0");
    lab.wait_for_findings(&["keepalived-gone"]);
    // The first process of the sandbox does not collect the killed child, which its pid file keeps alive for keepalived.
    for file in ["keepalived.pid", "keepalived-vrrp.pid"] {
        std::fs::remove_file(lab.lab.path().join("keepalived").join(file)).unwrap();
    }
    let _again = lab.start_keepalived();
    lab.wait_for_findings(&[]);
    lab.fixture.wait_for_log("finding is over");
}

#[test]
fn a_restart_of_keepalived_opens_no_finding() {
    let lab = ProcessLab::new("RESTARTED");
    let keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    let show = || query_json(&lab.fixture, &["show", &lab.name]);
    wait_for("the process", || (show()["keepalived"]["state"] == "runs").then_some(()));
    keepalived.stop();
    wait_for("its end", || (show()["keepalived"]["state"] == "gone").then_some(()));
    assert_eq!(lab.finding_names(), [""; 0], "a finding this young is not shown");
    let _again = lab.start_keepalived();
    wait_for("the new process", || (show()["keepalived"]["state"] == "runs").then_some(()));
    // The instance is audited some seconds after the last change of its processes.
    let audited = show()["audited_at"].clone();
    let is_audited = || !show()["audited_at"].is_null() && show()["audited_at"] != audited;
    wait_showing("an audit", || show().to_string(), || is_audited().then_some(()));
    assert_eq!(lab.finding_names(), [""; 0]);
    lab.assert_no_finding_was_opened();
}

#[test]
fn a_stopped_vrrp_child_is_found_until_it_continues() {
    let lab = ProcessLab::new("STOPPED");
    let _keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    let child = lab.pid("keepalived-vrrp.pid");
    signal("STOP", child);
    lab.wait_for_findings(&["keepalived-frozen-address-left"]);
    let text = lab.text();
    assert!(text.contains(&format!("pid {child}")) && text.contains("by a signal"), "{text}");
    assert_eq!(lab.doctor_exit_code(), Some(1));
    signal("CONT", child);
    lab.wait_for_findings(&[]);
}

#[test]
fn a_vrrp_child_that_the_parent_starts_again_leaves_no_finding() {
    let lab = ProcessLab::new("CHILD");
    let _keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    let child = lab.pid("keepalived-vrrp.pid");
    signal("KILL", child);
    let child = wait_for("another child", || {
        Some(lab.pid("keepalived-vrrp.pid")).filter(|pid| *pid != child)
    });
    wait_for("the node to see the child", || pids_of_children(&lab).contains(&child).then_some(()));
    lab.wait_for_address();
    assert_eq!(lab.finding_names(), [""; 0]);
    lab.assert_no_finding_was_opened();
}

#[test]
fn a_killed_vrrp_child_below_a_stopped_parent_is_missing() {
    let lab = ProcessLab::new("CHILDLESS");
    let _keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    let (parent, child) = (lab.pid("keepalived.pid"), lab.pid("keepalived-vrrp.pid"));
    signal("STOP", parent);
    signal("KILL", child);
    lab.wait_for_findings(&["keepalived-parent-frozen", "keepalived-vrrp-child-missing"]);
    signal("CONT", parent);
    lab.wait_for_findings(&[]);
}

#[test]
fn a_vrrp_child_that_is_killed_again_and_again_is_a_crash_loop() {
    let lab = ProcessLab::new("LOOP");
    let _keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    let mut child = lab.pid("keepalived-vrrp.pid");
    for _ in 0..5 {
        signal("KILL", child);
        let before = child;
        child = wait_for("another child", || {
            Some(lab.pid("keepalived-vrrp.pid")).filter(|pid| *pid != before)
        });
        // The node counts a child when it has seen it.
        wait_for("the node to see the child", || {
            pids_of_children(&lab).contains(&child).then_some(())
        });
    }
    let is_found = || lab.finding_names().contains(&"keepalived-crash-loop".to_owned());
    wait_within_showing(
        CHECK_LIMIT,
        "the crash loop",
        || lab.fixture.log(),
        || is_found().then_some(()),
    );
}

/// The pids of the VRRP children that the node knows.
fn pids_of_children(lab: &ProcessLab) -> Vec<u32> {
    let answer = query_json(&lab.fixture, &["show", &lab.name]);
    let pid = answer["keepalived"]["vrrp_pid"].as_u64();
    pid.and_then(|pid| u32::try_from(pid).ok()).into_iter().collect()
}

#[test]
fn a_keepalived_that_was_never_started_is_found() {
    let lab = ProcessLab::new("NEVER");
    let text = format!("net_namespace {}\n{}", lab.netns.name(), lab.conf());
    write(&lab.fixture.keepalived_conf(), &text);
    let _node = lab.fixture.start();
    lab.wait_for_findings(&["keepalived-gone"]);
    assert_eq!(role(&lab.fixture, &lab.name), "backup");
    assert_eq!(lab.doctor_exit_code(), Some(1));
    lab.netns.ip("address add 192.0.2.9/24 dev eth0");
    lab.wait_for_findings(&["keepalived-gone-address-left"]);
}

#[test]
fn a_program_that_is_only_named_keepalived_does_not_count() {
    let lab = ProcessLab::new("NAMED");
    let conf = lab.fixture.keepalived_conf();
    let text = format!("net_namespace {}\n{}", lab.netns.name(), lab.conf());
    write(&conf, &text);
    let copy = lab.directory("bin").join("keepalived");
    std::fs::copy("/bin/bash", &copy).unwrap();
    let wait = "read < /dev/null; while :; do sleep 60; done";
    let name = format!("exec -a keepalived {} -c '{wait}' -f {}", "/bin/bash", conf.display());
    let _named = spawn(Command::new("/bin/bash").args(["-c", &name]));
    let _copied = spawn(Command::new(&copy).args(["-c", wait, "-f"]).arg(&conf));
    let _node = lab.fixture.start();
    lab.wait_for_findings(&["keepalived-gone"]);
}

#[test]
fn a_changed_configuration_is_pending_until_keepalived_reloads() {
    let lab = ProcessLab::new("EDITED");
    let _keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    let file = lab.lab.path().join("keepalived/keepalived.conf");
    // The same lines are no change.
    write(&file, &format!("# a comment\n{}", lab.conf()));
    lab.wait_for_findings(&[]);
    write(&file, &lab.conf().replace("priority 100", "priority 90"));
    lab.wait_for_findings(&["keepalived-reload-pending"]);
    assert!(lab.text().contains(file.to_str().unwrap()), "{}", lab.text());
    signal("HUP", lab.pid("keepalived.pid"));
    lab.wait_for_findings(&[]);
}

#[test]
fn a_pid_file_that_names_a_stranger_is_found() {
    let lab = ProcessLab::new("STRANGER");
    let keepalived = lab.start_keepalived();
    let _node = lab.fixture.start();
    lab.wait_for_findings(&[]);
    let sleep = spawn(Command::new("sleep").arg("600"));
    let file = lab.lab.path().join("keepalived/keepalived.pid");
    keepalived.kill();
    write(&file, &format!("{}\n", sleep.0.id()));
    lab.wait_for_findings(&["keepalived-gone-address-left", "keepalived-pid-file-wrong"]);
    let text = lab.findings()[1]["text"].to_string();
    assert!(text.contains("sleep") && text.contains(file.to_str().unwrap()), "{text}");
}

#[test]
fn keepalived_of_a_router_is_found_by_its_configuration_and_not_by_its_pid_file() {
    let lab = ProcessLab::new("r");
    let id = lab.name.replace('_', "-");
    let netns = TestNetns::create(&format!("qrouter-{id}"));
    netns.add_link("eth0");
    let directory = lab.lab.path().join("ha_confs").join(&id);
    std::fs::create_dir_all(&directory).unwrap();
    write(&directory.join("state"), "backup");
    write(&directory.join("keepalived.conf"), &conf("VR_1", 1, "169.254.0.1/24"));
    let sleep = spawn(Command::new("sleep").arg("600"));
    let pid_file = lab.lab.path().join(format!("ha_confs/{id}.pid.keepalived"));
    write(&pid_file, &sleep.0.id().to_string());
    let _node = lab.fixture.start();
    let names = || -> Vec<String> {
        let findings = findings(&lab.fixture, &id).into_iter();
        findings.map(|finding| finding["name"].as_str().unwrap().to_owned()).collect()
    };
    wait_within_showing(
        CHECK_LIMIT,
        "the missing keepalived",
        || lab.fixture.log(),
        || (names() == ["keepalived-gone", "keepalived-pid-file-wrong"]).then_some(()),
    );
    std::fs::remove_file(&pid_file).unwrap();
    wait_for("no pid file", || (names() == ["keepalived-gone"]).then_some(()));
    let _keepalived =
        Keepalived::start_with(&netns, &directory, &conf("VR_1", 1, "169.254.0.1/24"));
    wait_within_showing(
        CHECK_LIMIT,
        "keepalived to be found",
        || lab.fixture.log(),
        || {
            let names = names();
            (!names.iter().any(|name| name.starts_with("keepalived"))).then_some(())
        },
    );
}

#[test]
fn files_are_found_by_pattern_and_left_out_by_exclude() {
    let lab = ProcessLab::new("PATTERN");
    let directory = lab.directory("conf.d");
    let netns = lab.netns.name();
    for (name, vrid) in [("a", 51), ("b", 52)] {
        let text = conf(&format!("{}{name}", lab.name), vrid, "192.0.2.9/24");
        write(&directory.join(format!("{name}.conf")), &format!("net_namespace {netns}\n{text}"));
    }
    lab.fixture.configure(&format!(
        "[find]\nprocesses = false\nkeepalived_conf = [{:?}]\nexclude = {:?}\n",
        directory.join("*.conf"),
        directory.join("b.*"),
    ));
    let output = lab.fixture.run_text(&["discover"]);
    assert!(output.contains(&format!("{}a", lab.name)), "{output}");
    assert!(!output.contains(&format!("{}b", lab.name)), "{output}");
}

/// Words that run a program as a user without rights.
const AS_NOBODY: [&str; 5] =
    ["--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--"];

#[test]
fn a_user_without_rights_cannot_hide_that_keepalived_is_gone() {
    let lab = ProcessLab::new("HIDDEN");
    let conf = lab.fixture.keepalived_conf();
    write(&conf, &format!("net_namespace {}\n{}", lab.netns.name(), lab.conf()));
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(lab.lab.path(), open).unwrap();
    // Programs with the name of keepalived: one without and one with its keywords, which waits for a line.
    let sleep = lab.directory("sleep").join("keepalived");
    std::fs::copy("/bin/sleep", &sleep).unwrap();
    let shell = lab.directory("shell").join("keepalived");
    std::fs::copy("/bin/bash", &shell).unwrap();
    let mut file = std::fs::File::options().append(true).open(&shell).unwrap();
    std::io::Write::write_all(&mut file, b"vrrp_instance").unwrap();
    drop(file);
    let pipe = lab.lab.path().join("pipe");
    assert!(Command::new("mkfifo").args(["-m", "666"]).arg(&pipe).status().unwrap().success());
    let script = lab.lab.path().join("k.conf");
    write(&script, &format!("! read line <>{}\n", pipe.display()));
    let run = |words: &[&str], program: &Path, args: &[&str]| {
        let mut command = lab.netns.command("setpriv");
        spawn(command.args(AS_NOBODY).args(words).arg(program).args(args))
    };
    let fake = ["-f", script.to_str().unwrap()];
    let _sleep = run(&[], &sleep, &["1000000"]);
    let _shell = run(&[], &shell, &fake);
    // In a user namespace of its own, this user has every capability, and none here.
    let _root = run(&["unshare", "--user", "--map-root-user"], &shell, &fake);
    // The kernel cannot show a path of more than 4,096 bytes, and a process chooses its own name.
    let deep = lab.directory("deep");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&deep, open).unwrap();
    let script = "chdir shift; for (1..25) { mkdir 'd' x 200; chdir 'd' x 200 } \
                  system('cp', '/usr/bin/perl', 'other'); \
                  exec './other', '-e', '$0 = q(keepalived); sleep 1 while 1'";
    let words = ["unshare", "--user", "--map-root-user"];
    let deep = deep.to_str().unwrap();
    let _deep = run(&words, Path::new("perl"), &["-e", script, deep]);
    wait_for("the process in a deep directory", || {
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let names = pids.map(|entry| std::fs::read_link(entry.path().join("exe")));
        let is_too_long = |link: &std::io::Result<PathBuf>| {
            link.as_ref().is_err_and(|error| error.raw_os_error() == Some(36))
        };
        names.into_iter().find(is_too_long).map(|_| ())
    });
    let _node = lab.fixture.start();
    lab.wait_for_findings(&["keepalived-gone"]);
}

#[test]
fn keepalived_of_another_user_with_the_right_to_change_addresses_counts() {
    let lab = ProcessLab::new("USER");
    let directory = lab.directory("user");
    let file = directory.join("keepalived.conf");
    write(&file, &lab.conf());
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(lab.lab.path(), open).unwrap();
    std::os::unix::fs::chown(&directory, Some(65534), Some(65534)).unwrap();
    let mut command = lab.netns.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["--inh-caps=+net_admin,+net_raw", "--ambient-caps=+net_admin,+net_raw"]);
    command.args(["keepalived", "-n", "-P", "-l", "-f"]).arg(&file);
    command.arg("-p").arg(directory.join("a.pid")).arg("-r").arg(directory.join("b.pid"));
    let keepalived = spawn(command.stderr(Stdio::null()));
    lab.wait_for_address();
    let _node = lab.fixture.start();
    wait_for("the instance", || ids(&lab.fixture, &lab.name).pop());
    wait_for_role(&lab.fixture, &lab.name, "primary");
    lab.wait_for_findings(&[]);
    drop(keepalived);
    let is_gone = |name: &String| name.starts_with("keepalived-gone");
    wait_within_showing(
        CHECK_LIMIT,
        "keepalived-gone",
        || lab.fixture.log(),
        || lab.finding_names().iter().any(is_gone).then_some(()),
    );
}

/// A file that Neutron's user can write must not stop the node for the other instances.
#[test]
fn a_hostile_file_of_one_router_is_a_problem_and_the_others_are_followed() {
    let lab = ProcessLab::new("HOSTILE");
    let text = format!("net_namespace {}\n{}", lab.netns.name(), lab.conf());
    write(&lab.fixture.keepalived_conf(), &text);
    let node = lab.fixture.start();
    let router = lab.lab.path().join("ha_confs/hostile/keepalived.conf");
    let braces = format!("include {}\n", "{a,b}".repeat(200));
    let instances: Vec<String> =
        (0..11_000).map(|n| format!("vrrp_instance I{n} {{\n}}\n")).collect();
    let mistakes = "vrrp_instance {\n}\n".repeat(6_000);
    for (text, expected) in [
        (braces, "Neutron writes no include"),
        (instances.concat(), "more than 10000 vrrp_instance blocks"),
        (mistakes, "more problems are not listed"),
    ] {
        write(&router, &text);
        let known = || query_json(&lab.fixture, &["findings"]).to_string();
        wait_showing(expected, || lab.fixture.log(), || known().contains(expected).then_some(()));
        lab.netns.ip("address add 192.0.2.9/24 dev eth0");
        wait_for_role(&lab.fixture, &lab.name, "primary");
        lab.netns.ip("address del 192.0.2.9/24 dev eth0");
        wait_for_role(&lab.fixture, &lab.name, "backup");
    }
    assert!(node.stop().success());
}

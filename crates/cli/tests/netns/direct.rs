// SPDX-License-Identifier: Apache-2.0
//! Commands without a running node: they read the configuration files and the kernel themselves.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::monitor::output_of;
use vipwatch_testkit::wire::mac_of;
use vipwatch_testkit::{Lab, TestNetns, Wire, wait_for};

use crate::support::instance_conf;

/// A directory with configuration files of Neutron and keepalived, and commands that read them without a node.
struct DirectFixture {
    lab: Lab,
}

impl DirectFixture {
    fn new() -> Self {
        let fixture = Self { lab: Lab::new() };
        fixture.write("keepalived.conf", "");
        fixture
    }

    fn keepalived_conf(&self) -> PathBuf {
        self.lab.path().join("keepalived.conf")
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.lab.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vipwatch"));
        command.args(args).arg("--state-path").arg(self.lab.path());
        output_of(command.arg("--keepalived-conf").arg(self.keepalived_conf()))
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.run(&[args, &["-o", "json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }

    /// The role of the instance with this id.
    fn role(&self, id: &str) -> String {
        let answer = self.json(&["status", id]);
        answer["instances"][0]["role"].as_str().unwrap_or_default().to_owned()
    }
}

/// Standard output and standard error as one text.
fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&both).into_owned()
}

fn netns_conf(netns: &TestNetns, rest: &str) -> String {
    format!("net_namespace {}\n{rest}", netns.name())
}

#[test]
fn status_without_instances_says_so() {
    let fixture = DirectFixture::new();
    let output = fixture.run(&["status"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "there are no instances on this node\n");
    let note = String::from_utf8_lossy(&output.stderr);
    assert!(note.starts_with("vipwatch: answered from the kernel; "), "{note}");
}

#[test]
fn status_shows_primary_partial_backup_and_fault() {
    let fixture = DirectFixture::new();
    let netns = fixture.lab.netns("k");
    netns.add_link("eth0");
    let conf = instance_conf("VI_1", "eth0", &["192.0.2.9/24", "2001:db8::9/64"]);
    fixture.write("keepalived.conf", &netns_conf(&netns, &conf));
    assert_eq!(fixture.role("VI_1"), "backup");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    assert_eq!(fixture.role("VI_1"), "partial");
    assert!(text(&fixture.run(&["status"])).contains("holds 1 of 2 addresses"));
    netns.ip("address add 2001:db8::9/64 dev eth0 nodad");
    assert_eq!(fixture.role("VI_1"), "primary");
    netns.ip("address del 192.0.2.9/24 dev eth0");
    netns.ip("address del 2001:db8::9/64 dev eth0");
    netns.ip("link set eth0p down");
    assert_eq!(fixture.role("VI_1"), "fault");
    assert!(text(&fixture.run(&["status"])).contains("eth0 has no carrier"));
    netns.ip("link del eth0");
    assert!(text(&fixture.run(&["status"])).contains("eth0 does not exist"));
    netns.delete();
    assert!(text(&fixture.run(&["status"])).contains("its namespace does not exist"));
}

#[test]
fn status_expect_decides_the_exit_code() {
    let fixture = DirectFixture::new();
    let netns = fixture.lab.netns("k");
    netns.add_link("eth0");
    let two = [
        instance_conf("web-1", "eth0", &["192.0.2.1/24"]),
        instance_conf("web-2", "eth0", &["192.0.2.2/32"]),
    ];
    fixture.write("keepalived.conf", &netns_conf(&netns, &two.concat()));
    netns.ip("address add 192.0.2.1/24 dev eth0");
    let code = |args: &[&str]| fixture.run(args).status.code();
    assert_eq!(code(&["status", "web-1", "--expect", "primary"]), Some(0));
    assert_eq!(code(&["status", "--expect", "primary"]), Some(1));
    assert!(
        text(&fixture.run(&["status", "--expect", "primary"])).contains("1 of 2 are not primary")
    );
    assert_eq!(fixture.json(&["status", "web"])["instances"].as_array().unwrap().len(), 2);
    let missing = fixture.run(&["status", "db"]);
    assert_eq!(missing.status.code(), Some(4));
    assert!(
        text(&missing).contains("\"db\"") && text(&missing).contains("`vipwatch status` lists")
    );
    assert_eq!(code(&["status", "--expect", "boss"]), Some(2));
}

#[test]
fn discover_names_a_problem_and_shows_the_other_instances() {
    let fixture = DirectFixture::new();
    let broken = format!("{}vrrp_instance B {{\n", instance_conf("A", "eth0", &["192.0.2.1"]));
    fixture.write("keepalived.conf", &broken);
    let printed = text(&fixture.run(&["discover"]));
    assert!(printed.contains("keepalived.conf:9: vrrp_instance B is not closed"), "{printed}");
    let answer = fixture.json(&["discover"]);
    assert_eq!(answer["schema"], "vipwatch.discover/2");
    assert_eq!(answer["instances"][0]["id"], "A");
    assert_eq!(answer["instances"][0]["addresses"][0]["cidr"], "192.0.2.1/32");
    assert_eq!(answer["problems"][0]["line"], 9);
}

#[test]
fn a_file_on_the_command_line_that_cannot_be_read_is_an_error() {
    let fixture = DirectFixture::new();
    for (content, code, expected) in [
        ("a\0b", 1, "it is not a text file"),
        ("\u{feff}global_defs {\n}\n", 1, "it begins with a byte order mark"),
    ] {
        fixture.write("keepalived.conf", content);
        let output = fixture.run(&["discover"]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(text(&output).contains(expected), "{output:?}");
    }
    std::fs::remove_file(fixture.keepalived_conf()).unwrap();
    let output = fixture.run(&["discover"]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let expected = format!("vipwatch: cannot read {}", fixture.keepalived_conf().display());
    assert!(text(&output).contains(&expected), "{output:?}");
}

#[test]
fn status_shows_the_roles_of_real_keepalived_processes() {
    let fixture = DirectFixture::new();
    let (a, b) = (fixture.lab.netns("a"), fixture.lab.netns("b"));
    let switch = BridgeSwitch::new(&fixture.lab);
    let directories = ["one", "two"].map(|name| {
        let directory = fixture.lab.path().join("ha_confs").join(name);
        std::fs::create_dir_all(&directory).unwrap();
        directory
    });
    for (netns, port, address) in [(&a, "port-a", "192.0.2.1/24"), (&b, "port-b", "192.0.2.2/24")] {
        switch.plug(netns, "eth0", port);
        netns.ip(&format!("address add {address} dev eth0"));
    }
    let vip = "192.0.2.9/24";
    let _first = Keepalived::start(&a, &directories[0], "eth0", vip, 150);
    wait_for("the first keepalived to be primary", || {
        a.addresses("eth0").contains("192.0.2.9/24").then_some(())
    });
    let _second = Keepalived::start(&b, &directories[1], "eth0", vip, 100);
    // The file is the one that keepalived reads, with the namespace added.
    let roles = || {
        [(&a, &directories[0]), (&b, &directories[1])].map(|(netns, directory)| {
            let conf = std::fs::read_to_string(directory.join("keepalived.conf")).unwrap();
            fixture.write("keepalived.conf", &netns_conf(netns, &conf));
            let answer = fixture.json(&["status"]);
            let instances = answer["instances"].as_array().unwrap().clone();
            let is_keepalived = |instance: &&Value| instance["origin"] == "keepalived";
            let instance = instances.iter().find(is_keepalived).unwrap().clone();
            instance["role"].as_str().unwrap().to_owned()
        })
    };
    wait_for("a primary and a backup", || {
        (roles() == ["primary".to_owned(), "backup".to_owned()]).then_some(())
    });
}

#[test]
fn watch_without_a_node_prints_each_change() {
    let fixture = DirectFixture::new();
    let netns = fixture.lab.netns("k");
    netns.add_link("eth0");
    let conf = instance_conf("VI_1", "eth0", &["192.0.2.9/24", "2001:db8::9/64"]);
    fixture.write("keepalived.conf", &netns_conf(&netns, &conf));
    let shown = fixture.lab.path().join("shown");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vipwatch"));
    command.args(["watch", "VI", "-n", "4", "-o", "json", "--state-path"]);
    command.arg(fixture.lab.path()).arg("--keepalived-conf").arg(fixture.keepalived_conf());
    let mut child = command.stdout(std::fs::File::create(&shown).unwrap()).spawn().unwrap();
    let lines = || -> Vec<Value> {
        let text = std::fs::read_to_string(&shown).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    };
    let wait_for_line = |to: &str| {
        wait_for(to, || lines().last().filter(|line| line["to"] == to).cloned());
    };
    wait_for_line("backup");
    netns.ip("address add 192.0.2.9/24 dev eth0");
    wait_for_line("partial");
    netns.ip("address add 2001:db8::9/64 dev eth0 nodad");
    wait_for_line("primary");
    let name = netns.name().to_owned();
    netns.delete();
    wait_for_line("fault");
    // A new namespace with the same name is followed again.
    let again = TestNetns::create(&name);
    again.add_link("eth0");
    let status = vipwatch_testkit::monitor::end_of(&mut child);
    assert!(
        status.is_some_and(|status| status.success()),
        "watch ends after four changes: {:?}",
        lines()
    );
    let changes: Vec<String> = lines()
        .iter()
        .map(|line| format!("{} {} {}", line["from"], line["to"], line["trigger"]).replace('"', ""))
        .collect();
    let expected = [
        "null backup start",
        "backup partial address",
        "partial primary address",
        "primary fault namespace",
    ];
    assert_eq!(changes[..4], expected);
    assert!(changes[4].starts_with("fault "), "{changes:?}");
}

#[test]
fn watch_without_a_node_prints_the_removal_of_an_instance() {
    let fixture = DirectFixture::new();
    let netns = fixture.lab.netns("k");
    netns.add_link("eth0");
    let conf = instance_conf("VI_1", "eth0", &["192.0.2.9/24"]);
    fixture.write("keepalived.conf", &netns_conf(&netns, &conf));
    let shown = fixture.lab.path().join("shown");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vipwatch"));
    command.args(["watch", "--direct", "-o", "json", "--state-path"]);
    command.arg(fixture.lab.path()).arg("--keepalived-conf").arg(fixture.keepalived_conf());
    let mut child = command.stdout(std::fs::File::create(&shown).unwrap()).spawn().unwrap();
    let last_line = || -> Option<Value> {
        let text = std::fs::read_to_string(&shown).unwrap();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).next_back()
    };
    wait_for("the role", || last_line().filter(|line| line["to"] == "backup"));
    fixture.write("keepalived.conf", "");
    let removed = wait_for("the removal", || {
        last_line().filter(|line| line["schema"] == "vipwatch.removed/1")
    });
    assert_eq!((&removed["id"], &removed["from"]), (&"VI_1".into(), &"backup".into()));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn announce_sends_a_held_address_and_refuses_or_reports_others() {
    let fixture = DirectFixture::new();
    let (router, peer) = (fixture.lab.netns("r"), fixture.lab.netns("p"));
    let switch = BridgeSwitch::new(&fixture.lab);
    switch.plug(&router, "qg-1", "port-r");
    switch.plug(&peer, "eth0", "port-p");
    router.ip("address add 192.0.2.9/32 dev qg-1");
    let wire = Wire::tap(&peer, "eth0");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vipwatch"));
        output_of(command.args(["announce", "--netns", router.name(), "--count", "1"]).args(args))
    };
    let output = run(&["192.0.2.9"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    let mac = mac_of(&router, "qg-1");
    assert!(text(&output).contains(&format!("announced once as {mac}")), "{}", text(&output));
    wire.wait_for("192.0.2.9", 2);
    let refused = run(&["192.0.2.77"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused).contains("refused: the link does not hold it"), "{}", text(&refused));
    peer.ip("address add 192.0.2.9/24 dev eth0");
    let disputed = run(&["192.0.2.9", "--check", "0.5", "-o", "json"]);
    assert_eq!(disputed.status.code(), Some(1));
    let answer: Value = serde_json::from_slice(&disputed.stdout).unwrap();
    assert_eq!(answer["duplicates"][0]["mac"], mac_of(&peer, "eth0"));
}

/// A command with a `PATH` in which `vipwatch` is the program under test.
fn with_program_in_path(program: &str) -> Command {
    let directory = std::path::Path::new(env!("CARGO_BIN_EXE_vipwatch")).parent().unwrap();
    let mut command = Command::new(program);
    command.env("PATH", format!("{}:/usr/bin:/bin", directory.display()));
    command
}

#[test]
fn the_completion_script_of_bash_completes_commands() {
    let script = "source <(vipwatch completions bash); COMP_WORDS=(vipwatch sta); COMP_CWORD=1; \
                  function=$(complete -p vipwatch | sed 's/.* -F \\([^ ]*\\) .*/\\1/'); \
                  $function vipwatch sta vipwatch; echo \"${COMPREPLY[@]}\"";
    let output = output_of(with_program_in_path("bash").args(["-c", script]));
    assert_eq!(text(&output).trim(), "status");
}

/// Runs the command that the script calls, because zsh and fish may not be installed.
#[test]
fn the_completion_scripts_of_zsh_and_fish_call_vipwatch() {
    for (shell, call) in [("zsh", "COMPLETE=\"zsh\""), ("fish", "COMPLETE=fish vipwatch --")] {
        let script = output_of(with_program_in_path("vipwatch").args(["completions", shell]));
        assert!(text(&script).contains(call), "{shell}: {}", text(&script));
        let mut command = with_program_in_path("vipwatch");
        command.env("COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", "1").env("_CLAP_IFS", "\n");
        let output = output_of(command.args(["--", "vipwatch", "sta"]));
        let printed = text(&output);
        let args: Vec<&str> =
            printed.lines().filter_map(|line| line.split([':', '\t']).next()).collect();
        assert_eq!(args, ["status"], "{shell}: {printed}");
    }
}

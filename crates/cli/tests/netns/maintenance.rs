// SPDX-License-Identifier: Apache-2.0
//! The maintenance guide, run from its own text: by hand, with Ansible, and with Neutron's agents, on three hosts with real
//! keepalived, etcd, a webhook and hooks.

mod hosts;

use std::process::Output;

use serde_json::Value;
use vipwatch_testkit::{wait_for, wait_showing};

use self::hosts::Hosts;
use crate::support::write;

const GUIDE: &str = include_str!("../../../../docs/guides/maintenance.md");

/// The blocks in this language of the guide's section.
fn blocks(section: &str, language: &str) -> Vec<&'static str> {
    let (_, text) = GUIDE.split_once(&format!("\n## {section}\n")).unwrap();
    let text = text.split("\n## ").next().unwrap();
    let start = format!("\n```{language}\n");
    let blocks = text.split(start.as_str()).skip(1);
    blocks.map(|block| block.split("```\n").next().unwrap()).collect()
}

/// The commands of a block for a console.
fn commands<'a>(block: &'a str, prompt: &str) -> Vec<&'a str> {
    block.lines().map(|line| line.strip_prefix(prompt).unwrap()).collect()
}

/// Writes the scripts of a section, which have their names in the first line.
fn write_scripts(hosts: &Hosts, section: &str) {
    for block in blocks(section, "sh") {
        let name = block.strip_prefix("# ").unwrap().split_whitespace().next().unwrap();
        write(&hosts.lab.path().join(name), block);
    }
}

fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), &output.stderr].concat();
    format!("{}\n{}", output.status, String::from_utf8_lossy(&both))
}

/// The names of findings in notifications.
fn findings(notifications: &[Value]) -> Vec<String> {
    let names = notifications.iter().filter_map(|body| body["finding"]["name"].as_str());
    names.map(str::to_owned).collect()
}

/// The number of the only silence of a host.
fn silence(hosts: &Hosts, host: &str) -> String {
    hosts.succeed(host, "vipwatch silence list -o name").trim().to_owned()
}

/// No target received a finding, and no silence is left.
fn assert_quiet(hosts: &Hosts) {
    let bodies = hosts.server.accepted_bodies();
    assert_eq!(findings(&bodies), [""; 0], "{bodies:#?}");
    for host in &hosts.each {
        let notifications = hosts.hook_notifications(&host.name);
        assert_eq!(findings(&notifications), [""; 0], "{}: {notifications:#?}", host.name);
        assert_eq!(silence(hosts, &host.name), "", "{}", host.name);
    }
}

/// The changes that a target was notified of, as `NODE ID ROLE`.
fn changes(notifications: &[Value]) -> Vec<String> {
    let word = |body: &Value, key: &str| body[key].as_str().unwrap_or_default().to_owned();
    let changes = notifications.iter().filter(|body| body["to"].is_string());
    changes
        .map(|body| format!("{} {} {}", word(body, "node"), word(body, "id"), word(body, "to")))
        .collect()
}

#[test]
fn the_maintenance_guide_by_hand_moves_the_addresses_and_notifies_of_no_finding() {
    let hosts = Hosts::with_keepalived();
    let by_hand = blocks("2. By hand", "console");
    for command in commands(by_hand[0], "# ") {
        hosts.succeed("node-1", command);
    }
    assert_eq!(hosts.holders(), ["node-2"], "drained before another node has taken over");
    let changes = || changes(&hosts.server.accepted_bodies());
    let takeover = ["node-2 VI_1 primary", "node-2 VI_2 primary"];
    let is_notified = || takeover.iter().all(|change| changes().iter().any(|one| one == change));
    wait_showing("the takeover", || format!("{:?}", changes()), || is_notified().then_some(()));
    let own = changes().into_iter().rfind(|change| change.starts_with("node-1 VI_1 "));
    assert_eq!(own.as_deref(), Some("node-1 VI_1 primary"), "the silence covers the change");

    for command in commands(by_hand[1], "# ") {
        hosts.succeed(
            "node-1",
            &command.replace("remove 4", &format!("remove {}", silence(&hosts, "node-1"))),
        );
    }
    hosts.wait_for_holder("node-1");
    assert_quiet(&hosts);
}

#[test]
fn the_playbook_of_the_maintenance_guide_takes_one_node_after_the_other_and_stops_before_an_outage()
{
    let hosts = Hosts::with_keepalived();
    let directory = hosts.lab.path();
    write(&directory.join("playbook.yml"), blocks("3. With Ansible", "yaml")[0]);
    let ansible = std::env::var("VIPWATCH_ANSIBLE").unwrap();
    let inventory = format!(
        "[network_nodes]\nnode-1\nnode-2\nnode-3\n[network_nodes:vars]\nansible_ssh_executable={bin}/ssh\n\
         ansible_become_exe={bin}/sudo\nansible_ssh_args=\nansible_pipelining=true\n\
         ansible_python_interpreter={ansible}/bin/python\n",
        bin = directory.join("bin").display()
    );
    write(&directory.join("inventory"), &inventory);
    let play = || {
        let mut command = hosts.command(format!("{ansible}/bin/ansible-playbook"));
        command.args([
            "--inventory",
            "inventory",
            "playbook.yml",
            "--extra-vars",
            "maintenance_reboot=false",
        ]);
        command.env("ANSIBLE_HOME", directory.join("ansible")).env("ANSIBLE_NOCOLOR", "1");
        command.env("ANSIBLE_LOCALHOST_WARNING", "false").output().unwrap()
    };
    let first = play();
    assert!(first.status.success(), "{}", text(&first));
    hosts.wait_for_holder("node-1");
    assert_quiet(&hosts);
    let changes = changes(&hosts.server.accepted_bodies());
    let took_over =
        |host: &str| changes.iter().any(|change| *change == format!("{host} VI_1 primary"));
    assert!(took_over("node-2"), "node-1 was taken down: {changes:?}");

    // Without the others, the first node must stay as it is.
    for host in ["node-2", "node-3"] {
        hosts.succeed(host, "systemctl stop keepalived");
    }
    let second = play();
    assert!(!second.status.success(), "{}", text(&second));
    assert_eq!(hosts.holders(), ["node-1"], "{}", text(&second));
    assert_eq!(silence(&hosts, "node-1"), "", "{}", text(&second));
}

#[test]
fn the_scripts_for_neutron_in_the_maintenance_guide_move_the_primaries_and_bring_the_routers_back()
{
    // More than one batch of the script.
    let routers: Vec<String> =
        (1..=11).map(|number| format!("00000000-0000-4000-8000-{number:012x}")).collect();
    let hosts = Hosts::with_routers(&routers);
    for section in ["4. With Neutron", "5. With Kolla-Ansible"] {
        write_scripts(&hosts, section);
    }
    let server = hosts.lab.path().join("server");
    // A disabled router stays bound to the agents, which do not run it.
    let disabled = "00000000-0000-4000-8000-00000000000c";
    write(&server.join("down").join(disabled), "");
    for host in &hosts.each {
        write(&server.join(format!("bindings/agent-{}/{disabled}", host.name)), "");
    }
    let accident = |name: &str| write(&server.join("accidents").join(name), "");
    let output = |line: &str| hosts.command("sh").args(["-c", line]).output().unwrap();
    let run = |line: &str| {
        let output = output(line);
        assert!(output.status.success(), "{line}: {}", text(&output));
    };
    let fail = |line: &str| {
        let output = output(line);
        assert!(!output.status.success(), "{line}: {}", text(&output));
    };
    let with_neutron = blocks("4. With Neutron", "console");
    let ready = || {
        hosts
            .command("vipwatch")
            .args(["cluster", "drain-check", "node-1", "--if"])
            .output()
            .unwrap()
    };
    wait_showing("a clean failover", || text(&ready()), || ready().status.success().then_some(()));
    fail("sh drain-agent node-9");
    accident("list");
    fail("sh drain-agent node-1");
    assert!(!server.join("disabled/agent-node-1").exists(), "drained without the list of Neutron");
    // A router of an earlier run without a primary: no other one moves.
    let lost = "00000000-0000-4000-8000-00000000000d\n";
    let moved = hosts.lab.path().join("moved.node-1");
    let existing = routers.join("\n") + "\n";
    write(&moved, lost);
    write(&server.join("routers"), &(existing.clone() + lost));
    fail("sh drain-agent node-1");
    let here = hosts.succeed("node-1", "vipwatch status --role primary -o name");
    assert_eq!(here.lines().count(), routers.len(), "moved more routers");
    std::fs::remove_file(&moved).unwrap();
    write(&server.join("routers"), &existing);
    // Neutron refuses to remove one router, and a user deletes another one at that moment.
    accident(&format!("refuse-remove-{}", routers[0]));
    accident(&format!("delete-{}", routers[1]));
    for command in commands(with_neutron[0], "$ ") {
        run(command);
    }
    let left = routers.len() - 1;
    let roles = |host: &str| {
        let text = hosts.succeed(host, "vipwatch status --role primary -o name");
        text.lines().count()
    };
    assert_eq!((roles("node-1"), roles("node-2") + roles("node-3")), (0, left));
    assert_eq!(
        hosts.succeed("node-1", "ls /run/netns").trim(),
        "",
        "a disabled agent has no routers"
    );
    // Neutron does not give this router back by itself, and refuses it once.
    accident(&format!("refuse-add-{}", routers[2]));
    accident("list");
    fail("sh return-agent node-1");
    assert!(
        hosts.lab.path().join("moved.node-1").exists(),
        "forgotten without the list of Neutron"
    );
    let mut after = commands(with_neutron[1], "$ ");
    let remove =
        after.pop().unwrap().replace("remove 4", &format!("remove {}", silence(&hosts, "node-1")));
    for command in after {
        run(command);
    }
    run(&remove);
    let all_back = || {
        let text = hosts.succeed("node-1", "vipwatch status --role backup -o name");
        (text.lines().count() == left).then_some(())
    };
    wait_for("all routers as backups", all_back);
    assert_quiet(&hosts);
    assert!(!hosts.lab.path().join("moved.node-1").exists());
}

// SPDX-License-Identifier: Apache-2.0
//! The role of `examples/ansible` in a clean system: Ansible runs on the machine itself.

use std::path::Path;

use vipwatch_packages::{CommandOutcome, Machine, Root, neutron, suite};

/// The machine as its own only node.
const INVENTORY: &str = r#"
network_nodes:
  hosts:
    localhost:
      ansible_connection: local
      ansible_python_interpreter: /usr/bin/python3
  vars:
    vipwatch_config: |
      [[notify]]
      instances = "*"
      state_file = "/run/vipwatch/state/{id}"
"#;

/// One instance of keepalived on a link that does not exist.
const KEEPALIVED: &str = "vrrp_instance web {
    interface eth0
    virtual_router_id 51
    virtual_ipaddress { 192.0.2.10/32 }
}
";

/// A root with Ansible of its distribution and the examples.
fn root_with_ansible() -> Root {
    let root = Root::debian(&suite());
    root.run(
        "apt-get update && apt-get install -y --no-install-recommends ansible-core python3-apt",
    )
    .expect();
    root.share(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples"), "/examples");
    root
}

/// Boots a root, and writes the inventory.
fn boot(root: Root) -> Machine {
    let machine = root.boot();
    machine.write("/etc/ansible/hosts.yml", INVENTORY);
    machine
}

/// Runs a playbook of the examples, with variables as JSON.
fn play_book(machine: &Machine, playbook: &str, variables: &str) -> CommandOutcome {
    machine.run(&format!(
        "cd /examples/ansible
         export ANSIBLE_ROLES_PATH=/examples/ansible/roles
         ansible-playbook --inventory /etc/ansible/hosts.yml ../{playbook} --extra-vars '{variables}' 2>&1"
    ))
}

/// Runs `site.yml` with the package file, and further variables as JSON.
fn play(machine: &Machine, variables: &str) -> CommandOutcome {
    let file = machine.succeed("ls /packages/vipwatch_*.deb");
    let rest = variables.strip_prefix('{').expect("an object of JSON");
    let comma = if rest == "}" { "" } else { ", " };
    let variables = format!(r#"{{"vipwatch_package_file": "{file}"{comma}{rest}"#);
    play_book(machine, "ansible/site.yml", &variables)
}

#[test]
fn the_role_for_ansible_installs_once_reloads_changes_and_refuses_a_wrong_configuration() {
    let machine = boot(root_with_ansible());
    let output = play(&machine, "{}").expect();
    assert!(output.contains("failed=0"), "{output}");
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
    let settings = machine.succeed("vipwatch config show");
    assert!(settings.contains("/run/vipwatch/state/{id}"), "{settings}");

    let output = play(&machine, "{}").expect();
    assert!(output.contains("changed=0"), "a second run must change nothing: {output}");

    let id = "systemctl show --property MainPID --value vipwatch-node.service";
    let process = machine.succeed(id);
    play(&machine, r#"{"vipwatch_config": "[node]\naudit_every = \"11m\"\n"}"#).expect();
    let settings = machine.succeed("vipwatch config show");
    assert!(settings.contains("11m"), "{settings}");
    assert_eq!(machine.succeed(id), process, "the node was restarted");

    let before = machine.succeed("cat /etc/vipwatch/vipwatch.toml");
    let outcome = play(&machine, r#"{"vipwatch_config": "[nod]\n"}"#);
    assert!(!outcome.is_ok(), "{}", outcome.text());
    assert!(outcome.text().contains("did you mean node?"), "{}", outcome.text());
    assert_eq!(machine.succeed("cat /etc/vipwatch/vipwatch.toml"), before);
    assert_eq!(machine.succeed(id), process, "the node was restarted");
}

#[test]
fn the_role_without_a_package_file_or_a_repository_stops_before_the_first_change() {
    let machine = boot(root_with_ansible());
    let refused = |outcome: CommandOutcome, variable: &str| {
        assert!(!outcome.is_ok(), "{}", outcome.text());
        let text = outcome.text();
        assert!(text.contains(variable) && text.contains("vipwatch_from_repository"), "{text}");
        assert!(text.contains("changed=0"), "{text}");
        machine.succeed("test ! -e /usr/bin/vipwatch && test ! -e /etc/vipwatch");
    };
    refused(play_book(&machine, "ansible/site.yml", "{}"), "Set vipwatch_package_file");
    refused(play(&machine, r#"{"vipwatch_neutron": true}"#), "Set vipwatch_neutron_package_file");

    // With the setting, the role asks the repositories of the node. Those of this machine do not have the package.
    let outcome = play_book(&machine, "ansible/site.yml", r#"{"vipwatch_from_repository": true}"#);
    assert!(!outcome.is_ok(), "{}", outcome.text());
    assert!(outcome.text().contains("No package matching 'vipwatch'"), "{}", outcome.text());
}

#[test]
fn a_node_that_is_down_does_not_stop_the_role_that_starts_it() {
    let machine = boot(root_with_ansible());
    let state = |property: &str| machine.run(&format!("systemctl {property} vipwatch-node")).stdout;
    play(&machine, r#"{"vipwatch_node_enabled": false}"#).expect();
    assert_eq!(state("is-active").trim(), "inactive");
    assert_eq!(state("is-enabled").trim(), "disabled");
    // The check before the first change gets exit code 4 from `doctor`.
    let output = play(&machine, r#"{"vipwatch_node_enabled": false}"#).expect();
    assert!(output.contains("changed=0"), "a second run must change nothing: {output}");
    play(&machine, "{}").expect();
    assert_eq!(state("is-active").trim(), "active");
    assert_eq!(state("is-enabled").trim(), "enabled");
}

#[test]
fn the_role_stops_before_the_first_change_if_a_running_node_has_a_serious_finding() {
    let machine = boot(root_with_ansible());
    play(&machine, "{}").expect();
    machine.write("/etc/keepalived/keepalived.conf", KEEPALIVED);
    machine.wait_until(
        "a serious finding",
        "code=0; vipwatch doctor --fail-on broken || code=$?; test $code = 1",
    );
    let outcome = play(&machine, r#"{"vipwatch_config": "[node]\naudit_every = \"11m\"\n"}"#);
    assert!(!outcome.is_ok() && outcome.text().contains("changed=0"), "{}", outcome.text());
    assert!(!machine.succeed("cat /etc/vipwatch/vipwatch.toml").contains("11m"));
}

#[test]
fn the_role_installs_the_drop_in_for_neutron_and_replaces_the_running_monitors() {
    let root = root_with_ansible();
    neutron::install_waiting_monitor(&root, "2:29.0.0-1");
    let machine = boot(root);
    play(&machine, "{}").expect();
    machine.succeed(neutron::ROUTER);
    let pid =
        || machine.wait_until("a monitor", "cat /var/lib/neutron/external/pids/*.monitor.pid");
    machine.wait_until("the agent", "test -S /var/lib/neutron/keepalived-state-change");
    let script = pid();

    let file = machine.succeed("ls /packages/vipwatch-neutron_*.deb");
    let neutron = |switch: bool| {
        let files = format!(r#""vipwatch_neutron_package_file": "{file}""#);
        play(
            &machine,
            &format!(
                r#"{{"vipwatch_neutron": true, "vipwatch_neutron_switch": {switch}, {files}}}"#
            ),
        )
        .expect()
    };
    neutron(false);
    let ours = "/usr/lib/vipwatch/neutron-keepalived-state-change";
    assert_eq!(machine.succeed("readlink /usr/bin/neutron-keepalived-state-change"), ours);
    assert_eq!(pid(), script, "a running monitor continues after the installation");
    let output = neutron(false);
    assert!(output.contains("changed=0"), "a second run must change nothing: {output}");

    let output = neutron(true);
    assert!(output.contains("changed=1"), "{output}");
    assert_ne!(pid(), script);
    assert_eq!(machine.succeed(&format!("readlink /proc/{}/exe", pid())), ours);
    let output = neutron(true);
    assert!(output.contains("changed=0"), "a second run must change nothing: {output}");
}

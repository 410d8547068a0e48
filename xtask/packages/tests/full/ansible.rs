// SPDX-License-Identifier: Apache-2.0
//! The role of `examples/ansible` in a clean system: Ansible runs on the machine itself.

use std::path::Path;

use vipwatch_packages::{CommandOutcome, Machine, Root, suite};

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

/// A machine with Ansible of its distribution, the examples and an inventory.
fn machine_with_ansible() -> Machine {
    let root = Root::debian(&suite());
    root.run(
        "apt-get update && apt-get install -y --no-install-recommends ansible-core python3-apt",
    )
    .expect();
    root.share(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/ansible"), "/ansible");
    let machine = root.boot();
    machine.write("/etc/ansible/hosts.yml", INVENTORY);
    machine
}

/// Runs the playbook with the package file, and further variables as JSON.
fn play(machine: &Machine, variables: &str) -> CommandOutcome {
    machine.run(&format!(
        "cd /ansible
         file=$(ls /packages/vipwatch_*.deb)
         ansible-playbook --inventory /etc/ansible/hosts.yml site.yml \
             --extra-vars vipwatch_package_file=$file --extra-vars '{variables}' 2>&1"
    ))
}

#[test]
fn the_role_for_ansible_installs_once_reloads_changes_and_refuses_a_wrong_configuration() {
    let machine = machine_with_ansible();
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

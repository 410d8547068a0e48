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
# The groups of OpenStack-Ansible and Kolla-Ansible.
neutron_l3_agent:
  hosts:
    localhost:
neutron-l3-agent:
  hosts:
    localhost:
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
        "code=0; vipwatch doctor --fail-on critical || code=$?; test $code = 1",
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

/// The L3 agent of OpenStack-Ansible: its unit, its settings of rootwrap, and a stand-in that prints the version in a file.
const AGENT_IN_VENV: &str = r#"
venv=/openstack/venvs/neutron-21.0.0/bin
mkdir -p $venv /etc/neutron/rootwrap.d
echo 'exec_dirs = /usr/lib/vipwatch,/sbin,/usr/sbin,/etc/neutron/kill_scripts' > /etc/neutron/rootwrap.conf
cat > $venv/neutron-l3-agent <<'END'
#!/bin/sh
if [ "$1" = --version ]; then
    echo "neutron-l3-agent $(cat /neutron-version)"
else
    exec sleep infinity
fi
END
chmod 755 $venv/neutron-l3-agent
cat > /etc/systemd/system/neutron-l3-agent.service <<END
[Service]
KillMode=process
ExecStart=$venv/neutron-l3-agent --config-file /etc/neutron/neutron.conf
END
systemctl daemon-reload
systemctl start neutron-l3-agent
"#;

/// Checks the files of one release of Neutron below the directory that its agent sees as /etc/neutron.
#[track_caller]
fn expect_files(machine: &Machine, etc: &str, word: Option<&str>) {
    let conf = machine.run(&format!("cat {etc}/neutron-keepalived-state-change.conf")).stdout;
    let found = conf.lines().find_map(|line| line.strip_prefix("primary_word = "));
    assert_eq!(found, word, "{conf}");
    let filter = format!("{etc}/rootwrap.d/vipwatch.filters");
    let script = format!("{etc}/kill_scripts/neutron-keepalived-state-change-monitor-kill");
    machine.succeed(&if word.is_some() {
        format!("test -s {filter} && test -x {script}")
    } else {
        format!("test ! -e {filter} && test ! -e {script}")
    });
}

#[test]
fn the_playbook_for_openstack_ansible_installs_what_neutron_16_and_17_need() {
    let machine = boot(root_with_ansible());
    machine.succeed(AGENT_IN_VENV);
    let file = |name: &str| machine.succeed(&format!("ls /packages/{name}_*.deb"));
    let variables = format!(
        r#"{{"vipwatch_package_file": "{}", "vipwatch_neutron_package_file": "{}"}}"#,
        file("vipwatch"),
        file("vipwatch-neutron")
    );
    let play = |version: &str| {
        machine.write("/neutron-version", version);
        play_book(&machine, "openstack-ansible/vipwatch-install.yml", &variables)
    };
    let agent = || machine.succeed("systemctl show --property MainPID --value neutron-l3-agent");
    let first = agent();
    play("16.4.2").expect();
    expect_files(&machine, "/etc/neutron", Some("master"));
    assert_ne!(agent(), first, "a running daemon of rootwrap does not know the filter");
    // The drop-in reads the word.
    let check = machine.run(
        "ip netns add r
         /usr/lib/vipwatch/neutron-keepalived-state-change --check --router_id r --namespace r --conf_dir /tmp \
             --monitor_interface ha-1 --monitor_cidr 169.254.0.1/24 --pid_file /tmp/pid --state_path /tmp \
             --user 0 --group 0",
    );
    let word = check.stdout.lines().find(|line| line.trim_start().starts_with("word"));
    assert!(word.is_some_and(|line| line.contains("master")), "{}", check.text());

    let second = agent();
    let output = play("16.4.2").expect();
    assert!(output.contains("changed=0"), "a second run must change nothing: {output}");
    play("17.4.1").expect();
    expect_files(&machine, "/etc/neutron", Some("primary"));
    play("18.6.0").expect();
    expect_files(&machine, "/etc/neutron", None);
    assert_eq!(agent(), second, "no new filter, no restart");

    let outcome = play("15.3.4");
    assert!(!outcome.is_ok(), "{}", outcome.text());
    assert!(outcome.text().contains("The release of Neutron is '15.3.4'"), "{}", outcome.text());
}

#[test]
fn the_playbook_for_kolla_ansible_installs_what_neutron_16_and_17_need() {
    let machine = boot(root_with_ansible());
    // The agent is not in a container here: the stand-in for Docker runs the command itself.
    machine.succeed(
        r#"mkdir -p /var/lib/docker/volumes/neutron_metadata_socket/_data
           dpkg-deb --extract /packages/vipwatch-neutron_*.deb /extracted
           printf '#!/bin/sh\nshift 2\nexec "$@"\n' > /usr/bin/docker
           printf '#!/bin/sh\necho "$(basename $0) 16.4.2"\n' > /usr/bin/neutron-l3-agent
           chmod 755 /usr/bin/docker /usr/bin/neutron-l3-agent"#,
    );
    let package = machine.succeed("ls /packages/vipwatch_*.deb");
    let play = |version: &str| {
        let dropin = "/extracted/usr/lib/vipwatch/neutron-keepalived-state-change";
        let variables = format!(
            r#"{{"vipwatch_package_file": "{package}", "kolla_vipwatch_dropin_file": "{dropin}",
                "kolla_vipwatch_neutron_version": "{version}"}}"#
        );
        play_book(&machine, "kolla-ansible/vipwatch.yml", &variables).expect()
    };
    let etc = "/opt/vipwatch/neutron";
    play("");
    expect_files(&machine, etc, Some("master"));
    // Every file that the volumes mount exists; otherwise Docker would make directories of them.
    machine.succeed(
        r#"sed -n 's|^  - "\(/[^:]*\):.*|\1|p' /examples/kolla-ansible/globals-neutron-16-17.yml > /mounted
           test "$(wc -l < /mounted)" = 5
           while read -r file; do test -f "$file"; done < /mounted"#,
    );
    let output = play("");
    assert!(output.contains("changed=0"), "a second run must change nothing: {output}");
    // Before an upgrade of Neutron, the operator names the new version.
    play("17.4.1");
    expect_files(&machine, etc, Some("primary"));
    play("18.6.0");
    expect_files(&machine, etc, None);
}

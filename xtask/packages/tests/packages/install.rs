// SPDX-License-Identifier: Apache-2.0
//! Installation, and the node in daily use.

use vipwatch_packages::{Machine, Root, suite};

/// A keepalived with one address in a network namespace of its own.
const KEEPALIVED: &str = "
vrrp_instance VI_1 {
    state BACKUP
    interface eth0
    virtual_router_id 51
    priority 100
    advert_int 0.1
    virtual_ipaddress {
        192.0.2.10/24 dev eth0
    }
}
";

/// A machine with both packages.
fn installed() -> Machine {
    let machine = Root::debian(&suite()).boot();
    machine.install(&["vipwatch", "vipwatch-neutron"]);
    machine
}

#[test]
fn the_node_runs_after_the_installation_and_shows_a_failover_of_keepalived() {
    let machine = installed();
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
    assert_eq!(machine.succeed("systemctl is-enabled vipwatch-node.service"), "enabled");
    machine.write("/etc/keepalived/keepalived.conf", KEEPALIVED);
    machine.succeed(
        "ip netns add east && ip netns add west
         ip link add eth0 netns east type veth peer name eth0 netns west
         for name in east west; do
             ip -n $name link set lo up && ip -n $name link set eth0 up
             mkdir -p /run/$name
         done
         ip -n east address add 192.0.2.1/24 dev eth0
         ip -n west address add 192.0.2.2/24 dev eth0",
    );
    let start = |name: &str| {
        machine.succeed(&format!(
            "ip netns exec {name} keepalived --vrrp --log-detail --pid /run/{name}/pid --vrrp_pid /run/{name}/vrrp"
        ));
    };
    start("east");
    let is_primary =
        |name: &str| format!("vipwatch status --netns {name} --role primary -o name | grep .");
    machine.wait_until("primary in east", &is_primary("east"));
    start("west");
    machine.succeed("kill -TERM $(cat /run/east/pid)");
    machine.wait_until("primary in west", &is_primary("west"));
    let history = machine.succeed("vipwatch history -o json");
    assert!(history.contains("primary"), "{history}");
}

/// Such a systemd would ignore directives of the units, and start the services with more rights.
#[test]
fn an_old_systemd_is_refused_and_a_container_without_systemd_is_not() {
    let root = Root::debian(&suite());
    root.run(
        "mkdir -p /standalone/DEBIAN && cd /standalone
         printf 'Package: standalone\\nVersion: 1\\nArchitecture: all\\nMaintainer: A <a@a.invalid>\\nDescription: stand-in\\n\
         Provides: systemd-standalone-sysusers, systemd-standalone-tmpfiles\\n' > DEBIAN/control
         dpkg-deb --build . /standalone.deb && dpkg --install /standalone.deb
         sed -i '/^Package: systemd$/,/^$/s/^Version: .*/Version: 246.9-1/' /var/lib/dpkg/status",
    )
    .expect();
    let install = "dpkg --install /packages/vipwatch_*.deb 2>&1";
    let refused = root.run(install);
    let text = refused.text();
    assert!(!refused.is_ok() && text.contains("breaks systemd (<< 247)"), "{text}");
    assert!(!root.run("dpkg-query --status vipwatch | grep 'install ok installed'").is_ok());
    root.run("sed -i '/^Package: systemd$/,/^$/d' /var/lib/dpkg/status").expect();
    root.run(install).expect();
}

#[test]
fn a_reload_and_a_restart_of_the_node_succeed() {
    let machine = installed();
    let id = "systemctl show --property MainPID --value vipwatch-node.service";
    let first = machine.succeed(id);
    machine.succeed("systemctl reload vipwatch-node.service");
    assert_eq!(machine.succeed(id), first);
    machine.succeed("systemctl restart vipwatch-node.service");
    assert_ne!(machine.succeed(id), first);
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
    machine.succeed("vipwatch status");
}

#[test]
fn a_system_without_a_running_systemd_takes_the_packages() {
    let root = Root::debian(&suite());
    let output = root.run("dpkg --install /packages/*.deb 2>&1").expect();
    assert!(!output.contains("Failed"), "{output}");
    assert!(!output.contains("hint:"), "{output}");
    let machine = root.boot();
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
}

#[test]
fn the_node_of_the_package_continues_the_history_of_a_node_that_ran_as_root() {
    let machine = Root::debian(&suite()).boot();
    machine.succeed(
        "mkdir /srv/unpacked && dpkg-deb --extract /packages/vipwatch_*.deb /srv/unpacked
         systemd-run --quiet --unit by-root --property Type=notify /srv/unpacked/usr/bin/vipwatch node",
    );
    machine.wait_until("a history", "test -e /var/lib/vipwatch/history.sqlite");
    machine.succeed("systemctl stop by-root.service");
    let owner = || machine.succeed("stat --format %U /var/lib/vipwatch/history.sqlite");
    assert_eq!(owner(), "root");
    machine.install(&["vipwatch"]);
    assert_eq!(machine.succeed("systemctl is-active vipwatch-node.service"), "active");
    assert_eq!(owner(), "vipwatch");
}

// SPDX-License-Identifier: Apache-2.0
//! Announcements: the default for older releases, the modes that an operator can set, and when nothing is sent.

use std::io::Write;
use std::time::Duration;

use rustix::process::Signal;
use vipwatch_testkit::keepalived::BridgeSwitch;
use vipwatch_testkit::monitor::{output_of, read_pid};
use vipwatch_testkit::wire::mac_of;
use vipwatch_testkit::{FakeAgent, Lab, Release, Router, TestNetns, Wire, pause, run, wait_for};

use crate::{fixture, subject};

/// A router with a second link, `qg-1`, and a peer on it.
struct Network {
    agent: FakeAgent,
    router: Router,
    switch: BridgeSwitch,
    peer: TestNetns,
    lab: Lab,
}

impl Network {
    fn new(release: Release) -> Self {
        let (lab, router, agent) = fixture(release);
        let switch = BridgeSwitch::new(&lab);
        let peer = lab.netns("peer");
        switch.plug(&router.netns, "qg-1", "port-r");
        switch.plug(&peer, "eth0", "port-p");
        peer.ip("address add 192.0.2.1/24 dev eth0");
        Self { agent, router, switch, peer, lab }
    }

    /// Starts the monitor with these arguments and this configuration.
    fn start(&self, arguments: &[&str], config: &str) {
        let file = self.lab.path().join("vipwatch.conf");
        let text = format!("[vipwatch]\n{config}\n");
        std::fs::File::create(&file).unwrap().write_all(text.as_bytes()).unwrap();
        let mut command = self.router.command(&subject());
        command.args(arguments).arg("--config-file").arg(file);
        let output = output_of(&mut command);
        assert!(output.status.success(), "{output:?}");
        self.agent.wait_for_word("backup");
    }

    fn add(&self, ip: &str) {
        let options = if ip.contains(':') { "nodad" } else { "" };
        self.router.netns.ip(&format!("address add {ip}/32 dev qg-1 {options}"));
    }

    fn tap(&self) -> Wire {
        Wire::tap(&self.peer, "eth0")
    }
}

#[test]
fn test_new_fip_sends_garp() {
    let network = Network::new(Release::V15);
    let _monitor = network.router.start(&subject());
    network.agent.wait_for_words(&["backup"]);
    // The peer's neighbour table has another MAC address for this address.
    network.peer.ip("neigh replace 192.0.2.8 lladdr 02:00:00:00:00:66 dev eth0 nud reachable");
    network.add("192.0.2.8");
    let mac = mac_of(&network.router.netns, "qg-1");
    wait_for("the peer to update its neighbour table", || {
        let known = run(network.peer.command("ip").args(["neigh", "show", "192.0.2.8"]));
        known.contains(&mac).then_some(())
    });
    network.router.wait_for_log("Sent GARP to 192.0.2.8 from qg-1");
}

#[test]
fn test_read_queue_send_garp() {
    let network = Network::new(Release::V15);
    let _monitor = network.router.start(&subject());
    network.agent.wait_for_words(&["backup"]);
    let wire = network.tap();
    let addresses: Vec<String> = (1..=18).map(|n| format!("10.0.0.{n}")).collect();
    for address in &addresses {
        network.add(address);
    }
    for address in &addresses {
        network.router.wait_for_log(&format!("Sent GARP to {address} from qg-1"));
        wire.wait_for(address, 2);
    }
}

#[test]
fn legacy_mode_announces_both_families_three_times_and_nothing_on_the_watched_link() {
    let network = Network::new(Release::V12);
    let watched =
        Wire::tap(&network.router.netns, &vipwatch_testkit::peer_of(&network.router.link));
    network.add("192.0.2.7");
    let _monitor = network.router.start(&subject());
    network.agent.wait_for_words(&["backup"]);
    let wire = network.tap();
    network.add("192.0.2.8");
    network.add("2001:db8::8");
    network.router.take_vip();
    network.router.wait_for_log("6 announcements in 9 frames");
    assert_eq!(wire.wait_for("192.0.2.8", 6).len(), 6);
    assert_eq!(wire.wait_for("2001:db8::8", 3).len(), 3);
    assert!(wire.announcements("192.0.2.7").is_empty(), "that address existed before the start");
    let vip = network.router.cidr.split('/').next().unwrap();
    assert!(watched.announcements(vip).is_empty(), "keepalived announces that address");
}

#[test]
fn on_becoming_primary_every_address_is_announced() {
    let network = Network::new(Release::V29);
    network.add("192.0.2.8");
    network.add("2001:db8::8");
    let wire = network.tap();
    network.start(&["--announce", "primary"], "announce_second_burst = 0");
    network.add("192.0.2.9");
    network.router.take_vip();
    // An address that is added later is announced when it appears.
    wire.wait_for("192.0.2.8", 2);
    network.add("192.0.2.10");
    network.router.wait_for_log("Announced addresses of router");
    for (address, frames) in
        [("192.0.2.8", 6), ("192.0.2.9", 6), ("192.0.2.10", 6), ("2001:db8::8", 3)]
    {
        assert_eq!(wire.wait_for(address, frames).len(), frames);
    }
    let log = network.router.log();
    let primary = log.find(&format!("Router {} is primary", network.router.id)).unwrap();
    let first = log.find("Sent GARP").unwrap();
    assert!(first > primary, "a backup announces nothing: {log}");
    assert!(
        !log.contains("loopback") && !log.contains("watched one"),
        "expected refusals are not logged: {log}"
    );
}

#[test]
fn the_agent_is_notified_after_the_first_round() {
    let network = Network::new(Release::V29);
    network.add("192.0.2.8");
    network.start(&["--announce=primary"], "");
    network.router.take_vip();
    let notified = format!("Notified agent router {}, state primary", network.router.id);
    network.router.wait_for_log(&notified);
    let log = network.router.log();
    let at = |text: &str| log.find(text).unwrap_or_else(|| panic!("no {text:?} in {log}"));
    let written = format!("Wrote router {} state primary", network.router.id);
    let announced = "Sent GARP to 192.0.2.8 from qg-1";
    assert!(at(&written) < at(announced) && at(announced) < at(&notified), "{log}");
}

/// Waits until no further announcement is sent, and returns how many were sent. Another process captures the frames and
/// writes them to a file a little later.
fn wait_for_last_announcement(wire: &Wire) -> usize {
    let count = || wire.announcements("192.0.2.8").len();
    wait_for("no further announcement", || {
        let seen = count();
        pause(Duration::from_millis(300));
        (count() == seen).then_some(seen)
    })
}

#[test]
fn a_change_to_backup_ends_announcements() {
    let network = Network::new(Release::V29);
    network.add("192.0.2.8");
    let wire = network.tap();
    network.start(&["--announce", "primary"], "announce_count = 100\nannounce_gap = 0.05");
    network.router.take_vip();
    wire.wait_for("192.0.2.8", 6);
    network.router.drop_vip();
    network.router.wait_for_log("Announced addresses of router");
    assert!(wait_for_last_announcement(&wire) < 200);
}

#[test]
fn sigterm_ends_announcements() {
    let network = Network::new(Release::V29);
    network.add("192.0.2.8");
    let wire = network.tap();
    network.start(&["--announce", "primary"], "announce_count = 100\nannounce_gap = 0.05");
    network.router.take_vip();
    wire.wait_for("192.0.2.8", 4);
    let pid = read_pid(&network.router.pid_file()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::TERM)
        .unwrap();
    wait_for("the monitor to end", || (!vipwatch_testkit::monitor::is_alive(pid)).then_some(()));
    assert!(wait_for_last_announcement(&wire) < 200);
}

#[test]
fn refresh_rounds_continue_while_the_router_is_primary() {
    let network = Network::new(Release::V29);
    network.add("192.0.2.8");
    let wire = network.tap();
    let config = "announce_count = 1\nannounce_second_burst = 0\nannounce_refresh = 0.1";
    network.start(&["--announce", "primary"], config);
    network.router.take_vip();
    wire.wait_for("192.0.2.8", 8);
    network.router.drop_vip();
    network.router.wait_for_log("Announced addresses of router");
}

#[test]
fn a_burst_waits_for_the_carrier_of_its_link() {
    let network = Network::new(Release::V29);
    network.add("192.0.2.8");
    network.switch.disconnect("port-r");
    let wire = network.tap();
    network.start(&["--announce", "primary"], "announce_second_burst = 0");
    network.router.take_vip();
    network.router.wait_for_log("192.0.2.8 on qg-1 of router");
    network
        .router
        .wait_for_log("is not announced: its link has no carrier; waiting until this changes");
    assert!(wire.announcements("192.0.2.8").is_empty());
    network.switch.reconnect("port-r");
    network.router.wait_for_log("Announced addresses of router");
    assert_eq!(wire.wait_for("192.0.2.8", 6).len(), 6, "the whole burst");
    let count = network.router.log().matches("is not announced: its link has no carrier").count();
    assert_eq!(count, 2, "once for each address: this one, and the link-local one");
}

#[test]
fn another_holder_of_an_address_is_logged() {
    let network = Network::new(Release::V29);
    network.add("192.0.2.8");
    let other = network.lab.netns("other");
    network.switch.plug(&other, "eth0", "port-o");
    other.ip("address add 192.0.2.8/24 dev eth0");
    let config = "announce_count = 1\nannounce_second_burst = 0\nannounce_check = 60";
    network.start(&["--announce", "primary"], config);
    network.router.take_vip();
    let mac = mac_of(&other, "eth0");
    network.router.wait_for_log(&format!("is also at {mac}, seen on qg-1"));
    // The check ends with the role.
    network.router.drop_vip();
    network.router.wait_for_log("1 duplicate holders");
}

#[test]
fn a_new_primary_during_the_check_is_not_logged_as_a_duplicate() {
    let network = Network::new(Release::V29);
    network.add("192.0.2.8");
    let other = network.lab.netns("other");
    network.switch.plug(&other, "eth0", "port-o");
    let config = "announce_count = 1\nannounce_second_burst = 0\nannounce_check = 60";
    network.start(&["--announce", "primary"], config);
    let wire = network.tap();
    network.router.take_vip();
    wire.wait_for("192.0.2.8", 2);
    network.router.drop_vip();
    network.router.wait_for_state("backup");
    // The other node is primary now, and announces the address.
    other.ip("address add 192.0.2.8/24 dev eth0");
    run(other.command("arping").args(["-A", "-I", "eth0", "-c", "1", "-w", "1", "192.0.2.8"]));
    network.router.wait_for_log("0 duplicate holders");
    assert!(!network.router.log().contains("is also at"), "{}", network.router.log());
}

#[test]
fn legacy_mode_announces_an_address_that_appears_with_the_change_to_backup() {
    let network = Network::new(Release::V15);
    let monitor = network.router.start(&subject());
    network.router.take_vip();
    network.agent.wait_for_word("master");
    let wire = network.tap();
    // The monitor is stopped, so that it reads both events in one batch.
    monitor.signal(Signal::STOP);
    network.router.drop_vip();
    network.add("192.0.2.8");
    monitor.signal(Signal::CONT);
    wire.wait_for("192.0.2.8", 2);
}

#[test]
fn announcements_continue_when_only_the_prefix_length_changes() {
    let network = Network::new(Release::V29);
    network.router.netns.ip("address add 192.0.2.8/24 dev qg-1");
    let wire = network.tap();
    network.start(&["--announce", "primary"], "announce_gap = 0.3\nannounce_second_burst = 0");
    network.router.take_vip();
    wire.wait_for("192.0.2.8", 2);
    network.router.netns.ip("address add 192.0.2.8/32 dev qg-1");
    network.router.netns.ip("address del 192.0.2.8/24 dev qg-1");
    wire.wait_for("192.0.2.8", 6);
}

#[test]
fn a_monitor_without_capabilities_still_announces() {
    let mut network = Network::new(Release::V29);
    network.router.give_to(65534);
    network.add("192.0.2.8");
    let wire = network.tap();
    network.start(&["--announce", "primary"], "");
    let pid = read_pid(&network.router.pid_file()).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    network.router.take_vip();
    wire.wait_for("192.0.2.8", 2);
}

#[test]
fn newer_releases_have_no_packet_socket_and_no_announcements_by_default() {
    let network = Network::new(Release::V29);
    network.add("192.0.2.8");
    let wire = network.tap();
    let _monitor = network.router.start(&subject());
    network.router.take_vip();
    network.agent.wait_for_word("primary");
    let sockets = run(network.router.netns.command("cat").arg("/proc/net/packet"));
    assert_eq!(sockets.lines().count(), 1, "only the heading: {sockets}");
    assert!(wire.announcements("192.0.2.8").is_empty());
}

/// Runs the monitor without `CAP_NET_RAW`.
fn run_without_net_raw(router: &Router, arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new("setpriv");
    command.args(["--bounding-set=-net_raw", "--"]).arg(subject());
    output_of(command.args(router.arguments()).args(arguments))
}

#[test]
fn requested_announcements_without_cap_net_raw_are_an_error() {
    let (_lab, router, _agent) = fixture(Release::V29);
    let output = run_without_net_raw(&router, &["--announce", "primary"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("cannot announce") && stderr.contains("CAP_NET_RAW"), "{stderr}");
    assert!(!router.pid_file().exists());
}

#[test]
fn default_announcements_without_cap_net_raw_are_a_warning() {
    let (_lab, router, agent) = fixture(Release::V15);
    let output = run_without_net_raw(&router, &["--primary_word", "master"]);
    assert!(output.status.success(), "{output:?}");
    agent.wait_for_words(&["backup"]);
    router.wait_for_log("Announcements are disabled: cannot open a packet socket");
}

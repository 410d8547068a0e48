// SPDX-License-Identifier: Apache-2.0
//! A node on real links: links that filter multicast, that are missing, down, or apart from the link of the address.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use vipwatch_api::{AdvertPresence, CaptureState, InstanceDetail};
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, NodeFixture, TestNetns, pause, stays, wait_for, wait_showing};

use crate::findings::{finding_names, wait_for_findings};
use crate::support::{
    PROGRAM, fixture_with, instance_conf, read, transitions, vi_1_conf, wait_for_role, write,
};
use crate::witness::{Host, conf};

/// The instance `VI` with its adverts.
fn detail(fixture: &NodeFixture, id: &str) -> InstanceDetail {
    let output = fixture.run(&["show", id, "-o", "json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn capture(fixture: &NodeFixture, id: &str) -> (CaptureState, AdvertPresence) {
    let adverts = detail(fixture, id).adverts.expect("the adverts are captured");
    (adverts.capture, adverts.presence)
}

#[track_caller]
fn wait_for_capture(fixture: &NodeFixture, id: &str, expected: (CaptureState, AdvertPresence)) {
    let shown = || format!("{}\n{}", fixture.run_text(&["show", id]), fixture.log());
    wait_showing(&format!("{expected:?}"), shown, || {
        (capture(fixture, id) == expected).then_some(())
    });
}

/// Two hosts with a macvlan `eth0` on one link. Unlike a veth, a macvlan passes up only frames of groups that it has joined,
/// as a network card does.
struct MacvlanHosts {
    _lab: Lab,
    wire: TestNetns,
    hosts: [(TestNetns, PathBuf); 2],
}

impl MacvlanHosts {
    fn new() -> Self {
        let lab = Lab::new();
        let wire = lab.netns("wire");
        wire.add_link("base");
        let hosts = [0, 1].map(|index| {
            let name = index.to_string();
            let directory = lab.path().join(&name);
            std::fs::create_dir_all(&directory).unwrap();
            (lab.netns(&name), directory)
        });
        let hosts = Self { _lab: lab, wire, hosts };
        (0..2).for_each(|index| hosts.add_link(index));
        hosts
    }

    fn add_link(&self, index: usize) {
        let netns = &self.hosts[index].0;
        self.wire.ip("link add macvlan0 link base type macvlan mode bridge");
        self.wire.ip(&format!("link set macvlan0 netns {} name eth0", netns.name()));
        netns.ip("link set eth0 up");
        netns.ip(&format!("address add 192.0.2.{}/24 dev eth0", 10 + index));
    }
}

#[test]
fn a_backup_whose_keepalived_never_ran_receives_the_primary_on_a_link_that_filters_multicast() {
    let lab = MacvlanHosts::new();
    let [(primary, primary_directory), (backup, directory)] = &lab.hosts;
    let text = |priority| conf("eth0", priority, "", "192.0.2.100/24");
    let _keepalived = Keepalived::start_with(primary, primary_directory, &text(150));
    let fixture = NodeFixture::new(PROGRAM.as_ref(), directory).with_processes().on(backup);
    fixture.configure("[witness]\n");
    write(&fixture.keepalived_conf(), &text(100));
    let _node = fixture.start();
    wait_for_capture(&fixture, "VI", (CaptureState::Running, AdvertPresence::Advertised));
    wait_for_findings(&fixture, Some("VI"), &["keepalived-gone"]);
    let has_only_that = || finding_names(&fixture, Some("VI")) == ["keepalived-gone"];
    // The master-down interval, and the time in which a finding settles.
    let span = Duration::from_secs(6);
    stays(span, "keepalived-gone only", has_only_that);
}

#[test]
fn the_multicast_groups_of_the_configuration_are_joined_on_a_link_and_on_its_successor() {
    let lab = MacvlanHosts::new();
    let [(primary, primary_directory), (backup, directory)] = &lab.hosts;
    let text = |priority: u8| {
        let instance = |(id, vrid, statement, address): (&str, u8, &str, &str)| {
            let text = conf("eth0", priority, statement, address).replace("VI", id);
            text.replace("virtual_router_id 11", &format!("virtual_router_id {vrid}"))
        };
        let instances = [
            ("FOUR", 11, "", "192.0.2.100/24"),
            ("SIX", 12, "", "fe80::100/64"),
            ("OWN", 13, "mcast_dst_ip 224.0.0.193", "192.0.2.101/24"),
        ];
        let globals =
            "global_defs {\nvrrp_mcast_group4 224.0.0.192\nvrrp_mcast_group6 ff02::192\n}\n";
        format!("{globals}{}", instances.map(instance).concat())
    };
    let _keepalived = Keepalived::start_with(primary, primary_directory, &text(150));
    let fixture = NodeFixture::new(PROGRAM.as_ref(), directory).on(backup);
    fixture.configure("[witness]\n");
    write(&fixture.keepalived_conf(), &text(100));
    let _node = fixture.start();
    let wait_for_all = |expected: (CaptureState, AdvertPresence)| {
        for id in ["FOUR", "SIX", "OWN"] {
            wait_for_capture(&fixture, id, expected);
        }
    };
    wait_for_all((CaptureState::Running, AdvertPresence::Advertised));
    backup.ip("link del eth0");
    wait_for_all((CaptureState::NoLink, AdvertPresence::Unknown));
    lab.add_link(1);
    wait_for_all((CaptureState::Running, AdvertPresence::Advertised));
}

#[test]
fn a_stop_and_a_restart_of_keepalived_with_a_vmac_are_no_link_fault() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let [peer, host] = [10, 11].map(|number| Host::new(&lab, &switch, "eth0", number));
    let id = format!("vmac{}", lab.number());
    let text = |priority| conf("eth0", priority, "use_vmac", "192.0.2.100/24").replace("VI", &id);
    let peer_keepalived = Keepalived::start_with(&peer.netns, &peer.directory, &text(150));
    let fixture = host.fixture.with_processes();
    fixture.configure("[witness]\n");
    write(&fixture.keepalived_conf(), &text(100));
    let start = || Keepalived::start_with(&host.netns, &host.directory, &text(100));
    let _node = fixture.start();
    wait_for_capture(&fixture, &id, (CaptureState::Running, AdvertPresence::Advertised));
    wait_for_findings(&fixture, Some(&id), &["keepalived-gone"]);
    let keepalived = start();
    wait_for_findings(&fixture, Some(&id), &[]);
    keepalived.stop();
    wait_for_findings(&fixture, Some(&id), &["keepalived-gone"]);
    let keepalived = start();
    wait_for_findings(&fixture, Some(&id), &[]);
    peer_keepalived.stop();
    wait_for_role(&fixture, &id, "primary");
    keepalived.stop();
    wait_for_role(&fixture, &id, "backup");
    let _keepalived = start();
    wait_for_role(&fixture, &id, "primary");
    let rows = transitions(&fixture, &[&id]);
    let roles: Vec<_> = rows.iter().map(|row| row["to"].as_str().unwrap()).collect();
    assert_eq!(roles, ["backup", "primary", "backup", "primary"], "{rows:?}");
}

/// `strace` of a process and its threads, which ends with the value.
struct Strace {
    child: Child,
    output: PathBuf,
}

impl Strace {
    fn attach(lab: &Lab, pid: i32) -> Self {
        let output = lab.path().join("strace");
        let mut command = Command::new("strace");
        command.args(["-f", "-ttt", "-v", "-s", "4096", "-e", "trace=ioctl,sendto,sendmsg"]);
        command.arg("-o").arg(&output).arg("-p").arg(pid.to_string());
        let child = command.stderr(Stdio::null()).spawn();
        let child = child.expect("strace; hint: `cargo xtask test` installs it");
        let is_traced = || {
            let status = read(format!("/proc/{pid}/status").as_ref());
            let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
            tracer.is_some_and(|tracer| tracer.trim() != "0").then_some(())
        };
        wait_for("strace", is_traced);
        Self { child, output }
    }

    /// When this thread made calls that contain this text.
    fn times(&self, thread: &str, text: &str) -> Vec<f64> {
        self.times_where(|tid| tid == thread, text)
    }

    fn times_where(&self, is_wanted: impl Fn(&str) -> bool, text: &str) -> Vec<f64> {
        let calls = read(&self.output);
        let lines = calls.lines().filter_map(|line| line.split_once(' '));
        let own = lines.filter(|(tid, call)| is_wanted(tid) && call.contains(text));
        own.filter_map(|(_, call)| call.trim_start().split(' ').next()?.parse().ok()).collect()
    }
}

impl Drop for Strace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The id of the thread with this name.
fn thread(pid: i32, name: &str) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let is_wanted = |task: &std::fs::DirEntry| read(&task.path().join("comm")).trim() == name;
    let found = tasks.into_iter().find(is_wanted).expect("the thread");
    found.file_name().into_string().unwrap()
}

#[test]
fn a_missing_link_is_looked_up_every_ten_seconds_and_never_makes_the_kernel_load_a_module() {
    let lab = Lab::new();
    let (_netns, fixture) =
        fixture_with(&lab, &[instance_conf("VI_1", "nosuch0", &["192.0.2.9/24"])]);
    fixture.configure("[witness]\n");
    let node = fixture.start();
    wait_for_capture(&fixture, "VI_1", (CaptureState::NoLink, AdvertPresence::Unknown));
    let strace = Strace::attach(&lab, node.pid());
    // All threads of the node together.
    let look_ups = || strace.times_where(|_| true, "\"nosuch0\"");
    // The time itself is tested.
    pause(Duration::from_secs(30));
    let (calls, times) = (read(&strace.output), look_ups());
    assert!(!calls.contains("SIOCGIFINDEX"), "{calls}");
    // With none, the node would not search for the link, or `strace` would not see it.
    assert!((1..=3).contains(&times.len()), "{times:?}\n{calls}");
    assert!(times.windows(2).all(|two| two[1] - two[0] > 9.5), "{times:?}");
}

#[test]
fn a_link_that_appears_is_captured_before_the_next_search_is_due() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip("link set eth0 name other0");
    fixture.configure("[witness]\n");
    let node = fixture.start();
    wait_for_capture(&fixture, "VI_1", (CaptureState::NoLink, AdvertPresence::Unknown));
    let strace = Strace::attach(&lab, node.pid());
    let witness = thread(node.pid(), "witness");
    let wait_for_state = |expected: CaptureState| {
        wait_showing(
            &format!("{expected:?}"),
            || read(&strace.output),
            || (capture(&fixture, "VI_1").0 == expected).then_some(()),
        );
    };
    for _ in 0..3 {
        netns.ip("link set other0 name eth0");
        wait_for_state(CaptureState::Running);
        netns.ip("link set eth0 name other0");
        wait_for_state(CaptureState::NoLink);
    }
    // Without an event, two searches are ten seconds apart.
    let times = strace.times(&witness, "\"eth0\"");
    assert!(times.windows(2).any(|two| two[1] - two[0] < 9.5), "{times:?}");
}

#[test]
fn an_instance_whose_heartbeat_link_is_down_is_in_fault_and_reports_no_silence() {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let hosts = [10, 11].map(|number: u8| {
        let netns = lab.netns(&number.to_string());
        switch.plug(&netns, "eth0", &format!("a{number}"));
        switch.plug(&netns, "eth1", &format!("b{number}"));
        netns.ip(&format!("address add 192.0.2.{number}/24 dev eth0"));
        netns.ip(&format!("address add 198.51.100.{number}/24 dev eth1"));
        let directory = lab.path().join(number.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        (netns, directory)
    });
    let [(primary, primary_directory), (backup, directory)] = &hosts;
    let text = |priority| conf("eth1", priority, "", "192.0.2.100/24 dev eth0");
    let _primary = Keepalived::start_with(primary, primary_directory, &text(150));
    let fixture = NodeFixture::new(PROGRAM.as_ref(), directory).with_processes().on(backup);
    fixture.configure("[witness]\n");
    let _backup = Keepalived::start_with(backup, directory, &text(100));
    let _node = fixture.start();
    wait_for_role(&fixture, "VI", "backup");
    wait_for_capture(&fixture, "VI", (CaptureState::Running, AdvertPresence::Advertised));
    switch.disconnect("b11");
    wait_for_role(&fixture, "VI", "fault");
    wait_for_capture(&fixture, "VI", (CaptureState::LinkDown, AdvertPresence::Unknown));
    wait_for_findings(&fixture, Some("VI"), &["link-fault"]);
    switch.reconnect("b11");
    wait_for_role(&fixture, "VI", "backup");
    wait_for_capture(&fixture, "VI", (CaptureState::Running, AdvertPresence::Advertised));
    wait_for_findings(&fixture, Some("VI"), &[]);
}

#[test]
fn the_kernel_says_which_kind_of_program_added_the_address_that_is_left() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[instance_conf("VI_1", "eth0", &["fd00::9/64"])]);
    let fixture = fixture.with_processes();
    let editor = netns.editor();
    let (link, vip) = (editor.link("eth0"), "fd00::9/64".parse().unwrap());
    let _node = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    let text_with = |protocol, expected: &str| {
        editor.add_with_protocol(link, vip, protocol);
        wait_for_role(&fixture, "VI_1", "primary");
        let shown = || fixture.run_text(&["doctor"]);
        wait_showing(expected, shown, || shown().contains(expected).then_some(()));
        editor.remove(link, vip);
        wait_for_role(&fixture, "VI_1", "backup");
    };
    text_with(0x12, "the address that keepalived added is still here");
    text_with(0x42, "another program added it (address protocol 0x42)");
}

#[test]
fn a_backup_of_direct_routing_with_the_address_on_its_loopback_link_has_no_finding() {
    let lab = Lab::new();
    let (netns, fixture) = fixture_with(&lab, &[vi_1_conf()]);
    netns.ip("address add 192.0.2.9/32 dev lo");
    let _node = fixture.start();
    wait_for_role(&fixture, "VI_1", "backup");
    netns.ip("link add other type veth peer name otherp");
    assert_eq!(finding_names(&fixture, Some("VI_1")), [""; 0]);
    netns.ip("address add 192.0.2.9/32 dev other");
    wait_for_findings(&fixture, Some("VI_1"), &["address-misplaced"]);
}

// SPDX-License-Identifier: Apache-2.0
//! The monitor on a real kernel: snapshots, events, overruns; and namespaces by name. The tests need namespaces of
//! their own, which `cargo xtask test` provides.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[path = "netns/listen.rs"]
mod listen;
#[path = "netns/program.rs"]
mod program;
#[path = "netns/vrrp_capture.rs"]
mod vrrp_capture;

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use ipnet::IpNet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_core::{Observation, Snapshot, SnapshotReason, Usability};
use vipwatch_linux::monitor::{Loss, Monitor, MonitorEvent, QueueState, Scope};
use vipwatch_linux::netns::NetnsId;
use vipwatch_testkit::{Lab, TestNetns, run};

fn vip() -> IpNet {
    "169.254.0.1/24".parse().unwrap()
}

fn setup() -> (Lab, TestNetns, Monitor) {
    let lab = Lab::new();
    let netns = lab.netns("m");
    netns.add_link("ha-1");
    let monitor = netns.visit(|| Monitor::open(vip(), Scope::Vip).unwrap());
    (lab, netns, monitor)
}

/// Reads until there is an event, no snapshot is pending and the queue is empty. The kernel reports the carrier of a
/// new link at any time; no test depends on that, so events of links are left out.
fn read_events(monitor: &mut Monitor) -> Vec<MonitorEvent> {
    let mut events = Vec::new();
    loop {
        let queue = monitor.read(&mut events).unwrap();
        events
            .retain(|event| !matches!(event, MonitorEvent::Observed(Observation::LinkSeen { .. })));
        if queue == QueueState::Empty && !events.is_empty() && !monitor.is_snapshot_pending() {
            return events;
        }
        let mut waiting = [PollFd::from_borrowed_fd(monitor.as_fd(), PollFlags::IN)];
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert!(
            poll(&mut waiting, Some(&limit)).unwrap() > 0,
            "no event within 10 s; so far {events:?}"
        );
    }
}

fn take_snapshot(monitor: &mut Monitor, reason: SnapshotReason) -> Snapshot {
    monitor.request_snapshot(reason).unwrap();
    let events = read_events(monitor);
    match events.as_slice() {
        [MonitorEvent::Observed(Observation::Snapshot { snapshot, .. })] => snapshot.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_snapshot_contains_all_links_but_only_the_watched_address() {
    let (_lab, netns, mut monitor) = setup();
    netns.ip("address add 169.254.0.1/24 dev ha-1");
    netns.ip("address add 10.0.0.1/24 dev ha-1");
    let seen = take_snapshot(&mut monitor, SnapshotReason::First);
    let names: Vec<String> = seen.links.iter().map(|link| link.name.to_string()).collect();
    assert!(names.contains(&"lo".to_owned()) && names.contains(&"ha-1".to_owned()), "{names:?}");
    let link = netns.editor().link("ha-1");
    assert_eq!(seen.addresses.len(), 1);
    assert_eq!((seen.addresses[0].target.link.0, seen.addresses[0].cidr()), (link, Some(vip())));
}

#[test]
fn a_snapshot_of_a_large_namespace_is_complete() {
    let (_lab, netns, mut monitor) = setup();
    let editor = netns.editor();
    let link = editor.link("ha-1");
    for n in 0..3_000_u32 {
        editor.add(link, format!("10.{}.{}.1/32", n / 250, n % 250).parse().unwrap());
    }
    editor.add(link, vip());
    let seen = take_snapshot(&mut monitor, SnapshotReason::First);
    assert_eq!(seen.addresses.len(), 1);
}

#[test]
fn a_change_of_the_watched_address_is_reported_once_and_others_are_not() {
    let (_lab, netns, mut monitor) = setup();
    take_snapshot(&mut monitor, SnapshotReason::First);
    let editor = netns.editor();
    let link = editor.link("ha-1");
    editor.add(link, "10.0.0.1/24".parse().unwrap());
    editor.add(link, vip());
    let events = read_events(&mut monitor);
    assert!(
        matches!(
            events.as_slice(),
            [MonitorEvent::Observed(Observation::AddressSeen { cidr, usability: Usability::Usable, .. })] if *cidr == vip()
        ),
        "{events:?}"
    );
}

#[test]
fn events_before_a_snapshot_are_not_reported_after_it() {
    let (_lab, netns, mut monitor) = setup();
    let editor = netns.editor();
    let link = editor.link("ha-1");
    // The monitor is subscribed already: all these events are in the queue when the snapshot is requested.
    for _ in 0..10 {
        editor.add(link, vip());
        editor.remove(link, vip());
    }
    let seen = take_snapshot(&mut monitor, SnapshotReason::First);
    assert!(seen.addresses.is_empty());
    let mut rest = Vec::new();
    monitor.read(&mut rest).unwrap();
    rest.retain(|event| !matches!(event, MonitorEvent::Observed(Observation::LinkSeen { .. })));
    assert_eq!(rest, []);
}

#[test]
fn an_overrun_is_reported_and_followed_by_a_snapshot() {
    let (_lab, netns, mut monitor) = setup();
    take_snapshot(&mut monitor, SnapshotReason::First);
    monitor.shrink_queue(1).unwrap();
    let editor = netns.editor();
    let link = editor.link("ha-1");
    for n in 0..500_u32 {
        editor.add(link, format!("10.1.{}.{}/32", n / 250, n % 250).parse().unwrap());
    }
    editor.add(link, vip());
    let events = read_events(&mut monitor);
    assert!(events.contains(&MonitorEvent::Lost(Loss::Overrun)), "{events:?}");
    let Some(MonitorEvent::Observed(Observation::Snapshot { reason, snapshot })) = events.last()
    else {
        panic!("{events:?}")
    };
    assert_eq!((*reason, snapshot.addresses.len()), (SnapshotReason::Resync, 1));
}

#[test]
fn events_during_an_audit_are_reported() {
    let (_lab, netns, mut monitor) = setup();
    take_snapshot(&mut monitor, SnapshotReason::First);
    let editor = netns.editor();
    editor.add(editor.link("ha-1"), vip());
    monitor.request_snapshot(SnapshotReason::Audit).unwrap();
    let events = read_events(&mut monitor);
    assert!(
        matches!(events[0], MonitorEvent::Observed(Observation::AddressSeen { .. })),
        "{events:?}"
    );
    assert!(
        matches!(events.last(), Some(MonitorEvent::Observed(Observation::Snapshot { .. }))),
        "{events:?}"
    );
}

#[test]
fn a_message_from_another_process_is_ignored() {
    let (_lab, netns, mut monitor) = setup();
    take_snapshot(&mut monitor, SnapshotReason::First);
    // A well-formed RTM_NEWADDR, sent to the monitor's port by another process with the privilege.
    let link = netns.editor().link("ha-1");
    let mut forged = vec![0_u8; 40];
    forged[0..4].copy_from_slice(&40_u32.to_ne_bytes());
    forged[4..6].copy_from_slice(&20_u16.to_ne_bytes());
    forged[16..18].copy_from_slice(&[2, 24]);
    forged[20..24].copy_from_slice(&link.to_ne_bytes());
    forged[24..32].copy_from_slice(&[8, 0, 2, 0, 169, 254, 0, 1]);
    forged[32..40].copy_from_slice(&[8, 0, 1, 0, 169, 254, 0, 1]);
    netns.visit(|| {
        use rustix::net::netlink::SocketAddrNetlink;
        use rustix::net::{AddressFamily, SendFlags, SocketType, sendto, socket};
        let sender = socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
        sendto(&sender, &forged, SendFlags::empty(), &SocketAddrNetlink::new(monitor.port(), 0))
            .unwrap();
    });
    let editor = netns.editor();
    editor.add(link, vip());
    editor.remove(link, vip());
    let events = read_events(&mut monitor);
    assert_eq!(events.len(), 2, "without the forged message: {events:?}");
}

#[test]
fn events_of_other_addresses_during_a_snapshot_are_reported_again_after_it() {
    let lab = Lab::new();
    // Only the loopback link: the kernel reports the carrier of other links at any time, and the snapshot would then be
    // taken again, with the new address in it.
    let netns = lab.netns("m");
    let mut monitor = netns.visit(|| Monitor::open(vip(), Scope::All).unwrap());
    monitor.request_snapshot(SnapshotReason::First).unwrap();
    let other: IpNet = "10.0.0.9/32".parse().unwrap();
    netns.editor().add(netns.editor().link("lo"), other);
    let events = read_events(&mut monitor);
    let is_other = |event: &MonitorEvent| matches!(event, MonitorEvent::Observed(Observation::AddressSeen { cidr, .. }) if *cidr == other);
    let snapshot = events
        .iter()
        .position(|event| matches!(event, MonitorEvent::Observed(Observation::Snapshot { .. })))
        .unwrap();
    assert!(events[snapshot..].iter().any(is_other), "{events:?}");
}

/// The kernel reports an overrun once and continues to drop messages until the queue is empty. Here it drops the
/// message that a link was deleted, after it has listed that link in the dump.
#[test]
fn a_link_deleted_while_the_kernel_drops_messages_is_not_in_the_snapshot() {
    let (_lab, netns, mut monitor) = setup();
    take_snapshot(&mut monitor, SnapshotReason::First);
    let editor = netns.editor();
    let loopback = editor.link("lo");
    // Room for about 1,000 messages.
    monitor.shrink_queue(512 << 10).unwrap();
    for n in 0..4_000_u32 {
        editor.add(loopback, format!("10.{}.{}.1/32", n / 250, n % 250).parse().unwrap());
    }
    // Read until the dump of links is queued behind the messages, which happens when half of the queue is free.
    let mut events = Vec::new();
    for _ in 0..3 {
        assert_eq!(monitor.read(&mut events).unwrap(), QueueState::MoreToCome);
    }
    assert!(events.contains(&MonitorEvent::Lost(Loss::Overrun)), "{events:?}");
    netns.ip("link del ha-1");
    let events = read_events(&mut monitor);
    let Some(MonitorEvent::Observed(Observation::Snapshot { snapshot: seen, .. })) = events.last()
    else {
        panic!("{events:?}")
    };
    let names: Vec<String> = seen.links.iter().map(|link| link.name.to_string()).collect();
    assert_eq!(names, ["lo"], "the link was deleted");
}

/// `--lazy` here and below: a child process that another test starts has all files of this process until it executes its program.
///
/// Before Linux 3.19 two handles of one namespace, opened through two mounts of `/proc`, have different device
/// numbers. A file of `/proc` represents such a handle here.
#[test]
fn handles_of_a_kernel_before_3_19_are_compared_by_their_inode() {
    let lab = Lab::new();
    let netns = lab.netns("twice");
    let name = netns.name().parse().unwrap();
    let other = lab.path().join("proc");
    std::fs::create_dir(&other).unwrap();
    run(Command::new("mount").args(["-t", "proc", "proc"]).arg(&other));
    let ids = [Path::new("/proc"), &other].map(|proc| {
        run(Command::new("mount").arg("--bind").arg(proc.join("version")).arg(netns.path()));
        let id = NetnsId::of_name(&name).unwrap();
        let device = std::fs::metadata(netns.path()).unwrap().dev();
        run(Command::new("umount").arg("--lazy").arg(netns.path()));
        (id, device)
    });
    run(Command::new("umount").arg("--lazy").arg(&other));
    let [(first, first_device), (second, second_device)] = ids;
    assert_ne!(first_device, second_device, "two mounts");
    assert_eq!(first, second);
}

/// Before Linux 3.19 the handle of a namespace is a file of `/proc`, like many others, so `open` cannot tell whether
/// it is a namespace. A file of `/proc` represents such a handle here: it is opened, and `setns` rejects it.
#[test]
fn a_handle_of_a_kernel_before_3_19_is_checked_by_setns() {
    let lab = Lab::new();
    let netns = lab.netns("old");
    run(Command::new("mount").args(["--bind", "/proc/version"]).arg(netns.path()));
    let handle = vipwatch_linux::netns::Netns::open(&netns.name().parse().unwrap()).unwrap();
    let error = std::thread::spawn(move || handle.enter().unwrap_err()).join().unwrap();
    run(Command::new("umount").arg("--lazy").arg(netns.path()));
    assert_eq!(error.to_string(), format!("{} is not a network namespace", netns.path().display()));
}

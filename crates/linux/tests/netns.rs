//! The monitor on a real kernel: looks, events, overruns. Needs namespaces of its own, which
//! `cargo xtask test` arranges.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use ipnet::IpNet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_core::{Inventory, Observation, SnapshotReason, Usability};
use vipwatch_linux::monitor::{Loss, Monitor, MonitorEvent, QueueState, Scope};
use vipwatch_linux::netns::NetnsId;
use vipwatch_testkit::{Lab, TestNetns, run};

fn vip() -> IpNet {
    "169.254.0.1/24".parse().unwrap()
}

fn stage() -> (Lab, TestNetns, Monitor) {
    let lab = Lab::new();
    let netns = lab.netns("m");
    netns.add_link("ha-1");
    let monitor = netns.visit(|| Monitor::open(vip(), Scope::Vip).unwrap());
    (lab, netns, monitor)
}

/// Reads until something was heard, and the queue is empty. Links tell of their carrier when
/// they like; that is no part of any test.
fn hear(monitor: &mut Monitor) -> Vec<MonitorEvent> {
    let mut heard = Vec::new();
    loop {
        let queue = monitor.read(&mut heard).unwrap();
        heard
            .retain(|heard| !matches!(heard, MonitorEvent::Observed(Observation::LinkSeen { .. })));
        if queue == QueueState::Empty && !heard.is_empty() && !monitor.is_looking() {
            return heard;
        }
        let mut waiting = [PollFd::from_borrowed_fd(monitor.as_fd(), PollFlags::IN)];
        let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
        assert!(poll(&mut waiting, Some(&limit)).unwrap() > 0, "nothing came; so far {heard:?}");
    }
}

fn inventory(monitor: &mut Monitor, look: SnapshotReason) -> Inventory {
    monitor.look(look).unwrap();
    let heard = hear(monitor);
    match heard.as_slice() {
        [MonitorEvent::Observed(Observation::Inventory(inventory))] => inventory.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_look_lists_the_links_and_the_watched_address_only() {
    let (_lab, netns, mut monitor) = stage();
    netns.ip("address add 169.254.0.1/24 dev ha-1");
    netns.ip("address add 10.0.0.1/24 dev ha-1");
    let seen = inventory(&mut monitor, SnapshotReason::First);
    let names: Vec<String> = seen.links.iter().map(|(_, name)| name.to_string()).collect();
    assert!(names.contains(&"lo".to_owned()) && names.contains(&"ha-1".to_owned()), "{names:?}");
    let link = netns.editor().link("ha-1");
    assert_eq!(seen.addresses.len(), 1);
    assert_eq!((seen.addresses[0].0.0, seen.addresses[0].1), (link, vip()));
}

#[test]
fn a_large_namespace_is_listed_whole() {
    let (_lab, netns, mut monitor) = stage();
    let editor = netns.editor();
    let link = editor.link("ha-1");
    for n in 0..3_000_u32 {
        editor.add(link, format!("10.{}.{}.1/32", n / 250, n % 250).parse().unwrap());
    }
    editor.add(link, vip());
    let seen = inventory(&mut monitor, SnapshotReason::First);
    assert_eq!(seen.addresses.len(), 1);
}

#[test]
fn an_event_is_heard_once_and_others_are_not_passed_on() {
    let (_lab, netns, mut monitor) = stage();
    inventory(&mut monitor, SnapshotReason::First);
    let editor = netns.editor();
    let link = editor.link("ha-1");
    editor.add(link, "10.0.0.1/24".parse().unwrap());
    editor.add(link, vip());
    let heard = hear(&mut monitor);
    assert!(
        matches!(
            heard.as_slice(),
            [MonitorEvent::Observed(Observation::AddressSeen { cidr, usability: Usability::Usable, .. })] if *cidr == vip()
        ),
        "{heard:?}"
    );
}

#[test]
fn what_happened_before_a_look_is_not_replayed_after_it() {
    let (_lab, netns, mut monitor) = stage();
    let editor = netns.editor();
    let link = editor.link("ha-1");
    // Subscribed already: all of this is in the queue when the look begins.
    for _ in 0..10 {
        editor.add(link, vip());
        editor.remove(link, vip());
    }
    let seen = inventory(&mut monitor, SnapshotReason::First);
    assert!(seen.addresses.is_empty());
    let mut rest = Vec::new();
    monitor.read(&mut rest).unwrap();
    rest.retain(|heard| !matches!(heard, MonitorEvent::Observed(Observation::LinkSeen { .. })));
    assert_eq!(rest, []);
}

#[test]
fn an_overrun_is_said_and_followed_by_an_inventory() {
    let (_lab, netns, mut monitor) = stage();
    inventory(&mut monitor, SnapshotReason::First);
    monitor.shrink_queue(1).unwrap();
    let editor = netns.editor();
    let link = editor.link("ha-1");
    for n in 0..500_u32 {
        editor.add(link, format!("10.1.{}.{}/32", n / 250, n % 250).parse().unwrap());
    }
    editor.add(link, vip());
    let heard = hear(&mut monitor);
    assert!(heard.contains(&MonitorEvent::Lost(Loss::Overrun)), "{heard:?}");
    let Some(MonitorEvent::Observed(Observation::Inventory(seen))) = heard.last() else {
        panic!("{heard:?}")
    };
    assert_eq!((seen.look, seen.addresses.len()), (SnapshotReason::Resync, 1));
}

#[test]
fn an_audit_passes_on_what_it_hears_meanwhile() {
    let (_lab, netns, mut monitor) = stage();
    inventory(&mut monitor, SnapshotReason::First);
    let editor = netns.editor();
    editor.add(editor.link("ha-1"), vip());
    monitor.look(SnapshotReason::Audit).unwrap();
    let heard = hear(&mut monitor);
    assert!(
        matches!(heard[0], MonitorEvent::Observed(Observation::AddressSeen { .. })),
        "{heard:?}"
    );
    assert!(
        matches!(heard.last(), Some(MonitorEvent::Observed(Observation::Inventory(_)))),
        "{heard:?}"
    );
}

#[test]
fn a_message_from_another_process_is_not_believed() {
    let (_lab, netns, mut monitor) = stage();
    inventory(&mut monitor, SnapshotReason::First);
    // A well-formed RTM_NEWADDR, sent to the monitor's own port by somebody with the right to.
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
    let heard = hear(&mut monitor);
    assert_eq!(heard.len(), 2, "the forged one is not among them: {heard:?}");
}

#[test]
fn what_is_heard_while_looking_is_told_again_behind_the_picture() {
    let lab = Lab::new();
    // Only the loopback link: others tell of their carrier when they like, and the look is then
    // begun anew, with all that was heard before it in its picture.
    let netns = lab.netns("m");
    let mut monitor = netns.visit(|| Monitor::open(vip(), Scope::All).unwrap());
    monitor.look(SnapshotReason::First).unwrap();
    let other: IpNet = "10.0.0.9/32".parse().unwrap();
    netns.editor().add(netns.editor().link("lo"), other);
    let heard = hear(&mut monitor);
    let is_other = |heard: &MonitorEvent| matches!(heard, MonitorEvent::Observed(Observation::AddressSeen { cidr, .. }) if *cidr == other);
    let picture = heard
        .iter()
        .position(|heard| matches!(heard, MonitorEvent::Observed(Observation::Inventory(_))))
        .unwrap();
    assert!(heard[picture..].iter().any(is_other), "{heard:?}");
}

/// The kernel says once that it drops messages, and goes on to drop them until the queue is empty. Here it drops the news
/// that a link is gone, after it has listed that link.
#[test]
fn a_link_deleted_while_the_kernel_drops_messages_is_not_in_the_picture() {
    let (_lab, netns, mut monitor) = stage();
    inventory(&mut monitor, SnapshotReason::First);
    let editor = netns.editor();
    let loopback = editor.link("lo");
    // Room for 1,000 messages or so.
    monitor.shrink_queue(512 << 10).unwrap();
    for n in 0..4_000_u32 {
        editor.add(loopback, format!("10.{}.{}.1/32", n / 250, n % 250).parse().unwrap());
    }
    // Read until the list of links is behind the messages in the queue, which is when half of it is free.
    let mut heard = Vec::new();
    for _ in 0..3 {
        assert_eq!(monitor.read(&mut heard).unwrap(), QueueState::MoreToCome);
    }
    assert!(heard.contains(&MonitorEvent::Lost(Loss::Overrun)), "{heard:?}");
    netns.ip("link del ha-1");
    let heard = hear(&mut monitor);
    let Some(MonitorEvent::Observed(Observation::Inventory(seen))) = heard.last() else {
        panic!("{heard:?}")
    };
    let names: Vec<String> = seen.links.iter().map(|(_, name)| name.to_string()).collect();
    assert_eq!(names, ["lo"], "the link is gone");
}

/// Before Linux 3.19 two handles of one namespace, opened through two mounts of `/proc`, have two devices. A file of
/// `/proc` stands for such a handle here.
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
        run(Command::new("umount").arg(netns.path()));
        (id, device)
    });
    run(Command::new("umount").arg(&other));
    let [(first, first_device), (second, second_device)] = ids;
    assert_ne!(first_device, second_device, "two mounts");
    assert_eq!(first, second);
}

/// Before Linux 3.19 the handle of a namespace lies on the file system of `/proc`, as other files do. A file of `/proc`
/// stands for such a handle here: it is opened, and `setns` says that it is none.
#[test]
fn a_handle_of_a_kernel_before_3_19_is_left_to_setns() {
    let lab = Lab::new();
    let netns = lab.netns("old");
    run(Command::new("mount").args(["--bind", "/proc/version"]).arg(netns.path()));
    let handle = vipwatch_linux::netns::Netns::open(&netns.name().parse().unwrap()).unwrap();
    let error = std::thread::spawn(move || handle.settle().unwrap_err()).join().unwrap();
    run(Command::new("umount").arg(netns.path()));
    assert_eq!(error.to_string(), format!("{} is not a network namespace", netns.path().display()));
}

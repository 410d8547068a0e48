// SPDX-License-Identifier: Apache-2.0
//! The capture of adverts that real keepalived sends, and the decoder compared with tcpdump's.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, socket};
use vipwatch_core::snapshot::Mac;
use vipwatch_core::vrrp::{
    Advert, AdvertError, ChecksumCoverage, VrrpAuthentication, VrrpVersion, decode,
};
use vipwatch_core::{LinkIndex, LinkName};
use vipwatch_linux::netns::Netns;
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_linux::vrrp_capture::{
    AdvertCapture, CaptureId, CaptureMode, CaptureRequest, CaptureScratch, CaptureTables,
    DrainResult, PacketDirection, buffer_bytes,
};
use vipwatch_testkit::keepalived::{BridgeSwitch, Keepalived};
use vipwatch_testkit::{Lab, TestNetns, wait_for};

/// One instance for each way in which keepalived sends adverts, all on `eth0` and with the priority 150.
const INSTANCES: [(u8, &str, &str); 10] = [
    (11, "advert_int 1", "192.0.2.100\n192.0.2.101"),
    (12, "authentication {\nauth_type PASS\nauth_pass secret12\n}", "192.0.2.102"),
    (13, "authentication {\nauth_type AH\nauth_pass secret12\n}", "192.0.2.103"),
    (14, "version 3\nadvert_int 0.5", "192.0.2.104"),
    (15, "version 3\nadvert_int 0.5", "fe80::1:2\n2001:db8::100/64"),
    (16, "unicast_src_ip 192.0.2.10\nunicast_peer {\n192.0.2.11\n}", "192.0.2.106"),
    (17, "use_vmac", "192.0.2.107"),
    (18, "use_vmac\nvmac_xmit_base", "192.0.2.108"),
    (
        19,
        "version 3\nunicast_src_ip 192.0.2.10\nunicast_peer {\n192.0.2.11\n}\nold_unicast_checksum",
        "192.0.2.109",
    ),
    (20, "version 2", "fe80::1:3"),
];

fn configuration() -> String {
    let instance = |(vrid, statements, addresses): &(u8, &str, &str)| {
        format!(
            "vrrp_instance V{vrid} {{\nstate MASTER\ninterface eth0\nvirtual_router_id {vrid}\npriority 150\n\
             {statements}\nvirtual_ipaddress {{\n{addresses}\n}}\n}}\n"
        )
    };
    INSTANCES.iter().map(instance).collect()
}

fn eth0() -> LinkName {
    "eth0".parse().unwrap()
}

/// Adverts captured on `eth0`, with the IPv4 group of the RFC.
fn request(mode: CaptureMode, buffer_bytes: usize) -> CaptureRequest {
    let groups = Box::new([Mac([0x01, 0x00, 0x5e, 0x00, 0x00, 0x12])]);
    CaptureRequest { link: eth0(), mode, buffer_bytes, groups }
}

/// The index of `eth0`; `None` if it does not exist.
fn index(netns: &TestNetns) -> Option<LinkIndex> {
    let netns = Netns::open(&netns.name().parse().unwrap()).unwrap();
    let found = NetnsQuery::open().unwrap().link_by_name(Some(&netns), eth0()).unwrap();
    found.map(|facts| facts.link)
}

fn open_bound(netns: &TestNetns, request: CaptureRequest) -> AdvertCapture {
    let mut capture = netns.visit(|| AdvertCapture::open(request).unwrap());
    assert!(capture.bind(index(netns).unwrap()).unwrap() && capture.is_member());
    capture
}

fn open(netns: &TestNetns, mode: CaptureMode) -> AdvertCapture {
    open_bound(netns, request(mode, 64 << 10))
}

/// A captured packet, copied.
struct Packet {
    bytes: Vec<u8>,
    direction: PacketDirection,
}

fn drain(capture: &mut AdvertCapture, into: &mut Vec<Packet>) -> DrainResult {
    let copy = |packet: vipwatch_linux::vrrp_capture::CapturedPacket<'_>| {
        into.push(Packet { bytes: packet.bytes.to_vec(), direction: packet.direction });
    };
    capture.drain(&mut CaptureScratch::new(), copy).unwrap()
}

/// Two namespaces on one switch, with the addresses 192.0.2.10 and 192.0.2.11.
struct Pair {
    lab: Lab,
    switch: BridgeSwitch,
    sender: TestNetns,
    receiver: TestNetns,
}

fn pair() -> Pair {
    let lab = Lab::new();
    let switch = BridgeSwitch::new(&lab);
    let (sender, receiver) = (lab.netns("a"), lab.netns("b"));
    for (netns, port, host) in [(&sender, "p1", 10), (&receiver, "p2", 11)] {
        switch.plug(netns, "eth0", port);
        netns.ip(&format!("address add 192.0.2.{host}/24 dev eth0"));
    }
    sender.ip("address add 2001:db8::10/64 dev eth0 nodad");
    sender.ip("route add 224.0.0.0/4 dev eth0");
    Pair { lab, switch, sender, receiver }
}

fn vrids(packets: &[Packet], is_wanted: impl Fn(&Advert<'_>) -> bool) -> BTreeSet<u8> {
    let adverts = packets.iter().map(|packet| decode(&packet.bytes).unwrap());
    adverts.filter(is_wanted).map(|advert| advert.vrid).collect()
}

#[test]
fn every_kind_of_advert_of_real_keepalived_is_captured_and_decoded_as_tcpdump_does() {
    let Pair { lab, switch: _switch, sender, receiver } = pair();
    let mut received = open(&receiver, CaptureMode::Received);
    let mut sent = open(&sender, CaptureMode::ReceivedAndSent);
    let keepalived = Keepalived::start_with(&sender, lab.path(), &configuration());
    let all: BTreeSet<u8> = INSTANCES.iter().map(|(vrid, ..)| *vrid).collect();
    let (mut here, mut there) = (Vec::new(), Vec::new());
    wait_for("an advert of each instance on both sides", || {
        drain(&mut sent, &mut here);
        drain(&mut received, &mut there);
        let is_complete = |packets: &[Packet]| vrids(packets, |_| true) == all;
        (is_complete(&here) && is_complete(&there)).then_some(())
    });
    keepalived.stop();
    wait_for("a hand-over of each instance", || {
        drain(&mut received, &mut there);
        (vrids(&there, |advert| advert.priority == 0) == all).then_some(())
    });
    assert!(here.iter().all(|packet| packet.direction == PacketDirection::Sent));
    assert!(there.iter().all(|packet| packet.direction == PacketDirection::Received));
    check_kinds(&there);
    compare_with_tcpdump(&there);
}

/// Checks the facts that the configuration decides.
fn check_kinds(packets: &[Packet]) {
    for packet in packets {
        let advert = decode(&packet.bytes).unwrap();
        let version =
            if [14, 15, 19].contains(&advert.vrid) { VrrpVersion::V3 } else { VrrpVersion::V2 };
        assert_eq!(advert.version, version, "{advert:?}");
        let authentication = match advert.vrid {
            12 => VrrpAuthentication::Password,
            13 => VrrpAuthentication::AuthenticationHeader,
            _ => VrrpAuthentication::None,
        };
        assert_eq!(advert.authentication, authentication, "{advert:?}");
        let checksum = match advert.vrid {
            19 => ChecksumCoverage::MulticastPseudoHeader,
            _ => ChecksumCoverage::Standard,
        };
        assert_eq!(advert.checksum, checksum, "{advert:?}");
        assert!([0, 150].contains(&advert.priority), "{advert:?}");
        assert_eq!(advert.destination.is_multicast(), ![16, 19].contains(&advert.vrid));
    }
}

/// Compares each packet with the line that tcpdump prints for it.
fn compare_with_tcpdump(packets: &[Packet]) {
    let mut tcpdump = Command::new("tcpdump")
        .args(["-nn", "-vvv", "-t", "-r", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("tcpdump; hint: `cargo xtask test` installs it");
    let mut input = tcpdump.stdin.take().unwrap();
    let file = capture_file(packets);
    std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(&file).unwrap());
    });
    let output = tcpdump.wait_with_output().unwrap();
    // An IPv4 packet has two lines; the second one is indented.
    let text = String::from_utf8(output.stdout).unwrap().replace("\n    ", " ");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), packets.len(), "{text}");
    for (line, packet) in lines.iter().zip(packets) {
        let advert = decode(&packet.bytes).unwrap();
        let expected = tcpdump_text(&advert);
        // tcpdump knows neither the two other pseudo-headers nor the checksum of version 2 over IPv6.
        let is_odd = advert.checksum != ChecksumCoverage::Standard
            || advert.version == VrrpVersion::V2 && advert.source.is_ipv6();
        assert_eq!(line.contains("bad vrrp cksum"), is_odd, "{line}");
        let line = line.split(", (bad vrrp cksum").next().map_or_else(String::new, str::to_owned)
            + line
                .split_once(" cksum ")
                .and_then(|(_, rest)| rest.split_once(')'))
                .map_or("", |(_, rest)| rest);
        assert!(line.contains(&expected), "{expected:?} is not in {line:?}");
        let route = format!("{} > {}: ", advert.source, advert.destination);
        assert!(line.contains(&route), "{route:?} is not in {line:?}");
    }
}

/// What tcpdump prints for an advert.
fn tcpdump_text(advert: &Advert<'_>) -> String {
    let Advert { version, vrid, priority, interval, .. } = advert;
    let timing = match version {
        VrrpVersion::V2 => {
            let authentication = match advert.authentication {
                VrrpAuthentication::None => "none",
                VrrpAuthentication::Password => "simple",
                VrrpAuthentication::AuthenticationHeader => "ah",
            };
            format!("authtype {authentication}, intvl {}s", interval.as_secs())
        }
        VrrpVersion::V3 => format!("intvl {}cs", interval.as_millis() / 10),
    };
    let addresses: Vec<String> = advert.addresses().map(|ip| ip.to_string()).collect();
    let count = if addresses.len() > 1 { format!("({})", addresses.len()) } else { String::new() };
    let rest = usize::from(*version == VrrpVersion::V2 && advert.source.is_ipv4()) * 8;
    let length = 8 + advert.address_bytes.len() + rest;
    format!(
        "VRRPv{}, Advertisement, vrid {vrid}, prio {priority}, {timing}, length {length}, addrs{count}: {}",
        version.number(),
        addresses.join(",")
    )
}

/// The packets as a capture file with the link type `LINKTYPE_RAW`.
fn capture_file(packets: &[Packet]) -> Vec<u8> {
    let mut file = Vec::new();
    for number in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 101] {
        file.extend(number.to_le_bytes());
    }
    for packet in packets {
        let length = u32::try_from(packet.bytes.len()).unwrap();
        for number in [0, 0, length, length] {
            file.extend(number.to_le_bytes());
        }
        file.extend(&packet.bytes);
    }
    file
}

#[test]
fn a_capture_of_received_adverts_has_no_sent_ones_and_no_other_packets() {
    let Pair { lab, switch: _switch, sender, receiver } = pair();
    let mut both = open(&sender, CaptureMode::ReceivedAndSent);
    let mut only_received = open(&sender, CaptureMode::Received);
    let _keepalived = Keepalived::start(&sender, lab.path(), "eth0", "192.0.2.100/24", 150);
    let (mut all, mut received) = (Vec::new(), Vec::new());
    wait_for("own adverts", || {
        drain(&mut both, &mut all);
        (all.len() >= 2).then_some(())
    });
    // Other packets to this host: ARP, and UDP without a listener.
    let sent = receiver.visit(|| {
        let socket = std::net::UdpSocket::bind("192.0.2.11:0").unwrap();
        socket.send_to(b"text", "192.0.2.10:9").unwrap()
    });
    assert_eq!(sent, 4);
    drain(&mut both, &mut all);
    drain(&mut only_received, &mut received);
    assert!(received.is_empty(), "{} packets", received.len());
    assert_eq!(vrids(&all, |_| true), BTreeSet::from([1]));
}

/// Sends an Ethernet frame over `eth0` of a namespace.
fn send_frame(netns: &TestNetns, frame: &[u8]) {
    let link = index(netns).unwrap();
    netns.visit(|| {
        let socket = socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
        // SAFETY: `sockaddr_ll` is plain data for which all zeroes is a valid value.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = 17;
        to.sll_ifindex = i32::try_from(link.0).unwrap();
        // SAFETY: frame and address outlive the call; both lengths are right.
        let sent = unsafe {
            let (bytes, length) = (frame.as_ptr().cast(), frame.len());
            libc::sendto(socket.as_raw_fd(), bytes, length, 0, (&raw const to).cast(), 20)
        };
        assert_eq!(usize::try_from(sent).unwrap(), frame.len());
    });
}

/// An advert of version 2 for the virtual router 11, from 192.0.2.10, of keepalived 2.2.7.
const ADVERT: [u8; 44] = [
    0x45, 0xc0, 0x00, 0x2c, 0x00, 0x01, 0x00, 0x00, 0xff, 0x70, 0x18, 0x84, 0xc0, 0x00, 0x02, 0x0a,
    0xe0, 0x00, 0x00, 0x12, 0x21, 0x0b, 0x96, 0x02, 0x00, 0x01, 0xc4, 0x26, 0xc0, 0x00, 0x02, 0x64,
    0xc0, 0x00, 0x02, 0x65, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];

#[test]
fn malformed_adverts_from_a_raw_socket_are_errors() {
    let Pair { sender, receiver, .. } = &pair();
    let mut capture = open(receiver, CaptureMode::Received);
    let changed = |at: usize, value: u8| {
        let mut packet = ADVERT;
        packet[at] = value;
        packet
    };
    // The kernel corrects the checksum of the IPv4 header and the total length.
    let sent = [
        (changed(8, 64), AdvertError::HopLimit),
        (changed(20, 0x51), AdvertError::Version),
        (changed(21, 0), AdvertError::Vrid),
        (changed(22, 255), AdvertError::Checksum),
        (changed(23, 200), AdvertError::Length),
        (changed(24, 9), AdvertError::Authentication),
    ];
    for (packet, _) in &sent {
        sender.send_ipv4(packet, 1);
    }
    sender.send_ipv4(&ADVERT[..24], 1);
    let mut packets = Vec::new();
    wait_for("all packets", || {
        drain(&mut capture, &mut packets);
        (packets.len() > sent.len()).then_some(())
    });
    let errors: Vec<AdvertError> =
        packets.iter().filter_map(|packet| decode(&packet.bytes).err()).collect();
    let expected = sent.iter().map(|(_, error)| *error).chain([AdvertError::Truncated]);
    assert_eq!(errors, expected.collect::<Vec<_>>());
}

#[test]
fn an_overrun_is_reported_once_and_enlarges_the_queue() {
    let Pair { sender, receiver, .. } = &pair();
    let bytes = buffer_bytes(0.1, Duration::from_secs(1));
    let mut capture = open_bound(receiver, request(CaptureMode::Received, bytes));
    let mut packets = Vec::new();
    sender.send_ipv4(&ADVERT, 500);
    let first = drain(&mut capture, &mut packets);
    assert!(first.packets > 0 && first.dropped > 0, "{first:?}");
    assert_eq!(first.packets + first.dropped as usize, 500);
    assert_eq!(drain(&mut capture, &mut packets), DrainResult::default());
    // Each overrun doubles the queue, until it has room for all.
    let mut last = first;
    let mut sizes = vec![first.packets];
    while last.dropped > 0 {
        sender.send_ipv4(&ADVERT, 500);
        last = drain(&mut capture, &mut packets);
        sizes.push(last.packets);
    }
    assert!(sizes.is_sorted() && sizes.len() > 2, "{sizes:?}");
}

#[test]
fn a_link_that_is_created_again_is_captured_again() {
    let Pair { lab, switch, sender, receiver } = pair();
    let mut capture = open(&receiver, CaptureMode::Received);
    let before = index(&receiver);
    assert!(capture.check_link());
    receiver.ip("link delete eth0");
    assert!(!capture.check_link());
    assert_eq!(index(&receiver), None);
    let mut packets = Vec::new();
    let lost = DrainResult { is_link_lost: true, ..DrainResult::default() };
    assert_eq!(drain(&mut capture, &mut packets), lost, "the kernel reports the removal");
    assert_eq!(drain(&mut capture, &mut packets), DrainResult::default());
    // Links of another index take the name.
    switch.plug(&receiver, "other", "p3");
    switch.plug(&receiver, "eth0", "p4");
    let after = index(&receiver);
    assert_ne!(before, after);
    assert!(capture.bind(after.unwrap()).unwrap());
    let _keepalived = Keepalived::start(&sender, lab.path(), "eth0", "192.0.2.100/24", 150);
    wait_for("an advert on the new link", || {
        drain(&mut capture, &mut packets);
        (!packets.is_empty()).then_some(())
    });
}

#[test]
fn adverts_arrive_on_a_link_that_filters_multicast_although_no_program_has_joined_the_group() {
    let lab = Lab::new();
    let [sender, receiver] = ["a", "b"].map(|name| lab.netns(name));
    // Unlike a veth, a macvlan passes up only frames of groups that it has joined, as a network card does.
    sender.add_link("base");
    for (netns, name) in [(&sender, "m1"), (&receiver, "m2")] {
        sender.ip(&format!("link add {name} link base type macvlan mode bridge"));
        sender.ip(&format!("link set {name} netns {} name eth0", netns.name()));
        netns.ip("link set eth0 up");
    }
    sender.ip("address add 192.0.2.10/24 dev eth0");
    sender.ip("route add 224.0.0.0/4 dev eth0");
    let mut capture = open(&receiver, CaptureMode::Received);
    let mut packets = Vec::new();
    sender.send_ipv4(&ADVERT, 5);
    wait_for("the adverts", || {
        drain(&mut capture, &mut packets);
        (packets.len() == 5).then_some(())
    });
}

#[test]
fn adverts_of_a_vlan_are_not_those_of_the_link_below() {
    let Pair { sender, receiver, .. } = &pair();
    let mut capture = open(receiver, CaptureMode::ReceivedAndSent);
    let addresses = [0x01, 0, 0x5e, 0, 0, 0x12, 0x02, 0, 0, 0, 0, 0x01];
    let frame = |tag: &[u8]| [&addresses[..], tag, &[0x08, 0x00], &ADVERT[..]].concat();
    send_frame(sender, &frame(&[0x81, 0x00, 0x00, 0x05]));
    // The VLAN 0 carries a priority only: the link itself receives it.
    send_frame(sender, &frame(&[0x81, 0x00, 0xe0, 0x00]));
    send_frame(sender, &frame(&[]));
    let mut packets = Vec::new();
    wait_for("the frames of the link", || {
        drain(&mut capture, &mut packets);
        (packets.len() >= 2).then_some(())
    });
    assert_eq!(packets.len(), 2);
    assert_eq!(vrids(&packets, |_| true), BTreeSet::from([11]));
}

/// Number of packet sockets in a namespace.
fn packet_sockets(netns: &TestNetns) -> usize {
    let table = netns.visit(|| std::fs::read_to_string("/proc/thread-self/net/packet").unwrap());
    table.lines().count() - 1
}

/// Opens so many sockets in the namespace, each for `eth0`.
fn open_many(tables: &mut CaptureTables, netns: &TestNetns, count: usize) -> Vec<CaptureId> {
    let request = request(CaptureMode::Received, 64 << 10);
    let name = netns.name().parse().unwrap();
    let mut opened = Vec::new();
    while opened.len() < count {
        let requests = vec![request.clone(); count - opened.len()];
        let some = tables.open(Some(&name), &requests).unwrap();
        assert!(some.netns.is_some() && !some.captures.is_empty(), "{some:?}");
        opened.extend(some.captures.into_iter().map(Result::unwrap));
    }
    opened
}

#[test]
fn many_sockets_are_spread_over_tables_read_and_closed_together() {
    let Pair { sender, receiver, .. } = &pair();
    let mut tables = CaptureTables::default();
    let mut sockets = open_many(&mut tables, receiver, 64);
    assert_eq!(packet_sockets(receiver), 64);
    let numbered = |sockets: &[CaptureId]| sockets.iter().copied().zip(0..).collect::<Vec<_>>();
    let mut threads = BTreeSet::new();
    let link = index(receiver).unwrap();
    tables.for_each(numbered(&sockets), |_: usize, socket| {
        assert!(socket.bind(link).unwrap());
        threads.insert(format!("{:?}", std::thread::current().id()));
    });
    assert!(threads.len() > 4, "{threads:?}");
    // Every second socket is closed, and all others read the advert.
    let (kept, closed): (Vec<_>, Vec<_>) =
        numbered(&sockets).into_iter().partition(|(_, number): &(_, usize)| number % 2 == 0);
    tables.close(&closed.iter().map(|(id, _)| *id).collect::<Vec<_>>());
    assert_eq!(packet_sockets(receiver), 32);
    sender.send_ipv4(&ADVERT, 1);
    let mut readers = Vec::new();
    tables.for_each(kept.clone(), |number, socket| {
        let mut packets = Vec::new();
        drain(socket, &mut packets);
        readers.extend(packets.iter().map(|_| number));
    });
    readers.sort_unstable();
    assert_eq!(readers, (0..64).step_by(2).collect::<Vec<usize>>());
    // New sockets take the free places, and the old ones are where they were.
    sockets = kept.into_iter().map(|(id, _)| id).collect();
    sockets.extend(open_many(&mut tables, receiver, 32));
    assert_eq!(sockets.iter().collect::<BTreeSet<_>>().len(), 64);
    tables.close(&sockets);
    assert_eq!(packet_sockets(receiver), 0);
}

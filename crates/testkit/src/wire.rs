// SPDX-License-Identifier: Apache-2.0
//! Captures announcements, or all frames, on a link with tcpdump, with the kernel's timestamps.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use etherparse::{ArpOperation, Icmpv6Type, NetSlice, SlicedPacket, TransportSlice};
use tempfile::NamedTempFile;

use crate::TestNetns;
use crate::wait::wait_showing;

/// A running capture. Dropping it stops tcpdump.
#[derive(Debug)]
pub struct Wire {
    child: Child,
    file: NamedTempFile,
}

/// One captured frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// Time of the frame, since the Unix epoch.
    pub at: Duration,
    /// The frame, from its Ethernet header on, up to 256 bytes.
    pub bytes: Vec<u8>,
}

/// How an address was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnnounceKind {
    /// A gratuitous ARP request.
    Request,
    /// A gratuitous ARP reply.
    Reply,
    /// An unsolicited neighbour advertisement with the override flag.
    Advertisement,
}

impl Wire {
    /// Captures ARP and neighbour advertisements on `link` of `netns`.
    pub fn tap(netns: &TestNetns, link: &str) -> Self {
        Self::capture(netns, link, "arp or (icmp6 and ip6[40] == 136)")
    }

    /// Captures all frames on `link` of `netns`.
    pub fn tap_all(netns: &TestNetns, link: &str) -> Self {
        Self::capture(netns, link, "")
    }

    fn capture(netns: &TestNetns, link: &str, filter: &str) -> Self {
        let file = NamedTempFile::new().expect("create a temporary file");
        let mut command = netns.command("tcpdump");
        // tcpdump keeps its user (`-Z root`), because a user namespace has no other. Frames are cut (`-s`),
        // because the buffer holds a fixed number of frames of the maximum length.
        command.args(["-i", link, "-n", "-U", "--immediate-mode", "-Z", "root"]);
        command.args(["-s", "256", "-B", "16384", "-w"]);
        command.arg(file.path()).arg(filter);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("start tcpdump");
        let stderr = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
        let is_ready =
            stderr.lines().map_while(Result::ok).any(|line| line.contains("listening on"));
        assert!(is_ready, "tcpdump does not listen on {link}");
        Self { child, file }
    }

    /// All frames so far, in order.
    pub fn frames(&self) -> Vec<Captured> {
        const FILE_HEADER_BYTES: usize = 24;
        const RECORD_HEADER_BYTES: usize = 16;
        let bytes = std::fs::read(self.file.path()).expect("read the capture file");
        let number = |at: usize| -> Option<u32> {
            bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
        };
        let mut frames = Vec::new();
        let mut at = FILE_HEADER_BYTES;
        // A record of a pcap file: seconds, microseconds, captured length, length on the wire, captured bytes.
        while let (Some(seconds), Some(micros), Some(length)) =
            (number(at), number(at + 4), number(at + 8))
        {
            let begin = at + RECORD_HEADER_BYTES;
            let end = begin + length as usize;
            let Some(bytes) = bytes.get(begin..end) else { break };
            let at_time =
                Duration::from_secs(seconds.into()) + Duration::from_micros(micros.into());
            frames.push(Captured { at: at_time, bytes: bytes.to_vec() });
            at = end;
        }
        frames
    }

    /// The frames so far that announce `ip`.
    pub fn announcements(&self, ip: &str) -> Vec<(AnnounceKind, Captured)> {
        let ip: IpAddr = ip.parse().expect("a valid address");
        let announced = |frame: Captured| frame.announces(ip).map(|kind| (kind, frame));
        self.frames().into_iter().filter_map(announced).collect()
    }

    /// Waits until `count` frames have announced `ip`.
    #[track_caller]
    pub fn wait_for(&self, ip: &str, count: usize) -> Vec<(AnnounceKind, Captured)> {
        let diagnostics = || format!("there were {}", self.announcements(ip).len());
        wait_showing(&format!("{count} announcements of {ip}"), diagnostics, || {
            Some(self.announcements(ip)).filter(|frames| frames.len() >= count)
        })
    }
}

impl Captured {
    /// Source MAC address.
    pub fn sender(&self) -> String {
        let bytes: Vec<String> =
            self.bytes[6..12].iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(":")
    }

    /// How the frame announces `ip`; `None` if it does not.
    fn announces(&self, ip: IpAddr) -> Option<AnnounceKind> {
        let sliced = SlicedPacket::from_ethernet(&self.bytes).ok()?;
        match (sliced.net?, sliced.transport, ip) {
            (NetSlice::Arp(arp), _, IpAddr::V4(ip)) => {
                let arp = arp.to_packet();
                let is_announcement = arp.sender_protocol_addr() == ip.octets()
                    && arp.target_protocol_addr() == ip.octets()
                    && arp.sender_hw_addr() == &self.bytes[6..12];
                is_announcement.then_some(if arp.operation == ArpOperation::REQUEST {
                    AnnounceKind::Request
                } else {
                    AnnounceKind::Reply
                })
            }
            (NetSlice::Ipv6(_), Some(TransportSlice::Icmpv6(icmp)), IpAddr::V6(ip)) => {
                let Icmpv6Type::NeighborAdvertisement(flags) = icmp.icmp_type() else {
                    return None;
                };
                let is_announcement = flags.r#override
                    && !flags.solicited
                    && icmp.payload().get(..16) == Some(&ip.octets());
                is_announcement.then_some(AnnounceKind::Advertisement)
            }
            _ => None,
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// MAC address of a link.
pub fn mac_of(netns: &TestNetns, link: &str) -> String {
    crate::run(netns.command("cat").arg(format!("/sys/class/net/{link}/address"))).trim().to_owned()
}

//! What goes over a link: tcpdump's record, with the kernel's own times.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Child, Stdio};
use std::time::Duration;

use etherparse::{ArpOperation, Icmpv6Type, NetSlice, SlicedPacket, TransportSlice};
use tempfile::NamedTempFile;

use crate::TestNetns;
use crate::wait::wait_showing;

/// A recording, until dropped.
#[derive(Debug)]
pub struct Wire {
    child: Child,
    file: NamedTempFile,
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// When, since the epoch.
    pub at: Duration,
    /// All of it.
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
    /// Records ARP and neighbour advertisements on `link` of `netns`.
    pub fn tap(netns: &TestNetns, link: &str) -> Self {
        let file = NamedTempFile::new().expect("a scratch file");
        let mut command = netns.command("tcpdump");
        // Running as the caller: inside a user namespace there is nobody else to be. Short
        // frames, because its buffer has room for so many of the longest.
        command.args(["-i", link, "-n", "-U", "--immediate-mode", "-Z", "root"]);
        command.args(["-s", "256", "-B", "16384", "-w"]);
        command.arg(file.path()).arg("arp or (icmp6 and ip6[40] == 136)");
        let mut child = command.stderr(Stdio::piped()).spawn().expect("tcpdump runs");
        let said = BufReader::new(child.stderr.take().expect("its words"));
        let is_ready = said.lines().map_while(Result::ok).any(|line| line.contains("listening on"));
        assert!(is_ready, "tcpdump does not listen on {link}");
        Self { child, file }
    }

    /// Everything so far.
    pub fn frames(&self) -> Vec<Captured> {
        const FILE_HEAD: usize = 24;
        const RECORD_HEAD: usize = 16;
        let bytes = std::fs::read(self.file.path()).expect("the record");
        let number = |at: usize| -> Option<u32> {
            bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
        };
        let mut frames = Vec::new();
        let mut at = FILE_HEAD;
        // Seconds, microseconds, length here, length on the wire; then the bytes.
        while let (Some(seconds), Some(micros), Some(length)) =
            (number(at), number(at + 4), number(at + 8))
        {
            let begin = at + RECORD_HEAD;
            let end = begin + length as usize;
            let Some(bytes) = bytes.get(begin..end) else { break };
            let at_time =
                Duration::from_secs(seconds.into()) + Duration::from_micros(micros.into());
            frames.push(Captured { at: at_time, bytes: bytes.to_vec() });
            at = end;
        }
        frames
    }

    /// The announcements of `ip` so far.
    pub fn announcements(&self, ip: &str) -> Vec<(AnnounceKind, Captured)> {
        let ip: IpAddr = ip.parse().expect("an address");
        let said = |frame: Captured| frame.means(ip).map(|means| (means, frame));
        self.frames().into_iter().filter_map(said).collect()
    }

    /// Waits until `ip` was announced in `count` frames.
    #[track_caller]
    pub fn wait_for(&self, ip: &str, count: usize) -> Vec<(AnnounceKind, Captured)> {
        let diagnostics = || format!("there were {}", self.announcements(ip).len());
        wait_showing(&format!("{count} announcements of {ip}"), diagnostics, || {
            Some(self.announcements(ip)).filter(|frames| frames.len() >= count)
        })
    }
}

impl Captured {
    /// The station it came from.
    pub fn sender(&self) -> String {
        let bytes: Vec<String> =
            self.bytes[6..12].iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(":")
    }

    /// How it announces `ip`, if it does.
    fn means(&self, ip: IpAddr) -> Option<AnnounceKind> {
        let sliced = SlicedPacket::from_ethernet(&self.bytes).ok()?;
        match (sliced.net?, sliced.transport, ip) {
            (NetSlice::Arp(arp), _, IpAddr::V4(ip)) => {
                let arp = arp.to_packet();
                let is_ours = arp.sender_protocol_addr() == ip.octets()
                    && arp.target_protocol_addr() == ip.octets()
                    && arp.sender_hw_addr() == &self.bytes[6..12];
                is_ours.then_some(if arp.operation == ArpOperation::REQUEST {
                    AnnounceKind::Request
                } else {
                    AnnounceKind::Reply
                })
            }
            (NetSlice::Ipv6(_), Some(TransportSlice::Icmpv6(icmp)), IpAddr::V6(ip)) => {
                let Icmpv6Type::NeighborAdvertisement(flags) = icmp.icmp_type() else {
                    return None;
                };
                let is_ours = flags.r#override
                    && !flags.solicited
                    && icmp.payload().get(..16) == Some(&ip.octets());
                is_ours.then_some(AnnounceKind::Advertisement)
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

/// The MAC of a link.
pub fn mac_of(netns: &TestNetns, link: &str) -> String {
    crate::run(netns.command("cat").arg(format!("/sys/class/net/{link}/address"))).trim().to_owned()
}

// SPDX-License-Identifier: Apache-2.0
//! A VRRP router that signs its adverts as keepalived 2.4 does with `auth_hmac`: no package has that release.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::hmac;
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, sendto, socket};

use crate::TestNetns;

/// A key with its number.
#[derive(Debug, Clone)]
pub struct SigningKey {
    /// The number in the trailer.
    pub id: u8,
    /// 32 to 64 bytes.
    pub bytes: Vec<u8>,
}

impl SigningKey {
    /// The key with this number, and the bytes 0 to 31.
    pub fn numbered(id: u8) -> Self {
        Self { id, bytes: (0..32).collect() }
    }
}

/// An advert.
#[derive(Debug, Clone)]
pub struct TestAdvert {
    /// The version of VRRP, 2 or 3.
    pub version: u8,
    /// The virtual router id.
    pub vrid: u8,
    /// The priority.
    pub priority: u8,
    /// The interval: whole seconds in version 2, hundredths of a second in version 3.
    pub interval: Duration,
    /// The source address, which need not be one of the sender.
    pub source: IpAddr,
    /// The destination: a multicast group or a unicast peer.
    pub destination: IpAddr,
    /// The virtual addresses, of the same family.
    pub addresses: Vec<IpAddr>,
    /// The key; `None` for an advert without a trailer.
    pub key: Option<SigningKey>,
    /// The difference in seconds between the time in the trailer and that of this host.
    pub clock_offset: i64,
}

impl TestAdvert {
    /// A signed IPv4 multicast advert of version 2, once a second, with the key id 7.
    pub fn multicast(vrid: u8, priority: u8, source: [u8; 4], address: [u8; 4]) -> Self {
        Self {
            version: 2,
            vrid,
            priority,
            interval: Duration::from_secs(1),
            source: source.into(),
            destination: [224, 0, 0, 18].into(),
            addresses: vec![address.into()],
            key: Some(SigningKey::numbered(7)),
            clock_offset: 0,
        }
    }

    /// The packet with its IP header, signed at this time since the Unix epoch.
    pub fn packet(&self, at: Duration) -> Vec<u8> {
        let mut message = self.message();
        let trailer = self.key.as_ref().map(|key| self.trailer(key, &message, at));
        let mut covered = message.clone();
        // The kernel computes the checksum over IPv6, trailer included.
        covered.extend(trailer.iter().flatten().filter(|_| self.source.is_ipv6()));
        let is_plain = self.version == 2 && self.source.is_ipv4();
        let start = if is_plain { 0 } else { self.pseudo_header_sum(covered.len()) };
        message[6..8].copy_from_slice(&checksum(start, &covered));
        message.extend(trailer.iter().flatten());
        let mut packet = self.ip_header(message.len());
        packet.extend(message);
        packet
    }

    /// The VRRP part without a checksum and without a trailer.
    fn message(&self) -> Vec<u8> {
        let count = u8::try_from(self.addresses.len()).expect("at most 255 addresses");
        let mut message = vec![self.version << 4 | 1, self.vrid, self.priority, count];
        message.extend(if self.version == 2 {
            [0, u8::try_from(self.interval.as_secs()).expect("at most 255 s")]
        } else {
            u16::try_from(self.interval.as_millis() / 10).expect("at most 40.95 s").to_be_bytes()
        });
        message.extend([0, 0]);
        self.addresses.iter().for_each(|ip| message.extend(octets(*ip)));
        if self.version == 2 && self.source.is_ipv4() {
            message.extend([0; 8]);
        }
        message
    }

    /// The HMAC covers family, version, VRID and source, then the message with a checksum of zero, and the trailer with an
    /// HMAC of zero.
    fn trailer(&self, key: &SigningKey, message: &[u8], at: Duration) -> Vec<u8> {
        const HMAC_BYTES: usize = 16;
        let seconds = at.as_secs().saturating_add_signed(self.clock_offset);
        let seconds = u32::try_from(seconds).expect("before 2106");
        let fraction = (u64::from(at.subsec_nanos()) << 16) / 1_000_000_000;
        let fraction = u16::try_from(fraction).expect("less than a second");
        let mut trailer = vec![1, key.id, 0, 0];
        trailer.extend(seconds.to_be_bytes());
        trailer.extend(fraction.to_be_bytes());
        trailer.extend([0, 0]);
        let family = if self.source.is_ipv4() { 4 } else { 6 };
        let mut source = octets(self.source);
        source.resize(16, 0);
        let mut signing = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &key.bytes));
        signing.update(&[family, self.version, self.vrid, 0]);
        signing.update(&source);
        signing.update(message);
        signing.update(&trailer);
        signing.update(&[0; HMAC_BYTES]);
        trailer.extend(&signing.sign().as_ref()[..HMAC_BYTES]);
        trailer
    }

    fn ip_header(&self, length: usize) -> Vec<u8> {
        let mut header = if self.source.is_ipv4() {
            let total = u16::try_from(length + 20).expect("a short packet").to_be_bytes();
            vec![0x45, 0xc0, total[0], total[1], 0, 1, 0, 0, 255, 112, 0, 0]
        } else {
            let length = u16::try_from(length).expect("a short packet").to_be_bytes();
            vec![0x6c, 0, 0, 0, length[0], length[1], 112, 255]
        };
        header.extend(octets(self.source));
        header.extend(octets(self.destination));
        if self.source.is_ipv4() {
            let sum = checksum(0, &header);
            header[10..12].copy_from_slice(&sum);
        }
        header
    }

    fn pseudo_header_sum(&self, length: usize) -> u32 {
        let mut words = octets(self.source);
        words.extend(octets(self.destination));
        sum(112 + u32::try_from(length).expect("a short packet"), &words)
    }
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn sum(start: u32, bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2);
    start + words.map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum::<u32>()
}

fn checksum(start: u32, bytes: &[u8]) -> [u8; 2] {
    let sum = sum(start, bytes);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (!u16::try_from(sum & 0xffff).expect("two bytes")).to_be_bytes()
}

/// Sends an advert in every interval, as a primary does. Dropping it stops at once, without the priority 0.
#[derive(Debug)]
pub struct AdvertSender {
    changes: Option<SyncSender<TestAdvert>>,
    thread: Option<JoinHandle<()>>,
}

impl AdvertSender {
    /// Sends the first advert now, in `netns` over `link`.
    pub fn start(netns: &TestNetns, link: &str, advert: TestAdvert) -> Self {
        let family =
            if advert.source.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let (socket, index) = netns.visit(|| {
            const IPPROTO_RAW: u32 = 255;
            let protocol = std::num::NonZeroU32::new(IPPROTO_RAW).map(Protocol::from_raw);
            let socket = socket(family, SocketType::RAW, protocol).expect("open a raw socket");
            let index = rustix::net::netdevice::name_to_index(&socket, link).expect("find a link");
            (socket, index)
        });
        let (changes, receiver) = sync_channel(1);
        let thread = std::thread::spawn(move || {
            let mut advert = advert;
            loop {
                send(&socket, index, &advert);
                match receiver.recv_timeout(advert.interval) {
                    Ok(next) => advert = next,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        Self { changes: Some(changes), thread: Some(thread) }
    }

    /// Sends this advert from now on, of the same family. With the priority 0 the sender hands over.
    pub fn change(&self, advert: TestAdvert) {
        self.changes.as_ref().expect("it runs").send(advert).expect("the thread runs");
    }
}

impl Drop for AdvertSender {
    fn drop(&mut self) {
        drop(self.changes.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn send(socket: &OwnedFd, link: u32, advert: &TestAdvert) {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let to = match advert.destination {
        IpAddr::V4(_) => SocketAddr::new(advert.destination, 0),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, link).into(),
    };
    // A link that is down loses adverts, as it does those of keepalived.
    let _ = sendto(socket, &advert.packet(at), SendFlags::empty(), &to);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The packets of keepalived 2.4.3, with the time in their trailers.
    const CAPTURED: [(&str, u64, u16); 3] = [
        (
            "45c0004800010000ff701871c0000201e0000012213396020001c4b2c000020ac000020b0000000000000000010700006afd570496a100001dcb04ed48aa913777cd95a19efe66dc",
            0x6afd_5704,
            0x96a1,
        ),
        (
            "45c0003c00010000ff70187dc0000201e0000012313396010064d3cbc000020a010700006afd5709a7e10000c785b50ef86faa0c68330ffa2c903ba3",
            0x6afd_5709,
            0xa7e1,
        ),
        (
            "6c08fd4d004470fffe800000000000005ce90afffec8f480ff020000000000000000000000000012313396020064c0f2fe80000000000000000000000000001020010db8000000000000000000000010010700006afd570ec50c000078bfb6fa3cfd7f67953abfe5b40a7433",
            0x6afd_570e,
            0xc50c,
        ),
    ];

    #[test]
    fn the_packets_are_those_of_keepalived_2_4() {
        let v4 = TestAdvert::multicast(51, 150, [192, 0, 2, 1], [192, 0, 2, 10]);
        let two = vec![[192, 0, 2, 10].into(), [192, 0, 2, 11].into()];
        let ips = |texts: [&str; 2]| texts.map(|text| text.parse().expect("an address")).to_vec();
        let adverts = [
            TestAdvert { addresses: two, ..v4.clone() },
            TestAdvert { version: 3, ..v4.clone() },
            TestAdvert {
                version: 3,
                source: "fe80::5ce9:aff:fec8:f480".parse().expect("an address"),
                destination: "ff02::12".parse().expect("an address"),
                addresses: ips(["fe80::10", "2001:db8::10"]),
                ..v4
            },
        ];
        for ((hex, seconds, fraction), advert) in CAPTURED.into_iter().zip(adverts) {
            // The next nanosecond, because the fraction was rounded down.
            let nanos = (u64::from(fraction) * 1_000_000_000).div_ceil(1 << 16);
            let at = Duration::from_secs(seconds) + Duration::from_nanos(nanos);
            let mut packet = advert.packet(at);
            if packet[0] >> 4 == 6 {
                // The flow label is the kernel's.
                packet[1..4].copy_from_slice(&[0x08, 0xfd, 0x4d]);
            }
            let captured: Vec<u8> = (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal"))
                .collect();
            assert_eq!(packet, captured);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Sends one VRRP advert a second to the link of each router, as another host on the link.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_ip_multicast_if_with_ifindex, set_ip_multicast_loop};
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, sendto, socket};
use vipwatch_testkit::routers::LINK;
use vipwatch_testkit::{Routers, pause, peer_of};

/// The group of VRRP.
const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 18);

/// Version 2, virtual router 1, priority 100, one address 169.254.0.1, interval 1 s, from 169.254.192.2. The kernel fills
/// in the length and the checksum of the IP header.
const ADVERT: [u8; 40] = [
    0x45, 0xc0, 0, 40, 0, 1, 0, 0, 255, 112, 0, 0, 169, 254, 192, 2, 224, 0, 0,
    18, // IP header
    0x21, 1, 100, 1, 0, 1, 0xd0, 0xfc, 169, 254, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Number of groups of routers; each group gets its adverts at another time of the second.
const GROUPS: usize = 20;

/// The other host on the link of one router.
pub struct AdvertSender {
    socket: OwnedFd,
    /// Whether [`send_all`] leaves this one out.
    pub is_paused: AtomicBool,
}

impl AdvertSender {
    /// A sender for each router, on the other end of its link.
    pub fn for_all(routers: &Routers) -> Vec<Self> {
        let open = || {
            const IPPROTO_RAW: u32 = 255;
            let protocol = NonZeroU32::new(IPPROTO_RAW).map(Protocol::from_raw);
            socket(AddressFamily::INET, SocketType::RAW, protocol).expect("open a raw socket")
        };
        let each = routers.each.iter().map(|router| {
            let socket = router.netns.visit(open);
            let index = router.editor().0.link(&peer_of(LINK));
            let none = Ipv4Addr::UNSPECIFIED;
            set_ip_multicast_if_with_ifindex(&socket, &GROUP, &none, index).expect("a link");
            set_ip_multicast_loop(&socket, false).expect("an option of the socket");
            Self { socket, is_paused: AtomicBool::new(false) }
        });
        each.collect()
    }

    /// Sends one advert.
    pub fn send(&self) {
        let to = SocketAddrV4::new(GROUP, 0);
        // A link that is down for a moment loses an advert.
        let _ = sendto(&self.socket, &ADVERT, SendFlags::empty(), &to);
    }
}

/// Sends one advert a second from each sender, until `has_ended`.
pub fn send_all(senders: &[AdvertSender], has_ended: &AtomicBool) {
    let share = senders.len().div_ceil(GROUPS).max(1);
    let mut second = Instant::now();
    while !has_ended.load(Ordering::Relaxed) {
        let mut next = second;
        for group in senders.chunks(share) {
            let sending = group.iter().filter(|one| !one.is_paused.load(Ordering::Relaxed));
            sending.for_each(AdvertSender::send);
            next += Duration::from_secs(1) / u32::try_from(GROUPS).unwrap_or(1);
            pause(next.saturating_duration_since(Instant::now()));
        }
        second += Duration::from_secs(1);
        pause(second.saturating_duration_since(Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advert_has_a_correct_checksum() {
        let words = ADVERT[20..].chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}

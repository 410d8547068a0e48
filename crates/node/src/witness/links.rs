// SPDX-License-Identifier: Apache-2.0
//! The links with wanted adverts, and one of them with its socket.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vipwatch_core::snapshot::{LinkFacts, LinkState, Mac};
use vipwatch_core::vrrp::AdvertKind;
use vipwatch_core::witness::{
    AdvertOrigin, LinkWitness, RoutedAdverts, RouterKey, WitnessedPacket,
};
use vipwatch_core::{ErrorChain, LinkName, Moment};
use vipwatch_linux::clock;
use vipwatch_linux::netns::{NetnsError, NetnsId};
use vipwatch_linux::netns_query::NetnsQueryError;
use vipwatch_linux::vrrp_capture::{
    AdvertCapture, CaptureId, CaptureMode, CaptureRequest, CaptureScratch, CapturedPacket,
    DrainResult, PacketDirection, buffer_bytes,
};

use super::evidence::{
    CaptureStatus, LinkEvidence, LinkKey, WitnessTable, WitnessTotals, advert_interval, router_key,
};
use super::worker::DRAIN_INTERVAL;
use crate::config::WitnessConfig;
use crate::discovery::InstanceConfig;

/// Sources of adverts that each virtual router may have at the same time, for the size of the queue: during an election
/// two routers advertise.
const SOURCES_PER_ROUTER: f64 = 2.0;

/// The groups of the RFCs; keepalived uses them unless others are configured.
const VRRP_GROUPS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(224, 0, 0, 18)),
    IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x12)),
];

/// Time between two searches for a link by its name.
const SEARCH_INTERVAL: Duration = Duration::from_secs(10);

/// What is wanted of one link.
#[derive(Debug)]
pub(super) struct WantedLink {
    pub(super) mode: CaptureMode,
    pub(super) routers: Vec<(RouterKey, RoutedAdverts)>,
    pub(super) instances: Vec<Arc<InstanceConfig>>,
    /// The multicast groups of the adverts, in order.
    pub(super) groups: BTreeSet<Mac>,
    adverts_per_second: f64,
}

impl WantedLink {
    pub(super) fn request(&self, link: LinkName) -> CaptureRequest {
        let buffer_bytes = buffer_bytes(self.adverts_per_second, DRAIN_INTERVAL);
        let groups = self.groups.iter().copied().collect();
        CaptureRequest { link, mode: self.mode, buffer_bytes, groups }
    }
}

/// The links of these instances. An instance without a known virtual router id, or on an excluded link, has none.
pub(super) fn wanted_links(
    instances: &[Arc<InstanceConfig>],
    config: &WitnessConfig,
) -> HashMap<LinkKey, WantedLink> {
    let mut wanted: HashMap<LinkKey, WantedLink> = HashMap::new();
    for instance in instances {
        let Some(key) = router_key(instance) else { continue };
        let Some(link) = LinkKey::of(instance) else { continue };
        let Some(mode) = config.mode(link.link) else { continue };
        // Only its own adverts show that an instance without addresses is primary.
        let mode = if instance.has_addresses() { mode } else { CaptureMode::ReceivedAndSent };
        let routed = match key.kind {
            AdvertKind::Unicast => RoutedAdverts::Accepted,
            AdvertKind::Multicast => RoutedAdverts::Refused,
        };
        let link = wanted.entry(link).or_insert_with(|| WantedLink {
            mode,
            routers: Vec::with_capacity(1),
            instances: Vec::with_capacity(1),
            groups: VRRP_GROUPS.map(Mac::of_group).into(),
            adverts_per_second: 0.0,
        });
        if mode == CaptureMode::ReceivedAndSent {
            link.mode = mode;
        }
        link.groups.extend(instance.vrrp.multicast_group.map(Mac::of_group));
        link.routers.push((key, routed));
        link.instances.push(Arc::clone(instance));
        let interval = advert_interval(instance).max(Duration::from_millis(10));
        link.adverts_per_second += SOURCES_PER_ROUTER / interval.as_secs_f64();
    }
    wanted
}

/// One watched link.
#[derive(Debug)]
pub(super) struct WatchedLink {
    pub(super) wanted: WantedLink,
    /// `None` while the socket could not be opened.
    pub(super) capture: Option<CaptureId>,
    /// The namespace of the socket; `None` for the node's own.
    pub(super) netns: Option<NetnsId>,
    /// When the next attempt to open the socket is due.
    pub(super) retry_at: Moment,
    /// When the link is searched again. Between two searches the kernel reports a link that is removed, and the main loop
    /// requests a search for one that appears; the search finds a link that was renamed.
    pub(super) next_search: Moment,
    /// Whether the link must be looked up by its name: the socket is bound to none, the link does not work, or its state has
    /// changed.
    pub(super) needs_lookup: bool,
    /// [`LinkWitness::signature`] after the last read.
    signature: u64,
    /// Whether the evidence must be reviewed although its signature is the same.
    pub(super) is_review_due: bool,
}

impl WatchedLink {
    pub(super) fn new(wanted: WantedLink) -> Self {
        let now = clock::now();
        Self {
            wanted,
            capture: None,
            netns: None,
            retry_at: now,
            next_search: now,
            needs_lookup: true,
            signature: 0,
            is_review_due: true,
        }
    }

    /// Takes over a socket that was opened.
    pub(super) fn set_capture(&mut self, capture: CaptureId, netns: Option<NetnsId>) {
        self.capture = Some(capture);
        self.netns = netns;
        self.search_now();
    }

    /// Has the link looked up after the next read of the queues.
    pub(super) fn search_now(&mut self) {
        (self.next_search, self.needs_lookup) = (clock::now(), true);
    }

    /// Checks the link if that is due, reads the queue, and takes the adverts over into the table. It runs on the thread of
    /// the socket and must use no other descriptor.
    pub(super) fn drain(
        &mut self,
        key: &LinkKey,
        capture: &mut AdvertCapture,
        table: &WitnessTable,
        scratch: &mut CaptureScratch,
        now: Moment,
    ) {
        // ORDER: outside the lock of the table, which the main loop takes too.
        let is_lost = !self.needs_lookup && self.next_search <= now && !capture.check_link();
        if is_lost {
            self.search_now();
        } else if !self.needs_lookup && self.next_search <= now {
            self.next_search = now + SEARCH_INTERVAL;
        }
        let signature = table.change(|links| {
            let Some(LinkEvidence { status, witness, .. }) = links.get_mut(key) else { return 0 };
            if is_lost {
                *status = CaptureStatus::NoLink;
            }
            if !matches!(status, CaptureStatus::Running | CaptureStatus::LinkDown) {
                return 0;
            }
            match read_queue(capture, witness, scratch, now, &table.totals) {
                Ok(result) if result.is_link_lost => self.next_search = now,
                Ok(_) => {}
                Err(error) => {
                    *status = CaptureStatus::Failed(ErrorChain(&error).to_string());
                    (self.next_search, self.needs_lookup) = (now + SEARCH_INTERVAL, true);
                }
            }
            witness.signature(now)
        });
        self.is_review_due |= std::mem::replace(&mut self.signature, signature) != signature;
    }

    /// Binds the socket to the link that a search has found. It runs on the thread of the socket.
    pub(super) fn bind(
        &mut self,
        key: &LinkKey,
        capture: &mut AdvertCapture,
        found: Result<Option<LinkFacts>, NetnsQueryError>,
        table: &WitnessTable,
    ) {
        let now = clock::now();
        let bound = match found {
            Ok(Some(facts)) => match capture.bind(facts.link) {
                Ok(is_new) => Ok(Some((is_new, facts.state))),
                Err(error) => Err(format!("cannot bind to the link: {error}")),
            },
            Ok(None) | Err(NetnsQueryError::Netns(NetnsError::Missing(_))) => {
                // A new link may get the index of the old one.
                capture.check_link();
                Ok(None)
            }
            Err(error) => Err(ErrorChain(&error).to_string()),
        };
        self.next_search = now + SEARCH_INTERVAL;
        self.needs_lookup = !matches!(bound, Ok(Some((_, LinkState::Working))));
        let is_new = matches!(bound, Ok(Some((true, _))));
        table.change(|links| {
            let Some(evidence) = links.get_mut(key) else { return };
            let status = match bound {
                Ok(Some((_, LinkState::Working))) => CaptureStatus::Running,
                Ok(Some((_, LinkState::Down | LinkState::NoCarrier))) => CaptureStatus::LinkDown,
                Ok(None) => CaptureStatus::NoLink,
                Err(error) => CaptureStatus::Failed(error),
            };
            // No advert could arrive until now.
            if is_new || evidence.status != CaptureStatus::Running {
                evidence.witness.restart(now);
            }
            evidence.has_membership = capture.is_member();
            self.is_review_due |= evidence.status != status;
            evidence.status = status;
        });
    }
}

fn read_queue(
    capture: &mut AdvertCapture,
    witness: &mut LinkWitness,
    scratch: &mut CaptureScratch,
    now: Moment,
    totals: &WitnessTotals,
) -> io::Result<DrainResult> {
    let mut newest = witness.drained_at();
    let bad_before = witness.bad().total();
    let mut packets = 0;
    let result = capture.drain(scratch, |packet| {
        newest = newest.max(packet.at);
        packets += 1;
        let origin = match packet.direction {
            PacketDirection::Sent => AdvertOrigin::Own,
            PacketDirection::Received => AdvertOrigin::Foreign,
        };
        let CapturedPacket { bytes, at, clock, .. } = packet;
        let _ = witness.observe(WitnessedPacket { bytes, origin, at, clock });
    })?;
    totals.read.fetch_add(packets, Ordering::Relaxed);
    totals.bad.fetch_add(witness.bad().total() - bad_before, Ordering::Relaxed);
    totals.dropped.fetch_add(u64::from(result.dropped), Ordering::Relaxed);
    // ORDER: `now` is before the read: an advert that arrives later is read next time. If packets are left in the queue,
    // nothing is known beyond the newest packet that was read.
    witness.drained(if result.has_more { newest } else { now.max(newest) }, result.dropped);
    Ok(result)
}

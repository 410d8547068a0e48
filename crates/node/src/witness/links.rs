// SPDX-License-Identifier: Apache-2.0
//! The links with wanted adverts, and one of them with its socket.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vipwatch_core::vrrp::AdvertKind;
use vipwatch_core::witness::{
    AdvertOrigin, LinkWitness, RoutedAdverts, RouterKey, WitnessedPacket,
};
use vipwatch_core::{ErrorChain, LinkName, Moment};
use vipwatch_linux::clock;
use vipwatch_linux::netns::NetnsId;
use vipwatch_linux::vrrp_capture::{
    AdvertCapture, CaptureId, CaptureMode, CaptureRequest, CaptureScratch, CapturedPacket,
    DrainResult, LinkSearch, PacketDirection, buffer_bytes,
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

/// Time between two searches for a link by its name.
const SEARCH_INTERVAL: Duration = Duration::from_secs(10);

/// What is wanted of one link.
#[derive(Debug)]
pub(super) struct WantedLink {
    pub(super) mode: CaptureMode,
    pub(super) routers: Vec<(RouterKey, RoutedAdverts)>,
    pub(super) instances: Vec<Arc<InstanceConfig>>,
    adverts_per_second: f64,
}

impl WantedLink {
    pub(super) fn request(&self, link: LinkName) -> CaptureRequest {
        let buffer_bytes = buffer_bytes(self.adverts_per_second, DRAIN_INTERVAL);
        CaptureRequest { link, mode: self.mode, buffer_bytes }
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
        let routed = match key.kind {
            AdvertKind::Unicast => RoutedAdverts::Accepted,
            AdvertKind::Multicast => RoutedAdverts::Refused,
        };
        let link = wanted.entry(link).or_insert_with(|| WantedLink {
            mode,
            routers: Vec::with_capacity(1),
            instances: Vec::with_capacity(1),
            adverts_per_second: 0.0,
        });
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
    /// When the link is looked up again by its name. Between two searches the kernel reports a link that is removed;
    /// the search finds a link that was renamed.
    next_search: Moment,
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
            signature: 0,
            is_review_due: true,
        }
    }

    /// Takes over a socket that was opened.
    pub(super) fn set_capture(&mut self, capture: CaptureId, netns: Option<NetnsId>) {
        self.capture = Some(capture);
        self.netns = netns;
        self.next_search = clock::now();
    }

    /// Looks for the link if that is due, reads the queue, and takes the adverts over into the table. It runs on the thread
    /// of the socket and must use no other descriptor.
    pub(super) fn drain(
        &mut self,
        key: &LinkKey,
        capture: &mut AdvertCapture,
        table: &WitnessTable,
        scratch: &mut CaptureScratch,
        now: Moment,
    ) {
        let next_search = &mut self.next_search;
        let signature = table.change(|links| {
            let Some(LinkEvidence { status, witness, .. }) = links.get_mut(key) else { return 0 };
            if *next_search <= now || *status != CaptureStatus::Running {
                *next_search = now + SEARCH_INTERVAL;
                *status = match capture.find_link() {
                    Ok(LinkSearch::Same(_)) => CaptureStatus::Running,
                    Ok(LinkSearch::Bound(_)) => {
                        witness.restart(now);
                        CaptureStatus::Running
                    }
                    Ok(LinkSearch::Missing) => CaptureStatus::NoLink,
                    Err(error) => CaptureStatus::Failed(ErrorChain(&error).to_string()),
                };
            }
            if *status != CaptureStatus::Running {
                return 0;
            }
            match read_queue(capture, witness, scratch, now, &table.totals) {
                Ok(result) if result.is_link_lost => *next_search = now,
                Ok(_) => {}
                Err(error) => *status = CaptureStatus::Failed(ErrorChain(&error).to_string()),
            }
            witness.signature(now)
        });
        self.is_review_due |= std::mem::replace(&mut self.signature, signature) != signature;
    }
}

fn read_queue(
    capture: &mut AdvertCapture,
    witness: &mut LinkWitness,
    scratch: &mut CaptureScratch,
    now: Moment,
    totals: &WitnessTotals,
) -> std::io::Result<DrainResult> {
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

// SPDX-License-Identifier: Apache-2.0
//! What the adverts on one link say about the virtual routers that are followed there.
//!
//! ```text
//!   packet ──▶ vrrp::decode ──▶ invalid ───────────────▶ counted by error
//!                           └─▶ of another VRID ───────▶ counted
//!                           └─▶ of a followed VRID ────▶ record of its source ──▶ questions about it (evidence)
//! ```
//!
//! [`LinkWitness`] keeps the records of one link. A record is the newest advert of one source, own or foreign; an invalid
//! or foreign packet changes no record. The number of records is bounded. After an overrun of the capture's queue, the
//! absence of an advert says nothing: [`Silence::Unknown`].
//!
//! The caller passes the time of each advert, and the time of each question.

mod evidence;
mod loss;
mod source;

use std::net::IpAddr;
use std::time::Duration;

pub use self::evidence::{OwnSettings, Rejection, Silence, UNHEARD, differences};
pub use self::loss::{LOSS_SPAN, LossCounts};
pub use self::source::{
    AdvertOrigin, ClockDifference, RecordedSignature, SourceRecord, master_down_interval,
};
use crate::Moment;
use crate::vrrp::{Advert, AdvertError, AdvertKind, VrrpFamily, decode, undecoded_router};

/// Maximum number of sources of one virtual router. A further source replaces one of another host: one that no longer
/// advertises, else the one with the fewest adverts. A host that forges many sources thus replaces its own forgeries, and
/// neither the record of this host nor that of a primary that advertises already.
pub const MAX_SOURCES: usize = 8;

/// How long a virtual router counts as crowded after an advert of a further source.
const CROWDED_SPAN: Duration = Duration::from_mins(1);

/// Two losses with more time between them have nothing to do with each other.
const FLOOD_GAP: Duration = Duration::from_mins(1);

/// A flood lasts for this time at least, and has [`FLOOD_LOSSES`].
const FLOOD_SPAN: Duration = Duration::from_secs(10);
const FLOOD_LOSSES: u32 = 4;

/// A queue that was not read for this time says nothing about the sources.
const MAX_DRAIN_AGE: Duration = Duration::from_secs(5);

/// A followed virtual router of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterKey {
    /// The virtual router id.
    pub vrid: u8,
    /// The family of the adverts.
    pub family: VrrpFamily,
    /// How its adverts are sent.
    pub kind: AdvertKind,
}

impl RouterKey {
    /// The same virtual router id among the adverts of the other kind.
    #[must_use]
    pub fn of_other_kind(self) -> Self {
        let kind = match self.kind {
            AdvertKind::Multicast => AdvertKind::Unicast,
            AdvertKind::Unicast => AdvertKind::Multicast,
        };
        Self { kind, ..self }
    }
}

/// Whether adverts that routers have forwarded are believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutedAdverts {
    /// They are counted only: a multicast instance has its peers on the link.
    Refused,
    /// They are believed, because the instance has unicast peers, which may be on another link.
    Accepted,
}

/// A captured packet.
#[derive(Debug, Clone, Copy)]
pub struct WitnessedPacket<'a> {
    /// The packet from its IP header on.
    pub bytes: &'a [u8],
    /// Whether this host sent it.
    pub origin: AdvertOrigin,
    /// When the kernel received or sent it.
    pub at: Moment,
    /// The same time on the clock of this host, since the Unix epoch.
    pub clock: Duration,
}

/// Adverts that were lost because the queue of the capture was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overrun {
    /// The queue was empty at this time.
    pub from: Moment,
    /// The queue was read at this time.
    pub to: Moment,
    /// Since then, adverts were lost again and again, with less than [`FLOOD_GAP`] between two losses.
    pub since: Moment,
    /// The number of these losses.
    losses: u32,
    /// Number of packets that the kernel dropped, since the start of the capture.
    pub total_dropped: u64,
}

/// The adverts of one followed virtual router.
#[derive(Debug, Clone)]
pub struct RouterWitness {
    key: RouterKey,
    routed: RoutedAdverts,
    sources: Vec<SourceRecord>,
    /// Grows when a source appears, begins a new series or changes its settings.
    generation: u32,
    /// The number of adverts of each origin, also of sources that were replaced.
    adverts: [u64; 2],
    /// When a further source replaced one that advertises; `None` if that never happened.
    crowded_at: Option<Moment>,
    undecoded: UndecodedAdverts,
}

/// Adverts that name a virtual router and cannot be decoded. They are evidence neither for a primary nor for silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UndecodedAdverts {
    /// Their number.
    pub count: u32,
    /// When the last one was captured; `None` if there was none.
    pub last: Option<Moment>,
}

impl RouterWitness {
    fn new(key: RouterKey, routed: RoutedAdverts) -> Self {
        Self {
            key,
            routed,
            sources: Vec::new(),
            generation: 0,
            adverts: [0; 2],
            crowded_at: None,
            undecoded: UndecodedAdverts::default(),
        }
    }

    /// Whether more than [`MAX_SOURCES`] sources have advertised at the same time within the last minute: the records do not
    /// show all of them.
    pub fn is_crowded(&self, now: Moment) -> bool {
        self.crowded_at.is_some_and(|at| now.since(at) < CROWDED_SPAN)
    }

    /// A number that grows when a source appears, begins a new series or changes its settings.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The number of adverts with this origin since the virtual router is followed.
    pub fn adverts(&self, origin: AdvertOrigin) -> u64 {
        self.adverts[origin as usize]
    }

    /// The virtual router.
    pub fn key(&self) -> RouterKey {
        self.key
    }

    /// The adverts that cannot be decoded.
    pub fn undecoded(&self) -> UndecodedAdverts {
        self.undecoded
    }

    /// The records of all sources, in no particular order.
    pub fn sources(&self) -> &[SourceRecord] {
        &self.sources
    }

    fn record(
        &mut self,
        advert: &Advert<'_>,
        packet: &WitnessedPacket<'_>,
        overrun: Option<Overrun>,
    ) {
        let WitnessedPacket { origin, at, clock, .. } = *packet;
        let adverts = &mut self.adverts[origin as usize];
        *adverts = adverts.saturating_add(1);
        let known =
            |record: &&mut SourceRecord| record.source == advert.source && record.origin == origin;
        if let Some(record) = self.sources.iter_mut().find(known) {
            let is_changed = record.update(advert, at, clock, overrun);
            self.generation = self.generation.wrapping_add(u32::from(is_changed));
            return;
        }
        self.generation = self.generation.wrapping_add(1);
        let record = SourceRecord::new(advert, origin, at, clock);
        if self.sources.len() < MAX_SOURCES {
            // Most virtual routers have two sources or fewer, and there are thousands of them.
            self.sources.reserve_exact(1);
            self.sources.push(record);
            return;
        }
        let is_replaceable = |record: &&mut SourceRecord| {
            record.origin == AdvertOrigin::Foreign || origin == AdvertOrigin::Own
        };
        let rank = |record: &&mut SourceRecord| {
            let is_own = record.origin == AdvertOrigin::Own;
            (is_own, !record.is_ended(at), record.adverts, record.at)
        };
        let replaced = self.sources.iter_mut().filter(is_replaceable).min_by_key(rank);
        if replaced.as_ref().is_none_or(|replaced| !replaced.is_ended(at)) {
            self.crowded_at = Some(at);
        }
        if let Some(replaced) = replaced {
            *replaced = record;
        }
    }
}

/// Counters of packets that no record contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadAdverts {
    /// The number of packets with each error, in the order of [`AdvertError::ALL`].
    by_error: [u32; AdvertError::ALL.len()],
    /// Forwarded unicast adverts to an instance without unicast peers.
    pub routed: u32,
    /// When the last one was captured, and its source if that could be read; `None` if there was none.
    pub last: Option<LastBadAdvert>,
}

/// The newest packet that was counted and not believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastBadAdvert {
    /// When it was captured.
    pub at: Moment,
    /// Why it was not believed; `None` for a forwarded unicast advert.
    pub error: Option<AdvertError>,
}

impl BadAdverts {
    /// The errors that have occurred, each with its number of packets.
    pub fn by_error(&self) -> impl Iterator<Item = (AdvertError, u32)> {
        AdvertError::ALL.into_iter().zip(self.by_error).filter(|(_, count)| *count > 0)
    }

    /// The number of all packets that were not believed.
    pub fn total(&self) -> u64 {
        self.by_error.iter().map(|count| u64::from(*count)).sum::<u64>() + u64::from(self.routed)
    }

    fn count(&mut self, error: AdvertError, at: Moment) {
        let index = AdvertError::ALL.iter().position(|one| *one == error);
        if let Some(count) = index.and_then(|index| self.by_error.get_mut(index)) {
            *count = count.saturating_add(1);
        }
        self.last = Some(LastBadAdvert { at, error: Some(error) });
    }
}

/// The set of virtual router ids with adverts that no followed instance has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct VridSet([u64; 4]);

impl VridSet {
    fn insert(&mut self, vrid: u8) {
        self.0[usize::from(vrid / 64)] |= 1 << (vrid % 64);
    }

    fn len(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }
}

/// The adverts of one link.
#[derive(Debug, Clone)]
pub struct LinkWitness {
    routers: Vec<RouterWitness>,
    /// The capture runs since this time. Earlier adverts are not known.
    since: Moment,
    /// The queue of the capture was last read at this time.
    drained_at: Moment,
    overrun: Option<Overrun>,
    bad: BadAdverts,
    others: [VridSet; 2],
    other_adverts: u64,
}

impl LinkWitness {
    /// A witness with a capture that begins now.
    pub fn new(now: Moment) -> Self {
        let bad = BadAdverts { by_error: [0; _], routed: 0, last: None };
        Self {
            routers: Vec::new(),
            since: now,
            drained_at: now,
            overrun: None,
            bad,
            others: [VridSet::default(); 2],
            other_adverts: 0,
        }
    }

    /// Follows these virtual routers from now on, and forgets all others.
    pub fn follow(&mut self, routers: impl IntoIterator<Item = (RouterKey, RoutedAdverts)>) {
        let mut known = std::mem::take(&mut self.routers);
        for (key, routed) in routers {
            if let Some(router) = self.routers.iter_mut().find(|router| router.key == key) {
                if routed == RoutedAdverts::Accepted {
                    router.routed = routed;
                }
                continue;
            }
            let at = known.iter().position(|router| router.key == key);
            let known = at.map(|at| known.swap_remove(at));
            let known = known.unwrap_or_else(|| RouterWitness::new(key, routed));
            self.routers.push(RouterWitness { routed, ..known });
        }
        for router in known {
            if self.router(router.key.of_other_kind()).is_some() {
                self.routers.push(RouterWitness { routed: RoutedAdverts::Refused, ..router });
            }
        }
        self.routers.shrink_to_fit();
    }

    /// Begins again: the link was created anew, or the capture was closed. Records stay, silence does not count before
    /// `now`.
    pub fn restart(&mut self, now: Moment) {
        self.since = now;
        self.drained_at = now;
    }

    /// Takes over one captured packet. Returns the followed virtual router with a changed record.
    pub fn observe(&mut self, packet: WitnessedPacket<'_>) -> Option<RouterKey> {
        let at = packet.at;
        let advert = match decode(packet.bytes) {
            Ok(advert) => advert,
            Err(error) => {
                self.bad.count(error, at);
                self.count_undecoded(&packet);
                return None;
            }
        };
        let kind = AdvertKind::of(advert.destination);
        let key = RouterKey { vrid: advert.vrid, family: advert.family(), kind };
        let overrun = self.overrun;
        let Some(router) = self.router_mut(key) else {
            self.other_adverts = self.other_adverts.saturating_add(1);
            self.others[usize::from(key.family == VrrpFamily::V6)].insert(key.vrid);
            return None;
        };
        if advert.is_routed() && router.routed == RoutedAdverts::Refused {
            self.bad.routed = self.bad.routed.saturating_add(1);
            self.bad.last = Some(LastBadAdvert { at, error: None });
            return None;
        }
        router.record(&advert, &packet, overrun);
        Some(key)
    }

    fn count_undecoded(&mut self, packet: &WitnessedPacket<'_>) {
        let key = undecoded_router(packet.bytes);
        let key = key.map(|(vrid, family, kind)| RouterKey { vrid, family, kind });
        if let Some(router) = key.and_then(|key| self.router_mut(key)) {
            let count = router.undecoded.count.saturating_add(1);
            router.undecoded = UndecodedAdverts { count, last: Some(packet.at) };
        }
    }

    /// A followed virtual router, or its counterpart of the other kind, which begins with its first advert: both may have
    /// the same addresses.
    fn router_mut(&mut self, key: RouterKey) -> Option<&mut RouterWitness> {
        let at = self.routers.iter().position(|router| router.key == key).or_else(|| {
            self.router(key.of_other_kind())?;
            self.routers.push(RouterWitness::new(key, RoutedAdverts::Refused));
            Some(self.routers.len() - 1)
        })?;
        self.routers.get_mut(at)
    }

    /// Records that the queue of the capture was read at `now`, and that `dropped` packets were lost since the last time.
    pub fn drained(&mut self, now: Moment, dropped: u32) {
        if dropped > 0 {
            let before = self.overrun.map_or(0, |overrun| overrun.total_dropped);
            let total_dropped = before + u64::from(dropped);
            let known = self.overrun.filter(|known| now.since(known.to) < FLOOD_GAP);
            let (since, losses) = known.map_or((now, 1), |known| (known.since, known.losses + 1));
            let from = self.drained_at;
            self.overrun = Some(Overrun { from, to: now, since, losses, total_dropped });
        }
        self.drained_at = now;
    }

    /// The adverts of a followed virtual router; `None` if it is not followed.
    pub fn router(&self, key: RouterKey) -> Option<&RouterWitness> {
        self.routers.iter().find(|router| router.key == key)
    }

    /// The adverts of a virtual router id, first those of the kind of `key`.
    pub fn both_kinds(&self, key: RouterKey) -> impl Iterator<Item = &RouterWitness> {
        [key, key.of_other_kind()].into_iter().filter_map(|key| self.router(key))
    }

    /// A copy with the adverts of one virtual router only: the evidence at this moment.
    #[must_use]
    pub fn only(&self, key: RouterKey) -> Self {
        let is_wanted = |router: &&RouterWitness| router.key == key;
        let routers = self.routers.iter().filter(is_wanted).cloned().collect();
        Self { routers, ..*self }
    }

    /// Since when adverts are captured.
    pub fn since(&self) -> Moment {
        self.since
    }

    /// When the queue of the capture was last read.
    pub fn drained_at(&self) -> Moment {
        self.drained_at
    }

    /// The time as of which it is known at `now` which sources advertise: the last time at which the queue was read.
    /// Later adverts are not known yet, so that a source with a short interval would seem to have ended between two reads.
    pub fn judged_at(&self, now: Moment) -> Moment {
        self.drained_at.max(now.before(MAX_DRAIN_AGE)).min(now)
    }

    /// The last overrun; `None` if there was none.
    pub fn overrun(&self) -> Option<Overrun> {
        self.overrun
    }

    /// Whether adverts are lost again and again, or were until a minute ago: a further primary may stay unseen.
    pub fn is_flooded(&self, now: Moment) -> bool {
        self.overrun.is_some_and(|overrun| {
            overrun.to.since(overrun.since) >= FLOOD_SPAN
                && overrun.losses >= FLOOD_LOSSES
                && now.since(overrun.to) < CROWDED_SPAN
        })
    }

    /// The packets that were not believed.
    pub fn bad(&self) -> &BadAdverts {
        &self.bad
    }

    /// The number of adverts for virtual router ids that are not followed on this link.
    pub fn other_adverts(&self) -> u64 {
        self.other_adverts
    }

    /// The number of virtual router ids that are not followed on this link and had an advert; each family counts.
    pub fn other_vrids(&self) -> u32 {
        self.others.iter().map(|set| set.len()).sum()
    }

    /// A number that is different, with near certainty, if a source of a followed virtual router has appeared, changed its
    /// settings, or begun or ceased to advertise; if the own priority has changed; if adverts have begun or ceased to be
    /// missing; if an own advert is late; if the clock of a sender that signs differs by another time than before; or if a
    /// flood has begun or ended.
    pub fn signature(&self, now: Moment) -> u64 {
        let now = self.judged_at(now);
        self.routers.iter().fold(u64::from(self.is_flooded(now)), |sum, router| {
            // There are few sources: no part of the sum reaches the next one.
            let advertising = router.advertising(now).map(|record| {
                let disturbed = u64::from(record.is_disturbed(now)) << 26;
                match record.origin {
                    AdvertOrigin::Own => {
                        let late = u64::from(record.is_late(now)) << 28;
                        disturbed | late | u64::from(record.priority) << 8 | 1
                    }
                    AdvertOrigin::Foreign => {
                        let difference = record.signature.map(|signature| signature.difference);
                        disturbed | 1 << 20 | difference.map_or(0, ClockDifference::step) << 32
                    }
                }
            });
            let state = u64::from(router.generation) << 32;
            let state = advertising.fold(state, u64::wrapping_add);
            sum.wrapping_mul(31).wrapping_add(state)
        })
    }

    /// Whether packets may have been lost between `from` and now.
    pub fn is_incomplete_since(&self, from: Moment) -> bool {
        self.since > from || self.overrun.is_some_and(|overrun| overrun.to > from)
    }
}

/// The advert of one source, for a question about a peer.
#[derive(Debug, Clone, Copy)]
pub struct PeerAdvert<'a> {
    /// The record of the peer.
    pub record: &'a SourceRecord,
    /// The time since its last advert.
    pub age: Duration,
}

impl RouterWitness {
    /// The newest advert of another host than this one; `None` if there was none.
    pub fn last_foreign(&self, now: Moment) -> Option<PeerAdvert<'_>> {
        self.newest(now, |record| record.origin == AdvertOrigin::Foreign)
    }

    /// The newest advert of this host; `None` if there was none, or if sent adverts are not captured.
    pub fn last_own(&self, now: Moment) -> Option<PeerAdvert<'_>> {
        self.newest(now, |record| record.origin == AdvertOrigin::Own)
    }

    /// Whether this host advertises, and its next advert is late: its keepalived may be stopped or frozen.
    pub fn is_own_late(&self, now: Moment) -> bool {
        let own = self.advertising(now).filter(|record| record.origin == AdvertOrigin::Own);
        own.max_by_key(|record| record.at).is_some_and(|record| record.is_late(now))
    }

    /// The newest advert with this source address; `None` if there was none.
    pub fn last_of(&self, source: IpAddr, now: Moment) -> Option<PeerAdvert<'_>> {
        self.newest(now, |record| record.source == source)
    }

    fn newest(
        &self,
        now: Moment,
        is_wanted: impl Fn(&SourceRecord) -> bool,
    ) -> Option<PeerAdvert<'_>> {
        let records = self.sources.iter().filter(|record| is_wanted(record));
        let record = records.max_by_key(|record| record.at)?;
        Some(PeerAdvert { record, age: now.since(record.at) })
    }
}

#[cfg(test)]
mod tests;

// SPDX-License-Identifier: Apache-2.0
//! The less common properties of a lab: those that a seed adds, and the shapes of labs in which everything is healthy.

use serde::{Deserialize, Serialize};

use super::LabSetup;
use crate::random::SeededRandom;

/// Debian releases with a keepalived for the labs; a quick run has only the first two.
const RELEASES: [&str; 4] = [NO_COPY, "sid", "bookworm", "trixie"];

/// Its keepalived, 2.1.5, keeps no copy of its configuration, and does not know `down_timer_adverts`. With multicast and unicast
/// instances of one VRID, its VRRP process ends again and again.
pub const NO_COPY: &str = "bullseye";
/// The master-down interval without its skew, in intervals.
pub const DOWN_TIMER: u8 = 3;

/// How a host is connected with the data network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataLink {
    /// Receives every frame.
    Veth,
    /// Receives multicast frames only for groups of the link, as network cards do.
    Macvlan,
    /// Each host has a subnet of its own, behind a router.
    Routed,
}

/// A lab with failovers and without faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthyShape {
    /// Each host also has the virtual address on `lo`, as LVS with direct routing needs it.
    AddressOnLo,
    Vmac,
    /// The first host has the priority 255.
    AddressOwner,
    StartupDelay,
    NoPreempt,
    SyncGroup,
    UnicastBetweenSubnets,
    UnicastAndMulticast,
    HeartbeatLink,
    LongDownTimer,
    FractionalInterval,
    /// The second address is not in the adverts.
    FloatingAddress,
    /// keepalived runs as another user, with capabilities.
    OtherUser,
    /// All files get one more address; keepalived reads them a minute later.
    ReloadedLater,
    FilteringLink,
}

impl HealthyShape {
    /// The number of a shape is its seed.
    pub const ALL: [Self; 15] = [
        Self::AddressOnLo,
        Self::Vmac,
        Self::AddressOwner,
        Self::StartupDelay,
        Self::NoPreempt,
        Self::SyncGroup,
        Self::UnicastBetweenSubnets,
        Self::UnicastAndMulticast,
        Self::HeartbeatLink,
        Self::LongDownTimer,
        Self::FractionalInterval,
        Self::FloatingAddress,
        Self::OtherUser,
        Self::ReloadedLater,
        Self::FilteringLink,
    ];

    /// The failovers: words of the fault table. The first host takes its role back, so three or four of them follow; six
    /// within ten minutes would be flapping.
    pub fn failovers(self) -> &'static str {
        match self {
            Self::NoPreempt => "restart,restart,restart",
            Self::StartupDelay => "restart,restart",
            // ORDER: the edits of the first fault would take the address out of one host's file.
            Self::ReloadedLater => "lower-priority,reload-later,restart",
            _ => "lower-priority,restart",
        }
    }
}

impl LabSetup {
    /// The lab of a healthy shape.
    pub fn healthy(seed: u64) -> Self {
        let number = usize::try_from(seed).unwrap_or(0) % HealthyShape::ALL.len();
        let shape = HealthyShape::ALL[number];
        let mut setup = Self { seed, shape: Some(shape), ..Self::plain() };
        match shape {
            HealthyShape::Vmac => setup.has_vmac = true,
            HealthyShape::AddressOwner => setup.priorities[0] = 255,
            HealthyShape::NoPreempt => setup.is_nopreempt = true,
            HealthyShape::SyncGroup => setup.has_sync_group = true,
            HealthyShape::UnicastBetweenSubnets => {
                (setup.data_link, setup.is_unicast) = (DataLink::Routed, true);
            }
            HealthyShape::UnicastAndMulticast => setup.has_unicast_twin = true,
            HealthyShape::HeartbeatLink => setup.has_heartbeat = true,
            HealthyShape::LongDownTimer => setup.down_timer = 10,
            HealthyShape::FractionalInterval => setup.advert_millis = 1255,
            HealthyShape::FloatingAddress => setup.has_two_addresses = true,
            HealthyShape::FilteringLink => setup.data_link = DataLink::Macvlan,
            HealthyShape::AddressOnLo
            | HealthyShape::StartupDelay
            | HealthyShape::OtherUser
            | HealthyShape::ReloadedLater => {}
        }
        setup
    }

    /// Two nodes with version 3 over IPv4 and multicast, once a second.
    pub(super) fn plain() -> Self {
        Self {
            seed: 0,
            priorities: vec![150, 100],
            version: 3,
            is_ipv6: false,
            is_unicast: false,
            has_vmac: false,
            has_sync_group: false,
            has_track_script: false,
            is_nopreempt: false,
            has_two_addresses: false,
            captures_sent: false,
            advert_millis: 1000,
            cluster: None,
            data_link: DataLink::Veth,
            has_heartbeat: false,
            has_unicast_twin: false,
            down_timer: DOWN_TIMER,
            releases: Vec::new(),
            unobserved: None,
            shape: None,
        }
    }

    /// Adds the less common properties of a seed; half of the seeds have none.
    pub(super) fn with_dimensions(mut self) -> Self {
        let mut random = SeededRandom::new(self.seed ^ 0xD1_3E75);
        if random.chance(50) {
            return self;
        }
        // ORDER: the order of the random numbers decides the lab of a seed.
        let choices: [bool; 7] = std::array::from_fn(|_| random.chance(35));
        let [
            is_filtering,
            has_heartbeat,
            has_twin,
            has_timer,
            is_fractional,
            has_release,
            is_blind,
        ] = choices;
        self.has_heartbeat = has_heartbeat && !self.has_vmac && !self.is_ipv6;
        if is_filtering && !self.has_vmac && !self.has_heartbeat {
            self.data_link = DataLink::Macvlan;
        }
        self.has_unicast_twin =
            has_twin && !self.is_unicast && !self.has_sync_group && !self.has_vmac;
        if is_fractional && self.version == 3 {
            self.advert_millis = 1255;
        }
        self.unobserved = is_blind.then(|| random.below(self.nodes()));
        if has_release {
            let release = random.one_of(&RELEASES);
            let count = if random.chance(50) { self.nodes() } else { 1 };
            self.releases = vec![release; count];
        }
        // The keepalived of all labs is examined in `with_known_words`.
        let is_old = self.releases.contains(&NO_COPY);
        if has_timer && !is_old {
            self.down_timer = 5;
        }
        self.has_unicast_twin &= !is_old;
        self
    }

    /// The lab for the keepalived of this run, which may not know `down_timer_adverts`.
    pub fn with_known_words(mut self, has_down_timer: bool) -> Self {
        if !has_down_timer {
            self.down_timer = DOWN_TIMER;
        }
        self
    }

    /// The release of a host's keepalived; `None` for the one that all labs use.
    pub fn release(&self, host: usize) -> Option<&'static str> {
        self.releases.get(host).copied()
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The evidence of all captured links, for the API and the audit.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use vipwatch_core::vrrp::{AdvertKind, VrrpFamily, VrrpVersion};
use vipwatch_core::witness::{
    LinkWitness, OwnSettings, RouterKey, RouterWitness, Silence, master_down_interval,
};
use vipwatch_core::{LinkName, Moment, NetnsName, Role};
use vipwatch_linux::clock;

use crate::discovery::InstanceConfig;
use crate::processes::ProcessView;

/// The advert interval of an instance that does not set one: that of keepalived and of the RFCs.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(1);

/// The priority of an instance that does not set one.
const DEFAULT_PRIORITY: u8 = 100;

/// A link in a namespace; `None` for the node's own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct LinkKey {
    pub(super) netns: Option<NetnsName>,
    pub(super) link: LinkName,
}

impl LinkKey {
    /// The link on which the adverts of an instance are. With a VMAC that is the link below it, which sends and
    /// receives everything. `None` for an instance without an interface: its adverts are not captured.
    pub(super) fn of(instance: &InstanceConfig) -> Option<Self> {
        Some(Self { netns: instance.netns.clone(), link: instance.vrrp.interface? })
    }
}

/// Whether the adverts of a link are captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CaptureStatus {
    /// They are.
    Running,
    /// The namespace does not exist.
    NoNetns,
    /// The link does not exist.
    NoLink,
    /// The link is down or has no carrier, so that no advert can arrive.
    LinkDown,
    /// The kernel has refused the socket; the text is its error.
    Refused(String),
    /// The socket could not be opened or read for another reason.
    Failed(String),
}

/// The evidence of one link.
#[derive(Debug)]
pub(super) struct LinkEvidence {
    pub(super) status: CaptureStatus,
    /// Whether sent adverts are captured too.
    pub(super) has_sent: bool,
    /// Whether adverts arrive although no other program has joined their multicast groups.
    pub(super) has_membership: bool,
    pub(super) witness: LinkWitness,
}

/// The evidence of all links. The worker writes, and other threads read.
#[derive(Debug, Default)]
pub struct WitnessTable {
    links: Mutex<HashMap<LinkKey, LinkEvidence>>,
    /// The number of packets on all links.
    pub totals: WitnessTotals,
}

/// The packets on all links since the start. They do not fall when a link is no longer captured.
#[derive(Debug, Default)]
pub struct WitnessTotals {
    /// Packets that were read.
    pub read: AtomicU64,
    /// Packets that were read and not believed.
    pub bad: AtomicU64,
    /// Packets that the kernel dropped because the queue of a capture was full.
    pub dropped: AtomicU64,
}

/// The evidence about one instance.
#[derive(Debug, Clone, Copy)]
pub struct InstanceEvidence<'a> {
    /// Whether adverts are captured.
    pub status: &'a CaptureStatus,
    /// Whether sent adverts are captured too.
    pub has_sent: bool,
    /// Whether adverts arrive although no other program has joined their multicast groups.
    pub has_membership: bool,
    /// The adverts of the link.
    pub witness: &'a LinkWitness,
    /// The virtual router of the instance.
    pub key: RouterKey,
}

impl InstanceEvidence<'_> {
    /// How long no source has advertised to the instance.
    pub(crate) fn silence(
        &self,
        instance: &InstanceConfig,
        processes: Option<&ProcessView>,
        now: Moment,
    ) -> Silence {
        let (own, down_interval) =
            (configured_settings(instance), expected_down_interval(instance));
        match self.witness.silence(self.key, &own, down_interval, now) {
            Silence::Silent { .. } if !self.shows_silence(instance, processes) => Silence::Unknown,
            silence => silence,
        }
    }

    /// Whether adverts would arrive although keepalived has ended. The link may pass none up if the capture has not joined
    /// their multicast groups, and a switch none that no host has reported by MLD or IGMP: the capture reports nothing.
    /// `processes` is `None` if they are not read.
    pub(crate) fn shows_silence(
        &self,
        instance: &InstanceConfig,
        processes: Option<&ProcessView>,
    ) -> bool {
        let is_passed = self.has_membership
            && !(self.key.kind == AdvertKind::Multicast && is_snooped(instance, self.key.family));
        is_passed || !processes.is_some_and(|view| view.has_ended(instance))
    }
}

/// Whether switches may pass the multicast group of an instance only to ports with members: any but those of the local
/// network block 224.0.0.0/24 (RFC 4541, sections 2.1.2 and 3).
fn is_snooped(instance: &InstanceConfig, family: VrrpFamily) -> bool {
    match instance.vrrp.multicast_group {
        Some(IpAddr::V4(group)) => group.octets()[..3] != [224, 0, 0],
        Some(IpAddr::V6(_)) => true,
        None => family == VrrpFamily::V6,
    }
}

impl WitnessTable {
    /// Calls `read` with the evidence about an instance. `None` if its adverts are not captured: the witness is off for
    /// this link, or the virtual router id is not known.
    pub fn read<T>(
        &self,
        instance: &InstanceConfig,
        read: impl FnOnce(InstanceEvidence<'_>) -> T,
    ) -> Option<T> {
        let key = router_key(instance)?;
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = links.get(&LinkKey::of(instance)?)?;
        let LinkEvidence { status, has_sent, has_membership, witness } = link;
        let (has_sent, has_membership) = (*has_sent, *has_membership);
        // Where the configuration does not say how adverts are sent, the adverts do.
        let mut routers = witness.both_kinds(key).filter(|router| !router.sources().is_empty());
        let is_known = instance.vrrp.protocol.is_some();
        let key = routers.find(|_| !is_known).map_or(key, RouterWitness::key);
        Some(read(InstanceEvidence { status, has_sent, has_membership, witness, key }))
    }

    /// The role of an instance without addresses; `None` if its adverts do not show it yet.
    pub(crate) fn role(&self, instance: &InstanceConfig) -> Option<Role> {
        let role = |InstanceEvidence { status, witness, key, .. }: InstanceEvidence<'_>| {
            let (own, down_interval) =
                (configured_settings(instance), expected_down_interval(instance));
            match status {
                CaptureStatus::Running => witness.role(key, &own, down_interval, clock::now()),
                CaptureStatus::Refused(error) | CaptureStatus::Failed(error) => {
                    Some(Role::Unknown(format!("its adverts are not captured: {error}")))
                }
                // The kernel says more about these.
                CaptureStatus::NoNetns | CaptureStatus::NoLink | CaptureStatus::LinkDown => None,
            }
        };
        let not_captured = || Some(Role::Unknown("its adverts are not captured".to_owned()));
        self.read(instance, role).unwrap_or_else(not_captured)
    }

    /// Changes the evidence.
    pub(super) fn change<T>(
        &self,
        change: impl FnOnce(&mut HashMap<LinkKey, LinkEvidence>) -> T,
    ) -> T {
        change(&mut self.links.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The virtual router of an instance; `None` if its id is not known.
pub(crate) fn router_key(instance: &InstanceConfig) -> Option<RouterKey> {
    let family = instance.family();
    let is_unicast = instance.vrrp.protocol.is_some_and(|protocol| protocol.is_unicast);
    let kind = if is_unicast { AdvertKind::Unicast } else { AdvertKind::Multicast };
    Some(RouterKey { vrid: instance.vrrp.vrid?, family, kind })
}

/// The settings of an instance in the configuration, as far as adverts show them.
pub(crate) fn configured_settings(instance: &InstanceConfig) -> OwnSettings {
    let protocol = instance.vrrp.protocol;
    let advertised = instance.vrrp.addresses.iter().filter(|address| !address.is_excluded);
    OwnSettings {
        version: protocol.map(|protocol| protocol.version),
        interval: protocol.map(|_| advert_interval(instance)),
        authentication: protocol.map(|protocol| protocol.authentication),
        addresses: protocol.map(|_| advertised.map(|address| address.cidr.addr()).collect()),
        unicast_peers: instance.vrrp.unicast_peers.clone(),
        auth_hmac: instance.vrrp.auth_hmac.clone(),
        ignores_adverts: instance.vrrp.ignores_adverts,
    }
}

/// The interval of an instance's adverts, as they announce it.
pub(crate) fn advert_interval(instance: &InstanceConfig) -> Duration {
    instance.vrrp.advert_interval.unwrap_or(DEFAULT_INTERVAL)
}

/// The time without adverts after which an instance takes over, by its configuration.
pub(crate) fn expected_down_interval(instance: &InstanceConfig) -> Duration {
    let version = instance.vrrp.protocol.map_or(VrrpVersion::V2, |protocol| protocol.version);
    let priority = instance.vrrp.priority.unwrap_or(DEFAULT_PRIORITY);
    let adverts = instance.vrrp.down_timer_adverts;
    master_down_interval(version, advert_interval(instance), priority, adverts)
}

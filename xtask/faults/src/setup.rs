// SPDX-License-Identifier: Apache-2.0
//! The lab of one seed: the number of hosts, the variant of keepalived's configuration, and the settings of the cluster
//! view. The file `setup.json` has everything that the checker must know about it.

mod dimensions;
mod files;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

pub use self::dimensions::{DOWN_TIMER, DataLink, HealthyShape, NO_COPY};
pub use self::files::{NodeFiles, group_conf, node_conf, router_conf};
use crate::args::LabKind;
use crate::random::SeededRandom;

/// The link of a host in the data network.
pub const LINK: &str = "eth0";
/// The link for adverts, in a lab with a heartbeat network.
pub const HEARTBEAT_LINK: &str = "hb0";
/// The virtual router id of the first instance; the second one has the next id.
const FIRST_VRID: u8 = 51;
/// The base priorities of the hosts.
const PRIORITIES: [u8; 3] = [150, 120, 90];
/// Number of hosts with an etcd member.
pub const HOSTS: usize = 3;
/// The notification recorder's address.
pub const RECORDER: &str = "10.7.0.254:8080";
/// The prefix of all vipwatch keys in etcd.
pub const PREFIX: &str = "/vipwatch/v1/default/";
/// The group that one node can have in its configuration.
pub const GROUP: &str = "lab";
/// The id of the router that the injector can create.
pub const ROUTER: &str = "5d3c1f6e-0000-4000-8000-000000000001";

/// The properties of one lab that all hosts share.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of one configuration")]
pub struct LabSetup {
    pub seed: u64,
    /// The base priority of each host.
    pub priorities: Vec<u8>,
    pub version: u8,
    pub is_ipv6: bool,
    pub is_unicast: bool,
    pub has_vmac: bool,
    /// Two instances in one sync group.
    pub has_sync_group: bool,
    pub has_track_script: bool,
    pub is_nopreempt: bool,
    /// Each instance has two addresses.
    pub has_two_addresses: bool,
    /// The node captures sent adverts too.
    pub captures_sent: bool,
    pub advert_millis: u32,
    /// `None` for nodes without a cluster view.
    pub cluster: Option<ClusterSettings>,
    pub data_link: DataLink,
    /// The adverts have a network of their own.
    pub has_heartbeat: bool,
    /// A second instance with the same VRID on the same link: the first one uses multicast, the second one unicast.
    pub has_unicast_twin: bool,
    /// `down_timer_adverts`.
    pub down_timer: u8,
    /// The Debian releases of the keepalived on the first hosts.
    pub releases: Vec<&'static str>,
    /// The host without `vipwatch`.
    pub unobserved: Option<usize>,
    /// `None` for a lab with faults.
    pub shape: Option<HealthyShape>,
}

/// The settings of `[cluster]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    pub times: ClusterTimes,
    pub min_backups: usize,
    /// Each node follows all groups of the domain.
    pub has_full_view: bool,
    /// The injector can step the wall clock of each node.
    pub has_own_clocks: bool,
}

/// Seconds of the settings of `[cluster]`; `audit` is `node.audit_every`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterTimes {
    pub heartbeat: i64,
    pub lease: i64,
    pub settle: i64,
    pub slow_settle: i64,
    pub audit: i64,
}

impl ClusterTimes {
    /// The times of all labs. No shorter `audit` is accepted by the node.
    const LAB: Self = Self { heartbeat: 1, lease: 3, settle: 2, slow_settle: 4, audit: 10 };
}

/// An instance of the lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceFacts {
    pub name: String,
    pub vrid: u8,
    /// With prefix lengths.
    pub addresses: Vec<String>,
    /// The link that holds the addresses.
    pub address_link: String,
    /// The link of the adverts.
    pub advert_link: String,
    pub is_unicast: bool,
}

/// The content of `setup.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SetupDocument {
    pub seed: u64,
    pub label: String,
    pub priorities: Vec<u8>,
    pub version: u8,
    pub advert_millis: i64,
    pub instances: Vec<InstanceFacts>,
    /// The index of each port of the switch; in a lab without a cluster, the last one is that of the foreign host.
    pub ports: Vec<u32>,
    /// `None` in a lab without a cluster.
    pub times: Option<ClusterTimes>,
    pub min_backups: Option<usize>,
    pub down_timer: u8,
    pub unobserved: Option<usize>,
    /// Whether some keepalived keeps no copy of its configuration.
    pub has_no_copy: bool,
    pub shape: Option<HealthyShape>,
}

impl LabSetup {
    pub fn of(kind: LabKind, seed: u64) -> Self {
        match kind {
            LabKind::Nodes => Self::random(false, seed).with_dimensions(),
            LabKind::Healthy => Self::healthy(seed),
            LabKind::Cluster => Self::random(true, seed),
        }
    }

    fn random(is_cluster: bool, seed: u64) -> Self {
        let either = |nodes: usize, cluster: usize| if is_cluster { cluster } else { nodes };
        let mut random = SeededRandom::new(if is_cluster { seed ^ 0xC1_5735 } else { seed });
        let mut priorities = PRIORITIES.to_vec();
        if !is_cluster && !random.chance(35) {
            priorities.truncate(2);
        }
        random.shuffle(&mut priorities);
        let is_ipv6 = random.chance(either(30, 25));
        let version = if is_ipv6 || random.chance(50) { 3 } else { 2 };
        let is_unicast = random.chance(25);
        let intervals = &[1000, 500, 300][..either(3, 2)];
        // ORDER: the order of the random numbers decides the lab of a seed.
        Self {
            seed,
            priorities,
            version,
            is_ipv6,
            is_unicast,
            has_vmac: !is_cluster && !is_unicast && random.chance(25),
            has_sync_group: random.chance(either(25, 40)),
            has_track_script: !is_cluster && random.chance(50),
            is_nopreempt: random.chance(30),
            has_two_addresses: is_ipv6 || random.chance(either(40, 30)),
            captures_sent: !is_cluster && random.chance(50),
            advert_millis: if version == 3 { random.one_of(intervals) } else { 1000 },
            cluster: is_cluster.then(|| ClusterSettings {
                times: ClusterTimes::LAB,
                min_backups: if random.chance(50) { 2 } else { 1 },
                has_full_view: random.chance(30),
                has_own_clocks: false,
            }),
            ..Self::plain()
        }
    }

    pub fn nodes(&self) -> usize {
        self.priorities.len()
    }

    /// The number of instances.
    pub fn instances(&self) -> usize {
        1 + usize::from(self.has_sync_group || self.has_unicast_twin)
    }

    pub fn instance(&self, index: usize) -> InstanceFacts {
        let number = index + 1;
        let vrid = FIRST_VRID + u8::from(index > 0 && !self.has_unicast_twin);
        // RFC 5798, section 5.2.9: the first address is the link-local one.
        let mut addresses = if self.is_ipv6 {
            vec![format!("fe80::{number}:100/64"), format!("fd09::{number}:100/64")]
        } else {
            let length = if self.data_link == DataLink::Routed { 32 } else { 24 };
            vec![format!("10.9.0.{number}01/{length}"), format!("10.9.0.{number}02/{length}")]
        };
        addresses.truncate(1 + usize::from(self.has_two_addresses));
        let address_link = if self.has_vmac { format!("vrrp.{vrid}") } else { LINK.to_owned() };
        InstanceFacts {
            name: format!("VI_{number}"),
            vrid,
            addresses,
            address_link,
            advert_link: if self.has_heartbeat { HEARTBEAT_LINK } else { LINK }.to_owned(),
            is_unicast: self.is_unicast || self.has_unicast_twin && index > 0,
        }
    }

    /// The own address of a host; the foreign host has the number after the last node.
    pub fn own_address(&self, host: usize) -> String {
        match (self.is_ipv6, self.data_link) {
            (true, _) => format!("fd09::{}", host + 1),
            (false, DataLink::Routed) => format!("10.9.{}.1", host + 1),
            (false, _) => format!("10.9.0.{}", host + 1),
        }
    }

    /// The address from which a host sends adverts.
    pub fn advert_address(&self, host: usize) -> String {
        if self.has_heartbeat { heartbeat_address(host) } else { self.own_address(host) }
    }

    /// An address that a [`ConfigEdit`] adds.
    pub fn extra_address(&self) -> String {
        if self.is_ipv6 { "fd09::99/64" } else { "10.9.0.199/24" }.to_owned()
    }

    /// A short description for the table of results.
    fn label(&self) -> String {
        if let Some(shape) = self.shape {
            return format!("{shape:?}");
        }
        let mut label = format!("{}n v{} {}ms", self.nodes(), self.version, self.advert_millis);
        let marks = [
            (self.is_ipv6, "ipv6"),
            (self.is_unicast, "unicast"),
            (self.has_vmac, "vmac"),
            (self.has_sync_group, "sync"),
            (self.has_track_script, "track"),
            (self.is_nopreempt, "nopreempt"),
            (self.captures_sent, "sent"),
            (self.data_link == DataLink::Macvlan, "macvlan"),
            (self.has_heartbeat, "heartbeat"),
            (self.has_unicast_twin, "twin"),
            (self.down_timer != DOWN_TIMER, "down-timer"),
        ];
        for (_, mark) in marks.iter().filter(|(is_set, _)| *is_set) {
            let _ = write!(label, " {mark}");
        }
        for (host, release) in self.releases.iter().enumerate() {
            let _ = write!(label, " {host}={release}");
        }
        if let Some(host) = self.unobserved {
            let _ = write!(label, " {host}=blind");
        }
        if let Some(cluster) = &self.cluster {
            let view = if cluster.has_full_view { " full" } else { "" };
            let _ = write!(label, " backups>={}{view}", cluster.min_backups);
        }
        label
    }

    pub fn document(&self, ports: Vec<u32>) -> SetupDocument {
        SetupDocument {
            seed: self.seed,
            label: self.label(),
            priorities: self.priorities.clone(),
            version: self.version,
            advert_millis: self.advert_millis.into(),
            instances: (0..self.instances()).map(|index| self.instance(index)).collect(),
            ports,
            times: self.cluster.as_ref().map(|cluster| cluster.times),
            min_backups: self.cluster.as_ref().map(|cluster| cluster.min_backups),
            down_timer: self.down_timer,
            unobserved: self.unobserved,
            has_no_copy: self.releases.contains(&NO_COPY),
            shape: self.shape,
        }
    }
}

/// A change of one host's keepalived configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct ConfigEdit {
    /// Another base priority.
    pub priority: Option<u8>,
    /// One more address for the first instance, which the other hosts do not have.
    pub has_extra_address: bool,
}

/// A host's address in the heartbeat network.
pub fn heartbeat_address(host: usize) -> String {
    format!("10.6.0.{}", host + 1)
}

/// The name of a host's node.
pub fn node_name(host: usize) -> String {
    format!("node{host}")
}

/// An etcd member's address in the management network.
pub fn etcd_address(host: usize) -> String {
    format!("10.8.0.{}", host + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn one_seed_gives_one_lab_and_other_seeds_give_other_labs() {
        for kind in [LabKind::Nodes, LabKind::Cluster] {
            assert_eq!(LabSetup::of(kind, 7), LabSetup::of(kind, 7));
            let labels: BTreeSet<String> =
                (0..50).map(|seed| LabSetup::of(kind, seed).label()).collect();
            assert!(labels.len() > 20, "{labels:?}");
        }
    }
}

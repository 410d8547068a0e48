// SPDX-License-Identifier: Apache-2.0
//! The configuration of one instance, made from a parsed file of keepalived or from the node's own
//! configuration.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use vipwatch_cluster::key::Bucket;
use vipwatch_core::keepalived::{VirtualAddress, VrrpInstance};
use vipwatch_core::role::role_of;
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::vrrp::VrrpFamily;
use vipwatch_core::{InstanceId, LinkName, NetnsName, Role};
use vipwatch_linux::netns::DIRECTORY;

/// Where the configuration of an instance comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum Origin {
    /// A Neutron HA router.
    Neutron,
    /// A `vrrp_instance` of ordinary keepalived.
    Keepalived,
    /// A `vrrp_instance` of keepalived in a container.
    Container,
    /// An `[[instance]]` of the node's own configuration.
    #[strum(serialize = "vipwatch")]
    Own,
}

impl Origin {
    /// All origins.
    pub const ALL: [Self; 4] = [Self::Neutron, Self::Keepalived, Self::Container, Self::Own];

    /// The word for the origin in JSON and in the configuration.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// The configuration of one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceConfig {
    /// The id, unique on this node.
    pub id: InstanceId,
    /// Where the configuration comes from.
    pub origin: Origin,
    /// The namespace of its addresses; `None` for the node's own.
    pub netns: Option<NetnsName>,
    /// The file with its configuration.
    pub file: Arc<Path>,
    /// The parsed configuration.
    pub vrrp: Arc<VrrpInstance>,
}

impl InstanceConfig {
    /// The links and addresses that decide the role, in the order of the configuration.
    pub fn watched(&self) -> Box<[(LinkName, IpNet)]> {
        self.watched_addresses().map(|address| (address.link, address.cidr)).collect()
    }

    /// The links without which no watched address can be held; the one of the adverts comes first.
    pub fn required_links(&self) -> impl Iterator<Item = LinkName> {
        let is_tracked = self.vrrp.tracks_interface || !self.has_addresses();
        let tracked = self.vrrp.interface.filter(|_| is_tracked);
        tracked.into_iter().chain(self.watched_addresses().map(VirtualAddress::required_link))
    }

    /// The role that a snapshot shows; `watched` are the links and addresses of [`Self::watched`].
    pub fn role(&self, watched: &[(LinkName, IpNet)], snapshot: &Snapshot) -> Role {
        let role = role_of(watched, self.required_links(), snapshot);
        if self.has_addresses() || role != Role::Backup {
            return role;
        }
        Role::Unknown("it has no address, and only a node captures its adverts".to_owned())
    }

    fn watched_addresses(&self) -> impl Iterator<Item = &VirtualAddress> {
        self.vrrp.addresses.iter().filter(|address| self.watches(address))
    }

    /// Whether addresses decide the role. Without any (`no_virtual_ipaddress`), adverts do.
    pub fn has_addresses(&self) -> bool {
        !self.vrrp.addresses.is_empty()
    }

    /// The id of the instance's group, as this node knows it without other nodes: `router:UUID`, `group:NAME`,
    /// `vrrp:FAMILY:VRID:ADDRESS`, or `alone:NODE:INSTANCE` for an instance without addresses. `configured` is the name
    /// that `[[group]]` gives, as an id.
    pub fn group_id(&self, configured: Option<&InstanceId>, node: &str) -> Arc<str> {
        if self.origin == Origin::Neutron {
            return Bucket::Router(self.id.clone()).to_string().into();
        }
        if let Some(name) = configured {
            return Bucket::Configured(name.clone()).to_string().into();
        }
        if !self.has_addresses() {
            return format!("alone:{node}:{}", self.id).into();
        }
        let bucket =
            Bucket::Vrrp { is_ipv6: self.family() == VrrpFamily::V6, vrid: self.vrrp.vrid };
        let addresses = self.deciding_addresses();
        bucket.own_group(addresses.iter().map(IpNet::addr)).into()
    }

    /// The addresses that decide the role, in the order of the configuration, those in adverts first; each once.
    pub fn deciding_addresses(&self) -> Vec<IpNet> {
        let mut watched: Vec<&VirtualAddress> = self.watched_addresses().collect();
        watched.sort_by_key(|address| address.is_excluded);
        let mut known = BTreeSet::new();
        let addresses = watched.into_iter().map(|address| address.cidr);
        addresses.filter(|cidr| known.insert(*cidr)).collect()
    }

    /// The family of the instance's adverts.
    pub fn family(&self) -> VrrpFamily {
        let addresses = &self.vrrp.addresses;
        let advertised = addresses.iter().find(|address| !address.is_excluded);
        let first = advertised.or(addresses.first());
        first.map_or(self.vrrp.family, |first| VrrpFamily::of(first.cidr.addr()))
    }

    /// Whether an address of this instance decides its role. The floating addresses of a Neutron router do not:
    /// the agent adds and removes them at any time. The address that keepalived advertises decides there.
    pub fn watches(&self, address: &VirtualAddress) -> bool {
        match self.origin {
            Origin::Neutron => !address.is_excluded,
            Origin::Keepalived | Origin::Container | Origin::Own => true,
        }
    }
}

/// The namespace of a Neutron router; `None` if the router id cannot be part of a namespace's name.
pub fn netns_of_router(id: &InstanceId) -> Option<NetnsName> {
    router_netns(id, |name| Path::new(DIRECTORY).join(name).exists())
}

/// The namespace of a router: `snat-ID` of a distributed router, which has the HA link, if that namespace
/// exists; else `qrouter-ID`.
pub(super) fn router_netns(
    id: &InstanceId,
    exists: impl FnOnce(&str) -> bool,
) -> Option<NetnsName> {
    let with = |prefix: &str| format!("{prefix}-{id}");
    let snat = Some(with("snat")).filter(|name| exists(name));
    snat.unwrap_or_else(|| with("qrouter")).parse().ok()
}

/// An instance for tests of other modules.
#[cfg(test)]
pub(crate) fn example() -> InstanceConfig {
    let directory = tempfile::tempdir().unwrap();
    let keepalived = directory.path().join("keepalived.conf");
    let text = "vrrp_instance A {\n interface eth0\n virtual_router_id 1\n \
                virtual_ipaddress {\n 192.0.2.1\n }\n}\n";
    std::io::Write::write_all(&mut std::fs::File::create(&keepalived).unwrap(), text.as_bytes())
        .unwrap();
    let neutron = directory.path().to_owned();
    let keepalived = vec![keepalived];
    let locations = super::ConfigLocations { neutron, keepalived, ..Default::default() };
    (*super::discover(&locations).instances[0]).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_with_a_vmac_requires_the_link_below_it() {
        let mut instance = example();
        let mut vrrp = (*instance.vrrp).clone();
        (vrrp.addresses[0].link, vrrp.addresses[0].base) =
            ("vrrp.1".parse().unwrap(), "eth1".parse().ok());
        let required = |instance: &InstanceConfig| -> Vec<String> {
            instance.required_links().map(|link| link.to_string()).collect()
        };
        instance.vrrp = Arc::new(vrrp.clone());
        assert_eq!(required(&instance), ["eth0", "eth1"]);
        vrrp.tracks_interface = false;
        instance.vrrp = Arc::new(vrrp);
        assert_eq!(required(&instance), ["eth1"]);
    }

    #[test]
    fn the_group_has_the_same_id_on_all_nodes_although_one_has_an_address_more() {
        let group = |instance: &InstanceConfig| instance.group_id(None, "net-1").to_string();
        let mut instance = example();
        assert_eq!(group(&instance), "vrrp:ipv4:1:192.0.2.1");
        let mut vrrp = (*instance.vrrp).clone();
        let address = |text: &str, is_excluded| VirtualAddress {
            cidr: text.parse().unwrap(),
            is_excluded,
            ..vrrp.addresses[0]
        };
        let addresses = [
            address("2001:db8::1/64", true),
            address("192.0.2.80/24", false),
            address("192.0.2.9/32", false),
        ];
        vrrp.addresses = addresses[..2].to_vec();
        instance.vrrp = Arc::new(vrrp.clone());
        assert_eq!(group(&instance), "vrrp:ipv4:1:192.0.2.80");
        vrrp.addresses = addresses.to_vec();
        instance.vrrp = Arc::new(vrrp.clone());
        assert_eq!(group(&instance), "vrrp:ipv4:1:192.0.2.80");
        vrrp.vrid = None;
        instance.vrrp = Arc::new(vrrp.clone());
        assert_eq!(group(&instance), "vrrp:ipv4:-:192.0.2.80");
        let web = InstanceId::of_name("web/front").unwrap();
        assert_eq!(&*instance.group_id(Some(&web), "net-1"), "group:web~2Ffront");
        vrrp.addresses.clear();
        instance.vrrp = Arc::new(vrrp);
        assert_eq!(group(&instance), "alone:net-1:A", "another one may have the same VRID");
        instance.origin = Origin::Neutron;
        assert_eq!(group(&instance), "router:A");
    }
}

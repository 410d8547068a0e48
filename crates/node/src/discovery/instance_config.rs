//! The configuration of one instance, made from a parsed file of keepalived or from the node's own
//! configuration.

use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use vipwatch_core::keepalived::{VirtualAddress, VrrpInstance};
use vipwatch_core::{InstanceId, LinkName, NetnsName};
use vipwatch_linux::netns::DIRECTORY;

/// Where the configuration of an instance comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A Neutron HA router.
    Neutron,
    /// A `vrrp_instance` of ordinary keepalived.
    Keepalived,
    /// An `[[instance]]` of the node's own configuration.
    Own,
}

impl Origin {
    /// The word for the origin in JSON and in the configuration.
    pub fn word(self) -> &'static str {
        match self {
            Self::Neutron => "neutron",
            Self::Keepalived => "keepalived",
            Self::Own => "vipwatch",
        }
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
        let addresses = self.vrrp.addresses.iter().filter(|address| self.watches(address));
        addresses.map(|address| (address.link, address.cidr)).collect()
    }

    /// Whether an address of this instance decides its role. The floating addresses of a Neutron router do not:
    /// the agent adds and removes them at any time. The address that keepalived advertises decides there.
    pub fn watches(&self, address: &VirtualAddress) -> bool {
        match self.origin {
            Origin::Neutron => !address.is_excluded,
            Origin::Keepalived | Origin::Own => true,
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

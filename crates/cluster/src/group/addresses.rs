// SPDX-License-Identifier: Apache-2.0
//! The addresses that say whether two instances belong together.
//!
//! An address that is valid on one link only says nothing about an instance on another link. `fe80::1` is the gateway of
//! many VLANs, and the first address of a virtual router of IPv6 is a link-local one (RFC 5798, section 5.2.9).

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::Group;
use crate::record::RoleRecord;

/// The addresses by which an instance is compared with others of its VRID: those that are valid beyond their link. If it has
/// none of them, its link-local addresses are all that is known of it, and are used.
pub(crate) fn compared(record: &RoleRecord) -> BTreeSet<IpAddr> {
    let all = || record.addresses.iter().map(ipnet::IpNet::addr);
    let beyond_link: BTreeSet<IpAddr> = all().filter(is_valid_beyond_link).collect();
    if beyond_link.is_empty() { all().collect() } else { beyond_link }
}

/// The addresses of a group that are valid beyond their link. All routers of Neutron with the same VRID have the same
/// link-local address, so that groups of different buckets are never compared by one.
pub(super) fn beyond_link(group: &Group) -> BTreeSet<IpAddr> {
    group.addresses().into_iter().filter(is_valid_beyond_link).collect()
}

/// The address that names the group of an instance of a VRID: the first one of its family in its configuration that is valid
/// beyond its link. An address that a roll-out adds comes last, so that the group keeps its id.
pub(crate) fn naming_address(
    addresses: impl Iterator<Item = IpAddr>,
    is_ipv6: bool,
) -> Option<IpAddr> {
    let addresses: Vec<IpAddr> = addresses.collect();
    let of_family = || addresses.iter().filter(|address| address.is_ipv6() == is_ipv6);
    let beyond_link = of_family().find(|address| is_valid_beyond_link(address));
    beyond_link.or_else(|| of_family().next()).or(addresses.first()).copied()
}

fn is_valid_beyond_link(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local(),
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Groups of different buckets that have the same VRID and address.
//!
//! An instance is in the bucket of a router or of a configured group on one node, and in the bucket of its VRID on
//! another one: the configuration of one node lacks the name of the group. Both parts would look like groups of their
//! own, one of them without a primary.
//!
//! Two groups with a node in common are different groups: a node has one instance of a group. Two routers, and two
//! configured groups, are different groups by their names: routers of different tenants have equal addresses. Addresses
//! that are valid on one link only say nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Ambiguity, Group, addresses};
use crate::key::{Bucket, ClusterName};
use crate::view::ClusterView;

/// The maximum number of other groups of one group: a finding names as many.
// BOUND: the rest is left out.
const MAX_OTHERS: usize = 8;

/// The groups of VRIDs that share an address with a named group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SharedAddresses {
    /// For each group, the other groups with the common address.
    groups: BTreeMap<String, BTreeMap<String, IpAddr>>,
    /// The buckets of these groups.
    buckets: BTreeSet<Bucket>,
}

impl SharedAddresses {
    /// Compares all groups of a view. Only the groups of one VRID are in memory at a time.
    pub(crate) fn of_view(view: &ClusterView) -> Self {
        let mut shared = Self::default();
        let mut candidates: BTreeMap<Bucket, Vec<ComparedGroup>> = view
            .buckets()
            .filter(|bucket| matches!(bucket, Bucket::Vrrp { .. }))
            .map(|bucket| (bucket, Vec::new()))
            .collect();
        if candidates.is_empty() {
            return shared;
        }
        for bucket in view.buckets().filter(is_named) {
            for group in view.groups_of(&bucket) {
                for bucket in vrid_buckets(&group) {
                    if let Some(named) = candidates.get_mut(&bucket) {
                        named.push(ComparedGroup::new(&group));
                    }
                }
            }
        }
        for (bucket, named) in candidates.into_iter().filter(|(_, named)| !named.is_empty()) {
            let groups: Vec<ComparedGroup> =
                view.groups_of(&bucket).iter().map(ComparedGroup::new).collect();
            // An address is in one group of a VRID.
            let by_address = groups
                .iter()
                .flat_map(|group| group.addresses.iter().map(move |address| (*address, group)));
            let by_address: BTreeMap<IpAddr, &ComparedGroup> = by_address.collect();
            for named in &named {
                for address in &named.addresses {
                    if let Some(group) = by_address.get(address) {
                        shared.add(named, group, *address);
                    }
                }
            }
        }
        shared
    }

    /// Adds the ambiguities of a group.
    pub(crate) fn mark(&self, group: &mut Group) {
        let others = self.groups.get(&group.id).into_iter().flatten();
        group.ambiguities.extend(
            others.map(|(id, address)| Ambiguity::OtherGroup { id: id.clone(), address: *address }),
        );
    }

    /// The buckets with such a group.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = &Bucket> {
        self.buckets.iter()
    }

    /// Both groups have the address.
    fn add(&mut self, named: &ComparedGroup, group: &ComparedGroup, address: IpAddr) {
        if !named.nodes.is_disjoint(&group.nodes) {
            return;
        }
        let mut add = |one: &ComparedGroup, other: &ComparedGroup| {
            let others = self.groups.entry(one.id.clone()).or_default();
            if others.len() < MAX_OTHERS {
                others.entry(other.id.clone()).or_insert(address);
            }
        };
        add(named, group);
        add(group, named);
        self.buckets.extend([named.bucket.clone(), group.bucket.clone()]);
    }
}

/// The facts of a group that are compared.
struct ComparedGroup {
    id: String,
    bucket: Bucket,
    nodes: BTreeSet<ClusterName>,
    /// Without those that are valid on one link only.
    addresses: BTreeSet<IpAddr>,
}

impl ComparedGroup {
    fn new(group: &Group) -> Self {
        let nodes = group.members.iter().map(|member| member.node.clone()).collect();
        let addresses = addresses::beyond_link(group);
        Self { id: group.id.clone(), bucket: group.bucket.clone(), nodes, addresses }
    }
}

fn is_named(bucket: &Bucket) -> bool {
    matches!(bucket, Bucket::Router(_) | Bucket::Configured(_))
}

/// The buckets that the members would be in if they had no name.
fn vrid_buckets(group: &Group) -> BTreeSet<Bucket> {
    let buckets = group.members.iter().flat_map(|member| {
        let (addresses, vrid) = (member.record.addresses.iter(), member.record.vrid);
        addresses.map(move |net| Bucket::Vrrp { is_ipv6: net.addr().is_ipv6(), vrid })
    });
    buckets.collect()
}

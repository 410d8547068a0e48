// SPDX-License-Identifier: Apache-2.0
//! Reads the role of every instance once, from a snapshot of each namespace. For commands that run without a
//! node, and for the audit.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use vipwatch_core::role::{AddressState, address_state};
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{ErrorChain, Fault, LinkName, NetnsName, Role};
use vipwatch_linux::netns::NetnsError;
use vipwatch_linux::netns_query::{NetnsQuery, NetnsQueryError};

use crate::discovery::InstanceConfig;

/// One instance, with its role and the state of its addresses in the kernel.
#[derive(Debug)]
pub struct InstanceReading<'a> {
    /// The configuration of the instance.
    pub instance: &'a InstanceConfig,
    /// The role that follows from the snapshot.
    pub role: Role,
    /// The state of each address that decides the role.
    pub addresses: Vec<(LinkName, IpNet, AddressState)>,
}

/// Reads the roles of `instances` from the kernel.
pub fn read_roles(instances: &[Arc<InstanceConfig>]) -> Vec<InstanceReading<'_>> {
    // Many instances may share a namespace; each namespace is read once.
    let mut query = NetnsQuery::open().ok();
    let mut snapshots: BTreeMap<Option<&NetnsName>, Result<Snapshot, Role>> = BTreeMap::new();
    let each = instances.iter().map(|instance| {
        let netns = instance.netns.as_ref();
        let snapshot = snapshots.entry(netns).or_insert_with(|| netns_snapshot(&mut query, netns));
        let watched = instance.watched();
        let addresses = watched.iter().map(|(link, cidr)| {
            let state = snapshot.as_ref().map(|snapshot| address_state(snapshot, *link, *cidr));
            (*link, *cidr, state.unwrap_or(AddressState::Absent))
        });
        let addresses = addresses.collect();
        let role = match snapshot {
            Ok(snapshot) => instance.role(&watched, snapshot),
            Err(role) => role.clone(),
        };
        InstanceReading { instance, role, addresses }
    });
    each.collect()
}

/// Reads a namespace by its name, or the caller's own if it is `None`; on failure returns the role of the instances
/// in it. `query` is `None` where other namespaces cannot be read from outside.
pub fn netns_snapshot(
    query: &mut Option<NetnsQuery>,
    netns: Option<&NetnsName>,
) -> Result<Snapshot, Role> {
    let snapshot = match query {
        Some(query) => query.snapshot_by_name(netns),
        None => NetnsQuery::snapshot_by_visit(netns),
    };
    snapshot.map_err(|error| match error {
        NetnsQueryError::Netns(NetnsError::Missing(_)) => Role::Fault(Fault::NoNetns),
        error => Role::Unknown(ErrorChain(&error).to_string()),
    })
}

//! Asks the kernel once where every instance stands: each namespace is asked for its links and
//! addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use vipwatch_core::role::{AddressState, address_state, role_of};
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{ErrorChain, Fault, LinkName, NetnsName, Role};
use vipwatch_linux::netns::{Netns, NetnsError, visit};
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_linux::netns_watcher::NetnsRef;
use vipwatch_linux::snapshot::OwnNetnsQuery;

use crate::discovery::InstanceConfig;

/// One instance, and what the kernel says of it.
#[derive(Debug)]
pub struct InstanceReading<'a> {
    /// The instance.
    pub found: &'a InstanceConfig,
    /// Where it stands.
    pub role: Role,
    /// Each watched address, and what has become of it.
    pub addresses: Vec<(LinkName, IpNet, AddressState)>,
}

/// Looks at all of `instances`.
pub fn look(instances: &[Arc<InstanceConfig>]) -> Vec<InstanceReading<'_>> {
    // Many instances share a namespace; it is asked once.
    let mut query = Looker::new();
    let mut snapshots: BTreeMap<Option<&NetnsName>, Result<Snapshot, Role>> = BTreeMap::new();
    let each = instances.iter().map(|found| {
        let netns = found.netns.as_ref();
        let snapshot = snapshots.entry(netns).or_insert_with(|| query.snapshot(netns));
        let watched = found.watched();
        let addresses = watched.iter().map(|(link, cidr)| {
            let found = snapshot.as_ref().map(|snapshot| address_state(snapshot, *link, *cidr));
            (*link, *cidr, found.unwrap_or(AddressState::Absent))
        });
        let addresses = addresses.collect();
        let role = match snapshot {
            Ok(snapshot) => role_of(&watched, snapshot),
            Err(why) => why.clone(),
        };
        InstanceReading { found, role, addresses }
    });
    each.collect()
}

/// Asks namespaces for everything, again and again: from outside where they can be asked so, by
/// visiting them where not.
#[derive(Debug)]
pub struct Looker {
    query: Option<NetnsQuery>,
}

impl Looker {
    /// Has not looked yet.
    pub fn new() -> Self {
        Self { query: NetnsQuery::open().ok() }
    }

    /// Everything in a namespace, now; or where its instances stand without it.
    pub fn snapshot(&mut self, netns: Option<&NetnsName>) -> Result<Snapshot, Role> {
        self.ask_about(netns).map_or_else(|| visiting(netns), Ok)
    }

    fn ask_about(&mut self, netns: Option<&NetnsName>) -> Option<Snapshot> {
        let query = self.query.as_mut()?;
        let place = match netns {
            Some(name) => query.find(&Netns::open(name).ok()?).ok()??,
            None => NetnsRef::Here,
        };
        query.snapshot(place).ok()
    }
}

impl Default for Looker {
    fn default() -> Self {
        Self::new()
    }
}

fn visiting(netns: Option<&NetnsName>) -> Result<Snapshot, Role> {
    let unknown = |error: &dyn std::error::Error| Role::Unknown(ErrorChain(error).to_string());
    match visit(netns, || OwnNetnsQuery::open().and_then(|mut query| query.snapshot())) {
        Ok(Ok(snapshot)) => Ok(snapshot),
        Ok(Err(error)) => Err(unknown(&error)),
        Err(NetnsError::Missing(_)) => Err(Role::Fault(Fault::NoNetns)),
        Err(error) => Err(unknown(&error)),
    }
}

// SPDX-License-Identifier: Apache-2.0
//! One namespace of the instance table, and the instances in it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use vipwatch_core::role::{AddressState, address_state};
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::witness::UNHEARD;
use vipwatch_core::{Fault, LinkName, Moment, NetnsName, RateLimiter, Role, Trigger};
use vipwatch_linux::clock;
use vipwatch_linux::netns::{Netns, NetnsError};
use vipwatch_linux::netns_query::NetnsRef;
use vipwatch_linux::netns_watcher::NetnsWatcher;

use super::interest::Interest;
use super::pending_read::PendingRead;
use super::{AddressChange, RoleChange, SNAPSHOT_RATE};
use crate::discovery::InstanceConfig;
use crate::witness::WitnessTable;

/// Time that the witness has to open its sockets and hear adverts, before an instance gets its first role without them.
const FIRST_ADVERTS: Duration = Duration::from_secs(4);

/// A namespace and its instances.
#[derive(Debug)]
pub(super) struct NetnsEntry {
    /// How the kernel refers to the namespace; or the role of its instances while it cannot be read.
    pub(super) location: Result<NetnsRef, Role>,
    pub(super) members: Vec<FollowedInstance>,
    /// Which events concern the members.
    pub(super) interest: Interest,
    /// The netlink port of the process that last changed each watched address. The kernel itself reports the end of
    /// IPv6 duplicate address detection, later and without a port.
    pub(super) last_ports: Vec<(IpAddr, u32)>,
    /// Enforces [`SNAPSHOT_RATE`].
    rate_limiter: RateLimiter,
    /// The end of the pause after a slow snapshot.
    pub(super) paused_until: Moment,
}

impl NetnsEntry {
    pub(super) fn new() -> Self {
        Self {
            location: Err(Role::Fault(Fault::NoNetns)),
            // Most namespaces have one instance, and there are thousands of namespaces.
            members: Vec::with_capacity(1),
            interest: Interest::default(),
            last_ports: Vec::new(),
            rate_limiter: RateLimiter::new(SNAPSHOT_RATE),
            paused_until: Moment::new(Duration::ZERO),
        }
    }

    /// Gives the instances the role for a namespace that cannot be read, if it is one.
    pub(super) fn fault_if_missing(
        &mut self,
        read: &PendingRead,
        recent: &mut Arc<[AddressState]>,
        changes: &mut Vec<RoleChange>,
    ) {
        let Err(role) = &self.location else { return };
        let members = self.members.iter_mut();
        changes.extend(members.filter_map(|member| member.update(Err(role), None, read, recent)));
    }

    /// Whether adverts decide the role of a member.
    pub(super) fn needs_adverts(&self) -> bool {
        self.members.iter().any(|member| !member.instance.has_addresses())
    }

    /// When events may trigger the next snapshot.
    pub(super) fn ready_at(&self) -> Moment {
        self.rate_limiter.ready_at().max(self.paused_until)
    }

    /// Whether a snapshot may be taken now; if so, it counts against the rate.
    pub(super) fn take_permit(&mut self, now: Moment) -> bool {
        self.paused_until <= now && self.rate_limiter.take(now)
    }
}

/// Looks up the namespace `name`, which was `known` before.
pub(super) fn locate(
    watcher: &mut NetnsWatcher,
    name: Option<&NetnsName>,
    known: Option<NetnsRef>,
) -> Result<NetnsRef, Role> {
    let Some(name) = name else { return Ok(NetnsRef::Own) };
    let netns = Netns::open(name).map_err(|error| match error {
        // A name without a namespace is being created or deleted.
        NetnsError::Missing(_) | NetnsError::NotANamespace(_) => Role::Fault(Fault::NoNetns),
        error => Role::Unknown(error.to_string()),
    })?;
    match known {
        Some(known) if watcher.refers_to(known, &netns) => Ok(known),
        _ => watcher.watch(&netns).map_err(|error| Role::Unknown(error.to_string())),
    }
}

/// One followed instance.
#[derive(Debug)]
pub(super) struct FollowedInstance {
    pub(super) instance: Arc<InstanceConfig>,
    /// The addresses that decide its role.
    pub(super) watched: Box<[(LinkName, IpNet)]>,
    /// `None` until the namespace is read for the first time, or adverts show the role of an instance without addresses.
    role: Option<Role>,
    /// The state of each watched address; empty if the kernel could not be read. Shared with the published
    /// state.
    addresses: Arc<[AddressState]>,
    followed_since: Moment,
    /// Whether `addresses` has changed since it was last reported.
    pub(super) has_address_change: bool,
}

impl FollowedInstance {
    /// Follows `instance`, which was followed as `known` before; and whether it watches the same addresses and
    /// links in the same namespace, so that its role is still right.
    pub(super) fn replacing(known: Option<Self>, instance: Arc<InstanceConfig>) -> (Self, bool) {
        let Some(known) = known else {
            let watched = instance.watched();
            let addresses = Arc::from([]);
            let (role, followed_since) = (None, clock::now());
            let new = Self {
                instance,
                watched,
                role,
                addresses,
                followed_since,
                has_address_change: false,
            };
            return (new, false);
        };
        if Arc::ptr_eq(&known.instance, &instance) {
            return (known, true);
        }
        let watched = instance.watched();
        let is_same = known.instance.netns == instance.netns
            && known.watched == watched
            && known.instance.vrrp.interface == instance.vrrp.interface
            && known.instance.required_links().eq(instance.required_links());
        (Self { instance, watched, ..known }, is_same)
    }

    /// Takes the published role for the known one.
    pub(super) fn set_published(&mut self, role: Role) {
        if self.role.is_some() {
            self.role = Some(role);
        }
    }

    /// Whether [`Self::update`] would change the role.
    pub(super) fn is_changed_by(
        &self,
        snapshot: Result<&Snapshot, &Role>,
        adverts: Option<&WitnessTable>,
    ) -> bool {
        let role = self.role_in(snapshot, adverts);
        role.is_some_and(|role| self.role.as_ref() != Some(&role))
    }

    /// `None` if an instance without addresses has no role yet.
    fn role_in(
        &self,
        snapshot: Result<&Snapshot, &Role>,
        adverts: Option<&WitnessTable>,
    ) -> Option<Role> {
        let role = match snapshot {
            Ok(snapshot) => self.instance.role(&self.watched, snapshot),
            Err(role) => return Some(role.clone()),
        };
        let Some(adverts) = adverts.filter(|_| !self.instance.has_addresses()) else {
            return Some(role);
        };
        if matches!(role, Role::Fault(_)) {
            return Some(role);
        }
        let shown = adverts.role(&self.instance);
        let is_new = clock::now().since(self.followed_since) < FIRST_ADVERTS;
        match (shown, &self.role) {
            (None | Some(Role::Unknown(_)), None) if is_new => None,
            (Some(role), _) => Some(role),
            // keepalived becomes backup after a fault.
            (None, Some(Role::Fault(_))) => Some(Role::Backup),
            (None, Some(known)) => Some(known.clone()),
            (None, None) => Some(Role::Unknown(UNHEARD.to_owned())),
        }
    }

    /// Takes over a snapshot of the namespace, or the role for a namespace that cannot be read. `recent` are
    /// address states of another instance, which are shared if they are the same.
    pub(super) fn update(
        &mut self,
        snapshot: Result<&Snapshot, &Role>,
        adverts: Option<&WitnessTable>,
        read: &PendingRead,
        recent: &mut Arc<[AddressState]>,
    ) -> Option<RoleChange> {
        if read.trigger == Trigger::Advert && self.instance.has_addresses() {
            // An event follows.
            return None;
        }
        let to = self.role_in(snapshot, adverts)?;
        self.update_addresses(snapshot.ok(), &to, recent);
        if self.role.as_ref() == Some(&to) {
            return None;
        }
        self.has_address_change = false;
        let from = self.role.replace(to.clone());
        let trigger = match (&from, &to, read.trigger) {
            (None, ..) => Trigger::Start,
            // When a link is deleted, the kernel reports the loss of its addresses first.
            (_, Role::Fault(fault), Trigger::Address | Trigger::Advert)
                if *fault != Fault::NoNetns =>
            {
                Trigger::Link
            }
            (Some(Role::Fault(_)), _, Trigger::Advert) => Trigger::Link,
            (Some(Role::Fault(_)), ..) | (_, Role::Fault(_), _) => read.trigger,
            _ if !self.instance.has_addresses() => Trigger::Advert,
            _ => read.trigger,
        };
        let (instance, addresses) = (Arc::clone(&self.instance), Arc::clone(&self.addresses));
        let changer = read.changer_of(&self.watched);
        let withheld_since = None;
        Some(RoleChange { instance, from, to, addresses, trigger, changer, withheld_since })
    }

    /// The addresses, if their state has changed since it was last reported.
    pub(super) fn take_address_change(&mut self) -> Option<AddressChange> {
        std::mem::take(&mut self.has_address_change).then(|| AddressChange {
            id: self.instance.id.clone(),
            addresses: Arc::clone(&self.addresses),
        })
    }

    fn update_addresses(
        &mut self,
        snapshot: Option<&Snapshot>,
        role: &Role,
        recent: &mut Arc<[AddressState]>,
    ) {
        let state = |(link, cidr): &(LinkName, IpNet)| match (role, snapshot) {
            // An instance may have a thousand addresses: those of a primary are not searched for again.
            (Role::Primary, _) | (_, None) => AddressState::Held,
            (_, Some(snapshot)) => address_state(snapshot, *link, *cidr),
        };
        let watched: &[_] = if snapshot.is_some() { &self.watched } else { &[] };
        let states = watched.iter().map(state);
        if !self.addresses.iter().copied().eq(states.clone()) {
            if !recent.iter().copied().eq(states.clone()) {
                *recent = states.collect();
            }
            self.addresses = Arc::clone(recent);
            self.has_address_change = true;
        }
    }
}

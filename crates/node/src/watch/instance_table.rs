// SPDX-License-Identifier: Apache-2.0
//! The table of all followed instances, by namespace: it turns the events of many namespaces into role changes.
//!
//! ```text
//!   NetnsEvent ──▶ about a watched link or address? ──▶ pending ──▶ snapshot of the namespace ──▶ role of each instance
//!                                                         ▲  rate limit        │                        │ has changed
//!                                                         └── changed meanwhile ┘                       ▼
//!                                                                                                   RoleChange
//! ```
//!
//! Level-triggered: an event is only a reason to read the namespace, so a missed event does no harm once the
//! namespace is read again. After an overrun of the socket's buffer, every namespace is read. A namespace with
//! many events is read at a limited rate; it stays pending until it was read after its last event, so the
//! final state is always read.
//!
//! The table does not check itself: the audit ([`crate::audit`]) compares the published roles with the kernel,
//! and requests another snapshot where they differ ([`InstanceTable::request_snapshot`]).

mod follow;
mod interest;
mod netns_entry;
mod pending_read;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::role::AddressState;
use vipwatch_core::{InstanceId, Moment, NetnsName, RateLimit, Role, Trigger};
use vipwatch_linux::clock::{self, Stamp};
use vipwatch_linux::inotify::ChangedNames;
use vipwatch_linux::monitor::WatchError;
use vipwatch_linux::netns_query::NetnsRef;
use vipwatch_linux::netns_watcher::{ChangerMark, NetnsEvent, NetnsWatcher};

use self::interest::Interest;
use self::netns_entry::{FollowedInstance, NetnsEntry};
use self::pending_read::PendingRead;
use crate::discovery::InstanceConfig;
use crate::witness::WitnessTable;

/// How many snapshots of one namespace events may trigger: `burst` at once, and `per_second` in the long run. One
/// snapshot takes some tens of microseconds.
pub const SNAPSHOT_RATE: RateLimit = RateLimit { per_second: 100, burst: 100 };

/// A snapshot that takes longer than this, because the kernel had to dump the whole namespace, is followed by
/// a pause of [`SLOW_SNAPSHOT_PAUSE_TIMES`] its duration: one namespace takes at most a fifth of the loop's time.
const SLOW_SNAPSHOT: Duration = Duration::from_millis(5);
const SLOW_SNAPSHOT_PAUSE_TIMES: u32 = 4;

/// How long a difference that the audit has found waits for an event that explains it. The kernel shows a change before it
/// reports the event, and the process that makes the change may be interrupted in between.
const AUDIT_SETTLE: Duration = Duration::from_secs(1);

/// Time between two looks at the adverts of instances without addresses.
const ADVERTS_INTERVAL: Duration = Duration::from_secs(1);

/// `EINVAL`: how the kernel ends the dump of a namespace that was deleted meanwhile.
const EINVAL: i32 = 22;

/// An instance has another role than before.
#[derive(Debug, Clone)]
pub struct RoleChange {
    /// The instance.
    pub instance: Arc<InstanceConfig>,
    /// The role before; `None` for the first role that is read.
    pub from: Option<Role>,
    /// The role now.
    pub to: Role,
    /// The state of each watched address, in the order of [`InstanceConfig::watched`]; empty if the kernel
    /// could not be read.
    pub addresses: Arc<[AddressState]>,
    /// The reason why the role was read.
    pub trigger: Trigger,
    /// The first process that changed the addresses; `None` if it is not known.
    pub changer: Option<ChangerMark>,
    /// When it was read, if it was held back since.
    pub withheld_since: Option<Stamp>,
}

/// The addresses of an instance have another state than before, and its role is the same.
#[derive(Debug, Clone)]
pub struct AddressChange {
    /// The instance.
    pub id: InstanceId,
    /// The state of each watched address, as in [`RoleChange::addresses`].
    pub addresses: Arc<[AddressState]>,
}

/// The name of a namespace; `None` for the node's own.
type Name = Option<NetnsName>;

/// All followed instances and their namespaces.
#[derive(Debug)]
pub struct InstanceTable {
    watcher: NetnsWatcher,
    entries: BTreeMap<Name, NetnsEntry>,
    /// The names of each namespace; it may have several.
    names: BTreeMap<NetnsRef, Vec<Name>>,
    /// How often events were lost.
    overruns: u64,
    /// Whether events were lost, and not all namespaces were read since.
    is_resyncing: bool,
    /// How often all namespaces were read after events were lost.
    resyncs: u64,
    /// The namespaces that must be read, and why: the rate limit delays them, or they changed while they were
    /// read.
    pending: BTreeMap<Name, PendingRead>,
    /// The adverts, which decide the role of an instance without addresses; `None` without a node.
    adverts: Option<Arc<WitnessTable>>,
    /// When they are looked at; `None` without such an instance.
    next_adverts: Option<Moment>,
    /// How many snapshots were taken.
    snapshots: u64,
    /// The namespaces with watched links that have appeared, gone or changed their state since the caller has taken them.
    changed_links: BTreeSet<Name>,
    /// Whether an instance has address changes that the caller has not taken yet.
    has_address_changes: bool,
    /// The address states that were made last. Thousands of instances have the same ones and share them.
    recent_states: Arc<[AddressState]>,
}

impl InstanceTable {
    /// Opens the netlink socket. Needs root, or `CAP_NET_BROADCAST` and `CAP_NET_ADMIN`; without
    /// `CAP_NET_BROADCAST`, each namespace gets a socket of its own.
    pub fn open() -> io::Result<Self> {
        Ok(Self::over(NetnsWatcher::open()?))
    }

    /// An empty table that gets its events from `watcher`.
    pub fn over(watcher: NetnsWatcher) -> Self {
        Self {
            watcher,
            entries: BTreeMap::new(),
            names: BTreeMap::new(),
            overruns: 0,
            is_resyncing: false,
            resyncs: 0,
            pending: BTreeMap::new(),
            adverts: None,
            next_adverts: None,
            snapshots: 0,
            changed_links: BTreeSet::new(),
            has_address_changes: false,
            recent_states: Arc::from([]),
        }
    }

    /// Takes the role of instances without addresses from these adverts.
    pub(crate) fn set_adverts(&mut self, adverts: Arc<WitnessTable>) {
        self.adverts = Some(adverts);
    }

    /// The source of the events.
    pub fn watcher(&self) -> &NetnsWatcher {
        &self.watcher
    }

    /// How often events were lost, so that every namespace was read again.
    pub fn overruns(&self) -> u64 {
        self.overruns
    }

    /// How often all namespaces were read after events were lost.
    pub fn resyncs(&self) -> u64 {
        self.resyncs
    }

    /// How many snapshots of namespaces were taken.
    pub fn snapshots(&self) -> u64 {
        self.snapshots
    }

    /// How many namespaces are followed.
    pub fn namespaces(&self) -> usize {
        self.entries.values().filter(|entry| entry.location.is_ok()).count()
    }

    /// When [`Self::read`] must be called although no event has arrived.
    pub fn due(&self) -> Option<Moment> {
        let due = |(name, read): (&Name, &PendingRead)| {
            let ready = self.entries.get(name)?.ready_at();
            Some(read.settles_at().map_or(ready, |at| at.max(ready)))
        };
        self.pending.iter().filter_map(due).chain(self.next_adverts).min()
    }

    /// The address changes without a role change since the last call. They are newer than every role change
    /// that was returned before.
    pub fn take_address_changes(&mut self) -> Vec<AddressChange> {
        if !std::mem::take(&mut self.has_address_changes) {
            return Vec::new();
        }
        let members = self.entries.values_mut().flat_map(|entry| &mut entry.members);
        members.filter_map(FollowedInstance::take_address_change).collect()
    }

    /// The namespaces with links that have appeared, gone or changed their state since the last call: those of the addresses
    /// and of the adverts.
    pub fn take_changed_links(&mut self) -> BTreeSet<Name> {
        std::mem::take(&mut self.changed_links)
    }

    /// Reads the events that have arrived, reads the namespaces that are due, and returns the role changes.
    pub fn read(&mut self) -> io::Result<Vec<RoleChange>> {
        let mut events = Vec::new();
        self.watcher.read(&mut events)?;
        let mut is_lost = false;
        let mut deleted = Vec::new();
        for event in events {
            match event {
                NetnsEvent::Address(netns, event) => {
                    let read = PendingRead::of_address(event);
                    self.mark_pending(netns, &read, |interest| interest.has_address(event.ip));
                }
                NetnsEvent::Link(netns, event) => {
                    let read = PendingRead::new(Trigger::Link);
                    self.mark_pending(netns, &read, |interest| interest.has_link(event));
                }
                // Ids are reused: the event may be about an older namespace that had the same id. So the
                // namespaces are looked up.
                NetnsEvent::Gone(netns) => {
                    deleted.extend(self.names.get(&netns).into_iter().flatten().cloned());
                }
                NetnsEvent::Lost => is_lost = true,
            }
        }
        self.request_advert_reads();
        let mut changes = Vec::new();
        let located = if is_lost {
            self.locate_namespaces(&ChangedNames::Any)
        } else {
            self.locate_names(&deleted)
        };
        for name in located {
            self.read_namespace(&name, &PendingRead::new(Trigger::Namespace), &mut changes);
        }
        if is_lost {
            self.overruns += 1;
            self.is_resyncing = true;
            let read = || PendingRead::new(Trigger::Resync);
            self.pending = self.entries.keys().map(|name| (name.clone(), read())).collect();
        }
        self.read_pending(&mut changes);
        if is_lost {
            self.fault_missing_namespaces(&mut changes);
        }
        for name in deleted {
            if let Some(entry) = self.entries.get_mut(&name) {
                let read = PendingRead::new(Trigger::Namespace);
                entry.fault_if_missing(&read, &mut self.recent_states, &mut changes);
            }
        }
        Ok(changes)
    }

    /// Has the namespaces of instances without addresses read, if the adverts are due. Nothing reports a new advert.
    fn request_advert_reads(&mut self) {
        let now = clock::now();
        if self.next_adverts.is_none_or(|due| now < due) {
            return;
        }
        self.next_adverts = Some(now + ADVERTS_INTERVAL);
        for (name, _) in self.entries.iter().filter(|(_, entry)| entry.needs_adverts()) {
            let read = || PendingRead::new(Trigger::Advert);
            self.pending.entry(name.clone()).or_insert_with(read);
        }
    }

    /// Has the namespace read by the next [`Self::read`], because the audit found that a role is wrong.
    ///
    /// An event that is queued by then explains the difference: `read` reads the events first, and the trigger
    /// is then that of the event. If there is none, the difference waits for it for a second. A change without an event
    /// has the trigger [`Trigger::Audit`].
    pub fn request_snapshot(&mut self, name: Option<NetnsName>) {
        let read = PendingRead::new(Trigger::Audit);
        self.pending.entry(name).and_modify(|known| known.join(&read)).or_insert(read);
    }

    /// Takes the published roles of the instances in a namespace for the known ones, so that the next read reports those
    /// that are wrong.
    pub fn set_published(
        &mut self,
        name: &Option<NetnsName>,
        published: impl Fn(&InstanceId) -> Option<Role>,
    ) {
        let members = self.entries.get_mut(name).into_iter().flat_map(|entry| &mut entry.members);
        for member in members {
            if let Some(role) = published(&member.instance.id) {
                member.set_published(role);
            }
        }
    }

    /// Whether the namespace is to be read.
    pub fn is_pending(&self, name: &Option<NetnsName>) -> bool {
        self.pending.contains_key(name)
    }

    /// Marks the names of `netns` as pending, if the event concerns one of their instances.
    fn mark_pending(
        &mut self,
        netns: NetnsRef,
        read: &PendingRead,
        concerns: impl Fn(&Interest) -> bool,
    ) {
        for name in self.names.get(&netns).into_iter().flatten() {
            let Some(entry) = self.entries.get_mut(name) else { continue };
            if !concerns(&entry.interest) {
                continue;
            }
            let mut read = read.clone();
            read.resolve_changers(&mut entry.last_ports);
            match self.pending.get_mut(name) {
                Some(known) => known.join(&read),
                None => drop(self.pending.insert(name.clone(), read)),
            }
        }
    }

    /// Reads the pending namespaces, as far as the rate limit allows.
    fn read_pending(&mut self, changes: &mut Vec<RoleChange>) {
        let now = clock::now();
        for (name, read) in std::mem::take(&mut self.pending) {
            if read.settles_at().is_some_and(|at| now < at) {
                self.pending.insert(name, read);
                continue;
            }
            let entry = self.entries.get_mut(&name).filter(|entry| entry.location.is_ok());
            match entry.map(|entry| entry.take_permit(now)) {
                Some(true) => self.read_namespace(&name, &read, changes),
                Some(false) => {
                    self.pending.insert(name, read);
                }
                None => {
                    if let Some(entry) = self.entries.get_mut(&name) {
                        entry.fault_if_missing(&read, &mut self.recent_states, changes);
                    }
                }
            }
        }
        if self.is_resyncing && !self.pending.values().any(|read| read.is_resync) {
            self.is_resyncing = false;
            self.resyncs += 1;
        }
    }

    /// Takes a snapshot of one namespace, and adds the role changes of its instances to `changes`.
    fn read_namespace(&mut self, name: &Name, read: &PendingRead, changes: &mut Vec<RoleChange>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Ok(netns) = entry.location else { return };
        self.snapshots += 1;
        self.pending.remove(name);
        let began = clock::now();
        let snapshot = self.watcher.snapshot_links(netns, entry.interest.links());
        let now = clock::now();
        let took = now.since(began);
        if took > SLOW_SNAPSHOT {
            entry.paused_until = now + took * SLOW_SNAPSHOT_PAUSE_TIMES;
        }
        if entry.interest.set_links(snapshot.as_ref().ok()) {
            self.changed_links.insert(name.clone());
        }
        let snapshot = match snapshot {
            Ok(snapshot) => Ok(snapshot),
            // The namespace was deleted just now, and an event about that follows.
            Err(WatchError::Dump(error)) if error.raw_os_error() == Some(EINVAL) => return,
            // The namespace changed during every attempt: the known roles stay until it can be read.
            Err(WatchError::Incomplete) => {
                self.pending.insert(name.clone(), read.clone());
                return;
            }
            Err(error) => Err(Role::Unknown(error.to_string())),
        };
        let adverts = self.adverts.as_deref();
        let differs = |member: &FollowedInstance| member.is_changed_by(snapshot.as_ref(), adverts);
        if read.must_settle() && entry.members.iter().any(differs) {
            self.pending.insert(name.clone(), read.clone().settling(now + AUDIT_SETTLE));
            return;
        }
        for member in &mut entry.members {
            let recent = &mut self.recent_states;
            changes.extend(member.update(snapshot.as_ref(), adverts, read, recent));
            self.has_address_changes |= member.has_address_change;
        }
    }

    /// Gives the instances of each namespace that cannot be read the role for that.
    fn fault_missing_namespaces(&mut self, changes: &mut Vec<RoleChange>) {
        let read = PendingRead::new(Trigger::Namespace);
        for entry in self.entries.values_mut() {
            entry.fault_if_missing(&read, &mut self.recent_states, changes);
        }
    }
}

vipwatch_linux::as_fd!(InstanceTable.watcher);

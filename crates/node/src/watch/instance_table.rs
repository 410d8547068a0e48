//! Follows many instances, in many namespaces, through one socket.
//!
//! ```text
//!   Heard ──▶ about a watched link or address? ──▶ pending ──▶ snapshot of the namespace ──▶ role of each instance
//!                                                     ▲  rate limit        │                       │ has changed
//!                                                     └── changed meanwhile ┘                      ▼
//!                                                                                               Change
//! ```
//!
//! Level-triggered: an event is a reason to ask, and what is answered is the truth, whatever
//! was missed. An overrun is a reason to ask everywhere. A namespace in which much happens is asked at a
//! limited rate; it stays pending until it was asked after its last event, so the end state is always read.

mod interest;

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use vipwatch_core::role::role_of;
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{Fault, InstanceId, LinkName, Moment, NetnsName, Role};
use vipwatch_core::{RateLimit, RateLimiter};
use vipwatch_linux::clock;
use vipwatch_linux::monitor::WatchError;
use vipwatch_linux::netns::{Netns, NetnsError, NetnsId};
use vipwatch_linux::netns_query::NetnsRef;
use vipwatch_linux::netns_watcher::{NetnsEvent, NetnsWatcher};

use self::interest::Interest;
use crate::discovery::InstanceConfig;

/// Snapshots of one namespace that events can cause: some at once, and so many per second in the long run. One
/// takes some tens of microseconds.
pub const SNAPSHOT_RATE: RateLimit = RateLimit { per_second: 100, burst: 100 };

/// A snapshot that takes longer than this, because the namespace had to be asked for everything, is followed by
/// a pause of [`SLOW_SNAPSHOT_PAUSE_TIMES`] as long: one namespace takes a fifth of the loop's time at most.
const SLOW_SNAPSHOT: Duration = Duration::from_millis(5);
const SLOW_SNAPSHOT_PAUSE_TIMES: u32 = 4;

/// What made somebody ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// It was not known before.
    Start,
    /// An address came, went, or changed.
    Address,
    /// A link came, went, or changed.
    Link,
    /// A namespace came or went.
    Namespace,
    /// Events were lost.
    Resync,
    /// Its configuration has changed.
    Config,
    /// Somebody looked, and we had been wrong: a defect, of ours or of the kernel's.
    Audit,
}

impl Cause {
    /// One word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Address => "address",
            Self::Link => "link",
            Self::Namespace => "namespace",
            Self::Resync => "resync",
            Self::Config => "config",
            Self::Audit => "audit",
        }
    }
}

/// An instance stands elsewhere than before.
#[derive(Debug, Clone)]
pub struct RoleChange {
    /// The instance.
    pub found: Arc<InstanceConfig>,
    /// Where it stood; `None` if that was not known.
    pub from: Option<Role>,
    /// Where it stands.
    pub to: Role,
    /// What told.
    pub cause: Cause,
}

/// One followed instance.
#[derive(Debug)]
struct FollowedInstance {
    found: Arc<InstanceConfig>,
    watched: Vec<(LinkName, IpNet)>,
    role: Option<Role>,
}

/// A namespace, and who lives there.
#[derive(Debug)]
struct NetnsEntry {
    /// Where it is, or why it cannot be had.
    place: Result<NetnsRef, Role>,
    members: Vec<FollowedInstance>,
    /// The events that concern the members.
    interest: Interest,
    /// The snapshots that are left of [`SNAPSHOT_RATE`].
    allowance: RateLimiter,
    /// The end of the pause after a slow snapshot.
    rests_until: Moment,
}

impl NetnsEntry {
    /// When events may cause the next snapshot.
    fn ready_at(&self) -> Moment {
        self.allowance.ready_at().max(self.rests_until)
    }

    fn new() -> Self {
        Self {
            place: Err(Role::Fault(Fault::NoNetns)),
            // Most are home to one.
            members: Vec::with_capacity(1),
            interest: Interest::default(),
            allowance: RateLimiter::new(SNAPSHOT_RATE),
            rests_until: Moment::new(Duration::ZERO),
        }
    }
}

/// What a namespace is called; `None` is the node's own.
type Name = Option<NetnsName>;

/// Which namespaces to look for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetnsSearch {
    /// Those that are not known yet: no name has come or gone.
    Unknown,
    /// All: a name may stand for another namespace than before.
    All,
}

/// All that is followed.
#[derive(Debug)]
pub struct InstanceTable {
    watcher: NetnsWatcher,
    entries: BTreeMap<Name, NetnsEntry>,
    /// Which homes are where; a namespace may have several names.
    by_place: BTreeMap<NetnsRef, Vec<Name>>,
    /// Where the audit goes on.
    audited: Option<Name>,
    /// How often events were lost.
    overruns: u64,
    /// Namespaces that must be asked, and why: the rate limit delays them, or they changed while they were
    /// asked.
    pending: BTreeMap<Name, Cause>,
    /// Snapshots that were taken, audits aside.
    snapshots: u64,
}

impl InstanceTable {
    /// Follows nobody yet. Takes root, or `CAP_NET_BROADCAST` and `CAP_NET_ADMIN`; without the
    /// former it listens in each namespace.
    pub fn open() -> io::Result<Self> {
        Ok(Self::over(NetnsWatcher::open()?))
    }

    /// Follows nobody yet, over this fleet.
    pub fn over(watcher: NetnsWatcher) -> Self {
        Self {
            watcher,
            entries: BTreeMap::new(),
            by_place: BTreeMap::new(),
            audited: None,
            overruns: 0,
            pending: BTreeMap::new(),
            snapshots: 0,
        }
    }

    /// What listens.
    pub fn watcher(&self) -> &NetnsWatcher {
        &self.watcher
    }

    /// How often events were lost, and everything was asked for again.
    pub fn overruns(&self) -> u64 {
        self.overruns
    }

    /// How often a namespace was asked for its links and addresses, audits aside.
    pub fn snapshots(&self) -> u64 {
        self.snapshots
    }

    /// When [`Self::read`] has something to do, although no event may come.
    pub fn due(&self) -> Option<Moment> {
        let entries = self.pending.keys().filter_map(|name| self.entries.get(name));
        entries.map(NetnsEntry::ready_at).min()
    }

    /// How many namespaces are listened to.
    pub fn namespaces(&self) -> usize {
        self.entries.values().filter(|entry| entry.place.is_ok()).count()
    }

    /// Follows `instances` from now on, and no others. Those that were followed before and have
    /// not changed are not touched.
    pub fn follow(
        &mut self,
        instances: Vec<Arc<InstanceConfig>>,
        reach: NetnsSearch,
    ) -> Vec<RoleChange> {
        let before = std::mem::take(&mut self.entries);
        let mut places: BTreeMap<Name, NetnsEntry> = BTreeMap::new();
        let mut known: BTreeMap<InstanceId, FollowedInstance> = BTreeMap::new();
        for (name, mut entry) in before {
            let members = std::mem::take(&mut entry.members).into_iter();
            known.extend(members.map(|member| (member.found.id.clone(), member)));
            places.insert(name, entry);
        }
        let mut asked: BTreeMap<Name, Cause> = BTreeMap::new();
        for found in instances {
            let name = found.netns.clone();
            let entry = self.entries.entry(name.clone());
            let entry =
                entry.or_insert_with(|| places.remove(&name).unwrap_or_else(NetnsEntry::new));
            let known = known.remove(&found.id);
            let member = match known {
                Some(known) if Arc::ptr_eq(&known.found, &found) => known,
                known => {
                    let watched = found.watched();
                    let is_same = |known: &FollowedInstance| {
                        known.found.netns == found.netns && known.watched == watched
                    };
                    if !known.as_ref().is_some_and(is_same) {
                        asked.insert(name, Cause::Config);
                    }
                    FollowedInstance { found, watched, role: known.and_then(|known| known.role) }
                }
            };
            entry.members.push(member);
        }
        for entry in self.entries.values_mut() {
            entry.interest.set_watched(entry.members.iter().flat_map(|member| &member.watched));
        }
        let entries = &self.entries;
        self.pending.retain(|name, _| entries.contains_key(name));
        for name in self.find_namespaces(reach) {
            asked.entry(name).or_insert(Cause::Namespace);
        }
        let mut changes = Vec::new();
        for (name, cause) in asked {
            self.snapshot(&name, cause, &mut changes);
        }
        self.fault_missing_namespaces(&mut changes);
        changes
    }

    /// Looks which namespaces there are now; tells which are new.
    ///
    /// Neither name nor identity prove that a namespace is the one we knew: both are used
    /// again. That the kernel speaks of it by the same id does.
    fn find_namespaces(&mut self, reach: NetnsSearch) -> Vec<Name> {
        let mut new = Vec::new();
        for (name, entry) in &mut self.entries {
            if reach == NetnsSearch::Unknown && entry.place.is_ok() {
                continue;
            }
            let known = entry.place.as_ref().ok().copied();
            entry.place = find_home(&mut self.watcher, name.as_ref(), known);
            if entry.place.as_ref().is_ok_and(|place| known != Some(*place)) {
                new.push(name.clone());
            }
        }
        self.by_place.clear();
        for (name, entry) in &self.entries {
            if let Ok(place) = entry.place {
                let names = self.by_place.entry(place).or_insert_with(|| Vec::with_capacity(1));
                names.push(name.clone());
            }
        }
        let places = &self.by_place;
        self.watcher.keep_only(|place| places.contains_key(&place));
        new
    }

    /// Whether a namespace has a name and is not there yet: it is worth looking again soon.
    pub fn is_waiting(&self) -> bool {
        let has_name = |name: &NetnsName| NetnsId::of_name(name).is_ok_and(|id| id.is_some());
        let mut homeless = self.entries.iter().filter(|(_, entry)| entry.place.is_err());
        homeless.any(|(name, _)| name.as_ref().is_some_and(has_name))
    }

    /// Takes what was heard, asks the namespaces that are due, and tells what has changed.
    pub fn read(&mut self) -> io::Result<Vec<RoleChange>> {
        let mut heard = Vec::new();
        self.watcher.read(&mut heard)?;
        let mut is_lost = false;
        let mut is_gone = false;
        for heard in heard {
            match heard {
                NetnsEvent::Address(place, ip) => {
                    self.note(place, Cause::Address, |interest| interest.has_address(ip));
                }
                NetnsEvent::Link(place, event) => {
                    self.note(place, Cause::Link, |interest| interest.has_link(event));
                }
                // Ids are used again: this may be the end of another namespace, which had the
                // id before. So it is looked for.
                NetnsEvent::Gone(place) => is_gone |= self.by_place.contains_key(&place),
                NetnsEvent::Lost => is_lost = true,
            }
        }
        let mut changes = Vec::new();
        if is_gone || is_lost {
            for name in self.find_namespaces(NetnsSearch::All) {
                self.snapshot(&name, Cause::Namespace, &mut changes);
            }
        }
        if is_lost {
            self.overruns += 1;
            self.pending = self.entries.keys().map(|name| (name.clone(), Cause::Resync)).collect();
        }
        self.survey_pending(&mut changes);
        if is_gone || is_lost {
            self.fault_missing_namespaces(&mut changes);
        }
        Ok(changes)
    }

    /// Notes that the namespaces at `place` must be asked, if the event concerns them.
    fn note(&mut self, place: NetnsRef, cause: Cause, concerns: impl Fn(&Interest) -> bool) {
        for name in self.by_place.get(&place).into_iter().flatten() {
            if self.entries.get(name).is_some_and(|entry| concerns(&entry.interest)) {
                // An address says more than the link that came with it.
                let known = self.pending.entry(name.clone()).or_insert(cause);
                *known = (*known).min(cause);
            }
        }
    }

    /// Asks the namespaces that are pending, as far as the rate limit allows.
    fn survey_pending(&mut self, changes: &mut Vec<RoleChange>) {
        let now = clock::now();
        for (name, cause) in std::mem::take(&mut self.pending) {
            let entry = self.entries.get_mut(&name).filter(|entry| entry.place.is_ok());
            let take =
                |entry: &mut NetnsEntry| entry.rests_until <= now && entry.allowance.take(now);
            match entry.map(take) {
                Some(true) => self.snapshot(&name, cause, changes),
                Some(false) => {
                    self.pending.insert(name, cause);
                }
                None => {}
            }
        }
    }

    /// Looks into the next `count` namespaces, shows what is there to `examine`, and tells of
    /// whom we had been wrong.
    pub fn audit(
        &mut self,
        count: usize,
        mut examine: impl FnMut(&InstanceConfig, &Snapshot),
    ) -> Vec<RoleChange> {
        let mut changes = Vec::new();
        for name in self.next_audited(count) {
            let Some(place) = self.entries.get(&name).and_then(|entry| entry.place.clone().ok())
            else {
                continue;
            };
            let Ok(mut snapshot) = self.watcher.snapshot(place) else { continue };
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            let is_wrong = |member: &FollowedInstance, snapshot: &Snapshot| {
                member.role.as_ref() != Some(&role_of(&member.watched, snapshot))
            };
            // One disagreement is repeated: a dump can be ahead of an event that is not queued yet.
            if entry.members.iter().any(|member| is_wrong(member, &snapshot)) {
                match self.watcher.snapshot(place) {
                    Ok(again) => snapshot = again,
                    Err(_) => continue,
                }
            }
            for member in &entry.members {
                examine(&member.found, &snapshot);
            }
            // ORDER: asked after the survey. An event that is queued by now may explain a difference. So the
            // namespace is asked once more when the queue was read; if no event was about it, it is the audit
            // that has found the difference.
            if self.watcher.is_ready() || self.pending.contains_key(&name) {
                if entry.members.iter().any(|member| is_wrong(member, &snapshot)) {
                    self.pending.entry(name).or_insert(Cause::Audit);
                }
                continue;
            }
            for member in &mut entry.members {
                member.stand(role_of(&member.watched, &snapshot), Cause::Audit, &mut changes);
            }
        }
        changes
    }

    /// The `count` namespaces behind the one that was last looked into, round and round.
    fn next_audited(&mut self, count: usize) -> Vec<Name> {
        let behind = self.audited.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.entries.range((behind, Bound::Unbounded)).map(|(name, _)| name.clone());
        let names: Vec<Name> = names.take(count).collect();
        let is_end = names.len() < count;
        self.audited = names.last().filter(|_| !is_end).cloned();
        names
    }

    /// Asks one namespace, and tells whose standing is another than before.
    fn snapshot(&mut self, name: &Name, cause: Cause, changes: &mut Vec<RoleChange>) {
        let Some(entry) = self.entries.get_mut(name) else { return };
        let Ok(place) = entry.place else { return };
        self.snapshots += 1;
        self.pending.remove(name);
        let began = clock::now();
        let snapshot = self.watcher.snapshot_links(place, entry.interest.links());
        let now = clock::now();
        let took = now.since(began);
        if took > SLOW_SNAPSHOT {
            entry.rests_until = now + took * SLOW_SNAPSHOT_PAUSE_TIMES;
        }
        entry.interest.set_links(snapshot.as_ref().ok());
        let snapshot = match snapshot {
            Ok(snapshot) => Ok(snapshot),
            // It has gone while we were about to ask, and the kernel will say so.
            Err(WatchError::Dump(error)) if error.raw_os_error() == Some(EINVAL) => return,
            // What was known of it stands until it can be asked in peace.
            Err(WatchError::Incomplete) => {
                self.pending.insert(name.clone(), cause);
                return;
            }
            Err(error) => Err(Role::Unknown(error.to_string())),
        };
        for member in &mut entry.members {
            let to = match &snapshot {
                Ok(snapshot) => role_of(&member.watched, snapshot),
                Err(why) => why.clone(),
            };
            member.stand(to, cause, changes);
        }
    }

    /// Says of everybody without a namespace that there is none.
    fn fault_missing_namespaces(&mut self, changes: &mut Vec<RoleChange>) {
        for entry in self.entries.values_mut() {
            let Err(why) = &entry.place else { continue };
            for member in &mut entry.members {
                member.stand(why.clone(), Cause::Namespace, changes);
            }
        }
    }
}

fn find_home(
    watcher: &mut NetnsWatcher,
    name: Option<&NetnsName>,
    known: Option<NetnsRef>,
) -> Result<NetnsRef, Role> {
    let Some(name) = name else { return Ok(NetnsRef::Own) };
    let netns = Netns::open(name).map_err(|error| match error {
        // A name that stands for nothing is about to go, or to come.
        NetnsError::Missing(_) | NetnsError::NotANamespace(_) => Role::Fault(Fault::NoNetns),
        error => Role::Unknown(error.to_string()),
    })?;
    match known {
        Some(place) if watcher.refers_to(place, &netns) => Ok(place),
        _ => watcher.watch(&netns).map_err(|error| Role::Unknown(error.to_string())),
    }
}

/// What a dump of a namespace that has gone ends with.
const EINVAL: i32 = 22;

impl FollowedInstance {
    fn stand(&mut self, to: Role, cause: Cause, changes: &mut Vec<RoleChange>) {
        if self.role.as_ref() == Some(&to) {
            return;
        }
        let from = self.role.replace(to.clone());
        let cause = match (&from, &to, cause) {
            (None, ..) => Cause::Start,
            // A link takes its addresses with it, and they are the first to be heard of.
            (_, Role::Fault(fault), Cause::Address) if *fault != Fault::NoNetns => Cause::Link,
            _ => cause,
        };
        changes.push(RoleChange { found: Arc::clone(&self.found), from, to, cause });
    }
}

impl AsFd for InstanceTable {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watcher.as_fd()
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The audit: compares what the kernel, the published state, the state files, the processes and the monitors
//! say about an instance, and publishes the findings.
//!
//! ```text
//!   trigger: after a change ─┐                          ┌─▶ published state ─▶ show, doctor
//!   trigger: periodically ───┼─▶ audit of a namespace ──┼─▶ log (only from the worker)
//!   doctor, show --direct ───┘                          └─▶ snapshot request ─▶ main loop, if a role is wrong
//! ```
//!
//! There is one audit with two triggers, and both run on the thread of the [`AuditWorker`] ([`worker`],
//! [`schedule`]). [`facts`] gathers the facts, and [`vipwatch_core::audit`] decides what is wrong. The audit
//! corrects nothing itself: if a published role differs from the kernel, it requests a snapshot of the
//! namespace from the main loop, which then publishes the change with the trigger `audit`.

mod adverts;
mod ages;
mod facts;
mod finding_log;
mod open_findings;
mod routing;
mod schedule;
mod sync_groups;
mod undecided;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::Timespec;
use vipwatch_api::{FindingItem, FindingState};
use vipwatch_core::audit::{AuditFacts, Finding, SyncState};
use vipwatch_core::finding::FindingSettle;
use vipwatch_core::role::AddressState;
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{FindingKind, InstanceId, NetnsName, Role};
use vipwatch_linux::clock;
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_linux::wake_queue::WakeQueue;

pub(crate) use self::adverts::{ask as ask_adverts, facts as advert_facts};
use self::ages::FactTimes;
use self::routing::RoutingReading;
use self::sync_groups::{DatedSyncGroup, SyncGroupIndex};
pub use self::worker::AuditRequests;
pub(crate) use self::worker::AuditWorker;
use crate::discovery::InstanceConfig;
use crate::processes::{ProcessView, keepalived_facts};
use crate::receiver::ReceiverHandle;
use crate::state::{InstanceEntry, StateStore};
use crate::watch::look::netns_snapshot;

/// Time that state files, agents and monitors have to follow a role change. A younger difference is normal.
pub const GRACE: Duration = Duration::from_secs(5);

/// Delay before a namespace is read again because a published role differs from the kernel: the event may
/// still be on its way to the main loop.
const SECOND_SNAPSHOT_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The names of the namespaces that the main loop must read again; `None` is the node's own.
///
/// BOUND: one entry for each audited namespace with a wrong role. The main loop empties the queue in every turn.
pub type SnapshotRequests = WakeQueue<Option<NetnsName>>;

/// A finding about an instance or about the node that has appeared, changed or gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FindingChange {
    /// The finding.
    pub finding: FindingItem,
    /// Whether it has appeared, changed or gone.
    pub state: FindingState,
}

/// The findings that have appeared, changed or gone, for the main loop.
///
/// BOUND: one entry for each finding that opens, changes or closes; findings are compared once after each audit. The main loop empties the queue in every turn.
pub type FindingChanges = WakeQueue<FindingChange>;

/// A finding and its age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatedFinding {
    /// What is wrong.
    pub finding: Finding,
    /// When the fact began, or else when an audit found it for the first time. The Unix epoch stands for an unknown time.
    pub since: SystemTime,
}

impl DatedFinding {
    /// Whether the finding and the role of its instance are younger than [`GRACE`].
    ///
    /// A finding about processes does not follow a change of role. It is young until an audit has found it when the
    /// processes had been like that for [`GRACE`]; a restart is over by then. A crash loop is never young: its processes
    /// do not stay as they are. A finding that needs a second audit is young until that.
    pub(crate) fn is_young(&self, entry: &InstanceEntry) -> bool {
        let is_after_transition = || {
            // Both times of the wall clock are from before it may have been set.
            let before = entry.since.duration_since(self.since).unwrap_or_default();
            clock::now().since(entry.role_since) + before < GRACE
        };
        let is_unconfirmed = || {
            let audited = entry.audit.as_ref().map_or_else(SystemTime::now, |audit| audit.at);
            // The fact may have begun while the audit read it; a clock that was set is no reason to wait.
            let distance =
                audited.duration_since(self.since).unwrap_or_else(|error| error.duration());
            distance < GRACE
        };
        // The follower may hold the change of the role back, and the finding follows from it.
        let is_role_wrong = || {
            let audited = entry.audit.iter().flat_map(|audit| &audit.findings);
            audited
                .map(|dated| dated.finding.kind)
                .any(|kind| kind == FindingKind::PublishedRoleWrong)
        };
        match self.finding.kind.settle() {
            FindingSettle::None => false,
            FindingSettle::Processes => is_unconfirmed(),
            // A command without a node audits once: nothing confirms its findings.
            FindingSettle::SecondAudit if entry.seq != 0 => is_unconfirmed(),
            _ => is_after_transition() || is_role_wrong() && is_unconfirmed(),
        }
    }
}

/// The result of the last audit of one instance.
#[derive(Debug)]
pub struct AuditResult {
    /// When the kernel was read.
    pub at: SystemTime,
    /// The same on the monotonic clock: decides which of two results is newer.
    taken: Instant,
    /// The sequence number of the instance's last transition at that time.
    seq: i64,
    /// The configuration of the instance at that time.
    instance: Arc<InstanceConfig>,
    /// The state of each address, in the order of the configuration; empty if the kernel could not be read.
    /// Unlike the instance table, the audit reads all links of the namespace.
    pub addresses: Box<[AddressState]>,
    /// The findings.
    pub findings: Box<[DatedFinding]>,
    /// Roles of the instance's sync group differ, but not for long enough.
    is_unsettled: bool,
}

impl AuditResult {
    /// Whether the instance has neither changed its role nor its configuration since the audit.
    pub(crate) fn is_current(&self, entry: &InstanceEntry) -> bool {
        self.seq == entry.seq && Arc::ptr_eq(&self.instance, &entry.instance)
    }
}

/// Audits instances, and publishes the results in the [`StateStore`].
#[derive(Debug)]
pub struct Audit {
    store: Arc<StateStore>,
    /// The reports of the monitors.
    receiver_handle: ReceiverHandle,
    /// `None` for a command that runs without a node.
    snapshot_requests: Option<SnapshotRequests>,
    /// When the findings began that the last run has left open.
    /// `None` before they are read.
    remembered: Mutex<Option<RememberedTimes>>,
}

/// When a finding of this kind about this instance began.
pub(crate) type RememberedTimes = BTreeMap<(InstanceId, FindingKind), SystemTime>;

impl Audit {
    /// An audit of the instances in `store`. Wrong roles are put into `snapshot_requests`.
    pub fn new(
        store: Arc<StateStore>,
        receiver_handle: ReceiverHandle,
        snapshot_requests: Option<SnapshotRequests>,
    ) -> Self {
        Self { store, receiver_handle, snapshot_requests, remembered: Mutex::default() }
    }

    /// Has the first audit of each instance take the age of a finding from the last run, if `read` has not been called yet.
    fn remember(&self, read: impl FnOnce() -> RememberedTimes) {
        if let Ok(mut remembered) = self.remembered.lock() {
            remembered.get_or_insert_with(read);
        }
    }

    fn take_remembered(&self, id: &InstanceId, kind: FindingKind) -> Option<SystemTime> {
        let mut remembered = self.remembered.lock().ok()?;
        let times = remembered.as_mut().filter(|times| !times.is_empty())?;
        times.remove(&(id.clone(), kind))
    }

    /// Audits these instances; each namespace is read once. Calls `progress` before each namespace. Returns
    /// the number of namespaces.
    pub fn run(
        &self,
        ids: impl IntoIterator<Item = InstanceId>,
        query: &mut Option<NetnsQuery>,
        mut progress: impl FnMut(),
    ) -> usize {
        let ids: BTreeSet<InstanceId> = ids.into_iter().collect();
        let groups = SyncGroupIndex::of(&self.store, &ids);
        let mut by_netns: BTreeMap<Option<NetnsName>, Vec<InstanceId>> = BTreeMap::new();
        for id in ids {
            if let Some(entry) = self.store.entry(&id) {
                by_netns.entry(entry.instance.netns.clone()).or_default().push(id);
            }
        }
        for (netns, ids) in &by_netns {
            progress();
            self.audit_namespace(netns.as_ref(), ids, &groups, query);
        }
        by_netns.len()
    }

    /// Adds, for each of `ids`, the instance that stands for its sync group.
    pub(crate) fn add_group_representatives(&self, ids: &mut BTreeSet<InstanceId>) {
        SyncGroupIndex::of(&self.store, ids).add_representatives(&self.store, ids);
    }

    /// Whether an instance must be audited again soon: a finding needs a second audit, or is about processes that have just
    /// changed, or roles change.
    pub(crate) fn is_unconfirmed(&self, id: &InstanceId) -> bool {
        let Some(entry) = self.store.entry(id) else { return false };
        let is_unconfirmed = |dated: &DatedFinding| {
            let settle = dated.finding.kind.settle();
            matches!(settle, FindingSettle::SecondAudit | FindingSettle::Processes)
                && dated.is_young(&entry)
        };
        entry
            .current_audit()
            .is_some_and(|audit| audit.is_unsettled || audit.findings.iter().any(is_unconfirmed))
    }

    fn audit_namespace(
        &self,
        netns: Option<&NetnsName>,
        ids: &[InstanceId],
        groups: &SyncGroupIndex,
        query: &mut Option<NetnsQuery>,
    ) {
        let mut comparison = self.compare(netns, ids, groups, query);
        if comparison.is_role_wrong {
            let _ = rustix::event::poll(&mut [], Some(&SECOND_SNAPSHOT_DELAY));
            comparison = self.compare(netns, ids, groups, query);
        }
        for result in comparison.results {
            let id = result.instance.id.clone();
            self.store.set_audit(&id, result, |entry, result| {
                // A result about an earlier role is dropped: another audit follows each change. So is a result that
                // a client's audit took before the published one.
                let is_newer = entry.audit.as_ref().is_none_or(|known| known.taken <= result.taken);
                entry.seq == result.seq && is_newer
            });
        }
        if let Some(requests) = &self.snapshot_requests
            && comparison.is_role_wrong
        {
            requests.push(netns.cloned());
        }
    }

    /// Reads the namespace once, and compares it with everything else that is known of its instances.
    fn compare(
        &self,
        netns: Option<&NetnsName>,
        ids: &[InstanceId],
        groups: &SyncGroupIndex,
        query: &mut Option<NetnsQuery>,
    ) -> Comparison {
        let snapshot = netns_snapshot(query, netns);
        // ORDER: routes are read after the addresses: keepalived adds them in this order.
        let routing = RoutingReading::take(netns, ids.iter().filter_map(|id| self.store.entry(id)));
        let processes = self.store.processes();
        let (at, taken) = (SystemTime::now(), Instant::now());
        let reading = NetnsReading { snapshot, routing, processes, at, taken };
        let mut comparison = Comparison::default();
        for id in ids {
            // ORDER: the published role is read after the kernel. The other way round, a change between the
            // two would look like a missed one.
            let Some(entry) = self.store.entry(id) else { continue };
            // The instance has moved to another namespace, and is audited again because of that.
            if entry.instance.netns.as_ref() == netns {
                self.compare_instance(&entry, &reading, groups, &mut comparison);
            }
        }
        comparison
    }

    fn compare_instance(
        &self,
        entry: &InstanceEntry,
        reading: &NetnsReading,
        groups: &SyncGroupIndex,
        comparison: &mut Comparison,
    ) {
        let NetnsReading { snapshot, routing, processes, at, taken } = reading;
        let mut facts = facts::gather(entry, snapshot, &self.receiver_handle);
        facts.routing = routing.missing(&entry.instance, snapshot);
        facts.duplicates = self.store.duplicates.of(&entry.instance.id);
        let pending = self.store.pending_edit(&entry.instance.file);
        let keepalived =
            processes.as_ref().and_then(|view| keepalived_facts(view, &entry.instance, pending));
        let group = groups.facts(&self.store, &entry.instance);
        let known = KnownTimes {
            processes: keepalived
                .as_ref()
                .map(|dated| dated.since.map_or(UNIX_EPOCH, |since| since.wall)),
            sync_group: group.as_ref().and_then(|dated| dated.since),
        };
        facts.keepalived_age =
            keepalived.as_ref().and_then(|dated| Some(clock::now().since(dated.since?.moment)));
        facts.keepalived = keepalived.map(|dated| dated.facts);
        facts.adverts =
            adverts::gather(&self.store.witness, entry, &facts.role, processes.as_deref());
        let is_changing = |group: &DatedSyncGroup| group.facts.state() == SyncState::Changing;
        let is_unsettled = group.as_ref().is_some_and(is_changing);
        facts.sync_group = group.map(|dated| dated.facts);
        comparison.is_role_wrong |= facts.published.is_some();
        let mut findings = self.dated_findings(entry, &facts, known, *at);
        let kept = undecided::kept(&self.store, entry, &findings);
        let is_unsettled = is_unsettled || !kept.is_empty();
        findings.extend(kept);
        comparison.results.push(AuditResult {
            at: *at,
            taken: *taken,
            seq: entry.seq,
            instance: Arc::clone(&entry.instance),
            addresses: address_states(&entry.instance, snapshot),
            findings: findings.into(),
            is_unsettled,
        });
    }

    /// The findings about an instance, with their ages.
    fn dated_findings(
        &self,
        entry: &InstanceEntry,
        facts: &AuditFacts,
        known: KnownTimes,
        at: SystemTime,
    ) -> Vec<DatedFinding> {
        let (witness, receiver_handle) = (&self.store.witness, &self.receiver_handle);
        let times = FactTimes { entry, facts, known, witness, receiver_handle };
        let fact_since = |kind| {
            let is_first = entry.audit.is_none();
            let remembered = is_first.then(|| self.take_remembered(&entry.instance.id, kind));
            times.since_with(kind, remembered.flatten())
        };
        dated(facts.findings(), entry.audit.as_deref(), at, fact_since)
    }
}

/// The readings for the audit of one namespace.
#[derive(Debug)]
struct NetnsReading {
    /// The links and addresses, or the role for a namespace that cannot be read.
    snapshot: Result<Snapshot, Role>,
    routing: RoutingReading,
    /// `None` if processes are not read.
    processes: Option<Arc<ProcessView>>,
    at: SystemTime,
    taken: Instant,
}

/// The comparison of one namespace.
#[derive(Debug, Default)]
struct Comparison {
    /// One for each instance.
    results: Vec<AuditResult>,
    /// Whether a published role differs from the kernel.
    is_role_wrong: bool,
}

fn address_states(
    instance: &InstanceConfig,
    snapshot: &Result<Snapshot, Role>,
) -> Box<[AddressState]> {
    let Ok(snapshot) = snapshot else { return Box::default() };
    let addresses = instance.vrrp.addresses.iter();
    let targets: Vec<_> = addresses.map(|address| (address.link, address.cidr)).collect();
    facts::address_states(snapshot, &targets).into()
}

/// Since when processes and roles are as they are.
#[derive(Debug, Clone, Copy, Default)]
struct KnownTimes {
    /// The processes of keepalived; `None` if they are not examined. The Unix epoch stands for an unknown time.
    processes: Option<SystemTime>,
    /// The roles of the members of the sync group; `None` if that is not known.
    sync_group: Option<SystemTime>,
}

/// Adds to each finding the time at which its fact began, or else the time at which an audit found it for the first time.
fn dated(
    findings: Vec<Finding>,
    last: Option<&AuditResult>,
    now: SystemTime,
    fact_since: impl Fn(FindingKind) -> Option<SystemTime>,
) -> Vec<DatedFinding> {
    let known = last.map(|last| &*last.findings).unwrap_or_default();
    let since = |finding: &Finding| {
        let known = known.iter().find(|known| known.finding.kind == finding.kind);
        known.map_or_else(|| fact_since(finding.kind).unwrap_or(now), |known| known.since)
    };
    let dated = findings.into_iter().map(|finding| {
        let since = since(&finding);
        DatedFinding { finding, since }
    });
    dated.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_keeps_its_age_until_it_is_gone() {
        let early = SystemTime::UNIX_EPOCH;
        let late = early + Duration::from_mins(1);
        let findings = || AuditFacts::new(Role::Partial { held: 1, total: 2 }).findings();
        let first = dated(findings(), None, early, |_| None);
        assert_eq!(first.len(), 1);
        let mut last = AuditResult {
            at: early,
            taken: Instant::now(),
            seq: 1,
            instance: Arc::new(crate::discovery::example()),
            addresses: Box::default(),
            findings: first.into(),
            is_unsettled: false,
        };
        assert_eq!(dated(findings(), Some(&last), late, |_| None)[0].since, early);
        last.findings = Box::default();
        assert_eq!(dated(findings(), Some(&last), late, |_| None)[0].since, late);
        let fact = early + Duration::from_secs(5);
        assert_eq!(dated(findings(), Some(&last), late, |_| Some(fact))[0].since, fact);
    }

    #[test]
    fn a_clock_that_was_set_does_not_end_the_grace_after_a_transition() {
        let instance = Arc::new(crate::discovery::example());
        let mut entry = InstanceEntry::new(instance, Role::Backup, [].into());
        let mut is_young = |clock: SystemTime, role_age, finding_age| {
            let [role_age, finding_age] = [role_age, finding_age].map(Duration::from_secs);
            (entry.since, entry.role_since) = (clock - role_age, clock::now().before(role_age));
            let finding = Finding::new(FindingKind::MonitorGone, String::new());
            DatedFinding { finding, since: clock - finding_age }.is_young(&entry)
        };
        let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
        for clock in [now, now - hour, now + hour] {
            assert!(is_young(clock, 1, 1) && is_young(clock, 1, 3) && is_young(clock, 3, 1));
            assert!(!is_young(clock, 1, 6) && !is_young(clock, 6, 1));
        }
    }

    #[test]
    fn a_finding_that_follows_from_a_withheld_change_is_young() {
        let (instance, now) = (Arc::new(crate::discovery::example()), SystemTime::now());
        let mut entry = InstanceEntry::new(Arc::clone(&instance), Role::Primary, [].into());
        (entry.since, entry.role_since) = (UNIX_EPOCH, clock::now().before(GRACE * 9));
        let mut is_young = |kinds: &[FindingKind], age| {
            let finding = |kind: &FindingKind| Finding::new(*kind, String::new());
            let dated = |kind| DatedFinding { finding: finding(kind), since: now - age };
            let audit = AuditResult {
                at: now,
                taken: Instant::now(),
                seq: entry.seq,
                instance: Arc::clone(&instance),
                addresses: Box::default(),
                findings: kinds.iter().map(dated).collect(),
                is_unsettled: false,
            };
            let first = audit.findings[0].clone();
            entry.audit = Some(Arc::new(audit));
            first.is_young(&entry)
        };
        let kinds = [FindingKind::PartlyHeld, FindingKind::PublishedRoleWrong];
        assert!(is_young(&kinds, Duration::ZERO), "the node has not published the role yet");
        assert!(!is_young(&kinds, GRACE), "nobody will publish it");
        assert!(!is_young(&kinds[..1], Duration::ZERO), "the role is old");
    }

    #[test]
    fn a_crash_loop_needs_no_settle_time_and_a_missing_child_is_audited_again_after_it() {
        let store = Arc::new(StateStore::default());
        let audit = Audit::new(Arc::clone(&store), ReceiverHandle::default(), None);
        let entry =
            InstanceEntry::new(Arc::new(crate::discovery::example()), Role::Backup, [].into());
        let id = entry.instance.id.clone();
        let (seq, instance) = (entry.seq, Arc::clone(&entry.instance));
        store.insert(entry);
        let young = |kind| {
            let finding = Finding::new(kind, String::new());
            let result = AuditResult {
                at: SystemTime::now(),
                taken: Instant::now(),
                seq,
                instance: Arc::clone(&instance),
                addresses: Box::default(),
                findings: [DatedFinding { finding, since: SystemTime::now() }].into(),
                is_unsettled: false,
            };
            store.set_audit(&id, result, |_, _| true);
            let entry = store.entry(&id).unwrap();
            let found = &entry.current_audit().unwrap().findings[0];
            (found.is_young(&entry), audit.is_unconfirmed(&id))
        };
        assert_eq!(young(FindingKind::KeepalivedCrashLoop), (false, false));
        assert_eq!(young(FindingKind::KeepalivedVrrpChildMissing), (true, true));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The published state: the role of every instance, for readers; and the events, for subscribers.
//!
//! The main loop and the audit write, all other threads read. A reader takes a [`PublishedState`], which never
//! changes while the reader holds it. A writer replaces the changed parts: it copies only the parts that a
//! reader still holds, and waits for no reader.

mod change_counter;
mod changes;
mod counters;
mod events;
mod histogram;
mod transition_counts;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use vipwatch_api::Severity;
use vipwatch_core::audit::AgentKnowledge;
use vipwatch_core::role::AddressState;
use vipwatch_core::{Cause, FindingKind, InstanceId, Moment, Role, Trigger};
use vipwatch_history::{Latencies, QueueLength, Stage};

pub use self::change_counter::ChangeCounter;
use self::changes::InstanceChanges;
pub use self::counters::Counters;
pub use self::events::{EventBatch, EventRing, EventSubscription, PublishedEvent};
pub use self::histogram::{BUCKET_SECONDS, DurationHistogram, HistogramValue, StageHistograms};
pub use self::transition_counts::TransitionCounts;
use crate::audit::AuditResult;
use crate::cluster::MarkInstance;
use crate::discovery::{ConfigProblem, InstanceConfig, PendingEdit};
use crate::notify::announce::DuplicateTable;
use crate::processes::ProcessView;
use crate::witness::WitnessTable;

/// The published state of one instance.
#[derive(Debug, Clone)]
pub struct InstanceEntry {
    /// The configuration of the instance.
    pub instance: Arc<InstanceConfig>,
    /// The id of the group: the instances of all nodes of which one is the primary.
    pub group: Arc<str>,
    /// The role, as last read from the kernel.
    pub role: Role,
    /// The state of each watched address, in the order of [`InstanceConfig::watched`]; empty if the kernel
    /// could not be read. Shared with the instance table.
    pub addresses: Arc<[AddressState]>,
    /// When the instance took this role; the Unix epoch if that is not known.
    pub since: SystemTime,
    /// The same on the monotonic clock, for decisions; its origin if that is not known.
    pub role_since: Moment,
    /// Since when the instance holds at least one of its addresses; `None` if it holds none, or that is not known.
    pub held_since: Option<Moment>,
    /// The sequence number of the instance's last transition; 0 in the answer of a command that runs without a node process.
    pub seq: i64,
    /// The trigger of the last transition.
    pub trigger: Trigger,
    /// Why the role changed; `None` while that is not known.
    pub cause: Option<Arc<Cause>>,
    /// How long each stage took to deliver the last transition.
    pub latencies: Latencies,
    /// The newest transition of which the histogram has a latency, for each stage: its sequence number, or 0.
    pub measured: [i64; Stage::ALL.len()],
    /// Each delivery that failed last time, by stage and name of the target.
    pub failures: BTreeMap<(Stage, String), FailedDelivery>,
    /// What Neutron's agent has acknowledged; `None` if the node does not notify the agent.
    pub agent: Option<AgentKnowledge>,
    /// The stages for which targets are configured.
    pub stages: Arc<[Stage]>,
    /// The result of the last audit; `None` before the first one.
    pub audit: Option<Arc<AuditResult>>,
    /// How often the role has changed since the node started.
    pub counts: TransitionCounts,
}

/// A delivery that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedDelivery {
    /// The error of the last attempt.
    pub error: String,
    /// The time of the first of the failed attempts; the Unix epoch if that is not known.
    pub since: SystemTime,
}

impl InstanceEntry {
    /// An entry with a role of unknown age, without targets and without an audit. Its group is that of an instance that no
    /// `[[group]]` names.
    pub fn new(instance: Arc<InstanceConfig>, role: Role, addresses: Arc<[AddressState]>) -> Self {
        Self {
            group: instance.group_id(None, ""),
            instance,
            role,
            addresses,
            since: SystemTime::UNIX_EPOCH,
            role_since: Moment::new(Duration::ZERO),
            held_since: None,
            seq: 0,
            trigger: Trigger::Start,
            cause: None,
            latencies: Latencies::default(),
            measured: [0; Stage::ALL.len()],
            failures: BTreeMap::new(),
            agent: None,
            stages: Arc::from([]),
            audit: None,
            counts: TransitionCounts::default(),
        }
    }

    /// Whether the transition `seq` has no latency in this stage yet. Deliveries can be repeated, for example to an agent
    /// that was restarted, and only the first one is measured.
    pub(crate) fn begin_latency(&mut self, stage: Stage, seq: i64) -> bool {
        let measured = &mut self.measured[stage as usize];
        let is_first = *measured < seq;
        *measured = seq.max(*measured);
        is_first
    }

    /// The result of the last audit; `None` if the instance has changed since, and the next audit is due soon.
    pub(crate) fn current_audit(&self) -> Option<&AuditResult> {
        self.audit.as_deref().filter(|audit| audit.is_current(self))
    }
}

/// The state of the node at one moment.
#[derive(Debug, Clone, Default)]
pub struct PublishedState {
    /// All instances.
    pub entries: BTreeMap<InstanceId, Arc<InstanceEntry>>,
    /// The problems with keepalived's configuration.
    pub problems: Arc<Vec<ConfigProblem>>,
    /// The files of which the content is not in use.
    pub(crate) pending_edits: Arc<HashMap<Arc<Path>, PendingEdit>>,
}

/// A problem of the node itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthProblem {
    /// The finding that states it.
    pub kind: FindingKind,
    /// How serious it is.
    pub severity: Severity,
    /// When it began to fail.
    pub since: SystemTime,
    /// The error.
    pub text: String,
}

/// Holds the published state, the events and the counters of a node.
#[derive(Debug, Default)]
pub struct StateStore {
    view: Mutex<Arc<PublishedState>>,
    /// The counters behind the metrics.
    pub counters: Counters,
    /// The latencies of deliveries.
    pub latencies: StageHistograms,
    /// How long the main loop worked in each turn. Events that arrive meanwhile wait.
    pub turns: DurationHistogram,
    /// The length of the history queue; empty without a node.
    pub(crate) history_queue: OnceLock<QueueLength>,
    health_problems: Mutex<BTreeMap<FindingKind, HealthProblem>>,
    /// A reader of the history has found damage in the file.
    has_history_damage: AtomicBool,
    /// Grows with each change except for an audit with the same findings as before.
    findings_version: AtomicU64,
    /// The events for clients.
    pub events: Arc<EventRing>,
    /// The changes of the cluster view, without heartbeats.
    pub cluster_changes: ChangeCounter,
    /// The captured adverts; empty without a node.
    pub witness: Arc<WitnessTable>,
    /// The other holders of addresses that the announcer has found.
    pub(crate) duplicates: DuplicateTable,
    epoch: OnceLock<Arc<str>>,
    /// Is called with each instance that has changed; empty without a cluster.
    changes: InstanceChanges,
    /// The keepalived processes; `None` if they are not read.
    processes: Mutex<Option<Arc<ProcessView>>>,
    /// When the main loop last began a turn; `None` before the first one.
    last_turn: Mutex<Option<Instant>>,
}

impl StateStore {
    /// The epoch of the history, which is the first part of event ids; `0` without a node.
    pub fn epoch(&self) -> Arc<str> {
        self.epoch.get().cloned().unwrap_or_else(|| Arc::from("0"))
    }

    /// Sets the epoch, and the sequence number from which the events continue. Only the first call has an effect.
    pub(crate) fn begin_epoch(&self, epoch: Arc<str>, last_seq: i64) {
        let _ = self.epoch.set(epoch);
        self.events.continue_after(last_seq);
    }

    /// The state at this moment.
    pub fn view(&self) -> Arc<PublishedState> {
        self.view.lock().map(|view| Arc::clone(&view)).unwrap_or_default()
    }

    /// The state of one instance at this moment. This does not use [`Self::view`]: while a reader holds a
    /// view, the next change must copy all of it.
    pub(crate) fn entry(&self, id: &InstanceId) -> Option<Arc<InstanceEntry>> {
        self.view.lock().ok()?.entries.get(id).cloned()
    }

    /// Why the content of a file is not in use at this moment; `None` if it is.
    pub(crate) fn pending_edit(&self, file: &Path) -> Option<PendingEdit> {
        self.view.lock().ok()?.pending_edits.get(file).copied()
    }

    /// Changes the published state.
    pub(crate) fn update(&self, change: impl FnOnce(&mut PublishedState)) {
        if let Ok(mut view) = self.view.lock() {
            change(Arc::make_mut(&mut view));
        }
        self.findings_version.fetch_add(1, Ordering::Relaxed);
    }

    /// Stores the result of an audit, if `is_wanted` says so for the entry of its instance.
    pub(crate) fn set_audit(
        &self,
        id: &InstanceId,
        result: AuditResult,
        is_wanted: impl FnOnce(&InstanceEntry, &AuditResult) -> bool,
    ) {
        let Ok(mut view) = self.view.lock() else { return };
        let Some(entry) = view.entries.get(id) else { return };
        if !is_wanted(entry, &result) {
            return;
        }
        // Findings of a result that is not current are not published: the same ones are news again.
        let current = entry.current_audit();
        let is_known = current.is_some_and(|known| known.findings == result.findings);
        if let Some(entry) = Arc::make_mut(&mut view).entries.get_mut(id) {
            Arc::make_mut(entry).audit = Some(Arc::new(result));
        }
        if !is_known {
            self.findings_version.fetch_add(1, Ordering::Relaxed);
        }
        drop(view);
        self.changes.report(id);
    }

    /// Publishes the keepalived processes; `None` if they are not read.
    pub(crate) fn set_processes(&self, view: Option<Arc<ProcessView>>) {
        if let Ok(mut processes) = self.processes.lock() {
            *processes = view;
        }
    }

    /// The keepalived processes as last read; `None` if they are not read.
    pub fn processes(&self) -> Option<Arc<ProcessView>> {
        self.processes.lock().ok()?.clone()
    }

    /// A number that grows when the published findings may have changed. Those of a receiver do not count.
    pub(crate) fn findings_version(&self) -> u64 {
        self.findings_version.load(Ordering::Relaxed)
    }

    /// Has `report` called with each instance with a changed entry, also if only its audit is new. Only the first call
    /// has an effect.
    pub(crate) fn follow_changes(&self, report: MarkInstance) {
        self.changes.set(report);
    }

    /// Adds the entry of an instance, or replaces it.
    pub fn insert(&self, entry: InstanceEntry) {
        let id = entry.instance.id.clone();
        self.update(|view| {
            view.entries.insert(id.clone(), Arc::new(entry));
        });
        self.changes.report(&id);
    }

    /// Changes the entry of one instance, if there is one.
    pub(crate) fn amend(&self, id: &InstanceId, change: impl FnOnce(&mut InstanceEntry)) {
        self.update(|view| {
            if let Some(entry) = view.entries.get_mut(id) {
                change(Arc::make_mut(entry));
            }
        });
        self.changes.report(id);
    }

    /// Sets a component's problem in its milder form; `None` if the component works. The start time stays while only the
    /// text changes.
    pub fn set_health(&self, kind: FindingKind, text: Option<String>) {
        self.set_health_as(kind, kind.milder().unwrap_or(kind.severity()), text);
    }

    /// The same with this severity.
    pub(crate) fn set_health_as(
        &self,
        kind: FindingKind,
        severity: Severity,
        text: Option<String>,
    ) {
        let text = text.map(|text| in_one_line(&text));
        let Ok(mut problems) = self.health_problems.lock() else { return };
        let known = problems.get(&kind).map(|known| (&known.text, known.severity));
        if known != text.as_ref().map(|text| (text, severity)) {
            self.findings_version.fetch_add(1, Ordering::Relaxed);
        }
        let Some(text) = text else {
            problems.remove(&kind);
            return;
        };
        let known = problems.get(&kind).map(|known| known.since);
        let since = known.unwrap_or_else(SystemTime::now);
        problems.insert(kind, HealthProblem { kind, severity, since, text });
    }

    /// The error of a part of the node; `None` if the part works.
    pub fn health_problem(&self, kind: FindingKind) -> Option<String> {
        self.health_problems.lock().ok()?.get(&kind).map(|problem| problem.text.clone())
    }

    /// All problems of the node itself.
    pub fn health_problems(&self) -> Vec<HealthProblem> {
        let problems = self.health_problems.lock();
        problems.map(|problems| problems.values().cloned().collect()).unwrap_or_default()
    }

    /// Records that the main loop begins a turn.
    pub fn record_turn(&self) {
        self.record_turn_at(Instant::now());
    }

    /// Records that the main loop began a turn at this time.
    pub fn record_turn_at(&self, at: Instant) {
        if let Ok(mut last) = self.last_turn.lock() {
            *last = Some(at);
        }
    }

    /// The time since the main loop last began a turn; `None` before the first one.
    pub fn time_since_turn(&self) -> Option<Duration> {
        self.last_turn.lock().ok()?.map(|last| last.elapsed())
    }

    /// Reports that a reader of the history has found damage; the main loop has the file examined.
    pub(crate) fn report_history_damage(&self) {
        self.has_history_damage.store(true, Ordering::Relaxed);
    }

    /// Whether damage was reported since the last call.
    pub(crate) fn take_history_damage(&self) -> bool {
        self.has_history_damage.swap(false, Ordering::Relaxed)
    }
}

/// `text` with its lines joined by semicolons: a finding and a log line are one line.
pub(crate) fn in_one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_health_problem_keeps_its_age_until_it_is_over() {
        let store = StateStore::default();
        let kind = FindingKind::NodeHistory;
        store.set_health(kind, Some("disk full".to_owned()));
        let since = store.health_problems()[0].since;
        store.set_health(kind, Some("still full".to_owned()));
        let text = "still full".to_owned();
        let severity = Severity::Warning;
        assert_eq!(store.health_problems(), [HealthProblem { kind, severity, since, text }]);
        store.set_health(kind, None);
        assert_eq!(store.health_problems(), []);
    }

    #[test]
    fn the_errors_of_a_health_problem_are_in_one_line() {
        let store = StateStore::default();
        let text = "vipwatch.toml:3: no key a\nvipwatch.toml:24: no key b".to_owned();
        store.set_health(FindingKind::NodeConfiguration, Some(text));
        let expected = "vipwatch.toml:3: no key a; vipwatch.toml:24: no key b";
        assert_eq!(store.health_problems()[0].text, expected);
    }
}

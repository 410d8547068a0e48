// SPDX-License-Identifier: Apache-2.0
//! Findings: of the audit, of the node itself, of configurations, of the receiver and of deliveries.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use vipwatch_api::{
    ContainerKeepalived, FailingDelivery, FindingEvent, FindingItem, FindingList, FindingScope,
    FindingState, Schema, Severity, SeveritySummary, timestamp_from_millis,
};
use vipwatch_core::flapping::{FLAP_SPAN, MIN_TRANSITIONS};
use vipwatch_core::{FindingKind, InstanceId};
use vipwatch_history::{FlapCount, Reader, Stage};
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_receiver::{JOURNAL_FORMAT_PROBLEM, JOURNAL_PROBLEM, SOCKET_PROBLEM};

use super::{ApiContext, known_timestamp, read_history_in_time, silenced_until, targets};
use crate::audit::DatedFinding;
use crate::discovery::{ContentInUse, InstanceConfig};
use crate::event::{audit_finding, health_finding};
use crate::processes::KeepalivedProcess;
use crate::receiver::ReceiverHandle;
use crate::state::{InstanceEntry, PublishedState, StateStore};
use crate::transition::millis;
use crate::witness::router_key;

/// Maximum number of unknown instances that are listed.
const MAX_UNKNOWN: usize = 20;

/// Maximum number of keepaliveds in containers that are listed.
const MAX_CONTAINERS: usize = 100;

/// Time between two reads of the history without a transition, while instances flap. The periodic audit is less frequent.
const FLAPPING_INTERVAL: Duration = Duration::from_secs(8);

/// Whether a command that reads the kernel itself expected a node to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeExpectation {
    /// A node should run here. The caller has found that none is listening.
    Runs,
    /// The command was asked not to query a node: it is not known whether one runs.
    None,
}

/// Audits all instances on this thread, and returns everything that is wrong. For commands without a node.
pub fn audit_now(context: &ApiContext, expectation: NodeExpectation) -> FindingList {
    let ids: Vec<InstanceId> = context.store.view().entries.keys().cloned().collect();
    context.audit.run(ids, &mut NetnsQuery::open().ok(), || {});
    let mut answer = findings(context);
    if expectation == NodeExpectation::Runs {
        let text = "no vipwatch node runs here".to_owned();
        answer.items.push(new(None, FindingKind::NodeNotRunning, text));
        sort(&mut answer.items);
    }
    answer
}

/// Sorts findings: the most serious first, then the oldest; those of unknown age are the last ones of their severity.
fn sort(items: &mut [FindingItem]) {
    items.sort_by_key(|item| (item.severity, item.since.is_none(), item.since));
}

/// Everything that is known to be wrong, the most serious and the oldest first. Reads the history.
pub fn findings(context: &ApiContext) -> FindingList {
    let view = context.store.view();
    let mut items = Vec::new();
    let sources = FindingSources {
        store: Arc::clone(&context.store),
        receiver_handle: context.receiver_handle.clone(),
        state_dir: context.state_dir.clone(),
    };
    items.extend(sources.of_node(&view));
    items.extend(clashes(&view));
    items.extend(sources.flapping().into_iter().flatten());
    items.extend(super::cluster::own_findings(context));
    let mut too_young = 0;
    for (id, entry) in &view.entries {
        let audit = entry.current_audit();
        for dated in audit.map(|audit| &*audit.findings).unwrap_or_default() {
            if dated.is_young(entry) {
                too_young += 1;
            } else {
                items.push(audit_finding(id.as_str(), dated));
            }
        }
        items.extend(failed_deliveries(entry));
    }
    for item in &mut items {
        item.silenced_until = silenced_until(context, item.id.as_deref());
    }
    sort(&mut items);
    FindingList {
        schema: Schema::Findings,
        node: context.node.to_string(),
        source: context.source,
        instances: view.entries.len() as u64,
        items,
        too_young,
        containers: containers(&context.store),
        keepaliveds: keepaliveds(&context.store),
    }
}

fn keepaliveds(store: &StateStore) -> Option<u64> {
    let processes = store.processes().filter(|processes| processes.unreadable == 0)?;
    Some(processes.count() as u64)
}

fn containers(store: &StateStore) -> Vec<ContainerKeepalived> {
    let Some(processes) = store.processes() else { return Vec::new() };
    let foreign = processes.foreign();
    if foreign.is_empty() {
        return Vec::new();
    }
    // Those that belong to a followed instance are shown with it.
    let view = store.view();
    let serving = view.entries.values().filter_map(|entry| processes.of_instance(&entry.instance));
    let serving: HashSet<u32> = serving.map(|process| process.id.pid).collect();
    let others = foreign.into_iter().filter(|process| !serving.contains(&process.id.pid));
    let item = |process: &Arc<KeepalivedProcess>| ContainerKeepalived {
        pid: process.id.pid,
        netns: process.netns_name().map(|name| name.to_string()),
    };
    others.take(MAX_CONTAINERS).map(item).collect()
}

/// The number of findings with each name and severity.
pub(super) type FindingCounts = BTreeMap<(&'static str, &'static str), u64>;

/// The numbers of the findings that [`findings`] lists, without their texts: thousands of instances may have the same
/// finding. Reads the history.
pub(super) fn finding_counts(context: &ApiContext) -> FindingCounts {
    let sources = FindingSources::new(&context.store, &context.receiver_handle, &context.state_dir);
    // ORDER: before the view is taken. While a reader holds the view, the next change must copy all of it.
    let flapping = sources.flapping().unwrap_or_default();
    let of_cluster = super::cluster::own_findings(context);
    let view = context.store.view();
    let mut counts = FindingCounts::new();
    let mut count = |kind: FindingKind, severity: Severity| {
        *counts.entry((kind.name(), severity.word())).or_insert(0) += 1;
    };
    let others = sources.of_node(&view).into_iter().chain(clashes(&view));
    for item in others.chain(flapping).chain(of_cluster) {
        item.kind().into_iter().for_each(|kind| count(kind, item.severity));
    }
    for entry in view.entries.values() {
        let audit = entry.current_audit();
        let audited = audit.map(|audit| &*audit.findings).unwrap_or_default();
        for dated in audited.iter().filter(|dated| !dated.is_young(entry)) {
            count(dated.finding.kind, dated.finding.severity);
        }
        for (stage, _) in entry.failures.keys() {
            count(failure_kind(*stage), failure_kind(*stage).severity());
        }
    }
    counts
}

/// Where findings come from, except for the audit's results in the published state.
#[derive(Debug)]
pub(crate) struct FindingSources {
    pub(crate) store: Arc<StateStore>,
    pub(crate) receiver_handle: ReceiverHandle,
    /// The directory of the history.
    pub(crate) state_dir: PathBuf,
}

impl FindingSources {
    pub(crate) fn new(
        store: &Arc<StateStore>,
        receiver_handle: &ReceiverHandle,
        state_dir: &Path,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            receiver_handle: receiver_handle.clone(),
            state_dir: state_dir.to_owned(),
        }
    }

    /// Problems of the node itself, of configuration files and of the receiver.
    fn of_node(&self, view: &PublishedState) -> Vec<FindingItem> {
        let problems = self.store.health_problems();
        let mut items: Vec<FindingItem> = problems.iter().map(health_finding).collect();
        items.extend(configuration_problems(view));
        items.extend(receiver_findings(&self.receiver_handle, view));
        items
    }

    /// The number of transitions since the start.
    fn transitions(&self) -> u64 {
        self.store.counters.transitions.load(Ordering::Relaxed)
    }

    /// Whether this process runs a receiver.
    pub(crate) fn has_receiver(&self) -> bool {
        self.receiver_handle.status().is_some()
    }

    /// Instances that change their role too often. Reads the history; `None` if it does not answer.
    fn flapping(&self) -> Option<Vec<FindingItem>> {
        let read = |reader: Reader| reader.flaps(millis(flap_start()), millis(SystemTime::now()));
        read_history_in_time(&self.store, &self.state_dir, read).map(flapping)
    }

    /// Whether the history has the last transition that can count for flapping. The writer is a thread of its own.
    fn is_history_current(&self) -> bool {
        let start = flap_start();
        let view = self.store.view();
        let recent = view.entries.values().filter(|entry| entry.since >= start);
        let Some(published) = recent.map(|entry| entry.seq).max() else { return true };
        drop(view);
        let recorded =
            read_history_in_time(&self.store, &self.state_dir, |reader| reader.last_seq());
        recorded.is_some_and(|recorded| recorded >= published)
    }

    /// The findings that the last run has published as open. Reads the history.
    pub(crate) fn open_in_history(&self) -> Vec<FindingItem> {
        let open = self.open_events_in_history().into_iter();
        open.filter(|event| event.scope == FindingScope::Local).map(|event| event.finding).collect()
    }

    /// The last events of the findings that are open, those about several nodes too.
    pub(crate) fn open_events_in_history(&self) -> Vec<FindingEvent> {
        let read = |reader: Reader| reader.last_events_of_findings();
        let bodies = read_history_in_time(&self.store, &self.state_dir, read).unwrap_or_default();
        let events = bodies.iter().filter_map(|body| serde_json::from_str(body).ok());
        events.filter(|event: &FindingEvent| event.state != FindingState::Closed).collect()
    }
}

/// The findings of this moment as [`findings`] lists them, computed again and again. The parts that are expensive with
/// thousands of instances are computed only if they can have changed.
#[derive(Debug, Default)]
pub(crate) struct CurrentFindings {
    clashes: Vec<FindingItem>,
    /// Identifies the configurations of which the clashes are known.
    configurations: u64,
    flapping: Vec<FindingItem>,
    /// The number of transitions at which the flapping instances were read; `None` before the first time, and if the
    /// history did not have the last transition.
    transitions: Option<u64>,
    flapping_read_at: Option<Instant>,
}

impl CurrentFindings {
    /// Whether the flapping instances were read after the last transition, and not long ago if there are any: an instance
    /// stops to flap without a transition.
    pub(crate) fn has_read_flapping(&self, sources: &FindingSources) -> bool {
        let is_recent = || self.flapping_read_at.is_some_and(|at| at.elapsed() < FLAPPING_INTERVAL);
        self.transitions == Some(sources.transitions()) && (self.flapping.is_empty() || is_recent())
    }

    /// Finds the instances that flap. Reads the history, unless that is known.
    pub(crate) fn update_flapping(&mut self, sources: &FindingSources) {
        if self.has_read_flapping(sources) {
            return;
        }
        // ORDER: a transition or a row that comes after the check is read again, or is read now.
        let transitions = sources.transitions();
        let is_current = sources.is_history_current();
        let flapping = sources.flapping();
        self.flapping_read_at = Some(Instant::now());
        self.transitions = (is_current && flapping.is_some()).then_some(transitions);
        // An instance that flaps still does so while the history does not answer.
        self.flapping = flapping.unwrap_or_else(|| std::mem::take(&mut self.flapping));
    }

    /// All findings except those of the audit.
    pub(crate) fn without_audit(
        &mut self,
        sources: &FindingSources,
        view: &PublishedState,
    ) -> Vec<FindingItem> {
        let configurations = fingerprint(view);
        if self.configurations != configurations {
            self.configurations = configurations;
            self.clashes = clashes(view);
        }
        let mut items = sources.of_node(view);
        items.extend(self.clashes.iter().chain(&self.flapping).cloned());
        items.extend(view.entries.values().flat_map(|entry| failed_deliveries(entry)));
        items
    }
}

/// A number that differs if the configuration of an instance differs: an instance keeps its `Arc` until it is
/// configured anew.
fn fingerprint(view: &PublishedState) -> u64 {
    let mut hasher = DefaultHasher::new();
    for entry in view.entries.values() {
        hasher.write_usize(Arc::as_ptr(&entry.instance).addr());
    }
    hasher.finish()
}

/// One finding of the audit.
pub(super) fn item(context: &ApiContext, id: &InstanceId, dated: &DatedFinding) -> FindingItem {
    let silenced_until = silenced_until(context, Some(id.as_str()));
    FindingItem { silenced_until, ..audit_finding(id.as_str(), dated) }
}

/// Adds one finding to a summary.
pub(super) fn count(summary: &mut SeveritySummary, severity: Severity) {
    *match severity {
        Severity::Critical => &mut summary.critical,
        Severity::Warning => &mut summary.warning,
        Severity::Info => &mut summary.info,
    } += 1;
}

/// A finding of unknown age.
fn new(id: Option<&str>, kind: FindingKind, text: String) -> FindingItem {
    FindingItem {
        cluster_id: None,
        id: id.map(str::to_owned),
        name: kind.name().to_owned(),
        severity: kind.severity(),
        text,
        hint: kind.hint().to_owned(),
        since: None,
        silenced_until: None,
        harmless: false,
    }
}

/// The problems of the node itself.
pub(super) fn health(context: &ApiContext) -> Vec<FindingItem> {
    let silenced_until = silenced_until(context, None);
    let problems = context.store.health_problems();
    let item = |problem| FindingItem { silenced_until, ..health_finding(&problem) };
    problems.into_iter().map(item).collect()
}

fn configuration_problems(view: &PublishedState) -> Vec<FindingItem> {
    let each = view.problems.iter().map(|problem| {
        let line = problem.line.map(|line| format!(":{line}")).unwrap_or_default();
        let text = format!("{}{line}: {}", problem.file.display(), problem.text);
        let kind = FindingKind::ConfigurationProblem;
        let mut item = new(None, kind, text);
        if problem.loses_addresses {
            "this keepalived cannot take over: remove the block that it does not know, and reload keepalived; or upgrade it".clone_into(&mut item.hint);
            return item;
        }
        item.severity = kind.milder().unwrap_or(item.severity);
        item.harmless = problem.is_harmless;
        if problem.content == ContentInUse::Rest {
            "correct this part; the node uses the rest of the file".clone_into(&mut item.hint);
        }
        item
    });
    each.collect()
}

/// The finding about a failed delivery.
fn failure_kind(stage: Stage) -> FindingKind {
    match stage {
        Stage::File => FindingKind::FileFailed,
        Stage::Announce => FindingKind::AnnounceFailed,
        Stage::Hook => FindingKind::HookFailed,
        Stage::Webhook => FindingKind::WebhookFailed,
        Stage::Agent => FindingKind::AgentFailed,
    }
}

fn failed_deliveries(entry: &InstanceEntry) -> impl Iterator<Item = FindingItem> {
    entry.failures.iter().map(|((stage, target), failure)| {
        let text = format!("{target}: {}", failure.error);
        let id = Some(entry.instance.id.as_str());
        FindingItem { since: known_timestamp(failure.since), ..new(id, failure_kind(*stage), text) }
    })
}

/// Problems of the receiver, reports about unknown instances, and failed deliveries of reports.
fn receiver_findings(receiver_handle: &ReceiverHandle, view: &PublishedState) -> Vec<FindingItem> {
    let Some(status) = receiver_handle.status() else { return Vec::new() };
    let Ok(reports) = status.view.lock().map(|reports| reports.clone()) else { return Vec::new() };
    let mut items = Vec::new();
    for (name, text) in &reports.problems {
        items.extend(receiver_kind(name).map(|kind| new(None, kind, text.clone())));
    }
    let unknown = reports.instances.keys().filter(|id| !view.entries.contains_key(*id));
    items.extend(unknown.take(MAX_UNKNOWN).map(|id| {
        new(
            Some(id.as_str()),
            FindingKind::ReportForUnknownInstance,
            "a monitor has reported a state, and this node has no such instance".to_owned(),
        )
    }));
    for target in targets::of_receiver(receiver_handle) {
        let Some(FailingDelivery { id, error }) = target.failing.first() else { continue };
        let others = match target.failing.len() {
            1 => String::new(),
            count => format!(" (and {} more)", count - 1),
        };
        items.push(new(
            Some(id.as_str()),
            FindingKind::DeliveryFailed,
            format!("{} {}: {error}{others}", target.kind.word(), target.name),
        ));
    }
    items
}

/// The finding about a problem of the receiver. A receiver with a process of its own has further problems, and no findings.
fn receiver_kind(problem: &str) -> Option<FindingKind> {
    match problem {
        JOURNAL_PROBLEM => Some(FindingKind::ReceiverJournal),
        JOURNAL_FORMAT_PROBLEM => Some(FindingKind::ReceiverJournalFormat),
        SOCKET_PROBLEM => Some(FindingKind::ReceiverSocket),
        _ => None,
    }
}

/// Instances with the same VRID on the same link, and addresses that two instances configure.
fn clashes(view: &PublishedState) -> Vec<FindingItem> {
    let mut vrids: BTreeMap<_, Vec<&InstanceConfig>> = BTreeMap::new();
    let mut addresses: BTreeMap<_, &str> = BTreeMap::new();
    let mut items = Vec::new();
    let mut add = |id: &str, kind, text: String| items.push(new(Some(id), kind, text));
    for entry in view.entries.values() {
        let config = &entry.instance;
        let (id, netns) = (config.id.as_str(), config.netns.clone());
        // IPv4 and IPv6 have separate VRIDs, and so have multicast and unicast.
        if let (Some(router), Some(link)) = (router_key(config), config.vrrp.interface) {
            let others = vrids.entry((netns.clone(), link.to_string(), router)).or_default();
            if let Some(other) = others.iter().find(|other| shares_vrid(config, other)) {
                let (vrid, other) = (router.vrid, &other.id);
                let text = format!("virtual_router_id {vrid} on {link} is also used by {other}");
                add(id, FindingKind::VridClash, text);
            }
            others.push(config);
        }
        for (_, cidr) in config.watched() {
            if let Some(other) = addresses.insert((netns.clone(), cidr.addr()), id) {
                let text = format!("{} is also configured for {other}", cidr.addr());
                add(id, FindingKind::AddressConfiguredTwice, text);
            }
        }
    }
    items
}

/// Whether two instances with one virtual router id receive each other's adverts: unicast ones only with a common peer.
fn shares_vrid(one: &InstanceConfig, other: &InstanceConfig) -> bool {
    let peers = &one.vrrp.unicast_peers;
    peers.is_empty() || peers.iter().any(|peer| other.vrrp.unicast_peers.contains(peer))
}

/// Transitions since this time count for flapping.
fn flap_start() -> SystemTime {
    SystemTime::now().checked_sub(FLAP_SPAN).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn flapping(flaps: Vec<FlapCount>) -> Vec<FindingItem> {
    let often = flaps.into_iter().filter(|flaps| {
        usize::try_from(flaps.transitions).is_ok_and(|count| count >= MIN_TRANSITIONS)
    });
    let each = often.map(|flaps| {
        let minutes = FLAP_SPAN.as_secs() / 60;
        let text = format!("{} transitions within {minutes} minutes", flaps.transitions);
        FindingItem {
            since: Some(timestamp_from_millis(flaps.first)),
            ..new(Some(&flaps.instance), FindingKind::Flapping, text)
        }
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use vipwatch_core::Role;
    use vipwatch_core::keepalived::ProtocolSettings;

    use super::*;
    use crate::discovery::example;
    use crate::state::FailedDelivery;

    #[test]
    fn the_age_of_a_failed_delivery_is_not_that_of_the_role() {
        let mut entry = InstanceEntry::new(Arc::new(example()), Role::Backup, Arc::from([]));
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        entry.since = at(1000);
        let failure = FailedDelivery { error: "exit status 1".to_owned(), since: at(5000) };
        entry.failures.insert((Stage::Hook, "mail".to_owned()), failure);
        let found: Vec<FindingItem> = failed_deliveries(&entry).collect();
        assert_eq!(found[0].since, known_timestamp(at(5000)));
        assert_eq!((found[0].name.as_str(), found.len()), ("hook-failed", 1));
    }

    #[test]
    fn a_unicast_instance_clashes_only_with_one_that_has_a_common_peer() {
        let clashing = |peers: [&[&str]; 2]| {
            let mut view = PublishedState::default();
            for (id, peers) in ["A", "B"].into_iter().zip(peers) {
                let mut instance = example();
                instance.id = id.parse().unwrap();
                let vrrp = Arc::make_mut(&mut instance.vrrp);
                vrrp.unicast_peers = peers.iter().map(|peer| peer.parse().unwrap()).collect();
                vrrp.protocol = vrrp
                    .protocol
                    .map(|protocol| ProtocolSettings { is_unicast: !peers.is_empty(), ..protocol });
                let entry = InstanceEntry::new(Arc::new(instance), Role::Backup, Arc::from([]));
                view.entries.insert(id.parse().unwrap(), Arc::new(entry));
            }
            clashes(&view).iter().any(|item| item.name == "vrid-clash")
        };
        assert!(clashing([&[], &[]]));
        assert!(!clashing([&[], &["192.0.2.8"]]));
        assert!(!clashing([&["192.0.2.9"], &["192.0.2.8"]]));
        assert!(clashing([&["192.0.2.8", "192.0.2.9"], &["192.0.2.9"]]));
    }

    #[test]
    fn an_instance_flaps_until_the_history_answers_which_is_not_asked_at_every_comparison() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(StateStore::default());
        let sources = FindingSources::new(&store, &ReceiverHandle::default(), directory.path());
        let flapping = new(Some("A"), FindingKind::Flapping, String::new());
        let read_at = Some(Instant::now());
        let mut current = CurrentFindings {
            flapping: vec![flapping],
            transitions: Some(0),
            flapping_read_at: read_at,
            ..CurrentFindings::default()
        };
        current.update_flapping(&sources);
        assert_eq!(current.flapping_read_at, read_at);
        store.counters.transitions.fetch_add(1, Ordering::Relaxed);
        // There is no history.
        current.update_flapping(&sources);
        assert_ne!(current.flapping_read_at, read_at);
        assert_eq!(current.flapping.len(), 1);
        let keep = vipwatch_history::Retention::default();
        drop(vipwatch_history::Writer::open(directory.path(), keep).unwrap());
        current.update_flapping(&sources);
        assert_eq!(current.flapping.len(), 0);
    }

    #[test]
    fn the_number_of_keepaliveds_is_not_known_if_processes_were_not_read() {
        let context = crate::direct::history_context(&crate::Config::default());
        assert_eq!(findings(&context).keepaliveds, None);
        let mut processes = crate::processes::ProcessView::default();
        context.store.set_processes(Some(Arc::new(processes.clone())));
        assert_eq!(findings(&context).keepaliveds, Some(0));
        processes.unreadable = 1;
        context.store.set_processes(Some(Arc::new(processes)));
        assert_eq!(findings(&context).keepaliveds, None);
    }

    #[test]
    fn the_counts_are_those_of_the_listed_findings() {
        let context = crate::direct::history_context(&crate::Config::default());
        context.store.set_health(FindingKind::NodeSocket, Some("gone".to_owned()));
        for (id, vrid) in [("A", 1), ("B", 1), ("C", 2)] {
            let mut instance = example();
            instance.id = id.parse().unwrap();
            let vrrp = vipwatch_core::keepalived::VrrpInstance {
                vrid: Some(vrid),
                ..(*instance.vrrp).clone()
            };
            instance.vrrp = Arc::new(vrrp);
            let mut entry = InstanceEntry::new(Arc::new(instance), Role::Backup, Arc::from([]));
            let failure = FailedDelivery { error: "e".to_owned(), since: SystemTime::now() };
            entry.failures.insert((Stage::Hook, "mail".to_owned()), failure);
            context.store.insert(entry);
        }
        let mut listed = FindingCounts::new();
        for item in findings(&context).items {
            let name = item.kind().unwrap().name();
            *listed.entry((name, item.severity.word())).or_insert(0) += 1;
        }
        assert_eq!(listed.values().sum::<u64>(), 7, "{listed:?}");
        assert_eq!(finding_counts(&context), listed);
    }
}

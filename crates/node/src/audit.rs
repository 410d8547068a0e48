//! Gathers what everybody says about an instance, and remembers since when they disagree.
//!
//! What follows from it is decided by [`vipwatch_core::audit`]. Used by the loop, now and then and
//! some seconds after each change, and by whoever asks (`show`, `doctor`), who looks for himself
//! instead of believing the view.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::discovery::{InstanceConfig, Origin};
use crate::watch::look::netns_snapshot;
use vipwatch_core::audit::{AuditFacts, Finding, MonitorReport, Process, StateFileContent};
use vipwatch_core::role::{AddressState, address_state, role_of};
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{InstanceId, NeutronState, Role};
use vipwatch_linux::file::read_head;
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};

use crate::receiver::ReceiverHandle;
use crate::state::{InstanceEntry, StateStore};

/// How old a disagreement must be to be more than somebody who is not there yet.
pub const GRACE: Duration = Duration::from_secs(5);

/// So much earlier than we, a monitor may have seen a change.
const SLACK: Duration = Duration::from_secs(1);

/// A disagreement, and its age.
#[derive(Debug, Clone)]
pub struct DatedFinding {
    /// What.
    pub finding: Finding,
    /// Since when.
    pub since: SystemTime,
}

/// Remembers since when there are disagreements.
#[derive(Debug, Default)]
pub struct AuditState {
    /// Few have any, and those who do have few.
    since: Mutex<BTreeMap<InstanceId, Vec<(&'static str, SystemTime)>>>,
    /// What monitors claim.
    receiver_handle: ReceiverHandle,
}

impl AuditState {
    /// One who compares with what is claimed at `receiver_handle`.
    pub fn new(receiver_handle: ReceiverHandle) -> Self {
        Self { receiver_handle, ..Self::default() }
    }

    /// Looks at one instance, and compares what everybody says about it. A view that seems to be
    /// behind is looked at twice: the kernel's word may be on its way to us.
    pub fn look_at(
        &self,
        store: &StateStore,
        id: &InstanceId,
        query: &mut Option<NetnsQuery>,
    ) -> Option<(Arc<InstanceEntry>, Vec<DatedFinding>)> {
        let mut last = None;
        for _ in 0..2 {
            let snapshot = netns_snapshot(query, store.entry(id)?.found.netns.as_ref());
            // ORDER: what we believe is asked after the kernel was.
            let entry = store.entry(id)?;
            let aged = self.examine(&entry, &snapshot);
            let is_behind = aged.iter().any(|aged| aged.finding.name == "view-behind");
            last = Some((entry, aged));
            if !is_behind {
                break;
            }
            let _ = rustix::event::poll(&mut [], Some(&SECOND_LOOK));
        }
        last
    }

    /// Compares what everybody says about an instance; `snapshot` is what the kernel says, or why it
    /// says nothing.
    pub fn examine(
        &self,
        entry: &InstanceEntry,
        snapshot: &Result<Snapshot, Role>,
    ) -> Vec<DatedFinding> {
        let mut facts = facts(entry, snapshot);
        facts.reported = self.claimed(entry);
        let findings = facts.findings();
        let now = SystemTime::now();
        let Ok(mut all) = self.since.lock() else { return Vec::new() };
        let known = all.entry(entry.found.id.clone()).or_default();
        let names: BTreeSet<&str> = findings.iter().map(|finding| finding.name).collect();
        known.retain(|(name, _)| names.contains(name));
        let aged = findings
            .into_iter()
            .map(|finding| {
                let since = known.iter().find(|(name, _)| *name == finding.name);
                let since = since.map(|(_, since)| *since);
                if since.is_none() {
                    known.push((finding.name, now));
                }
                DatedFinding { finding, since: since.unwrap_or(now) }
            })
            .collect();
        if known.is_empty() {
            all.remove(&entry.found.id);
        }
        aged
    }

    /// What the monitor of an instance has reported. Only Neutron's routers have one that must.
    fn claimed(&self, entry: &InstanceEntry) -> Option<MonitorReport> {
        let claims = self.receiver_handle.status()?;
        let view = claims.view.lock().ok()?;
        match view.instances.get(&entry.found.id) {
            Some(role) => Some(MonitorReport::State {
                state: role.state,
                is_current: role.at + SLACK >= entry.since,
            }),
            None => (entry.found.origin == Origin::Neutron).then_some(MonitorReport::Nothing),
        }
    }

    /// Forgets instances that are gone.
    pub(crate) fn keep_only(&self, is_wanted: impl Fn(&InstanceId) -> bool) {
        if let Ok(mut all) = self.since.lock() {
            all.retain(|id, _| is_wanted(id));
        }
    }
}

/// Looks for disagreements on a thread of its own: some seconds after each change, and at
/// everybody now and then. What is new, and what is over, is logged.
#[derive(Debug)]
pub(crate) struct AuditWorker {
    shared: Arc<UpstreamWorker>,
}

#[derive(Debug)]
struct UpstreamWorker {
    /// Who is to be looked at soon.
    soon: Mutex<BTreeMap<InstanceId, Instant>>,
    bell: Condvar,
    /// Within how many seconds everybody is looked at.
    every: AtomicU64,
}

/// How long after the first look the second one comes.
const SECOND_LOOK: rustix::event::Timespec =
    rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// How often he goes on with his round.
const STEP: Duration = Duration::from_secs(10);

impl AuditWorker {
    pub(crate) fn start(
        store: Arc<StateStore>,
        audit: Arc<AuditState>,
        every: Duration,
    ) -> std::io::Result<Self> {
        let every = AtomicU64::new(every.as_secs());
        let shared =
            Arc::new(UpstreamWorker { soon: Mutex::default(), bell: Condvar::new(), every });
        let rounds = Arc::clone(&shared);
        spawn_worker("audit", move |heartbeat| rounds.go(&store, &audit, heartbeat))?;
        Ok(Self { shared })
    }

    /// Everybody is looked at within this time, from now on.
    pub(crate) fn set_every(&self, every: Duration) {
        self.shared.every.store(every.as_secs(), Ordering::Relaxed);
    }

    /// An instance has changed: who does not know yet shall have some seconds.
    pub(crate) fn call(&self, id: &InstanceId) {
        if let Ok(mut soon) = self.shared.soon.lock() {
            soon.insert(id.clone(), Instant::now() + GRACE);
        }
        self.shared.bell.notify_one();
    }
}

impl UpstreamWorker {
    fn go(&self, store: &StateStore, audit: &AuditState, heartbeat: &Heartbeat) -> ! {
        let mut said = Said::new();
        let mut query = NetnsQuery::open().ok();
        let mut reached: Option<InstanceId> = None;
        let mut next = Instant::now() + STEP;
        loop {
            let mut due = self.due(next, heartbeat);
            let view = store.view();
            if next <= Instant::now() {
                next = Instant::now() + STEP;
                let every = Duration::from_secs(self.every.load(Ordering::Relaxed));
                let share = share(view.entries.len(), STEP, every);
                let behind = reached.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let part: Vec<InstanceId> = view
                    .entries
                    .range((behind, Bound::Unbounded))
                    .map(|(id, _)| id.clone())
                    .take(share)
                    .collect();
                reached = part.last().filter(|_| part.len() >= share).cloned();
                due.extend(part);
                audit.keep_only(|id| view.entries.contains_key(id));
                said.retain(|id, _| view.entries.contains_key(id));
            }
            drop(view);
            for id in due {
                heartbeat.beat();
                if let Some((_, aged)) = audit.look_at(store, &id, &mut query) {
                    tell(&id, &aged, &mut said);
                }
            }
        }
    }

    /// Waits for somebody who is due, or until `next`.
    fn due(&self, next: Instant, heartbeat: &Heartbeat) -> BTreeSet<InstanceId> {
        let mut soon = self.soon.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            heartbeat.beat();
            let now = Instant::now();
            let due: BTreeSet<InstanceId> =
                soon.iter().filter(|(_, at)| **at <= now).map(|(id, _)| id.clone()).collect();
            if !due.is_empty() || next <= now {
                soon.retain(|_, at| *at > now);
                return due;
            }
            let until = soon.values().min().copied().unwrap_or(next).min(next);
            let pause = until.saturating_duration_since(now).min(beat_every());
            let waited = self.bell.wait_timeout(soon, pause);
            soon = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// How many of `all` to look at in each `step`, so that all are looked at within `every`.
pub(crate) fn share(all: usize, step: Duration, every: Duration) -> usize {
    let seconds = |span: Duration| usize::try_from(span.as_secs()).unwrap_or(usize::MAX).max(1);
    all.saturating_mul(seconds(step)).div_ceil(seconds(every)).min(all)
}

/// What was said of each instance, and is not over.
type Said = BTreeMap<InstanceId, Vec<&'static str>>;

/// Logs what is new, and what is over.
fn tell(id: &InstanceId, aged: &[DatedFinding], said: &mut Said) {
    let before = said.remove(id).unwrap_or_default();
    let mut now = Vec::new();
    for DatedFinding { finding, .. } in aged {
        let (name, severity) = (finding.name, finding.severity.as_str());
        if now.contains(&name) {
            continue;
        }
        if !before.contains(&name) {
            tracing::warn!(instance = %id, finding = name, severity, "{}", finding.text);
        }
        now.push(name);
    }
    for name in before.into_iter().filter(|name| !now.contains(name)) {
        tracing::info!(instance = %id, finding = name, "this is over");
    }
    if !now.is_empty() {
        said.insert(id.clone(), now);
    }
}

fn facts(entry: &InstanceEntry, snapshot: &Result<Snapshot, Role>) -> AuditFacts {
    let found = &entry.found;
    let watched = found.watched();
    let stands = match snapshot {
        Ok(snapshot) => role_of(&watched, snapshot),
        Err(why) => why.clone(),
    };
    let mut facts = AuditFacts::new(stands);
    if facts.role != entry.role && snapshot.is_ok() {
        facts.published = Some(entry.role.clone());
    }
    if let Ok(snapshot) = snapshot {
        facts.misplaced = watched
            .iter()
            .map(|(link, cidr)| (*cidr, address_state(snapshot, *link, *cidr)))
            .filter(|(_, holding)| !matches!(holding, AddressState::Held | AddressState::Absent))
            .collect();
        facts.floating = floating(found, snapshot);
    }
    facts.agent.clone_from(&entry.agent);
    if found.origin == Origin::Neutron {
        facts.file = Some(state_file(&found.file));
        (facts.keepalived, facts.monitor) = processes(found);
    }
    facts
}

/// Floating addresses of a router: how many are held, of how many.
fn floating(found: &InstanceConfig, snapshot: &Snapshot) -> (usize, usize) {
    if found.origin != Origin::Neutron {
        return (0, 0);
    }
    // There may be a thousand: they are looked up, not searched for.
    let held: BTreeSet<_> = snapshot.addresses.iter().map(|address| address.target.ip).collect();
    let floating = found.vrrp.addresses.iter().filter(|address| address.is_excluded);
    let is_held: Vec<bool> = floating.map(|address| held.contains(&address.cidr.addr())).collect();
    (is_held.iter().filter(|is_held| **is_held).count(), is_held.len())
}

/// What the file beside keepalived's configuration says, which Neutron's monitor writes.
fn state_file(conf: &Path) -> StateFileContent {
    match read_head(&conf.with_file_name("state"), 64) {
        Ok(text) => match text.trim_ascii() {
            // Neutron's words, of all releases.
            b"primary" | b"master" => StateFileContent::NeutronState(NeutronState::Primary),
            b"backup" => StateFileContent::NeutronState(NeutronState::Backup),
            other => StateFileContent::Invalid(String::from_utf8_lossy(other).into_owned()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => StateFileContent::Missing,
        Err(error) => StateFileContent::Unreadable(error.to_string()),
    }
}

/// keepalived and the monitor of a router, by the pid files that its agent writes.
fn processes(found: &InstanceConfig) -> (Process, Process) {
    // <state_path>/ha_confs/ID/keepalived.conf
    let confs = found.file.parent().and_then(Path::parent);
    let Some((confs, base)) = confs.and_then(|confs| Some((confs, confs.parent()?))) else {
        return (Process::Unknown, Process::Unknown);
    };
    let id = &found.id;
    let keepalived = ["pid.keepalived", "pid"].map(|end| confs.join(format!("{id}.{end}")));
    let monitor = ["monitor.pid.neutron-keepalived-state-change-monitor", "monitor.pid"]
        .map(|end| base.join("external/pids").join(format!("{id}.{end}")));
    (process(&keepalived), process(&monitor))
}

/// The process that the first of `files` names.
fn process(files: &[PathBuf]) -> Process {
    let pid = files.iter().find_map(|file| {
        let text = read_head(file, 32).ok()?;
        String::from_utf8_lossy(&text).trim().parse::<u32>().ok()
    });
    match pid {
        Some(pid) if Path::new(&format!("/proc/{pid}")).exists() => Process::Runs,
        Some(_) => Process::Gone,
        None => Process::Unknown,
    }
}

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

use vipwatch_core::announce::Survey;
use vipwatch_core::audit::{Facts, FileSays, Finding, Process, Reported};
use vipwatch_core::standing::{Holding, holding, standing};
use vipwatch_core::{InstanceId, Role, Standing};
use vipwatch_engine::discovery::{Found, Origin};
use vipwatch_engine::look::Looker;
use vipwatch_linux::file::read_head;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};

use crate::board::{Board, Entry};
use crate::reception::Front;

/// How old a disagreement must be to be more than somebody who is not there yet.
pub const GRACE: Duration = Duration::from_secs(5);

/// So much earlier than we, a monitor may have seen a change.
const SLACK: Duration = Duration::from_secs(1);

/// A disagreement, and its age.
#[derive(Debug, Clone)]
pub struct Aged {
    /// What.
    pub finding: Finding,
    /// Since when.
    pub since: SystemTime,
}

/// Remembers since when there are disagreements.
#[derive(Debug, Default)]
pub struct Auditor {
    /// Few have any, and those who do have few.
    since: Mutex<BTreeMap<InstanceId, Vec<(&'static str, SystemTime)>>>,
    /// What monitors claim.
    front: Front,
}

impl Auditor {
    /// One who compares with what is claimed at `front`.
    pub fn new(front: Front) -> Self {
        Self { front, ..Self::default() }
    }

    /// Looks at one instance, and compares what everybody says about it. A view that seems to be
    /// behind is looked at twice: the kernel's word may be on its way to us.
    pub fn look_at(
        &self,
        board: &Board,
        id: &InstanceId,
        looker: &mut Looker,
    ) -> Option<(Arc<Entry>, Vec<Aged>)> {
        let mut last = None;
        for _ in 0..2 {
            let survey = looker.survey(board.entry(id)?.found.netns.as_ref());
            // ORDER: what we believe is asked after the kernel was.
            let entry = board.entry(id)?;
            let aged = self.examine(&entry, &survey);
            let is_behind = aged.iter().any(|aged| aged.finding.name == "view-behind");
            last = Some((entry, aged));
            if !is_behind {
                break;
            }
            let _ = rustix::event::poll(&mut [], Some(&SECOND_LOOK));
        }
        last
    }

    /// Compares what everybody says about an instance; `survey` is what the kernel says, or why it
    /// says nothing.
    pub fn examine(&self, entry: &Entry, survey: &Result<Survey, Standing>) -> Vec<Aged> {
        let mut facts = facts(entry, survey);
        facts.claim = self.claimed(entry);
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
                Aged { finding, since: since.unwrap_or(now) }
            })
            .collect();
        if known.is_empty() {
            all.remove(&entry.found.id);
        }
        aged
    }

    /// What the monitor of an instance has reported. Only Neutron's routers have one that must.
    fn claimed(&self, entry: &Entry) -> Option<Reported> {
        let claims = self.front.claims()?;
        let view = claims.view.lock().ok()?;
        match view.instances.get(&entry.found.id) {
            Some(standing) => {
                Some(Reported::Claim(standing.claim, standing.at + SLACK >= entry.since))
            }
            None => (entry.found.origin == Origin::Neutron).then_some(Reported::Nothing),
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
pub(crate) struct Watchman {
    shared: Arc<Rounds>,
}

#[derive(Debug)]
struct Rounds {
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

impl Watchman {
    pub(crate) fn start(
        board: Arc<Board>,
        auditor: Arc<Auditor>,
        every: Duration,
    ) -> std::io::Result<Self> {
        let every = AtomicU64::new(every.as_secs());
        let shared = Arc::new(Rounds { soon: Mutex::default(), bell: Condvar::new(), every });
        let rounds = Arc::clone(&shared);
        spawn_worker("audit", move |heartbeat| rounds.go(&board, &auditor, heartbeat))?;
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

impl Rounds {
    fn go(&self, board: &Board, auditor: &Auditor, heartbeat: &Heartbeat) -> ! {
        let mut said = Said::new();
        let mut looker = Looker::new();
        let mut reached: Option<InstanceId> = None;
        let mut next = Instant::now() + STEP;
        loop {
            let mut due = self.due(next, heartbeat);
            let view = board.view();
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
                auditor.keep_only(|id| view.entries.contains_key(id));
                said.retain(|id, _| view.entries.contains_key(id));
            }
            drop(view);
            for id in due {
                heartbeat.beat();
                if let Some((_, aged)) = auditor.look_at(board, &id, &mut looker) {
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
fn tell(id: &InstanceId, aged: &[Aged], said: &mut Said) {
    let before = said.remove(id).unwrap_or_default();
    let mut now = Vec::new();
    for Aged { finding, .. } in aged {
        let (name, severity) = (finding.name, finding.severity.word());
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

fn facts(entry: &Entry, survey: &Result<Survey, Standing>) -> Facts {
    let found = &entry.found;
    let watched = found.watched();
    let stands = match survey {
        Ok(survey) => standing(&watched, survey),
        Err(why) => why.clone(),
    };
    let mut facts = Facts::new(stands);
    if facts.standing != entry.standing && survey.is_ok() {
        facts.believed = Some(entry.standing.clone());
    }
    if let Ok(survey) = survey {
        facts.misplaced = watched
            .iter()
            .map(|(link, cidr)| (*cidr, holding(survey, *link, *cidr)))
            .filter(|(_, holding)| !matches!(holding, Holding::Held | Holding::Absent))
            .collect();
        facts.floating = floating(found, survey);
    }
    facts.agent.clone_from(&entry.agent);
    if found.origin == Origin::Neutron {
        facts.file = Some(state_file(&found.file));
        (facts.keepalived, facts.monitor) = processes(found);
    }
    facts
}

/// Floating addresses of a router: how many are held, of how many.
fn floating(found: &Found, survey: &Survey) -> (usize, usize) {
    if found.origin != Origin::Neutron {
        return (0, 0);
    }
    // There may be a thousand: they are looked up, not searched for.
    let held: BTreeSet<_> = survey.addresses.iter().map(|address| address.target.ip).collect();
    let floating = found.vrrp.addresses.iter().filter(|address| address.is_excluded);
    let is_held: Vec<bool> = floating.map(|address| held.contains(&address.cidr.addr())).collect();
    (is_held.iter().filter(|is_held| **is_held).count(), is_held.len())
}

/// What the file beside keepalived's configuration says, which Neutron's monitor writes.
fn state_file(conf: &Path) -> FileSays {
    match read_head(&conf.with_file_name("state"), 64) {
        Ok(text) => match text.trim_ascii() {
            // Neutron's words, of all releases.
            b"primary" | b"master" => FileSays::Role(Role::Primary),
            b"backup" => FileSays::Role(Role::Backup),
            other => FileSays::Nonsense(String::from_utf8_lossy(other).into_owned()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => FileSays::Missing,
        Err(error) => FileSays::Unreadable(error.to_string()),
    }
}

/// keepalived and the monitor of a router, by the pid files that its agent writes.
fn processes(found: &Found) -> (Process, Process) {
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

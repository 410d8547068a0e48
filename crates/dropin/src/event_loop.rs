//! The walk of one event, and the only place that decides order.
//!
//! ```text
//!  kernel            RTM_NEWADDR on some link
//!    │
//!  linux::monitor    one poll() wakes; bytes become observations
//!    │
//!  core::tracker     nothing changed? the walk ends here
//!    │               transition
//!    ├─ 1  outlet::state_file   inline; replaced in one step        ◄ readable truth
//!    ├─ 2  outlet::announce     inline; a packet socket              ◄ network
//!    ├─ 3  outlet::conntrack    a helper runs the commands          ◄ connections
//!    └─ 4  outlet::agent        when 3 has ended, or taken too long ◄ control plane
//! ```
//!
//! Everything that was queued when we woke up is folded before anything is done: of a role
//! that changed and changed back within one batch, the world hears the last word only.
//! Nothing here waits, except in the one `poll` of [`EventLoop::turn`].

mod settings;
mod watching;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vipwatch_core::{
    Jitter, Moment, NetnsName, NeutronState, Observation, Snapshot, SnapshotReason, StateChange,
    Tracker,
};
use vipwatch_linux::clock;
use vipwatch_linux::dnotify::{DirectoryInterest, DirectoryNotifier, WatchedDirectory};
use vipwatch_linux::monitor::{Monitor, MonitorEvent, QueueState, WatchError};
use vipwatch_linux::netns::{DIRECTORY, NetnsId};

pub use self::settings::{LoopEnd, LoopSettings, OptionalOutlets};
use self::watching::MonitorTimers;
use crate::conntrack::{ConntrackOutlet, ConntrackReport};
use crate::event::{Event, EventLog};
use vipwatch_outlets::agent::{AgentOutcome, AgentOutlet, StateWords};
use vipwatch_outlets::announce::{AnnounceNote, Announcer};
use vipwatch_outlets::state_file::{StateFile, WriteOutcome};

/// A look that takes longer than this has lost its end, and is begun again.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// Whoever sleeps longer than this can as well tidy up before.
const A_WHILE: Duration = Duration::from_secs(1);
/// How long a watcher whose namespace is gone tries to tell the agent so.
const LAST_WORDS_LIMIT: Duration = Duration::from_secs(2);

/// One watched instance, with everything it takes.
#[derive(Debug)]
pub struct EventLoop<J> {
    /// Where events are noted.
    pub journal: J,
    /// What the world was told last.
    published: Option<NeutronState>,
    netns: (NetnsName, NetnsId),
    tracker: Option<Tracker>,
    watching: Option<MonitorTimers>,
    first_look_limit: Option<Moment>,
    state_file: StateFile,
    announcer: Option<Box<Announcer>>,
    conntrack: Option<ConntrackOutlet>,
    agent: AgentOutlet,
    words: StateWords,
    directories: DirectoryNotifier,
    agent_directory: Option<WatchedDirectory>,
    netns_directory: Option<WatchedDirectory>,
    audit_at: Moment,
    audit_interval: Duration,
    /// How often an audit found us wrong; must stay zero.
    disagreements: u32,
    leave_at: Option<Moment>,
    heard: Vec<MonitorEvent>,
}

/// Whom a ready descriptor belongs to.
#[derive(Clone, Copy)]
enum Source {
    Monitor,
    Directories,
    Agent,
    Announcer,
    Conntrack,
    Extra(usize),
}

impl<J: EventLog> EventLoop<J> {
    /// A spine that will take its first look on its first turn. `monitor` is subscribed
    /// already: what happens from now on is heard.
    pub fn new(
        settings: LoopSettings,
        monitor: Option<Monitor>,
        helpers: OptionalOutlets,
        journal: J,
    ) -> io::Result<Self> {
        let LoopSettings { watch, netns, state_dir, agent, first_look_limit, audit_interval, seed } =
            settings;
        let OptionalOutlets { announcer, conntrack } = helpers;
        let now = clock::now();
        let words = agent.words;
        let state_file = StateFile::new(state_dir, Jitter::new(seed));
        let mut agent = AgentOutlet::new(agent, Jitter::new(seed.rotate_left(32)));
        if let Some(age) = state_file.age() {
            // A predecessor, or the agent: one of them was busy with this router just now.
            agent.delivery().predecessor_reported(now.before(age));
        }
        let watching = monitor.map(|monitor| MonitorTimers::new(monitor, now, Jitter::new(!seed)));
        let mut spine = Self {
            journal,
            published: None,
            netns,
            tracker: watch.map(Tracker::new),
            watching,
            first_look_limit: Some(now + first_look_limit),
            state_file,
            announcer,
            conntrack,
            agent,
            words,
            directories: DirectoryNotifier::new()?,
            agent_directory: None,
            netns_directory: None,
            audit_at: now + audit_interval,
            audit_interval,
            disagreements: 0,
            leave_at: None,
            heard: Vec::new(),
        };
        spine.watch_directories();
        Ok(spine)
    }

    /// Waits for something to happen, and reads it. Tells which of the `extra` descriptors, which belong to the caller,
    /// became ready. [`Self::tick`] comes next, whichever they are, unless the caller stops.
    pub fn turn(&mut self, extra: &[BorrowedFd<'_>]) -> io::Result<Vec<usize>> {
        let ready = self.wait(extra)?;
        let mut extras = Vec::new();
        for source in ready {
            match source {
                Source::Monitor => self.hear(),
                Source::Directories => self.read_directories(),
                Source::Agent => {
                    let told = self.agent.read_answer(clock::now());
                    self.note_told(told);
                }
                Source::Announcer => {
                    let notes = self.announcer.as_mut().map(|announcer| announcer.read_answers());
                    self.note_announced(notes);
                }
                Source::Conntrack => self.read_conntrack(),
                Source::Extra(index) => extras.push(index),
            }
        }
        Ok(extras)
    }

    /// Says what is left to be said, at the end.
    pub fn close(&mut self) {
        let tally = self.announcer.as_mut().and_then(|announcer| announcer.take_counts());
        self.note_announced(tally.map(|tally| vec![AnnounceNote::Ended(tally)]));
    }

    /// Whether nothing is under way, so that nothing but news will come for a while.
    pub fn is_idle(&self) -> bool {
        let soon = clock::now() + A_WHILE;
        self.agent.waiting_on().is_none() && self.due().is_none_or(|due| due > soon)
    }

    /// Whether there is nothing left to do, ever.
    pub fn ending(&self) -> Option<LoopEnd> {
        let leave_at = self.leave_at?;
        let is_over = self.agent.is_settled() || leave_at <= clock::now();
        is_over.then_some(LoopEnd::NamespaceGone)
    }

    fn wait(&self, extra: &[BorrowedFd<'_>]) -> io::Result<Vec<Source>> {
        let mut sources = Vec::with_capacity(6);
        let mut polled = Vec::with_capacity(6);
        {
            let mut add = |source, fd| {
                sources.push(source);
                polled.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            };
            if let Some(watching) = &self.watching {
                add(Source::Monitor, watching.monitor.as_fd());
            }
            add(Source::Directories, self.directories.as_fd());
            if let Some(socket) = self.agent.waiting_on() {
                add(Source::Agent, socket);
            }
            if let Some(socket) =
                self.announcer.as_ref().and_then(|announcer| announcer.waiting_on())
            {
                add(Source::Announcer, socket);
            }
            if let Some(line) = &self.conntrack {
                add(Source::Conntrack, line.waiting_on());
            }
            for (index, fd) in extra.iter().enumerate() {
                add(Source::Extra(index), *fd);
            }
        }
        let limit = self.due().map(|due| due.since(clock::now()));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut polled, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = sources.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        Ok(ready.map(|(source, _)| *source).collect())
    }

    /// When the next thing must be done, whether anything happens or not.
    fn due(&self) -> Option<Moment> {
        let watching = self.watching.as_ref();
        [
            self.first_look_limit,
            watching.and_then(|watching| watching.look_at),
            watching.and_then(|watching| watching.look_limit),
            self.state_file.due(),
            self.announcer.as_ref().and_then(|announcer| announcer.due()),
            self.conntrack.as_ref().and_then(ConntrackOutlet::due),
            self.agent.due(),
            self.leave_at,
            Some(self.audit_at),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Does what is due: looks, retries, announcements, the audit.
    pub fn tick(&mut self) {
        let now = clock::now();
        if self.audit_at <= now {
            self.audit_at = now + self.audit_interval;
            self.audit();
        }
        self.look_if_due(now);
        if self.first_look_limit.is_some_and(|limit| limit <= now) {
            self.first_look_limit = None;
            self.assume(now);
        }
        if let Some(written) = self.state_file.tick(now) {
            self.note_written(&written);
        }
        self.announce(now);
        if let Some(role) = self.conntrack.as_mut().and_then(|line| line.tick(now)) {
            self.journal.note(&Event::ConntrackLate(role));
            self.agent.delivery().want(role);
        }
        let told = self.agent.tick(now);
        self.note_told(told);
    }

    // Seeing.

    fn hear(&mut self) {
        let Some(watching) = &mut self.watching else {
            return;
        };
        let mut heard = std::mem::take(&mut self.heard);
        // A full batch leaves the socket ready, so the next turn comes at once.
        let result = watching.monitor.read(&mut heard);
        if !watching.monitor.is_snapshot_pending() {
            watching.look_limit = None;
        } else if watching.look_limit.is_none() {
            // The monitor began this look by itself.
            watching.look_limit = Some(clock::now() + LOOK_LIMIT);
        }
        let mut last = None;
        for heard in heard.drain(..) {
            match heard {
                MonitorEvent::Observed(seen) => {
                    let change = self.fold(&seen);
                    if let Some(announcer) = &mut self.announcer {
                        announcer.observe(&seen, clock::now());
                    }
                    if let Some(change) = &change {
                        self.heed(change);
                    }
                    last = change.or(last);
                }
                MonitorEvent::Lost(loss) => self.journal.note(&Event::EventsLost(loss)),
            }
        }
        self.heard = heard;
        if let Some(change) = last
            && self.published != Some(change.to)
        {
            self.publish(&change);
        }
        match result {
            Ok(QueueState::Empty | QueueState::MoreToCome) => {}
            Err(error) => self.look_later(&error),
        }
    }

    /// Takes one observation in; returns the transition to act on.
    fn fold(&mut self, seen: &Observation) -> Option<StateChange> {
        if let Observation::Snapshot { reason, snapshot } = seen
            && !self.is_believable(*reason, snapshot)
        {
            return None;
        }
        let tracker = self.tracker.as_mut()?;
        let change = tracker.apply(seen, clock::now());
        if matches!(seen, Observation::Snapshot { .. }) {
            let is_first = self.first_look_limit.take().is_some();
            if is_first && !tracker.has_link() {
                self.journal.note(&Event::LinkMissing);
            }
        }
        if let Some(change) = &change {
            self.journal.note(&Event::RoleChanged(change));
        }
        change
    }

    /// An audit that disagrees is repeated once: the event that explains the difference may
    /// be on its way. Agreeing, or disagreeing twice, is final.
    fn is_believable(&mut self, reason: SnapshotReason, snapshot: &Snapshot) -> bool {
        let (Some(tracker), Some(watching)) = (&self.tracker, &mut self.watching) else {
            return true;
        };
        watching.is_failing = false;
        watching.backoff.reset();
        let agrees = tracker.state() == Some(tracker.state_in(snapshot));
        if reason != SnapshotReason::Audit || agrees {
            watching.is_suspicious = false;
            return true;
        }
        if watching.is_suspicious {
            watching.is_suspicious = false;
            self.disagreements += 1;
            self.journal.note(&Event::AuditDisagreed(self.disagreements));
            return true;
        }
        watching.is_suspicious = true;
        watching.look_limit = Some(clock::now() + LOOK_LIMIT);
        if let Err(error) = watching.monitor.request_snapshot(SnapshotReason::Audit) {
            self.look_later(&error);
        }
        false
    }

    fn look_if_due(&mut self, now: Moment) {
        let Some(watching) = &mut self.watching else { return };
        if watching.look_limit.is_some_and(|limit| limit <= now) {
            watching.monitor.cancel_snapshot();
            self.look_later(&WatchError::Incomplete);
            return;
        }
        if watching.look_at.is_none_or(|at| at > now) {
            return;
        }
        let is_informed = self.tracker.as_ref().is_some_and(Tracker::is_informed);
        let look = if is_informed { SnapshotReason::Resync } else { SnapshotReason::First };
        watching.look_at = None;
        watching.look_limit = Some(now + LOOK_LIMIT);
        match watching.monitor.request_snapshot(look) {
            // The answer is queued already; reading it now saves a turn.
            Ok(()) => self.hear(),
            Err(error) => self.look_later(&error),
        }
    }

    fn look_later(&mut self, error: &WatchError) {
        let Some(watching) = &mut self.watching else {
            return;
        };
        let wait = watching.backoff.next_wait(&mut watching.dice);
        watching.look_at = Some(clock::now() + wait);
        watching.look_limit = None;
        if !std::mem::replace(&mut watching.is_failing, true) {
            self.journal.note(&Event::LookFailed(error));
        }
    }

    /// Nothing could be read in time, or there is nothing to read.
    fn assume(&mut self, now: Moment) {
        let seen = Observation::FirstSnapshotOverdue;
        let change = match &mut self.tracker {
            Some(tracker) => tracker.apply(&seen, now),
            None => Some(StateChange::assumed(now)),
        };
        if let Some(change) = change {
            self.journal.note(&Event::RoleChanged(&change));
            self.heed(&change);
            self.publish(&change);
        }
    }

    /// Compares what we hold with what the world holds.
    fn audit(&mut self) {
        self.watch_directories();
        // Where directories tell nothing (some network file systems), this does.
        self.agent.socket_appeared();
        if self.has_lost_its_namespace() {
            self.namespace_gone();
            return;
        }
        if self.state_file.was_changed() {
            self.journal.note(&Event::StateRestored);
            if let Some(role) = self.published {
                let written = self.state_file.set((self.words)(role), clock::now());
                self.note_written(&written);
            }
        }
        let Some(watching) = &mut self.watching else {
            return;
        };
        if watching.monitor.is_snapshot_pending() || watching.look_at.is_some() {
            return;
        }
        match watching.monitor.request_snapshot(SnapshotReason::Audit) {
            Ok(()) => watching.look_limit = Some(clock::now() + LOOK_LIMIT),
            Err(error) => self.look_later(&error),
        }
    }

    /// Whether the name stands for nothing any more, or for something else. Not being allowed
    /// to look is no answer.
    fn has_lost_its_namespace(&self) -> bool {
        NetnsId::of_name(&self.netns.0).is_ok_and(|named| named != Some(self.netns.1))
    }

    fn namespace_gone(&mut self) {
        if self.leave_at.is_some() {
            return;
        }
        let now = clock::now();
        self.leave_at = Some(now + LAST_WORDS_LIMIT);
        // The socket would keep the namespace, and all that is in it, alive.
        self.watching = None;
        self.announcer = None;
        self.journal.note(&Event::NamespaceGone);
        let seen = Observation::NamespaceRemoved;
        if let Some(change) = self.tracker.as_mut().and_then(|tracker| tracker.apply(&seen, now)) {
            self.journal.note(&Event::RoleChanged(&change));
            self.publish(&change);
        }
    }

    // Doing.

    /// Publishes a new state.
    ///
    /// ORDER: the file comes first, because it is the cheapest outlet and the agent may read it as soon as it
    /// is notified. Announcements come next, because traffic depends on them. Connection tracking precedes the
    /// agent: services that the agent starts may use the connections.
    fn publish(&mut self, change: &StateChange) {
        let state = change.to;
        self.published = Some(state);
        let written = self.state_file.set((self.words)(state), clock::now());
        self.note_written(&written);
        self.announce(clock::now());
        if let Some(conntrack) = &mut self.conntrack {
            self.agent.delivery().withhold();
            if let Err(error) = conntrack.start(state, clock::now()) {
                self.lose_conntrack(&error);
            }
        }
        // While the helper synchronises connections, the agent waits for it.
        if self.conntrack.as_ref().is_none_or(|conntrack| conntrack.due().is_none()) {
            self.agent.delivery().want(state);
            let told = self.agent.tick(clock::now());
            self.note_told(told);
        }
    }

    /// Tells the announcer of the role, in its place among the events: what appeared before a
    /// demotion is cancelled by it, and what appears after is not.
    fn heed(&mut self, change: &StateChange) {
        if let Some(announcer) = &mut self.announcer {
            announcer.set_state(change.to, change.at);
        }
    }

    fn announce(&mut self, now: Moment) {
        let notes = self.announcer.as_mut().map(|announcer| announcer.tick(now));
        self.note_announced(notes);
    }

    fn read_conntrack(&mut self) {
        while let Some(line) = &mut self.conntrack {
            match line.read() {
                Ok(Some((role, report))) => {
                    self.journal.note(&Event::Conntrack(role, &report));
                    if report == ConntrackReport::Ended {
                        self.agent.delivery().want(role);
                    }
                }
                Ok(None) => return,
                Err(error) => self.lose_conntrack(&error),
            }
        }
    }

    /// The helper is gone: the agent does not wait for it any longer.
    fn lose_conntrack(&mut self, error: &io::Error) {
        self.conntrack = None;
        self.journal.note(&Event::ConntrackLost(error));
        if let Some(role) = self.published {
            self.agent.delivery().want(role);
        }
    }

    // Watching for the agent, and for the end of the namespace.

    /// Watches what is not watched yet, or no longer. A directory that is missing is tried
    /// again with every audit, and the retries of the outlets do not depend on it.
    fn watch_directories(&mut self) {
        let agents = self.agent.path().parent().unwrap_or(Path::new("/"));
        if self.agent_directory.as_ref().is_none_or(|watched| !watched.is_at(agents)) {
            self.agent_directory =
                self.directories.watch(agents, DirectoryInterest::Additions).ok();
            // What appeared before we watched made no sound.
            self.agent.socket_appeared();
        }
        let names = Path::new(DIRECTORY);
        if self.netns_directory.as_ref().is_none_or(|watched| !watched.is_at(names)) {
            self.netns_directory = self.directories.watch(names, DirectoryInterest::Removals).ok();
        }
    }

    fn read_directories(&mut self) {
        if self.directories.has_changed() {
            self.agent.socket_appeared();
            if self.has_lost_its_namespace() {
                self.namespace_gone();
            }
        }
    }

    // Saying.

    fn note_written(&mut self, written: &WriteOutcome) {
        match written {
            WriteOutcome::Written => {
                if let Some(role) = self.published {
                    self.journal.note(&Event::StateWritten(role));
                }
            }
            WriteOutcome::Failed(error) => self.journal.note(&Event::StateNotWritten(error)),
            WriteOutcome::StillFailing => {}
        }
    }

    fn note_announced(&mut self, notes: Option<Vec<AnnounceNote>>) {
        for note in notes.into_iter().flatten() {
            self.journal.note(&Event::Announcement(&note));
        }
    }

    fn note_told(&mut self, told: Option<AgentOutcome>) {
        match told {
            Some(AgentOutcome::Acknowledged(role)) => self.journal.note(&Event::AgentTold(role)),
            Some(AgentOutcome::Failed(role, error)) => {
                self.journal.note(&Event::AgentNotTold(role, &error));
            }
            None => {}
        }
    }
}

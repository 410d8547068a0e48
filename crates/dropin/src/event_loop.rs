// SPDX-License-Identifier: Apache-2.0
//! The event loop of one monitored router. Only this module determines the order in which the outlets run.
//!
//! ```text
//!  kernel            RTM_NEWADDR on some link
//!    │
//!  linux::monitor    poll() returns; netlink messages are decoded to observations
//!    │
//!  core::tracker     no change of state: nothing more is done
//!    │               StateChange
//!    ├─ 1  outlets::state_file  inline; the file is replaced in one step  ◄ other programs read it
//!    ├─ 2  outlets::announce    inline; a packet socket                   ◄ network
//!    ├─ 3  conntrack            a helper process runs the commands        ◄ connections
//!    └─ 4  outlets::agent       after 3 has ended, or after a timeout     ◄ control plane
//! ```
//!
//! The loop applies all queued events before it publishes: if the state changes and changes back within one
//! batch, only the last state is published. Nothing here blocks, except the one `poll` in
//! [`EventLoop::wait_and_read`].
//!
//! This file holds the wait and the timers. `observe` reads the kernel, `publish` serves the outlets,
//! `directories` watches the agent's socket and the name of the namespace.

mod directories;
mod observe;
mod publish;
mod settings;
mod timers;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vipwatch_core::{Jitter, Moment, NetnsName, NeutronState, Tracker};
use vipwatch_linux::clock;
use vipwatch_linux::dnotify::{DirectoryNotifier, WatchedDirectory};
use vipwatch_linux::monitor::{Monitor, MonitorEvent};
use vipwatch_linux::netns::NetnsId;

pub use self::settings::{LoopEnd, LoopSettings, OptionalOutlets};
use self::timers::MonitorTimers;
use crate::conntrack::ConntrackOutlet;
use crate::event::{Event, EventLog};
use vipwatch_outlets::agent::{AgentOutlet, StateWords};
use vipwatch_outlets::announce::{AnnounceNote, Announcer};
use vipwatch_outlets::state_file::StateFile;

/// The loop counts as idle if no timer expires within this time. The caller then releases unused memory.
const MIN_IDLE_TIME: Duration = Duration::from_secs(1);

/// The event loop of one router: the tracked state, the outlets, and their timers.
#[derive(Debug)]
pub struct EventLoop<L> {
    /// Records every event.
    pub log: L,
    /// The state that was given to the outlets last; `None` before the first one.
    published: Option<NeutronState>,
    /// The watched namespace: its name, and the identity that the name had at the start.
    netns: (NetnsName, NetnsId),
    /// `None` if the settings name no valid address; the state is then assumed to be backup.
    tracker: Option<Tracker>,
    /// The netlink monitor and its timers; `None` without a valid address, and after the namespace was removed.
    timers: Option<MonitorTimers>,
    /// When backup is assumed because no snapshot was read; `None` after the first snapshot or assumption.
    first_snapshot_deadline: Option<Moment>,
    state_file: StateFile,
    announcer: Option<Box<Announcer>>,
    /// `None` if conntrackd is not enabled, or if the helper was lost.
    conntrack: Option<ConntrackOutlet>,
    agent: AgentOutlet,
    words: StateWords,
    directories: DirectoryNotifier,
    /// The directory of the agent's socket; `None` while it cannot be watched.
    agent_directory: Option<WatchedDirectory>,
    /// The directory of namespace names; `None` while it cannot be watched.
    netns_directory: Option<WatchedDirectory>,
    /// When the next audit starts.
    audit_at: Moment,
    audit_interval: Duration,
    /// How many audits found a wrong state. Any value but zero is a defect.
    audit_mismatches: u32,
    /// When the process ends after its namespace was removed; `None` while the namespace exists.
    exit_deadline: Option<Moment>,
    /// Buffer for events of the monitor; empty between two reads.
    events: Vec<MonitorEvent>,
}

/// The part of the loop that a ready descriptor belongs to.
#[derive(Clone, Copy)]
enum Source {
    Monitor,
    Directories,
    Agent,
    Announcer,
    Conntrack,
    /// A descriptor of the caller, by its position.
    Extra(usize),
}

impl<L: EventLog> EventLoop<L> {
    /// Creates a loop that reads its first snapshot in the first [`Self::tick`]. `monitor` has already subscribed:
    /// the kernel queues every event from now on.
    pub fn new(
        settings: LoopSettings,
        monitor: Option<Monitor>,
        outlets: OptionalOutlets,
        log: L,
    ) -> io::Result<Self> {
        let now = clock::now();
        let seed = settings.seed;
        let words = settings.agent.words;
        let state_file = StateFile::new(settings.state_dir, Jitter::new(seed));
        let mut agent = AgentOutlet::new(settings.agent, Jitter::new(seed.rotate_left(32)));
        if let Some(age) = state_file.age() {
            // An earlier monitor or the agent wrote the file: the agent worked on this router at that time.
            agent.delivery().predecessor_reported(now.before(age));
        }
        let mut event_loop = Self {
            log,
            published: None,
            netns: settings.netns,
            tracker: settings.watch.map(Tracker::new),
            timers: monitor.map(|monitor| MonitorTimers::new(monitor, now, Jitter::new(!seed))),
            first_snapshot_deadline: Some(now + settings.first_snapshot_timeout),
            state_file,
            announcer: outlets.announcer,
            conntrack: outlets.conntrack,
            agent,
            words,
            directories: DirectoryNotifier::new()?,
            agent_directory: None,
            netns_directory: None,
            audit_at: now + settings.audit_interval,
            audit_interval: settings.audit_interval,
            audit_mismatches: 0,
            exit_deadline: None,
            events: Vec::new(),
        };
        event_loop.watch_directories();
        Ok(event_loop)
    }

    /// Waits until a descriptor is ready or a timer expires, and reads every ready descriptor. Returns the positions
    /// of the ready descriptors among `extra`, which belong to the caller. The caller calls [`Self::tick`] next,
    /// unless it stops.
    pub fn wait_and_read(&mut self, extra: &[BorrowedFd<'_>]) -> io::Result<Vec<usize>> {
        let ready = self.wait(extra)?;
        let mut extras = Vec::new();
        for source in ready {
            match source {
                Source::Monitor => self.read_events(),
                Source::Directories => self.read_directories(),
                Source::Agent => {
                    let outcome = self.agent.read_answer(clock::now());
                    self.log_agent(outcome);
                }
                Source::Announcer => {
                    let notes = self.announcer.as_mut().map(|announcer| announcer.read_answers());
                    self.log_announcements(notes);
                }
                Source::Conntrack => self.read_conntrack(),
                Source::Extra(index) => extras.push(index),
            }
        }
        Ok(extras)
    }

    /// Records the final counts of the announcer, before the process ends.
    pub fn close(&mut self) {
        let counts = self.announcer.as_mut().and_then(|announcer| announcer.take_counts());
        self.log_announcements(counts.map(|counts| vec![AnnounceNote::Ended(counts)]));
    }

    /// Whether no request is under way and no timer expires within [`MIN_IDLE_TIME`].
    pub fn is_idle(&self) -> bool {
        let limit = clock::now() + MIN_IDLE_TIME;
        self.agent.waiting_on().is_none() && self.due().is_none_or(|due| due > limit)
    }

    /// Why the process can end now; `None` while there is something left to do.
    pub fn end(&self) -> Option<LoopEnd> {
        let deadline = self.exit_deadline?;
        let is_over = self.agent.is_settled() || deadline <= clock::now();
        is_over.then_some(LoopEnd::NamespaceRemoved)
    }

    fn wait(&self, extra: &[BorrowedFd<'_>]) -> io::Result<Vec<Source>> {
        let mut sources = Vec::with_capacity(6);
        let mut polled = Vec::with_capacity(6);
        {
            let mut add = |source, fd| {
                sources.push(source);
                polled.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
            };
            if let Some(timers) = &self.timers {
                add(Source::Monitor, timers.monitor.as_fd());
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
            if let Some(conntrack) = &self.conntrack {
                add(Source::Conntrack, conntrack.waiting_on());
            }
            for (index, fd) in extra.iter().enumerate() {
                add(Source::Extra(index), *fd);
            }
        }
        let timeout = self.due().map(|due| due.since(clock::now()));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = sources.iter().zip(&polled).filter(|(_, polled)| !polled.revents().is_empty());
        Ok(ready.map(|(source, _)| *source).collect())
    }

    /// When the next timer expires.
    fn due(&self) -> Option<Moment> {
        let timers = self.timers.as_ref();
        [
            self.first_snapshot_deadline,
            timers.and_then(|timers| timers.snapshot_at),
            timers.and_then(|timers| timers.snapshot_deadline),
            self.state_file.due(),
            self.announcer.as_ref().and_then(|announcer| announcer.due()),
            self.conntrack.as_ref().and_then(ConntrackOutlet::due),
            self.agent.due(),
            self.exit_deadline,
            Some(self.audit_at),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Runs every timer that has expired: audit, snapshots, retries of the outlets, announcements.
    pub fn tick(&mut self) {
        let now = clock::now();
        if self.audit_at <= now {
            self.audit_at = now + self.audit_interval;
            self.audit();
        }
        self.query_snapshot_if_due(now);
        if self.first_snapshot_deadline.is_some_and(|deadline| deadline <= now) {
            self.first_snapshot_deadline = None;
            self.assume_backup(now);
        }
        if let Some(outcome) = self.state_file.tick(now) {
            self.log_state_file(&outcome);
        }
        self.announce(now);
        if let Some(state) = self.conntrack.as_mut().and_then(|conntrack| conntrack.tick(now)) {
            self.log.record(&Event::ConntrackTimedOut(state));
            self.agent.delivery().want(state);
        }
        let outcome = self.agent.tick(now);
        self.log_agent(outcome);
        // ORDER: after the agent, which may wait for the end of the commands.
        if let Some(conntrack) = &mut self.conntrack {
            conntrack.write_result();
        }
    }
}

//! Takes reports from monitors: many at once, each whole, each promised.
//!
//! ```text
//!              bytes                 whole                written             answered
//!   accepted ─────────▶ reading ─────────────▶ promising ────────▶ settling ──────────▶ kept, or closed
//!                          │ too slow, too long,    │ no room, disk full
//!                          ▼ not a report           ▼
//!                        400, 408                  503
//! ```
//!
//! One thread, one `epoll`. A report is answered when the journal has it. What follows from it is decided
//! by [`ReportStates`], and told to whoever wants to know ([`SettledReport`]).

mod accept;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use vipwatch_core::debounce::ReportedState;
use vipwatch_core::{InstanceId, Moment};
use vipwatch_linux::clock;
use vipwatch_linux::worker::{Heartbeat, beat_every};

use crate::control::{ControlMessage, ControlQueue};
use crate::journal::{Completion, Journal, StoredReports};
use crate::reply::Reply;
use crate::report_states::{ReportOutcome, ReportStates, RouterReport};
use crate::request::{LONGEST, Report, RequestProgress, read};

/// Instances that are kept apart; a node has a thousand.
const INSTANCES: usize = 100_000;

/// How long whoever has begun to speak may go on when the server is stopped.
const FAREWELL: Duration = Duration::from_secs(1);

/// When the journal is tried again if it had no room.
const SOON: Duration = Duration::from_millis(10);

/// The name of the problem that the journal cannot be opened or written.
const JOURNAL_PROBLEM: &str = "journal";

const LISTENER: u64 = 0;
const JOURNAL: u64 = 1;
const ORDERS: u64 = 2;
const FIRST: u64 = 16;

/// What holds of an instance from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledReport {
    /// Whose.
    pub instance: InstanceId,
    /// What.
    pub state: ReportedState,
    /// What held before; `None` if nothing did, or nobody knows any more.
    pub from: Option<ReportedState>,
    /// The number of the report that it rests on.
    pub seq: i64,
    /// When it was settled.
    pub at: SystemTime,
}

/// Those who are told what holds. Nothing here may wait.
pub trait ReportSink: Send {
    /// This holds from now on.
    fn tell(&mut self, settled: &SettledReport);

    /// This holds since the receiver before us; `told` is who was told, and of which report.
    fn recall(&mut self, settled: &SettledReport, told: &BTreeMap<String, i64>);

    /// This instance is not there any more.
    fn forget(&mut self, _instance: &InstanceId) {}

    /// No more will be told. May wait, for a little while, for those who are being told.
    fn close(&mut self) {}
}

/// Who may report, and how soon it is acted on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiverPolicy {
    /// Users that are believed; root and ours among them, if at all.
    pub users: Vec<u32>,
    /// Groups whose members are believed, by their effective group or a supplementary one.
    pub groups: Vec<u32>,
    /// For how long a primary is held back; zero for not at all.
    pub interval: Duration,
    /// From the first byte awaited to the last one read.
    pub deadline: Duration,
    /// Connections at a time. When there are more, who came first and is silent makes room.
    pub connections: usize,
}

impl Default for ReceiverPolicy {
    /// Nobody, as soon as Neutron's agent would.
    fn default() -> Self {
        let (interval, deadline) = (Duration::from_secs(2), Duration::from_secs(5));
        Self { users: Vec::new(), groups: Vec::new(), interval, deadline, connections: 4096 }
    }
}

/// What is counted, and what is known.
#[derive(Debug, Clone, Default)]
pub struct ReceiverView {
    /// Everybody of whom something was claimed.
    pub instances: BTreeMap<InstanceId, RouterReport>,
    /// Reports that were promised.
    pub accepted: u64,
    /// Reports that changed nothing: repeated, held back, or taken back in time.
    pub coalesced: u64,
    /// Requests that were no reports, by reason.
    pub rejected: BTreeMap<&'static str, u64>,
    /// Reports for which nothing could be promised.
    pub unable: u64,
    /// Connections now.
    pub connections: usize,
    /// Reports that wait for the disk.
    pub pending: usize,
    /// What keeps the receiver from working, by a short name.
    pub problems: BTreeMap<&'static str, String>,
}

impl ReceiverView {
    /// Notes a problem, or that it is over.
    pub(crate) fn set_problem(&mut self, name: &'static str, problem: Option<String>) {
        match problem {
            Some(problem) => self.problems.insert(name, problem),
            None => self.problems.remove(name),
        };
    }
}

/// One monitor's line to us.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    bytes: Vec<u8>,
    /// He may not report, and is told so when he has said something: not before he can hear it.
    is_stranger: bool,
    /// A report of his waits for the disk.
    is_promised: bool,
    /// Whether more is waited for. Most have said everything when they are let in.
    is_watched: bool,
    deadline: Moment,
}

/// A server that runs until it is told to stop.
pub(crate) struct Server {
    listener: OwnedFd,
    control: ControlQueue,
    waiting: OwnedFd,
    policy: ReceiverPolicy,
    journal: Journal,
    audience: Box<dyn ReportSink>,
    view: Arc<Mutex<ReceiverView>>,
    connections: BTreeMap<u64, Connection>,
    /// Reports that wait for the disk, by the connection they came over, which may be gone by then.
    promises: BTreeMap<u64, Report>,
    /// In the order of their deadlines.
    deadlines: VecDeque<(Moment, u64)>,
    states: ReportStates,
    /// Until when nobody is let in.
    closed_until: Option<Moment>,
    /// Nobody could be let in, and that was said.
    is_full: bool,
    /// Users who may not report, tried, and were named in the log.
    known_strangers: BTreeSet<Option<u32>>,
    next: u64,
}

impl Server {
    /// Serves `listener`, which does not wait.
    pub(crate) fn new(
        listener: OwnedFd,
        control: ControlQueue,
        policy: ReceiverPolicy,
        (journal, memory): (Journal, StoredReports),
        audience: Box<dyn ReportSink>,
    ) -> io::Result<Self> {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |source: &dyn AsFd, mark| {
            let data = epoll::EventData::new_u64(mark);
            epoll::add(&waiting, source.as_fd(), data, epoll::EventFlags::IN)
        };
        add(&listener, LISTENER)?;
        add(&journal, JOURNAL)?;
        add(&control, ORDERS)?;
        let states = ReportStates::new(policy.interval);
        let mut server = Self {
            listener,
            control,
            waiting,
            policy,
            journal,
            audience,
            view: Arc::default(),
            connections: BTreeMap::new(),
            promises: BTreeMap::new(),
            deadlines: VecDeque::new(),
            states,
            closed_until: None,
            is_full: false,
            known_strangers: BTreeSet::new(),
            next: FIRST,
        };
        let problem = server.journal.problem().map(str::to_owned);
        server.amend(|view| view.set_problem(JOURNAL_PROBLEM, problem));
        server.remember(memory);
        Ok(server)
    }

    /// What is counted and known, for whoever asks.
    pub(crate) fn view(&self) -> Arc<Mutex<ReceiverView>> {
        Arc::clone(&self.view)
    }

    /// What was promised before is kept.
    fn remember(&mut self, memory: StoredReports) {
        for (instance, memory) in memory {
            if let Some(settled) = self.states.recall(&instance, &memory) {
                self.audience.recall(&settled, &memory.told);
            }
            self.show(&instance);
            for (seq, state) in memory.open {
                let now = (clock::now(), SystemTime::now());
                let consequence = self.states.hear_again(&instance, state, seq, now);
                self.follow(&instance, state, seq, &consequence);
            }
        }
    }

    /// Serves until it is told to stop; what was promised is then on the disk.
    pub(crate) fn run(mut self, heartbeat: &Heartbeat) -> io::Result<()> {
        let served = self.serve(heartbeat);
        // Also if it could not go on: nobody is told any more by those who would be told by the next.
        self.audience.close();
        served
    }

    fn serve(&mut self, heartbeat: &Heartbeat) -> io::Result<()> {
        while self.turn(None)? {
            heartbeat.beat();
        }
        // Whoever waits to be let in is the next one's.
        self.closed_until = None;
        let _ = epoll::delete(&self.waiting, &self.listener);
        epoll::delete(&self.waiting, &self.control)?;
        // Whoever has begun to speak is heard out.
        let end = clock::now() + FAREWELL;
        for token in self.connections.keys().copied().collect::<Vec<u64>>() {
            self.read(token);
        }
        self.journal.hand_over()?;
        let is_speaking = |one: &Connection| one.is_promised || !one.bytes.is_empty();
        while clock::now() < end && self.connections.values().any(is_speaking) {
            self.turn(Some(end))?;
        }
        Ok(())
    }

    /// Does what it is told to; false if that is to stop.
    fn obey(&mut self) -> bool {
        let mut goes_on = true;
        for order in self.control.take() {
            match order {
                ControlMessage::ReceiverPolicy(policy) => {
                    self.states.set_interval(policy.interval);
                    self.policy = policy;
                }
                ControlMessage::Listen(listener) => {
                    let _ = epoll::delete(&self.waiting, &self.listener);
                    self.listener = listener;
                    self.closed_until = Some(clock::now());
                }
                ControlMessage::Forget(instances) => {
                    for instance in &instances {
                        self.forget(instance);
                    }
                }
                ControlMessage::Stop => goes_on = false,
            }
        }
        goes_on
    }

    fn forget(&mut self, instance: &InstanceId) {
        self.states.forget(instance);
        self.journal.forget(instance.clone());
        self.audience.forget(instance);
        self.amend(|view| {
            view.instances.remove(instance);
        });
    }

    /// Waits once, and does what is to be done; false if that is to stop.
    fn turn(&mut self, end: Option<Moment>) -> io::Result<bool> {
        let mut ready = [MaybeUninit::<epoll::Event>::uninit(); 1024];
        let limit = [self.next_due(), end].into_iter().flatten().min();
        let limit = limit.map_or(Duration::MAX, |due| due.since(clock::now())).min(beat_every());
        let limit = Timespec::try_from(limit).ok();
        let events: Vec<u64> = match epoll::wait(&self.waiting, &mut ready, limit.as_ref()) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(Errno::INTR) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        };
        // ORDER: whoever can be answered is, before others are let in.
        if events.contains(&JOURNAL) {
            self.take_completions();
        }
        for token in events.iter().filter(|mark| **mark >= FIRST) {
            self.read(*token);
        }
        if events.contains(&LISTENER) {
            self.accept();
        }
        let goes_on = !events.contains(&ORDERS) || self.obey();
        self.tick();
        self.journal.hand_over()?;
        Ok(goes_on)
    }

    fn next_due(&self) -> Option<Moment> {
        let deadline = self.deadlines.front().map(|(at, _)| *at);
        // What found no room is handed over soon.
        let behind = self.journal.is_behind().then(|| clock::now() + SOON);
        [deadline, self.states.due(), self.closed_until, behind].into_iter().flatten().min()
    }

    /// Reads what is there.
    fn read(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.is_promised {
            return;
        }
        let mut buffer = [0_u8; 4096];
        let mut is_end = false;
        loop {
            let room = LONGEST * 2;
            match recv(&connection.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    is_end = true;
                    break;
                }
                Ok((length, _)) => {
                    connection.bytes.extend_from_slice(&buffer[..length]);
                    // Whether there is more, the next turn knows.
                    if length < buffer.len() || connection.bytes.len() > room {
                        break;
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    self.connections.remove(&token);
                    return;
                }
            }
        }
        self.understand(token);
        if is_end {
            self.part(token);
        }
    }

    /// Somebody has said all he will. If that was a report, he may wait for the answer.
    fn part(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        if connection.is_promised {
            return;
        }
        let is_cut = !connection.bytes.is_empty();
        self.connections.remove(&token);
        if is_cut {
            self.count("cut_off");
        }
    }

    /// Takes the next request out of what has come, unless one is being promised.
    fn understand(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        if connection.is_promised || connection.bytes.is_empty() {
            return;
        }
        if connection.is_stranger {
            return self.answer(token, &Reply::Forbidden, false);
        }
        match read(&connection.bytes) {
            RequestProgress::Incomplete => {}
            RequestProgress::Refused(refusal) => {
                tracing::debug!("refused: {refusal}");
                self.count(refusal.name());
                self.answer(token, &Reply::Refused(refusal.to_string()), false);
            }
            RequestProgress::Report(report, length) => {
                connection.bytes.drain(..length);
                self.promise(token, report);
            }
        }
    }

    fn promise(&mut self, token: u64, report: Report) {
        let is_new = !self.states.has(&report.instance);
        let reason = if is_new && self.states.len() >= INSTANCES {
            Some("too many instances")
        } else if self.journal.keep(token, report.instance.clone(), report.state) {
            None
        } else {
            Some("the disk is too far behind")
        };
        match reason {
            None => {
                self.promises.insert(token, report);
                let pending = self.promises.len();
                self.amend(|view| view.pending = pending);
                if let Some(connection) = self.connections.get_mut(&token) {
                    connection.is_promised = true;
                    // What else he says waits with the kernel, and costs us nothing until he is answered.
                    if std::mem::take(&mut connection.is_watched) {
                        let _ = epoll::delete(&self.waiting, &connection.socket);
                    }
                }
            }
            Some(reason) => {
                self.amend(|view| view.unable += 1);
                self.answer(token, &Reply::Unable(reason.to_owned()), report.is_kept);
            }
        }
    }

    /// Takes what the journal has done.
    fn take_completions(&mut self) {
        for completion in self.journal.completions() {
            match completion {
                Completion::Stored((token, result)) => self.keep_promise(token, result),
                Completion::Opened(memories) => {
                    self.amend(|view| view.set_problem(JOURNAL_PROBLEM, None));
                    self.remember(memories);
                }
                Completion::Replaced => self.restore(),
            }
        }
    }

    /// A report was written, or could not be: the monitor is answered.
    fn keep_promise(&mut self, token: u64, result: Result<i64, String>) {
        // A monitor that hung up is not answered; its report counts all the same.
        let Some(report) = self.promises.remove(&token) else { return };
        let (pending, error) = (self.promises.len(), result.as_ref().err().cloned());
        self.amend(|view| view.pending = pending);
        self.note_journal_problem(&report.instance, error);
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.is_promised = false;
        }
        match result {
            Ok(seq) => {
                self.amend(|view| view.accepted += 1);
                self.hear(&report.instance, report.state, seq);
                self.answer(token, &Reply::Taken, report.is_kept);
            }
            Err(why) => {
                self.amend(|view| view.unable += 1);
                let why = format!("the journal cannot be written: {why}");
                self.answer(token, &Reply::Unable(why), report.is_kept);
            }
        }
    }

    /// Shows why the last report could not be written. A reason is logged once, until it changes.
    fn note_journal_problem(&self, instance: &InstanceId, error: Option<String>) {
        let Ok(mut view) = self.view.lock() else { return };
        let known = view.problems.get(JOURNAL_PROBLEM);
        match &error {
            Some(error) if Some(error) != known => {
                tracing::error!(%instance, error, "journal cannot keep a report");
            }
            None if known.is_some() => tracing::info!("journal keeps reports again"),
            _ => {}
        }
        view.set_problem(JOURNAL_PROBLEM, error);
    }

    /// Writes what holds into a new journal, whose predecessor was damaged.
    fn restore(&mut self) {
        for kept in self.states.kept() {
            if let Some(state) = kept.settled {
                self.journal.restore(kept.instance.clone(), kept.seq, state, kept.acted);
            }
            if let Some((seq, state)) = kept.held {
                self.journal.restore_report(kept.instance, seq, state);
            }
        }
    }

    /// Answers, and goes on or closes.
    fn answer(&mut self, token: u64, reply: &Reply, is_kept: bool) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let bytes = reply.bytes(is_kept);
        let is_sent = send(&connection.socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
            .is_ok_and(|sent| sent == bytes.len());
        if !is_kept || !is_sent {
            self.connections.remove(&token);
            return;
        }
        self.understand(token);
        self.watch(token);
    }

    /// A report that is in the journal.
    fn hear(&mut self, instance: &InstanceId, state: ReportedState, seq: i64) {
        let consequence = self.states.hear(instance, state, seq, (clock::now(), SystemTime::now()));
        self.follow(instance, state, seq, &consequence);
    }

    fn follow(
        &mut self,
        instance: &InstanceId,
        state: ReportedState,
        seq: i64,
        consequence: &ReportOutcome,
    ) {
        // ORDER: shown before it is told. Who begins to be told meanwhile reads what is shown.
        self.show(instance);
        if let ReportOutcome::Tell(settled) = consequence {
            return self.tell(settled);
        }
        self.amend(|view| view.coalesced += 1);
        // Nobody is told, and yet it is settled: it must not be thought of again.
        if *consequence == ReportOutcome::Note {
            self.journal.settle(instance.clone(), seq, state, false);
        }
    }

    /// What follows is told, and noted.
    fn tell(&mut self, settled: &SettledReport) {
        self.audience.tell(settled);
        self.journal.settle(settled.instance.clone(), settled.seq, settled.state, true);
    }

    /// Does what is due.
    fn tick(&mut self) {
        let now = clock::now();
        self.open_again(now);
        for settled in self.states.tick((now, SystemTime::now())) {
            self.show(&settled.instance);
            self.tell(&settled);
        }
        while let Some((at, token)) = self.deadlines.front().copied().filter(|(at, _)| *at <= now) {
            self.deadlines.pop_front();
            let connection = self.connections.get(&token);
            // It has a later one, or is waiting for us.
            let is_over = connection.is_some_and(|one| one.deadline == at && !one.is_promised);
            let has_begun = connection.is_some_and(|one| !one.bytes.is_empty());
            if is_over && has_begun {
                self.count("too_slow");
                self.answer(token, &Reply::TooSlow, false);
            } else if is_over {
                self.connections.remove(&token);
            }
        }
        let connections = self.connections.len();
        self.amend(|view| view.connections = connections);
    }

    fn show(&self, instance: &InstanceId) {
        let Some(report) = self.states.router_report(instance) else { return };
        self.amend(|view| {
            view.instances.insert(instance.clone(), report);
        });
    }

    fn count(&self, reason: &'static str) {
        self.amend(|view| *view.rejected.entry(reason).or_default() += 1);
    }

    fn amend(&self, change: impl FnOnce(&mut ReceiverView)) {
        if let Ok(mut view) = self.view.lock() {
            change(&mut view);
        }
    }
}

#[cfg(test)]
mod tests;

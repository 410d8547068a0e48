// SPDX-License-Identifier: Apache-2.0
//! The receiver thread: one `epoll` loop that reads requests, has the journal store the reports, and replies.
//!
//! ```text
//!              bytes                complete               stored                reply
//!   accepted ─────────▶ reading ─────────────▶ storing ──────────▶ applying ─────────────▶ keep-alive, or closed
//!                          │ timeout, too long,     │ queue full,
//!                          ▼ not a report           ▼ disk full
//!                      400, 403, 408               503
//! ```
//!
//! - [`accept`]: which peers may connect, and which connection is closed when there are too many.
//! - [`connection`]: bytes in, replies out, request timeouts.
//! - [`rejections`]: log lines about rejected reports.
//! - [`reports`]: a complete report on its way through journal, [`ReportStates`] and [`ReportSink`].
//! - [`view`]: counters and states for other threads.

mod accept;
mod connection;
mod rejections;
mod reports;
mod view;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use vipwatch_core::{InstanceId, Moment};
use vipwatch_linux::clock;
use vipwatch_linux::worker::{Heartbeat, beat_every};

use self::connection::Connection;
use self::rejections::RejectionLog;
pub use self::view::ReceiverView;
use crate::control::{ControlMessage, ControlQueue};
use crate::journal::{Journal, StoredReports};
use crate::policy::ReceiverPolicy;
use crate::report_sink::ReportSink;
use crate::report_states::{Now, ReportStates};
use crate::request::Report;

/// How long the receiver waits at its end for requests that have begun.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Time until the server tries again to send a batch to the journal's writer after its queue was full.
const JOURNAL_RETRY_DELAY: Duration = Duration::from_millis(10);

/// Time between two cleanups of the journal.
const CLEANUP_INTERVAL: Duration = Duration::from_mins(1);

/// Events of one `epoll_wait`.
const MAX_EVENTS: usize = 1024;

// The number that `epoll` returns for each descriptor.
const LISTENER_TOKEN: u64 = 0;
const JOURNAL_TOKEN: u64 = 1;
const CONTROL_TOKEN: u64 = 2;
/// The token of the first connection. Each connection has the next number, and none is used again.
const FIRST_CONNECTION_TOKEN: u64 = 16;

/// What a server consists of.
pub(crate) struct ServerParts {
    /// A listening socket in non-blocking mode.
    pub(crate) listener: OwnedFd,
    pub(crate) control: ControlQueue,
    pub(crate) policy: ReceiverPolicy,
    pub(crate) journal: Journal,
    pub(crate) sink: Box<dyn ReportSink>,
}

/// The state of the receiver thread.
pub(crate) struct Server {
    listener: OwnedFd,
    control: ControlQueue,
    epoll: OwnedFd,
    policy: ReceiverPolicy,
    journal: Journal,
    sink: Box<dyn ReportSink>,
    view: Arc<Mutex<ReceiverView>>,
    /// Open connections, by token. The order of tokens is the order of arrival.
    connections: BTreeMap<u64, Connection>,
    /// Reports that the journal has not stored yet, by the token of their connection, which may be closed meanwhile.
    storing: BTreeMap<u64, Report>,
    /// Request deadlines with the connection's token, in order. A connection may have outdated entries.
    deadlines: VecDeque<(Moment, u64)>,
    states: ReportStates,
    /// The listener is not polled until then, because `accept` has failed.
    accept_paused_until: Option<Moment>,
    /// Whether the failure of `accept` was logged.
    is_accept_failure_logged: bool,
    rejection_log: RejectionLog,
    /// When the journal deletes old rows next.
    next_cleanup: Moment,
    next_token: u64,
}

impl Server {
    /// Registers the descriptors, and restores the states that the journal has `stored`.
    pub(crate) fn new(parts: ServerParts, stored: StoredReports) -> io::Result<Self> {
        let ServerParts { listener, control, policy, journal, sink } = parts;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add = |source: &dyn AsFd, token| {
            let data = epoll::EventData::new_u64(token);
            epoll::add(&epoll, source.as_fd(), data, epoll::EventFlags::IN)
        };
        add(&listener, LISTENER_TOKEN)?;
        add(&journal, JOURNAL_TOKEN)?;
        add(&control, CONTROL_TOKEN)?;
        let states = ReportStates::new(policy.debounce_interval);
        let mut server = Self {
            listener,
            control,
            epoll,
            policy,
            journal,
            sink,
            view: Arc::default(),
            connections: BTreeMap::new(),
            storing: BTreeMap::new(),
            deadlines: VecDeque::new(),
            states,
            accept_paused_until: None,
            is_accept_failure_logged: false,
            rejection_log: RejectionLog::default(),
            // The previous process may have left more than the limit.
            next_cleanup: clock::now(),
            next_token: FIRST_CONNECTION_TOKEN,
        };
        server.show_journal_open_error();
        server.sink.set_journal(server.journal.reader());
        server.restore(stored);
        Ok(server)
    }

    /// The counters and states, which this thread updates.
    pub(crate) fn view(&self) -> Arc<Mutex<ReceiverView>> {
        Arc::clone(&self.view)
    }

    /// Serves until [`ControlMessage::Stop`]. Every acknowledged report is on the disk when the server is dropped.
    pub(crate) fn run(mut self, heartbeat: &Heartbeat) -> io::Result<()> {
        let served = self.serve(heartbeat);
        // Also after an error: the next receiver makes the remaining deliveries, and two receivers must not deliver at the same time.
        self.sink.close();
        self.clean_up();
        served
    }

    fn serve(&mut self, heartbeat: &Heartbeat) -> io::Result<()> {
        while self.poll_once(None)? {
            heartbeat.beat();
        }
        self.finish_requests()
    }

    /// Serves the requests that have begun, for up to [`SHUTDOWN_TIMEOUT`], and accepts no connections.
    /// Connections in the backlog are left to the next process, if the service manager keeps the socket.
    fn finish_requests(&mut self) -> io::Result<()> {
        self.accept_paused_until = None;
        let _ = epoll::delete(&self.epoll, &self.listener);
        epoll::delete(&self.epoll, &self.control)?;
        let end = clock::now() + SHUTDOWN_TIMEOUT;
        for token in self.connections.keys().copied().collect::<Vec<u64>>() {
            self.read(token);
        }
        self.journal.send_batch()?;
        while clock::now() < end && self.connections.values().any(Connection::has_request) {
            self.poll_once(Some(end))?;
        }
        Ok(())
    }

    /// Waits for events, at most until `end`, and processes them; false after [`ControlMessage::Stop`].
    fn poll_once(&mut self, end: Option<Moment>) -> io::Result<bool> {
        let mut ready = [MaybeUninit::<epoll::Event>::uninit(); MAX_EVENTS];
        let due = end.map_or(self.next_timer(), |end| end.min(self.next_timer()));
        let limit = due.since(clock::now()).min(beat_every());
        let limit = Timespec::try_from(limit).ok();
        let events: Vec<u64> = match epoll::wait(&self.epoll, &mut ready, limit.as_ref()) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(Errno::INTR) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        };
        // ORDER: replies first, then open connections, then new ones.
        if events.contains(&JOURNAL_TOKEN) {
            self.process_completions();
        }
        for token in events.iter().filter(|token| **token >= FIRST_CONNECTION_TOKEN) {
            self.read(*token);
        }
        if events.contains(&LISTENER_TOKEN) {
            self.accept();
        }
        let is_running = !events.contains(&CONTROL_TOKEN) || self.process_control();
        self.run_timers();
        self.journal.send_batch()?;
        Ok(is_running)
    }

    /// When [`Self::run_timers`] or the journal has something to do.
    fn next_timer(&self) -> Moment {
        let deadline = self.deadlines.front().map(|(at, _)| *at);
        let unsent = self.journal.has_unsent().then(|| clock::now() + JOURNAL_RETRY_DELAY);
        let timers = [deadline, unsent, self.states.due(), self.accept_paused_until];
        timers.into_iter().flatten().fold(self.next_cleanup, Moment::min)
    }

    fn run_timers(&mut self) {
        let now = clock::now();
        self.resume_accepting(now);
        self.rejection_log.tick(now);
        self.settle_due();
        self.close_overdue(now);
        if now >= self.next_cleanup {
            self.next_cleanup = now + CLEANUP_INTERVAL;
            self.clean_up();
        }
        let connections = self.connections.len();
        self.change_view(|view| view.connections = connections);
    }

    /// Processes the messages of the owner; false after [`ControlMessage::Stop`].
    fn process_control(&mut self) -> bool {
        let mut is_running = true;
        for message in self.control.take_all() {
            match message {
                ControlMessage::SetPolicy(policy) => {
                    self.states.set_debounce_interval(policy.debounce_interval);
                    self.policy = policy;
                }
                ControlMessage::Listen(listener) => {
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.listener = listener;
                    // The next round of timers registers it.
                    self.accept_paused_until = Some(clock::now());
                }
                ControlMessage::Forget(instances) => {
                    for instance in &instances {
                        self.forget(instance);
                    }
                }
                ControlMessage::DeleteUndelivered(last) => {
                    self.journal.delete_undelivered(last);
                    // There may be more than one cleanup lists.
                    self.clean_up();
                }
                ControlMessage::Stop => is_running = false,
            }
        }
        is_running
    }

    fn forget(&mut self, instance: &InstanceId) {
        self.states.forget(instance);
        self.journal.forget(instance.clone());
        self.sink.forget(instance);
        self.change_view(|view| {
            view.instances.remove(instance);
        });
    }

    /// Counts and logs a rejected report of `user`, `None` if the kernel did not report one.
    fn reject(&mut self, user: Option<u32>, label: &'static str, reason: &str) {
        self.count_rejected(label);
        self.rejection_log.log(user, label, reason, clock::now());
    }

    fn count_rejected(&self, reason: &'static str) {
        self.change_view(|view| *view.rejected.entry(reason).or_default() += 1);
    }

    fn change_view(&self, change: impl FnOnce(&mut ReceiverView)) {
        if let Ok(mut view) = self.view.lock() {
            change(&mut view);
        }
    }
}

/// The current time, for [`ReportStates`].
fn now() -> Now {
    Now { monotonic: clock::now(), wall: SystemTime::now() }
}

#[cfg(test)]
mod tests;

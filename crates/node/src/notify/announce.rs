// SPDX-License-Identifier: Apache-2.0
//! Announces the addresses of instances that have become primary, on one thread for all instances.
//!
//! The queue holds one order for each instance; a newer order replaces it. While an instance is announced, for some
//! seconds, the worker keeps sockets in its network namespace open. When the instance is no longer primary, the
//! announcement stops at once.
//!
//! keepalived adds addresses one by one, a link may get its carrier later, and duplicate address detection takes some
//! time. So the worker takes further snapshots of the namespace and announces the addresses that were added.
//!
//! After the first rounds, the worker asks whether another station holds an address. While one does, the announcement
//! does not end ([`running`]).

mod duplicates;
mod progress;
mod running;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_core::{AnnouncePlan, ErrorChain, InstanceId, Moment};
use vipwatch_history::Stage;
use vipwatch_linux::clock;
use vipwatch_linux::vrrp_capture::close_all;
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};
use vipwatch_outlets::announce::AnnounceNote;

pub(crate) use self::duplicates::{DuplicateReports, DuplicateTable};
pub(crate) use self::progress::AnnounceProgress;
use self::running::{Running, SNAPSHOT_TIMES};
use super::ANNOUNCE;
use super::notification::{DeliveryReport, ReportQueue};
use crate::state::Counters;
use crate::transition::Transition;

/// Maximum number of announcements that have ended and are not closed yet.
const MAX_ENDED: usize = 10_000;

/// An order for one instance.
#[derive(Debug)]
enum AnnounceOrder {
    /// The instance has become primary.
    Start(Arc<Transition>, AnnouncePlan),
    /// The instance is no longer primary.
    Stop,
    /// The instance is still primary, and a second primary has gone.
    Again(Arc<Transition>, AnnouncePlan),
}

/// Which orders replace each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum OrderKind {
    /// Start or stop. The first of the two kinds: it is read before the other one.
    Role,
    Again,
}

/// BOUND: the queue keeps the newest order of each instance and kind.
type AnnounceQueue = WakeQueue<
    ((InstanceId, OrderKind), AnnounceOrder),
    BTreeMap<(InstanceId, OrderKind), AnnounceOrder>,
>;

/// Sends orders to the announcement thread.
#[derive(Debug)]
pub(crate) struct AnnounceHandle {
    orders: AnnounceQueue,
    progress: AnnounceProgress,
}

impl AnnounceHandle {
    /// Starts the thread, which adds its reports to `reports`, completed announcements to `progress`, and other holders
    /// of an address to `duplicates`.
    pub(crate) fn start(
        reports: ReportQueue,
        progress: AnnounceProgress,
        duplicates: DuplicateReports,
    ) -> io::Result<Self> {
        // BOUND: two orders for each instance.
        let orders: AnnounceQueue = WakeQueue::newest_per_key()?;
        let worker = AnnounceWorker {
            orders: orders.clone(),
            reports,
            progress: progress.clone(),
            duplicates,
            running: BTreeMap::new(),
            pending: BTreeMap::new(),
            ended: start_closing()?,
        };
        spawn_worker("announce", move |heartbeat| worker.run(heartbeat))?;
        Ok(Self { orders, progress })
    }

    /// Starts the announcement of an instance that has become primary.
    pub(crate) fn announce(&self, transition: &Arc<Transition>, plan: AnnouncePlan) {
        let order = AnnounceOrder::Start(Arc::clone(transition), plan);
        self.progress.begin(&transition.instance.id, transition.seq);
        self.order(&transition.instance.id, OrderKind::Role, order);
    }

    /// Announces an instance again that is still primary, because a second primary has gone.
    pub(crate) fn announce_again(&self, transition: &Arc<Transition>, plan: AnnouncePlan) {
        let order = AnnounceOrder::Again(Arc::clone(transition), plan);
        self.progress.begin(&transition.instance.id, transition.seq);
        self.order(&transition.instance.id, OrderKind::Again, order);
    }

    /// Stops the announcement of an instance.
    pub(crate) fn stop(&self, id: &InstanceId) {
        self.progress.stop(id);
        self.order(id, OrderKind::Role, AnnounceOrder::Stop);
    }

    fn order(&self, id: &InstanceId, kind: OrderKind, order: AnnounceOrder) {
        self.orders.push(((id.clone(), kind), order));
    }
}

/// The state of the announcement thread.
#[derive(Debug)]
struct AnnounceWorker {
    orders: AnnounceQueue,
    reports: ReportQueue,
    progress: AnnounceProgress,
    duplicates: DuplicateReports,
    running: BTreeMap<InstanceId, Running>,
    /// Announcements that could not begin.
    pending: BTreeMap<InstanceId, PendingStart>,
    /// Takes announcements that have ended.
    ended: SyncSender<Running>,
}

/// An announcement that begins, or is tried again because it could not.
#[derive(Debug)]
struct PendingStart {
    transition: Arc<Transition>,
    plan: AnnouncePlan,
    first_attempt: Moment,
    failures: usize,
}

impl PendingStart {
    /// The time of the next attempt; `None` after the last one.
    fn due(&self) -> Option<Moment> {
        SNAPSHOT_TIMES.get(self.failures - 1).map(|wait| self.first_attempt + *wait)
    }
}

/// Starts the thread that closes announcements: the kernel takes some 12 ms for each packet socket, in which the announcing
/// thread would send nothing.
fn start_closing() -> io::Result<SyncSender<Running>> {
    // BOUND: a further one is closed by the announcing thread.
    let (sender, ended) = sync_channel(MAX_ENDED);
    std::thread::Builder::new().name("announce-end".to_owned()).spawn(move || {
        while let Ok(first) = ended.recv() {
            close_all(std::iter::once(first).chain(ended.try_iter()).collect());
        }
    })?;
    Ok(sender)
}

impl AnnounceWorker {
    fn run(mut self, heartbeat: &Heartbeat) -> ! {
        loop {
            for ((id, _), order) in self.orders.take_all() {
                heartbeat.beat();
                self.obey(&id, order);
                // The first packet is sent now, before the orders of other instances are read.
                self.advance(&id);
            }
            heartbeat.beat();
            self.advance_due();
            self.wait();
        }
    }

    fn obey(&mut self, id: &InstanceId, order: AnnounceOrder) {
        match order {
            AnnounceOrder::Start(transition, plan) => self.begin(&transition, plan),
            AnnounceOrder::Stop => {
                self.pending.remove(id);
                self.end(id);
                self.duplicates.set(id, Vec::new());
            }
            AnnounceOrder::Again(transition, plan) => {
                tracing::info!(instance = %id, "announcing addresses again: no other host advertises them any more");
                match self.running.get_mut(id) {
                    Some(running) => running.announce_again(),
                    None => self.begin(&transition, plan),
                }
            }
        }
    }

    fn begin(&mut self, transition: &Arc<Transition>, plan: AnnouncePlan) {
        let (transition, first_attempt) = (Arc::clone(transition), clock::now());
        self.pending.remove(&transition.instance.id);
        self.attempt(PendingStart { transition, plan, first_attempt, failures: 0 });
    }

    fn attempt(&mut self, mut start: PendingStart) {
        let transition = Arc::clone(&start.transition);
        let id = &transition.instance.id;
        match Running::begin(Arc::clone(&transition), start.plan) {
            Ok(mut running) => {
                if let Some(earlier) = self.running.get_mut(id) {
                    running.keep_doubts(earlier);
                }
                self.end(id);
                self.running.insert(id.clone(), running);
            }
            Err(error) => {
                self.end(id);
                self.duplicates.set(id, Vec::new());
                if start.failures == 0 {
                    self.report(&transition, Err(error));
                }
                start.failures += 1;
                if start.due().is_some() {
                    self.pending.insert(id.clone(), start);
                } else {
                    self.progress.abandon(id, transition.seq);
                }
            }
        }
    }

    /// Ends an announcement. Another thread closes its sockets.
    fn end(&mut self, id: &InstanceId) {
        if let Some(running) = self.running.remove(id) {
            let _ = self.ended.try_send(running);
        }
    }

    /// Advances each announcement that is due.
    fn advance_due(&mut self) {
        let now = clock::now();
        let is_due = |_: &InstanceId, start: &mut PendingStart| start.due() <= Some(now);
        for (id, start) in self.pending.extract_if(.., is_due).collect::<Vec<_>>() {
            self.attempt(start);
            self.advance(&id);
        }
        let is_due = |running: &Running| {
            running.announcer.waiting_on().is_some() || running.due().is_none_or(|due| due <= now)
        };
        let due: Vec<InstanceId> = self
            .running
            .iter()
            .filter(|(_, running)| is_due(running))
            .map(|(id, _)| id.clone())
            .collect();
        for id in due {
            self.advance(&id);
        }
    }

    fn advance(&mut self, id: &InstanceId) {
        let Some(running) = self.running.get_mut(id) else { return };
        let had_doubts = running.has_doubts();
        let notes = running.advance();
        self.duplicates.set(id, running.duplicates());
        if running.has_doubts() && !had_doubts {
            // A run after this one announces and checks the addresses again.
            self.progress.reopen(id);
        }
        let transition = Arc::clone(&running.transition);
        for note in &notes {
            count(note, self.duplicates.counters());
        }
        let outcomes = notes.iter().filter_map(|note| log_note(&transition, note));
        let outcomes: Vec<Result<(), String>> = outcomes.collect();
        // One packet that was sent counts as success, even if others failed.
        let best = outcomes.iter().find(|outcome| outcome.is_ok()).or(outcomes.first());
        let is_new = !running.is_reported;
        running.is_reported |= best.is_some();
        running.has_sent |= best.is_some_and(Result::is_ok);
        if running.due().is_none() {
            if running.has_sent {
                self.progress.complete(&transition);
            } else {
                self.progress.abandon(id, transition.seq);
            }
            self.end(id);
        }
        if let Some(outcome) = best.filter(|_| is_new) {
            self.report(&transition, outcome.clone());
        }
    }

    fn wait(&self) {
        let now = clock::now();
        let starts = self.pending.values().filter_map(PendingStart::due);
        let due: Option<Moment> =
            self.running.values().filter_map(Running::due).chain(starts).min();
        let limit = due.map_or(Duration::MAX, |due| due.since(now)).min(beat_every());
        let mut polled = vec![PollFd::new(&self.orders, PollFlags::IN)];
        let sockets = self.running.values().filter_map(|running| running.announcer.waiting_on());
        polled.extend(sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        let _ = poll(&mut polled, Timespec::try_from(limit).ok().as_ref());
    }

    fn report(&self, transition: &Transition, outcome: Result<(), String>) {
        let Transition { seq, instance, .. } = transition;
        let mut report = DeliveryReport::new(
            &instance.id,
            *seq,
            transition.measured_from(),
            Stage::Announce,
            ANNOUNCE,
        );
        report.outcome = outcome;
        self.reports.push(report);
    }
}

/// Counts a note of the announcer for the metrics.
fn count(note: &AnnounceNote, counters: &Counters) {
    let counter = match note {
        AnnounceNote::Sent { .. } => &counters.announce_sent,
        AnnounceNote::Refused { .. } => &counters.announce_refused,
        AnnounceNote::Failed { .. } => &counters.announce_failed,
        AnnounceNote::Duplicate { .. } => &counters.announce_duplicates,
        AnnounceNote::QueryFailed(_) | AnnounceNote::ListenFailed(_) | AnnounceNote::Ended(_) => {
            return;
        }
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Logs a note of the announcer; returns the result that it means for the delivery, `None` if it means none.
fn log_note(transition: &Transition, note: &AnnounceNote) -> Option<Result<(), String>> {
    let id = &transition.instance.id;
    match note {
        AnnounceNote::Sent { target, link, .. } => {
            tracing::debug!(instance = %id, ip = %target.ip, %link, "address announced");
            Some(Ok(()))
        }
        AnnounceNote::Refused { target, reason, .. } => {
            tracing::warn!(instance = %id, ip = %target.ip, %reason, "address not announced");
            Some(Err(format!("{}: {reason}", target.ip)))
        }
        AnnounceNote::Failed { target, error, .. } => {
            tracing::warn!(instance = %id, ip = %target.ip, %error, "cannot announce address");
            Some(Err(format!("{}: {error}", target.ip)))
        }
        AnnounceNote::Duplicate { target, link, mac } => {
            // The audit logs it as a finding, once it is confirmed.
            tracing::debug!(instance = %id, ip = %target.ip, %link, %mac, "another station claims the address");
            None
        }
        AnnounceNote::QueryFailed(error) => Some(Err(ErrorChain(error).to_string())),
        AnnounceNote::ListenFailed(error) => Some(Err(error.to_string())),
        AnnounceNote::Ended(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use vipwatch_core::cause::ChangeDirection;
    use vipwatch_core::{Role, Trigger};
    use vipwatch_history::{Retention, Writer};

    use super::*;
    use crate::audit::{Audit, AuditWorker, FindingChanges};
    use crate::receiver::ReceiverHandle;
    use crate::state::StateStore;
    use crate::view::FindingSources;

    /// A worker without a thread.
    fn worker(directory: &std::path::Path) -> AnnounceWorker {
        let store = Arc::new(StateStore::default());
        let receiver_handle = ReceiverHandle::default();
        let audit = Audit::new(Arc::clone(&store), receiver_handle.clone(), None);
        let state_dir = directory.to_owned();
        let sources = FindingSources { store: Arc::clone(&store), receiver_handle, state_dir };
        let changes = FindingChanges::new().unwrap();
        let audit_worker =
            AuditWorker::start(Arc::new(audit), Duration::from_hours(1), sources, changes).unwrap();
        let (writer, _) = Writer::open(directory, Retention::default()).unwrap();
        AnnounceWorker {
            orders: WakeQueue::newest_per_key().unwrap(),
            reports: ReportQueue::new().unwrap(),
            progress: AnnounceProgress::new(BTreeMap::new(), writer.delivery_store()),
            duplicates: DuplicateReports::new(&store, audit_worker.requests()),
            running: BTreeMap::new(),
            pending: BTreeMap::new(),
            ended: sync_channel(1).0,
        }
    }

    /// An instance in a namespace has become primary; `None` is that of the test.
    fn transition(netns: Option<&str>) -> Arc<Transition> {
        let mut instance = crate::discovery::example();
        instance.netns = netns.map(|name| name.parse().unwrap());
        Arc::new(Transition {
            seq: 7,
            at: SystemTime::now(),
            read_at: clock::now(),
            is_repeated: false,
            instance: Arc::new(instance),
            from: None,
            to: Role::Primary,
            direction: ChangeDirection::Gained,
            trigger: Trigger::Address,
            cause: None,
        })
    }

    #[test]
    fn an_announcement_that_has_ended_is_handed_over_and_not_closed_by_the_worker() {
        let directory = tempfile::tempdir().unwrap();
        let mut worker = worker(directory.path());
        let (sender, ended) = sync_channel(1);
        worker.ended = sender;
        let transition = transition(None);
        let id = &transition.instance.id;
        let end_with = |worker: &mut AnnounceWorker, order| {
            worker.begin(&transition, AnnouncePlan::PRIMARY);
            assert!(worker.running.contains_key(id) && ended.try_recv().is_err());
            worker.obey(id, order);
            ended.try_recv().map(|running| running.transition.seq)
        };
        assert_eq!(end_with(&mut worker, AnnounceOrder::Stop), Ok(7));
        assert!(worker.running.is_empty());
        // A newer announcement replaces it.
        let newer = AnnounceOrder::Start(Arc::clone(&transition), AnnouncePlan::PRIMARY);
        assert_eq!(end_with(&mut worker, newer), Ok(7));
        assert!(worker.running.contains_key(id));
    }

    #[test]
    fn an_announcement_that_cannot_begin_is_tried_again_for_a_while_and_reported_once() {
        let directory = tempfile::tempdir().unwrap();
        let mut worker = worker(directory.path());
        let transition = transition(Some("vipwatch-missing"));
        let id = transition.instance.id.clone();
        worker.progress.begin(&id, 7);
        worker.begin(&transition, AnnouncePlan::PRIMARY);
        for (tried, wait) in SNAPSHOT_TIMES.into_iter().enumerate() {
            assert!(worker.progress.includes(&id, 7), "after {} attempts", tried + 1);
            let start = worker.pending.get_mut(&id).unwrap();
            assert_eq!(start.failures, tried + 1);
            // The next attempt is due now.
            start.first_attempt = clock::now().before(wait);
            worker.advance_due();
        }
        assert!(worker.pending.is_empty() && !worker.progress.includes(&id, 7));
        let reports = worker.reports.take_all();
        assert_eq!(reports.len(), 1, "{reports:?}");
        assert!(reports[0].outcome.is_err(), "{reports:?}");
    }
}

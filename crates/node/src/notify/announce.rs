//! Announces the addresses of instances that have become primary, on one thread for all instances.
//!
//! The queue holds one order for each instance; a newer order replaces it. While an instance is announced, for some
//! seconds, the worker keeps sockets in its network namespace open. When the instance is no longer primary, the
//! announcement stops at once.
//!
//! keepalived adds addresses one by one, a link may get its carrier later, and duplicate address detection takes some
//! time. So the worker takes further snapshots of the namespace at [`SNAPSHOT_TIMES`] and announces the addresses that
//! were added.

mod progress;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_core::snapshot::AddressFacts;
use vipwatch_core::{
    AnnouncePlan, ErrorChain, InstanceId, Moment, NeutronState, Observation, Snapshot,
    SnapshotReason,
};
use vipwatch_history::Stage;
use vipwatch_linux::clock;
use vipwatch_linux::netns::visit;
use vipwatch_linux::netns_query::NetnsQuery;
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};
use vipwatch_outlets::announce::{AnnounceNote, AnnounceTrigger, Announcer};

pub(crate) use self::progress::AnnounceProgress;
use super::ANNOUNCE;
use super::notification::{DeliveryReport, ReportQueue};
use crate::transition::Transition;

/// When further snapshots of the namespace are taken, counted from the start of the announcement.
const SNAPSHOT_TIMES: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// An order for one instance.
#[derive(Debug)]
enum AnnounceOrder {
    /// The instance has become primary.
    Start(Arc<Transition>, AnnouncePlan),
    /// The instance is no longer primary.
    Stop,
}

/// BOUND: the queue keeps the newest order of each instance.
type AnnounceQueue = WakeQueue<(InstanceId, AnnounceOrder), BTreeMap<InstanceId, AnnounceOrder>>;

/// Sends orders to the announcement thread.
#[derive(Debug)]
pub(crate) struct AnnounceHandle {
    orders: AnnounceQueue,
    progress: AnnounceProgress,
}

impl AnnounceHandle {
    /// Starts the thread, which adds its reports to `reports`, and completed announcements to `progress`.
    pub(crate) fn start(reports: ReportQueue, progress: AnnounceProgress) -> io::Result<Self> {
        let orders = WakeQueue::newest_per_key()?;
        let worker = AnnounceWorker {
            orders: orders.clone(),
            reports,
            progress: progress.clone(),
            running: BTreeMap::new(),
        };
        spawn_worker("announce", move |heartbeat| worker.run(heartbeat))?;
        Ok(Self { orders, progress })
    }

    /// Starts the announcement of an instance that has become primary.
    pub(crate) fn announce(&self, transition: &Arc<Transition>, plan: AnnouncePlan) {
        let order = AnnounceOrder::Start(Arc::clone(transition), plan);
        self.progress.begin(&transition.instance.id, transition.seq);
        self.order(&transition.instance.id, order);
    }

    /// Stops the announcement of an instance.
    pub(crate) fn stop(&self, id: &InstanceId) {
        self.progress.stop(id);
        self.order(id, AnnounceOrder::Stop);
    }

    fn order(&self, id: &InstanceId, order: AnnounceOrder) {
        self.orders.push((id.clone(), order));
    }
}

/// An instance that is being announced.
#[derive(Debug)]
struct Running {
    transition: Arc<Transition>,
    announcer: Announcer,
    query: NetnsQuery,
    /// When the announcement began.
    began: Moment,
    /// The number of [`SNAPSHOT_TIMES`] that have passed.
    snapshots_taken: usize,
    /// Whether the first result was reported; later results are only logged.
    is_reported: bool,
    /// Whether at least one packet was sent.
    has_sent: bool,
}

impl Running {
    fn next_snapshot(&self) -> Option<Moment> {
        SNAPSHOT_TIMES.get(self.snapshots_taken).map(|wait| self.began + *wait)
    }

    /// When the next packet or snapshot is due; `None` if the announcement has ended.
    fn due(&self) -> Option<Moment> {
        [self.announcer.due(), self.next_snapshot()].into_iter().flatten().min()
    }

    /// Takes a snapshot of the namespace, and gives the instance's addresses in it to the announcer.
    fn take_snapshot(&mut self) -> Result<(), String> {
        let snapshot = self.query.own_snapshot().map_err(|error| ErrorChain(&error).to_string())?;
        let wanted = &self.transition.instance.vrrp.addresses;
        let is_of_instance = |facts: &&AddressFacts| {
            let name = snapshot.link(facts.target.link).map(|link| link.name);
            wanted
                .iter()
                .any(|address| Some(address.link) == name && address.cidr.addr() == facts.target.ip)
        };
        let addresses = snapshot.addresses.iter().filter(is_of_instance).copied().collect();
        let snapshot = Snapshot { addresses, links: snapshot.links };
        let observation = Observation::Snapshot { reason: SnapshotReason::Resync, snapshot };
        self.announcer.observe(&observation, clock::now());
        Ok(())
    }
}

/// The state of the announcement thread.
#[derive(Debug)]
struct AnnounceWorker {
    orders: AnnounceQueue,
    reports: ReportQueue,
    progress: AnnounceProgress,
    running: BTreeMap<InstanceId, Running>,
}

impl AnnounceWorker {
    fn run(mut self, heartbeat: &Heartbeat) -> ! {
        loop {
            for (id, order) in self.orders.take_all() {
                heartbeat.beat();
                self.running.remove(&id);
                if let AnnounceOrder::Start(transition, plan) = order {
                    self.begin(transition, plan);
                    // The first packet is sent now, before the orders of other instances are read.
                    self.advance(&id);
                }
            }
            heartbeat.beat();
            self.advance_due();
            self.wait();
        }
    }

    fn begin(&mut self, transition: Arc<Transition>, plan: AnnouncePlan) {
        let instance = &transition.instance;
        let opened = visit(instance.netns.as_ref(), || {
            let query = NetnsQuery::open_own().map_err(|error| ErrorChain(&error).to_string())?;
            let announcer = Announcer::open(plan, AnnounceTrigger::Primary, None);
            Ok((query, announcer.map_err(|error| ErrorChain(&error).to_string())?))
        });
        let (query, announcer) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return self.fail(&transition, error),
            Err(error) => return self.fail(&transition, ErrorChain(&error).to_string()),
        };
        let mut running = Running {
            transition,
            announcer,
            query,
            began: clock::now(),
            snapshots_taken: 0,
            is_reported: false,
            has_sent: false,
        };
        if let Err(error) = running.take_snapshot() {
            return self.fail(&running.transition, error);
        }
        running.announcer.set_state(NeutronState::Primary, clock::now());
        self.running.insert(running.transition.instance.id.clone(), running);
    }

    /// Advances each announcement that is due.
    fn advance_due(&mut self) {
        let now = clock::now();
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
        if running.next_snapshot().is_some_and(|at| at <= clock::now()) {
            running.snapshots_taken += 1;
            // A failed snapshot is ignored: the announcer queries the kernel before each round, and further
            // snapshots follow.
            let _ = running.take_snapshot();
        }
        let mut notes = running.announcer.read_answers();
        notes.extend(running.announcer.tick(clock::now()));
        let transition = Arc::clone(&running.transition);
        let outcomes = notes.iter().filter_map(|note| log_note(&transition, note));
        let outcomes: Vec<Result<(), String>> = outcomes.collect();
        // One packet that was sent counts as success, even if others failed.
        let best = outcomes.iter().find(|outcome| outcome.is_ok()).or(outcomes.first());
        let is_news = !running.is_reported;
        running.is_reported |= best.is_some();
        running.has_sent |= best.is_some_and(Result::is_ok);
        if running.due().is_none() {
            if running.has_sent {
                self.progress.complete(&transition);
            } else {
                self.progress.abandon(id, transition.seq);
            }
            self.running.remove(id);
        }
        if let Some(outcome) = best.filter(|_| is_news) {
            self.report(&transition, outcome.clone());
        }
    }

    fn wait(&self) {
        let now = clock::now();
        let due: Option<Moment> = self.running.values().filter_map(Running::due).min();
        let limit = due.map_or(Duration::MAX, |due| due.since(now)).min(beat_every());
        let mut polled = vec![PollFd::new(&self.orders, PollFlags::IN)];
        let sockets = self.running.values().filter_map(|running| running.announcer.waiting_on());
        polled.extend(sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        let _ = poll(&mut polled, Timespec::try_from(limit).ok().as_ref());
    }

    /// The announcement cannot begin.
    fn fail(&self, transition: &Transition, error: String) {
        self.progress.abandon(&transition.instance.id, transition.seq);
        self.report(transition, Err(error));
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
            tracing::error!(instance = %id, ip = %target.ip, %link, %mac, "duplicate address on another host");
            None
        }
        AnnounceNote::QueryFailed(error) => Some(Err(ErrorChain(error).to_string())),
        AnnounceNote::ListenFailed(error) => Some(Err(error.to_string())),
        AnnounceNote::Ended(_) => None,
    }
}

//! Announces the addresses of instances that have become primary, on one thread for all.
//!
//! An order is one per instance, and a newer one replaces it; so nothing here grows. While an
//! instance is announced, its namespace is kept open, for some seconds; an instance that is no
//! longer primary is let go at once.
//!
//! keepalived adds addresses one by one, a link may get its carrier later, and duplicate address
//! detection takes its time. So the namespace is looked at again some times ([`LOOKS`]), and what has
//! come is announced too.

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

use super::outlet::{DeliveryReport, ReportQueue};
use crate::transition::Transition;

/// When the namespace is looked at again after an instance became primary.
const LOOKS: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// What to do about one instance.
#[derive(Debug)]
enum AnnounceOrder {
    Start(Arc<Transition>, AnnouncePlan),
    Stop,
}

/// BOUND: the queue keeps the newest order of each instance.
type AnnounceQueue = WakeQueue<(InstanceId, AnnounceOrder), BTreeMap<InstanceId, AnnounceOrder>>;

/// Where orders are given.
#[derive(Debug)]
pub(crate) struct AnnounceHandle {
    orders: AnnounceQueue,
}

impl AnnounceHandle {
    /// Starts the thread.
    pub(crate) fn start(tray: ReportQueue) -> io::Result<Self> {
        let orders = WakeQueue::newest_per_key()?;
        let street = AnnounceWorker { orders: orders.clone(), tray, running: BTreeMap::new() };
        spawn_worker("announce", move |heartbeat| street.walk(heartbeat))?;
        Ok(Self { orders })
    }

    /// The instance has become primary.
    pub(crate) fn announce(&self, transition: &Arc<Transition>, plan: AnnouncePlan) {
        let order = AnnounceOrder::Start(Arc::clone(transition), plan);
        self.order(&transition.instance.id, order);
    }

    /// It is primary no longer.
    pub(crate) fn stop(&self, id: &InstanceId) {
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
    /// When it was begun, and how often the namespace was looked at since.
    began: Moment,
    options: usize,
    is_reported: bool,
}

impl Running {
    fn next_look(&self) -> Option<Moment> {
        LOOKS.get(self.options).map(|wait| self.began + *wait)
    }

    /// When there is something to do; `None` if it is over.
    fn due(&self) -> Option<Moment> {
        [self.announcer.due(), self.next_look()].into_iter().flatten().min()
    }

    /// Shows the announcer which of the instance's addresses there are.
    fn look(&mut self) -> Result<(), String> {
        let snapshot = self.query.own_snapshot().map_err(|error| ErrorChain(&error).to_string())?;
        let wanted = &self.transition.instance.vrrp.addresses;
        let of_ours = |facts: &&AddressFacts| {
            let name = snapshot.link(facts.target.link).map(|link| link.name);
            wanted
                .iter()
                .any(|address| Some(address.link) == name && address.cidr.addr() == facts.target.ip)
        };
        let addresses = snapshot.addresses.iter().filter(of_ours).copied().collect();
        let snapshot = Snapshot { addresses, links: snapshot.links };
        let seen = Observation::Snapshot { reason: SnapshotReason::Resync, snapshot };
        self.announcer.observe(&seen, clock::now());
        Ok(())
    }
}

/// The thread's side.
#[derive(Debug)]
struct AnnounceWorker {
    orders: AnnounceQueue,
    tray: ReportQueue,
    running: BTreeMap<InstanceId, Running>,
}

impl AnnounceWorker {
    fn walk(mut self, heartbeat: &Heartbeat) -> ! {
        loop {
            for (id, order) in self.orders.take_all() {
                heartbeat.beat();
                self.running.remove(&id);
                if let AnnounceOrder::Start(transition, plan) = order {
                    self.begin(transition, plan);
                    // Its first word does not wait for the beginnings of a thousand others.
                    self.turn_one(&id);
                }
            }
            heartbeat.beat();
            self.turn();
            self.wait();
        }
    }

    fn begin(&mut self, transition: Arc<Transition>, plan: AnnouncePlan) {
        let found = &transition.instance;
        let opened = visit(found.netns.as_ref(), || {
            let query = NetnsQuery::open_own().map_err(|error| ErrorChain(&error).to_string())?;
            let announcer = Announcer::open(plan, AnnounceTrigger::Primary, None);
            Ok((query, announcer.map_err(|error| ErrorChain(&error).to_string())?))
        });
        let (query, announcer) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return self.report(&transition, Err(error)),
            Err(error) => return self.report(&transition, Err(ErrorChain(&error).to_string())),
        };
        let (began, is_reported) = (clock::now(), false);
        let mut running = Running { transition, announcer, query, began, options: 0, is_reported };
        if let Err(error) = running.look() {
            return self.report(&running.transition, Err(error));
        }
        running.announcer.set_state(NeutronState::Primary, clock::now());
        self.running.insert(running.transition.instance.id.clone(), running);
    }

    /// Does what is due.
    fn turn(&mut self) {
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
            self.turn_one(&id);
        }
    }

    fn turn_one(&mut self, id: &InstanceId) {
        let Some(running) = self.running.get_mut(id) else { return };
        if running.next_look().is_some_and(|at| at <= clock::now()) {
            running.options += 1;
            // It is looked at again, and the announcer asks before each round.
            let _ = running.look();
        }
        let mut notes = running.announcer.read_answers();
        notes.extend(running.announcer.tick(clock::now()));
        let transition = Arc::clone(&running.transition);
        let outcomes = notes.iter().filter_map(|note| tell(&transition, note));
        let outcomes: Vec<Result<(), String>> = outcomes.collect();
        // Who has heard one of them has heard.
        let best = outcomes.iter().find(|outcome| outcome.is_ok()).or(outcomes.first());
        let is_news = !running.is_reported;
        running.is_reported |= best.is_some();
        if running.due().is_none() {
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

    fn report(&self, transition: &Transition, outcome: Result<(), String>) {
        let mut report = DeliveryReport::new(transition, Stage::Announce, "the network");
        report.outcome = outcome;
        self.tray.push(report);
    }
}

/// Logs a note; tells what it means for the stage, if anything.
fn tell(transition: &Transition, note: &AnnounceNote) -> Option<Result<(), String>> {
    let id = &transition.instance.id;
    match note {
        AnnounceNote::Sent { target, link, .. } => {
            tracing::debug!(instance = %id, ip = %target.ip, %link, "announced");
            Some(Ok(()))
        }
        AnnounceNote::Refused { target, reason, .. } => {
            tracing::warn!(instance = %id, ip = %target.ip, "not announced: {reason}");
            Some(Err(format!("{}: {reason}", target.ip)))
        }
        AnnounceNote::Failed { target, error, .. } => {
            tracing::warn!(instance = %id, ip = %target.ip, %error, "cannot announce");
            Some(Err(format!("{}: {error}", target.ip)))
        }
        AnnounceNote::Duplicate { target, link, mac } => {
            let text = "somebody else has the address too";
            tracing::error!(instance = %id, ip = %target.ip, %link, %mac, "{text}");
            None
        }
        AnnounceNote::QueryFailed(error) => Some(Err(ErrorChain(error).to_string())),
        AnnounceNote::ListenFailed(error) => Some(Err(error.to_string())),
        AnnounceNote::Ended(_) => None,
    }
}

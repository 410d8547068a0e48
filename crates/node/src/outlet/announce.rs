//! Announces the addresses of instances that have become primary, on one thread for all.
//!
//! An order is one per instance, and a newer one replaces it; so nothing here grows. While an
//! instance is announced, its namespace is kept open, for some seconds; an instance that is no
//! longer primary is let go at once.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use vipwatch_core::{AnnouncePlan, Chain, InstanceId, Moment, Role, Target};
use vipwatch_engine::outlet::announce::{Announcer, Note, When};
use vipwatch_history::Stage;
use vipwatch_linux::clock;
use vipwatch_linux::netns::visit;
use vipwatch_linux::survey::Surveyor;

use super::{Report, Tray};
use crate::transition::Transition;

/// What to do about one instance.
#[derive(Debug)]
enum Order {
    Start(Arc<Transition>, AnnouncePlan),
    Stop,
}

#[derive(Debug)]
struct Shared {
    orders: Mutex<BTreeMap<InstanceId, Order>>,
    bell: OwnedFd,
}

/// Where orders are given.
#[derive(Debug)]
pub(crate) struct Crier {
    shared: Arc<Shared>,
}

impl Crier {
    /// Starts the thread.
    pub(crate) fn start(tray: Tray) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { orders: Mutex::default(), bell });
        let theirs = Arc::clone(&shared);
        let work = move || Street { shared: theirs, tray, running: BTreeMap::new() }.walk();
        std::thread::Builder::new().name("announce".to_owned()).spawn(work)?;
        Ok(Self { shared })
    }

    /// The instance has become primary.
    pub(crate) fn announce(&self, transition: &Arc<Transition>, plan: AnnouncePlan) {
        let order = Order::Start(Arc::clone(transition), plan);
        self.order(&transition.found.id, order);
    }

    /// It is primary no longer.
    pub(crate) fn stop(&self, id: &InstanceId) {
        self.order(id, Order::Stop);
    }

    fn order(&self, id: &InstanceId, order: Order) {
        if let Ok(mut orders) = self.shared.orders.lock() {
            orders.insert(id.clone(), order);
        }
        let _ = rustix::io::write(&self.shared.bell, &1_u64.to_ne_bytes());
    }
}

/// An instance that is being announced.
#[derive(Debug)]
struct Running {
    transition: Arc<Transition>,
    announcer: Announcer,
    is_reported: bool,
}

/// The thread's side.
#[derive(Debug)]
struct Street {
    shared: Arc<Shared>,
    tray: Tray,
    running: BTreeMap<InstanceId, Running>,
}

impl Street {
    fn walk(mut self) {
        loop {
            let orders = match self.shared.orders.lock() {
                Ok(mut orders) => std::mem::take(&mut *orders),
                Err(_) => return,
            };
            for (id, order) in orders {
                self.running.remove(&id);
                if let Order::Start(transition, plan) = order {
                    self.begin(transition, plan);
                }
            }
            self.turn();
            self.wait();
        }
    }

    fn begin(&mut self, transition: Arc<Transition>, plan: AnnouncePlan) {
        let found = &transition.found;
        let opened = visit(found.netns.as_ref(), || {
            let survey = Surveyor::open().and_then(|mut surveyor| surveyor.survey());
            let announcer = Announcer::open(plan, When::Asked, None);
            survey.map_err(|error| Chain(&error).to_string()).and_then(|survey| {
                Ok((survey, announcer.map_err(|error| Chain(&error).to_string())?))
            })
        });
        let (survey, mut announcer) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(error)) => return self.report(&transition, Err(error)),
            Err(error) => return self.report(&transition, Err(Chain(&error).to_string())),
        };
        announcer.follow(Role::Primary, clock::now());
        for address in &found.vrrp.addresses {
            let link = survey.links.iter().find(|facts| facts.name == address.link);
            if let Some(link) = link {
                let target = Target { link: link.link, ip: address.cidr.addr() };
                announcer.start(target, clock::now());
            }
        }
        let id = found.id.clone();
        self.running.insert(id, Running { transition, announcer, is_reported: false });
    }

    /// Does what is due.
    fn turn(&mut self) {
        let mut over = Vec::new();
        let mut reports = Vec::new();
        for (id, running) in &mut self.running {
            let mut notes = running.announcer.answered();
            notes.extend(running.announcer.tick(clock::now()));
            for note in notes {
                if let Some(outcome) = tell(&running.transition, &note)
                    && !running.is_reported
                {
                    running.is_reported = true;
                    reports.push((Arc::clone(&running.transition), outcome));
                }
            }
            if running.announcer.due().is_none() {
                over.push(id.clone());
            }
        }
        for (transition, outcome) in reports {
            self.report(&transition, outcome);
        }
        for id in over {
            self.running.remove(&id);
        }
    }

    fn wait(&self) {
        let now = clock::now();
        let due: Option<Moment> =
            self.running.values().filter_map(|running| running.announcer.due()).min();
        let limit = due.map_or(Duration::from_hours(1), |due| due.since(now));
        let mut polled = vec![PollFd::new(&self.shared.bell, PollFlags::IN)];
        let sockets = self.running.values().filter_map(|running| running.announcer.waiting_on());
        polled.extend(sockets.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        let _ = poll(&mut polled, Timespec::try_from(limit).ok().as_ref());
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.bell, &mut count);
    }

    fn report(&self, transition: &Transition, outcome: Result<(), String>) {
        let mut report = Report::new(transition, Stage::Announce, "the network");
        report.outcome = outcome;
        self.tray.leave(report);
    }
}

/// Logs a note; tells what it means for the stage, if anything.
fn tell(transition: &Transition, note: &Note) -> Option<Result<(), String>> {
    let id = &transition.found.id;
    match note {
        Note::Sent { target, link, .. } => {
            tracing::debug!(instance = %id, ip = %target.ip, %link, "announced");
            Some(Ok(()))
        }
        Note::Refused { target, reason, .. } => {
            tracing::warn!(instance = %id, ip = %target.ip, "not announced: {reason}");
            Some(Err(format!("{}: {reason}", target.ip)))
        }
        Note::Failed { target, error, .. } => {
            tracing::warn!(instance = %id, ip = %target.ip, %error, "cannot announce");
            Some(Err(format!("{}: {error}", target.ip)))
        }
        Note::Duplicate { target, link, mac } => {
            let text = "somebody else has the address too";
            tracing::error!(instance = %id, ip = %target.ip, %link, %mac, "{text}");
            None
        }
        Note::Blind(error) => Some(Err(Chain(error).to_string())),
        Note::Deaf(error) => Some(Err(error.to_string())),
        Note::Ended(_) => None,
    }
}

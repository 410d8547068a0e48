// SPDX-License-Identifier: Apache-2.0
//! The thread that scans for instances. Reading and parsing files takes as long as their authors like, within the limits
//! of the parser. A role change of an ordinary instance waits for one scan, five seconds at most, while keepalived has not loaded
//! an edit of its file, or files have changed since the last scan; no other role change waits.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vipwatch_linux::wake_queue::WakeQueue;
use vipwatch_linux::worker::{Heartbeat, beat_every, spawn_worker};

use super::{ConfigLocations, ConfigScanner, DiscoveryResult, InstanceConfig, PendingEdit};
use crate::processes::ProcessSource;

/// An order for the thread.
#[derive(Debug)]
enum Order {
    SetLocations(ConfigLocations, Vec<Arc<InstanceConfig>>),
    SetSources(Vec<ProcessSource>),
    Scan,
    Stop,
}

/// The result of a scan, with everything that its consumer needs to know about the files.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) result: DiscoveryResult,
    /// The directories in which a change makes a scan worthwhile, except those of routers.
    pub(crate) directories: BTreeSet<PathBuf>,
    /// The directory with the directories of the routers.
    pub(crate) ha_confs: PathBuf,
    /// The files of the routers, each in a directory of its own.
    pub(crate) router_files: Vec<Arc<Path>>,
    /// The files that are missing, and the instances of which are kept for a while.
    pub(crate) held: Vec<Arc<Path>>,
    /// The files of which the content is not in use.
    pub(crate) pending: HashMap<Arc<Path>, PendingEdit>,
    /// How long the scan took.
    pub(crate) took: Duration,
}

/// The handle to the thread, which ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct DiscoveryWorker {
    /// BOUND: the consumer asks for a scan only after it has received the last one; the other orders come from reloads
    /// and from changes of processes, one a second at most, of which the thread uses the newest.
    orders: WakeQueue<Order>,
    /// BOUND: one entry; see `orders`.
    scans: WakeQueue<Scan>,
}

impl DiscoveryWorker {
    pub(crate) fn start(
        locations: ConfigLocations,
        own: Vec<Arc<InstanceConfig>>,
    ) -> io::Result<Self> {
        let (orders, scans) = (WakeQueue::new()?, WakeQueue::new()?);
        let (received, results) = (orders.clone(), scans.clone());
        let scanner = ConfigScanner::new(locations, own);
        spawn_worker("discovery", move |heartbeat| run(scanner, &received, &results, heartbeat))?;
        Ok(Self { orders, scans })
    }

    pub(crate) fn set_locations(&self, locations: ConfigLocations, own: Vec<Arc<InstanceConfig>>) {
        self.orders.push(Order::SetLocations(locations, own));
    }

    pub(crate) fn set_sources(&self, sources: Vec<ProcessSource>) {
        self.orders.push(Order::SetSources(sources));
    }

    /// Begins a scan. Its result makes the descriptor readable.
    pub(crate) fn request_scan(&self) {
        self.orders.push(Order::Scan);
    }

    /// The result of the scan that was requested; `None` if it is not complete.
    pub(crate) fn take(&self) -> Option<Scan> {
        self.scans.take_all().pop()
    }
}

impl Drop for DiscoveryWorker {
    fn drop(&mut self) {
        self.orders.push(Order::Stop);
    }
}

// Readable when a scan is complete.
vipwatch_linux::as_fd!(DiscoveryWorker.scans);

fn run(
    mut scanner: ConfigScanner,
    orders: &WakeQueue<Order>,
    scans: &WakeQueue<Scan>,
    heartbeat: &Heartbeat,
) {
    loop {
        heartbeat.beat();
        let mut polled = [PollFd::new(orders, PollFlags::IN)];
        let _ = poll(&mut polled, Timespec::try_from(beat_every()).ok().as_ref());
        let mut taken = orders.take_all();
        // Only the newest sources count: during a long scan, many may have come.
        let is_sources = |order: &Order| matches!(order, Order::SetSources(_));
        let newest = taken.iter().rposition(is_sources);
        let mut number = 0..;
        taken.retain(|order| number.next() >= newest || !is_sources(order));
        for order in taken {
            match order {
                Order::SetLocations(locations, own) => scanner.set_locations(locations, own),
                Order::SetSources(sources) => scanner.set_sources(sources),
                Order::Scan => scans.push(scan(&mut scanner, heartbeat)),
                Order::Stop => return,
            }
        }
    }
}

fn scan(scanner: &mut ConfigScanner, heartbeat: &Heartbeat) -> Scan {
    let began = Instant::now();
    let _disk = heartbeat.disk();
    let result = scanner.scan_with(&mut || heartbeat.beat());
    Scan {
        result,
        directories: scanner.directories(),
        ha_confs: scanner.ha_confs(),
        router_files: scanner.router_files(),
        held: scanner.held(),
        pending: scanner.pending(),
        took: began.elapsed(),
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Follows the instances of this node: scans the configuration for them, watches their namespaces, and reports
//! what has changed. [`Node`](crate::Node) publishes it; `vipwatch watch` prints it where no node runs.

mod withheld;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vipwatch_core::{Fault, InstanceId, Moment, NetnsName, Role};
use vipwatch_linux::clock::{self, Stamp};
use vipwatch_linux::inotify::{ChangedNames, DirectoryWatcher, WatchTopic};
use vipwatch_linux::netns::DIRECTORY;
use vipwatch_linux::netns_watcher::NetnsWatcher;

use crate::config::Listen;
use crate::discovery::{
    ConfigLocations, ConfigProblem, DiscoveryResult, DiscoveryWorker, InstanceConfig, Origin,
    PendingEdit, SETTLE, Scan,
};
use crate::processes::ProcessSource;
use crate::watch::follower::withheld::Withheld;
use crate::watch::instance_table::{AddressChange, InstanceTable, RoleChange};

/// Time between two scans if no watched directory changes.
const SCAN_INTERVAL: Duration = Duration::from_mins(5);

/// The same while a directory cannot be watched, for example because it does not exist yet.
const UNWATCHED_SCAN_INTERVAL: Duration = Duration::from_secs(10);

/// The same while keepalived has not loaded a file as it is now: nothing reports a reload that adds an address.
const PENDING_SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Delay between a change in a directory and the scan, so that one scan covers many changes: at least this
/// long, and at least [`SCAN_DELAY_TIMES`] as long as the last scan took.
const SCAN_DELAY: Duration = Duration::from_millis(20);
const SCAN_DELAY_TIMES: u32 = 20;

/// While a file is being written, the pause is at least this many times as long as the last scan took: role changes wait for
/// the next one, and others decide how often their files change.
const UNSETTLED_TIMES: u32 = 4;

/// The longest time that the caller waits for a scan.
const MAX_SCAN: Duration = Duration::from_secs(10);

/// What has changed since the last update.
#[derive(Debug, Default)]
pub struct FollowerUpdate {
    /// Role changes before the scan; their instances may be gone after it.
    pub changes_before_scan: Vec<RoleChange>,
    /// Role changes after the scan, including the first role of new instances.
    pub changes: Vec<RoleChange>,
    /// Changes of addresses without a role change; newer than the role changes above.
    pub address_changes: Vec<AddressChange>,
    /// All problems with the configuration; `None` if they are the same as before.
    pub problems: Option<Vec<ConfigProblem>>,
    /// All instances; `None` if they are the same as before.
    pub instances: Option<Vec<Arc<InstanceConfig>>>,
    /// The files of which the content is not in use; `None` if they are the same as before.
    pub(crate) pending: Option<HashMap<Arc<Path>, PendingEdit>>,
    /// The socket of an agent may have appeared.
    pub has_agent_sockets: bool,
}

/// How many of the directories that matter are watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Coverage {
    Complete,
    /// All of them, but the watch of some began after the scan: a change in between was missed.
    New,
    Incomplete,
}

/// Scans for instances, and follows them.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts about scans")]
pub struct Follower {
    /// Scans on a thread of its own.
    discovery: DiscoveryWorker,
    /// Whether a scan is requested and its result has not been taken yet.
    is_scanning: bool,
    /// The directories to watch, except those of routers, as of the last scan.
    wanted_directories: BTreeSet<PathBuf>,
    /// The directory with the directories of the routers.
    ha_confs: PathBuf,
    /// The files of the routers, as of the last scan.
    router_files: Vec<Arc<Path>>,
    /// The missing files of the last scan.
    held: Vec<Arc<Path>>,
    /// The files of which the content is not in use, as of the last scan.
    pending: HashMap<Arc<Path>, PendingEdit>,
    /// Whether a file, except those of routers, has changed since the last scan began.
    has_new_files: bool,
    /// Whether such a file had changed when the scan in progress began.
    is_scanning_new_files: bool,
    /// `None` if the host has no inotify instance left; then only the scan interval counts.
    directories: Option<DirectoryWatcher>,
    table: InstanceTable,
    instances: Vec<Arc<InstanceConfig>>,
    problems: Vec<ConfigProblem>,
    /// Whether the last scan may have missed instances.
    is_unsettled: bool,
    next_scan: Moment,
    /// The names that were added or removed since the last scan, which the next one looks up.
    netns_search: ChangedNames,
    last_scan_took: Duration,
    /// Delay until the next attempt to open a namespace that has a name and cannot be opened.
    netns_retry: Duration,
    /// The directories in which agents have their sockets.
    agent_directories: Vec<PathBuf>,
    /// Changes that a scan decides: their instance is probably being deleted, or keepalived has probably loaded another
    /// configuration.
    withheld: Withheld,
}

impl Follower {
    /// Opens the netlink socket; the first [`Self::rediscover`] finds the instances. `own` are instances from
    /// the node's own configuration. Needs root, or `CAP_NET_BROADCAST` and `CAP_NET_ADMIN`.
    pub fn open(
        locations: ConfigLocations,
        own: Vec<Arc<InstanceConfig>>,
        listen: Listen,
    ) -> io::Result<Self> {
        let watcher = match listen {
            Listen::Auto => NetnsWatcher::open()?,
            Listen::PerNetns => NetnsWatcher::open_per_netns()?,
        };
        Ok(Self {
            discovery: DiscoveryWorker::start(locations, own)?,
            is_scanning: false,
            wanted_directories: BTreeSet::new(),
            ha_confs: PathBuf::new(),
            router_files: Vec::new(),
            held: Vec::new(),
            pending: HashMap::new(),
            has_new_files: false,
            is_scanning_new_files: false,
            directories: DirectoryWatcher::new().ok(),
            table: InstanceTable::over(watcher),
            instances: Vec::new(),
            problems: Vec::new(),
            is_unsettled: false,
            next_scan: clock::now(),
            netns_search: ChangedNames::Any,
            last_scan_took: Duration::ZERO,
            netns_retry: SETTLE,
            agent_directories: Vec::new(),
            withheld: Withheld::default(),
        })
    }

    /// The table of the followed instances.
    pub fn table(&mut self) -> &mut InstanceTable {
        &mut self.table
    }

    /// Scans these locations from the next [`Self::rediscover`] on.
    pub fn set_locations(&mut self, locations: ConfigLocations, own: Vec<Arc<InstanceConfig>>) {
        self.discovery.set_locations(locations, own);
    }

    /// Scans the files that these processes use, and does so in the next [`Self::read`].
    pub fn set_sources(&mut self, sources: Vec<ProcessSource>) {
        self.discovery.set_sources(sources);
        self.next_scan = clock::now();
    }

    /// Reports changes in these directories as [`FollowerUpdate::has_agent_sockets`], from the next
    /// [`Self::rediscover`] on.
    pub fn watch_agent_sockets(&mut self, directories: impl IntoIterator<Item = PathBuf>) {
        self.agent_directories = directories.into_iter().collect();
    }

    /// All followed instances.
    pub fn instances(&self) -> &[Arc<InstanceConfig>] {
        &self.instances
    }

    /// Whether the last scan has read every file: an instance that it did not find is not configured.
    pub fn is_settled(&self) -> bool {
        !self.is_unsettled
    }

    /// The file descriptors to poll: [`Self::read`] is due when one of them is readable.
    pub fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let directories = self.directories.as_ref().map(AsFd::as_fd);
        let discovery = Some(self.discovery.as_fd());
        [Some(self.table.as_fd()), discovery, directories].into_iter().flatten()
    }

    /// When [`Self::read`] is due although no file descriptor is readable; `None` if only a descriptor can tell.
    pub fn due(&self) -> Option<Moment> {
        let next_scan = (!self.is_scanning).then_some(self.next_scan);
        self.table.due().into_iter().chain(next_scan).chain(self.withheld.due()).min()
    }

    /// Scans for instances now, and reports the role of those that are new or are configured differently. Waits for the
    /// scan: for the start, and for a reload, which answers with the result. A scan that takes longer than [`MAX_SCAN`],
    /// because a file system blocks, is followed by [`Self::read`].
    pub fn rediscover(&mut self) -> FollowerUpdate {
        let end = clock::now() + MAX_SCAN;
        // A scan in progress began before the call.
        let is_free = !self.is_scanning || self.wait_for_scan(end).is_some();
        if is_free {
            self.begin_scan();
        }
        let scan = is_free.then(|| self.wait_for_scan(end)).flatten();
        if let Some(scan) = scan {
            return self.apply_scan(scan);
        }
        tracing::warn!("reading the configuration of keepalived takes long");
        (self.is_unsettled, self.next_scan) = (true, clock::now());
        FollowerUpdate::default()
    }

    fn begin_scan(&mut self) {
        self.discovery.request_scan();
        self.is_scanning = true;
        self.is_scanning_new_files = std::mem::take(&mut self.has_new_files);
        self.withheld.begin_scan();
        // A change from now on makes another scan necessary, which `read` notices.
        self.next_scan = clock::now() + SCAN_INTERVAL;
    }

    /// Waits for the scan in progress, until `end` at the latest.
    fn wait_for_scan(&mut self, end: Moment) -> Option<Scan> {
        loop {
            if let Some(scan) = self.discovery.take() {
                self.is_scanning = false;
                return Some(scan);
            }
            let left = Timespec::try_from(end.since(clock::now())).ok();
            let mut polled = [PollFd::new(&self.discovery, PollFlags::IN)];
            if poll(&mut polled, left.as_ref()) == Ok(0) {
                return None;
            }
        }
    }

    /// Follows the instances that a scan has found.
    fn apply_scan(&mut self, scan: Scan) -> FollowerUpdate {
        let began = clock::now();
        let Scan { result, directories, ha_confs, router_files, held, pending, took } = scan;
        self.ha_confs = ha_confs;
        (self.wanted_directories, self.router_files, self.held) = (directories, router_files, held);
        let has_new_pending = pending != self.pending;
        self.pending = pending;
        self.is_scanning_new_files = false;
        let DiscoveryResult { instances, problems, may_hide_instances, is_unsettled, hold_ends_in } =
            result;
        let is_same = |(a, b): (&Arc<InstanceConfig>, &Arc<InstanceConfig>)| Arc::ptr_eq(a, b);
        let is_changed = instances.len() != self.instances.len()
            || !instances.iter().zip(&self.instances).all(is_same);
        if is_changed {
            self.instances.clone_from(&instances);
        }
        let has_new_problems = problems != self.problems;
        self.problems.clone_from(&problems);
        self.is_unsettled = is_unsettled || may_hide_instances || hold_ends_in.is_some();
        let coverage = self.watch_directories();
        let search = std::mem::take(&mut self.netns_search);
        let is_follow_needed = is_changed
            || search != ChangedNames::None
            || self.table.has_unready_namespace()
            || self.table.has_ended_namespace();
        let followed = if is_follow_needed {
            self.table.follow(instances.clone(), &search)
        } else {
            Vec::new()
        };
        self.last_scan_took = took + clock::now().since(began);
        let pause = self.pause_until_next_scan(coverage, is_unsettled);
        let pause = hold_ends_in.map_or(pause, |ends| ends.min(pause));
        let pending = PENDING_SCAN_INTERVAL.max(self.last_scan_took * SCAN_DELAY_TIMES);
        let pause = if self.pending.is_empty() { pause } else { pause.min(pending) };
        // A directory may have changed during the scan.
        self.next_scan = self.next_scan.min(clock::now() + pause);
        if is_changed {
            self.withheld.follow(&self.instances);
        }
        // A namespace may have been deleted between the scan of the files and the snapshot.
        let followed = self.withhold(followed, Self::is_undecided);
        let edit = |change: &RoleChange| self.pending.get(&change.instance.file).copied();
        let is_changing = |change: &RoleChange| is_changing(&self.pending, change);
        let mut changes = self.withheld.decided(edit, is_changing, clock::now());
        changes.extend(followed);
        FollowerUpdate {
            changes_before_scan: Vec::new(),
            changes,
            address_changes: self.take_address_changes(),
            problems: has_new_problems.then_some(problems),
            instances: is_changed.then_some(instances),
            pending: has_new_pending.then(|| self.pending.clone()),
            has_agent_sockets: self.watch_agent_directories(),
        }
    }

    /// `is_unsettled`: a file is being written.
    fn pause_until_next_scan(&mut self, coverage: Coverage, is_unsettled: bool) -> Duration {
        let is_unready = self.table.has_unready_namespace();
        let longer = (self.netns_retry * 2).min(UNWATCHED_SCAN_INTERVAL);
        self.netns_retry = if is_unready { longer } else { SETTLE / 2 };
        match coverage {
            _ if is_unsettled => SETTLE.max(self.last_scan_took * UNSETTLED_TIMES),
            _ if is_unready => self.netns_retry,
            Coverage::New => SCAN_DELAY,
            Coverage::Incomplete => UNWATCHED_SCAN_INTERVAL,
            Coverage::Complete => SCAN_INTERVAL,
        }
    }

    /// Watches the directories of agents; true if one was not watched before, and may have a new socket.
    fn watch_agent_directories(&mut self) -> bool {
        let Some(watcher) = &mut self.directories else { return true };
        let mut is_new = false;
        for directory in &self.agent_directories {
            is_new |= watcher.watch(directory, WatchTopic::AgentSockets).unwrap_or(false);
        }
        is_new
    }

    /// Watches every directory in which a change can add, change or remove an instance or a namespace.
    fn watch_directories(&mut self) -> Coverage {
        let Some(watcher) = &mut self.directories else {
            self.netns_search = ChangedNames::Any;
            return Coverage::Incomplete;
        };
        let others = self.wanted_directories.iter();
        let routers = self.router_files.iter().filter_map(|file| file.parent());
        let wanted = routers
            .map(|directory| (directory, WatchTopic::RouterFile("keepalived.conf")))
            .chain([(self.ha_confs.as_path(), WatchTopic::Routers)])
            .chain(others.map(|directory| (directory.as_path(), WatchTopic::Files)));
        let mut coverage = match watcher.watch(Path::new(DIRECTORY), WatchTopic::NetnsNames) {
            Ok(false) => Coverage::Complete,
            other => {
                self.netns_search = ChangedNames::Any;
                if other.is_ok() { Coverage::New } else { Coverage::Incomplete }
            }
        };
        for (directory, topic) in wanted {
            match watcher.watch(directory, topic) {
                Ok(false) => {}
                Ok(true) => coverage = coverage.max(Coverage::New),
                // A host without Neutron has no such directory, and may get one later.
                Err(_) => coverage = coverage.max(Coverage::Incomplete),
            }
        }
        coverage
    }

    /// Reads the events that have arrived, begins a scan for instances if that is due, and follows the instances of one
    /// that is complete. Does not wait.
    pub fn read(&mut self) -> io::Result<FollowerUpdate> {
        let mut update = FollowerUpdate::default();
        // ORDER: before the events of addresses: keepalived changes them after a change of its file.
        if let Some(watcher) = &mut self.directories {
            let read = watcher.read();
            update.has_agent_sockets = read.agent_sockets;
            self.has_new_files |= read.files;
            if read.netns_names != ChangedNames::None || read.files || read.routers {
                self.netns_search.join(read.netns_names);
                let delay = SCAN_DELAY.max(self.last_scan_took * SCAN_DELAY_TIMES);
                self.next_scan = self.next_scan.min(clock::now() + delay);
            }
        }
        let changes = self.table.read()?;
        update.changes_before_scan = self.withhold(changes, Self::may_change);
        if self.is_scanning
            && let Some(scan) = self.discovery.take()
        {
            self.is_scanning = false;
            let mut scanned = self.apply_scan(scan);
            scanned.changes_before_scan = update.changes_before_scan;
            scanned.has_agent_sockets |= update.has_agent_sockets;
            return Ok(scanned);
        }
        if !self.is_scanning && self.next_scan <= clock::now() {
            self.begin_scan();
        }
        update.changes_before_scan.extend(self.withheld.take_overdue(clock::now()));
        update.address_changes = self.take_address_changes();
        Ok(update)
    }

    fn take_address_changes(&mut self) -> Vec<AddressChange> {
        let mut changes = self.withheld.take_cancelled();
        changes.append(&mut self.table.take_address_changes());
        changes
    }

    /// Keeps back the changes that `must_wait`, and has the next scan decide, which is due at once. Returns the others, each
    /// after the earlier ones of its instance.
    fn withhold(
        &mut self,
        changes: Vec<RoleChange>,
        must_wait: fn(&Self, &RoleChange) -> bool,
    ) -> Vec<RoleChange> {
        let now = Stamp::now();
        let mut others = Vec::new();
        for change in changes {
            let edit = self.pending.get(&change.instance.file).copied();
            if must_wait(self, &change) {
                self.withheld.hold(change, edit, now);
                self.next_scan = now.moment;
            } else {
                others.extend(self.withheld.after_earlier(change, edit));
            }
        }
        others
    }

    /// Whether the last scan does not say what a change means: the instance is probably being deleted, or its file is
    /// changing now.
    fn is_undecided(&self, change: &RoleChange) -> bool {
        let is_held = || self.held.iter().any(|file| *file == change.instance.file);
        change.to == Role::Fault(Fault::NoNetns) && is_held() || is_changing(&self.pending, change)
    }

    /// The same for a change after the last scan: keepalived may have loaded a changed file since, and then other
    /// addresses decide the role.
    fn may_change(&self, change: &RoleChange) -> bool {
        let is_file_new = self.has_new_files || self.is_scanning_new_files;
        let is_pending = is_file_new || self.pending.contains_key(&change.instance.file);
        self.is_undecided(change) || is_pending && depends_on_file(change)
    }

    /// Has a namespace read again, because the audit has found that a role is wrong. `published` are the published roles:
    /// one that is not the role here is corrected, too.
    pub fn request_snapshot(
        &mut self,
        netns: Option<NetnsName>,
        published: impl Fn(&InstanceId) -> Option<Role>,
    ) {
        let withheld = &self.withheld;
        self.table.set_published(&netns, |id| published(id).filter(|_| !withheld.contains(id)));
        self.table.request_snapshot(netns);
    }

    /// Waits until something has changed or a scan is due, and reads it.
    pub fn wait(&mut self) -> io::Result<FollowerUpdate> {
        let mut polled: Vec<PollFd<'_>> =
            self.sources().map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
        let left = self.due().map(|due| due.since(clock::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut polled, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.read()
    }
}

/// Whether the instance's file is changing now, and decides what this role change means.
fn is_changing(pending: &HashMap<Arc<Path>, PendingEdit>, change: &RoleChange) -> bool {
    let edit = pending.get(&change.instance.file);
    edit == Some(&PendingEdit::Changing) && depends_on_file(change)
}

/// Whether an edit may change the address that decides a role. That of a router never changes.
fn depends_on_file(change: &RoleChange) -> bool {
    let is_ordinary = matches!(change.instance.origin, Origin::Keepalived | Origin::Container);
    is_ordinary && change.from.is_some()
}

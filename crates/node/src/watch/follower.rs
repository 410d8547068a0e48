//! Follows the instances of this node: finds them, listens to their namespaces, and tells what has
//! changed. [`Node`](crate::Node) acts on it; `vipwatch watch` shows it where no node runs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::discovery::{
    ConfigLocations, ConfigProblem, ConfigScanner, DiscoveryResult, InstanceConfig, SETTLE,
};
use crate::watch::instance_table::{InstanceTable, NetnsSearch, RoleChange};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vipwatch_core::{Fault, Moment, Role};
use vipwatch_linux::clock;
use vipwatch_linux::inotify::{DirectoryWatcher, WatchTopic};
use vipwatch_linux::netns::DIRECTORY;
use vipwatch_linux::netns_watcher::NetnsWatcher;

use crate::config::Listen;

/// How often everything is looked for again, although no directory has news.
const REDISCOVER: Duration = Duration::from_mins(5);

/// The same, where a directory cannot be watched, perhaps because it is not there yet.
const REDISCOVER_BLIND: Duration = Duration::from_secs(10);

/// How long news of directories may gather; and in times of what a look takes.
const GATHER: Duration = Duration::from_millis(20);
const GATHER_TIMES: u32 = 20;

/// What waiting brought.
#[derive(Debug, Default)]
pub struct FollowerUpdate {
    /// Whose role had changed before anything was looked for.
    pub heard: Vec<RoleChange>,
    /// Whose role has changed, or is known, since.
    pub changes: Vec<RoleChange>,
    /// What is wrong with the configuration now, if that is not what was wrong before.
    pub problems: Option<Vec<ConfigProblem>>,
    /// Everything that is followed now, if that is not what was followed before.
    pub instances: Option<Vec<Arc<InstanceConfig>>>,
    /// An agent's socket may have come.
    pub has_agents: bool,
}

/// How much of what matters is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Cover {
    Whole,
    /// All of it, some since this moment only.
    New,
    /// Not all.
    Partial,
}

/// Follows what there is.
#[derive(Debug)]
pub struct Follower {
    scanner: ConfigScanner,
    notices: Option<DirectoryWatcher>,
    table: InstanceTable,
    instances: Vec<Arc<InstanceConfig>>,
    problems: Vec<ConfigProblem>,
    /// When to look again, whatever happens.
    next: Moment,
    /// A name has come or gone since the last look.
    reach: NetnsSearch,
    /// What the last look took.
    took: Duration,
    /// How long to wait for a namespace that has a name and is not there.
    patience: Duration,
    /// Where agents have their sockets.
    agents: Vec<PathBuf>,
    /// Changes that are published only if their instance is still there after the next look: its namespace
    /// has gone while its file was missing, so it is being deleted.
    withheld: Vec<RoleChange>,
}

impl Follower {
    /// Follows nobody yet. Takes root, or `CAP_NET_BROADCAST` and `CAP_NET_ADMIN`.
    pub fn open(
        places: ConfigLocations,
        own: Vec<Arc<InstanceConfig>>,
        listen: Listen,
    ) -> io::Result<Self> {
        let watcher = match listen {
            Listen::Auto => NetnsWatcher::open()?,
            Listen::Each => NetnsWatcher::open_per_netns()?,
        };
        Ok(Self {
            scanner: ConfigScanner::new(places, own),
            // A host that has no more of them is looked at now and then.
            notices: DirectoryWatcher::new().ok(),
            table: InstanceTable::over(watcher),
            instances: Vec::new(),
            problems: Vec::new(),
            next: clock::now(),
            reach: NetnsSearch::All,
            took: Duration::ZERO,
            patience: SETTLE,
            agents: Vec::new(),
            withheld: Vec::new(),
        })
    }

    /// What listens to the kernel.
    pub fn table(&mut self) -> &mut InstanceTable {
        &mut self.table
    }

    /// Looks elsewhere, from the next [`Self::rediscover`] on.
    pub fn redirect(&mut self, places: ConfigLocations, own: Vec<Arc<InstanceConfig>>) {
        self.scanner.redirect(places, own);
    }

    /// Tells when something happens to a socket in one of `directories`, from the next
    /// [`Self::rediscover`] on.
    pub fn watch_agents(&mut self, directories: impl IntoIterator<Item = PathBuf>) {
        self.agents = directories.into_iter().collect();
    }

    /// Everything that is followed.
    pub fn instances(&self) -> &[Arc<InstanceConfig>] {
        &self.instances
    }

    /// What to wait for.
    pub fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(self.table.as_fd()), self.notices.as_ref().map(AsFd::as_fd)].into_iter().flatten()
    }

    /// When [`Self::take`] has something to do, although nothing has happened.
    pub fn due(&self) -> Moment {
        self.table.due().map_or(self.next, |due| due.min(self.next))
    }

    /// Looks for instances again, and tells where those stand that are new or have moved.
    pub fn rediscover(&mut self) -> FollowerUpdate {
        let began = clock::now();
        let DiscoveryResult { instances, problems, is_unsettled, hold_ends_in } =
            self.scanner.look();
        let is_same = |(a, b): (&Arc<InstanceConfig>, &Arc<InstanceConfig>)| Arc::ptr_eq(a, b);
        let is_changed = instances.len() != self.instances.len()
            || !instances.iter().zip(&self.instances).all(is_same);
        if is_changed {
            self.instances.clone_from(&instances);
        }
        let is_news = problems != self.problems;
        self.problems.clone_from(&problems);
        let cover = self.watch();
        let reach = std::mem::replace(&mut self.reach, NetnsSearch::Unknown);
        let mut changes = std::mem::take(&mut self.withheld);
        changes.retain(|change| instances.iter().any(|found| found.id == change.found.id));
        let is_worth_asking = is_changed || reach == NetnsSearch::All || self.table.is_waiting();
        let followed =
            if is_worth_asking { self.table.follow(instances.clone(), reach) } else { Vec::new() };
        let now = clock::now();
        self.took = now.since(began);
        // A name is there before its namespace is, and a file before all of it is.
        let is_waiting = self.table.is_waiting();
        self.patience =
            if is_waiting { (self.patience * 2).min(REDISCOVER_BLIND) } else { SETTLE / 2 };
        let pause = match cover {
            _ if is_unsettled => SETTLE,
            _ if is_waiting => self.patience,
            // What happened between looking and watching was not heard.
            Cover::New => GATHER,
            Cover::Partial => REDISCOVER_BLIND,
            Cover::Whole => REDISCOVER,
        };
        self.next = now + hold_ends_in.map_or(pause, |ends| ends.min(pause));
        // A namespace may have gone between the look at the files and the question to the kernel.
        changes.extend(self.withhold(followed));
        FollowerUpdate {
            changes,
            problems: is_news.then_some(problems),
            instances: is_changed.then_some(instances),
            heard: Vec::new(),
            has_agents: self.watch_for_agents(),
        }
    }

    /// Whether an agent's directory was not watched before: its socket may be another one.
    fn watch_for_agents(&mut self) -> bool {
        let Some(notices) = &mut self.notices else { return true };
        let mut is_new = false;
        for directory in &self.agents {
            is_new |= notices.watch(directory, WatchTopic::AgentSockets).unwrap_or(false);
        }
        is_new
    }

    /// Watches every directory that matters.
    fn watch(&mut self) -> Cover {
        let Some(notices) = &mut self.notices else {
            self.reach = NetnsSearch::All;
            return Cover::Partial;
        };
        let others = self.scanner.directories();
        let routers = self.scanner.routers();
        let wanted = routers
            .map(|directory| (directory, WatchTopic::File("keepalived.conf")))
            .chain(others.iter().map(|directory| (directory.as_path(), WatchTopic::Files)));
        let mut cover = match notices.watch(Path::new(DIRECTORY), WatchTopic::NetnsNames) {
            Ok(false) => Cover::Whole,
            other => {
                self.reach = NetnsSearch::All;
                if other.is_ok() { Cover::New } else { Cover::Partial }
            }
        };
        for (directory, topic) in wanted {
            match notices.watch(directory, topic) {
                Ok(false) => {}
                Ok(true) => cover = cover.max(Cover::New),
                // A node without Neutron has no such directory, and may get one.
                Err(_) => cover = cover.max(Cover::Partial),
            }
        }
        cover
    }

    /// Takes what has come.
    pub fn take(&mut self) -> io::Result<FollowerUpdate> {
        let heard = self.table.read()?;
        let heard = self.withhold(heard);
        let mut news = FollowerUpdate { heard, ..FollowerUpdate::default() };
        if let Some(notices) = &mut self.notices {
            let heard = notices.read();
            news.has_agents = heard.agent_sockets;
            if heard.netns_names {
                self.reach = NetnsSearch::All;
            }
            if heard.netns_names || heard.files {
                // Many come together; and a name is there before its namespace is.
                let pause = GATHER.max(self.took * GATHER_TIMES);
                self.next = self.next.min(clock::now() + pause);
            }
        }
        if self.next <= clock::now() {
            let found = self.rediscover();
            let has_agents = news.has_agents || found.has_agents;
            news = FollowerUpdate { heard: news.heard, has_agents, ..found };
        }
        Ok(news)
    }

    /// Sets aside the changes of instances that seem to be deleted just now, and looks at once whether they
    /// are.
    fn withhold(&mut self, changes: Vec<RoleChange>) -> Vec<RoleChange> {
        let is_deleted = |change: &RoleChange| {
            change.to == Role::Fault(Fault::NoNetns) && self.scanner.is_held(&change.found.file)
        };
        let (withheld, others): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_deleted);
        if !withheld.is_empty() {
            self.withheld.extend(withheld);
            self.next = clock::now();
        }
        others
    }

    /// Waits until something happens, and takes it.
    pub fn wait(&mut self) -> io::Result<FollowerUpdate> {
        let mut polled: Vec<PollFd<'_>> =
            self.sources().map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
        let left = self.due().since(clock::now());
        match poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.take()
    }
}

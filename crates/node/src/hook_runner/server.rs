// SPDX-License-Identifier: Apache-2.0
//! The runner's own process: accepts connections and forks a supervisor for each.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use vipwatch_core::ErrorChain;
use vipwatch_core::cause::ProcessExit;
use vipwatch_linux::clock;
use vipwatch_linux::descendants::{become_subreaper, collect_children, kill_descendants};
use vipwatch_linux::passed_socket;
use vipwatch_linux::peer::{credentials, is_member};
use vipwatch_linux::privilege::Identity;
use vipwatch_linux::process::{
    Child, ForkSide, close_all_but, exit_now, fork, set_name, signal_at_end_of,
};
use vipwatch_linux::signal::{RunnerSignal, RunnerSignals};

use super::hook_table::HookTable;
use super::protocol::{self, RefusalReason, RunAnswer};
use super::run::supervise;
use crate::config::AllowedAccounts;
use crate::service;

/// Maximum number of runs at the same time, with those that have left a process running. Further connections wait.
const MAX_RUNS: usize = 512;

/// How long the runner waits at its end for the supervisors, which kill the processes of their runs.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// The time between two attempts to kill processes of a supervisor that was killed itself.
const ORPHAN_INTERVAL: Duration = Duration::from_millis(20);

/// Maximum number of users with rejected connections that are logged, once each.
const MAX_LOGGED_USERS: usize = 64;

/// Where requests come from.
#[derive(Debug)]
pub enum RequestSource {
    /// A socket of the service manager, in a directory that other users cannot pass: the kernel lets in only root and
    /// processes with a capability, such as the node in its unit, and no other process of the node's user.
    Socket {
        /// The listening socket.
        listener: OwnedFd,
        /// The users and groups that may connect, besides root and the user of this process.
        allow: AllowedAccounts,
    },
    /// A socket to the node that has started this process. It passes one connection for each run, and this process ends
    /// with it.
    Node(OwnedFd),
}

/// Why the runner cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// The process cannot be prepared.
    #[error("cannot prepare the process")]
    Prepare(#[source] io::Error),
    /// The runner cannot wait for events.
    #[error("cannot wait for requests")]
    Wait(#[source] io::Error),
}

/// A hook runner.
#[derive(Debug)]
pub struct Runner {
    source: RequestSource,
    /// `None` for the default file.
    file: Option<PathBuf>,
    hooks: HookTable,
    signals: RunnerSignals,
    /// The supervisors.
    runs: Vec<Child>,
    /// Whether a supervisor was killed, so that processes of its run may be left.
    has_orphans: bool,
    /// Users that may not connect, and have.
    rejected_users: Vec<u32>,
    watchdog: service::Watchdog,
}

/// An accepted connection, and the identity of the node.
struct Accepted {
    connection: OwnedFd,
    node: Identity,
}

impl Runner {
    /// Prepares the process, which must have one thread, and reads the hooks of `file`.
    pub fn new(
        source: RequestSource,
        file: Option<&Path>,
        signals: RunnerSignals,
    ) -> Result<Self, RunnerError> {
        become_subreaper().map_err(RunnerError::Prepare)?;
        let hooks = HookTable::load(file).unwrap_or_else(|error| {
            // Each request reads the file again.
            tracing::error!(error = %ErrorChain(&error), "cannot read the hooks");
            HookTable::empty(file)
        });
        Ok(Self {
            source,
            file: file.map(Path::to_owned),
            hooks,
            signals,
            runs: Vec::new(),
            has_orphans: false,
            rejected_users: Vec::new(),
            watchdog: service::Watchdog::from_environment(),
        })
    }

    /// Runs hooks until a signal stops the process, or the node that has started it ends.
    pub fn run(mut self) -> Result<(), RunnerError> {
        tracing::info!(hooks = self.hooks.len(), "hook runner is ready");
        service::notify("READY=1");
        let mut is_stopped = false;
        while !is_stopped {
            self.wait().map_err(RunnerError::Wait)?;
            self.watchdog.tick(clock::now());
            self.collect_runs();
            is_stopped = self.take_signals() || !self.accept();
        }
        service::notify("STOPPING=1");
        self.shut_down();
        tracing::info!("hook runner stopped");
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let watchdog = self.watchdog.due().map(|due| due.since(clock::now()));
        let orphans = self.has_orphans.then_some(ORPHAN_INTERVAL);
        let limit = watchdog.into_iter().chain(orphans).min();
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.runs.len() < MAX_RUNS {
            polled.push(PollFd::from_borrowed_fd(self.source.as_fd(), PollFlags::IN));
        }
        match poll(&mut polled, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Collects the supervisors that have ended, and ends the processes of a supervisor that was killed.
    fn collect_runs(&mut self) {
        for ended in collect_children().ended {
            let Some(index) = self.runs.iter().position(|run| run.pid() == ended.pid) else {
                continue;
            };
            let mut run = self.runs.swap_remove(index);
            // It is collected already.
            run.wait(Duration::ZERO);
            if ended.exit != ProcessExit::Code(0) {
                tracing::warn!(pid = ended.pid, exit = ?ended.exit, "the supervisor of a hook was ended");
                self.has_orphans = true;
            }
        }
        if self.has_orphans {
            let spared: Vec<u32> = self.runs.iter().map(Child::pid).collect();
            self.has_orphans = kill_descendants(&spared) > 0;
        }
    }

    /// Returns true if the process must stop.
    fn take_signals(&mut self) -> bool {
        let mut is_stopped = false;
        while let Some(signal) = self.signals.read() {
            match signal {
                // The service manager of a node may stop all its processes. The node decides how long its hooks run.
                RunnerSignal::Stop => {
                    is_stopped |= matches!(self.source, RequestSource::Socket { .. });
                }
                RunnerSignal::Reload => self.reload(),
                RunnerSignal::ChildEnded | RunnerSignal::ParentEnded => {}
            }
        }
        is_stopped
    }

    fn reload(&mut self) {
        service::notify_reloading();
        match HookTable::load(self.file.as_deref()) {
            Ok(hooks) => {
                self.hooks = hooks;
                tracing::info!(hooks = self.hooks.len(), "configuration reloaded");
            }
            Err(error) => {
                let error = ErrorChain(&error).to_string();
                tracing::error!(error, "configuration rejected; the previous one stays in use");
            }
        }
        service::notify("READY=1");
    }

    /// Accepts all connections that wait. Returns false if the node has ended.
    fn accept(&mut self) -> bool {
        while self.runs.len() < MAX_RUNS {
            match self.accept_one() {
                Ok(Some(accepted)) => self.start_run(&accepted),
                Ok(None) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    return true;
                }
            }
        }
        true
    }

    /// The next connection of an allowed user; `None` if the node has ended.
    fn accept_one(&mut self) -> io::Result<Option<Accepted>> {
        loop {
            let (listener, allow) = match &self.source {
                RequestSource::Node(control) => {
                    let passed = passed_socket::receive(control)?;
                    let node = Identity::current();
                    return Ok(passed.map(|connection| Accepted { connection, node }));
                }
                RequestSource::Socket { listener, allow } => (listener, allow),
            };
            let connection = accept_with(listener, SocketFlags::CLOEXEC)?;
            let peer = credentials(&connection)?;
            if is_allowed(&connection, peer.user, allow) {
                let node = Identity { user: peer.user, group: peer.group };
                return Ok(Some(Accepted { connection, node }));
            }
            self.reject(connection, peer.user);
        }
    }

    fn reject(&mut self, connection: OwnedFd, user: u32) {
        if !self.rejected_users.contains(&user) && self.rejected_users.len() < MAX_LOGGED_USERS {
            self.rejected_users.push(user);
            tracing::warn!(user, "connection rejected: the user is not allowed (--allow)");
        }
        refuse(
            connection,
            &format!("user {user} may not use the hook runner: start it with --allow {user}"),
        );
    }

    fn start_run(&mut self, accepted: &Accepted) {
        let parent = std::process::id();
        match fork() {
            Ok(ForkSide::Parent(child)) => self.runs.push(child),
            Ok(ForkSide::Child) => {
                let result = self.supervise(accepted, parent);
                exit_now(u8::from(result.is_err()));
            }
            // The connection is closed, and the node tries again.
            Err(error) => tracing::error!(%error, "cannot start the supervisor of a hook"),
        }
    }

    /// The life of the new process.
    fn supervise(&self, accepted: &Accepted, parent: u32) -> io::Result<()> {
        set_name(c"hook-supervisor");
        // The other descriptors belong to the runner, and a copy of them would outlive it.
        close_all_but(&accepted.connection);
        let signals = RunnerSignals::block()?;
        if !signal_at_end_of(parent)? {
            return Ok(());
        }
        let connection = UnixStream::from(accepted.connection.try_clone()?);
        rustix::io::fcntl_setfd(&connection, rustix::io::FdFlags::CLOEXEC)?;
        let result = supervise(connection, accepted.node, &self.hooks, signals);
        match result {
            // The node has closed the connection without a request.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            result => result,
        }
    }

    /// Has the supervisors end their runs.
    fn shut_down(&mut self) {
        for run in &self.runs {
            run.signal_end();
        }
        let end = Instant::now() + SHUTDOWN_TIMEOUT;
        while !self.runs.is_empty() && Instant::now() < end {
            let mut polled = [PollFd::new(&self.signals, PollFlags::IN)];
            let left = end.saturating_duration_since(Instant::now());
            let _ = poll(&mut polled, Timespec::try_from(left).ok().as_ref());
            while self.signals.read().is_some() {}
            self.collect_runs();
        }
    }
}

impl AsFd for RequestSource {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Socket { listener, .. } => listener.as_fd(),
            Self::Node(control) => control.as_fd(),
        }
    }
}

/// Answers without a request.
fn refuse(connection: OwnedFd, text: &str) {
    let stream = UnixStream::from(connection);
    // The answer fits into the buffer of the socket.
    let _ = stream.set_nonblocking(true);
    let _ = protocol::send(&stream, &RunAnswer::refused(RefusalReason::Disagreement, text));
}

fn is_allowed(connection: &OwnedFd, user: u32, allow: &AllowedAccounts) -> bool {
    let own_user = rustix::process::geteuid().as_raw();
    user == 0
        || user == own_user
        || allow.users.contains(&user)
        || allow.groups.iter().any(|group| is_member(connection, *group).unwrap_or(false))
}

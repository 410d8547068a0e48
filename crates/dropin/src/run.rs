// SPDX-License-Identifier: Apache-2.0
//! Runs the monitor of one router: acquires what needs root, drops root, and calls the event loop until the end.

use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Access;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::CapabilitySet;
use vipwatch_core::ErrorChain;
use vipwatch_dropin::conntrack::{self, ConntrackOutlet, helper};
use vipwatch_dropin::{EventLoop, LoopEnd, LoopSettings, OptionalOutlets};
use vipwatch_linux::netns::NetnsId;
use vipwatch_linux::privilege::{self, Identity, PrivilegeError, RetainedPrivileges};
use vipwatch_linux::process::{self, ForkSide};
use vipwatch_linux::signal::{Signal, Signals};
use vipwatch_outlets::agent::AgentSettings;

use crate::args::PROGRAM;
use crate::daemon::RunMode;
use crate::event_log::RouterEventLog;
use crate::failure::{Code, Failure};
use crate::instance_lock::InstanceLock;
use crate::log::{Level, MonitorLog};
use crate::pid_file::PidFile;
use crate::setup::{EnteredNetns, Setup};

/// How long to wait for the first snapshot before the agent is notified of `backup`, as in Neutron's own monitor.
const FIRST_SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10);

/// The capabilities of the conntrackd helper. conntrackd requires `CAP_NET_ADMIN`; its control socket and its
/// configuration may belong to another user, which requires `CAP_DAC_OVERRIDE`.
const HELPER_CAPABILITIES: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::DAC_OVERRIDE);

/// A monitor that is ready to run: every resource is acquired and privileges are dropped.
pub(crate) struct RouterMonitor {
    // ORDER: fields are dropped from top to bottom. The pid file, and the spare state file of
    // the event loop, are removed while the lock is held: afterwards they may belong to a successor.
    _pid_file: PidFile,
    event_loop: EventLoop<RouterEventLog>,
    signals: Signals,
    lock: InstanceLock,
}

impl RouterMonitor {
    /// Acquires every resource and drops privileges.
    ///
    /// ORDER: the lock comes first, so that no file of a running monitor is changed. The helper is forked while this
    /// process is root. Then root is dropped, so that the user creates every file with that user's rights and becomes
    /// its owner. The pid file comes last, because a process that reads it may send a signal.
    pub(crate) fn prepare(
        setup: &Setup,
        mode: RunMode,
        entered: EnteredNetns,
    ) -> Result<Box<Self>, Failure> {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let signals = Signals::block().map_err(|error| {
            Failure::new(Code::Environment, format!("cannot receive signals: {error}"))
        })?;
        let lock = InstanceLock::take(&setup.instance, &setup.pid_file, &setup.started_by)?;
        let permitted = privilege::permitted().map_err(not_permitted)?;
        let conntrack = setup.has_conntrackd.then(|| start_helper(setup)).transpose()?;
        let EnteredNetns { netns, monitor, announcer } = entered;
        let retained =
            privilege::drop_privileges(setup.identity, monitor_capabilities(setup.identity))
                .map_err(not_permitted)?;
        check_conf_dir(setup)?;
        if !setup.has_conntrackd {
            // An earlier run may have used conntrackd: its result is not current any more.
            conntrack::delete_result(&setup.conf_dir);
        }
        let output = MonitorLog::open(setup.log_file.clone(), setup.syslog, mode, setup.is_debug);
        let mut log = RouterEventLog::new(output, setup);
        log_start(&mut log.output, setup);
        log_privileges(&mut log.output, setup, retained, permitted);
        let announcer = announcer.unwrap_or_else(|error| {
            let message = format_args!("Announcements are disabled: {}", ErrorChain(&error));
            log.output.line(Level::Warning, message);
            None
        });
        let outlets = OptionalOutlets { announcer, conntrack };
        let settings = loop_settings(setup, netns);
        let event_loop = EventLoop::new(settings, monitor, outlets, log).map_err(|error| {
            Failure::new(Code::Environment, format!("cannot watch directories: {error}"))
        })?;
        let pid_file = PidFile::write(&setup.pid_file)?;
        // On the heap, because each move on the stack leaves a copy that is never given back.
        Ok(Box::new(Self { _pid_file: pid_file, signals, lock, event_loop }))
    }

    /// Runs until a signal stops the monitor, another monitor replaces it, or its namespace is removed.
    pub(crate) fn run(mut self: Box<Self>) -> Result<(), Failure> {
        loop {
            // ORDER: the monitor acts on an event before it writes the log line about it.
            self.event_loop.log.output.flush();
            // A node may run a thousand monitors, and most of them are idle: the stack that the last event used is
            // returned to the kernel.
            if self.event_loop.is_idle() {
                process::release_spare_stack();
            }
            let extra = [self.signals.as_fd(), self.lock.as_fd()];
            let ready = match self.event_loop.wait_and_read(&extra) {
                Ok(ready) => ready,
                Err(error) => {
                    let message = format!("cannot wait for events: {error}");
                    self.event_loop.log.output.line(Level::Error, format_args!("{message}"));
                    return Err(Failure::new(Code::Defect, message));
                }
            };
            let is_stopped = ready.contains(&0) && self.read_signal();
            if is_stopped || (ready.contains(&1) && self.read_lock()) {
                return Ok(());
            }
            // ORDER: after the signals, so that a monitor that is stopped starts nothing new; and in every iteration,
            // so that a process that connects to the lock in a loop does not delay the timers.
            self.event_loop.tick();
            match self.event_loop.end() {
                Some(LoopEnd::NamespaceRemoved) => {
                    return Err(Failure::new(Code::Environment, "the namespace was removed"));
                }
                None => {}
            }
        }
    }

    /// Acts on one signal. Returns whether the monitor must end.
    fn read_signal(&mut self) -> bool {
        match self.signals.read() {
            Some(Signal::Stop) => {
                self.event_loop.close();
                return true;
            }
            Some(Signal::Reopen) => self.event_loop.log.output.reopen(),
            None => {}
        }
        false
    }

    /// Accepts one connection to the lock. Returns whether another monitor replaces this one.
    fn read_lock(&mut self) -> bool {
        let is_superseded = self.lock.is_superseded();
        if is_superseded {
            let message = format_args!("Another monitor takes over: exiting");
            self.event_loop.log.output.line(Level::Info, message);
        }
        is_superseded
    }
}

fn loop_settings(setup: &Setup, netns: NetnsId) -> LoopSettings {
    LoopSettings {
        watch: setup.watch,
        netns: (setup.netns.clone(), netns),
        state_dir: setup.conf_dir.clone(),
        agent: AgentSettings {
            instance: setup.instance.clone(),
            path: setup.socket.clone(),
            keepalived_conf: setup.conf_dir.join("keepalived.conf"),
            trust: setup.trust,
            words: setup.word.words(),
        },
        first_snapshot_timeout: FIRST_SNAPSHOT_TIMEOUT,
        audit_interval: setup.audit_interval,
        seed: seed(),
    }
}

/// The capabilities that the monitor keeps. A monitor that stays root, because its agent is root, writes to directories
/// of another user that may be closed to others. Root without `CAP_DAC_OVERRIDE` could not write to them.
fn monitor_capabilities(identity: Identity) -> CapabilitySet {
    if identity.user == 0 { CapabilitySet::DAC_OVERRIDE } else { CapabilitySet::empty() }
}

// Takes the error by value, as `map_err` hands it over.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn not_permitted(error: PrivilegeError) -> Failure {
    Failure::new(Code::NotPermitted, ErrorChain(&error).to_string())
}

/// Logs privileges that could not be dropped or are missing, as in containers with a reduced set of capabilities.
fn log_privileges(
    log: &mut MonitorLog,
    setup: &Setup,
    retained: RetainedPrivileges,
    permitted_before: CapabilitySet,
) {
    if retained.has_groups {
        let message = format_args!(
            "Cannot leave the supplementary groups: CAP_SETGID is missing; the monitor keeps the rights of its groups"
        );
        log.line(Level::Warning, message);
    }
    if retained.has_bounding_set {
        let message = format_args!(
            "Cannot empty the bounding set of capabilities: CAP_SETPCAP is missing; no_new_privs prevents their use"
        );
        log.line(Level::Warning, message);
    }
    let missing = HELPER_CAPABILITIES.difference(permitted_before);
    if setup.has_conntrackd && !missing.is_empty() {
        let names: Vec<String> =
            missing.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
        let message = format_args!(
            "The conntrackd helper runs without {}: conntrackd may refuse to work",
            names.join(" and ")
        );
        log.line(Level::Warning, message);
    }
}

/// Forks the helper process, which can run conntrackd and nothing else.
fn start_helper(setup: &Setup) -> Result<ConntrackOutlet, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Code::Environment, format!("cannot start the conntrackd helper: {error}"))
    };
    let (monitor_end, helper_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|errno| failed(errno.into()))?;
    match process::fork().map_err(failed)? {
        ForkSide::Parent(child) => Ok(ConntrackOutlet::new(monitor_end, child, &setup.conf_dir)),
        ForkSide::Child => {
            process::close_all_but(&helper_end);
            process::set_name(c"conntrackd-help");
            match privilege::drop_privileges(Identity::current(), HELPER_CAPABILITIES) {
                Ok(_) => helper::serve(&helper_end, &setup.conf_dir),
                Err(error) => helper::report_failure(&helper_end, ErrorChain(&error).to_string()),
            }
            process::exit_now(0)
        }
    }
}

/// Fails if the user has no permission to write to the directory, because that is a configuration mistake. A full or
/// read-only disk, or a missing directory, does not stop the start: the event loop retries the write.
fn check_conf_dir(setup: &Setup) -> Result<(), Failure> {
    match rustix::fs::access(&setup.conf_dir, Access::WRITE_OK | Access::EXEC_OK) {
        Err(rustix::io::Errno::ACCESS) => {
            let message = format!(
                "user {} may not write to --conf_dir {}",
                setup.identity.user,
                setup.conf_dir.display()
            );
            Err(Failure::new(Code::NotPermitted, message)
                .hint("the directory must belong to the agent's user, which is --user"))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Logs the version, the command line and the user, in the words of Neutron's own monitor.
fn log_start(log: &mut MonitorLog, setup: &Setup) {
    log.line(Level::Info, format_args!("Logging enabled!"));
    let version = env!("CARGO_PKG_VERSION");
    log.line(Level::Info, format_args!("{PROGRAM} version {version}"));
    let line: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    log.line(Level::Debug, format_args!("command line: {}", line.join(" ")));
    let Identity { user, group } = Identity::current();
    log.line(Level::Debug, format_args!("Process runs with uid/gid: {user}/{group}"));
    if setup.watch.is_none() {
        log.line(
            Level::Error,
            format_args!(
                "monitor_cidr {:?} is not an address with a prefix length: there is nothing to watch",
                setup.cidr
            ),
        );
    }
}

/// A number that differs between processes that start at the same time. Jitter needs nothing more.
fn seed() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = u64::from(since_epoch.subsec_nanos());
    (u64::from(std::process::id()) << 32) ^ since_epoch.as_secs().rotate_left(17) ^ nanos
}

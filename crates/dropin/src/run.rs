//! The life of a monitor: take what needs root, give root up, watch, leave.

use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::Access;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::thread::CapabilitySet;
use vipwatch_core::ErrorChain;
use vipwatch_dropin::conntrack::{ConntrackOutlet, helper};
use vipwatch_dropin::{EventLoop, LoopEnd, LoopSettings, OptionalOutlets};
use vipwatch_linux::privilege::{self, Identity, PrivilegeError, RetainedPrivileges};
use vipwatch_linux::process::{self, ForkSide};
use vipwatch_linux::signal::{Signal, Signals};
use vipwatch_outlets::agent::AgentSettings;

use crate::args::PROGRAM;
use crate::event_log::RouterEventLog;
use crate::failure::{Code, Failure};
use crate::instance_lock::InstanceLock;
use crate::log::{Level, MonitorLog};
use crate::pid_file::PidFile;
use crate::setup::{EnteredNetns, Setup};

/// How long the agent waits for a first state before it is told `backup`: as upstream has it.
const FIRST_STATE_LIMIT: Duration = Duration::from_secs(10);

/// conntrackd insists on `CAP_NET_ADMIN`; its control socket and its configuration may belong to another user.
const HELPER_CAPABILITIES: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::DAC_OVERRIDE);

/// A monitor that has all it needs and no privileges left.
pub(crate) struct RouterMonitor {
    // ORDER: fields are dropped from top to bottom. The pid file, and the spare state file of
    // the spine, go while the lock is held: afterwards they may be a successor's.
    _pid_file: PidFile,
    spine: EventLoop<RouterEventLog>,
    signals: Signals,
    lock: InstanceLock,
}

impl RouterMonitor {
    /// Gets ready.
    ///
    /// ORDER: the lock, so that nothing is touched beside a live monitor; the helper, while
    /// there is root to give it; then root goes, and every file is made by the user who
    /// shall own it, with that user's rights; the pid file last, because whoever reads it
    /// may send a signal.
    pub(crate) fn prepare(setup: &Setup, place: EnteredNetns) -> Result<Box<Self>, Failure> {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        let signals = Signals::block().map_err(|error| {
            Failure::new(Code::Environment, format!("cannot receive signals: {error}"))
        })?;
        let lock = InstanceLock::take(&setup.instance, &setup.pid_file, &setup.started_by)?;
        let permitted = privilege::permitted().map_err(not_permitted)?;
        let conntrack = setup.has_conntrackd.then(|| start_helper(setup)).transpose()?;
        let EnteredNetns { netns, monitor, announcer } = place;
        let remaining = privilege::drop_privileges(setup.identity, kept(setup.identity))
            .map_err(not_permitted)?;
        check_conf_dir(setup)?;
        let log = MonitorLog::open(setup.log_file.clone(), setup.syslog, setup.is_debug);
        let mut journal = RouterEventLog::new(log, setup);
        greet(&mut journal.log, setup);
        note_privileges(&mut journal.log, setup, remaining, permitted);
        let announcer = announcer.unwrap_or_else(|error| {
            let message = format_args!("Nothing is announced: {}", ErrorChain(&error));
            journal.log.line(Level::Warning, message);
            None
        });
        let settings = LoopSettings {
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
            first_look_limit: FIRST_STATE_LIMIT,
            audit_interval: setup.audit_interval,
            seed: seed(),
        };
        let helpers = OptionalOutlets { announcer, conntrack };
        let spine = EventLoop::new(settings, monitor, helpers, journal).map_err(|error| {
            Failure::new(Code::Environment, format!("cannot watch directories: {error}"))
        })?;
        let pid_file = PidFile::write(&setup.pid_file)?;
        // On the heap, because each move on the stack leaves a copy that is never given back.
        Ok(Box::new(Self { _pid_file: pid_file, signals, lock, spine }))
    }

    /// Watches until told to stop, succeeded by another, or left without a namespace.
    pub(crate) fn live(mut self: Box<Self>) -> Result<(), Failure> {
        loop {
            // ORDER: what a line is about is done before the line is written.
            self.spine.journal.log.flush();
            // A thousand of these wait most of the time: what the last event took on the stack
            // is of more use to others.
            if self.spine.is_idle() {
                process::release_spare_stack();
            }
            let extra = [self.signals.as_fd(), self.lock.as_fd()];
            let ready = match self.spine.turn(&extra) {
                Ok(ready) => ready,
                Err(error) => {
                    let message = format!("cannot wait for events: {error}");
                    self.spine.journal.log.line(Level::Error, format_args!("{message}"));
                    return Err(Failure::new(Code::Defect, message));
                }
            };
            if ready.contains(&0) {
                match self.signals.read() {
                    Some(Signal::Stop) => {
                        self.spine.close();
                        return Ok(());
                    }
                    Some(Signal::Reopen) => self.spine.journal.log.reopen(),
                    None => {}
                }
            }
            if ready.contains(&1) && self.lock.is_superseded() {
                let message = format_args!("Another monitor takes over: leaving");
                self.spine.journal.log.line(Level::Info, message);
                return Ok(());
            }
            // ORDER: after the signals, so that a monitor that is told to stop begins nothing new; and in every turn, so
            // that a process that connects to the lock in a loop holds up no timer.
            self.spine.tick();
            match self.spine.ending() {
                Some(LoopEnd::NamespaceGone) => {
                    return Err(Failure::new(Code::Environment, "the namespace is gone"));
                }
                None => {}
            }
        }
    }
}

/// What the monitor keeps. A monitor that stays root, because its agent is root, works in directories of another user,
/// which may be closed to others: root without `CAP_DAC_OVERRIDE` is one of the others.
fn kept(identity: Identity) -> CapabilitySet {
    if identity.user == 0 { CapabilitySet::DAC_OVERRIDE } else { CapabilitySet::empty() }
}

// Takes the error by value, as `map_err` hands it over.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn not_permitted(error: PrivilegeError) -> Failure {
    Failure::new(Code::NotPermitted, ErrorChain(&error).to_string())
}

/// Logs where this process has other privileges than it should: trimmed containers.
fn note_privileges(
    log: &mut MonitorLog,
    setup: &Setup,
    remaining: RetainedPrivileges,
    permitted_before: CapabilitySet,
) {
    if remaining.has_bounding_set {
        let message = format_args!(
            "Cannot empty the bounding set of capabilities: CAP_SETPCAP is missing; no_new_privs keeps them out of reach"
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

/// Forks the process that may run conntrackd, and nothing else.
fn start_helper(setup: &Setup) -> Result<ConntrackOutlet, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Code::Environment, format!("cannot start the conntrackd helper: {error}"))
    };
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|errno| failed(errno.into()))?;
    match process::fork().map_err(failed)? {
        ForkSide::Parent(child) => Ok(ConntrackOutlet::new(ours, child)),
        ForkSide::Child => {
            process::close_all_but(&theirs);
            process::set_name(c"conntrackd-help");
            match privilege::drop_privileges(Identity::current(), HELPER_CAPABILITIES) {
                Ok(_) => helper::serve(&theirs, &setup.conf_dir),
                Err(error) => helper::refuse(&theirs, ErrorChain(&error).to_string()),
            }
            process::exit_now(0)
        }
    }
}

/// A directory that the user may not write is a mistake to be told at once. One that cannot be written just now (full,
/// read-only, gone) is not: writing is tried again.
fn check_conf_dir(setup: &Setup) -> Result<(), Failure> {
    match rustix::fs::access(&setup.conf_dir, Access::WRITE_OK | Access::EXEC_OK) {
        Err(rustix::io::Errno::ACCESS) => {
            let message = format!(
                "user {} may not write to --conf_dir {}",
                setup.identity.user,
                setup.conf_dir.display()
            );
            Err(Failure::new(Code::NotPermitted, message)
                .hint("it must belong to the agent's user, who is --user"))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn greet(log: &mut MonitorLog, setup: &Setup) {
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
                "monitor_cidr {:?} is not an address with a prefix length: nothing can be watched",
                setup.cidr
            ),
        );
    }
}

/// Differs between processes that start together: that is all jitter needs.
fn seed() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = u64::from(since_epoch.subsec_nanos());
    (u64::from(std::process::id()) << 32) ^ since_epoch.as_secs().rotate_left(17) ^ nanos
}

// SPDX-License-Identifier: Apache-2.0
//! Blocked signals that are read from a descriptor (`signalfd(2)`), so that no signal handler is needed.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The signals that control a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `SIGTERM` or `SIGINT`: stop.
    Stop,
    /// `SIGHUP`: reopen the log file.
    Reopen,
}

/// Blocks the signals in [`Signal`]; they are queued until [`Self::read`].
#[derive(Debug)]
pub struct Signals(SignalFile);

impl Signals {
    /// Blocks the signals. Call it while the process has one thread: only threads that are started later inherit it.
    pub fn block() -> io::Result<Self> {
        signal_file(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).map(Self)
    }

    /// The next queued signal; `None` if there is none.
    pub fn read(&self) -> Option<Signal> {
        Some(match self.0.read()? {
            libc::SIGHUP => Signal::Reopen,
            _ => Signal::Stop,
        })
    }
}

as_fd!(Signals.0);

/// The signals that control a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceSignal {
    /// `SIGTERM` or `SIGINT`: stop.
    Stop,
    /// `SIGHUP`: reload the configuration.
    Reload,
    /// `SIGUSR1`: write the state to the log.
    Dump,
    /// `SIGUSR2`: begin or end to log debug messages.
    ToggleDebug,
}

/// Blocks the signals in [`ServiceSignal`]; they are queued until [`Self::read`].
///
/// They are blocked and not ignored, because programs that this process starts would inherit "ignored".
#[derive(Debug)]
pub struct ServiceSignals(SignalFile);

impl ServiceSignals {
    /// Blocks the signals. Call it while the process has one thread: only threads that are started later inherit it.
    pub fn block() -> io::Result<Self> {
        let numbers = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
        signal_file(&numbers).map(Self)
    }

    /// The next queued signal; `None` if there is none.
    pub fn read(&self) -> Option<ServiceSignal> {
        Some(match self.0.read()? {
            libc::SIGHUP => ServiceSignal::Reload,
            libc::SIGUSR1 => ServiceSignal::Dump,
            libc::SIGUSR2 => ServiceSignal::ToggleDebug,
            _ => ServiceSignal::Stop,
        })
    }
}

as_fd!(ServiceSignals.0);

/// The signals that matter to a program that draws on a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminalSignal {
    /// `SIGTERM`, `SIGINT`, `SIGHUP` or `SIGQUIT`: give the terminal back and end.
    Stop,
    /// `SIGTSTP`: give the terminal back and stop until `SIGCONT`.
    Suspend,
    /// `SIGCONT`: the process was stopped, and the content of the terminal is not known.
    Continue,
}

/// Blocks the signals in [`TerminalSignal`]; they are queued until [`Self::read`].
#[derive(Debug)]
pub struct TerminalSignals(SignalFile);

impl TerminalSignals {
    /// Blocks the signals. Call it while the process has one thread: only threads that are started later inherit it.
    pub fn block() -> io::Result<Self> {
        let stop = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];
        signal_file(&[&stop[..], &[libc::SIGTSTP, libc::SIGCONT]].concat()).map(Self)
    }

    /// The next queued signal; `None` if there is none.
    pub fn read(&self) -> Option<TerminalSignal> {
        Some(match self.0.read()? {
            libc::SIGTSTP => TerminalSignal::Suspend,
            libc::SIGCONT => TerminalSignal::Continue,
            _ => TerminalSignal::Stop,
        })
    }
}

as_fd!(TerminalSignals.0);

/// Blocks `SIGCHLD`; readable when a child process has ended.
#[derive(Debug)]
pub struct ChildSignals(SignalFile);

impl ChildSignals {
    /// Blocks the signal. Call it while the process has one thread.
    pub fn block() -> io::Result<Self> {
        signal_file(&[libc::SIGCHLD]).map(Self)
    }

    /// Whether a child process has ended since the last call.
    pub fn has_child_ended(&self) -> bool {
        self.0.read().is_some()
    }
}

as_fd!(ChildSignals.0);

/// The signals of a process that runs programs, and of the processes that supervise them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunnerSignal {
    /// `SIGCHLD`: a child process has ended.
    ChildEnded,
    /// `SIGUSR1`: the parent has ended ([`crate::process::signal_at_end_of`]).
    ParentEnded,
    /// `SIGTERM` or `SIGINT`: stop.
    Stop,
    /// `SIGHUP`: reload the configuration.
    Reload,
}

/// Blocks the signals in [`RunnerSignal`], and `SIGUSR2`, which is discarded; they are queued until [`Self::read`].
#[derive(Debug)]
pub struct RunnerSignals(SignalFile);

impl RunnerSignals {
    /// Blocks the signals. Call it while the process has one thread.
    pub fn block() -> io::Result<Self> {
        let service = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
        signal_file(&[&service[..], &[libc::SIGCHLD]].concat()).map(Self)
    }

    /// The next queued signal; `None` if there is none.
    pub fn read(&self) -> Option<RunnerSignal> {
        loop {
            match self.0.read()? {
                libc::SIGCHLD => return Some(RunnerSignal::ChildEnded),
                libc::SIGUSR1 => return Some(RunnerSignal::ParentEnded),
                libc::SIGHUP => return Some(RunnerSignal::Reload),
                libc::SIGUSR2 => {}
                _ => return Some(RunnerSignal::Stop),
            }
        }
    }
}

as_fd!(RunnerSignals.0);

/// Unblocks all signals, in a child process that is about to execute another program.
pub(crate) fn unblock_all() {
    // SAFETY: all zeroes is a valid value of the plain data type, and `sigemptyset` initialises it. It outlives the
    // calls, and no call allocates memory.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// A signalfd: blocked signals are read from it.
#[derive(Debug)]
pub(crate) struct SignalFile {
    fd: OwnedFd,
}

/// Blocks the signals `numbers` and returns a descriptor to read them from.
pub(crate) fn signal_file(numbers: &[libc::c_int]) -> io::Result<SignalFile> {
    // SAFETY: all zeroes is a valid value of the plain data type, and `sigemptyset` initialises it. The set outlives
    // the calls; with -1 the kernel returns a new descriptor, which has no other owner.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for number in numbers {
            libc::sigaddset(&raw mut set, *number);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let raw = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(raw)
    };
    Ok(SignalFile { fd })
}

impl SignalFile {
    /// The number of the next queued signal; `None` if there is none.
    pub(crate) fn read(&self) -> Option<libc::c_int> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes long. A signalfd returns complete records only, so after a read of `size`
        // bytes all of it is initialised.
        let number = unsafe {
            let read = libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size);
            if usize::try_from(read) != Ok(size) {
                return None;
            }
            info.assume_init().ssi_signo
        };
        libc::c_int::try_from(number).ok()
    }
}

as_fd!(SignalFile.fd);

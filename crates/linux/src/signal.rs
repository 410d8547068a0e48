//! Signals as something to read, so that no handler ever interrupts anything.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The signals a daemon is spoken to with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `SIGTERM` or `SIGINT`: stop.
    Stop,
    /// `SIGHUP`: reopen what may have been rotated.
    Reopen,
}

/// Holds back the signals in [`Signal`] until somebody reads them.
#[derive(Debug)]
pub struct Signals(SignalFile);

impl Signals {
    /// From here on the signals wait to be read. Call while there is one thread.
    pub fn hold() -> io::Result<Self> {
        signal_file(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).map(Self)
    }

    /// As [`Self::hold`]; `SIGUSR1` and `SIGUSR2`, which would end the process, are discarded.
    ///
    /// They are blocked, not ignored: programs that this process starts would inherit "ignored".
    pub fn hold_for_service() -> io::Result<Self> {
        let numbers = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2];
        signal_file(&numbers).map(Self)
    }

    /// The next signal, if one has come.
    pub fn read(&self) -> Option<Signal> {
        loop {
            match self.0.read()? {
                libc::SIGHUP => return Some(Signal::Reopen),
                libc::SIGUSR1 | libc::SIGUSR2 => {}
                _ => return Some(Signal::Stop),
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Tells that a child has ended.
#[derive(Debug)]
pub struct ChildSignals(SignalFile);

impl ChildSignals {
    /// From here on the ends of children can be waited for. Call while there is one thread.
    pub fn hold() -> io::Result<Self> {
        signal_file(&[libc::SIGCHLD]).map(Self)
    }

    /// Whether a child has ended since the last call.
    pub fn have_come(&self) -> bool {
        self.0.read().is_some()
    }
}

impl AsFd for ChildSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets every signal through again, in a child that is about to become another program.
pub(crate) fn hold_none() {
    // SAFETY: all zeroes is a value of the plain data type, which `sigemptyset` sets up for real; it
    // outlives the calls, and nothing here allocates.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
    }
}

/// A descriptor from which blocked signals are read.
#[derive(Debug)]
pub(crate) struct SignalFile {
    fd: OwnedFd,
}

/// Blocks the signals `numbers` and makes them readable.
pub(crate) fn signal_file(numbers: &[libc::c_int]) -> io::Result<SignalFile> {
    // SAFETY: all zeroes is a value of the plain data type, and `sigemptyset` sets it up
    // for real. The set outlives the calls; -1 asks for a new descriptor, which nobody else
    // owns.
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
    /// The number of the next signal, if one has come.
    pub(crate) fn read(&self) -> Option<libc::c_int> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes long; a signalfd fills whole records or none,
        // so after a full read all of it is initialised.
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

impl AsFd for SignalFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

//! Signals as something to read, so that no handler ever interrupts anything.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The signals this program acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// `SIGTERM` or `SIGINT`: stop.
    Stop,
    /// `SIGHUP`: reopen what may have been rotated.
    Reopen,
}

/// Holds back the signals in [`Signal`] until somebody reads them; a process inherits this
/// from the one that forked it.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

impl Signals {
    /// From here on the signals wait to be read. Call while there is one thread.
    pub fn hold() -> io::Result<Self> {
        let set = set();
        // SAFETY: `set` is a valid signal set that outlives both calls; -1 asks for a new
        // descriptor, which nobody else owns.
        let fd = unsafe {
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let raw = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if raw < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(raw)
        };
        Ok(Self { fd })
    }

    /// The next signal, if one has come.
    pub fn read(&self) -> Option<Signal> {
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
        let hangup = u32::try_from(libc::SIGHUP).ok();
        Some(if Some(number) == hangup {
            Signal::Reopen
        } else {
            Signal::Stop
        })
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn set() -> libc::sigset_t {
    // SAFETY: all zeroes is a value of the plain data type, and `sigemptyset` sets it up
    // for real; the signal numbers are valid.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

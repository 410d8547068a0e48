//! Becoming a daemon, and looking after children.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Side {
    /// The one that forked.
    Parent(Child),
    /// The new one.
    Child,
}

/// A child of ours, owned: dropping it kills and reaps it.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    handle: OwnedFd,
    is_reaped: bool,
}

/// Forks. The caller has one thread, so the child may do anything the parent could.
pub fn fork() -> io::Result<Side> {
    // SAFETY: with a single thread there is no lock another thread could hold in the child;
    // both programs that fork do so before anything could have started one.
    let pid = unsafe { libc::fork() };
    match Pid::from_raw(pid) {
        None => Ok(Side::Child),
        Some(_) if pid < 0 => Err(io::Error::last_os_error()),
        Some(pid) => {
            let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
            Ok(Side::Parent(Child {
                pid,
                handle,
                is_reaped: false,
            }))
        }
    }
}

/// Ends this process at once, without running anything that belongs to the parent's copy.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: `_exit` has no preconditions and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Closes every descriptor above standard error that this process inherited: a pipe kept
/// open by accident would keep its reader waiting for as long as we live.
///
/// Call first thing, before this process has opened anything of its own.
pub fn close_inherited_files() {
    // SAFETY: nothing in this process owns a descriptor above 2 yet; kernels before 5.9
    // answer ENOSYS and leave them as they were.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
}

/// Closes everything but `keep`, in a child that needs nothing else of its parent's.
///
/// The caller must not return from here on: what it believes to own is closed.
pub fn close_all_but(keep: &OwnedFd) {
    use std::os::fd::AsRawFd;
    let keep = keep.as_raw_fd().cast_unsigned();
    // SAFETY: the child ends by `exit_now` without dropping any owner of these descriptors.
    unsafe {
        if keep > 3 {
            libc::syscall(libc::SYS_close_range, 3_u32, keep - 1, 0_u32);
        }
        libc::syscall(libc::SYS_close_range, keep + 1, u32::MAX, 0_u32);
    };
}

/// Leaves the caller's session, directory and terminal.
pub fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// Puts `/dev/null` on standard input, output and error.
pub fn silence_standard_files() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Have the kernel kill this process when its parent ends, however it ends. False if the
/// parent is already gone.
pub fn die_with_parent(parent: Pid) -> io::Result<bool> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // ORDER: ask after setting. A parent that died before sends no signal.
    Ok(rustix::process::getppid() == Some(parent))
}

/// Renames this process in `ps`; the command line stays.
pub fn set_name(name: &std::ffi::CStr) {
    // A cosmetic: a failure is not worth a word.
    let _ = rustix::thread::set_name(name);
}

/// This process.
pub fn own_pid() -> Pid {
    rustix::process::getpid()
}

impl Child {
    /// Something that becomes readable when the child has ended.
    pub fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// How the child ended, if it has: its exit code, or `None` in case of a signal.
    pub fn ended(&mut self) -> Option<Option<i32>> {
        let (_, status) = rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG).ok()??;
        self.is_reaped = true;
        Some(status.exit_status())
    }

    /// Waits until the child has ended, but not longer than `limit`; true if it has.
    pub fn wait(&mut self, limit: Duration) -> bool {
        let mut waiting = [PollFd::new(&self.handle, PollFlags::IN)];
        let limit = Timespec::try_from(limit).ok();
        let _ = poll(&mut waiting, limit.as_ref());
        self.is_reaped || self.ended().is_some()
    }

    /// Ends the child by force. Without effect where we lack the right to.
    pub fn kill(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.handle, Signal::KILL);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.kill();
            self.wait(Duration::from_millis(50));
        }
    }
}

/// Has the kernel kill what `command` starts when this process ends.
pub fn bind_to_this_process(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let parent = own_pid();
    let bind = move || match die_with_parent(parent) {
        Ok(true) => Ok(()),
        Ok(false) => Err(io::ErrorKind::NotFound.into()),
        Err(error) => Err(error),
    };
    // SAFETY: between fork and exec the closure makes two system calls and touches neither
    // the heap nor a lock.
    unsafe { command.pre_exec(bind) };
}

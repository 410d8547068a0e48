// SPDX-License-Identifier: Apache-2.0
//! Processes: fork, daemon setup, limits, memory, and child processes that end with their parent.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitOptions};

use crate::clock;

/// The process in which `fork` returned.
#[derive(Debug)]
pub enum ForkSide {
    /// The process that called `fork`.
    Parent(Child),
    /// The new process.
    Child,
}

/// A child process. Dropping it kills and reaps the process.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    is_reaped: bool,
}

/// Forks. The calling process must have one thread; then the child may call every function.
pub fn fork() -> io::Result<ForkSide> {
    // SAFETY: with a single thread, no other thread can hold a lock in the child; both programs that fork do so
    // before any code could have started a thread.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Pid::from_raw(pid)
        .map_or(ForkSide::Child, |pid| ForkSide::Parent(Child { pid, is_reaped: false })))
}

/// Ends this process at once, without destructors and exit handlers: in a forked child they belong to the parent.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: `_exit` has no preconditions and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Closes every inherited descriptor above standard error. An inherited pipe that stays open would make its reader wait
/// until this process ends.
///
/// Call it first, before this process opens any file.
pub fn close_inherited_files() {
    close_range(3, u32::MAX);
}

/// Closes all descriptors but `keep` and the standard files, in a child that needs no other descriptor of its parent.
///
/// The caller must not return to code that owns other descriptors: they are closed.
pub fn close_all_but(keep: &OwnedFd) {
    let keep = keep.as_raw_fd().cast_unsigned();
    if keep > 3 {
        close_range(3, keep - 1);
    }
    close_range(keep + 1, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: both callers require that no code uses these descriptors any more.
    let is_done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0_u32) == 0 };
    if is_done {
        return;
    }
    // Kernels before 5.9 have no `close_range`: the open descriptors are closed one by one.
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<u32> =
        open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| (first..=last).contains(fd)) {
        // SAFETY: as above; the descriptor that listed the directory is already closed.
        unsafe { libc::close(fd.cast_signed()) };
    }
}

/// Starts a new session without a terminal, and changes to the root directory.
pub fn detach() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::chdir("/")?;
    Ok(())
}

/// Redirects standard input to `/dev/null`.
pub fn silence_standard_input() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(())
}

/// Redirects standard input, output and error to `/dev/null`.
pub fn silence_standard_files() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Makes the kernel send `SIGUSR1` to this process when its parent ends, which has the pid `parent`. Returns false if the
/// parent has already ended.
pub fn signal_at_end_of(parent: u32) -> io::Result<bool> {
    rustix::process::set_parent_process_death_signal(Some(Signal::USR1))?;
    // ORDER: as in `die_with_parent`.
    let current = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    Ok(current == Some(parent))
}

/// Makes the kernel kill this process when its parent ends. Returns false if the parent has already ended.
fn die_with_parent(parent: Pid) -> io::Result<bool> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // ORDER: the parent is checked after the signal is set. A parent that ended before causes no signal.
    Ok(rustix::process::getppid() == Some(parent))
}

/// Sets the name of this process in `ps`; the command line stays the same.
pub fn set_name(name: &std::ffi::CStr) {
    // The name is only for display, so a failure is ignored.
    let _ = rustix::thread::set_name(name);
}

/// Returns the stack pages of the main thread that only the start needed to the kernel: two or three pages, for each
/// of a thousand processes on a node. On any other thread it does nothing: the memory below the stack of such a
/// thread has other users.
// Not inlined: `here` must be in a frame below those of all callers. Inlined, it could be above a part of the caller's
// frame.
#[inline(never)]
pub fn release_spare_stack() {
    const SPAN: usize = 128 << 10;
    const PAGE: usize = 4 << 10;
    if rustix::thread::gettid() != rustix::process::getpid() {
        return;
    }
    let here = 0_u8;
    // The page below the page of this frame: this frame and the call below it need much less than a page.
    let top = (std::ptr::from_ref(std::hint::black_box(&here)).addr() & !(PAGE - 1)) - PAGE;
    // SAFETY: this frame is the lowest live one, because the function is not inlined. The range starts at least a page
    // below it, so it contains no live value. Pages that are used again are filled with zeroes. Below the stack of the
    // main thread there is only room to grow; for parts that are not mapped the kernel returns an error and changes
    // nothing.
    unsafe { libc::madvise((top - SPAN) as *mut libc::c_void, SPAN, libc::MADV_DONTNEED) };
}

/// Returns unused heap memory to the kernel, after a large allocation was freed.
pub fn release_spare_heap() {
    // SAFETY: `malloc_trim` takes the number of bytes to keep and has no preconditions.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Makes the kernel enlarge the descriptor table to `count` entries now. Otherwise it enlarges the table in several
/// steps when files are opened, and a process with several threads waits about ten milliseconds each time.
pub fn reserve_descriptors(count: u64) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let highest = limit.map_or(count, |limit| count.min(limit)).saturating_sub(1);
    let Ok(highest) = i32::try_from(highest) else { return };
    // The table keeps its size when the descriptor is closed. A failure only means that the table grows later.
    let highest_descriptor = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), highest);
    drop(highest_descriptor);
}

/// Raises the limit of open files to the maximum that is allowed; returns the limit.
pub fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    // With a lower limit the program works too, until a very large number of connections is open.
    let current =
        if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    current.unwrap_or(u64::MAX)
}

/// Limits glibc's allocator to two heaps for all threads, and makes it return large allocations to the kernel at
/// once: the program has few threads, and none of them allocates much at a time.
pub fn share_heaps() {
    // SAFETY: it sets two numbers, and is called before the process starts threads.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

impl Child {
    /// The pid of the child.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().cast_unsigned()
    }

    /// Sends `SIGUSR1`, as the kernel does to a process that has called [`signal_at_end_of`].
    pub fn signal_end(&self) {
        let _ = rustix::process::kill_process(self.pid, Signal::USR1);
    }

    /// Waits until the child has ended, at most for `limit`; returns whether it has ended.
    pub fn wait(&mut self, limit: Duration) -> bool {
        // Polled and not waited for with a pidfd: kernels before 5.3 have none, and the child is about to end.
        const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let end = clock::now() + limit;
        while !self.is_reaped {
            match rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG) {
                Ok(None) if clock::now() < end => {
                    let _ = poll(&mut [], Some(&STEP));
                }
                Ok(None) => return false,
                // After an error of `waitpid` there is no child to wait for either.
                Ok(Some(_)) | Err(_) => self.is_reaped = true,
            }
        }
        true
    }

    /// Kills the child. It has no effect if this process lacks the right to.
    pub fn kill(&self) {
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
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

/// Makes the kernel kill the process that `command` starts when this process ends. The new process starts with all
/// signals unblocked: only this process reads the blocked ones from a descriptor.
pub fn bind_to_this_process(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let parent = rustix::process::getpid();
    let bind = move || {
        crate::signal::unblock_all();
        match die_with_parent(parent) {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::ErrorKind::NotFound.into()),
            Err(error) => Err(error),
        }
    };
    // SAFETY: between fork and exec the closure makes three system calls and uses neither the heap nor a lock.
    unsafe { command.pre_exec(bind) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const MARK: u8 = 0xa5;

    /// Writes a mark on the stack, 16 KiB below the caller's frame; returns its address.
    #[inline(never)]
    fn mark_stack() -> usize {
        let bytes = [MARK; 16 << 10];
        std::hint::black_box(&bytes).as_ptr().addr()
    }

    /// Reads the byte at `address` through the kernel: the program itself may not read a dead frame.
    fn byte_at(address: usize) -> u8 {
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let mut byte = [0];
        memory.read_exact_at(&mut byte, address as u64).unwrap();
        byte[0]
    }

    #[test]
    fn the_stack_of_another_thread_is_not_changed() {
        let thread = std::thread::spawn(|| {
            let address = mark_stack();
            assert_eq!(byte_at(address), MARK);
            release_spare_stack();
            byte_at(address)
        });
        assert_eq!(thread.join().unwrap(), MARK);
    }
}

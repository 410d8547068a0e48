//! Becoming a daemon, and looking after children.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, WaitOptions};

use crate::clock;

/// Which side of a fork this is.
#[derive(Debug)]
pub enum ForkSide {
    /// The one that forked.
    Parent(Child),
    /// The new one.
    Child,
}

/// A child of ours, owned: dropping it kills and reaps it.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    is_reaped: bool,
}

/// Forks. The caller has one thread, so the child may do anything the parent could.
pub fn fork() -> io::Result<ForkSide> {
    // SAFETY: with a single thread there is no lock another thread could hold in the child;
    // both programs that fork do so before anything could have started one.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Pid::from_raw(pid)
        .map_or(ForkSide::Child, |pid| ForkSide::Parent(Child { pid, is_reaped: false })))
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
    close_range(3, u32::MAX);
}

/// Closes everything but `keep` and the standard files, in a child that needs nothing else
/// of its parent's.
///
/// The caller must not return from here on: what it believes to own is closed.
pub fn close_all_but(keep: &OwnedFd) {
    let keep = keep.as_raw_fd().cast_unsigned();
    if keep > 3 {
        close_range(3, keep - 1);
    }
    close_range(keep + 1, u32::MAX);
}

fn close_range(first: u32, last: u32) {
    // SAFETY: by the promise of the two callers nothing uses these descriptors any more.
    let is_done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0_u32) == 0 };
    if is_done {
        return;
    }
    // Kernels before 5.9: one by one, as far as any are open.
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<u32> =
        open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| (first..=last).contains(fd)) {
        // SAFETY: as above; the one that listed the directory is closed already.
        unsafe { libc::close(fd.cast_signed()) };
    }
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
fn die_with_parent(parent: Pid) -> io::Result<bool> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // ORDER: ask after setting. A parent that died before sends no signal.
    Ok(rustix::process::getppid() == Some(parent))
}

/// Renames this process in `ps`; the command line stays.
pub fn set_name(name: &std::ffi::CStr) {
    // A cosmetic: a failure is not worth a word.
    let _ = rustix::thread::set_name(name);
}

/// Gives the pages of the main thread's stack that starting up has used, and watching does not need, back to the
/// kernel: two or three pages, a thousand times on a node. On any other thread it does nothing: below the stack of
/// such a thread lies memory of others.
// Not inlined: `here` must lie in a frame below those of all callers. Inlined, it could lie above a part of the
// caller's frame.
#[inline(never)]
pub fn release_spare_stack() {
    const SPAN: usize = 128 << 10;
    const PAGE: usize = 4 << 10;
    if rustix::thread::gettid() != rustix::process::getpid() {
        return;
    }
    let here = 0_u8;
    // The page below the one of this frame: what this frame and the call below it need is far less than a page.
    let top = (std::ptr::from_ref(std::hint::black_box(&here)).addr() & !(PAGE - 1)) - PAGE;
    // SAFETY: this frame is the lowest one that lives, because the function is not inlined. The range is a page
    // and more below it, so no live value is in it. Pages of it that are touched again come back as zeroes. The stack
    // of the main thread has nothing below it but room to grow; parts that are not mapped are skipped by
    // the kernel, with an error that changes nothing.
    unsafe { libc::madvise((top - SPAN) as *mut libc::c_void, SPAN, libc::MADV_DONTNEED) };
}

/// Gives back what the heap holds and nobody uses, after something large and short-lived.
pub fn release_spare_heap() {
    // SAFETY: it takes an amount to leave, and has no preconditions.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the kernel make room for so many open files at once, now. It would else do so when they come, again and
/// again, and have a process with several threads wait some ten milliseconds each time.
pub fn make_room_for_files(count: u64) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let highest = limit.map_or(count, |limit| count.min(limit)).saturating_sub(1);
    let Ok(highest) = i32::try_from(highest) else { return };
    // The room stays when this goes. Without it, it is as it would have been.
    let standing_for_many = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), highest);
    drop(standing_for_many);
}

/// Lets us have as many open files as we may; tells how many that is.
pub fn raise_file_limit() -> u64 {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    // With fewer it works as well, until very many come at once.
    let current =
        if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    current.unwrap_or(u64::MAX)
}

/// Has all threads share two heaps, and large things be given back at once: there are some threads,
/// and none of them allocates much at a time.
pub fn share_heaps() {
    // SAFETY: it sets two numbers, and is called before there are threads.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

impl Child {
    /// Waits until the child has ended, but not longer than `limit`; true if it has.
    pub fn wait(&mut self, limit: Duration) -> bool {
        // Not by a descriptor of the process: kernels before 5.3 have none, and what is
        // waited for here is about to end.
        const STEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let end = clock::now() + limit;
        while !self.is_reaped {
            match rustix::process::waitpid(Some(self.pid), WaitOptions::NOHANG) {
                Ok(None) if clock::now() < end => {
                    let _ = poll(&mut [], Some(&STEP));
                }
                Ok(None) => return false,
                // Whatever the kernel says, there is nothing left to wait for.
                Ok(Some(_)) | Err(_) => self.is_reaped = true,
            }
        }
        true
    }

    /// Ends the child by force. Without effect where we lack the right to.
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

/// Has the kernel kill what `command` starts when this process ends. It starts with no signal held
/// back: those that we read instead are ours.
pub fn bind_to_this_process(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    let parent = rustix::process::getpid();
    let bind = move || {
        crate::signal::hold_none();
        match die_with_parent(parent) {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::ErrorKind::NotFound.into()),
            Err(error) => Err(error),
        }
    };
    // SAFETY: between fork and exec the closure makes three system calls and touches neither
    // the heap nor a lock.
    unsafe { command.pre_exec(bind) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const MARK: u8 = 0xa5;

    /// Leaves a mark on the stack, 16 KiB below the caller's frame, and tells where.
    #[inline(never)]
    fn mark_stack() -> usize {
        let bytes = [MARK; 16 << 10];
        std::hint::black_box(&bytes).as_ptr().addr()
    }

    /// The byte at `address`, as the kernel sees it: the program itself may not read a dead frame.
    fn byte_at(address: usize) -> u8 {
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let mut byte = [0];
        memory.read_exact_at(&mut byte, address as u64).unwrap();
        byte[0]
    }

    #[test]
    fn the_stack_of_another_thread_is_left_alone() {
        let thread = std::thread::spawn(|| {
            let address = mark_stack();
            assert_eq!(byte_at(address), MARK);
            release_spare_stack();
            byte_at(address)
        });
        assert_eq!(thread.join().unwrap(), MARK);
    }
}

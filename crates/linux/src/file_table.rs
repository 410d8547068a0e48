// SPDX-License-Identifier: Apache-2.0
//! A thread with a table of file descriptors of its own.
//!
//! All threads of a process share one table, and when the process ends, also by SIGKILL, the kernel closes its files one
//! after the other. A packet socket takes some 12 ms. Files in several tables are closed at the same time, each table by
//! the thread that owns it.
//!
//! A descriptor is a number in one table. So files that such a thread opens never leave it: the owner sends the work to
//! the files ([`FileTable::run`]). That work must use no descriptor of another table; logging is allowed, because it uses
//! no descriptor.
//!
//! LIMIT: before Linux 5.9 (`close_range`) the thread shares the table of the process. All else works as described.

use std::fmt;
use std::io;
use std::iter::Enumerate;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::vec::IntoIter;

use crate::worker::{Heartbeat, beat_every, spawn_worker};

/// Work for the thread.
type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// The handle to the thread. `S` is a value that owns the files; it never leaves the thread. Dropping the handle drops that
/// value, and waits for the end of the thread.
pub struct FileTable<S> {
    shared: Arc<Shared<S>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<S> {
    state: Mutex<State<S>>,
    /// Signalled when there is a job, when a job is done, and at the end.
    changed: Condvar,
}

struct State<S> {
    /// BOUND: one job; the next one waits until it is done.
    job: Option<Job<S>>,
    /// Number of jobs that were handed over.
    accepted: u64,
    /// Number of jobs that the thread has run and dropped.
    finished: u64,
    is_ending: bool,
    has_ended: bool,
}

impl<S: Default + 'static> FileTable<S> {
    /// Starts the thread.
    pub fn start(name: &str) -> io::Result<Self> {
        let state =
            State { job: None, accepted: 0, finished: 0, is_ending: false, has_ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let thread_shared = Arc::clone(&shared);
        let thread = spawn_worker(name, move |heartbeat| {
            let _end = EndMark(&thread_shared);
            unshare();
            let mut files = S::default();
            while let Some(job) = thread_shared.next_job(heartbeat) {
                job(&mut files);
                thread_shared.finish();
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Runs `work` on the thread, and waits for it.
    pub fn run<T: Send>(&mut self, work: impl FnOnce(&mut S) -> T + Send) -> T {
        let mut result = None;
        let job: Box<dyn FnOnce(&mut S) + Send + '_> = Box::new(|files| result = Some(work(files)));
        // SAFETY: only the lifetime changes. `wait` returns after the thread has consumed the job, also if it panics:
        // then the job is dropped before the thread is marked as ended. So no borrow outlives this call.
        let job: Job<S> = unsafe { std::mem::transmute(job) };
        self.shared.hand_over(job);
        self.wait();
        result.expect("the thread of a file table ran its job")
    }

    /// Runs `work` on the thread of each table in turn, with the position of the table, and waits for the last one. Each
    /// thread wakes the next one: the calling thread is woken once.
    pub fn run_each(tables: &mut [&mut Self], mut work: impl FnMut(usize, &mut S) + Send) {
        let shared: Vec<_> = tables.iter().map(|table| Arc::clone(&table.shared)).collect();
        let (done, end) = sync_channel(1);
        Turn { tables: shared.into_iter().enumerate(), work: &mut work, done }.begin();
        end.recv().expect("the threads of the file tables ran their jobs");
    }

    /// Has `work` run on the thread, without waiting.
    pub fn begin(&mut self, work: impl FnOnce(&mut S) + Send + 'static) {
        self.shared.hand_over(Box::new(work));
    }

    /// Waits until all work is done.
    pub fn wait(&mut self) {
        drop(self.shared.wait_until_done());
    }
}

/// The part of [`FileTable::run_each`] from one table on. Dropping it ends the wait of the caller.
struct Turn<'a, S> {
    tables: Enumerate<IntoIter<Arc<Shared<S>>>>,
    work: &'a mut (dyn FnMut(usize, &mut S) + Send),
    done: SyncSender<()>,
}

impl<S: 'static> Turn<'_, S> {
    /// Has the work run on the thread of the first table, and then on the next ones.
    fn begin(mut self) {
        let Some((position, table)) = self.tables.next() else {
            let _ = self.done.send(());
            return;
        };
        let job: Box<dyn FnOnce(&mut S) + Send + '_> = Box::new(move |files| {
            (self.work)(position, files);
            self.begin();
        });
        // SAFETY: only the lifetime changes. `run_each`, which owns what `work` borrows, waits until `done` has sent or is
        // dropped. `work` is not called after that, also if it panics: then the turn is dropped with the job.
        let job: Job<S> = unsafe { std::mem::transmute(job) };
        table.hand_over(job);
    }
}

impl<S> Shared<S> {
    fn lock(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State<S>>) -> MutexGuard<'a, State<S>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until_done(&self) -> MutexGuard<'_, State<S>> {
        let mut state = self.lock();
        while state.finished < state.accepted && !state.has_ended {
            state = self.wait(state);
        }
        state
    }

    fn hand_over(&self, job: Job<S>) {
        let mut state = self.wait_until_done();
        assert!(!state.has_ended, "the thread of a file table runs");
        state.job = Some(job);
        state.accepted += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Waits for a job; `None` at the end.
    fn next_job(&self, heartbeat: &Heartbeat) -> Option<Job<S>> {
        let mut state = self.lock();
        loop {
            heartbeat.beat();
            if let Some(job) = state.job.take() {
                return Some(job);
            }
            if state.is_ending {
                return None;
            }
            let waited = self.changed.wait_timeout(state, beat_every());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn finish(&self) {
        self.lock().finished += 1;
        self.changed.notify_all();
    }
}

/// Marks the thread as ended, also after a panic.
struct EndMark<'a, S>(&'a Shared<S>);

impl<S> Drop for EndMark<'_, S> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.has_ended = true;
        state.job = None;
        drop(state);
        self.0.changed.notify_all();
    }
}

impl<S> Drop for FileTable<S> {
    fn drop(&mut self) {
        self.shared.lock().is_ending = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<S> fmt::Debug for FileTable<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileTable").finish_non_exhaustive()
    }
}

/// Gives the calling thread a table with the standard files only, which a panic uses. The kernel does not copy the other
/// descriptors.
fn unshare() {
    let flags = libc::CLOSE_RANGE_UNSHARE;
    // SAFETY: the thread has just started and owns no descriptor. The table of the other threads does not change: the
    // kernel closes nothing if it cannot make a new table.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, flags) };
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::thread::ThreadId;

    use super::*;

    /// The open descriptors of the calling thread.
    fn open_descriptors() -> Vec<i32> {
        let entries = std::fs::read_dir("/proc/thread-self/fd").unwrap().flatten();
        entries.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn the_files_of_a_table_are_not_in_the_table_of_the_process() {
        let outside = File::open("/dev/null").unwrap();
        let high = rustix::io::fcntl_dupfd_cloexec(&outside, 200).unwrap();
        let mut table = FileTable::<Vec<File>>::start("table").unwrap();
        let inside = table.run(|files| {
            assert!(!open_descriptors().contains(&200), "the thread has copied a descriptor");
            files.push(File::open("/dev/null").unwrap());
            rustix::io::fcntl_dupfd_cloexec(&files[0], 300).map(File::from).unwrap()
        });
        assert_eq!((high.as_raw_fd(), inside.as_raw_fd()), (200, 300));
        assert!(!open_descriptors().contains(&300));
        // The number belongs to the other table.
        table.run(|files| files.push(inside));
        assert_eq!(table.run(|files| files.len()), 2);
    }

    #[test]
    fn work_may_borrow_and_runs_in_order() {
        let mut table = FileTable::<Vec<u32>>::start("table").unwrap();
        let given = vec![1, 2];
        let mut copied = Vec::new();
        table.begin(|files| files.push(0));
        let count = table.run(|files| {
            files.extend(&given);
            copied.clone_from(files);
            files.len()
        });
        assert_eq!((count, copied), (3, vec![0, 1, 2]));
    }

    #[test]
    fn the_tables_run_one_after_the_other_without_waking_the_caller_for_each() {
        let mut tables: Vec<_> =
            (0..16).map(|_| FileTable::<Vec<ThreadId>>::start("table").unwrap()).collect();
        let mut seen = Vec::new();
        let waits = || {
            let text = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.unwrap().trim().parse::<u32>().unwrap()
        };
        let before = waits();
        FileTable::run_each(&mut tables.iter_mut().collect::<Vec<_>>(), |position, files| {
            files.push(std::thread::current().id());
            seen.push((position, files.clone()));
        });
        // A lock may be another reason to wait.
        assert!(waits() - before < 8);
        for (at, ((position, on_thread), table)) in seen.iter().zip(&mut tables).enumerate() {
            assert_eq!((*position, on_thread), (at, &table.run(|files| files.clone())));
        }
        assert_eq!(seen.iter().map(|(_, thread)| thread).collect::<HashSet<_>>().len(), 16);
    }

    #[test]
    fn a_panic_in_one_of_several_tables_reaches_the_caller() {
        let mut tables: Vec<_> = (0..3).map(|_| FileTable::<()>::start("table").unwrap()).collect();
        let mut visited = 0;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            FileTable::run_each(&mut tables.iter_mut().collect::<Vec<_>>(), |position, ()| {
                visited += 1;
                assert_eq!(position, 0, "in the second table");
            });
        }));
        assert!(result.is_err() && visited == 2);
    }

    #[test]
    fn a_panic_in_the_thread_reaches_the_caller() {
        let mut table = FileTable::<()>::start("table").unwrap();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            table.run(|()| panic!("in the table"));
        }));
        assert!(result.is_err());
    }
}

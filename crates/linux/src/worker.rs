// SPDX-License-Identifier: Apache-2.0
//! Named threads that run as long as the service and that the watchdog supervises.
//!
//! The watchdog of the service manager checks whether the whole process works. So each worker calls
//! [`Heartbeat::beat`]: at the start of each turn of its loop, and at least every [`beat_every`] while it waits. If a
//! worker does not beat for the period of the watchdog, it is [stalled], and the service does not notify the watchdog.
//!
//! A worker that [uses the disk](Heartbeat::disk) is not stalled, whatever it does meanwhile: nothing ends a wait for the disk, and
//! the rest of the service works.
//!
//! A thread with a deadline for its work (a hook, a delivery, one answer) does not need this. The effect of a panic
//! is set for the whole process, not here.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use vipwatch_core::Moment;

use crate::clock;

/// The interval of heartbeats without a watchdog: nothing reads them.
const WITHOUT_WATCHDOG: Duration = Duration::from_hours(1);

/// All running workers of this process.
static WORKERS: Mutex<Vec<Arc<WorkerStatus>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct WorkerStatus {
    name: String,
    /// Time of the last heartbeat, in milliseconds of the monotonic clock.
    last_beat: AtomicU64,
    /// Since when the worker uses the disk without a heartbeat, in the same unit; 0 if it does not.
    disk_since: AtomicU64,
}

/// The worker's handle to report that it makes progress.
#[derive(Debug, Clone)]
pub struct Heartbeat(Arc<WorkerStatus>);

impl Heartbeat {
    /// Records that the thread makes progress.
    pub fn beat(&self) {
        let now = now_millis();
        self.0.last_beat.store(now, Ordering::Relaxed);
        if self.0.disk_since.load(Ordering::Relaxed) != 0 {
            self.0.disk_since.store(now, Ordering::Relaxed);
        }
    }

    /// Declares that the thread uses the disk until the guard is dropped: a disk that hangs may block it for any time.
    #[must_use]
    pub fn disk(&self) -> DiskUse<'_> {
        self.0.disk_since.store(now_millis(), Ordering::Relaxed);
        DiskUse(self)
    }
}

/// The time in which a worker uses the disk.
#[derive(Debug)]
pub struct DiskUse<'a>(&'a Heartbeat);

impl Drop for DiskUse<'_> {
    fn drop(&mut self) {
        self.0.0.disk_since.store(0, Ordering::Relaxed);
        self.0.beat();
    }
}

/// Removes a worker from [`WORKERS`] when its thread ends.
struct Registration(Arc<WorkerStatus>);

impl Drop for Registration {
    fn drop(&mut self) {
        let mut workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|worker| !Arc::ptr_eq(worker, &self.0));
    }
}

/// Starts a thread that runs `work`, which must [beat](Heartbeat::beat) regularly.
pub fn spawn_worker(
    name: &str,
    work: impl FnOnce(&Heartbeat) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let last_beat = AtomicU64::new(now_millis());
    let disk_since = AtomicU64::new(0);
    let status = Arc::new(WorkerStatus { name: name.to_owned(), last_beat, disk_since });
    let registration = Registration(Arc::clone(&status));
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&status));
    Builder::new().name(name.to_owned()).spawn(move || {
        let _registration = registration;
        inject_panic(&status.name);
        work(&Heartbeat(status));
    })
}

/// Runs `work`, which uses the disk, on a thread of its own, which never ends if the disk hangs. `None` if that takes longer
/// than `limit`, or if there can be no further thread.
pub fn in_time<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answer, answered) = sync_channel(1);
    Builder::new().spawn(move || answer.send(work())).ok()?;
    answered.recv_timeout(limit).ok()
}

/// Panics in the worker that an environment variable names, for tests of the whole program. Release builds do not
/// contain it.
#[cfg(debug_assertions)]
fn inject_panic(name: &str) {
    let wanted = std::env::var("VIPWATCH_TEST_PANIC");
    assert!(wanted.as_deref() != Ok(name), "a panic that a test has asked for");
}

#[cfg(not(debug_assertions))]
fn inject_panic(_name: &str) {}

/// The period of the service manager's watchdog (`WATCHDOG_USEC`); `None` without a watchdog.
pub fn watchdog_period() -> Option<Duration> {
    static PERIOD: OnceLock<Option<Duration>> = OnceLock::new();
    *PERIOD.get_or_init(|| {
        let micros = std::env::var("WATCHDOG_USEC").ok()?.parse::<u64>().ok()?;
        Some(Duration::from_micros(micros.max(4)))
    })
}

/// The maximum time between two heartbeats of a worker.
pub fn beat_every() -> Duration {
    watchdog_period().map_or(WITHOUT_WATCHDOG, |period| period / 4)
}

/// The name of a worker without a heartbeat for `limit`; `None` if all workers make progress.
pub fn stalled(limit: Duration) -> Option<String> {
    let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let now = now_millis();
    let workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_stalled = |worker: &&Arc<WorkerStatus>| {
        now.saturating_sub(worker.last_beat.load(Ordering::Relaxed)) > limit
            && worker.disk_since.load(Ordering::Relaxed) == 0
    };
    workers.iter().find(is_stalled).map(|worker| worker.name.clone())
}

/// The names of the workers that [use the disk](Heartbeat::disk), and have made no progress for `limit` or longer.
pub fn disk_waits(limit: Duration) -> Vec<String> {
    let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let now = now_millis();
    let workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
    let waits = |worker: &&Arc<WorkerStatus>| {
        let since = worker.disk_since.load(Ordering::Relaxed);
        since != 0 && now.saturating_sub(since) >= limit
    };
    workers.iter().filter(waits).map(|worker| worker.name.clone()).collect()
}

/// The name of every worker, and the time since its last heartbeat.
pub fn workers() -> Vec<(String, Duration)> {
    let now = now_millis();
    let workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
    let age = |worker: &WorkerStatus| {
        Duration::from_millis(now.saturating_sub(worker.last_beat.load(Ordering::Relaxed)))
    };
    workers.iter().map(|worker| (worker.name.clone(), age(worker))).collect()
}

fn now_millis() -> u64 {
    let since = clock::now().since(Moment::new(Duration::ZERO));
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_does_not_beat_is_stalled_until_it_beats_or_ends() {
        let (go, gate) = sync_channel::<()>(0);
        let (done, next) = sync_channel::<()>(0);
        let worker = spawn_worker("slow", move |heartbeat| {
            while gate.recv().is_ok() {
                heartbeat.beat();
                done.send(()).unwrap();
            }
        });
        let limit = Duration::from_millis(20);
        while stalled(limit).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(stalled(limit).as_deref(), Some("slow"));
        go.send(()).unwrap();
        next.recv().unwrap();
        assert_eq!(stalled(Duration::from_mins(1)), None);
        drop(go);
        worker.unwrap().join().unwrap();
        while stalled(Duration::ZERO).is_some() {
            std::thread::yield_now();
        }
        a_worker_that_waits_for_the_disk_is_not_stalled();
    }

    /// Not a test of its own: the workers are those of the process.
    fn a_worker_that_waits_for_the_disk_is_not_stalled() {
        let (go, gate) = sync_channel::<()>(0);
        let worker = spawn_worker("disk", move |heartbeat| {
            let disk = heartbeat.disk();
            let _ = gate.recv();
            drop(disk);
            let _ = gate.recv();
        });
        let limit = Duration::from_millis(20);
        while disk_waits(limit).is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(disk_waits(limit), ["disk"]);
        assert_eq!(stalled(limit), None);
        go.send(()).unwrap();
        while stalled(limit).is_none() {
            std::thread::yield_now();
        }
        assert!(disk_waits(Duration::ZERO).is_empty());
        drop(go);
        worker.unwrap().join().unwrap();
    }
}

//! Threads that live as long as the service they belong to: named, and seen to be alive.
//!
//! The service manager's watchdog asks whether the whole process works. Each such thread therefore
//! beats: at the beginning of each turn, and at least every [`beat_every`] while it waits. A thread
//! that does not beat for the time of the watchdog is [stalled], and the watchdog is not fed.
//!
//! A thread whose work is bounded by a deadline of its own (a hook, a delivery, one answer) does not
//! need this. What a panic does is decided for the whole process, not here.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use vipwatch_core::Moment;

use crate::clock;

/// Without a watchdog, no thread needs to wake up to beat.
const WITHOUT_WATCHDOG: Duration = Duration::from_hours(1);

/// Every worker that runs in this process.
static WORKERS: Mutex<Vec<Arc<Pulse>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Pulse {
    name: String,
    /// When the thread last beat, in milliseconds of the monotonic clock.
    last: AtomicU64,
}

/// The worker's side: it beats.
#[derive(Debug, Clone)]
pub struct Heartbeat(Arc<Pulse>);

impl Heartbeat {
    /// Says that the thread makes progress.
    pub fn beat(&self) {
        self.0.last.store(now_millis(), Ordering::Relaxed);
    }
}

/// Removes a worker that has ended from those that must beat.
struct Registered(Arc<Pulse>);

impl Drop for Registered {
    fn drop(&mut self) {
        let mut workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
        workers.retain(|pulse| !Arc::ptr_eq(pulse, &self.0));
    }
}

/// Starts a thread that does `work`, which must [beat](Heartbeat::beat).
pub fn spawn_worker(
    name: &str,
    work: impl FnOnce(&Heartbeat) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let pulse = Arc::new(Pulse { name: name.to_owned(), last: AtomicU64::new(now_millis()) });
    let registered = Registered(Arc::clone(&pulse));
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&pulse));
    Builder::new().name(name.to_owned()).spawn(move || {
        let _registered = registered;
        inject_panic(&pulse.name);
        work(&Heartbeat(pulse));
    })
}

/// For tests of the whole program, and not in programs that are shipped: panics in the worker that the
/// environment names.
#[cfg(debug_assertions)]
fn inject_panic(name: &str) {
    let wanted = std::env::var("VIPWATCH_TEST_PANIC");
    assert!(wanted.as_deref() != Ok(name), "a panic that a test has asked for");
}

#[cfg(not(debug_assertions))]
fn inject_panic(_name: &str) {}

/// The time within which the service manager's watchdog wants to hear of us, if it does.
pub fn watchdog_period() -> Option<Duration> {
    static PERIOD: OnceLock<Option<Duration>> = OnceLock::new();
    *PERIOD.get_or_init(|| {
        let micros = std::env::var("WATCHDOG_USEC").ok()?.parse::<u64>().ok()?;
        Some(Duration::from_micros(micros.max(4)))
    })
}

/// How long a worker may wait before it beats again.
pub fn beat_every() -> Duration {
    watchdog_period().map_or(WITHOUT_WATCHDOG, |period| period / 4)
}

/// A worker that has not beaten for `limit`, if there is one.
pub fn stalled(limit: Duration) -> Option<String> {
    let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let now = now_millis();
    let workers = WORKERS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_stalled =
        |pulse: &&Arc<Pulse>| now.saturating_sub(pulse.last.load(Ordering::Relaxed)) > limit;
    workers.iter().find(is_stalled).map(|pulse| pulse.name.clone())
}

fn now_millis() -> u64 {
    let since = clock::now().since(Moment::new(Duration::ZERO));
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

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
    }
}

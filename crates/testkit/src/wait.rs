//! Waiting for facts. The only place that sleeps.

use std::time::{Duration, Instant};

/// Long enough for anything that happens at all on a busy machine, where others delete a thousand
/// namespaces and the kernel lets nobody else touch a link meanwhile; not a speed limit.
pub const LIMIT: Duration = Duration::from_mins(1);

/// Asks `probe` until it answers; panics with `what` if it has not within [`LIMIT`].
#[track_caller]
pub fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_within(LIMIT, what, probe)
}

/// As [`wait_for`], with a limit of its own.
#[track_caller]
pub fn wait_within<T>(limit: Duration, what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(Instant::now() < end, "waited {limit:?} in vain for {what}");
        pause(Duration::from_millis(2));
    }
}

/// Panics if `probe` objects at any time during `span`: for things that must not happen.
#[track_caller]
pub fn stays(span: Duration, what: &str, mut probe: impl FnMut() -> bool) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert!(probe(), "it did not stay so: {what}");
        pause(Duration::from_millis(2));
    }
}

/// Lets time pass, where time itself is the subject: an agent that is slow, a watcher that
/// shows. Never to hope that something has happened meanwhile.
#[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}

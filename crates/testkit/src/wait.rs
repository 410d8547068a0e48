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
pub fn wait_within<T>(limit: Duration, what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_within_showing(limit, what, String::new, probe)
}

/// As [`wait_for`]; a failure also shows `diagnostics`, which is read after the wait.
#[track_caller]
pub fn wait_showing<T>(
    what: &str,
    diagnostics: impl FnOnce() -> String,
    probe: impl FnMut() -> Option<T>,
) -> T {
    wait_within_showing(LIMIT, what, diagnostics, probe)
}

/// As [`wait_showing`], with a limit of its own.
#[track_caller]
pub fn wait_within_showing<T>(
    limit: Duration,
    what: &str,
    diagnostics: impl FnOnce() -> String,
    mut probe: impl FnMut() -> Option<T>,
) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = probe() {
            return answer;
        }
        assert!(Instant::now() < end, "waited {limit:?} in vain for {what}\n{}", diagnostics());
        pause(Duration::from_millis(2));
    }
}

/// Panics if `probe` objects at any time during `span`: for things that must not happen.
#[track_caller]
pub fn stays(span: Duration, what: &str, probe: impl FnMut() -> bool) {
    stays_showing(span, what, String::new, probe);
}

/// As [`stays`]; a failure also shows `diagnostics`, which is read when `probe` objects.
#[track_caller]
pub fn stays_showing(
    span: Duration,
    what: &str,
    diagnostics: impl FnOnce() -> String,
    mut probe: impl FnMut() -> bool,
) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert!(probe(), "it did not stay so: {what}\n{}", diagnostics());
        pause(Duration::from_millis(2));
    }
}

/// Lets time pass, where time itself is the subject: an agent that is slow, a watcher that
/// shows. Never to hope that something has happened meanwhile.
#[expect(clippy::disallowed_methods, reason = "the one place that sleeps")]
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_failed_wait_shows_the_state_from_after_the_wait() {
        let probes = Cell::new(0);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            wait_within_showing(
                Duration::from_millis(20),
                "a fact that never comes",
                || format!("after {} probes", probes.get()),
                || {
                    probes.set(probes.get() + 1);
                    None::<()>
                },
            );
        }));
        let message = failed.expect_err("the wait fails");
        let message = message.downcast_ref::<String>().expect("a panic with a formatted text");
        assert!(message.contains("in vain for a fact that never comes"), "{message}");
        assert!(message.ends_with(&format!("after {} probes", probes.get())), "{message}");
        assert!(probes.get() > 1, "the probe is repeated");
    }
}

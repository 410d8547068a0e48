// SPDX-License-Identifier: Apache-2.0
//! Waits until something is true. No other module of the tests sleeps.

use std::time::{Duration, Instant};

/// Maximum time of a wait. It is not a performance limit: while another test deletes a thousand namespaces, the
/// kernel blocks all changes of links for many seconds.
pub const LIMIT: Duration = Duration::from_mins(1);

/// Calls `probe` until it returns `Some`; panics with `what` after [`LIMIT`].
#[track_caller]
pub fn wait_for<T>(what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_within(LIMIT, what, probe)
}

/// As [`wait_for`], with another limit.
#[track_caller]
pub fn wait_within<T>(limit: Duration, what: &str, probe: impl FnMut() -> Option<T>) -> T {
    wait_within_showing(limit, what, String::new, probe)
}

/// As [`wait_for`]; a failure also shows `diagnostics`, which is called after the wait.
#[track_caller]
pub fn wait_showing<T>(
    what: &str,
    diagnostics: impl FnOnce() -> String,
    probe: impl FnMut() -> Option<T>,
) -> T {
    wait_within_showing(LIMIT, what, diagnostics, probe)
}

/// As [`wait_showing`], with another limit.
#[track_caller]
pub fn wait_within_showing<T>(
    limit: Duration,
    what: &str,
    diagnostics: impl FnOnce() -> String,
    mut probe: impl FnMut() -> Option<T>,
) -> T {
    let end = Instant::now() + limit;
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(Instant::now() < end, "waited {limit:?} in vain for {what}\n{}", diagnostics());
        pause(Duration::from_millis(2));
    }
}

/// Panics with `what` if `probe` returns false at any time during `span`.
#[track_caller]
pub fn stays(span: Duration, what: &str, probe: impl FnMut() -> bool) {
    stays_showing(span, what, String::new, probe);
}

/// As [`stays`]; a failure also shows `diagnostics`, which is called after `probe` has returned false.
#[track_caller]
pub fn stays_showing(
    span: Duration,
    what: &str,
    diagnostics: impl FnOnce() -> String,
    mut probe: impl FnMut() -> bool,
) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        assert!(probe(), "did not stay true: {what}\n{}", diagnostics());
        pause(Duration::from_millis(2));
    }
}

/// Sleeps, for tests in which time itself matters, such as a slow agent. Do not use it to wait for a fact.
#[expect(clippy::disallowed_methods, reason = "the only function that sleeps")]
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

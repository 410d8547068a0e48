// SPDX-License-Identifier: Apache-2.0
//! A panic in a thread of the service ends the process with a message. A node without its audit, announcements, history or
//! socket would look healthy. systemd restarts the process, which reads its state from the kernel and its files.
//!
//! A panic in a handler of the API is the exception: [`caught`] returns it as an error, so that no request can end the
//! node.

use std::cell::Cell;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::log;

/// The exit code after a panic: the same as Rust's for a panic in the main thread.
pub const EXIT_CODE: i32 = 101;

/// Maximum time to wait until the message can be written to standard error.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

thread_local! {
    /// Whether this thread is inside [`caught`].
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// A panic that [`caught`] has stopped; the log has its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a handler panicked")]
pub struct CaughtPanic;

/// Runs `work`. If it panics, the panic is logged, and the process goes on.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, CaughtPanic> {
    let before = IS_CAUGHT.replace(true);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    IS_CAUGHT.set(before);
    result.or(Err(CaughtPanic))
}

/// Installs the panic hook that ends the process.
pub fn exit_on_panic() {
    std::panic::set_hook(Box::new(|info| {
        if IS_CAUGHT.get() {
            let message = info.payload_as_str().unwrap_or("no message");
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            tracing::error!(place, message, "an API handler panicked");
            return;
        }
        report(info);
        std::process::exit(EXIT_CODE);
    }));
}

fn report(info: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let message = info.payload_as_str().unwrap_or("no message");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(thread, place, message, "a thread panicked; the process ends");
    // Write the message to standard error if the log is stuck or not open yet.
    if !log::flush() {
        write_to_stderr(&format!(
            "vipwatch: thread {thread} panicked at {place}: {message}; the process ends\n"
        ));
    }
}

/// Writes to standard error with a time limit, because it may be a pipe that no process reads.
fn write_to_stderr(text: &str) {
    let mut stderr = io::stderr();
    let limit = Timespec::try_from(STDERR_TIMEOUT).ok();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut polled, limit.as_ref()).is_ok_and(|ready| ready > 0) {
        // A pipe that poll(2) reports as writable takes PIPE_BUF (4096) bytes without blocking; see pipe(7).
        let _ = stderr.write_all(&text.as_bytes()[..text.len().min(4096)]);
    }
}

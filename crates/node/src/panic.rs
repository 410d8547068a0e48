//! A panic in any thread ends the process, with a message: a node that lives on without its audit, its
//! announcements, its history or its socket would look healthy. The service manager starts it again, and
//! everything it needs is read from the kernel and from its files.

use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::log;

/// How the process ends then; it is what Rust uses for a panic in the main thread.
pub const EXIT_CODE: i32 = 101;

/// How long the message may take to be written.
const STDERR_TIMEOUT: Duration = Duration::from_secs(1);

/// From now on, a panic in any thread ends the process.
pub fn exit_on_panic() {
    std::panic::set_hook(Box::new(|info| {
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
    // A log that is stuck or not open yet must not keep the message back.
    if !log::flush() {
        write_to_stderr(&format!(
            "vipwatch: thread {thread} panicked at {place}: {message}; the process ends\n"
        ));
    }
}

/// Writes without waiting for ever: standard error may be a pipe that nothing reads.
fn write_to_stderr(text: &str) {
    let mut stderr = io::stderr();
    let limit = Timespec::try_from(STDERR_TIMEOUT).ok();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    if poll(&mut polled, limit.as_ref()).is_ok_and(|ready| ready > 0) {
        // As much as a pipe that can be written takes at once.
        let _ = stderr.write_all(&text.as_bytes()[..text.len().min(4096)]);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Writes to standard error without waiting for its reader.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::stdio::stderr;

/// Writes one line. The line is lost if standard error is closed, or if its reader does not read: the file and syslog
/// have it.
///
/// `O_NONBLOCK` would apply to every process that shares the open file, such as the shell. So the line is written only
/// if `poll` reports room. For a pipe that is room for `PIPE_BUF` (4,096) bytes, which is more than one line has.
pub(super) fn write_line(line: &str) {
    let stderr = stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    let ready = poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    if ready.is_ok() && polled[0].revents().contains(PollFlags::OUT) {
        let _ = rustix::io::write(stderr, line.as_bytes());
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The queue of the log and the thread that writes it, in order.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::journald;

/// Maximum size of the queue in bytes: enough for a failover of ten thousand instances. When it is full, further
/// lines are counted and dropped.
const MAX_QUEUE_BYTES: usize = 4 << 20;

/// How long the first line waits for further ones. A thread that wakes for each of a thousand lines would take
/// processor time from the event loop.
const BATCH_DELAY: Duration = Duration::from_millis(10);

/// Maximum time that the process waits at its end for the queue to be written.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The reader of the log.
#[derive(Debug)]
pub(super) enum LogDestination {
    /// A duplicate of standard error. `std::io::stderr` has a lock for which a panicking thread would wait.
    Stderr(File),
    Journald(UnixDatagram),
}

/// The queue.
#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    /// The size of all lines.
    bytes: usize,
    /// The number of lines that were dropped because the queue was full, since the thread last asked.
    dropped: u64,
    /// The number of all lines that were dropped or could not be written.
    lost: u64,
    /// Whether the thread writes lines that it has taken from the queue.
    is_writing: bool,
    /// Whether the process ends: lines are written without [`BATCH_DELAY`].
    is_ending: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Signalled when the queue is no longer empty, when the thread has written a batch, and when the log is closed.
    changed: Condvar,
}

/// The handle of the queue. Clones share the queue and the thread.
#[derive(Debug, Clone)]
pub(super) struct LogWriter(Arc<Shared>);

impl LogDestination {
    pub(super) fn stderr() -> io::Result<Self> {
        Ok(Self::Stderr(File::from(io::stderr().as_fd().try_clone_to_owned()?)))
    }

    /// Writes the lines and returns the number of those that could not be written.
    fn write(&self, lines: VecDeque<Vec<u8>>) -> u64 {
        match self {
            Self::Stderr(file) => {
                let count = lines.len() as u64;
                let is_written = write_all(file, &Vec::from(lines).concat()).is_ok();
                if is_written { 0 } else { count }
            }
            Self::Journald(socket) => {
                let is_failed = |entry: &&Vec<u8>| journald::send(socket, entry).is_err();
                lines.iter().filter(is_failed).count() as u64
            }
        }
    }
}

/// Writes all bytes. Waits also if the file was opened in non-blocking mode, which another process may have done.
fn write_all(mut file: &File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(&file, PollFlags::OUT)], None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The queue of the log at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogQueue {
    /// The size of the lines that wait to be written, in bytes.
    pub bytes: u64,
    /// The number of lines that were dropped or could not be written, since the start.
    pub lost: u64,
}

impl LogWriter {
    /// The queue at this moment.
    pub(super) fn queue(&self) -> LogQueue {
        let state = self.0.lock();
        LogQueue { bytes: state.bytes as u64, lost: state.lost }
    }

    pub(super) fn start(destination: LogDestination) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let thread_shared = Arc::clone(&shared);
        let work = move || -> () { thread_shared.run(&destination, log_dropped) };
        std::thread::Builder::new().name("log".to_owned()).stack_size(256 << 10).spawn(work)?;
        Ok(Self(shared))
    }

    /// Queues a line without waiting. If the queue is full, the line is counted and dropped.
    pub(super) fn put(&self, line: Vec<u8>) {
        let mut state = self.0.lock();
        if state.bytes + line.len() > MAX_QUEUE_BYTES {
            state.dropped += 1;
            state.lost += 1;
            return;
        }
        let was_empty = state.lines.is_empty();
        state.bytes += line.len();
        state.lines.push_back(line);
        drop(state);
        if was_empty {
            self.0.changed.notify_all();
        }
    }

    /// Waits until the queue is written, but not longer than [`SHUTDOWN_TIMEOUT`]; false if it is not.
    pub(super) fn finish(&self) -> bool {
        let mut state = self.0.lock();
        state.is_ending = true;
        self.0.changed.notify_all();
        let is_busy = |state: &mut State| state.is_writing || !state.lines.is_empty();
        let waited = self.0.changed.wait_timeout_while(state, SHUTDOWN_TIMEOUT, is_busy);
        waited.is_ok_and(|(_, waited)| !waited.timed_out())
    }
}

impl Write for LogWriter {
    /// `tracing_subscriber::fmt` calls this once for each line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.put(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock, so the state is consistent.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Writes the queue for ever. Reports the number of lost lines with `log_dropped`, which queues a line.
    fn run(&self, destination: &LogDestination, log_dropped: fn(u64)) -> ! {
        let mut unreported = 0;
        let mut is_writable = true;
        loop {
            let (lines, dropped) = self.next();
            unreported += dropped;
            // ORDER: before the write, which may take long, because the queue has room now. Not while writes
            // fail, because each report would be lost too and cause the next one.
            if unreported > 0 && is_writable {
                log_dropped(std::mem::take(&mut unreported));
            }
            let failed = destination.write(lines);
            is_writable = failed == 0;
            unreported += failed;
            if failed > 0 {
                self.lock().lost += failed;
            }
        }
    }

    /// Waits for lines, and returns all of them with the number of dropped ones. The lines of the previous call
    /// count as written.
    fn next(&self) -> (VecDeque<Vec<u8>>, u64) {
        let mut state = self.lock();
        state.is_writing = false;
        self.changed.notify_all();
        let is_idle = |state: &mut State| state.lines.is_empty();
        let waited = self.changed.wait_while(state, is_idle);
        let state = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(state, BATCH_DELAY, |state| !state.is_ending);
        let (mut state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        state.is_writing = true;
        state.bytes = 0;
        (std::mem::take(&mut state.lines), std::mem::take(&mut state.dropped))
    }
}

fn log_dropped(lines: u64) {
    tracing::warn!(lines, "log lines were dropped: the reader of the log is too slow");
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A writer without a thread.
    fn without_thread() -> LogWriter {
        LogWriter(Arc::default())
    }

    #[test]
    fn lines_beyond_the_queue_size_are_counted_and_dropped() {
        let writer = without_thread();
        let line = vec![b'x'; MAX_QUEUE_BYTES / 4];
        for _ in 0..6 {
            writer.put(line.clone());
        }
        assert_eq!(writer.queue(), LogQueue { bytes: MAX_QUEUE_BYTES as u64, lost: 2 });
        let (lines, dropped) = writer.0.next();
        assert_eq!((lines.len(), dropped), (4, 2));
        assert_eq!(writer.queue(), LogQueue { bytes: 0, lost: 2 });
        writer.put(line);
        let (lines, dropped) = writer.0.next();
        assert_eq!((lines.len(), dropped), (1, 0), "the queue has room again");
    }

    /// Starts the thread of `writer`, and returns the other end of the pipe to which it writes.
    fn start_thread(writer: &LogWriter, log_dropped: fn(u64)) -> io::PipeReader {
        let (reader, pipe) = io::pipe().unwrap();
        let destination = LogDestination::Stderr(File::from(std::os::fd::OwnedFd::from(pipe)));
        let shared = Arc::clone(&writer.0);
        std::thread::spawn(move || -> () { shared.run(&destination, log_dropped) });
        reader
    }

    #[test]
    fn dropped_lines_are_reported_once() {
        static DROPPED: AtomicU64 = AtomicU64::new(0);
        let (writer, line) = (without_thread(), vec![b'x'; MAX_QUEUE_BYTES / 4]);
        for _ in 0..6 {
            writer.put(line.clone());
        }
        let mut reader = start_thread(&writer, |lines| {
            DROPPED.fetch_add(lines, Ordering::Relaxed);
        });
        // The thread takes the first four lines and reports the other two before its write ends.
        let mut text = vec![0; MAX_QUEUE_BYTES];
        reader.read_exact(&mut text[..1]).unwrap();
        assert_eq!(DROPPED.load(Ordering::Relaxed), 2);
        for _ in 0..7 {
            writer.put(line.clone());
        }
        reader.read_exact(&mut text[1..]).unwrap();
        reader.read_exact(&mut text).unwrap();
        writer.finish();
        assert_eq!(DROPPED.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn lines_that_cannot_be_written_cause_no_further_lines() {
        static REPORTS: AtomicU64 = AtomicU64::new(0);
        let writer = without_thread();
        drop(start_thread(&writer, |_| {
            REPORTS.fetch_add(1, Ordering::Relaxed);
        }));
        for _ in 0..10 {
            writer.put(b"line".to_vec());
            writer.finish();
        }
        assert_eq!(REPORTS.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn finish_returns_although_no_thread_writes() {
        let writer = without_thread();
        writer.put(b"line".to_vec());
        writer.finish();
        assert_eq!(writer.0.next().0, [b"line".to_vec()]);
    }
}

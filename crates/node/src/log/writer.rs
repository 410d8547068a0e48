//! Writes what was said, on a thread of its own, in order.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::journald;

/// What may wait to be written, beside what is being written: a mass failover of ten thousand instances, and more.
const LONGEST: usize = 4 << 20;

/// How long a line waits for others: who is woken for each of a thousand takes the processor from those who
/// have something to do.
const GATHERING: Duration = Duration::from_millis(10);

/// How long we wait, at the end, for somebody to take what was said.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Who reads it.
#[derive(Debug)]
pub(super) enum LogDestination {
    /// Not by way of the standard library, whose lock whoever panics would wait for.
    Stderr(File),
    Journald(UnixDatagram),
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that found no room.
    lost: u64,
    /// The thread has something in its hands.
    is_writing: bool,
    /// No line waits for others any more.
    is_ending: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Something has changed for the other side.
    bell: Condvar,
}

/// Takes lines; each clone for the same thread.
#[derive(Debug, Clone)]
pub(super) struct LogWriter(Arc<Shared>);

impl LogDestination {
    pub(super) fn stderr() -> io::Result<Self> {
        Ok(Self::Stderr(File::from(io::stderr().as_fd().try_clone_to_owned()?)))
    }

    /// Writes, and tells how many lines nobody took.
    fn write(&self, lines: VecDeque<Vec<u8>>) -> u64 {
        match self {
            Self::Stderr(file) => {
                let count = lines.len() as u64;
                let is_taken = write_whole(file, &Vec::from(lines).concat()).is_ok();
                if is_taken { 0 } else { count }
            }
            Self::Journald(socket) => {
                let is_lost = |entry: &&Vec<u8>| journald::send(socket, entry).is_err();
                lines.iter().filter(is_lost).count() as u64
            }
        }
    }
}

/// Writes all of it. Whoever gave us a file that does not wait has us wait all the same.
fn write_whole(mut file: &File, mut bytes: &[u8]) -> io::Result<()> {
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

impl LogWriter {
    pub(super) fn start(outlet: LogDestination) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let work = move || -> () { theirs.work(&outlet, confess) };
        std::thread::Builder::new().name("log".to_owned()).stack_size(256 << 10).spawn(work)?;
        Ok(Self(shared))
    }

    /// Takes a line down, without waiting for it to be written; if there is no room, it is counted instead.
    pub(super) fn put(&self, line: Vec<u8>) {
        let mut state = self.0.lock();
        if state.bytes + line.len() > LONGEST {
            state.lost += 1;
            return;
        }
        let was_empty = state.lines.is_empty();
        state.bytes += line.len();
        state.lines.push_back(line);
        drop(state);
        if was_empty {
            self.0.bell.notify_all();
        }
    }

    /// Waits until everything is written, but not longer than [`SHUTDOWN_TIMEOUT`]; tells whether it is.
    pub(super) fn finish(&self) -> bool {
        let mut state = self.0.lock();
        state.is_ending = true;
        self.0.bell.notify_all();
        let is_busy = |state: &mut State| state.is_writing || !state.lines.is_empty();
        let waited = self.0.bell.wait_timeout_while(state, SHUTDOWN_TIMEOUT, is_busy);
        waited.is_ok_and(|(_, waited)| !waited.timed_out())
    }
}

impl Write for LogWriter {
    /// Each call is a line, as `tracing_subscriber::fmt` writes them.
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
        // Nobody panics while he holds it: a line is there, or it is not.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Writes, and has it said how many lines were lost, in a line as any other.
    fn work(&self, outlet: &LogDestination, confess: fn(u64)) -> ! {
        let (mut unsaid, mut is_taken) = (0, true);
        loop {
            let (lines, lost) = self.next();
            unsaid += lost;
            // ORDER: before it is written, which may take long: there is room now. And not while nobody takes
            // anything: each confession would be the reason for the next.
            if unsaid > 0 && is_taken {
                confess(std::mem::take(&mut unsaid));
            }
            let refused = outlet.write(lines);
            is_taken = refused == 0;
            unsaid += refused;
        }
    }

    /// Waits for something to write. What was handed out before is written.
    fn next(&self) -> (VecDeque<Vec<u8>>, u64) {
        let mut state = self.lock();
        state.is_writing = false;
        self.bell.notify_all();
        let is_idle = |state: &mut State| state.lines.is_empty();
        let waited = self.bell.wait_while(state, is_idle);
        let state = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        let waited = self.bell.wait_timeout_while(state, GATHERING, |state| !state.is_ending);
        let (mut state, _) = waited.unwrap_or_else(std::sync::PoisonError::into_inner);
        state.is_writing = true;
        state.bytes = 0;
        (std::mem::take(&mut state.lines), std::mem::take(&mut state.lost))
    }
}

fn confess(lost: u64) {
    tracing::warn!(lost, "lines of this log were lost: whoever reads it did not keep up");
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A scribe whose thread never comes.
    fn idle() -> LogWriter {
        LogWriter(Arc::default())
    }

    #[test]
    fn what_finds_no_room_is_counted_and_what_found_it_stays() {
        let scribe = idle();
        let line = vec![b'x'; LONGEST / 4];
        for _ in 0..6 {
            scribe.put(line.clone());
        }
        let (lines, lost) = scribe.0.next();
        assert_eq!((lines.len(), lost), (4, 2));
        scribe.put(line);
        let (lines, lost) = scribe.0.next();
        assert_eq!((lines.len(), lost), (1, 0), "there is room again");
    }

    /// The other end of what a thread writes for `scribe`.
    fn begin(scribe: &LogWriter, confess: fn(u64)) -> io::PipeReader {
        let (reader, writer) = io::pipe().unwrap();
        let outlet = LogDestination::Stderr(File::from(std::os::fd::OwnedFd::from(writer)));
        let shared = Arc::clone(&scribe.0);
        std::thread::spawn(move || -> () { shared.work(&outlet, confess) });
        reader
    }

    #[test]
    fn what_was_lost_is_said_once_however_long_nobody_reads() {
        static LOST: AtomicU64 = AtomicU64::new(0);
        let (scribe, line) = (idle(), vec![b'x'; LONGEST / 4]);
        for _ in 0..6 {
            scribe.put(line.clone());
        }
        let mut reader = begin(&scribe, |lost| {
            LOST.fetch_add(lost, Ordering::Relaxed);
        });
        // He has taken the first four, and it is said before anybody reads; then it is full again.
        let mut text = vec![0; LONGEST];
        reader.read_exact(&mut text[..1]).unwrap();
        assert_eq!(LOST.load(Ordering::Relaxed), 2);
        for _ in 0..7 {
            scribe.put(line.clone());
        }
        reader.read_exact(&mut text[1..]).unwrap();
        reader.read_exact(&mut text).unwrap();
        scribe.finish();
        assert_eq!(LOST.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn what_nobody_takes_is_counted_and_no_reason_to_say_more() {
        static SAID: AtomicU64 = AtomicU64::new(0);
        let scribe = idle();
        drop(begin(&scribe, |_| {
            SAID.fetch_add(1, Ordering::Relaxed);
        }));
        for _ in 0..10 {
            scribe.put(b"line".to_vec());
            scribe.finish();
        }
        assert_eq!(SAID.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_end_comes_although_nobody_writes() {
        let scribe = idle();
        scribe.put(b"line".to_vec());
        scribe.finish();
        assert_eq!(scribe.0.next().0, [b"line".to_vec()]);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Clients of the node's event stream: one that reads at once, and hundreds that read slowly or not at all.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vipwatch_testkit::routers::HaRouter;
use vipwatch_testkit::{NodeFixture, Routers, pause};

use super::{MAX_SCRIPTS, change, changes, holds, until};
use crate::measure::{Samples, ms};

/// Number of clients that read slowly or not at all.
const READERS: usize = 500;

/// Time between two reads of a slow client.
const SLOW_PAUSE: Duration = Duration::from_millis(100);

/// Bytes that a slow client reads at once.
const SLOW_BYTES: usize = 1024;

/// Maximum time of one failover of all routers.
const FAILOVER_TIMEOUT: Duration = Duration::from_mins(2);

/// Connects a client to the event stream of the node; `None` if that fails.
pub fn open_stream(fixture: &NodeFixture) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(fixture.socket()).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    stream.write_all(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n").ok()?;
    Some(stream)
}

/// The connection of a client that reads the event stream.
pub trait StreamSocket: Sync {
    /// Reads the bytes that have arrived.
    fn read_part(&self, buffer: &mut [u8]) -> io::Result<usize>;
    /// Has later reads fail if nothing has arrived.
    fn set_nonblocking(&self) -> io::Result<()>;
}

impl StreamSocket for UnixStream {
    fn read_part(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(buffer)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        UnixStream::set_nonblocking(self, true)
    }
}

impl StreamSocket for TcpStream {
    fn read_part(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(buffer)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        TcpStream::set_nonblocking(self, true)
    }
}

/// Measures single changes, from the netlink request to the event that the client of `stream` reads.
pub fn event_to_client(stream: impl Read, routers: &Routers, count: usize) -> Option<Samples> {
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    let mut next = |wanted: &str| -> Option<()> {
        loop {
            line.clear();
            lines.read_line(&mut line).ok().filter(|length| *length > 0)?;
            if line.starts_with(wanted) {
                return Some(());
            }
        }
    };
    // The first part of a stream is its position.
    next("id: ")?;
    let mut samples = Vec::new();
    for (router, word) in changes(routers, count) {
        let began = Instant::now();
        change(router, word);
        next("event: transition")?;
        samples.push(ms(began.elapsed()));
    }
    Samples::of(samples)
}

/// The delay of state files in a failover of all routers, without and with [`READERS`] slow and dead readers.
#[derive(Debug, Clone, Copy)]
pub struct ReaderDelay {
    /// From the first change to the last state file without readers: the median, in ms.
    pub without: f64,
    /// The same with readers.
    pub with: f64,
}

/// Measures `rounds` failovers of each kind, in turn, so that a change of the machine's load affects both.
pub fn reader_delay<S: StreamSocket>(
    open: &impl Fn() -> Option<S>,
    directory: &Path,
    routers: &Routers,
    rounds: usize,
) -> Option<ReaderDelay> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        without.push(failover(directory, routers)?);
        let readers = open_readers(open)?;
        let took = read_slowly(&readers, || failover(directory, routers))?;
        with.push(took);
    }
    let median = |samples| Some(Samples::of(samples)?.quantile(0.5));
    Some(ReaderDelay { without: median(without)?, with: median(with)? })
}

/// Opens [`READERS`] streams, one after the other: each has begun before the next one connects, because a burst of
/// connections is not measured here.
pub fn open_readers<S: StreamSocket>(open: &impl Fn() -> Option<S>) -> Option<Vec<S>> {
    let mut buffer = [0; SLOW_BYTES];
    let readers = (0..READERS).map(|_| {
        let reader = open()?;
        let length = reader.read_part(&mut buffer);
        let length = length.unwrap_or_else(|error| panic!("a reader was refused: {error}"));
        let is_stream = buffer[..length].starts_with(b"HTTP/1.1 200");
        assert!(is_stream, "a reader was refused: {}", String::from_utf8_lossy(&buffer[..length]));
        reader.set_nonblocking().ok()?;
        Some(reader)
    });
    readers.collect()
}

/// Calls `work` while every second reader reads slowly. The others read nothing but the beginning of their stream.
pub fn read_slowly<S: StreamSocket, T>(
    readers: &[S],
    work: impl FnOnce() -> Option<T>,
) -> Option<T> {
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; SLOW_BYTES];
            while !has_ended.load(Ordering::Relaxed) {
                for reader in readers.iter().step_by(2) {
                    match reader.read_part(&mut buffer) {
                        Ok(0) => panic!("the server has closed the stream of a slow reader"),
                        Err(error) if error.kind() != ErrorKind::WouldBlock => panic!("{error}"),
                        _ => {}
                    }
                }
                pause(SLOW_PAUSE);
            }
        });
        let result = work();
        has_ended.store(true, Ordering::Relaxed);
        result
    })
}

/// Makes all routers primary at once, and then backup again; returns the milliseconds from the first change to the last
/// state file with `primary`.
fn failover(directory: &Path, routers: &Routers) -> Option<f64> {
    let chosen = &routers.each[..routers.each.len().min(MAX_SCRIPTS)];
    let wait = |word: &str| {
        // One file after the other: reading all of them again and again would take the CPU from the node.
        let each = chosen.iter();
        each.map(|router| {
            until(FAILOVER_TIMEOUT, || holds(directory, &router.id, word).then_some(()))
        })
        .collect::<Option<Vec<()>>>()
    };
    let began = Instant::now();
    let took = std::thread::scope(|scope| {
        scope.spawn(|| chosen.iter().for_each(HaRouter::take));
        wait("primary").map(|_| ms(began.elapsed()))
    })?;
    chosen.iter().for_each(HaRouter::give_up);
    wait("backup")?;
    Some(took)
}

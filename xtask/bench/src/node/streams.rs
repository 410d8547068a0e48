// SPDX-License-Identifier: Apache-2.0
//! Clients of the node's event stream: one that reads at once, and hundreds that read slowly or not at all.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
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

/// Measures single changes, from the netlink request to the event that the client of `stream` reads; no samples if an event is
/// missing.
pub fn event_to_client(stream: Option<impl Read>, routers: &Routers, count: usize) -> Samples {
    let times = stream.and_then(|stream| event_times(stream, routers, count));
    Samples::of(times.unwrap_or_default())
}

fn event_times(stream: impl Read, routers: &Routers, count: usize) -> Option<Vec<f64>> {
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
    Some(samples)
}

/// The delay of state files in a failover of all routers, without and with [`READERS`] slow and dead readers.
#[derive(Debug, Clone, Copy)]
pub struct ReaderDelay {
    /// From the first change to the last state file without readers: the median, in ms.
    pub without: f64,
    /// The same with readers.
    pub with: f64,
}

impl ReaderDelay {
    pub fn ratio(self) -> f64 {
        self.with / self.without
    }
}

/// Measures `rounds` failovers of each kind, in turn, so that a change of the machine's load affects both.
pub fn reader_delay<S: AsFd + Sync>(
    open: &impl Fn() -> Option<S>,
    directory: &Path,
    routers: &Routers,
    rounds: usize,
) -> Option<ReaderDelay> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        without.push(failover(directory, routers)?);
        let readers = open_readers(open)?;
        with.push(read_slowly(&readers, || failover(directory, routers))?);
    }
    Some(ReaderDelay { without: Samples::of(without).p50()?, with: Samples::of(with).p50()? })
}

/// Opens [`READERS`] streams, one after the other: each has begun before the next one connects, because a burst of
/// connections is not measured here.
pub fn open_readers<S: AsFd>(open: &impl Fn() -> Option<S>) -> Option<Vec<S>> {
    let mut buffer = [0; SLOW_BYTES];
    let readers = (0..READERS).map(|_| {
        let reader = open()?;
        let length = rustix::io::read(&reader, &mut buffer);
        let length = length.unwrap_or_else(|error| panic!("a reader was refused: {error}"));
        let is_stream = buffer[..length].starts_with(b"HTTP/1.1 200");
        assert!(is_stream, "a reader was refused: {}", String::from_utf8_lossy(&buffer[..length]));
        rustix::io::ioctl_fionbio(&reader, true).ok()?;
        Some(reader)
    });
    readers.collect()
}

/// Calls `work` while every second reader reads slowly. The others read nothing but the beginning of their stream.
pub fn read_slowly<S: AsFd + Sync, T>(readers: &[S], work: impl FnOnce() -> T) -> T {
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; SLOW_BYTES];
            while !has_ended.load(Ordering::Relaxed) {
                for reader in readers.iter().step_by(2) {
                    match rustix::io::read(reader, &mut buffer) {
                        Ok(0) => panic!("the server has closed the stream of a slow reader"),
                        Err(error) if error != Errno::WOULDBLOCK => panic!("{error}"),
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
        chosen.iter().try_for_each(|router| {
            until(FAILOVER_TIMEOUT, || holds(directory, &router.id, word).then_some(()))
        })
    };
    let began = Instant::now();
    let took = std::thread::scope(|scope| {
        scope.spawn(|| chosen.iter().for_each(HaRouter::take));
        wait("primary").map(|()| ms(began.elapsed()))
    })?;
    chosen.iter().for_each(HaRouter::give_up);
    wait("backup")?;
    Some(took)
}

//! Clients of the node's event stream: one that reads at once, and hundreds that read slowly or not at all.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
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

/// Measures single changes, from the netlink request to the event that a client reads.
pub fn event_to_client(fixture: &NodeFixture, routers: &Routers, count: usize) -> Option<Samples> {
    let mut lines = BufReader::new(open_stream(fixture)?);
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
pub fn reader_delay(
    fixture: &NodeFixture,
    directory: &Path,
    routers: &Routers,
    rounds: usize,
) -> Option<ReaderDelay> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        without.push(failover(directory, routers)?);
        let readers: Vec<UnixStream> =
            (0..READERS).map(|_| open_stream(fixture)).collect::<Option<_>>()?;
        let took = read_slowly(&readers, || failover(directory, routers))?;
        with.push(took);
    }
    let median = |samples| Some(Samples::of(samples)?.quantile(0.5));
    Some(ReaderDelay { without: median(without)?, with: median(with)? })
}

/// Calls `work` while every second reader reads slowly. The others read nothing but the beginning of their stream.
fn read_slowly<T>(readers: &[UnixStream], work: impl FnOnce() -> Option<T>) -> Option<T> {
    let mut buffer = [0; SLOW_BYTES];
    for mut reader in readers {
        // The stream has begun: the server has accepted this client.
        let length = reader.read(&mut buffer).ok()?;
        let is_stream = buffer[..length].starts_with(b"HTTP/1.1 200");
        assert!(is_stream, "a reader was refused: {}", String::from_utf8_lossy(&buffer[..length]));
        reader.set_nonblocking(true).ok()?;
    }
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; SLOW_BYTES];
            while !has_ended.load(Ordering::Relaxed) {
                for mut reader in readers.iter().step_by(2) {
                    match reader.read(&mut buffer) {
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

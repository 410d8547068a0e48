//! Monitors that report, many at once, from one thread: so that what is measured is who is reported to.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Routers that are reported about.
const ROUTERS: u64 = 1000;

/// What came of it.
#[derive(Default)]
pub(super) struct LoadOutcome {
    /// How long each report took that was taken, in milliseconds.
    pub(super) latencies: Vec<f64>,
    /// How many were not.
    pub(super) lost: u32,
    /// From the first to the last.
    pub(super) span: Duration,
}

/// One report under way.
struct AgentRequest {
    began: Instant,
    socket: OwnedFd,
    answer: Vec<u8>,
}

/// Everybody who reports.
pub(super) struct Load {
    address: SocketAddrUnix,
    waiting: OwnedFd,
    open: HashMap<u64, AgentRequest>,
    next: u64,
}

impl Load {
    pub(super) fn new(path: &Path) -> Self {
        let waiting = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let address = SocketAddrUnix::new(path).expect("a short path");
        Self { address, waiting, open: HashMap::new(), next: 0 }
    }

    /// `count` at the same time, as curl does it: whoever is not let in at once is lost.
    pub(super) fn burst(&mut self, count: u32) -> LoadOutcome {
        let mut outcome = LoadOutcome::default();
        let began = Instant::now();
        for number in 0..count {
            if !self.report(Instant::now()) {
                outcome.lost += 1;
            }
            // Answers are seen when they come, not when everybody has asked.
            if number % 16 == 0 {
                self.collect(Duration::ZERO, &mut outcome);
            }
        }
        self.finish(&mut outcome);
        outcome.span = began.elapsed();
        outcome
    }

    /// `at_once` at a time, one after the other, for `span`, as our monitor does it: whoever is not
    /// let in waits until he is.
    pub(super) fn sustained(&mut self, at_once: usize, span: Duration) -> LoadOutcome {
        let mut outcome = LoadOutcome::default();
        let began = Instant::now();
        // Those who are not let in yet, since when.
        let mut outside: Vec<Instant> = Vec::new();
        while began.elapsed() < span {
            for since in std::mem::take(&mut outside) {
                if !self.report(since) {
                    outside.push(since);
                }
            }
            while self.open.len() + outside.len() < at_once {
                let now = Instant::now();
                if !self.report(now) {
                    outside.push(now);
                }
            }
            self.collect(Duration::from_millis(1), &mut outcome);
        }
        outcome.span = began.elapsed();
        self.finish(&mut outcome);
        outcome
    }

    /// Begins a report; false if nobody lets it in.
    fn report(&mut self, began: Instant) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.expect("a socket");
        if connect(&socket, &self.address).is_err() {
            return false;
        }
        let token = self.next;
        self.next += 1;
        let router = token % ROUTERS;
        let word = if (token / ROUTERS).is_multiple_of(2) { "primary" } else { "backup" };
        let request = format!(
            "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Neutron-Router-Id: r{router}\r\n\
             X-Neutron-State: {word}\r\nConnection: close\r\n\r\n"
        );
        // Whoever hangs up now has lost it, which is seen when the answer is read.
        let _ = send(&socket, request.as_bytes(), SendFlags::NOSIGNAL);
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.waiting, &socket, data, epoll::EventFlags::IN)
            .expect("one more to wait for");
        self.open.insert(token, AgentRequest { began, socket, answer: Vec::new() });
        true
    }

    fn finish(&mut self, outcome: &mut LoadOutcome) {
        let end = Instant::now() + PATIENCE;
        while !self.open.is_empty() && Instant::now() < end {
            self.collect(Duration::from_millis(100), outcome);
        }
        outcome.lost += u32::try_from(self.open.len()).unwrap_or(u32::MAX);
        self.open.clear();
    }

    /// Takes the answers there are.
    fn collect(&mut self, limit: Duration, outcome: &mut LoadOutcome) {
        let mut ready = [MaybeUninit::<epoll::Event>::uninit(); 256];
        let limit = Timespec::try_from(limit).ok();
        let tokens: Vec<u64> = match epoll::wait(&self.waiting, &mut ready, limit.as_ref()) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(_interrupted) => return,
        };
        for token in tokens {
            let Some(letter) = self.open.get_mut(&token) else { continue };
            let mut buffer = [0_u8; 4096];
            match recv(&letter.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((length, _)) if length > 0 => {
                    letter.answer.extend_from_slice(&buffer[..length]);
                    // A proper answer has an end; of Neutron's, nobody knows before the line is cut.
                    if !letter.answer.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => continue,
                // The end, or worse.
                _ => {}
            }
            if let Some(letter) = self.open.remove(&token) {
                if letter.answer.starts_with(b"HTTP/1.1 200") {
                    outcome.latencies.push(letter.began.elapsed().as_secs_f64() * 1e3);
                } else {
                    outcome.lost += 1;
                }
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Sends the reports of many monitors from one thread, so that the sender takes little CPU time from the
//! measured receiver.

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

use crate::measure::ms;

/// Maximum time to wait for the answers after the last report.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Number of routers that the reports name.
const ROUTERS: u64 = 1000;

/// The result of a burst or of a span of continuous reports.
#[derive(Default)]
pub(super) struct LoadOutcome {
    /// The time of each accepted report from connect to answer, in milliseconds.
    pub(super) latencies: Vec<f64>,
    /// Number of reports that were not accepted.
    pub(super) lost: u32,
    /// From the first report to the last.
    pub(super) span: Duration,
}

/// A report that was sent and not yet answered.
struct PendingReport {
    began: Instant,
    socket: OwnedFd,
    answer: Vec<u8>,
}

/// The sender, with all pending reports.
pub(super) struct Load {
    address: SocketAddrUnix,
    epoll: OwnedFd,
    pending: HashMap<u64, PendingReport>,
    /// The token of the next report.
    next: u64,
}

impl Load {
    pub(super) fn new(path: &Path) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
        let address = SocketAddrUnix::new(path).expect("a short path");
        Self { address, epoll, pending: HashMap::new(), next: 0 }
    }

    /// Sends `count` reports at once. As with curl, a report is lost if the receiver's backlog is full.
    pub(super) fn burst(&mut self, count: u32) -> LoadOutcome {
        let mut outcome = LoadOutcome::default();
        let began = Instant::now();
        for number in 0..count {
            if !self.report(Instant::now()) {
                outcome.lost += 1;
            }
            // Answers are read while reports are sent, so that the latency of a report does not include the time to send all others.
            if number % 16 == 0 {
                self.collect(Duration::ZERO, &mut outcome);
            }
        }
        self.finish(&mut outcome);
        outcome.span = began.elapsed();
        outcome
    }

    /// Keeps `at_once` reports pending for `span`. As with our monitor, a report is sent again if the receiver's
    /// backlog is full.
    pub(super) fn sustained(&mut self, at_once: usize, span: Duration) -> LoadOutcome {
        let mut outcome = LoadOutcome::default();
        let began = Instant::now();
        // The first attempt of each report that found the backlog full.
        let mut refused: Vec<Instant> = Vec::new();
        while began.elapsed() < span {
            for since in std::mem::take(&mut refused) {
                if !self.report(since) {
                    refused.push(since);
                }
            }
            while self.pending.len() + refused.len() < at_once {
                let now = Instant::now();
                if !self.report(now) {
                    refused.push(now);
                }
            }
            self.collect(Duration::from_millis(1), &mut outcome);
        }
        outcome.span = began.elapsed();
        self.finish(&mut outcome);
        outcome
    }

    /// Sends a report; false if the receiver's backlog is full.
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
        // If the receiver closes the connection now, the missing answer counts the report as lost.
        let _ = send(&socket, request.as_bytes(), SendFlags::NOSIGNAL);
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN)
            .expect("one more to wait for");
        self.pending.insert(token, PendingReport { began, socket, answer: Vec::new() });
        true
    }

    /// Waits for the answers of all pending reports; reports without one are lost.
    fn finish(&mut self, outcome: &mut LoadOutcome) {
        let end = Instant::now() + ANSWER_TIMEOUT;
        while !self.pending.is_empty() && Instant::now() < end {
            self.collect(Duration::from_millis(100), outcome);
        }
        outcome.lost += u32::try_from(self.pending.len()).unwrap_or(u32::MAX);
        self.pending.clear();
    }

    /// Reads the available answers; waits up to `limit` for the first one.
    fn collect(&mut self, limit: Duration, outcome: &mut LoadOutcome) {
        let mut ready = [MaybeUninit::<epoll::Event>::uninit(); 256];
        let limit = Timespec::try_from(limit).ok();
        let tokens: Vec<u64> = match epoll::wait(&self.epoll, &mut ready, limit.as_ref()) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(_interrupted) => return,
        };
        for token in tokens {
            let Some(report) = self.pending.get_mut(&token) else { continue };
            let mut buffer = [0_u8; 4096];
            match recv(&report.socket, &mut buffer, RecvFlags::DONTWAIT) {
                Ok((length, _)) if length > 0 => {
                    report.answer.extend_from_slice(&buffer[..length]);
                    // The answer of vipwatch ends with an empty line. Neutron's answer ends when the connection
                    // is closed.
                    if !report.answer.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => continue,
                // The connection was closed or has failed.
                _ => {}
            }
            if let Some(report) = self.pending.remove(&token) {
                if report.answer.starts_with(b"HTTP/1.1 200") {
                    outcome.latencies.push(ms(report.began.elapsed()));
                } else {
                    outcome.lost += 1;
                }
            }
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Follows the links and addresses of one namespace over one netlink socket.
//!
//! ```text
//!          request_snapshot()              both dumps done, no relevant change meanwhile
//!   live ─────────────────────▶ pending ─────────────────────────────────▶ live, Snapshot
//!     ▲  │                        │  ▲
//!     │  └── overrun, truncation, ┤  │ a relevant change during the dumps: request again
//!     │      malformed message    └──┘
//!   events
//! ```
//!
//! ORDER: the socket is subscribed before the first dump is requested. A change between the two is then received
//! twice, which costs another dump. In the other order it would be missed.
//!
//! While a snapshot is pending, queued events may be older than the dump: an address that was added and removed before
//! the dump would be reported as primary, then backup. So relevant events are not passed on; they only cause another
//! dump. An audit is different: the caller has seen all events so far, so events are passed on, and the dump must agree
//! with them.

mod reader;

use std::io;

use ipnet::IpNet;
use vipwatch_core::{Observation, SnapshotReason};

use self::reader::{DatagramReader, NextStep, PendingSnapshot, SnapshotStart};
use crate::netlink::decode::Malformed;
use crate::netlink::socket::{Received, Scratch, Socket};

/// Maximum number of datagrams in one call of [`Monitor::read`], so that the caller can act during a storm of events.
const MAX_DATAGRAMS_PER_READ: usize = 256;

/// Why links and addresses could not be read.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// No netlink socket.
    #[error("cannot open a netlink socket")]
    Open(#[source] io::Error),
    /// The request for a dump could not be sent.
    #[error("cannot request the list of addresses from the kernel")]
    Request(#[source] io::Error),
    /// The kernel refused the dump.
    #[error("the kernel refused to list the addresses")]
    Dump(#[source] io::Error),
    /// A message of the dump could not be decoded.
    #[error("cannot decode the kernel's list of addresses")]
    Malformed(#[source] Malformed),
    /// The end of the dump did not come, or the tables kept changing during every attempt.
    #[error("the kernel's list of addresses is incomplete")]
    Incomplete,
    /// The socket cannot be read any more.
    #[error("cannot read from the netlink socket")]
    Receive(#[source] io::Error),
}

/// Why events were lost. The monitor has already requested a new snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The receive queue of the socket was full.
    Overrun,
    /// A message was larger than the receive buffer.
    Truncated,
    /// A message could not be decoded.
    Malformed(Malformed),
}

/// One result of [`Monitor::read`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MonitorEvent {
    /// A change, or a complete snapshot.
    Observed(Observation),
    /// Events were lost; a snapshot will follow.
    Lost(Loss),
}

/// Whether a read emptied the receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueState {
    /// The queue is empty.
    Empty,
    /// The limit of one read was reached; read again before waiting.
    MoreToCome,
}

/// Which addresses a monitor reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Only the watched address; others are not stored.
    Vip,
    /// All addresses. A change of the watched address during a dump still causes another dump, because its state must
    /// be exact. Changes of other addresses do not: in a busy namespace the snapshot would never be finished.
    All,
}

/// Follows one namespace.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    vip: IpNet,
    scope: Scope,
    /// The snapshot that is being read; `None` if none was requested.
    pending: Option<PendingSnapshot>,
    /// The sequence number of the last request.
    sequence: u32,
}

impl Monitor {
    /// Subscribes to changes in the namespace of the calling thread. Call [`Self::request_snapshot`] next.
    pub fn open(vip: IpNet, scope: Scope) -> Result<Self, WatchError> {
        let socket = Socket::open_subscribed().map_err(WatchError::Open)?;
        Ok(Self { socket, vip, scope, pending: None, sequence: 0 })
    }

    /// Whether a snapshot was requested and is not complete yet.
    pub fn is_snapshot_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Requests a snapshot; [`Self::read`] will return it.
    pub fn request_snapshot(&mut self, reason: SnapshotReason) -> Result<(), WatchError> {
        self.start_snapshot(SnapshotStart { reason, is_disturbed: false })
    }

    fn start_snapshot(&mut self, start: SnapshotStart) -> Result<(), WatchError> {
        self.sequence = self.sequence.wrapping_add(1);
        self.pending = Some(PendingSnapshot::new(self.sequence, start));
        self.socket.request_dump(libc::RTM_GETLINK, self.sequence).map_err(WatchError::Request)
    }

    /// Drops the pending snapshot. Messages of its dumps that still arrive are ignored.
    pub fn cancel_snapshot(&mut self) {
        self.pending = None;
    }

    /// Reads the queued events, without waiting. After an error, request a snapshot again later.
    pub fn read(&mut self, events: &mut Vec<MonitorEvent>) -> Result<QueueState, WatchError> {
        let mut scratch: Scratch = [0; _];
        for _ in 0..MAX_DATAGRAMS_PER_READ {
            let (vip, scope) = (self.vip, self.scope);
            let mut reader = DatagramReader { pending: &mut self.pending, vip, scope, events };
            let port = self.socket.port();
            let next = match self.socket.receive(&mut scratch).map_err(WatchError::Receive)? {
                Received::QueueEmpty => match reader.restart_after_lost_end() {
                    Some(start) => NextStep::StartSnapshot(start),
                    None => return Ok(QueueState::Empty),
                },
                Received::Overrun => reader.lose(Loss::Overrun),
                Received::Truncated => reader.lose(Loss::Truncated),
                Received::Datagram(bytes) => reader.read_datagram(bytes, port),
            };
            match next {
                NextStep::Continue => {}
                NextStep::RequestAddresses(sequence) => self
                    .socket
                    .request_dump(libc::RTM_GETADDR, sequence)
                    .map_err(WatchError::Request)?,
                NextStep::StartSnapshot(start) => self.start_snapshot(start)?,
                NextStep::Malformed(malformed) => {
                    self.pending = None;
                    return Err(WatchError::Malformed(malformed));
                }
                NextStep::Refused(errno) => {
                    self.pending = None;
                    let source = io::Error::from_raw_os_error(errno);
                    return Err(WatchError::Dump(source));
                }
            }
        }
        Ok(QueueState::MoreToCome)
    }

    /// The netlink port of the socket, for a test that forges messages.
    #[doc(hidden)]
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Makes the receive queue smaller, so that a test can overrun it.
    #[doc(hidden)]
    pub fn shrink_queue(&self, bytes: usize) -> io::Result<()> {
        self.socket.shrink_queue(bytes)
    }
}

as_fd!(Monitor.socket);

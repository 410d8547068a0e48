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

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{Observation, SnapshotReason};

use crate::netlink::decode::{Header, Malformed, Message, envelopes, is_end_or_error, message};
use crate::netlink::dump::{DumpProgress, add_message};
use crate::netlink::socket::{Received, Scratch, Socket};

/// Maximum number of datagrams in one call of [`Monitor::read`], so that the caller can act during a storm of events.
const MAX_DATAGRAMS_PER_READ: usize = 256;

/// Maximum number of facts that are kept while a snapshot is pending, to be reported again after it. With more, the
/// snapshot is taken again.
const MAX_REPEATED_FACTS: usize = 1024;

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

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// How a snapshot starts.
#[derive(Debug, Clone, Copy)]
struct SnapshotStart {
    reason: SnapshotReason,
    /// The result is known to be out of date: after it, another snapshot is taken.
    is_disturbed: bool,
}

/// A snapshot whose dumps are being read.
#[derive(Debug)]
struct PendingSnapshot {
    sequence: u32,
    /// The dump that is being read: `RTM_GETLINK` first, then `RTM_GETADDR`.
    part: u16,
    reason: SnapshotReason,
    snapshot: Snapshot,
    /// The snapshot is already out of date; when it is complete, another one is taken.
    is_disturbed: bool,
    /// The kernel dropped messages meanwhile, and may continue to drop them until the queue is empty. It reports that
    /// only once, so the next snapshot starts as disturbed.
    has_overrun: bool,
    /// A datagram of the answer was larger than the buffer. It may have contained the end of the answer.
    has_lost_datagram: bool,
    /// Facts that were reported meanwhile and may be newer than the snapshot. They are reported again after it.
    repeated: Vec<Observation>,
}

impl PendingSnapshot {
    fn new(sequence: u32, start: SnapshotStart) -> Self {
        Self {
            sequence,
            part: libc::RTM_GETLINK,
            reason: start.reason,
            snapshot: Snapshot::default(),
            is_disturbed: start.is_disturbed,
            has_overrun: false,
            has_lost_datagram: false,
            repeated: Vec::new(),
        }
    }

    /// How the snapshot that replaces this one starts.
    fn restart(&self) -> SnapshotStart {
        SnapshotStart { reason: self.reason, is_disturbed: self.has_overrun }
    }

    fn repeat_later(&mut self, fact: &Observation) {
        if self.repeated.len() < MAX_REPEATED_FACTS {
            self.repeated.push(fact.clone());
        } else {
            self.is_disturbed = true;
        }
    }
}

/// What the monitor does after a datagram.
enum NextStep {
    /// Reads the next datagram.
    Continue,
    /// Requests the dump of addresses, with the sequence number of the dump of links.
    RequestAddresses(u32),
    StartSnapshot(SnapshotStart),
    /// Drops the snapshot: the kernel refused the dump with this errno.
    Refused(i32),
    /// Drops the snapshot: a message could not be decoded.
    Malformed(Malformed),
}

/// Whether a message is an answer to a request of the socket with this `port`. The port alone does not tell: a
/// notification carries the port of the process that caused the change, and a process in another namespace can have the
/// same port number.
fn is_answer(header: Header, port: u32) -> bool {
    let is_multipart = i32::from(header.flags) & libc::NLM_F_MULTI != 0;
    (is_multipart || is_end_or_error(header.kind)) && header.port == port
}

/// Reads one datagram; borrows the parts of a [`Monitor`] that it changes.
struct DatagramReader<'a> {
    pending: &'a mut Option<PendingSnapshot>,
    vip: IpNet,
    scope: Scope,
    events: &'a mut Vec<MonitorEvent>,
}

impl DatagramReader<'_> {
    fn lose(&mut self, loss: Loss) -> NextStep {
        // LIMIT: a socket can run one dump at a time, so the current one is read to its end before the next is
        // requested.
        if let Some(pending) = self.pending {
            pending.is_disturbed = true;
            pending.has_overrun |= loss == Loss::Overrun;
            pending.has_lost_datagram |= loss == Loss::Truncated;
            if pending.reason == SnapshotReason::Audit {
                pending.reason = SnapshotReason::Resync;
            }
            return NextStep::Continue;
        }
        self.events.push(MonitorEvent::Lost(loss));
        let is_disturbed = loss == Loss::Overrun;
        NextStep::StartSnapshot(SnapshotStart { reason: SnapshotReason::Resync, is_disturbed })
    }

    /// Starts a snapshot again if a datagram of its answer was lost; call it when the queue is empty. The kernel queues
    /// the next datagram before it hands one over, so an empty queue means that the lost datagram was the last one.
    fn restart_after_lost_end(&self) -> Option<SnapshotStart> {
        self.pending
            .as_ref()
            .filter(|pending| pending.has_lost_datagram)
            .map(PendingSnapshot::restart)
    }

    fn read_datagram(&mut self, datagram: &[u8], port: u32) -> NextStep {
        for envelope in envelopes(datagram) {
            let read = envelope.and_then(|(header, body)| self.read_message(header, body, port));
            let next = match read {
                Ok(next) => next,
                // While a snapshot is pending, an immediate restart could repeat for ever: the caller restarts later.
                Err(malformed) if self.pending.is_some() => NextStep::Malformed(malformed),
                Err(malformed) => self.lose(Loss::Malformed(malformed)),
            };
            if !matches!(next, NextStep::Continue) {
                return next;
            }
        }
        NextStep::Continue
    }

    fn read_message(
        &mut self,
        header: Header,
        body: &[u8],
        port: u32,
    ) -> Result<NextStep, Malformed> {
        if is_answer(header, port) {
            return self.read_answer(header, body);
        }
        if let Message::Fact(fact) = message(header.kind, body)? {
            self.read_notification(fact);
        }
        Ok(NextStep::Continue)
    }

    fn read_notification(&mut self, fact: Observation) {
        if !self.is_relevant(&fact) {
            if self.scope == Scope::All {
                if let Some(pending) = self.pending {
                    pending.repeat_later(&fact);
                }
                self.events.push(MonitorEvent::Observed(fact));
            }
            return;
        }
        if let Some(pending) = self.pending {
            pending.is_disturbed = true;
            if pending.reason != SnapshotReason::Audit {
                return;
            }
        }
        self.events.push(MonitorEvent::Observed(fact));
    }

    /// Whether a fact can change the role. Every change of a link can: the monitor does not know the name of the
    /// watched link.
    fn is_relevant(&self, fact: &Observation) -> bool {
        match fact {
            Observation::AddressSeen { cidr, .. } | Observation::AddressRemoved { cidr, .. } => {
                *cidr == self.vip
            }
            Observation::LinkSeen { .. }
            | Observation::LinkRemoved { .. }
            | Observation::Snapshot { .. }
            | Observation::FirstSnapshotOverdue
            | Observation::NamespaceRemoved => true,
        }
    }

    fn read_answer(&mut self, header: Header, body: &[u8]) -> Result<NextStep, Malformed> {
        let Some(pending) = self.pending else {
            return Ok(NextStep::Continue);
        };
        if header.sequence != pending.sequence {
            return Ok(NextStep::Continue);
        }
        // The tables changed between two datagrams of the dump.
        if i32::from(header.flags) & libc::NLM_F_DUMP_INTR != 0 {
            pending.is_disturbed = true;
        }
        let (vip, scope) = (self.vip, self.scope);
        let progress = add_message(header.kind, body, &mut pending.snapshot, |address| {
            scope == Scope::All || address.cidr() == Some(vip)
        })?;
        Ok(match progress {
            DumpProgress::More => NextStep::Continue,
            DumpProgress::Refused(errno) => NextStep::Refused(errno),
            DumpProgress::Done if pending.part == libc::RTM_GETLINK => {
                pending.part = libc::RTM_GETADDR;
                NextStep::RequestAddresses(pending.sequence)
            }
            DumpProgress::Done if pending.is_disturbed => {
                NextStep::StartSnapshot(pending.restart())
            }
            DumpProgress::Done => {
                self.report_snapshot();
                NextStep::Continue
            }
        })
    }

    fn report_snapshot(&mut self) {
        if let Some(done) = self.pending.take() {
            let PendingSnapshot { reason, mut snapshot, repeated, .. } = done;
            snapshot.sort_addresses();
            self.events.push(MonitorEvent::Observed(Observation::Snapshot { reason, snapshot }));
            self.events.extend(repeated.into_iter().map(MonitorEvent::Observed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Some kernels put `NLMSG_DONE` into the last datagram with data. Where a page is larger than the buffer, that
    /// datagram can be too.
    #[test]
    fn a_truncated_datagram_may_have_contained_the_end_of_the_answer() {
        let start = SnapshotStart { reason: SnapshotReason::First, is_disturbed: false };
        let mut pending = Some(PendingSnapshot::new(1, start));
        let mut events = Vec::new();
        let vip = "169.254.0.1/24".parse().unwrap();
        let mut reader =
            DatagramReader { pending: &mut pending, vip, scope: Scope::Vip, events: &mut events };
        assert!(reader.restart_after_lost_end().is_none(), "the next datagram may come later");
        assert!(matches!(reader.lose(Loss::Truncated), NextStep::Continue));
        let restart = reader.restart_after_lost_end().expect("an empty queue is the end");
        assert_eq!((restart.reason, restart.is_disturbed), (SnapshotReason::First, false));
    }
}

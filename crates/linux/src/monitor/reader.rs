// SPDX-License-Identifier: Apache-2.0
//! Reads the datagrams of a [`Monitor`](super::Monitor): notifications become events, answers fill the pending
//! snapshot.

use ipnet::IpNet;
use vipwatch_core::snapshot::Snapshot;
use vipwatch_core::{Observation, SnapshotReason};

use super::{Loss, MonitorEvent, Scope};
use crate::netlink::decode::{Header, Malformed, Message, envelopes, is_end_or_error, message};
use crate::netlink::dump::{DumpProgress, add_message};

/// Maximum number of facts that are kept while a snapshot is pending, to be reported again after it. With more, the
/// snapshot is taken again.
const MAX_REPEATED_FACTS: usize = 1024;

/// How a snapshot starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct SnapshotStart {
    pub(super) reason: SnapshotReason,
    /// The result is known to be out of date: after it, another snapshot is taken.
    pub(super) is_disturbed: bool,
}

/// A snapshot while its dumps are being read.
#[derive(Debug)]
pub(super) struct PendingSnapshot {
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
    pub(super) fn new(sequence: u32, start: SnapshotStart) -> Self {
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
pub(super) enum NextStep {
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

/// Whether a message is an answer to a request of the socket with this `port`. The port alone is not enough: a
/// notification carries the port of the process that caused the change, and a process in another namespace can have the
/// same port number.
fn is_answer(header: Header, port: u32) -> bool {
    let is_multipart = i32::from(header.flags) & libc::NLM_F_MULTI != 0;
    (is_multipart || is_end_or_error(header.kind)) && header.port == port
}

/// Reads one datagram; borrows the parts of a [`super::Monitor`] that it changes.
pub(super) struct DatagramReader<'a> {
    pub(super) pending: &'a mut Option<PendingSnapshot>,
    pub(super) vip: IpNet,
    pub(super) scope: Scope,
    pub(super) events: &'a mut Vec<MonitorEvent>,
}

impl DatagramReader<'_> {
    pub(super) fn lose(&mut self, loss: Loss) -> NextStep {
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
    pub(super) fn restart_after_lost_end(&self) -> Option<SnapshotStart> {
        self.pending
            .as_ref()
            .filter(|pending| pending.has_lost_datagram)
            .map(PendingSnapshot::restart)
    }

    pub(super) fn read_datagram(&mut self, datagram: &[u8], port: u32) -> NextStep {
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

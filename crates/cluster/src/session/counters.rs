// SPDX-License-Identifier: Apache-2.0
//! Counters of a session, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::etcd::EtcdErrorKind;

/// Counters that the session changes while other threads read them.
#[derive(Debug, Default)]
pub(super) struct SessionCounters {
    pub(super) connections: AtomicU64,
    pub(super) lease_losses: AtomicU64,
    pub(super) name_conflicts: AtomicU64,
    pub(super) transactions: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) heartbeats: AtomicU64,
    pub(super) confirmations: AtomicU64,
    pub(super) watch_events: AtomicU64,
    pub(super) range_reads: AtomicU64,
    pub(super) resyncs: AtomicU64,
    pub(super) differences: AtomicU64,
    pub(super) elections: AtomicU64,
    errors: [AtomicU64; EtcdErrorKind::ALL.len()],
}

/// The values of the counters since the start of the session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterCounters {
    /// Connections to etcd that were opened.
    pub connections: u64,
    /// Leases of the process that ended while the process was running.
    pub lease_losses: u64,
    /// How often another process had the name of this node.
    pub name_conflicts: u64,
    /// Transactions that wrote.
    pub transactions: u64,
    /// Keys that were written or deleted.
    pub writes: u64,
    /// Bytes of the values that were written.
    pub written_bytes: u64,
    /// Heartbeats.
    pub heartbeats: u64,
    /// Confirmations of the main loop.
    pub confirmations: u64,
    /// Changes that the watches have delivered.
    pub watch_events: u64,
    /// Ranges that were read as a whole.
    pub range_reads: u64,
    /// How often all ranges were read again, because etcd had compacted the position.
    pub resyncs: u64,
    /// Keys that the view had with another revision than etcd, although no event was on its way.
    pub differences: u64,
    /// How often this node became the reporter.
    pub elections: u64,
    /// Errors, in the order of [`EtcdErrorKind::ALL`].
    pub errors: [u64; EtcdErrorKind::ALL.len()],
}

/// Adds to a counter.
pub(super) fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
}

impl SessionCounters {
    pub(super) fn add_error(&self, kind: EtcdErrorKind) {
        let position = EtcdErrorKind::ALL.iter().position(|known| *known == kind);
        if let Some(counter) = position.and_then(|position| self.errors.get(position)) {
            add(counter, 1);
        }
    }

    pub(super) fn values(&self) -> ClusterCounters {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClusterCounters {
            connections: value(&self.connections),
            lease_losses: value(&self.lease_losses),
            name_conflicts: value(&self.name_conflicts),
            transactions: value(&self.transactions),
            writes: value(&self.writes),
            written_bytes: value(&self.written_bytes),
            heartbeats: value(&self.heartbeats),
            confirmations: value(&self.confirmations),
            watch_events: value(&self.watch_events),
            range_reads: value(&self.range_reads),
            resyncs: value(&self.resyncs),
            differences: value(&self.differences),
            elections: value(&self.elections),
            errors: std::array::from_fn(|index| value(&self.errors[index])),
        }
    }
}

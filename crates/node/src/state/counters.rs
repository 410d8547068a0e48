// SPDX-License-Identifier: Apache-2.0
//! The counters behind the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use vipwatch_core::RoleKind;

/// The counters of a node. [`Counters::metrics`] has those of `/v1/status`; `/metrics` has all of them.
#[derive(Debug, Default)]
pub struct Counters {
    /// Role changes, including those at the start.
    pub transitions: AtomicU64,
    /// How often the kernel dropped events because the socket's buffer was full.
    pub overruns: AtomicU64,
    /// How often all namespaces were read after the kernel dropped events.
    pub resyncs: AtomicU64,
    /// Snapshots of namespaces that the instance table took; those of the audit do not count.
    pub snapshots: AtomicU64,
    /// Role changes that only the audit found.
    pub audit_corrections: AtomicU64,
    /// Namespaces that the periodic audit has read.
    pub audits: AtomicU64,
    /// Namespaces that are followed now.
    pub namespaces: AtomicU64,
    /// Netlink sockets for events: one, or one for each namespace where one for all could not be opened.
    pub netlink_sockets: AtomicU64,
    /// Transitions that could not be written to the history.
    pub history_dropped: AtomicU64,
    /// 1 if the history can be written, else 0.
    pub history_up: AtomicU64,
    /// Events that slow clients of the event stream have missed.
    pub feed_missed: AtomicU64,
    /// Open connections on the unix socket, without event streams.
    pub api_connections: AtomicU64,
    /// Open event streams on the unix socket.
    pub api_streams: AtomicU64,
    /// Connections that the unix socket has refused: foreign users, and connections over the limit.
    pub api_refused: AtomicU64,
    /// Open connections on TCP, without event streams.
    pub web_connections: AtomicU64,
    /// Open event streams on TCP.
    pub web_streams: AtomicU64,
    /// Connections that were refused on TCP, because they were over the limit.
    pub web_refused: AtomicU64,
    /// Requests over TCP without a valid token.
    pub web_unauthorized: AtomicU64,
    /// TLS handshakes that failed or took too long.
    pub web_handshakes_failed: AtomicU64,
    /// Handlers of the API that panicked.
    pub api_panics: AtomicU64,
    /// Role changes by their new role, in the order of [`RoleKind::ALL`].
    pub transitions_to: [AtomicU64; RoleKind::ALL.len()],
    /// Findings that clients know as open.
    pub open_findings: AtomicU64,
    /// How often an instance began to flap.
    pub flaps: AtomicU64,
    /// Rounds of announcements that were sent, of all addresses.
    pub announce_sent: AtomicU64,
    /// Addresses that were not announced because the announcement would be wrong; once for each reason.
    pub announce_refused: AtomicU64,
    /// Announcements that the kernel did not send; once for each error of an announcement.
    pub announce_failed: AtomicU64,
    /// Claims of other stations to an announced address.
    pub announce_duplicates: AtomicU64,
}

impl Counters {
    /// The name and the value of every metric, except for those of the targets.
    pub fn metrics(&self) -> [(&'static str, u64); 19] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("vipwatch_transitions_total", of(&self.transitions)),
            ("vipwatch_netlink_overruns_total", of(&self.overruns)),
            ("vipwatch_netlink_snapshots_total", of(&self.snapshots)),
            ("vipwatch_audit_corrections_total", of(&self.audit_corrections)),
            ("vipwatch_audits_total", of(&self.audits)),
            ("vipwatch_namespaces", of(&self.namespaces)),
            ("vipwatch_netlink_sockets", of(&self.netlink_sockets)),
            ("vipwatch_history_dropped_total", of(&self.history_dropped)),
            ("vipwatch_history_up", of(&self.history_up)),
            ("vipwatch_feed_missed_total", of(&self.feed_missed)),
            ("vipwatch_api_connections", of(&self.api_connections)),
            ("vipwatch_api_streams", of(&self.api_streams)),
            ("vipwatch_api_refused_total", of(&self.api_refused)),
            ("vipwatch_web_connections", of(&self.web_connections)),
            ("vipwatch_web_streams", of(&self.web_streams)),
            ("vipwatch_web_refused_total", of(&self.web_refused)),
            ("vipwatch_web_unauthorized_total", of(&self.web_unauthorized)),
            ("vipwatch_web_handshakes_failed_total", of(&self.web_handshakes_failed)),
            ("vipwatch_api_panics_total", of(&self.api_panics)),
        ]
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Access rights, limits and debounce interval of a receiver.

use std::time::Duration;

/// Settings that can change while the receiver runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiverPolicy {
    /// User ids that may report. No user is allowed implicitly, not even root.
    pub allowed_users: Vec<u32>,
    /// Group ids that may report: the effective group of the peer, or one of its supplementary groups.
    pub allowed_groups: Vec<u32>,
    /// How long a reported primary is held back; zero acts on it at once.
    pub debounce_interval: Duration,
    /// Maximum time from the start of waiting for a request to its last byte.
    pub request_timeout: Duration,
    /// Maximum number of open connections. When it is reached, the oldest idle connection is closed.
    pub max_connections: usize,
    /// Maximum number of settled reports that the journal keeps because a target for every report has not received
    /// them. The oldest ones beyond this number are deleted, and the target is informed of their number.
    pub keep_undelivered: u64,
}

impl Default for ReceiverPolicy {
    /// No user is allowed. The debounce interval is the default advert interval of Neutron's routers.
    fn default() -> Self {
        Self {
            allowed_users: Vec::new(),
            allowed_groups: Vec::new(),
            debounce_interval: Duration::from_secs(2),
            request_timeout: Duration::from_secs(5),
            max_connections: 4096,
            keep_undelivered: 100_000,
        }
    }
}

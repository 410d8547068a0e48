// SPDX-License-Identifier: Apache-2.0
//! The receiver's counters and reported states, for status queries, metrics and the audit.

use std::collections::BTreeMap;

use vipwatch_core::InstanceId;

use crate::report_states::RouterReport;

/// Counters since the receiver started, and the current state of every instance that has reported.
#[derive(Debug, Clone, Default)]
pub struct ReceiverView {
    /// The reported state of each instance.
    pub instances: BTreeMap<InstanceId, RouterReport>,
    /// Reports that were stored and answered with 200.
    pub accepted: u64,
    /// Stored reports that were not delivered: the state was unchanged, held back, or reverted within the interval.
    pub coalesced: u64,
    /// Requests that were rejected, and connections that were closed without a report, by reason.
    pub rejected: BTreeMap<&'static str, u64>,
    /// Reports that were answered with 503.
    pub unavailable: u64,
    /// Open connections.
    pub connections: usize,
    /// Reports that the journal has not stored yet.
    pub pending: usize,
    /// Why the receiver does not work: a message for each of the keys `journal`, `journal-format`,
    /// `deliveries`, `deliveries-format` and `socket`.
    pub problems: BTreeMap<&'static str, String>,
}

impl ReceiverView {
    /// Sets the message of a problem; `None` removes it.
    pub(crate) fn set_problem(&mut self, key: &'static str, message: Option<String>) {
        match message {
            Some(message) => self.problems.insert(key, message),
            None => self.problems.remove(key),
        };
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The receiver's output: settled reports and the interface that takes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_core::InstanceId;
use vipwatch_core::debounce::ReportedState;

use crate::journal::{JournalReader, ReportSeqs};

/// A reported state that has passed the debounce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledReport {
    /// The instance that the report is about.
    pub instance: InstanceId,
    /// The settled state.
    pub state: ReportedState,
    /// The settled state before; `None` for the first one, and for a report restored after a restart.
    pub from: Option<ReportedState>,
    /// Sequence number of the report in the journal.
    pub seq: i64,
    /// When the state was settled.
    pub at: SystemTime,
}

/// Takes settled reports. The receiver thread calls it, so only [`Self::close`] may block.
pub trait ReportSink: Send {
    /// Delivers a state that was settled just now.
    fn deliver(&mut self, settled: &SettledReport);

    /// Restores a state that the previous process has settled, and delivers it to the targets that do not have it.
    fn restore(&mut self, settled: &SettledReport);

    /// The highest sequence number that a target has concluded, for each instance. The sink stores them in another file
    /// than the journal, which may be older: deleted, or restored from a backup.
    fn concluded_seqs(&self) -> BTreeMap<InstanceId, i64> {
        BTreeMap::new()
    }

    /// Takes a handle for reading settled reports that a target has not received. The receiver calls it before any other
    /// method that delivers.
    fn set_journal(&mut self, _journal: JournalReader) {}

    /// Whether a target must receive every report: then the journal keeps the settled ones.
    fn needs_every_report(&self) -> bool {
        false
    }

    /// The sequence number up to which all targets for every report have received the reports of each instance.
    fn received_seqs(&self) -> BTreeMap<InstanceId, i64> {
        BTreeMap::new()
    }

    /// Stores that the targets which have not received these reports have missed them, and then calls `on_stored`,
    /// on any thread: the journal deletes them. If they cannot be stored, it is not called, and the journal asks again.
    fn count_missed(&mut self, _seqs: ReportSeqs, on_stored: Arc<dyn Fn() + Send + Sync>) {
        on_stored();
    }

    /// Discards the pending deliveries of a deleted instance.
    fn forget(&mut self, _instance: &InstanceId) {}

    /// Ends deliveries. May block for some seconds until running deliveries have ended.
    fn close(&mut self) {}
}

// SPDX-License-Identifier: Apache-2.0
//! The other holders of addresses that the announcer has found, for the audit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use vipwatch_core::InstanceId;
use vipwatch_core::announce::DuplicateHolder;

use crate::audit::AuditRequests;
use crate::state::{Counters, StateStore};

/// The other holders of each instance's addresses. The announcement thread writes, the audit reads.
#[derive(Debug, Default)]
pub(crate) struct DuplicateTable {
    /// BOUND: one entry for each announced instance with another holder, and at most four holders for each address.
    by_instance: Mutex<BTreeMap<InstanceId, Vec<DuplicateHolder>>>,
}

impl DuplicateTable {
    /// The other holders of an instance's addresses.
    pub(crate) fn of(&self, id: &InstanceId) -> Vec<DuplicateHolder> {
        let table = self.by_instance.lock().unwrap_or_else(PoisonError::into_inner);
        table.get(id).cloned().unwrap_or_default()
    }

    /// Replaces the other holders of an instance's addresses; returns whether they are different.
    fn set(&self, id: &InstanceId, holders: Vec<DuplicateHolder>) -> bool {
        let mut table = self.by_instance.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.is_empty() {
            return table.remove(id).is_some();
        }
        let is_changed = table.get(id) != Some(&holders);
        table.insert(id.clone(), holders);
        is_changed
    }
}

/// Publishes the other holders, and has the instance audited when they change.
#[derive(Debug, Clone)]
pub(crate) struct DuplicateReports {
    store: Arc<StateStore>,
    audit_requests: AuditRequests,
}

impl DuplicateReports {
    pub(crate) fn new(store: &Arc<StateStore>, audit_requests: AuditRequests) -> Self {
        Self { store: Arc::clone(store), audit_requests }
    }

    /// The counters of the node.
    pub(super) fn counters(&self) -> &Counters {
        &self.store.counters
    }

    pub(super) fn set(&self, id: &InstanceId, holders: Vec<DuplicateHolder>) {
        if self.store.duplicates.set(id, holders) {
            self.audit_requests.evidence_changed(id);
        }
    }
}

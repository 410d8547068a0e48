// SPDX-License-Identifier: Apache-2.0
//! Whether it is known that a finding is over. A finding that is absent because its evidence is not there yet stays open:
//! after a restart of the node, and after an overrun of the witness, it would otherwise close and open again.

use std::time::Duration;

use vipwatch_core::FindingKind;
use vipwatch_core::audit::SETTLE;
use vipwatch_core::finding::FindingEvidence;
use vipwatch_linux::clock;

use super::AuditResult;
use crate::state::{InstanceEntry, StateStore};
use crate::witness::{CaptureStatus, InstanceEvidence, expected_down_interval};

/// A finding of the last run that this run finds only after an attempt of its own (a delivery, a socket, a disk) is not
/// closed before this time.
pub(super) const RESTORED_HOLD: Duration = Duration::from_secs(30);

/// Time in which the witness reads its queues, and the audit examines the instance.
const AUDIT_MARGIN: Duration = Duration::from_secs(2);

/// Whether the audit cannot say yet whether a finding about this instance is over.
pub(super) fn is_undecided(store: &StateStore, entry: &InstanceEntry, kind: FindingKind) -> bool {
    // An instance that has changed has no current result, and is audited again soon.
    let audit: Option<&AuditResult> = entry.current_audit();
    let is_of_adverts = kind.evidence() == FindingEvidence::Adverts;
    audit.is_none() || (is_of_adverts && is_evidence_incomplete(store, entry))
}

/// Whether adverts of this instance are captured, but not for long enough, or some were lost.
fn is_evidence_incomplete(store: &StateStore, entry: &InstanceEntry) -> bool {
    let needed = expected_down_interval(&entry.instance) + SETTLE + AUDIT_MARGIN;
    let is_incomplete = |evidence: InstanceEvidence<'_>| {
        let lost = evidence.witness.overrun().map(|overrun| overrun.to);
        let complete_since =
            lost.map_or(evidence.witness.since(), |lost| lost.max(evidence.witness.since()));
        *evidence.status == CaptureStatus::Running && clock::now().since(complete_since) < needed
    };
    store.witness.read(&entry.instance, is_incomplete).unwrap_or(false)
}

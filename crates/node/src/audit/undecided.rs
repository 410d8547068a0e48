// SPDX-License-Identifier: Apache-2.0
//! Whether it is known that a finding is over. A finding that is absent because its evidence is not there yet stays open:
//! after a restart of the node, after an overrun of the witness and after an advert that cannot be decoded, it would
//! otherwise close and open again.

use std::time::Duration;

use vipwatch_core::FindingKind;
use vipwatch_core::audit::SETTLE;
use vipwatch_core::finding::FindingEvidence;
use vipwatch_linux::clock;

use super::{AuditResult, DatedFinding};
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

/// The findings about adverts that the last audit of this instance found and the new one did not, while adverts are lost:
/// that they are not found says nothing.
pub(super) fn kept(
    store: &StateStore,
    entry: &InstanceEntry,
    found: &[DatedFinding],
) -> Vec<DatedFinding> {
    let Some(last) = entry.current_audit() else { return Vec::new() };
    let is_kept = |dated: &&DatedFinding| {
        let kind = dated.finding.kind;
        kind.evidence() == FindingEvidence::Adverts
            && !found.iter().any(|found| found.finding.kind == kind)
    };
    let kept: Vec<_> = last.findings.iter().filter(is_kept).cloned().collect();
    let needed = expected_down_interval(&entry.instance) + SETTLE;
    let is_lossy = |evidence: InstanceEvidence<'_>| {
        let overrun = evidence.witness.overrun();
        overrun.is_some_and(|overrun| clock::now().since(overrun.to) < needed)
    };
    let is_lossy = || store.witness.read(&entry.instance, is_lossy).unwrap_or(false);
    if !kept.is_empty() && is_lossy() { kept } else { Vec::new() }
}

/// Whether adverts of this instance are captured, but not for long enough, or some were lost or cannot be decoded.
fn is_evidence_incomplete(store: &StateStore, entry: &InstanceEntry) -> bool {
    let needed = expected_down_interval(&entry.instance) + SETTLE + AUDIT_MARGIN;
    let is_incomplete = |evidence: InstanceEvidence<'_>| {
        let lost = evidence.witness.overrun().map(|overrun| overrun.to);
        let (began, judged_at) =
            (evidence.witness.since(), evidence.witness.judged_at(clock::now()));
        // Beside a source that advertises, they leave nothing open.
        let both = || evidence.witness.both_kinds(evidence.key);
        let is_advertised = both().any(|router| router.advertising(judged_at).next().is_some());
        let undecoded = both().filter_map(|router| router.undecoded().last).max();
        let undecoded = undecoded.filter(|_| !is_advertised);
        let complete_since = lost.max(undecoded).map_or(began, |last| last.max(began));
        *evidence.status == CaptureStatus::Running && clock::now().since(complete_since) < needed
    };
    store.witness.read(&entry.instance, is_incomplete).unwrap_or(false)
}

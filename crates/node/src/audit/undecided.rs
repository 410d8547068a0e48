// SPDX-License-Identifier: Apache-2.0
//! Whether it is known that a finding is over. A finding that is absent because its evidence is not there yet stays open:
//! after a restart of the node, after an overrun of the witness and after an advert that cannot be decoded, it would
//! otherwise close and open again.

use std::time::Duration;

use vipwatch_core::audit::SETTLE;
use vipwatch_core::finding::FindingEvidence;
use vipwatch_core::{FindingKind, Role};
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
    audit.is_none() || (is_of_adverts && is_evidence_incomplete(store, entry, kind))
}

/// The findings about adverts that the last audit of this instance found and the new one did not, while adverts are lost:
/// that they are not found says nothing.
pub(super) fn kept(
    store: &StateStore,
    entry: &InstanceEntry,
    found: &[DatedFinding],
) -> Vec<DatedFinding> {
    // A configuration that was read again is no reason to forget them; another role is.
    let last = entry.audit.as_ref().filter(|audit| audit.seq == entry.seq);
    let Some(last) = last else { return Vec::new() };
    let is_kept = |dated: &&DatedFinding| {
        let kind = dated.finding.kind;
        kind.evidence() == FindingEvidence::Adverts
            && !found.iter().any(|found| found.finding.kind == kind)
    };
    let mut kept: Vec<_> = last.findings.iter().filter(is_kept).cloned().collect();
    if kept.is_empty() {
        return kept;
    }
    // A source is silent after one master-down interval. One that is back must advertise anew for a while.
    let needed = expected_down_interval(&entry.instance) * 2 + SETTLE;
    let keep = |evidence: InstanceEvidence<'_>| {
        let overrun = evidence.witness.overrun();
        let is_lossy = overrun.is_some_and(|overrun| clock::now().since(overrun.to) < needed);
        // An advert that has arrived ends the silence, whatever else is lost.
        let is_advertised = is_advertised(evidence);
        kept.retain(|dated| is_lossy && !(is_advertised && is_of_silence(dated.finding.kind)));
    };
    store.witness.read(&entry.instance, keep).map_or_else(Vec::new, |()| kept)
}

fn is_of_silence(kind: FindingKind) -> bool {
    matches!(kind, FindingKind::NoPrimary | FindingKind::KeepalivedFault)
}

fn is_advertised(evidence: InstanceEvidence<'_>) -> bool {
    let judged_at = evidence.witness.judged_at(clock::now());
    let router = evidence.witness.router(evidence.key);
    router.is_some_and(|router| router.advertising(judged_at).next().is_some())
}

/// Whether adverts of this instance are captured, but not for long enough, or some were lost or cannot be decoded.
fn is_evidence_incomplete(store: &StateStore, entry: &InstanceEntry, kind: FindingKind) -> bool {
    let needed = expected_down_interval(&entry.instance) + SETTLE + AUDIT_MARGIN;
    let is_incomplete = |evidence: InstanceEvidence<'_>| {
        let began = evidence.witness.since();
        let is_silence_over = is_of_silence(kind) && is_advertised(evidence);
        let overrun = evidence.witness.overrun().filter(|_| !is_silence_over);
        let lost = overrun.map(|overrun| overrun.to);
        // Undecodable adverts leave open whether there is a primary, unless a source advertises or this node is one.
        let is_open = is_of_silence(kind)
            && !is_silence_over
            && matches!(entry.role, Role::Backup | Role::Unknown(_));
        let router = evidence.witness.router(evidence.key).filter(|_| is_open);
        let undecoded = router.and_then(|router| router.undecoded().last);
        let complete_since = lost.max(undecoded).map_or(began, |last| last.max(began));
        *evidence.status == CaptureStatus::Running && clock::now().since(complete_since) < needed
    };
    store.witness.read(&entry.instance, is_incomplete).unwrap_or(false)
}

// SPDX-License-Identifier: Apache-2.0
//! The facts about one instance that captured adverts show.

use vipwatch_core::audit::{AdvertFacts, AdvertQuestion};
use vipwatch_core::keepalived_process::{KeepalivedFacts, KeepalivedState};
use vipwatch_core::{Moment, Role};
use vipwatch_linux::clock;

use crate::state::InstanceEntry;
use crate::witness::{
    CaptureStatus, InstanceEvidence, WitnessTable, configured_settings, expected_down_interval,
};

/// Gathers the facts about an instance with this role and this keepalived; `None` if its adverts are not captured.
pub(super) fn gather(
    witness: &WitnessTable,
    entry: &InstanceEntry,
    role: &Role,
    keepalived: Option<&KeepalivedFacts>,
) -> Option<AdvertFacts> {
    let state = keepalived.map(KeepalivedFacts::state);
    let has_ended = matches!(
        state,
        Some(KeepalivedState::Gone | KeepalivedState::NotFound | KeepalivedState::VrrpChildMissing)
    );
    let gather = |evidence: InstanceEvidence<'_>| {
        let mut facts = facts(entry, role, evidence, clock::now())?;
        // The link may pass no advert up: neither keepalived nor the capture has joined the groups.
        facts.silence = facts.silence.filter(|_| evidence.has_membership || !has_ended);
        Some(facts)
    };
    witness.read(&entry.instance, gather).flatten()
}

/// The facts from this evidence; `None` if the capture does not run.
pub(crate) fn facts(
    entry: &InstanceEntry,
    role: &Role,
    evidence: InstanceEvidence<'_>,
    now: Moment,
) -> Option<AdvertFacts> {
    ask(entry, role, evidence, now, AdvertFacts::of)
}

/// Calls `answer` with the question about an instance; `None` if the capture does not run.
pub(crate) fn ask<T>(
    entry: &InstanceEntry,
    role: &Role,
    evidence: InstanceEvidence<'_>,
    now: Moment,
    answer: impl FnOnce(&AdvertQuestion<'_>) -> T,
) -> Option<T> {
    let InstanceEvidence { status, witness, key, .. } = evidence;
    (*status == CaptureStatus::Running).then(|| {
        answer(&AdvertQuestion {
            witness,
            key,
            own: &configured_settings(&entry.instance),
            priority: entry.instance.vrrp.priority,
            down_interval: expected_down_interval(&entry.instance),
            role,
            role_since: entry.role_since,
            now,
        })
    })
}

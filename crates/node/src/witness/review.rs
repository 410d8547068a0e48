// SPDX-License-Identifier: Apache-2.0
//! Decides when the evidence about an instance has changed so that it must be audited, and when a split has ended.
//!
//! The worker calls it after a read of the queues for links with changed sources, and for links with an instance
//! that has not settled: its role or a source is new, or the adverts do not fit the role.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::audit::SplitWatch;
use vipwatch_core::witness::{AdvertOrigin, Rejection, RouterWitness};
use vipwatch_core::{InstanceId, Moment, Role};
use vipwatch_linux::clock;

use super::evidence::{InstanceEvidence, advert_interval};
use crate::audit::{AuditRequests, advert_facts, ask_adverts};
use crate::discovery::InstanceConfig;
use crate::evidence::{EvidenceUpdate, EvidenceUpdates};
use crate::processes::ProcessView;
use crate::state::{InstanceEntry, StateStore};

/// How long the details are looked at after a change: until evidence has settled.
const UNSETTLED_TIME: Duration = Duration::from_secs(10);

/// What is known of one instance.
#[derive(Debug, Default, Clone, Copy)]
struct Reviewed {
    /// [`AdvertFacts::kinds`](vipwatch_core::audit::AdvertFacts::kinds) at the last look.
    kinds: u8,
    /// The generation of the sources, and the role as a sequence number.
    version: (u32, i64),
    /// The details are looked at until this time.
    unsettled_until: Option<Moment>,
    /// Whether only another signature or another role can lead to a finding.
    is_quiet: bool,
    split: SplitWatch,
    /// Whether the own adverts of a primary were late at the last look.
    is_own_late: bool,
}

/// Requests an audit of each instance with other findings than before, and reports each instance with a split that has
/// ended.
#[derive(Debug)]
pub(super) struct Reviewer {
    requests: AuditRequests,
    evidence: EvidenceUpdates,
    known: HashMap<InstanceId, Reviewed>,
}

impl Reviewer {
    pub(super) fn new(requests: AuditRequests, evidence: EvidenceUpdates) -> Self {
        Self { requests, evidence, known: HashMap::new() }
    }

    /// Forgets all instances but these.
    pub(super) fn follow(&mut self, instances: &[Arc<InstanceConfig>]) {
        let mut known = std::mem::take(&mut self.known);
        self.known = instances
            .iter()
            .map(|one| (one.id.clone(), known.remove(&one.id).unwrap_or_default()))
            .collect();
    }

    /// Looks at the evidence about these instances of one link. Returns whether another look is due although the
    /// sources stay the same.
    pub(super) fn review(&mut self, instances: &[Arc<InstanceConfig>], store: &StateStore) -> bool {
        let now = clock::now();
        let processes = store.processes();
        let mut is_unsettled = false;
        for instance in instances {
            let Some(reviewed) = self.known.get_mut(&instance.id) else { continue };
            let Some(entry) = store.entry(&instance.id) else { continue };
            let seen = store.witness.read(instance, |evidence| {
                if is_newly_late(reviewed, &entry, evidence, now) {
                    self.evidence.push(EvidenceUpdate::OwnAdvertLate(instance.id.clone()));
                }
                let has_ended = has_split_ended(reviewed, &entry, evidence, now);
                (kinds(reviewed, &entry, evidence, processes.as_deref(), now), has_ended)
            });
            let (kinds, has_split_ended) = seen.unwrap_or_default();
            if has_split_ended {
                self.evidence.push(EvidenceUpdate::SplitEnded(instance.id.clone()));
            }
            if kinds != std::mem::replace(&mut reviewed.kinds, kinds) {
                self.requests.evidence_changed(&instance.id);
            }
            is_unsettled |= !reviewed.is_quiet;
        }
        is_unsettled
    }
}

/// Whether the own adverts of a primary have become late since the last look.
fn is_newly_late(
    reviewed: &mut Reviewed,
    entry: &InstanceEntry,
    evidence: InstanceEvidence<'_>,
    now: Moment,
) -> bool {
    let is_holding = matches!(entry.role, Role::Primary | Role::Partial { .. });
    let router = evidence.witness.router(evidence.key);
    let judged_at = evidence.witness.judged_at(now);
    let is_late = is_holding && router.is_some_and(|router| router.is_own_late(judged_at));
    let was_late = std::mem::replace(&mut reviewed.is_own_late, is_late);
    is_late && !was_late
}

/// Whether another host has advertised the addresses of a primary, and has stopped.
fn has_split_ended(
    reviewed: &mut Reviewed,
    entry: &InstanceEntry,
    evidence: InstanceEvidence<'_>,
    now: Moment,
) -> bool {
    if entry.role != Role::Primary {
        reviewed.split = SplitWatch::default();
        return false;
    }
    let answer = ask_adverts(entry, &entry.role, evidence, now, |question| {
        reviewed.split.has_ended(question, entry.seq)
    });
    answer.unwrap_or(false)
}

/// The kinds of findings now.
fn kinds(
    reviewed: &mut Reviewed,
    entry: &InstanceEntry,
    evidence: InstanceEvidence<'_>,
    processes: Option<&ProcessView>,
    now: Moment,
) -> u8 {
    let Some(router) = evidence.witness.router(evidence.key) else { return 0 };
    let both = || evidence.witness.both_kinds(evidence.key);
    let generation = both().map(RouterWitness::generation).fold(0, u32::wrapping_add);
    let version = (generation, entry.seq);
    if std::mem::replace(&mut reviewed.version, version) != version {
        let span = UNSETTLED_TIME + advert_interval(&entry.instance) * 2;
        reviewed.unsettled_until = Some(now + span);
    }
    let is_settled = reviewed.unsettled_until.is_none_or(|until| until < now);
    let judged_at = evidence.witness.judged_at(now);
    let is_expected = match entry.role {
        Role::Primary | Role::Partial { .. } => {
            let mut advertising = both().flat_map(|router| router.advertising(judged_at));
            !advertising.any(|record| record.origin == AdvertOrigin::Foreign)
        }
        Role::Backup => router.advertising(judged_at).next().is_some(),
        Role::Fault(_) | Role::Unknown(_) => true,
    };
    let is_usual = is_expected
        && !is_unusual(router, &entry.instance, judged_at)
        && !evidence.witness.is_flooded(judged_at);
    reviewed.is_quiet =
        is_settled && is_usual && reviewed.kinds == 0 && !reviewed.split.has_other_primary();
    if reviewed.is_quiet {
        return 0;
    }
    let facts = advert_facts(entry, &entry.role, evidence, processes, now);
    facts.map_or(0, |facts| facts.kinds())
}

/// Whether adverts are missing or irregular, keepalived drops some, or the own priority is lower than configured.
fn is_unusual(router: &RouterWitness, instance: &InstanceConfig, now: Moment) -> bool {
    let is_lower = |priority: u8| instance.vrrp.priority.is_some_and(|own| priority < own);
    let own = instance.vrrp.auth_hmac.as_deref();
    router.advertising(now).any(|record| {
        record.is_disturbed(now)
            || match record.origin {
                AdvertOrigin::Own => is_lower(record.priority),
                AdvertOrigin::Foreign => Rejection::of(own, record).is_some(),
            }
    })
}

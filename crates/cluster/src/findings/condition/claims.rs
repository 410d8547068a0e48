// SPDX-License-Identifier: Apache-2.0
//! Conditions about the number of primaries and backups of a group.

use vipwatch_api::GroupState;
use vipwatch_core::flapping::{FLAP_SPAN, MIN_TRANSITIONS};

use super::{ConditionContext, FindingCondition, evidence, is_live_backup, listed, names};
use crate::group::{Group, GroupMember};
use crate::key::Bucket;
use crate::record::{Confidence, ReceivedAdverts};
use vipwatch_core::FindingKind;

pub(super) fn two_primaries(group: &Group) -> Option<FindingCondition> {
    let is_confirmed = group.state() == GroupState::TwoPrimaries;
    is_confirmed.then(|| two_claims(group, names(group.confirmed_claims().into_iter())))
}

/// Two claims that were confirmed before, and a record of them that has changed since, for example by a new local finding. The
/// same claims continue until both nodes have confirmed the change, or one of them is no longer live.
pub(in crate::findings) fn unconfirmed_claims(group: &Group) -> Option<FindingCondition> {
    let is_conflict = group.ambiguities.is_empty() && group.primaries().len() >= 2;
    let is_confirmed = !group.confirmed_claims().is_empty();
    (is_conflict && !is_confirmed).then(|| two_claims(group, names(group.claims())))
}

/// The condition that these nodes have a claim.
fn two_claims(group: &Group, nodes: Vec<String>) -> FindingCondition {
    let text = format!(
        "nodes {} hold addresses of the group {} at the same time",
        listed(&nodes),
        group.id
    );
    condition(FindingKind::ClusterTwoPrimaries, Confidence::Certain, nodes, text, group)
}

pub(super) fn no_primary(group: &Group) -> Option<FindingCondition> {
    let nodes = names(group.members.iter());
    match group.state() {
        GroupState::NoPrimary => {
            let text = format!(
                "no node holds an address of the group {}, and all its nodes are live",
                group.id
            );
            Some(condition(FindingKind::ClusterNoPrimary, Confidence::Certain, nodes, text, group))
        }
        GroupState::Unknown => {
            let has_no_claim = group.claims().next().is_none();
            let backups_with = |adverts: ReceivedAdverts| {
                let members = group.members.iter();
                members.filter(move |member| {
                    is_live_backup(member) && member.record.adverts == adverts
                })
            };
            let silent = names(backups_with(ReceivedAdverts::None));
            // A backup that receives adverts shows that a primary exists, although the adverts do not reach the others.
            let has_witness = backups_with(ReceivedAdverts::Other).next().is_some();
            if silent.is_empty() || has_witness || !has_no_claim {
                return None;
            }
            let text = format!(
                "no live node holds an address of the group {}, and no adverts of another node reach {}",
                group.id,
                listed(&silent)
            );
            Some(condition(FindingKind::ClusterNoPrimary, Confidence::Probable, nodes, text, group))
        }
        GroupState::TwoPrimaries | GroupState::Ambiguous | GroupState::OnePrimary => None,
    }
}

pub(super) fn too_few_backups(
    group: &Group,
    context: ConditionContext<'_>,
) -> Option<FindingCondition> {
    // It is not known which instances on other nodes belong to one that is alone.
    let is_alone = matches!(group.bucket, Bucket::Alone { .. });
    if group.state() != GroupState::OnePrimary || !context.has_two_nodes || is_alone {
        return None;
    }
    let backups = group.members.iter().filter(|member| is_live_backup(member)).count();
    let wanted = usize::try_from(context.settings.min_backups).unwrap_or(usize::MAX);
    if backups >= wanted {
        return None;
    }
    let primary = listed(&names(group.claims()));
    let text = format!(
        "the group {} has the primary {primary} and {backups} live backups, fewer than {wanted}",
        group.id
    );
    // On a node without a running vipwatch, keepalived may be a backup.
    let is_certain = group.members.iter().all(GroupMember::is_live);
    let confidence = if is_certain { Confidence::Certain } else { Confidence::Probable };
    let nodes = names(group.members.iter());
    Some(condition(FindingKind::ClusterTooFewBackups, confidence, nodes, text, group))
}

pub(super) fn flapping(group: &Group) -> FindingCondition {
    let text = format!(
        "the nodes that hold addresses of the group {} changed {MIN_TRANSITIONS} times or more within {} minutes",
        group.id,
        FLAP_SPAN.as_secs() / 60
    );
    let nodes = names(group.members.iter());
    condition(FindingKind::ClusterFlapping, Confidence::Certain, nodes, text, group)
}

fn condition(
    kind: FindingKind,
    confidence: Confidence,
    nodes: Vec<String>,
    text: String,
    group: &Group,
) -> FindingCondition {
    FindingCondition { kind, confidence, nodes, text, evidence: evidence::of(group) }
}

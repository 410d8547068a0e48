// SPDX-License-Identifier: Apache-2.0
//! Conditions about the number of primaries and backups of a group.

use vipwatch_api::{ClusterNodeState, GroupState, RoleKind};
use vipwatch_core::flapping::{FLAP_SPAN, MIN_TRANSITIONS};

use super::{ConditionContext, FindingCondition, basis_of, evidence, listed, names};
use crate::group::{Group, GroupMember, is_certainly_not_primary};
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

/// The claims of an open finding of which one was made by a node that is stopped or lost. The kernel of that node may hold the
/// address still: that nobody is there to say so is no evidence that the split is over.
pub(in crate::findings) fn absent_claims(
    group: &Group,
    nodes: &[String],
) -> Option<FindingCondition> {
    let claims = || {
        let members = group.members.iter().filter(|member| member.has_claim());
        members.filter(|member| nodes.iter().any(|node| node == member.node.as_str()))
    };
    let absent = names(claims().filter(|member| !member.is_live()));
    let claiming = names(claims());
    if claiming.len() < 2 || absent.is_empty() || !group.ambiguities.is_empty() {
        return None;
    }
    let text = format!(
        "nodes {} held addresses of the group {} at the same time, and {} may hold them still",
        listed(&claiming),
        group.id,
        listed(&absent)
    );
    Some(condition(FindingKind::ClusterTwoPrimaries, Confidence::Probable, claiming, text, group))
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

/// The members that claimed an address when their node went. A live node that has claimed one since has taken over: what follows is
/// not caused by the absence.
pub(in crate::findings) fn gone_claims(group: &Group) -> impl Iterator<Item = &GroupMember> {
    group.members.iter().filter(|member| !member.is_live() && member.has_claim())
}

pub(super) fn no_primary(group: &Group, context: ConditionContext<'_>) -> Option<FindingCondition> {
    let nodes = names(group.members.iter());
    let (confidence, text) = match group.state() {
        GroupState::NoPrimary => {
            let text = format!(
                "no node holds an address of the group {}, and all its nodes are live",
                group.id
            );
            (Confidence::Certain, text)
        }
        GroupState::Unknown => (Confidence::Probable, probably_no_primary(group)?),
        GroupState::TwoPrimaries | GroupState::Ambiguous | GroupState::OnePrimary => return None,
    };
    let found = condition(FindingKind::ClusterNoPrimary, confidence, nodes, text, group);
    let gone = gone_claims(group).filter(|member| !context.succeeded.contains(&member.node));
    Some(FindingCondition { absent: names(gone), ..found })
}

/// Why no node seems to hold an address, although a node of the group is stopped or lost, or only one node is known.
fn probably_no_primary(group: &Group) -> Option<String> {
    // A backup that receives adverts shows that a primary exists, although the adverts do not reach the others.
    let has_witness = group.members.iter().any(GroupMember::hears_primary);
    if has_witness || group.claims().next().is_some() {
        return None;
    }
    let live = || group.members.iter().filter(|member| member.is_live());
    let is_silent = |member: &&GroupMember| {
        member.record.role == RoleKind::Backup && member.record.adverts == ReceivedAdverts::None
    };
    let silent = names(live().filter(is_silent));
    let id = &group.id;
    if !silent.is_empty() {
        return Some(format!(
            "no live node holds an address of the group {id}, and no adverts of another node reach {}",
            listed(&silent)
        ));
    }
    // A node that was stopped without a claim takes no address while no vipwatch runs there, unless the primary fails.
    let was_stopped =
        |member: &GroupMember| member.state == ClusterNodeState::Stopped && !member.has_claim();
    let others = group.members.iter().filter(|member| !member.is_live());
    let mut stopped = others.clone().filter(|member| was_stopped(member)).peekable();
    let is_decided = stopped.peek().is_some()
        && others.clone().all(was_stopped)
        && names(live()).len() >= 2
        && live().all(is_certainly_not_primary);
    is_decided.then(|| {
        format!(
            "no live node holds an address of the group {id}, and {} did not when vipwatch was stopped there",
            listed(&names(stopped))
        )
    })
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
    let backups = group.members.iter().filter(|member| member.is_ready()).count();
    let wanted = usize::try_from(context.settings.min_backups).unwrap_or(usize::MAX);
    if backups >= wanted {
        return None;
    }
    let primary = listed(&names(group.claims()));
    let text = format!(
        "the group {} has the primary {primary} and {backups} live backups that can take over, fewer than {wanted}{}",
        group.id,
        obstacles(group)
    );
    // On a node without a running vipwatch, keepalived may be a backup.
    let is_certain = group.has_two_nodes() && group.members.iter().all(GroupMember::is_live);
    let confidence = if is_certain { Confidence::Certain } else { Confidence::Probable };
    let nodes = names(group.members.iter());
    let found = condition(FindingKind::ClusterTooFewBackups, confidence, nodes, text, group);
    // Each node that neither holds the addresses nor can take over is a missing backup.
    let missing = group.members.iter().filter(|member| !member.is_ready() && !is_claim(member));
    let absent = names(missing);
    let mut about = absent.clone();
    if about.is_empty() {
        // An agent that hands its routers over leaves their groups.
        about.extend(context.left.iter().map(ToString::to_string));
        about.sort();
        about.dedup();
    }
    Some(FindingCondition { about: Some(about), absent, ..found })
}

fn is_claim(member: &GroupMember) -> bool {
    member.is_live() && member.has_claim()
}

/// Why backups cannot take over, as the end of a sentence.
fn obstacles(group: &Group) -> String {
    let backups = group.members.iter().filter(|member| member.record.role == RoleKind::Backup);
    let live = backups.filter(|member| member.is_live() && !member.is_ready());
    let texts = live.map(|member| {
        let names: Vec<&str> = member.obstacles().collect();
        format!("; {} has {}", member.node, names.join(", "))
    });
    texts.collect()
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
    let basis = match kind {
        FindingKind::ClusterTwoPrimaries | FindingKind::ClusterNoPrimary => basis_of(group),
        _ => Vec::new(),
    };
    FindingCondition {
        kind,
        confidence,
        nodes,
        text,
        evidence: evidence::of(group),
        basis,
        about: None,
        absent: Vec::new(),
    }
}

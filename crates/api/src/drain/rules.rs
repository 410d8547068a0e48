// SPDX-License-Identifier: Apache-2.0
//! The rules of the check, without I/O.
//!
//! ```text
//!   now: addresses here, something pending, or no primary anywhere ──▶ not drained
//!   if:  no node would take over, or no primary anywhere           ──▶ not safe
//!   otherwise: a fact is missing                                   ──▶ unknown
//!   otherwise                                                      ──▶ drained; ready if addresses are here
//! ```

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;
use vipwatch_core::finding::DrainEffect;

use super::cluster::{ClusterAnswer, NodeGroups, held_here, rejected, view_reasons};
use super::takeover::{holds, unseen_scripts};
use super::{
    DrainCheckDocument, DrainFacts, DrainInstance, DrainQuestion, DrainReason, DrainVerdict,
    verdict,
};
use crate::{
    ClusterConnectionState, ClusterGroupList, FindingItem, FindingKind, InstanceItem, RoleKind,
    Schema, TargetItem,
};

/// A transition waits for its cause for up to two seconds before its notifications are pending.
const CAUSE_WAIT_MS: i64 = 3000;

/// The reason that it is not certain which node holds the addresses.
const PRIMARY_NOT_CERTAIN: &str = "primary-not-certain";

/// A role that begins later than this from now has the time of a clock that was set back since.
const MAX_AHEAD_MS: i64 = 60_000;

/// The time between two adverts where the configuration does not set it.
const DEFAULT_ADVERT_MS: u64 = 1000;

/// Answers the question about the node of the facts.
pub fn drain_check(question: DrainQuestion, facts: DrainFacts) -> DrainCheckDocument {
    let groups = facts.cluster.as_ref().filter(|groups| is_connected(groups));
    let roles = facts.instances.iter().map(|one| (one.id.as_str(), one.role));
    let cluster = groups.map(|groups| {
        NodeGroups::new(node_name(&facts, groups), &groups.items).answer(question, roles)
    });
    let mut blocking = blocking(question, &facts);
    let mut uncertain = uncertain(question, &facts, cluster.as_ref());
    let mut notes = Vec::new();
    let mut successors = BTreeMap::new();
    let has_cluster = cluster.is_some();
    if let Some(answer) = cluster {
        add_cluster(&facts, answer, &mut blocking, &mut uncertain, &mut notes, &mut successors);
    }
    notes.extend(held_back(&facts.targets).chain(set_clock(&facts)));
    if question == DrainQuestion::Now {
        notes.extend(groups.and_then(rejected));
    }
    let instances = drain_instances(&facts, successors);
    let is_holding = instances.iter().any(|instance| instance.holds_addresses);
    let mut found = verdict(question, is_holding, &blocking, &uncertain);
    if question == DrainQuestion::If && !has_cluster && found == DrainVerdict::Ready {
        let text = "which node would take over: only a cluster view ([cluster] in the configuration) knows the other nodes";
        uncertain.push(DrainReason::new("no-cluster", None, text));
        found = DrainVerdict::Unknown;
    }
    DrainCheckDocument {
        schema: Schema::DrainCheck,
        question,
        verdict: found,
        blocking,
        uncertain,
        not_known: not_known(question, &facts, &instances, has_cluster),
        notes,
        instances,
        node: facts.node,
        at: facts.at,
        pending: facts.targets.into_iter().filter(|target| target.pending > 0).collect(),
    }
}

fn is_connected(groups: &ClusterGroupList) -> bool {
    groups.basis.connection == ClusterConnectionState::Connected
}

/// The name of the node in the cluster.
fn node_name<'f>(facts: &'f DrainFacts, groups: &'f ClusterGroupList) -> &'f str {
    groups.basis.node.as_deref().unwrap_or(&facts.node)
}

/// Adds what the other nodes say.
fn add_cluster(
    facts: &DrainFacts,
    answer: ClusterAnswer,
    blocking: &mut Vec<DrainReason>,
    uncertain: &mut Vec<DrainReason>,
    notes: &mut Vec<DrainReason>,
    successors: &mut BTreeMap<String, Vec<String>>,
) {
    // The adverts that arrive now are newer than those that the cluster knows of.
    let hears = |id: Option<&str>| {
        let instance = facts.instances.iter().find(|one| Some(one.id.as_str()) == id);
        instance.is_some_and(|one| one.hears_other == Some(true))
    };
    let mut is_heard = |reason: &DrainReason| {
        let is_about = reason.is_no_primary() || reason.name == PRIMARY_NOT_CERTAIN;
        if !is_about || !hears(reason.id.as_deref()) {
            return false;
        }
        let text =
            "the primary is on a node that the cluster does not know: only its adverts arrive";
        notes.push(DrainReason::new("primary-outside", reason.id.as_deref(), text));
        true
    };
    for reason in answer.blocking {
        if is_heard(&reason) {
            continue;
        }
        if reason.is_no_primary() {
            // The local finding says the same.
            blocking.retain(|known| known.id != reason.id || known.name != reason.name);
        }
        blocking.push(reason);
    }
    let unknown = answer.uncertain.into_iter();
    uncertain.extend(unknown.filter(|reason| !is_heard(reason)));
    notes.extend(answer.notes);
    successors.extend(answer.successors);
}

impl DrainReason {
    pub(super) fn new(name: &str, id: Option<&str>, text: impl Into<String>) -> Self {
        let (id, target) = (id.map(str::to_owned), None);
        Self { name: name.to_owned(), id, target, text: text.into() }
    }

    fn of_finding(name: &str, finding: &FindingItem) -> Self {
        Self::new(name, finding.id.as_deref(), finding.text.clone())
    }

    /// Whether no node holds the addresses.
    fn is_no_primary(&self) -> bool {
        has_effect(&self.name, DrainEffect::NoPrimary)
    }
}

pub(super) fn has_effect(finding: &str, effect: DrainEffect) -> bool {
    FindingKind::from_name(finding).is_some_and(|kind| kind.drain() == effect)
}

/// The reason that a finding is against taking the node down; `None` if it is not. `is_held`: the role already says that
/// addresses of the instance are here.
pub(super) fn blocking_name(
    question: DrainQuestion,
    finding: &str,
    is_held: bool,
) -> Option<&'static str> {
    let is_now = question == DrainQuestion::Now;
    match FindingKind::from_name(finding)?.drain() {
        DrainEffect::NoPrimary => Some("no-primary"),
        DrainEffect::AddressesHere if is_now && !is_held => Some("addresses-here"),
        DrainEffect::ConsumerBehind if is_now => Some("consumer-behind"),
        _ => None,
    }
}

pub(super) fn is_flapping(finding: &str) -> bool {
    let kind = FindingKind::from_name(finding);
    matches!(kind, Some(FindingKind::Flapping | FindingKind::ClusterFlapping))
}

fn blocking(question: DrainQuestion, facts: &DrainFacts) -> Vec<DrainReason> {
    let mut reasons = Vec::new();
    if question == DrainQuestion::Now {
        let held = facts.instances.iter();
        reasons.extend(held.filter_map(|one| held_here(&one.id, one.role, one.reason.as_deref())));
        let held = |instance: &&InstanceItem| instance.report.as_ref().is_some_and(|it| it.held);
        let text = "the receiver holds a report of its monitor back";
        let reports = facts.instances.iter().filter(held);
        reasons
            .extend(reports.map(|one| DrainReason::new("delivery-pending", Some(&one.id), text)));
        reasons.extend(facts.targets.iter().filter(|target| target.pending > 0).map(pending));
    }
    let held = facts.instances.iter().filter(|one| holds(one.role));
    let held: HashSet<&str> = held.map(|one| one.id.as_str()).collect();
    reasons.extend(facts.findings.items.iter().filter_map(|finding| {
        let is_held = finding.id.as_deref().is_some_and(|id| held.contains(id));
        let name = blocking_name(question, &finding.name, is_held)?;
        Some(DrainReason::of_finding(name, finding))
    }));
    reasons
}

fn pending(target: &TargetItem) -> DrainReason {
    let what = if target.pending == 1 { "delivery is" } else { "deliveries are" };
    let text = format!("{} {what} pending", target.pending);
    DrainReason {
        target: Some(target.name.clone()),
        ..DrainReason::new("delivery-pending", None, text)
    }
}

/// The notifications that a silence holds back: a restart does not lose them.
fn held_back(targets: &[TargetItem]) -> impl Iterator<Item = DrainReason> {
    targets.iter().filter(|target| target.silenced > 0).map(|target| {
        let text = format!("{} notifications wait for the end of a silence", target.silenced);
        DrainReason {
            target: Some(target.name.clone()),
            ..DrainReason::new("delivery-silenced", None, text)
        }
    })
}

/// A note if the clock was set back, so that the age of a role is not known.
fn set_clock(facts: &DrainFacts) -> Option<DrainReason> {
    let is_ahead =
        |one: &InstanceItem| role_age_ms(one, facts.at).is_some_and(|age| age < -MAX_AHEAD_MS);
    facts.instances.iter().any(is_ahead).then(|| {
        let text =
            "the clock was set back: some roles begin later than now, and their age is not known";
        DrainReason::new("clock-set-back", None, text)
    })
}

fn role_age_ms(instance: &InstanceItem, now: Timestamp) -> Option<i64> {
    Some(now.as_millisecond() - instance.since?.as_millisecond())
}

/// The instances whose past does not matter: they have no addresses here, and their keepalived does not run here, or another
/// node holds the addresses. To take the node down, all of them matter.
fn settled<'f>(
    question: DrainQuestion,
    facts: &'f DrainFacts,
    cluster: Option<&ClusterAnswer>,
) -> HashSet<&'f str> {
    if question == DrainQuestion::If {
        return HashSet::new();
    }
    let gone = facts.findings.items.iter();
    let gone = gone.filter(|finding| finding.kind() == Some(FindingKind::KeepalivedGone));
    let gone: HashSet<&str> = gone.filter_map(|finding| finding.id.as_deref()).collect();
    let is_settled = |one: &&InstanceItem| {
        matches!(one.role, RoleKind::Backup | RoleKind::Fault)
            && (one.hears_other == Some(true)
                || gone.contains(one.id.as_str())
                || cluster.is_some_and(|answer| answer.held_elsewhere.contains(&one.id)))
    };
    facts.instances.iter().filter(is_settled).map(|one| one.id.as_str()).collect()
}

fn uncertain(
    question: DrainQuestion,
    facts: &DrainFacts,
    cluster: Option<&ClusterAnswer>,
) -> Vec<DrainReason> {
    let unknown = facts.instances.iter().filter(|one| one.role == RoleKind::Unknown);
    let unknown = unknown.map(|instance| {
        let text = instance.reason.as_deref().unwrap_or("the kernel could not be read");
        DrainReason::new("role-unknown", Some(&instance.id), text)
    });
    let settled = settled(question, facts, cluster);
    let is_over = |finding: &FindingItem| {
        is_flapping(&finding.name) && finding.id.as_deref().is_some_and(|id| settled.contains(id))
    };
    let findings = facts.findings.items.iter().filter(|finding| {
        has_effect(&finding.name, DrainEffect::Uncertain) && !finding.harmless && !is_over(finding)
    });
    let findings = findings.map(|finding| DrainReason::of_finding(&finding.name, finding));
    let is_alone = question == DrainQuestion::If;
    let view = facts.cluster.iter().flat_map(|groups| view_reasons(groups, is_alone));
    let mut reasons: Vec<DrainReason> = unknown.chain(findings).chain(view).collect();
    let has_cluster = cluster.is_some();
    let failovers = facts.instances.iter().filter_map(|one| failover(one, facts.at, has_cluster));
    reasons.extend(failovers);
    if facts.findings.too_young > 0 {
        let text = format!(
            "a failover may still be going on: findings younger than five seconds: {}",
            facts.findings.too_young
        );
        reasons.push(DrainReason::new("findings-too-young", None, text));
    }
    reasons.extend(missing_instances(facts));
    reasons
}

/// Why an instance without addresses here may have none anywhere. VRRP needs some seconds, and without a cluster only adverts
/// show that another node is primary.
fn failover(instance: &InstanceItem, now: Timestamp, has_cluster: bool) -> Option<DrainReason> {
    let reason = |name, text: &str| Some(DrainReason::new(name, Some(&instance.id), text));
    if instance.role == RoleKind::Unknown {
        return None;
    }
    let age = role_age_ms(instance, now).filter(|age| *age >= -MAX_AHEAD_MS).unwrap_or(i64::MAX);
    if age < CAUSE_WAIT_MS {
        return reason(
            "failover-young",
            "the role has just changed, and its cause is not known yet",
        );
    }
    let is_elsewhere = has_cluster || instance.hears_other == Some(true);
    if holds(instance.role) || is_elsewhere {
        return None;
    }
    let advert = instance.advert_ms.unwrap_or(DEFAULT_ADVERT_MS);
    // Three adverts and the skew, which is less than one (RFC 9568, 6.1).
    let election = i64::try_from(advert.saturating_mul(4)).unwrap_or(i64::MAX);
    if age < election.saturating_add(CAUSE_WAIT_MS) {
        let text =
            "the role has just changed, and no adverts show that another node has taken over";
        return reason("failover-young", text);
    }
    if instance.role == RoleKind::Fault {
        let text = "it cannot hold the addresses, and no adverts show that another node does";
        return reason(PRIMARY_NOT_CERTAIN, text);
    }
    None
}

/// Why a node that follows no instance may hold addresses nevertheless.
fn missing_instances(facts: &DrainFacts) -> Option<DrainReason> {
    if !facts.instances.is_empty() {
        return None;
    }
    let text = match (facts.findings.keepaliveds, facts.recent_instances) {
        (Some(0), Some(0)) => return None,
        (None, _) => {
            "no instance is followed, and it is not known whether a keepalived runs".to_owned()
        }
        (Some(0), None) => {
            "no instance is followed, and the history cannot say whether there were any".to_owned()
        }
        (Some(0), Some(recent)) => {
            format!("no instance is followed, and there were {recent} within the last day")
        }
        (Some(running), _) => {
            format!("no instance is followed, and {running} keepaliveds run on this machine")
        }
    };
    Some(DrainReason::new("no-instances", None, text))
}

fn drain_instances(
    facts: &DrainFacts,
    mut successors: BTreeMap<String, Vec<String>>,
) -> Vec<DrainInstance> {
    let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for finding in &facts.findings.items {
        names
            .entry(finding.id.as_deref().unwrap_or_default())
            .or_default()
            .push(finding.name.clone());
    }
    let mut one = |instance: &InstanceItem| {
        let findings = names.remove(instance.id.as_str()).unwrap_or_default();
        let has = |effect| findings.iter().any(|finding| has_effect(finding, effect));
        let cannot_take_over = has(DrainEffect::CannotTakeOver);
        let is_left = has(DrainEffect::AddressesHere);
        DrainInstance {
            id: instance.id.clone(),
            role: instance.role,
            since: instance.since,
            holds_addresses: holds(instance.role) || is_left,
            loses_backup: instance.role == RoleKind::Backup && !cannot_take_over,
            findings,
            peer: facts.peers.get(&instance.id).cloned(),
            last_failover: facts.failovers.get(&instance.id).cloned(),
            successors: successors.remove(&instance.id).unwrap_or_default(),
        }
    };
    let mut instances: Vec<DrainInstance> = facts.instances.iter().map(&mut one).collect();
    instances
        .sort_by(|a, b| b.holds_addresses.cmp(&a.holds_addresses).then_with(|| a.id.cmp(&b.id)));
    instances
}

/// What one node cannot know. A VRRP backup sends nothing, so no node sees the backups of another one, unless the nodes share
/// their roles (`has_cluster`).
fn not_known(
    question: DrainQuestion,
    facts: &DrainFacts,
    instances: &[DrainInstance],
    has_cluster: bool,
) -> Vec<DrainReason> {
    let count = |is: fn(&DrainInstance) -> bool| instances.iter().filter(|one| is(one)).count();
    let mut reasons = Vec::new();
    let mut add = |name, text: String| reasons.push(DrainReason::new(name, None, text));
    let held = count(|one| one.holds_addresses);
    if held > 0 && !has_cluster {
        let text = "whether another node is ready to take over: a VRRP backup sends no adverts";
        add("peer-readiness", text.to_owned());
    }
    let lost = count(|one| one.loses_backup);
    if lost > 0 && !has_cluster {
        let text = format!(
            "whether instances have another backup while this node is down: {lost} lose the one here"
        );
        add("other-backups", text);
    }
    if !facts.captures_adverts && !has_cluster && instances.len() > held {
        let text = "whether another node is primary: this node does not capture adverts";
        add("primary-elsewhere", text.to_owned());
    }
    if let Some(error) = &facts.history_error {
        add("last-failover", format!("the last failover of each instance: {error}"));
    }
    if instances.is_empty() && missing_instances(facts).is_none() {
        add("no-instances", "whether instances should be here: none is configured".to_owned());
    }
    if question == DrainQuestion::If && held > 0 && has_cluster {
        reasons.push(unseen_scripts());
    }
    reasons
}

#[cfg(test)]
pub(super) mod tests;

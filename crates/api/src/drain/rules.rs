// SPDX-License-Identifier: Apache-2.0
//! The rules of the check, without I/O.
//!
//! ```text
//!   now: addresses here, something pending, or no primary anywhere ──▶ not drained
//!   if:  no node would take over, or no primary anywhere           ──▶ not safe
//!   otherwise: a fact is missing                                   ──▶ unknown
//!   otherwise                                                      ──▶ drained; ready if addresses are here
//! ```

use std::collections::BTreeMap;

use jiff::Timestamp;
use vipwatch_core::finding::DrainEffect;

use super::cluster::{ClusterAnswer, NodeGroups, held_here, view_reasons};
use super::takeover::holds;
use super::{
    DrainCheckDocument, DrainFacts, DrainInstance, DrainQuestion, DrainReason, DrainVerdict,
    FindingList, verdict,
};
use crate::{
    ClusterConnectionState, ClusterGroupList, FindingItem, FindingKind, InstanceItem, RoleKind,
    Schema, TargetItem,
};

/// A transition waits for its cause for up to two seconds before its notifications are pending.
const CAUSE_WAIT_MS: i64 = 3000;

/// The reason that it is not certain which node holds the addresses.
const PRIMARY_NOT_CERTAIN: &str = "primary-not-certain";

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
    let mut uncertain = uncertain(&facts, cluster.is_some());
    let mut notes = Vec::new();
    let mut successors = BTreeMap::new();
    let has_cluster = cluster.is_some();
    if let Some(answer) = cluster {
        add_cluster(&facts, answer, &mut blocking, &mut uncertain, &mut notes, &mut successors);
    }
    notes.extend(held_back(&facts.targets));
    notes.extend(rejected(&facts));
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
        not_known: not_known(&facts, &instances, has_cluster),
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

/// The findings with this effect.
fn with_effect(findings: &FindingList, effect: DrainEffect) -> impl Iterator<Item = &FindingItem> {
    findings.items.iter().filter(move |finding| has_effect(&finding.name, effect))
}

pub(super) fn has_effect(finding: &str, effect: DrainEffect) -> bool {
    FindingKind::from_name(finding).is_some_and(|kind| kind.drain() == effect)
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
        let is_held = |id: Option<&str>| {
            facts.instances.iter().any(|one| Some(one.id.as_str()) == id && holds(one.role))
        };
        let left = with_effect(&facts.findings, DrainEffect::AddressesHere);
        let left = left.filter(|finding| !is_held(finding.id.as_deref()));
        reasons.extend(left.map(|finding| DrainReason::of_finding("addresses-here", finding)));
        reasons.extend(facts.targets.iter().filter(|target| target.pending > 0).map(pending));
        let behind = with_effect(&facts.findings, DrainEffect::ConsumerBehind);
        reasons.extend(behind.map(|finding| DrainReason::of_finding("consumer-behind", finding)));
    }
    let nowhere = with_effect(&facts.findings, DrainEffect::NoPrimary);
    reasons.extend(nowhere.map(|finding| DrainReason::of_finding("no-primary", finding)));
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

/// A note if etcd rejects the records of this node.
fn rejected(facts: &DrainFacts) -> Option<DrainReason> {
    let groups = facts.cluster.as_ref().filter(|groups| is_connected(groups))?;
    let error = groups.basis.error.as_ref()?;
    let text = format!("other nodes do not have the current roles of this one: {error}");
    Some(DrainReason::new("cluster-records", None, text))
}

fn uncertain(facts: &DrainFacts, has_cluster: bool) -> Vec<DrainReason> {
    let unknown = facts.instances.iter().filter(|one| one.role == RoleKind::Unknown);
    let unknown = unknown.map(|instance| {
        let text = instance.reason.as_deref().unwrap_or("the kernel could not be read");
        DrainReason::new("role-unknown", Some(&instance.id), text)
    });
    let findings = with_effect(&facts.findings, DrainEffect::Uncertain);
    let findings = findings.filter(|finding| !finding.harmless);
    let findings = findings.map(|finding| DrainReason::of_finding(&finding.name, finding));
    let view = facts.cluster.iter().flat_map(view_reasons);
    let mut reasons: Vec<DrainReason> = unknown.chain(findings).chain(view).collect();
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
    // A time in the future is that of a clock that was set since: the role may have just changed.
    let age = instance.since.map(|since| now.as_millisecond() - since.as_millisecond());
    let age = age.unwrap_or(i64::MAX);
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
        (0, Some(0)) => return None,
        (0, None) => {
            "no instance is followed, and the history cannot say whether there were any".to_owned()
        }
        (0, Some(recent)) => {
            format!("no instance is followed, and there were {recent} within the last day")
        }
        (running, _) => {
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
    reasons
}

#[cfg(test)]
pub(super) mod tests;

// SPDX-License-Identifier: Apache-2.0
//! The rules of the check, without I/O.
//!
//! ```text
//!   addresses here, something pending, or no primary anywhere ──▶ not safe
//!   in a cluster: no other live node is backup or primary     ──▶ not safe
//!   otherwise: a role or the list of instances is not certain ──▶ unknown
//!   otherwise                                                 ──▶ safe
//! ```

use std::collections::BTreeMap;

use vipwatch_core::finding::DrainEffect;

use super::cluster::ClusterPeers;
use super::{
    DrainCheckDocument, DrainFacts, DrainInstance, DrainReason, DrainVerdict, FindingList,
};
use crate::{FindingItem, FindingKind, InstanceItem, RoleKind, Schema, TargetItem};

/// Decides whether the node can be taken down.
pub fn drain_check(facts: DrainFacts) -> DrainCheckDocument {
    let instances = drain_instances(&facts);
    let peers = ClusterPeers::of(&facts);
    let blocking = blocking(&facts, peers.as_ref());
    let uncertain = uncertain(&facts, peers.as_ref());
    let notes = peers.as_ref().map(ClusterPeers::notes).unwrap_or_default();
    let verdict = match (blocking.is_empty(), uncertain.is_empty()) {
        (false, _) => DrainVerdict::NotSafe,
        (true, false) => DrainVerdict::Unknown,
        (true, true) => DrainVerdict::Safe,
    };
    DrainCheckDocument {
        schema: Schema::DrainCheck,
        verdict,
        blocking,
        uncertain,
        not_known: not_known(&facts, &instances, peers.is_some()),
        notes,
        instances,
        node: facts.node,
        at: facts.at,
        pending: facts.targets.into_iter().filter(|target| target.pending > 0).collect(),
    }
}

impl DrainReason {
    pub(super) fn new(name: &str, id: Option<&str>, text: impl Into<String>) -> Self {
        let (id, target) = (id.map(str::to_owned), None);
        Self { name: name.to_owned(), id, target, text: text.into() }
    }

    fn of_finding(name: &str, finding: &FindingItem) -> Self {
        Self::new(name, finding.id.as_deref(), finding.text.clone())
    }
}

fn holds_addresses(instance: &InstanceItem) -> bool {
    matches!(instance.role, RoleKind::Primary | RoleKind::Partial)
}

/// The findings with this effect.
fn with_effect(findings: &FindingList, effect: DrainEffect) -> impl Iterator<Item = &FindingItem> {
    findings.items.iter().filter(move |finding| has_effect(&finding.name, effect))
}

fn has_effect(finding: &str, effect: DrainEffect) -> bool {
    FindingKind::from_name(finding).is_some_and(|kind| kind.drain() == effect)
}

fn blocking(facts: &DrainFacts, peers: Option<&ClusterPeers<'_>>) -> Vec<DrainReason> {
    let mut reasons = Vec::new();
    for instance in &facts.instances {
        let id = Some(instance.id.as_str());
        match instance.role {
            RoleKind::Primary => {
                let text = "this node is primary: it holds the addresses";
                reasons.push(DrainReason::new("primary-here", id, text));
            }
            RoleKind::Partial => {
                let details = instance.reason.as_deref().unwrap_or("holds some of the addresses");
                let text = format!("this node {details}");
                reasons.push(DrainReason::new("addresses-here", id, text));
            }
            RoleKind::Backup | RoleKind::Fault | RoleKind::Unknown => {}
        }
        if instance.report.as_ref().is_some_and(|report| report.held) {
            let text = "the receiver holds a report of its monitor back";
            reasons.push(DrainReason::new("delivery-pending", id, text));
        }
    }
    let holds = |id: Option<&str>| {
        facts.instances.iter().any(|other| Some(other.id.as_str()) == id && holds_addresses(other))
    };
    let left = with_effect(&facts.findings, DrainEffect::AddressesHere);
    let left = left.filter(|finding| !holds(finding.id.as_deref()));
    reasons.extend(left.map(|finding| DrainReason::of_finding("addresses-here", finding)));
    let of_cluster = peers.map(ClusterPeers::blocking).unwrap_or_default();
    let is_known = |finding: &&FindingItem| {
        of_cluster.iter().any(|reason| reason.name == "no-primary" && reason.id == finding.id)
    };
    let nowhere =
        with_effect(&facts.findings, DrainEffect::NoPrimary).filter(|finding| !is_known(finding));
    reasons.extend(nowhere.map(|finding| DrainReason::of_finding("no-primary", finding)));
    reasons.extend(of_cluster);
    reasons.extend(facts.targets.iter().filter(|target| target.pending > 0).map(pending));
    let behind = with_effect(&facts.findings, DrainEffect::ConsumerBehind);
    reasons.extend(behind.map(|finding| DrainReason::of_finding("consumer-behind", finding)));
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

fn uncertain(facts: &DrainFacts, peers: Option<&ClusterPeers<'_>>) -> Vec<DrainReason> {
    let unknown = facts.instances.iter().filter(|one| one.role == RoleKind::Unknown);
    let unknown = unknown.map(|instance| {
        let text = instance.reason.as_deref().unwrap_or("the kernel could not be read");
        DrainReason::new("role-unknown", Some(&instance.id), text)
    });
    let findings = with_effect(&facts.findings, DrainEffect::Uncertain);
    let findings = findings.map(|finding| DrainReason::of_finding(&finding.name, finding));
    let of_cluster = peers.map(ClusterPeers::uncertain).unwrap_or_default();
    let mut reasons: Vec<DrainReason> = unknown.chain(findings).chain(of_cluster).collect();
    if facts.findings.too_young > 0 {
        let text = format!(
            "a failover may still be going on: findings younger than five seconds: {}",
            facts.findings.too_young
        );
        reasons.push(DrainReason::new("findings-too-young", None, text));
    }
    reasons
}

fn drain_instances(facts: &DrainFacts) -> Vec<DrainInstance> {
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
            holds_addresses: holds_addresses(instance) || is_left,
            loses_backup: instance.role == RoleKind::Backup && !cannot_take_over,
            findings,
            peer: facts.peers.get(&instance.id).cloned(),
            last_failover: facts.failovers.get(&instance.id).cloned(),
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
    if instances.is_empty() {
        add("no-instances", "whether instances should be here: none is configured".to_owned());
    }
    reasons
}

#[cfg(test)]
pub(super) mod tests;

// SPDX-License-Identifier: Apache-2.0
//! What the other nodes of the cluster say about each instance of a node: whether one of them holds its addresses, and which of
//! them would take over.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use vipwatch_core::finding::DrainEffect;

use super::rules::{blocking_name, has_effect, is_flapping};
use super::takeover::{Takeover, holds, is_live, lost_addresses, takeover, unseen_scripts};
use super::{DrainCheckDocument, DrainInstance, DrainQuestion, DrainReason, verdict};
use crate::{
    ClusterConnectionState, ClusterGroupItem, ClusterGroupList, ClusterMemberItem, ClusterNodeItem,
    ClusterNodeState, ClusterScope, GroupState, RoleKind, Schema,
};

/// A group, and the instance of the node in it.
type OwnGroup<'g> = (&'g ClusterGroupItem, &'g ClusterMemberItem);

/// The groups of one node.
pub(super) struct NodeGroups<'g> {
    node: &'g str,
    /// By the id of the node's instance.
    groups: HashMap<&'g str, OwnGroup<'g>>,
}

/// What is known about the instances of a node.
#[derive(Debug, Default)]
pub(super) struct ClusterAnswer {
    pub(super) blocking: Vec<DrainReason>,
    pub(super) uncertain: Vec<DrainReason>,
    pub(super) notes: Vec<DrainReason>,
    /// The instances without addresses here that another node certainly holds.
    pub(super) held_elsewhere: HashSet<String>,
    /// Who would take over each instance with addresses here.
    pub(super) successors: BTreeMap<String, Vec<String>>,
}

/// The instances of a sync group, which move together.
type SyncGroups<'g> = BTreeMap<(Option<&'g str>, &'g str), Vec<(&'g str, Vec<&'g str>)>>;

impl<'g> NodeGroups<'g> {
    pub(super) fn new(node: &'g str, list: &'g [ClusterGroupItem]) -> Self {
        let members = list.iter().flat_map(|group| {
            let own = group.members.iter().filter(|member| member.node == node);
            own.map(move |member| (member.instance.as_str(), (group, member)))
        });
        Self { node, groups: members.collect() }
    }

    /// Answers the question for these instances with their present roles.
    pub(super) fn answer<'i>(
        &self,
        question: DrainQuestion,
        instances: impl Iterator<Item = (&'i str, RoleKind)>,
    ) -> ClusterAnswer {
        let mut answer = ClusterAnswer::default();
        let mut sync_groups = SyncGroups::new();
        for (id, role) in instances {
            let Some(&(group, own)) = self.groups.get(id) else {
                let text = "the cluster does not know this instance yet";
                answer.uncertain.push(DrainReason::new("cluster-view", Some(id), text));
                continue;
            };
            if group.state == GroupState::Ambiguous {
                let text = "it is not clear which instances of other nodes belong to it";
                answer.uncertain.push(DrainReason::new("cluster-ambiguous-group", Some(id), text));
            } else if holds(role) {
                if question == DrainQuestion::If {
                    self.leave(id, group, own, &mut answer, &mut sync_groups);
                }
            } else if role != RoleKind::Unknown {
                self.stay(id, role, (group, own), &mut answer);
            }
        }
        check_sync_groups(&sync_groups, &mut answer);
        answer
    }

    /// An instance with addresses on the node: another node must take over.
    fn leave(
        &self,
        id: &str,
        group: &'g ClusterGroupItem,
        own: &'g ClusterMemberItem,
        answer: &mut ClusterAnswer,
        sync_groups: &mut SyncGroups<'g>,
    ) {
        let others = group.members.iter().filter(|member| member.node != self.node);
        if let Some(other) =
            others.filter(|member| is_live(member)).find(|member| holds(member.role))
        {
            let text = format!("{} holds the addresses too", other.node);
            answer.blocking.push(DrainReason::new("two-primaries", Some(id), text));
            return;
        }
        match takeover(group, own) {
            Takeover::Next(next) => {
                let names: Vec<&str> = next.iter().map(|member| member.node.as_str()).collect();
                let owned = names.iter().map(|name| (*name).to_owned()).collect();
                answer.successors.insert(id.to_owned(), owned);
                if let Some(sync_group) = &own.sync_group {
                    let key = (own.netns.as_deref(), sync_group.as_str());
                    sync_groups.entry(key).or_default().push((own.instance.as_str(), names));
                }
            }
            Takeover::Uncertain(text) => {
                answer.uncertain.push(DrainReason::new("backup-not-certain", Some(id), text));
            }
            Takeover::Nobody(text) => {
                answer.blocking.push(DrainReason::new("no-backup-elsewhere", Some(id), text));
            }
        }
    }

    /// An instance without addresses on the node: another node must hold them.
    fn stay(
        &self,
        id: &str,
        role: RoleKind,
        (group, own): OwnGroup<'_>,
        answer: &mut ClusterAnswer,
    ) {
        let others = group.members.iter().filter(|member| member.node != self.node);
        let holders: Vec<_> =
            others.filter(|member| is_live(member) && holds(member.role)).collect();
        let Some(holder) = holders.first() else {
            self.check_unheld(id, group, answer);
            return;
        };
        if holders.iter().all(|holder| holder.role == RoleKind::Partial) {
            let text = format!("{} holds only a part of the addresses", holder.node);
            answer.blocking.push(DrainReason::new("partly-held", Some(id), text));
        } else if !holders.iter().any(|one| one.confirmed && one.role == RoleKind::Primary) {
            let text = format!("{} has not confirmed that it is primary", holder.node);
            answer.uncertain.push(DrainReason::new("primary-not-certain", Some(id), text));
        } else if let Some(lost) =
            holders.iter().map(|one| lost_addresses(own, one)).min().flatten()
        {
            // `None`, a holder of all addresses, is the least.
            let text = format!("{} does not have {}", holder.node, lost.join(", "));
            answer.blocking.push(DrainReason::new("partly-held", Some(id), text));
        } else {
            answer.held_elsewhere.insert(id.to_owned());
            if role == RoleKind::Backup && !matches!(takeover(group, own), Takeover::Next(_)) {
                let text = "this is the only live backup: while this node is down, no node could take over";
                answer.notes.push(DrainReason::new("last-backup", Some(id), text));
            }
        }
    }

    /// An instance whose addresses no live node holds.
    fn check_unheld(&self, id: &str, group: &ClusterGroupItem, answer: &mut ClusterAnswer) {
        let mut others = group.members.iter().filter(|member| member.node != self.node);
        let hears =
            |member: &ClusterMemberItem| is_live(member) && member.hears_other == Some(true);
        if group.members.iter().any(hears) {
            // The record may be older than the end of the adverts.
            let text =
                "no live node holds the addresses, and adverts of another node were received";
            answer.uncertain.push(DrainReason::new("primary-not-certain", Some(id), text));
        } else if let Some(absent) = others.find(|member| was_primary(member)) {
            let text = format!(
                "{} was primary when vipwatch was stopped there, and no live node is",
                absent.node
            );
            answer.uncertain.push(DrainReason::new("primary-not-certain", Some(id), text));
        } else {
            let text = "no other live node holds the addresses";
            answer.blocking.push(DrainReason::new("no-primary", Some(id), text));
        }
    }
}

/// Whether vipwatch was stopped on a node that held addresses: its keepalived may hold them still.
fn was_primary(member: &ClusterMemberItem) -> bool {
    member.node_state == ClusterNodeState::Stopped && holds(member.role)
}

/// The instances of a sync group move together, so that one node must be able to take over all of them.
fn check_sync_groups(sync_groups: &SyncGroups<'_>, answer: &mut ClusterAnswer) {
    for ((_, name), instances) in sync_groups {
        let Some(((first, next), rest)) = instances.split_first() else { continue };
        if rest.iter().all(|(_, others)| others == next) && next.len() == 1 {
            continue;
        }
        let common = next.iter().any(|node| rest.iter().all(|(_, others)| others.contains(node)));
        let ids: Vec<&str> = instances.iter().map(|(id, _)| *id).collect();
        if !common {
            let text =
                format!("the sync group {name} ({}) would go to different nodes", ids.join(", "));
            answer.blocking.push(DrainReason::new("sync-group-split", Some(first), text));
        } else if !rest.is_empty() {
            let text = format!(
                "several nodes have the same priority for the sync group {name} ({}), so that it is not clear which takes over",
                ids.join(", ")
            );
            answer.uncertain.push(DrainReason::new("sync-group-split", Some(first), text));
        }
    }
}

/// Answers the question about a node from the records of the cluster alone: its deliveries are not known.
pub fn drain_check_of_cluster(
    question: DrainQuestion,
    groups: &ClusterGroupList,
    node: &ClusterNodeItem,
    at: Timestamp,
) -> DrainCheckDocument {
    let of_node = NodeGroups::new(&node.node, &groups.items);
    let mut own: Vec<OwnGroup<'_>> = of_node.groups.values().copied().collect();
    own.sort_by_key(|(_, member)| (!holds(member.role), member.instance.as_str()));
    let instances = own.iter().map(|(_, member)| (member.instance.as_str(), member.role));
    let mut answer = of_node.answer(question, instances);
    if question == DrainQuestion::Now {
        let held = own.iter().filter_map(|(_, member)| {
            held_here(&member.instance, member.role, member.reason.as_deref())
        });
        answer.blocking.extend(held);
    }
    add_findings(question, &own, &mut answer);
    answer.uncertain.extend(not_current(groups, node, &own));
    let instances = own.iter().map(|(_, member)| instance_of(member, &mut answer.successors));
    let instances: Vec<DrainInstance> = instances.collect();
    let is_holding = instances.iter().any(|instance| instance.holds_addresses);
    let mut not_known = vec![DrainReason::new(
        "deliveries",
        None,
        "whether notifications are pending on the node: `vipwatch drain-check` there says it",
    )];
    if question == DrainQuestion::If && is_holding {
        not_known.push(unseen_scripts());
    }
    DrainCheckDocument {
        schema: Schema::DrainCheck,
        node: node.node.clone(),
        at,
        question,
        verdict: verdict(question, is_holding, &answer.blocking, &answer.uncertain),
        instances,
        blocking: answer.blocking,
        uncertain: answer.uncertain,
        not_known,
        notes: answer.notes,
        pending: Vec::new(),
    }
}

/// Why an instance keeps the node from being drained; `None` if it has no addresses there. `reason` are details of its role.
pub(super) fn held_here(id: &str, role: RoleKind, reason: Option<&str>) -> Option<DrainReason> {
    match role {
        RoleKind::Primary => {
            let text = "this node is primary: it holds the addresses";
            Some(DrainReason::new("primary-here", Some(id), text))
        }
        RoleKind::Partial => {
            let text = format!("this node {}", reason.unwrap_or("holds some of the addresses"));
            Some(DrainReason::new("addresses-here", Some(id), text))
        }
        RoleKind::Backup | RoleKind::Fault | RoleKind::Unknown => None,
    }
}

/// Adds what the findings in the records say, by the rules that the node itself follows.
fn add_findings(question: DrainQuestion, own: &[OwnGroup<'_>], answer: &mut ClusterAnswer) {
    let known = answer.blocking.iter().chain(&answer.uncertain);
    let mut known: HashSet<(String, Option<String>)> =
        known.map(|reason| (reason.name.clone(), reason.id.clone())).collect();
    for (group, member) in own {
        let id = member.instance.as_str();
        let is_held = holds(member.role);
        let is_gone = !is_held && member.keepalived == Some(false);
        let is_settled =
            question == DrainQuestion::Now && (is_gone || answer.held_elsewhere.contains(id));
        for finding in member.findings.iter().chain(&group.findings) {
            let is_over = is_settled && is_flapping(finding);
            let (name, reasons) = match blocking_name(question, finding, is_held) {
                Some(name) => (name, &mut answer.blocking),
                None if has_effect(finding, DrainEffect::Uncertain) && !is_over => {
                    (finding.as_str(), &mut answer.uncertain)
                }
                None => continue,
            };
            if known.insert((name.to_owned(), Some(id.to_owned()))) {
                let text = format!("the finding {finding} is open");
                reasons.push(DrainReason::new(name, Some(id), text));
            }
        }
    }
}

/// Why the records of a node are not what its kernel says now.
fn not_current(
    groups: &ClusterGroupList,
    node: &ClusterNodeItem,
    own: &[OwnGroup<'_>],
) -> Vec<DrainReason> {
    let mut reasons = view_reasons(groups, true);
    if groups.basis.scope == ClusterScope::Own && groups.basis.node.as_ref() != Some(&node.node) {
        let text =
            "the answering node knows only the groups of its own instances: --etcd reads all";
        reasons.push(DrainReason::new("cluster-view", None, text));
    }
    if node.state != ClusterNodeState::Live {
        let text = format!("the node is {}: its last known roles prove nothing", node.state.word());
        reasons.push(DrainReason::new("node-not-live", None, text));
    } else if own.is_empty() {
        let text = "the cluster knows no instance of this node";
        reasons.push(DrainReason::new("no-instances", None, text));
    } else if let Some(followed) = node.followed.filter(|count| *count > own.len() as u64) {
        let text = format!("the cluster knows {} of the {followed} instances here", own.len());
        reasons.push(DrainReason::new("cluster-view", None, text));
    }
    for (_, member) in own {
        let text = if member.role == RoleKind::Unknown {
            member.reason.clone().unwrap_or_else(|| "the kernel could not be read".to_owned())
        } else if !is_live(member) || !member.confirmed {
            "the node has not confirmed its role".to_owned()
        } else {
            continue;
        };
        reasons.push(DrainReason::new("role-unknown", Some(&member.instance), text));
    }
    reasons
}

/// Why the view of the cluster proves nothing; empty if it is current. `is_alone`: nothing else decides.
pub(super) fn view_reasons(groups: &ClusterGroupList, is_alone: bool) -> Vec<DrainReason> {
    let text = match groups.basis.connection {
        ClusterConnectionState::Connected if is_alone => {
            return rejected(groups).into_iter().collect();
        }
        ClusterConnectionState::Connected | ClusterConnectionState::Off => return Vec::new(),
        ClusterConnectionState::Connecting => "the node has not read etcd yet",
        ClusterConnectionState::Stale => {
            "the connection to etcd is lost: other nodes may have changed since"
        }
    };
    vec![DrainReason::new("cluster-view", None, text)]
}

/// A reason if etcd rejects what the answering node writes.
pub(super) fn rejected(groups: &ClusterGroupList) -> Option<DrainReason> {
    let error = groups.basis.error.as_ref()?;
    let text = format!("etcd rejects records, so that the roles in it may be old: {error}");
    Some(DrainReason::new("cluster-records", None, text))
}

fn instance_of(
    member: &ClusterMemberItem,
    successors: &mut BTreeMap<String, Vec<String>>,
) -> DrainInstance {
    let has = |effect| member.findings.iter().any(|finding| has_effect(finding, effect));
    DrainInstance {
        id: member.instance.clone(),
        role: member.role,
        since: member.since,
        holds_addresses: holds(member.role) || has(DrainEffect::AddressesHere),
        loses_backup: member.role == RoleKind::Backup && !has(DrainEffect::CannotTakeOver),
        findings: member.findings.clone(),
        peer: None,
        last_failover: None,
        successors: successors.remove(&member.instance).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;

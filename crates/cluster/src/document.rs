// SPDX-License-Identifier: Apache-2.0
//! The documents of the API about the cluster, made from a view. The caller adds the basis: the connection and its state.
//!
//! A document about groups needs memory for each group; the counts of [`status`] do not.

mod history;
mod limits;

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use vipwatch_api::{
    ClusterBasis, ClusterFindingItem, ClusterFindingList, ClusterGroupItem, ClusterGroupList,
    ClusterMemberItem, ClusterNodeItem, ClusterNodeList, ClusterNodeState, ClusterSilenceItem,
    ClusterStatus, FindingScope, GroupState, GroupSummary, NodeSummary, Schema, Timestamp,
};

pub use self::history::{ClusterHistorySelection, history};
use crate::group::{Group, GroupMember};
use crate::record::{FindingRecord, ReceivedAdverts, SilenceRecord};
use crate::view::{ClusterView, NodeView};

/// The answer to `GET /v1/cluster`.
pub fn status(view: &ClusterView, basis: ClusterBasis) -> ClusterStatus {
    let mut nodes = NodeSummary::default();
    for node in view.nodes() {
        match node.state {
            ClusterNodeState::Live => nodes.live += 1,
            ClusterNodeState::Stopped => nodes.stopped += 1,
            ClusterNodeState::Lost => nodes.lost += 1,
        }
    }
    let mut groups = GroupSummary::default();
    for group in view.groups() {
        groups.total += 1;
        match group.state() {
            GroupState::OnePrimary => groups.one_primary += 1,
            GroupState::TwoPrimaries => groups.two_primaries += 1,
            GroupState::NoPrimary => groups.no_primary += 1,
            GroupState::Ambiguous => groups.ambiguous += 1,
            GroupState::Unknown => groups.unknown += 1,
        }
    }
    ClusterStatus {
        schema: Schema::Cluster,
        basis: limits::add(basis, view),
        reporter: view.reporter().map(|reporter| reporter.node.clone()),
        reporter_notifies: reporter_notifies(view),
        nodes,
        groups,
        findings: view.findings().count().try_into().unwrap_or(u64::MAX),
        silences: silences(view),
        ignored: view.ignored(),
        neutron: None,
    }
}

/// The answer to `GET /v1/cluster/groups`.
pub fn groups(view: &ClusterView, basis: ClusterBasis) -> ClusterGroupList {
    groups_where(view, basis, |_| true)
}

/// The same with a part of the groups.
pub fn groups_where(
    view: &ClusterView,
    basis: ClusterBasis,
    mut is_selected: impl FnMut(&Group) -> bool,
) -> ClusterGroupList {
    let mut basis = limits::add(basis, view);
    let findings = findings_of_groups(view);
    let mut items = Vec::new();
    for group in view.groups().filter(|group| is_selected(group)) {
        basis.unknown.extend(limits::of_group(&group));
        let findings = findings.get(group.id.as_str()).cloned().unwrap_or_default();
        items.push(group_item(group, findings));
    }
    items.sort_by(|one, other| one.state.cmp(&other.state).then_with(|| one.id.cmp(&other.id)));
    ClusterGroupList { schema: Schema::ClusterGroups, basis, items }
}

/// The answer to `GET /v1/cluster/nodes`.
pub fn nodes(view: &ClusterView, basis: ClusterBasis) -> ClusterNodeList {
    let counts = view.role_counts();
    let reporter = view.reporter().map(|reporter| reporter.node.as_str());
    let item = |node: NodeView<'_>| {
        let count = counts.get(node.name).copied().unwrap_or_default();
        let live = node.process.filter(|_| node.state == ClusterNodeState::Live);
        ClusterNodeItem {
            node: node.name.to_string(),
            state: node.state,
            is_reporter: reporter == Some(node.name.as_str()),
            version: live.map(|live| live.record.version.clone()),
            epoch: node.epoch().to_owned(),
            heartbeat: live.map(|live| live.record.heartbeat),
            at: last_time(&node),
            instances: count.instances,
            primaries: count.primaries,
            backups: count.backups,
            followed: live.map(|live| live.record.instances),
        }
    };
    let items = view.nodes().map(item).collect();
    ClusterNodeList { schema: Schema::ClusterNodes, basis: limits::add(basis, view), items }
}

/// The answer to `GET /v1/cluster/findings`: the open findings in etcd.
pub fn findings(view: &ClusterView, basis: ClusterBasis) -> ClusterFindingList {
    let mut items: Vec<ClusterFindingItem> =
        view.findings().map(|record| finding_item(record, FindingScope::Cluster)).collect();
    items.sort_by(|one, other| {
        let by_severity = one.severity.cmp(&other.severity);
        by_severity.then_with(|| one.opened.cmp(&other.opened)).then_with(|| one.id.cmp(&other.id))
    });
    ClusterFindingList { schema: Schema::ClusterFindings, basis: limits::add(basis, view), items }
}

/// Whether the reporter has a target for findings.
fn reporter_notifies(view: &ClusterView) -> Option<bool> {
    let name = view.reporter()?.node.parse().ok()?;
    Some(view.node(&name)?.process?.record.notifies)
}

/// The silences in force, in the order of their ends.
fn silences(view: &ClusterView) -> Vec<ClusterSilenceItem> {
    let in_force = view.silences().filter(|(_, stored)| stored.lease != 0);
    let item = |record: &SilenceRecord| ClusterSilenceItem {
        id: record.id.clone(),
        node: record.node.clone(),
        group: record.group.clone(),
        until: record.until,
        created_by: record.created_by.clone(),
        reason: record.reason.clone(),
    };
    let mut items: Vec<ClusterSilenceItem> =
        in_force.map(|(_, stored)| item(&stored.record)).collect();
    items.sort_by(|one, other| one.until.cmp(&other.until).then_with(|| one.id.cmp(&other.id)));
    items
}

/// A finding as part of a document.
pub fn finding_item(record: &FindingRecord, scope: FindingScope) -> ClusterFindingItem {
    ClusterFindingItem {
        id: record.id.clone(),
        name: record.name.clone(),
        severity: record.severity,
        confidence: record.confidence.as_ref().to_owned(),
        scope,
        group: record.group.clone(),
        nodes: record.nodes.clone(),
        text: record.text.clone(),
        hint: record.hint.clone(),
        evidence: record.evidence.clone(),
        opened: record.opened,
        closed: record.closed,
        reporter: record.reporter.clone(),
        delivered: record.notified_open.clone(),
        silenced: record.silenced.as_ref().map(|silence| ClusterSilenceItem {
            id: silence.id.clone(),
            node: None,
            group: None,
            until: silence.until,
            created_by: silence.created_by.clone(),
            reason: silence.reason.clone(),
        }),
        part_of: record.part_of.clone(),
    }
}

/// The names of the open findings of each group.
fn findings_of_groups(view: &ClusterView) -> BTreeMap<&str, Vec<String>> {
    let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for record in view.findings() {
        if let Some(group) = &record.group {
            names.entry(group).or_default().push(record.name.clone());
        }
    }
    names
}

fn group_item(group: Group, findings: Vec<String>) -> ClusterGroupItem {
    let (id, state) = (group.id.clone(), group.state());
    let primaries = group.primaries().into_iter().map(ToString::to_string).collect();
    let addresses: BTreeSet<IpNet> =
        group.members.iter().flat_map(|member| &member.record.addresses).copied().collect();
    let members = group.members.into_iter().map(|member| member_item(member, &addresses)).collect();
    let addresses = addresses.iter().map(ToString::to_string).collect();
    ClusterGroupItem { id, state, primaries, addresses, members, findings }
}

/// `addresses` are those of all members.
fn member_item(member: GroupMember, addresses: &BTreeSet<IpNet>) -> ClusterMemberItem {
    let confirmed = member.has_confirmed(member.mod_revision);
    let GroupMember { node, state, record, .. } = member;
    // The length of the prefix does not matter.
    let has = |address: &IpNet| record.addresses.iter().any(|own| own.addr() == address.addr());
    let missing = addresses.iter().filter(|address| !has(address));
    ClusterMemberItem {
        confirmed,
        missing: missing.map(ToString::to_string).collect(),
        keepalived: record.keepalived,
        hears_other: match record.adverts {
            ReceivedAdverts::Other => Some(true),
            ReceivedAdverts::None => Some(false),
            ReceivedAdverts::Unknown => None,
        },
        source: record.source.map(|source| source.to_string()),
        sync_group: record.sync_group,
        node: node.to_string(),
        node_state: state,
        instance: record.instance,
        role: record.role,
        reason: record.reason,
        since: record.since,
        seq: record.seq,
        cause: record.cause,
        priority: record.priority,
        netns: record.netns,
        interface: record.interface,
        findings: record.findings,
    }
}

/// The newer of the times of both records, by the clock of the node.
fn last_time(node: &NodeView<'_>) -> Timestamp {
    let process = node.process.map(|process| process.record.at);
    process.max(node.member.map(|member| member.record.at)).unwrap_or_default()
}

#[cfg(test)]
mod tests;

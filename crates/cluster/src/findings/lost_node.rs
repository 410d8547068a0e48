// SPDX-License-Identifier: Apache-2.0
//! Nodes that were not stopped, and have no valid lease.

use std::collections::BTreeMap;

use vipwatch_api::ClusterNodeState;
use vipwatch_core::{Moment, first_of};

use super::EvaluatorSettings;
use super::condition::FindingCondition;
use super::node_condition::NodeCondition;
use crate::group::GroupMember;
use crate::key::ClusterName;
use crate::record::Confidence;
use crate::view::{ClusterView, NodeView};
use vipwatch_core::FindingKind;

/// The maximum number of groups that the text names.
const MAX_NAMES: usize = 8;

/// Since when each lost node is lost.
#[derive(Debug, Default)]
pub(super) struct LostNodes {
    nodes: BTreeMap<ClusterName, LostNode>,
}

#[derive(Debug)]
struct LostNode {
    /// `None` if the view was stale since, and before the grace has ended.
    since: Option<Moment>,
    /// When the finding is opened; `None` if it was.
    due: Option<Moment>,
    /// What its groups miss, as the end of a sentence; `None` before the finding is opened.
    groups: Option<String>,
}

impl LostNodes {
    pub(super) fn forget_pending(&mut self) {
        for lost in self.nodes.values_mut() {
            lost.since = None;
        }
    }

    pub(super) fn next_check(&self) -> Option<Moment> {
        self.nodes.values().filter_map(|lost| lost.due).min()
    }

    /// All lost nodes. Until `grace_end`, nodes that have lost etcd too may come back, so no time counts.
    pub(super) fn evaluate(
        &mut self,
        view: &ClusterView,
        now: Moment,
        grace_end: Moment,
        settings: &EvaluatorSettings,
    ) -> Vec<NodeCondition> {
        let mut before = std::mem::take(&mut self.nodes);
        let mut conditions = Vec::new();
        for node in view.nodes().filter(is_lost) {
            let known = before.remove(node.name);
            let since = known.as_ref().and_then(|lost| lost.since).unwrap_or(now);
            let settle =
                settings.settle_of(FindingKind::ClusterNodeLost, std::time::Duration::ZERO);
            let due = (since + settle).max(grace_end);
            let is_settled = due <= now;
            let next = (!is_settled).then_some(due);
            let groups = known.and_then(|lost| lost.groups);
            let groups =
                groups.or_else(|| is_settled.then(|| groups_of(view, node.name, settings)));
            let mut condition = condition(&node);
            condition.text.extend(groups.as_deref());
            let lost = LostNode { since: Some(since), due: next, groups };
            self.nodes.insert(node.name.clone(), lost);
            conditions.push(NodeCondition { node: node.name.clone(), is_settled, condition });
        }
        conditions
    }
}

/// The groups that miss a lost node: their findings are a part of its own.
fn groups_of(view: &ClusterView, name: &ClusterName, settings: &EvaluatorSettings) -> String {
    let (mut held, mut without_backup) = (Vec::new(), Vec::new());
    let wanted = usize::try_from(settings.min_backups).unwrap_or(usize::MAX);
    for bucket in view.buckets_of_node(name) {
        for group in view.groups_of(&bucket) {
            let Some(lost) = group.members.iter().find(|member| member.node == *name) else {
                continue;
            };
            if lost.has_claim() {
                held.push(group.id);
            } else if group.members.iter().filter(|it| GroupMember::is_ready(it)).count() < wanted {
                without_backup.push(group.id);
            }
        }
    }
    let listed = |what: &str, groups: &[String]| match groups.len() {
        0 => String::new(),
        count => format!("; {what}: {count}: {}", first_of(groups, MAX_NAMES, ", ")),
    };
    listed("groups of which it was the primary", &held)
        + &listed("groups with too few backups without it", &without_backup)
}

fn is_lost(node: &NodeView<'_>) -> bool {
    node.state == ClusterNodeState::Lost && node.member.is_some()
}

fn condition(node: &NodeView<'_>) -> FindingCondition {
    let name = node.name;
    let text = format!(
        "node {name} is lost: the lease of its process has ended, and vipwatch was not stopped there"
    );
    let mut evidence = vec![format!("there is no key of a running process of node {name}")];
    if let Some(member) = node.member {
        let (at, revision) = (member.record.at, member.mod_revision);
        evidence.push(format!(
            "node {name} wrote its membership as running at revision {revision}, {at} by its clock"
        ));
    }
    if let Some(process) = node.process {
        let epoch = &process.record.epoch;
        evidence.push(format!("a process with another epoch ({epoch}) uses the name {name}"));
    }
    let nodes = vec![name.to_string()];
    let (kind, confidence) = (FindingKind::ClusterNodeLost, Confidence::Certain);
    FindingCondition {
        kind,
        confidence,
        nodes,
        text,
        evidence,
        basis: Vec::new(),
        about: None,
        absent: Vec::new(),
    }
}

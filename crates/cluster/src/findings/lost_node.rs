// SPDX-License-Identifier: Apache-2.0
//! Nodes that were not stopped, and have no valid lease.

use std::collections::BTreeMap;

use vipwatch_api::ClusterNodeState;
use vipwatch_core::{Moment, first_of};

use super::EvaluatorSettings;
use super::condition::FindingCondition;
use super::node_condition::NodeCondition;
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
            let known = before.remove(node.name).and_then(|lost| lost.since);
            let since = known.unwrap_or(now);
            let settle =
                settings.settle_of(FindingKind::ClusterNodeLost, std::time::Duration::ZERO);
            let due = (since + settle).max(grace_end);
            let is_settled = due <= now;
            let next = (!is_settled).then_some(due);
            self.nodes.insert(node.name.clone(), LostNode { since: Some(since), due: next });
            let condition = condition(&node);
            conditions.push(NodeCondition { node: node.name.clone(), is_settled, condition });
        }
        conditions
    }
}

/// Adds the groups that lack a backup without a lost node: their findings are a part of its own.
pub(super) fn add_groups(
    conditions: &mut [NodeCondition],
    groups: &BTreeMap<ClusterName, Vec<String>>,
) {
    for NodeCondition { node, condition, .. } in conditions {
        if let Some(groups) = groups.get(node) {
            let text = format!(
                "; groups with too few backups without it: {}: {}",
                groups.len(),
                first_of(groups, MAX_NAMES, ", ")
            );
            condition.text.push_str(&text);
        }
    }
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

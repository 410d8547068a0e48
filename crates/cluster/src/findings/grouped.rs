// SPDX-License-Identifier: Apache-2.0
//! The groups that are without a primary because a node is away: one finding for each such node, in place of one message for
//! each group.

use std::collections::BTreeMap;

use vipwatch_core::{FindingKind, Moment, first_of};

use super::EvaluatorSettings;
use super::condition::FindingCondition;
use super::node_condition::NodeCondition;
use super::open::FindingParts;
use crate::key::ClusterName;
use crate::record::Confidence;

/// The maximum number of groups that the text names.
const MAX_NAMES: usize = 8;

/// Since when each node has such groups.
#[derive(Debug, Default)]
pub(super) struct GroupedFindings {
    since: BTreeMap<ClusterName, Moment>,
    /// When the next finding is due; `None` if none is pending.
    next: Option<Moment>,
}

impl GroupedFindings {
    pub(super) fn next_check(&self) -> Option<Moment> {
        self.next
    }

    /// The conditions of these nodes, each with its groups. A finding waits for the settle time, in which further groups come.
    pub(super) fn evaluate(
        &mut self,
        nodes: BTreeMap<ClusterName, FindingParts>,
        now: Moment,
        settings: &EvaluatorSettings,
    ) -> Vec<NodeCondition> {
        self.since.retain(|node, _| nodes.contains_key(node));
        self.next = None;
        let mut conditions = Vec::new();
        for (node, parts) in nodes {
            let due = *self.since.entry(node.clone()).or_insert(now) + settings.settle;
            let is_settled = due <= now && parts.is_evaluated;
            if due > now {
                self.next = Some(self.next.map_or(due, |next| next.min(due)));
            }
            conditions.push(NodeCondition {
                condition: condition(&node, &parts.groups),
                node,
                is_settled,
            });
        }
        conditions
    }
}

fn condition(node: &ClusterName, groups: &[String]) -> FindingCondition {
    let count = groups.len();
    let what = if count == 1 { "group is" } else { "groups are" };
    let text = format!(
        "{count} {what} without a primary since node {node} is away: {}",
        first_of(groups, MAX_NAMES, ", ")
    );
    FindingCondition {
        kind: FindingKind::ClusterGroupsWithoutPrimary,
        confidence: Confidence::Probable,
        nodes: vec![node.to_string()],
        text,
        evidence: Vec::new(),
        basis: Vec::new(),
        about: None,
        absent: Vec::new(),
    }
}

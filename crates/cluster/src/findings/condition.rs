// SPDX-License-Identifier: Apache-2.0
//! The conditions of the findings about a group, at one moment. How long they hold is not decided here.

mod claims;
mod settings;

use std::time::Duration;

use vipwatch_core::FindingKind;
use vipwatch_core::finding::FindingEvidence;

pub(super) use self::claims::{absent_claims, gone_claims, unconfirmed_claims};
use super::{EvaluatorSettings, evidence};
use crate::group::{Ambiguity, Group, GroupMember};
use crate::key::{ClusterName, RoleKey};
use crate::record::{Confidence, FindingRecord};

/// A condition that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FindingCondition {
    pub(super) kind: FindingKind,
    pub(super) confidence: Confidence,
    /// The names of the nodes that it is about, in order.
    pub(super) nodes: Vec<String>,
    pub(super) text: String,
    pub(super) evidence: Vec<String>,
    /// The members that the condition rests on, if a change of one of them that is on its way would end it.
    pub(super) basis: Vec<BasisMember>,
    /// The nodes that cause the condition, if they are not all of `nodes`: a silence of them covers the finding.
    pub(super) about: Option<Vec<String>>,
    /// The nodes whose absence causes the condition. If all of them are known to be away, the finding is a part of theirs.
    pub(super) absent: Vec<String>,
}

/// A member of a group with the role that a condition rests on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BasisMember {
    pub(super) role: RoleKey,
    pub(super) mod_revision: i64,
}

/// The members of a group. The last role of a node that is away counts too.
fn basis_of(group: &Group) -> Vec<BasisMember> {
    let basis = group.members.iter().filter_map(|member| {
        let (bucket, node) = (group.bucket.clone(), member.node.clone());
        let instance = member.record.instance.parse().ok()?;
        let role = RoleKey { bucket, node, instance };
        Some(BasisMember { role, mod_revision: member.mod_revision })
    });
    basis.collect()
}

/// The greatest sizes of the parts of a finding: together with the other fields, a record has at most
/// [`MAX_VALUE_BYTES`](crate::record::MAX_VALUE_BYTES), or readers would not use it.
const MAX_NODES: usize = 64;
const MAX_TEXT_BYTES: usize = 4 * 1024;
const MAX_EVIDENCE_BYTES: usize = 4 * 1024;

impl FindingCondition {
    /// Whether a record states the same.
    pub(super) fn is_of(&self, record: &FindingRecord) -> bool {
        record.text == self.text
            && record.confidence == self.confidence
            && record.nodes == self.nodes
    }

    /// The same with parts that fit into a record.
    pub(super) fn shortened(mut self) -> Self {
        self.nodes.truncate(MAX_NODES);
        self.about.iter_mut().for_each(|about| about.truncate(MAX_NODES));
        if self.text.len() > MAX_TEXT_BYTES {
            self.text.truncate(self.text.floor_char_boundary(MAX_TEXT_BYTES));
            self.text.push_str(" …");
        }
        let mut room = MAX_EVIDENCE_BYTES;
        // A character can need six bytes in JSON.
        let size =
            |fact: &String| serde_json::to_string(fact).map_or(usize::MAX, |json| json.len());
        self.evidence.retain(|fact| {
            let rest = room.checked_sub(size(fact));
            room = rest.unwrap_or(room);
            rest.is_some()
        });
        self
    }
}

/// The facts outside of a group that its conditions depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConditionContext<'a> {
    pub(super) settings: &'a EvaluatorSettings,
    /// Whether the domain has a node that could be a backup.
    pub(super) has_two_nodes: bool,
    /// Whether the claimants of the group have changed too often.
    pub(super) is_flapping: bool,
    /// The absent nodes whose addresses a live node has taken over since.
    pub(super) succeeded: &'a [ClusterName],
    /// The nodes that were members, and have no instance in the group any more.
    pub(super) left: &'a [ClusterName],
}

/// The maximum number of reasons in the text of an ambiguous group.
const MAX_REASONS: usize = 8;

/// The time between two adverts where the configuration does not set it.
const DEFAULT_ADVERT: Duration = Duration::from_secs(1);

/// The longest time between two adverts that VRRP allows (version 2, in seconds in one byte). A longer one is not valid, and
/// must not delay a finding.
const MAX_ADVERT: Duration = Duration::from_secs(255);

/// The longest time between two adverts in the group.
pub(super) fn advert_interval(group: &Group) -> Duration {
    let adverts = group.members.iter().filter_map(|member| member.record.advert_ms);
    adverts.max().map_or(DEFAULT_ADVERT, |advert| Duration::from_millis(advert).min(MAX_ADVERT))
}

/// All conditions that hold for a group.
pub(super) fn conditions(group: &Group, context: ConditionContext<'_>) -> Vec<FindingCondition> {
    if !group.ambiguities.is_empty() {
        return vec![ambiguous(group)];
    }
    let mut conditions = Vec::new();
    conditions.extend(claims::two_primaries(group));
    conditions.extend(claims::no_primary(group, context));
    conditions.extend(claims::too_few_backups(group, context));
    if context.is_flapping {
        conditions.push(claims::flapping(group));
    }
    conditions.extend(disagreement(group));
    conditions.extend(settings::different_configuration(group));
    conditions
}

fn ambiguous(group: &Group) -> FindingCondition {
    let reasons = group.ambiguities.iter().map(|ambiguity| match ambiguity {
        Ambiguity::NodeTwice { node } => format!("node {node} has two instances in the group"),
        Ambiguity::OtherGroup { id, address } => {
            format!("the group {id} on other nodes has the address {address} and the same VRID too")
        }
    });
    let reasons: Vec<String> = reasons.take(MAX_REASONS).collect();
    let text = format!(
        "it is not clear which instances belong to the group {}: {}",
        group.id,
        reasons.join("; ")
    );
    let nodes = names(group.members.iter());
    let kind = FindingKind::ClusterAmbiguousGroup;
    FindingCondition {
        kind,
        confidence: Confidence::Certain,
        nodes,
        text,
        evidence: evidence::of(group),
        basis: Vec::new(),
        about: None,
        absent: Vec::new(),
    }
}

fn disagreement(group: &Group) -> Option<FindingCondition> {
    // `report-missing` is published only if an old report differs: a monitor that has never reported is merely `info`.
    let is_disagreement = |name: &&String| {
        let kind = FindingKind::from_name(name);
        kind.is_some_and(|kind| kind.evidence() == FindingEvidence::OtherSource)
    };
    let differing: Vec<&GroupMember> = group
        .members
        .iter()
        .filter(|member| {
            member.is_live() && member.record.findings.iter().any(|name| is_disagreement(&name))
        })
        .collect();
    if differing.is_empty() {
        return None;
    }
    let facts = differing.iter().map(|member| {
        let names: Vec<&str> =
            member.record.findings.iter().filter(is_disagreement).map(String::as_str).collect();
        format!(
            "node {} is {} and has {}",
            member.node,
            member.record.role.word(),
            names.join(", ")
        )
    });
    let facts: Vec<String> = facts.collect();
    let text = format!(
        "the kernel and another source differ in the group {}: {}",
        group.id,
        facts.join("; ")
    );
    let nodes = names(differing.into_iter());
    let kind = FindingKind::ClusterDisagreement;
    Some(FindingCondition {
        kind,
        confidence: Confidence::Certain,
        nodes,
        text,
        evidence: evidence::of(group),
        basis: Vec::new(),
        about: None,
        absent: Vec::new(),
    })
}

/// The names of the nodes of members, each once.
fn names<'a>(members: impl Iterator<Item = &'a GroupMember>) -> Vec<String> {
    let mut names: Vec<String> = members.map(|member| member.node.to_string()).collect();
    names.dedup();
    names
}

/// `a`, `a and b`, or `a, b and c`.
pub(super) fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

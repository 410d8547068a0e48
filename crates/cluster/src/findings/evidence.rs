// SPDX-License-Identifier: Apache-2.0
//! The facts that a finding about a group rests on, a sentence each.

use vipwatch_api::ClusterNodeState;

use crate::group::{Group, GroupMember};
use crate::record::ReceivedAdverts;

/// The maximum number of sentences. A record has at most 16 KiB.
const MAX_FACTS: usize = 32;

pub(super) fn of(group: &Group) -> Vec<String> {
    group.members.iter().flat_map(of_member).take(MAX_FACTS).collect()
}

fn of_member(member: &GroupMember) -> Vec<String> {
    let GroupMember { node, record, mod_revision, .. } = member;
    let (role, instance) = (record.role.word(), &record.instance);
    let mut facts = vec![match member.state {
        ClusterNodeState::Live => {
            format!(
                "node {node} is live and published {role} for {instance} at revision {mod_revision}"
            )
        }
        state => {
            format!("node {node} is {}; its last known role of {instance} is {role}", state.word())
        }
    }];
    if !member.is_live() {
        return facts;
    }
    if let Some(seen) = member.seen.filter(|_| member.has_claim()) {
        facts.push(format!("node {node} confirmed its roles after revision {seen}"));
    }
    let adverts = match record.adverts {
        ReceivedAdverts::Other => Some("adverts"),
        ReceivedAdverts::None => Some("no adverts"),
        ReceivedAdverts::Unknown => None,
    };
    facts.extend(adverts.map(|adverts| format!("node {node} receives {adverts} of another node")));
    if !record.findings.is_empty() {
        facts.push(format!("node {node} itself has found: {}", record.findings.join(", ")));
    }
    facts
}

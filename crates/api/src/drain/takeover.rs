// SPDX-License-Identifier: Apache-2.0
//! Which node would take over an instance, and whether it is certain that it can.
//!
//! ```text
//!   live backups that can take over ── highest priority, then highest source ──▶ the next one, or several with equal priority
//!   the next one: lacks an address                ──▶ no backup
//!                 keepalived runs, role confirmed ──▶ ready
//!                 one of them is not known        ──▶ not certain
//!   none                                          ──▶ no backup
//! ```
//!
//! A `backup` has a working link: an instance whose link is down is in `fault`. One that keepalived holds in fault because of a
//! track script looks like a `backup` ([`unseen_scripts`]).

use std::net::IpAddr;

use vipwatch_core::finding::DrainEffect;

use super::DrainReason;
use super::rules::has_effect;
use crate::{ClusterGroupItem, ClusterMemberItem, ClusterNodeState, RoleKind};

/// The end of a takeover, as far as it is known before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Takeover<'g> {
    /// One of these takes over: several have the same priority.
    Next(Vec<&'g ClusterMemberItem>),
    /// A backup exists, and it is not known whether it can take over, for this reason.
    Uncertain(String),
    /// No live node can take over, for this reason.
    Nobody(String),
}

/// Who takes over an instance of `group` from the node of `own`.
pub(super) fn takeover<'g>(group: &'g ClusterGroupItem, own: &ClusterMemberItem) -> Takeover<'g> {
    let others = || group.members.iter().filter(|member| member.node != own.node);
    let backups = || others().filter(|member| member.role == RoleKind::Backup);
    let live: Vec<&ClusterMemberItem> = backups().filter(|member| is_live(member)).collect();
    let able: Vec<&ClusterMemberItem> =
        live.iter().copied().filter(|member| obstacle(member).is_none()).collect();
    if able.is_empty() {
        let absent: Vec<&str> = backups()
            .filter(|member| !is_live(member))
            .map(|member| member.node.as_str())
            .collect();
        let unable = live.iter().filter_map(|member| obstacle(member));
        let unable: Vec<String> = unable.collect();
        return if !unable.is_empty() {
            Takeover::Nobody(format!("no other live node can take over: {}", unable.join("; ")))
        } else if absent.is_empty() {
            Takeover::Nobody(
                "no other live node is backup: the addresses would be on no node".to_owned(),
            )
        } else {
            let absent = absent.join(", ");
            Takeover::Uncertain(format!(
                "no other live node is backup, and vipwatch does not run on {absent}"
            ))
        };
    }
    let next = next_of(able);
    let lost = next.iter().find_map(|member| Some((member, lost_addresses(own, member)?)));
    if let Some((member, lost)) = lost {
        let text = format!("{} would take over without {}", member.node, lost.join(", "));
        return Takeover::Nobody(text);
    }
    match next.iter().find_map(|member| doubt(member)) {
        Some(doubt) => Takeover::Uncertain(doubt),
        None => Takeover::Next(next),
    }
}

/// The members with the highest priority, and among them the one with the highest source if all are known. An unknown priority
/// may be the highest.
fn next_of(able: Vec<&ClusterMemberItem>) -> Vec<&ClusterMemberItem> {
    if able.iter().any(|member| member.priority.is_none()) {
        return able;
    }
    let highest = able.iter().map(|member| member.priority).max().flatten();
    let next: Vec<_> = able.into_iter().filter(|member| member.priority == highest).collect();
    let sources: Option<Vec<IpAddr>> =
        next.iter().map(|member| member.source.as_ref()?.parse().ok()).collect();
    let last = sources
        .and_then(|sources| sources.into_iter().enumerate().max_by_key(|(_, source)| *source));
    match last {
        Some((place, _)) => vec![next[place]],
        None => next,
    }
}

/// Why a live backup cannot take over; `None` if nothing says so.
fn obstacle(member: &ClusterMemberItem) -> Option<String> {
    let names = member.findings.iter().filter(|name| has_effect(name, DrainEffect::CannotTakeOver));
    let names: Vec<&str> = names.map(String::as_str).collect();
    if !names.is_empty() {
        return Some(format!("{} has {}", member.node, names.join(", ")));
    }
    (member.keepalived == Some(false))
        .then(|| format!("keepalived does not work on {}", member.node))
}

/// The addresses of `own` that another node does not have; `None` if it has all.
pub(super) fn lost_addresses<'m>(
    own: &ClusterMemberItem,
    other: &'m ClusterMemberItem,
) -> Option<Vec<&'m str>> {
    let lost = other.missing.iter().filter(|address| !own.missing.contains(address));
    let lost: Vec<&str> = lost.map(String::as_str).collect();
    (!lost.is_empty()).then_some(lost)
}

/// What no record says about the nodes that would take over.
pub(super) fn unseen_scripts() -> DrainReason {
    let text = "whether a track script has failed on another node: keepalived is in fault then, and looks like a backup";
    DrainReason::new("track-scripts", None, text)
}

/// What is not known about a backup that could take over.
fn doubt(member: &ClusterMemberItem) -> Option<String> {
    let node = &member.node;
    if !member.confirmed {
        return Some(format!("{node} has not confirmed that it is backup"));
    }
    member
        .keepalived
        .is_none()
        .then(|| format!("it is not known whether keepalived runs on {node}"))
}

pub(super) fn is_live(member: &ClusterMemberItem) -> bool {
    member.node_state == ClusterNodeState::Live
}

pub(super) fn holds(role: RoleKind) -> bool {
    matches!(role, RoleKind::Primary | RoleKind::Partial)
}

// SPDX-License-Identifier: Apache-2.0
//! What etcd says about the cluster at each moment, read without the product's view and evaluator: which conditions hold, and
//! which findings are open. The properties compare both.

mod judge;
mod parts;

use std::collections::BTreeMap;

use vipwatch_api::RoleKind;
use vipwatch_core::FindingKind;

pub(super) use self::judge::Disturbance;
use self::parts::{FindingPart, MemberPart, NodePart, RolePart, node_number, parse, role_numbers};
use super::network::{is_deletion, short_key};
use super::store::EtcdStore;
use super::{GROUPS, NODES, PREFIX};
use crate::etcd::messages::{KeyValue, WatchEvent, WatchEventType};
use crate::record::MemberState;

/// What a condition is about: the number of a group or of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Subject {
    pub(super) kind: FindingKind,
    pub(super) number: usize,
}

/// The time in which a condition holds, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) from: u64,
    /// `None` while it holds.
    pub(super) to: Option<u64>,
}

/// A node as etcd has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct NodeContent {
    /// What the running process has confirmed last; `None` without a process.
    seen: Option<i64>,
    /// `None` without a membership.
    is_running: Option<bool>,
}

/// A role as etcd has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PublishedRole {
    role: RoleKind,
    revision: i64,
}

impl PublishedRole {
    fn is_claim(self) -> bool {
        matches!(self.role, RoleKind::Primary | RoleKind::Partial)
    }
}

/// A finding that is open in etcd.
#[derive(Debug, Clone, Copy)]
struct OpenRecord {
    subject: Subject,
}

/// The state of etcd, and its past.
#[derive(Debug, Default)]
pub(super) struct Content {
    nodes: [NodeContent; NODES],
    roles: [[Option<PublishedRole>; NODES]; GROUPS],
    /// The times when the claimants of a group changed.
    claim_changes: [Vec<u64>; GROUPS],
    intervals: BTreeMap<Subject, Vec<Interval>>,
    /// When two running nodes claim each group, confirmed or not.
    claims: [Vec<Interval>; GROUPS],
    /// When each node has no process, stopped or not.
    absences: [Vec<Interval>; NODES],
    open: BTreeMap<String, OpenRecord>,
    /// The last end of a finding since the data was lost.
    last_closed: BTreeMap<Subject, u64>,
    disturbances: Vec<Disturbance>,
    /// The times in which a node was stopped in an orderly way and started again soon.
    restarts: Vec<Interval>,
    pub(super) failures: Vec<String>,
    /// The number of findings that were opened.
    pub(super) opened: usize,
    is_changed: bool,
}

impl Content {
    /// Applies a change; returns a line for the trace if it is worth one.
    pub(super) fn apply(&mut self, event: &WatchEvent, at: u64) -> Option<String> {
        let key = short_key(event)?;
        let value = event.kv.as_ref().filter(|_| event.r#type() == WatchEventType::Put);
        let (kind, rest) = key.split_once('/').unwrap_or((key, ""));
        match kind {
            "node" => {
                let node = &mut self.nodes[node_number(rest)?];
                let seen = value.and_then(parse::<NodePart>).map(|node| node.seen);
                let before = std::mem::replace(&mut node.seen, seen);
                self.is_changed = true;
                (before.is_some() != seen.is_some()).then(|| described(event, key, ""))
            }
            "member" => {
                let state = value.and_then(parse::<MemberPart>).map(|member| member.state);
                let is_running = state.map(|state| state == MemberState::Running);
                self.nodes[node_number(rest)?].is_running = is_running;
                self.is_changed = true;
                Some(described(event, key, &format!("{state:?}")))
            }
            "role" => {
                let (group, node) = role_numbers(rest)?;
                let role = value.and_then(parse::<RolePart>).map(|part| part.role);
                let revision = value.map_or(0, |value| value.mod_revision);
                self.set_role(group, node, role.map(|role| PublishedRole { role, revision }), at);
                Some(described(event, key, role.map_or("", RoleKind::word)))
            }
            "finding" => {
                self.finding(rest, value, at);
                Some(described(event, key, ""))
            }
            "closed" => None,
            _ => Some(described(event, key, "")),
        }
    }

    fn set_role(&mut self, group: usize, node: usize, role: Option<PublishedRole>, at: u64) {
        let before = self.claimants(group);
        self.roles[group][node] = role;
        if before != self.claimants(group) {
            self.claim_changes[group].push(at);
        }
        self.is_changed = true;
    }

    fn claimants(&self, group: usize) -> [bool; NODES] {
        self.roles[group].map(|role| role.is_some_and(PublishedRole::is_claim))
    }

    fn finding(&mut self, id: &str, value: Option<&KeyValue>, at: u64) {
        match value {
            None => {
                if let Some(record) = self.open.remove(id) {
                    self.last_closed.insert(record.subject, at);
                }
            }
            Some(value) if !self.open.contains_key(id) => {
                let Some(subject) = parse::<FindingPart>(value).and_then(|part| part.subject())
                else {
                    self.failures.push(format!("{at}: a finding {id} about nothing known"));
                    return;
                };
                self.opened += 1;
                self.judge_opening(subject, id, at);
                self.open.insert(id.to_owned(), OpenRecord { subject });
            }
            Some(_) => {}
        }
    }

    /// Other data replaces that of etcd.
    pub(super) fn replace(&mut self, store: &EtcdStore, at: u64) {
        self.nodes = Default::default();
        self.roles = Default::default();
        self.open.clear();
        self.last_closed.clear();
        for value in store.all() {
            let Ok(key) = std::str::from_utf8(&value.key) else { continue };
            let Some((kind, rest)) = key.strip_prefix(PREFIX).and_then(|key| key.split_once('/'))
            else {
                continue;
            };
            if kind == "finding" {
                if let Some(subject) = parse::<FindingPart>(value).and_then(|part| part.subject()) {
                    self.open.insert(rest.to_owned(), OpenRecord { subject });
                }
                continue;
            }
            let event = WatchEvent { r#type: WatchEventType::Put as i32, kv: Some(value.clone()) };
            self.apply(&event, at);
        }
        self.is_changed = true;
        self.evaluate(at);
    }

    /// Notes which conditions hold from now on.
    pub(super) fn evaluate(&mut self, at: u64) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        for number in 0..NODES {
            let node = self.nodes[number];
            let is_lost = node.seen.is_none() && node.is_running == Some(true);
            self.note(FindingKind::ClusterNodeLost, number, is_lost, at);
            note(&mut self.absences[number], node.seen.is_none(), at);
        }
        let node_count = self.nodes.iter().filter(|node| **node != NodeContent::default()).count();
        for group in 0..GROUPS {
            let roles = self.roles[group];
            let live = |node: &usize| roles[*node].is_some() && self.nodes[*node].seen.is_some();
            let has = |node: &usize, role| roles[*node].is_some_and(|it| it.role == role);
            let claims = (0..NODES)
                .filter(live)
                .filter(|node| roles[*node].is_some_and(PublishedRole::is_claim))
                .count();
            let backups =
                (0..NODES).filter(live).filter(|node| has(node, RoleKind::Backup)).count();
            let members = roles.iter().flatten().count();
            let is_certain = |node: &usize| {
                live(node) && (has(node, RoleKind::Backup) || has(node, RoleKind::Fault))
            };
            // A node that was stopped without a claim takes no address.
            let was_stopped = |node: &usize| {
                self.nodes[*node].seen.is_none()
                    && self.nodes[*node].is_running == Some(false)
                    && !roles[*node].is_some_and(PublishedRole::is_claim)
            };
            let certain = (0..NODES).filter(is_certain).count();
            let may_claim =
                |node: &usize| roles[*node].is_some() && !is_certain(node) && !was_stopped(node);
            let has_none = members >= 2 && certain >= 2 && !(0..NODES).any(|node| may_claim(&node));
            // An open finding lasts until a running node claims the addresses.
            let subject = Subject { kind: FindingKind::ClusterNoPrimary, number: group };
            let is_open = self.open.values().any(|open| open.subject == subject);
            let has_none = has_none || is_open && claims == 0 && (0..NODES).any(|node| live(&node));
            let is_lonely = claims == 1 && backups == 0 && node_count >= 2;
            // Two claims that were confirmed last until one of them ends.
            let was_confirmed = self.holds(FindingKind::ClusterTwoPrimaries, group);
            let are_two = claims >= 2 && (was_confirmed || self.are_confirmed(group));
            self.note(FindingKind::ClusterTwoPrimaries, group, are_two, at);
            note(&mut self.claims[group], claims >= 2, at);
            self.note(FindingKind::ClusterNoPrimary, group, has_none, at);
            self.note(FindingKind::ClusterTooFewBackups, group, is_lonely, at);
        }
    }

    /// Whether two running nodes claim a group, and each has confirmed its claim since it could know both.
    fn are_confirmed(&self, group: usize) -> bool {
        let claim = |node: usize| {
            let role = self.roles[group][node].filter(|role| role.is_claim())?;
            Some((self.nodes[node].seen?, role.revision))
        };
        let claims: Vec<(i64, i64)> = (0..NODES).filter_map(claim).collect();
        let are_both_confirmed = |one: (i64, i64), other: (i64, i64)| {
            let newest = one.1.max(other.1);
            one.0 >= newest && other.0 >= newest
        };
        let rest = |index: usize| claims[index + 1..].iter();
        let mut firsts = claims.iter().enumerate();
        firsts.any(|(index, one)| rest(index).any(|other| are_both_confirmed(*one, *other)))
    }

    fn holds(&self, kind: FindingKind, number: usize) -> bool {
        let intervals = self.intervals.get(&Subject { kind, number });
        intervals.and_then(|all| all.last()).is_some_and(|last| last.to.is_none())
    }

    fn note(&mut self, kind: FindingKind, number: usize, holds: bool, at: u64) {
        note(self.intervals.entry(Subject { kind, number }).or_default(), holds, at);
    }
}

fn note(intervals: &mut Vec<Interval>, holds: bool, at: u64) {
    match intervals.last_mut().filter(|last| last.to.is_none()) {
        Some(last) if !holds => last.to = Some(at),
        None if holds => intervals.push(Interval { from: at, to: None }),
        _ => {}
    }
}

fn described(event: &WatchEvent, key: &str, detail: &str) -> String {
    if is_deletion(event) { format!("delete {key}") } else { format!("put {key} {detail}") }
}

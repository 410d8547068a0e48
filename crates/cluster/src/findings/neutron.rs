// SPDX-License-Identifier: Apache-2.0
//! Neutron's answers about routers, and since when they and the view are unchanged.
//!
//! ```text
//!   view or answer changes        request        answer
//!   ────────┬────────────────────────┬──────────────┬────▶
//!           └── at least `settle` ───┘              └ the difference is a finding
//! ```
//!
//! An agent reports a new state some seconds after its kernel, so a difference counts only if Neutron was asked after both
//! sides had been unchanged for the settle time. An answer that is older than a failover proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use vipwatch_core::Moment;

use super::condition::{FindingCondition, listed};
use super::evidence;
use crate::group::Group;
use crate::key::Bucket;
use crate::neutron::{NeutronAnswer, NeutronComparison, compare};
use crate::record::Confidence;
use vipwatch_core::FindingKind;

/// The maximum number of Neutron's hosts in the evidence.
const MAX_HOSTS: usize = 16;

/// The last answer of Neutron about each router.
// BOUND: one for each router of the view.
#[derive(Debug, Default)]
pub(super) struct NeutronAnswers {
    routers: BTreeMap<Bucket, RouterAnswer>,
    /// The routers with an answer since the last evaluation.
    answered: BTreeSet<Bucket>,
}

#[derive(Debug)]
struct RouterAnswer {
    answer: NeutronAnswer,
    /// When Neutron was asked.
    requested: Moment,
    /// `None` before the first evaluation, and after the view was stale.
    unchanged: Option<UnchangedSides>,
}

/// Both sides at the last evaluation.
#[derive(Debug, Clone, Copy)]
struct UnchangedSides {
    /// A number of the primaries of the view and of the active hosts of Neutron.
    sides: u64,
    since: Moment,
}

/// The result of the comparison of one router.
#[derive(Debug)]
pub(super) struct RouterDifference {
    /// `None` if there is no difference.
    pub(super) condition: Option<FindingCondition>,
    /// How long both sides had been unchanged when Neutron was asked.
    pub(super) age: Duration,
}

impl NeutronAnswers {
    pub(super) fn set(&mut self, router: Bucket, answer: NeutronAnswer, requested: Moment) {
        let unchanged = self.routers.get(&router).and_then(|before| before.unchanged);
        self.answered.insert(router.clone());
        self.routers.insert(router, RouterAnswer { answer, requested, unchanged });
    }

    /// Removes and returns the routers with a new answer.
    pub(super) fn take_answered(&mut self) -> BTreeSet<Bucket> {
        std::mem::take(&mut self.answered)
    }

    /// The router is no longer in the view.
    pub(super) fn remove(&mut self, router: &Bucket) {
        self.routers.remove(router);
    }

    /// The view was stale: it is not known whether it changed meanwhile.
    pub(super) fn forget_pending(&mut self) {
        for router in self.routers.values_mut() {
            router.unchanged = None;
        }
    }

    /// Compares a group with the last answer; `None` if there is none.
    pub(super) fn compare(&mut self, group: &Group, now: Moment) -> Option<RouterDifference> {
        let router = self.routers.get_mut(&group.bucket)?;
        let sides = number_of(group, &router.answer);
        let known = router.unchanged.filter(|known| known.sides == sides);
        let unchanged =
            *router.unchanged.insert(known.unwrap_or(UnchangedSides { sides, since: now }));
        let age = router.requested.since(unchanged.since);
        let is_different = compare(group, &router.answer) == NeutronComparison::Different;
        let condition = is_different.then(|| condition(group, &router.answer));
        Some(RouterDifference { condition, age })
    }
}

fn number_of(group: &Group, answer: &NeutronAnswer) -> u64 {
    let mut hasher = DefaultHasher::new();
    group.primaries().hash(&mut hasher);
    answer.active().hash(&mut hasher);
    hasher.finish()
}

fn condition(group: &Group, answer: &NeutronAnswer) -> FindingCondition {
    let primaries = group.primaries();
    let names =
        |names: &mut dyn Iterator<Item = &str>| names.map(str::to_owned).collect::<Vec<_>>();
    let primary = names(&mut primaries.iter().map(|node| node.as_str()));
    let active = names(&mut answer.active().into_iter());
    let neutron = match active.as_slice() {
        [] => "Neutron has no active host".to_owned(),
        [host] => format!("Neutron's active host is {host}"),
        several => format!("Neutron has the active hosts {}", listed(several)),
    };
    let text = format!(
        "node {} holds the addresses of the group {}, and {neutron}",
        listed(&primary),
        group.id
    );
    let members = group.members.iter().map(|member| member.node.to_string());
    let mut nodes: Vec<String> =
        members.filter(|node| primary.contains(node) || active.contains(node)).collect();
    nodes.dedup();
    // Neutron still has a host as active that is away.
    let absent = group.members.iter().filter(|it| !it.is_live());
    let absent = absent.map(|it| it.node.to_string()).filter(|node| active.contains(node));
    let absent = absent.collect();
    let hosts = answer.hosts().iter().take(MAX_HOSTS);
    let mut evidence: Vec<String> =
        hosts.map(|host| format!("Neutron has {} as {}", host.host, host.state)).collect();
    evidence.extend(evidence::of(group));
    let (kind, confidence) = (FindingKind::ClusterNeutronDiffers, Confidence::Certain);
    FindingCondition {
        kind,
        confidence,
        nodes,
        text,
        evidence,
        basis: Vec::new(),
        about: None,
        absent,
    }
}

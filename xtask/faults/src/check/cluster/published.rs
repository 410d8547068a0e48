// SPDX-License-Identifier: Apache-2.0
//! Which states of a node can stand in etcd at a time. A node publishes a little after the kernel, and a lease ends a little
//! after the node: meanwhile two states are possible, and the checker requires neither.

use std::collections::BTreeSet;

use super::facts::{KnownPeriod, RecordedFacts};
use super::groups::LabGroup;
use crate::check::periods::{ActPeriod, Holds, during};
use crate::check::verdict::Strictness;
use crate::moment::{Micros, SECOND};
use crate::setup::HOSTS;

/// The number of the simulated node.
pub const SIMULATED_NODE: usize = HOSTS;

/// Whether a node is alive, as etcd shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Presence {
    Absent,
    Live,
    Lost,
    Stopped,
}

impl Presence {
    /// Whether this is its word in the documents of the product.
    pub fn is_named(self, word: &str) -> bool {
        format!("{self:?}").to_lowercase() == word
    }
}

/// One state of a node, out of the possible ones, for one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeState {
    pub presence: Presence,
    pub role: &'static str,
    /// The published configuration has one more address.
    pub is_edited: bool,
    /// Whether the node publishes that it receives no adverts.
    pub silence: Holds,
    /// Whether the node publishes that its state file differs from the kernel.
    pub difference: Holds,
    /// Whether the node publishes a finding that says that a backup cannot take over.
    pub obstacle: Holds,
}

/// Times within which a node publishes a fact.
#[derive(Debug, Clone, Copy)]
pub struct PublishTimes {
    /// A changed role.
    pub role: Micros,
    /// A changed configuration.
    pub configuration: Micros,
    /// Everything, after etcd can be reached again.
    pub reconnect: Micros,
}

impl PublishTimes {
    /// The times on a machine of known speed.
    pub const EXACT: Self = Self { role: SECOND, configuration: 3 * SECOND, reconnect: 5 * SECOND };

    pub fn of(strictness: Strictness) -> Self {
        let Self { role, configuration, reconnect } = Self::EXACT;
        match strictness {
            Strictness::Deadlines => Self::EXACT,
            Strictness::Presence => {
                Self { role: role * 4, configuration: configuration * 4, reconnect: reconnect * 4 }
            }
        }
    }
}

/// The facts with the times of publication.
pub struct Published<'a> {
    pub facts: &'a RecordedFacts,
    pub times: PublishTimes,
}

impl Published<'_> {
    /// The possible states of a node at a time.
    pub fn states(&self, node: usize, group: LabGroup, at: Micros) -> Vec<NodeState> {
        let is_member = self.membership(node, group, at);
        let members = is_member.can_be(true).then(|| self.node_presence(node, at));
        let mut presences = members.unwrap_or_default();
        presences.extend(is_member.can_be(false).then_some(Presence::Absent));
        let mut obstacle = Holds::No;
        let (roles, edit, silence, difference) = match group.instance() {
            _ if node == SIMULATED_NODE => {
                (self.simulated_roles(at), Holds::No, Holds::No, Holds::No)
            }
            Some(instance) => {
                let host = &self.facts.hosts[node];
                obstacle = self.known(node, host.obstacles.get(instance), at);
                let silence = self.known(node, host.silences.get(instance), at);
                let edit = self.edit(node, instance, at);
                (self.roles(node, instance, at), edit, silence, Holds::No)
            }
            None => {
                let since =
                    self.unpublished_since(node, at) - self.times.role - self.facts.times.audit;
                let difference = during(&self.facts.hosts[node].differs, since, at);
                (self.router_roles(node, at), Holds::No, self.router_silence(node, at), difference)
            }
        };
        let mut states = Vec::new();
        for &presence in &presences {
            for &role in &roles {
                states.extend(edit.values().iter().map(|&is_edited| NodeState {
                    presence,
                    role,
                    is_edited,
                    silence,
                    difference,
                    obstacle,
                }));
            }
        }
        states
    }

    /// The presence of a node, without regard to groups.
    pub fn node_presence(&self, node: usize, at: Micros) -> BTreeSet<Presence> {
        if node != SIMULATED_NODE {
            return self.presence(node, at);
        }
        let life = self.simulated_life(at);
        life.map_or(BTreeSet::from([Presence::Absent]), |life| self.simulated_presence(life, at))
    }

    /// Whether the node publishes a fact with these periods.
    fn known(&self, node: usize, periods: Option<&Vec<KnownPeriod>>, at: Micros) -> Holds {
        // A node that has just connected has not published everything.
        if !self.has_published(node, at) {
            return Holds::Maybe;
        }
        let holds = periods.into_iter().flatten().map(|period| period.holds(at));
        holds.max().unwrap_or(Holds::No)
    }

    /// All times at which a possible state may change: the recorded moments, and the times within which each of them has
    /// its effects. More times do no harm.
    pub fn changes(&self) -> BTreeSet<Micros> {
        let PublishTimes { role, configuration, reconnect } = self.times;
        let (facts, times) = (self.facts, self.facts.times);
        let (start, end) = (facts.run.start, facts.run.end);
        let mut moments = vec![start, end];
        for (host, record) in facts.hosts.iter().zip(&facts.run.nodes) {
            let breaks = host.breaks.iter().map(|broken| &broken.period);
            let periods = [&host.grouped, &host.routers, &host.released, &host.differs];
            let periods = breaks.chain(periods.into_iter().flatten());
            moments.extend(
                periods.flat_map(|period| [period.from, period.done, period.heal, period.to]),
            );
            moments.extend(record.timeline.roles.iter().flatten().map(|span| span.start));
            moments.extend(host.edits.iter().flat_map(|(from, to)| [*from, *to]));
            let known = host.silences.iter().chain(&host.obstacles).flatten();
            moments.extend(known.flat_map(|period| {
                [period.possible, period.certain.min(period.end), period.end, period.gone.min(end)]
            }));
        }
        moments.extend(self.etcd_breaks().flat_map(|(from, to)| [from, to]));
        for life in &facts.simulated {
            moments.extend([life.begin, life.ready, life.stop, life.gone]);
            moments.extend(life.silent);
        }
        let (audit, router) = (role + times.audit, self.router_known());
        let leases = [times.lease - times.heartbeat - SECOND, times.lease + SECOND];
        let delays =
            [0, SECOND, role, configuration, reconnect, audit, router, leases[0], leases[1]];
        let changes = moments.iter().flat_map(|at| delays.map(|delay| at + delay));
        changes.filter(|at| (start..=end).contains(at)).collect()
    }

    /// The periods in which etcd may not answer, and the losses of members: a node may have used the lost one.
    pub fn etcd_breaks(&self) -> impl Iterator<Item = (Micros, Micros)> {
        let unstable = self.facts.unstable.iter().map(|period| (period.from, period.to));
        unstable.chain(self.facts.lost_members.iter().copied())
    }

    /// The earliest lease end of a node that stopped renewing it.
    fn first_expiry(&self, from: Micros) -> Micros {
        from + self.facts.times.lease - self.facts.times.heartbeat - SECOND
    }

    fn presence(&self, node: usize, at: Micros) -> BTreeSet<Presence> {
        let facts = self.facts;
        if at < facts.run.start + self.times.reconnect {
            return BTreeSet::from([Presence::Absent, Presence::Live]);
        }
        let mut breaks = facts.hosts[node].breaks.iter().rev();
        let Some(broken) = breaks.find(|broken| broken.period.from <= at) else {
            return BTreeSet::from([Presence::Live]);
        };
        let ActPeriod { from, done, heal, to } = broken.period;
        // A node is live for certain a while after its return, unless etcd could not answer then.
        if at >= self.after_unstable(to) + self.times.reconnect {
            return BTreeSet::from([Presence::Live]);
        }
        let mut possible = match broken.is_orderly {
            true if at < done + SECOND => BTreeSet::from([Presence::Live, Presence::Stopped]),
            true => BTreeSet::from([Presence::Stopped]),
            false => self.expiring(from, at.min(to)),
        };
        possible.extend((at >= heal).then_some(Presence::Live));
        possible
    }

    /// The presence of a node that renews no lease since `from`.
    pub(super) fn expiring(&self, from: Micros, at: Micros) -> BTreeSet<Presence> {
        let is_live = at < self.facts.lease_end(from);
        let live = is_live.then_some(Presence::Live);
        let lost = (at >= self.first_expiry(from) || !is_live).then_some(Presence::Lost);
        live.into_iter().chain(lost).collect()
    }

    /// The end of the unstable period at a time; the time itself if there is none.
    fn after_unstable(&self, at: Micros) -> Micros {
        let mut periods = self.facts.unstable.iter();
        periods.find(|period| period.from <= at && at < period.to).map_or(at, |period| period.to)
    }

    /// Whether a node has published everything.
    pub fn has_published(&self, node: usize, at: Micros) -> bool {
        self.unpublished_since(node, at) == at
    }

    /// The beginning of the period in which a node may not have published; `at` if it has published everything.
    pub fn unpublished_since(&self, node: usize, at: Micros) -> Micros {
        let breaks = self.facts.hosts[node].breaks.iter();
        let own = breaks.map(|broken| (broken.period.from, broken.period.to));
        let periods = own.chain(self.etcd_breaks());
        let periods: Vec<(Micros, Micros)> = periods
            .map(|(from, to)| (from, self.after_unstable(to) + self.times.reconnect))
            .collect();
        // A period may begin before the one before has ended.
        let mut since = at;
        loop {
            let earlier = periods.iter().filter(|(from, to)| *from < since && since <= *to);
            let Some(earlier) = earlier.map(|(from, _)| *from).min() else { return since };
            since = earlier;
        }
    }

    fn roles(&self, node: usize, instance: usize, at: Micros) -> BTreeSet<&'static str> {
        let since = self.unpublished_since(node, at) - self.times.role;
        let spans = self.facts.run.nodes[node].timeline.roles[instance].iter();
        let spans = spans.filter(|span| span.overlaps(since, at + 1));
        let mut roles: BTreeSet<&'static str> = spans.map(|span| span.value).collect();
        // The node and keepalived read a changed file at different times.
        let is_held = roles.contains("primary") || roles.contains("partial");
        if is_held && self.edit(node, instance, at) == Holds::Maybe {
            roles.extend(["primary", "partial"]);
        }
        roles
    }

    fn edit(&self, node: usize, instance: usize, at: Micros) -> Holds {
        if instance != 0 {
            return Holds::No;
        }
        let since = self.unpublished_since(node, at) - self.times.configuration;
        let edits = &self.facts.hosts[node].edits;
        let is_edited = |at: Micros| edits.iter().any(|(from, to)| *from <= at && at < *to);
        let is_between = edits.iter().any(|(from, to)| since < *from && *to <= at);
        Holds::of([is_edited(since), is_edited(at)].into_iter().chain(is_between.then_some(true)))
    }
}

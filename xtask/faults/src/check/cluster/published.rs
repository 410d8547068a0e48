// SPDX-License-Identifier: Apache-2.0
//! Which states of a node can stand in etcd at a time. A node publishes a little after the kernel, and a lease ends a little
//! after the node: meanwhile two states are possible, and the checker requires neither.

use std::collections::BTreeSet;

use super::conditions::Holds;
use super::facts::periods::during;
use super::facts::{ActPeriod, NodeBreak, RecordedFacts, SILENCE_PUBLISHED, SimulatedLife};
use super::groups::LabGroup;
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
    /// The word in the documents of the product.
    pub fn word(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Live => "live",
            Self::Lost => "lost",
            Self::Stopped => "stopped",
        }
    }
}

/// The possible states of one node, for one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PossibleStates {
    pub presence: BTreeSet<Presence>,
    pub roles: BTreeSet<&'static str>,
    /// Whether the published configuration has one more address.
    pub is_edited: BTreeSet<bool>,
    /// Whether the node publishes that it receives no adverts.
    pub silence: Holds,
    /// Whether the node publishes that its state file differs from the kernel.
    pub difference: Holds,
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
    pub fn states(&self, node: usize, group: LabGroup, at: Micros) -> PossibleStates {
        if node == SIMULATED_NODE {
            return self.simulated(group, at);
        }
        let is_member = self.membership(node, group, at);
        let mut presence =
            if is_member.contains(&true) { self.presence(node, at) } else { BTreeSet::new() };
        if is_member.contains(&false) {
            presence.insert(Presence::Absent);
        }
        let Some(instance) = group.instance() else { return self.router(node, presence, at) };
        PossibleStates {
            presence,
            roles: self.roles(node, instance, at),
            is_edited: self.edited(node, instance, at),
            silence: self.silence(node, instance, at),
            difference: Holds::No,
        }
    }

    /// The states of the router of a host. Its link has no adverts.
    fn router(&self, node: usize, presence: BTreeSet<Presence>, at: Micros) -> PossibleStates {
        let host = &self.facts.hosts[node];
        let since = self.unpublished_since(node, at) - self.times.role;
        let released = during(&host.released, since, at);
        let role = |is_released: &bool| if *is_released { "backup" } else { "primary" };
        let mut roles: BTreeSet<&'static str> = released.iter().map(role).collect();
        // The namespace is removed before the files: meanwhile the router cannot become primary.
        let is_removed =
            |router: &ActPeriod| router.heal <= at && at < router.to + self.times.configuration;
        roles.extend(host.routers.iter().any(is_removed).then_some("fault"));
        let differs = during(&host.differs, since - self.facts.times.audit, at);
        PossibleStates {
            presence,
            roles,
            is_edited: BTreeSet::from([false]),
            silence: self.router_silence(node, at),
            difference: Holds::of_all(differs.into_iter()),
        }
    }

    /// Whether the node publishes that its router receives no adverts: there are none from its creation on.
    fn router_silence(&self, node: usize, at: Micros) -> Holds {
        let is_silent = |router: &ActPeriod| router.done + self.router_known() <= at;
        let has_published = self.unpublished_since(node, at) == at;
        let mut routers = self.facts.hosts[node].routers.iter();
        let is_certain =
            has_published && routers.any(|router| is_silent(router) && at < router.heal);
        if is_certain { Holds::Yes } else { Holds::Maybe }
    }

    /// The time after which a node has published that a new router receives no adverts.
    fn router_known(&self) -> Micros {
        self.times.configuration + 4 * self.facts.times.advert + SILENCE_PUBLISHED
    }

    /// The presence of a node, without regard to groups.
    pub fn node_presence(&self, node: usize, at: Micros) -> BTreeSet<Presence> {
        if node == SIMULATED_NODE {
            return self.simulated(LabGroup::Instance(0), at).presence;
        }
        self.presence(node, at)
    }

    /// Whether the node publishes that it receives no adverts of an instance.
    fn silence(&self, node: usize, instance: usize, at: Micros) -> Holds {
        let periods = self.facts.hosts[node].silences.get(instance).into_iter().flatten();
        let mut holds = Holds::No;
        for period in periods.filter(|period| period.possible <= at && at < period.gone) {
            let is_certain = period.certain <= at && at < period.end;
            holds = holds.max(if is_certain { Holds::Yes } else { Holds::Maybe });
        }
        // A node that has just connected has not published everything.
        let has_published = self.unpublished_since(node, at) == at;
        if has_published { holds } else { Holds::Maybe }
    }

    /// All times at which a possible state may change.
    pub fn changes(&self) -> BTreeSet<Micros> {
        let PublishTimes { role, configuration, reconnect } = self.times;
        let facts = self.facts;
        let mut changes =
            BTreeSet::from([facts.run.start, facts.run.start + reconnect, facts.run.end]);
        for host in &facts.hosts {
            for broken in &host.breaks {
                let NodeBreak { from, done, heal, to, .. } = broken;
                changes.extend([*from, *done, *heal, *to, self.first_expiry(*from)]);
                changes.extend([*done + SECOND, facts.lease_end(*from), *to + reconnect]);
            }
            let starts = host.roles.iter().flatten().map(|span| span.start);
            changes.extend(starts.flat_map(|at| [at, at + role]));
            let edits = host.edits.iter().flat_map(|(from, to)| [*from, *to]);
            changes.extend(edits.flat_map(|at| [at, at + configuration]));
            let periods = [
                (&host.grouped, configuration),
                (&host.routers, configuration),
                (&host.released, role),
                (&host.differs, role + facts.times.audit),
            ];
            for (periods, within) in periods {
                changes.extend(periods.iter().flat_map(|period| {
                    [period.from, period.done + within, period.heal, period.to + within]
                }));
            }
            let routers = host.routers.iter();
            changes.extend(routers.map(|router| router.done + self.router_known()));
            let silences = host.silences.iter().flatten();
            changes.extend(silences.flat_map(|period| {
                [period.possible, period.certain.min(period.end), period.end, period.gone]
            }));
        }
        for period in &facts.unstable {
            changes.extend([period.from, period.to, period.to + reconnect]);
        }
        for (from, to) in &facts.lost_members {
            changes.extend([*from, *to, to + reconnect]);
        }
        for life in &facts.simulated {
            changes.extend([life.begin, life.ready, life.ready + role, life.stop, life.gone]);
            changes.insert(life.gone + role);
            if let Some(silent) = life.silent {
                changes.extend([silent, self.first_expiry(silent), facts.lease_end(silent)]);
            }
        }
        changes.retain(|at| *at >= facts.run.start && *at <= facts.run.end);
        changes
    }

    /// The earliest end of the lease of a node that stopped renewing it.
    fn first_expiry(&self, from: Micros) -> Micros {
        let times = &self.facts.times;
        from + times.lease - times.heartbeat - SECOND
    }

    fn presence(&self, node: usize, at: Micros) -> BTreeSet<Presence> {
        let facts = self.facts;
        if at < facts.run.start + self.times.reconnect {
            return BTreeSet::from([Presence::Absent, Presence::Live]);
        }
        let breaks = &facts.hosts[node].breaks;
        let Some(broken) = breaks.iter().rev().find(|broken| broken.from <= at) else {
            return BTreeSet::from([Presence::Live]);
        };
        let mut possible = if broken.is_orderly {
            match at {
                at if at < broken.done + SECOND => {
                    BTreeSet::from([Presence::Live, Presence::Stopped])
                }
                _ => BTreeSet::from([Presence::Stopped]),
            }
        } else {
            self.expiring(broken.from, at.min(broken.to))
        };
        if at >= broken.heal {
            possible.insert(Presence::Live);
        }
        // A node is live for certain a while after its return, unless etcd could not answer then.
        let back = self.after_unstable(broken.to) + self.times.reconnect;
        if at >= back { BTreeSet::from([Presence::Live]) } else { possible }
    }

    /// The presence of a node that renews no lease since `from`.
    fn expiring(&self, from: Micros, at: Micros) -> BTreeSet<Presence> {
        if at < self.first_expiry(from) {
            return BTreeSet::from([Presence::Live]);
        }
        if at < self.facts.lease_end(from) {
            return BTreeSet::from([Presence::Live, Presence::Lost]);
        }
        BTreeSet::from([Presence::Lost])
    }

    /// The end of the unstable period at a time; the time itself if there is none.
    fn after_unstable(&self, at: Micros) -> Micros {
        let period = self.facts.unstable.iter().find(|period| period.from <= at && at < period.to);
        period.map_or(at, |period| period.to)
    }

    /// The beginning of the period in which a node may not have published; `at` if it has published everything.
    pub fn unpublished_since(&self, node: usize, at: Micros) -> Micros {
        let facts = self.facts;
        let own = facts.hosts[node].breaks.iter().map(|broken| (broken.from, broken.to));
        let etcd = facts.unstable.iter().map(|period| (period.from, period.to));
        // The node may have used the member that was lost.
        let etcd = etcd.chain(facts.lost_members.iter().copied());
        let periods: Vec<(Micros, Micros)> = own
            .chain(etcd)
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
        let spans = self.facts.hosts[node].roles[instance].iter();
        let spans = spans.filter(|span| span.overlaps(since, at + 1));
        let mut roles: BTreeSet<&'static str> = spans.map(|span| span.value).collect();
        // The node and keepalived read a changed file at different times.
        let is_held = roles.contains("primary") || roles.contains("partial");
        if is_held && self.edited(node, instance, at).len() > 1 {
            roles.extend(["primary", "partial"]);
        }
        roles
    }

    fn edited(&self, node: usize, instance: usize, at: Micros) -> BTreeSet<bool> {
        if instance != 0 {
            return BTreeSet::from([false]);
        }
        let since = self.unpublished_since(node, at) - self.times.configuration;
        let edits = &self.facts.hosts[node].edits;
        let mut possible = BTreeSet::new();
        let is_edited = |at: Micros| edits.iter().any(|(from, to)| *from <= at && at < *to);
        possible.extend([is_edited(since), is_edited(at)]);
        if edits.iter().any(|(from, to)| since < *from && *to <= at) {
            possible.insert(true);
        }
        possible
    }

    fn simulated(&self, group: LabGroup, at: Micros) -> PossibleStates {
        let is_member = group == LabGroup::Instance(0);
        let life = self.facts.simulated.iter().rev().find(|life| life.begin <= at && is_member);
        let absent = BTreeSet::from([Presence::Absent]);
        let presence = life.map_or(absent, |life| self.simulated_presence(life, at));
        let roles = BTreeSet::from([life.map_or("backup", |life| life.role)]);
        let (silence, difference) = (Holds::No, Holds::No);
        PossibleStates { presence, roles, is_edited: BTreeSet::from([false]), silence, difference }
    }

    fn simulated_presence(&self, life: &SimulatedLife, at: Micros) -> BTreeSet<Presence> {
        let mut possible = match life.silent.filter(|silent| *silent <= at) {
            Some(silent) => self.expiring(silent, at.min(life.stop)),
            None => BTreeSet::from([Presence::Live]),
        };
        if at < life.ready + self.times.role {
            // The records come one after the other: a member without a live record is a lost node.
            possible.extend([Presence::Absent, Presence::Lost]);
        }
        if at >= life.stop {
            possible.extend([Presence::Stopped, Presence::Absent]);
        }
        if at >= life.gone + self.times.role {
            BTreeSet::from([Presence::Absent])
        } else {
            possible
        }
    }
}

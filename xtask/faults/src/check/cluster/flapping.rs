// SPDX-License-Identifier: Apache-2.0
//! `cluster-flapping`: the set of nodes that hold a group has changed six times within ten minutes.

use std::collections::BTreeSet;

use super::findings::CLOCK_MARGIN;
use super::groups::LabGroup;
use super::published::{Presence, Published, SIMULATED_NODE};
use crate::check::findings::FindingSpan;
use crate::check::periods::Holds;
use crate::check::verdict::RunVerdict;
use crate::moment::{Micros, SECOND};

pub const NAME: &str = "cluster-flapping";
/// Changes that are flapping.
const CHANGES: usize = 6;
/// The time within which they happen.
const WINDOW: Micros = 600 * SECOND;
/// The time until the finding is open, at the latest.
const DEADLINE: Micros = 4 * SECOND;

fn is_held(role: &str) -> bool {
    matches!(role, "primary" | "partial")
}

impl Published<'_> {
    /// A finding is right if the published roles could have shown six changes before.
    pub fn judge_flapping(&self, finding: &FindingSpan, verdict: &mut RunVerdict) {
        let facts = self.facts;
        let mut groups = LabGroup::all(facts).into_iter();
        let group = groups.find(|group| group.text(facts) == finding.subject);
        let changes = group.map_or(Vec::new(), |group| self.possible_changes(group));
        let opened = finding.open + CLOCK_MARGIN;
        let before = changes.iter().filter(|at| **at <= opened && **at > finding.open - WINDOW);
        if before.count() >= CHANGES {
            verdict.finding(NAME).true_positive += 1;
            return;
        }
        let (name, at) = (&finding.subject, facts.run.clock(finding.open));
        verdict.unexpected_finding(NAME, format!("{name}: {NAME} at {at} s ({})", finding.text));
    }

    /// All times at which the set of holders can change in etcd.
    fn possible_changes(&self, group: LabGroup) -> Vec<Micros> {
        let facts = self.facts;
        let mut changes = Vec::new();
        for (host, record) in facts.hosts.iter().zip(&facts.run.nodes) {
            let roles =
                group.instance().map_or(&[][..], |instance| &record.timeline.roles[instance]);
            let flips =
                roles.windows(2).filter(|pair| is_held(pair[0].value) != is_held(pair[1].value));
            changes.extend(flips.map(|pair| pair[1].start));
            // A node that comes back publishes the roles that have changed meanwhile.
            changes.extend(host.breaks.iter().map(|broken| broken.period.heal));
            let members = match group {
                LabGroup::Router => &[&host.routers, &host.released][..],
                LabGroup::Instance(0) | LabGroup::Configured => &[&host.grouped],
                LabGroup::Instance(_) => &[],
            };
            let members = members.iter().copied().flatten();
            changes.extend(members.flat_map(|period| [period.from, period.heal]));
        }
        changes.extend(facts.simulated.iter().flat_map(|life| [life.begin, life.stop]));
        changes.sort_unstable();
        changes
    }

    /// Six certain changes, without a change of the reporter meanwhile, need a finding.
    pub fn judge_missing_flapping(
        &self,
        group: LabGroup,
        findings: &[FindingSpan],
        unavailable: &[(Micros, Micros)],
        verdict: &mut RunVerdict,
    ) {
        let (run, name) = (&self.facts.run, group.text(self.facts));
        for changes in self.certain_changes(group).windows(CHANGES) {
            let (from, at) = (changes[0], changes[CHANGES - 1]);
            let due = at + DEADLINE;
            let is_broken = unavailable.iter().any(|(start, end)| *start < due && *end > from);
            let mut about = findings.iter().filter(|finding| finding.is_about(NAME, &name));
            if is_broken || due >= run.end || about.any(|finding| finding.open <= due) {
                continue;
            }
            let (from, at) = (run.clock(from), run.clock(at));
            let text = format!("{name}: {NAME}, six changes from {from} s to {at} s");
            return verdict.missing_finding(NAME, text);
        }
    }

    /// The times at which another set of holders was certain for the first time.
    fn certain_changes(&self, group: LabGroup) -> Vec<Micros> {
        let points: Vec<Micros> = self.changes().into_iter().collect();
        let mut changes = Vec::new();
        let mut last: Option<BTreeSet<usize>> = None;
        for pair in points.windows(2) {
            let middle = i64::midpoint(pair[0], pair[1]);
            let Some(holders) = self.certain_holders(group, middle) else { continue };
            if last.as_ref().is_some_and(|last| *last != holders) {
                changes.push(pair[0]);
            }
            last = Some(holders);
        }
        changes
    }

    /// The nodes that have published that they hold the group; `None` if that is not certain. The loss of a node is no change of
    /// its role, so that nothing is certain while a node is lost or stopped.
    fn certain_holders(&self, group: LabGroup, at: Micros) -> Option<BTreeSet<usize>> {
        if self.ambiguity(group, at) != Holds::No {
            return None;
        }
        let mut holders = BTreeSet::new();
        for node in 0..=SIMULATED_NODE {
            let states = self.states(node, group, at);
            if states.iter().all(|state| state.presence == Presence::Absent) {
                continue;
            }
            if states.iter().any(|state| state.presence != Presence::Live) {
                return None;
            }
            match Holds::of(states.iter().map(|state| is_held(state.role))) {
                Holds::No => {}
                Holds::Maybe => return None,
                Holds::Yes => drop(holders.insert(node)),
            }
        }
        Some(holders)
    }
}

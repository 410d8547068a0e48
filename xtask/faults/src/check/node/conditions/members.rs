// SPDX-License-Identifier: Apache-2.0
//! Conditions that compare the instances of a node, or a node with its own configuration.

use super::super::NodeInstance;
use super::{Condition, DELAY, RECHECK};
use crate::check::wire::WireAdvert;
use crate::moment::{Micros, SECOND};

/// The node counts lost adverts within this time.
const LOSS_SPAN: Micros = 60 * SECOND;

impl NodeInstance<'_> {
    pub(super) fn member_conditions(self) -> Vec<Condition> {
        let mut conditions = Vec::new();
        // Two instances with one VRID, of which one uses unicast, are no group.
        let own = &self.run.setup.instances[self.instance];
        let has_group = self.run.setup.instances.iter().any(|other| other.vrid != own.vrid);
        if self.instance == 0 && has_group {
            conditions.extend(self.group_split());
        }
        conditions.extend(self.lower_priority());
        conditions.extend(self.irregular());
        conditions
    }

    /// The members of the sync group have different roles. The first member has the finding.
    fn group_split(self) -> Vec<Condition> {
        let roles = &self.record().timeline.roles;
        let mut conditions = Vec::new();
        for first in &roles[0] {
            let other = roles[1].iter().filter(|second| second.value != first.value);
            for second in other.filter(|second| second.overlaps(first.start, first.end)) {
                let (start, end) = (first.start.max(second.start), first.end.min(second.end));
                // A role of some addresses only is neither.
                let both = [first.value, second.value];
                let is_certain = both.contains(&"primary") && !both.contains(&"partial");
                let deadline = start + self.run.down_interval(1) + DELAY;
                let condition = self.condition("sync-group-split", start..end, DELAY);
                conditions.push(if is_certain { condition.due(deadline, end) } else { condition });
            }
        }
        conditions
    }

    /// keepalived advertises a lower priority than the configured one. The finding needs captured sent adverts, so that
    /// it is never required.
    fn lower_priority(self) -> impl Iterator<Item = Condition> {
        let configured = self.run.setup.priorities[self.node];
        let lower = self.sent().filter(move |advert| (1..configured).contains(&advert.priority));
        lower.map(move |advert| {
            let end = advert.at + self.run.down_interval(1);
            self.condition("keepalived-fault", advert.at..end, RECHECK)
        })
    }

    /// Adverts are missing or come irregularly, on a busy machine also without a fault.
    fn irregular(self) -> Vec<Condition> {
        // Where sent adverts are captured, the own ones count too.
        let adverts: Vec<_> = self.delivered().chain(self.sent()).collect();
        let (interval, limit) = (self.run.interval(), (self.run.interval() / 4).max(SECOND / 10));
        let is_irregular = |(index, advert): &(usize, &&WireAdvert)| {
            let mut before = adverts[..*index].iter().rev();
            let before = before.find(|other| other.source == advert.source);
            before.is_some_and(|before| (advert.at - before.at - interval).abs() > limit)
        };
        let irregular = adverts.iter().enumerate().filter(is_irregular);
        let condition = |(_, advert): (usize, &&WireAdvert)| {
            self.condition("adverts-lost", advert.at..advert.at + LOSS_SPAN, RECHECK)
        };
        irregular.map(condition).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::periods::Span;
    use crate::check::recording::examples::{delivered, run};

    #[test]
    fn adverts_in_time_are_regular_and_a_pause_is_not() {
        let mut run = run();
        run.adverts = (0..50).map(|at| delivered(at * SECOND, 0, 1, 150)).collect();
        assert_eq!(NodeInstance { run: &run, node: 1, instance: 0 }.irregular(), []);
        run.adverts.remove(20);
        let conditions = NodeInstance { run: &run, node: 1, instance: 0 }.irregular();
        assert_eq!((conditions.len(), conditions[0].name), (1, "adverts-lost"));
    }

    #[test]
    fn a_group_with_different_roles_is_split() {
        let mut run = run();
        let second = run.setup.instances[0].clone();
        run.setup.instances.push(second);
        let end = run.end;
        run.nodes[0].timeline.roles.push(vec![
            Span { start: 0, end: 50 * SECOND, value: "primary" },
            Span { start: 50 * SECOND, end, value: "backup" },
        ]);
        let conditions = NodeInstance { run: &run, node: 0, instance: 0 }.group_split();
        assert_eq!(conditions.len(), 1);
        assert_eq!((conditions[0].start, conditions[0].deadline.is_some()), (50 * SECOND, true));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Conditions that compare the instances of a node, or a node with its own configuration.

use super::{COMPARISON, Condition, GRACE, MARGIN, RECHECK, required};
use crate::check::roles::Span;
use crate::check::run_record::RunRecord;
use crate::moment::{Micros, SECOND};

/// The node counts lost adverts within this time.
const LOSS_SPAN: Micros = 60 * SECOND;

/// Adds the conditions of one instance on one node.
pub fn conditions(record: &RunRecord, node: usize, instance: usize, into: &mut Vec<Condition>) {
    if instance == 0 && record.run.setup.instances.len() > 1 {
        group_split(record, node, into);
    }
    lower_priority(record, node, instance, into);
    irregular(record, node, instance, into);
}

/// The members of the sync group have different roles. The first member has the finding.
fn group_split(record: &RunRecord, node: usize, into: &mut Vec<Condition>) {
    let roles = &record.nodes[node].timeline.roles;
    for first in &roles[0] {
        for second in roles[1].iter().filter(|second| second.overlaps(first.start, first.end)) {
            let (start, end) = (first.start.max(second.start), first.end.min(second.end));
            if first.value == second.value {
                continue;
            }
            // A role of some addresses only is neither.
            let is_clear = |role: &Span<&'static str>| role.value != "partial";
            let has_primary = [first, second].iter().any(|role| role.value == "primary");
            let is_certain = has_primary && is_clear(first) && is_clear(second);
            let deadline = start + record.down_interval(1) + GRACE + COMPARISON + MARGIN;
            into.push(Condition {
                name: "sync-group-split",
                instance: 0,
                start,
                end,
                deadline: required(deadline, end).filter(|_| is_certain),
                close_by: Some(end + GRACE + COMPARISON + MARGIN),
            });
        }
    }
}

/// keepalived advertises a lower priority than the configured one. The finding needs captured sent adverts, so that it is
/// never required.
fn lower_priority(record: &RunRecord, node: usize, instance: usize, into: &mut Vec<Condition>) {
    let configured = record.priorities[node];
    let vrid = record.run.setup.instances[instance].vrid;
    let lower = record.sent(node, vrid).filter(|advert| (1..configured).contains(&advert.priority));
    into.extend(lower.map(|advert| Condition {
        name: "keepalived-fault",
        instance,
        start: advert.at,
        end: advert.at + record.down_interval(1),
        deadline: None,
        close_by: Some(advert.at + record.down_interval(1) + RECHECK),
    }));
}

/// Adverts are missing or come irregularly, on a busy machine also without a fault.
fn irregular(record: &RunRecord, node: usize, instance: usize, into: &mut Vec<Condition>) {
    let vrid = record.run.setup.instances[instance].vrid;
    // Where sent adverts are captured, the own ones count too.
    let adverts: Vec<_> = record.delivered(node, vrid).chain(record.sent(node, vrid)).collect();
    let limit = (record.interval / 4).max(SECOND / 10);
    for (index, advert) in adverts.iter().enumerate() {
        let Some(before) =
            adverts[..index].iter().rev().find(|other| other.source == advert.source)
        else {
            continue;
        };
        if (advert.at - before.at - record.interval).abs() > limit {
            into.push(Condition {
                name: "adverts-lost",
                instance,
                start: advert.at,
                end: advert.at + LOSS_SPAN,
                deadline: None,
                close_by: Some(advert.at + LOSS_SPAN + RECHECK),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::run_record::examples::{delivered, record};

    #[test]
    fn adverts_in_time_are_regular_and_a_pause_is_not() {
        let mut record = record();
        record.adverts = (0..50).map(|at| delivered(at * SECOND, 0, 1, 150)).collect();
        let mut conditions = Vec::new();
        irregular(&record, 1, 0, &mut conditions);
        assert_eq!(conditions, []);
        record.adverts.remove(20);
        irregular(&record, 1, 0, &mut conditions);
        assert_eq!((conditions.len(), conditions[0].name), (1, "adverts-lost"));
    }

    #[test]
    fn a_group_with_different_roles_is_split() {
        let mut record = record();
        let second = record.run.setup.instances[0].clone();
        record.run.setup.instances.push(second);
        let end = record.run.end;
        record.nodes[0].timeline.roles.push(vec![
            Span { start: 0, end: 50 * SECOND, value: "primary" },
            Span { start: 50 * SECOND, end, value: "backup" },
        ]);
        let mut conditions = Vec::new();
        group_split(&record, 0, &mut conditions);
        assert_eq!(conditions.len(), 1);
        assert_eq!((conditions[0].start, conditions[0].deadline.is_some()), (50 * SECOND, true));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The periods in which a finding is right, computed from recorded facts, with the deadlines of the reference.

mod adverts;
mod members;

use super::processes::UncertainSpan;
use super::roles::Span;
use super::run_record::RunRecord;
use crate::moment::{Micros, SECOND};

/// The audit examines an instance so long after the last change of its role or its processes.
const GRACE: Micros = 5 * SECOND;
/// The node notices a start or an end of keepalived within this time.
const PROCESS_NOTICE: Micros = SECOND;
/// The node notices a stopped or continued process within this time.
const FREEZE_NOTICE: Micros = 10 * SECOND;
/// Changes of a process put off the examination at most so long.
const MAX_PROCESS_GRACE: Micros = 15 * SECOND;
/// The node compares its findings at most once in this time.
const COMPARISON: Micros = SECOND;
/// The witness reads its sockets once in this time.
const DRAIN: Micros = SECOND;
/// An instance with findings is examined again after 30 s, at a step that comes every 10 s.
const RECHECK: Micros = 40 * SECOND;
/// Room for a busy machine.
const MARGIN: Micros = 2 * SECOND;

/// A period in which a finding is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub name: &'static str,
    pub instance: usize,
    /// The finding may be open from this time on.
    pub start: Micros,
    pub end: Micros,
    /// When the finding must be open; `None` if it need not open at all.
    pub deadline: Option<Micros>,
    /// When the finding must be closed; `None` if that is not judged.
    pub close_by: Option<Micros>,
}

/// The changes of one instance on one node, each of which puts off its examination.
struct Changes(Vec<Micros>);

impl Changes {
    fn of(record: &RunRecord, node: usize, instance: usize) -> Self {
        let acts =
            ["keepalived-started", "keepalived-ended", "child-started", "signalled", "configured"];
        let own = record.run.journal.iter().filter(|entry| entry.node == Some(node));
        let processes =
            own.filter(|entry| acts.contains(&entry.act.as_str())).map(|entry| entry.at);
        let roles = record.nodes[node].timeline.roles[instance].iter().map(|span| span.start);
        let rows = record.nodes[node].answers.rows.iter().map(|row| row.at);
        let mut all: Vec<Micros> = processes.chain(roles).chain(rows).collect();
        all.sort_unstable();
        Self(all)
    }

    /// The last change after `from` that followed the one before it within the grace period.
    /// `notice` is the time within which the node notices what happened at `from`.
    fn quiet_after(&self, from: Micros, notice: Micros) -> Micros {
        let later = self.0.iter().filter(|at| **at >= from);
        let quiet = later.fold(from + notice, |quiet, at| {
            if *at <= quiet + GRACE + COMPARISON { quiet.max(*at) } else { quiet }
        });
        quiet - notice
    }
}

/// All conditions of one node.
pub fn of_node(record: &RunRecord, node: usize) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for instance in 0..record.run.setup.instances.len() {
        let timeline = &record.nodes[node].timeline.roles[instance];
        let changes = Changes::of(record, node, instance);
        let first = conditions.len();
        process_conditions(record, node, instance, &mut conditions);
        role_conditions(timeline, instance, &mut conditions);
        flapping(record, node, instance, &mut conditions);
        adverts::conditions(record, node, instance, &mut conditions);
        members::conditions(record, node, instance, &mut conditions);
        for condition in &mut conditions[first..] {
            condition.put_off(&changes);
        }
    }
    conditions.retain(|condition| condition.end > record.run.start);
    conditions
}

impl Condition {
    /// Changes put off the audit: the deadlines count from the last one of them.
    fn put_off(&mut self, changes: &Changes) {
        let later = |from: Micros, limit: Option<Micros>| {
            let notice = limit.map_or(0, |limit| limit - from - GRACE - COMPARISON - MARGIN);
            changes.quiet_after(from, notice.max(0)) - from
        };
        let (open, close) = (later(self.start, self.deadline), later(self.end, self.close_by));
        self.deadline = self.deadline.and_then(|deadline| required(deadline + open, self.end));
        self.close_by = self.close_by.map(|close_by| close_by + close);
    }
}

fn is_holding(role: &str) -> bool {
    matches!(role, "primary" | "partial")
}

/// Parts of a period with and without an address, and the finding of each.
struct Holding {
    with_address: &'static str,
    without_address: &'static str,
    /// The time from the beginning to the finding.
    delay: Micros,
    close_within: Micros,
}

/// The finding of a keepalived that has ended, by the role.
const GONE: Holding = Holding {
    with_address: "keepalived-gone-address-left",
    without_address: "keepalived-gone",
    delay: PROCESS_NOTICE + GRACE + COMPARISON + MARGIN,
    close_within: PROCESS_NOTICE + GRACE + COMPARISON + MARGIN,
};

/// The finding of a stopped VRRP child, by the role.
const FROZEN: Holding = Holding {
    with_address: "keepalived-frozen-address-left",
    without_address: "keepalived-frozen",
    delay: FREEZE_NOTICE + GRACE + COMPARISON + MARGIN,
    close_within: FREEZE_NOTICE + GRACE + COMPARISON + MARGIN,
};

fn process_conditions(record: &RunRecord, node: usize, instance: usize, into: &mut Vec<Condition>) {
    let processes = &record.nodes[node].processes;
    let roles = &record.nodes[node].timeline.roles[instance];
    processes.gone.iter().for_each(|span| by_holding(span, roles, instance, &GONE, into));
    processes.child_frozen.iter().for_each(|span| by_holding(span, roles, instance, &FROZEN, into));
    let mut whole = |name: &'static str, spans: &[UncertainSpan], delay: Micros, close: Micros| {
        into.extend(spans.iter().map(|span| Condition {
            name,
            instance,
            start: span.start_min,
            end: span.end_max,
            deadline: required(span.start_max + delay, span.end_min),
            close_by: Some(span.end_max + close),
        }));
    };
    whole("keepalived-parent-frozen", &processes.parent_frozen, FROZEN.delay, FROZEN.close_within);
    whole("keepalived-vrrp-child-missing", &processes.child_missing, GONE.delay, GONE.close_within);
    let reload_close = RECHECK + COMPARISON + MARGIN;
    whole("keepalived-reload-pending", &processes.reload_pending, FROZEN.delay, reload_close);
    // The file is written before the signal.
    let edits = processes.reloads.iter().map(|at| (at - SECOND, at + PROCESS_NOTICE));
    short("keepalived-reload-pending", edits, reload_close, instance, into);
    // keepalived waits longer and longer before it starts another child.
    let pauses = processes.child_pauses.iter().map(|(start, end)| (*start, end + PROCESS_NOTICE));
    short("keepalived-vrrp-child-missing", pauses, GONE.close_within, instance, into);
    into.extend(crash_loop(record, node, instance));
}

/// Adds periods in which a finding may open but need not.
fn short(
    name: &'static str,
    periods: impl Iterator<Item = (Micros, Micros)>,
    close_within: Micros,
    instance: usize,
    into: &mut Vec<Condition>,
) {
    into.extend(periods.map(|(start, end)| Condition {
        name,
        instance,
        start,
        end,
        deadline: None,
        close_by: Some(end + close_within),
    }));
}

/// A deadline, if the condition lasts until then.
fn required(deadline: Micros, end: Micros) -> Option<Micros> {
    (end >= deadline).then_some(deadline)
}

/// Divides a period of the processes by the role of the instance.
fn by_holding(
    span: &UncertainSpan,
    roles: &[Span<&'static str>],
    instance: usize,
    holding: &Holding,
    into: &mut Vec<Condition>,
) {
    for role in roles.iter().filter(|role| role.overlaps(span.start_min, span.end_max)) {
        let name =
            if is_holding(role.value) { holding.with_address } else { holding.without_address };
        let (start, end) = (role.start.max(span.start_min), role.end.min(span.end_max));
        let deadline =
            required(role.start.max(span.start_max) + holding.delay, role.end.min(span.end_min));
        let close_by = Some(end + holding.close_within);
        into.push(Condition { name, instance, start, end, deadline, close_by });
    }
}

/// Four starts within 60 seconds, of keepalived or of the VRRP child of one parent.
fn crash_loop(record: &RunRecord, node: usize, instance: usize) -> Vec<Condition> {
    const SPAN: Micros = 60 * SECOND;
    const STARTS: usize = 4;
    let processes = &record.nodes[node].processes;
    let mut conditions = Vec::new();
    let mut children = processes.starts.clone();
    children.extend(&processes.child_starts);
    children.sort_unstable();
    for window in children.windows(STARTS) {
        let (first, last) = (window[0], window[STARTS - 1]);
        if last - first > SPAN {
            continue;
        }
        // It is certain if no start of another parent is between them, and if the node has seen all of them.
        let is_certain = first > record.run.start
            && !processes.starts.iter().any(|start| (first..=last).contains(start));
        conditions.push(Condition {
            name: "keepalived-crash-loop",
            instance,
            start: first,
            end: first + SPAN + RECHECK,
            deadline: is_certain.then_some(last + MAX_PROCESS_GRACE + COMPARISON + MARGIN),
            close_by: None,
        });
    }
    conditions
}

/// `link-fault` and `partly-held` follow from the role alone.
fn role_conditions(roles: &[Span<&'static str>], instance: usize, into: &mut Vec<Condition>) {
    let delay = GRACE + COMPARISON + MARGIN;
    let names = [("fault", "link-fault"), ("partial", "partly-held")];
    for (role, name) in names {
        into.extend(roles.iter().filter(|span| span.value == role).map(|span| Condition {
            name,
            instance,
            start: span.start,
            end: span.end,
            deadline: required(span.start + delay, span.end),
            close_by: Some(span.end + delay),
        }));
    }
}

/// Six transitions within ten minutes; a run is shorter.
fn flapping(record: &RunRecord, node: usize, instance: usize, into: &mut Vec<Condition>) {
    const TRANSITIONS: usize = 6;
    let facts = &record.nodes[node];
    let name = &record.run.setup.instances[instance].name;
    // The rows are compared with the kernel elsewhere: very short roles may be missing in them.
    let rows: Vec<Micros> = facts
        .answers
        .rows
        .iter()
        .filter(|row| row.instance == *name && !row.from.is_empty() && row.from != row.to)
        .map(|row| row.at)
        .collect();
    let Some(sixth) = rows.get(TRANSITIONS - 1) else { return };
    into.push(Condition {
        name: "flapping",
        instance,
        start: *sixth,
        end: record.run.end,
        deadline: required(sixth + GRACE + COMPARISON + MARGIN, record.run.end),
        close_by: None,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_without_keepalived_is_divided_by_the_role() {
        let roles = [
            Span { start: 0, end: 10 * SECOND, value: "primary" },
            Span { start: 10 * SECOND, end: 60 * SECOND, value: "backup" },
        ];
        let span = UncertainSpan {
            start_min: 9 * SECOND,
            start_max: 10 * SECOND,
            end_min: 30 * SECOND,
            end_max: 31 * SECOND,
        };
        let holding = Holding {
            with_address: "left",
            without_address: "gone",
            delay: 8 * SECOND,
            close_within: SECOND,
        };
        let mut conditions = Vec::new();
        by_holding(&span, &roles, 0, &holding, &mut conditions);
        let seen: Vec<_> =
            conditions.iter().map(|condition| (condition.name, condition.deadline)).collect();
        assert_eq!(seen, [("left", None), ("gone", Some(18 * SECOND))]);
    }

    #[test]
    fn changes_shortly_after_each_other_put_off_the_deadline() {
        let changes = Changes(vec![SECOND, 5 * SECOND, 9 * SECOND, 30 * SECOND]);
        assert_eq!(changes.quiet_after(SECOND, 0), 9 * SECOND);
        assert_eq!(changes.quiet_after(20 * SECOND, 0), 20 * SECOND);
        // The node may notice the fact only when the next change has begun.
        assert_eq!(changes.quiet_after(20 * SECOND, 10 * SECOND), 20 * SECOND);
        assert_eq!(changes.quiet_after(22 * SECOND, 7 * SECOND), 23 * SECOND);
    }

    #[test]
    fn a_short_fault_of_the_link_requires_no_finding() {
        let mut conditions = Vec::new();
        let span = |end: Micros| Span { start: 0, end: end * SECOND, value: "fault" };
        role_conditions(&[span(3), span(20)], 0, &mut conditions);
        let deadlines: Vec<_> = conditions.iter().map(|condition| condition.deadline).collect();
        assert_eq!(deadlines, [None, Some(8 * SECOND)]);
    }
}

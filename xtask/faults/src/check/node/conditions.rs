// SPDX-License-Identifier: Apache-2.0
//! The periods in which a finding is right, computed from recorded facts, with the deadlines of the reference.

mod adverts;
mod members;

use std::ops::Range;

use super::NodeInstance;
use crate::check::findings::Condition;
use crate::check::periods::{ActPeriod, Span};
use crate::check::recording::RecordedRun;
use crate::moment::{Micros, SECOND};

/// The audit examines an instance so long after the last change of its role or its processes.
const GRACE: Micros = 5 * SECOND;
/// The node compares its findings at most once in this time.
const COMPARISON: Micros = SECOND;
/// Room for a busy machine.
const MARGIN: Micros = 2 * SECOND;
/// The time from a known fact to its finding, or to the end of it.
const DELAY: Micros = GRACE + COMPARISON + MARGIN;
/// The node notices a start or an end of keepalived within this time.
const PROCESS_NOTICE: Micros = SECOND;
/// The node notices a stopped or continued process within this time.
const FREEZE_NOTICE: Micros = 10 * SECOND;
/// Changes of a process put off the examination at most so long.
const MAX_PROCESS_GRACE: Micros = 15 * SECOND;
/// The witness reads its sockets once in this time.
const DRAIN: Micros = SECOND;
/// An instance with findings is examined again after 30 s, at a step that comes every 10 s.
const RECHECK: Micros = 40 * SECOND;
/// Starts within a time that are a crash loop.
const CRASHES: usize = 4;
const CRASH_SPAN: Micros = 60 * SECOND;
/// A second audit, [`GRACE`] after the first one, confirms these findings.
const NEED_SECOND_AUDIT: [&str; 2] = ["peer-configuration-differs", "vrid-clash-on-link"];
/// Transitions within ten minutes that are flapping; a run is shorter.
const FLAPPING: usize = 6;

/// The changes of one instance on one node, each of which puts off its examination.
struct Changes(Vec<Micros>);

impl Changes {
    fn of(scene: NodeInstance<'_>) -> Self {
        let acts =
            ["keepalived-started", "keepalived-ended", "child-started", "signalled", "configured"];
        let mut all: Vec<Micros> =
            scene.run.acts(scene.node, &acts).map(|entry| entry.at).collect();
        all.extend(scene.roles().iter().map(|span| span.start));
        all.extend(scene.record().answers.rows.iter().map(|row| row.at));
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

    /// The deadlines of a condition count from the last change.
    fn put_off(&self, condition: &mut Condition) {
        let later = |from: Micros, limit: Option<Micros>, examination: Micros| {
            let notice = limit.map_or(0, |limit| limit - from - examination);
            self.quiet_after(from, notice.max(0)) - from
        };
        let needs_second = NEED_SECOND_AUDIT.contains(&condition.name);
        let examination = if needs_second { GRACE + DELAY } else { DELAY };
        let open = later(condition.start, condition.deadline, examination);
        let close = later(condition.end, condition.close_by, DELAY);
        let deadline = condition.deadline.map(|deadline| deadline + open);
        condition.deadline = deadline.filter(|deadline| *deadline <= condition.end);
        condition.close_by = condition.close_by.map(|close_by| close_by + close);
    }
}

/// Findings that say that a backup cannot take over.
const OBSTACLES: [&str; 5] = [
    "keepalived-crash-loop",
    "keepalived-fault",
    "keepalived-frozen",
    "keepalived-gone",
    "keepalived-vrrp-child-missing",
];

/// The conditions of one node under which a backup of an instance cannot take over.
pub(in crate::check) fn obstacles(
    run: &RecordedRun,
    node: usize,
    instance: usize,
) -> Vec<Condition> {
    let subject = NodeInstance { run, node, instance }.subject();
    let mut all = of_node(run, node);
    all.retain(|condition| condition.subject == subject && OBSTACLES.contains(&condition.name));
    all
}

/// All conditions of one node.
pub(super) fn of_node(run: &RecordedRun, node: usize) -> Vec<Condition> {
    let mut all = Vec::new();
    for instance in 0..run.setup.instances.len() {
        let scene = NodeInstance { run, node, instance };
        let changes = Changes::of(scene);
        let mut conditions = scene.process_conditions();
        conditions.extend(scene.crash_loop());
        conditions.extend(scene.role_conditions());
        conditions.extend(scene.flapping());
        conditions.extend(scene.advert_conditions());
        conditions.extend(scene.member_conditions());
        for mut condition in conditions {
            changes.put_off(&mut condition);
            all.push(condition);
        }
    }
    all.retain(|condition| condition.end > run.start);
    all
}

impl Condition {
    /// The finding is required at a deadline, if the condition lasts until then.
    fn due(self, deadline: Micros, end: Micros) -> Self {
        Self { deadline: Some(deadline).filter(|deadline| *deadline <= end), ..self }
    }
}

fn is_holding(role: &str) -> bool {
    matches!(role, "primary" | "partial")
}

impl NodeInstance<'_> {
    /// A period in which a finding may open but need not.
    fn condition(self, name: &'static str, period: Range<Micros>, close: Micros) -> Condition {
        let (subject, Range { start, end }) = (self.subject(), period);
        Condition { name, subject, start, end, deadline: None, close_by: Some(end + close) }
    }

    fn process_conditions(self) -> Vec<Condition> {
        let (gone, frozen) = (PROCESS_NOTICE + DELAY, FREEZE_NOTICE + DELAY);
        let faults = |words: &[&str]| self.run.fault_periods(self.node, words);
        let mut all = Vec::new();
        let names = ["keepalived-gone", "keepalived-gone-address-left"];
        all.extend(self.gone().iter().flat_map(|period| self.by_holding(names, period, gone)));
        let (names, periods) =
            (["keepalived-frozen", "keepalived-frozen-address-left"], faults(&["freeze-child"]));
        all.extend(periods.iter().flat_map(|period| self.by_holding(names, period, frozen)));
        let mut whole = |name, periods: Vec<ActPeriod>, delay: Micros, close: Micros| {
            all.extend(periods.into_iter().map(|period| {
                let condition = self.condition(name, period.from..period.to, close);
                condition.due(period.done + delay, period.heal)
            }));
        };
        let reload_close = RECHECK + COMPARISON + MARGIN;
        whole("keepalived-parent-frozen", faults(&["freeze-parent", "lose-child"]), frozen, frozen);
        whole("keepalived-vrrp-child-missing", faults(&["lose-child"]), gone, gone);
        whole("keepalived-reload-pending", self.not_read(), frozen, reload_close);
        // The file is written before the signal.
        all.extend(self.reloads().map(|at| {
            let period = at - SECOND..at + PROCESS_NOTICE;
            self.condition("keepalived-reload-pending", period, reload_close)
        }));
        // keepalived waits longer and longer before it starts another child.
        for child in self.run.acts(self.node, &["child-started"]) {
            let mut signals = self.run.acts(self.node, &["signal"]).rev();
            let signal = signals.find(|signal| signal.at < child.at);
            let end = child.at + PROCESS_NOTICE;
            let name = "keepalived-vrrp-child-missing";
            all.extend(signal.map(|signal| self.condition(name, signal.at..end, gone)));
        }
        all
    }

    /// The periods in which the file is another one than keepalived has read.
    fn not_read(self) -> Vec<ActPeriod> {
        let mut periods: Vec<ActPeriod> = Vec::new();
        let (mut read, mut file) = (None, None);
        for entry in self.run.acts(self.node, &["configured", "keepalived-start", "signal"]) {
            let (at, end) = (entry.at, self.run.end);
            match entry.act.as_str() {
                "configured" => file = Some((&entry.addresses, entry.is_edited)),
                "signal" if !entry.signals.iter().any(|name| name == "HUP") => {}
                _ => read = file,
            }
            let open = periods.last_mut().filter(|period| period.to == end);
            match open {
                Some(period) if read == file => (period.heal, period.to) = (at, at),
                None if read.is_some() && read != file => {
                    periods.push(ActPeriod { from: at, done: at, heal: end, to: end });
                }
                _ => {}
            }
        }
        periods
    }

    /// The periods from the signal that ended keepalived to its next start.
    fn gone(self) -> Vec<ActPeriod> {
        let mut periods: Vec<ActPeriod> = Vec::new();
        let mut signal = None;
        let acts = ["signal", "keepalived-ended", "keepalived-start", "keepalived-started"];
        for entry in self.run.acts(self.node, &acts) {
            let (at, end) = (entry.at, self.run.end);
            match (entry.act.as_str(), periods.last_mut()) {
                ("signal", _) => signal = Some(at),
                ("keepalived-ended", _) => {
                    let from = signal.unwrap_or(at);
                    periods.push(ActPeriod { from, done: at, heal: end, to: end });
                }
                ("keepalived-start", Some(period)) => period.heal = at,
                ("keepalived-started", Some(period)) if period.to == end => period.to = at,
                _ => {}
            }
        }
        periods
    }

    /// Divides a period of the processes by the role of the instance. The finding has two names: without an address, and
    /// with one.
    fn by_holding(
        self,
        names: [&'static str; 2],
        period: &ActPeriod,
        delay: Micros,
    ) -> Vec<Condition> {
        let roles = self.roles().iter().filter(|role| role.overlaps(period.from, period.to));
        let condition = |role: &Span<&'static str>| {
            let name = names[usize::from(is_holding(role.value))];
            let inside = role.start.max(period.from)..role.end.min(period.to);
            let deadline = role.start.max(period.done) + delay;
            self.condition(name, inside, delay).due(deadline, role.end.min(period.heal))
        };
        roles.map(condition).collect()
    }

    /// Four starts within 60 seconds, of keepalived or of the VRRP child of one parent.
    fn crash_loop(self) -> Vec<Condition> {
        let starts = self.run.acts(self.node, &["keepalived-start", "child-started"]);
        let all: Vec<_> = starts.collect();
        let crashes = all.windows(CRASHES).filter_map(|starts| {
            let (first, last) = (starts[0].at, starts[CRASHES - 1].at);
            // It is certain if no start of another parent is between them, and if the node has seen all of them.
            let has_parent = starts.iter().any(|start| start.act == "keepalived-start");
            let is_certain = first > self.run.start && !has_parent;
            let deadline = last + MAX_PROCESS_GRACE + COMPARISON + MARGIN;
            let end = first + CRASH_SPAN + RECHECK;
            let condition = self.condition("keepalived-crash-loop", first..end, 0);
            let deadline = is_certain.then_some(deadline);
            let condition = Condition { deadline, close_by: None, ..condition };
            (last - first <= CRASH_SPAN).then_some(condition)
        });
        crashes.collect()
    }

    /// `link-fault` and `partly-held` follow from the role alone.
    fn role_conditions(self) -> Vec<Condition> {
        let names = [("fault", "link-fault"), ("partial", "partly-held")];
        let of_role = |(role, name): (&'static str, &'static str)| {
            let spans = self.roles().iter().filter(move |span| span.value == role);
            spans.map(move |span| {
                let condition = self.condition(name, span.start..span.end, DELAY);
                condition.due(span.start + DELAY, span.end)
            })
        };
        names.into_iter().flat_map(of_role).collect()
    }

    /// Six transitions. With several addresses, most transitions have a step to `partial`, which does not count.
    fn flapping(self) -> Option<Condition> {
        // The rows are compared with the kernel elsewhere: very short roles may be missing in them.
        let rows = self.record().answers.rows.iter();
        let mut rows = rows.filter(|row| {
            let is_own = row.instance == self.facts().name && !row.from.is_empty();
            is_own && row.from != row.to && row.to != "partial"
        });
        let (sixth, end) = (rows.nth(FLAPPING - 1)?.at, self.run.end);
        let condition = self.condition("flapping", sixth..end, 0).due(sixth + DELAY, end);
        Some(Condition { close_by: None, ..condition })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::recording::examples::run;
    use crate::journal::JournalEntry;

    const SCENE: fn(&RecordedRun) -> NodeInstance<'_> =
        |run| NodeInstance { run, node: 0, instance: 0 };

    #[test]
    fn keepalived_is_gone_from_the_signal_to_the_next_start() {
        let acts = ["keepalived-start", "keepalived-started", "signal", "keepalived-ended"];
        let acts = acts.into_iter().chain(["keepalived-start", "keepalived-started"]);
        let entry = |(at, act): (i64, &str)| JournalEntry {
            at,
            act: act.to_owned(),
            node: Some(0),
            ..JournalEntry::default()
        };
        let mut run = run();
        run.journal = (1..).zip(acts).map(entry).collect();
        assert_eq!(SCENE(&run).gone(), [ActPeriod { from: 3, done: 4, heal: 5, to: 6 }]);
        assert_eq!(NodeInstance { node: 1, ..SCENE(&run) }.gone(), []);
    }

    #[test]
    fn a_period_without_keepalived_is_divided_by_the_role() {
        let mut run = run();
        run.nodes[0].timeline.roles[0] = vec![
            Span { start: 0, end: 10 * SECOND, value: "primary" },
            Span { start: 10 * SECOND, end: 60 * SECOND, value: "backup" },
        ];
        let (from, done) = (9 * SECOND, 10 * SECOND);
        let period = ActPeriod { from, done, heal: 30 * SECOND, to: 31 * SECOND };
        let conditions = SCENE(&run).by_holding(["gone", "left"], &period, 8 * SECOND);
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
        let mut run = run();
        let span = |end: Micros| Span { start: 0, end: end * SECOND, value: "fault" };
        run.nodes[0].timeline.roles[0] = vec![span(3), span(20)];
        let conditions = SCENE(&run).role_conditions();
        let deadlines: Vec<_> = conditions.iter().map(|condition| condition.deadline).collect();
        assert_eq!(deadlines, [None, Some(8 * SECOND)]);
    }
}

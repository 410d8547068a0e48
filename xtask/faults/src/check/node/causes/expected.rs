// SPDX-License-Identifier: Apache-2.0
//! The words that are right for one transition, from facts that the node does not provide.
//!
//! Where several words are right, the first one is the most specific. The reference (docs/reference/faults.md) gives
//! the reason for each such set.

use super::Situation;
use crate::journal::JournalEntry;
use crate::moment::{Micros, SECOND};

/// keepalived acts on a signal, a script or a lost link within this time.
pub(super) const REACTION: Micros = 2 * SECOND + SECOND / 2;
/// Recordings of one moment differ by less than this.
pub(super) const CLOCK_MARGIN: Micros = SECOND / 10;
/// The node writes times in whole milliseconds, the injector in microseconds.
const JOURNAL_MARGIN: Micros = SECOND / 500;

/// Words that are right; the first one is the most specific.
pub(super) type Words = Vec<&'static str>;

impl<'a> Situation<'a> {
    /// The right words; never empty.
    pub(super) fn expected(self) -> Words {
        if self.row.from.is_empty() {
            return vec!["start", "while-stopped"];
        }
        if let Some(words) = self.by_hand() {
            return words;
        }
        if self.row.to == "fault" {
            return vec!["link-lost"];
        }
        if self.row.from == "fault" {
            return vec!["link-restored"];
        }
        if let Some(words) = self.by_processes().or_else(|| self.by_link()) {
            return words;
        }
        match self.row.to.as_str() {
            "primary" => self.gained(),
            "partial" if self.row.from != "primary" => self.gained(),
            _ => self.lost(),
        }
    }

    /// The time since a recorded moment.
    pub(super) fn age(self, at: Micros) -> Micros {
        self.row.at - at
    }

    /// The newest entry of the log with one of these acts on the node, if it is younger than `within`.
    fn newest(self, acts: &[&str], within: Micros) -> Option<&'a JournalEntry> {
        let mut entries = self.scene.run.acts(self.scene.node, acts).rev();
        let newest = entries.find(|entry| self.age(entry.at) >= -CLOCK_MARGIN);
        newest.filter(|entry| self.age(entry.at) < within)
    }

    /// The fault of the newest entry with this act on the node, if it is younger than `within`; empty if there is none.
    pub(super) fn fault(self, act: &str, within: Micros) -> &'a str {
        self.newest(&[act], within).map_or("", |entry| entry.fault.as_str())
    }

    /// Whether the node rightly says that it cannot know: the reason that it gives is a recorded fact.
    pub(super) fn is_rightly_unknown(self) -> bool {
        if self.row.cause != "unknown" {
            return false;
        }
        match self.row.evidence["unknown"].as_str() {
            // The configuration of the instance changed before the facts were complete.
            Some("superseded") => self.is_configured_just_now(),
            // The capture began, or the link changed, less than a master-down interval ago.
            Some("capture-incomplete") => {
                let window = self.scene.run.down_interval(1) + REACTION;
                self.age(self.scene.run.start) < window
                    || self.is_link_changed(window, true)
                    || self.is_link_changed(window, false)
            }
            Some("adverts-ignored") => self.has_other_addresses(),
            // The kernel does not name the process that removes an IPv6 address.
            Some("process-not-named") => {
                self.is_ipv6() && self.is_loss() && self.is_changed_by_hand()
            }
            _ => false,
        }
    }

    fn is_ipv6(self) -> bool {
        self.scene.facts().addresses.iter().any(|address| address.contains(':'))
    }

    pub(super) fn is_loss(self) -> bool {
        self.row.to != "primary" && matches!(self.row.from.as_str(), "primary" | "partial")
    }

    /// Whether the injector has just added or removed an address. It writes the entry before the act.
    fn is_changed_by_hand(self) -> bool {
        let mut acts = self.scene.run.acts(self.scene.node, &["address"]);
        acts.any(|entry| (-JOURNAL_MARGIN..REACTION).contains(&self.age(entry.at)))
    }

    /// The injector has added or removed an address. keepalived then removes or adds it again, or gives up its role:
    /// that is a consequence of the same act.
    fn by_hand(self) -> Option<Words> {
        if !self.is_changed_by_hand() {
            return None;
        }
        Some(match self.fault("fault-begin", REACTION) {
            // The kernel does not name the process that changes an IPv6 address; the node sees the reaction of keepalived.
            _ if self.is_loss() && self.is_ipv6() => {
                vec!["address-removed", "handed-over", "keepalived-fault"]
            }
            _ if self.is_loss() => vec!["address-removed"],
            // keepalived gives up its role when an address disappears, and takes it back if no other node has it.
            "address-removed" => {
                vec!["address-added", "address-removed", "fault-ended", "peer-silent"]
            }
            _ => vec!["address-added"],
        })
    }

    fn by_processes(self) -> Option<Words> {
        self.by_end()
            .or_else(|| self.by_start())
            .or_else(|| self.by_lost_link())
            .or_else(|| self.by_configuration())
    }

    /// keepalived removes its addresses when the link is lost; the kernel may show the link a little later.
    fn by_lost_link(self) -> Option<Words> {
        if !self.is_loss() || !self.is_link_changed(REACTION, false) {
            return None;
        }
        let mut words = vec!["link-lost", "keepalived-fault"];
        // The link was lost a moment after the transition: an election may have come before.
        let mut losses =
            self.scene.record().timeline.link.iter().skip(1).filter(|span| !span.value);
        if !losses.any(|span| (0..REACTION).contains(&self.age(span.start))) {
            words.extend(self.lost());
        }
        Some(words)
    }

    /// keepalived ended: it sends the priority 0 when it stops, and removes its addresses.
    fn by_end(self) -> Option<Words> {
        if self.row.to == "primary" {
            return None;
        }
        match self.fault("fault-begin", REACTION + SECOND) {
            "stop" | "restart" | "silenced-stop" => return Some(vec!["keepalived-stopped"]),
            "kill-parent" => return Some(vec!["keepalived-killed", "keepalived-stopped"]),
            "kill-both" => return Some(vec!["keepalived-killed"]),
            // The next VRRP child removes the addresses that the killed one left.
            "kill-child" | "crash-loop" if self.is_loss() => {
                return Some(vec!["keepalived-killed", "keepalived-started"]);
            }
            _ => {}
        }
        let is_ended = self.newest(&["keepalived-ended"], REACTION).is_some();
        let is_stopped = self.is_stop_all() && self.newest(&["signal"], REACTION).is_some();
        (self.is_loss() && (is_ended || is_stopped)).then(|| vec!["keepalived-stopped"])
    }

    /// keepalived, or its VRRP child, started.
    fn by_start(self) -> Option<Words> {
        let start = self.newest(&["keepalived-start", "child-started"], self.election())?.at;
        let is_reloaded = self.scene.reloads().any(|at| at > start + SECOND && at <= self.row.at);
        // After another lasting role since then, the start is no cause.
        let is_settled = self.scene.record().answers.rows.iter().any(|row| {
            row.instance == self.row.instance
                && row.to == "primary"
                && row.at > start + CLOCK_MARGIN
                && row.at < self.row.at
        });
        if is_settled || is_reloaded {
            return None;
        }
        let is_gain = matches!(self.row.to.as_str(), "primary" | "partial") && !self.is_loss();
        if !is_gain {
            // A new keepalived removes addresses that an earlier one left.
            return Some(vec!["keepalived-started", "preempted", "keepalived-killed"]);
        }
        let mut words =
            vec!["keepalived-started", "preempted-peer", "peer-silent", "peer-handed-over"];
        words.extend(self.is_peer_dropped().then_some("peer-priority-dropped"));
        Some(words)
    }

    /// The injector changed the file of keepalived.
    fn by_configuration(self) -> Option<Words> {
        let reload = self.scene.reloads().rev().find(|at| *at <= self.row.at);
        let is_by_peer = !self.is_loss() && (self.is_just_handed_over() || self.is_silent());
        if reload.is_some_and(|at| self.age(at) < self.election()) && !is_by_peer {
            let mut words =
                vec!["configuration-changed", "priority-dropped", "preempted", "preempted-peer"];
            let is_dropped = !self.is_loss() && self.is_peer_dropped();
            words.extend(is_dropped.then_some("peer-priority-dropped"));
            return Some(words);
        }
        self.is_configured_just_now().then(|| vec!["configuration-changed"])
    }

    /// The longest time from an act to the end of the election that it causes.
    fn election(self) -> Micros {
        self.scene.run.down_interval(1) + 2 * REACTION
    }

    /// Whether the injector stops all nodes, one after the other; the entry names the first one.
    fn is_stop_all(self) -> bool {
        let mut entries = self.scene.run.journal.iter().rev();
        let entry = entries.find(|entry| entry.act == "fault-begin" && entry.at <= self.row.at);
        entry.is_some_and(|entry| entry.fault == "stop-all")
    }

    /// Whether the file has had other addresses for a moment: the node follows them before keepalived does.
    fn is_configured_just_now(self) -> bool {
        self.scene.record().configured.windows(2).any(|pair| {
            let is_changed = pair[0].1 != pair[1].1;
            is_changed && (-CLOCK_MARGIN..REACTION).contains(&self.age(pair[1].0))
        })
    }

    fn by_link(self) -> Option<Words> {
        let within = self.scene.run.down_interval(1) + REACTION;
        if self.row.to != "primary" || !self.is_link_changed(within, true) {
            return None;
        }
        let mut words = vec!["link-restored", "preempted-peer", "peer-silent", "fault-ended"];
        words.extend(self.is_just_handed_over().then_some("peer-handed-over"));
        words.extend(self.is_peer_dropped().then_some("peer-priority-dropped"));
        Some(words)
    }

    /// Whether the node's link got this state within a time before the transition, or a moment after it.
    fn is_link_changed(self, within: Micros, is_up: bool) -> bool {
        let mut changes = self.scene.record().timeline.link.iter().skip(1);
        changes.any(|span| {
            span.value == is_up && (-CLOCK_MARGIN..within).contains(&self.age(span.start))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::answers::HistoryRow;
    use crate::check::node::NodeInstance;
    use crate::check::periods::Span;
    use crate::check::recording::RecordedRun;
    use crate::check::recording::examples::{delivered, run};

    fn row(from: &str, to: &str) -> HistoryRow {
        HistoryRow {
            seq: 2,
            at: 100 * SECOND,
            instance: "VI_1".to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            cause: String::new(),
            evidence: serde_json::Value::Null,
        }
    }

    fn expected(run: &RecordedRun, from: &str, to: &str) -> &'static str {
        let row = row(from, to);
        let scene = NodeInstance { run, node: 1, instance: 0 };
        Situation { scene, row: &row }.expected()[0]
    }

    /// The first word for node 1 if the switch delivered an advert of node 0 so many milliseconds before.
    fn gained_after(millis: i64, priority: u8) -> &'static str {
        let mut run = run();
        run.adverts = vec![delivered(100 * SECOND - millis * 1000, 0, 1, priority)];
        expected(&run, "backup", "primary")
    }

    #[test]
    fn the_last_advert_of_the_peer_decides_why_a_role_was_gained() {
        assert_eq!(gained_after(300, 0), "peer-handed-over");
        assert_eq!(gained_after(400, 90), "preempted-peer");
        assert_eq!(gained_after(3600, 150), "peer-silent");
    }

    #[test]
    fn a_peer_that_was_a_backup_when_this_node_gave_up_its_addresses_is_not_silent() {
        let mut run = run();
        run.adverts = vec![delivered(94 * SECOND, 0, 1, 50)];
        let loss = HistoryRow { seq: 1, at: 99 * SECOND, ..row("primary", "backup") };
        run.nodes[1].answers.rows = vec![loss];
        assert_eq!(expected(&run, "backup", "primary"), "fault-ended");
        run.nodes[1].answers.rows[0].at = 94 * SECOND;
        assert_eq!(expected(&run, "backup", "primary"), "peer-silent");
    }

    #[test]
    fn a_peer_whose_priority_sinks_may_be_the_cause_soon_after_the_link_is_back() {
        let mut run = run();
        let link = |start: i64, value| Span { start: start * SECOND, end: 200 * SECOND, value };
        run.nodes[1].timeline.link = vec![link(0, false), link(97, true)];
        let row = row("backup", "primary");
        let words = |run: &RecordedRun| {
            let scene = NodeInstance { run, node: 1, instance: 0 };
            Situation { scene, row: &row }.expected()
        };
        run.adverts = vec![delivered(98 * SECOND, 0, 1, 150)];
        assert!(!words(&run).contains(&"peer-priority-dropped"));
        run.adverts.push(delivered(99 * SECOND, 0, 1, 80));
        assert!(words(&run).contains(&"peer-priority-dropped"));
    }

    #[test]
    fn acts_of_the_injector_decide_before_adverts() {
        let entry = |at: i64, act: &str, fault: &str| JournalEntry {
            at: at * SECOND,
            act: act.to_owned(),
            node: Some(1),
            fault: fault.to_owned(),
            ..JournalEntry::default()
        };
        let mut run = run();
        assert_eq!(expected(&run, "primary", "backup"), "preempted");
        run.journal = vec![entry(99, "fault-begin", "stop")];
        assert_eq!(expected(&run, "primary", "backup"), "keepalived-stopped");
        assert_eq!(expected(&run, "backup", "fault"), "link-lost");
        run.journal = vec![entry(99, "fault-begin", "address-removed"), entry(99, "address", "")];
        assert_eq!(expected(&run, "primary", "backup"), "address-removed");
        run.journal = vec![entry(50, "fault-begin", "stop")];
        assert_eq!(expected(&run, "primary", "backup"), "preempted", "long ago");
    }
}

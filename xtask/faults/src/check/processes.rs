// SPDX-License-Identifier: Apache-2.0
//! The state of keepalived's processes on one node over time, from the log of the injector.

use crate::journal::JournalEntry;
use crate::moment::Micros;

/// A period with uncertain ends: it began between `start_min` and `start_max`, and ended between `end_min` and
/// `end_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UncertainSpan {
    pub start_min: Micros,
    pub start_max: Micros,
    pub end_min: Micros,
    pub end_max: Micros,
}

/// What the injector did with the processes of one node.
#[derive(Debug, Default)]
pub struct ProcessTimeline {
    /// No keepalived runs.
    pub gone: Vec<UncertainSpan>,
    /// The VRRP child is stopped by a signal.
    pub child_frozen: Vec<UncertainSpan>,
    /// The parent is stopped by a signal.
    pub parent_frozen: Vec<UncertainSpan>,
    /// The parent runs without a VRRP child.
    pub child_missing: Vec<UncertainSpan>,
    /// The file differs from the configuration in use.
    pub reload_pending: Vec<UncertainSpan>,
    /// Starts of keepalived.
    pub starts: Vec<Micros>,
    /// Starts of a further VRRP child below the same parent.
    pub child_starts: Vec<Micros>,
    /// Times from a signal to the start of the next VRRP child.
    pub child_pauses: Vec<(Micros, Micros)>,
    /// Reloads by a signal.
    pub reloads: Vec<Micros>,
}

/// Reads the log for one node.
pub fn of_node(journal: &[JournalEntry], node: usize, end: Micros) -> ProcessTimeline {
    let own: Vec<&JournalEntry> = journal.iter().filter(|entry| entry.node == Some(node)).collect();
    let times = |act: &str| -> Vec<Micros> {
        own.iter().filter(|entry| entry.act == act).map(|entry| entry.at).collect()
    };
    let fault = |word: &str| fault_spans(&own, &[word], end);
    let mut timeline = ProcessTimeline {
        gone: gone_spans(&own, end),
        child_frozen: fault("freeze-child"),
        parent_frozen: fault_spans(&own, &["freeze-parent", "lose-child"], end),
        child_missing: fault("lose-child"),
        reload_pending: fault("edit-only"),
        starts: times("keepalived-start"),
        child_starts: times("child-started"),
        child_pauses: Vec::new(),
        reloads: Vec::new(),
    };
    let is_reload = |entry: &&&JournalEntry| {
        entry.act == "signal"
            && entry.details["signals"]
                .as_array()
                .is_some_and(|names| names.iter().any(|name| name == "HUP"))
    };
    let signals = times("signal");
    let pause = |end: &Micros| Some((*signals.iter().rev().find(|signal| *signal < end)?, *end));
    timeline.child_pauses = timeline.child_starts.iter().filter_map(pause).collect();
    timeline.reloads = own.iter().filter(is_reload).map(|entry| entry.at).collect();
    timeline
}

/// The periods of faults with one of these words, from the injection to the recovery.
fn fault_spans(own: &[&JournalEntry], words: &[&str], end: Micros) -> Vec<UncertainSpan> {
    let mut spans: Vec<UncertainSpan> = Vec::new();
    for entry in own.iter().filter(|entry| words.contains(&entry.fault.as_str())) {
        match (entry.act.as_str(), spans.last_mut()) {
            ("fault-begin", _) => spans.push(UncertainSpan {
                start_min: entry.at,
                start_max: end,
                end_min: end,
                end_max: end,
            }),
            ("fault-done", Some(span)) => span.start_max = entry.at,
            ("recover-begin", Some(span)) => span.end_min = entry.at,
            ("recover-done", Some(span)) => span.end_max = entry.at,
            _ => {}
        }
    }
    spans
}

/// The periods from the signal that ended keepalived to its next start.
fn gone_spans(own: &[&JournalEntry], end: Micros) -> Vec<UncertainSpan> {
    let mut spans: Vec<UncertainSpan> = Vec::new();
    let mut signal = None;
    for entry in own {
        match (entry.act.as_str(), spans.last_mut()) {
            ("signal", _) => signal = Some(entry.at),
            ("keepalived-ended", _) => spans.push(UncertainSpan {
                start_min: signal.unwrap_or(entry.at),
                start_max: entry.at,
                end_min: end,
                end_max: end,
            }),
            ("keepalived-start", Some(span)) => span.end_min = entry.at,
            ("keepalived-started", Some(span)) if span.end_max == end => span.end_max = entry.at,
            _ => {}
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: Micros, act: &str, fault: &str) -> JournalEntry {
        let (act, fault) = (act.to_owned(), fault.to_owned());
        JournalEntry { at, act, node: Some(0), fault, details: serde_json::Value::Null }
    }

    #[test]
    fn keepalived_is_gone_from_the_signal_to_the_next_start() {
        let journal = [
            entry(1, "keepalived-start", ""),
            entry(2, "keepalived-started", ""),
            entry(10, "signal", ""),
            entry(12, "keepalived-ended", ""),
            entry(20, "keepalived-start", ""),
            entry(21, "keepalived-started", ""),
        ];
        let timeline = of_node(&journal, 0, 100);
        let span = UncertainSpan { start_min: 10, start_max: 12, end_min: 20, end_max: 21 };
        assert_eq!((timeline.gone, timeline.starts), (vec![span], vec![1, 20]));
        assert!(of_node(&journal, 1, 100).gone.is_empty());
    }

    #[test]
    fn a_fault_lasts_from_its_begin_to_its_recovery() {
        let acts = ["fault-begin", "fault-done", "recover-begin", "recover-done"];
        let journal: Vec<JournalEntry> =
            (1..).zip(acts).map(|(at, act)| entry(at, act, "lose-child")).collect();
        let timeline = of_node(&journal, 0, 100);
        let span = UncertainSpan { start_min: 1, start_max: 2, end_min: 3, end_max: 4 };
        assert_eq!((timeline.child_missing, timeline.parent_frozen), (vec![span], vec![span]));
        assert!(timeline.child_frozen.is_empty());
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Prints events in order. The line of a transition waits a little for its cause and for the latencies of its deliveries.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use vipwatch_api::{
    CauseEvent, DeliveryEvent, FindingEvent, FindingState, InstanceItem, NodeEvent, RemovedEvent,
    RoleKind, TransitionEvent,
};

use super::super::history::{cause_and_reason, change_text};
use crate::args::{Format, WatchArgs};
use crate::output::{self, Style, escape_untrusted, latencies};

/// Maximum time that a line waits for its cause and for the latencies of its deliveries.
const DELIVERY_WAIT: Duration = Duration::from_secs(1);

/// Prints events, or stores them until they can be printed.
pub(super) struct Printer {
    /// `None` to print nothing.
    format: Option<Format>,
    style: Style,
    /// The number of transitions until the command ends; `None` for no limit.
    left: Option<u64>,
    /// Transitions that are not printed yet, oldest first.
    waiting: VecDeque<WaitingLine>,
    /// For each instance with a printed role, the sequence number of its last transition.
    shown: BTreeMap<String, i64>,
    /// The last error of each delivery that fails.
    failing: BTreeMap<FailingKey, String>,
}

/// A target, and what its notifications are about.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FailingKey {
    source: String,
    target: String,
    id: Option<String>,
    finding: Option<String>,
}

/// A transition that is printed when its deliveries have ended and its cause is known.
struct WaitingLine {
    transition: TransitionEvent,
    /// Stages with deliveries that have not ended.
    pending: Vec<String>,
    /// Whether an event with the cause will follow.
    awaits_cause: bool,
    /// Failed deliveries, in the order of their first failure.
    failed: Vec<FailedTarget>,
    /// When the line is printed anyway.
    deadline: Instant,
}

/// A delivery that failed.
struct FailedTarget {
    stage: String,
    target: String,
    error: String,
}

/// Whether the command continues.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Stop,
}

impl Printer {
    pub(super) fn new(options: &WatchArgs) -> Self {
        let output = options.query.output();
        Self {
            format: (!output.quiet).then(|| output.format()),
            style: Style::new(),
            left: options.count,
            waiting: VecDeque::new(),
            shown: BTreeMap::new(),
            failing: BTreeMap::new(),
        }
    }

    /// Prints the current role of an instance, for people only.
    pub(super) fn role(&mut self, instance: &InstanceItem) {
        if let Some(Format::Table | Format::Wide) = self.format {
            self.shown.insert(instance.id.clone(), instance.seq);
            output::print(&format!("{}\n", role_line(instance, &self.style)));
        }
    }

    /// Prints a role at the start as a transition, which does not count.
    pub(super) fn initial(&mut self, event: &NodeEvent) -> Flow {
        let left = self.left.take();
        let flow = self.take(event);
        self.left = left;
        flow
    }

    /// Prints or stores an event.
    pub(super) fn take(&mut self, event: &NodeEvent) -> Flow {
        match self.format {
            Some(Format::Table | Format::Wide) => self.take_text(event),
            format => {
                let line = match format {
                    Some(Format::Json) => format!("{}\n", output::json_line(event)),
                    Some(Format::Yaml) => format!("---\n{}", output::yaml(event)),
                    Some(Format::Name) => {
                        event.id().map(|id| format!("{id}\n")).unwrap_or_default()
                    }
                    Some(Format::Table | Format::Wide) | None => String::new(),
                };
                let flow = print(&line);
                if flow == Flow::Continue && matches!(event, NodeEvent::Transition(_)) {
                    return self.count();
                }
                flow
            }
        }
    }

    fn take_text(&mut self, event: &NodeEvent) -> Flow {
        match event {
            NodeEvent::Transition(transition) => {
                let is_shown = |seq: &i64| transition.seq <= *seq;
                if self.shown.get(&transition.id).is_some_and(is_shown) {
                    return Flow::Continue;
                }
                self.waiting.push_back(WaitingLine::new(transition));
                self.flush(Instant::now())
            }
            NodeEvent::Delivery(delivery) => match self.delivery(delivery) {
                Some(line) if print_line(&line) == Flow::Stop => Flow::Stop,
                _ => self.flush(Instant::now()),
            },
            NodeEvent::Cause(cause) => match self.cause(cause) {
                Some(line) if print_line(&line) == Flow::Stop => Flow::Stop,
                _ => self.flush(Instant::now()),
            },
            NodeEvent::Removed(removed) => print_line(&removed_line(removed, &self.style)),
            NodeEvent::Finding(finding) => print_line(&finding_line(finding, &self.style)),
            NodeEvent::Dropped(dropped) => print_line(&format!(
                "({} events are missing: this command reads too slowly)",
                dropped.count
            )),
            // The command reports it on standard error.
            NodeEvent::Reset(_) => Flow::Continue,
        }
    }

    /// Adds a cause to the line that waits for it. The result is a line of its own if the transition is printed already.
    fn cause(&mut self, event: &CauseEvent) -> Option<String> {
        let is_same = |line: &&mut WaitingLine| line.transition.seq == event.transition;
        match self.waiting.iter_mut().find(is_same) {
            Some(line) => {
                line.transition.cause = event.cause.clone();
                line.awaits_cause = false;
                None
            }
            None => Some(cause_line(event, &self.style)),
        }
    }

    /// Adds a delivery to the line that waits for it. The result is a line of its own for a delivery of an earlier
    /// transition that has failed for the first time or with another error, was given up, or succeeded at last.
    fn delivery(&mut self, event: &DeliveryEvent) -> Option<String> {
        let key = FailingKey {
            source: event.source.clone(),
            target: event.target.clone(),
            id: event.id.clone(),
            finding: event.finding.clone(),
        };
        let last = self.failing.remove(&key);
        let is_new = last != event.error;
        if let Some(error) = event.error.as_ref().filter(|_| !event.is_final) {
            self.failing.insert(key, error.clone());
        }
        // A report of the receiver has a number of another sequence.
        let is_same = |line: &&mut WaitingLine| {
            line.transition.seq == event.notification && line.transition.source == event.source
        };
        if let Some(line) = self.waiting.iter_mut().find(is_same) {
            line.add(event);
            return None;
        }
        (is_new || event.error.is_some() && event.is_final)
            .then(|| delivery_line(event, &self.style))
    }

    /// Prints, in order, the lines with no pending delivery or with a deadline that has passed.
    pub(super) fn flush(&mut self, now: Instant) -> Flow {
        let is_ready = |line: &mut WaitingLine| {
            line.pending.is_empty() && !line.awaits_cause || line.deadline <= now
        };
        while let Some(line) = self.waiting.pop_front_if(is_ready) {
            if print_line(&line.text(&self.style)) == Flow::Stop || self.count() == Flow::Stop {
                return Flow::Stop;
            }
        }
        Flow::Continue
    }

    /// Prints all lines, with the deliveries that are known.
    pub(super) fn flush_all(&mut self) -> Flow {
        let latest = self.waiting.iter().map(|line| line.deadline).max();
        latest.map_or(Flow::Continue, |latest| self.flush(latest))
    }

    /// How long the first stored line may still wait; `None` if there is none.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let first = self.waiting.front()?;
        Some(first.deadline.saturating_duration_since(now).max(Duration::from_millis(1)))
    }

    /// Counts a printed transition.
    fn count(&mut self) -> Flow {
        let Some(left) = &mut self.left else { return Flow::Continue };
        *left -= 1;
        if *left == 0 { Flow::Stop } else { Flow::Continue }
    }
}

impl WaitingLine {
    fn new(transition: &TransitionEvent) -> Self {
        let is_pending = |stage: &&String| !transition.latencies.contains_key(*stage);
        // Only a primary announces its addresses.
        let is_primary = transition.to == RoleKind::Primary;
        let is_due = |stage: &&String| is_primary || *stage != "announce";
        let pending = transition.stages.iter().filter(is_pending).filter(is_due).cloned();
        Self {
            pending: pending.collect(),
            // A transition that the command has read from the kernel itself has no cause.
            awaits_cause: transition.cause.cause.is_none() && transition.source == "node",
            transition: transition.clone(),
            failed: Vec::new(),
            deadline: Instant::now() + DELIVERY_WAIT,
        }
    }

    /// Adds the result of a delivery.
    fn add(&mut self, event: &DeliveryEvent) {
        let DeliveryEvent { stage, target, .. } = event;
        let is_same = |failed: &FailedTarget| failed.stage == *stage && failed.target == *target;
        match &event.error {
            None => {
                let latency = event.micros.map(|micros| (stage.clone(), micros));
                self.transition.latencies.extend(latency);
                self.failed.retain(|failed| !is_same(failed));
            }
            Some(error) => {
                let error = error.clone();
                if let Some(known) = self.failed.iter_mut().find(|failed| is_same(failed)) {
                    known.error = error;
                } else {
                    let (stage, target) = (stage.clone(), target.clone());
                    self.failed.push(FailedTarget { stage, target, error });
                }
            }
        }
        if event.is_final || event.error.is_some() {
            self.pending.retain(|stage| *stage != event.stage);
        }
    }

    fn text(&self, style: &Style) -> String {
        let event = &self.transition;
        let cause = cause_and_reason(&event.cause, &event.trigger, event.reason.as_deref());
        let delivered = Some(latencies(&event.latencies)).filter(|text| !text.is_empty());
        let pending = self.pending.iter().map(|stage| format!("{stage} pending"));
        let failed = self.failed.iter().map(|FailedTarget { stage, target, error }| {
            format!("{stage} {target} failed: {error}")
        });
        let deliveries = delivered.into_iter().chain(pending).chain(failed);
        let deliveries = deliveries.collect::<Vec<_>>().join(", ");
        let deliveries =
            if deliveries.is_empty() { String::new() } else { format!("  [{deliveries}]") };
        let change = change_text(event.from.map(RoleKind::word), event.to.word());
        let time = style.precise_time(event.at);
        format!("{time}  {}  {change}  ({cause}){deliveries}", event.id)
    }
}

/// Prints a line of text that may contain text of other programs.
fn print_line(line: &str) -> Flow {
    print(&format!("{}\n", escape_untrusted(line)))
}

/// Prints a text. The command stops when the reader has closed the pipe.
fn print(text: &str) -> Flow {
    if output::print_or_closed(text) { Flow::Continue } else { Flow::Stop }
}

/// The current role of an instance in one line.
fn role_line(instance: &InstanceItem, style: &Style) -> String {
    let reason = instance.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let since = instance.since.map_or_else(|| "unknown".to_owned(), |since| style.time(since));
    let role = instance.role.word();
    escape_untrusted(&format!("{:<29}  {}  {role}{reason}  (since {since})", "now", instance.id))
}

/// A cause that has become known after its transition was printed.
fn cause_line(event: &CauseEvent, style: &Style) -> String {
    let change = change_text(event.from.map(RoleKind::word), event.to.word());
    let (time, text) = (style.precise_time(event.at), event.cause.text_or("unknown"));
    format!("{time}  {}  cause of {change}: {text}", event.id)
}

fn removed_line(event: &RemovedEvent, style: &Style) -> String {
    let from = event.from.map(|from| format!("{} → ", from.word())).unwrap_or_default();
    format!("{}  {}  {from}removed  (no longer configured)", style.precise_time(event.at), event.id)
}

fn finding_line(event: &FindingEvent, style: &Style) -> String {
    let finding = &event.finding;
    let id = event.id.as_deref().unwrap_or("node");
    let state = match event.state {
        FindingState::Open => format!("finding {}: {}", finding.name, finding.text),
        FindingState::Changed => {
            format!("finding {} has changed: {}", finding.name, finding.text)
        }
        FindingState::Closed => format!("finding {} has ended", finding.name),
    };
    format!("{}  {id}  {state}  ({})", style.precise_time(event.at), finding.severity.word())
}

/// The result of a delivery in one line.
fn delivery_line(event: &DeliveryEvent, style: &Style) -> String {
    let result = match (&event.error, event.is_final) {
        (None, _) => "succeeded".to_owned(),
        (Some(error), false) => format!("failed: {error}; the node retries"),
        (Some(error), true) => format!("was given up: {error}"),
    };
    let DeliveryEvent { stage, target, notification, .. } = event;
    let content = match &event.finding {
        Some(finding) => format!("finding {finding}"),
        None if event.source == "receiver" => format!("report {notification}"),
        None => notification.to_string(),
    };
    let (time, id) = (style.precise_time(event.at), event.id.as_deref().unwrap_or("node"));
    format!("{time}  {id}  delivery of {content} to {stage} {target} {result}")
}

#[cfg(test)]
pub(super) mod tests;

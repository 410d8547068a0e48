// SPDX-License-Identifier: Apache-2.0
//! The node's use of the history: what the last run stored, and what happens while the file cannot be written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use vipwatch_core::{Cause, RoleKind, Trigger};
use vipwatch_history::{LastRole, OpenedHistory, SetAsideFile, WRITER_WORKER, Writer};
use vipwatch_linux::worker::disk_waits;

use super::{Node, state_dir};
use crate::cause::recorded_cause;
use crate::event::time;
use crate::state::StateStore;
use crate::transition::{millis, time_from_millis};
use vipwatch_core::FindingKind;

/// How long a worker may wait for the disk until that is a finding.
const DISK_LIMIT: Duration = Duration::from_secs(10);

/// What the last run stored about one instance.
#[derive(Debug, Clone)]
pub(super) struct LastRunRole {
    pub(super) kind: RoleKind,
    /// When the instance took this role.
    pub(super) since: SystemTime,
    /// The sequence number of the transition.
    pub(super) seq: i64,
    /// The role before; `None` if it was not known, or is not stored any more.
    pub(super) from: Option<RoleKind>,
    /// The trigger of the transition; `Start` if it is not stored any more.
    pub(super) trigger: Trigger,
    /// The cause of the transition; `None` if it is not stored.
    pub(super) cause: Option<Arc<Cause>>,
}

/// Turns the stored words into triggers and causes.
pub(super) fn last_run(rows: BTreeMap<String, LastRole>) -> BTreeMap<String, LastRunRole> {
    let roles = rows.into_iter().map(|(id, row)| {
        let since = time_from_millis(row.since);
        let trigger =
            row.trigger.as_deref().and_then(|word| word.parse().ok()).unwrap_or(Trigger::Start);
        let cause = row.cause.as_ref().and_then(recorded_cause).map(Arc::new);
        (id, LastRunRole { kind: row.role, since, seq: row.seq, from: row.from, trigger, cause })
    });
    roles.collect()
}

impl Node {
    /// Copies the health of the history into the published state, and has a damaged file examined.
    pub(super) fn check_history(&mut self) {
        // A state directory that could not be created at the start has no lock.
        let mut error = self.history.failing();
        if self.lock.is_none() && error.is_none() {
            self.lock = state_dir::lock_if_usable(&self.config.state_dir).ok().flatten();
        }
        if self.store.take_history_damage() {
            self.history.check_for_damage();
        }
        self.history.take_set_aside().iter().for_each(log_set_aside);
        self.store.set_health(FindingKind::NodeHistoryFormat, self.history.other_format());
        let disk = disk_problem(&disk_waits(DISK_LIMIT));
        let hides_findings = disk.as_ref().is_some_and(|problem| problem.hides_findings);
        let disk = match disk {
            Some(problem) if problem.blocks_history && error.is_none() => {
                error = Some(problem.text);
                None
            }
            other => other.map(|problem| problem.text),
        };
        let counters = &self.store.counters;
        counters.history_dropped.store(self.history.dropped(), Ordering::Relaxed);
        let is_up = u64::from(error.is_none());
        let was_up = counters.history_up.swap(is_up, Ordering::Relaxed) != 0;
        match (&error, &disk) {
            (Some(error), _) if was_up => log_failing(error),
            (None, _) if !was_up => {
                tracing::info!(dropped = self.history.dropped(), "history is written again");
            }
            (None, Some(problem))
                if self.store.health_problem(FindingKind::NodeHistory).is_none() =>
            {
                tracing::warn!(problem, "the disk does not answer");
            }
            _ => {}
        }
        let error = error
            .map(|error| format!("it cannot be written, and deliveries are not durable: {error}"));
        let problems: Vec<String> = error.into_iter().chain(disk).collect();
        let problem = (!problems.is_empty()).then(|| problems.join("; "));
        let kind = FindingKind::NodeHistory;
        let severity = if hides_findings { Some(kind.severity()) } else { kind.milder() };
        self.store.set_health_as(kind, severity.unwrap_or(kind.severity()), problem);
        if self.history.take_outdated() {
            self.restate();
        }
    }

    /// Writes the current state of every instance and of every target, and the silences, because the history has lost transitions or
    /// begins with an empty file. Otherwise the next run would compare with an old state, and repeat or omit
    /// deliveries.
    fn restate(&self) {
        for (id, entry) in &self.store.view().entries {
            let (role, since) = (entry.role.kind(), millis(entry.since));
            self.history.store_last_role(id.to_string(), role, since, entry.seq);
        }
        self.notifier.store_again();
        self.silences.add_stored(self.history.take_late_silences());
        self.history.store_silences(self.silences.rows());
    }
}

/// Logs the state of the history when it was opened, and puts a failure and the length of its queue into the published
/// state.
pub(super) fn report_opened(opened: &OpenedHistory, store: &StateStore, history: &Writer) {
    let _ = store.history_queue.set(history.queue_length());
    store.counters.history_up.store(u64::from(opened.open_error.is_none()), Ordering::Relaxed);
    opened.set_aside.iter().for_each(log_set_aside);
    store.set_health(FindingKind::NodeHistoryFormat, history.other_format());
    if let Some(error) = &opened.open_error {
        log_failing(error);
    }
    if let Some(killed) = opened.killed {
        let last_seen = time(time_from_millis(killed));
        tracing::warn!(%last_seen, "the last run was killed; changes since then are not recorded");
    }
    let problem = opened
        .open_error
        .as_ref()
        .map(|error| format!("it cannot be opened, and deliveries are not durable: {error}"));
    store.set_health(FindingKind::NodeHistory, problem);
}

/// Workers without progress in a time in which they use the disk.
#[derive(Debug, PartialEq, Eq)]
struct DiskProblem {
    /// Whether the writer of the history is one of them.
    blocks_history: bool,
    /// Whether findings about instances may not be current.
    hides_findings: bool,
    text: String,
}

fn disk_problem(waiting: &[String]) -> Option<DiskProblem> {
    let blocks_history = waiting.iter().any(|name| name == WRITER_WORKER);
    let (names, limit) = (waiting.join("`, `"), DISK_LIMIT.as_secs());
    let text = format!("no progress for {limit} s in `{names}`: the disk may not answer");
    let hides_findings = waiting.iter().any(|name| name == "audit" || name == "processes");
    (!waiting.is_empty()).then_some(DiskProblem { blocks_history, hides_findings, text })
}

fn log_set_aside(file: &SetAsideFile) {
    let kept_as = file.path.display();
    if let Some(format) = file.format {
        tracing::error!(format, %kept_as, "history file has another format; a new one is begun");
    } else {
        tracing::error!(%kept_as, "history file is damaged; a new one is begun");
    }
}

fn log_failing(error: &str) {
    tracing::error!(error, "history cannot be written; the node runs without it and tries again");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_does_not_answer_another_worker_does_not_keep_the_history_from_being_written() {
        let problem = |waiting: &[&str]| {
            let waiting: Vec<String> = waiting.iter().map(|name| (*name).to_owned()).collect();
            let problem = disk_problem(&waiting)?;
            Some((problem.blocks_history, problem.hides_findings, problem.text))
        };
        assert_eq!(problem(&[]), None);
        let text = "no progress for 10 s in `discovery`: the disk may not answer".to_owned();
        assert_eq!(problem(&["discovery"]), Some((false, false, text)));
        let text = "no progress for 10 s in `audit`, `history`: the disk may not answer".to_owned();
        assert_eq!(problem(&["audit", "history"]), Some((true, true, text)));
    }
}

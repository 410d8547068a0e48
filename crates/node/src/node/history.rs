//! The node's use of the history: what the last run stored, and what happens while the file cannot be written.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use vipwatch_core::RoleKind;
use vipwatch_history::{LastRole, Latencies, OpenedHistory, Stage};

use super::{Node, state_dir};
use crate::state::{HealthTopic, InstanceEntry, StateStore};
use crate::transition::{millis, time_from_millis, time_text};

/// What the last run stored about one instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastRunRole {
    pub(super) kind: RoleKind,
    /// When the instance took this role.
    pub(super) since: SystemTime,
    /// Has a value for each stage that was delivered.
    pub(super) latencies: Latencies,
}

/// Turns the stored words into roles. A row with an unknown word is ignored.
pub(super) fn last_run(rows: BTreeMap<String, LastRole>) -> BTreeMap<String, LastRunRole> {
    let roles = rows.into_iter().filter_map(|(id, row)| {
        let kind = RoleKind::from_word(&row.role)?;
        let since = time_from_millis(row.since);
        Some((id, LastRunRole { kind, since, latencies: row.latencies }))
    });
    roles.collect()
}

impl Node {
    /// Copies the health of the history into the published state, and has a damaged file examined.
    pub(super) fn check_history(&mut self) {
        // A state directory that could not be created at the start has no lock.
        if self.lock.is_none() {
            self.lock = state_dir::lock(&self.config.state_dir).ok();
        }
        if self.store.take_history_damage() {
            self.history.check_for_damage();
        }
        for path in self.history.take_set_aside() {
            log_set_aside(&path);
        }
        let error = self.history.failing();
        let counters = &self.store.counters;
        counters.history_dropped.store(self.history.dropped(), Ordering::Relaxed);
        counters.history_up.store(u64::from(error.is_none()), Ordering::Relaxed);
        let was_failing = self.store.health_problem(HealthTopic::History).is_some();
        match &error {
            Some(error) if !was_failing => log_failing(error),
            None if was_failing => {
                tracing::info!(dropped = self.history.dropped(), "history is written again");
            }
            _ => {}
        }
        let problem = error.map(|error| format!("it cannot be written: {error}"));
        self.store.set_health(HealthTopic::History, problem);
        if self.history.take_outdated() {
            self.restate();
        }
    }

    /// Writes the current state of every instance, because the history has lost transitions or begins with an
    /// empty file. Otherwise the next run would compare with an old state, and repeat or omit deliveries.
    fn restate(&self) {
        self.history.store_silences(self.silences.rows());
        for (id, entry) in &self.store.view().entries {
            let role = entry.role.as_str().to_owned();
            let mut latencies = entry.latencies;
            for stage in [Stage::Hook, Stage::Webhook] {
                if is_concluded(entry, stage) {
                    latencies.set(stage, latencies.of(stage).unwrap_or(0));
                }
            }
            let last = LastRole { role, since: millis(entry.since), latencies };
            self.history.store_last_role(id.to_string(), entry.seq, last);
        }
    }
}

/// Whether no delivery is pending: the stage has delivered, or there was nothing to notify.
fn is_concluded(entry: &InstanceEntry, stage: Stage) -> bool {
    !entry.must_notify || entry.latencies.of(stage).is_some()
}

/// Logs the state of the history when it was opened, and puts a failure into the published state.
pub(super) fn report_opened(opened: &OpenedHistory, store: &StateStore) {
    if let Some(path) = &opened.set_aside {
        log_set_aside(path);
    }
    if let Some(error) = &opened.open_error {
        log_failing(error);
    }
    if let Some(killed) = opened.killed {
        let last_seen = time_text(killed);
        tracing::warn!(last_seen, "the last run was killed; changes since then are not recorded");
    }
    let problem = opened.open_error.as_ref().map(|error| format!("it cannot be opened: {error}"));
    store.set_health(HealthTopic::History, problem);
}

fn log_set_aside(path: &Path) {
    tracing::error!(kept_as = %path.display(), "history file is damaged; a new one is begun");
}

fn log_failing(error: &str) {
    tracing::error!(error, "history cannot be written; the node runs without it and tries again");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_word_that_is_no_role_is_ignored() {
        let row = |role: &str| LastRole {
            role: role.to_owned(),
            since: 5_000,
            latencies: Latencies::default(),
        };
        let rows = [("a", row("primary")), ("b", row("leader"))];
        let roles = last_run(rows.map(|(id, row)| (id.to_owned(), row)).into());
        let ids: Vec<&str> = roles.keys().map(String::as_str).collect();
        assert_eq!((ids, roles["a"].kind), (vec!["a"], RoleKind::Primary));
        assert_eq!(millis(roles["a"].since), 5_000);
    }
}

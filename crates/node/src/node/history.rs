//! The node's history: reported when it cannot be used, brought up to date when it can again.

use std::sync::atomic::Ordering;

use vipwatch_history::{LastRole, OpenedHistory, Stage};

use super::{Node, lock};
use crate::state::InstanceEntry;
use crate::transition::{millis, time_text};

impl Node {
    /// Takes over what has become of the history since the last call.
    pub(super) fn check_history(&mut self) {
        // A state directory that could not be made at the start has no lock.
        if self.lock.is_none() {
            self.lock = lock(&self.config.state_dir).ok();
        }
        if self.store.take_history_damage() {
            self.writer.examine();
        }
        for aside in self.writer.take_set_aside() {
            log_set_aside(&aside);
        }
        let failing = self.writer.failing();
        let counters = &self.store.counters;
        counters.history_dropped.store(self.writer.dropped(), Ordering::Relaxed);
        counters.history_up.store(u64::from(failing.is_none()), Ordering::Relaxed);
        let was_failing = self.store.health_problems().iter().any(|(name, ..)| *name == "history");
        match &failing {
            Some(error) if !was_failing => log_failing(error),
            None if was_failing => {
                let dropped = self.writer.dropped();
                tracing::info!(dropped, "history is written again");
            }
            _ => {}
        }
        self.store
            .set_health("history", failing.map(|error| format!("it cannot be written: {error}")));
        if self.writer.take_outdated() {
            self.restate();
        }
    }

    /// Writes the present state of every instance: the history has lost changes, or begins anew. The
    /// next node would otherwise compare with an old state, and repeat or omit deliveries.
    fn restate(&self) {
        for (id, entry) in &self.store.view().entries {
            let role = entry.role.as_str().to_owned();
            let mut latencies = entry.latencies;
            for stage in [Stage::Hook, Stage::Webhook] {
                if is_concluded(entry, stage) {
                    latencies.set(stage, latencies.of(stage).unwrap_or(0));
                }
            }
            let last = LastRole { role, since: millis(entry.since), latencies };
            self.writer.restate(id.to_string(), entry.seq, last);
        }
    }
}

/// Whether nothing is left to deliver: a start that finds a role unchanged delivers nothing.
fn is_concluded(entry: &InstanceEntry, stage: Stage) -> bool {
    !entry.is_news || entry.latencies.of(stage).is_some()
}

/// Logs the findings of opening the history.
pub(super) fn log_opened(opened: &OpenedHistory) {
    if let Some(aside) = &opened.set_aside {
        log_set_aside(aside);
    }
    if let Some(error) = &opened.failed {
        log_failing(error);
    }
    if let Some(killed) = opened.killed {
        let text = "the node before was killed; what happened since is not recorded";
        tracing::warn!("{text}: last seen {}", time_text(killed));
    }
}

fn log_set_aside(aside: &std::path::Path) {
    tracing::error!(kept_as = %aside.display(), "history file is damaged; a new one is begun");
}

fn log_failing(error: &str) {
    tracing::error!(error, "history cannot be written; the node runs without it and tries again");
}

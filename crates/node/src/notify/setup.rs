// SPDX-License-Identifier: Apache-2.0
//! Starts the notifier: connects it with the history, the silences and the main loop.

use std::path::Path;
use std::sync::Arc;

use vipwatch_history::{DeliveryStore, StoredDelivery};

use super::backlog::{self, BacklogSources, SharedJournal};
use super::notification::ReportQueue;
use super::notifier::Notifier;
use super::slots::Slots;
use super::target_queue::QueueContext;
use crate::config::Config;
use crate::event::NodeIdentity;
use crate::hook_runner::client::HookRunner;
use crate::silence::Silences;
use crate::state::StateStore;

/// What the notifier needs.
pub struct NotifierSetup<'a> {
    /// The name of the node and the epoch of its history.
    pub identity: NodeIdentity,
    /// Where deliveries are stored.
    pub deliveries: DeliveryStore,
    /// What the last run has stored.
    pub stored: Vec<StoredDelivery>,
    /// Whether the last run was killed: targets may have received more than it has stored.
    pub is_uncertain: bool,
    /// The directory of the history.
    pub state_dir: &'a Path,
    /// The published state of the node.
    pub states: &'a Arc<StateStore>,
    /// The silences of the node.
    pub silences: Arc<Silences>,
    /// The configuration, for hooks.
    pub config: &'a Config,
}

impl NotifierSetup<'_> {
    /// A notifier without targets. The results of deliveries are logged and counted only.
    pub fn start(self) -> Notifier {
        self.start_with(None)
    }

    /// As [`Self::start`]; the results of all deliveries also go to `reports`.
    pub(crate) fn start_with(self, reports: Option<ReportQueue>) -> Notifier {
        let journal = SharedJournal::default();
        let read_backlog = backlog::reader(BacklogSources {
            state_dir: self.state_dir.to_owned(),
            deliveries: self.deliveries.clone(),
            states: Arc::clone(self.states),
            journal: Arc::clone(&journal),
            silences: Arc::clone(&self.silences),
        });
        let context = QueueContext {
            identity: self.identity,
            store: Some(self.deliveries),
            reports,
            silences: self.silences,
            read_backlog,
            journal,
            slots: Slots::new(),
            hooks_at_once: self.config.hooks_at_once,
            hook_runner: HookRunner::new(self.config, self.states),
        };
        Notifier::new(self.stored, self.is_uncertain, context)
    }
}

// SPDX-License-Identifier: Apache-2.0
//! A reload applies another configuration while the node runs. Instances that stay configured keep their role
//! and their pending deliveries.

use std::collections::BTreeSet;

use vipwatch_api::ReloadOutcome;
use vipwatch_core::{ErrorChain, InstanceId};
use vipwatch_history::DeliverySource;
use vipwatch_linux::clock;
use vipwatch_receiver::ListenSource;

use super::Node;
use super::config_changes::ConfigChanges;
use crate::config::{Config, ReceiverConfig};
use crate::receiver::{ReceiverService, ServiceContext};
use crate::service;
use crate::state::in_one_line;
use crate::view::ReloadGaps;
use crate::watch::follower::FollowerUpdate;
use vipwatch_core::FindingKind;

impl Node {
    /// Reads the configuration again for the clients that ask for it, and answers them.
    pub(super) fn serve_reload_requests(&mut self) {
        let requests = self.reload_requests.take_all();
        if requests.is_empty() {
            return;
        }
        let outcome = self.reload();
        for request in requests {
            request.complete(outcome.clone());
        }
    }

    /// Reads the configuration again, and applies it if it is valid. Returns how that ended.
    pub(super) fn reload(&mut self) -> ReloadOutcome {
        service::notify_reloading();
        self.api_server.reload();
        let outcome = match (self.load_config)() {
            Ok(config) => self.apply(config),
            Err(error) => {
                let error = ErrorChain(&error).to_string();
                let errors = in_one_line(&error);
                tracing::error!(
                    error = errors,
                    "configuration rejected; the previous one stays in use"
                );
                self.store.set_health(FindingKind::NodeConfiguration, Some(error.clone()));
                self.context.service.record_failed_reload(error)
            }
        };
        self.audit_worker.compare_findings();
        service::notify("READY=1");
        outcome
    }

    fn apply(&mut self, config: Config) -> ReloadOutcome {
        let changes = ConfigChanges::between(&self.config.settings(), &config.settings());
        changes.log();
        let ids_before = self.instance_ids();
        if let Err(error) = self.outlets.configure(config.rules.clone()) {
            tracing::error!(%error, "cannot start the announcement worker");
        }
        self.apply_receiver(config.receiver.as_ref(), ListenSource::New);
        self.audit_worker.set_interval(config.audit_every);
        if config.witness != self.config.witness {
            self.witness.configure(config.witness.clone());
        }
        self.follower.set_locations(config.locations.clone(), config.instances.clone());
        self.config = self.config.with_reloaded(config);
        let gaps = ReloadGaps {
            error: self.store.health_problem(FindingKind::NodeReceiver),
            needs_restart: changes.needs_restart(),
            pending: self.pending_parts(),
        };
        let outcome = self.context.service.record_reload(&self.config, gaps);
        self.watch_agent_sockets();
        let update = self.follower.rediscover();
        // All instances, because the targets of an instance that has not changed may have changed.
        let instances = Some(self.follower.instances().to_vec());
        self.publish_update(FollowerUpdate { instances, ..update }, clock::now());
        self.resume_findings();
        self.deliver_to_new_targets();
        self.config.log_warnings(self.follower.instances());
        self.store.set_health(FindingKind::NodeConfiguration, None);
        self.log_reload(&changes, &ids_before);
        outcome
    }

    /// The changes that the node applies after the reload.
    fn pending_parts(&self) -> Vec<String> {
        let waits = self.config.receiver.is_some()
            && self.receiver.is_none()
            && self.closing_receiver.is_some();
        let text = "the receiver starts when the previous one has shut down";
        waits.then(|| text.to_owned()).into_iter().collect()
    }

    fn instance_ids(&self) -> BTreeSet<InstanceId> {
        self.store.view().entries.keys().cloned().collect()
    }

    /// Logs the instances that the reload has added, and how much it has changed.
    fn log_reload(&self, changes: &ConfigChanges, ids_before: &BTreeSet<InstanceId>) {
        let ids = self.instance_ids();
        for id in ids.difference(ids_before) {
            tracing::info!(instance = %id, "instance added");
        }
        tracing::info!(
            targets_added = changes.added.len(),
            targets_removed = changes.removed.len(),
            targets_changed = changes.changed.len(),
            settings_changed = changes.settings.len(),
            instances_added = ids.difference(ids_before).count(),
            instances_removed = ids_before.difference(&ids).count(),
            "configuration reloaded"
        );
    }

    /// Starts, reconfigures or stops the receiver. A failure is reported, and the node runs without it.
    pub(super) fn apply_receiver(
        &mut self,
        config: Option<&ReceiverConfig>,
        listen_source: ListenSource,
    ) {
        let applied = match (&mut self.receiver, config) {
            // Also clears the error of a configuration that was reverted.
            (Some(receiver), Some(config)) if receiver.config() == config => Ok(()),
            (Some(receiver), Some(config)) => receiver.configure(config),
            (None, Some(_)) if self.closing_receiver.is_some() => {
                tracing::info!("the new receiver starts when the previous one has shut down");
                return;
            }
            (None, Some(config)) => {
                ReceiverService::open(config, &self.service_context(), listen_source)
                    .map(|receiver| self.replace_receiver(Some(receiver)))
            }
            (_, None) => {
                self.replace_receiver(None);
                Ok(())
            }
        };
        let error = applied.err().map(|error| ErrorChain(&error).to_string());
        if let Some(error) = &error {
            tracing::error!(error, "cannot apply [receiver] of the configuration");
        } else if self.store.health_problem(FindingKind::NodeReceiver).is_some() && config.is_some()
        {
            tracing::info!("receiver runs again");
        }
        self.store.set_health(FindingKind::NodeReceiver, error);
        self.history.set_targets(self.notifier.stored_targets());
    }

    /// From now on, monitors report to `receiver`, or to no receiver. The previous one shuts down on a thread
    /// of its own: it waits some seconds for monitors and deliveries, and the loop does not.
    pub(super) fn replace_receiver(&mut self, receiver: Option<ReceiverService>) {
        self.receiver_handle.set(receiver.as_ref().map(ReceiverService::status));
        let previous = std::mem::replace(&mut self.receiver, receiver);
        if let Some(closing) = previous.and_then(ReceiverService::close) {
            self.closing_receiver = Some(closing);
        }
    }

    /// Once a receiver has shut down, starts the one that the configuration asks for now.
    pub(super) fn finish_closing_receiver(&mut self) {
        if self.closing_receiver.take_if(|closing| closing.has_ended()).is_some() {
            let receiver = self.config.receiver.clone();
            if receiver.is_none() {
                // The pending notifications stay on the disk, for a receiver that is configured later.
                self.notifier.configure(DeliverySource::Receiver, &[]);
            }
            self.apply_receiver(receiver.as_ref(), ListenSource::New);
        }
    }

    /// Stops the receiver when the node stops; returns when it has shut down.
    pub(super) fn close_receiver_and_wait(&mut self) {
        self.replace_receiver(None);
        if let Some(closing) = self.closing_receiver.take() {
            closing.wait();
        }
    }

    fn service_context(&self) -> ServiceContext {
        ServiceContext {
            state_dir: self.config.state_dir.clone(),
            notifier: self.notifier.clone(),
            history: None,
            keep_undelivered: self.config.keep.undelivered,
        }
    }
}

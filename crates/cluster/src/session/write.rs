// SPDX-License-Identifier: Apache-2.0
//! The writes of the session: registration, roles, heartbeats.

use std::sync::PoisonError;

use tokio::time::Instant;
use vipwatch_api::ClusterNodeState;

use super::acknowledged::AcknowledgedWrite;
use super::counters::add;
use super::registration::{HeartbeatValues, RegistrationAttempt, RegistrationLoss};
use super::worker::{SessionLink, Worker};
use super::{ClusterEvent, NameHolder};
use crate::etcd::messages::{Compare, RequestOp};
use crate::etcd::{EtcdError, MAX_OPERATIONS};
use crate::key::{ClusterKey, ClusterName};
use crate::view::NodeView;

impl Worker {
    /// Takes the name of the node in etcd, if no other process has it.
    pub(super) async fn register(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        self.heartbeat.restart();
        let values = self.heartbeat_values();
        match self.identity.register(link.connection, values).await? {
            RegistrationAttempt::Registered(registration, keys) => {
                self.registration = Some(registration);
                link.lease = None;
                self.published.note_keys(&keys);
                self.published.compare_all();
                self.has_left_old_names = false;
                self.are_silences_due = true;
                let mut status = self.shared.status();
                status.is_registered = true;
                let was_taken = status.name_holder.take().is_some();
                drop(status);
                tracing::info!(node = %self.settings.node, "registered in etcd");
                if was_taken {
                    self.observer.event(ClusterEvent::NameFree);
                }
            }
            RegistrationAttempt::Lost(loss) => self.lose_registration(loss),
        }
        Ok(())
    }

    /// This process no longer has the name in etcd.
    pub(super) fn lose_registration(&mut self, loss: RegistrationLoss) {
        let was_registered = self.registration.take().is_some();
        self.last_write = None;
        self.heartbeat.restart();
        let mut status = self.shared.status();
        status.is_registered = false;
        match loss {
            RegistrationLoss::LeaseEnded if was_registered => {
                drop(status);
                add(&self.shared.counters.lease_losses, 1);
                tracing::warn!(node = %self.settings.node, "the lease of this node in etcd has ended");
            }
            RegistrationLoss::LeaseEnded
            | RegistrationLoss::MembershipGone
            | RegistrationLoss::OtherData => {}
            RegistrationLoss::NameTaken { epoch, version } => {
                self.identity.yield_name();
                let holder = NameHolder { epoch, version };
                let is_new = status.name_holder.replace(holder.clone()).is_none();
                drop(status);
                self.pause_writes();
                if is_new {
                    add(&self.shared.counters.name_conflicts, 1);
                    let (node, NameHolder { epoch, version }) = (&self.settings.node, &holder);
                    tracing::error!(
                        %node,
                        epoch,
                        version,
                        "another process publishes under the name of this node"
                    );
                    self.observer.event(ClusterEvent::NameTaken);
                }
            }
        }
    }

    /// Writes the roles that differ from those in etcd. Many of them need longer than the lease, so that it is renewed
    /// meanwhile.
    pub(super) async fn publish(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        loop {
            self.renew_lease(link).await?;
            let Some(registration) = self.registration else { return Ok(()) };
            let source = self.source.clone();
            let role = |instance: &_| source.role(instance);
            let Some(batch) = self.published.next_batch(registration.membership, role) else {
                return Ok(());
            };
            let fence = vec![self.identity.fence(&registration)];
            let operations = batch.operations.clone();
            let (count, bytes) = (operations.len(), batch.bytes);
            let node_key = &self.identity.node_key;
            match link.connection.commit(fence, operations, node_key).await {
                Ok(result) if result.is_done => {
                    self.revision = self.revision.max(result.revision);
                    self.note_write(&batch.operations, result.revision);
                    self.published.committed(batch, result.revision);
                    self.count_write(count, bytes);
                }
                Ok(result) => {
                    self.published.failed(batch);
                    let loss = self.identity.loss(&result);
                    self.lose_registration(loss);
                }
                Err(EtcdError::LeaseEnded { .. }) => {
                    // An operator has ended the lease of the membership. Its keys may be gone before the watch says so.
                    self.published.failed(batch);
                    self.lose_registration(RegistrationLoss::MembershipGone);
                }
                Err(error) => {
                    self.published.failed(batch);
                    return Err(error);
                }
            }
        }
    }

    /// Ends the memberships that this node has left behind under other names: its name was changed in the configuration. Its
    /// history shows that it is the same node.
    pub(super) async fn leave_old_names(
        &mut self,
        link: &SessionLink<'_>,
    ) -> Result<(), EtcdError> {
        if self.has_left_old_names || self.registration.is_none() {
            return Ok(());
        }
        let old: Vec<ClusterName> = {
            let view = self.shared.view.read().unwrap_or_else(PoisonError::into_inner);
            let is_old = |node: &NodeView<'_>| {
                *node.name != self.settings.node
                    && node.state == ClusterNodeState::Stopped
                    && node.epoch() == self.settings.epoch
            };
            view.nodes().filter(is_old).map(|node| node.name.clone()).collect()
        };
        // Not again before the next registration, also if etcd refuses it.
        self.has_left_old_names = true;
        for name in old {
            self.delete_name(link, &name).await?;
        }
        Ok(())
    }

    /// Deletes the membership of a name and its roles, unless a process has it. Their leases are not ended: another client may
    /// have given them other keys.
    async fn delete_name(
        &self,
        link: &SessionLink<'_>,
        name: &ClusterName,
    ) -> Result<(), EtcdError> {
        let keys = self.identity.keys();
        let roles: Vec<String> = {
            let view = self.shared.view.read().unwrap_or_else(PoisonError::into_inner);
            view.role_keys_of(name).map(|key| keys.text(&key)).collect()
        };
        let member = keys.text(&ClusterKey::Member(name.clone()));
        let node = keys.text(&ClusterKey::Node(name.clone()));
        let all: Vec<String> = roles.into_iter().chain([member]).collect();
        for batch in all.chunks(MAX_OPERATIONS) {
            let absent = vec![Compare::create_revision_is(&node, 0)];
            let deletes = batch.iter().map(|key| RequestOp::delete(key)).collect();
            link.connection.commit(absent, deletes, &node).await?;
        }
        tracing::info!(old = %name, node = %self.settings.node, "node renamed");
        Ok(())
    }

    /// Notes what etcd has acknowledged.
    pub(super) fn note_write(&mut self, operations: &[RequestOp], revision: i64) {
        let before = self.last_write.take();
        self.last_write = AcknowledgedWrite::after(operations, revision, before);
    }

    pub(super) fn count_write(&self, count: usize, bytes: usize) {
        add(&self.shared.counters.transactions, 1);
        add(&self.shared.counters.writes, count);
        add(&self.shared.counters.written_bytes, bytes);
    }

    /// Writes a heartbeat, if the main loop has answered or its time is over.
    pub(super) async fn beat(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        self.confirm_conflicts();
        let Some(mut registration) = self.registration else { return Ok(()) };
        if !self.heartbeat.is_ready(Instant::now()) {
            return Ok(());
        }
        let values = self.heartbeat_values();
        let written = self.identity.heartbeat(link.connection, &mut registration, values).await;
        match ended(written)? {
            Ok(revision) => {
                self.registration = Some(registration);
                self.revision = self.revision.max(revision);
                self.heartbeat.written();
                add(&self.shared.counters.heartbeats, 1);
                self.count_write(1, 0);
            }
            Err(loss) => self.lose_registration(loss),
        }
        Ok(())
    }

    /// Renews the lease if a heartbeat is due, and asks the main loop for its confirmation.
    pub(super) async fn renew_lease(
        &mut self,
        link: &mut SessionLink<'_>,
    ) -> Result<(), EtcdError> {
        let is_outdated = self.is_outdated();
        let Some(registration) = &mut self.registration else { return Ok(()) };
        if !self.heartbeat.is_due(Instant::now()) {
            return Ok(());
        }
        if !is_outdated {
            match registration.renew(link.connection, &mut link.lease).await {
                Ok(revision) => self.revision = self.revision.max(revision),
                Err(EtcdError::LeaseEnded { .. }) => {
                    link.lease = None;
                    self.lose_registration(RegistrationLoss::LeaseEnded);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.heartbeat.begin(Instant::now());
        let unconfirmed = self.conflicts.unconfirmed(self.heartbeat.seen());
        let request = self.heartbeat.ask(self.revision, unconfirmed);
        self.observer.event(ClusterEvent::ConfirmationWanted(request));
        Ok(())
    }

    /// Asks the main loop at once if another live node claims an address that this node claims too.
    pub(super) fn confirm_conflicts(&mut self) {
        if self.registration.is_none() {
            return;
        }
        if self.conflicts.has_unconfirmed(self.heartbeat.asked_seen()) {
            // The new request replaces one that is not answered yet: it has the instances of both.
            let unconfirmed = self.conflicts.unconfirmed(self.heartbeat.seen());
            let request = self.heartbeat.ask(self.revision, unconfirmed);
            self.observer.event(ClusterEvent::ConfirmationWanted(request));
        }
    }

    fn heartbeat_values(&mut self) -> HeartbeatValues {
        let (facts, notifies) = (self.source.facts(), self.source.notifies());
        let (count, seen) = (self.heartbeat.next_count(), self.heartbeat.seen());
        HeartbeatValues { count, seen, seq: facts.seq, instances: facts.instances, notifies }
    }
}

/// The end of the lease of the process as the loss of the registration.
fn ended<T>(
    written: Result<Result<T, RegistrationLoss>, EtcdError>,
) -> Result<Result<T, RegistrationLoss>, EtcdError> {
    match written {
        Err(EtcdError::LeaseEnded { .. }) => Ok(Err(RegistrationLoss::LeaseEnded)),
        written => written,
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The election of the reporter, and its writes.

use std::time::Duration;

use tokio::time::Instant;
use vipwatch_api::{ClusterNodeState, ClusterScope, Timestamp};
use vipwatch_core::{ErrorChain, Moment};

use super::ClusterEvent;
use super::counters::add;
use super::registration::Registration;
use super::reporter::ReporterWork;
use super::worker::{SessionLink, Worker, is_rejection};
use crate::etcd::messages::{Compare, RequestOp};
use crate::etcd::{EtcdError, EtcdErrorKind};
use crate::findings::EvaluationTime;
use crate::follow::{RangeFollower, write};
use crate::key::ClusterKey;
use crate::record::{ClusterRecord, ClusterRecordError, FORMAT, ReporterRecord, encode};
use crate::view::{NodeView, StoredValue, ViewChange};

/// The number of refused transactions after which the session reads the waiting changes.
const MAX_REFUSALS: usize = 8;

/// How long ended findings share a lease.
const RETENTION_LEASE_AGE: Duration = Duration::from_hours(1);

/// The key `reporter` in the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReporterKey {
    /// There is none, or none of a process.
    Absent,
    /// This process has it, since this revision.
    Own(i64),
    Other,
}

impl Worker {
    /// Becomes the reporter if there is none, evaluates the view, and writes the findings.
    pub(super) async fn report(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        let Some(registration) = self.registration else {
            return self.resign(link).await;
        };
        let elected = self.reporter.as_ref().map(ReporterWork::create_revision);
        if self.yields_report() {
            return self.abdicate(link, &registration).await;
        }
        match (self.reporter_key(), elected) {
            (ReporterKey::Own(key), Some(revision)) if key == revision => {}
            // The second case: a lost connection has interrupted the election of this node.
            (_, Some(_)) | (ReporterKey::Other, None) => return self.resign(link).await,
            (ReporterKey::Absent, None) => match self.campaign(link, &registration).await? {
                Some(revision) => self.elected(link, revision).await?,
                // Another node was faster: the watch delivers its key.
                None => return Ok(()),
            },
            (ReporterKey::Own(revision), None) => self.elected(link, revision).await?,
        }
        self.evaluate();
        self.write_findings(link).await
    }

    /// Whether this node has no target for findings, and another live node has one.
    fn yields_report(&self) -> bool {
        if self.source.notifies() {
            return false;
        }
        let view = self.shared.view.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let notifies = |node: NodeView<'_>| {
            *node.name != self.settings.node
                && node.state == ClusterNodeState::Live
                && node.process.is_some_and(|process| process.record.notifies)
        };
        view.nodes().any(notifies)
    }

    /// Gives the report to another node.
    async fn abdicate(
        &mut self,
        link: &mut SessionLink<'_>,
        registration: &Registration,
    ) -> Result<(), EtcdError> {
        if let ReporterKey::Own(revision) = self.reporter_key() {
            let key = self.identity.keys().text(&ClusterKey::Reporter);
            let own = Compare::create_revision_is(&key, revision);
            let compares = vec![own, self.identity.fence(registration)];
            link.connection.commit(compares, vec![RequestOp::delete(&key)], &key).await?;
        }
        self.resign(link).await
    }

    /// Creates the key `reporter`. Returns its revision; `None` if another node has it.
    async fn campaign(
        &self,
        link: &SessionLink<'_>,
        registration: &Registration,
    ) -> Result<Option<i64>, EtcdError> {
        let value = self.reporter_record();
        let key = self.identity.keys().text(&ClusterKey::Reporter);
        let lease = registration.live;
        let put = vec![RequestOp::put(&key, value.as_slice(), Some(lease))];
        let absent = Compare::create_revision_is(&key, 0);
        let compares = vec![absent, self.identity.fence(registration)];
        let result = match link.connection.commit(compares, put, &key).await {
            // The next heartbeat finds that the lease of the process has ended.
            Err(EtcdError::LeaseEnded { .. }) => return Ok(None),
            result => result?,
        };
        if !result.is_done {
            if let Some(found) = result.found.filter(is_of_no_process) {
                self.delete_reporter(link, registration, &found).await?;
            }
            return Ok(None);
        }
        self.count_write(1, value.len());
        // The watch delivers it again, and the view ignores that.
        let (mod_revision, create_revision) = (result.revision, result.revision);
        let stored = StoredValue { key, value, mod_revision, create_revision, lease: lease.0 };
        write(&self.shared.view).apply(ViewChange::Put(stored));
        Ok(Some(result.revision))
    }

    /// Deletes the key `reporter`, if it is still the one that was found. The watch delivers the deletion.
    async fn delete_reporter(
        &self,
        link: &SessionLink<'_>,
        registration: &Registration,
        found: &StoredValue,
    ) -> Result<(), EtcdError> {
        tracing::warn!(
            key = found.key,
            "deleting a key of the reporter that no process has written"
        );
        let same = Compare::mod_revision_is(&found.key, found.mod_revision);
        let compares = vec![same, self.identity.fence(registration)];
        let delete = vec![RequestOp::delete(&found.key)];
        link.connection.commit(compares, delete, &found.key).await?;
        Ok(())
    }

    fn reporter_key(&self) -> ReporterKey {
        let view = self.shared.view.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let live = self.registration.map(|registration| registration.live.0);
        match view.reporter_key() {
            None => ReporterKey::Absent,
            // A key that no lease ends would prevent elections for ever.
            Some(key) if key.lease == 0 => ReporterKey::Absent,
            Some(key) if key.record.process == self.identity.process && Some(key.lease) == live => {
                ReporterKey::Own(key.create_revision)
            }
            Some(_) => ReporterKey::Other,
        }
    }

    fn reporter_record(&self) -> Vec<u8> {
        encode(&ReporterRecord {
            schema: FORMAT,
            node: self.settings.node.to_string(),
            process: self.identity.process.clone(),
            at: Timestamp::now(),
        })
    }

    /// This node is the reporter from now on: it reads the whole domain, and continues the open findings.
    async fn elected(
        &mut self,
        link: &mut SessionLink<'_>,
        revision: i64,
    ) -> Result<(), EtcdError> {
        self.set_reporter(true);
        // The key of the last reporter may have gone in the view before its last findings have arrived.
        self.follower.read_again(&RangeFollower::common(self.identity.keys()));
        self.follow_ranges(link).await?;
        let view = self.shared.view.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let settings = &self.settings.evaluator;
        let work =
            ReporterWork::new(&view, settings, &self.settings.node, revision, self.connected_at);
        drop(view);
        add(&self.shared.counters.elections, 1);
        tracing::info!("this node reports the findings of the cluster");
        let events = work.events();
        self.reporter = Some(work);
        self.observer.event(ClusterEvent::ReporterChanged { is_reporter: true });
        for event in events {
            self.observer.event(event);
        }
        Ok(())
    }

    /// This node is no longer the reporter.
    async fn resign(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        if self.reporter.take().is_none() && !self.shared.status().is_reporter {
            return Ok(());
        }
        self.set_reporter(false);
        tracing::info!("this node no longer reports the findings of the cluster");
        self.observer.event(ClusterEvent::ReporterChanged { is_reporter: false });
        self.follow_ranges(link).await
    }

    fn set_reporter(&self, is_reporter: bool) {
        let mut status = self.shared.status();
        status.is_reporter = is_reporter;
        status.scope = if is_reporter { ClusterScope::Full } else { self.settings.scope };
    }

    fn evaluate(&mut self) {
        let now = self.moment();
        let Some(work) = &mut self.reporter else { return };
        let mut requests = self.shared.requests();
        let delivered = std::mem::take(&mut requests.delivered);
        let are_openings_wanted = std::mem::take(&mut requests.are_openings_wanted);
        let answers = std::mem::take(&mut requests.neutron);
        drop(requests);
        let view = self.shared.view.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        for delivered in delivered {
            work.delivered(&view, delivered);
        }
        for (router, (requested, answer)) in answers {
            let requested = requested.saturating_duration_since(self.origin.into_std());
            work.neutron_answered(router, answer, Moment::new(requested));
        }
        work.evaluate(&view, EvaluationTime { now, at: Timestamp::now() });
        drop(view);
        let mut events = work.take_events();
        if are_openings_wanted {
            events.extend(work.openings());
        }
        for event in events {
            self.observer.event(event);
        }
    }

    async fn write_findings(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        let mut refusals = 0;
        loop {
            // Many findings need longer than the lease.
            self.renew_lease(link).await?;
            if self.registration.is_none() {
                return self.resign(link).await;
            }
            let Some(work) = &self.reporter else { return Ok(()) };
            if work.needs_retention_lease() {
                self.renew_retention(link).await?;
            }
            let retention = self.retention.map(|(lease, _)| lease);
            let Some(work) = &mut self.reporter else { return Ok(()) };
            let Some(batch) = work.next_batch(retention) else { return Ok(()) };
            let (compares, operations) = (batch.compares.clone(), batch.operations());
            let count = operations.len();
            let key = self.identity.keys().text(&ClusterKey::Reporter);
            let result = match link.connection.commit(compares, operations, &key).await {
                // The lease of the retention: the findings with it are gone too.
                Err(EtcdError::LeaseEnded { .. }) => {
                    self.retention = None;
                    work.forget_leases();
                    continue;
                }
                Err(error) if error.kind() == EtcdErrorKind::Rejected && batch.has_findings() => {
                    if let Some(id) = work.refused(&batch) {
                        let error = ErrorChain(&error).to_string();
                        tracing::error!(finding = %id, error, "etcd refuses a finding");
                    }
                    continue;
                }
                Err(error) => {
                    if !is_rejection(&error) {
                        work.uncertain(&batch);
                    }
                    return Err(error);
                }
                Ok(result) => result,
            };
            if !result.is_done {
                let is_reporter = result
                    .found
                    .as_ref()
                    .is_some_and(|found| found.create_revision == work.create_revision());
                if !is_reporter {
                    return self.resign(link).await;
                }
                // A change of a member is on its way: the watch is to deliver it.
                work.refused(&batch);
                refusals += 1;
                if refusals >= MAX_REFUSALS {
                    return Ok(());
                }
                continue;
            }
            self.revision = self.revision.max(result.revision);
            self.count_write(count, batch.bytes);
            // ORDER: before the events. A node that has the end of a finding must not find it in the view as open. The watch
            // delivers the changes again, and the view ignores that.
            let mut view = write(&self.shared.view);
            for change in batch.changes(result.revision) {
                view.apply_own(change);
            }
            drop(view);
            self.view_changed();
            let events = match &mut self.reporter {
                Some(work) => work.committed(batch, result.revision),
                None => Vec::new(),
            };
            for event in events {
                self.observer.event(event);
            }
        }
    }

    /// Findings that end within an hour share a lease.
    async fn renew_retention(&mut self, link: &SessionLink<'_>) -> Result<(), EtcdError> {
        let is_young = |(_, granted): (_, Instant)| granted.elapsed() < RETENTION_LEASE_AGE;
        if !self.retention.is_some_and(is_young) {
            let lease = link.connection.grant(self.settings.retention).await?;
            self.retention = Some((lease, Instant::now()));
        }
        Ok(())
    }

    /// The time of the next evaluation.
    pub(super) fn next_evaluation(&self) -> Option<Instant> {
        let due = self.reporter.as_ref()?.next_check()?;
        Some(Instant::now() + due.since(self.moment()))
    }

    /// The time since the start of the session.
    pub(super) fn moment(&self) -> Moment {
        Moment::new(self.origin.elapsed())
    }
}

/// Whether no vipwatch has written this key `reporter`: it has no lease, or is no record. A record of a later release is
/// one.
fn is_of_no_process(found: &StoredValue) -> bool {
    match ClusterRecord::decode(&ClusterKey::Reporter, &found.value) {
        Ok(_) | Err(ClusterRecordError::Newer(_)) => found.lease == 0,
        Err(_) => true,
    }
}

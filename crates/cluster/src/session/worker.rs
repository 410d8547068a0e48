// SPDX-License-Identifier: Apache-2.0
//! The thread of the session: connects, follows etcd, and writes changed records.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};
use vipwatch_api::{ClusterConnectionState, ClusterScope, Timestamp};
use vipwatch_core::{ErrorChain, Moment};

use super::acknowledged::AcknowledgedWrite;
use super::conflict::Conflicts;
use super::counters::add;
use super::handle::{SessionEnd, SessionShared};
use super::heartbeat::HeartbeatState;
use super::publish::PublishedRoles;
use super::registration::{NodeIdentityKeys, OwnNodeKey, Registration, RegistrationLoss};
use super::reporter::ReporterWork;
use super::silences::SilenceLeases;
use super::{ClusterEvent, ClusterObserver, RecordSource, SessionSettings};
use crate::etcd::{
    EndpointOrder, EtcdConnection, EtcdError, EtcdErrorKind, EtcdPosition, LeaseId, LeaseStream,
};
use crate::follow::{Differences, RangeFollower, Suspects};

/// The time for the last words to etcd.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// A connection that has worked for this long is not the reason for a longer wait.
const STABLE_TIME: Duration = Duration::from_secs(10);

/// Changes of the view within this time are one event.
const EVENT_INTERVAL: Duration = Duration::from_millis(50);

/// The wait before the next write after etcd has rejected one, unless heartbeats are more frequent.
const REJECTED_WAIT: Duration = Duration::from_secs(5);

/// The minimum number of heartbeats between two reads of ranges with records beyond the limits. Such a read can have tens of
/// megabytes.
const RECOUNT_HEARTBEATS: u32 = 3;

/// The state of the session. It survives a lost connection.
pub(super) struct Worker {
    pub(super) settings: SessionSettings,
    pub(super) source: Arc<dyn RecordSource>,
    pub(super) observer: Arc<dyn ClusterObserver>,
    pub(super) shared: Arc<SessionShared>,
    pub(super) identity: NodeIdentityKeys,
    order: EndpointOrder,
    pub(super) follower: RangeFollower,
    pub(super) published: PublishedRoles,
    /// `None` before the registration, and after its loss.
    pub(super) registration: Option<Registration>,
    /// The lease of findings that have ended, and when etcd granted it.
    pub(super) retention: Option<(LeaseId, Instant)>,
    pub(super) silence_leases: SilenceLeases,
    /// Whether the silences of the node may differ from those in etcd.
    pub(super) are_silences_due: bool,
    /// The last write of roles that etcd has acknowledged.
    pub(super) last_write: Option<AcknowledgedWrite>,
    /// Whether the memberships of this node under other names were ended since the registration.
    pub(super) has_left_old_names: bool,
    pub(super) heartbeat: HeartbeatState,
    pub(super) conflicts: Conflicts,
    /// `None` while another node is the reporter.
    pub(super) reporter: Option<ReporterWork>,
    /// The start of the session.
    pub(super) origin: Instant,
    /// When the view began to follow etcd on the present connection.
    pub(super) connected_at: Moment,
    /// The greatest revision of etcd in any answer.
    pub(super) revision: i64,
    /// No write before this time: etcd has rejected one, or another process has the name.
    write_after: Option<Instant>,
    /// When etcd has rejected the first of the records of this node that it rejects now; `None` if it accepts them.
    rejected_since: Option<Instant>,
    /// Whether etcd has rejected the last write, also that of a finding.
    is_rejected: bool,
    /// When the node gets the event that the view has changed; `None` if it has not.
    event_due: Option<Instant>,
    last_event: Instant,
    /// The number of records beyond the limits that the node knows of.
    surplus: u64,
    /// Ranges with records beyond the limits are not read again before this time.
    recount_after: Instant,
    /// When the keys of the view are compared with those of etcd.
    compare_at: Instant,
    /// The keys that differed at the last comparison, and may have been changes on their way.
    suspects: Suspects,
}

/// A connection and its open streams.
pub(super) struct SessionLink<'a> {
    pub(super) connection: &'a EtcdConnection,
    /// The stream that renews the lease of the process.
    pub(super) lease: Option<LeaseStream>,
}

impl Worker {
    pub(super) fn new(
        mut settings: SessionSettings,
        source: Arc<dyn RecordSource>,
        observer: Arc<dyn ClusterObserver>,
        shared: Arc<SessionShared>,
    ) -> Self {
        // A member of etcd that does not answer must not cost the lease: another one is tried before.
        settings.etcd.timeout = settings.etcd.timeout.min(settings.lease / 5);
        let seed = settings.process_seed();
        let fraction = f64::from(u16::try_from(seed % 1000).unwrap_or(0)) / 1000.0;
        let identity = NodeIdentityKeys::new(&settings, format!("{seed:016x}"));
        let keys = identity.keys().clone();
        let (node, epoch) = (settings.node.clone(), settings.epoch.clone());
        Self {
            source,
            observer,
            shared,
            identity,
            order: EndpointOrder::new(seed).with_max_wait(settings.lease * 2 / 3),
            follower: RangeFollower::new(keys.clone()),
            published: PublishedRoles::new(keys, node, epoch),
            registration: None,
            silence_leases: SilenceLeases::new(),
            are_silences_due: true,
            retention: None,
            last_write: None,
            has_left_old_names: false,
            heartbeat: HeartbeatState::new(settings.heartbeat),
            conflicts: Conflicts::default(),
            reporter: None,
            origin: Instant::now(),
            connected_at: Moment::new(Duration::ZERO),
            revision: 0,
            write_after: None,
            rejected_since: None,
            is_rejected: false,
            event_due: None,
            last_event: Instant::now(),
            surplus: 0,
            recount_after: Instant::now(),
            // The nodes of a cluster read at different times.
            compare_at: Instant::now() + settings.compare.mul_f64(fraction),
            suspects: Suspects::default(),
            settings,
        }
    }

    /// Runs until the session is to end.
    pub(super) async fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            let key = self.identity.keys().all().to_owned();
            let connection = tokio::select! {
                biased;
                _ = shared.ended() => return,
                connection = self.order.connect(&self.settings.etcd, &key) => connection,
            };
            let error = match connection {
                Err(error) => error,
                Ok((connection, position)) => {
                    let began = Instant::now();
                    let error = tokio::select! {
                        biased;
                        end = shared.ended() => return self.finish(end, &connection).await,
                        Err(error) = self.serve(&connection, position) => error,
                    };
                    if began.elapsed() >= STABLE_TIME {
                        self.order.reset();
                    }
                    error
                }
            };
            self.disconnected(&error);
            let wait = self.order.next_wait();
            tokio::select! {
                biased;
                _ = shared.ended() => return,
                () = sleep(wait) => {}
            }
        }
    }

    /// Uses a connection until it fails.
    async fn serve(
        &mut self,
        connection: &EtcdConnection,
        position: EtcdPosition,
    ) -> Result<Infallible, EtcdError> {
        add(&self.shared.counters.connections, 1);
        let mut link = SessionLink { connection, lease: None };
        self.take_requests();
        self.compare_data(connection, position).await?;
        self.follow_ranges(&mut link).await?;
        if self.published.has_older_values() {
            self.begin_again();
            self.follow_ranges(&mut link).await?;
        }
        self.connected(connection);
        self.write_after = None;
        self.heartbeat.make_due();
        loop {
            self.take_requests();
            if self.published.take_bucket_change() {
                self.follow_ranges(&mut link).await?;
            }
            if self.heartbeat.is_due(Instant::now()) {
                // The group of a silenced instance may have another id now.
                self.are_silences_due |=
                    self.source.silences().iter().any(|silence| silence.record.group.is_some());
                self.follower.free_long_messages(connection).await?;
                self.read_surplus_again(&mut link).await?;
                self.compare_keys(&mut link).await?;
            }
            self.shared.status().revision = self.view_revision();
            self.write(&mut link).await?;
            self.report_view();
            let deadline = self.next_deadline();
            tokio::select! {
                // The next turn does all that is due, whichever comes first.
                biased;
                followed = self.follower.next(connection) => {
                    let followed = followed?;
                    self.apply(&mut link, followed).await?;
                }
                () = self.shared.wake.notified() => {}
                () = sleep_until(deadline) => {}
            }
        }
    }

    /// Compares etcd at a new connection with what this process knows of it. An etcd that was restored from a backup, or that
    /// others have filled again, may have counted beyond the known revision: the node's own writes show that they are lost.
    async fn compare_data(
        &mut self,
        connection: &EtcdConnection,
        position: EtcdPosition,
    ) -> Result<(), EtcdError> {
        if self.follower.has_other_data(position, &self.shared.view) {
            self.begin_again();
            return Ok(());
        }
        let Some(registration) = &self.registration else { return Ok(()) };
        match self.identity.own_node_key(connection, registration).await? {
            OwnNodeKey::Current => {
                if let Some(write) = &self.last_write
                    && write.is_lost(connection).await?
                {
                    self.begin_again();
                }
            }
            OwnNodeKey::OtherData => self.begin_again(),
            OwnNodeKey::LeaseEnded => {
                self.lose_registration(RegistrationLoss::LeaseEnded);
                self.published.forget_values();
                let mut ranges = RangeFollower::common(self.identity.keys());
                ranges.extend(self.published.bucket_prefixes());
                ranges.insert(self.identity.keys().roles());
                self.follower.read_again(&ranges);
            }
        }
        Ok(())
    }

    /// etcd has other data than before. Everything is read again, roles and name are published again, and the revisions begin
    /// again.
    fn begin_again(&mut self) {
        self.follower.forget_data(&self.shared.view);
        tracing::warn!(
            hint = "open findings of the cluster may be reported again",
            "etcd has lost its data or was restored from a backup: everything is read and published again"
        );
        add(&self.shared.counters.resyncs, 1);
        self.revision = 0;
        self.last_write = None;
        self.retention = None;
        self.published.forget_etcd();
        self.identity.forget_etcd();
        self.lose_registration(RegistrationLoss::OtherData);
    }

    /// Writes changed records, in an order that readers rely on: first the name, then the roles, then the heartbeat that
    /// confirms them, then the findings. A rejected write does not end the connection.
    async fn write(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        if self.write_after.is_some_and(|after| Instant::now() < after) {
            return Ok(());
        }
        self.write_after = None;
        let was_rejected = self.is_rejected;
        match self.write_records(link).await {
            Err(error) if is_rejection(&error) => {
                self.rejected_since.get_or_insert_with(Instant::now);
                self.rejected(&error);
            }
            Err(error) => return Err(error),
            Ok(()) => {
                self.rejected_since = None;
                // A rejected finding or silence does not make the records of this node old.
                match self.write_others(link).await {
                    Err(error) if is_rejection(&error) => self.rejected(&error),
                    Err(error) => return Err(error),
                    Ok(()) if self.write_after.is_none() => {
                        self.is_rejected = false;
                        self.shared.status().error = None;
                    }
                    Ok(()) => {}
                }
            }
        }
        if self.is_rejected != was_rejected {
            if was_rejected {
                tracing::info!("etcd accepts the records of this node again");
            }
            self.observer.event(ClusterEvent::RejectionChanged);
        }
        Ok(())
    }

    /// etcd has rejected a write. The connection works, and the view follows etcd.
    fn rejected(&mut self, error: &EtcdError) {
        self.note_error(error);
        self.is_rejected = true;
        let wait = REJECTED_WAIT.min(self.settings.heartbeat);
        self.write_after = Some(Instant::now() + wait);
    }

    async fn write_records(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        if self.registration.is_none() {
            self.register(link).await?;
        }
        self.publish(link).await?;
        self.beat(link).await
    }

    /// Writes what other nodes do not need to trust the roles of this one.
    async fn write_others(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        self.report(link).await?;
        self.publish_silences(link).await?;
        self.leave_old_names(link).await
    }

    /// Whether etcd rejects writes for so long that the records of this node count as old. The lease is then not renewed, so
    /// that other nodes, and commands that read etcd, do not take them for current.
    pub(super) fn is_outdated(&self) -> bool {
        self.rejected_since.is_some_and(|since| since.elapsed() >= self.settings.lease)
    }

    /// No write before the next heartbeat: another process has the name.
    pub(super) fn pause_writes(&mut self) {
        self.write_after = Some(Instant::now() + self.settings.heartbeat);
    }

    /// Writes may be possible again.
    pub(super) fn resume_writes(&mut self) {
        self.write_after = None;
    }

    /// Takes the requests of the node.
    fn take_requests(&mut self) {
        let mut requests = self.shared.requests();
        let is_all = std::mem::take(&mut requests.is_all_marked);
        let marked = std::mem::take(&mut requests.marked);
        let confirmed = requests.confirmed.take();
        self.are_silences_due |= std::mem::take(&mut requests.are_silences_marked);
        if self.reporter.is_none() {
            // The next reporter delivers the finding again.
            requests.delivered.clear();
            requests.are_openings_wanted = false;
            requests.neutron.clear();
        }
        drop(requests);
        for instance in &marked {
            let bucket = self.source.role(instance).map(|wanted| wanted.bucket);
            self.published.mark(instance, bucket);
        }
        if is_all {
            let instances = self.source.instances();
            let present: BTreeSet<_> = instances.iter().collect();
            let known: Vec<_> = self.published.instances().cloned().collect();
            for gone in known.iter().filter(|instance| !present.contains(instance)) {
                self.published.mark(gone, None);
            }
            for instance in &instances {
                let bucket = self.source.role(instance).map(|wanted| wanted.bucket);
                self.published.mark(instance, bucket);
            }
        }
        if confirmed.is_some_and(|id| self.heartbeat.confirm(id)) {
            add(&self.shared.counters.confirmations, 1);
        }
    }

    /// Follows the ranges of the view's scope.
    pub(super) async fn follow_ranges(
        &mut self,
        link: &mut SessionLink<'_>,
    ) -> Result<(), EtcdError> {
        let keys = self.identity.keys();
        let mut ranges = RangeFollower::common(keys);
        match self.shared.status().scope {
            ClusterScope::Full => {
                ranges.insert(keys.roles());
            }
            ClusterScope::Own => ranges.extend(self.published.bucket_prefixes()),
        }
        self.follower.set_own_buckets(self.published.bucket_prefixes().collect());
        self.follower.set_ranges(&ranges, &self.shared.view);
        self.sync(link).await
    }

    /// Reads ranges with records beyond the limits again, if records were deleted since.
    async fn read_surplus_again(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        if Instant::now() < self.recount_after
            || !self.follower.read_surplus_again(&self.shared.view)
        {
            return Ok(());
        }
        self.recount_after = Instant::now() + self.settings.heartbeat * RECOUNT_HEARTBEATS;
        self.sync(link).await?;
        self.compare_findings();
        Ok(())
    }

    /// Reads the ranges without a position, and watches all. Many records need longer than the lease, so that it is renewed
    /// meanwhile.
    pub(super) async fn sync(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        let Self { follower, shared, published, registration, settings, .. } = self;
        let reading = Box::pin(follower.sync(link.connection, &shared.view, published));
        let count =
            while_renewing(registration.as_mut(), link, settings.heartbeat, reading).await?;
        add(&shared.counters.range_reads, count);
        if count > 0 {
            self.revision = self.revision.max(self.view_revision());
            self.view_changed();
        }
        self.check_all_conflicts();
        Ok(())
    }

    /// Compares the keys of the view with those of etcd from time to time. Those that differ are looked at again with the next
    /// heartbeat, when a change that was on its way has arrived.
    async fn compare_keys(&mut self, link: &mut SessionLink<'_>) -> Result<(), EtcdError> {
        let suspects = std::mem::take(&mut self.suspects);
        if !suspects.is_empty() {
            let Self { follower, shared, published, registration, settings, .. } = self;
            let reading =
                follower.read_different(link.connection, &shared.view, published, &suspects);
            let reading = Box::pin(reading);
            let Differences { keys, is_older, prefixes } =
                while_renewing(registration.as_mut(), link, settings.heartbeat, reading).await?;
            if is_older {
                self.begin_again();
                return self.follow_ranges(link).await;
            }
            if !prefixes.is_empty() {
                add(&self.shared.counters.differences, keys);
                tracing::warn!(
                    keys,
                    hint = "etcd or a proxy has lost events of a watch",
                    "view differed from etcd"
                );
                self.check_all_conflicts();
                self.check_membership();
                self.compare_findings();
                self.view_changed();
            }
        }
        if Instant::now() >= self.compare_at {
            self.compare_at = Instant::now() + self.settings.compare;
            let Self { follower, shared, registration, settings, .. } = self;
            let reading = Box::pin(follower.suspects(link.connection, &shared.view));
            self.suspects =
                while_renewing(registration.as_mut(), link, settings.heartbeat, reading).await?;
        }
        Ok(())
    }

    /// The view has changed: the node gets an event soon.
    pub(super) fn view_changed(&mut self) {
        let due = (self.last_event + EVENT_INTERVAL).max(Instant::now());
        self.event_due.get_or_insert(due);
    }

    fn report_view(&mut self) {
        if self.event_due.is_some_and(|due| due <= Instant::now()) {
            self.event_due = None;
            self.last_event = Instant::now();
            self.observer.event(ClusterEvent::ViewChanged);
            self.report_surplus();
        }
    }

    fn report_surplus(&mut self) {
        let view = self.shared.view.read().unwrap_or_else(PoisonError::into_inner);
        let surplus = view.ignored().surplus_records;
        drop(view);
        let is_full = self.reporter.as_ref().is_some_and(ReporterWork::is_full);
        let was_full = std::mem::replace(&mut self.shared.status().is_full_of_findings, is_full);
        if surplus == self.surplus && is_full == was_full {
            return;
        }
        if is_full && !was_full {
            tracing::warn!("too many findings of the cluster are open: no more are opened");
        }
        if self.surplus == 0 && surplus > 0 {
            tracing::warn!(records = surplus, "etcd has more records than this node keeps");
        } else if self.surplus > 0 && surplus == 0 {
            tracing::info!("etcd has no more records than this node keeps");
        }
        self.surplus = surplus;
        self.observer.event(ClusterEvent::SurplusChanged);
    }

    fn next_deadline(&self) -> Instant {
        let write = self.write_after.unwrap_or_else(|| {
            let heartbeat = self.heartbeat.deadline();
            self.next_evaluation().map_or(heartbeat, |due| due.min(heartbeat))
        });
        self.event_due.map_or(write, |due| due.min(write))
    }

    fn connected(&mut self, connection: &EtcdConnection) {
        self.connected_at = self.moment();
        let mut status = self.shared.status();
        status.connection = ClusterConnectionState::Connected;
        status.endpoint = Some(connection.endpoint().to_owned());
        status.stale_since = None;
        status.error = None;
        drop(status);
        tracing::info!(endpoint = connection.endpoint(), "connected to etcd");
        self.connection_changed(ClusterConnectionState::Connected);
    }

    fn disconnected(&mut self, error: &EtcdError) {
        self.follower.detach();
        self.suspects = Suspects::default();
        if let Some(reporter) = &mut self.reporter {
            reporter.interrupt();
        }
        self.rejected_since = None;
        self.is_rejected = false;
        let is_first_error = self.shared.status().error.is_none();
        self.note_error(error);
        let mut status = self.shared.status();
        status.endpoint = None;
        let before = status.connection;
        if before == ClusterConnectionState::Connected {
            status.connection = ClusterConnectionState::Stale;
            status.stale_since = Some(Timestamp::now());
        }
        let now = status.connection;
        drop(status);
        let is_never_connected = now == ClusterConnectionState::Connecting && is_first_error;
        if now != before || is_never_connected {
            self.connection_changed(now);
        }
    }

    fn connection_changed(&mut self, state: ClusterConnectionState) {
        self.observer.event(ClusterEvent::ConnectionChanged(state));
    }

    /// Counts an error, and shows it in the answers of the node. An error that stays the same is logged once.
    fn note_error(&self, error: &EtcdError) {
        self.shared.counters.add_error(error.kind());
        let text = ErrorChain(error).to_string();
        let mut status = self.shared.status();
        let is_new = status.error.as_ref() != Some(&text);
        status.error = Some(text.clone());
        drop(status);
        if is_new {
            tracing::warn!(error = text, hint = error.hint(), "etcd failed");
        }
    }

    /// The last words to etcd.
    async fn finish(&self, end: SessionEnd, connection: &EtcdConnection) {
        let (SessionEnd::Stop, Some(registration)) = (end, &self.registration) else { return };
        match timeout(STOP_LIMIT, self.identity.leave(connection, registration)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let error = ErrorChain(&error).to_string();
                tracing::warn!(error, "cannot tell etcd that the node stops");
            }
            Err(_) => tracing::warn!("etcd did not answer while the node stopped"),
        }
    }
}

/// Waits for a result, and renews the lease of the process in each interval. That the lease has ended shows the next
/// heartbeat.
async fn while_renewing<T>(
    registration: Option<&mut Registration>,
    link: &mut SessionLink<'_>,
    interval: Duration,
    mut result: Pin<Box<impl Future<Output = Result<T, EtcdError>>>>,
) -> Result<T, EtcdError> {
    let Some(registration) = registration else { return result.await };
    loop {
        tokio::select! {
            biased;
            result = &mut result => return result,
            () = sleep(interval) => {}
        }
        match registration.renew(link.connection, &mut link.lease).await {
            Ok(_) => {}
            Err(EtcdError::LeaseEnded { .. }) => link.lease = None,
            Err(error) => return Err(error),
        }
    }
}

/// Whether etcd works, and does not accept this write.
pub(super) fn is_rejection(error: &EtcdError) -> bool {
    match error.kind() {
        EtcdErrorKind::NoSpace | EtcdErrorKind::Rejected => true,
        // A token that etcd no longer accepts needs a new login, and so a new connection.
        EtcdErrorKind::Access => !matches!(error, EtcdError::Login { .. }),
        _ => false,
    }
}

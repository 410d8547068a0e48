// SPDX-License-Identifier: Apache-2.0
//! The place of this node in etcd: its name, its two leases, and its heartbeats.

use std::time::Duration;

use tokio::time::Instant;
use vipwatch_api::Timestamp;

use super::SessionSettings;
use super::worker::is_rejection;
use crate::etcd::messages::{Compare, RequestOp};
use crate::etcd::{EtcdConnection, EtcdError, LeaseId, LeaseStream, TxnResult};
use crate::key::{ClusterKey, KeySpace};
use crate::record::{
    ClusterRecord, ClusterRecordError, FORMAT, MemberRecord, MemberState, NodeRecord, encode,
};
use crate::view::StoredValue;

/// The time between two renewals of the lease of the membership, which lasts days.
const MEMBERSHIP_RENEWAL: Duration = Duration::from_hours(1);

/// The node is registered: `node/NAME` has the lease `live`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Registration {
    pub(super) live: LeaseId,
    pub(super) membership: LeaseId,
    /// The revision of this process's last write of `node/NAME`.
    node_revision: i64,
    /// Before etcd renewed the lease `live` last.
    live_renewed: Instant,
    membership_renewed: Instant,
}

/// The key `node/NAME` at a new connection, compared with what this process has written last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnNodeKey {
    /// The key is not older. It may be that of another process, which the next heartbeat finds out.
    Current,
    /// The key is gone, and the lease may have ended.
    LeaseEnded,
    /// The key is older, or gone although the lease cannot have ended: etcd has other data.
    OtherData,
}

/// Why a write of this process was not carried out, or the registration was not.
#[derive(Debug)]
pub(super) enum RegistrationLoss {
    /// The lease has ended.
    LeaseEnded,
    /// The record of the membership was deleted.
    MembershipGone,
    /// etcd has lost its data, or was restored from a backup.
    OtherData,
    /// Another process has the name.
    NameTaken {
        /// Its epoch.
        epoch: String,
        /// Its version of vipwatch.
        version: String,
    },
}

/// The result of an attempt to register.
#[derive(Debug)]
pub(super) enum RegistrationAttempt {
    Registered(Registration, RegisteredKeys),
    Lost(RegistrationLoss),
}

/// The keys of the membership before this process.
pub(super) type RegisteredKeys = Vec<String>;

/// The keys and the records of this process.
#[derive(Debug, Clone)]
pub(super) struct NodeIdentityKeys {
    keys: KeySpace,
    settings: SessionSettings,
    /// The text that differs in each process.
    pub(super) process: String,
    pub(super) node_key: String,
    member_key: String,
    started: Timestamp,
    /// Whether this process has had the name, or has lost it to another process. A key of another process with the epoch of
    /// this node is then not that of the process before a restart: this one must not take the name back while the other runs.
    must_yield: bool,
    /// A lease for the membership that an attempt to register has not used.
    spare_membership: Option<LeaseId>,
}

/// The values of a heartbeat.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeartbeatValues {
    pub(super) count: u64,
    pub(super) seen: i64,
    pub(super) seq: i64,
    pub(super) instances: u64,
    pub(super) notifies: bool,
}

impl NodeIdentityKeys {
    pub(super) fn new(settings: &SessionSettings, process: String) -> Self {
        let keys = KeySpace::new(&settings.domain);
        let node_key = keys.text(&ClusterKey::Node(settings.node.clone()));
        let member_key = keys.text(&ClusterKey::Member(settings.node.clone()));
        let (settings, started) = (settings.clone(), Timestamp::now());
        Self {
            keys,
            settings,
            process,
            node_key,
            member_key,
            started,
            must_yield: false,
            spare_membership: None,
        }
    }

    fn node_record(&self, values: HeartbeatValues) -> NodeRecord {
        NodeRecord {
            schema: FORMAT,
            node: self.settings.node.to_string(),
            epoch: self.settings.epoch.clone(),
            process: self.process.clone(),
            version: self.settings.version.clone(),
            heartbeat: values.count,
            seen: values.seen,
            seq: values.seq,
            instances: values.instances,
            at: Timestamp::now(),
            started: self.started,
            heartbeat_ms: u64::try_from(self.settings.heartbeat.as_millis()).unwrap_or(u64::MAX),
            notifies: values.notifies,
            lease_s: i64::try_from(self.settings.lease.as_secs()).unwrap_or(i64::MAX),
        }
    }

    fn member_record(&self, state: MemberState, lease: LeaseId) -> MemberRecord {
        MemberRecord {
            schema: FORMAT,
            node: self.settings.node.to_string(),
            epoch: self.settings.epoch.clone(),
            state,
            lease: lease.0,
            at: Timestamp::now(),
        }
    }

    fn put_node(&self, values: HeartbeatValues, lease: LeaseId) -> RequestOp {
        RequestOp::put(&self.node_key, encode(&self.node_record(values)), Some(lease))
    }

    fn put_member(&self, state: MemberState, lease: LeaseId) -> RequestOp {
        RequestOp::put(&self.member_key, encode(&self.member_record(state, lease)), Some(lease))
    }

    /// Takes the name, if no other process has it, and continues the membership of the process before.
    pub(super) async fn register(
        &mut self,
        connection: &EtcdConnection,
        values: HeartbeatValues,
    ) -> Result<RegistrationAttempt, EtcdError> {
        let (holder, _) = connection.read_key(&self.node_key).await?;
        if let Some(loss) = holder.as_ref().and_then(|holder| self.other_holder(holder)) {
            return Ok(RegistrationAttempt::Lost(loss));
        }
        let (member, _) = connection.read_key(&self.member_key).await?;
        let (membership, keys) = self.membership(connection, member.as_ref()).await?;
        let live_renewed = Instant::now();
        let live = connection.grant(self.settings.lease).await?;
        let compares = vec![
            is_unchanged(&self.node_key, holder.as_ref()),
            is_unchanged(&self.member_key, member.as_ref()),
        ];
        let operations =
            vec![self.put_node(values, live), self.put_member(MemberState::Running, membership)];
        let result = match connection.commit(compares, operations, &self.node_key).await {
            Err(error) if is_rejection(&error) => {
                // Attempts follow each other, so that unused leases would become many.
                connection.revoke(live).await?;
                return Err(error);
            }
            result => result?,
        };
        if !result.is_done {
            connection.revoke(live).await?;
            return Ok(RegistrationAttempt::Lost(self.loss(&result)));
        }
        self.must_yield = true;
        self.spare_membership = None;
        if let Some(before) = holder.filter(|holder| holder.lease != 0 && self.is_own_epoch(holder))
        {
            // The process before is gone. Its lease may still have the key of the reporter.
            connection.revoke(LeaseId(before.lease)).await?;
        }
        let (node_revision, membership_renewed) = (result.revision, Instant::now());
        let registration =
            Registration { live, membership, node_revision, live_renewed, membership_renewed };
        Ok(RegistrationAttempt::Registered(registration, keys))
    }

    /// The lease of the membership, and the keys that it has.
    async fn membership(
        &mut self,
        connection: &EtcdConnection,
        member: Option<&StoredValue>,
    ) -> Result<(LeaseId, RegisteredKeys), EtcdError> {
        let key = ClusterKey::Member(self.settings.node.clone());
        let record = member.and_then(|member| ClusterRecord::decode(&key, &member.value).ok());
        if let Some(ClusterRecord::Member(record)) = record {
            let lease = LeaseId(record.lease);
            if let Some(state) = connection.lease_state(lease).await? {
                connection.keep_lease(lease).await?;
                return Ok((lease, state.keys));
            }
        }
        if let Some(spare) = self.spare_membership
            && connection.lease_state(spare).await?.is_some()
        {
            return Ok((spare, RegisteredKeys::new()));
        }
        let granted = connection.grant(self.settings.membership).await?;
        self.spare_membership = Some(granted);
        Ok((granted, RegisteredKeys::new()))
    }

    /// The process that has the name; `None` if this process may take it.
    fn other_holder(&self, holder: &StoredValue) -> Option<RegistrationLoss> {
        let key = ClusterKey::Node(self.settings.node.clone());
        match ClusterRecord::decode(&key, &holder.value) {
            Ok(ClusterRecord::Node(record))
                if record.epoch != self.settings.epoch
                    || self.must_yield && record.process != self.process =>
            {
                Some(taken_by(*record))
            }
            Err(ClusterRecordError::Newer(_)) => {
                let unknown = || "unknown".to_owned();
                Some(RegistrationLoss::NameTaken { epoch: unknown(), version: unknown() })
            }
            // This node before a restart, or a value that no vipwatch has written.
            _ => None,
        }
    }

    /// Why a fenced write was not carried out. [`EtcdConnection::commit`] has read `node/NAME`.
    pub(super) fn loss(&self, result: &TxnResult) -> RegistrationLoss {
        let key = ClusterKey::Node(self.settings.node.clone());
        let record =
            result.found.as_ref().and_then(|found| ClusterRecord::decode(&key, &found.value).ok());
        match record {
            Some(ClusterRecord::Node(record)) if record.process != self.process => {
                taken_by(*record)
            }
            _ => RegistrationLoss::LeaseEnded,
        }
    }

    /// Another process has the name: this one waits until that key is gone.
    pub(super) fn yield_name(&mut self) {
        self.must_yield = true;
    }

    /// etcd has other data: a key of another process may be older than this process.
    pub(super) fn forget_etcd(&mut self) {
        self.must_yield = false;
    }

    /// Compares `node/NAME` with the last write of this process.
    pub(super) async fn own_node_key(
        &self,
        connection: &EtcdConnection,
        registration: &Registration,
    ) -> Result<OwnNodeKey, EtcdError> {
        let (found, _) = connection.read_key(&self.node_key).await?;
        Ok(match found {
            Some(found) if found.mod_revision < registration.node_revision => OwnNodeKey::OtherData,
            Some(_) => OwnNodeKey::Current,
            None if registration.live_renewed.elapsed() >= self.settings.lease => {
                OwnNodeKey::LeaseEnded
            }
            None => OwnNodeKey::OtherData,
        })
    }

    /// The comparison that is true while this process has its name.
    pub(super) fn fence(&self, registration: &Registration) -> Compare {
        Compare::lease_is(&self.node_key, registration.live)
    }

    /// Writes a heartbeat; returns the revision of etcd. It is not carried out if another process has written the key.
    pub(super) async fn heartbeat(
        &self,
        connection: &EtcdConnection,
        registration: &mut Registration,
        values: HeartbeatValues,
    ) -> Result<Result<i64, RegistrationLoss>, EtcdError> {
        loop {
            let last = registration.node_revision;
            let compares =
                vec![Compare::mod_revision_is(&self.node_key, last), self.fence(registration)];
            let put = vec![self.put_node(values, registration.live)];
            let result = connection.commit(compares, put, &self.node_key).await?;
            if result.is_done {
                registration.node_revision = result.revision;
                return Ok(Ok(result.revision));
            }
            let found = result.found.as_ref();
            match found.filter(|found| self.is_own_write(found, registration)) {
                // The answer to an earlier heartbeat was lost. It has changed the revision.
                Some(found) if found.mod_revision > last => {
                    registration.node_revision = found.mod_revision;
                }
                _ => return Ok(Err(self.loss(&result))),
            }
        }
    }

    fn is_own_write(&self, found: &StoredValue, registration: &Registration) -> bool {
        found.lease == registration.live.0 && self.is_own_process(found)
    }

    fn is_own_epoch(&self, found: &StoredValue) -> bool {
        let key = ClusterKey::Node(self.settings.node.clone());
        let record = ClusterRecord::decode(&key, &found.value);
        matches!(record, Ok(ClusterRecord::Node(record)) if record.epoch == self.settings.epoch)
    }

    fn is_own_process(&self, found: &StoredValue) -> bool {
        let key = ClusterKey::Node(self.settings.node.clone());
        let record = ClusterRecord::decode(&key, &found.value);
        matches!(record, Ok(ClusterRecord::Node(record)) if record.process == self.process)
    }

    /// Says that the node was stopped, and gives its name back.
    pub(super) async fn leave(
        &self,
        connection: &EtcdConnection,
        registration: &Registration,
    ) -> Result<(), EtcdError> {
        let stopped = vec![self.put_member(MemberState::Stopped, registration.membership)];
        let fence = vec![self.fence(registration)];
        connection.commit(fence, stopped, &self.node_key).await?;
        connection.revoke(registration.live).await
    }

    /// The keys of the domain.
    pub(super) fn keys(&self) -> &KeySpace {
        &self.keys
    }
}

impl Registration {
    /// Whether a change of `node/NAME` was made by another process, or by the end of the lease.
    pub(super) fn is_foreign(&self, revision: i64) -> bool {
        revision > self.node_revision
    }

    /// Renews the lease of the process, and from time to time that of the membership. Returns the revision of etcd.
    pub(super) async fn renew(
        &mut self,
        connection: &EtcdConnection,
        stream: &mut Option<LeaseStream>,
    ) -> Result<i64, EtcdError> {
        if self.membership_renewed.elapsed() >= MEMBERSHIP_RENEWAL {
            connection.keep_lease(self.membership).await?;
            self.membership_renewed = Instant::now();
        }
        let begin = Instant::now();
        let revision = if let Some(stream) = stream {
            connection.renew(stream).await?
        } else {
            let opened = stream.insert(connection.keep_lease(self.live).await?);
            connection.renew(opened).await?
        };
        self.live_renewed = begin;
        Ok(revision)
    }
}

fn taken_by(record: NodeRecord) -> RegistrationLoss {
    let NodeRecord { epoch, version, .. } = record;
    RegistrationLoss::NameTaken { epoch, version }
}

/// The comparison that is true while a key is as it was read.
fn is_unchanged(key: &str, read: Option<&StoredValue>) -> Compare {
    Compare::mod_revision_is(key, read.map_or(0, |value| value.mod_revision))
}

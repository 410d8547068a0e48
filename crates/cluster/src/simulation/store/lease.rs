// SPDX-License-Identifier: Apache-2.0
//! The leases of the simulated etcd.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use super::EtcdStore;
use crate::etcd::messages::WatchEvent;

#[derive(Debug, Clone)]
pub(super) struct Lease {
    ttl: Duration,
    expires: Instant,
    keys: BTreeSet<Vec<u8>>,
}

impl EtcdStore {
    pub(in crate::simulation) fn grant(&mut self, ttl: i64, now: Instant) -> i64 {
        self.last_lease += 1;
        let ttl = Duration::from_secs(ttl.unsigned_abs());
        let lease = Lease { ttl, expires: now + ttl, keys: BTreeSet::new() };
        self.leases.insert(self.last_lease, lease);
        self.last_lease
    }

    /// Renews a lease; returns its time to live, 0 if it has ended.
    pub(in crate::simulation) fn keep_alive(&mut self, id: i64, now: Instant) -> i64 {
        let Some(lease) = self.leases.get_mut(&id) else { return 0 };
        lease.expires = now + lease.ttl;
        seconds(lease.ttl)
    }

    /// The remaining time and the keys of a lease; `None` if it has ended.
    pub(in crate::simulation) fn lease(
        &self,
        id: i64,
        now: Instant,
    ) -> Option<(i64, Vec<Vec<u8>>)> {
        let lease = self.leases.get(&id)?;
        let left = seconds(lease.expires.saturating_duration_since(now)).max(1);
        Some((left, lease.keys.iter().cloned().collect()))
    }

    /// Ends a lease, and deletes its keys.
    pub(in crate::simulation) fn revoke(&mut self, id: i64) -> Result<Vec<WatchEvent>, Status> {
        let lease = self.leases.remove(&id);
        let lease =
            lease.ok_or_else(|| Status::not_found("etcdserver: requested lease not found"))?;
        if lease.keys.is_empty() {
            return Ok(Vec::new());
        }
        self.revision += 1;
        let events: Vec<_> = lease.keys.iter().filter_map(|key| self.delete(key)).collect();
        self.note(&events);
        Ok(events)
    }

    /// The leases with a time that is over.
    pub(in crate::simulation) fn expired(&self, now: Instant) -> Vec<i64> {
        let expired = self.leases.iter().filter(|(_, lease)| lease.expires <= now);
        expired.map(|(id, _)| *id).collect()
    }

    pub(in crate::simulation) fn next_expiry(&self) -> Option<Instant> {
        self.leases.values().map(|lease| lease.expires).min()
    }

    /// A new leader gives each lease its whole time.
    pub(in crate::simulation) fn extend_leases(&mut self, now: Instant) {
        for lease in self.leases.values_mut() {
            lease.expires = now + lease.ttl;
        }
    }

    pub(super) fn has_lease(&self, id: i64) -> bool {
        id == 0 || self.leases.contains_key(&id)
    }

    pub(super) fn attach(&mut self, key: &[u8], lease: i64) {
        if let Some(lease) = self.leases.get_mut(&lease) {
            lease.keys.insert(key.to_vec());
        }
    }

    pub(super) fn detach(&mut self, key: &[u8], lease: i64) {
        if let Some(lease) = self.leases.get_mut(&lease) {
            lease.keys.remove(key);
        }
    }
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

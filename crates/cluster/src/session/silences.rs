// SPDX-License-Identifier: Apache-2.0
//! The silences of this node in etcd. Each has a lease of its own that ends with it, so that no clock of another node decides
//! when.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::WantedSilence;
use super::registration::Registration;
use super::worker::{SessionLink, Worker};
use crate::etcd::messages::RequestOp;
use crate::etcd::{EtcdError, LeaseId};
use crate::follow::write;
use crate::key::{ClusterKey, SilenceId};
use crate::record::{FORMAT, SilenceRecord, encode};
use crate::view::{StoredValue, ViewChange};

/// The maximum number of silences that are written before the lease of the process is renewed.
const MAX_AT_ONCE: usize = 20;

impl Worker {
    /// Writes the silences that etcd does not have, and deletes those that were removed here. Another client may have ended one
    /// of them: it is then not written again before the next change or registration.
    pub(super) async fn publish_silences(
        &mut self,
        link: &SessionLink<'_>,
    ) -> Result<(), EtcdError> {
        let Some(registration) = self.registration.filter(|_| self.are_silences_due) else {
            return Ok(());
        };
        let stored = self.stored_silences();
        let wanted = self.source.silences();
        let missing =
            wanted.iter().filter(|silence| stored.get(&silence.id) != Some(&silence.record));
        for (count, silence) in missing.enumerate() {
            if count >= MAX_AT_ONCE {
                // The next turn has the others.
                return Ok(());
            }
            if !self.publish_silence(link, &registration, silence).await? {
                return Ok(());
            }
        }
        for id in stored.into_keys() {
            if !wanted.iter().any(|silence| silence.id == id) {
                self.delete_silence(link, &registration, id).await?;
            }
        }
        self.are_silences_due = false;
        Ok(())
    }

    /// Returns false if this process no longer has its name.
    async fn publish_silence(
        &mut self,
        link: &SessionLink<'_>,
        registration: &Registration,
        silence: &WantedSilence,
    ) -> Result<bool, EtcdError> {
        let WantedSilence { id, left, record } = silence;
        let lease = link.connection.grant(*left).await?;
        let key = self.identity.keys().text(&ClusterKey::Silence(id.clone()));
        let value = encode(&SilenceRecord { schema: FORMAT, ..record.clone() });
        let (fence, bytes) = (vec![self.identity.fence(registration)], value.len());
        let put = vec![RequestOp::put(&key, value.clone(), Some(lease))];
        let result = link.connection.commit(fence, put, &key).await;
        let Some(done) = result.as_ref().ok().filter(|result| result.is_done) else {
            // The next attempt makes another lease.
            link.connection.revoke(lease).await?;
            return result.map(|_| false);
        };
        // The watch delivers it again, and the view ignores that.
        let (mod_revision, create_revision) = (done.revision, done.revision);
        let stored = StoredValue { key, value, mod_revision, create_revision, lease: lease.0 };
        write(&self.shared.view).apply_own(ViewChange::Put(stored));
        self.count_write(1, bytes);
        self.silence_leases.insert(id.clone(), lease);
        Ok(true)
    }

    /// Deletes the key. A lease that another client has given it is not ended: it may have other keys.
    async fn delete_silence(
        &mut self,
        link: &SessionLink<'_>,
        registration: &Registration,
        id: SilenceId,
    ) -> Result<(), EtcdError> {
        let key = self.identity.keys().text(&ClusterKey::Silence(id.clone()));
        let fence = vec![self.identity.fence(registration)];
        link.connection.commit(fence, vec![RequestOp::delete(&key)], &key).await?;
        if let Some(lease) = self.silence_leases.remove(&id) {
            link.connection.revoke(lease).await?;
        }
        Ok(())
    }

    /// The silences that this node has in etcd.
    fn stored_silences(&self) -> BTreeMap<SilenceId, SilenceRecord> {
        let view = self.shared.view.read().unwrap_or_else(PoisonError::into_inner);
        let own = view.silences().filter(|(id, _)| id.is_of_node(&self.settings.node));
        own.map(|(id, stored)| (id.clone(), stored.record.clone())).collect()
    }
}

/// The leases of the silences that this process has written.
pub(super) type SilenceLeases = BTreeMap<SilenceId, LeaseId>;

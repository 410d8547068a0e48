// SPDX-License-Identifier: Apache-2.0
//! The silences of this node in etcd. Each has a lease of its own that ends with it, so that no clock of another node decides
//! when.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::WantedSilence;
use super::worker::{SessionLink, Worker};
use crate::etcd::messages::RequestOp;
use crate::etcd::{EtcdError, LeaseId};
use crate::follow::write;
use crate::key::{ClusterKey, SilenceId};
use crate::record::{FORMAT, SilenceRecord, encode};
use crate::view::{StoredValue, ViewChange};

impl Worker {
    /// Writes the silences that etcd does not have, and ends those that were removed here. Another client may have ended one
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
        for WantedSilence { id, left, record } in &wanted {
            if stored.contains_key(id) {
                continue;
            }
            let lease = link.connection.grant(*left).await?;
            let key = self.identity.keys().text(&ClusterKey::Silence(id.clone()));
            let value = encode(&SilenceRecord { schema: FORMAT, ..record.clone() });
            let (fence, bytes) = (vec![self.identity.fence(&registration)], value.len());
            let put = vec![RequestOp::put(&key, value.clone(), Some(lease))];
            let result = link.connection.commit(fence, put, &key).await;
            let Some(done) = result.as_ref().ok().filter(|result| result.is_done) else {
                // The next attempt makes another lease.
                link.connection.revoke(lease).await?;
                return result.map(|_| ());
            };
            // The watch delivers it again, and the view ignores that.
            let (mod_revision, create_revision) = (done.revision, done.revision);
            let stored = StoredValue { key, value, mod_revision, create_revision, lease: lease.0 };
            write(&self.shared.view).apply_own(ViewChange::Put(stored));
            self.count_write(1, bytes);
        }
        for (id, lease) in stored {
            if !wanted.iter().any(|silence| silence.id == id) {
                link.connection.revoke(lease).await?;
            }
        }
        self.are_silences_due = false;
        Ok(())
    }

    /// The silences that this node has in etcd.
    fn stored_silences(&self) -> BTreeMap<SilenceId, LeaseId> {
        let view = self.shared.view.read().unwrap_or_else(PoisonError::into_inner);
        let prefix = format!("{}.", self.settings.node);
        let is_own = |id: &SilenceId| {
            let number = id.as_str().strip_prefix(&prefix);
            number.is_some_and(|number| number.parse::<i64>().is_ok())
        };
        let own = view.silences().filter(|(id, _)| is_own(id));
        own.map(|(id, stored)| (id.clone(), LeaseId(stored.lease))).collect()
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The silences of this node in etcd. Each has a lease of its own that ends with it, so that it ends there although its node has
//! stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;
use std::time::Duration;

use ipnet::IpNet;
use tokio::time::Instant;
use vipwatch_core::ErrorChain;

use super::WantedSilence;
use super::registration::Registration;
use super::worker::{SessionLink, Worker, is_rejection};
use crate::etcd::messages::RequestOp;
use crate::etcd::{EtcdError, LeaseId};
use crate::follow::write;
use crate::group::Group;
use crate::key::{Bucket, ClusterKey, ClusterName, SilenceId};
use crate::record::{FORMAT, SilenceRecord, encode};
use crate::view::{ClusterView, StoredValue, ViewChange};

/// The maximum number of silences that are written or deleted before the lease of the process is renewed.
const MAX_AT_ONCE: usize = 20;

/// The wait before the next attempt after etcd has refused one: roles and findings do not wait for it.
const REFUSED_WAIT: Duration = Duration::from_secs(30);

/// What this process knows of its silences in etcd.
#[derive(Debug, Default)]
pub(super) struct SilenceLeases {
    /// The leases of those that it has written, or tried to: the next attempt uses the same one.
    of: BTreeMap<SilenceId, LeaseId>,
    /// When the next attempt is due; `None` if etcd has not refused the last one.
    retry: Option<Instant>,
}

impl SilenceLeases {
    pub(super) fn new() -> Self {
        Self::default()
    }
}

impl Worker {
    /// Writes the silences that etcd does not have, and deletes those that were removed here. Another client may have ended one
    /// of them: it is then not written again before the next change or registration.
    pub(super) async fn publish_silences(
        &mut self,
        link: &SessionLink<'_>,
    ) -> Result<(), EtcdError> {
        self.end_overdue_silences();
        let is_waiting = self.silence_leases.retry.is_some_and(|retry| Instant::now() < retry);
        let is_due = self.are_silences_due && !is_waiting;
        let Some(registration) = self.registration.filter(|_| is_due) else {
            return Ok(());
        };
        match self.write_silences(link, &registration).await {
            Err(error) if is_rejection(&error) => {
                self.shared.counters.add_error(error.kind());
                let retry = Some(Instant::now() + REFUSED_WAIT);
                if std::mem::replace(&mut self.silence_leases.retry, retry).is_none() {
                    let text = ErrorChain(&error).to_string();
                    tracing::warn!(
                        error = text,
                        hint = error.hint(),
                        "etcd refuses the silences of this node"
                    );
                }
                Ok(())
            }
            Ok(()) => {
                self.silence_leases.retry = None;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn end_overdue_silences(&mut self) {
        let view = self.shared.view.read().unwrap_or_else(PoisonError::into_inner);
        let has_silences = view.silences().next().is_some();
        drop(view);
        if has_silences && write(&self.shared.view).end_overdue_silences(self.moment()) {
            self.view_changed();
        }
    }

    async fn write_silences(
        &mut self,
        link: &SessionLink<'_>,
        registration: &Registration,
    ) -> Result<(), EtcdError> {
        let (wanted, stored) = self.wanted_and_stored();
        let part = SilencePart::new(&wanted, &stored, &self.silence_leases.of);
        let is_full = part.is_full();
        for silence in part.missing {
            if !self.publish_silence(link, registration, silence).await? {
                return Ok(());
            }
        }
        for id in &part.over {
            if !self.delete_silence(link, registration, id).await? {
                return Ok(());
            }
        }
        self.are_silences_due = is_full;
        if is_full {
            self.shared.wake.notify_one();
        }
        Ok(())
    }

    /// The silences of the node, and those that it has in etcd.
    fn wanted_and_stored(&self) -> (Vec<WantedSilence>, BTreeMap<SilenceId, SilenceRecord>) {
        let (mut wanted, node) = (self.source.silences(), &self.settings.node);
        // Every reader would ignore the others.
        wanted.retain(|silence| silence.record.clone().checked().is_ok());
        let view = self.shared.view.read().unwrap_or_else(PoisonError::into_inner);
        name_groups(&mut wanted, node, &view);
        let own = view.silences().filter(|(id, _)| id.is_of_node(node));
        let stored = own.map(|(id, stored)| (id.clone(), stored.record.clone())).collect();
        (wanted, stored)
    }

    /// Returns false if this process no longer has its name, or if the lease has ended: the next attempt makes another one.
    async fn publish_silence(
        &mut self,
        link: &SessionLink<'_>,
        registration: &Registration,
        silence: &WantedSilence,
    ) -> Result<bool, EtcdError> {
        let WantedSilence { id, left, record } = silence;
        let lease = match self.silence_leases.of.get(id) {
            Some(lease) => *lease,
            None => link.connection.grant(*left).await?,
        };
        self.silence_leases.of.insert(id.clone(), lease);
        let key = self.identity.keys().text(&ClusterKey::Silence(id.clone()));
        let value = encode(&SilenceRecord { schema: FORMAT, ..record.clone() });
        let (fence, bytes) = (vec![self.identity.fence(registration)], value.len());
        let put = vec![RequestOp::put(&key, value.clone(), Some(lease))];
        let revision = match link.connection.commit(fence, put, &key).await {
            Ok(result) if result.is_done => result.revision,
            Err(EtcdError::LeaseEnded { .. }) => {
                self.silence_leases.of.remove(id);
                return Ok(false);
            }
            result => return result.map(|_| false),
        };
        // The watch delivers it again, and the view ignores that.
        let (mod_revision, create_revision) = (revision, revision);
        let stored = StoredValue { key, value, mod_revision, create_revision, lease: lease.0 };
        write(&self.shared.view).apply_own(ViewChange::Put(stored));
        self.count_write(1, bytes);
        Ok(true)
    }

    /// Deletes the key. A lease that another client has given it is not ended: it may have other keys. Returns false if this process
    /// no longer has its name.
    async fn delete_silence(
        &mut self,
        link: &SessionLink<'_>,
        registration: &Registration,
        id: &SilenceId,
    ) -> Result<bool, EtcdError> {
        let key = self.identity.keys().text(&ClusterKey::Silence(id.clone()));
        let fence = vec![self.identity.fence(registration)];
        let delete = vec![RequestOp::delete(&key)];
        let result = link.connection.commit(fence, delete, &key).await?;
        if !result.is_done {
            return Ok(false);
        }
        let mod_revision = result.revision;
        write(&self.shared.view).apply_own(ViewChange::Deleted { key, mod_revision });
        if let Some(lease) = self.silence_leases.of.get(id) {
            link.connection.revoke(*lease).await?;
            self.silence_leases.of.remove(id);
        }
        Ok(true)
    }
}

/// What is written and deleted before the lease of the process is renewed.
struct SilencePart<'a> {
    missing: Vec<&'a WantedSilence>,
    over: Vec<SilenceId>,
}

impl<'a> SilencePart<'a> {
    fn new(
        wanted: &'a [WantedSilence],
        stored: &BTreeMap<SilenceId, SilenceRecord>,
        leases: &BTreeMap<SilenceId, LeaseId>,
    ) -> Self {
        let differs = |silence: &&WantedSilence| stored.get(&silence.id) != Some(&silence.record);
        let missing: Vec<_> = wanted.iter().filter(differs).take(MAX_AT_ONCE).collect();
        let ids: BTreeSet<&SilenceId> = wanted.iter().map(|silence| &silence.id).collect();
        let known: BTreeSet<&SilenceId> = stored.keys().chain(leases.keys()).collect();
        let over = known.difference(&ids).take(MAX_AT_ONCE - missing.len());
        let over = over.copied().cloned().collect();
        Self { missing, over }
    }

    /// Whether there may be more for the next turn.
    fn is_full(&self) -> bool {
        self.missing.len() + self.over.len() >= MAX_AT_ONCE
    }
}

/// Gives the groups of this node's instances the ids that all nodes know them by, as far as the view has them.
fn name_groups(wanted: &mut [WantedSilence], node: &ClusterName, view: &ClusterView) {
    let mut buckets: BTreeMap<Bucket, Vec<Group>> = BTreeMap::new();
    for silence in wanted {
        let Some(own) = &mut silence.record.group else { continue };
        let Some(bucket) = Bucket::of_group(own) else { continue };
        let groups = buckets.entry(bucket).or_insert_with_key(|bucket| view.groups_of(bucket));
        let is_own = |group: &&Group| {
            group.members.iter().any(|member| {
                let addresses = member.record.addresses.iter().map(IpNet::addr);
                member.node == *node && group.bucket.own_group(addresses) == *own
            })
        };
        if let Some(group) = groups.iter().find(is_own) {
            own.clone_from(&group.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use vipwatch_api::RoleKind::{Backup, Primary};

    use super::*;
    use crate::record::RoleRecord;
    use crate::sample::{TestCluster, role_record, time, vrid_51};

    fn wanted(number: i64, group: Option<&str>) -> WantedSilence {
        let id = SilenceId::of_node(&"a".parse().unwrap(), number);
        let record = SilenceRecord {
            schema: FORMAT,
            id: id.to_string(),
            node: Some("a".to_owned()),
            group: group.map(str::to_owned),
            reason: "reboot".to_owned(),
            created_by: "root".to_owned(),
            at: time(0),
            until: time(3600),
        };
        WantedSilence { id, left: Duration::from_hours(1), record }
    }

    #[test]
    fn many_silences_that_end_together_are_deleted_in_parts() {
        let silences: Vec<WantedSilence> = (0..50).map(|number| wanted(number, None)).collect();
        let stored = silences.iter().map(|it| (it.id.clone(), it.record.clone())).collect();
        let leases = [(wanted(77, None).id, LeaseId(7))].into();
        let ended = SilencePart::new(&[], &stored, &leases);
        assert_eq!((ended.missing.len(), ended.over.len(), ended.is_full()), (0, 20, true));
        let new: Vec<WantedSilence> = (100..115).map(|number| wanted(number, None)).collect();
        let mixed = SilencePart::new(&new, &stored, &leases);
        assert_eq!((mixed.missing.len(), mixed.over.len()), (15, 5));
        let rest = SilencePart::new(&silences, &stored, &leases);
        assert_eq!(rest.over, [wanted(77, None).id], "its lease is left of a lost answer");
        assert!(rest.missing.is_empty() && !rest.is_full());
    }

    #[test]
    fn the_silence_of_an_instance_has_the_id_that_all_nodes_know_its_group_by() {
        let mut cluster = TestCluster::new();
        let addresses = |list: [&str; 2]| list.map(|it| it.parse::<IpNet>().unwrap()).to_vec();
        for (node, role, list) in [
            ("a", Primary, ["192.0.2.90/24", "192.0.2.80/24"]),
            ("b", Backup, ["192.0.2.80/24", "192.0.2.90/24"]),
            ("c", Backup, ["192.0.2.80/24", "192.0.2.90/24"]),
        ] {
            cluster.start(node);
            let record =
                RoleRecord { addresses: addresses(list), ..role_record(node, "VI_1", role) };
            cluster.publish(&vrid_51(), &record);
        }
        let node = "a".parse().unwrap();
        let mut silences = [wanted(1, Some("vrrp:ipv4:51:192.0.2.90")), wanted(2, None)];
        name_groups(&mut silences, &node, &cluster.view);
        let group = silences[0].record.group.as_deref();
        assert_eq!((group, &silences[1].record.group), (Some("vrrp:ipv4:51:192.0.2.80"), &None));
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Instances that are no longer configured: each takes a sequence number, a row of the history, and a notification to
//! the targets that know it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_core::{InstanceId, Moment, RoleKind, Trigger};
use vipwatch_history::{DeliverySource, Latencies, Reader, Record};
use vipwatch_linux::clock;

use super::Node;
use super::events::to_json;
use crate::discovery::InstanceConfig;
use crate::event::REMOVED;
use crate::log::{addresses, netns_name};
use crate::notify::notification::{Notification, RecordedTransition};
use crate::notify::notifier::NotifyOrder;
use crate::transition::millis;

impl Node {
    /// Publishes that an instance of this run is no longer configured.
    pub(super) fn remove_instance(&mut self, id: &InstanceId) {
        let Some(entry) = self.store.entry(id) else { return };
        self.transition_log.forget(id);
        let instance = Some(&*entry.instance);
        self.publish_removal(id.clone(), instance, entry.role.kind(), NotifyOrder::Next);
    }

    /// When [`Self::check_removals`] is due; `None` if it is done, or waits for another scan.
    pub(super) fn removal_check_due(&self) -> Option<Moment> {
        self.removal_check.filter(|_| self.follower.is_settled())
    }

    /// Some seconds after the start, publishes the instances of the last run that are not configured any more. A file
    /// that was missing or could not be read at the start has had time to appear: without the instances of such a file
    /// the check would report their removal.
    pub(super) fn check_removals(&mut self) {
        if self.removal_check_due().is_none_or(|due| due > clock::now()) {
            return;
        }
        // A directory that is not watched may have a new file.
        let update = self.follower.rediscover();
        self.publish_update(update, clock::now());
        if self.follower.is_settled() {
            self.removal_check = None;
            self.remove_missing_instances();
        }
    }

    fn followed(&self) -> BTreeSet<Box<str>> {
        self.follower.instances().iter().map(|instance| instance.id.as_str().into()).collect()
    }

    /// Publishes the instances of the last run that are not configured any more, continues the notifications about
    /// those that the last run removed, and forgets the deliveries of those that have other targets now.
    fn remove_missing_instances(&mut self) {
        let followed = self.followed();
        let last_run = std::mem::take(&mut self.last_run);
        let missing = last_run.into_iter().filter_map(|(id, last)| {
            let id = id.parse::<InstanceId>().ok().filter(|id| !followed.contains(id.as_str()))?;
            Some((id, last.kind))
        });
        let missing: Vec<(InstanceId, RoleKind)> = missing.collect();
        let mut unknown = self.notifier.known_instances();
        unknown.retain(|id| !followed.contains(id.as_str()));
        for (id, kind) in missing {
            unknown.remove(&id);
            self.publish_removal(id, None, kind, NotifyOrder::AfterBacklog);
        }
        self.resume_removals(unknown);
        self.outlets.forget_uncovered(|id| followed.contains(id.as_str()));
    }

    /// Delivers the removals that the last run has recorded. Targets without them are notified.
    fn resume_removals(&self, ids: BTreeSet<InstanceId>) {
        if ids.is_empty() {
            return;
        }
        let reader = match Reader::open(&self.config.state_dir) {
            Ok(reader) => reader,
            Err(error) => {
                tracing::warn!(%error, "cannot read which instances were removed");
                return;
            }
        };
        for id in ids {
            match reader.last_transition(id.as_str()) {
                Ok(Some(record)) if record.to.is_none() => {
                    self.notify_removal(id, record, NotifyOrder::AfterBacklog);
                }
                Ok(_) => self.notifier.forget(DeliverySource::Node, None, &id),
                Err(error) => {
                    tracing::warn!(instance = %id, %error, "cannot read whether the instance was removed");
                }
            }
        }
    }

    /// `instance` is `None` if an earlier run has followed it.
    fn publish_removal(
        &mut self,
        id: InstanceId,
        instance: Option<&InstanceConfig>,
        from: RoleKind,
        order: NotifyOrder,
    ) {
        let seq = self.next_seq();
        let (netns, address) = (instance.map(netns_name), instance.map(addresses));
        tracing::info!(seq, instance = %id, netns, address, from = from.word(), "instance removed");
        // The drain check tells them apart: the files of an instance that is absent at a start may be elsewhere now.
        let trigger = if instance.is_some() { Trigger::Config } else { Trigger::Start };
        let netns = instance.and_then(|instance| instance.netns.as_ref());
        let record = Record {
            seq,
            at: millis(SystemTime::now()),
            instance: id.to_string(),
            netns: netns.map(ToString::to_string),
            from: Some(from),
            to: None,
            trigger: trigger.as_str().to_owned(),
            reason: None,
            cause: None,
        };
        self.history.record(record.clone(), Latencies::default());
        self.store
            .events
            .publish(seq, REMOVED, Some(&id), || to_json(&self.identity.removed(&record)));
        self.notify_removal(id, record, order);
    }

    fn notify_removal(&self, id: InstanceId, record: Record, order: NotifyOrder) {
        let read_at = clock::now();
        let removal = RecordedTransition { record, id, instance: None, read_at };
        let removal: Arc<dyn Notification> = Arc::new(removal);
        self.notifier.deliver_to_known(&removal, order);
    }
}

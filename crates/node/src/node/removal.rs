//! Instances that are no longer configured: each takes a sequence number, a row of the history, and a notification to
//! the targets that know it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use vipwatch_core::{Cause, InstanceId, RoleKind};
use vipwatch_history::{DeliverySource, Latencies, Reader, Record};
use vipwatch_linux::clock;

use super::Node;
use super::events::to_json;
use crate::event::REMOVED;
use crate::notify::notification::{Notification, RecordedTransition};
use crate::transition::millis;

impl Node {
    /// Publishes that an instance of this run is no longer configured.
    pub(super) fn remove_instance(&mut self, id: &InstanceId) {
        let Some(entry) = self.store.entry(id) else { return };
        self.transition_log.forget(id);
        let netns = entry.instance.netns.as_ref().map(ToString::to_string);
        self.publish_removal(id.clone(), netns, entry.role.kind());
    }

    /// Publishes the instances of the last run that are not configured any more, and continues the notifications about
    /// those that the last run removed.
    pub(super) fn remove_missing_instances(&mut self) {
        let followed: BTreeSet<InstanceId> =
            self.follower.instances().iter().map(|instance| instance.id.clone()).collect();
        let last_run = std::mem::take(&mut self.last_run);
        let missing = last_run.into_iter().filter_map(|(id, last)| {
            let id = id.parse::<InstanceId>().ok().filter(|id| !followed.contains(id))?;
            Some((id, last.kind))
        });
        let missing: Vec<(InstanceId, RoleKind)> = missing.collect();
        let removed: BTreeSet<InstanceId> = missing.iter().map(|(id, _)| id.clone()).collect();
        for (id, kind) in missing {
            self.publish_removal(id, None, kind);
        }
        for id in self.notifier.known_instances() {
            if !followed.contains(&id) && !removed.contains(&id) {
                self.resume_removal(&id);
            }
        }
    }

    /// Delivers the removal of an instance that the last run has recorded. Targets without it are notified.
    fn resume_removal(&self, id: &InstanceId) {
        let last = Reader::open(&self.config.state_dir)
            .and_then(|reader| reader.last_transition(id.as_str()));
        match last {
            Ok(Some(record)) if record.to == REMOVED => self.notify_removal(id.clone(), record),
            Ok(_) => self.notifier.forget(DeliverySource::Node, None, id),
            Err(error) => {
                tracing::warn!(instance = %id, %error, "cannot read whether the instance was removed");
            }
        }
    }

    fn publish_removal(&mut self, id: InstanceId, netns: Option<String>, from: RoleKind) {
        let seq = self.next_seq();
        let from = from.as_str().to_owned();
        tracing::info!(seq, instance = %id, from, "instance removed");
        let record = Record {
            seq,
            at: millis(SystemTime::now()),
            instance: id.to_string(),
            netns,
            from: Some(from),
            to: REMOVED.to_owned(),
            cause: Cause::Config.as_str().to_owned(),
            reason: None,
        };
        self.history.record(record.clone(), Latencies::default());
        self.store
            .events
            .publish(seq, REMOVED, Some(&id), || to_json(&self.identity.removed(&record)));
        self.notify_removal(id, record);
    }

    fn notify_removal(&self, id: InstanceId, record: Record) {
        let read_at = clock::now();
        let removal = RecordedTransition { record, id, instance: None, read_at };
        let removal: Arc<dyn Notification> = Arc::new(removal);
        self.notifier.deliver_to_known(&removal);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The notifier: the targets of the node and of the receiver, each with a queue, and one record of their deliveries.
//!
//! ```text
//!   node's main loop ──┐                   ┌─▶ queue of a hook      ─▶ programs
//!   receiver ──────────┼─▶ Notifier ───────┼─▶ queue of a webhook   ─▶ server
//!                      │                   ├─▶ queue of an upstream ─▶ server
//!                      │                   └─▶ queue for IPv6       ─▶ sysctls
//!                      │                           │ concluded
//!                      └── views ◀─────────────────┴─▶ table `delivery` of the history
//! ```
//!
//! State files, Neutron's agent and announcements are in [`super::instance_outlets`]: they are never delayed, and after
//! a restart they follow from the kernel's state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use vipwatch_api::TargetItem;
use vipwatch_core::notification::Concluded;
use vipwatch_core::{Conclusion, EventKind, InstanceId};
use vipwatch_history::{DeliverySource, StoredDelivery, StoredTargets};
use vipwatch_linux::clock;

use super::ANNOUNCE;
use super::inline_views::InlineViews;
use super::notification::{Notification, Subject};
use super::target::TargetSettings;
use super::target_queue::{QueueContext, StoredSubject, TargetQueue};

/// A target is identified by its source and its name.
type TargetId = (DeliverySource, Arc<str>);

/// What earlier runs have concluded, by subject.
type StoredSubjects = BTreeMap<Subject, StoredSubject>;

/// What a target for every transition receives before a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotifyOrder {
    /// Those that are pending in this run.
    Next,
    /// Those that the last run has left in the history: the notification is the first one of its subject in this run.
    AfterBacklog,
}

/// All targets. A clone is another handle on the same targets.
#[derive(Debug, Clone)]
pub struct Notifier(Arc<SharedNotifier>);

struct SharedNotifier {
    table: RwLock<TargetTable>,
    /// Counters of the outlets without a queue.
    inline: InlineViews,
    context: Arc<QueueContext>,
}

#[derive(Default)]
struct TargetTable {
    queues: BTreeMap<TargetId, Arc<TargetQueue>>,
    /// What was concluded for targets that are not configured now. A target that is configured again continues there.
    unused: BTreeMap<TargetId, StoredSubjects>,
}

impl Notifier {
    /// A notifier without targets. `stored` is what the last run has stored. After a kill (`is_uncertain`) targets may
    /// have received more than that.
    pub(super) fn new(
        stored: Vec<StoredDelivery>,
        is_uncertain: bool,
        context: QueueContext,
    ) -> Self {
        let mut table = TargetTable::default();
        for row in stored {
            let Some(subject) = Subject::from_stored_text(&row.key.instance) else { continue };
            let concluded = Concluded {
                seq: row.seq,
                conclusion: row.outcome.parse().unwrap_or(Conclusion::Filtered),
                delivered: row.role.filter(|_| !is_uncertain),
            };
            let subjects = table.unused.entry((row.key.source, row.key.target)).or_default();
            let stored = StoredSubject { concluded, missed: row.missed };
            subjects.insert(subject, stored);
        }
        let shared = SharedNotifier {
            table: RwLock::new(table),
            inline: InlineViews::default(),
            context: Arc::new(context),
        };
        Self(Arc::new(shared))
    }

    /// Takes the instances with a complete announcement, with the sequence number of its transition.
    pub(super) fn take_announced(&self) -> BTreeMap<InstanceId, i64> {
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        let stored = table.unused.remove(&(DeliverySource::Node, ANNOUNCE.into()));
        let announced =
            stored.into_iter().flatten().filter_map(|(subject, stored)| match subject {
                Subject::Instance(id) => Some((id, stored.concluded.seq)),
                Subject::Finding(_) => None,
            });
        announced.collect()
    }

    /// Replaces the targets of `source`. A target that stays configured keeps its queue.
    pub(crate) fn configure(&self, source: DeliverySource, targets: &[TargetSettings]) {
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        let names: BTreeSet<&str> = targets.iter().map(TargetSettings::name).collect();
        let is_removed =
            |id: &TargetId, _: &mut Arc<TargetQueue>| id.0 == source && !names.contains(&*id.1);
        let removed: Vec<_> = table.queues.extract_if(.., is_removed).collect();
        for (id, queue) in removed {
            table.unused.insert(id, queue.retire());
        }
        for settings in targets {
            let id = (source, Arc::from(settings.name()));
            if let Some(queue) = table.queues.get(&id) {
                queue.reconfigure(settings);
                continue;
            }
            let stored = table.unused.remove(&id).unwrap_or_default();
            let queue = TargetQueue::new(settings.clone(), source, stored, &self.0.context);
            table.queues.insert(id, Arc::new(queue));
        }
    }

    fn table(&self) -> RwLockReadGuard<'_, TargetTable> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self, source: DeliverySource, name: &str) -> Option<Arc<TargetQueue>> {
        self.table().queues.get(&(source, Arc::from(name))).cloned()
    }

    /// The queues of all targets of one source.
    pub(super) fn queues(&self, source: DeliverySource) -> Vec<Arc<TargetQueue>> {
        let table = self.table();
        let queues = table.queues.iter().filter(|((of, _), _)| *of == source);
        queues.map(|(_, queue)| Arc::clone(queue)).collect()
    }

    /// The queues of all targets of one source, with the name of the target.
    pub(super) fn named_queues(&self, source: DeliverySource) -> Vec<(Arc<str>, Arc<TargetQueue>)> {
        let table = self.table();
        let queues = table.queues.iter().filter(|((of, _), _)| *of == source);
        queues.map(|((_, name), queue)| (Arc::clone(name), Arc::clone(queue))).collect()
    }

    /// The names of all targets of one source.
    pub(super) fn target_names(&self, source: DeliverySource) -> Vec<Arc<str>> {
        self.named_queues(source).into_iter().map(|(name, _)| name).collect()
    }

    /// Whether a target of the node selects findings.
    pub(crate) fn has_finding_target(&self) -> bool {
        let queues = self.queues(DeliverySource::Node);
        queues.iter().any(|queue| queue.settings().selects(EventKind::Finding))
    }

    /// Removes the pending notifications about a subject from all targets of the node.
    pub(crate) fn forget_subject(&self, subject: &Subject) {
        self.queues(DeliverySource::Node).iter().for_each(|queue| queue.forget(subject));
    }

    /// Delivers a notification to the target with this name.
    pub(super) fn deliver(&self, target: &str, notification: &Arc<dyn Notification>) {
        if let Some(queue) = self.queue(DeliverySource::Node, target) {
            queue.submit(notification);
        }
    }

    /// As [`Self::deliver`], for the first notification about an instance in this run, or after a reload.
    /// `is_unchanged`: an earlier run had this notification, or the target had no chance to receive it.
    pub(super) fn resume(
        &self,
        target: &str,
        notification: &Arc<dyn Notification>,
        is_unchanged: bool,
    ) {
        if let Some(queue) = self.queue(DeliverySource::Node, target) {
            queue.resume(notification, is_unchanged);
        }
    }

    /// Delivers a notification to all targets of one source.
    pub(super) fn deliver_to_all(
        &self,
        source: DeliverySource,
        notification: &Arc<dyn Notification>,
    ) {
        for queue in self.queues(source) {
            queue.submit(notification);
        }
    }

    /// Delivers a notification to the targets of the node that know its subject: those that received an earlier one.
    pub(crate) fn deliver_to_known(
        &self,
        notification: &Arc<dyn Notification>,
        order: NotifyOrder,
    ) {
        let subject = notification.subject();
        for queue in self.queues(DeliverySource::Node) {
            match order {
                _ if !queue.knows(&subject) => {}
                NotifyOrder::Next => queue.submit(notification),
                NotifyOrder::AfterBacklog => queue.resume(notification, false),
            }
        }
    }

    /// The highest concluded sequence number of each instance, also by targets that are not configured now.
    pub(super) fn concluded_seqs(&self, source: DeliverySource) -> BTreeMap<InstanceId, i64> {
        let mut highest = BTreeMap::new();
        let mut add = |id: InstanceId, seq: i64| {
            let known = highest.entry(id).or_insert(seq);
            *known = seq.max(*known);
        };
        for (_, subjects) in self.table().unused.iter().filter(|((of, _), _)| *of == source) {
            for (subject, stored) in subjects {
                if let Subject::Instance(id) = subject {
                    add(id.clone(), stored.concluded.seq);
                }
            }
        }
        for queue in self.queues(source) {
            queue.concluded_seqs().into_iter().for_each(|(id, seq)| add(id, seq));
        }
        highest
    }

    /// The instances that targets of the node know.
    pub(crate) fn known_instances(&self) -> BTreeSet<InstanceId> {
        let queues = self.queues(DeliverySource::Node);
        queues.iter().flat_map(|queue| queue.instances()).collect()
    }

    /// Removes an instance from one target, or from all targets of a source.
    pub(crate) fn forget(&self, source: DeliverySource, target: Option<&str>, id: &InstanceId) {
        let subject = Subject::Instance(id.clone());
        match target {
            Some(name) => self.queue(source, name).iter().for_each(|queue| queue.forget(&subject)),
            None => self.queues(source).iter().for_each(|queue| queue.forget(&subject)),
        }
    }

    /// Removes the instances of each target of a source for which `is_kept` is false, given the name of the target.
    pub(super) fn retain_instances(
        &self,
        source: DeliverySource,
        is_kept: impl Fn(&str, &InstanceId) -> bool,
    ) {
        for (name, queue) in self.named_queues(source) {
            for id in queue.instances().into_iter().filter(|id| !is_kept(&name, id)) {
                queue.forget(&Subject::Instance(id));
            }
        }
    }

    /// Whether a target has received the notification `seq` about an instance, or is not to receive it.
    pub(super) fn is_done(&self, target: &str, id: &InstanceId, seq: i64) -> bool {
        let queue = self.queue(DeliverySource::Node, target);
        queue.is_some_and(|queue| queue.is_done(&Subject::Instance(id.clone()), seq))
    }

    /// Whether the last attempt to deliver to a target failed for this instance.
    pub(super) fn is_failing(&self, target: &str, id: &InstanceId) -> bool {
        let queue = self.queue(DeliverySource::Node, target);
        queue.is_some_and(|queue| queue.failure(&Subject::Instance(id.clone())).is_some())
    }

    /// Looks again at notifications that a silence has held back.
    pub(crate) fn silences_changed(&self) {
        for queue in self.table().queues.values() {
            queue.silences_changed();
        }
    }

    /// Starts workers that could not be started before.
    pub(crate) fn start_workers(&self) {
        for queue in self.table().queues.values() {
            queue.start_workers();
        }
    }

    /// Stores everything again, because the history was replaced by a new file.
    pub(crate) fn store_again(&self) {
        for queue in self.table().queues.values() {
            queue.store_again();
        }
    }

    /// The names of the targets, for the retention of the history.
    pub(crate) fn stored_targets(&self) -> StoredTargets {
        let table = self.table();
        let every = table
            .queues
            .iter()
            .filter(|((source, _), queue)| *source == DeliverySource::Node && queue.is_for_every());
        let every = every.map(|((_, name), _)| name.to_string()).collect();
        let all = table.queues.keys().map(|(_, name)| name.to_string());
        let all = all.chain([ANNOUNCE.to_owned()]).collect();
        StoredTargets { every, all }
    }

    /// The deliveries to each target: first those without a queue, then the others by source and name.
    pub fn views(&self) -> Vec<TargetItem> {
        let queues: Vec<_> = self.table().queues.values().cloned().collect();
        let mut views = self.0.inline.views();
        views.extend(queues.iter().map(|queue| queue.view()));
        views
    }

    /// What the queues of all targets have in common.
    pub(super) fn context(&self) -> &QueueContext {
        &self.0.context
    }

    /// The counters of the outlets without a queue.
    pub(super) fn inline(&self) -> &InlineViews {
        &self.0.inline
    }

    /// Ends the deliveries of one source: waits at most `limit` for those that run. Returns the number of notifications
    /// that are left; the next process delivers them.
    pub(crate) fn close(&self, source: DeliverySource, limit: Duration) -> usize {
        let queues = self.queues(source);
        for queue in &queues {
            queue.close();
        }
        let end = clock::now() + limit;
        queues.iter().map(|queue| queue.wait_until_idle(end)).sum()
    }

    /// Undoes [`Self::close`], for a receiver that is started again by a reload.
    pub(super) fn reopen(&self, source: DeliverySource) {
        for queue in self.queues(source) {
            queue.reopen();
        }
    }
}

impl std::fmt::Debug for SharedNotifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Notifier")
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Publishes what the follower reports: role changes, instances, and problems with their configuration.
//!
//! ```text
//!   RoleChange ─▶ core::reconcile ─▶ Transition ─▶ notifier ─▶ history ─▶ published state ─▶ subscribers ─▶ log
//! ```
//!
//! ORDER: targets are notified first, and the log line comes last: nothing may delay a notification.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use vipwatch_core::audit::AgentKnowledge;
use vipwatch_core::cause::{ChangeDirection, UnknownReason};
use vipwatch_core::reconcile::{ObservedRole, Reconciled, StoredRole, reconcile};
use vipwatch_core::{InstanceId, Moment, Role, Trigger};
use vipwatch_history::{Latencies, Stage};
use vipwatch_linux::clock::{self, Stamp};

use super::Node;
use super::history::LastRunRole;
use super::transition_log::log_unchanged;
use crate::discovery::{ConfigProblem, InstanceConfig, PendingEdit};
use crate::notify::instance_outlets::{DeliveryReason, PublishResult};
use crate::state::InstanceEntry;
use crate::transition::Transition;
use crate::watch::follower::FollowerUpdate;
use crate::watch::instance_table::{AddressChange, RoleChange};

impl Node {
    /// Publishes an update of the follower that was read at `read_at`.
    pub(super) fn publish_update(&mut self, update: FollowerUpdate, read_at: Moment) {
        let read = Stamp { moment: read_at, ..Stamp::now() };
        // ORDER: these changes are about the instances before the scan, which may remove some of them.
        for change in update.changes_before_scan {
            self.publish_change(change, read);
        }
        if let Some(problems) = update.problems {
            self.publish_problems(problems);
        }
        if let Some(instances) = &update.instances {
            self.publish_instances(instances);
        }
        if let Some(pending) = update.pending {
            self.publish_pending_edits(pending);
        }
        if update.has_agent_sockets {
            self.outlets.retry_agents();
        }
        for change in update.changes {
            self.publish_change(change, read);
        }
        self.outlets.announce_added();
        for AddressChange { id, addresses } in update.address_changes {
            self.store.amend(&id, |entry| entry.addresses = addresses);
        }
        for netns in self.follower.table().take_changed_links() {
            self.witness.search(netns);
        }
    }

    /// Publishes the problems with keepalived's configuration, and logs those that are new.
    fn publish_problems(&self, problems: Vec<ConfigProblem>) {
        let known = Arc::clone(&self.store.view().problems);
        let known: HashSet<&ConfigProblem> = known.iter().collect();
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            let ConfigProblem { file, line, text, .. } = problem;
            tracing::warn!(
                ?file,
                line = line.unwrap_or(0),
                problem = text,
                "configuration problem"
            );
        }
        let problems = Arc::new(problems);
        self.store.update(|view| view.problems = problems);
    }

    /// Publishes the files of which the content is not in use, and has the instances audited for which that has changed.
    fn publish_pending_edits(&self, pending: HashMap<Arc<Path>, PendingEdit>) {
        let known = Arc::clone(&self.store.view().pending_edits);
        let pending = Arc::new(pending);
        self.store.update(|view| view.pending_edits = Arc::clone(&pending));
        let requests = self.audit_worker.requests();
        for entry in self.store.view().entries.values() {
            let file = &entry.instance.file;
            if known.get(file) != pending.get(file) {
                requests.facts_changed(&entry.instance.id);
            }
        }
    }

    /// Removes the instances that are not in `instances`, and updates the configuration of the others. The
    /// role of a new instance comes as a [`RoleChange`].
    fn publish_instances(&mut self, instances: &[Arc<InstanceConfig>]) {
        let by_id: BTreeMap<&InstanceId, &Arc<InstanceConfig>> =
            instances.iter().map(|instance| (&instance.id, instance)).collect();
        let removed: Vec<InstanceId> = {
            let view = self.store.view();
            view.entries.keys().filter(|id| !by_id.contains_key(id)).cloned().collect()
        };
        for id in removed {
            // ORDER: hooks and webhooks receive a transition before the removal.
            self.conclude_pending_causes(&id, UnknownReason::Superseded);
            self.remove_instance(&id);
        }
        let node = self.config.node_name();
        self.store.update(|view| {
            view.entries.retain(|id, _| by_id.contains_key(id));
            for (id, entry) in &mut view.entries {
                let instance = by_id.get(id);
                if let Some(new) = instance.filter(|new| !Arc::ptr_eq(new, &entry.instance)) {
                    Arc::make_mut(entry).instance = Arc::clone(new);
                    self.audit_worker.instance_changed(id);
                }
                let group = self.config.groups.id_of(&entry.instance, &node);
                if group != entry.group {
                    Arc::make_mut(entry).group = group;
                }
            }
        });
        self.witness.follow(instances);
        let reconfigured = self.outlets.follow(instances);
        if let Some(cluster) = &self.cluster {
            cluster.set_notifies(self.notifier.has_finding_target());
            cluster.mark_all();
        }
        self.notify_current_roles(&reconfigured);
        self.history.set_targets(self.notifier.stored_targets());
    }

    /// Notifies new targets of the current role, which has not changed.
    fn notify_current_roles(&mut self, reconfigured: &[InstanceId]) {
        for id in reconfigured {
            // ORDER: hooks and webhooks receive a transition before a reload repeats the role.
            self.conclude_pending_causes(id, UnknownReason::Superseded);
            let Some(entry) = self.store.entry(id) else { continue };
            let transition = Arc::new(Transition {
                seq: entry.seq,
                at: entry.since,
                read_at: clock::now(),
                is_repeated: true,
                instance: Arc::clone(&entry.instance),
                from: None,
                to: entry.role.clone(),
                direction: ChangeDirection::of(None, None, &entry.role),
                trigger: entry.trigger,
                cause: entry.cause.clone(),
            });
            let PublishResult { reports, .. } =
                self.outlets.deliver(&transition, DeliveryReason::Reload);
            let stages = self.outlets.stages(id);
            let outlets = &self.outlets;
            self.store.amend(id, |entry| {
                // A failure stays known while its delivery goes on, so that it is not reported twice.
                entry.failures.retain(|(stage, target), _| outlets.is_failing(id, *stage, target));
                entry.agent = stages.contains(&Stage::Agent).then(AgentKnowledge::default);
                entry.stages = stages;
            });
            for report in &reports {
                self.record_delivery(report);
            }
        }
    }

    /// Takes one role change to all targets, to the history and to the published state.
    fn publish_change(&mut self, change: RoleChange, read: Stamp) {
        let Stamp { wall: at, moment: read_at } = change.withheld_since.unwrap_or(read);
        let id = change.instance.id.clone();
        let changer = self.pending_causes.changer(&id).or(change.changer);
        let known = self.store.entry(&id);
        let observed = ObservedRole { from: change.from.as_ref(), to: &change.to, at };
        let is_first = change.from.is_none();
        let last = self.last_run.remove(id.as_str()).filter(|_| is_first);
        let stored = last.as_ref().map(|last| StoredRole { kind: last.kind, since: last.since });
        let reconciled = reconcile(&observed, stored, known.as_ref().map(|known| known.since));
        if let (Reconciled::Unchanged { since }, Some(last)) = (reconciled, &last) {
            return self.resume_instance(change, last, since, read_at);
        }
        let addresses = change.addresses;
        let held_before = match change.from {
            Some(Role::Partial { held, .. }) => Some(held),
            _ => None,
        };
        let direction = ChangeDirection::of(reconciled.previous(), held_before, &change.to);
        let transition = Arc::new(Transition {
            seq: self.next_seq(),
            at,
            read_at,
            is_repeated: false,
            instance: change.instance,
            from: reconciled.previous(),
            to: change.to,
            direction,
            trigger: change.trigger,
            cause: None,
        });
        let reason =
            if is_first { DeliveryReason::ChangeWhileStopped } else { DeliveryReason::Change };
        // ORDER: hooks and webhooks follow when the cause is known; the other outlets do not wait for it.
        let PublishResult { latencies, reports } = self.outlets.deliver_inline(&transition, reason);
        let cause = self.immediate_cause(&transition);
        let transition = Arc::new(Transition { cause, ..(*transition).clone() });
        if transition.cause.is_none() {
            self.await_cause(&transition, reason, changer, known.as_deref());
        } else {
            self.deliver_in_order(&transition, reason);
            self.request_checks(&transition, is_first);
        }
        self.history.record(transition.record(), latencies);
        let entry = self.entry(&transition, known.as_deref(), latencies);
        let since = reconciled.since();
        let continued = known.as_ref().filter(|known| known.since == since);
        let role_since = continued.map_or(read_at, |known| known.role_since);
        let counts = known.as_ref().map(|known| known.counts).unwrap_or_default();
        let counts = counts.with(transition.from, transition.to.kind());
        if let Some(cluster) = &self.cluster {
            cluster.add_transition(&transition);
        }
        self.store.insert(InstanceEntry { addresses, since, role_since, counts, ..entry });
        self.publish_transition_event(&transition, &latencies);
        self.store.latencies.observe_all(&latencies);
        let counters = &self.store.counters;
        counters.transitions.fetch_add(1, Ordering::Relaxed);
        counters.transitions_to[transition.to.kind() as usize].fetch_add(1, Ordering::Relaxed);
        if transition.trigger == Trigger::Audit {
            counters.audit_corrections.fetch_add(1, Ordering::Relaxed);
        }
        if self.transition_log.log(&transition) {
            counters.flaps.fetch_add(1, Ordering::Relaxed);
            self.store.amend(&id, |entry| entry.counts.flaps += 1);
        }
        for report in &reports {
            self.record_delivery(report);
        }
        self.audit_worker.instance_changed(&id);
    }

    /// Has the adverts and processes of an instance read after a transition, for the audit.
    fn request_checks(&self, transition: &Transition, is_first: bool) {
        if !is_first {
            self.witness.drain(&transition.instance);
        }
        self.check_processes(&transition.instance.id);
    }

    /// Publishes an instance with the role that it had in the last run. There is no new transition: state file and
    /// agent get the role again, and targets that have not received the last transition receive it under its own
    /// sequence number.
    fn resume_instance(
        &mut self,
        change: RoleChange,
        last: &LastRunRole,
        since: SystemTime,
        read_at: Moment,
    ) {
        let addresses = change.addresses;
        let direction = ChangeDirection::of(last.from, None, &change.to);
        let transition = Arc::new(Transition {
            seq: last.seq,
            at: since,
            read_at,
            is_repeated: true,
            instance: change.instance,
            from: last.from,
            to: change.to,
            direction,
            trigger: last.trigger,
            cause: last.cause.clone(),
        });
        let PublishResult { latencies, reports } =
            self.outlets.deliver(&transition, DeliveryReason::Restart);
        let entry = self.entry(&transition, None, latencies);
        let role_since = clock::moment_of(since);
        self.store.insert(InstanceEntry { addresses, since, role_since, ..entry });
        log_unchanged(&transition);
        for report in &reports {
            self.record_delivery(report);
        }
        self.audit_worker.instance_changed(&transition.instance.id);
    }

    /// The entry for the published state after a transition. `known` is the entry before.
    fn entry(
        &self,
        transition: &Transition,
        known: Option<&InstanceEntry>,
        latencies: Latencies,
    ) -> InstanceEntry {
        let stages = self.outlets.stages(&transition.instance.id);
        let agent = known.and_then(|known| known.agent.clone());
        let instance = Arc::clone(&transition.instance);
        let is_holding = matches!(transition.to, Role::Primary | Role::Partial { .. });
        let held_since = known.and_then(|known| known.held_since).unwrap_or(transition.read_at);
        let mut entry = InstanceEntry {
            group: self.config.groups.id_of(&transition.instance, &self.config.node_name()),
            held_since: is_holding.then_some(held_since),
            seq: transition.seq,
            trigger: transition.trigger,
            cause: transition.cause.clone(),
            // A target that did not receive the last transition may not have received this one either.
            failures: known.map(|known| known.failures.clone()).unwrap_or_default(),
            agent: stages.contains(&Stage::Agent).then(|| agent.unwrap_or_default()),
            stages,
            // Not current any more, but it has the age of findings that persist.
            audit: known.and_then(|known| known.audit.clone()),
            latencies,
            measured: known.map(|known| known.measured).unwrap_or_default(),
            ..InstanceEntry::new(instance, transition.to.clone(), Arc::from([]))
        };
        for stage in Stage::ALL.into_iter().filter(|stage| latencies.of(*stage).is_some()) {
            entry.begin_latency(stage, transition.seq);
        }
        entry
    }
}

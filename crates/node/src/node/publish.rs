//! Publishes what the follower reports: role changes, instances, and problems with their configuration.
//!
//! ```text
//!   RoleChange ─▶ core::reconcile ─▶ Transition ─▶ notifier ─▶ history ─▶ published state ─▶ subscribers ─▶ log
//! ```
//!
//! ORDER: targets are notified first, and the log line comes last: nothing may delay a notification.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use vipwatch_core::audit::AgentKnowledge;
use vipwatch_core::reconcile::{ObservedRole, StoredRole, reconcile};
use vipwatch_core::{Cause, InstanceId, Moment, RoleKind};
use vipwatch_history::Stage;
use vipwatch_linux::clock;

use super::Node;
use crate::discovery::{ConfigProblem, InstanceConfig};
use crate::notify::notifier::{PublishResult, ReconfiguredInstance};
use crate::state::InstanceEntry;
use crate::transition::Transition;
use crate::watch::follower::FollowerUpdate;
use crate::watch::instance_table::{AddressChange, RoleChange};

impl Node {
    /// Publishes an update of the follower that was read at `read_at`.
    pub(super) fn publish_update(&mut self, update: FollowerUpdate, read_at: Moment) {
        let at = SystemTime::now();
        // ORDER: these changes are about the instances before the scan, which may remove some of them.
        for change in update.changes_before_scan {
            self.publish_change(change, at, read_at);
        }
        if let Some(problems) = update.problems {
            self.publish_problems(problems);
        }
        if let Some(instances) = &update.instances {
            self.publish_instances(instances);
        }
        if update.has_agent_sockets {
            self.notifier.retry_agents();
        }
        for change in update.changes {
            self.publish_change(change, at, read_at);
        }
        for AddressChange { id, addresses } in update.address_changes {
            self.store.amend(&id, |entry| entry.addresses = addresses);
        }
    }

    /// Publishes the problems with keepalived's configuration, and logs those that are new.
    fn publish_problems(&self, problems: Vec<ConfigProblem>) {
        let known = Arc::clone(&self.store.view().problems);
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            let ConfigProblem { file, line, text } = problem;
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

    /// Removes the instances that are not in `instances`, and updates the configuration of the others. The
    /// role of a new instance comes as a [`RoleChange`].
    fn publish_instances(&mut self, instances: &[Arc<InstanceConfig>]) {
        let by_id: BTreeMap<&InstanceId, &Arc<InstanceConfig>> =
            instances.iter().map(|instance| (&instance.id, instance)).collect();
        let removed: Vec<InstanceId> = {
            let view = self.store.view();
            view.entries.keys().filter(|id| !by_id.contains_key(id)).cloned().collect()
        };
        for id in &removed {
            tracing::info!(instance = %id, "instance removed");
        }
        self.store.update(|view| {
            view.entries.retain(|id, _| by_id.contains_key(id));
            for (id, entry) in &mut view.entries {
                let instance = by_id.get(id);
                if let Some(new) = instance.filter(|new| !Arc::ptr_eq(new, &entry.instance)) {
                    Arc::make_mut(entry).instance = Arc::clone(new);
                    self.audit_worker.instance_changed(id);
                }
            }
        });
        let reconfigured = self.notifier.follow(instances);
        self.notify_current_roles(&reconfigured);
    }

    /// Notifies new targets of the current role, which has not changed.
    fn notify_current_roles(&mut self, reconfigured: &[ReconfiguredInstance]) {
        for reconfigured in reconfigured {
            let id = &reconfigured.id;
            let Some(entry) = self.store.entry(id) else { continue };
            let transition = Arc::new(Transition {
                seq: entry.seq,
                at: entry.since,
                read_at: clock::now(),
                instance: Arc::clone(&entry.instance),
                from: None,
                to: entry.role.clone(),
                cause: Cause::Start,
                must_notify: false,
            });
            let PublishResult { reports, superseded, .. } =
                self.notifier.deliver_current(&transition, reconfigured, &entry.failures);
            self.store.counters.superseded.fetch_add(superseded as u64, Ordering::Relaxed);
            let stages = self.notifier.stages(id);
            let notifier = &self.notifier;
            self.store.amend(id, |entry| {
                // A failure stays known while its delivery goes on, so that it is not reported twice.
                let seq = entry.seq;
                entry
                    .failures
                    .retain(|(stage, target), _| notifier.is_outstanding(id, *stage, seq, target));
                entry.agent = stages.contains(&Stage::Agent).then(AgentKnowledge::default);
                entry.stages = stages;
            });
            for report in &reports {
                self.record_delivery(report);
            }
        }
    }

    /// Takes one role change to all targets, to the history and to the published state.
    fn publish_change(&mut self, change: RoleChange, at: SystemTime, read_at: Moment) {
        let known = self.store.entry(&change.instance.id);
        let observed = ObservedRole { from: change.from.as_ref(), to: &change.to, at };
        let stored = self.stored_role(&change);
        let reconciled = reconcile(&observed, stored, known.as_ref().map(|known| known.since));
        let addresses = change.addresses;
        let transition = Arc::new(Transition {
            seq: self.next_seq(),
            at,
            read_at,
            instance: change.instance,
            from: reconciled.previous(),
            to: change.to,
            cause: change.cause,
            must_notify: reconciled.must_notify(),
        });
        let PublishResult { latencies, reports, superseded } = self.notifier.deliver(&transition);
        self.history.record(transition.record(), latencies);
        let entry = self.entry(&transition, known.as_deref());
        let since = reconciled.since();
        self.store.insert(InstanceEntry { addresses, since, latencies, ..entry });
        self.publish_transition_event(&transition, &latencies);
        let counters = &self.store.counters;
        counters.transitions.fetch_add(1, Ordering::Relaxed);
        counters.superseded.fetch_add(superseded as u64, Ordering::Relaxed);
        if transition.cause == Cause::Audit {
            counters.audit_corrections.fetch_add(1, Ordering::Relaxed);
        }
        log_transition(&transition);
        for report in &reports {
            self.record_delivery(report);
        }
        self.audit_worker.instance_changed(&transition.instance.id);
    }

    /// The role that the last run stored, for the first role that this run reads.
    fn stored_role(&mut self, change: &RoleChange) -> Option<StoredRole> {
        if change.from.is_some() {
            return None;
        }
        let id = &change.instance.id;
        let last = self.last_run.remove(id.as_str())?;
        let is_delivered = self.notifier.is_delivered(id, last.kind, &last.latencies);
        Some(StoredRole { kind: last.kind, since: last.since, is_delivered })
    }

    /// The entry for the published state after a transition. `known` is the entry before.
    fn entry(&self, transition: &Transition, known: Option<&InstanceEntry>) -> InstanceEntry {
        let stages = self.notifier.stages(&transition.instance.id);
        let agent = known.and_then(|known| known.agent.clone());
        let instance = Arc::clone(&transition.instance);
        InstanceEntry {
            seq: transition.seq,
            cause: transition.cause,
            // A target that did not receive the last transition may not have received this one either.
            failures: known.map(|known| known.failures.clone()).unwrap_or_default(),
            agent: stages.contains(&Stage::Agent).then(|| agent.unwrap_or_default()),
            stages,
            must_notify: transition.must_notify,
            // Not current any more, but it has the age of findings that persist.
            audit: known.and_then(|known| known.audit.clone()),
            ..InstanceEntry::new(instance, transition.to.clone(), Arc::from([]))
        }
    }
}

fn log_transition(transition: &Transition) {
    let Transition { seq, instance, from, to, cause, .. } = transition;
    let from = from.map_or("-", RoleKind::as_str);
    let (to, reason, cause) = (to.as_str(), to.reason(), cause.as_str());
    tracing::info!(seq, instance = %instance.id, from, to, cause, reason, "role");
}

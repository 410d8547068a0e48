// SPDX-License-Identifier: Apache-2.0
//! The targets of each instance: delivers each transition to its state file, its announcements and Neutron's agent, and
//! passes it to the [`Notifier`] for its hooks and webhooks.
//!
//! ```text
//!   Transition ─┬─ 1 state file     inline
//!               ├─ 2 announcements  one thread for all
//!               ├─ 3 agent          inline, without waiting for the answer; retried when due
//!               └─ 4 Notifier       hooks and webhooks, a queue for each
//! ```
//!
//! An instance without targets has no entry.

mod outlets;
mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vipwatch_api::TargetKind;
use vipwatch_core::audit::AgentKnowledge;
use vipwatch_core::{EventKind, InstanceId, Moment, Role};
use vipwatch_history::{DeliverySource, DeliveryStore, Latencies, Stage};
use vipwatch_linux::clock;
use vipwatch_outlets::agent::AgentOutlet;
use vipwatch_outlets::state_file::StateFile;

use self::outlets::{Outlets, agent_report, file_report, file_written};
pub use self::spec::describe;
use self::spec::{InstanceTargets, SharedTargets};
use crate::config::Rule;
use crate::discovery::InstanceConfig;
use crate::notify::announce::{AnnounceHandle, AnnounceProgress, DuplicateReports};
use crate::notify::earlier_run::RecordedFindings;
use crate::notify::notification::{DeliveryReport, Notification, ReportQueue};
use crate::notify::notifier::Notifier;
use crate::notify::target::TargetSettings;
use crate::packed::pack;
use crate::transition::{Transition, micros};

/// Maximum number of requests to agents under way: the agent's listen backlog is short, and the number of file
/// descriptors of the node is limited.
const MAX_AGENT_REQUESTS: usize = 64;

/// The part of a delivery that ended at once, without a queue.
#[derive(Debug, Default)]
pub(crate) struct PublishResult {
    /// The latencies of the stages that have delivered already.
    pub(crate) latencies: Latencies,
    /// The failed deliveries.
    pub(crate) reports: Vec<DeliveryReport>,
}

/// An instance, and what its agent has acknowledged.
pub(crate) type AgentUpdate = (InstanceId, AgentKnowledge);

/// Why a transition is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeliveryReason {
    /// The role has changed in this run.
    Change,
    /// The role is the first one of this run, and differs from that of the last run.
    ChangeWhileStopped,
    /// The role is the first one of this run, and equals that of the last run.
    Restart,
    /// The targets of the instance have changed, and its role has not.
    Reload,
}

/// The outlets of all instances.
#[derive(Debug)]
pub(crate) struct InstanceOutlets {
    rules: Vec<Rule>,
    /// Boxed to save memory: there may be thousands of instances, and most have only some kinds of outlets.
    outlets: BTreeMap<InstanceId, Box<Outlets>>,
    /// Instances with a state file or an agent that does not have the last state yet. Only these have timers.
    open: BTreeSet<InstanceId>,
    reports: ReportQueue,
    announcer: Option<AnnounceHandle>,
    announce_progress: AnnounceProgress,
    duplicates: DuplicateReports,
    /// Instances with other addresses than in the last call of [`Self::follow`], until [`Self::announce_added`].
    readdressed: Vec<Arc<InstanceConfig>>,
    notifier: Notifier,
    /// An empty list, shared by all instances without outlets.
    no_stages: Arc<[Stage]>,
}

impl InstanceOutlets {
    pub(crate) fn new(
        rules: Vec<Rule>,
        notifier: Notifier,
        reports: ReportQueue,
        deliveries: DeliveryStore,
        duplicates: DuplicateReports,
    ) -> io::Result<Self> {
        let mut outlets = Self {
            rules: Vec::new(),
            outlets: BTreeMap::new(),
            open: BTreeSet::new(),
            reports,
            announcer: None,
            announce_progress: AnnounceProgress::new(notifier.take_announced(), deliveries),
            duplicates,
            readdressed: Vec::new(),
            notifier,
            no_stages: Arc::from([]),
        };
        outlets.configure(rules)?;
        Ok(outlets)
    }

    /// Replaces the rules. A hook or webhook that stays configured keeps its queue.
    pub(crate) fn configure(&mut self, rules: Vec<Rule>) -> io::Result<()> {
        if self.announcer.is_none() && rules.iter().any(|rule| rule.announce.is_some()) {
            let progress = self.announce_progress.clone();
            let duplicates = self.duplicates.clone();
            let handle = AnnounceHandle::start(self.reports.clone(), progress, duplicates)?;
            self.announcer = Some(handle);
        }
        self.notifier.configure(DeliverySource::Node, &TargetSettings::of_rules(&rules));
        self.notifier.inline().set_configured(&inline_kinds(&rules));
        self.rules = rules;
        Ok(())
    }

    /// Replaces the list of instances; returns those with other targets than before. Their targets must be notified
    /// of the current role.
    pub(crate) fn follow(&mut self, instances: &[Arc<InstanceConfig>]) -> Vec<InstanceId> {
        let mut before = std::mem::take(&mut self.outlets);
        let mut changed = Vec::new();
        let mut last_shared: Option<Arc<SharedTargets>> = None;
        for instance in instances {
            let spec = InstanceTargets::of(instance, &self.rules).share(last_shared.as_ref());
            last_shared = Some(Arc::clone(&spec.shared));
            let known = before.remove(&instance.id);
            let mut keeps_announcement = false;
            let last = match known {
                Some(known) if known.spec == spec => {
                    if known.has_to_announce(instance) {
                        self.readdressed.push(Arc::clone(instance));
                    }
                    self.outlets.insert(instance.id.clone(), known);
                    continue;
                }
                Some(known) => {
                    self.remove_outlets(&instance.id, &known, &spec);
                    self.forget_removed(&instance.id, &known.spec.shared, &spec.shared);
                    changed.push(instance.id.clone());
                    keeps_announcement = known.spec.shared.announce == spec.shared.announce
                        && !known.has_to_announce(instance);
                    known.last
                }
                None if spec == InstanceTargets::default() => continue,
                None => {
                    changed.push(instance.id.clone());
                    None
                }
            };
            if spec != InstanceTargets::default() {
                let mut outlets = Box::new(Outlets::new(spec, instance, last));
                outlets.keeps_announcement = keeps_announcement;
                self.outlets.insert(instance.id.clone(), outlets);
            }
        }
        pack(&mut self.outlets);
        let outlets = &self.outlets;
        self.open.retain(|id| outlets.contains_key(id));
        for (id, gone) in before {
            self.remove_outlets(&id, &gone, &InstanceTargets::default());
            self.notifier.inline().forget(&id);
        }
        changed
    }

    /// Stops the announcements and removes the state file of an instance, unless they are still in `spec`.
    fn remove_outlets(&self, id: &InstanceId, known: &Outlets, spec: &InstanceTargets) {
        if known.spec.shared.announce.is_some() && spec.shared.announce.is_none() {
            self.announcer.iter().for_each(|announcer| announcer.stop(id));
            self.announce_progress.forget(id);
        }
        // The state file would become stale, because the node does not update it any more.
        if let Some(directory) = &known.spec.state_dir
            && spec.state_dir.as_ref() != Some(directory)
        {
            let _ = std::fs::remove_file(directory.join("state"));
        }
    }

    /// Ends the deliveries to targets that are still configured, but not for this instance any more.
    fn forget_removed(&self, id: &InstanceId, before: &SharedTargets, now: &SharedTargets) {
        for name in before.names().filter(|name| now.names().all(|kept| kept != *name)) {
            self.notifier.forget(DeliverySource::Node, Some(name), id);
        }
    }

    /// The stages for which the instance has a target.
    pub(crate) fn stages(&self, id: &InstanceId) -> Arc<[Stage]> {
        self.outlets.get(id).map_or(&self.no_stages, |outlets| &outlets.stages).clone()
    }

    /// The stages that will deliver this transition.
    pub(crate) fn expected(&self, transition: &Transition) -> Vec<Stage> {
        let Some(outlets) = self.outlets.get(&transition.instance.id) else { return Vec::new() };
        let kind = EventKind::Role(transition.to.kind());
        let spec = &outlets.spec.shared;
        let is_expected = |stage: &Stage| match stage {
            Stage::File => true,
            Stage::Announce => transition.to == Role::Primary,
            Stage::Hook => spec.hooks.iter().any(|hook| hook.on.contains(&kind)),
            Stage::Webhook => spec.webhooks.iter().any(|one| one.on.contains(&kind)),
            Stage::Agent => transition.to.neutron_state().is_some(),
        };
        outlets.stages.iter().copied().filter(is_expected).collect()
    }

    /// Whether every target of a stage has received the transition `seq`.
    pub(crate) fn is_stage_delivered(&self, id: &InstanceId, stage: Stage, seq: i64) -> bool {
        let Some(outlets) = self.outlets.get(id) else { return false };
        let shared = &outlets.spec.shared;
        match stage {
            Stage::Hook => {
                let mut names = shared.hooks.iter().map(|hook| &hook.name);
                names.all(|name| self.notifier.is_done(name, id, seq))
            }
            Stage::Webhook => {
                let mut names = shared.webhooks.iter().map(|webhook| &webhook.name);
                names.all(|name| self.notifier.is_done(name, id, seq))
            }
            Stage::File | Stage::Announce | Stage::Agent => true,
        }
    }

    /// Whether a failure of this target is current: the target is configured for the instance, and its last attempt
    /// has failed.
    pub(crate) fn is_failing(&self, id: &InstanceId, stage: Stage, target: &str) -> bool {
        let Some(outlets) = self.outlets.get(id) else { return false };
        match stage {
            Stage::Hook | Stage::Webhook => {
                outlets.spec.shared.names().any(|name| name == target)
                    && self.notifier.is_failing(target, id)
            }
            Stage::File | Stage::Announce | Stage::Agent => false,
        }
    }

    /// The directories in which agents have their sockets.
    pub(crate) fn agent_directories(&self) -> BTreeSet<PathBuf> {
        let agents = self.rules.iter().filter_map(|rule| rule.agent.as_ref());
        agents.filter_map(|agent| Some(agent.socket.parent()?.to_owned())).collect()
    }

    /// Delivers a transition to all outlets of its instance, or adds it to their queues.
    pub(crate) fn deliver(
        &mut self,
        transition: &Arc<Transition>,
        reason: DeliveryReason,
    ) -> PublishResult {
        let result = self.deliver_inline(transition, reason);
        self.deliver_queued(transition, reason);
        result
    }

    /// Adds a transition to the queues of the hooks and webhooks of its instance.
    pub(crate) fn deliver_queued(&self, transition: &Arc<Transition>, reason: DeliveryReason) {
        let Some(outlets) = self.outlets.get(&transition.instance.id) else { return };
        let notification: Arc<dyn Notification> = Arc::<Transition>::clone(transition);
        for name in outlets.spec.shared.names() {
            match reason {
                DeliveryReason::Change => self.notifier.deliver(name, &notification),
                DeliveryReason::ChangeWhileStopped => {
                    self.notifier.resume(name, &notification, false);
                }
                DeliveryReason::Restart | DeliveryReason::Reload => {
                    self.notifier.resume(name, &notification, true);
                }
            }
        }
    }

    /// Delivers a finding to the targets of its instance, or a finding about the node to all targets. Only targets that
    /// select findings send it.
    pub(crate) fn deliver_finding(&self, finding: &Arc<dyn Notification>) {
        let Some(id) = finding.instance() else {
            return self.notifier.deliver_to_all(DeliverySource::Node, finding);
        };
        let Some(outlets) = self.outlets.get(id) else { return };
        for name in outlets.spec.shared.names() {
            self.notifier.deliver(name, finding);
        }
    }

    /// The names of the targets of the node.
    pub(crate) fn target_names(&self) -> Vec<Arc<str>> {
        self.notifier.target_names(DeliverySource::Node)
    }

    /// Delivers a finding about several nodes to the targets that `is_wanted` selects by their name; returns their names.
    pub(crate) fn deliver_cluster_finding(
        &self,
        finding: &Arc<dyn Notification>,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Vec<Arc<str>> {
        let names = self.target_names().into_iter();
        let names: Vec<Arc<str>> = names.filter(|name| is_wanted(name)).collect();
        for name in &names {
            self.notifier.deliver(name, finding);
        }
        names
    }

    /// Delivers the findings that an earlier run has left pending, unless no rule asks for them any more.
    pub(crate) fn resume_findings(
        &self,
        recorded: &RecordedFindings,
        is_followed: impl Fn(&InstanceId) -> bool,
    ) {
        self.notifier.resume_findings(recorded, |target, id| match self.outlets.get(id) {
            Some(outlets) => outlets.spec.shared.names().any(|name| name == target),
            None => !is_followed(id),
        });
    }

    /// Writes the state file, starts or stops announcements, and sends the state to the agent.
    pub(crate) fn deliver_inline(
        &mut self,
        transition: &Arc<Transition>,
        reason: DeliveryReason,
    ) -> PublishResult {
        let mut result = PublishResult::default();
        let id = &transition.instance.id;
        let Some(outlets) = self.outlets.get_mut(id) else { return result };
        outlets.last = Some(Arc::clone(transition));
        if let Some(file) = &mut outlets.file {
            let written = file.set(transition.to.as_str(), clock::now());
            let report = file_report(written, transition);
            let counted = report.is_none().then(|| file_written(transition));
            report.iter().chain(&counted).for_each(|report| self.notifier.inline().count(report));
            if let Some(report) = report {
                result.reports.push(report);
            } else if let Some(from) = transition.measured_from() {
                result.latencies.set(Stage::File, micros(from, clock::now()));
            }
        }
        if let (Some(plan), Some(announcer)) = (outlets.spec.shared.announce, &self.announcer) {
            let may_keep = match reason {
                DeliveryReason::Change | DeliveryReason::ChangeWhileStopped => false,
                DeliveryReason::Restart => true,
                DeliveryReason::Reload => outlets.keeps_announcement,
            };
            let is_announced = may_keep && self.announce_progress.includes(id, transition.seq);
            match transition.to {
                Role::Primary if is_announced => {}
                Role::Primary => announcer.announce(transition, plan),
                _ => announcer.stop(id),
            }
        }
        if let (Some(agent), Some(role)) = (&mut outlets.agent, transition.to.neutron_state()) {
            agent.delivery().want(role);
        }
        if !outlets.is_settled() {
            self.open.insert(id.clone());
        }
        result
    }

    /// Announces the addresses of instances that were primary before and after their configuration got another address.
    /// ORDER: after the role changes of the same update, because such an instance may not be primary any more.
    pub(crate) fn announce_added(&mut self) {
        for instance in std::mem::take(&mut self.readdressed) {
            let Some(outlets) = self.outlets.get_mut(&instance.id) else { continue };
            if !outlets.has_to_announce(&instance) {
                continue;
            }
            if let (Some(plan), Some(announcer)) = (outlets.spec.shared.announce, &self.announcer)
                && let Some(last) = &mut outlets.last
            {
                let repeated =
                    Transition { instance, is_repeated: true, ..Transition::clone(last) };
                *last = Arc::new(repeated);
                announcer.announce(last, plan);
            }
        }
    }

    /// Announces the addresses of an instance again, if a rule announces it and it is primary: the neighbours may have the
    /// MAC of a second primary that has gone.
    pub(crate) fn announce_again(&self, id: &InstanceId) {
        let Some(outlets) = self.outlets.get(id) else { return };
        let (Some(plan), Some(announcer)) = (outlets.spec.shared.announce, &self.announcer) else {
            return;
        };
        if let Some(last) = outlets.last.as_ref().filter(|last| last.to == Role::Primary) {
            let repeated = Transition { is_repeated: true, ..Transition::clone(last) };
            announcer.announce_again(&Arc::new(repeated), plan);
        }
    }

    /// Deletes what earlier runs have stored about deliveries that no rule asks for any more. The targets that know an
    /// instance which is not followed are notified of its removal instead.
    pub(crate) fn forget_uncovered(&self, is_followed: impl Fn(&InstanceId) -> bool) {
        let shared = |id: &InstanceId| self.outlets.get(id).map(|outlets| &outlets.spec.shared);
        for id in self.announce_progress.instances() {
            if shared(&id).is_none_or(|shared| shared.announce.is_none()) {
                self.announce_progress.forget(&id);
            }
        }
        self.notifier.retain_instances(DeliverySource::Node, |target, id| {
            let is_covered =
                shared(id).is_some_and(|shared| shared.names().any(|one| one == target));
            is_covered || !is_followed(id)
        });
    }

    /// The file descriptors that the main loop waits on: the reports of the workers, and the agents' sockets.
    pub(crate) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let agents = self.open_outlets().filter_map(|outlets| outlets.agent.as_deref());
        std::iter::once(self.reports.as_fd()).chain(agents.filter_map(AgentOutlet::waiting_on))
    }

    fn open_outlets(&self) -> impl Iterator<Item = &Outlets> {
        self.open.iter().filter_map(|id| self.outlets.get(id)).map(|outlets| &**outlets)
    }

    /// When [`Self::tick`] must be called; `None` without timers.
    pub(crate) fn due(&self) -> Option<Moment> {
        let is_full = self.agent_requests() >= MAX_AGENT_REQUESTS;
        let of = |outlets: &Outlets| {
            let agent = outlets.agent.as_deref();
            let agent = agent.filter(|agent| !is_full || agent.waiting_on().is_some());
            let agent = agent.and_then(AgentOutlet::due);
            let file = outlets.file.as_ref().and_then(StateFile::due);
            [agent, file].into_iter().flatten().min()
        };
        self.open_outlets().filter_map(of).min()
    }

    /// The number of requests to agents that are under way.
    fn agent_requests(&self) -> usize {
        let agents = self.open_outlets().filter_map(|outlets| outlets.agent.as_deref());
        agents.filter(|agent| agent.waiting_on().is_some()).count()
    }

    /// Lets all agent outlets retry now, because an agent's socket may have been created.
    pub(crate) fn retry_agents(&mut self) {
        for (id, outlets) in &mut self.outlets {
            if let Some(agent) = &mut outlets.agent {
                agent.socket_appeared();
                if !agent.is_settled() {
                    self.open.insert(id.clone());
                }
            }
        }
    }

    /// Does the retries that are due; returns the reports of all outlets, and the changes of the agents' knowledge.
    pub(crate) fn tick(&mut self) -> (Vec<DeliveryReport>, Vec<AgentUpdate>) {
        let mut reports: Vec<DeliveryReport> = self.reports.take_all();
        let mut known = Vec::new();
        let now = clock::now();
        let mut room = MAX_AGENT_REQUESTS.saturating_sub(self.agent_requests());
        let mut settled = Vec::new();
        for id in &self.open {
            let Some(outlets) = self.outlets.get_mut(id) else { continue };
            let Some(last) = outlets.last.clone() else { continue };
            if let Some(directory) = &outlets.spec.state_dir
                && outlets.file.as_ref().and_then(StateFile::due).is_some_and(|due| due <= now)
            {
                // The write may have failed because the directory is missing. An error here shows again at the write.
                let _ = std::fs::create_dir_all(directory);
            }
            if let Some(written) = outlets.file.as_mut().and_then(|file| file.tick(now)) {
                match file_report(written, &last) {
                    Some(report) => reports.push(report),
                    None => {
                        reports.push(file_written(&last));
                    }
                }
            }
            let outcome = outlets.agent.as_mut().and_then(|agent| match agent.waiting_on() {
                Some(_) => agent.read_answer(now).or_else(|| agent.tick(now)),
                None if room > 0 => {
                    let outcome = agent.tick(now);
                    room -= usize::from(agent.waiting_on().is_some());
                    outcome
                }
                None => None,
            });
            if outlets.is_settled() {
                settled.push(id.clone());
            }
            if let (Some(outcome), Some(agent)) = (outcome, &outlets.agent) {
                reports.push(agent_report(
                    outcome,
                    agent.path(),
                    &last,
                    &mut outlets.agent_knowledge,
                ));
                known.push((id.clone(), outlets.agent_knowledge.clone()));
            }
        }
        for id in settled {
            self.open.remove(&id);
        }
        for report in &reports {
            self.notifier.inline().count(report);
        }
        (reports, known)
    }

    /// Waits until all attempts to notify hooks and webhooks have ended, at most `limit`; returns the number of
    /// notifications that are left.
    pub(crate) fn close(&self, limit: Duration) -> usize {
        self.notifier.close(DeliverySource::Node, limit)
    }
}

/// The kinds of outlets without a queue that the rules name.
fn inline_kinds(rules: &[Rule]) -> Vec<TargetKind> {
    let has = |is_named: fn(&Rule) -> bool| rules.iter().any(is_named);
    let kinds = [
        (TargetKind::StateFile, has(|rule| rule.state_file.is_some())),
        (TargetKind::Announce, has(|rule| rule.announce.is_some())),
        (TargetKind::Agent, has(|rule| rule.agent.is_some())),
    ];
    kinds.into_iter().filter(|(_, is_named)| *is_named).map(|(kind, _)| kind).collect()
}

//! Delivers each transition to the targets that are configured for its instance.
//!
//! ```text
//!   Transition ─┬─ 1 state file     inline
//!               ├─ 2 announcements  one thread for all
//!               ├─ 3 agent          inline, without waiting for the answer; retried when due
//!               ├─ 4 hooks          a queue for each, in order for each instance
//!               └─ 5 webhooks       a queue for each, in order for each instance
//! ```
//!
//! An instance without targets has no entry in the notifier.

mod outstanding;
mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::discovery::InstanceConfig;
use vipwatch_core::audit::AgentKnowledge;
use vipwatch_core::{ErrorChain, InstanceId, Jitter, Moment, NeutronState, Role, RoleKind};
use vipwatch_history::{Latencies, Stage};
use vipwatch_linux::clock;
use vipwatch_outlets::agent::{AgentOutcome, AgentOutlet, AgentSettings};
use vipwatch_outlets::state_file::{StateFile, WriteOutcome};

use self::outstanding::Outstanding;
pub use self::spec::describe;
use self::spec::{InstanceTargets, SharedTargets};
use crate::config::{Config, Hook, Rule, Webhook};
use crate::notify::announce::AnnounceHandle;
use crate::notify::outlet::{DeliveryReport, Notification, ReportQueue, callback_into};
use crate::notify::queue::{TargetQueue, TargetSettings, reconcile};
use crate::notify::{hook, webhook};
use crate::transition::{Transition, micros};

/// Maximum number of requests to agents under way: the agent's listen backlog is short, and the number of file
/// descriptors of the node is limited.
const MAX_AGENT_REQUESTS: usize = 64;

/// An instance with other targets than before a reload or a scan.
#[derive(Debug)]
pub(crate) struct ReconfiguredInstance {
    pub(crate) id: InstanceId,
    /// The targets before; `None` if the instance had none.
    before: Option<Arc<SharedTargets>>,
}

/// The error of each failed delivery, by stage and name of the target.
pub(crate) type Failures = BTreeMap<(Stage, String), String>;

/// The part of a delivery that ended at once, without a queue.
#[derive(Debug, Default)]
pub(crate) struct PublishResult {
    /// The latencies of the stages that have delivered already.
    pub(crate) latencies: Latencies,
    /// The failed deliveries.
    pub(crate) reports: Vec<DeliveryReport>,
    /// The number of older notifications that this one has replaced.
    pub(crate) superseded: usize,
}

/// The outlets of one instance.
#[derive(Debug)]
struct Outlets {
    spec: InstanceTargets,
    stages: Arc<[Stage]>,
    file: Option<StateFile>,
    agent: Option<Box<AgentOutlet>>,
    /// The state that the agent has acknowledged, and its last error.
    agent_knowledge: AgentKnowledge,
    /// The last transition, which the state file and the agent receive; `None` before the first one.
    last: Option<Arc<Transition>>,
}

/// An instance, and what its agent has acknowledged.
pub(crate) type AgentUpdate = (InstanceId, AgentKnowledge);

/// The outlets of all instances, with the queues of hooks and webhooks.
#[derive(Debug)]
pub(crate) struct Notifier {
    rules: Vec<Rule>,
    /// Boxed to save memory: there may be thousands of instances, and most have only some kinds of outlets.
    outlets: BTreeMap<InstanceId, Box<Outlets>>,
    /// Instances with a state file or an agent that does not have the last state yet. Only these have timers.
    open: BTreeSet<InstanceId>,
    reports: ReportQueue,
    announcer: Option<AnnounceHandle>,
    hooks: Vec<TargetQueue<Hook, hook::HookJob>>,
    /// Maximum number of processes of one hook that run at a time.
    hooks_at_once: usize,
    webhooks: Vec<TargetQueue<Webhook, webhook::WebhookJob>>,
    outstanding: Outstanding,
    /// Instances and stages with a last transition that had not reached a target when a reload removed the target. A
    /// target that is added before the next transition receives it.
    unreached: BTreeSet<(InstanceId, Stage)>,
    node: Arc<str>,
    /// An empty list, shared by all instances without outlets.
    no_stages: Arc<[Stage]>,
}

impl Notifier {
    pub(crate) fn new(config: &Config, node: Arc<str>) -> io::Result<Self> {
        let reports = ReportQueue::new()?;
        let mut notifier = Self {
            rules: Vec::new(),
            outlets: BTreeMap::new(),
            open: BTreeSet::new(),
            reports,
            announcer: None,
            hooks: Vec::new(),
            hooks_at_once: config.hooks_at_once,
            webhooks: Vec::new(),
            outstanding: Outstanding::default(),
            unreached: BTreeSet::new(),
            node,
            no_stages: Arc::from([]),
        };
        notifier.configure(config.rules.clone())?;
        Ok(notifier)
    }

    /// Replaces the rules. A hook or webhook that stays configured keeps its queue.
    pub(crate) fn configure(&mut self, rules: Vec<Rule>) -> io::Result<()> {
        if self.announcer.is_none() && rules.iter().any(|rule| rule.announce.is_some()) {
            self.announcer = Some(AnnounceHandle::start(self.reports.clone())?);
        }
        let callback = callback_into(&self.reports);
        let hooks: Vec<_> = rules.iter().flat_map(|rule| rule.hooks.iter().cloned()).collect();
        let at_once = self.hooks_at_once;
        reconcile(&mut self.hooks, &hooks, |hook| hook::queue(hook, at_once, callback.clone()));
        let webhooks: Vec<_> =
            rules.iter().flat_map(|rule| rule.webhooks.iter().cloned()).collect();
        reconcile(&mut self.webhooks, &webhooks, |one| webhook::queue(one, callback.clone()));
        self.rules = rules;
        Ok(())
    }

    /// Replaces the list of instances; returns those with other targets than before. Their targets must be notified
    /// of the current role.
    pub(crate) fn follow(
        &mut self,
        instances: &[Arc<InstanceConfig>],
    ) -> Vec<ReconfiguredInstance> {
        let mut before = std::mem::take(&mut self.outlets);
        let mut changed = Vec::new();
        let mut last_shared: Option<Arc<SharedTargets>> = None;
        for instance in instances {
            let spec = InstanceTargets::of(instance, &self.rules).share(last_shared.as_ref());
            last_shared = Some(Arc::clone(&spec.shared));
            let known = before.remove(&instance.id);
            let last = match known {
                Some(known) if known.spec == spec => {
                    self.outlets.insert(instance.id.clone(), known);
                    continue;
                }
                Some(known) => {
                    self.remove_outlets(&instance.id, &known, &spec);
                    let before = Some(known.spec.shared);
                    changed.push(ReconfiguredInstance { id: instance.id.clone(), before });
                    known.last
                }
                None if spec == InstanceTargets::default() => continue,
                None => {
                    changed.push(ReconfiguredInstance { id: instance.id.clone(), before: None });
                    None
                }
            };
            if spec != InstanceTargets::default() {
                let outlets = Box::new(Outlets::new(spec, instance, last));
                self.outlets.insert(instance.id.clone(), outlets);
            }
        }
        let outlets = &self.outlets;
        self.open.retain(|id| outlets.contains_key(id));
        for (id, gone) in before {
            self.remove_outlets(&id, &gone, &InstanceTargets::default());
            for stage in [Stage::Hook, Stage::Webhook] {
                self.outstanding.forget(&id, stage, |_| false);
                self.unreached.remove(&(id.clone(), stage));
            }
        }
        changed
    }

    /// Stops the announcements and removes the state file of an instance, unless they are still in `spec`.
    fn remove_outlets(&self, id: &InstanceId, known: &Outlets, spec: &InstanceTargets) {
        if let Some(announcer) = &self.announcer
            && known.spec.shared.announce.is_some()
            && spec.shared.announce.is_none()
        {
            announcer.stop(id);
        }
        // The state file would become stale, because the node does not update it any more.
        if let Some(directory) = &known.spec.state_dir
            && spec.state_dir.as_ref() != Some(directory)
        {
            let _ = std::fs::remove_file(directory.join("state"));
        }
    }

    /// The stages for which the instance has a target.
    pub(crate) fn stages(&self, id: &InstanceId) -> Arc<[Stage]> {
        self.outlets.get(id).map_or(&self.no_stages, |outlets| &outlets.stages).clone()
    }

    /// Whether the last run of the node delivered its role `kind` to every hook and webhook that is configured for
    /// it now. `latencies` has the stages that were delivered.
    pub(crate) fn is_delivered(
        &self,
        id: &InstanceId,
        kind: RoleKind,
        latencies: &Latencies,
    ) -> bool {
        let Some(outlets) = self.outlets.get(id) else { return true };
        let role = kind.as_str();
        let is_open = |stage, is_wanted: bool| is_wanted && latencies.of(stage).is_none();
        let shared = &outlets.spec.shared;
        !is_open(Stage::Hook, shared.hooks.iter().any(|hook| hook.on.contains(&role)))
            && !is_open(
                Stage::Webhook,
                shared.webhooks.iter().any(|webhook| webhook.on.contains(&role)),
            )
    }

    /// The stages that will deliver this transition.
    pub(crate) fn expected(&self, transition: &Transition) -> Vec<Stage> {
        let Some(outlets) = self.outlets.get(&transition.instance.id) else { return Vec::new() };
        let role = transition.to.as_str();
        let spec = &outlets.spec.shared;
        let is_expected = |stage: &Stage| match stage {
            Stage::File => true,
            Stage::Announce => transition.to == Role::Primary,
            Stage::Hook => {
                transition.must_notify && spec.hooks.iter().any(|hook| hook.on.contains(&role))
            }
            Stage::Webhook => {
                transition.must_notify && spec.webhooks.iter().any(|one| one.on.contains(&role))
            }
            Stage::Agent => transition.to.neutron_state().is_some(),
        };
        outlets.stages.iter().copied().filter(is_expected).collect()
    }

    /// The directories in which agents have their sockets.
    pub(crate) fn agent_directories(&self) -> BTreeSet<PathBuf> {
        let agents = self.rules.iter().filter_map(|rule| rule.agent.as_ref());
        agents.filter_map(|agent| Some(agent.socket.parent()?.to_owned())).collect()
    }

    /// Delivers a transition to all outlets of its instance, or adds it to their queues.
    pub(crate) fn deliver(&mut self, transition: &Arc<Transition>) -> PublishResult {
        let mut result = self.deliver_inline(transition);
        if !self.unreached.is_empty() {
            self.unreached.retain(|(id, _)| *id != transition.instance.id);
        }
        if transition.must_notify {
            result.superseded = self.enqueue(transition, |_, _| true);
        }
        result
    }

    /// Delivers the current role after the configuration has changed. State file, announcements and agent always
    /// receive it. A hook or webhook receives it only if its last delivery failed, or if it is new and the
    /// transition had not reached a target that was removed.
    pub(crate) fn deliver_current(
        &mut self,
        transition: &Arc<Transition>,
        reconfigured: &ReconfiguredInstance,
        failures: &Failures,
    ) -> PublishResult {
        let mut result = self.deliver_inline(transition);
        let id = &transition.instance.id;
        // Also for an instance without outlets: deliveries to removed targets must be forgotten.
        let outlets = self.outlets.get(id);
        let now = outlets.map(|outlets| Arc::clone(&outlets.spec.shared)).unwrap_or_default();
        for stage in [Stage::Hook, Stage::Webhook] {
            let is_gone = self.outstanding.forget(id, stage, |name| now.has(stage, name));
            let mut failed = failures.keys().filter(|(of, _)| *of == stage);
            if is_gone || failed.any(|(_, name)| !now.has(stage, name)) {
                self.unreached.insert((id.clone(), stage));
            }
        }
        let before = reconfigured.before.as_deref();
        let is_new = |stage, name: &str| before.is_none_or(|before| !before.has(stage, name));
        let mut unreached: Vec<Stage> = vec![Stage::Hook, Stage::Webhook];
        unreached.retain(|stage| {
            let has_new = now.names(*stage).iter().any(|name| is_new(*stage, name));
            has_new && self.unreached.remove(&(id.clone(), *stage))
        });
        result.superseded = self.enqueue(transition, |stage, name| {
            failures.contains_key(&(stage, name.to_owned()))
                || (is_new(stage, name) && unreached.contains(&stage))
        });
        result
    }

    /// Writes the state file, starts or stops announcements, and sends the state to the agent.
    fn deliver_inline(&mut self, transition: &Arc<Transition>) -> PublishResult {
        let mut result = PublishResult::default();
        let id = &transition.instance.id;
        let Some(outlets) = self.outlets.get_mut(id) else { return result };
        outlets.last = Some(Arc::clone(transition));
        if let Some(file) = &mut outlets.file {
            let written = file.set(transition.to.as_str(), clock::now());
            if let Some(report) = file_report(written, transition) {
                result.reports.push(report);
            } else {
                let taken = micros(transition.read_at, clock::now());
                result.latencies.set(Stage::File, taken);
            }
        }
        if let (Some(plan), Some(announcer)) = (outlets.spec.shared.announce, &self.announcer) {
            match transition.to {
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

    /// Adds a transition to the queues of the hooks and webhooks of its instance that are configured for its role,
    /// are chosen, and do not have it in their queue already. Returns the number of older notifications that it has
    /// replaced.
    fn enqueue(
        &mut self,
        transition: &Arc<Transition>,
        is_chosen: impl Fn(Stage, &str) -> bool,
    ) -> usize {
        let Some(outlets) = self.outlets.get(&transition.instance.id) else { return 0 };
        let shared = Arc::clone(&outlets.spec.shared);
        let notification: Arc<dyn Notification> = Arc::<Transition>::clone(transition);
        let node = &self.node;
        let delivery = StageDelivery { transition, is_chosen: &is_chosen, stage: Stage::Hook };
        let job =
            || hook::HookJob { notification: Arc::clone(&notification), node: Arc::clone(node) };
        let hooks = delivery.enqueue(&shared.hooks, &self.hooks, &mut self.outstanding, job);
        let delivery = StageDelivery { stage: Stage::Webhook, ..delivery };
        let job = || webhook::WebhookJob::new(Arc::clone(&notification), Arc::clone(node));
        hooks + delivery.enqueue(&shared.webhooks, &self.webhooks, &mut self.outstanding, job)
    }

    /// Whether a report is about a delivery that has not concluded. False if a reload has removed the hook or
    /// webhook while the attempt was under way. Always true for the other stages.
    pub(crate) fn is_awaited(&self, report: &DeliveryReport) -> bool {
        let DeliveryReport { instance, stage, target, .. } = report;
        match stage {
            Stage::Hook | Stage::Webhook => self.outstanding.is_awaited(instance, *stage, target),
            Stage::File | Stage::Announce | Stage::Agent => true,
        }
    }

    /// Records that a delivery to a hook or webhook has concluded. Returns true if it was the last one of its
    /// transition and stage, and none was given up. Other stages have one target, so it returns true.
    pub(crate) fn conclude(&mut self, report: &DeliveryReport) -> bool {
        let DeliveryReport { instance, seq, stage, target, outcome, .. } = report;
        match stage {
            Stage::Hook | Stage::Webhook => {
                self.outstanding.conclude(instance, *stage, *seq, target, outcome.is_ok())
            }
            Stage::File | Stage::Announce | Stage::Agent => true,
        }
    }

    /// Whether a delivery of transition `seq` to `target` has not concluded yet.
    pub(crate) fn is_outstanding(
        &self,
        id: &InstanceId,
        stage: Stage,
        seq: i64,
        target: &str,
    ) -> bool {
        self.outstanding.contains(id, stage, seq, target)
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
                        reports.push(DeliveryReport::new(&*last, Stage::File, "the state file"));
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
        (reports, known)
    }

    /// The number of notifications in all queues.
    pub(crate) fn pending(&self) -> usize {
        let hooks = self.hooks.iter().map(TargetQueue::pending);
        hooks.chain(self.webhooks.iter().map(TargetQueue::pending)).sum()
    }

    /// Waits until all queues are empty, at most `limit`; returns the number of notifications that are left.
    pub(crate) fn close(&self, limit: Duration) -> usize {
        let end = clock::now() + limit;
        let left = |end: Moment| end.since(clock::now());
        let hooks = self.hooks.iter().map(|queue| queue.close(left(end)));
        hooks.chain(self.webhooks.iter().map(|queue| queue.close(left(end)))).sum()
    }
}

/// The delivery of one transition to the targets of one stage.
struct StageDelivery<'a> {
    transition: &'a Transition,
    /// Whether the target of this stage and name receives the transition.
    is_chosen: &'a dyn Fn(Stage, &str) -> bool,
    stage: Stage,
}

impl StageDelivery<'_> {
    fn enqueue<T: TargetSettings + 'static, J: Send + 'static>(
        &self,
        targets: &[Arc<T>],
        queues: &[TargetQueue<T, J>],
        outstanding: &mut Outstanding,
        job: impl Fn() -> J,
    ) -> usize {
        let (id, seq) = (&self.transition.instance.id, self.transition.seq);
        let role = self.transition.to.as_str();
        let is_due = |target: &&Arc<T>| {
            let name = target.name();
            target.on().contains(&role)
                && !outstanding.contains(id, self.stage, seq, &name)
                && (self.is_chosen)(self.stage, &name)
        };
        // ORDER: all targets are chosen before the first delivery begins. Two targets may share a name, and the
        // delivery to the first one must not exclude the second one.
        let due: Vec<&Arc<T>> = targets.iter().filter(is_due).collect();
        let mut superseded = 0;
        for target in due {
            if let Some(queue) = queues.iter().find(|queue| queue.target() == *target) {
                outstanding.begin(id, self.stage, seq, target.name());
                superseded += queue.put(id.clone(), job());
            }
        }
        superseded
    }
}

impl Outlets {
    fn new(
        spec: InstanceTargets,
        instance: &InstanceConfig,
        last: Option<Arc<Transition>>,
    ) -> Self {
        let seed = instance
            .id
            .as_str()
            .bytes()
            .fold(0, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
        let file = spec.state_dir.clone().map(|directory| {
            let directory = directory.into_path_buf();
            // An error here shows again when the state file is written.
            let _ = std::fs::create_dir_all(&directory);
            StateFile::new(directory, Jitter::new(seed))
        });
        let agent = spec.shared.agent.as_ref().map(|rule| {
            let settings = AgentSettings {
                instance: instance.id.clone(),
                path: rule.socket.clone(),
                keepalived_conf: instance.file.to_path_buf(),
                trust: rule.trust,
                words: if rule.says_master { state_up_to_release_16 } else { NeutronState::as_str },
            };
            let mut agent = AgentOutlet::new(settings, Jitter::new(seed));
            // The node before this one may have sent a state to the agent a moment ago.
            agent.delivery().predecessor_reported(clock::now());
            Box::new(agent)
        });
        let stages = spec.stages().into();
        Self { spec, stages, file, agent, agent_knowledge: AgentKnowledge::default(), last }
    }

    /// Whether the state file and the agent have the last state.
    fn is_settled(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.due().is_none())
            && self.agent.as_deref().is_none_or(AgentOutlet::is_settled)
    }
}

/// The name of a state in Neutron's protocol up to release 16.
fn state_up_to_release_16(state: NeutronState) -> &'static str {
    match state {
        NeutronState::Primary => "master",
        NeutronState::Backup => state.as_str(),
    }
}

/// The report about a failed write of the state file; `None` if it was written.
fn file_report(written: WriteOutcome, transition: &Transition) -> Option<DeliveryReport> {
    let mut report = DeliveryReport::new(transition, Stage::File, "the state file");
    report.is_final = false;
    report.outcome = match written {
        WriteOutcome::Written => return None,
        WriteOutcome::Failed(error) => Err(ErrorChain(&error).to_string()),
        WriteOutcome::StillFailing => Err(String::new()),
    };
    Some(report)
}

fn agent_report(
    outcome: AgentOutcome,
    path: &Path,
    last: &Transition,
    agent_knowledge: &mut AgentKnowledge,
) -> DeliveryReport {
    let mut report = DeliveryReport::new(last, Stage::Agent, &path.display().to_string());
    match outcome {
        AgentOutcome::Acknowledged(role) => {
            // The role may have changed since the acknowledged request was sent.
            report.is_final = last.to.neutron_state() == Some(role);
            *agent_knowledge = AgentKnowledge { acknowledged: Some(role), failing: None };
        }
        AgentOutcome::Failed(_, error) => {
            let why = ErrorChain(&error).to_string();
            agent_knowledge.failing = Some(why.clone());
            report.outcome = Err(why);
            report.is_final = false;
        }
    }
    report
}

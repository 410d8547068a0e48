//! Who is told about which instance: takes a change to the outlets that the configuration gives it.
//!
//! ```text
//!   Transition ─┬─ 1 state file     inline
//!               ├─ 2 announcements  a thread for all
//!               ├─ 3 agent          inline, without waiting; asked again when due
//!               ├─ 4 hooks          a queue for each, in order for each instance
//!               └─ 5 webhooks       a queue for each, in order for each instance
//! ```
//!
//! An instance for which nothing is configured has no entry here.

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
use crate::notify::outlet::{DeliveryReport, Notification, ReportQueue, sink_into};
use crate::notify::queue::{TargetQueue, TargetSettings, reconcile};
use crate::notify::{hook, webhook};
use crate::transition::{Transition, micros};

/// Conversations with agents at a time: a receiver's queue is short, and so is our list of files.
const CONVERSATIONS: usize = 64;

/// An instance for which something else is configured than before.
#[derive(Debug)]
pub(crate) struct ReconfiguredInstance {
    pub(crate) id: InstanceId,
    /// The configuration before; `None` if there was none.
    before: Option<Arc<SharedTargets>>,
}

/// Failures to deliver, by stage and target.
pub(crate) type Failures = BTreeMap<(Stage, String), String>;

/// What became of a change at once.
#[derive(Debug, Default)]
pub(crate) struct PublishResult {
    /// The stages that know of it already.
    pub(crate) latencies: Latencies,
    /// Failures.
    pub(crate) reports: Vec<DeliveryReport>,
    /// Older notifications that this one has replaced.
    pub(crate) superseded: usize,
}

/// The outlets of one instance.
#[derive(Debug)]
struct Outlets {
    spec: InstanceTargets,
    stages: Arc<[Stage]>,
    file: Option<StateFile>,
    agent: Option<Box<AgentOutlet>>,
    /// What the agent is known to know.
    knows: AgentKnowledge,
    /// The last change, of which the file and the agent are told.
    last: Option<Arc<Transition>>,
}

/// What an agent is known to know, now.
pub(crate) type AgentUpdate = (InstanceId, AgentKnowledge);

/// All outlets.
#[derive(Debug)]
pub(crate) struct Notifier {
    rules: Vec<Rule>,
    /// Boxed, as is the line to an agent: there are thousands, and most have less than all.
    outlets: BTreeMap<InstanceId, Box<Outlets>>,
    /// Those whose file or agent does not know yet; the others need not be looked at.
    open: BTreeSet<InstanceId>,
    tray: ReportQueue,
    announcer: Option<AnnounceHandle>,
    hooks: Vec<TargetQueue<Hook, hook::HookJob>>,
    /// Runs of one hook at a time.
    hooks_at_once: usize,
    webhooks: Vec<TargetQueue<Webhook, webhook::WebhookJob>>,
    outstanding: Outstanding,
    /// Instances and stages whose last change had not reached a target when a reload removed the target. A
    /// target that is added before the next change gets it.
    unreached: BTreeSet<(InstanceId, Stage)>,
    node: Arc<str>,
    none: Arc<[Stage]>,
}

impl Notifier {
    pub(crate) fn new(config: &Config, node: Arc<str>) -> io::Result<Self> {
        let tray = ReportQueue::new()?;
        let mut notifier = Self {
            rules: Vec::new(),
            outlets: BTreeMap::new(),
            open: BTreeSet::new(),
            tray,
            announcer: None,
            hooks: Vec::new(),
            hooks_at_once: config.hooks_at_once,
            webhooks: Vec::new(),
            outstanding: Outstanding::default(),
            unreached: BTreeSet::new(),
            node,
            none: Arc::from([]),
        };
        notifier.configure(config.rules.clone())?;
        Ok(notifier)
    }

    /// Takes other rules. Outlets that are configured as before go on, and a hook or webhook that stays keeps
    /// its queue.
    pub(crate) fn configure(&mut self, rules: Vec<Rule>) -> io::Result<()> {
        if self.announcer.is_none() && rules.iter().any(|rule| rule.announce.is_some()) {
            self.announcer = Some(AnnounceHandle::start(self.tray.clone())?);
        }
        let sink = sink_into(&self.tray);
        let hooks: Vec<_> = rules.iter().flat_map(|rule| rule.hooks.iter().cloned()).collect();
        let at_once = self.hooks_at_once;
        reconcile(&mut self.hooks, &hooks, |hook| hook::queue(hook, at_once, sink.clone()));
        let webhooks: Vec<_> =
            rules.iter().flat_map(|rule| rule.webhooks.iter().cloned()).collect();
        reconcile(&mut self.webhooks, &webhooks, |one| webhook::queue(one, sink.clone()));
        self.rules = rules;
        Ok(())
    }

    /// These are the instances, and no others; tells for which of them something else is configured
    /// than before: they are to be told where they stand.
    pub(crate) fn follow(
        &mut self,
        instances: &[Arc<InstanceConfig>],
    ) -> Vec<ReconfiguredInstance> {
        let mut before = std::mem::take(&mut self.outlets);
        let mut changed = Vec::new();
        let mut last_others: Option<Arc<SharedTargets>> = None;
        for found in instances {
            let spec = InstanceTargets::of(found, &self.rules).share(last_others.as_ref());
            last_others = Some(Arc::clone(&spec.others));
            let known = before.remove(&found.id);
            let last = match known {
                Some(known) if known.spec == spec => {
                    self.outlets.insert(found.id.clone(), known);
                    continue;
                }
                Some(known) => {
                    self.part_with(&found.id, &known, &spec);
                    let before = Some(known.spec.others);
                    changed.push(ReconfiguredInstance { id: found.id.clone(), before });
                    known.last
                }
                None if spec == InstanceTargets::default() => continue,
                None => {
                    changed.push(ReconfiguredInstance { id: found.id.clone(), before: None });
                    None
                }
            };
            if spec != InstanceTargets::default() {
                let outlets = Box::new(Outlets::new(spec, found, last));
                self.outlets.insert(found.id.clone(), outlets);
            }
        }
        let outlets = &self.outlets;
        self.open.retain(|id| outlets.contains_key(id));
        for (id, gone) in before {
            self.part_with(&id, &gone, &InstanceTargets::default());
            for stage in [Stage::Hook, Stage::Webhook] {
                self.outstanding.forget(&id, stage, |_| false);
                self.unreached.remove(&(id.clone(), stage));
            }
        }
        changed
    }

    /// Ends what is not in `spec` any more.
    fn part_with(&self, id: &InstanceId, known: &Outlets, spec: &InstanceTargets) {
        if let Some(announcer) = &self.announcer
            && known.spec.others.announce.is_some()
            && spec.others.announce.is_none()
        {
            announcer.stop(id);
        }
        // Nobody will keep it true from now on.
        if let Some(directory) = &known.spec.state_dir
            && spec.state_dir.as_ref() != Some(directory)
        {
            let _ = std::fs::remove_file(directory.join("state"));
        }
    }

    /// Who is told about an instance.
    pub(crate) fn stages(&self, id: &InstanceId) -> Arc<[Stage]> {
        self.outlets.get(id).map_or(&self.none, |outlets| &outlets.stages).clone()
    }

    /// Whether the last run delivered its role `kind` to every hook and webhook that wants it now. `latencies`
    /// has the stages that were delivered.
    pub(crate) fn is_delivered(
        &self,
        id: &InstanceId,
        kind: RoleKind,
        latencies: &Latencies,
    ) -> bool {
        let Some(outlets) = self.outlets.get(id) else { return true };
        let role = kind.as_str();
        let is_open = |stage, is_wanted: bool| is_wanted && latencies.of(stage).is_none();
        let others = &outlets.spec.others;
        !is_open(Stage::Hook, others.hooks.iter().any(|hook| hook.on.contains(&role)))
            && !is_open(
                Stage::Webhook,
                others.webhooks.iter().any(|webhook| webhook.on.contains(&role)),
            )
    }

    /// Who will be told of this change.
    pub(crate) fn expected(&self, transition: &Transition) -> Vec<Stage> {
        let Some(outlets) = self.outlets.get(&transition.instance.id) else { return Vec::new() };
        let role = transition.to.as_str();
        let spec = &outlets.spec.others;
        let is_told = |stage: &Stage| match stage {
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
        outlets.stages.iter().copied().filter(is_told).collect()
    }

    /// The directories in which agents have their sockets.
    pub(crate) fn agent_directories(&self) -> BTreeSet<PathBuf> {
        let agents = self.rules.iter().filter_map(|rule| rule.agent.as_ref());
        agents.filter_map(|agent| Some(agent.socket.parent()?.to_owned())).collect()
    }

    /// Tells every outlet of a change.
    pub(crate) fn perform(&mut self, transition: &Arc<Transition>) -> PublishResult {
        let mut performed = self.tell_inline(transition);
        if !self.unreached.is_empty() {
            self.unreached.retain(|(id, _)| *id != transition.instance.id);
        }
        if transition.must_notify {
            performed.superseded = self.enqueue(transition, |_, _| true);
        }
        performed
    }

    /// Tells outlets that are configured differently now of the role that holds. It is no news for a hook or
    /// webhook, unless its last delivery has failed, or it is new and the change had not reached a target that
    /// was removed.
    pub(crate) fn perform_again(
        &mut self,
        transition: &Arc<Transition>,
        reconfigured: &ReconfiguredInstance,
        failures: &Failures,
    ) -> PublishResult {
        let mut performed = self.tell_inline(transition);
        let id = &transition.instance.id;
        // Without outlets, too: the deliveries to those that were removed are forgotten.
        let outlets = self.outlets.get(id);
        let now = outlets.map(|outlets| Arc::clone(&outlets.spec.others)).unwrap_or_default();
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
        performed.superseded = self.enqueue(transition, |stage, name| {
            failures.contains_key(&(stage, name.to_owned()))
                || (is_new(stage, name) && unreached.contains(&stage))
        });
        performed
    }

    /// Tells the outlets that need no queue.
    fn tell_inline(&mut self, transition: &Arc<Transition>) -> PublishResult {
        let mut performed = PublishResult::default();
        let id = &transition.instance.id;
        let Some(outlets) = self.outlets.get_mut(id) else { return performed };
        outlets.last = Some(Arc::clone(transition));
        if let Some(file) = &mut outlets.file {
            let written = file.set(transition.to.as_str(), clock::now());
            if let Some(report) = file_report(written, transition) {
                performed.reports.push(report);
            } else {
                let taken = micros(transition.read_at, clock::now());
                performed.latencies.set(Stage::File, taken);
            }
        }
        if let (Some(plan), Some(announcer)) = (outlets.spec.others.announce, &self.announcer) {
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
        performed
    }

    /// Puts a change into the queues of those hooks and webhooks of its instance that want its role, are
    /// chosen, and do not hold it already; the number of older notifications that it has replaced.
    fn enqueue(
        &mut self,
        transition: &Arc<Transition>,
        is_chosen: impl Fn(Stage, &str) -> bool,
    ) -> usize {
        let Some(outlets) = self.outlets.get(&transition.instance.id) else { return 0 };
        let others = Arc::clone(&outlets.spec.others);
        let letter: Arc<dyn Notification> = Arc::<Transition>::clone(transition);
        let node = &self.node;
        let round = Round { transition, is_chosen: &is_chosen, stage: Stage::Hook };
        let job = || hook::HookJob { letter: Arc::clone(&letter), node: Arc::clone(node) };
        let hooks = round.enqueue(&others.hooks, &self.hooks, &mut self.outstanding, job);
        let round = Round { stage: Stage::Webhook, ..round };
        let job = || webhook::WebhookJob::new(Arc::clone(&letter), Arc::clone(node));
        hooks + round.enqueue(&others.webhooks, &self.webhooks, &mut self.outstanding, job)
    }

    /// Whether a report is about a delivery that has not concluded. If not, a reload has removed the hook or
    /// webhook while the attempt was under way. Other stages have no removed targets.
    pub(crate) fn is_awaited(&self, report: &DeliveryReport) -> bool {
        let DeliveryReport { instance, stage, whom, .. } = report;
        match stage {
            Stage::Hook | Stage::Webhook => self.outstanding.is_awaited(instance, *stage, whom),
            Stage::File | Stage::Announce | Stage::Agent => true,
        }
    }

    /// A delivery to a hook or webhook has concluded; true if it was the last one of its change and stage, and
    /// none was given up. Other stages have one target, so each conclusion is the last.
    pub(crate) fn conclude(&mut self, report: &DeliveryReport) -> bool {
        let DeliveryReport { instance, seq, stage, whom, outcome, .. } = report;
        match stage {
            Stage::Hook | Stage::Webhook => {
                self.outstanding.conclude(instance, *stage, *seq, whom, outcome.is_ok())
            }
            Stage::File | Stage::Announce | Stage::Agent => true,
        }
    }

    /// Whether a delivery of change `seq` to `target` has not concluded yet.
    pub(crate) fn is_outstanding(
        &self,
        id: &InstanceId,
        stage: Stage,
        seq: i64,
        target: &str,
    ) -> bool {
        self.outstanding.contains(id, stage, seq, target)
    }

    /// What to wait for besides: workers, and agents that owe an answer.
    pub(crate) fn sources(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let agents = self.open_outlets().filter_map(|outlets| outlets.agent.as_deref());
        std::iter::once(self.tray.as_fd()).chain(agents.filter_map(AgentOutlet::waiting_on))
    }

    fn open_outlets(&self) -> impl Iterator<Item = &Outlets> {
        self.open.iter().filter_map(|id| self.outlets.get(id)).map(|outlets| &**outlets)
    }

    /// When [`Self::tick`] has something to do.
    pub(crate) fn due(&self) -> Option<Moment> {
        let is_full = self.conversations() >= CONVERSATIONS;
        let of = |outlets: &Outlets| {
            let agent = outlets.agent.as_deref();
            let agent = agent.filter(|agent| !is_full || agent.waiting_on().is_some());
            let agent = agent.and_then(AgentOutlet::due);
            let file = outlets.file.as_ref().and_then(StateFile::due);
            [agent, file].into_iter().flatten().min()
        };
        self.open_outlets().filter_map(of).min()
    }

    fn conversations(&self) -> usize {
        let agents = self.open_outlets().filter_map(|outlets| outlets.agent.as_deref());
        agents.filter(|agent| agent.waiting_on().is_some()).count()
    }

    /// An agent's socket may have come.
    pub(crate) fn look_for_agents(&mut self) {
        for (id, outlets) in &mut self.outlets {
            if let Some(agent) = &mut outlets.agent {
                agent.socket_appeared();
                if !agent.is_settled() {
                    self.open.insert(id.clone());
                }
            }
        }
    }

    /// Does what is due; tells what has become of it, and what agents know now.
    pub(crate) fn tick(&mut self) -> (Vec<DeliveryReport>, Vec<AgentUpdate>) {
        let mut reports: Vec<DeliveryReport> = self.tray.take_all();
        let mut known = Vec::new();
        let now = clock::now();
        let mut room = CONVERSATIONS.saturating_sub(self.conversations());
        let mut settled = Vec::new();
        for id in &self.open {
            let Some(outlets) = self.outlets.get_mut(id) else { continue };
            let Some(last) = outlets.last.clone() else { continue };
            if let Some(directory) = &outlets.spec.state_dir
                && outlets.file.as_ref().and_then(StateFile::due).is_some_and(|due| due <= now)
            {
                // It may be what is missing; one that cannot be made is said when it is written to.
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
            let told = outlets.agent.as_mut().and_then(|agent| match agent.waiting_on() {
                Some(_) => agent.read_answer(now).or_else(|| agent.tick(now)),
                None if room > 0 => {
                    let told = agent.tick(now);
                    room -= usize::from(agent.waiting_on().is_some());
                    told
                }
                None => None,
            });
            if outlets.is_settled() {
                settled.push(id.clone());
            }
            if let (Some(told), Some(agent)) = (told, &outlets.agent) {
                reports.push(agent_report(told, agent.path(), &last, &mut outlets.knows));
                known.push((id.clone(), outlets.knows.clone()));
            }
        }
        for id in settled {
            self.open.remove(&id);
        }
        (reports, known)
    }

    /// How many notifications wait.
    pub(crate) fn pending(&self) -> usize {
        let hooks = self.hooks.iter().map(TargetQueue::pending);
        hooks.chain(self.webhooks.iter().map(TargetQueue::pending)).sum()
    }

    /// Waits until all queues are empty, at most `limit`; the number of notifications that are left.
    pub(crate) fn close(&self, limit: Duration) -> usize {
        let end = clock::now() + limit;
        let left = |end: Moment| end.since(clock::now());
        let hooks = self.hooks.iter().map(|queue| queue.close(left(end)));
        hooks.chain(self.webhooks.iter().map(|queue| queue.close(left(end)))).sum()
    }
}

/// One stage of one change.
struct Round<'a> {
    transition: &'a Transition,
    /// Whether a target of this stage and name is told.
    is_chosen: &'a dyn Fn(Stage, &str) -> bool,
    stage: Stage,
}

impl Round<'_> {
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
        // ORDER: chosen before the first delivery begins. Two targets may share a name, and the delivery to
        // the first must not keep the second from its own.
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
    fn new(spec: InstanceTargets, found: &InstanceConfig, last: Option<Arc<Transition>>) -> Self {
        let seed = found
            .id
            .as_str()
            .bytes()
            .fold(0, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
        let file = spec.state_dir.clone().map(|directory| {
            let directory = directory.into_path_buf();
            // One that cannot be made is said when it is written to.
            let _ = std::fs::create_dir_all(&directory);
            StateFile::new(directory, Jitter::new(seed))
        });
        let agent = spec.others.agent.as_ref().map(|rule| {
            let settings = AgentSettings {
                instance: found.id.clone(),
                path: rule.socket.clone(),
                keepalived_conf: found.file.to_path_buf(),
                trust: rule.trust,
                words: if rule.says_master { words_with_master } else { words },
            };
            let mut line = AgentOutlet::new(settings, Jitter::new(seed));
            // A node before us may have told it something a moment ago.
            line.delivery().predecessor_reported(clock::now());
            Box::new(line)
        });
        let stages = spec.stages().into();
        Self { spec, stages, file, agent, knows: AgentKnowledge::default(), last }
    }

    /// Whether file and agent know what is so.
    fn is_settled(&self) -> bool {
        self.file.as_ref().is_none_or(|file| file.due().is_none())
            && self.agent.as_deref().is_none_or(AgentOutlet::is_settled)
    }
}

/// Neutron's words.
fn words(role: NeutronState) -> &'static str {
    match role {
        NeutronState::Primary => "primary",
        NeutronState::Backup => "backup",
    }
}

/// Neutron's words, up to release 16.
fn words_with_master(role: NeutronState) -> &'static str {
    match role {
        NeutronState::Primary => "master",
        NeutronState::Backup => "backup",
    }
}

/// What there is to say about a state file; nothing if it holds the word.
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
    told: AgentOutcome,
    path: &Path,
    last: &Transition,
    knows: &mut AgentKnowledge,
) -> DeliveryReport {
    let whom = path.display().to_string();
    let mut report = DeliveryReport::new(last, Stage::Agent, &whom);
    match told {
        AgentOutcome::Acknowledged(role) => {
            // It may have acknowledged what has changed since.
            report.is_final = last.to.neutron_state() == Some(role);
            *knows = AgentKnowledge { acknowledged: Some(role), failing: None };
        }
        AgentOutcome::Failed(_, error) => {
            let why = ErrorChain(&error).to_string();
            knows.failing = Some(why.clone());
            (report.outcome, report.is_final) = (Err(why), false);
        }
    }
    report
}

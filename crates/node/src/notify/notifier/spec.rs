//! What the configuration says about an instance.

use std::path::Path;
use std::sync::Arc;

use crate::discovery::InstanceConfig;
use vipwatch_core::AnnouncePlan;
use vipwatch_history::Stage;

use crate::config::{AgentRule, Hook, Rule, Webhook};
use crate::notify::post::public_part;
use crate::notify::queue::TargetSettings;

/// What the configuration says about one instance.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct InstanceTargets {
    pub(super) state_dir: Option<Box<Path>>,
    pub(super) others: Arc<SharedTargets>,
}

/// What it says about many.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SharedTargets {
    pub(super) announce: Option<AnnouncePlan>,
    pub(super) agent: Option<AgentRule>,
    pub(super) hooks: Vec<Arc<Hook>>,
    pub(super) webhooks: Vec<Arc<Webhook>>,
}

impl InstanceTargets {
    pub(super) fn of(found: &InstanceConfig, rules: &[Rule]) -> Self {
        let mut state_dir = None;
        let mut others = SharedTargets::default();
        for rule in rules.iter().filter(|rule| rule.covers(found)) {
            if let Some(template) = &rule.state_file {
                state_dir = Some(template.path(found).into_boxed_path());
            }
            others.announce = rule.announce.or(others.announce);
            if rule.agent.is_some() {
                others.agent.clone_from(&rule.agent);
            }
            add_new(&mut others.hooks, &rule.hooks);
            add_new(&mut others.webhooks, &rule.webhooks);
        }
        Self { state_dir, others: Arc::new(others) }
    }

    /// Shares what it says about many with `other`, if that says the same.
    pub(super) fn share(mut self, other: Option<&Arc<SharedTargets>>) -> Self {
        if let Some(other) = other.filter(|other| **other == self.others) {
            self.others = Arc::clone(other);
        }
        self
    }

    pub(super) fn stages(&self) -> Vec<Stage> {
        let has = |stage: &Stage| match stage {
            Stage::File => self.state_dir.is_some(),
            Stage::Announce => self.others.announce.is_some(),
            Stage::Hook => !self.others.hooks.is_empty(),
            Stage::Webhook => !self.others.webhooks.is_empty(),
            Stage::Agent => self.others.agent.is_some(),
        };
        Stage::ALL.into_iter().filter(has).collect()
    }
}

/// Adds those of `more` that are not there yet: one target is told once.
fn add_new<T: TargetSettings>(targets: &mut Vec<Arc<T>>, more: &[Arc<T>]) {
    for target in more {
        if !targets.contains(target) {
            targets.push(Arc::clone(target));
        }
    }
}

impl SharedTargets {
    /// Whether a hook or webhook of this name is configured.
    pub(super) fn has(&self, stage: Stage, name: &str) -> bool {
        self.names(stage).iter().any(|known| known == name)
    }

    /// The names of the hooks or webhooks; other stages have none.
    pub(super) fn names(&self, stage: Stage) -> Vec<String> {
        match stage {
            Stage::Hook => self.hooks.iter().map(|hook| hook.name()).collect(),
            Stage::Webhook => self.webhooks.iter().map(|webhook| webhook.name()).collect(),
            Stage::File | Stage::Announce | Stage::Agent => Vec::new(),
        }
    }
}

/// What is configured for an instance, for people.
pub fn describe(found: &InstanceConfig, rules: &[Rule]) -> Vec<String> {
    let InstanceTargets { state_dir, others } = InstanceTargets::of(found, rules);
    let file = state_dir.map(|directory| format!("state file {}/state", directory.display()));
    let announce = others.announce.map(|plan| format!("announcements, {} rounds", plan.count));
    let agent = others.agent.as_ref().map(|agent| format!("agent {}", agent.socket.display()));
    let hooks = others.hooks.iter().map(|hook| format!("hook {}", hook.program.join(" ")));
    let webhooks =
        others.webhooks.iter().map(|one| format!("webhook {}", public_part(&one.target.url)));
    file.into_iter().chain(announce).chain(agent).chain(hooks).chain(webhooks).collect()
}

// SPDX-License-Identifier: Apache-2.0
//! Selects the targets of an instance from the rules of the configuration.

use std::path::Path;
use std::sync::Arc;

use crate::discovery::InstanceConfig;
use vipwatch_core::AnnouncePlan;
use vipwatch_history::Stage;

use crate::config::{AgentRule, Hook, Rule, Webhook};

/// The targets of one instance.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct InstanceTargets {
    /// The directory of the state file; `None` without a state file.
    pub(super) state_dir: Option<Box<Path>>,
    pub(super) shared: Arc<SharedTargets>,
}

/// The targets that many instances have in common, stored once for all of them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SharedTargets {
    pub(super) announce: Option<AnnouncePlan>,
    pub(super) agent: Option<AgentRule>,
    pub(super) hooks: Vec<Arc<Hook>>,
    pub(super) webhooks: Vec<Arc<Webhook>>,
}

impl InstanceTargets {
    pub(super) fn of(instance: &InstanceConfig, rules: &[Rule]) -> Self {
        let mut state_dir = None;
        let mut shared = SharedTargets::default();
        for rule in rules.iter().filter(|rule| rule.covers(instance)) {
            if let Some(template) = &rule.state_file {
                state_dir = Some(template.path(instance).into_boxed_path());
            }
            shared.announce = rule.announce.or(shared.announce);
            if rule.agent.is_some() {
                shared.agent.clone_from(&rule.agent);
            }
            add_new(&mut shared.hooks, &rule.hooks);
            add_new(&mut shared.webhooks, &rule.webhooks);
        }
        Self { state_dir, shared: Arc::new(shared) }
    }

    /// Uses `other` instead of its own copy of the shared targets, if both are equal.
    pub(super) fn share(mut self, other: Option<&Arc<SharedTargets>>) -> Self {
        if let Some(other) = other.filter(|other| **other == self.shared) {
            self.shared = Arc::clone(other);
        }
        self
    }

    pub(super) fn stages(&self) -> Vec<Stage> {
        let has = |stage: &Stage| match stage {
            Stage::File => self.state_dir.is_some(),
            Stage::Announce => self.shared.announce.is_some(),
            Stage::Hook => !self.shared.hooks.is_empty(),
            Stage::Webhook => !self.shared.webhooks.is_empty(),
            Stage::Agent => self.shared.agent.is_some(),
        };
        Stage::ALL.into_iter().filter(has).collect()
    }
}

/// Adds the targets of `more` that are not in the list yet, so that each is notified once.
fn add_new<T: PartialEq>(targets: &mut Vec<Arc<T>>, more: &[Arc<T>]) {
    for target in more {
        if !targets.contains(target) {
            targets.push(Arc::clone(target));
        }
    }
}

impl SharedTargets {
    /// The names of the hooks and webhooks.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let hooks = self.hooks.iter().map(|hook| hook.name.as_str());
        hooks.chain(self.webhooks.iter().map(|webhook| webhook.name.as_str()))
    }
}

/// One line of text for each target of an instance.
pub fn describe(instance: &InstanceConfig, rules: &[Rule]) -> Vec<String> {
    let InstanceTargets { state_dir, shared } = InstanceTargets::of(instance, rules);
    let file = state_dir.map(|directory| format!("state file {}/state", directory.display()));
    let announce = shared.announce.map(|plan| format!("announcements, {} rounds", plan.count));
    let agent = shared.agent.as_ref().map(|agent| format!("agent {}", agent.socket.display()));
    let hooks = shared.hooks.iter().map(|hook| format!("hook {}", hook.program.join(" ")));
    let webhooks = shared.webhooks.iter().map(|one| format!("webhook {}", one.name));
    file.into_iter().chain(announce).chain(agent).chain(hooks).chain(webhooks).collect()
}

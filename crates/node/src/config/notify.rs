// SPDX-License-Identifier: Apache-2.0
//! `[[notify]]`: a rule. It selects instances and names the targets to which their transitions are delivered.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use vipwatch_core::AnnouncePlan;
use vipwatch_core::RateLimit;
use vipwatch_linux::account::{AccountKind, id};
use vipwatch_outlets::agent::AgentTrust;

use super::document::{SettingErrors, Table, Value};
use super::sections::absolute;
use super::target_name::TargetNames;
use super::targets::TargetScope;
pub use super::targets::{BatchSettings, Hook, Target, Webhook};
use crate::discovery::{InstanceConfig, Origin};

/// The user that Neutron's packages create.
const AGENT_USER: &str = "neutron";

/// The shortest time between two rounds of announcements.
const MIN_ANNOUNCE_GAP: Duration = Duration::from_millis(10);

/// How long the node listens for other holders of an address, unless `check` says otherwise.
const DEFAULT_CHECK: Duration = Duration::from_secs(3);

/// The longest `check`.
const MAX_CHECK: Duration = Duration::from_mins(1);

/// One `[[notify]]`.
#[derive(Debug, Clone)]
pub struct Rule {
    pub(super) patterns: Vec<glob::Pattern>,
    pub(super) origins: Vec<Origin>,
    /// The directory of the file `state`, which contains the role; `None` for no state file.
    pub state_file: Option<Template>,
    /// How addresses are announced when an instance becomes primary; `None` for no announcements.
    pub announce: Option<AnnouncePlan>,
    /// Neutron's L3 agent to report to; `None` for none.
    pub agent: Option<AgentRule>,
    /// Programs to run.
    pub hooks: Vec<Arc<Hook>>,
    /// URLs to post to.
    pub webhooks: Vec<Arc<Webhook>>,
}

/// A path that contains `{id}`, and may contain `{netns}` and `{name}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(pub(super) String);

/// An L3 agent of Neutron as a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRule {
    /// The path of the agent's socket.
    pub socket: PathBuf,
    /// Which user may own and serve the socket.
    pub trust: AgentTrust,
    /// Whether the agent expects the word `master` instead of `primary` (Neutron up to 16).
    pub says_master: bool,
}

impl Rule {
    /// Whether the rule applies to `instance`.
    pub fn covers(&self, instance: &InstanceConfig) -> bool {
        let id = instance.id.as_str();
        self.origins.contains(&instance.origin)
            && self.patterns.iter().any(|pattern| pattern.matches(id))
    }

    /// The patterns of `instances` that match none of these instances. `*` is not one of them.
    pub fn unmatched_patterns(&self, instances: &[Arc<InstanceConfig>]) -> Vec<&str> {
        let is_matched = |pattern: &glob::Pattern| {
            let mut candidates =
                instances.iter().filter(|instance| self.origins.contains(&instance.origin));
            candidates.any(|instance| pattern.matches(instance.id.as_str()))
        };
        let patterns = self.patterns.iter().filter(|pattern| !is_matched(pattern));
        patterns.map(glob::Pattern::as_str).filter(|pattern| *pattern != "*").collect()
    }

    pub(super) fn read(
        mut table: Table<'_, '_>,
        names: &mut TargetNames,
        errors: &mut SettingErrors<'_>,
    ) -> Self {
        let offset = table.offset;
        let errors_before = errors.list.len();
        let patterns = read_patterns(&mut table, errors);
        // Neutron's routers have a monitor of their own, which already reports to the agent. The node does
        // the same only where the rule names this origin. The files of a container are not those of an operator of
        // this machine, so a rule must name that origin, too.
        let origins = match table.texts("origin", errors) {
            None => vec![Origin::Keepalived, Origin::Own],
            Some(texts) => texts
                .into_iter()
                .filter_map(|(offset, word)| parse_origin(offset, word, errors))
                .collect(),
        };
        let state_file = table.parsed("state_file", errors, Template::parse);
        let announce = table.take("announce").and_then(|value| read_plan(value, errors));
        let agent = table.take("agent").and_then(|value| AgentRule::read(value, errors));
        let (hooks, webhooks) = TargetScope::rule(names).hooks_and_webhooks(&mut table, errors);
        table.finish(errors);
        let has_targets = state_file.is_some()
            || announce.is_some()
            || agent.is_some()
            || !hooks.is_empty()
            || !webhooks.is_empty();
        if !has_targets && errors.list.len() == errors_before {
            let text = "a notify rule needs state_file, announce, agent, hook or webhook";
            errors.add(offset, text);
        }
        Self { patterns, origins, state_file, announce, agent, hooks, webhooks }
    }
}

/// The patterns of `instances`; without the key, a pattern that matches every id.
pub(super) fn read_patterns(
    table: &mut Table<'_, '_>,
    errors: &mut SettingErrors<'_>,
) -> Vec<glob::Pattern> {
    let Some(texts) = table.texts("instances", errors) else {
        return vec![glob::Pattern::new("*").unwrap_or_default()];
    };
    let mut patterns = Vec::new();
    for (offset, text) in texts {
        match glob::Pattern::new(text) {
            Ok(pattern) => patterns.push(pattern),
            Err(error) => errors.add(offset, format!("the pattern {text:?}: {}", error.msg)),
        }
    }
    patterns
}

fn parse_origin(offset: usize, word: &str, errors: &mut SettingErrors<'_>) -> Option<Origin> {
    let origin = Origin::ALL.into_iter().find(|origin| origin.word() == word);
    if origin.is_none() {
        let words = Origin::ALL.map(|origin| format!("{:?}", origin.word())).join(", ");
        errors.add(offset, format!("expected an origin ({words}), found {word:?}"));
    }
    origin
}

impl Template {
    fn parse(text: &str) -> Result<Self, String> {
        absolute(text)?;
        let mut rest = text;
        while let Some((_, after)) = rest.split_once('{') {
            let (name, after) =
                after.split_once('}').ok_or_else(|| format!("{text:?}: a {{ is not closed"))?;
            if !["id", "netns", "name"].contains(&name) {
                return Err(format!("{{{name}}} is not {{id}}, {{netns}} or {{name}}"));
            }
            rest = after;
        }
        if !text.contains("{id}") {
            return Err(format!("{text:?} is the same for every instance: put {{id}} into it"));
        }
        Ok(Self(text.to_owned()))
    }

    /// The path for `instance`. Characters of an instance's name that would lead to another directory are
    /// replaced.
    pub fn path(&self, instance: &InstanceConfig) -> PathBuf {
        let netns = instance.netns.as_ref().map_or("", |netns| netns.as_str());
        let name = instance.vrrp.name.replace(['/', '\0'], "_");
        let name = if name.starts_with('.') { format!("_{name}") } else { name };
        let path = self.0.replace("{id}", instance.id.as_str()).replace("{netns}", netns);
        PathBuf::from(path.replace("{name}", &name))
    }
}

/// Reads `announce`: `true`, `false`, or a table with the schedule.
fn read_plan(value: &Value<'_>, errors: &mut SettingErrors<'_>) -> Option<AnnouncePlan> {
    let mut plan = AnnouncePlan { check: Some(DEFAULT_CHECK), ..AnnouncePlan::PRIMARY };
    match value.get_ref().as_bool() {
        Some(true) => return Some(plan),
        Some(false) => return None,
        None => {}
    }
    let mut table = Table::of("announce", value, errors)?;
    if let Some(count) = table.number("count", 1, 100, errors) {
        plan.count = u16::try_from(count).unwrap_or(plan.count);
    }
    if let Some(gap) = table.span("gap", errors) {
        plan.gap = gap.max(MIN_ANNOUNCE_GAP);
    }
    // Zero turns a part of the schedule off.
    let optional = |span: Duration| Some(span).filter(|span| !span.is_zero());
    if let Some(pause) = table.span("second_burst", errors) {
        plan.second_burst = optional(pause);
    }
    if let Some(pause) = table.span("refresh", errors) {
        plan.refresh = optional(pause);
    }
    if let Some(check) = table.span("check", errors) {
        plan.check = optional(check.min(MAX_CHECK));
    }
    if let Some(rate) = table.number("rate", 1, 1_000_000, errors) {
        let rate = u32::try_from(rate).unwrap_or(u32::MAX);
        plan.rate = RateLimit { per_second: rate, burst: rate };
    }
    table.finish(errors);
    Some(plan)
}

impl AgentRule {
    /// Reads `agent`: a path, or a table with the path and options.
    fn read(value: &Value<'_>, errors: &mut SettingErrors<'_>) -> Option<Self> {
        if let Some(text) = value.get_ref().as_str() {
            return match absolute(text) {
                Ok(socket) => {
                    let trust = AgentTrust::User(agent_user(&socket));
                    Some(Self { socket, trust, says_master: false })
                }
                Err(error) => {
                    errors.add(value.span().start, format!("agent: {error}"));
                    None
                }
            };
        }
        let mut table = Table::of("agent", value, errors)?;
        let offset = table.offset;
        let socket = table.parsed("socket", errors, absolute);
        let user = table.parsed("user", errors, |name| {
            id(name, AccountKind::User).ok_or_else(|| format!("there is no user {name:?}"))
        });
        let says_master = table.parsed("primary_word", errors, |word| match word {
            "primary" => Ok(false),
            "master" => Ok(true),
            _ => Err(format!("it is \"primary\" or \"master\", not {word:?}")),
        });
        let is_any_allowed = table.flag("allow_any_agent", errors).unwrap_or(false);
        table.finish(errors);
        let Some(socket) = socket else {
            errors.add(offset, "agent needs socket = \"PATH\"");
            return None;
        };
        if is_any_allowed && user.is_some() {
            errors.add(offset, "agent: user and allow_any_agent exclude each other");
        }
        let trust = match user {
            _ if is_any_allowed => AgentTrust::Anyone,
            Some(user) => AgentTrust::User(user),
            None => AgentTrust::User(agent_user(&socket)),
        };
        Some(Self { socket, trust, says_master: says_master.unwrap_or(false) })
    }
}

/// The user id of Neutron's agent where the configuration does not name one: the owner of the socket's
/// directory, which is Neutron's `state_path`. If root owns it, or it does not exist yet, the user
/// `neutron`; if there is no such user, root.
fn agent_user(socket: &Path) -> u32 {
    let owner = socket.parent().and_then(|directory| directory.metadata().ok());
    let owner = owner.map(|metadata| metadata.uid()).filter(|user| *user != 0);
    owner.or_else(|| id(AGENT_USER, AccountKind::User)).unwrap_or(0)
}

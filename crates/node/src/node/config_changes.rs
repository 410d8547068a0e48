// SPDX-License-Identifier: Apache-2.0
//! The log lines about a reload: which targets and settings have changed, without secrets.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::config::{Config, ReceiverConfig};

/// Maximum number of lines of one kind. The line about the reload has the numbers of all changes.
const MAX_LINES: usize = 20;

/// The settings that a running node cannot change, by their key.
const NEEDS_RESTART: [&str; 13] = [
    "node.name",
    "node.state_dir",
    "node.socket",
    "node.socket_group",
    "node.listen",
    "node.log",
    "node.hooks_at_once",
    "find.processes",
    "find.containers",
    "history",
    "web",
    "cluster",
    "metrics",
];

/// The changes from one configuration to another.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ConfigChanges {
    /// The names of the targets, for example `webhook http://127.0.0.1/`.
    pub(super) added: Vec<String>,
    pub(super) removed: Vec<String>,
    pub(super) changed: Vec<String>,
    pub(super) settings: Vec<SettingChange>,
}

/// A setting with another value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SettingChange {
    pub(super) key: String,
    /// Empty if the setting was absent.
    pub(super) from: String,
    /// Empty if the setting is absent.
    pub(super) to: String,
}

impl ConfigChanges {
    /// Compares the settings in force with new ones.
    pub(super) fn between(before: &Map<String, Value>, after: &Map<String, Value>) -> Self {
        let (old, new) = (targets(before), targets(after));
        let names = |of: &BTreeMap<String, Vec<String>>, other: &BTreeMap<String, Vec<String>>| {
            of.keys().filter(|name| !other.contains_key(*name)).cloned().collect()
        };
        let is_changed =
            |name: &&String| new.get(*name).is_some_and(|settings| *settings != old[*name]);
        Self {
            added: names(&new, &old),
            removed: names(&old, &new),
            changed: old.keys().filter(is_changed).cloned().collect(),
            settings: setting_changes(before, after),
        }
    }

    /// The keys of changed settings that a running node cannot apply.
    pub(super) fn needs_restart(&self) -> Vec<String> {
        let keys = self.settings.iter().map(|change| &change.key);
        keys.filter(|key| needs_restart(key)).cloned().collect()
    }

    /// Logs each change, up to [`MAX_LINES`] of a kind.
    pub(super) fn log(&self) {
        for name in self.added.iter().take(MAX_LINES) {
            tracing::info!(name, "target added");
        }
        for name in self.removed.iter().take(MAX_LINES) {
            tracing::info!(name, "target removed");
        }
        for name in self.changed.iter().take(MAX_LINES) {
            tracing::info!(name, "target changed");
        }
        for SettingChange { key, from, to } in self.settings.iter().take(MAX_LINES) {
            if needs_restart(key) {
                tracing::warn!(key, from, to, "this setting changes only after a restart");
            } else {
                tracing::info!(key, from, to, "setting changed");
            }
        }
    }
}

/// Logs what a reload has changed in a receiver that runs without a node.
pub fn log_receiver_changes(before: &ReceiverConfig, after: &ReceiverConfig) {
    let settings = |receiver: &ReceiverConfig| {
        Config { receiver: Some(receiver.clone()), ..Config::default() }.settings()
    };
    ConfigChanges::between(&settings(before), &settings(after)).log();
}

fn needs_restart(key: &str) -> bool {
    NEEDS_RESTART.iter().any(|name| {
        key.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// The targets of all rules and of the receiver: the name, and for each use the settings with those of its rule.
fn targets(settings: &Map<String, Value>) -> BTreeMap<String, Vec<String>> {
    let mut targets: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for rule in array(settings.get("notify")) {
        let selects = format!("{} {}", rule["instances"], rule["origin"]);
        add_targets(rule, &selects, &mut targets);
    }
    if let Some(receiver) = settings.get("receiver") {
        add_targets(receiver, "receiver", &mut targets);
    }
    targets
}

fn add_targets(table: &Value, selects: &str, targets: &mut BTreeMap<String, Vec<String>>) {
    let mut add = |name: String, value: &Value| {
        targets.entry(name).or_default().push(format!("{selects} {value}"));
    };
    for hook in array(table.get("hook")) {
        add(format!("hook {}", target_name(hook, "program")), hook);
    }
    for webhook in array(table.get("webhook")) {
        add(format!("webhook {}", target_name(webhook, "url")), webhook);
    }
    if let Some(upstream) = table.get("upstream") {
        add(format!("upstream {}", target_name(upstream, "url")), upstream);
    }
    if let Some(agent) = table.get("agent") {
        add(format!("agent {}", text(&agent["socket"])), agent);
    }
    if let Some(state_file) = table.get("state_file") {
        add(format!("state file {}", text(state_file)), state_file);
    }
    if let Some(announce) = table.get("announce") {
        add(format!("announcements for {selects}"), announce);
    }
}

/// The key `name`, if the target has one, otherwise the value of `key`.
fn target_name(target: &Value, key: &str) -> String {
    text(target.get("name").unwrap_or(&target[key]))
}

/// The changed values outside of targets.
fn setting_changes(before: &Map<String, Value>, after: &Map<String, Value>) -> Vec<SettingChange> {
    let (old, new) = (plain_settings(before), plain_settings(after));
    let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
    let changes = keys.filter(|key| old.get(*key) != new.get(*key)).map(|key| SettingChange {
        key: key.clone(),
        from: old.get(key).cloned().unwrap_or_default(),
        to: new.get(key).cloned().unwrap_or_default(),
    });
    changes.collect()
}

/// The values of all tables but the lists of targets and instances, by their key with the table's name.
fn plain_settings(settings: &Map<String, Value>) -> BTreeMap<String, String> {
    let mut plain = BTreeMap::new();
    for (section, table) in settings {
        for (key, value) in table.as_object().into_iter().flatten() {
            if !["hook", "webhook", "upstream"].contains(&key.as_str()) {
                plain.insert(format!("{section}.{key}"), text(value));
            }
        }
    }
    plain
}

fn array(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

/// A value as text: a list with spaces between its elements.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(text).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn changes(before: &str, after: &str) -> ConfigChanges {
        let settings = |text: &str| Config::parse(Path::new("f"), text).unwrap().settings();
        ConfigChanges::between(&settings(before), &settings(after))
    }

    #[test]
    fn targets_are_added_removed_and_changed_by_name() {
        let before = "[[notify]]\nhook = [{ program = \"/bin/a\" }, { program = \"/bin/b\" }]\n\
                      [receiver]\nwebhook = { url = \"http://127.0.0.1/?token=secret\" }\n";
        let after = "[[notify]]\ninstances = \"x*\"\n\
                     hook = [{ program = \"/bin/b\" }, { program = \"/bin/c\" }]\n[receiver]\n";
        let changes = changes(before, after);
        assert_eq!(changes.added, ["hook /bin/c"]);
        assert_eq!(changes.changed, ["hook /bin/b"], "its rule selects other instances");
        assert_eq!(changes.removed[0], "hook /bin/a");
        assert_eq!(changes.removed[1], "webhook 127.0.0.1");
        assert!(changes.settings.is_empty(), "{changes:?}");
    }

    #[test]
    fn the_order_of_rules_does_not_matter() {
        let rule = |program: &str| format!("[[notify]]\nhook = {{ program = \"{program}\" }}\n");
        let (a, b) = (rule("/bin/a"), rule("/bin/b"));
        let changes = changes(&format!("{a}{b}"), &format!("{b}{a}"));
        assert_eq!(changes, ConfigChanges::default());
    }

    #[test]
    fn a_setting_has_its_value_before_and_after() {
        let changes = changes("", "[node]\naudit_every = \"1m\"\n[history]\nkeep_days = 7\n");
        let expected = |key: &str, from: &str, to: &str| SettingChange {
            key: key.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
        };
        let all =
            [expected("history.keep_days", "30", "7"), expected("node.audit_every", "30m", "1m")];
        assert_eq!(changes.settings, all);
        assert_eq!(changes.needs_restart(), ["history.keep_days"]);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The table `[metrics]`, and `[[group]]`: which metrics the node exports, and the groups of instances in them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use glob::Pattern;
use vipwatch_core::InstanceId;

use super::document::{SettingErrors, Table, span};
use super::notify::read_patterns;
use super::sections::{absolute, set};
use crate::discovery::{InstanceConfig, Origin};

/// Which metrics the node exports, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsConfig {
    /// Whether each instance has metrics of its own.
    pub is_per_instance: bool,
    /// The file for the node exporter; `None` for no file.
    pub textfile: Option<PathBuf>,
    /// Time between two writes of the file.
    pub textfile_every: Duration,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self { is_per_instance: true, textfile: None, textfile_every: Duration::from_secs(15) }
    }
}

impl MetricsConfig {
    pub(super) fn read(mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Self {
        let mut config = Self::default();
        set(&mut config.is_per_instance, table.flag("per_instance", errors));
        config.textfile = table.parsed("textfile", errors, |text| {
            let path = absolute(text)?;
            let is_prom = path.extension().is_some_and(|extension| extension == "prom");
            let error =
                || format!("{text:?}: the node exporter reads only files that end in .prom");
            is_prom.then_some(path).ok_or_else(error)
        });
        let every = table.parsed("textfile_every", errors, |text| {
            let every = span(text)?;
            let is_valid = (Duration::from_secs(1)..=Duration::from_hours(1)).contains(&every);
            is_valid.then_some(every).ok_or_else(|| "it is 1s to 1h".to_owned())
        });
        set(&mut config.textfile_every, every);
        table.finish(errors);
        config
    }
}

/// One `[[group]]`: instances of this node that belong together with instances of other nodes.
#[derive(Debug, Clone)]
pub struct InstanceGroup {
    /// The name of the group.
    pub name: Arc<str>,
    /// The name as an id, for example `web~2Ffront`.
    pub id: InstanceId,
    /// Patterns of instance ids.
    pub patterns: Vec<Pattern>,
}

/// All tables `[[group]]`, in the order of the file.
#[derive(Debug, Clone, Default)]
pub struct InstanceGroups(pub Vec<InstanceGroup>);

impl InstanceGroups {
    pub(super) fn read(tables: Vec<Table<'_, '_>>, errors: &mut SettingErrors<'_>) -> Self {
        let mut groups: Vec<InstanceGroup> = Vec::new();
        for table in tables {
            let offset = table.offset;
            let Some(group) = InstanceGroup::read(table, errors) else { continue };
            if groups.iter().any(|other| other.name == group.name) {
                errors.add(offset, format!("the group {:?} is already in this file", group.name));
            }
            groups.push(group);
        }
        Self(groups)
    }

    /// The id of an instance's group on this node: the first table that covers the instance names it.
    pub fn id_of(&self, instance: &InstanceConfig, node: &str) -> Arc<str> {
        instance.group_id(self.group_of(instance).map(|group| &group.id), node)
    }

    /// The first group that covers an instance; `None` if there is none. A Neutron router is a group of its own.
    fn group_of<'g>(&'g self, instance: &'g InstanceConfig) -> Option<&'g InstanceGroup> {
        self.covering(instance).next()
    }

    fn covering<'g>(
        &'g self,
        instance: &'g InstanceConfig,
    ) -> impl Iterator<Item = &'g InstanceGroup> {
        let is_covered = |group: &&InstanceGroup| {
            instance.origin != Origin::Neutron
                && group.patterns.iter().any(|pattern| pattern.matches(instance.id.as_str()))
        };
        self.0.iter().filter(is_covered)
    }

    /// Patterns that match no instance, instances that two groups match, and groups with two instances of this node.
    pub(super) fn warnings(&self, instances: &[Arc<InstanceConfig>]) -> Vec<String> {
        let mut warnings = Vec::new();
        for InstanceGroup { name, patterns, .. } in &self.0 {
            let is_matched = |pattern: &Pattern| {
                instances.iter().any(|instance| {
                    instance.origin != Origin::Neutron && pattern.matches(instance.id.as_str())
                })
            };
            warnings.extend(patterns.iter().filter(|pattern| !is_matched(pattern)).map(
                |pattern| {
                    format!(
                        "[[group]] {name:?}: the pattern {:?} matches no instance",
                        pattern.as_str()
                    )
                },
            ));
        }
        for instance in instances {
            let names: Vec<&str> = self.covering(instance).map(|group| &*group.name).collect();
            if let [first, _, ..] = names.as_slice() {
                let (id, others) = (&instance.id, names[1..].join(", "));
                let text = format!(
                    "{id} is in the group {first:?}, and [[group]] {others} matches it too"
                );
                warnings.push(text);
            }
        }
        warnings.extend(self.0.iter().filter_map(|group| self.shared_warning(group, instances)));
        warnings
    }

    /// A warning if a group has several instances of this node: the sum of the primaries of the group is then wrong.
    fn shared_warning(
        &self,
        group: &InstanceGroup,
        instances: &[Arc<InstanceConfig>],
    ) -> Option<String> {
        let is_member = |instance: &&Arc<InstanceConfig>| {
            self.group_of(instance).is_some_and(|own| own.id == group.id)
        };
        let members: Vec<&str> =
            instances.iter().filter(is_member).map(|instance| instance.id.as_str()).collect();
        let [first, second, ..] = members.as_slice() else { return None };
        let (name, count) = (&group.name, members.len());
        Some(format!(
            "[[group]] {name:?} matches {count} instances of this node, such as {first} and {second}: several of them can \
             be primary at once, and the alerts about two primaries and about none are wrong; give each its own group"
        ))
    }
}

impl InstanceGroup {
    fn read(mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Option<Self> {
        let offset = table.offset;
        let errors_before = errors.list.len();
        let name = table.parsed("name", errors, parse_name);
        let has_patterns = table.take("instances").is_some();
        let patterns = read_patterns(&mut table, errors);
        table.finish(errors);
        if errors.list.len() == errors_before && (name.is_none() || !has_patterns) {
            errors.add(offset, "a group needs name = \"NAME\" and instances = [\"PATTERN\"]");
        }
        let (name, id) = name?;
        Some(Self { name: name.into(), id, patterns })
    }
}

/// The name of a group, and its id. The id is part of the keys in etcd.
fn parse_name(text: &str) -> Result<(String, InstanceId), String> {
    match text {
        "" => Err("it is empty".to_owned()),
        text if text.chars().any(char::is_control) => Err("it has control characters".to_owned()),
        text => {
            let id = InstanceId::of_name(text).map_err(|_error| {
                "expected at most 64 bytes; every character except ASCII letters, digits, \"-\", \"_\" and \".\" counts three \
                 for each of its bytes"
                    .to_owned()
            })?;
            Ok((text.to_owned(), id))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use crate::discovery::example;

    fn parse(text: &str) -> Config {
        Config::parse(Path::new("v.toml"), text).unwrap()
    }

    fn errors(text: &str) -> Vec<String> {
        let errors = Config::parse(Path::new("v.toml"), text).unwrap_err();
        errors.iter().map(|error| error.text.clone()).collect()
    }

    #[test]
    fn metrics_are_of_each_instance_and_in_no_file_unless_configured() {
        let default = parse("").metrics;
        assert_eq!(default, MetricsConfig::default());
        assert!(default.is_per_instance && default.textfile.is_none());
        let text =
            "[metrics]\nper_instance = false\ntextfile = \"/d/v.prom\"\ntextfile_every = \"1m\"\n";
        let set = MetricsConfig {
            is_per_instance: false,
            textfile: Some("/d/v.prom".into()),
            textfile_every: Duration::from_mins(1),
        };
        assert_eq!(parse(text).metrics, set);
    }

    #[test]
    fn wrong_settings_of_the_file_are_named() {
        let not_prom = errors("[metrics]\ntextfile = \"/d/v.txt\"\n");
        assert!(not_prom[0].contains("end in .prom"), "{not_prom:?}");
        assert!(errors("[metrics]\ntextfile = \"v.prom\"\n")[0].contains("absolute"));
        assert_eq!(
            errors("[metrics]\ntextfile_every = \"0s\"\n"),
            ["textfile_every: it is 1s to 1h"]
        );
    }

    #[test]
    fn the_first_group_that_matches_applies_and_the_second_is_a_warning() {
        let text = "[[group]]\nname = \"web\"\ninstances = [\"A*\"]\n\
                    [[group]]\nname = \"all\"\ninstances = \"*\"\n\
                    [[group]]\nname = \"none\"\ninstances = \"x-*\"\n";
        let config = parse(text);
        let mut instance = example();
        assert_eq!(&*config.groups.id_of(&instance, "net-1"), "group:web");
        let warnings = config.warnings(&[Arc::new(instance.clone())]);
        assert_eq!(
            warnings,
            [
                "[[group]] \"none\": the pattern \"x-*\" matches no instance",
                "A is in the group \"web\", and [[group]] all matches it too",
            ]
        );
        instance.origin = Origin::Neutron;
        assert_eq!(&*config.groups.id_of(&instance, "net-1"), "router:A", "a group of its own");
    }

    #[test]
    fn a_group_with_two_instances_of_this_node_is_a_warning() {
        let config = parse(
            "[[group]]\nname = \"web\"\ninstances = \"A\"\n[[group]]\nname = \"all\"\ninstances = [\"B*\"]\n",
        );
        let of = |id: &str| Arc::new(InstanceConfig { id: id.parse().unwrap(), ..example() });
        assert_eq!(config.warnings(&[of("A"), of("B1")]), [""; 0]);
        let warnings = config.warnings(&[of("A"), of("B1"), of("B2"), of("B3")]);
        let expected = "[[group]] \"all\" matches 3 instances of this node, such as B1 and B2: ";
        assert!(warnings.len() == 1 && warnings[0].starts_with(expected), "{warnings:?}");
    }

    #[test]
    fn a_group_has_a_name_that_fits_into_a_key_of_etcd() {
        let table = |name: &str| format!("[[group]]\nname = \"{name}\"\ninstances = \"A\"\n");
        for name in ["a".repeat(64), "\u{fc}".repeat(10), "web front".to_owned()] {
            assert_eq!(parse(&table(&name)).groups.0.len(), 1, "{name}");
        }
        for name in ["a".repeat(65), "\u{fc}".repeat(22), "\u{540d}".repeat(8)] {
            let errors = errors(&table(&name));
            assert!(errors[0].starts_with("name: expected at most 64 bytes"), "{errors:?}");
        }
    }

    #[test]
    fn a_group_needs_a_name_and_instances() {
        let needs = ["a group needs name = \"NAME\" and instances = [\"PATTERN\"]"];
        assert_eq!(errors("[[group]]\nname = \"a\"\n"), needs);
        assert_eq!(errors("[[group]]\ninstances = \"a\"\n"), needs);
        let twice = "[[group]]\nname = \"a\"\ninstances = \"a\"\n[[group]]\nname = \"a\"\ninstances = \"b\"\n";
        assert_eq!(errors(twice), ["the group \"a\" is already in this file"]);
        assert_eq!(errors("[[group]]\nname = \"\"\ninstances = \"a\"\n"), ["name: it is empty"]);
        assert!(
            errors("[group]\nname = \"a\"\ninstances = \"a\"\n")[0].contains("write [[group]]")
        );
    }
}

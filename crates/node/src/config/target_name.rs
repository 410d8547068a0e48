// SPDX-License-Identifier: Apache-2.0
//! The names of targets. A name keeps the deliveries of a target together when its URL, headers or arguments change.
//!
//! A hook without a name has its program and arguments as its name, a webhook or the upstream its host. One target may
//! stand in several rules with the same settings. Two targets with different settings have different names.

use vipwatch_history::DeliverySource;

use super::document::{SettingErrors, Table};
use super::targets::ConfiguredTarget;

/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 128;

/// Names that other deliveries have.
const RESERVED: [&str; 4] = ["announce", "agent", "state file", "ipv6 parameters"];

/// The targets that were read so far.
#[derive(Debug, Default)]
pub(super) struct TargetNames {
    targets: Vec<NamedTarget>,
}

#[derive(Debug)]
struct NamedTarget {
    source: DeliverySource,
    target: ConfiguredTarget,
    line: u32,
}

/// The key `name` of a target: `None` if the table has no such key.
pub(super) struct GivenName(Option<(usize, String)>);

impl GivenName {
    /// Reads the key `name`.
    pub(super) fn read(table: &mut Table<'_, '_>, errors: &mut SettingErrors<'_>) -> Self {
        let offset = table.offset;
        Self(table.parsed("name", errors, parse_name).map(|name| (offset, name)))
    }
}

/// The name of a target without the key `name`.
pub(super) enum DefaultName {
    /// A second hook with the same program and other settings gets a number.
    Program(String),
    /// A second target with the same host, or the same source of its URL, needs the key `name`: what distinguishes the URLs
    /// is secret, and a number would depend on the order of the rules.
    Url(String),
}

fn parse_name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > MAX_NAME_BYTES {
        return Err(format!("it has 1 to {MAX_NAME_BYTES} characters"));
    }
    if text.starts_with('*') || text.chars().any(char::is_control) {
        return Err(format!("{text:?} begins with * or has a control character"));
    }
    if RESERVED.contains(&text) {
        return Err(format!("{text:?} is the name of a part of vipwatch; choose another one"));
    }
    Ok(text.to_owned())
}

impl TargetNames {
    /// Gives a target its name. `with_name` returns the target with the name that it gets as an argument.
    pub(super) fn name<T: Clone + Into<ConfiguredTarget>>(
        &mut self,
        source: DeliverySource,
        given: GivenName,
        table_offset: usize,
        default: DefaultName,
        with_name: impl Fn(String) -> T,
        errors: &mut SettingErrors<'_>,
    ) -> T {
        let line = errors.line(table_offset);
        let (made, offset, remedy) = match (given.0, default) {
            (Some((offset, name)), _) => (with_name(name), offset, "two targets need two names"),
            (None, DefaultName::Url(host)) => {
                (with_name(host), table_offset, "add name = \"NAME\" to one of them")
            }
            (None, DefaultName::Program(program)) => {
                return self.numbered(source, &program, line, with_name);
            }
        };
        let target: ConfiguredTarget = made.clone().into();
        let is_same_name = |other: &&NamedTarget| other.target.name() == target.name();
        match self.targets.iter().find(is_same_name) {
            Some(other) if other.source != source || other.target != target => {
                let text = format!(
                    "the target in line {} has the name {:?}, too; {remedy}",
                    other.line,
                    target.name()
                );
                errors.add(offset, text);
            }
            _ => self.targets.push(NamedTarget { source, target, line }),
        }
        made
    }

    /// A target with the first of the names `default`, `default #2`, `default #3` that is free, or that the same
    /// target has already.
    fn numbered<T: Clone + Into<ConfiguredTarget>>(
        &mut self,
        source: DeliverySource,
        default: &str,
        line: u32,
        with_name: impl Fn(String) -> T,
    ) -> T {
        let mut number = 1;
        loop {
            let made = with_name(match number {
                1 => default.to_owned(),
                number => format!("{default} #{number}"),
            });
            let target: ConfiguredTarget = made.clone().into();
            let mut others = self.targets.iter().filter(|other| other.source == source);
            let other = others.find(|other| other.target.name() == target.name());
            if other.is_none_or(|other| other.target == target) {
                self.targets.push(NamedTarget { source, target, line });
                return made;
            }
            number += 1;
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Reads the sections of the file: `[node]`, `[find]`, `[history]`, `[[instance]]`, and the order of all.
//!
//! `[witness]`, `[web]`, `[cluster]`, `[metrics]`, `[[group]]`, `[[notify]]` and `[receiver]` have modules of their own.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use vipwatch_cluster::key::ClusterName;
use vipwatch_core::keepalived::{FilePosition, VirtualAddress, VrrpInstance};
use vipwatch_core::vrrp::VrrpFamily;
use vipwatch_core::{InstanceId, LinkName, NetnsName};
use vipwatch_linux::account::{AccountKind, id};

use super::document::{SettingError, SettingErrors, Table, span, syntax_message};
use super::target_name::TargetNames;
use super::{ClusterConfig, Config, InstanceGroups, Listen, LogFormat, MetricsConfig};
use super::{ReceiverConfig, Rule, WebConfig, WitnessConfig};
use crate::discovery::{InstanceConfig, Origin};

impl Config {
    /// Parses `text`, the content of `file`. Fails with every error of the text.
    pub fn parse(file: &Path, text: &str) -> Result<Self, Vec<SettingError>> {
        let (config, errors) = Self::parse_lenient(file, text);
        if errors.is_empty() { Ok(config) } else { Err(errors) }
    }

    /// Returns the valid settings of `text` and every error, in the order of the lines.
    pub(super) fn parse_lenient(file: &Path, text: &str) -> (Self, Vec<SettingError>) {
        let mut errors = SettingErrors::new(file, text);
        let (document, syntax_errors) = toml::de::DeTable::parse_recoverable(text);
        for error in syntax_errors {
            let offset = error.span().map_or(0, |span| span.start);
            errors.add(offset, syntax_message(error.message(), text, offset));
        }
        let syntax_error_count = errors.list.len();
        let mut config = Self::default();
        let mut root = Table::new("", document.get_ref(), 0);
        if let Some(table) = root.table("node", &mut errors) {
            config.read_node(table, &mut errors);
        }
        if let Some(table) = root.table("find", &mut errors) {
            config.read_find(table, &mut errors);
        }
        if let Some(table) = root.table("history", &mut errors) {
            config.read_history(table, &mut errors);
        }
        if let Some(table) = root.table("witness", &mut errors) {
            config.witness = WitnessConfig::read(table, &mut errors);
        }
        if let Some(table) = root.table("web", &mut errors) {
            config.web = WebConfig::read(table, &mut errors);
        }
        if let Some(table) = root.table("cluster", &mut errors) {
            config.read_cluster(table, &mut errors);
        }
        if let Some(table) = root.table("metrics", &mut errors) {
            config.metrics = MetricsConfig::read(table, &mut errors);
        }
        let groups = root.table_array("group", &mut errors);
        config.groups = InstanceGroups::read(groups, &mut errors);
        for table in root.table_array("instance", &mut errors) {
            config.read_instance(file, table, &mut errors);
        }
        let mut names = TargetNames::default();
        for table in root.table_array("notify", &mut errors) {
            config.rules.push(Rule::read(table, &mut names, &mut errors));
        }
        if let Some(table) = root.table("receiver", &mut errors) {
            config.read_receiver(table, &mut names, &mut errors);
        }
        root.finish(&mut errors);
        // Errors that follow from a syntax error would only mislead.
        if syntax_error_count > 0 {
            errors.list.truncate(syntax_error_count);
        }
        errors.list.sort_by_key(|error| error.line);
        (config, errors.list)
    }

    fn read_node(&mut self, mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) {
        self.name = table.parsed("name", errors, |name| {
            name.parse::<ClusterName>().map_err(|error| error.to_string())
        });
        set(&mut self.state_dir, table.parsed("state_dir", errors, absolute));
        set(&mut self.socket, table.parsed("socket", errors, absolute));
        self.group = table.parsed("socket_group", errors, |name| {
            id(name, AccountKind::Group).ok_or_else(|| format!("there is no group {name:?}"))
        });
        set(
            &mut self.listen,
            table.parsed("listen", errors, |word| match word {
                "auto" => Ok(Listen::Auto),
                "per-netns" => Ok(Listen::PerNetns),
                _ => Err(format!("it is \"auto\" or \"per-netns\", not {word:?}")),
            }),
        );
        set(
            &mut self.log,
            table.parsed("log", errors, |word| match word {
                "auto" => Ok(LogFormat::Auto),
                "text" => Ok(LogFormat::Text),
                "json" => Ok(LogFormat::Json),
                "journald" => Ok(LogFormat::Journald),
                _ => {
                    Err(format!("it is \"auto\", \"text\", \"json\" or \"journald\", not {word:?}"))
                }
            }),
        );
        set(
            &mut self.audit_every,
            table.parsed("audit_every", errors, |text| {
                let every = span(text)?;
                let is_valid =
                    (Duration::from_secs(10)..=Duration::from_hours(24)).contains(&every);
                is_valid.then_some(every).ok_or_else(|| "it is 10s to 24h".to_owned())
            }),
        );
        let at_once = table.number("hooks_at_once", 1, 256, errors);
        set(&mut self.hooks_at_once, at_once.and_then(|count| usize::try_from(count).ok()));
        table.finish(errors);
    }

    fn read_find(&mut self, mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) {
        set(&mut self.locations.neutron, table.parsed("neutron_state_path", errors, absolute));
        let paths = path_patterns(&mut table, "keepalived_conf", errors);
        set(&mut self.locations.keepalived, paths);
        set(&mut self.locations.exclude, path_patterns(&mut table, "exclude", errors));
        set(&mut self.locations.has_processes, table.flag("processes", errors));
        set(&mut self.locations.has_containers, table.flag("containers", errors));
        self.locations.config_id = table.parsed("config_id", errors, |id| match id {
            "" => Err("it is empty".to_owned()),
            id if id.contains(char::is_whitespace) => Err(format!("{id:?} is not one word")),
            id => Ok(id.to_owned()),
        });
        table.finish(errors);
    }

    fn read_history(&mut self, mut table: Table<'_, '_>, errors: &mut SettingErrors<'_>) {
        let days = table.number("keep_days", 1, 3650, errors);
        set(&mut self.keep.age, days.map(|days| Duration::from_secs(days * 86_400)));
        let transitions = table.number("keep_transitions", 1, u64::MAX, errors);
        set(&mut self.keep.transitions, transitions);
        let megabytes = table.number("keep_megabytes", 1, 1 << 30, errors);
        set(&mut self.keep.bytes, megabytes.map(|count| count << 20));
        let undelivered = table.number("keep_undelivered", 0, u64::MAX, errors);
        set(&mut self.keep.undelivered, undelivered);
        table.finish(errors);
    }

    fn read_instance(
        &mut self,
        file: &Path,
        mut table: Table<'_, '_>,
        errors: &mut SettingErrors<'_>,
    ) {
        let offset = table.offset;
        let parse = |text: &str| text.parse::<InstanceId>().map_err(|error| error.to_string());
        let id = table.parsed("id", errors, parse);
        let is_same = |id: &&InstanceId| self.instances.iter().any(|other| other.id == **id);
        if let Some(id) = id.as_ref().filter(is_same) {
            errors.add(offset, format!("instance {id} is already in this file"));
        }
        let netns = table.parsed("netns", errors, |text| {
            text.parse::<NetnsName>().map_err(|error| error.to_string())
        });
        let link = table.parsed("link", errors, |text| {
            text.parse::<LinkName>().map_err(|error| error.to_string())
        });
        let vrid = table.number("vrid", 1, 255, errors).and_then(|vrid| u8::try_from(vrid).ok());
        let addresses = read_addresses(&mut table, link, errors);
        table.finish(errors);
        let Some(id) = id else {
            return errors.add(offset, "an instance needs an id");
        };
        let Some(first) = addresses.first() else { return };
        let vrrp = VrrpInstance {
            position: FilePosition { file: 0, line: errors.line(offset) },
            name: id.to_string(),
            family: VrrpFamily::of(first.cidr.addr()),
            interface: Some(link.unwrap_or(first.link)),
            vrid,
            down_timer_adverts: 3,
            addresses,
            ..VrrpInstance::default()
        };
        let (origin, file, vrrp) = (Origin::Own, file.into(), Arc::new(vrrp));
        self.instances.push(Arc::new(InstanceConfig { id, origin, netns, file, vrrp }));
    }

    fn read_cluster(&mut self, table: Table<'_, '_>, errors: &mut SettingErrors<'_>) {
        let offset = table.offset;
        self.cluster = ClusterConfig::read(table, errors);
        let name = self.node_name();
        if self.cluster.is_enabled()
            && let Err(error) = name.parse::<ClusterName>()
        {
            let text = format!("the name of the host: {error}; set name in [node]");
            errors.add(offset, text);
        }
    }

    fn read_receiver(
        &mut self,
        table: Table<'_, '_>,
        names: &mut TargetNames,
        errors: &mut SettingErrors<'_>,
    ) {
        let offset = table.offset;
        let receiver = ReceiverConfig::read(table, &self.locations.neutron, names, errors);
        if receiver.socket == self.socket {
            let text = "receiver.socket and node.socket are the same path; monitors need a socket of \
                        their own";
            errors.add(offset, text);
        }
        let mut agents = self.rules.iter().filter_map(|rule| rule.agent.as_ref());
        if agents.any(|agent| agent.socket == receiver.socket) {
            let text = "receiver.socket is also the socket of an agent in [[notify]]: the node would \
                        report to its own receiver";
            errors.add(offset, text);
        }
        self.receiver = Some(receiver);
    }
}

/// Reads `addresses` of an instance; an address without `dev LINK` is on `link`.
fn read_addresses(
    table: &mut Table<'_, '_>,
    link: Option<LinkName>,
    errors: &mut SettingErrors<'_>,
) -> Vec<VirtualAddress> {
    let texts = table.texts("addresses", errors).unwrap_or_default();
    if texts.is_empty() {
        errors.add(table.offset, "an instance needs addresses = [\"IP/LENGTH dev LINK\"]");
    }
    let mut addresses = Vec::new();
    for (offset, text) in &texts {
        match parse_address(text, link) {
            Ok(address) => addresses.push(address),
            Err(error) => errors.add(*offset, format!("addresses: {error}")),
        }
    }
    addresses
}

/// A path or a pattern, or a list of them.
fn path_patterns(
    table: &mut Table<'_, '_>,
    key: &'static str,
    errors: &mut SettingErrors<'_>,
) -> Option<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for (offset, text) in table.texts(key, errors)? {
        let pattern = absolute(text).and_then(|path| {
            let error = |error: glob::PatternError| format!("{text:?}: {}", error.msg);
            glob::Pattern::new(text).map(|_| path).map_err(error)
        });
        match pattern {
            Ok(path) => paths.push(path),
            Err(error) => errors.add(offset, format!("{key}: {error}")),
        }
    }
    Some(paths)
}

/// Overwrites a default with a value from the file, if there is a valid one.
pub(super) fn set<T>(setting: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *setting = value;
    }
}

/// Parses an absolute path.
pub(super) fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let is_valid = path.is_absolute() && !text.contains('\0');
    is_valid.then(|| path.to_owned()).ok_or_else(|| format!("{text:?} is not an absolute path"))
}

/// Parses `IP[/LENGTH] [dev LINK]`.
fn parse_address(text: &str, link: Option<LinkName>) -> Result<VirtualAddress, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (cidr, named) = match *words.as_slice() {
        [cidr] => (cidr, None),
        [cidr, "dev", link] => (cidr, Some(link)),
        _ => return Err(format!("{text:?} is not \"IP/LENGTH dev LINK\"")),
    };
    let link = match named {
        Some(named) => Some(named.parse().map_err(|error| format!("the link {named:?}: {error}"))?),
        None => link,
    };
    let link = link.ok_or_else(|| format!("{text:?}: on which link? Add \"dev LINK\""))?;
    Ok(VirtualAddress { cidr: parse_cidr(cidr)?, link, base: None, is_excluded: false })
}

/// Parses an address with a prefix length. The error contains the allowed prefix lengths: 0 to 32 for IPv4, 0 to 128 for IPv6.
fn parse_cidr(text: &str) -> Result<IpNet, String> {
    if let Some(cidr) = vipwatch_core::parse_vip(text) {
        return Ok(cidr);
    }
    let (ip, length) = text.split_once('/').unwrap_or((text, ""));
    let range = match ip.parse() {
        Ok(IpAddr::V4(_)) => "an IPv4 address has a prefix length of 0 to 32",
        Ok(IpAddr::V6(_)) => "an IPv6 address has a prefix length of 0 to 128",
        Err(_) => return Err(format!("{ip:?} is not an IP address")),
    };
    Err(format!("{text}: {range}, not {length:?}"))
}

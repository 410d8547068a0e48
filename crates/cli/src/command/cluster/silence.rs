// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster silence`: adds, lists and removes silences in etcd, from any machine.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use serde::Serialize;
use vipwatch_api::{ClusterGroupItem, ClusterSilenceItem, Timestamp};
use vipwatch_cluster::etcd::EtcdError;
use vipwatch_cluster::key::SilenceId;
use vipwatch_cluster::reader::EtcdReader;
use vipwatch_cluster::record::{FORMAT, SilenceRecord};

use super::etcd;
use super::selection::is_named;
use super::source::ClusterReader;
use crate::args::{
    ClusterSilenceAdd, ClusterSilenceArgs, ClusterSilenceCommand, EtcdOptions, NodeOptions,
};
use crate::failure::{CommandError, ExitStatus};
use crate::output::{self, Page, Style, TextTable, escape_untrusted};
use vipwatch_core::ErrorChain;

/// The maximum number of silences: nodes keep no more.
const MAX_SILENCES: usize = 1000;

/// The maximum length of a silence.
const MAX_SPAN: Duration = Duration::from_hours(24 * 30);

/// The maximum length of the reason, in characters.
const MAX_REASON: usize = 500;

pub(super) fn run(options: &ClusterSilenceArgs, etcd: &EtcdOptions) -> Result<(), CommandError> {
    match &options.command {
        Some(ClusterSilenceCommand::List { query }) => list(query, etcd),
        Some(ClusterSilenceCommand::Remove { id, query }) => remove(id, query, etcd),
        None => add(&options.add, etcd),
    }
}

/// A list of silences, or the one that was added or removed.
#[derive(Debug, Serialize)]
struct ClusterSilences {
    items: Vec<ClusterSilenceItem>,
    #[serde(skip)]
    change: Option<&'static str>,
}

fn list(query: &NodeOptions, etcd: &EtcdOptions) -> Result<(), CommandError> {
    let items = ClusterReader::open(query, etcd)?.status()?.silences;
    output::show(&query.output, &ClusterSilences { items, change: None });
    Ok(())
}

fn add(options: &ClusterSilenceAdd, etcd: &EtcdOptions) -> Result<(), CommandError> {
    let left = options.span.unwrap_or_default();
    let reason = options.reason.clone().unwrap_or_default();
    check(left, &reason)?;
    let mut reader = open(&options.query, etcd)?;
    if reader.view().silences().count() >= MAX_SILENCES {
        let message = format!("there are {MAX_SILENCES} silences already; remove one first");
        return Err(CommandError::new(ExitStatus::No, message));
    }
    let target = options.target.as_deref().unwrap_or_default();
    let (node, group) = subject(&reader, target)?;
    let now = Timestamp::now();
    let record = SilenceRecord {
        schema: FORMAT,
        id: format!("cli.{:016x}", RandomState::new().hash_one(now)),
        node,
        group,
        reason,
        created_by: std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned()),
        at: now,
        until: now + left,
    };
    reader.add_silence(&record, left).map_err(|error| failed(&error))?;
    let SilenceRecord { id, node, group, until, created_by, reason, .. } = record;
    let items = vec![ClusterSilenceItem { id, node, group, until, created_by, reason }];
    output::show(&options.query.output, &ClusterSilences { items, change: Some("added") });
    Ok(())
}

fn check(left: Duration, reason: &str) -> Result<(), CommandError> {
    let usage = |message: &str| Err(CommandError::new(ExitStatus::Usage, message));
    if left < Duration::from_secs(1) || left > MAX_SPAN {
        return usage("a silence lasts from 1 second to 30 days");
    }
    if reason.trim().is_empty() || reason.chars().count() > MAX_REASON {
        return usage("the reason must have 1 to 500 characters");
    }
    Ok(())
}

fn remove(id: &str, query: &NodeOptions, etcd: &EtcdOptions) -> Result<(), CommandError> {
    let mut reader = open(query, etcd)?;
    let unknown = || {
        CommandError::new(ExitStatus::NotFound, format!("there is no silence {id:?}"))
            .hint("`vipwatch cluster silence list` shows the ids")
    };
    let parsed: SilenceId = id.parse().map_err(|_error| unknown())?;
    let record = {
        let view = reader.view();
        let found = view.silences().find(|(known, _)| **known == parsed);
        found.map(|(_, stored)| stored.record.clone()).ok_or_else(unknown)?
    };
    let is_of_node = reader.view().nodes().any(|node| parsed.is_of_node(node.name));
    if is_of_node {
        let message = format!("the silence {id} was added on its node, which would write it again");
        let (node, number) = id.rsplit_once('.').unwrap_or_default();
        return Err(CommandError::new(ExitStatus::No, message)
            .hint(format!("run `vipwatch silence remove {number}` on {node}")));
    }
    if !reader.remove_silence(&parsed).map_err(|error| failed(&error))? {
        return Err(unknown());
    }
    let SilenceRecord { id, node, group, until, created_by, reason, .. } = record;
    let items = vec![ClusterSilenceItem { id, node, group, until, created_by, reason }];
    output::show(&query.output, &ClusterSilences { items, change: Some("removed") });
    Ok(())
}

/// etcd with the settings of the options, or of the node's configuration.
fn open(query: &NodeOptions, options: &EtcdOptions) -> Result<EtcdReader, CommandError> {
    if !options.etcd.is_empty() {
        return etcd::open(options);
    }
    let settings = query.settings()?;
    settings.check_read()?;
    let cluster = &settings.config.cluster;
    if !cluster.is_enabled() {
        let message = "no cluster is configured on this node";
        return Err(CommandError::new(ExitStatus::NotFound, message)
            .hint("give the address of etcd with --etcd"));
    }
    etcd::open_configured(cluster)
}

/// The node or the group that a text names.
fn subject(
    reader: &EtcdReader,
    text: &str,
) -> Result<(Option<String>, Option<String>), CommandError> {
    let view = reader.view();
    if view.nodes().any(|node| node.name.as_str() == text) {
        return Ok((Some(text.to_owned()), None));
    }
    let groups = vipwatch_cluster::document::groups(&view, reader.basis()).items;
    let named: BTreeSet<&str> = groups
        .iter()
        .filter(|group| is_named(group, text))
        .map(|group: &ClusterGroupItem| group.id.as_str())
        .collect();
    let mut named = named.into_iter();
    match (named.next(), named.next()) {
        (Some(group), None) => Ok((None, Some(group.to_owned()))),
        (None, _) => {
            let message = format!("no node, group, instance or address matches {text:?}");
            Err(CommandError::new(ExitStatus::NotFound, message)
                .hint("`vipwatch cluster nodes` and `vipwatch cluster status` list them"))
        }
        (Some(first), Some(second)) => {
            let message = format!("several groups match {text:?}, such as {first} and {second}");
            Err(CommandError::new(ExitStatus::NotFound, message).hint("use more characters"))
        }
    }
}

fn failed(error: &EtcdError) -> CommandError {
    use vipwatch_cluster::etcd::EtcdErrorKind::{Access, NoSpace, Rejected};
    let code = match error.kind() {
        Access => ExitStatus::NotPermitted,
        NoSpace | Rejected => ExitStatus::No,
        _ => ExitStatus::NotReachable,
    };
    let failure = CommandError::new(code, ErrorChain(error));
    if code == ExitStatus::NotPermitted {
        return failure
            .hint("the user of etcd needs the right to write below /vipwatch/v1/DOMAIN/silence/");
    }
    failure
}

/// What a silence covers.
fn covered(item: &ClusterSilenceItem) -> String {
    match (&item.node, &item.group) {
        (Some(node), None) => format!("node {node}"),
        (Some(node), Some(group)) => format!("{group} on {node}"),
        (None, Some(group)) => group.clone(),
        (None, None) => String::new(),
    }
}

impl Page for ClusterSilences {
    fn text(&self, style: &Style) -> String {
        if let (Some(change), [item]) = (self.change, self.items.as_slice()) {
            let (of, until) = (covered(item), style.time(item.until));
            return escape_untrusted(&format!("{change} silence {}: {of} until {until}", item.id))
                + "\n";
        }
        if self.items.is_empty() {
            return "no silence is in force\n".to_owned();
        }
        let head = ["ID", "COVERS", "UNTIL", "CREATED BY", "REASON"];
        let mut table = TextTable::new(&head).shrink(&[("REASON", 12), ("COVERS", 20)]);
        for item in &self.items {
            table.row(vec![
                item.id.clone(),
                covered(item),
                style.time(item.until),
                item.created_by.clone(),
                item.reason.clone(),
            ]);
        }
        table.text(style)
    }

    fn names(&self) -> Vec<String> {
        self.items.iter().map(|item| item.id.clone()).collect()
    }
}

// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster silence`: adds, lists and removes silences in etcd, from any machine.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use serde::Serialize;
use vipwatch_api::{ClusterGroupItem, ClusterNodeState, ClusterSilenceItem, Timestamp};
use vipwatch_cluster::etcd::EtcdError;
use vipwatch_cluster::key::SilenceId;
use vipwatch_cluster::reader::EtcdReader;
use vipwatch_cluster::record::{FORMAT, SilenceRecord};
use vipwatch_cluster::view::ClusterView;

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
        created_by: user(),
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
    let is_long = reason.chars().count() > MAX_REASON;
    if reason.trim().is_empty() || is_long || reason.contains(char::is_control) {
        return usage("the reason must have 1 to 500 characters, and no control characters");
    }
    Ok(())
}

/// The name of the user, which etcd does not check. Nodes ignore a silence with a long one.
fn user() -> String {
    let name = std::env::var("USER").unwrap_or_else(|_| "unknown".to_owned());
    name.chars().take(64).collect()
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
    if is_kept(&reader.view(), &parsed) {
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

/// Whether a live node has added the silence: it would write it again.
fn is_kept(view: &ClusterView, id: &SilenceId) -> bool {
    let mut live = view.nodes().filter(|node| node.state == ClusterNodeState::Live);
    live.any(|node| id.is_of_node(node.name))
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
pub(super) fn covered(item: &ClusterSilenceItem) -> String {
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

#[cfg(test)]
mod tests {
    use vipwatch_cluster::key::KeySpace;
    use vipwatch_cluster::view::{StoredValue, ViewChange};

    use super::*;

    #[test]
    fn only_a_live_node_keeps_its_silence() {
        let mut view = ClusterView::new(KeySpace::new(&"default".parse().unwrap()));
        let at = "2026-01-01T00:00:00Z";
        let member = serde_json::json!({
            "schema": 1, "node": "net-1", "epoch": "x", "state": "running", "lease": 1, "at": at,
        });
        let node = serde_json::json!({
            "schema": 1, "node": "net-1", "epoch": "x", "process": "p", "version": "1", "heartbeat": 1, "seen": 1,
            "seq": 1, "instances": 1, "at": at, "started": at, "heartbeat_ms": 5000, "lease_s": 15,
        });
        let put = |kind: &str, value: &serde_json::Value| {
            ViewChange::Put(StoredValue {
                key: format!("/vipwatch/v1/default/{kind}/net-1"),
                value: value.to_string().into_bytes(),
                mod_revision: 1,
                create_revision: 1,
                lease: 1,
            })
        };
        let kept = |view: &ClusterView, id: &str| is_kept(view, &id.parse().unwrap());
        view.apply(put("member", &member));
        assert!(!kept(&view, "net-1.3"), "the node is lost");
        view.apply(put("node", &node));
        assert!(kept(&view, "net-1.3") && !kept(&view, "net-2.3") && !kept(&view, "cli.x"));
    }

    #[test]
    fn a_reason_has_no_control_characters() {
        let hour = Duration::from_hours(1);
        assert!(check(hour, "kernel update").is_ok());
        assert!(check(hour, "x\u{1b}[2J").is_err());
    }
}

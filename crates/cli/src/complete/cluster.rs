// SPDX-License-Identifier: Apache-2.0
//! Completion of groups and nodes of the cluster: from etcd if the command line or the environment names it, else from the
//! node, and without a node from the etcd in its configuration.

use std::ffi::{OsStr, OsString};

use clap::{CommandFactory, FromArgMatches};
use clap_complete::CompletionCandidate;
use vipwatch_api::ClusterBasis;
use vipwatch_api::client::{Client, ClientError};
use vipwatch_cluster::document;
use vipwatch_cluster::etcd::EtcdSettings;
use vipwatch_cluster::key::ClusterName;
use vipwatch_cluster::reader::read_once;
use vipwatch_cluster::view::ClusterView;

use super::{COMPLETION_TIMEOUT, beginning_with, client, node_config};
use crate::args::{CliArgs, EtcdOptions};
use crate::command::cluster::etcd_settings;

/// The ids of the cluster's groups that begin with the typed text. A shell may treat `:` as the end of a word, so the part
/// after the kind of the group is offered too, if the typed text begins like it.
pub(crate) fn cluster_groups(typed: &OsStr) -> Vec<CompletionCandidate> {
    let groups = read(Client::cluster_groups, document::groups).map(|list| list.items);
    let ids = groups.unwrap_or_default().into_iter().flat_map(|group| {
        let name = group.id.split_once(':').map(|(_, name)| name.to_owned());
        std::iter::once(group.id).chain(name)
    });
    let is_empty = typed.is_empty();
    let ids = ids.filter(|id| !is_empty || id.contains(':'));
    beginning_with(typed, ids)
}

/// The names of the cluster's nodes that begin with the typed text.
pub(crate) fn cluster_nodes(typed: &OsStr) -> Vec<CompletionCandidate> {
    let nodes = read(Client::cluster_nodes, document::nodes).map(|list| list.items);
    beginning_with(typed, nodes.unwrap_or_default().into_iter().map(|node| node.node))
}

/// A document about the cluster; `None` if no source answers in time.
fn read<T>(
    from_node: impl FnOnce(&Client) -> Result<T, ClientError>,
    from_view: impl FnOnce(&ClusterView, ClusterBasis) -> T,
) -> Option<T> {
    let options = etcd_options(std::env::args_os()).or_environment();
    if !options.etcd.is_empty() {
        let (settings, domain) = etcd_settings(&options).ok()?;
        return read_etcd(settings, domain, from_view);
    }
    let config = node_config();
    match from_node(&client(&config)) {
        Ok(document) => Some(document),
        Err(ClientError::NotListening(_)) if config.cluster.is_enabled() => {
            let settings = config.cluster.etcd_settings().ok()?;
            read_etcd(settings, config.cluster.domain, from_view)
        }
        Err(_) => None,
    }
}

fn read_etcd<T>(
    settings: EtcdSettings,
    domain: ClusterName,
    make: impl FnOnce(&ClusterView, ClusterBasis) -> T,
) -> Option<T> {
    let settings = EtcdSettings { timeout: COMPLETION_TIMEOUT, ..settings };
    let (view, basis) = read_once(settings, domain).ok()?;
    Some(make(&view, basis))
}

/// The options of etcd in the command line that the shell completes. The shell calls `vipwatch -- WORD…`.
fn etcd_options(args: impl Iterator<Item = OsString>) -> EtcdOptions {
    let words = joined(args.skip_while(|arg| arg != "--").skip(1));
    let parsed = CliArgs::command().ignore_errors(true).try_get_matches_from(words);
    let mut options = EtcdOptions::default();
    let mut level = parsed.as_ref().ok();
    while let Some(matches) = level {
        if matches.try_contains_id("etcd").is_ok()
            && let Ok(here) = EtcdOptions::from_arg_matches(matches)
        {
            options = here.or(&options);
        }
        level = matches.subcommand().map(|(_, matches)| matches);
    }
    options
}

/// bash treats `:` and `=` as words: `http`, `:`, `//10.0.0.1`. This joins them with their neighbours.
fn joined(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut all: Vec<OsString> = Vec::new();
    let mut is_open = false;
    for word in words {
        let is_break =
            !word.is_empty() && word.as_encoded_bytes().iter().all(|b| b":=".contains(b));
        match all.last_mut() {
            Some(last) if is_break || is_open => last.push(&word),
            _ => all.push(word),
        }
        is_open = is_break;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> EtcdOptions {
        etcd_options(["vipwatch", "--"].into_iter().chain(line.split(' ')).map(OsString::from))
    }

    #[test]
    fn the_options_of_etcd_are_found_in_an_incomplete_command_line() {
        let url = vec!["http://127.0.0.1:2379".to_owned()];
        for line in [
            "vipwatch --etcd http://127.0.0.1:2379 cluster status --node ne",
            "vipwatch cluster --etcd=http://127.0.0.1:2379 status --node ",
            "vipwatch cluster status --etcd http://127.0.0.1:2379 --state bogus --node",
            "vipwatch --etcd http : //127.0.0.1 : 2379 cluster nodes ne",
            "vipwatch --etcd = http : //127.0.0.1 : 2379 cluster nodes ne",
        ] {
            assert_eq!(options(line).etcd, url, "{line}");
        }
        let all =
            options("vipwatch --etcd https://a:1 --domain prod cluster --etcd-ca ca.pem nodes ");
        assert_eq!((all.domain.as_deref(), all.etcd_ca), (Some("prod"), Some("ca.pem".into())));
        assert_eq!(options("vipwatch cluster status --node "), EtcdOptions::default());
    }
}

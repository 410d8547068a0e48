// SPDX-License-Identifier: Apache-2.0
//! Shell completion: ids of instances, from the node, or from keepalived's files if no node answers; nodes and groups of
//! the cluster.

mod cluster;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::CompletionCandidate;
use vipwatch_api::InstanceFilter;
use vipwatch_api::client::Client;
use vipwatch_node::Config;
use vipwatch_node::discovery::discover;

pub(crate) use self::cluster::{cluster_groups, cluster_nodes};

/// Maximum time to wait for the node; the user waits for the completion.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(1);

/// The ids of instances that begin with the typed text.
pub(crate) fn live_ids(typed: &OsStr) -> Vec<CompletionCandidate> {
    let config = node_config();
    let ids: Vec<String> = match client(&config).instances(&InstanceFilter::default()) {
        Ok(list) => list.items.into_iter().map(|instance| instance.id).collect(),
        Err(_) => discover(&config.locations)
            .instances
            .iter()
            .map(|instance| instance.id.to_string())
            .collect(),
    };
    beginning_with(typed, ids)
}

fn beginning_with(
    typed: &OsStr,
    texts: impl IntoIterator<Item = String>,
) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let matching = texts.into_iter().filter(|text| text.starts_with(&*typed));
    matching.map(CompletionCandidate::new).collect()
}

/// The configuration of the node, with the socket that the environment names.
fn node_config() -> Config {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let loaded = Config::load_lenient(variable("VIPWATCH_CONFIG").as_deref());
    let mut config = loaded.map_or_else(|_error| Config::default(), |(config, _errors)| config);
    if let Some(socket) = variable("VIPWATCH_SOCKET") {
        config.socket = socket;
    }
    config
}

fn client(config: &Config) -> Client {
    Client::new(&config.socket).with_timeout(COMPLETION_TIMEOUT)
}

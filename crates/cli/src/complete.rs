// SPDX-License-Identifier: Apache-2.0
//! Shell completion of instance ids, from the node, or from keepalived's files if no node answers.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

use clap_complete::CompletionCandidate;
use vipwatch_api::InstanceFilter;
use vipwatch_api::client::Client;
use vipwatch_node::Config;
use vipwatch_node::discovery::discover;

/// Maximum time to wait for the node; the user waits for the completion.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(1);

/// The ids that begin with the typed text.
pub(crate) fn live_ids(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let loaded = Config::load_lenient(variable("VIPWATCH_CONFIG").as_deref());
    let config = loaded.map_or_else(|_error| Config::default(), |(config, _errors)| config);
    let socket = variable("VIPWATCH_SOCKET").unwrap_or(config.socket);
    let client = Client::new(socket).with_timeout(COMPLETION_TIMEOUT);
    let ids: Vec<String> = match client.instances(&InstanceFilter::default()) {
        Ok(list) => list.items.into_iter().map(|instance| instance.id).collect(),
        Err(_) => discover(&config.locations)
            .instances
            .iter()
            .map(|instance| instance.id.to_string())
            .collect(),
    };
    let matching = ids.into_iter().filter(|id| id.starts_with(&*typed));
    matching.map(CompletionCandidate::new).collect()
}

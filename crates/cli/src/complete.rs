//! Shell completion of instance ids, from the node, or from keepalived's files if no node runs.

use std::ffi::OsStr;

use clap_complete::CompletionCandidate;
use serde_json::{Value, json};
use vipwatch_node::discovery::discover;
use vipwatch_node::{Config, query_client};

/// The ids that begin with the typed text.
pub(crate) fn live_ids(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    let variable = |name: &str| std::env::var_os(name).map(std::path::PathBuf::from);
    let loaded = Config::load_lenient(variable("VIPWATCH_CONFIG").as_deref());
    let config = loaded.map_or_else(|_error| Config::default(), |(config, _errors)| config);
    let socket = variable("VIPWATCH_SOCKET").unwrap_or(config.socket);
    let ids: Vec<String> = match query_client::ask(&socket, &json!({ "ask": "ids" })) {
        Ok(answer) => {
            let ids = answer["ids"].as_array().into_iter().flatten();
            ids.filter_map(Value::as_str).map(str::to_owned).collect()
        }
        Err(_) => discover(&config.locations)
            .instances
            .iter()
            .map(|instance| instance.id.to_string())
            .collect(),
    };
    let matching = ids.into_iter().filter(|id| id.starts_with(&*typed));
    matching.map(CompletionCandidate::new).collect()
}

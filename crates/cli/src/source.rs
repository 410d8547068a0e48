// SPDX-License-Identifier: Apache-2.0
//! The source of an answer: the node, or, if no node is listening, the files and the kernel.

use std::time::Instant;

use vipwatch_api::ProblemDocument;
use vipwatch_api::client::{Client, ClientError};
use vipwatch_linux::netns::NetnsId;
use vipwatch_node::Config;

use crate::args::{NodeOptions, OutputOptions, QueryOptions};
use crate::failure::{CommandError, note, warn};
use crate::kernel::KernelSource;

/// The directory with the names of network namespaces.
const NETNS_DIRECTORY: &str = "/run/netns";

/// The answer of the node, or of the kernel if no node is listening, or if the options ask for it. A node that does not
/// answer in time is an error: it may be alive, and its state may differ from the kernel's.
pub(crate) fn query<T>(
    options: &QueryOptions,
    from_node: impl FnOnce(&Client) -> Result<T, ClientError>,
    from_kernel: impl FnOnce(&KernelSource) -> Result<T, ProblemDocument>,
) -> Result<T, CommandError> {
    let source = |_: &Config| format!("answered from the kernel; {}", namespace_text());
    query_or(options, source, from_node, from_kernel)
}

/// As [`query`], for an answer that comes from the history. Without a node, its file is read.
pub(crate) fn query_history<T>(
    options: &QueryOptions,
    from_node: impl FnOnce(&Client) -> Result<T, ClientError>,
    from_file: impl FnOnce(&KernelSource) -> Result<T, ProblemDocument>,
) -> Result<T, CommandError> {
    let source =
        |config: &Config| format!("answered from the history in {}", config.state_dir.display());
    query_or(options, source, from_node, from_file)
}

/// The answer of the node, or of another source, which `source_text` describes for the user.
fn query_or<T>(
    options: &QueryOptions,
    source_text: impl Fn(&Config) -> String,
    from_node: impl FnOnce(&Client) -> Result<T, ClientError>,
    from_source: impl FnOnce(&KernelSource) -> Result<T, ProblemDocument>,
) -> Result<T, CommandError> {
    let output = options.output();
    let read = |config| {
        let answer = from_source(&KernelSource::new(config));
        answer.map_err(|problem| CommandError::from(&problem))
    };
    if options.is_direct() {
        let config = options.settings()?;
        note(output, &source_text(&config));
        return read(config);
    }
    let node = options.node.settings()?;
    let client = Client::new(&node.config.socket);
    match timed(output, &client, from_node) {
        Ok(answer) => Ok(answer),
        Err(error @ ClientError::NotListening(_)) => {
            node.check_read()?;
            // Also with --quiet: another source than the node answers.
            warn(&format!("{error}; {}", source_text(&node.config)));
            read(node.config)
        }
        Err(error) => Err(error.into()),
    }
}

/// The answer of the node. It is an error if no node is listening.
pub(crate) fn query_node<T>(
    options: &NodeOptions,
    from_node: impl FnOnce(&Client) -> Result<T, ClientError>,
) -> Result<T, CommandError> {
    let node = options.settings()?;
    let client = Client::new(&node.config.socket);
    match timed(&options.output, &client, from_node) {
        Err(error @ ClientError::NotListening(_)) => {
            node.check_read()?;
            Err(error.into())
        }
        answer => answer.map_err(CommandError::from),
    }
}

/// Queries the node, and prints the time of the answer with `--verbose`.
pub(crate) fn timed<T>(
    options: &OutputOptions,
    client: &Client,
    from_node: impl FnOnce(&Client) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let begin = Instant::now();
    let answer = from_node(client)?;
    if options.verbose {
        let millis = begin.elapsed().as_millis();
        note(options, &format!("answered on {} in {millis} ms", client.socket().display()));
    }
    Ok(answer)
}

/// Which namespace stands for the node's own one: the command may run in another namespace than the node.
pub(crate) fn namespace_text() -> String {
    format!("instances without a namespace are read in that of this command: {}", current_netns())
}

/// The network namespace of this process: its name in [`NETNS_DIRECTORY`], `host` for the one of process 1, or the
/// kernel's number.
fn current_netns() -> String {
    let names = std::fs::read_dir(NETNS_DIRECTORY).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok()?.parse().ok());
    let current = NetnsId::current().ok();
    for name in names {
        if current.is_some() && NetnsId::of_name(&name).is_ok_and(|id| id == current) {
            return name.to_string();
        }
    }
    let link = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    match (link("self"), link("1")) {
        (Some(own), Some(first)) if own == first => "host".to_owned(),
        (Some(own), _) => own.display().to_string(),
        (None, _) => "unknown".to_owned(),
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The arguments of `vipwatch drain-check`.

use std::time::Duration;

use clap::Args as Arguments;
use vipwatch_node::config::span;

use super::NodeOptions;

/// `vipwatch drain-check`.
#[derive(Debug, Arguments)]
pub(crate) struct DrainCheckArgs {
    /// Ask whether taking this node down would be a clean failover, instead of whether anything is still here
    #[arg(long = "if", conflicts_with = "wait")]
    pub(crate) is_if: bool,
    /// Wait up to this time until the node is drained: 90s, 5m or 2h; progress is printed to standard error
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) wait: Option<Duration>,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster drain-check NODE`: answers for another node, from the records of the cluster.

use vipwatch_api::{DrainQuestion, Timestamp, drain_check_of_cluster};

use super::basis::check_configured;
use super::selection::check_nodes;
use super::source::ClusterReader;
use crate::args::{ClusterDrainCheckArgs, EtcdOptions};
use crate::command::drain_check::result;
use crate::failure::CommandError;
use crate::output;

pub(super) fn run(options: &ClusterDrainCheckArgs, etcd: &EtcdOptions) -> Result<(), CommandError> {
    let reader = ClusterReader::open(&options.query, etcd)?;
    let groups = reader.groups()?;
    check_configured(&groups.basis)?;
    let nodes = reader.nodes()?.items;
    check_nodes([&options.name], &nodes)?;
    let Some(node) = nodes.iter().find(|node| node.node == options.name) else { return Ok(()) };
    let question = if options.is_if { DrainQuestion::If } else { DrainQuestion::Now };
    let check = drain_check_of_cluster(question, &groups, node, Timestamp::now());
    output::show(&options.query.output, &check);
    result(&check)
}

// SPDX-License-Identifier: Apache-2.0
//! `vipwatch cluster nodes`: lists the nodes of the cluster.

use vipwatch_api::{ClusterNodeItem, ClusterNodeList, ClusterNodeState};

use super::basis::{check_current, push_basis, push_warning};
use super::selection::check_nodes;
use super::source::ClusterReader;
use crate::args::{ClusterNodesArgs, EtcdOptions};
use crate::failure::{CommandError, ExitStatus};
use crate::output::{self, Page, Style, TextTable, push_line};

pub(super) fn run(options: &ClusterNodesArgs, etcd: &EtcdOptions) -> Result<(), CommandError> {
    let mut list = ClusterReader::open(&options.query, etcd)?.nodes()?;
    check_nodes(options.names.iter().chain(&options.node), &list.items)?;
    list.items.retain(|node| is_selected(node, options));
    output::show(&options.query.output, &list);
    let Some(expected) = options.expect else { return Ok(()) };
    check_expectation(&list.items, expected)?;
    check_current(&list.basis)
}

fn is_selected(node: &ClusterNodeItem, options: &ClusterNodesArgs) -> bool {
    let mut names = options.names.iter().chain(&options.node).peekable();
    let is_named = names.peek().is_none() || names.any(|name| *name == node.node);
    is_named && (options.state.is_empty() || options.state.contains(&node.state))
}

/// An error if a state differs from `--expect`.
fn check_expectation(
    nodes: &[ClusterNodeItem],
    expected: ClusterNodeState,
) -> Result<(), CommandError> {
    let others = nodes.iter().filter(|node| node.state != expected).count();
    let message = match (nodes.len(), others) {
        (0, _) => "there is no node to compare with --expect".to_owned(),
        (_, 0) => return Ok(()),
        (all, others) => format!("{others} of {all} are not {}", expected.word()),
    };
    Err(CommandError::new(ExitStatus::No, message))
}

impl Page for ClusterNodeList {
    fn text(&self, style: &Style) -> String {
        let mut page = String::new();
        push_warning(&mut page, &self.basis, style);
        if self.items.is_empty() {
            push_line(&mut page, "no node matches");
        } else {
            page.push_str(&table(&self.items, style));
        }
        push_basis(&mut page, &self.basis);
        page
    }

    fn names(&self) -> Vec<String> {
        self.items.iter().map(|node| node.node.clone()).collect()
    }
}

fn table(nodes: &[ClusterNodeItem], style: &Style) -> String {
    let head =
        ["NODE", "STATE", "LAST SEEN", "VERSION", "INSTANCES", "PRIMARY", "BACKUP", "REPORTER"];
    let wide = ["EPOCH", "HEARTBEAT"];
    let mut table = if style.is_wide {
        TextTable::new(&[head.as_slice(), &wide].concat())
    } else {
        TextTable::new(&head).shrink(&[("NODE", 20)])
    };
    for node in nodes {
        // The time is that of the node's clock, which may differ from that of this machine.
        let seen = match node.state {
            ClusterNodeState::Live | ClusterNodeState::Stopped if style.is_wide => {
                style.time(node.at)
            }
            ClusterNodeState::Live | ClusterNodeState::Stopped => style.age(node.at),
            // The heartbeats of a lost node are no longer in etcd.
            ClusterNodeState::Lost => String::new(),
        };
        let mut row = vec![
            node.node.clone(),
            node.state.word().to_owned(),
            seen,
            node.version.clone().unwrap_or_default(),
            node.instances.to_string(),
            node.primaries.to_string(),
            node.backups.to_string(),
            if node.is_reporter { "yes".to_owned() } else { String::new() },
        ];
        if style.is_wide {
            let heartbeat = node.heartbeat.map(|number| number.to_string());
            row.extend([node.epoch.clone(), heartbeat.unwrap_or_default()]);
        }
        table.row(row);
    }
    table.text(style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::cluster;

    #[test]
    fn the_table_has_state_version_and_numbers() {
        insta::assert_snapshot!(cluster::nodes().text(&Style::of_tests()));
    }

    #[test]
    fn the_wide_table_has_epoch_and_heartbeat() {
        insta::assert_snapshot!(
            cluster::nodes().text(&Style { is_wide: true, ..Style::of_tests() })
        );
    }

    #[test]
    fn an_expectation_counts_the_nodes_that_differ() {
        let nodes = cluster::nodes().items;
        let error = check_expectation(&nodes, ClusterNodeState::Live).unwrap_err();
        assert_eq!(error.message, "1 of 3 are not live");
        assert!(check_expectation(&nodes[..2], ClusterNodeState::Live).is_ok());
    }
}

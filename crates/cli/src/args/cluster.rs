// SPDX-License-Identifier: Apache-2.0
//! The arguments of `vipwatch cluster`.

use std::net::IpAddr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as Arguments, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use vipwatch_api::{ClusterNodeState, GroupState, RoleKind, Severity, Timestamp};
use vipwatch_node::config::span;

use super::query::{role, severity};
use super::time::time;
use super::{EtcdOptions, NodeOptions};
use crate::complete::{cluster_groups, cluster_nodes};

/// The text of `vipwatch cluster --help`.
pub(super) const ABOUT: &str = "\
Show the whole cluster: which node is primary for each group of instances

A group is the set of instances on several nodes that share virtual addresses. The node answers from the view of the \
cluster that it keeps ([cluster] in its configuration). With --etcd, the command reads etcd itself and needs no node. \
If no node is listening, it reads the etcd in the configuration.

Every answer names its source, and says since when it is stale if the node has lost etcd.

Exit codes:
  0  success
  1  --expect is not met, or there are findings
  4  not found: no cluster is configured, or a name is not known
  5  cannot know: the node has lost etcd, or has not read it yet
  6  not reachable: no node or no etcd answers";

/// `vipwatch cluster`.
#[derive(Debug, Arguments)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    pub(crate) etcd: EtcdOptions,
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

/// The subcommands of `vipwatch cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Show the state of each group, its primary, its backups and its addresses
    #[command(after_help = "Examples:
  vipwatch cluster status                            # all groups, the most serious first
  vipwatch cluster status 192.0.2.10                 # which node is primary for this address
  vipwatch cluster status --expect one-primary -q    # exit code 0 if each group has one primary")]
    Status(ClusterStatusArgs),
    /// Print every change of a role, of a finding and of a node as it happens
    #[command(after_help = "Examples:
  vipwatch cluster watch                             # the current state, then every change
  vipwatch cluster watch 192.0.2.10 -n 1             # wait for one change
  vipwatch cluster watch --json                      # one JSON document per line")]
    Watch(ClusterWatchArgs),
    /// List the open findings of the cluster, with hints
    #[command(after_help = "Examples:
  vipwatch cluster findings
  vipwatch cluster findings -o wide                  # with the evidence
  vipwatch cluster findings -q --fail-on critical      # exit code 1 only if traffic is affected")]
    Findings(ClusterFindingsArgs),
    /// Show the last transitions of all nodes, and the findings, in the order of time
    #[command(after_help = "Examples:
  vipwatch cluster history --since 2h
  vipwatch cluster history 192.0.2.10")]
    History(ClusterHistoryArgs),
    /// Show how the primaries are distributed over the nodes, and which groups could move
    #[command(after_help = "Examples:
  vipwatch cluster balance
  vipwatch cluster balance -o json | jq '.items[] | {node, primaries, difference}'")]
    Balance(ClusterBalanceArgs),
    /// Keep hooks and webhooks from being notified about a node or a group during maintenance
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:
  vipwatch cluster silence net-3 --for 1h --reason 'kernel update'
  vipwatch cluster silence list
  vipwatch cluster silence remove cli.5f3a9c21"
    )]
    Silence(ClusterSilenceArgs),
    /// Check whether anything is still on a node, or whether it could be taken down
    #[command(after_help = "Examples:
  vipwatch cluster drain-check net-3                 # 0: nothing is on net-3 any more
  vipwatch cluster drain-check net-3 --if            # 0: other nodes would take over, instance by instance
  vipwatch cluster --etcd https://10.0.0.1:2379 drain-check net-3 --if")]
    DrainCheck(ClusterDrainCheckArgs),
    /// List the nodes, with their state, version and number of instances
    #[command(after_help = "Examples:
  vipwatch cluster nodes
  vipwatch cluster nodes --expect live -q            # exit code 0 if all nodes are alive")]
    Nodes(ClusterNodesArgs),
}

impl ClusterCommand {
    /// The etcd options of the subcommand.
    pub(crate) fn etcd(&self) -> &EtcdOptions {
        match self {
            Self::Status(options) => &options.etcd,
            Self::Watch(options) => &options.etcd,
            Self::Findings(options) => &options.etcd,
            Self::History(options) => &options.etcd,
            Self::Balance(options) => &options.etcd,
            Self::DrainCheck(options) => &options.etcd,
            Self::Silence(options) => &options.etcd,
            Self::Nodes(options) => &options.etcd,
        }
    }
}

/// Options that select groups. A group must match all of them; the values of one option are alternatives.
#[derive(Debug, Clone, Default, Arguments)]
pub(crate) struct GroupSelection {
    /// Show only these groups: an id, the beginning of ids, the id of an instance, or an address
    #[arg(value_name = "GROUP|ADDRESS", add = ArgValueCompleter::new(cluster_groups))]
    pub(crate) names: Vec<String>,
    /// Show only this group: its id, the beginning of ids, or the id of an instance; can be repeated
    #[arg(long, value_name = "GROUP", add = ArgValueCompleter::new(cluster_groups))]
    pub(crate) group: Vec<String>,
    /// Show only the groups with this virtual address; can be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) address: Vec<IpAddr>,
    /// Show only groups with an instance on this node; can be repeated
    #[arg(long, value_name = "NODE", value_delimiter = ',', add = ArgValueCompleter::new(cluster_nodes))]
    pub(crate) node: Vec<String>,
    /// Show only groups in this state; can be repeated
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = group_state())]
    pub(crate) state: Vec<GroupState>,
}

/// Parses the name of a group's state.
fn group_state() -> impl TypedValueParser<Value = GroupState> {
    let words = PossibleValuesParser::new(GroupState::ALL.map(GroupState::word));
    // The parser accepts words of states only.
    words.map(|word| GroupState::from_word(&word).unwrap_or(GroupState::Unknown))
}

/// Parses the name of a node's state.
fn node_state() -> impl TypedValueParser<Value = ClusterNodeState> {
    let words = PossibleValuesParser::new(ClusterNodeState::ALL.map(ClusterNodeState::word));
    // The parser accepts words of states only.
    words.map(|word| ClusterNodeState::from_word(&word).unwrap_or(ClusterNodeState::Lost))
}

/// `vipwatch cluster status`.
#[derive(Debug, Arguments)]
pub(crate) struct ClusterStatusArgs {
    #[command(flatten)]
    pub(crate) selection: GroupSelection,
    /// Exit with 1 unless every group shown is in this state
    #[arg(long, value_name = "STATE", value_parser = group_state())]
    pub(crate) expect: Option<GroupState>,
    #[command(flatten)]
    pub(crate) etcd: EtcdOptions,
    #[command(flatten)]
    pub(crate) query: NodeOptions,
}

/// `vipwatch cluster watch`.
#[derive(Debug, Arguments)]
pub(crate) struct ClusterWatchArgs {
    #[command(flatten)]
    pub(crate) selection: GroupSelection,
    /// Exit after this number of changes; the state at the beginning does not count
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) etcd: EtcdOptions,
    #[command(flatten)]
    pub(crate) query: NodeOptions,
}

/// `vipwatch cluster findings`.
#[derive(Debug, Arguments)]
pub(crate) struct ClusterFindingsArgs {
    #[command(flatten)]
    pub(crate) selection: GroupSelection,
    /// Exit with 1 if there is a finding of this severity or a more serious one
    #[arg(long, value_name = "SEVERITY", value_parser = severity(), default_value = "warning")]
    pub(crate) fail_on: Severity,
    #[command(flatten)]
    pub(crate) etcd: EtcdOptions,
    #[command(flatten)]
    pub(crate) query: NodeOptions,
}

/// `vipwatch cluster history`.
#[derive(Debug, Arguments)]
pub(crate) struct ClusterHistoryArgs {
    #[command(flatten)]
    pub(crate) selection: GroupSelection,
    /// Show events from this time on: 90s, 15m, 2h or 7d ago, today, yesterday, '2026-11-16 15:00', or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) since: Option<Timestamp>,
    /// Show events before this time, in the same forms
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) until: Option<Timestamp>,
    /// Show only transitions to this role; can be repeated
    #[arg(long, value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    pub(crate) role: Vec<RoleKind>,
    /// Show at most this number of events, the latest ones
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) etcd: EtcdOptions,
    #[command(flatten)]
    pub(crate) query: NodeOptions,
}

/// `vipwatch cluster balance`.
#[derive(Debug, Arguments)]
pub(crate) struct ClusterBalanceArgs {
    #[command(flatten)]
    pub(crate) etcd: EtcdOptions,
    #[command(flatten)]
    pub(crate) query: NodeOptions,
}

/// `vipwatch cluster nodes`.
#[derive(Debug, Arguments)]
pub(crate) struct ClusterNodesArgs {
    /// Show only these nodes
    #[arg(value_name = "NODE", add = ArgValueCompleter::new(cluster_nodes))]
    pub(crate) names: Vec<String>,
    /// Show only this node; can be repeated
    #[arg(long, value_name = "NODE", value_delimiter = ',', add = ArgValueCompleter::new(cluster_nodes))]
    pub(crate) node: Vec<String>,
    /// Show only nodes in this state; can be repeated
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = node_state())]
    pub(crate) state: Vec<ClusterNodeState>,
    /// Exit with 1 unless every node shown is in this state
    #[arg(long, value_name = "STATE", value_parser = node_state())]
    pub(crate) expect: Option<ClusterNodeState>,
    #[command(flatten)]
    pub(crate) etcd: EtcdOptions,
    #[command(flatten)]
    pub(crate) query: NodeOptions,
}

/// `vipwatch cluster drain-check`.
#[derive(Debug, Arguments)]
pub(crate) struct ClusterDrainCheckArgs {
    /// The name of the node, as `vipwatch cluster nodes` shows it
    #[arg(value_name = "NODE", add = ArgValueCompleter::new(cluster_nodes))]
    pub(crate) name: String,
    /// Ask whether taking the node down would be a clean failover, instead of whether anything is still there
    #[arg(long = "if")]
    pub(crate) is_if: bool,
    #[command(flatten)]
    pub(crate) etcd: EtcdOptions,
    #[command(flatten)]
    pub(crate) query: NodeOptions,
}

/// `vipwatch cluster silence`.
#[derive(Debug, Arguments)]
pub(crate) struct ClusterSilenceArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ClusterSilenceCommand>,
    #[command(flatten)]
    pub(crate) add: ClusterSilenceAdd,
    #[command(flatten)]
    pub(crate) etcd: EtcdOptions,
}

/// The subcommands of `vipwatch cluster silence`; without one, it adds a silence.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterSilenceCommand {
    /// List the silences in force, with what they cover, by whom and until when
    #[command(after_help = "Examples:
  vipwatch cluster silence list
  vipwatch cluster silence list -o json")]
    List {
        #[command(flatten)]
        query: NodeOptions,
    },
    /// End a silence before its time
    #[command(after_help = "Examples:
  vipwatch cluster silence remove cli.5f3a9c21
  vipwatch cluster silence remove cli.5f3a9c21 -q")]
    Remove {
        /// The id of the silence, as `vipwatch cluster silence list` shows it
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        query: NodeOptions,
    },
}

/// A new silence in the cluster.
#[derive(Debug, Arguments)]
pub(crate) struct ClusterSilenceAdd {
    /// Silence this node, or this group: its id, the beginning of its id, an instance or an address
    #[arg(value_name = "NODE|GROUP", required = true, add = ArgValueCompleter::new(cluster_nodes))]
    pub(crate) target: Option<String>,
    /// End the silence after this time: 90s, 15m, 2h or 7d; at most 30d
    // Required, and `None` only with a subcommand of `silence`.
    #[arg(long = "for", value_name = "SPAN", value_parser = span, required = true)]
    pub(crate) span: Option<Duration>,
    /// State the reason, which every list of silences shows
    #[arg(long, value_name = "TEXT", required = true)]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) query: NodeOptions,
}

// SPDX-License-Identifier: Apache-2.0
//! The command line: commands, options and help texts.

mod announce;
mod cluster;
mod config;
mod drain_check;
mod etcd;
mod hook_runner;
mod output;
mod query;
mod simulate;
mod source;
mod time;
mod top;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as Arguments, CommandFactory, Parser, Subcommand, ValueEnum};
use vipwatch_node::config::{octal, span};

use crate::failure::EXIT_CODES;

pub(crate) use self::announce::{AnnounceArgs, AnnounceTarget};
pub(crate) use self::cluster::{
    ClusterArgs, ClusterBalanceArgs, ClusterCommand, ClusterDrainCheckArgs, ClusterFindingsArgs,
    ClusterHistoryArgs, ClusterNodesArgs, ClusterSilenceAdd, ClusterSilenceArgs,
    ClusterSilenceCommand, ClusterStatusArgs, ClusterWatchArgs, GroupSelection,
};
pub(crate) use self::config::ConfigCommand;
pub(crate) use self::drain_check::DrainCheckArgs;
pub(crate) use self::etcd::EtcdOptions;
pub(crate) use self::hook_runner::HookRunnerArgs;
pub(crate) use self::output::{Format, OutputOptions};
pub(crate) use self::query::{
    DiscoverArgs, DoctorArgs, FindingSelection, FindingsArgs, HistoryArgs, ReceiverStatusArgs,
    ReloadArgs, ShowArgs, SilenceAdd, SilenceArgs, SilenceCommand, StatusArgs, TargetsArgs,
    VersionArgs, WatchArgs,
};
pub(crate) use self::simulate::SimulateArgs;
pub(crate) use self::source::{NodeOptions, NodeSocketOptions, QueryOptions, config_error};
pub(crate) use self::time::After;
pub(crate) use self::top::{ColorChoice, SortKey, TopArgs};

/// Show which virtual addresses this node holds, as the kernel knows them, in every network namespace
#[derive(Debug, Parser)]
#[command(name = "vipwatch", version, max_term_width = 100, after_help = exit_codes())]
pub(crate) struct CliArgs {
    #[command(flatten)]
    pub(crate) etcd: EtcdOptions,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The end of the help: the exit codes of all commands.
fn exit_codes() -> String {
    let codes = EXIT_CODES.map(|(code, meaning)| format!("  {code}  {meaning}\n"));
    let help = "`vipwatch help COMMAND` shows the options and examples of a command.";
    format!("Exit codes:\n{}\n{help}", codes.concat())
}

const DRAIN_CHECK_ABOUT: &str = "\
Check whether anything is still on this node; with --if, whether other nodes would take over

Without --if, the node audits every instance, and the command prints which addresses are here, which deliveries are \
pending, and the last failover of each instance. Notifications that a silence holds back do not count.

With --if, it prints which live node would take over each instance. That needs a cluster ([cluster] in the \
configuration): a VRRP backup sends nothing, so one node does not see the others.

Exit codes:
  0  drained: nothing is here; or with --if, ready: other nodes would take over
  1  not drained: addresses are here, a delivery is pending, or no node is primary; with --if, not safe
  5  cannot know: a role, a backup or the view of the cluster is not certain
  6  not reachable: no node is listening, or it does not answer in time";

impl CliArgs {
    /// The arguments of this process. If they are wrong, prints the reason and exits.
    ///
    /// clap lists the options that a variable of the environment sets in the usage of an error, as if they were required. So
    /// the error is that of a command line without these variables.
    pub(crate) fn parse_or_exit() -> Self {
        let parsed = Self::try_parse();
        parsed.unwrap_or_else(|error| {
            let plain = without_environment(Self::command()).try_get_matches();
            plain.err().unwrap_or(error).exit()
        })
    }
}

/// The command, and all its subcommands, without variables of the environment.
fn without_environment(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| arg.env(clap::builder::Resettable::Reset));
    command.mut_subcommands(without_environment)
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the role of every instance, its age and its addresses
    #[command(after_help = "Examples:
  vipwatch status                            # all instances, faults first
  vipwatch status 192.0.2.10                 # the instance that has this address
  vipwatch status VI_1 --expect primary -q   # exit code 0 if it is primary, 1 if not")]
    Status(StatusArgs),
    /// Show one instance: addresses, deliveries, findings and recent transitions
    #[command(after_help = "Examples:
  vipwatch show VI_1
  vipwatch show 192.0.2.10 -o yaml")]
    Show(ShowArgs),
    /// Show all instances on a live screen: roles, causes, latencies and findings
    #[command(after_help = "Examples:
  vipwatch top                               # press ? for the keys
  vipwatch top --role fault,partial --sort since
  vipwatch top --once --width 120            # print one frame, for example into a ticket")]
    Top(TopArgs),
    /// Print every transition, failed delivery and finding as it happens
    #[command(after_help = "Examples:
  vipwatch watch                             # the current roles, then every event
  vipwatch watch VI_1 -n 1                   # wait for one transition
  vipwatch watch --json --after 5f3a9c21-42  # continue after an event, one JSON document per line")]
    Watch(WatchArgs),
    /// Show recorded transitions: which instance, when, and the cause
    #[command(after_help = "Examples:
  vipwatch history VI_1 --since 2h
  vipwatch history --since '2026-11-16 15:00' --until '2026-11-16 16:00'
  vipwatch history --flaps --since today     # the number of transitions of each instance")]
    History(HistoryArgs),
    /// Audit every instance now and list everything that is wrong, with hints
    #[command(after_help = "Examples:
  vipwatch doctor
  vipwatch doctor web                        # findings about one instance
  vipwatch doctor -q --fail-on critical        # exit code 1 only if traffic is affected")]
    Doctor(DoctorArgs),
    /// Check whether anything is still on this node, or whether other nodes would take over
    #[command(
        long_about = DRAIN_CHECK_ABOUT,
        after_help = "Examples:
  vipwatch drain-check --if                  # before: would other nodes take over?
  vipwatch drain-check --wait 5m             # after the stop of keepalived: wait until they have
  vipwatch drain-check -o json | jq -r '.blocking[].text'"
    )]
    DrainCheck(DrainCheckArgs),
    /// Show the whole cluster: which node is primary for each group of instances
    #[command(
        long_about = self::cluster::ABOUT,
        after_help = "Examples:
  vipwatch cluster status                    # from the view of the node on this machine
  vipwatch cluster --etcd https://10.0.0.1:2379 --etcd-ca ca.pem status
  vipwatch cluster findings                  # the open findings of the cluster"
    )]
    Cluster(Box<ClusterArgs>),
    /// List the findings of the last audit, without a new one
    #[command(after_help = "Examples:
  vipwatch findings
  vipwatch findings -o json")]
    Findings(FindingsArgs),
    /// List the targets of notifications, with pending and failed deliveries
    #[command(after_help = "Examples:
  vipwatch targets
  vipwatch targets -o wide                   # with all counters")]
    Targets(TargetsArgs),
    /// Keep hooks and webhooks from being notified during maintenance
    #[command(after_help = "Examples:
  vipwatch silence VI_1 --for 2h --reason 'switch replacement'
  vipwatch silence --all --for 30m --reason 'kernel update'
  vipwatch silence list")]
    Silence(SilenceArgs),
    /// List the instances that are configured on this node, and problems in their files
    #[command(after_help = "Examples:
  vipwatch discover
  vipwatch discover --keepalived-conf ./keepalived.conf   # check a file before it is used")]
    Discover(DiscoverArgs),
    /// Announce addresses to their networks (gratuitous ARP, unsolicited neighbour advertisements)
    #[command(after_help = "Examples:
  vipwatch announce VI_1
  vipwatch announce 192.0.2.10 --netns blue --check 2
  vipwatch announce --all --netns blue")]
    Announce(AnnounceArgs),
    /// Check, show or explain the configuration
    #[command(
        subcommand,
        after_help = "Examples:
  vipwatch config check ./vipwatch.toml
  vipwatch config show
  vipwatch config example > vipwatch.toml"
    )]
    Config(ConfigCommand),
    /// Run the node: follow every instance, notify the targets and record the history
    #[command(after_help = "Examples:
  vipwatch node
  vipwatch node --config ./vipwatch.toml --log text --debug")]
    Node(NodeArgs),
    /// Have the running node read its configuration again, and wait for the result
    ///
    /// If the configuration has errors, the node keeps the one it has, and the command prints every error with its
    /// position and ends with exit code 1. Some settings change only after a restart: the log of the node names them.
    #[command(after_help = "Examples:
  vipwatch config check && vipwatch reload
  vipwatch reload -o json                    # with the number and the time of the reload
  vipwatch reload --receiver                 # the process `vipwatch receiver`")]
    Reload(ReloadArgs),
    /// Run a receiver for the reports of monitors, in place of Neutron's L3 agent
    #[command(
        after_help = "Examples:\n  vipwatch receiver --allow neutron\n  vipwatch receiver status"
    )]
    Receiver(ReceiverArgs),
    /// Run the programs of hooks for a node, each as its own user
    #[command(
        long_about = self::hook_runner::ABOUT,
        after_help = "Examples:
  vipwatch hook-runner                    # ExecStart= of a service with vipwatch-hook-runner.socket
  vipwatch hook-runner --allow neutron    # the receiver runs as neutron"
    )]
    HookRunner(HookRunnerArgs),
    /// Simulate Neutron's L3 agent, or one that fails, to test a monitor
    #[command(after_help = "Examples:
  vipwatch simulate-agent threaded --state-path /tmp/neutron
  vipwatch simulate-agent hanging --socket /tmp/agent.sock")]
    SimulateAgent(SimulateArgs),
    /// Show the version of this program and of the running node
    #[command(after_help = "Examples:
  vipwatch version
  vipwatch version --client -o json")]
    Version(VersionArgs),
    /// Print a completion script for a shell, which completes the ids of instances
    #[command(after_help = "Examples:
  vipwatch completions bash > /etc/bash_completion.d/vipwatch
  vipwatch completions zsh > /usr/local/share/zsh/site-functions/_vipwatch")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// `vipwatch node`.
#[derive(Debug, Arguments)]
pub(crate) struct NodeArgs {
    /// Read the configuration from this file [default: /etc/vipwatch/vipwatch.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Override `node.state_dir`: the directory of the history
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Override `node.socket`: the socket for the other commands
    #[arg(long, value_name = "PATH", env = "VIPWATCH_SOCKET", hide_env_values = true)]
    pub(crate) socket: Option<PathBuf>,
    /// Override `find.neutron_state_path`: Neutron's `state_path`
    #[arg(long, value_name = "DIR")]
    pub(crate) state_path: Option<PathBuf>,
    /// Override `find.keepalived_conf`: the configuration of keepalived
    #[arg(long, value_name = "FILE")]
    pub(crate) keepalived_conf: Option<PathBuf>,
    /// Override `node.log`: the destination of the log
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) log: Option<LogTo>,
    /// Have the hook runner on this socket run the hooks [default: the node starts a runner of its own]
    #[arg(long, value_name = "PATH", env = "VIPWATCH_HOOK_RUNNER", hide_env_values = true)]
    pub(crate) hook_runner: Option<PathBuf>,
    /// Log debug messages
    #[arg(long)]
    pub(crate) debug: bool,
}

/// The values of `--log`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogTo {
    /// Text to standard error
    Text,
    /// JSON to standard error, one object in each line
    Json,
    /// Journald with fields
    Journald,
}

/// `vipwatch receiver`.
#[derive(Debug, Arguments)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ReceiverArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ReceiverCommand>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

/// The subcommands of `vipwatch receiver`; without one, it runs a receiver.
#[derive(Debug, Subcommand)]
pub(crate) enum ReceiverCommand {
    /// Show the reports, the settled states and the deliveries
    #[command(after_help = "Examples:
  vipwatch receiver status
  vipwatch receiver status --metrics")]
    Status(ReceiverStatusArgs),
}

/// The default socket on which `vipwatch receiver` answers `vipwatch receiver status`.
pub(crate) const RECEIVER_SOCKET: &str = "/run/vipwatch/receiver.sock";

/// Options of a receiver, which override `[receiver]` of the configuration.
#[derive(Debug, Arguments)]
pub(crate) struct ServeArgs {
    /// Read `[receiver]` from this file [default: /etc/vipwatch/vipwatch.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Listen on `keepalived-state-change` in this directory, Neutron's `state_path` [default: /var/lib/neutron]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_path: Option<PathBuf>,
    /// Listen on this socket instead
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Keep the journal in this directory [default: /var/lib/vipwatch]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Answer `vipwatch receiver status` on this socket
    #[arg(long, value_name = "PATH", default_value = RECEIVER_SOCKET)]
    pub(crate) status_socket: PathBuf,
    /// Accept reports of this user or group, besides root and the receiver's own user; can be repeated
    #[arg(long, value_name = "USER|@GROUP")]
    pub(crate) allow: Vec<String>,
    /// Set the owner of the socket
    #[arg(long, value_name = "USER")]
    pub(crate) owner: Option<String>,
    /// Set the group of the socket
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Set the permissions of the socket, in octal [default: 660]
    #[arg(long, value_name = "MODE", value_parser = octal)]
    pub(crate) mode: Option<u32>,
    /// Hold a reported primary back for this time, in case it is withdrawn; 0s for not at all [default: 2s]
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub(crate) interval: Option<Duration>,
    /// Have the hook runner on this socket run the hooks [default: the receiver starts a runner of its own]
    #[arg(long, value_name = "PATH", env = "VIPWATCH_HOOK_RUNNER", hide_env_values = true)]
    pub(crate) hook_runner: Option<PathBuf>,
    /// Log debug messages
    #[arg(long)]
    pub(crate) debug: bool,
}

#[cfg(test)]
mod tests;

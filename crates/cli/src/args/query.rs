// SPDX-License-Identifier: Apache-2.0
//! The arguments of the commands that print answers.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args as Arguments, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use vipwatch_api::{InstanceFilter, RoleKind, Severity, Timestamp};
use vipwatch_node::config::span;

use super::time::{After, after, time};
use super::{NodeOptions, QueryOptions, RECEIVER_SOCKET};
use crate::complete::live_ids;

/// The values of `--origin`.
const ORIGINS: [&str; 4] = ["neutron", "keepalived", "container", "vipwatch"];

/// Parses the name of a role.
pub(super) fn role() -> impl TypedValueParser<Value = RoleKind> {
    let words = PossibleValuesParser::new(RoleKind::ALL.map(RoleKind::word));
    // The parser accepts words of roles only.
    words.map(|word| RoleKind::from_word(&word).unwrap_or(RoleKind::Unknown))
}

/// Parses a severity.
pub(super) fn severity() -> impl TypedValueParser<Value = Severity> {
    let value = |severity: Severity| PossibleValue::new(severity.word()).help(severity.meaning());
    let words = PossibleValuesParser::new(Severity::ALL.map(value));
    // The parser accepts words of severities only.
    words.map(|word| Severity::from_word(&word).unwrap_or(Severity::Info))
}

/// `vipwatch status`.
#[derive(Debug, Arguments)]
pub(crate) struct StatusArgs {
    /// Show only these instances: an id, the beginning of ids, or an address
    #[arg(value_name = "ID|ADDRESS", add = ArgValueCompleter::new(live_ids))]
    pub(crate) ids: Vec<String>,
    /// Show only instances with this role; can be repeated
    #[arg(long, value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    pub(crate) role: Vec<RoleKind>,
    /// Show only instances in this network namespace; '' for the node's own
    #[arg(long, value_name = "NAME")]
    pub(crate) netns: Option<String>,
    /// Show only instances from this kind of configuration
    #[arg(long, value_name = "ORIGIN", value_parser = PossibleValuesParser::new(ORIGINS))]
    pub(crate) origin: Option<String>,
    /// Exit with 1 unless every instance shown has this role
    #[arg(long, value_name = "ROLE", value_parser = role())]
    pub(crate) expect: Option<RoleKind>,
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// `vipwatch show`.
#[derive(Debug, Arguments)]
pub(crate) struct ShowArgs {
    /// Show this instance: its id, the beginning of its id, or one of its addresses
    #[arg(value_name = "ID|ADDRESS", add = ArgValueCompleter::new(live_ids))]
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// `vipwatch watch`.
#[derive(Debug, Arguments)]
pub(crate) struct WatchArgs {
    /// Show only these instances: an id, the beginning of ids, or an address
    #[arg(value_name = "ID|ADDRESS", add = ArgValueCompleter::new(live_ids))]
    pub(crate) ids: Vec<String>,
    /// Exit after this number of new transitions; the roles at the beginning do not count
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Begin after this event, EPOCH-SEQ or SEQ, and print what has happened since
    #[arg(long, value_name = "EVENT", value_parser = after)]
    pub(crate) after: Option<After>,
    /// Show only transitions to this role and their deliveries; can be repeated
    #[arg(long, value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    pub(crate) role: Vec<RoleKind>,
    /// Show only instances in this network namespace; '' for the node's own
    #[arg(long, value_name = "NAME")]
    pub(crate) netns: Option<String>,
    /// Show only instances from this kind of configuration
    #[arg(long, value_name = "ORIGIN", value_parser = PossibleValuesParser::new(ORIGINS))]
    pub(crate) origin: Option<String>,
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// `vipwatch history`.
#[derive(Debug, Arguments)]
pub(crate) struct HistoryArgs {
    /// Show only this instance: its id, the beginning of ids, or an address
    #[arg(value_name = "ID|ADDRESS", add = ArgValueCompleter::new(live_ids))]
    pub(crate) id: Option<String>,
    /// Show transitions from this time on: 90s, 15m, 2h or 7d ago, today, yesterday, '2026-11-16 15:00', or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) since: Option<Timestamp>,
    /// Show transitions before this time, in the same forms
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) until: Option<Timestamp>,
    /// Show transitions after this event: SEQ, or EPOCH-SEQ
    #[arg(long, value_name = "EVENT", value_parser = after)]
    pub(crate) after: Option<After>,
    /// Show only transitions to this role; can be repeated
    #[arg(long, value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    pub(crate) role: Vec<RoleKind>,
    /// Show only instances in this network namespace; '' for the node's own
    #[arg(long, value_name = "NAME")]
    pub(crate) netns: Option<String>,
    /// Show at most this number of transitions, the latest ones
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1000)]
    pub(crate) limit: u64,
    /// Show the number of transitions of each instance instead
    #[arg(long)]
    pub(crate) flaps: bool,
    /// Read the history in this directory; does not query the node
    #[arg(long, value_name = "DIR", help_heading = "Source")]
    pub(crate) state_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// The filters of `vipwatch doctor` and `vipwatch findings`.
#[derive(Debug, Arguments)]
pub(crate) struct FindingSelection {
    /// Show only findings about these instances: an id, the beginning of ids, or an address
    #[arg(value_name = "ID|ADDRESS", add = ArgValueCompleter::new(live_ids))]
    ids: Vec<String>,
    /// Show only findings about instances with this role; can be repeated
    #[arg(long, value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    role: Vec<RoleKind>,
    /// Show only findings about instances in this network namespace; '' for the node's own
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    /// Show only findings about instances from this kind of configuration
    #[arg(long, value_name = "ORIGIN", value_parser = PossibleValuesParser::new(ORIGINS))]
    origin: Option<String>,
}

impl FindingSelection {
    /// A selection of these instances.
    #[cfg(test)]
    pub(crate) fn of_ids(ids: &[&str]) -> Self {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        Self { ids, role: Vec::new(), netns: None, origin: None }
    }

    /// Whether instances are named.
    pub(crate) fn has_ids(&self) -> bool {
        !self.ids.is_empty()
    }

    /// The filter for instances; `None` if all findings are shown, also those about the node.
    pub(crate) fn filter(&self) -> Option<InstanceFilter> {
        let filter = InstanceFilter {
            ids: self.ids.clone(),
            roles: self.role.clone(),
            netns: self.netns.iter().cloned().collect(),
            origins: self.origin.iter().cloned().collect(),
            ..InstanceFilter::default()
        };
        Some(filter).filter(|filter| *filter != InstanceFilter::default())
    }
}

/// `vipwatch doctor`.
#[derive(Debug, Arguments)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) selection: FindingSelection,
    /// Exit with 1 if there is a finding of this severity or a more serious one
    #[arg(long, value_name = "SEVERITY", value_parser = severity(), default_value = "warning")]
    pub(crate) fail_on: Severity,
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// `vipwatch findings`.
#[derive(Debug, Arguments)]
pub(crate) struct FindingsArgs {
    #[command(flatten)]
    pub(crate) selection: FindingSelection,
    /// Exit with 1 if there is a finding of this severity or a more serious one
    #[arg(long, value_name = "SEVERITY", value_parser = severity(), default_value = "warning")]
    pub(crate) fail_on: Severity,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

/// `vipwatch targets`.
#[derive(Debug, Arguments)]
pub(crate) struct TargetsArgs {
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

/// `vipwatch silence`.
#[derive(Debug, Arguments)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SilenceArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SilenceCommand>,
    #[command(flatten)]
    pub(crate) add: SilenceAdd,
}

/// The subcommands of `vipwatch silence`; without one, it adds a silence.
#[derive(Debug, Subcommand)]
pub(crate) enum SilenceCommand {
    /// Add a silence; `vipwatch silence ID` is short for this
    #[command(after_help = "Examples:
  vipwatch silence add VI_1 --for 2h --reason 'switch replacement'
  vipwatch silence add --all --for 30m --reason 'kernel update'")]
    Add(SilenceAdd),
    /// List the silences in force
    #[command(after_help = "Examples:\n  vipwatch silence list\n  vipwatch silence list -o json")]
    List {
        #[command(flatten)]
        node: NodeOptions,
    },
    /// End a silence before its time
    #[command(after_help = "Examples:\n  vipwatch silence remove 3\n  \
                            vipwatch silence remove 3 --socket /run/vipwatch/other.sock")]
    Remove {
        /// The number of the silence, as `vipwatch silence list` shows it
        #[arg(value_name = "NUMBER")]
        number: i64,
        #[command(flatten)]
        node: NodeOptions,
    },
}

/// `vipwatch silence add`.
#[derive(Debug, Arguments)]
#[command(group(ArgGroup::new("instance or all").args(["id", "all"]).required(true)))]
pub(crate) struct SilenceAdd {
    /// Silence this instance: its id, the beginning of its id, or one of its addresses
    #[arg(value_name = "ID|ADDRESS", add = ArgValueCompleter::new(live_ids))]
    pub(crate) id: Option<String>,
    /// Silence all instances and the node
    #[arg(long)]
    pub(crate) all: bool,
    /// End the silence after this time: 90s, 15m, 2h or 7d; at most 30d
    // Required, and `None` only with a subcommand of `silence`.
    #[arg(long = "for", value_name = "SPAN", value_parser = span, required = true)]
    pub(crate) span: Option<Duration>,
    /// State the reason, which every list of silences shows
    #[arg(long, value_name = "TEXT", required = true)]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

/// `vipwatch discover`.
#[derive(Debug, Arguments)]
pub(crate) struct DiscoverArgs {
    #[command(flatten)]
    pub(crate) query: QueryOptions,
}

/// `vipwatch version`.
#[derive(Debug, Arguments)]
pub(crate) struct VersionArgs {
    /// Show only the version of this program; does not query the node
    #[arg(long)]
    pub(crate) client: bool,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

/// `vipwatch reload`.
#[derive(Debug, Arguments)]
pub(crate) struct ReloadArgs {
    /// Reload the process `vipwatch receiver` instead of the node
    #[arg(long)]
    pub(crate) receiver: bool,
    /// Connect to the receiver on this socket
    #[arg(long, value_name = "PATH", default_value = RECEIVER_SOCKET, requires = "receiver", help_heading = "Source")]
    pub(crate) status_socket: PathBuf,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

/// `vipwatch receiver status`.
#[derive(Debug, Arguments)]
pub(crate) struct ReceiverStatusArgs {
    /// Connect to this socket [default: that of `vipwatch receiver`, otherwise that of the node]
    #[arg(long, value_name = "PATH", help_heading = "Source")]
    pub(crate) status_socket: Option<PathBuf>,
    /// Print metrics in the text format of Prometheus instead
    #[arg(long, conflicts_with_all = ["format", "json"])]
    pub(crate) metrics: bool,
    #[command(flatten)]
    pub(crate) node: NodeOptions,
}

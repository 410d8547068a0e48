// SPDX-License-Identifier: Apache-2.0
//! The arguments of `vipwatch top`.

use clap::{Args as Arguments, ValueEnum};
use vipwatch_api::RoleKind;

use super::NodeSocketOptions;
use super::query::role;

/// `vipwatch top`.
#[derive(Debug, Arguments)]
pub(crate) struct TopArgs {
    /// Show only instances with this text in their id, namespace, addresses, role, cause or details
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// Show only instances with this role; can be repeated
    #[arg(long, value_name = "ROLE", value_delimiter = ',', value_parser = role())]
    pub(crate) role: Vec<RoleKind>,
    /// Sort by this column
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t)]
    pub(crate) sort: SortKey,
    /// Print one frame as plain text and exit; the output need not be a terminal
    #[arg(long)]
    pub(crate) once: bool,
    /// Set the width of the printed frame [default: that of the terminal, or 100]
    #[arg(long, value_name = "COLUMNS", requires = "once", value_parser = clap::value_parser!(u16).range(40..=500))]
    pub(crate) width: Option<u16>,
    /// Set the height of the printed frame [default: that of the terminal, or enough for 200 instances]
    #[arg(long, value_name = "LINES", requires = "once", value_parser = clap::value_parser!(u16).range(8..=5000))]
    pub(crate) height: Option<u16>,
    /// Use colours; `auto` uses them unless the variable `NO_COLOR` is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: ColorChoice,
    #[command(flatten)]
    pub(crate) node: NodeSocketOptions,
}

/// The columns by which the instances can be sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, strum::Display)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum SortKey {
    /// The most serious role first
    #[default]
    Role,
    /// The id
    Id,
    /// The network namespace
    Netns,
    /// The newest role first
    Since,
    /// The cause of the last transition
    Cause,
    /// The slowest delivery first
    Latency,
}

impl SortKey {
    /// The key after this one; the last is followed by the first.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Role => Self::Id,
            Self::Id => Self::Netns,
            Self::Netns => Self::Since,
            Self::Since => Self::Cause,
            Self::Cause => Self::Latency,
            Self::Latency => Self::Role,
        }
    }
}

/// The values of `--color`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ColorChoice {
    /// Colours, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Colours, also if `NO_COLOR` is set
    Always,
    /// No colours
    Never,
}

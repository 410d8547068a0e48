// SPDX-License-Identifier: Apache-2.0
//! Options for the output: format, quiet and verbose.

use clap::{Args as Arguments, ValueEnum};

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// Columns for people, at most 100 characters wide
    #[default]
    Table,
    /// Columns for people, with all details
    Wide,
    /// JSON for scripts
    Json,
    /// YAML for scripts, with the fields of JSON
    Yaml,
    /// Only the names, one in each line
    Name,
}

/// Options of every command that prints an answer.
#[derive(Debug, Clone, Arguments)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputOptions {
    /// Print in this format
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// Print JSON; short for `-o json`
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Print errors only; the exit code has the result
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print to standard error how the answer was obtained
    #[arg(short, long, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
}

impl OutputOptions {
    /// Whether programs read the output: JSON or YAML.
    pub(crate) fn is_for_scripts(&self) -> bool {
        matches!(self.format(), Format::Json | Format::Yaml)
    }

    /// The chosen format.
    pub(crate) fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

// SPDX-License-Identifier: Apache-2.0
//! The arguments of `vipwatch config`.

use std::path::PathBuf;

use clap::Subcommand;

use super::{OutputOptions, QueryOptions};

/// `vipwatch config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the file as a node does, and list every error and warning
    #[command(after_help = "Examples:\n  vipwatch config check\n  \
                            vipwatch config check ./vipwatch.toml -o json\n\n\
                            Exit codes: 0 a node would use the file, 1 the file has errors, 3 and 4 the file or \
                            something that it names cannot be used.")]
    Check {
        /// Check this file [default: /etc/vipwatch/vipwatch.toml]
        #[arg(value_name = "FILE", env = "VIPWATCH_CONFIG", hide_env_values = true)]
        file: Option<PathBuf>,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Show the settings in force, with defaults and without secrets
    #[command(after_help = "Examples:\n  vipwatch config show\n  vipwatch config show -o json")]
    Show {
        #[command(flatten)]
        query: QueryOptions,
    },
    /// Print an example with every key and its explanation
    #[command(after_help = "Examples:\n  vipwatch config example | less\n  \
                            vipwatch config example > vipwatch.toml")]
    Example,
}

// SPDX-License-Identifier: Apache-2.0
//! `vipwatch hook-runner`.

use std::path::PathBuf;

use clap::Args as Arguments;

pub(crate) const ABOUT: &str = "\
Run the programs of hooks for a node, each as its own user

The node connects to a socket that the service manager has passed to the runner, and names a hook. The runner reads the \
hooks from its own configuration file, which must be the one of the node, and runs no other program. So a node without the \
rights of root can have hooks that run as other users. The socket's directory has mode 0700: the node passes it with \
CAP_DAC_OVERRIDE or CAP_DAC_READ_SEARCH, and other processes of the node's user, such as its hooks, do not.

A program runs as `user` of its hook; without this key, as the user of the node. After `timeout`, the program and \
everything that it has started is killed.

A node without --hook-runner starts a runner of its own, which ends with it.";

/// `vipwatch hook-runner`.
#[derive(Debug, Arguments)]
pub(crate) struct HookRunnerArgs {
    /// Read the hooks from this file [default: /etc/vipwatch/vipwatch.toml, if it exists]
    #[arg(long, value_name = "FILE", env = "VIPWATCH_CONFIG", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Accept requests of this user or group, besides root and the runner's own user; can be repeated [default: vipwatch,
    /// if this user exists]
    #[arg(long, value_name = "USER|@GROUP")]
    pub(crate) allow: Vec<String>,
    /// Log debug messages
    #[arg(long)]
    pub(crate) debug: bool,
    /// Standard input is a socket to the node, which has started this process
    #[arg(long, hide = true, conflicts_with = "allow")]
    pub(crate) child: bool,
}

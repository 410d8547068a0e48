// SPDX-License-Identifier: Apache-2.0
//! The arguments of `vipwatch simulate-agent`.

use std::path::PathBuf;

use clap::Args as Arguments;
use clap::builder::PossibleValuesParser;
use vipwatch_node::config::octal;
use vipwatch_receiver::simulate::Behaviour;

/// `vipwatch simulate-agent`.
#[derive(Debug, Arguments)]
pub(crate) struct SimulateArgs {
    /// Simulate an agent of Neutron (threaded: 27 to 29, eventlet: up to 26), or one that fails
    #[arg(value_name = "MODE", value_parser = PossibleValuesParser::new(Behaviour::ALL.map(|(name, _)| name)))]
    pub(crate) mode: String,
    /// Listen on `keepalived-state-change` in this directory, Neutron's `state_path` [default: /var/lib/neutron]
    #[arg(long, value_name = "DIR", conflicts_with = "socket")]
    pub(crate) state_path: Option<PathBuf>,
    /// Listen on this socket instead
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Set the owner of the socket
    #[arg(long, value_name = "USER")]
    pub(crate) owner: Option<String>,
    /// Set the group of the socket
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
    /// Set the permissions of the socket, in octal [default: 660]
    #[arg(long = "mode", id = "permissions", value_name = "OCTAL", value_parser = octal)]
    pub(crate) permissions: Option<u32>,
}

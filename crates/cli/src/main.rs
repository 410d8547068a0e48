// SPDX-License-Identifier: Apache-2.0
//! `vipwatch`: the command line program.
//!
//! Each command is a file in `command/`. [`source`] queries the node or the kernel, [`output`] prints results,
//! [`failure`] prints errors and sets the exit code.

mod args;
mod command;
mod complete;
#[cfg(test)]
mod documents;
mod failure;
mod kernel;
#[cfg(test)]
mod man;
mod output;
mod reconnect;
#[cfg(test)]
mod samples;
mod source;

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::CompleteEnv;

use crate::args::{CliArgs, Command};
use crate::failure::CommandError;

fn main() -> ExitCode {
    // If a shell calls the program for completions, this prints them and exits.
    CompleteEnv::with_factory(CliArgs::command).complete();
    let args = CliArgs::parse_or_exit();
    if let Some(commit) = command::version::commit() {
        vipwatch_node::view::set_commit(commit);
    }
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(args: &CliArgs) -> Result<(), CommandError> {
    if !matches!(args.command, Command::Cluster(_)) {
        args.etcd.check_unused()?;
    }
    match &args.command {
        Command::Cluster(options) => command::cluster::run(options, &args.etcd),
        Command::Status(options) => command::status::run(options),
        Command::Show(options) => command::show::run(options),
        Command::Top(options) => command::top::run(options),
        Command::DrainCheck(options) => command::drain_check::run(options),
        Command::Doctor(options) => command::doctor::run(options),
        Command::Findings(options) => command::doctor::findings(options),
        Command::Targets(options) => command::targets::run(options),
        Command::Silence(options) => command::silence::run(options),
        Command::Version(options) => command::version::run(options),
        Command::Node(options) => command::node::run(options),
        Command::Reload(options) => command::reload::run(options),
        Command::Config(command) => command::config::run(command),
        Command::History(options) => command::history::run(options),
        Command::Watch(options) => command::watch::run(options),
        Command::Discover(options) => command::discover::run(options),
        Command::HookRunner(options) => command::hook_runner::run(options),
        Command::Receiver(options) => command::receiver::run(options),
        Command::SimulateAgent(options) => command::simulate::run(options),
        Command::Announce(options) => command::announce::run(options),
        Command::Completions { shell } => command::completions(*shell),
    }
}

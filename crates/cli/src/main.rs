//! `vipwatch`: where every virtual address of this node is.
//!
//! Each command is a file in `command/`. What they print goes through [`show`], how they end
//! through [`failure`].

mod args;
mod ask;
mod command;
mod complete;
mod failure;
mod show;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::CompleteEnv;

use crate::args::{CliArgs, Command};

fn main() -> ExitCode {
    // A shell that asks what could stand here is answered, and that is all.
    CompleteEnv::with_factory(CliArgs::command).complete();
    let args = CliArgs::parse();
    let result = match &args.command {
        Command::Status(options) => command::status::run(options),
        Command::Show(options) => command::show::run(options),
        Command::Doctor(options) => command::doctor::run(options),
        Command::Node(options) => command::node::run(options),
        Command::Config(command) => command::config::run(command),
        Command::History(options) => command::history::run(options),
        Command::Watch(options) => command::watch::run(options),
        Command::Discover(options) => command::discover::run(options),
        Command::Receiver(options) => command::receiver::run(options),
        Command::Announce(options) => command::announce::run(options),
        Command::Completions { shell } => command::completions(*shell),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

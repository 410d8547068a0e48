//! `vipwatch`: where every virtual address of this node is.
//!
//! Each command is a file in `command/`. What they print goes through [`show`], how they end
//! through [`failure`].

mod args;
mod command;
mod failure;
mod follow;
mod service;
mod show;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command};

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.command {
        Command::Status(options) => command::status::run(options),
        Command::Node(options) => command::node::run(options),
        Command::History(options) => command::history::run(options),
        Command::Watch(options) => command::watch::run(options),
        Command::Discover(options) => command::discover::run(options),
        Command::Announce(options) => command::announce::run(options),
        Command::Completions { shell } => {
            command::completions(*shell);
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

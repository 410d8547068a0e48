//! `neutron-keepalived-state-change`: watches the virtual address of one HA router and tells
//! Neutron's L3 agent, as the agent of any release from 12 to 29 expects.
//!
//! This file is the table of contents: what is asked ([`args`]), what it means here
//! ([`setup`]), what is wrong with it ([`check`]), and the life of the process ([`daemon`],
//! [`run`]).

mod account;
mod announce;
mod args;
mod check;
mod config;
mod daemon;
mod event_log;
mod failure;
mod instance_lock;
mod log;
mod options;
mod pid_file;
mod run;
mod setup;
mod words;

use std::process::ExitCode;

use crate::args::{Args, Invocation};
use crate::daemon::RunMode;
use crate::failure::Failure;
use crate::run::RouterMonitor;
use crate::setup::Setup;

fn main() -> ExitCode {
    match perform() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn perform() -> Result<(), Failure> {
    match args::parse(std::env::args_os())? {
        Invocation::Help => failure::print(&options::help()),
        Invocation::Version => {
            failure::print(&format!("{} {}\n", args::PROGRAM, env!("CARGO_PKG_VERSION")));
        }
        Invocation::Check(args) => return check::report(args),
        Invocation::Run(args, mode) => return start(args, mode),
    }
    Ok(())
}

// Not inlined: what the command line took on the stack is given back before the daemon begins.
#[inline(never)]
fn start(args: Args, mode: RunMode) -> Result<(), Failure> {
    if mode == RunMode::Daemon {
        vipwatch_linux::process::close_inherited_files();
    }
    let mut setup = Setup::resolve(args)?;
    let place = setup.enter()?;
    daemon::launch(mode, || RouterMonitor::prepare(&setup, place), RouterMonitor::live)
}

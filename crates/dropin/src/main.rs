// SPDX-License-Identifier: Apache-2.0
//! `neutron-keepalived-state-change`: watches the virtual address of one HA router and notifies
//! Neutron's L3 agent, in the way that the agent of any release from 12 to 29 expects.
//!
//! This file is the table of contents: [`args`] reads the command line, [`setup`] turns it into settings, [`check`]
//! reports problems, [`daemon`] and [`run`] start and run the monitor.

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
mod primary_word;
mod run;
mod setup;

use std::process::ExitCode;

use crate::args::{Args, Invocation};
use crate::daemon::RunMode;
use crate::failure::Failure;
use crate::run::RouterMonitor;
use crate::setup::Setup;

fn main() -> ExitCode {
    match invoke() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn invoke() -> Result<(), Failure> {
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

// Not inlined: the stack that parsing the command line used is free again before the daemon starts.
#[inline(never)]
fn start(args: Args, mode: RunMode) -> Result<(), Failure> {
    // A program that is started by its descriptor has the descriptor's number as its name in `ps`.
    vipwatch_linux::process::set_name(c"neutron-keepali");
    if mode == RunMode::Daemon {
        vipwatch_linux::process::close_inherited_files();
    }
    let mut setup = Setup::resolve(args)?;
    let entered = setup.enter()?;
    daemon::launch(mode, || RouterMonitor::prepare(&setup, mode, entered), RouterMonitor::run)
}

// SPDX-License-Identifier: Apache-2.0
//! `vipwatch-neutron-switch`: replaces the running monitors of Neutron's HA routers one by one, in either direction.
//!
//! This file is the table of contents: [`args`] reads the command line, [`monitor`] finds the running monitors,
//! [`status`] shows them, [`run`] goes through the routers, [`replace`] replaces one monitor, [`launch`] starts a
//! program as the agent would, and [`verify`] compares the new monitor with the kernel and the agent.

mod agent;
mod agent_config;
mod agent_name;
mod args;
mod cgroup;
mod check;
mod command_line;
mod document;
mod failure;
mod launch;
mod log;
mod monitor;
mod plan;
mod program;
mod progress;
mod release;
mod replace;
mod run;
mod state;
mod status;
mod stop;
mod unfinished;
mod verify;

use std::io::Write;
use std::process::ExitCode;

use vipwatch_core::escape_untrusted_json;

use crate::args::{HELP, SwitchArgs, SwitchCommand, SwitchInvocation};
use crate::failure::{SwitchCode, SwitchFailure};

fn main() -> ExitCode {
    match invoke() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn invoke() -> Result<(), SwitchFailure> {
    match args::parse(std::env::args_os())? {
        SwitchInvocation::Help => print(HELP),
        SwitchInvocation::Version => {
            print(&format!("vipwatch-neutron-switch {}\n", env!("CARGO_PKG_VERSION")));
        }
        SwitchInvocation::Launcher => {
            return launch::run_launcher().map_err(SwitchFailure::environment);
        }
        SwitchInvocation::Run(args) => return execute(&args),
    }
    Ok(())
}

fn execute(args: &SwitchArgs) -> Result<(), SwitchFailure> {
    if !rustix::process::geteuid().is_root() {
        let failure = SwitchFailure::new(SwitchCode::NotPermitted, "this command needs root");
        return Err(failure.hint("run it with sudo: it reads and replaces processes of root"));
    }
    if args.command == SwitchCommand::Status {
        let document = status::status(args)?;
        print(&if args.is_json { json(&document) } else { document.table() });
        return Ok(());
    }
    let run::SwitchResult { document, failure } = run::switch(args)?;
    if args.is_json {
        print(&json(&document));
    } else if document.routers.is_empty() {
        print("no monitor runs: nothing to do\n");
    }
    failure.map_or(Ok(()), Err)
}

fn json(document: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(document).unwrap_or_default();
    escape_untrusted_json(&text) + "\n"
}

/// Prints to standard output. A closed pipe is ignored.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

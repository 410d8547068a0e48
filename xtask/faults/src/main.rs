// SPDX-License-Identifier: Apache-2.0
//! `vipwatch-faults`, started by `cargo xtask faults`: runs schedules of faults in labs with real keepalived, and judges
//! the answers of `vipwatch` with a checker that shares no code with the product.

mod args;
mod check;
mod fault_table;
mod inject;
mod inotify;
mod journal;
mod lab;
mod moment;
mod mutations;
mod random;
mod runner;
mod schedule;
mod setup;
mod summary;

use std::process::{Command, ExitCode};

use clap::Parser as _;

use args::RunOptions;

/// The result of an act that can fail.
pub type LabResult<T = ()> = Result<T, FaultsError>;

/// Why a command failed.
#[derive(Debug)]
pub struct FaultsError(pub String);

impl<E: std::fmt::Display> From<E> for FaultsError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

fn main() -> ExitCode {
    let result = if std::env::args().nth(1).is_some_and(|word| word == "init") {
        init()
    } else {
        let options = RunOptions::parse();
        match (&options.inside, &options.judge) {
            (Some(directory), _) => runner::run_inside(&options, directory),
            (None, Some(directory)) => runner::judge_again(directory),
            (None, None) if options.has_mutations() => mutations::run(&options),
            (None, None) => runner::run(&options),
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(FaultsError(message)) => {
            eprintln!("vipwatch-faults: {message}");
            ExitCode::FAILURE
        }
    }
}

/// The first process of a host: collects the exit codes of orphans, as an init does.
fn init() -> LabResult {
    // Without a child of its own, the wait would end at once.
    let mut forever = Command::new("sleep").arg("infinity").spawn()?;
    while forever.try_wait()?.is_none() {
        let options = rustix::process::WaitOptions::empty();
        let _ = rustix::process::wait(options);
    }
    Ok(())
}

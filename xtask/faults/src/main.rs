// SPDX-License-Identifier: Apache-2.0
//! `vipwatch-faults`, started by `cargo xtask faults`: runs schedules of faults in labs with real keepalived, and judges
//! the answers of `vipwatch` with a checker that shares no code with the product.

mod args;
mod check;
mod cluster;
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

use std::path::Path;
use std::process::{Command, ExitCode};

use args::FaultsCommand;
use inject::Pace;
use lab::set_up_lock::SetUpLock;
use setup::LabSetup;

/// Why a command failed.
pub struct FaultsError(pub String);

impl<E: std::fmt::Display> From<E> for FaultsError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["init"] => init(),
        ["inside", seed, faults, pace, directory, vipwatch] => {
            inside(seed, faults, pace_of(pace), Path::new(directory), Path::new(vipwatch))
        }
        ["inside-cluster", seed, faults, pace, directory, vipwatch] => {
            let (directory, vipwatch) = (Path::new(directory), Path::new(vipwatch));
            let seed = seed.parse().map_err(FaultsError::from);
            seed.and_then(|seed| cluster::inside(seed, faults, pace_of(pace), directory, vipwatch))
        }
        args => args::parse(args).and_then(|command| match command {
            FaultsCommand::Run(options) => runner::run(&options),
            FaultsCommand::Judge(directory) => runner::judge_again(&directory),
            FaultsCommand::Mutations { options, names } => mutations::run(&options, &names),
        }),
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
fn init() -> Result<(), FaultsError> {
    // Without a child of its own, the wait would end at once.
    let mut forever = Command::new("sleep").arg("infinity").spawn()?;
    while forever.try_wait()?.is_none() {
        let options = rustix::process::WaitOptions::empty();
        let _ = rustix::process::wait(options);
    }
    Ok(())
}

fn pace_of(word: &str) -> Pace {
    if word == "patient" { Pace::Patient } else { Pace::Exact }
}

/// One run, in its sandbox.
fn inside(
    seed: &str,
    faults: &str,
    pace: Pace,
    directory: &Path,
    vipwatch: &Path,
) -> Result<(), FaultsError> {
    let setup = LabSetup::of(seed.parse()?);
    let mut steps = schedule::schedule(&setup);
    if !faults.is_empty() {
        steps = schedule::chosen(faults)?;
    }
    if pace == Pace::Patient {
        steps.truncate(2);
    }
    let base = directory.parent().unwrap_or(directory);
    let lock = SetUpLock::wait(base)?;
    let mut lab = lab::FaultLab::start(setup, directory, vipwatch)?;
    inject::settle(&lab)?;
    drop(lock);
    inject::inject(&mut lab, &steps, pace)
}

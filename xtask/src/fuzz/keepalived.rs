// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask fuzz keepalived`: builds the program `xtask/compare`, and starts it in the sandbox.

use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::{TaskError, TaskResult, build, provision, sandbox};

/// Installs keepalived, then compares in the sandbox.
pub fn prepare(args: &[&str]) -> TaskResult {
    provision::programs(&[provision::BASIC, provision::KEEPALIVED])?;
    sandbox::check_namespaces()?;
    let program = build::compare()?.display().to_string();
    let broken = build::target_directory().join("fuzz/broken/keepalived").display().to_string();
    let line = ["fuzz", &program, &broken];
    let line: Vec<&str> = line.into_iter().chain(args.iter().copied()).collect();
    sandbox::enter(&line, &[])
}

/// Replaces this process by the program, with the rest of `args`.
pub fn run(args: &[&str]) -> TaskResult {
    let (program, args) =
        args.split_first().ok_or_else(|| TaskError("no program to compare given".to_owned()))?;
    let error = Command::new(program).args(args).exec();
    Err(TaskError(format!("cannot start {program}: {error}")))
}

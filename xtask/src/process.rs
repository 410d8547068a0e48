// SPDX-License-Identifier: Apache-2.0
//! Runs other programs.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::{TaskError, TaskResult};

/// Runs a command that prints to the terminal.
pub fn run(command: &mut Command) -> TaskResult {
    let status = command.status().map_err(|error| cannot_start(command, &error))?;
    if status.success() {
        return Ok(());
    }
    Err(TaskError(format!("{} failed", line(command))))
}

/// Runs a command; returns its standard output. An error has everything that the command printed.
pub fn output(command: &mut Command) -> Result<Vec<u8>, TaskError> {
    let output = command.output().map_err(|error| cannot_start(command, &error))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let printed = [&output.stdout[..], &output.stderr[..]].concat();
    let printed = String::from_utf8_lossy(&printed);
    Err(TaskError(format!("{} failed:\n{}", line(command), printed.trim_end())))
}

/// The standard output of a command as text, without spaces at its end.
pub fn text(command: &mut Command) -> Result<String, TaskError> {
    let output = output(command)?;
    Ok(String::from_utf8_lossy(&output).trim_end().to_owned())
}

/// Replaces this process by the program that is the first of `args`, with the other ones. In the sandbox, a bench must be the
/// first process of the PID namespace: it inherits the monitors that run in the background.
pub fn replace(args: &[&str]) -> TaskResult {
    let (program, args) = args.split_first().ok_or("no program given")?;
    let mut command = Command::new(program);
    let error = command.args(args).exec();
    Err(cannot_start(&command, &error))
}

fn cannot_start(command: &Command, error: &std::io::Error) -> TaskError {
    TaskError(format!("cannot start {}: {error}", command.get_program().display()))
}

/// The program and its arguments.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

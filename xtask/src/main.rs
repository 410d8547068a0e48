// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask`: the commands of this repository.
//!
//! They need Rust and a Debian or Ubuntu system. A command installs the packages it needs, or prints the command
//! that installs them. The measurements are a program of their own, `xtask/bench`.

mod arguments;
mod bench;
mod build;
mod check;
mod config_file;
mod demo;
mod deployment;
mod dist;
mod faults;
mod fuzz;
mod man;
mod openapi;
mod packages;
mod process;
mod provision;
mod sample;
mod sandbox;
mod screenshots;
mod scripts;
mod source;
mod test;
mod tidy;
mod words;

use std::process::ExitCode;

/// Why a command failed, with a `hint:` line where one is known.
pub struct TaskError(pub String);

impl<E: std::fmt::Display> From<E> for TaskError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// The result of a command.
pub type TaskResult = Result<(), TaskError>;

const HELP: &str = "\
Run the demo, the tests, the checks and the measurements of vipwatch.

Usage: cargo xtask COMMAND [OPTIONS]

Commands:
  demo        Run three nodes with real keepalived, and let something fail every few seconds
  test        Run all checks and tests, or some suites
  check       Check format, lints, naming rules, documentation, manual pages and shell scripts
  bench       Measure vipwatch and the programs it replaces in one run
  faults      Inject faults into labs with real keepalived, and judge the answers of vipwatch
  fuzz        Run the parsers on random input, or compare discovery with real keepalived
  dist        Build the programs and the packages that are shipped
  openapi     Write the OpenAPI document of the HTTP API
  man         Write the manual pages
  config-file Write the example of a configuration file in the packages
  sample      Print random lines of code, or random comments, log lines and errors
  screenshots Make the pictures of the documents from a live lab
  help        Print this text

`cargo xtask COMMAND --help` prints the options of a command.

Commands that need network namespaces create their own and remove them at the end. They need no root where user
namespaces are allowed. Missing packages are installed with apt-get, if that is possible without a password.

Examples:
  cargo xtask demo --seconds 60
  cargo xtask test netns webhook       the netns tests with `webhook` in their name
  cargo xtask check                    before every commit
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(TaskError(message)) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[&str]) -> TaskResult {
    let Some((command, rest)) = args.split_first() else {
        print!("{HELP}");
        return Ok(());
    };
    if *command == sandbox::INSIDE {
        return run_in_sandbox(rest);
    }
    if *command == sandbox::INSIDE_AS_ROOT {
        sandbox::end_with_standard_input();
        return test::run_programs(rest);
    }
    if *command == test::STEP {
        return test::step(rest);
    }
    if let Some(help) = help(command, rest) {
        print!("{help}");
        return Ok(());
    }
    match *command {
        "demo" => demo::prepare(rest),
        "test" => test::prepare(rest),
        "check" => check::run(rest),
        "bench" => bench::prepare(rest),
        "faults" => faults::run(rest),
        "fuzz" => fuzz::run(rest),
        "dist" => dist::run(rest),
        "openapi" => openapi::run(rest),
        "man" => man::run(rest),
        "config-file" => config_file::run(rest),
        "sample" => sample::run(rest),
        "screenshots" => screenshots::prepare(rest),
        unknown => Err(TaskError(format!(
            "unknown command {unknown:?}\n  hint: `cargo xtask help` lists the commands"
        ))),
    }
}

/// The help text that the arguments ask for; `None` if they do not.
fn help(command: &str, rest: &[&str]) -> Option<&'static str> {
    let is_wanted = |arg: &&str| matches!(*arg, "--help" | "-h" | "help");
    let name = match command {
        "help" => rest.first().copied().unwrap_or_default(),
        command if is_wanted(&command) => "",
        command if rest.iter().any(|arg| matches!(*arg, "--help" | "-h")) => command,
        _ => return None,
    };
    Some(match name {
        "demo" => demo::HELP,
        "test" => test::HELP,
        "check" => check::HELP,
        "bench" => bench::HELP,
        "faults" => faults::HELP,
        "fuzz" => fuzz::HELP,
        "dist" => dist::HELP,
        "openapi" => openapi::HELP,
        "man" => man::HELP,
        "config-file" => config_file::HELP,
        "sample" => sample::HELP,
        "screenshots" => screenshots::HELP,
        _ => HELP,
    })
}

/// The second half of a command, which runs in its own namespaces.
fn run_in_sandbox(args: &[&str]) -> TaskResult {
    sandbox::set_up()?;
    match args {
        ["demo", rest @ ..] => demo::run(rest),
        ["test", rest @ ..] => test::run_programs(rest),
        ["bench" | "fuzz", rest @ ..] => process::replace(rest),
        ["screenshots", rest @ ..] => screenshots::run(rest),
        other => Err(TaskError(format!("unknown command in the sandbox: {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_prints_its_own_help() {
        let commands =
            ["demo", "test", "check", "bench", "faults", "fuzz", "dist", "openapi", "sample"];
        for command in commands {
            let usage = format!("Usage: cargo xtask {command}");
            assert!(help(command, &["--help"]).unwrap().contains(&usage), "{command}");
            assert!(help("help", &[command]).unwrap().contains(&usage), "{command}");
            assert!(HELP.contains(&format!("\n  {command} ")), "{command}");
        }
    }

    #[test]
    fn the_general_help_is_printed_on_request_only() {
        assert_eq!(help("--help", &[]), Some(HELP));
        assert_eq!(help("help", &[]), Some(HELP));
        assert_eq!(help("test", &["netns"]), None);
    }
}

// SPDX-License-Identifier: Apache-2.0
//! Runs test programs, one after the other, in the sandbox, and writes their results to a file.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use super::outcome::{Outcome, TestName};
use super::suite::Suite;
use crate::{TaskError, TaskResult};

/// Environment variable with the path of the file for the results.
pub const RESULTS: &str = "VIPWATCH_RESULTS";

/// Environment variable with the path of the file for the table of `--table`.
pub const TABLE: &str = "VIPWATCH_TABLE";

/// Environment variable that is set if the filter is the whole name of one test.
pub const EXACT: &str = "VIPWATCH_EXACT";

/// Runs the test programs. `args` is the filter, then suite, name and path of each program.
pub fn run(args: &[&str]) -> TaskResult {
    let (filter, programs) = args
        .split_first()
        .ok_or_else(|| TaskError("arguments are missing: filter and programs".to_owned()))?;
    let mut outcome = Outcome::default();
    for program in programs.chunks_exact(3) {
        let suite = Suite::named(program[0]).unwrap_or(Suite::Unit);
        println!("── {} · {}", suite.name(), program[1]);
        let result = run_program(program[1], &mut command(suite, program[2], filter))?;
        outcome.add(result);
    }
    if let Some(path) = std::env::var_os(TABLE) {
        outcome.write_table(Path::new(&path))?;
    }
    // ORDER: last: the outcome exists only after everything else is done.
    if let Some(path) = std::env::var_os(RESULTS) {
        outcome.write(Path::new(&path))?;
    }
    outcome.finish()
}

fn command(suite: Suite, path: &str, filter: &str) -> Command {
    // The tests watch directories with SIGIO and a real-time signal, which would end the process by default. A
    // signal that is blocked at the start is blocked in all threads.
    let mut command = Command::new("env");
    command.arg("--block-signal=IO,RTMIN+5").arg(path);
    command.args(["--test-threads", &suite.threads().to_string()]);
    if !filter.is_empty() {
        command.arg(filter);
    }
    if std::env::var_os(EXACT).is_some() {
        command.arg("--exact");
    }
    command
}

/// Runs one test program and prints its output.
fn run_program(program: &str, command: &mut Command) -> Result<Outcome, TaskError> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut outcome = Outcome::default();
    let mut output = FailureOutput::default();
    let mut summary = None;
    let test_name = |name: &str| TestName { program: program.to_owned(), name: name.to_owned() };
    let stdout = child
        .stdout
        .take()
        .ok_or_else(|| TaskError("cannot read the output of the tests".to_owned()))?;
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        match line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) {
            Some((name, "ok")) => outcome.passed.push(test_name(name)),
            Some((name, "FAILED")) => outcome.failed.push(test_name(name)),
            _ => output.read(&line),
        }
        println!("{line}");
        if line.starts_with("test result: ") {
            summary = Some(line);
        }
    }
    outcome.failures = output.lines;
    let status = child.wait()?;
    let (passed, failed) = (outcome.passed.len(), outcome.failed.len());
    let is_whole =
        summary.is_some_and(|line| line.contains(&format!(" {passed} passed; {failed} failed;")));
    // libtest ends with 0, or with 101 if a test has failed.
    if !is_whole || !matches!(status.code(), Some(0 | 101)) {
        outcome.failures.push(format!(
            "{program} ended with {status}, after {passed} passed and {failed} failed tests that are known"
        ));
        outcome.failed.push(test_name(""));
    }
    Ok(outcome)
}

/// Collects the output of failed tests from the output of a test program: `---- NAME stdout ----`, the text, and the
/// line `failures:` after the last one.
#[derive(Default)]
struct FailureOutput {
    lines: Vec<String>,
    is_in_test: bool,
    is_in_backtrace: bool,
}

impl FailureOutput {
    fn read(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.is_in_test = true;
            self.is_in_backtrace = false;
        } else if line == "failures:" {
            self.is_in_test = false;
        } else if line == "stack backtrace:" {
            self.is_in_backtrace = true;
        } else if self.is_in_backtrace && !line.starts_with(' ') {
            // The backtrace ends with a note about its length.
            self.is_in_backtrace = false;
            return;
        }
        if self.is_in_test && !self.is_in_backtrace {
            self.lines.push(line.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_failed_tests_is_repeated_without_backtraces() {
        let output = "failures:\n\n---- a::b stdout ----\n\nthread 'a::b' panicked at a.rs:1:5:\nwrong role\n\
                      stack backtrace:\n   0: begin\n             at lib.rs:1:5\nnote: Some details are omitted\nafter\n\
                      \nfailures:\n    a::b\n\ntest result: FAILED";
        let mut failures = FailureOutput::default();
        output.lines().for_each(|line| failures.read(line));
        let expected = [
            "---- a::b stdout ----",
            "",
            "thread 'a::b' panicked at a.rs:1:5:",
            "wrong role",
            "after",
            "",
        ];
        assert_eq!(failures.lines, expected);
    }

    #[test]
    fn a_program_that_ends_before_its_last_test_has_failed_as_a_whole() {
        let outcome = |script: &str| {
            run_program("node/unit", Command::new("sh").args(["-c", script])).ok().unwrap()
        };
        let died = outcome("echo 'test a ... ok'; echo 'test b ... FAILED'; kill -ABRT $$");
        assert_eq!(died.failed.len(), 2, "the test, and the program");
        let summary = "test result: FAILED. 1 passed; 1 failed; 0 ignored";
        let ended = outcome(&format!(
            "echo 'test a ... ok'; echo 'test b ... FAILED'; echo '{summary}'; exit 101"
        ));
        assert_eq!(ended.failed.len(), 1);
        let lost = outcome(&format!("echo 'test a ... ok'; echo '{summary}'; exit 101"));
        assert_eq!(lost.failed[0].name, "", "a result was not read");
    }

    #[test]
    fn a_program_that_a_signal_ends_is_a_failed_test() {
        let mut command = Command::new("sh");
        let outcome = run_program("node/unit", command.args(["-c", "kill -KILL $$"])).ok().unwrap();
        assert_eq!(outcome.failed.len(), 1);
        assert_eq!(outcome.failed[0].program, "node/unit");
        assert!(outcome.failures[0].contains("signal: 9"), "{:?}", outcome.failures);
    }
}

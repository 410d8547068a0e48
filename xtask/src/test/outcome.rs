// SPDX-License-Identifier: Apache-2.0
//! The outcome of a suite: counts, failed tests and their output. It crosses process boundaries as JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{TaskError, TaskResult, build};

/// The name of a test, and the program that has it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TestName {
    /// Package and target, for example `cli/netns`.
    pub program: String,
    /// Empty if it is about the program itself, which for example a signal has ended.
    pub name: String,
}

impl std::fmt::Display for TestName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.name.is_empty() {
            return write!(f, "{}", self.program);
        }
        write!(f, "{} {}", self.program, self.name)
    }
}

/// The outcome of one suite, or of several together.
#[derive(Default, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub passed: Vec<TestName>,
    pub failed: Vec<TestName>,
    /// The output of the failed tests, without backtraces.
    pub failures: Vec<String>,
}

impl Outcome {
    pub fn add(&mut self, other: Self) {
        self.passed.extend(other.passed);
        self.failed.extend(other.failed);
        self.failures.extend(other.failures);
    }

    /// Prints the output of all failed tests again, because the output of all tests is long.
    pub fn print_failures(&self) {
        for line in &self.failures {
            println!("{line}");
        }
    }

    /// Prints the failed tests and the counts; an error names the failed tests, or says that no test ran.
    pub fn finish(&self) -> TaskResult {
        self.print_failures();
        println!("\n{} passed, {} failed", self.passed.len(), self.failed.len());
        if !self.failed.is_empty() {
            let names: Vec<String> = self.failed.iter().map(ToString::to_string).collect();
            return Err(TaskError(format!("failed:\n  {}", names.join("\n  "))));
        }
        if self.passed.is_empty() {
            return Err(TaskError("no test has this text in its name".to_owned()));
        }
        Ok(())
    }

    pub fn write(&self, path: &Path) -> TaskResult {
        build::write(path, &serde_json::to_vec(self)?)
    }

    /// Reads what [`Outcome::write`] has written; `None` if there is no such file.
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(path).ok()?).ok()
    }

    /// Writes the results as a Markdown table, sorted by name.
    pub fn write_table(&self, path: &Path) -> TaskResult {
        let rows = |tests: &[TestName], result: &'static str| -> Vec<(String, &'static str)> {
            tests.iter().map(|test| (test.name.clone(), result)).collect()
        };
        let mut rows = [rows(&self.passed, "pass"), rows(&self.failed, "**fail**")].concat();
        rows.sort();
        let (passed, all) = (self.passed.len(), rows.len());
        let mut text = format!("{passed} of {all} cases pass.\n\n| case | |\n|---|---|\n");
        for (name, result) in rows {
            let _ = writeln!(text, "| `{name}` | {result} |");
        }
        build::write(path, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_the_same_after_it_was_written_and_read() {
        let path = std::env::temp_dir().join(format!("outcome-{}", std::process::id()));
        let name = |name: &str| TestName { program: "cli/netns".to_owned(), name: name.to_owned() };
        let outcome = Outcome {
            passed: vec![name("a"), name("b")],
            failed: vec![name("c")],
            failures: vec!["line".to_owned()],
        };
        assert!(outcome.write(&path).is_ok());
        let read = Outcome::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!((read.passed, read.failed), (outcome.passed, outcome.failed));
        assert_eq!(read.failures, ["line"]);
        assert!(Outcome::read(Path::new("/nonexistent")).is_none());
    }
}

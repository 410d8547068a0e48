// SPDX-License-Identifier: Apache-2.0
//! The outcome of a suite: counts, failed tests and their output. It crosses process boundaries as JSON.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::{TaskError, TaskResult, build};

/// The name of a test, and the program that has it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
#[derive(Default, Debug)]
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

    /// An error that names the failed tests, or says that no test ran.
    pub fn into_result(self) -> TaskResult {
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
        let names = |tests: &[TestName]| -> Value {
            tests.iter().map(|test| json!([test.program, test.name])).collect()
        };
        let document = json!({
            "passed": names(&self.passed), "failed": names(&self.failed), "failures": self.failures,
        });
        build::write(path, document.to_string().as_bytes())
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

    /// Reads what [`Outcome::write`] has written; `None` if there is no such file.
    pub fn read(path: &Path) -> Option<Self> {
        let document: Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let name =
            |test: &Value| Some(TestName { program: text(&test[0])?, name: text(&test[1])? });
        Some(Self {
            passed: document["passed"].as_array()?.iter().filter_map(name).collect(),
            failed: document["failed"].as_array()?.iter().filter_map(name).collect(),
            failures: document["failures"].as_array()?.iter().filter_map(text).collect(),
        })
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

// SPDX-License-Identifier: Apache-2.0
//! The end of a run: failed tests with their output, flaky tests, and a table of all steps.

use std::fmt::Write as _;
use std::time::Duration;

use super::outcome::{Outcome, TestName};
use super::steps::{self, StepEnd, StepResult};
use super::suite::Suite;
use super::suite_run::outcome_path;
use crate::{TaskError, TaskResult, build};

/// Number of log lines printed for a failed step without tests.
const LOG_LINES: usize = 60;

/// Number of failed tests up to which each runs once more.
const MAX_REPEATED: usize = 5;

/// The results of all steps.
pub struct Report {
    results: Vec<StepResult>,
    /// The outcomes of the suites with tests.
    outcomes: Vec<(Suite, Outcome)>,
    flaky: Vec<(Suite, TestName)>,
    /// Whether only tests with a text in their name run.
    has_filter: bool,
}

impl Report {
    pub fn new(suites: &[Suite], results: Vec<StepResult>, has_filter: bool) -> Self {
        let outcomes = suites
            .iter()
            .filter(|suite| has_run(&results, suite.name()))
            .filter_map(|suite| Some((*suite, Outcome::read(&outcome_path(*suite))?)))
            .collect();
        Self { results, outcomes, flaky: Vec::new(), has_filter }
    }

    /// The names of the failed tests, and of the failed steps without tests.
    pub fn failed_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (_, outcome) in &self.outcomes {
            names.extend(outcome.failed.iter().map(ToString::to_string));
        }
        let has_names = |result: &&StepResult| {
            let is_it = |(suite, outcome): &(Suite, Outcome)| {
                suite.name() == result.name && !outcome.failed.is_empty()
            };
            self.outcomes.iter().any(is_it)
        };
        let failed = self.results.iter().filter(|result| self.has_failed(result));
        names.extend(failed.filter(|result| !has_names(result)).map(|result| result.name.clone()));
        names
    }

    /// The failed tests that may run once more; none if many failed, which is not by chance.
    pub fn repeatable(&self) -> Vec<(Suite, TestName)> {
        let all: usize = self.outcomes.iter().map(|(_, outcome)| outcome.failed.len()).sum();
        if all > MAX_REPEATED {
            return Vec::new();
        }
        let suites = self.outcomes.iter().filter(|(suite, _)| suite.has_real_programs());
        let failed = suites
            .flat_map(|(suite, outcome)| outcome.failed.iter().map(|test| (*suite, test.clone())));
        // A program that a signal has ended has no single test to repeat.
        failed.filter(|(_, test)| !test.name.is_empty()).collect()
    }

    /// Takes the result of a second run: a test that passes is flaky.
    pub fn repeated(&mut self, suite: Suite, test: &TestName, results: &[StepResult]) {
        let has_passed = results.iter().all(|result| result.end == StepEnd::Ended { is_ok: true });
        if has_passed && let Some(outcome) = self.outcome_of(suite) {
            outcome.failed.retain(|failed| failed != test);
            outcome.passed.push(test.clone());
            self.flaky.push((suite, test.clone()));
        }
    }

    fn outcome_of(&mut self, suite: Suite) -> Option<&mut Outcome> {
        self.outcomes.iter_mut().find(|(other, _)| *other == suite).map(|(_, outcome)| outcome)
    }

    /// Whether a step has failed. A suite with flaky tests only has not; a suite in which no test has the text
    /// of the filter has not either.
    fn has_failed(&self, result: &StepResult) -> bool {
        let outcome = self.outcomes.iter().find(|(suite, _)| suite.name() == result.name);
        let is_ok = result.end == StepEnd::Ended { is_ok: true };
        let Some((suite, outcome)) = outcome else { return !is_ok };
        let is_flaky = self.flaky.iter().any(|(other, _)| other == suite);
        let has_no_match = self.has_filter && outcome.passed.is_empty();
        !outcome.failed.is_empty() || !(is_ok || is_flaky || has_no_match)
    }

    /// Prints the output of all failed tests.
    pub fn print_failures(&self) {
        for (_, outcome) in &self.outcomes {
            outcome.print_failures();
        }
    }

    /// Number of passed tests.
    pub fn passed(&self) -> usize {
        self.outcomes.iter().map(|(_, outcome)| outcome.passed.len()).sum()
    }

    /// Prints the end of the run; an error if something has failed.
    pub fn finish(&self) -> TaskResult {
        let failed: Vec<&StepResult> =
            self.results.iter().filter(|result| self.has_failed(result)).collect();
        for result in &failed {
            self.print_log(result);
        }
        println!("\n{}", self.table());
        let passed = self.passed();
        // A step without tests counts as one.
        let failed_tests: usize =
            self.outcomes.iter().map(|(_, outcome)| outcome.failed.len()).sum();
        let failed_count = failed_tests.max(failed.len());
        println!("{passed} passed, {failed_count} failed");
        let names: Vec<String> =
            self.flaky.iter().map(|(_, test)| format!("flaky: {test}\n")).collect();
        let path = build::target_directory().join("flaky.txt");
        if !names.is_empty() {
            build::write(&path, names.concat().as_bytes())?;
        } else if path.exists() {
            std::fs::remove_file(&path)?;
        }
        print!("{}", names.concat());
        if failed.is_empty() && self.has_filter && passed == 0 {
            return Err(TaskError("no test has this text in its name".to_owned()));
        }
        if failed.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = failed.iter().map(|result| result.name.as_str()).collect();
        let logs = failed.iter().filter(|result| result.has_log);
        let logs: Vec<String> =
            logs.map(|result| steps::log_path(&result.name).display().to_string()).collect();
        let hint = if logs.is_empty() { "" } else { "\n  hint: the whole output is in " };
        let logs = logs.join(", ");
        Err(TaskError(format!("failed: {}{hint}{logs}", names.join(", "))))
    }

    /// Prints the log's last lines for a failed step without tests, such as a build.
    fn print_log(&self, result: &StepResult) {
        let has_tests = self
            .outcomes
            .iter()
            .any(|(suite, outcome)| suite.name() == result.name && !outcome.failed.is_empty());
        if has_tests || !result.has_log {
            return;
        }
        let log = std::fs::read(steps::log_path(&result.name)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        println!("── {} (the last lines)", result.name);
        for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
            println!("{line}");
        }
    }

    /// A line for each step: wall time, CPU time, tests, and the budget of CONTRIBUTING.md.
    fn table(&self) -> String {
        let mut text =
            format!("{:<18} {:>8} {:>8} {:>7} {:>8}\n", "step", "wall", "CPU", "tests", "budget");
        let (mut cpu, mut end) = (Duration::ZERO, Duration::ZERO);
        for result in &self.results {
            cpu += result.cpu;
            end = end.max(result.ended);
            let suite = Suite::named(&result.name);
            let outcome = self.outcomes.iter().find(|(other, _)| Some(*other) == suite);
            let tests = outcome.map_or_else(String::new, |(_, outcome)| {
                (outcome.passed.len() + outcome.failed.len()).to_string()
            });
            let budget = suite.map_or_else(String::new, |suite| format!("{} s", suite.budget()));
            let (wall, cpu) = (seconds(result.wall), seconds(result.cpu));
            let _ = writeln!(text, "{:<18} {wall:>8} {cpu:>8} {tests:>7} {budget:>8}", result.name);
        }
        let (end, cpu) = (seconds(end), seconds(cpu));
        let _ = writeln!(text, "{:<18} {end:>8} {cpu:>8} {:>7} {BUDGET:>8}", "all", "");
        text
    }
}

/// The budget of a whole run, in CONTRIBUTING.md too.
const BUDGET: &str = "900 s";

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

fn has_run(results: &[StepResult], name: &str) -> bool {
    results.iter().any(|result| result.name == name && result.end != StepEnd::NotStarted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test(name: &str) -> TestName {
        TestName { program: "cli/netns".to_owned(), name: name.to_owned() }
    }

    fn ended(name: &str, is_ok: bool) -> StepResult {
        StepResult {
            name: name.to_owned(),
            end: StepEnd::Ended { is_ok },
            wall: Duration::from_secs(1),
            cpu: Duration::from_secs(1),
            ended: Duration::from_secs(1),
            has_log: true,
        }
    }

    fn report(suite: Suite) -> Report {
        let outcome =
            Outcome { passed: vec![test("a")], failed: vec![test("b")], failures: Vec::new() };
        Report {
            results: vec![ended(suite.name(), false)],
            outcomes: vec![(suite, outcome)],
            flaky: Vec::new(),
            has_filter: false,
        }
    }

    #[test]
    fn a_suite_without_a_test_has_failed_unless_there_is_a_filter() {
        let mut report = report(Suite::Netns);
        report.outcomes[0].1 = Outcome::default();
        assert!(report.has_failed(&report.results[0]));
        report.has_filter = true;
        assert!(!report.has_failed(&report.results[0]));
    }

    #[test]
    fn a_test_that_passes_alone_is_flaky_and_its_suite_has_not_failed() {
        let mut report = report(Suite::Netns);
        let [(suite, name)] = &report.repeatable()[..] else { panic!("one test") };
        assert!(report.has_failed(&report.results[0]));
        report.repeated(*suite, &name.clone(), &[ended("netns-again", true)]);
        assert!(!report.has_failed(&report.results[0]));
        assert_eq!(report.flaky, [(Suite::Netns, test("b"))]);
    }

    #[test]
    fn a_test_that_fails_twice_has_failed() {
        let mut report = report(Suite::Netns);
        report.repeated(Suite::Netns, &test("b"), &[ended("netns-again", false)]);
        assert!(report.has_failed(&report.results[0]) && report.flaky.is_empty());
    }

    #[test]
    fn a_step_that_fails_without_a_failed_test_has_failed() {
        let mut report = report(Suite::Netns);
        report.outcomes[0].1.failed.clear();
        assert!(report.has_failed(&report.results[0]));
    }

    #[test]
    fn many_failed_tests_are_not_repeated() {
        let mut report = report(Suite::Netns);
        report.outcomes[0].1.failed = (0..6).map(|number| test(&number.to_string())).collect();
        assert!(report.repeatable().is_empty());
    }

    #[test]
    fn failed_unit_and_contract_tests_are_not_repeated() {
        assert!(report(Suite::Unit).repeatable().is_empty());
        assert!(report(Suite::Contract).repeatable().is_empty());
    }
}

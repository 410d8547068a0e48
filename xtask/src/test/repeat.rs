// SPDX-License-Identifier: Apache-2.0
//! `--repeat N`: runs suites several times, with or without busy loops beside them, and counts the failures of each test.

use std::collections::BTreeMap;
use std::process::Child;

use super::options::TestOptions;
use super::plan::{chosen, preparation, suite_steps};
use super::report::Report;
use super::steps::{self, StepEnd};
use crate::{TaskError, TaskResult, sandbox};

/// Builds once, then runs the suites `count` times.
pub fn run(options: &TestOptions, count: u32) -> TaskResult {
    let mut suites = chosen(options);
    if options.suites.is_empty() {
        suites.retain(|suite| suite.is_repeated());
    }
    let prepared = steps::run(preparation(&suites, false))?;
    if prepared.iter().any(|result| result.end != StepEnd::Ended { is_ok: true }) {
        return Report::new(&[], prepared, false).finish();
    }
    let _load = options.has_load.then(BusyLoops::start).transpose()?;
    let mut failures: BTreeMap<String, u32> = BTreeMap::new();
    let mut passed = 0;
    for round in 1..=count {
        println!("round {round} of {count}");
        let mut steps = suite_steps(&suites, options);
        for step in &mut steps {
            step.after.clear();
        }
        let report = Report::new(&suites, steps::run(steps)?, !options.filter.is_empty());
        report.print_failures();
        passed += report.passed();
        for name in report.failed_names() {
            *failures.entry(name).or_default() += 1;
        }
    }
    if failures.is_empty() && passed == 0 {
        return Err(TaskError("no test has this text in its name".to_owned()));
    }
    if failures.is_empty() {
        println!("\nno test failed in {count} rounds, {passed} passed");
        return Ok(());
    }
    println!("\n{:>6}  test", "failed");
    for (name, times) in &failures {
        println!("{times:>2} of {count:<2} {name}");
    }
    Err(TaskError(format!(
        "{} tests failed at least once; their output is above\n  hint: docs/operations/flake-patterns.md",
        failures.len()
    )))
}

/// Processes that use the processors, one for each. They end together with this process.
struct BusyLoops(Vec<Child>);

impl BusyLoops {
    fn start() -> Result<Self, TaskError> {
        let count = std::thread::available_parallelism()?.get();
        let start = |_| sandbox::bound_command().args(["sh", "-c", "while :; do :; done"]).spawn();
        Ok(Self((0..count).map(start).collect::<Result<_, _>>()?))
    }
}

impl Drop for BusyLoops {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

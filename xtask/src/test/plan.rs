// SPDX-License-Identifier: Apache-2.0
//! The order of the steps in a run.
//!
//! ```text
//! install ──▶ fetch SUITE … ─────────┐
//! build ─────────────────────────────┼──▶ suites with tests, in four queues beside each other
//!   └──▶ pack ──▶ check (idle)       │
//!        fuzz (idle), deployment ◀───┘
//! ```
//!
//! The compiler starts at once, and programs are installed beside it. As soon as the tests are built, they run; the rest
//! of the compiler's work takes the CPU time that they leave.

use super::options::TestOptions;
use super::outcome::TestName;
use super::report::Report;
use super::steps::{self, Step};
use super::suite::Suite;
use super::suite_run::has_downloads;
use crate::{TaskError, TaskResult, bench};

/// The order in which suites are prepared, and run within a queue: the long ones first.
const ORDER: [Suite; 10] = [
    Suite::Unit,
    Suite::Netns,
    Suite::Packages,
    Suite::Neutron,
    Suite::Contract,
    Suite::Faults,
    Suite::Browser,
    Suite::Deployment,
    Suite::Check,
    Suite::Fuzz,
];

/// Runs the suites of the command line, or all.
pub fn run(options: &TestOptions) -> TaskResult {
    let suites = chosen(options);
    if options.suites.is_empty() && !options.filter.is_empty() {
        println!("no suite named: all tests with {:?} in their name run", options.filter);
    }
    let mut steps = preparation(&suites, options.is_full);
    steps.extend(suite_steps(&suites, options));
    if let [_] = suites[..] {
        // One suite: a person waits for its output.
        for step in &mut steps {
            step.is_shown = true;
        }
    }
    let mut report = Report::new(&suites, steps::run(steps)?, !options.filter.is_empty());
    report.print_failures();
    let repeated = if std::env::var_os("CI").is_some_and(|value| value == "true") {
        repeat_failed(&mut report)
    } else {
        Ok(())
    };
    let result = report.finish().and(repeated);
    if options.is_full && options.suites.is_empty() {
        return result.and_then(|()| bench::all_quickly());
    }
    result
}

/// The suites of the command line; all, or with a filter those that have tests with names.
pub fn chosen(options: &TestOptions) -> Vec<Suite> {
    if !options.suites.is_empty() {
        return options.suites.clone();
    }
    let is_chosen = |suite: &Suite| options.filter.is_empty() || suite.has_named_tests();
    Suite::ALL.into_iter().filter(is_chosen).collect()
}

/// The steps before the suites.
pub fn preparation(suites: &[Suite], is_full: bool) -> Vec<Step> {
    let names: Vec<&str> = suites.iter().map(|suite| suite.name()).collect();
    let mut steps = vec![
        step("install", [&["install"], &names[..]].concat(), "install"),
        step("build", [&["build"], &names[..]].concat(), "cargo"),
    ];
    for suite in ORDER.into_iter().filter(|suite| suites.contains(suite) && has_downloads(*suite)) {
        let mut fetch = step(&fetch_name(suite), vec!["fetch", suite.name()], "install");
        fetch.after.push("install".to_owned());
        steps.push(fetch);
    }
    if suites.contains(&Suite::Packages) {
        let mut pack = step("pack", vec!["pack"], "cargo");
        pack.after.extend(["build".to_owned(), fetch_name(Suite::Packages)]);
        steps.push(pack);
    }
    if is_full {
        for step in &mut steps {
            step.args.push("--full".to_owned());
        }
    }
    steps
}

fn fetch_name(suite: Suite) -> String {
    format!("fetch-{}", suite.name())
}

fn step(name: &str, args: Vec<&str>, queue: &'static str) -> Step {
    Step {
        name: name.to_owned(),
        args: args.into_iter().map(str::to_owned).collect(),
        after: Vec::new(),
        queue,
        is_idle: false,
        is_shown: false,
    }
}

/// The steps that run the suites, in the order in which they start within a queue.
pub fn suite_steps(suites: &[Suite], options: &TestOptions) -> Vec<Step> {
    use Suite::{Check, Deployment, Fuzz, Packages};
    let chosen = ORDER.into_iter().filter(|suite| suites.contains(suite));
    chosen
        .map(|suite| {
            let mut step = step(suite.name(), vec!["run", suite.name()], queue(suite));
            step.after.push("install".to_owned());
            if has_downloads(suite) {
                step.after.push(fetch_name(suite));
            }
            if !matches!(suite, Deployment | Fuzz) {
                step.after.push("build".to_owned());
            }
            if suite == Packages {
                step.after.push("pack".to_owned());
            }
            step.is_idle = matches!(suite, Check | Fuzz | Deployment);
            step.args.extend(options.of_suites());
            step
        })
        .collect()
}

/// Suites in one queue run one after the other. The queues are about equally long; the faults mostly wait.
fn queue(suite: Suite) -> &'static str {
    match suite {
        Suite::Unit | Suite::Netns | Suite::Contract => "namespaces",
        Suite::Packages => "packages",
        Suite::Neutron => "neutron",
        Suite::Faults | Suite::Browser => "browser",
        Suite::Check => "cargo",
        Suite::Deployment => "deployment",
        Suite::Fuzz => "fuzz",
    }
}

/// Runs each failed test of the suites with real programs once more, alone.
fn repeat_failed(report: &mut Report) -> Result<(), TaskError> {
    for (number, (suite, test)) in report.repeatable().into_iter().enumerate() {
        println!("once more, alone: {test}");
        let results = steps::run(vec![again(suite, &test, number + 1)])?;
        report.repeated(suite, &test, &results);
    }
    Ok(())
}

/// The step that runs one test.
fn again(suite: Suite, test: &TestName, number: usize) -> Step {
    let args = vec!["run", suite.name(), "--exact", &test.program, &test.name];
    step(&format!("{}-again-{number}", suite.name()), args, "again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_waits_only_for_steps_that_exist() {
        let options = TestOptions::default();
        for suites in
            [&Suite::ALL[..], &[Suite::Unit, Suite::Packages], &[Suite::Fuzz, Suite::Check]]
        {
            let mut steps = preparation(suites, false);
            steps.extend(suite_steps(suites, &options));
            let names: Vec<&String> = steps.iter().map(|step| &step.name).collect();
            for step in &steps {
                assert!(step.after.iter().all(|name| names.contains(&name)), "{}", step.name);
            }
            for suite in suites {
                assert!(names.iter().any(|name| *name == suite.name()), "{suite:?}");
            }
        }
    }

    #[test]
    fn a_filter_alone_chooses_the_suites_with_named_tests() {
        let options = TestOptions { filter: "webhook".to_owned(), ..TestOptions::default() };
        let suites = chosen(&options);
        assert!(suites.contains(&Suite::Unit) && suites.contains(&Suite::Netns));
        assert!(!suites.contains(&Suite::Check) && !suites.contains(&Suite::Faults));
        assert_eq!(chosen(&TestOptions::default()), Suite::ALL);
    }
}

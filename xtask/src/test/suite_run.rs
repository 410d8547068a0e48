// SPDX-License-Identifier: Apache-2.0
//! The parts of a suite's run: install programs, fetch other software, build, run. A suite alone does them one after the
//! other; in a run of several suites, each part is a step.

use std::path::{Path, PathBuf};

use super::options::TestOptions;
use super::outcome::{Outcome, TestName};
use super::suite::Suite;
use super::{program, steps};
use crate::build::{self, TestProgram};
use crate::{TaskError, TaskResult, check, deployment, faults, fuzz, packages, provision, sandbox};

/// The tests of a suite that run.
#[derive(Default)]
pub struct Selection {
    /// Part of the name; empty for all tests.
    pub filter: String,
    /// Only the test with this name; the filter is not used then.
    pub exact: Option<TestName>,
    /// With what takes too long for every change.
    pub is_full: bool,
    pub subject: Option<PathBuf>,
    pub table: Option<PathBuf>,
}

/// Runs one suite with its output on the terminal.
pub fn alone(suite: Suite, options: &TestOptions) -> TaskResult {
    install(&[suite])?;
    fetch(suite, options.is_full)?;
    let programs = build_programs(&[suite], options.is_full)?;
    if suite == Suite::Packages {
        packages::pack(options.is_full, options.filter.is_empty())?;
    }
    let selection = Selection {
        filter: options.filter.clone(),
        is_full: options.is_full,
        subject: options.subject.clone(),
        table: options.table.clone(),
        exact: None,
    };
    run(suite, &selection, &programs)
}

/// One step of a run of several suites, in a process of its own.
pub fn step(args: &[&str]) -> TaskResult {
    let suites = |names: &[&str]| -> Vec<Suite> {
        names.iter().filter_map(|name| Suite::named(name)).collect()
    };
    let is_full = args.contains(&"--full");
    match args {
        ["install", names @ ..] => install(&suites(names)),
        ["fetch", name, ..] => {
            suites(&[name]).into_iter().try_for_each(|suite| fetch(suite, is_full))
        }
        ["build", names @ ..] => {
            let programs = build_programs(&suites(names), is_full)?;
            build::write_test_programs(&programs, &programs_path())
        }
        ["pack", ..] => packages::pack(is_full, true),
        ["run", name, filter, exact @ ..] => {
            let suite = Suite::named(name)
                .ok_or_else(|| TaskError(format!("there is no suite {name:?}")))?;
            let exact = match exact {
                ["--exact", program, name] => {
                    Some(TestName { program: (*program).to_owned(), name: (*name).to_owned() })
                }
                _ => None,
            };
            let filter = (*filter).to_owned();
            let selection = Selection { filter, exact, is_full, ..Selection::default() };
            run(suite, &selection, &build::read_test_programs(&programs_path())?)
        }
        other => Err(TaskError(format!("unknown step {other:?}"))),
    }
}

/// The file with the paths of the test programs, for the steps after the build.
fn programs_path() -> PathBuf {
    steps::directory().join("programs.json")
}

/// The file for the outcome of a suite.
pub fn outcome_path(suite: Suite) -> PathBuf {
    steps::directory().join(format!("{}.json", suite.name()))
}

/// Installs the programs that the suites start, all at once.
fn install(suites: &[Suite]) -> TaskResult {
    let needs: Vec<&[provision::Need]> =
        suites.iter().flat_map(|suite| suite.needs().iter().copied()).collect();
    provision::programs(&needs)?;
    if suites.contains(&Suite::Packages) {
        sandbox::check_root()?;
    }
    let needs_users = |suite: &Suite| {
        matches!(suite, Suite::Netns | Suite::Contract | Suite::Neutron | Suite::Faults)
    };
    if suites.iter().any(needs_users) { sandbox::check_users() } else { Ok(()) }
}

/// Whether [`fetch`] does something for a suite.
pub fn has_downloads(suite: Suite) -> bool {
    use Suite::{Browser, Check, Deployment, Netns, Neutron, Packages};
    match suite {
        Check => check::needs_deny(false),
        Netns | Neutron | Browser | Packages | Deployment => true,
        _ => false,
    }
}

/// Fetches the software that is not in Debian; what exists is not fetched again.
fn fetch(suite: Suite, is_full: bool) -> TaskResult {
    match suite {
        Suite::Check if check::needs_deny(is_full) => drop(provision::cargo_deny()?),
        Suite::Packages => packages::fetch(is_full)?,
        Suite::Deployment => deployment::fetch()?,
        _ => drop(environment(suite)?),
    }
    Ok(())
}

/// The environment variables of a suite's test programs, with the paths of fetched software.
fn environment(suite: Suite) -> Result<Vec<(&'static str, PathBuf)>, TaskError> {
    Ok(match suite {
        Suite::Netns => vec![("VIPWATCH_SCHEMATHESIS", provision::schemathesis()?)],
        Suite::Neutron => vec![
            ("VIPWATCH_NEUTRON_29", provision::neutron("29.0.0")?),
            ("VIPWATCH_NEUTRON_28", provision::neutron("28.0.2")?),
            ("VIPWATCH_KEYSTONE", provision::keystone()?),
        ],
        Suite::Browser => vec![("VIPWATCH_AXE", provision::axe()?)],
        _ => Vec::new(),
    })
}

/// Builds the test programs of the suites, and the programs of vipwatch that they use.
fn build_programs(suites: &[Suite], is_full: bool) -> Result<Vec<TestProgram>, TaskError> {
    let mut options = Vec::new();
    for suite in suites {
        match suite.targets() {
            Some(targets) => options.extend(targets.iter().flat_map(|target| ["--test", target])),
            None if *suite == Suite::Unit => options.extend(["--lib", "--bins"]),
            None => {}
        }
    }
    if is_full && suites.contains(&Suite::Packages) {
        options.extend(["--test", "packages-full"]);
    }
    let programs = if options.is_empty() { Vec::new() } else { build::tests(&options)? };
    if suites.contains(&Suite::Faults) || suites.contains(&Suite::Packages) {
        build::debug_programs(&faults::PROGRAMS)?;
    }
    if suites.iter().any(|suite| uses_dropin(*suite)) {
        build::dropin()?;
    }
    Ok(programs)
}

/// Whether a suite runs the drop-in as it is shipped.
fn uses_dropin(suite: Suite) -> bool {
    matches!(suite, Suite::Netns | Suite::Contract | Suite::Neutron | Suite::Packages)
}

/// Runs a suite that is built. Its outcome is in [`outcome_path`] afterwards, if it has tests.
fn run(suite: Suite, selection: &Selection, programs: &[TestProgram]) -> TaskResult {
    std::fs::create_dir_all(steps::directory())?;
    let outcome = outcome_path(suite);
    if outcome.exists() {
        std::fs::remove_file(&outcome)?;
    }
    match suite {
        Suite::Check => check::all(selection.is_full),
        Suite::Deployment => deployment::check(),
        Suite::Fuzz => fuzz::briefly(),
        Suite::Faults if selection.is_full => faults::fully(),
        Suite::Faults => run_faults(selection, &outcome),
        _ => run_tests(suite, selection, programs, &outcome),
    }
}

/// Runs test programs in the sandbox.
fn run_tests(
    suite: Suite,
    selection: &Selection,
    programs: &[TestProgram],
    outcome: &Path,
) -> TaskResult {
    let wanted = |program: &&TestProgram| {
        Suite::of(program) == suite
            && selection.exact.as_ref().is_none_or(|test| test.program == program.name())
    };
    let filter = selection.exact.as_ref().map_or(&selection.filter, |test| &test.name);
    let mut line = vec![filter.clone()];
    for program in programs.iter().filter(wanted) {
        let path = program.path.display().to_string();
        line.extend([suite.name().to_owned(), program.name(), path]);
    }
    let mut environment = environment(suite)?;
    environment.push((program::RESULTS, std::path::absolute(outcome)?));
    if selection.exact.is_some() {
        environment.push((program::EXACT, PathBuf::from("1")));
    }
    if let Some(table) = &selection.table {
        environment.push((program::TABLE, table.clone()));
    }
    if uses_dropin(suite) {
        let subject = selection.subject.clone();
        environment.push(("VIPWATCH_SUBJECT", subject.unwrap_or_else(build::dropin_path)));
    }
    let as_root = suite == Suite::Packages;
    if as_root {
        environment.extend(packages::environment()?);
    }
    let mut environment: Vec<(&str, String)> =
        environment.into_iter().map(|(name, path)| (name, path.display().to_string())).collect();
    if as_root {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        return sandbox::enter_as_root(&line, &environment);
    }
    environment.push(("TMPDIR", sandbox::TEMPORARY.to_owned()));
    line.insert(0, "test".to_owned());
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    sandbox::enter(&line, &environment)
}

/// Runs the short selection of fault schedules; a schedule is a test.
fn run_faults(selection: &Selection, path: &Path) -> TaskResult {
    let mut outcome = Outcome::default();
    for lab in faults::LABS {
        let program = format!("faults/{lab}");
        if selection.exact.as_ref().is_some_and(|test| test.program != program) {
            continue;
        }
        let exact = selection.exact.as_ref().map(|test| test.name.as_str());
        let seeds = faults::briefly(lab, exact)?;
        let names = |seeds: &[u64]| -> Vec<TestName> {
            let name = |seed: &u64| TestName { program: program.clone(), name: seed.to_string() };
            seeds.iter().map(name).collect()
        };
        outcome.add(Outcome {
            passed: names(&seeds.passed),
            failed: names(&seeds.failed),
            failures: seeds.reasons,
        });
    }
    outcome.write(path)?;
    println!("\n{} passed, {} failed", outcome.passed.len(), outcome.failed.len());
    outcome.into_result()
}

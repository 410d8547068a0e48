// SPDX-License-Identifier: Apache-2.0
//! What the steps of a run do: install programs, fetch other software, build, run a suite.

use std::path::{Path, PathBuf};

use super::outcome::{Outcome, TestName};
use super::suite::Suite;
use super::{program, steps};
use crate::build::{self, TestProgram};
use crate::{TaskError, TaskResult, check, deployment, faults, fuzz, packages, provision, sandbox};

/// One step of a run, in a process of its own.
pub fn step(args: &[&str]) -> TaskResult {
    let suites = |names: &[&str]| -> Vec<Suite> {
        names.iter().filter_map(|name| Suite::named(name)).collect()
    };
    let is_full = args.contains(&"--full");
    match args {
        ["install", names @ ..] => install(&suites(names)),
        ["fetch", names @ ..] => {
            suites(names).into_iter().try_for_each(|suite| fetch(suite, is_full))
        }
        ["build", names @ ..] => {
            let programs = build_programs(&suites(names), is_full)?;
            build::write(&programs_path(), &serde_json::to_vec(&programs)?)
        }
        ["pack", ..] => packages::pack(is_full),
        ["run", name, options @ ..] => {
            suites(&[name]).into_iter().try_for_each(|suite| run(suite, &Selection { options }))
        }
        other => Err(TaskError(format!("unknown step {other:?}"))),
    }
}

/// The tests of a suite that run, as options of a step: `--filter TEXT`, `--exact PROGRAM NAME`, `--full`, `--subject PATH`,
/// `--table FILE`.
struct Selection<'a> {
    options: &'a [&'a str],
}

impl Selection<'_> {
    /// The value of an option, which has `skip` other values before it.
    fn value(&self, option: &str, skip: usize) -> Option<&str> {
        let position = self.options.iter().position(|word| *word == option)?;
        self.options.get(position + 1 + skip).copied()
    }

    /// The only test that runs: its program and its name.
    fn exact(&self) -> Option<(&str, &str)> {
        Some((self.value("--exact", 0)?, self.value("--exact", 1)?))
    }

    fn is_full(&self) -> bool {
        self.options.contains(&"--full")
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
        // mmdebstrap of a user that is not root needs further ids, too.
        !matches!(
            suite,
            Suite::Check | Suite::Unit | Suite::Browser | Suite::Deployment | Suite::Fuzz
        )
    };
    if suites.iter().any(needs_users) { sandbox::check_users() } else { Ok(()) }
}

/// Whether [`fetch`] does something for a suite.
pub fn has_downloads(suite: Suite) -> bool {
    use Suite::{Browser, Check, Deployment, Faults, Netns, Neutron, Packages};
    match suite {
        Check => check::needs_deny(false),
        Netns | Neutron | Browser | Faults | Packages | Deployment => true,
        _ => false,
    }
}

/// Fetches the software that is not in Debian; what exists is not fetched again.
fn fetch(suite: Suite, is_full: bool) -> TaskResult {
    match suite {
        Suite::Check if check::needs_deny(is_full) => drop(provision::cargo_deny()?),
        Suite::Packages => packages::fetch(is_full)?,
        Suite::Deployment => deployment::fetch()?,
        Suite::Faults => drop(provision::keepalived::versions(is_full)?),
        _ => drop(environment(suite, is_full)?),
    }
    Ok(())
}

/// The environment variables of a suite's test programs, with the paths of fetched software.
fn environment(suite: Suite, is_full: bool) -> Result<Vec<(&'static str, PathBuf)>, TaskError> {
    Ok(match suite {
        Suite::Netns => vec![
            ("VIPWATCH_SCHEMATHESIS", provision::schemathesis()?),
            // The linter's environment has ansible-core.
            ("VIPWATCH_ANSIBLE", provision::ansible_lint()?),
            (provision::keepalived::VERSIONS, provision::keepalived::versions(is_full)?),
        ],
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
fn run(suite: Suite, selection: &Selection) -> TaskResult {
    let outcome = outcome_path(suite);
    if outcome.exists() {
        std::fs::remove_file(&outcome)?;
    }
    match suite {
        Suite::Check => check::all(selection.is_full()),
        Suite::Deployment => deployment::check(),
        Suite::Fuzz => fuzz::briefly(),
        Suite::Faults if selection.is_full() => faults::fully(),
        Suite::Faults => run_faults(selection, &outcome),
        _ => run_tests(suite, selection, &outcome),
    }
}

/// Runs test programs in the sandbox.
fn run_tests(suite: Suite, selection: &Selection, outcome: &Path) -> TaskResult {
    let programs: Vec<TestProgram> = serde_json::from_slice(&std::fs::read(programs_path())?)?;
    let is_wanted = |program: &&TestProgram| {
        Suite::of(program) == suite
            && selection.exact().is_none_or(|(wanted, _)| wanted == program.name())
    };
    let filter = selection.exact().map(|(_, name)| name).or(selection.value("--filter", 0));
    let mut line = vec![filter.unwrap_or_default().to_owned()];
    for program in programs.iter().filter(is_wanted) {
        let path = program.path.display().to_string();
        line.extend([suite.name().to_owned(), program.name(), path]);
    }
    let environment = test_environment(suite, selection, outcome)?;
    let environment: Vec<(&str, String)> =
        environment.into_iter().map(|(name, path)| (name, path.display().to_string())).collect();
    if suite == Suite::Packages {
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        return sandbox::enter_as_root(&line, &environment);
    }
    line.insert(0, "test".to_owned());
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    sandbox::enter(&line, &environment)
}

/// All environment variables of a suite's test programs.
fn test_environment(
    suite: Suite,
    selection: &Selection,
    outcome: &Path,
) -> Result<Vec<(&'static str, PathBuf)>, TaskError> {
    let mut variables = environment(suite, selection.is_full())?;
    variables.push((program::RESULTS, std::path::absolute(outcome)?));
    if selection.exact().is_some() {
        variables.push((program::EXACT, PathBuf::from("1")));
    }
    variables.extend(selection.value("--table", 0).map(|path| (program::TABLE, path.into())));
    if uses_dropin(suite) {
        let subject = selection.value("--subject", 0).map(PathBuf::from);
        variables.push(("VIPWATCH_SUBJECT", subject.unwrap_or_else(build::dropin_path)));
    }
    if suite == Suite::Packages {
        variables.extend(packages::environment()?);
    } else {
        variables.push(("TMPDIR", sandbox::TEMPORARY.into()));
    }
    Ok(variables)
}

/// Runs the short selection of fault schedules; a schedule is a test, and its name is the seed.
fn run_faults(selection: &Selection, path: &Path) -> TaskResult {
    let mut outcome = Outcome::default();
    let exact = selection.exact();
    // Labs of nodes mostly wait; etcd needs the processors.
    for labs in [&["nodes", "healthy"][..], &["cluster"]] {
        let is_chosen =
            |lab: &&&'static str| exact.is_none_or(|(wanted, _)| wanted == format!("faults/{lab}"));
        let runs: Vec<Result<Outcome, TaskError>> = std::thread::scope(|scope| {
            let start = |lab: &&'static str| {
                let lab = *lab;
                scope.spawn(move || run_lab(lab, exact.map(|(_, seed)| seed)))
            };
            let started: Vec<_> = labs.iter().filter(is_chosen).map(start).collect();
            started.into_iter().map(|run| run.join().expect("a run does not panic")).collect()
        });
        for run in runs {
            outcome.add(run?);
        }
    }
    outcome.write(path)?;
    outcome.finish()
}

/// Runs the short selection of one kind of lab, or one seed of it.
fn run_lab(lab: &str, seed: Option<&str>) -> Result<Outcome, TaskError> {
    let seeds = faults::briefly(lab, seed)?;
    let names = |seeds: &[u64]| -> Vec<TestName> {
        let program = format!("faults/{lab}");
        let name = |seed: &u64| TestName { program: program.clone(), name: seed.to_string() };
        seeds.iter().map(name).collect()
    };
    Ok(Outcome {
        passed: names(&seeds.passed),
        failed: names(&seeds.failed),
        failures: seeds.reasons,
    })
}

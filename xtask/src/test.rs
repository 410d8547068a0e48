// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask test`: runs all tests in the sandbox. A test that cannot run is a failure.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::build::{self, TestProgram};
use crate::{TaskError, TaskResult, check, deployment, faults, fuzz, packages, provision, sandbox};

pub const HELP: &str = "\
Run all checks and tests, or one suite. This command must succeed before a change is merged.

Usage: cargo xtask test [SUITE] [FILTER] [--full] [--subject PATH] [--table FILE]

Suites:
  unit      Unit and property tests, which need nothing
  netns     Tests in network namespaces, with real keepalived
  contract  Tests of the drop-in with the exact command lines of each Neutron release
  neutron   Tests with Neutron's own code, releases 28 and 29, as the agent and as the API server with Keystone
  browser   Tests of the dashboard in real Chromium, with a node and real keepalived
  faults    Short schedules of faults with real keepalived, judged by an independent checker
  packages  Installation of the Debian packages in a clean system with a real systemd; needs root
  fuzz      20,000 inputs for each fuzz target
  deployment  The examples for Ansible, Kolla-Ansible, OpenStack-Ansible and Helm, each with its own linter

  FILTER          Run only tests with this text in their name
  --full          Run 200 schedules of faults and judge their deadlines too; this takes more than half an hour.
                  With `packages`: build everything that is shipped, and test it on older systems too
  --subject PATH  Run the contract suite on another executable, for example on Neutron's script
  --table FILE    Write the results to FILE as a Markdown table

Examples:
  cargo xtask test
  cargo xtask test netns webhook
  cargo xtask test contract --subject /usr/bin/neutron-keepalived-state-change --table script.md
";

/// A suite of tests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suite {
    Unit,
    Netns,
    Contract,
    Neutron,
    Browser,
    Packages,
}

impl Suite {
    const ALL: [Self; 6] =
        [Self::Unit, Self::Netns, Self::Contract, Self::Neutron, Self::Browser, Self::Packages];

    fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Netns => "netns",
            Self::Contract => "contract",
            Self::Neutron => "neutron",
            Self::Browser => "browser",
            Self::Packages => "packages",
        }
    }

    /// An integration test has the name of its suite; every other test program has unit tests.
    fn of(program: &TestProgram) -> Self {
        Self::ALL.into_iter().find(|suite| suite.name() == program.target).unwrap_or(Self::Unit)
    }

    /// Number of concurrent tests. Tests in namespaces mostly wait for other processes; tests with Neutron's own
    /// agents or with a browser need the processors themselves.
    fn threads(self) -> &'static str {
        match self {
            Self::Unit | Self::Packages => "2",
            Self::Netns | Self::Contract => "8",
            Self::Neutron | Self::Browser => "1",
        }
    }
}

/// A parsed command line.
#[derive(Default)]
struct TestOptions<'a> {
    /// `None` runs all suites.
    suite: Option<Suite>,
    filter: Option<&'a str>,
    /// 200 schedules of faults instead of the short selection.
    is_full: bool,
    subject: Option<PathBuf>,
    table: Option<PathBuf>,
}

fn parse<'a>(args: &[&'a str]) -> Result<TestOptions<'a>, TaskError> {
    let mut options = TestOptions::default();
    let mut args = args.iter().copied();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| TaskError(format!("{arg} needs a value")));
        match arg {
            "--full" => options.is_full = true,
            "--subject" => options.subject = Some(std::path::absolute(value()?)?),
            "--table" => options.table = Some(std::path::absolute(value()?)?),
            arg if arg.starts_with('-') => return Err(TaskError(format!("unknown option {arg}"))),
            arg if options.suite.is_none() && options.filter.is_none() => {
                options.suite = Suite::ALL.into_iter().find(|suite| suite.name() == arg);
                if options.suite.is_none() {
                    options.filter = Some(arg);
                }
            }
            arg => options.filter = Some(arg),
        }
    }
    Ok(options)
}

/// Builds and installs everything, then runs the tests in the sandbox.
pub fn prepare(args: &[&str]) -> TaskResult {
    if args == ["fuzz"] {
        return fuzz::briefly();
    }
    match args {
        ["deployment"] => return deployment::check(),
        ["faults"] => return faults::briefly(),
        ["faults", "--full"] => return faults::fully(),
        ["packages", rest @ ..] => return packages::run(rest),
        _ => {}
    }
    let options = parse(args)?;
    provision::disk_space()?;
    provision::programs(&[provision::BASIC])?;
    sandbox::check_namespaces()?;
    let is_all = options.suite.is_none() && options.filter.is_none();
    if is_all {
        check::quick()?;
        deployment::check()?;
        fuzz::briefly()?;
        if options.is_full {
            faults::fully()?;
        } else {
            faults::briefly()?;
        }
        packages::run(if options.is_full { &["--full"] } else { &[] })?;
    }
    let wants = |suite| options.suite.is_none_or(|chosen| chosen == suite);
    if wants(Suite::Netns) || wants(Suite::Contract) {
        provision::programs(&[provision::TCPDUMP, provision::ARPING, provision::KEEPALIVED])?;
        let needs =
            [provision::SQLITE_OPENSSL, provision::PEERS, provision::PROMETHEUS, provision::ETCD];
        provision::programs(&needs)?;
        provision::programs(&[provision::SHELLS])?;
    }
    if wants(Suite::Netns) || wants(Suite::Contract) || wants(Suite::Neutron) {
        sandbox::check_users()?;
    }
    if wants(Suite::Contract) || wants(Suite::Neutron) {
        let needs = [provision::KEEPALIVED, provision::CONNTRACKD, provision::PEERS];
        provision::programs(&needs)?;
        provision::programs(&[provision::ETCD, provision::SQLITE_OPENSSL])?;
    }
    if wants(Suite::Browser) {
        provision::programs(&[provision::KEEPALIVED, provision::CHROMIUM, provision::PEERS])?;
    }
    let programs = build::tests()?;
    let subject = match options.subject {
        Some(subject) => subject,
        None => build::dropin()?,
    };
    let mut environment = vec![("VIPWATCH_SUBJECT", subject.display().to_string())];
    if wants(Suite::Neutron) {
        for (name, version) in
            [("VIPWATCH_NEUTRON_29", "29.0.0"), ("VIPWATCH_NEUTRON_28", "28.0.2")]
        {
            environment.push((name, provision::neutron(version)?.display().to_string()));
        }
        environment.push(("VIPWATCH_KEYSTONE", provision::keystone()?.display().to_string()));
    }
    if wants(Suite::Netns) {
        environment
            .push(("VIPWATCH_SCHEMATHESIS", provision::schemathesis()?.display().to_string()));
    }
    if wants(Suite::Browser) {
        environment.push(("VIPWATCH_AXE", provision::axe()?.display().to_string()));
    }
    if let Some(table) = &options.table {
        environment.push(("VIPWATCH_TABLE", table.display().to_string()));
    }
    let mut line = vec!["test".to_owned(), options.filter.unwrap_or_default().to_owned()];
    for suite in Suite::ALL.into_iter().filter(|suite| wants(*suite)) {
        for program in programs.iter().filter(|program| Suite::of(program) == suite) {
            line.extend([
                suite.name().to_owned(),
                format!("{}/{}", program.package, program.target),
                program.path.display().to_string(),
            ]);
        }
    }
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    sandbox::enter(&line, &environment)
}

/// Runs the test programs one after the other. `args` is the filter, then suite, name and path of each program.
pub fn run(args: &[&str]) -> TaskResult {
    let (filter, programs) = args
        .split_first()
        .ok_or_else(|| TaskError("arguments are missing: filter and programs".to_owned()))?;
    let began = Instant::now();
    let mut total = Count::default();
    let mut failed = Vec::new();
    let mut failures = Vec::new();
    let mut results = Vec::new();
    for program in programs.chunks_exact(3) {
        let (suite, name, path) = (program[0], program[1], program[2]);
        let suite =
            Suite::ALL.into_iter().find(|known| known.name() == suite).unwrap_or(Suite::Unit);
        // The tests watch directories with SIGIO and a real-time signal, which would end the process by default. A
        // signal that is blocked at the start is blocked in all threads.
        let mut command = Command::new("env");
        command.arg("--block-signal=IO,RTMIN+5").arg(path);
        command.args(["--test-threads", suite.threads()]);
        if !filter.is_empty() {
            command.arg(filter);
        }
        println!("── {} · {name}", suite.name());
        let mut run = run_program(&mut command)?;
        total.add(&run.count);
        results.append(&mut run.results);
        failures.append(&mut run.failures);
        if !run.is_ok {
            failed.push(name.to_owned());
        }
    }
    if let Some(table) = std::env::var_os("VIPWATCH_TABLE") {
        write_table(&PathBuf::from(table), &mut results)?;
    }
    // Again at the end, because the output of all tests is long.
    for line in &failures {
        println!("{line}");
    }
    println!("\n{} passed, {} failed", total.passed, total.failed);
    println!("in {:.0} s", began.elapsed().as_secs_f64());
    if !failed.is_empty() {
        return Err(TaskError(format!("failed: {}", failed.join(", "))));
    }
    if total.passed == 0 {
        return Err(TaskError("no test has this text in its name".to_owned()));
    }
    Ok(())
}

#[derive(Default)]
struct Count {
    passed: u32,
    failed: u32,
}

impl Count {
    fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// The result of one test program.
struct Run {
    count: Count,
    /// The name of each test, and whether it passed.
    results: Vec<(String, bool)>,
    /// The output of the failed tests, without backtraces.
    failures: Vec<String>,
    is_ok: bool,
}

/// Runs one test program and prints its output.
fn run_program(command: &mut Command) -> Result<Run, TaskError> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut results = Vec::new();
    let mut failures = FailureOutput::default();
    let mut count = Count::default();
    let output = child
        .stdout
        .take()
        .ok_or_else(|| TaskError("cannot read the output of the tests".to_owned()))?;
    for line in std::io::BufRead::lines(std::io::BufReader::new(output)) {
        let line = line?;
        let result = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "));
        match result {
            Some((name, "ok")) => {
                count.passed += 1;
                results.push((name.to_owned(), true));
            }
            Some((name, "FAILED")) => {
                count.failed += 1;
                results.push((name.to_owned(), false));
            }
            _ => failures.read(&line),
        }
        println!("{line}");
    }
    let is_ok = child.wait()?.success();
    Ok(Run { count, results, failures: failures.lines, is_ok })
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

/// Writes the results as a Markdown table, sorted by name.
fn write_table(path: &std::path::Path, results: &mut [(String, bool)]) -> TaskResult {
    results.sort();
    let passed = results.iter().filter(|(_, is_ok)| *is_ok).count();
    let mut text = format!("{passed} of {} cases pass.\n\n| case | |\n|---|---|\n", results.len());
    for (name, is_ok) in results.iter() {
        let result = if *is_ok { "pass" } else { "**fail**" };
        let _ = writeln!(text, "| `{name}` | {result} |");
    }
    std::fs::File::create(path)?.write_all(text.as_bytes())?;
    Ok(())
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
}

// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask test`: runs all checks and tests, or some suites. A test that cannot run is a failure.

mod options;
mod outcome;
mod plan;
mod program;
mod repeat;
mod report;
mod steps;
mod suite;
mod suite_run;

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};

use crate::{TaskError, TaskResult, build, provision, sandbox};
use options::TestOptions;
pub use program::run as run_programs;
pub use steps::STEP;
pub use suite_run::step;

pub const HELP: &str = "\
Run all checks and tests, or some suites. This command must succeed before a change is merged.

Usage: cargo xtask test [SUITE…] [FILTER] [--full] [--repeat N [--load]] [--subject PATH] [--table FILE]

Suites:
  check       Format, lints, naming rules, documentation, manual pages, shell scripts; see `cargo xtask check --help`
  unit        Unit and property tests, which need nothing
  netns       Tests in network namespaces, with real keepalived
  contract    Tests of the drop-in with the exact command lines of each Neutron release
  neutron     Tests with Neutron's own code, releases 28 and 29, as the agent and as the API server with Keystone
  browser     Tests of the dashboard in real Chromium, with a node and real keepalived
  faults      Short schedules of faults with real keepalived, judged by an independent checker
  packages    Installation of the Debian packages in a clean system with a real systemd; needs root
  deployment  The examples for Ansible, Kolla-Ansible, OpenStack-Ansible and Helm, each with its own linter
  fuzz        20,000 inputs for each fuzz target

  FILTER          Run only tests with this text in their name; not for check, faults, deployment and fuzz
  --full          Run what takes too long for every change, too: 200 fault schedules for nodes and 60 for the cluster, with
                  deadlines, all packages on older systems, every bench with --quick, the rules for dependencies. This
                  takes some hours
  --repeat N      Run the suites N times, and print how often each test failed. Without SUITE: netns, contract,
                  neutron, browser, faults and packages
  --load          Run a busy loop for each processor beside the tests; only with --repeat
  --subject PATH  Run the contract suite on another executable, for example on Neutron's script
  --table FILE    Write the results of the contract suite to FILE as a Markdown table

Several suites run beside each other. Their output is in target/test/SUITE.log; failed tests are printed at the end.
With CI=true, a failed test of netns, neutron, browser, faults or packages runs once more, alone. If it passes then, the
run passes, prints `flaky: NAME` and writes the names to target/flaky.txt.

Examples:
  cargo xtask test
  cargo xtask test unit
  cargo xtask test netns webhook
  cargo xtask test netns browser --repeat 5 --load
  cargo xtask test contract --subject /usr/bin/neutron-keepalived-state-change --table script.md
";

/// Builds and installs what the suites need, and runs them.
pub fn prepare(args: &[&str]) -> TaskResult {
    let options = TestOptions::parse(args)?;
    let _lock = lock()?;
    provision::disk_space()?;
    sandbox::check_namespaces()?;
    if let Some(count) = options.repeat {
        return repeat::run(&options, count);
    }
    plan::run(&options)
}

/// Fails if another `cargo xtask test` runs in this clone: both would write the same packages, logs and results.
fn lock() -> Result<File, TaskError> {
    let directory = build::target_directory();
    std::fs::create_dir_all(&directory)?;
    let path = directory.join("test.lock");
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
    if file.try_lock().is_err() {
        let mut process = String::new();
        let _ = file.read_to_string(&mut process);
        return Err(TaskError(format!(
            "another `cargo xtask test` runs in this clone (process {})\n  hint: wait for its end, or use another clone",
            process.trim()
        )));
    }
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

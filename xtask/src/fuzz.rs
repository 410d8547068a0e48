// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask fuzz`: runs the parsers of untrusted data on random input with libFuzzer. An input that makes a
//! parser fail is kept and its path is printed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arguments::Arguments;
use crate::build::{self, target_directory};
use crate::{TaskError, TaskResult, process, provision, sandbox};

pub const HELP: &str = "\
Run the parsers of untrusted data on random input, or compare discovery with real keepalived.

Usage: cargo xtask fuzz [TARGET] [--seconds N]
       cargo xtask fuzz keepalived [--seed N] [--count N] [--seconds N]

Targets (all of them unless one is given):
  request          Requests of monitors to the receiver
  keepalived_conf  Configuration files of keepalived
  includes         Includes and patterns of keepalived, in a directory tree with links
  netlink          Netlink messages of the kernel
  frame            Ethernet frames with ARP or IPv6 neighbour discovery
  vrrp             IP packets with VRRP adverts
  routes           Routes and routing rules of the kernel
  proc             Files of /proc
  cluster          Keys and values of etcd
  hook_protocol    Messages to and from the hook runner
  vipwatch_toml    The node's configuration

A target also fails if an input takes more than 10 seconds, or more memory than its budget (fuzz/src/lib.rs): the budget
grows with the length of the input.

  --seconds N  Run each target, or the comparison, for N seconds (default 60)

`fuzz keepalived` makes small changes to valid configurations and compares the instances that real keepalived and
discovery read from each.
  --seed N     Start with this seed; the default is the clock
  --count N    Compare N files instead of running for a time

An input that makes a parser fail, or a file with a difference, is kept below target/fuzz/broken.
";

/// The names of all targets. Each is a program in `fuzz/targets` with its first inputs in `fuzz/corpus`.
pub const TARGETS: [&str; 11] = [
    "request",
    "keepalived_conf",
    "includes",
    "netlink",
    "frame",
    "vrrp",
    "routes",
    "proc",
    "cluster",
    "hook_protocol",
    "vipwatch_toml",
];

/// The limits of one input, which libFuzzer checks: seconds, and the memory of the process in MiB. The memory of an input is
/// limited by `fuzz/src/lib.rs`. Beside other suites, a fifth of a second of work with idle priority takes more than ten.
const INPUT_LIMITS: [&str; 3] = ["-max_len=16384", "-timeout=60", "-rss_limit_mb=512"];

/// Flags for the coverage counters of libFuzzer. They use no sanitizer and so need no nightly compiler.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 \
     -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";

pub fn run(args: &[&str]) -> TaskResult {
    if let ["keepalived", rest @ ..] = args {
        return compare(rest);
    }
    let mut args = Arguments::new(args);
    let seconds = args.number("--seconds")?.unwrap_or(60);
    let target = args.word("target", &TARGETS)?;
    args.finish()?;
    let targets = target.map_or_else(|| TARGETS.to_vec(), |target| vec![target]);
    let programs = build()?;
    let limit = format!("-max_total_time={seconds}");
    for target in targets {
        println!("── fuzz · {target}, for {seconds} s");
        run_target(&programs, target, &target_directory().join("fuzz/corpus"), &[&limit])?;
    }
    Ok(())
}

/// Installs keepalived, and starts the program `xtask/compare` in the sandbox.
fn compare(args: &[&str]) -> TaskResult {
    provision::programs(&[provision::BASIC, provision::KEEPALIVED])?;
    sandbox::check_namespaces()?;
    let program = build::compare()?.display().to_string();
    let broken = target_directory().join("fuzz/broken/keepalived").display().to_string();
    sandbox::enter(&[&["fuzz", &program, &broken], args].concat(), &[])
}

/// Runs 20,000 inputs for each target, as a part of `cargo xtask test`. They are the same in every run: no input is kept for
/// the next one.
pub fn briefly() -> TaskResult {
    let programs = build()?;
    let kept = target_directory().join("fuzz/brief");
    let _ = std::fs::remove_dir_all(&kept);
    for target in TARGETS {
        println!("── fuzz · {target}, 20,000 inputs");
        run_target(&programs, target, &kept, &["-runs=20000", "-seed=1"])?;
    }
    Ok(())
}

/// Builds all targets and returns their directory.
fn build() -> Result<PathBuf, TaskError> {
    provision::programs(&[provision::CPP_COMPILER])?;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let directory = target_directory().join("fuzz");
    process::run(
        build::cargo()
            .args(["build", "--quiet", "--locked", "--release"])
            .args(["--manifest-path", "fuzz/Cargo.toml", "--target", &triple, "--target-dir"])
            .arg(&directory)
            .env("RUSTFLAGS", RUSTFLAGS),
    )?;
    Ok(directory.join(triple).join("release"))
}

/// Runs one target. New inputs are kept below `kept`.
fn run_target(programs: &Path, target: &str, kept: &Path, limits: &[&str]) -> TaskResult {
    let seeds = build::root().join("fuzz/corpus").join(target);
    let kept = kept.join(target);
    let broken = target_directory().join("fuzz/broken").join(target);
    for directory in [&kept, &broken] {
        std::fs::create_dir_all(directory)?;
    }
    let mut command = Command::new(programs.join(target));
    command.args(["-print_final_stats=1", "-verbosity=0"]).args(INPUT_LIMITS);
    command.arg(format!("-artifact_prefix={}/", broken.display())).args(limits).arg(kept);
    let output = command.arg(&seeds).output()?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(TaskError(format!(
            "fuzz target {target} failed; the input is in {}\n{log}",
            broken.display()
        )));
    }
    let is_stat = |line: &&str| line.contains("executed_units") || line.contains("peak_rss");
    for line in log.lines().filter(is_stat) {
        println!("{line}");
    }
    Ok(())
}

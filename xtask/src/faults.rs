// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask faults`: builds `vipwatch` and starts `vipwatch-faults`, the crate `xtask/faults`. Each of its runs
//! creates namespaces of its own.

use std::process::Command;

use crate::{TaskError, TaskResult, build, provision, sandbox};

pub const HELP: &str = "\
Inject faults into labs with real keepalived, and judge the findings and causes of vipwatch with an independent checker.

Usage: cargo xtask faults [cluster] [--seeds A..B | --seed N] [--faults LIST] [--quick] [--json FILE] [--keep DIR] [--jobs N]
       cargo xtask faults --judge DIR
       cargo xtask faults [cluster] --mutations | --mutation NAME… [--jobs N]

With `cluster`, each lab has three hosts with keepalived, a member of etcd and a node, and the faults concern all of them
and their networks. The checker judges the findings of the cluster.

Options:
  --seeds A..B  Run the seeds from A to B, without B; 0..200 by default, with `cluster` 0..60
  --seed N      Run one seed
  --faults LIST Inject these faults on the primary instead of those of the seed, for example stop,partition. With
                `cluster`, FAULT@HOST names the host: primary, backup, reporter (of findings) or leader (of etcd)
  --quick       Run a few short schedules, and judge presence and order but no deadlines
  --json FILE   Write the results to FILE as JSON too
  --keep DIR    Keep all recordings in DIR; without it, only those of failed seeds are kept, below /tmp
  --jobs N      Run N seeds at the same time; 8 by default
  --judge DIR   Judge the recordings in DIR again, without a new run
  --mutations   Build deliberately broken versions of vipwatch, and check that each is found
  --mutation NAME
                Build one of these versions only; repeat it for more. A wrong name lists all names

One seed takes two to three minutes. docs/reference/faults.md lists the faults and explains how they are judged.

Examples:
  cargo xtask faults --seed 7 --keep /tmp/seed7
  cargo xtask faults --seeds 1000..1200 --jobs 12 --json faults.json
  cargo xtask faults --mutation carrier-ignored
  cargo xtask faults cluster --seeds 0..10 --jobs 4
  cargo xtask faults cluster --seed 1 --faults cut-from-etcd@reporter,quorum-loss
";

/// The seeds of `cargo xtask test --full`.
const FULL_SEEDS: &str = "0..200";
/// The seeds of the cluster in `cargo xtask test --full`.
const FULL_CLUSTER_SEEDS: &str = "0..60";

/// Builds everything and runs the seeds.
pub fn run(args: &[&str]) -> TaskResult {
    provision::programs(&[provision::BASIC, provision::KEEPALIVED, provision::TCPDUMP])?;
    if args.first() == Some(&"cluster") {
        provision::programs(&[provision::ETCD, provision::FAKETIME])?;
    }
    sandbox::check_namespaces()?;
    sandbox::check_users()?;
    let directory = build::debug_programs(&["vipwatch-faults", "vipwatch"])?;
    let mut command = Command::new(directory.join("vipwatch-faults"));
    // `cluster` is the first word.
    let (word, options) = args.split_at(usize::from(args.first() == Some(&"cluster")));
    command.args(word).arg("--vipwatch").arg(directory.join("vipwatch")).args(options);
    command.env("VIPWATCH_SOURCE", build::root());
    command.env("VIPWATCH_MUTATIONS", build::target_directory().join("mutations"));
    if command.status()?.success() {
        return Ok(());
    }
    Err(TaskError("`faults` failed; see above".to_owned()))
}

/// The short selection of `cargo xtask test`.
pub fn briefly() -> TaskResult {
    println!("── faults · short selection");
    run(&["--quick"])?;
    println!("── faults · short selection of the cluster");
    run(&["cluster", "--quick"])
}

/// The run of `cargo xtask test --full`, which judges deadlines.
pub fn fully() -> TaskResult {
    println!("── faults · seeds {FULL_SEEDS}");
    run(&["--seeds", FULL_SEEDS])?;
    println!("── faults · cluster, seeds {FULL_CLUSTER_SEEDS}");
    run(&["cluster", "--seeds", FULL_CLUSTER_SEEDS, "--jobs", "4"])
}

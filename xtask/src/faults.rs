// SPDX-License-Identifier: Apache-2.0
//! `cargo xtask faults`: builds `vipwatch` and starts `vipwatch-faults`, the crate `xtask/faults`. Each of its runs
//! creates namespaces of its own.

use std::process::Command;

use serde_json::Value;

use crate::{TaskError, TaskResult, build, provision, sandbox};

pub const HELP: &str = "\
Inject faults into labs with real keepalived, and judge the findings and causes of vipwatch with an independent checker.

Usage: cargo xtask faults [healthy | cluster] [--seeds A..B | --seed N] [--faults LIST] [--quick] [--json FILE] [--keep DIR] [--jobs N]
       cargo xtask faults --judge DIR
       cargo xtask faults [cluster] --mutations | --mutation NAME… [--jobs N]

With `healthy`, a seed is the number of a lab in which nothing is wrong: the role moves three or four times, and no finding
is right. With `cluster`, each lab has three hosts with keepalived, a member of etcd and a node, and the faults concern all of them
and their networks. The checker judges the findings of the cluster.

Options:
  --seeds A..B  Run the seeds from A to B, without B; 0..200 by default, with `healthy` 0..15, with `cluster` 0..60
  --seed N      Run one seed
  --faults LIST Inject these faults instead of those of the seed, for example stop,partition. FAULT@HOST names the host:
                primary or backup, with `cluster` also reporter (of findings) or leader (of etcd)
  --quick       Run a few short schedules, and judge presence and order but no deadlines
  --json FILE   Write the results to FILE as JSON too
  --keep DIR    Keep all recordings in DIR; without it, only those of failed seeds are kept, below /tmp
  --jobs N      Run N seeds at the same time; 8 by default
  --judge DIR   Judge the recordings in DIR again, without a new run
  --mutations   Build deliberately broken versions of vipwatch, and check that each is found
  --mutation NAME
                Build one of these versions only; repeat it for more. A wrong name lists all names

VIPWATCH_KEEPALIVED=PATH runs this keepalived in all labs; without it, some labs use those of other Debian releases.
One seed takes two to three minutes. docs/reference/faults.md lists the faults and explains how they are judged.

Examples:
  cargo xtask faults --seed 7 --keep /tmp/seed7
  cargo xtask faults --seeds 1000..1200 --jobs 12 --json faults.json
  cargo xtask faults --mutation carrier-ignored
  cargo xtask faults healthy --seed 8
  cargo xtask faults cluster --seeds 0..10 --jobs 4
  cargo xtask faults cluster --seed 1 --faults cut-from-etcd@reporter,quorum-loss
";

/// The seeds of `cargo xtask test --full`.
const FULL_SEEDS: &str = "0..200";
/// The time for seeds of the simulation in `cargo xtask test --full`.
const SIMULATION_SECONDS: &str = "120";

/// The seeds of the cluster in `cargo xtask test --full`.
const FULL_CLUSTER_SEEDS: &str = "0..60";

/// The programs of the repository that the runs need.
pub const PROGRAMS: [&str; 3] = ["vipwatch-faults", "vipwatch", "vipwatch-neutron-switch"];

/// The kinds of labs.
const LABS: [&str; 3] = ["nodes", "healthy", "cluster"];

/// Builds everything and runs the seeds.
pub fn run(args: &[&str]) -> TaskResult {
    provision::programs(&[provision::BASIC, provision::KEEPALIVED, provision::TCPDUMP])?;
    if args.first() == Some(&"cluster") {
        provision::programs(&[provision::ETCD, provision::FAKETIME])?;
    }
    sandbox::check_namespaces()?;
    sandbox::check_users()?;
    build::debug_programs(&PROGRAMS)?;
    // The lab is the first word.
    let has_lab = args.first().is_some_and(|word| LABS.contains(word));
    let (word, options) = args.split_at(usize::from(has_lab));
    if command(word, options, !args.contains(&"--quick"))?.status()?.success() {
        return Ok(());
    }
    Err(TaskError("`faults` failed; see above".to_owned()))
}

/// The program that runs the seeds, which is built.
fn command(lab: &[&str], options: &[&str], is_full: bool) -> Result<Command, TaskError> {
    let directory = build::target_directory().join("debug");
    let mut command = sandbox::bound_command();
    command.arg(directory.join("vipwatch-faults"));
    command.args(lab).arg("--vipwatch").arg(directory.join("vipwatch")).args(options);
    command.env("VIPWATCH_SOURCE", build::root());
    command.env("VIPWATCH_MUTATIONS", build::target_directory().join("mutations"));
    command.env(provision::keepalived::VERSIONS, provision::keepalived::versions(is_full)?);
    Ok(command)
}

/// The seeds of a run by their verdict.
#[derive(Default)]
pub struct JudgedSeeds {
    pub passed: Vec<u64>,
    pub failed: Vec<u64>,
    /// Why seeds failed.
    pub reasons: Vec<String>,
}

/// Runs the short selection for a kind of lab, or one seed of it. The programs are built.
pub fn briefly(lab: &str, seed: Option<&str>) -> Result<JudgedSeeds, TaskError> {
    println!("── faults · {lab}, short selection");
    let json = build::target_directory().join(format!("test/faults-{lab}-seeds.json"));
    let path = json.display().to_string();
    let mut options = vec!["--quick", "--json", &path];
    options.extend(seed.into_iter().flat_map(|seed| ["--seed", seed]));
    let _ = std::fs::remove_file(&json);
    let status = command(&[lab], &options, false)?.status()?;
    let document = std::fs::read_to_string(&json).map_err(|error| {
        TaskError(format!("`faults` ended with {status}, without results: {error}"))
    })?;
    judged_seeds(&serde_json::from_str(&document)?)
        .ok_or_else(|| TaskError("`faults` wrote results of another form".to_owned()))
}

fn judged_seeds(document: &Value) -> Option<JudgedSeeds> {
    let mut seeds = JudgedSeeds::default();
    for verdict in document["verdicts"].as_array()? {
        let seed = verdict["seed"].as_u64()?;
        let failures = verdict["failures"].as_array()?;
        if failures.is_empty() {
            seeds.passed.push(seed);
            continue;
        }
        seeds.failed.push(seed);
        seeds.reasons.extend(failures.iter().map(|failure| format!("seed {seed}: {failure}")));
    }
    Some(seeds)
}

/// The run of `cargo xtask test --full`, which judges deadlines.
pub fn fully() -> TaskResult {
    println!("── faults · seeds {FULL_SEEDS}");
    run(&["--seeds", FULL_SEEDS])?;
    println!("── faults · healthy, all shapes");
    run(&["healthy"])?;
    println!("── faults · cluster, seeds {FULL_CLUSTER_SEEDS}");
    run(&["cluster", "--seeds", FULL_CLUSTER_SEEDS, "--jobs", "4"])?;
    println!("── simulation of the cluster, for {SIMULATION_SECONDS} s");
    simulation()
}

/// Runs as many seeds of the simulation as fit into the time. The normal run has a fixed number of them among the unit tests.
fn simulation() -> TaskResult {
    let mut command = build::cargo();
    // Optimised code runs twice as many seeds.
    command.args(["--config", "profile.dev.package.vipwatch-cluster.opt-level=1", "test"]);
    command.args(["--quiet", "--package", "vipwatch-cluster", "--lib"]);
    command.args(["simulation::tests::the_properties_hold_for_each_seed", "--", "--nocapture"]);
    command.env("VIPWATCH_SIM_SECONDS", SIMULATION_SECONDS);
    if command.status()?.success() {
        return Ok(());
    }
    Err(TaskError("a seed of the simulation failed; see above".to_owned()))
}

// SPDX-License-Identifier: Apache-2.0
//! Builds the crate with each deliberate defect of the simulation's list, and runs the simulation, which must find it:
//!
//! ```sh
//! cargo run -p vipwatch-cluster --example simulation_mutations
//! ```
//!
//! `VIPWATCH_SIM_MUTATION` chooses one of them.

#![expect(clippy::print_stdout, reason = "a program for developers that prints its results")]
#![expect(clippy::unwrap_used, reason = "a failure is shown as a panic")]

#[path = "../src/simulation/mutations/list.rs"]
mod list;

use std::path::{Path, PathBuf};
use std::process::Command;

use list::{MUTATIONS, Mutation};

/// The number of seeds that each mutation has at most.
const SEEDS: &str = "200";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Copies the tracked and new files of the repository.
fn copy_source(source: &Path, copy: &Path) {
    let mut list = Command::new("git");
    list.arg("-C").arg(source).args(["ls-files", "-co", "--exclude-standard"]);
    let files = String::from_utf8(list.output().unwrap().stdout).unwrap();
    for file in files.lines() {
        let (from, to) = (source.join(file), copy.join(file));
        let Ok(bytes) = std::fs::read(&from) else { continue };
        // cargo builds again after a change of a file's time: files that are the same stay.
        if std::fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(from, to).unwrap();
    }
}

/// The first failed property of a run with the copy; `None` if all hold.
fn first_failure(copy: &Path, faults: &str) -> Result<Option<String>, String> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(copy).args(["test", "--offline", "--package", "vipwatch-cluster", "--lib"]);
    command.arg("simulation::tests::the_properties_hold_for_each_seed");
    command.env("RUSTFLAGS", "-A warnings").env("VIPWATCH_SIM_SEEDS", SEEDS);
    command.env_remove("VIPWATCH_SIM_SEED").env("VIPWATCH_SIM_FAULTS", faults);
    let output = command.output().unwrap();
    if output.status.success() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let failure = text.lines().skip_while(|line| !line.starts_with("seed ")).take(2);
    let failure: String = failure.map(str::trim).collect::<Vec<_>>().join(" ");
    if failure.is_empty() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(Some(failure))
}

fn main() {
    let copy = root().join("target/simulation-mutations");
    copy_source(&root(), &copy);
    let mut missed = Vec::new();
    let only = std::env::var("VIPWATCH_SIM_MUTATION").ok();
    let is_chosen = |mutation: &&Mutation| only.as_deref().is_none_or(|it| it == mutation.name);
    for mutation in MUTATIONS.iter().filter(is_chosen) {
        let (path, text, mutated) = mutation.apply(&copy.join("crates/cluster/src"));
        set_file(&path, &mutated);
        let failure = first_failure(&copy, mutation.faults);
        set_file(&path, &text);
        let failure = failure.unwrap_or_else(|error| panic!("{}: {error}", mutation.name));
        println!("{}: {}", mutation.name, failure.as_deref().unwrap_or("NOT FOUND"));
        if failure.is_none() {
            missed.push(mutation.name);
        }
    }
    assert!(missed.is_empty(), "not found: {}", missed.join(", "));
}

#[expect(clippy::disallowed_methods, reason = "nobody reads the copy meanwhile")]
fn set_file(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}
